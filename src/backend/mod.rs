//! Backends run a network: whole steps, not single operations, so that each fuses as it likes.
//!
//! `Weights` is a network resident on a device, `Runner` the state of one session there. The engine
//! is written against these traits alone.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod device;

pub use device::{Backend, DeviceInfo, DeviceKind, LoadOptions, Progress};

use crate::engine::sampling::Sampling;
use crate::error::Result;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Element type of the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    /// Half precision.
    #[default]
    F16,
    /// Single precision. CPU only.
    F32,
    /// 8-bit values with a half-precision scale per 32. GPU only.
    Q8_0,
}

/// What a runner is made with.
#[derive(Clone, Copy, Debug)]
pub struct RunnerOptions {
    /// Positions that the KV cache must be able to hold.
    pub context: usize,
    /// Element type of the KV cache.
    pub kv_type: KvType,
}

/// A network's weights on a device. Shared by all its runners.
pub trait Weights: Send + Sync {
    /// Makes a runner with an empty KV cache and everything reserved that a step needs.
    fn create_runner(self: Arc<Self>, options: &RunnerOptions) -> Result<Box<dyn Runner>>;

    /// Bytes of memory that the weights hold beyond the mapped file (on a GPU, device memory).
    fn resident_bytes(&self) -> u64;

    /// Bytes of KV cache per position.
    fn kv_bytes_per_token(&self, kv_type: KvType) -> u64;

    /// Steps several different runners of these weights, `steps[i]` being that of `runners[i]`, and
    /// returns their tokens. An error leaves all of them as they were, unless it is an error of one
    /// runner's own logits. What a runner answers does not depend on the others.
    fn step_batch(
        &self,
        runners: &mut [&mut dyn Runner],
        steps: &[Step],
        interrupt: &AtomicBool,
    ) -> Result<Vec<Result<u32>>> {
        let pairs = runners.iter_mut().zip(steps);
        Ok(pairs.map(|(r, s)| r.step(s, interrupt)).collect())
    }
}

/// One decode step to do.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The token to append first, or `None` to sample again from the logits at hand.
    pub token: Option<u32>,
    /// How to choose the next token.
    pub sampling: Sampling,
    /// Index of the draw: the position that the chosen token will have.
    pub position: u64,
}

/// The state of one session on a device: KV cache, scratch memory, logits.
///
/// A call that fails leaves the runner as it was before. Between `step_start` and the `Some` or
/// error of `step_poll`, only `step_poll` may be called.
pub trait Runner: Send {
    /// The runner itself, for a backend that looks for its own.
    fn as_any(&mut self) -> Option<&mut dyn std::any::Any> {
        None
    }

    /// Number of positions in the KV cache.
    fn len(&self) -> usize;

    /// Whether the KV cache is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends `tokens` (checked by the caller: at least one, in the vocabulary, fitting) and
    /// leaves the logits of the last one. Looks at `interrupt` at least once a layer and, if it is
    /// set, returns `Interrupted` with nothing appended.
    fn extend(&mut self, tokens: &[u32], interrupt: &AtomicBool) -> Result<()>;

    /// Forgets all positions from `len` on. The logits are lost, too.
    fn truncate(&mut self, len: usize);

    /// Whether logits of the last position are at hand.
    fn has_logits(&self) -> bool;

    /// Writes the logits of the last position, `n_vocab` of them.
    fn logits(&mut self, out: &mut [f32]) -> Result<()>;

    /// Appends `step.token`, if there is one, chooses the next token and returns it. The same as
    /// `step_start` and waiting for it.
    fn step(&mut self, step: &Step, interrupt: &AtomicBool) -> Result<u32>;

    /// Starts the same step and returns at once.
    fn step_start(&mut self, step: &Step, interrupt: &Arc<AtomicBool>) -> Result<()>;

    /// The started step's token, or `None` while it runs. Never blocks unless `wait`.
    fn step_poll(&mut self, wait: bool) -> Result<Option<u32>>;
}
