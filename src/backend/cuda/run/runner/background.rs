//! A prompt that is evaluated while the caller does something else.

use super::core::{Core, Extension};
use crate::backend::cuda::run::weights::Busy;
use crate::error::{Error, Result, try_vec};
use crate::panics::catch;
use crate::threads::{self, Thread};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A thread that has the core until the prompt is evaluated.
pub struct Background {
    /// Positions before the prompt.
    before: usize,
    interrupt: Arc<AtomicBool>,
    desk: Arc<Desk>,
    /// `None` once it has ended.
    thread: Option<Thread>,
}

/// Where the core is handed over.
#[derive(Default)]
struct Desk {
    slot: Mutex<Slot>,
    changed: Condvar,
}

#[derive(Default)]
struct Slot {
    /// For the thread.
    given: Option<Box<Core>>,
    /// From the thread.
    done: Option<(Box<Core>, Result<()>)>,
}

impl Desk {
    fn slot(&self) -> MutexGuard<'_, Slot> {
        // Nothing that panics runs under this mutex.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Background {
    /// Starts to evaluate `tokens`. After an error the core comes back with it.
    pub fn start(
        core: Box<Core>,
        tokens: &[u32],
        interrupt: &Arc<AtomicBool>,
        busy: Busy,
    ) -> std::result::Result<Background, (Box<Core>, Error)> {
        let before = core.len();
        let desk = Arc::new(Desk::default());
        desk.slot().given = Some(core);
        let started = (|| {
            let mut copy = try_vec(tokens.len(), 0u32, "tokens of a prompt")?;
            copy.copy_from_slice(tokens);
            let (theirs, stop) = (desk.clone(), interrupt.clone());
            threads::spawn("ember-prefill", threads::STACK_BYTES, move || {
                theirs.evaluate(&copy, &stop);
                drop(busy);
            })
        })();
        match started {
            Ok(thread) => Ok(Background {
                before,
                interrupt: interrupt.clone(),
                desk,
                thread: Some(thread),
            }),
            Err(e) => match desk.slot().given.take() {
                Some(core) => Err((core, e)),
                None => unreachable!("no thread has taken it"),
            },
        }
    }

    /// Positions before the prompt.
    pub fn before(&self) -> usize {
        self.before
    }

    /// The core and what has come of the prompt, or `None` while it is under way.
    pub fn poll(&mut self, wait: bool) -> Option<(Box<Core>, Result<()>)> {
        let mut slot = self.desk.slot();
        while wait && slot.done.is_none() {
            let changed = self.desk.changed.wait(slot);
            slot = changed.unwrap_or_else(PoisonError::into_inner);
        }
        let done = slot.done.take()?;
        drop(slot);
        // It is about to end.
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
        Some(done)
    }
}

impl Desk {
    /// What the thread does.
    fn evaluate(&self, tokens: &[u32], stop: &AtomicBool) {
        let Some(mut core) = self.slot().given.take() else {
            return;
        };
        let result = catch(|| {
            let weights = core.weights.clone();
            let _resident = weights.resident()?;
            let extension = Extension {
                is_background: true,
                ..Extension::of(tokens)
            };
            core.extend(extension, stop)
        });
        let event = core.event.clone();
        self.slot().done = Some((core, result));
        self.changed.notify_all();
        if let Some(event) = event {
            event.set();
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.interrupt.store(true, Ordering::Relaxed);
            self.poll(true);
        }
    }
}
