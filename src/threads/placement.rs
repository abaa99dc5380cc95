//! Where and how urgently threads of the library run.

/// Processors that a set can name: those with a number below this.
pub(crate) const MAX_CPUS: usize = 1024;

/// What a host wants of threads that compute for it. As far as the system allows: a refusal changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Added to the priority of the thread that starts them: less than 0 gives way to others. On Linux, steps of nice values.
    priority: i32,
    /// A bit for each processor that they may run on, and whether there are any.
    cpus: [u64; MAX_CPUS / 64],
    has_cpus: bool,
}

impl Placement {
    /// Any processor, and this priority.
    pub(crate) fn with_priority(priority: i32) -> Placement {
        Placement {
            priority,
            ..Placement::default()
        }
    }

    /// Lets threads run on a processor. False if its number is too large.
    pub(crate) fn allow(&mut self, cpu: usize) -> bool {
        if cpu >= MAX_CPUS {
            return false;
        }
        self.cpus[cpu / 64] |= 1 << (cpu % 64);
        self.has_cpus = true;
        true
    }

    /// Makes the running thread, which is the library's, one of these.
    pub(crate) fn apply(&self) {
        if self.priority != 0 {
            system::set_priority(self.priority);
        }
        if self.has_cpus {
            system::set_cpus(&self.cpus);
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod system {
    pub(super) fn set_priority(more: i32) {
        // SAFETY: numbers only; Linux has a value for each thread, and 0 means this one.
        unsafe {
            let nice = libc::getpriority(libc::PRIO_PROCESS, 0);
            let wanted = nice.saturating_sub(more).clamp(-20, 19);
            libc::setpriority(libc::PRIO_PROCESS, 0, wanted);
        }
    }

    pub(super) fn set_cpus(cpus: &[u64; super::MAX_CPUS / 64]) {
        // SAFETY: the kernel reads as many bytes as it is told to, the lowest processor first.
        unsafe { libc::sched_setaffinity(0, size_of_val(cpus), cpus.as_ptr().cast()) };
    }
}

#[cfg(windows)]
mod system {
    use std::ffi::{c_int, c_void};

    #[link(name = "kernel32")]
    unsafe extern "system" {
        fn GetCurrentThread() -> *mut c_void;
        fn SetThreadPriority(thread: *mut c_void, priority: c_int) -> c_int;
        fn SetThreadAffinityMask(thread: *mut c_void, mask: usize) -> usize;
    }

    pub(super) fn set_priority(more: i32) {
        // SAFETY: this thread, and one of the system's levels.
        unsafe { SetThreadPriority(GetCurrentThread(), more.clamp(-2, 2)) };
    }

    pub(super) fn set_cpus(cpus: &[u64; super::MAX_CPUS / 64]) {
        // SAFETY: this thread, and a mask of its group of processors.
        unsafe { SetThreadAffinityMask(GetCurrentThread(), cpus[0] as usize) };
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android", windows)))]
mod system {
    // The system places threads by itself.
    pub(super) fn set_priority(_more: i32) {}

    pub(super) fn set_cpus(_cpus: &[u64; super::MAX_CPUS / 64]) {}
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::threads::{STACK_BYTES, spawn_placed};
    use std::sync::{Arc, Mutex};

    #[test]
    fn a_thread_runs_where_and_as_it_should() {
        let mut placement = Placement::with_priority(-3);
        // One that this process may use.
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|l| l.starts_with("Cpus_allowed_list:"));
        let list = line.unwrap().split_whitespace().nth(1).unwrap().to_owned();
        let first = list.split([',', '-']).next().unwrap();
        assert!(placement.allow(first.parse().unwrap()) && !placement.allow(MAX_CPUS));
        let seen = Arc::new(Mutex::new((String::new(), 0)));
        let theirs = seen.clone();
        // SAFETY: numbers only.
        let nice = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let before = nice();
        let thread = spawn_placed("test", STACK_BYTES, &placement, move || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            *theirs.lock().unwrap() = (status, nice());
        });
        thread.unwrap().join();
        let (status, theirs) = seen.lock().unwrap().clone();
        let line = status.lines().find(|l| l.starts_with("Cpus_allowed_list:"));
        assert_eq!(line.unwrap().split_whitespace().nth(1), Some(first));
        assert_eq!((theirs, nice()), ((before + 3).min(19), before));
    }
}
