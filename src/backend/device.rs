//! What the engine knows of a device: a description, and how to bring a network onto it.

use super::group::{Group, Meeting};
use super::{HostPart, KvType, RankedWeights, RunnerOptions, Weights};
use crate::error::{Result, fail};
use crate::format::{Access, WeightType};
use crate::log::ModelLog;
use crate::model::{Network, Rank};
pub use crate::threads::Placement;
use arrayvec::ArrayVec;
use std::sync::Arc;

/// What kind of processor a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The processor that the program runs on.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

/// A device as its backend sees it now.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Kind of processor.
    pub kind: DeviceKind,
    /// Whether models can be loaded onto it.
    pub usable: bool,
    /// Why it cannot be used, or what limits it; empty if there is nothing to say.
    pub reason: String,
    /// Name of the device, as its vendor gives it.
    pub name: String,
    /// Version of the driver; empty for a CPU.
    pub driver: String,
    /// Instruction set or architecture in use, for example `avx2` or `sm_90`.
    pub isa: String,
    /// Physical cores of a CPU, multiprocessors of a GPU.
    pub cores: u32,
    /// Bytes of memory; 0 if unknown.
    pub memory_total: u64,
    /// Bytes of memory free at this moment; 0 if unknown.
    pub memory_free: u64,
}

/// Settings of a load.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Threads of the pool; 0 means one per physical core. Ignored by GPUs.
    pub threads: usize,
    /// Where and how urgently threads of the library run that compute for sessions. Ignored by GPUs.
    pub placement: Placement,
    /// What the host waits for is computed by its own thread alone. Ignored by GPUs.
    pub never_wait: bool,
    /// Address of a context that the host has made on the GPU (a `CUcontext`) and wants shared;
    /// 0 for none. CPUs refuse any other value.
    pub cuda_context: usize,
    /// Types that the matrices are converted to before the backend gets them.
    pub weights: WeightType,
    /// How a CPU reaches the files. A GPU has its own memory, to which they are read.
    pub access: Access,
    /// Bytes of memory of a GPU that the model may take for its weights and what its sessions share; 0
    /// for no limit.
    pub memory_limit: u64,
    /// Bytes of the device's memory that its sessions may take together; 0 for no limit.
    pub session_memory_limit: u64,
    /// Where messages about the model go, if not where all go.
    pub log: Option<ModelLog>,
    /// The devices that share the layers, the first layers' first. The last one has the head and is the model's device. None
    /// for the model's device alone.
    pub split: ArrayVec<Share, MAX_SPLIT>,
    /// These have a share of every layer, in place of some layers.
    pub by_tensors: bool,
    /// The model is split by tensors among ranks that are loaded by themselves, of which this is one.
    pub group: Option<Arc<Group>>,
    /// They meet by NCCL, also where they reach each other's memory.
    pub nccl: bool,
    /// Layers of a model for a GPU whose experts the CPU has and evaluates, counted from the first one that has experts; as many as there
    /// are if this is more. Where `memory_limit` leaves room for fewer experts, the CPU has those of more layers.
    pub host_experts: usize,
    /// Load the head that guesses further tokens, too, if the model has one.
    pub draft_heads: bool,
    /// Steps of many sessions have products in f16, where a GPU has kernels for that: a row's bits then depend on how many there are.
    pub f16_batches: bool,
    /// What a GPU has evaluated by the host, for a network with such layers.
    pub host_part: Option<HostPart>,
}

/// The most devices that share a model.
pub const MAX_SPLIT: usize = 16;

/// A device that runs some layers of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its index in the list of devices.
    pub device: usize,
    /// How many layers. 0 in one share stands for those that the others leave; 0 in all, for numbers that the placement
    /// chooses.
    pub layers: usize,
}

/// Memory of the device that is taken now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// For the weights and what sessions share, in memory of a GPU. 0 on a CPU.
    pub model: u64,
    /// For the sessions.
    pub sessions: u64,
}

/// What a model and one session of it would take, in bytes of the device's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// The weights. On a CPU, these are memory of their own, or pages of mapped files, resident as
    /// they are read, and the few tensors that are copied.
    pub weights_bytes: u64,
    /// KV cache that a further position takes: that of the layers without a sliding window.
    pub kv_bytes_per_token: u64,
    /// KV cache of the whole context.
    pub kv_bytes: u64,
    /// What all sessions of a model use together: memory of prefill and of batches at most.
    pub model_workspace_bytes: u64,
    /// What each session has beside its KV cache.
    pub session_workspace_bytes: u64,
}

/// Told the done share of a load, 0 to 1. An error (`Cancelled`) stops the load and is passed on.
pub type Progress<'a> = dyn FnMut(f32) -> Result<()> + 'a;

/// What devices say that cannot share layers.
const NO_RANKS: &str = "a model can be split by tensors among GPUs only";

/// A family of devices that run networks in the same way.
pub trait Backend: Sync {
    /// Number of devices, usable or not. The same for the life of the process. A backend that
    /// finds no device for a reason worth telling (no driver) counts one that is not usable.
    fn device_count(&self) -> usize;

    /// Describes a device; `index` is below `device_count`.
    fn device_info(&self, index: usize) -> DeviceInfo;

    /// Whether a KV cache can have this element type on such devices.
    fn takes_kv_type(&self, kv_type: KvType) -> bool;

    /// What [`Weights::load_predictor`] with the second network would take beside the first one, whose head it is, and then
    /// [`Weights::create_runner`] with these options, beside a session of the first network's that keeps the hidden states of so many
    /// positions. As [`Backend::estimate`] says.
    fn estimate_predictor(
        &self,
        index: usize,
        (network, head): (&Network, &Network),
        states: usize,
        (load, runner): (&LoadOptions, &RunnerOptions),
    ) -> Result<Estimate> {
        let e = self.estimate(index, head, load, runner)?;
        let (embedding, output) = (&head.embedding, &head.head.weight);
        let mut shared = 0;
        if embedding.same_data(&network.embedding) {
            shared += embedding.byte_len() as u64;
        }
        // A tied matrix counts once.
        if !output.same_data(embedding) && output.same_data(&network.head.weight) {
            shared += output.byte_len() as u64;
        }
        // The head keeps the state of its own last position.
        let kept = self.states_bytes(network.hidden, states) + self.states_bytes(network.hidden, 1);
        Ok(Estimate {
            weights_bytes: e.weights_bytes.saturating_sub(shared),
            session_workspace_bytes: e.session_workspace_bytes.saturating_add(kept),
            ..e
        })
    }

    /// What room for the hidden states of so many positions takes, of so many floats each.
    fn states_bytes(&self, width: usize, rows: usize) -> u64 {
        (4 * width as u64).saturating_mul(rows as u64)
    }

    /// What [`Backend::load`] and then [`Weights::create_runner`] with these options would take,
    /// from the network's shapes and types alone: no data is read, nothing is reserved. The device
    /// need not be usable.
    ///
    /// Errors: `Unsupported` for what they would refuse, too.
    fn estimate(
        &self,
        index: usize,
        network: &Network,
        load: &LoadOptions,
        runner: &RunnerOptions,
    ) -> Result<Estimate> {
        let _ = (index, network, load, runner);
        fail!(
            Unsupported,
            "this device cannot estimate what a model takes"
        )
    }

    /// The same of a rank of a network of which each device has a share of every layer.
    fn estimate_rank(
        &self,
        index: usize,
        network: &Network,
        rank: Rank,
        options: (&LoadOptions, &RunnerOptions),
    ) -> Result<Estimate> {
        let _ = (index, network, rank, options);
        fail!(Unsupported, "{NO_RANKS}")
    }

    /// Brings a network onto several devices of the backend, each of which has a share of every layer: rank 0, with all logits, onto
    /// the first one.
    fn load_ranks(
        &self,
        indices: &[usize],
        network: &Network,
        options: &LoadOptions,
        progress: &mut Progress<'_>,
    ) -> Result<RankedWeights> {
        let _ = (indices, network, options, progress);
        fail!(Unsupported, "{NO_RANKS}")
    }

    /// Brings a rank of a network onto a device; the others are loaded by themselves at the same time, and are met already.
    fn load_rank(
        &self,
        index: usize,
        network: &Network,
        options: (&Arc<Meeting>, &LoadOptions),
        progress: &mut Progress<'_>,
    ) -> Result<RankedWeights> {
        let _ = (index, network, options, progress);
        fail!(Unsupported, "{NO_RANKS}")
    }

    /// Brings a network onto a device that said it is usable.
    fn load(
        &self,
        index: usize,
        network: &Network,
        options: &LoadOptions,
        progress: &mut Progress<'_>,
    ) -> Result<Arc<dyn Weights>>;
}
