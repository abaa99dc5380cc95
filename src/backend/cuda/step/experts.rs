//! The experts of a step: each session's token goes its own ways, all in one graph.

use super::super::args;
use super::super::experts::{ExpertInputs, ExpertsPlan, route_args};
use super::super::matrix::{Inputs, Matrix};
use super::super::plan::{LayerPlan, MlpPlan};
use super::Enqueue;
use crate::backend::Work;
use crate::error::Result;

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
        let mut consumers = vec![&e.router, &e.gate, &e.up];
        consumers.extend(e.shared.as_ref().map(|s| &s.up));
        let inputs = ExpertInputs {
            inputs: b.inputs(),
            pairs_per_input: e.n_used,
            chosen: mine.chosen,
            pairs,
            out: mine.inner,
            out_stride: 2 * e.n_ff,
        };
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
        let outputs = ExpertInputs {
            inputs: Inputs {
                q8: mine.q8,
                q8_scale: mine.q8_scale,
                f32: mine.f32,
                fragments: 0,
            },
            pairs_per_input: 1,
            out: mine.out,
            out_stride: hidden,
            ..inputs
        };
        let (kernels, stream) = (self.kernels, self.stream);
        // SAFETY: the caller's word.
        unsafe {
            self.expert_input(layer.feed_forward_norm, &consumers)?;
            self.mark(Work::Norm, 0)?;
            self.matvec(&e.router, mine.scores, e.router.rows, 0)?;
            kernels.route(stream, &route_args(e, mine), self.batch)?;
            kernels.expert_matvec(stream, e.n_experts, &[&e.gate, &e.up], &inputs)?;
            self.mark(
                Work::GateUp,
                e.router.bytes() + e.used_bytes(&[&e.gate, &e.up]),
            )?;
            kernels.produce(stream, &inner, pairs)?;
            self.mark(Work::Norm, 0)?;
            kernels.expert_matvec(stream, e.n_experts, &[&e.down], &outputs)?;
            self.mark(Work::Down, e.used_bytes(&[&e.down]))?;
            if let Some(shared) = &e.shared {
                self.shared(shared)?;
            }
            self.combine(layer, e, base)
        }
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
                        norm,
                        scale: layer.residual_scale,
                        len: hidden,
                        x_stride: b.wide_stride,
                        stride: b.h_stride,
                    };
                    self.kernels.add_branch(self.stream, &add, self.batch)?;
                }
            }
        }
        self.mark(Work::Norm, 0)
    }

    /// The input of several matrices: the residual stream or its norm, in all the forms that they
    /// read.
    ///
    /// # Safety
    /// As `StepBuffers::enqueue`.
    unsafe fn expert_input(&self, norm: Option<args::Norm>, consumers: &[&Matrix]) -> Result<()> {
        let needs = consumers.iter().map(|m| m.needs());
        let (q8, f32) = needs.fold((false, false), |a, b| (a.0 || b.0, a.1 || b.1));
        // SAFETY: the caller's word.
        unsafe { self.input_in(norm, consumers[0].groups, q8, f32) }
    }
}
