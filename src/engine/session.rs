//! A session: the tokens of one context and the runner that has evaluated most of them.
//!
//! `tokens` is the whole context. The runner has evaluated a prefix of it; what it lacks (the token
//! that a decode returned last, or the one whose logits a rewind lost) is evaluated by the next
//! call that needs it. A call that fails leaves the context as it was.

use super::batch::Desk;
use super::generate::Generation;
use super::grammar::Constraint;
use super::queue::Started;
use super::residence::Residence;
use super::sampling::{Logprobs, Sampling, TokenRules};
use super::speculate::Speculation;
use super::{Interrupts, Model};
use crate::backend::{
    KvType, MaskSource, Outcome, Profile, Residual, Row, Runner, RunnerOptions, Want, Weights, When,
};
use crate::error::{Error, Result, Status, fail};
use crate::log::log;
use crate::memory;
use crate::model::AdapterSet;
use crate::threads::event::Event;
use std::sync::Arc;

/// What a session is made with.
#[derive(Clone, Copy, Debug, Default)]
pub struct SessionOptions {
    /// The most tokens the session can hold; 0 means what the model was trained for, but at most
    /// [`super::model::DEFAULT_CONTEXT`].
    pub context: usize,
    /// Element type of the KV cache.
    pub kv_type: KvType,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Priority among the sessions of a GPU: positive goes first, negative last.
    pub stream_priority: i32,
    /// The most positions of recurrent layers that a rewind evaluates again, from [`MIN_MARK_INTERVAL`] on; 0
    /// keeps a few copies of the state, whatever the context.
    pub mark_interval: usize,
}

impl SessionOptions {
    /// What the backend has to know, for a model that was trained for that many positions.
    ///
    /// Errors: `InvalidArgument` for a context beyond that.
    pub(super) fn for_runner(&self, trained: usize) -> Result<RunnerOptions> {
        let context = match self.context {
            0 => trained.min(super::model::DEFAULT_CONTEXT),
            n => n,
        };
        if context > trained {
            fail!(
                InvalidArgument,
                "context is {context}, but the model was trained for {trained} positions"
            );
        }
        Ok(RunnerOptions {
            context,
            mark_interval: check_mark_interval(self.mark_interval)?,
            kv_type: self.kv_type,
            stream_priority: self.stream_priority,
        })
    }
}

/// The fewest positions between copies of a state that a session may ask for.
pub const MIN_MARK_INTERVAL: usize = 16;

/// `InvalidArgument` for an interval that is too short.
pub(super) fn check_mark_interval(interval: usize) -> Result<usize> {
    if (1..MIN_MARK_INTERVAL).contains(&interval) {
        fail!(
            InvalidArgument,
            "mark_interval is {interval}; it must be 0 or at least {MIN_MARK_INTERVAL}"
        );
    }
    Ok(interval)
}

/// The state of one conversation. Used by one thread at a time.
pub struct Session {
    pub(super) model: Arc<Model>,
    /// Where the state is.
    pub(super) residence: Residence,
    /// The context, and behind it the tokens of a started prefill. Never longer than the options'
    /// `context`, which is also its capacity.
    pub(super) tokens: Vec<u32>,
    /// What its runners are made with.
    pub(super) options: RunnerOptions,
    pub(super) sampling: Sampling,
    pub(super) rules: Option<Arc<TokenRules>>,
    /// What is added to the model's products.
    pub(super) adapters: Option<Arc<AdapterSet>>,
    /// The grammar of the answers, if there is one.
    pub(super) constraint: Option<Box<Constraint>>,
    /// What guesses tokens ahead, if anything does.
    pub(super) speculation: Option<Box<Speculation>>,
    /// Work that was started and not collected yet.
    pub(super) started: Started,
    /// Where a batch in the background gives back what it was lent.
    pub(super) lent_to: Option<Arc<Desk>>,
    /// Text that is being generated piece by piece.
    pub(super) generation: Option<Box<Generation>>,
    /// Set when there may be something to collect.
    pub(super) event: Option<Arc<Event>>,
    pub(super) interrupts: Arc<Interrupts>,
}

impl Session {
    /// A session with an empty context. Reserves all memory that it will need.
    ///
    /// Errors: `InvalidArgument` names the option; `OutOfMemory`; those of the backend.
    pub fn create(model: Arc<Model>, options: &SessionOptions) -> Result<Session> {
        options.sampling.check()?;
        model.check_alone()?;
        model.check_files()?;
        let runner_options = options.for_runner(model.details().context_length)?;
        let runner = model.weights().clone().create_runner(&runner_options)?;
        log!(
            of: model.log(),
            Debug,
            "session created: context {}, KV {:?}",
            runner_options.context,
            options.kv_type
        );
        let mut session = Session::of(model, runner, runner_options)?;
        session.sampling = options.sampling;
        Ok(session)
    }

    /// A session with an empty context on a runner that was made with these options.
    pub(super) fn of(
        model: Arc<Model>,
        runner: Box<dyn Runner>,
        options: RunnerOptions,
    ) -> Result<Session> {
        Ok(Session {
            model,
            residence: Residence::Device(runner),
            tokens: token_history(options.context)?,
            options,
            sampling: Sampling::default(),
            rules: None,
            adapters: None,
            constraint: None,
            speculation: None,
            started: Started::Nothing,
            lent_to: None,
            generation: None,
            event: None,
            interrupts: Arc::default(),
        })
    }

    /// The model that the session runs.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The most tokens that the context can hold.
    pub fn context(&self) -> usize {
        self.options.context
    }

    /// Tokens in the context, the one that the last decode returned included.
    pub fn position(&self) -> usize {
        match self.started {
            Started::Prefill { before } => before,
            _ => self.tokens.len(),
        }
    }

    /// The tokens in the context.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens[..self.position()]
    }

    /// Bytes of KV cache for the whole context.
    pub fn kv_bytes(&self) -> u64 {
        let options = &self.options;
        self.model.weights().kv_bytes(options)
    }

    /// How tokens are chosen from the next decode on.
    ///
    /// Errors: `InvalidArgument` names the setting; `DecodePending`; those of the backend. The
    /// settings are as before then.
    pub fn set_sampling(
        &mut self,
        sampling: Sampling,
        rules: Option<Arc<TokenRules>>,
    ) -> Result<()> {
        self.begin()?;
        sampling.check()?;
        // A state that is not on the device gets them when it comes back.
        if let Residence::Device(runner) = &mut self.residence {
            runner.set_rules(rules.clone())?;
        }
        self.sampling = sampling;
        self.rules = rules;
        Ok(())
    }

    /// The log-probabilities of the token that the last decode returned, if the settings asked for
    /// them.
    pub fn logprobs(&self) -> Option<&Logprobs> {
        self.residence.logprobs()
    }

    /// The same, if the present settings ask for them.
    pub fn logprobs_asked(&self) -> Option<&Logprobs> {
        self.logprobs().filter(|_| self.sampling.logprobs > 0)
    }

    /// Whether the grammar has left no choice for the last token.
    pub fn is_last_forced(&self) -> bool {
        let constraint = self.constraint.as_ref();
        constraint.is_some_and(|constraint| constraint.is_last_forced())
    }

    /// Appends `tokens` to the context and evaluates them.
    ///
    /// Errors: `NoInput`, `InvalidToken`, `ContextFull`, `DecodePending` before anything is done;
    /// `Interrupted`; those of the backend.
    pub fn prefill(&mut self, tokens: &[u32]) -> Result<()> {
        let taken = self.take_prompt(tokens);
        self.answered(taken)?;
        let result = self.evaluate(When::Now).and_then(|()| self.wait());
        self.end_prompt(self.tokens.len() - tokens.len(), &result);
        self.answered(result)
    }

    /// Checks that `tokens` can be appended, and puts them behind the context.
    pub(super) fn take_prompt(&mut self, tokens: &[u32]) -> Result<()> {
        self.begin_work()?;
        self.check_prompt(tokens)?;
        self.resume()?;
        if let Some(constraint) = &mut self.constraint {
            // Memory of the reserve must not stay in it.
            constraint.ready_next(self.model.tokenizer()?)?;
            memory::check().inspect_err(|_| constraint.drop_next())?;
        }
        // Within the capacity, so nothing is allocated.
        self.tokens.extend_from_slice(tokens);
        if let Some(speculation) = &mut self.speculation {
            speculation.prompted();
        }
        Ok(())
    }

    /// Checks that `tokens` can be appended.
    pub(super) fn check_prompt(&self, tokens: &[u32]) -> Result<()> {
        if tokens.is_empty() {
            fail!(NoInput, "prefill of no tokens");
        }
        let before = self.tokens.len();
        if tokens.len() > self.context() - before {
            fail!(
                ContextFull,
                "{} tokens do not fit: {before} of the context's {} positions are taken",
                tokens.len(),
                self.context()
            );
        }
        self.model.check_tokens(tokens)
    }

    /// Keeps the tokens behind the first `before`, which were evaluated, or drops them.
    pub(super) fn end_prompt(&mut self, before: usize, result: &Result<()>) {
        match (result, &mut self.constraint) {
            (Err(_), _) => self.tokens.truncate(before),
            (Ok(()), Some(constraint)) => constraint.prefilled(self.tokens.len() - before),
            (Ok(()), None) => {}
        }
    }

    /// Submits the evaluation of the tokens that the runner lacks.
    pub(super) fn evaluate(&mut self, when: When) -> Result<()> {
        let runner = self.residence.runner()?;
        let evaluated = runner.len();
        let row = Row {
            runner,
            tokens: &self.tokens[evaluated..],
            want: Want::Logits,
            mask: None,
            interrupt: self.interrupts.work(),
            residual: Residual::default(),
        };
        submit(&**self.model.weights(), row, when)
    }

    /// Waits for the logits of a row.
    pub(super) fn wait(&mut self) -> Result<()> {
        match self.residence.runner()?.poll(true)? {
            Some(Outcome::Logits) => Ok(()),
            other => fail!(Internal, "{other:?} where logits were wanted"),
        }
    }

    /// Chooses the next token by the logits of the whole context, appends it and returns it.
    ///
    /// Errors: `NoInput` on an empty context, `ContextFull`, `DecodePending`, `Interrupted`,
    /// `Numeric`; `Grammar` if a limit of the grammar was reached; those of the backend.
    pub fn decode(&mut self) -> Result<u32> {
        let result = self.try_decode();
        self.answered(result)
    }

    fn try_decode(&mut self) -> Result<u32> {
        if let Some(token) = self.next_ahead()? {
            return self.append(token);
        }
        self.prepare_decodes(1)?;
        let token = match self.follow_grammar()? {
            Some(token) => token,
            None => self.choose_next()?,
        };
        self.append(token)
    }

    /// Submits the choice of up to `count` tokens, and returns how many it is. What the runner lacks
    /// of the context is evaluated with it.
    pub(super) fn choose(&mut self, count: usize, when: When) -> Result<usize> {
        self.drop_stale_position()?;
        let runner = self.residence.runner()?;
        let mut mask = mask_source(&mut self.constraint);
        let count = match mask {
            // The mask of each depends on the token before it.
            Some(_) => 1,
            None => count.min(runner.queue_limit()),
        };
        let evaluated = runner.len();
        let row = Row {
            runner,
            tokens: &self.tokens[evaluated..],
            want: Want::Choices {
                count,
                sampling: self.sampling,
            },
            mask: mask.as_mut().map(|m| m as &mut MaskSource),
            interrupt: self.interrupts.work(),
            residual: Residual::default(),
        };
        submit(&**self.model.weights(), row, when)?;
        Ok(count)
    }

    /// Writes the logits that the next decode chooses by; `out` has one element per token id.
    ///
    /// Errors: `NoInput` on an empty context, `DecodePending`, `Interrupted`; those of the
    /// backend.
    pub fn logits(&mut self, out: &mut [f32]) -> Result<()> {
        let result = self.try_logits(out);
        self.answered(result)
    }

    fn try_logits(&mut self, out: &mut [f32]) -> Result<()> {
        self.begin_work()?;
        self.need_tokens()?;
        self.resume()?;
        self.drop_stale_position()?;
        if self.residence.runner()?.len() < self.tokens.len() {
            self.evaluate(When::Now)?;
            self.wait()?;
        }
        self.residence.runner()?.logits(out)
    }

    /// Keeps the first `position` tokens of the context. Ends started decodes, whose tokens are
    /// lost as far as they were not collected.
    ///
    /// Errors: `InvalidArgument` if there are fewer tokens.
    pub fn rewind(&mut self, position: usize) -> Result<()> {
        if position > self.position() {
            fail!(
                InvalidArgument,
                "position is {position}, but the context has {} tokens",
                self.position()
            );
        }
        self.generation = None;
        self.stop();
        self.begin()?;
        self.take_back(position);
        Ok(())
    }

    /// Forgets the tokens behind the first `position`. Nothing is under way.
    pub(super) fn take_back(&mut self, position: usize) {
        self.drop_ahead();
        if let Some(constraint) = &mut self.constraint {
            constraint.rewind(position, &self.tokens);
        }
        self.tokens.truncate(position);
        // What the state has to forget beyond that, the next call evaluates again.
        self.residence.roll_back_to(position);
    }

    /// Takes `count` tokens from position `from` on out of the context, and evaluates what follows
    /// them again, so that the session is as if they had never been there.
    ///
    /// Errors: `InvalidArgument` if the context has no such tokens, or if some belong to the answer
    /// that a grammar follows; `DecodePending`; `Interrupted`; `OutOfMemory`; those of the backend. The
    /// session is as it was then.
    pub fn erase(&mut self, from: usize, count: usize) -> Result<()> {
        let result = self.try_erase(from, count);
        self.answered(result)
    }

    fn try_erase(&mut self, from: usize, count: usize) -> Result<()> {
        self.begin_work()?;
        let len = self.tokens.len();
        if from > len || count > len - from {
            fail!(
                InvalidArgument,
                "{count} tokens from {from} on, but the context has {len}"
            );
        }
        if let Some(constraint) = &self.constraint
            && constraint.is_in_answer(from, count)
        {
            fail!(
                InvalidArgument,
                "{count} tokens from {from} on are in part of the answer that the grammar follows"
            );
        }
        if count == 0 {
            return Ok(());
        }
        self.resume()?;
        let rest = try_copy(&self.tokens[from + count..])?;
        // What follows is evaluated by a fork, which takes the state's place if it succeeds.
        let mut fork = self.residence.runner()?.fork()?;
        fork.set_rules(self.rules.clone())?;
        fork.set_event(self.event.clone());
        let states = self.speculation.as_ref().and_then(|s| s.states());
        fork.keep_states(states.clone())?;
        let mark = fork.mark_before(from);
        fork.rollback(mark);
        let mut kept = try_copy(&self.tokens[fork.len()..from])?;
        kept.extend_from_slice(&rest);
        let mut evaluate = || {
            if !kept.is_empty() {
                let row = Row {
                    runner: &mut *fork,
                    tokens: &kept,
                    want: Want::Logits,
                    mask: None,
                    interrupt: self.interrupts.work(),
                    residual: Residual::default(),
                };
                submit(&**self.model.weights(), row, When::Now)?;
                fork.poll(true)?;
            }
            // Nothing that is kept was made with memory of the reserve.
            memory::check()
        };
        if let Err(e) = evaluate() {
            // Some may be the fork's.
            if let Some(states) = states {
                states.keep(0);
            }
            return Err(e);
        }
        self.residence = Residence::Device(fork);
        self.tokens.drain(from..from + count);
        if let Some(constraint) = &mut self.constraint {
            constraint.erased(from, count);
        }
        Ok(())
    }

    /// A session with the same context, options and model, which answers as this one would.
    ///
    /// Errors: `DecodePending`; `OutOfMemory`; those of the backend.
    pub fn fork(&mut self) -> Result<Session> {
        self.begin()?;
        self.resume()?;
        let runner = self.residence.runner()?.fork()?;
        let mut other = Session::of(self.model.clone(), runner, self.options)?;
        other.tokens.extend_from_slice(&self.tokens);
        other.sampling = self.sampling;
        other.rules = self.rules.clone();
        other.adapters = self.adapters.clone();
        if let Some(constraint) = &self.constraint {
            other.constraint = Some(Box::new(constraint.duplicate(self.context())?));
        }
        self.share_drafts(&mut other)?;
        Ok(other)
    }

    /// Evaluates the last token of the context (again) and chooses one, which is forgotten, to see
    /// where the time of a decode goes. The session is as before.
    ///
    /// Errors: `NoInput` on an empty context; `DecodePending`; `Interrupted`; those of the backend.
    pub fn profile(&mut self) -> Result<Profile> {
        let result = self.try_profile();
        self.answered(result)
    }

    fn try_profile(&mut self) -> Result<Profile> {
        self.begin_work()?;
        self.need_tokens()?;
        self.resume()?;
        let last = self.tokens.len() - 1;
        self.residence.roll_back_to(last);
        let runner = self.residence.runner()?;
        let evaluated = runner.len();
        if evaluated < last {
            let row = Row {
                runner,
                tokens: &self.tokens[evaluated..last],
                want: Want::Logits,
                mask: None,
                interrupt: self.interrupts.work(),
                residual: Residual::default(),
            };
            submit(&**self.model.weights(), row, When::Now)?;
            self.wait()?;
        }
        let (token, sampling) = (self.tokens[last], self.sampling);
        let runner = self.residence.runner()?;
        runner.profile(token, &sampling, self.interrupts.work())
    }

    /// The start of every call but those that return what is ahead: refuses while a decode is started, looks
    /// whether mapped files are still there, and drops what is ahead.
    pub(super) fn begin(&mut self) -> Result<()> {
        self.check_started()?;
        self.drop_ahead();
        Ok(())
    }

    /// Refuses while a decode or a generation is started, and looks whether mapped files are still there.
    pub(super) fn check_started(&self) -> Result<()> {
        if self.generation.is_some() {
            fail!(
                DecodePending,
                "a generation was started and not ended by ember_generate_finish"
            );
        }
        match self.started {
            Started::Nothing => {}
            Started::Decodes { .. } | Started::Batch { .. } => fail!(
                DecodePending,
                "a decode was started and not collected by ember_decode_poll"
            ),
            Started::Prefill { .. } => fail!(
                DecodePending,
                "a prefill was started and its end not collected by ember_prefill_poll"
            ),
        }
        self.model.check_files()
    }

    pub(super) fn need_tokens(&self) -> Result<()> {
        if self.tokens.is_empty() {
            fail!(NoInput, "the context is empty; prefill comes first");
        }
        Ok(())
    }

    /// Makes the runner forget the last position if its logits are lost (after a rewind or a
    /// failure), so that it is evaluated again.
    pub(super) fn drop_stale_position(&mut self) -> Result<()> {
        let runner = self.residence.runner()?;
        let len = runner.len();
        if len == self.tokens.len() && !runner.has_logits() {
            self.residence.roll_back_to(len - 1);
        }
        Ok(())
    }

    /// Checks that `count` tokens can be chosen.
    pub(super) fn prepare_decodes(&mut self, count: usize) -> Result<()> {
        self.begin_work()?;
        self.need_tokens()?;
        self.check_room(count)?;
        self.resume()
    }

    /// Checks that the context has room for `count` tokens.
    pub(super) fn check_room(&self, count: usize) -> Result<()> {
        if count > self.context() - self.tokens.len() {
            fail!(
                ContextFull,
                "no place for {count} more: {} of the context's {} positions are taken",
                self.tokens.len(),
                self.context()
            );
        }
        Ok(())
    }

    pub(super) fn append(&mut self, token: u32) -> Result<u32> {
        if token as usize >= self.model.details().n_vocab {
            return Err(Error::new(
                Status::Internal,
                format!("the backend chose token {token}, which is not in the vocabulary"),
            ));
        }
        if let Some(constraint) = &mut self.constraint {
            constraint.decoded(token);
        }
        // Within the capacity, so nothing is allocated.
        self.tokens.push(token);
        Ok(token)
    }
}

/// Submits a single row.
pub(super) fn submit(weights: &dyn Weights, row: Row<'_>, when: When) -> Result<()> {
    weights.submit(&mut [row], when).map_err(|e| e.error)
}

/// What a backend asks for the mask of a choice.
pub(super) fn mask_source(
    constraint: &mut Option<Box<Constraint>>,
) -> Option<impl FnMut(&mut [u32]) -> Result<()> + '_> {
    let constraint = constraint.as_mut()?;
    Some(|words: &mut [u32]| constraint.mask(words))
}

impl Drop for Session {
    /// Interrupts what was started. It is waited for by the model's end, or here where the backend has no other way.
    fn drop(&mut self) {
        if self.started != Started::Nothing {
            self.interrupts.stop_work();
        }
        if matches!(self.started, Started::Batch { .. }) {
            // The runner goes with the batch.
            return;
        }
        let runner = self.residence.runner();
        if let Some(thread) = runner.ok().and_then(|runner| runner.retire()) {
            self.model.background().retire(thread);
            return;
        }
        self.stop();
    }
}

/// A copy of tokens.
pub(super) fn try_copy(tokens: &[u32]) -> Result<Vec<u32>> {
    let mut copy = crate::error::try_vec(tokens.len(), 0u32, "tokens of a session")?;
    copy.copy_from_slice(tokens);
    Ok(copy)
}

/// No tokens, with room for all that a session can have.
fn token_history(context: usize) -> Result<Vec<u32>> {
    let mut tokens = crate::error::try_vec(context, 0u32, "token history")?;
    tokens.clear();
    Ok(tokens)
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
