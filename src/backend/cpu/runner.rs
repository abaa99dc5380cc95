//! A session's state on the CPU, and the thread that runs its asynchronous steps.

use super::forward::decode;
use super::kv::KvCache;
use super::prefill::prefill;
use super::weights::CpuWeights;
use crate::backend::{Runner, Step};
use crate::engine::sampling::{Scratch, choose};
use crate::error::{Result, fail, try_vec};
use crate::panics::catch;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;

/// The state of one session.
pub struct CpuRunner {
    core: Arc<Mutex<Core>>,
    /// Made by the first `step_start`.
    driver: Option<Driver>,
}

/// What a step works on.
struct Core {
    weights: Arc<CpuWeights>,
    kv: KvCache,
    /// Positions in the cache.
    len: usize,
    /// Of the last position, if `has_logits`.
    logits: Vec<f32>,
    has_logits: bool,
    scratch: Scratch,
}

impl Core {
    fn extend(&mut self, tokens: &[u32], interrupt: &AtomicBool) -> Result<()> {
        let context = self.kv.context();
        if tokens.len() > context - self.len {
            fail!(
                ContextFull,
                "{} tokens do not fit behind {} of a context of {context}",
                tokens.len(),
                self.len
            );
        }
        if let Some(bad) = tokens.iter().find(|t| **t as usize >= self.weights.n_vocab) {
            fail!(
                InvalidToken,
                "token {bad} is not below {}",
                self.weights.n_vocab
            );
        }
        let (weights, kv, logits) = (&*self.weights, &self.kv, &mut self.logits);
        match tokens {
            [] => fail!(NoTokens, "no tokens to append"),
            [token] => decode(weights, kv, self.len, *token, logits, interrupt)?,
            _ => prefill(weights, kv, self.len, tokens, logits, interrupt)?,
        }
        self.len += tokens.len();
        self.has_logits = true;
        Ok(())
    }

    fn step(&mut self, step: &Step, interrupt: &AtomicBool) -> Result<u32> {
        let before = self.len;
        if let Some(token) = step.token {
            self.extend(&[token], interrupt)?;
        }
        if !self.has_logits {
            fail!(Internal, "a step without logits to sample from");
        }
        let chosen = choose(
            &self.logits,
            &mut self.scratch,
            &step.sampling,
            step.position,
        );
        if chosen.is_err() && self.len > before {
            self.len = before;
            self.has_logits = false;
        }
        chosen
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic on the way is an `Internal` error of that step; the state is as valid as before it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CpuRunner {
    /// A session with an empty cache. Errors: `OutOfMemory`.
    pub(super) fn new(weights: Arc<CpuWeights>, kv: KvCache) -> Result<CpuRunner> {
        let logits = try_vec(weights.n_vocab, 0.0, "logits")?;
        let scratch = Scratch::new(weights.n_vocab)?;
        let core = Core {
            weights,
            kv,
            len: 0,
            logits,
            has_logits: false,
            scratch,
        };
        Ok(CpuRunner {
            core: Arc::new(Mutex::new(core)),
            driver: None,
        })
    }

    /// The core, if no step is in flight.
    fn idle_core(&self) -> Result<MutexGuard<'_, Core>> {
        if self.driver.as_ref().is_some_and(|d| d.in_flight.is_some()) {
            fail!(DecodePending, "a started step was not collected");
        }
        Ok(lock(&self.core))
    }
}

impl Runner for CpuRunner {
    fn len(&self) -> usize {
        lock(&self.core).len
    }

    fn extend(&mut self, tokens: &[u32], interrupt: &AtomicBool) -> Result<()> {
        self.idle_core()?.extend(tokens, interrupt)
    }

    fn truncate(&mut self, len: usize) {
        let mut core = lock(&self.core);
        core.len = core.len.min(len);
        core.has_logits = false;
    }

    fn has_logits(&self) -> bool {
        lock(&self.core).has_logits
    }

    fn logits(&mut self, out: &mut [f32]) -> Result<()> {
        let core = self.idle_core()?;
        if !core.has_logits {
            fail!(Internal, "there are no logits");
        }
        if out.len() != core.logits.len() {
            fail!(Internal, "{} logits into {}", core.logits.len(), out.len());
        }
        out.copy_from_slice(&core.logits);
        Ok(())
    }

    fn step(&mut self, step: &Step, interrupt: &AtomicBool) -> Result<u32> {
        self.idle_core()?.step(step, interrupt)
    }

    fn step_start(&mut self, step: &Step, interrupt: &Arc<AtomicBool>) -> Result<()> {
        drop(self.idle_core()?);
        if self.driver.is_none() {
            self.driver = Some(Driver::new(self.core.clone())?);
        }
        if let Some(driver) = &mut self.driver {
            driver.start(step, interrupt);
        }
        Ok(())
    }

    fn step_poll(&mut self, wait: bool) -> Result<Option<u32>> {
        match &mut self.driver {
            Some(driver) if driver.in_flight.is_some() => driver.poll(wait),
            _ => fail!(NothingPending, "no step was started"),
        }
    }
}

/// A thread that runs one step at a time, and sleeps in between.
struct Driver {
    mail: Arc<Mail>,
    thread: Option<JoinHandle<()>>,
    /// The interrupt flag of the step that was not collected yet.
    in_flight: Option<Arc<AtomicBool>>,
}

/// What goes to and from the thread.
struct Mail {
    slot: Mutex<Slot>,
    changed: Condvar,
    /// Set with the result.
    done: AtomicBool,
}

struct Slot {
    request: Option<(Step, Arc<AtomicBool>)>,
    result: Option<Result<u32>>,
    quit: bool,
}

impl Driver {
    fn new(core: Arc<Mutex<Core>>) -> Result<Driver> {
        let mail = Arc::new(Mail {
            slot: Mutex::new(Slot {
                request: None,
                result: None,
                quit: false,
            }),
            changed: Condvar::new(),
            done: AtomicBool::new(false),
        });
        let theirs = mail.clone();
        let thread = std::thread::Builder::new()
            .name("ember-cpu-async".to_owned())
            .spawn(move || theirs.serve(&core));
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

    fn start(&mut self, step: &Step, interrupt: &Arc<AtomicBool>) {
        self.mail.done.store(false, Ordering::SeqCst);
        lock(&self.mail.slot).request = Some((*step, interrupt.clone()));
        self.mail.changed.notify_all();
        self.in_flight = Some(interrupt.clone());
    }

    fn poll(&mut self, wait: bool) -> Result<Option<u32>> {
        let mut slot = if wait {
            lock(&self.mail.slot)
        } else if !self.mail.done.load(Ordering::SeqCst) {
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
            if let Some(result) = slot.result.take() {
                self.in_flight = None;
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
            if let Some((step, interrupt)) = slot.request.take() {
                drop(slot);
                let result = catch(|| lock(core).step(&step, &interrupt));
                drop(interrupt);
                slot = lock(&self.slot);
                slot.result = Some(result);
                self.done.store(true, Ordering::SeqCst);
                self.changed.notify_all();
            } else {
                slot = self
                    .changed
                    .wait(slot)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(interrupt) = &self.in_flight {
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
