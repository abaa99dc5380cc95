//! A list of texts in two allocations.

use std::fmt;
use std::ops::Index;

/// An array of texts, as vocabularies are: hundreds of thousands, a few bytes each. They lie end to
/// end in one allocation.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Strings {
    text: String,
    /// Where each text ends, and the next one starts.
    ends: Vec<u32>,
}

impl Strings {
    /// An array without texts.
    pub const fn new() -> Strings {
        Strings {
            text: String::new(),
            ends: Vec::new(),
        }
    }

    /// The texts that lie end to end in `bytes`. `ends` must not decrease, and end at its end.
    pub(super) fn from_parts(bytes: Vec<u8>, ends: Vec<u32>) -> Result<Strings, NotUtf8> {
        debug_assert!(ends.is_sorted());
        debug_assert_eq!(ends.last().map_or(0, |&end| end as usize), bytes.len());
        let bytes = match String::from_utf8(bytes) {
            Ok(text) if ends.iter().all(|&end| text.is_char_boundary(end as usize)) => {
                return Ok(Strings { text, ends });
            }
            Ok(text) => text.into_bytes(),
            Err(e) => e.into_bytes(),
        };
        let mut start = 0;
        for (index, &end) in ends.iter().enumerate() {
            if let Err(e) = std::str::from_utf8(&bytes[start..end as usize]) {
                let valid = e.valid_up_to();
                return Err(NotUtf8 {
                    index,
                    start,
                    valid,
                });
            }
            start = end as usize;
        }
        unreachable!("texts that are all valid are valid together")
    }

    /// Number of texts.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no texts.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The text of this index.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)? as usize;
        let start = match index {
            0 => 0,
            _ => self.ends[index - 1] as usize,
        };
        Some(&self.text[start..end])
    }

    /// The texts in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len()).map(|index| &self[index])
    }

    /// Bytes of all texts together.
    pub fn text_bytes(&self) -> usize {
        self.text.len()
    }
}

/// The first text of several that is not UTF-8.
pub(super) struct NotUtf8 {
    pub index: usize,
    /// Where it starts among all.
    pub start: usize,
    /// How many of its bytes are UTF-8.
    pub valid: usize,
}

impl Index<usize> for Strings {
    type Output = str;

    fn index(&self, index: usize) -> &str {
        self.get(index).expect("index of a text in range")
    }
}

/// Panics if the texts have 4 GiB or more together.
impl<S: AsRef<str>> FromIterator<S> for Strings {
    fn from_iter<I: IntoIterator<Item = S>>(texts: I) -> Strings {
        let mut strings = Strings::new();
        for text in texts {
            strings.text.push_str(text.as_ref());
            let end = u32::try_from(strings.text.len()).expect("texts below 4 GiB");
            strings.ends.push(end);
        }
        strings
    }
}

impl fmt::Debug for Strings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
