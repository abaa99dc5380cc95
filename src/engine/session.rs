//! A session: the tokens of one context and the runner that has evaluated most of them.
//!
//! `tokens` is the whole context. The runner has evaluated a prefix of it; what it lacks (the token
//! that a decode returned last, or the one whose logits a rewind lost) is evaluated by the next
//! call that needs it. A call that fails leaves the context as it was.

use super::Model;
use super::grammar::Constraint;
use super::queue::Queue;
use super::sampling::{Logprobs, Sampling, TokenRules};
use crate::backend::{KvType, MaskSource, Profile, Runner, RunnerOptions, Step};
use crate::error::{Error, Result, Status, fail};
use crate::log::log;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
            kv_type: self.kv_type,
            stream_priority: self.stream_priority,
        })
    }
}

/// The state of one conversation. Used by one thread at a time.
pub struct Session {
    pub(super) model: Arc<Model>,
    pub(super) runner: Box<dyn Runner>,
    /// The context, never longer than `context`, which is also its capacity.
    pub(super) tokens: Vec<u32>,
    context: usize,
    kv_type: KvType,
    pub(super) sampling: Sampling,
    pub(super) rules: Option<Arc<TokenRules>>,
    /// The grammar of the answers, if there is one.
    pub(super) constraint: Option<Box<Constraint>>,
    /// Started decodes that were not collected yet.
    pub(super) queue: Queue,
    pub(super) interrupt: Arc<AtomicBool>,
}

impl Session {
    /// A session with an empty context. Reserves all memory that it will need.
    ///
    /// Errors: `InvalidArgument` names the option; `OutOfMemory`; those of the backend.
    pub fn create(model: Arc<Model>, options: &SessionOptions) -> Result<Session> {
        options.sampling.check()?;
        model.check_files()?;
        let runner_options = options.for_runner(model.details().context_length)?;
        let context = runner_options.context;
        let runner = model.weights().clone().create_runner(&runner_options)?;
        log!(
            Debug,
            "session created: context {context}, KV {:?}",
            options.kv_type
        );
        Ok(Session {
            model,
            runner,
            tokens: token_history(context)?,
            context,
            kv_type: options.kv_type,
            sampling: options.sampling,
            rules: None,
            constraint: None,
            queue: Queue::default(),
            interrupt: Arc::new(AtomicBool::new(false)),
        })
    }

    /// The model that the session runs.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The most tokens that the context can hold.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Tokens in the context, the one that the last decode returned included.
    pub fn position(&self) -> usize {
        self.tokens.len()
    }

    /// Bytes of KV cache for the whole context.
    pub fn kv_bytes(&self) -> u64 {
        self.model.weights().kv_bytes(self.kv_type, self.context)
    }

    /// The flag that makes the running call, or the started decode, end with `Interrupted`. Every
    /// call begins by clearing it.
    pub fn interrupt_flag(&self) -> &Arc<AtomicBool> {
        &self.interrupt
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
        self.runner.set_rules(rules.clone())?;
        self.sampling = sampling;
        self.rules = rules;
        Ok(())
    }

    /// The log-probabilities of the token that the last decode returned, if the settings asked for
    /// them.
    pub fn logprobs(&self) -> Option<&Logprobs> {
        self.runner.logprobs()
    }

    /// Appends `tokens` to the context and evaluates them.
    ///
    /// Errors: `NoTokens`, `InvalidToken`, `ContextFull`, `DecodePending` before anything is done;
    /// `Interrupted`; those of the backend.
    pub fn prefill(&mut self, tokens: &[u32]) -> Result<()> {
        self.begin()?;
        if tokens.is_empty() {
            fail!(NoTokens, "prefill of no tokens");
        }
        let before = self.tokens.len();
        if tokens.len() > self.context - before {
            fail!(
                ContextFull,
                "{} tokens do not fit: {before} of the context's {} positions are taken",
                tokens.len(),
                self.context
            );
        }
        self.model.check_tokens(tokens)?;
        // Within the capacity, so nothing is allocated.
        self.tokens.extend_from_slice(tokens);
        let evaluated = self.runner.len();
        let result = self
            .runner
            .extend(&self.tokens[evaluated..], &self.interrupt);
        match (&result, &mut self.constraint) {
            (Err(_), _) => self.tokens.truncate(before),
            (Ok(()), Some(constraint)) => constraint.prefilled(tokens.len()),
            (Ok(()), None) => {}
        }
        result
    }

    /// Chooses the next token by the logits of the whole context, appends it and returns it.
    ///
    /// Errors: `NoTokens` on an empty context, `ContextFull`, `DecodePending`, `Interrupted`,
    /// `Numeric`; `Grammar` if a limit of the grammar was reached; those of the backend.
    pub fn decode(&mut self) -> Result<u32> {
        self.prepare_decodes(1)?;
        let token = match self.next_decode()? {
            Next::Forced(token) => token,
            Next::Step(step) => {
                let mut source = mask_source(&mut self.constraint);
                let mask = source.as_mut().map(|s| s as &mut MaskSource);
                self.runner.step_masked(&step, mask, &self.interrupt)?
            }
        };
        self.append(token)
    }

    /// Writes the logits that the next decode chooses by; `out` has one element per token id.
    ///
    /// Errors: `NoTokens` on an empty context, `DecodePending`, `Interrupted`; those of the
    /// backend.
    pub fn logits(&mut self, out: &mut [f32]) -> Result<()> {
        self.begin()?;
        self.need_tokens()?;
        self.drop_stale_position();
        let evaluated = self.runner.len();
        if evaluated < self.tokens.len() {
            self.runner
                .extend(&self.tokens[evaluated..], &self.interrupt)?;
        }
        self.runner.logits(out)
    }

    /// Keeps the first `position` tokens of the context. Ends started decodes, whose tokens are
    /// lost as far as they were not collected.
    ///
    /// Errors: `InvalidArgument` if there are fewer tokens.
    pub fn rewind(&mut self, position: usize) -> Result<()> {
        if position > self.tokens.len() {
            fail!(
                InvalidArgument,
                "position is {position}, but the context has {} tokens",
                self.tokens.len()
            );
        }
        self.stop();
        self.begin()?;
        if let Some(constraint) = &mut self.constraint {
            constraint.rewind(position, &self.tokens);
        }
        self.tokens.truncate(position);
        if self.runner.len() > position {
            // What it has to forget beyond that, the next call evaluates again.
            self.runner.truncate(position);
        }
        Ok(())
    }

    /// A session with the same context, options and model, which answers as this one would.
    ///
    /// Errors: `DecodePending`; `OutOfMemory`; those of the backend.
    pub fn fork(&mut self) -> Result<Session> {
        self.begin()?;
        let runner = self.runner.fork()?;
        let mut tokens = token_history(self.context)?;
        tokens.extend_from_slice(&self.tokens);
        let constraint = match &self.constraint {
            Some(constraint) => Some(Box::new(constraint.duplicate(self.context)?)),
            None => None,
        };
        Ok(Session {
            model: self.model.clone(),
            runner,
            tokens,
            context: self.context,
            kv_type: self.kv_type,
            sampling: self.sampling,
            rules: self.rules.clone(),
            constraint,
            queue: Queue::default(),
            interrupt: Arc::new(AtomicBool::new(false)),
        })
    }

    /// Evaluates the last token of the context (again) and chooses one, which is forgotten, to see
    /// where the time of a decode goes. The session is as before.
    ///
    /// Errors: `NoTokens` on an empty context; `DecodePending`; `Interrupted`; those of the backend.
    pub fn profile(&mut self) -> Result<Profile> {
        self.begin()?;
        self.need_tokens()?;
        let last = self.tokens.len() - 1;
        if self.runner.len() > last {
            self.runner.truncate(last);
        }
        let step = self.next_step()?;
        self.runner.profile(&step, &self.interrupt)
    }

    /// The start of every call: refuses while a decode is started, forgets old interrupts, looks
    /// whether mapped files are still there.
    pub(super) fn begin(&mut self) -> Result<()> {
        if !self.queue.is_empty() {
            fail!(
                DecodePending,
                "a decode was started and not collected by ember_decode_poll"
            );
        }
        self.interrupt.store(false, Ordering::Relaxed);
        self.model.check_files()
    }

    fn need_tokens(&self) -> Result<()> {
        if self.tokens.is_empty() {
            fail!(NoTokens, "the context is empty; prefill comes first");
        }
        Ok(())
    }

    /// Makes the runner forget the last position if its logits are lost (after a rewind or a
    /// failure), so that it is evaluated again.
    fn drop_stale_position(&mut self) {
        let len = self.runner.len();
        if len == self.tokens.len() && !self.runner.has_logits() {
            self.runner.truncate(len - 1);
        }
    }

    /// Checks that `count` tokens can be chosen.
    pub(super) fn prepare_decodes(&mut self, count: usize) -> Result<()> {
        self.begin()?;
        self.need_tokens()?;
        if count > self.context - self.tokens.len() {
            fail!(
                ContextFull,
                "no place for {count} more: {} of the context's {} positions are taken",
                self.tokens.len(),
                self.context
            );
        }
        Ok(())
    }

    /// What is to be done for the next token.
    pub(super) fn next_decode(&mut self) -> Result<Next> {
        match self.follow_grammar()? {
            Some(token) => Ok(Next::Forced(token)),
            None => self.next_step().map(Next::Step),
        }
    }

    /// The next choice. The runner evaluates with it what it lacks, if that is one token; more (what
    /// a grammar has forced) it evaluates here, together.
    pub(super) fn next_step(&mut self) -> Result<Step> {
        self.drop_stale_position();
        let evaluated = self.runner.len();
        let last = self.tokens.len() - 1;
        if evaluated < last {
            self.runner
                .extend(&self.tokens[evaluated..], &self.interrupt)?;
        }
        Ok(Step {
            token: (self.runner.len() == last).then(|| self.tokens[last]),
            sampling: self.sampling,
            position: self.tokens.len() as u64,
        })
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

/// What is to be done for the next token.
pub(super) enum Next {
    /// Nothing: a grammar leaves no choice.
    Forced(u32),
    /// A choice.
    Step(Step),
}

/// What a backend asks for the mask of a choice.
pub(super) fn mask_source(
    constraint: &mut Option<Box<Constraint>>,
) -> Option<impl FnMut(&mut [u32]) -> Result<()> + '_> {
    let constraint = constraint.as_mut()?;
    Some(|words: &mut [u32]| constraint.mask(words))
}

impl Drop for Session {
    /// Waits for started decodes, which are interrupted.
    fn drop(&mut self) {
        self.stop();
    }
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
