//! Finds tokens that are recognized in the raw text before anything else happens to it.

/// Texts with their ids, sorted for prefix search.
pub(super) struct Specials {
    /// Sorted by text; one entry per text.
    entries: Vec<Special>,
    /// Entries whose text starts with a byte lower than the index.
    first: [u32; 257],
}

/// One of them.
pub(super) struct Special {
    pub text: Box<[u8]>,
    pub id: u32,
    pub control: bool,
}

/// Where a special token was found.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub start: usize,
    pub end: usize,
    pub id: u32,
}

impl Specials {
    /// From (text, id, is control). Empty texts are left out; of equal texts the first counts.
    pub fn new<'a>(tokens: impl Iterator<Item = (&'a [u8], u32, bool)>) -> Self {
        let mut entries: Vec<Special> = tokens
            .filter(|(text, ..)| !text.is_empty())
            .map(|(text, id, control)| Special {
                text: text.into(),
                id,
                control,
            })
            .collect();
        entries.sort_by(|a, b| a.text.cmp(&b.text));
        entries.dedup_by(|later, kept| later.text == kept.text);
        let mut first = [0; 257];
        for (byte, count) in first.iter_mut().enumerate() {
            *count = entries.partition_point(|e| usize::from(e.text[0]) < byte) as u32;
        }
        Specials { entries, first }
    }

    /// The first special token at or behind `from` that `may(start, special)` allows, the longest of
    /// those that start there.
    pub fn find(
        &self,
        text: &[u8],
        from: usize,
        may: &dyn Fn(usize, &Special) -> bool,
    ) -> Option<Found> {
        if self.entries.is_empty() {
            return None;
        }
        (from..text.len()).find_map(|start| {
            let byte = usize::from(text[start]);
            let (low, high) = (self.first[byte] as usize, self.first[byte + 1] as usize);
            if low == high {
                return None;
            }
            self.longest(&text[start..], low, high, &|special| may(start, special))
                .map(|special| Found {
                    start,
                    end: start + special.text.len(),
                    id: special.id,
                })
        })
    }

    /// The longest of the entries `low..high`, which share their first byte with `text`, that
    /// `text` starts with.
    fn longest(
        &self,
        text: &[u8],
        low: usize,
        high: usize,
        may: &dyn Fn(&Special) -> bool,
    ) -> Option<&Special> {
        let mut range = &self.entries[low..high];
        let mut best = None;
        let mut depth = 1;
        while let Some(shortest) = range.first() {
            if shortest.text.len() == depth {
                if may(shortest) {
                    best = Some(shortest);
                }
                range = &range[1..];
            }
            let Some(&byte) = text.get(depth) else { break };
            // All texts of the range are longer than `depth` and agree before it.
            range = &range[range.partition_point(|e| e.text[depth] < byte)..];
            range = &range[..range.partition_point(|e| e.text[depth] == byte)];
            depth += 1;
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(start: usize, end: usize, id: u32) -> Option<Found> {
        Some(Found { start, end, id })
    }

    #[test]
    fn earliest_then_longest() {
        let list: [(&[u8], u32, bool); 6] = [
            (b"<a>", 1, true),
            (b"<a>b", 2, false),
            (b"<", 3, false),
            (b"<a>bcd", 4, true),
            (b"", 5, true),
            (b"<a>", 6, false),
        ];
        let specials = Specials::new(list.into_iter());
        let find = |text: &[u8], from, control| {
            specials.find(text, from, &|_, special| control || !special.control)
        };
        assert_eq!(find(b"x<a>bc", 0, true), found(1, 5, 2));
        assert_eq!(find(b"x<a>bcd", 0, true), found(1, 7, 4));
        assert_eq!(find(b"x<a>bcd", 0, false), found(1, 5, 2));
        assert_eq!(find(b"x<a>", 0, true), found(1, 4, 1));
        assert_eq!(find(b"x<a>", 0, false), found(1, 2, 3));
        assert_eq!(find(b"x<a>", 2, true), None);
        assert_eq!(find(b"", 0, true), None);
    }
}
