//! Launches of the kernels of heads beside attention's (`kernels/heads.cu`).

use super::args;
use super::kernel_id::KernelId;
use super::kernels::Kernels;
use crate::backend::cuda::driver::Stream;
use crate::error::Result;

/// Elements that a `finish_heads` block takes.
const FINISHED: u32 = 256;

impl Kernels {
    /// Makes `rows` rows of queries, keys and values what attention's kernels take.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn ready_heads(
        &self,
        stream: &Stream,
        args: &args::ReadyHeads,
        rows: u32,
    ) -> Result<()> {
        let heads = args.n_heads + 2 * args.n_kv_heads;
        let grid = (heads.div_ceil(args::READY_HEADS), rows, 1);
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe {
            self.launch(
                stream,
                KernelId::ReadyHeads,
                grid,
                32 * args::READY_HEADS,
                0,
                args,
            )
        }
    }

    /// Makes `rows` rows of heads' results what the output product reads.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn finish_heads(
        &self,
        stream: &Stream,
        args: &args::FinishHeads,
        rows: u32,
    ) -> Result<()> {
        let grid = ((args.n_heads * args.value_dim).div_ceil(FINISHED), rows, 1);
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, KernelId::FinishHeads, grid, FINISHED, 0, args) }
    }
}
