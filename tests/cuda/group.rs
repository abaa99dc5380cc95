//! Ranks in processes of their own: with the bits of ranks in one process, and errors where they do different things or one is gone. They
//! need two GPUs and libnccl.so.2, or the libraries that stand in for both (tests/driver).
//!
//! This process has rank 0. Rank 1 is the same program again, which is told by the environment what to do.

use crate::common::TempDir;
use crate::common::adapters::{random_adapter, scaled};
use crate::common::states::*;
use crate::gpu::*;
use crate::nccl::fault;
use crate::ranks::{gpus, load, options};
use emberlm::backend::LoadOptions;
use emberlm::backend::group::{Group, GroupOptions};
use emberlm::engine::{Model, Session};
use emberlm::model::Rank;
use emberlm::quant::TensorType;
use emberlm::{Error, Result, Status};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What rank 1 is to do; the id of its group, its model, how long it waits and where its results go are beside it.
const ROLE: &str = "EMBERLM_GROUP_ROLE";

pub fn tests(tests: &mut Tests) {
    if let Ok(role) = std::env::var(ROLE) {
        tests.push(("group::rank_1".into(), Box::new(move || rank_1(&role))));
        return;
    }
    for name in ["mistral", "gemma2", "qwen2", "gpt2", "qwen3_5", "falcon_h1"] {
        tests.push((format!("group::{name}"), Box::new(move || family(name))));
    }
    tests.push(("group::together".into(), Box::new(together)));
    tests.push(("group::one_process".into(), Box::new(one_process)));
    tests.push(("group::differ".into(), Box::new(differ)));
    tests.push(("group::interrupted".into(), Box::new(interrupted)));
    tests.push(("group::refused".into(), Box::new(refused)));
    tests.push(("group::loads".into(), Box::new(loads)));
    tests.push(("group::late".into(), Box::new(late)));
    tests.push(("group::killed".into(), Box::new(killed)));
}

fn group(index: usize, patience: u64, id: Option<&str>) -> Group {
    Group::new(&GroupOptions {
        rank: Rank { index, count: 2 },
        patience: Duration::from_millis(patience),
        id,
        address: "",
    })
    .unwrap()
}

fn load_rank(path: &Path, group: Group, options: &LoadOptions) -> Result<Arc<Model>> {
    let device = gpus()[group.rank().index];
    let options = LoadOptions {
        group: Some(Arc::new(group)),
        ..options.clone()
    };
    Ok(Arc::new(Model::load(path, device, &options, &mut |_| {
        Ok(())
    })?))
}

/// Rank 1 in a process of its own, which ends with this.
struct Other {
    process: Child,
    dir: TempDir,
}

/// Starts rank 1, and loads rank 0.
fn begin(role: &str, path: &Path, patience: u64) -> (Result<Arc<Model>>, Other) {
    let dir = TempDir::new("gpu-group");
    let first = group(0, patience, None);
    let process = Command::new(std::env::current_exe().unwrap())
        .args(["group::rank_1", "--exact", "--nocapture"])
        .env(ROLE, role)
        .env("EMBERLM_GROUP_ID", first.id())
        .env("EMBERLM_GROUP_MODEL", path)
        .env("EMBERLM_GROUP_PATIENCE", patience.to_string())
        .env("EMBERLM_GROUP_OUT", dir.path().join("out"))
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let loaded = load_rank(path, first, &LoadOptions::default());
    (loaded, Other { process, dir })
}

impl Other {
    /// Its result, once it has ended well.
    fn end(mut self) -> Vec<u32> {
        let status = self.process.wait().unwrap();
        assert!(status.success(), "rank 1 has failed: {status}");
        let bytes = std::fs::read(self.dir.path().join("out")).unwrap_or_default();
        let words = bytes.chunks_exact(4);
        words
            .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
            .collect()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What rank 1 does.
fn rank_1(role: &str) {
    let variable = |name: &str| std::env::var(name).unwrap();
    let path = variable("EMBERLM_GROUP_MODEL");
    let patience = variable("EMBERLM_GROUP_PATIENCE").parse().unwrap();
    let (role, argument) = role.split_once(' ').unwrap_or((role, ""));
    let own = group(1, patience, Some(&variable("EMBERLM_GROUP_ID")));
    let mut load = LoadOptions::default();
    let path = match role {
        "other_model" => argument,
        _ => &path,
    };
    if role == "little_memory" {
        load.memory_limit = 1 << 20;
    }
    let model = load_rank(Path::new(path), own, &load);
    if let "other_model" | "little_memory" = role {
        let e = model.map(drop).unwrap_err();
        let status = match role {
            "other_model" => Status::InvalidArgument,
            _ => Status::OutOfMemory,
        };
        assert_eq!(e.status, status, "{}", e.message);
        return;
    }
    let model = model.unwrap();
    let words = match role {
        "logits" => logits(&model).concat(),
        "together" => texts(&model),
        "differ" => differ_as(&model, 1),
        "interrupted" => interrupted_as(&model, 1),
        "idle" => {
            std::thread::sleep(Duration::from_millis(patience + 2000));
            vec![]
        }
        "killed" => {
            let (in_work, long) = (argument == "in work", Duration::from_secs(60));
            let killer = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(if in_work { 300 } else { 0 }));
                // Without a farewell.
                std::process::abort();
            });
            let mut session = session(&model);
            if in_work {
                loop {
                    let _ = session.prefill(&[1, 2, 3]).and_then(|()| session.rewind(0));
                }
            }
            std::thread::sleep(long);
            killer.join().unwrap();
            vec![]
        }
        role => panic!("{role}"),
    };
    let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    std::fs::write(variable("EMBERLM_GROUP_OUT"), bytes).unwrap();
}

/// All ranks have the logits of ranks in one process, bit for bit.
fn family(name: &str) {
    let path = path_of(name);
    let (model, other) = begin("logits", &path, 30_000);
    let model = model.unwrap();
    let own = logits(&model).concat();
    assert!(own == other.end(), "{name}: ranks have other bits");
    drop(model);
    assert!(own == logits(&load(&path)).concat(), "{name}: other bits");
}

/// What sessions say that are made, forked, rewound and evaluated together.
fn texts(model: &Arc<Model>) -> Vec<u32> {
    let mut said = Vec::new();
    let mut sessions: Vec<Session> = (0..3)
        .map(|seed| {
            let mut session = session(model);
            let text: Vec<u32> = (0..500).map(|i| (i * 7 + seed) % 60).collect();
            session.prefill(&text).unwrap();
            session
        })
        .collect();
    let mut fork = sessions[0].fork().unwrap();
    fork.rewind(100).unwrap();
    fork.prefill(&[5, 6, 7]).unwrap();
    sessions.push(fork);
    for _ in 0..10 {
        let mut members: Vec<&mut Session> = sessions.iter_mut().collect();
        let chosen = Session::decode_batch(&mut members).unwrap();
        said.extend(chosen.into_iter().map(|token| token.unwrap()));
    }
    let first = &mut sessions[0];
    first.decode_start(4).unwrap();
    let mut left = 4;
    while left > 0 {
        match first.decode_poll().unwrap() {
            Some(token) => {
                said.push(token);
                left -= 1;
            }
            None => std::thread::yield_now(),
        }
    }
    first.prefill_start(&[1, 2, 3, 4, 5]).unwrap();
    while !first.prefill_poll().unwrap().0 {
        std::thread::yield_now();
    }
    said.push(first.decode().unwrap());
    said.extend(bits(first));
    said
}

fn together() {
    let dir = TempDir::new("gpu-group-together");
    let path = long_path_of("gemma2", &dir);
    let (model, other) = begin("together", &path, 30_000);
    let model = model.unwrap();
    assert_eq!(model.details().parts.len(), 1);
    let own = texts(&model);
    assert!(own == other.end(), "ranks have said different things");
    drop(model);
    assert!(own == texts(&load(&path)), "others in one process");
}

/// Both ranks in this process, each loaded and used by a thread of its own.
fn one_process() {
    let dir = TempDir::new("gpu-group-one");
    let path = long_path_of("mistral", &dir);
    let first = group(0, 30_000, None);
    let second = group(1, 30_000, Some(first.id()));
    let said = std::thread::scope(|scope| {
        let run = |group: Group| {
            let model = load_rank(&path, group, &LoadOptions::default()).unwrap();
            texts(&model)
        };
        let second = scope.spawn(move || run(second));
        (run(first), second.join().unwrap())
    });
    assert!(said.0 == said.1);
}

fn is_different(done: Result<impl Sized>, expected: &str) {
    let e = done.map(drop).unwrap_err();
    assert_eq!(e.status, Status::InvalidArgument, "{}", e.message);
    assert!(e.message.contains(expected), "{}", e.message);
}

/// Each call is one that the other rank does not make; then both make the same.
fn differ_as(model: &Arc<Model>, rank: usize) -> Vec<u32> {
    let of = |words: [u32; 2]| words[rank];
    let mut session = session(model);
    let e = session.prefill(&[1, 2, of([3, 4])]);
    is_different(e, "the tokens on rank 0 and on rank 1 are not the same");
    let e = session.prefill(&[1, 2, 3, 4][..of([3, 4]) as usize]);
    is_different(e, "the number of tokens is 3 on rank 0 and 4 on rank 1");
    session.prefill(&[1, 2, 3, 4]).unwrap();
    let e = match rank {
        0 => session.decode().map(drop),
        _ => session.prefill(&[1, 2, 3]),
    };
    is_different(e, "the work is a");
    let sampling = |seed| emberlm::engine::sampling::Sampling {
        temperature: 1.0,
        seed,
        ..Default::default()
    };
    session
        .set_sampling(sampling(u64::from(of([5, 6]))), None)
        .unwrap();
    is_different(session.decode(), "the sampling");
    session.set_sampling(sampling(5), None).unwrap();
    // Two sessions in which the same was said are as good as each other, and others are not.
    let mut others = [
        crate::common::states::session(model),
        session.fork().unwrap(),
    ];
    others[0].prefill(&[4, 3, 2, 1]).unwrap();
    is_different(others[rank].decode(), "the context");
    let _ = others[1].rewind(3);
    let mut said = vec![session.decode().unwrap()];
    said.extend((0..5).map(|_| session.decode().unwrap()));
    said.extend(bits(&mut session));
    let [own, same] = [1 + rank as u64, 3]
        .map(|seed| random_adapter(model, &path_of("mistral"), (seed, 4, TensorType::F32), 0.05));
    let mut session = crate::common::states::session(model);
    session.set_adapters(&[scaled(&own, 1.0)], false).unwrap();
    is_different(session.prefill(&[1, 2, 3]), "the adapters");
    session.set_adapters(&[scaled(&same, 1.0)], false).unwrap();
    session.prefill(&[1, 2, 3]).unwrap();
    said
}

fn differ() {
    let (model, other) = begin("differ", &path_of("mistral"), 30_000);
    let own = differ_as(&model.unwrap(), 0);
    assert!(own == other.end());
}

/// Rank 1 is interrupted, and both end the call.
fn interrupted_as(model: &Arc<Model>, rank: usize) -> Vec<u32> {
    let mut session = session(model);
    session.prefill(&[1, 2, 3]).unwrap();
    for _ in 0..2 {
        if rank == 1 {
            session.interrupts().ask();
        }
        let e = session.prefill(&[4, 5, 6]).unwrap_err();
        assert_eq!(e.status, Status::Interrupted, "{}", e.message);
        assert_eq!(session.position(), 3);
    }
    session.prefill(&[4, 5, 6]).unwrap();
    vec![session.decode().unwrap()]
}

fn interrupted() {
    let (model, other) = begin("interrupted", &path_of("mistral"), 30_000);
    let own = interrupted_as(&model.unwrap(), 0);
    assert_eq!(own, other.end());
}

/// What such a model does not do.
fn refused() {
    let (model, other) = begin("logits", &path_of("mistral"), 30_000);
    let model = model.unwrap();
    let mut session = session(&model);
    let unsupported = |e: Error| assert_eq!(e.status, Status::Unsupported, "{}", e.message);
    let kind = emberlm::engine::state::Kind::Everything;
    unsupported(session.save_to(&mut |_| Ok(()), kind).unwrap_err());
    unsupported(session.evict().unwrap_err());
    logits(&model);
    other.end();
}

/// Ranks with other models or too little memory: an error on both. A model without a GPU of its own, too.
fn loads() {
    let (path, other_path) = (path_of("mistral"), path_of("gemma2"));
    for (role, status, word) in [
        (
            format!("other_model {}", other_path.display()),
            Status::InvalidArgument,
            "on rank 0 and ",
        ),
        ("little_memory".into(), Status::OutOfMemory, "rank 1 of 2: "),
    ] {
        let (model, other) = begin(&role, &path, 30_000);
        let e = model.map(drop).unwrap_err();
        assert_eq!(e.status, status, "{role}: {}", e.message);
        assert!(e.message.contains(word), "{role}: {}", e.message);
        other.end();
    }
    let both = LoadOptions {
        group: Some(Arc::new(group(0, 300, None))),
        ..options(0)
    };
    let e = Model::load(&path, 0, &both, &mut |_| Ok(()))
        .map(drop)
        .unwrap_err();
    assert_eq!(e.status, Status::InvalidArgument, "{}", e.message);
    let e = Model::load(&path, 0, &both, &mut |_| Ok(()))
        .map(drop)
        .unwrap_err();
    assert!(e.message.contains("used before"), "{}", e.message);
    let on_cpu = LoadOptions {
        group: Some(Arc::new(group(0, 300, None))),
        ..Default::default()
    };
    let cpu = nth(emberlm::backend::DeviceKind::Cpu, 0);
    let e = Model::load(&path, cpu, &on_cpu, &mut |_| Ok(()))
        .map(drop)
        .unwrap_err();
    assert_eq!(e.status, Status::Unsupported, "{}", e.message);
}

fn is_lost(done: Result<impl Sized>, expected: &str) {
    let e = done.map(drop).unwrap_err();
    assert_eq!(e.status, Status::DeviceLost, "{}", e.message);
    assert!(e.message.contains(expected), "{}", e.message);
}

/// Rank 1 never comes, or comes and does nothing.
fn late() {
    let path = path_of("mistral");
    let alone = load_rank(&path, group(0, 300, None), &LoadOptions::default());
    is_lost(alone, "rank 1 of 2 did not come within 300 ms");
    // NCCL itself needs some of it to connect GPUs.
    let patience = match fault() {
        Some(_) => 1000,
        None => 20_000,
    };
    let (model, other) = begin("idle", &path, patience);
    let model = model.unwrap();
    let mut session = session(&model);
    for _ in 0..2 {
        is_lost(
            session.prefill(&[1, 2, 3]),
            &format!("rank 1 of 2 did not come within {patience} ms"),
        );
    }
    is_lost(
        session
            .decode()
            .or_else(|_| session.prefill(&[1]).map(|()| 0)),
        "rank 1 of 2",
    );
    other.end();
}

/// The process of rank 1 ends while it waits, and in the middle of work.
fn killed() {
    let path = path_of("mistral");
    for argument in ["at rest", "in work"] {
        let (model, mut other) = begin(&format!("killed {argument}"), &path, 30_000);
        let model = model.unwrap();
        let mut session = session(&model);
        let begun = Instant::now();
        let e = loop {
            match session.prefill(&[1, 2, 3]).and_then(|()| session.rewind(0)) {
                Ok(()) => assert!(
                    begun.elapsed() < Duration::from_secs(20),
                    "nothing was lost"
                ),
                Err(e) => break e,
            }
        };
        // Not by a time that is over.
        assert!(begun.elapsed() < Duration::from_secs(20), "{argument}");
        is_lost(Err::<(), Error>(e), "rank 1 of 2 is gone");
        is_lost(session.prefill(&[1]), "rank 1 of 2 is gone");
        assert!(!other.process.wait().unwrap().success());
        drop((session, model));
    }
    // The GPUs can be used.
    let mut session = session(&load(&path));
    session.prefill(&[1, 2, 3]).unwrap();
    session.decode().unwrap();
}
