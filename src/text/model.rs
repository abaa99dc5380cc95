//! The kinds of models that turn a piece of text into tokens.

use super::bpe::{Bpe, Merger};
use super::plamo::Plamo;
use super::sentencepiece::{Agenda, Scores};
use super::unigram::{Lattice, Unigram};
use super::vocabulary::Vocabulary;
use super::wordpiece::WordPiece;
use crate::budget::Budget;
use crate::error::{Result, fail};

/// How pieces become tokens.
pub(super) enum Model {
    /// Merges by rank.
    Bpe(Bpe),
    /// Merges by the score of what they make.
    Scores(Scores),
    /// The likeliest sequence of tokens.
    Unigram(Unigram),
    /// The same from the end of the text.
    Plamo(Plamo),
    /// The longest token first.
    WordPiece(WordPiece),
    /// Each piece is a token, or the unknown one.
    Words { unknown: Option<u32> },
}

/// Memory that the models work in, used again for each piece.
#[derive(Default)]
pub(super) struct Scratch {
    merger: Merger,
    agenda: Agenda,
    lattice: Lattice,
}

impl Model {
    /// Appends the tokens of a piece to `out`. Errors: those of the budget; `OutOfMemory`;
    /// `InvalidArgument` for a piece of 4 GiB and more.
    pub fn encode(
        &self,
        vocabulary: &Vocabulary,
        piece: &[u8],
        scratch: &mut Scratch,
        budget: &Budget,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        budget.work(piece.len() as u64 / 2 + 1)?;
        match self {
            Model::Bpe(model) => model.encode(vocabulary, piece, &mut scratch.merger, out),
            Model::Scores(model) => {
                model.encode(vocabulary, piece, &mut scratch.agenda, budget, out)
            }
            Model::Unigram(model) => model.encode(piece, &mut scratch.lattice, budget, out),
            Model::Plamo(model) => model.encode(piece, &mut scratch.lattice, budget, out),
            Model::WordPiece(model) => model.encode(vocabulary, piece, budget, out),
            Model::Words { unknown } => {
                let ordinary = |token: &u32| !vocabulary.kind(*token).is_control();
                let known = vocabulary.find(piece).filter(ordinary);
                push_all(out, known.or(*unknown).as_slice())
            }
        }
    }
}

/// Appends tokens. Errors: `OutOfMemory`.
pub(super) fn push_all(out: &mut Vec<u32>, tokens: &[u32]) -> Result<()> {
    if out.try_reserve(tokens.len()).is_err() {
        fail!(OutOfMemory, "no memory for {} more tokens", tokens.len());
    }
    out.extend_from_slice(tokens);
    Ok(())
}
