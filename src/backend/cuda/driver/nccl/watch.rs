//! A thread that aborts communicators whose work does not end: what waits on a device for a rank waits for ever.

use super::communicator::{Abort, Communicator, late};
use crate::backend::Ranks;
use crate::backend::group::Meeting;
use crate::error::{Error, Result, fail};
use crate::threads::{self, STACK_BYTES, Thread};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// While work is under way, ranks of other processes are asked for in between.
const ASK: Duration = Duration::from_millis(50);

/// Watches the work of the ranks that a process has.
pub struct Watch {
    shared: Arc<Shared>,
    thread: Option<Thread>,
}

struct Shared {
    communicators: Vec<Arc<Communicator>>,
    patience: Duration,
    /// What the ranks are of.
    what: &'static str,
    /// Where ranks of other processes are heard of.
    meeting: Option<Arc<Meeting>>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// When work that is under way has to be over.
    deadline: Option<Instant>,
    /// The thread waits until it is told of work.
    is_idle: bool,
    is_over: bool,
    /// One has failed.
    has_failed: bool,
}

impl Abort for Shared {
    fn abort_soon(&self) {
        self.lock().has_failed = true;
        self.changed.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self) {
        let mut state = self.lock();
        loop {
            if state.is_over {
                return;
            }
            let now = Instant::now();
            let left = match state.has_failed {
                true => Some(Duration::ZERO),
                false => state
                    .deadline
                    .map(|deadline| deadline.saturating_duration_since(now)),
            };
            state = match left {
                None => {
                    state.is_idle = true;
                    self.changed
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner)
                }
                Some(Duration::ZERO) => {
                    drop(state);
                    let failed = self.communicators.iter().find_map(|c| c.check().err());
                    let message = match failed {
                        Some(e) => e.message,
                        None => late(self.what, self.patience),
                    };
                    // All but the last one end at once, and what waits for any of them ends with it.
                    self.communicators.iter().for_each(|c| c.abort(&message));
                    return;
                }
                // Work that has begun behind it has a later deadline, of which nobody has told.
                Some(left) => {
                    let most = self.meeting.as_ref().map_or(left, |_| ASK.min(left));
                    let waited = self.changed.wait_timeout(state, most);
                    let state = waited.unwrap_or_else(PoisonError::into_inner).0;
                    match (&self.meeting, state.deadline) {
                        (Some(meeting), Some(_)) => {
                            drop(state);
                            if let Err(e) = meeting.check() {
                                self.communicators.iter().for_each(|c| c.fail(&e));
                            }
                            self.lock()
                        }
                        _ => state,
                    }
                }
            };
        }
    }
}

impl Watch {
    /// Begins to watch.
    ///
    /// Errors: `OutOfMemory` if the system starts no thread.
    pub fn new(
        communicators: Vec<Arc<Communicator>>,
        patience: Duration,
        what: &'static str,
    ) -> Result<Watch> {
        Watch::among(communicators, (patience, what), None)
    }

    /// The same, with ranks of other processes.
    pub fn among(
        communicators: Vec<Arc<Communicator>>,
        (patience, what): (Duration, &'static str),
        meeting: Option<Arc<Meeting>>,
    ) -> Result<Watch> {
        let shared = Arc::new(Shared {
            communicators,
            patience,
            what,
            meeting,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        for communicator in &shared.communicators {
            let watch: Weak<dyn Abort> = Arc::downgrade(&shared) as _;
            communicator.set_watch(watch);
        }
        let theirs = shared.clone();
        let thread = threads::spawn("ember-watch", STACK_BYTES, move || theirs.watch())?;
        Ok(Watch {
            shared,
            thread: Some(thread),
        })
    }

    /// The work is not to go on, for this reason.
    pub fn fail(&self, e: &Error) {
        self.shared.communicators.iter().for_each(|c| c.fail(e));
    }
}

impl Ranks for Watch {
    fn begin(&self) -> Result<()> {
        self.check()?;
        let Some(deadline) = Instant::now().checked_add(self.shared.patience) else {
            fail!(Internal, "a deadline in no time");
        };
        let mut state = self.shared.lock();
        state.deadline = Some(deadline);
        if std::mem::take(&mut state.is_idle) {
            self.shared.changed.notify_one();
        }
        Ok(())
    }

    fn end(&self) {
        self.shared.lock().deadline = None;
    }

    fn check(&self) -> Result<()> {
        self.shared.communicators.iter().try_for_each(|c| c.check())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}
