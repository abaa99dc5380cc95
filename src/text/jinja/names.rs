//! Values by name or key, found by a hash: of a conversation nobody knows how many keys it has.

use super::text::{Char, Text};
use super::value::Value;
use crate::budget::Budget;
use crate::error::Result;
use crate::text::hash::Keyed;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};

/// Values by name, in no order.
pub(super) type Names = HashMap<Box<str>, Value, Keyed>;

/// An empty list of names.
pub(super) fn names() -> Names {
    HashMap::with_hasher(Keyed::new())
}

/// Where the keys of a mapping are. Texts equal nothing but texts, and are found by a hash; of other
/// keys there are few.
pub(super) struct Index {
    hasher: Keyed,
    /// Open addressing over a power of two of slots: the entry's place + 1, or 0.
    slots: Vec<u32>,
    n_texts: usize,
    /// Entries whose keys are no texts.
    others: Vec<u32>,
}

impl Index {
    pub fn new() -> Index {
        Index {
            hasher: Keyed::new(),
            slots: vec![0; 16],
            n_texts: 0,
            others: Vec::new(),
        }
    }

    /// The index of entries whose keys differ.
    pub fn of(entries: &[(Value, Value)]) -> Index {
        let mut index = Index::new();
        for place in 0..entries.len() {
            index.add(entries, place);
        }
        index
    }

    fn hash(&self, chars: impl Iterator<Item = char>) -> usize {
        let mut hasher = self.hasher.build_hasher();
        for c in chars {
            hasher.write_u64(u64::from(c) + 1);
        }
        hasher.finish() as usize
    }

    /// Adds an entry whose key is not there yet.
    pub fn add(&mut self, entries: &[(Value, Value)], place: usize) {
        let Value::Str(text) = &entries[place].0 else {
            self.others.push(place as u32);
            return;
        };
        if 2 * (self.n_texts + 1) > self.slots.len() {
            let slots = vec![0; 2 * self.slots.len()];
            for known in std::mem::replace(&mut self.slots, slots) {
                if let Some(known) = known.checked_sub(1)
                    && let Value::Str(text) = &entries[known as usize].0
                {
                    self.fill(text, known);
                }
            }
        }
        self.n_texts += 1;
        self.fill(text, place as u32);
    }

    fn fill(&mut self, text: &Text, place: u32) {
        let mask = self.slots.len() - 1;
        let mut slot = self.hash(text.iter().map(|c| c.get())) & mask;
        while self.slots[slot] != 0 {
            slot = (slot + 1) & mask;
        }
        self.slots[slot] = place + 1;
    }

    fn find_text(
        &self,
        entries: &[(Value, Value)],
        chars: impl Iterator<Item = char>,
        is: impl Fn(&Text) -> bool,
    ) -> Option<usize> {
        let mask = self.slots.len() - 1;
        let mut slot = self.hash(chars) & mask;
        loop {
            let place = self.slots[slot].checked_sub(1)? as usize;
            if matches!(&entries[place].0, Value::Str(text) if is(text)) {
                return Some(place);
            }
            slot = (slot + 1) & mask;
        }
    }

    /// The place of a key. Pays for its work.
    pub fn find(
        &self,
        entries: &[(Value, Value)],
        key: &Value,
        budget: &Budget,
    ) -> Result<Option<usize>> {
        if let Value::Str(text) = key {
            budget.scan(text.len())?;
            let same = |known: &Text| known[..] == text[..];
            return Ok(self.find_text(entries, text.iter().map(|c: &Char| c.get()), same));
        }
        for place in &self.others {
            if entries[*place as usize].0.same(key, budget)? {
                return Ok(Some(*place as usize));
            }
        }
        Ok(None)
    }

    /// The place of a key that is a short text.
    pub fn find_str(&self, entries: &[(Value, Value)], key: &str) -> Option<usize> {
        self.find_text(entries, key.chars(), |known| known.is(key))
    }
}
