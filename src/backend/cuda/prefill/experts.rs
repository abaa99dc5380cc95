//! The experts of a chunk: its tokens sorted by expert, and each expert's multiplied together.

use super::super::args;
use super::super::experts::{ExpertsPlan, route_args, sort_args};
use super::super::matrix::Matrix;
use super::super::plan::{LayerPlan, MlpPlan};
use super::Enqueue;
use crate::error::Result;

impl Enqueue<'_> {
    /// A mixture of experts, whose output is added to `base` and goes to the residual stream.
    ///
    /// # Safety
    /// As `PrefillBuffers::enqueue`.
    pub(super) unsafe fn experts(
        &self,
        layer: &LayerPlan,
        e: &ExpertsPlan,
        base: u64,
    ) -> Result<()> {
        let (b, at, hidden) = (self.buffers, self.buffers.at, self.plan.hidden);
        let mine = &at.experts;
        let pairs = self.rows * e.n_used;
        let (kernels, stream) = (self.kernels, self.stream);
        let sort = sort_args(e, mine, pairs);
        let first = args::ExpertMatmul {
            x: at.x,
            x_scale: at.x_scale,
            pairs: mine.pairs,
            out: mine.inner,
            pairs_per_input: e.n_used,
            out_stride: 2 * e.n_ff,
            ..Default::default()
        };
        let inner = args::Produce {
            x: mine.inner,
            f16: mine.f16,
            f16_scale: mine.f16_scale,
            x_stride: 2 * e.n_ff,
            len: e.n_ff,
            groups: e.down.groups,
            source: args::Source::Gated as u32,
            activation: e.activation,
            ..Default::default()
        };
        let last = args::ExpertMatmul {
            x: mine.f16,
            x_scale: mine.f16_scale,
            out: mine.out,
            out_stride: hidden,
            ..Default::default()
        };
        // SAFETY: the caller's word.
        unsafe {
            self.input_with(layer.feed_forward_norm, e.router.groups, mine.input)?;
            kernels.expert_scores(stream, &e.router, mine.input, mine.scores, self.rows)?;
            kernels.route(stream, &route_args(e, mine), self.rows)?;
            kernels.expert_sort(stream, &sort)?;
            kernels.expert_tiles(stream, &sort)?;
            self.grouped(e, &e.gate, &first)?;
            let behind = args::ExpertMatmul {
                out: first.out + u64::from(e.n_ff) * 4,
                ..first
            };
            self.grouped(e, &e.up, &behind)?;
            kernels.produce(stream, &inner, pairs)?;
            self.grouped(e, &e.down, &last)?;
            if let Some(shared) = &e.shared {
                self.shared(shared)?;
            }
        }
        let combine = args::Combine {
            x: mine.out,
            slots: mine.slots,
            weights: mine.weights,
            shared: e.shared.as_ref().map_or(0, |_| mine.shared),
            base,
            out: at.h,
            scale: layer.residual_scale,
            n_used: e.n_used,
            len: hidden,
            x_stride: hidden,
            out_stride: b.h_stride,
            padding: 0,
        };
        let Some(norm) = layer.feed_forward_post_norm else {
            // SAFETY: the caller's word.
            return unsafe { kernels.expert_combine(stream, &combine, self.rows) };
        };
        let sum = args::Combine {
            base: 0,
            out: at.wide,
            out_stride: b.wide_stride,
            ..combine
        };
        let add = args::AddBranch {
            x: at.wide,
            base,
            out: at.h,
            ..self
                .plan
                .add_branch(b.wide_stride, Some(norm), layer.residual_scale)
        };
        // SAFETY: the caller's word.
        unsafe {
            kernels.expert_combine(stream, &sum, self.rows)?;
            kernels.add_branch(stream, &add, self.rows)
        }
    }

    /// Products of all slots with their experts' part of `matrix`, some experts at a time. `args`
    /// says where inputs and outputs are.
    ///
    /// # Safety
    /// As `PrefillBuffers::enqueue`.
    unsafe fn grouped(
        &self,
        e: &ExpertsPlan,
        matrix: &Matrix,
        args: &args::ExpertMatmul,
    ) -> Result<()> {
        let mine = &self.buffers.at.experts;
        let (pairs, each) = (self.rows * e.n_used, matrix.rows / e.n_experts);
        let at_once = e.experts_at_once(matrix);
        for s in &matrix.segments {
            for first in (0..e.n_experts).step_by(at_once as usize) {
                let experts = at_once.min(e.n_experts - first);
                let unpack = args::Unpack {
                    matrix: s.address,
                    out: self.buffers.at.weights,
                    ty: args::type_number(s.ty),
                    groups: matrix.groups,
                    matrix_rows: s.rows,
                    first_row: first * each,
                    rows: experts * each,
                    expert_rows: each,
                    starts: mine.starts,
                    ..Default::default()
                };
                let matmul = args::ExpertMatmul {
                    starts: mine.starts,
                    tiles: mine.tiles,
                    tile_experts: mine.tile_experts,
                    w: self.buffers.at.weights,
                    bias: matrix.bias,
                    first_expert: first,
                    end_expert: first + experts,
                    n: each,
                    k: matrix.groups * 32,
                    ..*args
                };
                let tiles = e.most_tiles(pairs, experts);
                // SAFETY: the caller's word.
                unsafe {
                    self.kernels.unpack(self.stream, &unpack)?;
                    self.kernels.expert_matmul(self.stream, &matmul, tiles)?;
                }
            }
        }
        Ok(())
    }

    /// The shared expert, from the input that is there.
    ///
    /// # Safety
    /// As `PrefillBuffers::enqueue`.
    unsafe fn shared(&self, mlp: &MlpPlan) -> Result<()> {
        let at = self.buffers.at;
        // SAFETY: the caller's word.
        unsafe {
            self.inner(mlp)?;
            self.matmul(&mlp.down, at.experts.shared, self.plan.hidden, 0)
        }
    }
}
