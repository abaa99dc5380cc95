//! Whole models again: every tensor type, a wide network, a long life, a profile.

use crate::common::convert::converted;
use crate::common::expected::Expected;
use crate::common::hamlet;
use crate::common::reference_llama::{self, mean_divergence};
use crate::common::tiny::Tiny;
use crate::common::work::{Driven, Step};
use crate::gpu::Tests;
use crate::model::{after_prefixes, gpu, one_by_one, options, runner, same_choice};
use emberlm::backend::cpu::CpuWeights;
use emberlm::backend::{KvType, Runner, Weights, Work};
use emberlm::engine::sampling::Sampling;
use emberlm::format::ModelFile;
use emberlm::model::Network;
use emberlm::quant::TensorType;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub fn tests(tests: &mut Tests) {
    for ty in TensorType::ALL {
        tests.push((
            format!("networks::hamlet_{}", ty.name()),
            Box::new(move || hamlet_in(ty)),
        ));
    }
    tests.push(("networks::wide".into(), Box::new(wide)));
    tests.push((
        "networks::ten_thousand_tokens".into(),
        Box::new(ten_thousand_tokens),
    ));
    tests.push(("networks::profile".into(), Box::new(profile_is_a_step)));
}

/// Decode and prefill against the oracle on the same weights and against the CPU backend.
fn matches(name: &str, network: &Network, tokens: &[u32], gap: f64) {
    let n = network.n_vocab;
    let oracle = reference_llama::logits(network, tokens);
    let cpu: Arc<dyn Weights> = CpuWeights::load(network, 4, &mut |_| Ok(())).unwrap();
    let mut cpu = Driven::new(&cpu, &options(128, KvType::F16)).unwrap();
    let on_cpu = one_by_one(&mut cpu, tokens, n);
    let on_cpu: Vec<Vec<f64>> = on_cpu
        .iter()
        .map(|row| row.iter().map(|x| f64::from(*x)).collect())
        .collect();
    let weights = gpu(network);
    let mut gpu = runner(&weights, 128, KvType::F16);
    let ends: Vec<usize> = (1..=tokens.len()).collect();
    let decoded = one_by_one(&mut gpu, tokens, n);
    let prefilled = after_prefixes(&mut gpu, tokens, &ends, n);
    for (way, logits) in [("decode", &decoded), ("prefill", &prefilled)] {
        for (against, reference) in [("oracle", &oracle), ("CPU", &on_cpu)] {
            let divergence = mean_divergence(reference, logits);
            println!("{name}, {way} against {against}: divergence {divergence:.2e}");
            assert!(divergence < 1e-3, "{name}, {way}, {against}: {divergence}");
            same_choice(reference, logits, gap, &format!("{name}, {way}, {against}"));
        }
    }
}

fn hamlet_in(ty: TensorType) {
    let network = Network::from_file(&hamlet::converted(ty)).unwrap();
    let tokens = Expected::read("hamlet_q4_k_m_logits").tokens;
    let gap = match ty {
        TensorType::F32 | TensorType::F16 | TensorType::BF16 => 0.05,
        _ => 0.3,
    };
    matches(ty.name(), &network, &tokens, gap);
}

/// Two layers of the width of an 8B Llama.
fn wide() {
    let shape = Tiny {
        layers: 2,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        hidden: 4096,
        ff: 14336,
        vocab: 512,
        ty: TensorType::F16,
        ..Tiny::default()
    };
    let file = ModelFile::from_bytes(&shape.bytes()).unwrap();
    let file = converted(&file, TensorType::Q4K);
    let network = Network::from_file(&file).unwrap();
    let tokens: Vec<u32> = (0..12).map(|i| i * 37 % 512).collect();
    matches("wide Q4_K", &network, &tokens, 0.3);
}

/// Prefills, decodes and rewinds; the device's memory is afterwards what it was, to the byte.
fn ten_thousand_tokens() {
    let network = Network::from_file(&hamlet::q4_k_m()).unwrap();
    let context = crate::gpu::context();
    let never = Arc::new(AtomicBool::new(false));
    let life = || {
        let weights = gpu(&network);
        let mut r = runner(&weights, 2048, KvType::F16);
        let mut tokens = 0;
        while tokens < 10_000 {
            let prompt: Vec<u32> = (0..700).map(|i| (tokens + i) % 1400).collect();
            r.extend(&prompt, &never).unwrap();
            let mut token = None;
            for _ in 0..1000 {
                let step = Step {
                    token,
                    sampling: Sampling::default(),
                };
                token = Some(r.step(&step, &never).unwrap());
            }
            tokens += 1700;
            r.truncate(tokens as usize % 300);
        }
    };
    // Once before counting: modules and the like stay with the context.
    life();
    let before = context.memory().unwrap().0;
    life();
    assert_eq!(context.memory().unwrap().0, before);
}

/// A profiled step leaves what a step leaves, and its times and bytes are all there.
fn profile_is_a_step() {
    let network = Network::from_file(&hamlet::q4_k_m()).unwrap();
    let weights = gpu(&network);
    let never = Arc::new(AtomicBool::new(false));
    let prompt = [5, 6, 7, 8, 9];
    let step = Step {
        token: Some(10),
        sampling: Sampling::default(),
    };
    let logits = |r: &mut dyn Runner| {
        let mut out = vec![f32::NAN; network.n_vocab];
        r.logits(&mut out).unwrap();
        out
    };
    let mut plain = runner(&weights, 64, KvType::F16);
    plain.extend(&prompt, &never).unwrap();
    let next = plain.step(&step, &never).unwrap();
    let mut profiled = runner(&weights, 64, KvType::F16);
    profiled.extend(&prompt, &never).unwrap();
    let profile = profiled.profile(&step, &never).unwrap();
    assert_eq!(profiled.len(), plain.len());
    assert_eq!(logits(&mut *profiled), logits(&mut *plain));
    let again = Step {
        token: Some(next),
        ..step
    };
    assert_eq!(
        profiled.step(&again, &never).unwrap(),
        plain.step(&again, &never).unwrap()
    );

    let layers = network.blocks.len() as u32;
    let norms = profile.entry(Work::Norm).calls;
    // Products make their own input where they can.
    assert!(norms == 0 || norms == 3 * layers + 1, "{norms} norms");
    for (work, calls) in [
        (Work::Embed, 1),
        (Work::Qkv, layers),
        (Work::Attention, layers),
        (Work::Output, layers),
        (Work::GateUp, layers),
        (Work::Down, layers),
        (Work::Head, 1),
        (Work::Sample, 1),
    ] {
        let entry = profile.entry(work);
        println!("{}: {entry:?}", work.name());
        assert_eq!(entry.calls, calls, "{}", work.name());
        assert!(entry.microseconds > 0.0, "{}", work.name());
        assert!(entry.bytes > 0, "{}", work.name());
    }
}
