//! Heads that guess further tokens: what they begin with, and the hidden states that they read.

use super::evaluation::Evaluation;
use super::hidden::StateRows;
use super::plan::EntryPlan;
use super::prefill::ChunkOperations;
use super::step::StepOperations;
use super::walk::Operations;
use crate::backend::Work;
use crate::backend::cuda::launch::args;
use crate::backend::cuda::launch::span::Span;
use crate::error::Result;

impl Evaluation<'_> {
    /// Hands the hidden states of rows out, whose residual stream is behind the last layer, to the sessions that keep them: rows of
    /// a chunk of the first session, or one of each session.
    ///
    /// # Safety
    /// *weights*, *sessions*, *workspace*.
    pub(super) unsafe fn keep(&self, residual: Span, rows: u32, is_chunk: bool) -> Result<()> {
        if !self.keeps.has_normed() {
            return Ok(());
        }
        let keep = args::Keep {
            sessions: self.sessions,
            x: residual.address,
            norm: self.plan.final_norm,
            x_stride: residual.stride,
            len: self.plan.hidden,
            chunk: if is_chunk { rows } else { 0 },
            padding: 0,
        };
        // SAFETY: by contract, addresses of the *weights*, the *sessions* and the *workspace*.
        unsafe { self.kernels.keep_states(self.stream, &keep, rows) }
    }

    /// The norms of embeddings, which are the residual stream, and of hidden states side by side in `out`: of these states, or of
    /// those before the sessions' positions in their own rings.
    ///
    /// # Safety
    /// *weights*, *sessions*, *workspace*; the states are there.
    unsafe fn enter(
        &self,
        entry: &EntryPlan,
        states: Option<StateRows>,
        (residual, out): (Span, Span),
        rows: u32,
    ) -> Result<()> {
        let (states, states_rows, first) = match states {
            Some(StateRows { place, first }) => (place.0, place.1, first % place.1 as usize),
            None => (0, 0, 0),
        };
        let enter = args::Enter {
            sessions: self.sessions,
            x: residual.address,
            states,
            out: out.address,
            norms: entry.norms,
            x_stride: residual.stride,
            out_stride: out.stride,
            len: self.plan.hidden,
            states_rows,
            first: first as u32,
            padding: 0,
        };
        // SAFETY: by contract, addresses of the *weights*, the *sessions* and the *workspace*.
        unsafe { self.kernels.enter_head(self.stream, &enter, rows) }
    }
}

impl StepOperations<'_> {
    /// What a head has in front of its layers, with the embeddings of the tokens as the residual stream.
    pub fn enter(&self, entry: &EntryPlan) -> Result<()> {
        if entry.fusion.is_some() {
            return self.join(entry);
        }
        let rows = &self.buffers.at().rows;
        // SAFETY: addresses of the *weights*, the *sessions* and the *workspace*, which `self` promises. The session is one that
        // keeps its states, and has that of the last position.
        unsafe {
            let both = (rows.residual, rows.wide);
            self.eval.enter(entry, None, both, self.batch)?;
        }
        let input = self.row_input(
            rows.wide,
            2 * self.eval.plan.hidden,
            None,
            &entry.projection,
        )?;
        self.product_of(&entry.projection, &input, rows.residual, 0)?;
        self.mark(Work::Embed, entry.projection.bytes())
    }
}

impl ChunkOperations<'_> {
    /// The same for the rows of a chunk, which read these states.
    pub fn enter(&self, entry: &EntryPlan, states: StateRows) -> Result<()> {
        if let Some(fusion) = &entry.fusion {
            return self.fuse(entry, fusion, states);
        }
        let rows = &self.at().rows;
        // SAFETY: addresses of the *weights*, the *sessions* and the *workspace*, which `self` promises.
        unsafe {
            let both = (rows.residual, rows.wide);
            self.eval.enter(entry, Some(states), both, self.rows)?;
        }
        self.quantize_input(args::QuantizeInput {
            x: rows.wide.address,
            x_stride: rows.wide.stride,
            len: 2 * self.eval.plan.hidden,
            groups: entry.projection.groups,
            source: args::Source::Copy as u32,
            ..Default::default()
        })?;
        self.matmul(&entry.projection, rows.residual, 0)
    }
}
