//! A prompt that is evaluated while the caller does something else.

use super::core::Core;
use crate::backend::cuda::weights::Busy;
use crate::error::{Error, Result, Status, try_vec};
use crate::panics::catch;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A thread that has the core until the prompt is evaluated.
pub struct Background {
    /// Positions before the prompt.
    before: usize,
    interrupt: Arc<AtomicBool>,
    /// Where the core comes back.
    done: Mutex<Receiver<(Box<Core>, Result<()>)>>,
    thread: Option<JoinHandle<()>>,
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
        let mut copy = match try_vec(tokens.len(), 0u32, "tokens of a prompt") {
            Ok(copy) => copy,
            Err(e) => return Err((core, e)),
        };
        copy.copy_from_slice(tokens);
        let (send, done) = sync_channel(1);
        let stop = interrupt.clone();
        // The core goes to the thread when there is one.
        let (give, take) = sync_channel::<Box<Core>>(1);
        let work = move || {
            let Ok(mut core) = take.recv() else { return };
            let result = catch(|| {
                let weights = core.weights.clone();
                let _resident = weights.resident()?;
                core.extend(&copy, &stop, true)
            });
            drop(busy);
            let _ = send.send((core, result));
        };
        let thread = std::thread::Builder::new()
            .name("ember-prefill".into())
            .spawn(work);
        let thread = match thread {
            Ok(thread) => thread,
            Err(e) => {
                let message = format!("a thread for a prompt could not be started: {e}");
                return Err((core, Error::new(Status::DeviceError, message)));
            }
        };
        if let Err(unsent) = give.send(core) {
            let e = Error::new(Status::Internal, "a thread for a prompt has ended early");
            return Err((unsent.0, e));
        }
        Ok(Background {
            before,
            interrupt: interrupt.clone(),
            done: Mutex::new(done),
            thread: Some(thread),
        })
    }

    /// Positions before the prompt.
    pub fn before(&self) -> usize {
        self.before
    }

    /// The core and what has come of the prompt, or `None` while it is under way.
    pub fn poll(&mut self, wait: bool) -> Option<(Box<Core>, Result<()>)> {
        let done = self.done.get_mut().unwrap_or_else(|e| e.into_inner());
        let received = match wait {
            true => done.recv().map_err(|_| TryRecvError::Disconnected),
            false => done.try_recv(),
        };
        let received = received.ok()?;
        if let Some(thread) = self.thread.take() {
            // It catches all panics, so there is nothing to learn here.
            let _ = thread.join();
        }
        Some(received)
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
