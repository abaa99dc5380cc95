//! `pthread_cancel` of a thread that is in a call: the cancellation waits until the call is over,
//! because nothing of the library could be unwound by it.

pub(super) use system::hold;

#[cfg(all(unix, not(target_os = "android")))]
mod system {
    use std::ffi::c_int;

    #[cfg(target_vendor = "apple")]
    const PTHREAD_CANCEL_DISABLE: c_int = 0;
    #[cfg(not(target_vendor = "apple"))]
    const PTHREAD_CANCEL_DISABLE: c_int = 1;

    unsafe extern "C" {
        /// POSIX; the libc crate does not have it.
        fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    }

    /// As long as it lives, the thread is not cancelled.
    pub(crate) struct Held(c_int);

    pub(crate) fn hold() -> Held {
        let mut before = PTHREAD_CANCEL_DISABLE;
        // SAFETY: the place is valid. Without an effect but on this thread's state.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut before) };
        Held(before)
    }

    impl Drop for Held {
        fn drop(&mut self) {
            let mut before = 0;
            // SAFETY: the state is the one that the thread had. Deferred cancellation, which the header
            // asks for, does nothing here.
            unsafe { pthread_setcancelstate(self.0, &mut before) };
        }
    }
}

#[cfg(not(all(unix, not(target_os = "android"))))]
mod system {
    /// Nothing: threads cannot be cancelled here.
    pub(crate) struct Held;

    pub(crate) fn hold() -> Held {
        Held
    }
}
