//! Several residual streams in place of one (AltUp), of which layers evaluate one and predict the others,
//! and what comes with them: a short way around attention by two thin matrices, and gates that are mostly 0.

use super::elementwise::{add, add_bias, scale_by};
use super::layer::{DenseLayer, NormWeights, Product, activate, floats, product, union};
use super::matmul::{Isa, Matrix};
use super::pass::{Pass, Rows, Up, row_view};
use super::pool::Work;
use super::profile::product_bytes;
use crate::backend::Work as Kind;
use crate::error::Result;
use crate::model::{LayerStreams, MAX_STREAMS, Streams};
use std::f32::consts::FRAC_1_SQRT_2;

/// Least mean square of a stream before it is made as large as another.
const LEAST_SQUARE: f64 = 1e-5;

/// How streams begin and end.
pub(super) struct StreamWeights {
    count: usize,
    begin: Vec<Product>,
    end: Vec<Product>,
}

impl StreamWeights {
    pub fn new(streams: &Streams, isa: Isa) -> Result<StreamWeights> {
        let all = |linears: &[crate::model::Linear]| -> Result<Vec<Product>> {
            linears.iter().map(|linear| product(linear, isa)).collect()
        };
        Ok(StreamWeights {
            count: streams.count,
            begin: all(&streams.begin)?,
            end: all(&streams.end)?,
        })
    }
}

/// A layer's part in it.
pub(super) struct StreamLayer {
    count: usize,
    active: usize,
    router_norm: NormWeights,
    /// `[count][hidden]`.
    router: Vec<f32>,
    /// `[count][count][count]`.
    predict: Vec<f32>,
    /// `[count][count]`.
    correct: Vec<f32>,
    scale: Vec<f32>,
    left: Product,
    right: Product,
    thin_norm: NormWeights,
    pub cutoff: Option<f32>,
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn mean_square(x: &[f32]) -> f64 {
    let squares = x.iter().map(|v| f64::from(*v) * f64::from(*v));
    squares.sum::<f64>() / x.len() as f64
}

/// Makes a row as large as one of that mean square.
fn level(x: &mut [f32], square: f64) {
    let own = mean_square(x).max(LEAST_SQUARE);
    scale_by(x, (square / own).sqrt() as f32);
}

impl StreamLayer {
    pub fn new(layer: &LayerStreams, isa: Isa) -> Result<StreamLayer> {
        let numbers = |tensor| floats(tensor, "coefficients of residual streams");
        Ok(StreamLayer {
            count: layer.count,
            active: layer.active,
            router_norm: NormWeights::new(&layer.router_norm)?,
            router: numbers(&layer.router)?,
            predict: numbers(&layer.predict)?,
            correct: numbers(&layer.correct)?,
            scale: numbers(&layer.output_scale)?,
            left: product(&layer.left, isa)?,
            right: product(&layer.right, isa)?,
            thin_norm: NormWeights::new(&layer.thin_norm)?,
            cutoff: layer.cutoff,
        })
    }

    /// Floats of its small vectors.
    pub fn floats(&self) -> usize {
        let numbers = [&self.router, &self.predict, &self.correct, &self.scale];
        let norms = self.router_norm.floats() + self.thin_norm.floats();
        let biases = self.left.bias_len() + self.right.bias_len();
        numbers.into_iter().map(Vec::len).sum::<usize>() + norms + biases
    }

    /// A number of each stream that says how much it counts for a row.
    ///
    /// # Safety
    /// The processor has `isa`.
    unsafe fn modalities(&self, isa: Isa, x: &[f32], scratch: &mut [f32]) -> [f32; MAX_STREAMS] {
        // SAFETY: by contract, the processor has `isa`.
        let normed = unsafe { self.router_norm.apply(isa, x, scratch) };
        let mut out = [0.0; MAX_STREAMS];
        let rows = self.router.chunks_exact(x.len());
        for (out, row) in out.iter_mut().zip(rows) {
            *out = (dot(row, normed) / x.len() as f32).tanh();
        }
        out
    }

    /// Predicts all streams, and leaves the active one as the residual stream, with what goes around
    /// attention held beside it.
    pub fn predict(&self, pass: &Pass, norm: Option<&NormWeights>) -> Result<()> {
        let (tokens, b) = (pass.tokens, &pass.tokens.buffers);
        let (isa, hidden, count) = (tokens.isa(), b.sizes.hidden, self.count);
        let work = Work::even(tokens.count, (count * count * hidden) as u64);
        pass.phase(work, move |me, range| {
            for t in range {
                // SAFETY: each token is one thread's. The weights' instruction set is the processor's.
                unsafe {
                    let streams = b.streams.part(t * count * hidden, count * hidden);
                    let active = &streams[self.active * hidden..][..hidden];
                    let modalities = self.modalities(isa, active, &mut me.row);
                    let mut coefficients = [0.0; MAX_STREAMS * MAX_STREAMS];
                    for (c, row) in coefficients
                        .iter_mut()
                        .zip(self.predict.chunks_exact(count))
                    {
                        *c = dot(row, &modalities);
                    }
                    for e in 0..hidden {
                        let mut old = [0.0; MAX_STREAMS];
                        for (j, old) in old[..count].iter_mut().enumerate() {
                            *old = streams[j * hidden + e];
                        }
                        for i in 0..count {
                            let row = &coefficients[i * count..][..count];
                            streams[i * hidden + e] = old[i] + dot(row, &old);
                        }
                    }
                    let active = &streams[self.active * hidden..][..hidden];
                    b.x.part(t * hidden, hidden).copy_from_slice(active);
                }
            }
        })?;
        let thin = Rows {
            span: b.gate,
            width: self.left.matrix.rows(),
            stride: b.sizes.n_ff,
        };
        let out = Rows {
            span: b.y,
            width: hidden,
            stride: hidden,
        };
        pass.encode(norm, pass.residual(), union([&self.left]))?;
        pass.products([&self.left], [thin])?;
        pass.encode(None, thin, union([&self.right]))?;
        pass.products([&self.right], [out])?;
        let work = Work::even(tokens.count, 50 + hidden as u64);
        pass.phase(work, move |me, range| {
            for t in range {
                // SAFETY: each token is one thread's. The weights' instruction set is the processor's.
                unsafe {
                    let x = &*b.x.part(t * hidden, hidden);
                    let (held, y) = (
                        b.held.part(t * hidden, hidden),
                        b.y.part(t * hidden, hidden),
                    );
                    match norm {
                        Some(norm) => held.copy_from_slice(norm.apply(isa, x, &mut me.row)),
                        None => held.copy_from_slice(x),
                    }
                    self.thin_norm.apply_in_place(isa, y, &mut me.row);
                    add(held, y, None);
                }
            }
        })?;
        pass.marks
            .end(Kind::Qkv, || product_bytes([&self.left, &self.right]));
        Ok(())
    }

    /// Joins the residual stream behind attention with what went around it.
    pub fn join(&self, pass: &Pass) -> Result<()> {
        let (tokens, b) = (pass.tokens, &pass.tokens.buffers);
        let hidden = b.sizes.hidden;
        let work = Work::even(tokens.count, 20 + hidden as u64 / 4);
        pass.phase(work, move |_, range| {
            for t in range {
                // SAFETY: each token is one thread's.
                let (x, held) = unsafe {
                    let held = &*b.held.part(t * hidden, hidden);
                    (b.x.part(t * hidden, hidden), held)
                };
                add(x, held, None);
                scale_by(x, FRAC_1_SQRT_2);
            }
        })
    }

    /// Corrects all streams by the residual stream, which then is what the layer's own input is added to:
    /// the active one, scaled.
    pub fn correct(&self, pass: &Pass) -> Result<()> {
        let (tokens, b) = (pass.tokens, &pass.tokens.buffers);
        let (isa, hidden, count) = (tokens.isa(), b.sizes.hidden, self.count);
        let work = Work::even(tokens.count, (2 * count * hidden) as u64);
        pass.phase(work, move |me, range| {
            for t in range {
                // SAFETY: each token is one thread's. The weights' instruction set is the processor's.
                unsafe {
                    let x = b.x.part(t * hidden, hidden);
                    let streams = b.streams.part(t * count * hidden, count * hidden);
                    let modalities = self.modalities(isa, x, &mut me.row);
                    let active = &streams[self.active * hidden..][..hidden];
                    x.iter_mut().zip(active).for_each(|(x, p)| *x -= p);
                    let rows = self.correct.chunks_exact(count);
                    for (stream, row) in streams.chunks_exact_mut(hidden).zip(rows) {
                        let coefficient = dot(row, &modalities) + 1.0;
                        for (s, innovation) in stream.iter_mut().zip(&*x) {
                            *s += innovation * coefficient;
                        }
                    }
                    let active = &streams[self.active * hidden..][..hidden];
                    for ((x, s), scale) in x.iter_mut().zip(active).zip(&self.scale) {
                        *x = s * scale;
                    }
                }
            }
        })
    }

    /// Adds the residual stream to all streams but the first.
    pub fn spread(&self, pass: &Pass) -> Result<()> {
        let (tokens, b) = (pass.tokens, &pass.tokens.buffers);
        let (hidden, count) = (b.sizes.hidden, self.count);
        let work = Work::even(tokens.count, 20 + (count * hidden) as u64 / 4);
        pass.phase(work, move |_, range| {
            for t in range {
                // SAFETY: each token is one thread's.
                let (x, streams) = unsafe {
                    let x = &*b.x.part(t * hidden, hidden);
                    (x, b.streams.part(t * count * hidden, count * hidden))
                };
                for stream in streams.chunks_exact_mut(hidden).skip(1) {
                    add(stream, x, None);
                }
            }
        })
    }
}

impl Pass<'_, '_> {
    /// Makes the streams of tokens whose embeddings are the residual stream.
    pub fn begin_streams(&self) -> Result<()> {
        let tokens = self.tokens;
        let Some(weights) = &tokens.weights.streams else {
            return Ok(());
        };
        let b = &tokens.buffers;
        let (hidden, stride) = (b.sizes.hidden, weights.count * b.sizes.hidden);
        self.encode(None, self.residual(), union(&weights.begin))?;
        for (i, product) in weights.begin.iter().enumerate() {
            let out = Rows {
                span: b.streams.from((i + 1) * hidden),
                width: hidden,
                stride,
            };
            self.products([product], [out])?;
        }
        let work = Work::even(tokens.count, 50 + stride as u64);
        self.phase(work, move |_, range| {
            for t in range {
                // SAFETY: each token is one thread's.
                let (x, streams) = unsafe {
                    let x = &*b.x.part(t * hidden, hidden);
                    (x, b.streams.part(t * stride, stride))
                };
                let square = mean_square(x);
                let (first, others) = streams.split_at_mut(hidden);
                first.copy_from_slice(x);
                for (stream, product) in others.chunks_exact_mut(hidden).zip(&weights.begin) {
                    add_bias(stream, product.bias.as_deref());
                    level(stream, square);
                }
            }
        })?;
        self.marks
            .end(Kind::Embed, || product_bytes(weights.begin.iter()));
        Ok(())
    }

    /// Makes one residual stream of all.
    pub fn end_streams(&self) -> Result<()> {
        let tokens = self.tokens;
        let Some(weights) = &tokens.weights.streams else {
            return Ok(());
        };
        let b = &tokens.buffers;
        let (hidden, stride) = (b.sizes.hidden, weights.count * b.sizes.hidden);
        for (i, product) in weights.end.iter().enumerate() {
            let from = Rows {
                span: b.streams.from((i + 1) * hidden),
                width: hidden,
                stride,
            };
            let out = Rows {
                span: b.y,
                width: hidden,
                stride: hidden,
            };
            self.encode(None, from, union([product]))?;
            self.products([product], [out])?;
            let work = Work::even(tokens.count, 50 + hidden as u64);
            self.phase(work, move |_, range| {
                for t in range {
                    // SAFETY: each token is one thread's; nobody writes the streams.
                    let (x, y, first) = unsafe {
                        let first = &*b.streams.part(t * stride, hidden);
                        (
                            b.x.part(t * hidden, hidden),
                            b.y.part(t * hidden, hidden),
                            first,
                        )
                    };
                    if i == 0 {
                        x.copy_from_slice(first);
                    }
                    add_bias(y, product.bias.as_deref());
                    level(y, mean_square(first));
                    add(x, y, None);
                    if i + 1 == weights.end.len() {
                        scale_by(x, 1.0 / weights.count as f32);
                    }
                }
            })?;
        }
        self.marks
            .end(Kind::Head, || product_bytes(weights.end.iter()));
        Ok(())
    }

    /// The first products of a feed-forward, activated, in `gate`, of which only gates count that are
    /// `cutoff` standard deviations above the mean, by as much as they are.
    pub fn inner_sparse(
        &self,
        norm: Option<&NormWeights>,
        dense: &DenseLayer,
        cutoff: f32,
    ) -> Result<()> {
        let (tokens, b) = (self.tokens, &self.tokens.buffers);
        let (isa, n, stride) = (tokens.isa(), tokens.count, b.sizes.n_ff);
        let width = dense.up.matrix.rows();
        self.encode(norm, self.input(), dense.input_encodings())?;
        self.marks.end_norm(norm);
        let gates = Rows {
            span: b.gate,
            width,
            stride,
        };
        self.products([dense.first()], [gates])?;
        self.phase(Work::even(n, 50 + 2 * width as u64), move |_, range| {
            for t in range {
                // SAFETY: each token is one thread's. The weights' instruction set is the processor's.
                unsafe {
                    let gate = b.gate.part(t * stride, width);
                    add_bias(gate, dense.first().bias.as_deref());
                    let sum: f64 = gate.iter().map(|g| f64::from(*g)).sum();
                    let mean = sum / width as f64;
                    let squares = gate.iter().map(|g| (f64::from(*g) - mean).powi(2));
                    let deviation = (squares.sum::<f64>() / width as f64).sqrt();
                    let least = (mean + deviation * f64::from(cutoff)) as f32;
                    gate.iter_mut().for_each(|g| *g = (*g - least).max(0.0));
                    activate(dense.activation, isa, gate, None);
                }
            }
        })?;
        self.rows([&dense.up], move |me, _, range| {
            let mut start = range.start;
            while start < range.end {
                let rows = start..range.end.min(start + Matrix::ROW_QUANTUM);
                start = rows.end;
                // SAFETY: each thread has rows of its own, of all tokens, and its own block of up;
                // the input is complete.
                unsafe {
                    let (up, at, each) = match tokens.up {
                        Up::One(up) => (up, rows.start, 0),
                        Up::Blocks(up) => {
                            let blocks = me.index * tokens.input.max_tokens();
                            (up, blocks * Matrix::ROW_QUANTUM, Matrix::ROW_QUANTUM)
                        }
                    };
                    let view = row_view(&dense.up, rows.clone(), isa);
                    let (out, of_view) = (up.base().add(at), 0..rows.len());
                    view.mul(tokens.input, 0..n, of_view, out, each, &mut me.unpacked);
                    for t in 0..n {
                        let gate = b.gate.part(t * stride + rows.start, rows.len());
                        let up = up.part(at + t * each, rows.len());
                        add_bias(up, dense.up.bias.as_ref().map(|b| &b[rows.clone()]));
                        gate.iter_mut().zip(&*up).for_each(|(g, u)| *g *= u);
                    }
                }
            }
        })?;
        self.marks
            .end(Kind::GateUp, || product_bytes(dense.inner()));
        Ok(())
    }
}
