//! Launches of the kernels of heads that guess further tokens (`kernels/predictor.cu`).

use super::args;
use super::kernel_id::KernelId;
use super::kernels::Kernels;
use crate::backend::cuda::driver::Stream;
use crate::error::Result;

impl Kernels {
    /// # Safety
    /// As [`Kernels::launch`].
    pub(in crate::backend::cuda) unsafe fn keep_states(
        &self,
        stream: &Stream,
        args: &args::Keep,
        rows: u32,
    ) -> Result<()> {
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, KernelId::KeepStates, (rows, 1, 1), 256, 0, args) }
    }

    /// # Safety
    /// As [`Kernels::launch`].
    pub(in crate::backend::cuda) unsafe fn enter_head(
        &self,
        stream: &Stream,
        args: &args::Enter,
        rows: u32,
    ) -> Result<()> {
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, KernelId::EnterHead, (2, rows, 1), 256, 0, args) }
    }
}
