//! Mixtures of experts of every kind: against the oracle, and however the work is cut.

use crate::common::reference_llama;
use crate::common::tiny::Random;
use crate::common::tiny_experts::{PLAIN, Variant, network_of, one_for_all, variants};
use crate::common::work::{Driven, Step, step_batch};
use crate::gpu::*;
use crate::model::{gpu, one_by_one, runner};
use emberlm::backend::{KvType, MAX_BATCH};
use emberlm::engine::sampling::Sampling;
use emberlm::model::{Network, Scoring};
use emberlm::quant::TensorType;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock};

static GO: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);
const N_TOKENS: usize = 90;

pub fn tests(tests: &mut Tests) {
    let on_gpus = |v: &Variant| !matches!(v.scoring, Scoring::SparseMixer { .. });
    for (i, v) in variants().into_iter().filter(on_gpus).enumerate() {
        tests.push((
            format!("experts::{i}_of_the_oracle"),
            Box::new(move || matches(&v, &network_of(&v, 1), N_TOKENS)),
        ));
        tests.push((
            format!("experts::{i}_cut"),
            Box::new(move || cut(&v, &network_of(&v, 2))),
        ));
    }
    for expert in [0, 3] {
        tests.push((
            format!("experts::all_to_{expert}"),
            Box::new(move || matches(&PLAIN, &one_for_all(&PLAIN, expert, 1), N_TOKENS)),
        ));
    }
    tests.push(("experts::wide".into(), Box::new(wide)));
    tests.push(("experts::shared".into(), Box::new(shared)));
    tests.push(("experts::prompt".into(), Box::new(long_prompt)));
}

fn tokens(n: usize, n_vocab: usize) -> Vec<u32> {
    let mut random = Random::new(9, "tokens");
    (0..n)
        .map(|_| (random.bits() % n_vocab as u64) as u32)
        .collect()
}

/// Logits after each of `tokens`, taken in by pieces of `piece`.
fn pieces(r: &mut Driven, tokens: &[u32], piece: usize, n: usize) -> Vec<Vec<f32>> {
    r.truncate(0);
    let mut all = Vec::new();
    for piece in tokens.chunks(piece) {
        r.extend(piece, &GO).unwrap();
        let mut out = vec![f32::NAN; n];
        r.logits(&mut out).unwrap();
        all.push(out);
    }
    all
}

/// With a single layer a token is on its own but for attention, so one whose scores are so close that
/// rounding sends it to another expert leaves the others alone. There may be few of those.
fn matches(v: &Variant, network: &Network, n_tokens: usize) {
    let n = network.n_vocab;
    let tokens = tokens(n_tokens, n);
    let oracle = reference_llama::logits(network, &tokens);
    let weights = gpu(network);
    let mut r = runner(&weights, 128, KvType::F16);
    let stepped = one_by_one(&mut r, &tokens, n);
    let prefilled: Vec<Vec<f32>> = (1..=tokens.len())
        .map(|end| pieces(&mut r, &tokens[..end], end, n).pop().unwrap())
        .collect();
    // Inputs of products with quantized matrices are rounded to bytes, those of a prompt to f16.
    let exact = v.ty.block_len() == 1;
    let bounds = if exact { [2e-3, 5e-3] } else { [4e-2, 3e-2] };
    for ((way, got), bound) in [("steps", stepped), ("prompts", prefilled)]
        .into_iter()
        .zip(bounds)
    {
        let errors: Vec<f64> = got
            .iter()
            .zip(&oracle)
            .map(|(got, want)| relative_error(got, want))
            .collect();
        let astray = errors.iter().filter(|e| **e > bound).count();
        let mut sorted = errors.clone();
        sorted.sort_by(f64::total_cmp);
        println!(
            "{v:?}, {way}: median {:.1e}, largest {:.1e}, {astray} astray",
            sorted[n_tokens / 2],
            sorted[n_tokens - 1]
        );
        assert!(astray <= n_tokens.div_ceil(20), "{v:?}, {way}: {errors:?}");
    }
}

/// Batches give the bits of single sessions. Pieces of a prompt give what the whole gives but for the
/// rounding of attention, which is over in the last place of f16 (and more where it changes a byte
/// that an input is rounded to).
fn cut(v: &Variant, network: &Network) {
    let n = network.n_vocab;
    let tokens = tokens(N_TOKENS, n);
    let weights = gpu(network);
    let mut r = runner(&weights, 128, KvType::F16);
    let whole = pieces(&mut r, &tokens, N_TOKENS, n).pop().unwrap();
    let whole: Vec<f64> = whole.iter().map(|x| f64::from(*x)).collect();
    let bound = if v.ty.block_len() == 1 { 1e-3 } else { 3e-2 };
    for piece in [45, 30, 18] {
        let got = pieces(&mut r, &tokens, piece, n).pop().unwrap();
        let error = relative_error(&got, &whole);
        println!("{v:?}, pieces of {piece}: {error:.1e}");
        assert!(error < bound, "pieces of {piece}: {error}");
    }
    // What a session has seen after its prompt, alone.
    let start = |i: usize| 2 + i % 5 * 7;
    let alone: Vec<Vec<f32>> = (0..MAX_BATCH)
        .map(|i| {
            let mut r = runner(&weights, 128, KvType::F16);
            r.extend(&tokens[..start(i)], &GO).unwrap();
            one_by_one(&mut r, &tokens[start(i)..start(i) + 6], n)
                .pop()
                .unwrap()
        })
        .collect();
    for count in [2, 3, 5, 9, 17, 32, 33, MAX_BATCH] {
        let mut runners: Vec<Driven> = (0..count)
            .map(|i| {
                let mut r = runner(&weights, 128, KvType::F16);
                r.extend(&tokens[..start(i)], &GO).unwrap();
                r
            })
            .collect();
        for step in 0..5 {
            let steps: Vec<Step> = (0..count)
                .map(|i| Step {
                    token: Some(tokens[start(i) + step]),
                    sampling: Sampling::default(),
                })
                .collect();
            let mut refs: Vec<_> = runners.iter_mut().collect();
            let mut chosen = vec![0; count];
            step_batch(&mut refs, &steps, &vec![&*GO; count], &mut chosen).unwrap();
        }
        for (i, r) in runners.iter_mut().enumerate() {
            let last = one_by_one(r, &tokens[start(i) + 5..start(i) + 6], n);
            assert_eq!(last[0], alone[i], "session {i} of {count}");
        }
    }
}

/// Rows of several slices, in the types that such models come in.
fn wide() {
    for ty in [
        TensorType::Q4K,
        TensorType::Q6K,
        TensorType::MXFP4,
        TensorType::Q8_0,
    ] {
        let v = Variant {
            n_experts: 12,
            n_used: 3,
            ff: 768,
            ty,
            ..PLAIN
        };
        let network = crate::common::tiny_experts::network_with(&v, 1, 1536);
        matches(&v, &network, 20);
    }
}

/// A shared expert in the types of such models, which one session's kernels make beside the others.
fn shared() {
    for (ty, ff, gated) in [
        (TensorType::Q4K, 512, true),
        (TensorType::Q6K, 1280, false),
        (TensorType::MXFP4, 96, true),
    ] {
        let v = Variant {
            n_experts: 12,
            n_used: 3,
            ff,
            shared: Some(gated),
            ty,
            ..PLAIN
        };
        let network = |layers| crate::common::tiny_experts::network_with(&v, layers, 1536);
        matches(&v, &network(1), 20);
        cut(&v, &network(2));
    }
}

/// A prompt of several chunks, and the same as steps.
fn long_prompt() {
    let v = Variant {
        n_experts: 20,
        n_used: 4,
        ff: 96,
        ..PLAIN
    };
    let network = network_of(&v, 1);
    let n = network.n_vocab;
    let tokens = tokens(5000, n);
    let weights = gpu(&network);
    let mut r = runner(&weights, 5000, KvType::F16);
    let at_once = pieces(&mut r, &tokens, 5000, n).pop().unwrap();
    let at_once: Vec<f64> = at_once.iter().map(|x| f64::from(*x)).collect();
    let in_pieces = pieces(&mut r, &tokens, 700, n).pop().unwrap();
    r.truncate(4990);
    let stepped = one_by_one(&mut r, &tokens[4990..], n).pop().unwrap();
    for (way, got) in [("pieces", in_pieces), ("steps", stepped)] {
        let error = relative_error(&got, &at_once);
        println!("a long prompt, {way}: {error:.1e}");
        assert!(error < 1e-3, "{way}: {error}");
    }
}
