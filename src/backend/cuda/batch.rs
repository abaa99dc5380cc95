//! Steps of several sessions in one pass over the weights.
//!
//! The graph of a number of sessions is captured once; it reads the sessions' addresses from a table
//! that is written before each launch. Sums run in the same order as for one session (matvec.cuh), so
//! nobody's tokens depend on who else is there.

use super::driver::{Buffer, Graph, Stream};
use super::evaluation::Evaluation;
use super::kv::KvPlan;
use super::runner::{CudaRunner, EVALUATE};
use super::sampling::Stages;
use super::step::{Ending, StepBuffers};
use super::weights::CudaWeights;
use crate::backend::{KvType, MAX_BATCH, MaskSource, Step, at_index};
use crate::error::{Error, Result, Status, fail};
use std::sync::atomic::AtomicBool;

/// What batches with one type of KV cache need.
pub struct Batch {
    /// By number of sessions and kind of step, captured when they are first needed.
    graphs: Vec<(usize, Ending, Graph)>,
    buffers: StepBuffers,
    table: Buffer,
    stream: Stream,
    kv: KvPlan,
}

impl Batch {
    /// Memory for the largest batch.
    pub fn new(weights: &CudaWeights, kv_type: KvType) -> Result<Batch> {
        let context = weights.context();
        let _current = context.enter()?;
        Ok(Batch {
            graphs: Vec::new(),
            buffers: StepBuffers::new(context, weights.plan(), MAX_BATCH as u32)?,
            table: Buffer::new(context, MAX_BATCH * 8, "batch")?,
            stream: Stream::new(context, 0)?,
            kv: weights.plan().kv(kv_type)?,
        })
    }

    /// Whether it serves caches of this type.
    pub fn serves(&self, kv_type: KvType) -> bool {
        self.kv.kv_type == kv_type
    }

    /// Steps the runners whose indices are `members`, each of which appends a token; their tokens go
    /// to `chosen`. After an error some may have moved.
    #[expect(
        clippy::too_many_arguments,
        reason = "those of a step, and who takes part"
    )]
    pub fn step(
        &mut self,
        weights: &CudaWeights,
        runners: &mut [&mut CudaRunner],
        members: &[usize],
        steps: &[Step],
        masks: &mut [Option<&mut MaskSource<'_>>],
        interrupts: &[&AtomicBool],
        chosen: &mut [u32],
    ) -> Result<()> {
        let n = members.len();
        if n == 0 || n > MAX_BATCH {
            fail!(Internal, "{n} sessions in a batch");
        }
        let _current = weights.context().enter()?;
        let mut stages = Stages::default();
        let mut masked = false;
        for &i in members {
            let mask = masks.get(i).is_some_and(Option::is_some);
            let needed = runners[i]
                .prepare(&self.stream, &steps[i], 1, mask, interrupts[i])
                .map_err(|e| at_index(i, e))?;
            stages = stages.or(needed);
            masked |= mask;
        }
        let addresses: Vec<u64> = members
            .iter()
            .map(|&i| runners[i].session_address())
            .collect();
        // SAFETY: read before the call returns; stream order keeps it from the batch before.
        unsafe {
            self.stream.copy_in(
                self.table.address(),
                addresses.as_ptr().cast(),
                size_of_val(&addresses[..]),
            )?
        };
        if masked {
            self.launch(weights, n, EVALUATE)?;
            // Whatever the sources do, the device has gone on.
            for &i in members {
                runners[i].abandon();
            }
            let taken = members.iter().try_for_each(|&i| match masks.get_mut(i) {
                Some(Some(mask)) => runners[i]
                    .take_mask(&self.stream, mask)
                    .map_err(|e| at_index(i, e)),
                _ => Ok(()),
            });
            if taken.is_err() {
                // The sessions' next work is on their own streams.
                self.stream.synchronize()?;
            }
            taken?;
        }
        let ending = Ending {
            advance: !masked,
            choose: true,
            stages,
        };
        self.launch(weights, n, ending)?;
        for &i in members {
            runners[i].launched(&steps[i]);
        }
        let mut result = Ok(());
        for &i in members {
            let token = runners[i].poll_on(&self.stream, true);
            // They are in the batch's memory, which the next batch overwrites.
            runners[i].lose_logits();
            match token {
                Ok(Some(token)) => chosen[i] = token,
                Ok(None) => result = Err(Error::new(Status::Internal, "a step without a result")),
                Err(e) => result = result.and(Err(at_index(i, e))),
            }
        }
        result
    }

    /// Launches a step of the `n` sessions in the table.
    fn launch(&mut self, weights: &CudaWeights, n: usize, ending: Ending) -> Result<()> {
        let same = |(m, kind, _): &(usize, Ending, Graph)| (*m, *kind) == (n, ending);
        let at = match self.graphs.iter().position(same) {
            Some(at) => at,
            None => {
                let eval = Evaluation {
                    kernels: weights.kernels(),
                    plan: weights.plan(),
                    kv: &self.kv,
                    stream: &self.stream,
                    sessions: self.table.address(),
                };
                let graph = self.stream.capture(|| {
                    // SAFETY: the graph lives beside the memory that it names; the sessions of the
                    // table are borrowed until their results are there.
                    unsafe { self.buffers.enqueue(&eval, n as u32, ending) }
                })?;
                self.graphs.push((n, ending, graph));
                self.graphs.len() - 1
            }
        };
        // SAFETY: as above; the results are awaited by the caller.
        unsafe { self.stream.launch_graph(&self.graphs[at].2) }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // The memory goes when the device is done with it.
        let _ = self.stream.synchronize();
    }
}
