//! The experts of a step: each session's token goes its own ways, all in one graph.

use super::super::args;
use super::super::experts::{ExpertInput, ExpertPairs, ExpertsPlan, route_args, sort_args};
use super::super::matrix::Inputs;
use super::super::plan::{LayerPlan, MlpPlan};
use super::Enqueue;
use crate::backend::Work;
use crate::error::Result;

/// From so many sessions on, their pairs are sorted, so that weights which several of them need come
/// from memory once.
const SORT_FROM: u32 = 4;

impl Enqueue<'_> {
    /// A mixture of experts, whose output is added to `base` and goes to the residual stream.
    ///
    /// # Safety
    /// As `StepBuffers::enqueue`.
    pub(super) unsafe fn experts(
        &self,
        layer: &LayerPlan,
        e: &ExpertsPlan,
        base: u64,
    ) -> Result<()> {
        let (b, at, hidden) = (self.buffers, self.buffers.at, self.plan.hidden);
        let mine = &at.experts;
        let pairs = self.batch * e.n_used;
        let sorted = self.batch >= SORT_FROM;
        let experts = [&e.gate, &e.up];
        let first = ExpertPairs {
            input: ExpertInput::Rows(b.inputs(), e.n_used),
            chosen: mine.chosen,
            order: if sorted { mine.pairs } else { 0 },
            pairs,
            out: mine.inner,
            out_stride: 2 * e.n_ff,
        };
        let last = ExpertPairs {
            input: self.inner_input(e),
            out: mine.out,
            out_stride: hidden,
            ..first
        };
        let (kernels, stream) = (self.kernels, self.stream);
        let mut others = experts.to_vec();
        others.extend(e.shared.as_ref().map(|s| &s.up));
        let q8 = others.iter().any(|m| m.needs().0);
        let tickets = b.tickets.address();
        // SAFETY: the caller's word.
        unsafe {
            // The router reads f32 whatever its type.
            self.input_in(layer.feed_forward_norm, e.router.groups, q8, true)?;
            self.mark(Work::Norm, 0)?;
            let route = route_args(e, mine);
            kernels.step_route(stream, &e.router, &route, at.f32, tickets, self.batch)?;
            if sorted {
                kernels.expert_sort(stream, &sort_args(e, mine, pairs))?;
            }
            kernels.expert_matvec(stream, e.n_experts, &experts, &first)?;
            self.mark(Work::GateUp, e.router.bytes() + e.used_bytes(&experts))?;
            if let ExpertInput::Rows(..) = last.input {
                self.activate_inner(e, pairs)?;
                self.mark(Work::Norm, 0)?;
            }
            kernels.expert_matvec(stream, e.n_experts, &[&e.down], &last)?;
            self.mark(Work::Down, e.used_bytes(&[&e.down]))?;
            if let Some(shared) = &e.shared {
                self.shared(shared)?;
            }
            self.combine(layer, e, base)
        }
    }

    /// What the experts' last product reads.
    fn inner_input(&self, e: &ExpertsPlan) -> ExpertInput {
        let mine = &self.buffers.at.experts;
        if e.own_inputs() {
            return ExpertInput::Inner(mine.inner, e.activation, e.n_ff);
        }
        let rows = Inputs {
            q8: mine.q8,
            q8_scale: mine.q8_scale,
            f32: mine.f32,
        };
        ExpertInput::Rows(rows, 1)
    }

    /// The rows that the experts' last product reads, where its blocks do not make them.
    ///
    /// # Safety
    /// As `StepBuffers::enqueue`.
    unsafe fn activate_inner(&self, e: &ExpertsPlan, pairs: u32) -> Result<()> {
        let mine = &self.buffers.at.experts;
        let (q8, f32) = e.down.needs();
        let inner = args::Produce {
            x: mine.inner,
            q8: if q8 { mine.q8 } else { 0 },
            q8_scale: if q8 { mine.q8_scale } else { 0 },
            f32: if f32 { mine.f32 } else { 0 },
            x_stride: 2 * e.n_ff,
            len: e.n_ff,
            groups: e.down.groups,
            source: args::Source::Gated as u32,
            activation: e.activation,
            ..Default::default()
        };
        // SAFETY: the caller's word.
        unsafe { self.kernels.produce(self.stream, &inner, pairs) }
    }

    /// The shared expert, from the input that is there.
    ///
    /// # Safety
    /// As `StepBuffers::enqueue`.
    unsafe fn shared(&self, mlp: &MlpPlan) -> Result<()> {
        let (b, at) = (self.buffers, self.buffers.at);
        // SAFETY: the caller's word.
        unsafe {
            self.matvec(&mlp.up, at.wide, b.wide_stride, 0)?;
            self.mark(Work::GateUp, mlp.up.bytes())?;
            self.activate(mlp)?;
            self.mark(Work::Norm, 0)?;
            self.matvec(&mlp.down, at.experts.shared, self.plan.hidden, 0)?;
        }
        self.mark(Work::Down, mlp.down.bytes())
    }

    /// The weighted sum, normed and scaled as the layer has it, added to `base`.
    ///
    /// # Safety
    /// As `StepBuffers::enqueue`.
    unsafe fn combine(&self, layer: &LayerPlan, e: &ExpertsPlan, base: u64) -> Result<()> {
        let (b, at, hidden) = (self.buffers, self.buffers.at, self.plan.hidden);
        let combine = args::Combine {
            x: at.experts.out,
            weights: at.experts.weights,
            shared: e.shared.as_ref().map_or(0, |_| at.experts.shared),
            base,
            out: at.h,
            scale: layer.residual_scale,
            n_used: e.n_used,
            len: hidden,
            x_stride: hidden,
            out_stride: b.h_stride,
            ..Default::default()
        };
        // SAFETY: the caller's word.
        unsafe {
            match layer.feed_forward_post_norm {
                None => self
                    .kernels
                    .expert_combine(self.stream, &combine, self.batch)?,
                Some(norm) => {
                    let sum = args::Combine {
                        base: 0,
                        out: at.wide,
                        out_stride: b.wide_stride,
                        ..combine
                    };
                    self.kernels.expert_combine(self.stream, &sum, self.batch)?;
                    let add = args::AddBranch {
                        x: at.wide,
                        base,
                        out: at.h,
                        ..self
                            .plan
                            .add_branch(b.wide_stride, Some(norm), layer.residual_scale)
                    };
                    self.kernels.add_branch(self.stream, &add, self.batch)?;
                }
            }
        }
        self.mark(Work::Norm, 0)
    }
}
