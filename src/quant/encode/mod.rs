//! Quantizers: from single precision to the blocks of a type.
//!
//! A quantizer sees a row and nothing else, so that any number of threads can share a tensor. The
//! scales of the K types are searched for: of several candidates the one with the smallest
//! weighted square error wins, large elements weighing more.

mod k;
mod legacy;
mod search;

use super::TensorType;
use half::{bf16, f16};

/// Writes the blocks of the elements, a whole number of blocks, all of them finite.
///
/// Panics unless the output is exactly as long as the elements need ([`TensorType::row_bytes`]).
pub type Encode = fn(&[f32], &mut [u8]);

/// The quantizer of a type, or `None` for the types that files are read in but not converted to.
pub fn encoder(ty: TensorType) -> Option<Encode> {
    Some(match ty {
        TensorType::F32 => |x, out| each(x, out, f32::to_le_bytes),
        TensorType::F16 => |x, out| each(x, out, |x| f16::from_f32(x).to_le_bytes()),
        TensorType::BF16 => |x, out| each(x, out, |x| bf16::from_f32(x).to_le_bytes()),
        TensorType::Q4_0 => |x, out| blocks(x, out, legacy::q4_0),
        TensorType::Q4_1 => |x, out| blocks(x, out, legacy::q4_1),
        TensorType::Q5_0 => |x, out| blocks(x, out, legacy::q5_0),
        TensorType::Q5_1 => |x, out| blocks(x, out, legacy::q5_1),
        TensorType::Q8_0 => |x, out| blocks(x, out, legacy::q8_0),
        TensorType::Q4K => |x, out| blocks(x, out, k::q4_k),
        TensorType::Q5K => |x, out| blocks(x, out, k::q5_k),
        TensorType::Q6K => |x, out| blocks(x, out, k::q6_k),
        _ => return None,
    })
}

/// Encodes element by element.
fn each<const B: usize>(x: &[f32], out: &mut [u8], encode: impl Fn(f32) -> [u8; B]) {
    assert_eq!(out.len(), x.len() * B, "bytes of {} elements", x.len());
    for (x, b) in x.iter().zip(out.as_chunks_mut().0) {
        *b = encode(*x);
    }
}

/// Encodes block by block.
fn blocks<const N: usize, const B: usize>(
    x: &[f32],
    out: &mut [u8],
    encode: impl Fn(&[f32; N], &mut [u8; B]),
) {
    let (blocks, rest) = x.as_chunks();
    assert!(rest.is_empty(), "{} elements are no whole blocks", x.len());
    assert_eq!(out.len(), blocks.len() * B, "bytes of {} blocks", x.len());
    for (x, b) in blocks.iter().zip(out.as_chunks_mut().0) {
        encode(x, b);
    }
}

/// Writes `x` as f16 at byte `at`, and returns what is left of it.
fn put_f16(x: f32, b: &mut [u8], at: usize) -> f32 {
    let x = f16::from_f32(x);
    b[at..at + 2].copy_from_slice(&x.to_le_bytes());
    x.to_f32()
}

/// `1 / x`, or 0 for 0.
fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

/// The integer nearest to `x`, which is between -2^22 and 2^22; ties go to the even one. Unlike
/// the processor's instruction for it, which not every one has, adding and subtracting `1.5 * 2^23`
/// works on a whole vector everywhere.
fn nearest(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    (x + SHIFT) - SHIFT
}

/// The element of largest magnitude, with its sign; 0 of nothing.
fn extreme(x: &[f32]) -> f32 {
    x.iter()
        .fold(0.0, |m: f32, &x| if x.abs() > m.abs() { x } else { m })
}

/// The smallest and the largest element.
fn bounds(x: &[f32]) -> (f32, f32) {
    let from = (f32::INFINITY, f32::NEG_INFINITY);
    x.iter()
        .fold(from, |(low, high), &x| (low.min(x), high.max(x)))
}
