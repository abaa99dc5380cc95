//! Products of float weights: two vectors hold the 16 accumulators of a row and a token.

use super::matvec::tree8;
use crate::backend::cpu::matmul::Job;
use crate::quant::TensorType;
use std::arch::x86_64::*;

/// Rows unpacked at a time for many tokens.
const PANEL: usize = 32;
/// Rows of a block.
const ROWS: usize = 2;
/// Tokens of a block.
const TOKENS: usize = 3;

/// Loads 16 weights of a type.
trait Load {
    /// Bytes of an element.
    const BYTES: usize;

    /// The elements at `p`.
    ///
    /// # Safety
    /// See [`super::unpack`]; the elements are readable.
    unsafe fn load(p: *const u8) -> [__m256; 2];
}

struct F32;
struct F16;
struct BF16;

impl Load for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> [__m256; 2] {
        // SAFETY: by contract, the processor has the features, and the elements are readable.
        unsafe { [_mm256_loadu_ps(p.cast()), _mm256_loadu_ps(p.add(32).cast())] }
    }
}

impl Load for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> [__m256; 2] {
        // SAFETY: by contract, the processor has the features, and the elements are readable.
        unsafe {
            [
                _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(p.add(16).cast())),
            ]
        }
    }
}

impl Load for BF16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> [__m256; 2] {
        // SAFETY: by contract, the processor has the features, and the elements are readable.
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(16).cast()));
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            ]
        }
    }
}

/// As [`Load::load`], but only the first `left` of the elements are there; the others are zero.
///
/// # Safety
/// As of [`Load::load`] for those elements.
#[inline(always)]
unsafe fn load_some<L: Load>(p: *const u8, left: usize) -> [__m256; 2] {
    let mut buffer = [0u8; 64];
    // SAFETY: by contract, the processor has the features, and the elements are readable; 16
    // elements of any type are at most 64 bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(p, buffer.as_mut_ptr(), left.min(16) * L::BYTES);
        L::load(buffer.as_ptr())
    }
}

/// The product.
///
/// # Safety
/// `job` was checked; [`super::available`].
pub(super) unsafe fn mul(job: &Job) {
    // SAFETY: by contract, `job` was checked, and the processor has the features.
    unsafe {
        match job.ty {
            TensorType::F16 => typed::<F16>(job),
            TensorType::BF16 => typed::<BF16>(job),
            _ => typed::<F32>(job),
        }
    }
}

/// Where rows are: row `i` at `i * stride` bytes.
#[derive(Clone, Copy)]
struct Rows {
    at: *const u8,
    stride: usize,
}

/// # Safety
/// As of [`mul`], with weights of type `L`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn typed<L: Load>(job: &Job) {
    let mut r = job.rows.start;
    while r < job.rows.end {
        let n = PANEL.min(job.rows.end - r);
        // SAFETY: the rows are in range; the scratch memory holds 32 rows of f32, padded to 16.
        unsafe {
            let rows = Rows {
                at: job.weights.add(r * job.row_bytes),
                stride: job.row_bytes,
            };
            if L::BYTES == 4 || job.tokens.len() <= super::MATVEC_TOKENS {
                panel::<L>(job, rows, r, n);
            } else {
                let stride = job.cols.next_multiple_of(16) * 4;
                for i in 0..n {
                    let from = rows.at.add(i * rows.stride);
                    let to = job.scratch.add(i * stride);
                    for k in (0..job.cols).step_by(16) {
                        let from = from.add(k * L::BYTES);
                        let v = if job.cols - k >= 16 {
                            L::load(from)
                        } else {
                            load_some::<L>(from, job.cols - k)
                        };
                        _mm256_store_ps(to.add(k * 4).cast(), v[0]);
                        _mm256_store_ps(to.add(k * 4 + 32).cast(), v[1]);
                    }
                }
                let at = job.scratch.cast_const();
                panel::<F32>(job, Rows { at, stride }, r, n);
            }
        }
        r += PANEL;
    }
}

/// `n` rows, the first of which is row `r` of the product, with all tokens.
///
/// # Safety
/// As of [`typed`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn panel<L: Load>(job: &Job, rows: Rows, r: usize, n: usize) {
    let mut t = job.tokens.start;
    while t < job.tokens.end {
        let left = job.tokens.end - t;
        let tokens = left.div_ceil(left.div_ceil(TOKENS));
        // SAFETY: rows and tokens are in range.
        unsafe {
            match tokens {
                1 => blocks::<L, 1>(job, rows, r, n, t),
                2 => blocks::<L, 2>(job, rows, r, n, t),
                _ => blocks::<L, 3>(job, rows, r, n, t),
            }
        }
        t += tokens;
    }
}

/// `n` rows, two at a time, with `T` tokens from `t` on.
///
/// # Safety
/// As of [`typed`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn blocks<L: Load, const T: usize>(job: &Job, rows: Rows, r: usize, n: usize, t: usize) {
    // SAFETY: rows and tokens are in range; the tokens' floats are padded to 16.
    unsafe {
        let (first, stride) = (job.x.float_row(t).cast_const(), job.x.float_stride());
        let x: [*const f32; T] = std::array::from_fn(|i| first.wrapping_add(i * stride));
        let whole = job.cols / 16 * 16;
        for i in (0..n).step_by(ROWS) {
            // Rows that lack are the last one again.
            let mut w = [rows.at.add(i * rows.stride); ROWS];
            for j in 1..ROWS {
                w[j] = rows.at.add((i + j).min(n - 1) * rows.stride);
            }
            let mut acc = [[[_mm256_setzero_ps(); 2]; ROWS]; T];
            for k in (0..whole).step_by(16) {
                step::<L, T>(&w, &x, k, 16, &mut acc);
            }
            if whole < job.cols {
                let left = job.cols - whole;
                step::<L, T>(&w, &x, whole, left, &mut acc);
            }
            for token in 0..T {
                let out = job.out.add((t + token) * job.out_stride + r + i);
                for j in 0..ROWS.min(n - i) {
                    let [low, high] = acc[token][j];
                    *out.add(j) = tree8(_mm256_add_ps(low, high));
                }
            }
        }
    }
}

/// Adds the products of the 16 elements from `k` on, of which `left` are there. Each token has
/// a pointer, since checked arithmetic in the loop slows down builds with overflow checks.
///
/// # Safety
/// As of [`typed`].
#[inline(always)]
unsafe fn step<L: Load, const T: usize>(
    w: &[*const u8; ROWS],
    x: &[*const f32; T],
    k: usize,
    left: usize,
    acc: &mut [[[__m256; 2]; ROWS]; T],
) {
    // SAFETY: by contract, `job` was checked, and the processor has the features.
    unsafe {
        let at = k * L::BYTES;
        let mut weights = [[_mm256_setzero_ps(); 2]; ROWS];
        for i in 0..ROWS {
            let p = w[i].wrapping_add(at);
            weights[i] = if left >= 16 {
                L::load(p)
            } else {
                load_some::<L>(p, left)
            };
        }
        for t in 0..T {
            for v in 0..2 {
                let x = _mm256_loadu_ps(x[t].wrapping_add(k + 8 * v));
                for i in 0..ROWS {
                    acc[t][i][v] = _mm256_fmadd_ps(weights[i][v], x, acc[t][i][v]);
                }
            }
        }
    }
}
