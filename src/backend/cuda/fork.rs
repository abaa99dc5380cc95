//! A second session that goes on from where a first one is: everything is copied on the device.

use super::runner::CudaRunner;
use crate::backend::RunnerOptions;
use crate::error::{Result, fail};

impl CudaRunner {
    /// A runner with the same cache and logits.
    pub(super) fn forked(&mut self) -> Result<CudaRunner> {
        if self.in_flight > 0 {
            fail!(DecodePending, "a step is under way");
        }
        let context = self.weights.context().clone();
        let _current = context.enter()?;
        let options = RunnerOptions {
            context: self.context,
            kv_type: self.kv.kv_type,
            stream_priority: self.stream_priority,
        };
        let mut other = CudaRunner::new(self.weights.clone(), &options)?;
        // The ring may hold positions from behind the last one that a rewind has left.
        let [all, _] = self.kv.bytes(self.len)?;
        let [_, ring] = self.kv.bytes(self.written.min(self.context))?;
        other.back([all, ring])?;
        let logits = self.weights.plan().n_vocab as usize * 4;
        // SAFETY: both ranges are backed that far; the copies are awaited before anything can free or
        // change either side.
        let copied = unsafe {
            self.caches
                .iter()
                .zip(&other.caches)
                .zip([all, ring])
                .try_for_each(|((from, to), bytes)| {
                    self.stream.copy(to.address(), from.address(), bytes)
                })
                .and_then(|()| {
                    let (to, from) = (other.buffers.logits(0), self.buffers.logits(0));
                    self.stream.copy(to, from, logits)
                })
                .and_then(|()| {
                    other
                        .sampling
                        .follow(&self.stream, &self.sampling, self.len)
                })
        };
        let idle = self.stream.synchronize();
        copied.and(idle)?;
        other.len = self.len;
        other.written = self.written;
        other.has_logits = self.has_logits;
        Ok(other)
    }
}
