//! The log callback.

use super::boundary::{call, call_always};
use super::error::{ember_error, ember_status};
use crate::error::{Result, fail};
use crate::log::{self, Level, ModelLog};
use crate::memory;
use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Levels of log messages. Later versions may have more.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ember_log_level {
    /// A failure that is not the caller's fault, such as a caught bug.
    EMBER_LOG_ERROR = 1,
    /// Something works less well than it could.
    EMBER_LOG_WARN = 2,
    /// A model or an adapter was loaded.
    EMBER_LOG_INFO = 3,
    /// Details for a bug report, such as each session that is created.
    EMBER_LOG_DEBUG = 4,
}

/// Receives one message: `len` bytes of UTF-8 without a line end and without a NUL, valid during
/// the call. Called from any thread that is inside a function of the library and from its worker
/// threads, also from several at once. It must return normally: no `longjmp`, no exception. It may
/// call the library, whose messages are then dropped, but not `ember_set_log_callback`
/// (`EMBER_BUSY`).
pub type ember_log_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, level: i32, message: *const c_char, len: usize)>;

/// Called once when the library no longer uses `user`, on any thread, possibly one of the library. It may call every function of the
/// library. It must return normally: no `longjmp`, no exception.
pub type ember_free_fn = Option<unsafe extern "C" fn(user: *mut c_void)>;

/// What a log callback gets. The sinks that use it share it.
pub(super) struct LogUser {
    user: *mut c_void,
    release: ember_free_fn,
    /// Whether the caller has given it to the library, which then calls `release` at the end.
    taken: AtomicBool,
}

// SAFETY: the library only hands the pointer back; the header says that the callbacks must be able
// to run on any thread, and that of the log on several at once.
unsafe impl Send for LogUser {}
// SAFETY: as above.
unsafe impl Sync for LogUser {}

impl LogUser {
    /// # Safety
    /// `release` can be called with `user` once, when nothing of this is left.
    pub(super) unsafe fn new(user: *mut c_void, release: ember_free_fn) -> LogUser {
        LogUser {
            user,
            release,
            taken: AtomicBool::new(false),
        }
    }

    /// The call succeeds, so it belongs to the library from now on.
    pub(super) fn take_over(&self) {
        self.taken.store(true, Ordering::Release);
    }
}

impl Drop for LogUser {
    fn drop(&mut self) {
        if let Some(release) = self.release.filter(|_| self.taken.load(Ordering::Acquire)) {
            // SAFETY: by `new`'s contract, because this is the end, which comes once.
            unsafe { release(self.user) };
        }
    }
}

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
unsafe fn sink(callback: ember_log_fn, user: Arc<LogUser>) -> Option<log::Sink> {
    let callback = callback?;
    Some(Box::new(move |level: Level, message: &str| {
        let (level, user) = (level as i32, user.user);
        // SAFETY: by contract, the callback can be called with `user` while the sink is there.
        unsafe { callback(user, level, message.as_ptr().cast(), message.len()) };
    }))
}

/// Where a model's messages go, by the fields of its options, and what belongs to that. `InvalidArgument` for a level that is none.
///
/// # Safety
/// The callback can be called with `user` until the model and its sessions are freed.
pub(super) unsafe fn model_log(
    callback: ember_log_fn,
    user: LogUser,
    level: i32,
) -> Result<Option<(ModelLog, Arc<LogUser>)>> {
    if callback.is_none() {
        if level != 0 {
            fail!(
                InvalidArgument,
                "log_level is {level}, but there is no log_callback"
            );
        }
        if user.release.is_some() {
            fail!(
                InvalidArgument,
                "log_release is set, but there is no log_callback"
            );
        }
        return Ok(None);
    }
    let level = level_of(level, "log_level")?;
    let user = Arc::new(user);
    // SAFETY: by contract, the callback can be called with `user` until the model and its sessions are freed.
    let sink = unsafe { sink(callback, user.clone()) };
    Ok(sink.map(|sink| (ModelLog::new(level, sink), user)))
}

/// Sets the function that receives log messages up to `level`, for the whole process except the models that have a `log_callback` of
/// their own. `EMBER_LOG_ERROR` is the lowest level. NULL turns logging off, which is the initial state. The library writes log messages
/// nowhere else. `user` is passed to the callback and may be NULL.
///
/// When this function returns, the previous callback is not running and will not run again, so its `user` can be freed. Do not hold a
/// lock that the callback takes. Any thread may call it.
///
/// Errors: `EMBER_INVALID_ARGUMENT` for a level that is none; `EMBER_BUSY` from within the callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_set_log_callback(
    callback: ember_log_fn,
    user: *mut c_void,
    level: i32,
    err: *mut ember_error,
) -> ember_status {
    // SAFETY: there is nothing to call.
    let user = unsafe { LogUser::new(user, None) };
    let work = || {
        let level = match callback {
            Some(_) => level_of(level, "level")?,
            None => Level::Error,
        };
        let sink = match callback {
            // SAFETY: the caller of `ember_set_log_callback` promises that the callback can be called with `user` until it is
            // replaced.
            Some(_) => unsafe { sink(callback, Arc::new(user)) },
            // Needs no memory.
            None => None,
        };
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
