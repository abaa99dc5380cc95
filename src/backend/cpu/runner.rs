//! A session's state on the CPU.

use super::driver::Driver;
use super::forward::decode;
use super::kv::KvCache;
use super::prefill::prefill;
use super::profile::Clock;
use super::weights::CpuWeights;
use crate::backend::{MaskSource, Profile, Runner, Step, Work, fill_mask};
use crate::engine::sampling::{Input, Logprobs, Scratch, TokenRules, choose};
use crate::error::{Result, fail, try_vec};
use std::any::Any;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The state of one session.
pub struct CpuRunner {
    core: Arc<Mutex<Core>>,
    /// Made by the first `step_start`.
    driver: Option<Driver>,
    /// Of the step that was returned last.
    logprobs: Option<Box<Logprobs>>,
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
    /// The tokens in the cache.
    history: Vec<u32>,
    rules: Option<Arc<TokenRules>>,
    /// The tokens that the next choice may take, a bit each, if it is masked.
    mask: Vec<u32>,
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
        self.kv.touch(self.len + tokens.len());
        let (weights, kv, logits) = (&*self.weights, &self.kv, &mut self.logits);
        let done = match tokens {
            [] => fail!(NoTokens, "no tokens to append"),
            [token] => decode(weights, kv, self.len, *token, logits, None, interrupt),
            _ => prefill(weights, kv, self.len, tokens, logits, interrupt),
        };
        if done.is_err() {
            self.keep(self.len);
        }
        done?;
        self.append(tokens);
        Ok(())
    }

    /// Forgets the positions from `len` on, and all if windows do not reach back to it any more.
    fn keep(&mut self, len: usize) {
        let kept = self.kv.kept(len);
        if kept < self.len {
            self.len = kept;
            self.has_logits = false;
        }
    }

    /// Notes that `tokens` were evaluated, and that the logits are those of the last one.
    pub fn append(&mut self, tokens: &[u32]) {
        self.history.truncate(self.len);
        // Within the capacity, so nothing is allocated.
        self.history.extend_from_slice(tokens);
        self.len += tokens.len();
        self.has_logits = true;
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

    /// The whole of a step.
    pub fn step(
        &mut self,
        step: &Step,
        mask: Option<&mut MaskSource<'_>>,
        interrupt: &AtomicBool,
    ) -> Result<Chosen> {
        self.step_with(step, interrupt, |core| core.prepare_mask(mask))
    }

    /// A step whose mask, if it is `masked`, was made by [`Core::prepare_mask`].
    pub fn step_prepared(
        &mut self,
        step: &Step,
        masked: bool,
        interrupt: &AtomicBool,
    ) -> Result<Chosen> {
        self.step_with(step, interrupt, |_| Ok(masked))
    }

    fn step_with(
        &mut self,
        step: &Step,
        interrupt: &AtomicBool,
        prepare: impl FnOnce(&mut Core) -> Result<bool>,
    ) -> Result<Chosen> {
        let before = self.len;
        if let Some(token) = step.token {
            self.extend(&[token], interrupt)?;
        }
        if !self.has_logits {
            fail!(Internal, "a step without logits to sample from");
        }
        let chosen = prepare(self).and_then(|masked| self.choose(step, None, masked));
        if chosen.is_err() && self.len > before {
            self.len = before;
            self.has_logits = false;
        }
        chosen
    }

    /// Asks for the mask of a step, if it has one.
    pub fn prepare_mask(&mut self, mask: Option<&mut MaskSource<'_>>) -> Result<bool> {
        match mask {
            Some(source) => {
                fill_mask(source, self.weights.n_vocab, &mut self.mask)?;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Chooses by the logits at hand. `token` was evaluated, but not appended yet.
    pub fn choose(&mut self, step: &Step, token: Option<u32>, masked: bool) -> Result<Chosen> {
        let settings = &step.sampling;
        self.history.truncate(self.len);
        self.history.extend(token);
        let input = Input {
            logits: &self.logits,
            history: &self.history,
            rules: self.rules.as_deref(),
            mask: masked.then_some(&self.mask),
            position: step.position,
        };
        let token = choose(&input, &mut self.scratch, settings)?;
        let logprobs = match settings.logprobs {
            0 => None,
            n => {
                let of_choice = Logprobs::of(&self.logits, token, n, &mut self.scratch)?;
                Some(Box::new(of_choice))
            }
        };
        Ok(Chosen { token, logprobs })
    }
}

/// What a step gives.
pub(super) struct Chosen {
    pub token: u32,
    pub logprobs: Option<Box<Logprobs>>,
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
        let mask = try_vec(weights.n_vocab.div_ceil(32), 0u32, "mask of a choice")?;
        let mut history = try_vec(kv.context(), 0u32, "token history")?;
        history.clear();
        let core = Core {
            weights,
            kv,
            len: 0,
            logits,
            has_logits: false,
            history,
            rules: None,
            mask,
            scratch,
        };
        Ok(CpuRunner {
            core: Arc::new(Mutex::new(core)),
            driver: None,
            logprobs: None,
        })
    }

    /// Notes what came with the token that is returned.
    pub(super) fn returned(&mut self, chosen: Chosen) -> u32 {
        self.logprobs = chosen.logprobs;
        chosen.token
    }

    fn start(
        &mut self,
        step: &Step,
        count: usize,
        masked: bool,
        interrupt: &Arc<AtomicBool>,
    ) -> Result<()> {
        let driver = match &mut self.driver {
            Some(driver) => driver,
            none => none.insert(Driver::new(self.core.clone())?),
        };
        driver.start(step, count, masked, interrupt)
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
        let len = core.len.min(len);
        core.keep(len);
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

    fn set_rules(&mut self, rules: Option<Arc<TokenRules>>) -> Result<()> {
        self.idle_core()?.rules = rules;
        Ok(())
    }

    fn step_masked(
        &mut self,
        step: &Step,
        mask: Option<&mut MaskSource<'_>>,
        interrupt: &AtomicBool,
    ) -> Result<u32> {
        let chosen = self.idle_core()?.step(step, mask, interrupt)?;
        Ok(self.returned(chosen))
    }

    fn logprobs(&self) -> Option<&Logprobs> {
        self.logprobs.as_deref()
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
        self.start(step, count, false, interrupt)
    }

    fn step_start_masked(
        &mut self,
        step: &Step,
        mask: &mut MaskSource<'_>,
        interrupt: &Arc<AtomicBool>,
    ) -> Result<()> {
        let masked = self.idle_core()?.prepare_mask(Some(mask))?;
        self.start(step, 1, masked, interrupt)
    }

    fn step_poll(&mut self, wait: bool) -> Result<Option<u32>> {
        let chosen = match &mut self.driver {
            Some(driver) if driver.is_busy() => driver.poll(wait)?,
            _ => fail!(NothingPending, "no step was started"),
        };
        Ok(chosen.map(|chosen| self.returned(chosen)))
    }

    fn fork(&mut self) -> Result<Box<dyn Runner>> {
        let core = self.idle_core()?;
        let other = CpuRunner::new(core.weights.clone(), core.kv.fork(core.len)?)?;
        let mut theirs = lock(&other.core);
        theirs.len = core.len;
        theirs.has_logits = core.has_logits;
        theirs.logits.copy_from_slice(&core.logits);
        theirs.history.extend_from_slice(&core.history[..core.len]);
        theirs.rules = core.rules.clone();
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
        core.kv.touch(core.len + 1);
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
        core.append(&[token]);
        // The time counts, not the token; what there is to say about its failure, a decode says.
        let _ = core.choose(step, None, false);
        clock.end(Work::Sample, size_of_val(core.logits.as_slice()) as u64);
        Ok(clock.profile())
    }
}
