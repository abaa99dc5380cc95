//! Chat templates: Jinja as Python's Jinja2 runs it with the settings of the transformers library.
//!
//! `minijinja` reads the syntax; evaluation is here, for three things that its machine has no hook
//! for. Values are Python's (`None` prints as `None`, a mapping as its `repr`, strings are indexed by
//! characters, undefined values fail where they do there). Every character keeps its origin, so that
//! a caller's text cannot be taken for the template's, whatever the template does to it. And memory
//! is bounded, not only the number of steps.

mod arguments;
mod attributes;
mod characters;
mod checks;
mod clock;
mod expressions;
mod filters;
mod filters_html;
mod filters_list;
mod filters_text;
mod format;
mod functions;
mod input;
mod json;
mod macros;
mod markup;
mod methods;
mod names;
mod operators;
mod print;
mod scope;
mod source;
mod statements;
mod text;
mod value;

pub use text::Origin;

use crate::budget::{Budget, Hold, Interrupt};
use crate::error::{Error, Result, Status, fail};
use crate::memory::Room;
use crate::threads;
use scope::Scope;
use std::cell::RefCell;
use std::rc::Rc;
use text::Builder;
use value::Value;

/// Steps that a rendering may take, and how many more for each character of the caller's.
const WORK: u64 = 1_500_000;
const WORK_PER_CHARACTER: u64 = 32;
/// Bytes that a rendering may have in use, and how many more for each character of the caller's.
const MEMORY: usize = 40 << 20;
const MEMORY_PER_CHARACTER: usize = 64;
/// Address space for the stack of a rendering. Parsing and evaluation recurse within limits that
/// fit into it; of a host's thread nobody knows how much is left.
const STACK_BYTES: usize = 64 << 20;
/// Most nested blocks, expressions and calls in evaluation.
const MAX_NESTING: u32 = 4000;
/// Most nested lists, mappings and calls.
const MAX_DEPTH: u32 = 200;

/// What a template is given beside the caller's document.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// Texts of the vocabulary by the names that templates know, such as `bos_token`.
    pub tokens: Vec<(&'static str, String)>,
    /// What `strftime_now` takes for now, in seconds since 1970 (UTC); None is the host's clock.
    pub now: Option<i64>,
    /// Who may end the rendering.
    pub interrupt: Interrupt,
}

/// A rendered text, and who wrote which part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    /// The whole text.
    pub text: String,
    /// Where each part ends in `text`, in bytes, and its origin; the last ends with the text.
    pub parts: Vec<(usize, Origin)>,
}

/// Renders a template with a JSON object whose keys are the template's variables. `tools`,
/// `documents` and `add_generation_prompt` are `none`, `none` and `false` where the object lacks them.
///
/// Errors: `InvalidArgument` for a document that is not a JSON object; `TemplateFailed`, naming the
/// line, for wrong syntax, for what the template raises, and for a template that takes too many
/// steps, too much memory or too deep a recursion; `Interrupted`; `OutOfMemory`.
pub fn render(source: &str, document: &str, environment: &Environment) -> Result<Rendered> {
    // What the budget does not count (the tree, and vectors that grow) is less than what it does.
    let length = document.len() + source.len();
    let room = Room::new(2 * (MEMORY + MEMORY_PER_CHARACTER * length))?;
    threads::on_stack("ember-template", STACK_BYTES, || {
        let _in_room = room.enter();
        render_here(source, document, environment)
    })
}

fn render_here(source: &str, document: &str, environment: &Environment) -> Result<Rendered> {
    let length = document.len() + source.len();
    let budget = Budget::for_template(
        WORK + WORK_PER_CHARACTER * length as u64,
        MEMORY + MEMORY_PER_CHARACTER * length,
    );
    let budget = Rc::new(budget.with_interrupt(environment.interrupt.clone()));
    let variables = input::variables(&budget, document)?;
    let source = source::prepare(source)?;
    let tree = source::parse(&source)?;
    let globals = Scope::new(&budget, None)?;
    for (name, text) in &environment.tokens {
        let text = text::Text::new(&budget, text)?;
        globals.set(name, Value::Str(text))?;
    }
    for (name, value) in variables {
        globals.set(&name, value)?;
    }
    let scope = Scope::new(&budget, Some(globals))?;
    let mut run = Run {
        out: Builder::new(&budget)?,
        budget,
        top: scope.clone(),
        scope,
        cycles: Vec::new(),
        source: &source,
        macros: Vec::new(),
        held: Vec::new(),
        recursive_loops: Vec::new(),
        nesting: 0,
        line: 0,
        now: environment.now,
        unprintable: RefCell::new(None),
    };
    let result = run.template(&tree);
    let out = std::mem::replace(&mut run.out, Builder::new(&run.budget)?);
    let line = run.line;
    run.end();
    match result {
        Ok(()) => rendered(out.chars()),
        Err(error) if error.status == Status::TemplateFailed => Err(Error::new(
            error.status,
            format!("chat template, line {line}: {}", error.message),
        )),
        Err(error) => Err(error),
    }
}

fn rendered(chars: &[text::Char]) -> Result<Rendered> {
    let mut rendered = Rendered::default();
    let bytes = chars.iter().map(|c| c.get().len_utf8()).sum();
    if rendered.text.try_reserve_exact(bytes).is_err() {
        fail!(OutOfMemory, "no memory for a text of {bytes} bytes");
    }
    for part in chars.chunk_by(|a, b| a.origin() == b.origin()) {
        rendered.text.extend(part.iter().map(|c| c.get()));
        rendered.parts.push((rendered.text.len(), part[0].origin()));
    }
    Ok(rendered)
}

/// One rendering.
struct Run<'a> {
    budget: Rc<Budget>,
    /// What has been written, since the start or since the innermost block that is caught.
    out: Builder,
    scope: Rc<Scope>,
    /// What may be part of a cycle of references, to be cleared in the end.
    cycles: Vec<Cycle>,
    source: &'a str,
    macros: Vec<&'a minijinja::machinery::ast::Macro<'a>>,
    /// The variables of the template itself, which blocks see.
    top: Rc<Scope>,
    /// Memory of what lives until the end.
    held: Vec<Hold>,
    recursive_loops: Vec<(&'a minijinja::machinery::ast::ForLoop<'a>, Rc<Scope>)>,
    nesting: u32,
    /// The line that is being evaluated, for messages.
    line: u32,
    now: Option<i64>,
    /// The characters that `repr` escapes, as ranges, once they were needed.
    unprintable: RefCell<Option<Vec<(char, char)>>>,
}

enum Cycle {
    Scope(Rc<Scope>),
    Namespace(Rc<value::Held>),
}

impl Run<'_> {
    /// Breaks cycles, so that everything is freed. Nothing is dropped before all are broken, so that
    /// no chain of drops is long.
    fn end(self) {
        let mut values = Vec::new();
        for cycle in &self.cycles {
            match cycle {
                Cycle::Scope(scope) => values.extend(scope.clear()),
                Cycle::Namespace(object) => {
                    if let value::Object::Namespace(entries) = object.inner() {
                        values.extend(entries.borrow_mut().drain());
                    }
                }
            }
        }
    }

    /// Counts a level of recursion; [`Run::leave`] counts it back.
    fn enter(&mut self) -> Result<()> {
        self.budget.work(1)?;
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            fail!(TemplateFailed, "the template nests too deeply");
        }
        Ok(())
    }

    fn leave(&mut self) {
        self.nesting -= 1;
    }
}
