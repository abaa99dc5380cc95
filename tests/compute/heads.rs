//! Heads that guess further tokens: their logits beside a reference in double precision, and sessions with their drafts beside
//! sessions without.

use crate::common::drafts::{ALWAYS, SAMPLED, decoded, dropped, interrupted_text};
use crate::common::heads::{self, Kept, WITH_HEADS};
use crate::common::runs::on_cpu;
use crate::common::states::{random_life_of, session};
use crate::common::tiny::Random;
use crate::common::{TempDir, cpu};
use crate::drafts::batches;
use emberlm::backend::{KvType, LoadOptions, RunnerOptions};
use emberlm::engine::sampling::Sampling;
use emberlm::engine::speculate::{DraftOptions, HeadDrafts, SourceKind};
use emberlm::engine::{Model, Session, SessionOptions};
use emberlm::format::ModelFile;
use emberlm::model::Network;
use emberlm::{Error, Status};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;

const OPTIONS: RunnerOptions = RunnerOptions {
    context: 128,
    kv_type: KvType::F32,
    stream_priority: 0,
    mark_interval: 0,
};

fn load_with(path: &Path, draft_heads: bool) -> Result<Arc<Model>, Error> {
    let options = LoadOptions {
        threads: 2,
        draft_heads,
        ..Default::default()
    };
    Model::load(path, cpu(), &options, &mut |_| Ok(())).map(Arc::new)
}

/// A model with its head, from a folder.
fn model(name: &str, own: bool) -> Arc<Model> {
    let dir = TempDir::new(&format!("heads-{name}"));
    heads::folder(name, own).write(&dir);
    // The folder may go: what is read of it is read.
    let model = load_with(dir.path(), true).unwrap();
    std::mem::forget(dir);
    model
}

#[test]
fn heads_agree_with_the_reference() {
    for (name, own) in heads::variants() {
        heads::agrees(name, own, &OPTIONS, 1e-3, &|network| on_cpu(network, 2));
    }
}

/// MiMo's projection takes the hidden state first, as its folder has it.
#[test]
fn mimo_joins_the_state_and_the_token() {
    let folder = heads::folder("mimo", false);
    let (_, head) = heads::networks(folder.ready());
    let random = |seed: u64| -> Vec<f64> {
        let mut random = Random::new(seed, "mimo");
        let unit = |_| f64::from(random.signed_unit());
        (0..head.hidden).map(unit).collect()
    };
    let values = |part: &str| -> Vec<f64> {
        let stored = &folder.tensors[&format!("model.mtp_layers.0.{part}.weight")];
        heads::values(stored).into_iter().map(f64::from).collect()
    };
    let token = 17;
    let state = random(1);
    let normed = |x: &[f64], part: &str| -> Vec<f64> {
        let squares: f64 = x.iter().map(|v| v * v).sum();
        let eps = folder.config["rms_norm_eps"].as_f64().unwrap();
        let factor = 1.0 / (squares / x.len() as f64 + eps).sqrt();
        let both = x.iter().zip(values(part));
        both.map(|(v, weight)| v * factor * weight).collect()
    };
    let embeddings = heads::values(&folder.tensors["model.embed_tokens.weight"]);
    let row = &embeddings[token * head.hidden..(token + 1) * head.hidden];
    let row: Vec<f64> = row.iter().map(|v| f64::from(*v)).collect();
    let both = [
        normed(&state, "hidden_layernorm"),
        normed(&row, "token_layernorm"),
    ]
    .concat();
    let projection = values("input_proj");
    let entered = heads::entered(&head, &vec![state], &[token as u32]);
    for (row, ours) in projection.chunks_exact(2 * head.hidden).zip(&entered[0]) {
        let sum: f64 = row.iter().zip(&both).map(|(a, b)| a * b).sum();
        assert!((sum - ours).abs() < 1e-6, "{sum} and {ours}");
    }
}

/// Further heads are left out, and so are all where none is asked for.
#[test]
fn the_first_of_several_heads_is_used() {
    let mut folder = heads::folder("mimo", false);
    folder.set("num_nextn_predict_layers", json!(2));
    let first: Vec<_> = folder
        .tensors
        .iter()
        .filter_map(|(name, stored)| {
            let part = name.strip_prefix("model.mtp_layers.0.")?;
            Some((format!("model.mtp_layers.1.{part}"), stored.clone()))
        })
        .collect();
    folder.tensors.extend(first);
    let (network, head) = heads::networks(folder.ready());
    let (_, of_one) = heads::networks(heads::folder("mimo", false).ready());
    assert_eq!(network.blocks.len(), 2);
    let names = |head: &Network| -> Vec<String> {
        head.tensors()
            .map(|tensor| tensor.name.to_string())
            .collect()
    };
    assert_eq!(names(&head), names(&of_one));
}

/// Hidden states are the same however tokens come: in drafts, in batches and alone.
#[test]
fn hidden_states_are_those_of_their_tokens() {
    let (network, _) = heads::networks(heads::folder("glm4_moe", false).ready());
    let weights = on_cpu(&network, 2);
    let kept = || Kept::new(weights.clone(), &OPTIONS);
    heads::states_agree(&weights, network.n_vocab, &kept);
}

fn heads(session: &mut Session) {
    session.set_head_drafts(&ALWAYS).unwrap();
    assert_eq!(session.speculation().unwrap().source, SourceKind::Heads);
}

#[test]
fn interrupted_texts_are_the_same_with_heads() {
    for name in WITH_HEADS {
        let model = model(name, true);
        for sampling in [Sampling::GREEDY, SAMPLED] {
            let accepted = interrupted_text(&model, sampling, 300, &heads);
            println!("{name}: {accepted} accepted");
            assert!(accepted > 0, "{name}, {sampling:?}");
        }
    }
}

#[test]
fn random_lives_are_the_same_with_heads() {
    for (seed, name) in WITH_HEADS.into_iter().enumerate() {
        let model = model(name, false);
        random_life_of(&model, seed as u64, 60, false, &mut heads);
        random_life_of(&model, 50 + seed as u64, 60, false, &mut |session| {
            session.set_head_drafts(&DraftOptions::default()).unwrap();
        });
    }
}

#[test]
fn batches_are_the_same_with_heads() {
    for (seed, name) in ["qwen3_5", "glm4_moe", "deepseek_v3"]
        .into_iter()
        .enumerate()
    {
        let (drafted, accepted) = batches(&model(name, false), (60, 8), seed as u64, false);
        assert!(accepted > 0 && drafted > accepted, "{name}");
    }
}

#[test]
fn started_decodes_that_are_dropped_change_nothing() {
    let model = model("glm4_moe", false);
    let accepted = dropped(&|| session(&model), &|target, _| {
        Box::new(HeadDrafts::new(target).unwrap())
    });
    assert!(accepted > 100, "{accepted}");
}

/// Through rewinds, forks, evictions and erased tokens, drafts are those of a head that has read the whole context.
#[test]
fn drafts_are_those_of_the_reference() {
    for name in WITH_HEADS {
        heads::drafts_are_right(&model(name, false), name, KvType::F32, 1e-3);
    }
}

/// A head that has not seen the beginning, because it came later or because the prompt was longer than what is kept.
#[test]
fn heads_begin_where_they_have_states() {
    let model = model("glm4_moe", false);
    let options = SessionOptions {
        context: 6000,
        ..Default::default()
    };
    let prompt: Vec<u32> = (0..4500).map(|i| i * 7 % 96).collect();
    let mut plain = Session::create(model.clone(), &options).unwrap();
    let mut drafting = Session::create(model.clone(), &options).unwrap();
    heads(&mut drafting);
    let mut late = Session::create(model, &options).unwrap();
    for session in [&mut plain, &mut drafting, &mut late] {
        session.prefill(&prompt).unwrap();
    }
    heads(&mut late);
    let expected = decoded(&mut plain, 60);
    for mut session in [drafting, late] {
        assert!(decoded(&mut session, 60) == expected);
        let stats = session.speculation().unwrap().stats;
        assert!(stats.accepted > 0, "{stats:?}");
        session.clear_drafts().unwrap();
        assert!(session.speculation().is_none());
    }
}

#[test]
fn what_has_no_heads_says_so() {
    let folder = crate::common::folder::Folder::family("glm4_moe");
    let dir = TempDir::new("heads-none");
    folder.write(&dir);
    let mut s = session(&load_with(dir.path(), true).unwrap());
    let e = s.set_head_drafts(&ALWAYS).unwrap_err();
    assert_eq!(e.status, Status::Unsupported);
    assert!(e.message.contains("the model has no heads"), "{e}");
    let dir = TempDir::new("heads-left-out");
    heads::folder("glm4_moe", false).write(&dir);
    let mut s = session(&load_with(dir.path(), false).unwrap());
    let e = s.set_head_drafts(&ALWAYS).unwrap_err();
    assert_eq!(e.status, Status::Unsupported);
    assert!(e.message.contains("EMBER_MODEL_DRAFT_HEADS"), "{e}");
    assert!(s.speculation().is_none());
}

#[test]
fn bad_heads_are_named() {
    let read = |file: &mut ModelFile, has_predictor: bool| {
        file.has_predictor = has_predictor;
        Network::from_file(file)
    };
    for (name, head) in [
        ("glm4_moe", "model.layers.3."),
        ("qwen3_5", "mtp."),
        ("mimo", "model.mtp_layers.0."),
    ] {
        let whole = heads::folder(name, false);
        let (projection, norm) = match name {
            "qwen3_5" => ("fc.weight", "pre_fc_norm_hidden.weight"),
            "mimo" => ("input_proj.weight", "hidden_layernorm.weight"),
            _ => ("eh_proj.weight", "hnorm.weight"),
        };
        for missing in [projection, norm] {
            let mut folder = whole.clone();
            folder.tensors.remove(&format!("{head}{missing}")).unwrap();
            let mut file = folder.open().unwrap();
            read(&mut file, false).unwrap();
            let e = read(&mut file, true).unwrap_err();
            assert_eq!(e.status, Status::MissingTensor);
            let gguf = match missing == projection {
                true => "nextn.eh_proj.weight",
                false => "nextn.hnorm.weight",
            };
            assert!(e.message.contains(gguf), "{e}");
        }
        let mut folder = whole.clone();
        let name = format!("{head}{projection}");
        let stored = folder.tensors.get_mut(&name).unwrap();
        stored.shape = vec![stored.shape[1], stored.shape[0]];
        let mut file = folder.open().unwrap();
        read(&mut file, false).unwrap();
        let e = read(&mut file, true).unwrap_err();
        assert_eq!(e.status, Status::ShapeMismatch);
        assert!(e.message.contains(&name), "{e}");
    }
}

/// The estimate counts what the head has of its own.
#[test]
fn estimates_count_the_head() {
    for (name, own) in [
        ("glm4_moe", false),
        ("glm4_moe", true),
        ("qwen3_5", false),
        ("mimo", false),
    ] {
        let dir = TempDir::new("heads-estimate");
        let folder = heads::folder(name, own);
        folder.write(&dir);
        let estimate = |draft_heads: bool| {
            let options = LoadOptions {
                threads: 2,
                draft_heads,
                ..Default::default()
            };
            let session = SessionOptions::default();
            let (e, _) = Model::estimate(dir.path(), cpu(), &options, &session).unwrap();
            e.device
        };
        let (without, with) = (estimate(false), estimate(true));
        // All that the folder has of it is in single precision.
        let n = folder.config["num_hidden_layers"].as_u64().unwrap();
        let head = format!("model.layers.{n}.");
        let own = folder.tensors.iter().filter(|(name, _)| {
            ["mtp.", "model.mtp_layers.", &head]
                .iter()
                .any(|of| name.starts_with(of))
        });
        let bytes: usize = own.map(|(_, stored)| stored.bytes.len()).sum();
        // A final norm, if the head shares the model's, is a copy.
        assert_eq!(
            with.weights_bytes - without.weights_bytes,
            bytes as u64,
            "{name}"
        );
        assert!(with.model_workspace_bytes > without.model_workspace_bytes);
        // As much as another layer that attends, and what comes behind the context.
        assert!(with.kv_bytes > without.kv_bytes, "{name}");
        assert!(with.kv_bytes_per_token > without.kv_bytes_per_token);
        let states = with.session_workspace_bytes - without.session_workspace_bytes;
        assert!(states > 4 * 4096 * folder.config["hidden_size"].as_u64().unwrap());
    }
}
