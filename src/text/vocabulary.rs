//! The tokens of a vocabulary: what each stands for, how the model spells it, and the way back.

use super::hash::Keyed;
use crate::error::{Result, fail, try_vec};

/// Longest text of a token, in bytes. Real ones stay under a thousand or two.
pub(super) const MAX_TOKEN_BYTES: usize = 16 << 10;

/// What a token is for; the numbers are those of `tokenizer.ggml.token_type`.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// A piece of text.
    Normal = 1,
    /// Stands for text that has no token.
    Unknown = 2,
    /// Structure, not text: begin, end, role markers.
    Control = 3,
    /// Text that is always one token.
    UserDefined = 4,
    /// Reserved, never produced.
    Unused = 5,
    /// One byte, spelled `<0x00>` to `<0xFF>`.
    Byte = 6,
}

impl TokenKind {
    pub(super) fn from_number(number: i64) -> Option<Self> {
        Some(match number {
            // 0 is "undefined", which some converters write for ordinary tokens.
            0 | 1 => TokenKind::Normal,
            2 => TokenKind::Unknown,
            3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            5 => TokenKind::Unused,
            6 => TokenKind::Byte,
            _ => return None,
        })
    }

    /// Whether text from outside must not become such a token.
    pub(super) fn is_control(self) -> bool {
        matches!(self, TokenKind::Control | TokenKind::Unknown)
    }
}

/// Byte strings, end to end in one allocation.
struct Pool {
    bytes: Vec<u8>,
    /// Where each string starts, and the end of the last.
    starts: Vec<u32>,
}

impl Pool {
    fn with_room(count: usize, total: usize) -> Result<Self> {
        let mut bytes = try_vec(total, 0u8, "texts of tokens")?;
        bytes.clear();
        let mut starts = try_vec(count + 1, 0u32, "texts of tokens")?;
        starts.truncate(1);
        Ok(Pool { bytes, starts })
    }

    fn push(&mut self, text: &[u8]) -> Result<()> {
        let room = self.bytes.try_reserve(text.len()).is_ok() && self.starts.try_reserve(1).is_ok();
        if !room {
            fail!(OutOfMemory, "tokenizer: no memory for the texts of tokens");
        }
        self.bytes.extend_from_slice(text);
        match u32::try_from(self.bytes.len()) {
            Ok(end) => self.starts.push(end),
            Err(_) => fail!(Unsupported, "tokenizer: tokens of 4 GiB and more"),
        }
        Ok(())
    }

    fn get(&self, index: u32) -> &[u8] {
        let index = index as usize;
        &self.bytes[self.starts[index] as usize..self.starts[index + 1] as usize]
    }
}

/// A token as a file describes it.
pub(super) struct Entry<'a> {
    /// The bytes that it stands for.
    pub text: &'a [u8],
    /// How the model spells it; not looked at where spelling is the text itself.
    pub spelled: &'a [u8],
    pub kind: TokenKind,
    /// Whether the model may arrive at this token by its spelling.
    pub reachable: bool,
}

/// Collects the tokens of a vocabulary.
pub(super) struct Builder {
    texts: Pool,
    spelled: Option<Pool>,
    kinds: Vec<TokenKind>,
    reachable: Vec<bool>,
}

impl Builder {
    /// Room for `count` tokens of `total` bytes. `spelled` if the model spells tokens otherwise than
    /// by the bytes that they stand for.
    pub fn new(count: usize, total: usize, spelled: bool) -> Result<Self> {
        if count >= 1 << 30 {
            fail!(Unsupported, "tokenizer: {count} tokens are too many");
        }
        let mut kinds = try_vec(count, TokenKind::Normal, "kinds of tokens")?;
        kinds.clear();
        let mut reachable = try_vec(count, false, "flags of tokens")?;
        reachable.clear();
        Ok(Builder {
            texts: Pool::with_room(count, total)?,
            spelled: match spelled {
                true => Some(Pool::with_room(count, total)?),
                false => None,
            },
            kinds,
            reachable,
        })
    }

    /// Adds the token of the next id.
    pub fn push(&mut self, entry: &Entry) -> Result<()> {
        self.texts.push(entry.text)?;
        if let Some(spelled) = &mut self.spelled {
            spelled.push(entry.spelled)?;
        }
        self.kinds.push(entry.kind);
        self.reachable.push(entry.reachable);
        Ok(())
    }

    /// The vocabulary. Of reachable tokens of one spelling the first counts, but ordinary ones
    /// before control tokens.
    pub fn finish(self) -> Result<Vocabulary> {
        let count = self.kinds.len();
        let slots = try_vec((count * 2).next_power_of_two(), 0, "table of tokens")?;
        let mut vocabulary = Vocabulary {
            texts: self.texts,
            spelled: self.spelled,
            kinds: self.kinds,
            slots,
            hasher: Keyed::new(),
            longest: 0,
        };
        for control in [false, true] {
            for (id, _) in self.reachable.iter().enumerate().filter(|(_, yes)| **yes) {
                if vocabulary.kinds[id].is_control() == control {
                    vocabulary.insert(id as u32);
                }
            }
        }
        Ok(vocabulary)
    }
}

/// Tokens by id, and ids by spelling.
pub(super) struct Vocabulary {
    texts: Pool,
    /// Where it is not the texts.
    spelled: Option<Pool>,
    kinds: Vec<TokenKind>,
    /// Open addressing over a power of two of slots: id + 1, or 0.
    slots: Vec<u32>,
    hasher: Keyed,
    /// Bytes of the longest spelling that can be found.
    longest: usize,
}

impl Vocabulary {
    fn insert(&mut self, id: u32) {
        let bytes = self.spelling(id);
        let length = bytes.len();
        let mut slot = self.hasher.bytes(bytes) as usize & (self.slots.len() - 1);
        while self.slots[slot] != 0 {
            if self.spelling(self.slots[slot] - 1) == bytes {
                return;
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        self.slots[slot] = id + 1;
        self.longest = self.longest.max(length);
    }

    /// The token with this spelling.
    pub fn find(&self, spelling: &[u8]) -> Option<u32> {
        if spelling.len() > self.longest {
            return None;
        }
        let mut slot = self.hasher.bytes(spelling) as usize & (self.slots.len() - 1);
        loop {
            let id = self.slots[slot].checked_sub(1)?;
            if self.spelling(id) == spelling {
                return Some(id);
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.kinds.len()
    }

    /// The bytes that a token stands for; it is known to exist.
    pub fn token(&self, id: u32) -> &[u8] {
        self.texts.get(id)
    }

    /// How the model spells a token that is known to exist.
    pub fn spelling(&self, id: u32) -> &[u8] {
        self.spelled.as_ref().unwrap_or(&self.texts).get(id)
    }

    /// Bytes of the longest spelling that [`find`](Self::find) can find.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// The kind of a token that is known to exist.
    pub fn kind(&self, id: u32) -> TokenKind {
        self.kinds[id as usize]
    }

    /// The kinds of all tokens.
    pub fn kinds(&self) -> &[TokenKind] {
        &self.kinds
    }

    /// The token of each byte, as `<0x00>` to `<0xFF>`, [`NONE`](super::bpe::NONE) if there is none.
    pub fn byte_tokens(&self) -> Box<[u32; 256]> {
        let mut tokens = Box::new([super::bpe::NONE; 256]);
        for (id, _) in self
            .kinds
            .iter()
            .enumerate()
            .filter(|(_, kind)| **kind == TokenKind::Byte)
        {
            let token = &mut tokens[usize::from(self.texts.get(id as u32)[0])];
            *token = (*token).min(id as u32);
        }
        tokens
    }
}

/// The byte that a text like `<0x0A>` stands for.
pub(super) fn spelled_byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let hexadecimal = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u8::from_str_radix(digits, 16).ok().filter(|_| hexadecimal)
}

/// The beginning of a text, for messages.
pub(super) fn shorten(text: &str) -> String {
    text.chars().take(60).collect()
}
