//! Steps of several sessions in one pass over the weights.
//!
//! The graph of a number of sessions is captured once; it reads the sessions' addresses from a table
//! that is written before each launch. Sums run in the same order as for one session (matvec.cuh), so
//! nobody's tokens depend on who else is there.

use super::runner::core::{Core, Kind};
use super::runner::{Chosen, MAX_ROWS, Prepared, Rows, Steps};
use super::weights::CudaWeights;
use crate::backend::cuda::driver::{Buffer, Graph, Stream};
use crate::backend::cuda::launch::adapters::{Adapters, Reach};
use crate::backend::cuda::launch::attention::RowsOf;
use crate::backend::cuda::launch::sampling::Stages;
use crate::backend::cuda::launch::span::Span;
use crate::backend::cuda::network::crossing;
use crate::backend::cuda::network::evaluation::Evaluation;
use crate::backend::cuda::network::hidden::Keeps;
use crate::backend::cuda::network::kv_plan::KvPlan;
use crate::backend::cuda::network::step::{Ending, StepBuffers};
use crate::backend::{KvType, MAX_BATCH, MaskSource, Residual, RowError, RowResult, TokenInput};
use crate::engine::sampling::Sampling;
use crate::error::{Error, Result, Status, fail};
use arrayvec::ArrayVec;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Rows that there is memory for first. Most batches are no larger, and logits and attention take megabytes of each row.
const FEW_ROWS: usize = 32;

/// What batches with one type of KV cache need.
pub struct Batch {
    /// By number of rows and kind of step, captured when they are first needed.
    graphs: Vec<(usize, Kind, Graph)>,
    buffers: StepBuffers,
    /// Of the rows' sessions, and behind that of what those have for their drafts that have some.
    table: Buffer,
    stream: Arc<Stream>,
    kv: KvPlan,
    /// Rows that there is memory for.
    most: usize,
}

/// One of the sessions of a step.
pub struct Member<'c, 'm> {
    /// What it has on the device.
    pub core: &'c mut Core,
    /// The token that it appends.
    pub token: u32,
    /// Guesses of what follows, each of which is a row as well.
    pub drafts: &'m [u32],
    /// How it chooses. All members of a step choose, or none does.
    pub sampling: Option<&'c Sampling>,
    /// Masks the choice.
    pub mask: Option<&'m mut MaskSource<'m>>,
    /// Ends the step.
    pub interrupt: &'m AtomicBool,
    /// Of a part of a network.
    pub residual: Residual<'m>,
}

/// A member that is ready for a step.
enum Ready {
    Step(Prepared),
    Drafts(Box<Rows>),
}

impl Ready {
    /// How it chooses.
    fn stages(&self) -> Stages {
        match self {
            Ready::Step(prepared) => prepared.stages,
            Ready::Drafts(rows) => rows.stages,
        }
    }
}

/// A member whose step was launched.
enum Started {
    Step(Steps),
    Drafts(Box<Rows>),
}

impl Member<'_, '_> {
    /// Rows that it has in a step.
    pub fn rows(&self) -> usize {
        1 + self.drafts.len()
    }

    /// Brings the session to where the step begins, on a stream.
    fn prepare(&mut self, stream: &Arc<Stream>) -> Result<Ready> {
        let sampling = self.sampling.unwrap_or(&Sampling::GREEDY);
        let (masked, interrupt) = (self.mask.is_some(), self.interrupt);
        if self.drafts.is_empty() {
            let token = Some(self.token);
            let prepared = self
                .core
                .prepare(stream, token, 1, sampling, masked, interrupt)?;
            return Ok(Ready::Step(prepared));
        }
        self.core.reserve_step(self.rows())?;
        let mut tokens = ArrayVec::<u32, MAX_ROWS>::new();
        tokens.push(self.token);
        if tokens.try_extend_from_slice(self.drafts).is_err() {
            fail!(Internal, "{} drafts in a batch", self.drafts.len());
        }
        let rows = self
            .core
            .prepare_rows(stream, &tokens, sampling, masked, interrupt)?;
        Ok(Ready::Drafts(Box::new(rows)))
    }
}

impl Batch {
    /// Memory for steps of so many rows, and of some more.
    pub fn new(weights: &CudaWeights, kv_type: KvType, rows: usize) -> Result<Batch> {
        let context = weights.context();
        let most = if rows <= FEW_ROWS {
            FEW_ROWS
        } else {
            MAX_BATCH
        };
        let _current = context.enter()?;
        Ok(Batch {
            graphs: Vec::new(),
            buffers: StepBuffers::new(context, weights.network(), most as u32)?,
            table: Buffer::new(context, 2 * MAX_BATCH * 8, "batch")?,
            stream: Arc::new(Stream::new(context, 0)?),
            kv: weights.plan().kv(kv_type)?,
            most,
        })
    }

    /// Whether it is for caches of this type.
    pub fn is_for(&self, kv_type: KvType) -> bool {
        self.kv.kv_type == kv_type
    }

    /// Whether there is memory for a step of so many rows.
    pub fn has_room(&self, rows: usize) -> bool {
        rows <= self.most
    }

    /// A step of rows of sessions with caches of this type, as many as there is room for, and the tokens that they
    /// choose, which those with drafts keep themselves; none where they do not. An error names the index of a member; others may have
    /// moved.
    pub fn step(
        &mut self,
        weights: &CudaWeights,
        members: &mut [Member<'_, '_>],
    ) -> RowResult<ArrayVec<Option<Chosen>, MAX_BATCH>> {
        let n = members.iter().map(Member::rows).sum();
        if n == 0 || !self.has_room(n) {
            let message = format!("{n} rows in a batch");
            return Err(Error::new(Status::Internal, message).into());
        }
        let _current = weights.context().enter()?;
        let rows = match members.iter().any(|m| !m.drafts.is_empty()) {
            true => RowsOf::Drafts,
            false => RowsOf::Sessions,
        };
        let all = members.iter().map(|m| m.core.keeps());
        let keeps = all.fold(Keeps::default(), Keeps::or);
        let reaches = members.iter().map(|m| m.core.reach());
        let adapted = reaches.max().unwrap_or_default();
        let kind = |ending| Kind {
            ending,
            adapted,
            keeps,
        };
        let evaluate = kind(Ending {
            rows,
            ..Ending::EVALUATE
        });
        let mut stages = Stages::default();
        let mut ready = ArrayVec::<Ready, MAX_BATCH>::new();
        for (i, member) in members.iter_mut().enumerate() {
            let prepared = member.prepare(&self.stream);
            let prepared = prepared.map_err(|e| RowError::of(i, e))?;
            stages = stages.or(prepared.stages());
            ready.push(prepared);
        }
        self.write_table(members, &ready)?;
        self.enter(members)?;
        if members.iter().all(|m| m.sampling.is_none()) {
            self.launch(weights, n, evaluate)?;
            members.iter_mut().for_each(|m| m.core.lose_track());
            self.leave(members)?;
            return Ok(ArrayVec::new());
        }
        let masked = members.iter().any(|m| m.mask.is_some());
        if masked {
            self.launch(weights, n, evaluate)?;
            // Whatever the sources do, the device has gone on.
            members.iter_mut().for_each(|m| m.core.lose_track());
            let taken = self.take_masks(members, &mut ready);
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
            rows,
        };
        self.launch(weights, n, Kind { ending, ..evaluate })?;
        self.collect(members, ready)
    }

    /// Tells the device whose rows a step has. The members are ready.
    fn write_table(&self, members: &[Member<'_, '_>], ready: &[Ready]) -> Result<()> {
        let mut table = [0u64; 2 * MAX_BATCH];
        let (rows, of_drafts) = table.split_at_mut(MAX_BATCH);
        let (mut rows, mut of_drafts) = (rows.iter_mut(), of_drafts.iter_mut());
        for (member, ready) in members.iter().zip(ready) {
            match ready {
                Ready::Step(_) => {
                    if let Some(row) = rows.next() {
                        *row = member.core.address();
                    }
                }
                Ready::Drafts(of) => {
                    for (address, row) in of.addresses().zip(rows.by_ref()) {
                        *row = address;
                    }
                    if let Some(place) = of_drafts.next() {
                        *place = of.drafts;
                    }
                }
            }
        }
        // SAFETY: read before the call returns; stream order keeps it from the batch before.
        unsafe {
            let to = self.table.address();
            self.stream
                .copy_in(to, table.as_ptr().cast(), size_of_val(&table))
        }
    }

    /// Where the residual stream of a member is.
    fn residual(&self, member: usize) -> Span {
        let rows = self.buffers.at().rows.residual;
        let before = member as u64 * u64::from(rows.stride) * 4;
        Span {
            address: rows.address + before,
            ..rows
        }
    }

    /// Puts the residual streams of a part's members where a step begins with them.
    fn enter(&self, members: &[Member<'_, '_>]) -> Result<()> {
        for (i, member) in members.iter().enumerate() {
            if let TokenInput::Stream(input) = member.residual.input {
                // SAFETY: the batch's memory, whose steps follow each other on its stream; rows of one token alone are in no
                // pinned memory (`Weights::host_floats`).
                unsafe { crossing::enter(&self.stream, input, input.len(), self.residual(i))? };
            }
        }
        Ok(())
    }

    /// Takes the residual streams of a part's members from where a step has left them, when it is done.
    fn leave(&self, members: &mut [Member<'_, '_>]) -> Result<()> {
        for (i, member) in members.iter_mut().enumerate() {
            if let Some(output) = member.residual.output.take() {
                // SAFETY: as in `enter`.
                unsafe { crossing::leave(&self.stream, self.residual(i), output.len(), output)? };
            }
        }
        self.stream.synchronize()?;
        members.iter_mut().try_for_each(|m| m.core.advanced())
    }

    fn take_masks(&self, members: &mut [Member<'_, '_>], ready: &mut [Ready]) -> RowResult<()> {
        for (i, (member, ready)) in members.iter_mut().zip(ready).enumerate() {
            if let Some(mask) = &mut member.mask {
                let taken = match ready {
                    Ready::Step(_) => member.core.take_mask(&self.stream, *mask),
                    Ready::Drafts(rows) => member.core.take_row_masks(&mut rows.flight, *mask),
                };
                taken.map_err(|e| RowError::of(i, e))?;
            }
        }
        Ok(())
    }

    /// Waits for the tokens of all.
    fn collect(
        &self,
        members: &mut [Member<'_, '_>],
        ready: ArrayVec<Ready, MAX_BATCH>,
    ) -> RowResult<ArrayVec<Option<Chosen>, MAX_BATCH>> {
        let mut started = ArrayVec::<_, MAX_BATCH>::new();
        for (member, ready) in members.iter_mut().zip(ready) {
            started.push(match ready {
                Ready::Step(prepared) => {
                    Started::Step(member.core.launched(prepared, &self.stream))
                }
                Ready::Drafts(rows) => Started::Drafts(rows),
            });
        }
        let mut chosen = ArrayVec::new();
        let mut result = Ok(());
        for (i, (member, started)) in members.iter_mut().zip(started).enumerate() {
            let token = match started {
                Started::Step(mut steps) => steps.poll(member.core, true),
                Started::Drafts(rows) => match member.core.collect(&rows.flight, true) {
                    Ok(_) => {
                        chosen.push(None);
                        continue;
                    }
                    Err(e) => Err(e),
                },
            };
            // They are in the batch's memory, which the next batch overwrites.
            member.core.has_logits = false;
            match token {
                Ok(Some(token)) => chosen.push(Some(token)),
                Ok(None) => {
                    let e = Error::new(Status::Internal, "a step without a result");
                    result = result.and(Err(RowError::of(i, e)));
                }
                Err(e) => result = result.and(Err(RowError::of(i, e))),
            }
        }
        if result.is_err() {
            // What the host could not evaluate is not a number.
            self.buffers.check_host()?;
        }
        result.map(|()| chosen)
    }

    /// Launches a step of the `n` rows in the table.
    fn launch(&mut self, weights: &CudaWeights, n: usize, kind: Kind) -> Result<()> {
        let same = |(m, k, _): &(usize, Kind, Graph)| (*m, *k) == (n, kind);
        let Kind {
            ending,
            adapted,
            keeps,
        } = kind;
        let eval = Evaluation {
            kernels: weights.kernels(),
            plan: weights.plan(),
            kv: &self.kv,
            stream: &self.stream,
            sessions: self.table.address(),
            adapters: match adapted {
                Reach::None => Adapters::None,
                reach => Adapters::Any(reach),
            },
            link: weights.link(),
            keeps,
            guests: weights.guests(),
        };
        let at = match self.graphs.iter().position(same) {
            Some(at) => at,
            None => {
                let of_drafts = self.table.address() + MAX_BATCH as u64 * 8;
                let around = |accept: bool| match ending.rows.share_caches() {
                    // SAFETY: as below.
                    true => unsafe {
                        let most = self.most as u32;
                        eval.kernels.drafts(&self.stream, of_drafts, most, accept)
                    },
                    false => Ok(()),
                };
                let graph = self.stream.capture(|| {
                    if ending.advance {
                        around(false)?;
                    }
                    // SAFETY: *weights*: they outlive the batch, which is theirs. *sessions*: those of
                    // the table are borrowed until their results are there, and prepared. *workspace*:
                    // the graph lives beside it, and steps of a batch follow each other on its stream.
                    unsafe { self.buffers.enqueue(&eval, n as u32, ending)? };
                    if ending.choose {
                        around(true)?;
                    }
                    Ok(())
                })?;
                self.graphs.push((n, kind, graph));
                self.graphs.len() - 1
            }
        };
        if ending.advance {
            eval.begin()?;
        }
        let graph = &self.graphs[at].2;
        // SAFETY: as above; the results are awaited by the caller.
        let launch = || unsafe { self.stream.launch_graph(graph) };
        weights.gate().step(&self.stream, launch)
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // The memory goes when the device is done with it.
        let _ = self.stream.synchronize();
    }
}
