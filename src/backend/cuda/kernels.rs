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
/// Positions per tile of the KV cache.
pub const KV_TILE: usize = 64;
/// Largest head that the attention kernels take.
pub const MAX_HEAD_DIM: usize = 256;
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
            ("fragments", "fragments", 0),
            ("matmul", "matmul", MATMUL_SHARED),
            ("attention", "rope_append", 0),
            ("attention", "attend_combine", 0),
            ("sample", "best", 0),
            ("sample", "finish", 0),
        ];
        for (module, name, bytes) in plain {
            self.find(module, name, bytes)?;
        }
        if self.wgmma {
            for width in [128, 256] {
                self.find(
                    "matmul_wgmma",
                    &format!("matmul_wgmma_{width}"),
                    WGMMA_SHARED,
                )?;
            }
        }
        for heads in [1, 2, 4, 8] {
            self.find("attention", &format!("attend_q8_{heads}"), 0)?;
        }
        for dim in [64, 128, 256] {
            let bytes = self.attend_shared(dim);
            if bytes <= shared {
                self.find("attention", &format!("attend_tiles_{dim}"), bytes)?;
            }
        }
        for q8 in ["", "q8_"] {
            for dim in [64, 128, 256] {
                let bytes = flash_shared(dim);
                if bytes <= shared {
                    self.find("attention_prefill", &format!("flash_{q8}{dim}"), bytes)?;
                }
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

    fn find(&mut self, module: &str, name: &str, shared: usize) -> Result<()> {
        let c_name = CString::new(name).expect("names have no NUL");
        let Some(module) = self.modules.get(module) else {
            fail!(Internal, "no kernel file {module:?} in this build");
        };
        let kernel = module.kernel(&c_name, shared)?;
        self.by_name.insert(name.to_owned(), kernel);
        Ok(())
    }

    /// Shared memory of attention in tiles: stages of keys and values.
    fn attend_shared(&self, dim: usize) -> usize {
        let stages = if dim <= 128 && self.context.properties().capability.0 >= 8 {
            3
        } else {
            2
        };
        stages * 2 * KV_TILE * dim * 2
    }

    fn ring_prefix(&self) -> &'static str {
        if self.ring_bytes > 0 { "ring_" } else { "" }
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

    /// # Safety
    /// As [`Stream::launch`].
    unsafe fn launch<T: Copy>(
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

    /// Embedding rows of `args.count` tokens.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn embed(&self, stream: &Stream, args: &args::Embed) -> Result<()> {
        let grid = (args.groups.div_ceil(128), args.count, 1);
        // SAFETY: the caller's word.
        unsafe { self.launch(stream, "embed", grid, 128, 0, args) }
    }

    /// Writes `rows` rows of a product's input.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn produce(&self, stream: &Stream, args: &args::Produce, rows: u32) -> Result<()> {
        let whole_row = args.source == args::Source::RmsNorm as u32 || args.f16 != 0;
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

    /// `out = matrix * input (+ bias) (+ residual)` for `batch` rows of input.
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
        residual: bool,
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
                    residual: if residual {
                        out + row * u64::from(out_stride) * 4
                    } else {
                        0
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
        unsafe { self.launch(stream, "matmul", grid, 256, MATMUL_SHARED, args) }
    }

    /// Rotates queries and keys of `rows` rows, and appends keys and values to the cache.
    ///
    /// # Safety
    /// As [`Stream::launch`]; the cache must be backed up to the rows' positions.
    pub unsafe fn rope_append(&self, stream: &Stream, args: &args::Rope, rows: u32) -> Result<()> {
        let grid = (args.n_heads + 2 * args.layout.n_kv_heads, rows, 1);
        // SAFETY: the caller's word.
        unsafe { self.launch(stream, "rope_append", grid, 128, 0, args) }
    }

    /// Rotates queries and keys, appends keys and values to the cache, and attends, for one position
    /// of each of `batch` sessions. The tickets must be zeros, and are left so.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn attend(&self, stream: &Stream, args: &args::Attend, batch: u32) -> Result<()> {
        let group = args.n_heads / args.layout.n_kv_heads;
        let dim = args.layout.head_dim;
        let (at_once, name, shared) = if args.layout.q8 != 0 {
            let at_once = group.next_power_of_two().min(8);
            let lanes = dim.div_ceil(8).next_power_of_two();
            let shared = (128 / lanes * at_once * (lanes * 8 + 2) * 4) as usize;
            (at_once, format!("attend_q8_{at_once}"), shared)
        } else {
            let dim = padded_head(dim);
            (8, format!("attend_tiles_{dim}"), self.attend_shared(dim))
        };
        let tiles = args.layout.q8 == 0;
        let join = tiles && dim.is_multiple_of(32);
        let args = args::Attend {
            head_parts: group.div_ceil(at_once),
            join: u32::from(join),
            ..*args
        };
        if !tiles {
            let rope = args::Rope {
                sessions: args.sessions,
                qkv: args.qkv,
                q_f32: args.q,
                inv_freq: args.inv_freq,
                layout: args.layout,
                magnitude: args.magnitude,
                qkv_stride: args.qkv_stride,
                n_heads: args.n_heads,
                n_pairs: args.n_pairs,
                interleaved: args.interleaved,
                layer: args.layer,
                ..Default::default()
            };
            // SAFETY: the caller's word.
            unsafe { self.rope_append(stream, &rope, batch)? };
        }
        let heads = args.layout.n_kv_heads * args.head_parts;
        let grid = if tiles {
            // Two blocks a multiprocessor, which share the chunks of long contexts.
            let sharing = (2 * self.multiprocessors).div_ceil(heads * batch);
            (heads, batch, sharing.clamp(1, args.n_chunks))
        } else {
            (args.n_chunks, heads, batch)
        };
        let width = args.n_heads * args.layout.head_dim;
        // SAFETY: the caller's word.
        unsafe {
            self.launch(stream, &name, grid, 128, shared, &args)?;
            if join {
                return Ok(());
            }
            let grid = (width.next_multiple_of(32).div_ceil(128), batch, 1);
            self.launch(stream, "attend_combine", grid, 128, 0, &args)
        }
    }

    /// Attention of consecutive positions of one session.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn flash(&self, stream: &Stream, args: &args::Flash) -> Result<()> {
        let dim = padded_head(args.layout.head_dim);
        let q8 = if args.layout.q8 != 0 { "q8_" } else { "" };
        let grid = (args.rows.div_ceil(64), args.n_heads, 1);
        // SAFETY: the caller's word.
        unsafe {
            self.launch(
                stream,
                &format!("flash_{q8}{dim}"),
                grid,
                128,
                flash_shared(dim),
                args,
            )
        }
    }

    /// Chooses tokens and ends the step of `batch` sessions.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn sample(&self, stream: &Stream, args: &args::Sample, batch: u32) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe {
            if args.choose != 0 {
                self.launch(stream, "best", (args.n_best, batch, 1), 256, 0, args)?;
            }
            self.launch(stream, "finish", (batch, 1, 1), 1024, 0, args)
        }
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

/// Shared memory of the matmul kernel: three stages of two tiles.
const MATMUL_SHARED: usize = 3 * (128 + 128) * 64 * 2;

/// Shared memory of the matmul kernels for sm_90a: a ring of tiles, and room to align it.
const WGMMA_SHARED: usize = 4 * (128 + 256) * 64 * 2 + 1024;

/// Size of heads that a kernel's tiles are made for.
fn padded_head(dim: u32) -> usize {
    (dim as usize).next_power_of_two().clamp(64, MAX_HEAD_DIM)
}

/// Shared memory of the prefill's attention: two stages of keys and values.
fn flash_shared(dim: usize) -> usize {
    4 * 64 * dim * 2
}

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
