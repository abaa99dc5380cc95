//! Sessions that are saved, restored, and moved off their device.

use super::adapter::{Used, ember_adapter_use};
use super::boundary::{Out, OutStruct, Sized32, call, read_struct, text};
use super::error::{copy_text, ember_error, ember_status};
use super::model::{checked_path, ember_model, model};
use super::session::{ember_session, insert, kv_type, stream_priority, with_session};
use crate::engine::state::{Kind, RestoreOptions, inspect};
use crate::engine::{Session, WantedAdapter};
use crate::error::{Result, fail};
use std::ffi::{c_char, c_void};

/// Values of `ember_save_options.kind`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ember_state_kind {
    /// Tokens, settings, keys, values and logits. Restoring it evaluates nothing.
    EMBER_STATE_EVERYTHING = 0,
    /// Tokens and settings: a few bytes per token. Restoring it evaluates the tokens.
    EMBER_STATE_TOKENS = 1,
}

/// How to save a session. Zero in every field but `struct_size` means the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_save_options {
    /// `sizeof(ember_save_options)`.
    pub struct_size: u32,
    /// A value of `enum ember_state_kind`.
    pub kind: u32,
}

// SAFETY: `repr(C)`; 2 * 4 bytes without padding; numbers only; the size comes first.
unsafe impl Sized32 for ember_save_options {
    const NAME: &'static str = "ember_save_options";
}

/// How to restore a session. Zero in every field but `struct_size` means the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_restore_options {
    /// `sizeof(ember_restore_options)`.
    pub struct_size: u32,
    /// The most tokens that the session can hold; 0 means as many as the saved one.
    pub context: u32,
    /// A value of `enum ember_kv_type`. `EMBER_KV_DEFAULT` means that of the saved session, or
    /// half precision if the device does not support it. Keys and values of another type are
    /// converted.
    pub kv_type: u32,
    /// As in `ember_session_options`; it is not saved.
    pub mark_interval: u32,
    /// As in `ember_session_options`.
    pub next: *const c_void,
    /// The adapters that the session was saved with, as they were given to `ember_session_set_adapters`; may be NULL if
    /// there are none.
    pub adapters: *const ember_adapter_use,
    /// Number of `adapters`.
    pub adapter_count: usize,
}

// SAFETY: `repr(C)`; four u32 and three words have no padding; zero is a value of each; the size comes first.
unsafe impl Sized32 for ember_restore_options {
    const NAME: &'static str = "ember_restore_options";
}

impl ember_restore_options {
    /// # Safety
    /// `adapters` is as the header demands.
    unsafe fn used(&self) -> Result<Used> {
        // SAFETY: by contract, `adapters` is as the header demands.
        unsafe { Used::read(self.adapters, self.adapter_count) }
    }

    /// # Safety
    /// `next` is as the header demands.
    unsafe fn for_engine<'a>(
        &self,
        adapters: &'a [WantedAdapter<'a>],
    ) -> Result<RestoreOptions<'a>> {
        Ok(RestoreOptions {
            context: self.context as usize,
            kv_type: match self.kv_type {
                0 => None,
                number => Some(kv_type(number)?),
            },
            // SAFETY: by contract, `next` is as the header demands.
            stream_priority: unsafe { stream_priority(self.next, Self::NAME) }?,
            mark_interval: self.mark_interval as usize,
            adapters,
        })
    }
}

/// What a saved session is. The caller sets `struct_size`, `ember_session_state_info` the rest. Text
/// is UTF-8, ended by a NUL, shortened to fit.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_state_details {
    /// `sizeof(ember_state_details)`, set by the caller.
    pub struct_size: u32,
    /// Version of the format.
    pub version: u32,
    /// A value of `enum ember_state_kind`.
    pub kind: u32,
    /// A value of `enum ember_kv_type`: the element type of the KV cache.
    pub kv_type: u32,
    /// The most tokens that the saved session could hold.
    pub context: u64,
    /// Tokens in its context.
    pub position: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// A hash of the model: its hyperparameters, and types, shapes and samples of its tensors.
    pub model_fingerprint: u64,
    /// A hash of the model's vocabulary.
    pub tokenizer_fingerprint: u64,
    /// The architecture of the model, for example `llama`.
    pub architecture: [c_char; 64],
    /// The name of the model; may be empty.
    pub model_name: [c_char; 128],
    /// Number of adapters that the session used. If there are more than 16, the next two arrays have the first 16.
    pub adapter_count: u32,
    /// 0.
    pub reserved: u32,
    /// Fingerprints of the adapters, as in `ember_adapter_details`; 0 in elements without one.
    pub adapter_fingerprints: [u64; 16],
    /// Scales of the adapters; 0 in elements without one.
    pub adapter_scales: [f32; 16],
}

// SAFETY: `repr(C)`; 4 * 4 + 5 * 8 + 192 + 2 * 4 + 16 * 8 + 16 * 4 bytes without padding; numbers only; the size comes first.
unsafe impl Sized32 for ember_state_details {
    const NAME: &'static str = "ember_state_details";
}

/// Takes the next `count` bytes of a session that is being saved. Return 0 to continue and 1 to stop saving with `EMBER_CANCELLED`.
/// Called on the thread that saves. It may call every function of the library, but those that need this session for themselves return
/// `EMBER_BUSY`. It must return normally: no `longjmp`, no exception.
pub type ember_write_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, bytes: *const c_void, count: usize) -> i32>;

/// Writes the next bytes of a saved session to `bytes`, at most `capacity`, and their number to `count`, which is 0 on entry; 0 means the
/// end. Return 0 to continue and 1 to stop restoring with `EMBER_CANCELLED`. Called on the thread that restores. It may call every
/// function of the library. It must return normally: no `longjmp`, no exception.
pub type ember_read_fn = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        bytes: *mut c_void,
        capacity: usize,
        count: *mut usize,
    ) -> i32,
>;

/// The options' kind.
///
/// # Safety
/// `options` is as the header demands.
unsafe fn kind(options: *const ember_save_options) -> Result<Kind> {
    // SAFETY: the contract of this function.
    match unsafe { read_struct(options) }?.kind {
        0 => Ok(Kind::Everything),
        1 => Ok(Kind::Tokens),
        n => fail!(InvalidArgument, "kind is {n}, which is no ember_state_kind"),
    }
}

/// Saves a session to the file at `path`: its tokens, sampling settings, grammar, and, unless
/// `options` says otherwise, its keys, values and logits. `options` may be NULL. The file does not
/// depend on the device: it can be restored on any device, and in another process. The session stays
/// as it is.
///
/// The data is written to a new file beside `path` and flushed to the disk, and the new file then
/// replaces an older one: after a crash, `path` holds either the old session or the new one.
///
/// Errors: `EMBER_INVALID_UTF8` in `path`; `EMBER_IO`, `EMBER_FILE_NOT_FOUND` or `EMBER_NOT_A_FILE` if
/// the file cannot be written;
/// `EMBER_OUT_OF_MEMORY`; `EMBER_BUSY`; `EMBER_DECODE_PENDING`; `EMBER_DEVICE_ERROR`,
/// `EMBER_DEVICE_LOST`. An older file is unchanged then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_session_save(
    session: *mut ember_session,
    path: *const c_char,
    path_len: usize,
    options: *const ember_save_options,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: all pointers are as the header demands.
        let (path, kind) = unsafe { (text(path, path_len, "path")?, kind(options)?) };
        let path = checked_path(path)?;
        with_session(session, |session| session.save(path, kind))
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Saves a session as `ember_session_save` does, but passes the bytes to `write`, in order. `user` is
/// passed to `write` and may be NULL.
///
/// Errors: `EMBER_CANCELLED` if `write` returns anything but 0; else as `ember_session_save`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_session_save_to(
    session: *mut ember_session,
    write: ember_write_fn,
    user: *mut c_void,
    options: *const ember_save_options,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `options` is as the header demands.
        let kind = unsafe { kind(options) }?;
        let Some(write) = write else {
            fail!(NullPointer, "write is NULL");
        };
        let mut write = |bytes: &[u8]| {
            // SAFETY: the caller's function and its own pointer; the bytes live during the call.
            match unsafe { write(user, bytes.as_ptr().cast(), bytes.len()) } {
                0 => Ok(()),
                n => fail!(Cancelled, "the write callback returned {n}"),
            }
        };
        with_session(session, |session| session.save_to(&mut write, kind))
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Makes a session of `model` from a file that `ember_session_save` has written. `options` may be
/// NULL. The session continues with the tokens and logits that the saved one would have continued
/// with: the same bits on the same device with the same KV type, and within the accuracy of the KV
/// type on another one. The new handle is written to `out` and must be freed with
/// `ember_session_free`. Any thread may call it.
///
/// All data is checked before it is used, and the model must be the one that the session was saved
/// with, on whatever device.
///
/// Errors: `EMBER_INVALID_UTF8` in `path`; `EMBER_FILE_NOT_FOUND`, `EMBER_NOT_A_FILE`, `EMBER_FILE_EMPTY`,
/// `EMBER_IO`;
/// `EMBER_NOT_STATE` if the file is not a saved session; `EMBER_STATE_VERSION` if its format is one of
/// a later library; `EMBER_STATE_FOREIGN` if it is of another model or tokenizer, or was saved with other
/// adapters than those of `options`;
/// `EMBER_FILE_TRUNCATED` if its end is missing; `EMBER_STATE_CHECKSUM` if its bytes have changed;
/// `EMBER_FILE_CORRUPT` if it contradicts itself; `EMBER_INVALID_ARGUMENT` if `context` is less than
/// the saved tokens; `EMBER_UNSUPPORTED` for a KV type that the device does not support;
/// `EMBER_OUT_OF_MEMORY`; `EMBER_GRAMMAR` if the saved grammar cannot be compiled any more;
/// `EMBER_DEVICE_ERROR`, `EMBER_DEVICE_LOST`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_session_restore(
    model: *const ember_model,
    path: *const c_char,
    path_len: usize,
    options: *const ember_restore_options,
    out: *mut *mut ember_session,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        let model = self::model(model)?;
        // SAFETY: all pointers are as the header demands.
        let (out, path, options) = unsafe {
            (
                Out::new(out, "out")?,
                text(path, path_len, "path")?,
                read_struct(options)?,
            )
        };
        let path = checked_path(path)?;
        // SAFETY: `options` is as the header demands.
        let used = unsafe { options.used() }?;
        let wanted = used.wanted();
        // SAFETY: as above.
        let options = unsafe { options.for_engine(&wanted) }?;
        let session = Session::restore(model, path, &options)?;
        out.set(insert(session)?);
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Makes a session as `ember_session_restore` does, from bytes that `read` gives in order. `user` is
/// passed to `read` and may be NULL. Nothing is read beyond the end of the saved session.
///
/// Errors: `EMBER_CANCELLED` if `read` returns anything but 0; else as `ember_session_restore`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_session_restore_from(
    model: *const ember_model,
    read: ember_read_fn,
    user: *mut c_void,
    options: *const ember_restore_options,
    out: *mut *mut ember_session,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        let model = self::model(model)?;
        // SAFETY: all pointers are as the header demands.
        let (out, options) = unsafe { (Out::new(out, "out")?, read_struct(options)?) };
        let Some(read) = read else {
            fail!(NullPointer, "read is NULL");
        };
        let mut read = |bytes: &mut [u8]| {
            let mut count = 0;
            // SAFETY: the caller's function and its own pointer; the buffer lives during the call.
            match unsafe { read(user, bytes.as_mut_ptr().cast(), bytes.len(), &mut count) } {
                0 => Ok(count),
                n => fail!(Cancelled, "the read callback returned {n}"),
            }
        };
        // SAFETY: `options` is as the header demands.
        let used = unsafe { options.used() }?;
        let wanted = used.wanted();
        // SAFETY: as above.
        let options = unsafe { options.for_engine(&wanted) }?;
        let session = Session::restore_from(model, &mut read, &options)?;
        out.set(insert(session)?);
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Writes what the saved session at `path` is to `out`, whose `struct_size` the caller has set. Needs
/// no model, and reads nothing but the beginning of the file. Any thread may call it.
///
/// Errors: as `ember_session_restore`, as far as the beginning and the length of the file show them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_session_state_info(
    path: *const c_char,
    path_len: usize,
    out: *mut ember_state_details,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: all pointers are as the header demands.
        let (out, path) = unsafe { (OutStruct::new(out)?, text(path, path_len, "path")?) };
        let from = inspect(checked_path(path)?)?;
        let mut d = ember_state_details::zeroed();
        d.version = from.version;
        d.kind = from.kind as u32;
        d.kv_type = super::session::kv_number(from.kv_type);
        d.context = from.context as u64;
        d.position = from.position as u64;
        d.file_bytes = from.file_bytes;
        [d.model_fingerprint, d.tokenizer_fingerprint] = from.fingerprints;
        copy_text(&from.architecture, &mut d.architecture);
        copy_text(&from.name, &mut d.model_name);
        d.adapter_count = from.adapters.len() as u32;
        let places = d.adapter_fingerprints.iter_mut().zip(&mut d.adapter_scales);
        for ((fingerprint, scale), (to_fingerprint, to_scale)) in from.adapters.iter().zip(places) {
            (*to_fingerprint, *to_scale) = (*fingerprint, *scale);
        }
        out.set(&d);
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Takes `count` tokens from position `from` on out of the context, for example old turns of a
/// conversation behind its system prompt. The tokens that follow are evaluated again, as in a
/// prefill: the session is then as if the erased tokens had never been there. On a GPU, that takes
/// memory for a second copy of what is evaluated while the call runs.
///
/// Errors: `EMBER_INVALID_ARGUMENT` if the context has no such tokens, or if some of them belong to
/// the answer that a grammar is constraining; `EMBER_OUT_OF_MEMORY`; `EMBER_BUSY`;
/// `EMBER_DECODE_PENDING`; `EMBER_INTERRUPTED`; `EMBER_DEVICE_ERROR`, `EMBER_DEVICE_LOST`. The session
/// is unchanged then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_session_erase(
    session: *mut ember_session,
    from: usize,
    count: usize,
    err: *mut ember_error,
) -> ember_status {
    let work = || with_session(session, |session| session.erase(from, count));
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Moves the state of a session to host memory and frees all device memory that the session has. The
/// handle stays valid. The next call that needs the state moves it back, or fails with
/// `EMBER_OUT_OF_MEMORY` and leaves it in host memory. The session continues with the same bits.
/// Nothing happens to a session that is evicted already.
///
/// Errors: `EMBER_OUT_OF_MEMORY` if host memory does not suffice; `EMBER_BUSY`;
/// `EMBER_DECODE_PENDING`; `EMBER_DEVICE_ERROR`, `EMBER_DEVICE_LOST`. The state is unchanged then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_session_evict(
    session: *mut ember_session,
    err: *mut ember_error,
) -> ember_status {
    let work = || with_session(session, Session::evict);
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Moves the state of an evicted session back to its device now, instead of in the next call that
/// needs it. Nothing happens to a session that is not evicted.
///
/// Errors: `EMBER_OUT_OF_MEMORY`; `EMBER_BUSY`; `EMBER_DEVICE_ERROR`, `EMBER_DEVICE_LOST`. The session
/// is still evicted then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_session_resume(
    session: *mut ember_session,
    err: *mut ember_error,
) -> ember_status {
    let work = || with_session(session, Session::resume);
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Frees the device memory that the weights of a model take, and the memory that its sessions share,
/// and keeps the weights in host memory. Handles of the model and of its sessions stay valid; the
/// sessions keep their own memory (`ember_session_evict`). The next call that needs the weights moves
/// them back to the same addresses, or fails with `EMBER_OUT_OF_MEMORY` and leaves them in host
/// memory. On a CPU, this does nothing. Any thread may call it.
///
/// Errors: `EMBER_BUSY` while a decode or prefill of one of its sessions is under way;
/// `EMBER_OUT_OF_MEMORY` if host memory does not suffice; `EMBER_DEVICE_ERROR`, `EMBER_DEVICE_LOST`.
/// The weights stay where they are then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_model_evict(
    model: *const ember_model,
    err: *mut ember_error,
) -> ember_status {
    let work = || self::model(model)?.evict();
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Moves the weights of an evicted model back to its device now, instead of in the next call that
/// needs them. Nothing happens to a model that is not evicted. Any thread may call it.
///
/// Errors: `EMBER_OUT_OF_MEMORY`; `EMBER_DEVICE_ERROR`, `EMBER_DEVICE_LOST`. The model is still
/// evicted then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_model_resume(
    model: *const ember_model,
    err: *mut ember_error,
) -> ember_status {
    let work = || self::model(model)?.resume();
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}
