//! Few tokens: rows are read in place, two at a time; a lane is an accumulator of a row.

use super::unpack::{Unpack, four};
use crate::backend::cpu::matmul::Job;
use std::arch::x86_64::*;

/// The product for 1 to 4 tokens.
///
/// # Safety
/// `job` was checked; [`super::available`].
pub(super) unsafe fn mul<F: Unpack>(job: &Job) {
    // SAFETY: by contract, `job` was checked, and the processor has the features.
    unsafe {
        match job.tokens.len() {
            1 => tokens::<F, 1>(job),
            2 => tokens::<F, 2>(job),
            3 => tokens::<F, 3>(job),
            _ => tokens::<F, 4>(job),
        }
    }
}

/// # Safety
/// As of [`mul`], with `T` tokens.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn tokens<F: Unpack, const T: usize>(job: &Job) {
    // SAFETY: rows and tokens are in range. The last chunk may be shorter than `CHUNK_BYTES`; it
    // is copied to memory of that size, where zeros follow.
    unsafe {
        let mut x = [job.x.byte_row(job.tokens.start).cast_const(); T];
        for t in 1..T {
            x[t] = job.x.byte_row(job.tokens.start + t);
        }
        let whole = job.cols / 256;
        let rest = job.row_bytes - whole * F::CHUNK_BYTES;
        let ahead = job.ahead();
        let mut r = job.rows.start;
        while r < job.rows.end {
            // An odd last row is its own partner.
            let pair = if r + 1 < job.rows.end { r + 1 } else { r };
            let rows = [
                job.weights.add(r * job.row_bytes),
                job.weights.add(pair * job.row_bytes),
            ];
            let mut acc = [[_mm512_setzero_ps(); 2]; T];
            for c in 0..whole {
                let at = c * F::CHUNK_BYTES;
                let p = [rows[0].add(at), rows[1].add(at)];
                for i in 0..2 {
                    for line in 0..F::CHUNK_BYTES.div_ceil(64) {
                        let at = p[i].wrapping_add(ahead + line * 64);
                        _mm_prefetch::<_MM_HINT_T0>(at.cast());
                    }
                }
                chunk::<F, T>(job, p, &x, c, &mut acc);
            }
            if rest > 0 {
                // More than any type's chunk of 32-element blocks.
                let mut buffer = [[0u8; 320]; 2];
                for i in 0..2 {
                    let tail = rows[i].add(whole * F::CHUNK_BYTES);
                    std::ptr::copy_nonoverlapping(tail, buffer[i].as_mut_ptr(), rest);
                }
                let p = [buffer[0].as_ptr(), buffer[1].as_ptr()];
                chunk::<F, T>(job, p, &x, whole, &mut acc);
            }
            for t in 0..T {
                let acc = acc[t];
                let out = job.out.add((job.tokens.start + t) * job.out_stride);
                let sums = if F::GROUP == 32 {
                    tree8x2(acc[0])
                } else {
                    // The first level; then both rows are as with groups of 32.
                    let low = _mm512_shuffle_f32x4::<0x44>(acc[0], acc[1]);
                    let high = _mm512_shuffle_f32x4::<0xEE>(acc[0], acc[1]);
                    tree8x2(_mm512_add_ps(low, high))
                };
                *out.add(r) = sums[0];
                *out.add(pair) = sums[1];
            }
            r += 2;
        }
    }
}

/// Adds the products of 256 elements of two rows. With groups of 32, `acc[t][0]` holds the eight
/// accumulators of the first row and then those of the second; else `acc[t]` one vector for each.
///
/// # Safety
/// See [`super::unpack`]; chunk `c` of the tokens is in range.
#[inline(always)]
unsafe fn chunk<F: Unpack, const T: usize>(
    job: &Job,
    p: [*const u8; 2],
    x: &[*const u8; T],
    c: usize,
    acc: &mut [[__m512; 2]; T],
) {
    // SAFETY: by contract, the processor has the features, and chunk `c` of the tokens is in range.
    unsafe {
        let l = job.x.layout();
        let codes = [F::codes(p[0]), F::codes(p[1])];
        let scales = [F::scales(p[0]), F::scales(p[1])];
        if F::GROUP == 32 {
            let s = _mm512_shuffle_f32x4::<0x44>(scales[0], scales[1]);
            let m = _mm512_shuffle_f32x4::<0xEE>(scales[0], scales[1]);
            for t in 0..T {
                let (x, acc) = (x[t], &mut acc[t]);
                let q = x.add(c * 256);
                let a = four_lanes(products(codes[0], q));
                let b = four_lanes(products(codes[1], q));
                let mut n = eight_lanes(a, b);
                if let Some(shift) = F::ZERO_LOG2 {
                    let sums = _mm256_load_si256(x.add(l.sums32 + c * 32).cast());
                    let sums = _mm512_broadcast_i32x8(sums);
                    n = _mm512_add_epi32(n, shifted(sums, shift));
                }
                let da = _mm256_load_ps(x.add(l.scales + c * 32).cast());
                let f = _mm512_mul_ps(_mm512_cvtepi32_ps(n), _mm512_broadcast_f32x8(da));
                acc[0] = _mm512_fmadd_ps(f, s, acc[0]);
                if F::MINIMUM {
                    let sums = _mm256_load_ps(x.add(l.scaled32 + c * 32).cast());
                    acc[0] = _mm512_fmadd_ps(_mm512_broadcast_f32x8(sums), m, acc[0]);
                }
            }
        } else {
            let twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
            let minimums = [F::minimums(p[0]), F::minimums(p[1])];
            for t in 0..T {
                let (x, acc) = (x[t], &mut acc[t]);
                let da = _mm256_load_ps(x.add(l.scales + c * 32).cast());
                let da = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(da));
                for i in 0..2 {
                    let mut n = sixteen_lanes(products(codes[i], x.add(c * 256)));
                    if let Some(shift) = F::ZERO_LOG2 {
                        let sums = _mm512_loadu_si512(x.add(l.sums16 + c * 64).cast());
                        n = _mm512_add_epi32(n, shifted(sums, shift));
                    }
                    let f = _mm512_mul_ps(_mm512_cvtepi32_ps(n), da);
                    acc[i] = _mm512_fmadd_ps(f, scales[i], acc[i]);
                    if F::MINIMUM {
                        let sums = _mm512_loadu_ps(x.add(l.scaled16 + c * 64).cast());
                        acc[i] = _mm512_fmadd_ps(sums, minimums[i], acc[i]);
                    }
                }
            }
        }
    }
}

/// `v << by`.
#[inline(always)]
unsafe fn shifted(v: __m512i, by: u32) -> __m512i {
    // SAFETY: see `unpack`.
    unsafe { _mm512_sll_epi32(v, _mm_cvtsi32_si128(by as i32)) }
}

/// Sums of four products each: lane `4 * n + ..` of register `i` belongs to the elements
/// `64 * i + 16 * n ..`.
#[inline(always)]
unsafe fn products(codes: [__m512i; 4], q: *const u8) -> [__m512i; 4] {
    // SAFETY: see `chunk`.
    unsafe {
        four!(i => {
            let x = _mm512_load_si512(q.add(64 * i).cast());
            _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes[i], x)
        })
    }
}

/// Adds lanes 0 and 2, 1 and 3 of each four. Of the result's four, lanes 0 and 2 are from `a`, 1 and 3
/// from `b`.
#[inline(always)]
unsafe fn two_lanes(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: see `unpack`.
    unsafe { _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b)) }
}

/// Lane `4 * n + i` is the sum of lanes `4 * n ..` of register `i`.
#[inline(always)]
unsafe fn four_lanes(d: [__m512i; 4]) -> __m512i {
    // SAFETY: see `unpack`.
    unsafe {
        let (a, b) = (two_lanes(d[0], d[1]), two_lanes(d[2], d[3]));
        _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b))
    }
}

/// From two results of [`four_lanes`] the sums of groups of 32: eight of `a`, eight of `b`.
#[inline(always)]
unsafe fn eight_lanes(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: see `unpack`.
    unsafe {
        let i = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 16, 24, 17, 25, 18, 26, 19, 27);
        let j = _mm512_add_epi32(i, _mm512_set1_epi32(4));
        _mm512_add_epi32(
            _mm512_permutex2var_epi32(a, i, b),
            _mm512_permutex2var_epi32(a, j, b),
        )
    }
}

/// The sums of groups of 16.
#[inline(always)]
unsafe fn sixteen_lanes(d: [__m512i; 4]) -> __m512i {
    // SAFETY: see `unpack`.
    unsafe {
        let (a, b) = (two_lanes(d[0], d[1]), two_lanes(d[2], d[3]));
        let i = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 16, 20, 24, 28, 17, 21, 25, 29);
        let j = _mm512_add_epi32(i, _mm512_set1_epi32(2));
        _mm512_add_epi32(
            _mm512_permutex2var_epi32(a, i, b),
            _mm512_permutex2var_epi32(a, j, b),
        )
    }
}

/// The trees over two times 8 accumulators.
#[inline(always)]
unsafe fn tree8x2(a: __m512) -> [f32; 2] {
    // SAFETY: see `unpack`.
    unsafe {
        // Of each half, the lower 128 bits and the upper.
        let low = _mm512_castps512_ps256(_mm512_shuffle_f32x4::<0b10_00_10_00>(a, a));
        let high = _mm512_castps512_ps256(_mm512_shuffle_f32x4::<0b11_01_11_01>(a, a));
        let a = _mm256_add_ps(low, high);
        let a = _mm256_add_ps(a, _mm256_permute_ps::<0b11_10_11_10>(a));
        let a = _mm256_add_ps(a, _mm256_movehdup_ps(a));
        [
            _mm256_cvtss_f32(a),
            _mm_cvtss_f32(_mm256_extractf128_ps::<1>(a)),
        ]
    }
}
