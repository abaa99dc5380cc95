//! Launches of the attention kernels for long heads: queries, keys and values are placed first, then
//! attended to. Latent attention places them by itself.

use super::rope_of;
use crate::backend::cuda::driver::Stream;
use crate::backend::cuda::launch::args::{self, HEAD_ROWS};
use crate::backend::cuda::launch::kernel_id::KernelId;
use crate::backend::cuda::launch::kernels::Kernels;
use crate::error::Result;

/// A kernel of attention_long.cu or attention_prefill_long.cu.
struct Long {
    id: KernelId,
    /// Shared memory, as its file asserts.
    shared: usize,
    /// Queries of a KV head that a block takes.
    queries: u32,
}

const fn long(id: KernelId, shared: usize, queries: u32) -> Long {
    Long {
        id,
        shared,
        queries,
    }
}

/// Of a step: for heads of up to 512 elements; and for latent attention, of keys of up to 576 that begin with the
/// values, by how many queries there are.
const ATTEND: Long = long(KernelId::AttendLong, 223_552, 16);
const ATTEND_LATENT: [Long; 2] = [
    long(KernelId::AttendLatent16, 176_960, 16),
    long(KernelId::AttendLatent32, 206_464, 32),
];
/// Of a prefill, the same.
const FLASH: Long = long(KernelId::FlashLong, 211_200, 64);
const FLASH_LATENT: Long = long(KernelId::FlashLatent, 162_048, 64);
/// Outputs of a head that a block of the `head_product` kernels makes.
const HEAD_OUTPUTS: [u32; 2] = [16, 64];
const HEAD_SHARED: usize = 33_024;
/// Most queries of a KV head that a block of the `attend_fma_long` kernels takes, and elements of a head that it has room for.
const FMA_QUERIES: u32 = 2;
const FMA_ELEMENTS: u32 = 768;
/// Longest key and value of it that tensor cores are for.
const TILES_KEY: u32 = 576;
const TILES_VALUE: u32 = 512;
/// Rows of a prefill that these kernels take at a time.
pub const FMA_ROWS: u32 = 64;

/// Whether heads are such that tensor cores take.
fn fits_tiles(layout: &args::KvLayout, value_dim: u32) -> bool {
    layout.q8 == 0 && layout.head_dim <= TILES_KEY && value_dim <= TILES_VALUE
}

impl Kernels {
    /// Makes the kernels known that the device has the shared memory for.
    pub(super) fn find_long_attention(&mut self) -> Result<()> {
        for queries in [1, FMA_QUERIES] {
            self.find(KernelId::AttendFmaLong { queries }, 0)?;
        }
        for outputs in HEAD_OUTPUTS {
            self.find(KernelId::HeadProduct { outputs }, HEAD_SHARED)?;
        }
        let most = self.context().properties().shared_bytes;
        if !self.has_large_shared() {
            return Ok(());
        }
        let all = [&ATTEND, &FLASH, &FLASH_LATENT].into_iter();
        for kernel in all.chain(&ATTEND_LATENT).filter(|l| l.shared <= most) {
            self.find(kernel.id, kernel.shared)?;
        }
        Ok(())
    }

    /// Rotates parts of queries, which go to `q16`, and appends keys to the cache, of `rows` rows.
    ///
    /// # Safety
    /// As [`Stream::launch`]; the cache must be backed up to the rows' positions.
    pub unsafe fn latent_place(
        &self,
        stream: &Stream,
        args: &args::Latent,
        rows: u32,
    ) -> Result<()> {
        let grid = ((args.n_heads + 1).div_ceil(8), rows, 1);
        // SAFETY: by contract, the cache has memory up to the rows' positions, and all addresses are valid.
        unsafe { self.launch(stream, KernelId::LatentPlace, grid, 256, 0, args) }
    }

    /// Products of the parts that `n_heads` heads have of rows, each with a matrix of its own.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn head_product(
        &self,
        stream: &Stream,
        args: &args::HeadProduct,
        n_heads: u32,
    ) -> Result<()> {
        // Few rows want many blocks.
        let [few, many] = HEAD_OUTPUTS;
        let outputs = if args.count <= HEAD_ROWS { few } else { many };
        let tiles = args.count.div_ceil(HEAD_ROWS);
        let grid = (args.rows.div_ceil(outputs), n_heads, tiles);
        let id = KernelId::HeadProduct { outputs };
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, id, grid, 128, HEAD_SHARED, args) }
    }

    /// Puts queries to `q16`, and keys and values into the cache.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub(super) unsafe fn place(
        &self,
        stream: &Stream,
        args: &args::Attend,
        batch: u32,
    ) -> Result<()> {
        let rope = args::Rope {
            q_f16: args.q16,
            q_scale: args.scores.scale,
            ..rope_of(args)
        };
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.rope_append(stream, &rope, batch) }
    }

    /// [`Kernels::attend`] for long heads.
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn attend_long(
        &self,
        stream: &Stream,
        args: &args::Attend,
        batch: u32,
    ) -> Result<()> {
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe {
            self.place(stream, args, batch)?;
            self.attend_placed(stream, args, false, batch)
        }
    }

    /// Attends with the queries at `q16` to what is in the cache, for one position of each of `batch` sessions. Of latent
    /// attention, keys begin with their values.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn attend_placed(
        &self,
        stream: &Stream,
        args: &args::Attend,
        latent: bool,
        batch: u32,
    ) -> Result<()> {
        let group = args.n_heads / args.layout.n_kv_heads;
        let kernel = match latent {
            false => &ATTEND,
            true if group <= ATTEND_LATENT[0].queries => &ATTEND_LATENT[0],
            true => &ATTEND_LATENT[1],
        };
        if !self.has(kernel.id) || !fits_tiles(&args.layout, args.value_dim) {
            // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
            return unsafe { self.attend_fma_long(stream, args, batch) };
        }
        let head_parts = group.div_ceil(kernel.queries);
        let heads = args.layout.n_kv_heads * head_parts;
        // A block has a multiprocessor for itself.
        let n_chunks = (self.multiprocessors() / heads).clamp(1, args.n_chunks);
        let args = args::Attend {
            head_parts,
            n_chunks,
            ..*args
        };
        let blocks = self.multiprocessors() / (heads * batch);
        let grid = (heads, batch, blocks.clamp(1, n_chunks));
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe {
            self.launch(stream, kernel.id, grid, 256, kernel.shared, &args)?;
            if args.value_dim.is_multiple_of(128) {
                let grid = (args.n_heads, batch, 1);
                return self.launch(stream, KernelId::AttendJoin, grid, 128, 0, &args);
            }
            self.combine(stream, &args, batch)
        }
    }

    /// The same without tensor cores, for any cache; of a prefill, for `batch` rows.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub(super) unsafe fn attend_fma_long(
        &self,
        stream: &Stream,
        args: &args::Attend,
        batch: u32,
    ) -> Result<()> {
        let group = args.n_heads / args.layout.n_kv_heads;
        let at_once = group.min(FMA_QUERIES);
        let shared = (128 / 32 * at_once * (FMA_ELEMENTS + 2) * 4) as usize;
        let args = args::Attend {
            head_parts: group.div_ceil(at_once),
            ..*args
        };
        let heads = args.layout.n_kv_heads * args.head_parts;
        let grid = (args.n_chunks, heads, batch);
        let id = KernelId::AttendFmaLong { queries: at_once };
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe {
            self.launch(stream, id, grid, 128, shared, &args)?;
            self.combine(stream, &args, batch)
        }
    }

    /// [`Kernels::flash`] for long heads. At `parts` there is room for [`FMA_ROWS`] rows of all heads' parts of a context.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn flash_long(
        &self,
        stream: &Stream,
        args: &args::Flash,
        parts: u64,
        latent: bool,
    ) -> Result<()> {
        let kernel = if latent { &FLASH_LATENT } else { &FLASH };
        if self.has(kernel.id) && fits_tiles(&args.layout, args.value_dim) {
            let tiles = (args.rows - args.first_row).div_ceil(kernel.queries);
            let grid = (tiles, args.n_heads, 1);
            // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
            return unsafe { self.launch(stream, kernel.id, grid, 256, kernel.shared, args) };
        }
        for first_row in (args.first_row..args.rows).step_by(FMA_ROWS as usize) {
            let before = u64::from(first_row * args.n_heads) * u64::from(args.value_dim);
            let attend = args::Attend {
                sessions: args.sessions,
                q16: args.q,
                parts,
                f32: args.out + before * 4,
                layout: args.layout,
                scores: args.scores,
                n_heads: args.n_heads,
                n_chunks: 1,
                prefill: 1,
                first_row,
                value_dim: args.value_dim,
                ..Default::default()
            };
            let count = FMA_ROWS.min(args.rows - first_row);
            // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
            unsafe { self.attend_fma_long(stream, &attend, count)? };
        }
        Ok(())
    }
}
