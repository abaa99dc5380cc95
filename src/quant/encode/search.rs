//! The search for the scale of one group of a K type.
//!
//! A candidate is a step between codes. It assigns every element its nearest code, and weighted
//! least squares give the scale (and offset) that fit these codes best, often not the candidate's
//! own. Sums run in eight lanes, which the compiler turns into vectors.

use super::{bounds, extreme, inverse, nearest};

const LANES: usize = 8;

/// How an affine group (`x = scale * q - minimum`) is searched.
pub(super) struct AffineSearch {
    /// The largest code.
    pub top: f32,
    /// The first candidate has `top + from` codes over the group's range ...
    pub from: f32,
    /// ... and each of the following this many more.
    pub by: f32,
    /// How many follow.
    pub steps: usize,
}

/// The scale and the minimum, both at least 0, that `x` is best written with.
pub(super) fn affine<const N: usize>(x: &[f32; N], search: &AffineSearch) -> (f32, f32) {
    let (low, high) = bounds(x);
    let low = low.min(0.0);
    if high <= low {
        return (0.0, -low);
    }
    // Codes from `low` on, `codes` of them up to the largest element.
    let assign = |low: f32, codes: f32| {
        let per_step = codes / (high - low);
        x.map(|x| nearest(per_step * (x - low)).clamp(0.0, search.top))
    };
    let weights = weights(x);
    let total = |v: &[f32; N]| weighted(&weights, |i| v[i]);
    let (sum_w, sum_x) = (weighted(&weights, |_| 1.0), total(x));
    let error = |codes: &[f32; N], (scale, offset): (f32, f32)| {
        weighted(&weights, |i| {
            let off = scale * codes[i] + offset - x[i];
            off * off
        })
    };
    let mut best = ((high - low) / search.top, low);
    let mut least = error(&assign(low, search.top), best);
    for i in 0..=search.steps {
        // The best offset so far is where the next candidate starts.
        let codes = assign(best.1, search.top + search.from + search.by * i as f32);
        let l2 = weighted(&weights, |i| codes[i] * codes[i]);
        let lx = weighted(&weights, |i| codes[i] * x[i]);
        let Some(fitted) = fit(sum_w, sum_x, total(&codes), l2, lx) else {
            continue;
        };
        let found = error(&codes, fitted);
        if found < least {
            least = found;
            best = fitted;
        }
    }
    (best.0, -best.1)
}

/// The sum of `term(i)` times the weight of element `i`.
#[inline(always)]
fn weighted<const N: usize>(weights: &[f32; N], term: impl Fn(usize) -> f32) -> f32 {
    let mut sum = [0.0; LANES];
    for from in (0..N).step_by(LANES) {
        for lane in 0..LANES {
            sum[lane] += weights[from + lane] * term(from + lane);
        }
    }
    total(sum)
}

/// The sum of all lanes.
fn total([a, b, c, d, e, f, g, h]: [f32; LANES]) -> f32 {
    ((a + b) + (c + d)) + ((e + f) + (g + h))
}

/// Scale and offset, which is at most 0, with the least weighted square error for codes of these
/// weighted sums. `None` if all codes are the same.
fn fit(w: f32, x: f32, l: f32, l2: f32, lx: f32) -> Option<(f32, f32)> {
    let determinant = w * l2 - l * l;
    if determinant <= 0.0 {
        return None;
    }
    let offset = (l2 * x - l * lx) / determinant;
    if offset <= 0.0 {
        Some(((w * lx - x * l) / determinant, offset))
    } else {
        Some((lx / l2, 0.0))
    }
}

/// The signed scale that `x` is best written with as `x = scale * q`, q from `-reach` to
/// `reach - 1`. Elements weigh as their squares.
pub(super) fn symmetric<const N: usize>(x: &[f32; N], reach: f32) -> f32 {
    let extreme = extreme(x);
    if extreme.abs() < 1e-15 {
        return 0.0;
    }
    let squares = x.map(|x| x * x);
    let mut scale = 0.0;
    let mut best = 0.0;
    // The extreme element becomes -reach, and up to a little more or less.
    for i in -9..=9 {
        let per_step = -(reach + 0.1 * i as f32) / extreme;
        let codes = x.map(|x| nearest(per_step * x).clamp(-reach, reach - 1.0));
        let lx = weighted(&squares, |i| codes[i] * x[i]);
        let l2 = weighted(&squares, |i| codes[i] * codes[i]);
        // What the best scale for these codes takes off the square error.
        let gain = lx * lx * inverse(l2);
        if gain > best {
            best = gain;
            scale = lx / l2;
        }
    }
    scale
}

/// The weight of each element's square error: its magnitude and the group's root mean square.
fn weights<const N: usize>(x: &[f32; N]) -> [f32; N] {
    let mean = (weighted(x, |i| x[i]) / N as f32).sqrt();
    x.map(|x| mean + x.abs())
}
