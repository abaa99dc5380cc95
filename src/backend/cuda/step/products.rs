//! The products of a step, with the making of their inputs: by kernels that do both, where there are such.

use super::Enqueue;
use crate::backend::Work;
use crate::backend::cuda::args;
use crate::backend::cuda::matrix::Matrix;
use crate::backend::cuda::plan::MlpPlan;
use crate::backend::cuda::product::{Finish, Product, RowInput};
use crate::error::Result;

impl Enqueue<'_> {
    /// A dense feed-forward part up to the input of its last product, which is where it says.
    ///
    /// # Safety
    /// As [`StepBuffers::enqueue`].
    pub(super) unsafe fn mlp(&self, norm: Option<args::Norm>, mlp: &MlpPlan) -> Result<RowInput> {
        let (b, at) = (self.buffers, self.buffers.at);
        let finish = match mlp.gated {
            true => Finish::Gate(mlp.activation),
            false => Finish::Activate(mlp.activation),
        };
        let fused = self.fuses(&mlp.up, norm, finish.halves())
            && self.kernels.makes_input(&mlp.down, false, mlp.n_ff, 1);
        // SAFETY: the caller's word.
        unsafe {
            if fused {
                let product = Product {
                    matrix: &mlp.up,
                    input: RowInput::Row { x: at.h, norm },
                    finish,
                    out: at.f32,
                };
                self.kernels.product(self.stream, &product)?;
                self.mark(Work::GateUp, mlp.up.bytes())?;
                return Ok(RowInput::Row {
                    x: at.f32,
                    norm: None,
                });
            }
            self.normed(norm, &mlp.up, at.wide, b.wide_stride)?;
            self.mark(Work::GateUp, mlp.up.bytes())?;
            self.activate(mlp)?;
        }
        self.mark(Work::Norm, 0)?;
        Ok(RowInput::Rounded(b.inputs()))
    }

    /// Whether one kernel makes the input of a product from the residual stream, and does the product.
    fn fuses(&self, matrix: &Matrix, norm: Option<args::Norm>, halves: u32) -> bool {
        let len = self.plan.hidden;
        self.batch == 1
            && self
                .kernels
                .makes_input(matrix, norm.is_some(), len, halves)
    }

    /// `out = matrix * norm(residual stream)`.
    ///
    /// # Safety
    /// As [`StepBuffers::enqueue`].
    pub(super) unsafe fn normed(
        &self,
        norm: Option<args::Norm>,
        matrix: &Matrix,
        out: u64,
        out_stride: u32,
    ) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe {
            if self.fuses(matrix, norm, 1) {
                let product = Product {
                    matrix,
                    input: RowInput::Row {
                        x: self.buffers.at.h,
                        norm,
                    },
                    finish: Finish::Plain { residual: 0 },
                    out,
                };
                return self.kernels.product(self.stream, &product);
            }
            self.input(norm, matrix)?;
            self.mark(Work::Norm, 0)?;
            self.matvec(matrix, out, out_stride, 0)
        }
    }

    /// `to = base + scale * norm(matrix * input)`.
    ///
    /// # Safety
    /// As [`StepBuffers::enqueue`].
    pub(super) unsafe fn branch(
        &self,
        matrix: &Matrix,
        input: &RowInput,
        norm: Option<args::Norm>,
        scale: f32,
        base: u64,
        to: u64,
    ) -> Result<()> {
        let (b, at) = (self.buffers, self.buffers.at);
        let plain = norm.is_none() && scale == 1.0;
        let (out, out_stride, residual) = match plain {
            true => (to, b.h_stride, base),
            false => (at.wide, b.wide_stride, 0),
        };
        // SAFETY: the caller's word.
        unsafe {
            match input {
                RowInput::Rounded(_) => self.matvec(matrix, out, out_stride, residual)?,
                RowInput::Row { .. } => {
                    let product = Product {
                        matrix,
                        input: *input,
                        finish: Finish::Plain { residual },
                        out,
                    };
                    self.kernels.product(self.stream, &product)?;
                }
            }
            if plain {
                return Ok(());
            }
            let add = args::AddBranch {
                x: at.wide,
                base,
                out: to,
                ..self.plan.add_branch(b.wide_stride, norm, scale)
            };
            self.kernels.add_branch(self.stream, &add, self.batch)
        }
    }

    /// The outputs of a producer in the forms that `consumer` reads.
    fn forms(&self, consumer: &Matrix) -> (u64, u64, u64) {
        let (q8, f32) = consumer.needs();
        self.buffers.forms(q8, f32)
    }

    /// The input of `consumer`: the residual stream or its norm.
    ///
    /// # Safety
    /// As [`StepBuffers::enqueue`].
    unsafe fn input(&self, norm: Option<args::Norm>, consumer: &Matrix) -> Result<()> {
        let (q8, f32) = consumer.needs();
        // SAFETY: the caller's word.
        unsafe { self.input_in(norm, consumer.groups, q8, f32) }
    }

    /// The same as rows of `groups` groups, as int8, as f32 or both.
    ///
    /// # Safety
    /// As [`StepBuffers::enqueue`].
    pub(super) unsafe fn input_in(
        &self,
        norm: Option<args::Norm>,
        groups: u32,
        q8: bool,
        f32: bool,
    ) -> Result<()> {
        let (q8, q8_scale, f32) = self.buffers.forms(q8, f32);
        let source = match norm {
            Some(_) => args::Source::Norm,
            None => args::Source::Copy,
        };
        let produce = args::Produce {
            x: self.buffers.at.h,
            norm: norm.unwrap_or_default(),
            q8,
            q8_scale,
            f32,
            x_stride: self.buffers.h_stride,
            len: self.plan.hidden,
            groups,
            source: source as u32,
            inverse_len: 1.0 / self.plan.hidden as f32,
            ..Default::default()
        };
        // SAFETY: the caller's word.
        unsafe { self.kernels.produce(self.stream, &produce, self.batch) }
    }

    /// # Safety
    /// As [`StepBuffers::enqueue`].
    pub(super) unsafe fn activate(&self, mlp: &MlpPlan) -> Result<()> {
        let (q8, q8_scale, f32) = self.forms(&mlp.down);
        let produce = args::Produce {
            x: self.buffers.at.wide,
            q8,
            q8_scale,
            f32,
            x_stride: self.buffers.wide_stride,
            len: mlp.n_ff,
            groups: mlp.down.groups,
            source: mlp.source() as u32,
            activation: mlp.activation,
            ..Default::default()
        };
        // SAFETY: the caller's word.
        unsafe { self.kernels.produce(self.stream, &produce, self.batch) }
    }

    /// `out = matrix * input + residual`; without it where that is 0.
    ///
    /// # Safety
    /// As [`StepBuffers::enqueue`].
    pub(super) unsafe fn matvec(
        &self,
        matrix: &Matrix,
        out: u64,
        out_stride: u32,
        residual: u64,
    ) -> Result<()> {
        let inputs = self.buffers.inputs();
        // SAFETY: the caller's word.
        unsafe {
            self.kernels.matvec(
                self.stream,
                matrix,
                &inputs,
                out,
                out_stride,
                residual,
                self.batch,
            )
        }
    }
}
