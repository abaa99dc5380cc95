//! Keyed hashing for the vocabulary's tables, several times faster on short keys than the standard
//! library's. The key is random per table, so a hostile vocabulary cannot aim at one bucket.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

const ODD: u64 = 0x9E37_79B9_7F4A_7C15;

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Makes hashers with one random key.
#[derive(Clone, Debug)]
pub(super) struct Keyed {
    key: u64,
}

impl Keyed {
    pub fn new() -> Self {
        Keyed {
            key: RandomState::new().hash_one(ODD) | 1,
        }
    }

    /// Hash of a byte string.
    pub fn bytes(&self, bytes: &[u8]) -> u64 {
        let mut state = self.key ^ bytes.len() as u64;
        let mut rest = bytes;
        while let Some((word, tail)) = rest.split_first_chunk::<8>() {
            state = fold(state ^ u64::from_le_bytes(*word), self.key ^ ODD);
            rest = tail;
        }
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        fold(state ^ u64::from_le_bytes(word), self.key ^ ODD)
    }
}

impl BuildHasher for Keyed {
    type Hasher = KeyedHasher;

    fn build_hasher(&self) -> KeyedHasher {
        KeyedHasher {
            state: self.key,
            key: self.key ^ ODD,
        }
    }
}

/// Hasher for keys that are one or a few integers.
pub(super) struct KeyedHasher {
    state: u64,
    key: u64,
}

impl Hasher for KeyedHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.state = fold(self.state ^ word, self.key);
    }

    fn finish(&self) -> u64 {
        self.state
    }
}
