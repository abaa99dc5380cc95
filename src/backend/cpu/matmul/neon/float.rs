//! Products of float weights: four vectors hold the 16 accumulators of a row and a token.

use super::tree8;
use crate::backend::cpu::matmul::Job;
use crate::quant::TensorType;
use std::arch::aarch64::*;
use std::arch::asm;

/// Rows of a block.
const ROWS: usize = 2;
/// Tokens of a block.
const TOKENS: usize = 3;

/// Loads weights of a type.
trait Load {
    /// Bytes of an element.
    const BYTES: usize;

    /// The four elements at `p`.
    ///
    /// # Safety
    /// They are readable.
    unsafe fn load(p: *const u8) -> float32x4_t;
}

struct F32;
struct F16;
struct BF16;

impl Load for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> float32x4_t {
        // SAFETY: by contract, the elements are readable.
        unsafe { vreinterpretq_f32_u8(vld1q_u8(p)) }
    }
}

impl Load for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> float32x4_t {
        // SAFETY: by contract, the elements are readable; the instruction reads and writes registers alone.
        unsafe {
            let half = vld1_u8(p);
            let single: float32x4_t;
            asm!(
                "fcvtl {single:v}.4s, {half:v}.4h",
                single = lateout(vreg) single,
                half = in(vreg) half,
                options(pure, nomem, nostack, preserves_flags)
            );
            single
        }
    }
}

impl Load for BF16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> float32x4_t {
        // SAFETY: by contract, the elements are readable.
        unsafe {
            let half = vreinterpret_u16_u8(vld1_u8(p));
            vreinterpretq_f32_u32(vshll_n_u16::<16>(half))
        }
    }
}

/// The product.
///
/// # Safety
/// `job` was checked.
pub(super) unsafe fn mul(job: &Job) {
    // SAFETY: by contract, `job` was checked.
    unsafe {
        match job.ty {
            TensorType::F16 => typed::<F16>(job),
            TensorType::BF16 => typed::<BF16>(job),
            _ => typed::<F32>(job),
        }
    }
}

/// # Safety
/// As of [`mul`], with weights of type `L`.
unsafe fn typed<L: Load>(job: &Job) {
    let mut t = job.tokens.start;
    while t < job.tokens.end {
        let left = job.tokens.end - t;
        let tokens = left.div_ceil(left.div_ceil(TOKENS));
        // SAFETY: the tokens are in range.
        unsafe {
            match tokens {
                1 => blocks::<L, 1>(job, t),
                2 => blocks::<L, 2>(job, t),
                _ => blocks::<L, 3>(job, t),
            }
        }
        t += tokens;
    }
}

/// All rows, two at a time, with `T` tokens from `t` on.
///
/// # Safety
/// As of [`typed`].
unsafe fn blocks<L: Load, const T: usize>(job: &Job, t: usize) {
    // SAFETY: rows and tokens are in range; the tokens' floats are padded to 16, and so are the
    // weights in a copy.
    unsafe {
        let x = job.x.float_row(t).cast_const();
        let x_stride = job.x.float_stride();
        let whole = job.cols / 16 * 16;
        let rest = (job.cols - whole) * L::BYTES;
        for r in (job.rows.start..job.rows.end).step_by(ROWS) {
            // An odd last row is its own partner.
            let pair = (r + 1).min(job.rows.end - 1);
            let w = [
                job.weights.add(r * job.row_bytes),
                job.weights.add(pair * job.row_bytes),
            ];
            let mut acc = [[[vdupq_n_f32(0.0); 4]; ROWS]; T];
            for k in (0..whole).step_by(16) {
                let w = [w[0].add(k * L::BYTES), w[1].add(k * L::BYTES)];
                step::<L, T>(w, x.add(k), x_stride, &mut acc);
            }
            if rest > 0 {
                let mut buffer = [[0u8; 64]; ROWS];
                for i in 0..ROWS {
                    let from = w[i].add(whole * L::BYTES);
                    std::ptr::copy_nonoverlapping(from, buffer[i].as_mut_ptr(), rest);
                }
                let w = [buffer[0].as_ptr(), buffer[1].as_ptr()];
                step::<L, T>(w, x.add(whole), x_stride, &mut acc);
            }
            for i in 0..T {
                let out = job.out.add((t + i) * job.out_stride);
                for (j, r) in [r, pair].into_iter().enumerate() {
                    let [a, b, c, d] = acc[i][j];
                    *out.add(r) = tree8(vaddq_f32(a, c), vaddq_f32(b, d));
                }
            }
        }
    }
}

/// Adds the products of 16 elements.
///
/// # Safety
/// The elements are readable.
#[inline(always)]
unsafe fn step<L: Load, const T: usize>(
    w: [*const u8; ROWS],
    x: *const f32,
    x_stride: usize,
    acc: &mut [[[float32x4_t; 4]; ROWS]; T],
) {
    // SAFETY: by contract, the elements are readable.
    unsafe {
        for v in 0..4 {
            let weights = [
                L::load(w[0].add(4 * v * L::BYTES)),
                L::load(w[1].add(4 * v * L::BYTES)),
            ];
            for t in 0..T {
                let x = vld1q_f32(x.add(t * x_stride + 4 * v));
                for i in 0..ROWS {
                    acc[t][i][v] = vfmaq_f32(acc[t][i][v], weights[i], x);
                }
            }
        }
    }
}
