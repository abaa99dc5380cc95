//! What a session's work is done with: tokens go through the parts, in pieces.

use super::weights::{PartsWeights, Streams};
use super::{pipeline, ranks};
use crate::backend::driver::Driven;
use crate::backend::group::History;
use crate::backend::{KvType, Mark, MaskSource, Outcome, Residual, Row, Runner, Want, When};
use crate::engine::sampling::{LogprobBoxes, Logprobs, Sampling};
use crate::error::{Result, fail};
use crate::model::AdapterSet;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// A session's state, and what evaluates it.
pub(super) struct Core {
    /// A runner of each part. They go before the weights, with graphs that have captured work of all ranks.
    pub parts: Vec<Box<dyn Runner>>,
    pub weights: Arc<PartsWeights>,
    pub context: usize,
    /// The residual stream of one token.
    own: Streams,
    /// Tokens of started work. Kept for its capacity.
    pub started: Vec<u32>,
    /// The tokens that a started choice may take, a bit each, if it is masked.
    pub mask: Vec<u32>,
    /// Positions evaluated by now, for other threads.
    pub progress: Arc<AtomicUsize>,
    /// Where log-probabilities go.
    pub logprob_boxes: LogprobBoxes,
    /// Element type of the caches.
    pub kv_type: KvType,
    /// What stands for its tokens, where ranks that are apart compare them.
    history: Option<History>,
    /// What all parts add to their products.
    pub adapters: Option<Arc<AdapterSet>>,
}

/// What work has come to.
pub(super) enum Done {
    Logits,
    Evaluated,
    Token(u32, Option<Box<Logprobs>>),
    /// A choice of a row with drafts, behind so many positions; none where a choice by logits at hand comes first.
    Verified(u32, Option<Box<Logprobs>>, Option<usize>),
}

impl Core {
    /// A session of runners of each part, with states of the same positions. Errors: `OutOfMemory`.
    pub fn new(
        weights: Arc<PartsWeights>,
        parts: Vec<Box<dyn Runner>>,
        (context, kv_type): (usize, KvType),
    ) -> Result<Core> {
        let own = Streams::new(weights.hidden())?;
        let words = weights.n_vocab().div_ceil(32);
        let history = weights.are_apart().then(History::default);
        let core = Core {
            weights,
            parts,
            context,
            kv_type,
            own,
            started: Vec::new(),
            mask: crate::error::try_vec(words, 0u32, "mask of a choice")?,
            progress: Arc::default(),
            history,
            logprob_boxes: LogprobBoxes::new(),
            adapters: None,
        };
        core.progress.store(core.len(), Relaxed);
        Ok(core)
    }

    /// What the other one has of its tokens: they have the same.
    pub fn remember(&mut self, other: &Core) {
        self.history = other.history.clone();
    }

    /// The position and what stands for the tokens before it.
    pub fn context_mark(&self) -> (usize, u64) {
        let len = self.len();
        (
            len,
            self.history.as_ref().map_or(0, |history| history.at(len)),
        )
    }

    /// Notes tokens that are behind the last ones now, for which there is room.
    pub fn history_append(&mut self, tokens: &[u32]) {
        if let Some(history) = &mut self.history {
            history.append(tokens);
        }
    }

    /// Room for so many more tokens in all parts.
    pub fn reserve(&mut self, tokens: usize) -> Result<()> {
        if let Some(history) = &mut self.history {
            history.reserve(tokens)?;
        }
        let mut parts = self.parts.iter_mut();
        parts.try_for_each(|part| part.reserve_tokens(tokens))
    }

    /// Positions in the state.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.len()).min().unwrap_or(0)
    }

    /// The part that has the logits and chooses.
    pub fn speaker(&mut self) -> Result<&mut dyn Runner> {
        let index = self.weights.speaker();
        match self.parts.get_mut(index) {
            Some(part) => Ok(&mut **part),
            None => fail!(Internal, "a network of no parts"),
        }
    }

    /// Has all parts add this to their products; after an error none does.
    pub fn set_adapters(&mut self, adapters: Option<Arc<AdapterSet>>) -> Result<()> {
        // What can fail for want of memory comes before anything changes.
        let mut parts = self.parts.iter_mut();
        let reserved = parts.try_for_each(|part| part.reserve_adapters(adapters.as_ref()));
        if reserved.is_err() {
            for part in &mut self.parts {
                part.reserve_adapters(None)?;
            }
            return reserved;
        }
        for i in 0..self.parts.len() {
            if let Err(e) = self.parts[i].set_adapters(adapters.clone()) {
                for part in &mut self.parts[i..] {
                    part.reserve_adapters(None)?;
                }
                for part in &mut self.parts[..i] {
                    part.set_adapters(self.adapters.clone())?;
                }
                return Err(e);
            }
        }
        self.adapters = adapters;
        Ok(())
    }

    /// The last mark with at most `position` positions that all parts can go back to.
    pub fn mark_before(&self, position: usize) -> Mark {
        let mut mark = Mark::at(position);
        loop {
            let marks = self
                .parts
                .iter()
                .map(|part| part.mark_before(mark.position()));
            match marks.min_by_key(|mark| mark.position()) {
                Some(earlier) if earlier.position() < mark.position() => mark = earlier,
                _ => return mark,
            }
        }
    }

    /// Goes back to the last mark that all parts have within the first `position` positions.
    pub fn go_back(&mut self, position: usize) {
        loop {
            let mark = self.mark_before(position.min(self.len()));
            for part in &mut self.parts {
                part.rollback(mark);
            }
            // A part may find that it has to go further.
            let len = self.len();
            if self.parts.iter().all(|part| part.len() == len) {
                break;
            }
        }
        let len = self.len();
        if let Some(history) = &mut self.history {
            history.truncate(len);
        }
        self.progress.store(len, Relaxed);
    }

    /// Has all parts evaluate a token, some drafts or none, and the last one do what is wanted. Its outcomes are to be polled.
    fn piece(
        &mut self,
        tokens: &[u32],
        want: Want,
        mask: Option<&mut MaskSource<'_>>,
        interrupt: &Arc<AtomicBool>,
    ) -> Result<()> {
        let floats = tokens.len() * self.weights.hidden();
        let mut borrowed = match tokens.len() {
            0 | 1 => None,
            _ => Some(self.weights.streams()?),
        };
        let streams = match &mut borrowed {
            Some(streams) => &mut **streams,
            None => &mut self.own,
        };
        let of_earlier = match want {
            Want::Evaluated => Want::Evaluated,
            Want::Verified { drafts, .. } => Want::Drafted { drafts },
            _ => Want::Logits,
        };
        let Some((last, earlier)) = self.parts.split_last_mut() else {
            fail!(Internal, "a network of no parts");
        };
        let mut is_first = true;
        let weights = self.weights.parts();
        if !tokens.is_empty() {
            for (part, weights) in earlier.iter_mut().zip(weights) {
                let row = Row {
                    runner: &mut **part,
                    tokens,
                    want: of_earlier,
                    mask: None,
                    interrupt,
                    residual: Residual {
                        input: (!is_first).then_some(&streams.before[..floats]).into(),
                        output: Some(&mut streams.behind[..floats]),
                    },
                };
                let submitted = weights.submit(&mut [row], When::Now);
                submitted.map_err(|e| e.error)?;
                part.poll(true)?;
                std::mem::swap(&mut streams.before, &mut streams.behind);
                is_first = false;
            }
        }
        let row = Row {
            runner: &mut **last,
            tokens,
            want,
            mask: mask.map(|mask| mask as &mut MaskSource<'_>),
            interrupt,
            residual: Residual {
                input: (!is_first).then_some(&streams.before[..floats]).into(),
                output: None,
            },
        };
        let weights = &weights[weights.len() - 1];
        let submitted = weights.submit(&mut [row], When::Now);
        submitted.map_err(|e| e.error)
    }

    /// Has all parts evaluate tokens, for the logits of the last one or for nothing else.
    fn evaluate(&mut self, tokens: &[u32], want: Want, interrupt: &Arc<AtomicBool>) -> Result<()> {
        let weights = self.weights.clone();
        if let Some(ranks) = weights.ranks() {
            return ranks::evaluate(self, ranks, (tokens, want), interrupt);
        }
        match tokens {
            [] => fail!(NoInput, "nothing to evaluate"),
            [_] => {
                self.piece(tokens, want, None, interrupt)?;
                self.speaker()?.poll(true)?;
                Ok(())
            }
            _ => pipeline::evaluate(self, tokens, want, interrupt),
        }
    }

    /// Does work and undoes it if it fails.
    fn or_go_back<T>(&mut self, work: impl FnOnce(&mut Core) -> Result<T>) -> Result<T> {
        let before = self.len();
        let done = work(self);
        match &done {
            Ok(_) => self.progress.store(self.len(), Relaxed),
            Err(_) => self.go_back(before),
        }
        done
    }

    /// Tells other threads how far the state is.
    pub fn note_progress(&self) {
        self.progress.store(self.len(), Relaxed);
    }

    /// Checks that so many tokens can be appended.
    pub fn check(&self, tokens: &[u32]) -> Result<()> {
        let len = self.len();
        if tokens.len() > self.context - len.min(self.context) {
            fail!(
                ContextFull,
                "{} tokens do not fit behind {len} of a context of {}",
                tokens.len(),
                self.context
            );
        }
        Ok(())
    }

    /// Appends `tokens`, for the logits of the last one or for nothing else.
    pub fn extend(
        &mut self,
        tokens: &[u32],
        want: Want,
        interrupt: &Arc<AtomicBool>,
    ) -> Result<Done> {
        self.check(tokens)?;
        self.or_go_back(|core| {
            core.evaluate(tokens, want, interrupt)?;
            Ok(match want {
                Want::Evaluated => Done::Evaluated,
                _ => Done::Logits,
            })
        })
    }

    /// Appends `tokens`, which may be none, and chooses the next one.
    pub fn choose(
        &mut self,
        tokens: &[u32],
        sampling: &Sampling,
        mask: Option<&mut MaskSource<'_>>,
        interrupt: &Arc<AtomicBool>,
    ) -> Result<(Done, u32)> {
        self.check(tokens)?;
        let want = Want::Choices {
            count: 1,
            sampling: *sampling,
        };
        self.or_go_back(|core| {
            let (first, last) = tokens.split_at(tokens.len().saturating_sub(1));
            // By itself, as in a batch: a GPU evaluates several tokens with other sums.
            if !first.is_empty() {
                core.evaluate(first, Want::Logits, interrupt)?;
            }
            let weights = core.weights.clone();
            if let Some(ranks) = weights.ranks() {
                return ranks::choose(core, ranks, (last, want), mask, interrupt);
            }
            core.piece(last, want, mask, interrupt)?;
            core.chosen()
        })
    }

    /// The next choice of the last part.
    pub fn chosen(&mut self) -> Result<(Done, u32)> {
        let (token, logprobs) = self.polled()?;
        Ok((Done::Token(token, logprobs), token))
    }

    fn polled(&mut self) -> Result<(u32, Option<Box<Logprobs>>)> {
        let boxes = self.logprob_boxes.clone();
        let speaker = self.speaker()?;
        let Some(Outcome::Token(token)) = speaker.poll(true)? else {
            fail!(Internal, "a part that has not chosen");
        };
        let logprobs = speaker.logprobs().cloned().map(|l| boxes.fill(l));
        Ok((token, logprobs))
    }

    /// Appends `tokens`, of which the last `drafts` are guesses, and chooses as `Want::Verified` says. `outcomes` gets a choice
    /// at least, and at the end the error of one that has failed behind others.
    pub fn verify(
        &mut self,
        (tokens, drafts): (&[u32], usize),
        sampling: &Sampling,
        mask: Option<&mut MaskSource<'_>>,
        interrupt: &Arc<AtomicBool>,
        outcomes: &mut VecDeque<Result<Done>>,
    ) -> Result<()> {
        self.check(tokens)?;
        if outcomes.try_reserve(drafts + 1).is_err() {
            fail!(OutOfMemory, "room for {} outcomes", drafts + 1);
        }
        let want = Want::Verified {
            drafts,
            sampling: *sampling,
        };
        self.or_go_back(|core| {
            let (before, rest) = tokens.split_at(tokens.len() - tokens.len().min(drafts + 1));
            // As before a choice.
            if !before.is_empty() {
                core.evaluate(before, Want::Logits, interrupt)?;
            }
            let start = core.len();
            let weights = core.weights.clone();
            let kept = match weights.ranks() {
                Some(ranks) => {
                    let rows = (rest, drafts);
                    ranks::verify(core, ranks, rows, sampling, mask, interrupt, outcomes)
                }
                None => {
                    let evaluated = core.piece(rest, want, mask, interrupt);
                    evaluated.and_then(|()| core.verified(rest, start, drafts, outcomes))
                }
            };
            core.keep_drafts(start, kept)
        })
    }

    /// The choices behind drafts, of which `rest` are the rows behind `start` positions; how many positions the part that chooses has kept.
    pub fn verified(
        &mut self,
        rest: &[u32],
        start: usize,
        drafts: usize,
        outcomes: &mut VecDeque<Result<Done>>,
    ) -> Result<usize> {
        let known = rest.len() - drafts;
        let guesses = &rest[known..];
        for (i, next) in guesses.iter().map(Some).chain([None]).enumerate() {
            match self.polled() {
                Ok((token, logprobs)) => {
                    let position = (known + i > 0).then_some(start + known + i);
                    outcomes.push_back(Ok(Done::Verified(token, logprobs, position)));
                    if next != Some(&token) {
                        break;
                    }
                }
                Err(e) if outcomes.is_empty() => return Err(e),
                Err(e) => {
                    outcomes.push_back(Err(e));
                    break;
                }
            }
        }
        Ok(self.speaker()?.len())
    }

    /// Has the parts that have evaluated drafts behind `start` positions go back to what the one that chooses has kept, or to `start`.
    fn keep_drafts(&mut self, start: usize, kept: Result<usize>) -> Result<()> {
        let len = *kept.as_ref().unwrap_or(&start);
        let speaker = self.weights.speaker();
        let mut done = kept.map(drop);
        let parts = self.parts.iter_mut().enumerate();
        for (_, part) in parts.filter(|(i, _)| *i != speaker) {
            // After a failure, some have not begun.
            if done.is_ok() || part.len() > start {
                done = done.and(part.keep_drafts(len));
            }
        }
        done?;
        if self.parts.iter().any(|part| part.len() != len) {
            self.go_back(len);
        }
        Ok(())
    }

    /// A choice behind drafts was handed out, or has failed: see [`Runner::settle_drafts`].
    pub fn settle_drafts(&mut self, position: Option<usize>) -> Result<()> {
        let mut parts = self.parts.iter_mut();
        let settled = parts.try_for_each(|part| part.settle_drafts(position));
        if position.is_none() || settled.is_err() {
            self.go_back(self.len());
        }
        settled
    }

    /// What was chosen behind drafts and not handed out is not wanted.
    pub fn drop_drafts(&mut self) {
        self.parts.iter_mut().for_each(|part| part.drop_outcomes());
    }

    /// Room for rows of so many drafts in all parts.
    pub fn reserve_drafts(&mut self, drafts: usize) -> Result<()> {
        // Ranks have no residual streams between them.
        if self.weights.ranks().is_none() {
            drop(self.weights.streams()?);
        }
        let mut parts = self.parts.iter_mut();
        parts.try_for_each(|part| part.reserve_drafts(drafts))
    }

    /// The logits of the last position are at hand.
    pub fn has_logits(&self) -> bool {
        let speaker = self.parts.get(self.weights.speaker());
        speaker.is_some_and(|part| part.has_logits())
    }
}

impl Driven for Core {
    type Done = Done;

    fn started(&mut self) -> &mut Vec<u32> {
        &mut self.started
    }

    fn answers_interrupts(&self) -> bool {
        self.weights.are_apart()
    }

    fn evaluate(&mut self, tokens: &[u32], interrupt: &Arc<AtomicBool>) -> Result<Done> {
        self.extend(tokens, Want::Logits, interrupt)
    }

    fn choose_next(
        &mut self,
        tokens: &[u32],
        sampling: &Sampling,
        masked: bool,
        interrupt: &Arc<AtomicBool>,
    ) -> Result<(Done, u32)> {
        let words = std::mem::take(&mut self.mask);
        let mut source = |to: &mut [u32]| {
            let n = to.len().min(words.len());
            to[..n].copy_from_slice(&words[..n]);
            Ok(())
        };
        let mask = masked.then_some(&mut source as &mut MaskSource<'_>);
        let chosen = self.choose(tokens, sampling, mask, interrupt);
        self.mask = words;
        chosen
    }

    fn verify_drafts(
        &mut self,
        tokens: (&[u32], usize),
        sampling: &Sampling,
        interrupt: &Arc<AtomicBool>,
        outcomes: &mut VecDeque<Result<Done>>,
    ) -> Result<()> {
        self.verify(tokens, sampling, None, interrupt, outcomes)
    }
}
