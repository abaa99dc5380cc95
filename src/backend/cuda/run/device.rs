//! The GPUs of this machine as the engine's device list shows them.

use super::sampling::SamplingState;
use super::weights::CudaWeights;
use crate::backend::cuda::driver::{self, Context};
use crate::backend::cuda::network::hidden::StateRing;
use crate::backend::cuda::network::host_layers::Guests;
use crate::backend::cuda::network::kv_plan::KvPlan;
use crate::backend::cuda::network::plan::Plan;
use crate::backend::cuda::network::prefill::PrefillBuffers;
use crate::backend::cuda::network::ranks::{Cut, Link};
use crate::backend::cuda::network::step::StepBuffers;
use crate::backend::group::Meeting;
use crate::backend::{
    Backend, DeviceInfo, DeviceKind, Estimate, KvType, LoadOptions, MAX_BATCH, Progress,
    RankedWeights, RunnerOptions, Weights,
};
use crate::error::Result;
use crate::model::{Network, Rank};
use std::sync::{Arc, OnceLock};

/// Oldest architecture that the kernels are compiled for.
const OLDEST: (i32, i32) = (7, 5);

/// Memory of weights and caches is taken in units of as many bytes, by all devices in use.
const PAGE_BYTES: u64 = 2 << 20;

/// NVIDIA GPUs. Where there is no driver, one device that is not usable tells why.
pub struct CudaBackend;

/// The one value of [`CudaBackend`].
pub static BACKEND: CudaBackend = CudaBackend;

fn count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| driver::device_count().unwrap_or(0))
}

fn unusable(reason: String) -> DeviceInfo {
    DeviceInfo {
        kind: DeviceKind::Cuda,
        usable: false,
        reason,
        name: "NVIDIA GPU".into(),
        driver: String::new(),
        isa: String::new(),
        cores: 0,
        memory_total: 0,
        memory_free: 0,
    }
}

fn describe(index: usize) -> Result<DeviceInfo> {
    driver::init()?;
    let p = driver::properties(index)?;
    let (major, minor) = p.capability;
    let usable = p.capability >= OLDEST;
    let reason = if usable {
        String::new()
    } else {
        format!("its compute capability is {major}.{minor}; 7.5 is needed")
    };
    // Opening the device only to ask for its free memory would cost hundreds of megabytes, so this is
    // known only where it is open already.
    let memory_free = Context::free_if_open(index).unwrap_or(0);
    Ok(DeviceInfo {
        kind: DeviceKind::Cuda,
        usable,
        reason,
        name: p.name,
        driver: format!("CUDA {}.{}", p.driver / 1000, p.driver % 1000 / 10),
        isa: format!("sm_{major}{minor}"),
        cores: p.multiprocessors,
        memory_total: p.memory,
        memory_free,
    })
}

/// What a network would take, or the head of one.
fn estimate_beside(
    index: usize,
    of: Option<&Plan>,
    network: &Network,
    (load, runner): (&LoadOptions, &RunnerOptions),
) -> Result<Estimate> {
    let (mut plan, jobs) = Plan::beside(of, network, 0)?;
    let has_wgmma = driver::properties(index).map_or(true, |p| p.has_wgmma());
    plan.f16_batches = load.f16_batches && of.is_none() && has_wgmma;
    let kv = plan.kv(runner.kv_type)?;
    // Where there is no GPU to ask, that of an H200.
    let multiprocessors = driver::properties(index).map_or(132, |p| p.multiprocessors);
    if !plan.prefills() {
        // It has no sessions.
        return Ok(Estimate {
            weights_bytes: plan.bytes.next_multiple_of(PAGE_BYTES),
            ..Estimate::default()
        });
    }
    Ok(Estimate {
        weights_bytes: plan.bytes.next_multiple_of(PAGE_BYTES),
        kv_bytes_per_token: kv.bytes_per_token(),
        kv_bytes: kv.all_bytes(runner.context).saturating_add(
            plan.fixed
                .session_bytes(plan.logits_len() as usize, runner.marks()),
        ),
        // Memory by which ranks meet is counted by `estimate_rank`.
        model_workspace_bytes: PrefillBuffers::bytes(&plan)
                + Guests::bytes(&jobs.guests)
                + StepBuffers::bytes(&plan, MAX_BATCH as u32, multiprocessors)
                // The table of a batch.
                + 2 * 8 * MAX_BATCH as u64,
        session_workspace_bytes: StepBuffers::bytes(&plan, 1, multiprocessors)
            + SamplingState::bytes(plan.n_vocab as usize, runner.context),
    })
}

impl Backend for CudaBackend {
    fn device_count(&self) -> usize {
        // Without a device, one entry that says why.
        count().max(1)
    }

    fn takes_kv_type(&self, kv_type: KvType) -> bool {
        KvPlan::new(&[], kv_type).is_ok()
    }

    fn device_info(&self, index: usize) -> DeviceInfo {
        if count() == 0 {
            return unusable(match driver::device_count() {
                Ok(_) => "the NVIDIA driver shows no GPU".into(),
                Err(e) => e.message,
            });
        }
        describe(index).unwrap_or_else(|e| unusable(e.message))
    }

    fn estimate(
        &self,
        index: usize,
        network: &Network,
        load: &LoadOptions,
        runner: &RunnerOptions,
    ) -> Result<Estimate> {
        estimate_beside(index, None, network, (load, runner))
    }

    fn estimate_predictor(
        &self,
        index: usize,
        (network, head): (&Network, &Network),
        states: usize,
        options: (&LoadOptions, &RunnerOptions),
    ) -> Result<Estimate> {
        let (of, _) = Plan::new(network, 0)?;
        let e = estimate_beside(index, Some(&of), head, options)?;
        let kept = self.states_bytes(network.hidden, states) + self.states_bytes(network.hidden, 1);
        Ok(Estimate {
            session_workspace_bytes: e.session_workspace_bytes.saturating_add(kept),
            ..e
        })
    }

    fn states_bytes(&self, width: usize, rows: usize) -> u64 {
        StateRing::bytes(width, rows) as u64
    }

    fn load(
        &self,
        index: usize,
        network: &Network,
        options: &LoadOptions,
        progress: &mut Progress<'_>,
    ) -> Result<Arc<dyn Weights>> {
        Ok(CudaWeights::load(index, network, options, progress)?)
    }

    fn estimate_rank(
        &self,
        index: usize,
        network: &Network,
        rank: Rank,
        (load, runner): (&LoadOptions, &RunnerOptions),
    ) -> Result<Estimate> {
        let mut estimate = self.estimate(index, &network.rank(rank)?, load, runner)?;
        estimate.model_workspace_bytes += Link::bytes(&Cut::of(network, rank));
        Ok(estimate)
    }

    fn load_ranks(
        &self,
        indices: &[usize],
        network: &Network,
        options: &LoadOptions,
        progress: &mut Progress<'_>,
    ) -> Result<RankedWeights> {
        let (ranks, group) = CudaWeights::load_ranks(indices, network, options, progress)?;
        let ranks = ranks.into_iter().map(|weights| weights as Arc<dyn Weights>);
        Ok((ranks.collect(), group))
    }

    fn load_rank(
        &self,
        index: usize,
        network: &Network,
        (meeting, options): (&Arc<Meeting>, &LoadOptions),
        progress: &mut Progress<'_>,
    ) -> Result<RankedWeights> {
        let both = (meeting, options);
        let (ranks, group) = CudaWeights::load_rank(index, network, both, progress)?;
        let ranks = ranks.into_iter().map(|weights| weights as Arc<dyn Weights>);
        Ok((ranks.collect(), group))
    }
}
