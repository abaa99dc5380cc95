//! WordPiece: a word is cut from its start, each time at the longest token that fits.

use super::model::push_all;
use super::vocabulary::Vocabulary;
use crate::budget::Budget;
use crate::error::{Result, fail};

/// How words are spelled in the vocabulary.
pub(super) struct WordPiece {
    /// Goes before the first token of a word.
    first: String,
    /// Goes before every other token of a word.
    next: String,
    /// What a word becomes that cannot be cut into tokens.
    unknown: u32,
    /// A longer word is unknown.
    max_characters: usize,
}

impl WordPiece {
    /// A model that spells the beginning of a word with `first`, what follows with `next`.
    pub fn new(first: &str, next: &str, unknown: u32, max_characters: usize) -> Self {
        WordPiece {
            first: first.to_string(),
            next: next.to_string(),
            unknown,
            max_characters,
        }
    }

    /// Appends the tokens of a word to `out`, which are the unknown one if the word cannot be cut.
    /// Errors: those of the budget; `OutOfMemory`.
    pub fn encode(
        &self,
        vocabulary: &Vocabulary,
        word: &[u8],
        budget: &Budget,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        if super::bpe::characters(word)
            .nth(self.max_characters)
            .is_some()
        {
            return push_all(out, &[self.unknown]);
        }
        let before = out.len();
        let mut spelled = Vec::new();
        let room = self.first.len().max(self.next.len()) + word.len();
        if spelled.try_reserve_exact(room).is_err() {
            fail!(OutOfMemory, "no memory for a word of {room} bytes");
        }
        let mut rest = word;
        while !rest.is_empty() {
            let affix = match rest.len() == word.len() {
                true => &self.first,
                false => &self.next,
            };
            let longest = vocabulary.longest().saturating_sub(affix.len());
            let ends = (1..=rest.len().min(longest)).rev();
            // Only ends of characters: the byte behind is not one that continues a character.
            let ends = ends.filter(|end| rest.get(*end).is_none_or(|byte| byte & 0xC0 != 0x80));
            let mut found = None;
            for end in ends {
                budget.scan(affix.len() + end)?;
                spelled.clear();
                spelled.extend_from_slice(affix.as_bytes());
                spelled.extend_from_slice(&rest[..end]);
                let ordinary = |token: &u32| !vocabulary.kind(*token).is_control();
                if let Some(token) = vocabulary.find(&spelled).filter(ordinary) {
                    found = Some((token, end));
                    break;
                }
            }
            let Some((token, end)) = found else {
                out.truncate(before);
                return push_all(out, &[self.unknown]);
            };
            push_all(out, &[token])?;
            rest = &rest[end..];
        }
        Ok(())
    }
}

/// Puts a word where it belongs in English text: no space before most punctuation marks and what
/// follows an apostrophe.
pub(super) fn clean_up(word: &str) -> String {
    const CHANGES: [(&str, &str); 11] = [
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" do not", " don't"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ];
    CHANGES
        .iter()
        .fold(word.to_string(), |word, (from, to)| word.replace(from, to))
}
