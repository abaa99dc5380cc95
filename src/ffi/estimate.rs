//! What a model would take.

use super::boundary::{OutStruct, Sized32, call, read_struct, text};
use super::error::{ember_error, ember_status};
use super::model::{checked_path, ember_model_options};
use super::session::{ember_session_options, engine_options};
use crate::engine::Model;
use std::ffi::c_char;

/// Memory that a model and a session of it would take on the device. The caller sets `struct_size`,
/// `ember_model_estimate` the rest.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_estimate {
    /// `sizeof(ember_estimate)`, set by the caller.
    pub struct_size: u32,
    /// Index of the device that the figures are for.
    pub device: u32,
    /// The most tokens that the session could hold.
    pub context: u32,
    /// 0.
    pub reserved: u32,
    /// Weights. On a CPU with `EMBER_FILES_MAPPED` almost all of it is the mapped file, whose pages the
    /// system can drop and read again.
    pub weights_bytes: u64,
    /// KV cache per token of context, in layers without a sliding window.
    pub kv_bytes_per_token: u64,
    /// KV cache of the whole context. Memory that no token has touched may not be resident.
    pub kv_bytes: u64,
    /// What the sessions of a model share: memory of prefill and of batches, at most.
    pub model_workspace_bytes: u64,
    /// What each session has beside its KV cache.
    pub session_workspace_bytes: u64,
    /// Layers on the device. The others, for which `ember_model_options.memory_limit` has no room, are on the CPU.
    pub device_layer_count: u32,
    /// 0.
    pub reserved2: u32,
    /// Weights of the layers on the CPU, if the device is a GPU, which the other figures do not count.
    pub host_weights_bytes: u64,
    /// What each session has in the CPU's memory for these layers: KV cache and workspace.
    pub host_session_bytes: u64,
    /// What the sessions share in the CPU's memory for these layers.
    pub host_workspace_bytes: u64,
}

// SAFETY: `repr(C)`; 4 * 4 + 5 * 8 + 2 * 4 + 3 * 8 bytes without padding; numbers only; the size comes first.
unsafe impl Sized32 for ember_estimate {
    const NAME: &'static str = "ember_estimate";
}

/// Writes the memory that loading this file and creating one session would take to `out`, whose `struct_size` the
/// caller has set. Only the header of the file is read, nothing is loaded, and the device need not be usable. Both
/// options may be NULL for the defaults; no callback is called. The tables of the text functions, a few dozen bytes
/// per token id, are not counted. Any thread may call it.
///
/// Errors: those of `ember_model_load` and `ember_session_create` that the header shows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_model_estimate(
    path: *const c_char,
    path_len: usize,
    model_options: *const ember_model_options,
    session_options: *const ember_session_options,
    out: *mut ember_estimate,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: all pointers are as the header demands.
        let (out, path, model, session) = unsafe {
            (
                OutStruct::new(out)?,
                text(path, path_len, "path")?,
                read_struct(model_options)?,
                read_struct(session_options)?,
            )
        };
        let path = checked_path(path)?;
        let device = model.device as usize;
        // SAFETY: both options are as the header demands.
        let (load, session) = unsafe { (model.for_engine()?, engine_options(&session)?) };
        let (from, context) = Model::estimate(path, device, &load, &session)?;
        let (placed, from) = (from, from.device);
        let mut e = ember_estimate::zeroed();
        e.device = model.device;
        e.context = u32::try_from(context).unwrap_or(u32::MAX);
        e.weights_bytes = from.weights_bytes;
        e.kv_bytes_per_token = from.kv_bytes_per_token;
        e.kv_bytes = from.kv_bytes;
        e.model_workspace_bytes = from.model_workspace_bytes;
        e.session_workspace_bytes = from.session_workspace_bytes;
        e.device_layer_count = u32::try_from(placed.device_layers).unwrap_or(u32::MAX);
        let host = placed.host;
        e.host_weights_bytes = host.weights_bytes;
        e.host_session_bytes = host.kv_bytes.saturating_add(host.session_workspace_bytes);
        e.host_workspace_bytes = host.model_workspace_bytes;
        out.set(&e);
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}
