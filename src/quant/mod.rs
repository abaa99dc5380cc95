//! Tensor element types of GGUF files and their exact meaning.
//!
//! A row of a tensor is a sequence of blocks; a block holds `block_len` elements in `block_bytes`
//! bytes. One file per family of types defines the layout and the reference dequantization, which
//! equals the `gguf` Python package's bit for bit.

pub mod codebook;
mod encode;
mod float;
pub mod grids;
mod iq4;
mod k;
mod legacy;
mod mxfp4;
mod nvfp4;

pub use codebook::Codebook;
pub use encode::{Encode, encoder};
pub use iq4::{IQ4_VALUES, iq4_xs_scales};
pub use k::{k4_scales_and_minimums, q3k_scales};
pub use mxfp4::{E2M1_DOUBLED, e8m0_half};
pub use nvfp4::ue4m3_half;

use half::f16;

/// The one list of types. A row: documentation, name here and in llama.cpp, id in a GGUF file, elements
/// and bytes of a block, and how whole blocks become singles.
///
/// It makes [`TensorType`], what that knows, [`dequantize_row`], and the macro `quantized_types!`, which
/// hands the names of the quantized types to another macro.
macro_rules! tensor_types {
    (($d:tt)
     float { $($(#[$fdoc:meta])* $float:ident $fname:literal $fid:literal: $flen:literal in $fbytes:literal, $fdecode:expr;)* }
     quantized { $($(#[$doc:meta])* $ty:ident $name:literal $id:literal: $len:literal in $bytes:literal, $decode:expr;)* }
    ) => {
        /// The types of tensors that the library reads.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum TensorType {
            $($(#[$fdoc])* $float,)*
            $($(#[$doc])* $ty,)*
        }

        impl TensorType {
            /// Every type, in the order of the declaration.
            pub const ALL: [TensorType; [$($fid,)* $($id),*].len()] =
                [$(TensorType::$float,)* $(TensorType::$ty,)*];

            /// (id in a GGUF file, elements per block, bytes per block, name)
            const fn row(self) -> (u32, usize, usize, &'static str) {
                match self {
                    $(TensorType::$float => ($fid, $flen, $fbytes, $fname),)*
                    $(TensorType::$ty => ($id, $len, $bytes, $name),)*
                }
            }

            /// Whether elements are plain floats.
            pub const fn is_float(self) -> bool {
                matches!(self, $(TensorType::$float)|*)
            }

            /// Writes the elements of whole blocks.
            fn dequantize(self, bytes: &[u8], out: &mut [f32]) {
                match self {
                    $(TensorType::$float => $fdecode(bytes, out),)*
                    $(TensorType::$ty => $decode(bytes, out),)*
                }
            }
        }

        /// `then! { (arguments) names of the quantized types }`
        macro_rules! quantized_types {
            ($d then:ident $d arguments:tt) => { $d then! { $d arguments $($ty)* } };
        }
        pub(crate) use quantized_types;
    };
}

tensor_types! { ($)
    float {
        /// IEEE single precision.
        F32 "F32" 0: 1 in 4, float::f32_row;
        /// IEEE half precision.
        F16 "F16" 1: 1 in 2, float::f16_row;
        /// The upper half of a single.
        BF16 "BF16" 30: 1 in 2, float::bf16_row;
    }
    quantized {
        /// 32 elements: f16 scale, 4-bit values minus 8.
        Q4_0 "Q4_0" 2: 32 in 18, blocks(legacy::q4_0);
        /// 32 elements: f16 scale and minimum, 4-bit values.
        Q4_1 "Q4_1" 3: 32 in 20, blocks(legacy::q4_1);
        /// 32 elements: f16 scale, 5-bit values minus 16.
        Q5_0 "Q5_0" 6: 32 in 22, blocks(legacy::q5_0);
        /// 32 elements: f16 scale and minimum, 5-bit values.
        Q5_1 "Q5_1" 7: 32 in 24, blocks(legacy::q5_1);
        /// 32 elements: f16 scale, 8-bit signed values.
        Q8_0 "Q8_0" 8: 32 in 34, blocks(legacy::q8_0);
        /// 256 elements in 16 groups of 16, 2 bits.
        Q2K "Q2_K" 10: 256 in 84, blocks(k::q2_k);
        /// 256 elements in 16 groups of 16, 3 bits.
        Q3K "Q3_K" 11: 256 in 110, blocks(k::q3_k);
        /// 256 elements in 8 groups of 32, 4 bits.
        Q4K "Q4_K" 12: 256 in 144, blocks(k::q4_k);
        /// 256 elements in 8 groups of 32, 5 bits.
        Q5K "Q5_K" 13: 256 in 176, blocks(k::q5_k);
        /// 256 elements in 16 groups of 16, 6 bits.
        Q6K "Q6_K" 14: 256 in 210, blocks(k::q6_k);
        /// 32 elements: f16 scale, 4-bit index into a fixed table.
        IQ4NL "IQ4_NL" 20: 32 in 18, blocks(iq4::iq4_nl);
        /// 256 elements in 8 groups of 32, 4-bit index into a fixed table.
        IQ4XS "IQ4_XS" 23: 256 in 136, blocks(iq4::iq4_xs);
        /// 32 elements: power-of-two scale, 4-bit float (E2M1).
        MXFP4 "MXFP4" 39: 32 in 17, blocks(mxfp4::mxfp4);
        /// 64 elements in 4 groups of 16: 8-bit float scales (E4M3), 4-bit floats (E2M1).
        NVFP4 "NVFP4" 40: 64 in 36, blocks(nvfp4::nvfp4);
        /// 256 elements in 8 groups of 32, a codebook of 256 times 8 elements with an even number of signs.
        IQ2XXS "IQ2_XXS" 16: 256 in 66, codebook::dequantize::<codebook::IQ2XXS>;
        /// 256 elements in 16 groups of 16, a codebook of 512 times 8 elements with an even number of signs.
        IQ2XS "IQ2_XS" 17: 256 in 74, codebook::dequantize::<codebook::IQ2XS>;
        /// 256 elements in 16 groups of 16, a codebook of 1024 times 8 elements.
        IQ2S "IQ2_S" 22: 256 in 82, codebook::dequantize::<codebook::IQ2S>;
        /// 256 elements in 8 groups of 32, a codebook of 256 times 4 elements with an even number of signs.
        IQ3XXS "IQ3_XXS" 18: 256 in 98, codebook::dequantize::<codebook::IQ3XXS>;
        /// 256 elements in 8 groups of 32, a codebook of 512 times 4 elements.
        IQ3S "IQ3_S" 21: 256 in 110, codebook::dequantize::<codebook::IQ3S>;
        /// 256 elements in 8 groups of 32, a codebook of 2048 times 8 ternary elements.
        IQ1S "IQ1_S" 19: 256 in 50, codebook::dequantize::<codebook::IQ1S>;
        /// 256 elements in 16 groups of 16, the codebook of IQ1_S.
        IQ1M "IQ1_M" 29: 256 in 56, codebook::dequantize::<codebook::IQ1M>;
        /// 256 ternary elements, five to a byte.
        TQ1_0 "TQ1_0" 34: 256 in 54, codebook::dequantize::<codebook::TQ1_0>;
        /// 256 ternary elements, four to a byte.
        TQ2_0 "TQ2_0" 35: 256 in 66, codebook::dequantize::<codebook::TQ2_0>;
    }
}

impl TensorType {
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
    ty.dequantize(bytes, out);
}

/// Runs `decode` on every block of `B` bytes and its `N` elements.
fn blocks<const B: usize, const N: usize>(
    decode: impl Fn(&[u8; B], &mut [f32; N]),
) -> impl Fn(&[u8], &mut [f32]) {
    move |bytes, out| {
        for (b, y) in bytes.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
            decode(b, y);
        }
    }
}

/// The little-endian f16 at byte `at` of a block, widened (exact).
fn f16_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}
