//! Decodes of several sessions in one pass over the weights.

use super::Session;
use super::session::{Next, mask_source};
use crate::backend::{MAX_BATCH, MaskSource, Runner, Step, at_index, move_index};
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
        let mut chosen = ArrayVec::<u32, MAX_BATCH>::new();
        let mut steps = ArrayVec::<Step, MAX_BATCH>::new();
        // The sessions that have a step; the others' tokens are forced by a grammar.
        let mut places = ArrayVec::<usize, MAX_BATCH>::new();
        for (i, session) in sessions.iter_mut().enumerate() {
            if !Arc::ptr_eq(&session.model, &model) {
                fail!(
                    InvalidArgument,
                    "session at index {i}: it has another model than the first one"
                );
            }
            let next = session.prepare_decodes(1);
            match next.and_then(|()| session.next_decode()) {
                Ok(Next::Forced(token)) => chosen.push(token),
                Ok(Next::Step(step)) => {
                    chosen.push(0);
                    steps.push(step);
                    places.push(i);
                }
                Err(e) => return Err(at_index(i, e)),
            }
        }
        let mut stepped = [0; MAX_BATCH];
        let stepped = &mut stepped[..steps.len()];
        run_steps(sessions, &steps, &places, stepped).map_err(|e| move_index(e, &places))?;
        for (&i, &token) in places.iter().zip(&*stepped) {
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
            chosen[i] = token;
        }
        for (session, token) in sessions.iter_mut().zip(&chosen) {
            session.append(*token)?;
        }
        tokens.copy_from_slice(&chosen);
        Ok(())
    }
}

/// Does `steps` of the sessions at `places` on the device.
fn run_steps(
    sessions: &mut [&mut Session],
    steps: &[Step],
    places: &[usize],
    tokens: &mut [u32],
) -> Result<()> {
    if steps.is_empty() {
        return Ok(());
    }
    let weights = sessions[0].model.weights().clone();
    let mut runners = ArrayVec::<&mut dyn Runner, MAX_BATCH>::new();
    let mut interrupts = ArrayVec::<&AtomicBool, MAX_BATCH>::new();
    let mut sources = ArrayVec::<_, MAX_BATCH>::new();
    for (i, session) in sessions.iter_mut().enumerate() {
        if places.contains(&i) {
            runners.push(&mut *session.runner);
            interrupts.push(&session.interrupt);
            sources.push(mask_source(&mut session.constraint));
        }
    }
    let mut masks = ArrayVec::<Option<&mut MaskSource>, MAX_BATCH>::new();
    for source in &mut sources {
        masks.push(source.as_mut().map(|s| s as &mut MaskSource));
    }
    weights.step_batch_masked(&mut runners, steps, &mut masks, &interrupts, tokens)
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
