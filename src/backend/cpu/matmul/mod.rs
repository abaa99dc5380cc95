//! Matrix products of weights as they lie in the file with activations of one or more tokens.
//!
//! # Canonical arithmetic
//! The bits of a result depend on the row and the token alone: not on the instruction set, not on
//! how many tokens or rows a call covers. Every implementation follows this order.
//!
//! *Activations for quantized weights* are signed bytes with a scale per 32 elements, see
//! [`Activations`].
//!
//! *Quantized weights* are groups of `G` elements (16 for Q2_K, Q3_K, Q6_K, else 32): integers
//! `q`, a scale `s` and, for some types, a minimum `m` (single precision; the element is
//! `s * q + m`). The dot product of a group with the activations is an exact integer `n`. A row
//! has `L = 256 / G` accumulators; accumulator `j` takes the groups `g` with `g % L == j` in
//! ascending order:
//! `a = fma(f32(n) * da, s, a)` and then, with a minimum, `a = fma(f32(sum of the activation bytes
//! in the group) * da, m, a)`. The result is the sum over the accumulators as a tree:
//! `a[i] + a[i + L / 2]` for the lower half, and so on, until one is left.
//!
//! *Float weights* (F32, F16, BF16) have 16 accumulators; accumulator `j` takes the elements `k`
//! with `k % 16 == j` in ascending order, `a = fma(w, x, a)`; then the same tree.
//!
//! Padding to whole vectors multiplies zeros with signs chosen such that the product is -0, which
//! leaves every accumulator as it is, a -0 included.

mod activations;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod buffer;
#[cfg(target_arch = "aarch64")]
mod neon;
mod panel;
mod scalar;
mod types;

pub use activations::{Activations, Encodings};

use crate::error::Result;
use crate::format::Tensor;
use crate::quant::{TensorType, dequantize_row};
use buffer::Buffer;
use std::ops::Range;

/// An instruction set that the products are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Plain Rust, any processor.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 (F, BW, DQ, VL) and VNNI.
    Avx512Vnni,
    /// AArch64; the dot product extension is used where it is.
    Neon,
}

impl Isa {
    /// A short name.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512Vnni => "avx512-vnni",
            Isa::Neon => "neon",
        }
    }

    /// The fastest that this processor runs. Allocates nothing.
    pub fn detect() -> Isa {
        #[cfg(target_arch = "x86_64")]
        if avx512::available() {
            return Isa::Avx512Vnni;
        } else if avx2::available() {
            return Isa::Avx2;
        }
        if cfg!(target_arch = "aarch64") {
            Isa::Neon
        } else {
            Isa::Scalar
        }
    }

    /// All that this processor runs, the fastest last.
    pub fn available() -> Vec<Isa> {
        #[allow(unused_mut)]
        let mut isas = vec![Isa::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            if avx2::available() {
                isas.push(Isa::Avx2);
            }
            if avx512::available() {
                isas.push(Isa::Avx512Vnni);
            }
        }
        #[cfg(target_arch = "aarch64")]
        isas.push(Isa::Neon);
        isas
    }
}

/// Memory of one thread for unpacked weights.
pub struct Scratch {
    buffer: Buffer,
    max_cols: usize,
}

impl Scratch {
    /// Enough for matrices of up to `max_cols` columns. The memory becomes resident as it is used.
    pub fn new(max_cols: usize) -> Result<Scratch> {
        Ok(Scratch {
            buffer: Buffer::new(Scratch::bytes_for(max_cols), "unpacked weights")?,
            max_cols: max_cols.next_multiple_of(256),
        })
    }

    /// Bytes of [`Scratch::new`].
    pub fn bytes_for(max_cols: usize) -> usize {
        // The largest user: a panel of rows as f32. Codes, scales and minimums need at most
        // 1 + 4 / 16 + 4 / 16 bytes per element.
        let panel = Matrix::ROW_QUANTUM * size_of::<f32>();
        max_cols.next_multiple_of(256).saturating_mul(panel)
    }
}

/// A matrix of weights, `rows` by `cols`, in the bytes of the file.
#[derive(Clone)]
pub struct Matrix {
    tensor: Tensor,
    isa: Isa,
}

impl Matrix {
    /// Row ranges given to [`Matrix::mul`] start at multiples of this.
    pub const ROW_QUANTUM: usize = 32;

    /// The tensor as a matrix: its first dimension is the columns, all others are rows. Reads
    /// nothing.
    ///
    /// `isa` must be available on this processor; anything else falls back to [`Isa::Scalar`].
    pub fn new(tensor: Tensor, isa: Isa) -> Matrix {
        let isa = checked(isa);
        Matrix { tensor, isa }
    }

    /// Number of rows: outputs of the product.
    pub fn rows(&self) -> usize {
        self.tensor.rows()
    }

    /// It as a tensor.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Number of columns: inputs of the product.
    pub fn cols(&self) -> usize {
        self.tensor.row_len()
    }

    /// The element type.
    pub fn ty(&self) -> TensorType {
        self.tensor.ty
    }

    /// Bytes of the weights.
    pub fn bytes(&self) -> usize {
        self.tensor.bytes().len()
    }

    /// The encodings of activations that products with this matrix read.
    pub fn encodings(&self) -> Encodings {
        Encodings::for_type(self.tensor.ty)
    }

    /// The same matrix, borrowed.
    pub fn view(&self) -> View<'_> {
        View {
            ty: self.tensor.ty,
            rows: self.rows(),
            cols: self.cols(),
            bytes: self.tensor.bytes(),
            isa: self.isa,
        }
    }

    /// `out[t * out_stride + r]` becomes the dot product of row `r` and token `t`, for the tokens
    /// and rows given. Nothing else is written and nothing is allocated.
    ///
    /// Panics if a range is out of bounds or `scratch` too small.
    ///
    /// # Safety
    /// `out` is valid for those writes, nothing else uses these elements during the call, and no
    /// thread writes those tokens of `x` during it. The tokens were set with
    /// [`Activations::set_row`] with rows of [`Matrix::cols`] elements and at least
    /// [`Matrix::encodings`] (else the numbers mean nothing).
    pub unsafe fn mul(
        &self,
        x: &Activations,
        tokens: Range<usize>,
        rows: Range<usize>,
        out: *mut f32,
        out_stride: usize,
        scratch: &mut Scratch,
    ) {
        // SAFETY: by contract, `out` is valid for those writes, and nobody else uses its elements or writes the tokens.
        unsafe { self.view().mul(x, tokens, rows, out, out_stride, scratch) }
    }

    /// Writes the exact elements of row `r`, [`Matrix::cols`] of them (an embedding).
    pub fn row(&self, r: usize, out: &mut [f32]) {
        let bytes = self.tensor.row_bytes();
        let from = r * bytes;
        dequantize_row(
            self.tensor.ty,
            &self.tensor.bytes()[from..from + bytes],
            out,
        );
    }
}

/// `isa` if this processor has it. Allocates nothing.
fn checked(isa: Isa) -> Isa {
    let has = match isa {
        Isa::Scalar => true,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => avx2::available(),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni => avx512::available(),
        _ => cfg!(target_arch = "aarch64") && isa == Isa::Neon,
    };
    if has { isa } else { Isa::Scalar }
}

/// A matrix over borrowed bytes.
#[derive(Clone, Copy)]
pub struct View<'a> {
    ty: TensorType,
    rows: usize,
    cols: usize,
    bytes: &'a [u8],
    isa: Isa,
}

impl<'a> View<'a> {
    /// A matrix of `rows` rows of `cols` elements of type `ty`; `None` unless `bytes` has just
    /// their length. As for `isa`, see [`Matrix::new`].
    pub fn new(
        ty: TensorType,
        rows: usize,
        cols: usize,
        bytes: &'a [u8],
        isa: Isa,
    ) -> Option<View<'a>> {
        let need = ty.row_bytes(cols)?.checked_mul(rows)?;
        (need == bytes.len()).then_some(View {
            ty,
            rows,
            cols,
            bytes,
            isa: checked(isa),
        })
    }

    /// See [`Matrix::mul`].
    ///
    /// # Safety
    /// As of [`Matrix::mul`].
    pub unsafe fn mul(
        &self,
        x: &Activations,
        tokens: Range<usize>,
        rows: Range<usize>,
        out: *mut f32,
        out_stride: usize,
        scratch: &mut Scratch,
    ) {
        if rows.is_empty() || tokens.is_empty() {
            return;
        }
        assert!(rows.end <= self.rows, "rows out of range");
        assert!(tokens.end <= x.max_tokens(), "tokens out of range");
        assert!(self.cols <= scratch.max_cols && self.cols <= x.max_cols());
        assert!(x.encodings().covers(Encodings::for_type(self.ty)));
        let job = Job {
            ty: self.ty,
            cols: self.cols,
            weights: self.bytes.as_ptr(),
            row_bytes: self.bytes.len() / self.rows,
            x,
            tokens,
            rows,
            out,
            out_stride,
            scratch: scratch.buffer.ptr(),
        };
        // SAFETY: the ranges were checked above, and the instruction set when the matrix was made; by
        // contract, `out` is valid for those writes, and nobody else uses its elements or writes the tokens.
        unsafe {
            match self.isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => avx2::mul(&job),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512Vnni => avx512::mul(&job),
                #[cfg(target_arch = "aarch64")]
                Isa::Neon => neon::mul(&job),
                _ => scalar::mul(&job),
            }
        }
    }
}

/// The checked arguments of a product.
struct Job<'a> {
    ty: TensorType,
    cols: usize,
    /// Row `r` is at `r * row_bytes`.
    weights: *const u8,
    row_bytes: usize,
    x: &'a Activations,
    tokens: Range<usize>,
    rows: Range<usize>,
    out: *mut f32,
    out_stride: usize,
    /// 128 bytes per column, 64-byte aligned.
    scratch: *mut u8,
}

#[cfg(target_arch = "x86_64")]
impl Job<'_> {
    /// How many bytes ahead rows that are read in place are asked for: some rows, but of short ones as much as memory brings while it
    /// is asked for one.
    fn ahead(&self) -> usize {
        (4 * self.row_bytes).max(8 << 10)
    }
}
