//! Convolutions of channels by themselves, before a recurrence: in place, with SiLU behind them. (That
//! of [`super::short_conv`] has gates on both sides instead.)

use super::elementwise::silu_alone;
use super::kv::KvCache;
use super::layer::{Product, find_floats, floats};
use super::matmul::Isa;
use super::pages::Span;
use super::pass::{Pass, Places, Rows, Tokens};
use super::pool::Work;
use crate::error::{Result, try_vec};
use crate::model::Conv;
use std::ops::Range;

/// Channels that a thread takes at a time.
const CHANNELS: usize = 32;
/// Positions before a token that a convolution may see, for memory on the stack.
const MAX_KEPT: usize = 63;

/// The weights of a convolution.
pub(super) struct Convolution {
    width: usize,
    channels: usize,
    /// `[width][channels]`, the oldest position first.
    taps: Vec<f32>,
    bias: Option<Vec<f32>>,
}

/// Channels that lie together: `len` of each token, `stride` apart, with a bias that they get before.
pub(super) struct Channels<'a> {
    pub span: Span<'a>,
    pub stride: usize,
    pub len: usize,
    pub bias: Option<&'a [f32]>,
}

impl<'a> Channels<'a> {
    /// What a product makes: its rows, with its bias still to be added.
    pub fn of(rows: Rows<'a>, product: &'a Product) -> Channels<'a> {
        Channels {
            span: rows.span,
            stride: rows.stride,
            len: rows.width,
            bias: product.bias.as_deref(),
        }
    }
}

impl Convolution {
    /// Reads its tensors.
    pub fn new(conv: &Conv) -> Result<Convolution> {
        let (channels, width) = (conv.channels(), conv.width());
        assert!(width <= MAX_KEPT + 1, "checked when the model was read");
        let rows = floats(&conv.weight, "a convolution")?;
        let mut taps = try_vec(rows.len(), 0.0, "a convolution")?;
        for (channel, row) in rows.chunks_exact(width).enumerate() {
            for (tap, weight) in row.iter().enumerate() {
                taps[tap * channels + channel] = *weight;
            }
        }
        Ok(Convolution {
            width,
            channels,
            taps,
            bias: find_floats(&conv.bias, "a convolution's bias")?,
        })
    }

    /// Floats of its weights.
    pub fn floats(&self) -> usize {
        self.taps.len() + self.bias.as_ref().map_or(0, Vec::len)
    }

    /// Convolves all tokens' channels, which are those of `parts` in order, and takes what the next
    /// tokens need to the state of the layer.
    pub fn run(&self, pass: &Pass, layer: usize, parts: &[Channels]) -> Result<()> {
        let tokens = pass.tokens;
        let blocks_of = |part: &Channels| part.len.div_ceil(CHANNELS);
        let blocks: usize = parts.iter().map(blocks_of).sum();
        let (runs, each) = runs(tokens);
        let cost = (each * CHANNELS * (self.width + 8) / 8) as u64;
        pass.phase(Work::even(runs * blocks, cost), |_, tasks| {
            for task in tasks {
                let (run, mut block) = (task / blocks, task % blocks);
                let mut first = 0;
                for part in parts {
                    if block < blocks_of(part) {
                        let start = block * CHANNELS;
                        let range = start..(start + CHANNELS).min(part.len);
                        let (cache, _) = tokens.places.at(run * each);
                        let state = cache.fixed.of_layer(layer);
                        let run = run * each..(run + 1) * each;
                        // SAFETY: each channel of a session is one thread's.
                        unsafe { self.convolve(tokens.isa(), part, (first, range), run, state) };
                        break;
                    }
                    block -= blocks_of(part);
                    first += part.len;
                }
            }
        })
    }

    /// Some channels of a part that begins at channel `first`, of consecutive tokens of a session.
    ///
    /// # Safety
    /// The processor has `isa`. Nobody else uses these channels of the tokens, or of `state`.
    unsafe fn convolve(
        &self,
        isa: Isa,
        part: &Channels,
        (first, range): (usize, Range<usize>),
        run: Range<usize>,
        state: *mut f32,
    ) {
        let (kept, n) = (self.width - 1, range.len());
        let channels = first + range.start..first + range.end;
        let column = |i: usize| state.wrapping_add(i * self.channels + channels.start);
        // SAFETY: the rows and the state have these channels; by contract, nobody else uses them.
        unsafe {
            let row = |t: usize| {
                let at = (run.start + t) * part.stride + range.start;
                part.span.part(at, n)
            };
            if let Some(bias) = part.bias {
                for t in 0..run.len() {
                    let bias = &bias[range.clone()];
                    row(t).iter_mut().zip(bias).for_each(|(x, b)| *x += b);
                }
            }
            // What position `i` holds, counted from the oldest one that is kept.
            let past = |i: usize| match i.checked_sub(kept) {
                None => std::slice::from_raw_parts(column(i), n),
                Some(token) => &*row(token),
            };
            let mut next = [[0f32; CHANNELS]; MAX_KEPT];
            for (i, next) in next[..kept].iter_mut().enumerate() {
                next[..n].copy_from_slice(past(run.len() + i));
            }
            // From the last one on: a result takes the place of what only later ones need.
            for t in (0..run.len()).rev() {
                let mut sums = [0f32; CHANNELS];
                let sums = &mut sums[..n];
                if let Some(bias) = &self.bias {
                    sums.copy_from_slice(&bias[channels.clone()]);
                }
                for tap in 0..self.width {
                    let weights = &self.taps[tap * self.channels..][channels.clone()];
                    for ((sum, weight), input) in sums.iter_mut().zip(weights).zip(past(t + tap)) {
                        *sum += weight * input;
                    }
                }
                silu_alone(isa, sums);
                row(t).copy_from_slice(sums);
            }
            for (i, next) in next[..kept].iter().enumerate() {
                std::ptr::copy_nonoverlapping(next.as_ptr(), column(i), n);
            }
        }
    }
}

/// How many runs of consecutive tokens of a session there are, and of how many tokens each.
pub(super) fn runs(tokens: &Tokens) -> (usize, usize) {
    match tokens.places {
        Places::Run(..) => (1, tokens.count),
        Places::Each(_) => (tokens.count, 1),
        Places::Texts(_) | Places::Unknown => {
            unreachable!("mixers that need a session were refused")
        }
    }
}

/// The matrix of a head in a layer's state, behind what the convolution keeps.
///
/// # Safety
/// Nobody else uses it as long as it lives.
#[allow(clippy::mut_from_ref)]
pub(super) unsafe fn head_state<'a>(
    cache: &'a KvCache,
    (layer, conv): (usize, &Convolution),
    head: usize,
    len: usize,
) -> &'a mut [f32] {
    let at = conv.channels * (conv.width - 1) + head * len;
    // SAFETY: the layer's state has that many floats; by contract, nobody else uses them.
    unsafe { std::slice::from_raw_parts_mut(cache.fixed.of_layer(layer).add(at), len) }
}
