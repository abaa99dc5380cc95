//! A prefix tree over byte strings that never changes.

use crate::error::{Result, fail};

/// No string ends at a node.
const NO_VALUE: u32 = u32::MAX;

/// Strings with a number each. The children of a node lie side by side, in the order of their bytes.
pub(super) struct Trie {
    nodes: Vec<Node>,
    /// The children of the root by their byte; 0 if there is none.
    first: Box<[u32; 256]>,
}

struct Node {
    /// The byte that leads here.
    byte: u8,
    n_children: u16,
    children: u32,
    value: u32,
}

impl Trie {
    /// The tree of `strings`; none may be empty. Of equal strings the last counts. Errors:
    /// `OutOfMemory`; `Unsupported` if there are more than 2^31 bytes.
    pub fn new(strings: &mut Vec<(&[u8], u32)>) -> Result<Self> {
        // Stable: equal strings stay in order.
        strings.sort_by(|a, b| a.0.cmp(b.0));
        let total: usize = strings.iter().map(|(text, _)| text.len()).sum();
        if total > 1 << 31 {
            fail!(Unsupported, "tokenizer: tokens of {total} bytes");
        }
        let mut nodes = vec![Node {
            byte: 0,
            n_children: 0,
            children: 0,
            value: NO_VALUE,
        }];
        // Nodes whose children are still to come: their strings.
        let mut open = vec![(0usize, strings.len())];
        let mut depth = 0;
        let mut level = 0..1;
        while !level.is_empty() {
            let mut next_open = Vec::new();
            let start = nodes.len();
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
                    if nodes.try_reserve(1).is_err() || next_open.try_reserve(1).is_err() {
                        fail!(
                            OutOfMemory,
                            "tokenizer: no memory for a tree of {total} bytes"
                        );
                    }
                    nodes.push(Node {
                        byte: group[0].0[depth],
                        n_children: 0,
                        children: 0,
                        value: NO_VALUE,
                    });
                    next_open.push((at, at + group.len()));
                    at += group.len();
                }
                nodes[index].n_children = (nodes.len() - count) as u16;
            }
            level = start..nodes.len();
            open = next_open;
            depth += 1;
        }
        let mut first = Box::new([0; 256]);
        let root = &nodes[0];
        for child in root.children..root.children + u32::from(root.n_children) {
            first[usize::from(nodes[child as usize].byte)] = child;
        }
        Ok(Trie { nodes, first })
    }

    /// Gives every string that `text` starts with to `each`, shortest first: its bytes and number.
    pub fn prefixes(&self, text: &[u8], each: &mut dyn FnMut(usize, u32)) {
        let Some(byte) = text.first() else { return };
        let mut index = self.first[usize::from(*byte)] as usize;
        let mut depth = 1;
        while index != 0 {
            let node = &self.nodes[index];
            if node.value != NO_VALUE {
                each(depth, node.value);
            }
            let Some(byte) = text.get(depth) else { return };
            let children = node.children as usize;
            let children = children..children + usize::from(node.n_children);
            index = match self.nodes[children.clone()].binary_search_by_key(byte, |n| n.byte) {
                Ok(place) => children.start + place,
                Err(_) => 0,
            };
            depth += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_all_prefixes() {
        let mut strings: Vec<(&[u8], u32)> =
            vec![(b"b", 1), (b"abc", 2), (b"a", 3), (b"abd", 4), (b"a", 5)];
        let trie = Trie::new(&mut strings).unwrap();
        let found = |text: &[u8]| {
            let mut found = Vec::new();
            trie.prefixes(text, &mut |length, value| found.push((length, value)));
            found
        };
        assert_eq!(found(b"abcd"), [(1, 5), (3, 2)]);
        assert_eq!(found(b"abd"), [(1, 5), (3, 4)]);
        assert_eq!(found(b"bab"), [(1, 1)]);
        assert_eq!(found(b"c"), []);
        assert_eq!(found(b""), []);
    }
}
