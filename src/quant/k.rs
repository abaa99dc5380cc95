//! The K types: blocks of 256 elements, f16 scales per block and small integer scales per group.
//!
//! Elements come in runs of 128 (2- to 3-bit and 6-bit types) or 64 (4- and 5-bit types) that
//! share their value bytes: the same byte holds one element of each quarter or half of the run.

use super::f16_at;

/// Scales and minimums of the eight groups of a Q4_K or Q5_K block, 6 bits each, from the 12
/// bytes that hold them. Groups 0 to 3: the low 6 bits of byte `g` (scale) and `g + 4` (minimum).
/// Groups 4 to 7: the low 4 bits are the halves of byte `g + 4` (low: scale, high: minimum), the
/// upper 2 bits are the top bits of bytes `g - 4` and `g`.
pub fn k4_scales_and_minimums(b: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut minimums) = ([0; 8], [0; 8]);
    for g in 0..4 {
        scales[g] = b[g] & 63;
        minimums[g] = b[g + 4] & 63;
        scales[g + 4] = b[g + 8] & 15 | b[g] >> 6 << 4;
        minimums[g + 4] = b[g + 8] >> 4 | b[g + 4] >> 6 << 4;
    }
    (scales, minimums)
}

/// Scales of the sixteen groups of a Q3_K block, -32 to 31, from the 12 bytes that hold them. The
/// low 4 bits of group `g` are in byte `g % 8`, low half for groups 0 to 7; its upper 2 bits are
/// bits `2 * (g / 4)` on of byte `8 + g % 4`. The stored number is the scale plus 32.
pub fn q3k_scales(b: &[u8; 12]) -> [i8; 16] {
    std::array::from_fn(|g| {
        let low = b[g % 8] >> (4 * (g / 8)) & 15;
        let high = b[8 + g % 4] >> (2 * (g / 4)) & 3;
        (low | high << 4) as i8 - 32
    })
}

/// Q2_K, 84 bytes: 16 group bytes at 0 (low half scale `s`, high half minimum `t`), 64 value
/// bytes at 16, f16 `d` at 80, f16 `m` at 82. Element `e` is bits `2 * (e / 32 % 4)` on of value
/// byte `32 * (e / 128) + e % 32`; groups are 16 elements. `x = (d * s) * q - (m * t)`.
pub(super) fn q2_k(b: &[u8; 84], out: &mut [f32; 256]) {
    let (d, m) = (f16_at(b, 80), f16_at(b, 82));
    for (g, y) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(b[g] & 15);
        let minimum = m * f32::from(b[g] >> 4);
        let from = 16 + 32 * (g / 8) + 16 * (g % 2);
        let shift = 2 * (g / 2 % 4);
        for (q, y) in b[from..from + 16].iter().zip(y) {
            *y = scale * f32::from(q >> shift & 3) - minimum;
        }
    }
}

/// Q3_K, 110 bytes: 32 bytes of third bits at 0, 64 value bytes at 32 (as in Q2_K), 12 bytes of
/// scales at 96 ([`q3k_scales`]), f16 `d` at 108. The third bit of element `e` is bit `e / 32` of
/// byte `e % 32`; where it is 0, 4 is subtracted from the two low bits. `x = (d * s) * q`.
pub(super) fn q3_k(b: &[u8; 110], out: &mut [f32; 256]) {
    let d = f16_at(b, 108);
    let scales = q3k_scales(array_at(b, 96));
    for (g, y) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[g]);
        let high = &b[16 * (g % 2)..][..16];
        let low = &b[32 + 32 * (g / 8) + 16 * (g % 2)..][..16];
        for ((l, h), y) in low.iter().zip(high).zip(y) {
            let q = (l >> (2 * (g / 2 % 4)) & 3) as i8 - if h >> (g / 2) & 1 == 0 { 4 } else { 0 };
            *y = scale * f32::from(q);
        }
    }
}

/// Q4_K, 144 bytes: f16 `d` at 0, f16 `m` at 2, 12 bytes of scales `s` and minimums `t` at 4
/// ([`k4_scales_and_minimums`]), 128 value bytes at 16. Of each run of 64 elements byte `j` of 32
/// holds element `j` in its low half and element `j + 32` in its high half; groups are 32
/// elements. `x = (d * s) * q - (m * t)`.
pub(super) fn q4_k(b: &[u8; 144], out: &mut [f32; 256]) {
    let (d, m) = (f16_at(b, 0), f16_at(b, 2));
    let (scales, minimums) = k4_scales_and_minimums(array_at(b, 4));
    for (g, y) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[g]);
        let minimum = m * f32::from(minimums[g]);
        for (q, y) in b[16 + 32 * (g / 2)..][..32].iter().zip(y) {
            *y = scale * f32::from(q >> (4 * (g % 2)) & 15) - minimum;
        }
    }
}

/// Q5_K, 176 bytes: as Q4_K, but 32 bytes of fifth bits at 16 and the value bytes at 48. The
/// fifth bit of element `e` is bit `e / 32` of byte `e % 32`.
pub(super) fn q5_k(b: &[u8; 176], out: &mut [f32; 256]) {
    let (d, m) = (f16_at(b, 0), f16_at(b, 2));
    let (scales, minimums) = k4_scales_and_minimums(array_at(b, 4));
    for (g, y) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[g]);
        let minimum = m * f32::from(minimums[g]);
        let low = &b[48 + 32 * (g / 2)..][..32];
        for ((l, h), y) in low.iter().zip(&b[16..48]).zip(y) {
            let q = l >> (4 * (g % 2)) & 15 | (h >> g & 1) << 4;
            *y = scale * f32::from(q) - minimum;
        }
    }
}

/// Q6_K, 210 bytes: 128 bytes of low halves at 0, 64 bytes of upper 2 bits at 128, 16 signed
/// scales `s` at 192, f16 `d` at 208. In each run of 128 elements, element `e` has its low 4 bits
/// in byte `e % 64` of 64 (low half for `e < 64`) and its upper 2 bits at bit `2 * (e / 32)` of
/// byte `e % 32` of 32; groups are 16 elements. `x = (d * s) * (q - 32)`.
pub(super) fn q6_k(b: &[u8; 210], out: &mut [f32; 256]) {
    let d = f16_at(b, 208);
    for (g, y) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(b[192 + g] as i8);
        let (run, e) = (g / 8, 16 * (g % 8));
        let low = &b[64 * run + e % 64..][..16];
        let high = &b[128 + 32 * run + e % 32..][..16];
        for ((l, h), y) in low.iter().zip(high).zip(y) {
            let q = l >> (4 * (e / 64)) & 15 | (h >> (2 * (e / 32)) & 3) << 4;
            *y = scale * f32::from(q as i8 - 32);
        }
    }
}

/// `N` bytes of a block from byte `at` on.
fn array_at<const N: usize>(b: &[u8], at: usize) -> &[u8; N] {
    b[at..].first_chunk().expect("inside the block")
}
