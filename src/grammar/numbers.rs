//! Keeps the numbers of JSON answers to what programs can read.
//!
//! JSON sets no limit to the digits of a number, and a schema seldom does, but readers fail on
//! `1e9999` or round a number of 30 digits. A model that has begun to write digits may also not
//! come to an end.

use super::GrammarVocabulary;

/// Digits before the point. Such numbers are exact in double precision.
const MAX_WHOLE: u8 = 15;
/// Digits behind the point.
const MAX_FRACTION: u8 = 17;
/// Digits of the exponent.
const MAX_EXPONENT: u8 = 2;

/// Follows the text of a JSON value, as far as it takes to know where in a number it is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Numbers {
    part: Part,
    /// Of the part.
    digits: u8,
    in_string: bool,
    /// Behind a backslash.
    escaped: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Part {
    #[default]
    Outside,
    Whole,
    Fraction,
    Exponent,
}

impl Numbers {
    /// Follows the bytes of a token.
    pub fn follow(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.step(*byte);
        }
    }

    fn step(&mut self, byte: u8) {
        if self.in_string {
            self.in_string = byte != b'"' || self.escaped;
            self.escaped = byte == b'\\' && !self.escaped;
            return;
        }
        let part = match (byte, self.part) {
            (b'0'..=b'9', part) => {
                self.digits = self.digits.saturating_add(1);
                if part == Part::Outside {
                    self.digits = 1;
                    self.part = Part::Whole;
                }
                return;
            }
            (b'+' | b'-', Part::Exponent) => return,
            (b'-', Part::Outside) => Part::Whole,
            (b'.', Part::Whole) => Part::Fraction,
            (b'e' | b'E', Part::Whole | Part::Fraction) => Part::Exponent,
            _ => Part::Outside,
        };
        self.in_string = byte == b'"';
        self.part = part;
        self.digits = 0;
    }

    fn is_readable(&self) -> bool {
        let limit = match self.part {
            Part::Outside => return true,
            Part::Whole => MAX_WHOLE,
            Part::Fraction => MAX_FRACTION,
            Part::Exponent => MAX_EXPONENT,
        };
        self.digits <= limit
    }

    /// Takes tokens from a mask that would make the present number too long, unless nothing else is
    /// allowed: a schema may ask for such numbers.
    pub fn restrict(&self, vocabulary: &GrammarVocabulary, words: &mut [u32]) {
        if self.part == Part::Outside {
            return;
        }
        let is_allowed = |words: &[u32], id: u32| words[id as usize / 32] >> (id % 32) & 1 == 1;
        let is_long = |id: u32| {
            let mut after = *self;
            let mut bytes = vocabulary.trie().token(id).iter();
            bytes.any(|byte| {
                after.step(*byte);
                !after.is_readable()
            })
        };
        let long = vocabulary.number_parts().iter().copied();
        let long = long.filter(|id| is_allowed(words, *id) && is_long(*id));
        let long: Vec<u32> = long.collect();
        for id in &long {
            words[*id as usize / 32] &= !(1 << (id % 32));
        }
        if words.iter().all(|w| *w == 0) {
            for id in &long {
                words[*id as usize / 32] |= 1 << (id % 32);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(text: &str) -> Numbers {
        let mut numbers = Numbers::default();
        numbers.follow(text.as_bytes());
        numbers
    }

    #[test]
    fn parts_of_numbers_are_told_apart() {
        for (text, part, digits) in [
            ("", Part::Outside, 0),
            ("[1, 23", Part::Whole, 2),
            ("[1, -", Part::Whole, 0),
            ("[1, -45.6", Part::Fraction, 1),
            ("2.75e-10", Part::Exponent, 2),
            ("5E", Part::Exponent, 0),
            ("[12]", Part::Outside, 0),
            (r#"{"12\"34"#, Part::Outside, 0),
            (r#"{"a\\": 34"#, Part::Whole, 2),
        ] {
            let numbers = after(text);
            assert_eq!((numbers.part, numbers.digits), (part, digits), "{text}");
        }
    }

    #[test]
    fn long_numbers_are_told() {
        assert!(after("123456789012345").is_readable());
        assert!(!after("1234567890123456").is_readable());
        assert!(after("1.12345678901234567e10").is_readable());
        assert!(!after("1e100").is_readable());
        assert!(after("[1e10, \"1234567890123456789\"").is_readable());
    }
}
