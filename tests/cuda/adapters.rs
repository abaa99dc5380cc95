//! LoRA adapters on a GPU: against peft, against the CPU, and that sessions with different ones do not see each other.

use crate::common::adapters::{adapted, decode, decode_together, logits, random_adapter, scaled};
use crate::common::convert::{self, rewritten_bytes};
use crate::common::expected::Expected;
use crate::common::families::FAMILIES;
use crate::common::states::{bits, restored, saved, session, session_with};
use crate::common::tiny::Tiny;
use crate::common::{TempDir, repository_file};
use crate::gpu::{Tests, context, load_on};
use emberlm::Status;
use emberlm::backend::{DeviceKind, KvType, LoadOptions};
use emberlm::engine::speculate::DraftOptions;
use emberlm::engine::state::{Kind, RestoreOptions};
use emberlm::engine::{Adapter, Model, Session, WantedAdapter};
use emberlm::format::ModelFile;
use emberlm::quant::TensorType;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub fn tests(tests: &mut Tests) {
    tests.push(("adapters::peft".into(), Box::new(peft)));
    // Those with several residual streams have no adapters.
    for &name in FAMILIES.iter().filter(|name| **name != "gemma3n") {
        tests.push((
            format!("adapters::{name}"),
            Box::new(move || as_on_a_cpu(&family_path(name), name)),
        ));
    }
    tests.push((
        "adapters::hamlet".into(),
        Box::new(|| as_on_a_cpu(&hamlet_path(), "hamlet")),
    ));
    tests.push(("adapters::batches".into(), Box::new(batches)));
    tests.push((
        "adapters::batches_of_experts".into(),
        Box::new(batches_of_experts),
    ));
    tests.push(("adapters::others".into(), Box::new(others)));
    tests.push(("adapters::kept".into(), Box::new(kept)));
    tests.push(("adapters::drafts".into(), Box::new(drafts)));
    tests.push(("adapters::long_prompts".into(), Box::new(long_prompts)));
    tests.push(("adapters::memory".into(), Box::new(memory)));
    tests.push(("adapters::out_of_memory".into(), Box::new(out_of_memory)));
}

fn family_path(name: &str) -> PathBuf {
    repository_file(&format!("tests/data/families/{name}/model.gguf"))
}

fn hamlet_path() -> PathBuf {
    repository_file("models/hamlet-7m-Q4_K_M.gguf")
}

fn load(path: &Path) -> Arc<Model> {
    load_on(path, DeviceKind::Cuda, &LoadOptions::default())
}

fn with(model: &Arc<Model>, adapters: &[WantedAdapter<'_>], tokens: &[u32]) -> Session {
    adapted(session(model), adapters, tokens)
}

/// Of the largest logit.
fn apart(got: &[f32], want: &[f32]) -> f32 {
    let pairs = got.iter().zip(want);
    let apart = pairs.fold(0f32, |most, (a, b)| most.max((a - b).abs()));
    assert!(got.iter().all(|x| x.is_finite()));
    apart / want.iter().fold(0f32, |most, x| most.max(x.abs()))
}

fn peft() {
    for (family, name) in [
        ("mistral", "mistral"),
        ("mistral", "mistral_small"),
        ("qwen2", "qwen2"),
        ("phi3", "phi3"),
        ("gpt2", "gpt2"),
        ("gpt_neox", "gpt_neox"),
        ("falcon_new", "falcon_new"),
    ] {
        let expected = Expected::read(&format!("adapters/{name}/logits"));
        let model = load(&family_path(family));
        let path = repository_file(&format!("tests/data/adapters/{name}"));
        let adapter = Adapter::load(model.clone(), &path).unwrap();
        // Short enough for the frequencies of short texts.
        let options = emberlm::engine::SessionOptions {
            context: 24,
            ..Default::default()
        };
        let mut session = Session::create(model.clone(), &options).unwrap();
        session
            .set_adapters(&[scaled(&adapter, 1.0)], false)
            .unwrap();
        let mut largest = 0f32;
        for (token, theirs) in expected.tokens.iter().zip(&expected.logits) {
            session.prefill(&[*token]).unwrap();
            largest = largest.max(apart(&logits(&mut session), theirs));
        }
        // As a chunk.
        session.rewind(0).unwrap();
        session.prefill(&expected.tokens).unwrap();
        let last = &expected.logits[expected.tokens.len() - 1];
        let chunk = apart(&logits(&mut session), last);
        println!("{name}: {largest:.1e}, chunk {chunk:.1e}");
        assert!(largest < 1e-2 && chunk < 1e-2, "{name}");
        // And it does something.
        let mut plain = Session::create(model, &options).unwrap();
        plain.prefill(&expected.tokens).unwrap();
        assert!(apart(&logits(&mut plain), last) > 3e-2, "{name}");
    }
}

fn text(n_vocab: usize, len: usize) -> Vec<u32> {
    (0..len as u32)
        .map(|i| (i * 37 + i * i * 5 + 3) % n_vocab as u32)
        .collect()
}

/// Every matrix that can have a pair has one, here and there.
fn as_on_a_cpu(path: &Path, name: &str) {
    let file = ModelFile::open(path).unwrap();
    let has_experts = file.tensors.keys().any(|name| name.contains("_exps"));
    let is_quantized = file.tensors.values().any(|t| t.ty.block_len() > 1);
    let [cpu, gpu] = [DeviceKind::Cpu, DeviceKind::Cuda].map(|kind| {
        let model = load_on(path, kind, &LoadOptions::default());
        let adapters = [
            (1, 4, TensorType::F32),
            (2, 3, TensorType::BF16),
            (3, 16, TensorType::F16),
        ]
        .map(|which| random_adapter(&model, path, which, 0.05));
        (model, adapters)
    });
    let n_vocab = cpu.0.details().n_vocab;
    let tokens = text(n_vocab, 19);
    let mut worst = 0f32;
    let mut moved = 0f32;
    for scales in [[1.0, 0.0, 0.0], [0.5, -1.0, 0.7]] {
        let [theirs, ours] = [&cpu, &gpu].map(|(model, adapters)| {
            let wanted: Vec<_> = (adapters.iter().zip(scales))
                .map(|(adapter, scale)| scaled(adapter, scale))
                .collect();
            let mut session = with(model, &wanted, &tokens[..12]);
            let mut all = vec![logits(&mut session)];
            for token in &tokens[12..] {
                session.prefill(&[*token]).unwrap();
                all.push(logits(&mut session));
            }
            all
        });
        let mut plain = with(&gpu.0, &[], &tokens[..12]);
        moved = moved.max(apart(&logits(&mut plain), &theirs[0]));
        let mut all: Vec<f32> = ours.iter().zip(&theirs).map(|(a, b)| apart(a, b)).collect();
        // A token whose experts' scores are nearly equal may go to another expert, and what comes after it sees that.
        all.sort_by(f32::total_cmp);
        if has_experts {
            all.truncate(all.len() / 2);
        }
        worst = all.iter().fold(worst, |a, b| a.max(*b));
    }
    println!("{name}: {worst:.1e}, and {moved:.1e} without");
    // What is large is off by more.
    let bound = match is_quantized || has_experts {
        true => 4e-2,
        false => 1.5e-2,
    } * moved.max(1.0);
    assert!(worst < bound, "{name}: {worst}");
    assert!(moved > 4.0 * worst, "{name}: {moved} without");
}

/// hamlet, with quantized matrices, and two adapters of it.
fn hamlet() -> (Arc<Model>, Adapter, Adapter) {
    let path = hamlet_path();
    let model = load(&path);
    let [first, second] = [(7, 8, TensorType::F16), (8, 5, TensorType::F32)]
        .map(|which| random_adapter(&model, &path, which, 0.02));
    (model, first, second)
}

fn batches() {
    let (model, first, second) = hamlet();
    same_in_batches("hamlet", &model, &first, &second);
}

/// Also of sessions whose adapters leave experts and heads alone, and of those without any.
fn batches_of_experts() {
    let dir = TempDir::new("gpu-adapters-experts");
    let tiny = Tiny {
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        hidden: 256,
        ff: 512,
        experts: Some((8, 3)),
        ty: TensorType::F16,
        ..Tiny::default()
    };
    let source = ModelFile::from_bytes(&tiny.bytes()).unwrap();
    let mut files = Vec::new();
    for ty in [TensorType::Q4K, TensorType::Q8_0, TensorType::IQ4XS] {
        let bytes = rewritten_bytes(&source, |tensor| match tensor.dims.len() {
            1 => (tensor.ty, tensor.bytes().to_vec()),
            _ => (ty, convert::quantized(tensor, ty)),
        });
        let name = ty.name();
        files.push((name, dir.file(&format!("{name}.gguf"), &bytes)));
    }
    let families = [
        "mixtral",
        "qwen2_moe",
        "deepseek_v3",
        "llama4",
        "gpt_oss",
        "granite_moe",
        "gemma4_moe",
        "nemotron_h_latent",
        "mistral4",
    ];
    files.extend(families.map(|name| (name, family_path(name))));
    for (name, path) in files {
        let model = load(&path);
        let [first, second] = [(7, 8, TensorType::F16), (8, 5, TensorType::F32)]
            .map(|which| random_adapter(&model, &path, which, 0.02));
        let data = first.data();
        assert!(data.has_experts || data.has_heads, "{name}");
        same_in_batches(name, &model, &first, &second);
    }
}

fn same_in_batches(name: &str, model: &Arc<Model>, first: &Adapter, second: &Adapter) {
    let tokens = text(model.details().n_vocab, 9);
    let sets: [&[WantedAdapter]; 7] = [
        &[],
        &[scaled(first, 1.0)],
        &[scaled(second, 1.0)],
        &[scaled(second, 1.0)],
        &[scaled(first, 0.5), scaled(second, -2.0)],
        &[scaled(second, 0.0)],
        &[scaled(second, 0.3), scaled(first, 0.1)],
    ];
    // The one without adapters is in all batches.
    for count in [2, 3, 7] {
        let make = || {
            let sets = sets[..1].iter().chain(&sets[8 - count..]);
            sets.map(|set| with(model, set, &tokens))
                .collect::<Vec<_>>()
        };
        let mut alone = make();
        let tokens: Vec<Vec<u32>> = alone.iter_mut().map(|s| decode(s, 8)).collect();
        let mut together = make();
        let of_batches = decode_together(&mut together, 8);
        assert_eq!(of_batches, tokens, "{name}: {count} sessions");
        for (i, (a, b)) in alone.iter_mut().zip(&mut together).enumerate() {
            assert!(bits(a) == bits(b), "{name}: {count} sessions, session {i}");
        }
    }
}

fn others() {
    let (model, first, second) = hamlet();
    let tokens = text(model.details().n_vocab, 9);
    let mut plain = with(&model, &[], &tokens);
    let mut fresh = with(&model, &[scaled(&second, 1.0)], &tokens);
    let mut session = with(&model, &[scaled(&first, 1.0)], &tokens);
    let mut fork = session.fork().unwrap();
    let before = bits(&mut session);
    assert!(bits(&mut plain) != before && bits(&mut fresh) != before);
    session
        .set_adapters(&[scaled(&second, 1.0)], false)
        .unwrap();
    assert!(bits(&mut session) == bits(&mut fresh));
    assert_eq!(decode(&mut session, 5), decode(&mut fresh, 5));
    session.rewind(tokens.len()).unwrap();
    session.set_adapters(&[scaled(&first, 1.0)], false).unwrap();
    assert!(bits(&mut session) == before);
    session.set_adapters(&[], false).unwrap();
    assert!(bits(&mut session) == bits(&mut plain));
    assert!(bits(&mut fork) == before);
    fork.set_adapters(&[scaled(&second, 1.0)], true).unwrap();
    assert!(bits(&mut fork) == before, "kept");
    fork.prefill(&[7]).unwrap();
    let mixed = bits(&mut fork);
    let all: Vec<u32> = tokens.iter().copied().chain([7]).collect();
    for adapter in [&first, &second] {
        assert!(mixed != bits(&mut with(&model, &[scaled(adapter, 1.0)], &all)));
    }
    fork.set_adapters(&[scaled(&second, 1.0)], false).unwrap();
    assert!(bits(&mut fork) == mixed, "the same again");
    // The session lives without the handles.
    let mut session = with(&model, &[scaled(&first, 1.0)], &tokens);
    let expected = decode(&mut session, 6);
    session.rewind(tokens.len()).unwrap();
    drop((first, second));
    session.fork().unwrap();
    assert_eq!(decode(&mut session, 6), expected);
}

fn kept() {
    let (model, first, second) = hamlet();
    let tokens = text(model.details().n_vocab, 30);
    let wanted = [scaled(&first, 1.0), scaled(&second, 0.25)];
    let mut session = with(&model, &wanted, &tokens);
    let expected = bits(&mut session);
    session.evict().unwrap();
    assert!(bits(&mut session) == expected);
    session.evict().unwrap();
    session.set_adapters(&[], false).unwrap();
    assert!(bits(&mut session) == bits(&mut with(&model, &[], &tokens)));
    session.set_adapters(&wanted, false).unwrap();
    assert!(bits(&mut session) == expected);
    for kind in [Kind::Everything, Kind::Tokens] {
        let file = saved(&mut session, kind);
        let options = |adapters| RestoreOptions {
            adapters,
            ..Default::default()
        };
        let mut again = restored(&model, &file, &options(&wanted)).unwrap();
        assert!(bits(&mut again) == expected, "{kind:?}");
        let e = restored(&model, &file, &options(&wanted[..1]))
            .err()
            .unwrap();
        assert_eq!(e.status, Status::StateForeign, "{e}");
    }
    // The weights go and come back; the adapters stay.
    model.evict().unwrap();
    session.rewind(0).unwrap();
    session.prefill(&tokens).unwrap();
    assert!(bits(&mut session) == expected);
}

fn drafts() {
    let (model, first, second) = hamlet();
    let wanted = [scaled(&first, 1.0)];
    let repeated = text(model.details().n_vocab, 9).repeat(2);
    let mut plain = with(&model, &wanted, &repeated);
    let mut drafting = with(&model, &wanted, &repeated);
    drafting
        .set_ngram_drafts(1, &DraftOptions::default())
        .unwrap();
    assert_eq!(decode(&mut plain, 40), decode(&mut drafting, 40));
    for session in [&mut plain, &mut drafting] {
        let other = [scaled(&second, 0.5), scaled(&first, 0.5)];
        session.set_adapters(&other, false).unwrap();
    }
    assert_eq!(decode(&mut plain, 40), decode(&mut drafting, 40));
    assert!(bits(&mut plain) == bits(&mut drafting));
}

/// More rows than there is room for of what is between the thin matrices.
fn long_prompts() {
    let path = hamlet_path();
    let [cpu, gpu] = [DeviceKind::Cpu, DeviceKind::Cuda].map(|kind| {
        let model = load_on(&path, kind, &LoadOptions::default());
        let adapter = random_adapter(&model, &path, (5, 16, TensorType::F16), 0.01);
        let tokens = text(model.details().n_vocab, 1000);
        let mut session = session_with(&model, KvType::F16);
        session
            .set_adapters(&[scaled(&adapter, 1.0)], false)
            .unwrap();
        session.prefill(&tokens).unwrap();
        logits(&mut session)
    });
    let apart = apart(&gpu, &cpu);
    println!("{apart:.1e}");
    assert!(apart < 4e-2, "{apart}");
}

fn memory() {
    let path = hamlet_path();
    let model = load(&path);
    let taken = || model.weights().taken().sessions;
    let before = taken();
    let adapter = random_adapter(&model, &path, (1, 16, TensorType::F16), 0.02);
    let bytes = adapter.data().bytes;
    let with_adapter = taken();
    // Parts begin at multiples of 256 bytes.
    assert!((before + bytes..before + bytes + bytes / 4).contains(&with_adapter));
    let mut session = session(&model);
    let own = taken() - with_adapter;
    session
        .set_adapters(&[scaled(&adapter, 1.0)], false)
        .unwrap();
    assert!(taken() > with_adapter + own);
    drop(adapter);
    assert!(taken() > with_adapter + own);
    session.set_adapters(&[], false).unwrap();
    assert_eq!(taken(), before + own);
    drop(session);
    let options = LoadOptions {
        session_memory_limit: bytes / 2,
        ..Default::default()
    };
    let small = load_on(&path, DeviceKind::Cuda, &options);
    let path = repository_file("tests/data/adapters/hamlet.gguf");
    let first = Adapter::load(small.clone(), &path).unwrap();
    let e = loop_until_full(&small, &path);
    assert_eq!(e.status, Status::OutOfMemory, "{e}");
    assert!(e.message.contains("session_memory_limit"), "{e}");
    drop(first);
    assert_eq!(small.weights().taken().sessions, 0);
}

/// Each allocation fails in turn: nothing is lost, and sessions go on with the adapters that they have.
fn out_of_memory() {
    let (model, first, second) = hamlet();
    let path = repository_file("tests/data/adapters/hamlet.gguf");
    let tokens = text(model.details().n_vocab, 300);
    let (mut plain, mut plain_twin) = (with(&model, &[], &tokens), with(&model, &[], &tokens));
    let wanted = [scaled(&first, 1.0)];
    let [mut adapted, mut twin] = [(); 2].map(|()| with(&model, &wanted, &tokens));
    let file = saved(&mut adapted, Kind::Everything);
    // Of more ranks than there is room for.
    let more = [
        scaled(&first, 0.5),
        scaled(&second, 1.0),
        scaled(&first, 0.25),
        scaled(&second, -1.0),
    ];
    let options = RestoreOptions {
        adapters: &wanted,
        ..Default::default()
    };
    let load = |_: &mut Session| Adapter::load(model.clone(), &path).map(drop);
    let restore = |_: &mut Session| restored(&model, &file, &options).map(drop);
    let fork = |session: &mut Session| session.fork().map(drop);
    let resume = |session: &mut Session| session.evict().and_then(|()| session.resume());
    let set = |session: &mut Session| session.set_adapters(&more, true);
    type Try<'a> = (
        &'a str,
        i64,
        &'a dyn Fn(&mut Session) -> emberlm::Result<()>,
    );
    let tries: [Try<'_>; 5] = [
        ("load", 1, &load),
        ("restore", 5, &restore),
        ("fork", 5, &fork),
        ("resume", 5, &resume),
        ("set", 2, &set),
    ];
    let context = context();
    for (session, twin) in [(&mut plain, &mut plain_twin), (&mut adapted, &mut twin)] {
        for (name, least, run) in tries {
            let before = model.weights().taken();
            let mut n = 0;
            loop {
                context.fail_allocation(n);
                let result = run(session);
                context.fail_allocation(-1);
                match result {
                    Ok(()) => break,
                    Err(e) => assert_eq!(e.status, Status::OutOfMemory, "{name}, {n}: {e}"),
                }
                if name != "resume" {
                    assert_eq!(model.weights().taken(), before, "{name}, {n}");
                }
                let decoded = session.decode().unwrap();
                assert_eq!(decoded, twin.decode().unwrap(), "{name}, {n}");
                assert!(bits(session) == bits(twin), "{name}, {n}");
                n += 1;
                assert!(n < 200, "{name} never succeeds");
            }
            println!("{name}: {n} allocations failed");
            assert!(n >= least, "{name}: {n} allocations");
        }
        twin.set_adapters(&more, true).unwrap();
        assert_eq!(decode(session, 3), decode(twin, 3));
        assert!(bits(session) == bits(twin));
    }
}

fn loop_until_full(model: &Arc<Model>, path: &Path) -> emberlm::Error {
    let mut all = Vec::new();
    loop {
        match Adapter::load(model.clone(), path) {
            Ok(adapter) => all.push(adapter),
            Err(e) => return e,
        }
        assert!(all.len() < 10_000);
    }
}
