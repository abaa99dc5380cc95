//! LoRA adapters on the CPU: against peft, and what they do to sessions.

use crate::common::adapters::{adapted, decode, decode_together, logits, scaled};
use crate::common::edit::Edited;
use crate::common::expected::Expected;
use crate::common::folder::{Folder, Stored, family_path, safetensors, tensors};
use crate::common::states::bits;
use crate::common::tiny::Random;
use crate::common::{TempDir, repository_file};
use emberlm::backend::{KvType, LoadOptions};
use emberlm::engine::speculate::DraftOptions;
use emberlm::engine::state::{Kind, RestoreOptions};
use emberlm::engine::{
    Adapter, MAX_ADAPTERS, Model, Session, SessionOptions, WantedAdapter, device,
};
use emberlm::format::ModelFile;
use emberlm::quant::TensorType;
use emberlm::{Result, Status};
use half::{bf16, f16};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Families and their adapters.
const CASES: [(&str, &str); 9] = [
    ("mistral", "mistral"),
    ("mistral", "mistral_small"),
    ("qwen2", "qwen2"),
    ("phi3", "phi3"),
    ("gpt2", "gpt2"),
    ("gpt_neox", "gpt_neox"),
    ("falcon_new", "falcon_new"),
    ("mixtral", "mixtral"),
    ("deepseek_v3", "deepseek_v3"),
];

pub fn adapter_path(name: &str) -> PathBuf {
    repository_file(&format!("tests/data/adapters/{name}"))
}

pub fn load_model(path: &Path) -> Arc<Model> {
    let cpu = (0..device::count().unwrap()).find(|&i| !device::info(i).unwrap().isa.is_empty());
    let options = LoadOptions {
        threads: 2,
        ..Default::default()
    };
    let model = Model::load(path, cpu.unwrap(), &options, &mut |_| Ok(()));
    Arc::new(model.unwrap_or_else(|e| panic!("{}: {e}", path.display())))
}

pub fn model(family: &str) -> Arc<Model> {
    load_model(&family_path(family).join("model.gguf"))
}

pub fn adapter(model: &Arc<Model>, name: &str) -> Adapter {
    let path = adapter_path(name);
    Adapter::load(model.clone(), &path).unwrap_or_else(|e| panic!("{name}: {e}"))
}

pub fn session(model: &Arc<Model>) -> Session {
    session_of(model, 0)
}

fn session_of(model: &Arc<Model>, context: usize) -> Session {
    let options = SessionOptions {
        context,
        kv_type: KvType::F32,
        ..Default::default()
    };
    Session::create(model.clone(), &options).unwrap()
}

/// A session with these adapters that has read the tokens.
pub fn with(model: &Arc<Model>, adapters: &[WantedAdapter<'_>], tokens: &[u32]) -> Session {
    adapted(session(model), adapters, tokens)
}

pub const TOKENS: [u32; 9] = [3, 14, 15, 9, 26, 5, 35, 8, 9];

#[test]
fn logits_are_those_of_peft() {
    for (family, name) in CASES {
        let expected = Expected::read(&format!("adapters/{name}/logits"));
        for path in [family_path(family).join("model.gguf"), family_path(family)] {
            let model = load_model(&path);
            let adapter = adapter(&model, name);
            // Short enough for the frequencies of short texts.
            let mut session = session_of(&model, 24);
            session
                .set_adapters(&[scaled(&adapter, 1.0)], false)
                .unwrap();
            let mut largest = 0f32;
            for (token, theirs) in expected.tokens.iter().zip(&expected.logits) {
                session.prefill(&[*token]).unwrap();
                let ours = logits(&mut session);
                let pairs = ours.iter().zip(theirs);
                largest = pairs.fold(largest, |most, (a, b)| most.max((a - b).abs()));
            }
            assert!(largest < 1e-3, "{}: {largest}", path.display());
            // In one go, as if one by one.
            let one_by_one = bits(&mut session);
            session.rewind(0).unwrap();
            session.prefill(&expected.tokens).unwrap();
            assert_eq!(bits(&mut session), one_by_one, "{name}");
            // And they do something.
            let mut plain = session_of(&model, 24);
            plain.prefill(&expected.tokens).unwrap();
            assert_ne!(bits(&mut plain), one_by_one, "{name}");
        }
    }
}

/// A model has rows of queries and keys in an order that a folder's adapter has to follow, also where nothing is rotated.
#[test]
fn adapters_of_folders_follow_the_order_of_rows_without_rotations() {
    same_as_merged("nemotron_h", &[".q_proj.weight", ".k_proj.weight"], 2);
}

/// Granite 4 calls the feed-forward part of models without experts shared, too, and has its gate and up in one matrix.
#[test]
fn adapters_of_shared_parts_are_of_two_matrices() {
    let input = ".shared_mlp.input_linear.weight";
    same_as_merged(
        "granite_hybrid",
        &[input, ".shared_mlp.output_linear.weight"],
        8,
    );
    let dir = TempDir::new("shared");
    let config = json!({"peft_type": "LORA", "r": 1, "lora_alpha": 1.0});
    dir.file("adapter_config.json", config.to_string().as_bytes());
    let load = |name: &str, rows: usize| {
        let module = "base_model.model.model.layers.0.shared_mlp.input_linear";
        let half = |half: &str, shape: &[usize]| {
            let values = vec![0.5; shape.iter().product()];
            (
                format!("{module}.{half}.weight"),
                Stored::f32(shape, &values),
            )
        };
        let pair = [half("lora_A", &[1, 40]), half("lora_B", &[rows, 1])];
        dir.file(
            "adapter_model.safetensors",
            &safetensors(&BTreeMap::from(pair)),
        );
        Adapter::load(model(name), dir.path())
    };
    assert!(load("granite_hybrid", 72).is_ok());
    for rows in [71, 70] {
        let e = load("granite_hybrid", rows).err().unwrap();
        assert_eq!(e.status, Status::ShapeMismatch, "{e}");
    }
    // Beside experts, it is what every token goes through.
    assert!(load("granite_hybrid_moe", 24).is_ok());
    same_as_merged(
        "granite_hybrid_moe",
        &[input, ".shared_mlp.output_linear.weight"],
        8,
    );
}

/// What every token goes through beside experts, and what latent attention has of whole rows.
#[test]
fn adapters_of_shared_experts_and_latent_attention() {
    let shared = |which: &str| format!(".{which}_proj.weight");
    let shared = ["gate", "up", "down"].map(shared);
    let shared = |name: &str| shared.clone().map(|part| format!(".{name}{part}"));
    let check = |family: &str, parts: &[String], count: usize| {
        let parts: Vec<&str> = parts.iter().map(|part| &**part).collect();
        same_as_merged(family, &parts, count);
    };
    check("qwen2_moe", &shared("shared_expert"), 6);
    check("llama4", &shared("shared_expert"), 3);
    check("hunyuan_moe", &shared("shared_mlp"), 6);
    check("nemotron_h_moe", &shared("shared_experts"), 4);
    let latent = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"];
    let latent = latent.map(|name| format!(".{name}.weight"));
    check(
        "deepseek_v3",
        &[&latent[..], &shared("shared_experts")].concat(),
        18,
    );
}

/// A folder's adapter for these matrices of a family, as many as that, does what their sums would.
pub fn same_as_merged(name: &str, parts: &[&str], count: usize) {
    const RANK: usize = 2;
    const ALPHA: f32 = 3.0;
    let mut random = Random::new(11, "rows");
    let mut merged = Folder::family(name);
    let mut pairs = BTreeMap::new();
    let matrices = merged.tensors.keys();
    let wanted = |n: &&String| parts.iter().any(|part| n.ends_with(part));
    for matrix in matrices.filter(wanted).cloned().collect::<Vec<_>>() {
        let stored = &merged.tensors[&matrix];
        let [rows, columns] = stored.shape[..] else {
            panic!("{:?}", stored.shape);
        };
        let mut numbers =
            |count: usize| -> Vec<f32> { (0..count).map(|_| 0.3 * random.signed_unit()).collect() };
        let (a, b) = (numbers(RANK * columns), numbers(rows * RANK));
        let halves = stored.bytes.as_chunks().0.iter();
        let values: Vec<f32> = halves
            .enumerate()
            .map(|(i, half)| {
                let (row, column) = (i / columns, i % columns);
                let product = |r: usize| b[row * RANK + r] * a[r * columns + column];
                let added: f32 = (0..RANK).map(product).sum();
                f16::from_le_bytes(*half).to_f32() + ALPHA / RANK as f32 * added
            })
            .collect();
        let module = format!("base_model.model.{}", matrix.trim_end_matches(".weight"));
        pairs.insert(
            format!("{module}.lora_A.weight"),
            Stored::f32(&[RANK, columns], &a),
        );
        pairs.insert(
            format!("{module}.lora_B.weight"),
            Stored::f32(&[rows, RANK], &b),
        );
        let sum = Stored::f32(&[rows, columns], &values);
        merged.tensors.insert(matrix, sum);
    }
    assert_eq!(pairs.len(), 2 * count);
    let dir = TempDir::new("rows");
    let config = json!({"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA});
    dir.file("adapter_config.json", config.to_string().as_bytes());
    dir.file("adapter_model.safetensors", &safetensors(&pairs));
    let sum = TempDir::new("sum");
    merged.write(&sum);
    let mut expected = session(&load_model(sum.path()));
    expected.prefill(&TOKENS).unwrap();
    let expected = logits(&mut expected);
    for path in [family_path(name).join("model.gguf"), family_path(name)] {
        let model = load_model(&path);
        let adapter = Adapter::load(model.clone(), dir.path()).unwrap();
        let wanted = [scaled(&adapter, 1.0)];
        let found = logits(&mut with(&model, &wanted, &TOKENS));
        let (first, others) = TOKENS.split_at(1);
        let mut one_by_one = with(&model, &wanted, first);
        for token in others {
            one_by_one.prefill(&[*token]).unwrap();
        }
        assert!(
            logits(&mut one_by_one) == found,
            "{}, one by one",
            path.display()
        );
        let mut plain = session(&model);
        plain.prefill(&TOKENS).unwrap();
        let largest = |other: &[f32]| {
            let pairs = expected.iter().zip(other);
            pairs.fold(0f32, |most, (a, b)| most.max((a - b).abs()))
        };
        assert!(largest(&logits(&mut plain)) > 0.05, "{}", path.display());
        assert!(
            largest(&found) < 1e-3,
            "{}: {}",
            path.display(),
            largest(&found)
        );
    }
}

#[test]
fn both_forms_of_files_are_the_same_adapter() {
    let model = model("mistral");
    let folder = adapter(&model, "mistral_small");
    let gguf = adapter(&model, "mistral_small/adapter.gguf");
    let weights = adapter(&model, "mistral_small/adapter_model.safetensors");
    assert_eq!(folder.data().fingerprint, gguf.data().fingerprint);
    assert_eq!(folder.data().fingerprint, weights.data().fingerprint);
    assert_eq!((folder.data().max_rank, folder.data().n_tensors), (2, 12));
    assert_eq!(gguf.data().name, "tiny");
    let other = adapter(&model, "mistral");
    assert_ne!(other.data().fingerprint, gguf.data().fingerprint);
    let mut a = with(&model, &[scaled(&folder, 1.0)], &TOKENS);
    let mut b = with(&model, &[scaled(&gguf, 1.0)], &TOKENS);
    assert_eq!(bits(&mut a), bits(&mut b));
}

#[test]
fn different_adapters_share_a_batch_and_each_answers_as_alone() {
    let model = model("mistral");
    let (large, small) = (adapter(&model, "mistral"), adapter(&model, "mistral_small"));
    let sets: [&[WantedAdapter]; 6] = [
        &[],
        &[scaled(&large, 1.0)],
        &[scaled(&small, 1.0)],
        &[scaled(&small, 1.0)],
        &[scaled(&large, 0.5), scaled(&small, -2.0)],
        &[scaled(&small, 0.0)],
    ];
    let make = || sets.map(|set| with(&model, set, &TOKENS));
    let mut alone = make();
    let tokens: Vec<Vec<u32>> = alone.iter_mut().map(|s| decode(s, 8)).collect();
    let mut together = make();
    assert_eq!(decode_together(&mut together, 8), tokens);
    for (i, (a, b)) in alone.iter_mut().zip(&mut together).enumerate() {
        assert_eq!(bits(a), bits(b), "session {i}");
    }
    // A factor of 0 is no adapter at all, and the others differ.
    let mut logits: Vec<_> = alone.iter_mut().map(bits).collect();
    assert_eq!(logits[0], logits[5]);
    logits.truncate(5);
    logits.remove(3);
    logits.sort();
    logits.dedup();
    assert_eq!(logits.len(), 4);
}

#[test]
fn other_adapters_mean_another_evaluation_unless_it_is_kept() {
    let model = model("mistral");
    let (large, small) = (adapter(&model, "mistral"), adapter(&model, "mistral_small"));
    let mut fresh = with(&model, &[scaled(&small, 1.0)], &TOKENS);
    let mut session = with(&model, &[scaled(&large, 1.0)], &TOKENS);
    let mut fork = session.fork().unwrap();
    let before = bits(&mut session);
    session.set_adapters(&[scaled(&small, 1.0)], false).unwrap();
    assert_eq!(session.tokens(), TOKENS);
    assert_eq!(bits(&mut session), bits(&mut fresh));
    assert_eq!(decode(&mut session, 5), decode(&mut fresh, 5));
    // Back, and without any.
    session.rewind(TOKENS.len()).unwrap();
    session.set_adapters(&[scaled(&large, 1.0)], false).unwrap();
    assert_eq!(bits(&mut session), before);
    session.set_adapters(&[], false).unwrap();
    assert_eq!(bits(&mut session), bits(&mut with(&model, &[], &TOKENS)));
    // The fork has what the session had.
    assert_eq!(bits(&mut fork), before);
    fork.set_adapters(&[scaled(&small, 1.0)], true).unwrap();
    assert_eq!(bits(&mut fork), before, "kept");
    fork.prefill(&[7]).unwrap();
    let mixed = bits(&mut fork);
    let of = |adapter: &Adapter| {
        let all: Vec<u32> = TOKENS.iter().copied().chain([7]).collect();
        bits(&mut with(&model, &[scaled(adapter, 1.0)], &all))
    };
    assert!(mixed != of(&large) && mixed != of(&small));
    // The same adapters again: nothing is lost.
    fork.set_adapters(&[scaled(&small, 1.0)], false).unwrap();
    assert_eq!(bits(&mut fork), mixed);
}

#[test]
fn evicted_saved_and_erased_sessions_keep_their_adapters() {
    let model = model("mistral");
    let (large, small) = (adapter(&model, "mistral"), adapter(&model, "mistral_small"));
    let wanted = [scaled(&large, 1.0), scaled(&small, 0.25)];
    let mut session = with(&model, &wanted, &TOKENS);
    let expected = bits(&mut session);
    session.evict().unwrap();
    assert_eq!(bits(&mut session), expected);
    session.evict().unwrap();
    session.set_adapters(&[], false).unwrap();
    assert_eq!(bits(&mut session), bits(&mut with(&model, &[], &TOKENS)));
    session.evict().unwrap();
    session.set_adapters(&wanted, false).unwrap();
    assert_eq!(bits(&mut session), expected);
    session.prefill(&[1, 2, 3]).unwrap();
    session.erase(TOKENS.len(), 2).unwrap();
    let erased: Vec<u32> = TOKENS.iter().copied().chain([3]).collect();
    assert_eq!(
        bits(&mut session),
        bits(&mut with(&model, &wanted, &erased))
    );
    session.rewind(TOKENS.len()).unwrap();
    let dir = TempDir::new("adapters-saved");
    for kind in [Kind::Everything, Kind::Tokens] {
        let path = dir.path().join("session");
        session.save(&path, kind).unwrap();
        let saved = emberlm::engine::state::inspect(&path).unwrap();
        let names = [large.data().fingerprint, small.data().fingerprint];
        assert_eq!(saved.adapters, [(names[0], 1.0), (names[1], 0.25)]);
        let restore = |adapters: &[WantedAdapter<'_>]| {
            let options = RestoreOptions {
                adapters,
                ..Default::default()
            };
            Session::restore(model.clone(), &path, &options)
        };
        // Loaded again, it is the same adapter.
        let again = adapter(&model, "mistral");
        let mut restored = restore(&[scaled(&again, 1.0), scaled(&small, 0.25)]).unwrap();
        assert_eq!(bits(&mut restored), expected, "{kind:?}");
        assert_eq!(
            decode(&mut restored.fork().unwrap(), 6),
            decode(&mut restored, 6)
        );
        for others in [
            &[][..],
            &[scaled(&large, 1.0)],
            &[scaled(&small, 0.25), scaled(&large, 1.0)],
            &[scaled(&large, 1.0), scaled(&small, 0.5)],
        ] {
            let e = restore(others).err().unwrap();
            assert_eq!(e.status, Status::StateForeign, "{e}");
            let name = format!("{:016x}", large.data().fingerprint);
            assert!(e.message.contains(&name), "{e}");
        }
    }
    // A session without any does not take one.
    let path = dir.path().join("plain");
    with(&model, &[], &TOKENS)
        .save(&path, Kind::Everything)
        .unwrap();
    let wanted = [scaled(&small, 1.0)];
    let options = RestoreOptions {
        adapters: &wanted,
        ..Default::default()
    };
    let e = Session::restore(model.clone(), &path, &options)
        .err()
        .unwrap();
    assert_eq!(e.status, Status::StateForeign);
}

#[test]
fn drafts_change_nothing() {
    let model = model("mistral");
    let large = adapter(&model, "mistral");
    let wanted = [scaled(&large, 1.0)];
    let repeated: Vec<u32> = TOKENS.repeat(2);
    let mut plain = with(&model, &wanted, &repeated);
    let mut drafting = with(&model, &wanted, &repeated);
    drafting
        .set_ngram_drafts(1, &DraftOptions::default())
        .unwrap();
    assert_eq!(decode(&mut plain, 24), decode(&mut drafting, 24));
    // In the middle of drafts.
    for session in [&mut plain, &mut drafting] {
        session.set_adapters(&[scaled(&large, 0.5)], false).unwrap();
    }
    assert_eq!(decode(&mut plain, 18), decode(&mut drafting, 18));
    assert_eq!(bits(&mut plain), bits(&mut drafting));
}

#[test]
fn an_adapter_lives_as_long_as_a_session_uses_it() {
    let model = model("mistral");
    let large = adapter(&model, "mistral");
    let mut kept = with(&model, &[scaled(&large, 1.0)], &TOKENS);
    let mut session = with(&model, &[scaled(&large, 1.0)], &TOKENS);
    drop(large);
    drop(model);
    assert_eq!(decode(&mut session, 10), decode(&mut kept, 10));
    assert_eq!(bits(&mut session), bits(&mut kept));
}

#[test]
fn ten_thousand_adapters_load_and_sixteen_go_together() {
    let model = model("mistral");
    let path = adapter_path("mistral_small/adapter.gguf");
    let all: Vec<Adapter> = (0..10_000)
        .map(|_| Adapter::load(model.clone(), &path).unwrap())
        .collect();
    let wanted: Vec<_> = all.iter().map(|adapter| scaled(adapter, 0.01)).collect();
    let mut session = with(&model, &wanted[..MAX_ADAPTERS], &TOKENS);
    let before = bits(&mut session);
    let e = session.set_adapters(&wanted, false).unwrap_err();
    assert_eq!(e.status, Status::InvalidArgument);
    assert!(e.message.contains("10000"), "{e}");
    assert_eq!(bits(&mut session), before);
    // One with 16 times the factor adds about the same.
    let mut one = with(&model, &[scaled(&all[9_999], 0.16)], &TOKENS);
    let (a, b) = (logits(&mut session), logits(&mut one));
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-4));
}

/// The tensors of a folder as this type, and its numbers rounded to what that and half precision have in common.
fn typed(files: &Files, ty: &str) -> Files {
    let tensors = files.tensors.iter().map(|(name, t)| {
        assert_eq!(t.ty, "F16");
        let halves = t.bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b));
        let bytes = halves.flat_map(|x| {
            // No smaller than what half precision has without loss.
            let x = bf16::from_f32((x.to_f32() * 1024.0).round() / 1024.0);
            match ty {
                "F16" => f16::from_f32(x.to_f32()).to_le_bytes().to_vec(),
                "BF16" => x.to_le_bytes().to_vec(),
                _ => x.to_f32().to_le_bytes().to_vec(),
            }
        });
        let stored = Stored {
            ty: ty.to_owned(),
            shape: t.shape.clone(),
            bytes: bytes.collect(),
        };
        (name.clone(), stored)
    });
    Files {
        config: files.config.clone(),
        tensors: tensors.collect(),
    }
}

/// Half the memory, and not another bit.
#[test]
fn adapters_stay_in_the_type_of_their_file() {
    for (family, name) in [("mistral", "mistral"), ("phi3", "phi3")] {
        let model = model(family);
        let files = Files::of(name);
        let [whole, half, brain] = ["F32", "F16", "BF16"].map(|ty| {
            let adapter = typed(&files, ty).load(&model);
            adapter.unwrap_or_else(|e| panic!("{name}, {ty}: {e}"))
        });
        // Matrices that are together in a file have what they share of a pair once each.
        let bytes = whole.data().bytes;
        assert!(bytes >= 4 * whole.data().n_parameters, "{name}");
        let expected = bits(&mut with(&model, &[scaled(&whole, 0.7)], &TOKENS));
        for adapter in [&half, &brain] {
            assert_eq!(adapter.data().bytes, bytes / 2, "{name}");
            assert_eq!(adapter.data().fingerprint, whole.data().fingerprint);
            let mut session = with(&model, &[scaled(adapter, 0.7)], &TOKENS);
            assert_eq!(bits(&mut session), expected, "{name}");
        }
        // Halves of one pair may differ, too.
        let mut mixed = typed(&files, "F32");
        let others = typed(&files, "BF16").tensors;
        let b = others
            .into_iter()
            .filter(|(name, _)| name.contains("lora_B"));
        mixed.tensors.extend(b);
        let mixed = mixed.load(&model).unwrap();
        assert!((bytes / 2..bytes).contains(&mixed.data().bytes));
        let mut session = with(&model, &[scaled(&mixed, 0.7)], &TOKENS);
        assert_eq!(bits(&mut session), expected, "{name}");
    }
}

#[test]
fn adapters_count_to_the_memory_of_sessions() {
    let path = family_path("mistral").join("model.gguf");
    let taken = |model: &Arc<Model>| model.weights().taken().sessions;
    let model = load_model(&path);
    let before = taken(&model);
    let large = adapter(&model, "mistral");
    let bytes = large.data().bytes;
    assert_eq!(taken(&model), before + bytes);
    let mut session = session(&model);
    let own = taken(&model) - before - bytes;
    // Once, whoever uses it, and as long as anybody does.
    session
        .set_adapters(&[scaled(&large, 1.0), scaled(&large, 0.5)], false)
        .unwrap();
    assert_eq!(taken(&model), before + bytes + own);
    drop(large);
    assert_eq!(taken(&model), before + bytes + own);
    session.set_adapters(&[], false).unwrap();
    assert_eq!(taken(&model), before + own);
    drop(session);

    let cpu = (0..device::count().unwrap()).find(|&i| !device::info(i).unwrap().isa.is_empty());
    let options = LoadOptions {
        threads: 2,
        session_memory_limit: bytes + 7,
        ..Default::default()
    };
    let model = Model::load(&path, cpu.unwrap(), &options, &mut |_| Ok(()));
    let model = Arc::new(model.unwrap());
    let first = adapter(&model, "mistral");
    let e = Adapter::load(model.clone(), &adapter_path("mistral_small"));
    let e = e.err().unwrap();
    assert_eq!(e.status, Status::OutOfMemory, "{e}");
    assert!(e.message.contains("session_memory_limit"), "{e}");
    let e = Session::create(model.clone(), &SessionOptions::default());
    assert_eq!(e.err().unwrap().status, Status::OutOfMemory);
    assert_eq!(taken(&model), bytes);
    drop(first);
    assert_eq!(taken(&model), 0);
    adapter(&model, "mistral");
}

#[test]
fn threads_set_adapters_on_sessions_of_one_model() {
    let model = model("mistral");
    let (large, small) = (adapter(&model, "mistral"), adapter(&model, "mistral_small"));
    let lists = [
        vec![scaled(&large, 1.0)],
        vec![scaled(&small, 1.0), scaled(&large, -0.5)],
        vec![],
    ];
    let expected: Vec<Vec<u32>> = lists
        .iter()
        .map(|list| bits(&mut with(&model, list, &TOKENS)))
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (model, lists, expected) = (&model, &lists, &expected);
            scope.spawn(move || {
                let mut session = with(model, &[], &TOKENS);
                for step in 0..60 {
                    let i = (step * (thread + 1) + thread) % lists.len();
                    session.set_adapters(&lists[i], false).unwrap();
                    assert_eq!(
                        bits(&mut session),
                        expected[i],
                        "thread {thread}, step {step}"
                    );
                }
            });
        }
    });
}

#[test]
fn what_is_wrong_with_a_file_is_named() {
    type Change = fn(&mut Edited);
    const A: &str = "blk.0.attn_q.weight.lora_a";
    const B: &str = "blk.0.attn_q.weight.lora_b";
    let cases: &[(Change, Status, &str)] = &[
        (
            |f| {
                f.set("adapter.type", "loha");
            },
            Status::Unsupported,
            "loha",
        ),
        (
            |f| drop(f.metadata.remove("adapter.lora.alpha")),
            Status::MissingKey,
            "adapter.lora.alpha",
        ),
        (
            |f| {
                f.set("adapter.lora.alpha", f32::NAN);
            },
            Status::InvalidModel,
            "not finite",
        ),
        (|f| drop(f.tensors.remove(A)), Status::MissingTensor, A),
        (|f| drop(f.tensors.remove(B)), Status::MissingTensor, B),
        (|f| f.tensors.clear(), Status::MissingTensor, "no tensors"),
        (|f| put(f, A, f32::NAN), Status::InvalidModel, A),
        (|f| put(f, B, f32::INFINITY), Status::InvalidModel, B),
        (|f| put(f, B, f32::NEG_INFINITY), Status::InvalidModel, B),
        (
            |f| moved(f, "blk.0.attn_q", "blk.0.attn_norm"),
            Status::MissingTensor,
            "attn_norm",
        ),
        (
            |f| moved(f, "blk.0.attn_q", "blk.9.attn_q"),
            Status::MissingTensor,
            "blk.9.attn_q",
        ),
        (
            |f| moved(f, "blk.0.attn_q.weight", "token_embd.weight"),
            Status::ShapeMismatch,
            "token_embd",
        ),
        (
            |f| moved(f, "blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.alpha"),
            Status::Unsupported,
            "alpha",
        ),
    ];
    let model = model("mistral");
    let whole = ModelFile::open(&adapter_path("mistral_small/adapter.gguf")).unwrap();
    for (i, (change, status, part)) in cases.iter().enumerate() {
        let mut edited = Edited::of(&whole);
        change(&mut edited);
        let dir = TempDir::new("adapter-file");
        let path = dir.file("adapter.gguf", &edited.bytes());
        let e = Adapter::load(model.clone(), &path).err();
        let e = e.unwrap_or_else(|| panic!("case {i}, {part}: it was loaded"));
        assert_eq!(e.status, *status, "case {i}: {e}");
        assert!(e.message.contains(part), "case {i}, {part}: {e}");
    }
    // A rank of 0, which writers of files refuse.
    for (name, dim) in [(A, 1), (B, 0)] {
        let mut bytes = Edited::of(&whole).bytes();
        let at = bytes.windows(name.len()).position(|w| w == name.as_bytes());
        let at = at.unwrap() + name.len() + 4 + 8 * dim;
        assert_eq!(bytes[at..at + 8], 2u64.to_le_bytes(), "{name}");
        bytes[at..at + 8].fill(0);
        let dir = TempDir::new("adapter-file");
        let e = Adapter::load(model.clone(), &dir.file("adapter.gguf", &bytes)).err();
        let e = e.unwrap();
        assert!(e.message.contains(name), "{e}");
        assert!(e.message.contains('0'), "{e}");
    }
}

/// Makes the second element of a tensor this.
fn put(file: &mut Edited, name: &str, x: f32) {
    let tensor = file.tensors.get_mut(name).unwrap();
    match tensor.ty {
        TensorType::F32 => tensor.bytes[4..8].copy_from_slice(&x.to_le_bytes()),
        TensorType::F16 => tensor.bytes[2..4].copy_from_slice(&f16::from_f32(x).to_le_bytes()),
        other => panic!("{other:?}"),
    }
}

fn moved(file: &mut Edited, from: &str, to: &str) {
    let all = std::mem::take(&mut file.tensors);
    let moved = all.into_iter().map(|(name, t)| (name.replace(from, to), t));
    file.tensors = moved.collect();
}

#[test]
fn adapters_of_other_models_and_bad_scales_are_refused() {
    let (model, other) = (model("mistral"), self::model("mistral"));
    let (own, foreign) = (
        adapter(&model, "mistral_small"),
        adapter(&other, "mistral_small"),
    );
    let mut session = with(&model, &[], &TOKENS);
    let before = bits(&mut session);
    for (wanted, part) in [
        (scaled(&foreign, 1.0), "another model"),
        (scaled(&own, f32::NAN), "NaN"),
        (scaled(&own, f32::INFINITY), "inf"),
    ] {
        let list = [scaled(&own, 1.0), wanted];
        let e = session.set_adapters(&list, false).unwrap_err();
        assert_eq!((e.status, e.index), (Status::InvalidArgument, Some(1)));
        assert!(e.message.contains(part), "{e}");
    }
    assert_eq!(bits(&mut session), before);
    // Encoders have other modules.
    let bert = load_model(&repository_file("tests/data/embeddings/bert"));
    let e = Adapter::load(bert, &adapter_path("mistral")).err().unwrap();
    assert_eq!(e.status, Status::Unsupported, "{e}");
}

/// A folder of an adapter in memory.
pub struct Files {
    pub config: Value,
    pub tensors: BTreeMap<String, Stored>,
}

impl Files {
    pub fn of(name: &str) -> Files {
        let read = |file: &str| std::fs::read(adapter_path(name).join(file)).unwrap();
        Files {
            config: serde_json::from_slice(&read("adapter_config.json")).unwrap(),
            tensors: tensors(&read("adapter_model.safetensors")),
        }
    }

    pub fn load(&self, model: &Arc<Model>) -> Result<Adapter> {
        let dir = TempDir::new("adapter");
        dir.file("adapter_config.json", self.config.to_string().as_bytes());
        dir.file("adapter_model.safetensors", &safetensors(&self.tensors));
        Adapter::load(model.clone(), dir.path())
    }
}

const Q_A: &str = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
const Q_B: &str = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight";

/// What is done to a folder, and the status and a part of the message that it leads to.
pub type Case<'a> = (fn(&mut Files), Status, &'a str);

/// Loads what `make` makes, and checks that each change of it is refused.
pub fn refused(model: &Arc<Model>, make: fn() -> Files, cases: &[Case<'_>]) {
    make().load(model).unwrap();
    for (i, (change, status, part)) in cases.iter().enumerate() {
        let mut files = make();
        change(&mut files);
        let e = files.load(model).err();
        let e = e.unwrap_or_else(|| panic!("case {i}, {part}: it was loaded"));
        assert_eq!(e.status, *status, "case {i}: {e}");
        assert!(e.message.contains(part), "case {i}, {part}: {e}");
    }
}

#[test]
fn what_is_wrong_with_a_folder_is_named() {
    let cases: &[Case<'_>] = &[
        (
            |f| f.config["peft_type"] = json!("LOHA"),
            Status::Unsupported,
            "LOHA",
        ),
        (
            |f| f.config["use_dora"] = json!(true),
            Status::Unsupported,
            "DoRA",
        ),
        (
            |f| f.config["modules_to_save"] = json!(["lm_head"]),
            Status::Unsupported,
            "modules_to_save",
        ),
        (
            |f| f.config["bias"] = json!("all"),
            Status::Unsupported,
            "bias",
        ),
        (
            |f| f.config["lora_bias"] = json!(true),
            Status::Unsupported,
            "lora_bias",
        ),
        (
            |f| f.config["init_lora_weights"] = json!("pissa_niter_4"),
            Status::Unsupported,
            "pissa",
        ),
        (
            |f| f.config["alora_invocation_tokens"] = json!([1]),
            Status::Unsupported,
            "alora",
        ),
        (|f| f.config["r"] = json!(0), Status::InvalidModel, "r is 0"),
        (|f| f.config["r"] = json!("two"), Status::MissingKey, "r is"),
        (|f| f.config["r"] = json!(null), Status::MissingKey, "key r"),
        (
            |f| f.config["r"] = json!(3),
            Status::ShapeMismatch,
            "rank 2",
        ),
        (
            |f| f.config["lora_alpha"] = json!(null),
            Status::MissingKey,
            "lora_alpha",
        ),
        (
            |f| f.config["lora_alpha"] = json!(1e300),
            Status::InvalidModel,
            "not finite",
        ),
        (
            |f| f.config["rank_pattern"] = json!({"q_proj": 0}),
            Status::InvalidModel,
            "rank_pattern",
        ),
        (
            |f| f.config["rank_pattern"] = json!({"(": 2}),
            Status::Unsupported,
            "rank_pattern",
        ),
        (
            |f| f.config["alpha_pattern"] = json!([]),
            Status::MissingKey,
            "alpha_pattern",
        ),
        (|f| drop(f.tensors.remove(Q_A)), Status::MissingTensor, Q_A),
        (|f| drop(f.tensors.remove(Q_B)), Status::MissingTensor, Q_B),
        (|f| f.tensors.clear(), Status::MissingTensor, "no tensors"),
        (
            |f| rename(f, "q_proj", "z_proj"),
            Status::Unsupported,
            "z_proj",
        ),
        (
            |f| rename(f, "layers.0", "layers.7"),
            Status::MissingTensor,
            "blk.7.attn_k",
        ),
        (
            |f| rename(f, "self_attn.q_proj", "mlp.experts.0.up_proj"),
            Status::Unsupported,
            "experts",
        ),
        (
            |f| rename(f, "self_attn.q_proj", "input_layernorm"),
            Status::MissingTensor,
            "attn_norm",
        ),
        (
            |f| rename(f, "model.layers.0.self_attn.q_proj", "model.embed_tokens"),
            Status::ShapeMismatch,
            "token_embd",
        ),
        (
            |f| rename(f, "q_proj.lora_A.weight", "q_proj.lora_embedding_A.weight"),
            Status::Unsupported,
            "lora_embedding_A.weight",
        ),
        (
            |f| rename(f, "q_proj.lora_A.weight", "q_proj.lora_magnitude_vector"),
            Status::Unsupported,
            "DoRA",
        ),
        (
            |f| rename(f, "q_proj.lora_A.weight", "q_proj.weight"),
            Status::Unsupported,
            "q_proj.weight",
        ),
        (
            |f| f.tensors.get_mut(Q_A).unwrap().bytes[..2].copy_from_slice(&[0, 0x7e]),
            Status::InvalidModel,
            Q_A,
        ),
        (
            |f| f.tensors.get_mut(Q_B).unwrap().bytes[2..4].copy_from_slice(&[0, 0x7c]),
            Status::InvalidModel,
            Q_B,
        ),
        (
            |f| resize(f, Q_A, &[0, 64]),
            Status::InvalidModel,
            "rank is 0",
        ),
        (
            |f| resize(f, Q_A, &[2, 32]),
            Status::ShapeMismatch,
            "attn_q",
        ),
        (|f| resize(f, Q_B, &[63, 2]), Status::ShapeMismatch, Q_B),
        (|f| resize(f, Q_B, &[64, 3]), Status::ShapeMismatch, Q_B),
        (|f| resize(f, Q_B, &[128]), Status::ShapeMismatch, Q_B),
    ];
    refused(&model("mistral"), || Files::of("mistral_small"), cases);
}

pub fn rename(files: &mut Files, from: &str, to: &str) {
    let all = std::mem::take(&mut files.tensors);
    let renamed = all.into_iter().map(|(name, t)| (name.replace(from, to), t));
    files.tensors = renamed.collect();
}

pub fn resize(files: &mut Files, name: &str, shape: &[usize]) {
    let tensor = files.tensors.get_mut(name).unwrap();
    tensor.shape = shape.to_vec();
    tensor.bytes.resize(2 * shape.iter().product::<usize>(), 0);
}

#[test]
fn what_is_no_adapter_of_the_model_is_refused() {
    let dir = TempDir::new("no-adapter");
    let mistral = model("mistral");
    let refused = |model: &Arc<Model>, path: &Path, status: Status, part: &str| {
        let e = Adapter::load(model.clone(), path).err().unwrap();
        assert_eq!(e.status, status, "{e}");
        assert!(e.message.contains(part), "{part}: {e}");
    };
    refused(
        &mistral,
        dir.path(),
        Status::UnknownFormat,
        "adapter_config.json",
    );
    refused(
        &mistral,
        &dir.path().join("none"),
        Status::FileNotFound,
        "none",
    );
    let gguf = family_path("mistral").join("model.gguf");
    refused(&mistral, &gguf, Status::UnknownFormat, "general.type");
    let config = std::fs::read(adapter_path("mistral").join("adapter_config.json")).unwrap();
    dir.file("adapter_config.json", &config);
    refused(
        &mistral,
        dir.path(),
        Status::FileNotFound,
        "adapter_model.safetensors",
    );
    dir.file("adapter_model.bin", b"pickle");
    refused(
        &mistral,
        dir.path(),
        Status::Unsupported,
        "adapter_model.bin",
    );
    dir.file("adapter_model.safetensors", b"nothing");
    refused(
        &mistral,
        dir.path(),
        Status::FileTruncated,
        "adapter_model.safetensors",
    );
    dir.file("adapter_config.json", b"{\"a\": ");
    refused(
        &mistral,
        dir.path(),
        Status::FileCorrupt,
        "adapter_config.json",
    );
    // Of another architecture, by its file and by its modules.
    let small = adapter_path("mistral_small/adapter.gguf");
    refused(&model("qwen2"), &small, Status::InvalidModel, "\"llama\"");
    refused(
        &model("gpt2"),
        &adapter_path("mistral"),
        Status::Unsupported,
        "not known",
    );
    // Of the same architecture, but other sizes.
    refused(
        &model("mistral"),
        &adapter_path("qwen2"),
        Status::ShapeMismatch,
        "blk.0",
    );
}
