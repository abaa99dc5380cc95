//! Whole models: against the double-precision oracle and the CPU backend.

use crate::common::expected::Expected;
use crate::common::hamlet;
use crate::common::reference_llama::{self, mean_divergence};
use crate::common::tiny::Tiny;
use crate::common::work::{Driven, Step, step_batch};
use crate::gpu::*;
use emberlm::backend::cpu::CpuWeights;
use emberlm::backend::cuda::run::weights::CudaWeights;
use emberlm::backend::{KvType, MAX_BATCH, RunnerOptions, Weights};
use emberlm::engine::sampling::Sampling;
use emberlm::format::ModelFile;
use emberlm::model::Network;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub fn tests(tests: &mut Tests) {
    tests.push(("model::hamlet_q4_k_m".into(), Box::new(hamlet_matches)));
    tests.push(("model::tiny_shapes".into(), Box::new(tiny_shapes_match)));
    tests.push(("model::rewind_repeats".into(), Box::new(rewind_repeats)));
    tests.push((
        "model::batches_change_nothing".into(),
        Box::new(batches_change_nothing),
    ));
    tests.push((
        "model::out_of_memory_rolls_back".into(),
        Box::new(out_of_memory_rolls_back),
    ));
    tests.push((
        "model::queued_steps".into(),
        Box::new(queued_steps_are_the_same),
    ));
    tests.push(("model::memory_returns".into(), Box::new(memory_returns)));
}

pub fn options(context: usize, kv_type: KvType) -> RunnerOptions {
    RunnerOptions {
        context,
        kv_type,
        ..RunnerOptions::default()
    }
}

pub fn gpu(network: &Network) -> Arc<CudaWeights> {
    CudaWeights::load_into(&context(), network, &mut |_| Ok(())).unwrap()
}

pub fn runner(weights: &Arc<CudaWeights>, context: usize, kv_type: KvType) -> Driven {
    let all: Arc<dyn Weights> = weights.clone();
    Driven::new(&all, &options(context, kv_type)).unwrap()
}

/// Logits after each token, taken in one at a time.
pub fn one_by_one(runner: &mut Driven, tokens: &[u32], n_vocab: usize) -> Vec<Vec<f32>> {
    let go = Arc::new(AtomicBool::new(false));
    tokens
        .iter()
        .map(|t| {
            runner.extend(&[*t], &go).unwrap();
            let mut out = vec![f32::NAN; n_vocab];
            runner.logits(&mut out).unwrap();
            out
        })
        .collect()
}

/// Logits after each prefix whose length is in `ends`, taken in from an empty cache.
pub fn after_prefixes(
    runner: &mut Driven,
    tokens: &[u32],
    ends: &[usize],
    n_vocab: usize,
) -> Vec<Vec<f32>> {
    let go = Arc::new(AtomicBool::new(false));
    ends.iter()
        .map(|&end| {
            runner.truncate(0);
            runner.extend(&tokens[..end], &go).unwrap();
            let mut out = vec![f32::NAN; n_vocab];
            runner.logits(&mut out).unwrap();
            out
        })
        .collect()
}

/// The token with the largest logit.
pub fn best(logits: &[f32]) -> usize {
    (0..logits.len())
        .max_by(|&a, &b| logits[a].total_cmp(&logits[b]))
        .unwrap()
}

/// The same token first, where the first two of the reference differ by more than `gap`.
pub fn same_choice(reference: &[Vec<f64>], logits: &[Vec<f32>], gap: f64, what: &str) {
    for (i, (r, l)) in reference.iter().zip(logits).enumerate() {
        let mut order: Vec<usize> = (0..r.len()).collect();
        order.sort_by(|&a, &b| r[b].total_cmp(&r[a]));
        if r[order[0]] - r[order[1]] > gap {
            assert_eq!(best(l), order[0], "{what}: position {i}");
        }
    }
}

fn hamlet_matches() {
    let file = hamlet::q4_k_m();
    let network = Network::from_file(&file).unwrap();
    let expected = Expected::read("hamlet_q4_k_m_logits");
    let tokens = &expected.tokens;
    let reference: Vec<Vec<f64>> = reference_llama::logits(&network, tokens);
    let n = network.n_vocab;
    let weights = gpu(&network);
    for kv in [KvType::F16, KvType::Q8_0] {
        let mut r = runner(&weights, 512, kv);
        let decoded = one_by_one(&mut r, tokens, n);
        let divergence = mean_divergence(&reference, &decoded);
        println!("hamlet {kv:?}: decode, divergence {divergence:.2e}");
        assert!(divergence < 1e-3, "{kv:?}: decode: divergence {divergence}");
        same_choice(&reference, &decoded, 0.3, "decode");
        let ends: Vec<usize> = (1..=tokens.len()).collect();
        let prefilled = after_prefixes(&mut r, tokens, &ends, n);
        let divergence = mean_divergence(&reference, &prefilled);
        println!("hamlet {kv:?}: prefill, divergence {divergence:.2e}");
        assert!(
            divergence < 1e-3,
            "{kv:?}: prefill: divergence {divergence}"
        );
        same_choice(&reference, &prefilled, 0.3, "prefill");
    }
    let cpu: Arc<dyn Weights> = CpuWeights::load(&network, 2, &mut |_| Ok(())).unwrap();
    let mut c = Driven::new(&cpu, &options(512, KvType::F16)).unwrap();
    let on_cpu = one_by_one(&mut c, tokens, n);
    let mut r = runner(&weights, 512, KvType::F16);
    let on_gpu = one_by_one(&mut r, tokens, n);
    let wide: Vec<Vec<f64>> = on_cpu
        .iter()
        .map(|r| r.iter().map(|v| f64::from(*v)).collect())
        .collect();
    let divergence = mean_divergence(&wide, &on_gpu);
    println!("hamlet: GPU against CPU, divergence {divergence:.2e}");
    assert!(divergence < 1e-3);
    same_choice(&wide, &on_gpu, 0.3, "against the CPU");

    // Greedy decode: a thousand tokens twice give the same, whatever runs beside.
    let greedy = |count: usize| -> Vec<u32> {
        let go = Arc::new(AtomicBool::new(false));
        let mut r = runner(&weights, 512, KvType::F16);
        r.extend(&tokens[..8], &go).unwrap();
        let mut out = Vec::new();
        let mut token = None;
        for _ in 0..count {
            let step = Step {
                token,
                sampling: Sampling::default(),
            };
            let t = r.step(&step, &go).unwrap();
            out.push(t);
            token = Some(t);
        }
        out
    };
    let first = greedy(400);
    std::thread::scope(|scope| {
        let others: Vec<_> = (0..3).map(|_| scope.spawn(|| greedy(400))).collect();
        for other in others {
            assert_eq!(other.join().unwrap(), first);
        }
    });
}

fn tiny_shapes_match() {
    let variants = [
        Tiny::default(),
        Tiny {
            biases: true,
            tied: true,
            ..Tiny::default()
        },
        Tiny {
            heads: 6,
            kv_heads: 3,
            head_dim: 10,
            hidden: 44,
            ff: 52,
            vocab: 91,
            ..Tiny::default()
        },
        Tiny {
            heads: 7,
            kv_heads: 1,
            head_dim: 64,
            hidden: 128,
            ff: 100,
            biases: true,
            ..Tiny::default()
        },
        Tiny {
            heads: 4,
            kv_heads: 4,
            head_dim: 128,
            rotated: Some(64),
            hidden: 96,
            ..Tiny::default()
        },
    ];
    for (i, tiny) in variants.iter().enumerate() {
        let file = ModelFile::from_bytes(&tiny.bytes()).unwrap();
        let network = Network::from_file(&file).unwrap();
        let tokens: Vec<u32> = (0..120).map(|i| (i * 7 % network.n_vocab) as u32).collect();
        let reference = reference_llama::logits(&network, &tokens);
        let weights = gpu(&network);
        let mut r = runner(&weights, 128, KvType::F16);
        let got = one_by_one(&mut r, &tokens, network.n_vocab);
        let flat: Vec<f64> = reference.concat();
        let error = relative_error(&got.concat(), &flat);
        println!("tiny {i}: decode, error {error:.2e}");
        assert!(error < 3e-3, "variant {i}: decode: error {error}");
        let ends = [1, 2, 63, 64, 65, 66, 100, 120];
        let got = after_prefixes(&mut r, &tokens, &ends, network.n_vocab);
        let flat: Vec<f64> = ends.iter().flat_map(|e| reference[e - 1].clone()).collect();
        let error = relative_error(&got.concat(), &flat);
        println!("tiny {i}: prefill, error {error:.2e}");
        assert!(error < 5e-3, "variant {i}: prefill: error {error}");
    }
}

fn rewind_repeats() {
    let file = hamlet::q4_k_m();
    let network = Network::from_file(&file).unwrap();
    let weights = gpu(&network);
    let go = Arc::new(AtomicBool::new(false));
    let sampling = Sampling {
        temperature: 0.9,
        top_k: 50,
        top_p: 0.95,
        seed: 42,
        ..Sampling::default()
    };
    let mut r = runner(&weights, 256, KvType::F16);
    let prompt = [5u32, 6, 7, 8, 9];
    let decode = |r: &mut Driven, first: Option<u32>, n: usize| -> Vec<u32> {
        let mut token = first;
        (0..n)
            .map(|_| {
                let step = Step { token, sampling };
                let t = r.step(&step, &go).unwrap();
                token = Some(t);
                t
            })
            .collect()
    };
    r.extend(&prompt, &go).unwrap();
    let first = decode(&mut r, None, 100);
    assert_eq!(r.len(), 5 + 99);
    // Back to the middle: the token before it is evaluated again.
    r.truncate(5 + 39);
    assert!(!r.has_logits());
    r.extend(&[first[39]], &go).unwrap();
    assert_eq!(decode(&mut r, None, 60), first[40..100]);
    r.truncate(0);
    r.extend(&prompt, &go).unwrap();
    assert_eq!(decode(&mut r, None, 100), first);
    // Sampling again without a token changes nothing.
    let mut a = vec![0.0; network.n_vocab];
    r.logits(&mut a).unwrap();
    assert_eq!(decode(&mut r, None, 1), first[99..]);
    let mut b = vec![0.0; network.n_vocab];
    r.logits(&mut b).unwrap();
    assert_eq!(a, b);
}

fn memory_returns() {
    let file = hamlet::q4_k_m();
    let network = Network::from_file(&file).unwrap();
    let context = context();
    // Once before counting: modules and the like stay with the context.
    let cycle = || {
        let weights = gpu(&network);
        let go = Arc::new(AtomicBool::new(false));
        let mut r = runner(&weights, 2048, KvType::F16);
        r.extend(&(0..1500).map(|i| i % 400).collect::<Vec<u32>>(), &go)
            .unwrap();
        r.truncate(100);
        r.extend(&[1, 2, 3], &go).unwrap();
    };
    cycle();
    let before = context.memory().unwrap().0;
    for _ in 0..3 {
        cycle();
    }
    assert_eq!(context.memory().unwrap().0, before);
}

/// How session `i` of a batch chooses.
fn sampling_of(i: usize) -> Sampling {
    Sampling {
        temperature: [0.0, 0.8, 1.2][i % 3],
        top_k: 40,
        seed: i as u64,
        ..Sampling::default()
    }
}

/// Session `i` of a batch behind a prompt of its own, and the token that it has chosen.
fn started(weights: &Arc<CudaWeights>, i: usize) -> (Driven, u32) {
    let go = Arc::new(AtomicBool::new(false));
    let mut r = runner(weights, 1024, KvType::F16);
    let prompt: Vec<u32> = (0..3 + 17 * i as u32 % 640)
        .map(|t| (t * 31 + i as u32) % 500)
        .collect();
    r.extend(&prompt, &go).unwrap();
    let step = Step {
        token: None,
        sampling: sampling_of(i),
    };
    let token = r.step(&step, &go).unwrap();
    (r, token)
}

/// `n` sessions that choose `count` further tokens together, and all the tokens of each.
pub fn together(
    weights: &Arc<CudaWeights>,
    n: usize,
    count: usize,
) -> (Vec<Driven>, Vec<Vec<u32>>) {
    let go = Arc::new(AtomicBool::new(false));
    let (mut runners, first): (Vec<_>, Vec<_>) = (0..n).map(|i| started(weights, i)).unzip();
    let mut out: Vec<Vec<u32>> = first.into_iter().map(|token| vec![token]).collect();
    for _ in 0..count {
        let steps: Vec<Step> = (out.iter().enumerate())
            .map(|(i, tokens)| Step {
                token: tokens.last().copied(),
                sampling: sampling_of(i),
            })
            .collect();
        let mut refs: Vec<_> = runners.iter_mut().collect();
        let mut tokens = vec![u32::MAX; n];
        step_batch(&mut refs, &steps, &vec![&go; n], &mut tokens).unwrap();
        for (all, token) in out.iter_mut().zip(tokens) {
            all.push(token);
        }
    }
    (runners, out)
}

fn batches_change_nothing() {
    let file = hamlet::q4_k_m();
    let network = Network::from_file(&file).unwrap();
    let weights = gpu(&network);
    let go = Arc::new(AtomicBool::new(false));
    let count = 40;
    let alone: Vec<(Vec<u32>, Vec<f32>)> = (0..MAX_BATCH)
        .map(|i| {
            let (mut r, mut token) = started(&weights, i);
            let mut out = vec![token];
            for _ in 0..count {
                let step = Step {
                    token: Some(token),
                    sampling: sampling_of(i),
                };
                token = r.step(&step, &go).unwrap();
                out.push(token);
            }
            let mut logits = vec![0.0; network.n_vocab];
            r.logits(&mut logits).unwrap();
            (out, logits)
        })
        .collect();
    // Few again behind many, which have memory of their own.
    for n in [1, 2, 3, 5, 8, 12, 17, 32, 33, 35, 48, MAX_BATCH, 4] {
        let (mut runners, out) = together(&weights, n, count);
        for i in 0..n {
            assert_eq!(out[i], alone[i].0, "session {i} of {n}");
            // Only a row alone keeps its logits; here, they come from evaluating the last token again,
            // alone.
            let r = &mut runners[i];
            assert_eq!(r.has_logits(), n == 1);
            let len = r.len();
            r.truncate(len - 1);
            r.extend(&[out[i][count - 1]], &go).unwrap();
            let mut logits = vec![0.0; network.n_vocab];
            r.logits(&mut logits).unwrap();
            assert_eq!(logits, alone[i].1, "logits of session {i} of {n}");
        }
    }
}

fn out_of_memory_rolls_back() {
    use emberlm::Status;
    let file = hamlet::q4_k_m();
    let network = Network::from_file(&file).unwrap();
    let context = context();
    let go = Arc::new(AtomicBool::new(false));
    let weights = gpu(&network);
    let options = options(4096, KvType::F16);
    let load = || CudaWeights::load_into(&context, &network, &mut |_| Ok(())).map(drop);
    let session = || weights.clone().create_runner(&options).map(drop);
    // What the driver keeps of the first failures is its own: only the second time must nothing be lost.
    for before in [None, Some(())] {
        let before = before.map(|()| context.memory().unwrap().0);
        fail_each_allocation("a load", before, &load);
        fail_each_allocation("a session", before, &session);
    }
    // The growth of the cache: the session stays as it was, and goes on when there is memory.
    let tokens: Vec<u32> = (0..2000).map(|i| i % 300).collect();
    let mut r = runner(&weights, 4096, KvType::F16);
    r.extend(&tokens[..10], &go).unwrap();
    context.fail_allocation(0);
    let e = r.extend(&tokens[10..], &go).unwrap_err();
    context.fail_allocation(-1);
    assert_eq!(e.status, Status::OutOfMemory);
    assert_eq!(r.len(), 10);
    r.extend(&tokens[10..], &go).unwrap();
    assert_eq!(r.len(), 2000);
}

/// Every allocation of `make` fails once; as many bytes as `before` must be free after each.
fn fail_each_allocation(what: &str, before: Option<u64>, make: &dyn Fn() -> emberlm::Result<()>) {
    let context = context();
    let mut n = 0;
    loop {
        context.fail_allocation(n);
        let result = make();
        context.fail_allocation(-1);
        match result {
            Ok(()) => break,
            Err(e) => {
                assert_eq!(e.status, emberlm::Status::OutOfMemory, "{e}");
                let says = |word: &str| e.message.contains(word);
                assert!(says("wanted") && says("free"), "{e}");
            }
        }
        if let Some(before) = before {
            let free = context.memory().unwrap().0;
            assert_eq!(free, before, "allocation {n} of {what}");
        }
        n += 1;
    }
    assert!(n >= 3, "{what} makes {n} allocations");
}

fn queued_steps_are_the_same() {
    let file = hamlet::q4_k_m();
    let network = Network::from_file(&file).unwrap();
    let weights = gpu(&network);
    let go = Arc::new(AtomicBool::new(false));
    let sampling = Sampling {
        temperature: 0.9,
        top_k: 60,
        seed: 3,
        ..Sampling::default()
    };
    let prompt = [9u32, 8, 7, 6];
    let total = 150;
    let first = Step {
        token: None,
        sampling,
    };
    let mut a = runner(&weights, 512, KvType::F16);
    a.extend(&prompt, &go).unwrap();
    let mut one_by_one = vec![a.step(&first, &go).unwrap()];
    while one_by_one.len() < total {
        let step = Step {
            token: one_by_one.last().copied(),
            sampling,
        };
        one_by_one.push(a.step(&step, &go).unwrap());
    }
    let mut b = runner(&weights, 512, KvType::F16);
    b.extend(&prompt, &go).unwrap();
    let mut queued: Vec<u32> = Vec::new();
    for count in [1, 2, 40, 64, 43] {
        assert!(count <= b.queue_limit());
        let step = match queued.last() {
            None => first,
            Some(&token) => Step {
                token: Some(token),
                sampling,
            },
        };
        b.steps_start(&step, count, &go).unwrap();
        for _ in 0..count {
            queued.push(b.step_poll(true).unwrap().unwrap());
        }
    }
    assert_eq!(queued, one_by_one);
    let (mut x, mut y) = (vec![0.0; network.n_vocab], vec![1.0; network.n_vocab]);
    a.logits(&mut x).unwrap();
    b.logits(&mut y).unwrap();
    assert_eq!(x, y);
    // An interrupt ends the queue; the session goes on from the tokens that were collected.
    let step = Step {
        token: queued.last().copied(),
        sampling,
    };
    b.steps_start(&step, 60, &go).unwrap();
    let next = b.step_poll(true).unwrap().unwrap();
    go.store(true, std::sync::atomic::Ordering::Relaxed);
    while let Ok(Some(_)) = b.step_poll(true) {}
    go.store(false, std::sync::atomic::Ordering::Relaxed);
    let again = a.step(&step, &go).unwrap();
    assert_eq!(again, next);
    b.truncate(a.len() - 1);
    b.extend(&[step.token.unwrap()], &go).unwrap();
    let choose_again = Step {
        token: None,
        ..step
    };
    assert_eq!(b.step(&choose_again, &go).unwrap(), next);
}
