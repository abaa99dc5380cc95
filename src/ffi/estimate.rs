//! What a model would take.

use super::boundary::{OutStruct, Sized32, call, read_struct, text};
use super::error::{ember_error, ember_status};
use super::model::{checked_path, ember_model_options};
use super::session::{ember_session_options, engine_options};
use crate::backend::Estimate;
use crate::engine::{Model, PlacedEstimate};
use crate::error::{Result, fail};
use std::ffi::c_char;

/// Memory that a model and a session of it would take on the device, or on all GPUs that share the model together. The caller sets
/// `struct_size`, `ember_model_estimate` and `ember_model_estimate_part` the rest.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_estimate {
    /// `sizeof(ember_estimate)`, set by the caller.
    pub struct_size: u32,
    /// Index of the device that the figures are for; where GPUs share the model, of the one with the head.
    pub device: u32,
    /// The most tokens that the session could hold.
    pub context: u32,
    /// Number of parts that the layers would be in, each on one device, for `ember_model_estimate_part`.
    pub part_count: u32,
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
    /// Layers on GPUs, of which the others are on the CPU; all layers of a model for CPUs. Of a part, its layers.
    pub device_layer_count: u32,
    /// The first layer of a part; otherwise 0.
    pub first_layer: u32,
    /// Weights of the layers and experts on the CPU, if others are on a GPU, which the other figures do not count. 0 for a part.
    pub host_weights_bytes: u64,
    /// What each session has in the CPU's memory for these layers: KV cache and workspace.
    pub host_session_bytes: u64,
    /// What the sessions share in the CPU's memory for these layers.
    pub host_workspace_bytes: u64,
    /// Layers on a GPU whose experts would be on the CPU, which the three figures before count, too. 0 for a part.
    pub cpu_expert_layer_count: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: `repr(C)`; 4 * 4 + 5 * 8 + 2 * 4 + 3 * 8 + 2 * 4 bytes without padding; numbers only; the size comes first.
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
        // SAFETY: `out` is as the header demands.
        let out = unsafe { OutStruct::new(out)? };
        // SAFETY: by contract, all pointers are as the header demands.
        let (placed, mut e) =
            unsafe { estimate(path, path_len, (model_options, session_options))? };
        e.fill(&placed.device);
        e.device_layer_count = u32::try_from(placed.device_layers).unwrap_or(u32::MAX);
        e.cpu_expert_layer_count = u32::try_from(placed.host_experts).unwrap_or(u32::MAX);
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

/// As `ember_model_estimate`, but for the layers of one part alone, on its device. `index` counts the parts from 0, in the order of
/// the layers; `ember_estimate.part_count` says how many there are.
///
/// Errors: those of `ember_model_estimate`; `EMBER_INVALID_ARGUMENT` if there is no such part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_model_estimate_part(
    path: *const c_char,
    path_len: usize,
    model_options: *const ember_model_options,
    session_options: *const ember_session_options,
    index: usize,
    out: *mut ember_estimate,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `out` is as the header demands.
        let out = unsafe { OutStruct::new(out)? };
        // SAFETY: by contract, all pointers are as the header demands.
        let (placed, mut e) =
            unsafe { estimate(path, path_len, (model_options, session_options))? };
        let Some((part, from)) = placed.parts.get(index) else {
            fail!(
                InvalidArgument,
                "part {index} does not exist; the model would have {}, counted from 0",
                placed.parts.len()
            );
        };
        e.fill(from);
        e.device = u32::try_from(part.device).unwrap_or(u32::MAX);
        e.first_layer = u32::try_from(part.first_layer).unwrap_or(u32::MAX);
        e.device_layer_count = u32::try_from(part.layers).unwrap_or(u32::MAX);
        out.set(&e);
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

impl ember_estimate {
    /// Sets the figures about a device.
    fn fill(&mut self, from: &Estimate) {
        self.weights_bytes = from.weights_bytes;
        self.kv_bytes_per_token = from.kv_bytes_per_token;
        self.kv_bytes = from.kv_bytes;
        self.model_workspace_bytes = from.model_workspace_bytes;
        self.session_workspace_bytes = from.session_workspace_bytes;
    }
}

/// What a model and a session would take, and an estimate for callers with the fields that are the same for all parts.
///
/// # Safety
/// All pointers are as the header demands.
unsafe fn estimate(
    path: *const c_char,
    path_len: usize,
    (model, session): (*const ember_model_options, *const ember_session_options),
) -> Result<(PlacedEstimate, ember_estimate)> {
    // SAFETY: by contract, all pointers are as the header demands.
    let (path, model, session) = unsafe {
        (
            text(path, path_len, "path")?,
            read_struct(model)?,
            read_struct(session)?,
        )
    };
    let path = checked_path(path)?;
    // SAFETY: by contract, both options are as the header demands.
    let ((load, _), session) = unsafe { (model.for_engine()?, engine_options(&session)?) };
    let device = model.device as usize;
    let (placed, context) = Model::estimate(path, device, &load, &session)?;
    let mut e = ember_estimate::zeroed();
    let last = load.split.last().map_or(device, |share| share.device);
    e.device = u32::try_from(last).unwrap_or(u32::MAX);
    e.context = u32::try_from(context).unwrap_or(u32::MAX);
    e.part_count = u32::try_from(placed.parts.len()).unwrap_or(u32::MAX);
    Ok((placed, e))
}
