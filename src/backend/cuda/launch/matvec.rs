//! Launches of the kernels for one row of input, or for four, that every device has (`kernels/matvec.cuh`).

use super::args;
use super::kernel_id::KernelId;
use super::kernels::Kernels;
use super::matrix::{Matrix, Types};
use super::record::RecordType;
use crate::error::Result;

/// Rows of input that the kernels are made for.
const MATVEC_ROWS: [usize; 2] = [1, 4];
/// Bytes of weights that a launch asks for ahead of its input: a part of the L2 cache.
const PREFETCH_BYTES: u64 = 24 << 20;
/// At least the static shared memory of a block.
const STATIC_SHARED: usize = 2048;

/// A launch of a matvec kernel, but for the addresses of its input and output.
pub(super) struct MatvecPlan {
    /// Input rows that the kernel is made for.
    pub rows: usize,
    pub args: args::Matvec,
    pub grid: u32,
    pub shared: usize,
}

impl Kernels {
    /// Makes the kernels known.
    pub(super) fn find_matvecs(&mut self) -> Result<()> {
        // What a matvec's dynamic memory may take beside its barriers.
        let beside_barriers = self.context().properties().shared_bytes - STATIC_SHARED;
        let mut find = |types, rows| self.find(KernelId::Matvec { types, rows }, beside_barriers);
        for ty in RecordType::ALL.into_iter().filter(|ty| ty.is_float()) {
            find(Types::One(ty), 1)?;
        }
        for types in Types::quantized() {
            for rows in MATVEC_ROWS {
                find(types, rows)?;
            }
        }
        Ok(())
    }

    /// The launch over some segments of a matrix for `rows` input rows.
    pub(super) fn plan_matvec(&self, matrix: &Matrix, which: &[usize], rows: usize) -> MatvecPlan {
        let at_once = if rows > 1 { 1 } else { 2 };
        let all_blocks = self.multiprocessors() * at_once;
        let bytes: f64 = which.iter().map(|&i| matrix.segments[i].bytes as f64).sum();
        let slices = which
            .iter()
            .map(|&i| matrix.segments[i].slices(matrix.groups))
            .max()
            .unwrap_or(1);
        // Partial sums: 4 bytes for each slice, row and input row.
        let per_row = slices as usize * rows * 4;
        let limit = self.context().properties().shared_bytes - STATIC_SHARED;
        let mut args = args::Matvec {
            n_segments: which.len() as u32,
            groups: matrix.groups,
            ..Default::default()
        };
        let mut first_block = 0;
        let mut most_rows = 1;
        for (to, &i) in args.segments.iter_mut().zip(which) {
            let s = &matrix.segments[i];
            let share = (f64::from(all_blocks) * s.bytes as f64 / bytes).round() as u32;
            let blocks = share.clamp(1, s.rows);
            *to = matrix.segment_args(s, first_block, blocks);
            first_block += blocks;
            most_rows = most_rows.max(s.rows.div_ceil(blocks));
        }
        let chunk = (most_rows as usize).min((limit.min(96 * 1024) / per_row).max(1));
        args.chunk_rows = chunk as u32;
        args.prefetch_bytes = (PREFETCH_BYTES / u64::from(first_block)) as u32 / 16 * 16;
        MatvecPlan {
            rows,
            args,
            grid: first_block,
            shared: chunk * per_row,
        }
    }
}
