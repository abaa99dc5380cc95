//! Adapters of networks of which each of two GPUs has a share of every layer: each adds what they have for its share. They need two GPUs.

use crate::common::TempDir;
use crate::common::adapters::{adapted, random_adapter, scaled};
use crate::common::drafts::{ALWAYS, Spoiled, decoded};
use crate::common::states::{restored, saved, session};
use crate::gpu::*;
use crate::parts::{adapters_without_memory, with_adapters};
use crate::ranks::load;
use crate::ranks_drafts::path;
use emberlm::backend::{DeviceKind, LoadOptions};
use emberlm::engine::Session;
use emberlm::engine::state::{Kind, RestoreOptions};
use emberlm::quant::TensorType;
use std::path::Path;

pub fn tests(tests: &mut Tests) {
    tests.push(("ranks_adapters::families".into(), Box::new(families)));
    tests.push(("ranks_adapters::sessions".into(), Box::new(sessions)));
    tests.push(("ranks_adapters::memory".into(), Box::new(memory)));
}

/// The logits of two GPUs beside those of one. Fused and gated, with biases, with windows, parallel, without gates; with recurrences.
fn families() {
    let dir = TempDir::new("gpu-ranks-adapters");
    for name in [
        "mistral",
        "gemma2",
        "gemma3",
        "qwen2",
        "qwen3",
        "phi2",
        "cohere2",
        "granite",
        "starcoder2",
        "mixtral",
        "qwen2_moe",
        "llama4",
        "granite_moe",
        "deepseek_v3",
        "lfm2",
        "qwen3_5",
        "qwen3_next",
        "falcon_h1",
        "nemotron_h",
        "nemotron_h_latent",
    ] {
        compare(name, &long_path_of(name, &dir));
    }
    compare("hamlet", &path());
}

fn compare(name: &str, path: &Path) {
    let one_model = load_on(path, DeviceKind::Cuda, &LoadOptions::default());
    let without = logits(&one_model);
    let one = with_adapters(name, &one_model, path);
    let two = with_adapters(name, &load(path), path);
    // Of the largest logit.
    let most = |a: &[Vec<u32>], b: &[Vec<u32>]| {
        let pairs = a.iter().zip(b).map(|(a, b)| apart(a, b));
        pairs.fold(0f32, |most, (difference, size)| most.max(difference / size))
    };
    let (largest, moved) = (most(&two, &one), most(&without, &one));
    println!("{name}: largest difference {largest:e}, and {moved:e} without adapters");
    assert!(
        largest < 0.01 * moved.max(1.0) && largest < moved / 8.0,
        "{name}"
    );
}

/// A session with adapters drafts, is forked, rewound, saved and restored, and changes its adapters.
fn sessions() {
    let model = load(&path());
    let [first, second] = [(1, 16, TensorType::F16), (2, 5, TensorType::F32)]
        .map(|which| random_adapter(&model, &path(), which, 0.05));
    let wanted = [scaled(&first, 1.0), scaled(&second, -0.5)];
    let prompt: Vec<u32> = (0..70).map(|i| i * 37 % 500).collect();
    let make = || adapted(session(&model), &wanted, &prompt);
    let (mut plain, mut drafting) = (make(), make());
    let source = Spoiled::source(&drafting, 20);
    drafting.set_draft_source(source, &ALWAYS).unwrap();
    let text = decoded(&mut plain, 40);
    assert!(decoded(&mut drafting, 40) == text);
    let mut fork = drafting.fork().unwrap();
    fork.rewind(75).unwrap();
    assert!(decoded(&mut fork, 35) == text[5..]);
    let bytes = saved(&mut plain, Kind::Everything);
    let options = RestoreOptions {
        adapters: &wanted,
        ..Default::default()
    };
    let mut again = restored(&model, &bytes, &options).unwrap();
    assert!(decoded(&mut again, 10) == decoded(&mut drafting, 10));
    // With one of them, as from the beginning.
    let mut changed = make();
    changed.set_adapters(&wanted[1..], false).unwrap();
    let mut other: Session = adapted(session(&model), &wanted[1..], &prompt);
    assert!(decoded(&mut changed, 10) == decoded(&mut other, 10));
}

fn memory() {
    adapters_without_memory(&load(&path()), &path(), (None, 1));
}
