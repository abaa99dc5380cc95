//! Drafts of a smaller model with the same vocabulary, which has a session of its own beside.
//!
//! It draws with the seed and positions of the session that it drafts for: the draws of both are the same numbers, so that two models that
//! agree about probabilities agree about the token.

use super::{DraftContext, DraftSource, SourceKind};
use crate::engine::session::SessionOptions;
use crate::engine::{Model, Session};
use crate::error::{Result, Status, fail};
use crate::log::log;
use std::sync::Arc;

/// A session of another model.
pub struct ModelDrafts {
    session: Session,
}

impl ModelDrafts {
    /// For a session, whose interrupts end drafting, too.
    ///
    /// Errors: `InvalidArgument` if the vocabularies differ; those of a new session.
    pub fn new(target: &Session, model: &Arc<Model>) -> Result<ModelDrafts> {
        check_vocabulary(target.model(), model)?;
        let options = SessionOptions {
            context: target.context().min(model.details().context_length),
            ..Default::default()
        };
        let mut session = Session::create(model.clone(), &options)?;
        session.interrupts = target.interrupts().clone();
        make_ready(&mut session)?;
        Ok(ModelDrafts { session })
    }

    fn catch_up(&mut self, tokens: &[u32]) -> Result<()> {
        let session = &mut self.session;
        let same = session
            .tokens()
            .iter()
            .zip(tokens)
            .take_while(|(a, b)| a == b);
        let same = same.count();
        if same < session.position() {
            session.rewind(same)?;
        }
        match &tokens[same..] {
            [] => Ok(()),
            rest => session.prefill(rest),
        }
    }

    fn try_draft(&mut self, context: &DraftContext<'_>, drafts: &mut [u32]) -> Result<usize> {
        self.catch_up(context.tokens)?;
        let mut sampling = *context.sampling;
        sampling.logprobs = 0;
        if self.session.sampling != sampling {
            self.session.set_sampling(sampling, None)?;
        }
        let mut count = 0;
        for draft in drafts {
            if self.session.position() == self.session.context() {
                break;
            }
            *draft = self.session.decode()?;
            count += 1;
            if context.is_end(*draft) {
                break;
            }
        }
        Ok(count)
    }
}

/// Has what a session makes when it first decodes, so that no draft has to wait for it. A session that cannot decode will have no
/// drafts.
fn make_ready(session: &mut Session) -> Result<()> {
    if let Err(e) = session.prefill(&[0, 0]).and_then(|()| session.decode()) {
        log!(of: session.model().log(), Debug, "a draft model is not ready: {}", e.message);
    }
    session.rewind(0)
}

/// `InvalidArgument` unless the models have the same tokens.
pub(super) fn check_vocabulary(target: &Model, drafts: &Model) -> Result<()> {
    let [wanted, found] = [target, drafts].map(|m| m.details().n_vocab);
    if wanted != found {
        fail!(
            InvalidArgument,
            "draft_model has {found} tokens in its vocabulary, the session's model has {wanted}"
        );
    }
    let (Ok(target), Ok(drafts)) = (target.tokenizer(), drafts.tokenizer()) else {
        return Ok(());
    };
    for id in 0..wanted as u32 {
        if target.token_bytes(id).ok() != drafts.token_bytes(id).ok() {
            fail!(
                InvalidArgument,
                "draft_model has another vocabulary: token {id} is not that of the session's model"
            );
        }
    }
    Ok(())
}

impl DraftSource for ModelDrafts {
    fn kind(&self) -> SourceKind {
        SourceKind::Model
    }

    fn evict(&mut self) -> Result<()> {
        // It comes back when it is asked.
        self.session.evict()
    }

    fn lacks(&self, context: &DraftContext<'_>) -> usize {
        let read = self.session.tokens().iter().zip(context.tokens);
        context.tokens.len() - read.take_while(|(a, b)| a == b).count()
    }

    fn look(&mut self, context: &DraftContext<'_>) -> Result<Option<usize>> {
        Ok((context.tokens.len() < self.session.context()).then_some(0))
    }

    /// A draft model that fails has no drafts: only speed depends on it.
    fn draft(&mut self, context: &DraftContext<'_>, drafts: &mut [u32]) -> Result<usize> {
        match self.try_draft(context, drafts) {
            Err(e) if e.status != Status::Interrupted => {
                log!(of: self.session.model().log(), Debug, "no drafts: {}", e.message);
                Ok(0)
            }
            result => result,
        }
    }

    fn fork(&mut self, fork: &Session) -> Result<Box<dyn DraftSource>> {
        let mut session = self.session.fork()?;
        session.interrupts = fork.interrupts().clone();
        Ok(Box::new(ModelDrafts { session }))
    }
}
