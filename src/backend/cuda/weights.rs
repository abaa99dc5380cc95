//! A network resident on a GPU.

use super::batch::Batch;
use super::driver::{Buffer, Context};
use super::kernels::Kernels;
use super::plan::Plan;
use super::prefill::PrefillBuffers;
use super::runner::CudaRunner;
use super::upload::upload;
use crate::backend::{KvType, Progress, Runner, RunnerOptions, Step, Weights, one_by_one};
use crate::error::{Result, fail};
use crate::model::Network;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};

/// Weights, kernels and the shared workspace of a model on one device.
pub struct CudaWeights {
    kernels: Kernels,
    plan: Plan,
    _memory: Buffer,
    prefill: Mutex<PrefillBuffers>,
    /// One per layout of the KV cache, made when first needed.
    batches: Mutex<Vec<Batch>>,
}

impl CudaWeights {
    /// Brings a network onto device `index`.
    ///
    /// Errors: `Unsupported` for what the kernels cannot do; `OutOfMemory` with the bytes wanted and
    /// free; `NoDevice`; those of the device; whatever `progress` fails with.
    pub fn load(
        index: usize,
        network: &Network,
        progress: &mut Progress<'_>,
    ) -> Result<Arc<CudaWeights>> {
        let context = Context::new(index)?;
        CudaWeights::load_into(&context, network, progress)
    }

    /// The same with an opened device.
    pub fn load_into(
        context: &Arc<Context>,
        network: &Network,
        progress: &mut Progress<'_>,
    ) -> Result<Arc<CudaWeights>> {
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
            batches: Mutex::new(Vec::new()),
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

    fn step_batch(
        &self,
        runners: &mut [&mut dyn Runner],
        steps: &[Step],
        interrupts: &[&AtomicBool],
        tokens: &mut [u32],
    ) -> Result<()> {
        // A step without a token only chooses again, which is nothing to share.
        if steps.iter().any(|s| s.token.is_none()) {
            return one_by_one(runners, steps, interrupts, tokens);
        }
        let mut mine = Vec::with_capacity(runners.len());
        for runner in runners.iter_mut() {
            let runner = runner.as_any().and_then(|r| r.downcast_mut::<CudaRunner>());
            match runner {
                Some(r) if std::ptr::eq(Arc::as_ptr(r.weights()), self) => mine.push(r),
                _ => fail!(InvalidArgument, "a session of another model in the batch"),
            }
        }
        let Some(first) = mine.first() else {
            fail!(InvalidArgument, "an empty batch");
        };
        let layout = *first.layout();
        if mine.iter().any(|r| *r.layout() != layout) {
            fail!(
                InvalidArgument,
                "sessions with KV caches of different types in one batch"
            );
        }
        let mut batches = self.batches.lock().unwrap_or_else(|e| e.into_inner());
        let at = match batches.iter().position(|b| b.serves(&layout)) {
            Some(at) => at,
            None => {
                batches.push(Batch::new(self, &layout)?);
                batches.len() - 1
            }
        };
        batches[at].step(self, &mut mine, steps, interrupts, tokens)
    }

    fn resident_bytes(&self) -> u64 {
        self.plan.bytes
    }

    fn kv_bytes_per_token(&self, kv_type: KvType) -> u64 {
        self.plan
            .kv_layout(kv_type)
            .map_or(0, |l| l.tile_bytes / u64::from(l.tile))
    }
}
