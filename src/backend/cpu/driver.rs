//! The thread that runs a session's started steps.

use super::runner::{Chosen, Core, lock};
use crate::backend::Step;
use crate::error::{Result, fail};
use crate::panics::catch;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, TryLockError};
use std::thread::JoinHandle;

/// A thread that runs the steps of one start after another, and sleeps in between.
pub(super) struct Driver {
    mail: Arc<Mail>,
    thread: Option<JoinHandle<()>>,
    /// The interrupt flag of the steps that were not all collected yet, and how many those are.
    in_flight: Option<(Arc<AtomicBool>, usize)>,
}

/// What goes to and from the thread.
struct Mail {
    slot: Mutex<Slot>,
    changed: Condvar,
    /// Results that lie in the slot.
    made: AtomicUsize,
}

struct Slot {
    request: Option<Request>,
    /// With room for those of the running start.
    results: VecDeque<Result<Chosen>>,
    quit: bool,
}

struct Request {
    step: Step,
    count: usize,
    /// The core has a mask for the first of them.
    masked: bool,
    interrupt: Arc<AtomicBool>,
}

impl Driver {
    pub fn new(core: Arc<Mutex<Core>>) -> Result<Driver> {
        let mail = Arc::new(Mail {
            slot: Mutex::new(Slot {
                request: None,
                results: VecDeque::new(),
                quit: false,
            }),
            changed: Condvar::new(),
            made: AtomicUsize::new(0),
        });
        let theirs = mail.clone();
        let thread = crate::threads::spawn("ember-cpu-async", move || theirs.serve(&core));
        match thread {
            Ok(thread) => Ok(Driver {
                mail,
                thread: Some(thread),
                in_flight: None,
            }),
            Err(e) => fail!(
                DeviceError,
                "a thread for started steps could not be started: {e}"
            ),
        }
    }

    /// Whether there are steps that were not collected.
    pub fn is_busy(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Starts `count` steps, the first of them with the core's mask if it is `masked`. Errors:
    /// `OutOfMemory`.
    pub fn start(
        &mut self,
        step: &Step,
        count: usize,
        masked: bool,
        interrupt: &Arc<AtomicBool>,
    ) -> Result<()> {
        let mut slot = lock(&self.mail.slot);
        slot.results.clear();
        if slot.results.try_reserve(count).is_err() {
            fail!(OutOfMemory, "room for {count} started steps");
        }
        self.mail.made.store(0, Ordering::SeqCst);
        slot.request = Some(Request {
            step: *step,
            count,
            masked,
            interrupt: interrupt.clone(),
        });
        drop(slot);
        self.mail.changed.notify_all();
        self.in_flight = Some((interrupt.clone(), count));
        Ok(())
    }

    /// The next result. Called while there are steps that were not collected.
    pub fn poll(&mut self, wait: bool) -> Result<Option<Chosen>> {
        let mut slot = if wait {
            lock(&self.mail.slot)
        } else if self.mail.made.load(Ordering::SeqCst) == 0 {
            return Ok(None);
        } else {
            match self.mail.slot.try_lock() {
                Ok(slot) => slot,
                Err(TryLockError::Poisoned(slot)) => slot.into_inner(),
                // The thread is about to let go of it.
                Err(TryLockError::WouldBlock) => return Ok(None),
            }
        };
        loop {
            if let Some(result) = slot.results.pop_front() {
                self.mail.made.fetch_sub(1, Ordering::SeqCst);
                let left = self.in_flight.as_mut().map_or(0, |(_, left)| {
                    *left -= 1;
                    *left
                });
                // The thread stops after an error.
                if left == 0 || result.is_err() {
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

impl Mail {
    fn serve(&self, core: &Mutex<Core>) {
        let mut slot = lock(&self.slot);
        while !slot.quit {
            if let Some(request) = slot.request.take() {
                drop(slot);
                self.run(core, request);
                slot = lock(&self.slot);
            } else {
                slot = self
                    .changed
                    .wait(slot)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Runs steps until one fails.
    fn run(&self, core: &Mutex<Core>, request: Request) {
        let Request {
            mut step,
            count,
            masked,
            interrupt,
        } = request;
        for i in 0..count {
            let result = if i > 0 && interrupt.load(Ordering::Relaxed) {
                interrupted(i, count)
            } else {
                catch(|| lock(core).step_prepared(&step, masked && i == 0, &interrupt))
            };
            if let Ok(chosen) = &result {
                step.token = Some(chosen.token);
                step.position += 1;
            }
            let failed = result.is_err();
            let mut slot = lock(&self.slot);
            slot.results.push_back(result);
            self.made.fetch_add(1, Ordering::SeqCst);
            drop(slot);
            self.changed.notify_all();
            if failed {
                break;
            }
        }
    }
}

fn interrupted(done: usize, count: usize) -> Result<Chosen> {
    fail!(Interrupted, "interrupted after {done} of {count} steps")
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some((interrupt, _)) = &self.in_flight {
            interrupt.store(true, Ordering::Relaxed);
        }
        lock(&self.mail.slot).quit = true;
        self.mail.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // It catches all panics of steps, so there is nothing to learn here.
            let _ = thread.join();
        }
    }
}
