//! Some of a number of things in a row: the rows or columns of a matrix, channels, heads.

use std::ops::Range;

/// Ranges in ascending order, none of them empty, with something between each and the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pieces(Vec<Range<usize>>);

impl Pieces {
    /// These ranges, which are in ascending order: those that touch are one, and empty ones are none.
    pub fn new(ranges: impl IntoIterator<Item = Range<usize>>) -> Pieces {
        let mut pieces: Vec<Range<usize>> = Vec::new();
        for range in ranges {
            match pieces.last_mut() {
                _ if range.is_empty() => {}
                Some(last) if last.end == range.start => last.end = range.end,
                _ => pieces.push(range),
            }
        }
        Pieces(pieces)
    }

    /// How many there are in all ranges.
    pub fn len(&self) -> usize {
        self.0.iter().map(Range::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ranges.
    pub fn ranges(&self) -> &[Range<usize>] {
        &self.0
    }

    /// The range, if there is one only.
    pub fn single(&self) -> Option<Range<usize>> {
        match &self.0[..] {
            [range] => Some(range.clone()),
            _ => None,
        }
    }

    /// What belongs to them where each has `each` of it.
    pub fn times(&self, each: usize) -> Pieces {
        self.behind(0, each)
    }

    /// The same where what belongs to all begins at `start`.
    pub fn behind(&self, start: usize, each: usize) -> Pieces {
        let of = |range: &Range<usize>| start + range.start * each..start + range.end * each;
        Pieces::new(self.0.iter().map(of))
    }

    /// These and others behind them.
    pub fn and(self, others: Pieces) -> Pieces {
        Pieces::new(self.0.into_iter().chain(others.0))
    }

    /// Those in a range.
    pub fn within(&self, range: Range<usize>) -> Pieces {
        let inside = |own: &Range<usize>| own.start.max(range.start)..own.end.min(range.end);
        Pieces::new(self.0.iter().map(inside))
    }

    /// Copies those of `from` that these are, each with `each` elements, to `to`.
    pub fn take<T: Copy>(&self, each: usize, from: &[T], to: &mut [T]) {
        let mut at = 0;
        for range in self.times(each).0 {
            let end = at + range.len();
            to[at..end].copy_from_slice(&from[range]);
            at = end;
        }
    }

    /// Copies `from`, which are these, to where they are in `to`.
    pub fn put<T: Copy>(&self, each: usize, from: &[T], to: &mut [T]) {
        let mut at = 0;
        for range in self.times(each).0 {
            let end = at + range.len();
            to[range].copy_from_slice(&from[at..end]);
            at = end;
        }
    }
}

impl From<Range<usize>> for Pieces {
    fn from(range: Range<usize>) -> Pieces {
        Pieces::new([range])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_are_one() {
        let pieces = Pieces::new([0..2, 2..3, 5..5, 6..8]);
        assert_eq!(pieces.ranges(), [0..3, 6..8]);
        assert_eq!((pieces.len(), pieces.single()), (5, None));
        assert_eq!(pieces.behind(10, 4).ranges(), [10..22, 34..42]);
        assert_eq!(
            Pieces::from(0..6).and(pieces.behind(6, 1)).ranges(),
            [0..9, 12..14]
        );
        assert_eq!(Pieces::from(2..5).single(), Some(2..5));
        assert_eq!(
            Pieces::new([0..3, 4..9]).within(2..5).ranges(),
            [2..3, 4..5]
        );
        assert!(Pieces::from(0..3).within(3..9).is_empty());
    }

    #[test]
    fn what_is_taken_can_be_put_back() {
        let pieces = Pieces::new([1..2, 4..6]);
        let from: Vec<u32> = (0..18).collect();
        let mut taken = [0; 9];
        pieces.take(3, &from, &mut taken);
        assert_eq!(taken, [3, 4, 5, 12, 13, 14, 15, 16, 17]);
        let mut to = [99; 18];
        pieces.put(3, &taken, &mut to);
        assert_eq!(to[..7], [99, 99, 99, 3, 4, 5, 99]);
        assert_eq!(to[11..], [99, 12, 13, 14, 15, 16, 17]);
    }
}
