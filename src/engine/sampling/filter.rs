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
    let mut best = Candidate {
        value: f32::NEG_INFINITY,
        id: 0,
    };
    let mut nan = false;
    for (&value, id) in logits.iter().zip(0..) {
        nan |= value.is_nan();
        if value > best.value {
            best = Candidate { value, id };
        }
    }
    if nan {
        let id = logits.iter().position(|v| v.is_nan()).unwrap_or(0);
        fail!(Numeric, "the logit of token {id} is not a number");
    }
    if logits.is_empty() {
        fail!(InvalidArgument, "no logits to choose from");
    }
    if best.value == f32::INFINITY {
        fail!(Numeric, "the logit of token {} is infinite", best.id);
    }
    Ok(best)
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
    kept.clear();
    kept.extend(logits.iter().zip(0..).map(candidate));
    let k = settings.top_k as usize;
    if k > 0 && k < kept.len() {
        kept.select_nth_unstable_by(k - 1, rank);
        kept.truncate(k);
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
