//! The filters (top-k, typical, top-p, min-p) and the draw.

use super::fixed::{exp, ratio, share, surprise, weight};
use super::{Sampling, random};
use crate::error::{Result, fail};
use std::cmp::Ordering;

/// A token and its logit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Candidate {
    pub value: f32,
    pub id: u32,
}

/// The order of the ranking: `Less` comes first. No logit is NaN.
pub fn rank(a: &Candidate, b: &Candidate) -> Ordering {
    b.value.total_cmp(&a.value).then(a.id.cmp(&b.id))
}

/// The candidate of a logit and its id.
pub fn candidate((&value, id): (&f32, u32)) -> Candidate {
    // -0 and +0 are the same logit, but not the same to `total_cmp`.
    let value = if value == 0.0 { 0.0 } else { value };
    Candidate { value, id }
}

/// The first token of the ranking.
///
/// Errors: `Numeric` for NaN and plus infinity; `InvalidArgument` for no logits.
pub fn largest(logits: &[f32]) -> Result<Candidate> {
    let Some(value) = peak(logits) else {
        let id = logits.iter().position(|v| v.is_nan()).unwrap_or(0);
        fail!(Numeric, "the logit of token {id} is not a number");
    };
    let Some(id) = logits.iter().position(|v| *v == value) else {
        fail!(InvalidArgument, "no logits to choose from");
    };
    if value == f32::INFINITY {
        fail!(Numeric, "the logit of token {id} is infinite");
    }
    let id = id as u32;
    Ok(Candidate { value, id })
}

/// The largest of these, `None` if one is NaN.
fn peak(logits: &[f32]) -> Option<f32> {
    const LANES: usize = 16;
    let (mut most, mut nan) = ([f32::NEG_INFINITY; LANES], [false; LANES]);
    let mut take = |lane: usize, v: f32| {
        most[lane] = if v > most[lane] { v } else { most[lane] };
        nan[lane] |= v.is_nan();
    };
    let (whole, rest) = logits.as_chunks::<LANES>();
    for chunk in whole {
        (0..LANES).for_each(|lane| take(lane, chunk[lane]));
    }
    rest.iter().enumerate().for_each(|(lane, &v)| take(lane, v));
    let number = !nan.contains(&true);
    number.then(|| most.into_iter().fold(f32::NEG_INFINITY, f32::max))
}

/// How far a logit is below another one, which is finite.
fn below(c: &Candidate, top: f32) -> f64 {
    f64::from(c.value) - f64::from(top)
}

/// What the filters leave, in the order of token ids. `best` is the first of the ranking, and finite.
pub fn keep<'a>(
    logits: &[f32],
    best: Candidate,
    settings: &Sampling,
    kept: &'a mut Vec<Candidate>,
) -> &'a [Candidate] {
    match settings.top_k as usize {
        0 => collect(logits, f32::NEG_INFINITY, kept),
        k => first(logits, k, kept),
    }
    let mut top = best.value;
    if settings.typical_p < 1.0 {
        let sum: u64 = kept.iter().map(|c| weight(below(c, top))).sum();
        let surprises: u64 = kept.iter().map(|c| surprise(below(c, top))).sum();
        // -ln p is ln(sum) minus how far a logit is below the top, and its mean is the entropy;
        // the logarithm drops out of the difference.
        let mean = ratio(surprises, sum);
        let distance = |c: &Candidate| (mean + below(c, top)).abs() as f32;
        let order = |a: &Candidate, b: &Candidate| {
            distance(a).total_cmp(&distance(b)).then(a.id.cmp(&b.id))
        };
        truncate(kept, top, share(sum, settings.typical_p), order);
        top = kept
            .iter()
            .map(|c| c.value)
            .fold(f32::NEG_INFINITY, f32::max);
    }
    if settings.top_p < 1.0 {
        let sum: u64 = kept.iter().map(|c| weight(below(c, top))).sum();
        truncate(kept, top, share(sum, settings.top_p), rank);
    }
    let min_p = f64::from(settings.min_p);
    if min_p > 0.0 {
        kept.retain(|c| exp(below(c, top)) >= min_p);
    }
    if !kept.is_sorted_by_key(|c| c.id) {
        kept.sort_unstable_by_key(|c| c.id);
    }
    kept
}

/// The candidates of all logits that are at least `least`.
fn collect(logits: &[f32], least: f32, candidates: &mut Vec<Candidate>) {
    let all = logits.iter().zip(0..);
    candidates.clear();
    candidates.extend(all.filter(|(v, _)| **v >= least).map(candidate));
}

/// The first `k` of the ranking, in no order.
pub fn first(logits: &[f32], k: usize, candidates: &mut Vec<Candidate>) {
    const GROUPS: usize = 1024;
    let mut least = f32::NEG_INFINITY;
    if k > 0 && k <= GROUPS / 4 && logits.len() >= 8 * GROUPS {
        // At least k tokens reach the k-th largest of the groups' largest, and not many more.
        let mut peaks = [f32::NEG_INFINITY; GROUPS];
        let groups = logits.chunks(logits.len().div_ceil(GROUPS));
        for (top, group) in peaks.iter_mut().zip(groups) {
            *top = peak(group).unwrap_or(f32::NEG_INFINITY);
        }
        peaks.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
        least = peaks[k - 1];
    }
    collect(logits, least, candidates);
    if k < candidates.len() {
        if k > 0 {
            candidates.select_nth_unstable_by(k - 1, rank);
        }
        candidates.truncate(k);
    }
}

/// Keeps the shortest start in this order whose weights sum to `wanted`.
fn truncate(
    candidates: &mut Vec<Candidate>,
    top: f32,
    wanted: u64,
    order: impl Fn(&Candidate, &Candidate) -> Ordering,
) {
    // Most often a few tokens are enough, so they are sorted piece by piece.
    let mut sum = 0u64;
    let mut done = 0;
    let mut piece = 64;
    while done < candidates.len() {
        let rest = &mut candidates[done..];
        let n = piece.min(rest.len());
        if n < rest.len() {
            rest.select_nth_unstable_by(n - 1, &order);
        }
        rest[..n].sort_unstable_by(&order);
        for c in &rest[..n] {
            sum += weight(below(c, top));
            done += 1;
            if sum >= wanted {
                candidates.truncate(done);
                return;
            }
        }
        piece *= 4;
    }
}

/// One of these, which are in the order of ids, at the settings' temperature.
pub fn draw(kept: &[Candidate], settings: &Sampling, position: u64) -> u32 {
    let per_temperature = 1.0 / f64::from(settings.temperature);
    let top = kept
        .iter()
        .map(|c| c.value)
        .fold(f32::NEG_INFINITY, f32::max);
    let weight = |c: &Candidate| weight(below(c, top) * per_temperature);
    let total: u64 = kept.iter().map(weight).sum();
    let bits = random::bits(settings.seed, position);
    let target = ((u128::from(bits) * u128::from(total)) >> random::BITS) as u64;
    let mut sum = 0;
    for c in kept {
        sum += weight(c);
        // `target` is below `total`, which is at least 1: the top has the weight 1.
        if sum > target {
            return c.id;
        }
    }
    kept.last().map_or(0, |c| c.id)
}
