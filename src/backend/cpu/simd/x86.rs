//! AVX2 with FMA and F16C (two registers a value), and AVX-512 (one).

use super::Lanes;
use std::arch::x86_64::*;

/// Lanes 0..8 and 8..16.
#[derive(Clone, Copy)]
pub struct Avx2(__m256, __m256);

/// All 16 lanes.
#[derive(Clone, Copy)]
pub struct Avx512(__m512);

const ROUND: i32 = _MM_FROUND_TO_NEAREST_INT;

// SAFETY: needs avx2, fma and f16c. All methods demand these of the processor, and `LANES` elements where they take a pointer.
unsafe impl Lanes for Avx2 {
    const MANY: bool = false;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: by contract, the processor has the features.
        unsafe { Avx2(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: by contract, the processor has the features, and `p` has the elements.
        unsafe { Avx2(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // SAFETY: by contract, the processor has the features, and `p` has the elements.
        unsafe {
            Avx2(
                _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast())),
            )
        }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: by contract, the processor has the features, and `p` has the elements.
        unsafe {
            _mm256_storeu_ps(p, self.0);
            _mm256_storeu_ps(p.add(8), self.1);
        }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        // SAFETY: by contract, the processor has the features, and `p` has the elements.
        unsafe {
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<ROUND>(self.0));
            _mm_storeu_si128(p.add(8).cast(), _mm256_cvtps_ph::<ROUND>(self.1));
        }
    }
    #[inline(always)]
    unsafe fn add(self, o: Self) -> Self {
        // SAFETY: by contract, the processor has the features.
        unsafe { Avx2(_mm256_add_ps(self.0, o.0), _mm256_add_ps(self.1, o.1)) }
    }
    #[inline(always)]
    unsafe fn sub(self, o: Self) -> Self {
        // SAFETY: by contract, the processor has the features.
        unsafe { Avx2(_mm256_sub_ps(self.0, o.0), _mm256_sub_ps(self.1, o.1)) }
    }
    #[inline(always)]
    unsafe fn mul(self, o: Self) -> Self {
        // SAFETY: by contract, the processor has the features.
        unsafe { Avx2(_mm256_mul_ps(self.0, o.0), _mm256_mul_ps(self.1, o.1)) }
    }
    #[inline(always)]
    unsafe fn div(self, o: Self) -> Self {
        // SAFETY: by contract, the processor has the features.
        unsafe { Avx2(_mm256_div_ps(self.0, o.0), _mm256_div_ps(self.1, o.1)) }
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        // SAFETY: by contract, the processor has the features.
        unsafe {
            Avx2(
                _mm256_fmadd_ps(self.0, a.0, b.0),
                _mm256_fmadd_ps(self.1, a.1, b.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn max(self, o: Self) -> Self {
        // SAFETY: by contract, the processor has the features.
        unsafe { Avx2(_mm256_max_ps(self.0, o.0), _mm256_max_ps(self.1, o.1)) }
    }
    #[inline(always)]
    unsafe fn min(self, o: Self) -> Self {
        // SAFETY: by contract, the processor has the features.
        unsafe { Avx2(_mm256_min_ps(self.0, o.0), _mm256_min_ps(self.1, o.1)) }
    }
    #[inline(always)]
    unsafe fn first(self, n: usize, o: Self) -> Self {
        // SAFETY: by contract, the processor has the features.
        unsafe {
            let n = _mm256_set1_epi32(n as i32);
            let low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let high = _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15);
            let low = _mm256_castsi256_ps(_mm256_cmpgt_epi32(n, low));
            let high = _mm256_castsi256_ps(_mm256_cmpgt_epi32(n, high));
            Avx2(
                _mm256_blendv_ps(o.0, self.0, low),
                _mm256_blendv_ps(o.1, self.1, high),
            )
        }
    }
    #[inline(always)]
    unsafe fn exponent(self, bias: i32) -> Self {
        // SAFETY: by contract, the processor has the features.
        unsafe {
            let bias = _mm256_set1_epi32(bias);
            let a = _mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_castps_si256(self.0), bias));
            let b = _mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_castps_si256(self.1), bias));
            Avx2(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b))
        }
    }
}

// SAFETY: needs avx512f, bw, vl, dq. All methods demand these of the processor, and `LANES` elements where they take a pointer.
unsafe impl Lanes for Avx512 {
    const MANY: bool = true;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: by contract, the processor has the features.
        unsafe { Avx512(_mm512_set1_ps(x)) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: by contract, the processor has the features, and `p` has the elements.
        unsafe { Avx512(_mm512_loadu_ps(p)) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // SAFETY: by contract, the processor has the features, and `p` has the elements.
        unsafe { Avx512(_mm512_cvtph_ps(_mm256_loadu_si256(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: by contract, the processor has the features, and `p` has the elements.
        unsafe { _mm512_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        // SAFETY: by contract, the processor has the features, and `p` has the elements.
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<ROUND>(self.0)) }
    }
    #[inline(always)]
    unsafe fn add(self, o: Self) -> Self {
        // SAFETY: by contract, the processor has the features.
        unsafe { Avx512(_mm512_add_ps(self.0, o.0)) }
    }
    #[inline(always)]
    unsafe fn sub(self, o: Self) -> Self {
        // SAFETY: by contract, the processor has the features.
        unsafe { Avx512(_mm512_sub_ps(self.0, o.0)) }
    }
    #[inline(always)]
    unsafe fn mul(self, o: Self) -> Self {
        // SAFETY: by contract, the processor has the features.
        unsafe { Avx512(_mm512_mul_ps(self.0, o.0)) }
    }
    #[inline(always)]
    unsafe fn div(self, o: Self) -> Self {
        // SAFETY: by contract, the processor has the features.
        unsafe { Avx512(_mm512_div_ps(self.0, o.0)) }
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        // SAFETY: by contract, the processor has the features.
        unsafe { Avx512(_mm512_fmadd_ps(self.0, a.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn max(self, o: Self) -> Self {
        // SAFETY: by contract, the processor has the features.
        unsafe { Avx512(_mm512_max_ps(self.0, o.0)) }
    }
    #[inline(always)]
    unsafe fn min(self, o: Self) -> Self {
        // SAFETY: by contract, the processor has the features.
        unsafe { Avx512(_mm512_min_ps(self.0, o.0)) }
    }
    #[inline(always)]
    unsafe fn first(self, n: usize, o: Self) -> Self {
        let mask = ((1u32 << n) - 1) as u16;
        // SAFETY: by contract, the processor has the features.
        unsafe { Avx512(_mm512_mask_blend_ps(mask, o.0, self.0)) }
    }
    #[inline(always)]
    unsafe fn exponent(self, bias: i32) -> Self {
        // SAFETY: by contract, the processor has the features.
        unsafe {
            let n = _mm512_add_epi32(_mm512_castps_si512(self.0), _mm512_set1_epi32(bias));
            Avx512(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(n)))
        }
    }
}
