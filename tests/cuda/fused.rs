//! Heads of EAGLE-3 on a GPU: their logits beside a reference in double precision, and sessions with their drafts beside sessions without.

use crate::common::drafts::{ALWAYS, SAMPLED, decoded, dropped, interrupted_texts};
use crate::common::folder::Folder;
use crate::common::fused::{self, Form, TARGETS};
use crate::common::heads::{self, Kept, choose_together};
use crate::common::states::{random_life_of, session};
use crate::common::{TempDir, repository_file};
use crate::gpu::*;
use crate::heads::{batches, evicted_sessions_with, evicted_with, late_with, started_with};
use crate::model::gpu;
use emberlm::Status;
use emberlm::backend::{DeviceKind, KvType, LoadOptions, RunnerOptions, Share, Want, Weights};
use emberlm::engine::sampling::Sampling;
use emberlm::engine::speculate::{DraftOptions, HeadDrafts, SourceKind};
use emberlm::engine::{Model, Session, SessionOptions, device};
use emberlm::format::WeightType;
use emberlm::model::Network;
use std::sync::Arc;

const FORMS: [Form; 2] = [Form::SpecForge, Form::Speculators];
const OPTIONS: RunnerOptions = RunnerOptions {
    context: 128,
    kv_type: KvType::F16,
    stream_priority: 0,
    mark_interval: 0,
};

pub fn tests(tests: &mut Tests) {
    for name in TARGETS {
        for form in FORMS {
            // Caches, and inputs of the products of pieces, are in half precision.
            let run = move || fused::agrees((name, form), &OPTIONS, [0.03, 0.05], &|n| gpu(n));
            tests.push((format!("fused::{name}_{form:?}"), Box::new(run)));
        }
        let run = move || drafts_are_right(name);
        tests.push((format!("fused::drafts_of_{name}"), Box::new(run)));
    }
    tests.push(("fused::quantized".into(), Box::new(quantized)));
    tests.push(("fused::states".into(), Box::new(hidden_states)));
    let run = || fused::units_agree(&OPTIONS, 0.01, &|n| gpu(n));
    tests.push(("fused::units".into(), Box::new(run)));
    tests.push(("fused::lives".into(), Box::new(lives)));
    tests.push(("fused::texts".into(), Box::new(texts)));
    tests.push(("fused::hamlet".into(), Box::new(hamlet)));
    tests.push(("fused::host_experts".into(), Box::new(host_experts)));
    tests.push(("fused::batches".into(), Box::new(all_batches)));
    tests.push(("fused::dropped".into(), Box::new(dropped_decodes)));
    tests.push(("fused::late".into(), Box::new(late)));
    tests.push(("fused::evict".into(), Box::new(evicted)));
    tests.push(("fused::started".into(), Box::new(started)));
    tests.push(("fused::memory".into(), Box::new(memory)));
    tests.push(("fused::limits".into(), Box::new(limits)));
    tests.push(("fused::handles".into(), Box::new(handles)));
    tests.push(("fused::refused".into(), Box::new(refused)));
}

fn loaded_on(folder: &Folder, kind: DeviceKind, options: &LoadOptions) -> Arc<Model> {
    let dir = TempDir::new("gpu-fused");
    folder.write(&dir);
    load_on(dir.path(), kind, options)
}

fn loaded(folder: &Folder) -> Arc<Model> {
    loaded_on(folder, DeviceKind::Cuda, &LoadOptions::default())
}

/// A head's files stay where it was loaded from.
struct Head {
    model: Arc<Model>,
    _dir: TempDir,
}

impl Head {
    fn on(name: &str, form: Form, kind: DeviceKind) -> Head {
        let dir = TempDir::new("gpu-fused-head");
        fused::head_for(name, form).write(&dir);
        let model = load_on(dir.path(), kind, &LoadOptions::default());
        Head { model, _dir: dir }
    }

    fn of(name: &str, form: Form) -> Head {
        Head::on(name, form, DeviceKind::Cuda)
    }

    fn drafts(&self, session: &mut Session) {
        self.drafts_by(session, &ALWAYS);
    }

    fn drafts_by(&self, session: &mut Session, options: &DraftOptions) {
        session.set_model_drafts(&self.model, options).unwrap();
        let info = session.speculation().unwrap();
        assert_eq!(info.source, SourceKind::Model);
    }
}

fn pair(name: &str, form: Form) -> (Arc<Model>, Head) {
    (loaded(&fused::target(name)), Head::of(name, form))
}

/// Through rewinds, forks, evictions and erased tokens, drafts are as good as those of a head that has read the whole context.
fn drafts_are_right(name: &str) {
    let (model, head) = pair(name, Form::SpecForge);
    fused::drafts_are_right((&model, &head.model), name, KvType::F16, 0.05);
}

/// Heads in the types that models are quantized to, whose products with one row make their own inputs.
fn quantized() {
    fused::quantized_agree(&OPTIONS, 0.05, &|n| gpu(n));
}

/// A text of a trained model, with a head that is wrong.
fn hamlet() {
    let path = repository_file("models/hamlet-7m-Q4_K_M.gguf");
    let model = load_on(&path, DeviceKind::Cuda, &LoadOptions::default());
    let details = model.details();
    for (form, weights) in [
        (Form::SpecForge, WeightType::Q8_0),
        (Form::Speculators, WeightType::Keep),
    ] {
        let options = LoadOptions {
            weights,
            ..Default::default()
        };
        let dir = TempDir::new("gpu-fused-hamlet");
        fused::random_for(form, details.hidden, details.n_vocab).write(&dir);
        let head = load_on(dir.path(), DeviceKind::Cuda, &options);
        for sampling in [Sampling::GREEDY, SAMPLED] {
            let prepare = |s: &mut Session| s.set_model_drafts(&head, &ALWAYS).unwrap();
            interrupted_texts(&model, sampling, 300, &prepare, false);
        }
    }
}

/// Experts of the model's that the CPU evaluates are between the places that are read.
fn host_experts() {
    let options = LoadOptions {
        host_experts: 1,
        ..Default::default()
    };
    let model = loaded_on(&fused::target("glm4_moe"), DeviceKind::Cuda, &options);
    assert_eq!(model.details().host_experts, 1);
    let head = Head::of("glm4_moe", Form::SpecForge);
    let prepare = |session: &mut Session| head.drafts(session);
    let accepted = interrupted_texts(&model, Sampling::GREEDY, 200, &prepare, false);
    println!("experts on the host: {accepted} accepted");
    assert!(accepted > 0 || is_stand_in());
}

/// Hidden states between layers have the bits of steps in rows of drafts and of batches.
fn hidden_states() {
    let target = Network::from_file(&fused::target("olmo3").ready()).unwrap();
    let weights = gpu(&target);
    let kept = |places: &[usize]| {
        let mut kept = Kept::new(weights.clone(), &OPTIONS);
        kept.states = match places {
            [] => weights.hidden_states(64).unwrap(),
            _ => weights.states_at(places, 64).unwrap(),
        };
        kept.runner.keep_states(Some(kept.states.clone())).unwrap();
        kept
    };
    let tokens = [5u32, 17, 33, 80, 2, 60, 61, 9];
    let submit_all = |kept: &mut Kept, tokens: &[u32]| {
        tokens
            .iter()
            .for_each(|t| kept.submit(&[*t], None, Want::Logits));
    };
    let of = |kept: &Kept, n: usize| (0..n).map(|p| kept.state(p)).collect::<Vec<_>>();
    // Several places in any order, one twice, and behind the final norm.
    let all: [&[usize]; 3] = [&[0, 5, 2], &[2, 2, 1], &[]];
    let expected = all.map(|places| {
        let mut alone = kept(places);
        submit_all(&mut alone, &tokens);
        of(&alone, tokens.len())
    });
    for (places, expected) in all.iter().zip(&expected) {
        let mut drafted = kept(places);
        submit_all(&mut drafted, &tokens[..3]);
        let want = Want::Verified {
            drafts: 4,
            sampling: Sampling::GREEDY,
        };
        drafted.submit(&tokens[3..], None, want);
        assert_eq!(drafted.state(3), expected[3], "{places:?}");
        let hidden = target.hidden;
        if let [a, b, _] = **places
            && a == b
        {
            let row = drafted.state(3);
            assert_eq!(row[..hidden], row[hidden..2 * hidden]);
        }
    }
    let mut members = all.map(kept);
    for (i, member) in members.iter_mut().enumerate() {
        submit_all(member, &tokens[..2 + i]);
    }
    for step in 0..3 {
        let mut next = tokens[2 + step..].iter();
        let with_next = members.each_mut().map(|kept| (kept, *next.next().unwrap()));
        choose_together(&*weights, with_next);
    }
    for (member, expected) in members.iter().zip(&expected) {
        assert_eq!(of(member, 5), expected[..5]);
    }
}

fn lives() {
    for (seed, name) in TARGETS.into_iter().enumerate() {
        // Where layers are recurrent, what is evaluated again has the bits that it had with the stand-in alone.
        if name == "qwen3_5" && !is_stand_in() {
            continue;
        }
        let (model, head) = pair(name, FORMS[seed % 2]);
        for (seed, options) in [(seed, ALWAYS), (50 + seed, DraftOptions::default())] {
            random_life_of(&model, seed as u64, 50, false, &mut |session| {
                head.drafts_by(session, &options);
            });
        }
    }
}

/// As many drafts are right as on a CPU, where texts are others now and then.
fn texts() {
    for name in TARGETS {
        for form in FORMS {
            let (model, head) = pair(name, form);
            let on_cpu = loaded_on(&fused::target(name), DeviceKind::Cpu, &Default::default());
            let theirs = Head::on(name, form, DeviceKind::Cpu);
            for sampling in [Sampling::GREEDY, SAMPLED] {
                let alike = name == "qwen3_5";
                let prepare = |session: &mut Session| head.drafts(session);
                let accepted = interrupted_texts(&model, sampling, 300, &prepare, alike);
                let prepare = |session: &mut Session| theirs.drafts(session);
                let by_cpu = interrupted_texts(&on_cpu, sampling, 300, &prepare, alike);
                println!(
                    "{name}, {form:?}, temperature {}: {accepted} accepted, {by_cpu} on a CPU",
                    sampling.temperature
                );
                assert!(by_cpu > 0, "{name}, {form:?}, {sampling:?}");
                let close = 2 * accepted >= by_cpu && accepted <= 2 * by_cpu;
                assert!(close || is_stand_in(), "{name}, {form:?}, {sampling:?}");
            }
        }
    }
}

/// Batches of sessions with heads, with other heads, with the model's own, and without.
fn all_batches() {
    for name in ["olmo3", "qwen3_5"] {
        let (model, head) = pair(name, Form::SpecForge);
        batches(&model, &|_, session| head.drafts(session));
    }
    let options = LoadOptions {
        draft_heads: true,
        ..Default::default()
    };
    let folder = heads::folder("glm4_moe", false);
    let model = loaded_on(&folder, DeviceKind::Cuda, &options);
    let [a, b] = FORMS.map(|form| Head::of("glm4_moe", form));
    batches(&model, &|i, session| match i {
        0 => a.drafts(session),
        1 => b.drafts(session),
        _ => session.set_head_drafts(&ALWAYS).unwrap(),
    });
}

fn dropped_decodes() {
    let (model, head) = pair("olmo3", Form::SpecForge);
    let accepted = dropped(&|| session(&model), &|target, _| {
        Box::new(HeadDrafts::fused(target, &head.model).unwrap())
    });
    assert!(accepted > 10 || is_stand_in(), "{accepted}");
}

/// A head that has not seen the beginning, because it came later or because the prompt was longer than what is kept.
fn late() {
    let (model, head) = pair("olmo3", Form::Speculators);
    late_with(&model, 2600, &|session| head.drafts(session));
}

/// A head goes with its model and with its session, and comes back with them.
fn evicted() {
    for (name, form) in [
        ("olmo3", Form::SpecForge),
        ("glm4_moe", Form::Speculators),
        ("qwen3_5", Form::SpecForge),
    ] {
        let (model, head) = pair(name, form);
        evicted_with(&model, &|session| head.drafts(session));
        evicted_sessions_with(&model, &|session| head.drafts(session));
        // The head's own handle has nothing on the device.
        head.model.evict().unwrap();
        let mut plain = session(&model);
        let mut drafting = session(&model);
        model.evict().unwrap();
        head.drafts(&mut drafting);
        for session in [&mut plain, &mut drafting] {
            session.prefill(&[1, 20, 30, 40]).unwrap();
        }
        assert!(decoded(&mut drafting, 20) == decoded(&mut plain, 20));
    }
}

/// Started decodes ask the head, in the background.
fn started() {
    for name in ["olmo3", "qwen3_5"] {
        let (model, head) = pair(name, Form::SpecForge);
        started_with(&model, &|session| head.drafts(session));
    }
}

fn taken(model: &Arc<Model>) -> [u64; 2] {
    let taken = model.weights().taken();
    [taken.model, taken.sessions]
}

/// A head takes what the estimate says, once for all sessions of a model, as long as both are there.
fn memory() {
    for form in FORMS {
        let (model, head) = pair("glm4_moe", form);
        let (e, context) = Model::estimate(
            head._dir.path(),
            head.model.details().device,
            &Default::default(),
            &SessionOptions {
                context: 512,
                ..Default::default()
            },
        )
        .unwrap();
        let e = e.device;
        let options = SessionOptions {
            context,
            ..Default::default()
        };
        let create = || Session::create(model.clone(), &options).unwrap();
        let (mut first, mut second) = (create(), create());
        let before = taken(&model);
        head.drafts(&mut first);
        let with = taken(&model);
        let grown = with[0] - before[0];
        assert!(
            grown >= e.weights_bytes && grown <= e.weights_bytes + e.model_workspace_bytes,
            "{form:?}: {grown} of {e:?}"
        );
        // With what any drafts take.
        let mut third = create();
        let alone = taken(&model)[1];
        third.set_ngram_drafts(1, &ALWAYS).unwrap();
        let any = taken(&model)[1] - alone;
        let grown = with[1] - before[1];
        let most = e.kv_bytes + e.session_workspace_bytes + any + (4 << 20);
        let least = e.session_workspace_bytes;
        assert!(
            grown > least && grown <= most,
            "{form:?}: {grown}, {any} of any drafts, of {e:?}"
        );
        head.drafts(&mut second);
        assert_eq!(taken(&model)[0], with[0], "{form:?}");
        first.clear_drafts().unwrap();
        second.clear_drafts().unwrap();
        assert_eq!(taken(&model)[0], with[0], "{form:?}");
        drop(head);
        assert_eq!(taken(&model)[0], before[0], "{form:?}");
    }
}

/// The head counts for the limit of the model's memory, and what it has of a session for that of the sessions'.
fn limits() {
    let head = Head::of("glm4_moe", Form::SpecForge);
    let dir = TempDir::new("gpu-fused-limits");
    fused::target("glm4_moe").write(&dir);
    let device = head.model.details().device;
    let usual = LoadOptions::default();
    let (e, _) = Model::estimate(dir.path(), device, &usual, &Default::default()).unwrap();
    // All that the model needs, which two sessions have it take.
    let limited = load_on(
        dir.path(),
        DeviceKind::Cuda,
        &LoadOptions {
            memory_limit: e.device.weights_bytes + e.device.model_workspace_bytes,
            ..Default::default()
        },
    );
    let details = limited.details();
    assert!(details.parts.len() == 1 && details.host_experts == 0);
    let model = load_on(dir.path(), DeviceKind::Cuda, &usual);
    let start = |model: &Arc<Model>| {
        let mut s = session(model);
        s.prefill(&[1, 20, 30, 40]).unwrap();
        s
    };
    let (mut a, mut b) = (start(&limited), start(&limited));
    for token in Session::decode_batch(&mut [&mut a, &mut b]).unwrap() {
        token.unwrap();
    }
    let e = a.set_model_drafts(&head.model, &ALWAYS).unwrap_err();
    assert_eq!(e.status, Status::OutOfMemory, "{e}");
    assert!(e.message.contains("memory_limit"), "{e}");
    let (mut plain, mut drafting) = (start(&model), start(&model));
    head.drafts(&mut drafting);
    let expected = decoded(&mut plain, 20);
    assert!(decoded(&mut a, 19) == expected[1..]);
    assert!(decoded(&mut drafting, 20) == expected);
    // Room for one session.
    let before = taken(&model)[1];
    decoded(&mut start(&model), 20);
    let one = start(&model);
    let options = LoadOptions {
        session_memory_limit: taken(&model)[1] - before + (1 << 20),
        ..Default::default()
    };
    drop(one);
    let model = load_on(dir.path(), DeviceKind::Cuda, &options);
    let mut s = start(&model);
    let e = s.set_model_drafts(&head.model, &ALWAYS).unwrap_err();
    assert_eq!(e.status, Status::OutOfMemory, "{e}");
    assert!(e.message.contains("session_memory_limit"), "{e}");
    assert!(decoded(&mut s, 20) == expected);
}

/// Handles may go in any order.
fn handles() {
    let (model, head) = pair("olmo3", Form::SpecForge);
    let other = loaded(&fused::target("olmo3"));
    let mut sessions = [session(&model), session(&other)];
    for session in &mut sessions {
        head.drafts(session);
        session.prefill(&[1, 20, 30, 40]).unwrap();
    }
    // The sessions have it.
    drop(head);
    let [mut first, mut second] = sessions;
    assert!(decoded(&mut first, 20) == decoded(&mut second, 20));
    drop((first, model));
    decoded(&mut second, 10);
    let again = Head::of("olmo3", Form::Speculators);
    again.drafts(&mut second);
    drop(other);
    decoded(&mut second, 10);
    drop(second);
    drop(again);
}

fn refused() {
    let (model, head) = pair("glm4_moe", Form::SpecForge);
    let on_cpu = loaded_on(
        &fused::target("glm4_moe"),
        DeviceKind::Cpu,
        &Default::default(),
    );
    let theirs = Head::on("glm4_moe", Form::SpecForge, DeviceKind::Cpu);
    for (model, head) in [(&model, &theirs), (&on_cpu, &head)] {
        let mut s = session(model);
        let e = s.set_model_drafts(&head.model, &ALWAYS).unwrap_err();
        assert_eq!(e.status, Status::InvalidArgument, "{e}");
        assert!(e.message.contains("the device of its model"), "{e}");
        assert!(s.speculation().is_none());
    }
    let e = Session::create(head.model.clone(), &SessionOptions::default()).err();
    assert_eq!(e.unwrap().status, Status::Unsupported);
    assert_eq!(head.model.details().device, model.details().device);
    // Layers on two devices, of the model and of the head.
    let cpu =
        (0..device::count().unwrap()).find(|i| device::info(*i).unwrap().kind == DeviceKind::Cpu);
    let mut options = LoadOptions::default();
    for device in [cpu.unwrap(), model.details().device] {
        options.split.push(Share { device, layers: 0 });
    }
    let mut named = options.clone();
    (named.split[0].layers, named.split[1].layers) = (1, 0);
    let split = loaded_on(&fused::target("glm4_moe"), DeviceKind::Cuda, &named);
    let mut s = session(&split);
    let e = s.set_model_drafts(&head.model, &ALWAYS).unwrap_err();
    assert_eq!(e.status, Status::Unsupported, "{e}");
    assert!(e.message.contains("on one device as a whole"), "{e}");
    let dir = TempDir::new("gpu-fused-split");
    fused::head_for("glm4_moe", Form::SpecForge).write(&dir);
    let e = Model::load(
        dir.path(),
        model.details().device,
        &options,
        &mut |_| Ok(()),
    );
    let e = e.err().unwrap();
    assert_eq!(e.status, Status::Unsupported, "{e}");
    assert!(e.message.contains("EAGLE-3"), "{e}");
}
