//! LoRA adapters.

use super::boundary::{Out, OutStruct, Sized32, call, call_always, check_flags, slice, text};
use super::error::{copy_text, ember_error, ember_status};
use super::handle::{Kind, Table};
use super::model::{checked_path, ember_model, model};
use super::session::{ember_session, with_session};
use crate::engine::{Adapter, WantedAdapter, check_adapter_count};
use crate::error::{Error, Result};
use std::ffi::c_char;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Arc;

/// A LoRA adapter, loaded for one model. Immutable, so any number of sessions, embedders and threads may use it at once.
/// It stays in memory until `ember_adapter_free` and until no session or embedder uses it any more, in any order. It
/// keeps its model alive.
pub struct ember_adapter {
    _opaque: [u8; 0],
}

/// Facts about an adapter. The caller sets `struct_size`, `ember_adapter_info` the rest. Text is UTF-8, ended
/// by a NUL, shortened to fit.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_adapter_details {
    /// `sizeof(ember_adapter_details)`, set by the caller.
    pub struct_size: u32,
    /// The largest rank of its pairs of matrices.
    pub rank: u32,
    /// Tensors in its file.
    pub tensor_count: u64,
    /// Numbers in these.
    pub parameter_count: u64,
    /// Bytes of the file with the tensors.
    pub file_bytes: u64,
    /// Bytes of memory that its numbers take, in the type of its file; `ember_model_options.session_memory_limit` counts them,
    /// on a GPU with some padding.
    pub memory_bytes: u64,
    /// A hash of what it adds to which tensors. It is the same for an adapter that was converted between the two
    /// forms of files without loss.
    pub fingerprint: u64,
    /// What its file or folder is called; may be empty.
    pub name: [c_char; 128],
}

// SAFETY: `repr(C)`; 2 * 4 + 5 * 8 + 128 bytes without padding; numbers only; the size comes first.
unsafe impl Sized32 for ember_adapter_details {
    const NAME: &'static str = "ember_adapter_details";
}

/// An adapter that a session or an embedder uses.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_adapter_use {
    /// The adapter.
    pub adapter: *const ember_adapter,
    /// Factor on what the adapter adds, beside those of its file: 1 for the adapter as it was trained. Finite; 0 adds
    /// nothing.
    pub scale: f32,
    /// Must be 0.
    pub reserved: u32,
}

/// Flags of `ember_session_set_adapters`, to be or-ed.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ember_adapters_flags {
    /// Keep keys, values and logits of the context as they are, instead of evaluating it again.
    EMBER_ADAPTERS_KEEP = 1,
}

static ADAPTERS: Table<Adapter> = Table::new(Kind::Adapter);

/// The adapters that the caller names.
pub(super) struct Used(Vec<(Arc<Adapter>, f32)>);

impl Used {
    /// Looks the handles up.
    ///
    /// # Safety
    /// `uses` is as the header demands.
    pub(super) unsafe fn read(uses: *const ember_adapter_use, count: usize) -> Result<Used> {
        check_adapter_count(count)?;
        // SAFETY: by contract, `uses` is as the header demands.
        let uses = unsafe { slice(uses, count, "adapters") }?;
        let mut all = Vec::new();
        for (i, used) in uses.iter().enumerate() {
            let at = |e: Error| {
                let message = format!("adapter at index {i}: {}", e.message);
                Error::new(e.status, message).at(i)
            };
            if used.reserved != 0 {
                let message = format!("reserved is {}, not 0", used.reserved);
                return Err(at(Error::new(crate::Status::InvalidArgument, message)));
            }
            let adapter = ADAPTERS.get(used.adapter.addr()).map_err(at)?;
            all.push((adapter, used.scale));
        }
        Ok(Used(all))
    }

    /// As the engine takes them.
    pub(super) fn wanted(&self) -> Vec<WantedAdapter<'_>> {
        let wanted = self.0.iter().map(|(adapter, scale)| WantedAdapter {
            adapter,
            scale: *scale,
        });
        wanted.collect()
    }
}

/// Loads a LoRA adapter for a model. `path` names a folder as the PEFT library writes it
/// (`adapter_config.json` and `adapter_model.safetensors`; the path of one of the two works, too) or a GGUF file of
/// an adapter (`general.type` is `adapter`). Ranks and alphas by pattern and rsLoRA are supported; any matrix of attention,
/// recurrent layers, feed-forward parts, routers, experts, the token embedding and the head can have a part in it, as can `kv_b_proj` of
/// latent attention. The adapter is read into memory of
/// the model's device, in F32, F16 or BF16 as its file has it (quantized ones become F32), and its file is not needed any
/// longer. The new handle is written to `out` and has to be freed with `ember_adapter_free`. Any thread may call it.
///
/// Errors: `EMBER_INVALID_UTF8` in `path`; `EMBER_FILE_NOT_FOUND`, `EMBER_NOT_A_FILE`, `EMBER_FILE_EMPTY`, `EMBER_IO`;
/// `EMBER_UNKNOWN_FORMAT` for what is no adapter; `EMBER_FILE_TRUNCATED`, `EMBER_FILE_CORRUPT`, `EMBER_MISSING_KEY`;
/// `EMBER_INVALID_MODEL` for an adapter of another architecture, a rank of 0 and numbers that are not finite;
/// `EMBER_MISSING_TENSOR` for half a pair and for tensors that the model does not have; `EMBER_SHAPE_MISMATCH`;
/// `EMBER_UNSUPPORTED` for other kinds than LoRA, DoRA, matrices that cannot have adapters, and whole tensors in place of the
/// model's; `EMBER_OUT_OF_MEMORY`, also where `ember_model_options.session_memory_limit` has no room for it; on a GPU also
/// `EMBER_DEVICE_LOST` and `EMBER_DEVICE_ERROR`. Messages name the tensor or the key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_adapter_load(
    model: *const ember_model,
    path: *const c_char,
    path_len: usize,
    out: *mut *mut ember_adapter,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        let model = self::model(model)?;
        // SAFETY: `out` and `path` are as the header demands.
        let (out, path) = unsafe { (Out::new(out, "out")?, text(path, path_len, "path")?) };
        let adapter = Adapter::load(model, checked_path(path)?)?;
        let handle = ADAPTERS.insert(Arc::new(adapter))?;
        out.set(without_provenance_mut(handle));
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Writes facts about an adapter to `out`, whose `struct_size` the caller has set. Any thread may call it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_adapter_info(
    adapter: *const ember_adapter,
    out: *mut ember_adapter_details,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        let adapter = ADAPTERS.get(adapter.addr())?;
        // SAFETY: `out` is as the header demands.
        let out = unsafe { OutStruct::new(out) }?;
        let data = adapter.data();
        let mut d = ember_adapter_details::zeroed();
        d.rank = data.max_rank as u32;
        d.tensor_count = data.n_tensors as u64;
        d.parameter_count = data.n_parameters;
        d.file_bytes = data.file_bytes;
        d.memory_bytes = data.bytes;
        d.fingerprint = data.fingerprint;
        copy_text(&data.name, &mut d.name);
        out.set(&d);
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call_always(err, work) }
}

/// Frees an adapter: the handle becomes invalid at once. Sessions and embedders that use it go on with it, and its memory is freed when
/// none does any more. NULL is allowed and does nothing. Any thread may call it.
///
/// Errors: `EMBER_INVALID_HANDLE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_adapter_free(adapter: *mut ember_adapter) -> ember_status {
    let work = || {
        if !adapter.is_null() {
            ADAPTERS.remove(adapter.addr())?;
        }
        Ok(())
    };
    // SAFETY: no error struct.
    unsafe { call_always(null_mut(), work) }
}

/// Sets the `count` adapters, at most 16, that a session uses, in place of the previous ones; 0 uses none, and `adapters` may be
/// NULL then. All of them must have been loaded for the session's model. What they add is summed in the order of the list.
///
/// The call itself evaluates nothing. The next call that needs the context evaluates all of it again with the new
/// adapters, unless `flags` has `EMBER_ADAPTERS_KEEP`: then the session goes on from keys, values and logits as they are,
/// and only what is evaluated later is read with the new adapters. Nothing is evaluated again if adapters and scales are the
/// same as before.
///
/// Sessions with different adapters can be in one batch, and the bits of a session's results do not depend on the others.
/// Forks use the same adapters. A saved session names its adapters by fingerprint, and `ember_session_restore` demands the
/// same.
///
/// Errors: `EMBER_INVALID_HANDLE` and `EMBER_INVALID_ARGUMENT` name the adapter and set `index` of `err`: for those of another
/// model and for scales that are not finite; `EMBER_INVALID_ARGUMENT` for unknown flags and for more than 16 adapters;
/// `EMBER_BUSY`; `EMBER_DECODE_PENDING`; `EMBER_OUT_OF_MEMORY`; on a GPU also `EMBER_DEVICE_LOST` and `EMBER_DEVICE_ERROR`. The
/// session is as it was then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_session_set_adapters(
    session: *mut ember_session,
    adapters: *const ember_adapter_use,
    count: usize,
    flags: u32,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        let keep = ember_adapters_flags::EMBER_ADAPTERS_KEEP as u32;
        check_flags(flags, keep)?;
        // SAFETY: `adapters` is as the header demands.
        let used = unsafe { Used::read(adapters, count) }?;
        with_session(session, |session| {
            session.set_adapters(&used.wanted(), flags & keep != 0)
        })
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}
