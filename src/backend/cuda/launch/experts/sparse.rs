//! The weights of experts as SparseMixer has them (`kernels/sparse.cu`).

use super::{Choice, ExpertsPlan};
use crate::backend::cuda::driver::Stream;
use crate::backend::cuda::launch::args;
use crate::backend::cuda::launch::kernel_id::KernelId;
use crate::backend::cuda::launch::kernels::Kernels;
use crate::error::Result;

impl Kernels {
    /// Makes the scores of `rows` rows such that two experts of each are chosen with their weights, where these are weighed so.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn sparse_mixer(
        &self,
        stream: &Stream,
        e: &ExpertsPlan,
        choice: &Choice,
        rows: u32,
    ) -> Result<()> {
        let Some(jitter) = e.jitter else {
            return Ok(());
        };
        let args = args::SparseMixer {
            scores: choice.scores,
            score_stride: e.router.rows,
            n_experts: e.n_experts,
            nearness: 2.0 * jitter,
            padding: 0,
        };
        // SAFETY: by contract, `choice` has scores of so many rows, which are valid addresses.
        unsafe { self.launch(stream, KernelId::SparseMixer, (rows, 1, 1), 32, 0, &args) }
    }
}
