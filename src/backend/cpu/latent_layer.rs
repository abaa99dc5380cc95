//! Latent attention as a block's mixer. A position's key is its latent vector and a rotated part that
//! all heads share, and its value the latent vector, so that the cache has one KV head. Queries go
//! into the space of latent vectors before they meet the keys, and what heads gather leaves it.

use super::adapters::{StackAdapters, StackProduct};
use super::attention::attend;
use super::elementwise::{add_bias, rotate, scale_by};
use super::kv::{Half, put};
use super::layer::{NormWeights, Product, product, table_len, union};
use super::matmul::{Activations, Encodings, Isa, View};
use super::pages::Span;
use super::pass::{Pass, Post, Rows as Row, Tokens, product_cost};
use super::pool::Work;
use super::profile::product_bytes;
use super::recurrence::sigmoid;
use super::rows::{ROWS, Rows, Scores};
use super::weights::ThreadSpace;
use crate::backend::{KvType, Work as Kind};
use crate::error::Result;
use crate::model::{LatentAttention, Rope, Temperature};
use std::ops::Range;

/// The weights of a layer's latent attention.
pub(super) struct LatentLayer {
    /// The layer's place in a cache.
    index: usize,
    n_heads: usize,
    rank: usize,
    plain_dim: usize,
    rotated: usize,
    value_dim: usize,
    /// Queries by way of a shorter vector and its norm.
    q_a: Option<(Product, NormWeights)>,
    q: Product,
    kv: Product,
    kv_norm: Option<NormWeights>,
    to_latent: Product,
    from_latent: Product,
    gate: Option<Product>,
    output: Product,
    rope: Rope,
    /// Where the rotary table is in a position's tables.
    at: Range<usize>,
    scale: f32,
    temperature: Option<Temperature>,
}

/// Memory of the heads of all tokens.
#[derive(Clone, Copy)]
pub(super) struct Latents<'a> {
    /// `[tokens][n_heads][rank + rotated]`: queries, then what heads gather.
    pub rows: Span<'a>,
    /// `[n_heads][tokens]` encoded inputs of the heads' products.
    pub inputs: &'a Activations,
}

/// Query heads that attend together.
pub(super) const TOGETHER: usize = ROWS;

impl LatentLayer {
    /// Takes a layer over; reads only the small tensors. A new rope goes to `ropes`.
    pub fn new(
        (index, a): (usize, &LatentAttention),
        ropes: &mut Vec<Rope>,
        isa: Isa,
    ) -> Result<LatentLayer> {
        let which = ropes.iter().position(|r| *r == a.rope).unwrap_or_else(|| {
            ropes.push(a.rope.clone());
            ropes.len() - 1
        });
        let start = ropes[..which].iter().map(table_len).sum::<usize>();
        Ok(LatentLayer {
            index,
            n_heads: a.n_heads,
            rank: a.rank,
            plain_dim: a.plain_dim,
            rotated: a.rotated(),
            value_dim: a.value_dim,
            q_a: match (&a.q_a, &a.q_a_norm) {
                (Some(q_a), Some(norm)) => Some((product(q_a, isa)?, NormWeights::new(norm)?)),
                _ => None,
            },
            q: product(&a.q, isa)?,
            kv: product(&a.kv, isa)?,
            kv_norm: NormWeights::find(&a.kv_norm)?,
            to_latent: product(&a.to_latent, isa)?,
            from_latent: product(&a.from_latent, isa)?,
            gate: match &a.gate {
                Some(gate) => Some(product(gate, isa)?),
                None => None,
            },
            output: product(&a.output, isa)?,
            at: start..start + table_len(&a.rope),
            rope: a.rope.clone(),
            scale: a.scale,
            temperature: a.temperature,
        })
    }

    /// Floats of its small vectors.
    pub fn floats(&self) -> usize {
        let norms = self.q_a.iter().map(|(_, norm)| norm).chain(&self.kv_norm);
        let products = self.q_a.iter().map(|(q_a, _)| q_a);
        let products = products.chain([&self.q, &self.kv]).chain(&self.gate);
        let biases: usize = products.map(Product::bias_len).sum();
        norms.map(NormWeights::floats).sum::<usize>() + biases + self.output.bias_len()
    }

    /// Elements of a key.
    fn key_len(&self) -> usize {
        self.rank + self.rotated
    }

    /// Adds what the positions up to each token's say to it to the residual stream.
    pub fn run(&self, pass: &Pass, norm: Option<&NormWeights>, post: Post) -> Result<()> {
        let (tokens, b) = (pass.tokens, &pass.tokens.buffers);
        let row = |span, width, stride| Row {
            span,
            width,
            stride,
        };
        let first = self.q_a.as_ref().map_or(&self.q, |(q_a, _)| q_a);
        let products = [first, &self.kv];
        let read = products.into_iter().chain(&self.gate);
        pass.encode(norm, pass.input(), union(read))?;
        pass.marks.end_norm(norm);
        let q = row(b.q, self.q.matrix.rows(), b.sizes.q);
        let kv = row(b.k, self.key_len(), b.sizes.kv);
        if let Some(gate) = &self.gate {
            pass.products([gate], [Row::of(b.steps, gate, b.sizes.steps)])?;
        }
        match &self.q_a {
            None => pass.products(products, [q, kv])?,
            Some((q_a, norm)) => {
                let short = row(b.gate, q_a.matrix.rows(), b.sizes.n_ff);
                pass.products(products, [short, kv])?;
                if let Some(bias) = &q_a.bias {
                    pass.phase(Work::even(tokens.count, bias.len() as u64), |_, range| {
                        for t in range {
                            // SAFETY: each token is one thread's.
                            let short = unsafe { b.gate.part(t * b.sizes.n_ff, bias.len()) };
                            add_bias(short, Some(bias));
                        }
                    })?;
                }
                pass.encode(Some(norm), short, self.q.matrix.encodings())?;
                pass.products([&self.q], [q])?;
            }
        }
        let n = tokens.count;
        let each = (self.q.matrix.rows() + self.key_len()) as u64;
        let entering = heads_adapters(tokens, &self.to_latent);
        let leaving = heads_adapters(tokens, &self.from_latent);
        pass.phase(Work::even(n, each), |me, range| {
            for t in range {
                // SAFETY: each token is one thread's.
                unsafe { self.place((tokens, entering), t, me) };
            }
        })?;
        let (latents, width) = (&tokens.latents, b.sizes.latents);
        let (rows, key_len) = (latents.rows, self.key_len());
        self.of_heads(pass, (&self.to_latent, entering), self.rank, |head| {
            (rows.base().wrapping_add(head * key_len), width)
        })?;
        pass.marks.end(Kind::Qkv, || {
            product_bytes(products.into_iter().chain([&self.to_latent]))
        });
        self.attend(pass, leaving)?;
        let values = b.q;
        self.of_heads(pass, (&self.from_latent, leaving), self.value_dim, |head| {
            let out = values.base().wrapping_add(head * self.value_dim);
            (out, b.sizes.q)
        })?;
        if let Some(gate) = &self.gate {
            self.apply_gate(pass, gate)?;
        }
        let gathered = row(b.q, self.n_heads * self.value_dim, b.sizes.q);
        pass.add_product(gathered, &self.output, post)?;
        let output = || product_bytes([&self.output, &self.from_latent]);
        pass.marks.end(Kind::Output, output);
        Ok(())
    }

    /// Multiplies the heads' results by their gates, in plain code: its bits are the same on every instruction set.
    fn apply_gate(&self, pass: &Pass, gate: &Product) -> Result<()> {
        let b = &pass.tokens.buffers;
        let (heads, n) = (self.n_heads, self.n_heads * self.value_dim);
        pass.phase(
            Work::even(pass.tokens.count, 50 + n as u64 / 2),
            |_, range| {
                for t in range {
                    // SAFETY: each token is one thread's.
                    let (out, gates) = unsafe {
                        let gates = b.steps.part(t * b.sizes.steps, heads);
                        (b.q.part(t * b.sizes.q, n), gates)
                    };
                    add_bias(gates, gate.bias.as_deref());
                    for (out, gate) in out.chunks_exact_mut(self.value_dim).zip(&*gates) {
                        let factor = sigmoid(*gate);
                        out.iter_mut().for_each(|out| *out *= factor);
                    }
                }
            },
        )
    }

    /// Puts a token's latent vector into its cache, and readies its queries: the rotated part in its
    /// place, the other as the input of the product.
    ///
    /// # Safety
    /// Nobody else uses what is this token's.
    unsafe fn place(
        &self,
        (tokens, adapters): (&Tokens, Option<StackAdapters>),
        t: usize,
        me: &mut ThreadSpace,
    ) {
        let (isa, b, s) = (tokens.isa(), &tokens.buffers, tokens.buffers.sizes);
        let (kv, position) = tokens.places.at(t);
        let (rank, key_len, plain) = (self.rank, self.key_len(), self.plain_dim);
        let enc = self.to_latent.matrix.encodings();
        // SAFETY: by contract, nobody else uses what is this token's; the table is only read.
        unsafe {
            let table = b.rope.part(t * s.rope + self.at.start, self.at.len());
            let key = b.k.part(t * s.kv, key_len);
            add_bias(key, self.kv.bias.as_deref());
            if let Some(norm) = &self.kv_norm {
                norm.apply_in_place(isa, &mut key[..rank], &mut me.row);
            }
            rotate(isa, self.rope.pairing, table, &mut key[rank..]);
            // A value is as long as a key; what it has beyond the latent vector is not used.
            match kv.kv_type() {
                KvType::F16 => put(isa, kv.head::<Half>(self.index, 0), position, key, key),
                // q8_0 was refused when the session was made.
                KvType::F32 | KvType::Q8_0 => {
                    put(isa, kv.head::<f32>(self.index, 0), position, key, key)
                }
            }
            let q = b.q.part(t * s.q, self.n_heads * (plain + self.rotated));
            add_bias(q, self.q.bias.as_deref());
            scale_by(q, self.temperature.map_or(1.0, |t| t.factor(position)));
            let out = tokens
                .latents
                .rows
                .part(t * s.latents, self.n_heads * key_len);
            let heads = q
                .chunks_mut(plain + self.rotated)
                .zip(out.chunks_mut(key_len));
            for (h, (q, out)) in heads.enumerate() {
                let (q, q_rotated) = q.split_at_mut(plain);
                rotate(isa, self.rope.pairing, table, q_rotated);
                out[rank..].copy_from_slice(q_rotated);
                let row = h * tokens.count + t;
                tokens.latents.inputs.set_row(isa, row, q, enc);
                if let Some(adapters) = &adapters {
                    adapters.keep(isa, row, q);
                }
            }
        }
    }

    /// The product of each head with its encoded inputs: `rows` outputs of each token, to where `out`
    /// says that the first token's are, and how far apart the tokens' are.
    fn of_heads(
        &self,
        pass: &Pass,
        (product, adapters): (&Product, Option<StackAdapters>),
        rows: usize,
        out: impl Fn(usize) -> (*mut f32, usize) + Sync,
    ) -> Result<()> {
        let (tokens, n) = (pass.tokens, pass.tokens.count);
        let cost = product_cost(product.bytes() / self.n_heads, n);
        pass.phase(Work::even(self.n_heads, cost), |me, heads| {
            for h in heads {
                let view = head_view(product, h, rows, tokens.isa());
                let (out, stride) = out(h);
                let inputs = h * n..(h + 1) * n;
                let first = out;
                // The product counts from the first of all inputs on.
                let out = out.wrapping_sub(inputs.start * stride);
                // SAFETY: each head has outputs of its own; the inputs are complete.
                unsafe {
                    let unpacked = &mut me.unpacked;
                    view.mul(
                        tokens.latents.inputs,
                        inputs,
                        0..rows,
                        out,
                        stride,
                        unpacked,
                    );
                    let Some(adapters) = &adapters else {
                        continue;
                    };
                    let of = StackProduct {
                        index: 0,
                        product,
                        matrix: h,
                    };
                    let isa = tokens.isa();
                    adapters.lora_down(isa, of, h * n..(h + 1) * n, |row| row - h * n, unpacked);
                    for t in 0..n {
                        let y = std::slice::from_raw_parts_mut(first.add(t * stride), rows);
                        adapters.lora_up(isa, (h * n + t, t), of, 0..rows, y);
                    }
                }
            }
        })
    }

    /// From queries to what the heads gather, as inputs of the next product.
    fn attend(&self, pass: &Pass, adapters: Option<StackAdapters>) -> Result<()> {
        let (tokens, n) = (pass.tokens, pass.tokens.count);
        let parts = self.n_heads.div_ceil(TOGETHER);
        let middle = tokens.places.at(n / 2).1;
        let group = TOGETHER.min(self.n_heads);
        let cost = ((middle + 1) * self.key_len() * group) as u64 / 8 + 100;
        pass.phase(Work::even(n * parts, cost), |me, tasks| {
            for task in tasks {
                let (t, first) = (task / parts, task % parts * TOGETHER);
                let heads = first..(first + TOGETHER).min(self.n_heads);
                // SAFETY: each head of a token is one thread's.
                unsafe { self.attend_with((tokens, adapters), t, heads, me) };
            }
        })?;
        let cache = || (middle as u64 + 1) * self.key_len() as u64 * 4;
        pass.marks.end(Kind::Attention, cache);
        Ok(())
    }

    /// # Safety
    /// Nobody else uses these heads of the token.
    unsafe fn attend_with(
        &self,
        (tokens, adapters): (&Tokens, Option<StackAdapters>),
        t: usize,
        heads: Range<usize>,
        me: &mut ThreadSpace,
    ) {
        let (isa, key_len, n) = (tokens.isa(), self.key_len(), tokens.count);
        let (kv, position) = tokens.places.at(t);
        let at = t * tokens.buffers.sizes.latents + heads.start * key_len;
        let enc = self.from_latent.matrix.encodings();
        // SAFETY: by contract, nobody else uses these heads of the token. The output replaces the
        // queries after the last of them was read.
        unsafe {
            let queries = tokens.latents.rows.part(at, heads.len() * key_len);
            queries.iter_mut().for_each(|q| *q *= self.scale);
            let out = queries.as_mut_ptr();
            let rows = Rows {
                queries: out,
                stride: heads.len() * key_len,
                group: heads.len(),
                tokens: 1,
                position,
                scores: Scores {
                    window: usize::MAX,
                    chunk: usize::MAX,
                    ahead: 0,
                    len: usize::MAX,
                    cap: None,
                    sinks: None,
                    slopes: None,
                    distances: None,
                },
            };
            let scratch = &mut me.attention;
            match kv.kv_type() {
                KvType::F16 => attend(isa, &rows, kv.head::<Half>(self.index, 0), out, scratch),
                // q8_0 was refused when the session was made.
                KvType::F32 | KvType::Q8_0 => {
                    attend(isa, &rows, kv.head::<f32>(self.index, 0), out, scratch)
                }
            }
            for (h, gathered) in heads.zip(queries.chunks(key_len)) {
                let row = h * n + t;
                let inputs = tokens.latents.inputs;
                inputs.set_row(isa, row, &gathered[..self.rank], enc);
                if let Some(adapters) = &adapters {
                    adapters.keep(isa, row, &gathered[..self.rank]);
                }
            }
        }
    }
}

/// What the sessions' adapters have for the matrices of heads, if anything.
fn heads_adapters<'a>(tokens: &Tokens<'a>, product: &Product) -> Option<StackAdapters<'a>> {
    tokens.adapters?.of_heads(product)
}

/// The matrix of one head.
fn head_view(product: &Product, head: usize, rows: usize, isa: Isa) -> View<'_> {
    let tensor = &product.tensor;
    let each = rows * tensor.row_bytes();
    let bytes = &tensor.bytes()[head * each..(head + 1) * each];
    match View::new(tensor.ty, rows, tensor.row_len(), bytes, isa) {
        Some(view) => view,
        None => unreachable!("whole rows of a tensor"),
    }
}

/// Largest extents over all latent attention of a network; zeros if it has none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LatentSizes {
    pub n_heads: usize,
    /// Longest input of a head's product.
    pub cols: usize,
    pub encodings: Encodings,
}

impl LatentSizes {
    /// Takes a layer in.
    pub fn include(&mut self, a: &LatentAttention) {
        self.n_heads = self.n_heads.max(a.n_heads);
        self.cols = self.cols.max(a.plain_dim).max(a.rank);
        for linear in [&a.to_latent, &a.from_latent] {
            let encodings = Encodings::for_type(linear.weight.ty);
            self.encodings = self.encodings.union(encodings);
        }
    }

    /// Memory for the inputs of the heads of so many tokens.
    pub fn inputs(&self, tokens: usize) -> Result<Activations> {
        let rows = tokens.saturating_mul(self.n_heads);
        Activations::new(rows, self.cols, self.encodings)
    }

    /// Bytes of that.
    pub fn bytes_for(&self, tokens: usize) -> usize {
        let rows = tokens.saturating_mul(self.n_heads);
        Activations::bytes_for(rows, self.cols, self.encodings)
    }
}
