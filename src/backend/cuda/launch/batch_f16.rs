//! Launches of the kernels for 17 to 64 input rows in f16 (`kernels/batch_f16.cuh`).

use super::args;
use super::feed_forward::MlpPlan;
use super::kernel_id::KernelId;
use super::kernels::Kernels;
use super::matrix::{Inputs, Matrix, Types};
use crate::backend::cuda::driver::Stream;
use crate::backend::cuda::driver::arena::Arena;
use crate::error::{Result, fail};

/// From so many rows on, they are faster than int8.
pub const FROM: u32 = 17;
/// Columns of inputs that the kernels are made for.
const COLUMNS: [u32; 2] = [32, 64];
/// Threads of a block.
const THREADS: u32 = args::F16_BATCH_WARPGROUPS * 128;
/// Blocks of a cluster.
const CLUSTER: u32 = 2;
/// What rings of inputs may take of the shared memory, if three stages fit: the rest is a cache, where records come through.
const RINGS: u32 = 128 << 10;
const LEAST_STAGES: u32 = 3;

/// Stages that take as long as what a turn has beside its products: first weights, sums, outputs.
const BESIDE: u32 = 4;

/// The columns that so many rows of input take; none where there are too many.
pub fn columns(rows: u32) -> Option<u32> {
    COLUMNS.into_iter().find(|columns| *columns >= rows)
}

/// Room for rows of inputs that have so many groups each, in f16, with their scales; nothing for a few rows.
pub fn place(arena: &mut Arena, inputs: &mut Inputs, rows: u32, groups: u32) {
    let Some(columns) = columns(rows).filter(|_| rows >= FROM) else {
        return;
    };
    let width = (groups * 32).next_multiple_of(args::F16_BATCH_K);
    inputs.f16 = arena.array::<u16>(u64::from(columns) * u64::from(width));
    inputs.f16_scale = arena.array::<f32>(u64::from(columns));
    inputs.largest = arena.array::<f32>(u64::from(columns));
}

/// How blocks share a matrix. It depends on nothing but the matrix and the device, as does the order of additions.
struct Shares {
    /// Of k, that warpgroups of a block have.
    parts: u32,
    /// Of k, that blocks of a cluster have.
    blocks: u32,
}

/// Blocks or, of a cluster that shares tiles, clusters that take the tiles of some rows at once.
fn turns(rows: u32, parts: u32) -> u32 {
    let at_once = args::F16_BATCH_WARPGROUPS / parts * args::F16_BATCH_ROWS;
    rows.div_ceil(at_once)
}

impl Shares {
    /// Those with the shortest way through k of the block that has most to do.
    fn of(rows: impl Iterator<Item = u32> + Clone, groups: u32, multiprocessors: u32) -> Shares {
        let stages = (groups * 32).div_ceil(args::F16_BATCH_K);
        let time = |shares: &Shares| {
            let blocks: u32 = rows.clone().map(|n| turns(n, shares.parts)).sum();
            let turns = (blocks * shares.blocks).div_ceil(multiprocessors);
            turns * (stages.div_ceil(shares.parts * shares.blocks) + BESIDE)
        };
        let all = [(1, 1), (2, 1), (4, 1), (2, 2), (4, 2)];
        let all = all.map(|(parts, blocks)| Shares { parts, blocks });
        let best = all.into_iter().min_by_key(time);
        best.expect("there are some")
    }
}

impl Kernels {
    /// Makes the kernels known where the device can run them.
    pub(super) fn find_f16_batches(&mut self) -> Result<()> {
        if !self.has_wgmma() {
            return Ok(());
        }
        // Beside the barriers.
        let shared = self.context().properties().shared_bytes - 1024;
        for types in Types::quantized() {
            for columns in COLUMNS {
                self.find(KernelId::BatchF16 { types, columns }, shared)?;
            }
        }
        Ok(())
    }

    /// Whether products with a matrix have such kernels.
    pub fn takes_f16(&self, matrix: &Matrix) -> bool {
        let mut segments = matrix.segments.iter();
        let are_right = segments.all(|s| !s.ty.is_float() && s.largest != 0);
        self.has_wgmma() && are_right && !matrix.segments.is_empty()
    }

    /// Keeps the largest weights of a matrix's rows, where some kernels need them. What is kept begins with zero.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn largest_weight(&self, stream: &Stream, args: &args::Largest) -> Result<()> {
        // A warp takes 32 groups of a row.
        let warps = u64::from(args.rows) * u64::from(args.groups.div_ceil(32));
        let grid = (warps.div_ceil(8) as u32, 1, 1);
        // SAFETY: by contract, all addresses are valid.
        unsafe { self.launch(stream, KernelId::LargestWeight, grid, 256, 0, args) }
    }

    /// Whether one product does a gate with what it lets through.
    pub fn gates_f16(&self, mlp: &MlpPlan) -> bool {
        let is_plain = mlp.gated && mlp.cutoff.is_none() && mlp.inner_norm.is_none();
        is_plain && mlp.up.segments.len() == 1 && mlp.n_ff.is_multiple_of(8)
    }

    /// `out = matrix * input (+ bias) (+ residual)` for `rows` rows of input in f16; `residual` is 0 or the address of rows like
    /// those of `out`, which they may be. With `gate`, the results are what a gate lets through, of a matrix for which
    /// [`Kernels::gates_f16`] says so, and the largest of each row is kept if it is larger than what is there.
    ///
    /// # Safety
    /// As [`Stream::launch`]; `input` must hold the rows in f16, as many columns as [`columns`] says.
    pub unsafe fn product_f16(
        &self,
        stream: &Stream,
        matrix: &Matrix,
        input: &Inputs,
        (out, out_stride, residual): (u64, u32, u64),
        rows: u32,
        gate: Option<args::Activation>,
    ) -> Result<()> {
        let Some(columns) = columns(rows) else {
            fail!(Internal, "{rows} rows for products in f16");
        };
        for (types, which) in matrix.kernel_groups() {
            let segments = || which.iter().map(|&i| &matrix.segments[i]);
            let all = self.multiprocessors() / CLUSTER * CLUSTER;
            let shares = Shares::of(segments().map(|s| s.rows), matrix.groups, all);
            let mut args = args::BatchF16 {
                x: input.f16,
                x_scale: input.f16_scale,
                out,
                residual,
                n_segments: which.len() as u32,
                groups: matrix.groups,
                out_stride,
                batch: rows,
                largest_out: gate.map_or(0, |_| input.largest),
                activation: gate.unwrap_or_default(),
                parts: shares.parts,
                shares: shares.blocks,
                ..Default::default()
            };
            // Segments share the blocks by their tiles, if there are not enough for all to have one turn.
            let turns_of = |rows| turns(rows, shares.parts);
            let wanted: u32 = segments().map(|s| turns_of(s.rows)).sum();
            let at_once = all / shares.blocks;
            let mut one_turn = true;
            let (mut first_block, mut before) = (0, 0);
            for (i, s) in segments().enumerate() {
                let turns = turns_of(s.rows);
                let at = |turns: u32| {
                    let share = u64::from(turns) * u64::from(at_once) / u64::from(wanted);
                    share as u32
                };
                let blocks = match wanted <= at_once {
                    true => turns,
                    false => (at(before + turns) - at(before)).clamp(1, turns),
                };
                before += turns;
                one_turn &= blocks == turns;
                args.segments[i] = matrix.segment_args(s, first_block, blocks * shares.blocks);
                args.largest[i] = s.largest;
                first_block += blocks * shares.blocks;
            }
            let grid = first_block.next_multiple_of(CLUSTER);
            let ring = shares.parts * columns * args::F16_BATCH_K * 2;
            args.stages = (RINGS / ring).clamp(LEAST_STAGES, args::F16_BATCH_STAGES);
            let rings = args.stages * ring;
            let sums = match shares.parts * shares.blocks {
                1 => 0,
                _ => args::F16_BATCH_WARPGROUPS * args::F16_BATCH_ROWS * columns * 4,
            };
            args.sums_at = if one_turn { 0 } else { rings };
            let shared = rings.max(args.sums_at + sums) as usize;
            let id = KernelId::BatchF16 { types, columns };
            // SAFETY: by contract, the input is there, and all addresses are valid.
            unsafe { self.launch(stream, id, (grid, 1, 1), THREADS, shared, &args)? };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(rows: &[u32], k: u32) -> (u32, u32) {
        let shares = Shares::of(rows.iter().copied(), k / 32, 132);
        (shares.parts, shares.blocks)
    }

    #[test]
    fn k_is_cut_where_rows_are_few() {
        assert_eq!(shares(&[28672], 4096), (1, 1));
        assert_eq!(shares(&[4096, 1024, 1024], 4096), (4, 1));
        assert_eq!(shares(&[4096], 4096), (4, 2));
        assert_eq!(shares(&[4096], 14336), (4, 2));
        assert_eq!(shares(&[16384], 2048), (2, 1));
        assert_eq!(shares(&[64], 32), (1, 1));
    }

    #[test]
    fn rows_take_the_next_columns() {
        assert_eq!(columns(FROM), Some(32));
        assert_eq!(columns(33), Some(64));
        assert_eq!(columns(64), Some(64));
        assert_eq!(columns(65), None);
    }
}
