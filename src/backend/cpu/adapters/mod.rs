//! What sessions add to products: pairs of thin matrices of their adapters.
//!
//! The inputs of a product are kept as floats beside their encoding. `A x` is a product like any other, in
//! the order of [`super::matmul`]; `B` is added to each output row by row of its transpose. So the bits of a
//! token depend on its own adapters alone, whoever shares the pass.
//!
//! Matrices of experts and of heads have pairs of their own, one for each matrix of a tensor, and inputs of their own
//! ([`StackAdapters`]).

mod stacks;

pub(super) use stacks::{StackAdapters, StackProduct};

use super::elementwise::add_low_rank;
use super::layer::Product;
use super::matmul::{Activations, Encodings, Isa, View};
use super::pages::{Pages, Span};
use super::pass::Pass;
use super::pool::Work;
use super::weights::CpuWeights;
use crate::error::Result;
use crate::model::{Adapter, AdapterSet, Floats, LowRank};
use stacks::{StackShape, StackSpace, StackSpan};
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

    /// The first of some rows that have the same adapters, where `token` says whose each is.
    fn run(&self, rows: Range<usize>, token: impl Fn(usize) -> usize) -> Range<usize> {
        let Sets::Each(sets) = *self else {
            return rows;
        };
        let first = sets[token(rows.start)];
        let same = |row: &usize| match (sets[token(*row)], first) {
            (Some(a), Some(b)) => std::ptr::eq(a, b),
            (None, None) => true,
            _ => false,
        };
        let len = rows.clone().take_while(same).count();
        rows.start..rows.start + len
    }

    /// All of them.
    fn all(&self) -> impl Iterator<Item = &'a AdapterSet> {
        let (one, each): (_, &[_]) = match *self {
            Sets::One(set) => (Some(set), &[]),
            Sets::Each(sets) => (None, sets),
        };
        one.into_iter().chain(each.iter().copied().flatten())
    }

    /// The most ranks of a token's adapters together.
    fn ranks(&self) -> usize {
        let ranks = |set: &AdapterSet| set.iter().map(|u| u.adapter.max_rank).sum::<usize>();
        self.all().map(ranks).max().unwrap_or(0)
    }

    /// Whether an adapter of any token is one of those.
    fn have(&self, is_one: impl Fn(&Adapter) -> bool) -> bool {
        let mut uses = self.all().flatten();
        uses.any(|used| is_one(&used.adapter))
    }
}

/// Memory for the adapters of passes. It becomes resident as far as it is used.
pub(super) struct AdapterSpace {
    input: Activations,
    /// `A x`, of each token and product.
    thin: Pages,
    /// For matrices of the experts that a router chooses, and for those of heads of latent attention, where adapters have these.
    experts: Option<StackSpace>,
    heads: Option<StackSpace>,
    ranks: usize,
}

impl AdapterSpace {
    /// Bytes that a pass of up to `tokens` takes.
    pub fn bytes_for(weights: &CpuWeights, tokens: usize, sets: Sets<'_>) -> usize {
        let ranks = ranks(sets);
        let thin = floats(tokens, ranks).saturating_mul(size_of::<f32>());
        let stacks = [
            StackShape::of_experts(weights, tokens, sets),
            StackShape::of_heads(weights, tokens, sets),
        ];
        let stacks = stacks.iter().flatten().map(|shape| shape.bytes(ranks));
        Activations::bytes_for(tokens, weights.sizes.cols(), FLOAT)
            .saturating_add(thin)
            .saturating_add(stacks.fold(0, usize::saturating_add))
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
                experts: None,
                heads: None,
                ranks,
            });
        }
        let Some(space) = space else {
            unreachable!("made above");
        };
        let tokens = space.input.max_tokens();
        let experts = StackShape::of_experts(weights, tokens, sets);
        let heads = StackShape::of_heads(weights, tokens, sets);
        for (place, shape) in [(&mut space.experts, experts), (&mut space.heads, heads)] {
            if let (None, Some(shape)) = (&place, shape) {
                *place = Some(shape.space(space.ranks)?);
            }
        }
        Ok(Adapters {
            sets,
            input: &space.input,
            thin: space.thin.span(),
            experts: experts.and(space.experts.as_mut()).map(StackSpan::of),
            heads: heads.and(space.heads.as_mut()).map(StackSpan::of),
            ranks: space.ranks,
        })
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
    experts: Option<StackSpan<'a>>,
    heads: Option<StackSpan<'a>>,
    ranks: usize,
}

/// A product `A x` of some tokens.
struct Thin<'a> {
    run: Range<usize>,
    pair: &'a LowRank,
    /// Where its results begin in the first token's part of the thin rows.
    at: usize,
}

/// Adds what adapters have for the embedding of a token.
///
/// # Safety
/// The processor has `isa`.
pub(super) unsafe fn adapt_embedding(isa: Isa, set: &AdapterSet, token: u32, x: &mut [f32]) {
    for used in set {
        let Some(pair) = &used.adapter.embedding else {
            continue;
        };
        let scale = used.scale * pair.scale;
        let (mut thin, hidden) = ([0.0; 64], x.len());
        for k in (0..pair.rank).step_by(thin.len()) {
            let thin = &mut thin[..(pair.rank - k).min(64)];
            pair.of_tokens.read(token as usize * pair.rank + k, thin);
            // SAFETY: by contract, the processor has `isa`.
            unsafe { add_columns(isa, &pair.rows, k * hidden, hidden, thin, scale, x) }
        }
    }
}

impl<'a> Adapters<'a> {
    /// The adapters of a token, if it has any.
    pub fn of(&self, token: usize) -> Option<&'a AdapterSet> {
        self.sets.of(token)
    }

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
    ) -> impl Iterator<Item = (&'a LowRank, f32, usize)> + use<'a> {
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

    /// Calls `f` with the products `A x` to be made, in order.
    fn each(&self, products: &[&Product], count: usize, mut f: impl FnMut(Thin<'a>)) {
        for (index, product) in products.iter().enumerate() {
            let mut start = 0;
            while start < count {
                let run = self.sets.run(start..count, |token| token);
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
                // SAFETY: each task has a part of its own of the thin rows of its tokens; the input is
                // complete.
                unsafe {
                    let out = this.thin.base().add(at);
                    let stride = TOGETHER * this.ranks;
                    let rows = 0..pair.rank;
                    let (view, unpacked) = (view_of_a(pair, 0, isa), &mut me.unpacked);
                    view.mul(this.input, run, rows, out, stride, unpacked);
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
                add(isa, pair, (0, rows.start), thin, scale, y);
            }
        }
    }

    /// What they have for matrices of these products, of experts that a router chooses, if anything.
    pub fn of_experts(&self, products: &[&Product]) -> Option<StackAdapters<'a>> {
        self.of_stack(self.experts?, products)
    }

    /// The same of heads.
    pub fn of_heads(&self, product: &Product) -> Option<StackAdapters<'a>> {
        self.of_stack(self.heads?, &[product])
    }

    fn of_stack(&self, span: StackSpan<'a>, products: &[&Product]) -> Option<StackAdapters<'a>> {
        let has = |adapter: &Adapter| {
            let mut ids = products.iter().map(|product| product.tensor.id());
            ids.any(|id| adapter.pairs.contains_key(&id))
        };
        self.sets.have(has).then_some(StackAdapters {
            adapters: *self,
            span,
        })
    }
}

/// `A` of a matrix of the tensor that a pair is for.
fn view_of_a(pair: &LowRank, matrix: usize, isa: Isa) -> View<'_> {
    let a = pair.a_of(matrix);
    match View::new(pair.a_type, pair.rank, pair.inputs, a, isa) {
        Some(view) => view,
        None => unreachable!("as many bytes as it has rows"),
    }
}

/// Adds `scale * B thin` of a matrix, from some row of `B` on.
///
/// # Safety
/// The processor has `isa`.
unsafe fn add(
    isa: Isa,
    pair: &LowRank,
    (matrix, row): (usize, usize),
    thin: &[f32],
    scale: f32,
    y: &mut [f32],
) {
    let first = matrix * pair.rank * pair.outputs + row;
    // SAFETY: by contract, the processor has `isa`.
    unsafe { add_columns(isa, &pair.b, first, pair.outputs, thin, scale, y) }
}

/// `y += scale * thin[k] * b[k]`, for rows `k` of `b` that are `stride` apart, the first of them from element `first` on.
///
/// # Safety
/// The processor has `isa`.
unsafe fn add_columns(
    isa: Isa,
    b: &Floats,
    first: usize,
    stride: usize,
    thin: &[f32],
    scale: f32,
    y: &mut [f32],
) {
    // SAFETY: by contract, the processor has `isa`.
    unsafe {
        match b {
            Floats::F32(b) => add_low_rank(isa, y, thin, scale, &b[first..], stride),
            Floats::F16(b) => add_low_rank(isa, y, thin, scale, &b[first..], stride),
            Floats::BF16(b) => add_low_rank(isa, y, thin, scale, &b[first..], stride),
        }
    }
}
