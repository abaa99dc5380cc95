//! The CPU backend against the oracle and transformers, and against itself: the same bits however
//! the work is cut.

use crate::common::expected::Expected;
use crate::common::tiny::{Random, Tiny};
use crate::common::work::{Driven, Step};
use crate::common::{families, hamlet, reference_llama};
use emberlm::backend::cpu::CpuWeights;
use emberlm::backend::cpu::matmul::Isa;
use emberlm::backend::{KvType, Runner, RunnerOptions, Weights};
use emberlm::engine::sampling::Sampling;
use emberlm::format::ModelFile;
use emberlm::model::{Mixer, Network, RopePairing};
use emberlm::quant::TensorType;
use emberlm::{Result, Status};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

static NEVER: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

const GREEDY: Sampling = Sampling::GREEDY;

fn network(file: &ModelFile) -> Network {
    Network::from_file(file).unwrap()
}

fn tiny(tiny: &Tiny) -> Network {
    network(&ModelFile::from_bytes(&tiny.bytes()).unwrap())
}

fn load(network: &Network, threads: usize) -> Arc<CpuWeights> {
    CpuWeights::load(network, threads, &mut |_| Ok(())).unwrap()
}

fn runner(weights: &Arc<CpuWeights>, context: usize, kv_type: KvType) -> Driven {
    let weights: Arc<dyn Weights> = weights.clone();
    Driven::with_context(&weights, context, kv_type)
}

fn logits(runner: &mut dyn Runner, n_vocab: usize) -> Vec<f32> {
    let mut out = vec![0.0; n_vocab];
    runner.logits(&mut out).unwrap();
    out
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Logits after each token.
fn all_logits(network: &Network, tokens: &[u32], kv_type: KvType) -> Vec<Vec<f32>> {
    let weights = load(network, 2);
    let mut runner = runner(&weights, tokens.len(), kv_type);
    let step = |t: &u32| {
        runner.extend(&[*t], &NEVER).unwrap();
        logits(&mut *runner, network.n_vocab)
    };
    tokens.iter().map(step).collect()
}

/// Logits of the last token, `tokens` given in chunks.
fn last_logits(
    weights: &Arc<CpuWeights>,
    network: &Network,
    tokens: &[u32],
    chunk: usize,
    kv_type: KvType,
) -> Vec<f32> {
    let mut runner = runner(weights, tokens.len(), kv_type);
    for chunk in tokens.chunks(chunk) {
        runner.extend(chunk, &NEVER).unwrap();
    }
    assert_eq!(runner.len(), tokens.len());
    logits(&mut *runner, network.n_vocab)
}

fn tokens(n: usize, n_vocab: usize) -> Vec<u32> {
    let mut random = Random::new(5, "tokens");
    (0..n)
        .map(|_| (random.bits() % n_vocab as u64) as u32)
        .collect()
}

fn largest_difference(a: &[Vec<f32>], b: &[Vec<f64>]) -> f64 {
    assert_eq!(a.len(), b.len());
    let pairs = a.iter().flatten().zip(b.iter().flatten());
    pairs
        .map(|(a, b)| (f64::from(*a) - b).abs())
        .fold(0.0, f64::max)
}

#[test]
fn agrees_with_transformers_on_every_family() {
    for name in families::NAMES {
        let expected = Expected::read(&format!("families/{name}"));
        let network = network(&families::open(name));
        let ours = all_logits(&network, &expected.tokens, KvType::F32);
        let theirs: Vec<Vec<f64>> = expected
            .logits
            .iter()
            .map(|row| row.iter().map(|x| f64::from(*x)).collect())
            .collect();
        let largest = largest_difference(&ours, &theirs);
        println!("{name}: largest difference {largest:.2e}");
        assert!(largest < 2e-4, "{name}: {largest}");
    }
}

#[test]
fn agrees_with_the_oracle_on_quantized_weights() {
    let expected = Expected::read("hamlet_q4_k_m_logits");
    for (file, bound) in [
        (hamlet::q4_k_m(), 1e-3),
        (hamlet::converted(TensorType::F16), 1e-4),
    ] {
        let network = network(&file);
        let reference = reference_llama::logits(&network, &expected.tokens);
        let ours = all_logits(&network, &expected.tokens, KvType::F16);
        let divergence = reference_llama::mean_divergence(&reference, &ours);
        let largest = largest_difference(&ours, &reference);
        println!("divergence {divergence:.2e}, largest difference {largest:.2e}");
        assert!(divergence < bound, "{divergence}");
    }
}

#[test]
fn agrees_with_the_oracle_on_every_shape() {
    let shapes = [
        (32, 4, 4),
        (32, 6, 2),
        (64, 2, 1),
        (80, 3, 1),
        (96, 5, 5),
        (128, 8, 1),
        (20, 4, 2),
        (40, 2, 2),
    ];
    for (head_dim, heads, kv_heads) in shapes {
        for biases in [false, true] {
            let shape = Tiny {
                head_dim,
                heads,
                kv_heads,
                hidden: 48,
                ff: 80,
                biases,
                ..Tiny::default()
            };
            let mut network = tiny(&shape);
            if heads == kv_heads {
                for block in &mut network.blocks {
                    let Mixer::Attention(a) = &mut block.mixer else {
                        panic!("no attention")
                    };
                    a.rope.as_mut().unwrap().pairing = RopePairing::Halves;
                }
            }
            let tokens = tokens(40, network.n_vocab);
            let reference = reference_llama::logits(&network, &tokens);
            let ours = all_logits(&network, &tokens, KvType::F32);
            let largest = largest_difference(&ours, &reference);
            assert!(
                largest < 1e-4,
                "head_dim {head_dim}, biases {biases}: {largest}"
            );
        }
    }
}

#[test]
fn threads_and_chunks_do_not_change_a_bit() {
    for (heads, kv_heads, ty) in [
        (4, 2, TensorType::F32),
        (3, 3, TensorType::BF16),
        (6, 1, TensorType::F16),
    ] {
        let shape = Tiny {
            heads,
            kv_heads,
            head_dim: 16,
            hidden: 48,
            ff: 80,
            context: 1024,
            ty,
            ..Tiny::default()
        };
        let network = tiny(&shape);
        let tokens = tokens(540, network.n_vocab);
        for kv_type in [KvType::F16, KvType::F32] {
            let reference = last_logits(&load(&network, 1), &network, &tokens, 1, kv_type);
            for (threads, chunks) in [(1, [7, 64]), (2, [1, 540]), (3, [64, 540]), (5, [270, 539])]
            {
                let weights = load(&network, threads);
                for chunk in chunks {
                    let ours = last_logits(&weights, &network, &tokens, chunk, kv_type);
                    assert_eq!(
                        bits(&ours),
                        bits(&reference),
                        "{threads} threads, chunks of {chunk}"
                    );
                }
            }
        }
    }
}

#[test]
fn instruction_sets_do_not_change_a_bit() {
    let file = hamlet::q4_k_m();
    let network = network(&file);
    let tokens = tokens(300, network.n_vocab);
    let reference = last_logits(&load(&network, 2), &network, &tokens, 300, KvType::F16);
    for isa in Isa::available() {
        let weights = CpuWeights::load_for(isa, &network, 2, &mut |_| Ok(())).unwrap();
        let ours = last_logits(&weights, &network, &tokens, 100, KvType::F16);
        assert_eq!(bits(&ours), bits(&reference), "{isa:?}");
    }
}

#[test]
fn rewind_and_repeat_give_the_same_bits() {
    let network = network(&hamlet::q4_k_m());
    let weights = load(&network, 2);
    let tokens = tokens(290, network.n_vocab);
    let mut runner = runner(&weights, 300, KvType::F16);
    runner.extend(&tokens, &NEVER).unwrap();
    let reference = logits(&mut *runner, network.n_vocab);
    for keep in [289, 256, 255, 17, 1, 0] {
        runner.truncate(keep);
        assert!(!runner.has_logits() && runner.len() == keep);
        // Something else in between, which must leave no trace.
        runner.extend(&[3, 1, 4, 1, 5], &NEVER).unwrap();
        runner.truncate(keep);
        runner.extend(&tokens[keep..], &NEVER).unwrap();
        assert_eq!(
            bits(&logits(&mut *runner, network.n_vocab)),
            bits(&reference),
            "kept {keep}"
        );
    }
}

fn generate(runner: &mut Driven, prompt: &[u32], n: usize) -> Vec<u32> {
    runner.extend(prompt, &NEVER).unwrap();
    let mut out = Vec::new();
    for _ in 0..n {
        let step = Step {
            token: out.last().copied(),
            sampling: GREEDY,
        };
        out.push(runner.step(&step, &NEVER).unwrap());
    }
    out
}

#[test]
fn sessions_on_one_model_do_not_disturb_each_other() {
    let network = network(&hamlet::q4_k_m());
    let weights = load(&network, 2);
    let prompts: Vec<Vec<u32>> = (0..4)
        .map(|i| tokens(20 + 90 * i, network.n_vocab))
        .collect();
    let alone: Vec<Vec<u32>> = prompts
        .iter()
        .map(|p| generate(&mut runner(&weights, 400, KvType::F16), p, 20))
        .collect();
    std::thread::scope(|scope| {
        for (prompt, alone) in prompts.iter().zip(&alone) {
            let weights = &weights;
            scope.spawn(move || {
                for _ in 0..3 {
                    let mut runner = runner(weights, 400, KvType::F16);
                    assert_eq!(&generate(&mut runner, prompt, 20), alone);
                }
            });
        }
    });
}

#[test]
fn started_steps_give_the_same_tokens() {
    let network = network(&hamlet::q4_k_m());
    let weights = load(&network, 2);
    let prompt = tokens(30, network.n_vocab);
    let expected = generate(&mut runner(&weights, 64, KvType::F16), &prompt, 10);
    let mut runner = runner(&weights, 64, KvType::F16);
    let interrupt = Arc::new(AtomicBool::new(false));
    assert_eq!(
        runner.step_poll(false).unwrap_err().status,
        Status::NothingPending
    );
    runner.extend(&prompt, &NEVER).unwrap();
    let mut out: Vec<u32> = Vec::new();
    for i in 0..10 {
        let step = Step {
            token: out.last().copied(),
            sampling: GREEDY,
        };
        runner.steps_start(&step, 1, &interrupt).unwrap();
        assert_eq!(
            runner.steps_start(&step, 1, &interrupt).unwrap_err().status,
            Status::DecodePending
        );
        let token = loop {
            match runner.step_poll(i % 2 == 0).unwrap() {
                Some(token) => break token,
                None => std::thread::yield_now(),
            }
        };
        out.push(token);
    }
    assert_eq!(out, expected);
    // Freed with a step in flight.
    let step = Step {
        token: out.last().copied(),
        sampling: GREEDY,
    };
    runner.steps_start(&step, 1, &interrupt).unwrap();
    drop(runner);
    assert!(interrupt.load(Ordering::SeqCst));
    assert_eq!(Arc::strong_count(&weights), 1, "no thread holds the model");
}

#[test]
fn an_interrupt_changes_nothing() {
    let network = network(&hamlet::q4_k_m());
    let weights = load(&network, 2);
    let prompt = tokens(60, network.n_vocab);
    let mut runner = runner(&weights, 200, KvType::F16);
    runner.extend(&prompt, &NEVER).unwrap();
    let before = logits(&mut *runner, network.n_vocab);
    let set = Arc::new(AtomicBool::new(true));
    let step = Step {
        token: Some(7),
        sampling: GREEDY,
    };
    runner.steps_start(&step, 1, &set).unwrap();
    let results: [Result<()>; 4] = [
        runner.step_poll(true).map(|_| ()),
        runner.step(&step, &set).map(|_| ()),
        runner.extend(&[7], &set),
        runner.extend(&prompt, &set),
    ];
    for result in results {
        assert_eq!(result.unwrap_err().status, Status::Interrupted);
    }
    assert_eq!(runner.len(), 60);
    assert_eq!(bits(&logits(&mut *runner, network.n_vocab)), bits(&before));
    runner.extend(&prompt, &NEVER).unwrap();
    let mut fresh = self::runner(&weights, 200, KvType::F16);
    fresh.extend(&prompt, &NEVER).unwrap();
    fresh.extend(&prompt, &NEVER).unwrap();
    let n = network.n_vocab;
    assert_eq!(
        bits(&logits(&mut *runner, n)),
        bits(&logits(&mut *fresh, n))
    );
}

#[test]
fn what_does_not_fit_is_refused() {
    let network = tiny(&Tiny::default());
    let weights = load(&network, 1);
    let mut runner = runner(&weights, 10, KvType::F16);
    runner.extend(&[1, 2, 3], &NEVER).unwrap();
    for (tokens, status) in [
        (vec![1; 8], Status::ContextFull),
        (vec![48], Status::InvalidToken),
        (vec![1, 2, u32::MAX], Status::InvalidToken),
        (vec![], Status::NoInput),
    ] {
        assert_eq!(runner.extend(&tokens, &NEVER).unwrap_err().status, status);
    }
    assert_eq!(runner.len(), 3);
    runner.extend(&[1; 7], &NEVER).unwrap();
    assert_eq!(
        runner.extend(&[1], &NEVER).unwrap_err().status,
        Status::ContextFull
    );
    let options = RunnerOptions {
        context: usize::MAX,
        ..Default::default()
    };
    let error = weights.clone().create_runner(&options).err().unwrap();
    assert_eq!(error.status, Status::OutOfMemory);
    let error = CpuWeights::load(&network, 0, &mut |_| Ok(()))
        .err()
        .unwrap();
    assert_eq!(error.status, Status::InvalidArgument);
}

#[test]
fn a_load_can_be_cancelled() {
    let network = tiny(&Tiny::default());
    let mut seen = Vec::new();
    CpuWeights::load(&network, 2, &mut |share| {
        seen.push(share);
        Ok(())
    })
    .unwrap();
    assert!(seen.is_sorted() && seen.first() == Some(&0.0) && seen.last() == Some(&1.0));
    let cancelled = emberlm::Error::new(Status::Cancelled, "enough");
    let error = CpuWeights::load(&network, 2, &mut |_| Err(cancelled.clone()))
        .err()
        .unwrap();
    assert_eq!(error, cancelled);
}
