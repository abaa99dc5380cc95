//! The library's threads. They block all signals but those of their own faults, because signals belong to the host; they compute
//! in the default floating-point environment; and a thread that cannot be started is an error.
//!
//! Not `std::thread` where there is another way: it allocates a thread's handle from the system, past the allocator that the
//! library has for when memory runs out ([`crate::memory`]), and ends the process if that fails; so do its scopes, its
//! channels and everything else that asks which thread it is on.

#[cfg(unix)]
#[path = "unix.rs"]
mod system;
#[cfg(not(unix))]
#[path = "other.rs"]
mod system;

pub(crate) mod event;
mod placement;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod stack;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod variables;

pub use placement::Placement;

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
use crate::error::{Error, Status};
use crate::error::{Result, fail};
use crate::panics;
use std::cell::Cell;
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether this thread can use its variables of the library, which a call does from its beginning on.
pub(crate) fn has_variables() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    return variables::can_be_used();
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    true
}

/// Stack of threads that need no other.
pub(crate) const STACK_BYTES: usize = 2 << 20;

thread_local! {
    /// Whether this is a thread of the library.
    static OWN: Cell<bool> = const { Cell::new(false) };
}

/// Whether the running thread is one of the library, for which no call of the host's waits by itself.
pub(crate) fn is_own() -> bool {
    OWN.try_with(Cell::get).unwrap_or(false)
}

/// A thread that has to be joined.
#[derive(Debug)]
pub struct Thread {
    handle: Option<system::Handle>,
    /// Set when its work is over.
    ended: Arc<AtomicBool>,
}

/// Starts a thread. A panic of `work` ends it silently.
///
/// Errors: `OutOfMemory` if the system starts none.
pub(crate) fn spawn(
    name: &str,
    stack_bytes: usize,
    work: impl FnOnce() + Send + 'static,
) -> Result<Thread> {
    start(name, stack_bytes, Box::new(work))
}

/// [`spawn`] for work that the host has placed.
pub(crate) fn spawn_placed(
    name: &str,
    stack_bytes: usize,
    placement: &Placement,
    work: impl FnOnce() + Send + 'static,
) -> Result<Thread> {
    let placement = *placement;
    spawn(name, stack_bytes, move || {
        placement.apply();
        work();
    })
}

type Work = Box<dyn FnOnce() + Send>;

fn start(name: &str, stack_bytes: usize, work: Work) -> Result<Thread> {
    let ended = Arc::new(AtomicBool::new(false));
    let theirs = ended.clone();
    let silent = move || {
        let _ = OWN.try_with(|own| own.set(true));
        let _ = panics::catch(|| {
            work();
            Ok(())
        });
        theirs.store(true, Ordering::Release);
    };
    match system::start(name, stack_bytes, Box::new(silent)) {
        Ok(handle) => Ok(Thread {
            handle: Some(handle),
            ended,
        }),
        Err(e) => fail!(OutOfMemory, "thread {name} could not be started: {e}"),
    }
}

impl Thread {
    /// Whether its work is over, so that it can be joined without waiting for long.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Waits for its end.
    pub(crate) fn join(mut self) {
        self.wait();
    }

    fn wait(&mut self) {
        if let Some(handle) = self.handle.take() {
            system::join(handle);
        }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.wait();
    }
}

/// Runs `work` with a stack of at least this size, and waits for it: on this thread where the stack can be switched (Linux on
/// x86-64), else on a thread of its own.
///
/// Errors: those of `work`, also `OutOfMemory` if memory ran out in it; `Internal` if it panics; `OutOfMemory` if there is no
/// stack or no thread.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub(crate) fn on_stack<T: Send>(
    name: &str,
    stack_bytes: usize,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    stack::run(name, stack_bytes, work)
}

/// See above.
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
pub(crate) fn on_stack<T: Send>(
    name: &str,
    stack_bytes: usize,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    /// Written by the thread, and read when it has ended.
    struct Slot<T>(UnsafeCell<Option<Result<T>>>);
    // SAFETY: used by one thread after the other.
    unsafe impl<T: Send> Sync for Slot<T> {}

    let slot = Slot(UnsafeCell::new(None));
    let shared = &slot;
    let run = move || {
        let result = panics::catch(|| {
            let value = work()?;
            crate::memory::check()?;
            Ok(value)
        });
        // SAFETY: the other thread looks when this one has ended.
        unsafe { *shared.0.get() = Some(result) };
    };
    // SAFETY: joined below, before `slot` and what `work` borrows go.
    let thread = start(name, stack_bytes, unsafe { forever(Box::new(run)) })?;
    thread.join();
    slot.0.into_inner().unwrap_or_else(|| {
        Err(Error::new(
            Status::Internal,
            format!("thread {name} ended without a result"),
        ))
    })
}

/// Runs `work` on `count` threads, or fewer if the system does not start so many, and `meanwhile` on this one, which hears how
/// many there are. Returns when all have ended.
pub(crate) fn beside<R>(
    name: &str,
    count: usize,
    work: &(dyn Fn() + Sync),
    meanwhile: impl FnOnce(usize) -> R,
) -> R {
    let mut threads = Vec::new();
    let count = match threads.try_reserve(count) {
        Ok(()) => count,
        Err(_) => 0,
    };
    for _ in 0..count {
        // SAFETY: the threads are joined when `threads` is dropped, before `work` and what it borrows go, also by a panic.
        let work: Work = unsafe { forever(Box::new(work)) };
        match start(name, STACK_BYTES, work) {
            Ok(thread) => threads.push(thread),
            Err(_) => break,
        }
    }
    meanwhile(threads.len())
}

/// Forgets how long what the work borrows lives.
///
/// # Safety
/// The work must have ended before that does.
unsafe fn forever<'a>(work: Box<dyn FnOnce() + Send + 'a>) -> Work {
    // SAFETY: only the lifetime changes, for which the caller answers.
    unsafe { std::mem::transmute::<Box<dyn FnOnce() + Send + 'a>, Work>(work) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Status;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn results_errors_and_panics_come_back() {
        let text = String::from("borrowed");
        assert_eq!(on_stack("test", 1 << 20, || Ok(text.len())), Ok(8));
        let e = on_stack::<()>("test", 1 << 20, || fail!(Grammar, "no")).unwrap_err();
        assert_eq!(e.status, Status::Grammar);
        let e = on_stack::<()>("test", 1 << 20, || panic!("wheel")).unwrap_err();
        assert_eq!(e.status, Status::Internal);
        assert!(e.message.contains("wheel"), "{}", e.message);
    }

    #[test]
    fn a_stack_has_the_size_that_was_asked_for() {
        fn deep(n: usize) -> u64 {
            let block = std::hint::black_box([n as u64; 1024]);
            if n == 0 {
                return 0;
            }
            deep(n - 1) + block[n % 1024]
        }
        // More than 32 MB of frames.
        assert_eq!(on_stack("test", 64 << 20, || Ok(deep(4000))), Ok(8_002_000));
    }

    #[test]
    fn all_threads_end_first() {
        let count = AtomicUsize::new(0);
        let work = || {
            count.fetch_add(1, Ordering::SeqCst);
        };
        assert_eq!(beside("test", 3, &work, |n| n), 3);
        assert_eq!(count.load(Ordering::SeqCst), 3);
        let thread = spawn("test", STACK_BYTES, || panic!("unheard")).unwrap();
        thread.join();
    }

    #[test]
    fn variables_of_a_linked_library_are_there() {
        assert!(has_variables());
        assert_eq!(on_thread(has_variables), Some(true));
    }

    /// What `look` finds on a thread of the library.
    fn on_thread<T: Send>(look: impl Fn() -> T + Sync) -> Option<T> {
        let seen = std::sync::Mutex::new(None);
        beside("test", 1, &|| *seen.lock().unwrap() = Some(look()), |_| ());
        seen.into_inner().unwrap()
    }

    #[test]
    fn a_thread_knows_whether_it_is_the_librarys() {
        assert!(!is_own());
        assert_eq!(on_thread(is_own), Some(true));
        let thread = spawn("test", STACK_BYTES, || {}).unwrap();
        while !thread.has_ended() {
            std::thread::yield_now();
        }
    }

    /// Work on a larger stack waits for nobody where the stack can be switched, and may do so again within itself.
    #[test]
    fn stacks_are_switched_on_this_thread_where_they_can_be() {
        let here = std::thread::current().id();
        let on_it = on_stack("test", 1 << 20, || Ok(std::thread::current().id())).unwrap();
        let switches = cfg!(all(target_os = "linux", target_arch = "x86_64"));
        assert_eq!(on_it == here, switches);
        let inner = on_stack("test", 1 << 20, || {
            let words = [1u8; 1000];
            let sum = on_stack("test", 1 << 20, || {
                fail!(
                    Grammar,
                    "{}",
                    words.iter().map(|w| u32::from(*w)).sum::<u32>()
                )
            });
            let error: crate::Error = match sum {
                Ok(()) => return Ok(String::new()),
                Err(e) => e,
            };
            Ok(error.message + &"x".repeat(words.len() / 500))
        });
        assert_eq!(inner.unwrap(), "1000xx");
        // A backtrace goes through.
        let trace = on_stack("test", 1 << 20, || {
            Ok(std::backtrace::Backtrace::force_capture().to_string())
        });
        assert!(trace.unwrap().contains("stacks_are_switched"));
        assert!((0.1f64 + 0.2 - 0.3).abs() < 1e-15);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn signals_are_left_to_the_host() {
        let blocked = |status: String| {
            let line = status.lines().find(|l| l.starts_with("SigBlk:")).unwrap();
            u64::from_str_radix(line[7..].trim(), 16).unwrap()
        };
        let read = || std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let before = blocked(read());
        let theirs = on_thread(|| blocked(read())).unwrap();
        // All but KILL and STOP, which cannot be, and those that glibc keeps for itself.
        for signal in [1, 2, 3, 10, 12, 14, 15, 17, 20, 28] {
            assert!(theirs >> (signal - 1) & 1 == 1, "signal {signal}");
        }
        assert_eq!(blocked(read()), before);
    }
}
