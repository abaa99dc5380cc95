//! Launches of the kernels for 5 to 32 input rows (`kernels/matvec_batch.cuh`).

use super::args;
use super::kernel_id::KernelId;
use super::kernels::Kernels;
use super::matrix::{self, Matrix, Types};
use super::matvec::MatvecPlan;
use super::record::RecordType;
use crate::error::Result;

/// From so many rows on, tensor cores take them all, where there are int8 ones.
const FROM: u32 = 5;
/// Rows of input that the kernels are made for.
pub(super) const ROWS: [usize; 3] = [8, 16, 32];
/// Warps of a block.
const WARPS: usize = args::BATCH_WARPS as usize;
/// Threads of a block.
pub(super) const THREADS: u32 = args::BATCH_WARPS * 32;
/// Blocks of a cluster, where `BATCH_CLUSTER` is not 1.
pub(super) const CLUSTER: usize = 2;
/// Weight rows of a tile.
const TILE: usize = args::BATCH_TILE_ROWS as usize;
/// Stages of a ring at most.
const MAX_STAGES: usize = args::BATCH_MAX_STAGES as usize;
/// At least the static shared memory of a block, and what the driver takes for itself.
const STATIC_SHARED: usize = 256;
const RESERVED_SHARED: usize = 1024;
/// Left behind a block's results: of groups that are not there, something must be read.
const MARGIN: usize = 1024;

/// Tiles of a stage, as `BatchShape::STAGE_TILES`.
pub(super) fn stage_tiles(ty: RecordType, rows: usize) -> usize {
    if rows == 32 || ty.record_bytes(32) > 1000 {
        2
    } else {
        4
    }
}

/// Shared memory in front of the ring, as `BatchShape::RING_AT`: inputs and their scales, factors, the
/// warps' sums.
pub(super) fn before_ring(ty: RecordType, rows: usize) -> usize {
    let inputs = rows * (1024 + 16) + rows * 33 * 4;
    let buffers = if rows == 8 { 2 } else { 1 };
    inputs + WARPS * stage_tiles(ty, rows) * (32 * ty.row().factors * 4 + buffers * rows * TILE * 4)
}

/// A stage of the ring: rows at the distance that `stage_stride` has for whole records.
pub(super) fn stage_bytes(ty: RecordType, rows: usize) -> usize {
    let record = ty.record_bytes(32) as usize;
    let stride = if record % 32 == 16 {
        record
    } else {
        record + 16
    };
    stage_tiles(ty, rows) * TILE * stride
}

impl Kernels {
    /// Whether the device has int8 tensor cores, and the kernels' copies.
    fn has_batches(&self) -> bool {
        self.context().properties().capability.0 >= 8
    }

    /// Makes the kernels for batches known where the device can run them.
    pub(super) fn find_batches(&mut self) -> Result<()> {
        if !self.has_batches() {
            return Ok(());
        }
        let shared = self.context().properties().shared_bytes - STATIC_SHARED;
        for types in Types::quantized() {
            for rows in ROWS {
                self.find(KernelId::MatvecBatch { types, rows }, shared)?;
            }
        }
        Ok(())
    }

    /// The launch over some segments of a matrix that takes the first of `batch` input rows, for as many as it can;
    /// none where there are too few, or no such kernel.
    pub(super) fn plan_batch(
        &self,
        matrix: &Matrix,
        which: &[usize],
        batch: u32,
    ) -> Option<MatvecPlan> {
        if batch < FROM || !self.has_batches() {
            return None;
        }
        let enough = ROWS.into_iter().position(|rows| rows >= batch as usize);
        let largest = enough.unwrap_or(ROWS.len() - 1);
        // Of very long rows, the sums of fewer may be all that a block has room for.
        let mut fewer = ROWS[..=largest].iter().rev();
        fewer.find_map(|&rows| self.plan_rows(matrix, which, rows))
    }

    /// The launch for `rows` input rows, if a block has the shared memory.
    fn plan_rows(&self, matrix: &Matrix, which: &[usize], rows: usize) -> Option<MatvecPlan> {
        let cluster = if self.has_large_shared() { CLUSTER } else { 1 };
        let segments = || which.iter().map(|&i| &matrix.segments[i]);
        let bytes: f64 = segments().map(|s| s.bytes as f64).sum();
        let largest =
            |of: &dyn Fn(RecordType) -> usize| segments().map(|s| of(s.ty)).max().unwrap_or(0);
        let fixed = largest(&|ty| before_ring(ty, rows));
        let stage = largest(&|ty| stage_bytes(ty, rows));
        let slices = largest(&|ty| matrix::slices(ty, matrix.groups).0 as usize);
        // Sums of so many tiles: a block alone adds up those of the slices, a block of a cluster keeps its part of them.
        let kept = if cluster == 1 { 1 } else { slices };
        let sums = |tiles: usize| (tiles * kept).div_ceil(cluster) * rows * TILE * 4;
        // Two blocks share a multiprocessor where its memory holds two stages for each, and sums of some tiles.
        let shared = self.context().properties().shared_bytes;
        let of_block = |blocks: usize| {
            (shared + RESERVED_SHARED) / blocks - RESERVED_SHARED - STATIC_SHARED - MARGIN
        };
        let of_two = of_block(2);
        let at_once = if fixed + 2 * stage + sums(1).max(of_two / 10) <= of_two {
            2
        } else {
            1
        };
        let budget = of_block(at_once);
        let clusters = self.multiprocessors() * at_once as u32 / cluster as u32;
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
            *to = matrix.segment_args(s, first_block, share * cluster as u32);
            first_block += share * cluster as u32;
            most_tiles = most_tiles.max(tiles.div_ceil(share) as usize);
        }
        // Tiles whose sums are kept at a time, in equal parts, beside two stages or one.
        let fits = |tiles: usize, stages: usize| {
            fixed + stages * stage + sums(tiles) <= budget && sums(tiles) <= budget / 12 * 5
        };
        let least = if fits(1, 2) { 2 } else { 1 };
        if !fits(1, least) {
            return None;
        }
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
        Some(MatvecPlan {
            rows,
            args,
            grid: first_block,
            shared: fixed + ring + sums(chunk) + MARGIN,
        })
    }
}
