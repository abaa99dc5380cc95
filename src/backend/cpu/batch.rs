//! A decode step of several sessions in one pass over the weights.

use super::chunk::{Chunk, ChunkSpace, Places, chunk_bytes};
use super::kv::KvCache;
use super::pages::Pages;
use super::pool::{PoolTurn, Work};
use super::runner::{Chosen, Core, CpuRunner};
use super::weights::{CpuWeights, Sizes};
use crate::backend::{MAX_BATCH, MaskSource, Runner, Step, at_index};
use crate::error::{Error, Result, Status, fail};
use arrayvec::ArrayVec;
use std::cell::UnsafeCell;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Memory of a batch, made by the first one. It becomes resident as far as batches have sessions.
pub(super) struct BatchSpace {
    chunk: ChunkSpace,
    /// `n_vocab` logits of each session.
    logits: Pages,
}

impl BatchSpace {
    fn new(weights: &CpuWeights) -> Result<BatchSpace> {
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
    masked: bool,
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
        self.chosen = Some(core.choose(self.step, self.step.token, self.masked));
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

/// See [`crate::backend::Weights::step_batch_masked`].
pub(super) fn step_batch(
    weights: &CpuWeights,
    runners: &mut [&mut dyn Runner],
    steps: &[Step],
    masks: &mut [Option<&mut MaskSource<'_>>],
    interrupts: &[&AtomicBool],
    tokens: &mut [u32],
) -> Result<()> {
    let n = runners.len();
    assert!(n <= MAX_BATCH && steps.len() == n && interrupts.len() == n && tokens.len() == n);
    let mut mine = ArrayVec::<&mut CpuRunner, MAX_BATCH>::new();
    for (i, runner) in runners.iter_mut().enumerate() {
        let runner = runner.as_any().and_then(|r| r.downcast_mut::<CpuRunner>());
        let Some(runner) = runner else {
            fail!(Internal, "session at index {i} is not on the CPU");
        };
        mine.push(runner);
    }
    let mut cores = ArrayVec::<MutexGuard<Core>, MAX_BATCH>::new();
    let mut masked = [false; MAX_BATCH];
    for (i, runner) in mine.iter().enumerate() {
        let mut core = runner.idle_core().map_err(|e| at_index(i, e))?;
        let mask = masks.get_mut(i).and_then(|m| m.as_deref_mut());
        masked[i] = core
            .check_step(&steps[i], weights)
            .and_then(|()| core.prepare_mask(mask))
            .map_err(|e| at_index(i, e))?;
        cores.push(core);
    }
    let chosen = choose_each(weights, &mut cores, steps, &masked, interrupts)?;
    drop(cores);
    for ((chosen, runner), token) in chosen.into_iter().zip(mine).zip(tokens) {
        *token = runner.returned(chosen);
    }
    Ok(())
}

/// The choices of all, none of which has failed.
fn choose_each(
    weights: &CpuWeights,
    cores: &mut [MutexGuard<Core>],
    steps: &[Step],
    masked: &[bool],
    interrupts: &[&AtomicBool],
) -> Result<ArrayVec<Chosen, MAX_BATCH>> {
    if let [core] = cores {
        // A pass over the weights for one token has its own, shorter way.
        let chosen = core.step_prepared(&steps[0], masked[0], interrupts[0]);
        return Ok([chosen.map_err(|e| at_index(0, e))?].into_iter().collect());
    }
    let turn = weights
        .pool
        .turn_unless(|| interrupted(interrupts).is_some())
        .map_err(|e| at_index(interrupted(interrupts).unwrap_or(0), e))?;
    let mut space = weights.batch.lock().unwrap_or_else(|e| e.into_inner());
    let space = match &mut *space {
        Some(space) => space,
        none => none.insert(BatchSpace::new(weights)?),
    };
    for (core, step) in cores.iter_mut().zip(steps) {
        let end = core.len + usize::from(step.token.is_some());
        core.kv.touch(end);
    }
    evaluate(weights, &turn, space, cores, steps, interrupts)?;
    choose_all(&turn, space, cores, steps, masked)
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
) -> Result<()> {
    let mut tokens = ArrayVec::<u32, MAX_BATCH>::new();
    let mut places = ArrayVec::<(&KvCache, usize), MAX_BATCH>::new();
    for (core, step) in cores.iter().zip(steps) {
        if let Some(token) = step.token {
            tokens.push(token);
            places.push((&core.kv, core.len));
        }
    }
    if tokens.is_empty() {
        return Ok(());
    }
    let chunk = Chunk::new(weights, &mut space.chunk, &tokens, Places::Each(&places));
    chunk.embed(turn)?;
    for index in 0..weights.layers.len() {
        if let Some(i) = interrupted(interrupts) {
            let e = Error::new(Status::Interrupted, format!("interrupted at layer {index}"));
            return Err(at_index(i, e));
        }
        chunk.run_layer(turn, index)?;
    }
    chunk.all_logits(turn, space.logits.span())
}

/// Gives the sessions their logits and chooses their tokens. After an error, those that have
/// evaluated a token have forgotten it, and their logits.
fn choose_all(
    turn: &PoolTurn,
    space: &mut BatchSpace,
    cores: &mut [MutexGuard<Core>],
    steps: &[Step],
    masked: &[bool],
) -> Result<ArrayVec<Chosen, MAX_BATCH>> {
    let n_vocab = cores[0].logits.len();
    let logits = space.logits.span();
    let mut rows = 0..;
    let mut choices = ArrayVec::<UnsafeCell<Choice>, MAX_BATCH>::new();
    for ((core, step), &masked) in cores.iter_mut().zip(steps).zip(masked) {
        let row = step.token.and_then(|_| rows.next());
        if row.is_some() {
            core.has_logits = false;
        }
        choices.push(UnsafeCell::new(Choice {
            core,
            step,
            row,
            masked,
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
            Some(chosen) => all.push(chosen.map_err(|e| at_index(i, e))?),
            None => fail!(Internal, "session at index {i} has not chosen"),
        }
    }
    for choice in choices {
        let Choice { core, row, .. } = choice.into_inner();
        if row.is_some() {
            // Its token is in the history already.
            core.len += 1;
            core.has_logits = true;
        }
    }
    Ok(all)
}
