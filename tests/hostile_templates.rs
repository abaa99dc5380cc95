//! Templates that want to take down the host. Each ends in an error; none takes more memory than
//! its limit, as this program's allocator counts it. (What bounds the time is the number of steps.)

// It has an allocator of its own, which the C library has, too.
#![cfg(not(feature = "c-library"))]

use emberlm::Status;
use emberlm::text::{Environment, render};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);
/// The counters are of the whole program.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
const LIMIT: usize = 100_000_000;

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = IN_USE.fetch_add(layout.size(), Relaxed) + layout.size();
        MOST.fetch_max(now, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Every test has this for all of its time, for what it allocates would be counted in others.
fn turn() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner())
}

/// The most memory that a rendering took beyond what was in use before, and its error.
fn fails(template: &str) -> String {
    let before = IN_USE.load(Relaxed);
    MOST.store(before, Relaxed);
    let document = r#"{"messages":[{"role":"user","content":"Hello"}]}"#;
    let result = render(template, document, &Environment::default());
    let most = MOST.load(Relaxed) - before;
    let shown: String = template.chars().take(100).collect();
    assert!(most < LIMIT, "{most} bytes for {shown}");
    let error = result.expect_err(&shown);
    assert_eq!(error.status, Status::TemplateFailed, "{shown}: {error}");
    assert!(error.message.len() < 2000);
    let left = IN_USE
        .load(Relaxed)
        .saturating_sub(before + error.message.capacity());
    assert!(left < 1 << 16, "{left} bytes are still there after {shown}");
    error.message
}

#[test]
fn endless_loops_and_recursion() {
    let _turn = turn();
    for template in [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}x{% endfor %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{{ a * b }}{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
        "{% macro m(n) %}{% for i in range(9) %}{{ m(n + 1) }}{% endfor %}{% endmacro %}{{ m(0) }}",
        "{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m() }}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% for x in [[1, 2, 3]] * 50 recursive %}{{ loop([[1]] * 50) }}{% endfor %}",
        "{% set ns = namespace() %}{% set ns.me = ns %}{% macro m() %}{{ ns.me.me.me }}{{ ns.f() }}{% endmacro %}{% set ns.f = m %}{{ m() }}",
        "{% generation %}{% macro m() %}{% generation %}{{ m() }}{% endgeneration %}{% endmacro %}{{ m() }}{% endgeneration %}",
    ] {
        fails(template);
    }
    fails(&format!(
        "{}{}",
        "{% for a in range(50000) %}".repeat(100),
        "{% endfor %}".repeat(100)
    ));
}

#[test]
fn huge_values() {
    let _turn = turn();
    for template in [
        "{{ 'a' * 10**9 }}",
        "{{ 10**9 * 'a' }}",
        "{{ '' * 10**18 }}{{ 'a' * 10**18 }}",
        "{{ [0] * 10**9 }}",
        "{{ ([[0] * 1000] * 1000) * 1000 }}",
        "{{ range(10**9) }}",
        "{{ range(0, 10**18, 1)|list }}",
        "{{ 'a'.center(10**9) }}",
        "{{ 'a'|center(10**9) }}",
        "{{ 'a'.ljust(10**12) }}",
        "{{ 'a'.zfill(10**12) }}",
        "{{ 'a\tb'.expandtabs(10**12) }}",
        "{{ 'a\nb'|indent(10**9) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%01000000000d' % 1 }}",
        "{{ '%*d' % (10**12, 1) }}",
        "{{ '%.99999999999f' % 0.1 }}{{ '%999999999999s' % 'a' }}",
        "{{ '{:>1000000000}'.format(1) }}",
        "{{ [1, 2]|tojson(indent=10**9) }}",
        "{{ [1]|batch(10**12, 0)|list }}",
        "{{ [1]|slice(10**12)|list }}",
        "{{ 10**10**10 }}",
        "{{ 2**127 * 2 }}",
        "{{ ('ab' * 100000).replace('', 'x' * 10000) }}",
        "{{ ('a' * 100000).replace('a', 'b' * 1000) }}",
        "{{ ('a' * 1000000)|join('b' * 1000) }}",
        "{{ ('a ' * 4000000).split() }}",
        "{{ ('a' * 8000000)|list }}",
        "{{ ('a' * 2000000 ~ 'b') in ('a' * 4000000) }}",
        "{{ ('a' * 2000000).rfind('a' * 1000000 ~ 'b' ~ 'a' * 10000) }}{{ ('a' * 100000).rsplit('a' * 50000 ~ 'b') }}{{ 1/0 }}",
        "{{ ('a' * 3000000).strip('b' * 3000000 ~ 'a') }}",
        "{{ range(100000)|map('string')|map('center', 10000)|list }}",
        "{{ range(100000)|sort|map('string')|unique|list }}",
    ] {
        fails(template);
    }
}

#[test]
fn values_that_double() {
    let _turn = turn();
    for step in [
        "{% set ns.x = ns.x ~ ns.x %}",
        "{% set ns.x = ns.x + ns.x %}",
        "{% set ns.x = ns.x * 2 %}",
        "{% set ns.x = [ns.x, ns.x]|join %}",
        "{% set ns.x = ns.x.join([ns.x, ns.x]) %}",
        "{% set ns.x = ns.x.replace('a', 'aa') %}",
        "{% set ns.x = '%s%s' % (ns.x, ns.x) %}",
        "{% set ns.x = '{0}{0}'.format(ns.x) %}",
        "{% set ns.x = (ns.x, ns.x)|string %}",
        "{% set ns.x = (ns.x, ns.x)|tojson %}",
        "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}",
        "{% set ns.x = ns.x|replace('a', ns.x) %}",
        "{% set ns.x = ns.x|urlencode ~ ns.x|e %}",
        "{% set ns.x = [ns.x, ns.x] %}{% if ns.x == [ns.x[0], ns.x[1]] %}{% set z = ns.x|string %}{% endif %}",
        "{% set ns.x = [[ns.x]] %}",
        "{% set ns.x = {'a': ns.x} %}",
        "{% set ns.x = [ns.x].index %}",
        "{% set ns.x = cycler(ns.x) %}",
        "{{ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' * 1000 }}",
    ] {
        fails(&format!(
            "{{% set ns = namespace(x='aaaaaaaa') %}}{{% for i in range(90000) %}}{step}{{% endfor %}}{{{{ 1 / 0 }}}}"
        ));
    }
    // Lists that share their parts are small, but to look at all of them takes for ever.
    let double = "{% set x = [x, x] %}".repeat(100);
    fails(&format!("{{% set x = [1] %}}{double}{{{{ x }}}}"));
    fails(&format!(
        "{{% set x = [1] %}}{double}{{% set y = x %}}{{% set x = [1] %}}{double}{{{{ x == y }}}}"
    ));
    fails(&format!("{{% set x = [1] %}}{double}{{{{ x|tojson }}}}"));
    fails(&format!(
        "{{% set x = [1] %}}{double}{{% set y = x %}}{{% set x = [1] %}}{double}{{{{ x < y or y < x or [x, y]|sort }}}}"
    ));
}

#[test]
fn deep_and_long_sources() {
    let _turn = turn();
    let n = 200_000;
    for template in [
        format!("{{{{ {}1{} }}}}", "(".repeat(n), ")".repeat(n)),
        format!("{{{{ {}1{} }}}}", "[".repeat(n), "]".repeat(n)),
        format!("{{{{ {}1 }}}}", "not ".repeat(n)),
        format!("{{{{ {}1 }}}}", "-".repeat(n)),
        format!("{{{{ {}1 }}}}", "- ".repeat(n)),
        format!("{{{{ 1{} }}}}", "+1".repeat(n)),
        format!("{{{{ 1{} }}}}", "~1".repeat(n)),
        format!("{{{{ x{} }}}}", ".a".repeat(n)),
        format!("{{{{ x{} }}}}", "[0]".repeat(n)),
        format!("{{{{ x{} }}}}", "|e".repeat(n)),
        format!("{{{{ x{} }}}}", "()".repeat(n)),
        format!("{{{{ 1{} }}}}", " if 1 else 1".repeat(n / 4)),
        format!("{{{{ 1{} }}}}", " is defined".repeat(n / 4)),
        format!("{{{{ 1{} }}}}", " < 1".repeat(n)),
        format!("{{% for {}a in x %}}", "(".repeat(n)),
        format!("{}x", "{% if 1 %}".repeat(n / 4)),
        format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(n / 4)),
        "{% filter upper %}".repeat(n / 8),
        "x".repeat(2 << 20),
        "{{".repeat(n),
        "{% raw %}".to_owned(),
        "{# no end".to_owned(),
        "{{ 'no end }}".to_owned(),
        "{% endif %}".to_owned(),
        "{% include 'x' %}{% import 'y' as z %}".to_owned(),
        "{{ ''.__class__.__mro__ }}".to_owned(),
        "{{ raise_exception('a' * 1000000) }}".to_owned(),
    ] {
        fails(&template);
    }
}
