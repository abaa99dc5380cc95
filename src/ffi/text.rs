//! Text to tokens and back.

use super::boundary::{
    Out, Sized32, call, check_flags, fill, interrupt, read_struct, slice, slice_mut, text,
};
use super::error::{ember_error, ember_status};
use super::model::{ember_model, model};
use crate::budget::{Budget, Interrupt};
use crate::error::Result;
use crate::text::{DecodeOptions, EncodeOptions};
use std::ffi::c_char;

/// Flags of `ember_tokenize`, to be or-ed. With none of them, the text is the start of a context,
/// and nothing in it has a special meaning.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ember_tokenize_flags {
    /// The text continues other tokens: do not add the tokens that the model expects at the beginning (BOS) or end of
    /// a text.
    EMBER_TOKENIZE_CONTINUE = 1,
    /// Recognize control tokens in the text, such as `<|im_end|>`. Do not set this flag for untrusted text, which
    /// could forge roles with them.
    EMBER_TOKENIZE_SPECIAL = 2,
}

/// How to tokenize. Zero in every field but `struct_size` means the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_tokenize_options {
    /// `sizeof(ember_tokenize_options)`.
    pub struct_size: u32,
    /// Values of `enum ember_tokenize_flags`.
    pub flags: u32,
    /// NULL, or a number of the caller that other threads may set atomically while the call runs. Once it
    /// is not 0, the call ends soon with `EMBER_INTERRUPTED`.
    pub interrupt: *const u32,
}

// SAFETY: `repr(C)`; two u32 and a word have no padding; zero is a value of each; the size comes
// first.
unsafe impl Sized32 for ember_tokenize_options {
    const NAME: &'static str = "ember_tokenize_options";
}

/// Flags of `ember_detokenize`, to be or-ed.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ember_detokenize_flags {
    /// Leave out control tokens instead of spelling their names.
    EMBER_DETOKENIZE_SKIP_SPECIAL = 1,
    /// The tokens continue other text. Without this flag, they are the start of a text, and the space that
    /// SentencePiece tokenizers put before every text is left out.
    EMBER_DETOKENIZE_CONTINUE = 2,
}

/// The tokens of a text, as both functions below give them.
fn tokenize(
    model: *const ember_model,
    text: &str,
    flags: u32,
    interrupt: Interrupt,
) -> Result<Vec<u32>> {
    let model = self::model(model)?;
    let going_on = ember_tokenize_flags::EMBER_TOKENIZE_CONTINUE as u32;
    let special = ember_tokenize_flags::EMBER_TOKENIZE_SPECIAL as u32;
    check_flags(flags, going_on | special)?;
    let options = EncodeOptions {
        add_special: flags & going_on == 0,
        parse_special: flags & special != 0,
    };
    let budget = Budget::for_text(text.len()).with_interrupt(interrupt);
    let mut ids = Vec::new();
    let tokenizer = model.tokenizer()?;
    tokenizer.encode_within(&budget, text, options, &mut ids)?;
    Ok(ids)
}

/// Tokenizes `len` bytes of UTF-8. The token ids are written to `tokens`, and their number to `count`. `capacity` is
/// the number of elements that `tokens` has room for; if that is too small, the result is `EMBER_BUFFER_TOO_SMALL`,
/// and only `count` is written. `tokens` may be NULL if `capacity` is 0. Any thread may call it.
///
/// The time is proportional to the text, a megabyte in some tenths of a second.
///
/// Errors: `EMBER_INVALID_UTF8`; `EMBER_BUFFER_TOO_SMALL`; `EMBER_INVALID_ARGUMENT` for unknown flags, and for a text for which
/// the model's tokenizer takes far more work than is usual; `EMBER_UNSUPPORTED` if the model's
/// tokenizer is not supported; `EMBER_OUT_OF_MEMORY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_tokenize(
    model: *const ember_model,
    text: *const c_char,
    len: usize,
    flags: u32,
    tokens: *mut u32,
    capacity: usize,
    count: *mut usize,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `text`, `tokens` and `count` are as the header demands.
        let (text, tokens, count) = unsafe {
            (
                self::text(text, len, "text")?,
                slice_mut(tokens, capacity, "tokens")?,
                Out::new(count, "count")?,
            )
        };
        let ids = tokenize(model, text, flags, Interrupt::default())?;
        fill(&ids, tokens, &count, "tokens")
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// `ember_tokenize` with options, which may be NULL for the defaults. Another thread can end it.
///
/// Errors: those of `ember_tokenize`; `EMBER_INTERRUPTED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_tokenize_with(
    model: *const ember_model,
    text: *const c_char,
    len: usize,
    options: *const ember_tokenize_options,
    tokens: *mut u32,
    capacity: usize,
    count: *mut usize,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `text`, `options`, `tokens` and `count` are as the header demands.
        let (text, options, tokens, count) = unsafe {
            (
                self::text(text, len, "text")?,
                read_struct(options)?,
                slice_mut(tokens, capacity, "tokens")?,
                Out::new(count, "count")?,
            )
        };
        // SAFETY: `interrupt` is as the header demands.
        let interrupt = unsafe { interrupt(options.interrupt) }?;
        let ids = tokenize(model, text, options.flags, interrupt)?;
        fill(&ids, tokens, &count, "tokens")
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Converts `count` token ids to bytes. The bytes are written to `text`, and their number to `len`. `capacity` is the
/// size of `text` in bytes; if that is too small, the result is `EMBER_BUFFER_TOO_SMALL`, and only `len` is written.
/// `text` may be NULL if `capacity` is 0. No NUL is added. The bytes are UTF-8 if the tokens end at the end of a
/// character; a character may be spread over several tokens. Any thread may call it.
///
/// Errors: `EMBER_INVALID_TOKEN`; `EMBER_BUFFER_TOO_SMALL`; `EMBER_INVALID_ARGUMENT` for unknown flags;
/// `EMBER_UNSUPPORTED` if the model's tokenizer is not supported; `EMBER_OUT_OF_MEMORY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_detokenize(
    model: *const ember_model,
    tokens: *const u32,
    count: usize,
    flags: u32,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        let model = self::model(model)?;
        // SAFETY: `tokens`, `text` and `len` are as the header demands.
        let (tokens, text, len) = unsafe {
            (
                slice(tokens, count, "tokens")?,
                slice_mut(text.cast::<u8>(), capacity, "text")?,
                Out::new(len, "len")?,
            )
        };
        let skip = ember_detokenize_flags::EMBER_DETOKENIZE_SKIP_SPECIAL as u32;
        let going_on = ember_detokenize_flags::EMBER_DETOKENIZE_CONTINUE as u32;
        check_flags(flags, skip | going_on)?;
        let options = DecodeOptions {
            skip_special: flags & skip != 0,
            continued: flags & going_on != 0,
        };
        let mut bytes = Vec::new();
        model.tokenizer()?.decode(tokens, options, &mut bytes)?;
        fill(&bytes, text, &len, "text")
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Writes the bytes of one token, a control token's name included: what `ember_detokenize` does for one token with
/// `EMBER_DETOKENIZE_CONTINUE`, and under the same rules. Most tokens have less than 32 bytes, and some have a part of a character. To
/// show text while it is generated, write the bytes as they come. Any thread may call it.
///
/// Errors: `EMBER_INVALID_TOKEN`; `EMBER_BUFFER_TOO_SMALL`; `EMBER_UNSUPPORTED` if the model's
/// tokenizer is not supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_token_text(
    model: *const ember_model,
    token: u32,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        let model = self::model(model)?;
        // SAFETY: `text` and `len` are as the header demands.
        let (text, len) = unsafe {
            (
                slice_mut(text.cast::<u8>(), capacity, "text")?,
                Out::new(len, "len")?,
            )
        };
        fill(model.tokenizer()?.token_bytes(token)?, text, &len, "text")
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Writes 1 to `is_end` if the token ends an answer (end of text, turn or message), else 0. Any
/// thread may call it.
///
/// Errors: `EMBER_INVALID_TOKEN`; `EMBER_UNSUPPORTED` if the model's tokenizer is not supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_token_is_end(
    model: *const ember_model,
    token: u32,
    is_end: *mut u32,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        let model = self::model(model)?;
        // SAFETY: `is_end` is as the header demands.
        let is_end = unsafe { Out::new(is_end, "is_end") }?;
        let tokenizer = model.tokenizer()?;
        // Fails for a token that does not exist, which `is_end` does not.
        tokenizer.kind(token)?;
        is_end.set(u32::from(tokenizer.is_end(token)));
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}
