//! Whether this process is a fork of one that was using the library. Such a child has a copy of the
//! library's memory, with locks that nobody will open, but none of its threads, and no GPU; whatever
//! waits for them would hang.
//!
//! A child may use the library if its parent had loaded no model and no call was running when it
//! was forked. So calls are counted until a first model is loaded; from then on every child is refused.

#[cfg(not(unix))]
pub(super) use none::{enter, remember};
#[cfg(unix)]
pub(super) use posix::{enter, remember};

#[cfg(unix)]
mod posix {
    use super::mark::mark;
    use crate::error::{Result, fail};
    use std::sync::atomic::Ordering::SeqCst;
    use std::sync::atomic::{AtomicBool, AtomicU32};

    /// Whether a model was ever loaded.
    static LOADED: AtomicBool = AtomicBool::new(false);
    /// Calls that are running and began before that.
    static CALLS: AtomicU32 = AtomicU32::new(0);
    /// The process that last used the library, for messages.
    static OWNER: AtomicU32 = AtomicU32::new(0);

    /// A call, as long as it runs.
    pub(crate) struct Inside {
        counted: bool,
    }

    impl Drop for Inside {
        fn drop(&mut self) {
            if self.counted {
                CALLS.fetch_sub(1, SeqCst);
            }
        }
    }

    /// The start of a call, before it takes any lock: `Forked` in a child that may not use the
    /// library, `OutOfMemory` if that cannot be found out.
    pub(crate) fn enter() -> Result<Inside> {
        let mark = mark()?;
        // The mark is 0 in a new process and in a new child.
        if mark.load(SeqCst) == 0 {
            let in_use = LOADED.load(SeqCst) || CALLS.load(SeqCst) > 0;
            // Another thread of this process may have begun its first call meanwhile: it has set the
            // mark before it was counted.
            if in_use && mark.load(SeqCst) == 0 {
                fail!(
                    Forked,
                    "this process was forked from process {}, which had loaded a model or was in a \
                     call; load models in the child only, or exec before using the library",
                    OWNER.load(SeqCst)
                );
            }
            if !in_use {
                OWNER.store(std::process::id(), SeqCst);
                mark.store(1, SeqCst);
            }
        }
        let counted = !LOADED.load(SeqCst);
        if counted {
            CALLS.fetch_add(1, SeqCst);
        }
        Ok(Inside { counted })
    }

    /// Called when a model has been loaded, before it gets its handle.
    pub(crate) fn remember() {
        LOADED.store(true, SeqCst);
    }
}

/// A number that is 0 in a new child, whatever it was in the parent.
#[cfg(unix)]
mod mark {
    use crate::error::{Result, fail};
    use std::ptr::null_mut;
    use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

    static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());
    /// Set to 0 by a handler that the C library calls in children.
    static HANDLED: AtomicU32 = AtomicU32::new(0);

    /// The number. Takes no lock. `OutOfMemory` if there cannot be one.
    pub(super) fn mark() -> Result<&'static AtomicU32> {
        let mut mark = MARK.load(Ordering::Acquire);
        if mark.is_null() {
            mark = first()?;
        }
        // SAFETY: `MARK` is NULL or points to a static, or to the start of a page that is never
        // unmapped again; both are aligned, and only ever accessed as this atomic.
        Ok(unsafe { &*mark })
    }

    fn first() -> Result<*mut AtomicU32> {
        let page = wiped_page();
        let mark = page.unwrap_or((&raw const HANDLED).cast_mut());
        if page.is_none() && !handler() {
            fail!(OutOfMemory, "no handler for forks could be installed");
        }
        match MARK.compare_exchange(null_mut(), mark, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(mark),
            // Another thread was faster. A page of this thread is left alone: one, once.
            Err(other) => Ok(other),
        }
    }

    /// A page that the kernel gives to children as zeros, also to those of a plain `clone` and those
    /// with the process id of their parent in another namespace.
    #[cfg(target_os = "linux")]
    fn wiped_page() -> Option<*mut AtomicU32> {
        const LEN: usize = 4096;
        // SAFETY: asks for new memory wherever there is room.
        let page = unsafe {
            libc::mmap(
                null_mut(),
                LEN,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: the memory is this function's own, and private and anonymous, as the advice needs.
        if unsafe { libc::madvise(page, LEN, libc::MADV_WIPEONFORK) } != 0 {
            // SAFETY: nobody else has the address.
            unsafe { libc::munmap(page, LEN) };
            return None;
        }
        Some(page.cast())
    }

    #[cfg(not(target_os = "linux"))]
    fn wiped_page() -> Option<*mut AtomicU32> {
        None
    }

    fn handler() -> bool {
        extern "C" fn in_child() {
            HANDLED.store(0, Ordering::SeqCst);
        }
        // SAFETY: the handler takes no lock, allocates nothing and cannot panic; the C library forgets
        // it when the library is unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) == 0 }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// Runs `look` in a child and returns its exit status.
        fn in_child(look: impl FnOnce() -> i32) -> i32 {
            // SAFETY: the child reads an atomic and ends.
            let pid = unsafe { libc::fork() };
            assert!(pid >= 0);
            if pid == 0 {
                let seen = look();
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(seen) };
            }
            let mut status = 0;
            // SAFETY: the place is valid.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            assert!(libc::WIFEXITED(status));
            libc::WEXITSTATUS(status)
        }

        #[test]
        fn both_kinds_of_marks_are_0_in_a_child() {
            let handled = &HANDLED;
            assert!(handler());
            let mut marks = vec![handled];
            if let Some(page) = wiped_page() {
                // SAFETY: a page that stays mapped.
                marks.push(unsafe { &*page });
            }
            if cfg!(target_os = "linux") {
                assert_eq!(marks.len(), 2, "Linux wipes pages since 4.14");
            }
            for mark in marks {
                mark.store(7, Ordering::SeqCst);
                assert_eq!(in_child(|| mark.load(Ordering::SeqCst) as i32), 0);
                assert_eq!(mark.load(Ordering::SeqCst), 7);
            }
        }
    }
}

#[cfg(not(unix))]
mod none {
    use crate::error::Result;

    /// A call. Processes are not forked here.
    pub(crate) struct Inside;

    /// Always fine.
    pub(crate) fn enter() -> Result<Inside> {
        Ok(Inside)
    }

    /// Nothing.
    pub(crate) fn remember() {}
}
