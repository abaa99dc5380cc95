//! The CPU as a device.

use super::matmul::Isa;
use super::{CpuWeights, host};
use crate::backend::{Backend, DeviceInfo, DeviceKind, LoadOptions, Progress, Weights};
use crate::error::Result;
use crate::model::Network;
use std::sync::Arc;

/// The one CPU device.
pub static BACKEND: CpuBackend = CpuBackend;

/// See [`BACKEND`].
pub struct CpuBackend;

impl Backend for CpuBackend {
    fn device_count(&self) -> usize {
        1
    }

    fn device_info(&self, _index: usize) -> DeviceInfo {
        let memory = host::memory();
        DeviceInfo {
            kind: DeviceKind::Cpu,
            usable: true,
            reason: String::new(),
            name: host::name(),
            driver: String::new(),
            isa: Isa::detect().name().to_owned(),
            cores: u32::try_from(host::physical_cores()).unwrap_or(u32::MAX),
            memory_total: memory.total,
            memory_free: memory.free,
        }
    }

    fn load(
        &self,
        _index: usize,
        network: &Network,
        options: &LoadOptions,
        progress: &mut Progress<'_>,
    ) -> Result<Arc<dyn Weights>> {
        let threads = match options.threads {
            0 => host::physical_cores(),
            n => n,
        };
        Ok(CpuWeights::load(network, threads, progress)?)
    }
}
