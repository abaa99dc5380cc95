//! Heads that guess further tokens: what they begin with, and the hidden states that they read.

use super::args;
use super::driver::Stream;
use super::evaluation::Evaluation;
use super::kernels::Kernels;
use super::plan::EntryPlan;
use super::prefill::ChunkOperations;
use super::step::StepOperations;
use super::walk::{Operations, Span};
use crate::backend::{HiddenStates, Work};
use crate::error::Result;

/// Words of a set of places.
const PLACE_WORDS: usize = 4;

/// The hidden states that sessions keep: which kernels a step has for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keeps {
    /// Some keep what is behind the final norm.
    normed: bool,
    /// Some keep the residual stream at these places, a bit each.
    places: [u64; PLACE_WORDS],
}

impl Keeps {
    /// Places that there can be: before the layers of lower numbers.
    pub const MOST: usize = PLACE_WORDS * 64;

    /// Those of a session that keeps these.
    pub fn of(states: Option<&HiddenStates>) -> Keeps {
        let mut keeps = Keeps::default();
        let Some(states) = states else {
            return keeps;
        };
        keeps.normed = states.places().is_empty();
        for place in states.places() {
            keeps.places[place / 64] |= 1 << (place % 64);
        }
        keeps
    }

    /// Those of both.
    pub fn or(self, other: Keeps) -> Keeps {
        let mut both = self;
        both.normed |= other.normed;
        for (word, theirs) in both.places.iter_mut().zip(other.places) {
            *word |= theirs;
        }
        both
    }

    /// Whether some keep what is behind the final norm.
    pub(super) fn has_normed(&self) -> bool {
        self.normed
    }

    /// Whether some keep the residual stream at a place.
    pub(super) fn has(&self, place: usize) -> bool {
        let word = self.places.get(place / 64);
        word.is_some_and(|word| word >> (place % 64) & 1 == 1)
    }
}

/// Hidden states that rows of a chunk read, as a ring.
#[derive(Clone, Copy)]
pub(super) struct StateRows {
    /// Its address, and how many rows it has.
    pub place: (u64, u32),
    /// The position that the first row of the chunk reads.
    pub first: usize,
}

impl Kernels {
    /// # Safety
    /// As [`Kernels::launch`].
    unsafe fn keep_states(&self, stream: &Stream, args: &args::Keep, rows: u32) -> Result<()> {
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, "keep_states", (rows, 1, 1), 256, 0, args) }
    }

    /// # Safety
    /// As [`Kernels::launch`].
    unsafe fn enter_head(&self, stream: &Stream, args: &args::Enter, rows: u32) -> Result<()> {
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, "enter_head", (2, rows, 1), 256, 0, args) }
    }
}

impl Evaluation<'_> {
    /// Hands the hidden states of rows out, whose residual stream is behind the last layer, to the sessions that keep them: rows of
    /// a chunk of the first session, or one of each session.
    ///
    /// # Safety
    /// *weights*, *sessions*, *workspace*.
    pub(super) unsafe fn keep(&self, residual: Span, rows: u32, is_chunk: bool) -> Result<()> {
        if !self.keeps.normed {
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
