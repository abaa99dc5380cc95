//! Launches of products of one row (`kernels/product.cuh`) and of a few (`kernels/product_few.cuh`): the decode step of one session, or of a
//! few.

use super::adapters::OneSession;
use super::args;
use super::kernel_id::{KernelId, ProductKind};
use super::kernels::{Kernels, WARPS, WIDEST_SUM};
use super::matrix::{Inputs, Matrix, MatrixSegment, Types, slices};
use super::record::RecordType;
use crate::backend::cuda::driver::Stream;
use crate::error::{Result, fail};

/// At least the static shared memory of a block.
const STATIC_SHARED: usize = 1024;
/// Bytes of a group of the input in shared memory.
const INPUT_BYTES: usize = args::INPUT_BYTES as usize;
const LORA_DOWN_PARTS: usize = args::LORA_DOWN_PARTS as usize;
/// Bytes that a block keeps of a row of `B`, with what is to be known of it.
const KEPT_OF_ROW: usize = 64;
/// Widest row that a norm takes: what the registers of a block hold.
const WIDEST_NORM: u32 = 16 * 512;

/// Rows that kernels of several rows are made for (`product_few_*`).
const FEW_ROWS: [usize; 2] = [2, 4];

/// Where a product's input is.
#[derive(Clone, Copy, Debug)]
pub enum RowInput {
    /// As int8 already, or as f32 for matrices of float types.
    Rounded(Inputs),
    /// f32, or the norm of it.
    Row {
        /// The address.
        x: u64,
        /// The norm.
        norm: Option<args::Norm>,
    },
    /// A row that is added up first, or the norm of that.
    Sum {
        /// f32: what is added.
        x: u64,
        /// To what, and where the sum is kept.
        added: args::RowSum,
        /// The norm.
        norm: Option<args::Norm>,
    },
}

/// What is written of a product.
#[derive(Clone, Copy, Debug)]
pub enum Finish {
    /// The product and what is at an address, or 0.
    Plain {
        /// The address.
        residual: u64,
    },
    /// Its activation.
    Activate(args::Activation),
    /// The activation of its first half times the other.
    Gate(args::Activation),
    /// Its activation times what is at an address.
    Weigh(args::Activation, u64),
    /// The sum of the products of all ranks, and what is at an address, or 0.
    Ranks {
        /// How they meet.
        row: args::LinkedRow,
        /// The address.
        residual: u64,
    },
}

impl Finish {
    /// How many halves of a matrix's rows it takes together.
    pub fn halves(&self) -> u32 {
        match self {
            Finish::Gate(_) => 2,
            _ => 1,
        }
    }
}

/// A product with one row, or with two that follow each other, of which the kernel makes its input.
#[derive(Clone, Copy, Debug)]
pub struct Product<'a> {
    /// The matrix.
    pub matrix: &'a Matrix,
    /// How many rows.
    pub rows: u32,
    /// The first row.
    pub input: RowInput,
    /// What becomes of it.
    pub finish: Finish,
    /// Address of the output.
    pub out: u64,
    /// Floats from one row of the output, and of what is added to it, to the next.
    pub stride: u32,
    /// What adapters have for it, where [`Kernels::adds_adapters`].
    pub adapted: Option<args::Adapted>,
}

/// A launch.
struct ProductPlan {
    args: args::Product,
    grid: u32,
    shared: usize,
    /// Of `shared`, what is used.
    used: usize,
    /// Of a block, both halves counted.
    most_rows: usize,
}

/// A launch for a few rows whose inputs are there.
pub(super) struct FewPlan {
    id: KernelId,
    plan: ProductPlan,
}

impl ProductPlan {
    /// Where what a block has for adapters can begin.
    fn thin_at(&self) -> usize {
        self.used.next_multiple_of(16)
    }

    /// How much that is, as `Adapting` lays it out: `A x`, first parts of `A`, rows of `B`.
    fn adapted_bytes(&self, ranks: usize) -> usize {
        let parts = (ranks * LORA_DOWN_PARTS).div_ceil(self.grid as usize);
        let part = (self.args.groups as usize * 4).div_ceil(LORA_DOWN_PARTS * 32) * 512;
        let rows = self.most_rows.min(WARPS * 32);
        (ranks * 4).next_multiple_of(16) + parts.min(WARPS) * part + rows * KEPT_OF_ROW
    }
}

/// Rows of a stage, and stages of a warp's ring, as `stage_rows` and `stages` of product.cuh.
pub(super) fn stages(ty: RecordType) -> (usize, usize) {
    match ty.record_bytes(32) {
        0..=704 => (4, 2),
        705..=900 => (2, 3),
        _ => (2, 2),
    }
}

/// Bytes of the rings of a block.
fn ring_bytes(ty: RecordType) -> usize {
    let (rows, stages) = stages(ty);
    WARPS * rows * stages * ty.record_bytes(32) as usize
}

/// Rows of a group, which blocks take turns at where rows are spread, as `WarpShare::GROUP`.
pub(super) fn group_rows(ty: RecordType) -> u32 {
    (WARPS * stages(ty).0) as u32
}

/// Weights of a block of products that others' blocks may share a multiprocessor with: what suited all of
/// four models (benches/cuda.md).
const SHARING_BYTES: std::ops::Range<u64> = 120 << 10..400 << 10;

/// Groups that each block has at least where rows are spread: one more or less must not count for much.
const LEAST_GROUPS: u32 = 12;

impl Kernels {
    /// Makes the kernels known where the device can run them.
    pub(super) fn find_products(&mut self) -> Result<()> {
        let properties = self.context().properties();
        if properties.capability.0 < 9 {
            return Ok(());
        }
        let most = properties.shared_bytes - STATIC_SHARED;
        let mut find = |kind, spread, types| {
            let id = KernelId::Product {
                kind,
                spread,
                types,
            };
            self.find(id, most)
        };
        for kind in [ProductKind::Plain, ProductKind::Adapted] {
            for types in Types::quantized() {
                find(kind, false, types)?;
                if types != Types::Pair {
                    find(kind, true, types)?;
                }
            }
        }
        find(ProductKind::Summed, false, Types::Pair)?;
        for kind in [ProductKind::Summed, ProductKind::Linked] {
            for types in RecordType::SUMMED.map(Types::One) {
                find(kind, false, types)?;
                find(kind, true, types)?;
            }
        }
        for types in Types::quantized() {
            for rows in FEW_ROWS {
                self.find(KernelId::ProductFew { types, rows }, most)?;
            }
            self.find(KernelId::ProductOfTwo { types }, most)?;
        }
        Ok(())
    }

    /// Whether [`Kernels::product`] takes so many rows and this matrix, with an input of its own making where `len` is its
    /// length.
    pub fn makes_input(
        &self,
        matrix: &Matrix,
        norm: bool,
        len: u32,
        halves: u32,
        rows: u32,
    ) -> bool {
        let widest = match rows {
            1 => WIDEST_NORM,
            _ => WIDEST_SUM,
        };
        matrix.groups * 32 == len
            && (!norm || len <= widest)
            && (halves == 1 || matrix.segments.len() == 1)
            && (matrix.kernel_groups().iter()).all(|(types, which)| match rows {
                1 => self.takes_product(matrix, *types, which, halves),
                2 => {
                    let types = *types;
                    self.has(KernelId::ProductOfTwo { types })
                        && self.plan_product(matrix, which, halves, 2).is_some()
                }
                _ => false,
            })
    }

    /// Whether it adds up a row first, of which it makes its input.
    pub fn makes_sum(&self, matrix: &Matrix, len: u32) -> bool {
        len <= WIDEST_SUM && self.has_products(matrix, ProductKind::Summed)
    }

    /// Whether it adds its output up over all ranks.
    pub(in crate::backend::cuda) fn links(&self, matrix: &Matrix) -> bool {
        self.has_products(matrix, ProductKind::Linked)
    }

    /// Whether there are kernels of this kind for all of a matrix.
    fn has_products(&self, matrix: &Matrix, kind: ProductKind) -> bool {
        (matrix.kernel_groups().into_iter()).all(|(types, which)| {
            self.has_product(kind, types) && self.takes_product(matrix, types, &which, 1)
        })
    }

    /// Whether there is one of these types.
    fn has_product(&self, kind: ProductKind, types: Types) -> bool {
        self.has(KernelId::Product {
            kind,
            spread: false,
            types,
        })
    }

    /// Whether it takes these segments, whose rows have so many halves.
    pub(super) fn takes_product(
        &self,
        matrix: &Matrix,
        types: Types,
        which: &[usize],
        halves: u32,
    ) -> bool {
        self.has_product(ProductKind::Plain, types)
            && self.plan_product(matrix, which, halves, 1).is_some()
    }

    /// Whether it adds what a session's adapters have for this matrix.
    pub(in crate::backend::cuda) fn adds_adapters(
        &self,
        matrix: &Matrix,
        session: &OneSession,
    ) -> bool {
        let groups = matrix.kernel_groups();
        let [(types, which)] = &groups[..] else {
            return false;
        };
        let most = self.context().properties().shared_bytes - STATIC_SHARED;
        // Also with the halves of a gate.
        let plans = [1, 2].map(|halves| self.plan_product(matrix, which, halves, 1));
        self.takes_product(matrix, *types, which, 1)
            && session.ranks(matrix).is_some_and(|ranks| {
                let mut plans = plans.iter().flatten();
                plans.all(|plan| plan.thin_at() + plan.adapted_bytes(ranks) <= most)
            })
    }

    /// Enqueues a product.
    ///
    /// # Safety
    /// As [`Stream::launch`]; the input must be there in the form that the matrix's types need.
    pub unsafe fn product(&self, stream: &Stream, product: &Product) -> Result<()> {
        for (types, which) in product.matrix.kernel_groups() {
            // SAFETY: by contract, the input has the form that the types need, and all addresses are valid.
            unsafe { self.product_of(stream, product, types, &which)? };
        }
        Ok(())
    }

    /// The same of some segments.
    ///
    /// # Safety
    /// As [`Kernels::product`].
    pub(super) unsafe fn product_of(
        &self,
        stream: &Stream,
        product: &Product,
        types: Types,
        which: &[usize],
    ) -> Result<()> {
        let (halves, rows) = (product.finish.halves(), product.rows);
        let Some(plan) = self.plan_product(product.matrix, which, halves, rows as usize) else {
            fail!(Internal, "a product with {types} does not fit");
        };
        let mut args = args::Product {
            out: product.out,
            inverse_len: 1.0 / (product.matrix.groups * 32) as f32,
            ..plan.args
        };
        let (mut added, mut linked) = (None, None);
        match product.input {
            RowInput::Rounded(inputs) => {
                (args.q8, args.q8_scale) = (inputs.q8, inputs.q8_scale);
            }
            RowInput::Row { x, norm } => {
                args.x = x;
                args.norm = norm.unwrap_or_default();
            }
            RowInput::Sum {
                x,
                added: sum,
                norm,
            } => {
                (args.x, added) = (x, Some(sum));
                args.norm = norm.unwrap_or_default();
            }
        }
        (args.finish, args.activation) = match product.finish {
            Finish::Plain { residual } => {
                args.residual = residual;
                (0, args::Activation::default())
            }
            Finish::Activate(activation) => (1, activation),
            Finish::Gate(activation) => (2, activation),
            Finish::Weigh(activation, by) => {
                args.residual = by;
                (3, activation)
            }
            Finish::Ranks { row, residual } => {
                (args.residual, linked) = (residual, Some(row));
                (0, args::Activation::default())
            }
        };
        let id = |kind| KernelId::Product {
            kind,
            spread: plan.args.parts[0].spread != 0,
            types,
        };
        let grid = (plan.grid, 1, 1);
        let threads = (WARPS * 32) as u32;
        let is_of_two = rows == 2
            && matches!(product.input, RowInput::Row { .. })
            && !matches!(product.finish, Finish::Weigh(..));
        // SAFETY: by contract, the input has the form that the types need, and all addresses are valid.
        unsafe {
            match (product.adapted, added, linked) {
                (None, None, None) if is_of_two => {
                    let args = args::FewProduct {
                        product: args,
                        rows,
                        stride: product.stride,
                    };
                    let id = KernelId::ProductOfTwo { types };
                    self.launch(stream, id, grid, threads, plan.shared, &args)
                }
                _ if rows != 1 => fail!(Internal, "a product of {rows} rows that makes its input"),
                (None, None, Some(row)) => {
                    let args = args::LinkedProduct { product: args, row };
                    let id = id(ProductKind::Linked);
                    self.launch(stream, id, grid, threads, plan.shared, &args)
                }
                (None, Some(added), None) => {
                    let args = args::SummedProduct {
                        product: args,
                        added,
                    };
                    let id = id(ProductKind::Summed);
                    self.launch(stream, id, grid, threads, plan.shared, &args)
                }
                (None, None, None) => {
                    let id = id(ProductKind::Plain);
                    self.launch(stream, id, grid, threads, plan.shared, &args)
                }
                (Some(mut adapted), None, None) => {
                    adapted.thin_at = plan.thin_at() as u32;
                    let bytes = plan.adapted_bytes((adapted.n_linears * adapted.ranks) as usize);
                    let shared = plan.shared.max(plan.thin_at() + bytes);
                    let args = args::AdaptedProduct {
                        product: args,
                        adapted,
                    };
                    let id = id(ProductKind::Adapted);
                    self.launch(stream, id, grid, threads, shared, &args)
                }
                _ => fail!(Internal, "a product that does two things beside itself"),
            }
        }
    }

    /// The launch for two to four rows and some segments, if there is a kernel that takes them.
    pub(super) fn plan_few(
        &self,
        matrix: &Matrix,
        types: Types,
        which: &[usize],
        rows: u32,
    ) -> Option<FewPlan> {
        let most = FEW_ROWS.into_iter().find(|&most| rows as usize <= most)?;
        let id = KernelId::ProductFew { types, rows: most };
        let is_there = rows > 1 && self.has(id);
        let plan = is_there.then(|| self.plan_product(matrix, which, 1, most))??;
        Some(FewPlan { id, plan })
    }

    /// Enqueues the product of a few rows whose inputs are there as int8.
    ///
    /// # Safety
    /// As [`Kernels::product`]; `inputs`, `out` and what is added are as many rows, the latter two `stride` floats apart.
    pub(super) unsafe fn few_product(
        &self,
        stream: &Stream,
        FewPlan { id, plan }: FewPlan,
        inputs: &Inputs,
        (out, residual, stride): (u64, u64, u32),
        rows: u32,
    ) -> Result<()> {
        let args = args::FewProduct {
            product: args::Product {
                q8: inputs.q8,
                q8_scale: inputs.q8_scale,
                out,
                residual,
                ..plan.args
            },
            rows,
            stride,
        };
        let (grid, threads) = ((plan.grid, 1, 1), (WARPS * 32) as u32);
        // SAFETY: by contract, the inputs have the form that the types need, and all addresses are valid.
        unsafe { self.launch(stream, id, grid, threads, plan.shared, &args) }
    }

    /// Blocks and shared memory for some segments of a matrix and so many rows of input; `None` if they do not fit.
    fn plan_product(
        &self,
        matrix: &Matrix,
        which: &[usize],
        halves: u32,
        inputs: usize,
    ) -> Option<ProductPlan> {
        // Rows lie behind each other at multiples of sixteen bytes, which is what bulk copies bring and a lane loads.
        if inputs > 1 && !matrix.groups.is_multiple_of(4) {
            return None;
        }
        let segments: Vec<&MatrixSegment> = which.iter().map(|&i| &matrix.segments[i]).collect();
        let blocks = share_blocks(&segments, halves, self.multiprocessors());
        let mut args = args::Product {
            n_parts: which.len() as u32,
            groups: matrix.groups,
            ..Default::default()
        };
        let (mut grid, mut sums, mut ring, mut most_rows) = (0, 0, 0, 0);
        // What blocks share: rows, or groups of rows that are spread.
        let unit = match segments[..] {
            // Those of several rows are not spread.
            [s] if inputs == 1 => {
                let (rows, group) = (s.rows / halves, group_rows(s.ty));
                let enough = rows / group >= LEAST_GROUPS * blocks[0];
                if enough && rows.is_multiple_of(group) {
                    group
                } else {
                    1
                }
            }
            _ => 1,
        };
        for ((to, s), blocks) in args.parts.iter_mut().zip(&segments).zip(blocks) {
            let rows = s.rows / halves;
            let (n_slices, full, last) = slices(s.ty, matrix.groups);
            let units = rows / unit;
            *to = args::ProductPart {
                matrix: s.address,
                bias: matrix.segment_bias(s),
                ty: s.ty.number(),
                rows,
                first_block: grid,
                each: units / blocks,
                more: units % blocks,
                out_offset: s.out_offset,
                n_slices,
                full,
                last,
                full_bytes: s.ty.record_bytes(full) as u32,
                last_bytes: s.ty.record_bytes(last) as u32,
                spread: if unit > 1 { blocks } else { 0 },
            };
            grid += blocks;
            let its_rows = (units.div_ceil(blocks) * unit * halves) as usize;
            sums = sums.max(n_slices as usize * its_rows * inputs * 4);
            most_rows = most_rows.max(its_rows);
            ring = ring.max(ring_bytes(s.ty));
        }
        args.ring_bytes = ring as u32;
        let most = self.context().properties().shared_bytes - STATIC_SHARED;
        // More than half of what there is, so that no multiprocessor has two blocks while another has none;
        // where that mends, the room for the next product's blocks is worth more.
        let bytes: u64 = segments.iter().map(|s| s.bytes).sum();
        let shares = SHARING_BYTES.contains(&(bytes / u64::from(grid)));
        let least = if shares { 0 } else { most / 2 + 512 };
        let used = ring + matrix.groups as usize * INPUT_BYTES * inputs + sums;
        let shared = used.max(least);
        (shared <= most).then_some(ProductPlan {
            args,
            grid,
            shared,
            used,
            most_rows,
        })
    }
}

/// How long a row takes beside others that a kernel takes with it: Q6_K has more to unpack for its bytes.
fn row_cost(ty: RecordType) -> u64 {
    let per_byte = match ty {
        RecordType::Q6K => 16,
        _ => 10,
    };
    ty.record_bytes(32) * per_byte
}

/// Blocks for each segment of a matrix, such that the largest share of a block is as small as can be:
/// one after the other goes to the segment whose blocks have most to do.
fn share_blocks(segments: &[&MatrixSegment], halves: u32, multiprocessors: u32) -> Vec<u32> {
    let mut blocks = vec![1u32; segments.len()];
    for _ in segments.len()..multiprocessors as usize {
        let rows = |i: usize| segments[i].rows / halves;
        let share = |i: usize| u64::from(rows(i).div_ceil(blocks[i])) * row_cost(segments[i].ty);
        let most = (0..segments.len()).filter(|&i| blocks[i] < rows(i));
        let Some(i) = most.max_by_key(|&i| share(i)) else {
            break;
        };
        blocks[i] += 1;
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_go_where_most_is_to_do() {
        let segment = |ty, rows| MatrixSegment {
            address: 0,
            ty,
            rows,
            out_offset: 0,
            bytes: 0,
            largest: 0,
        };
        let share = |segments: &[MatrixSegment], halves| {
            share_blocks(&segments.iter().collect::<Vec<_>>(), halves, 132)
        };
        assert_eq!(share(&[segment(RecordType::Q4K, 4096)], 1), [132]);
        assert_eq!(share(&[segment(RecordType::Q4K, 64)], 1), [64]);
        assert_eq!(share(&[segment(RecordType::Q4K, 64)], 2), [32]);
        // Queries and keys, then values: no share is larger than that of one block less or more.
        let blocks = share(
            &[
                segment(RecordType::Q4K, 5120),
                segment(RecordType::Q6K, 1024),
            ],
            1,
        );
        assert_eq!(blocks.iter().sum::<u32>(), 132);
        let most = |blocks: &[u32]| {
            let cost = |rows: u64, blocks: u32, ty| rows.div_ceil(blocks.into()) * row_cost(ty);
            cost(5120, blocks[0], RecordType::Q4K).max(cost(1024, blocks[1], RecordType::Q6K))
        };
        let best = (1..132).map(|n| most(&[n, 132 - n])).min();
        assert_eq!(Some(most(&blocks)), best);
    }
}
