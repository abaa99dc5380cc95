//! What sessions add to products: pairs of thin matrices of their adapters.
//!
//! The inputs of a product are kept as floats beside their encoding. `A x` is a product like any other, in
//! the order of [`super::matmul`]; `B` is added to each output row by row of its transpose. So the bits of a
//! token depend on its own adapters alone, whoever shares the pass.

use super::elementwise::add_low_rank;
use super::layer::Product;
use super::matmul::{Activations, Encodings, Isa, View};
use super::pages::{Pages, Span};
use super::pass::Pass;
use super::pool::Work;
use super::weights::CpuWeights;
use crate::error::Result;
use crate::model::{AdapterSet, Floats, LowRank};
use std::ops::Range;

/// The most products of one input.
const TOGETHER: usize = 8;
const FLOAT: Encodings = Encodings {
    float: true,
    q8: false,
};

/// Whose adapters the tokens of a pass have.
#[derive(Clone, Copy)]
pub(super) enum Sets<'a> {
    /// All tokens the same.
    One(&'a AdapterSet),
    /// Each its own; nothing is added to tokens without.
    Each(&'a [Option<&'a AdapterSet>]),
}

impl<'a> Sets<'a> {
    fn of(&self, token: usize) -> Option<&'a AdapterSet> {
        match self {
            Sets::One(set) => Some(set),
            Sets::Each(sets) => sets[token],
        }
    }

    /// The most ranks of a token's adapters together.
    fn ranks(&self) -> usize {
        let ranks = |set: &AdapterSet| set.iter().map(|u| u.adapter.max_rank).sum::<usize>();
        match self {
            Sets::One(set) => ranks(set),
            Sets::Each(sets) => sets.iter().flatten().map(|s| ranks(s)).max().unwrap_or(0),
        }
    }
}

/// Memory for the adapters of passes. It becomes resident as far as it is used.
pub(super) struct AdapterSpace {
    input: Activations,
    /// `A x`, of each token and product.
    thin: Pages,
    ranks: usize,
}

impl AdapterSpace {
    /// Bytes that a pass of up to `tokens` takes.
    pub fn bytes_for(weights: &CpuWeights, tokens: usize, sets: Sets<'_>) -> usize {
        let thin = floats(tokens, ranks(sets)).saturating_mul(size_of::<f32>());
        Activations::bytes_for(tokens, weights.sizes.cols(), FLOAT).saturating_add(thin)
    }

    /// Readies the memory for a pass of up to `tokens`.
    pub fn reserve<'s>(
        space: &'s mut Option<AdapterSpace>,
        weights: &CpuWeights,
        tokens: usize,
        sets: Sets<'s>,
    ) -> Result<Adapters<'s>> {
        let ranks = ranks(sets);
        let fits = |s: &AdapterSpace| s.ranks >= ranks && s.input.max_tokens() >= tokens;
        if !space.as_ref().is_some_and(fits) {
            *space = Some(AdapterSpace {
                input: Activations::new(tokens, weights.sizes.cols(), FLOAT)?,
                thin: Pages::floats(floats(tokens, ranks), "adapter scratch")?,
                ranks,
            });
        }
        match space {
            Some(space) => Ok(Adapters {
                sets,
                input: &space.input,
                thin: space.thin.span(),
                ranks: space.ranks,
            }),
            None => unreachable!("made above"),
        }
    }
}

/// The ranks that there is memory for, at least those of these.
fn ranks(sets: Sets<'_>) -> usize {
    sets.ranks().next_multiple_of(16)
}

/// Floats of all thin rows of a pass.
fn floats(tokens: usize, ranks: usize) -> usize {
    tokens.saturating_mul(ranks).saturating_mul(TOGETHER)
}

/// The adapters of a pass.
#[derive(Clone, Copy)]
pub(super) struct Adapters<'a> {
    sets: Sets<'a>,
    input: &'a Activations,
    thin: Span<'a>,
    ranks: usize,
}

/// A product `A x` of some tokens.
struct Thin<'a> {
    run: Range<usize>,
    pair: &'a LowRank,
    /// Where its results begin in the first token's part of the thin rows.
    at: usize,
}

impl<'a> Adapters<'a> {
    /// Keeps the input of a token's products.
    ///
    /// # Safety
    /// No other thread reads or writes this token's input.
    pub unsafe fn keep(&self, isa: Isa, token: usize, row: &[f32]) {
        if self.sets.of(token).is_some() {
            // SAFETY: by contract, no other thread uses this token's input.
            unsafe { self.input.set_row(isa, token, row, FLOAT) }
        }
    }

    /// What a token's adapters have for a product: the pair, how much it counts, and where its part of
    /// the thin row begins.
    fn pairs(
        set: &'a AdapterSet,
        product: &Product,
    ) -> impl Iterator<Item = (&'a LowRank, f32, usize)> {
        let id = product.tensor.id();
        let mut at = 0;
        set.iter().filter_map(move |used| {
            let start = at;
            at += used.adapter.max_rank;
            let pair = used.adapter.pairs.get(&id)?;
            Some((pair, used.scale * pair.scale, start))
        })
    }

    /// Where the thin row of a token begins, of the product at an index.
    fn thin_at(&self, token: usize, index: usize) -> usize {
        (token * TOGETHER + index) * self.ranks
    }

    /// The tokens from `start` on that have the same adapters as that one.
    fn run(&self, start: usize, count: usize) -> Range<usize> {
        let Sets::Each(sets) = self.sets else {
            return start..count;
        };
        let same = |set: &Option<&AdapterSet>| match (set, sets[start]) {
            (Some(a), Some(b)) => std::ptr::eq(*a, b),
            (None, None) => true,
            _ => false,
        };
        let len = sets[start..count]
            .iter()
            .take_while(|set| same(set))
            .count();
        start..start + len
    }

    /// Calls `f` with the products `A x` to be made, in order.
    fn each(&self, products: &[&Product], count: usize, mut f: impl FnMut(Thin<'a>)) {
        for (index, product) in products.iter().enumerate() {
            let mut start = 0;
            while start < count {
                let run = self.run(start, count);
                start = run.end;
                let Some(set) = self.sets.of(run.start) else {
                    continue;
                };
                for (pair, _, at) in Adapters::pairs(set, product) {
                    let at = index * self.ranks + at;
                    let run = run.clone();
                    f(Thin { run, pair, at });
                }
            }
        }
    }

    /// Works `A x` out for these products of the kept input.
    pub fn lora_down(&self, pass: &Pass, products: &[&Product]) -> Result<()> {
        assert!(products.len() <= TOGETHER);
        let count = pass.tokens.count;
        let (mut tasks, mut cost) = (0, 0);
        self.each(products, count, |thin| {
            tasks += 1;
            cost += (thin.run.len() * thin.pair.rank * thin.pair.inputs) as u64 / 16;
        });
        if tasks == 0 {
            return Ok(());
        }
        let (this, isa) = (*self, pass.tokens.isa());
        let work = Work::even(tasks, 100 + cost / tasks as u64);
        pass.phase(work, move |me, range| {
            let mut task = 0..;
            this.each(products, count, |Thin { run, pair, at }| {
                if !task.next().is_some_and(|i| range.contains(&i)) {
                    return;
                }
                let view = View::new(pair.a_type, pair.rank, pair.inputs, &pair.a, isa);
                let Some(view) = view else {
                    unreachable!("as many bytes as it has rows");
                };
                // SAFETY: each task has a part of its own of the thin rows of its tokens; the input is
                // complete.
                unsafe {
                    let out = this.thin.base().add(at);
                    let stride = TOGETHER * this.ranks;
                    let rows = 0..pair.rank;
                    view.mul(this.input, run, rows, out, stride, &mut me.unpacked);
                }
            });
        })
    }

    /// Adds what a token's adapters have to rows of the product at an index among those of
    /// [`lora_down`](Adapters::lora_down).
    ///
    /// # Safety
    /// The processor has `isa`; `lora_down` is complete, and nobody writes what it has made.
    pub unsafe fn lora_up(
        &self,
        isa: Isa,
        token: usize,
        (index, product): (usize, &Product),
        rows: Range<usize>,
        y: &mut [f32],
    ) {
        let Some(set) = self.sets.of(token) else {
            return;
        };
        for (pair, scale, at) in Adapters::pairs(set, product) {
            // SAFETY: by contract, the processor has `isa`, `lora_down` is complete, and nobody writes what it has made.
            unsafe {
                let thin = &*self.thin.part(self.thin_at(token, index) + at, pair.rank);
                let (first, stride) = (rows.start, pair.outputs);
                match &pair.b {
                    Floats::F32(b) => add_low_rank(isa, y, thin, scale, &b[first..], stride),
                    Floats::F16(b) => add_low_rank(isa, y, thin, scale, &b[first..], stride),
                    Floats::BF16(b) => add_low_rank(isa, y, thin, scale, &b[first..], stride),
                }
            }
        }
    }
}
