//! Finds tokens that are recognized in the raw text before anything else happens to it.

use super::automaton::{Automaton, ROOT};
use super::charset::CharSet;
use crate::budget::Budget;
use crate::error::{Result, try_vec};
use std::ops::Range;

/// Bytes of text that are searched at once.
const BLOCK: usize = 1 << 16;

/// Texts with their ids.
pub(super) struct Specials {
    /// Sorted by text; one entry per text.
    entries: Vec<Special>,
    /// Finds the entries in a text that is read from its end: those that begin at a place.
    backwards: Automaton,
    /// Per state of `backwards`: the longest entry that is no control token, as a state.
    ordinary: Vec<u32>,
    /// Bytes of the longest entry.
    longest: usize,
    /// The characters of words, if it matters.
    words: Option<CharSet>,
}

/// A token that is recognized by its text.
pub(super) struct Special {
    pub text: Box<[u8]>,
    pub id: u32,
    /// Recognized only where the caller says so.
    pub control: bool,
    /// White space before it is part of it.
    pub takes_left: bool,
    /// White space behind it is part of it.
    pub takes_right: bool,
    /// Not recognized inside a word.
    pub single_word: bool,
}

/// A part of a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    /// Text without special tokens, never empty, and where it starts.
    Text(&'a str, usize),
    Token(u32),
}

/// Where special tokens count.
pub(super) enum Allow<'a> {
    All,
    /// All but control tokens.
    Ordinary,
    /// Where this says so for start, end and token. It may cost something.
    Where(&'a dyn Fn(usize, usize, &Special) -> Result<bool>),
}

impl Specials {
    /// Empty texts are left out; of equal texts the first counts. Errors: those of
    /// [`Automaton::new`].
    pub fn new(mut entries: Vec<Special>, budget: &Budget) -> Result<Self> {
        entries.retain(|special| !special.text.is_empty());
        entries.sort_by(|a, b| a.text.cmp(&b.text));
        entries.dedup_by(|later, kept| later.text == kept.text);
        let words = entries.iter().any(|special| special.single_word);
        let longest = entries.iter().map(|special| special.text.len()).max();
        let turned = |special: &Special| special.text.iter().rev().copied().collect();
        let turned: Vec<Vec<u8>> = entries.iter().map(turned).collect();
        let mut strings: Vec<(&[u8], u32)> = turned.iter().map(Vec::as_slice).zip(0..).collect();
        let backwards = Automaton::new(&mut strings, budget)?;
        let mut ordinary = try_vec(backwards.len(), ROOT, "special tokens")?;
        // Shorter ones come first.
        for state in 0..backwards.len() as u32 {
            let entry = backwards.longest(state);
            ordinary[state as usize] = match entry {
                ROOT => ROOT,
                _ if !entries[backwards.value(entry) as usize].control => entry,
                _ => ordinary[backwards.shorter(entry) as usize],
            };
        }
        Ok(Specials {
            words: words.then(|| CharSet::new(r"\w")),
            entries,
            backwards,
            ordinary,
            longest: longest.unwrap_or(0),
        })
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Gives the parts of `text` to `each`, in order. Special tokens count only where `allow` says so;
    /// of those that overlap, the first, the longest of those that start at one place. Errors: those
    /// of `each`, of `allow` and of the budget.
    pub fn split<'a>(
        &self,
        text: &'a str,
        allow: &Allow,
        budget: &Budget,
        each: &mut dyn FnMut(Part<'a>) -> Result<()>,
    ) -> Result<()> {
        let mut done = 0;
        let mut from = 0;
        let mut found = Vec::new();
        let blocks = match self.entries.is_empty() {
            true => 0,
            false => text.len().div_ceil(BLOCK),
        };
        for block in 0..blocks {
            let start = block * BLOCK;
            let range = start..text.len().min(start + BLOCK);
            self.search(text.as_bytes(), range, allow, budget, &mut found)?;
            // They were found from the end.
            for (mut start, state) in found.drain(..).rev() {
                if start < from {
                    continue;
                }
                let Some(special) = self.choose(start, state, allow, budget)? else {
                    continue;
                };
                let mut end = start + special.text.len();
                from = end;
                if special.single_word && self.touches_word(text, start, end) {
                    continue;
                }
                if start < done {
                    continue;
                }
                if special.takes_left {
                    start = done + text[done..start].trim_end().len();
                }
                if special.takes_right {
                    end = text.len() - text[end..].trim_start().len();
                }
                budget.scan(end - done)?;
                if done < start {
                    each(Part::Text(&text[done..start], done))?;
                }
                each(Part::Token(special.id))?;
                done = end;
            }
        }
        if done < text.len() {
            each(Part::Text(&text[done..], done))?;
        }
        Ok(())
    }

    /// Collects the places of a range where some special token begins, from its end, with a state
    /// that leads to all of them.
    fn search(
        &self,
        text: &[u8],
        range: Range<usize>,
        allow: &Allow,
        budget: &Budget,
        found: &mut Vec<(usize, u32)>,
    ) -> Result<()> {
        let mut state = ROOT;
        let mut steps = 0;
        // What tokens that begin in the range go on with.
        let end = text.len().min(range.end + self.longest.saturating_sub(1));
        for byte in text[range.end..end].iter().rev() {
            state = self.backwards.step(state, *byte, &mut steps);
        }
        for at in range.rev() {
            state = self.backwards.step(state, text[at], &mut steps);
            let entry = match allow {
                Allow::Ordinary => self.ordinary[state as usize],
                Allow::All | Allow::Where(_) => self.backwards.longest(state),
            };
            if entry != ROOT {
                found.push((at, entry));
            }
        }
        budget.work(steps / 4 + 1)
    }

    /// The longest of the special tokens at a place that is allowed.
    fn choose(
        &self,
        start: usize,
        state: u32,
        allow: &Allow,
        budget: &Budget,
    ) -> Result<Option<&Special>> {
        let mut state = state;
        while state != ROOT {
            budget.work(1)?;
            let special = &self.entries[self.backwards.value(state) as usize];
            let allowed = match allow {
                Allow::All | Allow::Ordinary => true,
                Allow::Where(may) => may(start, start + special.text.len(), special)?,
            };
            if allowed {
                return Ok(Some(special));
            }
            state = self.backwards.shorter(state);
        }
        Ok(None)
    }

    /// Whether a character of a word stands before `start` or behind `end`.
    fn touches_word(&self, text: &str, start: usize, end: usize) -> bool {
        let before = text[..start].chars().next_back();
        let behind = text[end..].chars().next();
        let word = |c: char| self.words.as_ref().is_some_and(|words| words.contains(c));
        before.is_some_and(word) || behind.is_some_and(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn special(text: &str, id: u32, control: bool) -> Special {
        Special {
            text: text.as_bytes().into(),
            id,
            control,
            takes_left: false,
            takes_right: false,
            single_word: false,
        }
    }

    fn specials(list: Vec<Special>) -> Specials {
        Specials::new(list, &Budget::for_vocabulary(0)).unwrap()
    }

    fn parts(specials: &Specials, text: &str, control: bool) -> String {
        let mut out = String::new();
        let mut each = |part: Part| {
            out += &match part {
                Part::Text(text, _) => format!("{text}|"),
                Part::Token(id) => format!("{id}|"),
            };
            Ok(())
        };
        let allow = if control { Allow::All } else { Allow::Ordinary };
        let budget = Budget::for_text(text.len());
        specials.split(text, &allow, &budget, &mut each).unwrap();
        let chosen = std::mem::take(&mut out);
        let mut each = |part: Part| {
            out += &match part {
                Part::Text(text, _) => format!("{text}|"),
                Part::Token(id) => format!("{id}|"),
            };
            Ok(())
        };
        let may = |_, _, special: &Special| Ok(control || !special.control);
        let allow = Allow::Where(&may);
        specials.split(text, &allow, &budget, &mut each).unwrap();
        assert_eq!(out, chosen);
        out
    }

    #[test]
    fn earliest_then_longest() {
        let specials = specials(vec![
            special("<a>", 1, true),
            special("<a>b", 2, false),
            special("<", 3, false),
            special("<a>bcd", 4, true),
            special("", 5, true),
            special("<a>", 6, false),
        ]);
        assert_eq!(parts(&specials, "x<a>bc", true), "x|2|c|");
        assert_eq!(parts(&specials, "x<a>bcd", true), "x|4|");
        assert_eq!(parts(&specials, "x<a>bcd", false), "x|2|cd|");
        assert_eq!(parts(&specials, "x<a>", true), "x|1|");
        assert_eq!(parts(&specials, "x<a>", false), "x|3|a>|");
        assert_eq!(parts(&specials, "", true), "");
    }

    #[test]
    fn space_and_words_around() {
        let mut list = vec![
            special("<l>", 1, true),
            special("<r>", 2, true),
            special("w", 3, true),
        ];
        list[0].takes_left = true;
        list[1].takes_right = true;
        list[2].single_word = true;
        let specials = specials(list);
        assert_eq!(parts(&specials, "a  <l> b<r>\n c", true), "a|1| b|2|c|");
        assert_eq!(parts(&specials, "<r>  <l>", true), "2|1|");
        assert_eq!(parts(&specials, "w -w- sw", true), "3| -|3|- sw|");
    }

    #[test]
    fn tokens_across_blocks_are_found() {
        let long = "x".repeat(3000) + "y";
        let specials = specials(vec![special(&long, 1, true), special("xy", 2, false)]);
        for at in [0, 1, 2999, 3000, 3001, 40_000] {
            let before = "-".repeat(BLOCK - at);
            let text = format!("{before}{long}-xy");
            assert_eq!(parts(&specials, &text, true), format!("{before}|1|-|2|"));
            let shown = format!("{before}{}|2|-|2|", "x".repeat(2999));
            assert_eq!(parts(&specials, &text, false), shown);
        }
    }

    #[test]
    fn long_and_nested_tokens_cost_no_more() {
        let mut list: Vec<Special> = (1..=500)
            .map(|n| special(&"a".repeat(n), n as u32, n > 1))
            .collect();
        list.push(special(&("a".repeat(16_000) + "b"), 501, true));
        let specials = specials(list);
        let text = "a".repeat(100_000);
        let budget = Budget::for_text(text.len());
        let mut count = 0;
        let mut each = |_: Part| {
            count += 1;
            Ok(())
        };
        specials
            .split(&text, &Allow::Ordinary, &budget, &mut each)
            .unwrap();
        assert_eq!(count, 100_000);
        assert!(budget.spent() < 4 * 100_000, "{}", budget.spent());
    }
}
