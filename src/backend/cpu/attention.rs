//! Attention over the cache.
//!
//! A *row* is one query head of one token. Rows that read the same KV head (the heads of a group,
//! and several tokens of a prompt) are computed together, so that keys and values are read once
//! for all of them.
//!
//! # Canonical arithmetic
//! For a row, and each segment of [`SEGMENT`] positions that it sees some of:
//! - score of a position: `fma` over the elements in ascending order, from 0, of the query (already
//!   times the scale); with a slope `s` and a distance `d`, `fma(d, -s, score)`; with numbers per distance,
//!   that of the distance added; with a cap `c`, `c * tanh(score * (1 / c))`;
//! - `m`: the largest score; `p = exp(score - m)`, 0 for positions that the row does not see;
//! - `l`: the sum of `p` in 16 lanes (position modulo 16, ascending), then [`Lanes::sum`];
//! - `o`: for each element, `fma(p, value, o)` over the positions in ascending order, from 0.
//!
//! Then segments are joined in ascending order ([`join`]), and the result is `o * (1 / l)`, or what
//! a sink leaves of it ([`finish`]). None of this depends on which rows or segments are computed
//! together, or by which thread.

// Tiles of registers read best with plain indices.
#![allow(clippy::needless_range_loop)]

use super::kv::{Element, Head, SEGMENT};
use super::rows::{ROWS, Rows};
use super::simd::{LANES, Lanes, simd_kernel};
use crate::error::{Result, try_vec};
use std::ops::Range;

/// One thread's memory for attention.
pub struct AttentionScratch {
    /// `[rows][SEGMENT]` scores, then weights.
    scores: Vec<f32>,
    /// `[rows][padded head_dim]` of the present segment.
    segment: Partial,
    /// Of all segments so far.
    total: Partial,
}

/// `m`, `l` and `o` of some rows.
struct Partial {
    max: Vec<f32>,
    sum: Vec<f32>,
    /// `[rows][padded head_dim]`
    out: Vec<f32>,
}

impl Partial {
    fn new(rows: usize, stride: usize) -> Result<Partial> {
        Ok(Partial {
            max: try_vec(rows, 0.0, "attention scratch")?,
            sum: try_vec(rows, 0.0, "attention scratch")?,
            out: try_vec(rows.saturating_mul(stride), 0.0, "attention scratch")?,
        })
    }
}

impl AttentionScratch {
    /// For groups of up to `group` query heads of up to `head_dim` elements.
    pub fn new(group: usize, head_dim: usize) -> Result<AttentionScratch> {
        let rows = group.max(ROWS);
        let stride = head_dim.next_multiple_of(LANES);
        Ok(AttentionScratch {
            scores: try_vec(rows.saturating_mul(SEGMENT), 0.0, "attention scratch")?,
            segment: Partial::new(rows, stride)?,
            total: Partial::new(rows, stride)?,
        })
    }

    /// Bytes of [`AttentionScratch::new`].
    pub fn bytes_for(group: usize, head_dim: usize) -> usize {
        let partial = 2 + head_dim.next_multiple_of(LANES);
        group.max(ROWS) * (SEGMENT + 2 * partial) * size_of::<f32>()
    }
}

/// Scores of `R` rows for `T` tiles: `scores[r][16 * t ..]`.
#[inline(always)]
unsafe fn scores<L: Lanes, E: Element, const R: usize, const T: usize>(
    queries: [*const f32; R],
    keys: *const E,
    head_dim: usize,
    out: [*mut f32; R],
) {
    // SAFETY: the caller's pointers hold head_dim queries, T tiles, and 16 T scores.
    unsafe {
        let mut sums = [[L::splat(0.0); T]; R];
        for d in 0..head_dim {
            let mut k = [L::splat(0.0); T];
            for (t, k) in k.iter_mut().enumerate() {
                *k = E::load(keys.add((t * head_dim + d) * LANES));
            }
            for r in 0..R {
                let q = L::splat(*queries[r].add(d));
                for t in 0..T {
                    sums[r][t] = q.fma(k[t], sums[r][t]);
                }
            }
        }
        for r in 0..R {
            for t in 0..T {
                sums[r][t].store(out[r].add(t * LANES));
            }
        }
    }
}

/// Scores of `R` rows from `first` on for some tiles, `T` of them at a time.
#[inline(always)]
unsafe fn score_rows<L: Lanes, E: Element, const R: usize, const T: usize>(
    rows: &Rows<'_>,
    first: usize,
    keys: *const E,
    head_dim: usize,
    tiles: Range<usize>,
    out: *mut f32,
) {
    // SAFETY: tiles and rows are in range by contract.
    unsafe {
        let mut queries = [std::ptr::null(); R];
        let mut outs = [std::ptr::null_mut(); R];
        for r in 0..R {
            queries[r] = rows.query(first + r, head_dim);
            outs[r] = out.add((first + r) * SEGMENT);
        }
        let mut t = tiles.start;
        while t + T <= tiles.end {
            let k = keys.add(t * head_dim * LANES);
            scores::<L, E, R, T>(queries, k, head_dim, outs.map(|o| o.add(t * LANES)));
            t += T;
        }
        while t < tiles.end {
            let k = keys.add(t * head_dim * LANES);
            scores::<L, E, R, 1>(queries, k, head_dim, outs.map(|o| o.add(t * LANES)));
            t += 1;
        }
    }
}

/// Makes the scores of some tiles less by their distances from `position` times `slope`.
#[inline(always)]
unsafe fn lean_scores<L: Lanes>(
    scores: *mut f32,
    tiles: Range<usize>,
    (slope, position): (f32, f32),
) {
    const STEPS: [f32; LANES] = [
        0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
    ];
    // SAFETY: `scores` holds the tiles.
    unsafe {
        let (steps, slope) = (L::load(STEPS.as_ptr()), L::splat(-slope));
        for t in tiles {
            let at = scores.add(t * LANES);
            let ahead = steps.add(L::splat((t * LANES) as f32 - position));
            let distance = ahead.max(L::splat(0.0).sub(ahead));
            distance.fma(slope, L::load(at)).store(at);
        }
    }
}

/// Adds to the scores of some tiles what `added` has for their distances from `position`.
#[inline(always)]
unsafe fn shift_scores<L: Lanes>(
    scores: *mut f32,
    tiles: Range<usize>,
    (added, position): (&[f32], isize),
) {
    let (middle, last) = (
        added.len() as isize / 2,
        added.len() as isize - LANES as isize,
    );
    // SAFETY: `scores` holds the tiles, and a tile's worth of numbers begins at or before `last`.
    unsafe {
        for t in tiles {
            let at = scores.add(t * LANES);
            let first = (middle + (t * LANES) as isize - position).clamp(0, last);
            let added = L::load(added.as_ptr().offset(first));
            L::load(at).add(added).store(at);
        }
    }
}

/// Caps the scores of some tiles.
#[inline(always)]
unsafe fn cap_scores<L: Lanes>(scores: *mut f32, tiles: Range<usize>, cap: f32) {
    // SAFETY: `scores` holds the tiles.
    unsafe {
        let (cap, inverse) = (L::splat(cap), L::splat(1.0 / cap));
        for t in tiles {
            let at = scores.add(t * LANES);
            L::load(at).mul(inverse).tanh().mul(cap).store(at);
        }
    }
}

/// Turns the scores of a row into weights; gives `m` and `l`.
#[inline(always)]
unsafe fn softmax<L: Lanes>(scores: *mut f32, seen: Range<usize>) -> (f32, f32) {
    if seen.is_empty() {
        return (f32::NEG_INFINITY, 0.0);
    }
    let (first, skipped) = (seen.start / LANES, seen.start % LANES);
    let (whole, rest) = (seen.end / LANES, seen.end % LANES);
    // SAFETY: `scores` holds all tiles that the row sees some of.
    unsafe {
        let lowest = L::splat(f32::NEG_INFINITY);
        if skipped > 0 {
            let at = scores.add(first * LANES);
            lowest.first(skipped, L::load(at)).store(at);
        }
        let mut largest = lowest;
        for t in first..whole {
            largest = largest.max(L::load(scores.add(t * LANES)));
        }
        let last = scores.add(whole * LANES);
        if rest > 0 {
            largest = largest.max(L::load(last).first(rest, lowest));
        }
        let max = largest.largest();
        let m = L::splat(max);
        let mut sum = L::splat(0.0);
        for t in first..whole {
            let mut p = L::load(scores.add(t * LANES)).sub(m).exp();
            if t == first && skipped > 0 {
                p = L::splat(0.0).first(skipped, p);
            }
            p.store(scores.add(t * LANES));
            sum = sum.add(p);
        }
        if rest > 0 {
            let mut p = L::load(last).sub(m).exp().first(rest, L::splat(0.0));
            if first == whole && skipped > 0 {
                p = L::splat(0.0).first(skipped, p);
            }
            p.store(last);
            sum = sum.add(p);
        }
        (max, sum.sum())
    }
}

/// `out[r] += weights[r] * values` over positions `range`, for `R` rows and `C` vectors of columns.
#[inline(always)]
unsafe fn weigh<L: Lanes, E: Element, const R: usize, const C: usize>(
    weights: *const f32,
    values: *const E,
    stride: usize,
    range: Range<usize>,
    out: *mut f32,
) {
    // SAFETY: the caller's pointers hold R rows of weights and of output, and the positions.
    unsafe {
        let mut sums = [[L::splat(0.0); C]; R];
        for r in 0..R {
            for c in 0..C {
                sums[r][c] = L::load(out.add(r * stride + c * LANES));
            }
        }
        for j in range {
            let mut v = [L::splat(0.0); C];
            for (c, v) in v.iter_mut().enumerate() {
                *v = E::load(values.add(j * stride + c * LANES));
            }
            for r in 0..R {
                let p = L::splat(*weights.add(r * SEGMENT + j));
                for c in 0..C {
                    sums[r][c] = p.fma(v[c], sums[r][c]);
                }
            }
        }
        for r in 0..R {
            for c in 0..C {
                sums[r][c].store(out.add(r * stride + c * LANES));
            }
        }
    }
}

/// [`weigh`] over all columns, `C` vectors at a time.
#[inline(always)]
unsafe fn weigh_rows<L: Lanes, E: Element, const R: usize, const C: usize>(
    weights: *const f32,
    values: *const E,
    stride: usize,
    range: Range<usize>,
    out: *mut f32,
) {
    let columns = stride / LANES;
    let mut c = 0;
    // SAFETY: all columns are below the stride.
    unsafe {
        while c + C <= columns {
            let at = c * LANES;
            weigh::<L, E, R, C>(weights, values.add(at), stride, range.clone(), out.add(at));
            c += C;
        }
        while c < columns {
            let at = c * LANES;
            weigh::<L, E, R, 1>(weights, values.add(at), stride, range.clone(), out.add(at));
            c += 1;
        }
    }
}

/// `m`, `l` and `o` of all rows for one segment.
#[inline(always)]
unsafe fn segment_generic<L: Lanes, E: Element>(
    rows: &Rows<'_>,
    head: Head<'_, E>,
    segment: usize,
    score: &mut [f32],
    partial: &mut Partial,
) {
    let count = rows.count();
    let (dim, stride) = (head.head_dim, head.value_stride());
    let (keys, values) = (
        head.keys(segment).cast_const(),
        head.values(segment).cast_const(),
    );
    // Later rows see later positions.
    let (first, last) = (rows.seen(0, segment), rows.seen(count - 1, segment));
    let tiles = first.start / LANES..last.end.div_ceil(LANES);
    assert!(score.len() >= count * SEGMENT && partial.out.len() >= count * stride);
    let score = score.as_mut_ptr();
    // SAFETY: the segment's blocks hold all positions that are seen, the scratch all rows.
    unsafe {
        // As many rows and tiles at once as there are registers for, and enough of them to hide
        // the latency of a sum.
        let mut r = 0;
        while L::MANY && count - r >= 8 {
            score_rows::<L, E, 8, 1>(rows, r, keys, dim, tiles.clone(), score);
            r += 8;
        }
        while count - r >= 4 {
            if L::MANY {
                score_rows::<L, E, 4, 4>(rows, r, keys, dim, tiles.clone(), score);
            } else {
                score_rows::<L, E, 4, 1>(rows, r, keys, dim, tiles.clone(), score);
            }
            r += 4;
        }
        while count - r >= 2 {
            if L::MANY {
                score_rows::<L, E, 2, 4>(rows, r, keys, dim, tiles.clone(), score);
            } else {
                score_rows::<L, E, 2, 2>(rows, r, keys, dim, tiles.clone(), score);
            }
            r += 2;
        }
        if r < count {
            if L::MANY {
                score_rows::<L, E, 1, 8>(rows, r, keys, dim, tiles.clone(), score);
            } else {
                score_rows::<L, E, 1, 4>(rows, r, keys, dim, tiles.clone(), score);
            }
        }

        for r in 0..count {
            let seen = rows.seen(r, segment);
            if let Some(slope) = rows.slope(r, segment) {
                lean_scores::<L>(score.add(r * SEGMENT), tiles.clone(), slope);
            }
            if let Some(distances) = rows.distances(r, segment) {
                shift_scores::<L>(score.add(r * SEGMENT), tiles.clone(), distances);
            }
            if let Some(cap) = rows.scores.cap {
                cap_scores::<L>(score.add(r * SEGMENT), tiles.clone(), cap);
            }
            (partial.max[r], partial.sum[r]) = softmax::<L>(score.add(r * SEGMENT), seen);
        }

        partial.out[..count * stride].fill(0.0);
        let out = partial.out.as_mut_ptr();
        // Positions that all rows of a block see are summed up together, those before and after
        // them row by row.
        let mut r = 0;
        while r < count {
            let n = match count - r {
                1 => 1,
                2 | 3 => 2,
                _ => 4,
            };
            let (w, o) = (score.add(r * SEGMENT).cast_const(), out.add(r * stride));
            let end = rows.seen(r, segment).end;
            let common = rows.seen(r + n - 1, segment).start.min(end)..end;
            for i in 0..n - 1 {
                let before = rows.seen(r + i, segment).start..common.start;
                if !before.is_empty() {
                    let (w, o) = (w.add(i * SEGMENT), o.add(i * stride));
                    weigh_rows::<L, E, 1, 4>(w, values, stride, before, o);
                }
            }
            match (n, L::MANY) {
                (4, true) => weigh_rows::<L, E, 4, 4>(w, values, stride, common.clone(), o),
                (4, false) => weigh_rows::<L, E, 4, 1>(w, values, stride, common.clone(), o),
                (2, true) => weigh_rows::<L, E, 2, 4>(w, values, stride, common.clone(), o),
                (2, false) => weigh_rows::<L, E, 2, 2>(w, values, stride, common.clone(), o),
                _ => weigh_rows::<L, E, 1, 4>(w, values, stride, common.clone(), o),
            }
            for i in 1..n {
                let seen = rows.seen(r + i, segment);
                let more = common.end.max(seen.start)..seen.end;
                if !more.is_empty() {
                    let (w, o) = (w.add(i * SEGMENT), o.add(i * stride));
                    weigh_rows::<L, E, 1, 4>(w, values, stride, more, o);
                }
            }
            r += n;
        }
    }
}

/// Adds a later segment to the earlier ones: with `m'` the larger of both maxima, `a = exp(m - m')`
/// of the earlier and `b` of the later, `l = fma(l, a, l_later * b)`, and `o` alike.
#[inline(always)]
unsafe fn join<L: Lanes>(
    (max, sum, out): (&mut f32, &mut f32, *mut f32),
    (later_max, later_sum, later_out): (f32, f32, *const f32),
    stride: usize,
) {
    // SAFETY: both outputs hold `stride` elements.
    unsafe {
        let m = if *max > later_max { *max } else { later_max };
        let mut factors = [0f32; LANES];
        factors[0] = *max - m;
        factors[1] = later_max - m;
        L::load(factors.as_ptr()).exp().store(factors.as_mut_ptr());
        let [a, b, ..] = factors;
        *max = m;
        *sum = sum.mul_add(a, later_sum * b);
        let (a, b) = (L::splat(a), L::splat(b));
        for i in (0..stride).step_by(LANES) {
            let later = L::load(later_out.add(i)).mul(b);
            L::load(out.add(i)).fma(a, later).store(out.add(i));
        }
    }
}

/// Writes `o * (1 / l)`; with a sink `s` and the larger `m'` of `m` and `s`, `o * (a / l')` with
/// `a = exp(m - m')` and `l' = fma(l, a, exp(s - m'))`.
#[inline(always)]
unsafe fn finish<L: Lanes>(
    (max, sum, from): (f32, f32, *const f32),
    sink: Option<f32>,
    head_dim: usize,
    out: *mut f32,
) {
    let factor = match sink {
        None => 1.0 / sum,
        Some(sink) => {
            let m = if max > sink { max } else { sink };
            let mut shares = [0f32; LANES];
            (shares[0], shares[1]) = (max - m, sink - m);
            // SAFETY: an array of whole vectors.
            unsafe { L::load(shares.as_ptr()).exp().store(shares.as_mut_ptr()) };
            shares[0] / sum.mul_add(shares[0], shares[1])
        }
    };
    // SAFETY: both hold `head_dim` elements.
    unsafe {
        let mut i = 0;
        while i + LANES <= head_dim {
            L::load(from.add(i)).mul(L::splat(factor)).store(out.add(i));
            i += LANES;
        }
        while i < head_dim {
            *out.add(i) = *from.add(i) * factor;
            i += 1;
        }
    }
}

#[inline(always)]
unsafe fn attend_generic<L: Lanes, E: Element>(
    rows: &Rows<'_>,
    head: Head<'_, E>,
    out: *mut f32,
    scratch: &mut AttentionScratch,
) {
    let (count, stride) = (rows.count(), head.value_stride());
    let AttentionScratch {
        scores,
        segment,
        total,
    } = scratch;
    let segments = rows.segments();
    let first = *segments.start();
    // SAFETY: `segment_generic` has checked the sizes of the scratch; the rest is the caller's
    // promise.
    unsafe {
        segment_generic::<L, E>(rows, head, first, scores, total);
        for s in first + 1..=*segments.end() {
            segment_generic::<L, E>(rows, head, s, scores, segment);
            for r in 0..count {
                let out = total.out.as_mut_ptr().add(r * stride);
                let later = segment.out.as_ptr().add(r * stride);
                if rows.first_segment(r) == s {
                    (total.max[r], total.sum[r]) = (segment.max[r], segment.sum[r]);
                    std::ptr::copy_nonoverlapping(later, out, stride);
                    continue;
                }
                join::<L>(
                    (&mut total.max[r], &mut total.sum[r], out),
                    (segment.max[r], segment.sum[r], later),
                    stride,
                );
            }
        }
        for r in 0..count {
            let to = r / rows.group * rows.stride + r % rows.group * head.head_dim;
            let from = total.out.as_ptr().add(r * stride);
            finish::<L>(
                (total.max[r], total.sum[r], from),
                rows.sink(r),
                head.head_dim,
                out.add(to),
            );
        }
    }
}
simd_kernel! {
    /// Attention of some rows over everything that they see. `out` is laid out like the queries.
    ///
    /// # Safety
    /// The processor has `isa`. Queries and `out` (which may be the same) are valid for all rows,
    /// and nobody else uses `out` there. Nobody writes positions that the rows see.
    pub fn attend[E: Element](rows: &Rows<'_>, head: Head<'_, E>, out: *mut f32, scratch: &mut AttentionScratch) = attend_generic
}

/// Floats that [`attend_segment`] writes for `group` rows.
pub fn partial_len(group: usize, head_dim: usize) -> usize {
    group * (head_dim.next_multiple_of(LANES) + LANES)
}

#[inline(always)]
unsafe fn attend_segment_generic<L: Lanes, E: Element>(
    rows: &Rows<'_>,
    head: Head<'_, E>,
    segment: usize,
    out: *mut f32,
    scratch: &mut AttentionScratch,
) {
    let (count, stride) = (rows.count(), head.value_stride());
    // SAFETY: `segment_generic` checks the sizes; by contract, `out` is valid for what is written.
    unsafe {
        segment_generic::<L, E>(
            rows,
            head,
            segment,
            &mut scratch.scores,
            &mut scratch.segment,
        );
        for r in 0..count {
            let to = out.add(r * (stride + LANES));
            *to = scratch.segment.max[r];
            *to.add(1) = scratch.segment.sum[r];
            let from = scratch.segment.out.as_ptr().add(r * stride);
            std::ptr::copy_nonoverlapping(from, to.add(LANES), stride);
        }
    }
}
simd_kernel! {
    /// One segment's part of the attention of one token's rows, for [`join_segments`].
    ///
    /// # Safety
    /// As of [`attend`]; `out` is valid for [`partial_len`] elements.
    pub fn attend_segment[E: Element](rows: &Rows<'_>, head: Head<'_, E>, segment: usize, out: *mut f32, scratch: &mut AttentionScratch) = attend_segment_generic
}

#[inline(always)]
unsafe fn join_segments_generic<L: Lanes>(
    partials: *mut f32,
    stride: usize,
    segments: usize,
    head_dim: usize,
    sink: Option<f32>,
    out: *mut f32,
) {
    let width = head_dim.next_multiple_of(LANES);
    // SAFETY: by contract, what `attend` demands holds, and `out` has `partial_len` elements.
    unsafe {
        let (mut max, mut sum) = (*partials, *partials.add(1));
        let total = partials.add(LANES);
        for s in 1..segments {
            let p = partials.add(s * stride);
            join::<L>(
                (&mut max, &mut sum, total),
                (*p, *p.add(1), p.add(LANES)),
                width,
            );
        }
        finish::<L>((max, sum, total), sink, head_dim, out);
    }
}
simd_kernel! {
    /// Joins what [`attend_segment`] wrote for one row, `stride` elements from segment to segment,
    /// and writes the row's result. The first segment's part is overwritten.
    ///
    /// # Safety
    /// The processor has `isa`; the parts are there, `out` has `head_dim` elements, and both are
    /// exclusive.
    pub fn join_segments(partials: *mut f32, stride: usize, segments: usize, head_dim: usize, sink: Option<f32>, out: *mut f32) = join_segments_generic
}

#[cfg(test)]
#[path = "attention_tests.rs"]
mod tests;
