//! The one error type of the library: a status that never changes its number, and a message that
//! names the thing at fault (the key, the tensor, the byte offset).

pub use crate::status::Status;

/// Result of every fallible function of the engine.
pub type Result<T> = std::result::Result<T, Error>;

/// A status and the text that goes with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", .status.name())]
pub struct Error {
    /// The kind of failure.
    pub status: Status,
    /// A sentence that names the thing at fault.
    pub message: String,
    /// The element at fault, where the caller gave several of its kind: tokens, sessions, entries of a list.
    pub index: Option<usize>,
}

impl Error {
    /// An error of this status with this message.
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Error {
            status,
            message: message.into(),
            index: None,
        }
    }

    /// The same error, about the element of this index.
    pub fn at(self, index: usize) -> Self {
        Error {
            index: Some(index),
            ..self
        }
    }
}

/// `Err(Error::new(Status::X, format!(...)))` in one word: `fail!(X, "tensor {name}: ...")`.
macro_rules! fail {
    ($status:ident, $($arg:tt)*) => {
        return Err($crate::error::Error::new($crate::error::Status::$status, format!($($arg)*)))
    };
}
pub(crate) use fail;

/// A vector of `len` times `value`, or `OutOfMemory` naming `what`.
pub(crate) fn try_vec<T: Clone>(len: usize, value: T, what: &str) -> Result<Vec<T>> {
    let mut v = try_room(len, what)?;
    v.resize(len, value);
    Ok(v)
}

/// An empty vector with room for `len` elements, or `OutOfMemory` naming `what`.
pub(crate) fn try_room<T>(len: usize, what: &str) -> Result<Vec<T>> {
    let mut v = Vec::new();
    if v.try_reserve_exact(len).is_err() {
        let bytes = len.saturating_mul(size_of::<T>());
        fail!(OutOfMemory, "{what}: {bytes} bytes could not be allocated");
    }
    Ok(v)
}
