//! Decodes of several sessions in one pass over the weights.

use super::Session;
use super::session::mask_source;
use crate::backend::{MAX_BATCH, Mark, MaskSource, Outcome, Row, RowError, RowResult, Want, When};
use crate::error::{Error, Result, Status, fail};
use arrayvec::ArrayVec;
use std::sync::Arc;

/// The error of one session of a batch, which names it.
pub(crate) fn at_index(index: usize, error: Error) -> Error {
    let message = format!("session at index {index}: {}", error.message);
    Error::new(error.status, message).at(index)
}

impl Session {
    /// Does what `decode` does for each of 1 to [`MAX_BATCH`] sessions of one model, and writes
    /// their tokens. What a session answers does not depend on the others. All or nothing: after an
    /// error, all are as they were before.
    ///
    /// Errors: `InvalidArgument` for a wrong number of sessions or for different models; those of
    /// `decode`. The message names the index of the session.
    pub fn decode_batch(sessions: &mut [&mut Session], tokens: &mut [u32]) -> Result<()> {
        let result = Session::try_batch(sessions, tokens);
        if let Err(e) = &result
            && e.status == Status::Interrupted
        {
            // The interrupt of one session ends the call; those of others are still to be answered.
            let named = e.index.and_then(|i| sessions.get(i));
            let asked = || sessions.iter().find(|s| s.interrupts.is_asked());
            if let Some(session) = named.or_else(asked) {
                session.interrupts.clear();
            }
        }
        result
    }

    fn try_batch(sessions: &mut [&mut Session], tokens: &mut [u32]) -> Result<()> {
        let n = sessions.len();
        check_count(n)?;
        let Some(tokens) = tokens.get_mut(..n) else {
            fail!(Internal, "{} places for {n} tokens", tokens.len());
        };
        let model = sessions[0].model.clone();
        // Tokens that a grammar forces; the other sessions have one to choose.
        let mut chosen = ArrayVec::<Option<u32>, MAX_BATCH>::new();
        let mut marks = ArrayVec::<Mark, MAX_BATCH>::new();
        for (i, session) in sessions.iter_mut().enumerate() {
            if !Arc::ptr_eq(&session.model, &model) {
                let e = Error::new(
                    Status::InvalidArgument,
                    "it has another model than the first one",
                );
                return Err(at_index(i, e));
            }
            let prepared = session.prepare_choice().map_err(|e| at_index(i, e))?;
            chosen.push(prepared.0);
            marks.push(prepared.1);
        }
        // The rows are those of the sessions at these indices.
        let choosing = chosen.iter().enumerate().filter(|(_, c)| c.is_none());
        let choosing: ArrayVec<usize, MAX_BATCH> = choosing.map(|(i, _)| i).collect();
        let result = choose(sessions, &choosing, &mut chosen);
        if let Err(RowError { row, error }) = result {
            for &i in &choosing {
                sessions[i].residence.roll_back(marks[i]);
            }
            return Err(match row.and_then(|row| choosing.get(row)) {
                Some(&i) => at_index(i, error),
                None => error,
            });
        }
        for ((session, token), chosen) in sessions.iter_mut().zip(tokens).zip(chosen) {
            *token = session.append(chosen.unwrap_or(u32::MAX))?;
        }
        Ok(())
    }

    /// Readies a session for one decode: the token that a grammar forces, if it does, and a mark to
    /// come back to.
    fn prepare_choice(&mut self) -> Result<(Option<u32>, Mark)> {
        self.prepare_decodes(1)?;
        let forced = self.follow_grammar()?;
        self.drop_stale_position()?;
        Ok((forced, self.residence.runner()?.mark()))
    }
}

/// Lets the sessions at the indices `choosing` choose a token each.
fn choose(
    sessions: &mut [&mut Session],
    choosing: &[usize],
    chosen: &mut [Option<u32>],
) -> RowResult<()> {
    if choosing.is_empty() {
        return Ok(());
    }
    let model = sessions[0].model.clone();
    let mut sources = ArrayVec::<_, MAX_BATCH>::new();
    let mut parts = ArrayVec::<_, MAX_BATCH>::new();
    for (i, session) in sessions.iter_mut().enumerate() {
        if choosing.contains(&i) {
            let session = &mut **session;
            sources.push(mask_source(&mut session.constraint));
            let runner = session.residence.runner()?;
            let rest = &session.tokens[runner.len()..];
            parts.push((runner, rest, session.sampling, session.interrupts.work()));
        }
    }
    let mut rows = ArrayVec::<Row, MAX_BATCH>::new();
    for ((runner, tokens, sampling, interrupt), source) in parts.into_iter().zip(&mut sources) {
        rows.push(Row {
            runner,
            tokens,
            want: Want::Choices { count: 1, sampling },
            mask: source.as_mut().map(|s| s as &mut MaskSource),
            interrupt,
        });
    }
    model.weights().submit(&mut rows, When::Now)?;
    // All are collected, whatever one of them has come to.
    let mut result = Ok(());
    for (row, &i) in choosing.iter().enumerate() {
        let n_vocab = model.details().n_vocab;
        match rows[row].runner.poll(true) {
            Ok(Some(Outcome::Token(token))) if (token as usize) < n_vocab => {
                chosen[i] = Some(token);
            }
            Ok(outcome) => {
                let message = format!("the backend chose {outcome:?}, which is no token");
                let e = Error::new(Status::Internal, message);
                result = result.and(Err(RowError::of(row, e)));
            }
            Err(e) => result = result.and(Err(RowError::of(row, e))),
        }
    }
    result
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
