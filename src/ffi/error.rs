//! Statuses and the error struct.

use crate::error::{Error, Result, Status};
use std::ffi::c_char;
use std::ptr::NonNull;

/// Result of a function: 0 is success, anything else a value of `enum ember_status_code`. Later
/// versions may return numbers that this header does not know; `ember_status_name` does.
pub type ember_status = i32;

/// The values of `ember_status`. A number never changes its meaning.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ember_status_code {
    /// Success.
    EMBER_OK = 0,
    /// Not an error: the started decode is not finished yet.
    EMBER_PENDING = 1,
    /// An argument has a value that is not allowed; the message names it.
    EMBER_INVALID_ARGUMENT = 2,
    /// A required pointer was NULL; the message names it.
    EMBER_NULL_POINTER = 3,
    /// A handle is NULL, was freed, or never came from this library.
    EMBER_INVALID_HANDLE = 4,
    /// A string is not valid UTF-8.
    EMBER_INVALID_UTF8 = 5,
    /// Another thread is inside a call with this session.
    EMBER_BUSY = 6,
    /// The progress callback asked to stop loading.
    EMBER_CANCELLED = 7,
    /// `ember_session_interrupt` ended the call; the session is as it was before it.
    EMBER_INTERRUPTED = 8,
    /// The file does not exist.
    EMBER_FILE_NOT_FOUND = 9,
    /// The path names a directory or something else that is no regular file.
    EMBER_NOT_A_FILE = 10,
    /// The file has no bytes.
    EMBER_FILE_EMPTY = 11,
    /// The operating system could not open, read or map the file.
    EMBER_IO = 12,
    /// The file is not a GGUF file of a known version.
    EMBER_NOT_GGUF = 13,
    /// The file ends before something that it announces.
    EMBER_FILE_TRUNCATED = 14,
    /// The file contradicts itself or the format.
    EMBER_FILE_CORRUPT = 15,
    /// A valid file or request that this version does not support.
    EMBER_UNSUPPORTED = 16,
    /// The file lacks a metadata key that the model needs, or the key has another type.
    EMBER_MISSING_KEY = 17,
    /// The file lacks a tensor that the model needs.
    EMBER_MISSING_TENSOR = 18,
    /// A tensor has another shape or type than the model needs.
    EMBER_SHAPE_MISMATCH = 19,
    /// The model's hyperparameters contradict each other or are out of range.
    EMBER_INVALID_MODEL = 20,
    /// Memory ran out; the message says how much was wanted. Nothing was changed.
    EMBER_OUT_OF_MEMORY = 21,
    /// The tokens do not fit into the session's context. Nothing was changed.
    EMBER_CONTEXT_FULL = 22,
    /// A token id is not in the model's vocabulary. Nothing was changed.
    EMBER_INVALID_TOKEN = 23,
    /// The call needs at least one token, or a session that has seen one.
    EMBER_NO_TOKENS = 24,
    /// The buffer is too small; the needed size was written to the count.
    EMBER_BUFFER_TOO_SMALL = 25,
    /// `ember_decode_poll` without a started decode.
    EMBER_NOTHING_PENDING = 26,
    /// A decode was started and not collected by `ember_decode_poll` yet.
    EMBER_DECODE_PENDING = 27,
    /// There is no such device, or it cannot be used; the message says why.
    EMBER_NO_DEVICE = 28,
    /// The device failed for good; every later call on it fails in the same way.
    EMBER_DEVICE_LOST = 29,
    /// The model produced a value that is not a number.
    EMBER_NUMERIC = 30,
    /// The device or its driver refused an operation.
    EMBER_DEVICE_ERROR = 31,
    /// A bug in the library was caught at its border; the message says where. A session that this
    /// happened to answers every later call in the same way and can only be freed.
    EMBER_INTERNAL = 32,
    /// The process was forked from one that had loaded a model or was in a call; the library works
    /// only there.
    EMBER_FORKED = 33,
    /// A schema or grammar is invalid, cannot be met or is too large; the message says where.
    EMBER_GRAMMAR = 34,
    /// The chat template is missing or wrong, refuses the messages, or goes beyond its limits; the
    /// message says which and where.
    EMBER_TEMPLATE_FAILED = 35,
}

/// What went wrong, in words. The caller owns it, on the stack for instance; it needs no
/// initialization and no cleanup. Every function that gets one writes it before it returns: on
/// success `code` is 0 and `message` is empty. Its size and layout never change.
#[repr(C)]
pub struct ember_error {
    /// The status that the function returned.
    pub code: ember_status,
    /// A sentence that names the thing at fault: UTF-8, always ended by a NUL, shortened to fit.
    pub message: [c_char; 1020],
}

/// Copies `text` into a C string, cut between characters where it is too long, padded with NULs.
/// NULs inside are replaced, so that they hide nothing.
pub(super) fn copy_text(text: &str, out: &mut [c_char]) {
    let mut end = text.len().min(out.len().saturating_sub(1));
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    out.fill(0);
    for (to, from) in out.iter_mut().zip(text[..end].bytes()) {
        *to = if from == 0 { b'?' } else { from } as c_char;
    }
}

/// Writes the outcome to the caller's struct, if there is one, and returns its status.
///
/// # Safety
/// `err` is NULL or points to an `ember_error` that nobody else uses now.
pub(super) unsafe fn store(err: *mut ember_error, result: Result<()>) -> ember_status {
    let (status, message) = match &result {
        Ok(()) => (Status::Ok, ""),
        Err(Error { status, message }) => (*status, message.as_str()),
    };
    if let Some(err) = NonNull::new(err).filter(|err| err.is_aligned()) {
        let err = err.as_ptr();
        // Only the start of the buffer is touched: a call that succeeds writes 5 bytes.
        let mut end = message.len().min(1019);
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        // SAFETY: `err` is valid for writes by this function's contract; all writes lie within
        // `message`, which has 1020 elements. The struct may be uninitialized, so no reference to
        // it is made.
        unsafe {
            (&raw mut (*err).code).write(status as i32);
            let text = (&raw mut (*err).message).cast::<c_char>();
            for (i, byte) in message[..end].bytes().enumerate() {
                text.add(i)
                    .write(if byte == 0 { b'?' } else { byte } as c_char);
            }
            text.add(end).write(0);
        }
    }
    status as i32
}

/// The name of a status, for example `"EMBER_BUSY"`, as a NUL-ended string that is never freed;
/// `"EMBER_UNKNOWN"` for a number that is no status. Any thread may call it at any time.
#[unsafe(no_mangle)]
pub extern "C" fn ember_status_name(status: ember_status) -> *const c_char {
    let name = NAMES.iter().find(|(number, _)| *number as i32 == status);
    name.map_or(c"EMBER_UNKNOWN", |(_, name)| name).as_ptr()
}

macro_rules! names {
    ($($code:ident = $status:ident,)*) => {
        /// Every code with its name in C.
        const NAMES: &[(ember_status_code, &std::ffi::CStr)] = &[$(
            (ember_status_code::$code, {
                // SAFETY: the only NUL of the literal is its last byte.
                unsafe {
                    std::ffi::CStr::from_bytes_with_nul_unchecked(
                        concat!(stringify!($code), "\0").as_bytes(),
                    )
                }
            }),
        )*];
        // The numbers of the header are those of the engine.
        const _: () = { $(
            assert!(ember_status_code::$code as i32 == Status::$status as i32);
        )* };
        /// Not called: fails to compile when the engine has a status that is missing here.
        const fn _complete(status: Status) {
            match status { $( Status::$status => (), )* }
        }
    };
}

names! {
    EMBER_OK = Ok,
    EMBER_PENDING = Pending,
    EMBER_INVALID_ARGUMENT = InvalidArgument,
    EMBER_NULL_POINTER = NullPointer,
    EMBER_INVALID_HANDLE = InvalidHandle,
    EMBER_INVALID_UTF8 = InvalidUtf8,
    EMBER_BUSY = Busy,
    EMBER_CANCELLED = Cancelled,
    EMBER_INTERRUPTED = Interrupted,
    EMBER_FILE_NOT_FOUND = FileNotFound,
    EMBER_NOT_A_FILE = NotAFile,
    EMBER_FILE_EMPTY = FileEmpty,
    EMBER_IO = Io,
    EMBER_NOT_GGUF = NotGguf,
    EMBER_FILE_TRUNCATED = FileTruncated,
    EMBER_FILE_CORRUPT = FileCorrupt,
    EMBER_UNSUPPORTED = Unsupported,
    EMBER_MISSING_KEY = MissingKey,
    EMBER_MISSING_TENSOR = MissingTensor,
    EMBER_SHAPE_MISMATCH = ShapeMismatch,
    EMBER_INVALID_MODEL = InvalidModel,
    EMBER_OUT_OF_MEMORY = OutOfMemory,
    EMBER_CONTEXT_FULL = ContextFull,
    EMBER_INVALID_TOKEN = InvalidToken,
    EMBER_NO_TOKENS = NoTokens,
    EMBER_BUFFER_TOO_SMALL = BufferTooSmall,
    EMBER_NOTHING_PENDING = NothingPending,
    EMBER_DECODE_PENDING = DecodePending,
    EMBER_NO_DEVICE = NoDevice,
    EMBER_DEVICE_LOST = DeviceLost,
    EMBER_NUMERIC = Numeric,
    EMBER_DEVICE_ERROR = DeviceError,
    EMBER_INTERNAL = Internal,
    EMBER_FORKED = Forked,
    EMBER_GRAMMAR = Grammar,
    EMBER_TEMPLATE_FAILED = TemplateFailed,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn fresh() -> ember_error {
        ember_error {
            code: -1,
            message: [0x55; 1020],
        }
    }

    fn text(err: &ember_error) -> &str {
        // SAFETY: `store` has ended the message with a NUL.
        unsafe { CStr::from_ptr(err.message.as_ptr()) }
            .to_str()
            .unwrap()
    }

    #[test]
    fn layout_is_what_was_promised() {
        assert_eq!(size_of::<ember_error>(), 1024);
        assert_eq!(std::mem::offset_of!(ember_error, message), 4);
    }

    #[test]
    fn names_are_the_same_as_the_engines() {
        for &(code, name) in NAMES {
            // SAFETY: the numbers of both enums are the same (asserted when compiled).
            let status: Status = unsafe { std::mem::transmute(code as i32) };
            assert_eq!(status.name(), name.to_str().unwrap());
        }
        for unknown in [-1, 36, i32::MAX, i32::MIN] {
            // SAFETY: the function returns NUL-ended literals.
            let name = unsafe { CStr::from_ptr(ember_status_name(unknown)) };
            assert_eq!(name, c"EMBER_UNKNOWN");
        }
    }

    #[test]
    fn message_is_cut_between_characters() {
        let long = format!("a{}", "\u{20ac}".repeat(500));
        let mut err = fresh();
        let result = Err(Error::new(Status::Io, long.clone()));
        // SAFETY: `err` is a local.
        assert_eq!(unsafe { store(&mut err, result) }, 12);
        assert_eq!(err.code, 12);
        let got = text(&err);
        assert!(long.starts_with(got));
        // 1 + 3 n <= 1019 has n = 339.
        assert_eq!(got.len(), 1 + 3 * 339);
    }

    #[test]
    fn success_clears_and_null_is_fine() {
        let mut err = fresh();
        // SAFETY: `err` is a local; NULL is allowed.
        unsafe {
            assert_eq!(store(&mut err, Ok(())), 0);
            assert_eq!(store(std::ptr::null_mut(), Ok(())), 0);
        }
        assert_eq!((err.code, text(&err)), (0, ""));
        let result = Err(Error::new(Status::Io, "a\0b"));
        // SAFETY: as above.
        unsafe { store(&mut err, result) };
        assert_eq!(text(&err), "a?b");
    }

    #[test]
    fn copied_text_is_cut_and_padded() {
        let mut out = [0x55 as c_char; 6];
        copy_text("ab\u{20ac}\u{20ac}", &mut out);
        let bytes: Vec<u8> = out.iter().map(|&c| c as u8).collect();
        assert_eq!(bytes, b"ab\xe2\x82\xac\0");
        copy_text("a", &mut out);
        assert_eq!(out.map(|c| c as u8), *b"a\0\0\0\0\0");
    }
}
