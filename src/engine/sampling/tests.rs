use super::*;
use crate::error::Status;

fn choose(logits: &[f32], scratch: &mut Scratch, s: &Sampling, position: u64) -> Result<u32> {
    let input = Input {
        logits,
        position,
        ..Default::default()
    };
    super::choose(&input, scratch, s)
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

#[test]
fn filters_that_change_nothing_and_filters_that_leave_one() {
    let logits = [1.0f32, 0.5, 0.0, -0.5, f32::NEG_INFINITY];
    let mut scratch = Scratch::new(5).unwrap();
    let mut seen = |s: Sampling| {
        let mut seen = [false; 5];
        for position in 0..400 {
            seen[choose(&logits, &mut scratch, &s, position).unwrap() as usize] = true;
        }
        seen
    };
    let all = [true, true, true, true, false];
    let best = [true, false, false, false, false];
    assert_eq!(seen(sampling(1.0, 0, 1.0, 0.0)), all);
    assert_eq!(seen(sampling(1.0, 4, 1.0, 0.0)), all);
    assert_eq!(seen(sampling(1.0, u32::MAX, 1.0, 1e-30)), all);
    assert_eq!(seen(sampling(1e6, 0, 1.0, 0.0)), all);
    assert_eq!(seen(sampling(1e-6, 0, 1.0, 0.0)), best);
    assert_eq!(seen(sampling(1.0, 0, 1e-9, 0.0)), best);
    assert_eq!(seen(sampling(1.0, 0, 1.0, 1.0)), best);
    let typical_p = 1e-9;
    let one = Sampling {
        typical_p,
        ..sampling(1.0, 0, 1.0, 0.0)
    };
    assert_eq!(seen(one).iter().filter(|s| **s).count(), 1);
}

/// Masks and rules, in the ways in which they can be too much.
#[test]
fn tokens_that_may_not_be_chosen() {
    let logits = [5.0f32, 4.0, 3.0, f32::NEG_INFINITY];
    let mut scratch = Scratch::new(4).unwrap();
    let rules = |bias: &[(u32, f32)], banned: &[u32], forced: &[u32]| {
        let bias = bias.iter().copied();
        TokenRules::new(4, bias, banned, forced, Breakers::default())
    };
    let mut choose = |rules: Result<TokenRules>, mask: Option<&[u32]>| {
        let rules = rules.unwrap();
        let input = Input {
            logits: &logits,
            rules: Some(&rules),
            mask,
            ..Input::default()
        };
        super::choose(&input, &mut scratch, &sampling(0.0, 0, 1.0, 0.0))
    };
    assert_eq!(choose(rules(&[], &[0], &[]), None).unwrap(), 1);
    assert_eq!(choose(rules(&[], &[0, 1, 3], &[]), None).unwrap(), 2);
    assert_eq!(choose(rules(&[], &[], &[2]), None).unwrap(), 2);
    assert_eq!(choose(rules(&[], &[0], &[0, 1]), None).unwrap(), 1);
    assert_eq!(choose(rules(&[(2, 1e38)], &[], &[]), None).unwrap(), 2);
    assert_eq!(
        choose(rules(&[(2, 1.5), (2, 1.5)], &[], &[]), None).unwrap(),
        2
    );
    assert_eq!(
        choose(rules(&[(0, f32::NEG_INFINITY)], &[], &[]), None).unwrap(),
        1
    );
    assert_eq!(
        choose(rules(&[(1, f32::MAX), (1, f32::MAX)], &[], &[]), None).unwrap(),
        1
    );
    assert_eq!(choose(rules(&[], &[], &[]), Some(&[0b0100])).unwrap(), 2);
    assert_eq!(choose(rules(&[], &[1], &[]), Some(&[0b1110])).unwrap(), 2);
    // A bias cannot bring back what the model excludes.
    for (rules, mask) in [
        (rules(&[], &[], &[3]), None),
        (rules(&[(3, 1e38)], &[], &[3]), None),
        (rules(&[], &[2], &[]), Some(&[0b1100u32][..])),
    ] {
        let e = choose(rules, mask).unwrap_err();
        assert_eq!(e.status, Status::Numeric);
        assert!(e.message.contains("may be chosen"), "{}", e.message);
    }
    let bad = |rules: Result<TokenRules>, status: Status, text: &str| {
        let e = rules.unwrap_err();
        assert_eq!(e.status, status);
        assert!(e.message.contains(text), "{}", e.message);
    };
    bad(
        rules(&[(0, 1.0), (4, 1.0)], &[], &[]),
        Status::InvalidToken,
        "logit_bias of index 1",
    );
    bad(
        rules(&[], &[9], &[]),
        Status::InvalidToken,
        "banned of index 0",
    );
    bad(
        rules(&[], &[], &[0, u32::MAX]),
        Status::InvalidToken,
        "allowed of index 1",
    );
    bad(
        rules(&[(2, f32::NAN)], &[], &[]),
        Status::InvalidArgument,
        "token 2",
    );
    bad(
        rules(&[(2, f32::INFINITY)], &[], &[]),
        Status::InvalidArgument,
        "token 2",
    );
    bad(
        rules(&[], &[0, 1, 2, 3], &[]),
        Status::InvalidArgument,
        "no token",
    );
    bad(rules(&[], &[1], &[1]), Status::InvalidArgument, "no token");
    let breakers = Breakers::new(4, [&[1][..], &[4][..]]).err().unwrap();
    assert_eq!(breakers.status, Status::InvalidToken);
    let breakers = Breakers::new(4, [&[][..]]).err().unwrap();
    assert_eq!(breakers.status, Status::InvalidArgument);
}

/// The penalties of single tokens, read off a bias that makes up for them.
#[test]
fn penalties_are_what_the_settings_say() {
    let history = [3u32, 1, 1, 2, 1];
    let adjusted = |settings: Sampling, history: &[u32], breakers: &[&[u32]]| {
        let breakers = Breakers::new(5, breakers.iter().copied()).unwrap();
        let rules = TokenRules::new(5, [].into_iter(), &[], &[], breakers).unwrap();
        let logits = [2.0f32, 2.0, -2.0, 2.0, f32::NEG_INFINITY];
        let input = Input {
            logits: &logits,
            history,
            rules: Some(&rules),
            ..Input::default()
        };
        let (mut values, mut counts) = ([0.0; 5], [0; 5]);
        adjust::adjust(&input, &settings, &mut values, &mut counts);
        assert_eq!(counts, [0; 5], "left clean");
        values
    };
    let of = |settings| adjusted(settings, &history, &[]);
    let low = f32::NEG_INFINITY;
    let off = Sampling::GREEDY;
    let repeat = Sampling {
        repeat_penalty: 2.0,
        ..off
    };
    assert_eq!(of(repeat), [2.0, 1.0, -4.0, 1.0, low]);
    let counted = Sampling {
        frequency_penalty: 0.5,
        presence_penalty: 0.25,
        ..off
    };
    assert_eq!(of(counted), [2.0, 0.25, -2.75, 1.25, low]);
    let windowed = |penalty_window| {
        of(Sampling {
            penalty_window,
            ..counted
        })
    };
    assert_eq!(windowed(0), [2.0, 2.0, -2.0, 2.0, low]);
    assert_eq!(windowed(2), [2.0, 1.25, -2.75, 2.0, low]);
    assert_eq!(windowed(u32::MAX), of(counted));
    let dry = |allowed_length, window| Sampling {
        dry: Dry {
            multiplier: 1.0,
            base: 2.0,
            allowed_length,
            window,
        },
        ..off
    };
    // 0 1 2 0 1 2 0 1: three tokens later it repeats, and 2 would make it longer; five tokens match.
    let song = [0u32, 1, 2, 0, 1, 2, 0, 1];
    let sung = |settings, breakers: &[&[u32]]| adjusted(settings, &song, breakers);
    assert_eq!(sung(dry(2, 100), &[]), [2.0, 2.0, -10.0, 2.0, low]);
    assert_eq!(sung(dry(5, 100), &[]), [2.0, 2.0, -3.0, 2.0, low]);
    assert_eq!(sung(dry(6, 100), &[]), [2.0, 2.0, -2.0, 2.0, low]);
    // Six tokens: the match begins with the window.
    assert_eq!(sung(dry(2, 6), &[]), [2.0, 2.0, -4.0, 2.0, low]);
    assert_eq!(sung(dry(1, 0), &[]), [2.0, 2.0, -2.0, 2.0, low]);
    // Behind the last breaker there are two tokens; or none; or it is what would come next.
    assert_eq!(sung(dry(2, 100), &[&[1, 2]]), [2.0, 2.0, -3.0, 2.0, low]);
    assert_eq!(sung(dry(1, 100), &[&[1]]), [2.0, 2.0, -2.0, 2.0, low]);
    assert_eq!(sung(dry(1, 100), &[&[2]]), [2.0, 2.0, -2.0, 2.0, low]);
    assert_eq!(sung(dry(1, 100), &[&[3], &[2, 2]]), sung(dry(1, 100), &[]));
    // So long that the penalty has no number.
    let long = [1u32; 4000];
    let longest = adjusted(dry(2, u32::MAX), &long, &[]);
    assert_eq!(longest[1], 2.0 - f32::MAX);
    assert!(dry_longest(&dry(2, 1).dry) < 200);
    assert_eq!(adjusted(dry(1, 9), &[], &[]), adjusted(off, &[], &[]));
}

#[test]
fn log_probabilities_are_the_models_own() {
    let logits: Vec<f32> = reference_tests::random_logits(300, 8, 5.0);
    let sum: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
    let mut order: Vec<usize> = (0..300).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    let mut scratch = Scratch::new(300).unwrap();
    for n in [0, 1, 20, 64] {
        let got = Logprobs::of(&logits, 17, n, &mut scratch).unwrap();
        let of = |id: usize| (f64::from(logits[id]) - sum.ln()) as f32;
        assert!((got.chosen - of(17)).abs() < 1e-5);
        assert_eq!(got.top.len(), n as usize);
        for (&(id, value), &expected) in got.top.iter().zip(&order) {
            assert_eq!(id as usize, expected);
            assert!((value - of(expected)).abs() < 1e-5);
        }
    }
    let few = Logprobs::of(&[0.0, f32::NEG_INFINITY], 0, 9, &mut scratch).unwrap();
    assert_eq!(few.top[..], [(0, 0.0), (1, f32::NEG_INFINITY)]);
    assert_eq!(few.chosen, 0.0);
}
