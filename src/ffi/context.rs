//! The tokens of a session: reading them, and making them what they should be.

use super::boundary::{Out, call, fill, slice, slice_mut};
use super::error::{ember_error, ember_status};
use super::session::{ember_session, with_session};
use crate::error::fail;

/// Writes the tokens of the context, starting at position `from`, to `tokens`, and their number to `count`. They
/// include the token that the last decode returned. `capacity` is the number of elements that `tokens` has room for;
/// if that is too small, the result is `EMBER_BUFFER_TOO_SMALL`, and only `count` is written. `tokens` may be NULL if
/// `capacity` is 0. While decodes are pending, only collected tokens are returned; while a prefill is pending, those
/// before it.
///
/// Errors: `EMBER_INVALID_ARGUMENT` if `from` is behind the end of the context; `EMBER_BUFFER_TOO_SMALL`; `EMBER_BUSY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_session_tokens(
    session: *mut ember_session,
    from: usize,
    tokens: *mut u32,
    capacity: usize,
    count: *mut usize,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `tokens` and `count` are as the header demands.
        let (tokens, count) = unsafe {
            (
                slice_mut(tokens, capacity, "tokens")?,
                Out::new(count, "count")?,
            )
        };
        with_session(session, |session| {
            let Some(found) = session.tokens().get(from..) else {
                fail!(
                    InvalidArgument,
                    "from is {from}, but the context has {} tokens",
                    session.position()
                );
            };
            fill(found, tokens, &count, "tokens")
        })
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Replaces the context with these `count` tokens. The common prefix is kept, the rest of the old context is dropped
/// as by `ember_session_rewind`, and the remaining tokens are evaluated as by `ember_prefill`. Logits of the last
/// token are available afterwards. The length of the common prefix is written to `kept`, which may be NULL.
///
/// Use it for a conversation that has grown or changed: only new tokens are evaluated. If the session has a grammar,
/// the constrained output begins after these tokens, as it does after a prefill.
///
/// Errors: `EMBER_NO_INPUT` if `count` is 0; `EMBER_CONTEXT_FULL`; `EMBER_INVALID_TOKEN` with the token's index; `EMBER_OUT_OF_MEMORY`;
/// `EMBER_BUSY`; `EMBER_DECODE_PENDING`; `EMBER_INTERRUPTED`. After each of them the context is as it was before. If the error came while
/// tokens were evaluated, the next call evaluates again the part of the context whose keys and values were dropped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_session_sync(
    session: *mut ember_session,
    tokens: *const u32,
    count: usize,
    kept: *mut usize,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `kept` is as the header demands.
        let kept = unsafe { Out::optional(kept, "kept") }?;
        // SAFETY: `tokens` is as the header demands.
        let tokens = unsafe { slice(tokens, count, "tokens") }?;
        let same = with_session(session, |session| session.sync(tokens))?;
        if let Some(kept) = kept {
            kept.set(same);
        }
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}
