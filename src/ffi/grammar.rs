//! Structured answers.

use super::boundary::{Sized32, call, interrupt, read_struct, text};
use super::error::{ember_error, ember_status};
use super::session::{ember_session, with_session};
use crate::error::{Result, fail};
use crate::grammar::{GrammarKind, GrammarOptions, JsonSpacing};
use std::ffi::c_char;

/// Languages that a grammar is written in, for `ember_session_set_grammar`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ember_grammar_kind {
    /// No grammar: removes the session's grammar.
    EMBER_GRAMMAR_NONE = 0,
    /// A JSON schema. The output is a JSON value that the schema accepts; with `{}`, any JSON value. References must
    /// be local (`#/$defs/...`). A keyword that cannot be enforced is an error.
    EMBER_GRAMMAR_JSON_SCHEMA = 1,
    /// A regular expression that matches the whole output, in the syntax of Rust's `regex` crate, without
    /// look-around.
    EMBER_GRAMMAR_REGEX = 2,
    /// A grammar in llguidance's variant of Lark, which starts with the rule `start`. As in Lark,
    /// text is first divided into the longest possible terminals.
    EMBER_GRAMMAR_LARK = 3,
    /// A grammar in GBNF, which starts with the rule `root`.
    EMBER_GRAMMAR_GBNF = 4,
}

/// Values of `ember_grammar_options.json_spacing`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ember_json_spacing {
    /// One space behind each comma and colon between values, none elsewhere.
    EMBER_JSON_SPACED = 0,
    /// No space between values.
    EMBER_JSON_COMPACT = 1,
    /// Any white space that the model chooses, up to 40 characters in one place.
    EMBER_JSON_FREE = 2,
}

/// How to compile a grammar. Zero in every field but `struct_size` means the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_grammar_options {
    /// `sizeof(ember_grammar_options)`.
    pub struct_size: u32,
    /// A value of `enum ember_json_spacing`, for answers by a JSON schema.
    pub json_spacing: u32,
    /// NULL, or a number of the caller that other threads may set atomically while the call runs. Once it
    /// is not 0, the call ends soon with `EMBER_INTERRUPTED`, as `ember_session_interrupt` ends it.
    pub interrupt: *const u32,
}

// SAFETY: `repr(C)`; two u32 and a word have no padding; zero is a value of each; the size comes
// first.
unsafe impl Sized32 for ember_grammar_options {
    const NAME: &'static str = "ember_grammar_options";
}

/// Constrains the output of a session to a grammar, which replaces the previous one. From the next decode on, only
/// tokens that the grammar allows can be chosen; sampling settings still apply. `kind` is a value of `enum
/// ember_grammar_kind`, `text` the grammar, `len` bytes of UTF-8; `options` may be NULL for the defaults.
/// `EMBER_GRAMMAR_NONE`, with no text, removes the grammar.
///
/// Constrained output begins at the current end of the context, or after a later prefill: prompts are not
/// constrained, and each prefill starts the grammar from its beginning (so does setting the grammar again). If the
/// output is complete but may continue, end tokens (`ember_token_is_end`) are allowed as well. If it cannot continue,
/// and after an end token, only end tokens are allowed. So decoding until the first end token produces complete
/// output, and no token before it is a control token.
///
/// If the grammar allows only one continuation, its tokens are not sampled. The following decodes return them at
/// once, tokenized as the tokenizer would, and they are evaluated together when logits are needed; if
/// log-probabilities were asked for, they are evaluated one by one. Started decodes and batches work in the same way.
/// `ember_session_rewind` rewinds the grammar with the tokens, `ember_session_fork` copies it, and
/// `ember_session_logits` returns logits without it. A grammar takes up to 64 MB per session. The first grammar of a
/// model builds tables of about 300 bytes per vocabulary entry, which its sessions share.
///
/// Errors: `EMBER_GRAMMAR` if the grammar is not valid (the message names the place), if no text satisfies it, or if
/// it is too large (more than 1 MiB, 64 KiB for a regular expression) or too expensive. The error is returned within
/// about a second. Later decodes may still fail with it if the grammar becomes too complex for a step.
/// `EMBER_INVALID_UTF8`; `EMBER_INVALID_ARGUMENT` names the argument; `EMBER_UNSUPPORTED` if the model's tokenizer is
/// not supported or has no end token; `EMBER_INTERRUPTED`; `EMBER_BUSY`; `EMBER_DECODE_PENDING`;
/// `EMBER_OUT_OF_MEMORY`. After each of them the session keeps the grammar that it had.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_session_set_grammar(
    session: *mut ember_session,
    kind: u32,
    text: *const c_char,
    len: usize,
    options: *const ember_grammar_options,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `text` and `options` are as the header demands.
        let (text, given) = unsafe { (self::text(text, len, "text")?, read_struct(options)?) };
        let mut options = engine_options(&given)?;
        // SAFETY: `interrupt` is as the header demands.
        options.interrupt = unsafe { interrupt(given.interrupt) }?;
        let kind = match kind {
            0 if !text.is_empty() => {
                fail!(InvalidArgument, "len is {len}, but there is no grammar")
            }
            0 => return with_session(session, |session| session.clear_grammar()),
            1 => GrammarKind::JsonSchema,
            2 => GrammarKind::Regex,
            3 => GrammarKind::Lark,
            4 => GrammarKind::Gbnf,
            n => fail!(
                InvalidArgument,
                "kind is {n}, which is no ember_grammar_kind"
            ),
        };
        with_session(session, |session| session.set_grammar(kind, text, &options))
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

fn engine_options(options: &ember_grammar_options) -> Result<GrammarOptions> {
    let spacing = match options.json_spacing {
        0 => JsonSpacing::Spaced,
        1 => JsonSpacing::Compact,
        2 => JsonSpacing::Free,
        n => fail!(
            InvalidArgument,
            "json_spacing is {n}, which is no ember_json_spacing"
        ),
    };
    Ok(GrammarOptions {
        spacing,
        ..GrammarOptions::default()
    })
}
