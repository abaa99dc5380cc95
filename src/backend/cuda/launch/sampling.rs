//! Launches of the kernels that choose tokens, in their order.

use super::args;
use super::kernel_id::KernelId;
use super::kernels::Kernels;
use crate::backend::cuda::driver::Stream;
use crate::error::Result;

/// Entries of the ring of chosen tokens: steps that can be under way.
pub const RESULT_SLOTS: u32 = 64;
/// Groups of tokens whose best the kernels find first.
pub const GROUPS: u32 = args::BEST_GROUPS as u32;
/// Blocks of `best` per session: four groups each.
const BEST_BLOCKS: u32 = GROUPS / 4;
/// Blocks of `penalize` per session.
const PENALIZE_BLOCKS: u32 = 4;
/// Blocks that share a vocabulary where there are clusters (Hopper and later).
const CLUSTER: u32 = 8;

/// What a choice does besides taking the best token, for one session at least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages {
    /// Logits are adjusted.
    pub adjust: bool,
    /// The tokens of the context matter for that.
    pub penalize: bool,
    /// A token is drawn.
    pub draw: bool,
    /// Log-probabilities are reported.
    pub logprobs: bool,
}

impl Stages {
    /// What these settings need.
    pub fn of(s: &args::Settings) -> Stages {
        let penalize = s.penalty_window > 0 || s.dry_multiplier > 0.0;
        Stages {
            adjust: penalize || s.bias != 0 || s.masked != 0,
            penalize,
            draw: s.temperature != 0.0 && s.top_k != 1,
            logprobs: s.logprobs > 0,
        }
    }

    /// What either needs.
    pub fn or(self, other: Stages) -> Stages {
        Stages {
            adjust: self.adjust | other.adjust,
            penalize: self.penalize | other.penalize,
            draw: self.draw | other.draw,
            logprobs: self.logprobs | other.logprobs,
        }
    }
}

impl Kernels {
    /// Ends a step of `batch` sessions: chooses their tokens, if that is wanted.
    ///
    /// # Safety
    /// As [`Kernels::launch`].
    pub unsafe fn sample(
        &self,
        stream: &Stream,
        args: &args::Sample,
        stages: Stages,
        batch: u32,
    ) -> Result<()> {
        let args = &args::Sample {
            adjust: u32::from(stages.adjust),
            ..*args
        };
        let cluster = if self.has_clusters() { CLUSTER } else { 1 };
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe {
            if args.choose == 0 {
                return self.launch(stream, KernelId::Finish, (batch, 1, 1), GROUPS, 0, args);
            }
            if stages.logprobs {
                self.launch(
                    stream,
                    KernelId::Logprobs,
                    (cluster, batch, 1),
                    1024,
                    0,
                    args,
                )?;
            }
            if stages.penalize {
                let grid = (PENALIZE_BLOCKS, batch, 1);
                self.launch(stream, KernelId::Penalize, grid, 1024, 0, args)?;
            }
            self.launch(
                stream,
                KernelId::Best,
                (BEST_BLOCKS, batch, 1),
                256,
                0,
                args,
            )?;
            if stages.draw {
                self.launch(stream, KernelId::Draw, (cluster, batch, 1), 1024, 0, args)
            } else {
                self.launch(stream, KernelId::Finish, (batch, 1, 1), GROUPS, 0, args)
            }
        }
    }
}
