//! A step of one session as one kernel that stays on the multiprocessors (kernels/persistent.cuh), for
//! networks whose layers are attention and a dense feed-forward part with norms before them.
//!
//! `EMBERLM_CUDA_PERSISTENT` asks for it: it is faster for small models, but not yet proven well enough to
//! be what everybody gets (`benches/cuda.md`).

mod operations;

use self::operations::{Builder, output_words};
use super::{StepBuffers, Timeline};
use crate::backend::Work;
use crate::backend::cuda::args;
use crate::backend::cuda::attention::{KV_TILE, padded_head};
use crate::backend::cuda::driver::{Buffer, Context, Launch, Stream};
use crate::backend::cuda::kernels::Kernels;
use crate::backend::cuda::kv::KvPlan;
use crate::backend::cuda::matrix::Matrix;
use crate::backend::cuda::plan::{FeedForwardPlan, LayerPlan, Plan};
use crate::error::Result;
use crate::quant::TensorType;
use std::sync::Arc;

/// Threads of a block.
const THREADS: u32 = 640;
/// Bytes of a slot of the ring of weights.
const SLOT_BYTES: usize = 18432;
/// Quads that it holds at most.
const SLOT_QUADS: u32 = 16;
/// Slots that a ring has at most.
const MAX_SLOTS: usize = 16;
/// Their number is a multiple of this, the most slots that the pairs of quads of 16 warps fill.
const SLOT_STEP: usize = 8;
/// Weights of this many more slots are on their way to the L2 cache: 15 MB with a block on each of 132
/// multiprocessors.
const SLOTS_AHEAD: u32 = 6;
/// Tiles of attention that fit beside the ring.
const ATTEND_STAGES: usize = 2;
/// Inputs of this width and more, without a norm, are encoded by all blocks together.
const WIDE_INPUT: u32 = 8192;
/// At least the static shared memory of a block.
const STATIC_SHARED: usize = 8192;
/// Bytes beside a product's input that its partial sums have at least.
const SUMS_BYTES: usize = 16 * 1024;
/// Widest row that a norm takes: what the registers of the working threads hold.
const WIDEST_NORM: u32 = 8192;
/// Size of the largest heads.
const LARGEST_HEAD: u32 = 128;

/// The operations of a step, on the device.
pub(super) struct Persistent {
    _ops: Buffer,
    _outputs: Buffer,
    _state: Buffer,
    args: args::Persistent,
    kernel: String,
    grid: u32,
    shared: usize,
    /// What each operation does, and the bytes of weights that it reads; of attention, its layer.
    work: Vec<(Work, u64)>,
}

fn is_asked_for() -> bool {
    std::env::var_os("EMBERLM_CUDA_PERSISTENT").is_some()
}

/// Whether a kernel file is to be loaded: that of a persistent kernel only where it is asked for.
pub(in crate::backend::cuda) fn is_wanted(module: &str) -> bool {
    !module.starts_with("persistent") || is_asked_for()
}

impl Kernels {
    /// Makes the persistent kernels known where they are loaded and the device can run them.
    pub(in crate::backend::cuda) fn find_persistent(&mut self) -> Result<()> {
        let properties = self.context().properties();
        let shared = properties.shared_bytes;
        if properties.capability.0 >= 9 && properties.cooperative && is_asked_for() {
            for dim in [64, 128] {
                let name = format!("persistent_k_{dim}");
                self.find(&name, &name, shared - STATIC_SHARED)?;
            }
        }
        Ok(())
    }
}

/// Whether the kernel can do a layer.
fn takes(layer: &LayerPlan, kv: &args::KvLayout) -> bool {
    let attention = &layer.attention;
    let FeedForwardPlan::Dense(mlp) = &layer.feed_forward else {
        return false;
    };
    let width = attention.n_heads * attention.head_dim;
    !layer.parallel
        && layer.residual_scale == 1.0
        && layer.attention_post_norm.is_none()
        && layer.feed_forward_post_norm.is_none()
        && attention.row_norms.iter().all(|n| n.weight == 0)
        && attention.head_dim.is_multiple_of(32)
        && attention.head_dim <= LARGEST_HEAD
        && attention.output.groups * 32 == width
        && kv.q8 == 0
        && mlp.down.groups * 32 == mlp.n_ff
        && (!mlp.gated || (mlp.up.segments.len() == 1 && mlp.up.rows == 2 * mlp.n_ff))
        && [&attention.qkv, &attention.output, &mlp.up, &mlp.down]
            .into_iter()
            .all(takes_matrix)
}

fn takes_matrix(matrix: &Matrix) -> bool {
    use TensorType as T;
    matrix.segments.len() <= args::MAX_SEGMENTS
        && matrix
            .segments
            .iter()
            .all(|s| matches!(s.ty, T::Q8_0 | T::Q4K | T::Q5K | T::Q6K))
}

impl Persistent {
    /// Bytes on the device that a step of `plan` takes at most: none where it is not asked for.
    pub(super) fn bytes(plan: &Plan) -> u64 {
        if !is_asked_for() {
            return 0;
        }
        let n_ops = plan.layers.len() as u64 * 5 + 1;
        2 * (n_ops * size_of::<args::Op>() as u64 + u64::from(output_words(plan)) * 4) + 8
    }

    /// A step of the session at `sessions`; `None` if the kernel cannot do it.
    pub(super) fn new(
        kernels: &Kernels,
        buffers: &StepBuffers,
        plan: &Plan,
        kv: &KvPlan,
        sessions: u64,
    ) -> Result<Option<Persistent>> {
        let dim = plan.most(|a| padded_head(a.head_dim) as u32) as usize;
        let kernel = format!("persistent_k_{dim}");
        let whole_rows = plan.hidden.is_multiple_of(32) && plan.hidden <= WIDEST_NORM;
        let layers = plan.layers.iter().zip(&kv.layers);
        let supported = kernels.has(&kernel)
            && whole_rows
            && takes_matrix(&plan.head)
            && layers.into_iter().all(|(layer, kv)| takes(layer, kv));
        if !supported {
            return Ok(None);
        }
        // Beside the ring: attention's tiles, or a product's input and partial sums.
        let input = plan.widest_input() as usize * 48;
        let tiles = ATTEND_STAGES * 2 * KV_TILE * dim * 2;
        let rest = tiles.max(input + SUMS_BYTES);
        let available = kernels.context().properties().shared_bytes - STATIC_SHARED;
        // So that a warp comes to the same slots in every round of the ring, whatever the type.
        let slots =
            (available.saturating_sub(rest) / SLOT_BYTES).min(MAX_SLOTS) / SLOT_STEP * SLOT_STEP;
        if slots == 0 {
            return Ok(None);
        }
        let words = output_words(plan);
        let context = kernels.context();
        let what = "operations of a step";
        let outputs = Buffer::from_slice(context, &vec![UNWRITTEN; 2 * words as usize], what)?;
        let mut ops = Vec::new();
        let mut work = Vec::new();
        for set in 0..2 {
            let mut builder = Builder {
                buffers,
                plan,
                multiprocessors: kernels.multiprocessors(),
                rest,
                ops: Vec::new(),
                work: Vec::new(),
                next: outputs.address() + set * u64::from(words) * 4,
            };
            builder.step(kv, sessions);
            ops.extend(builder.ops);
            work = builder.work;
        }
        let ops = Buffer::from_slice(context, &ops, what)?;
        let state = Buffer::from_slice(context, &[0u32; 2], what)?;
        Ok(Some(Persistent {
            args: args::Persistent {
                ops: ops.address(),
                sessions,
                state: state.address(),
                outputs: outputs.address(),
                times: 0,
                output_words: words,
                n_ops: work.len() as u32,
                slots: slots as u32,
                ahead: SLOTS_AHEAD,
            },
            kernel,
            grid: kernels.multiprocessors(),
            shared: slots * SLOT_BYTES + rest,
            work,
            _ops: ops,
            _outputs: outputs,
            _state: state,
        }))
    }

    /// Enqueues the step, from the embedding in `h` to the logits.
    ///
    /// # Safety
    /// As [`StepBuffers::enqueue`].
    pub(super) unsafe fn enqueue(&self, kernels: &Kernels, stream: &Stream) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { self.launch(kernels, stream, &self.args) }
    }

    /// The same with the times of its operations on `timeline`; those of attention read `kv_bytes` of
    /// their layer.
    ///
    /// # Safety
    /// As [`StepBuffers::enqueue`].
    pub(super) unsafe fn enqueue_profiled(
        &self,
        kernels: &Kernels,
        stream: &Stream,
        timeline: &Timeline,
        kv_bytes: impl Fn(usize) -> u64,
    ) -> Result<()> {
        let times = Times::new(kernels.context(), self.work.len())?;
        let args = args::Persistent {
            times: times.buffer.address(),
            ..self.args
        };
        // SAFETY: the caller's word; the times live as long as the timeline.
        unsafe { self.launch(kernels, stream, &args)? };
        let work = self.work.iter().map(|&(work, n)| match work {
            Work::Attention => (work, kv_bytes(n as usize)),
            _ => (work, n),
        });
        timeline.mark_phases(stream, work.collect(), times)
    }

    /// # Safety
    /// As [`StepBuffers::enqueue`].
    unsafe fn launch(
        &self,
        kernels: &Kernels,
        stream: &Stream,
        args: &args::Persistent,
    ) -> Result<()> {
        let launch = Launch {
            grid: (self.grid, 1, 1),
            block: THREADS,
            shared: self.shared as u32,
            programmatic: false,
            cooperative: true,
        };
        // SAFETY: the caller's word.
        unsafe { stream.launch(kernels.get(&self.kernel)?, &launch, args) }
    }
}

/// Clock readings of a step's operations.
pub(super) struct Times {
    buffer: Buffer,
    n: usize,
}

impl Times {
    fn new(context: &Arc<Context>, n: usize) -> Result<Times> {
        let buffer = Buffer::from_slice(context, &vec![0u64; 2 * n], "a profile")?;
        Ok(Times { buffer, n })
    }

    /// The parts of the whole that each operation took, with the waiting before it: they add up to 1.
    pub(super) fn parts(&self) -> Result<Vec<f64>> {
        let mut times = vec![0u64; 2 * self.n];
        self.buffer.read(0, &mut times)?;
        Ok(parts(&times))
    }
}

/// The same of readings `[operation][begin, end]`. Where no begin was noted, the operation began when
/// the one before ended.
fn parts(times: &[u64]) -> Vec<f64> {
    let ends = times.iter().copied().skip(1).step_by(2);
    let mut before = times[0];
    let mut begins = Vec::new();
    for (begin, end) in times.iter().copied().step_by(2).zip(ends) {
        begins.push(if begin == 0 {
            before
        } else {
            begin.max(before)
        });
        before = end;
    }
    let whole = before.saturating_sub(begins[0]).max(1) as f64;
    let nexts = begins.iter().copied().skip(1).chain([before]);
    let part = |(begin, next): (u64, u64)| next.saturating_sub(begin) as f64 / whole;
    begins.iter().copied().zip(nexts).map(part).collect()
}

/// What an output holds before it is written, as `UNWRITTEN` of common.cuh.
const UNWRITTEN: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_step_add_up() {
        // The second operation has no begin of its own: it took what lies between its neighbours.
        let parts = parts(&[100, 150, 0, 190, 200, 300]);
        assert_eq!(parts, [0.25, 0.25, 0.5]);
    }
}
