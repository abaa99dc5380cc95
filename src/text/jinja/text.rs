//! Strings whose characters know where they come from.
//!
//! Each character carries the place that its text was written at. Nothing that a template does to a
//! string (cut, strip, split, join, replace, convert) loses that, and nothing that it can ask (equality,
//! length, search) sees it.

use crate::budget::{Budget, Hold};
use crate::error::{Result, fail};
use std::cmp::Ordering;
use std::ops::Deref;
use std::rc::Rc;

/// Who wrote a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The template or the vocabulary.
    Template,
    /// A message whose role is `assistant`.
    Assistant,
    /// Anything else that the caller passed.
    Caller,
    /// The role of a message, if it is a plain word.
    Role,
}

/// A character and its origin in the two highest bits. Equal if the characters are.
#[derive(Clone, Copy)]
pub(super) struct Char(u32);

const CODE_BITS: u32 = 30;
const CODE: u32 = (1 << CODE_BITS) - 1;

impl Char {
    pub fn new(c: char, origin: Origin) -> Char {
        Char(u32::from(c) | (origin as u32) << CODE_BITS)
    }

    pub fn get(self) -> char {
        char::from_u32(self.0 & CODE).unwrap_or(char::REPLACEMENT_CHARACTER)
    }

    pub fn origin(self) -> Origin {
        match self.0 >> CODE_BITS {
            0 => Origin::Template,
            1 => Origin::Assistant,
            2 => Origin::Caller,
            _ => Origin::Role,
        }
    }

    /// Another character of the same origin.
    pub fn with(self, c: char) -> Char {
        Char(u32::from(c) | self.0 & !CODE)
    }

    pub fn is(self, c: char) -> bool {
        self.0 & CODE == u32::from(c)
    }

    /// What Python's `str.isspace` says.
    pub fn is_space(self) -> bool {
        let c = self.get();
        c.is_whitespace() || matches!(c, '\x1c'..='\x1f')
    }
}

impl PartialEq for Char {
    fn eq(&self, other: &Char) -> bool {
        self.0 & CODE == other.0 & CODE
    }
}

impl Eq for Char {}

impl PartialOrd for Char {
    fn partial_cmp(&self, other: &Char) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Char {
    fn cmp(&self, other: &Char) -> Ordering {
        (self.0 & CODE).cmp(&(other.0 & CODE))
    }
}

/// An immutable string. Copies share it.
#[derive(Clone)]
pub(super) struct Text {
    buffer: Rc<Buffer>,
    /// Safe in HTML, see [`markup`](super::markup).
    markup: bool,
}

struct Buffer {
    chars: Vec<Char>,
    _hold: Hold,
}

impl Deref for Text {
    type Target = [Char];

    fn deref(&self) -> &[Char] {
        &self.buffer.chars
    }
}

impl Text {
    /// A string of the template or of this library.
    pub fn new(budget: &Rc<Budget>, text: &str) -> Result<Text> {
        Text::of(budget, text, Origin::Template)
    }

    /// A string of that origin.
    pub fn of(budget: &Rc<Budget>, text: &str, origin: Origin) -> Result<Text> {
        let mut builder = Builder::new(budget)?;
        builder.str(text, origin)?;
        Ok(builder.finish())
    }

    /// A copy of these characters.
    pub fn copy(budget: &Rc<Budget>, chars: &[Char]) -> Result<Text> {
        let mut builder = Builder::new(budget)?;
        builder.extend(chars)?;
        Ok(builder.finish())
    }

    /// Whether it is known to be safe in HTML.
    pub fn is_markup(&self) -> bool {
        self.markup
    }

    /// The same, known to be safe in HTML.
    pub fn as_markup(&self) -> Text {
        Text {
            buffer: self.buffer.clone(),
            markup: true,
        }
    }

    /// Whether this is that text.
    pub fn is(&self, text: &str) -> bool {
        equals(self, text)
    }
}

/// Whether `chars` spell `text`.
pub(super) fn equals(chars: &[Char], text: &str) -> bool {
    chars.len() <= text.len() && chars.iter().map(|c| c.get()).eq(text.chars())
}

/// As a Rust string, for names, numbers and messages.
pub(super) fn to_string(chars: &[Char]) -> String {
    chars.iter().map(|c| c.get()).collect()
}

/// Where `needle` starts in `chars`, at or behind `from`. Pays for its work.
pub(super) fn find(
    budget: &Budget,
    chars: &[Char],
    needle: &[Char],
    from: usize,
) -> Result<Option<usize>> {
    let Some(last) = chars.len().checked_sub(needle.len()) else {
        return Ok(None);
    };
    let mut looked = 0;
    for start in from..=last {
        let window = &chars[start..start + needle.len()];
        let same = window
            .iter()
            .zip(needle)
            .take_while(|(a, b)| a == b)
            .count();
        if same == needle.len() {
            budget.scan(looked)?;
            return Ok(Some(start));
        }
        looked += same + 1;
        if looked > 1 << 12 {
            budget.scan(looked)?;
            looked = 0;
        }
    }
    budget.scan(looked)?;
    Ok(None)
}

/// The last place where `needle` starts in `chars`. Pays for its work.
pub(super) fn find_last(budget: &Budget, chars: &[Char], needle: &[Char]) -> Result<Option<usize>> {
    let Some(last) = chars.len().checked_sub(needle.len()) else {
        return Ok(None);
    };
    for start in (0..=last).rev() {
        let window = &chars[start..start + needle.len()];
        let same = window
            .iter()
            .zip(needle)
            .take_while(|(a, b)| a == b)
            .count();
        if same == needle.len() {
            return Ok(Some(start));
        }
        if same > 16 || start % 16 == 0 {
            budget.scan(same)?;
        }
    }
    Ok(None)
}

/// A string in the making.
pub(super) struct Builder {
    chars: Vec<Char>,
    hold: Hold,
}

/// What a string takes beside its characters.
const OVERHEAD: usize = 64;

impl Builder {
    pub fn new(budget: &Rc<Budget>) -> Result<Builder> {
        Ok(Builder {
            chars: Vec::new(),
            hold: budget.hold(OVERHEAD)?,
        })
    }

    pub fn chars(&self) -> &[Char] {
        &self.chars
    }

    fn reserve(&mut self, n: usize) -> Result<()> {
        self.hold.budget().scan(n)?;
        let (length, capacity) = (self.chars.len(), self.chars.capacity());
        if capacity - length < n {
            let wanted = (length + n).max(2 * capacity);
            self.hold.grow((wanted - capacity) * size_of::<Char>())?;
            if self.chars.try_reserve_exact(wanted - length).is_err() {
                fail!(OutOfMemory, "no memory for a text of {wanted} characters");
            }
        }
        Ok(())
    }

    pub fn extend(&mut self, chars: &[Char]) -> Result<()> {
        self.reserve(chars.len())?;
        self.chars.extend_from_slice(chars);
        Ok(())
    }

    pub fn push(&mut self, c: Char) -> Result<()> {
        self.extend(&[c])
    }

    /// `n` times the same character.
    pub fn fill(&mut self, c: Char, n: usize) -> Result<()> {
        self.reserve(n)?;
        self.chars.resize(self.chars.len() + n, c);
        Ok(())
    }

    /// Text of that origin.
    pub fn str(&mut self, text: &str, origin: Origin) -> Result<()> {
        self.reserve(text.len())?;
        self.chars
            .extend(text.chars().map(|c| Char::new(c, origin)));
        Ok(())
    }

    /// Text of the template.
    pub fn plain(&mut self, text: &str) -> Result<()> {
        self.str(text, Origin::Template)
    }

    pub fn finish(self) -> Text {
        let buffer = Buffer {
            chars: self.chars,
            _hold: self.hold,
        };
        Text {
            buffer: Rc::new(buffer),
            markup: false,
        }
    }
}
