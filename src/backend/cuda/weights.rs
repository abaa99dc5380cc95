//! A network resident on a GPU.

use super::driver::{Buffer, Context};
use super::kernels::Kernels;
use super::plan::Plan;
use super::prefill::PrefillBuffers;
use super::runner::CudaRunner;
use super::upload::upload;
use crate::backend::{KvType, Progress, Runner, RunnerOptions, Weights};
use crate::error::Result;
use crate::model::Network;
use std::sync::{Arc, Mutex, MutexGuard};

/// Weights, kernels and the shared workspace of a model on one device.
pub struct CudaWeights {
    kernels: Kernels,
    plan: Plan,
    _memory: Buffer,
    prefill: Mutex<PrefillBuffers>,
}

impl CudaWeights {
    /// Brings a network onto device `index`.
    ///
    /// Errors: `Unsupported` for what the kernels cannot do; `OutOfMemory` with the bytes wanted and
    /// free; `NoDevice`; those of the device; whatever `progress` fails with.
    pub fn load(index: usize, network: &Network, progress: &mut Progress<'_>) -> Result<Arc<CudaWeights>> {
        let context = Context::new(index)?;
        CudaWeights::load_into(&context, network, progress)
    }

    /// The same with an opened device.
    pub fn load_into(context: &Arc<Context>, network: &Network, progress: &mut Progress<'_>) -> Result<Arc<CudaWeights>> {
        let (mut plan, mut jobs) = Plan::new(network)?;
        let kernels = Kernels::load(context)?;
        let memory = Buffer::new(context, plan.bytes as usize, "weights")?;
        let prefill = PrefillBuffers::new(context, &plan)?;
        plan.place(&mut jobs, memory.address());
        // Vectors keep their offsets.
        upload(&kernels, &jobs, &memory, progress)?;
        Ok(Arc::new(CudaWeights {
            kernels,
            plan,
            _memory: memory,
            prefill: Mutex::new(prefill),
        }))
    }

    /// The kernels.
    pub fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// The context that everything lives in.
    pub fn context(&self) -> &Arc<Context> {
        self.kernels.context()
    }

    /// What is where.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The prefill's workspace, for one prefill at a time.
    pub fn prefill(&self) -> MutexGuard<'_, PrefillBuffers> {
        // It holds addresses only, so a panic cannot have left it half-changed.
        self.prefill.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Weights for CudaWeights {
    fn create_runner(self: Arc<Self>, options: &RunnerOptions) -> Result<Box<dyn Runner>> {
        Ok(Box::new(CudaRunner::new(self, options)?))
    }

    fn resident_bytes(&self) -> u64 {
        self.plan.bytes
    }

    fn kv_bytes_per_token(&self, kv_type: KvType) -> u64 {
        self.plan.kv_layout(kv_type).map_or(0, |l| l.tile_bytes / u64::from(l.tile))
    }
}
