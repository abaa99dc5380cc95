//! Drafts from the session's own context: what followed the last tokens where they occurred before. Good for text that
//! repeats what it was given: code, JSON, summaries. It takes no model and no time worth mentioning.

use super::{DraftContext, DraftSource, SourceKind};
use crate::engine::Session;
use crate::error::{Result, fail, try_vec};

/// Tokens that must match, unless a caller says otherwise.
const MIN_MATCH: usize = 2;
/// The longest match that is looked for.
const MAX_MATCH: usize = 32;
/// Earlier places that are looked at.
const MAX_PLACES: usize = 32;
/// No place.
const NONE: u32 = u32::MAX;

/// Where the tokens of a context occurred before.
///
/// The places where a run of `min_match` tokens ends are chained by a hash of the run, the last one first.
pub struct NgramDrafts {
    min_match: usize,
    /// The context that the chains are of.
    tokens: Vec<u32>,
    /// By hash: the last place.
    last: Vec<u32>,
    /// By place: the one before it in its chain.
    before: Vec<u32>,
    /// Where the tokens began that follow the present context, by the last look.
    found: usize,
}

impl NgramDrafts {
    /// For contexts of up to `context` tokens, and matches of at least `min_match`; 0 means 2.
    ///
    /// Errors: `InvalidArgument` for more than 32; `OutOfMemory`.
    pub fn new(context: usize, min_match: usize) -> Result<NgramDrafts> {
        if min_match > MAX_MATCH {
            fail!(
                InvalidArgument,
                "min_match is {min_match}; it can be up to {MAX_MATCH}"
            );
        }
        let what = "places of tokens";
        let mut tokens = try_vec(context, 0u32, what)?;
        tokens.clear();
        Ok(NgramDrafts {
            min_match: if min_match == 0 { MIN_MATCH } else { min_match },
            tokens,
            last: try_vec(context.next_power_of_two(), NONE, what)?,
            before: try_vec(context, NONE, what)?,
            found: 0,
        })
    }

    /// The chain of the run that ends with the last of `tokens`, if there are enough.
    fn chain(&self, tokens: &[u32]) -> Option<usize> {
        let run = tokens.len().checked_sub(self.min_match)?;
        let hash = tokens[run..].iter().fold(0u64, |hash, token| {
            (hash ^ u64::from(*token))
                .wrapping_mul(0x9E37_79B9_7F4A_7C15)
                .rotate_left(29)
        });
        Some((hash >> 16) as usize & (self.last.len() - 1))
    }

    /// Makes the chains those of `tokens`.
    fn follow(&mut self, tokens: &[u32]) {
        let same = self
            .tokens
            .iter()
            .zip(tokens)
            .take_while(|(a, b)| a == b)
            .count();
        while self.tokens.len() > same {
            if let Some(chain) = self.chain(&self.tokens) {
                self.last[chain] = self.before[self.tokens.len() - 1];
            }
            self.tokens.pop();
        }
        for token in &tokens[same..] {
            // Within the capacity, so nothing is allocated.
            self.tokens.push(*token);
            if let Some(chain) = self.chain(&self.tokens) {
                let place = self.tokens.len() - 1;
                self.before[place] = std::mem::replace(&mut self.last[chain], place as u32);
            }
        }
    }

    /// How many tokens before and at `place` are those at the end, up to [`MAX_MATCH`].
    fn matching(&self, place: usize) -> usize {
        let end = self.tokens.iter().rev().take(MAX_MATCH);
        let there = self.tokens[..=place].iter().rev();
        end.zip(there).take_while(|(a, b)| a == b).count()
    }
}

impl DraftSource for NgramDrafts {
    fn kind(&self) -> SourceKind {
        SourceKind::Ngram
    }

    fn is_quick(&self) -> bool {
        true
    }

    /// The longest match, and of several the last; its class is how long it is.
    fn look(&mut self, context: &DraftContext<'_>) -> Result<Option<usize>> {
        self.follow(context.tokens);
        let Some(chain) = self.chain(&self.tokens) else {
            return Ok(None);
        };
        // The last place is the end of the context itself.
        let mut place = self.before[self.tokens.len() - 1];
        debug_assert_eq!(self.last[chain] as usize, self.tokens.len() - 1);
        let (mut best, mut length) = (NONE, self.min_match - 1);
        for _ in 0..MAX_PLACES {
            if place == NONE || length == MAX_MATCH {
                break;
            }
            let matching = self.matching(place as usize);
            if matching > length {
                (best, length) = (place, matching);
            }
            place = self.before[place as usize];
        }
        if best == NONE {
            return Ok(None);
        }
        self.found = best as usize + 1;
        Ok(Some(match length {
            0..=2 => 0,
            3..=4 => 1,
            5..=8 => 2,
            _ => 3,
        }))
    }

    /// What followed the match; where that is the end of the context, it goes on as a period.
    fn draft(&mut self, _: &DraftContext<'_>, drafts: &mut [u32]) -> Result<usize> {
        let len = self.tokens.len();
        for i in 0..drafts.len() {
            drafts[i] = match self.tokens.get(self.found + i) {
                Some(token) => *token,
                None => drafts[self.found + i - len],
            };
        }
        Ok(drafts.len())
    }

    fn fork(&mut self, _: &Session) -> Result<Box<dyn DraftSource>> {
        // Its chains are made by the first look.
        let other = NgramDrafts::new(self.before.len(), self.min_match)?;
        Ok(Box::new(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::sampling::Sampling;

    fn drafts(source: &mut NgramDrafts, tokens: &[u32], count: usize) -> Option<(usize, Vec<u32>)> {
        let context = DraftContext {
            ends: &[],
            tokens,
            sampling: &Sampling::default(),
        };
        let class = source.look(&context).unwrap()?;
        let mut out = vec![0; count];
        assert_eq!(source.draft(&context, &mut out).unwrap(), count);
        Some((class, out))
    }

    #[test]
    fn what_followed_the_longest_match_comes_first_and_the_last_of_equals() {
        let mut source = NgramDrafts::new(64, 0).unwrap();
        assert_eq!(drafts(&mut source, &[1, 2, 3, 4], 3), None);
        // 7 8 occurs twice: with 6 before it, and later alone.
        let tokens = [6, 7, 8, 9, 10, 5, 7, 8, 11, 12, 6, 7, 8];
        assert_eq!(drafts(&mut source, &tokens, 2), Some((1, vec![9, 10])));
        let tokens = [6, 7, 8, 9, 10, 5, 7, 8, 11, 12, 0, 7, 8];
        assert_eq!(drafts(&mut source, &tokens, 3), Some((0, vec![11, 12, 0])));
        // A period goes on.
        assert_eq!(
            drafts(&mut source, &[1, 2, 3, 1, 2, 3, 1, 2], 5),
            Some((2, vec![3, 1, 2, 3, 1]))
        );
    }

    #[test]
    fn chains_are_those_of_the_context_after_every_change_of_it() {
        let random = crate::engine::sampling::philox4x32;
        let draw = |i: u32, n: u32| random([i, 0, 0, 0], [1, 2])[0] % n;
        let mut kept = NgramDrafts::new(96, 3).unwrap();
        let mut tokens: Vec<u32> = Vec::new();
        let mut found = 0;
        for step in 0..2000u32 {
            match draw(3 * step, 8) {
                0 => tokens.truncate(draw(3 * step + 1, 97) as usize),
                1 if !tokens.is_empty() => {
                    let at = draw(3 * step + 1, tokens.len() as u32) as usize;
                    tokens.remove(at);
                }
                _ if tokens.len() < 96 => tokens.push(draw(3 * step + 2, 3)),
                _ => tokens.clear(),
            }
            let mut fresh = NgramDrafts::new(96, 3).unwrap();
            let wanted = drafts(&mut fresh, &tokens, 4);
            found += usize::from(wanted.is_some());
            assert_eq!(
                drafts(&mut kept, &tokens, 4),
                wanted,
                "step {step}: {tokens:?}"
            );
        }
        assert!(found > 300, "{found} matches");
    }
}
