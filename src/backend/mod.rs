//! Backends run a network: whole steps, not single operations, so that each fuses as it likes.
//!
//! `Weights` is a network resident on a device, `Runner` the state of one session there. The engine
//! is written against these traits alone.

mod batch;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod device;
mod profile;

pub use batch::{MAX_BATCH, at_index, move_index};
pub use device::{Backend, DeviceInfo, DeviceKind, Estimate, LoadOptions, Progress};
pub use profile::{Profile, ProfileEntry, Work};

use crate::engine::sampling::{Logprobs, Sampling, TokenRules};
use crate::error::{Result, fail};
use std::any::Any;
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
#[derive(Clone, Copy, Debug, Default)]
pub struct RunnerOptions {
    /// Positions that the KV cache must be able to hold.
    pub context: usize,
    /// Element type of the KV cache.
    pub kv_type: KvType,
    /// Priority among the sessions of a GPU: positive goes first, negative last. Devices have few
    /// levels and take the nearest. Ignored by CPUs.
    pub stream_priority: i32,
}

/// A network's weights on a device. Shared by all its runners.
pub trait Weights: Send + Sync {
    /// Makes a runner with an empty KV cache and everything reserved that a step needs.
    fn create_runner(self: Arc<Self>, options: &RunnerOptions) -> Result<Box<dyn Runner>>;

    /// Bytes of memory that the weights hold beyond the mapped file (on a GPU, device memory).
    fn resident_bytes(&self) -> u64;

    /// Bytes of KV cache that a further position takes: those of the layers without a sliding
    /// window.
    fn kv_bytes_per_token(&self, kv_type: KvType) -> u64;

    /// Bytes of KV cache of a session of so many positions.
    fn kv_bytes(&self, kv_type: KvType, context: usize) -> u64 {
        self.kv_bytes_per_token(kv_type)
            .saturating_mul(context as u64)
    }

    /// Does one step of each of several different runners of these weights, as [`Runner::step`]
    /// does it: `steps[i]` is that of `runners[i]`, which `interrupts[i]` stops, and its token goes
    /// to `tokens[i]`. At most [`MAX_BATCH`]. The bits of what a runner answers do not depend on
    /// the others.
    ///
    /// An error is one for all: every runner is as it was before, but may have lost its logits, and
    /// no token was written. One that concerns a runner names its index, see [`at_index`].
    ///
    /// Where `masks[i]` is there, it masks the choice of `runners[i]`, as in
    /// [`Runner::step_masked`]; `masks` may be shorter than the others.
    ///
    /// Unless a device has a better way, the steps are done one after another.
    fn step_batch_masked(
        &self,
        runners: &mut [&mut dyn Runner],
        steps: &[Step],
        masks: &mut [Option<&mut MaskSource<'_>>],
        interrupts: &[&AtomicBool],
        tokens: &mut [u32],
    ) -> Result<()> {
        batch::one_by_one(runners, steps, masks, interrupts, tokens)
    }

    /// The same without masks.
    fn step_batch(
        &self,
        runners: &mut [&mut dyn Runner],
        steps: &[Step],
        interrupts: &[&AtomicBool],
        tokens: &mut [u32],
    ) -> Result<()> {
        self.step_batch_masked(runners, steps, &mut [], interrupts, tokens)
    }
}

/// Fills the mask of a choice, of `n_vocab / 32` words, rounded up: bit `id % 32` of word `id / 32`
/// says that token `id` may be chosen. Bits beyond the vocabulary do not matter, and the words hold
/// anything before. An error ends the step.
pub type MaskSource<'a> = dyn FnMut(&mut [u32]) -> Result<()> + 'a;

/// Calls a source and checks that its mask allows one of `n_vocab` tokens.
///
/// Errors: those of the source; `InvalidArgument` if nothing is allowed.
pub fn fill_mask(source: &mut MaskSource, n_vocab: usize, words: &mut [u32]) -> Result<()> {
    source(words)?;
    let (whole, rest) = (n_vocab / 32, n_vocab % 32);
    if words[..whole].iter().any(|w| *w != 0) || rest > 0 && words[whole] << (32 - rest) != 0 {
        return Ok(());
    }
    fail!(InvalidArgument, "the mask allows no token");
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
/// A call that fails leaves the runner as it was before, or, after many positions of layers with a
/// sliding window, empty. Between a start and the last `Some` or the
/// error of `step_poll`, only `step_poll` may be called.
pub trait Runner: Send {
    /// The runner itself, for a backend that looks for its own.
    fn as_any(&mut self) -> Option<&mut dyn Any> {
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

    /// Forgets all positions from `len` on, and the logits. Returns how many positions are left:
    /// `len`, or none where layers with a sliding window have forgotten what position `len` would
    /// see. One step back is always free.
    fn truncate(&mut self, len: usize) -> usize;

    /// Whether logits of the last position are at hand.
    fn has_logits(&self) -> bool;

    /// Writes the logits of the last position, `n_vocab` of them.
    fn logits(&mut self, out: &mut [f32]) -> Result<()>;

    /// What is said about single tokens, from the next step on. Not called while steps are under
    /// way. Errors: `OutOfMemory`, with the rules as before.
    fn set_rules(&mut self, rules: Option<Arc<TokenRules>>) -> Result<()>;

    /// Appends `step.token`, if there is one, chooses the next token and returns it. The same as
    /// `step_start` and waiting for it.
    fn step(&mut self, step: &Step, interrupt: &AtomicBool) -> Result<u32> {
        self.step_masked(step, None, interrupt)
    }

    /// The same; the choice is among the tokens of a mask. It is asked for while the device evaluates
    /// the token, as far as the device can do both at once.
    fn step_masked(
        &mut self,
        step: &Step,
        mask: Option<&mut MaskSource<'_>>,
        interrupt: &AtomicBool,
    ) -> Result<u32>;

    /// Starts the same step and returns at once.
    fn step_start(&mut self, step: &Step, interrupt: &Arc<AtomicBool>) -> Result<()>;

    /// Starts the same masked step and returns when it has the mask.
    fn step_start_masked(
        &mut self,
        step: &Step,
        mask: &mut MaskSource<'_>,
        interrupt: &Arc<AtomicBool>,
    ) -> Result<()>;

    /// The log-probabilities of the choice that `step` or `step_poll` returned last, if its settings
    /// asked for them.
    fn logprobs(&self) -> Option<&Logprobs>;

    /// How many steps [`Runner::steps_start`] takes at a time, at least 1. More are given to it
    /// when these were collected.
    fn queue_limit(&self) -> usize {
        1
    }

    /// Starts `count` steps, 1 to `queue_limit`, and returns at once. The first is `step`; each
    /// later one appends the token that the one before it chose, and draws for the next position.
    /// They fit into the context (checked by the caller). `step_poll` returns their tokens one by
    /// one, whenever one is there. An error of a step ends those after it as well, and leaves the
    /// runner as it was before that step; so does `interrupt`, after the tokens that were chosen
    /// already.
    fn steps_start(
        &mut self,
        step: &Step,
        count: usize,
        interrupt: &Arc<AtomicBool>,
    ) -> Result<()> {
        if count != 1 {
            fail!(Internal, "{count} steps started where one is the limit");
        }
        self.step_start(step, interrupt)
    }

    /// The next started step's token, or `None` while it runs. Never blocks unless `wait`.
    fn step_poll(&mut self, wait: bool) -> Result<Option<u32>>;

    /// A runner with the same context, cache and logits, which goes its own way from here. Called
    /// while no step is started.
    fn fork(&mut self) -> Result<Box<dyn Runner>> {
        fail!(Unsupported, "this device cannot fork a session")
    }

    /// Does `step`, which has a token, and adds up the time that each kind of work took in it. The
    /// chosen token is not wanted; a choice that fails is no error. Slower than `step`, and with
    /// the same result.
    fn profile(&mut self, step: &Step, interrupt: &AtomicBool) -> Result<Profile> {
        let _ = (step, interrupt);
        fail!(Unsupported, "this device cannot profile a session")
    }
}
