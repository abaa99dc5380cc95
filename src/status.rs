//! What calls end with: the one list of numbers, names and texts.

// Of the method that is derived; everything here has its text.
#![allow(missing_docs)]

/// The values of `ember_status`. A number never changes its meaning, and is never used again.
/// cbindgen:rename-all=ScreamingSnakeCase
// The one list of them: the header's enum (`EMBER_` is put in front of its names by the Makefile) and the names in C are made
// from it.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::VariantArray)]
#[strum(
    const_into_str,
    serialize_all = "SCREAMING_SNAKE_CASE",
    prefix = "EMBER_"
)]
pub enum Status {
    /// Success.
    Ok = 0,
    /// Not an error: what was started is not finished yet.
    Pending = 1,
    /// An argument has a value that is not allowed; the message names it.
    InvalidArgument = 2,
    /// A required pointer was NULL; the message names it.
    NullPointer = 3,
    /// A handle is NULL, was freed, or never came from this library.
    InvalidHandle = 4,
    /// A string is not valid UTF-8.
    InvalidUtf8 = 5,
    /// Another call with this object is running: on another thread, or the one that a callback was called by.
    Busy = 6,
    /// A callback or `ember_load_cancel` stopped the call.
    Cancelled = 7,
    /// `ember_session_interrupt`, `ember_embedder_interrupt` or a field `interrupt` ended the call; everything is as it was before it.
    Interrupted = 8,
    /// The file does not exist.
    FileNotFound = 9,
    /// The path names something that is no regular file; where a model is loaded, neither that nor a folder.
    NotAFile = 10,
    /// The file has no bytes.
    FileEmpty = 11,
    /// The operating system could not open, read or map the file.
    Io = 12,
    /// The file is not a GGUF file of a known version, or the folder has no model.
    UnknownFormat = 13,
    /// The file ends before something that it announces.
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
    /// Memory ran out; the message says for what, as far as that is known. Nothing was changed.
    OutOfMemory = 21,
    /// The tokens do not fit into the session's context. Nothing was changed.
    ContextFull = 22,
    /// A token id is not in the model's vocabulary. Nothing was changed.
    InvalidToken = 23,
    /// The call needs at least one token, or a session that has seen one.
    NoInput = 24,
    /// The buffer is too small; the needed size was written to the count.
    BufferTooSmall = 25,
    /// There is nothing to return: nothing was started, or its end was already returned.
    NothingPending = 26,
    /// The session has a started decode, prefill or generation whose end was not returned yet.
    DecodePending = 27,
    /// There is no such device, or it cannot be used; the message says why.
    NoDevice = 28,
    /// The device failed permanently; every later call on it fails in the same way.
    DeviceLost = 29,
    /// The model produced a value that is not a number.
    Numeric = 30,
    /// The device or its driver refused an operation.
    DeviceError = 31,
    /// A bug in the library was caught before it could reach the caller; the message says where. A session that this
    /// happened to answers every later call in the same way and can only be freed.
    Internal = 32,
    /// The process was forked from one that had loaded a model or was in a call; the library works
    /// only there.
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
    pub const fn name(self) -> &'static str {
        self.into_str()
    }
}
