//! The experts of a step: each session's token goes its own ways, all in one graph.
//!
//! There are three ways to do them, with the same results. One session's products choose the experts, make their input and add up for themselves.
//! Those of several take the pairs of an expert together. Where neither kernel takes the matrices, or adapters may add to
//! these, a block reads the rows of one pair's expert.

use super::StepOperations;
use crate::backend::Work;
use crate::backend::cuda::launch::adapters::{AdaptedApart, Adapters};
use crate::backend::cuda::launch::args;
use crate::backend::cuda::launch::experts::{
    Beside, DownSum, ExpertInner, ExpertInput, ExpertPairs, ExpertsPlan, OneRow, PairInput,
    route_args, sort_args, weigh_args,
};
use crate::backend::cuda::launch::matrix::{Forms, Inputs, Matrix};
use crate::backend::cuda::network::evaluation::ExpertOutputs;
use crate::backend::cuda::network::walk::{ExpertSum, Operations};
use crate::error::Result;

/// From so many sessions on, pairs of a block's own are sorted, so that weights which several of them need come
/// from memory once.
const SORT_FROM: u32 = 4;

impl StepOperations<'_> {
    fn pairs(&self, e: &ExpertsPlan) -> u32 {
        self.batch * e.n_used
    }

    /// The row of a single session, if the kernels for one take these experts.
    pub(super) fn one_row(&self, norm: Option<args::Norm>, e: &ExpertsPlan) -> Option<OneRow> {
        let row = OneRow {
            x: self.rows().residual.address,
            norm,
            len: self.eval.plan.hidden,
        };
        // With inputs of their own, experts are those of a row among others.
        let alone = self.batch == 1
            && e.own_width.is_none()
            && !e.weighs_inputs
            && !self.eval.adapts_experts(e);
        let takes = alone && e.sum_bias == 0 && self.eval.kernels.takes_one_row(e, &row);
        takes.then_some(row)
    }

    /// What of the shared expert its kernels make beside the others.
    pub(super) fn shared_beside(&self, norm: Option<args::Norm>, e: &ExpertsPlan) -> Beside {
        let Some(shared) = &e.shared else {
            return Beside::Nothing;
        };
        let mut matrices = [&shared.up, &shared.down].into_iter();
        let adapts = !matches!(self.eval.adapters, Adapters::None)
            && matrices.any(|matrix| matrix.adapted.is_some());
        match self.one_row(norm, e) {
            Some(_) if !adapts => self.eval.kernels.beside(e),
            _ => Beside::Nothing,
        }
    }

    /// Whether the kernels that take the pairs of an expert together take these.
    fn takes_pairs(&self, e: &ExpertsPlan) -> bool {
        (self.batch > 1 || e.own_width.is_some())
            && !e.weighs_inputs
            && !self.eval.adapts_experts(e)
            && self.eval.kernels.takes_pairs(e, self.pairs(e))
    }

    fn sorts(&self) -> bool {
        self.batch >= SORT_FROM
    }

    /// The input of the router, the experts and the shared one, and the experts of each row.
    pub(super) fn choose_experts(&self, norm: Option<args::Norm>, e: &ExpertsPlan) -> Result<()> {
        let at = self.buffers.at();
        let (kernels, stream) = (self.eval.kernels, self.eval.stream);
        let choice = &at.experts.choice;
        if let (Some(own), Some(row)) = (e.router_norm, self.one_row(norm, e)) {
            let row = OneRow {
                norm: Some(own),
                ..row
            };
            // SAFETY: addresses of the *weights* and the *workspace*, which `self` promises.
            unsafe {
                kernels.router_row(stream, &e.router, &row, choice.scores, at.inputs)?;
                kernels.sparse_mixer(stream, e, choice, 1)?;
            }
            self.mark(Work::GateUp, 0)?;
            self.input(norm, e.router.groups(), e.up.forms())?;
            return Ok(());
        }
        if let Some(row) = self.one_row(norm, e) {
            if self.shared_beside(norm, e) != Beside::Nothing {
                let behind = u64::from(e.one_row_inner()) * 4;
                let to = (choice.scores, at.inputs, at.experts.inner + behind);
                // SAFETY: addresses of the *weights* and the *workspace*, which `self` promises.
                return unsafe {
                    kernels.router_shared(stream, e, &row, to)?;
                    kernels.sparse_mixer(stream, e, choice, 1)
                };
            }
            // The shared expert may need it in other forms.
            if let Some(shared) = &e.shared
                && !self.fuses_mlp(norm, shared)
            {
                self.input(norm, e.router.groups(), shared.up.forms())?;
                self.mark(Work::Norm, 0)?;
            }
            let (router, scores) = (&e.router, choice.scores);
            // SAFETY: addresses of the *weights* and the *workspace*, which `self` promises.
            return unsafe {
                kernels.router_row(stream, router, &row, scores, at.inputs)?;
                kernels.sparse_mixer(stream, e, choice, 1)
            };
        }
        let shared = e.shared.as_ref().map(|s| &s.up);
        let mut readers = e.first_matrices().into_iter().chain(shared);
        let forms = Forms {
            q8: e.own_width.is_none() && readers.any(|m| m.forms().q8),
            // The router reads f32.
            f32: true,
            f16: false,
        };
        if let Some(own) = e.router_norm {
            let only = Forms {
                q8: false,
                f32: true,
                f16: false,
            };
            self.input(Some(own), e.router.groups(), only)?;
        } else {
            self.input(norm, e.router.groups(), forms)?;
        }
        self.mark(Work::Norm, 0)?;
        let route = route_args(e, choice);
        // SAFETY: as above.
        unsafe {
            kernels.router_rows(stream, &e.router, at.inputs.f32, choice.scores, self.batch)?;
            let of = (at.inputs.f32, choice.scores);
            self.eval.adapt_scores(e, of, self.batch, false)?;
            kernels.sparse_mixer(stream, e, choice, self.batch)?;
            if e.router_norm.is_some() {
                self.input(norm, e.router.groups(), forms)?;
            }
            if self.takes_pairs(e) {
                return kernels.route_pairs(stream, &route, &at.experts.tiles, self.batch);
            }
            kernels.route(stream, &route, self.batch)?;
            if self.sorts() {
                let sorted = &at.experts.sorted;
                let sort = sort_args(e, choice, sorted, self.pairs(e), args::PAIRS_AT_ONCE);
                kernels.expert_sort(stream, &sort)?;
            }
        }
        Ok(())
    }

    /// Products of the pairs, from `input` to `out`.
    fn to_pairs(&self, e: &ExpertsPlan, input: ExpertInput, out: u64, stride: u32) -> ExpertPairs {
        let mine = &self.buffers.at().experts;
        ExpertPairs {
            input,
            chosen: mine.choice.chosen,
            order: if self.sorts() { mine.sorted.pairs } else { 0 },
            pairs: self.pairs(e),
            out,
            out_stride: stride,
        }
    }

    pub(super) fn gates_and_ups(&self, norm: Option<args::Norm>, e: &ExpertsPlan) -> Result<()> {
        let at = self.buffers.at();
        let mine = &at.experts;
        let (kernels, stream) = (self.eval.kernels, self.eval.stream);
        if self.one_row(norm, e).is_some() {
            let route = route_args(e, &mine.choice);
            // SAFETY: addresses of the *weights* and the *workspace*, which `self` promises;
            // `choose_experts` has written the input as int8.
            return unsafe { kernels.experts_up(stream, e, &route, at.inputs, mine.inner) };
        }
        let first = e.first_matrices();
        if let Some(width) = e.own_width {
            self.rounded_to(at.rows.wide, width, None, (e.up.groups, e.up.forms()))?;
        }
        if self.takes_pairs(e) {
            let input = PairInput::Rows(at.inputs, e.n_used);
            let activation = Some(e.activation);
            // SAFETY: as above; `choose_experts` has dealt the pairs out.
            return unsafe {
                kernels.experts_rows(
                    stream,
                    e.n_experts,
                    &first,
                    activation,
                    &mine.tiles,
                    input,
                    mine.inner,
                )
            };
        }
        let input = ExpertInput::Rows(at.inputs, e.n_used);
        let to = self.to_pairs(e, input, mine.inner, e.inner_width());
        // SAFETY: as above; the input is there in the forms that `choose_experts` has asked for.
        unsafe {
            kernels.expert_matvec(stream, e.n_experts, &first, &to)?;
            let (mut out, stride) = (mine.inner, e.inner_width());
            for (matrix, adapted) in first.iter().zip(e.first_adapted()) {
                self.adapt_pairs(e, (matrix, adapted), (at.inputs, false), (out, stride))?;
                out += u64::from(e.n_ff) * 4;
            }
            match e.weighs_inputs {
                true => {
                    let weigh = weigh_args(e, &mine.choice, mine.inner, 0);
                    kernels.weigh_inner(stream, &weigh, self.pairs(e))
                }
                false => Ok(()),
            }
        }
    }

    pub(super) fn expert_outputs(&self, e: &ExpertsPlan) -> Result<()> {
        let mine = &self.buffers.at().experts;
        let (kernels, stream) = (self.eval.kernels, self.eval.stream);
        if self.takes_pairs(e) {
            let input = PairInput::Inner(mine.inner);
            // SAFETY: addresses of the *weights* and the *workspace*, which `self` promises;
            // `choose_experts` has dealt the pairs out.
            return unsafe {
                kernels.experts_rows(
                    stream,
                    e.n_experts,
                    &[&e.down],
                    None,
                    &mine.tiles,
                    input,
                    mine.out,
                )
            };
        }
        let adapts = self.eval.reached(&e.adapted.down).is_some();
        let input = if e.own_inputs() && !adapts {
            ExpertInput::Inner(ExpertInner {
                address: mine.inner,
                stride: e.inner_width(),
                len: e.n_ff,
                activation: e.activation,
            })
        } else {
            self.activate_inner(e)?;
            self.mark(Work::Norm, 0)?;
            ExpertInput::Rows(mine.inputs, 1)
        };
        let to = self.to_pairs(e, input, mine.out, e.width(self.eval.plan.hidden));
        // SAFETY: addresses of the *weights* and the *workspace*, which `self` promises; the input is there
        // in the forms that the matrix reads.
        unsafe {
            kernels.expert_matvec(stream, e.n_experts, &[&e.down], &to)?;
            let adapted = (&e.down, &e.adapted.down);
            self.adapt_pairs(e, adapted, (mine.inputs, true), (to.out, to.out_stride))
        }
    }

    /// Adds what adapters have for products of the pairs. Inputs are those of pairs, or of rows.
    ///
    /// # Safety
    /// *sessions*, *workspace*, with inputs in the forms that the matrix reads, and outputs.
    unsafe fn adapt_pairs(
        &self,
        e: &ExpertsPlan,
        (matrix, adapted): (&Matrix, &Option<AdaptedApart>),
        (inputs, of_pairs): (Inputs, bool),
        (out, out_stride): (u64, u32),
    ) -> Result<()> {
        let inputs = inputs.only(matrix.forms());
        let args = args::AdaptEach {
            q8: inputs.q8,
            q8_scale: inputs.q8_scale,
            // One form is enough.
            f32: if inputs.q8 == 0 { inputs.f32 } else { 0 },
            x_stride: matrix.groups * 32,
            len: matrix.groups * 32,
            groups: matrix.groups,
            chosen: self.buffers.at().experts.choice.chosen,
            out,
            out_stride,
            out_scale: 1.0,
            per_row: e.n_used,
            of_slots: u32::from(of_pairs),
            ..Default::default()
        };
        // SAFETY: by contract.
        unsafe { self.eval.adapt_each(adapted, &args, self.pairs(e)) }
    }

    /// The rows that the experts' last product reads, where its blocks do not make them.
    fn activate_inner(&self, e: &ExpertsPlan) -> Result<()> {
        let mine = &self.buffers.at().experts;
        let inputs = mine.inputs.only(e.down.forms());
        let inner = args::QuantizeInput {
            x: mine.inner,
            q8: inputs.q8,
            q8_scale: inputs.q8_scale,
            f32: inputs.f32,
            x_stride: e.inner_width(),
            len: e.n_ff,
            groups: e.down.groups,
            source: e.source() as u32,
            activation: e.activation,
            ..Default::default()
        };
        let (kernels, stream) = (self.eval.kernels, self.eval.stream);
        // SAFETY: addresses of the *workspace*, which `self` promises.
        unsafe { kernels.quantize_input(stream, &inner, self.pairs(e)) }
    }

    pub(super) fn sum_experts(
        &self,
        norm: Option<args::Norm>,
        e: &ExpertsPlan,
        sum: &ExpertSum,
    ) -> Result<()> {
        let (at, rows) = (self.buffers.at(), self.rows());
        if self.one_row(norm, e).is_some() {
            let route = route_args(e, &at.experts.choice);
            let makes_shared = self.shared_beside(norm, e) == Beside::Whole;
            let down = DownSum {
                shared: match e.shared {
                    Some(_) if !makes_shared => rows.shared_expert.address,
                    _ => 0,
                },
                makes_shared,
                base: sum.base.map_or(0, |base| rows.of(base).address),
                scale: sum.scale,
                out: rows.of(sum.to).address,
            };
            let (kernels, stream) = (self.eval.kernels, self.eval.stream);
            // SAFETY: addresses of the *weights* and the *workspace*, which `self` promises.
            return unsafe { kernels.experts_down(stream, e, &route, at.experts.inner, &down) };
        }
        let outputs = ExpertOutputs {
            x: at.experts.out,
            slots: 0,
            weights: at.experts.choice.weights,
        };
        // SAFETY: *workspace*, which `self` promises.
        unsafe { self.eval.combine(&rows, &outputs, e, sum, self.batch) }
    }
}
