//! The CPU as a device.

use super::estimate::estimate;
use super::matmul::Isa;
use super::pool::PoolOptions;
use super::weights::check_kv_type;
use super::{CpuWeights, host};
use crate::backend::{
    Backend, DeviceInfo, DeviceKind, Estimate, KvType, LoadOptions, Progress, RunnerOptions,
    Weights,
};
use crate::error::{Result, fail};
use crate::memory::Account;
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

    fn takes_kv_type(&self, kv_type: KvType) -> bool {
        check_kv_type(kv_type).is_ok()
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

    fn estimate(
        &self,
        _index: usize,
        network: &Network,
        load: &LoadOptions,
        runner: &RunnerOptions,
    ) -> Result<Estimate> {
        check_kv_type(runner.kv_type)?;
        estimate(network, threads(load)?, runner)
    }

    fn load(
        &self,
        _index: usize,
        network: &Network,
        options: &LoadOptions,
        progress: &mut Progress<'_>,
    ) -> Result<Arc<dyn Weights>> {
        let pool = PoolOptions {
            threads: threads(options)?,
            placement: options.placement,
            never_wait: options.never_wait,
            for_device: network.is_apart(),
        };
        let sessions = Account::new(options.session_memory_limit, "session_memory_limit");
        Ok(CpuWeights::load_with(
            Isa::detect(),
            network,
            pool,
            sessions,
            progress,
        )?)
    }
}

/// Threads of the pool. Errors: `InvalidArgument` for options that are nothing to a CPU.
fn threads(options: &LoadOptions) -> Result<usize> {
    if options.cuda_context != 0 {
        fail!(
            InvalidArgument,
            "ember_cuda_model_options has a context, but the device is a CPU"
        );
    }
    Ok(match options.threads {
        0 => host::physical_cores(),
        n => n,
    })
}
