//! A phase: items that threads take in pieces.
//!
//! The thread that leads publishes a phase: a closure and a number of items, cut into shares. Each
//! thread takes pieces of its own share first, then of the others'. The phase is over when all its
//! items are done, whoever did them. So a thread that comes late finds less to do and holds nobody
//! up, the leader can do everything alone, and a thread that joins needs nothing from the phases
//! that it missed.
//!
//! Phases are numbered. A share is one word, the number of the phase that it was taken from last
//! and how many of its pieces are taken, so a thread that still looks at an old phase takes nothing
//! of the present one. The closure of a phase lives until the phase is over. A thread calls it only
//! while it holds a piece that it has not counted as done, and until then the phase is not over.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, fence};

/// A cache line (two, for the prefetcher's sake) of its own.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Padded<T>(pub T);

/// Bits of a share's word that count pieces.
const PIECE_BITS: u32 = 16;
/// Pieces of a share, at most.
const MAX_PIECES: usize = (1 << PIECE_BITS) - 1;

/// Bits of a plan that count shares.
const SHARE_BITS: u32 = 11;
/// Items that a thread takes at a time, at most.
const MAX_GRAIN: usize = (1 << (32 - SHARE_BITS)) - 1;

/// What the threads of a phase run: a closure. It is published in two words beside the phase's
/// number, so that a helper finds it without a further look at the leader's memory.
#[derive(Clone, Copy)]
pub(super) struct Job {
    closure: *const (),
    call: unsafe fn(*const (), &Worker),
}

impl Job {
    /// A job that is to be run only as long as `f` lives.
    pub fn new<F: Fn(&Worker) + Sync>(f: &F) -> Job {
        /// # Safety
        /// `closure` points to a living `F`.
        unsafe fn call<F: Fn(&Worker) + Sync>(closure: *const (), worker: &Worker) {
            // SAFETY: by contract, `closure` points to a living `F`.
            unsafe { (*closure.cast::<F>())(worker) }
        }
        Job {
            closure: std::ptr::from_ref(f).cast(),
            call: call::<F>,
        }
    }

    /// Runs it.
    ///
    /// # Safety
    /// The closure lives.
    pub unsafe fn run(self, worker: &Worker) {
        // SAFETY: `call` was made for the type of the closure, which lives.
        unsafe { (self.call)(self.closure, worker) }
    }
}

/// What is published of a phase.
#[derive(Default)]
struct Plan {
    items: AtomicU32,
    /// Shares, and above them the grain.
    cut: AtomicU32,
    closure: AtomicPtr<()>,
    call: AtomicPtr<()>,
}

/// Where phases are published.
pub(super) struct Board {
    /// The number of the present phase, and the plans of it and the one before, by parity, in a
    /// cache line.
    present: Padded<(AtomicU64, [Plan; 2])>,
    shares: Box<[Padded<AtomicU64>]>,
    /// Items that others than the leader have done, of all phases together.
    done: Padded<(AtomicU64, AtomicBool)>,
}

/// A phase as a thread found it.
#[derive(Clone, Copy)]
pub(super) struct Phase {
    pub number: u64,
    items: usize,
    grain: usize,
    pub shares: usize,
    job: Option<Job>,
    /// To the leader: items that others had done before.
    done_before: u64,
}

impl Phase {
    /// The phase that one thread does alone, without a board.
    fn alone(items: usize) -> Phase {
        Phase {
            number: 0,
            items,
            grain: items.max(1),
            shares: 1,
            job: None,
            done_before: 0,
        }
    }

    /// Runs its job.
    ///
    /// # Safety
    /// The worker holds a piece of the phase that is not counted as done until this returns.
    pub unsafe fn run(&self, worker: &Worker) {
        if let Some(job) = self.job {
            // SAFETY: the leader keeps the closure until all pieces are done, and the worker's is
            // not.
            unsafe { job.run(worker) }
        }
    }

    fn share(&self, share: usize) -> Range<usize> {
        self.items * share / self.shares..self.items * (share + 1) / self.shares
    }
}

impl Board {
    /// For phases of up to `shares` shares.
    pub fn new(shares: usize) -> Board {
        Board {
            present: Padded::default(),
            shares: (0..shares).map(|_| Padded::default()).collect(),
            done: Padded::default(),
        }
    }

    /// Publishes a phase of `items` in `shares` shares, of which threads take about `grain` at a
    /// time. Called by the leader while no phase is open.
    pub fn publish(&self, items: usize, grain: usize, shares: usize, job: Job) -> Phase {
        let (number, plans) = &self.present.0;
        let next = number.load(Relaxed) + 1;
        let largest = items.div_ceil(shares);
        let phase = Phase {
            number: next,
            items,
            grain: grain.clamp(1, MAX_GRAIN).max(largest.div_ceil(MAX_PIECES)),
            shares,
            job: Some(job),
            done_before: self.done(),
        };
        assert!(shares <= self.shares.len() && shares < 1 << SHARE_BITS);
        assert!(u32::try_from(items).is_ok() && phase.grain <= MAX_GRAIN);
        // A thread that reads one of these values by mistake for the phase before the last sees a
        // later number when it looks again.
        fence(Release);
        let plan = &plans[(next & 1) as usize];
        plan.items.store(phase.items as u32, Relaxed);
        let cut = (phase.grain as u32) << SHARE_BITS | shares as u32;
        plan.cut.store(cut, Relaxed);
        plan.closure.store(job.closure.cast_mut(), Relaxed);
        plan.call.store(job.call as *mut (), Relaxed);
        number.store(next, Release);
        phase
    }

    /// The present phase, if it is another than `seen`. It may be over.
    pub fn look(&self, seen: u64) -> Option<Phase> {
        let (number, plans) = &self.present.0;
        let present = number.load(Acquire);
        if present == seen {
            return None;
        }
        let plan = &plans[(present & 1) as usize];
        let items = plan.items.load(Relaxed) as usize;
        let cut = plan.cut.load(Relaxed) as usize;
        let closure = plan.closure.load(Relaxed).cast_const();
        let call = plan.call.load(Relaxed);
        fence(Acquire);
        if number.load(Relaxed) != present {
            return None;
        }
        // SAFETY: the number says that these are the values of one plan, so this is the function
        // that `publish` made a pointer of.
        let call = unsafe { std::mem::transmute::<*mut (), unsafe fn(*const (), &Worker)>(call) };
        Some(Phase {
            number: present,
            items,
            grain: cut >> SHARE_BITS,
            shares: cut & ((1 << SHARE_BITS) - 1),
            job: Some(Job { closure, call }),
            done_before: 0,
        })
    }

    /// The next piece of a share.
    fn take(&self, phase: &Phase, share: usize) -> Option<Range<usize>> {
        let all = phase.share(share);
        let pieces = all.len().div_ceil(phase.grain) as u64;
        let word = &self.shares[share].0;
        let mut old = word.load(Relaxed);
        loop {
            let taken = match (old >> PIECE_BITS).cmp(&phase.number) {
                std::cmp::Ordering::Less => 0,
                std::cmp::Ordering::Equal => old & MAX_PIECES as u64,
                std::cmp::Ordering::Greater => return None,
            };
            if taken >= pieces {
                return None;
            }
            let new = phase.number << PIECE_BITS | (taken + 1);
            match word.compare_exchange(old, new, Relaxed, Relaxed) {
                Ok(_) => {
                    let from = all.start + taken as usize * phase.grain;
                    return Some(from..(from + phase.grain).min(all.end));
                }
                Err(now) => old = now,
            }
        }
    }

    /// Items that others than the leader have done, of all phases together.
    pub fn done(&self) -> u64 {
        self.done.0.0.load(SeqCst)
    }

    /// Whether the leader sleeps until the phase is over. Whoever counts items after this was set
    /// to true calls the leader.
    pub fn set_leader_sleeps(&self, sleeps: bool) {
        self.done.0.1.store(sleeps, SeqCst);
    }
}

#[cfg(test)]
impl Board {
    /// See [`Board::set_leader_sleeps`].
    pub fn leader_sleeps(&self) -> bool {
        self.done.0.1.load(SeqCst)
    }
}

/// One thread's part in a phase.
pub struct Worker<'a> {
    /// Of the thread: whatever it has for itself is found by this.
    pub index: usize,
    board: Option<&'a Board>,
    phase: Phase,
    /// Its own share; the leader's is 0.
    rank: usize,
    /// Shares that are known to be taken, its own first, and how many of them it looks at.
    passed: Cell<usize>,
    shares: Cell<usize>,
    /// Waits a moment before it looks at other shares than its own.
    patient: bool,
    /// Taken, but not handed out yet.
    first: Cell<Option<(usize, usize)>>,
    /// Items taken, and not counted as done.
    taken: Cell<u64>,
    #[cfg(test)]
    pub(super) hook: Option<&'a super::pool::Hook>,
}

impl<'a> Worker<'a> {
    /// A thread that does all items alone.
    pub(super) fn alone(index: usize, items: usize) -> Worker<'a> {
        Worker::new(index, None, Phase::alone(items), (0, 1))
    }

    /// The leader. If it is `patient`, the helpers are about to take their shares.
    pub(super) fn leader(board: &'a Board, phase: Phase, patient: bool) -> Worker<'a> {
        let mut worker = Worker::new(0, Some(board), phase, (0, phase.shares));
        worker.patient = patient;
        worker
    }

    /// A thread that helps with no share yet.
    pub(super) fn helper(index: usize, board: &'a Board, phase: Phase, rank: usize) -> Worker<'a> {
        Worker::new(index, Some(board), phase, (rank, 0))
    }

    fn new(
        index: usize,
        board: Option<&'a Board>,
        phase: Phase,
        (rank, shares): (usize, usize),
    ) -> Worker<'a> {
        Worker {
            index,
            board,
            phase,
            rank,
            passed: Cell::new(0),
            shares: Cell::new(shares),
            patient: false,
            first: Cell::new(None),
            taken: Cell::new(0),
            #[cfg(test)]
            hook: None,
        }
    }

    /// Items that are this thread's, which uses them for nothing else: some of those that nobody
    /// has taken, or none if there are none for it.
    pub fn next(&self) -> Option<Range<usize>> {
        if let Some((from, to)) = self.first.take() {
            return Some(from..to);
        }
        let Some(board) = self.board else {
            let all = self.taken.replace(self.phase.items as u64) == 0 && self.phase.items > 0;
            return all.then_some(0..self.phase.items);
        };
        while self.passed.get() < self.shares.get() {
            let share = (self.rank + self.passed.get()) % self.phase.shares;
            if let Some(range) = board.take(&self.phase, share) {
                self.taken.set(self.taken.get() + range.len() as u64);
                #[cfg(test)]
                if let Some(hook) = self.hook {
                    hook(self.index, super::pool::Moment::Taken);
                }
                return Some(range);
            }
            self.passed.set(self.passed.get() + 1);
            let patient = self.patient && self.passed.get() == 1;
            if patient && self.soon(|| self.is_over(board)) {
                return None;
            }
        }
        None
    }

    /// Waits for a moment whether `over` comes true. Mostly all threads finish at about the same
    /// time, and to look at their shares would slow them down.
    fn soon(&self, over: impl Fn() -> bool) -> bool {
        // Some hundred nanoseconds, on processors with a long pause up to two microseconds.
        const SPINS: u32 = 40;
        (0..SPINS).any(|_| {
            let over = over();
            std::hint::spin_loop();
            over
        })
    }

    /// Whether all that the leader has not taken is done.
    pub(super) fn is_over(&self, board: &Board) -> bool {
        board.done() == self.phase.done_before + self.phase.items as u64 - self.taken.get()
    }

    /// Takes what is left without doing it.
    pub(super) fn drain(&self) {
        while self.next().is_some() {}
    }

    /// Goes on to the next share and takes a first piece of it, which `next` gives. Without one
    /// there is nothing to do for a helper in this share.
    pub(super) fn join(&self) -> bool {
        self.shares.set(self.shares.get() + 1);
        let first = self.next();
        self.first.set(first.clone().map(|r| (r.start, r.end)));
        first.is_some()
    }

    /// Counts what a helper has taken as done, and says whether the leader sleeps until then.
    pub(super) fn count(&self) -> bool {
        let more = self.taken.replace(0);
        self.board.is_some_and(|board| {
            board.done.0.0.fetch_add(more, SeqCst);
            // The leader looks at the count after it has said that it sleeps. So either it sees
            // these items, or it is seen here.
            board.done.0.1.load(SeqCst)
        })
    }

    /// Whether a helper that has done its own share need not look for more.
    pub(super) fn is_done(&self) -> bool {
        let next = |board: &Board| board.present.0.0.load(Relaxed) != self.phase.number;
        self.board.is_none_or(|board| self.soon(|| next(board)))
    }
}
