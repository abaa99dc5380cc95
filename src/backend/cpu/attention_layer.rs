//! Attention as a block's mixer: its weights, and its way from the residual stream and back.
//!
//! For one token it is computed head by head, or, where few threads would have a head or a head has
//! much to read, by segments of the cache. For many it is computed by head and block of tokens.

use super::attention::{attend, attend_segment, join_segments, partial_len};
use super::elementwise::{add_bias, mul_sigmoid, rotate};
use super::kv::{Element, Half, Head, KvCache, SEGMENT, put};
use super::layer::{NormWeights, Product, find_floats, floats, product, table_len, union};
use super::matmul::Isa;
use super::pass::{Pass, Places, Post, Rows as Row, Tokens};
use super::pool::Work;
use super::profile::{attention_bytes, product_bytes};
use super::recurrence::{sigmoid, softplus};
use super::rows::{DistanceTable, ROWS, Rows, Scores, tokens_per_block};
use super::simd::LANES;
use super::texts::{TextBlock, Texts};
use super::token::Buffers;
use super::weights::ThreadSpace;
use crate::backend::{KvType, Work as Kind};
use crate::error::{Result, fail, try_vec};
use crate::model::{Attention, Distances, Norm, Rope, RopePairing, Temperature};
use std::ops::Range;

/// Nanoseconds of a head's attention from which on it is split by segments.
const LONG_HEAD: u64 = 100_000;

/// The weights of a layer's attention.
pub(super) struct AttentionLayer {
    /// The place in a cache of the layer whose keys and values it reads.
    index: usize,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    value_dim: usize,
    q: Product,
    /// Of keys and values; none where they are another layer's.
    kv: Option<[Product; 2]>,
    output: Product,
    output_norm: Option<NormWeights>,
    q_norm: Option<HeadNorm>,
    k_norm: Option<HeadNorm>,
    v_norm: Option<NormWeights>,
    v_scale: f32,
    rope: Option<LayerRope>,
    norm_after_rope: bool,
    scale: f32,
    temperature: Option<Temperature>,
    /// Shorter than the model's context, if there is one.
    window: Option<usize>,
    chunk: Option<usize>,
    clip: Option<f32>,
    score_cap: Option<f32>,
    sinks: Option<Vec<f32>>,
    slopes: Option<Vec<f32>>,
    /// As [`DistanceTable::added`], and its reach.
    distances: Option<(Vec<f32>, usize)>,
    gate: Option<Gate>,
    /// Gates whose rows are apart from those of the queries.
    gate_apart: Option<Product>,
    softplus_gate: bool,
    /// Whether a position sees none behind it.
    causal: bool,
}

/// A gate of the heads' results. The product of queries has its rows, too.
struct Gate {
    /// The bias of that product, which has none itself then.
    bias: Option<Vec<f32>>,
}

/// A norm of queries or keys.
enum HeadNorm {
    /// Over each head.
    Each(NormWeights),
    /// The same with weights of its own.
    Own(Vec<NormWeights>),
    /// Over all heads together.
    All(NormWeights),
}

impl HeadNorm {
    fn find(norm: &Option<Norm>, a: &Attention) -> Result<Option<HeadNorm>> {
        let Some(norm) = norm else {
            return Ok(None);
        };
        if !a.own_head_norms {
            let norm = NormWeights::new(norm)?;
            return Ok(Some(match norm.len() == a.head_dim {
                true => HeadNorm::Each(norm),
                false => HeadNorm::All(norm),
            }));
        }
        let n_heads = norm.weight.row_len() / a.head_dim;
        let mut own = Vec::new();
        if own.try_reserve_exact(n_heads).is_err() {
            fail!(
                OutOfMemory,
                "norms of {n_heads} heads could not be allocated"
            );
        }
        for head in 0..n_heads {
            let range = head * a.head_dim..(head + 1) * a.head_dim;
            let bias = norm.bias.as_ref();
            own.push(NormWeights::new(&Norm {
                weight: norm.weight.elements(range.clone()),
                bias: bias.map(|bias| bias.elements(range)),
                ..norm.clone()
            })?);
        }
        Ok(Some(HeadNorm::Own(own)))
    }

    fn floats(&self) -> usize {
        match self {
            HeadNorm::Each(norm) | HeadNorm::All(norm) => norm.floats(),
            HeadNorm::Own(norms) => norms.iter().map(NormWeights::floats).sum(),
        }
    }
}

/// A layer's rotary embedding: where its table is in a position's tables.
struct LayerRope {
    pairing: RopePairing,
    at: Range<usize>,
}

fn layer_rope(rope: &Rope, ropes: &mut Vec<Rope>) -> LayerRope {
    let index = ropes.iter().position(|r| r == rope).unwrap_or_else(|| {
        ropes.push(rope.clone());
        ropes.len() - 1
    });
    let start = ropes[..index].iter().map(table_len).sum::<usize>();
    LayerRope {
        pairing: rope.pairing,
        at: start..start + table_len(rope),
    }
}

impl AttentionLayer {
    /// Takes a layer's attention over; reads only the small tensors. A new rope goes to `ropes`.
    pub fn new(
        (index, a): (usize, &Attention),
        window: Option<usize>,
        ropes: &mut Vec<Rope>,
        isa: Isa,
    ) -> Result<AttentionLayer> {
        let mut q = product(&a.q, isa)?;
        let gate = a.gated.then(|| Gate {
            bias: q.bias.take(),
        });
        Ok(AttentionLayer {
            index: a.shares.unwrap_or(index),
            n_heads: a.n_heads,
            n_kv_heads: a.n_kv_heads,
            head_dim: a.head_dim,
            value_dim: a.value_dim,
            q,
            kv: match a.shares {
                None => Some([product(&a.k, isa)?, product(&a.v, isa)?]),
                Some(_) => None,
            },
            output: product(&a.output, isa)?,
            output_norm: NormWeights::find(&a.output_norm)?,
            q_norm: HeadNorm::find(&a.q_norm, a)?,
            k_norm: HeadNorm::find(&a.k_norm, a)?,
            v_norm: match a.value_norm {
                Some(eps) => Some(NormWeights::plain(a.value_dim, eps)?),
                None => None,
            },
            v_scale: a.value_scale,
            rope: a.rope.as_ref().map(|rope| layer_rope(rope, ropes)),
            norm_after_rope: a.norm_after_rope,
            scale: a.scale,
            temperature: a.temperature,
            window,
            chunk: a.chunk,
            clip: a.clip,
            score_cap: a.score_cap,
            sinks: find_floats(&a.sinks, "attention sinks")?,
            slopes: match &a.slopes {
                Some(slopes) => Some(copied(slopes)?),
                None => None,
            },
            distances: match &a.distances {
                Some(distances) => Some((distance_table(distances)?, distances.reach())),
                None => None,
            },
            gate,
            gate_apart: match &a.gate {
                Some(gate) => Some(product(gate, isa)?),
                None => None,
            },
            softplus_gate: a.softplus_gate,
            causal: a.causal,
        })
    }

    /// Floats of its small vectors.
    pub fn floats(&self) -> usize {
        let norms = [&self.q_norm, &self.k_norm].into_iter().flatten();
        let norms = norms.map(HeadNorm::floats).sum::<usize>();
        let products = [&self.q, &self.output].into_iter().chain(&self.gate_apart);
        let products = products.chain(self.kv.iter().flatten());
        let biases = products.map(Product::bias_len).sum::<usize>();
        let others = [&self.v_norm, &self.output_norm].into_iter().flatten();
        let norms = norms + others.map(NormWeights::floats).sum::<usize>();
        let gate = self.gate.as_ref().and_then(|gate| gate.bias.as_ref());
        let distances = self.distances.as_ref().map(|(table, _)| table);
        let others = [self.sinks.as_ref(), gate, self.slopes.as_ref(), distances];
        let others = others.into_iter().flatten();
        norms + biases + others.map(Vec::len).sum::<usize>()
    }

    /// Query heads per KV head.
    fn group(&self) -> usize {
        self.n_heads / self.n_kv_heads
    }

    /// What the scores of a KV head's group are subject to.
    fn scores(&self, kv_head: usize) -> Scores<'_> {
        let group = kv_head * self.group()..(kv_head + 1) * self.group();
        Scores {
            window: self.window.unwrap_or(usize::MAX),
            chunk: self.chunk.unwrap_or(usize::MAX),
            ahead: 0,
            len: usize::MAX,
            cap: self.score_cap,
            sinks: self.sinks.as_ref().map(|sinks| &sinks[group.clone()]),
            slopes: self.slopes.as_ref().map(|slopes| &slopes[group.clone()]),
            distances: self.distances.as_ref().map(|(table, reach)| {
                let width = DistanceTable::width(*reach);
                DistanceTable {
                    added: &table[group.start * width..group.end * width],
                    reach: *reach,
                }
            }),
        }
    }

    /// Whether queries or keys are normed over all heads together.
    fn norms_all_heads(&self) -> bool {
        let norms = [&self.q_norm, &self.k_norm];
        norms.iter().any(|n| matches!(n, Some(HeadNorm::All(_))))
    }

    /// Adds what the positions up to each token's say to it to the residual stream.
    pub fn run(&self, pass: &Pass, norm: Option<&NormWeights>, post: Post) -> Result<()> {
        let b = &pass.tokens.buffers;
        let products = || {
            let queries = std::iter::once(&self.q);
            queries
                .chain(self.kv.iter().flatten())
                .chain(&self.gate_apart)
        };
        let input = pass.joined().unwrap_or_else(|| pass.input());
        pass.encode(norm, input, union(products()))?;
        pass.marks.end_norm(norm);
        let row = |span, width, stride| Row {
            span,
            width,
            stride,
        };
        let q = row(b.q, self.q.matrix.rows(), b.sizes.q);
        let kv = [(b.k, self.head_dim), (b.v, self.value_dim)]
            .map(|(span, each)| row(span, self.n_kv_heads * each, b.sizes.kv));
        let values = self.n_heads * self.value_dim;
        let apart = self.gate_apart.as_ref();
        let n_gates = apart.map_or(values, |gate| gate.matrix.rows());
        let gates = row(b.gate, n_gates, b.sizes.n_ff);
        match (&self.kv, &self.gate_apart) {
            (Some([k, v]), None) => pass.products([&self.q, k, v], [q, kv[0], kv[1]])?,
            (Some([k, v]), Some(gate)) => {
                pass.products([&self.q, k, v, gate], [q, kv[0], kv[1], gates])?;
            }
            (None, None) => pass.products([&self.q], [q])?,
            (None, Some(gate)) => pass.products([&self.q, gate], [q, gates])?,
        }
        if let Some(gate) = &self.gate {
            self.take_gate(pass, gate)?;
        }
        pass.marks.end(Kind::Qkv, || product_bytes(products()));
        match pass.tokens.places {
            Places::Run(kv, position) if pass.tokens.count == 1 => {
                match kv.kv_type() {
                    KvType::F16 => self.one::<Half>(pass, kv, position)?,
                    // q8_0 was refused when the session was made.
                    KvType::F32 | KvType::Q8_0 => self.one::<f32>(pass, kv, position)?,
                }
                let cache = || attention_bytes(kv, self.index, position);
                pass.marks.end(Kind::Attention, cache);
            }
            _ => self.many(pass)?,
        }
        if self.value_dim < self.head_dim {
            self.leave_out_rest(pass)?;
        }
        if self.gate.is_some() || self.gate_apart.is_some() {
            self.apply_gate(pass)?;
        }
        let q = Row { width: values, ..q };
        let norm = self.output_norm.as_ref();
        pass.add_normed_product(norm, q, &self.output, post)?;
        let output = || product_bytes([&self.output]);
        pass.marks.end(Kind::Output, output);
        Ok(())
    }

    /// Puts the queries of all heads together, and the gates between them elsewhere.
    fn take_gate(&self, pass: &Pass, gate: &Gate) -> Result<()> {
        let (b, dim) = (&pass.tokens.buffers, self.head_dim);
        let n = self.n_heads * dim;
        let work = Work::even(pass.tokens.count, 50 + n as u64 / 2);
        pass.phase(work, |_, range| {
            for t in range {
                // SAFETY: each token is one thread's.
                let (q, gates) = unsafe {
                    let q = b.q.part(t * b.sizes.q, 2 * n);
                    (q, b.gate.part(t * b.sizes.n_ff, n))
                };
                add_bias(q, gate.bias.as_deref());
                for h in 0..self.n_heads {
                    let from = 2 * h * dim;
                    gates[h * dim..][..dim].copy_from_slice(&q[from + dim..][..dim]);
                    q.copy_within(from..from + dim, h * dim);
                }
            }
        })
    }

    /// Puts the heads' results together, without the zeros that values end with in the cache.
    fn leave_out_rest(&self, pass: &Pass) -> Result<()> {
        let b = &pass.tokens.buffers;
        let (n, dim) = (self.n_heads * self.head_dim, self.value_dim);
        let work = Work::even(pass.tokens.count, 50 + n as u64 / 8);
        pass.phase(work, |_, range| {
            for t in range {
                // SAFETY: each token is one thread's.
                let q = unsafe { b.q.part(t * b.sizes.q, n) };
                for h in 0..self.n_heads {
                    let from = h * self.head_dim;
                    q.copy_within(from..from + dim, h * dim);
                }
            }
        })
    }

    /// Multiplies the heads' results by their gates.
    fn apply_gate(&self, pass: &Pass) -> Result<()> {
        let (b, isa) = (&pass.tokens.buffers, pass.tokens.isa());
        let n = self.n_heads * self.value_dim;
        let apart = self.gate_apart.as_ref();
        let bias = apart.and_then(|gate| gate.bias.as_deref());
        let n_gates = apart.map_or(n, |gate| gate.matrix.rows());
        let usual = n_gates == n && !self.softplus_gate;
        let work = Work::even(pass.tokens.count, 50 + n as u64);
        pass.phase(work, |_, range| {
            for t in range {
                // SAFETY: each token is one thread's. The weights' instruction set is the processor's.
                unsafe {
                    let out = b.q.part(t * b.sizes.q, n);
                    let gates = b.gate.part(t * b.sizes.n_ff, n_gates);
                    add_bias(gates, bias);
                    match usual {
                        true => mul_sigmoid(isa, out, gates),
                        false => self.mul_gates(out, gates),
                    }
                }
            }
        })
    }

    /// Multiplies a token's results by gates of elements or heads, in plain code: its bits are the same on every instruction set.
    fn mul_gates(&self, out: &mut [f32], gates: &[f32]) {
        let each = out.len() / gates.len();
        for (out, gate) in out.chunks_exact_mut(each).zip(gates) {
            let factor = match self.softplus_gate {
                true => softplus(*gate),
                false => sigmoid(*gate),
            };
            out.iter_mut().for_each(|out| *out *= factor);
        }
    }

    /// Nanoseconds of a KV head's attention for one token at a position.
    fn cost(&self, position: usize) -> u64 {
        let seen = position + 1 - self.scores(0).first(position);
        (seen * self.head_dim * self.group()) as u64 / 8 + 100
    }

    /// Nanoseconds of placing a token.
    fn place_cost(&self) -> u64 {
        ((self.n_heads + 2 * self.n_kv_heads) * self.head_dim) as u64 / 2
    }

    /// Attention from q, k and v to q, of one token.
    fn one<E: Element>(&self, pass: &Pass, kv: &KvCache, position: usize) -> Result<()> {
        let (tokens, b, isa) = (pass.tokens, &pass.tokens.buffers, pass.tokens.isa());
        let (dim, group, heads) = (self.head_dim, self.group(), self.n_kv_heads);
        if self.norms_all_heads() {
            let work = Work::even(2, self.place_cost() / 2);
            pass.phase(work, |me, parts| {
                for part in parts {
                    // SAFETY: queries and keys are each one thread's.
                    unsafe { norm_all_heads(isa, self, b, 0, part, &mut me.row) };
                }
            })?;
        }
        let rows = |kv_head: usize| Rows {
            queries: b.q.base().wrapping_add(kv_head * group * dim),
            stride: group * dim,
            group,
            tokens: 1,
            position,
            scores: self.scores(kv_head),
        };
        let all = rows(0).segments();
        let (first, segments) = (*all.start(), all.count());
        let cost = self.cost(position);
        let partials = tokens.partials.filter(|_| {
            let threads = pass.turn.threads();
            segments > 1 && threads > 1 && (splits(heads, threads) || cost > LONG_HEAD)
        });
        let place_cost = self.place_cost() / heads as u64;
        let head_cost = place_cost + partials.map_or(cost, |_| 0);
        pass.phase(Work::even(heads, head_cost), |me, heads| {
            for h in heads {
                // SAFETY: each head is one thread's. A group's output replaces its queries after
                // the last of them was read.
                unsafe {
                    let own = kv.head::<E>(self.index, h);
                    place(isa, self, own, b, (0, position), h, &mut me.row);
                    if partials.is_none() {
                        let out = b.q.base().add(h * group * dim);
                        let head = kv.head::<E>(self.index, h);
                        attend(isa, &rows(h), head, out, &mut me.attention);
                    }
                }
            }
        })?;
        let Some(partials) = partials else {
            return Ok(());
        };
        let width = partial_len(1, dim);
        let stride = self.n_heads * width;
        let work = Work::even(heads * segments, cost / segments as u64);
        pass.phase(work, |me, tasks| {
            for task in tasks {
                let (h, s) = (task / segments, task % segments);
                // SAFETY: each part of the partials is one thread's; queries are only read.
                unsafe {
                    let out = partials.part(s * stride + h * group * width, group * width);
                    let (out, head) = (out.as_mut_ptr(), kv.head::<E>(self.index, h));
                    attend_segment(isa, &rows(h), head, first + s, out, &mut me.attention);
                }
            }
        })?;
        let cost = (segments * dim) as u64 / 8;
        pass.phase(Work::even(self.n_heads, cost), |_, heads| {
            for h in heads {
                // SAFETY: each head is one thread's; the partials were checked when written.
                unsafe {
                    let partials = partials.base().add(h * width);
                    let out = b.q.base().add(h * dim);
                    let sink = self.scores(h / group).sinks.map(|s| s[h % group]);
                    join_segments(isa, partials, stride, segments, dim, sink, out);
                }
            }
        })
    }

    /// Attention from q, k and v to q, of many tokens.
    fn many(&self, pass: &Pass) -> Result<()> {
        let (tokens, n) = (pass.tokens, pass.tokens.count);
        let place = Work::even(n, self.place_cost());
        pass.phase(place, |me, range| {
            for t in range {
                // SAFETY: each token is one thread's.
                unsafe { self.place_token(tokens, t, me) };
            }
        })?;
        let heads = self.n_kv_heads;
        match tokens.places {
            Places::Run(_, position) => {
                let block = tokens_per_block(self.group());
                let first = position / block;
                let blocks = (position + n - 1) / block + 1 - first;
                let each = self.cost(position + n / 2) * block as u64;
                pass.phase(Work::even(heads * blocks, each), |me, tasks| {
                    for task in tasks {
                        let (h, i) = (task / blocks, first + task % blocks);
                        let from = (i * block).max(position) - position;
                        let to = ((i + 1) * block).min(position + n) - position;
                        // SAFETY: each group of a token is one thread's.
                        unsafe { self.attend(tokens, me, h, from..to) };
                    }
                })
            }
            Places::Texts(texts) => self.attend_texts(pass, texts),
            Places::Unknown => unreachable!("mixers are elsewhere"),
            Places::Each(places) => {
                let costs = places.iter().map(|(_, position)| self.cost(*position));
                let each = costs.sum::<u64>() / n as u64;
                pass.phase(Work::even(heads * n, each), |me, tasks| {
                    for task in tasks {
                        let (t, h) = (task / heads, task % heads);
                        // SAFETY: as above.
                        unsafe { self.attend(tokens, me, h, t..t + 1) };
                    }
                })
            }
        }
    }

    /// Puts a token's keys and values into its cache, and readies its queries.
    ///
    /// # Safety
    /// Nobody else uses this token's q, k and v, or its position of the cache.
    unsafe fn place_token(&self, tokens: &Tokens, t: usize, me: &mut ThreadSpace) {
        let (isa, b, row) = (tokens.isa(), &tokens.buffers, &mut me.row);
        // SAFETY: by contract, nobody else uses this token's q, k and v, or its position of the cache.
        unsafe {
            norm_all_heads(isa, self, b, t, 0, row);
            norm_all_heads(isa, self, b, t, 1, row);
            if let Places::Texts(texts) = tokens.places {
                let at = (t, texts.position(t));
                for h in 0..self.n_kv_heads {
                    let head = texts.head(texts.text_of(t), h, self.n_kv_heads, self.head_dim);
                    place(isa, self, head, b, at, h, row);
                }
                return;
            }
            let (kv, position) = tokens.places.at(t);
            for h in 0..self.n_kv_heads {
                let at = (t, position);
                match kv.kv_type() {
                    KvType::F16 => place(isa, self, kv.head::<Half>(self.index, h), b, at, h, row),
                    // q8_0 was refused when the session was made.
                    KvType::F32 | KvType::Q8_0 => {
                        place(isa, self, kv.head::<f32>(self.index, h), b, at, h, row)
                    }
                }
            }
        }
    }

    /// Attention within whole texts.
    fn attend_texts(&self, pass: &Pass, texts: &Texts) -> Result<()> {
        let heads = self.n_kv_heads;
        let blocks = texts.blocks();
        let each = self.cost(texts.mean_len()) * ROWS as u64;
        pass.phase(Work::even(heads * blocks.len(), each), |me, tasks| {
            for task in tasks {
                let (h, block) = (task % heads, blocks[task / heads]);
                // SAFETY: each group of a token is one thread's, and a block's tokens are its own.
                unsafe { self.attend_block(pass.tokens, texts, me, h, block) };
            }
        })
    }

    /// Attention of a KV head's group for a block of a text's positions.
    ///
    /// # Safety
    /// As of `attend`.
    unsafe fn attend_block(
        &self,
        tokens: &Tokens,
        texts: &Texts,
        me: &mut ThreadSpace,
        head: usize,
        block: TextBlock,
    ) {
        let (isa, dim, group) = (tokens.isa(), self.head_dim, self.group());
        let stride = tokens.buffers.sizes.q;
        let len = texts.len_of(block.text);
        let mut scores = self.scores(head);
        if !self.causal {
            scores.len = len;
            // As far as before.
            scores.ahead = scores.window - 1;
        }
        let each = tokens_per_block(group);
        let end = (block.first + ROWS).min(len);
        let keys = texts.head(block.text, head, self.n_kv_heads, dim);
        for position in (block.first..end).step_by(each) {
            let token = texts.start_of(block.text) + position;
            // SAFETY: by contract, nobody else uses the group's part of q, or writes what it sees
            // of the cache. The output replaces the queries after the last of them was read.
            unsafe {
                let out = tokens
                    .buffers
                    .q
                    .base()
                    .add(token * stride + head * group * dim);
                let rows = Rows {
                    queries: out,
                    stride,
                    group,
                    tokens: each.min(end - position),
                    position,
                    scores,
                };
                attend(isa, &rows, keys, out, &mut me.attention);
            }
        }
    }

    /// Attention of a KV head's group for consecutive tokens of a session.
    ///
    /// # Safety
    /// Nobody else uses the group's part of q of these tokens, or writes what they see of the cache.
    unsafe fn attend(
        &self,
        tokens: &Tokens,
        me: &mut ThreadSpace,
        head: usize,
        range: Range<usize>,
    ) {
        let (isa, dim, group) = (tokens.isa(), self.head_dim, self.group());
        let stride = tokens.buffers.sizes.q;
        let (kv, position) = tokens.places.at(range.start);
        let at = range.start * stride + head * group * dim;
        let scratch = &mut me.attention;
        // SAFETY: by contract, nobody else uses the group's part of q, or writes what it sees of
        // the cache. The output replaces the queries after the last of them was read.
        unsafe {
            let out = tokens.buffers.q.base().add(at);
            let rows = Rows {
                queries: out,
                stride,
                group,
                tokens: range.len(),
                position,
                scores: self.scores(head),
            };
            match kv.kv_type() {
                KvType::F16 => attend(isa, &rows, kv.head::<Half>(self.index, head), out, scratch),
                // q8_0 was refused when the session was made.
                KvType::F32 | KvType::Q8_0 => {
                    attend(isa, &rows, kv.head::<f32>(self.index, head), out, scratch)
                }
            }
        }
    }
}

fn copied(slopes: &[f32]) -> Result<Vec<f32>> {
    let mut all = try_vec(slopes.len(), 0.0, "slopes")?;
    all.copy_from_slice(slopes);
    Ok(all)
}

/// Numbers of [`distance_table`].
pub(super) fn distance_table_len(distances: &Distances) -> usize {
    distances.heads.len() * DistanceTable::width(distances.reach())
}

/// What the scores of each head get, for a [`DistanceTable`].
fn distance_table(distances: &Distances) -> Result<Vec<f32>> {
    let weights = floats(&distances.weight, "what scores get by the distance")?;
    let n_heads = distances.weight.row_len();
    let mut table = try_vec(distance_table_len(distances), 0.0, "scores by the distance")?;
    let rows = table.chunks_exact_mut(DistanceTable::width(distances.reach()));
    for (head, row) in distances.heads.clone().zip(rows) {
        for (i, added) in row.iter_mut().enumerate() {
            let i = i.saturating_sub(LANES).min(distances.buckets.len() - 1);
            *added = weights[usize::from(distances.buckets[i]) * n_heads + head];
        }
    }
    Ok(table)
}

/// Whether one token's attention is split by segments because there are fewer heads than threads or
/// they would leave many idle.
fn splits(n_kv_heads: usize, threads: usize) -> bool {
    let heads = n_kv_heads;
    heads * 10 < heads.div_ceil(threads) * threads * 9
}

/// Floats of attention's results per segment in a session of `context` positions, with so much for
/// a segment.
pub(super) fn partials_len(partial: usize, context: usize) -> usize {
    context.div_ceil(SEGMENT).saturating_mul(partial)
}

/// Adds biases to a token's queries (`part` 0) or keys (1) and norms them, if the layer norms all
/// heads together.
///
/// # Safety
/// The processor has `isa`. Nobody else uses this token's queries or keys.
unsafe fn norm_all_heads(
    isa: Isa,
    layer: &AttentionLayer,
    b: &Buffers,
    token: usize,
    part: usize,
    scratch: &mut [f32],
) {
    let (norm, product, span, stride) = match part {
        0 => (&layer.q_norm, &layer.q, b.q, b.sizes.q),
        _ => match &layer.kv {
            Some([k, _]) => (&layer.k_norm, k, b.k, b.sizes.kv),
            None => return,
        },
    };
    if let Some(HeadNorm::All(norm)) = norm {
        // SAFETY: by contract, the processor has `isa`, and nobody else uses this token's queries or keys.
        unsafe {
            let x = span.part(token * stride, product.matrix.rows());
            add_bias(x, product.bias.as_deref());
            clip(layer, x);
            norm.apply_in_place(isa, x, scratch);
        }
    }
}

/// A head of queries or keys: bias and norm, if that is not done yet, and rotation.
///
/// # Safety
/// The processor has `isa`.
unsafe fn ready(
    isa: Isa,
    layer: &AttentionLayer,
    (product, norm): (&Product, &Option<HeadNorm>),
    (first, x): (usize, &mut [f32]),
    table: &[f32],
    scratch: &mut [f32],
) {
    let bias = product.bias.as_ref().map(|b| &b[first..first + x.len()]);
    // SAFETY: by contract, the processor has `isa`.
    unsafe {
        let of_head = match norm {
            None => {
                add_bias(x, bias);
                clip(layer, x);
                None
            }
            Some(HeadNorm::Each(norm)) => {
                add_bias(x, bias);
                clip(layer, x);
                Some(norm)
            }
            Some(HeadNorm::Own(norms)) => {
                add_bias(x, bias);
                clip(layer, x);
                Some(&norms[first / layer.head_dim])
            }
            // By `norm_all_heads`.
            Some(HeadNorm::All(_)) => None,
        };
        let (before, after) = match layer.norm_after_rope {
            false => (of_head, None),
            true => (None, of_head),
        };
        if let Some(norm) = before {
            norm.apply_in_place(isa, x, scratch);
        }
        if let Some(rope) = &layer.rope {
            rotate(isa, rope.pairing, table, x);
        }
        if let Some(norm) = after {
            norm.apply_in_place(isa, x, scratch);
        }
    }
}

/// Brings queries, keys or values within the layer's limit, if it has one. What is no number stays so.
fn clip(layer: &AttentionLayer, x: &mut [f32]) {
    if let Some(limit) = layer.clip {
        x.iter_mut().for_each(|x| *x = x.clamp(-limit, limit));
    }
}

/// Puts one token's new key and value of a KV head into the cache and readies the queries of its
/// group: biases, norms, rotation, scale and temperature. Norms over all heads are done before.
///
/// # Safety
/// The processor has `isa`. Nobody else uses this token's q, k and v of the group, nor this
/// position of the KV head.
unsafe fn place<E: Element>(
    isa: Isa,
    layer: &AttentionLayer,
    head: Head<'_, E>,
    b: &Buffers,
    (token, position): (usize, usize),
    kv_head: usize,
    scratch: &mut [f32],
) {
    let (dim, s) = (layer.head_dim, b.sizes);
    let rope = layer.rope.as_ref().map_or(0..0, |rope| rope.at.clone());
    let factor = layer.temperature.map_or(1.0, |t| t.factor(position));
    let scale = layer.scale * factor;
    // SAFETY: by contract, nobody else uses this token's queries and keys; nobody writes the table.
    unsafe {
        let table = b.rope.part(token * s.rope + rope.start, rope.len());
        for h in kv_head * layer.group()..(kv_head + 1) * layer.group() {
            let first = h * dim;
            let q = b.q.part(token * s.q + first, dim);
            let what = (&layer.q, &layer.q_norm);
            ready(isa, layer, what, (first, &mut *q), table, scratch);
            q.iter_mut().for_each(|q| *q *= scale);
        }
        let Some([of_keys, of_values]) = &layer.kv else {
            return;
        };
        let (first, row) = (kv_head * dim, token * s.kv);
        let k = b.k.part(row + first, dim);
        let what = (of_keys, &layer.k_norm);
        ready(isa, layer, what, (first, &mut *k), table, scratch);
        let value_dim = layer.value_dim;
        let first = kv_head * value_dim;
        let v = b.v.part(row + first, value_dim);
        let bias = of_values.bias.as_ref();
        add_bias(v, bias.map(|b| &b[first..first + value_dim]));
        clip(layer, v);
        if let Some(norm) = &layer.v_norm {
            norm.apply_in_place(isa, v, scratch);
        }
        if layer.v_scale != 1.0 {
            v.iter_mut().for_each(|v| *v *= layer.v_scale);
        }
        if value_dim == dim {
            return put(isa, head, position, k, v);
        }
        let whole = &mut scratch[..dim];
        whole[..value_dim].copy_from_slice(v);
        whole[value_dim..].fill(0.0);
        put(isa, head, position, k, whole);
    }
}
