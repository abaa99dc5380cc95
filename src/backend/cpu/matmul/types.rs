//! What the products know of each quantized type: codes, scales and minimums of a block, in plain
//! Rust. The element is `scale * (code - ZERO) + minimum`.

pub(super) use crate::quant::codebook::*;
use crate::quant::{
    E2M1_DOUBLED, IQ4_VALUES, e8m0_half, iq4_xs_scales, k4_scales_and_minimums, q3k_scales,
    ue4m3_half,
};
use half::f16;

/// A quantized type.
pub(super) trait Format {
    /// Elements of a block: 32, 64 or 256.
    const BLOCK_LEN: usize;
    /// Bytes of a block.
    const BLOCK_BYTES: usize;
    /// Elements that share a scale: 16 or 32.
    const GROUP: usize;
    /// Binary logarithm of the code that means zero; `None` if that is 0.
    const ZERO_LOG2: Option<u32>;
    /// Whether groups have a minimum.
    const MINIMUM: bool;
    /// The largest code.
    const MAX: u8;

    /// Accumulators of a row.
    const LANES: usize = 256 / Self::GROUP;

    /// The `BLOCK_LEN` codes of a block.
    fn decode_codes(block: &[u8], codes: &mut [u8]);

    /// A scale and (if there are any) a minimum per group of a block.
    fn decode_scales(block: &[u8], scales: &mut [f32], minimums: &mut [f32]);
}

/// The f16 at byte `at`.
pub(super) fn f16_at(b: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([b[at], b[at + 1]]).to_f32()
}

/// The low halves of the bytes, then the high halves.
fn halves(bytes: &[u8], codes: &mut [u8]) {
    let n = bytes.len();
    for (j, b) in bytes.iter().enumerate() {
        codes[j] = b & 15;
        codes[j + n] = b >> 4;
    }
}

macro_rules! formats {
    ($($name:ident: $len:literal in $bytes:literal, group $group:literal, zero $zero:expr,
       minimum $min:literal, max $max:literal,
       codes |$b:ident, $codes:ident| $code:block
       scales |$sb:ident, $scales:ident, $minimums:ident| $scale:block)*) => {$(
        #[doc = concat!("See `TensorType::", stringify!($name), "`.")]
        pub(super) struct $name;

        impl Format for $name {
            const BLOCK_LEN: usize = $len;
            const BLOCK_BYTES: usize = $bytes;
            const GROUP: usize = $group;
            const ZERO_LOG2: Option<u32> = $zero;
            const MINIMUM: bool = $min;
            const MAX: u8 = $max;

            fn decode_codes($b: &[u8], $codes: &mut [u8]) $code

            #[inline]
            fn decode_scales($sb: &[u8], $scales: &mut [f32], $minimums: &mut [f32]) $scale
        }
    )*};
}

formats! {
    Q4_0: 32 in 18, group 32, zero Some(3), minimum false, max 15,
    codes |b, codes| { halves(&b[2..18], codes); }
    scales |b, scales, _m| { scales[0] = f16_at(b, 0); }

    Q4_1: 32 in 20, group 32, zero None, minimum true, max 15,
    codes |b, codes| { halves(&b[4..20], codes); }
    scales |b, scales, minimums| {
        scales[0] = f16_at(b, 0);
        minimums[0] = f16_at(b, 2);
    }

    Q5_0: 32 in 22, group 32, zero Some(4), minimum false, max 31,
    codes |b, codes| {
        halves(&b[6..22], codes);
        fifth_bits(&b[2..6], codes);
    }
    scales |b, scales, _m| { scales[0] = f16_at(b, 0); }

    Q5_1: 32 in 24, group 32, zero None, minimum true, max 31,
    codes |b, codes| {
        halves(&b[8..24], codes);
        fifth_bits(&b[4..8], codes);
    }
    scales |b, scales, minimums| {
        scales[0] = f16_at(b, 0);
        minimums[0] = f16_at(b, 2);
    }

    Q8_0: 32 in 34, group 32, zero Some(7), minimum false, max 255,
    codes |b, codes| {
        for (code, q) in codes.iter_mut().zip(&b[2..34]) {
            *code = q ^ 128;
        }
    }
    scales |b, scales, _m| { scales[0] = f16_at(b, 0); }

    Q2K: 256 in 84, group 16, zero None, minimum true, max 3,
    codes |b, codes| { two_bits(&b[16..80], codes); }
    scales |b, scales, minimums| {
        let (d, m) = (f16_at(b, 80), f16_at(b, 82));
        for g in 0..16 {
            scales[g] = d * f32::from(b[g] & 15);
            minimums[g] = -(m * f32::from(b[g] >> 4));
        }
    }

    Q3K: 256 in 110, group 16, zero Some(2), minimum false, max 7,
    codes |b, codes| {
        two_bits(&b[32..96], codes);
        for (e, code) in codes.iter_mut().enumerate() {
            *code |= (b[e % 32] >> (e / 32) & 1) << 2;
        }
    }
    scales |b, scales, _m| {
        let d = f16_at(b, 108);
        if let Some(packed) = b[96..].first_chunk() {
            for (scale, s) in scales.iter_mut().zip(q3k_scales(packed)) {
                *scale = d * f32::from(s);
            }
        }
    }

    Q4K: 256 in 144, group 32, zero None, minimum true, max 15,
    codes |b, codes| {
        for run in 0..4 {
            halves(&b[16 + 32 * run..][..32], &mut codes[64 * run..][..64]);
        }
    }
    scales |b, scales, minimums| { k4_groups(b, scales, minimums); }

    Q5K: 256 in 176, group 32, zero None, minimum true, max 31,
    codes |b, codes| {
        for run in 0..4 {
            halves(&b[48 + 32 * run..][..32], &mut codes[64 * run..][..64]);
        }
        for (e, code) in codes.iter_mut().enumerate() {
            *code |= (b[16 + e % 32] >> (e / 32) & 1) << 4;
        }
    }
    scales |b, scales, minimums| { k4_groups(b, scales, minimums); }

    Q6K: 256 in 210, group 16, zero Some(5), minimum false, max 63,
    codes |b, codes| {
        for run in 0..2 {
            let codes = &mut codes[128 * run..][..128];
            halves(&b[64 * run..][..64], codes);
            let high = &b[128 + 32 * run..][..32];
            for (e, code) in codes.iter_mut().enumerate() {
                *code |= (high[e % 32] >> (2 * (e / 32)) & 3) << 4;
            }
        }
    }
    scales |b, scales, _m| {
        let d = f16_at(b, 208);
        for g in 0..16 {
            scales[g] = d * f32::from(b[192 + g] as i8);
        }
    }

    IQ4NL: 32 in 18, group 32, zero Some(7), minimum false, max 241,
    codes |b, codes| {
        halves(&b[2..18], codes);
        look_up(codes, &IQ4_CODES);
    }
    scales |b, scales, _m| { scales[0] = f16_at(b, 0); }

    IQ4XS: 256 in 136, group 32, zero Some(7), minimum false, max 241,
    codes |b, codes| {
        for g in 0..8 {
            halves(&b[8 + 16 * g..][..16], &mut codes[32 * g..][..32]);
        }
        look_up(codes, &IQ4_CODES);
    }
    scales |b, scales, _m| {
        let d = f16_at(b, 0);
        if let Some(block) = b.first_chunk() {
            for (scale, s) in scales.iter_mut().zip(iq4_xs_scales(block)) {
                *scale = d * f32::from(s);
            }
        }
    }

    MXFP4: 32 in 17, group 32, zero Some(4), minimum false, max 28,
    codes |b, codes| {
        halves(&b[1..17], codes);
        look_up(codes, &MXFP4_CODES);
    }
    scales |b, scales, _m| { scales[0] = e8m0_half(b[0]); }

    NVFP4: 64 in 36, group 16, zero Some(4), minimum false, max 28,
    codes |b, codes| {
        for (s, codes) in codes.chunks_exact_mut(16).enumerate() {
            halves(&b[4 + 8 * s..][..8], codes);
        }
        look_up(codes, &MXFP4_CODES);
    }
    scales |b, scales, _m| {
        for (scale, s) in scales.iter_mut().zip(b) {
            *scale = ue4m3_half(*s);
        }
    }
}

/// Tells `then!` the types with codebooks, and how many elements share a scale.
macro_rules! codebook_types {
    ($then:ident) => {
        $then! {
            IQ2XXS 32, IQ2XS 16, IQ2S 16, IQ3XXS 32, IQ3S 32, IQ1S 32, IQ1M 16, TQ1_0 32, TQ2_0 32
        }
    };
}
pub(super) use codebook_types;

macro_rules! codebook_formats {
    ($($name:ident $group:literal),*) => {$(
        impl Format for $name {
            const BLOCK_LEN: usize = 256;
            const BLOCK_BYTES: usize = <$name as Codebook>::BYTES;
            const GROUP: usize = $group;
            const ZERO_LOG2: Option<u32> = Some(7);
            const MINIMUM: bool = false;
            const MAX: u8 = 255;

            fn decode_codes(b: &[u8], codes: &mut [u8]) {
                let b = &b[..Self::BLOCK_BYTES];
                for (i, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                    *codes = (Self::eight(b, i) ^ 0x8080_8080_8080_8080).to_le_bytes();
                }
            }

            #[inline(always)]
            fn decode_scales(b: &[u8], scales: &mut [f32], _: &mut [f32]) {
                let b = &b[..Self::BLOCK_BYTES];
                let d = Self::scale(b) * Self::FACTOR;
                for (g, scale) in scales.iter_mut().enumerate() {
                    *scale = d * f32::from(Self::small(b, g * ($group / 16)));
                }
            }
        }
    )*};
}
codebook_types!(codebook_formats);

/// Scales and minimums of 256 elements, read one after the other.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
pub(super) fn chunk_scales<F: Format>(chunk: &[u8]) -> ([f32; 16], [f32; 16]) {
    let (mut scales, mut minimums) = ([0.0; 16], [0.0; 16]);
    let groups = F::BLOCK_LEN / F::GROUP;
    for i in 0..256 / F::BLOCK_LEN {
        F::decode_scales(
            &chunk[i * F::BLOCK_BYTES..][..F::BLOCK_BYTES],
            &mut scales[i * groups..][..groups],
            &mut minimums[i * groups..][..groups],
        );
    }
    (scales, minimums)
}

/// Bit `j` of the four bytes is the fifth bit of code `j`.
fn fifth_bits(bits: &[u8], codes: &mut [u8]) {
    for (j, code) in codes.iter_mut().enumerate() {
        *code |= (bits[j / 8] >> (j % 8) & 1) << 4;
    }
}

/// 256 codes of two bits in 64 bytes, in runs of 128.
fn two_bits(bytes: &[u8], codes: &mut [u8]) {
    for (e, code) in codes.iter_mut().enumerate() {
        *code = bytes[32 * (e / 128) + e % 32] >> (2 * (e / 32 % 4)) & 3;
    }
}

/// Scales and minimums of a Q4_K or Q5_K block.
fn k4_groups(b: &[u8], scales: &mut [f32], minimums: &mut [f32]) {
    let (d, m) = (f16_at(b, 0), f16_at(b, 2));
    if let Some(packed) = b[4..].first_chunk() {
        let (s, t) = k4_scales_and_minimums(packed);
        for g in 0..8 {
            scales[g] = d * f32::from(s[g]);
            minimums[g] = -(m * f32::from(t[g]));
        }
    }
}

/// Replaces each index by its code.
fn look_up(codes: &mut [u8], table: &[u8; 16]) {
    for code in codes {
        *code = table[usize::from(*code & 15)];
    }
}

/// [`IQ4_VALUES`] plus 128.
pub(super) const IQ4_CODES: [u8; 16] = codes_of(IQ4_VALUES, 128);
/// [`E2M1_DOUBLED`] plus 16.
pub(super) const MXFP4_CODES: [u8; 16] = codes_of(E2M1_DOUBLED, 16);

const fn codes_of(values: [i8; 16], zero: i16) -> [u8; 16] {
    let mut codes = [0; 16];
    let mut i = 0;
    while i < 16 {
        codes[i] = (values[i] as i16 + zero) as u8;
        i += 1;
    }
    codes
}

/// Evaluates an expression with `$F` naming the format of a quantized type.
macro_rules! with_format {
    ($ty:expr, $F:ident => $quantized:expr, _ => $float:expr) => {{
        use crate::backend::cpu::matmul::types::match_format;
        crate::quant::quantized_types!(match_format($ty, $F, $quantized, $float))
    }};
}
pub(super) use with_format;

/// The match of [`with_format`].
macro_rules! match_format {
    (($ty:expr, $F:ident, $quantized:expr, $float:expr) $($name:ident)*) => {
        match $ty {
            $(crate::quant::TensorType::$name => {
                type $F = crate::backend::cpu::matmul::types::$name;
                $quantized
            })*
            crate::quant::TensorType::F32
            | crate::quant::TensorType::F16
            | crate::quant::TensorType::BF16 => $float,
        }
    };
}
pub(super) use match_format;
