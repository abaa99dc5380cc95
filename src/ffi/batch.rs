//! Decodes of several sessions at once.

use super::boundary::{OutStructs, call, slice};
use super::error::{ember_error, ember_status};
use super::session::{ember_session, with_sessions};
use super::token::ember_token;
use crate::engine::Session;
use crate::engine::batch::{at_index, check_count};
use crate::error::Error;

/// Decodes one token for each of `count` sessions, as `ember_decode` does, in one pass over the weights. This is much
/// faster than one session after another. `count` is at least 1 and at most `max_batch` of `ember_model_details`, and the
/// sessions must be different and of the same model. Context lengths and sampling settings may differ. The token of
/// `sessions[i]` is written to `tokens[i]`; the elements of `tokens` are as far apart as `struct_size` of the first one says,
/// the only one that has to be set. What a session returns does not depend on the others, bit for bit.
///
/// Each session has a status of its own in `tokens`. A session that fails is as it was before, and the others go on. If one
/// has failed, the call returns the status of the first that has, with its message and its index in `ember_error.index`.
///
/// Errors: before any work is done, with `tokens` unchanged, `EMBER_INVALID_ARGUMENT` for a wrong `count`, a session that is
/// there twice, sessions of different models; `EMBER_INVALID_HANDLE`; `EMBER_BUSY`. Of single sessions:
/// `EMBER_DECODE_PENDING`, `EMBER_NO_INPUT`, `EMBER_CONTEXT_FULL`, `EMBER_INTERRUPTED`, `EMBER_NUMERIC`, `EMBER_GRAMMAR`;
/// `EMBER_OUT_OF_MEMORY`, also for the memory of a model's first batch and, on a GPU, of the first of more than 32 sessions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_decode_batch(
    sessions: *const *mut ember_session,
    count: usize,
    tokens: *mut ember_token,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        check_count(count)?;
        // SAFETY: `sessions` and `tokens` are as the header demands.
        let (sessions, tokens) = unsafe {
            (
                slice(sessions, count, "sessions")?,
                OutStructs::new(tokens, count)?,
            )
        };
        let mut failed: Option<(usize, Error)> = None;
        with_sessions(sessions, |sessions| {
            Session::decode_each(sessions, &mut |i, session, result| match result {
                Ok(id) => tokens.set(i, &ember_token::of(session, id)),
                Err(e) => {
                    tokens.set(i, &ember_token::none(e.status));
                    if failed.as_ref().is_none_or(|(first, _)| i < *first) {
                        failed = Some((i, e));
                    }
                }
            })
        })?;
        match failed {
            Some((i, e)) => Err(at_index(i, e)),
            None => Ok(()),
        }
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Starts what `ember_decode_batch` does, and returns at once. Each session has a started decode then, whose token
/// `ember_decode_poll` returns, with the session's own error if it has failed. Started batches of a model run one after the other.
///
/// Errors: those of `ember_decode_batch` that are known before any work is done, also of single sessions, with the index of the
/// session in `ember_error.index`; nothing was started then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_decode_batch_start(
    sessions: *const *mut ember_session,
    count: usize,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        check_count(count)?;
        // SAFETY: `sessions` is as the header demands.
        let sessions = unsafe { slice(sessions, count, "sessions") }?;
        with_sessions(sessions, Session::decode_batch_start)
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}
