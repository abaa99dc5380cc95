//! The choice of a token, against the engine's own.

use crate::common::tiny::Random;
use crate::gpu::*;
use emberlm::backend::cuda::args;
use emberlm::backend::cuda::driver::Pinned;
use emberlm::engine::sampling::{Input, Sampling, Scratch, choose};

pub fn tests(tests: &mut Tests) {
    tests.push(("sample::choices".into(), Box::new(choices_match)));
    tests.push(("sample::errors".into(), Box::new(bad_logits_are_told)));
}

/// (token or offending id, outcome) for each row of logits.
fn sample(logits: &[Vec<f32>], sampling: &Sampling, position: u64) -> Vec<(u32, u8)> {
    let n_vocab = logits[0].len();
    let slots = 4;
    let results = Pinned::new(&context(), logits.len() * slots * 8, "results").unwrap();
    let states: Vec<_> = (0..logits.len())
        .map(|i| {
            upload(&[args::Session {
                results: results.address() + (i * slots * 8) as u64,
                result_slots: slots as u32,
                sequence: 6,
                position: 10,
                draw_offset: position.wrapping_sub(11),
                temperature: sampling.temperature,
                top_k: sampling.top_k,
                top_p: sampling.top_p,
                min_p: sampling.min_p,
                seed: sampling.seed,
                ..Default::default()
            }])
        })
        .collect();
    let table = upload(&states.iter().map(|s| s.address()).collect::<Vec<_>>());
    let flat = upload(&logits.concat());
    let best = 5;
    let (values, ids) = (
        poisoned(logits.len() * best * 4),
        poisoned(logits.len() * best * 4),
    );
    let args = args::Sample {
        sessions: table.address(),
        logits: flat.address(),
        best_value: values.address(),
        best_id: ids.address(),
        n_vocab: n_vocab as u32,
        n_best: best as u32,
        advance: 1,
        choose: 1,
    };
    with_stream(|stream| unsafe {
        kernels()
            .sample(stream, &args, logits.len() as u32)
            .unwrap()
    });
    (0..logits.len())
        .map(|i| {
            let entry = unsafe {
                results
                    .pointer()
                    .cast::<u64>()
                    .add(i * slots + 2)
                    .read_volatile()
            };
            assert_eq!(entry >> 40, 7, "number of the step");
            let mut state = [args::Session::default()];
            states[i].read(0, &mut state).unwrap();
            assert_eq!((state[0].position, state[0].sequence), (11, 7));
            (entry as u32, (entry >> 32) as u8)
        })
        .collect()
}

fn choices_match() {
    let mut random = Random::new(1, "logits");
    for n_vocab in [1usize, 2, 500, 4096, 128_256] {
        let rows: Vec<Vec<f32>> = (0..3)
            .map(|i| {
                (0..n_vocab)
                    .map(|_| (random.signed_unit() * [1.0, 8.0, 20.0][i]).max(-19.0))
                    .collect()
            })
            .collect();
        let mut scratch = Scratch::new(n_vocab).unwrap();
        for (temperature, top_k, top_p, min_p) in [
            (0.0, 0, 1.0, 0.0),
            (1.0, 0, 1.0, 0.0),
            (0.7, 40, 1.0, 0.0),
            (0.7, 1, 0.5, 0.0),
            (1.3, 0, 0.9, 0.0),
            (1.0, 50, 0.8, 0.0),
            (2.0, 0, 1.0, 0.1),
            (1.5, 100, 0.95, 0.05),
            (1.0, 0, 1e-9, 0.0),
            (1e-3, 0, 1.0, 0.0),
        ] {
            for seed in 0..4u64 {
                let sampling = Sampling {
                    temperature,
                    top_k,
                    top_p,
                    min_p,
                    seed: seed * 0x1234_5678_9abc_def1,
                    ..Sampling::default()
                };
                let position = 12 + seed;
                for (row, got) in rows.iter().zip(sample(&rows, &sampling, position)) {
                    let want = wanted(row, &mut scratch, &sampling, position);
                    assert_eq!(got, (want, 0), "{n_vocab} logits, {sampling:?}");
                }
            }
        }
        // Equal logits: the smaller id first.
        let equal = vec![vec![1.0; n_vocab]];
        for top_k in [0, 1, 3] {
            let sampling = Sampling {
                temperature: 1.0,
                top_k,
                seed: 5,
                ..Sampling::default()
            };
            let want = wanted(&equal[0], &mut scratch, &sampling, 3);
            assert_eq!(sample(&equal, &sampling, 3), [(want, 0)]);
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
        for temperature in [0.0, 1.0] {
            let sampling = Sampling {
                temperature,
                ..Sampling::default()
            };
            let got = sample(
                &[nan.clone(), infinite.clone(), nothing.clone()],
                &sampling,
                11,
            );
            assert_eq!(got[0], (n_vocab as u32 / 2, 1));
            assert_eq!(got[1], (n_vocab as u32 - 1, 2));
            assert_eq!(got[2].1, 3);
        }
    }
}

/// What the CPU chooses from the same logits.
fn wanted(logits: &[f32], scratch: &mut Scratch, sampling: &Sampling, position: u64) -> u32 {
    let input = Input {
        logits,
        history: &[],
        rules: None,
        mask: None,
        position,
    };
    choose(&input, scratch, sampling).unwrap()
}
