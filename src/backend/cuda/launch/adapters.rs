//! What sessions add to products, as the kernels take it, and the launches of `kernels/adapters.cu`.

use super::args;
use super::kernel_id::KernelId;
use super::kernels::Kernels;
use super::matrix::{Inputs, Matrix};
use crate::backend::cuda::driver::Stream;
use crate::error::Result;

/// Rows of `A x` that there is room for.
pub(in crate::backend::cuda) const THIN_ROWS: usize = 512;
/// Input rows that a block takes of one session.
const ROWS_AT_ONCE: u32 = 8;
const THREADS: u32 = 128;
/// A warp for each part of a row of `A`.
pub(super) const LORA_DOWN_THREADS: u32 = args::LORA_DOWN_PARTS * 32;
/// The most ranks, of all linear layers of a product, for which it adds itself what adapters have: beyond, its blocks would
/// wait too long.
pub(in crate::backend::cuda) const MOST_RANKS: usize = 256;
/// Blocks that share the rows of the pairs of an input row.
const LORA_DOWN_BLOCKS: u32 = 64;

/// What the memory of a session's adapters is for: pairs of a linear layer, and ranks of these together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backend::cuda) struct Room {
    pub(in crate::backend::cuda) uses: usize,
    pub(in crate::backend::cuda) ranks: usize,
}

/// The adapters of the only session of a step.
#[derive(Clone, Copy, Debug)]
pub struct OneSession {
    pub(in crate::backend::cuda) pairs: u64,
    pub(in crate::backend::cuda) words: u64,
    pub(in crate::backend::cuda) n_words: u32,
    pub(in crate::backend::cuda) room: Room,
    pub(in crate::backend::cuda) reach: Reach,
}

/// Of which sessions products may have adapters.
#[derive(Clone, Copy, Debug)]
pub enum Adapters {
    /// None.
    None,
    /// Of the only one.
    One(OneSession),
    /// Any.
    Any(Reach),
}

impl Adapters {
    /// Which products that are.
    pub fn reach(&self) -> Reach {
        match self {
            Adapters::None => Reach::None,
            Adapters::One(one) => one.reach,
            Adapters::Any(reach) => *reach,
        }
    }
}

/// The products that adapters add to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// None.
    #[default]
    None,
    /// Those that every token goes through.
    Common,
    /// Those of routers, of experts that these choose, and of heads of latent attention, too.
    All,
}

impl OneSession {
    /// Ranks that a product has room for, of all its linear layers; none if there are too many.
    pub fn ranks(&self, matrix: &Matrix) -> Option<usize> {
        let n_linears = matrix.adapted.as_ref().map_or(0, |a| a.n_linears as usize);
        Some(n_linears * self.room.ranks).filter(|&ranks| ranks <= MOST_RANKS)
    }

    /// What a product adds itself. The words are zeros when its step begins ([`OneSession::clear`]); all products of the step use
    /// them, so that they stay in the L2 cache, and none begins before the one before it has ended.
    pub fn adapted(&self, matrix: &Matrix) -> Option<args::Adapted> {
        let adapted = matrix.adapted.as_ref()?;
        let (uses, ranks) = (self.room.uses as u32, self.room.ranks as u32);
        let pair = size_of::<args::AdapterPair>() as u64;
        Some(args::Adapted {
            pairs: self.pairs + u64::from(adapted.first * uses) * pair,
            words: self.words,
            uses,
            ranks,
            n_linears: adapted.n_linears,
            thin_at: 0,
            tag: adapted.first + 1,
            padding: 0,
            pieces: adapted.pieces,
        })
    }

    /// Enqueues what a step begins with whose products add what adapters have.
    ///
    /// # Safety
    /// The adapters must be those of a session, and live until the work is done.
    pub unsafe fn clear(&self, stream: &Stream) -> Result<()> {
        if self.n_words == 0 {
            return Ok(());
        }
        // SAFETY: by contract, the words of a session's adapters, as many as there are.
        unsafe { stream.fill32(self.words, 0, 2 * self.n_words as usize) }
    }
}

/// Matrices that adapters can be added to and that not every token is multiplied with: as many, one below the other.
#[derive(Clone, Copy, Debug)]
pub struct AdaptedApart {
    /// Which linear layer of the network they are.
    pub(in crate::backend::cuda) linear: u32,
    pub(in crate::backend::cuda) matrices: u32,
    /// Rows of each.
    pub(in crate::backend::cuda) matrix_rows: u32,
    /// Of these rows, the outputs.
    pub(in crate::backend::cuda) first: u32,
    pub(in crate::backend::cuda) outputs: u32,
}

/// The input of a product that adapters add to, in the forms that were written.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend::cuda) enum AdaptedInput {
    /// A row of each of several sessions.
    Step(Inputs),
    /// Rows of one session: f16, tiled, and f32.
    Chunk { x: u64, x_scale: u64 },
}

/// What is launched for the rows of a product that adapters add to.
pub(in crate::backend::cuda) struct Adaptation {
    pub(in crate::backend::cuda) args: args::Adapt,
    /// Of one session.
    pub(in crate::backend::cuda) is_chunk: bool,
    pub(in crate::backend::cuda) rows: u32,
}

impl Kernels {
    /// Works `A x` out, from the input of a product.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub(in crate::backend::cuda) unsafe fn lora_down(
        &self,
        stream: &Stream,
        of: &Adaptation,
    ) -> Result<()> {
        let (id, rows) = match of.is_chunk {
            false => (KernelId::LoraDown, of.args.rows),
            true => (KernelId::LoraDown8, of.args.rows.div_ceil(ROWS_AT_ONCE)),
        };
        let grid = (LORA_DOWN_BLOCKS, rows, 1);
        // SAFETY: by contract, all addresses are valid.
        unsafe { self.launch(stream, id, grid, LORA_DOWN_THREADS, 0, &of.args) }
    }

    /// Adds `B (A x)` to the product.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub(in crate::backend::cuda) unsafe fn lora_up(
        &self,
        stream: &Stream,
        of: &Adaptation,
    ) -> Result<()> {
        let (id, rows) = match of.is_chunk {
            false => (KernelId::LoraUp, of.args.rows),
            true => (KernelId::LoraUp8, of.args.rows.div_ceil(ROWS_AT_ONCE)),
        };
        let grid = (of.args.outputs.div_ceil(THREADS), rows, 1);
        // SAFETY: by contract, all addresses are valid.
        unsafe { self.launch(stream, id, grid, THREADS, 0, &of.args) }
    }

    /// Adds what adapters have for so many entries with a matrix each.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub(in crate::backend::cuda) unsafe fn adapt_each(
        &self,
        stream: &Stream,
        args: &args::AdaptEach,
        entries: u32,
    ) -> Result<()> {
        let parts = args.outputs.div_ceil(args::ADAPT_EACH_OUTPUTS);
        let (id, grid) = (KernelId::AdaptEach, (entries, parts, 1));
        // SAFETY: by contract, all addresses are valid.
        unsafe { self.launch(stream, id, grid, args::ADAPT_EACH_THREADS, 0, args) }
    }

    /// Does both for a chunk, as many rows at a time as there is room for.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub(in crate::backend::cuda) unsafe fn adapt(
        &self,
        stream: &Stream,
        mut of: Adaptation,
    ) -> Result<()> {
        while of.args.first_row < of.rows {
            of.args.rows = (of.rows - of.args.first_row).min(THIN_ROWS as u32);
            // SAFETY: by contract, all addresses are valid.
            unsafe {
                self.lora_down(stream, &of)?;
                self.lora_up(stream, &of)?;
            }
            of.args.first_row += of.args.rows;
        }
        Ok(())
    }
}
