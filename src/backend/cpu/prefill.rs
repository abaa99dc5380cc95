//! The forward pass of many tokens at once: a chunk goes through each layer as a whole, so that
//! weights are read and unpacked once for all its tokens.
//!
//! A session gives up the pool between layers if others wait for it.

use super::attention::{Rows, attend, tokens_per_block};
use super::elementwise::{rms_norm, rope_table};
use super::forward::{Buffers, activate, add_rows, deal_rows, logits, place};
use super::kv::{Element, Half, KvCache};
use super::matmul::{Activations, Encodings, Matrix, View};
use super::pages::{Pages, Span};
use super::pool::Worker;
use super::weights::{CpuWeights, Layer, NormWeights, Product, ThreadSpace};
use crate::backend::KvType;
use crate::error::{Result, fail};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Most tokens in a chunk.
const MAX_CHUNK: usize = 512;
/// Fewest, whatever their memory.
const MIN_CHUNK: usize = 16;
/// Memory for a chunk that is fine for every model.
const SMALL_BYTES: usize = 8 << 20;
/// A chunk of a larger model may take this fraction of its weights.
const WEIGHTS_SHARE: usize = 40;

/// Memory of a chunk. It becomes resident as far as chunks have tokens.
pub(super) struct PrefillSpace {
    /// Tokens in the largest chunk.
    tokens: usize,
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
}

impl PrefillSpace {
    fn new(weights: &CpuWeights) -> Result<PrefillSpace> {
        let s = &weights.sizes;
        let encoded =
            s.cols() * (4 * usize::from(s.encodings.float) + 2 * usize::from(s.encodings.q8));
        let floats = s.hidden + s.q.max(s.hidden) + 2 * s.kv + s.n_ff + s.rope;
        let per_token = 4 * floats + encoded;
        let budget = SMALL_BYTES.max(weights.matrix_bytes() / WEIGHTS_SHARE);
        let tokens = (budget / per_token / 16 * 16).clamp(MIN_CHUNK, MAX_CHUNK);
        let pages = |width: usize| Pages::floats(tokens.saturating_mul(width), "prefill scratch");
        Ok(PrefillSpace {
            tokens,
            x: pages(s.hidden)?,
            q: pages(s.q.max(s.hidden))?,
            k: pages(s.kv)?,
            v: pages(s.kv)?,
            gate: pages(s.n_ff)?,
            up: pages(Matrix::ROW_QUANTUM * weights.pool.threads())?,
            rope: pages(s.rope)?,
            input: Activations::new(tokens, s.cols(), s.encodings)?,
        })
    }

    /// Bytes reserved.
    pub fn bytes(&self) -> usize {
        let pages = [
            &self.x, &self.q, &self.k, &self.v, &self.gate, &self.up, &self.rope,
        ];
        pages.iter().map(|p| p.bytes()).sum()
    }
}

/// A chunk on its way through the layers.
struct Chunk<'a> {
    weights: &'a CpuWeights,
    kv: &'a KvCache,
    input: &'a Activations,
    buffers: Buffers<'a>,
    up: Span<'a>,
    tokens: &'a [u32],
    /// Of the first token.
    position: usize,
}

impl Chunk<'_> {
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
                        rope_table(rope, self.position + t, b.rope.part(at, len));
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
    fn layer<E: Element>(&self, worker: &Worker, me: &mut ThreadSpace, index: usize) {
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
            self.place::<E>(worker, index, layer);
            worker.barrier();
            self.attention::<E>(worker, me, index, layer);
            worker.barrier();
            let q = (b.q, layer.n_heads * layer.head_dim, s.q);
            self.encode(worker, me, None, q, layer.output.matrix.encodings());
            worker.barrier();
            self.add_product(worker, me, &layer.output);
            worker.barrier();
            let norm = Some(&layer.feed_forward_norm);
            self.encode(worker, me, norm, x, layer.gate_up_encodings());
            worker.barrier();
            self.gate_up(worker, me, layer);
            worker.barrier();
            let gate = (b.gate, layer.gate.matrix.rows(), s.n_ff);
            self.encode(worker, me, None, gate, layer.down.matrix.encodings());
            worker.barrier();
            self.add_product(worker, me, &layer.down);
        }
    }

    /// Puts keys and values into the cache.
    ///
    /// # Safety
    /// A phase of its own, in which all threads call it.
    unsafe fn place<E: Element>(&self, worker: &Worker, index: usize, layer: &Layer) {
        let weights = self.weights;
        let pairing = weights.ropes[layer.rope].pairing;
        worker.ranges(self.tokens.len(), 4, |tokens| {
            for t in tokens {
                for h in 0..layer.n_kv_heads {
                    let at = (t, self.position + t);
                    // SAFETY: each token is one thread's.
                    unsafe {
                        place::<E>(
                            weights.isa,
                            (index, layer),
                            pairing,
                            self.kv,
                            &self.buffers,
                            at,
                            h,
                        );
                    }
                }
            }
        });
    }

    /// Attention from q to q, by KV head and block of tokens.
    ///
    /// # Safety
    /// A phase of its own, in which all threads call it.
    unsafe fn attention<E: Element>(
        &self,
        worker: &Worker,
        me: &mut ThreadSpace,
        index: usize,
        layer: &Layer,
    ) {
        let (dim, group, n) = (layer.head_dim, layer.group(), self.tokens.len());
        let (b, stride) = (&self.buffers, self.buffers.sizes.q);
        let block = tokens_per_block(group);
        let first = self.position / block;
        let blocks = (self.position + n - 1) / block + 1 - first;
        worker.ranges(layer.n_kv_heads * blocks, 1, |tasks| {
            for task in tasks {
                let (h, i) = (task / blocks, first + task % blocks);
                let from = (i * block).max(self.position) - self.position;
                let to = ((i + 1) * block).min(self.position + n) - self.position;
                let at = from * stride + h * group * dim;
                // SAFETY: each group of a token is one thread's. Its output replaces the queries
                // after the last of them was read.
                unsafe {
                    let rows = Rows {
                        queries: b.q.base().add(at),
                        stride,
                        group,
                        tokens: to - from,
                        position: self.position + from,
                    };
                    let head = self.kv.head::<E>(index, h);
                    let out = b.q.base().add(at);
                    attend(self.weights.isa, &rows, head, out, &mut me.attention);
                }
            }
        });
    }

    /// Gate and up, activated, in `gate`.
    ///
    /// # Safety
    /// A phase of its own, in which all threads call it.
    unsafe fn gate_up(&self, worker: &Worker, me: &mut ThreadSpace, layer: &Layer) {
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

/// Appends `tokens` from `position` on, and writes the logits that follow the last one.
///
/// Errors: `Interrupted` (the flag is looked at between layers), `OutOfMemory` for the first
/// chunk's memory, `Internal`. Then the logits are as they were.
pub(super) fn prefill(
    weights: &CpuWeights,
    kv: &KvCache,
    position: usize,
    tokens: &[u32],
    out: &mut [f32],
    interrupt: &AtomicBool,
) -> Result<()> {
    let mut rest = tokens;
    let mut position = position;
    while !rest.is_empty() {
        let _turn = weights.prefill_turns.take(interrupt)?;
        let mut space = weights.prefill.lock().unwrap_or_else(|e| e.into_inner());
        let space = match &mut *space {
            Some(space) => space,
            none => none.insert(PrefillSpace::new(weights)?),
        };
        let (chunk, later) = rest.split_at(rest.len().min(space.tokens));
        let last = later.is_empty().then_some(&mut *out);
        run_chunk(weights, kv, position, chunk, space, last, interrupt)?;
        position += chunk.len();
        rest = later;
    }
    Ok(())
}

/// One chunk, and the logits if it is the last one.
fn run_chunk(
    weights: &CpuWeights,
    kv: &KvCache,
    position: usize,
    tokens: &[u32],
    space: &mut PrefillSpace,
    out: Option<&mut [f32]>,
    interrupt: &AtomicBool,
) -> Result<()> {
    let q = space.q.span();
    let chunk = Chunk {
        weights,
        kv,
        input: &space.input,
        buffers: Buffers {
            x: space.x.span(),
            q,
            k: space.k.span(),
            v: space.v.span(),
            y: q,
            gate: space.gate.span(),
            rope: space.rope.span(),
            sizes: &weights.sizes,
        },
        up: space.up.span(),
        tokens,
        position,
    };
    let mut turn = weights.pool.turn(interrupt)?;
    // SAFETY: the only phase of its region.
    turn.run(|worker| unsafe { chunk.begin(worker) })?;
    for index in 0..weights.layers.len() {
        if interrupt.load(Relaxed) {
            fail!(
                Interrupted,
                "interrupted at position {position}, layer {index}"
            );
        }
        if turn.is_wanted() {
            drop(turn);
            turn = weights.pool.turn(interrupt)?;
        }
        turn.run(|worker| {
            // SAFETY: this thread's space, in a region.
            let me = unsafe { weights.threads.get(worker.index) };
            match kv.kv_type() {
                KvType::F16 => chunk.layer::<Half>(worker, me, index),
                // q8_0 was refused when the session was made.
                KvType::F32 | KvType::Q8_0 => chunk.layer::<f32>(worker, me, index),
            }
        })?;
    }
    let Some(out) = out else { return Ok(()) };
    let at = (tokens.len() - 1) * weights.hidden;
    // SAFETY: no region runs, so nobody else uses the residual stream.
    let x = unsafe { chunk.buffers.x.part(at, weights.hidden) };
    logits(weights, &turn, x, out)
}
