//! Launches of the kernels of several residual streams (`kernels/streams.cu`).

use super::args;
use super::kernel_id::KernelId;
use super::kernels::Kernels;
use crate::backend::cuda::driver::Stream;
use crate::error::Result;

impl Kernels {
    /// Enqueues a kernel that takes the streams of `rows` tokens.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub(in crate::backend::cuda) unsafe fn streams(
        &self,
        stream: &Stream,
        id: KernelId,
        args: &args::Streams,
        rows: u32,
    ) -> Result<()> {
        let threads = args.len.next_multiple_of(32).min(1024);
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, id, (rows, 1, 1), threads, 0, args) }
    }
}
