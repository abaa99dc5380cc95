//! The types with blocks of 32 and one f16 scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.
//!
//! In the 4- and 5-bit types byte `j` of the 16 value bytes holds the low bits of element `j` in
//! its low half and those of element `j + 16` in its high half.

use super::f16_at;

/// Q4_0, 18 bytes: f16 `d` at 0, 16 value bytes at 2. `x = d * (q - 8)`.
pub(super) fn q4_0(b: &[u8; 18], out: &mut [f32; 32]) {
    let d = f16_at(b, 0);
    for j in 0..16 {
        let q = b[2 + j];
        out[j] = d * f32::from((q & 15) as i8 - 8);
        out[j + 16] = d * f32::from((q >> 4) as i8 - 8);
    }
}

/// Q4_1, 20 bytes: f16 `d` at 0, f16 `m` at 2, 16 value bytes at 4. `x = d * q + m`.
pub(super) fn q4_1(b: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (f16_at(b, 0), f16_at(b, 2));
    for j in 0..16 {
        let q = b[4 + j];
        out[j] = d * f32::from(q & 15) + m;
        out[j + 16] = d * f32::from(q >> 4) + m;
    }
}

/// The fifth bits of a block: bit `j` of a little-endian u32 belongs to element `j`.
fn fifth_bits(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// The fifth bit of element `j`, in place (0 or 16).
fn fifth(bits: u32, j: usize) -> u8 {
    ((bits >> j & 1) << 4) as u8
}

/// Q5_0, 22 bytes: f16 `d` at 0, u32 fifth bits at 2, 16 value bytes at 6. `x = d * (q - 16)`.
pub(super) fn q5_0(b: &[u8; 22], out: &mut [f32; 32]) {
    let d = f16_at(b, 0);
    let high = fifth_bits(b, 2);
    for j in 0..16 {
        let q = b[6 + j];
        out[j] = d * f32::from((q & 15 | fifth(high, j)) as i8 - 16);
        out[j + 16] = d * f32::from((q >> 4 | fifth(high, j + 16)) as i8 - 16);
    }
}

/// Q5_1, 24 bytes: f16 `d` at 0, f16 `m` at 2, u32 fifth bits at 4, 16 value bytes at 8.
/// `x = d * q + m`.
pub(super) fn q5_1(b: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (f16_at(b, 0), f16_at(b, 2));
    let high = fifth_bits(b, 4);
    for j in 0..16 {
        let q = b[8 + j];
        out[j] = d * f32::from(q & 15 | fifth(high, j)) + m;
        out[j + 16] = d * f32::from(q >> 4 | fifth(high, j + 16)) + m;
    }
}

/// Q8_0, 34 bytes: f16 `d` at 0, 32 signed bytes at 2. `x = d * q`.
pub(super) fn q8_0(b: &[u8; 34], out: &mut [f32; 32]) {
    let d = f16_at(b, 0);
    for (q, y) in b[2..].iter().zip(out) {
        *y = d * f32::from(*q as i8);
    }
}
