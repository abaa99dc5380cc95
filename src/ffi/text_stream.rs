//! Text from tokens as they are made.

use super::boundary::{
    Out, OutStruct, Sized32, call, call_always, check_flags, fill, read_struct, slice, slice_mut,
    text,
};
use super::error::{NO_INDEX, ember_error, ember_status};
use super::handle::{Kind, Table};
use super::model::{ember_model, model};
use crate::engine::Model;
use crate::error::{Error, Result, fail};
use crate::memory::{self, Room};
use crate::text::TokenStream;
use std::ffi::c_char;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

/// Converts tokens to text as they arrive. It returns whole characters only, and ends at a stop string. One thread at
/// a time may use it; a call from a second thread meanwhile returns `EMBER_BUSY` and changes nothing. It keeps its
/// model alive.
pub struct ember_text_stream {
    _opaque: [u8; 0],
}

/// Flags of `ember_text_stream_options`, to be or-ed.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ember_text_stream_flags {
    /// Leave out control tokens instead of spelling their names.
    EMBER_TEXT_STREAM_SKIP_SPECIAL = 1,
}

/// A string at which a text stream ends.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_stop {
    /// UTF-8 of 1 to 4096 bytes.
    pub text: *const c_char,
    /// Bytes of `text`.
    pub len: usize,
}

/// How to create a text stream. Zero in every field but `struct_size` means the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_text_stream_options {
    /// `sizeof(ember_text_stream_options)`.
    pub struct_size: u32,
    /// Values of `enum ember_text_stream_flags`.
    pub flags: u32,
    /// Stop strings, at most 256; they are copied.
    pub stops: *const ember_stop,
    /// Number of `stops`.
    pub stop_count: usize,
}

// SAFETY: `repr(C)`; two u32 and two words have no padding; zero is a value of each; the size comes
// first.
unsafe impl Sized32 for ember_text_stream_options {
    const NAME: &'static str = "ember_text_stream_options";
}

/// The progress of a text stream. The caller sets `struct_size`, `ember_text_stream_info` the rest.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_text_stream_details {
    /// `sizeof(ember_text_stream_details)`, set by the caller.
    pub struct_size: u32,
    /// 1 if a stop string was met, after which tokens are ignored; else 0.
    pub stopped: u32,
    /// Index of that string in `stops`; `EMBER_NO_INDEX` if none was met.
    pub stop: u32,
    /// 0.
    pub reserved: u32,
    /// Tokens taken: all that were pushed, or those up to the one that completed the stop string.
    pub token_count: u64,
}

// SAFETY: `repr(C)`; four u32 and a u64 have no padding; numbers only; the size comes first.
unsafe impl Sized32 for ember_text_stream_details {
    const NAME: &'static str = "ember_text_stream_details";
}

/// What a stream's handle stands for.
struct Cell {
    model: Arc<Model>,
    stream: Mutex<TokenStream>,
}

static STREAMS: Table<Cell> = Table::new(Kind::TextStream);

/// Runs `work` on a copy of a stream, which takes its place if all went well.
fn change<R>(
    handle: *mut ember_text_stream,
    work: impl FnOnce(&mut TokenStream, &Model) -> Result<R>,
) -> Result<R> {
    let cell = STREAMS.get(handle.addr())?;
    let mut guard = match cell.stream.try_lock() {
        Ok(guard) => guard,
        // The stream itself is whole: it is never changed in place.
        Err(TryLockError::Poisoned(error)) => error.into_inner(),
        Err(TryLockError::WouldBlock) => {
            fail!(
                Busy,
                "another thread is inside a call with this text stream"
            )
        }
    };
    let mut copy = guard.clone();
    let result = work(&mut copy, &cell.model)?;
    // Nothing that is kept lies in the reserve.
    memory::check()?;
    *guard = copy;
    Ok(result)
}

/// The texts of stop strings.
///
/// # Safety
/// They must be as the header demands.
pub(super) unsafe fn stop_strings<'a>(stops: &[ember_stop]) -> Result<Vec<&'a str>> {
    let mut strings = Vec::new();
    for (i, stop) in stops.iter().enumerate() {
        // SAFETY: by contract, the arguments are as the header demands.
        let string = unsafe { text(stop.text, stop.len, "a stop string") };
        strings.push(string.map_err(|e| {
            let message = format!("stop string {i}: {}", e.message);
            Error::new(e.status, message).at(i)
        })?);
    }
    Ok(strings)
}

/// Creates a text stream for a model's tokens. `options` may be NULL for the defaults. The new handle is written to `out` and has to be
/// freed with `ember_text_stream_free`. Any thread may call it.
///
/// Errors: `EMBER_INVALID_ARGUMENT` for unknown flags, an empty stop string, one that is too long,
/// too many; `EMBER_INVALID_UTF8` in one of them; `EMBER_UNSUPPORTED` if the model's tokenizer is
/// not supported; `EMBER_OUT_OF_MEMORY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_text_stream_create(
    model: *const ember_model,
    options: *const ember_text_stream_options,
    out: *mut *mut ember_text_stream,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        let model = self::model(model)?;
        // SAFETY: `out` and `options` are as the header demands.
        let (out, options) = unsafe { (Out::new(out, "out")?, read_struct(options)?) };
        // SAFETY: `stops` is as the header demands.
        let stops = unsafe { slice(options.stops, options.stop_count, "stops") }?;
        let skip = ember_text_stream_flags::EMBER_TEXT_STREAM_SKIP_SPECIAL as u32;
        check_flags(options.flags, skip)?;
        // SAFETY: the strings are as the header demands.
        let strings = unsafe { stop_strings(stops) }?;
        model.tokenizer()?;
        let stream = TokenStream::new(&strings, options.flags & skip != 0)?;
        let cell = Cell {
            model,
            stream: Mutex::new(stream),
        };
        out.set(without_provenance_mut(STREAMS.insert(Arc::new(cell))?));
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Takes the next `count` tokens and writes the text that is certain now: whole characters that cannot be the start
/// of a stop string. The rest follows with later tokens or with `ember_text_stream_finish`. The text does not depend
/// on how tokens are divided among calls. When a stop string is complete (the first one, if there are several),
/// everything before it is written, nothing of it or after it, and `ember_text_stream_info` reports it. Bytes that
/// are not UTF-8 become U+FFFD.
///
/// `len` receives the number of bytes, also when `capacity`, the room in `text`, is too small for
/// them: `EMBER_BUFFER_TOO_SMALL`, with nothing written to `text` and no token taken. `text` may be
/// NULL if `capacity` is 0.
///
/// Errors: `EMBER_INVALID_TOKEN`, and no token was taken; `EMBER_BUFFER_TOO_SMALL`; `EMBER_BUSY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_text_stream_push(
    stream: *mut ember_text_stream,
    tokens: *const u32,
    count: usize,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `tokens`, `text` and `len` are as the header demands.
        let (tokens, text, len) = unsafe {
            (
                slice(tokens, count, "tokens")?,
                slice_mut(text.cast::<u8>(), capacity, "text")?,
                Out::new(len, "len")?,
            )
        };
        change(stream, |stream, model| {
            let tokenizer = model.tokenizer()?;
            let mut bytes = 0usize;
            for (index, token) in tokens.iter().enumerate() {
                let of_token = tokenizer.token_bytes(*token).map_err(|e| e.at(index))?;
                bytes = bytes.saturating_add(of_token.len());
            }
            let room = Room::for_input(bytes)?;
            let _in_room = room.enter();
            let mut out = String::new();
            stream.push(tokenizer, tokens, &mut out)?;
            fill(out.as_bytes(), text, &len, "text")
        })
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Ends the text: writes what was held back, with U+FFFD for a character that stayed incomplete.
/// The stream is then empty and may be used for another text. `text`, `capacity` and `len` are
/// those of `ember_text_stream_push`.
///
/// Errors: `EMBER_BUFFER_TOO_SMALL`, and the text was not ended; `EMBER_BUSY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_text_stream_finish(
    stream: *mut ember_text_stream,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `text` and `len` are as the header demands.
        let (text, len) = unsafe {
            (
                slice_mut(text.cast::<u8>(), capacity, "text")?,
                Out::new(len, "len")?,
            )
        };
        change(stream, |stream, _| {
            let mut out = String::new();
            stream.finish(&mut out);
            fill(out.as_bytes(), text, &len, "text")
        })
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Writes the progress of a stream since its creation or the last `ember_text_stream_finish` to `out`, whose `struct_size` the caller has
/// set. Any thread may call it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_text_stream_info(
    stream: *const ember_text_stream,
    out: *mut ember_text_stream_details,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `out` is as the header demands.
        let out = unsafe { OutStruct::new(out) }?;
        let cell = STREAMS.get(stream.addr())?;
        let stream = cell.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let mut details = ember_text_stream_details::zeroed();
        details.stopped = u32::from(stream.stopped().is_some());
        details.stop = stream.stopped().map_or(NO_INDEX, |index| index as u32);
        details.token_count = stream.n_tokens();
        out.set(&details);
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Frees a stream: the handle becomes invalid at once, and a call with it that is running on another thread completes normally. NULL
/// is allowed and does nothing.
///
/// Errors: `EMBER_INVALID_HANDLE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_text_stream_free(stream: *mut ember_text_stream) -> ember_status {
    let work = || {
        if !stream.is_null() {
            drop(STREAMS.remove(stream.addr())?);
        }
        Ok(())
    };
    // SAFETY: no error struct.
    unsafe { call_always(null_mut(), work) }
}
