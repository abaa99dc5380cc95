//! From blocks to codes and scales in registers: 256 elements at a time, in their order.
//!
//! Functions are `inline(always)` and so compiled with the features of their caller; each is sound
//! where [`super::available`] and the bytes of a chunk (see [`Unpack::CHUNK_BYTES`]) are readable.

use crate::backend::cpu::matmul::types::*;
use crate::quant::IQ4_VALUES;
use std::arch::x86_64::*;

/// Scales and minimums of a chunk: 16 each, or 8 if groups have 32 elements (the rest is zero).
pub(super) struct Scales {
    pub scales: [__m256; 2],
    pub minimums: [__m256; 2],
}

/// Reads chunks of 256 elements.
pub(super) trait Unpack: Format {
    /// Bytes of a chunk.
    const CHUNK_BYTES: usize = 256 / Self::BLOCK_LEN * Self::BLOCK_BYTES;
    /// Whether codes are signed numbers that mean themselves.
    const SIGNED: bool = Self::MAX > 127;

    /// Elements `32 * i ..` in register `i`.
    ///
    /// # Safety
    /// See the module.
    unsafe fn codes(p: *const u8) -> [__m256i; 8];

    /// # Safety
    /// See the module.
    unsafe fn scales(p: *const u8) -> Scales;
}

/// An array of eight from an expression in a constant `$i`.
macro_rules! eight {
    ($i:ident => $v:expr) => {{
        let mut out = [_mm256_setzero_si256(); 8];
        for $i in 0..8 {
            out[$i] = $v;
        }
        out
    }};
}

/// The 32 bytes at `p` with 16-bit lanes shifted right by `by` (left, if negative), masked.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn bits(p: *const u8, by: i32, mask: i8) -> __m256i {
    // SAFETY: see the module.
    unsafe {
        let v = _mm256_loadu_si256(p.cast());
        let v = if by >= 0 {
            _mm256_srl_epi16(v, _mm_cvtsi32_si128(by))
        } else {
            _mm256_sll_epi16(v, _mm_cvtsi32_si128(-by))
        };
        _mm256_and_si256(v, _mm256_set1_epi8(mask))
    }
}

/// Indices of eight blocks of 32, 16 bytes each, `STRIDE` bytes apart.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn nibbles<const STRIDE: usize>(p: *const u8) -> [__m256i; 8] {
    // SAFETY: see the module.
    unsafe {
        eight!(i => {
            let v = _mm256_broadcastsi128_si256(_mm_loadu_si128(p.add(i * STRIDE).cast()));
            let v = _mm256_srlv_epi64(v, _mm256_setr_epi64x(0, 0, 4, 4));
            _mm256_and_si256(v, _mm256_set1_epi8(15))
        })
    }
}

/// Adds 16 where the bit of eight blocks is set, 32 bits at `p` for each.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn fifth_bits<const STRIDE: usize>(p: *const u8, codes: [__m256i; 8]) -> [__m256i; 8] {
    // SAFETY: see the module.
    unsafe {
        let spread = _mm256_setr_epi64x(
            0,
            0x0101_0101_0101_0101,
            0x0202_0202_0202_0202,
            0x0303_0303_0303_0303,
        );
        let each = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        eight!(i => {
            let word = p.add(i * STRIDE).cast::<i32>().read_unaligned();
            let v = _mm256_shuffle_epi8(_mm256_set1_epi32(word), spread);
            let set = _mm256_cmpeq_epi8(_mm256_and_si256(v, each), each);
            _mm256_or_si256(codes[i], _mm256_and_si256(set, _mm256_set1_epi8(16)))
        })
    }
}

/// The table entries of indices.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn look_up(codes: [__m256i; 8], table: *const u8) -> [__m256i; 8] {
    // SAFETY: see the module; the table has 16 bytes.
    unsafe {
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.cast()));
        eight!(i => _mm256_shuffle_epi8(table, codes[i]))
    }
}

/// Eight f16, the first at `p`, `STRIDE` bytes apart.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn halves<const STRIDE: usize>(p: *const u8) -> __m256 {
    // SAFETY: see the module.
    unsafe {
        let mut h = [0u16; 8];
        for i in 0..8 {
            h[i] = p.add(i * STRIDE).cast::<u16>().read_unaligned();
        }
        _mm256_cvtph_ps(_mm_loadu_si128(h.as_ptr().cast()))
    }
}

/// Scales alone.
#[inline(always)]
unsafe fn scales8(low: __m256) -> Scales {
    // SAFETY: see the module.
    unsafe {
        let zero = _mm256_setzero_ps();
        Scales {
            scales: [low, zero],
            minimums: [zero; 2],
        }
    }
}

/// The f16 at `p` in all lanes.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn half(p: *const u8) -> __m256 {
    // SAFETY: see the module.
    unsafe {
        let bits = i32::from(p.cast::<u16>().read_unaligned());
        _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)))
    }
}

/// `scale` times 16 signed bytes.
#[inline(always)]
unsafe fn times16(scale: __m256, small: __m128i) -> [__m256; 2] {
    // SAFETY: see the module.
    unsafe {
        let low = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(small));
        let high = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(small)));
        [_mm256_mul_ps(scale, low), _mm256_mul_ps(scale, high)]
    }
}

/// Scales and minimums of a Q4_K or Q5_K block.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn k4_scales(p: *const u8) -> Scales {
    // SAFETY: see the module; both types' blocks are longer than 16 bytes.
    unsafe {
        let head = _mm_loadu_si128(p.cast());
        // Words 1, 2, 3 of the head are packed scales, minimums, and the low halves of the upper
        // four of each. Words of the result: scales 0-3, 4-7, minimums 0-3, 4-7.
        let low = _mm_shuffle_epi32::<0b11_10_11_01>(head);
        let low = _mm_srlv_epi32(low, _mm_setr_epi32(0, 0, 0, 4));
        let low = _mm_and_si128(
            low,
            _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f),
        );
        let high = _mm_srli_epi32::<2>(_mm_shuffle_epi32::<0b10_10_01_01>(head));
        let high = _mm_and_si128(high, _mm_setr_epi32(0, 0x30303030, 0, 0x30303030));
        let small = _mm_or_si128(low, high);
        let s = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(small));
        let t = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128::<8>(small)));
        // Minimums are subtracted.
        let m = _mm256_xor_ps(half(p.add(2)), _mm256_set1_ps(-0.0));
        let zero = _mm256_setzero_ps();
        Scales {
            scales: [_mm256_mul_ps(half(p), s), zero],
            minimums: [_mm256_mul_ps(m, t), zero],
        }
    }
}

/// A type: its codes and its scales, from the chunk at `$p`.
macro_rules! unpack {
    ($name:ident, |$p:ident| $codes:expr, $scales:expr) => {
        impl Unpack for $name {
            #[inline(always)]
            unsafe fn codes($p: *const u8) -> [__m256i; 8] {
                // SAFETY: see the module.
                unsafe { $codes }
            }

            #[inline(always)]
            unsafe fn scales($p: *const u8) -> Scales {
                // SAFETY: see the module.
                unsafe { $scales }
            }
        }
    };
}

/// Scales and minimums of eight blocks that start with both.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn with_minimums<const STRIDE: usize>(p: *const u8) -> Scales {
    // SAFETY: see the module.
    unsafe {
        let mut s = scales8(halves::<STRIDE>(p));
        s.minimums[0] = halves::<STRIDE>(p.add(2));
        s
    }
}

unpack!(Q4_0, |p| nibbles::<18>(p.add(2)), scales8(halves::<18>(p)));
unpack!(Q4_1, |p| nibbles::<20>(p.add(4)), with_minimums::<20>(p));
unpack!(
    Q5_0,
    |p| fifth_bits::<22>(p.add(2), nibbles::<22>(p.add(6))),
    scales8(halves::<22>(p))
);
unpack!(
    Q5_1,
    |p| fifth_bits::<24>(p.add(4), nibbles::<24>(p.add(8))),
    with_minimums::<24>(p)
);
unpack!(
    Q8_0,
    |p| eight!(i => _mm256_loadu_si256(p.add(34 * i + 2).cast())),
    scales8(halves::<34>(p))
);
unpack!(
    IQ4NL,
    |p| look_up(nibbles::<18>(p.add(2)), IQ4_VALUES.as_ptr().cast()),
    scales8(halves::<18>(p))
);
unpack!(
    IQ4XS,
    |p| look_up(nibbles::<16>(p.add(8)), IQ4_VALUES.as_ptr().cast()),
    {
        let order = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
        let low = _mm256_set1_epi32(p.add(4).cast::<i32>().read_unaligned());
        let low = _mm256_and_si256(_mm256_srlv_epi32(low, order), _mm256_set1_epi32(15));
        let high = _mm256_set1_epi32(i32::from(p.add(2).cast::<u16>().read_unaligned()) << 4);
        let high = _mm256_srlv_epi32(high, _mm256_srli_epi32::<1>(order));
        let high = _mm256_and_si256(high, _mm256_set1_epi32(0x30));
        let s = _mm256_sub_epi32(_mm256_or_si256(low, high), _mm256_set1_epi32(32));
        scales8(_mm256_mul_ps(half(p), _mm256_cvtepi32_ps(s)))
    }
);
unpack!(
    MXFP4,
    |p| look_up(nibbles::<17>(p.add(1)), MXFP4_CODES.as_ptr()),
    {
        let mut e = [0i32; 8];
        for i in 0..8 {
            e[i] = i32::from(*p.add(17 * i));
        }
        let e = _mm256_loadu_si256(e.as_ptr().cast());
        let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, _mm256_set1_epi32(1)));
        let subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), e);
        let small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
        scales8(_mm256_castsi256_ps(_mm256_blendv_epi8(
            normal, subnormal, small,
        )))
    }
);

unpack!(
    Q2K,
    |p| eight!(i => bits(p.add(16 + 32 * (i / 4)), 2 * (i as i32 % 4), 3)),
    {
        let packed = _mm_loadu_si128(p.cast());
        let fifteen = _mm_set1_epi8(15);
        let m = _mm256_xor_ps(half(p.add(82)), _mm256_set1_ps(-0.0));
        Scales {
            scales: times16(half(p.add(80)), _mm_and_si128(packed, fifteen)),
            minimums: times16(m, _mm_and_si128(_mm_srli_epi16::<4>(packed), fifteen)),
        }
    }
);
unpack!(
    Q3K,
    |p| eight!(i => _mm256_or_si256(
        bits(p.add(32 + 32 * (i / 4)), 2 * (i as i32 % 4), 3),
        bits(p, i as i32 - 2, 4),
    )),
    {
        // Words 0 and 1: low halves of the 16 scales. Word 2: upper 2 bits of each four.
        let low = _mm_loadl_epi64(p.add(96).cast());
        let low = _mm_unpacklo_epi64(low, _mm_srli_epi64::<4>(low));
        let low = _mm_and_si128(low, _mm_set1_epi8(15));
        let high = _mm_set1_epi32(p.add(104).cast::<i32>().read_unaligned());
        let high = _mm_srlv_epi32(high, _mm_setr_epi32(0, 2, 4, 6));
        let high = _mm_slli_epi32::<4>(_mm_and_si128(high, _mm_set1_epi8(3)));
        let small = _mm_sub_epi8(_mm_or_si128(low, high), _mm_set1_epi8(32));
        Scales {
            scales: times16(half(p.add(108)), small),
            minimums: [_mm256_setzero_ps(); 2],
        }
    }
);
unpack!(
    Q4K,
    |p| eight!(i => bits(p.add(16 + 32 * (i / 2)), 4 * (i as i32 % 2), 15)),
    k4_scales(p)
);
unpack!(
    Q5K,
    |p| eight!(i => _mm256_or_si256(
        bits(p.add(48 + 32 * (i / 2)), 4 * (i as i32 % 2), 15),
        bits(p.add(16), i as i32 - 4, 16),
    )),
    k4_scales(p)
);
unpack!(
    Q6K,
    |p| eight!(i => {
        let (run, part) = (i / 4, i % 4);
        _mm256_or_si256(
            bits(p.add(64 * run + 32 * (part % 2)), 4 * (part as i32 / 2), 15),
            bits(p.add(128 + 32 * run), 2 * part as i32 - 4, 0x30),
        )
    }),
    Scales {
        scales: times16(half(p.add(208)), _mm_loadu_si128(p.add(192).cast())),
        minimums: [_mm256_setzero_ps(); 2],
    }
);

/// The scales of a chunk, read one after the other.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn plain_scales<F: Unpack>(p: *const u8) -> Scales {
    // SAFETY: see the module.
    unsafe {
        let (scales, _) = chunk_scales::<F>(std::slice::from_raw_parts(p, F::CHUNK_BYTES));
        Scales {
            scales: [
                _mm256_loadu_ps(scales.as_ptr()),
                _mm256_loadu_ps(scales.as_ptr().add(8)),
            ],
            minimums: [_mm256_setzero_ps(); 2],
        }
    }
}

/// Indices of the 64 elements of an NVFP4 block whose codes are at `p`.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn nvfp4_nibbles(p: *const u8) -> [__m256i; 2] {
    // SAFETY: see the module.
    unsafe {
        let v = _mm256_loadu_si256(p.cast());
        let low = _mm256_and_si256(v, _mm256_set1_epi8(15));
        let high = _mm256_and_si256(_mm256_srli_epi16::<4>(v), _mm256_set1_epi8(15));
        // Eight low halves, the same bytes' high ones: of the codes 0 and 2, and of 1 and 3.
        let even = _mm256_unpacklo_epi64(low, high);
        let odd = _mm256_unpackhi_epi64(low, high);
        [
            _mm256_permute2x128_si256::<0x20>(even, odd),
            _mm256_permute2x128_si256::<0x31>(even, odd),
        ]
    }
}

unpack!(
    NVFP4,
    |p| {
        let codes = eight!(i => nvfp4_nibbles(p.add(36 * (i / 2) + 4))[i % 2]);
        look_up(codes, MXFP4_CODES.as_ptr())
    },
    plain_scales::<NVFP4>(p)
);

macro_rules! codebook_unpack {
    ($($name:ident $group:literal),*) => {$(
        unpack!(
            $name,
            |p| {
                let b = std::slice::from_raw_parts(p, Self::CHUNK_BYTES);
                eight!(i => _mm256_set_epi64x(
                    Self::eight(b, 4 * i + 3) as i64,
                    Self::eight(b, 4 * i + 2) as i64,
                    Self::eight(b, 4 * i + 1) as i64,
                    Self::eight(b, 4 * i) as i64,
                ))
            },
            plain_scales::<$name>(p)
        );
    )*};
}
codebook_types!(codebook_unpack);
