//! Drafts: tokens that are guessed, evaluated together and kept as far as they are what would have been chosen anyway.
//!
//! Draws are by position, so a draft is right if it is the token that the draw of its position chooses by the model's own
//! logits. Drafts change how long a decode takes, and nothing else.

mod depth;
mod model;
mod ngram;

use super::residence::Residence;
use super::sampling::Sampling;
use super::session::submit;
use super::{Model, Session};
use crate::backend::{MAX_DRAFTS, Mark, MaskSource, Outcome, Residual, Row, Want, When};
use crate::error::{Result, Status, fail};
use crate::memory;
use arrayvec::ArrayVec;
use depth::{CLASSES, Depth};
pub use model::ModelDrafts;
pub use ngram::NgramDrafts;
use std::sync::Arc;
use std::time::Instant;

/// What a source of drafts may look at.
pub struct DraftContext<'a> {
    /// The tokens of the context.
    pub tokens: &'a [u32],
    /// How the next ones are chosen.
    pub sampling: &'a Sampling,
}

/// Guesses tokens.
pub trait DraftSource: Send {
    /// What kind of source it is.
    fn kind(&self) -> SourceKind {
        SourceKind::Other
    }

    /// Whether its guesses take no time worth mentioning, so that started decodes, which never wait, may ask for them.
    fn is_quick(&self) -> bool {
        false
    }

    /// Tokens of a context that it has yet to read before it can guess what follows.
    fn lacks(&self, context: &DraftContext<'_>) -> usize {
        let _ = context;
        0
    }

    /// Looks whether it has a guess of what follows a context, and how good such guesses are: a class below
    /// [`DRAFT_CLASSES`], whose guesses are counted together.
    ///
    /// Errors: `Interrupted`.
    fn look(&mut self, context: &DraftContext<'_>) -> Result<Option<usize>>;

    /// Writes its guess of the tokens behind the context that it has looked at, and returns how many it wrote.
    ///
    /// Errors: `Interrupted`.
    fn draft(&mut self, context: &DraftContext<'_>, drafts: &mut [u32]) -> Result<usize>;

    /// The same source for `fork`, a fork of its session.
    ///
    /// Errors: `OutOfMemory`; those of a backend.
    fn fork(&mut self, fork: &Session) -> Result<Box<dyn DraftSource>>;
}

/// How many drafts a step verifies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftOptions {
    /// At most, up to [`MAX_DRAFTS`]; 0 means 16.
    pub most: usize,
    /// As many as that and the source have, whether it is worth it or not.
    pub always: bool,
}

/// Kinds of sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// The session's own context.
    Ngram = 1,
    /// Another model.
    Model = 2,
    /// One of the caller's.
    Other = 3,
}

/// How a session drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpeculationInfo {
    /// Where drafts come from.
    pub source: SourceKind,
    /// Drafts of a step at most.
    pub most: usize,
    /// Drafts that the last step was to verify.
    pub depth: usize,
    /// What they have come to.
    pub stats: SpeculationStats,
}

/// Decodes that are started at once where no drafts are verified, before there may be some.
const STARTED_AT_ONCE: usize = 8;

/// Classes of drafts.
pub const DRAFT_CLASSES: usize = CLASSES;

/// What drafts have come to so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpeculationStats {
    /// Steps in which drafts were verified.
    pub steps: u64,
    /// Drafts that were verified.
    pub drafted: u64,
    /// Drafts that were right.
    pub accepted: u64,
}

/// A session's source of drafts, and what its drafts have been worth.
pub(super) struct Speculation {
    source: Box<dyn DraftSource>,
    depth: Depth,
    stats: SpeculationStats,
    options: DraftOptions,
    /// The drafts of the last step, until its outcomes were all polled.
    verified: ArrayVec<u32, MAX_DRAFTS>,
    /// Of them, those that were polled as chosen.
    accepted: usize,
    /// Their class.
    class: usize,
    /// Whether the token that was polled last was a draft.
    drafted_last: bool,
    /// Seconds that its source took to read a token of a prompt, and where the present answer begins in the context.
    reading: f32,
    answer: usize,
    /// Drafts of a step whose first token is not polled yet, and when it began, where that says what a step takes.
    timed: Option<(usize, Instant)>,
}

impl Speculation {
    fn new(source: Box<dyn DraftSource>, options: DraftOptions) -> Speculation {
        Speculation {
            source,
            depth: Depth::new(),
            stats: SpeculationStats::default(),
            options,
            verified: ArrayVec::new(),
            accepted: 0,
            class: 0,
            drafted_last: false,
            reading: 0.0,
            answer: 0,
            timed: None,
        }
    }

    /// The same for a fork, with counts of its own.
    fn fork(&mut self, fork: &Session) -> Result<Speculation> {
        Ok(Speculation {
            depth: self.depth.clone(),
            ..Speculation::new(self.source.fork(fork)?, self.options)
        })
    }

    /// Drafts of a step at most.
    pub(super) fn most(&self) -> usize {
        self.options.most
    }

    /// Up to `most` drafts of what follows a context, and their class.
    fn drafts(
        &mut self,
        context: &DraftContext<'_>,
        most: usize,
        drafts: &mut [u32; MAX_DRAFTS],
    ) -> Result<(usize, usize)> {
        let Some(class) = self.source.look(context)? else {
            return Ok((0, 0));
        };
        let most = most.min(self.options.most);
        let lacks = self.source.lacks(context);
        // What one step may have brought is no prompt.
        let reads = lacks > MAX_DRAFTS + 1;
        if reads && !self.options.always {
            // As much of the answer may come as there is.
            let answer = context.tokens.len().saturating_sub(self.answer);
            if self.depth.gain(class, most) * answer as f32 <= self.reading * lacks as f32 {
                return Ok((self.depth.fix(0), class));
            }
        }
        let depth = match self.options.always {
            true => self.depth.fix(most),
            false => self.depth.choose(class, most),
        };
        if depth == 0 {
            return Ok((0, class));
        }
        let begun = Instant::now();
        let count = self.source.draft(context, &mut drafts[..depth])?.min(depth);
        match reads {
            true => self.reading = begun.elapsed().as_secs_f32() / lacks as f32,
            false => self.depth.drafting_took(count, begun.elapsed()),
        }
        Ok((count, class))
    }

    /// The context has a prompt up to a position, behind which an answer begins.
    pub(super) fn prompted(&mut self, position: usize) {
        self.answer = position;
    }

    /// A step was submitted.
    fn submitted(&mut self, drafts: &[u32], class: usize) {
        self.verified.clear();
        self.verified.extend(drafts.iter().copied());
        (self.accepted, self.class) = (0, class);
        self.stats.steps += 1;
        self.stats.drafted += drafts.len() as u64;
    }

    /// An outcome of the runner was polled; the next one of the step, if there is one, was chosen already.
    fn polled(&mut self, token: Option<u32>) {
        if let Some((count, begun)) = self.timed.take()
            && token.is_some()
        {
            self.depth.step_took(count, begun.elapsed());
        }
        self.drafted_last = false;
        match self.verified.get(self.accepted) {
            Some(next) if token == Some(*next) => {
                self.drafted_last = true;
                self.accepted += 1;
                self.stats.accepted += 1;
            }
            // The choice behind the last right one, or an error in its place.
            _ if !self.verified.is_empty() => self.end(),
            _ => {}
        }
    }

    /// The last outcome of a step was polled.
    fn end(&mut self) {
        self.depth
            .came_to(self.class, self.verified.len(), self.accepted);
        self.verified.clear();
        self.accepted = 0;
    }
}

impl Session {
    /// Lets decodes verify drafts of a source, in place of the source before.
    ///
    /// Errors: `Unsupported` if the model's device or architecture cannot verify drafts; `InvalidArgument` for more than
    /// [`MAX_DRAFTS`]; `DecodePending`.
    pub fn set_draft_source(
        &mut self,
        source: Box<dyn DraftSource>,
        options: &DraftOptions,
    ) -> Result<()> {
        self.begin()?;
        let options = self.check_drafts(options)?;
        // A state that is not on the device gets it when it comes back.
        if let Residence::Device(runner) = &mut self.residence {
            runner.reserve_drafts(options.most)?;
        }
        memory::check()?;
        self.speculation = Some(Box::new(Speculation::new(source, options)));
        Ok(())
    }

    /// Lets decodes verify drafts of what followed the last tokens where they occurred in the context before, the last
    /// `min_match` of them at least (0: 2).
    ///
    /// Errors: those of [`set_draft_source`](Session::set_draft_source); `OutOfMemory`.
    pub fn set_ngram_drafts(&mut self, min_match: usize, options: &DraftOptions) -> Result<()> {
        self.begin()?;
        self.check_drafts(options)?;
        let source = NgramDrafts::new(self.context(), min_match)?;
        self.set_draft_source(Box::new(source), options)
    }

    /// Lets decodes verify drafts of another model with the same vocabulary.
    ///
    /// Errors: those of [`set_draft_source`](Session::set_draft_source); `InvalidArgument` if the vocabulary is another
    /// one; those of a session of the other model.
    pub fn set_model_drafts(&mut self, drafts: &Arc<Model>, options: &DraftOptions) -> Result<()> {
        self.begin()?;
        self.check_drafts(options)?;
        let source = ModelDrafts::new(self, drafts)?;
        self.set_draft_source(Box::new(source), options)
    }

    /// Decodes token by token again.
    ///
    /// Errors: `DecodePending`.
    pub fn clear_drafts(&mut self) -> Result<()> {
        self.begin()?;
        self.speculation = None;
        Ok(())
    }

    /// The present source, and what its drafts have come to.
    pub fn speculation(&self) -> Option<SpeculationInfo> {
        let speculation = self.speculation.as_ref()?;
        Some(SpeculationInfo {
            source: speculation.source.kind(),
            most: speculation.options.most,
            depth: speculation.depth.present(),
            stats: speculation.stats,
        })
    }

    fn check_drafts(&self, options: &DraftOptions) -> Result<DraftOptions> {
        let weights = self.model.weights();
        let able = weights.max_drafts();
        if able == 0 && weights.fixed_len() > 0 {
            fail!(
                Unsupported,
                "models with recurrent layers cannot verify drafts yet"
            );
        }
        if able == 0 {
            fail!(Unsupported, "the model's device cannot verify drafts");
        }
        let most = match options.most {
            0 => able.min(16),
            n if n <= able => n,
            n => fail!(
                InvalidArgument,
                "max_drafts is {n}; a step verifies up to {able}"
            ),
        };
        Ok(DraftOptions { most, ..*options })
    }

    /// Gives a fork the same source of drafts.
    pub(super) fn share_drafts(&mut self, fork: &mut Session) -> Result<()> {
        if let Some(speculation) = &mut self.speculation {
            fork.residence
                .runner()?
                .reserve_drafts(speculation.options.most)?;
            fork.speculation = Some(Box::new(speculation.fork(fork)?));
            memory::check()?;
        }
        Ok(())
    }

    /// Whether the token that was decoded last was a draft.
    pub fn is_last_drafted(&self) -> bool {
        let drafted = self.speculation.as_ref().is_some_and(|s| s.drafted_last);
        drafted && !self.is_last_forced()
    }

    /// Whether the runner has tokens that were chosen and not polled yet.
    pub(super) fn is_ahead(&self) -> bool {
        self.speculation.as_ref().is_some_and(|s| s.accepted > 0)
    }

    /// The next chosen token of the runner, or `None` while it is not there.
    pub(super) fn poll_token(&mut self, wait: bool) -> Result<Option<u32>> {
        let polled = chosen_token(self.residence.runner()?.poll(wait));
        if let Some(speculation) = &mut self.speculation {
            match &polled {
                Ok(None) => {}
                Ok(token) => speculation.polled(*token),
                Err(_) => speculation.polled(None),
            }
        }
        polled
    }

    /// The next of the tokens that are ahead, if there are any. After an error, none are.
    pub(super) fn next_ahead(&mut self) -> Result<Option<u32>> {
        if !self.is_ahead() {
            return Ok(None);
        }
        self.check_ahead()?;
        let token = self.poll_token(true);
        if token.is_err() {
            self.leave_last();
        }
        token
    }

    /// Forgets what the runner has evaluated from the last token on, which is one that was chosen: without drafts the next call
    /// would evaluate it, in the way that is that call's.
    fn leave_last(&mut self) {
        self.residence.roll_back_to(self.tokens.len() - 1);
    }

    /// What a decode checks whose token is ahead; where the state is then.
    pub(super) fn check_ahead(&mut self) -> Result<Mark> {
        self.check_started()?;
        if self.interrupts.is_asked() {
            fail!(Interrupted, "interrupted before the call");
        }
        Ok(self.residence.runner()?.mark())
    }

    /// Forgets the tokens that are ahead, and what the runner has evaluated for them.
    pub(super) fn drop_ahead(&mut self) {
        let mut dropped = false;
        while self.is_ahead() {
            dropped = true;
            if self.poll_token(true).is_err() {
                break;
            }
        }
        if dropped {
            self.leave_last();
        }
    }

    /// Chooses the next token, with drafts if there is a source of them; what they bring beyond it is ahead then.
    pub(super) fn choose_next(&mut self) -> Result<u32> {
        self.submit_choices(1, When::Now)?;
        match self.poll_token(true)? {
            Some(token) => Ok(token),
            None => fail!(Internal, "no token after a wait for it"),
        }
    }

    /// Submits the choice of up to `count` tokens, or of one with drafts of what follows it if that is worth it, and returns how
    /// many it is.
    pub(super) fn submit_choices(&mut self, count: usize, when: When) -> Result<usize> {
        match self.speculation.take() {
            None => self.choose(count, when),
            Some(mut speculation) => {
                let submitted = self.submit_with(&mut speculation, count, when);
                self.speculation = Some(speculation);
                submitted
            }
        }
    }

    fn submit_with(
        &mut self,
        speculation: &mut Speculation,
        most: usize,
        when: When,
    ) -> Result<usize> {
        self.drop_stale_position()?;
        let unevaluated = self.tokens.len() - self.residence.runner()?.len();
        if when == When::Background {
            // The masks of several choices are made within a call that waits for the device.
            if self.constraint.is_some() || !speculation.source.is_quick() {
                return self.choose(most, when);
            }
            // So is a choice by logits at hand.
            if unevaluated == 0 {
                return self.choose(1, when);
            }
        }
        let context = DraftContext {
            tokens: &self.tokens,
            sampling: &self.sampling,
        };
        let mut drafts = [0; MAX_DRAFTS];
        // Behind the drafts there is a position for the token that is chosen after them.
        let (mut count, class) = match self.context() - self.tokens.len() - 1 {
            0 => (0, 0),
            room => speculation.drafts(&context, room, &mut drafts)?,
        };
        count = self.possible(&drafts[..count])?;
        // A step that first has other tokens to evaluate, or none, says nothing about what drafts cost.
        let typical = unevaluated == 1;
        speculation.timed = typical.then(|| (count, Instant::now()));
        if count == 0 {
            return self.choose(most.min(STARTED_AT_ONCE), when);
        }
        self.submit_drafts(&drafts[..count], when)?;
        speculation.submitted(&drafts[..count], class);
        Ok(1)
    }

    /// Submits drafts of what follows the context.
    fn submit_drafts(&mut self, drafts: &[u32], when: When) -> Result<()> {
        let mut ahead = match &self.constraint {
            Some(constraint) => Some(constraint.matcher_ahead()?),
            None => None,
        };
        // The mask of a choice behind drafts is asked for when they were all chosen.
        let mut passed = 0;
        let mut mask = ahead.as_mut().map(|matcher| {
            move |words: &mut [u32]| {
                if passed > 0 {
                    matcher.accept(drafts[passed - 1])?;
                }
                passed += 1;
                matcher.mask(words)
            }
        });
        let before = self.tokens.len();
        // Within the capacity, so nothing is allocated.
        self.tokens.extend_from_slice(drafts);
        let runner = self.residence.runner()?;
        let evaluated = runner.len();
        let row = Row {
            runner,
            tokens: &self.tokens[evaluated..],
            want: Want::Verified {
                drafts: drafts.len(),
                sampling: self.sampling,
            },
            mask: mask.as_mut().map(|m| m as &mut MaskSource),
            interrupt: self.interrupts.work(),
            residual: Residual::default(),
        };
        let submitted = submit(&**self.model.weights(), row, when);
        self.tokens.truncate(before);
        submitted
    }

    /// How many of the drafts can be verified: those that the grammar allows, up to one behind which it leaves no choice,
    /// for such tokens do not come from the model.
    fn possible(&self, drafts: &[u32]) -> Result<usize> {
        let (Some(constraint), [_, ..]) = (&self.constraint, drafts) else {
            return Ok(drafts.len());
        };
        let tokenizer = self.model.tokenizer()?;
        let mut matcher = constraint.matcher_ahead()?;
        for (i, draft) in drafts.iter().enumerate() {
            let forced = matcher
                .accept(*draft)
                .and_then(|()| matcher.next_forced(tokenizer));
            match forced {
                Ok(None) => {}
                Ok(Some(_)) => return Ok(i),
                Err(e) if e.status == Status::Grammar => return Ok(i),
                Err(e) => return Err(e),
            }
        }
        Ok(drafts.len())
    }
}

/// The token of an outcome.
fn chosen_token(outcome: Result<Option<Outcome>>) -> Result<Option<u32>> {
    match outcome? {
        Some(Outcome::Token(token)) => Ok(Some(token)),
        None => Ok(None),
        Some(other) => fail!(Internal, "{other:?} where a token was wanted"),
    }
}
