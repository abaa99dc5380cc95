//! Ranks that NCCL brings together: with the bits of those that reach each other's memory, and errors where one does not come. They
//! need two GPUs and libnccl.so.2, or the libraries that stand in for both (tests/driver).

use crate::common::TempDir;
use crate::common::states::*;
use crate::gpu::*;
use crate::ranks::{load, load_with, on_threads, options};
use emberlm::backend::cuda::driver::nccl::{Communicator, Id, Watch, library};
use emberlm::backend::cuda::driver::{Buffer, Context, Stream};
use emberlm::backend::cuda::network::ranks::set_patience;
use emberlm::backend::{LoadOptions, Ranks};
use emberlm::engine::{Model, Session, SessionOptions};
use emberlm::model::Rank;
use emberlm::{Result, Status};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub fn tests(tests: &mut Tests) {
    if let Ok(expected) = std::env::var("EMBERLM_NCCL_MISSING") {
        // The library is opened once in a process, so each way that fails needs one.
        tests.push(("nccl::missing".into(), Box::new(move || missing(&expected))));
        return;
    }
    for name in [
        "mistral",
        "gemma2",
        "qwen2",
        "gpt2",
        "mixtral",
        "deepseek_v2",
    ] {
        let test = format!("nccl::{name}");
        tests.push((test, Box::new(move || family(name))));
    }
    tests.push(("nccl::life".into(), Box::new(life)));
    tests.push(("nccl::together".into(), Box::new(together)));
    tests.push(("nccl::threads".into(), Box::new(threads)));
    tests.push(("nccl::memory".into(), Box::new(memory)));
    tests.push(("nccl::alone".into(), Box::new(alone)));
    tests.push(("nccl::late".into(), Box::new(late)));
    match fault() {
        Some(_) => {
            tests.push(("nccl::faults".into(), Box::new(faults)));
            tests.push(("nccl::hangs".into(), Box::new(hangs)));
        }
        None => eprintln!("ignored, as NCCL is the real one: nccl::faults, nccl::hangs"),
    }
}

/// What has calls of the library that stands in for NCCL fail.
pub type Fault = unsafe extern "C" fn(*const std::ffi::c_char, i32);

/// That, if it stands in.
pub fn fault() -> Option<Fault> {
    library().ok()?;
    // SAFETY: the library is open already; the function has this type (tests/driver/nccl.c).
    unsafe {
        let handle = libc::dlopen(c"libnccl.so.2".as_ptr(), libc::RTLD_NOW);
        let function = libc::dlsym(handle, c"stand_in_nccl".as_ptr());
        (!function.is_null()).then(|| std::mem::transmute::<*mut std::ffi::c_void, Fault>(function))
    }
}

/// Has calls of this name fail from the n-th from now on.
fn fail(what: &std::ffi::CStr, n: i32) {
    let fault = fault().expect("the library that stands in for NCCL");
    // SAFETY: a NUL-terminated string, which is copied.
    unsafe { fault(what.as_ptr(), n) };
}

fn with_nccl() -> LoadOptions {
    LoadOptions {
        nccl: true,
        ..options(0)
    }
}

fn load_nccl(path: &Path) -> Arc<Model> {
    load_with(path, &with_nccl()).unwrap()
}

/// Loaded with this much patience.
fn load_within(path: &Path, patience: Duration) -> Result<Arc<Model>> {
    set_patience(patience.as_nanos() as u64);
    let loaded = load_with(path, &with_nccl());
    set_patience(10_000_000_000);
    loaded
}

fn missing(expected: &str) {
    let e = load_with(&path_of("mistral"), &with_nccl())
        .map(drop)
        .unwrap_err();
    assert_eq!(e.status, Status::Unsupported, "{}", e.message);
    assert!(e.message.contains("libnccl.so.2"), "{}", e.message);
    assert!(e.message.contains(expected), "{}", e.message);
    // Where the GPUs do not reach each other's memory, that is said, too.
    let loaded = load_with(&path_of("mistral"), &options(0)).map(drop);
    match std::env::var("STAND_IN_PEERS").as_deref() {
        Ok("1") => loaded.unwrap(),
        _ => {
            let e = loaded.unwrap_err();
            assert_eq!(e.status, Status::Unsupported, "{}", e.message);
            assert!(e.message.contains("cannot reach"), "{}", e.message);
            assert!(e.message.contains(expected), "{}", e.message);
        }
    }
}

/// The bits are those of ranks that reach each other's memory, or where they do not, of a second load.
fn family(name: &str) {
    let path = path_of(name);
    let bits = logits(&load_nccl(&path));
    assert!(bits == logits(&load(&path)), "{name}: other bits");
}

/// Saved, restored, forked, evicted and batched at random: with the same bits as without.
fn life() {
    let dir = TempDir::new("gpu-nccl");
    let model = load_nccl(&long_path_of("gemma2", &dir));
    for seed in 0..2 {
        random_life(&model, seed, 50, false);
    }
}

/// Sessions in batches, with long prompts, say what they say alone.
fn together() {
    let dir = TempDir::new("gpu-nccl-together");
    let model = load_nccl(&long_path_of("mistral", &dir));
    let text = |seed: u32| (0..700).map(|i| (i * 7 + seed) % 60).collect::<Vec<u32>>();
    let alone: Vec<Vec<u32>> = (0..4)
        .map(|seed| {
            let mut session = session(&model);
            session.prefill(&text(seed)).unwrap();
            (0..20).map(|_| session.decode().unwrap()).collect()
        })
        .collect();
    let mut sessions: Vec<Session> = (0..4)
        .map(|seed| {
            let mut session = session(&model);
            session.prefill(&text(seed)).unwrap();
            session
        })
        .collect();
    for step in 0..20 {
        let mut members: Vec<&mut Session> = sessions.iter_mut().collect();
        let chosen = Session::decode_batch(&mut members).unwrap();
        for (token, alone) in chosen.into_iter().zip(&alone) {
            assert_eq!(token.unwrap(), alone[step], "step {step}");
        }
    }
}

/// Sessions on threads of their own, of two models on the same GPUs, one by NCCL, one as it comes.
fn threads() {
    let dir = TempDir::new("gpu-nccl-threads");
    let path = long_path_of("mistral", &dir);
    on_threads(&[load_nccl(&path), load(&path)], 40);
}

/// What the library allocates itself is within the estimate.
fn memory() {
    let path = path_of("mistral");
    let sessions = SessionOptions::default();
    let (estimate, _) = Model::estimate(&path, 0, &with_nccl(), &sessions).unwrap();
    let model = load_nccl(&path);
    for (i, (_, e)) in estimate.parts.iter().enumerate() {
        let most = e.weights_bytes + e.model_workspace_bytes;
        let taken = model.weights().taken_by(i).model;
        assert!(taken <= most, "{taken} of {most} for rank {i}");
    }
}

fn contexts() -> [Arc<Context>; 2] {
    [0, 1].map(|i| Context::new(i).unwrap())
}

/// A rank whose others never come: an error in time, and the GPU can be used.
fn alone() {
    let [context, _] = contexts();
    let id = Id::new().unwrap();
    let rank = Rank { index: 0, count: 2 };
    let patience = Duration::from_millis(300);
    let communicator = Communicator::begin(&context, &id, rank, patience).unwrap();
    let e = communicator.wait("bringing ranks together").unwrap_err();
    assert_eq!(e.status, Status::DeviceLost, "{}", e.message);
    assert!(e.message.contains("within 300 ms"), "{}", e.message);
    let again = communicator.poll("asking again").unwrap_err();
    assert_eq!(again.status, Status::DeviceLost);
    assert_eq!(again.message, e.message);
    drop(communicator);
    let mut session = session(&load_nccl(&path_of("mistral")));
    session.prefill(&[1, 2, 3]).unwrap();
    session.decode().unwrap();
}

/// Two ranks gather what both have. Then one waits on its GPU for the other, in a graph: the watch ends that.
fn late() {
    let contexts = contexts();
    let id = Id::new().unwrap();
    let patience = Duration::from_millis(10_000);
    let begin = |index: usize| {
        let rank = Rank { index, count: 2 };
        Communicator::begin(&contexts[index], &id, rank, patience).unwrap()
    };
    let communicators = [0, 1].map(begin);
    communicators
        .iter()
        .for_each(|c| c.wait("bringing ranks together").unwrap());
    let mut memory = Vec::new();
    for (i, context) in contexts.iter().enumerate() {
        let _current = context.enter().unwrap();
        let buffer = Buffer::from_slice(context, &[-1f32; 16], "numbers").unwrap();
        let own: Vec<f32> = (0..8).map(|n| (10 * i + n) as f32).collect();
        buffer.write(i * 32, &own).unwrap();
        memory.push((buffer, Stream::new(context, 0).unwrap()));
    }
    let gather = |i: usize| {
        let (buffer, stream) = &memory[i];
        let all = buffer.address();
        // SAFETY: room for eight floats of both, until the stream is idle.
        unsafe { communicators[i].begin_all_gather(stream, (all + i as u64 * 32, all), 8) }
            .unwrap();
    };
    for (i, context) in contexts.iter().enumerate() {
        let _current = context.enter().unwrap();
        gather(i);
    }
    for (i, (buffer, stream)) in memory.iter().enumerate() {
        let _current = contexts[i].enter().unwrap();
        communicators[i].wait("gathering").unwrap();
        communicators[i].wait_for(stream, "gathering").unwrap();
        let mut got = [0f32; 16];
        buffer.read(0, &mut got).unwrap();
        // Without waiting for each other, what stands in has its own alone.
        let of = |rank: usize| (0..8).map(move |n| (10 * rank + n) as f32);
        let stands_in = fault().is_some();
        for rank in (0..2).filter(|rank| !stands_in || *rank == i) {
            assert!(got[rank * 8..][..8].iter().copied().eq(of(rank)), "{got:?}");
        }
    }
    let patience = Duration::from_millis(400);
    let watch = Watch::new(communicators.to_vec(), patience, "a gather").unwrap();
    let _current = contexts[0].enter().unwrap();
    let stream = &memory[0].1;
    let graph = stream.capture(|| {
        gather(0);
        communicators[0].wait("gathering")
    });
    let graph = graph.unwrap();
    if fault().is_some() {
        fail(c"hang gather", 0);
    }
    watch.begin().unwrap();
    // SAFETY: the memory stays until the stream is idle.
    unsafe { stream.launch_graph(&graph).unwrap() };
    stream.synchronize().unwrap();
    Ranks::end(&watch);
    if fault().is_some() {
        fail(c"", 0);
    }
    let e = watch.check().unwrap_err();
    assert_eq!(e.status, Status::DeviceLost, "{}", e.message);
    assert!(e.message.contains("within 400 ms"), "{}", e.message);
    let e = Ranks::begin(&watch).unwrap_err();
    assert_eq!(e.status, Status::DeviceLost, "{}", e.message);
    drop(graph);
}

/// Every call fails once; the next model loads and works.
fn faults() {
    let path = path_of("mistral");
    for (what, status, word) in [
        (c"id", Status::DeviceError, "making an id"),
        (c"init", Status::DeviceError, "bringing ranks together"),
        (c"state", Status::DeviceError, "an error of the stand-in"),
        (c"remote", Status::DeviceLost, "remote process exited"),
        (c"gather", Status::DeviceError, "gathering what ranks have"),
    ] {
        for n in 0..3 {
            // Of the first two, there is one for each load and for each rank.
            if n > 0 && what == c"id" || n > 1 && what == c"init" {
                continue;
            }
            fail(what, n);
            let e = load_with(&path, &with_nccl()).map(drop).unwrap_err();
            fail(c"", 0);
            assert_eq!(e.status, status, "{what:?} {n}: {}", e.message);
            assert!(e.message.contains(word), "{what:?} {n}: {}", e.message);
        }
    }
    // In a session: of a graph that is captured, and of a prompt. What has failed for one rank is not to leave the other waiting.
    let model = load_within(&path, Duration::from_millis(500)).unwrap();
    fail(c"gather", 3);
    let e = Session::create(model.clone(), &SessionOptions::default())
        .map(drop)
        .unwrap_err();
    fail(c"", 0);
    assert_eq!(e.status, Status::DeviceError, "{}", e.message);
    drop(model);
    let model = load_within(&path, Duration::from_millis(500)).unwrap();
    let mut session = session(&model);
    fail(c"gather", 5);
    let e = session.prefill(&[1, 2, 3, 4, 5]).unwrap_err();
    fail(c"", 0);
    assert_eq!(e.status, Status::DeviceLost, "{}", e.message);
    assert!(e.message.contains("internal error"), "{}", e.message);
    let e = session.prefill(&[1]).unwrap_err();
    assert_eq!(e.status, Status::DeviceLost, "{}", e.message);
    drop((session, model));
    let mut session = crate::common::states::session(&load_nccl(&path));
    session.prefill(&[1, 2, 3]).unwrap();
    session.decode().unwrap();
}

/// A rank that hangs while ranks come together, in a prompt and in a step ends the model, and not the process.
fn hangs() {
    let path = path_of("mistral");
    let patience = Duration::from_millis(300);
    fail(c"hang init", 1);
    let e = load_within(&path, patience).map(drop).unwrap_err();
    fail(c"", 0);
    assert_eq!(e.status, Status::DeviceLost, "{}", e.message);
    for in_step in [false, true] {
        let model = load_within(&path, patience).unwrap();
        let mut session = session(&model);
        if in_step {
            session.prefill(&[1, 2, 3]).unwrap();
            session.decode().unwrap();
        }
        fail(c"hang gather", 2);
        let e = match in_step {
            true => session.decode().map(drop).unwrap_err(),
            false => session.prefill(&[1, 2, 3]).unwrap_err(),
        };
        fail(c"", 0);
        assert_eq!(e.status, Status::DeviceLost, "{}", e.message);
        assert!(e.message.contains("within 900 ms"), "{}", e.message);
        let e = session.prefill(&[1]).unwrap_err();
        assert_eq!(e.status, Status::DeviceLost, "{}", e.message);
        let e = Session::create(model.clone(), &SessionOptions::default())
            .and_then(|mut session| session.prefill(&[1]))
            .unwrap_err();
        assert_eq!(e.status, Status::DeviceLost, "{}", e.message);
    }
    let mut session = session(&load_nccl(&path));
    session.prefill(&[1, 2, 3]).unwrap();
    session.decode().unwrap();
}
