//! The unigram model: of all ways to cut text into tokens, the one whose scores sum up highest.

use super::automaton::{Automaton, ROOT};
use super::bpe::characters;
use super::model::push_all;
use crate::budget::Budget;
use crate::error::{Result, fail};

/// How much worse than the worst token an unknown character is.
const UNKNOWN_PENALTY: f64 = 10.0;

/// Tokens with their scores.
pub(super) struct Unigram {
    pieces: Automaton,
    /// Per token; what `pieces` does not find is not looked at.
    scores: Vec<f64>,
    unknown: u32,
    unknown_score: f64,
    /// Unknown characters become the tokens of their bytes, if all of these exist.
    bytes: Option<Box<[u32; 256]>>,
}

/// The best way to a place of the text.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub score: f64,
    /// Bytes of the token that it ends with.
    pub length: u32,
    pub token: u32,
}

pub(super) const UNREACHED: Step = Step {
    score: f64::NEG_INFINITY,
    length: 0,
    token: 0,
};

/// Memory for the search, used again for each piece.
#[derive(Default)]
pub(super) struct Lattice {
    pub steps: Vec<Step>,
    /// The best way, last token first: the token and the bytes it takes.
    way: Vec<(u32, u32)>,
}

impl Lattice {
    /// Readies it for a piece of so many bytes. Errors: `OutOfMemory`; `InvalidArgument` for 4 GiB and more.
    pub fn ready(&mut self, length: usize) -> Result<()> {
        if u32::try_from(length).is_err() {
            fail!(InvalidArgument, "text: a piece of {length} bytes");
        }
        self.steps.clear();
        self.way.clear();
        if self.steps.try_reserve(length + 1).is_err() || self.way.try_reserve(length).is_err() {
            fail!(
                OutOfMemory,
                "no memory to tokenize a piece of {length} bytes"
            );
        }
        self.steps.resize(length + 1, UNREACHED);
        Ok(())
    }
}

impl Unigram {
    /// The tokens of `pieces` with their `scores`, the lowest of which is `lowest`.
    pub fn new(
        pieces: Automaton,
        scores: Vec<f64>,
        lowest: f64,
        unknown: u32,
        bytes: Option<Box<[u32; 256]>>,
    ) -> Self {
        Unigram {
            pieces,
            scores,
            unknown,
            unknown_score: lowest - UNKNOWN_PENALTY,
            bytes,
        }
    }

    /// The token for unknown text.
    pub fn unknown(&self) -> u32 {
        self.unknown
    }

    /// Appends the tokens of a piece to `out`; a run of unknown characters is one. Errors:
    /// those of the budget; `OutOfMemory`; `InvalidArgument` for a piece of 4 GiB and more.
    pub fn encode(
        &self,
        piece: &[u8],
        lattice: &mut Lattice,
        budget: &Budget,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        let length = piece.len();
        lattice.ready(length)?;
        let Lattice { steps, way } = lattice;
        steps[0].score = 0.0;
        let mut from = 0;
        let mut state = ROOT;
        for character in characters(piece) {
            let end = from + character.len();
            let mut work = 0;
            for byte in character {
                state = self.pieces.step(state, *byte, &mut work);
            }
            // All tokens that end here, the longest first, and a step over an unknown character.
            let mut best = UNREACHED;
            let mut single = false;
            let mut at = self.pieces.longest(state);
            while at != ROOT {
                work += 1;
                let (bytes, token) = (self.pieces.length(at), self.pieces.value(at));
                single |= bytes == character.len();
                let before = steps[end - bytes].score;
                improve(
                    &mut best,
                    before + self.scores[token as usize],
                    bytes,
                    token,
                );
                at = self.pieces.shorter(at);
            }
            if !single {
                let score = steps[from].score + self.unknown_score;
                improve(&mut best, score, character.len(), self.unknown);
            }
            budget.work(work)?;
            steps[end] = best;
            from = end;
        }
        let mut end = length;
        while end > 0 {
            let Step { length, token, .. } = steps[end];
            if length == 0 {
                fail!(
                    InvalidArgument,
                    "text: scores that are out of range at byte {end}"
                );
            }
            way.push((token, length));
            end -= length as usize;
        }
        self.emit(piece, way, out)
    }

    fn emit(&self, piece: &[u8], way: &[(u32, u32)], out: &mut Vec<u32>) -> Result<()> {
        let mut from = 0;
        let mut unknown_from = None;
        for (token, length) in way.iter().rev() {
            if *token == self.unknown {
                unknown_from.get_or_insert(from);
            } else {
                if let Some(start) = unknown_from.take() {
                    self.emit_unknown(&piece[start..from], out)?;
                }
                push_all(out, &[*token])?;
            }
            from += *length as usize;
        }
        match unknown_from {
            Some(start) => self.emit_unknown(&piece[start..], out),
            None => Ok(()),
        }
    }

    fn emit_unknown(&self, text: &[u8], out: &mut Vec<u32>) -> Result<()> {
        let Some(bytes) = &self.bytes else {
            return push_all(out, &[self.unknown]);
        };
        let mut tokens = text.iter().map(|byte| bytes[usize::from(*byte)]);
        if tokens.clone().any(|token| token == super::bpe::NONE) {
            return push_all(out, &[self.unknown]);
        }
        tokens.try_for_each(|token| push_all(out, &[token]))
    }
}

/// Takes a way to a place if it is better than the best so far.
pub(super) fn improve(step: &mut Step, score: f64, length: usize, token: u32) {
    if step.length == 0 || score > step.score {
        *step = Step {
            score,
            length: length as u32,
            token,
        };
    }
}
