//! Statuses and the error struct.

use crate::error::{Result, Status};
use std::ffi::c_char;
use std::ptr::NonNull;
use strum::VariantArray;

/// Result of a function: 0 for success, otherwise another value of `enum ember_status_code`. Later versions may
/// return values that this header does not have; `ember_status_name` returns their names.
pub type ember_status = i32;

/// Describes an error. The caller owns it, for example on the stack; it needs no initialization and no cleanup. Every
/// function that receives one writes it before it returns: on success, `code` is 0, `index` is `EMBER_NO_INDEX` and
/// `message` is empty. Its size and layout never change.
#[repr(C)]
pub struct ember_error {
    /// The status that the function returned.
    pub code: ember_status,
    /// Index of the invalid element, counted from 0, if the function takes several: a token of a prompt, a session
    /// of a batch, a stop string, or an entry of a list in an option struct, which the message names. Otherwise
    /// `EMBER_NO_INDEX`.
    pub index: u32,
    /// A message that names the cause: UTF-8, always terminated by a NUL, shortened to fit.
    pub message: [c_char; 1016],
}

/// Of `message`, which says it in a number because the header does.
const MESSAGE_BYTES: usize = 1016;

/// `EMBER_NO_INDEX` of the header.
pub const NO_INDEX: u32 = u32::MAX;

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
    let (status, message, index) = match &result {
        Ok(()) => (Status::Ok, "", None),
        Err(e) => (e.status, e.message.as_str(), e.index),
    };
    // SAFETY: by contract, `err` is NULL or points to an `ember_error` that nobody else uses now.
    unsafe { store_parts(err, status, message, index) }
}

/// Writes a status and a message to the caller's struct, if there is one, and returns the status. Needs no memory.
///
/// # Safety
/// As [`store`].
pub(super) unsafe fn store_text(
    err: *mut ember_error,
    status: Status,
    message: &str,
) -> ember_status {
    // SAFETY: by contract, `err` is NULL or points to an `ember_error` that nobody else uses now.
    unsafe { store_parts(err, status, message, None) }
}

/// # Safety
/// As [`store`].
unsafe fn store_parts(
    err: *mut ember_error,
    status: Status,
    message: &str,
    index: Option<usize>,
) -> ember_status {
    if let Some(err) = NonNull::new(err).filter(|err| err.is_aligned()) {
        let err = err.as_ptr();
        // Only the start of the buffer is touched: a call that succeeds writes 9 bytes.
        let mut end = message.len().min(MESSAGE_BYTES - 1);
        let index = index.and_then(|index| u32::try_from(index).ok());
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        // SAFETY: `err` is valid for writes by this function's contract; all writes lie within
        // `message`, which has that many elements. The struct may be uninitialized, so no reference to
        // it is made.
        unsafe {
            (&raw mut (*err).code).write(status as i32);
            (&raw mut (*err).index).write(index.unwrap_or(NO_INDEX));
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
    let index = Status::VARIANTS.iter().position(|s| *s as i32 == status);
    match index {
        Some(index) => NAMES[index].as_ptr().cast(),
        None => c"EMBER_UNKNOWN".as_ptr(),
    }
}

/// The names of all statuses, each ended by a NUL.
static NAMES: [[u8; 32]; Status::VARIANTS.len()] = {
    let mut names = [[0; 32]; Status::VARIANTS.len()];
    let mut i = 0;
    while i < names.len() {
        let name = Status::VARIANTS[i].name().as_bytes();
        assert!(name.len() < 32, "its NUL has no place");
        let (start, _) = names[i].split_at_mut(name.len());
        start.copy_from_slice(name);
        i += 1;
    }
    names
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use std::ffi::CStr;

    fn fresh() -> ember_error {
        ember_error {
            code: -1,
            index: 7,
            message: [0x55; MESSAGE_BYTES],
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
        assert_eq!(std::mem::offset_of!(ember_error, index), 4);
        assert_eq!(std::mem::offset_of!(ember_error, message), 8);
    }

    #[test]
    fn statuses_have_names() {
        for &(status, wanted) in &[
            (Status::Ok, c"EMBER_OK"),
            (Status::InvalidUtf8, c"EMBER_INVALID_UTF8"),
            (Status::NotAFile, c"EMBER_NOT_A_FILE"),
            (Status::TemplateFailed, c"EMBER_TEMPLATE_FAILED"),
        ] {
            // SAFETY: the function returns NUL-ended literals.
            let name = unsafe { CStr::from_ptr(ember_status_name(status as i32)) };
            assert_eq!(name, wanted);
            assert_eq!(status.name(), wanted.to_str().unwrap());
        }
        for unknown in [-1, 40, i32::MAX, i32::MIN] {
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
        // 1 + 3 n <= 1015 has n = 338.
        assert_eq!(got.len(), 1 + 3 * 338);
        assert_eq!(err.index, NO_INDEX);
    }

    #[test]
    fn an_index_is_told_and_taken_back() {
        let mut err = fresh();
        for (index, wanted) in [
            (0, 0),
            (31, 31),
            (u32::MAX as usize - 1, u32::MAX - 1),
            (u32::MAX as usize, NO_INDEX),
            (usize::MAX, NO_INDEX),
        ] {
            let result = Err(Error::new(Status::InvalidToken, "a token").at(index));
            // SAFETY: `err` is a local.
            assert_eq!(unsafe { store(&mut err, result) }, 23);
            assert_eq!(err.index, wanted);
        }
        err.index = 7;
        // SAFETY: as above.
        unsafe { store(&mut err, Ok(())) };
        assert_eq!(err.index, NO_INDEX);
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
