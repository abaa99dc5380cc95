//! The library file, its functions, and its error codes.

use crate::error::{Error, Result, Status, fail};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

/// The name that all versions 2 have.
const FILE: &CStr = c"libnccl.so.2";

/// The oldest version whose communicators can be made, used and aborted without waiting: 2.18.
const OLDEST: c_int = 21800;

/// Bytes of an id.
pub const ID_BYTES: usize = 128;

/// `ncclResult_t`: success.
pub const SUCCESS: c_int = 0;
/// `ncclResult_t`: another rank or the network has failed.
const REMOTE: c_int = 6;
/// `ncclResult_t`: a communicator that waits for nobody is at work.
pub const IN_PROGRESS: c_int = 7;

/// `ncclDataType_t`: f32.
pub const FLOAT32: c_int = 7;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawId(pub [c_char; ID_BYTES]);

/// `ncclConfig_t` as of 2.18; later versions read as much of theirs as `size` says.
#[repr(C)]
pub struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_blocks: c_int,
    max_blocks: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

impl Config {
    /// Of a communicator whose calls wait for nobody.
    pub fn non_blocking() -> Config {
        // `NCCL_CONFIG_UNDEF_INT`: the library's own choice.
        let undefined = c_int::MIN;
        Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: OLDEST as u32,
            blocking: 0,
            cga_cluster_size: undefined,
            min_blocks: undefined,
            max_blocks: undefined,
            net_name: std::ptr::null(),
            split_share: undefined,
        }
    }
}

/// `ncclComm_t`.
pub type RawCommunicator = *mut c_void;

type ErrorText = unsafe extern "C" fn(c_int) -> *const c_char;
type LastError = unsafe extern "C" fn(RawCommunicator) -> *const c_char;
type UniqueId = unsafe extern "C" fn(*mut RawId) -> c_int;
type Init = unsafe extern "C" fn(*mut RawCommunicator, c_int, RawId, c_int, *mut Config) -> c_int;
type State = unsafe extern "C" fn(RawCommunicator, *mut c_int) -> c_int;
type AllGather = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    usize,
    c_int,
    RawCommunicator,
    *mut c_void,
) -> c_int;
type End = unsafe extern "C" fn(RawCommunicator) -> c_int;

/// The functions that are used.
pub struct Library {
    error_text: ErrorText,
    last_error: LastError,
    pub unique_id: UniqueId,
    pub init: Init,
    pub state: State,
    pub all_gather: AllGather,
    pub abort: End,
    pub destroy: End,
}

/// The library, which is opened once and stays open.
///
/// Errors: `Unsupported` says what is missing.
pub fn library() -> Result<&'static Library> {
    static LIBRARY: OnceLock<Result<Library>> = OnceLock::new();
    LIBRARY.get_or_init(open).as_ref().map_err(Clone::clone)
}

#[cfg(unix)]
fn open() -> Result<Library> {
    type GetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
    // SAFETY: loads the library, whose initializers are the vendor's.
    let handle = unsafe { libc::dlopen(FILE.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        // SAFETY: gives the text of the failure above, or NULL.
        let text = unsafe { libc::dlerror() };
        let text = match text.is_null() {
            true => "no reason is given".into(),
            // SAFETY: a string that stays until the next call in this thread.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy(),
        };
        fail!(
            Unsupported,
            "NCCL is needed, but {} could not be opened: {text}",
            FILE.to_string_lossy()
        );
    }
    let find = |name: &CStr| {
        // SAFETY: the handle is open, the name NUL-terminated.
        let function = unsafe { libc::dlsym(handle, name.as_ptr()) };
        if function.is_null() {
            fail!(
                Unsupported,
                "{} has no function {}",
                FILE.to_string_lossy(),
                name.to_string_lossy()
            );
        }
        Ok(function)
    };
    macro_rules! function {
        ($name:literal, $type:ty) => {
            // SAFETY: a function of this name has this type since version 2.18, which is asked for below.
            unsafe { std::mem::transmute::<*mut c_void, $type>(find($name)?) }
        };
    }
    // What all versions have comes first, so that an old one says what it is.
    let get_version = function!(c"ncclGetVersion", GetVersion);
    let mut version = 0;
    // SAFETY: a valid place for an int.
    let code = unsafe { get_version(&mut version) };
    if code != SUCCESS || version < OLDEST {
        let (major, minor) = (version / 10000, version % 10000 / 100);
        fail!(
            Unsupported,
            "{} is of version {major}.{minor}, 2.18 is needed",
            FILE.to_string_lossy()
        );
    }
    Ok(Library {
        error_text: function!(c"ncclGetErrorString", ErrorText),
        last_error: function!(c"ncclGetLastError", LastError),
        unique_id: function!(c"ncclGetUniqueId", UniqueId),
        init: function!(c"ncclCommInitRankConfig", Init),
        state: function!(c"ncclCommGetAsyncError", State),
        all_gather: function!(c"ncclAllGather", AllGather),
        abort: function!(c"ncclCommAbort", End),
        destroy: function!(c"ncclCommDestroy", End),
    })
}

#[cfg(not(unix))]
fn open() -> Result<Library> {
    fail!(
        Unsupported,
        "NCCL is needed, but there is no {} for this system",
        FILE.to_string_lossy()
    )
}

impl Library {
    /// An error for a code, with what the library says about the last one.
    pub fn error(&self, code: c_int, what: &str) -> Error {
        let status = match code {
            REMOTE => Status::DeviceLost,
            _ => Status::DeviceError,
        };
        let text = |text: *const c_char| match text.is_null() {
            true => String::new(),
            // SAFETY: the library's strings are NUL-terminated and stay.
            false => unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .trim()
                .into(),
        };
        // SAFETY: any number is allowed; without a communicator the last error of all is given.
        let (name, last) = unsafe {
            (
                text((self.error_text)(code)),
                text((self.last_error)(std::ptr::null_mut())),
            )
        };
        let message = match last.is_empty() {
            true => format!("NCCL, {what}: {name}"),
            false => format!("NCCL, {what}: {name} ({last})"),
        };
        Error::new(status, message)
    }

    /// An error unless a call has succeeded.
    pub fn check(&self, code: c_int, what: &str) -> Result<()> {
        match code {
            SUCCESS => Ok(()),
            code => Err(self.error(code, what)),
        }
    }
}
