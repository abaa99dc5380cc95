//! Facts about a tokenizer.

use super::boundary::{Out, OutStruct, Sized32, call, fill, slice_mut};
use super::error::{ember_error, ember_status};
use super::model::{ember_model, model};

/// `EMBER_NO_TOKEN` of the header.
pub const NO_TOKEN: u32 = u32::MAX;

/// Facts about a model's tokenizer. The caller sets `struct_size`, `ember_tokenizer_info` the rest. Tokens that the model does
/// not have are `EMBER_NO_TOKEN`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_tokenizer_details {
    /// `sizeof(ember_tokenizer_details)`, set by the caller.
    pub struct_size: u32,
    /// Tokens that have a text: those with ids from 0 to `token_count - 1`. `ember_model_details.vocab_size`, the number of
    /// logits, may be greater.
    pub token_count: u32,
    /// The token that begins a text.
    pub bos: u32,
    /// The token that ends a text. An answer may end with others, too: see `ember_end_tokens`.
    pub eos: u32,
    /// The token for text that has none.
    pub unknown: u32,
    /// The token that pads shorter sequences of a batch in training.
    pub padding: u32,
    /// 1 if `ember_tokenize` puts `bos` before a text unless the text continues others (`EMBER_TOKENIZE_CONTINUE`),
    /// else 0.
    pub adds_bos: u32,
    /// 1 if it puts `eos` after a text unless the text continues others, else 0.
    pub adds_eos: u32,
    /// Number of tokens that end an answer: what `ember_end_tokens` writes.
    pub end_token_count: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: `repr(C)`; ten u32 have no padding; numbers only; the size comes first.
unsafe impl Sized32 for ember_tokenizer_details {
    const NAME: &'static str = "ember_tokenizer_details";
}

/// Writes facts about the tokenizer of a model to `out`, whose `struct_size` the caller has set. Any thread may call it.
///
/// Errors: `EMBER_UNSUPPORTED` if the model's tokenizer is not supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_tokenizer_info(
    model: *const ember_model,
    out: *mut ember_tokenizer_details,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        let model = self::model(model)?;
        // SAFETY: `out` is as the header demands.
        let out = unsafe { OutStruct::new(out) }?;
        let tokenizer = model.tokenizer()?;
        let or_none = |token: Option<u32>| token.unwrap_or(NO_TOKEN);
        let mut d = ember_tokenizer_details::zeroed();
        d.token_count = tokenizer.n_vocab() as u32;
        d.bos = or_none(tokenizer.bos());
        d.eos = or_none(tokenizer.eos());
        d.unknown = or_none(tokenizer.unknown());
        d.padding = or_none(tokenizer.padding());
        d.adds_bos = u32::from(tokenizer.adds_bos());
        d.adds_eos = u32::from(tokenizer.adds_eos());
        d.end_token_count = tokenizer.end_tokens().len() as u32;
        out.set(&d);
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Writes the ids of all tokens that end an answer (end of text, turn or message), in ascending order, to `tokens`,
/// and their number to `count`, also when `capacity`, the room in `tokens`, is too small for them
/// (`EMBER_BUFFER_TOO_SMALL`, with nothing written to `tokens`). `tokens` may be NULL if `capacity` is 0. Most models
/// have one to five. `ember_token_is_end` checks a single token. Any thread may call it.
///
/// Errors: `EMBER_BUFFER_TOO_SMALL`; `EMBER_UNSUPPORTED` if the model's tokenizer is not supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_end_tokens(
    model: *const ember_model,
    tokens: *mut u32,
    capacity: usize,
    count: *mut usize,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        let model = self::model(model)?;
        // SAFETY: `tokens` and `count` are as the header demands.
        let (tokens, count) = unsafe {
            (
                slice_mut(tokens, capacity, "tokens")?,
                Out::new(count, "count")?,
            )
        };
        fill(model.tokenizer()?.end_tokens(), tokens, &count, "tokens")
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}
