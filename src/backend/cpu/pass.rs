//! The forward pass through the blocks: one walk of a block's parts, for one token (see
//! [`super::forward`]) and for many (see [`super::chunk`]) alike.
//!
//! The thread that has the pool's turn walks, and runs a phase (see [`super::phase`]) for whatever
//! is worth sharing. Between phases it alone computes. The bits of a result depend neither on the
//! threads nor on how many tokens go together.

use super::adapters::Adapters;
use super::elementwise::{add_bias, add_scaled, gelu_tanh_mul, scale_by};
use super::experts::Mixture;
use super::kv::KvCache;
use super::latent_layer::Latents;
use super::layer::{
    DenseLayer, FeedForwardLayer, InputLayer, Layer, MixerLayer, NormWeights, Product,
};
use super::matmul::{Activations, Encodings, Isa, Matrix, View};
use super::pages::Span;
use super::pool::{PoolTurn, Work};
use super::profile::{Marks, product_bytes};
use super::texts::Texts;
use super::token::{Buffers, finish_logits};
use super::weights::{CpuWeights, ThreadSpace};
use crate::backend::{HiddenStates, Work as Kind};
use crate::error::Result;
use std::ops::Range;

const QUANTUM: usize = Matrix::ROW_QUANTUM;

/// Where tokens have their place.
#[derive(Clone, Copy)]
pub(super) enum Places<'a> {
    /// In a session, from a position on.
    Run(&'a KvCache, usize),
    /// Each in a session of its own, at a position.
    Each(&'a [(&'a KvCache, usize)]),
    /// In whole texts, without sessions.
    Texts(&'a Texts),
    /// Somewhere that the layers do not know: they have no mixers.
    Unknown,
}

impl<'a> Places<'a> {
    /// Cache and position of a token.
    pub fn at(&self, token: usize) -> (&'a KvCache, usize) {
        match *self {
            Places::Run(kv, position) => (kv, position + token),
            Places::Each(places) => places[token],
            Places::Texts(_) => unreachable!("mixers that need a session were refused"),
            Places::Unknown => unreachable!("mixers are elsewhere"),
        }
    }

    /// The position of a token, and the context that its rotations are for.
    pub fn position(&self, token: usize) -> (usize, usize) {
        match self {
            Places::Texts(texts) => (texts.position(token), texts.max_tokens()),
            _ => {
                let (kv, position) = self.at(token);
                (position, kv.context())
            }
        }
    }
}

/// Tokens on their way through the blocks, with their memory, as all threads see them.
#[derive(Clone, Copy)]
pub(super) struct Tokens<'a> {
    pub weights: &'a CpuWeights,
    /// How many.
    pub count: usize,
    pub places: Places<'a>,
    /// What the sessions add to products.
    pub adapters: Option<Adapters<'a>>,
    pub buffers: Buffers<'a>,
    /// Encoded inputs of the present product.
    pub input: &'a Activations,
    /// Results of `up`: all of one token's, or a block of rows of each thread.
    pub up: Up<'a>,
    pub experts: Mixture<'a>,
    /// Of latent attention.
    pub latents: Latents<'a>,
    /// For one token: attention's results per segment.
    pub partials: Option<Span<'a>>,
}

/// Where a feed-forward's second product goes before the activation.
#[derive(Clone, Copy)]
pub(super) enum Up<'a> {
    /// As wide as the first one's results.
    One(Span<'a>),
    /// [`Matrix::ROW_QUANTUM`] floats of each thread and token.
    Blocks(Span<'a>),
}

impl Tokens<'_> {
    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.weights.isa
    }

    /// Keeps the input of products that the adapters of a token's session may add to.
    ///
    /// # Safety
    /// No other thread uses this token's.
    pub unsafe fn keep(&self, token: usize, row: &[f32]) {
        if let Some(adapters) = &self.adapters {
            // SAFETY: by contract, no other thread uses this token's.
            unsafe { adapters.keep(self.isa(), token, row) }
        }
    }

    /// Adds what the adapters of a token's session have to rows of the product at an index among those of
    /// [`lora_down`](Pass::lora_down).
    ///
    /// # Safety
    /// In a phase after `lora_down`; `y` gives rows that are this thread's.
    pub unsafe fn lora_up<'y>(
        &self,
        token: usize,
        product: (usize, &Product),
        rows: Range<usize>,
        y: impl FnOnce() -> &'y mut [f32],
    ) {
        if let Some(adapters) = &self.adapters {
            // SAFETY: by contract, `lora_down` is complete, and `y` gives rows that are this thread's;
            // the weights' instruction set is the processor's.
            unsafe { adapters.lora_up(self.isa(), token, product, rows, y()) }
        }
    }
}

/// Rows of floats, `stride` apart.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub span: Span<'a>,
    pub width: usize,
    pub stride: usize,
}

impl<'a> Rows<'a> {
    /// What a product makes of each token.
    pub fn of(span: Span<'a>, product: &Product, stride: usize) -> Rows<'a> {
        Rows {
            span,
            width: product.matrix.rows(),
            stride,
        }
    }
}

/// What becomes of a part's output before it is added to the residual stream.
#[derive(Clone, Copy)]
pub(super) struct Post<'a> {
    pub norm: Option<&'a NormWeights>,
    pub scale: f32,
}

/// The walk, on the thread that leads.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a, 't> {
    pub tokens: &'a Tokens<'a>,
    pub turn: &'a PoolTurn<'t>,
    pub marks: Marks<'a>,
    /// Whether parts read what the residual stream was when it was held, not what it is.
    pub held: bool,
}

/// Nanoseconds that one thread takes for products of weights of so many bytes with so many tokens:
/// for few it streams the weights, for many it multiplies.
pub(super) fn product_cost(bytes: usize, tokens: usize) -> u64 {
    (bytes as u64 * (7 + tokens as u64)).div_ceil(128)
}

fn quanta(product: &Product) -> usize {
    product.matrix.rows().div_ceil(QUANTUM)
}

impl Pass<'_, '_> {
    /// One block, its parts in order.
    pub fn block(&self, layer: &Layer) -> Result<()> {
        let scale = layer.residual_scale;
        let mixer_norm = layer.mixer_norm.as_ref();
        let norm = layer.feed_forward_norm.as_ref();
        let mixer_post = Post {
            norm: layer.mixer_post_norm.as_ref(),
            scale,
        };
        let post = Post {
            norm: layer.feed_forward_post_norm.as_ref(),
            scale,
        };
        if let (true, FeedForwardLayer::Dense(dense)) = (layer.parallel, &layer.feed_forward) {
            // Before anything is added to what both parts read.
            self.inner(norm.or(mixer_norm), dense)?;
        }
        let beside = layer.parallel && matches!(layer.feed_forward, FeedForwardLayer::Experts(_));
        if beside {
            self.hold()?;
        }
        if let Some(streams) = &layer.streams {
            streams.predict(self, mixer_norm)?;
        }
        match &layer.mixer {
            MixerLayer::Attention(attention) => attention.run(self, mixer_norm, mixer_post)?,
            MixerLayer::Latent(latent) => latent.run(self, mixer_norm, mixer_post)?,
            MixerLayer::ShortConv(conv) => conv.run(self, mixer_norm, mixer_post)?,
            MixerLayer::DeltaNet(net) => net.run(self, mixer_norm, mixer_post)?,
            MixerLayer::Mamba1(mamba) => mamba.run(self, mixer_norm, mixer_post)?,
            MixerLayer::Mamba2(mamba) => mamba.run(self, mixer_norm, mixer_post)?,
            MixerLayer::SideBySide(both) => {
                self.hold()?;
                both.0.run(self, mixer_norm, mixer_post)?;
                let held = Pass {
                    held: true,
                    ..*self
                };
                both.1.run(&held, mixer_norm, mixer_post)?;
            }
            MixerLayer::Absent => {}
        }
        if let Some(norm) = &layer.mixer_sum_norm {
            self.norm_residual(norm)?;
        }
        if let Some(streams) = &layer.streams {
            streams.join(self)?;
        }
        match &layer.feed_forward {
            FeedForwardLayer::Dense(dense) => {
                match layer.streams.as_ref().and_then(|s| s.cutoff) {
                    Some(cutoff) => self.inner_sparse(norm, dense, cutoff)?,
                    None if !layer.parallel => self.inner(norm, dense)?,
                    None => {}
                }
                let b = &self.tokens.buffers;
                let inner = Rows {
                    span: b.gate,
                    width: dense.up.matrix.rows(),
                    stride: b.sizes.n_ff,
                };
                let norm = dense.inner_norm.as_ref();
                self.add_normed_product(norm, inner, &dense.down, post)?;
                let down = || product_bytes([&dense.down]);
                self.marks.end(Kind::Down, down);
            }
            FeedForwardLayer::Experts(experts) => {
                let reader = Pass {
                    held: beside,
                    ..*self
                };
                let norm = match beside {
                    true => norm.or(mixer_norm),
                    false => norm,
                };
                let from = reader.input();
                self.encode(norm, from, experts.input_encodings)?;
                self.marks.end_norm(norm);
                self.tokens.experts.score(self, experts)?;
                self.tokens.experts.run_scored(self, experts)?;
                self.add_outputs(post)?;
                self.marks.end(Kind::Down, || experts.bytes_per_token().1);
            }
            FeedForwardLayer::Both(both) => both.run(self, norm, post)?,
            FeedForwardLayer::Latent(latent) => latent.run(self, norm, post)?,
            FeedForwardLayer::None => {}
        }
        if let Some(norm) = &layer.feed_forward_sum_norm {
            self.norm_residual(norm)?;
        }
        match (&layer.streams, &layer.input) {
            (Some(streams), input) => {
                streams.correct(self)?;
                if let Some(input) = input {
                    self.add_input(input, true)?;
                    streams.spread(self)?;
                }
            }
            (None, Some(input)) => self.add_input(input, false)?,
            (None, None) => {}
        }
        if layer.output_scale != 1.0 {
            self.scale_residual(layer.output_scale)?;
        }
        Ok(())
    }

    /// Works the inputs of all blocks out for tokens whose embeddings are the residual stream.
    pub fn inputs(&self, ids: &[u32]) -> Result<()> {
        let tokens = self.tokens;
        let Some(inputs) = &tokens.weights.inputs else {
            return Ok(());
        };
        let b = &tokens.buffers;
        let width = b.sizes.inputs;
        let rows = Rows {
            span: b.inputs,
            width,
            stride: width,
        };
        let projection = &inputs.projection;
        self.encode(None, self.residual(), projection.matrix.encodings())?;
        self.products([projection], [rows])?;
        let work = Work::even(tokens.count, 100 + 2 * width as u64);
        self.phase(work, move |me, range| {
            for t in range {
                let (embedding, scratch) = me.row.split_at_mut(width);
                // A table may end before the vocabulary does.
                let row = match (ids[t] as usize) < inputs.embedding.rows() {
                    true => ids[t] as usize,
                    false => 0,
                };
                inputs.embedding.row(row, embedding);
                // SAFETY: each token is one thread's.
                let all = unsafe { b.inputs.part(t * width, width) };
                add_bias(all, projection.bias.as_deref());
                scale_by(all, inputs.projection_scale);
                let len = inputs.norm.len();
                for (own, embedding) in all.chunks_mut(len).zip(embedding.chunks(len)) {
                    // SAFETY: the weights' instruction set is the processor's.
                    unsafe { inputs.norm.apply_in_place(tokens.isa(), own, scratch) };
                    add_scaled(own, embedding, None, inputs.embedding_scale);
                    scale_by(own, inputs.scale);
                }
            }
        })?;
        self.marks.end(Kind::Embed, || product_bytes([projection]));
        Ok(())
    }

    /// Adds what a block makes of its own input, or leaves it `alone` as the residual stream.
    fn add_input(&self, input: &InputLayer, alone: bool) -> Result<()> {
        let (tokens, b) = (self.tokens, &self.tokens.buffers);
        let (len, stride, width) = (input.gate.matrix.rows(), b.sizes.n_ff, b.sizes.inputs);
        let gate = Rows {
            span: b.gate,
            width: len,
            stride,
        };
        self.encode(None, self.residual(), input.gate.matrix.encodings())?;
        self.products([&input.gate], [gate])?;
        let work = Work::even(tokens.count, 50 + len as u64);
        self.phase(work, move |_, range| {
            for t in range {
                // SAFETY: each token is one thread's; nobody writes the inputs. The weights'
                // instruction set is the processor's.
                unsafe {
                    let gate = b.gate.part(t * stride, len);
                    add_bias(gate, input.gate.bias.as_deref());
                    let own = &*b.inputs.part(t * width + input.index * len, len);
                    gelu_tanh_mul(tokens.isa(), gate, Some(own));
                    if alone {
                        b.x.part(t * b.sizes.hidden, b.sizes.hidden).fill(0.0);
                    }
                }
            }
        })?;
        let post = Post {
            norm: input.post_norm.as_ref(),
            scale: 1.0,
        };
        self.add_product(gate, &input.projection, post)?;
        let bytes = || product_bytes([&input.gate, &input.projection]);
        self.marks.end(Kind::Down, bytes);
        Ok(())
    }

    /// Norms the residual stream.
    pub fn norm_residual(&self, norm: &NormWeights) -> Result<()> {
        let (tokens, b) = (self.tokens, &self.tokens.buffers);
        let hidden = b.sizes.hidden;
        let work = Work::even(tokens.count, 50 + hidden as u64 / 4);
        self.phase(work, move |me, range| {
            for t in range {
                // SAFETY: each token is one thread's. The weights' instruction set is the processor's.
                unsafe {
                    let x = b.x.part(t * hidden, hidden);
                    norm.apply_in_place(tokens.isa(), x, &mut me.row);
                }
            }
        })
    }

    /// Scales the residual stream.
    fn scale_residual(&self, scale: f32) -> Result<()> {
        let (tokens, b) = (self.tokens, &self.tokens.buffers);
        let hidden = b.sizes.hidden;
        let work = Work::even(tokens.count, 20 + hidden as u64 / 8);
        self.phase(work, move |_, range| {
            for t in range {
                // SAFETY: each token is one thread's.
                scale_by(unsafe { b.x.part(t * hidden, hidden) }, scale);
            }
        })
    }

    /// Hands out what the residual stream of some tokens, the first and how many, is before a layer, if that is wanted. They are
    /// positions from `position` on.
    pub fn keep_before(
        &self,
        layer: usize,
        states: &HiddenStates,
        position: usize,
        (first, count): (usize, usize),
    ) {
        let (b, hidden) = (&self.tokens.buffers, self.tokens.weights.hidden);
        if layer == 0 && !states.places().is_empty() {
            states.make_room(position, count);
        }
        for (i, place) in states.places().iter().enumerate() {
            if *place == layer {
                states.put_place((position, count), i, |t, state| {
                    // SAFETY: no phase runs, so nobody else uses the residual stream.
                    state.copy_from_slice(unsafe { b.x.part((first + t) * hidden, hidden) });
                    scale_by(state, self.tokens.weights.residual_unit);
                });
            }
        }
    }

    /// Hands the hidden states of some tokens out, the first and how many, whose layers have run. They are positions from `position` on.
    pub fn keep(&self, states: &HiddenStates, position: usize, (first, count): (usize, usize)) {
        let (weights, x) = (self.tokens.weights, self.tokens.buffers.x);
        if !states.places().is_empty() {
            self.keep_before(weights.layers.len(), states, position, (first, count));
            return states.evaluated(position, count);
        }
        states.put(position, count, |i, state| {
            let at = (first + i) * weights.hidden;
            // SAFETY: no phase runs, so nobody else uses the residual stream. The weights' instruction set is the processor's.
            unsafe {
                let x = x.part(at, weights.hidden);
                weights.final_norm.apply(weights.isa, x, state);
            }
        });
    }

    /// The residual stream.
    pub fn residual(&self) -> Rows<'_> {
        let b = &self.tokens.buffers;
        Rows {
            span: b.x,
            width: b.sizes.hidden,
            stride: b.sizes.hidden,
        }
    }

    /// What a part reads: the residual stream, or what it was when it was held.
    pub fn input(&self) -> Rows<'_> {
        let b = &self.tokens.buffers;
        Rows {
            span: if self.held { b.held } else { b.x },
            ..self.residual()
        }
    }

    /// Keeps what the residual stream is.
    pub fn hold(&self) -> Result<()> {
        let (tokens, b) = (self.tokens, &self.tokens.buffers);
        let hidden = b.sizes.hidden;
        let work = Work::even(tokens.count, 20 + hidden as u64 / 8);
        self.phase(work, move |_, range| {
            for t in range {
                // SAFETY: each token is one thread's; nobody writes the residual stream.
                unsafe {
                    let x = &*b.x.part(t * hidden, hidden);
                    b.held.part(t * hidden, hidden).copy_from_slice(x);
                }
            }
        })
    }

    /// Makes the residual stream zero.
    pub fn clear_residual(&self) -> Result<()> {
        let (tokens, b) = (self.tokens, &self.tokens.buffers);
        let hidden = b.sizes.hidden;
        let work = Work::even(tokens.count, 20 + hidden as u64 / 8);
        self.phase(work, move |_, range| {
            for t in range {
                // SAFETY: each token is one thread's.
                unsafe { b.x.part(t * hidden, hidden).fill(0.0) };
            }
        })
    }

    /// Runs a phase, range by range.
    pub fn phase(
        &self,
        work: Work,
        f: impl Fn(&mut ThreadSpace, Range<usize>) + Sync,
    ) -> Result<()> {
        let weights = self.tokens.weights;
        // Moved, as below: helpers find everything in one place.
        self.turn.run(work, move |worker| {
            // SAFETY: this thread's space, in a phase.
            let me = unsafe { weights.threads.get(worker.index) };
            while let Some(range) = worker.next() {
                f(me, range);
            }
        })
    }

    /// Runs a phase over the rows of matrices: `f(thread, matrix, rows)`, with rows that begin at
    /// multiples of [`Matrix::ROW_QUANTUM`].
    pub fn rows<'p>(
        &self,
        products: impl AsRef<[&'p Product]> + Sync,
        f: impl Fn(&mut ThreadSpace, usize, Range<usize>) + Sync,
    ) -> Result<()> {
        let all = || products.as_ref().iter();
        let total: usize = all().map(|p| quanta(p)).sum();
        let bytes: usize = all().map(|p| p.bytes()).sum();
        let each = product_cost(bytes / total.max(1), self.tokens.count);
        self.phase(Work::even(total, each), move |me, range| {
            let mut first = 0;
            for (i, product) in products.as_ref().iter().enumerate() {
                let last = first + quanta(product);
                let (from, to) = (range.start.max(first), range.end.min(last));
                if from < to {
                    let rows = (to - first) * QUANTUM;
                    f(
                        me,
                        i,
                        (from - first) * QUANTUM..rows.min(product.matrix.rows()),
                    );
                }
                first = last;
            }
        })
    }

    /// Encodes rows of all tokens as the input of products, after a norm if there is one.
    pub fn encode(&self, norm: Option<&NormWeights>, from: Rows, enc: Encodings) -> Result<()> {
        let (tokens, isa) = (self.tokens, self.tokens.isa());
        let work = Work::even(tokens.count, 50 + from.width as u64 / 4);
        self.phase(work, move |me, range| {
            for t in range {
                // SAFETY: nobody writes the rows in this phase; a token's input is one thread's.
                unsafe {
                    let mut row = &*from.span.part(t * from.stride, from.width);
                    if let Some(norm) = norm {
                        row = norm.apply(isa, row, &mut me.row);
                    }
                    tokens.input.set_row(isa, t, row, enc);
                    tokens.keep(t, row);
                }
            }
        })
    }

    /// Readies what the sessions' adapters add to these products of the encoded input.
    pub fn lora_down(&self, products: &[&Product]) -> Result<()> {
        match &self.tokens.adapters {
            Some(adapters) => adapters.lora_down(self, products),
            None => Ok(()),
        }
    }

    /// The products of the encoded input, `outs[i]` becomes that of `products[i]`, without biases.
    pub fn products<const N: usize>(&self, products: [&Product; N], outs: [Rows; N]) -> Result<()> {
        let tokens = self.tokens;
        self.lora_down(&products)?;
        self.rows(products, move |me, i, rows| {
            let (out, stride) = (outs[i].span.base(), outs[i].stride);
            let matrix = &products[i].matrix;
            // SAFETY: each thread has rows of its own, of all tokens; the input is complete.
            unsafe {
                let n = 0..tokens.count;
                matrix.mul(tokens.input, n, rows.clone(), out, stride, &mut me.unpacked);
                for t in 0..tokens.count {
                    let y = || outs[i].span.part(t * stride + rows.start, rows.len());
                    tokens.lora_up(t, (i, products[i]), rows.clone(), y);
                }
            }
        })
    }

    /// The product of some rows and its bias, added to the residual stream.
    pub fn add_product(&self, from: Rows, product: &Product, post: Post) -> Result<()> {
        self.add_normed_product(None, from, product, post)
    }

    /// The same of the norm of the rows, if there is one.
    pub fn add_normed_product(
        &self,
        norm: Option<&NormWeights>,
        from: Rows,
        product: &Product,
        post: Post,
    ) -> Result<()> {
        self.encode(norm, from, product.matrix.encodings())?;
        let (tokens, b) = (self.tokens, &self.tokens.buffers);
        let (n, hidden) = (tokens.count, b.sizes.hidden);
        self.lora_down(&[product])?;
        self.rows([product], move |me, _, rows| {
            // SAFETY: each thread has rows of its own, of all tokens; the input is complete.
            unsafe {
                let (y, unpacked) = (b.y.base(), &mut me.unpacked);
                let matrix = &product.matrix;
                matrix.mul(tokens.input, 0..n, rows.clone(), y, hidden, unpacked);
                let bias = product.bias.as_ref().map(|b| &b[rows.clone()]);
                for t in 0..n {
                    let at = t * hidden + rows.start;
                    let (x, y) = (b.x.part(at, rows.len()), b.y.part(at, rows.len()));
                    tokens.lora_up(t, (0, product), rows.clone(), || &mut *y);
                    match post.norm {
                        None => add_scaled(x, y, bias, post.scale),
                        Some(_) => add_bias(y, bias),
                    }
                }
            }
        })?;
        match post.norm {
            None => Ok(()),
            Some(_) => self.add_outputs(post),
        }
    }

    /// What is in `y`, added to the residual stream.
    pub fn add_outputs(&self, post: Post) -> Result<()> {
        let (tokens, b) = (self.tokens, &self.tokens.buffers);
        let hidden = b.sizes.hidden;
        let work = Work::even(tokens.count, 50 + hidden as u64 / 4);
        self.phase(work, move |me, range| {
            for t in range {
                // SAFETY: each token is one thread's.
                unsafe {
                    let mut y = &*b.y.part(t * hidden, hidden);
                    if let Some(norm) = post.norm {
                        y = norm.apply(tokens.isa(), y, &mut me.row);
                    }
                    add_scaled(b.x.part(t * hidden, hidden), y, None, post.scale);
                }
            }
        })
    }

    /// The first products of a feed-forward, activated, in `gate`.
    pub fn inner(&self, norm: Option<&NormWeights>, dense: &DenseLayer) -> Result<()> {
        self.encode(norm, self.residual(), dense.input_encodings())?;
        self.marks.end_norm(norm);
        let (tokens, b) = (self.tokens, &self.tokens.buffers);
        let (isa, n, stride) = (tokens.isa(), tokens.count, b.sizes.n_ff);
        let first = &dense.first().matrix;
        // As many rows of both as there is room for.
        let block = match (&tokens.up, &dense.gate) {
            (Up::Blocks(_), Some(_)) => QUANTUM,
            _ => usize::MAX,
        };
        match &dense.gate {
            Some(gate) => self.lora_down(&[gate, &dense.up])?,
            None => self.lora_down(&[&dense.up])?,
        }
        // Both have the same shape.
        let total = quanta(dense.first());
        let bytes: usize = dense.inner().map(Product::bytes).sum();
        let work = Work::even(total, product_cost(bytes / total.max(1), n));
        self.phase(work, move |me, range| {
            let rows = first.rows();
            let range = range.start * QUANTUM..(range.end * QUANTUM).min(rows);
            let mut start = range.start;
            while start < range.end {
                let rows = start..range.end.min(start.saturating_add(block));
                start = rows.end;
                let unpacked = &mut me.unpacked;
                // SAFETY: each thread has rows of its own, of all tokens, and its own block of up;
                // the input is complete.
                unsafe {
                    let out = b.gate.base();
                    first.mul(tokens.input, 0..n, rows.clone(), out, stride, unpacked);
                    let (up, at, each) = match tokens.up {
                        Up::One(up) => (up, rows.start, 0),
                        Up::Blocks(up) => {
                            let blocks = me.index * tokens.input.max_tokens();
                            (up, blocks * QUANTUM, QUANTUM)
                        }
                    };
                    if dense.gate.is_some() {
                        let view = row_view(&dense.up, rows.clone(), isa);
                        let (out, of_view) = (up.base().add(at), 0..rows.len());
                        view.mul(tokens.input, 0..n, of_view, out, each, unpacked);
                    }
                    for t in 0..n {
                        let gate = b.gate.part(t * stride + rows.start, rows.len());
                        let up = || up.part(at + t * each, rows.len());
                        tokens.lora_up(t, (0, dense.first()), rows.clone(), || &mut *gate);
                        let up = dense.gate.is_some().then(up);
                        let up = up.map(|up| {
                            tokens.lora_up(t, (1, &dense.up), rows.clone(), || &mut *up);
                            up
                        });
                        dense.activate(isa, rows.clone(), gate, up);
                    }
                }
            }
        })?;
        let inner = || product_bytes(dense.inner());
        self.marks.end(Kind::GateUp, inner);
        Ok(())
    }

    /// Final norm and head of every token: `n_vocab` logits each.
    pub fn head(&self, from: Rows, out: Span) -> Result<()> {
        let (tokens, weights) = (self.tokens, self.tokens.weights);
        let (head, n_vocab) = (&weights.head, weights.n_vocab);
        self.encode(Some(&weights.final_norm), from, head.matrix.encodings())?;
        self.lora_down(&[head])?;
        self.rows([head], move |me, _, rows| {
            // SAFETY: each thread has rows of its own, of all tokens; the input is complete.
            unsafe {
                let (n, base) = (tokens.count, out.base());
                let unpacked = &mut me.unpacked;
                let matrix = &head.matrix;
                matrix.mul(tokens.input, 0..n, rows.clone(), base, n_vocab, unpacked);
                for t in 0..n {
                    let part = out.part(t * n_vocab + rows.start, rows.len());
                    tokens.lora_up(t, (0, head), rows.clone(), || &mut *part);
                    finish_logits(weights, rows.clone(), part);
                }
            }
        })?;
        match &weights.ids {
            Some(ids) => self.spread_logits(ids, out),
            None => Ok(()),
        }
    }

    /// Brings the logits of some tokens to their places among those of all. The others' are minus infinity.
    fn spread_logits(&self, ids: &[u32], out: Span) -> Result<()> {
        let (tokens, n_vocab) = (self.tokens, self.tokens.weights.n_vocab);
        self.phase(Work::even(tokens.count, n_vocab as u64), move |_, range| {
            for t in range {
                // SAFETY: each token is one thread's.
                let row = unsafe { out.part(t * n_vocab, n_vocab) };
                let mut end = n_vocab;
                // They ascend, so none is before the place that it comes from.
                for (i, id) in ids.iter().map(|id| *id as usize).enumerate().rev() {
                    let logit = row[i];
                    row[id + 1..end].fill(f32::NEG_INFINITY);
                    row[id] = logit;
                    end = id;
                }
                row[..end].fill(f32::NEG_INFINITY);
            }
        })
    }
}

/// Some rows of a product.
pub(super) fn row_view(product: &Product, rows: Range<usize>, isa: Isa) -> View<'_> {
    let tensor = &product.tensor;
    let row_bytes = tensor.row_bytes();
    let bytes = &tensor.bytes()[rows.start * row_bytes..rows.end * row_bytes];
    match View::new(tensor.ty, rows.len(), tensor.row_len(), bytes, isa) {
        Some(view) => view,
        None => unreachable!("whole rows of a tensor"),
    }
}
