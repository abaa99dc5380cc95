//! Drafts of the model's own head for further tokens (multi-token prediction): one layer that reads the model's hidden state of
//! a position and the token behind it.
//!
//! The head has a runner of its own, whose positions are those of the context from some position on. It reads the states of
//! what the session has evaluated when it is asked, up to the last token of the context; then it goes on from its own states.
//! States that the session did not keep (it was given the source later, or a prompt was longer than there is room for) are
//! not read: the head then begins behind them.

use super::{DraftContext, DraftSource, SourceKind};
use crate::backend::{
    HiddenStates, MAX_DRAFTS, Outcome, Residual, Row, Runner, RunnerOptions, Want, Weights, When,
};
use crate::engine::interrupt::Interrupts;
use crate::engine::sampling::{Input, Scratch, choose};
use crate::engine::{Model, Session};
use crate::error::{Result, Status, fail, try_vec};
use crate::log::log;
use crate::model::{Network, Norm, NormKind};
use std::sync::Arc;

/// Positions whose states are kept until the head has read them.
const MAX_STATES: usize = 4096;
/// Positions that the head reads at a time.
const PIECE: usize = 256;

/// A model's head on its device.
pub(in crate::engine) struct Head {
    weights: Arc<dyn Weights>,
    /// What makes the hidden states of the model, and of the head, of their residual streams.
    norms: [StateNorm; 2],
}

/// A root-mean-square norm of rows.
struct StateNorm {
    weight: Vec<f32>,
    eps: f32,
}

impl StateNorm {
    fn new(norm: &Norm) -> Result<StateNorm> {
        match (norm.kind, &norm.bias, norm.weight.to_f32()?) {
            (NormKind::Rms, None, Some(weight)) => Ok(StateNorm {
                weight,
                eps: norm.eps,
            }),
            _ => fail!(
                Unsupported,
                "tensor {}: a head that guesses further tokens behind such a norm",
                norm.weight.name
            ),
        }
    }

    fn apply(&self, rows: &mut [f32]) {
        for row in rows.chunks_exact_mut(self.weight.len()) {
            let square: f64 = row.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
            let mean = square / row.len() as f64;
            let scale = (1.0 / (mean + f64::from(self.eps)).sqrt()) as f32;
            for (x, weight) in row.iter_mut().zip(&self.weight) {
                *x *= scale * weight;
            }
        }
    }
}

impl Head {
    /// The head `predictor` of a network, beside its weights.
    pub fn load(
        network: &Network,
        predictor: &Network,
        weights: &Arc<dyn Weights>,
    ) -> Result<Head> {
        Ok(Head {
            norms: [
                StateNorm::new(&network.final_norm)?,
                StateNorm::new(&predictor.final_norm)?,
            ],
            weights: weights.load_predictor(predictor)?,
        })
    }

    /// See [`Weights`].
    pub fn weights(&self) -> &Arc<dyn Weights> {
        &self.weights
    }
}

/// A session's head, and what it has read.
pub struct HeadDrafts {
    model: Arc<Model>,
    head: Arc<Head>,
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
    /// States on their way to the head.
    rows: Vec<f32>,
    logits: Vec<f32>,
    scratch: Scratch,
    /// Tokens that a context can have.
    context: usize,
}

impl HeadDrafts {
    /// For a session, whose interrupts end drafting, too.
    ///
    /// Errors: `Unsupported` if its model has no head, or none was loaded; those of a runner of the head.
    pub fn new(target: &Session) -> Result<HeadDrafts> {
        let head = target.model().head()?;
        let options = RunnerOptions {
            // Drafts come behind what is known.
            context: target.context() + MAX_DRAFTS,
            mark_interval: 0,
            ..target.options
        };
        let runner = head.weights.clone().create_runner(&options)?;
        HeadDrafts::with(target, runner)
    }

    /// The same with a runner of the head.
    fn with(target: &Session, mut runner: Box<dyn Runner>) -> Result<HeadDrafts> {
        let model = target.model().clone();
        let head = model.head()?.clone();
        let context = target.context();
        let own = head.weights.hidden_states(1)?;
        runner.keep_states(Some(own.clone()))?;
        let n_vocab = model.details().n_vocab;
        let width = own.width();
        let mut read = try_vec(context + MAX_DRAFTS, 0, "tokens of a head")?;
        read.clear();
        Ok(HeadDrafts {
            states: model.weights().hidden_states(context.min(MAX_STATES))?,
            head,
            runner,
            interrupts: target.interrupts().clone(),
            own,
            read,
            base: 0,
            known: 0,
            rows: try_vec(PIECE.min(context) * width, 0.0, "hidden states")?,
            logits: try_vec(n_vocab, 0.0, "logits")?,
            scratch: Scratch::new(n_vocab)?,
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

    fn evaluate(&mut self, tokens: &[u32], want: Want) -> Result<()> {
        let floats = tokens.len() * self.own.width();
        let row = Row {
            runner: &mut *self.runner,
            tokens,
            want,
            mask: None,
            interrupt: self.interrupts.work(),
            residual: Residual {
                input: Some(&self.rows[..floats]),
                output: None,
            },
        };
        let submitted = self.head.weights.submit(&mut [row], When::Now);
        submitted.map_err(|e| e.error)?;
        match self.runner.poll(true)? {
            Some(Outcome::Logits | Outcome::Evaluated) => Ok(()),
            other => fail!(Internal, "{other:?} of a head"),
        }
    }

    /// Reads a context up to its last token. False if there are no states for it.
    fn catch_up(&mut self, tokens: &[u32]) -> Result<bool> {
        let end = tokens.len() - 1;
        let Some(first) = self.states.first(end) else {
            return Ok(false);
        };
        let mut kept = self.kept(tokens);
        // The logits are those of its last position.
        kept = kept.min((end - 1).saturating_sub(self.base));
        // As far as the runner can go back to.
        kept = self.runner.mark_before(kept).position();
        if kept == 0 || first > self.base + kept {
            (self.base, kept) = (first, 0);
        }
        let mark = self.runner.mark_before(kept);
        self.runner.rollback(mark);
        self.known = self.runner.len();
        self.read.clear();
        self.read.extend_from_slice(tokens);
        let width = self.own.width();
        let [norm, _] = &self.head.clone().norms;
        let piece = self.rows.len() / width;
        let mut position = self.base + self.known;
        while position < end {
            let count = piece.min(end - position);
            let rows = &mut self.rows[..count * width];
            if !self.states.read(position, rows) {
                return Ok(false);
            }
            norm.apply(rows);
            position += count;
            let want = match position == end {
                true => Want::Logits,
                false => Want::Evaluated,
            };
            self.evaluate(&tokens[position - count + 1..=position], want)?;
            self.known = self.runner.len();
        }
        Ok(true)
    }

    fn try_draft(&mut self, context: &DraftContext<'_>, drafts: &mut [u32]) -> Result<usize> {
        if !self.catch_up(context.tokens)? {
            return Ok(0);
        }
        let mut sampling = *context.sampling;
        sampling.logprobs = 0;
        let width = self.own.width();
        let count = drafts.len();
        let known = context.tokens.len();
        for (i, draft) in drafts.iter_mut().enumerate() {
            self.runner.logits(&mut self.logits)?;
            // Draws are by position: those of the session are the same numbers.
            let input = Input {
                logits: &self.logits,
                history: &self.read,
                rules: None,
                mask: None,
                position: self.read.len() as u64,
            };
            *draft = choose(&input, &mut self.scratch, &sampling)?;
            if i + 1 == count {
                break;
            }
            let last = self.runner.len() - 1;
            if !self.own.read(last, &mut self.rows[..width]) {
                fail!(Internal, "a head without its own state");
            }
            self.head.clone().norms[1].apply(&mut self.rows[..width]);
            // Within the capacity, so nothing is allocated.
            self.read.push(*draft);
            self.evaluate(&[*draft], Want::Logits)?;
        }
        self.read.truncate(known);
        Ok(count)
    }
}

impl DraftSource for HeadDrafts {
    fn kind(&self) -> SourceKind {
        SourceKind::Heads
    }

    fn states(&self) -> Option<Arc<HiddenStates>> {
        Some(self.states.clone())
    }

    fn lacks(&self, context: &DraftContext<'_>) -> usize {
        let end = context.tokens.len().saturating_sub(1);
        let first = self.states.first(end).unwrap_or(end);
        end - first.max(self.base + self.kept(context.tokens)).min(end)
    }

    /// Behind the last token of a context, whose own state is not there yet.
    fn look(&mut self, context: &DraftContext<'_>) -> Result<Option<usize>> {
        let len = context.tokens.len();
        let able = context.evaluated + 1 == len && len < self.context;
        Ok((able && self.states.first(context.evaluated).is_some()).then_some(0))
    }

    /// A head that fails has no drafts: only speed depends on it.
    fn draft(&mut self, context: &DraftContext<'_>, drafts: &mut [u32]) -> Result<usize> {
        match self.try_draft(context, drafts) {
            Err(e) => {
                // What it has read is as far as its runner has come.
                self.known = self.known.min(self.runner.len());
                self.read.truncate(context.tokens.len());
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
        let mut other = HeadDrafts::with(fork, self.runner.fork()?)?;
        other.states.copy(&self.states);
        // Within the capacity, so nothing is allocated.
        other.read.extend_from_slice(&self.read);
        (other.base, other.known) = (self.base, self.known);
        Ok(Box::new(other))
    }
}
