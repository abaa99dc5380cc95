//! Experts in a decode step: one token, and no weights but those of its experts.

use super::super::forward::deal_rows;
use super::super::layer::Product;
use super::super::matmul::{Activations, Isa, Matrix, Scratch};
use super::super::pages::Span;
use super::super::pool::Worker;
use super::{Expert, ExpertLayer, ExpertSizes, Which};
use crate::error::{Result, try_vec};
use std::ops::Range;

/// Bytes of weights that a thread takes at a time, at least.
const GRAIN_BYTES: usize = 128 << 10;
const BLOCK: usize = Matrix::ROW_QUANTUM;

/// Memory of a decode step's experts, shared by the threads.
pub(in super::super) struct ExpertSpace {
    scores: Vec<f32>,
    /// Of each of a token's experts, one after the other.
    gate: Vec<f32>,
    up: Vec<f32>,
}

/// The same, as each thread sees it.
#[derive(Clone, Copy)]
pub(in super::super) struct ExpertBuffers<'a> {
    scores: Span<'a>,
    gate: Span<'a>,
    up: Span<'a>,
}

impl ExpertSpace {
    pub fn new(s: &ExpertSizes) -> Result<ExpertSpace> {
        Ok(ExpertSpace {
            scores: try_vec(s.scores, 0.0, "scratch")?,
            gate: try_vec(s.inner, 0.0, "scratch")?,
            up: try_vec(s.inner, 0.0, "scratch")?,
        })
    }

    /// Bytes of [`ExpertSpace::new`].
    pub fn bytes_for(s: &ExpertSizes) -> usize {
        (s.scores + 2 * s.inner) * size_of::<f32>()
    }

    /// For the threads of a region.
    pub fn buffers(&mut self) -> ExpertBuffers<'_> {
        ExpertBuffers {
            scores: Span::new(&mut self.scores),
            gate: Span::new(&mut self.gate),
            up: Span::new(&mut self.up),
        }
    }
}

/// What each thread has for itself: every one finds out for itself which experts are chosen, which
/// costs less than a barrier.
pub(in super::super) struct ExpertThread {
    keys: Vec<f32>,
    ids: Vec<u32>,
    weights: Vec<f32>,
    /// Inputs of the experts' last products.
    input: Activations,
    /// Outputs of a block of rows of each expert.
    out: Vec<f32>,
}

impl ExpertThread {
    pub fn new(s: &ExpertSizes) -> Result<ExpertThread> {
        Ok(ExpertThread {
            keys: try_vec(s.n_experts, 0.0, "scratch")?,
            ids: try_vec(s.n_used, 0, "scratch")?,
            weights: try_vec(s.parts, 0.0, "scratch")?,
            input: Activations::new(s.parts, s.n_ff, s.encodings)?,
            out: try_vec(s.parts * BLOCK, 0.0, "scratch")?,
        })
    }

    /// Bytes of [`ExpertThread::new`].
    pub fn bytes_for(s: &ExpertSizes) -> usize {
        let floats = s.n_experts + s.n_used + s.parts + s.parts * BLOCK;
        floats * size_of::<f32>() + Activations::bytes_for(s.parts, s.n_ff, s.encodings)
    }
}

/// Experts that a token goes through.
fn parts(layer: &ExpertLayer) -> usize {
    layer.routing.n_used + usize::from(layer.shared.is_some())
}

/// The one in place `i`: one of the chosen, or after them the shared one.
fn part<'l>(layer: &'l ExpertLayer, ids: &[u32], i: usize, isa: Isa) -> Expert<'l> {
    match &layer.shared {
        Some(shared) if i == layer.routing.n_used => shared.products.expert(0, isa),
        _ => layer.experts.expert(ids[i] as usize, isa),
    }
}

/// One thread's part in a decode step's experts.
pub(in super::super) struct ExpertStep<'a> {
    pub isa: Isa,
    pub worker: &'a Worker<'a>,
    pub buffers: ExpertBuffers<'a>,
    pub me: &'a mut ExpertThread,
    pub unpacked: &'a mut Scratch,
}

impl ExpertStep<'_> {
    /// Writes the layer's output to `y` and calls `finish` with the rows that are complete, each of
    /// which is this thread's. `input` is the normed input, in the layer's encodings. `half` is called
    /// when the activations are complete. Begins and ends between barriers.
    ///
    /// # Safety
    /// All threads of the region call it, and nobody else uses the buffers or `y`.
    pub unsafe fn run(
        &mut self,
        layer: &ExpertLayer,
        input: &Activations,
        y: Span,
        half: impl FnOnce(),
        mut finish: impl FnMut(Range<usize>),
    ) {
        // SAFETY: the caller's promise; barriers separate the phases, and in each a thread writes
        // only its own rows.
        unsafe {
            self.score(layer, input);
            self.worker.barrier();
            let routing = &layer.routing;
            let scores = &*self.buffers.scores.part(0, layer.n_scores());
            let (n, used) = (routing.n_experts, routing.n_used);
            let me = &mut *self.me;
            let (ids, weights) = (&mut me.ids[..used], &mut me.weights[..used]);
            routing.choose(&scores[..n], &mut me.keys[..n], ids, weights);
            if layer.shared.is_some() {
                me.weights[used] = layer.shared_weight(scores);
            }
            self.inner(layer, input);
            self.worker.barrier();
            half();
            let n_parts = parts(layer);
            let mut at = 0;
            for i in 0..n_parts {
                let p = part(layer, &self.me.ids, i, self.isa).products;
                let enc = p.down.matrix.encodings();
                let row = &*self.buffers.gate.part(at, p.n_ff);
                self.me.input.set_row(self.isa, i, row, enc);
                at += p.n_ff;
            }
            let blocks = layer.hidden.div_ceil(BLOCK);
            self.worker.ranges(blocks, 1, |range| {
                for block in range {
                    let rows = block * BLOCK..((block + 1) * BLOCK).min(layer.hidden);
                    self.output(layer, n_parts, rows.clone(), y);
                    finish(rows);
                }
            });
        }
    }

    /// Scores of the router and the shared expert.
    ///
    /// # Safety
    /// As [`ExpertStep::run`].
    unsafe fn score(&mut self, layer: &ExpertLayer, input: &Activations) {
        let mut products = arrayvec::ArrayVec::<&Product, 2>::new();
        products.extend(layer.scorers());
        let scores = self.buffers.scores;
        let unpacked = &mut *self.unpacked;
        deal_rows(self.worker, &products, GRAIN_BYTES, |i, rows| {
            let at = if i == 0 { 0 } else { layer.routing.n_experts };
            // SAFETY: each thread has rows of its own.
            unsafe {
                let out = scores.base().add(at);
                let product = products[i];
                product
                    .matrix
                    .mul(input, 0..1, rows.clone(), out, 0, unpacked);
                let out = scores.part(at + rows.start, rows.len());
                super::add_bias(out, product.bias.as_ref().map(|b| &b[rows]));
            }
        });
    }

    /// Gate and up of the chosen experts, activated, in the buffer of the gates.
    ///
    /// # Safety
    /// As [`ExpertStep::run`].
    unsafe fn inner(&mut self, layer: &ExpertLayer, input: &Activations) {
        let n_parts = parts(layer);
        let blocks = |n_ff: usize| n_ff.div_ceil(BLOCK);
        let (isa, ids) = (self.isa, &self.me.ids);
        let part = |i| part(layer, ids, i, isa);
        let total: usize = (0..n_parts).map(|i| blocks(part(i).products.n_ff)).sum();
        let block_bytes = 2 * BLOCK * layer.experts.gate.tensor.row_bytes();
        let grain = (GRAIN_BYTES / block_bytes.max(1)).max(1);
        let (gate, up) = (self.buffers.gate, self.buffers.up);
        let unpacked = &mut *self.unpacked;
        self.worker.ranges(total, grain, |range| {
            let (mut first, mut at) = (0, 0);
            for i in 0..n_parts {
                let expert = part(i);
                let n_ff = expert.products.n_ff;
                let last = first + blocks(n_ff);
                let (from, to) = (range.start.max(first), range.end.min(last));
                if from < to {
                    let rows = (from - first) * BLOCK..((to - first) * BLOCK).min(n_ff);
                    let n = rows.len();
                    // SAFETY: each thread has rows of its own.
                    unsafe {
                        let gate = gate.part(at + rows.start, n);
                        let up = up.part(at + rows.start, n);
                        for (which, out) in [(Which::Gate, &mut *gate), (Which::Up, &mut *up)] {
                            let view = expert.rows(which, rows.clone());
                            view.mul(input, 0..1, 0..n, out.as_mut_ptr(), 0, unpacked);
                        }
                        expert.activate(rows, gate, up);
                    }
                }
                first = last;
                at += n_ff;
            }
        });
    }

    /// Some rows of the sum over the token's experts.
    ///
    /// # Safety
    /// As [`ExpertStep::run`]; these rows of `y` are this thread's.
    unsafe fn output(&mut self, layer: &ExpertLayer, n_parts: usize, rows: Range<usize>, y: Span) {
        // SAFETY: the caller's promise; inputs and outputs are this thread's own.
        unsafe {
            let y = y.part(rows.start, rows.len());
            y.fill(0.0);
            for i in 0..n_parts {
                let me = &mut *self.me;
                let expert = part(layer, &me.ids, i, self.isa);
                let out = &mut me.out[i * BLOCK..i * BLOCK + rows.len()];
                let view = expert.rows(Which::Down, rows.clone());
                let to = out.as_mut_ptr();
                view.mul(&me.input, i..i + 1, 0..rows.len(), to, 0, self.unpacked);
                expert.add_output(rows.clone(), me.weights[i], out, y);
            }
        }
    }
}
