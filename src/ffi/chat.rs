//! Conversations by the model's chat template.

use super::boundary::{Out, Sized32, call, fill, interrupt, read_struct, slice_mut, text};
use super::error::{ember_error, ember_status};
use super::model::{ember_model, model};
use crate::error::{Result, fail};
use crate::text::ChatOptions;
use std::ffi::c_char;

/// Which chat template to use, and what for. Zero in every field but `struct_size` means the
/// default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_chat_options {
    /// `sizeof(ember_chat_options)`.
    pub struct_size: u32,
    /// Must be 0.
    pub reserved: u32,
    /// A Jinja template of yours to use instead of the model's; NULL means the model's.
    pub source: *const c_char,
    /// Bytes of `source`.
    pub source_len: usize,
    /// The name of one of the further templates that some models have, for example `tool_use`; NULL
    /// means the one for all purposes. Must be NULL where `source` is not.
    pub name: *const c_char,
    /// Bytes of `name`.
    pub name_len: usize,
    /// The time that templates use for today's date, in seconds since 1970-01-01 (UTC); 0 means the clock of this machine, in UTC.
    pub now: i64,
    /// NULL, or a number of the caller that other threads may set atomically while the call runs. Once it
    /// is not 0, the call ends soon with `EMBER_INTERRUPTED`.
    pub interrupt: *const u32,
    /// Must be 0.
    pub reserved2: usize,
}

// SAFETY: `repr(C)`; two u32, four words, an i64 and two words, on 64-bit machines without padding,
// and where a word has 32 bits 24 bytes precede the i64 and 8 follow; zero is a value of each; the size
// comes first.
unsafe impl Sized32 for ember_chat_options {
    const NAME: &'static str = "ember_chat_options";
}

impl ember_chat_options {
    /// # Safety
    /// The pointers are NULL or valid for reads of as many bytes as they are said to have, for the
    /// rest of the exported function, and `interrupt` for atomic reads.
    unsafe fn for_engine<'a>(&self) -> Result<ChatOptions<'a>> {
        if self.reserved != 0 || self.reserved2 != 0 {
            fail!(
                InvalidArgument,
                "reserved fields are not 0 in ember_chat_options"
            );
        }
        let given = |pointer: *const c_char, len: usize, name: &str| match pointer.is_null() {
            true if len != 0 => fail!(NullPointer, "{name} is NULL in ember_chat_options"),
            true => Ok(None),
            // SAFETY: by contract, the pointers are NULL or valid for as many bytes as they are said to have.
            false => unsafe { text(pointer, len, name) }.map(Some),
        };
        let template = given(self.source, self.source_len, "source")?;
        let name = given(self.name, self.name_len, "name")?;
        if template.is_some() && name.is_some() {
            fail!(
                InvalidArgument,
                "both source and name are set in ember_chat_options"
            );
        }
        Ok(ChatOptions {
            template,
            name,
            now: (self.now != 0).then_some(self.now),
            // SAFETY: by contract, the pointers are NULL or valid for as many bytes as they are said to have.
            interrupt: unsafe { interrupt(self.interrupt) }?,
        })
    }
}

/// Writes a conversation as the text that the model was trained on, by its chat template. `json`
/// has `json_len` bytes: one JSON object, whose keys are the template's variables. Templates know
///
/// - `messages`: objects with `role` and `content`, and further keys such as `tool_calls`;
/// - `tools`: function descriptions, and `documents`;
/// - `add_generation_prompt`: true to end with the start of the answer; false if it is not there;
/// - keys of their own, for example `enable_thinking`.
///
/// The tokens of the vocabulary (`bos_token`, ...) are there without being passed. The text is
/// what Jinja2 in Python makes with the settings of the transformers library. Its tokens are those
/// of `ember_tokenize` with `EMBER_TOKENIZE_SPECIAL`, but then a user's words can forge a role: use
/// `ember_chat_tokenize`.
///
/// `len` receives the number of bytes, also when `capacity`, the room in `text`, is too small for
/// them (`EMBER_BUFFER_TOO_SMALL`, with nothing written to `text`). `text` may be NULL if `capacity`
/// is 0; `options` may be NULL. Any thread may call it. A template is a program from the model's
/// file: it can neither see nor change anything, and is stopped when it takes too many steps (some
/// tenths of a second), too much memory (40 MB, and more for a long conversation) or when `interrupt`
/// of the options says so.
///
/// Errors: `EMBER_INVALID_UTF8`; `EMBER_BUFFER_TOO_SMALL`; `EMBER_INVALID_ARGUMENT` if `json` is not a JSON object;
/// `EMBER_TEMPLATE_FAILED` for a model without a template, for a template that is wrong, refuses the
/// messages (the message has its words) or was stopped; `EMBER_INTERRUPTED`; `EMBER_UNSUPPORTED` if
/// the model's tokenizer is not supported; `EMBER_OUT_OF_MEMORY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_chat_format(
    model: *const ember_model,
    json: *const c_char,
    json_len: usize,
    options: *const ember_chat_options,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        let model = self::model(model)?;
        // SAFETY: `json`, `options`, `text` and `len` are as the header demands.
        let (json, options, text, len) = unsafe {
            (
                self::text(json, json_len, "json")?,
                read_struct(options)?.for_engine()?,
                slice_mut(text.cast::<u8>(), capacity, "text")?,
                Out::new(len, "len")?,
            )
        };
        let templates = model.chat_templates()?;
        let rendered = templates.format(model.tokenizer()?, json, &options)?;
        fill(rendered.text.as_bytes(), text, &len, "text")
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Turns a conversation into tokens, ready for `ember_prefill` at the start of a context. The
/// arguments are those of `ember_chat_format`, and `tokens`, `capacity` and `count` those of
/// `ember_tokenize`.
///
/// The caller's strings are always text and cannot forge control tokens. Tokens such as `<|im_end|>` are recognized only where the
/// template itself wrote every character of them, whatever it did to the caller's strings before it wrote them. A `role` counts as
/// written by the template if it is a plain word without `_`, except in tokens that end something. Ordinary added tokens in angle or
/// square brackets that the template itself uses, such as `<tool_response>`, are text as well, except in messages of the role
/// `assistant`, where the model's own answers come back. BOS and EOS are added where the model wants them and the template has not
/// written them.
///
/// Errors: those of `ember_chat_format`, and `EMBER_INVALID_ARGUMENT` as of `ember_tokenize`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_chat_tokenize(
    model: *const ember_model,
    json: *const c_char,
    json_len: usize,
    options: *const ember_chat_options,
    tokens: *mut u32,
    capacity: usize,
    count: *mut usize,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        let model = self::model(model)?;
        // SAFETY: `json`, `options`, `tokens` and `count` are as the header demands.
        let (json, options, tokens, count) = unsafe {
            (
                text(json, json_len, "json")?,
                read_struct(options)?.for_engine()?,
                slice_mut(tokens, capacity, "tokens")?,
                Out::new(count, "count")?,
            )
        };
        let templates = model.chat_templates()?;
        let mut ids = Vec::new();
        templates.tokenize(model.tokenizer()?, json, &options, &mut ids)?;
        fill(&ids, tokens, &count, "tokens")
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}
