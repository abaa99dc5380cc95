//! Networks in parts: between a GPU and the CPU, and between two GPUs, or twice the same one where there is no other.
//!
//! A GPU and the CPU round inputs of products in other ways, so logits of a network in parts lie between those of either
//! device as a whole: within 3 % of the largest logit for the tiny families, within 0.3 for hamlet, which is quantized.

use crate::common::adapters::{random_adapter, scaled};
use crate::common::states::*;
use crate::common::{TempDir, repository_file};
use crate::gpu::*;
use emberlm::backend::{DeviceKind, LoadOptions, Share};
use emberlm::engine::state::{Kind, RestoreOptions};
use emberlm::engine::{Adapter, Model, Session, SessionOptions, device};
use emberlm::quant::TensorType;
use emberlm::{Result, Status};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Dense, with windows, parallel, recurrent, hybrid, with experts, with a width that is no multiple of 32.
const FAMILIES: &[&str] = &[
    "mistral",
    "gemma3",
    "cohere2",
    "lfm2",
    "qwen3_5",
    "mixtral",
    "gpt_oss",
    "gpt2",
    "nemotron_h_moe",
    "deepseek_v2",
    "mistral4",
    "falcon_h1",
    "mamba",
    "mamba2",
    "jamba",
];

pub fn tests(tests: &mut Tests) {
    for &name in FAMILIES {
        tests.push((format!("parts::{name}"), Box::new(move || family(name))));
    }
    tests.push(("parts::hamlet".into(), Box::new(hamlet)));
    // Not those with recurrent layers: a GPU evaluates positions behind a mark with other sums.
    for name in ["gemma3", "mixtral"] {
        let test = format!("parts::life::{name}");
        tests.push((test, Box::new(move || life_of(name))));
    }
    for seed in 0..3 {
        for (i, on_gpu) in [[false, true], [true, false], [true, true]]
            .into_iter()
            .enumerate()
        {
            for has_grammar in [false, true] {
                let test = format!("parts::life::hamlet_{i}_{seed}_{has_grammar}");
                let run = move || {
                    let place = |on_gpu| if on_gpu { gpu() } else { cpu() };
                    let [first, last] = on_gpu.map(place);
                    life(&[(3, first)], last, seed, has_grammar);
                };
                tests.push((test, Box::new(run)));
            }
        }
    }
    tests.push(("parts::states".into(), Box::new(states)));
    tests.push(("parts::two_gpus".into(), Box::new(two_gpus)));
    tests.push(("parts::shared_by_gpus".into(), Box::new(shared_by_gpus)));
    tests.push(("parts::adapters".into(), Box::new(adapters)));
    let test = "parts::adapters_out_of_memory";
    tests.push((test.into(), Box::new(adapters_out_of_memory)));
    tests.push(("parts::memory_limit".into(), Box::new(memory_limit)));
    tests.push(("parts::out_of_memory".into(), Box::new(out_of_memory)));
}

pub fn cpu() -> usize {
    nth(DeviceKind::Cpu, 0)
}

pub fn gpu() -> usize {
    nth(DeviceKind::Cuda, 0)
}

/// A model whose first layers go to other devices than the rest.
pub fn load(path: &Path, cuts: &[(usize, usize)], device: usize) -> Arc<Model> {
    let mut first = 0;
    let cut = |&(end, device): &(usize, usize)| {
        let layers = end - first;
        first = end;
        Share { device, layers }
    };
    // The last part has all layers that are left.
    let last = Share { device, layers: 0 };
    let options = LoadOptions {
        split: cuts.iter().map(cut).chain([last]).collect(),
        ..Default::default()
    };
    Arc::new(Model::load(path, device, &options, &mut |_| Ok(())).unwrap())
}

/// All ways to share a network between a GPU and the CPU that are tested: cuts, and the device of the last part.
fn ways(path: &Path) -> Vec<(Vec<(usize, usize)>, usize)> {
    let n = load(path, &[], cpu()).details().n_layers;
    let mut ways = Vec::new();
    for at in 1..n {
        ways.push((vec![(at, cpu())], gpu()));
        ways.push((vec![(at, gpu())], cpu()));
    }
    if n > 2 {
        ways.push((vec![(1, cpu()), (n - 1, gpu())], cpu()));
        ways.push((vec![(1, gpu()), (n - 1, cpu())], gpu()));
    }
    ways
}

fn compare(name: &str, path: &Path, bound: impl Fn(f32) -> f32) {
    let whole = logits(&load(path, &[], cpu()));
    let mut largest = 0f32;
    for (cuts, device) in ways(path) {
        let parts = logits(&load(path, &cuts, device));
        for (i, (parts, whole)) in parts.iter().zip(&whole).enumerate() {
            let (difference, size) = apart(parts, whole);
            largest = largest.max(difference / size);
            assert!(
                difference < bound(size),
                "{name}, {cuts:?} and {device}: {difference} of {size} in row {i}"
            );
        }
    }
    println!("{name}: largest difference {largest} of the largest logit");
}

fn family(name: &str) {
    compare(name, &path_of(name), |size| 0.03 * size);
}

pub fn hamlet_path() -> PathBuf {
    repository_file("models/hamlet-7m-Q4_K_M.gguf")
}

fn hamlet() {
    compare("hamlet", &hamlet_path(), |_| 0.3);
}

/// Saved, restored, forked, evicted and batched at random: with the same bits as without.
fn life(cuts: &[(usize, usize)], device: usize, seed: u64, has_grammar: bool) {
    random_life(&load(&hamlet_path(), cuts, device), seed, 50, has_grammar);
}

/// The same of a family.
fn life_of(name: &str) {
    let dir = TempDir::new("gpu-parts");
    let model = load(&long_path_of(name, &dir), &[(1, cpu())], gpu());
    for seed in 0..3 {
        random_life(&model, seed, 50, false);
    }
}

/// A state goes from any placement to any other.
fn states() {
    let dir = TempDir::new("gpu-part-states");
    for name in ["gemma3", "qwen3_5"] {
        let path = long_path_of(name, &dir);
        let models = [
            load(&path, &[], cpu()),
            load(&path, &[], gpu()),
            load(&path, &[(1, cpu())], gpu()),
            load(&path, &[(1, gpu())], cpu()),
        ];
        let text: Vec<u32> = (0..900).map(|i| i * 11 % 60).collect();
        for from in &models {
            let mut there = session(from);
            there.prefill(&text).unwrap();
            let file = saved(&mut there, Kind::Everything);
            for to in &models {
                let mut here = restored(to, &file, &RestoreOptions::default()).unwrap();
                assert!(bits(&mut here) == bits(&mut there), "{name}");
                here.prefill(&[7, 8]).unwrap();
                let mut alone = session(to);
                alone.prefill(&text).unwrap();
                alone.prefill(&[7, 8]).unwrap();
                let (difference, size) = apart(&bits(&mut here), &bits(&mut alone));
                assert!(difference < 0.03 * size, "{name}: {difference} of {size}");
            }
        }
    }
}

/// Two GPUs: the bits of one.
fn two_gpus() {
    let (first, second) = (gpu(), nth(DeviceKind::Cuda, 1));
    println!("devices {first} and {second}");
    let greedy = |model: &Arc<Model>| {
        let mut session = session(model);
        let text: Vec<u32> = (0..300).map(|i| i * 37 % 500).collect();
        session.prefill(&text).unwrap();
        let mut said = bits(&mut session);
        for _ in 0..40 {
            said.push(session.decode().unwrap());
        }
        let mut fork = session.fork().unwrap();
        let mut both = [&mut session, &mut fork];
        let chosen = Session::decode_batch(&mut both).unwrap();
        said.extend(chosen.into_iter().map(|token| token.unwrap()));
        said
    };
    for (path, n) in [
        (hamlet_path(), 6),
        (repository_file("tests/data/families/mixtral/model.gguf"), 2),
        (repository_file("tests/data/families/mistral/model.gguf"), 2),
    ] {
        let whole_model = load(&path, &[], first);
        let layers = whole_model.details().n_layers;
        assert!(layers >= n.min(2));
        if layers < 2 {
            panic!("{} cannot be cut", path.display());
        }
        let short = whole_model.details().context_length < 400;
        let said = |model: &Arc<Model>| match short {
            true => logits(model).concat(),
            false => greedy(model),
        };
        let whole = said(&whole_model);
        for at in 1..layers {
            let model = load(&path, &[(at, first)], second);
            assert!(said(&model) == whole, "{} at {at}", path.display());
        }
    }
}

/// GPUs share a model by themselves: in proportion to their memory, within limits, and with the CPU where these are too small. What
/// it says does not change, with prompts of many pieces, of which several are under way, either.
fn shared_by_gpus() {
    let (first, second) = (gpu(), nth(DeviceKind::Cuda, 1));
    let path = hamlet_path();
    let options = |memory_limit| LoadOptions {
        split: [first, second]
            .map(|device| Share { device, layers: 0 })
            .into_iter()
            .collect(),
        memory_limit,
        ..Default::default()
    };
    let session_options = SessionOptions {
        context: 2000,
        ..Default::default()
    };
    let prompt: Vec<u32> = (0..1900).map(|i| i * 37 % 500).collect();
    let say = |model: &Arc<Model>| {
        let create = || Session::create(model.clone(), &session_options).unwrap();
        let mut sessions = [create(), create()];
        // Both at once, one of them in the background.
        sessions[1].prefill_start(&prompt).unwrap();
        sessions[0].prefill(&prompt).unwrap();
        while !sessions[1].prefill_poll().unwrap().0 {
            std::thread::yield_now();
        }
        let mut said = Vec::new();
        for session in &mut sessions {
            said.push(bits(session));
            said.push((0..30).map(|_| session.decode().unwrap()).collect());
        }
        said
    };
    let load = |memory_limit| {
        let (estimate, _) = Model::estimate(&path, 0, &options(memory_limit), &session_options)?;
        let model = Arc::new(Model::load(&path, 0, &options(memory_limit), &mut |_| {
            Ok(())
        })?);
        let parts = &model.details().parts;
        assert_eq!(parts.len(), estimate.parts.len());
        for (i, (part, (estimated, bytes))) in parts.iter().zip(&estimate.parts).enumerate() {
            assert_eq!(part, estimated);
            let taken = model.weights().taken_by(i).model;
            if device::info(part.device).unwrap().kind == DeviceKind::Cuda && memory_limit > 0 {
                assert!(taken <= memory_limit, "{taken} of {memory_limit}");
                assert!(taken >= bytes.weights_bytes);
            }
        }
        emberlm::Result::Ok(model)
    };
    let whole_model = self::load(&path, &[], first);
    let whole = say(&whole_model);
    let model = load(0).unwrap();
    let layers: Vec<_> = model.details().parts.iter().map(|p| p.layers).collect();
    println!("layers on GPUs {first} and {second}: {layers:?}");
    assert_eq!(layers.len(), 2);
    assert_eq!(layers.iter().sum::<usize>(), model.details().n_layers);
    assert!(say(&model) == whole, "shared by {first} and {second}");
    let (one, _) =
        Model::estimate(&path, first, &LoadOptions::default(), &session_options).unwrap();
    let (weights, workspace) = (one.device.weights_bytes, one.device.model_workspace_bytes);
    if first == second {
        let e = load(weights + workspace).map(drop).unwrap_err();
        assert_eq!(e.status, Status::InvalidArgument);
        return;
    }
    // Weights take whole pages, of which the model has two: half of its layers need both.
    for (limit, n_parts) in [(weights + workspace, 2), (weights * 2 / 3 + workspace, 3)] {
        let model = load(limit).unwrap();
        let parts = model.details().parts.clone();
        println!("{weights} and {workspace} bytes, {limit} on each GPU: {parts:?}");
        assert_eq!(parts.len(), n_parts);
        if n_parts == 2 {
            assert!(say(&model) == whole);
        } else {
            assert_eq!(parts[0].device, cpu());
            assert!(model.details().device_layers < model.details().n_layers);
            say(&model);
        }
    }
}

/// What sessions of a model with random adapters say, which do not see each other: its logits with two of them. `what` is for messages.
pub fn with_adapters(what: &str, model: &Arc<Model>, path: &Path) -> Vec<Vec<u32>> {
    let before = model.weights().taken().sessions;
    let [first, second] = [(1, 16, TensorType::F16), (2, 5, TensorType::F32)]
        .map(|which| random_adapter(model, path, which, 0.05));
    let wanted = [scaled(&first, 1.0), scaled(&second, -0.5)];
    let make = |wanted| {
        let mut session = session(model);
        session.set_adapters(wanted, false).unwrap();
        session
    };
    let sessions = || [&wanted[..], &[], &wanted[1..]].map(make);
    let n_vocab = model.details().n_vocab.min(500) as u32;
    let prompt: Vec<u32> = (0..70).map(|i| i * 37 % n_vocab).collect();
    let [mut alone, mut together] = [sessions(), sessions()];
    for session in alone.iter_mut().chain(&mut together) {
        session.prefill(&prompt).unwrap();
    }
    for _ in 0..5 {
        let one_by_one = alone.each_mut().map(|session| session.decode().unwrap());
        let mut all: Vec<&mut Session> = together.iter_mut().collect();
        let chosen = Session::decode_batch(&mut all).unwrap();
        let chosen: Vec<u32> = chosen.into_iter().map(|token| token.unwrap()).collect();
        assert_eq!(chosen, one_by_one, "{what}");
    }
    let bits_of = |session: &mut Session| bits(session);
    let [a, b] = [&mut alone, &mut together].map(|all| all.each_mut().map(bits_of));
    assert!(a == b, "{what}");
    drop((alone, together));
    let all = logits_of(make(&wanted[..]));
    drop((first, second));
    assert_eq!(model.weights().taken().sessions, before, "{what}");
    all
}

/// Each part adds what adapters have for it: as the CPU does as a whole, and of two GPUs with the bits of one.
fn adapters() {
    let path = hamlet_path();
    let with_adapters = |cuts: &[(usize, usize)], device| {
        with_adapters(&format!("{cuts:?}"), &load(&path, cuts, device), &path)
    };
    let without = logits(&load(&path, &[], cpu()));
    let whole = with_adapters(&[], cpu());
    // Of the largest logit.
    let relative = |a: &[u32], b: &[u32]| {
        let (difference, size) = apart(a, b);
        difference / size
    };
    let moved = relative(&without[0], &whole[0]);
    let mut largest = 0f32;
    for (cuts, device) in ways(&path) {
        let parts = with_adapters(&cuts, device);
        for (parts, whole) in parts.iter().zip(&whole) {
            largest = largest.max(relative(parts, whole));
        }
    }
    println!("largest difference {largest}, and {moved} without adapters");
    assert!(largest < 4e-2 * moved.max(1.0) && largest < moved / 4.0);
    let (first, second) = (gpu(), nth(DeviceKind::Cuda, 1));
    let whole = with_adapters(&[], first);
    for at in [1, 3] {
        assert!(with_adapters(&[(at, first)], second) == whole, "at {at}");
    }
}

fn adapters_out_of_memory() {
    let path = hamlet_path();
    let file = repository_file("tests/data/adapters/hamlet.gguf");
    for (first, on_gpu) in [(gpu(), 2), (cpu(), 1)] {
        let model = load(&path, &[(3, first)], gpu());
        adapters_without_memory(&model, &path, (Some(&file), on_gpu));
    }
}

/// Each allocation for an adapter on the first GPU, which has some parts, fails in turn: no part keeps anything of it. Nothing is
/// evaluated.
pub fn adapters_without_memory(
    model: &Arc<Model>,
    path: &Path,
    (file, on_gpu): (Option<&Path>, i64),
) {
    let context = context();
    let taken = || model.weights().taken().sessions;
    let each = |what: &str, least, run: &mut dyn FnMut() -> Result<()>| {
        let before = taken();
        let mut n = 0;
        loop {
            context.fail_allocation(n);
            let done = run();
            context.fail_allocation(-1);
            match done {
                Ok(()) => break,
                Err(e) => assert_eq!(e.status, Status::OutOfMemory, "{what}: {e}"),
            }
            assert_eq!(taken(), before, "{what}: allocation {n}");
            n += 1;
        }
        assert!(n >= least, "{what}: {n} allocations");
    };
    if let Some(file) = file {
        let mut load = || Adapter::load(model.clone(), file).map(drop);
        each("load", on_gpu, &mut load);
    }
    let [small, large] = [(1, 4, TensorType::F32), (2, 40, TensorType::F16)]
        .map(|which| random_adapter(model, path, which, 0.02));
    let mut session = session(model);
    let own = taken();
    let mut set = |adapter| session.set_adapters(&[scaled(adapter, 1.0)], false);
    each("set", 2 * on_gpu, &mut || set(&small));
    each("set another", 2 * on_gpu, &mut || set(&large));
    let most = taken();
    // There is room for the smaller one.
    each("set the first again", 0, &mut || set(&small));
    assert_eq!(taken(), most);
    session.set_adapters(&[], false).unwrap();
    assert_eq!(taken(), own);
    drop((session, small, large));
    assert_eq!(taken(), 0);
}

/// What fits a limit goes to the GPU, the rest to the CPU, as the estimate says.
fn memory_limit() {
    let path = hamlet_path();
    let session_options = SessionOptions {
        context: 2000,
        ..Default::default()
    };
    let of = |memory_limit| LoadOptions {
        memory_limit,
        ..Default::default()
    };
    let (whole, _) = Model::estimate(&path, gpu(), &of(0), &session_options).unwrap();
    let most = whole.device.weights_bytes + whole.device.model_workspace_bytes;
    let mut layers = Vec::new();
    for share in (0..=20).rev() {
        let limit = (most * share / 20).max(1);
        let (estimate, _) = Model::estimate(&path, gpu(), &of(limit), &session_options).unwrap();
        let model = Model::load(&path, gpu(), &of(limit), &mut |_| Ok(())).unwrap();
        let model = Arc::new(model);
        let details = model.details();
        assert_eq!(details.device_layers, estimate.device_layers);
        assert!(model.weights().taken().model <= limit);
        assert_eq!(
            details.device_layers == 0,
            model.weights().taken().model == 0
        );
        if details.device_layers < details.n_layers {
            assert!(estimate.host.weights_bytes > 0 && estimate.host.kv_bytes > 0);
        }
        let mut sessions: Vec<_> = (0..3)
            .map(|_| Session::create(model.clone(), &session_options).unwrap())
            .collect();
        for session in &mut sessions {
            session.prefill(&(0..600).collect::<Vec<_>>()).unwrap();
        }
        let mut all: Vec<&mut Session> = sessions.iter_mut().collect();
        let tokens = Session::decode_batch(&mut all).unwrap();
        assert!(tokens.into_iter().all(|token| token.is_ok()));
        assert!(model.weights().taken().model <= limit);
        layers.push(details.device_layers);
    }
    println!("layers on the GPU by twentieths of the whole: {layers:?}");
    assert!(layers.is_sorted_by(|a, b| a >= b));
    assert_eq!(layers[0], load(&path, &[], cpu()).details().n_layers);
    assert_eq!(layers[20], 0);
}

/// Each allocation of the GPU's part fails in turn: all parts stay where they were.
fn out_of_memory() {
    let model = load(&hamlet_path(), &[(3, cpu())], gpu());
    let context = context();
    let text: Vec<u32> = (0..800).map(|i| i * 31 % 500).collect();
    let work = |from: &mut Session| -> Result<Vec<u32>> {
        let mut fork = from.fork()?;
        fork.prefill(&text[400..])?;
        let file = saved(&mut fork, Kind::Everything);
        let mut other = restored(&model, &file, &RestoreOptions::default())?;
        Ok(vec![fork.decode()?, other.decode()?])
    };
    let mut session = session(&model);
    session.prefill(&text[..400]).unwrap();
    let expected = work(&mut session).unwrap();
    let mut failed = 0;
    for n in 0.. {
        context.fail_allocation(n);
        let done = work(&mut session);
        context.fail_allocation(-1);
        assert_eq!(session.tokens(), &text[..400]);
        match done {
            Ok(tokens) => {
                assert_eq!(tokens, expected);
                break;
            }
            Err(e) => assert_eq!(e.status, Status::OutOfMemory, "{e:?}"),
        }
        failed += 1;
        assert_eq!(work(&mut session).unwrap(), expected, "after failure {n}");
    }
    assert!(failed > 5, "{failed} allocations");
}
