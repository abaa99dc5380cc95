//! Mamba 2 as a block's mixer: products, a convolution, the recurrence, in which each head is one
//! thread's, and a gated norm.

use super::convolution::{Channels, Convolution, Runs, head_state};
use super::elementwise::{add_bias, rms_norm, silu_mul};
use super::layer::{NormWeights, Product, floats, product, union};
use super::matmul::Isa;
use super::pass::{Pass, Post, Rows, Tokens};
use super::pool::Work;
use super::profile::product_bytes;
use super::recurrence::{scan_step, softplus};
use crate::backend::Work as Kind;
use crate::error::Result;
use crate::model::{Mamba2, Norm};
use std::ops::Range;

/// The weights of a layer.
pub(super) struct Mamba2Layer {
    /// The layer's place in a session's state.
    index: usize,
    n_heads: usize,
    head_dim: usize,
    state_dim: usize,
    /// Heads with the same `B` and `C`.
    group: usize,
    z: Product,
    x: Product,
    b: Product,
    c: Product,
    dt: Product,
    conv: Convolution,
    decay: Vec<f32>,
    /// With that of the product.
    dt_bias: Vec<f32>,
    dt_range: (f32, f32),
    skip: Vec<f32>,
    norm: Option<GatedNorm>,
    output: Product,
}

/// A norm over parts of a row, beside the gate.
struct GatedNorm {
    weight: Vec<f32>,
    part: usize,
    eps: f32,
    before_gate: bool,
}

impl GatedNorm {
    fn new(norm: &Norm, m: &Mamba2) -> Result<GatedNorm> {
        let weight = floats(&norm.weight, "norm weights")?;
        Ok(GatedNorm {
            part: weight.len() / m.norm_groups,
            weight,
            eps: norm.eps,
            before_gate: m.norm_before_gate,
        })
    }

    /// # Safety
    /// The processor has `isa`.
    unsafe fn apply(&self, isa: Isa, x: &mut [f32], scratch: &mut [f32]) {
        let parts = self.weight.chunks_exact(self.part);
        for (x, weight) in x.chunks_exact_mut(self.part).zip(parts) {
            let out = &mut scratch[..self.part];
            // SAFETY: by contract, the processor has `isa`.
            unsafe { rms_norm(isa, x, weight, self.eps, out) };
            x.copy_from_slice(out);
        }
    }
}

impl Mamba2Layer {
    /// Takes a layer over; reads only the small tensors.
    pub fn new((index, m): (usize, &Mamba2), isa: Isa) -> Result<Mamba2Layer> {
        let dt = product(&m.dt, isa)?;
        let mut dt_bias = floats(&m.dt_bias, "the bias of Mamba 2")?;
        add_bias(&mut dt_bias, dt.bias.as_deref());
        let norm = m.norm.as_ref().map(|norm| GatedNorm::new(norm, m));
        Ok(Mamba2Layer {
            index,
            n_heads: m.n_heads,
            head_dim: m.head_dim,
            state_dim: m.state_dim,
            group: m.n_heads / m.n_groups,
            z: product(&m.z, isa)?,
            x: product(&m.x, isa)?,
            b: product(&m.b, isa)?,
            c: product(&m.c, isa)?,
            dt,
            conv: Convolution::new(&m.conv)?,
            decay: floats(&m.decay, "the decay of Mamba 2")?,
            dt_bias,
            dt_range: (m.dt_min, m.dt_max),
            skip: floats(&m.skip, "the factors of Mamba 2")?,
            norm: norm.transpose()?,
            output: product(&m.output, isa)?,
        })
    }

    /// Floats of its small vectors.
    pub fn floats(&self) -> usize {
        let products = [&self.z, &self.x, &self.b, &self.c, &self.dt, &self.output];
        let biases = products.into_iter().map(Product::bias_len).sum::<usize>();
        let vectors = self.decay.len() + self.dt_bias.len() + self.skip.len();
        let norm = self.norm.as_ref().map_or(0, |norm| norm.weight.len());
        biases + vectors + norm + self.conv.floats()
    }

    /// Adds what the positions up to each token's say to it to the residual stream.
    pub fn run(&self, pass: &Pass, norm: Option<&NormWeights>, post: Post) -> Result<()> {
        let buffers = &pass.tokens.buffers;
        let s = buffers.sizes;
        let products = [&self.z, &self.x, &self.b, &self.c, &self.dt];
        pass.encode(norm, pass.input(), union(products))?;
        pass.marks.end_norm(norm);
        let z = Rows::of(buffers.gate, &self.z, s.n_ff);
        let x = Rows::of(buffers.v, &self.x, s.kv);
        let b = Rows::of(buffers.k, &self.b, s.kv);
        let c = Rows::of(buffers.q, &self.c, s.q);
        let dt = Rows::of(buffers.steps, &self.dt, s.steps);
        pass.products(products, [z, x, b, c, dt])?;
        pass.marks.end(Kind::Qkv, || product_bytes(products));
        let parts = [(x, &self.x), (b, &self.b), (c, &self.c)];
        let parts = parts.map(|(rows, product)| Channels::of(rows, product));
        self.conv.run(pass, self.index, &parts)?;
        let tokens = pass.tokens;
        let runs = Runs::of(tokens);
        let (heads, len) = (self.n_heads, self.head_dim * self.state_dim);
        let cost = (runs.longest() * len / 16) as u64 + 100;
        pass.phase(Work::even(runs.len() * heads, cost), |_, tasks| {
            for task in tasks {
                let (run, head) = (task / heads, task % heads);
                // SAFETY: each head of a session is one thread's; B, C and dt are only read.
                unsafe { self.head(tokens, head, runs.range(run)) };
            }
        })?;
        let width = self.z.matrix.rows();
        let work = Work::even(tokens.count, 50 + width as u64 / 2);
        pass.phase(work, |me, range| {
            for t in range {
                // SAFETY: each token is one thread's. The weights' instruction set is the processor's.
                unsafe {
                    let z = buffers.gate.part(t * s.n_ff, width);
                    let x = buffers.v.part(t * s.kv, width);
                    self.gate(tokens.isa(), x, z, &mut me.row);
                }
            }
        })?;
        let state = || (heads * len * size_of::<f32>()) as u64;
        pass.marks.end(Kind::Attention, state);
        pass.add_product(z, &self.output, post)?;
        pass.marks
            .end(Kind::Output, || product_bytes([&self.output]));
        Ok(())
    }

    /// The results of a head for consecutive tokens of a session, in place of its `x`.
    ///
    /// # Safety
    /// Nobody else uses the head's `x` and state; nobody writes B, C and dt.
    unsafe fn head(&self, tokens: &Tokens, head: usize, run: Range<usize>) {
        let (isa, buffers) = (tokens.isa(), &tokens.buffers);
        let (s, n) = (buffers.sizes, self.state_dim);
        let (cache, _) = tokens.places.at(run.start);
        let of_group = head / self.group * n;
        // SAFETY: by contract, nobody else uses the head's `x` and state, or writes B, C and dt.
        unsafe {
            let place = (self.index, &self.conv);
            for t in run.clone() {
                let state = head_state(cache, place, t - run.start, head, self.head_dim * n);
                let b = &*buffers.k.part(t * s.kv + of_group, n);
                let c = &*buffers.q.part(t * s.q + of_group, n);
                let x = buffers
                    .v
                    .part(t * s.kv + head * self.head_dim, self.head_dim);
                let dt = buffers.steps.part(t * s.steps + head, 1)[0];
                let dt = softplus(dt + self.dt_bias[head]);
                let dt = dt.max(self.dt_range.0).min(self.dt_range.1);
                let gate = (dt * self.decay[head]).exp();
                scan_step(isa, state, b, c, x, gate, dt, self.skip[head]);
            }
        }
    }

    /// The gated result `x` of a token, in place of `z`.
    ///
    /// # Safety
    /// The processor has `isa`.
    unsafe fn gate(&self, isa: Isa, x: &mut [f32], z: &mut [f32], scratch: &mut [f32]) {
        add_bias(z, self.z.bias.as_deref());
        // SAFETY: by contract, the processor has `isa`.
        unsafe {
            match &self.norm {
                Some(norm) if norm.before_gate => {
                    norm.apply(isa, x, scratch);
                    silu_mul(isa, z, x);
                }
                Some(norm) => {
                    silu_mul(isa, z, x);
                    norm.apply(isa, z, scratch);
                }
                None => silu_mul(isa, z, x),
            }
        }
    }
}
