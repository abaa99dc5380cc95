//! The experts of a step: each session's token goes its own ways, all in one graph.

use super::super::args;
use super::super::evaluation::ExpertOutputs;
use super::super::experts::{
    ExpertInner, ExpertInput, ExpertPairs, ExpertsPlan, route_args, sort_args,
};
use super::super::matrix::Forms;
use super::super::walk::{ExpertSum, Operations};
use super::StepOperations;
use crate::backend::Work;
use crate::error::Result;

/// From so many sessions on, their pairs are sorted, so that weights which several of them need come
/// from memory once.
const SORT_FROM: u32 = 4;

impl StepOperations<'_> {
    fn pairs(&self, e: &ExpertsPlan) -> u32 {
        self.batch * e.n_used
    }

    fn sorts(&self) -> bool {
        self.batch >= SORT_FROM
    }

    /// The input of the router, the experts and the shared one, and the experts of each row.
    pub(super) fn choose_experts(&self, norm: Option<args::Norm>, e: &ExpertsPlan) -> Result<()> {
        let at = self.buffers.at();
        let shared = e.shared.as_ref().map(|s| &s.up);
        let mut readers = e.first_matrices().into_iter().chain(shared);
        let forms = Forms {
            q8: readers.any(|m| m.forms().q8),
            // The router reads f32 whatever its type.
            f32: true,
        };
        self.input(norm, e.router.groups, forms)?;
        self.mark(Work::Norm, 0)?;
        let mine = &at.experts;
        let route = route_args(e, &mine.choice);
        let (x, tickets) = (at.inputs.f32, self.buffers.tickets());
        let (kernels, stream) = (self.eval.kernels, self.eval.stream);
        // SAFETY: addresses of the *weights* and the *workspace*, which `self` promises; tickets are zeros
        // between any two kernels.
        unsafe {
            kernels.step_route(stream, &e.router, &route, x, tickets, self.batch)?;
            if self.sorts() {
                let sort = sort_args(e, &mine.choice, &mine.sorted, self.pairs(e));
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

    pub(super) fn gates_and_ups(&self, e: &ExpertsPlan) -> Result<()> {
        let at = self.buffers.at();
        let input = ExpertInput::Rows(at.inputs, e.n_used);
        let to = self.to_pairs(e, input, at.experts.inner, e.inner_width());
        let (kernels, stream) = (self.eval.kernels, self.eval.stream);
        // SAFETY: addresses of the *weights* and the *workspace*, which `self` promises; the input is there
        // in the forms that `choose_experts` has asked for.
        unsafe { kernels.expert_matvec(stream, e.n_experts, &e.first_matrices(), &to) }
    }

    pub(super) fn expert_outputs(&self, e: &ExpertsPlan) -> Result<()> {
        let mine = &self.buffers.at().experts;
        let input = if e.own_inputs() {
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
        let to = self.to_pairs(e, input, mine.out, self.eval.plan.hidden);
        let (kernels, stream) = (self.eval.kernels, self.eval.stream);
        // SAFETY: addresses of the *weights* and the *workspace*, which `self` promises; the input is there
        // in the forms that the matrix reads.
        unsafe { kernels.expert_matvec(stream, e.n_experts, &[&e.down], &to) }
    }

    /// The rows that the experts' last product reads, where its blocks do not make them.
    fn activate_inner(&self, e: &ExpertsPlan) -> Result<()> {
        let mine = &self.buffers.at().experts;
        let inputs = mine.inputs.only(e.down.forms());
        let inner = args::Produce {
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
        unsafe { kernels.produce(stream, &inner, self.pairs(e)) }
    }

    pub(super) fn sum_experts(&self, e: &ExpertsPlan, sum: &ExpertSum) -> Result<()> {
        let at = self.buffers.at();
        let outputs = ExpertOutputs {
            x: at.experts.out,
            slots: 0,
            weights: at.experts.choice.weights,
        };
        // SAFETY: *workspace*, which `self` promises.
        unsafe { self.eval.combine(&at.rows, &outputs, e, sum, self.batch) }
    }
}
