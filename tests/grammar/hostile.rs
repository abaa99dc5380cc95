//! Texts that want to take memory, time, the stack, or the process.

use crate::common::threads::{threads, threads_in_the_end};
use crate::support::{HAMLET, Random, random_answer};
use emberlm::Status;
use emberlm::grammar::GrammarKind::{self, Gbnf, JsonSchema, Lark, Regex};

/// Each with a word of its error, or none if it may be accepted.
fn texts() -> Vec<(GrammarKind, String, Option<&'static str>)> {
    let chain = |n: usize, link: fn(usize) -> String| {
        let links: Vec<String> = (0..n).map(link).collect();
        let last = format!(r#""a{n}":{{"type":"string"}}"#);
        format!(
            r##"{{"$ref":"#/$defs/a0","$defs":{{{},{last}}}}}"##,
            links.join(",")
        )
    };
    let rules = |n: usize, name: char| {
        let rule = |i| format!("{name}{i}: \"a\" {name}{}\n", i + 1);
        let rules: String = (0..n).map(rule).collect();
        format!("{rules}{name}{n}: \"x\"\nstart: {name}0\n")
    };
    let doubling = |n: usize| {
        let rules = (0..n).map(|i| format!("T{}: T{i} T{i}\n", i + 1));
        let rules: String = rules.collect();
        format!("T0: \"a\"?\n{rules}start: T{n}")
    };
    let patterns = |n: usize, around: fn(String) -> String| {
        let patterns = (1..=n).map(|i| around(format!(r#"{{"pattern":"[a-z]{{1}}.*x{i}"}}"#)));
        patterns.collect::<Vec<_>>().join(",")
    };
    let properties = |n: usize, value: &str| {
        let properties = (0..n).map(|i| format!(r#""p{i}":{value}"#));
        let properties = properties.collect::<Vec<_>>().join(",");
        format!(r#"{{"type":"object","properties":{{{properties}}}}}"#)
    };
    let numbered = |n: usize, rule: fn(usize) -> String, last: &str| {
        let rules: String = (0..n).map(rule).collect();
        format!("root ::= r0\n{rules}r{n} ::= {last}\n")
    };
    vec![
        // Patterns that hold together, in all the ways that there are.
        (
            JsonSchema,
            format!(r#"{{"allOf":[{}]}}"#, patterns(20, |p| p)),
            Some("20 patterns have to hold together"),
        ),
        (
            JsonSchema,
            format!(r#"{{"allOf":[{}]}}"#, patterns(26, |p| format!(r#"{{"anyOf":[{p}]}}"#))),
            Some("26 patterns have to hold together"),
        ),
        (
            JsonSchema,
            format!(
                r#"{{"allOf":[{}]}}"#,
                patterns(26, |p| format!(r#"{{"properties":{{"a":{p}}}}}"#))
            ),
            Some("at /properties/a: it is too large: 26 patterns"),
        ),
        (
            JsonSchema,
            format!(
                r#"{{"allOf":[{}]}}"#,
                patterns(26, |p| format!(r#"{{"items":{p},"type":"array"}}"#))
            ),
            Some("at /items: it is too large: 26 patterns"),
        ),
        (
            JsonSchema,
            chain(26, |i| {
                format!(r##""a{i}":{{"pattern":"[a-z]{{1}}.*x{i}","$ref":"#/$defs/a{}"}}"##, i + 1)
            }),
            Some("26 patterns have to hold together"),
        ),
        (JsonSchema, format!(r#"{{"anyOf":[{}]}}"#, patterns(26, |p| p)), None),
        (
            Lark,
            {
                let parts = (1..=26).map(|i| format!("/[a-z]{{1}}.*x{i}/"));
                format!("start: A\nA: {}", parts.collect::<Vec<_>>().join(" & "))
            },
            Some("hold together"),
        ),
        // Objects with many properties.
        (JsonSchema, properties(8_000, "{}"), Some("8000 properties")),
        (
            JsonSchema,
            {
                let parts = (0..80).map(|i| {
                    let part = (0..100).map(|j| format!(r#""p{i}_{j}":{{}}"#));
                    format!(r#"{{"properties":{{{}}}}}"#, part.collect::<Vec<_>>().join(","))
                });
                format!(r#"{{"allOf":[{}]}}"#, parts.collect::<Vec<_>>().join(","))
            },
            Some("8000 properties"),
        ),
        (JsonSchema, properties(300, &properties(100, "{}")), Some("too large")),
        (JsonSchema, properties(1_000, r#"{"type":"integer"}"#), None),
        // Rules that double.
        (
            Gbnf,
            numbered(60, |i| format!("r{i} ::= r{0} r{0}\n", i + 1), "\"x\""),
            Some("too large"),
        ),
        (
            Gbnf,
            numbered(60, |i| format!("r{i} ::= r{0} \",\" | r{0}\n", i + 1), "\"x\""),
            Some("too large"),
        ),
        (
            Lark,
            {
                let rules: String = (0..60).map(|i| format!("T{}: T{i} T{i}\n", i + 1)).collect();
                format!("T0: \"x\"\n{rules}start: T60\n")
            },
            Some("too large"),
        ),
        // Expressions.
        (Regex, "(a{1000}){1000}".into(), None),
        (Regex, "((((a{1000}){1000}){1000}){1000}){1000}".into(), None),
        (Regex, "(((a?){100}){100}b?){100}".into(), None),
        (Regex, "a?".repeat(20_000), Some("too large")),
        (Regex, "a".repeat(100_000), Some("too large")),
        (Regex, "(".repeat(10_000), Some("at byte")),
        (Regex, "(".repeat(10_000) + &")".repeat(10_000), Some("nest")),
        (Regex, "(a|b)*a(a|b){60}".into(), None),
        (Regex, ".*a.{3000}".into(), None),
        (Regex, r"(\w{1,300}\s){1,300}".into(), None),
        (Regex, "((((((a{1,9}){1,9}){1,9}){1,9}){1,9}){1,9})".into(), None),
        (Regex, r"[^\s\S]".into(), Some("no text can meet it")),
        (Regex, "a(?=b)".into(), Some("at byte 1")),
        (Regex, "[z-a]".into(), Some("at byte 1")),
        // Schemas.
        (JsonSchema, r#"{"type":"array","items":{},"minItems":1000000000}"#.into(), None),
        (JsonSchema, r#"{"type":"string","minLength":1000000000}"#.into(), None),
        (JsonSchema, r#"{"type":"string","pattern":"^(a{1000}){1000}$"}"#.into(), None),
        (
            JsonSchema,
            format!(r#"{{"type":"string","pattern":"^{}$"}}"#, "a?".repeat(20_000)),
            Some("too large"),
        ),
        (
            JsonSchema,
            format!("{{\"enum\":[\"{}\"]}}", "x".repeat(100 << 20)),
            Some("too large"),
        ),
        (
            JsonSchema,
            format!(
                "{{\"enum\":[{}0]}}",
                (0..70_000).map(|i| format!("\"v{i}\",")).collect::<String>()
            ),
            None,
        ),
        (JsonSchema, "[".repeat(500_000), Some("recursion limit")),
        (JsonSchema, "{\"items\":".repeat(100_000), Some("recursion limit")),
        (
            JsonSchema,
            chain(20_000, |i| format!(r##""a{i}":{{"items":{{"$ref":"#/$defs/a{}"}}}}"##, i + 1)),
            Some("too deep"),
        ),
        (
            JsonSchema,
            chain(1_500, |i| format!(r##""a{i}":{{"items":{{"$ref":"#/$defs/a{}"}}}}"##, i + 1)),
            None,
        ),
        (
            JsonSchema,
            chain(30, |i| {
                let next = format!(r##"{{"$ref":"#/$defs/a{}"}}"##, i + 1);
                format!(r##""a{i}":{{"allOf":[{next},{next}]}}"##)
            }),
            None,
        ),
        (
            JsonSchema,
            format!(
                "{{\"allOf\":[{}true]}}",
                (0..24)
                    .map(|i| format!(
                        r#"{{"anyOf":[{{"properties":{{"a{i}":{{}}}}}},{{"properties":{{"b{i}":{{}}}}}}]}},"#
                    ))
                    .collect::<String>()
            ),
            Some("too large"),
        ),
        (JsonSchema, r##"{"$ref":"#"}"##.into(), Some("no text can meet it")),
        (
            JsonSchema,
            r##"{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}"##.into(),
            Some("no text can meet it"),
        ),
        (
            JsonSchema,
            r##"{"type":"object","properties":{"x":{"$ref":"#"}},"required":["x"]}"##.into(),
            Some("no text can meet it"),
        ),
        (JsonSchema, r#"{"type":"integer","multipleOf":1234567}"#.into(), Some("at /multipleOf")),
        (JsonSchema, r#"{"type":"integer","multipleOf":1e300}"#.into(), Some("at /multipleOf")),
        (
            JsonSchema,
            r#"{"allOf":[{"type":"integer","multipleOf":1009},{"multipleOf":997}]}"#.into(),
            Some("multipleOf"),
        ),
        (JsonSchema, r#"{"type":"integer","multipleOf":0}"#.into(), Some("multiple of")),
        (
            JsonSchema,
            r#"{"type":"integer","multipleOf":-1}"#.into(),
            Some("at /multipleOf: multipleOf is -1"),
        ),
        (JsonSchema, r#"{"const":{"multipleOf":-1}}"#.into(), None),
        (
            JsonSchema,
            r#"{"oneOf":[{"type":"string","maxLength":3},{"type":"string","minLength":2}]}"#.into(),
            Some("use anyOf"),
        ),
        // What is no text.
        (Lark, "start: \"a\" <|im_end|>".into(), Some("line 1: <|im_end|>")),
        (Lark, "start: \"a\"\n  | <[1-4]>".into(), Some("line 2: <[1-4]>")),
        (Lark, "start: <[*]>".into(), Some("special tokens")),
        (Lark, "start: \"<a>\" /<b>/".into(), None),
        // Grammars.
        (Lark, "start: \"a\" start".into(), Some("no text can meet it")),
        (Lark, "start: \"x\" A\nA: /a+/ & /b+/".into(), Some("no text can meet it")),
        (Lark, "start: start | \"a\"".into(), None),
        (Lark, "start: s\ns: s s | \"a\" | ".into(), None),
        (Lark, "start: ((\"a\"{1000}){1000}){1000}".into(), None),
        (Lark, format!("start: {}", "(".repeat(100_000)), Some("too large")),
        (Lark, rules(20_000, 't'), Some("too large")),
        (Lark, rules(20_000, 'T'), Some("too large")),
        (Lark, rules(2_500, 't'), None),
        (Lark, rules(2_500, 'T'), None),
        (Lark, doubling(40), Some("too large")),
        (Lark, doubling(16), Some("too large")),
        (
            Lark,
            r#"start: %json {"type":"integer","multipleOf":1234567}"#.into(),
            Some("at /multipleOf"),
        ),
        (Gbnf, "root ::= \"a\" root".into(), Some("no text can meet it")),
        (Gbnf, format!("root ::= {}", "(".repeat(100_000)), Some("nested")),
        (Gbnf, "root ::= \"a\"{1000000000}".into(), None),
        (Gbnf, "root ::= ((((\"a\"?){1000}){1000}){1000}){1000}".into(), None),
    ]
}

#[test]
fn each_ends_in_an_error_or_an_answer() {
    for (kind, text, word) in texts() {
        let name: String = format!("{kind:?} {}", text.chars().take(60).collect::<String>());
        match (HAMLET.grammar(kind, &text), word) {
            (Err(e), Some(word)) => {
                assert_eq!(e.status, Status::Grammar, "{name}: {e}");
                assert!(e.message.contains(word), "{name}: {e}");
            }
            (Ok(_), Some(word)) => panic!("{name}: accepted, not {word:?}"),
            (Err(e), None) => panic!("{name}: {e}"),
            (Ok(grammar), None) => {
                // Steps may end in an error, too, but not in a panic.
                let mut random = Random::new(1);
                let mut matcher = grammar.matcher();
                let mut mask = vec![0; HAMLET.tokens.mask_words()];
                for _ in 0..40 {
                    let forced = matcher.next_forced(&HAMLET.tokenizer);
                    let step = forced.and_then(|_| matcher.mask(&mut mask)).and_then(|()| {
                        let choices = crate::support::allowed(&mask);
                        matcher.accept(choices[random.below(choices.len())])
                    });
                    if let Err(e) = step {
                        assert_eq!(e.status, Status::Grammar, "{name}: {e}");
                        assert!(e.message.contains("too complex"), "{name}: {e}");
                        break;
                    }
                }
            }
        }
    }
}

#[test]
fn many_optional_properties_can_be_left_out_and_taken() {
    let properties = (0..1_000).map(|i| format!(r#""p{i}":{{"type":"integer"}}"#));
    let schema = properties.collect::<Vec<_>>().join(",");
    let schema =
        format!(r#"{{"type":"object","properties":{{{schema}}},"additionalProperties":false}}"#);
    let grammar = HAMLET.grammar(JsonSchema, &schema).unwrap();
    for seed in 0..3 {
        random_answer(&HAMLET, &grammar, &mut Random::new(seed), 60);
    }
}

#[test]
fn an_interrupt_ends_the_making() {
    use emberlm::budget::Interrupt;
    use emberlm::grammar::{Grammar, GrammarOptions};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    // After so many looks; there are some in each stage.
    let looks = Arc::new(AtomicU32::new(0));
    let mut ended = 0;
    for last in 0.. {
        let (count, seen) = (Arc::new(AtomicU32::new(0)), looks.clone());
        let interrupt = Interrupt::new(move || {
            seen.fetch_add(1, Ordering::Relaxed);
            count.fetch_add(1, Ordering::Relaxed) >= last
        });
        let options = GrammarOptions {
            interrupt,
            ..GrammarOptions::default()
        };
        let schema = r#"{"properties":{"a":{"type":"integer"}}}"#;
        match Grammar::compile(&HAMLET.tokens, JsonSchema, schema, &options) {
            Ok(_) => break,
            Err(e) => assert_eq!(e.status, Status::Interrupted, "{e}"),
        }
        ended += 1;
    }
    assert!(ended > 4, "{ended}");
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    for (kind, text, place, word) in [
        (
            JsonSchema,
            "{\n \"type\": }",
            "line 2 column 10",
            "expected value",
        ),
        (JsonSchema, "17", "", "neither an object nor a boolean"),
        (JsonSchema, "false", "in the schema", "schema is false"),
        (
            JsonSchema,
            r#"{"properties":{"a":{"items":{"type":"strin"}}}}"#,
            "at /properties/a/items",
            "strin",
        ),
        (
            JsonSchema,
            r#"{"properties":{"a":{"anyOf":[{"type":"null"},{"not":{"type":"string"}}]}}}"#,
            "at /properties/a/anyOf/1",
            "not",
        ),
        (
            JsonSchema,
            r#"{"type":"object","properties":{"a/b":{"type":"integer","minimum":5,"maximum":3}},"required":["a/b"]}"#,
            "at /properties/a~1b",
            "minimum (5) is greater than maximum (3)",
        ),
        (
            JsonSchema,
            r##"{"items":{"$ref":"#/$defs/gone"}}"##,
            "at /items",
            "gone",
        ),
        (
            JsonSchema,
            r##"{"items":{"$ref":"#/$defs/x"},"$defs":{"x":{"pattern":"(","type":"string"}}}"##,
            "at /$defs/x",
            "regex",
        ),
        (Regex, "ab(c", "at byte 2", "unclosed group"),
        (Lark, "start: foo", "1(8)", "foo"),
        (Lark, "start: \"a\n", "1(10)", ""),
        (Lark, "", "", "start"),
        (Gbnf, "root ::= foo", "line 1", "foo"),
        (Gbnf, "root ::= \"a\"\nb ::= [a", "line 2", "["),
        (Gbnf, "start ::= \"a\"", "", "root"),
    ] {
        let Err(e) = HAMLET.grammar(kind, text) else {
            panic!("{text}: accepted")
        };
        assert_eq!(e.status, Status::Grammar, "{text}: {e}");
        assert!(
            e.message.contains(place) && e.message.contains(word),
            "{text}: {e}"
        );
        assert!(e.message.starts_with("grammar: "), "{text}: {e}");
    }
}

/// A host's panic hook is its own. Runs itself in a child process, whose output must be empty.
#[test]
fn nothing_is_left_in_the_host() {
    const MARK: &str = "EMBERLM_TEST_GRAMMAR_CHILD";
    if std::env::var_os(MARK).is_some() {
        use std::sync::atomic::{AtomicU32, Ordering};
        static CALLS: AtomicU32 = AtomicU32::new(0);
        std::panic::set_hook(Box::new(|_| {
            CALLS.fetch_add(1, Ordering::Relaxed);
        }));
        let before = threads();
        for (kind, text) in [
            (
                JsonSchema,
                r#"{"type":"object","additionalProperties":{"type":"integer"}}"#,
            ),
            (JsonSchema, r#"{"not":{}}"#),
            (Lark, "start: foo"),
            (Gbnf, "root ::= [a-z]+"),
            (Regex, "[0-9]+"),
        ] {
            if let Ok(grammar) = HAMLET.grammar(kind, text) {
                random_answer(&HAMLET, &grammar, &mut Random::new(3), 50);
            }
        }
        assert_eq!(CALLS.load(Ordering::Relaxed), 0);
        assert_eq!(threads_in_the_end(before), before);
        let loud = std::thread::spawn(|| panic!("the host's own")).join();
        assert!(loud.is_err());
        assert_eq!(CALLS.load(Ordering::Relaxed), 1);
        return;
    }
    let out = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "hostile::nothing_is_left_in_the_host",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(MARK, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
    assert_eq!(String::from_utf8_lossy(&out.stderr), "");
}
