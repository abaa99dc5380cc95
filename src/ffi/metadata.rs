//! What a model's file says about itself.

use super::boundary::{Out, call, fill, slice_mut, text};
use super::error::{ember_error, ember_status};
use super::model::{ember_model, model};
use crate::error::{Error, Status};
use std::ffi::c_char;

/// Writes the value of a metadata key of the model's file as text to `value`: a string as it is, a number, a boolean (`true`,
/// `false`) or an array as JSON does, with `NaN`, `inf` and `-inf` where JSON has no number. `key` is UTF-8 of `key_len` bytes,
/// for example `general.license`. `len` receives the number of bytes, also when `capacity`, the room in `value`, is too small
/// for them (`EMBER_BUFFER_TOO_SMALL`, with nothing written to `value`). `value` may be NULL if `capacity` is 0; no NUL is
/// added. Any thread may call it.
///
/// The keys are those of the GGUF file; of a split model, those of its first file. A Hugging Face folder has the keys
/// that a GGUF file of the same model has (`llama.context_length` for `max_position_embeddings`), as far as the library
/// reads them from `config.json`, with the chat templates and without the tokenizer.
///
/// Errors: `EMBER_MISSING_KEY` if there is no such key; `EMBER_UNSUPPORTED` for arrays of more than 1024 elements, such as
/// vocabularies, and for values of more than a megabyte: these are not kept, and the message says what they are and how many
/// elements they have; `EMBER_BUFFER_TOO_SMALL`; `EMBER_INVALID_UTF8`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_model_metadata(
    model: *const ember_model,
    key: *const c_char,
    key_len: usize,
    value: *mut c_char,
    capacity: usize,
    len: *mut usize,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        let model = self::model(model)?;
        // SAFETY: `key`, `value` and `len` are as the header demands.
        let (key, value, len) = unsafe {
            (
                text(key, key_len, "key")?,
                slice_mut(value.cast::<u8>(), capacity, "value")?,
                Out::new(len, "len")?,
            )
        };
        let metadata = model.metadata();
        metadata.with_text(key, |found| fill(found.as_bytes(), value, &len, "value"))
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Writes the name of metadata key `index` of the model's file to `key`; `ember_model_details.metadata_count` says how many there
/// are. They are sorted by their bytes. `len`, `capacity` and `key` are as `len`, `capacity` and `value` of
/// `ember_model_metadata`. Any thread may call it.
///
/// Errors: `EMBER_INVALID_ARGUMENT` if there is no key of this index; `EMBER_BUFFER_TOO_SMALL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_model_metadata_key(
    model: *const ember_model,
    index: usize,
    key: *mut c_char,
    capacity: usize,
    len: *mut usize,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        let model = self::model(model)?;
        // SAFETY: `key` and `len` are as the header demands.
        let (key, len) = unsafe {
            (
                slice_mut(key.cast::<u8>(), capacity, "key")?,
                Out::new(len, "len")?,
            )
        };
        let Some(found) = model.metadata().key(index) else {
            let n = model.metadata().len();
            let message = format!("index is {index}, but the model has {n} metadata keys");
            return Err(Error::new(Status::InvalidArgument, message));
        };
        fill(found.as_bytes(), key, &len, "key")
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}
