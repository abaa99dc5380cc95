//! From blocks to codes and scales in registers: 256 elements at a time, in their order.
//!
//! Functions are `inline(always)` and so compiled with the features of their caller; each is sound
//! where [`super::available`] and the bytes of a chunk (see [`Unpack::CHUNK_BYTES`]) are readable.

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
    unsafe { widened_half(p.cast::<u16>().read_unaligned()) }
}

/// An f16 in all lanes.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn widened_half(bits: u16) -> __m512 {
    // SAFETY: see the module.
    unsafe { _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))) }
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
            let low = fours8(word(p.add(4)));
            let high = _mm256_set1_epi32(i32::from(p.add(2).cast::<u16>().read_unaligned()) << 4);
            let order = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
            let high = _mm256_srlv_epi32(high, order);
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

/// Codes of 64 elements from their magnitudes, negated where `signs` has ones.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn with_signs(v: __m512i, signs: u64) -> __m512i {
    // SAFETY: see the module.
    unsafe {
        let v = _mm512_mask_sub_epi8(v, signs, _mm512_setzero_si512(), v);
        _mm512_xor_si512(v, _mm512_set1_epi8(-128))
    }
}

/// Seven sign bits in each byte, and an eighth such that their number is even.
#[inline(always)]
fn even(sevens: u64) -> u64 {
    let p = sevens ^ (sevens >> 4);
    let p = p ^ (p >> 2);
    sevens | (((p ^ (p >> 1)) & 0x0101_0101_0101_0101) << 7)
}

/// The signs of twice 32 elements: four times seven bits in each of two words.
#[inline(always)]
fn even_signs(a: u32, b: u32) -> u64 {
    let spread =
        |w: u32| (w & 0x7f) | (w & 0x3f80) << 1 | (w & 0x1f_c000) << 2 | (w & 0xfe0_0000) << 3;
    even(u64::from(spread(a)) | u64::from(spread(b)) << 32)
}

/// The word at `p`.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn word(p: *const u8) -> u32 {
    // SAFETY: see the module.
    unsafe { p.cast::<u32>().read_unaligned() }
}

/// Eight bytes at `p`.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn long(p: *const u8) -> u64 {
    // SAFETY: see the module.
    unsafe { p.cast::<u64>().read_unaligned() }
}

/// Eight bytes as words.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn widened(bytes: u64) -> __m256i {
    // SAFETY: see the module.
    unsafe { _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes as i64)) }
}

/// Eight entries of a codebook, whose length every index is below.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn entries8(book: &[u64], at: __m256i) -> __m512i {
    // SAFETY: by contract, the processor has the features, and the elements are readable.
    unsafe { _mm512_i32gather_epi64::<8>(at, book.as_ptr().cast()) }
}

/// Sixteen entries of a codebook, likewise.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn entries16(book: &[u32], at: __m512i) -> __m512i {
    // SAFETY: by contract, the processor has the features, and the elements are readable.
    unsafe { _mm512_i32gather_epi32::<4>(at, book.as_ptr().cast()) }
}

/// `d` times a power of two times `2 * n + 1`.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn odd_scales<F: Codebook>(d: __m512, n: __m512i) -> __m512 {
    // SAFETY: see the module.
    unsafe {
        let odd = _mm512_add_epi32(_mm512_slli_epi32::<1>(n), _mm512_set1_epi32(1));
        let d = _mm512_mul_ps(d, _mm512_set1_ps(F::FACTOR));
        _mm512_mul_ps(d, _mm512_cvtepi32_ps(odd))
    }
}

/// The sixteen halves of eight bytes, low ones first.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn halves16(p: *const u8) -> __m512i {
    // SAFETY: see the module.
    unsafe {
        let v = _mm_loadl_epi64(p.cast());
        let v = _mm_unpacklo_epi8(v, _mm_srli_epi16::<4>(v));
        _mm512_cvtepu8_epi32(_mm_and_si128(v, _mm_set1_epi8(15)))
    }
}

/// Eight values of 4 bits.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn fours8(bits: u32) -> __m256i {
    // SAFETY: see the module.
    unsafe {
        let order = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
        let v = _mm256_srlv_epi32(_mm256_set1_epi32(bits as i32), order);
        _mm256_and_si256(v, _mm256_set1_epi32(15))
    }
}

/// Of two words with four times three bits each, the bits at 8 on.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn threes_above(words: __m256i) -> __m256i {
    // SAFETY: see the module.
    unsafe {
        let v = _mm256_srlv_epi32(words, _mm256_setr_epi32(0, 3, 6, 9, 0, 3, 6, 9));
        _mm256_slli_epi32::<8>(_mm256_and_si256(v, _mm256_set1_epi32(7)))
    }
}

/// Codes of 64 elements of IQ1_S or IQ1_M: eight entries, those of the mask an eighth lower, the others
/// higher.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn eighths(at: __m256i, lower: u8) -> __m512i {
    // SAFETY: by contract, the processor has the features, and the entries are readable.
    unsafe {
        let shift = _mm512_mask_mov_epi64(_mm512_set1_epi8(121), lower, _mm512_set1_epi8(119));
        _mm512_add_epi8(entries8(&IQ1_GRID, at), shift)
    }
}

/// A type: its codes and its scales, from the chunk at `$p`.
macro_rules! unpack {
    ($name:ident, |$p:ident, $i:ident| $codes:expr, $scales:expr) => {
        impl Unpack for $name {
            #[inline(always)]
            unsafe fn codes($p: *const u8) -> [__m512i; 4] {
                // SAFETY: see the module; indices are below the codebook's length.
                unsafe { four!($i => $codes) }
            }

            #[inline(always)]
            unsafe fn scales($p: *const u8) -> __m512 {
                // SAFETY: see the module.
                unsafe { $scales }
            }
        }
    };
}

unpack!(
    IQ2XXS,
    |p, i| {
        let q = p.add(2 + 16 * i);
        let at = widened(u64::from(word(q)) | u64::from(word(q.add(8))) << 32);
        let signs = even_signs(word(q.add(4)), word(q.add(12)));
        with_signs(entries8(&IQ2XXS_GRID, at), signs)
    },
    {
        let n = _mm256_srli_epi32::<28>(heads::<8>(p.add(6)));
        odd_scales::<IQ2XXS>(half(p), _mm512_castsi256_si512(n))
    }
);
unpack!(
    IQ2XS,
    |p, i| {
        let q = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(2 + 16 * i).cast()));
        let sevens = _mm256_cvtepi32_epi8(_mm256_srli_epi32::<9>(q));
        let signs = even(_mm_cvtsi128_si64(sevens) as u64);
        let at = _mm256_and_si256(q, _mm256_set1_epi32(511));
        with_signs(entries8(&IQ2XS_GRID, at), signs)
    },
    odd_scales::<IQ2XS>(half(p), halves16(p.add(66)))
);
unpack!(
    IQ2S,
    |p, i| {
        let (a, b) = (i32::from(*p.add(66 + 2 * i)), i32::from(*p.add(67 + 2 * i)));
        let high = _mm256_setr_epi32(a, a, a, a, b, b, b, b);
        let high = _mm256_srlv_epi32(high, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
        let high = _mm256_slli_epi32::<8>(_mm256_and_si256(high, _mm256_set1_epi32(3)));
        let at = _mm256_or_si256(widened(long(p.add(2 + 8 * i))), high);
        with_signs(entries8(&IQ2S_GRID, at), long(p.add(34 + 8 * i)))
    },
    odd_scales::<IQ2S>(half(p), halves16(p.add(74)))
);
unpack!(
    IQ3XXS,
    |p, i| {
        let at = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.add(2 + 16 * i).cast()));
        let signs = even_signs(word(p.add(66 + 8 * i)), word(p.add(70 + 8 * i)));
        with_signs(entries16(&IQ3XXS_GRID, at), signs)
    },
    {
        let n = _mm256_srli_epi32::<28>(_mm256_loadu_si256(p.add(66).cast()));
        odd_scales::<IQ3XXS>(half(p), _mm512_castsi256_si512(n))
    }
);
unpack!(
    IQ3S,
    |p, i| {
        let low = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.add(2 + 16 * i).cast()));
        let high = p.add(66 + 2 * i).cast::<u16>().read_unaligned();
        let ninth = _mm512_set1_epi32(256);
        let at = _mm512_mask_or_epi32(low, high, low, ninth);
        with_signs(entries16(&IQ3S_GRID, at), long(p.add(74 + 8 * i)))
    },
    {
        let n = fours8(word(p.add(106)));
        odd_scales::<IQ3S>(half(p), _mm512_castsi256_si512(n))
    }
);
unpack!(
    IQ1S,
    |p, i| {
        let h = word(p.add(34 + 4 * i));
        let (a, b) = ((h & 0xffff) as i32, (h >> 16) as i32);
        let high = threes_above(_mm256_setr_epi32(a, a, a, a, b, b, b, b));
        let at = _mm256_or_si256(widened(long(p.add(2 + 8 * i))), high);
        eighths(at, ((a >> 15) as u8 * 0x0f) | ((b >> 15) as u8 * 0xf0))
    },
    {
        let h = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(34).cast()));
        let n = _mm256_and_si256(_mm256_srli_epi32::<12>(h), _mm256_set1_epi32(7));
        odd_scales::<IQ1S>(half(p), _mm512_castsi256_si512(n))
    }
);
unpack!(
    IQ1M,
    |p, i| {
        let h = fours8(word(p.add(32 + 4 * i)));
        let lower = _mm256_test_epi32_mask(h, _mm256_set1_epi32(8));
        let high = _mm256_slli_epi32::<8>(_mm256_and_si256(h, _mm256_set1_epi32(7)));
        let at = _mm256_or_si256(widened(long(p.add(8 * i))), high);
        eighths(at, lower)
    },
    {
        // Four words: 16 times 3 bits, and 4 bits of the scale in each.
        let words =
            _mm512_cvtepu16_epi32(_mm256_castsi128_si256(_mm_loadl_epi64(p.add(48).cast())));
        let each = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
        let by = _mm512_setr_epi32(0, 3, 6, 9, 0, 3, 6, 9, 0, 3, 6, 9, 0, 3, 6, 9);
        let n = _mm512_srlv_epi32(_mm512_permutexvar_epi32(each, words), by);
        let n = _mm512_and_si512(n, _mm512_set1_epi32(7));
        let d = IQ1M::scale_bits(std::slice::from_raw_parts(p, IQ1M::BYTES));
        odd_scales::<IQ1M>(widened_half(d), n)
    }
);

impl Unpack for TQ2_0 {
    #[inline(always)]
    unsafe fn codes(p: *const u8) -> [__m512i; 4] {
        // SAFETY: see the module.
        unsafe {
            let numbers = two_bits(p);
            four!(i => _mm512_add_epi8(numbers[i], _mm512_set1_epi8(127)))
        }
    }

    #[inline(always)]
    unsafe fn scales(p: *const u8) -> __m512 {
        // SAFETY: see the module.
        unsafe { half(p.add(TQ2_0::SCALE_AT)) }
    }
}

/// Codes from bytes of ternary digits and, for each two of them, the power of three that brings their digit
/// to the top.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn digits(v: __m512i, powers: __m512i) -> __m512i {
    // SAFETY: see the module.
    unsafe {
        let (byte, three) = (_mm512_set1_epi16(255), _mm512_set1_epi16(3));
        let even = _mm512_mullo_epi16(_mm512_and_si512(v, byte), powers);
        let even = _mm512_mullo_epi16(_mm512_and_si512(even, byte), three);
        let even = _mm512_srli_epi16::<8>(even);
        let odd = _mm512_mullo_epi16(_mm512_srli_epi16::<8>(v), powers);
        let odd = _mm512_mullo_epi16(_mm512_and_si512(odd, byte), three);
        let numbers = _mm512_mask_blend_epi8(0xaaaa_aaaa_aaaa_aaaa, even, odd);
        _mm512_add_epi8(numbers, _mm512_set1_epi8(127))
    }
}

/// A power for each 128 bits.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn powers(a: i64, b: i64, c: i64, d: i64) -> __m512i {
    const EACH: i64 = 0x0001_0001_0001_0001;
    // SAFETY: see the module.
    unsafe {
        let four = _mm512_setr_epi64(a, a, b, b, c, c, d, d);
        _mm512_mullo_epi64(four, _mm512_set1_epi64(EACH))
    }
}

impl Unpack for TQ1_0 {
    #[inline(always)]
    unsafe fn codes(p: *const u8) -> [__m512i; 4] {
        // SAFETY: see the module.
        unsafe {
            let fives = _mm512_broadcast_i64x4(_mm256_loadu_si256(p.cast()));
            let more = _mm512_broadcast_i32x4(_mm_loadu_si128(p.add(32).cast()));
            let fours = _mm512_set1_epi32(word(p.add(48)) as i32);
            let last = _mm512_setr_epi32(
                0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x1_0001, 0x3_0003, 0x9_0009, 0x1b_001b,
            );
            [
                digits(fives, powers(1, 1, 3, 3)),
                digits(fives, powers(9, 9, 27, 27)),
                digits(
                    _mm512_mask_mov_epi64(fives, 0xf0, more),
                    powers(81, 81, 1, 3),
                ),
                digits(
                    _mm512_mask_mov_epi64(more, 0xc0, fours),
                    _mm512_or_si512(powers(9, 27, 81, 0), last),
                ),
            ]
        }
    }

    #[inline(always)]
    unsafe fn scales(p: *const u8) -> __m512 {
        // SAFETY: see the module.
        unsafe { half(p.add(TQ1_0::SCALE_AT)) }
    }
}

/// Indices of the 64 elements of an NVFP4 block whose codes are at `p`.
///
/// # Safety
/// See the module.
#[inline(always)]
unsafe fn nvfp4_nibbles(p: *const u8) -> __m512i {
    // SAFETY: see the module.
    unsafe {
        let v = _mm256_loadu_si256(p.cast());
        let high = _mm256_srli_epi16::<4>(v);
        // Eight low halves, the same bytes' high ones: of the codes 0 and 2, and of 1 and 3.
        let even = _mm512_castsi256_si512(_mm256_unpacklo_epi64(v, high));
        let odd = _mm512_castsi256_si512(_mm256_unpackhi_epi64(v, high));
        let order = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
        let v = _mm512_permutex2var_epi64(even, order, odd);
        _mm512_and_si512(v, _mm512_set1_epi8(15))
    }
}

impl Unpack for NVFP4 {
    #[inline(always)]
    unsafe fn codes(p: *const u8) -> [__m512i; 4] {
        // SAFETY: see the module.
        unsafe { look_up(four!(i => nvfp4_nibbles(p.add(36 * i + 4))), &MXFP4_CODES) }
    }

    #[inline(always)]
    unsafe fn scales(p: *const u8) -> __m512 {
        // SAFETY: see the module.
        unsafe {
            let at = |i: usize| word(p.add(36 * i)) as i32;
            let x = _mm512_cvtepu8_epi32(_mm_setr_epi32(at(0), at(1), at(2), at(3)));
            let e = _mm512_and_si512(_mm512_srli_epi32::<3>(x), _mm512_set1_epi32(15));
            let m = _mm512_and_si512(x, _mm512_set1_epi32(7));
            let above = _mm512_slli_epi32::<23>(_mm512_add_epi32(e, _mm512_set1_epi32(119)));
            let normal = _mm512_castsi512_ps(_mm512_or_si512(above, _mm512_slli_epi32::<20>(m)));
            let small = _mm512_mul_ps(_mm512_cvtepi32_ps(m), _mm512_set1_ps(1.0 / 1024.0));
            let subnormal = _mm512_testn_epi32_mask(e, e);
            let number = _mm512_cmpneq_epi32_mask(x, _mm512_set1_epi32(127));
            _mm512_maskz_mov_ps(number, _mm512_mask_mov_ps(normal, subnormal, small))
        }
    }
}
