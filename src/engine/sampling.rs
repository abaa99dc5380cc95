//! Choosing a token from logits.
//!
//! The choice is a pure function of (logits, settings, seed, position), defined so that every
//! backend can follow it:
//!
//! 1. Tokens are ranked by logit, the larger first; of equal logits the smaller id comes first.
//!    `temperature == 0` takes the first token of the ranking and ends here.
//! 2. `top_k` keeps the first k tokens of the ranking.
//! 3. `top_p` looks at the softmax of what is left (temperature 1) and keeps the shortest start of
//!    the ranking whose probabilities sum to at least p.
//! 4. `min_p` keeps the tokens whose probability is at least that share of the largest one.
//!    Each of the three keeps at least one token, and each keeps a start of the ranking.
//! 5. Each kept token has the weight `exp((logit - max) / temperature)`. The weights, in the order
//!    of token ids, share out the interval from 0 to 1, and a uniform number u picks one.
//! 6. u has 53 bits, from the first two words of Philox4x32-10 with the seed as key and the
//!    position as counter.

use super::random;
use crate::error::{Result, fail, try_vec};
use std::cmp::Ordering;

/// How a token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 chooses the largest logit.
    pub temperature: f32,
    /// Keep only the k largest logits; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set of tokens whose probability reaches p; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens with at least this share of the largest probability; 0 keeps all.
    pub min_p: f32,
    /// Seed of the counter-based generator.
    pub seed: u64,
}

impl Default for Sampling {
    /// Greedy.
    fn default() -> Self {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 0,
        }
    }
}

impl Sampling {
    /// `InvalidArgument`, naming the field, if a value is out of range.
    pub fn check(&self) -> Result<()> {
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            fail!(
                InvalidArgument,
                "temperature is {}, but must be 0 or more",
                self.temperature
            );
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            fail!(
                InvalidArgument,
                "top_p is {}, but must be more than 0 and at most 1",
                self.top_p
            );
        }
        if !(self.min_p >= 0.0 && self.min_p <= 1.0) {
            fail!(
                InvalidArgument,
                "min_p is {}, but must be from 0 to 1",
                self.min_p
            );
        }
        Ok(())
    }
}

/// A token and its logit or weight.
#[derive(Clone, Copy, Debug, Default)]
struct Candidate {
    value: f32,
    id: u32,
}

/// The order of the ranking: `Less` comes first. No logit is NaN.
fn rank(a: &Candidate, b: &Candidate) -> Ordering {
    b.value.total_cmp(&a.value).then(a.id.cmp(&b.id))
}

/// Memory that `choose` works in, so that it allocates nothing.
pub struct Scratch {
    candidates: Vec<Candidate>,
}

impl Scratch {
    /// Scratch for logits of up to `n_vocab` tokens. `OutOfMemory` if there is none.
    pub fn new(n_vocab: usize) -> Result<Scratch> {
        let mut candidates = try_vec(n_vocab, Candidate::default(), "sampling scratch")?;
        candidates.clear();
        Ok(Scratch { candidates })
    }

    /// Bytes of [`Scratch::new`].
    pub fn bytes_for(n_vocab: usize) -> usize {
        n_vocab * size_of::<Candidate>()
    }
}

/// The token that follows `logits` (one per token id) as draw number `position`.
///
/// Errors: `Numeric` if a logit is NaN or plus infinity, or all are minus infinity;
/// `InvalidArgument` if there are no logits or more than the scratch was made for. Settings must
/// have passed [`Sampling::check`].
pub fn choose(
    logits: &[f32],
    scratch: &mut Scratch,
    settings: &Sampling,
    position: u64,
) -> Result<u32> {
    let best = largest(logits)?;
    if settings.temperature == 0.0 || settings.top_k == 1 {
        return Ok(best.id);
    }
    let candidates = &mut scratch.candidates;
    if logits.len() > candidates.capacity() {
        fail!(
            InvalidArgument,
            "{} logits, but sampling was prepared for {}",
            logits.len(),
            candidates.capacity()
        );
    }
    let all = |candidates: &mut Vec<Candidate>| {
        candidates.clear();
        candidates.extend(logits.iter().zip(0..).map(candidate));
    };
    // The last token of the ranking that is kept, or none if all are.
    let mut last: Option<Candidate> = None;

    let k = settings.top_k as usize;
    if k > 0 && k < logits.len() {
        all(candidates);
        let (_, kth, _) = candidates.select_nth_unstable_by(k - 1, rank);
        last = Some(*kth);
        candidates.truncate(k);
    }
    if settings.top_p < 1.0 {
        if last.is_none() {
            all(candidates);
        }
        last = nucleus_end(logits, candidates, best, last, settings.top_p);
    }

    // Rebuilt in the order of ids, with weights in place of logits.
    let min_p = f64::from(settings.min_p);
    let per_temperature = 1.0 / f64::from(settings.temperature);
    candidates.clear();
    let mut total = 0.0f64;
    for c in logits.iter().zip(0..).map(candidate) {
        if last.is_some_and(|last| rank(&c, &last) == Ordering::Greater) {
            continue;
        }
        let below = f64::from(c.value) - f64::from(best.value);
        if min_p > 0.0 && exp(below) < min_p {
            continue;
        }
        let value = exp(below * per_temperature) as f32;
        total += f64::from(value);
        candidates.push(Candidate { value, id: c.id });
    }
    let target = random::uniform(settings.seed, position) * total;
    let mut sum = 0.0f64;
    for c in candidates.iter() {
        sum += f64::from(c.value);
        if sum > target {
            return Ok(c.id);
        }
    }
    // The sum runs as `total` did, and u is below 1; only rounding of the product leads here.
    let kept = candidates.iter().rev().find(|c| c.value > 0.0);
    Ok(kept.map_or(best.id, |c| c.id))
}

fn candidate((&value, id): (&f32, u32)) -> Candidate {
    // -0 and +0 are the same logit, but not the same to `total_cmp`.
    let value = if value == 0.0 { 0.0 } else { value };
    Candidate { value, id }
}

/// The first token of the ranking.
fn largest(logits: &[f32]) -> Result<Candidate> {
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
    if best.value == f32::NEG_INFINITY {
        fail!(Numeric, "every logit is minus infinity");
    }
    Ok(best)
}

/// The last token of the shortest start of the ranking that reaches probability `p` within the
/// tokens up to `last`. `candidates` holds exactly these tokens, in any order.
fn nucleus_end(
    logits: &[f32],
    candidates: &mut [Candidate],
    best: Candidate,
    last: Option<Candidate>,
    p: f32,
) -> Option<Candidate> {
    let weight = |c: &Candidate| exp(f64::from(c.value) - f64::from(best.value));
    // In the order of ids, so that the sum does not depend on how the ranking was found.
    let total: f64 = logits
        .iter()
        .zip(0..)
        .map(candidate)
        .filter(|c| last.is_none_or(|last| rank(c, &last) != Ordering::Greater))
        .map(|c| weight(&c))
        .sum();
    let wanted = total * f64::from(p);
    // Most often a few tokens are enough, so the ranking is sorted piece by piece.
    let mut sum = 0.0f64;
    let mut done = 0;
    let mut piece = 64;
    while done < candidates.len() {
        let rest = &mut candidates[done..];
        let n = piece.min(rest.len());
        if n < rest.len() {
            rest.select_nth_unstable_by(n - 1, rank);
        }
        rest[..n].sort_unstable_by(rank);
        for c in &rest[..n] {
            sum += weight(c);
            if sum >= wanted {
                return Some(*c);
            }
        }
        done += n;
        piece *= 4;
    }
    last
}

/// `e^x` for x <= 0 to about 1e-10, from additions and multiplications alone, so that it has the
/// same bits on every platform (the C library's has not).
fn exp(x: f64) -> f64 {
    if x < -708.0 {
        return 0.0;
    }
    // x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 in two parts (Cody and Waite).
    let n = (x * std::f64::consts::LOG2_E).round_ties_even();
    let r = (x - n * 6.931_471_803_691_238e-1) - n * 1.908_214_929_270_587_7e-10;
    // Taylor series to the 9th power.
    const C: [f64; 8] = [
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5_040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
    ];
    let series = C.iter().fold(0.0, |sum, c| sum * r + c);
    let e = 1.0 + r + r * r * series;
    // 2^n, n from -1022 to 0.
    e * f64::from_bits(((n as i64 + 1023) as u64) << 52)
}

#[cfg(test)]
#[path = "sampling_tests.rs"]
mod tests;
