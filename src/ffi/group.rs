//! Groups of ranks in several processes.

use super::boundary::{Out, Sized32, call, call_always, fill, read_struct, slice_mut, text};
use super::error::{ember_error, ember_status};
use super::handle::{Kind, Table};
use crate::backend::group::{Group, GroupOptions};
use crate::error::Result;
use crate::model::Rank;
use std::ffi::c_char;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Arc;
use std::time::Duration;

/// Membership of this process in a group: several processes, called ranks, each with one GPU, that share one model. Each rank has a share
/// of every layer, as with `EMBER_SPLIT_TENSORS`, and loads it with `ember_model_options.group`. Functions that take a group may be
/// called by any thread at any time.
///
/// All ranks call the same functions with the same arguments in the same order: load the same file, create sessions, and prefill, decode
/// or generate in them, one call at a time. Each rank gets all results, the same ones, bit for bit those of `EMBER_SPLIT_TENSORS` in one
/// process. How ranks other than the first learn what is to be done is up to the host.
///
/// Before work begins, the ranks compare what each is about to do. Where that differs, all of them get `EMBER_INVALID_ARGUMENT` with a message that
/// says what differs, and nothing has happened. An error that one rank has before work begins, such as `EMBER_INTERRUPTED`, is the error
/// of all. A rank that does not come in time, or whose process ends, is named in the message of `EMBER_DEVICE_LOST`, from then on the answer to
/// every call with the model that needs the others.
///
/// It needs NCCL 2.18 or later (`libnccl.so.2`). Models, calls and limits are those of `EMBER_SPLIT_TENSORS`; besides, sessions are not
/// saved, restored or evicted, and have no drafts (`EMBER_UNSUPPORTED`). Do not start decodes or prompts of several sessions at the same time, because their
/// order could differ between ranks. Start batches instead.
pub struct ember_group {
    _opaque: [u8; 0],
}

static GROUPS: Table<Group> = Table::new(Kind::Group);

/// The group of a handle, or none for NULL.
pub(super) fn group(handle: *const ember_group) -> Result<Option<Arc<Group>>> {
    match handle.is_null() {
        true => Ok(None),
        false => GROUPS.get(handle.addr()).map(Some),
    }
}

/// How to join a group. Zero in `timeout_ms`, `address` and `address_len` means the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_group_options {
    /// `sizeof(ember_group_options)`.
    pub struct_size: u32,
    /// Number of the rank, counted from 0.
    pub rank: u32,
    /// Number of ranks, 2 to 8.
    pub rank_count: u32,
    /// Milliseconds that a rank waits for the others, each time that it needs them: several times while it loads the model, where NCCL takes
    /// some seconds to connect the GPUs, and in each call. 0 means 30 000. Where several ranks are late one after another, the wait of the
    /// others can last three times that.
    pub timeout_ms: u32,
    /// For rank 0, the IP address (IPv4 or IPv6) that it listens on, of `address_len` bytes, with a port (`10.0.0.5:7000`) or without. NULL with
    /// 0 bytes means that all ranks are on this machine. For other ranks NULL.
    pub address: *const c_char,
    /// Bytes of `address`.
    pub address_len: usize,
    /// For rank 0 NULL. For the others, what `ember_group_id` has written for rank 0, of `id_len` bytes.
    pub id: *const c_char,
    /// Bytes of `id`.
    pub id_len: usize,
}

// SAFETY: `repr(C)`; four u32, two pairs of a pointer and a word have no padding; zero is a value of each; the size comes first.
unsafe impl Sized32 for ember_group_options {
    const NAME: &'static str = "ember_group_options";
}

/// Joins a group without waiting for the other ranks, which the first load with it does. A group can be used for one load, whether it
/// succeeds or fails. The new handle is written to `out` and has to be freed with `ember_group_free`. Any thread may call it.
///
/// Rank 0 listens on a TCP port from then until its load ends. Ranks that do not have the id are sent away. GPUs exchange data through
/// NCCL, which uses ports of its own and does not encrypt: use networks that you trust.
///
/// Errors: `EMBER_INVALID_ARGUMENT` (`rank`, `rank_count`, an id of another group or none, an address that is not this machine's);
/// `EMBER_INVALID_UTF8`; `EMBER_OUT_OF_MEMORY`, also if the process has no file descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_group_create(
    options: *const ember_group_options,
    out: *mut *mut ember_group,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `out` and `options` are as the header demands, and so are the texts of `options`.
        let (out, options) = unsafe { (Out::new(out, "out")?, read_struct(options)?) };
        // SAFETY: as above.
        let (address, id) = unsafe {
            (
                text(options.address, options.address_len, "address")?,
                text(options.id, options.id_len, "id")?,
            )
        };
        let group = Group::new(&GroupOptions {
            rank: Rank {
                index: options.rank as usize,
                count: options.rank_count as usize,
            },
            patience: Duration::from_millis(options.timeout_ms.into()),
            id: (!options.id.is_null()).then_some(id),
            address,
        })?;
        out.set(without_provenance_mut(GROUPS.insert(Arc::new(group))?));
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Writes the id of a group to `id`, which the other ranks need for `ember_group_create`: a line of printable ASCII of less than 128 bytes. It is a
/// secret, because whoever has it can take part. `len` receives the number of bytes, also when `capacity`, the room in `id`, is too small
/// (`EMBER_BUFFER_TOO_SMALL`, with nothing written to `id`). `id` may be NULL if `capacity` is 0; no NUL is added. Any thread may call it.
///
/// Errors: `EMBER_BUFFER_TOO_SMALL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_group_id(
    group: *const ember_group,
    id: *mut c_char,
    capacity: usize,
    len: *mut usize,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        let group = GROUPS.get(group.addr())?;
        // SAFETY: `id` and `len` are as the header demands.
        let (id, len) = unsafe {
            (
                slice_mut(id.cast::<u8>(), capacity, "id")?,
                Out::new(len, "len")?,
            )
        };
        fill(group.id().as_bytes(), id, &len, "id")
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Frees a group: the handle becomes invalid at once. A model that was loaded with it keeps what it needs. NULL is allowed and does
/// nothing.
///
/// Errors: `EMBER_INVALID_HANDLE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_group_free(group: *mut ember_group) -> ember_status {
    let work = || {
        if !group.is_null() {
            drop(GROUPS.remove(group.addr())?);
        }
        Ok(())
    };
    // SAFETY: no error struct.
    unsafe { call_always(null_mut(), work) }
}
