//! Decodes of several sessions in one pass over the weights.

use super::background::Task;
use super::grammar::Constraint;
use super::queue::Started;
use super::residence::Residence;
use super::sampling::Sampling;
use super::speculate::{Ask, BatchDepth, Masks, Seat};
use super::{Interrupts, Model, Session};
use crate::backend::{
    MAX_BATCH, MAX_DRAFTED, Mark, MaskSource, Outcome, Residual, Row, RowError, RowResult, Runner,
    Want, Weights, When,
};
use crate::error::{Error, Result, Status, fail, try_room};
use crate::panics::catch;
use crate::threads::event::Event;
use arrayvec::ArrayVec;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The error of one session of a batch, which names it.
pub(crate) fn at_index(index: usize, error: Error) -> Error {
    let message = format!("session at index {index}: {}", error.message);
    Error::new(error.status, message).at(index)
}

/// What an error says memory was for.
const LENT: &str = "what sessions lend to a batch";

/// What a session has chosen, if it has. A list of these is small while none has failed.
type Choice = Option<std::result::Result<u32, Box<Error>>>;

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
        let timing = guess(sessions, &mut choosing, false, &mut |i, session, e| {
            each(i, session, Err(session.put_aside(e)));
        });
        let mut chosen: [Choice; MAX_BATCH] = [const { None }; MAX_BATCH];
        let begun = Instant::now();
        choose_of(sessions, &choosing, &mut chosen[..choosing.len()]);
        if let Some(timing) = timing {
            let drafts = choosing.iter().map(|(i, _)| sessions[*i].guesses().len());
            let chosen = chosen[..choosing.len()].iter().flatten();
            timing.end(begun, drafts.sum(), chosen);
        }
        for ((i, _), result) in choosing.iter().zip(&mut chosen) {
            let (i, session) = (*i, &mut *sessions[*i]);
            let token = has_chosen(result.take());
            let appended = token.and_then(|token| session.chosen(token));
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
        let mut choosing = ArrayVec::<(usize, Mark), MAX_BATCH>::new();
        for (i, session) in sessions.iter_mut().enumerate() {
            let prepared = match session.is_ahead() {
                // The token is with the runner.
                true => session.check_ahead().map(|_| None),
                false => session.prepare_choice().map(|(forced, mark)| match forced {
                    Some(_) => None,
                    None => Some(mark),
                }),
            };
            let mark = prepared.map_err(|e| at_index(i, session.put_aside(e)))?;
            choosing.extend(mark.map(|mark| (i, mark)));
        }
        let mut failed = Ok(());
        let timing = guess(sessions, &mut choosing, true, &mut |i, session, e| {
            failed = Err(at_index(i, session.put_aside(e)));
        });
        failed?;
        let mut ready = ArrayVec::<Option<(Vec<u32>, Mark)>, MAX_BATCH>::new();
        let mut wanted = choosing.iter().peekable();
        for (i, session) in sessions.iter().enumerate() {
            let mark = wanted.next_if(|(at, _)| *at == i);
            let lent = mark.map(|(_, mark)| session.with_guesses().map(|tokens| (tokens, *mark)));
            ready.push(lent.transpose().map_err(|e| at_index(i, e))?);
        }
        model.background().reserve()?;
        let mut all = try_room(sessions.len(), LENT)?;
        let desks: ArrayVec<Arc<Desk>, MAX_BATCH> =
            sessions.iter().map(|_| Arc::default()).collect();
        // Nothing that is kept was made with memory of the reserve.
        crate::memory::check()?;
        for ((session, lent), desk) in sessions.iter_mut().zip(ready).zip(desks) {
            match lent {
                // Collected from the runner, which is ahead, or from the grammar.
                None => {
                    let running = usize::from(session.is_ahead());
                    session.started = Started::decodes(running, 1 - running);
                    session.notify();
                }
                Some((tokens, mark)) => {
                    let ask = session.deferred();
                    all.push((session.lend(tokens, mark, desk.clone(), ask)?, desk));
                }
            }
        }
        start(&model, all, timing);
        Ok(())
    }

    /// Starts a decode with drafts that the source is asked for in the background, as a batch of one.
    ///
    /// Errors: `OutOfMemory`, with nothing started.
    ///
    /// Apart from its caller for the sake of the stack: that calls draft models, too.
    #[inline(never)]
    pub(super) fn start_alone(&mut self, ask: Ask) -> Result<()> {
        let model = self.model.clone();
        let tokens = self.with_room(ask.most)?;
        let mark = self.residence.runner()?.mark();
        model.background().reserve()?;
        let mut all = try_room(1, LENT)?;
        let desk = Arc::<Desk>::default();
        crate::memory::check()?;
        all.push((self.lend(tokens, mark, desk.clone(), Some(ask))?, desk));
        start(&model, all, None);
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
    fn lend(
        &mut self,
        tokens: Vec<u32>,
        mark: Mark,
        desk: Arc<Desk>,
        ask: Option<Ask>,
    ) -> Result<Lent> {
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
        self.started = Started::Batch { later: 0 };
        Ok(Lent {
            runner,
            drafts: self.guesses().len(),
            ask,
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
        let later = match self.started {
            Started::Batch { later } => later,
            _ => 0,
        };
        self.lent_to = None;
        self.started = Started::Nothing;
        self.residence = Residence::Device(lent.runner);
        self.constraint = lent.constraint;
        if let Some(ask) = &lent.ask {
            let drafts = &lent.tokens[lent.tokens.len() - lent.drafts..];
            self.was_asked(ask, drafts);
        }
        let token = result.inspect_err(|_| self.forget_guesses())?;
        let token = self.chosen(token)?;
        self.started = Started::decodes(0, later);
        if self.is_ahead() && later > 0 {
            // The next one is there as well.
            self.notify();
        }
        Ok(Some(token))
    }

    /// Takes over the token that a batch has chosen, and what it says about drafts.
    fn chosen(&mut self, token: u32) -> Result<u32> {
        self.guesses_chosen(token);
        self.append(token)
    }

    /// A copy of the context with what was guessed behind it, and room for what will be.
    fn with_guesses(&self) -> Result<Vec<u32>> {
        let room = self.deferred().map_or(0, |ask| ask.most);
        let mut tokens = self.with_room(self.guesses().len() + room)?;
        tokens.extend_from_slice(self.guesses());
        Ok(tokens)
    }

    /// A copy of the context with room for so many tokens behind it.
    fn with_room(&self, room: usize) -> Result<Vec<u32>> {
        let mut tokens = try_room(self.tokens.len() + room, "tokens of a session")?;
        tokens.extend_from_slice(&self.tokens);
        Ok(tokens)
    }
}

/// Gives a batch to the model's thread, which has room for it.
fn start(model: &Model, all: Vec<(Lent, Arc<Desk>)>, timing: Option<Timing>) {
    let weights = model.weights().clone();
    let n_vocab = model.details().n_vocab;
    let task: Task = Box::new(move || work(&*weights, n_vocab, all, timing));
    model.background().run(task);
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

/// What the time of a pass says about passes.
struct Timing {
    of: Arc<Mutex<BatchDepth>>,
    /// Without the drafts.
    rows: usize,
    /// Whether each session has evaluated one token beside its drafts.
    typical: bool,
}

impl Timing {
    /// The pass that has begun then, with so many drafts, has come to these.
    fn end<'a>(
        &self,
        begun: Instant,
        drafts: usize,
        mut results: impl Iterator<Item = &'a std::result::Result<u32, Box<Error>>>,
    ) {
        // One that was done again took longer.
        if self.typical && results.all(|result| result.is_ok()) {
            depth_of(&self.of).took(self.rows + drafts, begun.elapsed());
        }
    }
}

fn depth_of(depth: &Mutex<BatchDepth>) -> MutexGuard<'_, BatchDepth> {
    // It is as good as before, wherever a panic has left it.
    depth.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes drafts for the sessions at these indices, where they have sources and the backend verifies them: as many as the
/// batch is faster with. Those whose sources were interrupted, which `failed` hears of, choose no more.
#[inline(never)]
fn guess(
    sessions: &mut [&mut Session],
    choosing: &mut ArrayVec<(usize, Mark), MAX_BATCH>,
    started: bool,
    failed: &mut dyn FnMut(usize, &Session, Error),
) -> Option<Timing> {
    sessions.iter_mut().for_each(|s| s.forget_guesses());
    let model = sessions[0].model.clone();
    let drafting = sessions.iter().any(|s| s.speculation.is_some());
    if !drafting || choosing.is_empty() || !model.weights().drafts_in_batches() {
        return None;
    }
    let mut seats = ArrayVec::<Seat, MAX_BATCH>::new();
    let mut readings = ArrayVec::<f32, MAX_BATCH>::new();
    for (i, session) in sessions.iter_mut().enumerate() {
        let at = choosing.iter().position(|(at, _)| *at == i);
        let seat = session.seat(at.is_some(), started);
        let (seat, reading) = seat.unwrap_or_else(|e| {
            choosing.remove(at.unwrap_or(0));
            failed(i, session, e);
            Default::default()
        });
        seats.push(seat);
        readings.push(reading);
    }
    let (mut rows, mut typical) = (0, true);
    for (i, _) in &*choosing {
        let len = sessions[*i].residence.runner().map_or(0, |r| r.len());
        let lacks = sessions[*i].tokens.len() - len;
        rows += lacks.min(1);
        typical &= lacks == 1;
    }
    // Each has a row, and drafts have what is left.
    let room = MAX_DRAFTED.saturating_sub(choosing.len());
    let shares = loop {
        let shares = depth_of(model.batch_depth()).choose(&seats, rows, room);
        let unpaid = (0..seats.len()).find(|i| {
            let reads = shares.drafts[*i] > 0 && readings[*i] > 0.0 && !seats[*i].always;
            reads && !sessions[*i].pays(readings[*i], &shares)
        });
        match unpaid {
            Some(i) => seats[i] = Seat::default(),
            None => break shares,
        }
    };
    choosing.retain(|(i, _)| {
        let guessed = sessions[*i].guess(&shares, *i, started);
        let result = guessed.map_err(|e| failed(*i, sessions[*i], e));
        result.is_ok()
    });
    Some(Timing {
        of: model.batch_depth().clone(),
        rows,
        typical,
    })
}

/// Sessions whose contexts have guesses behind them, as long as this lives.
struct WithGuesses<'a, 'm>(&'a mut [&'m mut Session]);

impl<'a, 'm> WithGuesses<'a, 'm> {
    fn new(sessions: &'a mut [&'m mut Session]) -> WithGuesses<'a, 'm> {
        for session in &mut *sessions {
            session.append_guesses();
        }
        WithGuesses(sessions)
    }
}

impl Drop for WithGuesses<'_, '_> {
    fn drop(&mut self) {
        for session in &mut *self.0 {
            let len = session.tokens.len() - session.guesses().len();
            session.tokens.truncate(len);
        }
    }
}

/// Lets the sessions at these indices choose. Apart from its caller for the sake of the stack.
#[inline(never)]
fn choose_of(sessions: &mut [&mut Session], choosing: &[(usize, Mark)], chosen: &mut [Choice]) {
    let model = sessions[0].model.clone();
    let sessions = WithGuesses::new(sessions);
    let mut wanted = choosing.iter().peekable();
    let mut members = ArrayVec::<Member, MAX_BATCH>::new();
    for (i, session) in sessions.0.iter_mut().enumerate() {
        let Some((_, mark)) = wanted.next_if(|(at, _)| *at == i) else {
            continue;
        };
        let session = &mut **session;
        let drafts = session.guesses().len();
        match session.residence.runner() {
            Ok(runner) => members.push(Member {
                runner,
                tokens: &session.tokens,
                drafts,
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
    /// The context, and drafts behind it.
    tokens: &'a [u32],
    drafts: usize,
    sampling: &'a Sampling,
    interrupt: &'a Arc<AtomicBool>,
    constraint: &'a mut Option<Box<Constraint>>,
    /// Where it is when nothing was done.
    mark: Mark,
}

impl Member<'_> {
    /// The first outcome of its row. If drafts were right, the others stay with the runner.
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
            while let Ok(Some(_)) = self.runner.poll(true) {}
            self.go_back();
        }
        token
    }

    /// Goes back to the beginning, to try again.
    fn go_back(&mut self) {
        self.runner.rollback(self.mark);
        let len = self.runner.len();
        let context = self.tokens.len() - self.drafts;
        if len > 0 && len == context && !self.runner.has_logits() {
            let mark = self.runner.mark_before(len - 1);
            self.runner.rollback(mark);
        }
    }
}

/// The token of a session that has chosen.
fn has_chosen(choice: Choice) -> Result<u32> {
    match choice {
        Some(chosen) => chosen.map_err(|e| *e),
        None => fail!(Internal, "it has not chosen"),
    }
}

/// Lets each choose a token. Those that fail are as they were before, but for logits that they lost.
fn choose(
    weights: &dyn Weights,
    n_vocab: usize,
    members: &mut [Member<'_>],
    chosen: &mut [Choice],
) {
    while chosen.iter().any(Option::is_none) {
        let submitted = submit(weights, members, chosen);
        let open = chosen.iter_mut().zip(&mut *members);
        let open = open.filter(|(chosen, _)| chosen.is_none());
        for (row, (chosen, member)) in open.enumerate() {
            match &submitted {
                // All are collected, whatever one of them has come to.
                Ok(()) => *chosen = Some(member.collect(n_vocab).map_err(Box::new)),
                // The error ends the work of all rows; whoever is not at fault tries again.
                Err(e) => {
                    member.go_back();
                    if e.row.is_none_or(|at| at == row) {
                        *chosen = Some(Err(Box::new(e.error.clone())));
                    }
                }
            }
        }
    }
}

/// One pass for the members that have not chosen.
#[inline(never)]
fn submit(weights: &dyn Weights, members: &mut [Member<'_>], chosen: &[Choice]) -> RowResult<()> {
    // The rows are made in place: the stack has no room for another list of what is in them.
    let mut masks = ArrayVec::<_, MAX_BATCH>::new();
    let mut sources = ArrayVec::<_, MAX_BATCH>::new();
    let mut rows = ArrayVec::<Row, MAX_BATCH>::new();
    for (member, chosen) in members.iter_mut().zip(chosen) {
        if chosen.is_some() {
            continue;
        }
        let rest = &member.tokens[member.runner.len()..];
        let (_, drafts) = rest.split_at(rest.len() - member.drafts);
        let own = Masks::new(member.constraint, drafts);
        masks.push(own.map_err(|e| RowError::of(rows.len(), e))?);
        let want = match member.drafts {
            0 => Want::Choices {
                count: 1,
                sampling: *member.sampling,
            },
            drafts => Want::Verified {
                drafts,
                sampling: *member.sampling,
            },
        };
        rows.push(Row {
            runner: &mut *member.runner,
            tokens: rest,
            want,
            mask: None,
            interrupt: member.interrupt,
            residual: Residual::default(),
        });
    }
    for masks in &mut masks {
        let source = masks.as_mut().map(|m| |words: &mut [u32]| m.next(words));
        sources.push(source);
    }
    for (row, source) in rows.iter_mut().zip(&mut sources) {
        row.mask = source.as_mut().map(|s| s as &mut MaskSource);
    }
    weights.submit(&mut rows, When::Now)
}

/// What a session lends to a batch in the background.
struct Lent {
    runner: Box<dyn Runner>,
    /// A copy of the context, and drafts behind it.
    tokens: Vec<u32>,
    drafts: usize,
    /// What puts more of them there.
    ask: Option<Ask>,
    mark: Mark,
    sampling: Sampling,
    constraint: Option<Box<Constraint>>,
    interrupts: Arc<Interrupts>,
    event: Option<Arc<Event>>,
}

impl Lent {
    /// Asks for drafts.
    ///
    /// Errors: `Interrupted`.
    fn guess(&mut self) -> Result<()> {
        if let Some(ask) = &mut self.ask {
            self.drafts += ask.ask(&mut self.tokens, &self.sampling)?;
        }
        Ok(())
    }
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
fn work(
    weights: &dyn Weights,
    n_vocab: usize,
    mut all: Vec<(Lent, Arc<Desk>)>,
    timing: Option<Timing>,
) {
    let chosen = catch(|| {
        let mut chosen: [Choice; MAX_BATCH] = [const { None }; MAX_BATCH];
        for ((lent, _), chosen) in all.iter_mut().zip(&mut chosen) {
            *chosen = catch(|| lent.guess()).err().map(|e| Err(Box::new(e)));
        }
        let drafts = all.iter().map(|(lent, _)| lent.drafts).sum();
        let mut members: ArrayVec<Member, MAX_BATCH> = all
            .iter_mut()
            .map(|(lent, _)| Member {
                runner: &mut *lent.runner,
                tokens: &lent.tokens,
                drafts: lent.drafts,
                sampling: &lent.sampling,
                interrupt: lent.interrupts.work(),
                constraint: &mut lent.constraint,
                mark: lent.mark,
            })
            .collect();
        let n = members.len();
        let begun = Instant::now();
        choose(weights, n_vocab, &mut members, &mut chosen[..n]);
        if let Some(timing) = &timing {
            timing.end(begun, drafts, chosen[..n].iter().flatten());
        }
        let each = chosen.into_iter().take(n);
        Ok(each.map(has_chosen).collect::<Tokens>())
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
