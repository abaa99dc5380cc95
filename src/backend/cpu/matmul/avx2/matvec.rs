//! Few tokens: rows are read in place; a lane is an accumulator of the row.

use super::unpack::Unpack;
use crate::backend::cpu::matmul::Job;
use std::arch::x86_64::*;

/// The product, up to four tokens at a time.
///
/// # Safety
/// `job` was checked; [`super::available`].
pub(super) unsafe fn mul<F: Unpack>(job: &Job) {
    let mut t = job.tokens.start;
    while t < job.tokens.end {
        let left = job.tokens.end - t;
        let n = left.div_ceil(left.div_ceil(4));
        // SAFETY: the tokens are in range.
        unsafe {
            match n {
                1 => tokens::<F, 1>(job, t),
                2 => tokens::<F, 2>(job, t),
                3 => tokens::<F, 3>(job, t),
                _ => tokens::<F, 4>(job, t),
            }
        }
        t += n;
    }
}

/// The product for `T` tokens from `first` on.
///
/// # Safety
/// As of [`mul`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tokens<F: Unpack, const T: usize>(job: &Job, first: usize) {
    // SAFETY: rows and tokens are in range. The last chunk may be shorter than `CHUNK_BYTES`; it
    // is copied to memory of that size, where zeros follow.
    unsafe {
        let mut x = [job.x.byte_row(first).cast_const(); T];
        for t in 1..T {
            x[t] = job.x.byte_row(first + t);
        }
        let whole = job.cols / 256;
        let rest = job.row_bytes - whole * F::CHUNK_BYTES;
        let ahead = job.ahead();
        for r in job.rows.start..job.rows.end {
            let row = job.weights.add(r * job.row_bytes);
            let mut acc = [[_mm256_setzero_ps(); 2]; T];
            for c in 0..whole {
                let p = row.add(c * F::CHUNK_BYTES);
                for line in 0..F::CHUNK_BYTES.div_ceil(64) {
                    let at = p.wrapping_add(ahead + line * 64);
                    _mm_prefetch::<_MM_HINT_T0>(at.cast());
                }
                chunk::<F, T>(job, p, &x, c, &mut acc);
            }
            if rest > 0 {
                // More than any type's chunk of 32-element blocks.
                let mut buffer = [0u8; 320];
                let tail = row.add(whole * F::CHUNK_BYTES);
                std::ptr::copy_nonoverlapping(tail, buffer.as_mut_ptr(), rest);
                chunk::<F, T>(job, buffer.as_ptr(), &x, whole, &mut acc);
            }
            for t in 0..T {
                let sum = if F::GROUP == 32 {
                    acc[t][0]
                } else {
                    _mm256_add_ps(acc[t][0], acc[t][1])
                };
                *job.out.add((first + t) * job.out_stride + r) = tree8(sum);
            }
        }
    }
}

/// Adds the products of 256 elements. With groups of 32 only `acc[t][0]` is used.
///
/// # Safety
/// See [`super::unpack`]; chunk `c` of the tokens is in range.
#[inline(always)]
unsafe fn chunk<F: Unpack, const T: usize>(
    job: &Job,
    p: *const u8,
    x: &[*const u8; T],
    c: usize,
    acc: &mut [[__m256; 2]; T],
) {
    // SAFETY: by contract, the processor has the features, and chunk `c` of the tokens is in range;
    // the parts of a token's record are aligned to 32 bytes.
    unsafe {
        let l = job.x.layout();
        let codes = F::codes(p);
        let scales = F::scales(p);
        let (sums, scaled, parts) = if F::GROUP == 32 {
            (l.sums32, l.scaled32, 1)
        } else {
            (l.sums16, l.scaled16, 2)
        };
        for t in 0..T {
            let mut d = [_mm256_setzero_si256(); 8];
            for i in 0..8 {
                let x = _mm256_load_si256(x[t].add(c * 256 + 32 * i).cast());
                d[i] = products::<F>(codes[i], x);
            }
            // Four lanes of each; then, of the halves, two times four groups.
            let a = four(d[0], d[1], d[2], d[3]);
            let b = four(d[4], d[5], d[6], d[7]);
            let n = if F::GROUP == 32 {
                let low = _mm256_permute2x128_si256::<0x20>(a, b);
                let high = _mm256_permute2x128_si256::<0x31>(a, b);
                [_mm256_add_epi32(low, high), low]
            } else {
                let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
                [
                    _mm256_permutevar8x32_epi32(a, order),
                    _mm256_permutevar8x32_epi32(b, order),
                ]
            };
            let da = _mm256_load_ps(x[t].add(l.scales + c * 32).cast());
            let da = if F::GROUP == 32 {
                [da, da]
            } else {
                let low = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
                let high = _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7);
                [
                    _mm256_permutevar8x32_ps(da, low),
                    _mm256_permutevar8x32_ps(da, high),
                ]
            };
            for i in 0..parts {
                let at = 32 * (c * parts + i);
                let mut n = n[i];
                if let (Some(shift), false) = (F::ZERO_LOG2, F::SIGNED) {
                    let sums = _mm256_load_si256(x[t].add(sums + at).cast());
                    let shift = _mm_cvtsi32_si128(shift as i32);
                    n = _mm256_add_epi32(n, _mm256_sll_epi32(sums, shift));
                }
                let f = _mm256_mul_ps(_mm256_cvtepi32_ps(n), da[i]);
                acc[t][i] = _mm256_fmadd_ps(f, scales.scales[i], acc[t][i]);
                if F::MINIMUM {
                    let sums = _mm256_load_ps(x[t].add(scaled + at).cast());
                    acc[t][i] = _mm256_fmadd_ps(sums, scales.minimums[i], acc[t][i]);
                }
            }
        }
    }
}

/// Sums of four products each.
#[inline(always)]
unsafe fn products<F: Unpack>(w: __m256i, x: __m256i) -> __m256i {
    // SAFETY: see `unpack`.
    unsafe {
        let pairs = if F::SIGNED {
            _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w))
        } else {
            _mm256_maddubs_epi16(w, x)
        };
        _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
    }
}

/// In each 128 bits, the sums of `a`, `b`, `c` and `d`.
#[inline(always)]
unsafe fn four(a: __m256i, b: __m256i, c: __m256i, d: __m256i) -> __m256i {
    // SAFETY: see `unpack`.
    unsafe { _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d)) }
}

/// The tree over 8 accumulators.
#[inline(always)]
pub(super) unsafe fn tree8(a: __m256) -> f32 {
    // SAFETY: see `unpack`.
    unsafe {
        let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
        let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
        _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)))
    }
}
