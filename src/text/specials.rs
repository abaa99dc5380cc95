//! Finds tokens that are recognized in the raw text before anything else happens to it.

use super::charset::CharSet;
use crate::error::Result;

/// Texts with their ids, sorted for prefix search.
pub(super) struct Specials {
    /// Sorted by text; one entry per text.
    entries: Vec<Special>,
    /// Entries whose text starts with a byte lower than the index.
    first: [u32; 257],
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

/// Where a special token was found.
struct Found<'a> {
    start: usize,
    end: usize,
    special: &'a Special,
}

impl Specials {
    /// Empty texts are left out; of equal texts the first counts.
    pub fn new(mut entries: Vec<Special>) -> Self {
        entries.retain(|special| !special.text.is_empty());
        entries.sort_by(|a, b| a.text.cmp(&b.text));
        entries.dedup_by(|later, kept| later.text == kept.text);
        let mut first = [0; 257];
        for (byte, count) in first.iter_mut().enumerate() {
            *count = entries.partition_point(|e| usize::from(e.text[0]) < byte) as u32;
        }
        let words = entries.iter().any(|special| special.single_word);
        Specials {
            words: words.then(|| CharSet::new(r"\w")),
            entries,
            first,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Gives the parts of `text` to `each`, in order. Special tokens count only where
    /// `may(start, end, special)` allows them; of those that overlap, the first, the longest of those that
    /// start at one place.
    pub fn split<'a>(
        &self,
        text: &'a str,
        may: &dyn Fn(usize, usize, &Special) -> bool,
        each: &mut dyn FnMut(Part<'a>) -> Result<()>,
    ) -> Result<()> {
        let mut done = 0;
        let mut from = 0;
        while let Some(Found {
            mut start,
            mut end,
            special,
        }) = self.find(text.as_bytes(), from, may)
        {
            from = end;
            if special.single_word && self.touches_word(text, start, end) {
                continue;
            }
            if start < done {
                continue;
            }
            if special.takes_left {
                start = text[..start].trim_end().len().max(done);
            }
            if special.takes_right {
                end = text.len() - text[end..].trim_start().len();
            }
            if done < start {
                each(Part::Text(&text[done..start], done))?;
            }
            each(Part::Token(special.id))?;
            done = end;
        }
        if done < text.len() {
            each(Part::Text(&text[done..], done))?;
        }
        Ok(())
    }

    /// Whether a character of a word stands before `start` or behind `end`.
    fn touches_word(&self, text: &str, start: usize, end: usize) -> bool {
        let before = text[..start].chars().next_back();
        let behind = text[end..].chars().next();
        let word = |c: char| self.words.as_ref().is_some_and(|words| words.contains(c));
        before.is_some_and(word) || behind.is_some_and(word)
    }

    /// The first special token at or behind `from` that `may(start, end, special)` allows, the longest of
    /// those that start there.
    fn find(
        &self,
        text: &[u8],
        from: usize,
        may: &dyn Fn(usize, usize, &Special) -> bool,
    ) -> Option<Found<'_>> {
        if self.entries.is_empty() {
            return None;
        }
        (from..text.len()).find_map(|start| {
            let byte = usize::from(text[start]);
            let (low, high) = (self.first[byte] as usize, self.first[byte + 1] as usize);
            if low == high {
                return None;
            }
            let special = self.longest(&text[start..], low, high, &|special| {
                may(start, start + special.text.len(), special)
            })?;
            let end = start + special.text.len();
            Some(Found {
                start,
                end,
                special,
            })
        })
    }

    /// The longest of the entries `low..high`, which share their first byte with `text`, that
    /// `text` starts with.
    fn longest(
        &self,
        text: &[u8],
        low: usize,
        high: usize,
        may: &dyn Fn(&Special) -> bool,
    ) -> Option<&Special> {
        let mut range = &self.entries[low..high];
        let mut best = None;
        let mut depth = 1;
        while let Some(shortest) = range.first() {
            if shortest.text.len() == depth {
                if may(shortest) {
                    best = Some(shortest);
                }
                range = &range[1..];
            }
            let Some(&byte) = text.get(depth) else { break };
            // All texts of the range are longer than `depth` and agree before it.
            range = &range[range.partition_point(|e| e.text[depth] < byte)..];
            range = &range[..range.partition_point(|e| e.text[depth] == byte)];
            depth += 1;
        }
        best
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

    fn parts(specials: &Specials, text: &str, control: bool) -> String {
        let mut out = String::new();
        let mut each = |part: Part| {
            out += &match part {
                Part::Text(text, _) => format!("{text}|"),
                Part::Token(id) => format!("{id}|"),
            };
            Ok(())
        };
        let may = |_, _, special: &Special| control || !special.control;
        specials.split(text, &may, &mut each).unwrap();
        out
    }

    #[test]
    fn earliest_then_longest() {
        let specials = Specials::new(vec![
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
        let specials = Specials::new(list);
        assert_eq!(parts(&specials, "a  <l> b<r>\n c", true), "a|1| b|2|c|");
        assert_eq!(parts(&specials, "<r>  <l>", true), "2|1|");
        assert_eq!(parts(&specials, "w -w- sw", true), "3| -|3|- sw|");
    }
}
