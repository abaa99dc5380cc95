//! Heads of EAGLE-3: the hidden states between layers that they read, and what is around their layer (`kernels/fusion.cu`).
//!
//! A position's joined state is made of the model's, which are at several places, where the head's session has its own of the position
//! before. So a step goes on from either in the same way.

use super::evaluation::Evaluation;
use super::hidden::StateRows;
use super::plan::{EntryPlan, FusionPlan};
use super::prefill::ChunkOperations;
use super::step::StepOperations;
use super::walk::Operations;
use crate::backend::Work;
use crate::backend::cuda::launch::args;
use crate::backend::cuda::launch::span::Span;
use crate::error::Result;

/// What of embeddings and states is joined, as `half` of `JoinArgs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Half {
    Both = 0,
    Embeddings = 1,
    States = 2,
}

impl Evaluation<'_> {
    /// Hands out what the residual stream of rows is before a layer, or behind the last one, to the sessions that keep it: rows of a chunk
    /// of the first session, or one of each session.
    ///
    /// # Safety
    /// *sessions*, *workspace*.
    pub(super) unsafe fn keep_place(
        &self,
        place: usize,
        residual: Span,
        rows: u32,
        is_chunk: bool,
    ) -> Result<()> {
        if !self.keeps.has(place) {
            return Ok(());
        }
        let keep = args::KeepPlace {
            sessions: self.sessions,
            x: residual.address,
            x_stride: residual.stride,
            len: self.plan.hidden,
            chunk: if is_chunk { rows } else { 0 },
            place: place as u32,
            unit: self.plan.residual_unit,
            padding: 0,
        };
        // SAFETY: by contract, addresses of the *sessions* and the *workspace*.
        unsafe { self.kernels.keep_place(self.stream, &keep, rows) }
    }

    /// What a head's layer reads, in `out`, and what it adds to, in place of what is in `x`.
    ///
    /// # Safety
    /// *weights*, *sessions*, *workspace*; the states are there.
    unsafe fn join(
        &self,
        entry: &EntryPlan,
        half: Half,
        (x, out): (Span, Span),
        rows: u32,
    ) -> Result<()> {
        let normed = entry.fusion.as_ref().is_some_and(|f| f.normed_stream);
        let join = args::Join {
            sessions: self.sessions,
            x: x.address,
            out: out.address,
            norms: entry.norms,
            x_stride: x.stride,
            out_stride: out.stride,
            len: self.plan.hidden,
            half: half as u32,
            normed: normed.into(),
            padding: 0,
        };
        // SAFETY: by contract, addresses of the *weights*, the *sessions* and the *workspace*.
        unsafe { self.kernels.join_head(self.stream, &join, rows) }
    }

    /// Brings the logits of the tokens that a head knows to their places among those of all.
    ///
    /// # Safety
    /// *weights*, *workspace*.
    pub(super) unsafe fn spread_logits(
        &self,
        place_of: u64,
        (known, logits): (Span, Span),
        rows: u32,
    ) -> Result<()> {
        let spread = args::SpreadLogits {
            known: known.address,
            place_of,
            logits: logits.address,
            n_known: known.stride,
            n_vocab: logits.stride,
        };
        // SAFETY: by contract, addresses of the *weights* and the *workspace*.
        unsafe { self.kernels.spread_logits(self.stream, &spread, rows) }
    }
}

impl StepOperations<'_> {
    /// What a head has in front of its layer, with the embeddings of the tokens as the residual stream.
    pub(super) fn join(&self, entry: &EntryPlan) -> Result<()> {
        let rows = &self.buffers.at().rows;
        // SAFETY: addresses of the *weights*, the *sessions* and the *workspace*, which `self` promises. The session is one that
        // keeps its states, and has that of the last position.
        unsafe {
            let both = (rows.residual, rows.entry);
            self.eval.join(entry, Half::Both, both, self.batch)?;
        }
        self.mark(Work::Embed, 0)
    }

    /// Makes a joined state, at `to`, of the model's of a position, at `from`: a row of a ring each.
    pub(super) fn fuse(
        &self,
        entry: &EntryPlan,
        fusion: &FusionPlan,
        (from, to): (Span, Span),
    ) -> Result<()> {
        let input = self.row_input(from, fusion.width, None, &entry.projection)?;
        self.product_of(&entry.projection, &input, to, 0)
    }
}

impl ChunkOperations<'_> {
    /// The same as [`StepOperations::join`] for the rows of a chunk, which read these states of the model's.
    pub(super) fn fuse(
        &self,
        entry: &EntryPlan,
        fusion: &FusionPlan,
        states: StateRows,
    ) -> Result<()> {
        let (e, rows) = (&self.eval, &self.at().rows);
        let both = (rows.residual, rows.entry);
        let gather = args::GatherStates {
            ring: states.place.0,
            out: rows.wide.address,
            ring_rows: states.place.1,
            first: (states.first % states.place.1 as usize) as u32,
            width: fusion.width,
            out_stride: rows.wide.stride,
        };
        // SAFETY: addresses of the *weights*, the *sessions* and the *workspace*, which `self` promises, and of a ring that whoever
        // submits the row has until it is polled.
        unsafe {
            e.join(entry, Half::Embeddings, both, self.rows)?;
            e.kernels.gather_states(e.stream, &gather, self.rows)?;
        }
        self.input_of(rows.wide, fusion.width, &entry.projection)?;
        self.matmul(&entry.projection, rows.residual, 0)?;
        // SAFETY: as above.
        unsafe { e.join(entry, Half::States, both, self.rows) }
    }
}
