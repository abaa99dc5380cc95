//! The library's own threads.
//!
//! A region is a closure that all threads run at once, the caller as thread 0. Inside, phases are
//! separated by [`Worker::barrier`], and [`Worker::ranges`] deals out the work of a phase. Threads
//! that wait spin for some microseconds, then yield, then sleep; between regions they sleep soon.

use super::turn::{Turn, Turns};
use crate::error::{Result, fail};
use crate::threads::Thread;
use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Most threads that a pool can have.
pub const MAX_THREADS: usize = 1024;

/// How long a thread spins before it sleeps, where every thread has a core of its own.
const SPIN: Duration = Duration::from_micros(40);

/// Looks at the clock and yields once per this many spins.
const SPINS_PER_LOOK: u32 = 64;

/// How often a thread yields after that, and before it sleeps.
const YIELDS: u32 = 8;

/// A cache line (two, for the prefetcher's sake) of its own.
#[repr(align(128))]
struct Padded<T>(T);

/// A counter on whose change threads wait.
struct Gate {
    value: Padded<AtomicU32>,
    sleepers: AtomicU32,
    mutex: Mutex<()>,
    changed: Condvar,
}

impl Gate {
    fn new() -> Gate {
        Gate {
            value: Padded(AtomicU32::new(0)),
            sleepers: AtomicU32::new(0),
            mutex: Mutex::new(()),
            changed: Condvar::new(),
        }
    }

    fn value(&self) -> u32 {
        self.value.0.load(SeqCst)
    }

    fn advance(&self) {
        self.value.0.fetch_add(1, SeqCst);
        // A sleeper counts itself before it looks at the value for the last time; so either it
        // sees the new value, or it is seen here.
        if self.sleepers.load(SeqCst) > 0 {
            drop(self.mutex.lock().unwrap_or_else(PoisonError::into_inner));
            self.changed.notify_all();
        }
    }

    /// Returns when the value is no longer `old`.
    fn wait(&self, old: u32, spin: Duration) {
        let mut start = None;
        loop {
            for _ in 0..SPINS_PER_LOOK {
                if self.value.0.load(Acquire) != old {
                    return;
                }
                std::hint::spin_loop();
            }
            let start = *start.get_or_insert_with(Instant::now);
            if start.elapsed() >= spin {
                break;
            }
        }
        // Whoever is waited for may need this core.
        for _ in 0..YIELDS {
            std::thread::yield_now();
            if self.value.0.load(Acquire) != old {
                return;
            }
        }
        self.sleepers.fetch_add(1, SeqCst);
        let mut guard = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        while self.value() == old {
            guard = self
                .changed
                .wait(guard)
                .unwrap_or_else(PoisonError::into_inner);
        }
        drop(guard);
        self.sleepers.fetch_sub(1, SeqCst);
    }
}

type Job = *const (dyn Fn(&Worker) + Sync);

struct Shared {
    count: usize,
    /// How long waiters spin; zero where threads have to share cores.
    spin: Duration,
    /// Advanced to start a region (or, with `quit`, to end the threads).
    start: Gate,
    /// Advanced when all threads but the caller are through with the region.
    done: Gate,
    finished: Padded<AtomicUsize>,
    /// Advanced when all threads have arrived at a barrier.
    barrier: Gate,
    arrived: Padded<AtomicUsize>,
    /// The region's closure and its first phase. Written by the caller before `start`.
    job: UnsafeCell<Option<(Job, usize)>>,
    quit: AtomicBool,
    /// A thread panicked in this region; the others leave it at their next barrier.
    aborted: AtomicBool,
    panic: Mutex<Option<String>>,
    /// Of each thread, for even and odd phases: how much of its share has been dealt out.
    dealt: Box<[Padded<[AtomicUsize; 2]>]>,
}

// SAFETY: `job` is written only by the holder of the pool's turn while no region runs, and read by
// the threads after `start` was advanced, which orders the accesses. The closure is `Sync`, and
// outlives the region because `run` returns only after all threads have finished.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is only used within a region.
unsafe impl Send for Shared {}

/// Threads, and the turns in which sessions use them. Dropping it joins all threads.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<Thread>,
    turns: Turns,
}

/// The right to run regions.
pub struct PoolTurn<'a> {
    pool: &'a Pool,
    turn: Turn<'a>,
    phase: Cell<usize>,
}

/// One thread's view of a region.
pub struct Worker<'a> {
    /// 0 is the caller.
    pub index: usize,
    /// Number of threads in the region.
    pub count: usize,
    shared: &'a Shared,
    phase: Cell<usize>,
}

/// Thrown by a barrier in a region where another thread panicked.
struct Aborted;

impl Pool {
    /// A pool of `threads` threads, the caller of a region being one of them.
    ///
    /// Errors: `InvalidArgument` for 0 or more than [`MAX_THREADS`], `OutOfMemory` if the system
    /// starts no more threads.
    pub fn new(threads: usize) -> Result<Pool> {
        if threads == 0 || threads > MAX_THREADS {
            fail!(
                InvalidArgument,
                "threads: {threads} is not in 1..={MAX_THREADS}"
            );
        }
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let shared = Arc::new(Shared {
            count: threads,
            spin: if threads <= cores {
                SPIN
            } else {
                Duration::ZERO
            },
            start: Gate::new(),
            done: Gate::new(),
            finished: Padded(AtomicUsize::new(0)),
            barrier: Gate::new(),
            arrived: Padded(AtomicUsize::new(0)),
            job: UnsafeCell::new(None),
            quit: AtomicBool::new(false),
            aborted: AtomicBool::new(false),
            panic: Mutex::new(None),
            dealt: (0..threads).map(|_| Padded(Default::default())).collect(),
        });
        let mut pool = Pool {
            shared,
            threads: Vec::with_capacity(threads - 1),
            turns: Turns::new(),
        };
        for index in 1..threads {
            let shared = pool.shared.clone();
            // A region reports its panics itself.
            let work = move || serve(index, &shared);
            let name = format!("ember-cpu-{index}");
            let thread = crate::threads::spawn(&name, crate::threads::STACK_BYTES, work)?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Number of threads in a region.
    pub fn threads(&self) -> usize {
        self.shared.count
    }

    /// Waits for the turn to run regions. Errors: `Interrupted`.
    pub fn turn(&self, interrupt: &AtomicBool) -> Result<PoolTurn<'_>> {
        self.turn_unless(|| interrupt.load(Relaxed))
    }

    /// Waits for the turn to run regions. Errors: `Interrupted` if `stop` says so while waiting.
    pub fn turn_unless(&self, stop: impl Fn() -> bool) -> Result<PoolTurn<'_>> {
        let turn = self.turns.take_unless(stop)?;
        // SAFETY: this thread has the turn, and no region runs between regions.
        let phase = unsafe { *self.shared.job.get() }.map_or(0, |(_, phase)| phase);
        Ok(PoolTurn {
            pool: self,
            turn,
            phase: Cell::new(phase),
        })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.quit.store(true, SeqCst);
        self.shared.start.advance();
        for thread in self.threads.drain(..) {
            thread.join();
        }
    }
}

impl PoolTurn<'_> {
    /// Whether another session waits for its turn.
    pub fn is_wanted(&self) -> bool {
        self.turn.is_wanted()
    }

    /// Runs `f` on all threads and returns when all have.
    ///
    /// Errors: `Internal` with the message of a panic on any of them.
    pub fn run(&self, f: impl Fn(&Worker) + Sync) -> Result<()> {
        let shared = &*self.pool.shared;
        let first_phase = self.phase.get();
        let worker = Worker {
            index: 0,
            count: shared.count,
            shared,
            phase: Cell::new(first_phase),
        };
        let done = shared.done.value();
        if shared.count > 1 {
            let job: &(dyn Fn(&Worker) + Sync) = &f;
            // SAFETY: only the lifetime changes, and `f` lives until this function returns, which
            // is after all threads have finished with it.
            let job: Job = unsafe { std::mem::transmute::<&(dyn Fn(&Worker) + Sync), Job>(job) };
            // SAFETY: this thread has the turn and no region runs, so no other thread looks.
            unsafe { *shared.job.get() = Some((job, first_phase)) };
            shared.start.advance();
        }
        work(&worker, &f);
        if shared.count > 1 {
            shared.done.wait(done, shared.spin);
            shared.finished.0.store(0, SeqCst);
        }
        let mut next_phase = worker.phase.get();
        let aborted = shared.aborted.load(SeqCst);
        if aborted {
            shared.aborted.store(false, SeqCst);
            shared.arrived.0.store(0, SeqCst);
            for dealt in &shared.dealt {
                dealt.0[0].store(0, SeqCst);
                dealt.0[1].store(0, SeqCst);
            }
            next_phase = 0;
        }
        self.phase.set(next_phase);
        // SAFETY: this thread has the turn and all others are through with the region. What
        // remains of the job is the number; its pointer is not read before it is replaced.
        unsafe { *shared.job.get() = Some((nothing(), next_phase)) };
        if aborted {
            let message = shared
                .panic
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            let message = message.unwrap_or_default();
            fail!(Internal, "a CPU thread panicked: {message}");
        }
        Ok(())
    }
}

/// A job that is never run.
fn nothing() -> Job {
    let job: &'static (dyn Fn(&Worker) + Sync) = &|_| {};
    job
}

/// Runs a region's closure on one thread; on a panic, sees to it that the others leave, too.
fn work(worker: &Worker, f: &(dyn Fn(&Worker) + Sync)) {
    let shared = worker.shared;
    let result = catch_unwind(AssertUnwindSafe(|| f(worker)));
    worker.next_phase();
    let Err(payload) = result else { return };
    if !payload.is::<Aborted>() {
        *shared.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic_text(&*payload));
        shared.aborted.store(true, SeqCst);
        shared.barrier.advance();
    }
}

/// The text of a panic.
fn panic_text(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        return (*text).to_owned();
    }
    payload
        .downcast_ref::<String>()
        .cloned()
        .unwrap_or_else(|| "(no text)".to_owned())
}

/// The life of a pool's thread.
fn serve(index: usize, shared: &Shared) {
    let mut seen = 0;
    loop {
        shared.start.wait(seen, shared.spin);
        seen = seen.wrapping_add(1);
        if shared.quit.load(SeqCst) {
            return;
        }
        // SAFETY: `start` was advanced after the job was written, and the caller waits in `run`
        // until this thread has counted itself as finished.
        if let Some((job, phase)) = unsafe { *shared.job.get() } {
            let worker = Worker {
                index,
                count: shared.count,
                shared,
                phase: Cell::new(phase),
            };
            // SAFETY: see above; the closure is alive.
            work(&worker, unsafe { &*job });
        }
        if shared.finished.0.fetch_add(1, SeqCst) + 2 == shared.count {
            shared.done.advance();
        }
    }
}

impl Worker<'_> {
    fn next_phase(&self) {
        // Nobody uses the counters of the next phase yet, and those who used them in the phase
        // before this one have all passed the barrier since.
        let next = self.phase.get().wrapping_add(1);
        self.shared.dealt[self.index].0[next & 1].store(0, Relaxed);
        self.phase.set(next);
    }

    /// Waits until all threads of the region are here. What they wrote is visible afterwards.
    pub fn barrier(&self) {
        let shared = self.shared;
        self.next_phase();
        if self.count == 1 {
            return;
        }
        let before = shared.barrier.value();
        if !shared.aborted.load(SeqCst) {
            if shared.arrived.0.fetch_add(1, SeqCst) + 1 == self.count {
                shared.arrived.0.store(0, SeqCst);
                shared.barrier.advance();
            } else {
                shared.barrier.wait(before, shared.spin);
            }
        }
        if shared.aborted.load(SeqCst) {
            resume_unwind(Box::new(Aborted));
        }
    }

    /// This thread's share of `0..n`: contiguous, the same in every call.
    pub fn share(&self, n: usize) -> Range<usize> {
        share(n, self.index, self.count)
    }

    /// Deals out `0..n` in ranges of up to `grain`: first this thread's [`share`](Self::share),
    /// then what is left of the others'. At most one call in a phase.
    pub fn ranges(&self, n: usize, grain: usize, mut f: impl FnMut(Range<usize>)) {
        if n.div_ceil(self.count) <= grain {
            // Nothing would be left for others.
            let share = self.share(n);
            if !share.is_empty() {
                f(share);
            }
            return;
        }
        for i in 0..self.count {
            let owner = (self.index + i) % self.count;
            let share = share(n, owner, self.count);
            let dealt = &self.shared.dealt[owner].0[self.phase.get() & 1];
            while dealt.load(Relaxed) < share.len() {
                let from = dealt.fetch_add(grain, Relaxed);
                if from >= share.len() {
                    break;
                }
                f(share.start + from..share.start + (from + grain).min(share.len()));
            }
        }
    }
}

fn share(n: usize, index: usize, count: usize) -> Range<usize> {
    n * index / count..n * (index + 1) / count
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
