//! The kernels, loaded into a context, and their launches.
//!
//! A launch fills the kernel's structure, chooses its grid, and enqueues it. Shapes were checked when
//! the network was described; these functions only turn them into arguments.

use super::args;
use super::feed_forward::{MlpPlan, SILU};
use super::kernel_id::KernelId;
use crate::backend::cuda::driver::{Context, Kernel, Launch, Module, Stream};
use crate::error::{Result, fail};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::Arc;

include!(concat!(env!("OUT_DIR"), "/cuda_modules.rs"));

/// Warps of a matvec block.
pub(super) const WARPS: usize = args::WARPS as usize;
/// Widest row that products of one row add up before, and of two of which they take the norm.
pub(super) const WIDEST_SUM: u32 = 4 * (args::FOURS_OF_SUM * args::WARPS * 32) as u32;
/// Threads of the `quantize_input` kernel for rows that one block handles.
const QUANTIZE_INPUT_THREADS: u32 = 1024;

/// All kernels of a device.
pub struct Kernels {
    context: Arc<Context>,
    modules: HashMap<&'static str, Module>,
    by_id: HashMap<KernelId, Kernel>,
    /// Warpgroup products, which only compute capability 9.0 has.
    wgmma: bool,
    multiprocessors: u32,
}

impl Kernels {
    /// Loads everything that a network of any types may need.
    pub fn load(context: &Arc<Context>) -> Result<Kernels> {
        let mut modules = HashMap::new();
        for (name, image) in MODULES {
            modules.insert(*name, Module::load(context, image)?);
        }
        let properties = context.properties();
        let mut kernels = Kernels {
            context: context.clone(),
            modules,
            by_id: HashMap::new(),
            wgmma: properties.has_wgmma(),
            multiprocessors: properties.multiprocessors,
        };
        kernels.find_all()?;
        Ok(kernels)
    }

    fn find_all(&mut self) -> Result<()> {
        for id in KernelId::PLAIN {
            self.find(*id, 0)?;
        }
        self.find(KernelId::Matmul, self.matmul_shared())?;
        self.find_attention()?;
        self.find_texts()?;
        self.find_experts()?;
        self.find_products()?;
        self.find_own_inputs()?;
        self.find_recurrent()?;
        if self.wgmma {
            for width in [128, 256] {
                for gated in [false, true] {
                    self.find(KernelId::MatmulWgmma { gated, width }, WGMMA_SHARED)?;
                }
            }
        }
        self.find_matvecs()?;
        self.find_batches()?;
        self.find_f16_batches()?;
        Ok(())
    }

    /// Makes a kernel known, with the dynamic shared memory that it may take.
    pub(super) fn find(&mut self, id: KernelId, shared: usize) -> Result<()> {
        let (file, name) = id.source();
        let Some(module) = self.modules.get(file.as_str()) else {
            fail!(Internal, "no kernel file {file:?} in this build");
        };
        let name = CString::new(name).expect("names have no NUL");
        let kernel = module.kernel(&name, shared)?;
        self.by_id.insert(id, kernel);
        Ok(())
    }

    /// Shared memory of the matmul kernels: stages of two tiles, as `MATMUL_STAGES` of matmul.cuh.
    pub(super) fn matmul_shared(&self) -> usize {
        let stages = if self.context.properties().capability.0 >= 8 {
            3
        } else {
            2
        };
        stages * (128 + 128) * 64 * 2
    }

    /// Whether products of many rows go by warpgroups.
    pub fn has_wgmma(&self) -> bool {
        self.wgmma
    }

    /// Whether the device can run a kernel.
    pub(super) fn has(&self, id: KernelId) -> bool {
        self.by_id.contains_key(&id)
    }

    pub(super) fn get(&self, id: KernelId) -> Result<Kernel> {
        match self.by_id.get(&id) {
            Some(kernel) => Ok(*kernel),
            None => fail!(
                Unsupported,
                "this device cannot run the kernel {}",
                id.source().1
            ),
        }
    }

    /// The context that the kernels are loaded into.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Multiprocessors of the device.
    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// Whether a block may have the shared memory that `LARGE_SHARED` of instructions.cuh promises.
    pub(super) fn has_large_shared(&self) -> bool {
        (9..12).contains(&self.context.properties().capability.0)
    }

    /// Whether blocks can form clusters, and the kernels use them.
    pub(super) fn has_clusters(&self) -> bool {
        self.context.properties().capability.0 >= 9
    }

    /// Enqueues a kernel.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub(in crate::backend::cuda) unsafe fn launch<T: Copy>(
        &self,
        stream: &Stream,
        id: KernelId,
        grid: (u32, u32, u32),
        block: u32,
        shared: usize,
        args: &T,
    ) -> Result<()> {
        let launch = Launch {
            grid,
            block,
            shared: shared as u32,
            programmatic: self.context.programmatic(),
        };
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { stream.launch(self.get(id)?, &launch, args) }
    }

    /// Brings rows from the layout of a file into records.
    ///
    /// # Safety
    /// As [`Stream::launch`]; `raw` must hold `args.rows` rows.
    pub unsafe fn repack(&self, stream: &Stream, args: &args::Repack) -> Result<()> {
        let threads = u64::from(args.rows) * u64::from(args.groups);
        let grid = (threads.div_ceil(128) as u32, 1, 1);
        // SAFETY: by contract, `raw` holds `args.rows` rows, and all addresses are valid. Not
        // programmatic: the kernel does not wait.
        unsafe {
            let launch = Launch {
                grid,
                block: 128,
                shared: 0,
                programmatic: false,
            };
            stream.launch(self.get(KernelId::Repack)?, &launch, args)
        }
    }

    /// Plain values of rows of a matrix.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn unpack(&self, stream: &Stream, args: &args::Unpack) -> Result<()> {
        let groups = if args.to_f32 != 0 {
            args.groups
        } else {
            args.groups.next_multiple_of(2)
        };
        // A warp takes 32 groups of a row.
        let warps = u64::from(args.rows) * u64::from(groups.div_ceil(32));
        let grid = (warps.div_ceil(8) as u32, 1, 1);
        let id = match args.to_f32 {
            0 => KernelId::Unpack,
            _ => KernelId::UnpackF32,
        };
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, id, grid, 256, 0, args) }
    }

    /// Embedding rows of `count` tokens.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn embed(&self, stream: &Stream, args: &args::Embed, count: u32) -> Result<()> {
        let grid = (args.groups.div_ceil(128), count, 1);
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, KernelId::Embed, grid, 128, 0, args) }
    }

    /// Inputs of `layers` layers for `count` tokens, in place of their projections.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn layer_inputs(
        &self,
        stream: &Stream,
        args: &args::LayerInputs,
        layers: u32,
        count: u32,
    ) -> Result<()> {
        let grid = (layers, count, 1);
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, KernelId::LayerInputs, grid, 128, 0, args) }
    }

    /// Writes `rows` rows of a product's input.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn quantize_input(
        &self,
        stream: &Stream,
        args: &args::QuantizeInput,
        rows: u32,
    ) -> Result<()> {
        let whole_row = args.norm.weight != 0 || args.f16 != 0;
        let width = args.groups * 32;
        let threads = width.div_ceil(4).next_multiple_of(32);
        let (parts, threads) = if args.columns != 0 && args.largest != 0 {
            (width.div_ceil(1024), threads.min(256))
        } else if args.f16 != 0 {
            // Sixteen elements a thread stay in registers. Short rows have small blocks, of which a multiprocessor holds many: it
            // takes that many bytes on their way.
            // The few rows of a step are done as fast as can be.
            let each = if args.columns != 0 { 4 } else { 16 };
            let threads = width.div_ceil(each).next_multiple_of(32);
            (1, threads.clamp(64, QUANTIZE_INPUT_THREADS))
        } else if whole_row {
            // Rows of a decode step fit half a block's registers, which leaves room beside it.
            let most = if width <= 16 * 512 {
                512
            } else {
                QUANTIZE_INPUT_THREADS
            };
            (1, threads.min(most))
        } else {
            (width.div_ceil(1024), threads.min(256))
        };
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe {
            self.launch(
                stream,
                KernelId::QuantizeInput,
                (parts, rows, 1),
                threads,
                0,
                args,
            )
        }
    }

    /// `out = x * w (+ bias) (+ residual)` for many rows.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn matmul(&self, stream: &Stream, args: &args::Matmul) -> Result<()> {
        if self.wgmma {
            // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
            return unsafe { self.launch_wgmma(stream, false, args, args) };
        }
        let grid = (args.m.div_ceil(128), args.n.div_ceil(128), 1);
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe {
            self.launch(
                stream,
                KernelId::Matmul,
                grid,
                256,
                self.matmul_shared(),
                args,
            )
        }
    }

    /// Whether the device has [`Kernels::matmul_gated`].
    pub fn has_gated(&self) -> bool {
        self.wgmma
    }

    /// Whether that does this feed-forward part.
    pub fn gates(&self, mlp: &MlpPlan) -> bool {
        self.has_gated()
            && mlp.gated
            && mlp.activation.kind == SILU
            && mlp.cutoff.is_none()
            && mlp.inner_norm.is_none()
            && mlp.up.bias == 0
            && mlp.n_ff.is_multiple_of(64)
    }

    /// `out = silu(gate) * up` for many rows, with the rows of both matrices by turns.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn matmul_gated(&self, stream: &Stream, args: &args::GatedMatmul) -> Result<()> {
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch_wgmma(stream, true, &args.product, args) }
    }

    /// Enqueues a kernel of matmul_wgmma.cu with the tiles that suit the product.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    unsafe fn launch_wgmma<T: Copy>(
        &self,
        stream: &Stream,
        gated: bool,
        product: &args::Matmul,
        args: &T,
    ) -> Result<()> {
        let pairs = self.multiprocessors / 2;
        let tiles = |width: u32| product.m.div_ceil(256) * product.n.div_ceil(width);
        // Tiles of half the width take a little more than half the time, by what was measured.
        let time = |width: u32, speed: u32| tiles(width).div_ceil(pairs) * width * 100 / speed;
        let width = if time(128, 92) < time(256, 100) {
            128
        } else {
            256
        };
        let grid = (2 * tiles(width).min(pairs), 1, 1);
        let id = KernelId::MatmulWgmma { gated, width };
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, id, grid, 384, WGMMA_SHARED, args) }
    }

    /// Adds branches' outputs to `rows` rows of the residual stream.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn residual_add(
        &self,
        stream: &Stream,
        args: &args::ResidualAdd,
        rows: u32,
    ) -> Result<()> {
        // Four elements a thread, where they lie at multiples of their size.
        let fours = [args.len, args.x_stride, args.stride];
        let each = match fours.iter().all(|n| n.is_multiple_of(4)) {
            true => 4,
            false => 1,
        };
        // As many as products of one row have, which add rows of this width up themselves: the bits depend on it.
        let most = match args.len {
            ..=WIDEST_SUM if each == 4 => (WARPS * 32) as u32,
            _ => 1024,
        };
        let threads = args.len.div_ceil(each).next_multiple_of(32).min(most);
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe {
            self.launch(
                stream,
                KernelId::ResidualAdd,
                (rows, 1, 1),
                threads,
                0,
                args,
            )
        }
    }

    /// Adds up what all ranks have, which is `pulled` from where they have it, or sent to all.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn rank_sum(
        &self,
        stream: &Stream,
        args: &args::RankSum,
        (blocks, threads): (u32, u32),
        pulled: bool,
    ) -> Result<()> {
        let id = match pulled {
            true => KernelId::RankSumPulled,
            false => KernelId::RankSum,
        };
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, id, (blocks, 1, 1), threads, 0, args) }
    }

    /// Ends a launch of all ranks, and brings their logits together.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn rank_logits(
        &self,
        stream: &Stream,
        args: &args::RankLogits,
        blocks: u32,
        threads: u32,
    ) -> Result<()> {
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe {
            self.launch(
                stream,
                KernelId::RankLogits,
                (blocks, 1, 1),
                threads,
                0,
                args,
            )
        }
    }

    /// Puts rows where they are gathered from.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn rank_pack(&self, stream: &Stream, args: &args::RankPack) -> Result<()> {
        let grid = (args.len.div_ceil(1024), args.rows, 1);
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, KernelId::RankPack, grid, 256, 0, args) }
    }

    /// Adds up what was gathered of all ranks.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn rank_add(&self, stream: &Stream, args: &args::RankAdd) -> Result<()> {
        // Short rows are spread over many small blocks.
        let threads = if args.rows == 1 { 64 } else { 256 };
        let grid = (args.len.div_ceil(4 * threads), args.rows, 1);
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch_behind(stream, KernelId::RankAdd, (grid, threads), args) }
    }

    /// Puts logits that were gathered of all ranks into rows of all logits.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn rank_place(&self, stream: &Stream, args: &args::RankPlace) -> Result<()> {
        let grid = (args.width.div_ceil(1024), args.rows, args.n_ranks);
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch_behind(stream, KernelId::RankPlace, (grid, 256), args) }
    }

    /// Enqueues a kernel behind work that is not the library's, which does not say when the next may start.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    unsafe fn launch_behind<T: Copy>(
        &self,
        stream: &Stream,
        id: KernelId,
        (grid, block): ((u32, u32, u32), u32),
        args: &T,
    ) -> Result<()> {
        let launch = Launch {
            grid,
            block,
            shared: 0,
            programmatic: false,
        };
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { stream.launch(self.get(id)?, &launch, args) }
    }

    /// Norms of parts of `rows` rows, in place.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn norm_parts(
        &self,
        stream: &Stream,
        args: &args::NormParts,
        rows: u32,
    ) -> Result<()> {
        let longest = args.len[0].max(args.len[1]);
        let threads = longest.next_multiple_of(32).min(1024);
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, KernelId::NormParts, (2, rows, 1), threads, 0, args) }
    }

    /// Scales and caps `rows` rows of logits.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn finish_logits(
        &self,
        stream: &Stream,
        args: &args::Logits,
        rows: u32,
    ) -> Result<()> {
        let parts = args.n_vocab.div_ceil(256).min(4 * self.multiprocessors);
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe {
            self.launch(
                stream,
                KernelId::FinishLogits,
                (parts, rows, 1),
                256,
                0,
                args,
            )
        }
    }
}

/// Shared memory of the matmul kernels for sm_90a: a ring of tiles, up to seven of 128 rows of both
/// sides, and room to align it.
const WGMMA_SHARED: usize = 7 * (128 + 128) * 64 * 2 + 1024;
