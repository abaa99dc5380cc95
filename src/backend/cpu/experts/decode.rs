//! Experts in a decode step: one token, and no weights but those of its experts.

use super::super::adapters::StackAdapters;
use super::super::layer::Product;
use super::super::matmul::{Activations, Isa, Matrix};
use super::super::pages::Span;
use super::super::pass::{Pass, Tokens, product_cost};
use super::super::pool::Work;
use super::super::weights::ThreadSpace;
use super::{Expert, ExpertLayer, ExpertSizes, Which};
use crate::backend::Work as Kind;
use crate::error::{Result, try_vec};
use arrayvec::ArrayVec;
use std::ops::Range;

const BLOCK: usize = Matrix::ROW_QUANTUM;

/// Memory of a decode step's experts.
pub(in super::super) struct ExpertSpace {
    scores: Vec<f32>,
    keys: Vec<f32>,
    ids: Vec<u32>,
    weights: Vec<f32>,
    /// Of each of a token's experts, one after the other.
    gate: Vec<f32>,
    up: Vec<f32>,
    /// Inputs of the experts' last products.
    input: Activations,
}

/// The same, as each thread sees it.
#[derive(Clone, Copy)]
pub(in super::super) struct ExpertBuffers<'a> {
    scores: Span<'a>,
    keys: Span<'a>,
    ids: Span<'a, u32>,
    weights: Span<'a>,
    gate: Span<'a>,
    up: Span<'a>,
    input: &'a Activations,
}

impl ExpertSpace {
    pub fn new(s: &ExpertSizes) -> Result<ExpertSpace> {
        Ok(ExpertSpace {
            scores: try_vec(s.scores, 0.0, "scratch")?,
            keys: try_vec(s.n_experts, 0.0, "scratch")?,
            ids: try_vec(s.n_used, 0, "scratch")?,
            weights: try_vec(s.parts, 0.0, "scratch")?,
            gate: try_vec(s.inner, 0.0, "scratch")?,
            up: try_vec(s.inner, 0.0, "scratch")?,
            input: Activations::new(s.parts, s.n_ff, s.encodings)?,
        })
    }

    /// Bytes of [`ExpertSpace::new`].
    pub fn bytes_for(s: &ExpertSizes) -> usize {
        let floats = s.scores + s.n_experts + s.n_used + s.parts + 2 * s.inner;
        floats * size_of::<f32>() + Activations::bytes_for(s.parts, s.n_ff, s.encodings)
    }

    /// For the threads of a step.
    pub fn buffers(&mut self) -> ExpertBuffers<'_> {
        ExpertBuffers {
            scores: Span::new(&mut self.scores),
            keys: Span::new(&mut self.keys),
            ids: Span::new(&mut self.ids),
            weights: Span::new(&mut self.weights),
            gate: Span::new(&mut self.gate),
            up: Span::new(&mut self.up),
            input: &self.input,
        }
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

/// A token's experts.
#[derive(Clone, Copy)]
struct Chosen<'a> {
    layer: &'a ExpertLayer,
    /// Those that the router chose.
    ids: &'a [u32],
    /// Of all of them.
    weights: &'a [f32],
    isa: Isa,
}

impl<'a> Chosen<'a> {
    /// The one in place `i`.
    fn part(&self, i: usize) -> Expert<'a> {
        part(self.layer, self.ids, i, self.isa)
    }

    /// Whether the one in place `i` is that which every token goes through.
    fn is_shared(&self, i: usize) -> bool {
        i == self.ids.len()
    }

    /// What the weight of the one in place `i` is to its input, and what to its output.
    fn factors(&self, i: usize) -> (f32, f32) {
        match i < self.ids.len() {
            true => self.layer.factors(self.weights[i]),
            false => (1.0, self.weights[i]),
        }
    }

    /// How many.
    fn count(&self) -> usize {
        parts(self.layer)
    }
}

impl ExpertBuffers<'_> {
    /// Writes the layer's output to `y`, by the scores; the pass has encoded the normed input.
    pub fn run(&self, pass: &Pass, layer: &ExpertLayer) -> Result<()> {
        let chosen = self.choose(layer, pass.tokens.isa());
        if let Some(shared) = &layer.shared {
            shared.products.lora_down_first(pass)?;
        }
        let adapters = layer.experts.adapters(pass.tokens);
        if let Some(adapters) = &adapters {
            self.lora_down(pass, chosen, adapters, &[Which::First, Which::Up])?;
        }
        self.inner(pass, chosen, adapters)?;
        pass.marks.end(Kind::GateUp, || layer.bytes_per_token().0);
        self.encode(pass, chosen, adapters)?;
        if let Some(adapters) = &adapters {
            self.lora_down(pass, chosen, adapters, &[Which::Down])?;
        }
        if let Some(shared) = &layer.shared {
            pass.lora_down(&[&shared.products.down])?;
        }
        let down = &layer.experts.down;
        let blocks = layer.hidden.div_ceil(BLOCK);
        let block_bytes = BLOCK * down.tensor.row_bytes() * chosen.count();
        let work = Work::even(blocks, product_cost(block_bytes, 1));
        let tokens = pass.tokens;
        // Of each expert, a thread reads as many rows in a row as it takes at a time: some, where that leaves enough for all threads.
        let threads = tokens.weights.pool.threads();
        let work = Work {
            grain: work.grain.max(blocks / (4 * threads)),
            ..work
        };
        let y = tokens.buffers.y;
        pass.phase(work, |me, range| {
            let rows = range.start * BLOCK..(range.end * BLOCK).min(layer.hidden);
            // SAFETY: each thread has rows of its own.
            let y = unsafe { y.part(rows.start, rows.len()) };
            self.output((tokens, adapters), me, chosen, rows, y);
        })
    }

    /// Scores of the router and the shared expert.
    pub fn score(&self, pass: &Pass, layer: &ExpertLayer) -> Result<()> {
        let mut products = ArrayVec::<&Product, 2>::new();
        products.extend(layer.scorers());
        let tokens = pass.tokens;
        let input = tokens.input;
        pass.lora_down(&products)?;
        let all = products.clone();
        pass.rows(products, move |me, i, rows| {
            let at = if i == 0 { 0 } else { layer.routing.n_experts };
            let product = all[i];
            // SAFETY: each thread has rows of its own.
            unsafe {
                let (out, unpacked) = (self.scores.base().add(at), &mut me.unpacked);
                let matrix = &product.matrix;
                matrix.mul(input, 0..1, rows.clone(), out, 0, unpacked);
                let out = self.scores.part(at + rows.start, rows.len());
                tokens.lora_up(0, (i, product), rows.clone(), || &mut *out);
                super::add_bias(out, product.bias.as_ref().map(|b| &b[rows]));
            }
        })
    }

    /// Chooses experts by the scores.
    fn choose<'a>(&'a self, layer: &'a ExpertLayer, isa: Isa) -> Chosen<'a> {
        let routing = &layer.routing;
        let (n, used) = (routing.n_experts, routing.n_used);
        // SAFETY: no phase runs, so nobody else uses these; the phases that follow only read them.
        let (scores, keys, ids, weights) = unsafe {
            (
                &*self.scores.part(0, layer.n_scores()),
                self.keys.part(0, n),
                self.ids.part(0, used),
                self.weights.part(0, parts(layer)),
            )
        };
        routing.choose(&scores[..n], keys, ids, &mut weights[..used]);
        if layer.shared.is_some() {
            weights[used] = layer.shared_weight(scores);
        }
        Chosen {
            layer,
            ids,
            weights,
            isa,
        }
    }

    /// Readies what adapters add to some matrices of the chosen experts: to those of the layer's input, or to the last ones.
    fn lora_down(
        &self,
        pass: &Pass,
        chosen: Chosen,
        adapters: &StackAdapters,
        matrices: &[Which],
    ) -> Result<()> {
        let used = chosen.ids.len();
        let hidden = chosen.layer.hidden;
        pass.phase(Work::even(used, 100 + hidden as u64), |me, range| {
            for i in range {
                let expert = chosen.part(i);
                // SAFETY: each expert's row is one thread's.
                unsafe {
                    if let [Which::First, ..] = matrices {
                        adapters.take(i, 0, hidden);
                    }
                    for which in matrices {
                        let unpacked = &mut me.unpacked;
                        expert.lora_down_chosen(adapters, *which, i..i + 1, |_| 0, unpacked);
                    }
                }
            }
        })
    }

    /// Gate and up (or up alone) of the chosen experts, activated, in the buffer of the gates.
    fn inner(&self, pass: &Pass, chosen: Chosen, adapters: Option<StackAdapters>) -> Result<()> {
        let blocks = |n_ff: usize| n_ff.div_ceil(BLOCK);
        let widths = || (0..chosen.count()).map(|i| chosen.part(i).products.n_ff);
        let total: usize = widths().map(blocks).sum();
        let inputs = chosen.layer.experts.inputs();
        let row_bytes: usize = inputs.map(|p| p.tensor.row_bytes()).sum();
        let work = Work::even(total, product_cost(BLOCK * row_bytes, 1));
        let tokens = pass.tokens;
        let input = tokens.input;
        pass.phase(work, |me, range| {
            let (mut first, mut at) = (0, 0);
            for (i, n_ff) in widths().enumerate() {
                let last = first + blocks(n_ff);
                let (from, to) = (range.start.max(first), range.end.min(last));
                if from < to {
                    let expert = chosen.part(i);
                    let rows = (from - first) * BLOCK..((to - first) * BLOCK).min(n_ff);
                    let n = rows.len();
                    // SAFETY: each thread has rows of its own.
                    unsafe {
                        let mut mul = |which, out: &mut [f32]| {
                            let view = expert.rows(which, rows.clone());
                            let (out, unpacked) = (out.as_mut_ptr(), &mut me.unpacked);
                            view.mul(input, 0..1, 0..n, out, 0, unpacked);
                        };
                        let first = self.gate.part(at + rows.start, n);
                        mul(Which::First, first);
                        let mut up = expert.products.up.as_ref().map(|_| {
                            let up = self.up.part(at + rows.start, n);
                            mul(Which::Up, up);
                            up
                        });
                        if chosen.is_shared(i) {
                            let up = up.as_deref_mut();
                            expert.lora_up(tokens, 0, rows.clone(), first, up);
                        } else if let Some(adapters) = &adapters {
                            let (row, which) = ((i, 0), Which::First);
                            expert.lora_up_chosen(adapters, which, row, rows.clone(), first);
                            if let Some(up) = up.as_deref_mut() {
                                let which = Which::Up;
                                expert.lora_up_chosen(adapters, which, row, rows.clone(), up);
                            }
                        }
                        expert.activate(rows, chosen.factors(i).0, first, up);
                    }
                }
                first = last;
                at += n_ff;
            }
        })
    }

    /// Encodes the activations as inputs of the last products.
    fn encode(&self, pass: &Pass, chosen: Chosen, adapters: Option<StackAdapters>) -> Result<()> {
        let n_ff = chosen.layer.experts.n_ff;
        let work = Work::even(chosen.count(), 50 + n_ff as u64 / 4);
        let tokens = pass.tokens;
        pass.phase(work, |_, range| {
            for i in range {
                let before = (0..i).map(|i| chosen.part(i).products.n_ff);
                let (at, p) = (before.sum(), chosen.part(i).products);
                let enc = p.down.matrix.encodings();
                // SAFETY: the activations are only read; each expert's input is one thread's.
                unsafe {
                    let row = &*self.gate.part(at, p.n_ff);
                    self.input.set_row(chosen.isa, i, row, enc);
                    if chosen.is_shared(i) {
                        tokens.keep(0, row);
                    } else if let Some(adapters) = &adapters {
                        adapters.keep(chosen.isa, i, row);
                    }
                }
            }
        })
    }

    /// Some rows of the sum over the token's experts.
    fn output(
        &self,
        (tokens, adapters): (&Tokens, Option<StackAdapters>),
        me: &mut ThreadSpace,
        chosen: Chosen,
        rows: Range<usize>,
        y: &mut [f32],
    ) {
        chosen.layer.begin_sum(rows.clone(), y);
        for i in 0..chosen.count() {
            let (expert, factor) = (chosen.part(i), chosen.factors(i).1);
            for (first, y) in rows.clone().step_by(BLOCK).zip(y.chunks_mut(BLOCK)) {
                let rows = first..first + y.len();
                let mut out = [0.0; BLOCK];
                let out = &mut out[..y.len()];
                let view = expert.rows(Which::Down, rows.clone());
                // SAFETY: the inputs are complete, the output is this call's.
                unsafe {
                    let (to, unpacked) = (out.as_mut_ptr(), &mut me.unpacked);
                    view.mul(self.input, i..i + 1, 0..rows.len(), to, 0, unpacked);
                    if chosen.is_shared(i) {
                        let down = (0, &expert.products.down);
                        tokens.lora_up(0, down, rows.clone(), || &mut *out);
                    } else if let Some(adapters) = &adapters {
                        let (row, which) = ((i, 0), Which::Down);
                        expert.lora_up_chosen(adapters, which, row, rows.clone(), out);
                    }
                }
                expert.add_output(rows, factor, out, y);
            }
        }
    }
}
