//! Mamba, the first, as a block's mixer: products, a convolution, products of its result, and the
//! recurrence, in which a block of channels is one thread's.

use super::convolution::{Channels, Convolution, Runs, head_state};
use super::elementwise::add_bias;
use super::layer::{NormWeights, Product, floats, product, union};
use super::matmul::Isa;
use super::pass::{Pass, Post, Rows, Tokens};
use super::pool::Work;
use super::profile::product_bytes;
use super::recurrence::{Channel, channels_step};
use crate::backend::Work as Kind;
use crate::error::{Result, try_vec};
use crate::model::Mamba1;
use std::ops::Range;

/// Channels of a block.
const BLOCK: usize = Mamba1::CHANNELS;

/// The weights of a layer.
pub(super) struct Mamba1Layer {
    /// The layer's place in a session's state.
    index: usize,
    channels: usize,
    state_dim: usize,
    rank: usize,
    x: Product,
    z: Product,
    conv: Convolution,
    short: Product,
    /// Of the short form of time steps, of `B`, and of `C`.
    norms: [Option<NormWeights>; 3],
    dt: Product,
    /// `[blocks][state_dim][BLOCK]`, with zeros behind the last channel.
    decay: Vec<f32>,
    skip: Vec<f32>,
    output: Product,
}

impl Mamba1Layer {
    /// Takes a layer over; reads only the small tensors.
    pub fn new((index, m): (usize, &Mamba1), isa: Isa) -> Result<Mamba1Layer> {
        let (channels, state_dim) = (m.channels(), m.state_dim);
        let rows = floats(&m.decay, "the decay of Mamba")?;
        let len = channels.next_multiple_of(BLOCK) * state_dim;
        let mut decay = try_vec(len, 0.0, "the decay of Mamba")?;
        for (channel, row) in rows.chunks_exact(state_dim).enumerate() {
            let (block, lane) = (channel / BLOCK, channel % BLOCK);
            for (n, value) in row.iter().enumerate() {
                decay[(block * state_dim + n) * BLOCK + lane] = *value;
            }
        }
        Ok(Mamba1Layer {
            index,
            channels,
            state_dim,
            rank: m.rank(),
            x: product(&m.x, isa)?,
            z: product(&m.z, isa)?,
            conv: Convolution::new(&m.conv)?,
            short: product(&m.short, isa)?,
            norms: [
                NormWeights::find(&m.dt_norm)?,
                NormWeights::find(&m.b_norm)?,
                NormWeights::find(&m.c_norm)?,
            ],
            dt: product(&m.dt, isa)?,
            decay,
            skip: floats(&m.skip, "the factors of Mamba")?,
            output: product(&m.output, isa)?,
        })
    }

    /// Floats of its small vectors.
    pub fn floats(&self) -> usize {
        let products = [&self.x, &self.z, &self.short, &self.dt, &self.output];
        let biases = products.into_iter().map(Product::bias_len).sum::<usize>();
        let norms = self.norms.iter().flatten().map(NormWeights::floats);
        let vectors = self.decay.len() + self.skip.len() + self.conv.floats();
        biases + vectors + norms.sum::<usize>()
    }

    /// Adds what the positions up to each token's say to it to the residual stream.
    pub fn run(&self, pass: &Pass, norm: Option<&NormWeights>, post: Post) -> Result<()> {
        let (tokens, buffers) = (pass.tokens, &pass.tokens.buffers);
        let s = buffers.sizes;
        let products = [&self.x, &self.z];
        pass.encode(norm, pass.input(), union(products))?;
        pass.marks.end_norm(norm);
        let x = Rows::of(buffers.v, &self.x, s.kv);
        let z = Rows::of(buffers.gate, &self.z, s.n_ff);
        pass.products(products, [x, z])?;
        self.conv
            .run(pass, self.index, &[Channels::of(x, &self.x)])?;
        let short = Rows::of(buffers.steps, &self.short, s.steps);
        pass.encode(None, x, self.short.matrix.encodings())?;
        pass.products([&self.short], [short])?;
        self.norm(pass)?;
        let rank = Rows {
            width: self.rank,
            ..short
        };
        pass.encode(self.norms[0].as_ref(), rank, self.dt.matrix.encodings())?;
        pass.products([&self.dt], [Rows::of(buffers.q, &self.dt, s.q)])?;
        let before = || product_bytes([&self.x, &self.z, &self.short, &self.dt]);
        pass.marks.end(Kind::Qkv, before);
        let runs = Runs::of(tokens);
        let blocks = self.channels.div_ceil(BLOCK);
        let cost = (runs.longest() * (self.state_dim * 8 + 60)) as u64;
        pass.phase(Work::even(runs.len() * blocks, cost), |_, tasks| {
            for task in tasks {
                let (run, block) = (task / blocks, task % blocks);
                // SAFETY: each block of a session is one thread's; B and C are only read.
                unsafe { self.block(tokens, block, runs.range(run)) };
            }
        })?;
        let state = || (self.decay.len() * size_of::<f32>()) as u64;
        pass.marks.end(Kind::Attention, state);
        pass.add_product(z, &self.output, post)?;
        pass.marks
            .end(Kind::Output, || product_bytes([&self.output]));
        Ok(())
    }

    /// Bias and norms of all tokens' `B` and `C`, and the bias of the short form.
    fn norm(&self, pass: &Pass) -> Result<()> {
        let [_, b_norm, c_norm] = &self.norms;
        if self.short.bias.is_none() && b_norm.is_none() && c_norm.is_none() {
            return Ok(());
        }
        let (tokens, buffers) = (pass.tokens, &pass.tokens.buffers);
        let width = self.short.matrix.rows();
        let work = Work::even(tokens.count, 50 + width as u64 / 2);
        pass.phase(work, |me, range| {
            for t in range {
                // SAFETY: each token is one thread's. The weights' instruction set is the processor's.
                unsafe {
                    let all = buffers.steps.part(t * buffers.sizes.steps, width);
                    add_bias(all, self.short.bias.as_deref());
                    let (b, c) = all[self.rank..].split_at_mut(self.state_dim);
                    for (part, norm) in [(b, b_norm), (c, c_norm)] {
                        if let Some(norm) = norm {
                            norm.apply_in_place(tokens.isa(), part, &mut me.row);
                        }
                    }
                }
            }
        })
    }

    /// The gated results of a block of channels for consecutive tokens of a session, in place of the
    /// gates.
    ///
    /// # Safety
    /// Nobody else uses these channels, or their state; nobody writes B and C.
    unsafe fn block(&self, tokens: &Tokens, block: usize, run: Range<usize>) {
        let (isa, buffers) = (tokens.isa(), &tokens.buffers);
        let (s, states) = (buffers.sizes, self.state_dim * BLOCK);
        let channels = block * BLOCK..((block + 1) * BLOCK).min(self.channels);
        let (first, n) = (channels.start, channels.len());
        let dt_bias = self.dt.bias.as_ref().map(|b| &b[channels.clone()]);
        let z_bias = self.z.bias.as_ref().map(|b| &b[channels.clone()]);
        let (cache, _) = tokens.places.at(run.start);
        let decay = &self.decay[block * states..][..states];
        let skip = &self.skip[channels.clone()];
        // SAFETY: the caller's promise. The weights' instruction set is the processor's.
        unsafe {
            let place = (self.index, &self.conv);
            for t in run.clone() {
                let state = head_state(cache, place, t - run.start, block, states);
                let at = t * s.steps + self.rank;
                let b = &*buffers.steps.part(at, self.state_dim);
                let c = &*buffers.steps.part(at + self.state_dim, self.state_dim);
                let x = &*buffers.v.part(t * s.kv + first, n);
                let dt = buffers.q.part(t * s.q + first, n);
                let z = buffers.gate.part(t * s.n_ff + first, n);
                add_bias(dt, dt_bias);
                add_bias(z, z_bias);
                let of_channels = Channel { x, dt, skip };
                channels_step(isa, state, decay, b, c, of_channels, z);
            }
        }
    }
}
