//! The ranks of a group while they have a model.
//!
//! Before a piece of work, each rank describes what it is about to do, or says why it cannot. Rank 0 compares that and answers all. So
//! all ranks begin a piece of work, or none, and all learn of the same error. A connection that ends says that a rank is gone.

use super::line::{Line, SECRET_BYTES, pause};
use super::wait::{Stop, Wait};
use super::work::Work;
use crate::error::{Error, Result, Status};
use crate::model::Rank;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use strum::VariantArray;

/// What a frame is: a rank is ready to do what follows.
const READY: u8 = 1;
/// It cannot: a status and a text. Also rank 0's answer where ranks are not to begin.
const REFUSED: u8 = 2;
/// Rank 0's answer: begin. What follows is for this work.
const GO: u8 = 3;
/// Rank 0 is there, and waits for others.
const WAITING: u8 = 4;
/// Nothing works any more, for the reason that follows.
const LOST: u8 = 5;
/// This rank frees its model: its work is over, and it begins no more.
const LEAVING: u8 = 6;

/// How long a message is given that is sent at an end, and an answer of rank 0 that waits for others.
pub(super) const GRACE: Duration = Duration::from_secs(1);
/// Waits of a rank that are one behind the other at most: until rank 0 is there, until all others are, and until each has told what it is
/// about to do.
const WAITS: u32 = 3;
/// How long one attempt to connect lasts.
const ATTEMPT: Duration = Duration::from_millis(500);
/// The most connections that have not said who they are. The oldest one goes for another.
const MAX_STRANGERS: usize = 64;
/// Bytes of a rank's first frame: the secret, its number, and how many there are.
const HELLO_BYTES: usize = SECRET_BYTES + 8;

/// The connections of a rank, on which it agrees with the others.
#[derive(Debug)]
pub struct Meeting {
    rank: Rank,
    patience: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Of rank 0, to the others in their order; of another one, to rank 0.
    lines: Vec<Line>,
    /// Why nothing works any more.
    lost: Option<Error>,
    /// The load is over, and has failed nowhere.
    is_loaded: bool,
}

/// A rank and its group in messages.
fn name(rank: usize, count: usize) -> String {
    format!("rank {rank} of {count}")
}

fn refusal(e: &Error) -> Vec<u8> {
    let mut frame = vec![REFUSED];
    frame.extend((e.status as i32).to_le_bytes());
    frame.extend(e.message.as_bytes());
    frame
}

/// The error of a refusal, as far as it can be read.
fn refused(frame: &[u8]) -> Error {
    let number = frame.get(1..5).and_then(|bytes| bytes.try_into().ok());
    let number = number.map_or(0, i32::from_le_bytes);
    let is_error = |s: &&Status| **s as i32 == number && !matches!(s, Status::Ok | Status::Pending);
    let status = Status::VARIANTS.iter().find(is_error);
    let text = String::from_utf8_lossy(frame.get(5..).unwrap_or_default());
    Error::new(status.copied().unwrap_or(Status::DeviceError), text)
}

fn lost(message: String) -> Error {
    Error::new(Status::DeviceLost, message)
}

impl Meeting {
    /// Rank 0's: waits for the others. Who does not have the secret is sent away.
    pub(super) fn host(
        listener: &TcpListener,
        rank: Rank,
        secret: &[u8; SECRET_BYTES],
        patience: Duration,
        stop: &mut Stop<'_>,
    ) -> Result<Meeting> {
        let mut wait = Wait::new(stop);
        let io = |e: std::io::Error| lost(format!("waiting for other ranks: {e}"));
        listener.set_nonblocking(true).map_err(io)?;
        let mut strangers: Vec<Line> = Vec::new();
        let mut lines: Vec<Option<Line>> = (1..rank.count).map(|_| None).collect();
        while lines.iter().any(Option::is_none) {
            if wait.is_longer(patience) {
                let missing = (1..rank.count).filter(|i| lines[i - 1].is_none());
                let e = late(missing, rank.count, patience);
                dismiss(lines, &e);
                return Err(e);
            }
            if wait.has_notice() {
                for line in lines.iter_mut().flatten() {
                    // Whoever is gone is missed by all.
                    let _ = line.send(&[WAITING], Instant::now());
                }
            }
            // Where no descriptor is left, one may be again.
            if let Ok((stream, _)) = listener.accept()
                && let Ok(line) = Line::new(stream)
            {
                if strangers.len() == MAX_STRANGERS {
                    strangers.remove(0);
                }
                strangers.push(line.limited(HELLO_BYTES));
            }
            let mut i = 0;
            while i < strangers.len() {
                let hello = match strangers[i].receive() {
                    Ok(None) => {
                        i += 1;
                        continue;
                    }
                    Ok(Some(hello)) => hello,
                    Err(_) => Vec::new(),
                };
                let mut line = strangers.remove(i).unlimited();
                let Some((index, count)) = read_hello(&hello, secret) else {
                    continue;
                };
                let place = index.checked_sub(1).and_then(|i| lines.get_mut(i));
                match place {
                    Some(place) if place.is_none() && count == rank.count => *place = Some(line),
                    _ => {
                        let message = match count == rank.count {
                            true => format!("{} is there already", name(index, count)),
                            false => format!("the group has {} ranks, not {count}", rank.count),
                        };
                        let e = Error::new(Status::InvalidArgument, message);
                        finish(&mut line, &refusal(&e));
                    }
                }
            }
            if let Err(e) = wait.pause() {
                let message = format!("{}: {}", name(0, rank.count), e.message);
                dismiss(lines, &Error::new(e.status, message));
                return Err(e);
            }
        }
        Meeting::of(rank, patience, lines.into_iter().flatten().collect())
    }

    /// Another rank's: goes to rank 0.
    pub(super) fn visit(
        address: SocketAddr,
        rank: Rank,
        secret: &[u8; SECRET_BYTES],
        patience: Duration,
        stop: &mut Stop<'_>,
    ) -> Result<Meeting> {
        let mut wait = Wait::new(stop);
        let at = |e: std::io::Error| {
            let host = name(0, rank.count);
            lost(format!("{host} does not answer at {address}: {e}"))
        };
        let stream = loop {
            // A network that answers nothing is asked again, so that the wait can be stopped.
            let Some(left) = wait.left(patience, ATTEMPT) else {
                return Err(at(ErrorKind::TimedOut.into()));
            };
            match TcpStream::connect_timeout(&address, left) {
                Err(e) if e.kind() == ErrorKind::TimedOut => wait.pause()?,
                connected => break connected.map_err(at)?,
            }
        };
        let mut line = Line::new(stream).map_err(at)?;
        let mut hello = secret.to_vec();
        for number in [rank.index, rank.count] {
            hello.extend((number as u32).to_le_bytes());
        }
        line.send(&hello, Instant::now() + patience).map_err(at)?;
        Meeting::of(rank, patience, vec![line])
    }

    fn of(rank: Rank, patience: Duration, lines: Vec<Line>) -> Result<Meeting> {
        crate::memory::check()?;
        let state = Mutex::new(State {
            lines,
            lost: None,
            is_loaded: false,
        });
        Ok(Meeting {
            rank,
            patience,
            state,
        })
    }

    /// Which one it is.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// How long it waits for others.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the rank at the other end of a line.
    fn other(&self, line: usize) -> usize {
        match self.rank.index {
            0 => line + 1,
            _ => 0,
        }
    }

    /// Waits until all ranks are ready, and returns what rank 0 gives to all of them.
    ///
    /// Errors: its own, if it is not ready; that of another rank that is not; `InvalidArgument` where ranks are about to do different
    /// things, and all can go on with other work after these. `DeviceLost` where a rank does not come in time or is gone, from then
    /// on for good.
    pub fn agree(&self, ready: Result<&Work>, gift: &[u8]) -> Result<Vec<u8>> {
        self.agree_unless(ready, gift, &mut || Ok(()))
    }

    /// The same, unless the wait is stopped: then all work together is over.
    pub fn agree_unless(
        &self,
        ready: Result<&Work>,
        gift: &[u8],
        stop: &mut Stop<'_>,
    ) -> Result<Vec<u8>> {
        let mut state = self.lock();
        if let Some(e) = &state.lost {
            return Err(e.clone());
        }
        match self.rank.index {
            0 => self.decide(&mut state, ready, gift, Wait::new(stop)),
            _ => self.follow(&mut state, ready, Wait::new(stop)),
        }
    }

    /// Rank 0's part of [`Meeting::agree`].
    fn decide(
        &self,
        state: &mut State,
        ready: Result<&Work>,
        gift: &[u8],
        mut wait: Wait<'_, '_>,
    ) -> Result<Vec<u8>> {
        let mut votes: Vec<Option<Vec<u8>>> = vec![None; state.lines.len()];
        loop {
            for (i, vote) in votes.iter_mut().enumerate().filter(|(_, v)| v.is_none()) {
                *vote = self.receive(state, i)?;
            }
            if votes.iter().all(Option::is_some) {
                break;
            }
            if wait.is_longer(self.patience) {
                let missing = (0..votes.len()).filter(|i| votes[*i].is_none());
                let missing = missing.map(|i| self.other(i));
                return self.lose(state, late(missing, self.rank.count, self.patience));
            }
            if wait.has_notice() {
                for i in 0..state.lines.len() {
                    self.send(state, i, &[WAITING])?;
                }
            }
            wait.pause()?;
        }
        let decided = self.compare(ready, votes.iter().flatten());
        let frame = match &decided {
            Ok(()) => [&[GO], gift].concat(),
            Err((from, e)) => {
                let message = match from {
                    Some(rank) => format!("{}: {}", name(*rank, self.rank.count), e.message),
                    None => e.message.clone(),
                };
                refusal(&Error::new(e.status, message))
            }
        };
        for i in 0..state.lines.len() {
            self.send(state, i, &frame)?;
        }
        match decided {
            Ok(()) => Ok(gift.to_vec()),
            Err((Some(0), e)) => Err(e),
            Err(_) => Err(refused(&frame)),
        }
    }

    /// What the votes come to: whose error it is, if it is one's, and the error.
    fn compare<'v>(
        &self,
        ready: Result<&Work>,
        votes: impl Iterator<Item = &'v Vec<u8>>,
    ) -> std::result::Result<(), (Option<usize>, Error)> {
        let own = ready.map_err(|e| (Some(0), e))?;
        let mut differs = None;
        for (i, vote) in votes.enumerate() {
            match vote.split_first() {
                Some((&READY, theirs)) => {
                    differs = differs.or_else(|| own.differs(self.other(i), theirs));
                }
                _ => return Err((Some(self.other(i)), refused(vote))),
            }
        }
        match differs {
            None => Ok(()),
            Some(what) => {
                let message = format!("ranks are about to do different things: {what}");
                Err((None, Error::new(Status::InvalidArgument, message)))
            }
        }
    }

    /// Another rank's part of [`Meeting::agree`].
    fn follow(
        &self,
        state: &mut State,
        ready: Result<&Work>,
        mut wait: Wait<'_, '_>,
    ) -> Result<Vec<u8>> {
        let vote = match &ready {
            Ok(work) => [&[READY], work.bytes()].concat(),
            Err(e) => refusal(e),
        };
        self.send(state, 0, &vote)?;
        let mut deadline = Instant::now() + self.patience;
        loop {
            let is_late =
                Instant::now() > deadline || wait.is_longer(self.patience * WAITS + GRACE);
            match self.receive(state, 0)? {
                Some(frame) => match frame.split_first() {
                    Some((&GO, gift)) => return ready.map(|_| gift.to_vec()),
                    // Its own error is better without a name.
                    Some((&REFUSED, _)) => return ready.and(Err(refused(&frame))),
                    // Others are late, of which it says more when it gives up.
                    Some((&WAITING, _)) => deadline = Instant::now() + self.patience + GRACE,
                    _ => return self.lose(state, self.nonsense(0)),
                },
                None if is_late => {
                    let e = late([0].into_iter(), self.rank.count, self.patience);
                    return self.lose(state, e);
                }
                None => wait.pause()?,
            }
        }
    }

    fn send(&self, state: &mut State, line: usize, frame: &[u8]) -> Result<()> {
        let deadline = Instant::now() + self.patience;
        match state.lines[line].send(frame, deadline) {
            Ok(()) => Ok(()),
            // What it has said at last says more.
            Err(_) => match self.receive(state, line) {
                Err(e) => Err(e),
                Ok(_) => self.lose(state, self.gone(line)),
            },
        }
    }

    fn receive(&self, state: &mut State, line: usize) -> Result<Option<Vec<u8>>> {
        match state.lines[line].receive() {
            Ok(Some(frame)) => match frame.split_first() {
                Some((&LOST, text)) => {
                    let text = String::from_utf8_lossy(text).into_owned();
                    self.lose(state, lost(text))
                }
                Some((&LEAVING, _)) => self.lose(state, self.gone(line)),
                _ => Ok(Some(frame)),
            },
            Ok(None) => Ok(None),
            Err(e) if e.kind() == ErrorKind::InvalidData => self.lose(state, self.nonsense(line)),
            Err(_) => self.lose(state, self.gone(line)),
        }
    }

    fn nonsense(&self, line: usize) -> Error {
        let rank = name(self.other(line), self.rank.count);
        lost(format!(
            "{rank} has sent what is no message of a rank; the model has to be loaded again"
        ))
    }

    fn gone(&self, line: usize) -> Error {
        lost(format!(
            "{} is gone: its process has ended, or its model was freed; the model has to be loaded again",
            name(self.other(line), self.rank.count)
        ))
    }

    /// Nothing works any more, and all are told.
    fn lose<T>(&self, state: &mut State, e: Error) -> Result<T> {
        if state.lost.is_none() {
            let frame = [&[LOST], e.message.as_bytes()].concat();
            for line in &mut state.lines {
                let _ = line.send(&frame, Instant::now());
                line.close();
            }
            state.lost = Some(e.clone());
        }
        Err(e)
    }

    /// This rank has failed for good: the others are told.
    pub fn fail(&self, e: &Error) {
        let mut state = self.lock();
        let of = name(self.rank.index, self.rank.count);
        let _ = self.lose::<()>(&mut state, lost(format!("{of}: {}", e.message)));
    }

    /// Whether all ranks are there, while work is under way. `DeviceLost` if one is not.
    pub fn check(&self) -> Result<()> {
        // Whoever agrees now asks by itself.
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        if let Some(e) = &state.lost {
            return Err(e.clone());
        }
        for i in 0..state.lines.len() {
            let line = &mut state.lines[i];
            line.pump();
            let has_ended = line.has_ended();
            let e = match line.peek() {
                Ok(Some([LOST, text @ ..])) => lost(String::from_utf8_lossy(text).into_owned()),
                // The last thing that it says.
                Ok(Some(frame @ [REFUSED, ..])) if has_ended => refused(frame),
                // It has done its part of the work that is under way.
                Ok(Some([LEAVING, ..])) => continue,
                Ok(None) if has_ended => self.gone(i),
                Ok(_) => continue,
                Err(_) => self.nonsense(i),
            };
            return self.lose(&mut state, e);
        }
        Ok(())
    }

    /// The load is over on this rank.
    pub(super) fn loaded(&self) {
        self.lock().is_loaded = true;
    }

    /// This rank is about to free its model. Work that is over here may not be over elsewhere, and needs what this rank has sent: so
    /// it waits until all ranks are as far, for [`GRACE`] at most. Ranks that begin more work get an error at once.
    pub fn farewell(&self) {
        let mut state = self.lock();
        if state.lost.is_some() || !state.is_loaded {
            return;
        }
        let begun = Instant::now();
        let wait = |lines: &mut [Line]| {
            let is_working = |line: &mut Line| {
                line.pump();
                !line.has_ended() && matches!(line.peek(), Ok(None))
            };
            while lines.iter_mut().any(is_working) && begun.elapsed() < GRACE {
                pause(begun);
            }
        };
        let say = |lines: &mut [Line]| {
            for line in lines {
                let _ = line.send(&[LEAVING], begun + GRACE);
            }
        };
        // The others hear from rank 0 once all have told it.
        match self.rank.index {
            0 => {
                wait(&mut state.lines);
                say(&mut state.lines);
            }
            _ => {
                say(&mut state.lines);
                wait(&mut state.lines);
            }
        }
        state.lines.iter_mut().for_each(Line::close);
        let rank = name(self.rank.index, self.rank.count);
        state.lost = Some(lost(format!("{rank}: its model was freed")));
    }

    /// Nothing works any more.
    pub fn is_lost(&self) -> bool {
        self.lock().lost.is_some()
    }

    /// The load has failed here: others that load get this error, and nobody comes again.
    pub(super) fn refuse(&self, e: &Error, waits: bool) {
        let mut state = self.lock();
        if state.lost.is_some() {
            return;
        }
        let message = match self.rank.index {
            // It names the others itself.
            0 => format!("{}: {}", name(0, self.rank.count), e.message),
            _ => e.message.clone(),
        };
        let frame = refusal(&Error::new(e.status, message));
        for line in &mut state.lines {
            match waits {
                true => finish(line, &frame),
                false => drop(line.send(&frame, Instant::now() + GRACE)),
            }
        }
        state.lost = Some(e.clone());
    }
}

/// Ranks that have not come.
fn late(missing: impl Iterator<Item = usize>, count: usize, patience: Duration) -> Error {
    let missing: Vec<String> = missing.map(|rank| rank.to_string()).collect();
    let ranks = match &missing[..] {
        [rank] => format!("rank {rank}"),
        ranks => format!("ranks {}", ranks.join(", ")),
    };
    lost(format!(
        "{ranks} of {count} did not come within {} ms; the model has to be loaded again",
        patience.as_millis()
    ))
}

/// Tells ranks that have come that it ends here.
fn dismiss(lines: Vec<Option<Line>>, e: &Error) {
    let frame = refusal(e);
    for mut line in lines.into_iter().flatten() {
        finish(&mut line, &frame);
    }
}

/// Sends a last frame, and waits for the other end to have read it: a connection that is closed before loses what is under way.
fn finish(line: &mut Line, frame: &[u8]) {
    let begun = Instant::now();
    let _ = line.send(frame, begun + GRACE);
    line.close();
    while begun.elapsed() < GRACE && line.receive().is_ok() {
        pause(begun);
    }
}

/// Who says hello: a rank and how many there are, if it has the secret.
fn read_hello(hello: &[u8], secret: &[u8; SECRET_BYTES]) -> Option<(usize, usize)> {
    let (theirs, numbers) = hello.split_first_chunk::<SECRET_BYTES>()?;
    let (index, count) = numbers.split_first_chunk::<4>()?;
    // All bytes are looked at, so that the time says nothing.
    let differ = theirs
        .iter()
        .zip(secret)
        .fold(0, |all, (a, b)| all | (a ^ b));
    let count = u32::from_le_bytes(count.try_into().ok()?);
    (differ == 0).then_some((u32::from_le_bytes(*index) as usize, count as usize))
}
