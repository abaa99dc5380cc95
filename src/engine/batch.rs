//! Decodes of several sessions in one pass over the weights.

use super::background::Task;
use super::grammar::Constraint;
use super::queue::Started;
use super::residence::Residence;
use super::sampling::Sampling;
use super::session::{mask_source, try_copy};
use super::{Interrupts, Session};
use crate::backend::{
    MAX_BATCH, Mark, MaskSource, Outcome, Residual, Row, RowResult, Runner, Want, Weights, When,
};
use crate::error::{Error, Result, Status, fail};
use crate::panics::catch;
use crate::threads::event::Event;
use arrayvec::ArrayVec;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The error of one session of a batch, which names it.
pub(crate) fn at_index(index: usize, error: Error) -> Error {
    let message = format!("session at index {index}: {}", error.message);
    Error::new(error.status, message).at(index)
}

/// What each session of a batch has come to.
pub type Tokens = ArrayVec<Result<u32>, MAX_BATCH>;

impl Session {
    /// [`decode_each`](Session::decode_each), with all results at once.
    pub fn decode_batch(sessions: &mut [&mut Session]) -> Result<Tokens> {
        let mut results: [Option<Result<u32>>; MAX_BATCH] = [const { None }; MAX_BATCH];
        Session::decode_each(sessions, &mut |i, _, result| results[i] = Some(result))?;
        Ok(results.into_iter().flatten().collect())
    }

    /// Does what `decode` does for each of 1 to [`MAX_BATCH`] sessions of one model, and tells `each` the index of a session,
    /// the session and what it has come to, in any order. What a session answers depends on the others neither in its bits nor
    /// in its errors: one that fails is as it was before, and the others go on.
    ///
    /// Errors: `InvalidArgument` for a wrong number of sessions or for different models, with nothing done. Those of each
    /// session are those of `decode`.
    pub fn decode_each(
        sessions: &mut [&mut Session],
        each: &mut dyn FnMut(usize, &Session, Result<u32>),
    ) -> Result<()> {
        check(sessions)?;
        let mut choosing = ArrayVec::<(usize, Mark), MAX_BATCH>::new();
        for (i, session) in sessions.iter_mut().enumerate() {
            match session.prepare_choice() {
                Ok((None, mark)) => choosing.push((i, mark)),
                Ok((Some(forced), _)) => {
                    let result = session.append(forced);
                    each(i, session, result);
                }
                Err(e) => each(i, session, Err(session.put_aside(e))),
            }
        }
        let mut chosen: [Option<Result<u32>>; MAX_BATCH] = [const { None }; MAX_BATCH];
        choose_of(sessions, &choosing, &mut chosen[..choosing.len()]);
        for ((i, _), result) in choosing.into_iter().zip(chosen) {
            let session = &mut *sessions[i];
            let token = result.unwrap_or_else(|| fail!(Internal, "it has not chosen"));
            let appended = token.and_then(|token| session.append(token));
            let result = session.answered(appended);
            each(i, session, result);
        }
        Ok(())
    }

    /// Starts what `decode_batch` does and returns at once. Each session has its result by
    /// [`decode_poll`](Session::decode_poll).
    ///
    /// Errors: as of `decode_batch`, and those of the sessions that are known before any work, by index. Nothing is
    /// started then.
    pub fn decode_batch_start(sessions: &mut [&mut Session]) -> Result<()> {
        check(sessions)?;
        let model = sessions[0].model.clone();
        let mut ready = ArrayVec::<(Option<Vec<u32>>, Mark), MAX_BATCH>::new();
        for (i, session) in sessions.iter_mut().enumerate() {
            let prepared = match session.is_ahead() {
                // The token is with the runner.
                true => session.check_ahead().map(|mark| (None, mark)),
                false => session.prepare_choice().and_then(|(forced, mark)| {
                    let tokens = match forced {
                        Some(_) => None,
                        None => Some(try_copy(&session.tokens)?),
                    };
                    Ok((tokens, mark))
                }),
            };
            ready.push(prepared.map_err(|e| at_index(i, session.put_aside(e)))?);
        }
        model.background().reserve()?;
        let mut all = ArrayVec::<(Lent, Arc<Desk>), MAX_BATCH>::new();
        let desks: ArrayVec<Arc<Desk>, MAX_BATCH> =
            sessions.iter().map(|_| Arc::default()).collect();
        // Nothing that is kept was made with memory of the reserve.
        crate::memory::check()?;
        for ((session, (tokens, mark)), desk) in sessions.iter_mut().zip(ready).zip(desks) {
            match tokens {
                // Collected from the runner, which is ahead, or from the grammar.
                None => {
                    let running = usize::from(session.is_ahead());
                    session.started = Started::decodes(running, 1 - running);
                    session.notify();
                }
                Some(tokens) => all.push((session.lend(tokens, mark, desk.clone())?, desk)),
            }
        }
        let weights = model.weights().clone();
        let n_vocab = model.details().n_vocab;
        let task: Task = Box::new(move || work(&*weights, n_vocab, all));
        model.background().run(task);
        Ok(())
    }

    /// Readies a session for one decode: the token that is ahead or that a grammar forces, if there is one, and a mark to
    /// come back to.
    fn prepare_choice(&mut self) -> Result<(Option<u32>, Mark)> {
        if let Some(token) = self.next_ahead()? {
            return Ok((Some(token), self.residence.runner()?.mark()));
        }
        self.prepare_decodes(1)?;
        let forced = self.follow_grammar()?;
        self.drop_stale_position()?;
        Ok((forced, self.residence.runner()?.mark()))
    }

    /// An error that is the answer to an interrupt, if it is one.
    fn put_aside(&self, error: Error) -> Error {
        match self.answered::<()>(Err(error)) {
            Err(e) => e,
            Ok(()) => Error::new(Status::Internal, "an error was lost"),
        }
    }

    /// Lends the work in the background what it needs.
    fn lend(&mut self, tokens: Vec<u32>, mark: Mark, desk: Arc<Desk>) -> Result<Lent> {
        let logprobs = self.residence.logprobs().cloned();
        let lent = Residence::Lent(logprobs.map(Box::new));
        let runner = match std::mem::replace(&mut self.residence, lent) {
            Residence::Device(runner) => runner,
            other => {
                self.residence = other;
                fail!(Internal, "the state is not on the device");
            }
        };
        self.lent_to = Some(desk);
        self.started = Started::Batch;
        Ok(Lent {
            runner,
            tokens,
            mark,
            sampling: self.sampling,
            constraint: self.constraint.take(),
            interrupts: self.interrupts.clone(),
            event: self.event.clone(),
        })
    }

    /// The token of a batch that was started, or `None` while it is not there.
    pub(super) fn poll_batch(&mut self, wait: bool) -> Result<Option<u32>> {
        let Some(desk) = &self.lent_to else {
            fail!(Internal, "a batch that was lent nothing");
        };
        let Some((lent, result)) = desk.take(wait) else {
            return Ok(None);
        };
        self.lent_to = None;
        self.started = Started::Nothing;
        self.residence = Residence::Device(lent.runner);
        self.constraint = lent.constraint;
        self.append(result?).map(Some)
    }
}

/// `InvalidArgument` unless these can be a batch.
fn check(sessions: &[&mut Session]) -> Result<()> {
    check_count(sessions.len())?;
    for (i, session) in sessions.iter().enumerate() {
        if !Arc::ptr_eq(&session.model, &sessions[0].model) {
            let message = "it has another model than the first one";
            return Err(at_index(i, Error::new(Status::InvalidArgument, message)));
        }
    }
    Ok(())
}

/// `InvalidArgument` unless a batch can have that many sessions.
pub(crate) fn check_count(count: usize) -> Result<()> {
    if count == 0 || count > MAX_BATCH {
        fail!(
            InvalidArgument,
            "count is {count}; a batch has 1 to {MAX_BATCH} sessions"
        );
    }
    Ok(())
}

/// Lets the sessions at these indices choose. Apart from its caller for the sake of the stack.
#[inline(never)]
fn choose_of(
    sessions: &mut [&mut Session],
    choosing: &[(usize, Mark)],
    chosen: &mut [Option<Result<u32>>],
) {
    let model = sessions[0].model.clone();
    let mut wanted = choosing.iter().peekable();
    let mut members = ArrayVec::<Member, MAX_BATCH>::new();
    for (i, session) in sessions.iter_mut().enumerate() {
        let Some((_, mark)) = wanted.next_if(|(at, _)| *at == i) else {
            continue;
        };
        let session = &mut **session;
        match session.residence.runner() {
            Ok(runner) => members.push(Member {
                runner,
                tokens: &session.tokens,
                sampling: &session.sampling,
                interrupt: session.interrupts.work(),
                constraint: &mut session.constraint,
                mark: *mark,
            }),
            // `prepare_choice` has seen it there.
            Err(_) => return,
        }
    }
    choose(
        &**model.weights(),
        model.details().n_vocab,
        &mut members,
        chosen,
    );
}

/// A session of a batch, as the choice sees it.
struct Member<'a> {
    runner: &'a mut dyn Runner,
    /// The context.
    tokens: &'a [u32],
    sampling: &'a Sampling,
    interrupt: &'a Arc<AtomicBool>,
    constraint: &'a mut Option<Box<Constraint>>,
    /// Where it is when nothing was done.
    mark: Mark,
}

impl Member<'_> {
    /// The outcome of its row.
    fn collect(&mut self, n_vocab: usize) -> Result<u32> {
        let token = match self.runner.poll(true) {
            Ok(Some(Outcome::Token(token))) if (token as usize) < n_vocab => Ok(token),
            Ok(other) => {
                let message = format!("the backend chose {other:?}, which is no token");
                Err(Error::new(Status::Internal, message))
            }
            Err(e) => Err(e),
        };
        if token.is_err() {
            self.go_back();
        }
        token
    }

    /// Goes back to the beginning, to try again.
    fn go_back(&mut self) {
        self.runner.rollback(self.mark);
        let len = self.runner.len();
        if len > 0 && len == self.tokens.len() && !self.runner.has_logits() {
            let mark = self.runner.mark_before(len - 1);
            self.runner.rollback(mark);
        }
    }
}

/// Lets each choose a token. Those that fail are as they were before, but for logits that they lost.
fn choose(
    weights: &dyn Weights,
    n_vocab: usize,
    members: &mut [Member<'_>],
    chosen: &mut [Option<Result<u32>>],
) {
    while chosen.iter().any(Option::is_none) {
        let submitted = submit(weights, members, chosen);
        let open = chosen.iter_mut().zip(&mut *members);
        let open = open.filter(|(chosen, _)| chosen.is_none());
        for (row, (chosen, member)) in open.enumerate() {
            match &submitted {
                // All are collected, whatever one of them has come to.
                Ok(()) => *chosen = Some(member.collect(n_vocab)),
                // The error ends the work of all rows; whoever is not at fault tries again.
                Err(e) => {
                    member.go_back();
                    if e.row.is_none_or(|at| at == row) {
                        *chosen = Some(Err(e.error.clone()));
                    }
                }
            }
        }
    }
}

/// One pass for the members that have not chosen.
#[inline(never)]
fn submit(
    weights: &dyn Weights,
    members: &mut [Member<'_>],
    chosen: &[Option<Result<u32>>],
) -> RowResult<()> {
    let mut sources = ArrayVec::<_, MAX_BATCH>::new();
    let mut parts = ArrayVec::<_, MAX_BATCH>::new();
    for (member, chosen) in members.iter_mut().zip(chosen) {
        if chosen.is_some() {
            continue;
        }
        sources.push(mask_source(member.constraint));
        let rest = &member.tokens[member.runner.len()..];
        let runner: &mut dyn Runner = &mut *member.runner;
        parts.push((runner, rest, member.sampling, member.interrupt));
    }
    let mut rows = ArrayVec::<Row, MAX_BATCH>::new();
    for ((runner, tokens, sampling, interrupt), source) in parts.into_iter().zip(&mut sources) {
        let sampling = *sampling;
        rows.push(Row {
            runner,
            tokens,
            want: Want::Choices { count: 1, sampling },
            mask: source.as_mut().map(|s| s as &mut MaskSource),
            interrupt,
            residual: Residual::default(),
        });
    }
    weights.submit(&mut rows, When::Now)
}

/// What a session lends to a batch in the background.
struct Lent {
    runner: Box<dyn Runner>,
    /// A copy of the context.
    tokens: Vec<u32>,
    mark: Mark,
    sampling: Sampling,
    constraint: Option<Box<Constraint>>,
    interrupts: Arc<Interrupts>,
    event: Option<Arc<Event>>,
}

/// Where a session gets back what it has lent, with what has come of it.
#[derive(Default)]
pub(super) struct Desk {
    slot: Mutex<Option<(Lent, Result<u32>)>>,
    changed: Condvar,
}

impl Desk {
    fn slot(&self) -> MutexGuard<'_, Option<(Lent, Result<u32>)>> {
        // Nothing that panics runs under this mutex.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, wait: bool) -> Option<(Lent, Result<u32>)> {
        let mut slot = self.slot();
        while wait && slot.is_none() {
            let changed = self.changed.wait(slot);
            slot = changed.unwrap_or_else(PoisonError::into_inner);
        }
        slot.take()
    }
}

/// A batch, on the model's thread.
fn work(weights: &dyn Weights, n_vocab: usize, mut all: ArrayVec<(Lent, Arc<Desk>), MAX_BATCH>) {
    let chosen = catch(|| {
        let mut members: ArrayVec<Member, MAX_BATCH> = all
            .iter_mut()
            .map(|(lent, _)| Member {
                runner: &mut *lent.runner,
                tokens: &lent.tokens,
                sampling: &lent.sampling,
                interrupt: lent.interrupts.work(),
                constraint: &mut lent.constraint,
                mark: lent.mark,
            })
            .collect();
        let mut chosen: [Option<Result<u32>>; MAX_BATCH] = [const { None }; MAX_BATCH];
        let n = members.len();
        choose(weights, n_vocab, &mut members, &mut chosen[..n]);
        Ok(chosen.into_iter().flatten().collect::<Tokens>())
    });
    let chosen = chosen.unwrap_or_else(|e| all.iter().map(|_| Err(e.clone())).collect());
    let mut chosen = chosen.into_iter();
    for (lent, desk) in all {
        let result = chosen.next();
        let result = result.unwrap_or_else(|| fail!(Internal, "it has not chosen"));
        let event = lent.event.clone();
        *desk.slot() = Some((lent, result));
        desk.changed.notify_all();
        if let Some(event) = event {
            event.set();
        }
    }
}
