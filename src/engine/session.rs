//! A session: the tokens of one context and the runner that has evaluated most of them.
//!
//! `tokens` is the whole context. The runner has evaluated a prefix of it; what it lacks (the token
//! that a decode returned last, or the one whose logits a rewind lost) is evaluated by the next
//! call that needs it. A call that fails leaves the context as it was.

use super::Model;
use super::sampling::Sampling;
use crate::backend::{KvType, Runner, RunnerOptions, Step};
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
}

/// The state of one conversation. Used by one thread at a time.
pub struct Session {
    model: Arc<Model>,
    runner: Box<dyn Runner>,
    /// The context, never longer than `context`, which is also its capacity.
    tokens: Vec<u32>,
    context: usize,
    kv_type: KvType,
    sampling: Sampling,
    /// Whether a started decode was not collected yet.
    started: bool,
    interrupt: Arc<AtomicBool>,
}

impl Session {
    /// A session with an empty context. Reserves all memory that it will need.
    ///
    /// Errors: `InvalidArgument` names the option; `OutOfMemory`; those of the backend.
    pub fn create(model: Arc<Model>, options: &SessionOptions) -> Result<Session> {
        options.sampling.check()?;
        let trained = model.details().context_length;
        let context = match options.context {
            0 => trained.min(super::model::DEFAULT_CONTEXT),
            n => n,
        };
        if context > trained {
            fail!(
                InvalidArgument,
                "context is {context}, but the model was trained for {trained} positions"
            );
        }
        let runner = model.weights().clone().create_runner(&RunnerOptions {
            context,
            kv_type: options.kv_type,
        })?;
        let mut tokens = crate::error::try_vec(context, 0u32, "token history")?;
        tokens.clear();
        log!(
            Debug,
            "session created: context {context}, KV {:?}",
            options.kv_type
        );
        Ok(Session {
            model,
            runner,
            tokens,
            context,
            kv_type: options.kv_type,
            sampling: options.sampling,
            started: false,
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
        let per_token = self.model.weights().kv_bytes_per_token(self.kv_type);
        per_token.saturating_mul(self.context as u64)
    }

    /// The flag that makes the running call, or the started decode, end with `Interrupted`. Every
    /// call begins by clearing it.
    pub fn interrupt_flag(&self) -> &Arc<AtomicBool> {
        &self.interrupt
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
        if result.is_err() {
            self.tokens.truncate(before);
        }
        result
    }

    /// Chooses the next token by the logits of the whole context, appends it and returns it.
    ///
    /// Errors: `NoTokens` on an empty context, `ContextFull`, `DecodePending`, `Interrupted`,
    /// `Numeric`; those of the backend.
    pub fn decode(&mut self) -> Result<u32> {
        let step = self.prepare_step()?;
        let token = self.runner.step(&step, &self.interrupt)?;
        self.append(token)
    }

    /// Does what `decode` does for several sessions of one model, in one pass over the weights where
    /// the device can, and returns a token for each. What a session answers does not depend on the
    /// others.
    ///
    /// Errors: those of `decode`, of any of the sessions, after which all contexts are as they were;
    /// `InvalidArgument` for no session, too many for the device, or sessions of different models.
    pub fn decode_batch(sessions: &mut [&mut Session]) -> Result<Vec<u32>> {
        let Some(first) = sessions.first() else {
            fail!(InvalidArgument, "a batch of no sessions");
        };
        let model = first.model.clone();
        let interrupt = first.interrupt.clone();
        if sessions.iter().any(|s| !Arc::ptr_eq(&s.model, &model)) {
            fail!(InvalidArgument, "sessions of different models in one batch");
        }
        let mut steps = Vec::with_capacity(sessions.len());
        for session in sessions.iter_mut() {
            steps.push(session.prepare_step()?);
        }
        let mut runners: Vec<&mut dyn Runner> = sessions
            .iter_mut()
            .map(|s| &mut *s.runner as &mut dyn Runner)
            .collect();
        let tokens = model
            .weights()
            .step_batch(&mut runners, &steps, &interrupt)?;
        let tokens = tokens.into_iter().collect::<Result<Vec<u32>>>()?;
        for (session, &token) in sessions.iter_mut().zip(&tokens) {
            session.append(token)?;
        }
        Ok(tokens)
    }

    /// Starts what `decode` does and returns at once. [`Session::decode_poll`] has the result;
    /// until then other calls fail with `DecodePending`.
    ///
    /// Errors: those of `decode` that are known before any work.
    pub fn decode_start(&mut self) -> Result<()> {
        let step = self.prepare_step()?;
        self.runner.step_start(&step, &self.interrupt)?;
        self.started = true;
        Ok(())
    }

    /// The token of the started decode, or `None` while it is not there. Never blocks.
    ///
    /// Errors: `NothingPending` if none was started; those of `decode`, after which the decode is
    /// over and the context is as it was before it.
    pub fn decode_poll(&mut self) -> Result<Option<u32>> {
        if !self.started {
            fail!(NothingPending, "no decode was started");
        }
        match self.runner.step_poll(false) {
            Ok(None) => Ok(None),
            Ok(Some(token)) => {
                self.started = false;
                self.append(token).map(Some)
            }
            Err(e) => {
                self.started = false;
                Err(e)
            }
        }
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

    /// Keeps the first `position` tokens of the context.
    ///
    /// Errors: `InvalidArgument` if there are fewer; `DecodePending`.
    pub fn rewind(&mut self, position: usize) -> Result<()> {
        self.begin()?;
        if position > self.tokens.len() {
            fail!(
                InvalidArgument,
                "position is {position}, but the context has {} tokens",
                self.tokens.len()
            );
        }
        self.tokens.truncate(position);
        if self.runner.len() > position {
            self.runner.truncate(position);
        }
        Ok(())
    }

    /// The start of every call: refuses while a decode is started, forgets old interrupts.
    fn begin(&mut self) -> Result<()> {
        if self.started {
            fail!(
                DecodePending,
                "a decode was started and not collected by ember_decode_poll"
            );
        }
        self.interrupt.store(false, Ordering::Relaxed);
        Ok(())
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

    /// Checks that a token can be chosen, and brings the runner to at most one token behind.
    fn prepare_step(&mut self) -> Result<Step> {
        self.begin()?;
        self.need_tokens()?;
        if self.tokens.len() == self.context {
            fail!(
                ContextFull,
                "no place for another token: all {} positions are taken",
                self.context
            );
        }
        self.drop_stale_position();
        let evaluated = self.runner.len();
        let last = self.tokens.len() - 1;
        if evaluated < last {
            self.runner
                .extend(&self.tokens[evaluated..last], &self.interrupt)?;
        }
        Ok(Step {
            token: (self.runner.len() == last).then(|| self.tokens[last]),
            sampling: self.sampling,
            position: self.tokens.len() as u64,
        })
    }

    fn append(&mut self, token: u32) -> Result<u32> {
        if token as usize >= self.model.details().n_vocab {
            return Err(Error::new(
                Status::Internal,
                format!("the backend chose token {token}, which is not in the vocabulary"),
            ));
        }
        self.tokens.push(token);
        Ok(token)
    }
}

impl Drop for Session {
    /// Waits for a started decode, which is interrupted.
    fn drop(&mut self) {
        if self.started {
            self.interrupt.store(true, Ordering::Relaxed);
            let _ = self.runner.step_poll(true);
        }
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
