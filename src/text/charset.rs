//! Sets of characters by Unicode property.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, HirKind};

/// A set of characters.
pub(super) struct CharSet {
    /// Which of the first 128 characters are in it.
    ascii: [bool; 128],
    /// First and last characters of the ranges, rising.
    ranges: Vec<(char, char)>,
}

impl CharSet {
    /// The characters that a class like `\p{Mn}` or `[a-z]` matches. A pattern that is no class
    /// makes an empty set.
    pub fn new(class: &str) -> Self {
        let parsed = ParserBuilder::new().build().parse(class);
        let ranges: Vec<(char, char)> = match parsed.as_ref().map(|hir| hir.kind()) {
            Ok(HirKind::Class(Class::Unicode(class))) => class
                .iter()
                .map(|range| (range.start(), range.end()))
                .collect(),
            _ => Vec::new(),
        };
        debug_assert!(!ranges.is_empty(), "{class}");
        CharSet::of(ranges)
    }

    /// The characters of ranges, which are in order and do not overlap.
    pub fn of(ranges: Vec<(char, char)>) -> Self {
        let mut ascii = [false; 128];
        for (c, inside) in ascii.iter_mut().enumerate() {
            let c = char::from(c as u8);
            *inside = ranges
                .iter()
                .any(|(first, last)| (*first..=*last).contains(&c));
        }
        CharSet { ascii, ranges }
    }

    /// Whether the character is in the set.
    pub fn contains(&self, c: char) -> bool {
        if let Some(inside) = self.ascii.get(c as usize) {
            return *inside;
        }
        let after = self.ranges.partition_point(|(first, _)| *first <= c);
        after > 0 && c <= self.ranges[after - 1].1
    }
}

#[cfg(test)]
mod tests {
    use super::CharSet;

    #[test]
    fn members() {
        let marks = CharSet::new(r"\p{Mn}");
        assert!(marks.contains('\u{301}') && !marks.contains('e') && !marks.contains('\u{10FFFF}'));
        let spaces = CharSet::new(r"\s");
        assert!(
            spaces.contains('\u{3000}') && spaces.contains('\n') && !spaces.contains('\u{200B}')
        );
    }
}
