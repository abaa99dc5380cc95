//! The kernels, loaded into a context, and their launches.
//!
//! A launch fills the kernel's structure, chooses its grid, and enqueues it. Shapes were checked when
//! the network was described; these functions only turn them into arguments.

use super::args;
use super::driver::{Context, Kernel, Launch, Module, Stream};
use super::matrix::{self, BATCH_FROM, BATCH_ROWS, Inputs, Matrix};
use crate::error::{Result, fail};
use crate::quant::TensorType;
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::Arc;

include!(concat!(env!("OUT_DIR"), "/cuda_modules.rs"));

/// Warps of a matvec block.
const WARPS: usize = 16;
/// Rows of input that the matvec kernels are made for.
const MATVEC_ROWS: [usize; 2] = [1, 4];
/// Warps of a block of these, and rows that a warp takes at a time.
const BATCH_WARPS: usize = 8;
const BATCH_TILE: usize = 16;
/// Bytes of weights that a matvec launch asks for ahead of its input: a part of the L2 cache.
const PREFETCH_BYTES: u64 = 24 << 20;
/// At least the static shared memory of a matvec block.
const STATIC_SHARED: usize = 2048;
/// Threads of the `produce` kernel for rows that one block handles.
const PRODUCE_THREADS: u32 = 1024;

/// All kernels of a device.
pub struct Kernels {
    context: Arc<Context>,
    modules: HashMap<&'static str, Module>,
    by_name: HashMap<String, Kernel>,
    /// Weights come by bulk copies (Hopper and later).
    ring_bytes: usize,
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
        // Measured on an H200, loads straight to registers by twice the warps are faster than the ring,
        // which `EMBERLM_CUDA_RING` asks for.
        let ring = properties.capability.0 >= 9 && std::env::var_os("EMBERLM_CUDA_RING").is_some();
        // Up to three records of four rows a warp; at least 16 KiB are left for the partial sums.
        let fitting = properties.shared_bytes.saturating_sub(20 * 1024) / WARPS / 128 * 128;
        let ring_bytes = if ring { fitting.min(6912) } else { 0 };
        let mut kernels = Kernels {
            context: context.clone(),
            modules,
            by_name: HashMap::new(),
            ring_bytes,
            wgmma: properties.capability == (9, 0)
                && std::env::var_os("EMBERLM_CUDA_MMA").is_none(),
            multiprocessors: properties.multiprocessors,
        };
        kernels.find_all()?;
        Ok(kernels)
    }

    fn find_all(&mut self) -> Result<()> {
        let shared = self.context.properties().shared_bytes;
        // What a matvec's dynamic memory may take beside its barriers.
        let beside_barriers = shared - STATIC_SHARED;
        let plain = [
            ("repack", "repack", 0),
            ("repack", "unpack", 0),
            ("embed", "embed", 0),
            ("norm", "produce", 0),
            ("norm", "add_branch", 0),
            ("norm", "norm_parts", 0),
            ("norm", "finish_logits", 0),
            ("fragments", "fragments", 0),
            ("matmul", "matmul", self.matmul_shared()),
            ("rope", "rope_append", 0),
            ("attention", "attend_combine", 0),
            ("sample", "penalize", 0),
            ("sample", "best", 0),
            ("sample", "finish", 0),
            ("draw", "draw", 0),
            ("draw", "logprobs", 0),
        ];
        for (module, name, bytes) in plain {
            self.find(module, name, bytes)?;
        }
        self.find_attention()?;
        self.find_experts()?;
        if self.wgmma {
            for width in [128, 256] {
                self.find(
                    "matmul_wgmma",
                    &format!("matmul_wgmma_{width}"),
                    WGMMA_SHARED,
                )?;
            }
        }
        let ring = self.ring_prefix();
        for ty in TensorType::ALL {
            for rows in if is_float(ty) { &[1][..] } else { &MATVEC_ROWS } {
                let name = format!("matvec_{ring}{}_{rows}", ty.name());
                self.find(matvec_module(ty), &name, beside_barriers)?;
            }
        }
        if self.context.properties().capability.0 >= 9 {
            for ty in TensorType::ALL.into_iter().filter(|ty| !is_float(*ty)) {
                let module = matvec_module(ty).replace("matvec", "matvec_batch");
                for rows in BATCH_ROWS {
                    self.find(
                        &module,
                        &format!("matvec_batch_{}_{rows}", ty.name()),
                        beside_barriers,
                    )?;
                }
            }
        }
        for rows in MATVEC_ROWS {
            self.find(
                "matvec_k",
                &format!("matvec_{ring}{PAIR}_{rows}"),
                beside_barriers,
            )?;
        }
        Ok(())
    }

    /// Makes a kernel of a file known, with the dynamic shared memory that it may take.
    pub(super) fn find(&mut self, module: &str, name: &str, shared: usize) -> Result<()> {
        let c_name = CString::new(name).expect("names have no NUL");
        let Some(module) = self.modules.get(module) else {
            fail!(Internal, "no kernel file {module:?} in this build");
        };
        let kernel = module.kernel(&c_name, shared)?;
        self.by_name.insert(name.to_owned(), kernel);
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

    fn ring_prefix(&self) -> &'static str {
        if self.ring_bytes > 0 { "ring_" } else { "" }
    }

    /// Whether the device can run a kernel.
    pub(super) fn has_wgmma(&self) -> bool {
        self.wgmma
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    fn get(&self, name: &str) -> Result<Kernel> {
        match self.by_name.get(name) {
            Some(kernel) => Ok(*kernel),
            None => fail!(Unsupported, "this device cannot run the kernel {name}"),
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

    /// Whether blocks can form clusters, and the kernels use them.
    pub(super) fn has_clusters(&self) -> bool {
        self.context.properties().capability.0 >= 9
    }

    /// Enqueues a kernel.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub(super) unsafe fn launch<T: Copy>(
        &self,
        stream: &Stream,
        name: &str,
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
        // SAFETY: the caller's word.
        unsafe { stream.launch(self.get(name)?, &launch, args) }
    }

    /// Brings rows from the layout of a file into records.
    ///
    /// # Safety
    /// As [`Stream::launch`]; `raw` must hold `args.rows` rows.
    pub unsafe fn repack(&self, stream: &Stream, args: &args::Repack) -> Result<()> {
        let threads = u64::from(args.rows) * u64::from(args.groups);
        let grid = (threads.div_ceil(128) as u32, 1, 1);
        // SAFETY: the caller's word. Not programmatic: the kernel does not wait.
        unsafe {
            let launch = Launch {
                grid,
                block: 128,
                shared: 0,
                programmatic: false,
            };
            stream.launch(self.get("repack")?, &launch, args)
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
        let threads = u64::from(args.rows) * u64::from(groups);
        let grid = (threads.div_ceil(256) as u32, 1, 1);
        // SAFETY: the caller's word. Not programmatic: the kernel does not wait.
        unsafe {
            let launch = Launch {
                grid,
                block: 256,
                shared: 0,
                programmatic: false,
            };
            stream.launch(self.get("unpack")?, &launch, args)
        }
    }

    /// Embedding rows of `count` tokens.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn embed(&self, stream: &Stream, args: &args::Embed, count: u32) -> Result<()> {
        let grid = (args.groups.div_ceil(128), count, 1);
        // SAFETY: the caller's word.
        unsafe { self.launch(stream, "embed", grid, 128, 0, args) }
    }

    /// Writes `rows` rows of a product's input.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn produce(&self, stream: &Stream, args: &args::Produce, rows: u32) -> Result<()> {
        let whole_row = args.source == args::Source::Norm as u32 || args.f16 != 0;
        let width = args.groups * 32;
        let threads = width.div_ceil(4).next_multiple_of(32);
        let (parts, threads) = if whole_row {
            // Rows of a decode step fit half a block's registers, which leaves room beside it.
            let most = if args.f16 == 0 && width <= 16 * 512 {
                512
            } else {
                PRODUCE_THREADS
            };
            (1, threads.min(most))
        } else {
            (width.div_ceil(1024), threads.min(256))
        };
        // SAFETY: the caller's word.
        unsafe { self.launch(stream, "produce", (parts, rows, 1), threads, 0, args) }
    }

    /// `out = matrix * input (+ bias) (+ residual)` for `batch` rows of input; `residual` is 0 or the
    /// address of rows like those of `out`, which they may be.
    ///
    /// # Safety
    /// As [`Stream::launch`]; `input` must hold the forms that the matrix's types need.
    #[expect(clippy::too_many_arguments, reason = "a product has that many parts")]
    pub unsafe fn matvec(
        &self,
        stream: &Stream,
        matrix: &Matrix,
        input: &Inputs,
        out: u64,
        out_stride: u32,
        residual: u64,
        batch: u32,
    ) -> Result<()> {
        let wide = batch >= BATCH_FROM && self.context.properties().capability.0 >= 9;
        // Segments that one kernel can do together: all of one type, or the one pair it knows.
        let mut ordered = None;
        let mut left: Vec<usize> = (0..matrix.segments.len()).collect();
        while let Some(&first) = left.first() {
            let ty = matrix.segments[first].ty;
            let in_pair = |t: TensorType| !wide && matches!(t, TensorType::Q4K | TensorType::Q6K);
            let (mine, rest): (Vec<usize>, Vec<usize>) = left.iter().partition(|&&i| {
                let other = matrix.segments[i].ty;
                other == ty || (in_pair(ty) && in_pair(other))
            });
            let mixed = mine.iter().any(|&i: &usize| matrix.segments[i].ty != ty);
            let types = if mixed { PAIR } else { ty.name() };
            let mut done = 0;
            while done < batch {
                let (name, plan, n) = if wide && !is_float(ty) {
                    let n = (batch - done).min(32);
                    let rows = matrix::batch_rows(n);
                    if ordered != Some(done) {
                        // SAFETY: the caller's word.
                        unsafe { self.fragments(stream, matrix, input, done, n)? };
                        ordered = Some(done);
                    }
                    (
                        format!("matvec_batch_{types}_{rows}"),
                        self.batch_plan(matrix, ty, rows),
                        n,
                    )
                } else {
                    let n = (batch - done).min(if is_float(ty) { 1 } else { 4 });
                    let rows = if n == 1 { 1 } else { 4 };
                    let ring = self.ring_prefix();
                    (
                        format!("matvec_{ring}{types}_{rows}"),
                        self.row_plan(rows),
                        n,
                    )
                };
                let (args, grid, shared) = self.plan_matvec(matrix, &mine, &plan);
                let row = u64::from(done);
                let width = u64::from(matrix.groups) * 32;
                let args = args::Matvec {
                    q8: if plan.warps == BATCH_WARPS {
                        input.fragments
                    } else {
                        input.q8 + row * width
                    },
                    q8_scale: input.q8_scale + row * u64::from(matrix.groups) * 4,
                    f32: input.f32 + row * width * 4,
                    out: out + row * u64::from(out_stride) * 4,
                    residual: match residual {
                        0 => 0,
                        first => first + row * u64::from(out_stride) * 4,
                    },
                    out_stride,
                    batch: n,
                    ..args
                };
                // SAFETY: the caller's word.
                unsafe {
                    self.launch(
                        stream,
                        &name,
                        (grid, 1, 1),
                        (plan.warps * 32) as u32,
                        shared,
                        &args,
                    )?
                };
                done += n;
            }
            left = rest;
        }
        Ok(())
    }

    /// Reorders `n` input rows from `first` on for the kernels for batches.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    unsafe fn fragments(
        &self,
        stream: &Stream,
        matrix: &Matrix,
        input: &Inputs,
        first: u32,
        n: u32,
    ) -> Result<()> {
        let at = u64::from(first) * u64::from(matrix.groups);
        let args = args::Fragments {
            q8: input.q8 + at * 32,
            q8_scale: input.q8_scale + at * 4,
            out: input.fragments,
            groups: matrix.groups,
            batch: n,
            tiles: matrix::batch_rows(n) as u32 / 8,
            padding: 0,
        };
        let grid = (matrix.groups.div_ceil(4), 1, 1);
        // SAFETY: the caller's word.
        unsafe { self.launch(stream, "fragments", grid, 128, 0, &args) }
    }

    fn row_plan(&self, rows: usize) -> MatvecPlan {
        MatvecPlan {
            sum_stride: rows,
            warps: WARPS,
            ring_bytes: self.ring_bytes,
            blocks: self.multiprocessors
                * if self.ring_bytes > 0 || rows > 1 {
                    1
                } else {
                    2
                },
        }
    }

    fn batch_plan(&self, matrix: &Matrix, ty: TensorType, rows: usize) -> MatvecPlan {
        let record = matrix::record_bytes(ty, matrix::slices(ty, matrix.groups).1) as usize;
        // As `stage_stride` of matvec_batch.cuh.
        let stage = BATCH_TILE
            * if record % 32 == 16 {
                record
            } else {
                record + 16
            };
        // Two stages where a third of the memory is left for partial sums.
        let two = BATCH_WARPS * 2 * stage <= self.context.properties().shared_bytes * 2 / 3;
        MatvecPlan {
            sum_stride: rows + 1,
            warps: BATCH_WARPS,
            ring_bytes: if two { 2 * stage } else { stage },
            blocks: self.multiprocessors,
        }
    }

    /// Arguments, blocks and shared memory of a launch over some segments of a matrix.
    fn plan_matvec(
        &self,
        matrix: &Matrix,
        which: &[usize],
        plan: &MatvecPlan,
    ) -> (args::Matvec, u32, usize) {
        let ring = plan.warps * plan.ring_bytes;
        let bytes: f64 = which.iter().map(|&i| matrix.segments[i].bytes as f64).sum();
        let slices = which
            .iter()
            .map(|&i| matrix.segments[i].slices(matrix.groups))
            .max()
            .unwrap_or(1);
        // Partial sums: 4 bytes for each slice, row and input row.
        let per_row = slices as usize * plan.sum_stride * 4;
        let limit = self.context.properties().shared_bytes - ring - STATIC_SHARED;
        let mut args = args::Matvec {
            n_segments: which.len() as u32,
            groups: matrix.groups,
            ring_bytes: plan.ring_bytes as u32,
            ..Default::default()
        };
        let mut first_block = 0;
        let mut most_rows = 1;
        for (to, &i) in args.segments.iter_mut().zip(which) {
            let s = &matrix.segments[i];
            let share = (f64::from(plan.blocks) * s.bytes as f64 / bytes).round() as u32;
            let blocks = share.clamp(1, s.rows);
            *to = args::Segment {
                matrix: s.address,
                bias: if matrix.bias == 0 {
                    0
                } else {
                    matrix.bias + u64::from(s.out_offset) * 4
                },
                ty: args::type_number(s.ty),
                rows: s.rows,
                first_block,
                blocks,
                out_offset: s.out_offset,
                padding: 0,
            };
            first_block += blocks;
            most_rows = most_rows.max(s.rows.div_ceil(blocks));
        }
        let mut chunk = (most_rows as usize).min((limit.min(96 * 1024) / per_row).max(1));
        if plan.warps == BATCH_WARPS && chunk < most_rows as usize && chunk > BATCH_TILE {
            chunk = chunk / BATCH_TILE * BATCH_TILE;
        }
        args.chunk_rows = chunk as u32;
        args.prefetch_bytes = (PREFETCH_BYTES / u64::from(first_block)) as u32 / 16 * 16;
        (args, first_block, ring + chunk * per_row)
    }

    /// `out = x * w (+ bias) (+ residual)` for many rows.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn matmul(&self, stream: &Stream, args: &args::Matmul) -> Result<()> {
        if self.wgmma {
            let pairs = self.multiprocessors / 2;
            let tiles = |width: u32| args.m.div_ceil(256) * args.n.div_ceil(width);
            // Tiles of half the width take more than half the time, by what was measured.
            let time = |width: u32, speed: u32| tiles(width).div_ceil(pairs) * width * 100 / speed;
            let width = if time(128, 58) < time(256, 100) {
                128
            } else {
                256
            };
            let grid = (2 * tiles(width).min(pairs), 1, 1);
            let name = format!("matmul_wgmma_{width}");
            // SAFETY: the caller's word.
            return unsafe { self.launch(stream, &name, grid, 384, WGMMA_SHARED, args) };
        }
        let grid = (args.m.div_ceil(128), args.n.div_ceil(128), 1);
        // SAFETY: the caller's word.
        unsafe { self.launch(stream, "matmul", grid, 256, self.matmul_shared(), args) }
    }

    /// Adds branches' outputs to `rows` rows of the residual stream.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn add_branch(
        &self,
        stream: &Stream,
        args: &args::AddBranch,
        rows: u32,
    ) -> Result<()> {
        let threads = args.len.next_multiple_of(32).min(1024);
        // SAFETY: the caller's word.
        unsafe { self.launch(stream, "add_branch", (rows, 1, 1), threads, 0, args) }
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
        // SAFETY: the caller's word.
        unsafe { self.launch(stream, "norm_parts", (2, rows, 1), threads, 0, args) }
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
        // SAFETY: the caller's word.
        unsafe { self.launch(stream, "finish_logits", (parts, rows, 1), 256, 0, args) }
    }
}

/// How a matvec kernel is launched.
struct MatvecPlan {
    /// Distance of rows in the partial sums.
    sum_stride: usize,
    warps: usize,
    /// Of each warp.
    ring_bytes: usize,
    /// To share among the segments.
    blocks: u32,
}

/// The two types that one matvec kernel takes together.
const PAIR: &str = "Q4_K_Q6_K";

/// Shared memory of the matmul kernels for sm_90a: a ring of tiles, and room to align it.
const WGMMA_SHARED: usize = 4 * (128 + 256) * 64 * 2 + 1024;

fn is_float(ty: TensorType) -> bool {
    matches!(ty, TensorType::F32 | TensorType::F16 | TensorType::BF16)
}

/// The kernel file of a type's products.
fn matvec_module(ty: TensorType) -> &'static str {
    use TensorType as T;
    match ty {
        T::F32 | T::F16 | T::BF16 => "matvec_float",
        T::Q8_0 | T::Q2K | T::Q3K | T::Q4K | T::Q5K | T::Q6K => "matvec_k",
        _ => "matvec_32",
    }
}
