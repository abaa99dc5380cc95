//! Saved and restored sessions, forks, eviction and erased spans, on the CPU. tests/cuda/states.rs runs
//! the same on a GPU.

use crate::common::families::WINDOWED;
use crate::common::states::*;
use crate::common::{TempDir, cpu, repository_file, xz};
use emberlm::Status;
use emberlm::backend::{KvType, LoadOptions};
use emberlm::engine::state::{Kind, RestoreOptions, inspect};
use emberlm::engine::{Model, Session, SessionOptions};
use emberlm::grammar::GrammarKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn hamlet_path() -> PathBuf {
    repository_file("models/hamlet-7m-Q4_K_M.gguf")
}

/// A model on the CPU.
fn load(path: &Path) -> Arc<Model> {
    let options = LoadOptions {
        threads: 2,
        ..Default::default()
    };
    Arc::new(Model::load(path, cpu(), &options, &mut |_| Ok(())).unwrap())
}

fn hamlet() -> Arc<Model> {
    load(&hamlet_path())
}

fn family(name: &str) -> Arc<Model> {
    load(&repository_file(&format!(
        "tests/data/families/{name}/model.gguf"
    )))
}

#[test]
fn a_restored_session_continues_with_the_same_bits() {
    let model = hamlet();
    for seed in 0..6 {
        random_life(&model, seed, 60, true);
    }
}

#[test]
fn windows_experts_and_fixed_states_are_restored_as_well() {
    for name in WINDOWED
        .iter()
        .chain(&["mixtral", "lfm2", "qwen3_5", "qwen3_next"])
    {
        let model = family(name);
        for seed in 0..4 {
            random_life(&model, seed, 60, false);
        }
    }
}

#[test]
fn rings_that_went_round_are_restored() {
    for &name in WINDOWED {
        let dir = TempDir::new(&format!("rings-{name}"));
        let bytes = crate::common::families::with_context(name, 4096).bytes();
        let model = load(&dir.file("model.gguf", &bytes));
        for seed in 10..13 {
            random_life(&model, seed, 80, false);
        }
    }
}

#[test]
fn forks_share_and_part() {
    forks(&hamlet(), 1000);
}

#[test]
fn files_of_other_models_and_versions_are_told_apart() {
    let (model, other) = (hamlet(), family("qwen2"));
    let dir = TempDir::new("states");
    let path = dir.path().join("session");
    let mut s = session(&model);
    s.prefill(&[5, 6, 7]).unwrap();
    let status = |result: emberlm::Result<Session>| result.err().unwrap().status;
    let options = RestoreOptions::default();
    assert_eq!(
        status(Session::restore(model.clone(), &path, &options)),
        Status::FileNotFound
    );
    s.save(&path, Kind::Everything).unwrap();
    assert_eq!(
        status(Session::restore(other, &path, &options)),
        Status::StateForeign
    );
    let details = inspect(&path).unwrap();
    assert_eq!((details.version, details.position), (1, 3));
    assert_eq!(details.architecture, "llama");
    assert_eq!(details.file_bytes, std::fs::metadata(&path).unwrap().len());
    // A file that is longer than it says, or shorter.
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, [&bytes[..], b"x"].concat()).unwrap();
    assert_eq!(
        status(Session::restore(model.clone(), &path, &options)),
        Status::FileCorrupt
    );
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    assert_eq!(inspect(&path).err().unwrap().status, Status::FileTruncated);
    let gguf = hamlet_path();
    assert_eq!(inspect(&gguf).err().unwrap().status, Status::NotState);
    assert_eq!(inspect(dir.path()).err().unwrap().status, Status::NotAFile);
    // A context that is too short, and one that is longer than before.
    std::fs::write(&path, &bytes).unwrap();
    let short = RestoreOptions {
        context: 2,
        ..options
    };
    assert_eq!(
        status(Session::restore(model.clone(), &path, &short)),
        Status::InvalidArgument
    );
    let long = RestoreOptions {
        context: 1024,
        ..options
    };
    let mut restored = Session::restore(model.clone(), &path, &long).unwrap();
    assert_eq!(restored.context(), 1024);
    assert_eq!(restored.decode().unwrap(), s.decode().unwrap());
    // Nothing is left beside the file.
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn another_element_type_is_converted() {
    let model = hamlet();
    for from in [KvType::F16, KvType::F32] {
        let mut s = session_with(&model, from);
        s.prefill(&(0..100).collect::<Vec<u32>>()).unwrap();
        let bytes = saved(&mut s, Kind::Everything);
        for to in [KvType::F16, KvType::F32] {
            let options = RestoreOptions {
                kv_type: Some(to),
                ..Default::default()
            };
            let mut other = restored(&model, &bytes, &options).unwrap();
            // The saved logits choose the first token, the converted cache those behind it.
            let same = (0..4).all(|_| s.decode().unwrap() == other.decode().unwrap());
            assert!(same, "{from:?} as {to:?}");
            s.rewind(100).unwrap();
        }
        let q8 = RestoreOptions {
            kv_type: Some(KvType::Q8_0),
            ..Default::default()
        };
        let e = restored(&model, &bytes, &q8).err().unwrap();
        assert_eq!(e.status, Status::Unsupported);
    }
}

#[test]
fn tokens_alone_are_evaluated_again() {
    let model = hamlet();
    let mut s = session(&model);
    s.prefill(&(0..300).collect::<Vec<u32>>()).unwrap();
    (0..5).for_each(|_| _ = s.decode().unwrap());
    let bytes = saved(&mut s, Kind::Tokens);
    assert!(bytes.len() < 305 * 4 + 1000, "{} bytes", bytes.len());
    let mut other = restored(&model, &bytes, &RestoreOptions::default()).unwrap();
    for _ in 0..5 {
        assert_eq!(other.decode().unwrap(), s.decode().unwrap());
    }
    assert_eq!(bits(&mut other), bits(&mut s));
    // A session without tokens is one, too.
    let empty = saved(&mut session(&model), Kind::Tokens);
    let mut empty = restored(&model, &empty, &RestoreOptions::default()).unwrap();
    assert_eq!(empty.position(), 0);
    empty.prefill(&[1]).unwrap();
}

/// Files of every version of the format that was ever written stay readable.
#[test]
fn old_versions_stay_readable() {
    let dir = TempDir::new("old-versions");
    let model = hamlet();
    for (kind, name) in [(Kind::Everything, "everything"), (Kind::Tokens, "tokens")] {
        let path = dir.file(name, &stored_state(name));
        let mut s = session_of_that_file(&model);
        if std::env::var_os("EMBERLM_WRITE_STATES").is_some() {
            s.save(&path, kind).unwrap();
            let file = repository_file(&format!("tests/data/states/v1_{name}"));
            std::fs::copy(&path, file).unwrap();
        }
        let details = inspect(&path).unwrap();
        assert_eq!((details.version, details.kind), (1, kind));
        let mut restored = Session::restore(model.clone(), &path, &Default::default()).unwrap();
        assert_eq!(restored.tokens(), s.tokens());
        for _ in 0..8 {
            assert_eq!(restored.decode().unwrap(), s.decode().unwrap(), "{name}");
        }
    }
}

/// A file of `tests/data/states`, or its xz (`data/pack.py`) where it was not written anew.
fn stored_state(name: &str) -> Vec<u8> {
    let path = repository_file(&format!("tests/data/states/v1_{name}"));
    match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(_) => xz::unpacked(&std::fs::read(path.with_extension("xz")).unwrap()),
    }
}

/// What the committed files hold.
fn session_of_that_file(model: &Arc<Model>) -> Session {
    let options = SessionOptions {
        context: 128,
        ..Default::default()
    };
    let mut s = Session::create(model.clone(), &options).unwrap();
    s.prefill(&[10, 20, 30, 40, 50]).unwrap();
    let sampling = emberlm::engine::sampling::Sampling {
        temperature: 0.7,
        seed: 11,
        ..Default::default()
    };
    s.set_sampling(sampling, None).unwrap();
    (0..3).for_each(|_| _ = s.decode().unwrap());
    s
}

#[test]
fn an_erased_span_was_never_there() {
    let model = hamlet();
    let prompt: Vec<u32> = (0..200).map(|i| i * 7 % 400).collect();
    for (from, count) in [(0, 10), (50, 100), (190, 10), (0, 0), (64, 1), (0, 199)] {
        let mut erased = session(&model);
        erased.prefill(&prompt).unwrap();
        erased.erase(from, count).unwrap();
        let rest = [&prompt[..from], &prompt[from + count..]].concat();
        assert_eq!(erased.tokens(), rest);
        let mut alone = session(&model);
        alone.prefill(&rest).unwrap();
        assert!(bits(&mut erased) == bits(&mut alone), "{from}, {count}");
        assert_eq!(erased.decode().unwrap(), alone.decode().unwrap());
    }
    let mut s = session(&model);
    s.prefill(&prompt).unwrap();
    let before = bits(&mut s);
    for (from, count) in [
        (201, 0),
        (200, 1),
        (0, 201),
        (usize::MAX, 2),
        (1, usize::MAX),
    ] {
        let e = s.erase(from, count).unwrap_err();
        assert_eq!(e.status, Status::InvalidArgument);
    }
    assert!(bits(&mut s) == before);
    // All of it.
    s.erase(0, 200).unwrap();
    assert_eq!(s.position(), 0);
}

/// What a grammar has forced is not evaluated yet when a profile is asked for.
#[test]
fn a_profile_behind_forced_tokens_changes_nothing() {
    let model = hamlet();
    let (mut s, mut alone) = (session(&model), session(&model));
    for s in [&mut s, &mut alone] {
        s.prefill(&[1, 2, 3]).unwrap();
        let options = Default::default();
        s.set_grammar(
            GrammarKind::Regex,
            "once upon a time there was a king",
            &options,
        )
        .unwrap();
    }
    for _ in 0..6 {
        assert_eq!(s.decode().unwrap(), alone.decode().unwrap());
        assert!(s.profile().unwrap().done().count() > 0);
    }
    assert!(bits(&mut s) == bits(&mut alone));
}

#[test]
fn an_evicted_session_comes_back_by_itself() {
    let model = hamlet();
    let (mut s, mut alone) = (session(&model), session(&model));
    for s in [&mut s, &mut alone] {
        s.prefill(&(0..300).collect::<Vec<u32>>()).unwrap();
        s.decode().unwrap();
    }
    for i in 0..6 {
        s.evict().unwrap();
        s.evict().unwrap();
        if i == 3 {
            s.rewind(200).unwrap();
            alone.rewind(200).unwrap();
        }
        if i == 4 {
            s.resume().unwrap();
        }
        assert_eq!(s.decode().unwrap(), alone.decode().unwrap());
    }
    s.evict().unwrap();
    let bytes = saved(&mut s, Kind::Everything);
    assert!(bytes == saved(&mut alone, Kind::Everything));
    model.evict().unwrap();
    model.resume().unwrap();
    assert_eq!(s.decode().unwrap(), alone.decode().unwrap());
}

#[test]
fn a_started_prefill_tells_how_far_it_is_and_can_be_stopped() {
    let model = hamlet();
    let prompt: Vec<u32> = (0..900).map(|i| i % 300).collect();
    let (mut s, mut alone) = (session(&model), session(&model));
    alone.prefill(&prompt).unwrap();
    s.prefill_start(&prompt).unwrap();
    assert_eq!(s.position(), 0);
    assert_eq!(s.decode().unwrap_err().status, Status::DecodePending);
    assert_eq!(s.decode_poll().unwrap_err().status, Status::NothingPending);
    let mut last = 0;
    loop {
        let (done, evaluated) = s.prefill_poll().unwrap();
        assert!((last..=900).contains(&evaluated));
        last = evaluated;
        if done {
            break;
        }
        std::thread::yield_now();
    }
    assert_eq!((last, s.position()), (900, 900));
    assert_eq!(s.prefill_poll().unwrap_err().status, Status::NothingPending);
    assert!(bits(&mut s) == bits(&mut alone));
    // An interrupt, a rewind and a drop end it.
    s.rewind(100).unwrap();
    s.prefill_start(&prompt[100..]).unwrap();
    s.interrupts().ask();
    let ended = loop {
        match s.prefill_poll() {
            Ok((false, _)) => std::thread::yield_now(),
            Ok((true, _)) => break None,
            Err(e) => break Some(e.status),
        }
    };
    // On a busy machine it may have been done before.
    assert!(matches!(ended, None | Some(Status::Interrupted)));
    s.rewind(100).unwrap();
    s.prefill_start(&prompt[100..]).unwrap();
    s.rewind(50).unwrap();
    assert_eq!(s.position(), 50);
    s.prefill(&prompt[50..]).unwrap();
    assert!(bits(&mut s) == bits(&mut alone));
    s.rewind(0).unwrap();
    s.prefill_start(&prompt).unwrap();
}

/// In the environment of a child of the test below: where it saves.
const CHILD: &str = "EMBERLM_TEST_SAVES_TO";

/// Not a test of its own: what the child does.
#[test]
fn child_that_saves() {
    let Some(path) = std::env::var_os(CHILD) else {
        return;
    };
    let mut s = session(&hamlet());
    loop {
        s.prefill(&[1, 2, 3, 4]).unwrap();
        s.save(Path::new(&path), Kind::Everything).unwrap();
        if s.position() > 900 {
            s.rewind(0).unwrap();
        }
    }
}

#[test]
fn a_killed_process_leaves_a_whole_file() {
    let model = hamlet();
    let dir = TempDir::new("killed");
    let path = dir.path().join("session");
    session(&model).save(&path, Kind::Everything).unwrap();
    for i in 0..12 {
        let before = std::fs::metadata(&path).unwrap().modified().unwrap();
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "states::child_that_saves", "--nocapture"])
            .env(CHILD, &path)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // It has saved at least once; where it is now is up to chance.
        while std::fs::metadata(&path).unwrap().modified().unwrap() == before {
            assert!(child.try_wait().unwrap().is_none(), "the child has ended");
            std::thread::yield_now();
        }
        for _ in 0..i * 40_000 {
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let mut restored = Session::restore(model.clone(), &path, &Default::default()).unwrap();
        assert!(restored.position() > 0);
        restored.decode().unwrap();
    }
}
