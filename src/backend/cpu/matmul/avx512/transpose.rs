//! A 16 by 16 transposition of 32-bit words in registers.

use std::arch::x86_64::*;

/// Word `j` of result `i` is word `i` of `v[j]`.
///
/// # Safety
/// See [`super::unpack`].
#[inline(always)]
pub(super) unsafe fn transpose(v: &[__m512i; 16]) -> [__m512i; 16] {
    // SAFETY: AVX-512F.
    unsafe {
        // Four by four words within each 128 bits: `quads[4 * n + i]` holds words `4 * l + i` of
        // `v[4 * n ..]` in 128-bit lane `l`.
        let mut quads = [_mm512_setzero_si512(); 16];
        for n in 0..4 {
            let [a, b, c, d] = [v[4 * n], v[4 * n + 1], v[4 * n + 2], v[4 * n + 3]];
            let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
            quads[4 * n] = _mm512_unpacklo_epi64(ab, cd);
            quads[4 * n + 1] = _mm512_unpackhi_epi64(ab, cd);
            let (ab, cd) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
            quads[4 * n + 2] = _mm512_unpacklo_epi64(ab, cd);
            quads[4 * n + 3] = _mm512_unpackhi_epi64(ab, cd);
        }
        // Then four by four 128-bit lanes.
        let mut out = [_mm512_setzero_si512(); 16];
        for i in 0..4 {
            let [a, b, c, d] = [quads[i], quads[4 + i], quads[8 + i], quads[12 + i]];
            let ab = _mm512_shuffle_i32x4::<0x44>(a, b);
            let cd = _mm512_shuffle_i32x4::<0x44>(c, d);
            out[i] = _mm512_shuffle_i32x4::<0x88>(ab, cd);
            out[4 + i] = _mm512_shuffle_i32x4::<0xDD>(ab, cd);
            let ab = _mm512_shuffle_i32x4::<0xEE>(a, b);
            let cd = _mm512_shuffle_i32x4::<0xEE>(c, d);
            out[8 + i] = _mm512_shuffle_i32x4::<0x88>(ab, cd);
            out[12 + i] = _mm512_shuffle_i32x4::<0xDD>(ab, cd);
        }
        out
    }
}
