//! The log callback.

use super::boundary::{call, call_always};
use super::error::{ember_error, ember_status};
use crate::error::{Result, fail};
use crate::log::{self, Level, ModelLog};
use crate::memory;
use std::ffi::{c_char, c_void};

/// Levels of log messages.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ember_log_level {
    /// A failure that is not the caller's fault: a caught bug, a lost device.
    EMBER_LOG_ERROR = 1,
    /// Something works less well than it could.
    EMBER_LOG_WARN = 2,
    /// Models are loaded, sessions are created, and both are freed.
    EMBER_LOG_INFO = 3,
    /// Details for a bug report.
    EMBER_LOG_DEBUG = 4,
}

/// Receives one message: `len` bytes of UTF-8 without a line end and without a NUL, valid during
/// the call. Called from any thread that is inside a function of the library and from its worker
/// threads, also from several at once. It must return normally: no `longjmp`, no exception. It may
/// call the library, whose messages are then dropped, but not `ember_set_log_callback`
/// (`EMBER_BUSY`).
pub type ember_log_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, level: i32, message: *const c_char, len: usize)>;

struct User(*mut c_void);
// SAFETY: the library only hands the pointer back; the header says that the callback must be able
// to run on any thread and on several at once.
unsafe impl Send for User {}
// SAFETY: as above.
unsafe impl Sync for User {}

/// The level of this number, which the caller's field `name` has.
fn level_of(level: i32, name: &str) -> Result<Level> {
    match level {
        1 => Ok(Level::Error),
        2 => Ok(Level::Warn),
        3 => Ok(Level::Info),
        4 => Ok(Level::Debug),
        n => fail!(InvalidArgument, "{name} is {n}, but must be from 1 to 4"),
    }
}

/// A sink that calls `callback`.
///
/// # Safety
/// The callback can be called with `user` while the sink is there, as the header demands.
unsafe fn sink(callback: ember_log_fn, user: User) -> Option<log::Sink> {
    let callback = callback?;
    Some(Box::new(move |level: Level, message: &str| {
        let user = &user;
        // SAFETY: by contract, the callback can be called with `user` while the sink is there.
        unsafe {
            callback(user.0, level as i32, message.as_ptr().cast(), message.len());
        }
    }))
}

/// Where a model's messages go, by the fields of its options. `InvalidArgument` for a level that is none.
///
/// # Safety
/// The callback can be called with `user` until the model and its sessions are freed.
pub(super) unsafe fn model_log(
    callback: ember_log_fn,
    user: *mut c_void,
    level: i32,
) -> Result<Option<ModelLog>> {
    if callback.is_none() {
        return match level {
            0 => Ok(None),
            n => fail!(
                InvalidArgument,
                "log_level is {n}, but there is no log_callback"
            ),
        };
    }
    let level = level_of(level, "log_level")?;
    // SAFETY: by contract, the callback can be called with `user` until the model and its sessions are freed.
    let sink = unsafe { sink(callback, User(user)) };
    Ok(sink.map(|sink| ModelLog::new(level, sink)))
}

/// Sets the function that receives log messages up to `level` (`EMBER_LOG_ERROR` is the lowest), for the whole
/// process but the models that have a `log_callback` of their own. NULL turns logging off, which is the initial state. The library writes log messages nowhere else. `user`
/// is passed to the callback and may be NULL. When this function returns, the previous callback is not running and
/// will not run again, so do not hold a lock that the callback takes. Any thread may call it.
///
/// Errors: `EMBER_INVALID_ARGUMENT` for a level that is none; `EMBER_BUSY` from within the callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_set_log_callback(
    callback: ember_log_fn,
    user: *mut c_void,
    level: i32,
    err: *mut ember_error,
) -> ember_status {
    let user = User(user);
    let work = || {
        let level = match callback {
            Some(_) => level_of(level, "level")?,
            None => Level::Error,
        };
        // SAFETY: the caller of `ember_set_log_callback` promises that the callback can be called with `user` until it is
        // replaced.
        let sink = unsafe { sink(callback, user) };
        memory::check()?;
        if !log::set_sink(level, sink) {
            fail!(Busy, "the log callback cannot replace itself");
        }
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe {
        match callback {
            Some(_) => call(err, work),
            None => call_always(err, work),
        }
    }
}
