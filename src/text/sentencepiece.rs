//! The merging of SentencePiece: of all neighbours whose texts together are a token, the pair that
//! makes the token of the highest score (the leftmost of equals) becomes one, until none is left.
//! Characters that are no token may still be part of one.

use super::bpe::{NONE, characters};
use super::model::push_all;
use super::vocabulary::{TokenKind, Vocabulary};
use crate::budget::Budget;
use crate::error::{Result, fail, try_vec};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// No token is made of a pair.
const NO_RANK: u32 = u32::MAX;

/// The order in which tokens are made, and what becomes of text that is none.
pub(super) struct Scores {
    /// Per token, 0 for the highest score. Equal scores share a rank.
    ranks: Vec<u32>,
    /// The token of each byte.
    bytes: Option<Box<[u32; 256]>>,
    unknown: Option<u32>,
    /// Some tokens serve for merging alone, and are taken apart again.
    has_unused: bool,
}

/// A run of characters that is one symbol so far.
#[derive(Clone, Copy)]
struct Symbol {
    start: u32,
    end: u32,
    /// The token with this text, [`NONE`] if there is none.
    token: u32,
    previous: u32,
    next: u32,
    /// Rank and token of this symbol and its right neighbour together.
    rank_with_next: u32,
    token_with_next: u32,
}

/// Memory for merging, used again for each piece.
#[derive(Default)]
pub(super) struct Agenda {
    symbols: Vec<Symbol>,
    /// Merges to do: rank and position, packed so that the best comes first.
    queue: BinaryHeap<Reverse<u64>>,
    /// How an unused token was last made: bytes of its left part.
    parts: HashMap<u32, u32>,
}

impl Scores {
    /// Orders tokens by `scores`, one per token and none of them NaN. Text without a token becomes
    /// its bytes, or the unknown token. Errors: `OutOfMemory`.
    pub fn new(vocabulary: &Vocabulary, scores: &[f32], unknown: Option<u32>) -> Result<Self> {
        let mut order = try_vec(scores.len(), 0u32, "order of tokens")?;
        for (index, id) in order.iter_mut().enumerate() {
            *id = index as u32;
        }
        let score = |id: u32| scores[id as usize];
        order.sort_unstable_by(|a, b| score(*b).total_cmp(&score(*a)));
        let mut ranks = try_vec(scores.len(), 0u32, "ranks of tokens")?;
        let mut rank = 0;
        for pair in order.windows(2) {
            rank += u32::from(score(pair[0]) != score(pair[1]));
            ranks[pair[1] as usize] = rank;
        }
        let kinds = vocabulary.kinds();
        Ok(Scores {
            ranks,
            bytes: kinds
                .contains(&TokenKind::Byte)
                .then(|| vocabulary.byte_tokens()),
            unknown,
            has_unused: kinds.contains(&TokenKind::Unused),
        })
    }

    /// Appends the tokens of a piece to `out`. Errors: those of the budget, which pays for the texts
    /// that are looked up; `OutOfMemory`; `InvalidArgument` for a piece of 4 GiB and more.
    pub fn encode(
        &self,
        vocabulary: &Vocabulary,
        piece: &[u8],
        agenda: &mut Agenda,
        budget: &Budget,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        agenda.start(vocabulary, piece)?;
        for left in 0..agenda.symbols.len().saturating_sub(1) {
            self.offer(vocabulary, piece, agenda, left as u32, budget)?;
        }
        while let Some(Reverse(entry)) = agenda.queue.pop() {
            let (rank, left) = ((entry >> 32) as u32, entry as u32);
            // An entry counts only if the pair at this place is still the one it was made for.
            if agenda.symbols[left as usize].rank_with_next == rank {
                self.merge(vocabulary, piece, agenda, left, budget)?;
            }
        }
        let mut unknown_before = false;
        let mut at = 0;
        while let Some(symbol) = agenda.symbols.get(at as usize).copied() {
            let (text, next) = (symbol.start as usize..symbol.end as usize, symbol.next);
            let symbol = (&piece[text], symbol.token);
            let parts = (vocabulary, &agenda.parts);
            self.emit(parts, symbol, &mut unknown_before, budget, out)?;
            at = next;
        }
        Ok(())
    }

    /// Puts the pair of `left` and its right neighbour on the agenda, if it is a token.
    fn offer(
        &self,
        vocabulary: &Vocabulary,
        piece: &[u8],
        agenda: &mut Agenda,
        left: u32,
        budget: &Budget,
    ) -> Result<()> {
        let symbol = agenda.symbols[left as usize];
        let Some(right) = agenda.symbols.get(symbol.next as usize) else {
            agenda.symbols[left as usize].rank_with_next = NO_RANK;
            return Ok(());
        };
        let text = &piece[symbol.start as usize..right.end as usize];
        budget.scan(text.len().min(vocabulary.longest()))?;
        let found = vocabulary.find(text);
        let rank = found.map_or(NO_RANK, |token| self.ranks[token as usize]);
        let symbol = &mut agenda.symbols[left as usize];
        symbol.rank_with_next = rank;
        if let Some(token) = found {
            symbol.token_with_next = token;
            let length = symbol.end - symbol.start;
            agenda
                .queue
                .push(Reverse(u64::from(rank) << 32 | u64::from(left)));
            if self.has_unused && vocabulary.kind(token) == TokenKind::Unused {
                agenda.parts.insert(token, length);
            }
        }
        Ok(())
    }

    fn merge(
        &self,
        vocabulary: &Vocabulary,
        piece: &[u8],
        agenda: &mut Agenda,
        left: u32,
        budget: &Budget,
    ) -> Result<()> {
        let symbols = &mut agenda.symbols;
        let right = symbols[left as usize].next as usize;
        let Symbol { end, next, .. } = symbols[right];
        symbols[right].rank_with_next = NO_RANK;
        let symbol = &mut symbols[left as usize];
        symbol.end = end;
        symbol.next = next;
        symbol.token = symbol.token_with_next;
        let previous = symbol.previous;
        if next != NONE {
            symbols[next as usize].previous = left;
        }
        if previous != NONE {
            self.offer(vocabulary, piece, agenda, previous, budget)?;
        }
        self.offer(vocabulary, piece, agenda, left, budget)
    }

    /// Appends what becomes of a finished symbol, which is its text and its token.
    fn emit(
        &self,
        (vocabulary, parts): (&Vocabulary, &HashMap<u32, u32>),
        symbol: (&[u8], u32),
        unknown_before: &mut bool,
        budget: &Budget,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        let mut stack = vec![symbol];
        while let Some((text, token)) = stack.pop() {
            if token != NONE && vocabulary.kind(token) != TokenKind::Unused {
                *unknown_before = false;
                push_all(out, &[token])?;
                continue;
            }
            if let Some(left) = parts.get(&token).filter(|_| token != NONE) {
                let (left, right) = text.split_at(*left as usize);
                budget.scan(text.len())?;
                for part in [right, left] {
                    stack.push((part, vocabulary.find(part).unwrap_or(NONE)));
                }
                continue;
            }
            if let Some(bytes) = &self.bytes {
                for byte in text {
                    let token = Some(bytes[usize::from(*byte)]).filter(|token| *token != NONE);
                    push_all(out, token.or(self.unknown).as_slice())?;
                }
                continue;
            }
            // A run of unknown text is one token.
            if !std::mem::replace(unknown_before, true) {
                push_all(out, self.unknown.as_slice())?;
            }
        }
        Ok(())
    }
}

impl Agenda {
    /// One symbol per character. Errors: `OutOfMemory`; `InvalidArgument` for 4 GiB and more.
    fn start(&mut self, vocabulary: &Vocabulary, piece: &[u8]) -> Result<()> {
        let length = piece.len();
        if length >= NONE as usize {
            fail!(InvalidArgument, "text: a piece of {length} bytes");
        }
        self.symbols.clear();
        self.queue.clear();
        self.parts.clear();
        let count = characters(piece).count();
        // Every merge adds at most two entries and removes one symbol.
        if self.symbols.try_reserve(count).is_err() || self.queue.try_reserve(3 * count).is_err() {
            fail!(
                OutOfMemory,
                "no memory to tokenize a piece of {length} bytes"
            );
        }
        let mut start = 0;
        for (index, character) in (0u32..).zip(characters(piece)) {
            let end = start + character.len() as u32;
            self.symbols.push(Symbol {
                start,
                end,
                token: vocabulary.find(character).unwrap_or(NONE),
                previous: index.wrapping_sub(1),
                next: if (end as usize) < length {
                    index + 1
                } else {
                    NONE
                },
                rank_with_next: NO_RANK,
                token_with_next: NONE,
            });
            start = end;
        }
        Ok(())
    }
}
