//! A network resident on a GPU.

use super::batch::Batch;
use super::driver::{Buffer, Context};
use super::kernels::Kernels;
use super::plan::Plan;
use super::prefill::PrefillBuffers;
use super::runner::CudaRunner;
use super::upload::upload;
use crate::backend::{
    KvType, LoadOptions, MaskSource, Progress, Runner, RunnerOptions, Step, Weights, at_index,
};
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
    /// One per type of KV cache, made when first needed.
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
        options: &LoadOptions,
        progress: &mut Progress<'_>,
    ) -> Result<Arc<CudaWeights>> {
        let context = match options.cuda_context {
            0 => Context::new(index)?,
            raw => Context::shared(index, raw)?,
        };
        CudaWeights::load_into(&context, network, progress)
    }

    /// The same with an opened device.
    pub fn load_into(
        context: &Arc<Context>,
        network: &Network,
        progress: &mut Progress<'_>,
    ) -> Result<Arc<CudaWeights>> {
        let bytes = Plan::new(network, 0)?.0.bytes;
        let kernels = Kernels::load(context)?;
        let memory = Buffer::new(context, bytes as usize, "weights")?;
        let (plan, jobs) = Plan::new(network, memory.address())?;
        let prefill = PrefillBuffers::new(context, &plan)?;
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

    fn step_batch_masked(
        &self,
        runners: &mut [&mut dyn Runner],
        steps: &[Step],
        masks: &mut [Option<&mut MaskSource<'_>>],
        interrupts: &[&AtomicBool],
        tokens: &mut [u32],
    ) -> Result<()> {
        let mut mine = Vec::with_capacity(runners.len());
        for (i, runner) in runners.iter_mut().enumerate() {
            let runner = runner.as_any().and_then(|r| r.downcast_mut::<CudaRunner>());
            match runner {
                Some(r) if std::ptr::eq(Arc::as_ptr(r.weights()), self) => mine.push(r),
                _ => fail!(InvalidArgument, "session at index {i}: of another model"),
            }
        }
        let mut chosen = vec![0u32; mine.len()];
        // Sessions with caches of one type go together; those that only choose again go alone.
        let mut groups: Vec<(Option<KvType>, Vec<usize>)> = Vec::new();
        for (i, runner) in mine.iter().enumerate() {
            let kv_type = steps[i].token.map(|_| runner.kv_type());
            match groups.iter_mut().find(|(t, _)| *t == kv_type) {
                Some((_, members)) => members.push(i),
                None => groups.push((kv_type, vec![i])),
            }
        }
        let lengths: Vec<usize> = mine.iter().map(|r| r.len()).collect();
        let result = groups.iter().try_for_each(|(kv_type, members)| {
            let Some(kv_type) = *kv_type else {
                for &i in members {
                    let mask = masks.get_mut(i).and_then(|m| m.as_deref_mut());
                    chosen[i] = mine[i]
                        .step_masked(&steps[i], mask, interrupts[i])
                        .map_err(|e| at_index(i, e))?;
                }
                return Ok(());
            };
            let mut batches = self.batches.lock().unwrap_or_else(|e| e.into_inner());
            let at = match batches.iter().position(|b| b.serves(kv_type)) {
                Some(at) => at,
                None => {
                    batches.push(Batch::new(self, kv_type)?);
                    batches.len() - 1
                }
            };
            batches[at].step(
                self,
                &mut mine,
                members,
                steps,
                masks,
                interrupts,
                &mut chosen,
            )
        });
        if let Err(e) = result {
            // Those that had moved go back.
            for (runner, len) in mine.iter_mut().zip(lengths) {
                if runner.len() > len {
                    runner.truncate(len);
                }
            }
            return Err(e);
        }
        tokens.copy_from_slice(&chosen);
        Ok(())
    }

    fn resident_bytes(&self) -> u64 {
        self.plan.bytes
    }

    fn kv_bytes_per_token(&self, kv_type: KvType) -> u64 {
        self.plan.kv(kv_type).map_or(0, |kv| kv.bytes_per_token())
    }

    fn kv_bytes(&self, kv_type: KvType, context: usize) -> u64 {
        self.plan.kv(kv_type).map_or(0, |kv| kv.all_bytes(context))
    }
}
