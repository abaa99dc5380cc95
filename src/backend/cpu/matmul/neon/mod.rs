//! The products with NEON, with the dot product extension or without.
//!
//! As with the other vector units: few tokens, rows in place ([`matvec`]); many, a panel of rows
//! ([`gemm`]). Codes up to 127 are used as signed bytes as they are; types with larger ones are
//! unpacked as the signed numbers that they mean.

// See `avx512`.
#![allow(clippy::needless_range_loop)]

mod float;
mod gemm;
mod matvec;
mod unpack;

use super::Job;
use super::types::with_format;
use std::arch::aarch64::*;
use std::arch::asm;

/// Up to this many tokens, rows are read in place; above, they are unpacked first.
const MATVEC_TOKENS: usize = 4;

/// The product.
///
/// # Safety
/// `job` was checked by [`super::View::mul`].
pub(super) unsafe fn mul(job: &Job) {
    let few = job.tokens.len() <= MATVEC_TOKENS;
    let dotprod = std::arch::is_aarch64_feature_detected!("dotprod");
    // SAFETY: by contract, `View::mul` has checked `job`; every AArch64 processor has NEON.
    unsafe {
        with_format!(job.ty, F => match (few, dotprod) {
            (true, true) => matvec::mul_dotprod::<F>(job),
            (true, false) => matvec::mul_plain::<F>(job),
            (false, true) => gemm::mul_dotprod::<F>(job),
            (false, false) => gemm::mul_plain::<F>(job),
        }, _ => float::mul(job))
    }
}

/// Adds to each lane of `acc` four products.
///
/// # Safety
/// With `DOT`, the processor has the dot product extension and the caller is compiled for it. One
/// of the factors is never -128.
#[inline(always)]
unsafe fn dot<const DOT: bool>(acc: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: by contract, the caller is compiled for the extension that the processor has; the
    // instruction reads and writes registers alone.
    unsafe {
        if DOT {
            let mut acc = acc;
            asm!(
                "sdot {acc:v}.4s, {w:v}.16b, {x:v}.16b",
                acc = inout(vreg) acc,
                w = in(vreg) w,
                x = in(vreg) x,
                options(pure, nomem, nostack, preserves_flags)
            );
            acc
        } else {
            // Sums of two products stay below 2^15.
            let low = vmull_s8(vget_low_s8(w), vget_low_s8(x));
            let high = vmull_high_s8(w, x);
            vpadalq_s16(acc, vpaddq_s16(low, high))
        }
    }
}

/// The tree over 8 accumulators.
///
/// # Safety
/// NEON.
#[inline(always)]
unsafe fn tree8(low: float32x4_t, high: float32x4_t) -> f32 {
    // SAFETY: NEON.
    unsafe {
        let a = vaddq_f32(low, high);
        let a = vadd_f32(vget_low_f32(a), vget_high_f32(a));
        vget_lane_f32::<0>(a) + vget_lane_f32::<1>(a)
    }
}
