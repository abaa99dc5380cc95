//! The one error type of the library: a status that never changes its number, and a message that
//! names the thing at fault (the key, the tensor, the byte offset).

use std::fmt;

/// Result of every fallible function of the engine.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, as the number that crosses the C border. Numbers are never reused.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Success.
    Ok = 0,
    /// Not an error: the started decode is not finished yet.
    Pending = 1,
    /// An argument has a value that is not allowed; the message names it.
    InvalidArgument = 2,
    /// A required pointer was NULL.
    NullPointer = 3,
    /// A handle was freed, forged, NULL or of another kind.
    InvalidHandle = 4,
    /// A string is not valid UTF-8.
    InvalidUtf8 = 5,
    /// Another thread is using this session.
    Busy = 6,
    /// The progress callback asked to stop loading.
    Cancelled = 7,
    /// `ember_session_interrupt` stopped the call; the session is as it was before it.
    Interrupted = 8,
    /// The file does not exist.
    FileNotFound = 9,
    /// The path names a directory or something else that is not a regular file.
    NotAFile = 10,
    /// The file has no bytes.
    FileEmpty = 11,
    /// The operating system could not open, read or map the file.
    Io = 12,
    /// The file is not a GGUF file of a known version.
    NotGguf = 13,
    /// The file ends before something it announces.
    FileTruncated = 14,
    /// The file contradicts itself or the format.
    FileCorrupt = 15,
    /// A valid file or request that this version does not support.
    Unsupported = 16,
    /// The file lacks a metadata key that the model needs, or the key has another type.
    MissingKey = 17,
    /// The file lacks a tensor that the model needs.
    MissingTensor = 18,
    /// A tensor has another shape or type than the model needs.
    ShapeMismatch = 19,
    /// The model's hyperparameters contradict each other or are out of range.
    InvalidModel = 20,
    /// Memory ran out; the message says how much was wanted. Nothing was changed.
    OutOfMemory = 21,
    /// The tokens do not fit into the session's context. Nothing was changed.
    ContextFull = 22,
    /// A token id is not in the model's vocabulary.
    InvalidToken = 23,
    /// The call needs at least one token.
    NoTokens = 24,
    /// The caller's buffer is too small; the needed size was written.
    BufferTooSmall = 25,
    /// `ember_decode_poll` without a started decode.
    NothingPending = 26,
    /// The session has a started decode that was not collected yet.
    DecodePending = 27,
    /// There is no such device, or it cannot be used; the message says why.
    NoDevice = 28,
    /// The device failed for good; every later call on it fails the same way.
    DeviceLost = 29,
    /// The model produced a value that is not a number.
    Numeric = 30,
    /// The device or its driver refused an operation.
    DeviceError = 31,
    /// A bug in the library was caught at its border; the message says where.
    Internal = 32,
    /// The process is a fork of one that has loaded a model, and cannot use the library.
    Forked = 33,
    /// A schema or grammar is invalid, cannot be met or is too large; the message says where.
    Grammar = 34,
    /// The chat template is missing or wrong, refuses the messages, or goes beyond its limits; the
    /// message says which and where.
    TemplateFailed = 35,
    /// The file is not a saved session.
    NotState = 36,
    /// The session was saved by a version of the library whose format this one does not read.
    StateVersion = 37,
    /// The session was saved with another model or tokenizer.
    StateForeign = 38,
    /// The saved session has changed since it was written: a checksum does not match.
    StateChecksum = 39,
}

impl Status {
    /// The name of the status in C, for example `EMBER_BUSY`.
    pub fn name(self) -> &'static str {
        match self {
            Status::Ok => "EMBER_OK",
            Status::Pending => "EMBER_PENDING",
            Status::InvalidArgument => "EMBER_INVALID_ARGUMENT",
            Status::NullPointer => "EMBER_NULL_POINTER",
            Status::InvalidHandle => "EMBER_INVALID_HANDLE",
            Status::InvalidUtf8 => "EMBER_INVALID_UTF8",
            Status::Busy => "EMBER_BUSY",
            Status::Cancelled => "EMBER_CANCELLED",
            Status::Interrupted => "EMBER_INTERRUPTED",
            Status::FileNotFound => "EMBER_FILE_NOT_FOUND",
            Status::NotAFile => "EMBER_NOT_A_FILE",
            Status::FileEmpty => "EMBER_FILE_EMPTY",
            Status::Io => "EMBER_IO",
            Status::NotGguf => "EMBER_NOT_GGUF",
            Status::FileTruncated => "EMBER_FILE_TRUNCATED",
            Status::FileCorrupt => "EMBER_FILE_CORRUPT",
            Status::Unsupported => "EMBER_UNSUPPORTED",
            Status::MissingKey => "EMBER_MISSING_KEY",
            Status::MissingTensor => "EMBER_MISSING_TENSOR",
            Status::ShapeMismatch => "EMBER_SHAPE_MISMATCH",
            Status::InvalidModel => "EMBER_INVALID_MODEL",
            Status::OutOfMemory => "EMBER_OUT_OF_MEMORY",
            Status::ContextFull => "EMBER_CONTEXT_FULL",
            Status::InvalidToken => "EMBER_INVALID_TOKEN",
            Status::NoTokens => "EMBER_NO_TOKENS",
            Status::BufferTooSmall => "EMBER_BUFFER_TOO_SMALL",
            Status::NothingPending => "EMBER_NOTHING_PENDING",
            Status::DecodePending => "EMBER_DECODE_PENDING",
            Status::NoDevice => "EMBER_NO_DEVICE",
            Status::DeviceLost => "EMBER_DEVICE_LOST",
            Status::Numeric => "EMBER_NUMERIC",
            Status::DeviceError => "EMBER_DEVICE_ERROR",
            Status::Internal => "EMBER_INTERNAL",
            Status::Forked => "EMBER_FORKED",
            Status::Grammar => "EMBER_GRAMMAR",
            Status::TemplateFailed => "EMBER_TEMPLATE_FAILED",
            Status::NotState => "EMBER_NOT_STATE",
            Status::StateVersion => "EMBER_STATE_VERSION",
            Status::StateForeign => "EMBER_STATE_FOREIGN",
            Status::StateChecksum => "EMBER_STATE_CHECKSUM",
        }
    }
}

/// A status and the text that goes with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The kind of failure.
    pub status: Status,
    /// A sentence that names the thing at fault.
    pub message: String,
}

impl Error {
    /// An error of this status with this message.
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Error {
            status,
            message: message.into(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.status.name(), self.message)
    }
}

impl std::error::Error for Error {}

/// `Err(Error::new(Status::X, format!(...)))` in one word: `fail!(X, "tensor {name}: ...")`.
macro_rules! fail {
    ($status:ident, $($arg:tt)*) => {
        return Err($crate::error::Error::new($crate::error::Status::$status, format!($($arg)*)))
    };
}
pub(crate) use fail;

/// A vector of `len` times `value`, or `OutOfMemory` naming `what`.
pub(crate) fn try_vec<T: Clone>(len: usize, value: T, what: &str) -> Result<Vec<T>> {
    let mut v = Vec::new();
    if v.try_reserve_exact(len).is_err() {
        let bytes = len.saturating_mul(size_of::<T>());
        fail!(OutOfMemory, "{what}: {bytes} bytes could not be allocated");
    }
    v.resize(len, value);
    Ok(v)
}
