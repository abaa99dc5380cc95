//! Models on a GPU whose experts the CPU has and evaluates.
//!
//! The CPU rounds inputs of products in another way than the GPU, so logits lie between those of either device: from those of a CPU as far as
//! those of a GPU, and a half more, or within 3 % of the largest logit.

use crate::common::TempDir;
use crate::common::states::*;
use crate::gpu::*;
use emberlm::backend::{DeviceKind, LoadOptions};
use emberlm::engine::state::{Kind, RestoreOptions};
use emberlm::engine::{Model, Session, SessionOptions};
use emberlm::{Result, Status};
use std::path::Path;
use std::sync::Arc;

/// Experts alone, beside a shared one, beside a dense part, by groups, biased, of another width; behind attention, latent attention and
/// recurrences.
const FAMILIES: &[&str] = &[
    "mixtral",
    "gpt_oss",
    "qwen2_moe",
    "qwen3moe",
    "deepseek_v3",
    "gemma4_moe",
    "granite_hybrid_moe",
    "qwen3_5_moe",
    "lfm2_moe",
    "nemotron_h_moe",
    "nemotron_h_latent",
];

pub fn tests(tests: &mut Tests) {
    for &name in FAMILIES {
        tests.push((
            format!("host_experts::{name}"),
            Box::new(move || family(name)),
        ));
    }
    // Not those with recurrent layers: a GPU evaluates positions behind a mark with other sums.
    for name in ["mixtral", "qwen3moe"] {
        let test = format!("host_experts::life::{name}");
        tests.push((test, Box::new(move || life(name))));
    }
    for name in [
        "mixtral",
        "gpt_oss",
        "qwen2_moe",
        "deepseek_v3",
        "gemma4_moe",
        "qwen3_5_moe",
    ] {
        let test = format!("host_experts::prompts::{name}");
        tests.push((test, Box::new(move || prompts(name))));
    }
    tests.push(("host_experts::states".into(), Box::new(states)));
    tests.push(("host_experts::together".into(), Box::new(together)));
    tests.push(("host_experts::interrupt".into(), Box::new(interrupt)));
    tests.push(("host_experts::limits".into(), Box::new(limits)));
    tests.push(("host_experts::placed".into(), Box::new(placed)));
    tests.push((
        "host_experts::out_of_memory".into(),
        Box::new(out_of_memory),
    ));
}

fn options(host_experts: usize) -> LoadOptions {
    LoadOptions {
        host_experts,
        ..Default::default()
    }
}

fn load(path: &Path, host_experts: usize) -> Arc<Model> {
    load_on(path, DeviceKind::Cuda, &options(host_experts))
}

fn gpu() -> usize {
    nth(DeviceKind::Cuda, 0)
}

/// The largest difference of rows of logits, in parts of the largest logit of a row.
fn largest(ours: &[Vec<u32>], whole: &[Vec<u32>]) -> f32 {
    let rows = ours.iter().zip(whole).map(|(ours, whole)| {
        let (difference, size) = apart(ours, whole);
        difference / size
    });
    rows.fold(0.0, f32::max)
}

fn family(name: &str) {
    let path = path_of(name);
    let whole = logits(&load_on(&path, DeviceKind::Cpu, &LoadOptions::default()));
    let mut bound = 0.03;
    for count in [0, 1, usize::MAX] {
        let model = load(&path, count);
        assert_eq!(model.details().host_experts > 0, count > 0, "{name}");
        let ours = logits(&model);
        let difference = largest(&ours, &whole);
        println!("{name}, {count:x}: {difference:e} of the largest logit");
        if count == 0 {
            bound = (1.5 * difference).max(bound);
            continue;
        }
        assert!(difference < bound, "{name}, {count}: {difference}");
        assert!(
            ours == logits(&load(&path, count)),
            "{name}: not the same again"
        );
    }
}

/// Long pieces of a prompt stay on the GPU, and the weights of the CPU's layers come.
fn prompts(name: &str) {
    let dir = TempDir::new("gpu-host-expert-prompts");
    let path = long_path_of(name, &dir);
    let say = |kind, count| {
        let model = load_on(&path, kind, &options(count));
        let options = SessionOptions {
            context: 4096,
            ..Default::default()
        };
        let mut session = Session::create(model, &options).unwrap();
        let mut all = Vec::new();
        // Pieces of 600, 2048 and 99 tokens, and steps.
        for n in [601, 2048 + 100, 1, 1] {
            let at = session.position() as u32;
            let text: Vec<u32> = (at..at + n).map(|i| i * 37 % 60).collect();
            session.prefill(&text).unwrap();
            all.push(bits(&mut session));
        }
        all
    };
    let whole = say(DeviceKind::Cpu, 0);
    let bound = (1.5 * largest(&say(DeviceKind::Cuda, 0), &whole)).max(0.03);
    for count in [1, usize::MAX] {
        let ours = say(DeviceKind::Cuda, count);
        let difference = largest(&ours, &whole);
        println!("{name}, {count:x}: {difference:e} of the largest logit, {bound:e} at most");
        assert!(difference < bound, "{name}, {count}: {difference}");
        assert!(
            ours == say(DeviceKind::Cuda, count),
            "{name}: not the same again"
        );
    }
}

/// Saved, restored, forked, evicted and batched at random: with the same bits as without.
fn life(name: &str) {
    let dir = TempDir::new("gpu-host-experts");
    let model = load(&long_path_of(name, &dir), usize::MAX);
    for seed in 0..3 {
        random_life(&model, seed, 50, false);
    }
}

/// A state goes from any placement to any other.
fn states() {
    let dir = TempDir::new("gpu-host-expert-states");
    let path = long_path_of("mixtral", &dir);
    let models = [
        load_on(&path, DeviceKind::Cpu, &LoadOptions::default()),
        load(&path, 0),
        load(&path, 1),
        load(&path, usize::MAX),
    ];
    let text: Vec<u32> = (0..900).map(|i| i * 11 % 60).collect();
    for from in &models {
        let mut there = session(from);
        there.prefill(&text).unwrap();
        let file = saved(&mut there, Kind::Everything);
        for to in &models {
            let mut here = restored(to, &file, &RestoreOptions::default()).unwrap();
            assert!(bits(&mut here) == bits(&mut there));
            here.prefill(&[7, 8]).unwrap();
            here.decode().unwrap();
        }
    }
}

/// Sessions say in a batch, and on threads beside prompts, what they say alone.
fn together() {
    let dir = TempDir::new("gpu-host-experts-together");
    let model = load(&long_path_of("qwen3moe", &dir), usize::MAX);
    let text = |seed: u32| (0..90).map(|i| (i * 7 + seed) % 60).collect::<Vec<u32>>();
    let say = |seed: u32| {
        let mut session = session(&model);
        session.prefill(&text(seed)).unwrap();
        (0..40)
            .map(|_| session.decode().unwrap())
            .collect::<Vec<u32>>()
    };
    let alone: Vec<_> = (0..5).map(say).collect();
    let mut sessions: Vec<_> = (0..5).map(|_| session(&model)).collect();
    for (seed, session) in sessions.iter_mut().enumerate() {
        session.prefill(&text(seed as u32)).unwrap();
    }
    let mut said = vec![Vec::new(); 5];
    for _ in 0..40 {
        let mut all: Vec<&mut Session> = sessions.iter_mut().collect();
        let tokens = Session::decode_batch(&mut all).unwrap();
        for (said, token) in said.iter_mut().zip(tokens) {
            said.push(token.unwrap());
        }
    }
    assert!(said == alone, "in a batch");
    std::thread::scope(|scope| {
        for (seed, alone) in alone.iter().enumerate() {
            let say = &say;
            scope.spawn(move || assert!(say(seed as u32) == *alone, "thread {seed}"));
        }
    });
    // Several steps at once, and a prompt in the background.
    let mut session = session(&model);
    session.prefill_start(&text(0)).unwrap();
    while !session.prefill_poll().unwrap().0 {
        std::thread::yield_now();
    }
    session.decode_start(40).unwrap();
    let mut said = Vec::new();
    while said.len() < 40 {
        if let Some(token) = session.decode_poll().unwrap() {
            said.push(token);
        }
    }
    assert!(said == alone[0], "started");
}

/// An interrupt ends a prompt, and the session is where it was.
fn interrupt() {
    let dir = TempDir::new("gpu-host-experts-interrupt");
    let model = load(&long_path_of("qwen3moe", &dir), usize::MAX);
    let text: Vec<u32> = (0..3000).map(|i| i * 11 % 60).collect();
    let mut session = Session::create(
        model.clone(),
        &SessionOptions {
            context: 4096,
            ..Default::default()
        },
    )
    .unwrap();
    session.prefill(&text[..10]).unwrap();
    let before = bits(&mut session);
    let mut ended = 0;
    for micros in [0, 300, 1000, 3000, 10_000, 30_000] {
        let interrupts = session.interrupts().clone();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_micros(micros));
            interrupts.ask();
        });
        if let Err(e) = session.prefill(&text[10..]) {
            assert_eq!(e.status, Status::Interrupted, "{}", e.message);
            assert_eq!(session.position(), 10);
            ended += 1;
        }
        thread.join().unwrap();
        session.interrupts().clear();
        session.rewind(9).unwrap();
        session.prefill(&text[9..10]).unwrap();
        assert!(bits(&mut session) == before, "{micros}");
    }
    println!("{ended} of 6 prompts were interrupted");
    assert!(ended > 0);
}

/// As many experts as a limit of memory has room for are on the GPU, as the estimate says.
fn limits() {
    let path = path_of("qwen3moe");
    let sessions = SessionOptions::default();
    let of = |memory_limit| LoadOptions {
        memory_limit,
        ..Default::default()
    };
    let estimate =
        |options: &LoadOptions| Model::estimate(&path, gpu(), options, &sessions).unwrap().0;
    let bytes = |e: &emberlm::engine::PlacedEstimate| {
        e.device.weights_bytes + e.device.model_workspace_bytes
    };
    let whole = estimate(&of(0));
    let least = estimate(&options(usize::MAX));
    assert!(whole.host.weights_bytes == 0 && least.host.weights_bytes > 0);
    let n = whole.device_layers;
    let all: Vec<u64> = (0..=least.host_experts)
        .map(|n| bytes(&estimate(&options(n))))
        .collect();
    println!("{all:?} bytes on the GPU");
    for (i, &limit) in all.iter().enumerate() {
        let placed = estimate(&of(limit));
        let first = all.iter().position(|bytes| *bytes <= limit);
        assert_eq!(Some(placed.host_experts), first, "{i}");
        assert_eq!((placed.device_layers, placed.parts.len()), (n, 1), "{i}");
        // The upload needs some memory beside, which is more than this model.
        let model = load(&path, placed.host_experts);
        let details = model.details();
        assert_eq!(details.host_experts, placed.host_experts, "{i}");
        assert_eq!((details.device_layers, details.parts.len()), (n, 1), "{i}");
        let mut session = session(&model);
        session
            .prefill(
                &(0..300).map(|i| i % 60).collect::<Vec<_>>()[..session.context().min(300) - 1],
            )
            .unwrap();
        session.decode().unwrap();
        assert!(model.weights().taken().model <= limit, "{i}");
    }
    // Less than that: layers go as a whole.
    let placed = estimate(&of(all.iter().min().unwrap() * 3 / 4));
    assert!(placed.device_layers < n);
    assert_eq!(placed.host_experts, 0);
    // With room for the upload, a limit decides where experts go, too.
    let limit = LoadOptions {
        memory_limit: bytes(&whole) + (64 << 20),
        ..options(usize::MAX)
    };
    let model = load_on(&path, DeviceKind::Cuda, &limit);
    assert_eq!(model.details().host_experts, least.host_experts);
}

/// What has no experts, or none that can be apart, stays as it is; what cannot be is refused.
fn placed() {
    for name in ["mistral", "cohere2_moe"] {
        let model = load(&path_of(name), usize::MAX);
        assert_eq!(model.details().host_experts, 0, "{name}");
        let mut session = session(&model);
        session.prefill(&[1, 2]).unwrap();
    }
    let path = path_of("mixtral");
    let model = load_on(&path, DeviceKind::Cpu, &options(usize::MAX));
    assert_eq!(model.details().host_experts, 0);
    let model = load(&path, 1);
    assert_eq!(model.details().host_experts, 1);
    assert!(model.details().resident_bytes > 0);
}

/// Each allocation of the GPU's fails in turn: the error says so, and what was there goes on.
fn out_of_memory() {
    let path = path_of("mixtral");
    let text: Vec<u32> = (0..20).collect();
    let work = || -> Result<Vec<u32>> {
        let model = Model::load(&path, gpu(), &options(usize::MAX), &mut |_| Ok(()))?;
        let model = Arc::new(model);
        let create = || Session::create(model.clone(), &SessionOptions::default());
        let mut sessions = [create()?, create()?];
        for session in &mut sessions {
            session.prefill(&text)?;
        }
        let mut all: Vec<&mut Session> = sessions.iter_mut().collect();
        Session::decode_batch(&mut all)?.into_iter().collect()
    };
    let context = context();
    let expected = work().unwrap();
    let mut failed = 0;
    for n in 0.. {
        context.fail_allocation(n);
        let done = work();
        context.fail_allocation(-1);
        match done {
            Ok(tokens) => {
                assert_eq!(tokens, expected);
                break;
            }
            Err(e) => assert_eq!(e.status, Status::OutOfMemory, "{n}: {}", e.message),
        }
        failed += 1;
    }
    assert!(failed > 10, "{failed} allocations");
}
