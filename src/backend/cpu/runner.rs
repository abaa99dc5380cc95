//! A session's state on the CPU.

use super::driver::Driver;
use super::forward::decode;
use super::kv::KvCache;
use super::prefill::prefill;
use super::profile::Clock;
use super::weights::CpuWeights;
use crate::backend::{Profile, Runner, Step, Work};
use crate::engine::sampling::{Scratch, choose};
use crate::error::{Result, fail, try_vec};
use std::any::Any;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The state of one session.
pub struct CpuRunner {
    core: Arc<Mutex<Core>>,
    /// Made by the first `step_start`.
    driver: Option<Driver>,
}

/// What a step works on.
pub(super) struct Core {
    weights: Arc<CpuWeights>,
    pub kv: KvCache,
    /// Positions in the cache.
    pub len: usize,
    /// Of the last position, if `has_logits`.
    pub logits: Vec<f32>,
    pub has_logits: bool,
    pub scratch: Scratch,
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
            [token] => decode(weights, kv, self.len, *token, logits, None, interrupt)?,
            _ => prefill(weights, kv, self.len, tokens, logits, interrupt)?,
        }
        self.len += tokens.len();
        self.has_logits = true;
        Ok(())
    }

    /// Whether `step` can be done; what `step` itself would find out, before anything is done.
    pub fn check_step(&self, step: &Step, weights: &CpuWeights) -> Result<()> {
        if !std::ptr::eq(&*self.weights, weights) {
            fail!(Internal, "it has other weights");
        }
        match step.token {
            None if !self.has_logits => fail!(Internal, "a step without logits to sample from"),
            Some(_) if self.len == self.kv.context() => fail!(
                ContextFull,
                "all {} positions of the context are taken",
                self.len
            ),
            Some(token) if token as usize >= weights.n_vocab => {
                fail!(
                    InvalidToken,
                    "token {token} is not below {}",
                    weights.n_vocab
                )
            }
            _ => Ok(()),
        }
    }

    pub fn step(&mut self, step: &Step, interrupt: &AtomicBool) -> Result<u32> {
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

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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
    pub(super) fn idle_core(&self) -> Result<MutexGuard<'_, Core>> {
        if self.driver.as_ref().is_some_and(Driver::is_busy) {
            fail!(DecodePending, "a started step was not collected");
        }
        Ok(lock(&self.core))
    }
}

impl Runner for CpuRunner {
    fn as_any(&mut self) -> Option<&mut dyn Any> {
        Some(self)
    }

    fn len(&self) -> usize {
        lock(&self.core).len
    }

    fn extend(&mut self, tokens: &[u32], interrupt: &AtomicBool) -> Result<()> {
        self.idle_core()?.extend(tokens, interrupt)
    }

    fn truncate(&mut self, len: usize) -> usize {
        let mut core = lock(&self.core);
        core.len = core.len.min(len);
        core.has_logits = false;
        core.len
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
        self.steps_start(step, 1, interrupt)
    }

    fn queue_limit(&self) -> usize {
        usize::MAX
    }

    fn steps_start(
        &mut self,
        step: &Step,
        count: usize,
        interrupt: &Arc<AtomicBool>,
    ) -> Result<()> {
        drop(self.idle_core()?);
        let driver = match &mut self.driver {
            Some(driver) => driver,
            none => none.insert(Driver::new(self.core.clone())?),
        };
        driver.start(step, count, interrupt)
    }

    fn step_poll(&mut self, wait: bool) -> Result<Option<u32>> {
        match &mut self.driver {
            Some(driver) if driver.is_busy() => driver.poll(wait),
            _ => fail!(NothingPending, "no step was started"),
        }
    }

    fn fork(&mut self) -> Result<Box<dyn Runner>> {
        let core = self.idle_core()?;
        let other = CpuRunner::new(core.weights.clone(), core.kv.fork(core.len)?)?;
        let mut theirs = lock(&other.core);
        theirs.len = core.len;
        theirs.has_logits = core.has_logits;
        theirs.logits.copy_from_slice(&core.logits);
        drop(theirs);
        Ok(Box::new(other))
    }

    fn profile(&mut self, step: &Step, interrupt: &AtomicBool) -> Result<Profile> {
        let mut core = self.idle_core()?;
        let Some(token) = step.token else {
            fail!(Internal, "a profile of a step without a token");
        };
        core.check_step(step, &core.weights)?;
        let core = &mut *core;
        let clock = Clock::start();
        let logits = &mut core.logits;
        decode(
            &core.weights,
            &core.kv,
            core.len,
            token,
            logits,
            Some(&clock),
            interrupt,
        )?;
        core.len += 1;
        core.has_logits = true;
        // The time counts, not the token; what there is to say about its failure, a decode says.
        let _ = choose(logits, &mut core.scratch, &step.sampling, step.position);
        clock.end(Work::Sample, size_of_val(logits.as_slice()) as u64);
        Ok(clock.profile())
    }
}
