//! The experts of a chunk: its tokens sorted by expert, and each expert's multiplied together.

use super::ChunkOperations;
use crate::backend::cuda::launch::adapters::AdaptedApart;
use crate::backend::cuda::launch::args;
use crate::backend::cuda::launch::experts::{ExpertsPlan, route_args, sort_args, weigh_args};
use crate::backend::cuda::launch::feed_forward::{CLAMPED_SWIGLU, SILU};
use crate::backend::cuda::launch::matrix::Matrix;
use crate::backend::cuda::network::evaluation::ExpertOutputs;
use crate::backend::cuda::network::walk::ExpertSum;
use crate::error::{Result, fail};

impl ChunkOperations<'_> {
    fn pairs(&self, e: &ExpertsPlan) -> u32 {
        self.rows * e.n_used
    }

    /// The input of the router, the experts and the shared one, the experts of each row, and the rows of each
    /// expert.
    pub(super) fn choose_experts(&self, norm: Option<args::Norm>, e: &ExpertsPlan) -> Result<()> {
        let mine = &self.at().experts;
        let groups = e.router.groups();
        self.input(e.router_norm.or(norm), groups, mine.input)?;
        let (choice, rows) = (&mine.choice, self.rows);
        let (kernels, stream) = (self.eval.kernels, self.eval.stream);
        let slots = kernels.expert_slots();
        let sort = sort_args(e, choice, &mine.sorted, self.pairs(e), slots);
        // SAFETY: addresses of the *weights* and the *workspace*, which `self` promises.
        unsafe {
            kernels.router_rows(stream, &e.router, mine.input, choice.scores, rows)?;
            let of = (mine.input, choice.scores);
            self.eval.adapt_scores(e, of, rows, true)?;
            kernels.sparse_mixer(stream, e, choice, rows)?;
            if e.router_norm.is_some() {
                self.input(norm, groups, 0)?;
            }
            kernels.route(stream, &route_args(e, choice), rows)?;
            kernels.expert_sort(stream, &sort)?;
            kernels.expert_tiles(stream, &sort)
        }
    }

    /// Whether the first products are one, which lets the ups through their gates: by warpgroups, of records of one type, for
    /// SiLU and its clamped form.
    fn gates_within(&self, e: &ExpertsPlan) -> bool {
        let ty = |m: &Matrix| m.segments.first().map(|s| s.ty);
        let (Some(gate), up) = (&e.gate, ty(&e.up)) else {
            return false;
        };
        self.eval.kernels.has_wgmma()
            && !e.weighs_inputs
            && !self.eval.adapts_experts(e)
            && matches!(e.activation.kind, SILU | CLAMPED_SWIGLU)
            && ty(gate) == up
            && up.is_some_and(|ty| !ty.is_float())
    }

    pub(super) fn gates_and_ups(&self, e: &ExpertsPlan) -> Result<()> {
        self.first_products(e)?;
        if !e.weighs_inputs {
            return Ok(());
        }
        let mine = &self.at().experts;
        let weigh = weigh_args(e, &mine.choice, mine.inner, mine.sorted.pairs);
        let (kernels, stream) = (self.eval.kernels, self.eval.stream);
        // SAFETY: addresses of the *workspace*, which `self` promises.
        unsafe { kernels.weigh_inner(stream, &weigh, self.pairs(e)) }
    }

    fn first_products(&self, e: &ExpertsPlan) -> Result<()> {
        let at = self.at();
        if let Some(width) = e.own_width {
            self.input_of(at.rows.wide, width, &e.up)?;
        }
        let first = args::ExpertMatmul {
            x: at.x,
            x_scale: at.x_scale,
            pairs: at.experts.sorted.pairs,
            out: at.experts.inner,
            pairs_per_input: e.n_used,
            out_stride: e.inner_width(),
            ..Default::default()
        };
        let [of_gate, of_up] = [&e.adapted.gate, &e.adapted.up];
        let Some(gate) = &e.gate else {
            self.grouped(e, &[&e.up], &first)?;
            return self.adapt_slots(e, (&e.up, of_up), &first);
        };
        if self.gates_within(e) {
            let gated = args::ExpertMatmul {
                out_stride: e.n_ff,
                ..first
            };
            return self.grouped(e, &[gate, &e.up], &gated);
        }
        let second = args::ExpertMatmul {
            out: first.out + u64::from(e.n_ff) * 4,
            ..first
        };
        self.grouped(e, &[gate], &first)?;
        self.adapt_slots(e, (gate, of_gate), &first)?;
        self.grouped(e, &[&e.up], &second)?;
        self.adapt_slots(e, (&e.up, of_up), &second)
    }

    /// Adds what adapters have for the products of all slots.
    fn adapt_slots(
        &self,
        e: &ExpertsPlan,
        (matrix, adapted): (&Matrix, &Option<AdaptedApart>),
        product: &args::ExpertMatmul,
    ) -> Result<()> {
        let mine = &self.at().experts;
        let args = args::AdaptEach {
            f16: product.x,
            f16_scale: product.x_scale,
            groups: matrix.groups,
            chosen: mine.choice.chosen,
            slots: mine.sorted.pairs,
            out: product.out,
            out_stride: product.out_stride,
            out_scale: 1.0,
            per_row: e.n_used,
            // Inputs of rows go by the pairs.
            of_slots: u32::from(product.pairs == 0),
            one_session: 1,
            ..Default::default()
        };
        // SAFETY: addresses of the *sessions* and the *workspace*, which `self` promises.
        unsafe { self.eval.adapt_each(adapted, &args, self.pairs(e)) }
    }

    pub(super) fn expert_outputs(&self, e: &ExpertsPlan) -> Result<()> {
        let mine = &self.at().experts;
        let (x_stride, source) = match self.gates_within(e) {
            true => (e.n_ff, args::Source::Copy),
            false => (e.inner_width(), e.source()),
        };
        let inner = args::QuantizeInput {
            x: mine.inner,
            f16: mine.f16,
            f16_scale: mine.f16_scale,
            x_stride,
            len: e.n_ff,
            groups: e.down.groups,
            source: source as u32,
            activation: e.activation,
            ..Default::default()
        };
        let (kernels, stream) = (self.eval.kernels, self.eval.stream);
        // SAFETY: addresses of the *workspace*, which `self` promises.
        unsafe { kernels.quantize_input(stream, &inner, self.pairs(e))? };
        let down = args::ExpertMatmul {
            x: mine.f16,
            x_scale: mine.f16_scale,
            out: mine.inner,
            pairs_per_input: 1,
            out_stride: e.width(self.eval.plan.hidden),
            ..Default::default()
        };
        self.grouped(e, &[&e.down], &down)?;
        self.adapt_slots(e, (&e.down, &e.adapted.down), &down)
    }

    pub(super) fn sum_experts(&self, e: &ExpertsPlan, sum: &ExpertSum) -> Result<()> {
        let at = self.at();
        let outputs = ExpertOutputs {
            x: at.experts.inner,
            slots: at.experts.sorted.slots,
            weights: at.experts.choice.weights,
        };
        // SAFETY: *workspace*, which `self` promises.
        unsafe { self.eval.combine(&at.rows, &outputs, e, sum, self.rows) }
    }

    /// Products of all slots with their experts' part of a matrix, which may be brought to f16 first, some experts at a time; or with
    /// the records of a gate and of what it lets through. `args` says where inputs and outputs are, all in the *workspace*.
    fn grouped(
        &self,
        e: &ExpertsPlan,
        matrices: &[&Matrix],
        args: &args::ExpertMatmul,
    ) -> Result<()> {
        let (at, pairs) = (self.at(), self.pairs(e));
        let (kernels, stream) = (self.eval.kernels, self.eval.stream);
        let matrix = matrices[0];
        let each = matrix.rows / e.n_experts;
        let mut all = args::ExpertMatmul {
            tiles: at.experts.sorted.tiles,
            places: at.experts.sorted.places,
            end_expert: e.n_experts,
            n: each,
            k: matrix.groups * 32,
            n_experts: e.n_experts,
            gated: matrices.len() as u32 - 1,
            activation: e.activation,
            ..*args
        };
        for (i, matrix) in matrices.iter().enumerate() {
            let [segment] = &matrix.segments[..] else {
                fail!(Internal, "experts of {} types", matrix.segments.len());
            };
            (all.w[i], all.bias[i]) = (segment.address, matrix.bias);
        }
        let (s, slots) = (&matrix.segments[0], kernels.expert_slots());
        if !s.ty.is_float() && (kernels.has_wgmma() || e.reads_records(pairs)) {
            let tiles = e.most_tiles(pairs, e.n_experts, slots);
            // SAFETY: addresses of the *weights* and the *workspace*, which `self` promises.
            return unsafe { kernels.expert_matmul_records(stream, s.ty, &all, tiles) };
        }
        let at_once = e.experts_at_once(matrix);
        for first in (0..e.n_experts).step_by(at_once as usize) {
            let experts = at_once.min(e.n_experts - first);
            let unpack = args::Unpack {
                matrix: s.address,
                out: at.weights,
                ty: s.ty.number(),
                groups: matrix.groups,
                matrix_rows: s.rows,
                first_row: first * each,
                rows: experts * each,
                expert_rows: each,
                starts: at.experts.sorted.starts,
                ..Default::default()
            };
            let matmul = args::ExpertMatmul {
                w: [at.weights, 0],
                first_expert: first,
                end_expert: first + experts,
                ..all
            };
            let tiles = e.most_tiles(pairs, experts, slots);
            // SAFETY: addresses of the *weights* and the *workspace*, which `self` promises.
            unsafe {
                kernels.unpack(stream, &unpack)?;
                kernels.expert_matmul(stream, &matmul, tiles)?;
            }
        }
        Ok(())
    }
}
