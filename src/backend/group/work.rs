//! What a rank is about to do, so that others see whether they do the same.

use crate::backend::Want;
use crate::engine::sampling::Sampling;

/// A description of a piece of work: names and values in an order that is the same on all ranks. It describes itself, so that ranks of
/// other versions can say what differs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Work {
    bytes: Vec<u8>,
}

/// A value is said, or is only a number that stands for much.
const SAID: u8 = 0;
const HASH: u8 = 1;

impl Work {
    /// Something with a name, such as a prompt.
    pub fn new(what: &str) -> Work {
        Work::default().said("the work", what)
    }

    /// With a value that messages show.
    pub fn said(mut self, name: &str, value: impl std::fmt::Display) -> Work {
        self.entry(SAID, name, value.to_string().as_bytes());
        self
    }

    /// With a value that stands for much.
    pub fn hash(mut self, name: &str, value: u64) -> Work {
        self.entry(HASH, name, &value.to_le_bytes());
        self
    }

    /// With a row: these tokens behind a context, and what is wanted of them.
    pub fn row(self, context: (usize, u64), tokens: &[u32], want: &Want) -> Work {
        let work = self
            .said("the position", context.0)
            .hash("the context", context.1)
            .said("the number of tokens", tokens.len());
        let tokens = tokens.iter().fold(0, |hash, token| follow(hash, *token));
        let work = work.hash("the tokens", tokens);
        match want {
            Want::Logits => work.said("what is wanted", "logits"),
            Want::Evaluated | Want::Drafted { .. } => work.said("what is wanted", "nothing"),
            Want::Choices { sampling, .. } => work
                .said("what is wanted", "a choice")
                .hash("the sampling", of_sampling(sampling)),
            Want::Verified { drafts, sampling } => work
                .said("what is wanted", format!("{drafts} drafts"))
                .hash("the sampling", of_sampling(sampling)),
        }
    }

    fn entry(&mut self, kind: u8, name: &str, value: &[u8]) {
        self.bytes.push(kind);
        for text in [name.as_bytes(), value] {
            self.bytes.extend((text.len() as u32).to_le_bytes());
            self.bytes.extend(text);
        }
    }

    /// As it is sent.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What differs between rank 0, which does this, and another one that is described so; nothing if they do the same.
    pub(super) fn differs(&self, rank: usize, theirs: &[u8]) -> Option<String> {
        if self.bytes == theirs {
            return None;
        }
        let (mut own, mut other) = (&self.bytes[..], theirs);
        let mut row = 0;
        loop {
            let (a, b) = match (next(&mut own), next(&mut other)) {
                (Some(a), Some(b)) if a.1 == b.1 => (a, b),
                _ => return Some(format!("rank {rank} describes its work in another way")),
            };
            let (kind, name, value) = a;
            row += usize::from(name == "the position");
            if value == b.2 {
                continue;
            }
            let of = match row {
                0 | 1 => String::new(),
                row => format!(" of row {}", row - 1),
            };
            let text = String::from_utf8_lossy;
            return Some(match kind {
                SAID => format!(
                    "{name}{of} is {} on rank 0 and {} on rank {rank}",
                    text(value),
                    text(b.2)
                ),
                _ => format!("{name}{of} on rank 0 and on rank {rank} are not the same"),
            });
        }
    }
}

/// The next entry: its kind, name and value.
fn next<'a>(bytes: &mut &'a [u8]) -> Option<(u8, &'a str, &'a [u8])> {
    let (kind, mut rest) = bytes.split_first()?;
    let mut text = || {
        let (len, behind) = rest.split_first_chunk::<4>()?;
        let (text, behind) = behind.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        rest = behind;
        Some(text)
    };
    let (name, value) = (text()?, text()?);
    *bytes = rest;
    Some((*kind, std::str::from_utf8(name).ok()?, value))
}

/// What stands for a context with a token behind it.
pub fn follow(context: u64, token: u32) -> u64 {
    mix(context ^ u64::from(token).wrapping_add(0x9e37_79b9_7f4a_7c15))
}

/// Mixes the bits of a number (the finalizer of SplitMix64), so that it is another one for every other.
fn mix(mut n: u64) -> u64 {
    n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

/// What stands for how tokens are chosen. What is reported with a choice is each rank's own.
fn of_sampling(s: &Sampling) -> u64 {
    let numbers = [
        u64::from(s.temperature.to_bits()),
        u64::from(s.top_k),
        u64::from(s.top_p.to_bits()),
        u64::from(s.min_p.to_bits()),
        u64::from(s.typical_p.to_bits()),
        u64::from(s.penalty_window),
        u64::from(s.repeat_penalty.to_bits()),
        u64::from(s.presence_penalty.to_bits()),
        u64::from(s.frequency_penalty.to_bits()),
        u64::from(s.dry.multiplier.to_bits()),
        u64::from(s.dry.base.to_bits()),
        u64::from(s.dry.allowed_length),
        u64::from(s.dry.window),
        s.seed,
    ];
    numbers
        .into_iter()
        .fold(0, |hash, n| mix(hash ^ n).rotate_left(1))
}

/// What stands for the tokens of a session, behind each of its positions.
#[derive(Clone, Debug, Default)]
pub struct History(Vec<u64>);

impl History {
    /// What stands for the first `len` tokens.
    pub fn at(&self, len: usize) -> u64 {
        match len {
            0 => 0,
            len => self.0.get(len - 1).copied().unwrap_or(u64::MAX),
        }
    }

    /// Room for so many more. Errors: `OutOfMemory`.
    pub fn reserve(&mut self, tokens: usize) -> crate::Result<()> {
        if self.0.try_reserve(tokens).is_err() {
            crate::error::fail!(OutOfMemory, "what stands for {tokens} tokens");
        }
        Ok(())
    }

    /// These follow.
    pub fn append(&mut self, tokens: &[u32]) {
        for token in tokens {
            let last = self.at(self.0.len());
            self.0.push(follow(last, *token));
        }
    }

    /// Only so many are left.
    pub fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }
}
