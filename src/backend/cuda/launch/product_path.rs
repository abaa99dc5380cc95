//! Which kernel multiplies rows of input that are there with a matrix.

use super::args;
use super::kernel_id::KernelId;
use super::kernels::{Kernels, WARPS};
use super::matrix::{Inputs, Matrix, Types};
use super::matvec::MatvecPlan;
use super::matvec_batch;
use super::product::{FewPlan, Finish, Product, RowInput};
use crate::backend::cuda::driver::Stream;
use crate::error::Result;

/// The way of some rows and of those segments of a matrix that one kernel takes. It depends on the device, the matrix and the number of
/// rows alone, and is chosen when a step is captured.
enum ProductPath {
    /// The kernel of one row that also makes inputs (`kernels/product.cuh`).
    One,
    /// A kernel of two to four rows (`kernels/product_few.cuh`).
    Few(FewPlan),
    /// Tensor cores, for as many rows as the plan says (`kernels/matvec_batch.cuh`).
    Batch(MatvecPlan),
    /// What every device has, for as many rows as the plan says (`kernels/matvec.cuh`).
    Plain(MatvecPlan),
}

impl Kernels {
    /// The way of the next rows of a product with these segments, of which `left` are left; `is_first` before any is done.
    fn product_path(
        &self,
        (matrix, types, which): (&Matrix, Types, &[usize]),
        left: u32,
        is_first: bool,
    ) -> ProductPath {
        // Its bulk copies want the scales of a row at a multiple of sixteen bytes, where the first one's are.
        if left == 1 && is_first && self.takes_product(matrix, types, which, 1) {
            return ProductPath::One;
        }
        if let Some(plan) = self.plan_few(matrix, types, which, left) {
            return ProductPath::Few(plan);
        }
        let is_float = matrix.segments[which[0]].ty.is_float();
        if !is_float && let Some(plan) = self.plan_batch(matrix, which, left) {
            return ProductPath::Batch(plan);
        }
        let rows = if is_float || left == 1 { 1 } else { 4 };
        ProductPath::Plain(self.plan_matvec(matrix, which, rows))
    }

    /// `out = matrix * input (+ bias) (+ residual)` for `batch` rows of input; `residual` is 0 or the
    /// address of rows like those of `out`, which they may be.
    ///
    /// # Safety
    /// As [`Stream::launch`]; `input` must hold the forms that the matrix's types need.
    #[expect(clippy::too_many_arguments, reason = "a product has that many parts")]
    pub unsafe fn matvec(
        &self,
        stream: &Stream,
        matrix: &Matrix,
        input: &Inputs,
        out: u64,
        out_stride: u32,
        residual: u64,
        batch: u32,
    ) -> Result<()> {
        for (types, which) in matrix.kernel_groups() {
            let mine = (matrix, types, &which[..]);
            let mut done = 0;
            while done < batch {
                let left = batch - done;
                let row = u64::from(done);
                let width = u64::from(matrix.groups) * 32;
                let input = Inputs {
                    q8: input.q8 + row * width,
                    q8_scale: input.q8_scale + row * u64::from(matrix.groups) * 4,
                    f32: input.f32 + row * width * 4,
                    ..Inputs::default()
                };
                let out = out + row * u64::from(out_stride) * 4;
                let residual = match residual {
                    0 => 0,
                    first => first + row * u64::from(out_stride) * 4,
                };
                let (id, threads, plan) = match self.product_path(mine, left, done == 0) {
                    ProductPath::One => {
                        let product = Product {
                            matrix,
                            rows: 1,
                            input: RowInput::Rounded(input),
                            finish: Finish::Plain { residual },
                            out,
                            stride: out_stride,
                            adapted: None,
                        };
                        // SAFETY: by contract, `input` holds the forms that the types need, and all addresses are valid.
                        unsafe { self.product_of(stream, &product, types, &which)? };
                        break;
                    }
                    ProductPath::Few(plan) => {
                        let to = (out, residual, out_stride);
                        // SAFETY: as above.
                        unsafe { self.few_product(stream, plan, &input, to, left)? };
                        break;
                    }
                    ProductPath::Batch(plan) => {
                        let rows = plan.rows;
                        let id = KernelId::MatvecBatch { types, rows };
                        (id, matvec_batch::THREADS, plan)
                    }
                    ProductPath::Plain(plan) => {
                        let rows = plan.rows;
                        let id = KernelId::Matvec { types, rows };
                        (id, (WARPS * 32) as u32, plan)
                    }
                };
                let n = left.min(plan.rows as u32);
                let args = args::Matvec {
                    q8: input.q8,
                    q8_scale: input.q8_scale,
                    f32: input.f32,
                    out,
                    residual,
                    out_stride,
                    batch: n,
                    ..plan.args
                };
                let grid = (plan.grid, 1, 1);
                // SAFETY: as above.
                unsafe { self.launch(stream, id, grid, threads, plan.shared, &args)? };
                done += n;
            }
        }
        Ok(())
    }
}
