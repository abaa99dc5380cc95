//! Rows of work: decode steps of several sessions in one pass over the weights, others one by one.

use super::adapters::Sets;
use super::chunk::{Chunk, ChunkSpace, Places, chunk_bytes};
use super::kv::KvCache;
use super::pages::Pages;
use super::pool::{PoolTurn, Work};
use super::runner::{Chosen, Core, CpuRunner, Done};
use super::weights::{CpuWeights, Sizes};
use crate::backend::row::{Parts, RowWork};
use crate::backend::{MAX_BATCH, RowError, RowResult, Want, When};
use crate::engine::sampling::Sampling;
use crate::error::{Error, Result, Status};
use crate::model::AdapterSet;
use arrayvec::ArrayVec;
use std::cell::UnsafeCell;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Memory of a batch, made by the first one. It becomes resident as far as batches have sessions.
pub(super) struct BatchSpace {
    pub chunk: ChunkSpace,
    /// `n_vocab` logits of each session, or of each token that is verified.
    pub logits: Pages,
}

impl BatchSpace {
    pub fn new(weights: &CpuWeights) -> Result<BatchSpace> {
        let logits = MAX_BATCH.saturating_mul(weights.logits_len());
        Ok(BatchSpace {
            chunk: ChunkSpace::new(weights, MAX_BATCH)?,
            logits: Pages::floats(logits, "logits of a batch")?,
        })
    }
}

/// Bytes of a [`BatchSpace`].
pub(super) fn batch_bytes(s: &Sizes, threads: usize, n_vocab: usize) -> usize {
    chunk_bytes(s, threads, MAX_BATCH) + MAX_BATCH * n_vocab * size_of::<f32>()
}

/// A session of a batch when its token is chosen.
struct Choice<'a> {
    core: &'a mut Core,
    step: &'a Step<'a>,
    /// Where its new logits are, if it has evaluated a token.
    row: Option<usize>,
    chosen: Option<Result<Chosen>>,
}

impl Choice<'_> {
    fn choose(&mut self, logits: &[f32]) {
        let core = &mut *self.core;
        if let Some(row) = self.row {
            let n_vocab = core.logits.len();
            core.logits
                .copy_from_slice(&logits[row * n_vocab..(row + 1) * n_vocab]);
        }
        if let Some(sampling) = &self.step.sampling {
            self.chosen = Some(core.choose(sampling, self.step.token, self.step.masked));
        }
    }
}

/// Elements of which each is used by one thread of a phase.
struct Dealt<'a, T>(&'a [UnsafeCell<T>]);

// SAFETY: only `get` gives access, and `get` demands that nobody else uses it.
unsafe impl<T: Send> Sync for Dealt<'_, T> {}

impl<T> Dealt<'_, T> {
    /// An element.
    ///
    /// # Safety
    /// Nobody else uses this one as long as the reference lives.
    #[allow(clippy::mut_from_ref)]
    unsafe fn get(&self, index: usize) -> &mut T {
        // SAFETY: by contract, nobody else uses this one while the reference lives.
        unsafe { &mut *self.0[index].get() }
    }
}

/// A step of a batch: one token to append at most, and one to choose, unless none is wanted.
struct Step<'a> {
    token: Option<u32>,
    sampling: Option<Sampling>,
    masked: bool,
    /// The residual stream of the token, for weights that do not begin their network.
    input: Option<&'a [f32]>,
}

/// Whether a row is work for a batch.
fn is_step(work: &RowWork) -> bool {
    match work.want {
        Want::Evaluated => work.tokens.len() == 1,
        want => want.is_one_choice(),
    }
}

/// Does the work of rows. After an error, some of them may be under way.
pub(super) fn submit(
    weights: &CpuWeights,
    (runners, works): &mut Parts<CpuRunner>,
    when: When,
) -> RowResult<()> {
    let steps = works.iter().filter(|w| is_step(w)).count();
    let mut members = ArrayVec::<usize, MAX_BATCH>::new();
    for (i, (runner, work)) in runners.iter_mut().zip(works.iter_mut()).enumerate() {
        // A pass over the weights for one token has its own, shorter way.
        if when == When::Now && steps > 1 && is_step(work) {
            members.push(i);
        } else {
            runner.submit(work, when).map_err(|e| RowError::of(i, e))?;
        }
    }
    if members.is_empty() {
        return Ok(());
    }
    let done = step_together(weights, runners, works, &members)?;
    for (&i, done) in members.iter().zip(done) {
        runners[i].keep(Ok(done));
    }
    Ok(())
}

/// Does the steps of the rows `members` in one pass over the weights.
fn step_together(
    weights: &CpuWeights,
    runners: &mut [&mut CpuRunner],
    works: &mut [RowWork],
    members: &[usize],
) -> RowResult<ArrayVec<Done, MAX_BATCH>> {
    let mut cores = ArrayVec::<MutexGuard<Core>, MAX_BATCH>::new();
    let mut steps = ArrayVec::<Step, MAX_BATCH>::new();
    let mut interrupts = ArrayVec::<&AtomicBool, MAX_BATCH>::new();
    let mut outputs = ArrayVec::<Option<&mut [f32]>, MAX_BATCH>::new();
    for &i in members {
        let work = &mut works[i];
        let mut prepare = || {
            let mut core = runners[i].idle_core()?;
            let sampling = match work.want {
                Want::Choices { sampling, .. } => Some(sampling),
                _ => None,
            };
            let mut residual = std::mem::take(&mut work.residual);
            let token = match work.tokens {
                [] => None,
                [first @ .., last] => {
                    if !first.is_empty() {
                        let first_of = residual.split(first.len() * weights.hidden);
                        core.extend(first, first_of, true, work.interrupt)?;
                    }
                    Some(*last)
                }
            };
            core.prepare_token(token)?;
            let masked = core.prepare_mask(work.mask.take())?;
            Ok((core, token, sampling, masked, residual))
        };
        let (core, token, sampling, masked, residual) =
            prepare().map_err(|e| RowError::of(i, e))?;
        cores.push(core);
        steps.push(Step {
            token,
            sampling,
            masked,
            input: residual.input,
        });
        outputs.push(residual.output);
        interrupts.push(work.interrupt);
    }
    let chosen = choose_each(weights, &mut cores, &steps, &mut outputs, &interrupts);
    if chosen.is_err() {
        cores.iter_mut().for_each(|core| core.recover());
    }
    chosen.map_err(|e| RowError {
        row: e.row.map(|member| members[member]),
        error: e.error,
    })
}

/// The choices of all, none of which has failed.
fn choose_each(
    weights: &CpuWeights,
    cores: &mut [MutexGuard<Core>],
    steps: &[Step],
    outputs: &mut [Option<&mut [f32]>],
    interrupts: &[&AtomicBool],
) -> RowResult<ArrayVec<Done, MAX_BATCH>> {
    let turn = weights
        .pool
        .turn_unless(|| interrupted(interrupts).is_some())
        .map_err(|e| RowError::of(interrupted(interrupts).unwrap_or(0), e))?;
    let mut space = weights.batch.lock().unwrap_or_else(|e| e.into_inner());
    let space = match &mut *space {
        Some(space) => space,
        none => none.insert(BatchSpace::new(weights)?),
    };
    evaluate(weights, &turn, space, cores, (steps, outputs), interrupts)?;
    choose_all(&turn, space, cores, steps)
}

/// The first session that is to stop.
fn interrupted(interrupts: &[&AtomicBool]) -> Option<usize> {
    interrupts.iter().position(|i| i.load(Relaxed))
}

/// Evaluates the tokens of the steps that have one; their logits are rows of the batch's.
fn evaluate(
    weights: &CpuWeights,
    turn: &PoolTurn,
    space: &mut BatchSpace,
    cores: &[MutexGuard<Core>],
    (steps, outputs): (&[Step], &mut [Option<&mut [f32]>]),
    interrupts: &[&AtomicBool],
) -> RowResult<()> {
    let mut tokens = ArrayVec::<u32, MAX_BATCH>::new();
    let mut places = ArrayVec::<(&KvCache, usize), MAX_BATCH>::new();
    let mut sets = ArrayVec::<Option<&AdapterSet>, MAX_BATCH>::new();
    for (core, step) in cores.iter().zip(steps) {
        if let Some(token) = step.token {
            tokens.push(token);
            places.push((&core.kv, core.len));
            sets.push(core.adapters.as_deref());
        }
    }
    if tokens.is_empty() {
        return Ok(());
    }
    let place = Places::Each(&places);
    let any = sets.iter().any(Option::is_some);
    let sets = any.then_some(Sets::Each(&sets));
    let chunk = Chunk::new(weights, &mut space.chunk, &tokens, place, sets)?;
    chunk.embed(turn)?;
    let inputs = steps.iter().filter(|step| step.token.is_some());
    for (row, step) in inputs.enumerate() {
        if let Some(input) = step.input {
            chunk.enter(row, input);
        }
    }
    for index in 0..weights.layers.len() {
        if let Some(i) = interrupted(interrupts) {
            let e = Error::new(Status::Interrupted, format!("interrupted at layer {index}"));
            return Err(RowError::of(i, e));
        }
        chunk.run_layer(turn, index)?;
    }
    let with_token = steps
        .iter()
        .zip(outputs)
        .filter(|(step, _)| step.token.is_some());
    for (row, (_, output)) in with_token.enumerate() {
        if let Some(output) = output {
            chunk.leave(row, output);
        }
    }
    match weights.ends.1 {
        true => Ok(chunk.all_logits(turn, space.logits.span())?),
        false => Ok(()),
    }
}

/// Gives the sessions their logits and chooses their tokens. After an error, those that have
/// evaluated a token have forgotten it, and their logits.
fn choose_all(
    turn: &PoolTurn,
    space: &mut BatchSpace,
    cores: &mut [MutexGuard<Core>],
    steps: &[Step],
) -> RowResult<ArrayVec<Done, MAX_BATCH>> {
    let n_vocab = cores[0].logits.len();
    let logits = space.logits.span();
    let mut rows = 0..;
    let mut choices = ArrayVec::<UnsafeCell<Choice>, MAX_BATCH>::new();
    for (core, step) in cores.iter_mut().zip(steps) {
        let row = step.token.and_then(|_| rows.next());
        if row.is_some() {
            core.has_logits = false;
        }
        choices.push(UnsafeCell::new(Choice {
            core,
            step,
            row,
            chosen: None,
        }));
    }
    let dealt = Dealt(&choices);
    // SAFETY: the batch's memory, which nobody writes until this returns.
    let logits = unsafe { std::slice::from_raw_parts(logits.base(), MAX_BATCH * n_vocab) };
    // To sort a logit takes some nanoseconds.
    let work = Work::even(dealt.0.len(), (4 * n_vocab as u64).max(1));
    turn.ranges(work, |_, range| {
        for i in range {
            // SAFETY: each choice is one thread's.
            unsafe { dealt.get(i) }.choose(logits);
        }
    })?;
    let mut all = ArrayVec::new();
    for (i, choice) in choices.iter_mut().enumerate() {
        let choice = choice.get_mut();
        match (choice.chosen.take(), choice.step.sampling) {
            (Some(chosen), _) => {
                let chosen = chosen.map_err(|e| RowError::of(i, e))?;
                all.push(Done::Token(chosen));
            }
            (None, None) => all.push(Done::Evaluated),
            (None, Some(_)) => {
                let e = Error::new(Status::Internal, "it has not chosen");
                return Err(RowError::of(i, e));
            }
        }
    }
    for choice in choices {
        let Choice {
            core, row, step, ..
        } = choice.into_inner();
        match (row, step.token, step.sampling) {
            (None, ..) => {}
            (Some(_), Some(token), None) => core.advance_by(token),
            (Some(_), ..) => core.advance(),
        }
    }
    Ok(all)
}
