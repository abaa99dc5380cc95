//! The tokens of a file: metadata to checked tables.

use super::byte_level::Alphabet;
use super::hash::Keyed;
use crate::error::{Result, fail, try_vec};
use crate::format::{Array, Strings, Value};
use std::collections::HashMap;

/// The metadata of a model file, by key.
pub type Metadata = HashMap<String, Value>;

/// Longest text of a token, in bytes. Real ones stay under a thousand or two.
const MAX_TOKEN_BYTES: usize = 16 << 10;
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";

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
    fn from_number(number: i64) -> Option<Self> {
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
}

/// A string; None if the key is absent.
pub(super) fn string<'a>(metadata: &'a Metadata, key: &str) -> Result<Option<&'a str>> {
    match metadata.get(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => fail!(MissingKey, "metadata key {key} is not a string"),
    }
}

/// A boolean; None if the key is absent.
pub(super) fn boolean(metadata: &Metadata, key: &str) -> Result<Option<bool>> {
    match metadata.get(key) {
        None => Ok(None),
        Some(Value::Bool(value)) => Ok(Some(*value)),
        Some(_) => fail!(MissingKey, "metadata key {key} is not a boolean"),
    }
}

/// A token id below `n_vocab`; None if the key is absent or says so (-1 as a signed or an unsigned
/// 32-bit number).
pub(super) fn token_id(metadata: &Metadata, key: &str, n_vocab: usize) -> Result<Option<u32>> {
    let id = match metadata.get(key) {
        None | Some(Value::I64(-1)) => return Ok(None),
        Some(Value::U64(id)) if *id == u64::from(u32::MAX) => return Ok(None),
        Some(Value::U64(id)) => i128::from(*id),
        Some(Value::I64(id)) => i128::from(*id),
        Some(_) => fail!(MissingKey, "metadata key {key} is not an integer"),
    };
    match u32::try_from(id) {
        Ok(token) if (token as usize) < n_vocab => Ok(Some(token)),
        _ => fail!(
            FileCorrupt,
            "metadata key {key}: token {id} is not in the vocabulary of {n_vocab}"
        ),
    }
}

fn strings<'a>(metadata: &'a Metadata, key: &str) -> Result<&'a Strings> {
    static NONE: Strings = Strings::new();
    match metadata.get(key) {
        None => fail!(MissingKey, "metadata key {key} is missing"),
        Some(Value::Array(Array::String(list))) => Ok(list),
        // An empty array may have lost the type of its elements.
        Some(Value::Array(list)) if list.is_empty() => Ok(&NONE),
        Some(_) => fail!(MissingKey, "metadata key {key} is not an array of strings"),
    }
}

/// The kind of each token; all are normal if the file does not say.
fn kinds(metadata: &Metadata, n_vocab: usize) -> Result<Vec<TokenKind>> {
    let mut kinds = try_vec(n_vocab, TokenKind::Normal, TYPES)?;
    let array = match metadata.get(TYPES) {
        None => return Ok(kinds),
        Some(Value::Array(array @ (Array::I64(_) | Array::U64(_)))) => array,
        Some(_) => fail!(
            MissingKey,
            "metadata key {TYPES} is not an array of integers"
        ),
    };
    if array.len() != n_vocab {
        fail!(
            FileCorrupt,
            "metadata key {TYPES} has {} entries for {n_vocab} tokens",
            array.len()
        );
    }
    for (index, kind) in kinds.iter_mut().enumerate() {
        let number = match array {
            Array::I64(list) => list[index],
            Array::U64(list) => i64::try_from(list[index]).unwrap_or(i64::MAX),
            _ => 1,
        };
        *kind = match TokenKind::from_number(number) {
            Some(kind) => kind,
            None => fail!(
                FileCorrupt,
                "metadata key {TYPES}, entry {index}: there is no token type {number}"
            ),
        };
    }
    Ok(kinds)
}

/// Tokens as bytes, with the way back.
pub(super) struct Vocabulary {
    /// The bytes of all tokens, one after the other.
    bytes: Vec<u8>,
    /// Where each token starts in `bytes`, and the end of the last.
    starts: Vec<u32>,
    kinds: Vec<TokenKind>,
    /// Open addressing over a power of two of slots: id + 1, or 0.
    slots: Vec<u32>,
    hasher: Keyed,
}

impl Vocabulary {
    /// Reads and checks tokens and their types.
    pub fn new(metadata: &Metadata, alphabet: &Alphabet) -> Result<Self> {
        let tokens = strings(metadata, TOKENS)?;
        if tokens.is_empty() {
            fail!(FileCorrupt, "metadata key {TOKENS} has no tokens");
        }
        let total = tokens.text_bytes();
        if tokens.len() >= (1 << 30) || u32::try_from(total).is_err() {
            fail!(
                Unsupported,
                "metadata key {TOKENS}: {} tokens of {total} bytes are too many",
                tokens.len()
            );
        }
        let kinds = kinds(metadata, tokens.len())?;
        let slots = try_vec((tokens.len() * 2).next_power_of_two(), 0, TOKENS)?;
        let mut bytes = try_vec(total, 0u8, TOKENS)?;
        bytes.clear();
        let mut starts = try_vec(tokens.len() + 1, 0u32, TOKENS)?;
        starts.clear();
        let mut vocabulary = Vocabulary {
            bytes,
            starts,
            kinds,
            slots,
            hasher: Keyed::new(),
        };
        // Whether a piece of text or the result of a merge may be this token.
        let mut spelled = try_vec(tokens.len(), false, TOKENS)?;
        for (index, text) in tokens.iter().enumerate() {
            spelled[index] = vocabulary.push(index, text, alphabet)?;
        }
        vocabulary.starts.push(vocabulary.bytes.len() as u32);
        // Of tokens with the same bytes the first counts, but ordinary ones before control tokens.
        for control in [false, true] {
            for (id, _) in spelled.iter().enumerate().filter(|(_, spelled)| **spelled) {
                if vocabulary.is_special(id) == control {
                    vocabulary.insert(id as u32);
                }
            }
        }
        Ok(vocabulary)
    }

    /// Appends the bytes of token `index`. True if byte-level merging can arrive at it.
    fn push(&mut self, index: usize, text: &str, alphabet: &Alphabet) -> Result<bool> {
        if text.len() > MAX_TOKEN_BYTES {
            fail!(
                FileCorrupt,
                "metadata key {TOKENS}, entry {index}: a token of {} bytes, {MAX_TOKEN_BYTES} are allowed",
                text.len()
            );
        }
        self.starts.push(self.bytes.len() as u32);
        match self.kinds[index] {
            // Text in the alphabet stands for bytes. Files whose converter did not mark added tokens
            // have ordinary ones outside it; they mean their own text, as in the tokenizers library.
            TokenKind::Normal | TokenKind::Unused => {
                let spelled = alphabet.decode(text, &mut self.bytes);
                if !spelled {
                    self.bytes.extend_from_slice(text.as_bytes());
                }
                Ok(spelled && !text.is_empty())
            }
            TokenKind::Control | TokenKind::UserDefined | TokenKind::Unknown => {
                self.bytes.extend_from_slice(text.as_bytes());
                Ok(text.bytes().all(|byte| byte.is_ascii_graphic()) && !text.is_empty())
            }
            TokenKind::Byte => {
                let digits = text
                    .strip_prefix("<0x")
                    .and_then(|rest| rest.strip_suffix('>'))
                    .filter(|digits| digits.len() == 2 && !digits.starts_with('+'));
                let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
                match byte {
                    Some(byte) => self.bytes.push(byte),
                    None => fail!(
                        FileCorrupt,
                        "metadata key {TOKENS}, entry {index}: {:?} is not a byte token such as \"<0x0A>\"",
                        shorten(text)
                    ),
                }
                Ok(true)
            }
        }
    }

    fn is_special(&self, id: usize) -> bool {
        matches!(self.kinds[id], TokenKind::Control | TokenKind::Unknown)
    }

    fn insert(&mut self, id: u32) {
        let bytes = self.token(id);
        let mut slot = self.hasher.bytes(bytes) as usize & (self.slots.len() - 1);
        while self.slots[slot] != 0 {
            if self.token(self.slots[slot] - 1) == bytes {
                return;
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        self.slots[slot] = id + 1;
    }

    /// The token with these bytes.
    pub fn find(&self, bytes: &[u8]) -> Option<u32> {
        let mut slot = self.hasher.bytes(bytes) as usize & (self.slots.len() - 1);
        loop {
            let id = self.slots[slot].checked_sub(1)?;
            if self.token(id) == bytes {
                return Some(id);
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.kinds.len()
    }

    /// The bytes of a token that is known to exist.
    pub fn token(&self, id: u32) -> &[u8] {
        let id = id as usize;
        &self.bytes[self.starts[id] as usize..self.starts[id + 1] as usize]
    }

    /// The kind of a token that is known to exist.
    pub fn kind(&self, id: u32) -> TokenKind {
        self.kinds[id as usize]
    }
}

/// What a pair of neighbours becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Merge {
    /// Lower is done first.
    pub rank: u32,
    /// The token of both together.
    pub token: u32,
}

/// Merges by the ids of left and right neighbour.
pub(super) struct Merges(HashMap<u64, Merge, Keyed>);

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

impl Merges {
    /// Reads and checks the merges, each two texts of the alphabet with a space between. Of equal
    /// merges the first counts.
    pub fn new(metadata: &Metadata, alphabet: &Alphabet, vocabulary: &Vocabulary) -> Result<Self> {
        let list = strings(metadata, MERGES)?;
        if u32::try_from(list.len()).is_err() {
            fail!(Unsupported, "metadata key {MERGES}: {} merges", list.len());
        }
        let mut merges = HashMap::with_hasher(Keyed::new());
        if merges.try_reserve(list.len()).is_err() {
            fail!(
                OutOfMemory,
                "metadata key {MERGES}: no memory for {} merges",
                list.len()
            );
        }
        let mut bytes = Vec::new();
        for (index, text) in list.iter().enumerate() {
            let malformed = || -> Result<()> {
                fail!(
                    FileCorrupt,
                    "metadata key {MERGES}, entry {index}: {:?} is not two spelled tokens",
                    shorten(text)
                )
            };
            let Some((left, right)) = text.split_once(' ') else {
                malformed()?;
                continue;
            };
            bytes.clear();
            if text.len() > 2 * MAX_TOKEN_BYTES + 1 || !alphabet.decode(left, &mut bytes) {
                malformed()?;
            }
            let middle = bytes.len();
            if !alphabet.decode(right, &mut bytes) || middle == 0 || middle == bytes.len() {
                malformed()?;
            }
            let find = |bytes: &[u8], part: &str| -> Result<u32> {
                match vocabulary.find(bytes) {
                    Some(id) => Ok(id),
                    None => fail!(
                        FileCorrupt,
                        "metadata key {MERGES}, entry {index}: {part} of {:?} is not a token",
                        shorten(text)
                    ),
                }
            };
            let left = find(&bytes[..middle], "the left part")?;
            let right = find(&bytes[middle..], "the right part")?;
            let token = find(&bytes, "the result")?;
            let rank = index as u32;
            merges
                .entry(pair(left, right))
                .or_insert(Merge { rank, token });
        }
        Ok(Merges(merges))
    }

    /// What this pair becomes, if anything.
    pub fn get(&self, left: u32, right: u32) -> Option<Merge> {
        self.0.get(&pair(left, right)).copied()
    }
}

/// The beginning of a text, for messages.
fn shorten(text: &str) -> String {
    text.chars().take(60).collect()
}
