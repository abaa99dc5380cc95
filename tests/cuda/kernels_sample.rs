//! The choice of a token, against the engine's own.

use crate::common::tiny::Random;
use crate::gpu::*;
use emberlm::backend::cuda::driver::{Buffer, Pinned};
use emberlm::backend::cuda::launch::args;
use emberlm::backend::cuda::launch::sampling::{GROUPS, Stages};
use emberlm::backend::cuda::run::sampling::SamplingState;
use emberlm::engine::sampling::{
    Breakers, Dry, Input, Logprobs, Sampling, Scratch, TokenRules, choose,
};

pub fn tests(tests: &mut Tests) {
    tests.push(("sample::choices".into(), Box::new(choices_match)));
    tests.push(("sample::mixed".into(), Box::new(mixed_settings_match)));
    tests.push(("sample::repetitions".into(), Box::new(repetitions_match)));
    tests.push(("sample::equal".into(), Box::new(equal_logits_match)));
    tests.push(("sample::extremes".into(), Box::new(extremes_match)));
    tests.push(("sample::errors".into(), Box::new(bad_logits_are_told)));
}

/// Slots of a session's ring.
const SLOTS: usize = 4;

/// What one session chooses from.
#[derive(Clone, Default)]
struct Row {
    logits: Vec<f32>,
    history: Vec<u32>,
    rules: Option<std::sync::Arc<TokenRules>>,
    mask: Option<Vec<u32>>,
    settings: Sampling,
    position: u64,
}

impl Row {
    /// (token or 0, whether there is one), and the log-probabilities, as the engine has them.
    fn expected(&self, scratch: &mut Scratch) -> (Option<u32>, Option<Logprobs>) {
        let input = Input {
            logits: &self.logits,
            history: &self.history,
            rules: self.rules.as_deref(),
            mask: self.mask.as_deref(),
            position: self.position,
        };
        let Ok(token) = choose(&input, scratch, &self.settings) else {
            return (None, None);
        };
        let logprobs = match self.settings.logprobs {
            0 => None,
            n => Some(Logprobs::of(&self.logits, token, n, scratch).unwrap()),
        };
        (Some(token), logprobs)
    }
}

/// What the kernels choose for a batch: (token or offending id, outcome), and the log-probabilities.
fn sample(rows: &[Row]) -> Vec<(u32, u8, Option<Logprobs>)> {
    let context = context();
    let n_vocab = rows[0].logits.len();
    let results = Pinned::new(&context, rows.len() * SLOTS * 8, "results").unwrap();
    let flat: Vec<f32> = rows.iter().flat_map(|r| r.logits.clone()).collect();
    let flat = upload(&flat);
    let groups = rows.len() * GROUPS as usize;
    let (values, ids) = (poisoned(groups * 4), poisoned(groups * 4));
    let mut stages = Stages::default();
    let mut states: Vec<(SamplingState, Buffer)> = Vec::new();
    with_stream(|stream| {
        for (i, row) in rows.iter().enumerate() {
            let len = row.history.len();
            let mut state = SamplingState::new(&context, n_vocab, len + 1, SLOTS).unwrap();
            state.set_rules(&context, row.rules.as_deref()).unwrap();
            // The last token is the one that the step appends.
            let before = len.saturating_sub(1);
            unsafe { state.remember(stream, 0, &row.history[..before]).unwrap() };
            if let Some(mask) = &row.mask {
                let mut source = |words: &mut [u32]| {
                    words.copy_from_slice(mask);
                    Ok(())
                };
                unsafe { state.mask(stream, &mut source).unwrap() };
            }
            let settings = state.settings(&row.settings, row.mask.is_some());
            stages = stages.or(Stages::of(&settings));
            let mut session = args::Session {
                results: results.address() + (i * SLOTS * 8) as u64,
                result_slots: SLOTS as u32,
                sequence: 6,
                position: before as u32,
                token: row.history.last().copied().unwrap_or(0),
                draw_offset: row.position.wrapping_sub(before as u64 + 1),
                settings,
                ..Default::default()
            };
            state.enter(&mut session);
            states.push((state, upload(&[session])));
        }
        let addresses: Vec<u64> = states.iter().map(|(_, s)| s.address()).collect();
        let table = upload(&addresses);
        let args = args::Sample {
            sessions: table.address(),
            logits: flat.address(),
            group_value: values.address(),
            group_id: ids.address(),
            n_vocab: n_vocab as u32,
            advance: 1,
            choose: 1,
            ..Default::default()
        };
        let batch = rows.len() as u32;
        unsafe { kernels().sample(stream, &args, stages, batch).unwrap() };
        stream.synchronize().unwrap();
    });
    (0..rows.len())
        .map(|i| {
            let ring = results.pointer().cast::<u64>();
            let entry = unsafe { ring.add(i * SLOTS + 2).read_volatile() };
            assert_eq!(entry >> 40, 7, "number of the step");
            let mut session = [args::Session::default()];
            states[i].1.read(0, &mut session).unwrap();
            let len = rows[i].history.len().max(1) as u32;
            assert_eq!((session[0].position, session[0].sequence), (len, 7));
            let outcome = (entry >> 32) as u8;
            let wanted = rows[i].settings.logprobs > 0 && outcome == 0;
            let logprobs = wanted.then(|| states[i].0.logprobs(2));
            (entry as u32, outcome, logprobs)
        })
        .collect()
}

/// The kernels, all rows at once and each alone, choose as the engine does.
fn assert_match(rows: &[Row], scratch: &mut Scratch) {
    let mut got = sample(rows);
    if rows.len() > 1 {
        got.extend(
            rows.iter()
                .flat_map(|row| sample(std::slice::from_ref(row))),
        );
    }
    for (i, got) in got.into_iter().enumerate() {
        let row = &rows[i % rows.len()];
        let about = || format!("{} logits, {:?}", row.logits.len(), row.settings);
        let (token, logprobs) = row.expected(scratch);
        match token {
            Some(token) => assert_eq!((got.0, got.1), (token, 0), "{}", about()),
            None => assert_ne!(got.1, 0, "{}", about()),
        }
        assert_eq!(got.2, logprobs, "{}", about());
    }
}

fn random_logits(random: &mut Random, n_vocab: usize, spread: f32) -> Vec<f32> {
    (0..n_vocab)
        .map(|_| {
            let normal: f32 = (0..6).map(|_| random.signed_unit()).sum();
            normal * spread
        })
        .collect()
}

const SIZES: [usize; 7] = [1, 2, 500, 1024, 1025, 4096, 128_256];

fn choices_match() {
    let mut random = Random::new(1, "logits");
    for n_vocab in SIZES {
        let mut scratch = Scratch::new(n_vocab).unwrap();
        for (temperature, top_k, top_p, min_p, typical_p) in [
            (0.0, 0, 1.0, 0.0, 1.0),
            (1.0, 0, 1.0, 0.0, 1.0),
            (0.7, 40, 1.0, 0.0, 1.0),
            (0.7, 40, 0.95, 0.05, 1.0),
            (0.7, 1, 0.5, 0.0, 1.0),
            (1.3, 0, 0.9, 0.0, 1.0),
            (1.3, 0, 0.999, 0.0, 1.0),
            (1.0, 50, 0.8, 0.0, 1.0),
            (2.0, 0, 1.0, 0.1, 1.0),
            (2.0, 0, 0.99, 0.05, 1.0),
            (2.0, 0, 1.0, 1e-6, 1.0),
            (1.5, 129, 0.95, 0.05, 1.0),
            (1.5, 1000, 1.0, 0.0, 0.7),
            (1.5, 3000, 0.95, 0.0, 1.0),
            (1.0, 0, 1e-9, 0.0, 1.0),
            (1e-3, 0, 1.0, 0.0, 1.0),
            (1.0, 0, 1.0, 0.0, 0.5),
            (1.0, 0, 0.7, 0.001, 0.9),
            (1.0, 30, 0.9, 0.0, 0.3),
        ] {
            let rows: Vec<Row> = (0..4)
                .map(|i| Row {
                    logits: random_logits(&mut random, n_vocab, [0.3, 1.0, 3.0, 8.0][i]),
                    settings: Sampling {
                        temperature,
                        top_k,
                        top_p,
                        min_p,
                        typical_p,
                        logprobs: [0, 1, 20, 64][i],
                        seed: i as u64 * 0x1234_5678_9abc_def1,
                        ..Sampling::GREEDY
                    },
                    position: 12 + i as u64,
                    ..Row::default()
                })
                .collect();
            assert_match(&rows, &mut scratch);
        }
    }
}

fn pick<T: Copy>(random: &mut Random, of: &[T]) -> T {
    of[(random.bits() >> 33) as usize % of.len()]
}

fn mixed_settings_match() {
    let mut random = Random::new(2, "settings");
    for n_vocab in [3usize, 700, 5000, 151_936] {
        let mut scratch = Scratch::new(n_vocab).unwrap();
        for _ in 0..12 {
            let rows: Vec<Row> = (0..8).map(|_| mixed_row(&mut random, n_vocab)).collect();
            assert_match(&rows, &mut scratch);
        }
    }
}

fn mixed_row(random: &mut Random, n_vocab: usize) -> Row {
    let r = random;
    let few = pick(r, &[2u64, 7, 60]).min(n_vocab as u64);
    let len = pick(r, &[1usize, 2, 5, 300, 3000]);
    let token = |r: &mut Random| ((r.bits() >> 20) % few) as u32;
    let history: Vec<u32> = (0..len).map(|_| token(r)).collect();
    let settings = Sampling {
        temperature: pick(r, &[0.0, 0.5, 1.0, 2.0]),
        top_k: pick(r, &[0, 0, 2, 40, 200]),
        top_p: pick(r, &[1.0, 0.95, 0.5]),
        min_p: pick(r, &[0.0, 0.0, 0.05]),
        typical_p: pick(r, &[1.0, 1.0, 0.8]),
        penalty_window: pick(r, &[0, 3, 64, u32::MAX]),
        repeat_penalty: pick(r, &[1.0, 1.1, 0.5, 7.0]),
        presence_penalty: pick(r, &[0.0, 0.6, -0.4]),
        frequency_penalty: pick(r, &[0.0, 0.3, -0.1]),
        dry: Dry {
            multiplier: pick(r, &[0.0, 0.8, 3.0]),
            base: pick(r, &[1.0, 1.75, 40.0]),
            allowed_length: pick(r, &[1, 2, 5]),
            window: pick(r, &[0, 10, u32::MAX]),
        },
        logprobs: pick(r, &[0, 0, 5]),
        seed: r.bits(),
    };
    let rules = pick(r, &[false, true]).then(|| {
        let bias: Vec<_> = (0..few as u32).map(|t| (t, random_bias(r))).collect();
        let banned: Vec<u32> = (0..pick(r, &[0, 1])).map(|_| token(r)).collect();
        let breakers: [&[u32]; 3] = [&[1], &[0, 1, 0], &[1, 1]];
        let n = pick(r, &[0, 2, 3]);
        let breakers = Breakers::new(n_vocab, breakers[..n].iter().copied()).unwrap();
        TokenRules::new(n_vocab, bias.into_iter(), &banned, &[], breakers).unwrap()
    });
    let mask = pick(r, &[false, false, true]).then(|| {
        (0..n_vocab.div_ceil(32))
            .map(|_| (r.bits() >> 7) as u32 | 1)
            .collect()
    });
    let spread = pick(r, &[0.5, 2.0, 5.0]);
    Row {
        logits: random_logits(r, n_vocab, spread),
        history,
        rules: rules.map(std::sync::Arc::new),
        mask,
        settings,
        position: r.bits() >> 40,
    }
}

fn random_bias(random: &mut Random) -> f32 {
    let wide = pick(random, &[0.0, 1.0, 10.0]);
    random.signed_unit() * wide
}

/// Contexts that consist of repetitions, short and long ones.
fn repetitions_match() {
    let n_vocab = 300;
    let mut scratch = Scratch::new(n_vocab).unwrap();
    let mut random = Random::new(3, "logits");
    for period in [1usize, 2, 7, 50] {
        for len in [2usize, 60, 5000] {
            let rows: Vec<Row> = [1.0f32, 1.01, 1.75, 1e6]
                .into_iter()
                .map(|base| Row {
                    logits: random_logits(&mut random, n_vocab, 4.0),
                    history: (0..len).map(|i| (i % period) as u32).collect(),
                    settings: Sampling {
                        dry: Dry {
                            multiplier: 1e-3,
                            base,
                            ..Dry::OFF
                        },
                        frequency_penalty: 0.01,
                        penalty_window: u32::MAX,
                        ..Sampling::GREEDY
                    },
                    position: 1,
                    ..Row::default()
                })
                .collect();
            assert_match(&rows, &mut scratch);
        }
    }
}

/// Equal logits: the smaller id first, whatever the way there is.
fn equal_logits_match() {
    for n_vocab in [3usize, 5000, 128_256] {
        let mut scratch = Scratch::new(n_vocab).unwrap();
        for (top_k, top_p, min_p, typical_p) in [
            (0, 1.0, 0.0, 1.0),
            (1, 1.0, 0.0, 1.0),
            (3, 1.0, 0.0, 1.0),
            (2000, 0.5, 0.0, 1.0),
            (0, 0.4, 0.0, 1.0),
            (0, 1.0, 0.9, 1.0),
            (0, 1.0, 0.0, 0.2),
        ] {
            let row = Row {
                logits: vec![1.0; n_vocab],
                settings: Sampling {
                    temperature: 1.0,
                    top_k,
                    top_p,
                    min_p,
                    typical_p,
                    logprobs: 2,
                    seed: 5,
                    ..Sampling::GREEDY
                },
                position: 3,
                ..Row::default()
            };
            assert_match(&[row], &mut scratch);
        }
    }
}

fn extremes_match() {
    let n_vocab = 20_000;
    let mut scratch = Scratch::new(n_vocab).unwrap();
    let mut random = Random::new(4, "logits");
    let mut logits = random_logits(&mut random, n_vocab, 3.0);
    logits[7] = f32::NEG_INFINITY;
    logits[8] = -3.0e38;
    logits[9] = -0.0;
    logits[10] = 0.0;
    let one = |bias: f32| {
        let rules = TokenRules::new(
            n_vocab,
            [(11, bias)].into_iter(),
            &[],
            &[],
            Breakers::default(),
        );
        Some(std::sync::Arc::new(rules.unwrap()))
    };
    let only = |token: u32| {
        let none = std::iter::empty::<(u32, f32)>().collect::<Vec<_>>();
        let breakers = Breakers::default();
        let rules = TokenRules::new(n_vocab, none.into_iter(), &[], &[token], breakers);
        Some(std::sync::Arc::new(rules.unwrap()))
    };
    for temperature in [0.0, 1e-6, 1e6, f32::from_bits(1), f32::MAX] {
        for top_k in [0, 30, u32::MAX] {
            let plain = Row {
                logits: logits.clone(),
                history: vec![7, 8, 9, 10, 11, 7, 8, 9],
                settings: Sampling {
                    temperature,
                    top_k,
                    seed: 9,
                    ..Sampling::GREEDY
                },
                position: 5,
                ..Row::default()
            };
            let mut rows = vec![plain.clone(); 6];
            rows[1].rules = one(3.4e38);
            rows[2].rules = one(f32::NEG_INFINITY);
            rows[3].rules = only(5);
            // Nothing that may be chosen has a probability.
            rows[4].rules = only(7);
            rows[5].settings.frequency_penalty = -3.0e38;
            rows[5].settings.repeat_penalty = 1e-30;
            assert_match(&rows, &mut scratch);
        }
    }
}

fn bad_logits_are_told() {
    for n_vocab in [3usize, 5000] {
        let mut nan = vec![1.0f32; n_vocab];
        nan[n_vocab / 2] = f32::NAN;
        let mut infinite = vec![1.0f32; n_vocab];
        infinite[n_vocab - 1] = f32::INFINITY;
        let nothing = vec![f32::NEG_INFINITY; n_vocab];
        for (temperature, logprobs, repeat_penalty) in
            [(0.0, 0, 1.0), (1.0, 0, 1.0), (1.0, 5, 1.0), (1.0, 0, 2.0)]
        {
            let rows = [&nan, &infinite, &nothing].map(|logits| Row {
                logits: logits.clone(),
                history: vec![n_vocab as u32 / 2, n_vocab as u32 - 1],
                settings: Sampling {
                    temperature,
                    logprobs,
                    repeat_penalty,
                    ..Sampling::GREEDY
                },
                ..Row::default()
            });
            let got = sample(&rows);
            assert_eq!((got[0].0, got[0].1), (n_vocab as u32 / 2, 1));
            assert_eq!((got[1].0, got[1].1), (n_vocab as u32 - 1, 2));
            assert_eq!(got[2].1, 3);
        }
    }
}
