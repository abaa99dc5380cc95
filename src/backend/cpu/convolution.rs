//! Convolutions of channels by themselves, before a recurrence: in place, with SiLU behind them. (That
//! of [`super::short_conv`] has gates on both sides instead.)

use super::elementwise::silu_alone;
use super::fixed::FixedStates;
use super::kv::KvCache;
use super::layer::{Product, find_floats, floats};
use super::matmul::Isa;
use super::pages::Span;
use super::pass::{Pass, Places, Rows, Tokens};
use super::pool::Work;
use crate::backend::MAX_BATCH;
use crate::error::{Result, try_vec};
use crate::model::Conv;
use arrayvec::ArrayVec;
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
        let runs = Runs::of(tokens);
        let cost = (runs.longest() * CHANNELS * (self.width + 8) / 8) as u64;
        pass.phase(Work::even(runs.len() * blocks, cost), |_, tasks| {
            for task in tasks {
                let (run, mut block) = (task / blocks, task % blocks);
                let mut first = 0;
                for part in parts {
                    if block < blocks_of(part) {
                        let start = block * CHANNELS;
                        let range = start..(start + CHANNELS).min(part.len);
                        let run = runs.range(run);
                        let (cache, _) = tokens.places.at(run.start);
                        let states = (&cache.fixed, layer);
                        // SAFETY: each channel of a session is one thread's.
                        unsafe { self.convolve(tokens.isa(), part, (first, range), run, states) };
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
    /// The processor has `isa`. Nobody else uses these channels of the tokens, or of the layer's states.
    unsafe fn convolve(
        &self,
        isa: Isa,
        part: &Channels,
        (first, range): (usize, Range<usize>),
        run: Range<usize>,
        (states, layer): (&FixedStates, usize),
    ) {
        let (kept, n) = (self.width - 1, range.len());
        let channels = first + range.start..first + range.end;
        let place = |i: usize| i * self.channels + channels.start;
        let (before, last) = states.of_row(layer, 0);
        let apart = states.is_apart();
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
                None => std::slice::from_raw_parts(before.add(place(i)), n),
                Some(token) => &*row(token),
            };
            let mut next = [[0f32; CHANNELS]; MAX_KEPT];
            for (i, next) in next[..kept].iter_mut().enumerate() {
                next[..n].copy_from_slice(past(run.len() + i));
            }
            // From the last one on: a result takes the place of what only later ones need.
            for t in (0..run.len()).rev() {
                if apart {
                    let (_, state) = states.of_row(layer, t);
                    for i in 0..kept {
                        let column = state.add(place(i));
                        std::ptr::copy_nonoverlapping(past(t + 1 + i).as_ptr(), column, n);
                    }
                }
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
            if !apart {
                for (i, next) in next[..kept].iter().enumerate() {
                    std::ptr::copy_nonoverlapping(next.as_ptr(), last.add(place(i)), n);
                }
            }
        }
    }
}

/// Runs of consecutive tokens of a session each.
pub(super) struct Runs {
    /// Where each begins, and the end of the last one.
    borders: ArrayVec<usize, { MAX_BATCH + 1 }>,
}

impl Runs {
    /// Those of a pass.
    pub fn of(tokens: &Tokens) -> Runs {
        let mut borders = ArrayVec::new();
        borders.push(0);
        match tokens.places {
            Places::Run(..) => {}
            Places::Each(places) => {
                let starts =
                    (1..tokens.count).filter(|t| !std::ptr::eq(places[*t - 1].0, places[*t].0));
                borders.extend(starts);
            }
            Places::Texts(_) | Places::Unknown => {
                unreachable!("mixers that need a session were refused")
            }
        }
        borders.push(tokens.count);
        Runs { borders }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.borders.len() - 1
    }

    /// The tokens of one.
    pub fn range(&self, run: usize) -> Range<usize> {
        self.borders[run]..self.borders[run + 1]
    }

    /// Tokens of the longest one.
    pub fn longest(&self) -> usize {
        let lens = self.borders.windows(2).map(|b| b[1] - b[0]);
        lens.max().unwrap_or(0)
    }
}

/// The matrix of a head in a layer's state, behind what the convolution keeps, as row `t` of a run finds it and is to leave it.
///
/// # Safety
/// Nobody else uses it, in any row's state, as long as it lives; earlier rows of the run have left theirs.
#[allow(clippy::mut_from_ref)]
pub(super) unsafe fn head_state<'a>(
    cache: &'a KvCache,
    (layer, conv): (usize, &Convolution),
    t: usize,
    head: usize,
    len: usize,
) -> &'a mut [f32] {
    let at = conv.channels * (conv.width - 1) + head * len;
    let (from, to) = cache.fixed.of_row(layer, t);
    // SAFETY: the layer's states have that many floats; by contract, nobody else uses them. Two states are different mappings.
    unsafe {
        if !std::ptr::eq(from, to) {
            std::ptr::copy_nonoverlapping(from.add(at), to.add(at), len);
        }
        std::slice::from_raw_parts_mut(to.add(at), len)
    }
}
