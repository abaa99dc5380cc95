//! Networks of which each of two GPUs has a share of every layer. They need two GPUs.
//!
//! What is added to the residual stream comes from two sums in place of one, so logits differ from those of one GPU as other roundings
//! do: by less than 1 % of the largest for the tiny families.

use crate::common::convert::{self, rewritten_bytes};
use crate::common::drafts::{interrupted_texts, with_spoiled};
use crate::common::later::{bloom, kimi_linear, lfm3, ling_3, mpt};
use crate::common::states::*;
use crate::common::tiny::Tiny;
use crate::common::{TempDir, repository_file};
use crate::gpu::*;
use emberlm::backend::cuda::network::ranks::{set_patience, set_pulled};
use emberlm::backend::{DeviceKind, LoadOptions, Share};
use emberlm::engine::sampling::Sampling;
use emberlm::engine::state::{Kind, RestoreOptions};
use emberlm::engine::{Model, Session, SessionOptions, device};
use emberlm::format::ModelFile;
use emberlm::quant::TensorType;
use emberlm::{Result, Status};
use std::path::Path;
use std::sync::Arc;

/// With norms behind parts, with windows, parallel, with biases and learned positions, with scales, with norms of heads, with gated
/// attention, without gates; with experts, of which some are shared or have biases, and beside a dense part; with latent attention; with
/// short convolutions, delta nets with heads in turns and in succession, and Mamba 2, also beside attention; with experts of a width of
/// their own.
const FAMILIES: &[&str] = &[
    "mistral",
    "gemma2",
    "gemma3",
    "cohere2",
    "qwen2",
    "qwen3",
    "gpt2",
    "granite",
    "phi2",
    "exaone4",
    "seed_oss",
    "starcoder2",
    "arcee",
    "apertus",
    "mixtral",
    "qwen2_moe",
    "qwen3moe",
    "granite_moe",
    "glm4_moe",
    "ernie4_5_moe",
    "gemma4_moe",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v3_biased",
    "llama4",
    "minicpm3",
    "lfm2",
    "lfm2_moe",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_next",
    "bamba",
    "granite_hybrid",
    "granite_hybrid_moe",
    "falcon_h1",
    "falcon_h1_normed",
    "nemotron_h",
    "nemotron_h_moe",
    "nemotron_h_latent",
];

/// Those of them with states of fixed size that other tests have, too: of each kind of mixer.
pub const RECURRENT: [&str; 4] = ["lfm2", "qwen3_5", "falcon_h1", "nemotron_h_latent"];

/// Those that cannot be split so, and a word of the reason.
const REFUSED: &[(&str, &str)] = &[
    ("gpt_oss", "inner elements"),
    ("mamba", "the first Mamba"),
    ("mamba2", "norm over all inner elements"),
    ("falcon_h1_biased", "norm over all inner elements"),
    ("olmo2", "norm over all heads"),
    ("gemma4_e", "inputs of layers"),
];

/// Types whose products of one row add their outputs up over all GPUs: a name, the type, and the width of the network. No type is a mix
/// of two.
const QUANTIZED: &[(&str, Option<TensorType>, usize)] = &[
    ("q8_0", Some(TensorType::Q8_0), 512),
    ("q4_0", Some(TensorType::Q4_0), 512),
    ("q4_k", Some(TensorType::Q4K), 512),
    ("q4_k_wide", Some(TensorType::Q4K), 6144),
    ("q5_k", Some(TensorType::Q5K), 512),
    ("q6_k", Some(TensorType::Q6K), 512),
    ("q4_k_m", None, 512),
];

pub fn tests(tests: &mut Tests) {
    for &name in FAMILIES {
        tests.push((format!("ranks::{name}"), Box::new(move || family(name))));
    }
    let attending = ["mistral", "gemma2", "qwen2", "mixtral", "deepseek_v2"];
    for name in attending.into_iter().chain(RECURRENT) {
        let test = format!("ranks::life::{name}");
        tests.push((test, Box::new(move || life(name))));
    }
    for (name, ty, hidden) in QUANTIZED {
        tests.push((
            format!("ranks::quantized::{name}"),
            Box::new(move || quantized(name, *ty, *hidden)),
        ));
    }
    tests.push(("ranks::pulled".into(), Box::new(pulled)));
    tests.push(("ranks::biased_experts".into(), Box::new(biased_experts)));
    tests.push(("ranks::slopes".into(), Box::new(slopes)));
    tests.push(("ranks::channels".into(), Box::new(channels)));
    tests.push(("ranks::states".into(), Box::new(states)));
    tests.push(("ranks::marks".into(), Box::new(marks)));
    tests.push(("ranks::refused".into(), Box::new(refused)));
    tests.push(("ranks::memory".into(), Box::new(memory)));
    tests.push(("ranks::threads".into(), Box::new(threads)));
    tests.push(("ranks::absent".into(), Box::new(absent)));
}

/// The usable GPUs.
pub fn gpus() -> Vec<usize> {
    let is_there = |i: &usize| {
        let info = device::info(*i).unwrap();
        info.kind == DeviceKind::Cuda && info.usable
    };
    (0..device::count().unwrap()).filter(is_there).collect()
}

pub fn options(memory_limit: u64) -> LoadOptions {
    let shares = gpus().into_iter().take(2);
    LoadOptions {
        split: shares.map(|device| Share { device, layers: 0 }).collect(),
        by_tensors: true,
        memory_limit,
        ..Default::default()
    }
}

pub fn load_with(path: &Path, options: &LoadOptions) -> Result<Arc<Model>> {
    Ok(Arc::new(Model::load(path, 0, options, &mut |_| Ok(()))?))
}

pub fn load(path: &Path) -> Arc<Model> {
    load_with(path, &options(0)).unwrap()
}

fn family(name: &str) {
    compare(name, &path_of(name), 0.01);
}

/// Experts with biases, of which one rank has those of what is added.
fn biased_experts() {
    let tiny = Tiny {
        experts: Some((5, 2)),
        ff: 96,
        biases: true,
        ..Tiny::default()
    };
    let dir = TempDir::new("gpu-rank-experts");
    let path = dir.file("biased.gguf", &tiny.bytes());
    compare("biased experts", &path, 0.01);
}

/// A session alone, whose products of one row meet by themselves, has the bits that it has in a batch, where sums over ranks are
/// kernels of their own.
fn quantized(name: &str, ty: Option<TensorType>, hidden: usize) {
    let tiny = Tiny {
        layers: 3,
        heads: 8,
        kv_heads: 4,
        head_dim: 64,
        hidden,
        ff: 1024,
        vocab: 512,
        ty: TensorType::F16,
        ..Tiny::default()
    };
    let source = ModelFile::from_bytes(&tiny.bytes()).unwrap();
    let bytes = rewritten_bytes(&source, |tensor| {
        let is_longer = tensor.name.contains("attn_v") || tensor.name.contains("ffn_down");
        let of_mix = match is_longer {
            true => TensorType::Q6K,
            false => TensorType::Q4K,
        };
        match tensor.dims.len() {
            1 => (tensor.ty, tensor.bytes().to_vec()),
            _ => (
                ty.unwrap_or(of_mix),
                convert::quantized(tensor, ty.unwrap_or(of_mix)),
            ),
        }
    });
    let dir = TempDir::new("gpu-rank-quantized");
    let path = dir.file(&format!("{name}.gguf"), &bytes);
    // An input that comes to lie on the other side of a rounding moves by a step of int8.
    compare(name, &path, 0.05);
    let mut alone = session(&load(&path));
    alone.prefill(&[5, 6, 7, 8, 9]).unwrap();
    let (mut one, mut other) = (alone.fork().unwrap(), alone.fork().unwrap());
    for i in 0..12 {
        alone.decode().unwrap();
        for chosen in Session::decode_batch(&mut [&mut one, &mut other]).unwrap() {
            chosen.unwrap();
        }
        assert!(bits(&mut alone) == bits(&mut one), "{name}: token {i}");
        assert!(bits(&mut alone) == bits(&mut other), "{name}: token {i}");
    }
}

/// Heads whose scores fall with the distance, each by a slope of its own.
fn slopes() {
    let dir = TempDir::new("gpu-rank-slopes");
    for (name, file) in [("bloom", bloom()), ("mpt", mpt())] {
        let path = dir.file(&format!("{name}.gguf"), &file.bytes());
        compare(name, &path, 0.01);
    }
}

/// Delta nets with steps of each channel; short convolutions beside attention with windows and gates of heads.
fn channels() {
    let dir = TempDir::new("gpu-rank-channels");
    for (name, file) in [
        ("kimi_linear", kimi_linear(12).file),
        ("ling_3", ling_3(12).file),
        ("lfm3", lfm3().file),
    ] {
        let path = dir.file(&format!("{name}.gguf"), &file.bytes());
        compare(name, &path, 0.01);
    }
}

/// The logits of two GPUs beside those of one, which differ by less than `bound` of the largest, and the same again.
fn compare(name: &str, path: &Path, bound: f32) {
    let one = logits(&load_on(path, DeviceKind::Cuda, &LoadOptions::default()));
    let two_model = load(path);
    assert_eq!(two_model.details().parts.len(), 2);
    let two = logits(&two_model);
    assert!(two == logits(&load(path)), "{name}: not the same again");
    let mut largest = 0f32;
    for (i, (two, one)) in two.iter().zip(&one).enumerate() {
        let (difference, size) = apart(two, one);
        largest = largest.max(difference / size);
        assert!(
            largest < bound,
            "{name}: {largest} of the largest in row {i}"
        );
    }
    println!("{name}: largest difference {largest:e} of the largest logit");
}

/// Saved, restored, forked, evicted and batched at random: with the same bits as without.
fn life(name: &str) {
    let dir = TempDir::new("gpu-ranks");
    let model = load(&long_path_of(name, &dir));
    if RECURRENT.contains(&name) && !is_stand_in() {
        // A GPU evaluates positions behind a mark with other sums, so all sessions are saved and restored alike.
        interrupted_texts(&model, Sampling::GREEDY, 150, &with_spoiled, true);
        return;
    }
    for seed in 0..3 {
        random_life(&model, seed, 50, false);
    }
}

/// A state goes from one GPU to two, and back.
fn states() {
    let dir = TempDir::new("gpu-rank-states");
    for name in ["gemma3"].into_iter().chain(RECURRENT) {
        states_of(name, &long_path_of(name, &dir));
    }
}

fn states_of(name: &str, path: &Path) {
    let one = load_on(path, DeviceKind::Cuda, &LoadOptions::default());
    let models = [one, load(path)];
    let text: Vec<u32> = (0..900).map(|i| i * 11 % 60).collect();
    for from in &models {
        let mut there = session(from);
        there.prefill(&text).unwrap();
        let file = saved(&mut there, Kind::Everything);
        for to in &models {
            let mut here = restored(to, &file, &RestoreOptions::default()).unwrap();
            assert!(bits(&mut here) == bits(&mut there), "{name}");
            if RECURRENT.contains(&name) {
                // No windows, of which devices hold more or less.
                let again = saved(&mut here, Kind::Everything);
                assert!(again == file, "{name}: saved again");
            }
            here.prefill(&[7, 8]).unwrap();
            for _ in 0..10 {
                here.decode().unwrap();
            }
        }
    }
}

/// Marks that a session asks for are at the same places on all ranks, whatever it does: they evaluate the same pieces.
fn marks() {
    let dir = TempDir::new("gpu-rank-marks");
    for name in RECURRENT {
        let model = load(&long_path_of(name, &dir));
        let options = SessionOptions {
            mark_interval: 64,
            context: 1000,
            ..Default::default()
        };
        let mut session = Session::create(model.clone(), &options).unwrap();
        let text: Vec<u32> = (0..600).map(|i| i * 11 % 60).collect();
        session.prefill(&text).unwrap();
        let mut other = session.fork().unwrap();
        for _ in 0..100 {
            session.decode().unwrap();
        }
        for at in [650, 600, 333, 64, 5] {
            session.rewind(at).unwrap();
            session.prefill(&text[..150]).unwrap();
            let mut all = [&mut session, &mut other];
            for chosen in Session::decode_batch(&mut all).unwrap() {
                chosen.unwrap();
            }
        }
        assert_eq!((session.position(), other.position()), (156, 605), "{name}");
    }
}

fn refused() {
    for (name, why) in REFUSED {
        let e = load_with(&path_of(name), &options(0))
            .map(drop)
            .unwrap_err();
        assert_eq!(e.status, Status::Unsupported, "{name}: {}", e.message);
        assert!(e.message.contains(why), "{name}: {}", e.message);
        assert!(
            e.message.contains("split by tensors"),
            "{name}: {}",
            e.message
        );
    }
    let path = path_of("mistral");
    let first = gpus()[0];
    let cpu = (0..device::count().unwrap())
        .find(|i| device::info(*i).unwrap().kind == DeviceKind::Cpu)
        .unwrap();
    let with = |shares: [(usize, usize); 2]| LoadOptions {
        split: shares
            .into_iter()
            .map(|(device, layers)| Share { device, layers })
            .collect(),
        ..options(0)
    };
    for (shares, status) in [
        ([(first, 0), (first, 0)], Status::InvalidArgument),
        ([(first, 1), (gpus()[1], 0)], Status::InvalidArgument),
        ([(first, 0), (cpu, 0)], Status::Unsupported),
        ([(first, 0), (1000, 0)], Status::NoDevice),
    ] {
        let e = load_with(&path, &with(shares)).map(drop).unwrap_err();
        assert_eq!(e.status, status, "{shares:?}: {}", e.message);
    }
}

/// Limits are of each GPU, and as the estimate says.
fn memory() {
    memory_of(&repository_file("tests/data/families/llama_plain.gguf"));
    for name in RECURRENT {
        memory_of(&path_of(name));
    }
}

fn memory_of(path: &Path) {
    let sessions = SessionOptions::default();
    let (estimate, _) = Model::estimate(path, 0, &options(0), &sessions).unwrap();
    assert_eq!(estimate.parts.len(), 2);
    let of = |i: usize| {
        let e = estimate.parts[i].1;
        e.weights_bytes + e.model_workspace_bytes
    };
    let most = of(0).max(of(1));
    // Loading needs some memory beside, which goes back.
    let model = load_with(path, &options(most + (128 << 20))).unwrap();
    let mut session = Session::create(model.clone(), &sessions).unwrap();
    session.prefill(&[1, 2, 3]).unwrap();
    session.decode().unwrap();
    for i in 0..2 {
        let taken = model.weights().taken_by(i).model;
        assert!(taken <= of(i), "{taken} of {} for rank {i}", of(i));
    }
    drop(session);
    drop(model);
    for share in [1, 20, 50] {
        let e = load_with(path, &options(most * share / 100))
            .map(drop)
            .unwrap_err();
        assert_eq!(e.status, Status::OutOfMemory, "{share}: {}", e.message);
    }
}

/// Sessions on threads of their own, of two models on the same GPUs: their work takes turns, and says what it says alone.
fn threads() {
    let dir = TempDir::new("gpu-rank-threads");
    let path = long_path_of("mistral", &dir);
    on_threads(&[load(&path), load(&path)], 60);
}

/// Sessions of two models of one file, on threads of their own: each chooses the `count` tokens that it chooses alone.
pub fn on_threads(models: &[Arc<Model>; 2], count: usize) {
    let say = |model: &Arc<Model>, seed: u32| {
        let mut session = session(model);
        let text: Vec<u32> = (0..600).map(|i| (i * 7 + seed) % 60).collect();
        session.prefill(&text).unwrap();
        (0..count)
            .map(|_| session.decode().unwrap())
            .collect::<Vec<u32>>()
    };
    let alone: Vec<_> = (0..4).map(|seed| say(&models[0], seed)).collect();
    std::thread::scope(|scope| {
        for (i, alone) in alone.iter().enumerate() {
            let say = &say;
            scope.spawn(move || assert!(say(&models[i % 2], i as u32) == *alone, "thread {i}"));
        }
    });
}

/// Sums that are long enough to be read where they are, of short rows.
fn pulled() {
    set_pulled(0);
    for name in ["mistral", "gemma2", "mixtral"] {
        family(name);
    }
    quantized("q4_k", Some(TensorType::Q4K), 512);
    set_pulled(2 << 20);
}

/// A GPU that does not come in time is an error of a model that is lost, and of no other.
fn absent() {
    let path = path_of("mistral");
    // Less than a sum takes.
    set_patience(1);
    let model = load(&path);
    set_patience(10_000_000_000);
    let mut session = session(&model);
    let mut failed = None;
    for _ in 0..50 {
        if let Err(e) = session.prefill(&[1, 2, 3]) {
            failed = Some(e);
            break;
        }
    }
    let e = failed.expect("a wait that was too long");
    assert_eq!(e.status, Status::DeviceLost, "{}", e.message);
    assert!(e.message.contains("split by tensors"), "{}", e.message);
    let e = session.prefill(&[1]).unwrap_err();
    assert_eq!(e.status, Status::DeviceLost, "{}", e.message);
    drop(session);
    let e = Session::create(model.clone(), &SessionOptions::default())
        .and_then(|mut session| session.prefill(&[1]))
        .unwrap_err();
    assert_eq!(e.status, Status::DeviceLost, "{}", e.message);
    drop(model);
    let mut session = crate::common::states::session(&load(&path));
    session.prefill(&[1, 2, 3]).unwrap();
    session.decode().unwrap();
}
