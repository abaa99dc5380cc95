//! Launches of the kernels of mixers with a state of fixed size.

use super::args::{
    self, BATCH_COLS, BATCH_PIECES, BATCH_ROWS, BATCH_THREADS, CONV_ROWS, SCAN_CHANNELS, SCAN_ROWS,
    SCAN_TOKENS, STEP_BLOCKS, STEP_CHANNELS, STEP_THREADS,
};
use super::kernel_id::{KernelId, StateKind};
use super::kernels::Kernels;
use crate::backend::cuda::driver::Stream;
use crate::error::Result;

/// Columns of a head's state at most where each has a step of its own.
pub const MAX_CHANNELS: u32 = 128;
/// Rows of a head's state at most: a step keeps two numbers for each in shared memory.
pub const MAX_ROWS: u32 = 1024;
/// Positions that a convolution sees at most: no row of a chunk but the first block's looks back further.
pub const MAX_WIDTH: u32 = CONV_ROWS;
/// Numbers of columns that the kernels are made for; others take the next larger one.
const COLS: [u32; 2] = [128, args::MAX_COLS];

/// Shared memory of a block of a batch, at most: three of them fit a multiprocessor.
const BATCH_SHARED: u32 = 72 << 10;

/// What it is: a head's state, and two numbers for each of its rows.
fn batch_shared(args: &args::Recurrent) -> u32 {
    args.rows * (args.cols + 2) * 4
}

/// Shared memory of a scan: two batches of keys, queries and values.
fn scan_shared(state: StateKind) -> usize {
    let cols = match state {
        StateKind::Columns(cols) => cols,
        StateKind::Channels => MAX_CHANNELS,
    };
    (2 * SCAN_TOKENS * (2 * cols + SCAN_ROWS) * 4) as usize
}

/// Which states these are.
fn state_of(args: &args::Recurrent) -> StateKind {
    if args.steps != 0 {
        return StateKind::Channels;
    }
    StateKind::Columns(COLS[usize::from(args.cols > COLS[0])])
}

impl Kernels {
    /// Makes the kernels known.
    pub(super) fn find_recurrent(&mut self) -> Result<()> {
        let step = (2 * MAX_ROWS * 4) as usize;
        let states = COLS.map(StateKind::Columns);
        for state in states.into_iter().chain([StateKind::Channels]) {
            for chains in [false, true] {
                let of_heads = |shared| KernelId::RecurrentStep {
                    chains,
                    shared,
                    state,
                };
                self.find(of_heads(false), step)?;
                if self.has_clusters() {
                    self.find(of_heads(true), step / STEP_BLOCKS as usize)?;
                }
            }
            self.find(KernelId::RecurrentScan { state }, scan_shared(state))?;
        }
        if self.has_clusters() {
            for delta in [false, true] {
                self.find(KernelId::RecurrentBatch { delta }, BATCH_SHARED as usize)?;
            }
        }
        Ok(())
    }

    /// Whether several blocks share a head where they can. In a full batch, what all of them do costs more than their number gains. Of a
    /// chain, all rows are one block's work.
    fn shares_heads(&self, args: &args::Recurrent, (batch, chains): (u32, bool)) -> bool {
        chains || args.heads * batch < self.multiprocessors()
    }

    /// Whether bulk copies bring the states of such a step.
    fn copies_states(&self, args: &args::Recurrent, rows: (u32, bool)) -> bool {
        let whole = |bytes: u64| bytes.is_multiple_of(16);
        self.has_clusters()
            && !self.shares_heads(args, rows)
            && args.steps == 0
            && args.width == 4
            && args.cols.is_multiple_of(4)
            && args.cols <= BATCH_COLS
            && args.rows <= BATCH_ROWS * BATCH_PIECES
            && whole(args.state_offset)
            && whole(args.matrix_offset)
            && batch_shared(args) <= BATCH_SHARED
    }

    /// Whether such a step can round its outputs itself.
    pub fn rounds_recurrence(&self, args: &args::Recurrent, rows: (u32, bool)) -> bool {
        args.rows.is_multiple_of(32) && self.copies_states(args, rows)
    }

    /// One token of each of `batch` sessions: convolution, state, outputs, and their norm if it is of
    /// single heads. The bits of a session's outputs do not depend on the others. With `chains`, sessions may be rows of drafts, which go
    /// on from each other.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn recurrent_step(
        &self,
        stream: &Stream,
        args: &args::Recurrent,
        (batch, chains): (u32, bool),
    ) -> Result<()> {
        if self.copies_states(args, (batch, chains)) {
            let id = KernelId::RecurrentBatch {
                delta: args.delta != 0,
            };
            let (grid, shared) = ((args.heads, batch, 1), batch_shared(args) as usize);
            // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
            return unsafe { self.launch(stream, id, grid, BATCH_THREADS, shared, args) };
        }
        let is_shared = self.has_clusters() && self.shares_heads(args, (batch, chains));
        let id = KernelId::RecurrentStep {
            chains,
            shared: is_shared,
            state: state_of(args),
        };
        let blocks = if is_shared { STEP_BLOCKS } else { 1 };
        let shared = (2 * args.rows.div_ceil(blocks) * 4) as usize;
        let grid = (args.heads * blocks, batch, 1);
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, id, grid, STEP_THREADS / blocks, shared, args) }
    }

    /// The `args.count` tokens of a chunk: convolution, state, outputs.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn recurrent_chunk(&self, stream: &Stream, args: &args::Recurrent) -> Result<()> {
        let conv = (
            args.channels.div_ceil(128),
            args.count.div_ceil(CONV_ROWS),
            1,
        );
        let keys = (2 * args.heads / args.per_key, args.count, 1);
        let scan = (args.heads, args.rows.div_ceil(SCAN_ROWS), 1);
        let state = state_of(args);
        let id = KernelId::RecurrentScan { state };
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe {
            self.launch(stream, KernelId::Convolve, conv, 128, 0, args)?;
            if args.delta != 0 {
                self.launch(stream, KernelId::RecurrentLengths, keys, 32, 0, args)?;
            }
            let shared = scan_shared(state);
            self.launch(stream, id, scan, 4 * SCAN_ROWS, shared, args)
        }
    }

    /// The convolutions of one token of each of `batch` sessions, which with `chains` may be rows of drafts; or of the `args.count` tokens
    /// of a chunk.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn convolve(
        &self,
        stream: &Stream,
        args: &args::Recurrent,
        batch: Option<(u32, bool)>,
    ) -> Result<()> {
        let (id, rows) = match batch {
            Some((batch, false)) => (KernelId::ConvolveStep, batch),
            Some((batch, true)) => (KernelId::ConvolveChain, batch),
            None => (KernelId::Convolve, args.count.div_ceil(CONV_ROWS)),
        };
        let grid = (args.channels.div_ceil(128), rows, 1);
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, id, grid, 128, 0, args) }
    }

    /// One token of each of `batch` sessions, which with `chains` may be rows of drafts: state and gated outputs. The bits of a session's
    /// outputs do not depend on the others.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn selective_step(
        &self,
        stream: &Stream,
        args: &args::Selective,
        (batch, chains): (u32, bool),
    ) -> Result<()> {
        let grid = (args.channels.div_ceil(STEP_CHANNELS), batch, 1);
        let id = match chains {
            true => KernelId::SelectiveChain,
            false => KernelId::SelectiveStep,
        };
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, id, grid, 2 * STEP_CHANNELS, 0, args) }
    }

    /// The `args.count` tokens of a chunk: state and gated outputs.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn selective_chunk(&self, stream: &Stream, args: &args::Selective) -> Result<()> {
        let id = match args.state_dim {
            ..=16 => KernelId::SelectiveScan16,
            _ => KernelId::SelectiveScan64,
        };
        let grid = (args.channels.div_ceil(SCAN_CHANNELS), 1, 1);
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, id, grid, 4 * SCAN_CHANNELS, 0, args) }
    }

    /// Norms of groups of `rows` rows, and their gates.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn gated_norm(
        &self,
        stream: &Stream,
        args: &args::GatedNorm,
        rows: u32,
    ) -> Result<()> {
        let threads = args.group.next_multiple_of(32).min(1024);
        let grid = (args.len / args.group, rows, 1);
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, KernelId::GatedNorm, grid, threads, 0, args) }
    }

    /// Gated short convolutions: of a chunk, or of a token of each of `batch` sessions, which with `chains` may be rows of drafts.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn short_conv(
        &self,
        stream: &Stream,
        args: &args::ShortConv,
        (batch, chains): (u32, bool),
    ) -> Result<()> {
        let rows = match args.prefill {
            0 => batch,
            _ => args.count.div_ceil(CONV_ROWS),
        };
        let grid = (args.channels.div_ceil(128), rows, 1);
        let id = match chains {
            true => KernelId::ShortConvChain,
            false => KernelId::ShortConv,
        };
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, id, grid, 128, 0, args) }
    }
}
