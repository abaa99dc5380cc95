//! Matrices on the device: records of repacked weights (`kernels/blocks.cuh` has the layout).

use super::args::{self, AdapterPiece, MAX_LINEARS};
use super::record::{Grid, RecordType};
use crate::backend::cuda::driver::arena::Arena;
use crate::quant::TensorType;
use std::fmt;
use std::sync::Arc;

/// Types that one kernel takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Types {
    /// One alone.
    One(RecordType),
    /// Q4_K and Q6_K together, the only two.
    Pair,
}

impl Types {
    /// All that a product with int8 takes.
    pub fn quantized() -> impl Iterator<Item = Types> {
        let types = RecordType::ALL.into_iter().filter(|ty| !ty.is_float());
        types.map(Types::One).chain([Types::Pair])
    }

    /// The kernel file of their products of a kind.
    pub fn file(self, kind: &str) -> String {
        let ty = match self {
            Types::One(ty) => ty,
            Types::Pair => RecordType::Q4K,
        };
        format!("{kind}_{}", ty.row().file)
    }
}

/// What kernels call them.
impl fmt::Display for Types {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Types::One(ty) => ty.name(),
            Types::Pair => "Q4_K_Q6_K",
        })
    }
}

/// Rows of one type, in records.
#[derive(Clone, Debug)]
pub struct MatrixSegment {
    /// Where the records begin.
    pub address: u64,
    /// Type of the records.
    pub ty: RecordType,
    /// Rows.
    pub rows: u32,
    /// Where the first row's result lies in an output row.
    pub out_offset: u32,
    /// Bytes of all records.
    pub bytes: u64,
    /// Where a bound of the weights is, as [`args::Largest`] says; 0 where there is none.
    pub largest: u64,
}

impl MatrixSegment {
    /// Slices that a row of `groups` groups is cut into.
    pub fn slices(&self, groups: u32) -> u32 {
        slices(self.ty, groups).0
    }
}

/// One or several matrices with the same input, one above the other.
#[derive(Clone, Debug, Default)]
pub struct Matrix {
    /// Groups of 32 elements per row.
    pub groups: u32,
    /// All rows.
    pub rows: u32,
    /// Runs of rows of one type.
    pub segments: Vec<MatrixSegment>,
    /// f32, one per row; 0 if there is none.
    pub bias: u64,
    /// What adapters add to it, if they can.
    pub adapted: Option<Arc<Adapted>>,
}

impl Matrix {
    /// Bytes of all records.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|s| s.bytes).sum()
    }

    /// The address of a segment's biases; 0 if there are none.
    pub fn segment_bias(&self, s: &MatrixSegment) -> u64 {
        match self.bias {
            0 => 0,
            bias => bias + u64::from(s.out_offset) * 4,
        }
    }

    /// What a kernel is told of a segment that these blocks share.
    pub fn segment_args(&self, s: &MatrixSegment, first_block: u32, blocks: u32) -> args::Segment {
        args::Segment {
            matrix: s.address,
            bias: self.segment_bias(s),
            ty: s.ty.number(),
            rows: s.rows,
            first_block,
            blocks,
            out_offset: s.out_offset,
            padding: 0,
        }
    }

    /// The forms in which a product reads its input.
    pub fn forms(&self) -> Forms {
        Forms {
            q8: self.segments.iter().any(|s| !s.ty.is_float()),
            f32: self.segments.iter().any(|s| s.ty.is_float()),
            f16: false,
        }
    }

    /// Segments that one kernel can do together, all of one type or the one pair it knows, with their types.
    pub fn kernel_groups(&self) -> Vec<(Types, Vec<usize>)> {
        let in_pair = |t: RecordType| matches!(t, RecordType::Q4K | RecordType::Q6K);
        let type_of = |i: usize| self.segments[i].ty;
        let mut left: Vec<usize> = (0..self.segments.len()).collect();
        let mut groups = Vec::new();
        while let Some(&first) = left.first() {
            let ty = type_of(first);
            let together = |&i: &usize| type_of(i) == ty || (in_pair(ty) && in_pair(type_of(i)));
            let (mine, rest): (Vec<usize>, Vec<usize>) = left.into_iter().partition(together);
            let mixed = mine.iter().any(|&i| type_of(i) != ty);
            let types = match mixed {
                true => Types::Pair,
                false => Types::One(ty),
            };
            groups.push((types, mine));
            left = rest;
        }
        groups
    }
}

/// What of a fused matrix's output belongs to which linear layer.
#[derive(Clone, Debug, Default)]
pub struct Adapted {
    /// The first of its layers among those of the network; the others follow it.
    pub(in crate::backend::cuda) first: u32,
    pub(in crate::backend::cuda) n_linears: u32,
    pub(in crate::backend::cuda) pieces: [AdapterPiece; MAX_LINEARS],
}

/// Forms of a product's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forms {
    /// int8 with a scale per group.
    pub q8: bool,
    /// f32.
    pub f32: bool,
    /// f16 with a scale per row, for products of many rows.
    pub f16: bool,
}

impl Forms {
    /// Whether int8 is all.
    pub fn is_q8(self) -> bool {
        self.q8 && !self.f32 && !self.f16
    }
}

/// Addresses of a product's input rows, in the forms that were written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inputs {
    /// int8, `[rows][groups * 32]`.
    pub q8: u64,
    /// f32, `[rows][groups]`.
    pub q8_scale: u64,
    /// f32, `[rows][groups * 32]`.
    pub f32: u64,
    /// f16, as [`args::QuantizeInput`] says.
    pub f16: u64,
    /// f32, `[rows]`.
    pub f16_scale: u64,
    /// f32, `[rows]`: the largest value of each row that is to become f16, where a product keeps it.
    pub largest: u64,
}

impl Inputs {
    /// Room for rows that have so many groups together, in every form but f16.
    pub fn place(arena: &mut Arena, groups: u64) -> Inputs {
        Inputs {
            q8: arena.array::<i8>(groups * 32),
            q8_scale: arena.array::<f32>(groups),
            f32: arena.array::<f32>(groups * 32),
            ..Inputs::default()
        }
    }

    /// Of these the forms that are wanted, and 0 for the others.
    pub fn only(self, wanted: Forms) -> Inputs {
        let or_none = |address, wanted| if wanted { address } else { 0 };
        Inputs {
            q8: or_none(self.q8, wanted.q8),
            q8_scale: or_none(self.q8_scale, wanted.q8),
            f32: or_none(self.f32, wanted.f32),
            f16: or_none(self.f16, wanted.f16),
            f16_scale: or_none(self.f16_scale, wanted.f16),
            largest: or_none(self.largest, wanted.f16),
        }
    }
}

/// Bytes of `rows` rows of `groups` groups in f16 as the products of many rows read them: tiles of
/// 128 rows x 64 elements (`kernels/matmul.cuh`), in pairs of tile rows.
pub fn tiled_bytes(rows: u32, groups: u32) -> u64 {
    u64::from(rows.div_ceil(256)) * u64::from(groups.div_ceil(2)) * 2 * 128 * 64 * 2
}

/// Groups of 32 elements that a row of `row_len` elements takes.
pub fn groups(row_len: usize) -> u32 {
    row_len.div_ceil(32) as u32
}

/// (slices, groups of all but the last slice, groups of the last), as `slices_of` of blocks.cuh.
pub fn slices(ty: RecordType, groups: u32) -> (u32, u32, u32) {
    let unit = ty.row().unit;
    let units = groups / unit;
    let per = units.div_ceil(groups.div_ceil(32));
    let count = units.div_ceil(per);
    (count, per * unit, (units - per * (count - 1)) * unit)
}

/// Bytes of the records of `rows` rows.
pub fn matrix_bytes(ty: RecordType, groups: u32, rows: u32) -> u64 {
    let (count, full, last) = slices(ty, groups);
    u64::from(rows) * (u64::from(count - 1) * ty.record_bytes(full) + ty.record_bytes(last))
}

/// The arguments that repack `rows` rows of a tensor of type `file` into `segment` from row `first_row` on.
/// The codebooks of all types are at `codebooks`.
#[expect(clippy::too_many_arguments, reason = "an upload has that many parts")]
pub fn repack_args(
    segment: &MatrixSegment,
    file: TensorType,
    codebooks: u64,
    groups: u32,
    raw: u64,
    row_len: usize,
    first_row: u32,
    rows: u32,
) -> args::Repack {
    let grid = Grid::of(file);
    args::Repack {
        raw,
        matrix: segment.address,
        raw_stride: file.row_bytes(row_len).expect("whole blocks") as u64,
        codebook: codebooks + u64::from(grid.first) * 2,
        ty: segment.ty.number(),
        file: file.gguf_id(),
        block_bytes: file.block_bytes() as u32,
        row_len: row_len as u32,
        groups,
        matrix_rows: segment.rows,
        first_row,
        rows,
        values: grid.values,
        factor: grid.factor,
        padding: 0,
    }
}

/// The arguments that look for the largest weights of `rows` rows of a segment from row `first_row` on.
pub fn largest_args(
    segment: &MatrixSegment,
    groups: u32,
    first_row: u32,
    rows: u32,
) -> args::Largest {
    args::Largest {
        matrix: segment.address,
        largest: segment.largest,
        ty: segment.ty.number(),
        groups,
        matrix_rows: segment.rows,
        first_row,
        rows,
        padding: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_a_row_and_keep_blocks_whole() {
        for file in TensorType::ALL {
            let ty = RecordType::of(file);
            let unit = (file.block_len() as u32 / 32).max(1);
            assert_eq!(unit, ty.row().unit);
            for units in 1..200 {
                let groups = units * unit;
                let (count, full, last) = slices(ty, groups);
                assert_eq!((count - 1) * full + last, groups, "{} {groups}", ty.name());
                assert!(full <= 32 && last <= full && last > 0);
                assert!(full % unit == 0 && last % unit == 0);
                let in_file = file.row_bytes(full as usize * 32).unwrap() as u64;
                assert!(ty.record_bytes(full) >= in_file);
            }
        }
    }
}
