//! A small backend for tests of the layers above: logits are a hash of the context, and the switches
//! in `Knobs` make it slow, or fail.

use super::sampling::{Input, Logprobs, Sampling, Scratch, TokenRules, choose, philox4x32};
use crate::backend::row::discard;
use crate::backend::{
    KvType, Mark, Outcome, Profile, Row, RowError, RowResult, Runner, RunnerOptions, StateInfo,
    StateSink, StateSource, Want, Weights, When, Work, fill_mask,
};
use crate::error::{Result, fail};
use crate::model::KvShape;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Number of token ids.
pub(crate) const N_VOCAB: usize = 50;

/// What a test can switch on.
#[derive(Default)]
pub(crate) struct Knobs {
    /// Positions wait here until it is released.
    pub(crate) hold: AtomicBool,
    /// The next evaluation panics.
    pub(crate) panic: AtomicBool,
    /// If not 0, `hold` is switched on after so many more positions.
    pub(crate) hold_after: AtomicU64,
    /// A position has come to wait.
    pub(crate) waiting: AtomicBool,
    /// Runners and forks are refused.
    pub(crate) refuse: AtomicBool,
    /// Logits are NaN.
    pub(crate) nan: AtomicBool,
    /// Positions evaluated so far, by all runners.
    pub(crate) evaluated: AtomicU64,
    /// Threads of started steps that have not ended.
    pub(crate) running: AtomicU64,
}

/// The fake weights.
pub(crate) struct FakeWeights(pub(crate) Arc<Knobs>);

impl Weights for FakeWeights {
    fn create_runner(self: Arc<Self>, options: &RunnerOptions) -> Result<Box<dyn Runner>> {
        if options.context > 1 << 20 {
            fail!(OutOfMemory, "KV cache");
        }
        if self.0.refuse.load(Ordering::Relaxed) {
            fail!(OutOfMemory, "no more runners");
        }
        Ok(Box::new(FakeRunner {
            state: Arc::new(Mutex::new(State {
                tokens: Vec::new(),
                has_logits: false,
                rules: None,
                logprobs: None,
                knobs: self.0.clone(),
            })),
            started: None,
            ready: VecDeque::new(),
            logprobs: None,
        }))
    }

    fn resident_bytes(&self) -> u64 {
        0
    }

    fn kv_bytes_per_token(&self, kv_type: KvType) -> u64 {
        match kv_type {
            KvType::F16 => 2,
            KvType::F32 => 4,
            KvType::Q8_0 => 1,
        }
    }

    fn kv_layers(&self) -> &[KvShape] {
        &[]
    }

    fn takes_kv_type(&self, _: KvType) -> bool {
        true
    }

    fn max_drafts(&self) -> usize {
        crate::backend::MAX_DRAFTS
    }

    fn drafts_in_batches(&self) -> bool {
        true
    }

    fn submit(&self, rows: &mut [Row<'_>], when: When) -> RowResult<()> {
        submit_all(rows, when).inspect_err(|_| discard(rows))
    }
}

fn submit_all(rows: &mut [Row<'_>], when: When) -> RowResult<()> {
    for (i, row) in rows.iter_mut().enumerate() {
        row.check().map_err(|e| RowError::of(i, e))?;
        let (tokens, want, interrupt) = (row.tokens, row.want, row.interrupt);
        if let Want::Verified { drafts, sampling } = want {
            let mask = row.mask.take();
            let runner = row.runner.as_any().and_then(|r| r.downcast_mut());
            let runner: &mut FakeRunner = runner.expect("one of ours");
            let verified = runner.verify(tokens, drafts, &sampling, mask, interrupt);
            verified.map_err(|e| RowError::of(i, e))?;
            continue;
        }
        let mask = row.mask.take().map(masked).transpose();
        let mask = mask.map_err(|e| RowError::of(i, e))?;
        let runner = row.runner.as_any().and_then(|r| r.downcast_mut());
        let runner: &mut FakeRunner = runner.expect("one of ours");
        assert!(runner.started.is_none() && runner.ready.is_empty());
        let submitted = runner.submit(tokens, want, mask, interrupt, when);
        submitted.map_err(|e| RowError::of(i, e))?;
    }
    Ok(())
}

#[derive(Clone)]
struct State {
    tokens: Vec<u32>,
    has_logits: bool,
    rules: Option<Arc<TokenRules>>,
    /// Of the last step.
    logprobs: Option<Logprobs>,
    knobs: Arc<Knobs>,
}

impl State {
    fn extend(&mut self, tokens: &[u32], interrupt: &AtomicBool) -> Result<()> {
        let before = self.tokens.len();
        for token in tokens {
            loop {
                if interrupt.load(Ordering::Relaxed) {
                    self.tokens.truncate(before);
                    self.has_logits = false;
                    fail!(Interrupted, "interrupted");
                }
                if !self.knobs.hold.load(Ordering::Relaxed) {
                    break;
                }
                self.knobs.waiting.store(true, Ordering::Relaxed);
                std::thread::yield_now();
            }
            if self.knobs.hold_after.load(Ordering::Relaxed) > 0
                && self.knobs.hold_after.fetch_sub(1, Ordering::Relaxed) == 1
            {
                self.knobs.hold.store(true, Ordering::Relaxed);
            }
            assert!(!self.knobs.panic.swap(false, Ordering::Relaxed), "a bug");
            self.knobs.evaluated.fetch_add(1, Ordering::Relaxed);
            self.tokens.push(*token);
        }
        self.has_logits = true;
        Ok(())
    }

    fn logits(&self) -> Vec<f32> {
        assert!(self.has_logits);
        let hash = self.tokens.iter().fold([1u32; 4], |hash, &token| {
            philox4x32([hash[0], hash[1], hash[2], token], [3, 4])
        });
        let nan = self.knobs.nan.load(Ordering::Relaxed);
        (0..N_VOCAB as u32)
            .map(|id| match nan {
                true => f32::NAN,
                false => (philox4x32(hash, [id, 0])[0] % 1000) as f32 / 100.0,
            })
            .collect()
    }

    fn step(
        &mut self,
        tokens: &[u32],
        sampling: &Sampling,
        mask: Option<&[u32]>,
        interrupt: &AtomicBool,
    ) -> Result<u32> {
        let before = self.tokens.len();
        let chosen = self.try_step(tokens, sampling, mask, interrupt);
        if chosen.is_err() && self.tokens.len() > before {
            self.tokens.truncate(before);
            self.has_logits = false;
        }
        chosen
    }

    fn try_step(
        &mut self,
        tokens: &[u32],
        sampling: &Sampling,
        mask: Option<&[u32]>,
        interrupt: &AtomicBool,
    ) -> Result<u32> {
        if !tokens.is_empty() {
            self.extend(tokens, interrupt)?;
        }
        let mut scratch = Scratch::new(N_VOCAB)?;
        let logits = self.logits();
        let input = Input {
            logits: &logits,
            history: &self.tokens,
            rules: self.rules.as_deref(),
            mask,
            position: self.tokens.len() as u64,
        };
        let token = choose(&input, &mut scratch, sampling)?;
        self.logprobs = match sampling.logprobs {
            0 => None,
            n => Some(Logprobs::of(&logits, token, n, &mut scratch)?),
        };
        Ok(token)
    }
}

struct FakeRunner {
    state: Arc<Mutex<State>>,
    started: Option<JoinHandle<Result<Outcome>>>,
    ready: VecDeque<Outcome>,
    /// Of the token that was returned last.
    logprobs: Option<Logprobs>,
}

impl FakeRunner {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        assert!(self.started.is_none(), "called while a step is started");
        self.state.lock().unwrap()
    }

    /// The choices, one step after another.
    fn verify(
        &mut self,
        tokens: &[u32],
        drafts: usize,
        sampling: &Sampling,
        mut mask: Option<&mut crate::backend::MaskSource<'_>>,
        interrupt: &AtomicBool,
    ) -> Result<()> {
        let (known, drafts) = tokens.split_at(tokens.len() - drafts);
        let knobs = self.state().knobs.clone();
        // The state is not locked, and so is not lost.
        assert!(!knobs.panic.swap(false, Ordering::Relaxed), "a bug");
        let mut state = self.state.lock().unwrap();
        let mut next = known.to_vec();
        for draft in drafts.iter().map(Some).chain([None]) {
            let words = match &mut mask {
                Some(source) => Some(masked(source)?),
                None => None,
            };
            let token = state.step(&next, sampling, words.as_deref(), interrupt)?;
            self.ready.push_back(Outcome::Token(token));
            if draft != Some(&token) {
                break;
            }
            next = vec![token];
        }
        Ok(())
    }

    fn submit(
        &mut self,
        tokens: &[u32],
        want: Want,
        mask: Option<Vec<u32>>,
        interrupt: &Arc<AtomicBool>,
        when: When,
    ) -> Result<()> {
        let (state, interrupt, tokens) = (self.state.clone(), interrupt.clone(), tokens.to_vec());
        let knobs = state.lock().unwrap().knobs.clone();
        let work = move || {
            let mut state = state.lock().unwrap();
            match want {
                Want::Verified { .. } | Want::Drafted { .. } => {
                    fail!(Internal, "drafts are verified at once")
                }
                Want::Logits => state.extend(&tokens, &interrupt).map(|()| Outcome::Logits),
                Want::Evaluated => state
                    .extend(&tokens, &interrupt)
                    .map(|()| Outcome::Evaluated),
                Want::Choices { sampling, .. } => state
                    .step(&tokens, &sampling, mask.as_deref(), &interrupt)
                    .map(Outcome::Token),
            }
        };
        match when {
            When::Now => {
                self.ready.push_back(work()?);
                self.logprobs = self.state.lock().unwrap().logprobs.clone();
            }
            When::Background => {
                knobs.running.fetch_add(1, Ordering::SeqCst);
                self.started = Some(std::thread::spawn(move || {
                    let result = work();
                    knobs.running.fetch_sub(1, Ordering::SeqCst);
                    result
                }));
            }
        }
        Ok(())
    }
}

fn masked(source: &mut crate::backend::MaskSource<'_>) -> Result<Vec<u32>> {
    let mut words = vec![0; N_VOCAB.div_ceil(32)];
    fill_mask(source, N_VOCAB, &mut words)?;
    Ok(words)
}

impl Runner for FakeRunner {
    fn as_any(&mut self) -> Option<&mut dyn std::any::Any> {
        Some(self)
    }

    fn len(&self) -> usize {
        self.state().tokens.len()
    }

    fn poll(&mut self, wait: bool) -> Result<Option<Outcome>> {
        if let Some(outcome) = self.ready.pop_front() {
            return Ok(Some(outcome));
        }
        if self.started.is_none() {
            fail!(NothingPending, "no work was started");
        }
        match self.started.take() {
            Some(thread) if wait || thread.is_finished() => {
                let outcome = thread.join().unwrap()?;
                self.logprobs = self.state.lock().unwrap().logprobs.clone();
                Ok(Some(outcome))
            }
            running => {
                self.started = running;
                Ok(None)
            }
        }
    }

    fn progress(&self) -> usize {
        0
    }

    fn has_logits(&self) -> bool {
        self.state().has_logits
    }

    fn logits(&mut self, out: &mut [f32]) -> Result<()> {
        out.copy_from_slice(&self.state().logits());
        Ok(())
    }

    fn logprobs(&self) -> Option<&Logprobs> {
        self.logprobs.as_ref()
    }

    fn set_rules(&mut self, rules: Option<Arc<TokenRules>>) -> Result<()> {
        self.state().rules = rules;
        Ok(())
    }

    fn mark_before(&self, position: usize) -> Mark {
        Mark::for_tests(position.min(self.len()))
    }

    fn rollback(&mut self, mark: Mark) {
        let mut state = self.state();
        if mark.position() < state.tokens.len() {
            state.tokens.truncate(mark.position());
            state.has_logits = false;
        }
    }

    /// Its tokens are its state, so there is nothing to write.
    fn save(&mut self, sink: &mut dyn StateSink) -> Result<()> {
        sink.begin(&StateInfo {
            kv_type: KvType::F16,
            len: self.len(),
            has_logits: false,
            windows: Vec::new(),
        })
    }

    fn load(&mut self, _: &StateInfo, tokens: &[u32], _: &mut dyn StateSource) -> Result<()> {
        self.state().tokens = tokens.to_vec();
        Ok(())
    }

    fn fork(&mut self) -> Result<Box<dyn Runner>> {
        let state = self.state().clone();
        if state.knobs.refuse.load(Ordering::Relaxed) {
            fail!(OutOfMemory, "no more runners");
        }
        Ok(Box::new(FakeRunner {
            state: Arc::new(Mutex::new(state)),
            started: None,
            ready: VecDeque::new(),
            logprobs: None,
        }))
    }

    fn profile(&mut self, token: u32, _: &Sampling, interrupt: &AtomicBool) -> Result<Profile> {
        self.state().extend(&[token], interrupt)?;
        let mut profile = Profile::default();
        profile.add(Work::Head, 1.0, 4);
        Ok(profile)
    }
}
