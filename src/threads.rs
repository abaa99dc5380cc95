//! Threads that the library starts inside somebody else's process.
//!
//! All of them are started here. They run none of the host's signal handlers: every signal that is
//! meant for the process goes to a thread of the host's. And they compute in the default
//! floating-point environment, whatever the thread that started them had.

use crate::float_env::FloatEnv;
use std::io;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

/// Starts a thread of that name.
pub fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let builder = Builder::new().name(name.to_owned());
    signals::blocked(|| builder.spawn(|| in_standard_env(work)))
}

/// Starts a thread within a scope, with a stack of so many bytes if that is given.
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    stack_bytes: Option<usize>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    let mut builder = Builder::new().name(name.to_owned());
    if let Some(bytes) = stack_bytes {
        builder = builder.stack_size(bytes);
    }
    signals::blocked(|| builder.spawn_scoped(scope, || in_standard_env(work)))
}

fn in_standard_env<T>(work: impl FnOnce() -> T) -> T {
    let _env = FloatEnv::standard();
    work()
}

#[cfg(unix)]
mod signals {
    use std::mem::MaybeUninit;

    /// Signals by which the system tells a thread of its own faults. They stay open: a blocked one
    /// would end the process without a word to the host's handler, and none comes from outside
    /// unless somebody sends it by hand.
    const FAULTS: [libc::c_int; 6] = [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGILL,
        libc::SIGTRAP,
        libc::SIGSYS,
    ];

    /// Runs `start` with all signals blocked but faults. A thread that it starts inherits that, so
    /// there is no moment at which it takes one.
    pub fn blocked<T>(start: impl FnOnce() -> T) -> T {
        /// Restores the mask, also on a panic.
        struct Mask(libc::sigset_t);
        impl Drop for Mask {
            fn drop(&mut self) {
                // SAFETY: a set that pthread_sigmask has written; the old one is not asked for.
                unsafe {
                    libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut());
                }
            }
        }
        let mut all = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: sigfillset initializes the set that the calls after it use, and pthread_sigmask,
        // whose arguments are valid, writes the old mask.
        let _mask = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            for fault in FAULTS {
                libc::sigdelset(all.as_mut_ptr(), fault);
            }
            let failed =
                libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            (failed == 0).then(|| Mask(before.assume_init()))
        };
        start()
    }
}

#[cfg(not(unix))]
mod signals {
    /// There are no signals.
    pub fn blocked<T>(start: impl FnOnce() -> T) -> T {
        start()
    }
}
