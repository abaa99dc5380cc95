//! From blocks to codes and scales in registers: 256 elements at a time, in their order.
//!
//! Functions are `inline(always)` and so compiled with the features of their caller; each is sound
//! where [`super::available`] and the bytes of a chunk (see [`Unpack::CHUNK_BYTES`]) are readable.

use crate::backend::cpu::matmul::avx2::nvfp4_nibbles;
use crate::backend::cpu::matmul::types::*;
use std::arch::x86_64::*;

/// Reads chunks of 256 elements.
pub(super) trait Unpack: Format {
    /// Bytes of a chunk.
    const CHUNK_BYTES: usize = 256 / Self::BLOCK_LEN * Self::BLOCK_BYTES;

    /// Elements `64 * i ..` in register `i`.
    ///
    /// # Safety
    /// See the module.
    unsafe fn codes(p: *const u8) -> [__m512i; 4];

    /// 16 scales; or, if groups have 32 elements, 8 scales and then 8 minimums (if the type has
    /// none, anything).
    ///
    /// # Safety
    /// See the module.
    unsafe fn scales(p: *const u8) -> __m512;

    /// 16 minimums, if groups have 16 elements and minimums.
    ///
    /// # Safety
    /// See the module.
    #[inline(always)]
    unsafe fn minimums(_: *const u8) -> __m512 {
        // SAFETY: see the module.
        unsafe { _mm512_setzero_ps() }
    }
}

/// An array of four from an expression in `$i`. (Closures would not be compiled with the features of
/// the caller.)
macro_rules! four {
    ($i:ident => $v:expr) => {{
        let mut out = [_mm512_setzero_si512(); 4];
        for $i in 0..4 {
            out[$i] = $v;
        }
        out
    }};
}
pub(super) use four;

/// Both halves of the result are the 32 bytes at `p`, the lower one's 64-bit lanes rotated right by
/// `LOW` bits and the upper one's by `HIGH`.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn twice<const LOW: i64, const HIGH: i64>(p: *const u8) -> __m512i {
    // SAFETY: see the module.
    unsafe {
        let v = _mm512_broadcast_i64x4(_mm256_loadu_si256(p.cast()));
        let by = _mm512_setr_epi64(LOW, LOW, LOW, LOW, HIGH, HIGH, HIGH, HIGH);
        _mm512_rorv_epi64(v, by)
    }
}

/// `a & mask | b`.
#[inline(always)]
unsafe fn and_or(a: __m512i, mask: __m512i, b: __m512i) -> __m512i {
    // SAFETY: see the module.
    unsafe { _mm512_ternarylogic_epi64::<0xEA>(a, mask, b) }
}

/// Indices of two blocks of 32 whose 16 bytes are at `p` and `q`.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn nibbles(p: *const u8, q: *const u8) -> __m512i {
    // SAFETY: see the module.
    unsafe {
        let p = _mm256_broadcastsi128_si256(_mm_loadu_si128(p.cast()));
        let q = _mm256_broadcastsi128_si256(_mm_loadu_si128(q.cast()));
        let v = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(p), q);
        let v = _mm512_srlv_epi64(v, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4));
        _mm512_and_si512(v, _mm512_set1_epi8(15))
    }
}

/// [`nibbles`] of eight blocks, `STRIDE` bytes apart.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn nibbles8<const STRIDE: usize>(p: *const u8) -> [__m512i; 4] {
    // SAFETY: see the module.
    unsafe {
        [
            nibbles(p, p.add(STRIDE)),
            nibbles(p.add(2 * STRIDE), p.add(3 * STRIDE)),
            nibbles(p.add(4 * STRIDE), p.add(5 * STRIDE)),
            nibbles(p.add(6 * STRIDE), p.add(7 * STRIDE)),
        ]
    }
}

/// Adds 16 where the bit of eight blocks is set, 32 bits at `p` for each.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn fifth_bits<const STRIDE: usize>(p: *const u8, codes: [__m512i; 4]) -> [__m512i; 4] {
    // SAFETY: see the module.
    unsafe {
        four!(i => {
            let low = p.add(2 * i * STRIDE).cast::<u32>().read_unaligned();
            let high = p.add((2 * i + 1) * STRIDE).cast::<u32>().read_unaligned();
            let mask = u64::from(low) | u64::from(high) << 32;
            _mm512_mask_add_epi8(codes[i], mask, codes[i], _mm512_set1_epi8(16))
        })
    }
}

/// The table entries of indices.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn look_up(codes: [__m512i; 4], table: &[u8; 16]) -> [__m512i; 4] {
    // SAFETY: see the module.
    unsafe {
        let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
        four!(i => _mm512_shuffle_epi8(table, codes[i]))
    }
}

/// The 32-bit words at the start of eight blocks.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn heads<const STRIDE: i32>(p: *const u8) -> __m256i {
    // SAFETY: see the module; blocks are longer than four bytes.
    unsafe {
        let at = _mm256_mullo_epi32(
            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
            _mm256_set1_epi32(STRIDE),
        );
        _mm256_i32gather_epi32::<1>(p.cast(), at)
    }
}

/// The two f16 at the start of eight blocks: first all the first ones.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn head_halves<const STRIDE: i32>(p: *const u8) -> __m512 {
    // SAFETY: see the module.
    unsafe {
        let order = _mm256_setr_epi16(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
        _mm512_cvtph_ps(_mm256_permutexvar_epi16(order, heads::<STRIDE>(p)))
    }
}

/// The f16 at `p` in all lanes.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn half(p: *const u8) -> __m512 {
    // SAFETY: see the module.
    unsafe {
        let bits = i32::from(p.cast::<u16>().read_unaligned());
        _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)))
    }
}

/// Scales and minimums of a Q4_K or Q5_K block.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn k4_scales(p: *const u8) -> __m512 {
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
        let packed =
            _mm_ternarylogic_epi32::<0xEA>(high, _mm_setr_epi32(0, 0x30303030, 0, 0x30303030), low);
        let small = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(packed));
        // d, and -m: minimums are subtracted.
        let dm = _mm_xor_ps(_mm_cvtph_ps(head), _mm_setr_ps(0.0, -0.0, 0.0, -0.0));
        let order = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
        let dm = _mm512_permutexvar_ps(order, _mm512_castps128_ps512(dm));
        _mm512_mul_ps(dm, small)
    }
}

impl Unpack for Q4_0 {
    #[inline(always)]
    unsafe fn codes(p: *const u8) -> [__m512i; 4] {
        // SAFETY: see the module.
        unsafe { nibbles8::<18>(p.add(2)) }
    }

    #[inline(always)]
    unsafe fn scales(p: *const u8) -> __m512 {
        // SAFETY: see the module.
        unsafe { head_halves::<18>(p) }
    }
}

impl Unpack for Q4_1 {
    #[inline(always)]
    unsafe fn codes(p: *const u8) -> [__m512i; 4] {
        // SAFETY: see the module.
        unsafe { nibbles8::<20>(p.add(4)) }
    }

    #[inline(always)]
    unsafe fn scales(p: *const u8) -> __m512 {
        // SAFETY: see the module.
        unsafe { head_halves::<20>(p) }
    }
}

impl Unpack for Q5_0 {
    #[inline(always)]
    unsafe fn codes(p: *const u8) -> [__m512i; 4] {
        // SAFETY: see the module.
        unsafe { fifth_bits::<22>(p.add(2), nibbles8::<22>(p.add(6))) }
    }

    #[inline(always)]
    unsafe fn scales(p: *const u8) -> __m512 {
        // SAFETY: see the module.
        unsafe { head_halves::<22>(p) }
    }
}

impl Unpack for Q5_1 {
    #[inline(always)]
    unsafe fn codes(p: *const u8) -> [__m512i; 4] {
        // SAFETY: see the module.
        unsafe { fifth_bits::<24>(p.add(4), nibbles8::<24>(p.add(8))) }
    }

    #[inline(always)]
    unsafe fn scales(p: *const u8) -> __m512 {
        // SAFETY: see the module.
        unsafe { head_halves::<24>(p) }
    }
}

impl Unpack for Q8_0 {
    #[inline(always)]
    unsafe fn codes(p: *const u8) -> [__m512i; 4] {
        // SAFETY: see the module.
        unsafe {
            four!(i => {
                let a = _mm256_loadu_si256(p.add(68 * i + 2).cast());
                let b = _mm256_loadu_si256(p.add(68 * i + 36).cast());
                let v = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(a), b);
                _mm512_xor_si512(v, _mm512_set1_epi8(-128))
            })
        }
    }

    #[inline(always)]
    unsafe fn scales(p: *const u8) -> __m512 {
        // SAFETY: see the module.
        unsafe { head_halves::<34>(p) }
    }
}

/// Two bits of each element, 64 bytes for 256.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn two_bits(p: *const u8) -> [__m512i; 4] {
    // SAFETY: see the module.
    unsafe {
        let v = [
            twice::<0, 2>(p),
            twice::<4, 6>(p),
            twice::<0, 2>(p.add(32)),
            twice::<4, 6>(p.add(32)),
        ];
        four!(i => _mm512_and_si512(v[i], _mm512_set1_epi8(3)))
    }
}

impl Unpack for Q2K {
    #[inline(always)]
    unsafe fn codes(p: *const u8) -> [__m512i; 4] {
        // SAFETY: see the module.
        unsafe { two_bits(p.add(16)) }
    }

    #[inline(always)]
    unsafe fn scales(p: *const u8) -> __m512 {
        // SAFETY: see the module.
        unsafe {
            let packed = _mm_and_si128(_mm_loadu_si128(p.cast()), _mm_set1_epi8(15));
            let small = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(packed));
            _mm512_mul_ps(half(p.add(80)), small)
        }
    }

    #[inline(always)]
    unsafe fn minimums(p: *const u8) -> __m512 {
        // SAFETY: see the module.
        unsafe {
            let packed = _mm_srli_epi16::<4>(_mm_loadu_si128(p.cast()));
            let packed = _mm_and_si128(packed, _mm_set1_epi8(15));
            let small = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(packed));
            let m = _mm512_xor_ps(half(p.add(82)), _mm512_set1_ps(-0.0));
            _mm512_mul_ps(m, small)
        }
    }
}

impl Unpack for Q3K {
    #[inline(always)]
    unsafe fn codes(p: *const u8) -> [__m512i; 4] {
        // SAFETY: see the module.
        unsafe {
            let low = two_bits(p.add(32));
            // The third bit, turned to its place.
            let high = [
                twice::<62, 63>(p),
                twice::<0, 1>(p),
                twice::<2, 3>(p),
                twice::<4, 5>(p),
            ];
            let four = _mm512_set1_epi8(4);
            four!(i => and_or(high[i], four, low[i]))
        }
    }

    #[inline(always)]
    unsafe fn scales(p: *const u8) -> __m512 {
        // SAFETY: see the module.
        unsafe {
            // Words 0 and 1: low halves of the 16 scales. Word 2: upper 2 bits of each four.
            let low = _mm_loadl_epi64(p.add(96).cast());
            let low = _mm_unpacklo_epi64(low, _mm_srli_epi64::<4>(low));
            let high = _mm_set1_epi32(p.add(104).cast::<i32>().read_unaligned());
            let high = _mm_srlv_epi32(high, _mm_setr_epi32(0, 2, 4, 6));
            let high = _mm_slli_epi32::<4>(_mm_and_si128(high, _mm_set1_epi8(3)));
            let packed = _mm_ternarylogic_epi32::<0xEA>(low, _mm_set1_epi8(15), high);
            let packed = _mm_sub_epi8(packed, _mm_set1_epi8(32));
            let small = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(packed));
            _mm512_mul_ps(half(p.add(108)), small)
        }
    }
}

/// The halves of 128 bytes, in runs of 32 bytes for 64 elements.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn k4_nibbles(p: *const u8) -> [__m512i; 4] {
    // SAFETY: see the module.
    unsafe { four!(i => _mm512_and_si512(twice::<0, 4>(p.add(32 * i)), _mm512_set1_epi8(15))) }
}

impl Unpack for Q4K {
    #[inline(always)]
    unsafe fn codes(p: *const u8) -> [__m512i; 4] {
        // SAFETY: see the module.
        unsafe { k4_nibbles(p.add(16)) }
    }

    #[inline(always)]
    unsafe fn scales(p: *const u8) -> __m512 {
        // SAFETY: see the module.
        unsafe { k4_scales(p) }
    }
}

impl Unpack for Q5K {
    #[inline(always)]
    unsafe fn codes(p: *const u8) -> [__m512i; 4] {
        // SAFETY: see the module.
        unsafe {
            let low = k4_nibbles(p.add(48));
            // The fifth bit, turned to its place.
            let high = [
                twice::<60, 61>(p.add(16)),
                twice::<62, 63>(p.add(16)),
                twice::<0, 1>(p.add(16)),
                twice::<2, 3>(p.add(16)),
            ];
            let sixteen = _mm512_set1_epi8(16);
            four!(i => and_or(high[i], sixteen, low[i]))
        }
    }

    #[inline(always)]
    unsafe fn scales(p: *const u8) -> __m512 {
        // SAFETY: see the module.
        unsafe { k4_scales(p) }
    }
}

impl Unpack for Q6K {
    #[inline(always)]
    unsafe fn codes(p: *const u8) -> [__m512i; 4] {
        // SAFETY: see the module.
        unsafe {
            let (fifteen, upper) = (_mm512_set1_epi8(15), _mm512_set1_epi8(0x30));
            let runs = [
                _mm512_loadu_si512(p.cast()),
                _mm512_loadu_si512(p.add(64).cast()),
            ];
            let low = [
                _mm512_and_si512(runs[0], fifteen),
                _mm512_and_si512(_mm512_srli_epi16::<4>(runs[0]), fifteen),
                _mm512_and_si512(runs[1], fifteen),
                _mm512_and_si512(_mm512_srli_epi16::<4>(runs[1]), fifteen),
            ];
            // The upper two bits, turned to their place.
            let high = [
                twice::<60, 62>(p.add(128)),
                twice::<0, 2>(p.add(128)),
                twice::<60, 62>(p.add(160)),
                twice::<0, 2>(p.add(160)),
            ];
            four!(i => and_or(high[i], upper, low[i]))
        }
    }

    #[inline(always)]
    unsafe fn scales(p: *const u8) -> __m512 {
        // SAFETY: see the module.
        unsafe {
            let packed = _mm_loadu_si128(p.add(192).cast());
            let small = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(packed));
            _mm512_mul_ps(half(p.add(208)), small)
        }
    }
}

impl Unpack for IQ4NL {
    #[inline(always)]
    unsafe fn codes(p: *const u8) -> [__m512i; 4] {
        // SAFETY: see the module.
        unsafe { look_up(nibbles8::<18>(p.add(2)), &IQ4_CODES) }
    }

    #[inline(always)]
    unsafe fn scales(p: *const u8) -> __m512 {
        // SAFETY: see the module.
        unsafe { head_halves::<18>(p) }
    }
}

impl Unpack for IQ4XS {
    #[inline(always)]
    unsafe fn codes(p: *const u8) -> [__m512i; 4] {
        // SAFETY: see the module.
        unsafe { look_up(nibbles8::<16>(p.add(8)), &IQ4_CODES) }
    }

    #[inline(always)]
    unsafe fn scales(p: *const u8) -> __m512 {
        // SAFETY: see the module.
        unsafe {
            let order = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
            let low = _mm256_set1_epi32(p.add(4).cast::<i32>().read_unaligned());
            let low = _mm256_and_si256(_mm256_srlv_epi32(low, order), _mm256_set1_epi32(15));
            let high = _mm256_set1_epi32(i32::from(p.add(2).cast::<u16>().read_unaligned()) << 4);
            let high = _mm256_srlv_epi32(high, _mm256_srli_epi32::<1>(order));
            let high = _mm256_and_si256(high, _mm256_set1_epi32(0x30));
            let s = _mm256_sub_epi32(_mm256_or_si256(low, high), _mm256_set1_epi32(32));
            let small = _mm512_castps256_ps512(_mm256_cvtepi32_ps(s));
            _mm512_mul_ps(half(p), small)
        }
    }
}

impl Unpack for MXFP4 {
    #[inline(always)]
    unsafe fn codes(p: *const u8) -> [__m512i; 4] {
        // SAFETY: see the module.
        unsafe { look_up(nibbles8::<17>(p.add(1)), &MXFP4_CODES) }
    }

    #[inline(always)]
    unsafe fn scales(p: *const u8) -> __m512 {
        // SAFETY: see the module.
        unsafe {
            let e = _mm256_and_si256(heads::<17>(p), _mm256_set1_epi32(255));
            let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, _mm256_set1_epi32(1)));
            let subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), e);
            let small = _mm256_cmplt_epi32_mask(e, _mm256_set1_epi32(2));
            let bits = _mm256_mask_mov_epi32(normal, small, subnormal);
            _mm512_castps256_ps512(_mm256_castsi256_ps(bits))
        }
    }
}

/// The scales of a chunk, read one after the other.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn plain_scales<F: Unpack>(p: *const u8) -> __m512 {
    // SAFETY: see the module.
    unsafe {
        let scales = chunk_scales::<F>(std::slice::from_raw_parts(p, F::CHUNK_BYTES));
        _mm512_loadu_ps(scales.as_ptr())
    }
}

impl Unpack for NVFP4 {
    #[inline(always)]
    unsafe fn codes(p: *const u8) -> [__m512i; 4] {
        // SAFETY: see the module.
        unsafe {
            let codes = four!(i => {
                let [low, high] = nvfp4_nibbles(p.add(36 * i + 4));
                _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
            });
            look_up(codes, &MXFP4_CODES)
        }
    }

    #[inline(always)]
    unsafe fn scales(p: *const u8) -> __m512 {
        // SAFETY: see the module.
        unsafe { plain_scales::<NVFP4>(p) }
    }
}

macro_rules! codebook_unpack {
    ($($name:ident $group:literal),*) => {$(
        impl Unpack for $name {
            #[inline(always)]
            unsafe fn codes(p: *const u8) -> [__m512i; 4] {
                // SAFETY: see the module.
                unsafe {
                    let b = std::slice::from_raw_parts(p, Self::CHUNK_BYTES);
                    four!(i => {
                        let v = _mm512_set_epi64(
                            Self::eight(b, 8 * i + 7) as i64,
                            Self::eight(b, 8 * i + 6) as i64,
                            Self::eight(b, 8 * i + 5) as i64,
                            Self::eight(b, 8 * i + 4) as i64,
                            Self::eight(b, 8 * i + 3) as i64,
                            Self::eight(b, 8 * i + 2) as i64,
                            Self::eight(b, 8 * i + 1) as i64,
                            Self::eight(b, 8 * i) as i64,
                        );
                        _mm512_xor_si512(v, _mm512_set1_epi8(-128))
                    })
                }
            }

            #[inline(always)]
            unsafe fn scales(p: *const u8) -> __m512 {
                // SAFETY: see the module.
                unsafe { plain_scales::<$name>(p) }
            }
        }
    )*};
}
codebook_types!(codebook_unpack);
