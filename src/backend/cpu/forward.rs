//! The forward pass of one token.
//!
//! A decode step is one region of the pool with five barriers a layer. What is cheap and needed by
//! all threads (norms, encoding of a product's input) each thread does for itself: that costs less
//! than a barrier. The functions that handle one token ([`super::token`]) are shared with
//! [`super::chunk`], so both give the same bits.

use super::attention::{attend, attend_segment, join_segments, partial_len};
use super::elementwise::{add_bias, add_scaled};
use super::experts::{ExpertBuffers, ExpertLayer, ExpertSpace, ExpertStep};
use super::kv::{Element, Half, KvCache, SEGMENT};
use super::layer::{DenseLayer, FeedForwardLayer, Layer, NormWeights, Product};
use super::matmul::{Encodings, Matrix};
use super::pages::{Pages, Span};
use super::pool::{PoolTurn, Worker};
use super::profile::{Clock, Marks, attention_bytes, embedding_bytes, norm_bytes, product_bytes};
use super::rows::Rows;
use super::token::{Buffers, embed, finish_logits, norm_all_heads, place, rope_tables};
use super::weights::{CpuWeights, Sizes, ThreadSpace};
use crate::backend::{KvType, Work};
use crate::error::{Result, fail, try_vec};
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
    unsafe fn norm_input(
        &self,
        worker: &Worker,
        me: &mut ThreadSpace,
        norm: &Option<NormWeights>,
        enc: Encodings,
    ) {
        let isa = self.weights.isa;
        // SAFETY: the caller's promise; the row and the input are this thread's.
        unsafe {
            let mut x = &*self.buffers.x.part(0, self.weights.hidden);
            if let Some(norm) = norm {
                x = norm.apply(isa, x, &mut me.row);
            }
            me.input.set_row(isa, 0, x, enc);
        }
        self.marks.end(worker, Work::Norm, || norm_bytes(norm));
    }

    /// This thread's share of a product, added to the residual stream after its norm and times the
    /// scale, if there are any. Between barriers.
    ///
    /// # Safety
    /// All threads call it. Nobody else uses `y` (which takes the product) or the residual stream.
    unsafe fn add_product(
        &self,
        worker: &Worker,
        me: &mut ThreadSpace,
        product: &Product,
        (norm, scale): (&Option<NormWeights>, f32),
    ) {
        let (y, x) = (self.buffers.y, self.buffers.x);
        deal_rows(worker, &[product], GRAIN_BYTES, |_, rows| {
            // SAFETY: each thread has rows of its own.
            unsafe {
                product
                    .matrix
                    .mul(&me.input, 0..1, rows.clone(), y.base(), 0, &mut me.unpacked);
                let y = y.part(rows.start, rows.len());
                let bias = product.bias.as_ref().map(|b| &b[rows.clone()]);
                match norm {
                    None => add_scaled(x.part(rows.start, rows.len()), y, bias, scale),
                    Some(_) => add_bias(y, bias),
                }
            }
        });
        if let Some(norm) = norm {
            worker.barrier();
            // SAFETY: `y` is complete and only read now.
            unsafe { self.add_normed(worker, me, norm, scale) };
        }
    }

    /// This thread's share of the norm of `y`, added to the residual stream.
    ///
    /// # Safety
    /// All threads call it. Nobody writes `y` or else uses the residual stream.
    unsafe fn add_normed(
        &self,
        worker: &Worker,
        me: &mut ThreadSpace,
        norm: &NormWeights,
        scale: f32,
    ) {
        let (hidden, isa) = (self.weights.hidden, self.weights.isa);
        // SAFETY: the caller's promise; each thread has elements of its own.
        unsafe {
            let row = norm.apply(isa, self.buffers.y.part(0, hidden), &mut me.row);
            let share = worker.share(hidden);
            let x = self.buffers.x.part(share.start, share.len());
            add_scaled(x, &row[share], None, scale);
        }
    }

    /// One layer. Ends before the barrier that completes the residual stream.
    fn layer<E: Element>(&self, worker: &Worker, me: &mut ThreadSpace, index: usize) {
        let (weights, b) = (self.weights, &self.buffers);
        let (isa, layer) = (weights.isa, &weights.layers[index]);
        let scale = layer.residual_scale;
        // SAFETY: barriers separate the phases. In each, a thread writes only its own rows or
        // heads, and what others wrote before the barrier is only read.
        unsafe {
            if let (true, FeedForwardLayer::Dense(dense)) = (layer.parallel, &layer.feed_forward) {
                // Before anything is added to what both parts read.
                let norm = match &layer.feed_forward_norm {
                    None => &layer.mixer_norm,
                    norm => norm,
                };
                self.norm_input(worker, me, norm, layer.feed_forward_encodings());
                self.inner(worker, me, dense);
            }
            self.norm_input(worker, me, &layer.mixer_norm, layer.qkv_encodings());
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
            if layer.norms_all_heads() {
                worker.ranges(2, 1, |parts| {
                    for part in parts {
                        norm_all_heads(isa, layer, b, 0, part, &mut me.row);
                    }
                });
                worker.barrier();
            }
            self.attention::<E>(worker, me, layer);
            worker.barrier();
            let cache = || attention_bytes(self.kv, index, self.position);
            self.marks.end(worker, Work::Attention, cache);
            let width = layer.n_heads * layer.head_dim;
            let enc = layer.output.matrix.encodings();
            me.input.set_row(isa, 0, b.q.part(0, width), enc);
            let post = (&layer.mixer_post_norm, scale);
            self.add_product(worker, me, &layer.output, post);
            worker.barrier();
            let output = || product_bytes([&layer.output]);
            self.marks.end(worker, Work::Output, output);
            let post = (&layer.feed_forward_post_norm, scale);
            match &layer.feed_forward {
                FeedForwardLayer::Dense(dense) => {
                    if !layer.parallel {
                        let enc = layer.feed_forward_encodings();
                        self.norm_input(worker, me, &layer.feed_forward_norm, enc);
                        self.inner(worker, me, dense);
                        worker.barrier();
                        let inner = || product_bytes(dense.inner());
                        self.marks.end(worker, Work::GateUp, inner);
                    }
                    let width = dense.up.matrix.rows();
                    let enc = dense.down.matrix.encodings();
                    me.input.set_row(isa, 0, b.gate.part(0, width), enc);
                    self.add_product(worker, me, &dense.down, post);
                }
                FeedForwardLayer::Experts(experts) => {
                    let enc = layer.feed_forward_encodings();
                    self.norm_input(worker, me, &layer.feed_forward_norm, enc);
                    self.experts(worker, me, experts, post);
                }
            }
        }
    }

    /// The first products of a feed-forward for all tokens, activated, in `gate`.
    ///
    /// # Safety
    /// Between barriers; all threads call it. Nobody else uses `gate` and `up`.
    unsafe fn inner(&self, worker: &Worker, me: &mut ThreadSpace, dense: &DenseLayer) {
        let (isa, input) = (self.weights.isa, &me.input);
        deal_rows(worker, &[dense.first()], GRAIN_BYTES / 2, |_, rows| {
            let outs = [self.buffers.gate, self.up];
            // SAFETY: each thread has rows of its own.
            unsafe {
                for (product, out) in dense.inner().zip(outs) {
                    let (matrix, base) = (&product.matrix, out.base());
                    matrix.mul(input, 0..1, rows.clone(), base, 0, &mut me.unpacked);
                }
                let [first, up] = outs.map(|out| out.part(rows.start, rows.len()));
                let up = dense.gate.is_some().then_some(up);
                dense.activate(isa, rows, first, up);
            }
        });
    }

    /// A mixture of experts, added to the residual stream.
    ///
    /// # Safety
    /// Between barriers; all threads call it.
    unsafe fn experts(
        &self,
        worker: &Worker,
        me: &mut ThreadSpace,
        experts: &ExpertLayer,
        (norm, scale): (&Option<NormWeights>, f32),
    ) {
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
                if norm.is_none() {
                    let y = y.part(rows.start, rows.len());
                    add_scaled(x.part(rows.start, rows.len()), y, None, scale);
                }
            });
            if let Some(norm) = norm {
                worker.barrier();
                self.add_normed(worker, me, norm, scale);
            }
        }
    }

    /// Attention from q, k and v to q.
    ///
    /// # Safety
    /// Between barriers; all threads call it.
    unsafe fn attention<E: Element>(&self, worker: &Worker, me: &mut ThreadSpace, layer: &Layer) {
        let (b, kv, isa) = (&self.buffers, self.kv, self.weights.isa);
        let (dim, group) = (layer.head_dim, layer.group());
        let rows = |kv_head: usize| Rows {
            queries: b.q.base().wrapping_add(kv_head * group * dim),
            stride: group * dim,
            group,
            tokens: 1,
            position: self.position,
            scores: layer.scores(kv_head),
        };
        let all = rows(0).segments();
        let (first, segments) = (*all.start(), all.count());
        let split = segments > 1 && splits(layer.n_kv_heads, worker.count);
        worker.ranges(layer.n_kv_heads, 1, |heads| {
            for h in heads {
                // SAFETY: each head is one thread's. A group's output replaces its queries after
                // the last of them was read.
                unsafe {
                    let at = (0, self.position);
                    place::<E>(isa, layer, kv, b, at, h, &mut me.row);
                    if !split {
                        let out = b.q.base().add(h * group * dim);
                        attend(
                            isa,
                            &rows(h),
                            kv.head::<E>(layer.index, h),
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
                    let (out, head) = (out.as_mut_ptr(), kv.head::<E>(layer.index, h));
                    attend_segment(isa, &rows(h), head, first + s, out, &mut me.attention);
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
                    let sink = layer.scores(h / group).sinks.map(|s| s[h % group]);
                    join_segments(isa, partials, stride, segments, dim, sink, out);
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
    embed(weights, (token, position), &mut space.x, &mut space.y);
    rope_tables(weights, kv.context(), position, &mut space.rope);
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
        let bytes = product_bytes([&weights.head]) + norm_bytes([&weights.final_norm]);
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
        let x = norm.apply(isa, x.part(0, weights.hidden), &mut me.row);
        me.input.set_row(isa, 0, x, head.matrix.encodings());
        deal_rows(worker, &[head], GRAIN_BYTES, |_, rows| {
            let out = logits.base();
            head.matrix
                .mul(&me.input, 0..1, rows.clone(), out, 0, &mut me.unpacked);
            let part = logits.part(rows.start, rows.len());
            finish_logits(weights, rows, part);
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
