//! A gated short convolution as a block's mixer. Channels do not see each other, so threads have
//! channels of their own, and walk through the tokens in order.

use super::convolution::Runs;
use super::kv::KvCache;
use super::layer::{NormWeights, Product, find_floats, floats, product, union};
use super::matmul::Isa;
use super::pages::Span;
use super::pass::{Pass, Post, Rows, Tokens};
use super::pool::Work;
use super::profile::product_bytes;
use crate::backend::Work as Kind;
use crate::error::{Result, try_vec};
use crate::model::ShortConv;
use std::ops::Range;

/// Channels that a thread takes at a time.
const CHANNELS: usize = 64;

/// The weights of a layer's convolution.
pub(super) struct ShortConvLayer {
    /// The layer's place in a session's state.
    index: usize,
    b: Product,
    c: Product,
    x: Product,
    output: Product,
    width: usize,
    channels: usize,
    /// `[width][channels]`, the oldest position first.
    taps: Vec<f32>,
    bias: Option<Vec<f32>>,
}

impl ShortConvLayer {
    /// Takes a layer's convolution over; reads only the small tensors.
    pub fn new((index, m): (usize, &ShortConv), isa: Isa) -> Result<ShortConvLayer> {
        let (channels, width) = (m.conv.channels(), m.conv.width());
        let rows = floats(&m.conv.weight, "a convolution")?;
        let mut taps = try_vec(rows.len(), 0.0, "a convolution")?;
        for (channel, row) in rows.chunks_exact(width).enumerate() {
            for (tap, weight) in row.iter().enumerate() {
                taps[tap * channels + channel] = *weight;
            }
        }
        Ok(ShortConvLayer {
            index,
            b: product(&m.b, isa)?,
            c: product(&m.c, isa)?,
            x: product(&m.x, isa)?,
            output: product(&m.output, isa)?,
            width,
            channels,
            taps,
            bias: find_floats(&m.conv.bias, "a convolution's bias")?,
        })
    }

    /// Floats of its small vectors.
    pub fn floats(&self) -> usize {
        let products = [&self.b, &self.c, &self.x, &self.output];
        let biases = products.into_iter().map(Product::bias_len).sum::<usize>();
        biases + self.taps.len() + self.bias.as_ref().map_or(0, Vec::len)
    }

    /// Adds what the last positions say to each token to the residual stream.
    pub fn run(&self, pass: &Pass, norm: Option<&NormWeights>, post: Post) -> Result<()> {
        let (tokens, buffers) = (pass.tokens, &pass.tokens.buffers);
        let products = [&self.b, &self.c, &self.x];
        pass.encode(norm, pass.input(), union(products))?;
        pass.marks.end_norm(norm);
        let rows = |span, stride| Rows {
            span,
            width: self.channels,
            stride,
        };
        let kv = buffers.sizes.kv;
        let b = rows(buffers.q, buffers.sizes.q);
        pass.products(products, [b, rows(buffers.k, kv), rows(buffers.v, kv)])?;
        pass.marks.end(Kind::Qkv, || product_bytes(products));
        let blocks = self.channels.div_ceil(CHANNELS);
        let runs = Runs::of(tokens);
        let cost = (runs.longest() * CHANNELS * self.width / 4) as u64;
        pass.phase(Work::even(runs.len() * blocks, cost), |_, tasks| {
            for task in tasks {
                let (run, first) = (task / blocks, task % blocks * CHANNELS);
                let channels = first..(first + CHANNELS).min(self.channels);
                let run = runs.range(run);
                let (cache, _) = tokens.places.at(run.start);
                // SAFETY: each channel of a session is one thread's.
                unsafe { self.convolve(tokens, cache, run, channels) };
            }
        })?;
        let state = || (self.channels * (self.width - 1) * size_of::<f32>()) as u64;
        pass.marks.end(Kind::Attention, state);
        pass.add_product(b, &self.output, post)?;
        pass.marks
            .end(Kind::Output, || product_bytes([&self.output]));
        Ok(())
    }

    /// The gated convolution of some channels of consecutive tokens of a session, in place of `b`.
    ///
    /// # Safety
    /// Nobody else uses these channels of the tokens, or of the layer's states.
    unsafe fn convolve(
        &self,
        tokens: &Tokens,
        cache: &KvCache,
        run: Range<usize>,
        channels: Range<usize>,
    ) {
        let (buffers, n) = (&tokens.buffers, channels.len());
        let (q, kv) = (buffers.sizes.q, buffers.sizes.kv);
        let kept = self.width - 1;
        let place = |i: usize| i * self.channels + channels.start;
        let (before, last) = cache.fixed.of_row(self.index, 0);
        let row = |span: Span<'_>, stride: usize, token: usize| {
            let at = (run.start + token) * stride + channels.start;
            span.base().wrapping_add(at)
        };
        // What position `i` holds, counted from the oldest one that is kept.
        let past = |i: usize| match i.checked_sub(kept) {
            None => before.wrapping_add(place(i)),
            Some(token) => row(buffers.v, kv, token).cast_const(),
        };
        let bias = |product: &'_ Product| {
            let bias = product.bias.as_ref();
            bias.map(|b| b[channels.clone()].as_ptr())
        };
        let biases = [bias(&self.b), bias(&self.c), bias(&self.x)];
        // SAFETY: the buffers have the channels of all tokens of the run, the states have `kept`
        // columns; by contract, nobody else uses them.
        unsafe {
            let rows = |p: *mut f32| std::slice::from_raw_parts_mut(p, n);
            let read = |p: *const f32| std::slice::from_raw_parts(p, n);
            let add = |x: &mut [f32], bias: Option<*const f32>| {
                if let Some(bias) = bias {
                    x.iter_mut().zip(read(bias)).for_each(|(x, b)| *x += b);
                }
            };
            for t in 0..run.len() {
                let (b, c) = (rows(row(buffers.q, q, t)), rows(row(buffers.k, kv, t)));
                let x = rows(row(buffers.v, kv, t));
                add(b, biases[0]);
                add(c, biases[1]);
                add(x, biases[2]);
                x.iter_mut().zip(&*b).for_each(|(x, b)| *x *= b);
                match &self.bias {
                    Some(bias) => b.copy_from_slice(&bias[channels.clone()]),
                    None => b.fill(0.0),
                }
                for tap in 0..self.width {
                    let weights = &self.taps[tap * self.channels..][channels.clone()];
                    let inputs = read(past(t + tap));
                    for ((sum, weight), input) in b.iter_mut().zip(weights).zip(inputs) {
                        *sum += weight * input;
                    }
                }
                b.iter_mut().zip(&*c).for_each(|(b, c)| *b *= c);
            }
            if cache.fixed.is_apart() {
                for t in 0..run.len() {
                    let (_, state) = cache.fixed.of_row(self.index, t);
                    for i in 0..kept {
                        std::ptr::copy_nonoverlapping(past(t + 1 + i), state.add(place(i)), n);
                    }
                }
                return;
            }
            // A column comes from a later one, or from a token.
            for i in 0..kept {
                std::ptr::copy_nonoverlapping(past(run.len() + i), last.add(place(i)), n);
            }
        }
    }
}
