//! Which blocks of a piece of memory are free: a binary tree of buddies. Knows offsets only, and
//! never touches the memory itself.

/// Bytes of the smallest block.
pub(super) const MIN_BLOCK: usize = 64;

/// The tree over `1 << levels` smallest blocks. All bytes of it 0 is a tree whose memory is free, so
/// fresh pages of the system need no initialization.
///
/// Node 1 is the whole, and the halves of node `i` are `2 * i` and `2 * i + 1`. A node of order `k`
/// covers `1 << k` blocks and has the value `k + 1 - longest`, where `1 << (longest - 1)` blocks are
/// the largest free piece in it, and `longest` is 0 if there is none.
pub(super) struct Buddies<'a> {
    tree: &'a mut [u8],
    levels: u32,
}

/// Bytes of the tree of a piece of memory of `1 << levels` smallest blocks.
pub(super) const fn tree_bytes(levels: u32) -> usize {
    2 << levels
}

/// The order of the block for a request, if any can hold it.
fn order(size: usize) -> Option<u32> {
    let blocks = size.max(1).div_ceil(MIN_BLOCK);
    Some(blocks.checked_next_power_of_two()?.trailing_zeros())
}

/// Bytes that a request takes.
pub(super) fn block_bytes(size: usize) -> usize {
    order(size).map_or(usize::MAX, |order| MIN_BLOCK << order)
}

impl<'a> Buddies<'a> {
    /// Panics unless the tree has [`tree_bytes`].
    pub(super) fn new(tree: &'a mut [u8], levels: u32) -> Buddies<'a> {
        assert_eq!(tree.len(), tree_bytes(levels));
        Buddies { tree, levels }
    }

    fn longest(&self, node: usize, order: u32) -> u32 {
        order + 1 - u32::from(self.tree[node])
    }

    /// The offset of a free block of at least `size` bytes, which is taken. It is a multiple of its
    /// size rounded up to a power of two.
    pub(super) fn take(&mut self, size: usize) -> Option<usize> {
        let wanted = order(size).filter(|order| *order <= self.levels)?;
        if self.longest(1, self.levels) <= wanted {
            return None;
        }
        let mut node = 1;
        for order in (wanted..self.levels).rev() {
            // The half that fits best, so that large pieces stay whole.
            let (left, right) = (2 * node, 2 * node + 1);
            let (in_left, in_right) = (self.longest(left, order), self.longest(right, order));
            let left_fits = in_left > wanted;
            let right_is_better = in_right > wanted && in_right < in_left;
            node = if left_fits && !right_is_better {
                left
            } else {
                right
            };
        }
        self.tree[node] = wanted as u8 + 1;
        self.update(node, wanted);
        let index = node - (1 << (self.levels - wanted));
        Some((index << wanted) * MIN_BLOCK)
    }

    /// Gives back what `take` gave for this size.
    pub(super) fn give_back(&mut self, offset: usize, size: usize) {
        let Some(order) = order(size).filter(|order| *order <= self.levels) else {
            return;
        };
        let node = (1 << (self.levels - order)) + ((offset / MIN_BLOCK) >> order);
        debug_assert_eq!(self.tree[node], order as u8 + 1);
        self.tree[node] = 0;
        self.update(node, order);
    }

    /// Brings the nodes above a changed one up to date.
    fn update(&mut self, mut node: usize, mut order: u32) {
        while node > 1 {
            let (left, right) = (node & !1, node | 1);
            let longest = self.longest(left, order).max(self.longest(right, order));
            let both_free = self.tree[left] == 0 && self.tree[right] == 0;
            node /= 2;
            order += 1;
            self.tree[node] = if both_free {
                0
            } else {
                (order + 1 - longest) as u8
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEVELS: u32 = 7;
    const BYTES: usize = MIN_BLOCK << LEVELS;

    #[test]
    fn blocks_are_aligned_apart_and_merge_again() {
        let mut tree = vec![0; tree_bytes(LEVELS)];
        let mut buddies = Buddies::new(&mut tree, LEVELS);
        let mut held: Vec<(usize, usize)> = Vec::new();
        let mut random = 1u32;
        for round in 0..20_000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let choice = random >> 8;
            if choice.is_multiple_of(2) && !held.is_empty() {
                let (offset, size) = held.swap_remove(choice as usize / 2 % held.len());
                buddies.give_back(offset, size);
                continue;
            }
            let size = 1 + choice as usize % 700;
            let Some(offset) = buddies.take(size) else {
                assert!(!held.is_empty(), "round {round}: {size} bytes");
                continue;
            };
            let taken = block_bytes(size);
            assert!(taken >= size && offset % taken == 0 && offset + taken <= BYTES);
            for &(other, its) in &held {
                let apart = offset + taken <= other || other + block_bytes(its) <= offset;
                assert!(apart, "{size} bytes at {offset}, {its} at {other}");
            }
            held.push((offset, size));
        }
        for (offset, size) in held {
            buddies.give_back(offset, size);
        }
        assert!(tree.iter().all(|&value| value == 0));
    }

    #[test]
    fn everything_can_be_taken_and_nothing_more() {
        let mut tree = vec![0; tree_bytes(LEVELS)];
        let mut buddies = Buddies::new(&mut tree, LEVELS);
        assert_eq!(buddies.take(BYTES + 1), None);
        assert_eq!(buddies.take(usize::MAX), None);
        assert_eq!(buddies.take(BYTES), Some(0));
        assert_eq!(buddies.take(1), None);
        buddies.give_back(0, BYTES);
        let mut all: Vec<_> = (0..1 << LEVELS).map(|_| buddies.take(0).unwrap()).collect();
        assert_eq!(buddies.take(0), None);
        all.sort_unstable();
        assert!(all.iter().enumerate().all(|(i, &at)| at == i * MIN_BLOCK));
    }
}
