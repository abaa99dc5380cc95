//! Mixtures of experts on the CPU: against the oracle in double precision, and against themselves
//! however the work is cut. (The families that have them are compared with transformers in
//! families.rs.)

use crate::common::convert::rewritten;
use crate::common::reference_llama;
use crate::common::runs::{Run, on_cpu, on_cpu_with};
use crate::common::tiny::{Random, Tiny};
use crate::common::tiny_experts::{PLAIN, Variant, network, one_for_all, variants};
use crate::common::work::{Step, step_batch};
use emberlm::backend::KvType;
use emberlm::backend::cpu::matmul::Isa;
use emberlm::engine::sampling::Sampling;
use emberlm::format::ModelFile;
use emberlm::format::writer::Writer;
use emberlm::model::Network;
use emberlm::quant::TensorType;
use emberlm::{Error, Status};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const N_TOKENS: usize = 70;

fn tokens(n_vocab: usize) -> Vec<u32> {
    let mut random = Random::new(9, "tokens");
    (0..N_TOKENS)
        .map(|_| (random.bits() % n_vocab as u64) as u32)
        .collect()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|v| v.to_bits()).collect()
}

/// Largest difference from the oracle, relative to the largest logit.
fn error(network: &Network, tokens: &[u32]) -> f64 {
    let oracle = reference_llama::logits(network, tokens);
    let weights = on_cpu(network, 2);
    let ours = Run::new(&weights, network.n_vocab, KvType::F32).extend(tokens, 1);
    let scale = oracle
        .iter()
        .flatten()
        .fold(0.0, |a: f64, v| a.max(v.abs()));
    let pairs = oracle.iter().flatten().zip(ours.iter().flatten());
    let largest = pairs.map(|(o, v)| (o - f64::from(*v)).abs());
    largest.fold(0.0, f64::max) / scale
}

/// With matrices of floats only rounding differs. (With others a score may be off by so much that a
/// token goes elsewhere; those types are compared with floats of their values below.)
#[test]
fn every_kind_of_mixture_is_the_oracles() {
    for v in variants() {
        if v.ty.block_len() > 1 {
            continue;
        }
        let network = network(&v);
        let error = error(&network, &tokens(network.n_vocab));
        println!("{v:?}: {error:.2e}");
        assert!(error < 1e-5, "{v:?}: {error}");
    }
}

#[test]
fn one_expert_may_take_all_tokens() {
    for expert in [0, 3] {
        let network = one_for_all(&PLAIN, expert, 2);
        let error = error(&network, &tokens(network.n_vocab));
        assert!(error < 1e-5, "{expert}: {error}");
    }
}

/// What is in the weights of experts that no token goes through makes no difference.
#[test]
fn idle_experts_have_no_part() {
    let tiny = Tiny {
        experts: Some((4, 1)),
        biases: true,
        ..Tiny::default()
    };
    let file = ModelFile::from_bytes(&tiny.bytes()).unwrap();
    // All tokens go to expert 2; the others' elements become NaN.
    let poisoned = |poison: bool| {
        rewritten(&file, |tensor| {
            let mut bytes = tensor.bytes().to_vec();
            if tensor.name.ends_with("ffn_gate_inp.bias") {
                bytes[8..12].copy_from_slice(&50f32.to_le_bytes());
            }
            if poison && tensor.name.contains("_exps.") {
                let each = bytes.len() / 4;
                for (expert, part) in bytes.chunks_mut(each).enumerate() {
                    if expert != 2 {
                        part.fill(0xff);
                    }
                }
            }
            (tensor.ty, bytes)
        })
    };
    let logits = [false, true].map(|poison| {
        let network = Network::from_file(&poisoned(poison)).unwrap();
        let tokens = tokens(network.n_vocab);
        let weights = on_cpu(&network, 2);
        let mut run = Run::new(&weights, network.n_vocab, KvType::F16);
        let mut logits = run.extend(&tokens[..40], 40);
        logits.extend(run.extend(&tokens[40..], 1));
        logits
    });
    assert_eq!(logits[0], logits[1]);
}

/// In one piece, in pieces, token by token, on any number of threads, with any instruction set, and
/// with other sessions: the same bits.
#[test]
fn the_cut_makes_no_difference() {
    let mut networks: Vec<_> = variants().iter().map(|v| (*v, network(v))).collect();
    let wide = Variant { ff: 100, ..PLAIN };
    networks.push((wide, one_for_all(&wide, 2, 2)));
    for (v, network) in networks {
        let tokens = tokens(network.n_vocab);
        let alone = on_cpu_with(Isa::Scalar, &network, 1);
        let expected = Run::new(&alone, network.n_vocab, KvType::F16).extend(&tokens, 1);
        let mut cases = vec![(Isa::detect(), 1, 69), (Isa::detect(), 3, 13)];
        cases.extend(Isa::available().into_iter().map(|isa| (isa, 2, N_TOKENS)));
        for (isa, threads, piece) in cases {
            let weights = on_cpu_with(isa, &network, threads);
            let mut run = Run::new(&weights, network.n_vocab, KvType::F16);
            let ends = (piece..=tokens.len()).step_by(piece);
            for (end, logits) in ends.zip(run.extend(&tokens, piece)) {
                assert!(
                    bits(&logits) == bits(&expected[end - 1]),
                    "{v:?}, {isa:?}, {threads} threads, pieces of {piece}, {end} tokens"
                );
            }
        }
        together(&v, &network, &tokens, &expected);
    }
}

/// Sessions of one batch that stand at different tokens.
fn together(v: &Variant, network: &Network, tokens: &[u32], expected: &[Vec<f32>]) {
    let never = Arc::new(AtomicBool::new(false));
    let weights = on_cpu(network, 2);
    let starts = [1, 7, 20, 3, 50];
    let mut runs: Vec<Run> = Vec::new();
    for start in starts {
        let mut run = Run::new(&weights, network.n_vocab, KvType::F16);
        run.last(&tokens[..start], start);
        runs.push(run);
    }
    for i in 0..10 {
        let steps = starts.map(|start| Step {
            token: Some(tokens[start + i]),
            sampling: Sampling::default(),
        });
        let mut runners: Vec<_> = runs.iter_mut().map(|run| &mut run.runner).collect();
        let mut chosen = [0; 5];
        step_batch(&mut runners, &steps, &[&never; 5], &mut chosen).unwrap();
        for (run, start) in runs.iter_mut().zip(starts) {
            let mut logits = vec![f32::NAN; network.n_vocab];
            run.runner.logits(&mut logits).unwrap();
            assert!(
                bits(&logits) == bits(&expected[start + i]),
                "{v:?}, session from {start}, step {i}"
            );
        }
    }
}

fn with(tiny: &Tiny, change: impl FnOnce(&mut Writer)) -> Result<Network, Error> {
    let mut writer = tiny.writer();
    change(&mut writer);
    Network::from_file(&ModelFile::from_bytes(&tiny.write(&writer))?)
}

#[test]
fn defects_are_named() {
    let tiny = Tiny {
        experts: Some((4, 2)),
        ..Tiny::default()
    };
    type Change = fn(&mut Writer);
    let cases: [(Change, Status, &str); 10] = [
        (
            |w| _ = w.set("llama.expert_used_count", 5usize),
            Status::InvalidModel,
            "llama.expert_used_count",
        ),
        (
            |w| _ = w.set("llama.expert_used_count", 0usize),
            Status::InvalidModel,
            "llama.expert_used_count",
        ),
        (
            |w| _ = w.set("llama.expert_count", 1_000_000_000usize),
            Status::InvalidModel,
            "llama.expert_count",
        ),
        (
            |w| _ = w.set("llama.expert_count", 1_000_000usize),
            Status::ShapeMismatch,
            "blk.0.ffn_gate_inp.weight",
        ),
        (
            |w| _ = w.set("llama.expert_count", u64::MAX),
            Status::InvalidModel,
            "llama.expert_count",
        ),
        (
            |w| _ = w.set("llama.expert_count", 3usize),
            Status::ShapeMismatch,
            "blk.0.ffn_gate_inp.weight",
        ),
        (
            |w| _ = w.set("llama.expert_feed_forward_length", 65usize),
            Status::ShapeMismatch,
            "blk.0.ffn_gate_exps.weight",
        ),
        (
            |w| _ = w.set("llama.expert_gating_func", 9usize),
            Status::Unsupported,
            "llama.expert_gating_func",
        ),
        (
            |w| _ = w.set("llama.expert_weights_scale", f32::NAN),
            Status::InvalidModel,
            "llama.expert_weights_scale",
        ),
        (
            |w| {
                w.tensor("blk.0.ffn_gate.0.weight", TensorType::F32, &[32, 64])
                    .unwrap();
            },
            Status::Unsupported,
            "blk.0.ffn_gate.0.weight",
        ),
    ];
    for (change, status, name) in cases {
        let e = with(&tiny, change).unwrap_err();
        assert_eq!(e.status, status, "{e}");
        assert!(e.message.contains(name), "{e}: {name}");
    }
    let dense = Tiny::default();
    let e = with(&dense, |w| {
        w.set("llama.expert_count", 4usize)
            .set("llama.expert_used_count", 2usize);
    })
    .unwrap_err();
    assert_eq!(e.status, Status::MissingTensor);
    assert!(e.message.contains("ffn_gate_inp"), "{e}");
}
