//! PLaMo's model: of all ways to cut text into tokens, the one whose scores sum up highest. It is looked for from the end of the text, so that of
//! equal ways the one with the longest first token counts.

use super::automaton::{Automaton, ROOT};
use super::bpe::NONE;
use super::model::push_all;
use super::unigram::{Lattice, UNREACHED, improve};
use crate::budget::Budget;
use crate::error::{Result, fail};

/// Scores are whole numbers when they are multiplied by this.
const PRECISION: f64 = 1e4;
/// What a character that becomes bytes scores as such a number, and what no token scores less than.
const UNKNOWN: f64 = -1e7;
const LEAST: f64 = -2e7;
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Tokens with their scores.
pub(super) struct Plamo {
    /// Tokens from their last byte to their first.
    pieces: Automaton,
    /// Per token, in whole numbers; what `pieces` does not find is not looked at.
    scores: Vec<f64>,
    bytes: Box<[u32; 256]>,
}

impl Plamo {
    /// The tokens of `pieces` with the scores of all, and one for each byte.
    pub fn new(
        pieces: &[(&[u8], u32)],
        scores: &[f32],
        bytes: Box<[u32; 256]>,
        budget: &Budget,
    ) -> Result<Self> {
        let whole = |score: &f32| (f64::from(*score) * PRECISION).round();
        let scores: Vec<f64> = scores.iter().map(whole).collect();
        let counts = |id: &u32| scores[*id as usize].is_finite() && scores[*id as usize] > LEAST;
        let counted = pieces
            .iter()
            .filter(|(text, id)| !text.is_empty() && counts(id));
        let turned: Vec<(Vec<u8>, u32)> = counted
            .map(|(text, id)| (text.iter().rev().copied().collect(), *id))
            .collect();
        let mut turned: Vec<(&[u8], u32)> =
            turned.iter().map(|(text, id)| (&**text, *id)).collect();
        Ok(Plamo {
            pieces: Automaton::new(&mut turned, budget)?,
            scores,
            bytes,
        })
    }

    /// Appends the tokens of a piece to `out`. Errors: those of the budget; `OutOfMemory`; `InvalidArgument` for a piece that is no
    /// UTF-8 or has 4 GiB and more.
    pub fn encode(
        &self,
        piece: &[u8],
        lattice: &mut Lattice,
        budget: &Budget,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        let piece = piece.strip_prefix(BYTE_ORDER_MARK).unwrap_or(piece);
        let length = piece.len();
        let Ok(text) = str::from_utf8(piece) else {
            fail!(InvalidArgument, "text: {length} bytes that are not UTF-8");
        };
        lattice.ready(length)?;
        let steps = &mut lattice.steps;
        steps[length].score = 0.0;
        let mut state = ROOT;
        for (from, character) in text.char_indices().rev() {
            let end = from + character.len_utf8();
            let mut work = 0;
            for byte in piece[from..end].iter().rev() {
                state = self.pieces.step(state, *byte, &mut work);
            }
            // All tokens that begin here, the longest first, and a step over a character.
            let mut best = UNREACHED;
            let mut at = self.pieces.longest(state);
            while at != ROOT {
                work += 1;
                let (bytes, token) = (self.pieces.length(at), self.pieces.value(at));
                let score = steps[from + bytes].score + self.scores[token as usize];
                improve(&mut best, score, bytes, token);
                at = self.pieces.shorter(at);
            }
            improve(&mut best, steps[end].score + UNKNOWN, end - from, NONE);
            budget.work(work)?;
            steps[from] = best;
        }
        let mut at = 0;
        while at < length {
            let step = steps[at];
            let end = at + step.length as usize;
            match step.token {
                NONE => {
                    let bytes = piece[at..end].iter();
                    let mut tokens = bytes.map(|byte| self.bytes[usize::from(*byte)]);
                    tokens.try_for_each(|token| push_all(out, &[token]))?;
                }
                token => push_all(out, &[token])?,
            }
            at = end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKENS: [(&str, f32); 12] = [
        ("a", -1.0),
        ("b", -1.5),
        ("ab", -2.5),
        ("ba", -2.0),
        ("aba", -3.0),
        ("é", -4.0),
        ("éa", -0.5),
        ("日本", -2.25),
        ("本", -3.0),
        ("日本b", -3.75),
        ("never", f32::NAN),
        ("bb", -2500.0),
    ];

    fn model() -> Plamo {
        let texts: Vec<(&[u8], u32)> = (TOKENS.iter().zip(256..))
            .map(|((text, _), id)| (text.as_bytes(), id))
            .collect();
        let mut scores = vec![0.0; 256];
        scores.extend(TOKENS.map(|(_, score)| score));
        let bytes = Box::new(std::array::from_fn(|byte| byte as u32));
        Plamo::new(&texts, &scores, bytes, &Budget::for_vocabulary(1000)).unwrap()
    }

    fn encoded(text: &str) -> Vec<u32> {
        let mut out = Vec::new();
        let (budget, mut lattice) = (Budget::for_vocabulary(1 << 20), Lattice::default());
        let piece = text.as_bytes();
        model()
            .encode(piece, &mut lattice, &budget, &mut out)
            .unwrap();
        out
    }

    /// The best way for the rest of a text, by all ways: its score in whole numbers, and its tokens.
    fn best(text: &str) -> (i64, Vec<u32>) {
        let Some(first) = text.chars().next() else {
            return (0, Vec::new());
        };
        let mut found: Option<(i64, Vec<u32>)> = None;
        let mut firsts: Vec<(&str, i64, Vec<u32>)> = TOKENS
            .iter()
            .zip(256u32..)
            .filter(|((token, score), _)| text.starts_with(token) && *score > -2000.0)
            .map(|((token, score), id)| (*token, (score * 1e4) as i64, vec![id]))
            .collect();
        firsts.sort_by_key(|(token, ..)| std::cmp::Reverse(token.len()));
        let single = &text[..first.len_utf8()];
        let bytes = single.bytes().map(u32::from).collect();
        firsts.push((single, -10_000_000, bytes));
        for (token, score, mut ids) in firsts {
            let (rest, behind) = best(&text[token.len()..]);
            if found.as_ref().is_none_or(|(most, _)| score + rest > *most) {
                ids.extend(behind);
                found = Some((score + rest, ids));
            }
        }
        found.unwrap()
    }

    #[test]
    fn the_best_way_is_found() {
        let characters = ["a", "b", "é", "日", "本", "n", "😀", " "];
        for number in 0..4096usize {
            let digits = (0..4).map(|i| characters[number >> (3 * i) & 7]);
            let text: String = digits.chain(["ab"]).collect();
            assert_eq!(encoded(&text), best(&text).1, "{text:?}");
        }
    }

    #[test]
    fn of_equal_ways_the_one_with_the_longest_first_token_counts() {
        // As much as "a" and "b".
        assert_eq!(encoded("ab"), [258]);
        // "aba" as much as "a" and "ba".
        assert_eq!(encoded("aba"), [260]);
        // "日本" and "b".
        assert_eq!(encoded("日本b"), [265]);
    }

    #[test]
    fn a_byte_order_mark_is_left_out_where_the_text_begins() {
        assert_eq!(encoded("\u{feff}ab"), [258]);
        assert_eq!(encoded("a\u{feff}"), [256, 0xef, 0xbb, 0xbf]);
        assert!(encoded("").is_empty());
    }
}
