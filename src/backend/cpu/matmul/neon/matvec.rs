//! Few tokens: rows are read in place; a lane is an accumulator of the row.

use super::unpack::{Unpack, scales};
use super::{dot, tree8};
use crate::backend::cpu::matmul::Job;
use std::arch::aarch64::*;

/// The product for 1 to 4 tokens, with the dot product extension.
///
/// # Safety
/// `job` was checked; the processor has the extension.
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn mul_dotprod<F: Unpack>(job: &Job) {
    // SAFETY: by contract, `job` was checked, and the processor has the extension.
    unsafe { mul::<F, true>(job) }
}

/// The product for 1 to 4 tokens.
///
/// # Safety
/// `job` was checked.
#[target_feature(enable = "neon")]
pub(super) unsafe fn mul_plain<F: Unpack>(job: &Job) {
    // SAFETY: by contract, `job` was checked.
    unsafe { mul::<F, false>(job) }
}

/// # Safety
/// As of [`mul_dotprod`] or [`mul_plain`].
#[inline(always)]
unsafe fn mul<F: Unpack, const DOT: bool>(job: &Job) {
    // SAFETY: by contract, `job` was checked, and the processor has what `DOT` asks for.
    unsafe {
        match job.tokens.len() {
            1 => tokens::<F, DOT, 1>(job),
            2 => tokens::<F, DOT, 2>(job),
            3 => tokens::<F, DOT, 3>(job),
            _ => tokens::<F, DOT, 4>(job),
        }
    }
}

/// # Safety
/// As of [`mul`], with `T` tokens.
#[inline(always)]
unsafe fn tokens<F: Unpack, const DOT: bool, const T: usize>(job: &Job) {
    // SAFETY: rows and tokens are in range. The last chunk may be shorter than `CHUNK_BYTES`; it
    // is copied to memory of that size, where zeros follow.
    unsafe {
        let mut x = [job.x.byte_row(job.tokens.start).cast_const(); T];
        for t in 1..T {
            x[t] = job.x.byte_row(job.tokens.start + t);
        }
        let whole = job.cols / 256;
        let rest = job.row_bytes - whole * F::CHUNK_BYTES;
        for r in job.rows.start..job.rows.end {
            let row = job.weights.add(r * job.row_bytes);
            let mut acc = [[vdupq_n_f32(0.0); 4]; T];
            for c in 0..whole {
                chunk::<F, DOT, T>(job, row.add(c * F::CHUNK_BYTES), &x, c, &mut acc);
            }
            if rest > 0 {
                // More than any type's chunk of 32-element blocks.
                let mut buffer = [0u8; 320];
                let tail = row.add(whole * F::CHUNK_BYTES);
                std::ptr::copy_nonoverlapping(tail, buffer.as_mut_ptr(), rest);
                chunk::<F, DOT, T>(job, buffer.as_ptr(), &x, whole, &mut acc);
            }
            for t in 0..T {
                let [a, b, c, d] = acc[t];
                let sum = if F::GROUP == 32 {
                    tree8(a, b)
                } else {
                    tree8(vaddq_f32(a, c), vaddq_f32(b, d))
                };
                *job.out.add((job.tokens.start + t) * job.out_stride + r) = sum;
            }
        }
    }
}

/// Adds the products of 256 elements. With groups of 32 only half of `acc[t]` is used.
///
/// # Safety
/// See [`super::unpack`]; chunk `c` of the tokens is in range.
#[inline(always)]
unsafe fn chunk<F: Unpack, const DOT: bool, const T: usize>(
    job: &Job,
    p: *const u8,
    x: &[*const u8; T],
    c: usize,
    acc: &mut [[float32x4_t; 4]; T],
) {
    // SAFETY: by contract, the processor has the features, and chunk `c` of the tokens is in range.
    unsafe {
        let l = job.x.layout();
        let (s, m) = scales::<F>(p);
        let (sums, scaled) = if F::GROUP == 32 {
            (l.sums32, l.scaled32)
        } else {
            (l.sums16, l.scaled16)
        };
        // Registers of a group.
        let per = F::GROUP / 16;
        for quad in 0..F::LANES / 4 {
            let mut codes = [vdupq_n_s8(0); 8];
            for i in 0..4 * per {
                codes[i] = F::codes(p, 4 * per * quad + i);
            }
            let s = vld1q_f32(s.as_ptr().add(4 * quad));
            let m = vld1q_f32(m.as_ptr().add(4 * quad));
            for t in 0..T {
                let q: *const i8 = x[t].add(c * 256 + 4 * F::GROUP * quad).cast();
                let mut d = [vdupq_n_s32(0); 4];
                for i in 0..4 {
                    for j in 0..per {
                        let x = vld1q_s8(q.add(16 * (per * i + j)));
                        d[i] = dot::<DOT>(d[i], codes[per * i + j], x);
                    }
                }
                let mut n = vpaddq_s32(vpaddq_s32(d[0], d[1]), vpaddq_s32(d[2], d[3]));
                // Four groups from this one on.
                let g = c * F::LANES + 4 * quad;
                if let (Some(shift), false) = (F::ZERO_LOG2, F::SIGNED) {
                    let sums = vld1q_s32(x[t].add(sums + 4 * g).cast());
                    n = vaddq_s32(n, vshlq_s32(sums, vdupq_n_s32(shift as i32)));
                }
                let scale: *const f32 = x[t].add(l.scales).cast();
                let da = if F::GROUP == 32 {
                    vld1q_f32(scale.add(g))
                } else {
                    let two = vld1_f32(scale.add(g / 2));
                    vcombine_f32(vdup_lane_f32::<0>(two), vdup_lane_f32::<1>(two))
                };
                let f = vmulq_f32(vcvtq_f32_s32(n), da);
                acc[t][quad] = vfmaq_f32(acc[t][quad], f, s);
                if F::MINIMUM {
                    let sums = vld1q_f32(x[t].add(scaled + 4 * g).cast());
                    acc[t][quad] = vfmaq_f32(acc[t][quad], sums, m);
                }
            }
        }
    }
}
