//! A session on the CPU: its state, and the work that is done with it.

use super::estimate::session_bytes;
use super::forward::{Context, decode, step};
use super::kv::{KvCache, MAX_CHUNK};
use super::prefill::prefill;
use super::profile::Clock;
use super::verify::RowLogits;
use super::weights::CpuWeights;
use crate::backend::driver::{Driven, Driver, Job, check_idle, next_done, start_work};
use crate::backend::row::{Front, RowWork};
use crate::backend::state::StateLayout;
use crate::backend::{
    HiddenStates, Mark, MaskSource, Outcome, Profile, Residual, Runner, StateInfo, StateSink,
    StateSource, StatesFrom, TokenInput, Want, Weights, When, Work, fill_mask,
};
use crate::engine::sampling::{
    Input, LogprobBoxes, Logprobs, Sampling, Scratch, TokenRules, choose,
};
use crate::error::{Result, fail, try_vec};
use crate::memory::Charge;
use crate::model::AdapterSet;
use crate::threads::Thread;
use crate::threads::event::Event;
use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The state of one session.
pub struct CpuRunner {
    weights: Arc<CpuWeights>,
    core: Arc<Mutex<Core>>,
    /// Positions evaluated by now.
    progress: Arc<AtomicUsize>,
    /// Made by the first work in the background.
    driver: Option<Driver<Core>>,
    /// Outcomes of work that the caller waited for, not yet collected.
    ready: VecDeque<Result<Done>>,
    /// Set by outcomes of work in the background.
    event: Option<Arc<Event>>,
    /// Of the choice that was returned last.
    logprobs: Option<Box<Logprobs>>,
    /// The core's.
    logprob_boxes: LogprobBoxes,
}

/// What work has come to.
pub(super) enum Done {
    Logits,
    Evaluated,
    Token(Chosen),
}

/// A chosen token, and what there is to say about it.
pub(super) struct Chosen {
    pub token: u32,
    pub logprobs: Option<Box<Logprobs>>,
}

/// What a session's work is done with.
pub(super) struct Core {
    pub weights: Arc<CpuWeights>,
    pub kv: KvCache,
    /// Positions in the cache.
    pub len: usize,
    /// Of the last position, if `has_logits`.
    pub logits: Vec<f32>,
    pub has_logits: bool,
    /// Of a last part of a network: those of the drafts of the last row that were right.
    pub rows: RowLogits,
    /// The tokens in the cache.
    history: Vec<u32>,
    rules: Option<Arc<TokenRules>>,
    /// What is added to products.
    pub adapters: Option<Arc<AdapterSet>>,
    /// Where the hidden states of its positions go.
    pub states: Option<Arc<HiddenStates>>,
    /// The index of a draw, less the position of its token.
    draw_offset: usize,
    /// The tokens that the next choice may take, a bit each, if it is masked.
    mask: Vec<u32>,
    scratch: Scratch,
    logprob_boxes: LogprobBoxes,
    /// Tokens of started work. Kept for its capacity.
    pub started: Vec<u32>,
    /// Positions evaluated by now, for other threads.
    progress: Arc<AtomicUsize>,
    /// For its memory beside the cache.
    _charge: Charge,
}

impl Core {
    /// Appends `tokens` and evaluates them, one at least, with the residual stream at the ends of the layers where that is
    /// another's. There are logits afterwards if they are wanted and the layers end the network.
    pub fn extend(
        &mut self,
        tokens: &[u32],
        mut residual: Residual<'_>,
        with_logits: bool,
        interrupt: &AtomicBool,
    ) -> Result<()> {
        let with_logits = with_logits && self.weights.ends.1;
        let end = self.check(tokens)?;
        self.kv.prepare(self.len, end)?;
        let (weights, kv, logits) = (&*self.weights, &mut self.kv, &mut self.logits);
        let (adapters, states) = (self.adapters.as_deref(), self.states.as_deref());
        let done = match tokens {
            [] => fail!(NoInput, "no tokens to append"),
            [token] => {
                let context = Context {
                    kv,
                    adapters,
                    states,
                };
                let ends = (residual, with_logits.then_some(&mut logits[..]));
                step(weights, context, (self.len, *token), ends, None, interrupt)
            }
            _ => {
                let mut position = self.len;
                let mut rest = tokens;
                let mut result = Ok(());
                while !rest.is_empty() && result.is_ok() {
                    let piece = kv.fixed.piece(position, MAX_CHUNK).min(rest.len());
                    let (piece, behind) = rest.split_at(piece);
                    rest = behind;
                    let context = Context {
                        kv,
                        adapters,
                        states,
                    };
                    let out = (with_logits && rest.is_empty()).then_some(&mut logits[..]);
                    let ends = (residual.split(piece.len(), weights.hidden), out);
                    result = prefill(weights, context, position, piece, ends, interrupt);
                    position += piece.len();
                    if result.is_ok() && !rest.is_empty() {
                        kv.fixed.mark(position, None);
                    }
                    self.progress.store(position, Ordering::Relaxed);
                }
                result
            }
        };
        if done.is_err() {
            self.keep(self.len);
        }
        done?;
        self.append(tokens);
        self.has_logits = with_logits;
        self.mark(tokens.len() > 1);
        Ok(())
    }

    /// Marks the state, with its logits, if that is `due` or the last mark is far.
    pub(super) fn mark(&mut self, due: bool) {
        if due || self.kv.fixed.is_due(self.len) {
            let logits = self.has_logits.then_some(&self.logits[..]);
            self.kv.fixed.mark(self.len, logits);
        }
    }

    /// Goes back to where the state is in order, after work that has failed.
    pub fn recover(&mut self) {
        if self.kv.fixed.is_moving() {
            self.keep(self.len);
        }
    }

    /// Checks that `tokens` can be appended; the position behind them.
    pub fn check(&self, tokens: &[u32]) -> Result<usize> {
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
        Ok(self.len + tokens.len())
    }

    /// Forgets the positions from `len` on, and more if windows do not reach back to it any more or
    /// states of fixed size have no mark there.
    pub fn keep(&mut self, len: usize) {
        let kept = self.kv.reachable(len);
        if kept < self.len {
            self.has_logits = false;
        }
        if kept == 0 {
            self.kv.clear();
        } else if self.kv.fixed.go_back(kept, &mut self.logits) {
            self.has_logits = true;
        }
        if let Some(logits) = self.rows.go_back(kept, self.logits.len())
            && kept < self.len
        {
            self.logits.copy_from_slice(logits);
            self.has_logits = true;
        }
        if let Some(states) = &self.states {
            states.keep(kept);
        }
        self.set_len(kept);
    }

    fn set_len(&mut self, len: usize) {
        self.len = len;
        self.kv.fixed.settle(len);
        self.progress.store(len, Ordering::Relaxed);
    }

    /// Notes that `tokens` were evaluated, and that the logits are those of the last one.
    pub fn append(&mut self, tokens: &[u32]) {
        self.history.truncate(self.len);
        // Within the capacity, so nothing is allocated.
        self.history.extend_from_slice(tokens);
        self.set_len(self.len + tokens.len());
        self.has_logits = true;
    }

    /// Notes that the token that was chosen behind is in the cache, and its logits at hand.
    pub fn advance(&mut self) {
        // The token is in the history already.
        self.set_len(self.len + 1);
        self.has_logits = true;
        self.mark(false);
    }

    /// Notes that a token is in the cache that nothing was chosen behind.
    pub fn advance_by(&mut self, token: u32) {
        self.append(&[token]);
        self.has_logits = false;
        self.mark(false);
    }

    /// Readies the state for `tokens`, which are evaluated in a batch.
    pub fn prepare_tokens(&mut self, tokens: &[u32]) -> Result<()> {
        match tokens {
            [] if !self.has_logits => fail!(Internal, "a choice without logits"),
            [] => Ok(()),
            _ => {
                let end = self.check(tokens)?;
                self.kv.prepare(self.len, end)
            }
        }
    }

    /// Appends `tokens`, which may be none, and chooses the next one; `prepare` makes the mask and
    /// says whether there is one.
    pub fn step(
        &mut self,
        (tokens, residual): (&[u32], Residual<'_>),
        sampling: &Sampling,
        interrupt: &AtomicBool,
        prepare: impl FnOnce(&mut Core) -> Result<bool>,
    ) -> Result<Chosen> {
        let before = self.len;
        if !tokens.is_empty() {
            self.extend(tokens, residual, true, interrupt)?;
        }
        if !self.has_logits {
            fail!(Internal, "a choice without logits");
        }
        let chosen = prepare(self).and_then(|masked| self.choose(sampling, None, masked));
        if chosen.is_err() && self.len > before {
            self.keep(before);
            self.has_logits = false;
        }
        chosen
    }

    /// Asks for the mask of a choice, if it has one.
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
    pub fn choose(
        &mut self,
        settings: &Sampling,
        token: Option<u32>,
        masked: bool,
    ) -> Result<Chosen> {
        self.history.truncate(self.len);
        self.history.extend(token);
        let input = Input {
            logits: &self.logits,
            history: &self.history,
            rules: self.rules.as_deref(),
            mask: masked.then_some(&self.mask),
            position: (self.history.len() + self.draw_offset) as u64,
        };
        let token = choose(&input, &mut self.scratch, settings)?;
        let logprobs = match settings.logprobs {
            0 => None,
            n => {
                let of_choice = Logprobs::of(&self.logits, token, n, &mut self.scratch)?;
                Some(self.logprob_boxes.fill(of_choice))
            }
        };
        Ok(Chosen { token, logprobs })
    }

    /// What of the state goes to a stream.
    fn info(&self) -> StateInfo {
        StateInfo {
            kv_type: self.kv.kv_type(),
            len: self.len,
            has_logits: self.has_logits,
            windows: self.kv.windows().to_vec(),
        }
    }

    fn save(&self, sink: &mut dyn StateSink) -> Result<()> {
        let info = self.info();
        sink.begin(&info)?;
        if info.has_logits {
            let bytes = try_vec(self.logits.len() * 4, 0u8, "logits of a saved state");
            let mut bytes = bytes?;
            for (to, x) in bytes.chunks_exact_mut(4).zip(&self.logits) {
                to.copy_from_slice(&x.to_le_bytes());
            }
            sink.write(&bytes)?;
        }
        let layers = &self.weights.kv_layers;
        let layout = StateLayout::new(layers, &info, self.weights.n_vocab)?;
        let layout = layout.with_fixed(self.weights.fixed_len());
        self.kv.save(&layout, layers, sink)
    }

    fn load(
        &mut self,
        info: &StateInfo,
        tokens: &[u32],
        source: &mut dyn StateSource,
    ) -> Result<()> {
        let weights = self.weights.clone();
        let layout = StateLayout::new(&weights.kv_layers, info, weights.n_vocab)?;
        let layout = layout.with_fixed(weights.fixed_len());
        if info.has_logits {
            let mut bytes = try_vec(layout.logits_bytes(), 0u8, "logits of a saved state")?;
            source.read(&mut bytes)?;
            for (x, from) in self.logits.iter_mut().zip(bytes.chunks_exact(4)) {
                *x = f32::from_le_bytes([from[0], from[1], from[2], from[3]]);
            }
        }
        self.kv.prepare(0, info.len)?;
        self.kv.set_windows(&info.windows);
        self.kv.load(&layout, &weights.kv_layers, source)?;
        self.append(tokens);
        self.has_logits = info.has_logits;
        Ok(())
    }
}

impl Driven for Core {
    type Done = Done;

    fn started(&mut self) -> &mut Vec<u32> {
        &mut self.started
    }

    fn evaluate(&mut self, tokens: &[u32], interrupt: &Arc<AtomicBool>) -> Result<Done> {
        self.extend(tokens, Residual::default(), true, interrupt)?;
        Ok(Done::Logits)
    }

    fn choose_next(
        &mut self,
        tokens: &[u32],
        sampling: &Sampling,
        masked: bool,
        interrupt: &Arc<AtomicBool>,
    ) -> Result<(Done, u32)> {
        let row = (tokens, Residual::default());
        let chosen = self.step(row, sampling, interrupt, |_| Ok(masked))?;
        let token = chosen.token;
        Ok((Done::Token(chosen), token))
    }

    fn verify_drafts(
        &mut self,
        tokens: (&[u32], usize),
        sampling: &Sampling,
        interrupt: &Arc<AtomicBool>,
        outcomes: &mut VecDeque<Result<Done>>,
    ) -> Result<()> {
        self.verify(
            tokens,
            Residual::default(),
            sampling,
            None,
            interrupt,
            outcomes,
        )
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic on the way is an `Internal` error of that step; the state is as valid as before it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CpuRunner {
    /// A session with an empty cache. Errors: `OutOfMemory`.
    pub(super) fn new(weights: Arc<CpuWeights>, kv: KvCache) -> Result<CpuRunner> {
        let n_logits = weights.logits_len();
        let bytes = session_bytes(n_logits, kv.context());
        let charge = weights.sessions.charge(bytes, "memory of a session")?;
        let logits = try_vec(n_logits, 0.0, "logits")?;
        let scratch = Scratch::new(n_logits)?;
        let logprob_boxes = LogprobBoxes::new();
        let mask = try_vec(n_logits.div_ceil(32), 0u32, "mask of a choice")?;
        let mut history = try_vec(kv.context(), 0u32, "token history")?;
        history.clear();
        let progress = Arc::new(AtomicUsize::new(0));
        let core = Core {
            weights: weights.clone(),
            kv,
            len: 0,
            logits,
            has_logits: false,
            rows: RowLogits::default(),
            history,
            rules: None,
            adapters: None,
            states: None,
            draw_offset: 0,
            mask,
            scratch,
            logprob_boxes: logprob_boxes.clone(),
            started: Vec::new(),
            progress: progress.clone(),
            _charge: charge,
        };
        Ok(CpuRunner {
            weights,
            core: Arc::new(Mutex::new(core)),
            progress,
            driver: None,
            event: None,
            ready: VecDeque::new(),
            logprobs: None,
            logprob_boxes,
        })
    }

    /// Whether it takes work of these weights: they are its own, and nothing is under way.
    pub(super) fn takes_work(&self, weights: &CpuWeights) -> Result<()> {
        if !std::ptr::eq(&*self.weights, weights) {
            fail!(Internal, "it has other weights");
        }
        self.check_idle()
    }

    /// `DecodePending` while work that was started is not collected.
    fn check_idle(&self) -> Result<()> {
        check_idle(&self.ready, &self.driver)
    }

    /// The core, if nothing is under way.
    pub(super) fn idle_core(&self) -> Result<MutexGuard<'_, Core>> {
        self.check_idle()?;
        Ok(lock(&self.core))
    }

    /// What it keeps outcomes in: nothing is left of earlier work, but the memory.
    pub(super) fn take_outcomes(&mut self) -> VecDeque<Result<Done>> {
        std::mem::take(&mut self.ready)
    }

    /// Keeps outcomes for `poll`.
    pub(super) fn keep_all(&mut self, outcomes: VecDeque<Result<Done>>) {
        self.ready = outcomes;
    }

    /// Keeps an outcome for `poll`.
    fn keep(&mut self, done: Result<Done>) {
        self.ready.push_back(done);
    }

    /// Starts the work of a row in the background.
    fn start(&mut self, row: &mut RowWork<'_, '_>) -> Result<()> {
        if self.weights.ends != (Front::Embeddings, true) {
            fail!(Internal, "a part of a network works while its caller waits");
        }
        let mut core = self.idle_core()?;
        let tokens = row.tokens;
        core.check(tokens)?;
        let masked = core.prepare_mask(row.mask.take())?;
        drop(core);
        let job = Job {
            want: *row.want,
            masked,
        };
        start_work(
            &mut self.driver,
            &self.core,
            (tokens, job),
            &self.weights.pool.options().placement,
            (row.interrupt, self.event.as_ref()),
        )
    }

    /// Does the work of a row in this thread.
    fn run(&mut self, row: &mut RowWork<'_, '_>) -> Result<()> {
        self.check_idle()?;
        let mut core = lock(&self.core);
        let residual = std::mem::take(row.residual);
        let (count, sampling) = match *row.want {
            Want::Logits | Want::Evaluated => {
                let with_logits = matches!(row.want, Want::Logits);
                core.extend(row.tokens, residual, with_logits, row.interrupt)?;
                drop(core);
                self.keep(Ok(match with_logits {
                    true => Done::Logits,
                    false => Done::Evaluated,
                }));
                return Ok(());
            }
            Want::Drafted { .. } => {
                core.draft(row.tokens, residual, row.interrupt)?;
                drop(core);
                self.keep(Ok(Done::Evaluated));
                return Ok(());
            }
            Want::Choices { count, sampling } => (count, sampling),
            Want::Verified { drafts, sampling } => {
                let mut outcomes = std::mem::take(&mut self.ready);
                let mask = row.mask.take();
                let done = core.verify(
                    (row.tokens, drafts),
                    residual,
                    &sampling,
                    mask,
                    row.interrupt,
                    &mut outcomes,
                );
                drop(core);
                self.ready = outcomes;
                return done;
            }
        };
        let mut mask = row.mask.take();
        let first = core.step((row.tokens, residual), &sampling, row.interrupt, |core| {
            core.prepare_mask(mask.take())
        })?;
        let mut last = first.token;
        // It is empty, but has its capacity.
        let mut all = std::mem::take(&mut self.ready);
        all.push_back(Ok(Done::Token(first)));
        let own = core.states.clone().filter(|_| core.weights.entry.is_some());
        for _ in 1..count {
            let input = own.as_deref().map_or(TokenInput::Embeddings, |states| {
                TokenInput::States(StatesFrom {
                    states,
                    position: core.len - 1,
                })
            });
            let residual = Residual {
                input,
                output: None,
            };
            let next = core.step((&[last], residual), &sampling, row.interrupt, |_| Ok(false));
            let failed = next.is_err();
            if let Ok(chosen) = &next {
                last = chosen.token;
            }
            all.push_back(next.map(Done::Token));
            if failed {
                break;
            }
        }
        drop(core);
        self.ready = all;
        Ok(())
    }

    /// Does or starts the work of a row by itself.
    pub(super) fn submit(&mut self, row: &mut RowWork<'_, '_>, when: When) -> Result<()> {
        match when {
            When::Now => self.run(row),
            When::Background => self.start(row),
        }
    }
}

impl Runner for CpuRunner {
    fn as_any(&mut self) -> Option<&mut dyn Any> {
        Some(self)
    }

    fn len(&self) -> usize {
        lock(&self.core).len
    }

    fn poll(&mut self, wait: bool) -> Result<Option<Outcome>> {
        let done = next_done(&mut self.ready, &mut self.driver, wait)?;
        Ok(done.map(|done| match done {
            Done::Logits => Outcome::Logits,
            Done::Evaluated => Outcome::Evaluated,
            Done::Token(chosen) => {
                let last = std::mem::replace(&mut self.logprobs, chosen.logprobs);
                self.logprob_boxes.put_back(last);
                Outcome::Token(chosen.token)
            }
        }))
    }

    fn progress(&self) -> usize {
        self.progress.load(Ordering::Relaxed)
    }

    fn queue_limit(&self) -> usize {
        usize::MAX
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

    fn set_event(&mut self, event: Option<Arc<Event>>) {
        self.event = event;
    }

    fn retire(&mut self) -> Option<Thread> {
        self.driver.as_mut().and_then(|driver| driver.retire())
    }

    fn logprobs(&self) -> Option<&Logprobs> {
        self.logprobs.as_deref()
    }

    fn keep_drafts(&mut self, len: usize) -> Result<()> {
        self.idle_core()?.keep(len);
        Ok(())
    }

    fn settle_drafts(&mut self, position: Option<usize>) -> Result<()> {
        self.idle_core()?.settle_drafts(position);
        Ok(())
    }

    fn reserve_drafts(&mut self, drafts: usize) -> Result<()> {
        let mut core = self.idle_core()?;
        core.kv.fixed.reserve_rows(drafts + 1)?;
        match core.weights.ends {
            (Front::Stream, true) => {
                let (account, n_vocab) = (&core.weights.clone().sessions, core.logits.len());
                core.rows.reserve(drafts + 1, n_vocab, account)
            }
            _ => Ok(()),
        }
    }

    fn drop_outcomes(&mut self) {
        lock(&self.core).rows.allow_back();
    }

    fn set_draw_offset(&mut self, offset: usize) -> Result<()> {
        self.idle_core()?.draw_offset = offset;
        Ok(())
    }

    fn set_rules(&mut self, rules: Option<Arc<TokenRules>>) -> Result<()> {
        self.idle_core()?.rules = rules;
        Ok(())
    }

    fn set_adapters(&mut self, adapters: Option<Arc<AdapterSet>>) -> Result<()> {
        self.idle_core()?.adapters = adapters;
        Ok(())
    }

    fn keep_states(&mut self, states: Option<Arc<HiddenStates>>) -> Result<()> {
        self.idle_core()?.states = states;
        Ok(())
    }

    fn mark_before(&self, position: usize) -> Mark {
        let core = lock(&self.core);
        Mark::at(core.kv.reachable(position.min(core.len)))
    }

    fn rollback(&mut self, mark: Mark) {
        let mut core = lock(&self.core);
        core.recover();
        if mark.position() < core.len {
            core.keep(mark.position());
        }
    }

    fn save(&mut self, sink: &mut dyn StateSink) -> Result<()> {
        self.idle_core()?.save(sink)
    }

    fn load(
        &mut self,
        info: &StateInfo,
        tokens: &[u32],
        source: &mut dyn StateSource,
    ) -> Result<()> {
        let mut core = self.idle_core()?;
        let loaded = core.load(info, tokens, source);
        if loaded.is_err() {
            core.keep(0);
        }
        loaded
    }

    fn fork(&mut self) -> Result<Box<dyn Runner>> {
        let core = self.idle_core()?;
        let other = CpuRunner::new(core.weights.clone(), core.kv.fork(core.len)?)?;
        let mut theirs = lock(&other.core);
        theirs.append(&core.history[..core.len]);
        theirs.has_logits = core.has_logits;
        theirs.logits.copy_from_slice(&core.logits);
        theirs.rules = core.rules.clone();
        theirs.adapters = core.adapters.clone();
        drop(theirs);
        Ok(Box::new(other))
    }

    fn profile(
        &mut self,
        token: u32,
        sampling: &Sampling,
        interrupt: &AtomicBool,
    ) -> Result<Profile> {
        let mut core = self.idle_core()?;
        core.prepare_tokens(&[token])?;
        let core = &mut *core;
        let clock = Clock::start();
        let logits = &mut core.logits;
        let context = Context {
            kv: &core.kv,
            adapters: core.adapters.as_deref(),
            states: core.states.as_deref(),
        };
        let done = decode(
            &core.weights,
            context,
            (core.len, token),
            logits,
            Some(&clock),
            interrupt,
        );
        if done.is_err() {
            core.recover();
        }
        done?;
        core.append(&[token]);
        // The time counts, not the token; what there is to say about its failure, a decode says.
        let _ = core.choose(sampling, None, false);
        clock.end(Work::Sample, size_of_val(core.logits.as_slice()) as u64);
        Ok(clock.profile())
    }
}
