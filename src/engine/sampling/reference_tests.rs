//! The choice against its definition, written down as plainly as possible in double precision.

use super::*;
use std::collections::HashSet;

/// What the tests draw their inputs from.
struct Dice(u64);

impl Dice {
    fn unit(&mut self) -> f64 {
        self.0 += 1;
        random::uniform(77, self.0)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.unit() * n as f64) as usize
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

pub fn random_logits(n: usize, seed: u64, spread: f64) -> Vec<f32> {
    (0..n as u64)
        .map(|i| {
            let sum: f64 = (0..4).map(|k| random::uniform(seed, i * 4 + k)).sum();
            ((sum - 2.0) * spread) as f32
        })
        .collect()
}

/// What the rules are made of.
#[derive(Clone, Default)]
struct Plain {
    bias: Vec<(u32, f32)>,
    banned: Vec<u32>,
    forced: Vec<u32>,
    breakers: Vec<Vec<u32>>,
    mask: Option<Vec<u32>>,
    history: Vec<u32>,
}

fn last(history: &[u32], window: u32) -> &[u32] {
    &history[history.len().saturating_sub(window as usize)..]
}

fn adjusted(logits: &[f32], p: &Plain, s: &Sampling) -> Vec<f64> {
    let mut values: Vec<f64> = logits.iter().map(|&l| l.into()).collect();
    for &(id, bias) in &p.bias {
        values[id as usize] += f64::from(bias);
    }
    let window = last(&p.history, s.penalty_window);
    for (id, v) in values.iter_mut().enumerate() {
        let count = window.iter().filter(|t| **t as usize == id).count() as f64;
        if count > 0.0 {
            let r = f64::from(s.repeat_penalty);
            *v = if *v > 0.0 { *v / r } else { *v * r };
            *v -= count * f64::from(s.frequency_penalty) + f64::from(s.presence_penalty);
        }
    }
    let window = last(&p.history, s.dry.window);
    // The tokens behind the last breaker.
    let free = (0..=window.len())
        .filter(|&at| p.breakers.iter().any(|b| window[..at].ends_with(b)))
        .max()
        .map_or(window, |at| &window[at..]);
    for (id, v) in values.iter_mut().enumerate() {
        // The longest end of `free` that is somewhere in front of this token.
        let mut longest = 0;
        for at in (0..window.len()).filter(|&at| window[at] as usize == id) {
            let fits = |n: &usize| window[..at].ends_with(&free[free.len() - n..]);
            longest = longest.max((0..=free.len()).filter(fits).max().unwrap_or(0));
        }
        let over = longest as f64 - f64::from(s.dry.allowed_length);
        if over >= 0.0 && !p.breakers.contains(&vec![id as u32]) {
            *v -= f64::from(s.dry.multiplier) * f64::from(s.dry.base).powf(over);
        }
    }
    for (id, v) in values.iter_mut().enumerate() {
        let id = id as u32;
        let masked = p
            .mask
            .as_ref()
            .is_some_and(|m| m[id as usize / 32] >> (id % 32) & 1 == 0);
        let forced = p.forced.is_empty() || p.forced.contains(&id);
        if masked || !forced || p.banned.contains(&id) {
            *v = f64::NEG_INFINITY;
        }
    }
    values
}

/// The candidates and the probabilities with which they are drawn, in the order of ids; `None` if no
/// token can be chosen.
fn distribution(logits: &[f32], p: &Plain, s: &Sampling) -> Option<Vec<(u32, f64)>> {
    let l = adjusted(logits, p, s);
    let mut kept: Vec<usize> = (0..l.len()).collect();
    kept.sort_by(|&a, &b| l[b].partial_cmp(&l[a]).unwrap().then(a.cmp(&b)));
    if l[kept[0]] == f64::NEG_INFINITY {
        return None;
    }
    if s.temperature == 0.0 || s.top_k == 1 {
        return Some(vec![(kept[0] as u32, 1.0)]);
    }
    if s.top_k > 0 {
        kept.truncate(s.top_k as usize);
    }
    let softmax = |kept: &[usize]| -> Vec<f64> {
        let max = kept.iter().map(|&i| l[i]).fold(f64::NEG_INFINITY, f64::max);
        let e: Vec<f64> = kept.iter().map(|&i| (l[i] - max).exp()).collect();
        let sum: f64 = e.iter().sum();
        e.iter().map(|e| e / sum).collect()
    };
    // The length of the shortest start that reaches the share.
    let start = |probabilities: &[f64], share: f32| {
        let mut sum = 0.0;
        let reached = |p: &f64| {
            sum += p;
            sum >= f64::from(share)
        };
        let found = probabilities.iter().position(reached);
        found.map_or(probabilities.len(), |n| n + 1)
    };
    if s.typical_p < 1.0 {
        let q = softmax(&kept);
        let some = q.iter().filter(|q| **q > 0.0);
        let entropy: f64 = some.map(|q| -q * q.ln()).sum();
        let mut order: Vec<(f64, usize, f64)> = kept
            .iter()
            .zip(&q)
            .map(|(&i, &q)| ((-q.ln() - entropy).abs(), i, q))
            .collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let ordered: Vec<f64> = order.iter().map(|o| o.2).collect();
        order.truncate(start(&ordered, s.typical_p));
        let typical: HashSet<usize> = order.iter().map(|o| o.1).collect();
        kept.retain(|i| typical.contains(i));
    }
    if s.top_p < 1.0 {
        kept.truncate(start(&softmax(&kept), s.top_p));
    }
    let q = softmax(&kept);
    let mut left: Vec<usize> = (kept.iter().zip(&q))
        .filter(|(_, p)| **p >= f64::from(s.min_p) * q[0])
        .map(|(&i, _)| i)
        .collect();
    left.sort_unstable();
    let max = left.iter().map(|&i| l[i]).fold(f64::NEG_INFINITY, f64::max);
    let weight = |i: usize| ((l[i] - max) / f64::from(s.temperature)).exp();
    let sum: f64 = left.iter().map(|&i| weight(i)).sum();
    Some(left.iter().map(|&i| (i as u32, weight(i) / sum)).collect())
}

fn drawn(distribution: &[(u32, f64)], s: &Sampling, position: u64) -> u32 {
    let u = random::uniform(s.seed, position);
    let mut sum = 0.0;
    for &(id, p) in distribution {
        sum += p;
        if sum > u {
            return id;
        }
    }
    distribution.last().unwrap().0
}

fn engine(
    logits: &[f32],
    p: &Plain,
    s: &Sampling,
    position: u64,
    scratch: &mut Scratch,
) -> Option<u32> {
    let n = logits.len();
    let breakers = Breakers::new(n, p.breakers.iter().map(|b| &b[..])).unwrap();
    let bias = p.bias.iter().copied();
    let rules = TokenRules::new(n, bias, &p.banned, &p.forced, breakers).unwrap();
    let input = Input {
        logits,
        history: &p.history,
        rules: Some(&rules),
        mask: p.mask.as_deref(),
        position,
    };
    s.check().unwrap();
    choose(&input, scratch, s).ok()
}

fn any_settings(dice: &mut Dice) -> Sampling {
    Sampling {
        temperature: dice.pick(&[0.0, 0.2, 0.8, 1.0, 3.0]),
        top_k: dice.pick(&[0, 0, 1, 5, 40, 100_000]),
        top_p: dice.pick(&[1.0, 0.95, 0.5, 0.01]),
        min_p: dice.pick(&[0.0, 0.05, 0.9, 1.0]),
        typical_p: dice.pick(&[1.0, 1.0, 0.9, 0.2]),
        penalty_window: dice.pick(&[0, 1, 7, 64, u32::MAX]),
        repeat_penalty: dice.pick(&[1.0, 1.1, 0.7, 5.0]),
        presence_penalty: dice.pick(&[0.0, 0.5, -0.5]),
        frequency_penalty: dice.pick(&[0.0, 0.2, -0.1]),
        dry: Dry {
            multiplier: dice.pick(&[0.0, 0.8, 2.0]),
            base: dice.pick(&[1.0, 1.1, 1.75]),
            allowed_length: dice.pick(&[1, 2, 4]),
            window: dice.pick(&[0, 5, 30, u32::MAX]),
        },
        logprobs: 0,
        seed: dice.below(1 << 30) as u64,
    }
}

fn any_rules(dice: &mut Dice, n: usize) -> Plain {
    let mut p = Plain::default();
    // A few tokens, so that there are repetitions.
    let few = dice.pick(&[1, 2, 5]).min(n);
    let len = dice.pick(&[0, 1, 2, 10, 60]);
    p.history = (0..len).map(|_| dice.below(few) as u32).collect();
    for _ in 0..dice.pick(&[0, 0, 3]) {
        let bias = (dice.unit() * 8.0 - 4.0) as f32;
        p.bias.push((dice.below(n) as u32, bias));
    }
    if n > 1 && dice.below(3) == 0 {
        p.banned.push(dice.below(n) as u32);
    }
    if dice.below(4) == 0 {
        p.forced = (0..n as u32).step_by(dice.pick(&[1, 2])).collect();
        p.banned.retain(|b| *b != 0);
    }
    for _ in 0..dice.pick(&[0, 0, 1, 2]) {
        let len = dice.pick(&[1, 1, 2, 3]);
        let breaker = (0..len).map(|_| dice.below(n.min(4)) as u32);
        p.breakers.push(breaker.collect());
    }
    if dice.below(3) == 0 {
        let words = (0..n.div_ceil(32)).map(|_| dice.below(1 << 32) as u32 | 1);
        p.mask = Some(words.collect());
    }
    p
}

#[test]
fn all_settings_mixed_agree_with_the_plain_definition() {
    let mut dice = Dice(0);
    let (mut compared, mut differing, mut none) = (0, 0, 0);
    for n in [1, 2, 7, 63, 64, 65, 257, 1003] {
        let mut scratch = Scratch::new(n).unwrap();
        for round in 0..800 {
            let spread = dice.pick(&[0.5, 3.0, 8.0]);
            let logits = random_logits(n, round, spread);
            let s = any_settings(&mut dice);
            let p = any_rules(&mut dice, n);
            let expected = distribution(&logits, &p, &s);
            none += u32::from(expected.is_none());
            for position in 0..4 {
                let got = engine(&logits, &p, &s, position, &mut scratch);
                let want = expected.as_ref().map(|d| drawn(d, &s, position));
                assert_eq!(got.is_none(), want.is_none());
                compared += 1;
                differing += u32::from(got != want);
            }
        }
    }
    assert!(compared > 20_000 && none < compared / 100);
    // Adjusted logits are single precision and weights multiples of 2^-40, so a choice that is
    // closer than that to a border may fall to the other side of it.
    assert!(differing <= 8, "{differing} of {compared} differ");
}

/// The frequencies of a million draws.
#[test]
fn draws_follow_the_distribution() {
    let logits = [
        1.0f32,
        0.0,
        -1.0,
        2.0,
        0.5,
        f32::NEG_INFINITY,
        1.9,
        -3.0,
        0.2,
    ];
    let plain = Sampling {
        temperature: 0.7,
        seed: 11,
        ..Sampling::GREEDY
    };
    for (i, s) in [
        plain,
        Sampling {
            temperature: 1.5,
            top_k: 6,
            ..plain
        },
        Sampling {
            top_p: 0.9,
            min_p: 0.05,
            repeat_penalty: 1.5,
            frequency_penalty: 0.1,
            ..plain
        },
        Sampling {
            temperature: 1.0,
            typical_p: 0.8,
            ..plain
        },
    ]
    .into_iter()
    .enumerate()
    {
        let p = Plain {
            history: vec![3, 6, 3],
            bias: vec![(2, 0.7)],
            ..Plain::default()
        };
        let expected = distribution(&logits, &p, &s).unwrap();
        let draws = if i == 0 { 1_000_000u64 } else { 250_000 };
        let rules =
            TokenRules::new(9, p.bias.iter().copied(), &[], &[], Breakers::default()).unwrap();
        let mut scratch = Scratch::new(logits.len()).unwrap();
        let mut counts = [0u32; 9];
        for position in 0..draws {
            let input = Input {
                logits: &logits,
                history: &p.history,
                rules: Some(&rules),
                mask: None,
                position,
            };
            counts[choose(&input, &mut scratch, &s).unwrap() as usize] += 1;
        }
        let counted: u32 = expected.iter().map(|(id, _)| counts[*id as usize]).sum();
        assert_eq!(
            u64::from(counted),
            draws,
            "a token without probability was drawn"
        );
        let chi2: f64 = expected
            .iter()
            .filter(|(_, p)| *p > 0.0)
            .map(|(id, p)| {
                let mean = p * draws as f64;
                (f64::from(counts[*id as usize]) - mean).powi(2) / mean
            })
            .sum();
        // At most 7 degrees of freedom: 29.9 is beyond the 1 in 10,000 of a right sampler.
        assert!(chi2 < 29.9, "settings {i}: chi-square {chi2}, {counts:?}");
    }
}
