//! Models that do not come from a file.

use super::boundary::{Out, Sized32, call, check_flags, read_struct, slice};
use super::error::{ember_error, ember_status};
use super::model::{ember_model, ember_model_options, load};
use crate::error::{Result, fail};
use crate::format::{Lent, ModelSource, ReadAt};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Flags of `ember_model_source`, to be or-ed.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ember_source_flags {
    /// `bytes` are not copied: they must stay as they are until `release` is called, or, without one, until the model and its last
    /// session are freed.
    EMBER_SOURCE_BORROW = 1,
}

/// Called when the library no longer needs borrowed bytes: once for each load that succeeded, on the thread that frees the model or its
/// last session, or on the thread that loads it onto a GPU, possibly before `ember_model_load_from` returns. It may call every function
/// of the library. It must return normally: no `longjmp`, no exception.
pub type ember_release_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, bytes: *const c_void, size: u64)>;

/// Writes `count` bytes of the file from `offset` on to `bytes`; all of them lie within the file. Return 0 if all bytes were written. Any
/// other value ends the load with `EMBER_IO`, and its message has the value. Called while `ember_model_load_from` runs, on its thread and
/// on threads of the library, but never twice at once. It may call every function of the library. It must return normally: no `longjmp`,
/// no exception.
pub type ember_read_at_fn = Option<
    unsafe extern "C" fn(user: *mut c_void, offset: u64, bytes: *mut c_void, count: usize) -> i32,
>;

/// A GGUF file that is in memory, or that a function of yours reads: set either `bytes` or `read`. Zero in every field but
/// `struct_size`, `size` and one of these two means the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_model_source {
    /// `sizeof(ember_model_source)`.
    pub struct_size: u32,
    /// Values of `enum ember_source_flags`.
    pub flags: u32,
    /// Bytes of the file.
    pub size: u64,
    /// The file in memory. It need not be aligned.
    pub bytes: *const c_void,
    /// With `EMBER_SOURCE_BORROW`, called when `bytes` are not needed any more; may be NULL.
    pub release: ember_release_fn,
    /// Reads the file.
    pub read: ember_read_at_fn,
    /// Passed to `release` and `read`; may be NULL.
    pub user: *mut c_void,
}

// SAFETY: `repr(C)`; two u32, a u64 and four words have no padding; zero is a value of each (no function, NULL
// pointers); the size comes first.
unsafe impl Sized32 for ember_model_source {
    const NAME: &'static str = "ember_model_source";
}

/// The caller's bytes, which it leaves alone until `release`.
struct Borrowed {
    bytes: NonNull<u8>,
    len: usize,
    release: ember_release_fn,
    user: *mut c_void,
    /// Whether the bytes are the library's to give back: only those of a load that has succeeded are.
    taken: AtomicBool,
}

// SAFETY: the bytes are only read, which any thread may do while nobody changes them; the header lets `release` be
// called on any thread.
unsafe impl Send for Borrowed {}
// SAFETY: as above.
unsafe impl Sync for Borrowed {}

impl Lent for Borrowed {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the header demands that the bytes stay as they are until `release`, which `drop` calls, or,
        // without it, for longer than any use of this.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), self.len) }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        if let Some(release) = self.release
            && *self.taken.get_mut()
        {
            // SAFETY: the caller's function and its own pointers; nothing refers to the bytes any more.
            unsafe { release(self.user, self.bytes.as_ptr().cast(), self.len as u64) }
        }
    }
}

/// The caller's function, which may be called until the load is over.
struct Reader {
    read: unsafe extern "C" fn(*mut c_void, u64, *mut c_void, usize) -> i32,
    user: *mut c_void,
    len: usize,
    /// Whether it may be called.
    open: Mutex<bool>,
}

// SAFETY: the header lets the function be called on any thread, one at a time, which the lock sees to.
unsafe impl Send for Reader {}
// SAFETY: as above.
unsafe impl Sync for Reader {}

impl ReadAt for Reader {
    fn len(&self) -> usize {
        self.len
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if !*open {
            fail!(Internal, "a read of the model's file behind its load");
        }
        // SAFETY: the load is not over, as the lock says, so the function may be called; `out` has room for as many
        // bytes.
        let status =
            unsafe { (self.read)(self.user, offset as u64, out.as_mut_ptr().cast(), out.len()) };
        match status {
            0 => Ok(()),
            n => fail!(
                Io,
                "the read callback returned {n} for {} bytes from byte {offset} on",
                out.len()
            ),
        }
    }
}

/// The end of the time in which a reader may be called, however it comes.
struct Reading(Arc<Reader>);

impl Drop for Reading {
    fn drop(&mut self) {
        *self.0.open.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }
}

/// Loads a model as `ember_model_load` does, from a GGUF file in memory or from a callback that reads it: for files
/// in a game's archive, in a program's resources, encrypted, or in a virtual file system. `options` may be NULL for
/// the defaults; its field `files` is ignored.
///
/// - `bytes` are copied, unless `flags` has `EMBER_SOURCE_BORROW`: then the CPU uses them in place, without another
///   copy. After an error, the caller still owns them, and `release` is not called.
/// - Data from `read` is stored in memory of the model or on the GPU. `read` is called for pieces of up to some
///   megabytes, beginning with the header of the file. A tensor may be read more than once, and tensors that the
///   architecture does not use are not read.
///
/// The new handle is written to `out` and has to be freed with `ember_model_free`. Any thread may call it; loads run side by
/// side.
///
/// Errors: `EMBER_INVALID_ARGUMENT` if both or none of `bytes` and `read` are set, for unknown flags, and for `release` without
/// `EMBER_SOURCE_BORROW`; `EMBER_FILE_EMPTY` if `size` is 0; `EMBER_IO` if `read` fails; `EMBER_UNSUPPORTED` for one part of a split
/// model; else those of `ember_model_load` about the content of files.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_model_load_from(
    source: *const ember_model_source,
    options: *const ember_model_options,
    out: *mut *mut ember_model,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `out`, `source` and `options` are as the header demands.
        let (out, source, options) = unsafe {
            let out = Out::new(out, "out")?;
            if source.is_null() {
                fail!(NullPointer, "source is NULL");
            }
            (out, read_struct(source)?, read_struct(options)?)
        };
        // SAFETY: the pointers of `source` are as the header demands.
        let model = unsafe { load_source(&source, &options) }?;
        out.set(model);
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// # Safety
/// The pointers of `source` and `options` must be as the header demands.
unsafe fn load_source(
    source: &ember_model_source,
    options: &ember_model_options,
) -> Result<*mut ember_model> {
    let borrow = ember_source_flags::EMBER_SOURCE_BORROW as u32;
    check_flags(source.flags, borrow)?;
    let borrows = source.flags & borrow != 0;
    if source.release.is_some() && !borrows {
        fail!(
            InvalidArgument,
            "ember_model_source has release, but not the flag EMBER_SOURCE_BORROW"
        );
    }
    let Ok(len) = usize::try_from(source.size) else {
        fail!(
            Unsupported,
            "the file's {} bytes exceed the address space of this process",
            source.size
        );
    };
    match (NonNull::new(source.bytes.cast_mut()), source.read) {
        (None, None) => fail!(
            InvalidArgument,
            "ember_model_source has neither bytes nor read"
        ),
        (Some(_), Some(_)) => fail!(
            InvalidArgument,
            "ember_model_source has both bytes and read"
        ),
        (None, Some(_)) if borrows => fail!(
            InvalidArgument,
            "ember_model_source has the flag EMBER_SOURCE_BORROW, but no bytes"
        ),
        (None, Some(read)) => {
            let reader = Arc::new(Reader {
                read,
                user: source.user,
                len,
                open: Mutex::new(true),
            });
            let reading = Reading(Arc::clone(&reader));
            // SAFETY: by contract, the pointers of `source` and `options` are as the header demands.
            let model = unsafe { load(&ModelSource::Reader(reader), options) };
            drop(reading);
            model
        }
        (Some(bytes), None) => {
            let bytes = bytes.cast::<u8>();
            // Whatever happens later, the length is a possible one.
            // SAFETY: by contract, the pointers of `source` and `options` are as the header demands.
            let all = unsafe { slice(bytes.as_ptr(), len, "bytes") }?;
            if !borrows {
                // SAFETY: by contract, the pointers of `source` and `options` are as the header demands.
                return unsafe { load(&ModelSource::Copied(all), options) };
            }
            let borrowed = Arc::new(Borrowed {
                bytes,
                len,
                release: source.release,
                user: source.user,
                taken: AtomicBool::new(false),
            });
            let lent = Arc::clone(&borrowed);
            // SAFETY: by contract, the pointers of `source` and `options` are as the header demands.
            let model = unsafe { load(&ModelSource::Lent(lent), options) }?;
            borrowed.taken.store(true, Ordering::Relaxed);
            Ok(model)
        }
    }
}
