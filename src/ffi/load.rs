//! Loads that the caller does not wait for.

use super::boundary::{Out, call, call_always, read_struct, text};
use super::error::{ember_error, ember_status};
use super::event::{ember_event, event};
use super::forked;
use super::handle::{Kind, Table};
use super::model::{checked_path, ember_model, ember_model_options, insert};
use crate::engine::Model;
use crate::error::{Error, Result, Status, fail};
use crate::format::ModelSource;
use crate::panics::catch;
use crate::threads::{self, Thread};
use std::ffi::c_char;
use std::path::PathBuf;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

/// A load that runs in the background. Functions that take one may be called by any thread at any time.
pub struct ember_load {
    _opaque: [u8; 0],
}

static LOADS: Table<Cell> = Table::new(Kind::Load);

/// What a load's handle stands for.
struct Cell {
    progress: Arc<Progress>,
    end: Arc<Mutex<End>>,
    /// Joined when the last user of the cell is gone.
    _thread: Thread,
}

/// What the thread and its watchers say to each other while it runs.
#[derive(Default)]
struct Progress {
    cancelled: AtomicBool,
    /// The bits of the done share.
    fraction: AtomicU32,
}

impl Progress {
    /// The done share.
    fn share(&self) -> f32 {
        f32::from_bits(self.fraction.load(Ordering::Relaxed))
    }
}

/// What the load has come to.
enum End {
    Running,
    Ended(Result<Arc<Model>>),
    Collected,
}

/// The thread is told first, because its end is waited for.
impl Drop for Cell {
    fn drop(&mut self) {
        self.progress.cancelled.store(true, Ordering::Relaxed);
    }
}

/// Starts what `ember_model_load` does on a thread of the library, and returns at once. `ember_load_poll` tells how far it is
/// and has the model at the end. `event`, if it is not NULL, is set at the end. `progress` of the options must be NULL, for no
/// callback is called. The new handle is written to `out` and has to be freed with `ember_load_free`. Any thread may call it.
///
/// Errors: `EMBER_INVALID_UTF8`, `EMBER_INVALID_ARGUMENT` (empty path, NUL inside it, an option's value);
/// `EMBER_OUT_OF_MEMORY`. All other errors are those of `ember_load_poll`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_model_load_start(
    path: *const c_char,
    path_len: usize,
    options: *const ember_model_options,
    event: *const ember_event,
    out: *mut *mut ember_load,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `out`, `path` and `options` are as the header demands.
        let (out, path, options) = unsafe {
            (
                Out::new(out, "out")?,
                text(path, path_len, "path")?,
                read_struct(options)?,
            )
        };
        if options.progress.is_some() {
            fail!(
                InvalidArgument,
                "progress is set, but a load that was started calls nothing; ember_load_poll tells how far it is"
            );
        }
        let path = checked_path(path)?.to_path_buf();
        // SAFETY: the lists of `options` are as the header demands.
        let (load_options, log_user) = unsafe { options.for_engine() }?;
        let device = options.device as usize;
        let event = self::event(event)?;
        let progress = Arc::new(Progress::default());
        let end = Arc::new(Mutex::new(End::Running));
        let (theirs, place) = (progress.clone(), end.clone());
        let load = move |path: PathBuf| {
            let model = catch(|| {
                let mut tell = |fraction: f32| {
                    if theirs.cancelled.load(Ordering::Relaxed) {
                        fail!(Cancelled, "ember_load_cancel stopped the load");
                    }
                    theirs.fraction.store(fraction.to_bits(), Ordering::Relaxed);
                    Ok(())
                };
                let source = ModelSource::Path(&path);
                let model = Model::load_from(&source, device, &load_options, &mut tell)?;
                // Nothing that is kept was made with memory of the reserve.
                crate::memory::check()?;
                Ok(Arc::new(model))
            });
            *place.lock().unwrap_or_else(PoisonError::into_inner) = End::Ended(model);
            if let Some(event) = event {
                event.set();
            }
        };
        // A child that is forked from here on has neither the thread nor its model.
        forked::remember();
        let thread = threads::spawn("ember-load", threads::STACK_BYTES, move || load(path))?;
        let cell = Cell {
            progress,
            end,
            _thread: thread,
        };
        out.set(without_provenance_mut(LOADS.insert(Arc::new(cell))?));
        if let Some(user) = log_user {
            user.take_over();
        }
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Returns the model of a load that has ended, without blocking: the new handle is written to `model` and has to be freed with
/// `ember_model_free`. `EMBER_PENDING` means that the load is still running, and `model` was not written. `fraction`, which may
/// be NULL, receives the share that is done, from 0 to 1, in both cases; it never decreases. Any thread may call it.
///
/// Errors: those of `ember_model_load`, `EMBER_CANCELLED` after `ember_load_cancel` among them, once;
/// `EMBER_NOTHING_PENDING` if the end was already returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_load_poll(
    load: *mut ember_load,
    fraction: *mut f32,
    model: *mut *mut ember_model,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        let cell = LOADS.get(load.addr())?;
        // SAFETY: both are as the header demands.
        let (fraction, out) = unsafe {
            (
                Out::optional(fraction, "fraction")?,
                Out::new(model, "model")?,
            )
        };
        let tell = |share: f32| {
            if let Some(fraction) = &fraction {
                fraction.set(share);
            }
        };
        let mut end = match cell.end.try_lock() {
            Ok(end) => end,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            // It is about to end, or another thread collects its end.
            Err(TryLockError::WouldBlock) => {
                tell(cell.progress.share());
                return Err(Error::new(Status::Pending, ""));
            }
        };
        match std::mem::replace(&mut *end, End::Collected) {
            End::Running => {
                *end = End::Running;
                tell(cell.progress.share());
                Err(Error::new(Status::Pending, ""))
            }
            End::Collected => fail!(NothingPending, "the end of the load was returned before"),
            End::Ended(Err(e)) => Err(e),
            End::Ended(Ok(model)) => match insert(model.clone()) {
                Ok(handle) => {
                    out.set(handle);
                    tell(1.0);
                    Ok(())
                }
                Err(e) => {
                    *end = End::Ended(Ok(model));
                    Err(e)
                }
            },
        }
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Makes a load end soon with `EMBER_CANCELLED`, unless it has ended already. Does not wait for the end. Any thread may call it at any
/// time. A load that waits for other ranks of its group (`ember_group`) ends, too, and their loads end with the same status. Only while
/// NCCL connects GPUs does the load go on, for at most `timeout_ms`.
///
/// Errors: `EMBER_INVALID_HANDLE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_load_cancel(load: *mut ember_load) -> ember_status {
    let work = || {
        let cell = LOADS.get(load.addr())?;
        cell.progress.cancelled.store(true, Ordering::Relaxed);
        Ok(())
    };
    // SAFETY: no error struct.
    unsafe { call_always(null_mut(), work) }
}

/// Frees a load, and its model if `ember_load_poll` has not returned it. A load that is still running is cancelled and waited for,
/// which can take as long as reading a tensor: to wait for nothing, cancel it and free it when `ember_load_poll` has returned its
/// end. NULL is allowed and does nothing.
///
/// Errors: `EMBER_INVALID_HANDLE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_load_free(load: *mut ember_load) -> ember_status {
    let work = || {
        if !load.is_null() {
            drop(LOADS.remove(load.addr())?);
        }
        Ok(())
    };
    // SAFETY: no error struct.
    unsafe { call_always(null_mut(), work) }
}
