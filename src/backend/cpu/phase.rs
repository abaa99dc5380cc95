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

/// What the threads of a phase run.
pub(super) struct Job<'a>(pub &'a (dyn Fn(&Worker) + Sync));

/// What is published of a phase.
#[derive(Default)]
struct Plan {
    items: AtomicU32,
    grain: AtomicU32,
    shares: AtomicU32,
    job: AtomicPtr<Job<'static>>,
}

/// Where phases are published.
pub(super) struct Board {
    /// The number of the present phase, and the plans of it and the one before, by parity.
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
    job: *const Job<'static>,
}

impl Phase {
    /// The phase that one thread does alone, without a board.
    fn alone(items: usize) -> Phase {
        Phase {
            number: 0,
            items,
            grain: items.max(1),
            shares: 1,
            job: std::ptr::null(),
        }
    }

    /// What the threads of the phase run.
    ///
    /// # Safety
    /// The caller holds a piece of the phase that it has not counted as done.
    pub unsafe fn job(&self) -> &Job<'_> {
        // SAFETY: the leader keeps the job until all pieces are done, and the caller's is not.
        unsafe { &*self.job }
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
    pub fn publish(&self, items: usize, grain: usize, shares: usize, job: &Job) -> Phase {
        let (number, plans) = &self.present.0;
        let next = number.load(Relaxed) + 1;
        let largest = items.div_ceil(shares);
        let phase = Phase {
            number: next,
            items,
            grain: grain.max(largest.div_ceil(MAX_PIECES)).max(1),
            shares,
            job: std::ptr::from_ref(job).cast(),
        };
        assert!(shares <= self.shares.len() && u32::try_from(items).is_ok());
        // A thread that reads one of these values by mistake for the phase before the last sees a
        // later number when it looks again.
        fence(Release);
        let plan = &plans[(next & 1) as usize];
        plan.items.store(phase.items as u32, Relaxed);
        plan.grain.store(phase.grain as u32, Relaxed);
        plan.shares.store(phase.shares as u32, Relaxed);
        plan.job.store(phase.job.cast_mut(), Relaxed);
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
        let phase = Phase {
            number: present,
            items: plan.items.load(Relaxed) as usize,
            grain: plan.grain.load(Relaxed) as usize,
            shares: plan.shares.load(Relaxed) as usize,
            job: plan.job.load(Relaxed),
        };
        fence(Acquire);
        (number.load(Relaxed) == present).then_some(phase)
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
    /// Shares that are known to be taken.
    passed: Cell<usize>,
    /// Taken, but not handed out yet.
    first: Cell<Option<(usize, usize)>>,
    /// Items taken, and of those the ones that others know to be done.
    taken: Cell<u64>,
    counted: Cell<u64>,
    /// What [`Board::done`] is when the others are through, without what this thread takes.
    target: u64,
    /// Woken by this if it sleeps.
    call_leader: Option<&'a (dyn Fn() + Sync)>,
    #[cfg(test)]
    pub(super) hook: Option<&'a super::pool::Hook>,
}

impl<'a> Worker<'a> {
    /// A thread that does all items alone.
    pub(super) fn alone(index: usize, items: usize) -> Worker<'a> {
        Worker::new(index, None, Phase::alone(items), 0)
    }

    /// The leader. `done` is [`Board::done`] from before the phase.
    pub(super) fn leader(board: &'a Board, phase: Phase, done: u64) -> Worker<'a> {
        let mut worker = Worker::new(0, Some(board), phase, 0);
        worker.target = done + phase.items as u64;
        worker
    }

    /// A thread that helps.
    pub(super) fn helper(
        index: usize,
        board: &'a Board,
        phase: Phase,
        rank: usize,
        call_leader: &'a (dyn Fn() + Sync),
    ) -> Worker<'a> {
        let mut worker = Worker::new(index, Some(board), phase, rank);
        worker.call_leader = Some(call_leader);
        worker
    }

    fn new(index: usize, board: Option<&'a Board>, phase: Phase, rank: usize) -> Worker<'a> {
        Worker {
            index,
            board,
            phase,
            rank,
            passed: Cell::new(0),
            first: Cell::new(None),
            taken: Cell::new(0),
            counted: Cell::new(0),
            target: 0,
            call_leader: None,
            #[cfg(test)]
            hook: None,
        }
    }

    /// Items that are this thread's, which uses them for nothing else: some of those that nobody
    /// has taken, or none if all are taken.
    pub fn next(&self) -> Option<Range<usize>> {
        if let Some((from, to)) = self.first.take() {
            return Some(from..to);
        }
        let Some(board) = self.board else {
            let all = self.taken.replace(self.phase.items as u64) == 0 && self.phase.items > 0;
            return all.then_some(0..self.phase.items);
        };
        while self.passed.get() < self.phase.shares {
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
            match self.call_leader {
                Some(_) => self.count(),
                // Often there is nothing left to look for.
                None if board.done() == self.others() => return None,
                None => {}
            }
        }
        None
    }

    /// Takes a first piece, which `next` gives. Without one, a helper has no part in the phase.
    pub(super) fn join(&self) -> bool {
        let first = self.next();
        self.first.set(first.clone().map(|r| (r.start, r.end)));
        first.is_some()
    }

    /// Takes what is left without doing it.
    pub(super) fn drain(&self) {
        while self.next().is_some() {}
    }

    /// What [`Board::done`] is when the phase is over, to the leader.
    pub(super) fn others(&self) -> u64 {
        self.target - self.taken.get()
    }

    /// Counts what a helper has taken as done.
    pub(super) fn count(&self) {
        let more = self.taken.get() - self.counted.get();
        if let (Some(board), Some(call), 1..) = (self.board, self.call_leader, more) {
            self.counted.set(self.taken.get());
            board.done.0.0.fetch_add(more, SeqCst);
            // The leader looks at the count after it has said that it sleeps. So either it sees
            // these items, or it is seen here.
            if board.done.0.1.load(SeqCst) {
                call();
            }
        }
    }
}
