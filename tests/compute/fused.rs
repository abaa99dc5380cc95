//! Heads of EAGLE-3: their logits beside what `data/eagle3/make.py` computes and beside a reference in double precision, and sessions with their
//! drafts beside sessions without.

use crate::common::drafts::{ALWAYS, SAMPLED, decoded, dropped, interrupted_text};
use crate::common::edit::Edited;
use crate::common::families::open_family;
use crate::common::folder::{Folder, Stored};
use crate::common::fused::{self, FURTHER, Form, PLACES, TARGETS, TOKENS};
use crate::common::heads::{Kept, states_agree};
use crate::common::runs::on_cpu;
use crate::common::states::{random_life_of, session};
use crate::common::tiny::Random;
use crate::common::{TempDir, cpu, repository_file};
use crate::drafts::batches_with;
use emberlm::backend::{HiddenStates, KvType, LoadOptions, RunnerOptions, Want};
use emberlm::engine::embedder::{Embedder, EmbedderOptions};
use emberlm::engine::sampling::Sampling;
use emberlm::engine::speculate::{DraftOptions, HeadDrafts, SourceKind};
use emberlm::engine::{Model, Session, SessionOptions};
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
const FORMS: [Form; 2] = [Form::SpecForge, Form::Speculators];

fn load(path: &Path) -> Result<Arc<Model>, Error> {
    let options = LoadOptions {
        threads: 2,
        ..Default::default()
    };
    Model::load(path, cpu(), &options, &mut |_| Ok(())).map(Arc::new)
}

fn loaded(folder: &Folder) -> Result<Arc<Model>, Error> {
    let dir = TempDir::new("fused");
    folder.write(&dir);
    load(dir.path())
}

fn network(folder: &Folder) -> Result<Network, Error> {
    Network::from_file(&folder.open()?)
}

fn ready(folder: &Folder) -> Network {
    Network::from_file(&folder.ready()).unwrap()
}

/// A model and a head for it.
fn pair(name: &str, form: Form) -> [Arc<Model>; 2] {
    [fused::target(name), fused::head_for(name, form)].map(|f| loaded(&f).unwrap())
}

fn drafting(session: &mut Session, head: &Arc<Model>, options: &DraftOptions) {
    session.set_model_drafts(head, options).unwrap();
    assert_eq!(session.speculation().unwrap().source, SourceKind::Model);
}

fn largest_difference(ours: &[f32], theirs: &[f64]) -> f64 {
    let both = ours.iter().map(|v| f64::from(*v)).zip(theirs);
    // Tokens that a head does not know.
    both.filter(|(a, b)| *a != f64::NEG_INFINITY || **b != f64::NEG_INFINITY)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f64::max)
}

/// The published layouts, with states that come from nowhere.
#[test]
fn heads_agree_with_the_script() {
    let bytes = std::fs::read(repository_file("tests/data/eagle3/logits.bin")).unwrap();
    let mut expected = bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b));
    for form in FORMS {
        let head = ready(&fused::published(form));
        let fusion = head.fusion().unwrap();
        let known: Vec<u32> = match &fusion.ids {
            Some(ids) => ids.to_vec(),
            None => (0..40).collect(),
        };
        let width = head.entry.as_ref().unwrap().projection.weight.row_len();
        let mut random = Random::new(2, "states");
        let read: Vec<Vec<f32>> = (0..TOKENS.len())
            .map(|_| (0..width).map(|_| random.signed_unit()).collect())
            .collect();
        let rows: Vec<Vec<f64>> = (0..TOKENS.len() + FURTHER.len())
            .map(|_| {
                let mut row = vec![f64::NEG_INFINITY; 40];
                for id in &known {
                    row[*id as usize] = f64::from(expected.next().unwrap());
                }
                row
            })
            .collect();
        for pieces in [1, 4, 9] {
            let states = HiddenStates::of_places(width / 3, &[0, 1, 2], 16, None).unwrap();
            for place in 0..3 {
                states.put_place((0, read.len()), place, |i, row| {
                    row.copy_from_slice(&read[i][place * width / 3..][..width / 3]);
                });
            }
            states.evaluated(0, read.len());
            let mut kept = fused::of_head(on_cpu(&head, 2), &OPTIONS);
            let mut at = 0;
            for piece in TOKENS.chunks(pieces) {
                kept.submit(piece, Some((&states, at)), Want::Logits);
                at += piece.len();
                let largest = largest_difference(&kept.logits(40), &rows[at - 1]);
                assert!(largest < 1e-3, "{form:?}, position {at}: {largest}");
            }
            for token in FURTHER {
                let own = kept.states.clone();
                kept.submit(&[token], Some((&own, at - 1)), Want::Logits);
                let ours = kept.logits(40);
                let largest = largest_difference(&ours, &rows[at]);
                assert!(largest < 1e-3, "{form:?}, position {at}: {largest}");
                let finite = ours.iter().filter(|v| v.is_finite()).count();
                assert_eq!(finite, known.len());
                at += 1;
            }
        }
    }
    assert_eq!(expected.next(), None);
}

/// The same on models, whose hidden states at several places are those of a reference.
#[test]
fn heads_agree_with_the_reference() {
    for name in TARGETS {
        for form in FORMS {
            fused::agrees((name, form), &OPTIONS, [1e-4, 1e-3], &|n| on_cpu(n, 2));
        }
    }
}

/// Heads in the types that models are quantized to.
#[test]
fn quantized_heads_agree_with_the_reference() {
    fused::quantized_agree(&OPTIONS, 0.05, &|n| on_cpu(n, 2));
}

/// Hidden states between layers are the same however tokens come: in drafts, in batches and alone.
#[test]
fn hidden_states_are_those_of_their_tokens() {
    let target = ready(&fused::target("olmo3"));
    let weights = on_cpu(&target, 2);
    let places = [0, 2, 5];
    let kept = || Kept::at(&weights, &OPTIONS, &places);
    states_agree(&weights, target.n_vocab, &kept);
}

#[test]
fn the_unit_of_the_residual_stream_changes_nothing() {
    fused::units_agree(&OPTIONS, 1e-5, &|n| on_cpu(n, 2));
}

#[test]
fn interrupted_texts_are_the_same() {
    for name in TARGETS {
        for form in FORMS {
            let [model, head] = pair(name, form);
            for sampling in [Sampling::GREEDY, SAMPLED] {
                let accepted = interrupted_text(&model, sampling, 300, &|session| {
                    drafting(session, &head, &ALWAYS);
                });
                println!("{name}, {form:?}: {accepted} accepted");
                assert!(accepted > 0, "{name}, {form:?}, {sampling:?}");
            }
        }
    }
}

#[test]
fn random_lives_are_the_same() {
    for (seed, name) in TARGETS.into_iter().enumerate() {
        let [model, head] = pair(name, Form::SpecForge);
        for (seed, options) in [(seed, ALWAYS), (50 + seed, DraftOptions::default())] {
            random_life_of(&model, seed as u64, 60, false, &mut |session| {
                drafting(session, &head, &options);
            });
        }
    }
}

#[test]
fn batches_are_the_same() {
    for (seed, name) in TARGETS.into_iter().enumerate() {
        let [model, head] = pair(name, Form::SpecForge);
        let (drafted, accepted) =
            batches_with(&model, (60, 6), seed as u64, false, &|i, session| {
                if i % 3 != 2 {
                    drafting(session, &head, &ALWAYS);
                }
            });
        assert!(accepted > 0 && drafted > accepted, "{name}");
    }
}

#[test]
fn started_decodes_that_are_dropped_change_nothing() {
    let [model, head] = pair("olmo3", Form::SpecForge);
    let accepted = dropped(&|| session(&model), &|target, _| {
        Box::new(HeadDrafts::fused(target, &head).unwrap())
    });
    assert!(accepted > 50, "{accepted}");
}

/// Through rewinds, forks, evictions and erased tokens, drafts are those of a head that has read the whole context.
#[test]
fn drafts_are_those_of_the_reference() {
    for name in TARGETS {
        let [model, head] = pair(name, Form::SpecForge);
        fused::drafts_are_right((&model, &head), name, KvType::F32, 1e-3);
    }
}

/// A head that has not seen the beginning, because it came later or because the prompt was longer than what is kept.
#[test]
fn heads_begin_where_they_have_states() {
    let [model, head] = pair("olmo3", Form::Speculators);
    let options = SessionOptions {
        context: 4000,
        ..Default::default()
    };
    let prompt: Vec<u32> = (0..2600).map(|i| i * 7 % 96).collect();
    let create = || Session::create(model.clone(), &options).unwrap();
    let (mut plain, mut early, mut late) = (create(), create(), create());
    drafting(&mut early, &head, &ALWAYS);
    for session in [&mut plain, &mut early, &mut late] {
        session.prefill(&prompt).unwrap();
    }
    drafting(&mut late, &head, &ALWAYS);
    let expected = decoded(&mut plain, 60);
    for mut session in [early, late] {
        assert!(decoded(&mut session, 60) == expected);
        let stats = session.speculation().unwrap().stats;
        assert!(stats.drafted > 0, "{stats:?}");
        session.clear_drafts().unwrap();
        assert!(session.speculation().is_none());
    }
}

/// The places of a config: of the layer that comes next, or, in `eagle_config`, of the layer before.
#[test]
fn places_are_read_in_both_spellings() {
    let places = |folder: &Folder| {
        let network = network(folder).unwrap();
        let fusion = network.entry.unwrap().fusion.unwrap();
        (fusion.places, fusion.places_in(36))
    };
    let mut folder = fused::published(Form::SpecForge);
    assert_eq!(places(&folder), (None, Some([2, 18, 33])));
    fused::set_nested_places(&mut folder, json!([1, 17, 32]));
    assert_eq!(places(&folder).0, Some([2, 18, 33]));
    let mut folder = fused::published(Form::Speculators);
    folder.set(PLACES, json!([2, 18, 33]));
    assert_eq!(places(&folder).0, Some([2, 18, 33]));
    folder.set(PLACES, json!([2, 18, 37]));
    assert_eq!(places(&folder), (Some([2, 18, 37]), None));
}

#[test]
fn bad_heads_are_named() {
    let check = |folder: &Folder, status: Status, parts: &[&str]| {
        let e = network(folder).unwrap_err();
        assert_eq!(e.status, status, "{e}");
        for part in parts {
            assert!(e.message.contains(part), "{e}");
        }
    };
    let whole = fused::published(Form::SpecForge);
    for missing in [
        "fc.weight",
        "norm.weight",
        "lm_head.weight",
        "midlayer.hidden_norm.weight",
        "midlayer.self_attn.k_proj.weight",
        "midlayer.mlp.down_proj.weight",
        "d2t",
    ] {
        let mut folder = whole.clone();
        folder.tensors.remove(missing).unwrap();
        check(&folder, Status::MissingTensor, &[missing]);
    }
    for name in [
        "fc.weight",
        "lm_head.weight",
        "midlayer.self_attn.q_proj.weight",
        "embed_tokens.weight",
        "d2t",
    ] {
        let mut folder = whole.clone();
        let stored = folder.tensors.get_mut(name).unwrap();
        stored.shape.insert(0, 2);
        let half = stored.shape[1] / 2;
        stored.shape[1] = half;
        if stored.shape[1] == 0 || name == "d2t" {
            stored.shape = vec![2, half];
        }
        check(&folder, Status::ShapeMismatch, &[name]);
    }
    let with_ids = |more: [i64; 12]| {
        let mut folder = whole.clone();
        let bytes = more.iter().flat_map(|v| v.to_le_bytes()).collect();
        folder.tensors.get_mut("d2t").unwrap().bytes = bytes;
        folder
    };
    let usual: [i64; 12] = std::array::from_fn(|i| i64::from(fused::DRAFTED[i]) - i as i64);
    let mut ids = usual;
    ids[11] = 29;
    check(
        &with_ids(ids),
        Status::InvalidModel,
        &["tensor d2t", "element 11 is 29", "token 40"],
    );
    ids = usual;
    ids[5] = -7;
    check(&with_ids(ids), Status::InvalidModel, &["tensor d2t", "-7"]);
    ids = usual;
    ids[3] = -1 + i64::from(fused::DRAFTED[2]) - 2;
    check(&with_ids(ids), Status::InvalidModel, &["d2t", "ascend"]);
    ids = usual;
    ids[0] = i64::MAX;
    check(&with_ids(ids), Status::InvalidModel, &["d2t", "element 0"]);
    let mut folder = whole.clone();
    let norm = Stored::f32(&[24], &[1.0; 24]);
    folder.tensors.insert("midlayer.extra.weight".into(), norm);
    check(&folder, Status::Unsupported, &["midlayer.extra.weight"]);
    for (key, value, status) in [
        ("num_hidden_layers", json!(2), Status::Unsupported),
        ("norm_before_fc", json!(true), Status::Unsupported),
        ("hidden_act", json!("gelu"), Status::Unsupported),
        ("target_hidden_size", json!(23), Status::ShapeMismatch),
        ("target_hidden_size", json!(8), Status::InvalidModel),
        ("draft_vocab_size", json!(13), Status::ShapeMismatch),
        (PLACES, json!([1, 2]), Status::InvalidModel),
        (PLACES, json!([1, 2, "x"]), Status::InvalidModel),
        (
            "speculators_model_type",
            json!("dflash"),
            Status::Unsupported,
        ),
    ] {
        let mut folder = whole.clone();
        folder.set(key, value);
        let name = match (key, status) {
            ("draft_vocab_size", _) => "d2t",
            (_, Status::ShapeMismatch) => "fc.weight",
            (PLACES, _) => "target_places",
            (key, _) => key,
        };
        let e = network(&folder).unwrap_err();
        assert_eq!(e.status, status, "{key}: {e}");
        assert!(e.message.contains(name) || e.message.contains(key), "{e}");
    }
    // One of GGUF, whose tensors may be in another order.
    let mut edited = Edited::of(&open_family("qwen2"));
    edited.set("general.architecture", "eagle3");
    let e = Network::from_file(&edited.open()).unwrap_err();
    assert_eq!(e.status, Status::Unsupported);
    assert!(e.message.contains("folders only"), "{e}");
    let mut folder = fused::published(Form::Speculators);
    folder.config.remove("norm_before_residual");
    check(&folder, Status::MissingKey, &["norm_before_residual"]);
}

/// Heads of other models, and what is asked of a head that only models can do.
#[test]
fn heads_of_other_models_are_refused() {
    let target = loaded(&fused::target("olmo3")).unwrap();
    let mut s = session(&target);
    let mut refuse = |folder: &Folder, parts: &[&str]| {
        let head = loaded(folder).unwrap();
        let e = s.set_model_drafts(&head, &ALWAYS).unwrap_err();
        assert_eq!(e.status, Status::InvalidArgument, "{e}");
        for part in parts {
            assert!(e.message.contains(part), "{e}");
        }
        assert!(s.speculation().is_none());
    };
    refuse(
        &fused::published(Form::SpecForge),
        &["vocabulary", "40", "96"],
    );
    refuse(
        &fused::head_for("glm4_moe", Form::SpecForge),
        &["fc.weight", "144"],
    );
    let mut far = fused::head_for("olmo3", Form::Speculators);
    far.set(PLACES, json!([1, 2, 6]));
    refuse(&far, &["5 layers"]);
    let mut narrow = fused::head_for("glm4_moe", Form::SpecForge);
    narrow.set("target_hidden_size", json!(48));
    let fc = Stored::f32(&[40, 144], &[0.0; 40 * 144]);
    narrow.tensors.insert("fc.weight".into(), fc);
    refuse(&narrow, &["embed_tokens.weight", "40", "48"]);

    let head = loaded(&fused::head_for("olmo3", Form::SpecForge)).unwrap();
    let e = Session::create(head.clone(), &SessionOptions::default()).err();
    let e = e.unwrap();
    assert_eq!(e.status, Status::Unsupported);
    assert!(e.message.contains("EAGLE-3"), "{e}");
    let e = Embedder::create(head.clone(), EmbedderOptions::default()).err();
    assert_eq!(e.unwrap().status, Status::Unsupported);
    let details = head.details();
    assert_eq!(
        (details.n_vocab, details.hidden, details.n_layers),
        (96, 48, 1)
    );
    // A head that two sessions share, of which one is gone before the model is.
    drafting(&mut s, &head, &ALWAYS);
    let mut other = session(&target);
    drafting(&mut other, &head, &ALWAYS);
    drop((head, s));
    other.prefill(&[1, 2, 3]).unwrap();
    decoded(&mut other, 5);
    assert!(other.speculation().unwrap().stats.drafted > 0);
}

/// The estimate counts the hidden states that a session keeps for the head.
#[test]
fn estimates_count_the_hidden_states() {
    let dir = TempDir::new("fused-estimate");
    fused::head_for("olmo3", Form::SpecForge).write(&dir);
    let of = |context: usize| {
        let session = SessionOptions {
            context,
            ..Default::default()
        };
        let options = LoadOptions::default();
        let (e, _) = Model::estimate(dir.path(), cpu(), &options, &session).unwrap();
        e.device.session_workspace_bytes
    };
    let head = ready(&fused::head_for("olmo3", Form::SpecForge));
    let width = head.entry.unwrap().projection.weight.row_len() as u64;
    let further = of(96) - of(48);
    assert!(further >= 48 * 4 * width, "{further}");
}
