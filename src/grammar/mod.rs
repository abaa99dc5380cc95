//! Structured answers: a grammar says, token by token, what may come next.
//!
//! A [`Grammar`] is made of a JSON schema, a regular expression, a Lark grammar or a GBNF grammar
//! for the tokens of one model ([`GrammarVocabulary`]). A [`Matcher`] follows one answer: it says
//! which tokens may come next (a bit mask), and which must ([`Matcher::forced`]).
//!
//! The parsing is llguidance's. Three things of it are not used here, on purpose: its entry points
//! that catch panics, because they leave a panic hook behind in the host; its own forcing of bytes,
//! because a short regular expression can force a gigabyte; and its thread pool. What a hostile
//! text could blow up is bounded in `limits`.

use crate::budget::Interrupt;

mod compile;
mod conjunctions;
mod gbnf;
mod gbnf_parser;
mod lark;
mod limits;
mod matcher;
mod numbers;
mod schema;
mod vocabulary;

pub use compile::Grammar;
pub use matcher::Matcher;
pub use vocabulary::GrammarVocabulary;

/// The language that a grammar is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrammarKind {
    /// A JSON schema: the answer is a JSON value that the schema accepts. `{}` means any value.
    JsonSchema,
    /// A regular expression that the whole answer matches.
    Regex,
    /// A grammar in llguidance's variant of Lark, which starts with the rule `start`.
    Lark,
    /// A grammar in GBNF, which starts with the rule `root`.
    Gbnf,
}

/// Where the JSON of an answer has white space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JsonSpacing {
    /// One space behind each comma and colon between values, none elsewhere.
    #[default]
    Spaced,
    /// None between values.
    Compact,
    /// As the model likes, up to 40 characters at a place.
    Free,
}

/// How a grammar is made.
#[derive(Clone, Debug, Default)]
pub struct GrammarOptions {
    /// Of answers by a JSON schema.
    pub spacing: JsonSpacing,
    /// Who may end the making.
    pub interrupt: Interrupt,
}
