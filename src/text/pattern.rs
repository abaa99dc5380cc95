//! What text is searched for when it is cut or changed.

use super::backtracking::Backtracking;
use super::charset::CharSet;
use super::splitter::Splitter;
use crate::budget::Budget;
use crate::error::{Result, fail};

/// Something to search for.
pub(super) enum Pattern {
    /// This text.
    Text(String),
    /// One character of the set.
    Character(CharSet),
    /// A regular expression that a table can follow.
    Table(Box<Splitter>),
    /// Any other regular expression.
    Backtracking(Box<Backtracking>),
    /// The white space at the end (`\s+$`, in linear time).
    TrailingSpace,
}

impl Pattern {
    /// A regular expression in the syntax of Oniguruma, where `^` and `$` are at lines, as far as
    /// the syntax of the fancy-regex crate has the same meaning. `name` is what holds it. Errors:
    /// `Unsupported`.
    pub fn regex(pattern: &str, name: &str, budget: &Budget) -> Result<Self> {
        if pattern == r"\s+$" {
            return Ok(Pattern::TrailingSpace);
        }
        if !has_possessive(pattern)
            && let Ok(splitter) = Splitter::new(pattern, budget)
        {
            return Ok(Pattern::Table(Box::new(splitter)));
        }
        match Backtracking::new(pattern) {
            Ok(compiled) => Ok(Pattern::Backtracking(Box::new(compiled))),
            Err(error) => {
                let error: String = error.chars().take(200).collect();
                let pattern: String = pattern.chars().take(100).collect();
                fail!(Unsupported, "{name}: pattern {pattern:?}: {error}")
            }
        }
    }

    /// Gives start and end of all matches in `text` to `each`, in order; they do not overlap.
    /// Errors: those of the budget and of `each`.
    pub fn find_all(
        &self,
        text: &str,
        budget: &Budget,
        each: &mut dyn FnMut(usize, usize) -> Result<()>,
    ) -> Result<()> {
        budget.scan(text.len())?;
        match self {
            Pattern::Text(pattern) if pattern.is_empty() => {}
            Pattern::Text(pattern) => {
                for (start, found) in text.match_indices(pattern.as_str()) {
                    each(start, start + found.len())?;
                }
            }
            Pattern::Character(set) => {
                for (start, c) in text.char_indices().filter(|(_, c)| set.contains(*c)) {
                    each(start, start + c.len_utf8())?;
                }
            }
            Pattern::Table(splitter) => splitter.find_all(text, budget, each)?,
            Pattern::Backtracking(pattern) => pattern.find_all(text, budget, each)?,
            Pattern::TrailingSpace => {
                let end = text.trim_end().len();
                if end < text.len() {
                    each(end, text.len())?;
                }
            }
        }
        Ok(())
    }
}

/// Whether the pattern has a repetition that gives nothing back (`a?+`, `a*+`, `a++`), which the
/// table would read as a repetition of a repetition.
fn has_possessive(pattern: &str) -> bool {
    let mut in_class = false;
    let mut before = ' ';
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => {
                chars.next();
            }
            '[' => in_class = true,
            ']' => in_class = false,
            '+' if !in_class && matches!(before, '?' | '*' | '+') => return true,
            _ => {}
        }
        before = if c == '\\' { ' ' } else { c };
    }
    false
}
