//! Running a session: prefill and decode.

use super::boundary::{Out, OutStruct, call, slice};
use super::error::{ember_error, ember_status};
use super::session::{ember_session, with_session};
use super::token::ember_token;
use crate::error::{Error, Status};

/// Appends `count` tokens to the context and evaluates them, all or none. It may be called repeatedly. On the CPU,
/// the result does not depend on how tokens are divided among calls. On a GPU, the last token of a call is evaluated
/// with 8-bit inputs and the others in half precision, so a different division changes logits slightly.
///
/// Errors: `EMBER_NO_INPUT` if `count` is 0; `EMBER_CONTEXT_FULL`; `EMBER_INVALID_TOKEN` names the
/// token; `EMBER_OUT_OF_MEMORY`; `EMBER_BUSY`; `EMBER_DECODE_PENDING`; `EMBER_INTERRUPTED`. After each of
/// them the context is as it was before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_prefill(
    session: *mut ember_session,
    tokens: *const u32,
    count: usize,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `tokens` is as the header demands.
        let tokens = unsafe { slice(tokens, count, "tokens") }?;
        with_session(session, |session| session.prefill(tokens))
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Starts what `ember_prefill` does and returns at once; `ember_prefill_poll` reports when it is done. `tokens` is
/// used during this call only. The prompt is evaluated in pieces: decodes of other sessions run between them. Until
/// `ember_prefill_poll` has returned something other than `EMBER_PENDING`, every other function that changes the
/// session returns `EMBER_DECODE_PENDING`, except for `ember_session_interrupt`, which stops the prefill,
/// `ember_session_rewind` and `ember_session_free`.
///
/// Errors: those of `ember_prefill` that are known before any work is done; `EMBER_DEVICE_ERROR` if a
/// thread cannot be started.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_prefill_start(
    session: *mut ember_session,
    tokens: *const u32,
    count: usize,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `tokens` is as the header demands.
        let tokens = unsafe { slice(tokens, count, "tokens") }?;
        with_session(session, |session| session.prefill_start(tokens))
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Asks whether the started prefill is done. Never blocks: `EMBER_PENDING` means that it is not. With
/// `EMBER_OK` and `EMBER_PENDING`, the number of its tokens that are evaluated by now is written to
/// `evaluated`, which may be NULL. May be called from another thread than the start.
///
/// Errors: `EMBER_NOTHING_PENDING` if none was started, or its end was collected; `EMBER_BUSY`; else
/// those of `ember_prefill`, after which it is over and the context is as it was before it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_prefill_poll(
    session: *mut ember_session,
    evaluated: *mut usize,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `evaluated` is as the header demands.
        let evaluated = unsafe { Out::optional(evaluated, "evaluated") }?;
        let (done, count) = with_session(session, |session| session.prefill_poll())?;
        if let Some(evaluated) = evaluated {
            evaluated.set(count);
        }
        match done {
            true => Ok(()),
            false => Err(Error::new(Status::Pending, "")),
        }
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Chooses the next token, appends it to the context and writes it to `token`, whose `struct_size` the caller has set. The new token
/// is evaluated only when a later call needs it. The session does not stop at end tokens, which have the flag
/// `EMBER_TOKEN_ENDS`.
///
/// Errors: `EMBER_NO_INPUT` for an empty context; `EMBER_CONTEXT_FULL`; `EMBER_BUSY`;
/// `EMBER_DECODE_PENDING`; `EMBER_INTERRUPTED`; `EMBER_NUMERIC`; `EMBER_GRAMMAR` if a limit of the
/// session's grammar was reached; `EMBER_OUT_OF_MEMORY`. After each of them the context is as it was
/// before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_decode(
    session: *mut ember_session,
    token: *mut ember_token,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `token` is as the header demands.
        let token = unsafe { OutStruct::new(token) }?;
        token.set(&with_session(session, |session| {
            let id = session.decode()?;
            Ok(ember_token::of(session, id))
        })?);
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Starts what `ember_decode` does and returns at once; `ember_decode_poll` collects the token,
/// which is the same that `ember_decode` would have returned. Until then every other function that
/// changes the session returns `EMBER_DECODE_PENDING`, except for `ember_session_interrupt`,
/// `ember_session_rewind` and `ember_session_free`.
///
/// Errors: those of `ember_decode` that are known before any work is done, and `EMBER_DEVICE_ERROR` if
/// the device does not take it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_decode_start(
    session: *mut ember_session,
    err: *mut ember_error,
) -> ember_status {
    let work = || with_session(session, |session| session.decode_start(1));
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Starts what `count` calls of `ember_decode` do, and returns at once. The device continues by itself while the
/// caller collects the tokens one by one with `ember_decode_poll`. The context grows as they are collected. Decoding
/// does not stop at end tokens; `ember_session_rewind` drops the rest. `ember_session_interrupt` stops it: tokens
/// that were already chosen can still be collected, and then `ember_decode_poll` returns `EMBER_INTERRUPTED` once,
/// unless all were chosen.
///
/// Errors: `EMBER_INVALID_ARGUMENT` if `count` is 0; `EMBER_CONTEXT_FULL` if there is no room for
/// all of them, with nothing started; else as `ember_decode_start`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_decode_start_n(
    session: *mut ember_session,
    count: usize,
    err: *mut ember_error,
) -> ember_status {
    let work = || with_session(session, |session| session.decode_start(count));
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Returns the next token of the started decodes, without blocking: `EMBER_PENDING` means that it is not available
/// yet and `token` was not written; `ember_session_set_event` says how to wait for it. It may be called from another thread than the start.
///
/// Errors: `EMBER_NOTHING_PENDING` if none was started, or all were collected; `EMBER_BUSY`; else
/// those of `ember_decode`, after which all started decodes are over and the context has the tokens
/// that were collected.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_decode_poll(
    session: *mut ember_session,
    token: *mut ember_token,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `token` is as the header demands.
        let token = unsafe { OutStruct::new(token) }?;
        let polled = with_session(session, |session| {
            let id = session.decode_poll()?;
            Ok(id.map(|id| ember_token::of(session, id)))
        })?;
        match polled {
            Some(polled) => {
                token.set(&polled);
                Ok(())
            }
            None => Err(Error::new(Status::Pending, "")),
        }
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}
