//! A session on a GPU, and the phases of its work.

mod background;
pub mod core;
mod drafts;
mod steps;

pub use drafts::{MAX_ROWS, Rows};
pub use steps::{Chosen, Prepared, Steps};

use self::background::Background;
use self::core::{Core, Extension};
use self::steps::Request;
use super::weights::{Busy, CudaWeights};
use crate::backend::cuda::launch::sampling::RESULT_SLOTS;
use crate::backend::cuda::network::step::Timeline;
use crate::backend::row::{Front, RowWork};
use crate::backend::{
    HiddenStates, KvType, Mark, MaskSource, Outcome, Profile, Residual, Runner, RunnerOptions,
    StateInfo, StateSink, StateSource, Want, When,
};
use crate::engine::sampling::{LogprobBoxes, Logprobs, Sampling, TokenRules};
use crate::error::{Result, Status, fail};
use crate::model::AdapterSet;
use crate::threads::event::Event;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The state of one session, and what is under way with it.
pub struct CudaRunner {
    weights: Arc<CudaWeights>,
    work: Work,
    /// Positions evaluated by now.
    progress: Arc<AtomicUsize>,
    /// Of the choice that was returned last.
    logprobs: Option<Box<Logprobs>>,
    /// The core's.
    logprob_boxes: LogprobBoxes,
}

/// What is under way.
enum Work {
    /// Nothing.
    Nothing(Box<Core>),
    /// Nothing; an outcome waits to be collected.
    Ready(Box<Core>, Ready),
    /// Steps.
    Steps(Box<Core>, Steps, Busy),
    /// A step that verifies drafts, or what it has chosen, for which the weights are not needed any more.
    Drafts(Box<Core>, Option<Busy>),
    /// A prompt, by another thread.
    Prompt(Background),
    /// Within a call; afterwards, only if a bug has ended it.
    Broken,
}

/// An outcome.
enum Ready {
    Logits,
    Evaluated,
    Token(Chosen),
}

impl CudaRunner {
    /// An empty session with everything reserved that a step needs.
    pub fn new(weights: Arc<CudaWeights>, options: &RunnerOptions) -> Result<CudaRunner> {
        let core = Core::new(weights.clone(), options)?;
        Ok(CudaRunner::with(weights, core))
    }

    fn with(weights: Arc<CudaWeights>, core: Core) -> CudaRunner {
        CudaRunner {
            weights,
            progress: core.progress().clone(),
            logprob_boxes: core.logprob_boxes.clone(),
            work: Work::Nothing(Box::new(core)),
            logprobs: None,
        }
    }

    /// The weights that it runs.
    pub fn weights(&self) -> &Arc<CudaWeights> {
        &self.weights
    }

    /// What it has on the device, if nothing is under way.
    pub fn core(&mut self) -> Result<&mut Core> {
        match &mut self.work {
            Work::Nothing(core) => Ok(core),
            Work::Broken => fail!(Internal, "a bug has ended an earlier call"),
            _ => fail!(DecodePending, "started work was not collected"),
        }
    }

    /// The core, which nobody changes meanwhile, unless a prompt is under way.
    fn settled(&self) -> Option<&Core> {
        match &self.work {
            Work::Nothing(core)
            | Work::Ready(core, _)
            | Work::Steps(core, ..)
            | Work::Drafts(core, _) => Some(core),
            Work::Prompt(_) | Work::Broken => None,
        }
    }

    /// Takes the core, of which nothing is under way, for work that begins.
    fn take(&mut self) -> Result<Box<Core>> {
        self.core()?;
        match std::mem::replace(&mut self.work, Work::Broken) {
            Work::Nothing(core) => Ok(core),
            _ => fail!(Internal, "work began twice"),
        }
    }

    /// Element type of the caches.
    pub fn kv_type(&mut self) -> Result<KvType> {
        Ok(self.core()?.state.plan().kv_type)
    }

    /// Keeps a token that was chosen in a batch, until it is polled.
    pub fn keep(&mut self, chosen: Chosen) -> Result<()> {
        let core = self.take()?;
        self.work = Work::Ready(core, Ready::Token(chosen));
        Ok(())
    }

    /// Keeps the choices of a step with drafts in a batch, until they are polled.
    pub fn keep_verified(&mut self) -> Result<()> {
        let core = self.take()?;
        self.work = Work::Drafts(core, None);
        Ok(())
    }

    /// Keeps that a token was evaluated in a batch, until it is polled.
    pub fn keep_evaluated(&mut self) -> Result<()> {
        let core = self.take()?;
        self.work = Work::Ready(core, Ready::Evaluated);
        Ok(())
    }

    /// Does or starts the work of a row by itself.
    pub(super) fn submit(&mut self, row: &mut RowWork<'_, '_>, when: When) -> Result<()> {
        let busy = Busy::new(&self.weights);
        match *row.want {
            Want::Logits | Want::Evaluated if when == When::Background => {
                if self.weights.plan().ends != (Front::Embeddings, true) {
                    fail!(Internal, "a part of a network works while its caller waits");
                }
                let core = self.take()?;
                match Background::start(core, row.tokens, row.interrupt, busy) {
                    Ok(background) => self.work = Work::Prompt(background),
                    Err((core, e)) => {
                        self.work = Work::Nothing(core);
                        return Err(e);
                    }
                }
            }
            Want::Logits | Want::Evaluated => {
                let with_logits = matches!(row.want, Want::Logits);
                let residual = std::mem::take(row.residual);
                let extension = Extension {
                    tokens: row.tokens,
                    residual,
                    with_logits,
                    is_background: false,
                };
                self.core()?.extend(extension, row.interrupt)?;
                let core = self.take()?;
                let ready = match with_logits {
                    true => Ready::Logits,
                    false => Ready::Evaluated,
                };
                self.work = Work::Ready(core, ready);
            }
            Want::Verified { drafts, sampling } => {
                let core = self.core()?;
                core.notifies = when == When::Background;
                let mask = row.mask.take().map(|m| m as &mut MaskSource<'_>);
                let (tokens, residual) = (row.tokens, std::mem::take(row.residual));
                core.verify((tokens, drafts), residual, &sampling, mask, row.interrupt)?;
                let mut core = self.take()?;
                if when == When::Background {
                    core.end_drafts_by(row.interrupt);
                }
                self.work = Work::Drafts(core, Some(busy));
            }
            Want::Drafted { .. } => {
                let residual = std::mem::take(row.residual);
                self.core()?.draft(row.tokens, residual, row.interrupt)?;
                self.keep_evaluated()?;
            }
            Want::Choices { count, sampling } => {
                let core = self.core()?;
                core.notifies = when == When::Background;
                let residual = &mut *row.residual;
                let token = core.all_but_last(row.tokens, residual, row.interrupt)?;
                if token.is_some() {
                    core.enter(residual.input, core.len())?;
                }
                let request = Request {
                    token,
                    count,
                    sampling: &sampling,
                    interrupt: row.interrupt,
                };
                let mut steps = match row.mask.take() {
                    Some(mask) => core.begin_masked(&request, mask)?,
                    None => core.begin(&request)?,
                };
                if when == When::Background {
                    steps = steps.until(row.interrupt);
                }
                let core = self.take()?;
                self.work = Work::Steps(core, steps, busy);
            }
        }
        Ok(())
    }

    /// The outcome of what is under way, and the work that is left behind it.
    fn advance(&mut self, work: Work, wait: bool) -> (Work, Result<Option<Outcome>>) {
        match work {
            Work::Ready(core, Ready::Logits) => (Work::Nothing(core), Ok(Some(Outcome::Logits))),
            Work::Ready(core, Ready::Evaluated) => {
                (Work::Nothing(core), Ok(Some(Outcome::Evaluated)))
            }
            Work::Ready(core, Ready::Token(chosen)) => {
                let token = self.returned(chosen);
                (Work::Nothing(core), Ok(Some(Outcome::Token(token))))
            }
            Work::Steps(mut core, mut steps, busy) => {
                let polled = steps.poll(&mut core, wait);
                let outcome =
                    polled.map(|chosen| chosen.map(|chosen| Outcome::Token(self.returned(chosen))));
                let work = match steps.is_empty() {
                    true => Work::Nothing(core),
                    false => Work::Steps(core, steps, busy),
                };
                (work, outcome)
            }
            Work::Drafts(mut core, busy) => {
                let polled = core.poll_drafts(wait);
                let outcome =
                    polled.map(|chosen| chosen.map(|chosen| Outcome::Token(self.returned(chosen))));
                let work = match core.has_drafts() {
                    false => Work::Nothing(core),
                    true => {
                        let busy = busy.filter(|_| core.has_flight());
                        Work::Drafts(core, busy)
                    }
                };
                (work, outcome)
            }
            Work::Prompt(mut background) => match background.poll(wait) {
                None => (Work::Prompt(background), Ok(None)),
                Some((core, result)) => {
                    (Work::Nothing(core), result.map(|()| Some(Outcome::Logits)))
                }
            },
            Work::Nothing(core) => {
                let error = crate::Error::new(Status::NothingPending, "no work was started");
                (Work::Nothing(core), Err(error))
            }
            Work::Broken => {
                let message = "a bug has ended an earlier call";
                let error = crate::Error::new(Status::Internal, message);
                (Work::Broken, Err(error))
            }
        }
    }

    fn returned(&mut self, chosen: Chosen) -> u32 {
        let last = std::mem::replace(&mut self.logprobs, chosen.logprobs);
        self.logprob_boxes.put_back(last);
        chosen.token
    }
}

impl Core {
    /// Evaluates all tokens but the last, which a step appends. What of the residual stream is left is that one's.
    pub fn all_but_last(
        &mut self,
        tokens: &[u32],
        residual: &mut Residual<'_>,
        interrupt: &AtomicBool,
    ) -> Result<Option<u32>> {
        let Some((&last, first)) = tokens.split_last() else {
            return Ok(None);
        };
        if !first.is_empty() {
            let width = self.weights.plan().hidden as usize;
            let extension = Extension {
                residual: residual.split(first.len(), width),
                // Of a head, nobody wants those in between.
                with_logits: self.weights.plan().entry.is_none(),
                ..Extension::of(first)
            };
            self.extend(extension, interrupt)?;
        }
        Ok(Some(last))
    }
}

impl Runner for CudaRunner {
    fn as_any(&mut self) -> Option<&mut dyn Any> {
        Some(self)
    }

    fn len(&self) -> usize {
        match &self.work {
            Work::Prompt(background) => background.before(),
            _ => self.settled().map_or(0, Core::len),
        }
    }

    fn poll(&mut self, wait: bool) -> Result<Option<Outcome>> {
        let work = std::mem::replace(&mut self.work, Work::Broken);
        let (work, outcome) = self.advance(work, wait);
        self.work = work;
        outcome
    }

    fn progress(&self) -> usize {
        self.progress.load(Ordering::Relaxed)
    }

    fn queue_limit(&self) -> usize {
        // Beside a prompt, steps and pieces of it take turns, which queued steps would not.
        match self.weights.gate().has_prompts() {
            true => 1,
            false => RESULT_SLOTS as usize,
        }
    }

    fn has_logits(&self) -> bool {
        self.settled().is_some_and(|core| core.has_logits)
    }

    fn logits(&mut self, out: &mut [f32]) -> Result<()> {
        self.core()?.logits(out)
    }

    fn logprobs(&self) -> Option<&Logprobs> {
        self.logprobs.as_deref()
    }

    fn set_event(&mut self, event: Option<Arc<Event>>) {
        if let Ok(core) = self.core() {
            core.event = event;
        }
    }

    fn set_rules(&mut self, rules: Option<Arc<TokenRules>>) -> Result<()> {
        let core = self.core()?;
        let device = core.weights.sessions().clone();
        let _current = device.enter()?;
        // The last step is collected, but its kernels may not have ended.
        core.stream.synchronize()?;
        core.sampling.set_rules(&device, rules.as_deref())
    }

    fn reserve_adapters(&mut self, adapters: Option<&Arc<AdapterSet>>) -> Result<()> {
        self.core()?.reserve_adapters(adapters)
    }

    fn set_adapters(&mut self, adapters: Option<Arc<AdapterSet>>) -> Result<()> {
        let core = self.core()?;
        core.set_adapters(adapters)?;
        // A step that needs one that is not there captures it.
        let _ = core.capture_graphs();
        Ok(())
    }

    fn mark_before(&self, position: usize) -> Mark {
        let Some(core) = self.settled() else {
            return Mark::EMPTY;
        };
        Mark::at(core.state.reachable(position.min(core.len())))
    }

    fn rollback(&mut self, mark: Mark) {
        if let Ok(core) = self.core() {
            core.recover();
            if mark.position() < core.len() {
                core.forget(mark.position());
            }
        }
    }

    fn reserve_tokens(&mut self, tokens: usize) -> Result<()> {
        self.core()?.reserve_tokens(tokens)
    }

    fn follow(&mut self, token: u32) -> Result<()> {
        self.core()?.follow(token)
    }

    fn followed(&mut self, is_there: bool, has_logits: bool) -> Result<()> {
        self.core()?.followed(is_there, has_logits)
    }

    fn drop_outcomes(&mut self) {
        if let Work::Drafts(core, _) | Work::Nothing(core) = &mut self.work {
            core.drop_drafts();
        }
    }

    fn keep_drafts(&mut self, len: usize) -> Result<()> {
        self.core()?.keep_drafts(len)
    }

    fn settle_drafts(&mut self, position: Option<usize>) -> Result<()> {
        self.core()?.settle_drafts(position)
    }

    fn reserve_drafts(&mut self, drafts: usize) -> Result<()> {
        self.core()?.reserve_drafts(drafts + 1)
    }

    fn keep_states(&mut self, states: Option<Arc<HiddenStates>>) -> Result<()> {
        let core = self.core()?;
        core.keep_states(states)?;
        // A step that needs one that is not there captures it.
        let _ = core.capture_graphs();
        Ok(())
    }

    fn set_draw_offset(&mut self, offset: usize) -> Result<()> {
        self.core()?.set_draw_offset(offset as u64)
    }

    fn save(&mut self, sink: &mut dyn StateSink) -> Result<()> {
        self.core()?.save(sink)
    }

    fn load(
        &mut self,
        info: &StateInfo,
        tokens: &[u32],
        source: &mut dyn StateSource,
    ) -> Result<()> {
        let core = self.core()?;
        let loaded = core.load(info, tokens, source);
        if loaded.is_err() {
            core.forget(0);
        }
        loaded
    }

    fn fork(&mut self) -> Result<Box<dyn Runner>> {
        let core = self.core()?.fork()?;
        Ok(Box::new(CudaRunner::with(self.weights.clone(), core)))
    }

    fn profile(
        &mut self,
        token: u32,
        sampling: &Sampling,
        interrupt: &AtomicBool,
    ) -> Result<Profile> {
        let weights = self.weights.clone();
        let _resident = weights.resident()?;
        let core = self.core()?;
        let _current = weights.context().enter()?;
        let stream = core.stream.clone();
        let prepared = core.prepare(&stream, Some(token), 1, sampling, false, interrupt)?;
        stream.synchronize()?;
        let timeline = Timeline::start(&stream, core.len() + 1)?;
        let eval = core.evaluation(&stream);
        // SAFETY: *weights*, *sessions*, *workspace*: as for a graph; the results are awaited below.
        let enqueued = unsafe {
            core.buffers
                .enqueue_profiled(&eval, prepared.stages, &timeline)
        };
        if let Err(e) = enqueued {
            // Some of the kernels may have run.
            let _ = stream.synchronize();
            core.lose_track();
            return Err(e);
        }
        core.has_logits = false;
        let mut steps = core.launched(prepared, &stream);
        // The time counts, not the token; what there is to say about its failure, a decode says.
        match steps.poll(core, true) {
            Ok(_) => {}
            Err(e) if e.status == Status::Numeric => {
                core.set_len(core.len() + 1);
                core.has_logits = true;
                core.settle(false)?;
            }
            Err(e) => return Err(e),
        }
        stream.synchronize()?;
        timeline.profile()
    }
}
