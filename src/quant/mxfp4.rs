//! MXFP4: the OCP microscaling format of 4-bit floats with a shared power of two.

/// Twice the values of the sixteen E2M1 codes (sign, 2 bits exponent, 1 bit mantissa). Minus zero
/// is zero.
pub const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half of the E8M0 scale `e`, that is `2^(e - 128)`, exactly (subnormal for `e` below 2); times
/// [`E2M1_DOUBLED`] it gives the value of an element. 255, which the format calls NaN, is taken
/// as `2^127` like any other.
pub fn e8m0_half(e: u8) -> f32 {
    f32::from_bits(match e {
        0 | 1 => 0x0020_0000 << e,
        _ => u32::from(e - 1) << 23,
    })
}

/// MXFP4, 17 bytes: E8M0 scale at 0, 16 code bytes at 1, byte `j` for element `j` (low half) and
/// `j + 16` (high half).
pub(super) fn mxfp4(b: &[u8; 17], out: &mut [f32; 32]) {
    let d = e8m0_half(b[0]);
    for j in 0..16 {
        let q = b[1 + j];
        out[j] = d * f32::from(E2M1_DOUBLED[usize::from(q & 15)]);
        out[j + 16] = d * f32::from(E2M1_DOUBLED[usize::from(q >> 4)]);
    }
}
