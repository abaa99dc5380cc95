//! Drafts of heads that read a model's hidden states: of its own head for further tokens (multi-token prediction), or of one of EAGLE-3,
//! which is a model of its own. A head is one layer that reads the hidden state of a position and the token behind it.
//!
//! The head has a runner of its own, whose positions are those of the context from some position on. It reads the states of
//! what the session has evaluated when it is asked, up to the last token of the context; then it goes on from its own states.
//! States that the session did not keep (it was given the source later, or a prompt was longer than there is room for) are
//! not read: the head then begins behind them.

use super::{DraftContext, DraftSource, SourceKind, fused};
use crate::backend::{
    HiddenStates, MAX_DRAFTS, Outcome, Residual, Row, Runner, RunnerOptions, StatesFrom,
    TokenInput, Want, Weights, When,
};
use crate::engine::interrupt::Interrupts;
use crate::engine::{Model, Session};
use crate::error::{Result, Status, fail, try_vec};
use crate::log::log;
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
    runner: Box<dyn Runner>,
    interrupts: Arc<Interrupts>,
    /// Those of the session.
    states: Arc<HiddenStates>,
    /// The head's own, of its last position.
    own: Arc<HiddenStates>,
    /// The context that it has read. A position is known by the token behind it.
    read: Vec<u32>,
    /// The position of the context that is the runner's first one.
    base: usize,
    /// Positions that were made of the session's states.
    known: usize,
    /// Tokens that a context can have.
    context: usize,
}

/// A head, and what it reads.
#[derive(Clone)]
pub(super) struct Head {
    pub weights: Arc<dyn Weights>,
    /// If it is one of EAGLE-3: the model that it is, and where it reads the session's model.
    pub fused: Option<(Arc<Model>, [usize; 3])>,
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
    /// Errors: `InvalidArgument` if it is not one for the session's model; `Unsupported` if that is not on a CPU; those of a runner of the
    /// head.
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

    /// The same with a runner of the head.
    fn with(target: &Session, head: Head, mut runner: Box<dyn Runner>) -> Result<HeadDrafts> {
        let model = target.model().clone();
        let (_, kept) = HeadDrafts::of_session(&target.options);
        let context = target.context();
        let (states, own) = match &head.fused {
            None => (
                model.weights().hidden_states(kept)?,
                head.weights.hidden_states(1)?,
            ),
            // Its own are those behind its layer.
            Some((_, places)) => (
                model
                    .weights()
                    .states_at(places, kept.min(MAX_FUSED_STATES))?,
                head.weights.states_at(&[1], 1)?,
            ),
        };
        runner.keep_states(Some(own.clone()))?;
        let mut read = try_vec(context + MAX_DRAFTS, 0, "tokens of a head")?;
        read.clear();
        Ok(HeadDrafts {
            states,
            head,
            runner,
            interrupts: target.interrupts().clone(),
            own,
            read,
            base: 0,
            known: 0,
            context,
            model,
        })
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
        let row = Row {
            runner: &mut *self.runner,
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
        let Some(first) = self.states.first(end) else {
            return Ok(false);
        };
        // Something is left to read, behind which is drafted.
        let mut kept = self.kept(tokens).min((end - 1).saturating_sub(self.base));
        // As far as the runner can go back to.
        kept = self.runner.mark_before(kept).position();
        if kept == 0 || first > self.base + kept {
            (self.base, kept) = (first, 0);
        }
        let mark = self.runner.mark_before(kept);
        self.runner.rollback(mark);
        // Draws are by position: those of the session are the same numbers. The first token of the context is none of the head's.
        self.runner.set_draw_offset(self.base + 1)?;
        self.known = self.runner.len();
        self.read.clear();
        self.read.extend_from_slice(tokens);
        let states = self.states.clone();
        loop {
            let position = self.base + self.known;
            if end - position <= PIECE {
                return Ok(true);
            }
            let piece = &tokens[position + 1..=position + PIECE];
            self.submit(piece, &states, position, Want::Evaluated)?;
            match self.runner.poll(true)? {
                Some(Outcome::Evaluated) => self.known = self.runner.len(),
                other => fail!(Internal, "{other:?} of a head"),
            }
        }
    }

    fn try_draft(&mut self, context: &DraftContext<'_>, drafts: &mut [u32]) -> Result<usize> {
        if let Some((drafts, _)) = &self.head.fused {
            drafts.check_files()?;
        }
        let tokens = context.tokens;
        if !self.catch_up(tokens)? {
            return Ok(0);
        }
        let mut sampling = *context.sampling;
        sampling.logprobs = 0;
        let (states, own) = (self.states.clone(), self.own.clone());
        let mut done = 0;
        while done < drafts.len() {
            let count = (drafts.len() - done).min(self.runner.queue_limit());
            let want = Want::Choices { count, sampling };
            match done.checked_sub(1) {
                None => {
                    let position = self.base + self.known;
                    self.submit(&tokens[position + 1..], &states, position, want)?;
                }
                // It goes on from its own states.
                Some(last) => {
                    let position = self.runner.len() - 1;
                    self.submit(&drafts[last..done], &own, position, want)?;
                }
            }
            for draft in &mut drafts[done..done + count] {
                *draft = match self.runner.poll(true)? {
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
        Some(self.states.clone())
    }

    fn lacks(&self, context: &DraftContext<'_>) -> usize {
        let end = context.tokens.len().saturating_sub(1);
        let first = self.states.first(end).unwrap_or(end);
        end - first.max(self.base + self.kept(context.tokens)).min(end)
    }

    /// Behind the last token of a context, if there are states of all before it.
    fn look(&mut self, context: &DraftContext<'_>) -> Result<Option<usize>> {
        let len = context.tokens.len();
        let able = (2..self.context).contains(&len);
        Ok((able && self.states.first(len - 1).is_some()).then_some(0))
    }

    /// A head that fails has no drafts: only speed depends on it.
    fn draft(&mut self, context: &DraftContext<'_>, drafts: &mut [u32]) -> Result<usize> {
        match self.try_draft(context, drafts) {
            Err(e) => {
                // What it has read is as far as its runner has come.
                self.known = self.known.min(self.runner.len());
                if e.status == Status::Interrupted {
                    return Err(e);
                }
                log!(of: self.model.log(), Debug, "no drafts: {}", e.message);
                Ok(0)
            }
            result => result,
        }
    }

    fn fork(&mut self, fork: &Session) -> Result<Box<dyn DraftSource>> {
        let mut other = HeadDrafts::with(fork, self.head.clone(), self.runner.fork()?)?;
        other.states.copy(&self.states)?;
        // Within the capacity, so nothing is allocated.
        other.read.extend_from_slice(&self.read);
        (other.base, other.known) = (self.base, self.known);
        Ok(Box::new(other))
    }
}
