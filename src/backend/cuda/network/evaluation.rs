//! What it takes to evaluate tokens, but for memory between the kernels.

use super::hidden::Keeps;
use super::host_layers::Guests;
use super::kv_plan::KvPlan;
use super::plan::Plan;
use super::ranks::{Job, Link};
use super::rows::{AllRows, Rows};
use super::walk::{Addition, ExpertSum};
use crate::backend::cuda::driver::Stream;
use crate::backend::cuda::launch::adapters::Adapters;
use crate::backend::cuda::launch::args;
use crate::backend::cuda::launch::experts::ExpertsPlan;
use crate::backend::cuda::launch::kernels::Kernels;
use crate::backend::cuda::launch::matrix::Matrix;
use crate::error::Result;
use std::cell::Cell;

/// A network, the sessions whose tokens it evaluates, and where the work is enqueued.
///
/// Whoever enqueues work with it promises, until that work is done:
///
/// - *weights*: the allocation that `plan` was made for is valid, and holds what the plan says.
/// - *sessions*: the table at `sessions` is valid, and has the addresses of as many sessions as take
///   part. Their states are valid, and their caches are laid out as `kv` says and backed up to the
///   positions that are evaluated. No other work uses them.
/// - *workspace*: the memory between the kernels is valid, and no other work uses it.
#[derive(Clone, Copy)]
pub struct Evaluation<'a> {
    /// The kernels of the device that everything is on.
    pub kernels: &'a Kernels,
    /// The network.
    pub plan: &'a Plan,
    /// The layout of the sessions' caches.
    pub kv: &'a KvPlan,
    /// Where the work goes.
    pub stream: &'a Stream,
    /// The address of a table of addresses of [`args::Session`]s.
    pub sessions: u64,
    /// What may be added to products.
    pub adapters: Adapters,
    /// Where other ranks have shares of the same layers.
    pub link: Option<&'a Link>,
    /// Which hidden states go to the sessions' rings, of those that have one.
    pub keeps: Keeps,
    /// Layers of the host's that can come to the device.
    pub guests: Option<&'a Guests>,
}

impl Evaluation<'_> {
    /// Whether adapters may add to the products of a matrix.
    pub(super) fn adapts(&self, matrix: &Matrix) -> bool {
        !matches!(self.adapters, Adapters::None) && matrix.adapted.is_some()
    }
}

/// The outputs of a layer's experts.
#[derive(Clone, Copy)]
pub(super) struct ExpertOutputs {
    /// f32, `[pairs][width]`.
    pub x: u64,
    /// u32, `[pairs]`: the row of `x` that a pair has; 0 where that is its number.
    pub slots: u64,
    /// f32, `[rows][n_used + 1]`.
    pub weights: u64,
}

impl Evaluation<'_> {
    /// Begins a launch, before anything else of it is enqueued. Not while a graph is captured.
    pub(in crate::backend::cuda) fn begin(&self) -> Result<()> {
        match self.link {
            Some(link) => link.launch(self.stream),
            None => Ok(()),
        }
    }

    /// [`Operations::sum_ranks`](super::walk::Operations::sum_ranks) for `count` rows. `met` counts the meetings of the launch.
    ///
    /// # Safety
    /// *workspace*, of which `at` and the rows name parts; all ranks enqueue the same.
    pub(super) unsafe fn sum_ranks(
        &self,
        at: &AllRows,
        (from, base, to): (Rows, Option<Rows>, Rows),
        count: u32,
        met: &Cell<u32>,
    ) -> Result<()> {
        let Some(link) = self.link else {
            return Ok(());
        };
        let job = Job {
            from: at.of(from),
            base: base.map(|base| at.of(base)),
            to: at.of(to),
            rows: count,
            len: self.plan.hidden,
        };
        let with = (self.kernels, self.stream);
        // SAFETY: by contract, addresses of the *workspace*.
        unsafe { link.sum(with, met.replace(met.get() + 1), &job) }
    }

    /// [`Operations::add`](super::walk::Operations::add) for `count` rows.
    ///
    /// # Safety
    /// *weights*, *workspace*, of which `at` and `addition` name parts.
    pub(in crate::backend::cuda) unsafe fn add(
        &self,
        at: &AllRows,
        addition: &Addition,
        count: u32,
    ) -> Result<()> {
        let add = args::ResidualAdd {
            x: at.of(addition.from).address,
            base: addition.base.map_or(0, |base| at.of(base).address),
            out: at.of(addition.to).address,
            ..self
                .plan
                .residual_add(at.of(addition.from).stride, addition.norm, addition.scale)
        };
        let add = args::ResidualAdd {
            out_scale: addition.out_scale,
            ..add
        };
        // SAFETY: by contract, addresses of the *weights* and the *workspace*.
        unsafe { self.kernels.residual_add(self.stream, &add, count) }
    }

    /// [`Operations::combine`](super::walk::Operations::combine) for `count` rows.
    ///
    /// # Safety
    /// *workspace*, of which `at` and `outputs` name parts.
    pub(super) unsafe fn combine(
        &self,
        at: &AllRows,
        outputs: &ExpertOutputs,
        e: &ExpertsPlan,
        sum: &ExpertSum,
        count: u32,
    ) -> Result<()> {
        let to = at.of(sum.to);
        let combine = args::Combine {
            x: outputs.x,
            slots: outputs.slots,
            weights: outputs.weights,
            shared: match e.shared {
                Some(_) => at.shared_expert.address,
                None => 0,
            },
            bias: e.sum_bias,
            base: sum.base.map_or(0, |base| at.of(base).address),
            out: to.address,
            scale: sum.scale,
            n_used: e.n_used,
            len: e.width(self.plan.hidden),
            x_stride: e.width(self.plan.hidden),
            out_stride: to.stride,
            padding: 0,
        };
        // SAFETY: by contract, addresses of the *workspace*.
        unsafe { self.kernels.expert_combine(self.stream, &combine, count) }
    }
}
