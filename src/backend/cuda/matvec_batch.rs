//! Launches of the kernels for 5 to 32 input rows (`kernels/matvec_batch.cuh`).

use super::args;
use super::kernels::Kernels;
use super::matrix::{self, Matrix};
use crate::quant::TensorType;

/// From so many rows on, tensor cores take them all, where there are int8 ones and clusters.
const FROM: u32 = 5;
/// Rows of input that the kernels are made for.
pub(super) const ROWS: [usize; 3] = [8, 16, 32];
/// Warps of a block.
const WARPS: usize = 8;
/// Threads of a block.
pub(super) const THREADS: u32 = 256;
/// Blocks of a cluster, as `BATCH_CLUSTER`.
const CLUSTER: usize = 2;
/// Weight rows of a tile.
const TILE: usize = 8;
/// Stages of a ring at most.
const MAX_STAGES: usize = 8;
/// At least the static shared memory of a block, and what the driver takes for itself.
const STATIC_SHARED: usize = 256;
const RESERVED_SHARED: usize = 1024;
/// Left behind a block's results: of groups that are not there, something must be read.
const MARGIN: usize = 1024;

/// Factors of a group of a weight row, as `BatchShape::FACTORS`.
fn factors(ty: TensorType) -> usize {
    use TensorType as T;
    match ty {
        T::Q2K => 4,
        T::Q4_1 | T::Q5_1 | T::Q3K | T::Q4K | T::Q5K | T::Q6K => 2,
        _ => 1,
    }
}

/// Tiles of a stage, as `BatchShape::STAGE_TILES`.
fn stage_tiles(ty: TensorType, rows: usize) -> usize {
    if rows == 32 || matrix::record_bytes(ty, 32) > 1000 {
        2
    } else {
        4
    }
}

/// Shared memory in front of the ring, as `BatchShape::RING_AT`: inputs and their scales, factors, the
/// warps' sums.
fn before_ring(ty: TensorType, rows: usize) -> usize {
    let inputs = rows * (1024 + 16) + rows * 33 * 4;
    let buffers = if rows == 8 { 2 } else { 1 };
    inputs + WARPS * stage_tiles(ty, rows) * (32 * factors(ty) * 4 + buffers * rows * TILE * 4)
}

/// A stage of the ring: rows at distances as `stage_stride` has them.
fn stage_bytes(ty: TensorType, groups: u32, rows: usize) -> usize {
    let record = matrix::record_bytes(ty, matrix::slices(ty, groups).1) as usize;
    let stride = if record % 32 == 16 {
        record
    } else {
        record + 16
    };
    stage_tiles(ty, rows) * TILE * stride
}

impl Kernels {
    /// Whether the kernels for batches take `batch` input rows.
    pub(super) fn takes_batch(&self, batch: u32) -> bool {
        batch >= FROM && self.context().properties().capability.0 >= 9
    }

    /// Input rows that the kernel for the first of `batch` rows takes, and how many of them there are.
    pub(super) fn rows_at_once(&self, batch: u32) -> (usize, u32) {
        let rows = ROWS.into_iter().find(|rows| *rows >= batch as usize);
        let rows = rows.unwrap_or(ROWS[ROWS.len() - 1]);
        (rows, batch.min(rows as u32))
    }

    /// Arguments, blocks and shared memory of a launch over some segments of a matrix, of the kernel for
    /// `rows` input rows.
    pub(super) fn plan_batch(
        &self,
        matrix: &Matrix,
        which: &[usize],
        rows: usize,
    ) -> (args::Matvec, u32, usize) {
        let segments = || which.iter().map(|&i| &matrix.segments[i]);
        let bytes: f64 = segments().map(|s| s.bytes as f64).sum();
        let largest =
            |of: &dyn Fn(TensorType) -> usize| segments().map(|s| of(s.ty)).max().unwrap_or(0);
        let fixed = largest(&|ty| before_ring(ty, rows));
        let stage = largest(&|ty| stage_bytes(ty, matrix.groups, rows));
        let slices = largest(&|ty| matrix::slices(ty, matrix.groups).0 as usize);
        // A block's part of the sums of so many tiles of a cluster.
        let sums = |tiles: usize| (tiles * slices).div_ceil(CLUSTER) * rows * TILE * 4;
        // Two blocks share a multiprocessor where its memory holds what they need.
        let shared = self.context().properties().shared_bytes;
        let of_block = |blocks: usize| {
            (shared + RESERVED_SHARED) / blocks - RESERVED_SHARED - STATIC_SHARED - MARGIN
        };
        let at_once = if fixed + stage + sums(1) <= of_block(2) {
            2
        } else {
            1
        };
        let budget = of_block(at_once);
        let clusters = self.multiprocessors() * at_once as u32 / CLUSTER as u32;
        let mut args = args::Matvec {
            n_segments: which.len() as u32,
            groups: matrix.groups,
            ..Default::default()
        };
        // Segments share the clusters by their bytes; one too many would run after all others.
        let mut bytes_before = 0.0;
        let mut first_block = 0;
        let mut most_tiles = 1;
        for (to, s) in args.segments.iter_mut().zip(segments()) {
            let tiles = s.rows.div_ceil(TILE as u32);
            let at =
                |bytes_before: f64| (f64::from(clusters) * bytes_before / bytes).round() as u32;
            let begin = at(bytes_before);
            bytes_before += s.bytes as f64;
            let share = (at(bytes_before) - begin).clamp(1, tiles);
            *to = matrix.segment_args(s, first_block, share * CLUSTER as u32);
            first_block += share * CLUSTER as u32;
            most_tiles = most_tiles.max(tiles.div_ceil(share) as usize);
        }
        // Tiles whose sums are kept at a time, in equal parts, beside two stages or one.
        let fits = |tiles: usize, stages: usize| {
            fixed + stages * stage + sums(tiles) <= budget && sums(tiles) <= budget / 12 * 5
        };
        let least = if fits(1, 2) { 2 } else { 1 };
        let mut parts = 1;
        let mut chunk = most_tiles;
        while chunk > 1 && !fits(chunk, least) {
            parts += 1;
            chunk = most_tiles.div_ceil(parts);
        }
        let left = budget.saturating_sub(fixed + sums(chunk));
        let ring = (left / stage).clamp(1, MAX_STAGES) * stage;
        args.chunk_rows = (chunk * TILE) as u32;
        args.ring_bytes = ring as u32;
        let all = fixed + ring + sums(chunk) + MARGIN;
        (args, first_block, all)
    }
}
