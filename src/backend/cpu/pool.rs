//! The library's own threads, and how sessions share them.
//!
//! A session that has the pool's turn leads phases (see [`super::phase`]), one after the other, on
//! the host's thread; the pool's threads help. The leader waits only for pieces that helpers have
//! taken. A helper that the system takes off its core in the middle of one still holds the phase
//! up, for as long as the system likes; so such a helper is left out for many times as long, and
//! beside a busy host the leader soon works alone. When a session finds the pool taken and there
//! are so many that each is better off on its own thread, it runs alone there, and one helper less
//! takes part in the phases of the session that leads.

pub use super::phase::Worker;
use super::phase::{Board, Job, Padded, Phase};
use super::turn::{Turn, Turns};
use crate::error::{Result, fail};
use crate::float_env::FloatEnv;
use crate::threads::{Placement, STACK_BYTES, Thread, is_own, spawn_placed};
use std::any::Any;
use std::cell::RefCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most threads that a pool can have.
pub const MAX_THREADS: usize = 1024;

/// Sessions that may run alone beside the one that leads, at least. More of them than there are
/// cores are better off with the system's time slices than with turns of single steps.
const SEATS: usize = 15;

/// How long a thread spins before it sleeps, where every thread has a core of its own.
const SPIN: Duration = Duration::from_micros(40);

/// The same where another device sends the work, which does its own part between two layers.
const DEVICE_SPIN: Duration = Duration::from_micros(300);

/// Looks at the clock once per this many spins.
const SPINS_PER_LOOK: u32 = 64;

/// How often the leader yields after it has spun, and before it sleeps.
const YIELDS: u32 = 4;

/// A helper that has held a phase up is left out for at least so many times as long.
const PENALTY: u32 = 8;
/// This doubles each time that it does so again soon, up to so often.
const MAX_STRIKES: u32 = 5;
/// Nor for longer than this, if that is not too short beside what it has cost.
const LONGEST_PENALTY: Duration = Duration::from_millis(250);

/// What a phase has to cost before two threads share it, in nanoseconds of one thread, by the
/// square of their number: a helper more costs some hundred nanoseconds, and saves ever less.
const COST_PER_SQUARE: u64 = 750;
/// Nanoseconds of a phase that is worth a look at the clock.
const LONG_PHASE: u64 = 50_000;
/// Sleeping helpers that the leader wakes in a phase: two, and one for so much of its cost.
const COST_PER_WAKE: u64 = 16_000;

/// The work of a phase.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub items: usize,
    /// Items that a thread takes at a time.
    pub grain: usize,
    /// About how many nanoseconds all items take one thread.
    pub cost: u64,
}

impl Work {
    /// Items of which each costs so much, taken so that a piece is short beside a thread's share,
    /// but not so short that taking it costs much.
    pub fn even(items: usize, cost_each: u64) -> Work {
        const SHORTEST: u64 = 4_000;
        Work {
            items,
            grain: SHORTEST.div_ceil(cost_each.max(1)) as usize,
            cost: items as u64 * cost_each,
        }
    }
}

/// What a test does to a thread.
#[cfg(test)]
pub(super) type Hook = Arc<dyn Fn(usize, Moment) + Send + Sync>;

/// When it does so.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// A helper has seen a phase.
    Seen,
    /// A thread has taken a piece of it.
    Taken,
}

/// What is known of a helper.
#[derive(Default)]
struct Helper {
    /// Its share of phases, from 1 on; 0 while it is left out.
    rank: AtomicUsize,
    /// Whether it may hold a piece. Apart from what the leader looks at in every phase.
    busy: Padded<AtomicBool>,
    asleep: AtomicBool,
    mutex: Mutex<()>,
    woken: Condvar,
}

impl Helper {
    fn wake(&self) {
        let guard = lock(&self.mutex);
        self.asleep.store(false, Relaxed);
        drop(guard);
        self.woken.notify_one();
    }
}

struct Shared {
    threads: usize,
    /// How long waiters spin; zero where threads have to share cores.
    spin: Duration,
    board: Board,
    /// Of the threads but the leader's.
    helpers: Box<[Padded<Helper>]>,
    quit: AtomicBool,
    /// A helper panicked in this phase, with this message.
    panicked: AtomicBool,
    panic: Mutex<Option<String>>,
    /// The leader sleeps here until a phase is over.
    mutex: Mutex<()>,
    over: Condvar,
    #[cfg(test)]
    hook: Mutex<Option<Hook>>,
}

/// [`Pool::indices`] of a pool of so many threads.
pub(super) fn indices(threads: usize) -> usize {
    threads + SEATS.max(threads - 1)
}

/// Threads that phases of this cost in nanoseconds make good use of.
pub(super) fn useful_threads(cost: u64) -> usize {
    useful_threads_of(cost, MAX_THREADS)
}

/// The same, at most `most`.
fn useful_threads_of(cost: u64, most: usize) -> usize {
    let mut threads = 1;
    while threads < most && COST_PER_SQUARE * (threads as u64 + 1).pow(2) <= cost {
        threads += 1;
    }
    threads
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that panics runs under these.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a pool is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolOptions {
    /// Its threads, the caller of a phase being one of them.
    pub threads: usize,
    /// Where those of the library's own run.
    pub placement: Placement,
    /// Threads of the host run phases alone, and wait for nobody's turn where they can do without it.
    pub never_wait: bool,
    /// Another device sends the work, layer by layer.
    pub for_device: bool,
}

impl PoolOptions {
    /// So many threads, and the rest by default.
    pub fn of(threads: usize) -> PoolOptions {
        PoolOptions {
            threads,
            ..PoolOptions::default()
        }
    }
}

/// Threads, and the turns in which sessions use them. Dropping it joins all threads.
pub struct Pool {
    shared: Arc<Shared>,
    options: PoolOptions,
    threads: Vec<Thread>,
    turns: Turns,
    crew: Mutex<Crew>,
}

/// What leaders know of the helpers, one leader at a time.
struct Crew {
    /// Helpers that take part, by rank.
    ranked: Vec<usize>,
    /// Of each helper.
    bans: Vec<Ban>,
    banned: usize,
}

/// Why a helper is left out.
#[derive(Clone, Copy, Default)]
struct Ban {
    until: Option<Instant>,
    strikes: u32,
    /// If it behaves until then, the strikes are forgotten.
    forgotten: Option<Instant>,
    /// It holds the present phase up.
    late: bool,
}

/// The right to run phases.
pub struct PoolTurn<'a> {
    pool: &'a Pool,
    /// Locked by the leader; `None` for who runs alone.
    crew: Option<RefCell<MutexGuard<'a, Crew>>>,
    turn: Turn<'a>,
    /// Phases compute on the host's thread, too.
    _env: FloatEnv,
}

impl Pool {
    /// A pool of so many threads, by default.
    #[cfg(test)]
    pub fn new(threads: usize) -> Result<Pool> {
        Pool::with(PoolOptions::of(threads))
    }

    /// A pool.
    ///
    /// Errors: `InvalidArgument` for 0 or more than [`MAX_THREADS`] threads, `OutOfMemory` if the system
    /// starts no more.
    pub fn with(options: PoolOptions) -> Result<Pool> {
        let threads = options.threads;
        if threads == 0 || threads > MAX_THREADS {
            fail!(
                InvalidArgument,
                "threads: {threads} is not in 1..={MAX_THREADS}"
            );
        }
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let shared = Arc::new(Shared {
            threads,
            spin: match threads <= cores {
                true if options.for_device => DEVICE_SPIN,
                true => SPIN,
                false => Duration::ZERO,
            },
            board: Board::new(threads),
            helpers: (1..threads).map(|_| Padded::default()).collect(),
            quit: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            panic: Mutex::new(None),
            mutex: Mutex::new(()),
            over: Condvar::new(),
            #[cfg(test)]
            hook: Mutex::new(None),
        });
        let mut crew = Crew {
            ranked: Vec::with_capacity(threads),
            bans: vec![Ban::default(); threads - 1],
            banned: 0,
        };
        crew.rank(&shared);
        let mut pool = Pool {
            shared,
            options,
            threads: Vec::with_capacity(threads - 1),
            turns: Turns::new(indices(threads) - threads),
            crew: Mutex::new(crew),
        };
        for index in 1..threads {
            let shared = pool.shared.clone();
            // A region reports its panics itself.
            let work = move || serve(index, &shared);
            let name = format!("ember-cpu-{index}");
            let thread = spawn_placed(&name, STACK_BYTES, &options.placement, work)?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// How it was made.
    pub fn options(&self) -> &PoolOptions {
        &self.options
    }

    /// Whether the running thread is one of the host's that is to wait for no other.
    fn is_impatient(&self) -> bool {
        self.options.never_wait && !is_own()
    }

    /// Number of threads that phases run on at most.
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Numbers of the threads that phases run on, [`Worker::index`], are below this: first those of
    /// the leader and its helpers, then those of sessions that run alone.
    pub fn indices(&self) -> usize {
        indices(self.threads())
    }

    /// Waits for the turn to lead phases. Errors: `Interrupted`.
    pub fn turn(&self, interrupt: &AtomicBool) -> Result<PoolTurn<'_>> {
        self.turn_unless(|| interrupt.load(Relaxed))
    }

    /// Waits for the turn to lead phases. Errors: `Interrupted` if `stop` says so while waiting.
    pub fn turn_unless(&self, stop: impl Fn() -> bool) -> Result<PoolTurn<'_>> {
        Ok(self.begin(self.turns.take_unless(stop)?))
    }

    /// Waits for the turn to lead phases, or to run them alone where that is better: where the
    /// sessions that use the pool are at least half as many as the threads that one of them makes
    /// use of, `useful`. Errors: `Interrupted`.
    pub fn turn_or_alone(&self, useful: usize, interrupt: &AtomicBool) -> Result<PoolTurn<'_>> {
        let stop = || interrupt.load(Relaxed);
        let useful = match self.is_impatient() {
            true => 0,
            false => useful.min(self.threads()),
        };
        let turn = self.turns.take_or_seat(useful, stop)?;
        Ok(self.begin(turn))
    }

    /// Whether sessions use the pool or wait for it.
    pub fn is_used(&self) -> bool {
        self.turns.users() > 0
    }

    fn begin<'a>(&'a self, turn: Turn<'a>) -> PoolTurn<'a> {
        let crew = match turn.seat() {
            Some(_) => None,
            None => {
                let mut crew = lock(&self.crew);
                crew.forgive(&self.shared);
                Some(RefCell::new(crew))
            }
        };
        PoolTurn {
            pool: self,
            turn,
            crew,
            _env: FloatEnv::standard(),
        }
    }

    /// Has a test interfere from now on.
    #[cfg(test)]
    pub(super) fn set_hook(&self, hook: Option<Hook>) {
        *lock(&self.shared.hook) = hook;
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.quit.store(true, SeqCst);
        for helper in &self.shared.helpers {
            drop(lock(&helper.0.mutex));
            helper.0.woken.notify_one();
        }
        for thread in self.threads.drain(..) {
            thread.join();
        }
    }
}

impl Crew {
    /// Ranks the helpers that are not left out.
    fn rank(&mut self, shared: &Shared) {
        self.ranked.clear();
        for (i, helper) in shared.helpers.iter().enumerate() {
            let banned = self.bans[i].until.is_some();
            if !banned {
                self.ranked.push(i);
            }
            let rank = if banned { 0 } else { self.ranked.len() };
            helper.0.rank.store(rank, Relaxed);
        }
        self.banned = shared.helpers.len() - self.ranked.len();
    }

    /// Takes in again whoever was left out for long enough.
    fn forgive(&mut self, shared: &Shared) {
        if self.banned == 0 {
            return;
        }
        let now = Instant::now();
        let over = |ban: &Ban| ban.until.is_some_and(|until| until <= now);
        if self.bans.iter().any(over) {
            for ban in self.bans.iter_mut().filter(|ban| over(ban)) {
                ban.until = None;
            }
            self.rank(shared);
        }
    }

    /// Leaves the helpers out that were late, and have held a phase up for so long.
    fn ban_late(&mut self, shared: &Shared, stall: Duration) {
        let now = Instant::now();
        for ban in self.bans.iter_mut().filter(|ban| ban.late) {
            ban.late = false;
            ban.strikes = match ban.forgotten {
                Some(forgotten) if now < forgotten => (ban.strikes + 1).min(MAX_STRIKES),
                _ => 0,
            };
            let longest = LONGEST_PENALTY.max(stall * PENALTY);
            let penalty = (stall * (PENALTY << ban.strikes)).min(longest);
            ban.until = Some(now + penalty);
            ban.forgotten = Some(now + 4 * penalty);
        }
        self.rank(shared);
    }
}

impl PoolTurn<'_> {
    /// Whether another session waits for its turn.
    pub fn is_wanted(&self) -> bool {
        self.turn.is_wanted()
    }

    /// The seat of a session that runs alone, from 1 on; 0 for the leader.
    pub fn seat(&self) -> usize {
        self.turn.seat().map_or(0, |seat| seat + 1)
    }

    /// Number of threads that a phase may run on.
    pub fn threads(&self) -> usize {
        match &self.crew {
            None => 1,
            Some(_) if self.pool.is_impatient() => 1,
            Some(crew) => {
                let taken = self.pool.turns.seats_taken();
                let room = self.pool.threads().saturating_sub(taken);
                room.clamp(1, 1 + crew.borrow().ranked.len())
            }
        }
    }

    /// Runs a phase of which each thread does items that it gets from [`Worker::next`] until there
    /// are none. Returns when all items are done. `f` runs only where there are items for it, and may
    /// run several times on a thread.
    ///
    /// Errors: `Internal` with the message of a panic on any of them. Items may be left undone then.
    pub fn run(&self, work: Work, f: impl Fn(&Worker) + Sync) -> Result<()> {
        let mut shares = 1;
        if let (Some(crew), LONG_PHASE..) = (&self.crew, work.cost) {
            crew.borrow_mut().forgive(&self.pool.shared);
        }
        if work.cost >= 4 * COST_PER_SQUARE && work.items > 1 {
            shares = useful_threads_of(work.cost, self.threads().min(work.items));
        }
        let (Some(crew), 2..) = (&self.crew, shares) else {
            let worker = Worker::alone(self.index(), work.items);
            let done = catch_unwind(AssertUnwindSafe(|| f(&worker)));
            return done.or_else(|payload| panicked(&panic_text(&*payload)));
        };
        self.lead(&mut crew.borrow_mut(), work, shares, Job::new(&f))
    }

    /// [`PoolTurn::run`], range by range.
    pub fn ranges(&self, work: Work, f: impl Fn(&Worker, Range<usize>) + Sync) -> Result<()> {
        self.run(work, move |worker| {
            while let Some(range) = worker.next() {
                f(worker, range);
            }
        })
    }

    /// Of this thread.
    fn index(&self) -> usize {
        self.turn
            .seat()
            .map_or(0, |seat| self.pool.threads() + seat)
    }

    /// A phase with helpers. The job's closure lives until this returns.
    fn lead(&self, crew: &mut Crew, work: Work, shares: usize, job: Job) -> Result<()> {
        let shared = &*self.pool.shared;
        let (board, items) = (&shared.board, work.items);
        // Pieces of a share are about the same size.
        let share = items.div_ceil(shares);
        let pieces = (share + work.grain / 2) / work.grain.max(1);
        let grain = share.div_ceil(pieces.max(1));
        let phase = board.publish(items, grain, shares, job);
        let mut wakes = 2 + work.cost / COST_PER_WAKE;
        let mut awake = true;
        for &i in &crew.ranked[..shares - 1] {
            let helper = &shared.helpers[i].0;
            if helper.asleep.load(Relaxed) {
                awake = false;
                if wakes > 0 {
                    helper.wake();
                    wakes -= 1;
                }
            }
        }
        // A long phase may be longer than it should be for all threads alike, such as when weights
        // come from a disk.
        let begun = (work.cost >= LONG_PHASE).then(Instant::now);
        let worker = Worker::leader(board, phase, awake);
        // SAFETY: the closure lives.
        let mine = catch_unwind(AssertUnwindSafe(|| unsafe { job.run(&worker) }));
        if mine.is_err() {
            worker.drain();
        }
        if !worker.is_over(board) {
            let piece = Duration::from_nanos(work.cost * grain as u64 / items as u64);
            let took = begun.map_or(Duration::ZERO, |begun| begun.elapsed());
            self.wait(crew, &worker, (4 * piece).max(took));
        }
        // From here on no helper uses the job.
        let theirs = match shared.panicked.load(Relaxed) {
            true => {
                shared.panicked.store(false, Relaxed);
                lock(&shared.panic).take()
            }
            false => None,
        };
        match (mine, theirs) {
            (Err(payload), _) => panicked(&panic_text(&*payload)),
            (Ok(()), Some(message)) => panicked(&message),
            (Ok(()), None) => Ok(()),
        }
    }

    /// Waits for the pieces that helpers have taken, which may take so long.
    fn wait(&self, crew: &mut Crew, worker: &Worker, fair: Duration) {
        let shared = &*self.pool.shared;
        let board = &shared.board;
        let mut start = None;
        loop {
            for _ in 0..SPINS_PER_LOOK {
                if worker.is_over(board) {
                    return;
                }
                std::hint::spin_loop();
            }
            let start = *start.get_or_insert_with(Instant::now);
            if start.elapsed() >= shared.spin + fair {
                break;
            }
        }
        // They are late. Whoever is waited for may need this core.
        let start = Instant::now();
        let Crew { ranked, bans, .. } = &mut *crew;
        for &i in &*ranked {
            bans[i].late = shared.helpers[i].0.busy.0.load(Relaxed);
        }
        for _ in 0..YIELDS {
            std::thread::yield_now();
        }
        if !worker.is_over(board) {
            board.set_leader_sleeps(true);
            let mut guard = lock(&shared.mutex);
            while !worker.is_over(board) {
                guard = shared
                    .over
                    .wait(guard)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            drop(guard);
            board.set_leader_sleeps(false);
        }
        crew.ban_late(shared, start.elapsed());
    }
}

fn panicked(message: &str) -> Result<()> {
    fail!(Internal, "a CPU thread panicked: {message}")
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

/// The life of a helper.
fn serve(index: usize, shared: &Shared) {
    let me = &shared.helpers[index - 1].0;
    let (mut seen, mut spins) = (0, 0u32);
    // Since when there is nothing for it to do, when it has looked at the clock.
    let mut idle = None;
    loop {
        match shared.board.look(seen) {
            Some(phase) => {
                seen = phase.number;
                let rank = me.rank.load(Relaxed);
                if (1..phase.shares).contains(&rank) {
                    help(index, rank, phase, shared, me);
                    idle = None;
                }
            }
            None => std::hint::spin_loop(),
        }
        spins = spins.wrapping_add(1);
        if !spins.is_multiple_of(SPINS_PER_LOOK) {
            continue;
        }
        let since = *idle.get_or_insert_with(Instant::now);
        if me.rank.load(Relaxed) > 0 && since.elapsed() < shared.spin {
            continue;
        }
        let mut guard = lock(&me.mutex);
        me.asleep.store(true, Relaxed);
        // A leader that publishes a phase now may not see that this thread sleeps, and wakes it with
        // the next.
        if shared.board.look(seen).is_none() {
            while me.asleep.load(Relaxed) && !shared.quit.load(SeqCst) {
                guard = me.woken.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
        }
        me.asleep.store(false, Relaxed);
        drop(guard);
        if shared.quit.load(SeqCst) {
            return;
        }
        idle = None;
    }
}

/// A helper's part in a phase, if it gets one.
fn help(index: usize, rank: usize, phase: Phase, shared: &Shared, me: &Helper) {
    #[cfg(test)]
    let hook = lock(&shared.hook).clone();
    #[cfg(test)]
    if let Some(hook) = &hook {
        hook(index, Moment::Seen);
    }
    #[allow(unused_mut)]
    let mut worker = Worker::helper(index, &shared.board, phase, rank);
    #[cfg(test)]
    {
        worker.hook = hook.as_ref();
    }
    for share in 0..phase.shares {
        // From before it has a piece, lest a thread that is held up with one looks idle.
        me.busy.0.store(true, Relaxed);
        if worker.join() {
            // SAFETY: `join` has taken a piece, and only `count` below counts it as done.
            let job = || unsafe { phase.run(&worker) };
            if let Err(payload) = catch_unwind(AssertUnwindSafe(job)) {
                *lock(&shared.panic) = Some(panic_text(&*payload));
                shared.panicked.store(true, Relaxed);
            }
            // The job may be gone after this.
            if worker.count() {
                drop(lock(&shared.mutex));
                shared.over.notify_one();
            }
        }
        me.busy.0.store(false, Relaxed);
        if share == 0 && worker.is_done() {
            return;
        }
    }
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
