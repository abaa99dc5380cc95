//! Launches of the kernels of mixers with a state of fixed size.

use super::args;
use super::kernels::Kernels;
use crate::backend::cuda::driver::Stream;
use crate::error::Result;

/// Columns of a head's state at most, as `MAX_COLS` of recurrent.cuh.
pub const MAX_COLS: u32 = 256;
/// The same where each column has a step of its own.
pub const MAX_CHANNELS: u32 = 128;
/// What their kernels are called.
const CHANNELS: &str = "channels";
/// Rows of a head's state at most: a step keeps two numbers for each in shared memory.
pub const MAX_ROWS: u32 = 1024;
/// Positions that a convolution sees at most: no row of a chunk but the first block's looks back further.
pub const MAX_WIDTH: u32 = CONV_ROWS;
/// Threads of a head in a step, as `STEP_THREADS` of recurrent.cu.
const STEP_THREADS: u32 = 512;
/// Blocks that share them where that is faster, as `STEP_BLOCKS` of recurrent.cu.
const STEP_BLOCKS: u32 = 4;
/// Rows of a chunk that a block of a convolution takes, as `CONV_ROWS` of recurrent.cu.
const CONV_ROWS: u32 = 32;
/// Rows of a state that a block of a scan has, as `SCAN_ROWS` of recurrent.cu.
const SCAN_ROWS: u32 = 32;
/// Tokens that it fetches at a time, as `SCAN_TOKENS` of recurrent.cu.
const SCAN_TOKENS: u32 = 16;
/// Channels of the first Mamba that a block has in a step, as `STEP_CHANNELS` of selective.cu.
const STEP_CHANNELS: u32 = 64;
/// And in a scan, as `SCAN_CHANNELS` of selective.cu.
const SCAN_CHANNELS: u32 = 32;
/// Numbers of a channel at most, as `MAX_STATES` of selective.cu.
pub const MAX_STATES: u32 = 64;
/// Numbers of columns that the kernels are made for; others take the next larger one.
const COLS: [u32; 2] = [128, 256];

/// Shared memory of a scan: two batches of keys, queries and values.
fn scan_shared(cols: u32) -> usize {
    (2 * SCAN_TOKENS * (2 * cols + SCAN_ROWS) * 4) as usize
}

/// What a kernel is called after whose rows are sessions, or may go on from each other.
fn step_or_chain(chains: bool) -> &'static str {
    if chains { "chain" } else { "step" }
}

/// What the kernels for these are called, and the columns that they are made for.
fn kind_of(args: &args::Recurrent) -> (String, u32) {
    if args.steps != 0 {
        return (CHANNELS.into(), MAX_CHANNELS);
    }
    let cols = COLS[usize::from(args.cols > COLS[0])];
    (cols.to_string(), cols)
}

impl Kernels {
    /// Makes the kernels known.
    pub(super) fn find_recurrent(&mut self) -> Result<()> {
        for name in [
            "recurrent_convolve",
            "recurrent_convolve_step",
            "recurrent_convolve_chain",
            "recurrent_lengths",
            "gated_norm",
            "short_conv",
            "short_conv_chain",
        ] {
            self.find("recurrent", name, 0)?;
        }
        for name in [
            "selective_step",
            "selective_chain",
            "selective_scan_16",
            "selective_scan_64",
        ] {
            self.find("selective", name, 0)?;
        }
        let kinds = COLS.map(|cols| (cols.to_string(), cols));
        for (kind, cols) in kinds.into_iter().chain([(CHANNELS.into(), MAX_CHANNELS)]) {
            let step = (2 * MAX_ROWS * 4) as usize;
            for what in ["step", "chain"] {
                self.find("recurrent", &format!("recurrent_{what}_{kind}"), step)?;
                if self.has_clusters() {
                    let name = format!("recurrent_{what}_shared_{kind}");
                    self.find("recurrent", &name, step / STEP_BLOCKS as usize)?;
                }
            }
            let scan = format!("recurrent_scan_{kind}");
            self.find("recurrent", &scan, scan_shared(cols))?;
        }
        Ok(())
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
        let (kind, _) = kind_of(args);
        let what = step_or_chain(chains);
        // In a full batch, what all blocks of a head do costs more than their number gains. Of a chain, all rows are one block's work.
        let few = chains || args.heads * batch < self.multiprocessors();
        let (name, blocks) = match self.has_clusters() && few {
            true => (format!("recurrent_{what}_shared_{kind}"), STEP_BLOCKS),
            false => (format!("recurrent_{what}_{kind}"), 1),
        };
        let shared = (2 * args.rows.div_ceil(blocks) * 4) as usize;
        let grid = (args.heads * blocks, batch, 1);
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, &name, grid, STEP_THREADS / blocks, shared, args) }
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
        let (kind, cols) = kind_of(args);
        let name = format!("recurrent_scan_{kind}");
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe {
            self.launch(stream, "recurrent_convolve", conv, 128, 0, args)?;
            if args.delta != 0 {
                self.launch(stream, "recurrent_lengths", keys, 32, 0, args)?;
            }
            let shared = scan_shared(cols);
            self.launch(stream, &name, scan, 4 * SCAN_ROWS, shared, args)
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
        let (name, rows) = match batch {
            Some((batch, false)) => ("recurrent_convolve_step", batch),
            Some((batch, true)) => ("recurrent_convolve_chain", batch),
            None => ("recurrent_convolve", args.count.div_ceil(CONV_ROWS)),
        };
        let grid = (args.channels.div_ceil(128), rows, 1);
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, name, grid, 128, 0, args) }
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
        let name = format!("selective_{}", step_or_chain(chains));
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, &name, grid, 2 * STEP_CHANNELS, 0, args) }
    }

    /// The `args.count` tokens of a chunk: state and gated outputs.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn selective_chunk(&self, stream: &Stream, args: &args::Selective) -> Result<()> {
        let name = match args.state_dim {
            ..=16 => "selective_scan_16",
            _ => "selective_scan_64",
        };
        let grid = (args.channels.div_ceil(SCAN_CHANNELS), 1, 1);
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, name, grid, 4 * SCAN_CHANNELS, 0, args) }
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
        unsafe { self.launch(stream, "gated_norm", grid, threads, 0, args) }
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
        let name = match chains {
            true => "short_conv_chain",
            false => "short_conv",
        };
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, name, grid, 128, 0, args) }
    }
}
