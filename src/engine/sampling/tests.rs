use super::*;
use crate::error::Status;

/// The definition in the module's comment, written down as plainly as possible.
fn reference(logits: &[f32], s: &Sampling, position: u64) -> u32 {
    let mut ranking: Vec<usize> = (0..logits.len()).collect();
    ranking.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap().then(a.cmp(&b)));
    if s.temperature == 0.0 {
        return ranking[0] as u32;
    }
    let max = f64::from(logits[ranking[0]]);
    if s.top_k > 0 {
        ranking.truncate(s.top_k as usize);
    }
    let e = |i: usize| (f64::from(logits[i]) - max).exp();
    let total: f64 = ranking.iter().map(|&i| e(i)).sum();
    if s.top_p < 1.0 {
        let mut sum = 0.0;
        let n = ranking.iter().position(|&i| {
            sum += e(i) / total;
            sum >= f64::from(s.top_p)
        });
        ranking.truncate(n.map_or(ranking.len(), |n| n + 1));
    }
    ranking.retain(|&i| e(i) >= f64::from(s.min_p));
    ranking.sort();
    let weight = |i: usize| ((f64::from(logits[i]) - max) / f64::from(s.temperature)).exp();
    let total: f64 = ranking.iter().map(|&i| weight(i)).sum();
    let target = random::uniform(s.seed, position) * total;
    let mut sum = 0.0;
    for &i in &ranking {
        sum += weight(i);
        if sum > target {
            return i as u32;
        }
    }
    *ranking.last().unwrap() as u32
}

fn choose(logits: &[f32], scratch: &mut Scratch, s: &Sampling, position: u64) -> Result<u32> {
    let input = Input {
        logits,
        position,
        ..Default::default()
    };
    super::choose(&input, scratch, s)
}

fn random_logits(n: usize, seed: u64, spread: f64) -> Vec<f32> {
    (0..n as u64)
        .map(|i| {
            let sum: f64 = (0..4).map(|k| random::uniform(seed, i * 4 + k)).sum();
            ((sum - 2.0) * spread) as f32
        })
        .collect()
}

fn sampling(temperature: f32, top_k: u32, top_p: f32, min_p: f32) -> Sampling {
    Sampling {
        temperature,
        top_k,
        top_p,
        min_p,
        seed: 42,
        ..Sampling::default()
    }
}

#[test]
fn agrees_with_the_plain_definition() {
    let mut compared = 0;
    let mut differing = 0;
    for n in [1, 2, 7, 63, 64, 65, 257, 1000, 5003] {
        let logits = random_logits(n, n as u64, 6.0);
        let mut scratch = Scratch::new(n).unwrap();
        for temperature in [0.0, 0.2, 0.8, 1.0, 3.0] {
            for top_k in [0, 1, 5, 40, 100_000] {
                for top_p in [1.0, 0.95, 0.5, 0.01] {
                    for min_p in [0.0, 0.05, 0.9, 1.0] {
                        let s = sampling(temperature, top_k, top_p, min_p);
                        s.check().unwrap();
                        for position in 0..4 {
                            let got = choose(&logits, &mut scratch, &s, position).unwrap();
                            compared += 1;
                            differing += u32::from(got != reference(&logits, &s, position));
                        }
                    }
                }
            }
        }
    }
    // Weights are rounded to single precision, so a draw within 1e-7 of a border may fall to the
    // other side of it.
    assert!(compared > 10_000);
    assert!(differing <= 2, "{differing} of {compared} differ");
}

#[test]
fn draws_follow_the_softmax() {
    let logits = [1.0f32, 0.0, -1.0, 2.0, 0.5, f32::NEG_INFINITY];
    let s = sampling(0.7, 0, 1.0, 0.0);
    let weights: Vec<f64> = logits
        .iter()
        .map(|&l| (f64::from(l) / f64::from(0.7f32)).exp())
        .collect();
    let total: f64 = weights.iter().sum();
    let mut scratch = Scratch::new(logits.len()).unwrap();
    let mut counts = [0u32; 6];
    let draws = 50_000;
    for position in 0..draws {
        counts[choose(&logits, &mut scratch, &s, position).unwrap() as usize] += 1;
    }
    assert_eq!(counts[5], 0, "a token without probability was drawn");
    let chi2: f64 = (0..5)
        .map(|i| {
            let expected = weights[i] / total * draws as f64;
            (f64::from(counts[i]) - expected).powi(2) / expected
        })
        .sum();
    // 4 degrees of freedom: 23.5 is beyond the 1 in 10,000 of a right sampler.
    assert!(chi2 < 23.5, "chi-square {chi2}, counts {counts:?}");
}

#[test]
fn equal_logits_rank_by_id() {
    let logits = [0.0f32, 3.0, -0.0, 3.0, 3.0];
    let mut scratch = Scratch::new(5).unwrap();
    assert_eq!(
        choose(&logits, &mut scratch, &Sampling::default(), 0).unwrap(),
        1
    );
    let mut seen = [false; 5];
    for position in 0..200 {
        let s = sampling(1.0, 2, 1.0, 0.0);
        seen[choose(&logits, &mut scratch, &s, position).unwrap() as usize] = true;
    }
    assert_eq!(seen, [false, true, false, true, false]);
    let zeros = [-0.0f32, 0.0];
    assert_eq!(
        choose(&zeros, &mut scratch, &Sampling::default(), 0).unwrap(),
        0
    );
}

#[test]
fn top_p_alone_is_normalized_over_what_top_k_left() {
    // Probabilities 0.5, 0.25, 0.125, 0.125; of the first two the first has 2/3.
    let logits = [0.5f32, 0.25, 0.125, 0.125].map(f32::ln);
    let mut scratch = Scratch::new(4).unwrap();
    let mut drawn = |s: Sampling| {
        let mut seen = [false; 4];
        for position in 0..200 {
            seen[choose(&logits, &mut scratch, &s, position).unwrap() as usize] = true;
        }
        seen
    };
    assert_eq!(
        drawn(sampling(1.0, 0, 0.6, 0.0)),
        [true, true, false, false]
    );
    assert_eq!(
        drawn(sampling(1.0, 2, 0.6, 0.0)),
        [true, false, false, false]
    );
    assert_eq!(
        drawn(sampling(1.0, 0, 1.0, 0.4)),
        [true, true, false, false]
    );
    // Temperature comes last: it changes no set.
    assert_eq!(
        drawn(sampling(50.0, 0, 0.6, 0.0)),
        [true, true, false, false]
    );
}

#[test]
fn extreme_temperatures_are_harmless() {
    let logits = [0.0f32, 1.0, -3.0e38, 3.0e38];
    let mut scratch = Scratch::new(4).unwrap();
    for temperature in [f32::from_bits(1), 1e-30, 1e30, f32::MAX] {
        for position in 0..50 {
            let id = choose(
                &logits,
                &mut scratch,
                &sampling(temperature, 0, 1.0, 0.0),
                position,
            );
            assert!(id.unwrap() < 4);
        }
    }
    let cold = sampling(1e-30, 0, 1.0, 0.0);
    assert_eq!(choose(&logits, &mut scratch, &cold, 3).unwrap(), 3);
}

#[test]
fn logits_that_are_no_numbers_are_refused() {
    let mut scratch = Scratch::new(3).unwrap();
    for (logits, text) in [
        ([0.0, f32::NAN, 1.0], "token 1"),
        ([0.0, 1.0, f32::INFINITY], "token 2"),
        ([f32::NEG_INFINITY; 3], "minus infinity"),
    ] {
        for s in [Sampling::default(), sampling(1.0, 0, 0.9, 0.1)] {
            let e = choose(&logits, &mut scratch, &s, 0).unwrap_err();
            assert_eq!(e.status, Status::Numeric);
            assert!(e.message.contains(text), "{}", e.message);
        }
    }
    let e = choose(&[0.0; 4], &mut scratch, &sampling(1.0, 0, 1.0, 0.0), 0).unwrap_err();
    assert_eq!(e.status, Status::InvalidArgument);
    let e = choose(&[], &mut scratch, &Sampling::default(), 0).unwrap_err();
    assert_eq!(e.status, Status::InvalidArgument);
}

#[test]
fn settings_out_of_range_are_named() {
    let good = sampling(1.0, 10, 0.9, 0.1);
    good.check().unwrap();
    let bad = |s: Sampling, field: &str| {
        let e = s.check().unwrap_err();
        assert_eq!(e.status, Status::InvalidArgument);
        assert!(e.message.starts_with(field), "{}", e.message);
    };
    for temperature in [f32::NAN, -1.0, f32::INFINITY] {
        bad(
            Sampling {
                temperature,
                ..good
            },
            "temperature",
        );
    }
    for top_p in [f32::NAN, -0.1, 0.0, 1.1] {
        bad(Sampling { top_p, ..good }, "top_p");
    }
    for min_p in [f32::NAN, -0.1, 1.1] {
        bad(Sampling { min_p, ..good }, "min_p");
    }
}
