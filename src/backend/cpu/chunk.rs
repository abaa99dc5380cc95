//! Many tokens at once: a chunk goes through each layer as a whole, so that weights are read and
//! unpacked once for all its tokens. They are a run of one session's (see [`super::prefill`]) or
//! one each of several sessions' (see [`super::batch`]).

use super::attention::{Rows, attend, tokens_per_block};
use super::elementwise::{add, add_bias, rms_norm, rope_table};
use super::experts::{ExpertChunk, ExpertChunkSpace};
use super::forward::{Buffers, activate, add_rows, deal_rows, logits, place};
use super::kv::{Half, KvCache};
use super::matmul::{Activations, Encodings, Isa, Matrix, View};
use super::pages::{Pages, Span};
use super::pool::{PoolTurn, Worker};
use super::weights::{
    CpuWeights, DenseLayer, FeedForwardLayer, Layer, NormWeights, Product, Sizes, ThreadSpace,
};
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
        // SAFETY: the only phase of its region.
        turn.run(|worker| unsafe { self.begin(worker) })
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
                        let bias = head.bias.as_ref().map(|b| &b[rows.clone()]);
                        add_bias(out.part(t * n_vocab + rows.start, rows.len()), bias);
                    }
                });
            }
        })
    }

    /// Embeddings and rope tables.
    ///
    /// # Safety
    /// A phase of its own, in which all threads call it.
    unsafe fn begin(&self, worker: &Worker) {
        let (weights, b) = (self.weights, &self.buffers);
        worker.ranges(self.tokens.len(), 8, |tokens| {
            for t in tokens {
                // SAFETY: each token is one thread's.
                unsafe {
                    let x = b.x.part(t * weights.hidden, weights.hidden);
                    weights.embedding.row(self.tokens[t] as usize, x);
                    let mut at = t * b.sizes.rope;
                    for rope in &weights.ropes {
                        let len = 2 * rope.inv_freq.len();
                        rope_table(rope, self.places.at(t).1, b.rope.part(at, len));
                        at += len;
                    }
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
                        rms_norm(isa, row, &norm.weight, norm.eps, &mut me.row);
                        row = &me.row;
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

    /// A product, added to the residual stream.
    ///
    /// # Safety
    /// A phase of its own, in which all threads call it.
    unsafe fn add_product(&self, worker: &Worker, me: &mut ThreadSpace, product: &Product) {
        let (n, hidden, b) = (self.tokens.len(), self.weights.hidden, &self.buffers);
        deal_rows(worker, &[product], self.grain_bytes(), |_, rows| {
            // SAFETY: each thread has rows of its own, of all tokens.
            unsafe {
                let (y, unpacked) = (b.y.base(), &mut me.unpacked);
                product
                    .matrix
                    .mul(self.input, 0..n, rows.clone(), y, hidden, unpacked);
                for t in 0..n {
                    let at = t * hidden + rows.start;
                    let (x, y) = (b.x.part(at, rows.len()), b.y.part(at, rows.len()));
                    add_rows(x, y, product, rows.clone());
                }
            }
        });
    }

    /// One layer, as a region.
    fn layer(&self, worker: &Worker, me: &mut ThreadSpace, index: usize) {
        let (weights, b, n) = (self.weights, &self.buffers, self.tokens.len());
        let (layer, s) = (&weights.layers[index], b.sizes);
        // SAFETY: barriers separate the phases. In each, a thread writes only its own tokens,
        // rows or heads, and what others wrote before the barrier is only read.
        unsafe {
            let x = (b.x, s.hidden, s.hidden);
            let norm = Some(&layer.attention_norm);
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
            self.place(worker, index, layer);
            worker.barrier();
            self.attention(worker, me, index, layer);
            worker.barrier();
            let q = (b.q, layer.n_heads * layer.head_dim, s.q);
            self.encode(worker, me, None, q, layer.output.matrix.encodings());
            worker.barrier();
            self.add_product(worker, me, &layer.output);
            worker.barrier();
            let norm = Some(&layer.feed_forward_norm);
            self.encode(worker, me, norm, x, layer.feed_forward_encodings());
            worker.barrier();
            match &layer.feed_forward {
                FeedForwardLayer::Dense(dense) => {
                    self.gate_up(worker, me, dense);
                    worker.barrier();
                    let gate = (b.gate, dense.gate.matrix.rows(), s.n_ff);
                    self.encode(worker, me, None, gate, dense.down.matrix.encodings());
                    worker.barrier();
                    self.add_product(worker, me, &dense.down);
                }
                FeedForwardLayer::Experts(experts) => {
                    self.experts.run(worker, me, experts, self.input, n, b.y);
                    worker.ranges(n, 8, |tokens| {
                        let (at, len) = (tokens.start * s.hidden, tokens.len() * s.hidden);
                        add(b.x.part(at, len), b.y.part(at, len), None);
                    });
                }
            }
        }
    }

    /// Puts keys and values into the caches.
    ///
    /// # Safety
    /// A phase of its own, in which all threads call it.
    unsafe fn place(&self, worker: &Worker, index: usize, layer: &Layer) {
        let (weights, b) = (self.weights, &self.buffers);
        let (isa, pairing) = (weights.isa, weights.ropes[layer.rope].pairing);
        worker.ranges(self.tokens.len(), 4, |tokens| {
            for t in tokens {
                let (kv, position) = self.places.at(t);
                let (layer, at) = ((index, layer), (t, position));
                for h in 0..layer.1.n_kv_heads {
                    // SAFETY: each token is one thread's.
                    unsafe {
                        match kv.kv_type() {
                            KvType::F16 => place::<Half>(isa, layer, pairing, kv, b, at, h),
                            // q8_0 was refused when the session was made.
                            KvType::F32 | KvType::Q8_0 => {
                                place::<f32>(isa, layer, pairing, kv, b, at, h)
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
    unsafe fn attention(&self, worker: &Worker, me: &mut ThreadSpace, index: usize, layer: &Layer) {
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
                        unsafe { self.attend(me, (index, layer), h, from..to) };
                    }
                });
            }
            Places::Each(_) => worker.ranges(heads * n, 1, |tasks| {
                for task in tasks {
                    let (t, h) = (task / heads, task % heads);
                    // SAFETY: as above.
                    unsafe { self.attend(me, (index, layer), h, t..t + 1) };
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
        (index, layer): (usize, &Layer),
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
            };
            match kv.kv_type() {
                KvType::F16 => attend(isa, &rows, kv.head::<Half>(index, head), out, scratch),
                // q8_0 was refused when the session was made.
                KvType::F32 | KvType::Q8_0 => {
                    attend(isa, &rows, kv.head::<f32>(index, head), out, scratch)
                }
            }
        }
    }

    /// Gate and up, activated, in `gate`.
    ///
    /// # Safety
    /// A phase of its own, in which all threads call it.
    unsafe fn gate_up(&self, worker: &Worker, me: &mut ThreadSpace, layer: &DenseLayer) {
        const BLOCK: usize = Matrix::ROW_QUANTUM;
        let (n, b, isa) = (self.tokens.len(), &self.buffers, self.weights.isa);
        let stride = b.sizes.n_ff;
        let tensor = &layer.up.tensor;
        let row_bytes = tensor.row_bytes();
        let mine = worker.index * (self.up_len() * BLOCK);
        deal_rows(worker, &[&layer.gate], self.grain_bytes(), |_, range| {
            for start in range.clone().step_by(BLOCK) {
                let rows = start..(start + BLOCK).min(range.end);
                let bytes = &tensor.bytes()[rows.start * row_bytes..rows.end * row_bytes];
                let Some(up) = View::new(tensor.ty, rows.len(), tensor.row_len(), bytes, isa)
                else {
                    unreachable!("whole rows of a tensor")
                };
                // SAFETY: each thread has rows of its own of all tokens, and its own block of up.
                unsafe {
                    let block = self.up.part(mine, n * BLOCK).as_mut_ptr();
                    let gate = b.gate.base();
                    let unpacked = &mut me.unpacked;
                    layer
                        .gate
                        .matrix
                        .mul(self.input, 0..n, rows.clone(), gate, stride, unpacked);
                    up.mul(self.input, 0..n, 0..rows.len(), block, BLOCK, unpacked);
                    for t in 0..n {
                        let gate = b.gate.part(t * stride + rows.start, rows.len());
                        let up = self.up.part(mine + t * BLOCK, rows.len());
                        activate(isa, layer, rows.clone(), gate, up);
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
