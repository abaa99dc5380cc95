//! The products of a chunk, with the making of their inputs.

use super::ChunkOperations;
use crate::backend::cuda::launch::adapters::AdaptedInput;
use crate::backend::cuda::launch::args;
use crate::backend::cuda::launch::feed_forward::MlpPlan;
use crate::backend::cuda::launch::matrix::Matrix;
use crate::backend::cuda::launch::span::Span;
use crate::error::Result;

impl ChunkOperations<'_> {
    /// The input of the last product of a feed-forward part, from the input that is there.
    pub(super) fn mlp(&self, mlp: &MlpPlan) -> Result<()> {
        let (at, e) = (self.at(), &self.eval);
        let wide = at.rows.wide;
        let mut quantize_input = mlp.inner(&at.rows);
        if self.gates(mlp) {
            self.pause()?;
            self.unpack_next(&mlp.up, Some(mlp.n_ff))?;
            let gated = args::GatedMatmul {
                product: self.unpacked_product(&mlp.up, wide, 0),
                largest: at.largest,
            };
            // SAFETY: addresses of the *weights* and the *workspace*, which `self` promises.
            unsafe { e.kernels.matmul_gated(e.stream, &gated)? };
            quantize_input.source = args::Source::Copy as u32;
            quantize_input.largest = at.largest;
        } else {
            self.matmul(&mlp.up, wide, 0)?;
            // SAFETY: *workspace*, which `self` promises.
            unsafe { e.sparse_gates(&at.rows, mlp, self.rows)? };
        }
        self.quantize_input(quantize_input)
    }

    /// Whether one product does the gate with what it lets through.
    fn gates(&self, mlp: &MlpPlan) -> bool {
        self.eval.kernels.gates(mlp) && !self.eval.adapts(&mlp.up)
    }

    /// Unpacks the first matrix of a feed-forward part beside the sum over ranks that its input waits for.
    pub(super) fn unpack_ahead(&self, mlp: &MlpPlan) -> Result<()> {
        let half = self.gates(mlp).then_some(mlp.n_ff);
        self.unpack(&mlp.up, half, true)?;
        self.meetings.is_unpacked.set(true);
        Ok(())
    }

    /// Unpacks a matrix, unless it was unpacked ahead.
    fn unpack_next(&self, matrix: &Matrix, half: Option<u32>) -> Result<()> {
        match self.meetings.is_unpacked.take() {
            true => Ok(()),
            false => self.unpack(matrix, half, false),
        }
    }

    /// The input of a product, of rows of `groups` groups: the residual stream or its norm. It is written as
    /// f32 as well, to `f32` if that is not 0.
    pub(super) fn input(&self, norm: Option<args::Norm>, groups: u32, f32: u64) -> Result<()> {
        let (at, hidden) = (self.at(), self.eval.plan.hidden);
        let source = match norm {
            Some(_) => args::Source::Norm,
            None => args::Source::Copy,
        };
        self.quantize_input(args::QuantizeInput {
            x: at.rows.residual.address,
            norm: norm.unwrap_or_default(),
            x_stride: at.rows.residual.stride,
            len: hidden,
            groups,
            f32,
            clear: at.largest,
            source: source as u32,
            inverse_len: 1.0 / hidden as f32,
            ..Default::default()
        })
    }

    /// The same of the first `len` floats of rows that are anywhere.
    pub(in crate::backend::cuda) fn input_of(
        &self,
        rows: Span,
        len: u32,
        matrix: &Matrix,
    ) -> Result<()> {
        self.quantize_input(args::QuantizeInput {
            x: rows.address,
            x_stride: rows.stride,
            len,
            groups: matrix.groups,
            source: args::Source::Copy as u32,
            ..Default::default()
        })
    }

    /// Writes the input of a product, in the form that it reads. The addresses in `args` must be of the
    /// *weights* and the *workspace*.
    pub fn quantize_input(&self, args: args::QuantizeInput) -> Result<()> {
        let (at, e) = (self.at(), &self.eval);
        let quantize_input = args::QuantizeInput {
            f16: at.x,
            f16_scale: at.x_scale,
            ..args
        };
        // SAFETY: addresses of the *weights* and the *workspace*, which `self` promises.
        unsafe {
            e.kernels
                .quantize_input(e.stream, &quantize_input, self.rows)
        }
    }

    /// `out = matrix * input + residual`, of the input that is there, with what adapters add; without residual where that is 0.
    pub(in crate::backend::cuda) fn matmul(
        &self,
        matrix: &Matrix,
        out: Span,
        residual: u64,
    ) -> Result<()> {
        self.pause()?;
        self.unpack_next(matrix, None)?;
        let product = self.unpacked_product(matrix, out, residual);
        let e = &self.eval;
        // SAFETY: addresses of the *weights* and the *workspace*, which `self` promises.
        unsafe { e.kernels.matmul(e.stream, &product)? };
        let (x, x_scale) = (self.at().x, self.at().x_scale);
        match e.adaptation(matrix, AdaptedInput::Chunk { x, x_scale }, out, self.rows) {
            // SAFETY: addresses of the *sessions* and the *workspace*, which `self` promises.
            Some(adaptation) => unsafe { e.kernels.adapt(e.stream, adaptation) },
            None => Ok(()),
        }
    }

    /// A matrix in f16, at `weights`. With `half` rows in each of two parts, these lie by turns, as
    /// [`Kernels::matmul_gated`](crate::backend::cuda::launch::kernels::Kernels::matmul_gated) reads them.
    /// What is in front of it may still be at work if it comes `beside` that.
    fn unpack(&self, matrix: &Matrix, half: Option<u32>, beside: bool) -> Result<()> {
        let e = &self.eval;
        for s in &matrix.segments {
            let all = args::Unpack {
                matrix: s.address,
                out: self.at().weights,
                ty: s.ty.number(),
                groups: matrix.groups,
                matrix_rows: s.rows,
                rows: s.rows,
                out_row: s.out_offset,
                beside: beside.into(),
                ..Default::default()
            };
            let Some(half) = half else {
                // SAFETY: addresses of the *weights* and the *workspace*, which `self` promises.
                unsafe { e.kernels.unpack(e.stream, &all)? };
                continue;
            };
            for part in 0..2 {
                let (begin, behind) = (part * half, (part + 1) * half);
                let first = s.out_offset.clamp(begin, behind);
                let end = (s.out_offset + s.rows).clamp(begin, behind);
                let unpack = args::Unpack {
                    first_row: first.saturating_sub(s.out_offset),
                    rows: end - first,
                    out_row: first - begin,
                    spread: part + 1,
                    ..all
                };
                if unpack.rows > 0 {
                    // SAFETY: as above.
                    unsafe { e.kernels.unpack(e.stream, &unpack)? };
                }
            }
        }
        Ok(())
    }

    /// The arguments of a product with the matrix that was unpacked last.
    fn unpacked_product(&self, matrix: &Matrix, out: Span, residual: u64) -> args::Matmul {
        let at = self.at();
        args::Matmul {
            x: at.x,
            x_scale: at.x_scale,
            w: at.weights,
            bias: matrix.bias,
            residual,
            out: out.address,
            m: self.rows,
            n: matrix.rows,
            k: matrix.groups * 32,
            out_stride: out.stride,
        }
    }
}
