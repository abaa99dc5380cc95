//! Tensor element types of GGUF files and their exact meaning.
//!
//! A row of a tensor is a sequence of blocks; a block holds `block_len` elements in `block_bytes`
//! bytes. One file per family of types defines the layout and the reference dequantization, which
//! equals the `gguf` Python package's bit for bit.

mod encode;
mod float;
mod iq4;
mod k;
mod legacy;
mod mxfp4;

pub use encode::{Encode, encoder};
pub use iq4::{IQ4_VALUES, iq4_xs_scales};
pub use k::{k4_scales_and_minimums, q3k_scales};
pub use mxfp4::{E2M1_DOUBLED, e8m0_half};

use half::f16;

/// The types of tensors that the library reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a single.
    BF16,
    /// 32 elements: f16 scale, 4-bit values minus 8.
    Q4_0,
    /// 32 elements: f16 scale and minimum, 4-bit values.
    Q4_1,
    /// 32 elements: f16 scale, 5-bit values minus 16.
    Q5_0,
    /// 32 elements: f16 scale and minimum, 5-bit values.
    Q5_1,
    /// 32 elements: f16 scale, 8-bit signed values.
    Q8_0,
    /// 256 elements in 16 groups of 16, 2 bits.
    Q2K,
    /// 256 elements in 16 groups of 16, 3 bits.
    Q3K,
    /// 256 elements in 8 groups of 32, 4 bits.
    Q4K,
    /// 256 elements in 8 groups of 32, 5 bits.
    Q5K,
    /// 256 elements in 16 groups of 16, 6 bits.
    Q6K,
    /// 32 elements: f16 scale, 4-bit index into a fixed table.
    IQ4NL,
    /// 256 elements in 8 groups of 32, 4-bit index into a fixed table.
    IQ4XS,
    /// 32 elements: power-of-two scale, 4-bit float (E2M1).
    MXFP4,
}

impl TensorType {
    /// Every type, in the order of the declaration.
    pub const ALL: [TensorType; 16] = [
        TensorType::F32,
        TensorType::F16,
        TensorType::BF16,
        TensorType::Q4_0,
        TensorType::Q4_1,
        TensorType::Q5_0,
        TensorType::Q5_1,
        TensorType::Q8_0,
        TensorType::Q2K,
        TensorType::Q3K,
        TensorType::Q4K,
        TensorType::Q5K,
        TensorType::Q6K,
        TensorType::IQ4NL,
        TensorType::IQ4XS,
        TensorType::MXFP4,
    ];

    /// (id in a GGUF file, elements per block, bytes per block, name)
    const fn row(self) -> (u32, usize, usize, &'static str) {
        match self {
            TensorType::F32 => (0, 1, 4, "F32"),
            TensorType::F16 => (1, 1, 2, "F16"),
            TensorType::BF16 => (30, 1, 2, "BF16"),
            TensorType::Q4_0 => (2, 32, 18, "Q4_0"),
            TensorType::Q4_1 => (3, 32, 20, "Q4_1"),
            TensorType::Q5_0 => (6, 32, 22, "Q5_0"),
            TensorType::Q5_1 => (7, 32, 24, "Q5_1"),
            TensorType::Q8_0 => (8, 32, 34, "Q8_0"),
            TensorType::Q2K => (10, 256, 84, "Q2_K"),
            TensorType::Q3K => (11, 256, 110, "Q3_K"),
            TensorType::Q4K => (12, 256, 144, "Q4_K"),
            TensorType::Q5K => (13, 256, 176, "Q5_K"),
            TensorType::Q6K => (14, 256, 210, "Q6_K"),
            TensorType::IQ4NL => (20, 32, 18, "IQ4_NL"),
            TensorType::IQ4XS => (23, 256, 136, "IQ4_XS"),
            TensorType::MXFP4 => (39, 32, 17, "MXFP4"),
        }
    }

    /// The type with this id in a GGUF file.
    pub fn from_gguf_id(id: u32) -> Option<TensorType> {
        TensorType::ALL.into_iter().find(|t| t.gguf_id() == id)
    }

    /// The id in a GGUF file.
    pub const fn gguf_id(self) -> u32 {
        self.row().0
    }

    /// Elements per block.
    pub const fn block_len(self) -> usize {
        self.row().1
    }

    /// Bytes per block.
    pub const fn block_bytes(self) -> usize {
        self.row().2
    }

    /// The name that llama.cpp and model cards use, for example `Q4_K`.
    pub const fn name(self) -> &'static str {
        self.row().3
    }

    /// Bytes of a row of `len` elements; `None` if `len` is no whole number of blocks or the
    /// product overflows.
    pub const fn row_bytes(self, len: usize) -> Option<usize> {
        if !len.is_multiple_of(self.block_len()) {
            return None;
        }
        (len / self.block_len()).checked_mul(self.block_bytes())
    }
}

/// Writes the exact values of the elements in `bytes`, whole blocks of type `ty`, to `out`.
///
/// Every value is computed in single precision in the order that the type's formula states, each
/// step rounded: equal bit for bit to the `gguf` Python package.
///
/// Panics unless `bytes` is exactly as long as `out.len()` elements of this type need
/// ([`TensorType::row_bytes`]).
pub fn dequantize_row(ty: TensorType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(
        Some(bytes.len()),
        ty.row_bytes(out.len()),
        "{}: bytes of {} elements",
        ty.name(),
        out.len()
    );
    match ty {
        TensorType::F32 => float::f32_row(bytes, out),
        TensorType::F16 => float::f16_row(bytes, out),
        TensorType::BF16 => float::bf16_row(bytes, out),
        TensorType::Q4_0 => blocks(bytes, out, legacy::q4_0),
        TensorType::Q4_1 => blocks(bytes, out, legacy::q4_1),
        TensorType::Q5_0 => blocks(bytes, out, legacy::q5_0),
        TensorType::Q5_1 => blocks(bytes, out, legacy::q5_1),
        TensorType::Q8_0 => blocks(bytes, out, legacy::q8_0),
        TensorType::Q2K => blocks(bytes, out, k::q2_k),
        TensorType::Q3K => blocks(bytes, out, k::q3_k),
        TensorType::Q4K => blocks(bytes, out, k::q4_k),
        TensorType::Q5K => blocks(bytes, out, k::q5_k),
        TensorType::Q6K => blocks(bytes, out, k::q6_k),
        TensorType::IQ4NL => blocks(bytes, out, iq4::iq4_nl),
        TensorType::IQ4XS => blocks(bytes, out, iq4::iq4_xs),
        TensorType::MXFP4 => blocks(bytes, out, mxfp4::mxfp4),
    }
}

/// Runs `decode` on every block of `B` bytes and its `N` elements.
fn blocks<const B: usize, const N: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; B], &mut [f32; N]),
) {
    for (b, y) in bytes.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
        decode(b, y);
    }
}

/// The little-endian f16 at byte `at` of a block, widened (exact).
fn f16_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}
