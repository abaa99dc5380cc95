//! Launches of the kernels of heads of EAGLE-3 (`kernels/fusion.cu`).

use super::args;
use super::kernel_id::KernelId;
use super::kernels::Kernels;
use crate::backend::cuda::driver::Stream;
use crate::error::Result;

impl Kernels {
    /// # Safety
    /// As [`Kernels::launch`].
    pub(in crate::backend::cuda) unsafe fn keep_place(
        &self,
        stream: &Stream,
        args: &args::KeepPlace,
        rows: u32,
    ) -> Result<()> {
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, KernelId::KeepPlace, (rows, 1, 1), 256, 0, args) }
    }

    /// # Safety
    /// As [`Kernels::launch`].
    pub(in crate::backend::cuda) unsafe fn gather_states(
        &self,
        stream: &Stream,
        args: &args::GatherStates,
        rows: u32,
    ) -> Result<()> {
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, KernelId::GatherStates, (rows, 1, 1), 256, 0, args) }
    }

    /// # Safety
    /// As [`Kernels::launch`].
    pub(in crate::backend::cuda) unsafe fn join_head(
        &self,
        stream: &Stream,
        args: &args::Join,
        rows: u32,
    ) -> Result<()> {
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, KernelId::JoinHead, (rows, 1, 1), 256, 0, args) }
    }

    /// # Safety
    /// As [`Kernels::launch`].
    pub(in crate::backend::cuda) unsafe fn spread_logits(
        &self,
        stream: &Stream,
        args: &args::SpreadLogits,
        rows: u32,
    ) -> Result<()> {
        let grid = (args.n_vocab.div_ceil(1024).max(1), rows, 1);
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, KernelId::SpreadLogits, grid, 256, 0, args) }
    }
}
