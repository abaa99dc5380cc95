//! What is done to logits before tokens are ranked: bias, penalties, bans, mask.

use super::{Dry, Input, Sampling, TokenRules};

/// Whether any logit can change.
pub fn is_needed(input: &Input, settings: &Sampling) -> bool {
    input.mask.is_some()
        || input.rules.is_some_and(|r| !r.bias().is_empty())
        || settings.needs_history()
}

/// Writes the adjusted logits to `values`. `counts` has an entry per token, zeros before and after.
pub fn adjust(input: &Input, settings: &Sampling, values: &mut [f32], counts: &mut [u32]) {
    let bias = input.rules.map_or(&[][..], |r| r.bias());
    if bias.is_empty() {
        values.copy_from_slice(input.logits);
    } else {
        for ((v, l), b) in values.iter_mut().zip(input.logits).zip(bias) {
            *v = (l + b).min(f32::MAX);
        }
    }
    if settings.penalizes() {
        let window = last(input.history, settings.penalty_window);
        for &token in window {
            counts[token as usize] += 1;
        }
        for &token in window {
            let count = std::mem::take(&mut counts[token as usize]);
            if count > 0 {
                let v = &mut values[token as usize];
                *v = penalized(*v, count, settings);
            }
        }
    }
    if settings.dries() {
        dry(input, &settings.dry, values, counts);
    }
    if let Some(mask) = input.mask {
        for (id, v) in values.iter_mut().enumerate() {
            if mask[id / 32] >> (id % 32) & 1 == 0 {
                *v = f32::NEG_INFINITY;
            }
        }
    }
}

fn last(history: &[u32], window: u32) -> &[u32] {
    &history[history.len().saturating_sub(window as usize)..]
}

/// Sums and products that leave the range of finite numbers stop at its upper end, and become minus
/// infinity at the lower one, never NaN.
fn penalized(v: f32, count: u32, s: &Sampling) -> f32 {
    let v = if v > 0.0 {
        (v / s.repeat_penalty).min(f32::MAX)
    } else {
        v * s.repeat_penalty
    };
    let occurrences = (count as f32 * s.frequency_penalty).clamp(-f32::MAX, f32::MAX);
    (v - occurrences - s.presence_penalty).min(f32::MAX)
}

/// Takes the penalty from every token that goes on with a repetition.
fn dry(input: &Input, dry: &Dry, values: &mut [f32], lengths: &mut [u32]) {
    let window = last(input.history, dry.window);
    let Some((&newest, before)) = window.split_last() else {
        return;
    };
    let most = unbroken(window, input.rules).min(dry_longest(dry) as usize);
    if most < dry.allowed_length as usize {
        return;
    }
    let ends = |end: &usize| before[*end] == newest;
    // The token behind the end of an earlier occurrence, and how long that is.
    let follow = |end: usize| {
        let same = window[..=end].iter().rev().zip(window.iter().rev());
        let n = same.take(most).take_while(|(a, b)| a == b).count();
        (window[end + 1] as usize, n as u32)
    };
    for (token, n) in (0..before.len()).filter(ends).map(follow) {
        lengths[token] = lengths[token].max(n);
    }
    for (token, _) in (0..before.len())
        .filter(ends)
        .map(|end| (window[end + 1], end))
    {
        let n = std::mem::take(&mut lengths[token as usize]);
        if n >= dry.allowed_length && !input.rules.is_some_and(|r| r.breakers().is_single(token)) {
            values[token as usize] -= dry_penalty(dry, n);
        }
    }
}

/// How many of the last tokens hold no sequence breaker.
fn unbroken(window: &[u32], rules: Option<&TokenRules>) -> usize {
    let Some(breakers) = rules.map(TokenRules::breakers) else {
        return window.len();
    };
    // Of the breakers that lie in the window, the end of the one that ends last.
    let ends = (0..window.len()).filter_map(|i| Some(i + breakers.starting(&window[i..])?));
    window.len() - ends.max().unwrap_or(0)
}

/// `multiplier * base^(n - allowed_length)`, n being at least `allowed_length`.
fn dry_penalty(dry: &Dry, n: u32) -> f32 {
    let mut power = 1.0f64;
    let mut square = f64::from(dry.base);
    let mut exponent = n - dry.allowed_length;
    while exponent > 0 {
        if exponent & 1 == 1 {
            power *= square;
        }
        square *= square;
        exponent >>= 1;
    }
    (f64::from(dry.multiplier) * power).min(f64::from(f32::MAX)) as f32
}

/// The length from which on repetitions do not differ in their penalty.
pub fn dry_longest(dry: &Dry) -> u32 {
    let (mut low, mut high) = (dry.allowed_length, u32::MAX);
    let limit = dry_penalty(dry, high);
    while low < high {
        let middle = low + (high - low) / 2;
        if dry_penalty(dry, middle) >= limit {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}
