//! Byte-pair merging: of all neighbours that the vocabulary merges, the pair of lowest rank (the
//! leftmost of equals) becomes one token, until none is left.

use super::hash::Keyed;
use super::model::push_all;
use super::vocabulary::Vocabulary;
use crate::error::{Result, fail, try_vec};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::atomic::{AtomicU8, Ordering};

/// What a pair of neighbours becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Merge {
    /// Lower is done first.
    rank: u32,
    /// The token of both together.
    token: u32,
}

/// Merges by the ids of left and right neighbour.
pub(super) struct Merges(HashMap<u64, Merge, Keyed>);

impl Merges {
    /// Room for so many merges.
    pub fn with_room(count: usize) -> Result<Self> {
        let mut merges = HashMap::with_hasher(Keyed::new());
        if u32::try_from(count).is_err() || merges.try_reserve(count).is_err() {
            fail!(OutOfMemory, "tokenizer: no memory for {count} merges");
        }
        Ok(Merges(merges))
    }

    /// Adds a merge. Of equal pairs the first counts.
    pub fn add(&mut self, left: u32, right: u32, rank: u32, token: u32) {
        let merge = Merge { rank, token };
        self.0.entry(pair(left, right)).or_insert(merge);
    }

    /// As [`add`](Self::add), but the last of equal pairs counts.
    pub fn replace(&mut self, left: u32, right: u32, rank: u32, token: u32) {
        self.0.insert(pair(left, right), Merge { rank, token });
    }

    fn get(&self, left: u32, right: u32) -> Option<Merge> {
        self.0.get(&pair(left, right)).copied()
    }
}

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// A byte without a token, and the end of a chain. No merge has it.
pub(super) const NONE: u32 = u32::MAX;
const NO_MERGE: Merge = Merge {
    rank: u32::MAX,
    token: NONE,
};
/// Pieces up to this many bytes are merged by scanning, which is quadratic but has no overhead.
const SCAN_LIMIT: usize = 64;

/// Memory for merging, used again for each piece.
#[derive(Default)]
pub(super) struct Merger {
    /// The tokens of the piece so far.
    tokens: Vec<u32>,
    /// What each token becomes with its right neighbour.
    with_next: Vec<Merge>,
    /// The neighbours of each token where a chain is used.
    previous: Vec<u32>,
    next: Vec<u32>,
    /// Merges to do: rank and position, packed so that the lowest comes first.
    queue: BinaryHeap<Reverse<u64>>,
}

impl Merger {
    /// Empties the piece and makes room for one of so many bytes. Errors: `OutOfMemory`;
    /// `InvalidArgument` for 4 GiB and more.
    fn start(&mut self, bytes: usize) -> Result<()> {
        if bytes >= NONE as usize {
            fail!(InvalidArgument, "text: a piece of {bytes} bytes");
        }
        self.tokens.clear();
        self.with_next.clear();
        let reserved = self.tokens.try_reserve(bytes + 1).is_ok()
            && self.with_next.try_reserve(bytes + 1).is_ok();
        if !reserved {
            return no_memory(bytes).map(|_| ());
        }
        Ok(())
    }

    /// Merges the tokens of the piece; [`NONE`] stays what it is. Errors: `OutOfMemory`.
    fn merge(&mut self, merges: &Merges) -> Result<&[u32]> {
        let lookup = |pair: &[u32]| merges.get(pair[0], pair[1]).unwrap_or(NO_MERGE);
        self.with_next.extend(self.tokens.windows(2).map(lookup));
        self.with_next.push(NO_MERGE);
        if self.tokens.len() <= SCAN_LIMIT {
            self.scan(merges);
        } else {
            self.chain(merges)?;
        }
        Ok(&self.tokens)
    }

    /// Finds each next merge by looking at all of them.
    fn scan(&mut self, merges: &Merges) {
        let (tokens, with_next) = (&mut self.tokens, &mut self.with_next);
        loop {
            let mut at = 0;
            let mut best = NO_MERGE;
            for (index, merge) in with_next.iter().enumerate() {
                if merge.rank < best.rank {
                    (at, best) = (index, *merge);
                }
            }
            if best.rank == NO_MERGE.rank {
                return;
            }
            tokens[at] = best.token;
            tokens.remove(at + 1);
            with_next.remove(at);
            let merge_of = |left: usize| match tokens.get(left + 1) {
                Some(right) => merges.get(tokens[left], *right).unwrap_or(NO_MERGE),
                None => NO_MERGE,
            };
            with_next[at] = merge_of(at);
            if at > 0 {
                with_next[at - 1] = merge_of(at - 1);
            }
        }
    }

    /// Finds each next merge with a queue; n log n for pieces of any length.
    fn chain(&mut self, merges: &Merges) -> Result<()> {
        let length = self.tokens.len();
        self.previous.clear();
        self.next.clear();
        self.queue.clear();
        // Every merge adds at most two entries and removes one token.
        let reserved = self.previous.try_reserve(length).is_ok()
            && self.next.try_reserve(length).is_ok()
            && self.queue.try_reserve(3 * length).is_ok();
        if !reserved {
            return no_memory(length).map(|_| ());
        }
        let key = |rank: u32, at: usize| Reverse(u64::from(rank) << 32 | at as u64);
        for at in 0..length as u32 {
            self.previous.push(at.wrapping_sub(1));
            self.next.push(if at as usize + 1 < length {
                at + 1
            } else {
                NONE
            });
        }
        for (at, merge) in self.with_next.iter().enumerate() {
            if merge.rank != NO_MERGE.rank {
                self.queue.push(key(merge.rank, at));
            }
        }
        while let Some(Reverse(entry)) = self.queue.pop() {
            let (rank, at) = ((entry >> 32) as u32, (entry & 0xFFFF_FFFF) as usize);
            // An entry counts only if the pair at this place is still the one it was made for.
            let merge = self.with_next[at];
            if merge.rank != rank {
                continue;
            }
            let right = self.next[at] as usize;
            self.tokens[at] = merge.token;
            self.with_next[right] = NO_MERGE;
            let after = self.next[right];
            self.next[at] = after;
            self.with_next[at] = NO_MERGE;
            if after != NONE {
                self.previous[after as usize] = at as u32;
                self.renew(merges, at, after as usize);
            }
            let before = self.previous[at];
            if before != NONE {
                self.renew(merges, before as usize, at);
            }
        }
        // Close the gaps: the chain visits places in rising order.
        let (mut at, mut count) = (0, 0);
        while at != NONE {
            self.tokens[count] = self.tokens[at as usize];
            count += 1;
            at = self.next[at as usize];
        }
        self.tokens.truncate(count);
        Ok(())
    }

    /// Looks up the merge of two neighbours of the chain, one of which has changed.
    fn renew(&mut self, merges: &Merges, left: usize, right: usize) {
        let merge = merges.get(self.tokens[left], self.tokens[right]);
        self.with_next[left] = merge.unwrap_or(NO_MERGE);
        if let Some(merge) = merge {
            self.queue
                .push(Reverse(u64::from(merge.rank) << 32 | left as u64));
        }
    }
}

fn no_memory(bytes: usize) -> Result<&'static [u32]> {
    fail!(
        OutOfMemory,
        "no memory to tokenize a piece of {bytes} bytes"
    )
}

/// What a piece is before any merge.
pub(super) enum Units {
    /// The token of each byte, [`NONE`] if there is none.
    Bytes(Box<[u32; 256]>),
    /// Characters. Those that are no token become the tokens of their bytes, if all of these exist.
    Characters(Option<Box<[u32; 256]>>),
    /// As `Characters` without bytes, spelled with a prefix on all but the first and a suffix on the
    /// last.
    Affixed { prefix: String, suffix: String },
}

/// A model that merges pairs.
pub(super) struct Bpe {
    merges: Merges,
    units: Units,
    /// What a unit without a token becomes; nothing if there is none.
    unknown: Option<u32>,
    /// A run of unknown characters becomes one token.
    fuse_unknown: bool,
    /// A piece that is a token is not merged from its units.
    whole_pieces: bool,
    /// Per token: whether merging its own units ends with it ([`UNTRIED`], [`WHOLE`], [`PARTS`]).
    whole: Vec<AtomicU8>,
}

const UNTRIED: u8 = 0;
const WHOLE: u8 = 1;
const PARTS: u8 = 2;

impl Bpe {
    /// A model for a vocabulary of `n_vocab` tokens. Errors: `OutOfMemory`.
    pub fn new(merges: Merges, units: Units, whole_pieces: bool, n_vocab: usize) -> Result<Self> {
        let mut whole = Vec::new();
        if whole.try_reserve_exact(n_vocab).is_err() {
            try_vec(n_vocab, 0u8, "tokenizer")?;
        }
        whole.resize_with(n_vocab, || AtomicU8::new(UNTRIED));
        Ok(Bpe {
            merges,
            units,
            unknown: None,
            fuse_unknown: false,
            whole_pieces,
            whole,
        })
    }

    /// The same with a token for unknown text, one for a run of it if `fuse`.
    pub fn with_unknown(self, unknown: Option<u32>, fuse: bool) -> Self {
        Bpe {
            unknown,
            fuse_unknown: fuse,
            ..self
        }
    }

    /// Appends the tokens of a piece to `out`. Errors: `OutOfMemory`; `InvalidArgument` for a piece
    /// of 4 GiB and more.
    pub fn encode(
        &self,
        vocabulary: &Vocabulary,
        piece: &[u8],
        merger: &mut Merger,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        let known = vocabulary.find(piece);
        if let Some(token) = known {
            let whole = match self.whole_pieces {
                true => !vocabulary.kind(token).is_control(),
                false => self.whole[token as usize].load(Ordering::Relaxed) == WHOLE,
            };
            if whole {
                return push_all(out, &[token]);
            }
        }
        merger.start(piece.len())?;
        match &self.units {
            Units::Bytes(tokens) => {
                let tokens = piece.iter().map(|byte| tokens[usize::from(*byte)]);
                merger.tokens.extend(tokens);
            }
            Units::Characters(bytes) => {
                self.characters(vocabulary, piece, bytes.as_deref(), &mut merger.tokens);
            }
            Units::Affixed { prefix, suffix } => {
                self.affixed(vocabulary, piece, prefix, suffix, &mut merger.tokens);
            }
        }
        let tokens = merger.merge(&self.merges)?;
        if let Some(token) = known {
            // What the units of a token merge to never changes: remember it for the next time.
            let whole = if tokens == [token] { WHOLE } else { PARTS };
            self.whole[token as usize].store(whole, Ordering::Relaxed);
        }
        if !tokens.contains(&NONE) {
            return push_all(out, tokens);
        }
        for token in tokens {
            match (*token, self.unknown) {
                (NONE, Some(unknown)) => push_all(out, &[unknown])?,
                (NONE, None) => {}
                (token, _) => push_all(out, &[token])?,
            }
        }
        Ok(())
    }

    /// The tokens of a piece's characters.
    fn characters(
        &self,
        vocabulary: &Vocabulary,
        piece: &[u8],
        bytes: Option<&[u32; 256]>,
        tokens: &mut Vec<u32>,
    ) {
        for character in characters(piece) {
            let ordinary = |token: &u32| !vocabulary.kind(*token).is_control();
            if let Some(token) = vocabulary.find(character).filter(ordinary) {
                tokens.push(token);
                continue;
            }
            let spelled = bytes.map(|bytes| character.iter().map(|b| bytes[usize::from(*b)]));
            match spelled {
                Some(spelled) if spelled.clone().all(|token| token != NONE) => {
                    tokens.extend(spelled);
                }
                _ => self.push_unknown(tokens),
            }
        }
    }

    /// The tokens of a piece's characters, spelled with a prefix and a suffix.
    fn affixed(
        &self,
        vocabulary: &Vocabulary,
        piece: &[u8],
        prefix: &str,
        suffix: &str,
        tokens: &mut Vec<u32>,
    ) {
        let mut spelled = Vec::new();
        let mut from = 0;
        for character in characters(piece) {
            spelled.clear();
            if from > 0 {
                spelled.extend_from_slice(prefix.as_bytes());
            }
            spelled.extend_from_slice(character);
            from += character.len();
            if from == piece.len() {
                spelled.extend_from_slice(suffix.as_bytes());
            }
            match vocabulary.find(&spelled) {
                Some(token) => tokens.push(token),
                None => self.push_unknown(tokens),
            }
        }
    }

    fn push_unknown(&self, tokens: &mut Vec<u32>) {
        if !(self.fuse_unknown && tokens.last() == Some(&NONE)) {
            tokens.push(NONE);
        }
    }
}

/// The characters of UTF-8, each as its bytes. Bytes that are not UTF-8 stand alone.
pub(super) fn characters(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let length = match rest.first()? {
            0..0xC0 => 1,
            0xC0..0xE0 => 2,
            0xE0..0xF0 => 3,
            0xF0.. => 4,
        };
        let (character, tail) = rest.split_at(length.min(rest.len()));
        rest = tail;
        Some(character)
    })
}
