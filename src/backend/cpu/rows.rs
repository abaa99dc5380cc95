//! Which rows attention computes together, and what they see.

use super::kv::SEGMENT;
use super::simd::LANES;
use std::ops::{Range, RangeInclusive};

/// Rows that are computed together, unless a group alone has more.
pub const ROWS: usize = 16;

/// Consecutive tokens whose rows for a KV head are computed together: a power of two. Blocks begin
/// at multiples of it, so none of them straddles two segments.
pub fn tokens_per_block(group: usize) -> usize {
    1 << (ROWS / group.max(1)).max(1).ilog2()
}

/// The rows of one KV head for consecutive tokens.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// Queries of the first token's group: `[group][head_dim]`, already times the scale. A pointer
    /// because other threads use what is between the groups of two tokens.
    pub queries: *const f32,
    /// Elements from a token's queries to the next token's.
    pub stride: usize,
    /// Query heads per KV head.
    pub group: usize,
    /// Number of tokens; their positions lie in one segment.
    pub tokens: usize,
    /// Position of the first token, which is in the cache like all before it.
    pub position: usize,
    /// What else the layer says of its scores.
    pub scores: Scores<'a>,
}

/// Which scores count, and how.
#[derive(Clone, Copy, Debug)]
pub struct Scores<'a> {
    /// Positions that a position sees before it, itself included: at least 1.
    pub window: usize,
    /// Positions of a chunk, of which it sees its own alone.
    pub chunk: usize,
    /// Positions that it sees behind it, of which there may be less: 0 in causal attention.
    pub ahead: usize,
    /// Positions that there are, where some are seen that lie ahead.
    pub len: usize,
    /// Soft cap.
    pub cap: Option<f32>,
    /// A logit per query head of the group that takes its share of the softmax without a value.
    pub sinks: Option<&'a [f32]>,
    /// What a score is less by per position of distance, per query head of the group.
    pub slopes: Option<&'a [f32]>,
    /// What is added to a score by the distance, per query head of the group.
    pub distances: Option<DistanceTable<'a>>,
}

/// Numbers per distance, a row for each head: of all distances from `-reach` on, where keys lie before the query, to `reach`,
/// with [`LANES`] more at either end that equal the one there. So whole tiles can be read at any distance.
#[derive(Clone, Copy, Debug)]
pub struct DistanceTable<'a> {
    /// `[heads][width(reach)]`.
    pub added: &'a [f32],
    pub reach: usize,
}

impl<'a> DistanceTable<'a> {
    /// Numbers per head.
    pub const fn width(reach: usize) -> usize {
        2 * reach + 1 + 2 * LANES
    }

    /// Those of a head.
    fn row(&self, head: usize) -> &'a [f32] {
        let width = DistanceTable::width(self.reach);
        &self.added[head * width..(head + 1) * width]
    }
}

impl Scores<'_> {
    /// The first position that `position` sees.
    pub fn first(&self, position: usize) -> usize {
        let begin = position - position % self.chunk;
        (position + 1).saturating_sub(self.window).max(begin)
    }

    /// The position behind the last one that `position` sees.
    pub fn end(&self, position: usize) -> usize {
        (position + 1).saturating_add(self.ahead).min(self.len)
    }
}

impl Rows<'_> {
    /// Number of rows.
    pub fn count(&self) -> usize {
        self.group * self.tokens
    }

    /// The query of a row: heads of a token are neighbours.
    #[inline(always)]
    pub fn query(&self, row: usize, head_dim: usize) -> *const f32 {
        let at = row / self.group * self.stride + row % self.group * head_dim;
        self.queries.wrapping_add(at)
    }

    /// Positions that a row sees, counted from the start of `segment`: some of its positions, or an
    /// empty range.
    #[inline(always)]
    pub fn seen(&self, row: usize, segment: usize) -> Range<usize> {
        let position = self.position + row / self.group;
        let start = segment * SEGMENT;
        let first = self.scores.first(position).saturating_sub(start);
        let end = self.scores.end(position).saturating_sub(start).min(SEGMENT);
        first.min(end)..end
    }

    /// The first segment that a row sees some of.
    #[inline(always)]
    pub fn first_segment(&self, row: usize) -> usize {
        self.scores.first(self.position + row / self.group) / SEGMENT
    }

    /// Segments that some row sees.
    pub fn segments(&self) -> RangeInclusive<usize> {
        let end = self.scores.end(self.position + self.tokens - 1);
        self.first_segment(0)..=(end - 1) / SEGMENT
    }

    /// The slope of a row, and its position counted from the start of `segment`.
    #[inline(always)]
    pub fn slope(&self, row: usize, segment: usize) -> Option<(f32, f32)> {
        let position = self.position + row / self.group;
        let from = position as f32 - (segment * SEGMENT) as f32;
        self.scores
            .slopes
            .map(|slopes| (slopes[row % self.group], from))
    }

    /// What is added to a row's scores by the distance, and its position counted from the start of `segment`.
    #[inline(always)]
    pub fn distances(&self, row: usize, segment: usize) -> Option<(&[f32], isize)> {
        let position = self.position + row / self.group;
        let from = position as isize - (segment * SEGMENT) as isize;
        let table = self.scores.distances?;
        Some((table.row(row % self.group), from))
    }

    /// The sink of a row.
    #[inline(always)]
    pub fn sink(&self, row: usize) -> Option<f32> {
        self.scores.sinks.map(|sinks| sinks[row % self.group])
    }
}
