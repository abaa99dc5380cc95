//! The precompiled normalization of SentencePiece: a table of texts and what replaces them.
//!
//! The table is a 32-bit little-endian size in bytes, a double array of so many bytes (32-bit units,
//! little-endian), and the replacements, each ending with a zero byte. A unit of the double array
//! holds the label of the step that leads to it in bits 0 to 7 and bit 31, whether a text ends there in
//! bit 8, and the offset to its children in bits 10 to 30, which counts in steps of 256 if bit 9 is
//! set. The unit of a text's end holds the place of its replacement in bits 0 to 30.

use crate::budget::Budget;
use crate::error::{Result, fail, try_vec};

/// Texts and their replacements.
pub(super) struct Charsmap {
    units: Vec<u32>,
    replacements: String,
}

impl Charsmap {
    /// Reads and checks a table; `name` is what holds it, for messages. Errors: `FileCorrupt`,
    /// `OutOfMemory`.
    pub fn new(bytes: &[u8], name: &str) -> Result<Self> {
        let parts = bytes.split_first_chunk::<4>().and_then(|(size, rest)| {
            let size = u32::from_le_bytes(*size) as usize;
            size.is_multiple_of(4)
                .then(|| rest.split_at_checked(size))?
        });
        let Some((array, replacements)) = parts else {
            fail!(
                FileCorrupt,
                "{name}: a table of {} bytes is cut off",
                bytes.len()
            );
        };
        let mut units = try_vec(array.len() / 4, 0u32, name)?;
        for (unit, bytes) in units.iter_mut().zip(array.chunks_exact(4)) {
            *unit = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        let Ok(replacements) = str::from_utf8(replacements) else {
            fail!(FileCorrupt, "{name}: the replacements are not UTF-8");
        };
        if !replacements.is_empty() && !replacements.ends_with('\0') {
            fail!(FileCorrupt, "{name}: the last replacement is cut off");
        }
        Ok(Charsmap {
            units,
            replacements: replacements.to_string(),
        })
    }

    /// The texts of the table that `text` starts with, shortest first: bytes and where the
    /// replacement starts. `each` says whether to go on.
    fn prefixes(
        &self,
        text: &str,
        budget: &Budget,
        each: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<()> {
        let offset = |unit: u32| (unit >> 10) << ((unit & 1 << 9) >> 6);
        let unit = |at: u32| self.units.get(at as usize).copied();
        let Some(root) = unit(0) else {
            return Ok(());
        };
        let mut at = offset(root);
        for (index, byte) in text.bytes().enumerate() {
            budget.work(1)?;
            at ^= u32::from(byte);
            let Some(here) = unit(at).filter(|unit| unit & 0x8000_00FF == u32::from(byte)) else {
                break;
            };
            if byte == 0 {
                break;
            }
            at ^= offset(here);
            if here >> 8 & 1 == 1 {
                let Some(value) = unit(at) else { break };
                let start = (value & 0x7FFF_FFFF) as usize;
                // A place inside a character or behind the end is ignored.
                if self.replacements.is_char_boundary(start) && !each(index + 1, start) {
                    break;
                }
            }
        }
        Ok(())
    }

    /// The replacement that starts at a place.
    fn replacement(&self, start: usize, budget: &Budget) -> Result<&str> {
        let rest = self.replacements.get(start..).unwrap_or_default();
        let end = rest.find('\0').unwrap_or(rest.len());
        budget.scan(end)?;
        Ok(&rest[..end])
    }

    /// What replaces the longest text of the table that `text` starts with, and its bytes.
    /// Errors: those of the budget.
    pub fn longest(&self, text: &str, budget: &Budget) -> Result<Option<(usize, &str)>> {
        let mut found = None;
        self.prefixes(text, budget, &mut |length, start| {
            if text.is_char_boundary(length) {
                found = Some((length, start));
            }
            true
        })?;
        match found {
            Some((length, start)) => Ok(Some((length, self.replacement(start, budget)?))),
            None => Ok(None),
        }
    }

    /// What replaces the shortest text of the table that `text` starts with.
    /// Errors: those of the budget.
    pub fn shortest(&self, text: &str, budget: &Budget) -> Result<Option<&str>> {
        let mut found = None;
        self.prefixes(text, budget, &mut |_, start| {
            found = Some(start);
            false
        })?;
        found
            .map(|start| self.replacement(start, budget))
            .transpose()
    }
}

/// The bytes that a base64 text stands for.
pub(crate) fn base64(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    let mut bits = 0u32;
    for (index, c) in text.bytes().enumerate() {
        let value = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        // Each character but the first of four completes a byte.
        if index % 4 > 0 {
            bytes.push((bits >> (6 - 2 * (index % 4))) as u8);
        }
    }
    (text.len() % 4 != 1).then_some(bytes)
}

#[cfg(test)]
mod tests {
    #[test]
    fn base64() {
        assert_eq!(super::base64("AQIDBA==").unwrap(), [1, 2, 3, 4]);
        assert_eq!(super::base64("/+8=").unwrap(), [0xFF, 0xEF]);
        assert!(super::base64("").unwrap().is_empty());
        assert!(super::base64("A").is_none() && super::base64("A*==").is_none());
    }
}
