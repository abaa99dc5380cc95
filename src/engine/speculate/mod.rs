//! Drafts: tokens that are guessed, evaluated together and kept as far as they are what would have been chosen anyway.
//!
//! Draws are by position, so a draft is right if it is the token that the draw of its position chooses by the model's own
//! logits. Drafts change how long a decode takes, and nothing else.

mod allowance;
#[cfg(test)]
mod cost_tests;
mod depth;
mod drafting;
mod fused;
mod heads;
mod model;
mod ngram;
mod source;
mod together;

use super::grammar::Constraint;
use super::residence::Residence;
use super::sampling::Sampling;
use super::session::submit;
use super::{Model, Session};
use crate::backend::{
    HiddenStates, MAX_DRAFTS, Mark, MaskSource, Outcome, Residual, Row, Want, When,
};
use crate::error::{Result, Status, fail};
use crate::grammar::Matcher;
use crate::memory;
use allowance::Allowance;
use arrayvec::ArrayVec;
use depth::{CLASSES, Depth, TRIAL};
pub(super) use fused::{Drafter, HeadsBeside};
pub use heads::HeadDrafts;
pub use model::ModelDrafts;
pub use ngram::NgramDrafts;
use source::{Asked, SharedSource, Source};
use std::sync::Arc;
use std::time::Instant;
pub(super) use together::{BatchDepth, Seat, Shares};

/// What a source of drafts may look at.
pub struct DraftContext<'a> {
    /// The tokens of the context.
    pub tokens: &'a [u32],
    /// How the next ones are chosen.
    pub sampling: &'a Sampling,
    /// Tokens that end an answer: what follows one of them is hardly wanted.
    pub ends: &'a [u32],
}

impl<'a> DraftContext<'a> {
    /// That of a session of a model.
    fn of(tokens: &'a [u32], sampling: &'a Sampling, model: &'a Model) -> DraftContext<'a> {
        DraftContext {
            tokens,
            sampling,
            ends: model.end_tokens(),
        }
    }

    /// Whether a token ends an answer.
    pub fn is_end(&self, token: u32) -> bool {
        self.ends.contains(&token)
    }
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

    /// Where it wants the session to keep hidden states.
    fn states(&self) -> Option<Arc<HiddenStates>> {
        None
    }

    /// The session's state leaves the device: what the source has there goes to host memory, too.
    ///
    /// Errors: `OutOfMemory`; those of a backend. The source is as it was then.
    fn evict(&mut self) -> Result<()> {
        Ok(())
    }

    /// The session's state comes back.
    ///
    /// Errors: `OutOfMemory`; those of a backend.
    fn resume(&mut self) -> Result<()> {
        Ok(())
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
    /// The model's own heads.
    Heads = 3,
    /// One of the caller's.
    Other = 4,
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

/// Tokens that one step may have brought: more than that, which a source has not read, are a prompt.
const MOST_OF_STEP: usize = MAX_DRAFTS + 1;

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
    source: Source,
    depth: Depth,
    stats: SpeculationStats,
    options: DraftOptions,
    /// Tokens that end an answer.
    ends: Arc<[u32]>,
    /// Drafts that a batch is to verify, and their class.
    guessed: ArrayVec<u32, MAX_DRAFTS>,
    guessed_class: usize,
    /// Drafts that a batch in the background asks for.
    deferred: usize,
    /// The drafts of the last step, until its outcomes were all polled.
    verified: ArrayVec<u32, MAX_DRAFTS>,
    /// Of them, those that were polled as chosen.
    accepted: usize,
    /// Their class.
    class: usize,
    /// Whether the token that was polled last was a draft.
    drafted_last: bool,
    /// What drafts may still cost.
    allowance: Allowance,
    /// Whether its source was asked, and seconds that it took to read a token of a prompt; 0 if unknown.
    has_asked: bool,
    reading: f32,
    /// Seconds of a token without drafts; 0 if unknown.
    plain: f32,
    /// What a token of the last step adds to the allowance.
    saved: f32,
    /// Whether a step is that of the session alone, not of a batch.
    is_alone: bool,
    /// Drafts of a step whose first token is not polled yet, and when it began, where that says what a step takes.
    timed: Option<(usize, Instant)>,
}

impl Speculation {
    fn new(source: Box<dyn DraftSource>, ends: Arc<[u32]>, options: DraftOptions) -> Speculation {
        Speculation {
            source: Source::new(source),
            ends,
            depth: Depth::new(),
            stats: SpeculationStats::default(),
            options,
            guessed: ArrayVec::new(),
            guessed_class: 0,
            deferred: 0,
            verified: ArrayVec::new(),
            accepted: 0,
            class: 0,
            drafted_last: false,
            allowance: Allowance::new(),
            has_asked: false,
            reading: 0.0,
            plain: 0.0,
            saved: 0.0,
            is_alone: true,
            timed: None,
        }
    }

    /// The same for a fork, with counts of its own.
    fn fork(&mut self, fork: &Session) -> Result<Speculation> {
        Ok(Speculation {
            depth: self.depth.clone(),
            allowance: self.allowance.fork(),
            has_asked: self.has_asked,
            reading: self.reading,
            plain: self.plain,
            ..Speculation::new(self.source.fork(fork)?, self.ends.clone(), self.options)
        })
    }

    /// Drafts of a step at most.
    pub(super) fn most(&self) -> usize {
        self.options.most
    }

    /// The session's state leaves the device.
    pub(super) fn evict(&mut self) -> Result<()> {
        self.source.evict()
    }

    /// The session's state comes back to the device.
    pub(super) fn resume(&mut self) -> Result<()> {
        self.source.resume()
    }

    /// Where the session is to keep hidden states.
    pub(super) fn states(&self) -> Option<Arc<HiddenStates>> {
        self.source.states()
    }

    /// How many drafts of what follows a context to ask for, up to `most`, and their class.
    fn choose(&mut self, context: &DraftContext<'_>, most: usize) -> Result<(usize, usize)> {
        (self.is_alone, self.saved) = (true, 0.0);
        self.plain = self.depth.plain();
        if most == 0 {
            return Ok((0, 0));
        }
        let Some(class) = self.source.look(context)? else {
            return Ok((0, 0));
        };
        let mut most = most.min(self.options.most);
        if self.options.always {
            return Ok((self.depth.fix(most), class));
        }
        // A few show what a draft takes.
        if !self.depth.drafting().is_known() && !self.source.is_quick() {
            most = most.min(TRIAL);
        }
        // Small models have short steps: what follows would be a share of one.
        if !self.allowance.covers(0.0) {
            return Ok((self.depth.fix(0), class));
        }
        let reading = match self.source.lacks(context) {
            lacks if lacks > MOST_OF_STEP => {
                let seconds = self.reading * lacks as f32;
                if !self.pays(seconds, || self.depth.gain(class, most)) {
                    return Ok((self.depth.fix(0), class));
                }
                self.in_steps(seconds)
            }
            _ => 0.0,
        };
        let depth = match self.depth.within(most, self.allowance.steps() - reading) {
            0 => self.depth.fix(0),
            most => self.depth.choose(class, most),
        };
        Ok((depth, class))
    }

    /// A time in steps without drafts; 0 where nobody knows what those take.
    fn in_steps(&self, seconds: f32) -> f32 {
        match self.plain {
            0.0 => 0.0,
            plain => seconds / plain,
        }
    }

    /// Whether drafts that save `gain` seconds a token, which is asked for last, are worth a reading of a prompt that takes so many seconds.
    fn pays(&self, reading: f32, gain: impl FnOnce() -> f32) -> bool {
        let affordable = match self.reading {
            0.0 => self.allowance.covers_a_try(),
            _ => self.allowance.covers(self.in_steps(reading)),
        };
        affordable && gain() * self.allowance.to_come() > reading
    }

    /// Asks the source, which has looked at the context, for drafts, and measures it.
    fn ask(&mut self, context: &DraftContext<'_>, drafts: &mut [u32]) -> Result<usize> {
        let asked = self.source.ask(context, drafts)?;
        self.was_asked(&asked);
        Ok(asked.count)
    }

    /// The source was asked.
    fn was_asked(&mut self, asked: &Asked) {
        let seconds = asked.took.as_secs_f32();
        let steps = self.in_steps(seconds);
        // The first time is no measure: it makes ready what is there from then on.
        if !std::mem::replace(&mut self.has_asked, true) {
            self.allowance.spend_on_a_try(steps);
        } else if asked.lacked > MOST_OF_STEP {
            self.reading = seconds / asked.lacked as f32;
            self.allowance.spend(steps);
        } else {
            self.depth.drafting_took(asked.count, asked.took);
        }
    }

    /// What it can bring to a batch whose call chooses behind a context that has room for so many drafts, and seconds of
    /// reading that come before its first draft, in which a prompt's tokens are read that it has not seen.
    fn seat(&mut self, context: &DraftContext<'_>, room: usize) -> Result<(Seat, f32)> {
        let most = self.options.most.min(room);
        if most == 0 {
            return Ok((Seat::default(), 0.0));
        }
        let Some(class) = self.source.look(context)? else {
            return Ok((Seat::default(), 0.0));
        };
        self.guessed_class = class;
        let lacks = self.source.lacks(context);
        let reading = match lacks > MOST_OF_STEP {
            true => self.reading * lacks as f32,
            false => 0.0,
        };
        let right = self.depth.right(class);
        let seat = Seat {
            most,
            always: self.options.always,
            ahead: 0,
            first: right,
            right,
            drafting: self.depth.drafting(),
        };
        Ok((seat, reading))
    }

    /// Drafts of the last step that may still turn out to be chosen, the next token included.
    fn left(&self) -> usize {
        match self.accepted {
            0 => 0,
            n => self.verified.len() + 1 - n,
        }
    }

    /// The context has got a prompt, behind which an answer begins.
    pub(super) fn prompted(&mut self) {
        self.allowance.prompted();
    }

    /// A step was submitted.
    fn submitted(&mut self, drafts: &[u32], class: usize) {
        self.verified.clear();
        self.verified.extend(drafts.iter().copied());
        (self.accepted, self.class) = (0, class);
        self.stats.steps += 1;
        self.stats.drafted += drafts.len() as u64;
        if self.is_alone && self.plain > 0.0 {
            self.allowance.spend(self.depth.steps(drafts.len()));
            self.saved = 1.0;
        }
    }

    /// An outcome of the runner was polled; the next one of the step, if there is one, was chosen already.
    fn polled(&mut self, token: Option<u32>) {
        if let Some((count, begun)) = self.timed.take()
            && token.is_some()
        {
            self.depth.step_took(count, begun.elapsed());
        }
        if token.is_some() {
            self.allowance.token(self.saved);
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
            memory::check()?;
            runner.keep_states(source.states())?;
        }
        memory::check()?;
        let ends = self.model.end_tokens().into();
        self.speculation = Some(Box::new(Speculation::new(source, ends, options)));
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

    /// Lets decodes verify drafts of another model with the same vocabulary, or of a head of EAGLE-3 for this one.
    ///
    /// Errors: those of [`set_draft_source`](Session::set_draft_source); `InvalidArgument` if the vocabulary is another
    /// one, or the head is for another model; those of a session of the other model, or of [`HeadDrafts::fused`].
    pub fn set_model_drafts(&mut self, drafts: &Arc<Model>, options: &DraftOptions) -> Result<()> {
        self.begin()?;
        if drafts.drafter().is_some() {
            self.model.check_whole()?;
        }
        self.check_drafts(options)?;
        let source: Box<dyn DraftSource> = match drafts.drafter() {
            Some(_) => Box::new(HeadDrafts::fused(self, drafts)?),
            None => Box::new(ModelDrafts::new(self, drafts)?),
        };
        self.set_draft_source(source, options)
    }

    /// Lets decodes verify drafts of the model's own head for further tokens, which was loaded with it.
    ///
    /// Errors: those of [`set_draft_source`](Session::set_draft_source); `Unsupported` if the model has no head, or none was
    /// loaded; `OutOfMemory`.
    pub fn set_head_drafts(&mut self, options: &DraftOptions) -> Result<()> {
        self.begin()?;
        self.check_drafts(options)?;
        let source = HeadDrafts::new(self)?;
        self.set_draft_source(Box::new(source), options)
    }

    /// Decodes token by token again.
    ///
    /// Errors: `DecodePending`.
    pub fn clear_drafts(&mut self) -> Result<()> {
        self.begin()?;
        if let Residence::Device(runner) = &mut self.residence {
            runner.keep_states(None)?;
        }
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
        if able == 0 {
            fail!(
                Unsupported,
                "drafts cannot be verified: the model is one of a group, or its device has no steps of several tokens"
            );
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
            let theirs = speculation.fork(fork)?;
            fork.residence.runner()?.keep_states(theirs.states())?;
            fork.speculation = Some(Box::new(theirs));
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
        if self.is_ahead()
            && let Ok(runner) = self.residence.runner()
        {
            runner.drop_outcomes();
        }
        let mut polled = 0;
        while self.is_ahead() {
            dropped = true;
            match self.poll_token(true) {
                Ok(_) => polled += 1,
                Err(_) => break,
            }
        }
        if dropped {
            if let Some(speculation) = &mut self.speculation {
                let saved = speculation.saved;
                speculation.allowance.take_back(polled, saved);
            }
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
        let mut taken = Taken::new(self);
        match &mut taken.speculation {
            None => taken.session.choose(count, when),
            Some(speculation) => taken.session.submit_with(speculation, count, when),
        }
    }

    fn submit_with(
        &mut self,
        speculation: &mut Speculation,
        most: usize,
        when: When,
    ) -> Result<usize> {
        self.drop_stale_position()?;
        let evaluated = self.residence.runner()?.len();
        let unevaluated = self.tokens.len() - evaluated;
        // A source that takes its time is asked in the background, too.
        let lends = when == When::Background && !speculation.source.is_quick();
        if when == When::Background {
            // The masks of several choices are made within a call that waits for the device.
            let able = !lends || self.model.weights().drafts_in_batches();
            if self.constraint.is_some() || !able {
                return self.choose(most, when);
            }
            // So is a choice by logits at hand.
            if unevaluated == 0 {
                return self.choose(1, when);
            }
        }
        let context = DraftContext::of(&self.tokens, &self.sampling, &self.model);
        let room = match unevaluated {
            // The choice by logits at hand takes no step.
            0 if !speculation.options.always => 0,
            // Behind the drafts there is a position for the token that is chosen after them.
            _ => self.context() - self.tokens.len() - 1,
        };
        let (mut count, class) = speculation.choose(&context, room)?;
        // A step that first has other tokens to evaluate, or none, says nothing about what drafts cost.
        let typical = unevaluated == 1;
        if lends && count > 0 {
            (speculation.timed, speculation.guessed_class) = (None, class);
            let ask = Ask::new(speculation, count, typical);
            return self.start_alone(ask).map(|()| 1);
        }
        let mut drafts = [0; MAX_DRAFTS];
        if count > 0 {
            count = speculation.ask(&context, &mut drafts[..count])?;
            count = self.possible(&drafts[..count])?;
        }
        speculation.timed = typical.then(|| (count, Instant::now()));
        if count == 0 {
            return self.choose(most.min(STARTED_AT_ONCE), when);
        }
        self.submit_drafts(&drafts[..count], when)?;
        speculation.submitted(&drafts[..count], class);
        Ok(1)
    }

    /// Takes back what was guessed for a batch.
    pub(super) fn forget_guesses(&mut self) {
        if let Some(speculation) = &mut self.speculation {
            speculation.guessed.clear();
            (speculation.deferred, speculation.timed) = (0, None);
        }
    }

    /// The session's seat in a batch that is `started` or done at once, and seconds that its source reads before it guesses.
    /// `chooses` says that the call needs a pass for its token.
    ///
    /// Errors: `Interrupted`.
    pub(super) fn seat(&mut self, chooses: bool, started: bool) -> Result<(Seat, f32)> {
        let Some(speculation) = &mut self.speculation else {
            return Ok((Seat::default(), 0.0));
        };
        if !chooses {
            let right = speculation.depth.right(speculation.class);
            // A call that is done at once has returned its token already.
            let (ahead, first) = match started {
                true => (speculation.left().saturating_sub(1), right),
                false => (speculation.left(), 1.0),
            };
            let seat = Seat {
                ahead,
                first,
                right,
                ..Seat::default()
            };
            return Ok((seat, 0.0));
        }
        // The drafts of a grammar are looked at before the batch is started, and nothing that is started waits for a source.
        if started && !speculation.source.is_quick() && self.constraint.is_some() {
            return Ok((Seat::default(), 0.0));
        }
        let context = DraftContext::of(&self.tokens, &self.sampling, &self.model);
        // Behind the drafts there is a position for the token that is chosen after them.
        speculation.seat(&context, self.options.context - self.tokens.len() - 1)
    }

    /// Whether the session's drafts are worth a reading of its prompt that takes so many seconds, in a batch whose drafts save that.
    pub(super) fn pays(&mut self, reading: f32, shares: &Shares) -> bool {
        self.speculation.as_mut().is_some_and(|speculation| {
            speculation.plain = shares.plain;
            speculation.pays(reading, || shares.gain)
        })
    }

    /// Guesses tokens for a batch, the `index`-th of these shares, which come to [`guesses`](Session::guesses): as many as can be
    /// verified. Where that takes time and the batch is `started`, it is left to the batch.
    ///
    /// Errors: `Interrupted`; those of the grammar.
    pub(super) fn guess(&mut self, shares: &Shares, index: usize, started: bool) -> Result<()> {
        let Some(speculation) = &mut self.speculation else {
            return Ok(());
        };
        let count = speculation.depth.fix(shares.drafts[index]);
        (speculation.is_alone, speculation.plain) = (false, shares.plain);
        speculation.saved = match count {
            0 => 0.0,
            _ => speculation.in_steps(shares.gain),
        };
        if count == 0 {
            return Ok(());
        }
        if started && !speculation.source.is_quick() {
            speculation.deferred = count;
            return Ok(());
        }
        let context = DraftContext::of(&self.tokens, &self.sampling, &self.model);
        let mut drafts = [0; MAX_DRAFTS];
        let count = speculation.ask(&context, &mut drafts[..count])?;
        let count = self.possible(&drafts[..count])?;
        if let Some(speculation) = &mut self.speculation {
            speculation.guessed = drafts[..count].iter().copied().collect();
        }
        Ok(())
    }

    /// What was guessed for a batch.
    pub(super) fn guesses(&self) -> &[u32] {
        self.speculation.as_ref().map_or(&[], |s| &s.guessed)
    }

    /// What a batch in the background asks the source for.
    pub(super) fn deferred(&self) -> Option<Ask> {
        let speculation = self.speculation.as_ref()?;
        let count = speculation.deferred;
        (count > 0).then(|| Ask::new(speculation, count, false))
    }

    /// Work in the background has asked the source, and verified these drafts.
    pub(super) fn was_asked(&mut self, ask: &Ask, drafts: &[u32]) {
        if let (Some(speculation), Some(asked)) = (&mut self.speculation, &ask.asked) {
            speculation.was_asked(asked);
            speculation.guessed = drafts.iter().copied().collect();
            speculation.timed = ask.begun.map(|begun| (drafts.len(), begun + asked.took));
        }
    }

    /// Puts what was guessed for a batch behind the context, for the time of its pass.
    pub(super) fn append_guesses(&mut self) {
        if let Some(speculation) = &self.speculation {
            // Within the capacity, so nothing is allocated.
            self.tokens.extend_from_slice(&speculation.guessed);
        }
    }

    /// A batch has verified the guesses, and chosen a token.
    pub(super) fn guesses_chosen(&mut self, token: u32) {
        if let Some(speculation) = &mut self.speculation {
            let guessed = std::mem::take(&mut speculation.guessed);
            if !guessed.is_empty() {
                speculation.submitted(&guessed, speculation.guessed_class);
            }
            speculation.polled(Some(token));
        }
    }

    /// Submits drafts of what follows the context.
    fn submit_drafts(&mut self, drafts: &[u32], when: When) -> Result<()> {
        let mut masks = Masks::new(&mut self.constraint, drafts)?;
        let mut mask = masks.as_mut().map(|m| |words: &mut [u32]| m.next(words));
        let runner = self.residence.runner()?;
        let evaluated = runner.len();
        let tokens = Behind::new(&mut self.tokens, drafts);
        let row = Row {
            runner,
            tokens: &tokens.tokens[evaluated..],
            want: Want::Verified {
                drafts: drafts.len(),
                sampling: self.sampling,
            },
            mask: mask.as_mut().map(|m| m as &mut MaskSource),
            interrupt: self.interrupts.work(),
            residual: Residual::default(),
        };
        submit(&**self.model.weights(), row, when)
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

/// What work in the background asks a source for.
pub(super) struct Ask {
    source: SharedSource,
    pub most: usize,
    /// When the work was started, if that says what a step takes.
    begun: Option<Instant>,
    ends: Arc<[u32]>,
    asked: Option<Asked>,
}

impl Ask {
    fn new(speculation: &Speculation, most: usize, typical: bool) -> Ask {
        Ask {
            source: speculation.source.shared(),
            most,
            begun: typical.then(Instant::now),
            ends: speculation.ends.clone(),
            asked: None,
        }
    }

    /// Puts drafts behind `tokens`, within their capacity, and returns how many.
    ///
    /// Errors: `Interrupted`.
    pub fn ask(&mut self, tokens: &mut Vec<u32>, sampling: &Sampling) -> Result<usize> {
        let mut drafts = [0; MAX_DRAFTS];
        let most = self.most.min(tokens.capacity() - tokens.len());
        let ends = &self.ends;
        let context = DraftContext {
            tokens,
            sampling,
            ends,
        };
        let asked = self.source.ask(&context, &mut drafts[..most])?;
        tokens.extend_from_slice(&drafts[..asked.count]);
        self.asked = Some(asked);
        Ok(asked.count)
    }
}

/// A session and its source of drafts, which it has again when this is dropped.
struct Taken<'a> {
    session: &'a mut Session,
    speculation: Option<Box<Speculation>>,
}

impl<'a> Taken<'a> {
    fn new(session: &'a mut Session) -> Taken<'a> {
        let speculation = session.speculation.take();
        Taken {
            session,
            speculation,
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.session.speculation = self.speculation.take();
    }
}

/// A context with drafts behind it, which are gone when this is dropped.
struct Behind<'a> {
    tokens: &'a mut Vec<u32>,
    before: usize,
}

impl<'a> Behind<'a> {
    fn new(tokens: &'a mut Vec<u32>, drafts: &[u32]) -> Behind<'a> {
        let before = tokens.len();
        // Within the capacity, so nothing is allocated.
        tokens.extend_from_slice(drafts);
        Behind { tokens, before }
    }
}

impl Drop for Behind<'_> {
    fn drop(&mut self) {
        self.tokens.truncate(self.before);
    }
}

/// The masks of a row's choices.
pub(super) enum Masks<'a> {
    /// Of its only one.
    One(&'a mut Constraint),
    /// Behind drafts: each is asked for when the drafts before it were all chosen.
    Ahead {
        matcher: Box<Matcher>,
        drafts: &'a [u32],
        passed: usize,
    },
}

impl<'a> Masks<'a> {
    /// Of the choices by a grammar behind the context, and behind drafts that it allows.
    pub fn new(
        constraint: &'a mut Option<Box<Constraint>>,
        drafts: &'a [u32],
    ) -> Result<Option<Masks<'a>>> {
        let Some(constraint) = constraint else {
            return Ok(None);
        };
        Ok(Some(match drafts {
            [] => Masks::One(constraint),
            _ => Masks::Ahead {
                matcher: Box::new(constraint.matcher_ahead()?),
                drafts,
                passed: 0,
            },
        }))
    }

    /// Writes the next one.
    pub fn next(&mut self, words: &mut [u32]) -> Result<()> {
        match self {
            Masks::One(constraint) => constraint.mask(words),
            Masks::Ahead {
                matcher,
                drafts,
                passed,
            } => {
                if *passed > 0 {
                    matcher.accept(drafts[*passed - 1])?;
                }
                *passed += 1;
                matcher.mask(words)
            }
        }
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
