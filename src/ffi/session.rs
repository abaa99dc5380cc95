//! Sessions: making, inspecting, rewinding and freeing them.

use super::boundary::{
    Out, OutStruct, Sized32, call, call_always, check_reserved, read_struct, slice_mut,
};
use super::chain::{ember_cuda_session_options, read_chain};
use super::error::{ember_error, ember_status};
use super::handle::{Kind, Table, take_unused};
use super::model::{ember_model, model};
use super::sampling::ember_sampling_options;
use crate::backend::{KvType, MAX_BATCH};
use crate::engine::batch::{at_index, check_count};
use crate::engine::sampling::Sampling;
use crate::engine::{Interrupts, Model, Session, SessionOptions};
use crate::error::{Error, Result, Status, fail};
use arrayvec::ArrayVec;
use std::ffi::c_void;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

/// One conversation: a context of tokens with its KV cache. One thread at a time may use it; a call
/// from a second thread meanwhile returns `EMBER_BUSY` and changes nothing. It keeps its model
/// alive.
pub struct ember_session {
    _opaque: [u8; 0],
}

/// Values of `ember_session_options.kv_type`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ember_kv_type {
    /// Half precision.
    EMBER_KV_DEFAULT = 0,
    /// Half precision.
    EMBER_KV_F16 = 1,
    /// Single precision. CPU only.
    EMBER_KV_F32 = 2,
    /// 8-bit values with a half-precision scale per 32. GPU only.
    EMBER_KV_Q8_0 = 3,
}

/// How to make a session. Zero in every field but `struct_size` means the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_session_options {
    /// `sizeof(ember_session_options)`.
    pub struct_size: u32,
    /// The most tokens that the session can hold, up to the model's `context_length`; 0 means
    /// `context_length`, but at most 4096. On a CPU, memory for all of them is allocated at once; on a GPU,
    /// it is allocated as the session grows.
    pub context: u32,
    /// A value of `enum ember_kv_type`.
    pub kv_type: u32,
    /// For models with recurrent layers (`qwen35`, `lfm2` and others): the most positions that a call after
    /// `ember_session_rewind` evaluates again, at least 16. Copies of the state are kept that close together, on
    /// a GPU at the end of started decodes. They take memory (`kv_bytes` of `ember_session_details`): up to
    /// `2 * context / mark_interval + 2` copies of the state. 0 keeps four copies whatever the context, closest together
    /// near its end. Ignored for other models.
    pub mark_interval: u32,
    /// How tokens are chosen; NULL means the default, the most probable token.
    pub sampling: *const ember_sampling_options,
    /// NULL, or options of single devices: an `ember_cuda_session_options`.
    pub next: *const c_void,
}

// SAFETY: `repr(C)`; four u32 and two words have no padding; zero is a value of each; the size comes first.
unsafe impl Sized32 for ember_session_options {
    const NAME: &'static str = "ember_session_options";
}

/// The state of a session. The caller sets `struct_size`, `ember_session_info` the rest.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_session_details {
    /// `sizeof(ember_session_details)`, set by the caller.
    pub struct_size: u32,
    /// Number of token ids of its model, and so of logits.
    pub vocab_size: u32,
    /// The most tokens that the context can hold.
    pub context: u64,
    /// Tokens in the context, the one that the last decode returned included.
    pub position: u64,
    /// Bytes of KV cache for the whole context.
    pub kv_bytes: u64,
}

// SAFETY: `repr(C)`; 2 * 4 + 3 * 8 bytes without padding; numbers only; the size comes first.
unsafe impl Sized32 for ember_session_details {
    const NAME: &'static str = "ember_session_details";
}

/// What a session's handle stands for.
pub(super) struct Cell {
    /// `None` once freed: a thread that got hold of the cell before finds nothing.
    session: Mutex<Option<Session>>,
    interrupts: Arc<Interrupts>,
    /// Copies that can be read while a call is running.
    model: Arc<Model>,
    context: usize,
    kv_bytes: u64,
    position: AtomicUsize,
}

static SESSIONS: Table<Cell> = Table::new(Kind::Session);

impl Cell {
    fn lock(&self) -> Result<MutexGuard<'_, Option<Session>>> {
        match self.session.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::WouldBlock) => {
                fail!(Busy, "another thread is inside a call with this session")
            }
            Err(TryLockError::Poisoned(_)) => fail!(
                Internal,
                "a bug in the library ended an earlier call with this session; free it"
            ),
        }
    }
}

/// Runs a function of the engine on the session of a handle.
pub(super) fn with_session<R>(
    handle: *mut ember_session,
    work: impl FnOnce(&mut Session) -> Result<R>,
) -> Result<R> {
    let cell = SESSIONS.get(handle.addr())?;
    let mut guard = cell.lock()?;
    let Some(session) = guard.as_mut() else {
        fail!(InvalidHandle, "the session was freed by another thread");
    };
    let result = work(session);
    cell.position.store(session.position(), Ordering::Release);
    result
}

/// Runs a function of the engine on several sessions. Errors name the index of the session.
pub(super) fn with_sessions<R>(
    handles: &[*mut ember_session],
    work: impl FnOnce(&mut [&mut Session]) -> Result<R>,
) -> Result<R> {
    let mut cells = ArrayVec::<Arc<Cell>, MAX_BATCH>::new();
    check_count(handles.len())?;
    for (i, handle) in handles.iter().enumerate() {
        if let Some(first) = handles[..i].iter().position(|h| h == handle) {
            let message = format!("it is at index {first}, too");
            return Err(at_index(i, Error::new(Status::InvalidArgument, message)));
        }
        cells.push(SESSIONS.get(handle.addr()).map_err(|e| at_index(i, e))?);
    }
    let mut guards = ArrayVec::<MutexGuard<Option<Session>>, MAX_BATCH>::new();
    for (i, cell) in cells.iter().enumerate() {
        guards.push(cell.lock().map_err(|e| at_index(i, e))?);
    }
    let mut sessions = ArrayVec::<&mut Session, MAX_BATCH>::new();
    for (i, guard) in guards.iter_mut().enumerate() {
        match guard.as_mut() {
            Some(session) => sessions.push(session),
            None => {
                let e = Error::new(Status::InvalidHandle, "it was freed by another thread");
                return Err(at_index(i, e));
            }
        }
    }
    let result = work(&mut sessions);
    for (cell, session) in cells.iter().zip(&sessions) {
        cell.position.store(session.position(), Ordering::Release);
    }
    result
}

/// Gives a session a handle.
pub(super) fn insert(session: Session) -> Result<*mut ember_session> {
    let cell = Cell {
        interrupts: session.interrupts().clone(),
        model: session.model().clone(),
        context: session.context(),
        kv_bytes: session.kv_bytes(),
        position: AtomicUsize::new(session.position()),
        session: Mutex::new(Some(session)),
    };
    Ok(without_provenance_mut(SESSIONS.insert(Arc::new(cell))?))
}

/// Creates a session with an empty context. `options` may be NULL for the defaults. On a CPU, the memory for the whole
/// context is allocated here. On a GPU, address space for it is reserved, and calls that lengthen the context allocate device
/// memory for it. What the sessions of a model share is allocated by the first prefill and the first batch, and on a GPU also by the first
/// batch of more than 32 sessions, for which that of smaller ones is freed. The new handle is written to `out` and has to be
/// freed with `ember_session_free`. Any thread may call it.
///
/// A model with LongRoPE (Phi-3 and 3.5, Phi-4 mini) has two sets of rotations, and the session's `context`
/// chooses: the set for long texts if it is longer than the context that the model was first trained
/// for (mostly 4096), else the other one, whatever is in the session then. So two sessions whose
/// contexts lie on different sides of it give different logits for the same tokens, and short
/// texts are answered best in a session with a short context.
///
/// Errors: `EMBER_INVALID_ARGUMENT` names the option; `EMBER_UNSUPPORTED` for a type of KV cache that
/// the device does not have; those of `ember_session_set_sampling` for the options of `sampling`;
/// `EMBER_OUT_OF_MEMORY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_session_create(
    model: *const ember_model,
    options: *const ember_session_options,
    out: *mut *mut ember_session,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        let model = self::model(model)?;
        // SAFETY: `out` and `options` are as the header demands.
        let (out, options) = unsafe { (Out::new(out, "out")?, read_struct(options)?) };
        // SAFETY: `options.sampling` is as the header demands.
        let (for_engine, rules) = unsafe {
            let for_engine = engine_options(&options)?;
            match read_sampling(&options)? {
                Some(sampling) => (for_engine, sampling.rules(&model)?),
                None => (for_engine, None),
            }
        };
        let mut session = Session::create(model, &for_engine)?;
        if rules.is_some() {
            session.set_sampling(for_engine.sampling, rules)?;
        }
        out.set(insert(session)?);
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// The element type of a number of the header.
pub(super) fn kv_type(number: u32) -> Result<KvType> {
    match number {
        0 | 1 => Ok(KvType::F16),
        2 => Ok(KvType::F32),
        3 => Ok(KvType::Q8_0),
        n => fail!(InvalidArgument, "kv_type is {n}, which is no ember_kv_type"),
    }
}

/// The header's number of an element type.
pub(super) fn kv_number(kv_type: KvType) -> u32 {
    match kv_type {
        KvType::F16 => ember_kv_type::EMBER_KV_F16 as u32,
        KvType::F32 => ember_kv_type::EMBER_KV_F32 as u32,
        KvType::Q8_0 => ember_kv_type::EMBER_KV_Q8_0 as u32,
    }
}

/// The sampling options that the session's name.
///
/// # Safety
/// `options.sampling` must be as the header demands.
unsafe fn read_sampling(options: &ember_session_options) -> Result<Option<ember_sampling_options>> {
    if options.sampling.is_null() {
        return Ok(None);
    }
    // SAFETY: by contract, `options.sampling` is as the header demands.
    unsafe { read_struct(options.sampling) }.map(Some)
}

/// The priority that options of a session have behind them.
///
/// # Safety
/// `next` must be as the header demands.
pub(super) unsafe fn stream_priority(next: *const c_void, owner: &str) -> Result<i32> {
    // SAFETY: by contract, `next` is as the header demands.
    let Some(cuda) = unsafe { read_chain::<ember_cuda_session_options>(next, owner) }? else {
        return Ok(0);
    };
    check_reserved(cuda.reserved, ember_cuda_session_options::NAME)?;
    Ok(cuda.stream_priority)
}

/// The engine's form of the options, but for the rules of their sampling.
///
/// # Safety
/// `options.sampling` and `options.next` must be as the header demands.
pub(super) unsafe fn engine_options(options: &ember_session_options) -> Result<SessionOptions> {
    // SAFETY: by contract, `options.sampling` and `options.next` are as the header demands.
    let (sampling, stream_priority) = unsafe {
        (
            read_sampling(options)?,
            stream_priority(options.next, ember_session_options::NAME)?,
        )
    };
    Ok(SessionOptions {
        context: options.context as usize,
        kv_type: kv_type(options.kv_type)?,
        stream_priority,
        mark_interval: options.mark_interval as usize,
        sampling: sampling.map_or_else(Sampling::default, |sampling| sampling.settings()),
    })
}

/// Writes the state of a session to `out`, whose `struct_size` the caller has set. Any thread may
/// call it at any time; while a call with the session is running, it shows the state before it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_session_info(
    session: *const ember_session,
    out: *mut ember_session_details,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        let cell = SESSIONS.get(session.addr())?;
        // SAFETY: `out` is as the header demands.
        let out = unsafe { OutStruct::new(out) }?;
        let mut d = ember_session_details::zeroed();
        d.vocab_size = u32::try_from(cell.model.details().n_vocab).unwrap_or(u32::MAX);
        d.context = cell.context as u64;
        d.position = cell.position.load(Ordering::Acquire) as u64;
        d.kv_bytes = cell.kv_bytes;
        out.set(&d);
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call_always(err, work) }
}

/// Writes a handle of the session's model to `model`, a new one that has to be freed with `ember_model_free` like any other, also
/// if the handle that the session was created with was freed. Any thread may call it at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_session_model(
    session: *const ember_session,
    model: *mut *mut ember_model,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        let cell = SESSIONS.get(session.addr())?;
        // SAFETY: `model` is as the header demands.
        let out = unsafe { Out::new(model, "model") }?;
        out.set(super::model::insert(cell.model.clone())?);
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Writes the number of tokens in the context, the one that the last decode returned included. Any
/// thread may call it at any time; while a call with the session is running, it shows the number
/// before it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_session_position(
    session: *const ember_session,
    position: *mut usize,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        let cell = SESSIONS.get(session.addr())?;
        // SAFETY: `position` is as the header demands.
        let position = unsafe { Out::new(position, "position") }?;
        position.set(cell.position.load(Ordering::Acquire));
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call_always(err, work) }
}

/// Keeps the first `position` tokens of the context and drops the rest; 0 empties the context. The call itself
/// evaluates nothing. The next decode evaluates the last kept token again. Layers with a sliding window keep only the
/// window and some hundred positions, so after a rewind beyond these, the next call evaluates all kept tokens again.
/// Recurrent layers (`qwen35`, `lfm2` and others) keep one state and a few copies: of the ends of the last prompts, and
/// of a position every 256 or so; `mark_interval` of `ember_session_options` keeps more. The next call evaluates what is
/// kept behind the last of them again, on a GPU as a prompt, which may change the last bits of results. Started decodes
/// are interrupted, and tokens that were not collected are dropped: use this to discard what was queued after an end
/// token.
///
/// Errors: `EMBER_INVALID_ARGUMENT` if the context has fewer tokens (tokens that were not collected do not count);
/// `EMBER_BUSY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_session_rewind(
    session: *mut ember_session,
    position: usize,
    err: *mut ember_error,
) -> ember_status {
    let work = || with_session(session, |session| session.rewind(position));
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Creates a session with the same model, options and context. From there on, the two sessions are independent. With
/// the same calls, the new session returns the same results as the original, bit for bit. Keys and values are shared
/// or copied, not computed again. The new handle is written to `out` and has to be freed with `ember_session_free`.
///
/// Errors: `EMBER_OUT_OF_MEMORY`; `EMBER_UNSUPPORTED` by devices that cannot; `EMBER_BUSY`;
/// `EMBER_DECODE_PENDING`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_session_fork(
    session: *mut ember_session,
    out: *mut *mut ember_session,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `out` is as the header demands.
        let out = unsafe { Out::new(out, "out") }?;
        let other = with_session(session, |session| session.fork())?;
        out.set(insert(other)?);
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Writes the logits for the next token, before sampling: `vocab_size` values (`ember_model_details`), indexed by token
/// id. `capacity` is the number of elements that `out` has room for. Evaluates the last token if that has not happened
/// yet.
///
/// Errors: `EMBER_BUFFER_TOO_SMALL` if `capacity` is less than `vocab_size`; `EMBER_NO_INPUT` for an
/// empty context; `EMBER_OUT_OF_MEMORY`; `EMBER_BUSY`; `EMBER_DECODE_PENDING`; `EMBER_INTERRUPTED`. On
/// error, `out` is unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_session_logits(
    session: *mut ember_session,
    out: *mut f32,
    capacity: usize,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `out` is as the header demands.
        let out = unsafe { slice_mut(out, capacity, "out") }?;
        with_session(session, |session| {
            let n_vocab = session.model().details().n_vocab;
            let Some(out) = out.get_mut(..n_vocab) else {
                fail!(
                    BufferTooSmall,
                    "out has room for {capacity} logits, but {n_vocab} are needed"
                );
            };
            session.logits(out)
        })
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Makes a call with this session that is running on another thread return `EMBER_INTERRUPTED` soon; the session is
/// then as it was before that call. Started decodes stop, too: `ember_decode_poll` returns the tokens that were
/// already chosen, then `EMBER_INTERRUPTED`. A batch ends for all its sessions. Any thread may call this at any time.
///
/// The interrupt stays set until a call with the session has returned `EMBER_INTERRUPTED`, so it cannot come too
/// early: if no call is running, or the running call still succeeds, the next call that lists `EMBER_INTERRUPTED`
/// among its errors returns it at once. One returned `EMBER_INTERRUPTED` clears all interrupts that came before it.
/// In a batch, only the interrupt of the session that `ember_error.index` names is cleared. `ember_generate` reports
/// an interrupt as the reason of the end. `ember_session_clear_interrupt` clears the interrupt.
///
/// Errors: `EMBER_INVALID_HANDLE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_session_interrupt(session: *mut ember_session) -> ember_status {
    let work = || {
        let cell = SESSIONS.get(session.addr())?;
        cell.interrupts.ask();
        Ok(())
    };
    // SAFETY: no error struct.
    unsafe { call_always(null_mut(), work) }
}

/// Clears an interrupt that no call has returned yet. Use it at the start of a new turn, so that a late interrupt of
/// the previous turn does not end it. Does nothing if there is none. Any thread may call it at any time. A call that
/// is already running on another thread may still end because of the interrupt.
///
/// Errors: `EMBER_INVALID_HANDLE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_session_clear_interrupt(
    session: *mut ember_session,
) -> ember_status {
    let work = || {
        let cell = SESSIONS.get(session.addr())?;
        cell.interrupts.clear();
        Ok(())
    };
    // SAFETY: no error struct.
    unsafe { call_always(null_mut(), work) }
}

/// Frees a session: the handle becomes invalid at once, and a call with it that is running on another thread is interrupted. The
/// memory is freed when that call returns and started work has ended, which `ember_session_free` does not wait for on a CPU. The
/// last free of a model and its sessions waits for all of it. NULL is allowed and does nothing.
///
/// Errors: `EMBER_INVALID_HANDLE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_session_free(session: *mut ember_session) -> ember_status {
    let work = || {
        if session.is_null() {
            return Ok(());
        }
        let cell = SESSIONS.remove(session.addr())?;
        cell.interrupts.ask();
        drop(take_unused(&cell.session));
        Ok(())
    };
    // SAFETY: no error struct.
    unsafe { call_always(null_mut(), work) }
}
