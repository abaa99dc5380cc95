//! Rows of work: what a device is asked to do, for one session or for several together.

use super::{HiddenStates, MaskSource, Runner};
use crate::engine::sampling::Sampling;
use crate::error::{Error, Result, Status, fail};
use crate::model::Network;
use arrayvec::ArrayVec;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The most rows in a batch.
pub const MAX_BATCH: usize = 64;

/// The most rows in a batch with drafts, drafts included. More than these take a GPU two launches of each product, and the memory of the
/// largest batch.
pub const MAX_DRAFTED: usize = 32;

/// The most drafts of a row.
pub const MAX_DRAFTS: usize = 31;

/// Work for one runner: tokens to append, and what is wanted of them.
pub struct Row<'a> {
    /// Whose work it is.
    pub runner: &'a mut dyn Runner,
    /// Tokens to append first. None at all is allowed where a choice is made from the logits at
    /// hand.
    pub tokens: &'a [u32],
    /// What is wanted.
    pub want: Want,
    /// Masks the choice, if there is one. Asked for while the device evaluates the tokens, as far
    /// as the device can do both at once, and never after `submit` has returned. Where drafts are
    /// verified, it is asked for each choice that is made, one after another.
    pub mask: Option<&'a mut MaskSource<'a>>,
    /// Ends the work with `Interrupted` once it is set.
    pub interrupt: &'a Arc<AtomicBool>,
    /// What weights that are a part of a network get from the part before, and leave to the one behind.
    pub residual: Residual<'a>,
}

/// What a row's tokens have at the ends of a part of a network.
#[derive(Debug, Default)]
pub struct Residual<'a> {
    /// In front of the first layer.
    pub input: TokenInput<'a>,
    /// The residual stream behind the last layer, as many floats of a token as the network is wide, of a part that does not end its
    /// network. Written if the work succeeds.
    pub output: Option<&'a mut [f32]>,
}

/// What there is in front of the first layer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum TokenInput<'a> {
    /// The tokens' embeddings.
    #[default]
    Embeddings,
    /// The residual stream, of a part that does not begin its network: as many floats of a token as the network is wide.
    Stream(&'a [f32]),
    /// Hidden states beside the tokens' embeddings, of a head that guesses further tokens.
    States(StatesFrom<'a>),
}

impl<'a> From<Option<&'a [f32]>> for TokenInput<'a> {
    /// The residual stream, or tokens where there is none.
    fn from(stream: Option<&'a [f32]>) -> TokenInput<'a> {
        stream.map_or(TokenInput::Embeddings, TokenInput::Stream)
    }
}

/// Hidden states of positions from one on, on the device of whoever reads them.
#[derive(Clone, Copy)]
pub struct StatesFrom<'a> {
    /// Those of which they are.
    pub states: &'a HiddenStates,
    /// The first position.
    pub position: usize,
}

impl std::fmt::Debug for StatesFrom<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "hidden states from position {}", self.position)
    }
}

impl PartialEq for StatesFrom<'_> {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.states, other.states) && self.position == other.position
    }
}

/// What a network begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// Embeddings of tokens.
    Embeddings,
    /// The residual stream.
    Stream,
    /// Embeddings and hidden states.
    States,
}

impl Front {
    /// That of a network.
    pub fn of(network: &Network) -> Front {
        match (network.begins(), &network.entry) {
            (_, Some(_)) => Front::States,
            (true, None) => Front::Embeddings,
            (false, None) => Front::Stream,
        }
    }
}

impl<'a> Residual<'a> {
    /// That of the first tokens, of which each has `width` floats; the others' is left.
    pub fn split(&mut self, tokens: usize, width: usize) -> Residual<'a> {
        let (input, floats) = (self.input, tokens * width);
        match &mut self.input {
            TokenInput::Embeddings => {}
            TokenInput::Stream(all) => *all = &all[floats..],
            TokenInput::States(from) => from.position += tokens,
        }
        let input = match input {
            TokenInput::Stream(all) => TokenInput::Stream(&all[..floats]),
            other => other,
        };
        let output = self.output.take().map(|all| {
            let (first, rest) = all.split_at_mut(floats);
            self.output = Some(rest);
            first
        });
        Residual { input, output }
    }

    /// Checks that it is there where a network with these ends and so many floats of a token needs it, and nowhere else.
    pub fn check(&self, (front, ends): (Front, bool), tokens: usize, width: usize) -> Result<()> {
        let floats = tokens * width;
        let input = match (front, self.input) {
            (Front::Embeddings, TokenInput::Embeddings) => true,
            (Front::Stream, TokenInput::Stream(input)) => input.len() == floats,
            (Front::States, TokenInput::States(from)) => {
                // Those of several places are wider; whether it takes them, the network says.
                let fits = from.states.width() == width || from.states.places().len() > 1;
                fits && from.states.has(from.position, tokens)
            }
            (_, TokenInput::Embeddings) => tokens == 0,
            _ => false,
        };
        let output = self.output.as_ref().map(|o| o.len());
        if !input || output != (!ends && tokens > 0).then_some(floats) {
            fail!(
                Internal,
                "{:?} and {output:?} floats of the residual stream for {tokens} tokens",
                self.input
            );
        }
        Ok(())
    }
}

/// What is wanted of a row.
#[derive(Clone, Copy, Debug)]
pub enum Want {
    /// The logits of the last token, kept for [`Runner::logits`] and for a later choice. Weights that do not end
    /// their network have none.
    Logits,
    /// That the tokens are in the state. More tokens follow before anything else is wanted.
    Evaluated,
    /// `count` tokens, 1 to [`Runner::queue_limit`], chosen one after another: each but the last is
    /// appended before the next is chosen. The draw for a token has the position of that token as
    /// its index. A row with a mask has a count of 1. A head that guesses further tokens goes on from its own hidden states, which it
    /// must keep.
    Choices {
        /// How many tokens.
        count: usize,
        /// How they are chosen.
        sampling: Sampling,
    },
    /// One token, and more as far as drafts are right. The last `drafts` of the row's tokens, 1 to
    /// [`MAX_DRAFTS`], are guesses. The outcomes are the choice behind the tokens before them and, while the last
    /// choice is the next draft, the choice behind that draft. Each is what a row of one choice would have chosen
    /// there. Of the drafts, the state keeps those that were chosen. The logits that the last choice was made by may be lost.
    Verified {
        /// How many of the tokens are drafts.
        drafts: usize,
        /// How tokens are chosen.
        sampling: Sampling,
    },
    /// What [`Want::Verified`] asks of a part that does not end its network: that the tokens, [`MAX_DRAFTS`] and one at most, are in the
    /// state, each evaluated as a row of it alone would be. The last `drafts`, at least 1, are guesses.
    /// [`Runner::keep_drafts`] comes next, when the part that chooses has verified them.
    Drafted {
        /// How many of the tokens are drafts.
        drafts: usize,
    },
}

impl Want {
    /// Whether it is one step of a decode: one token to choose.
    pub fn is_one_choice(&self) -> bool {
        matches!(self, Want::Choices { count: 1, .. })
    }
}

/// When the work of a submission is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// As soon as possible: the caller waits for it, and may do part of it in its own thread.
    Now,
    /// While the caller does something else.
    Background,
}

/// What a row has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The logits are there.
    Logits,
    /// The tokens are in the state.
    Evaluated,
    /// The next of the chosen tokens.
    Token(u32),
}

/// Result of a submission.
pub type RowResult<T> = std::result::Result<T, RowError>;

/// The error of a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowError {
    /// The row that it is about, if it is about one.
    pub row: Option<usize>,
    /// What went wrong.
    pub error: Error,
}

impl RowError {
    /// An error of one row.
    pub fn of(row: usize, error: Error) -> RowError {
        let row = Some(row);
        RowError { row, error }
    }
}

impl From<Error> for RowError {
    fn from(error: Error) -> RowError {
        RowError { row: None, error }
    }
}

/// Ends the work of rows of which some were submitted and another has failed.
pub(crate) fn discard(rows: &mut [Row<'_>]) {
    for row in rows {
        while let Ok(Some(_)) = row.runner.poll(true) {}
    }
}

impl Row<'_> {
    /// Checks what every device takes for granted.
    pub fn check(&self) -> Result<()> {
        match self.want {
            Want::Logits | Want::Evaluated if self.tokens.is_empty() => {
                fail!(NoInput, "no tokens to append")
            }
            Want::Choices { count, .. } => {
                // The limit of a runner is its own to check: it may be another one by now.
                if count == 0 || count > 1 && self.mask.is_some() {
                    fail!(Internal, "{count} choices in a row");
                }
                if self.tokens.is_empty() && !self.runner.has_logits() {
                    fail!(Internal, "there are no logits to choose from");
                }
            }
            Want::Verified { drafts, .. } => {
                if !(1..=MAX_DRAFTS.min(self.tokens.len())).contains(&drafts) {
                    fail!(Internal, "{drafts} drafts in {} tokens", self.tokens.len());
                }
                if self.tokens.len() == drafts && !self.runner.has_logits() {
                    fail!(Internal, "there are no logits to verify by");
                }
            }
            Want::Drafted { drafts } => {
                let most = (MAX_DRAFTS + 1).min(self.tokens.len());
                if !(1..=most).contains(&drafts) || self.tokens.len() > MAX_DRAFTS + 1 {
                    fail!(Internal, "{drafts} drafts in {} tokens", self.tokens.len());
                }
            }
            Want::Logits | Want::Evaluated => {}
        }
        Ok(())
    }
}

/// A row without its runner, as backends take it apart. Most of it stays in the row: the stack has no room for copies of a whole batch.
pub(super) struct RowWork<'w, 'a> {
    pub tokens: &'a [u32],
    pub want: &'w Want,
    pub mask: &'w mut Option<&'a mut MaskSource<'a>>,
    pub interrupt: &'a Arc<AtomicBool>,
    pub residual: &'w mut Residual<'a>,
}

/// The runners of rows, and their work.
pub(super) type Parts<'a, 'r, R> = (
    ArrayVec<&'a mut R, MAX_BATCH>,
    ArrayVec<RowWork<'a, 'r>, MAX_BATCH>,
);

/// Checks rows, takes them apart, and has `submit` do the work. `accepts` says why a
/// runner can't take work now, `check` what is wrong with a work: after these errors, what an earlier submission
/// has started goes on. After an error of `submit`, nothing does. One row goes to `alone`: the stack has no room for many below a
/// prompt, which may go through parts of a network.
pub(super) fn submit_parts<'r, R: 'static>(
    rows: &mut [Row<'r>],
    accepts: impl Fn(&mut R) -> Result<()>,
    check: impl Fn(&RowWork<'_, 'r>) -> Result<()>,
    alone: impl FnOnce(&mut R, &mut RowWork<'_, 'r>) -> Result<()>,
    submit: impl FnOnce(&mut Parts<'_, 'r, R>) -> RowResult<()>,
) -> RowResult<()> {
    match rows {
        [row] => submit_alone(row, accepts, check, alone).map_err(|e| RowError::of(0, e)),
        _ => submit_several(rows, accepts, check, submit),
    }
}

#[inline(never)]
fn submit_alone<'r, R: 'static>(
    row: &mut Row<'r>,
    accepts: impl Fn(&mut R) -> Result<()>,
    check: impl Fn(&RowWork<'_, 'r>) -> Result<()>,
    alone: impl FnOnce(&mut R, &mut RowWork<'_, 'r>) -> Result<()>,
) -> Result<()> {
    let result = {
        let (runner, mut work) = part(row, &accepts)?;
        check(&work)?;
        alone(runner, &mut work)
    };
    result.inspect_err(|_| discard(std::slice::from_mut(row)))
}

/// The parts stay in one place, because the stack has no room for copies of them.
#[inline(never)]
fn submit_several<'r, R: 'static>(
    rows: &mut [Row<'r>],
    accepts: impl Fn(&mut R) -> Result<()>,
    check: impl Fn(&RowWork<'_, 'r>) -> Result<()>,
    submit: impl FnOnce(&mut Parts<'_, 'r, R>) -> RowResult<()>,
) -> RowResult<()> {
    if rows.len() > MAX_BATCH {
        let message = format!("{} rows in a batch", rows.len());
        return Err(Error::new(Status::Internal, message).into());
    }
    let result = {
        let mut parts: Parts<'_, 'r, R> = (ArrayVec::new(), ArrayVec::new());
        for (i, row) in rows.iter_mut().enumerate() {
            let (runner, work) = part(row, &accepts).map_err(|e| RowError::of(i, e))?;
            check(&work).map_err(|e| RowError::of(i, e))?;
            parts.0.push(runner);
            parts.1.push(work);
        }
        submit(&mut parts)
    };
    result.inspect_err(|_| discard(rows))
}

fn part<'a, 'r, R: 'static>(
    row: &'a mut Row<'r>,
    accepts: impl Fn(&mut R) -> Result<()>,
) -> Result<(&'a mut R, RowWork<'a, 'r>)> {
    row.check()?;
    let runner = row.runner.as_any().and_then(|r| r.downcast_mut::<R>());
    let Some(runner) = runner else {
        fail!(Internal, "it has other weights");
    };
    accepts(runner)?;
    let work = RowWork {
        tokens: row.tokens,
        want: &row.want,
        mask: &mut row.mask,
        interrupt: row.interrupt,
        residual: &mut row.residual,
    };
    Ok((runner, work))
}
