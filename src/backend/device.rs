//! What the engine knows of a device: a description, and how to bring a network onto it.

use super::Weights;
use crate::error::Result;
use crate::model::Network;
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
    /// The name that its maker gave it.
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

/// Settings of a load that concern the backend.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadOptions {
    /// Threads of the pool; 0 means one per physical core. Ignored by GPUs.
    pub threads: usize,
}

/// Told the done share of a load, 0 to 1. An error (`Cancelled`) stops the load and is passed on.
pub type Progress<'a> = dyn FnMut(f32) -> Result<()> + 'a;

/// A family of devices that run networks in the same way.
pub trait Backend: Sync {
    /// Number of devices, usable or not. The same for the life of the process. A backend that
    /// finds no device for a reason worth telling (no driver) counts one that is not usable.
    fn device_count(&self) -> usize;

    /// Describes a device; `index` is below `device_count`.
    fn device_info(&self, index: usize) -> DeviceInfo;

    /// Brings a network onto a device that said it is usable.
    fn load(
        &self,
        index: usize,
        network: &Network,
        options: &LoadOptions,
        progress: &mut Progress<'_>,
    ) -> Result<Arc<dyn Weights>>;
}
