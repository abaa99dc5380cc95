//! The types with 4-bit indices into a fixed table of unevenly spaced values: IQ4_NL, IQ4_XS.

use super::f16_at;

/// The values that the 4-bit indices of IQ4_NL and IQ4_XS stand for.
pub const IQ4_VALUES: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// Scales of the eight groups of an IQ4_XS block, -32 to 31. The low 4 bits of group `g` are half
/// `g % 2` (0: low) of byte `4 + g / 2` of the block, its upper 2 bits are bits `2 * g` on of the
/// little-endian u16 at byte 2. The stored number is the scale plus 32.
pub fn iq4_xs_scales(b: &[u8; 136]) -> [i8; 8] {
    let high = u16::from_le_bytes([b[2], b[3]]);
    std::array::from_fn(|g| {
        let low = b[4 + g / 2] >> (4 * (g % 2)) & 15;
        (low | ((high >> (2 * g) & 3) << 4) as u8) as i8 - 32
    })
}

/// IQ4_NL, 18 bytes: f16 `d` at 0, 16 index bytes at 2, byte `j` for element `j` (low half) and
/// `j + 16` (high half). `x = d * IQ4_VALUES[q]`.
pub(super) fn iq4_nl(b: &[u8; 18], out: &mut [f32; 32]) {
    let d = f16_at(b, 0);
    for j in 0..16 {
        let q = b[2 + j];
        out[j] = d * f32::from(IQ4_VALUES[usize::from(q & 15)]);
        out[j + 16] = d * f32::from(IQ4_VALUES[usize::from(q >> 4)]);
    }
}

/// IQ4_XS, 136 bytes: f16 `d` at 0, upper bits of the scales at 2, lower bits at 4
/// ([`iq4_xs_scales`]), 128 index bytes at 8. Each group of 32 elements has 16 index bytes, laid
/// out as in IQ4_NL. `x = (d * s) * IQ4_VALUES[q]`.
pub(super) fn iq4_xs(b: &[u8; 136], out: &mut [f32; 256]) {
    let d = f16_at(b, 0);
    let scales = iq4_xs_scales(b);
    for (g, y) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[g]);
        for j in 0..16 {
            let q = b[8 + 16 * g + j];
            y[j] = scale * f32::from(IQ4_VALUES[usize::from(q & 15)]);
            y[j + 16] = scale * f32::from(IQ4_VALUES[usize::from(q >> 4)]);
        }
    }
}
