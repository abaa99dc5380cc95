//! Decodes of several sessions in one pass over the weights.

use super::Session;
use crate::backend::{MAX_BATCH, Runner, Step, at_index};
use crate::error::{Result, fail};
use arrayvec::ArrayVec;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

impl Session {
    /// Does what `decode` does for each of 1 to [`MAX_BATCH`] sessions of one model, and writes
    /// their tokens. What a session answers does not depend on the others. All or nothing: after an
    /// error, all are as they were before.
    ///
    /// Errors: `InvalidArgument` for a wrong number of sessions or for different models; those of
    /// `decode`. The message names the index of the session.
    pub fn decode_batch(sessions: &mut [&mut Session], tokens: &mut [u32]) -> Result<()> {
        let n = sessions.len();
        check_count(n)?;
        let Some(tokens) = tokens.get_mut(..n) else {
            fail!(Internal, "{} places for {n} tokens", tokens.len());
        };
        let model = sessions[0].model.clone();
        let mut steps = ArrayVec::<Step, MAX_BATCH>::new();
        for (i, session) in sessions.iter_mut().enumerate() {
            if !Arc::ptr_eq(&session.model, &model) {
                fail!(
                    InvalidArgument,
                    "session at index {i}: it has another model than the first one"
                );
            }
            steps.push(session.prepare_steps(1).map_err(|e| at_index(i, e))?);
        }
        let mut chosen = [0; MAX_BATCH];
        let mut runners = ArrayVec::<&mut dyn Runner, MAX_BATCH>::new();
        let mut interrupts = ArrayVec::<&AtomicBool, MAX_BATCH>::new();
        for session in sessions.iter_mut() {
            runners.push(&mut *session.runner);
            interrupts.push(&session.interrupt);
        }
        let weights = model.weights();
        let result = weights.step_batch(&mut runners, &steps, &interrupts, &mut chosen[..n]);
        drop((runners, interrupts));
        result?;
        for (i, &token) in chosen[..n].iter().enumerate() {
            if token as usize >= model.details().n_vocab {
                for session in sessions.iter_mut() {
                    let len = session.tokens.len();
                    session.runner.truncate(len.min(session.runner.len()));
                }
                fail!(
                    Internal,
                    "session at index {i}: the backend chose token {token}, which is not in the vocabulary"
                );
            }
        }
        for (session, token) in sessions.iter_mut().zip(&chosen) {
            session.append(*token)?;
        }
        tokens.copy_from_slice(&chosen[..n]);
        Ok(())
    }
}

/// `InvalidArgument` unless a batch can have that many sessions.
pub(crate) fn check_count(count: usize) -> Result<()> {
    if count == 0 || count > MAX_BATCH {
        fail!(
            InvalidArgument,
            "count is {count}; a batch has 1 to {MAX_BATCH} sessions"
        );
    }
    Ok(())
}
