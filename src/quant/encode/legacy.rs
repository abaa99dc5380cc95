//! The types with blocks of 32 and one f16 scale. Layouts: `quant/legacy.rs`.

use super::{bounds, extreme, inverse, nearest, put_f16};

/// Q4_0: the extreme element becomes -8 exactly, so that its side of zero has the one code more.
pub(super) fn q4_0(x: &[f32; 32], b: &mut [u8; 18]) {
    let d = extreme(x) / -8.0;
    put_f16(d, b, 0);
    let q = codes(x, 0.0, d, 8.0, 15.0);
    put_halves(&q, &mut b[2..]);
}

/// Q4_1: from the smallest element to the largest.
pub(super) fn q4_1(x: &[f32; 32], b: &mut [u8; 20]) {
    let (low, high) = bounds(x);
    let d = (high - low) / 15.0;
    put_f16(d, b, 0);
    put_f16(low, b, 2);
    let q = codes(x, low, d, 0.0, 15.0);
    put_halves(&q, &mut b[4..]);
}

/// Q5_0: as Q4_0, with -16.
pub(super) fn q5_0(x: &[f32; 32], b: &mut [u8; 22]) {
    let d = extreme(x) / -16.0;
    put_f16(d, b, 0);
    let q = codes(x, 0.0, d, 16.0, 31.0);
    put_fifth_bits(&q, &mut b[2..6]);
    put_halves(&q, &mut b[6..]);
}

/// Q5_1: as Q4_1.
pub(super) fn q5_1(x: &[f32; 32], b: &mut [u8; 24]) {
    let (low, high) = bounds(x);
    let d = (high - low) / 31.0;
    put_f16(d, b, 0);
    put_f16(low, b, 2);
    let q = codes(x, low, d, 0.0, 31.0);
    put_fifth_bits(&q, &mut b[4..8]);
    put_halves(&q, &mut b[8..]);
}

/// Q8_0: the extreme element becomes 127 or -127.
pub(super) fn q8_0(x: &[f32; 32], b: &mut [u8; 34]) {
    let d = extreme(x).abs() / 127.0;
    put_f16(d, b, 0);
    let scale = inverse(d);
    for (x, q) in x.iter().zip(&mut b[2..]) {
        *q = nearest(x * scale) as i8 as u8;
    }
}

/// The codes from 0 to `top` that are nearest to `(x - low) / d + zero`.
fn codes(x: &[f32; 32], low: f32, d: f32, zero: f32, top: f32) -> [u8; 32] {
    let scale = inverse(d);
    x.map(|x| nearest((x - low) * scale + zero).clamp(0.0, top) as u8)
}

/// The low halves of elements `j` and `j + 16` in byte `j`.
fn put_halves(q: &[u8; 32], out: &mut [u8]) {
    for (j, b) in out.iter_mut().enumerate() {
        *b = q[j] & 15 | q[j + 16] << 4;
    }
}

/// Bit 4 of element `j` as bit `j` of a little-endian u32.
fn put_fifth_bits(q: &[u8; 32], out: &mut [u8]) {
    let bit = |(j, q): (usize, &u8)| u32::from(q >> 4) << j;
    let bits: u32 = q.iter().enumerate().map(bit).sum();
    out.copy_from_slice(&bits.to_le_bytes());
}
