//! Adapters of matrices that are those of experts or heads, with inputs of their own.

use super::super::layer::Product;
use super::super::matmul::{Activations, Isa, Scratch};
use super::super::pages::{Pages, Span};
use super::super::weights::CpuWeights;
use super::{Adapters, FLOAT, Sets, add, view_of_a};
use crate::error::Result;
use std::ops::Range;

/// The most products of an input of experts or heads.
const IN_STACKS: usize = 2;

/// Memory for products of matrices that not all tokens have, or with inputs of their own.
pub(super) struct StackSpace {
    input: Activations,
    thin: Pages,
}

/// Rows of a [`StackSpace`] and their elements.
#[derive(Clone, Copy)]
pub(super) struct StackShape {
    rows: usize,
    cols: usize,
}

impl StackShape {
    /// Of experts in passes of up to `tokens`, if any adapter has pairs for them.
    pub fn of_experts(weights: &CpuWeights, tokens: usize, sets: Sets<'_>) -> Option<StackShape> {
        let s = &weights.sizes.experts;
        sets.have(|adapter| adapter.has_experts)
            .then(|| StackShape {
                rows: tokens.max(s.n_used),
                cols: s.hidden.max(s.n_ff),
            })
    }

    /// The same of heads.
    pub fn of_heads(weights: &CpuWeights, tokens: usize, sets: Sets<'_>) -> Option<StackShape> {
        let s = &weights.sizes.heads;
        sets.have(|adapter| adapter.has_heads).then(|| StackShape {
            rows: tokens.saturating_mul(s.n_heads),
            cols: s.cols,
        })
    }

    fn thin(&self, ranks: usize) -> usize {
        self.rows.saturating_mul(ranks).saturating_mul(IN_STACKS)
    }

    pub fn bytes(&self, ranks: usize) -> usize {
        let thin = self.thin(ranks).saturating_mul(size_of::<f32>());
        Activations::bytes_for(self.rows, self.cols, FLOAT).saturating_add(thin)
    }

    pub fn space(&self, ranks: usize) -> Result<StackSpace> {
        Ok(StackSpace {
            input: Activations::new(self.rows, self.cols, FLOAT)?,
            thin: Pages::floats(self.thin(ranks), "adapter scratch")?,
        })
    }
}

/// A [`StackSpace`], as each thread sees it.
#[derive(Clone, Copy)]
pub(super) struct StackSpan<'a> {
    input: &'a Activations,
    thin: Span<'a>,
}

impl<'a> StackSpan<'a> {
    pub fn of(space: &'a mut StackSpace) -> StackSpan<'a> {
        StackSpan {
            input: &space.input,
            thin: space.thin.span(),
        }
    }
}

/// What the adapters of a pass have for matrices of experts or heads. Each row is the input of a token for one of them.
#[derive(Clone, Copy)]
pub(in super::super) struct StackAdapters<'a> {
    pub(super) adapters: Adapters<'a>,
    pub(super) span: StackSpan<'a>,
}

/// Which product of [`IN_STACKS`], and which of the matrices of its tensor.
#[derive(Clone, Copy)]
pub(in super::super) struct StackProduct<'p> {
    pub index: usize,
    pub product: &'p Product,
    pub matrix: usize,
}

impl StackAdapters<'_> {
    /// Keeps the input of a row's products.
    ///
    /// # Safety
    /// No other thread reads or writes this row's input.
    pub unsafe fn keep(&self, isa: Isa, row: usize, values: &[f32]) {
        // SAFETY: by contract, no other thread uses this row's input.
        unsafe { self.span.input.set_row(isa, row, values, FLOAT) }
    }

    /// Makes what [`Adapters::keep`] has kept of a token, of so many elements, the input of a row's products.
    ///
    /// # Safety
    /// No other thread reads or writes this row's input, and nobody writes the token's.
    pub unsafe fn take(&self, row: usize, token: usize, len: usize) {
        if self.adapters.sets.of(token).is_some() {
            let (to, from) = (self.span.input, self.adapters.input);
            // SAFETY: by contract, no other thread uses this row's input, and nobody writes the token's.
            unsafe { to.copy_row(row, from, token, len, FLOAT) }
        }
    }

    /// Works `A x` out for some rows of a matrix's product, of these tokens.
    ///
    /// # Safety
    /// The processor has `isa`; the rows' inputs are kept, and no other thread uses what this makes of them.
    pub unsafe fn lora_down(
        &self,
        isa: Isa,
        of: StackProduct<'_>,
        rows: Range<usize>,
        token: impl Fn(usize) -> usize,
        unpacked: &mut Scratch,
    ) {
        let Adapters { sets, ranks, .. } = self.adapters;
        let mut start = rows.start;
        while start < rows.end {
            let run = sets.run(start..rows.end, &token);
            start = run.end;
            let Some(set) = sets.of(token(run.start)) else {
                continue;
            };
            for (pair, _, at) in Adapters::pairs(set, of.product) {
                let view = view_of_a(pair, of.matrix, isa);
                let stride = IN_STACKS * ranks;
                // SAFETY: by contract, the inputs are complete, and these parts of the thin rows are this thread's.
                unsafe {
                    let out = self.span.thin.base().add(of.index * ranks + at);
                    let all = 0..pair.rank;
                    view.mul(self.span.input, run.clone(), all, out, stride, unpacked);
                }
            }
        }
    }

    /// Adds what the adapters of a row's token have to rows of a matrix's product.
    ///
    /// # Safety
    /// As [`Adapters::lora_up`], of [`lora_down`](StackAdapters::lora_down).
    pub unsafe fn lora_up(
        &self,
        isa: Isa,
        (row, token): (usize, usize),
        of: StackProduct<'_>,
        rows: Range<usize>,
        y: &mut [f32],
    ) {
        let Adapters { sets, ranks, .. } = self.adapters;
        let Some(set) = sets.of(token) else {
            return;
        };
        for (pair, scale, at) in Adapters::pairs(set, of.product) {
            let at = (row * IN_STACKS + of.index) * ranks + at;
            // SAFETY: by contract, the processor has `isa`, `lora_down` is complete, and nobody writes what it has made.
            unsafe {
                let thin = &*self.span.thin.part(at, pair.rank);
                add(isa, pair, (of.matrix, rows.start), thin, scale, y);
            }
        }
    }
}
