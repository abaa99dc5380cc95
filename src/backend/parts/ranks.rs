//! Parts that have a share of every layer, and work at the same time: ranks. The first one has the logits and chooses.
//!
//! All of them have to begin a piece of work, or none: those that have begun wait for the others on their devices. So what can fail
//! comes first, and what interrupts is asked for between pieces alone. Ranks that are in other processes are told of that, too, and of
//! what this one is about to do (`backend::group`): all begin the same work, or none does.

use super::core::{Core, Done};
use super::weights::PartsWeights;
use crate::backend::group::Work;
use crate::backend::row::RowWork;
use crate::backend::{
    KvType, MaskSource, Ranks, Residual, Row, RowError, RowResult, Runner, Want, When,
};
use crate::engine::sampling::Sampling;
use crate::error::{Error, Result, Status, fail};
use crate::{memory, panics, threads};
use std::collections::VecDeque;
use std::hash::Hasher;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use twox_hash::XxHash3_64;

/// Tokens of a prompt that all ranks evaluate together.
const PIECE: usize = 2048;

/// The right to work. Work of two groups that share devices would wait for each other.
struct Turn<'a> {
    ranks: &'a dyn Ranks,
    _lock: MutexGuard<'a, ()>,
}

impl<'a> Turn<'a> {
    /// Begins work of all ranks, if all are ready for it.
    fn begin(
        ranks: &'a dyn Ranks,
        ready: Result<()>,
        work: impl FnOnce() -> Work,
    ) -> Result<Turn<'a>> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = ranks.apart().map_or(&TURN, |apart| apart.turn());
        let lock = turn.lock().unwrap_or_else(PoisonError::into_inner);
        match (ranks.apart(), ready) {
            (None, ready) => ready?,
            (Some(apart), Ok(())) => {
                let work = work();
                apart.agree(memory::check().map(|()| &work))?;
            }
            (Some(apart), Err(e)) => apart.agree(Err(e))?,
        }
        ranks.begin()?;
        Ok(Turn { ranks, _lock: lock })
    }

    /// What the work has come to, or that a rank did not come.
    fn end<T>(self, done: Result<T>) -> Result<T> {
        self.ranks.check()?;
        done
    }

    /// Work that others wait for has ended.
    fn done<T>(&self, done: Result<T>) -> Result<T> {
        // What comes of the numbers comes on all ranks.
        let alike = |e: &Error| e.status == Status::Numeric;
        if let (Some(apart), Err(e)) = (self.ranks.apart(), &done)
            && !alike(e)
        {
            apart.fail(e);
        }
        done
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.ranks.end();
    }
}

/// Has each rank do something at the same time: the first one does `first` on this thread, each of the others `work`, which gets its
/// number, on a thread of its own. The first error is the result.
///
/// Errors: `OutOfMemory` if a thread is missing, before anything has begun.
fn all_ranks(
    weights: &PartsWeights,
    count: usize,
    work: &(dyn Fn(usize) -> Result<()> + Sync),
    first: impl FnOnce() -> Result<()>,
) -> Result<()> {
    const WAIT: u32 = 0;
    const GO: u32 = 1;
    const STOP: u32 = 2;
    let (signal, next) = (AtomicU32::new(WAIT), AtomicU32::new(1));
    let failed: Mutex<Option<Error>> = Mutex::new(None);
    let note = |done: Result<()>| {
        if let Err(e) = done {
            let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
            failed.get_or_insert(e);
        }
    };
    let other = || {
        weights.placement().apply();
        let rank = next.fetch_add(1, Ordering::Relaxed) as usize;
        loop {
            match signal.load(Ordering::Acquire) {
                WAIT => std::hint::spin_loop(),
                GO => break,
                _ => return,
            }
        }
        note(panics::catch(|| {
            work(rank)?;
            memory::check()
        }));
    };
    let started = threads::beside("ember-rank", count - 1, &other, |started| {
        let all = started == count - 1;
        signal.store(if all { GO } else { STOP }, Ordering::Release);
        if all {
            note(panics::catch(first));
        }
        all
    });
    if !started {
        fail!(OutOfMemory, "threads for {count} GPUs");
    }
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(e) => Err(e),
        None => Ok(()),
    }
}

/// Submits a row of its own to a rank, whose outcomes are to be polled.
fn submit(
    weights: &PartsWeights,
    (rank, runner): (usize, &mut dyn Runner),
    (tokens, want): (&[u32], Want),
    mask: Option<&mut MaskSource<'_>>,
    interrupt: &Arc<AtomicBool>,
) -> Result<()> {
    let row = Row {
        runner,
        tokens,
        want,
        mask: mask.map(|mask| mask as &mut MaskSource<'_>),
        interrupt,
        residual: Residual::default(),
    };
    let submitted = weights.parts()[rank].submit(&mut [row], When::Now);
    submitted.map_err(|e| e.error)
}

/// The same, and waits for what comes of it.
fn evaluate_row(
    weights: &PartsWeights,
    (rank, runner): (usize, &Mutex<&mut Box<dyn Runner>>),
    row: (&[u32], Want),
    interrupt: &Arc<AtomicBool>,
) -> Result<()> {
    let mut runner = runner.lock().unwrap_or_else(PoisonError::into_inner);
    submit(weights, (rank, &mut ***runner), row, None, interrupt)?;
    runner.poll(true).map(drop)
}

/// Has all ranks evaluate tokens, for the logits of the last one or for nothing else.
pub(super) fn evaluate(
    core: &mut Core,
    ranks: &dyn Ranks,
    (tokens, want): (&[u32], Want),
    interrupt: &AtomicBool,
) -> Result<()> {
    let mut rest = tokens;
    while !rest.is_empty() {
        let is_interrupted = interrupt.load(Ordering::Relaxed);
        // The last token is never alone, unless it is the only one.
        let piece = match rest.len() {
            n if n > PIECE => PIECE.min(n - 1),
            n => n,
        };
        let (piece, behind) = rest.split_at(piece);
        rest = behind;
        let want = match rest.is_empty() {
            true => want,
            false => Want::Evaluated,
        };
        let ready = match is_interrupted {
            true => Err(interrupted(tokens.len())),
            false => core.reserve(piece.len()),
        };
        evaluate_piece(core, ranks, ready, (piece, want))?;
        core.history_append(piece);
        core.note_progress();
    }
    Ok(())
}

/// Of a session, what its work depends on beside its tokens: the type of its caches, and what stands for its adapters.
type Setting = (KvType, u64);

fn setting(core: &Core) -> Setting {
    let mut hash = XxHash3_64::with_seed(0);
    for used in core.adapters.iter().flat_map(|set| set.iter()) {
        hash.write(&used.adapter.fingerprint.to_le_bytes());
        hash.write(&used.scale.to_le_bytes());
    }
    (core.kv_type, hash.finish())
}

/// Work of a session with this setting.
fn with(what: Work, (kv_type, adapters): Setting) -> Work {
    what.said("the type of the KV cache", format!("{kv_type:?}"))
        .hash("the adapters", adapters)
}

fn interrupted(tokens: usize) -> Error {
    let message = format!("interrupted while evaluating {tokens} tokens");
    Error::new(Status::Interrupted, message)
}

fn evaluate_piece(
    core: &mut Core,
    ranks: &dyn Ranks,
    ready: Result<()>,
    (tokens, want): (&[u32], Want),
) -> Result<()> {
    let weights = core.weights.clone();
    let (context, setting) = (core.context_mark(), setting(core));
    let parts: Vec<Mutex<&mut Box<dyn Runner>>> = core.parts.iter_mut().map(Mutex::new).collect();
    let ready = ready.and_then(|()| memory::check());
    let never = Arc::new(AtomicBool::new(false));
    let work = |rank: usize| evaluate_row(&weights, (rank, &parts[rank]), (tokens, want), &never);
    let turn = Turn::begin(ranks, ready, || {
        with(Work::new("a prompt"), setting).row(context, tokens, &want)
    })?;
    let done = turn.done(all_ranks(&weights, parts.len(), &work, || work(0)));
    turn.end(done)
}

/// Has all ranks append a token, if there is one, and the first one make a choice.
pub(super) fn choose(
    core: &mut Core,
    ranks: &dyn Ranks,
    (tokens, want): (&[u32], Want),
    mask: Option<&mut MaskSource<'_>>,
    interrupt: &Arc<AtomicBool>,
) -> Result<(Done, u32)> {
    let ready = match interrupt.load(Ordering::Relaxed) {
        true => Err(Error::new(Status::Interrupted, BEFORE_STEP)),
        false => core.reserve(tokens.len()),
    };
    let turn = Turn::begin(ranks, ready, || {
        let what = with(Work::new("a step"), setting(core));
        what.row(core.context_mark(), tokens, &want)
    })?;
    // While the device evaluates the token, the host begins the choice.
    let chosen = turn.done(follow(core, tokens)).and_then(|()| {
        core.history_append(tokens);
        choose_behind(core, want, mask, interrupt)
    });
    // The choice waits for the ranks, and they for each other.
    let chosen = chosen.and_then(|()| core.chosen());
    turn.end(chosen)
}

/// Verifies drafts, which are the last of these tokens, behind a token that is known or behind logits that are at hand; how many positions
/// the first rank has kept.
pub(super) fn verify(
    core: &mut Core,
    ranks: &dyn Ranks,
    (tokens, mut drafts): (&[u32], usize),
    sampling: &Sampling,
    mut mask: Option<&mut MaskSource<'_>>,
    interrupt: &Arc<AtomicBool>,
    outcomes: &mut VecDeque<Result<Done>>,
) -> Result<usize> {
    let start = core.len();
    let want = Want::Choices {
        count: 1,
        sampling: *sampling,
    };
    if let [first, behind @ ..] = tokens
        && behind.len() < drafts
    {
        // Nobody but the first rank has logits. The others begin if its choice is the first draft.
        let mask = mask.as_mut().map(|mask| &mut **mask as &mut MaskSource<'_>);
        let (done, token) = choose(core, ranks, (&[], want), mask, interrupt)?;
        outcomes.push_back(Ok(verified(done, None)));
        if token != *first {
            return Ok(start);
        }
        drafts -= 1;
    }
    let is_first = outcomes.is_empty();
    let kept = match drafts {
        0 => choose(core, ranks, (tokens, want), mask, interrupt).map(|(done, _)| {
            outcomes.push_back(Ok(verified(done, Some(start + 1))));
            start + 1
        }),
        _ => {
            let what = (drafts, *sampling);
            verify_rows(core, ranks, (tokens, what), mask, interrupt, outcomes)
        }
    };
    match kept {
        Err(e) if !is_first => {
            outcomes.push_back(Err(e));
            Ok(start)
        }
        kept => kept,
    }
}

/// A choice behind so many positions.
fn verified(done: Done, position: Option<usize>) -> Done {
    match done {
        Done::Token(token, logprobs) => Done::Verified(token, logprobs, position),
        other => other,
    }
}

/// Has all ranks evaluate a token that is known and drafts behind it, and the first one choose behind each.
fn verify_rows(
    core: &mut Core,
    ranks: &dyn Ranks,
    (tokens, (drafts, sampling)): (&[u32], (usize, Sampling)),
    mask: Option<&mut MaskSource<'_>>,
    interrupt: &AtomicBool,
    outcomes: &mut VecDeque<Result<Done>>,
) -> Result<usize> {
    let (weights, start) = (core.weights.clone(), core.len());
    let ready = match interrupt.load(Ordering::Relaxed) {
        true => Err(Error::new(Status::Interrupted, BEFORE_STEP)),
        false => core.reserve(tokens.len()),
    };
    let ready = ready.and_then(|()| core.reserve_drafts(drafts));
    let ready = ready.and_then(|()| memory::check());
    let want = Want::Verified { drafts, sampling };
    let (context, setting) = (core.context_mark(), setting(core));
    let never = Arc::new(AtomicBool::new(false));
    let mut parts = core.parts.iter_mut();
    let Some(first) = parts.next() else {
        fail!(Internal, "a network of no ranks");
    };
    let others: Vec<Mutex<&mut Box<dyn Runner>>> = parts.map(Mutex::new).collect();
    let follow = |rank: usize| {
        let want = Want::Drafted { drafts };
        evaluate_row(&weights, (rank, &others[rank - 1]), (tokens, want), &never)
    };
    let turn = Turn::begin(ranks, ready, || {
        with(Work::new("a step with drafts"), setting).row(context, tokens, &want)
    })?;
    let done = all_ranks(&weights, others.len() + 1, &follow, || {
        submit(&weights, (0, &mut **first), (tokens, want), mask, &never)
    });
    let done = turn.done(done);
    drop(others);
    let kept = done.and_then(|()| core.verified(tokens, start, drafts, outcomes));
    turn.end(kept)
}

/// What is said about an interrupt that comes before a step.
const BEFORE_STEP: &str = "interrupted before the step";

/// Has all ranks append a token, if there is one.
fn follow(core: &mut Core, tokens: &[u32]) -> Result<()> {
    if let [token] = tokens {
        let mut begun = Ok(());
        let mut count = 0;
        for part in &mut core.parts {
            begun = part.follow(*token);
            if begun.is_err() {
                break;
            }
            count += 1;
        }
        let is_there = begun.is_ok();
        for (i, part) in core.parts[..count].iter_mut().enumerate() {
            let noted = part.followed(is_there, i == 0);
            begun = begun.and(noted);
        }
        begun?;
    }
    Ok(())
}

/// Has the first one choose.
fn choose_behind(
    core: &mut Core,
    want: Want,
    mask: Option<&mut MaskSource<'_>>,
    interrupt: &Arc<AtomicBool>,
) -> Result<()> {
    let weights = core.weights.clone();
    submit(&weights, (0, core.speaker()?), (&[], want), mask, interrupt)
}

/// A step of several sessions with caches of one type, each with a token: all ranks evaluate the tokens, and the first one chooses. What
/// each has chosen is to be polled.
pub(super) fn step(
    weights: &PartsWeights,
    ranks: &dyn Ranks,
    cores: &mut [&mut Core],
    works: &mut [&mut RowWork<'_, '_>],
) -> RowResult<()> {
    let ready = ready_for_step(cores, works);
    let failed = ready.as_ref().err().and_then(|e| e.row);
    let mut what = Work::new("a step of several sessions").said("their number", cores.len());
    if ranks.apart().is_some() {
        for (core, work) in cores.iter().zip(works.iter()) {
            let token = &work.tokens[work.tokens.len() - 1..];
            what = with(what, setting(core)).row(core.context_mark(), token, work.want);
        }
    }
    let n = weights.parts().len();
    let never = Arc::new(AtomicBool::new(false));
    // The tokens, and by rank the runners, of which the first rank's stay on this thread with the masks.
    let mut tokens = Vec::new();
    let mut first: Vec<Row> = Vec::with_capacity(cores.len());
    let mut others: Vec<Vec<&mut Box<dyn Runner>>> = (1..n).map(|_| Vec::new()).collect();
    for (core, work) in cores.iter_mut().zip(works.iter_mut()) {
        let token = &work.tokens[work.tokens.len() - 1..];
        tokens.push(token);
        let mut parts = core.parts.iter_mut();
        if let Some(part) = parts.next() {
            first.push(Row {
                runner: &mut **part,
                tokens: token,
                want: *work.want,
                mask: work.mask.take().map(|mask| mask as &mut MaskSource<'_>),
                interrupt: &never,
                residual: Residual::default(),
            });
        }
        for (part, others) in parts.zip(&mut others) {
            others.push(part);
        }
    }
    let others: Vec<_> = others.into_iter().map(Mutex::new).collect();
    let ready = ready.map_err(|e| e.error).and_then(|()| memory::check());
    let follow = |rank: usize| {
        let mut runners = others[rank - 1]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut rows: Vec<Row> = Vec::with_capacity(tokens.len());
        for (runner, &tokens) in runners.iter_mut().zip(&tokens) {
            rows.push(Row {
                runner: &mut ***runner,
                tokens,
                want: Want::Evaluated,
                mask: None,
                interrupt: &never,
                residual: Residual::default(),
            });
        }
        let submitted = weights.parts()[rank].submit(&mut rows, When::Now);
        submitted.map_err(|e| e.error)?;
        let mut rows = rows.iter_mut();
        rows.try_for_each(|row| row.runner.poll(true).map(drop))
    };
    let mut stepped = Ok(());
    let begun = Turn::begin(ranks, ready, || what);
    let turn = begun.map_err(|error| RowError { row: failed, error })?;
    let done = all_ranks(weights, n, &follow, || {
        stepped = weights.parts()[0].submit(&mut first, When::Now);
        stepped.clone().map_err(|e| e.error)
    });
    let done = turn.done(done);
    turn.end(done.clone())?;
    stepped?;
    done?;
    drop((first, others));
    for (core, token) in cores.iter_mut().zip(&tokens) {
        core.history_append(token);
    }
    Ok(())
}

/// Room for a token of each session. Errors: also an interrupt.
fn ready_for_step(cores: &mut [&mut Core], works: &[&mut RowWork<'_, '_>]) -> RowResult<()> {
    for (i, (core, work)) in cores.iter_mut().zip(works).enumerate() {
        core.reserve(1).map_err(|e| RowError::of(i, e))?;
        if work.interrupt.load(Ordering::Relaxed) {
            let e = Error::new(Status::Interrupted, BEFORE_STEP);
            return Err(RowError::of(i, e));
        }
    }
    Ok(())
}
