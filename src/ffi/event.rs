//! Events for event loops.

use super::boundary::{Out, call, call_always};
use super::error::{ember_error, ember_status};
use super::handle::{Kind, Table};
use super::session::{ember_session, with_session};
use crate::error::Result;
use crate::threads::event::Event;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Arc;

/// An event that an event loop can wait for. It is set when a call of `ember_decode_poll`, `ember_prefill_poll`, `ember_generate_next`
/// or `ember_load_poll` may find something new. Any number of sessions and loads may have the same one. All functions that take one
/// may be called by any thread at any time.
pub struct ember_event {
    _opaque: [u8; 0],
}

static EVENTS: Table<Event> = Table::new(Kind::Event);

/// The event of a handle, or none for NULL.
pub(super) fn event(handle: *const ember_event) -> Result<Option<Arc<Event>>> {
    match handle.is_null() {
        true => Ok(None),
        false => EVENTS.get(handle.addr()).map(Some),
    }
}

/// Creates an event that is not set. The new handle is written to `out` and has to be freed with `ember_event_free`. Any thread
/// may call it.
///
/// Errors: `EMBER_OUT_OF_MEMORY`, also if the process has no file descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_event_create(
    out: *mut *mut ember_event,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `out` is as the header demands.
        let out = unsafe { Out::new(out, "out") }?;
        let event = Arc::new(Event::new()?);
        out.set(without_provenance_mut(EVENTS.insert(event)?));
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Writes what the system waits for to `handle`. On Linux it is an eventfd and on other POSIX systems the end of a pipe, both file
/// descriptors that can be read while the event is set (`poll`, `epoll`, `kqueue`); on Windows it is the `HANDLE` of an event
/// that stays set until it is cleared (`WaitForSingleObject`). It belongs to the library: do not read, reset or close it. It stays
/// open until the event is freed and no session or load has it any more. Any thread may call it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_event_handle(
    event: *const ember_event,
    handle: *mut i64,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        let event = EVENTS.get(event.addr())?;
        // SAFETY: `handle` is as the header demands.
        let out = unsafe { Out::new(handle, "handle") }?;
        out.set(event.handle());
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call_always(err, work) }
}

/// Clears an event, so that the next wait sleeps until it is set again. To miss nothing, clear it first and then poll until
/// `EMBER_PENDING`. Any thread may call it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_event_clear(
    event: *const ember_event,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        EVENTS.get(event.addr())?.clear();
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call_always(err, work) }
}

/// Frees an event: the handle becomes invalid at once. Sessions and loads that have it keep it. NULL is allowed and does nothing.
///
/// Errors: `EMBER_INVALID_HANDLE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_event_free(event: *mut ember_event) -> ember_status {
    let work = || {
        if !event.is_null() {
            drop(EVENTS.remove(event.addr())?);
        }
        Ok(())
    };
    // SAFETY: no error struct.
    unsafe { call_always(null_mut(), work) }
}

/// Makes a session set `event` from now on whenever `ember_decode_poll`, `ember_prefill_poll` or `ember_generate_next` may return
/// something other than `EMBER_PENDING`. NULL ends that. A token or the end of a prompt sets it once. A GPU that fails permanently may
/// not set it, so wait with a time limit and poll after it, too.
///
/// Errors: `EMBER_BUSY`; `EMBER_DECODE_PENDING`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_session_set_event(
    session: *mut ember_session,
    event: *const ember_event,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        let event = self::event(event)?;
        with_session(session, |session| session.set_event(event))
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}
