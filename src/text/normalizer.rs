//! What happens to text before it is cut into pieces.

use super::charset::CharSet;
use super::charsmap::Charsmap;
use super::pattern::Pattern;
use crate::budget::{Budget, Output};
use crate::error::Result;
use std::ops::Deref;
use unicode_normalization::{
    IsNormalized, UnicodeNormalization, is_nfc_quick, is_nfd_quick, is_nfkc_quick, is_nfkd_quick,
};
use unicode_segmentation::UnicodeSegmentation;

/// Stands for a space in the spelling of many vocabularies.
pub(super) const SPACE: &str = "\u{2581}";

/// One step of normalization.
pub(super) enum Step {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
    Lowercase,
    /// Leaves out the characters of the set.
    Remove(CharSet),
    /// White space at the start or the end goes.
    Strip {
        left: bool,
        right: bool,
    },
    /// This goes before text that is not empty.
    Prepend(String),
    Replace {
        pattern: Pattern,
        with: String,
    },
    /// What BERT does first: control characters go, white space becomes spaces, and each Chinese
    /// character stands between spaces.
    Bert(Bert),
    /// Clean-up of SentencePiece's older models.
    Nmt,
    /// A precompiled table, as the tokenizers library applies it: to each grapheme if it is short,
    /// else to each character, by the shortest text of the table that it starts with.
    Graphemes(Charsmap),
    /// Everything that SentencePiece does, as it does it.
    SentencePiece(SentencePiece),
}

/// Settings of [`Step::Bert`].
pub(super) struct Bert {
    pub clean: bool,
    pub chinese: bool,
    /// `\p{C}` of Unicode 8, whose tables the tokenizers library has, without unassigned characters.
    pub control: CharSet,
}

/// Settings of [`Step::SentencePiece`].
pub(super) struct SentencePiece {
    pub charsmap: Option<Charsmap>,
    pub add_space_prefix: bool,
    /// Runs of spaces become one, those at the start and the end go.
    pub remove_extra_spaces: bool,
    /// The space goes behind the text instead.
    pub space_is_suffix: bool,
}

/// Steps in order.
#[derive(Default)]
pub(super) struct Normalizer {
    pub steps: Vec<Step>,
}

impl Normalizer {
    /// The text after all steps. Errors: those of the budget, which has to pay for every step and
    /// every text; `OutOfMemory`; what a pattern gives.
    pub fn apply<'a, 'b>(&self, text: &'a str, budget: &'b Budget) -> Result<Normal<'a, 'b>> {
        let mut normal = Normal::Same(text);
        for step in &self.steps {
            budget.scan(normal.len())?;
            if let Some(changed) = step.apply(&normal, budget)? {
                normal = Normal::Changed(changed);
            }
        }
        Ok(normal)
    }
}

/// A text after normalization. The memory of a changed one is the budget's.
pub(super) enum Normal<'a, 'b> {
    Same(&'a str),
    Changed(Output<'b>),
}

impl Deref for Normal<'_, '_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Normal::Same(text) => text,
            Normal::Changed(text) => text.as_str(),
        }
    }
}

fn collect<'b>(
    chars: impl Iterator<Item = char>,
    room: usize,
    budget: &'b Budget,
) -> Result<Option<Output<'b>>> {
    let mut out = Output::with_room(budget, room)?;
    for c in chars {
        out.push_char(c)?;
    }
    Ok(Some(out))
}

impl Step {
    /// The changed text; None if it stays as it is.
    fn apply<'b>(&self, text: &str, budget: &'b Budget) -> Result<Option<Output<'b>>> {
        let room = text.len();
        let normal = match self {
            Step::Nfc => is_nfc_quick(text.chars()),
            Step::Nfd => is_nfd_quick(text.chars()),
            Step::Nfkc => is_nfkc_quick(text.chars()),
            Step::Nfkd => is_nfkd_quick(text.chars()),
            _ => IsNormalized::No,
        };
        if normal == IsNormalized::Yes {
            return Ok(None);
        }
        match self {
            Step::Nfc => collect(text.nfc(), room, budget),
            Step::Nfd => collect(text.nfd(), room, budget),
            Step::Nfkc => collect(text.nfkc(), room, budget),
            Step::Nfkd => collect(text.nfkd(), room, budget),
            Step::Lowercase => collect(text.chars().flat_map(char::to_lowercase), room, budget),
            Step::Remove(set) => {
                if !text.chars().any(|c| set.contains(c)) {
                    return Ok(None);
                }
                collect(text.chars().filter(|c| !set.contains(*c)), room, budget)
            }
            Step::Strip { left, right } => {
                let mut rest = text;
                if *left {
                    rest = rest.trim_start();
                }
                if *right {
                    rest = rest.trim_end();
                }
                if rest.len() == text.len() {
                    return Ok(None);
                }
                collect(rest.chars(), rest.len(), budget)
            }
            Step::Prepend(_) if text.is_empty() => Ok(None),
            Step::Prepend(prefix) => {
                let mut out = Output::with_room(budget, prefix.len() + room)?;
                out.push(prefix)?;
                out.push(text)?;
                Ok(Some(out))
            }
            Step::Replace { pattern, with } => replace(text, pattern, with, budget),
            Step::Bert(bert) => bert.apply(text, budget),
            Step::Nmt => collect(text.chars().filter_map(nmt), room, budget),
            Step::Graphemes(map) => graphemes(map, text, budget),
            Step::SentencePiece(settings) => settings.apply(text, budget).map(Some),
        }
    }
}

fn replace<'b>(
    text: &str,
    pattern: &Pattern,
    with: &str,
    budget: &'b Budget,
) -> Result<Option<Output<'b>>> {
    let mut out = Output::with_room(budget, 0)?;
    let mut from = 0;
    pattern.find_all(text, budget, &mut |start, end| {
        out.push(&text[from..start])?;
        from = end;
        out.push(with)
    })?;
    if from == 0 && out.as_str().is_empty() {
        return Ok(None);
    }
    out.push(&text[from..])?;
    Ok(Some(out))
}

fn graphemes<'b>(map: &Charsmap, text: &str, budget: &'b Budget) -> Result<Option<Output<'b>>> {
    let mut out = Output::with_room(budget, text.len())?;
    for grapheme in text.graphemes(true) {
        if grapheme.len() < 6
            && let Some(with) = map.shortest(grapheme, budget)?
        {
            out.push(with)?;
            continue;
        }
        for (start, c) in grapheme.char_indices() {
            let part = &grapheme[start..start + c.len_utf8()];
            out.push(map.shortest(part, budget)?.unwrap_or(part))?;
        }
    }
    Ok(Some(out))
}

/// What becomes of a character in the clean-up of SentencePiece's older models.
fn nmt(c: char) -> Option<char> {
    match c as u32 {
        0x01..=0x08 | 0x0B | 0x0E..=0x1F | 0x7F | 0x8F | 0x9F => None,
        0x09
        | 0x0A
        | 0x0C
        | 0x0D
        | 0x1680
        | 0x200B..=0x200F
        | 0x2028
        | 0x2029
        | 0x2581
        | 0xFEFF
        | 0xFFFD => Some(' '),
        _ => Some(c),
    }
}

/// The blocks whose characters are words of their own to BERT.
pub(super) fn is_chinese(c: char) -> bool {
    matches!(c as u32,
        0x4E00..=0x9FFF | 0x3400..=0x4DBF | 0x2_0000..=0x2_A6DF | 0x2_A700..=0x2_B73F
        | 0x2_B740..=0x2_B81F | 0x2_B920..=0x2_CEAF | 0xF900..=0xFAFF | 0x2_F800..=0x2_FA1F)
}

impl Bert {
    /// Settings with the set of control characters.
    pub fn new(clean: bool, chinese: bool) -> Self {
        Bert {
            clean,
            chinese,
            control: CharSet::new(r"[\p{Cc}\p{Co}[\p{Cf}&&\p{Age=8.0}]]"),
        }
    }

    fn apply<'b>(&self, text: &str, budget: &'b Budget) -> Result<Option<Output<'b>>> {
        let mut out = Output::with_room(budget, text.len())?;
        let mut buffer = [0; 4];
        for c in text.chars() {
            if self.clean {
                let space = matches!(c, '\t' | '\n' | '\r');
                if !space && (matches!(c, '\0' | '\u{FFFD}') || self.control.contains(c)) {
                    continue;
                }
                if space || c.is_whitespace() {
                    out.push(" ")?;
                    continue;
                }
            }
            let part = c.encode_utf8(&mut buffer);
            if self.chinese && is_chinese(c) {
                out.push(" ")?;
                out.push(part)?;
                out.push(" ")?;
            } else {
                out.push(part)?;
            }
        }
        Ok(Some(out))
    }
}

impl SentencePiece {
    /// What the text starts with after the table: bytes, and what they become.
    fn first<'a>(&'a self, text: &'a str, budget: &Budget) -> Result<(usize, &'a str)> {
        let mapped = match &self.charsmap {
            Some(map) => map.longest(text, budget)?,
            None => None,
        };
        Ok(mapped.unwrap_or_else(|| {
            let bytes = text.chars().next().map_or(0, char::len_utf8);
            (bytes, &text[..bytes])
        }))
    }

    fn apply<'b>(&self, text: &str, budget: &'b Budget) -> Result<Output<'b>> {
        // Most texts have a space in six bytes, which becomes three.
        let mut out = Output::with_room(budget, text.len() + text.len() / 2)?;
        let mut rest = text;
        if self.remove_extra_spaces {
            while !rest.is_empty() {
                let (bytes, part) = self.first(rest, budget)?;
                if part != " " {
                    break;
                }
                rest = &rest[bytes..];
            }
        }
        if rest.is_empty() {
            return Ok(out);
        }
        if self.add_space_prefix && !self.space_is_suffix {
            out.push(SPACE)?;
        }
        let mut after_space = self.remove_extra_spaces;
        while !rest.is_empty() {
            let (bytes, mut part) = self.first(rest, budget)?;
            rest = &rest[bytes..];
            if after_space {
                part = part.trim_start_matches(' ');
            }
            if part.is_empty() {
                continue;
            }
            after_space = self.remove_extra_spaces && part.ends_with(' ');
            for (index, word) in part.split(' ').enumerate() {
                if index > 0 {
                    out.push(SPACE)?;
                }
                out.push(word)?;
            }
        }
        if self.remove_extra_spaces {
            out.truncate(out.as_str().trim_end_matches(SPACE).len());
        }
        if self.add_space_prefix && self.space_is_suffix {
            out.push(SPACE)?;
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(step: Step, text: &str) -> String {
        let normalizer = Normalizer { steps: vec![step] };
        let budget = Budget::for_text(text.len());
        normalizer.apply(text, &budget).unwrap().to_string()
    }

    fn sentencepiece(prefix: bool, remove: bool, suffix: bool) -> Step {
        Step::SentencePiece(SentencePiece {
            charsmap: None,
            add_space_prefix: prefix,
            remove_extra_spaces: remove,
            space_is_suffix: suffix,
        })
    }

    #[test]
    fn spaces_of_sentencepiece() {
        assert_eq!(
            apply(sentencepiece(true, false, false), " a  b "),
            "▁▁a▁▁b▁"
        );
        assert_eq!(apply(sentencepiece(true, true, false), "  a  b "), "▁a▁b");
        assert_eq!(apply(sentencepiece(true, true, true), "  a  b "), "a▁b▁");
        assert_eq!(apply(sentencepiece(false, false, false), "a b"), "a▁b");
        assert_eq!(apply(sentencepiece(true, true, false), "   "), "");
        assert_eq!(apply(sentencepiece(true, false, false), ""), "");
    }

    #[test]
    fn bert() {
        let step = Step::Bert(Bert::new(true, true));
        assert_eq!(apply(step, "a\u{200B}\tb\u{3000}中\0"), "a b  中 ");
    }
}
