//! Finds many strings in a text at once: Aho and Corasick's automaton.
//!
//! It takes each byte of the text once, however long the strings are and however much they have in
//! common, which a hostile vocabulary decides. (The aho-corasick crate copies the strings that end at
//! a state into the state: for `a`, `aa`, `aaa` and so on that is the square of their number.)

use crate::budget::Budget;
use crate::error::{Result, fail};

/// No string ends at a node.
const NO_VALUE: u32 = u32::MAX;
/// Where the automaton is before the text, and where no string has begun.
pub(super) const ROOT: u32 = 0;
/// Most nodes, of 24 bytes each. The largest published vocabularies need about two million.
const MAX_NODES: usize = 8 << 20;

/// Strings with a number each. The nodes are the beginnings of the strings, shorter ones first, the
/// children of a node side by side in the order of their bytes.
pub(super) struct Automaton {
    nodes: Vec<Node>,
    /// The children of the root by their byte; [`ROOT`] if there is none.
    first: Box<[u32; 256]>,
}

struct Node {
    children: u32,
    /// The longest other beginning of a string that this one ends with.
    fallback: u32,
    value: u32,
    /// The longest string that this one ends with, besides itself; [`ROOT`] if there is none.
    shorter: u32,
    n_children: u16,
    length: u16,
    /// The byte that leads here.
    byte: u8,
}

impl Automaton {
    /// The automaton of `strings`; none may be empty. Of equal strings the last counts. Errors: those
    /// of the budget; `OutOfMemory`; `Unsupported` if they need too many nodes.
    pub fn new(strings: &mut [(&[u8], u32)], budget: &Budget) -> Result<Self> {
        let total: usize = strings.iter().map(|(text, _)| text.len()).sum();
        budget.work(total as u64 / 4)?;
        // Stable: equal strings stay in order.
        strings.sort_by(|a, b| a.0.cmp(b.0));
        let node = |byte, length| Node {
            children: 0,
            fallback: ROOT,
            value: NO_VALUE,
            shorter: ROOT,
            n_children: 0,
            length,
            byte,
        };
        let mut nodes = vec![node(0, 0)];
        // Nodes whose children are still to come: their strings.
        let mut open = vec![(0usize, strings.len())];
        let mut depth = 0;
        let mut level = 0..1;
        while !level.is_empty() {
            let mut next_open = Vec::new();
            let start = nodes.len();
            if depth >= usize::from(u16::MAX) {
                fail!(Unsupported, "tokenizer: a token of {depth} bytes and more");
            }
            for (index, (from, to)) in level.clone().zip(&open) {
                let mut rest = &strings[*from..*to];
                let mut at = *from;
                while rest.first().is_some_and(|(text, _)| text.len() == depth) {
                    nodes[index].value = rest[0].1;
                    rest = &rest[1..];
                    at += 1;
                }
                nodes[index].children = nodes.len() as u32;
                let count = nodes.len();
                for group in rest.chunk_by(|a, b| a.0[depth] == b.0[depth]) {
                    if nodes.len() == MAX_NODES {
                        fail!(
                            Unsupported,
                            "tokenizer: tokens of {total} bytes need more than {MAX_NODES} nodes"
                        );
                    }
                    if nodes.try_reserve(1).is_err() || next_open.try_reserve(1).is_err() {
                        fail!(
                            OutOfMemory,
                            "tokenizer: no memory for a tree of {total} bytes"
                        );
                    }
                    nodes.push(node(group[0].0[depth], depth as u16 + 1));
                    next_open.push((at, at + group.len()));
                    at += group.len();
                }
                nodes[index].n_children = (nodes.len() - count) as u16;
            }
            level = start..nodes.len();
            open = next_open;
            depth += 1;
        }
        let mut first = Box::new([ROOT; 256]);
        let root = &nodes[0];
        for child in root.children..root.children + u32::from(root.n_children) {
            first[usize::from(nodes[child as usize].byte)] = child;
        }
        let mut automaton = Automaton { nodes, first };
        automaton.link(budget)?;
        Ok(automaton)
    }

    /// Sets fallbacks. Those of shorter beginnings are set before.
    fn link(&mut self, budget: &Budget) -> Result<()> {
        for index in 0..self.nodes.len() {
            let node = &self.nodes[index];
            let (fallback, children) = (node.fallback, node.children);
            for child in children..children + u32::from(node.n_children) {
                let byte = self.nodes[child as usize].byte;
                let mut steps = 1;
                let to = match index {
                    0 => ROOT,
                    _ => self.step(fallback, byte, &mut steps),
                };
                let shorter = match self.nodes[to as usize].value {
                    NO_VALUE => self.nodes[to as usize].shorter,
                    _ => to,
                };
                let child = &mut self.nodes[child as usize];
                child.fallback = to;
                child.shorter = shorter;
                budget.work(steps)?;
            }
        }
        Ok(())
    }

    /// The state behind one more byte. Adds to `steps` what it took: for a whole text no more than
    /// two a byte.
    #[inline]
    pub fn step(&self, state: u32, byte: u8, steps: &mut u64) -> u32 {
        let mut state = state;
        *steps += 1;
        while state != ROOT {
            if let Some(child) = self.child(state, byte) {
                return child;
            }
            state = self.nodes[state as usize].fallback;
            *steps += 1;
        }
        self.first[usize::from(byte)]
    }

    fn child(&self, state: u32, byte: u8) -> Option<u32> {
        let node = &self.nodes[state as usize];
        let from = node.children as usize;
        let children = &self.nodes[from..from + usize::from(node.n_children)];
        let found = match children {
            [] => return None,
            [only] => (only.byte == byte).then_some(0)?,
            _ => children.binary_search_by_key(&byte, |n| n.byte).ok()?,
        };
        Some((from + found) as u32)
    }

    /// Bytes at the end of the text so far that a string begins with.
    pub fn length(&self, state: u32) -> usize {
        usize::from(self.nodes[state as usize].length)
    }

    /// The longest string that the text so far ends with, as the state behind it alone; [`ROOT`] if
    /// there is none.
    pub fn longest(&self, state: u32) -> u32 {
        let node = &self.nodes[state as usize];
        match node.value {
            NO_VALUE => node.shorter,
            _ => state,
        }
    }

    /// The next shorter string that the text so far ends with, behind one that
    /// [`longest`](Self::longest) gave.
    pub fn shorter(&self, state: u32) -> u32 {
        self.nodes[state as usize].shorter
    }

    /// The number of the string that leads to this state from the root.
    pub fn value(&self, state: u32) -> u32 {
        self.nodes[state as usize].value
    }

    /// Number of states.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn automaton(strings: &[&[u8]]) -> Automaton {
        let mut strings: Vec<(&[u8], u32)> = strings.iter().copied().zip(0..).collect();
        Automaton::new(&mut strings, &Budget::for_vocabulary(0)).unwrap()
    }

    /// End, length and number of all occurrences.
    fn occurrences(automaton: &Automaton, text: &[u8]) -> Vec<(usize, usize, u32)> {
        let mut state = ROOT;
        let mut steps = 0;
        let mut found = Vec::new();
        for (index, byte) in text.iter().enumerate() {
            state = automaton.step(state, *byte, &mut steps);
            let mut at = automaton.longest(state);
            while at != ROOT {
                found.push((index + 1, automaton.length(at), automaton.value(at)));
                at = automaton.shorter(at);
            }
        }
        assert!(steps <= 2 * text.len() as u64);
        found
    }

    #[test]
    fn finds_all() {
        let strings: [&[u8]; 5] = [b"b", b"abc", b"a", b"bcd", b"a"];
        let found = occurrences(&automaton(&strings), b"abcdab");
        assert_eq!(
            found,
            [
                (1, 1, 4),
                (2, 1, 0),
                (3, 3, 1),
                (4, 3, 3),
                (5, 1, 4),
                (6, 1, 0)
            ]
        );
        assert_eq!(occurrences(&automaton(&[]), b"abc"), []);
    }

    #[test]
    fn random_strings_are_found_where_they_are() {
        let mut state = 7u64;
        let mut random = |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize % below
        };
        for _ in 0..500 {
            let mut word = |most: usize| -> Vec<u8> {
                (0..1 + random(most)).map(|_| b"abc"[random(3)]).collect()
            };
            let mut strings: Vec<Vec<u8>> = (0..8).map(|_| word(6)).collect();
            strings.sort();
            strings.dedup();
            let text = word(60);
            let list: Vec<&[u8]> = strings.iter().map(Vec::as_slice).collect();
            let mut expected = Vec::new();
            for end in 1..=text.len() {
                for length in (1..=end).rev() {
                    let part = &text[end - length..end];
                    if let Some(number) = list.iter().position(|s| *s == part) {
                        expected.push((end, length, number as u32));
                    }
                }
            }
            assert_eq!(occurrences(&automaton(&list), &text), expected);
        }
    }

    #[test]
    fn long_strings_cost_no_more_than_short_ones() {
        let mut long = vec![b'a'; 16_000];
        long.push(b'b');
        let automaton = automaton(&[&long, b"ab"]);
        let text = vec![b'a'; 100_000];
        // Asserts that there are few steps.
        assert_eq!(occurrences(&automaton, &text), []);
    }
}
