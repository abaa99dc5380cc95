//! Events that an event loop of the host's can wait for.

use crate::error::{Result, fail};

#[cfg(unix)]
use posix as system;
#[cfg(windows)]
use windows as system;

/// Something that is set or not, which the system can wait for. Any thread may use it.
#[derive(Debug)]
pub struct Event(system::Event);

impl Event {
    /// An event that is not set.
    ///
    /// Errors: `OutOfMemory` if the system has none.
    pub(crate) fn new() -> Result<Event> {
        match system::Event::new() {
            Ok(event) => Ok(Event(event)),
            Err(e) => fail!(OutOfMemory, "the system has no event: {e}"),
        }
    }

    /// Sets it. Whoever waits for it wakes up, and whoever waits later does not sleep.
    pub(crate) fn set(&self) {
        self.0.set();
    }

    /// Makes it one that is not set.
    pub(crate) fn clear(&self) {
        self.0.clear();
    }

    /// What the system waits for: a file descriptor that can be read while the event is set, on Windows a `HANDLE`.
    pub(crate) fn handle(&self) -> i64 {
        self.0.handle()
    }

    /// Whether `poll` finds it readable.
    #[cfg(all(test, unix))]
    pub(crate) fn is_set(&self) -> bool {
        let mut entry = libc::pollfd {
            fd: i32::try_from(self.handle()).unwrap(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry, which is a local.
        unsafe { libc::poll(&mut entry, 1, 0) == 1 }
    }
}

#[cfg(unix)]
mod posix {
    use libc::c_int;
    use std::io;

    /// Two ends of a pipe; on Linux, an eventfd is both.
    #[derive(Debug)]
    pub(super) struct Event {
        read: c_int,
        write: c_int,
    }

    impl Event {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        pub(super) fn new() -> io::Result<Event> {
            // SAFETY: takes numbers only.
            let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Event {
                read: fd,
                write: fd,
            })
        }

        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        pub(super) fn new() -> io::Result<Event> {
            let mut ends = [0; 2];
            // SAFETY: a place for two descriptors.
            if unsafe { libc::pipe(ends.as_mut_ptr()) } != 0 {
                return Err(io::Error::last_os_error());
            }
            let event = Event {
                read: ends[0],
                write: ends[1],
            };
            for fd in ends {
                // SAFETY: a descriptor that is open, and numbers.
                unsafe {
                    libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
                    libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK);
                }
            }
            Ok(event)
        }

        pub(super) fn set(&self) {
            let one = 1u64.to_ne_bytes();
            // SAFETY: eight bytes to a descriptor that is open. One that is full is set.
            unsafe { libc::write(self.write, one.as_ptr().cast(), one.len()) };
        }

        pub(super) fn clear(&self) {
            let mut bytes = [0u8; 512];
            // SAFETY: room for that many bytes, and a descriptor that is open and does not block.
            while unsafe { libc::read(self.read, bytes.as_mut_ptr().cast(), bytes.len()) } > 0 {}
        }

        pub(super) fn handle(&self) -> i64 {
            i64::from(self.read)
        }
    }

    impl Drop for Event {
        fn drop(&mut self) {
            // SAFETY: descriptors of this object's own, closed once.
            unsafe {
                libc::close(self.read);
                if self.write != self.read {
                    libc::close(self.write);
                }
            }
        }
    }
}

#[cfg(windows)]
mod windows {
    use std::ffi::{c_int, c_void};
    use std::io;
    use std::ptr::{null, null_mut};

    #[link(name = "kernel32")]
    unsafe extern "system" {
        fn CreateEventW(
            attributes: *const c_void,
            manual_reset: c_int,
            set: c_int,
            name: *const u16,
        ) -> *mut c_void;
        fn SetEvent(event: *mut c_void) -> c_int;
        fn ResetEvent(event: *mut c_void) -> c_int;
        fn CloseHandle(handle: *mut c_void) -> c_int;
    }

    /// One that stays set until it is reset.
    #[derive(Debug)]
    pub(super) struct Event(*mut c_void);

    // SAFETY: a handle of the system's, which any thread may use.
    unsafe impl Send for Event {}
    // SAFETY: as above.
    unsafe impl Sync for Event {}

    impl Event {
        pub(super) fn new() -> io::Result<Event> {
            // SAFETY: no attributes and no name.
            let event = unsafe { CreateEventW(null(), 1, 0, null()) };
            match event == null_mut() {
                true => Err(io::Error::last_os_error()),
                false => Ok(Event(event)),
            }
        }

        pub(super) fn set(&self) {
            // SAFETY: a handle that is open.
            unsafe { SetEvent(self.0) };
        }

        pub(super) fn clear(&self) {
            // SAFETY: a handle that is open.
            unsafe { ResetEvent(self.0) };
        }

        pub(super) fn handle(&self) -> i64 {
            self.0.addr() as i64
        }
    }

    impl Drop for Event {
        fn drop(&mut self) {
            // SAFETY: a handle of this object's own, closed once.
            unsafe { CloseHandle(self.0) };
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn an_event_stays_set_until_it_is_cleared() {
        let event = Event::new().unwrap();
        assert!(!event.is_set());
        for _ in 0..3 {
            event.set();
            assert!(event.is_set());
        }
        event.clear();
        assert!(!event.is_set());
        event.clear();
        std::thread::scope(|scope| {
            scope.spawn(|| event.set());
        });
        assert!(event.is_set());
    }
}
