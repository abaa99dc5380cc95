//! From blocks to codes in registers, and to scales: 256 elements at a time, in their order.
//!
//! Functions are `inline(always)` and so compiled with the features of their caller; each is sound
//! where the bytes of a chunk (see [`Unpack::CHUNK_BYTES`]) are readable.

use crate::backend::cpu::matmul::types::*;
use crate::quant::IQ4_VALUES;
use std::arch::aarch64::*;

/// Reads chunks of 256 elements.
pub(super) trait Unpack: Format {
    /// Bytes of a chunk.
    const CHUNK_BYTES: usize = 256 / Self::BLOCK_LEN * Self::BLOCK_BYTES;
    /// Whether codes are signed numbers that mean themselves.
    const SIGNED: bool = Self::MAX > 127;

    /// Elements `16 * i ..`.
    ///
    /// # Safety
    /// See the module.
    unsafe fn codes(p: *const u8, i: usize) -> int8x16_t;
}

/// Scales and minimums of a chunk.
///
/// # Safety
/// See the module.
#[inline(always)]
pub(super) unsafe fn scales<F: Unpack>(p: *const u8) -> ([f32; 16], [f32; 16]) {
    // SAFETY: see the module.
    chunk_scales::<F>(unsafe { std::slice::from_raw_parts(p, F::CHUNK_BYTES) })
}

/// The 16 bytes at `p` shifted right by `by` (left, if negative), masked.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn bits(p: *const u8, by: i8, mask: u8) -> int8x16_t {
    // SAFETY: see the module.
    unsafe {
        let v = vshlq_u8(vld1q_u8(p), vdupq_n_s8(-by));
        vreinterpretq_s8_u8(vandq_u8(v, vdupq_n_u8(mask)))
    }
}

/// Half `i % 2` of the 16 index bytes at `p`: low (0) or high.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn nibbles(p: *const u8, i: usize) -> int8x16_t {
    // SAFETY: see the module.
    unsafe { bits(p, 4 * (i as i8 % 2), 15) }
}

/// 16 where a bit of the two bytes at `p` is set.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn fifth_bits(p: *const u8) -> int8x16_t {
    const EACH: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
    // SAFETY: see the module.
    unsafe {
        let v = vcombine_u8(vdup_n_u8(*p), vdup_n_u8(*p.add(1)));
        let set = vtstq_u8(v, vld1q_u8(EACH.as_ptr()));
        vreinterpretq_s8_u8(vandq_u8(set, vdupq_n_u8(16)))
    }
}

/// The table entries of indices.
///
/// # Safety
/// See the module; the table has 16 entries.
#[inline(always)]
unsafe fn look_up(table: *const i8, codes: int8x16_t) -> int8x16_t {
    // SAFETY: by contract, the table has 16 entries.
    unsafe { vqtbl1q_s8(vld1q_s8(table), vreinterpretq_u8_s8(codes)) }
}

/// A type: register `$i` of its codes, from the chunk at `$p`.
macro_rules! unpack {
    ($name:ident, |$p:ident, $i:ident| $codes:expr) => {
        impl Unpack for $name {
            #[inline(always)]
            unsafe fn codes($p: *const u8, $i: usize) -> int8x16_t {
                // SAFETY: see the module.
                unsafe { $codes }
            }
        }
    };
}

unpack!(Q4_0, |p, i| nibbles(p.add(18 * (i / 2) + 2), i));
unpack!(Q4_1, |p, i| nibbles(p.add(20 * (i / 2) + 4), i));
unpack!(Q5_0, |p, i| {
    let block = p.add(22 * (i / 2));
    vorrq_s8(
        nibbles(block.add(6), i),
        fifth_bits(block.add(2 + 2 * (i % 2))),
    )
});
unpack!(Q5_1, |p, i| {
    let block = p.add(24 * (i / 2));
    vorrq_s8(
        nibbles(block.add(8), i),
        fifth_bits(block.add(4 + 2 * (i % 2))),
    )
});
unpack!(Q8_0, |p, i| vld1q_s8(
    p.add(34 * (i / 2) + 2 + 16 * (i % 2)).cast()
));
unpack!(Q2K, |p, i| bits(
    p.add(16 + 32 * (i / 8) + 16 * (i % 2)),
    2 * (i as i8 / 2 % 4),
    3
));
unpack!(Q3K, |p, i| vorrq_s8(
    bits(
        p.add(32 + 32 * (i / 8) + 16 * (i % 2)),
        2 * (i as i8 / 2 % 4),
        3
    ),
    bits(p.add(16 * (i % 2)), i as i8 / 2 - 2, 4),
));
unpack!(Q4K, |p, i| nibbles(
    p.add(16 + 32 * (i / 4) + 16 * (i % 2)),
    i / 2
));
unpack!(Q5K, |p, i| vorrq_s8(
    nibbles(p.add(48 + 32 * (i / 4) + 16 * (i % 2)), i / 2),
    bits(p.add(16 + 16 * (i % 2)), i as i8 / 2 - 4, 16),
));
unpack!(Q6K, |p, i| {
    let (run, part, half) = (i / 8, i / 2 % 4, 16 * (i % 2));
    vorrq_s8(
        bits(
            p.add(64 * run + 32 * (part % 2) + half),
            4 * (part as i8 / 2),
            15,
        ),
        bits(p.add(128 + 32 * run + half), 2 * part as i8 - 4, 0x30),
    )
});
unpack!(IQ4NL, |p, i| look_up(
    IQ4_VALUES.as_ptr(),
    nibbles(p.add(18 * (i / 2) + 2), i)
));
unpack!(IQ4XS, |p, i| look_up(
    IQ4_VALUES.as_ptr(),
    nibbles(p.add(8 + 16 * (i / 2)), i)
));
unpack!(MXFP4, |p, i| look_up(
    MXFP4_CODES.as_ptr().cast(),
    nibbles(p.add(17 * (i / 2) + 1), i)
));
unpack!(NVFP4, |p, i| {
    let v = vld1_u8(p.add(36 * (i / 4) + 4 + 8 * (i % 4)));
    let v = vcombine_u8(vand_u8(v, vdup_n_u8(15)), vshr_n_u8::<4>(v));
    look_up(MXFP4_CODES.as_ptr().cast(), vreinterpretq_s8_u8(v))
});

macro_rules! codebook_unpack {
    ($($name:ident $group:literal),*) => {$(
        unpack!($name, |p, i| {
            let b = std::slice::from_raw_parts(p, Self::CHUNK_BYTES);
            vcombine_s8(
                vcreate_s8(Self::eight(b, 2 * i)),
                vcreate_s8(Self::eight(b, 2 * i + 1)),
            )
        });
    )*};
}
codebook_types!(codebook_unpack);
