//! Heads that guess further tokens: their logits beside a reference in double precision, and sessions with their drafts beside
//! sessions without.

use crate::common::drafts::{ALWAYS, decoded, dropped};
use crate::common::heads::{self, WITH_HEADS};
use crate::common::runs::on_cpu;
use crate::common::states::{random_life_of, session};
use crate::common::tiny::Random;
use crate::common::{TempDir, cpu};
use crate::drafts::{SAMPLED, batches, interrupted_text};
use emberlm::backend::{
    HiddenStates, KvType, LoadOptions, Outcome, Residual, Row, Runner, RunnerOptions, Want,
    Weights, When,
};
use emberlm::engine::sampling::Sampling;
use emberlm::engine::speculate::{DraftContext, DraftOptions, DraftSource, HeadDrafts, SourceKind};
use emberlm::engine::{Model, Session, SessionOptions};
use emberlm::format::ModelFile;
use emberlm::{Error, Status};
use std::path::Path;
use std::sync::{Arc, Mutex};

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

/// A runner whose hidden states are kept.
struct Kept {
    weights: Arc<dyn Weights>,
    runner: Box<dyn Runner>,
    states: Arc<HiddenStates>,
}

impl Kept {
    fn new(weights: Arc<dyn Weights>) -> Kept {
        let mut runner = weights.clone().create_runner(&OPTIONS).unwrap();
        let states = weights.hidden_states(OPTIONS.context).unwrap();
        runner.keep_states(Some(states.clone())).unwrap();
        Kept {
            weights,
            runner,
            states,
        }
    }

    fn submit(&mut self, tokens: &[u32], input: Option<&[f32]>, want: Want) {
        let row = Row {
            runner: &mut *self.runner,
            tokens,
            want,
            mask: None,
            interrupt: &Default::default(),
            residual: Residual {
                input,
                output: None,
            },
        };
        self.weights.submit(&mut [row], When::Now).unwrap();
        match want {
            Want::Verified { .. } => while let Ok(Some(_)) = self.runner.poll(true) {},
            _ => assert_eq!(self.runner.poll(true).unwrap(), Some(Outcome::Logits)),
        }
    }

    fn state(&self, position: usize) -> Vec<f64> {
        let mut row = vec![0.0; self.states.width()];
        assert!(self.states.read(position, &mut row), "position {position}");
        row.iter().map(|v| f64::from(*v)).collect()
    }

    fn logits(&mut self, n_vocab: usize) -> Vec<f32> {
        let mut logits = vec![f32::NAN; n_vocab];
        self.runner.logits(&mut logits).unwrap();
        logits
    }
}

fn largest_difference(ours: &[f32], theirs: &[f64]) -> f64 {
    let both = ours.iter().zip(theirs);
    both.map(|(a, b)| (f64::from(*a) - b).abs())
        .fold(0.0, f64::max)
}

#[test]
fn heads_agree_with_the_reference() {
    let tokens = [5u32, 17, 33, 80, 2, 60, 61, 9, 9, 14, 70, 41];
    let further = [3u32, 50];
    for (name, own) in WITH_HEADS
        .map(|name| (name, false))
        .into_iter()
        .chain([("glm4_moe", true), ("deepseek_v3", true)])
    {
        let (network, head) = heads::networks(heads::folder(name, own).ready());
        let expected = heads::logits(&network, &head, &tokens, &further);
        let n_vocab = network.n_vocab;
        for pieces in [1, 5, 12] {
            let mut target = Kept::new(on_cpu(&network, 2));
            for piece in tokens.chunks(pieces) {
                target.submit(piece, None, Want::Logits);
            }
            let predictor = target.weights.load_predictor(&head).unwrap();
            let mut guesser = Kept::new(predictor);
            let normed = |network: &emberlm::model::Network, row: Vec<f64>| -> Vec<f32> {
                let row = crate::common::reference_llama::norm_row(&network.final_norm, &row);
                row.iter().map(|v| *v as f32).collect()
            };
            let rows: Vec<f32> = (0..tokens.len() - 1)
                .flat_map(|p| normed(&network, target.state(p)))
                .collect();
            let width = target.states.width();
            let mut at = 0;
            let mut largest = 0.0f64;
            let mut ours = Vec::new();
            for piece in tokens[1..].chunks(pieces) {
                let input = &rows[at * width..(at + piece.len()) * width];
                guesser.submit(piece, Some(input), Want::Logits);
                at += piece.len();
                ours = guesser.logits(n_vocab);
                largest = largest.max(largest_difference(&ours, &expected[at - 1]));
            }
            assert_eq!(at, tokens.len() - 1);
            for token in further {
                let input = normed(&head, guesser.state(at - 1));
                guesser.submit(&[token], Some(&input), Want::Logits);
                ours = guesser.logits(n_vocab);
                largest = largest.max(largest_difference(&ours, &expected[at]));
                at += 1;
            }
            println!("{name}, pieces of {pieces}: largest difference {largest:.2e}");
            assert!(largest < 1e-3, "{name}, pieces of {pieces}: {largest}");
            assert!(ours.iter().any(|v| v.abs() > 0.1));
        }
    }
}

/// Hidden states are the same however tokens come: in drafts, in batches and alone.
#[test]
fn hidden_states_are_those_of_their_tokens() {
    let tokens = [5u32, 17, 33, 80, 2, 60, 61, 9];
    let (network, _) = heads::networks(heads::folder("glm4_moe", false).ready());
    let weights = on_cpu(&network, 2);
    let mut alone = Kept::new(weights.clone());
    tokens
        .iter()
        .for_each(|t| alone.submit(&[*t], None, Want::Logits));
    let expected: Vec<_> = (0..tokens.len()).map(|p| alone.state(p)).collect();
    let mut drafted = Kept::new(weights.clone());
    drafted.submit(&tokens[..3], None, Want::Logits);
    let want = Want::Verified {
        drafts: 4,
        sampling: Sampling::GREEDY,
    };
    drafted.submit(&tokens[3..], None, want);
    for (p, expected) in expected.iter().enumerate() {
        assert_eq!(&drafted.state(p), expected, "position {p}");
    }
    let [mut a, mut b] = [Kept::new(weights.clone()), Kept::new(weights.clone())];
    a.submit(&tokens[..4], None, Want::Logits);
    b.submit(&tokens[..2], None, Want::Logits);
    let interrupt = Default::default();
    for i in 0..3 {
        let want = Want::Choices {
            count: 1,
            sampling: Sampling::GREEDY,
        };
        let mut rows = [(&mut a, 4 + i), (&mut b, 2 + i)].map(|(kept, at)| Row {
            runner: &mut *kept.runner,
            tokens: &tokens[at..=at],
            want,
            mask: None,
            interrupt: &interrupt,
            residual: Residual::default(),
        });
        weights.submit(&mut rows, When::Now).unwrap();
        for row in &mut rows {
            row.runner.poll(true).unwrap();
        }
    }
    for (p, expected) in expected.iter().enumerate().take(5) {
        assert_eq!(&a.state(p), expected, "position {p}");
        assert_eq!(&b.state(p), expected, "position {p}");
    }
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
    dropped(&|| session(&model), |target, _| {
        Box::new(HeadDrafts::new(target).unwrap())
    });
}

/// A head's drafts, and what they were made behind.
struct Recorded {
    source: Box<dyn DraftSource>,
    log: Arc<Mutex<Vec<[Vec<u32>; 2]>>>,
}

impl DraftSource for Recorded {
    fn states(&self) -> Option<Arc<HiddenStates>> {
        self.source.states()
    }

    fn look(&mut self, context: &DraftContext<'_>) -> emberlm::Result<Option<usize>> {
        self.source.look(context)
    }

    fn draft(&mut self, context: &DraftContext<'_>, drafts: &mut [u32]) -> emberlm::Result<usize> {
        let count = self.source.draft(context, drafts)?;
        let made = [context.tokens.to_vec(), drafts[..count].to_vec()];
        self.log.lock().unwrap().push(made);
        Ok(count)
    }

    fn fork(&mut self, fork: &Session) -> emberlm::Result<Box<dyn DraftSource>> {
        Ok(Box::new(Recorded {
            source: self.source.fork(fork)?,
            log: self.log.clone(),
        }))
    }
}

/// Through rewinds, forks, evictions and erased tokens, drafts are those of a head that has read the whole context.
#[test]
fn drafts_are_those_of_the_reference() {
    for name in WITH_HEADS {
        let model = model(name, false);
        let (network, head) = heads::networks(heads::folder(name, false).ready());
        let options = SessionOptions {
            context: 400,
            kv_type: KvType::F32,
            ..Default::default()
        };
        let mut s = Session::create(model, &options).unwrap();
        let log = Arc::<Mutex<Vec<[Vec<u32>; 2]>>>::default();
        let source = Recorded {
            source: Box::new(HeadDrafts::new(&s).unwrap()),
            log: log.clone(),
        };
        let always = DraftOptions {
            most: 3,
            always: true,
        };
        s.set_draft_source(Box::new(source), &always).unwrap();
        let mut compared = 0;
        let mut random = Random::new(3, name);
        let mut pick = |n: usize| random.bits() as usize % n;
        let sampling = Sampling {
            temperature: 1.0,
            seed: 5,
            ..Sampling::GREEDY
        };
        s.prefill(&[1, 20, 30, 40, 50]).unwrap();
        for round in 0..40 {
            // Drafts are compared where they are greedy; other texts have more to tell.
            s.set_sampling(sampling, None).unwrap();
            decoded(&mut s, 1 + pick(4));
            s.set_sampling(Sampling::GREEDY, None).unwrap();
            let before = log.lock().unwrap().len();
            decoded(&mut s, 2);
            log.lock().unwrap().drain(..before);
            let made = std::mem::take(&mut *log.lock().unwrap());
            for [tokens, drafts] in made {
                let expected = heads::logits(&network, &head, &tokens, &drafts[..drafts.len() - 1]);
                compared += drafts.len();
                for (i, draft) in drafts.iter().enumerate() {
                    let logits = &expected[tokens.len() - 2 + i];
                    let best = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let short = best - logits[*draft as usize];
                    assert!(
                        short < 1e-3,
                        "{name}, round {round}, draft {i}: {short} behind {} tokens",
                        tokens.len()
                    );
                }
            }
            let position = s.position();
            match pick(6) {
                0 => s.rewind(position - pick(8).min(position - 2)).unwrap(),
                1 => s = s.fork().unwrap(),
                2 => s.evict().unwrap(),
                3 if position > 20 => s.erase(position - 12, 5).unwrap(),
                4 => s.prefill(&[7, 8, 9, 10 + pick(50) as u32]).unwrap(),
                _ => {}
            }
        }
        println!("{name}: {compared} drafts");
        assert!(compared > 50, "{name}: {compared}");
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
        emberlm::model::Network::from_file(file)
    };
    for (name, head) in [("glm4_moe", "model.layers.3."), ("qwen3_5", "mtp.")] {
        let whole = heads::folder(name, false);
        let (projection, norm) = match name {
            "qwen3_5" => ("fc.weight", "pre_fc_norm_hidden.weight"),
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
    for (name, own) in [("glm4_moe", false), ("glm4_moe", true), ("qwen3_5", false)] {
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
        let own = folder
            .tensors
            .iter()
            .filter(|(name, _)| name.starts_with("mtp.") || name.starts_with(&head));
        let bytes: usize = own.map(|(_, stored)| stored.bytes.len()).sum();
        // A final norm, if the head shares the model's, is a copy.
        assert_eq!(
            with.weights_bytes - without.weights_bytes,
            bytes as u64,
            "{name}"
        );
        assert!(with.model_workspace_bytes > without.model_workspace_bytes);
        assert_eq!(with.kv_bytes, without.kv_bytes);
    }
}
