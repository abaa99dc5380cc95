//! The types whose elements are products of a scale and a small integer from a codebook: IQ1_S, IQ1_M,
//! IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S; and the ternary ones, TQ1_0 and TQ2_0.
//!
//! A block has 256 elements. `x = (d * FACTOR * s) * v` with an f16 `d` per block, an odd integer `s`
//! per 16 or 32 elements, and integers `v` from [`Codebook::eight`].

use super::grids;
use half::f16;

/// How a type's blocks are read.
pub trait Codebook {
    /// Bytes of a block.
    const BYTES: usize;
    /// What the scale of a block is multiplied with: a power of two.
    const FACTOR: f32;

    /// Where the scale of a block is, unless it is in parts.
    const SCALE_AT: usize = 0;

    /// The scale of a block, an f16.
    #[inline(always)]
    fn scale_bits(b: &[u8]) -> u16 {
        u16_at(b, Self::SCALE_AT)
    }

    /// Writes the scale of a block.
    fn set_scale_bits(b: &mut [u8], bits: u16) {
        b[Self::SCALE_AT..Self::SCALE_AT + 2].copy_from_slice(&bits.to_le_bytes());
    }

    /// The scale of a block, widened.
    #[inline(always)]
    fn scale(b: &[u8]) -> f32 {
        f16::from_bits(Self::scale_bits(b)).to_f32()
    }

    /// The integer that the scale of elements `16 * half ..` is multiplied with, `half < 16`.
    fn small(b: &[u8], half: usize) -> u8;

    /// Elements `8 * i ..` of a block, `i < 32`, as signed bytes, the first one lowest.
    fn eight(b: &[u8], i: usize) -> u64;
}

/// A byte in all bytes.
const fn bytes(b: u8) -> u64 {
    b as u64 * 0x0101_0101_0101_0101
}

/// Entries of eight numbers of two bits, as the bytes that these stand for.
const fn eights<const N: usize>(packed: &[u16; N], values: [u8; 3]) -> [u64; N] {
    let mut out = [0; N];
    let mut i = 0;
    while i < N {
        let mut j = 0;
        while j < 8 {
            out[i] |= (values[(packed[i] >> (2 * j) & 3) as usize] as u64) << (8 * j);
            j += 1;
        }
        i += 1;
    }
    out
}

/// Entries of four numbers of three bits, likewise.
const fn fours<const N: usize>(packed: &[u16; N], values: [u8; 8]) -> [u32; N] {
    let mut out = [0; N];
    let mut i = 0;
    while i < N {
        let mut j = 0;
        while j < 4 {
            out[i] |= (values[(packed[i] >> (3 * j) & 7) as usize] as u32) << (8 * j);
            j += 1;
        }
        i += 1;
    }
    out
}

/// Magnitudes of the IQ2 types.
pub const IQ2_VALUES: [u8; 3] = [8, 25, 43];
/// Magnitudes of IQ3_XXS.
pub const IQ3_XXS_VALUES: [u8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];
/// Magnitudes of IQ3_S.
pub const IQ3_S_VALUES: [u8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];

pub(crate) static IQ2XXS_GRID: [u64; 256] = eights(&grids::IQ2_XXS, IQ2_VALUES);
pub(crate) static IQ2XS_GRID: [u64; 512] = eights(&grids::IQ2_XS, IQ2_VALUES);
pub(crate) static IQ2S_GRID: [u64; 1024] = eights(&grids::IQ2_S, IQ2_VALUES);
pub(crate) static IQ3XXS_GRID: [u32; 256] = fours(&grids::IQ3_XXS, IQ3_XXS_VALUES);
pub(crate) static IQ3S_GRID: [u32; 512] = fours(&grids::IQ3_S, IQ3_S_VALUES);
/// Eight times the value, plus 8.
pub(crate) static IQ1_GRID: [u64; 2048] = eights(&grids::IQ1, [0, 8, 16]);

/// All ones in the bytes of elements that are negative, by eight sign bits.
static NEGATIVE: [u64; 256] = {
    let mut out = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut j = 0;
        while j < 8 {
            if i >> j & 1 == 1 {
                out[i] |= 0xff << (8 * j);
            }
            j += 1;
        }
        i += 1;
    }
    out
};

/// The same by seven sign bits: the number of negative elements is even.
static EVENLY_NEGATIVE: [u64; 128] = {
    let mut out = [0; 128];
    let mut i = 0;
    while i < 128 {
        out[i] = NEGATIVE[i | ((i.count_ones() as usize & 1) << 7)];
        i += 1;
    }
    out
};

/// The bytes of `v`, all positive, negated where `mask` has ones.
#[inline(always)]
fn signed(v: u64, mask: u64) -> u64 {
    (v ^ mask).wrapping_add(mask & bytes(1))
}

#[inline(always)]
fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

#[inline(always)]
fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

#[inline(always)]
fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from(u32_at(b, at)) | u64::from(u32_at(b, at + 4)) << 32
}

/// Half `half` of the bytes at `at`.
#[inline(always)]
fn nibble(b: &[u8], at: usize, half: usize) -> u8 {
    b[at + half / 2] >> (4 * (half % 2)) & 15
}

/// Two entries of four.
#[inline(always)]
fn both(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// 66 bytes: `d` at 0; per 32 elements 8 bytes from 2 on: an index for each eight, then a word of four
/// times 7 sign bits and, in its upper 4, `(s - 1) / 2`.
pub struct IQ2XXS;

impl Codebook for IQ2XXS {
    const BYTES: usize = 66;
    const FACTOR: f32 = 0.125;

    #[inline(always)]
    fn small(b: &[u8], half: usize) -> u8 {
        2 * (b[2 + 8 * (half / 2) + 7] >> 4) + 1
    }

    #[inline(always)]
    fn eight(b: &[u8], i: usize) -> u64 {
        let at = 2 + 8 * (i / 4);
        let signs = u32_at(b, at + 4) >> (7 * (i % 4)) & 127;
        let grid = IQ2XXS_GRID[usize::from(b[at + i % 4])];
        signed(grid, EVENLY_NEGATIVE[signs as usize])
    }
}

/// 74 bytes: `d` at 0; 32 words at 2, one for each eight: 9 bits of index, 7 sign bits; `(s - 1) / 2` per
/// 16 elements at 66, 4 bits each, low half first.
pub struct IQ2XS;

impl Codebook for IQ2XS {
    const BYTES: usize = 74;
    const FACTOR: f32 = 0.125;

    #[inline(always)]
    fn small(b: &[u8], half: usize) -> u8 {
        2 * nibble(b, 66, half) + 1
    }

    #[inline(always)]
    fn eight(b: &[u8], i: usize) -> u64 {
        let q = usize::from(u16_at(b, 2 + 2 * i));
        signed(IQ2XS_GRID[q & 511], EVENLY_NEGATIVE[q >> 9])
    }
}

/// 82 bytes: `d` at 0; the low 8 bits of the index of each eight at 2; sign bits of each eight at 34; the
/// upper 2 bits of the indices at 66, four to a byte; `(s - 1) / 2` as in IQ2_XS at 74.
pub struct IQ2S;

impl Codebook for IQ2S {
    const BYTES: usize = 82;
    const FACTOR: f32 = 0.125;

    #[inline(always)]
    fn small(b: &[u8], half: usize) -> u8 {
        2 * nibble(b, 74, half) + 1
    }

    #[inline(always)]
    fn eight(b: &[u8], i: usize) -> u64 {
        let high = usize::from(b[66 + i / 4] >> (2 * (i % 4)) & 3);
        let grid = IQ2S_GRID[usize::from(b[2 + i]) | high << 8];
        signed(grid, NEGATIVE[usize::from(b[34 + i])])
    }
}

/// 98 bytes: `d` at 0; an index for each four elements at 2; per 32 elements a word at 66 as in IQ2_XXS.
pub struct IQ3XXS;

impl Codebook for IQ3XXS {
    const BYTES: usize = 98;
    const FACTOR: f32 = 0.25;

    #[inline(always)]
    fn small(b: &[u8], half: usize) -> u8 {
        2 * (b[66 + 4 * (half / 2) + 3] >> 4) + 1
    }

    #[inline(always)]
    fn eight(b: &[u8], i: usize) -> u64 {
        let four = |j: usize| IQ3XXS_GRID[usize::from(b[2 + 2 * i + j])];
        let signs = u32_at(b, 66 + 4 * (i / 4)) >> (7 * (i % 4)) & 127;
        signed(both(four(0), four(1)), EVENLY_NEGATIVE[signs as usize])
    }
}

/// 110 bytes: `d` at 0; the low 8 bits of the index of each four elements at 2; the ninth bits at 66, eight
/// to a byte; sign bits of each eight at 74; `(s - 1) / 2` per 32 elements at 106, 4 bits each.
pub struct IQ3S;

impl Codebook for IQ3S {
    const BYTES: usize = 110;
    const FACTOR: f32 = 1.0;

    #[inline(always)]
    fn small(b: &[u8], half: usize) -> u8 {
        2 * nibble(b, 106, half / 2) + 1
    }

    #[inline(always)]
    fn eight(b: &[u8], i: usize) -> u64 {
        let four = |j: usize| {
            let high = usize::from(b[66 + i / 4] >> (2 * (i % 4) + j) & 1);
            IQ3S_GRID[usize::from(b[2 + 2 * i + j]) | high << 8]
        };
        signed(both(four(0), four(1)), NEGATIVE[usize::from(b[74 + i])])
    }
}

/// Eight elements of IQ1_S or IQ1_M: `8 * v + 1`, or `8 * v - 1` where `lower`, with `v` -1, 0 or 1.
#[inline(always)]
fn shifted(index: usize, lower: bool) -> u64 {
    let shift = if lower { bytes(119) } else { bytes(121) };
    (IQ1_GRID[index & 2047] + shift) ^ bytes(128)
}

/// 50 bytes: `d` at 0; the low 8 bits of the index of each eight at 2; per 32 elements a word at 34: four
/// times the upper 3 bits of the indices, `(s - 1) / 2`, and whether elements are lower by an eighth
/// instead of higher.
pub struct IQ1S;

impl Codebook for IQ1S {
    const BYTES: usize = 50;
    const FACTOR: f32 = 0.125;

    #[inline(always)]
    fn small(b: &[u8], half: usize) -> u8 {
        2 * (b[34 + 2 * (half / 2) + 1] >> 4 & 7) + 1
    }

    #[inline(always)]
    fn eight(b: &[u8], i: usize) -> u64 {
        let word = usize::from(u16_at(b, 34 + 2 * (i / 4)));
        let high = word >> (3 * (i % 4)) & 7;
        shifted(usize::from(b[2 + i]) | high << 8, word >> 15 == 1)
    }
}

/// 56 bytes: the low 8 bits of the index of each eight at 0; at 32, for each eight, 4 bits: the upper 3 of
/// the index, and whether elements are lower; at 48 four words, each of four times 3 bits
/// (`(s - 1) / 2` per 16 elements) and 4 bits of `d`, the lowest first.
pub struct IQ1M;

impl Codebook for IQ1M {
    const BYTES: usize = 56;
    const FACTOR: f32 = 0.125;

    #[inline(always)]
    fn scale_bits(b: &[u8]) -> u16 {
        let part = |i: usize| u16::from(b[48 + 2 * i + 1] >> 4) << (4 * i);
        part(0) | part(1) | part(2) | part(3)
    }

    fn set_scale_bits(b: &mut [u8], bits: u16) {
        for i in 0..4 {
            let byte = &mut b[48 + 2 * i + 1];
            *byte = *byte & 15 | ((bits >> (4 * i) & 15) << 4) as u8;
        }
    }

    #[inline(always)]
    fn small(b: &[u8], half: usize) -> u8 {
        2 * (u16_at(b, 48 + 2 * (half / 4)) >> (3 * (half % 4)) & 7) as u8 + 1
    }

    #[inline(always)]
    fn eight(b: &[u8], i: usize) -> u64 {
        let high = nibble(b, 32, i);
        let index = usize::from(b[i]) | usize::from(high & 7) << 8;
        shifted(index, high & 8 != 0)
    }
}

/// -1, 0, 1 and 2 for the numbers 0 to 3.
#[inline(always)]
fn ternary(numbers: u64) -> u64 {
    (numbers + bytes(127)) ^ bytes(128)
}

/// 54 bytes: fives of ternary digits at 0, fours at 48, `d` at 52. Byte `j` of the first 32 has a digit of
/// the elements `j + 32 * n`, byte `j` of the next 16 of `160 + j + 16 * n`, byte `j` of the last four
/// of `240 + j + 4 * n`: digit `n` is the integer part of three times the fraction
/// `byte * 3^n / 256`.
pub struct TQ1_0;

/// The digits of eight bytes that were multiplied with `3^n`.
#[inline(always)]
fn digits(b: u64, power: u64) -> u64 {
    const EVEN: u64 = 0x00ff_00ff_00ff_00ff;
    let digit = |half: u64| ((((half * power) & EVEN) * 3) >> 8) & EVEN;
    digit(b & EVEN) | digit(b >> 8 & EVEN) << 8
}

impl Codebook for TQ1_0 {
    const BYTES: usize = 54;
    const FACTOR: f32 = 1.0;
    const SCALE_AT: usize = 52;

    #[inline(always)]
    fn small(_: &[u8], _: usize) -> u8 {
        1
    }

    #[inline(always)]
    fn eight(b: &[u8], i: usize) -> u64 {
        const POWERS: [u64; 5] = [1, 3, 9, 27, 81];
        ternary(match i {
            0..20 => digits(u64_at(b, 8 * (i % 4)), POWERS[i / 4]),
            20..30 => digits(u64_at(b, 32 + 8 * (i % 2)), POWERS[(i - 20) / 2]),
            _ => {
                let last = u64::from(u32_at(b, 48));
                let n = 2 * (i & 1);
                digits(last, POWERS[n]) | digits(last, POWERS[n + 1]) << 32
            }
        })
    }
}

/// 66 bytes: numbers of two bits at 0, `d` at 64. Byte `32 * k + j` has those of the elements
/// `128 * k + j + 32 * n`, the lowest first; a number is the element plus one.
pub struct TQ2_0;

impl Codebook for TQ2_0 {
    const BYTES: usize = 66;
    const FACTOR: f32 = 1.0;
    const SCALE_AT: usize = 64;

    #[inline(always)]
    fn small(_: &[u8], _: usize) -> u8 {
        1
    }

    #[inline(always)]
    fn eight(b: &[u8], i: usize) -> u64 {
        let row = u64_at(b, 32 * (i / 16) + 8 * (i % 4));
        ternary(row >> (2 * (i / 4 % 4)) & bytes(3))
    }
}

/// The elements of whole blocks.
pub(super) fn dequantize<C: Codebook>(b: &[u8], out: &mut [f32]) {
    for (b, y) in b.chunks_exact(C::BYTES).zip(out.chunks_exact_mut(256)) {
        let d = C::scale(b) * C::FACTOR;
        for (i, y) in y.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let scale = d * f32::from(C::small(b, i / 2));
            for (y, v) in y.iter_mut().zip(C::eight(b, i).to_le_bytes()) {
                *y = scale * f32::from(v as i8);
            }
        }
    }
}
