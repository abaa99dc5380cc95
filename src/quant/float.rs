//! Unquantized types: every element stands for itself.

use half::{bf16, f16};

/// F32: four bytes per element, little endian.
pub(super) fn f32_row(bytes: &[u8], out: &mut [f32]) {
    for (b, y) in bytes.as_chunks::<4>().0.iter().zip(out) {
        *y = f32::from_le_bytes(*b);
    }
}

/// F16: two bytes per element, IEEE half precision, little endian.
pub(super) fn f16_row(bytes: &[u8], out: &mut [f32]) {
    for (b, y) in bytes.as_chunks::<2>().0.iter().zip(out) {
        *y = f16::from_le_bytes(*b).to_f32();
    }
}

/// BF16: two bytes per element, the upper half of a little-endian single.
pub(super) fn bf16_row(bytes: &[u8], out: &mut [f32]) {
    for (b, y) in bytes.as_chunks::<2>().0.iter().zip(out) {
        *y = bf16::from_le_bytes(*b).to_f32();
    }
}
