//! The forward pass of one token.
//!
//! A decode step is one region of the pool with five barriers a layer. What is cheap and needed by
//! all threads (norms, encoding of a product's input) each thread does for itself: that costs less
//! than a barrier. The functions that handle one token are shared with [`super::chunk`], so both
//! give the same bits.

use super::attention::{Rows, attend, attend_segment, join_segments, partial_len};
use super::elementwise::{add, add_bias, rms_norm, rope_table, rotate, silu_mul};
use super::experts::{ExpertBuffers, ExpertLayer, ExpertSpace, ExpertStep};
use super::kv::{Element, Half, KvCache, SEGMENT, put};
use super::matmul::{Encodings, Isa, Matrix};
use super::pages::{Pages, Span};
use super::pool::{PoolTurn, Worker};
use super::profile::{Clock, Marks, attention_bytes, embedding_bytes, norm_bytes, product_bytes};
use super::weights::{
    CpuWeights, DenseLayer, FeedForwardLayer, Layer, NormWeights, Product, Sizes, ThreadSpace,
};
use crate::backend::{KvType, Work};
use crate::error::{Result, fail, try_vec};
use crate::model::Activation;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Bytes of weights that a thread takes at a time, at least. Matrices of which each thread has less
/// are split evenly and stay with the same thread in every step, in its cache.
const GRAIN_BYTES: usize = 128 << 10;

/// Memory of a decode step, one token wide.
pub(super) struct DecodeSpace {
    /// The residual stream, `hidden`.
    pub x: Vec<f32>,
    /// Queries, then attention's output.
    q: Vec<f32>,
    /// What is added to the residual stream, `hidden`.
    y: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    rope: Vec<f32>,
    experts: ExpertSpace,
    /// Attention's results per segment, where the heads do not divide evenly among the threads.
    partials: Pages,
}

impl DecodeSpace {
    pub fn new(sizes: &Sizes) -> Result<DecodeSpace> {
        let floats = |len| try_vec(len, 0.0, "scratch");
        Ok(DecodeSpace {
            x: floats(sizes.hidden)?,
            q: floats(sizes.q)?,
            y: floats(sizes.hidden)?,
            k: floats(sizes.kv)?,
            v: floats(sizes.kv)?,
            gate: floats(sizes.n_ff)?,
            up: floats(sizes.n_ff)?,
            rope: floats(sizes.rope)?,
            experts: ExpertSpace::new(&sizes.experts)?,
            partials: Pages::new(0, "")?,
        })
    }

    /// Bytes of [`DecodeSpace::new`].
    pub fn bytes_for(s: &Sizes) -> usize {
        let floats = 2 * s.hidden + s.q + 2 * s.kv + 2 * s.n_ff + s.rope;
        floats * size_of::<f32>() + ExpertSpace::bytes_for(&s.experts)
    }

    /// Provides for sessions of up to `context` positions.
    pub fn reserve(&mut self, weights: &CpuWeights, context: usize) -> Result<()> {
        let threads = weights.pool.threads();
        if weights.layers.iter().any(|l| splits(l.n_kv_heads, threads)) {
            let len = partials_len(&weights.sizes, context);
            if len.saturating_mul(size_of::<f32>()) > self.partials.bytes() {
                self.partials = Pages::floats(len, "attention scratch")?;
            }
        }
        Ok(())
    }
}

/// Floats of attention's results per segment in a session of `context` positions.
pub(super) fn partials_len(sizes: &Sizes, context: usize) -> usize {
    context.div_ceil(SEGMENT).saturating_mul(sizes.partial)
}

/// Whether a decode step splits attention by segments, too, because there are fewer heads than
/// threads or they would leave many idle.
pub(super) fn splits(n_kv_heads: usize, threads: usize) -> bool {
    let heads = n_kv_heads;
    heads * 10 < heads.div_ceil(threads) * threads * 9
}

/// The buffers of a step or chunk: rows of tokens, a stride apart.
#[derive(Clone, Copy)]
pub(super) struct Buffers<'a> {
    pub x: Span<'a>,
    pub q: Span<'a>,
    pub k: Span<'a>,
    pub v: Span<'a>,
    pub y: Span<'a>,
    pub gate: Span<'a>,
    pub rope: Span<'a>,
    pub sizes: &'a Sizes,
}

/// Deals the rows of matrices with equal inputs to the threads: `f(matrix, rows)`.
pub(super) fn deal_rows(
    worker: &Worker,
    products: &[&Product],
    grain_bytes: usize,
    mut f: impl FnMut(usize, Range<usize>),
) {
    const QUANTUM: usize = Matrix::ROW_QUANTUM;
    let quanta = |p: &Product| p.matrix.rows().div_ceil(QUANTUM);
    let total: usize = products.iter().map(|p| quanta(p)).sum();
    let bytes: usize = products.iter().map(|p| p.tensor.bytes().len()).sum();
    let grain = (grain_bytes * total / bytes.max(1)).max(1);
    worker.ranges(total, grain, |range| {
        let mut first = 0;
        for (i, product) in products.iter().enumerate() {
            let last = first + quanta(product);
            let (from, to) = (range.start.max(first), range.end.min(last));
            if from < to {
                let rows = (to - first) * QUANTUM;
                f(i, (from - first) * QUANTUM..rows.min(product.matrix.rows()));
            }
            first = last;
        }
    });
}

/// Puts one token's new key and value of a KV head into the cache and readies the queries of its
/// group: biases, rotation, scale.
///
/// # Safety
/// The processor has `isa`. Nobody else uses this token's q, k and v of the group, nor this
/// position of the KV head.
pub(super) unsafe fn place<E: Element>(
    isa: Isa,
    (index, layer): (usize, &Layer),
    pairing: crate::model::RopePairing,
    kv: &KvCache,
    buffers: &Buffers,
    (token, position): (usize, usize),
    kv_head: usize,
) {
    let dim = layer.head_dim;
    let s = buffers.sizes;
    let bias = |p: &'_ Product, at: usize| p.bias.as_ref().map(|b| b[at..at + dim].as_ptr());
    // SAFETY: exclusive by the caller's promise, but for the table, which nobody writes.
    unsafe {
        let slice = |p: Option<*const f32>| p.map(|p| std::slice::from_raw_parts(p, dim));
        let table = buffers
            .rope
            .part(token * s.rope + layer.rope_at.start, layer.rope_at.len());
        for h in kv_head * layer.group()..(kv_head + 1) * layer.group() {
            let q = buffers.q.part(token * s.q + h * dim, dim);
            add_bias(q, slice(bias(&layer.q, h * dim)));
            rotate(isa, pairing, table, q);
            q.iter_mut().for_each(|q| *q *= layer.scale);
        }
        let at = token * s.kv + kv_head * dim;
        let (k, v) = (buffers.k.part(at, dim), buffers.v.part(at, dim));
        add_bias(k, slice(bias(&layer.k, kv_head * dim)));
        add_bias(v, slice(bias(&layer.v, kv_head * dim)));
        rotate(isa, pairing, table, k);
        put(isa, kv.head::<E>(index, kv_head), position, k, v);
    }
}

/// `gate = activation(gate + bias) * (up + bias)` for the rows `rows` of a layer.
///
/// # Safety
/// The processor has `isa`.
pub(super) unsafe fn activate(
    isa: Isa,
    layer: &DenseLayer,
    rows: Range<usize>,
    gate: &mut [f32],
    up: &mut [f32],
) {
    add_bias(gate, layer.gate.bias.as_ref().map(|b| &b[rows.clone()]));
    add_bias(up, layer.up.bias.as_ref().map(|b| &b[rows]));
    match layer.activation {
        // SAFETY: the caller's promise.
        Activation::Silu => unsafe { silu_mul(isa, gate, up) },
        other => unreachable!("{other:?} is refused at load"),
    }
}

/// Adds rows of a product, and their biases, to the residual stream.
pub(super) fn add_rows(x: &mut [f32], y: &[f32], product: &Product, rows: Range<usize>) {
    add(x, y, product.bias.as_ref().map(|b| &b[rows]));
}

/// A decode step in the making, as each thread sees it.
struct DecodeStep<'a> {
    weights: &'a CpuWeights,
    kv: &'a KvCache,
    buffers: Buffers<'a>,
    up: Span<'a>,
    experts: ExpertBuffers<'a>,
    partials: Span<'a>,
    position: usize,
    marks: Marks<'a>,
}

impl DecodeStep<'_> {
    /// Normalizes the residual stream and encodes it, for this thread alone.
    ///
    /// # Safety
    /// Nobody writes the residual stream until the next barrier.
    unsafe fn norm_input(&self, me: &mut ThreadSpace, norm: &NormWeights, enc: Encodings) {
        let isa = self.weights.isa;
        // SAFETY: the caller's promise; the row and the input are this thread's.
        unsafe {
            let x = self.buffers.x.part(0, norm.weight.len());
            rms_norm(isa, x, &norm.weight, norm.eps, &mut me.row);
            me.input.set_row(isa, 0, &me.row, enc);
        }
    }

    /// This thread's share of a product, added to the residual stream. Between barriers.
    ///
    /// # Safety
    /// Nobody else uses `y` (which takes the product) or the residual stream.
    unsafe fn add_product(&self, worker: &Worker, me: &mut ThreadSpace, product: &Product) {
        deal_rows(worker, &[product], GRAIN_BYTES, |_, rows| {
            let (y, x) = (self.buffers.y, self.buffers.x);
            // SAFETY: each thread has rows of its own.
            unsafe {
                product
                    .matrix
                    .mul(&me.input, 0..1, rows.clone(), y.base(), 0, &mut me.unpacked);
                let y = y.part(rows.start, rows.len());
                add_rows(x.part(rows.start, rows.len()), y, product, rows);
            }
        });
    }

    /// One layer. Ends before the barrier that completes the residual stream.
    fn layer<E: Element>(&self, worker: &Worker, me: &mut ThreadSpace, index: usize) {
        let (weights, b) = (self.weights, &self.buffers);
        let (isa, layer) = (weights.isa, &weights.layers[index]);
        // SAFETY: barriers separate the phases. In each, a thread writes only its own rows or
        // heads, and what others wrote before the barrier is only read.
        unsafe {
            self.norm_input(me, &layer.attention_norm, layer.qkv_encodings());
            let norm = || norm_bytes(&layer.attention_norm);
            self.marks.end(worker, Work::Norm, norm);
            let products = [&layer.q, &layer.k, &layer.v];
            let outs = [b.q, b.k, b.v];
            deal_rows(worker, &products, GRAIN_BYTES, |i, rows| {
                let out = outs[i].base();
                products[i]
                    .matrix
                    .mul(&me.input, 0..1, rows, out, 0, &mut me.unpacked);
            });
            worker.barrier();
            self.marks
                .end(worker, Work::Qkv, || product_bytes(products));
            self.attention::<E>(worker, me, index);
            worker.barrier();
            let cache = || attention_bytes(self.kv, index, self.position);
            self.marks.end(worker, Work::Attention, cache);
            let width = layer.n_heads * layer.head_dim;
            let enc = layer.output.matrix.encodings();
            me.input.set_row(isa, 0, b.q.part(0, width), enc);
            self.add_product(worker, me, &layer.output);
            worker.barrier();
            let output = || product_bytes([&layer.output]);
            self.marks.end(worker, Work::Output, output);
            self.norm_input(me, &layer.feed_forward_norm, layer.feed_forward_encodings());
            let norm = || norm_bytes(&layer.feed_forward_norm);
            self.marks.end(worker, Work::Norm, norm);
            match &layer.feed_forward {
                FeedForwardLayer::Dense(dense) => self.dense(worker, me, dense),
                FeedForwardLayer::Experts(experts) => self.experts(worker, me, experts),
            }
        }
    }

    /// A feed-forward for all tokens, added to the residual stream.
    ///
    /// # Safety
    /// Between barriers; all threads call it.
    unsafe fn dense(&self, worker: &Worker, me: &mut ThreadSpace, dense: &DenseLayer) {
        let (b, isa) = (&self.buffers, self.weights.isa);
        // SAFETY: a barrier separates the phases; in each, a thread writes only its own rows.
        unsafe {
            deal_rows(worker, &[&dense.gate], GRAIN_BYTES / 2, |_, rows| {
                let (gate, up) = (b.gate, self.up);
                let input = &me.input;
                dense
                    .gate
                    .matrix
                    .mul(input, 0..1, rows.clone(), gate.base(), 0, &mut me.unpacked);
                dense
                    .up
                    .matrix
                    .mul(input, 0..1, rows.clone(), up.base(), 0, &mut me.unpacked);
                let gate = gate.part(rows.start, rows.len());
                activate(
                    isa,
                    dense,
                    rows.clone(),
                    gate,
                    up.part(rows.start, rows.len()),
                );
            });
            worker.barrier();
            let gate_up = || product_bytes([&dense.gate, &dense.up]);
            self.marks.end(worker, Work::GateUp, gate_up);
            let width = dense.gate.matrix.rows();
            let enc = dense.down.matrix.encodings();
            me.input.set_row(isa, 0, b.gate.part(0, width), enc);
            self.add_product(worker, me, &dense.down);
        }
    }

    /// A mixture of experts, added to the residual stream.
    ///
    /// # Safety
    /// Between barriers; all threads call it.
    unsafe fn experts(&self, worker: &Worker, me: &mut ThreadSpace, experts: &ExpertLayer) {
        let (x, y) = (self.buffers.x, self.buffers.y);
        let mut step = ExpertStep {
            isa: self.weights.isa,
            worker,
            buffers: self.experts,
            me: &mut me.experts,
            unpacked: &mut me.unpacked,
        };
        let half = || {
            let gate_up = || experts.bytes_per_token().0;
            self.marks.end(worker, Work::GateUp, gate_up);
        };
        // SAFETY: the caller's promise; the rows of a call of `finish` are this thread's.
        unsafe {
            step.run(experts, &me.input, y, half, |rows| {
                let y = y.part(rows.start, rows.len());
                add(x.part(rows.start, rows.len()), y, None);
            });
        }
    }

    /// Attention from q, k and v to q.
    ///
    /// # Safety
    /// Between barriers; all threads call it.
    unsafe fn attention<E: Element>(&self, worker: &Worker, me: &mut ThreadSpace, index: usize) {
        let (weights, b, kv) = (self.weights, &self.buffers, self.kv);
        let (isa, layer) = (weights.isa, &weights.layers[index]);
        let (dim, group) = (layer.head_dim, layer.group());
        let segments = self.position / SEGMENT + 1;
        let pairing = weights.ropes[layer.rope].pairing;
        let rows = |kv_head: usize| Rows {
            queries: b.q.base().wrapping_add(kv_head * group * dim),
            stride: group * dim,
            group,
            tokens: 1,
            position: self.position,
        };
        let split = segments > 1 && splits(layer.n_kv_heads, worker.count);
        worker.ranges(layer.n_kv_heads, 1, |heads| {
            for h in heads {
                // SAFETY: each head is one thread's. A group's output replaces its queries after
                // the last of them was read.
                unsafe {
                    place::<E>(isa, (index, layer), pairing, kv, b, (0, self.position), h);
                    if !split {
                        let out = b.q.base().add(h * group * dim);
                        attend(
                            isa,
                            &rows(h),
                            kv.head::<E>(index, h),
                            out,
                            &mut me.attention,
                        );
                    }
                }
            }
        });
        if !split {
            return;
        }
        worker.barrier();
        let width = partial_len(1, dim);
        let stride = layer.n_heads * width;
        worker.ranges(layer.n_kv_heads * segments, 1, |tasks| {
            for task in tasks {
                let (h, s) = (task / segments, task % segments);
                // SAFETY: each part of the partials is one thread's; queries are only read.
                unsafe {
                    let out = self
                        .partials
                        .part(s * stride + h * group * width, group * width);
                    let (out, head) = (out.as_mut_ptr(), kv.head::<E>(index, h));
                    attend_segment(isa, &rows(h), head, s, out, &mut me.attention);
                }
            }
        });
        worker.barrier();
        worker.ranges(layer.n_heads, 1, |heads| {
            for h in heads {
                // SAFETY: each head is one thread's; the partials were checked when written.
                unsafe {
                    let partials = self.partials.base().add(h * width);
                    let out = b.q.base().add(h * dim);
                    join_segments(isa, partials, stride, segments, dim, out);
                }
            }
        });
    }
}

/// Appends `token` at `position` and writes the logits that follow it. `clock` hears how long each
/// kind of work took, but for the choice of a token.
///
/// Errors: `Interrupted` (the flag is looked at in every layer), `Internal`. Then the logits are
/// as they were.
pub(super) fn decode(
    weights: &CpuWeights,
    kv: &KvCache,
    position: usize,
    token: u32,
    logits: &mut [f32],
    clock: Option<&Clock>,
    interrupt: &AtomicBool,
) -> Result<()> {
    let turn = weights.pool.turn(interrupt)?;
    let mut space = weights.decode.lock().unwrap_or_else(|e| e.into_inner());
    let space = &mut *space;
    weights.embedding.row(token as usize, &mut space.x);
    let mut at = 0;
    for rope in &weights.ropes {
        let len = 2 * rope.inv_freq.len();
        rope_table(rope, position, &mut space.rope[at..at + len]);
        at += len;
    }
    if let Some(clock) = clock {
        clock.end(Work::Embed, embedding_bytes(weights));
    }
    let stop = AtomicBool::new(false);
    let step = DecodeStep {
        weights,
        kv,
        buffers: Buffers {
            x: Span::new(&mut space.x),
            q: Span::new(&mut space.q),
            k: Span::new(&mut space.k),
            v: Span::new(&mut space.v),
            y: Span::new(&mut space.y),
            gate: Span::new(&mut space.gate),
            rope: Span::new(&mut space.rope),
            sizes: &weights.sizes,
        },
        up: Span::new(&mut space.up),
        experts: space.experts.buffers(),
        partials: space.partials.span(),
        position,
        marks: Marks(clock),
    };
    let logits = Span::new(logits);
    turn.run(|worker| {
        // SAFETY: this thread's space, in a region.
        let me = unsafe { weights.threads.get(worker.index) };
        for index in 0..weights.layers.len() {
            match kv.kv_type() {
                KvType::F16 => step.layer::<Half>(worker, me, index),
                // q8_0 was refused when the session was made.
                KvType::F32 | KvType::Q8_0 => step.layer::<f32>(worker, me, index),
            }
            // One thread decides for all; the next decision is several barriers away.
            if worker.index == 0 && interrupt.load(Relaxed) {
                stop.store(true, Relaxed);
            }
            worker.barrier();
            let down = || match &weights.layers[index].feed_forward {
                FeedForwardLayer::Dense(dense) => product_bytes([&dense.down]),
                FeedForwardLayer::Experts(experts) => experts.bytes_per_token().1,
            };
            step.marks.end(worker, Work::Down, down);
            if stop.load(Relaxed) {
                return;
            }
        }
        // SAFETY: the residual stream is complete; the logits are this call's.
        unsafe { head(weights, worker, me, step.buffers.x, logits) };
    })?;
    if stop.into_inner() {
        fail!(Interrupted, "interrupted at position {position}");
    }
    if let Some(clock) = clock {
        let bytes = product_bytes([&weights.head]) + norm_bytes(&weights.final_norm);
        clock.end(Work::Head, bytes);
    }
    Ok(())
}

/// Final norm and head, on all threads of a region.
///
/// # Safety
/// Nobody writes `x`, and nobody else uses the logits.
unsafe fn head(weights: &CpuWeights, worker: &Worker, me: &mut ThreadSpace, x: Span, logits: Span) {
    let (isa, norm, head) = (weights.isa, &weights.final_norm, &weights.head);
    // SAFETY: the caller's promise; each thread has rows of its own.
    unsafe {
        rms_norm(
            isa,
            x.part(0, weights.hidden),
            &norm.weight,
            norm.eps,
            &mut me.row,
        );
        me.input.set_row(isa, 0, &me.row, head.matrix.encodings());
        deal_rows(worker, &[head], GRAIN_BYTES, |_, rows| {
            let out = logits.base();
            head.matrix
                .mul(&me.input, 0..1, rows.clone(), out, 0, &mut me.unpacked);
            let bias = head.bias.as_ref().map(|b| &b[rows.clone()]);
            add_bias(logits.part(rows.start, rows.len()), bias);
        });
    }
}

/// The logits of the residual stream `x` of a token.
pub(super) fn logits(
    weights: &CpuWeights,
    turn: &PoolTurn,
    x: &mut [f32],
    logits: &mut [f32],
) -> Result<()> {
    let (x, logits) = (Span::new(x), Span::new(logits));
    turn.run(|worker| {
        // SAFETY: this thread's space, in a region; nobody writes x.
        unsafe {
            head(
                weights,
                worker,
                weights.threads.get(worker.index),
                x,
                logits,
            )
        };
    })
}
