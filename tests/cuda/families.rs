//! Tiny models of every family against the logits that transformers computed in float32.
//!
//! Weights have their exact values here, and a decode step has f32 inputs of its products; what is
//! rounded to f16 are the KV cache, queries and weights of the softmax, and in a prefill every input
//! of a product. So logits are off by some 2^-11 of their size, and layers add to that: a hundredth of
//! the largest logit is the bound, and 0.15 with q8_0 caches, whose values have 8 bits.

use crate::common::convert::converted;
use crate::common::edit::Edited;
use crate::common::expected::Expected;
use crate::common::families::{FAMILIES, WINDOWED};
use crate::common::repository_file;
use crate::common::work::{Driven, Step, step_batch};
use crate::gpu::Tests;
use crate::model::{gpu, one_by_one, options, runner, same_choice};
use emberlm::backend::cpu::CpuWeights;
use emberlm::backend::cuda::run::weights::CudaWeights;
use emberlm::backend::{KvType, Runner, Weights};
use emberlm::engine::sampling::Sampling;
use emberlm::format::ModelFile;
use emberlm::model::{Block, Network};
use emberlm::quant::TensorType;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub fn tests(tests: &mut Tests) {
    for &name in FAMILIES {
        tests.push((
            format!("families::{name}"),
            Box::new(move || matches_transformers(name)),
        ));
        tests.push((
            format!("families::{name}_batch"),
            Box::new(move || batches_change_nothing(name, &network(name), &tokens(name))),
        ));
        tests.push((
            format!("families::{name}_fork"),
            Box::new(move || forks_go_their_own_way(name, &network(name), &tokens(name))),
        ));
    }
    tests.push((
        "families::fused_experts".into(),
        Box::new(gates_and_ups_of_experts_may_be_one_matrix),
    ));
    // Those whose positions go on beyond the context that they were made for.
    for &name in WINDOWED.iter().filter(|name| **name != "gpt_oss") {
        tests.push((
            format!("families::{name}_beyond_the_ring"),
            Box::new(move || beyond_the_ring(name, network(name))),
        ));
    }
}

fn network(name: &str) -> Network {
    let path = repository_file(&format!("tests/data/families/{name}/model.gguf"));
    let mut file = ModelFile::open(&path).unwrap();
    if file.tensors.values().any(|t| t.ty == TensorType::MXFP4) {
        // The same values, for products with quantized matrices round their inputs to bytes.
        file = converted(&file, TensorType::F16);
    }
    Network::from_file(&file).unwrap()
}

fn tokens(name: &str) -> Vec<u32> {
    Expected::read(&format!("families/{name}/logits")).tokens
}

fn gates_and_ups_of_experts_may_be_one_matrix() {
    let tokens: Vec<u32> = (0..30).map(|i| i * 7 % 96).collect();
    for name in ["qwen3moe", "deepseek_v3"] {
        let path = repository_file(&format!("tests/data/families/{name}/model.gguf"));
        let apart = ModelFile::open(&path).unwrap();
        let all = |file: &ModelFile| -> Vec<f32> {
            let network = Network::from_file(file).unwrap();
            let mut runner = runner(&gpu(&network), 64, KvType::F16);
            let mut all = in_pieces(&mut runner, &tokens[..29], 13, network.n_vocab);
            all.extend(in_pieces(&mut runner, &tokens[29..], 1, network.n_vocab));
            all
        };
        let fused = Edited::of(&apart).fuse_experts().open();
        assert!(all(&apart) == all(&fused), "{name}");
    }
}

/// Logits after all of `tokens`, taken in by pieces of `piece`.
fn in_pieces(r: &mut Driven, tokens: &[u32], piece: usize, n_vocab: usize) -> Vec<f32> {
    let go = Arc::new(AtomicBool::new(false));
    for piece in tokens.chunks(piece) {
        r.extend(piece, &go).unwrap();
    }
    let mut out = vec![f32::NAN; n_vocab];
    r.logits(&mut out).unwrap();
    out
}

/// The largest difference, over the largest logit.
fn difference(got: &[Vec<f32>], want: &[Vec<f32>]) -> f32 {
    assert_eq!(got.len(), want.len());
    let (mut apart, mut size) = (0f32, 0f32);
    for (got, want) in got.iter().zip(want) {
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(want) {
            assert!(got.is_finite(), "a logit is {got}");
            apart = apart.max((got - want).abs());
            size = size.max(want.abs());
        }
    }
    apart / size
}

/// `bound` is a share of the largest logit.
fn check(name: &str, what: &str, got: &[Vec<f32>], want: &[Vec<f32>], bound: f32) {
    let apart = difference(got, want);
    let size = want.iter().flatten().fold(0f32, |m, v| m.max(v.abs()));
    // The rows that are furthest away.
    let rows = got.iter().zip(want).map(|(got, want)| {
        let apart = got.iter().zip(want).map(|(got, want)| (got - want).abs());
        apart.fold(0f32, f32::max) / size
    });
    let mut rows: Vec<(usize, f32)> = rows.enumerate().collect();
    rows.sort_by(|a, b| b.1.total_cmp(&a.1));
    rows.truncate(3);
    println!("{name}, {what}: {apart:.1e}, rows {rows:?}");
    assert!(
        apart < bound,
        "{name}, {what}: {apart} of the largest logit"
    );
    let wide: Vec<Vec<f64>> = want
        .iter()
        .map(|row| row.iter().map(|v| f64::from(*v)).collect())
        .collect();
    let margin = f64::from(2.0 * bound * size);
    same_choice(&wide, got, margin, &format!("{name}, {what}"));
}

/// The rows but for the one in twenty that may be beyond the bound in a network with experts: there,
/// scores that are nearly equal send a token to another expert if they are off by a little.
fn without_astray<'a>(
    network: &Network,
    got: &'a [Vec<f32>],
    want: &'a [Vec<f32>],
    bound: f32,
) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
    let has_experts = |b: &Block| b.feed_forward.experts().is_some();
    let pairs = got.iter().zip(want);
    let mut pairs: Vec<(&'a Vec<f32>, &'a Vec<f32>)> = pairs.collect();
    if network.blocks.iter().any(has_experts) {
        let size = want.iter().flatten().fold(0f32, |m, v| m.max(v.abs()));
        let apart = |(got, want): &(&Vec<f32>, &Vec<f32>)| {
            let differences = got.iter().zip(*want).map(|(g, w)| (g - w).abs());
            differences.fold(0f32, f32::max) / size
        };
        pairs.sort_by(|a, b| apart(a).total_cmp(&apart(b)));
        let few = pairs.len() / 20;
        let beyond = pairs.iter().filter(|p| apart(p) >= bound).count();
        pairs.truncate(pairs.len() - beyond.min(few));
    }
    pairs
        .into_iter()
        .map(|(got, want)| (got.clone(), want.clone()))
        .unzip()
}

/// Goes back to the first `len` positions; in a network with states of fixed size to the last mark
/// before.
fn rewound(r: &mut Driven, network: &Network, len: usize) -> usize {
    let kept = r.truncate(len);
    let has_fixed = |b: &Block| b.mixer.state(network.context_length).fixed_len() > 0;
    assert!(kept == len || kept < len && network.blocks.iter().any(has_fixed));
    kept
}

fn matches_transformers(name: &str) {
    let network = network(name);
    let mut texts = vec![("logits", network.context_length)];
    let short = repository_file(&format!("tests/data/families/{name}/short.bin"));
    if short.exists() {
        // Sessions with a context of this length have frequencies of their own.
        let above = network.blocks.iter().find_map(|b| {
            let long = b.mixer.rope()?.long.as_ref()?;
            Some(long.above)
        });
        texts.push(("short", above.expect("other frequencies for long contexts")));
    }
    for (text, context) in texts {
        let expected = Expected::read(&format!("families/{name}/{text}"));
        // A token that goes to another expert changes the state that all later ones read.
        let bound = match name {
            "qwen3_5_moe" => 3e-2,
            // Six layers with a norm of each part's output, and what two of them read was rounded in others.
            "gemma4_e" => 2e-2,
            _ => 1e-2,
        };
        matches_logits((name, text), &network, &expected, (context, bound));
    }
}

/// Compares logits of a text in sessions of such a context with these, whichever way it comes in; with f16 caches within a bound.
pub fn matches_logits(
    (name, text): (&str, &str),
    network: &Network,
    expected: &Expected,
    (context, f16): (usize, f32),
) {
    let weights = gpu(network);
    let n = network.n_vocab;
    let (tokens, want) = (&expected.tokens, &expected.logits);
    for (kv, bound) in [(KvType::F16, f16), (KvType::Q8_0, 0.15)] {
        let what = |how: &str| format!("{text} {kv:?} {how}");
        let mut r = runner(&weights, context, kv);
        let stepped = one_by_one(&mut r, tokens, n);
        let (near, wanted) = without_astray(network, &stepped, want, bound);
        check(name, &what("stepped"), &near, &wanted, bound);
        for piece in [tokens.len(), 7, 3] {
            r.truncate(0);
            let got = in_pieces(&mut r, tokens, piece, n);
            let last = &want[want.len() - 1..];
            check(name, &what(&format!("by {piece}")), &[got], last, bound);
        }
        let prefilled: Vec<Vec<f32>> = (1..=tokens.len())
            .map(|end| {
                r.truncate(0);
                in_pieces(&mut r, &tokens[..end], end, n)
            })
            .collect();
        let (near, wanted) = without_astray(network, &prefilled, want, bound);
        check(name, &what("prefilled"), &near, &wanted, bound);
        // A rewind repeats to the bit.
        r.truncate(0);
        one_by_one(&mut r, tokens, n);
        let back = rewound(&mut r, network, tokens.len() / 2);
        let again = one_by_one(&mut r, &tokens[back..], n);
        assert!(again == stepped[back..], "{name}: {kv:?} after a rewind");
    }
}

/// Sessions of different lengths decode together as they do alone, to the bit.
pub fn batches_change_nothing(name: &str, network: &Network, tokens: &[u32]) {
    let weights = gpu(network);
    let go = Arc::new(AtomicBool::new(false));
    let steps = 12;
    // Contexts differ as well, to either side of what LongRoPE knows.
    let start = |i: usize| {
        let context = if i.is_multiple_of(2) { 64 } else { 32 };
        let mut r = runner(&weights, context, KvType::F16);
        r.extend(&tokens[..2 + i], &go).unwrap();
        r
    };
    let step = |token: u32| Step {
        token: Some(token),
        sampling: Sampling::default(),
    };
    let alone: Vec<(Vec<u32>, Vec<f32>)> = (0..6)
        .map(|i| {
            let mut r = start(i);
            let mut chosen = vec![tokens[i]];
            for _ in 0..steps {
                let step = step(chosen[chosen.len() - 1]);
                chosen.push(r.step(&step, &go).unwrap());
            }
            let mut logits = vec![f32::NAN; network.n_vocab];
            r.logits(&mut logits).unwrap();
            (chosen, logits)
        })
        .collect();
    for n in [2, 6] {
        let mut runners: Vec<_> = (0..n).map(start).collect();
        let mut chosen: Vec<Vec<u32>> = (0..n).map(|i| vec![tokens[i]]).collect();
        for _ in 0..steps {
            let next: Vec<Step> = (0..n)
                .map(|i| step(chosen[i][chosen[i].len() - 1]))
                .collect();
            let mut together: Vec<_> = runners.iter_mut().collect();
            let mut out = vec![u32::MAX; n];
            step_batch(&mut together, &next, &vec![&go; n], &mut out).unwrap();
            for (chosen, token) in chosen.iter_mut().zip(out) {
                chosen.push(token);
            }
        }
        for (i, r) in runners.iter_mut().enumerate() {
            assert_eq!(chosen[i], alone[i].0, "{name}: session {i} of {n}");
            // The last token again, alone, gives the logits that led to the choice.
            let len = r.len();
            let kept = rewound(r, network, len - 1);
            for token in &chosen[i][kept + steps - len..steps] {
                r.extend(&[*token], &go).unwrap();
            }
            let mut logits = vec![f32::NAN; network.n_vocab];
            r.logits(&mut logits).unwrap();
            assert_eq!(logits, alone[i].1, "{name}: logits of session {i} of {n}");
        }
    }
}

/// A fork goes on as the first session does, to the bit, and neither sees what the other writes.
pub fn forks_go_their_own_way(name: &str, network: &Network, tokens: &[u32]) {
    let weights = gpu(network);
    let n = network.n_vocab;
    let go = Arc::new(AtomicBool::new(false));
    for kv in [KvType::F16, KvType::Q8_0] {
        let mut first = runner(&weights, 64, kv);
        assert!(first.fork().unwrap().is_empty());
        for cut in [1, tokens.len() / 2, tokens.len() - 1] {
            first.truncate(0);
            first.extend(&tokens[..cut], &go).unwrap();
            let mut fork = first.fork().unwrap();
            assert!(fork.len() == cut && fork.has_logits());
            let mut stray = first.fork().unwrap();
            stray.truncate(cut / 2);
            stray.extend(&[5; 20], &go).unwrap();
            let mut logits = [vec![f32::NAN; n], vec![f32::NAN; n]];
            first.logits(&mut logits[0]).unwrap();
            fork.logits(&mut logits[1]).unwrap();
            assert!(logits[0] == logits[1], "{name}: at {cut}");
            let want = one_by_one(&mut first, &tokens[cut..], n);
            let got = one_by_one(&mut fork, &tokens[cut..], n);
            assert!(got == want, "{name}: {kv:?} after {cut}");
            // The tokens that penalties look at are known to both.
            let step = Step {
                token: None,
                sampling: Sampling {
                    temperature: 0.7,
                    repeat_penalty: 1.5,
                    penalty_window: 30,
                    seed: cut as u64,
                    ..Sampling::default()
                },
            };
            let chosen = first.step(&step, &go).unwrap();
            assert_eq!(fork.step(&step, &go).unwrap(), chosen, "{name}: {kv:?}");
        }
    }
}

/// Contexts that go round the ring of the layers with a window: against the CPU, rewound to what the
/// ring still has, and to what it has no more.
pub fn beyond_the_ring(name: &str, mut network: Network) {
    network.context_length = 8192;
    let n = network.n_vocab;
    let go = Arc::new(AtomicBool::new(false));
    let tokens: Vec<u32> = (0..5000).map(|i| (i * i + 3 * i) % n as u32).collect();
    let cpu: Arc<dyn Weights> = CpuWeights::load(&network, 2, &mut |_| Ok(())).unwrap();
    let mut cpu = Driven::new(&cpu, &options(6000, KvType::F16)).unwrap();
    let weights: Arc<CudaWeights> = gpu(&network);
    let mut r = runner(&weights, 6000, KvType::F16);
    let logits = |r: &mut dyn Runner| {
        let mut out = vec![f32::NAN; n];
        r.logits(&mut out).unwrap();
        out
    };
    let bound = 1e-2;
    for end in [2100, 4700, 5000] {
        let from = cpu.len();
        cpu.extend(&tokens[from..end], &go).unwrap();
        r.extend(&tokens[from..end], &go).unwrap();
        let (got, want) = (logits(&mut *r), logits(&mut *cpu));
        check(name, &format!("{end} positions"), &[got], &[want], bound);
    }
    // Step by step, and the same again after going back.
    assert_eq!(r.truncate(4900), 4900);
    let stepped = one_by_one(&mut r, &tokens[4900..], n);
    let want = [logits(&mut *cpu)];
    check(name, "stepped", &stepped[99..], &want, bound);
    assert_eq!(r.truncate(4950), 4950);
    let again = one_by_one(&mut r, &tokens[4950..], n);
    assert!(again == stepped[50..], "{name}: after a rewind");
    let mut fork = r.fork().unwrap();
    // Too far for the ring: all is to be evaluated again.
    assert_eq!(r.truncate(300), 0);
    assert_eq!(r.len(), 0);
    r.extend(&tokens[..2100], &go).unwrap();
    r.extend(&tokens[2100..4700], &go).unwrap();
    r.extend(&tokens[4700..], &go).unwrap();
    check(name, "evaluated again", &[logits(&mut *r)], &want, bound);
    assert_eq!(fork.truncate(4950), 4950);
    let forked = one_by_one(&mut fork, &tokens[4950..], n);
    assert!(forked == stepped[50..], "{name}: a fork after a rewind");
}
