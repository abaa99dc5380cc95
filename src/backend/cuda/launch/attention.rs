//! Launches of the attention kernels, but for those of long heads.

mod long;

pub use long::FMA_ROWS;

use super::args;
use super::kernel_id::KernelId;
use super::kernels::Kernels;
use crate::backend::KvType;
use crate::backend::cuda::driver::Stream;
use crate::backend::state::row_bytes;
use crate::error::Result;

/// Positions per tile of the KV cache.
pub const KV_TILE: usize = args::KV_TILE as usize;
/// Longer heads have kernels of their own.
pub const LONGEST_SHORT: u32 = 256;
/// Sizes of heads that tiles are made for, others take the next larger; and stages of tiles, the best first,
/// of which those are taken that a block has the shared memory for.
const HEAD_SIZES: [(usize, &[usize]); 3] = [(64, &[3]), (128, &[3, 2, 1]), (256, &[2, 1])];
/// The same of q8_0 caches, whose stages take about half as much.
pub(super) const Q8_HEAD_SIZES: [(usize, &[usize]); 3] =
    [(64, &[5]), (128, &[5, 3]), (256, &[3, 2, 1])];
/// Sizes of those for which `attend_wide` kernels are made, of the most stages; smaller heads are no work for so many warps.
const WIDE_HEAD_SIZES: [usize; 2] = [64, 128];
/// Warps of an `attend_tiles` and of an `attend_wide` block.
const WARPS: u32 = 4;
const WIDE_WARPS: u32 = 8;
/// So many blocks of one chunk at most are few: they are wide.
const FEW_BLOCKS: u32 = 4;
/// At least the static shared memory of an `attend_tiles` block.
const STATIC_SHARED: usize = 10_240;
/// Queries of a KV head that a block of the `attend_fma` kernels takes.
const FMA_QUERIES: [u32; 4] = [1, 2, 4, 8];

/// Whose positions the rows of a step are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowsOf {
    /// Of a session each.
    Sessions,
    /// Some of one session, which verifies drafts.
    Drafts,
    /// All of one session, in ascending order.
    OneSession,
}

impl RowsOf {
    /// Whether several of them may be positions of one cache.
    pub fn share_caches(self) -> bool {
        self != RowsOf::Sessions
    }
}

/// A kernel that attends in tiles.
struct Tiles {
    q8: bool,
    wide: bool,
    dim: usize,
    stages: usize,
    /// Bytes of a block.
    shared: usize,
    /// The same of the kernel for rows of one session.
    shared_of_rows: usize,
}

impl Tiles {
    fn id(&self) -> KernelId {
        KernelId::Attend {
            q8: self.q8,
            wide: self.wide,
            dim: self.dim,
            stages: self.stages,
        }
    }

    /// That for rows of one session.
    fn id_of_rows(&self) -> KernelId {
        KernelId::AttendRows {
            q8: self.q8,
            wide: self.wide,
            dim: self.dim,
            stages: self.stages,
        }
    }
}

impl Kernels {
    /// Makes the attention kernels known that the device has the shared memory for.
    pub(super) fn find_attention(&mut self) -> Result<()> {
        let shared = self.context().properties().shared_bytes;
        self.find_long_attention()?;
        for queries in FMA_QUERIES {
            self.find(KernelId::AttendFma { queries }, 0)?;
        }
        for (dim, _) in HEAD_SIZES {
            let bytes = flash_shared(dim);
            for q8 in [false, true] {
                for tiles in [self.tiles(q8, dim), self.wide_tiles(q8, dim)]
                    .into_iter()
                    .flatten()
                {
                    self.find(tiles.id(), tiles.shared)?;
                    if self.has_large_shared() {
                        self.find(tiles.id_of_rows(), tiles.shared_of_rows)?;
                    }
                }
                if bytes <= shared {
                    self.find(KernelId::Flash { q8, dim }, bytes)?;
                }
            }
        }
        if self.has_wgmma() {
            for dim in [64, 128] {
                self.find(KernelId::FlashWgmma { dim }, flash_wgmma_shared(dim))?;
            }
        }
        Ok(())
    }

    /// The kernel for heads of a size with these stages of keys and values, 16 positions a warp, if there is the
    /// shared memory for it.
    fn tiles_of(&self, q8: bool, wide: bool, dim: usize, stages: usize) -> Option<Tiles> {
        let kv_type = if q8 { KvType::Q8_0 } else { KvType::F16 };
        let plane = 16 * warps(wide) as usize * row_bytes(kv_type, dim);
        let shared_of_rows = stages * 2 * plane;
        // As `three_planes` of attend_tiles.cuh.
        let shared = match (q8, dim, stages) {
            (false, 256, 2) => 3 * plane,
            _ => shared_of_rows,
        };
        let fits = shared_of_rows + STATIC_SHARED <= self.context().properties().shared_bytes;
        fits.then_some(Tiles {
            q8,
            wide,
            dim,
            stages,
            shared,
            shared_of_rows,
        })
    }

    /// That of four warps.
    fn tiles(&self, q8: bool, dim: usize) -> Option<Tiles> {
        let mut all = stages(q8, dim).iter();
        all.find_map(|&stages| self.tiles_of(q8, false, dim, stages))
    }

    /// And that of eight.
    fn wide_tiles(&self, q8: bool, dim: usize) -> Option<Tiles> {
        let made = WIDE_HEAD_SIZES.contains(&dim) && self.has_large_shared();
        made.then(|| self.tiles_of(q8, true, dim, stages(q8, dim)[0]))?
    }

    /// Norms and rotates queries and keys of `rows` rows from the first one on, and appends keys and
    /// values to the cache.
    ///
    /// # Safety
    /// As [`Stream::launch`]; the cache must be backed up to the rows' positions.
    pub unsafe fn rope_append(&self, stream: &Stream, args: &args::Rope, rows: u32) -> Result<()> {
        let queries = match args.q_f32 | args.q_f16 {
            0 => 0,
            _ => args.n_heads,
        };
        let heads = match args.shares {
            0 => queries + 2 * args.layout.n_kv_heads,
            _ => queries,
        };
        // Where rows fill the device, a block takes all heads of one, whose angles are the same.
        let parts = if rows >= 2 * self.multiprocessors() {
            1
        } else {
            heads.div_ceil(8)
        };
        let grid = (parts, rows, 1);
        // SAFETY: by contract, the cache has memory up to the rows' positions, and all addresses are valid.
        unsafe { self.launch(stream, KernelId::RopeAppend, grid, 256, 0, args) }
    }

    /// Norms and rotates queries and keys, appends keys and values to the cache, and attends, for one
    /// position of each of `batch` rows. Where some of these are of one session, all are appended before any attends. The
    /// tickets must be zeros, and are left so.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn attend(
        &self,
        stream: &Stream,
        args: &args::Attend,
        batch: u32,
        rows: RowsOf,
    ) -> Result<()> {
        let dim = args.layout.head_dim;
        if dim > LONGEST_SHORT {
            // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
            return unsafe { self.attend_long(stream, args, batch) };
        }
        let padded = padded_head(dim);
        // Tiles give four elements to a thread.
        let q8 = args.layout.q8 != 0;
        let tiles = self.tiles(q8, padded);
        let takes = dim.is_multiple_of(4);
        // Nor do they count positions from 1.
        let is_rare = is_rare(&args.layout, args.slopes) || args.rotation.temperature_length < 0.0;
        let tiles = tiles.filter(|_| takes && !is_rare);
        let Some(tiles) = tiles else {
            // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
            return unsafe { self.attend_fma(stream, args, batch) };
        };
        let mut args = in_tiles(args);
        let heads = args.layout.n_kv_heads * args.head_parts;
        let group = args.n_heads / args.layout.n_kv_heads;
        // Those of one session share tiles, where there are kernels for it.
        let at_once = rows_at_once(padded, group.min(8));
        let together =
            rows == RowsOf::OneSession && batch > 1 && at_once > 1 && self.has_large_shared();
        if rows.share_caches() && (args.shares == 0 || together) {
            let rope = args::Rope {
                q_f16: if together { args.q16 } else { 0 },
                q_scale: args.scores.scale,
                ..rope_of(&args)
            };
            // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
            unsafe { self.rope_append(stream, &rope, batch)? };
            args.shares = 1;
        }
        let few = heads <= FEW_BLOCKS && dim as usize >= WIDE_HEAD_SIZES[0];
        // Blocks share the chunks of long contexts: two a multiprocessor, or one of twice as many warps.
        let wide = self.wide_tiles(q8, padded).filter(|_| few);
        args.rows = batch;
        args.at_once = 2 * self.multiprocessors();
        let (tiles, blocks) = if let Some(wide) = wide {
            args.at_once = self.multiprocessors();
            args.n_chunks = args.n_chunks.min(self.multiprocessors() / heads);
            (wide, self.multiprocessors() / (heads * batch))
        } else {
            let blocks = (2 * self.multiprocessors()).div_ceil(heads * batch);
            (tiles, blocks)
        };
        // No more blocks than a window has chunks, which have 128 positions at least.
        let blocks = match args.layout.ring {
            0 => blocks,
            _ => blocks.min((args.layout.window + args::KV_TILE).div_ceil(128)),
        };
        // The chunks of a head are joined where the tiles were.
        let room = tiles.shared / (4 * part_stride(dim) as usize);
        args.n_chunks = args.n_chunks.min(room as u32);
        let grid = (heads, batch, blocks.clamp(1, args.n_chunks));
        let (id, shared) = match together {
            true => (tiles.id_of_rows(), tiles.shared_of_rows),
            false => (tiles.id(), tiles.shared),
        };
        let threads = warps(tiles.wide) * 32;
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe {
            self.launch(stream, id, grid, threads, shared, &args)?;
            if args.join == 0 {
                self.combine(stream, &args, batch)?;
            }
        }
        Ok(())
    }

    /// The same without tensor cores, for any cache.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn attend_fma(
        &self,
        stream: &Stream,
        args: &args::Attend,
        batch: u32,
    ) -> Result<()> {
        if args.layout.head_dim > LONGEST_SHORT {
            // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
            return unsafe {
                self.place(stream, args, batch)?;
                self.attend_fma_long(stream, args, batch)
            };
        }
        let group = args.n_heads / args.layout.n_kv_heads;
        let at_once = group.next_power_of_two().min(8);
        let lanes = args.layout.head_dim.div_ceil(8).next_power_of_two();
        let shared = (128 / lanes * at_once * (lanes * 8 + 2) * 4) as usize;
        let rope = args::Rope {
            q_f32: args.q,
            ..rope_of(args)
        };
        let args = args::Attend {
            head_parts: group.div_ceil(at_once),
            ..*args
        };
        let heads = args.layout.n_kv_heads * args.head_parts;
        let grid = (args.n_chunks, heads, batch);
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe {
            self.rope_append(stream, &rope, batch)?;
            let id = KernelId::AttendFma { queries: at_once };
            self.launch(stream, id, grid, 128, shared, &args)?;
            self.combine(stream, &args, batch)
        }
    }

    /// Joins the chunks of a context.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub(super) unsafe fn combine(
        &self,
        stream: &Stream,
        args: &args::Attend,
        batch: u32,
    ) -> Result<()> {
        let width = args.n_heads * args.value_dim;
        let grid = (width.next_multiple_of(32).div_ceil(128), batch, 1);
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, KernelId::AttendCombine, grid, 128, 0, args) }
    }

    /// Attention of consecutive positions of one session, from the first row on.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn flash(&self, stream: &Stream, args: &args::Flash) -> Result<()> {
        debug_assert!(
            args.layout.head_dim <= LONGEST_SHORT,
            "flash_long is for those"
        );
        let dim = padded_head(args.layout.head_dim);
        let wgmma = KernelId::FlashWgmma { dim };
        let takes = args.layout.q8 == 0 && args.layout.head_dim.is_multiple_of(8);
        if self.has(wgmma) && takes && !is_rare(&args.layout, args.slopes) {
            let grid = (args.n_heads, (args.rows - args.first_row).div_ceil(128), 1);
            // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
            return unsafe { self.launch(stream, wgmma, grid, 384, flash_wgmma_shared(dim), args) };
        }
        let q8 = args.layout.q8 != 0;
        let id = KernelId::Flash { q8, dim };
        let grid = ((args.rows - args.first_row).div_ceil(64), args.n_heads, 1);
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, id, grid, 128, flash_shared(dim), args) }
    }
}

/// Stages of the kernels with four warps for heads of a size, the best first.
fn stages(q8: bool, dim: usize) -> &'static [usize] {
    let sizes = if q8 { Q8_HEAD_SIZES } else { HEAD_SIZES };
    let found = sizes.into_iter().find(|(size, _)| *size == dim);
    found.map_or(&[], |(_, stages)| stages)
}

/// Warps of a block that attends in tiles.
fn warps(wide: bool) -> u32 {
    if wide { WIDE_WARPS } else { WARPS }
}

/// Rows of one session that a block of `attend_rows_*` takes, whose KV heads have so many queries: by its columns.
fn rows_at_once(padded: usize, queries: u32) -> u32 {
    let columns = if padded > 128 { 8 } else { 16 };
    columns / queries
}

/// Whether attention is of a kind that few networks have: within chunks, or with scores that fall with the distance. Of the kernels for short
/// heads, only those without tensor cores and `flash_*` know of them, so that all others are as fast as without.
fn is_rare(layout: &args::KvLayout, slopes: u64) -> bool {
    layout.window & args::CHUNKED != 0 || slopes != 0
}

/// Floats of a part of a context, as `part_stride` of attend.cuh.
pub fn part_stride(head_dim: u32) -> u32 {
    (head_dim + 2).next_multiple_of(4)
}

/// What places queries, keys and values, but for where queries go.
fn rope_of(args: &args::Attend) -> args::Rope {
    args::Rope {
        sessions: args.sessions,
        qkv: args.qkv,
        rotation: args.rotation,
        q_norm: args.q_norm,
        k_norm: args.k_norm,
        v_norm: args.v_norm,
        layout: args.layout,
        qkv_stride: args.qkv_stride,
        n_heads: args.n_heads,
        value_head: args.value_head,
        shares: args.shares,
        ..Default::default()
    }
}

/// The arguments completed for attention in tiles.
fn in_tiles(args: &args::Attend) -> args::Attend {
    let group = args.n_heads / args.layout.n_kv_heads;
    args::Attend {
        head_parts: group.div_ceil(8),
        join: u32::from(args.layout.head_dim.is_multiple_of(32)),
        ..*args
    }
}

/// Size of heads that a kernel's tiles are made for.
pub(super) fn padded_head(dim: u32) -> usize {
    (dim as usize)
        .next_power_of_two()
        .clamp(64, LONGEST_SHORT as usize)
}

/// Shared memory of the same for sm_90a: 128 queries, two stages of 128 keys and values, room to align.
pub(super) fn flash_wgmma_shared(dim: usize) -> usize {
    5 * 128 * dim * 2 + 1024
}

/// Shared memory of the prefill's attention: two stages of keys and values.
pub(super) fn flash_shared(dim: usize) -> usize {
    let rows = if dim <= 128 { 64 } else { 32 };
    4 * rows * dim * 2
}
