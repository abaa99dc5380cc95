//! Text to a grammar that is ready to follow answers.

use super::{GrammarKind, GrammarOptions, GrammarVocabulary, Matcher};
use super::{gbnf, lark, limits, schema};
use crate::budget::{Budget, Interrupt};
use crate::error::{Error, Result, Status, fail};
use crate::memory::{self, Room};
use crate::threads;
use llguidance::Logger;
use llguidance::api::{GrammarInit, TopLevelGrammar};
use llguidance::earley::Parser;
use llguidance::earley::perf::ParserPerfCounters;
use std::fmt::Display;
use std::sync::Arc;

/// What is said about alternatives that several values may fit.
const ONE_OF: &str =
    "oneOf is not supported where a value may fit several of its schemas; use anyOf";
/// Longest message of llguidance that is passed on, in characters.
const MAX_MESSAGE: usize = 400;

/// A grammar for the tokens of a model. It belongs to one session: what it learns while it follows
/// answers (the states of its lexer) is kept for the next ones.
pub struct Grammar {
    vocabulary: Arc<GrammarVocabulary>,
    /// At the beginning of an answer.
    start: Parser,
    /// Of the parser and those made from it.
    room: Arc<Room>,
    /// Whether answers are JSON values.
    is_json: bool,
}

impl Grammar {
    /// Makes a grammar. Takes a few milliseconds; hostile texts up to a second and 100 MB. `options`
    /// may end it.
    ///
    /// Errors: `Grammar` if the text is invalid (with the place), if no text can meet it, or if it is
    /// too large; `Interrupted`; `OutOfMemory`.
    pub fn compile(
        vocabulary: &Arc<GrammarVocabulary>,
        kind: GrammarKind,
        text: &str,
        options: &GrammarOptions,
    ) -> Result<Grammar> {
        let limit = match kind {
            GrammarKind::Regex => limits::MAX_REGEX_BYTES,
            _ => limits::MAX_TEXT_BYTES,
        };
        if text.len() > limit {
            fail!(
                Grammar,
                "grammar: it is too large: {} bytes, {limit} are allowed",
                text.len()
            );
        }
        // The compiler recurses, and the stack of the caller's thread may be small.
        let room = Room::new(limits::COMPILE_ROOM_BYTES)?;
        let result = threads::on_stack("ember-grammar", limits::STACK_BYTES, || {
            let _in_room = room.enter();
            compile(vocabulary, kind, text, options)
        });
        let grammar = result.map_err(|e| match e.status {
            Status::Grammar => Error::new(e.status, format!("grammar: {}", e.message)),
            _ => e,
        })?;
        Ok(grammar)
    }

    /// A matcher at the beginning of an answer. The matchers of a grammar share its caches, so one
    /// thread uses them, one at a time.
    pub fn matcher(&self) -> Matcher {
        let room = self.room.clone();
        let start = {
            let _in_room = room.enter();
            self.start.clone()
        };
        Matcher::new(self.vocabulary.clone(), start, room, self.is_json)
    }

    /// The same grammar for another session, with caches of its own.
    ///
    /// Errors: `OutOfMemory`.
    pub fn duplicate(&self) -> Result<Grammar> {
        let room = Arc::new(limits::room(&self.start)?);
        let start = {
            let _in_room = room.enter();
            self.start.deep_clone()
        };
        memory::check()?;
        Ok(Grammar {
            vocabulary: self.vocabulary.clone(),
            start,
            room,
            is_json: self.is_json,
        })
    }

    /// The tokens that it chooses from.
    pub fn vocabulary(&self) -> &Arc<GrammarVocabulary> {
        &self.vocabulary
    }
}

fn compile(
    vocabulary: &Arc<GrammarVocabulary>,
    kind: GrammarKind,
    text: &str,
    options: &GrammarOptions,
) -> Result<Grammar> {
    let interrupt = &options.interrupt;
    let budget = &Budget::for_grammar(text.len()).with_interrupt(interrupt.clone());
    let make = |grammar| parser(vocabulary, grammar, interrupt);
    let start = match kind {
        GrammarKind::JsonSchema => {
            let schema = schema::parse(text, budget)?;
            let make = |schema| {
                let schema = schema::with_spacing(schema, options.spacing);
                make(TopLevelGrammar::from_json_schema(schema))
            };
            match make(schema.clone()) {
                Ok(parser) => parser,
                Err(e) => {
                    let e = schema::locate(&schema, e, &|s| make(s).err());
                    interrupt.check()?;
                    return Err(e);
                }
            }
        }
        GrammarKind::Regex => {
            check_regex(text)?;
            // An empty expression would begin a comment.
            let text = if text.is_empty() { "(?:)" } else { text };
            make(TopLevelGrammar::from_regex(text))?
        }
        GrammarKind::Lark => {
            lark::check(text, budget)?;
            make(TopLevelGrammar::from_lark(text.to_owned()))?
        }
        GrammarKind::Gbnf => {
            let lark = gbnf::to_lark(text)?;
            lark::check(&lark, budget)?;
            make(TopLevelGrammar::from_lark(lark))?
        }
    };
    let grammar = Grammar {
        vocabulary: vocabulary.clone(),
        room: Arc::new(limits::room(&start)?),
        start,
        is_json: kind == GrammarKind::JsonSchema,
    };
    // Also switches on the limits of the lexer, which all matchers share.
    let mut mask = vec![0; vocabulary.mask_words()];
    grammar.matcher().mask(&mut mask)?;
    Ok(grammar)
}

/// The parser at the beginning of an answer.
fn parser(
    vocabulary: &GrammarVocabulary,
    grammar: TopLevelGrammar,
    interrupt: &Interrupt,
) -> Result<Parser> {
    interrupt.check()?;
    let limits = limits::parser_limits();
    let env = &vocabulary.env;
    let (rules, spec) = GrammarInit::Serialized(grammar)
        .to_internal(Some(env.clone()), limits.clone())
        .map_err(invalid)?;
    interrupt.check()?;
    limits::check_expressions(&spec)?;
    limits::check_intersections(&spec)?;
    interrupt.check()?;
    let compiled = GrammarInit::Internal(rules, spec)
        .to_cgrammar(
            Some(env.clone()),
            &mut Logger::new(0, 0),
            limits.clone(),
            vocabulary.slicer.extra_lexemes(),
        )
        .map_err(invalid)?;
    interrupt.check()?;
    let counters = Arc::new(ParserPerfCounters::default());
    let mut parser = Parser::new(env.clone(), compiled, limits, counters).map_err(invalid)?;
    limits::check_productive(&mut parser, interrupt)?;
    Ok(parser)
}

/// llguidance's own words, as far as they fit.
fn invalid(error: impl Display) -> Error {
    let message = shorten(error);
    // It names an option of llguidance's.
    if message.contains("oneOf constraints are not supported") {
        return Error::new(Status::Grammar, ONE_OF);
    }
    Error::new(Status::Grammar, message)
}

fn shorten(message: impl Display) -> String {
    let message = format!("{message:#}");
    let mut lines = message.lines().map(str::trim).filter(|l| !l.is_empty());
    let text = lines.next().unwrap_or("invalid").to_owned();
    text.chars().take(MAX_MESSAGE).collect()
}

/// Refuses an invalid regular expression with the place of the fault.
fn check_regex(text: &str) -> Result<()> {
    let Err(e) = regex_syntax::Parser::new().parse(text) else {
        return Ok(());
    };
    let (offset, kind) = match &e {
        regex_syntax::Error::Parse(e) => (e.span().start.offset, e.kind().to_string()),
        regex_syntax::Error::Translate(e) => (e.span().start.offset, e.kind().to_string()),
        other => fail!(Grammar, "{}", shorten(other)),
    };
    fail!(Grammar, "at byte {offset} of the expression: {kind}")
}
