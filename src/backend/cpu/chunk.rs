//! Many tokens at once: a chunk goes through each layer as a whole, so that weights are read and
//! unpacked once for all its tokens. They are a run of one session's (see [`super::prefill`]) or
//! one each of several sessions' (see [`super::batch`]).

use super::attention::attend;
use super::elementwise::{add_bias, add_scaled};
use super::experts::{ExpertChunk, ExpertChunkSpace};
use super::forward::{deal_rows, logits};
use super::kv::{Half, KvCache};
use super::layer::{DenseLayer, FeedForwardLayer, Layer, NormWeights, Product};
use super::matmul::{Activations, Encodings, Isa, Matrix, View};
use super::pages::{Pages, Span};
use super::pool::{PoolTurn, Worker};
use super::rows::{Rows, tokens_per_block};
use super::token::{Buffers, embed, finish_logits, norm_all_heads, place, rope_tables};
use super::weights::{CpuWeights, Sizes, ThreadSpace};
use crate::backend::KvType;
use crate::error::Result;
use std::ops::Range;

/// Memory of a chunk. It becomes resident as far as chunks have tokens.
pub(super) struct ChunkSpace {
    x: Pages,
    /// Queries, then attention's output. After that, and with rows of `hidden`, what is added to
    /// the residual stream.
    q: Pages,
    k: Pages,
    v: Pages,
    gate: Pages,
    /// Of each thread, a block of rows of `up`.
    up: Pages,
    rope: Pages,
    input: Activations,
    experts: ExpertChunkSpace,
}

impl ChunkSpace {
    /// Memory for chunks of up to `tokens`. Errors: `OutOfMemory`.
    pub fn new(weights: &CpuWeights, tokens: usize) -> Result<ChunkSpace> {
        let s = &weights.sizes;
        let pages = |width: usize| Pages::floats(tokens.saturating_mul(width), "chunk scratch");
        Ok(ChunkSpace {
            x: pages(s.hidden)?,
            q: pages(s.q.max(s.hidden))?,
            k: pages(s.kv)?,
            v: pages(s.kv)?,
            gate: pages(s.n_ff)?,
            up: pages(Matrix::ROW_QUANTUM * weights.pool.threads())?,
            rope: pages(s.rope)?,
            input: Activations::new(tokens, s.cols(), s.encodings)?,
            experts: ExpertChunkSpace::new(&s.experts, weights.pool.threads(), tokens)?,
        })
    }

    /// Tokens in the largest chunk.
    pub fn tokens(&self) -> usize {
        self.input.max_tokens()
    }

    /// The parts of a chunk's memory.
    fn parts<'a>(&'a mut self, isa: Isa, sizes: &'a Sizes) -> Parts<'a> {
        let q = self.q.span();
        let buffers = Buffers {
            x: self.x.span(),
            q,
            k: self.k.span(),
            v: self.v.span(),
            y: q,
            gate: self.gate.span(),
            rope: self.rope.span(),
            sizes,
        };
        let up = self.up.span();
        Parts {
            buffers,
            up,
            input: &self.input,
            experts: self.experts.chunk(isa, up),
        }
    }
}

/// What of a chunk's memory the threads use.
struct Parts<'a> {
    buffers: Buffers<'a>,
    up: Span<'a>,
    input: &'a Activations,
    experts: ExpertChunk<'a>,
}

/// Bytes of a [`ChunkSpace`].
pub(super) fn chunk_bytes(s: &Sizes, threads: usize, tokens: usize) -> usize {
    let floats = s.hidden + s.q.max(s.hidden) + 2 * s.kv + s.n_ff + s.rope;
    let up = Matrix::ROW_QUANTUM * threads;
    let input = Activations::bytes_for(tokens, s.cols(), s.encodings);
    let experts = ExpertChunkSpace::bytes_for(&s.experts, threads, tokens);
    tokens * (floats + up) * size_of::<f32>() + input + experts
}

/// Where the tokens of a chunk have their place.
#[derive(Clone, Copy)]
pub(super) enum Places<'a> {
    /// In a session, from a position on.
    Run(&'a KvCache, usize),
    /// Each in a session of its own, at a position.
    Each(&'a [(&'a KvCache, usize)]),
}

impl<'a> Places<'a> {
    /// Cache and position of a token.
    fn at(&self, token: usize) -> (&'a KvCache, usize) {
        match *self {
            Places::Run(kv, position) => (kv, position + token),
            Places::Each(places) => places[token],
        }
    }
}

/// A chunk on its way through the layers.
pub(super) struct Chunk<'a> {
    weights: &'a CpuWeights,
    input: &'a Activations,
    buffers: Buffers<'a>,
    up: Span<'a>,
    experts: ExpertChunk<'a>,
    tokens: &'a [u32],
    places: Places<'a>,
}

impl<'a> Chunk<'a> {
    /// A chunk of at most as many tokens as the memory is for.
    pub fn new(
        weights: &'a CpuWeights,
        space: &'a mut ChunkSpace,
        tokens: &'a [u32],
        places: Places<'a>,
    ) -> Chunk<'a> {
        assert!(!tokens.is_empty() && tokens.len() <= space.tokens());
        let parts = space.parts(weights.isa, &weights.sizes);
        Chunk {
            weights,
            input: parts.input,
            buffers: parts.buffers,
            up: parts.up,
            experts: parts.experts,
            tokens,
            places,
        }
    }

    /// Runs the embeddings, a region of its own.
    pub fn embed(&self, turn: &PoolTurn) -> Result<()> {
        // SAFETY: the only phase of its region, and this thread's space.
        turn.run(|worker| unsafe { self.begin(worker, self.weights.threads.get(worker.index)) })
    }

    /// Runs a layer, a region of its own.
    pub fn run_layer(&self, turn: &PoolTurn, index: usize) -> Result<()> {
        turn.run(|worker| {
            // SAFETY: this thread's space, in a region.
            let me = unsafe { self.weights.threads.get(worker.index) };
            self.layer(worker, me, index);
        })
    }

    /// Runs the head of the last token.
    pub fn last_logits(&self, turn: &PoolTurn, out: &mut [f32]) -> Result<()> {
        let hidden = self.weights.hidden;
        let at = (self.tokens.len() - 1) * hidden;
        // SAFETY: no region runs, so nobody else uses the residual stream.
        let x = unsafe { self.buffers.x.part(at, hidden) };
        logits(self.weights, turn, x, out)
    }

    /// Runs the head of every token: `n_vocab` logits each.
    pub fn all_logits(&self, turn: &PoolTurn, out: Span) -> Result<()> {
        let (weights, n) = (self.weights, self.tokens.len());
        let (head, n_vocab) = (&weights.head, weights.n_vocab);
        turn.run(|worker| {
            // SAFETY: this thread's space, in a region. A barrier separates the phases; in each, a
            // thread writes only its own tokens or rows.
            unsafe {
                let me = weights.threads.get(worker.index);
                let x = (self.buffers.x, weights.hidden, weights.hidden);
                let norm = Some(&weights.final_norm);
                self.encode(worker, me, norm, x, head.matrix.encodings());
                worker.barrier();
                deal_rows(worker, &[head], self.grain_bytes(), |_, rows| {
                    let unpacked = &mut me.unpacked;
                    let base = out.base();
                    head.matrix
                        .mul(self.input, 0..n, rows.clone(), base, n_vocab, unpacked);
                    for t in 0..n {
                        let part = out.part(t * n_vocab + rows.start, rows.len());
                        finish_logits(weights, rows.clone(), part);
                    }
                });
            }
        })
    }

    /// Embeddings and rope tables.
    ///
    /// # Safety
    /// A phase of its own, in which all threads call it.
    unsafe fn begin(&self, worker: &Worker, me: &mut ThreadSpace) {
        let (weights, b) = (self.weights, &self.buffers);
        worker.ranges(self.tokens.len(), 8, |tokens| {
            for t in tokens {
                let (kv, position) = self.places.at(t);
                // SAFETY: each token is one thread's.
                unsafe {
                    let x = b.x.part(t * weights.hidden, weights.hidden);
                    embed(weights, (self.tokens[t], position), x, &mut me.row);
                    let tables = b.rope.part(t * b.sizes.rope, b.sizes.rope);
                    rope_tables(weights, kv.context(), position, tables);
                }
            }
        });
    }

    /// Encodes rows of `width` floats, `stride` apart, after a norm if there is one.
    ///
    /// # Safety
    /// A phase of its own, in which all threads call it.
    unsafe fn encode(
        &self,
        worker: &Worker,
        me: &mut ThreadSpace,
        norm: Option<&NormWeights>,
        (from, width, stride): (Span, usize, usize),
        enc: Encodings,
    ) {
        let isa = self.weights.isa;
        worker.ranges(self.tokens.len(), 4, |tokens| {
            for t in tokens {
                // SAFETY: the rows are only read, each token's input is one thread's.
                unsafe {
                    let mut row = &*from.part(t * stride, width);
                    if let Some(norm) = norm {
                        row = norm.apply(isa, row, &mut me.row);
                    }
                    self.input.set_row(isa, t, row, enc);
                }
            }
        });
    }

    /// Bytes of weights that a thread takes at a time.
    fn grain_bytes(&self) -> usize {
        (128 << 10) / self.tokens.len()
    }

    /// A product, added to the residual stream after its norm and times the scale, if there are any.
    ///
    /// # Safety
    /// A phase of its own, in which all threads call it.
    unsafe fn add_product(
        &self,
        worker: &Worker,
        me: &mut ThreadSpace,
        product: &Product,
        (norm, scale): (&Option<NormWeights>, f32),
    ) {
        let (n, hidden, b) = (self.tokens.len(), self.weights.hidden, &self.buffers);
        deal_rows(worker, &[product], self.grain_bytes(), |_, rows| {
            // SAFETY: each thread has rows of its own, of all tokens.
            unsafe {
                let (y, unpacked) = (b.y.base(), &mut me.unpacked);
                product
                    .matrix
                    .mul(self.input, 0..n, rows.clone(), y, hidden, unpacked);
                let bias = product.bias.as_ref().map(|b| &b[rows.clone()]);
                for t in 0..n {
                    let at = t * hidden + rows.start;
                    let (x, y) = (b.x.part(at, rows.len()), b.y.part(at, rows.len()));
                    match norm {
                        None => add_scaled(x, y, bias, scale),
                        Some(_) => add_bias(y, bias),
                    }
                }
            }
        });
        if norm.is_some() {
            worker.barrier();
            // SAFETY: `y` is complete and only read now.
            unsafe { self.add_outputs(worker, me, (norm, scale)) };
        }
    }

    /// The rows of `y`, added to the residual stream after their norm and times the scale, if there
    /// are any.
    ///
    /// # Safety
    /// A phase of its own, in which all threads call it.
    unsafe fn add_outputs(
        &self,
        worker: &Worker,
        me: &mut ThreadSpace,
        (norm, scale): (&Option<NormWeights>, f32),
    ) {
        let (hidden, isa, b) = (self.weights.hidden, self.weights.isa, &self.buffers);
        worker.ranges(self.tokens.len(), 8, |tokens| {
            for t in tokens {
                // SAFETY: each token is one thread's.
                unsafe {
                    let mut y = &*b.y.part(t * hidden, hidden);
                    if let Some(norm) = norm {
                        y = norm.apply(isa, y, &mut me.row);
                    }
                    add_scaled(b.x.part(t * hidden, hidden), y, None, scale);
                }
            }
        });
    }

    /// One layer, as a region.
    fn layer(&self, worker: &Worker, me: &mut ThreadSpace, index: usize) {
        let (weights, b, n) = (self.weights, &self.buffers, self.tokens.len());
        let (layer, s) = (&weights.layers[index], b.sizes);
        let x = (b.x, s.hidden, s.hidden);
        let scale = layer.residual_scale;
        // SAFETY: barriers separate the phases. In each, a thread writes only its own tokens,
        // rows or heads, and what others wrote before the barrier is only read.
        unsafe {
            if let (true, FeedForwardLayer::Dense(dense)) = (layer.parallel, &layer.feed_forward) {
                // Before anything is added to what both parts read.
                let norm = layer.feed_forward_norm.as_ref();
                let norm = norm.or(layer.mixer_norm.as_ref());
                self.encode(worker, me, norm, x, layer.feed_forward_encodings());
                worker.barrier();
                self.inner(worker, me, dense);
                worker.barrier();
            }
            let norm = layer.mixer_norm.as_ref();
            self.encode(worker, me, norm, x, layer.qkv_encodings());
            worker.barrier();
            let products = [&layer.q, &layer.k, &layer.v];
            let outs = [(b.q, s.q), (b.k, s.kv), (b.v, s.kv)];
            deal_rows(worker, &products, self.grain_bytes(), |i, rows| {
                let (out, stride) = outs[i];
                let unpacked = &mut me.unpacked;
                products[i]
                    .matrix
                    .mul(self.input, 0..n, rows, out.base(), stride, unpacked);
            });
            worker.barrier();
            self.place(worker, me, layer);
            worker.barrier();
            self.attention(worker, me, layer);
            worker.barrier();
            let q = (b.q, layer.n_heads * layer.head_dim, s.q);
            self.encode(worker, me, None, q, layer.output.matrix.encodings());
            worker.barrier();
            let post = (&layer.mixer_post_norm, scale);
            self.add_product(worker, me, &layer.output, post);
            worker.barrier();
            if !layer.parallel {
                let norm = layer.feed_forward_norm.as_ref();
                self.encode(worker, me, norm, x, layer.feed_forward_encodings());
                worker.barrier();
            }
            let post = (&layer.feed_forward_post_norm, scale);
            match &layer.feed_forward {
                FeedForwardLayer::Dense(dense) => {
                    if !layer.parallel {
                        self.inner(worker, me, dense);
                        worker.barrier();
                    }
                    let inner = (b.gate, dense.up.matrix.rows(), s.n_ff);
                    self.encode(worker, me, None, inner, dense.down.matrix.encodings());
                    worker.barrier();
                    self.add_product(worker, me, &dense.down, post);
                }
                FeedForwardLayer::Experts(experts) => {
                    self.experts.run(worker, me, experts, self.input, n, b.y);
                    self.add_outputs(worker, me, post);
                }
            }
        }
    }

    /// Puts keys and values into the caches.
    ///
    /// # Safety
    /// A phase of its own, in which all threads call it.
    unsafe fn place(&self, worker: &Worker, me: &mut ThreadSpace, layer: &Layer) {
        let (isa, b, row) = (self.weights.isa, &self.buffers, &mut me.row);
        worker.ranges(self.tokens.len(), 4, |tokens| {
            for t in tokens {
                let (kv, position) = self.places.at(t);
                // SAFETY: each token is one thread's.
                unsafe {
                    norm_all_heads(isa, layer, b, t, 0, row);
                    norm_all_heads(isa, layer, b, t, 1, row);
                    for h in 0..layer.n_kv_heads {
                        let at = (t, position);
                        match kv.kv_type() {
                            KvType::F16 => place::<Half>(isa, layer, kv, b, at, h, row),
                            // q8_0 was refused when the session was made.
                            KvType::F32 | KvType::Q8_0 => {
                                place::<f32>(isa, layer, kv, b, at, h, row)
                            }
                        }
                    }
                }
            }
        });
    }

    /// Attention from q to q, by KV head and block of tokens of a session.
    ///
    /// # Safety
    /// A phase of its own, in which all threads call it.
    unsafe fn attention(&self, worker: &Worker, me: &mut ThreadSpace, layer: &Layer) {
        let (n, heads) = (self.tokens.len(), layer.n_kv_heads);
        match self.places {
            Places::Run(_, position) => {
                let block = tokens_per_block(layer.group());
                let first = position / block;
                let blocks = (position + n - 1) / block + 1 - first;
                worker.ranges(heads * blocks, 1, |tasks| {
                    for task in tasks {
                        let (h, i) = (task / blocks, first + task % blocks);
                        let from = (i * block).max(position) - position;
                        let to = ((i + 1) * block).min(position + n) - position;
                        // SAFETY: each group of a token is one thread's.
                        unsafe { self.attend(me, layer, h, from..to) };
                    }
                });
            }
            Places::Each(_) => worker.ranges(heads * n, 1, |tasks| {
                for task in tasks {
                    let (t, h) = (task / heads, task % heads);
                    // SAFETY: as above.
                    unsafe { self.attend(me, layer, h, t..t + 1) };
                }
            }),
        }
    }

    /// Attention of a KV head's group for consecutive tokens of a session.
    ///
    /// # Safety
    /// Nobody else uses the group's part of q of these tokens, or writes what they see of the cache.
    unsafe fn attend(
        &self,
        me: &mut ThreadSpace,
        layer: &Layer,
        head: usize,
        tokens: Range<usize>,
    ) {
        let (isa, dim, group) = (self.weights.isa, layer.head_dim, layer.group());
        let stride = self.buffers.sizes.q;
        let (kv, position) = self.places.at(tokens.start);
        let at = tokens.start * stride + head * group * dim;
        let scratch = &mut me.attention;
        // SAFETY: the caller's promise. The output replaces the queries after the last of them was
        // read.
        unsafe {
            let out = self.buffers.q.base().add(at);
            let rows = Rows {
                queries: out,
                stride,
                group,
                tokens: tokens.len(),
                position,
                scores: layer.scores(head),
            };
            match kv.kv_type() {
                KvType::F16 => attend(isa, &rows, kv.head::<Half>(layer.index, head), out, scratch),
                // q8_0 was refused when the session was made.
                KvType::F32 | KvType::Q8_0 => {
                    attend(isa, &rows, kv.head::<f32>(layer.index, head), out, scratch)
                }
            }
        }
    }

    /// The first products of a feed-forward, activated, in `gate`.
    ///
    /// # Safety
    /// A phase of its own, in which all threads call it.
    unsafe fn inner(&self, worker: &Worker, me: &mut ThreadSpace, dense: &DenseLayer) {
        const BLOCK: usize = Matrix::ROW_QUANTUM;
        let (n, b, isa) = (self.tokens.len(), &self.buffers, self.weights.isa);
        let (stride, mine) = (b.sizes.n_ff, worker.index * (self.up_len() * BLOCK));
        let (first, grain) = (dense.first(), self.grain_bytes());
        deal_rows(worker, &[first], grain, |_, range| {
            for start in range.clone().step_by(BLOCK) {
                let rows = start..(start + BLOCK).min(range.end);
                let unpacked = &mut me.unpacked;
                // SAFETY: each thread has rows of its own of all tokens, and its own block of up.
                unsafe {
                    let out = b.gate.base();
                    first
                        .matrix
                        .mul(self.input, 0..n, rows.clone(), out, stride, unpacked);
                    if dense.gate.is_some() {
                        let block = self.up.part(mine, n * BLOCK).as_mut_ptr();
                        let up = row_view(&dense.up, rows.clone(), isa);
                        up.mul(self.input, 0..n, 0..rows.len(), block, BLOCK, unpacked);
                    }
                    for t in 0..n {
                        let out = b.gate.part(t * stride + rows.start, rows.len());
                        let up = || self.up.part(mine + t * BLOCK, rows.len());
                        let up = dense.gate.is_some().then(up);
                        dense.activate(isa, rows.clone(), out, up);
                    }
                }
            }
        });
    }

    /// Tokens in a thread's block of `up`.
    fn up_len(&self) -> usize {
        self.input.max_tokens()
    }
}

/// Some rows of a product.
fn row_view(product: &Product, rows: Range<usize>, isa: Isa) -> View<'_> {
    let tensor = &product.tensor;
    let row_bytes = tensor.row_bytes();
    let bytes = &tensor.bytes()[rows.start * row_bytes..rows.end * row_bytes];
    match View::new(tensor.ty, rows.len(), tensor.row_len(), bytes, isa) {
        Some(view) => view,
        None => unreachable!("whole rows of a tensor"),
    }
}
