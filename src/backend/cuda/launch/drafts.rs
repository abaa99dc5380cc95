//! Launches of the kernels of rows of drafts (`kernels/drafts.cu`).

use super::args;
use super::kernel_id::KernelId;
use super::kernels::Kernels;
use crate::backend::cuda::driver::Stream;
use crate::error::Result;

impl Kernels {
    /// Readies the rows of up to `count` sessions with drafts, or hands over what they have chosen.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub(in crate::backend::cuda) unsafe fn drafts(
        &self,
        stream: &Stream,
        table: u64,
        count: u32,
        accept: bool,
    ) -> Result<()> {
        let args = args::DraftRows { drafts: table };
        let (id, threads) = match accept {
            false => (KernelId::DraftRows, 256),
            true => (KernelId::AcceptDrafts, 32),
        };
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, id, (count, 1, 1), threads, 0, &args) }
    }
}
