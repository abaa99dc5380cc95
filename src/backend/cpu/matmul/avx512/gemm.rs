//! Many tokens: 32 rows at a time are unpacked into a panel in the scratch memory, then multiplied
//! with blocks of up to six tokens; a lane is a row.

use super::transpose::transpose;
use super::unpack::Unpack;
use crate::backend::cpu::matmul::Job;
use crate::backend::cpu::matmul::panel::{Panel, ROWS, visit};
use std::arch::x86_64::*;

/// Tokens of a block: with 32 rows, as many as the registers hold.
const TOKENS: usize = 6;

/// The product.
///
/// # Safety
/// `job` was checked; [`super::available`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn mul<F: Unpack>(job: &Job) {
    // SAFETY: rows and tokens are in range, the scratch memory is large enough for a panel.
    unsafe {
        let panel = Panel::new::<F>(job);
        let mut r = job.rows.start;
        while r < job.rows.end {
            let rows = ROWS.min(job.rows.end - r);
            fill::<F>(job, &panel, r, rows);
            // Blocks of nearly equal size.
            let mut t = job.tokens.start;
            while t < job.tokens.end {
                let left = job.tokens.end - t;
                let n = left.div_ceil(left.div_ceil(TOKENS));
                match n {
                    1 => block::<F, 1>(job, &panel, r, rows, t),
                    2 => block::<F, 2>(job, &panel, r, rows, t),
                    3 => block::<F, 3>(job, &panel, r, rows, t),
                    4 => block::<F, 4>(job, &panel, r, rows, t),
                    5 => block::<F, 5>(job, &panel, r, rows, t),
                    _ => block::<F, 6>(job, &panel, r, rows, t),
                }
                t += n;
            }
            r += ROWS;
        }
    }
}

/// Unpacks `rows` (up to 32) rows from `r` on; those that lack are copies of the last.
///
/// # Safety
/// As of [`mul`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn fill<F: Unpack>(job: &Job, panel: &Panel, r: usize, rows: usize) {
    let zero = _mm512_setzero_si512();
    // SAFETY: rows are in range, the panel has room; the last chunk of a row, if shorter than
    // `CHUNK_BYTES`, is read from a copy of that size.
    unsafe {
        for half in 0..2 {
            for c in 0..panel.chunks {
                let at = c * F::CHUNK_BYTES;
                let here = (job.row_bytes - at).min(F::CHUNK_BYTES);
                let mut codes = [[zero; 16]; 4];
                let mut scales = [zero; 16];
                let mut minimums = [zero; 16];
                for i in 0..16 {
                    let row = r + (16 * half + i).min(rows - 1);
                    let mut p = job.weights.add(row * job.row_bytes + at);
                    let mut buffer = [0u8; 320];
                    if here < F::CHUNK_BYTES {
                        std::ptr::copy_nonoverlapping(p, buffer.as_mut_ptr(), here);
                        p = buffer.as_ptr();
                    }
                    let four = F::codes(p);
                    for n in 0..4 {
                        codes[n][i] = four[n];
                    }
                    scales[i] = _mm512_castps_si512(F::scales(p));
                    if F::MINIMUM && F::GROUP == 16 {
                        minimums[i] = _mm512_castps_si512(F::minimums(p));
                    }
                }
                for n in 0..4 {
                    let words = transpose(&codes[n]);
                    for i in 0..16 {
                        let k = 64 * n + 4 * i;
                        let g = panel.place::<F>(c * F::LANES + k / F::GROUP);
                        let at = (g * F::GROUP + k % F::GROUP) * ROWS + half * 64;
                        _mm512_storeu_si512(panel.codes.add(at).cast(), words[i]);
                    }
                }
                let scales = transpose(&scales);
                for i in 0..16 {
                    let g = panel.place::<F>(c * F::LANES + i % F::LANES);
                    let at = g * ROWS + half * 16;
                    if i < F::LANES {
                        _mm512_storeu_si512(panel.scales.add(at).cast(), scales[i]);
                    } else if F::MINIMUM {
                        _mm512_storeu_si512(panel.minimums.add(at).cast(), scales[i]);
                    }
                }
                if F::MINIMUM && F::GROUP == 16 {
                    let minimums = transpose(&minimums);
                    for i in 0..16 {
                        let at = panel.place::<F>(c * F::LANES + i) * ROWS + half * 16;
                        _mm512_storeu_si512(panel.minimums.add(at).cast(), minimums[i]);
                    }
                }
            }
        }
    }
}

/// Multiplies the panel with `T` tokens from `t` on.
///
/// # Safety
/// As of [`mul`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn block<F: Unpack, const T: usize>(
    job: &Job,
    panel: &Panel,
    r: usize,
    rows: usize,
    t: usize,
) {
    let zero = _mm512_setzero_ps();
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
            sum = accumulator::<F, T>(job, panel, &x, visit(i, F::LANES));
            let mut level = 0;
            while i >> level & 1 == 1 {
                for t in 0..T {
                    for half in 0..2 {
                        sum[t][half] = _mm512_add_ps(waiting[level][t][half], sum[t][half]);
                    }
                }
                level += 1;
            }
            if level < 4 {
                waiting[level] = sum;
            }
        }
        let out = job.out.add(t * job.out_stride + r);
        let mask = ((1u64 << rows) - 1) as u32;
        for t in 0..T {
            let out = out.add(t * job.out_stride);
            _mm512_mask_storeu_ps(out, mask as u16, sum[t][0]);
            _mm512_mask_storeu_ps(out.wrapping_add(16), (mask >> 16) as u16, sum[t][1]);
        }
    }
}

/// Accumulator `lane` of 32 rows for each token.
///
/// # Safety
/// As of [`mul`].
#[inline(always)]
unsafe fn accumulator<F: Unpack, const T: usize>(
    job: &Job,
    panel: &Panel,
    x: &[*const u8; T],
    lane: usize,
) -> [[__m512; 2]; T] {
    // SAFETY: the tokens' records and the panel have the groups; see `unpack` for the features.
    unsafe {
        let l = job.x.layout();
        let (sums, scaled) = if F::GROUP == 32 {
            (l.sums32, l.scaled32)
        } else {
            (l.sums16, l.scaled16)
        };
        let mut acc = [[_mm512_setzero_ps(); 2]; T];
        let mut place = visit(lane, F::LANES) * panel.chunks;
        let mut g = lane;
        let groups = job.cols / F::GROUP;
        while g < groups {
            let mut n = [[_mm512_setzero_si512(); 2]; T];
            if let Some(shift) = F::ZERO_LOG2 {
                let shift = _mm_cvtsi32_si128(shift as i32);
                for t in 0..T {
                    let sum = _mm512_set1_epi32(*x[t].add(sums + 4 * g).cast::<i32>());
                    n[t] = [_mm512_sll_epi32(sum, shift); 2];
                }
            }
            let codes = panel.codes.add(place * F::GROUP * ROWS);
            for k in 0..F::GROUP / 4 {
                let w0 = _mm512_load_si512(codes.add(128 * k).cast());
                let w1 = _mm512_load_si512(codes.add(128 * k + 64).cast());
                for t in 0..T {
                    let at = x[t].add(g * F::GROUP + 4 * k).cast::<i32>();
                    let x = _mm512_set1_epi32(*at);
                    n[t][0] = _mm512_dpbusd_epi32(n[t][0], w0, x);
                    n[t][1] = _mm512_dpbusd_epi32(n[t][1], w1, x);
                }
            }
            let s = pair(panel.scales.add(place * ROWS));
            for t in 0..T {
                let da = _mm512_set1_ps(*x[t].add(l.scales + g * F::GROUP / 32 * 4).cast());
                for half in 0..2 {
                    let f = _mm512_mul_ps(_mm512_cvtepi32_ps(n[t][half]), da);
                    acc[t][half] = _mm512_fmadd_ps(f, s[half], acc[t][half]);
                }
            }
            if F::MINIMUM {
                let m = pair(panel.minimums.add(place * ROWS));
                for t in 0..T {
                    let sum = _mm512_set1_ps(*x[t].add(scaled + 4 * g).cast());
                    for half in 0..2 {
                        acc[t][half] = _mm512_fmadd_ps(sum, m[half], acc[t][half]);
                    }
                }
            }
            g += F::LANES;
            place += 1;
        }
        acc
    }
}

/// 32 numbers.
///
/// # Safety
/// `p` is aligned and has them; see [`super::unpack`].
#[inline(always)]
unsafe fn pair(p: *const f32) -> [__m512; 2] {
    // SAFETY: by contract, `p` is aligned and has the elements, and the processor has the features.
    unsafe { [_mm512_load_ps(p), _mm512_load_ps(p.add(16))] }
}
