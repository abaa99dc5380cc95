//! Threads by POSIX.

use super::Work;
use std::ffi::{CStr, c_void};
use std::io;
use std::mem::MaybeUninit;

/// What [`join`] waits for.
#[derive(Debug)]
pub(super) struct Handle(libc::pthread_t);

// SAFETY: a number or an address that any thread may join by.
unsafe impl Send for Handle {}
// SAFETY: as above; nothing is done by reference.
unsafe impl Sync for Handle {}

/// Longest name that Linux takes, with its NUL.
const NAME_BYTES: usize = 16;

/// Signals by which the system tells a thread of its own faults. They stay open: a blocked one would
/// end the process without a word to the host's handler, and none comes from outside unless somebody
/// sends it by hand.
const FAULTS: [libc::c_int; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
];

struct Start {
    work: Work,
    name: [u8; NAME_BYTES],
}

/// Starts a thread with all signals blocked but [`FAULTS`].
pub(super) fn start(name: &str, stack_bytes: usize, work: Work) -> io::Result<Handle> {
    let mut start = Box::new(Start {
        work,
        name: [0; NAME_BYTES],
    });
    let shown = name.len().min(NAME_BYTES - 1);
    start.name[..shown].copy_from_slice(&name.as_bytes()[..shown]);
    let stack_bytes = stack_bytes.next_multiple_of(1 << 16);

    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: a place to initialize.
    check(unsafe { libc::pthread_attr_init(attributes.as_mut_ptr()) })?;
    // SAFETY: initialized above. A size that the system refuses leaves its own default.
    let sized =
        check(unsafe { libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), stack_bytes) });
    let started = sized.and_then(|()| {
        // A thread begins with the mask of the one that starts it.
        let before = set_mask(|all| {
            // SAFETY: a place to initialize, and numbers of signals.
            unsafe {
                libc::sigfillset(all.as_mut_ptr());
                for fault in FAULTS {
                    libc::sigdelset(all.as_mut_ptr(), fault);
                }
            }
        })?;
        let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
        let start = Box::into_raw(start);
        // SAFETY: the attributes are initialized; `main` takes over `start`, which is a box's.
        let started = check(unsafe {
            libc::pthread_create(
                thread.as_mut_ptr(),
                attributes.as_ptr(),
                main,
                start.cast::<c_void>(),
            )
        });
        let _ = set_mask(|mask| *mask = before);
        match started {
            // SAFETY: a thread was started, so its handle was written.
            Ok(()) => Ok(Handle(unsafe { thread.assume_init() })),
            Err(e) => {
                // SAFETY: no thread has taken it over.
                drop(unsafe { Box::from_raw(start) });
                Err(e)
            }
        }
    });
    // SAFETY: initialized above, and not used any more.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    started
}

/// Waits for a thread's end.
pub(super) fn join(handle: Handle) {
    // SAFETY: started by `start`, which detaches none, and joined once because it is consumed.
    unsafe { libc::pthread_join(handle.0, std::ptr::null_mut()) };
}

/// Sets the signals that this thread blocks, and returns those that it blocked before.
fn set_mask(
    set: impl FnOnce(&mut MaybeUninit<libc::sigset_t>),
) -> io::Result<MaybeUninit<libc::sigset_t>> {
    let mut mask = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    set(&mut mask);
    // SAFETY: `set` has initialized the mask; the other is a place to initialize.
    check(unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask.as_ptr(), before.as_mut_ptr()) })?;
    Ok(before)
}

/// The life of a thread.
extern "C" fn main(start: *mut c_void) -> *mut c_void {
    // SAFETY: what `start` made, for this thread alone.
    let Start { work, name } = *unsafe { Box::from_raw(start.cast::<Start>()) };
    if let Ok(name) = CStr::from_bytes_until_nul(&name) {
        set_name(name);
    }
    work();
    std::ptr::null_mut()
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn set_name(name: &CStr) {
    // SAFETY: a C string that is short enough. A refusal does not matter.
    unsafe { libc::pthread_setname_np(libc::pthread_self(), name.as_ptr()) };
}

#[cfg(target_vendor = "apple")]
fn set_name(name: &CStr) {
    // SAFETY: a C string. A refusal does not matter.
    unsafe { libc::pthread_setname_np(name.as_ptr()) };
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn set_name(_name: &CStr) {}

/// The error that a function of POSIX threads returns.
fn check(result: i32) -> io::Result<()> {
    match result {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}
