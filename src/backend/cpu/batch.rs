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
use crate::error::{Error, Result, Status, fail};
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
        let logits = MAX_BATCH.saturating_mul(weights.n_vocab);
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
    step: &'a Step,
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
        self.chosen = Some(core.choose(&self.step.sampling, self.step.token, self.step.masked));
    }
}

/// Elements of which each is used by one thread of a phase.
struct Dealt<'a, T>(&'a [UnsafeCell<T>]);

// SAFETY: only `get` gives access, and its caller vouches for exclusion.
unsafe impl<T: Send> Sync for Dealt<'_, T> {}

impl<T> Dealt<'_, T> {
    /// An element.
    ///
    /// # Safety
    /// Nobody else uses this one as long as the reference lives.
    #[allow(clippy::mut_from_ref)]
    unsafe fn get(&self, index: usize) -> &mut T {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.0[index].get() }
    }
}

/// A step of a batch: one token to append at most, and one to choose.
struct Step {
    token: Option<u32>,
    sampling: Sampling,
    masked: bool,
}

/// Does the work of rows. After an error, some of them may be under way.
pub(super) fn submit(
    weights: &CpuWeights,
    (mut runners, mut works): Parts<CpuRunner>,
    when: When,
) -> RowResult<()> {
    let choices = works.iter().filter(|w| w.want.is_one_choice()).count();
    let mut members = ArrayVec::<usize, MAX_BATCH>::new();
    for (i, (runner, work)) in runners.iter_mut().zip(&mut works).enumerate() {
        // A pass over the weights for one token has its own, shorter way.
        if when == When::Now && choices > 1 && work.want.is_one_choice() {
            members.push(i);
        } else {
            runner.submit(work, when).map_err(|e| RowError::of(i, e))?;
        }
    }
    if members.is_empty() {
        return Ok(());
    }
    let chosen = step_together(weights, &mut runners, &mut works, &members)?;
    for (&i, chosen) in members.iter().zip(chosen) {
        runners[i].keep(Ok(Done::Token(chosen)));
    }
    Ok(())
}

/// Does the steps of the rows `members` in one pass over the weights.
fn step_together(
    weights: &CpuWeights,
    runners: &mut [&mut CpuRunner],
    works: &mut [RowWork],
    members: &[usize],
) -> RowResult<ArrayVec<Chosen, MAX_BATCH>> {
    let mut cores = ArrayVec::<MutexGuard<Core>, MAX_BATCH>::new();
    let mut steps = ArrayVec::<Step, MAX_BATCH>::new();
    let mut interrupts = ArrayVec::<&AtomicBool, MAX_BATCH>::new();
    for &i in members {
        let work = &mut works[i];
        let mut prepare = || {
            let mut core = runners[i].idle_core()?;
            let Want::Choices { sampling, .. } = work.want else {
                fail!(Internal, "a step that chooses nothing");
            };
            let token = match work.tokens {
                [] => None,
                [first @ .., last] => {
                    if !first.is_empty() {
                        core.extend(first, work.interrupt)?;
                    }
                    Some(*last)
                }
            };
            core.prepare_token(token)?;
            let masked = core.prepare_mask(work.mask.take())?;
            Ok((core, token, sampling, masked))
        };
        let (core, token, sampling, masked) = prepare().map_err(|e| RowError::of(i, e))?;
        cores.push(core);
        steps.push(Step {
            token,
            sampling,
            masked,
        });
        interrupts.push(work.interrupt);
    }
    let chosen = choose_each(weights, &mut cores, &steps, &interrupts);
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
    interrupts: &[&AtomicBool],
) -> RowResult<ArrayVec<Chosen, MAX_BATCH>> {
    let turn = weights
        .pool
        .turn_unless(|| interrupted(interrupts).is_some())
        .map_err(|e| RowError::of(interrupted(interrupts).unwrap_or(0), e))?;
    let mut space = weights.batch.lock().unwrap_or_else(|e| e.into_inner());
    let space = match &mut *space {
        Some(space) => space,
        none => none.insert(BatchSpace::new(weights)?),
    };
    evaluate(weights, &turn, space, cores, steps, interrupts)?;
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
    steps: &[Step],
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
    for index in 0..weights.layers.len() {
        if let Some(i) = interrupted(interrupts) {
            let e = Error::new(Status::Interrupted, format!("interrupted at layer {index}"));
            return Err(RowError::of(i, e));
        }
        chunk.run_layer(turn, index)?;
    }
    Ok(chunk.all_logits(turn, space.logits.span())?)
}

/// Gives the sessions their logits and chooses their tokens. After an error, those that have
/// evaluated a token have forgotten it, and their logits.
fn choose_all(
    turn: &PoolTurn,
    space: &mut BatchSpace,
    cores: &mut [MutexGuard<Core>],
    steps: &[Step],
) -> RowResult<ArrayVec<Chosen, MAX_BATCH>> {
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
    let work = Work::even(dealt.0.len(), 4 * n_vocab as u64);
    turn.ranges(work, |_, range| {
        for i in range {
            // SAFETY: each choice is one thread's.
            unsafe { dealt.get(i) }.choose(logits);
        }
    })?;
    let mut all = ArrayVec::new();
    for (i, choice) in choices.iter_mut().enumerate() {
        match choice.get_mut().chosen.take() {
            Some(chosen) => all.push(chosen.map_err(|e| RowError::of(i, e))?),
            None => {
                let e = Error::new(Status::Internal, "it has not chosen");
                return Err(RowError::of(i, e));
            }
        }
    }
    for choice in choices {
        let Choice { core, row, .. } = choice.into_inner();
        if row.is_some() {
            core.advance();
        }
    }
    Ok(all)
}
