//! Saved and restored sessions, forks, eviction and prompts in the background, on a GPU.

use crate::common::families::WINDOWED;
use crate::common::repository_file;
use crate::common::states::*;
use crate::common::work::Driven;
use crate::gpu::*;
use emberlm::Status;
use emberlm::backend::{DeviceKind, KvType, LoadOptions, RunnerOptions};
use emberlm::engine::state::{Kind, RestoreOptions};
use emberlm::engine::{Model, Session};
use std::path::Path;
use std::sync::Arc;

pub fn tests(tests: &mut Tests) {
    tests.push(("states::random_lives".into(), Box::new(random_lives)));
    tests.push(("states::windows".into(), Box::new(windows)));
    tests.push(("states::forks".into(), Box::new(forks_share)));
    tests.push(("states::across_devices".into(), Box::new(across_devices)));
    tests.push(("states::fixed".into(), Box::new(fixed)));
    tests.push(("states::marks".into(), Box::new(marks)));
    let across = "states::across_devices::fixed";
    tests.push((across.into(), Box::new(fixed_across_devices)));
    tests.push(("states::eviction".into(), Box::new(eviction)));
    tests.push(("states::out_of_memory".into(), Box::new(out_of_memory)));
    tests.push((
        "states::prompts_beside_decodes".into(),
        Box::new(prompts_beside_decodes),
    ));
}

fn load(path: &Path, kind: DeviceKind) -> Arc<Model> {
    load_on(path, kind, &LoadOptions::default())
}

fn hamlet(kind: DeviceKind) -> Arc<Model> {
    load(&repository_file("models/hamlet-7m-Q4_K_M.gguf"), kind)
}

fn random_lives() {
    let model = hamlet(DeviceKind::Cuda);
    for seed in 0..6 {
        random_life(&model, seed, 60, true);
    }
}

fn windows() {
    let dir = crate::common::TempDir::new("gpu-states");
    for &name in WINDOWED {
        let bytes = crate::common::families::with_context(name, 4096).bytes();
        let model = load(&dir.file("model.gguf", &bytes), DeviceKind::Cuda);
        for seed in 0..3 {
            random_life(&model, seed, 50, false);
        }
    }
}

fn forks_share() {
    let model = hamlet(DeviceKind::Cuda);
    // What the first use of anything takes.
    forks(&model, 30);
    let before = context().memory().unwrap().0;
    forks(&model, 1000);
    assert_eq!(context().memory().unwrap().0, before, "free bytes");
}

fn largest_difference(a: &[u32], b: &[u32]) -> f32 {
    let differences = a.iter().zip(b);
    let differences = differences.map(|(a, b)| (f32::from_bits(*a) - f32::from_bits(*b)).abs());
    differences.fold(0.0, f32::max)
}

/// Saved on one device and restored on the other: what both would have computed themselves agrees
/// within the bound that the same text evaluated there has.
fn across_devices() {
    let models = [hamlet(DeviceKind::Cuda), hamlet(DeviceKind::Cpu)];
    let text: Vec<u32> = (0..700).map(|i| i * 31 % 500).collect();
    for (from, to) in [(0, 1), (1, 0)] {
        for kv_type in [KvType::F16, KvType::Q8_0, KvType::F32] {
            if !models[from].weights().takes_kv_type(kv_type) {
                continue;
            }
            let mut saved_there = session_with(&models[from], kv_type);
            saved_there.prefill(&text[..650]).unwrap();
            let bytes = saved(&mut saved_there, Kind::Everything);
            let mut here = restored(&models[to], &bytes, &RestoreOptions::default()).unwrap();
            assert_eq!(here.tokens(), &text[..650]);
            // Logits come along, so the first choice is the same to the bit.
            assert!(bits(&mut here) == bits(&mut saved_there), "{kv_type:?}");
            let mut alone = session(&models[to]);
            alone.prefill(&text).unwrap();
            here.prefill(&text[650..]).unwrap();
            let difference = largest_difference(&bits(&mut here), &bits(&mut alone));
            println!("{from} to {to}, {kv_type:?}: largest difference {difference}");
            let bound = if kv_type == KvType::Q8_0 { 0.6 } else { 0.3 };
            assert!(difference < bound, "{kv_type:?}: {difference}");
        }
    }
}

/// States of fixed size: rewinds to marks, and sessions restored on the same device and on the other.
fn fixed() {
    fixed_states(&[DeviceKind::Cuda]);
}

/// Marks as close as a session asks for: rewinds evaluate no more again, and go on as without.
fn marks() {
    const EVERY: usize = 50;
    let never = Arc::default();
    let dir = crate::common::TempDir::new("gpu-marks");
    for name in [
        "lfm2",
        "qwen3_5",
        "nemotron_h_moe",
        "falcon_h1",
        "mamba",
        "jamba",
    ] {
        let bytes = crate::common::families::with_context(name, 4096).bytes();
        let model = load(&dir.file("model.gguf", &bytes), DeviceKind::Cuda);
        let options = RunnerOptions {
            context: 1200,
            mark_interval: EVERY,
            kv_type: KvType::F16,
            ..RunnerOptions::default()
        };
        let mut marked = Driven::new(model.weights(), &options).unwrap();
        let mut alone = Driven::with_context(model.weights(), 1200, KvType::F16);
        let text: Vec<u32> = (0..1200).map(|i| i * i % 89).collect();
        marked.extend(&text[..1000], &never).unwrap();
        for (wanted, further) in [
            (999, 90),
            (731, 300),
            (1000, 1),
            (120, 5),
            (49, 700),
            (748, 3),
        ] {
            let mark = marked.runner.mark_before(wanted);
            let kept = mark.position();
            assert!(wanted - kept <= EVERY, "{name}: {kept} for {wanted}");
            marked.runner.rollback(mark);
            let end = kept + further;
            marked.extend(&text[kept..end], &never).unwrap();
            let empty = alone.runner.mark_before(0);
            alone.runner.rollback(empty);
            alone.extend(&text[..end], &never).unwrap();
            let [found, expected] = [&mut marked, &mut alone].map(|driven| {
                let mut logits = vec![0.0; model.details().n_vocab];
                driven.runner.logits(&mut logits).unwrap();
                logits.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            });
            let difference = largest_difference(&found, &expected);
            println!("{name}: {difference} from what a session without marks has");
            assert!(difference < 0.1, "{name}, {wanted}: {difference}");
        }
    }
}

fn fixed_across_devices() {
    fixed_states(&[DeviceKind::Cuda, DeviceKind::Cpu]);
}

fn fixed_states(kinds: &[DeviceKind]) {
    let dir = crate::common::TempDir::new("gpu-fixed");
    for name in [
        "lfm2",
        "qwen3_5",
        "qwen3_next",
        "falcon_h1",
        "mamba",
        "jamba",
    ] {
        let bytes = crate::common::families::with_context(name, 4096).bytes();
        let path = dir.file("model.gguf", &bytes);
        let models: Vec<_> = kinds.iter().map(|kind| load(&path, *kind)).collect();
        let text: Vec<u32> = (0..1000).map(|i| i * i % 89).collect();
        let model = &models[0];
        let mut s = session(model);
        s.prefill(&text[..400]).unwrap();
        let at_mark = bits(&mut s);
        let decoded: Vec<u32> = (0..500).map(|_| s.decode().unwrap()).collect();
        // The prompt's end is marked: the logits come back, and so do the tokens.
        s.rewind(400).unwrap();
        assert!(bits(&mut s) == at_mark, "{name}: logits of a mark");
        let again: Vec<u32> = (0..500).map(|_| s.decode().unwrap()).collect();
        assert!(again == decoded, "{name}: after a rewind to a mark");
        // So do those of decodes that were started at once and dropped.
        s.rewind(400).unwrap();
        s.decode_start(30).unwrap();
        assert!(s.decode_poll().is_ok());
        s.rewind(400).unwrap();
        let again: Vec<u32> = (0..50).map(|_| s.decode().unwrap()).collect();
        assert!(again == decoded[..50], "{name}: after dropped decodes");
        for to in &models {
            let mut s = session(model);
            s.prefill(&text[..800]).unwrap();
            let bytes = saved(&mut s, Kind::Everything);
            let mut there = restored(to, &bytes, &RestoreOptions::default()).unwrap();
            assert!(bits(&mut there) == bits(&mut s), "{name}: logits");
            assert!(
                saved(&mut there, Kind::Everything) == bytes,
                "{name}: saved again"
            );
            there.prefill(&text[800..]).unwrap();
            s.prefill(&text[800..]).unwrap();
            let difference = largest_difference(&bits(&mut there), &bits(&mut s));
            let same = std::ptr::eq(to, model);
            println!("{name}, same device {same}: largest difference {difference}");
            if same {
                assert!(difference == 0.0, "{name}: restored");
            }
            assert!(difference < 0.1, "{name}: {difference}");
            // And the other way.
            let mut alone = session(to);
            alone.prefill(&text[..600]).unwrap();
            let bytes = saved(&mut alone, Kind::Everything);
            let mut here = restored(model, &bytes, &RestoreOptions::default()).unwrap();
            here.prefill(&text[600..700]).unwrap();
            alone.prefill(&text[600..700]).unwrap();
            let difference = largest_difference(&bits(&mut here), &bits(&mut alone));
            assert!(difference < 0.1, "{name}, back: {difference}");
        }
        let mut fork = s.fork().unwrap();
        let mut tokens = [Vec::new(), Vec::new()];
        for _ in 0..10 {
            tokens[0].push(s.decode().unwrap());
            tokens[1].push(fork.decode().unwrap());
        }
        assert_eq!(tokens[0], tokens[1], "{name}: a fork");
        s.evict().unwrap();
        assert_eq!(
            s.decode().unwrap(),
            fork.decode().unwrap(),
            "{name}: evicted"
        );
    }
}

fn eviction() {
    let model = hamlet(DeviceKind::Cuda);
    let free = || context().memory().unwrap().0;
    let text: Vec<u32> = (0..900).map(|i| i * 31 % 500).collect();
    let empty = free();
    let (mut s, mut alone) = (session(&model), session(&model));
    for s in [&mut s, &mut alone] {
        s.prefill(&text).unwrap();
        s.decode().unwrap();
    }
    let one = {
        let both = free();
        s.evict().unwrap();
        let one = free();
        assert!(one > both, "{one} free bytes, {both} before");
        one
    };
    // Weights go and come, with a session on the device and one in host memory.
    for _ in 0..3 {
        model.evict().unwrap();
        assert!(free() > one + 4_000_000);
        assert_eq!(s.decode().unwrap(), alone.decode().unwrap());
        s.evict().unwrap();
    }
    model.evict().unwrap();
    model.evict().unwrap();
    model.resume().unwrap();
    model.resume().unwrap();
    assert_eq!(s.decode().unwrap(), alone.decode().unwrap());
    // Not while a decode is under way.
    s.decode_start(3).unwrap();
    assert_eq!(model.evict().unwrap_err().status, Status::Busy);
    for _ in 0..3 {
        while s.decode_poll().unwrap().is_none() {}
    }
    model.evict().unwrap();
    model.resume().unwrap();
    drop((s, alone));
    // What the first use of anything has taken stays: less than a page or two.
    assert!(free() + (16 << 20) > empty);
}

fn out_of_memory() {
    let model = hamlet(DeviceKind::Cuda);
    let text: Vec<u32> = (0..500).collect();
    let (mut s, mut alone) = (session(&model), session(&model));
    for s in [&mut s, &mut alone] {
        s.prefill(&text).unwrap();
    }
    let bytes = saved(&mut s, Kind::Everything);
    let context = context();
    type Try<'a> = (
        &'a str,
        Box<dyn FnMut(&mut Session) -> emberlm::Result<()> + 'a>,
    );
    let tries: Vec<Try> = vec![
        ("fork", Box::new(|s| s.fork().map(drop))),
        ("resume", Box::new(|s| s.evict().and_then(|()| s.resume()))),
        ("erase", Box::new(|s| s.fork()?.erase(100, 10))),
        (
            "restore",
            Box::new(|_| restored(&model, &bytes, &RestoreOptions::default()).map(drop)),
        ),
        (
            "weights",
            Box::new(|s| {
                s.model().evict()?;
                s.model().resume()
            }),
        ),
    ];
    for (name, mut run) in tries {
        let mut n = 0;
        loop {
            context.fail_allocation(n);
            let result = run(&mut s);
            context.fail_allocation(-1);
            match result {
                Ok(()) => break,
                Err(e) => assert_eq!(e.status, Status::OutOfMemory, "{name}, {n}: {e}"),
            }
            n += 1;
            assert!(n < 200, "{name} never succeeds");
        }
        println!("{name}: {n} allocations failed");
        assert_eq!(s.decode().unwrap(), alone.decode().unwrap(), "{name}");
    }
}

fn prompts_beside_decodes() {
    let model = hamlet(DeviceKind::Cuda);
    let text: Vec<u32> = (0..900).map(|i| i * 7 % 500).collect();
    let mut expected = session(&model);
    expected.prefill(&text).unwrap();
    let expected = bits(&mut expected);
    let mut alone = session(&model);
    alone.prefill(&[1, 2, 3]).unwrap();
    let tokens: Vec<u32> = (0..400).map(|_| alone.decode().unwrap()).collect();
    let mut decoding = session(&model);
    decoding.prefill(&[1, 2, 3]).unwrap();
    let mut reading = session(&model);
    let mut at = 0;
    let mut prompts = 0;
    while at < tokens.len() {
        reading.rewind(0).unwrap();
        reading.prefill_start(&text).unwrap();
        loop {
            if at < tokens.len() {
                assert_eq!(decoding.decode().unwrap(), tokens[at], "token {at}");
                at += 1;
            }
            if reading.prefill_poll().unwrap().0 {
                break;
            }
        }
        assert!(bits(&mut reading) == expected, "prompt {prompts}");
        prompts += 1;
    }
    // Stopped, and dropped.
    reading.rewind(0).unwrap();
    reading.prefill_start(&text).unwrap();
    reading.rewind(0).unwrap();
    reading.prefill(&text).unwrap();
    assert!(bits(&mut reading) == expected);
    reading.rewind(0).unwrap();
    reading.prefill_start(&text).unwrap();
}
