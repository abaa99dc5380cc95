//! A rank's part of a communicator.
//!
//! Its calls wait for nobody: each begins something, and the communicator is asked until that is done. So a rank that does not
//! come is an error in time. An abort, which ends what waits on the device, may itself wait until no graph is left that has captured
//! something; so it is up to the thread of a [`super::Watch`], and to the end of a communicator.

use super::library::{
    Config, FLOAT32, ID_BYTES, IN_PROGRESS, Library, RawCommunicator, RawId, SUCCESS, library,
};
use crate::backend::cuda::driver::{Context, Stream};
use crate::backend::group::Meeting;
use crate::error::{Error, Result, Status, fail};
use crate::model::Rank;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// What the ranks of a group know each other by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id(pub [u8; ID_BYTES]);

impl Id {
    /// A new one. Whoever makes it waits for the others in the background, in this process.
    ///
    /// Errors: `Unsupported` without NCCL; `DeviceError` if it finds no network interface.
    pub fn new() -> Result<Id> {
        let library = library()?;
        let mut id = RawId([0; ID_BYTES]);
        // SAFETY: a valid place for an id.
        let code = unsafe { (library.unique_id)(&mut id) };
        library.check(code, "making an id")?;
        Ok(Id(id.0.map(|byte| byte as u8)))
    }
}

/// A rank that takes part in what a group does. Graphs that have captured some of it go before.
pub struct Communicator {
    context: Arc<Context>,
    library: &'static Library,
    patience: Duration,
    state: Mutex<State>,
    /// Held from the beginning of a call to its end. A session may be made while others work.
    turn: Mutex<()>,
    /// Who aborts it.
    watch: OnceLock<Weak<dyn Abort>>,
    /// How it learns that ranks of other processes are gone.
    meeting: Option<Arc<Meeting>>,
}

struct State {
    /// None once it is aborted.
    raw: Option<RawCommunicator>,
    /// Why it is of no use any more, if it is not.
    lost: Option<String>,
    /// An abort has ended.
    is_over: bool,
}

/// Whoever aborts communicators that have failed.
pub trait Abort: Send + Sync {
    /// Some have.
    fn abort_soon(&self);
}

// SAFETY: calls with a communicator may come from any thread, one at a time, which the mutex sees to; an abort may come at any
// time.
unsafe impl Send for Communicator {}
// SAFETY: as above.
unsafe impl Sync for Communicator {}

impl Communicator {
    /// Begins to bring a rank into a group; [`Communicator::wait`] has its end. All ranks of a process begin before any is waited for.
    pub fn begin(
        context: &Arc<Context>,
        id: &Id,
        rank: Rank,
        patience: Duration,
    ) -> Result<Arc<Communicator>> {
        Communicator::begin_among(context, id, (rank, None), patience)
    }

    /// The same of a rank whose others may be in other processes.
    pub fn begin_among(
        context: &Arc<Context>,
        id: &Id,
        (rank, meeting): (Rank, Option<Arc<Meeting>>),
        patience: Duration,
    ) -> Result<Arc<Communicator>> {
        let library = library()?;
        let _current = context.enter()?;
        let mut raw = std::ptr::null_mut();
        let id = RawId(id.0.map(|byte| byte as std::ffi::c_char));
        let mut config = Config::non_blocking();
        let (count, index) = (rank.count as i32, rank.index as i32);
        // SAFETY: valid places, of the types that the version has that was asked for; the device's context is current.
        let code = unsafe { (library.init)(&mut raw, count, id, index, &mut config) };
        if code != SUCCESS && code != IN_PROGRESS || raw.is_null() {
            let e = library.error(code, "bringing ranks together");
            if !raw.is_null() {
                // SAFETY: made above, and given up here.
                unsafe { (library.abort)(raw) };
            }
            return Err(e);
        }
        Ok(Arc::new(Communicator {
            context: context.clone(),
            library,
            patience,
            state: Mutex::new(State {
                raw: Some(raw),
                lost: None,
                is_over: false,
            }),
            turn: Mutex::new(()),
            watch: OnceLock::new(),
            meeting,
        }))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call with the communicator, unless that has failed.
    fn call(&self, call: impl FnOnce(RawCommunicator) -> i32) -> Result<i32> {
        let state = self.lock();
        match (&state.lost, state.raw) {
            (None, Some(raw)) => Ok(call(raw)),
            (Some(lost), _) => fail!(DeviceLost, "{lost}"),
            (None, None) => fail!(Internal, "a communicator that is gone"),
        }
    }

    /// Ranks are out of step, or one is lost: nothing works any more.
    fn give_up<T>(&self, e: Error) -> Result<T> {
        self.lock().lost.get_or_insert_with(|| e.message.clone());
        if let Some(watch) = self.watch.get().and_then(Weak::upgrade) {
            watch.abort_soon();
        }
        Err(e)
    }

    /// It is of no use any more, for this reason. What waits on the device ends soon.
    pub fn fail(&self, e: &Error) {
        let _ = self.give_up::<()>(e.clone());
    }

    /// Whom to tell when it has failed.
    pub(super) fn set_watch(&self, watch: Weak<dyn Abort>) {
        let _ = self.watch.set(watch);
    }

    /// What has become of the last call: true if it is done.
    pub fn poll(&self, what: &str) -> Result<bool> {
        let mut state = SUCCESS;
        // SAFETY: the communicator is alive and the place valid.
        let code = self.call(|raw| unsafe { (self.library.state)(raw, &mut state) })?;
        self.library.check(code, what)?;
        if state == IN_PROGRESS {
            return Ok(false);
        }
        self.library.check(state, what)?;
        Ok(true)
    }

    /// Waits for the end of the last call.
    ///
    /// Errors: `DeviceLost` if it has not ended in time, or a rank was lost; later calls say so, too.
    pub fn wait(&self, what: &str) -> Result<()> {
        let begun = Instant::now();
        loop {
            let failed = match self.poll(what) {
                Ok(true) => return Ok(()),
                Ok(false) if begun.elapsed() < self.patience => {
                    // Most calls take microseconds, those that bring ranks together longer.
                    if begun.elapsed() < Duration::from_millis(2) {
                        std::hint::spin_loop();
                        continue;
                    }
                    std::thread::sleep(Duration::from_micros(200));
                    match self.meet() {
                        Ok(()) => continue,
                        Err(e) => e,
                    }
                }
                Ok(false) => Error::new(Status::DeviceLost, late(what, self.patience)),
                Err(e) => e,
            };
            return self.give_up(failed);
        }
    }

    /// `DeviceLost` if a rank of another process is gone.
    fn meet(&self) -> Result<()> {
        self.meeting.as_ref().map_or(Ok(()), |m| m.check())
    }

    /// Waits for work on a stream that takes part in what the group does.
    ///
    /// Errors: as [`Communicator::wait`]; those of the device.
    pub fn wait_for(&self, stream: &Stream, what: &str) -> Result<()> {
        let begun = Instant::now();
        while !stream.is_idle()? {
            self.check()?;
            if begun.elapsed() > self.patience {
                let message = late(what, self.patience);
                return self.give_up(Error::new(Status::DeviceLost, message));
            }
            std::thread::sleep(Duration::from_micros(100));
            if let Err(e) = self.meet() {
                return self.give_up(e);
            }
        }
        self.check()
    }

    /// Enqueues, or captures, that all ranks get what each sends, `floats` of each in the order of the ranks.
    ///
    /// # Safety
    /// `send` holds so many floats and `receive` as many for each rank, until the work is done; `send` may be this rank's place in
    /// `receive`. All ranks enqueue the same.
    pub unsafe fn all_gather(
        &self,
        stream: &Stream,
        places: (u64, u64),
        floats: usize,
    ) -> Result<()> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: by contract.
        unsafe { self.begin_all_gather(stream, places, floats)? };
        let done = self.wait(GATHER);
        if done.is_err() {
            // The library has threads of its own that enqueue, and end with the abort.
            stream.stay();
            self.settle();
        }
        done
    }

    /// Waits for the end of an abort, which comes soon unless that waits for graphs: what was under way is over by then, too.
    fn settle(&self) {
        const GRACE: Duration = Duration::from_secs(1);
        let begun = Instant::now();
        while self.watch.get().is_some() && !self.lock().is_over && begun.elapsed() < GRACE {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// [`Communicator::all_gather`], of which [`Communicator::wait`] has the end.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn begin_all_gather(
        &self,
        stream: &Stream,
        (send, receive): (u64, u64),
        floats: usize,
    ) -> Result<()> {
        // SAFETY: the communicator and the stream are alive; by contract, the addresses hold as many floats.
        let code = self.call(|raw| unsafe {
            (self.library.all_gather)(
                send as *const _,
                receive as *mut _,
                floats,
                FLOAT32,
                raw,
                stream.raw(),
            )
        })?;
        match code {
            SUCCESS | IN_PROGRESS => Ok(()),
            code => self.give_up(self.library.error(code, GATHER)),
        }
    }

    /// Ends what waits on the device, and everything else: later calls say `DeviceLost` and this message, unless it had failed before.
    /// May wait until no graph is left that has captured something of it.
    pub fn abort(&self, message: &str) {
        let raw = {
            let mut state = self.lock();
            state.lost.get_or_insert_with(|| message.into());
            state.raw.take()
        };
        if let Some(raw) = raw
            && let Some(_current) = self.context.enter_to_free()
        {
            // SAFETY: alive until here, and nobody gets it any more.
            unsafe { (self.library.abort)(raw) };
        }
        self.lock().is_over = true;
    }

    /// `DeviceLost` once it has failed.
    pub fn check(&self) -> Result<()> {
        self.call(|_| SUCCESS).map(drop)
    }
}

/// What is said of the call.
const GATHER: &str = "gathering what ranks have";

/// What is said about a rank that does not come.
pub fn late(what: &str, patience: Duration) -> String {
    format!(
        "{what}: a rank did not come within {} ms; the model has to be loaded again",
        patience.as_millis()
    )
}

impl Drop for Communicator {
    fn drop(&mut self) {
        let mut state = self.lock();
        // A rank that is destroyed waits until those of other processes are, too, for as long as that takes. It has said farewell
        // (`Meeting::farewell`), so that an abort ends nothing that another rank needs.
        let end = match (&state.lost, &self.meeting) {
            (None, None) => self.library.destroy,
            _ => self.library.abort,
        };
        if let Some(raw) = state.raw.take()
            && let Some(_current) = self.context.enter_to_free()
        {
            // SAFETY: alive until here; work of the ranks is over, and so are its graphs.
            unsafe { end(raw) };
        }
    }
}
