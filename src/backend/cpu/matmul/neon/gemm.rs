//! Many tokens: a panel of rows is unpacked, then multiplied with blocks of tokens; a lane is a row.

use super::dot;
use super::unpack::{Unpack, scales};
use crate::backend::cpu::matmul::Job;
use crate::backend::cpu::matmul::panel::{self, Panel, ROWS, visit};
use std::arch::aarch64::*;

/// Tokens of a block, with 8 rows.
const TOKENS: usize = 6;

/// The product, with the dot product extension.
///
/// # Safety
/// `job` was checked; the processor has the extension.
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn mul_dotprod<F: Unpack>(job: &Job) {
    // SAFETY: by contract, `job` was checked, and the processor has the extension.
    unsafe { mul::<F, true>(job) }
}

/// The product.
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
    // SAFETY: rows and tokens are in range, the scratch memory is large enough for a panel.
    unsafe {
        let panel = Panel::new::<F>(job);
        let mut r = job.rows.start;
        while r < job.rows.end {
            let rows = ROWS.min(job.rows.end - r);
            // A chunk of all rows stays in the first cache while its words are scattered.
            for c in 0..panel.chunks {
                for i in 0..rows {
                    fill::<F>(job, &panel, r + i, i, c);
                }
            }
            let mut t = job.tokens.start;
            while t < job.tokens.end {
                let left = job.tokens.end - t;
                let n = left.div_ceil(left.div_ceil(TOKENS));
                for part in 0..rows.div_ceil(8) {
                    let rows = 8.min(rows - 8 * part);
                    match n {
                        1 => block::<F, DOT, 1>(job, &panel, r, part, rows, t),
                        2 => block::<F, DOT, 2>(job, &panel, r, part, rows, t),
                        3 => block::<F, DOT, 3>(job, &panel, r, part, rows, t),
                        4 => block::<F, DOT, 4>(job, &panel, r, part, rows, t),
                        5 => block::<F, DOT, 5>(job, &panel, r, part, rows, t),
                        _ => block::<F, DOT, 6>(job, &panel, r, part, rows, t),
                    }
                }
                t += n;
            }
            r += ROWS;
        }
    }
}

/// Unpacks chunk `c` of row `r` to row `i` of the panel.
///
/// # Safety
/// As of [`mul`].
#[inline(always)]
unsafe fn fill<F: Unpack>(job: &Job, panel: &Panel, r: usize, i: usize, c: usize) {
    // SAFETY: the row is in range; a chunk shorter than `CHUNK_BYTES` is read from a copy.
    unsafe {
        let at = c * F::CHUNK_BYTES;
        let here = (job.row_bytes - at).min(F::CHUNK_BYTES);
        let mut p = job.weights.add(r * job.row_bytes + at);
        let mut buffer = [0u8; 320];
        if here < F::CHUNK_BYTES {
            std::ptr::copy_nonoverlapping(p, buffer.as_mut_ptr(), here);
            p = buffer.as_ptr();
        }
        let mut codes = [0u32; 64];
        for n in 0..16 {
            vst1q_s8(codes.as_mut_ptr().add(4 * n).cast(), F::codes(p, n));
        }
        let (scales, minimums) = scales::<F>(p);
        panel::put::<F>(panel, i, c, &codes, &scales, &minimums);
    }
}

/// Multiplies 8 rows of a panel with `T` tokens from `t` on.
///
/// # Safety
/// As of [`mul`].
#[inline(always)]
unsafe fn block<F: Unpack, const DOT: bool, const T: usize>(
    job: &Job,
    panel: &Panel,
    r: usize,
    part: usize,
    rows: usize,
    t: usize,
) {
    // SAFETY: NEON.
    let zero = unsafe { vdupq_n_f32(0.0) };
    // Sums of subtrees that wait for their right neighbour: at most one per level.
    let mut waiting = [[[zero; 2]; T]; 4];
    let mut sum = [[zero; 2]; T];
    // SAFETY: tokens are in range and the panel is filled.
    unsafe {
        let mut x = [job.x.byte_row(t).cast_const(); T];
        for i in 1..T {
            x[i] = job.x.byte_row(t + i);
        }
        for i in 0..F::LANES {
            sum = accumulator::<F, DOT, T>(job, panel, &x, part, visit(i, F::LANES));
            let mut level = 0;
            while i >> level & 1 == 1 {
                for t in 0..T {
                    for v in 0..2 {
                        sum[t][v] = vaddq_f32(waiting[level][t][v], sum[t][v]);
                    }
                }
                level += 1;
            }
            if level < 4 {
                waiting[level] = sum;
            }
        }
        for i in 0..T {
            let mut out = [0f32; 8];
            vst1q_f32(out.as_mut_ptr(), sum[i][0]);
            vst1q_f32(out.as_mut_ptr().add(4), sum[i][1]);
            let to = job.out.add((t + i) * job.out_stride + r + 8 * part);
            std::ptr::copy_nonoverlapping(out.as_ptr(), to, rows);
        }
    }
}

/// Accumulator `lane` of 8 rows for each token.
///
/// # Safety
/// As of [`mul`].
#[inline(always)]
unsafe fn accumulator<F: Unpack, const DOT: bool, const T: usize>(
    job: &Job,
    panel: &Panel,
    x: &[*const u8; T],
    part: usize,
    lane: usize,
) -> [[float32x4_t; 2]; T] {
    // SAFETY: the tokens' records and the panel have the groups; see `unpack` for the features.
    unsafe {
        let l = job.x.layout();
        let (sums, scaled) = if F::GROUP == 32 {
            (l.sums32, l.scaled32)
        } else {
            (l.sums16, l.scaled16)
        };
        let mut acc = [[vdupq_n_f32(0.0); 2]; T];
        let mut place = visit(lane, F::LANES) * panel.chunks;
        let mut g = lane;
        let groups = job.cols / F::GROUP;
        while g < groups {
            let mut n = [[vdupq_n_s32(0); 2]; T];
            let codes: *const i8 = panel.codes.add(place * F::GROUP * ROWS + 32 * part).cast();
            for k in 0..F::GROUP / 4 {
                let w = [
                    vld1q_s8(codes.add(128 * k)),
                    vld1q_s8(codes.add(128 * k + 16)),
                ];
                for t in 0..T {
                    let at = x[t].add(g * F::GROUP + 4 * k).cast::<i32>();
                    let x = vreinterpretq_s8_s32(vld1q_dup_s32(at));
                    for v in 0..2 {
                        n[t][v] = dot::<DOT>(n[t][v], w[v], x);
                    }
                }
            }
            let s = panel.scales.add(place * ROWS + 8 * part);
            let m = panel.minimums.add(place * ROWS + 8 * part);
            for t in 0..T {
                let da = *x[t].add(l.scales + g * F::GROUP / 32 * 4).cast::<f32>();
                let mut zero = 0;
                if let (Some(shift), false) = (F::ZERO_LOG2, F::SIGNED) {
                    zero = *x[t].add(sums + 4 * g).cast::<i32>() << shift;
                }
                for v in 0..2 {
                    let n = vcvtq_f32_s32(vaddq_s32(n[t][v], vdupq_n_s32(zero)));
                    let f = vmulq_f32(n, vdupq_n_f32(da));
                    acc[t][v] = vfmaq_f32(acc[t][v], f, vld1q_f32(s.add(4 * v)));
                    if F::MINIMUM {
                        let sum = vdupq_n_f32(*x[t].add(scaled + 4 * g).cast());
                        acc[t][v] = vfmaq_f32(acc[t][v], sum, vld1q_f32(m.add(4 * v)));
                    }
                }
            }
            g += F::LANES;
            place += 1;
        }
        acc
    }
}
