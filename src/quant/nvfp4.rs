//! NVFP4: 4-bit floats with an 8-bit float as the scale of each 16.

use super::E2M1_DOUBLED;

/// Half of the unsigned E4M3 number `x`, exactly; times [`E2M1_DOUBLED`] it gives the value of an
/// element. The format's NaN, 127, is taken as 0, and the sign bit of others is not read.
pub fn ue4m3_half(x: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(x >> 3 & 15), u32::from(x & 7));
    match (x, exponent) {
        (127, _) => 0.0,
        (_, 0) => mantissa as f32 / 1024.0,
        _ => f32::from_bits((exponent + 119) << 23 | mantissa << 20),
    }
}

/// NVFP4, 36 bytes: the scales of four times 16 elements at 0, then 8 code bytes for each 16: byte `j`
/// for element `j` (low half) and `j + 8` (high half).
pub(super) fn nvfp4(b: &[u8; 36], out: &mut [f32; 64]) {
    for (s, y) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let d = ue4m3_half(b[s]);
        for j in 0..8 {
            let q = b[4 + 8 * s + j];
            y[j] = d * f32::from(E2M1_DOUBLED[usize::from(q & 15)]);
            y[j + 8] = d * f32::from(E2M1_DOUBLED[usize::from(q >> 4)]);
        }
    }
}
