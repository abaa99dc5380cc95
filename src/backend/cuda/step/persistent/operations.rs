//! The operations of a step as the kernel of a whole step is told them.

use super::{SLOT_BYTES, SLOT_QUADS, WIDE_INPUT};
use crate::backend::Work;
use crate::backend::cuda::args;
use crate::backend::cuda::attention::in_tiles;
use crate::backend::cuda::kv::KvPlan;
use crate::backend::cuda::matrix::{self, Matrix, record_bytes};
use crate::backend::cuda::plan::{FeedForwardPlan, LayerPlan, Plan};
use crate::backend::cuda::step::StepBuffers;

/// The operations of a step on one set of outputs, in the making.
pub(super) struct Builder<'a> {
    pub buffers: &'a StepBuffers,
    pub plan: &'a Plan,
    pub multiprocessors: u32,
    /// Bytes of shared memory beside the ring.
    pub rest: usize,
    pub ops: Vec<args::Op>,
    pub work: Vec<(Work, u64)>,
    /// Address of the next output.
    pub next: u64,
}

/// What is written of a product.
#[derive(Clone, Copy)]
enum Ending {
    Plain { residual: u64 },
    Activate(args::Activation),
    Gate(args::Activation),
}

const PLAIN: Ending = Ending::Plain { residual: 0 };

/// Words of an output of `n` numbers.
fn words(n: u32) -> u32 {
    n.next_multiple_of(4)
}

/// Words of an input without a norm, encoded, if all blocks encode it together.
fn encoded_words(width: u32) -> u32 {
    if width >= WIDE_INPUT {
        width / 32 * 12
    } else {
        0
    }
}

/// Words of all outputs of a step but the logits.
pub(super) fn output_words(plan: &Plan) -> u32 {
    plan.layers
        .iter()
        .map(|layer| {
            let attention = &layer.attention;
            let n_ff = match &layer.feed_forward {
                FeedForwardPlan::Dense(mlp) => mlp.n_ff,
                FeedForwardPlan::Experts(_) => 0,
            };
            let width = attention.n_heads * attention.head_dim;
            words(attention.qkv.rows)
                + words(width)
                + encoded_words(width)
                + words(n_ff)
                + encoded_words(n_ff)
                + 2 * words(plan.hidden)
        })
        .sum()
}

impl Builder<'_> {
    /// All operations, from the embedding in `h` to the logits.
    pub fn step(&mut self, kv: &KvPlan, sessions: u64) {
        let plan = self.plan;
        let mut h = self.buffers.at.h;
        for (i, layer) in plan.layers.iter().enumerate() {
            h = self.layer(i, layer, kv, sessions, h);
        }
        let input = (h, Some(plan.final_norm));
        let logits = self.buffers.at.logits;
        self.product(Work::Head, &plan.head, input, logits, PLAIN);
    }

    /// The address of a new output of `n` numbers.
    fn output(&mut self, n: u32) -> u64 {
        let at = self.next;
        self.next += u64::from(words(n)) * 4;
        at
    }

    /// A layer whose input is at `h`; the address of its output.
    fn layer(
        &mut self,
        index: usize,
        layer: &LayerPlan,
        kv: &KvPlan,
        sessions: u64,
        h: u64,
    ) -> u64 {
        let attention = &layer.attention;
        let FeedForwardPlan::Dense(mlp) = &layer.feed_forward else {
            return h;
        };
        let qkv = self.output(attention.qkv.rows);
        let input = (h, layer.attention_norm);
        self.product(Work::Qkv, &attention.qkv, input, qkv, PLAIN);

        let attended = self.output(attention.n_heads * attention.head_dim);
        let attend = args::Attend {
            qkv,
            q8: 0,
            q8_scale: 0,
            f32: attended,
            ..self.buffers.attend(self.plan, kv, index, sessions)
        };
        self.ops.push(args::Op::Attend(in_tiles(&attend)));
        self.work.push((Work::Attention, index as u64));

        let between = self.output(self.plan.hidden);
        let add = Ending::Plain { residual: h };
        let input = (attended, None);
        self.product(Work::Output, &attention.output, input, between, add);

        let active = self.output(mlp.n_ff);
        let ending = match mlp.gated {
            true => Ending::Gate(mlp.activation),
            false => Ending::Activate(mlp.activation),
        };
        let input = (between, layer.feed_forward_norm);
        self.product(Work::GateUp, &mlp.up, input, active, ending);

        let out = self.output(self.plan.hidden);
        let add = Ending::Plain { residual: between };
        self.product(Work::Down, &mlp.down, (active, None), out, add);
        out
    }

    /// A product with a row of f32, or its norm.
    fn product(
        &mut self,
        work: Work,
        matrix: &Matrix,
        (x, norm): (u64, Option<args::Norm>),
        out: u64,
        ending: Ending,
    ) {
        let encoded = match (norm, encoded_words(matrix.groups * 32)) {
            (Some(_), _) | (None, 0) => 0,
            (None, words) => self.output(words),
        };
        let mut op = args::ProductOp {
            x,
            encoded,
            norm: norm.unwrap_or_default(),
            out,
            n_parts: matrix.segments.len() as u32,
            groups: matrix.groups,
            inverse_len: 1.0 / (matrix.groups * 32) as f32,
            ..Default::default()
        };
        let mut halves = 1;
        (op.ending, op.activation) = match ending {
            Ending::Plain { residual } => {
                op.residual = residual;
                (0, args::Activation::default())
            }
            Ending::Activate(activation) => (1, activation),
            Ending::Gate(activation) => {
                halves = 2;
                (2, activation)
            }
        };
        let blocks = share_blocks(matrix, halves, self.multiprocessors);
        let mut first_block = 0;
        let mut slices = 1;
        for ((to, s), blocks) in op.parts.iter_mut().zip(&matrix.segments).zip(blocks) {
            let rows = s.rows / halves;
            let quads = rows.div_ceil(4);
            let (n_slices, full, last) = matrix::slices(s.ty, matrix.groups);
            let quad_bytes = 4 * record_bytes(s.ty, 32) as u32;
            *to = args::Part {
                matrix: s.address,
                bias: matrix.segment_bias(s),
                ty: args::type_number(s.ty),
                rows,
                first_block,
                blocks,
                quads: quads / blocks,
                more: quads % blocks,
                out_offset: s.out_offset,
                n_slices,
                full,
                last,
                full_bytes: record_bytes(s.ty, full) as u32,
                last_bytes: record_bytes(s.ty, last) as u32,
                quad_bytes,
                quads_per_slot: 1 << (SLOT_BYTES as u32 / quad_bytes).min(SLOT_QUADS).ilog2(),
            };
            first_block += blocks;
            slices = slices.max(n_slices);
        }
        let sums = (self.rest - matrix.groups as usize * 48) / 16;
        op.chunk_quads = (sums as u32 / (slices * halves)).max(1);
        self.ops.push(args::Op::Product(op));
        self.work.push((work, matrix.bytes()));
    }
}

/// Blocks for each segment of a matrix, such that the largest share of a block is as small as can be:
/// one after the other goes to the segment whose blocks have most to do.
fn share_blocks(matrix: &Matrix, halves: u32, multiprocessors: u32) -> Vec<u32> {
    let quads: Vec<u32> = matrix
        .segments
        .iter()
        .map(|s| (s.rows / halves).div_ceil(4))
        .collect();
    let mut blocks = vec![1u32; quads.len()];
    for _ in quads.len()..multiprocessors as usize {
        let share = |i: usize| {
            let s = &matrix.segments[i];
            u64::from(quads[i].div_ceil(blocks[i])) * record_bytes(s.ty, 32)
        };
        let most = (0..quads.len()).filter(|&i| blocks[i] < quads[i]);
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
    use crate::backend::cuda::matrix::MatrixSegment;
    use crate::quant::TensorType;

    #[test]
    fn blocks_go_where_most_is_to_do() {
        let segment = |ty, rows| MatrixSegment {
            address: 0,
            ty,
            rows,
            out_offset: 0,
            bytes: 0,
        };
        let matrix = |segments: &[MatrixSegment]| Matrix {
            groups: 128,
            segments: segments.to_vec(),
            ..Matrix::default()
        };
        let one = matrix(&[segment(TensorType::Q4K, 4096)]);
        assert_eq!(share_blocks(&one, 1, 132), [132]);
        let small = matrix(&[segment(TensorType::Q4K, 256)]);
        assert_eq!(share_blocks(&small, 1, 132), [64]);
        assert_eq!(share_blocks(&small, 2, 132), [32]);
        // Queries and keys, then values: no share is larger than that of one block less or more.
        let mixed = matrix(&[
            segment(TensorType::Q4K, 5120),
            segment(TensorType::Q6K, 1024),
        ]);
        let blocks = share_blocks(&mixed, 1, 132);
        assert_eq!(blocks.iter().sum::<u32>(), 132);
        let most = |blocks: &[u32]| {
            (1280u64.div_ceil(blocks[0].into()) * 576).max(256u64.div_ceil(blocks[1].into()) * 848)
        };
        let best = (1..132).map(|n| most(&[n, 132 - n])).min();
        assert_eq!(Some(most(&blocks)), best);
    }
}
