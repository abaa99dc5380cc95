//! Decodes of several sessions at once.

use super::boundary::{call, slice, slice_mut};
use super::error::{ember_error, ember_status};
use super::session::{ember_session, with_sessions};
use crate::engine::Session;
use crate::engine::batch::check_count;

/// Decodes one token for each of `count` sessions, as `ember_decode` does, in one pass over the weights. This is much
/// faster than one session after another. `count` is 1 to 32, and the sessions must be different and of the same
/// model. Context lengths and sampling settings may differ. The token of `sessions[i]` is written to `tokens[i]`. The
/// result of a session does not depend on the others, bit for bit.
///
/// All or nothing: after an error, every session is as it was before, `tokens` is unchanged, and `ember_error.index`
/// is the index of the session at fault.
///
/// Errors: `EMBER_INVALID_ARGUMENT` for a wrong `count`, a session that is there twice, sessions of
/// different models; `EMBER_BUSY`, `EMBER_DECODE_PENDING`, `EMBER_NO_TOKENS`, `EMBER_CONTEXT_FULL`,
/// `EMBER_INTERRUPTED`, `EMBER_NUMERIC`, `EMBER_GRAMMAR` if it is so for one of them;
/// `EMBER_OUT_OF_MEMORY` for the memory of a model's first batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_decode_batch(
    sessions: *const *mut ember_session,
    count: usize,
    tokens: *mut u32,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        check_count(count)?;
        // SAFETY: `sessions` and `tokens` are as the header demands.
        let (sessions, tokens) = unsafe {
            (
                slice(sessions, count, "sessions")?,
                slice_mut(tokens, count, "tokens")?,
            )
        };
        with_sessions(sessions, |sessions| Session::decode_batch(sessions, tokens))
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}
