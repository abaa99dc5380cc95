//! The thread that does a session's work in the background.

use super::Want;
use crate::engine::sampling::Sampling;
use crate::error::{Error, Result, Status, fail};
use crate::panics::catch;
use crate::threads::event::Event;
use crate::threads::{self, Placement, Thread};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};

/// What a session's work is done with, by one thread at a time.
pub(super) trait Driven: Send + 'static {
    /// What work has come to.
    type Done: Send;

    /// The tokens of started work. Kept for its capacity.
    fn started(&mut self) -> &mut Vec<u32>;

    /// Its work looks for interrupts by itself.
    fn answers_interrupts(&self) -> bool {
        false
    }

    /// Appends tokens, for the logits of the last one.
    fn evaluate(&mut self, tokens: &[u32], interrupt: &Arc<AtomicBool>) -> Result<Self::Done>;

    /// Appends tokens and chooses the next one, by the mask that was made if it is `masked`.
    fn choose_next(
        &mut self,
        tokens: &[u32],
        sampling: &Sampling,
        masked: bool,
        interrupt: &Arc<AtomicBool>,
    ) -> Result<(Self::Done, u32)>;

    /// Appends tokens, of which the last `drafts` are guesses, and chooses as [`Want::Verified`] says.
    fn verify_drafts(
        &mut self,
        tokens: (&[u32], usize),
        sampling: &Sampling,
        interrupt: &Arc<AtomicBool>,
        outcomes: &mut VecDeque<Result<Self::Done>>,
    ) -> Result<()>;
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic on the way is an `Internal` error of that work; the state is as valid as before it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread that does one job after another, and sleeps in between.
pub(super) struct Driver<C: Driven> {
    mail: Arc<Mail<C>>,
    thread: Option<Thread>,
    /// The interrupt flag of the job whose outcomes were not all collected yet.
    in_flight: Option<Arc<AtomicBool>>,
    /// The event of that job.
    event: Option<Arc<Event>>,
}

/// `DecodePending` while work that was started is not collected.
pub(super) fn check_idle<C: Driven>(
    ready: &VecDeque<Result<C::Done>>,
    driver: &Option<Driver<C>>,
) -> Result<()> {
    if driver.as_ref().is_some_and(Driver::is_busy) || !ready.is_empty() {
        fail!(DecodePending, "started work was not collected");
    }
    Ok(())
}

/// Starts work of a session in the background: these tokens, which its core keeps, and what is wanted of them. The first
/// work makes the driver.
///
/// Errors: `OutOfMemory`.
pub(super) fn start_work<C: Driven>(
    driver: &mut Option<Driver<C>>,
    core: &Arc<Mutex<C>>,
    (tokens, job): (&[u32], Job),
    placement: &Placement,
    (interrupt, event): (&Arc<AtomicBool>, Option<&Arc<Event>>),
) -> Result<()> {
    let mut guard = lock(core);
    let started = guard.started();
    started.clear();
    if started.try_reserve(tokens.len()).is_err() {
        fail!(OutOfMemory, "room for {} started tokens", tokens.len());
    }
    started.extend_from_slice(tokens);
    drop(guard);
    let driver = match driver {
        Some(driver) => driver,
        none => none.insert(Driver::new(core.clone(), placement)?),
    };
    driver.start(job, interrupt, event)
}

/// What a poll of a session is to return: the next of the outcomes that are there already, or of the work in the
/// background; nothing if that is not done yet. After an error the others are dropped.
pub(super) fn next_done<C: Driven>(
    ready: &mut VecDeque<Result<C::Done>>,
    driver: &mut Option<Driver<C>>,
    wait: bool,
) -> Result<Option<C::Done>> {
    match ready.pop_front() {
        Some(done) => {
            if done.is_err() {
                ready.clear();
            }
            done.map(Some)
        }
        None => match driver {
            Some(driver) if driver.is_busy() => driver.poll(wait),
            _ => fail!(NothingPending, "no work was started"),
        },
    }
}

/// What goes to and from the thread. When it has set the event of the last result, it does not take the slot again, so that a poll that follows
/// the event finds it free.
struct Mail<C: Driven> {
    orders: Mutex<Orders>,
    ordered: Condvar,
    slot: Mutex<Slot<C::Done>>,
    changed: Condvar,
    /// Results that lie in the slot.
    made: AtomicUsize,
}

#[derive(Default)]
struct Orders {
    request: Option<Request>,
    quit: bool,
}

struct Slot<D> {
    /// With room for those of the running job.
    results: VecDeque<Result<D>>,
    /// Whether the last of them was made.
    ended: bool,
    /// Set with each of them.
    event: Option<Arc<Event>>,
}

/// Work in the background: the tokens that the core has as `started`, and what is wanted of them.
pub(super) struct Job {
    pub want: Want,
    /// The core has a mask for the choice.
    pub masked: bool,
}

impl Job {
    /// How many outcomes it has.
    fn count(&self) -> usize {
        match self.want {
            Want::Logits | Want::Evaluated | Want::Drafted { .. } => 1,
            Want::Choices { count, .. } => count,
            Want::Verified { drafts, .. } => drafts + 1,
        }
    }
}

struct Request {
    job: Job,
    interrupt: Arc<AtomicBool>,
}

impl<C: Driven> Driver<C> {
    pub fn new(core: Arc<Mutex<C>>, placement: &Placement) -> Result<Driver<C>> {
        let mail = Arc::new(Mail::<C> {
            orders: Mutex::default(),
            ordered: Condvar::new(),
            slot: Mutex::new(Slot {
                results: VecDeque::new(),
                ended: true,
                event: None,
            }),
            changed: Condvar::new(),
            made: AtomicUsize::new(0),
        });
        let theirs = mail.clone();
        let serve = move || theirs.serve(&core);
        let thread = threads::spawn_placed("ember-async", threads::STACK_BYTES, placement, serve)?;
        Ok(Driver {
            mail,
            thread: Some(thread),
            in_flight: None,
            event: None,
        })
    }

    /// Whether there are outcomes that were not collected.
    pub fn is_busy(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Starts a job, each of whose outcomes sets `event`. Errors: `OutOfMemory`.
    pub fn start(
        &mut self,
        job: Job,
        interrupt: &Arc<AtomicBool>,
        event: Option<&Arc<Event>>,
    ) -> Result<()> {
        let count = job.count();
        let mut slot = lock(&self.mail.slot);
        slot.results.clear();
        slot.ended = false;
        if slot.results.try_reserve(count).is_err() {
            fail!(OutOfMemory, "room for {count} outcomes");
        }
        self.mail.made.store(0, Ordering::SeqCst);
        slot.event = event.cloned();
        self.event = event.cloned();
        drop(slot);
        lock(&self.mail.orders).request = Some(Request {
            job,
            interrupt: interrupt.clone(),
        });
        self.mail.ordered.notify_one();
        self.in_flight = Some(interrupt.clone());
        Ok(())
    }

    /// The next outcome. Called while there are some that were not collected.
    pub fn poll(&mut self, wait: bool) -> Result<Option<C::Done>> {
        let mut slot = if wait {
            lock(&self.mail.slot)
        } else if self.mail.made.load(Ordering::SeqCst) == 0 {
            return Ok(None);
        } else {
            match self.mail.slot.try_lock() {
                Ok(slot) => slot,
                Err(TryLockError::Poisoned(slot)) => slot.into_inner(),
                // The thread puts another result there. Whoever waits for the event is to poll again for the first one.
                Err(TryLockError::WouldBlock) => {
                    if let Some(event) = &self.event {
                        event.set();
                    }
                    return Ok(None);
                }
            }
        };
        loop {
            if let Some(result) = slot.results.pop_front() {
                self.mail.made.fetch_sub(1, Ordering::SeqCst);
                // The thread stops after an error.
                if slot.ended && slot.results.is_empty() || result.is_err() {
                    self.in_flight = None;
                }
                return result.map(Some);
            }
            if !wait {
                return Ok(None);
            }
            slot = self
                .mail
                .changed
                .wait(slot)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<C: Driven> Mail<C> {
    fn serve(&self, core: &Mutex<C>) {
        let mut orders = lock(&self.orders);
        while !orders.quit {
            if let Some(request) = orders.request.take() {
                drop(orders);
                self.run(core, request);
                orders = lock(&self.orders);
            } else {
                orders = self
                    .ordered
                    .wait(orders)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Does a job until part of it fails.
    fn run(&self, core: &Mutex<C>, request: Request) {
        let Request { job, interrupt } = request;
        let sampling = match job.want {
            Want::Logits => {
                let result = catch(|| with_started(core, |core, t| core.evaluate(t, &interrupt)));
                self.post(result, true);
                return;
            }
            Want::Choices { sampling, .. } => sampling,
            Want::Evaluated | Want::Drafted { .. } => {
                let refused = Error::new(Status::Internal, "such work is done at once");
                self.post(Err(refused), true);
                return;
            }
            Want::Verified { drafts, sampling } => {
                let mut outcomes = VecDeque::new();
                let verify = |core: &mut C, tokens: &[u32]| {
                    core.verify_drafts((tokens, drafts), &sampling, &interrupt, &mut outcomes)
                };
                if let Err(e) = catch(|| with_started(core, verify)) {
                    outcomes.clear();
                    outcomes.push_back(Err(e));
                }
                self.post_all(outcomes);
                return;
            }
        };
        let count = job.count();
        let mut last = None;
        for i in 0..count {
            let masked = job.masked && i == 0;
            let is_over = i > 0 && interrupt.load(Ordering::Relaxed);
            let result = if is_over && !lock(core).answers_interrupts() {
                interrupted(i, count)
            } else {
                let step = |core: &mut C, tokens: &[u32]| {
                    core.choose_next(tokens, &sampling, masked, &interrupt)
                };
                catch(|| match last {
                    None => with_started(core, step),
                    Some(token) => step(&mut lock(core), &[token]),
                })
            };
            last = result.as_ref().ok().map(|(_, token)| *token);
            let failed = result.is_err();
            self.post(result.map(|(done, _)| done), failed || i + 1 == count);
            if failed {
                break;
            }
        }
    }

    /// Hands over a result, and says whether it is the last one.
    fn post(&self, result: Result<C::Done>, is_last: bool) {
        let slot = lock(&self.slot);
        self.hand_over(slot, [result], is_last);
    }

    /// Hands over all results of a job.
    fn post_all(&self, results: VecDeque<Result<C::Done>>) {
        let slot = lock(&self.slot);
        self.hand_over(slot, results, true);
    }

    fn hand_over(
        &self,
        mut slot: MutexGuard<'_, Slot<C::Done>>,
        results: impl IntoIterator<Item = Result<C::Done>>,
        is_last: bool,
    ) {
        for result in results {
            // There is room for it.
            slot.results.push_back(result);
            self.made.fetch_add(1, Ordering::SeqCst);
        }
        slot.ended = is_last;
        let event = slot.event.clone();
        drop(slot);
        self.changed.notify_all();
        if let Some(event) = event {
            event.set();
        }
    }
}

/// Does something with the tokens of started work.
fn with_started<C: Driven, T>(core: &Mutex<C>, f: impl FnOnce(&mut C, &[u32]) -> T) -> T {
    let mut core = lock(core);
    let tokens = std::mem::take(core.started());
    let result = f(&mut core, &tokens);
    *core.started() = tokens;
    result
}

fn interrupted<T>(done: usize, count: usize) -> Result<T> {
    fail!(Interrupted, "interrupted after {done} of {count} choices")
}

impl<C: Driven> Driver<C> {
    /// Has the thread end soon, and the job with it. Dropping the thread waits for that.
    pub fn retire(&mut self) -> Option<Thread> {
        if let Some(interrupt) = self.in_flight.take() {
            interrupt.store(true, Ordering::Relaxed);
        }
        lock(&self.mail.orders).quit = true;
        self.mail.ordered.notify_one();
        self.thread.take()
    }
}

impl<C: Driven> Drop for Driver<C> {
    fn drop(&mut self) {
        drop(self.retire());
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// Work that is done as soon as it is asked for.
    #[derive(Default)]
    struct Core(Vec<u32>);

    impl Driven for Core {
        type Done = ();

        fn started(&mut self) -> &mut Vec<u32> {
            &mut self.0
        }

        fn evaluate(&mut self, _: &[u32], _: &Arc<AtomicBool>) -> Result<()> {
            Ok(())
        }

        fn choose_next(
            &mut self,
            _: &[u32],
            _: &Sampling,
            _: bool,
            _: &Arc<AtomicBool>,
        ) -> Result<((), u32)> {
            fail!(Internal, "not asked for")
        }

        fn verify_drafts(
            &mut self,
            _: (&[u32], usize),
            _: &Sampling,
            _: &Arc<AtomicBool>,
            _: &mut VecDeque<Result<()>>,
        ) -> Result<()> {
            fail!(Internal, "not asked for")
        }
    }

    /// A poll that meets the thread at the slot finds nothing, and perhaps no other outcome sets the event again.
    #[test]
    fn a_poll_that_finds_the_slot_taken_sets_the_event() {
        let core = Arc::new(Mutex::new(Core::default()));
        let placement = Placement::default();
        let mut driver = Driver::new(core, &placement).unwrap();
        let event = Arc::new(Event::new().unwrap());
        let job = Job {
            want: Want::Logits,
            masked: false,
        };
        driver.start(job, &Arc::default(), Some(&event)).unwrap();
        while !event.is_set() {
            std::thread::yield_now();
        }
        event.clear();
        let mail = driver.mail.clone();
        let taken = lock(&mail.slot);
        assert!(driver.poll(false).unwrap().is_none());
        assert!(event.is_set());
        drop(taken);
        while driver.poll(false).unwrap().is_none() {
            assert!(event.is_set());
        }
        assert!(!driver.is_busy());
    }

    /// Whoever polls when the event is set finds the outcome, whatever the thread does then.
    #[test]
    fn a_poll_behind_the_event_finds_the_outcome() {
        let core = Arc::new(Mutex::new(Core::default()));
        let mut driver = Driver::new(core, &Placement::default()).unwrap();
        let event = Arc::new(Event::new().unwrap());
        for round in 0..20_000 {
            let job = Job {
                want: Want::Logits,
                masked: false,
            };
            driver.start(job, &Arc::default(), Some(&event)).unwrap();
            while !event.is_set() {
                std::hint::spin_loop();
            }
            event.clear();
            assert!(driver.poll(false).unwrap().is_some(), "round {round}");
        }
    }
}
