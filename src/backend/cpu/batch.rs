//! Rows of work: decode steps of several sessions in one pass over the weights, with the drafts of each, others one by one.

use super::adapters::Sets;
use super::chunk::{Chunk, ChunkSpace, Places, chunk_bytes};
use super::kv::KvCache;
use super::pages::Pages;
use super::pool::{PoolTurn, Work};
use super::runner::{Core, CpuRunner, Done};
use super::weights::{CpuWeights, Sizes};
use crate::backend::row::{Parts, RowWork};
use crate::backend::{HiddenStates, MAX_BATCH, MaskSource, RowError, RowResult, Want, When};
use crate::engine::sampling::Sampling;
use crate::error::{Error, Result, Status, fail};
use crate::model::AdapterSet;
use arrayvec::ArrayVec;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering::Relaxed;

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

/// The outcomes of a row, as its runner keeps them.
type Outcomes = VecDeque<Result<Done>>;

/// A session of a batch when its tokens are chosen.
struct Choice<'a> {
    core: &'a mut Core,
    step: &'a Step<'a>,
    /// Where its new logits begin, in rows.
    row: usize,
    /// What it has come to, in memory that was reserved.
    outcomes: &'a mut Outcomes,
    /// Why it has come to nothing.
    failed: Option<Error>,
}

impl Choice<'_> {
    /// Chooses by the logits of the whole batch. `mask` is asked for each choice behind drafts; other masks are the core's
    /// already.
    fn choose(&mut self, logits: &[f32], mask: &mut Option<&mut MaskSource<'_>>) {
        let (core, step) = (&mut *self.core, self.step);
        let n_vocab = core.logits.len();
        let logits = &logits[self.row * n_vocab..][..step.tokens.len() * n_vocab];
        let Some(sampling) = step.sampling else {
            core.logits.copy_from_slice(logits);
            self.outcomes.push_back(Ok(Done::Evaluated));
            return;
        };
        if step.drafts > 0 {
            let tokens = (step.tokens, step.drafts);
            let chosen = core.choose_behind(tokens, logits, sampling, mask, self.outcomes);
            self.failed = chosen.err();
            return;
        }
        if !step.tokens.is_empty() {
            core.logits.copy_from_slice(logits);
        }
        match core.choose(sampling, step.tokens.first().copied(), step.masked) {
            Ok(chosen) => self.outcomes.push_back(Ok(Done::Token(chosen))),
            Err(e) => self.failed = Some(e),
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

/// A step of a batch: one known token to append at most, drafts behind it, and tokens to choose, unless none is wanted.
struct Step<'a> {
    /// The known token, if there is one, and the drafts.
    tokens: &'a [u32],
    drafts: usize,
    sampling: Option<&'a Sampling>,
    /// The core has a mask. Never with drafts.
    masked: bool,
    /// Positions before it.
    before: usize,
}

/// The works of the sessions of a batch.
struct Members<'s, 'w, 'r> {
    /// Of all rows.
    works: &'s mut [RowWork<'w, 'r>],
    /// Which of them are the sessions', ascending.
    rows: &'s [usize],
}

impl<'w, 'r> Members<'_, 'w, 'r> {
    /// That of each.
    fn each(&mut self) -> impl Iterator<Item = &mut RowWork<'w, 'r>> {
        let mut rows = self.rows.iter().peekable();
        let works = self.works.iter_mut().enumerate();
        works.filter_map(move |(i, work)| rows.next_if(|row| **row == i).map(|_| work))
    }

    /// The first session that is to stop.
    fn interrupted(&self) -> Option<usize> {
        let is_set = |row: &usize| self.works[*row].interrupt.load(Relaxed);
        self.rows.iter().position(is_set)
    }
}

/// The rows of a pass that work takes, if it is work for a batch.
fn rows_of(work: &RowWork) -> Option<usize> {
    match *work.want {
        Want::Evaluated => (work.tokens.len() == 1).then_some(1),
        Want::Verified { drafts, .. } => Some(work.tokens.len().min(drafts + 1)),
        want => want.is_one_choice().then_some(1),
    }
}

/// Does the work of rows. After an error, some of them may be under way.
pub(super) fn submit(
    weights: &CpuWeights,
    (runners, works): &mut Parts<CpuRunner>,
    when: When,
) -> RowResult<()> {
    let steps = works.iter().filter(|w| rows_of(w).is_some()).count();
    // Whatever drafts do not take: each session has a row.
    let mut spare = MAX_BATCH - steps;
    let mut members = ArrayVec::<usize, MAX_BATCH>::new();
    for (i, (runner, work)) in runners.iter_mut().zip(works.iter_mut()).enumerate() {
        // A pass over the weights for one session has its own, shorter way.
        let rows = rows_of(work).filter(|rows| {
            let fits = rows.saturating_sub(1) <= spare;
            when == When::Now && steps > 1 && fits
        });
        match rows {
            Some(rows) => {
                spare -= rows.saturating_sub(1);
                members.push(i);
            }
            None => runner.submit(work, when).map_err(|e| RowError::of(i, e))?,
        }
    }
    if members.is_empty() {
        return Ok(());
    }
    let mut all = ArrayVec::<Outcomes, MAX_BATCH>::new();
    step_together(weights, runners, works, &members, &mut all)?;
    for (&i, outcomes) in members.iter().zip(&mut all) {
        runners[i].keep_all(std::mem::take(outcomes));
    }
    Ok(())
}

/// Does the steps of the rows `members` in one pass over the weights.
fn step_together(
    weights: &CpuWeights,
    runners: &mut [&mut CpuRunner],
    works: &mut [RowWork],
    members: &[usize],
    all: &mut ArrayVec<Outcomes, MAX_BATCH>,
) -> RowResult<()> {
    for &i in members {
        let outcomes = room_for(runners[i].take_outcomes(), &works[i]);
        all.push(outcomes.map_err(|e| RowError::of(i, e))?);
    }
    let mut cores = ArrayVec::<MutexGuard<Core>, MAX_BATCH>::new();
    let mut steps = ArrayVec::<Step, MAX_BATCH>::new();
    for &i in members {
        let work = &mut works[i];
        let mut prepare = || {
            let mut core = runners[i].idle_core()?;
            let (sampling, drafts) = match work.want {
                Want::Choices { sampling, .. } => (Some(sampling), 0),
                Want::Verified { drafts, sampling } => (Some(sampling), *drafts),
                _ => (None, 0),
            };
            let known = work.tokens.len() - drafts;
            let (earlier, tokens) = work.tokens.split_at(known.saturating_sub(1));
            if !earlier.is_empty() {
                let earlier_of = work.residual.split(earlier.len(), weights.hidden);
                core.extend(earlier, earlier_of, true, work.interrupt)?;
            }
            core.prepare_tokens(tokens)?;
            let masked = match drafts {
                0 => core.prepare_mask(work.mask.take())?,
                _ => false,
            };
            let step = Step {
                tokens,
                drafts,
                sampling,
                masked,
                before: core.len,
            };
            Ok((core, step))
        };
        let (core, step) = prepare().map_err(|e| RowError::of(i, e))?;
        cores.push(core);
        steps.push(step);
    }
    let rows = members;
    let mut members = Members { works, rows };
    let chosen = choose_each(weights, (&mut cores, all), &steps, &mut members);
    if chosen.is_err() {
        for (core, step) in cores.iter_mut().zip(&steps) {
            match step.drafts {
                0 => core.recover(),
                drafts => core.forget(step.before, step.tokens.len() > drafts),
            }
        }
    }
    let named = |e: RowError| RowError {
        row: e.row.map(|member| rows[member]),
        error: e.error,
    };
    chosen.map_err(named)
}

/// A row's outcomes, with room for all that it may have.
fn room_for(mut outcomes: Outcomes, work: &RowWork) -> Result<Outcomes> {
    let count = match work.want {
        Want::Verified { drafts, .. } => drafts + 1,
        _ => 1,
    };
    if outcomes.try_reserve(count).is_err() {
        fail!(OutOfMemory, "room for {count} outcomes");
    }
    Ok(outcomes)
}

/// The choices of all, none of which has failed.
fn choose_each(
    weights: &CpuWeights,
    (cores, all): (&mut [MutexGuard<Core>], &mut [Outcomes]),
    steps: &[Step],
    members: &mut Members,
) -> RowResult<()> {
    let turn = weights
        .pool
        .turn_unless(|| members.interrupted().is_some())
        .map_err(|e| RowError::of(members.interrupted().unwrap_or(0), e))?;
    let mut space = weights.batch.lock().unwrap_or_else(|e| e.into_inner());
    let space = match &mut *space {
        Some(space) => space,
        none => none.insert(BatchSpace::new(weights)?),
    };
    for (row, (core, step)) in cores.iter_mut().zip(steps).enumerate() {
        if step.drafts > 0 {
            let parted = core.kv.fixed.part_rows(step.tokens.len());
            parted.map_err(|e| RowError::of(row, e))?;
        }
    }
    evaluate(weights, &turn, space, cores, steps, members)?;
    for (core, step) in cores.iter_mut().zip(steps) {
        let before = core.len;
        core.kv.fixed.rows_done(before, step.tokens.len());
    }
    choose_all(&turn, space, (cores, all), steps, members)
}

/// Evaluates the tokens of the steps that have one; their logits are rows of the batch's.
fn evaluate(
    weights: &CpuWeights,
    turn: &PoolTurn,
    space: &mut BatchSpace,
    cores: &[MutexGuard<Core>],
    steps: &[Step],
    members: &mut Members,
) -> RowResult<()> {
    let mut tokens = ArrayVec::<u32, MAX_BATCH>::new();
    let mut places = ArrayVec::<(&KvCache, usize), MAX_BATCH>::new();
    let mut sets = ArrayVec::<Option<&AdapterSet>, MAX_BATCH>::new();
    for (core, step) in cores.iter().zip(steps) {
        for (i, token) in step.tokens.iter().enumerate() {
            tokens.push(*token);
            places.push((&core.kv, core.len + i));
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
    let mut fused = 0;
    for ((row, step), work) in first_rows(steps).zip(steps).zip(members.each()) {
        if chunk.enter(row, step.tokens.len(), work.residual.input)? {
            fused += step.tokens.len();
        }
    }
    if ![0, tokens.len()].contains(&fused) {
        let e = Error::new(Status::Internal, "hidden states of several kinds");
        return Err(e.into());
    }
    chunk.project_entry(turn, fused > 0)?;
    let pass = chunk.pass(turn);
    for index in 0..weights.layers.len() {
        if let Some(i) = members.interrupted() {
            let e = Error::new(Status::Interrupted, format!("interrupted at layer {index}"));
            return Err(RowError::of(i, e));
        }
        for (states, position, rows) in kept_states(cores, steps) {
            pass.keep_before(index, states, position, rows);
        }
        chunk.run_layer(turn, index)?;
    }
    for (row, work) in first_rows(steps).zip(members.each()) {
        if let Some(output) = work.residual.output.take() {
            chunk.leave(row, output);
        }
    }
    for (states, position, rows) in kept_states(cores, steps) {
        pass.keep(states, position, rows);
    }
    match weights.ends.1 {
        true => Ok(chunk.all_logits(turn, space.logits.span())?),
        false => Ok(()),
    }
}

/// Where hidden states go, of the steps whose sessions keep them; their position there, and their rows: the first, and how many.
fn kept_states<'a>(
    cores: &'a [MutexGuard<Core>],
    steps: &'a [Step],
) -> impl Iterator<Item = (&'a HiddenStates, usize, (usize, usize))> {
    let rows = first_rows(steps).zip(steps);
    rows.zip(cores).filter_map(|((row, step), core)| {
        let states = core.states.as_deref()?;
        Some((states, core.len, (row, step.tokens.len())))
    })
}

/// The first row of each step.
fn first_rows(steps: &[Step]) -> impl Iterator<Item = usize> {
    steps.iter().scan(0, |next, step| {
        let first = *next;
        *next += step.tokens.len();
        Some(first)
    })
}

/// Gives the sessions their logits and chooses their tokens, of which `all` has the outcomes then. After an error, those that
/// have evaluated a token have forgotten it, and their logits.
///
/// Apart from its caller for the sake of the stack: the list of choices is long, and the evaluation before it goes deep.
#[inline(never)]
fn choose_all(
    turn: &PoolTurn,
    space: &mut BatchSpace,
    (cores, all): (&mut [MutexGuard<Core>], &mut [Outcomes]),
    steps: &[Step],
    members: &mut Members,
) -> RowResult<()> {
    let n_vocab = cores[0].logits.len();
    let logits = space.logits.span();
    let mut choices = ArrayVec::<UnsafeCell<Choice>, MAX_BATCH>::new();
    let rows = first_rows(steps);
    for (((core, step), row), outcomes) in cores.iter_mut().zip(steps).zip(rows).zip(all) {
        if step.tokens.len() > step.drafts {
            core.has_logits = false;
        }
        choices.push(UnsafeCell::new(Choice {
            core,
            step,
            row,
            outcomes,
            failed: None,
        }));
    }
    // SAFETY: the batch's memory, which nobody writes until this returns.
    let logits = unsafe { std::slice::from_raw_parts(logits.base(), MAX_BATCH * n_vocab) };
    // What asks for masks on the way is done here: they are the caller's.
    let mut asks = ArrayVec::<bool, MAX_BATCH>::new();
    for (choice, work) in choices.iter_mut().zip(members.each()) {
        asks.push(work.mask.is_some());
        if work.mask.is_some() {
            choice.get_mut().choose(logits, work.mask);
        }
    }
    let dealt = Dealt(&choices);
    // To sort a logit takes some nanoseconds.
    let work = Work::even(dealt.0.len(), (4 * n_vocab as u64).max(1));
    let done = turn.ranges(work, |_, range| {
        for i in range.filter(|i| !asks[*i]) {
            // SAFETY: each choice is one thread's.
            unsafe { dealt.get(i) }.choose(logits, &mut None);
        }
    });
    let mut failed = done.err().map(RowError::from);
    for (i, choice) in choices.iter_mut().enumerate() {
        let choice = choice.get_mut();
        let error = choice.failed.take().or_else(|| {
            let nothing = || Error::new(Status::Internal, "it has not chosen");
            choice.outcomes.is_empty().then(nothing)
        });
        if let Some(error) = error {
            failed = failed.or(Some(RowError::of(i, error)));
        }
    }
    for choice in &mut choices {
        let choice = choice.get_mut();
        let (core, step) = (&mut *choice.core, choice.step);
        match step.tokens {
            [] => {}
            _ if failed.is_some() => {}
            // What was right is in the state.
            _ if step.drafts > 0 => core.keep(core.len),
            [token] if step.sampling.is_none() => core.advance_by(*token),
            _ => core.advance(),
        }
    }
    match failed {
        None => Ok(()),
        Some(e) => Err(e),
    }
}
