//! Byte-pair merging: of all neighbours that the vocabulary merges, the pair of lowest rank (the
//! leftmost of equals) becomes one token, until none is left.

use super::vocabulary::{Merge, Merges};
use crate::error::{Result, fail};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

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
    /// Merges a piece given as the token of each byte ([`NONE`] where there is none). The result
    /// holds [`NONE`] for such bytes. Errors: `OutOfMemory`; `InvalidArgument` for 4 GiB and more.
    pub fn merge(
        &mut self,
        merges: &Merges,
        piece: &[u8],
        byte_tokens: &[u32; 256],
    ) -> Result<&[u32]> {
        if piece.len() >= NONE as usize {
            fail!(InvalidArgument, "text: a piece of {} bytes", piece.len());
        }
        self.tokens.clear();
        self.with_next.clear();
        let reserved = self.tokens.try_reserve(piece.len()).is_ok()
            && self.with_next.try_reserve(piece.len()).is_ok();
        if !reserved {
            return no_memory(piece.len());
        }
        let tokens = piece.iter().map(|byte| byte_tokens[usize::from(*byte)]);
        self.tokens.extend(tokens);
        let lookup = |pair: &[u32]| merges.get(pair[0], pair[1]).unwrap_or(NO_MERGE);
        self.with_next.extend(self.tokens.windows(2).map(lookup));
        self.with_next.push(NO_MERGE);
        if piece.len() <= SCAN_LIMIT {
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
