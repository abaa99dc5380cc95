//! Many tokens: a panel of rows is unpacked, then multiplied with blocks of tokens; a lane is a row.

use super::unpack::Unpack;
use crate::backend::cpu::matmul::Job;
use crate::backend::cpu::matmul::panel::{self, Panel, ROWS, visit};
use std::arch::x86_64::*;

/// Tokens of a block, with 16 rows.
const TOKENS: usize = 3;

/// The product.
///
/// # Safety
/// `job` was checked; [`super::available`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn mul<F: Unpack>(job: &Job) {
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
                for half in 0..rows.div_ceil(16) {
                    let rows = 16.min(rows - 16 * half);
                    match n {
                        1 => block::<F, 1>(job, &panel, r, half, rows, t),
                        2 => block::<F, 2>(job, &panel, r, half, rows, t),
                        _ => block::<F, 3>(job, &panel, r, half, rows, t),
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
        let four = F::codes(p);
        let s = F::scales(p);
        let mut codes = [0u32; 64];
        let mut scales = [0f32; 16];
        let mut minimums = [0f32; 16];
        for n in 0..8 {
            _mm256_storeu_si256(codes.as_mut_ptr().add(8 * n).cast(), four[n]);
        }
        for n in 0..2 {
            _mm256_storeu_ps(scales.as_mut_ptr().add(8 * n), s.scales[n]);
            _mm256_storeu_ps(minimums.as_mut_ptr().add(8 * n), s.minimums[n]);
        }
        panel::put::<F>(panel, i, c, &codes, &scales, &minimums);
    }
}

/// Multiplies half a panel with `T` tokens from `t` on.
///
/// # Safety
/// As of [`mul`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn block<F: Unpack, const T: usize>(
    job: &Job,
    panel: &Panel,
    r: usize,
    half: usize,
    rows: usize,
    t: usize,
) {
    let zero = _mm256_setzero_ps();
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
            sum = accumulator::<F, T>(job, panel, &x, half, visit(i, F::LANES));
            let mut level = 0;
            while i >> level & 1 == 1 {
                for t in 0..T {
                    for v in 0..2 {
                        sum[t][v] = _mm256_add_ps(waiting[level][t][v], sum[t][v]);
                    }
                }
                level += 1;
            }
            if level < 4 {
                waiting[level] = sum;
            }
        }
        for i in 0..T {
            let mut out = [0f32; 16];
            _mm256_storeu_ps(out.as_mut_ptr(), sum[i][0]);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), sum[i][1]);
            let to = job.out.add((t + i) * job.out_stride + r + 16 * half);
            std::ptr::copy_nonoverlapping(out.as_ptr(), to, rows);
        }
    }
}

/// Accumulator `lane` of 16 rows for each token.
///
/// # Safety
/// As of [`mul`].
#[inline(always)]
unsafe fn accumulator<F: Unpack, const T: usize>(
    job: &Job,
    panel: &Panel,
    x: &[*const u8; T],
    half: usize,
    lane: usize,
) -> [[__m256; 2]; T] {
    // SAFETY: the tokens' records and the panel have the groups; see `unpack` for the features.
    unsafe {
        let l = job.x.layout();
        let (sums, scaled) = if F::GROUP == 32 {
            (l.sums32, l.scaled32)
        } else {
            (l.sums16, l.scaled16)
        };
        // So many sums of pairs fit into 16 bits.
        let run = if F::SIGNED {
            1
        } else {
            (32767 / (254 * F::MAX as usize)).clamp(1, F::GROUP / 4)
        };
        let ones = _mm256_set1_epi16(1);
        let mut acc = [[_mm256_setzero_ps(); 2]; T];
        let mut place = visit(lane, F::LANES) * panel.chunks;
        let mut g = lane;
        let groups = job.cols / F::GROUP;
        while g < groups {
            let mut n = [[_mm256_setzero_si256(); 2]; T];
            let codes = panel.codes.add(place * F::GROUP * ROWS + 64 * half);
            let mut pairs = [[_mm256_setzero_si256(); 2]; T];
            for k in 0..F::GROUP / 4 {
                let w = [
                    _mm256_load_si256(codes.add(128 * k).cast()),
                    _mm256_load_si256(codes.add(128 * k + 32).cast()),
                ];
                for t in 0..T {
                    let at = x[t].add(g * F::GROUP + 4 * k).cast::<i32>();
                    let x = _mm256_set1_epi32(*at);
                    for v in 0..2 {
                        let p = if F::SIGNED {
                            _mm256_maddubs_epi16(_mm256_abs_epi8(w[v]), _mm256_sign_epi8(x, w[v]))
                        } else {
                            _mm256_maddubs_epi16(w[v], x)
                        };
                        pairs[t][v] = if k % run == 0 {
                            p
                        } else {
                            _mm256_add_epi16(pairs[t][v], p)
                        };
                        if k % run == run - 1 || k == F::GROUP / 4 - 1 {
                            let four = _mm256_madd_epi16(pairs[t][v], ones);
                            n[t][v] = _mm256_add_epi32(n[t][v], four);
                        }
                    }
                }
            }
            let s = panel.scales.add(place * ROWS + 16 * half);
            let m = panel.minimums.add(place * ROWS + 16 * half);
            for t in 0..T {
                let da = _mm256_set1_ps(*x[t].add(l.scales + g * F::GROUP / 32 * 4).cast());
                let mut zero = _mm256_setzero_si256();
                if let (Some(shift), false) = (F::ZERO_LOG2, F::SIGNED) {
                    let sum = _mm256_set1_epi32(*x[t].add(sums + 4 * g).cast::<i32>());
                    zero = _mm256_sll_epi32(sum, _mm_cvtsi32_si128(shift as i32));
                }
                for v in 0..2 {
                    let n = _mm256_cvtepi32_ps(_mm256_add_epi32(n[t][v], zero));
                    let s = _mm256_load_ps(s.add(8 * v));
                    acc[t][v] = _mm256_fmadd_ps(_mm256_mul_ps(n, da), s, acc[t][v]);
                    if F::MINIMUM {
                        let sum = _mm256_set1_ps(*x[t].add(scaled + 4 * g).cast());
                        let m = _mm256_load_ps(m.add(8 * v));
                        acc[t][v] = _mm256_fmadd_ps(sum, m, acc[t][v]);
                    }
                }
            }
            g += F::LANES;
            place += 1;
        }
        acc
    }
}
