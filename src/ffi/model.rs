//! Models.

use super::boundary::{
    Out, OutStruct, Sized32, call, call_always, check_flags, read_struct, slice, text,
};
use super::chain::{ember_cuda_model_options, read_chain};
use super::error::{copy_text, ember_error, ember_status};
use super::forked;
use super::group::{ember_group, group};
use super::handle::{Kind, Table};
use super::log::{LogUser, ember_free_fn, ember_log_fn, model_log};
use crate::backend::{LoadOptions, MAX_BATCH, MAX_SPLIT, Placement, Share};
use crate::engine::Model;
use crate::error::{Error, Result, Status, fail};
use crate::format::{Access, ModelSource, WeightType};
use arrayvec::ArrayVec;
use std::ffi::{c_char, c_void};
use std::path::Path;
use std::ptr::without_provenance_mut;
use std::sync::Arc;

/// A loaded model: weights and vocabulary. Immutable, so any number of threads may use it at once.
/// It stays in memory until `ember_model_free` and until its last session is freed, in any order.
pub struct ember_model {
    _opaque: [u8; 0],
}

static MODELS: Table<Model> = Table::new(Kind::Model);

/// The model of a handle.
pub(super) fn model(handle: *const ember_model) -> Result<Arc<Model>> {
    MODELS.get(handle.addr())
}

/// Receives the progress of a load: `fraction` goes from 0 to 1 and never decreases. Return 0 to continue and 1 to stop the load with
/// `EMBER_CANCELLED`. Called on the thread that called `ember_model_load` or `ember_model_load_from`, without holding a lock, so the
/// callback may call any function of the library. It must return normally: no `longjmp`, no exception.
pub type ember_progress_fn = Option<unsafe extern "C" fn(user: *mut c_void, fraction: f32) -> i32>;

/// Values of `ember_model_options.weights`: the type that matrices which take more bytes are
/// converted to. Rows that are no whole blocks of a type get the next larger one that fits; norms,
/// biases, routers and learned positions stay as they are.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ember_weights {
    /// As they are in the file.
    EMBER_WEIGHTS_KEEP = 0,
    /// Q8_0: 8.5 bits per weight.
    EMBER_WEIGHTS_Q8_0 = 1,
    /// Q4_K, and Q6_K for the head: a little over 4.5 bits per weight.
    EMBER_WEIGHTS_Q4_K = 2,
    /// Q6_K: 6.6 bits per weight.
    EMBER_WEIGHTS_Q6_K = 3,
    /// As `EMBER_WEIGHTS_Q4_K`, but with Q6_K also for half of the matrices of values and of the
    /// feed-forward's outputs: about 4.9 bits per weight.
    EMBER_WEIGHTS_Q4_K_M = 4,
}

/// Values of `ember_model_options.files`: how the CPU accesses the weights. For a GPU, the files are always read once into its own memory
/// and are not needed after the load.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ember_files {
    /// The files are mapped. Loading is fast, processes share the memory, and the system can drop pages and read them again, so a model
    /// may be larger than the free memory. The files must not be overwritten or shortened while the model is in use, because the system
    /// ends a process (`SIGBUS`) that reads a mapping beyond the end of its file. Calls that find a changed file when they begin return
    /// `EMBER_FILE_TRUNCATED` or `EMBER_FILE_CORRUPT`, but a file that shrinks during a call ends the process. It is safe to replace a
    /// file by writing the new one under another name and renaming it, as package managers and most downloads do, and to delete it. A
    /// removed medium or a network drive that fails has the same effect as a file that shrinks.
    EMBER_FILES_MAPPED = 0,
    /// The files are read into memory that the model owns, in huge pages where the system has them. Loading takes as
    /// long as reading the files, and fails with `EMBER_OUT_OF_MEMORY` if there is not enough memory. After loading,
    /// the files may change, shrink or be deleted; a change during loading is an error.
    EMBER_FILES_READ = 1,
}

/// Values of `ember_model_options.split`: how several devices share a model.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ember_split {
    /// Each device has some of the layers. They work one after another on a token.
    EMBER_SPLIT_LAYERS = 0,
    /// Each device has a share of every layer, and all work on every token at the same time, so that one session is faster than on one
    /// device. Only for GPUs, and without profiles. They share the heads of attention, gated delta nets and Mamba 2, the channels of short
    /// convolutions, and the inner elements of feed-forward parts and experts; the first Mamba, and norms over all heads of a mixer, are
    /// `EMBER_UNSUPPORTED`. GPUs that cannot access each other's memory need NCCL 2.18 or later: `libnccl.so.2` is
    /// opened then, and a load returns `EMBER_UNSUPPORTED` if it is missing or too old. `device_layers` is NULL. Each GPU takes
    /// `memory_limit` at most, beside what NCCL takes, and no layer goes to the CPU. Only one session or one batch is processed at a
    /// time. A GPU that does not do its share in time (10 s; with NCCL 30 s) is `EMBER_DEVICE_LOST`, from then on for every call with the
    /// model.
    EMBER_SPLIT_TENSORS = 1,
}

/// How to load a model. Zero in every field but `struct_size` means the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_model_options {
    /// `sizeof(ember_model_options)`.
    pub struct_size: u32,
    /// Index of the device, as for `ember_device_info`; 0 is the best one. Ignored if `device_count` is not 0.
    pub device: u32,
    /// Threads that work on the CPU, at most 1024; 0 means one per physical core. All sessions of
    /// the model share them. They sleep when there is nothing to do and end with the model. Threads of
    /// the host that call functions of sessions compute as well.
    pub threads: u32,
    /// A value of `enum ember_weights`.
    pub weights: u32,
    /// A value of `enum ember_files`.
    pub files: u32,
    /// Values of `enum ember_model_flags`.
    pub flags: u32,
    /// A value of `enum ember_split`: how `devices` share the model.
    pub split: u32,
    /// For a model on a GPU, the number of layers whose experts stay on the CPU, which evaluates them between the GPU's work on the
    /// rest of the layers; counted from the first layer with experts, `UINT32_MAX` for all. Where `memory_limit` has no room for
    /// all other experts, those of more layers stay on the CPU, and layers go to the CPU as a whole only where that is not enough.
    /// Pieces of prompts of at least 256 tokens are evaluated on the GPU alone, which keeps room for the experts of one layer. If
    /// `threads` is 0, one physical core is left to the driver. Only for models on one GPU. CPUs, and models without experts, ignore it.
    pub cpu_expert_layers: u32,
    /// Priority of the library's threads relative to the thread that loads the model: less than 0 gives way to others, more than 0 goes
    /// first if the system allows it. On Linux, it is subtracted from the nice value; on Windows, it is from -2 to 2. Ignored elsewhere.
    pub thread_priority: i32,
    /// The level up to which `log_callback` is called, a value of `enum ember_log_level`; 0 if there is no `log_callback`.
    pub log_level: i32,
    /// Bytes of a GPU's memory that the library may allocate for the model: its weights, and the memory of prefill and of batches
    /// that its sessions share. 0 for no limit. As many of the last layers as fit are on the GPU, the others on the CPU;
    /// `ember_model_estimate` says beforehand how many. A call that would need more returns `EMBER_OUT_OF_MEMORY`, and everything
    /// stays as it was. What the driver takes for itself is not counted. CPUs ignore it. With several GPUs in `devices`, the limit is
    /// one for each of them.
    pub memory_limit: u64,
    /// Bytes of the device's memory that all sessions of the model may take together: KV caches, states, what each session
    /// works in, adapters, and on a GPU embedders. 0 for no limit. What would take more, such as `ember_session_create`,
    /// `ember_session_fork`, `ember_adapter_load` and on a GPU also `ember_embedder_create` and calls that append tokens, returns
    /// `EMBER_OUT_OF_MEMORY`; no session loses anything. On a GPU, KV caches grow with the tokens in pages of 2 MiB; on a CPU, a
    /// session counts in whole from its beginning. An adapter counts once, however many sessions and embedders use it, until it is
    /// freed and none uses it any more. With several GPUs in `devices`, the limit is one for each of them.
    pub session_memory_limit: u64,
    /// Called while loading; may be NULL.
    pub progress: ember_progress_fn,
    /// Passed to `progress`; may be NULL.
    pub user: *mut c_void,
    /// Numbers of the logical processors that the library's threads may run on, as the system counts them, from 0 to 1023. NULL with a
    /// `cpu_count` of 0 lets the system choose. Used on Linux and on Windows (there, the first 64); ignored elsewhere.
    pub cpus: *const u32,
    /// Number of elements of `cpus`.
    pub cpu_count: usize,
    /// Indices of the devices that share the model's layers, 1 to 16, or NULL for `device` alone. The first device has the first
    /// layers, the last one the head. The devices work one after another on a token, and at the same time on different sessions and
    /// on different pieces of a long prompt.
    pub devices: *const u32,
    /// Number of `devices`.
    pub device_count: usize,
    /// NULL, or the number of layers on each of `devices`. One number may be 0: that device gets the layers that the others leave.
    /// NULL and zeros alone share the layers among GPUs in proportion to their memory, so that the same devices always get the
    /// same layers; where `memory_limit` does not allow that, each GPU gets as many as it has room for, from the last one on, and
    /// the CPU the first layers.
    pub device_layers: *const u32,
    /// NULL, or the group of processes that this process shares the model with (`ember_group`). `device` is the GPU of this rank, and
    /// `devices` is NULL. The load waits until all ranks load the model. The handle still belongs to the caller.
    pub group: *const ember_group,
    /// NULL, or what receives the log messages about this model and its sessions, in place of the function that
    /// `ember_set_log_callback` has set. It may be called until the model and the last of its sessions are freed.
    pub log_callback: ember_log_fn,
    /// Passed to `log_callback`; may be NULL.
    pub log_user: *mut c_void,
    /// NULL, or called once with `log_user` when `log_callback` will not be called any more, so that the caller can free what belongs to it.
    /// A load that fails does not call it: `ember_model_load` and `ember_model_load_from` take `log_user` over when they return
    /// `EMBER_OK`, and `ember_model_load_start` when it has started the load, whatever becomes of that.
    pub log_release: ember_free_fn,
    /// NULL, or options of single devices: an `ember_cuda_model_options`.
    pub next: *const c_void,
}

/// Flags of `ember_model_options`, to be or-ed.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ember_model_flags {
    /// Calls that return a result compute on the caller's thread alone, so that they never wait for a thread of the library that the
    /// system schedules late. Started decodes, prompts and batches use all threads. Only for CPUs.
    EMBER_MODEL_NEVER_WAIT = 1,
    /// Load the model's head for multi-token prediction (MTP) as well, for `EMBER_DRAFTS_HEADS`. Without this flag, heads are not loaded.
    /// The flag has no effect on a model without heads. Of several heads, the first one is loaded. `ember_model_estimate` includes the
    /// head and what a session has for its drafts.
    EMBER_MODEL_DRAFT_HEADS = 2,
    /// Steps of more than 16 sessions together (`ember_decode_batch`, `ember_decode_batch_start`) have most of their products with quantized
    /// weights on f16 tensor cores in place of int8 ones, unless one of them has drafts or adapters. That is faster, and closer to exact results.
    /// But without this flag, a session's results do not depend on the others in its batch; with it, their last bits depend on whether a step
    /// is of that kind, and on nothing else of the others. The experts of mixtures stay as they are. Only for NVIDIA GPUs of compute
    /// capability 9.0; ignored elsewhere. Since 0.1.0.
    EMBER_MODEL_F16_BATCHES = 4,
}

// SAFETY: `repr(C)`; ten numbers of 4 bytes, two u64 and twelve words have no padding, with words of 4 bytes neither; zero is a value of
// each (no function, a NULL pointer); the size comes first. `progress` is the caller's own pointer.
unsafe impl Sized32 for ember_model_options {
    const NAME: &'static str = "ember_model_options";
}

impl ember_model_options {
    /// What the engine has to know. `InvalidArgument` for values that mean nothing.
    ///
    /// With what belongs to the model's log, if it has one of its own.
    ///
    /// # Safety
    /// `cpus`, `devices`, `device_layers`, `next`, `log_callback` and `log_release` are as the header demands.
    pub(super) unsafe fn for_engine(&self) -> Result<(LoadOptions, Option<Arc<LogUser>>)> {
        let weights = match self.weights {
            0 => WeightType::Keep,
            1 => WeightType::Q8_0,
            2 => WeightType::Q4K,
            3 => WeightType::Q6K,
            4 => WeightType::Q4KM,
            n => fail!(InvalidArgument, "weights is {n}, which is no ember_weights"),
        };
        let access = match self.files {
            0 => Access::Mapped,
            1 => Access::Read,
            n => fail!(InvalidArgument, "files is {n}, which is no ember_files"),
        };
        // SAFETY: by contract, `log_callback` and `log_release` are as the header demands.
        let user = unsafe { LogUser::new(self.log_user, self.log_release) };
        // SAFETY: as above.
        let log = unsafe { model_log(self.log_callback, user, self.log_level) }?;
        let (log, user) = log.unzip();
        // SAFETY: by contract, `cpus`, `next` and `log_callback` are as the header demands.
        let cuda = unsafe { read_chain::<ember_cuda_model_options>(self.next, Self::NAME) }?;
        let never_wait = ember_model_flags::EMBER_MODEL_NEVER_WAIT as u32;
        let draft_heads = ember_model_flags::EMBER_MODEL_DRAFT_HEADS as u32;
        let f16_batches = ember_model_flags::EMBER_MODEL_F16_BATCHES as u32;
        check_flags(self.flags, never_wait | draft_heads | f16_batches)?;
        let mut placement = Placement::with_priority(self.thread_priority);
        // SAFETY: by contract, `cpus`, `next` and `log_callback` are as the header demands.
        let cpus = unsafe { slice(self.cpus, self.cpu_count, "cpus") }?;
        for (i, cpu) in cpus.iter().enumerate() {
            if !placement.allow(*cpu as usize) {
                let message = format!("cpus has {cpu}, which is more than 1023");
                return Err(Error::new(Status::InvalidArgument, message).at(i));
            }
        }
        // SAFETY: by contract, `devices` and `device_layers` are as the header demands.
        let split = unsafe { self.shares() }?;
        let by_tensors = match self.split {
            0 => false,
            1 => true,
            n => fail!(InvalidArgument, "split is {n}, which is no ember_split"),
        };
        let options = LoadOptions {
            weights,
            access,
            placement,
            never_wait: self.flags & never_wait != 0,
            threads: self.threads as usize,
            cuda_context: cuda.map_or(0, |cuda| cuda.context.addr()),
            memory_limit: self.memory_limit,
            session_memory_limit: self.session_memory_limit,
            log,
            split,
            by_tensors,
            group: group(self.group)?,
            nccl: false,
            host_experts: self.cpu_expert_layers as usize,
            draft_heads: self.flags & draft_heads != 0,
            f16_batches: self.flags & f16_batches != 0,
            host_part: None,
        };
        Ok((options, user))
    }

    /// The devices that share the model.
    ///
    /// # Safety
    /// `devices` and `device_layers` are as the header demands.
    unsafe fn shares(&self) -> Result<ArrayVec<Share, MAX_SPLIT>> {
        // SAFETY: by contract, they are as the header demands.
        let devices = unsafe { slice(self.devices, self.device_count, "devices") }?;
        if devices.len() > MAX_SPLIT {
            fail!(
                InvalidArgument,
                "device_count is {}, but at most {MAX_SPLIT} devices can share a model",
                devices.len()
            );
        }
        let layers = match self.device_layers.is_null() {
            true => &[],
            // SAFETY: by contract, there are as many as `devices`.
            false => unsafe { slice(self.device_layers, devices.len(), "device_layers") }?,
        };
        if devices.is_empty() && !self.device_layers.is_null() {
            fail!(InvalidArgument, "device_layers without devices");
        }
        let layers = layers.iter().chain(std::iter::repeat(&0));
        let shares = devices.iter().zip(layers).map(|(device, layers)| Share {
            device: *device as usize,
            layers: *layers as usize,
        });
        Ok(shares.collect())
    }
}

/// `InvalidArgument` for what cannot be a path.
pub(super) fn checked_path(path: &str) -> Result<&Path> {
    if path.is_empty() {
        fail!(InvalidArgument, "path is empty");
    }
    if path.contains('\0') {
        fail!(InvalidArgument, "path contains a NUL");
    }
    Ok(Path::new(path))
}

/// Facts about a model. The caller sets `struct_size`, `ember_model_info` the rest. Text is UTF-8,
/// ended by a NUL, shortened to fit.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_model_details {
    /// `sizeof(ember_model_details)`, set by the caller.
    pub struct_size: u32,
    /// Index of the device that holds the weights; where several do, of that with the head.
    pub device: u32,
    /// Number of token ids: 0 to `vocab_size - 1`. Also the number of logits.
    pub vocab_size: u32,
    /// Tokens that the model was trained to keep in context; the most that a session can have.
    pub context_length: u32,
    /// Number of layers.
    pub layer_count: u32,
    /// Width of the residual stream.
    pub hidden_size: u32,
    /// 1 if the text functions work with this model, 0 if its tokenizer is not supported.
    pub has_tokenizer: u32,
    /// Number of metadata keys, for `ember_model_metadata_key`.
    pub metadata_count: u32,
    /// Number of weights.
    pub parameter_count: u64,
    /// Bytes of the file, or of all files of a split model.
    pub file_bytes: u64,
    /// Bytes of memory that the weights take beyond mapped files.
    pub resident_bytes: u64,
    /// Bytes of KV cache per token of context with `EMBER_KV_F16`, in layers without a sliding
    /// window.
    pub kv_bytes_per_token: u64,
    /// Architecture as the file names it, for example `llama`.
    pub architecture: [c_char; 32],
    /// Type of most of the weights, for example `Q4_K`.
    pub quantization: [c_char; 32],
    /// Name as the file gives it; may be empty.
    pub name: [c_char; 128],
    /// The most sessions of an `ember_decode_batch`.
    pub max_batch: u32,
    /// Layers on GPUs, of which the others are on the CPU; all layers of a model for CPUs.
    pub device_layer_count: u32,
    /// Bytes of GPU memory that are allocated for the model now, as `ember_model_options.memory_limit` counts them, on all GPUs
    /// together; 0 on a CPU.
    pub memory_bytes: u64,
    /// Bytes of the devices' memory that its sessions and adapters have now, as `ember_model_options.session_memory_limit` counts them.
    pub session_memory_bytes: u64,
    /// Number of parts that the layers are in, each on one device, for `ember_model_part_info`; 1 for a model on one device.
    pub part_count: u32,
    /// Layers on a GPU whose experts are on the CPU.
    pub cpu_expert_layer_count: u32,
}

// SAFETY: `repr(C)`; 8 * 4 + 4 * 8 + 192 + 2 * 4 + 2 * 8 + 2 * 4 bytes without padding; numbers only; the size comes first.
unsafe impl Sized32 for ember_model_details {
    const NAME: &'static str = "ember_model_details";
}

/// Loads a GGUF file or a Hugging Face folder. For a split model, `path` names its first file. A
/// folder (`config.json`, `model.safetensors` or its index with shards, `tokenizer.json`, the chat
/// template) is named itself, or by its `config.json` or a safetensors file in it; its weights are
/// F32, F16, BF16, MXFP4 or 8-bit floats (E4M3) with scales, which become F16. `path` is UTF-8 of `path_len`
/// bytes and needs no NUL at its end. `options` may be NULL for the defaults. The new handle is
/// written to `out` and has to be freed with `ember_model_free`. The files must not change during the
/// call, which is an error where it can be seen; what is allowed later, `enum ember_files` says. Any
/// thread may call it; loads run side by side.
///
/// Metadata may take up to 128 MB of memory, and the JSON files of a folder have similar limits; larger ones are
/// `EMBER_UNSUPPORTED`. So is a tensor that the architecture does not use, because the model is then a variant whose
/// output would be wrong without it. The message names the tensor.
///
/// A model whose tokenizer is not supported is loaded anyway; text functions then return `EMBER_UNSUPPORTED`.
///
/// Errors: `EMBER_INVALID_UTF8`, `EMBER_INVALID_ARGUMENT` (empty path, NUL inside it, an option's
/// value); `EMBER_INVALID_HANDLE` (`group`); `EMBER_NO_DEVICE`; `EMBER_FILE_NOT_FOUND`, `EMBER_NOT_A_FILE`, `EMBER_FILE_EMPTY`,
/// `EMBER_IO`; `EMBER_UNKNOWN_FORMAT`, `EMBER_FILE_TRUNCATED`, `EMBER_FILE_CORRUPT`; `EMBER_UNSUPPORTED`,
/// `EMBER_MISSING_KEY`, `EMBER_MISSING_TENSOR`, `EMBER_SHAPE_MISMATCH`, `EMBER_INVALID_MODEL`;
/// `EMBER_OUT_OF_MEMORY`; `EMBER_DEVICE_ERROR`, `EMBER_DEVICE_LOST`; `EMBER_CANCELLED`. The message names
/// the key, tensor or byte offset. A file that gets shorter while it is read is
/// `EMBER_FILE_TRUNCATED`, one that was otherwise changed or replaced `EMBER_FILE_CORRUPT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_model_load(
    path: *const c_char,
    path_len: usize,
    options: *const ember_model_options,
    out: *mut *mut ember_model,
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
        // SAFETY: `options` is as the header demands.
        out.set(unsafe { load(&ModelSource::Path(checked_path(path)?), &options) }?);
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Loads a model and gives it a handle.
///
/// # Safety
/// `options` is as the header demands.
pub(super) unsafe fn load(
    source: &ModelSource<'_>,
    options: &ember_model_options,
) -> Result<*mut ember_model> {
    // SAFETY: by contract, `options` is as the header demands.
    let (load_options, log_user) = unsafe { options.for_engine() }?;
    let mut progress = |fraction: f32| {
        let Some(callback) = options.progress else {
            return Ok(());
        };
        // SAFETY: the caller promises that `progress` can be called with `user` until the function that
        // loads returns.
        if unsafe { callback(options.user, fraction) } != 0 {
            fail!(Cancelled, "the progress callback stopped the load");
        }
        Ok(())
    };
    let device = options.device as usize;
    let model = Model::load_from(source, device, &load_options, &mut progress)?;
    // Before there is a handle that a child could have.
    forked::remember();
    let handle = insert(Arc::new(model))?;
    if let Some(user) = log_user {
        user.take_over();
    }
    Ok(handle)
}

/// Writes facts about a model to `out`, whose `struct_size` the caller has set. Any thread may call
/// it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_model_info(
    model: *const ember_model,
    out: *mut ember_model_details,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        let model = self::model(model)?;
        // SAFETY: `out` is as the header demands.
        let out = unsafe { OutStruct::new(out) }?;
        out.set(&describe(&model));
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Layers of a model that are on one device. The caller sets `struct_size`, `ember_model_part_info` the rest.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_part_details {
    /// `sizeof(ember_part_details)`, set by the caller.
    pub struct_size: u32,
    /// Index of the device.
    pub device: u32,
    /// The first of the layers, counted from 0. The part with layer 0 has the embedding, that with the last layer the head.
    pub first_layer: u32,
    /// Number of layers.
    pub layer_count: u32,
    /// Bytes of the device's memory that are allocated for the part now, as `ember_model_options.memory_limit` counts them; 0 on a CPU.
    pub memory_bytes: u64,
    /// Bytes of the device's memory that sessions and adapters have for the part now, as `ember_model_options.session_memory_limit`
    /// counts them.
    pub session_memory_bytes: u64,
}

// SAFETY: `repr(C)`; 4 * 4 + 2 * 8 bytes without padding; numbers only; the size comes first.
unsafe impl Sized32 for ember_part_details {
    const NAME: &'static str = "ember_part_details";
}

/// Writes where some of a model's layers are to `out`, whose `struct_size` the caller has set. `index` counts the parts from 0, in
/// the order of the layers; `ember_model_details.part_count` says how many there are. Any thread may call it.
///
/// Errors: `EMBER_INVALID_ARGUMENT` if there is no such part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_model_part_info(
    model: *const ember_model,
    index: usize,
    out: *mut ember_part_details,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        let model = self::model(model)?;
        // SAFETY: `out` is as the header demands.
        let out = unsafe { OutStruct::new(out) }?;
        let parts = &model.details().parts;
        let Some(part) = parts.get(index) else {
            fail!(
                InvalidArgument,
                "part {index} does not exist; the model has {}, counted from 0",
                parts.len()
            );
        };
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let taken = model.weights().taken_by(index);
        let mut d = ember_part_details::zeroed();
        d.device = count(part.device);
        d.first_layer = count(part.first_layer);
        d.layer_count = count(part.layers);
        d.memory_bytes = taken.model;
        d.session_memory_bytes = taken.sessions;
        out.set(&d);
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

fn describe(model: &Model) -> ember_model_details {
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let from = model.details();
    let mut d = ember_model_details::zeroed();
    d.device = count(from.device);
    d.vocab_size = count(from.n_vocab);
    d.context_length = count(from.context_length);
    d.layer_count = count(from.n_layers);
    d.hidden_size = count(from.hidden);
    d.has_tokenizer = u32::from(model.tokenizer().is_ok());
    d.metadata_count = count(model.metadata().len());
    d.parameter_count = from.n_parameters;
    d.file_bytes = from.file_bytes;
    d.resident_bytes = from.resident_bytes;
    d.kv_bytes_per_token = from.kv_bytes_per_token;
    copy_text(&from.architecture, &mut d.architecture);
    copy_text(&from.quantization, &mut d.quantization);
    copy_text(&from.name, &mut d.name);
    d.max_batch = count(MAX_BATCH);
    d.device_layer_count = count(from.device_layers);
    let taken = model.weights().taken();
    d.memory_bytes = taken.model;
    d.session_memory_bytes = taken.sessions;
    d.part_count = count(from.parts.len());
    d.cpu_expert_layer_count = count(from.host_experts);
    d
}

/// Frees a model: the handle becomes invalid at once, and the memory is freed when the last session of the model is
/// freed, too. NULL is allowed and does nothing. Calls with this model that are running on other threads complete
/// normally. A rank of a group waits for up to a second until the other ranks have completed their work and are freed, too.
///
/// Errors: `EMBER_INVALID_HANDLE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_model_free(model: *mut ember_model) -> ember_status {
    let work = || {
        if !model.is_null() {
            drop(MODELS.remove(model.addr())?);
        }
        Ok(())
    };
    // SAFETY: no error struct.
    unsafe { call_always(std::ptr::null_mut(), work) }
}

/// Gives a model a handle, one more if it has some.
pub(super) fn insert(model: Arc<Model>) -> Result<*mut ember_model> {
    Ok(without_provenance_mut(MODELS.insert(model)?))
}
