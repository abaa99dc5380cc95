//! The types that weights have on the device (`kernels/blocks.cuh`): a file's own, or, for the types with
//! codebooks, the numbers that stand for a codebook's values, with a table of these in every record.

use crate::quant::codebook::{IQ2_VALUES, IQ3_S_VALUES, IQ3_XXS_VALUES};
use crate::quant::{Codebook, TensorType, codebook, grids};

/// What the kernels know of a type.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// What kernels call it.
    pub name: &'static str,
    /// Groups of 32 elements that a slice may not part.
    pub unit: u32,
    /// Bytes of a record per group, per unit, and beside these.
    pub bytes: [u32; 3],
    /// Factors of a group of a weight row in the products of batches.
    pub factors: usize,
    /// What the names of kernel files with its products end in.
    pub file: &'static str,
}

macro_rules! records {
    ($($(#[$doc:meta])* $ty:ident $name:literal $unit:literal [$group:literal $block:literal $record:literal] $factors:literal $file:literal)*) => {
        /// A type of weights on the device.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum RecordType {
            $($(#[$doc])* $ty,)*
        }

        impl RecordType {
            /// Every type, in the order of the kernels' numbers.
            pub const ALL: [RecordType; [$($factors),*].len()] = [$(RecordType::$ty),*];

            /// What the kernels know of it.
            pub const fn row(self) -> Row {
                match self {
                    $(RecordType::$ty => Row {
                        name: $name,
                        unit: $unit,
                        bytes: [$group, $block, $record],
                        factors: $factors,
                        file: $file,
                    },)*
                }
            }
        }
    };
}

records! {
    /// As in the file.
    F32 "F32" 1 [128 0 0] 0 "float"
    /// As in the file.
    F16 "F16" 1 [64 0 0] 0 "float"
    /// As in the file.
    BF16 "BF16" 1 [64 0 0] 0 "float"
    /// As in the file.
    Q4_0 "Q4_0" 1 [18 0 0] 1 "32"
    /// As in the file.
    Q4_1 "Q4_1" 1 [20 0 0] 2 "32"
    /// As in the file.
    Q5_0 "Q5_0" 1 [22 0 0] 1 "32"
    /// As in the file.
    Q5_1 "Q5_1" 1 [24 0 0] 2 "32"
    /// As in the file.
    Q8_0 "Q8_0" 1 [34 0 0] 1 "k"
    /// As in the file.
    Q2K "Q2_K" 8 [10 4 0] 4 "k"
    /// As in the file.
    Q3K "Q3_K" 8 [14 2 0] 2 "k"
    /// As in the file.
    Q4K "Q4_K" 8 [16 16 0] 2 "k"
    /// As in the file.
    Q5K "Q5_K" 8 [20 16 0] 2 "k"
    /// As in the file.
    Q6K "Q6_K" 8 [26 2 0] 2 "k"
    /// As in the file.
    IQ4NL "IQ4_NL" 1 [18 0 0] 1 "32"
    /// As in the file.
    IQ4XS "IQ4_XS" 8 [17 2 0] 1 "32"
    /// As in the file.
    MXFP4 "MXFP4" 1 [17 0 0] 1 "32"
    /// As in the file.
    NVFP4 "NVFP4" 2 [18 0 0] 2 "grid"
    /// Numbers of 3 bits, a table of eight values, an 8-bit factor per 16 elements, a scale per 256.
    Grid3 "GRID3" 8 [14 4 8] 2 "grid"
    /// The same with 4 bits and sixteen values.
    Grid4 "GRID4" 8 [18 4 16] 2 "grid"
}

impl RecordType {
    /// Those whose products of one row may add their input up (`product_summed_*`, and `own_input_*` for two products in one).
    pub const SUMMED: [RecordType; 5] = [
        RecordType::Q8_0,
        RecordType::Q4_0,
        RecordType::Q4K,
        RecordType::Q5K,
        RecordType::Q6K,
    ];

    /// The type on the device of weights that have this type in the file.
    pub fn of(ty: TensorType) -> RecordType {
        match ty {
            TensorType::F32 => RecordType::F32,
            TensorType::F16 => RecordType::F16,
            TensorType::BF16 => RecordType::BF16,
            TensorType::Q4_0 => RecordType::Q4_0,
            TensorType::Q4_1 => RecordType::Q4_1,
            TensorType::Q5_0 => RecordType::Q5_0,
            TensorType::Q5_1 => RecordType::Q5_1,
            TensorType::Q8_0 => RecordType::Q8_0,
            TensorType::Q2K => RecordType::Q2K,
            TensorType::Q3K => RecordType::Q3K,
            TensorType::Q4K => RecordType::Q4K,
            TensorType::Q5K => RecordType::Q5K,
            TensorType::Q6K => RecordType::Q6K,
            TensorType::IQ4NL => RecordType::IQ4NL,
            TensorType::IQ4XS => RecordType::IQ4XS,
            TensorType::MXFP4 => RecordType::MXFP4,
            TensorType::NVFP4 => RecordType::NVFP4,
            TensorType::IQ1S
            | TensorType::IQ1M
            | TensorType::IQ2XXS
            | TensorType::IQ2XS
            | TensorType::IQ2S
            | TensorType::TQ1_0
            | TensorType::TQ2_0 => RecordType::Grid3,
            TensorType::IQ3XXS | TensorType::IQ3S => RecordType::Grid4,
        }
    }

    /// What kernels call it.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// Its number in the kernels.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// Whether products with it take f32.
    pub const fn is_float(self) -> bool {
        self.row().factors == 0
    }

    /// Bytes of a record of `n` groups, as `record_bytes` of blocks.cuh.
    pub fn record_bytes(self, n: u32) -> u64 {
        let Row {
            unit,
            bytes: [group, block, record],
            ..
        } = self.row();
        u64::from(n * group + n / unit * block + record).next_multiple_of(16)
    }
}

/// What the kernel that makes records is told of a type with a codebook.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Grid {
    /// Where its codebook begins in [`codebooks`].
    pub first: u32,
    /// What the scale of a block is multiplied with.
    pub factor: f32,
    /// The values that numbers stand for; four to a word.
    pub values: [u32; 4],
}

/// The codebooks of all types, one after the other.
pub fn codebooks() -> Vec<u16> {
    BOOKS.concat()
}

const BOOKS: [&[u16]; 6] = [
    &grids::IQ2_XXS,
    &grids::IQ2_XS,
    &grids::IQ2_S,
    &grids::IQ3_XXS,
    &grids::IQ3_S,
    &grids::IQ1,
];

impl Grid {
    /// That of a type, or nothing.
    pub fn of(ty: TensorType) -> Grid {
        // Magnitudes, and the same negated; numbers have the sign on top.
        let signed = |magnitudes: &[u8], half: usize| {
            let mut values = [0i8; 16];
            for (i, m) in magnitudes.iter().enumerate() {
                values[i] = *m as i8;
                values[half + i] = -(*m as i8);
            }
            values
        };
        let two_bits = signed(&IQ2_VALUES, 4);
        // A value of -1, 0 or 1, and whether it is an eighth higher or lower.
        let eighths = [-7, 1, 9, 0, -9, -1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let ternary = [-1, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let (book, factor, values) = match ty {
            TensorType::IQ2XXS => (0, codebook::IQ2XXS::FACTOR, two_bits),
            TensorType::IQ2XS => (1, codebook::IQ2XS::FACTOR, two_bits),
            TensorType::IQ2S => (2, codebook::IQ2S::FACTOR, two_bits),
            TensorType::IQ3XXS => (3, codebook::IQ3XXS::FACTOR, signed(&IQ3_XXS_VALUES, 8)),
            TensorType::IQ3S => (4, codebook::IQ3S::FACTOR, signed(&IQ3_S_VALUES, 8)),
            TensorType::IQ1S => (5, codebook::IQ1S::FACTOR, eighths),
            TensorType::IQ1M => (5, codebook::IQ1M::FACTOR, eighths),
            TensorType::TQ1_0 => (0, codebook::TQ1_0::FACTOR, ternary),
            TensorType::TQ2_0 => (0, codebook::TQ2_0::FACTOR, ternary),
            _ => return Grid::default(),
        };
        let word = |w: usize| {
            let bytes = std::array::from_fn(|b| values[4 * w + b] as u8);
            u32::from_le_bytes(bytes)
        };
        Grid {
            first: BOOKS[..book].iter().map(|b| b.len() as u32).sum(),
            factor,
            values: std::array::from_fn(word),
        }
    }
}
