//! Drafts of heads that read a model's hidden states: of its own head for further tokens (multi-token prediction), or of one of EAGLE-3,
//! which is a model of its own. A head is one layer that reads the hidden state of a position and the token behind it.
//!
//! The head has a runner of its own, whose positions are those of the context from some position on. It reads the states of
//! what the session has evaluated when it is asked, up to the last token of the context; then it goes on from its own states.
//! States that the session did not keep (it was given the source later, or a prompt was longer than there is room for) are
//! not read: the head then begins behind them.

use super::{DraftContext, DraftSource, SourceKind, fused};
use crate::backend::{
    Backend, HiddenStates, MAX_DRAFTS, Outcome, Residual, Row, Runner, RunnerOptions, StatesFrom,
    TokenInput, Want, Weights, When,
};
use crate::engine::interrupt::Interrupts;
use crate::engine::residence::SavedState;
use crate::engine::{Model, Session};
use crate::error::{Result, Status, fail, try_vec};
use crate::log::log;
use crate::model::Network;
use std::sync::Arc;

/// Positions whose states are kept until the head has read them, and of a head of EAGLE-3, for which they are three times as large.
const MAX_STATES: usize = 4096;
const MAX_FUSED_STATES: usize = 2048;
/// Positions that the head reads at a time.
const PIECE: usize = 256;

/// A session's head, and what it has read.
pub struct HeadDrafts {
    model: Arc<Model>,
    head: Head,
    /// What that is made with.
    options: RunnerOptions,
    interrupts: Arc<Interrupts>,
    place: HeadPlace,
    /// Positions whose states the session keeps.
    n_states: usize,
    /// The context that it has read. A position is known by the token behind it.
    read: Vec<u32>,
    /// The position of the context that is the runner's first one.
    base: usize,
    /// Positions that were made of the session's states.
    known: usize,
    /// Tokens that a context can have.
    context: usize,
}

/// Where a session's head has its state.
enum HeadPlace {
    /// On the device.
    Device(OnDevice),
    /// In host memory, with the states from a position on that the head has not read.
    Host {
        state: SavedState,
        first: usize,
        states: Vec<f32>,
    },
}

impl HeadPlace {
    /// What it has on the device, where the session's state is, too.
    fn on_device(&mut self) -> Result<&mut OnDevice> {
        match self {
            HeadPlace::Device(there) => Ok(there),
            HeadPlace::Host { .. } => fail!(Internal, "a head whose state is not on the device"),
        }
    }
}

/// What a session's head has on the device.
struct OnDevice {
    runner: Box<dyn Runner>,
    /// Those of the session.
    states: Arc<HiddenStates>,
    /// The head's own, of its last position.
    own: Arc<HiddenStates>,
}

/// A head, and what it reads.
#[derive(Clone)]
pub(super) struct Head {
    pub weights: Arc<dyn Weights>,
    /// If it is one of EAGLE-3: the model that it is, and where it reads the session's model.
    pub fused: Option<(Arc<Model>, [usize; 3])>,
}

impl Head {
    /// Room for so many states of a session with a model, and for the head's own.
    fn room(&self, model: &Model, count: usize) -> Result<(Arc<HiddenStates>, Arc<HiddenStates>)> {
        match &self.fused {
            None => Ok((
                model.weights().hidden_states(count)?,
                self.weights.hidden_states(1)?,
            )),
            // Its own are those behind its layer.
            Some((_, places)) => {
                let count = count.min(MAX_FUSED_STATES);
                Ok((
                    model.weights().states_at(places, count)?,
                    self.weights.states_at(&[1], 1)?,
                ))
            }
        }
    }
}

impl HeadDrafts {
    /// For a session, whose interrupts end drafting, too.
    ///
    /// Errors: `Unsupported` if its model has no head, or none was loaded; those of a runner of the head.
    pub fn new(target: &Session) -> Result<HeadDrafts> {
        let head = Head {
            weights: target.model().head()?.clone(),
            fused: None,
        };
        HeadDrafts::of(target, head)
    }

    /// The same with a head of EAGLE-3.
    ///
    /// Errors: `InvalidArgument` if it is not one for the session's model, or on another device; `Unsupported` if that is not on one device
    /// as a whole; those of a runner of the head.
    pub fn fused(target: &Session, drafts: &Arc<Model>) -> Result<HeadDrafts> {
        HeadDrafts::of(target, fused::head_for(target.model(), drafts)?)
    }

    fn of(target: &Session, head: Head) -> Result<HeadDrafts> {
        let (options, _) = HeadDrafts::of_session(&target.options);
        let runner = head.weights.clone().create_runner(&options)?;
        HeadDrafts::with(target, head, runner)
    }

    /// What a head's runner is made with for a session whose own is made with these options, and positions whose hidden states the
    /// session keeps.
    pub(in crate::engine) fn of_session(options: &RunnerOptions) -> (RunnerOptions, usize) {
        let head = RunnerOptions {
            // Drafts come behind what is known.
            context: options.context.saturating_add(MAX_DRAFTS),
            mark_interval: 0,
            ..*options
        };
        (head, options.context.min(MAX_STATES))
    }

    /// Bytes of the hidden states that a session on a device keeps for a head of EAGLE-3, with that of the head's own; 0 for other
    /// networks.
    pub(in crate::engine) fn fused_bytes(
        device: &dyn Backend,
        network: &Network,
        options: &RunnerOptions,
    ) -> u64 {
        let Some(entry) = network.entry.as_ref().filter(|e| e.fusion.is_some()) else {
            return 0;
        };
        let (_, kept) = HeadDrafts::of_session(options);
        let width = entry.projection.weight.row_len();
        let of_session = device.states_bytes(width, kept.min(MAX_FUSED_STATES));
        of_session.saturating_add(device.states_bytes(network.hidden, 1))
    }

    /// The same with a runner of the head.
    fn with(target: &Session, head: Head, mut runner: Box<dyn Runner>) -> Result<HeadDrafts> {
        let model = target.model().clone();
        let (options, n_states) = HeadDrafts::of_session(&target.options);
        let context = target.context();
        let (states, own) = head.room(&model, n_states)?;
        runner.keep_states(Some(own.clone()))?;
        let mut read = try_vec(context + MAX_DRAFTS, 0, "tokens of a head")?;
        read.clear();
        Ok(HeadDrafts {
            head,
            options,
            interrupts: target.interrupts().clone(),
            place: HeadPlace::Device(OnDevice {
                runner,
                states,
                own,
            }),
            n_states,
            read,
            base: 0,
            known: 0,
            context,
            model,
        })
    }

    /// Whether the head's device has no memory of its own.
    fn is_in_host_memory(&self) -> bool {
        match &self.place {
            HeadPlace::Device(there) => there.states.device().is_none(),
            HeadPlace::Host { .. } => false,
        }
    }

    /// The first position from which on there are all states before `end`.
    fn first_state(&self, end: usize) -> Option<usize> {
        match &self.place {
            HeadPlace::Device(there) => there.states.first(end),
            HeadPlace::Host { .. } => None,
        }
    }

    /// Positions of the runner that the context has, and that were made of the session's states.
    fn kept(&self, tokens: &[u32]) -> usize {
        let same = self.read.iter().zip(tokens).take_while(|(a, b)| a == b);
        // Each is known by the token behind it.
        let kept = same.count().saturating_sub(self.base + 1);
        kept.min(self.known)
    }

    /// Reads tokens beside these states, the first of which is that of a position.
    fn submit(
        &mut self,
        tokens: &[u32],
        states: &HiddenStates,
        position: usize,
        want: Want,
    ) -> Result<()> {
        let there = self.place.on_device()?;
        let row = Row {
            runner: &mut *there.runner,
            tokens,
            want,
            mask: None,
            interrupt: self.interrupts.work(),
            residual: Residual {
                input: TokenInput::States(StatesFrom { states, position }),
                output: None,
            },
        };
        let submitted = self.head.weights.submit(&mut [row], When::Now);
        submitted.map_err(|e| e.error)
    }

    /// Reads a context up to what it lacks for the next draft, which are some tokens at least. False if there are no states for it.
    fn catch_up(&mut self, tokens: &[u32]) -> Result<bool> {
        let end = tokens.len() - 1;
        let Some(first) = self.first_state(end) else {
            return Ok(false);
        };
        // Something is left to read, behind which is drafted.
        let mut kept = self.kept(tokens).min((end - 1).saturating_sub(self.base));
        // As far as the runner can go back to.
        kept = self.place.on_device()?.runner.mark_before(kept).position();
        if kept == 0 || first > self.base + kept {
            (self.base, kept) = (first, 0);
        }
        let base = self.base;
        let OnDevice { runner, states, .. } = self.place.on_device()?;
        let mark = runner.mark_before(kept);
        runner.rollback(mark);
        // Draws are by position: those of the session are the same numbers. The first token of the context is none of the head's.
        runner.set_draw_offset(base + 1)?;
        let (known, states) = (runner.len(), states.clone());
        self.known = known;
        self.read.clear();
        self.read.extend_from_slice(tokens);
        loop {
            let position = self.base + self.known;
            if end - position <= PIECE {
                return Ok(true);
            }
            let piece = &tokens[position + 1..=position + PIECE];
            self.submit(piece, &states, position, Want::Evaluated)?;
            let runner = &mut self.place.on_device()?.runner;
            match runner.poll(true)? {
                Some(Outcome::Evaluated) => self.known = runner.len(),
                other => fail!(Internal, "{other:?} of a head"),
            }
        }
    }

    fn try_draft(&mut self, context: &DraftContext<'_>, drafts: &mut [u32]) -> Result<usize> {
        if let Some((drafts, _)) = &self.head.fused
            && self.is_in_host_memory()
        {
            drafts.check_files()?;
        }
        let tokens = context.tokens;
        if !self.catch_up(tokens)? {
            return Ok(0);
        }
        let mut sampling = *context.sampling;
        sampling.logprobs = 0;
        let there = self.place.on_device()?;
        let (states, own) = (there.states.clone(), there.own.clone());
        let mut done = 0;
        while done < drafts.len() && !drafts[..done].iter().any(|d| context.is_end(*d)) {
            let runner = &mut self.place.on_device()?.runner;
            let (len, limit) = (runner.len(), runner.queue_limit());
            let count = (drafts.len() - done).min(limit);
            let want = Want::Choices { count, sampling };
            match done.checked_sub(1) {
                None => {
                    let position = self.base + self.known;
                    self.submit(&tokens[position + 1..], &states, position, want)?;
                }
                // It goes on from its own states.
                Some(last) => {
                    let position = len - 1;
                    self.submit(&drafts[last..done], &own, position, want)?;
                }
            }
            for draft in &mut drafts[done..done + count] {
                *draft = match self.place.on_device()?.runner.poll(true)? {
                    Some(Outcome::Token(token)) => token,
                    other => fail!(Internal, "{other:?} of a head"),
                };
            }
            if done == 0 {
                self.known = tokens.len() - 1 - self.base;
            }
            done += count;
        }
        Ok(done)
    }
}

impl DraftSource for HeadDrafts {
    fn kind(&self) -> SourceKind {
        match self.head.fused {
            None => SourceKind::Heads,
            Some(_) => SourceKind::Model,
        }
    }

    fn states(&self) -> Option<Arc<HiddenStates>> {
        match &self.place {
            HeadPlace::Device(there) => Some(there.states.clone()),
            HeadPlace::Host { .. } => None,
        }
    }

    fn lacks(&self, context: &DraftContext<'_>) -> usize {
        let end = context.tokens.len().saturating_sub(1);
        let first = self.first_state(end).unwrap_or(end);
        end - first.max(self.base + self.kept(context.tokens)).min(end)
    }

    /// Behind the last token of a context, if there are states of all before it.
    fn look(&mut self, context: &DraftContext<'_>) -> Result<Option<usize>> {
        let len = context.tokens.len();
        let able = (2..self.context).contains(&len);
        Ok((able && self.first_state(len - 1).is_some()).then_some(0))
    }

    /// A head that fails has no drafts: only speed depends on it.
    fn draft(&mut self, context: &DraftContext<'_>, drafts: &mut [u32]) -> Result<usize> {
        match self.try_draft(context, drafts) {
            Err(e) => {
                // What it has read is as far as its runner has come.
                let len = self.place.on_device().map_or(0, |there| there.runner.len());
                self.known = self.known.min(len);
                if e.status == Status::Interrupted {
                    return Err(e);
                }
                log!(of: self.model.log(), Debug, "no drafts: {}", e.message);
                Ok(0)
            }
            result => result,
        }
    }

    fn evict(&mut self) -> Result<()> {
        // What is in host memory anyway stays there.
        if self.head.fused.is_some() && self.is_in_host_memory() {
            return Ok(());
        }
        let (n_vocab, known) = (self.model.details().n_vocab, self.known);
        let HeadPlace::Device(there) = &mut self.place else {
            return Ok(());
        };
        // Drafts are no part of what it has read.
        let mark = there.runner.mark_before(known);
        there.runner.rollback(mark);
        let state = SavedState::of(&mut *there.runner, &*self.head.weights, n_vocab)?;
        // States that are missing in between are not read.
        let run = there.states.run();
        let first = run.start.max(self.base + state.len()).min(run.end);
        let mut states = try_vec(
            (run.end - first) * there.states.width(),
            0.0,
            "hidden states",
        )?;
        there.states.read(first, &mut states)?;
        self.known = state.len();
        self.place = HeadPlace::Host {
            state,
            first,
            states,
        };
        Ok(())
    }

    fn resume(&mut self) -> Result<()> {
        let HeadPlace::Host {
            state,
            first,
            states: unread,
        } = &self.place
        else {
            return Ok(());
        };
        let mut runner = self.head.weights.clone().create_runner(&self.options)?;
        let (states, own) = self.head.room(&self.model, self.n_states)?;
        // A position is known by the token behind it.
        let tokens = self.read.get(self.base + 1..).unwrap_or_default();
        state.load(&mut *runner, &tokens[..state.len().min(tokens.len())])?;
        runner.keep_states(Some(own.clone()))?;
        states.write(*first, unread)?;
        self.known = self.known.min(runner.len());
        self.place = HeadPlace::Device(OnDevice {
            runner,
            states,
            own,
        });
        Ok(())
    }

    fn fork(&mut self, fork: &Session) -> Result<Box<dyn DraftSource>> {
        let head = self.head.clone();
        let there = self.place.on_device()?;
        let mut other = HeadDrafts::with(fork, head, there.runner.fork()?)?;
        other.place.on_device()?.states.copy(&there.states)?;
        // Within the capacity, so nothing is allocated.
        other.read.extend_from_slice(&self.read);
        (other.base, other.known) = (self.base, self.known);
        Ok(Box::new(other))
    }
}
