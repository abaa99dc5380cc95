//! Models with a head that guesses further tokens: tiny random ones, whose heads are right now and then, as folders.

use super::drafts::decoded;
use super::folder::{Folder, Stored};
use super::reference_llama::{self as reference, Rows};
use super::tiny::Random;
use emberlm::backend::{
    HiddenStates, KvType, Outcome, Residual, Row, Runner, RunnerOptions, StatesFrom, TokenInput,
    Want, Weights, When,
};
use emberlm::engine::sampling::Sampling;
use emberlm::engine::speculate::{DraftContext, DraftOptions, DraftSource, HeadDrafts};
use emberlm::engine::{Model, Session, SessionOptions};
use emberlm::format::ModelFile;
use emberlm::model::Network;
use emberlm::quant::{TensorType, dequantize_row};
use serde_json::json;
use std::sync::{Arc, Mutex};

/// Families of which folders have heads.
pub const WITH_HEADS: [&str; 7] = [
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_next",
    "glm4",
    "glm4_moe",
    "deepseek_v3",
    "mimo",
];

/// How much less than otherwise layers add to the residual stream, so that the token decides what follows it, most of the time.
const WEAK: f32 = 0.05;

pub fn values(stored: &Stored) -> Vec<f32> {
    let mut values = vec![0.0; stored.shape.iter().product()];
    let ty = match &*stored.ty {
        "F16" => TensorType::F16,
        "F32" => TensorType::F32,
        other => panic!("{other}"),
    };
    dequantize_row(ty, &stored.bytes, &mut values);
    values
}

fn scaled(stored: &Stored, factor: f32) -> Stored {
    let values: Vec<f32> = values(stored).iter().map(|v| v * factor).collect();
    Stored::f32(&stored.shape, &values)
}

/// A folder of `data/families` with a head, of which the layer is that of another layer, spoiled. A head of GLM's or DeepSeek's has an
/// embedding and an output matrix of its own, if `own`.
pub fn folder(name: &str, own: bool) -> Folder {
    let mimo = name == "mimo";
    let mut folder = Folder::family(if mimo { "qwen2" } else { name });
    if mimo {
        folder.set("model_type", json!("mimo"));
        folder.set("architectures", json!(["MiMoForCausalLM"]));
    }
    let mut random = Random::new(7, name);
    let size = |key: &str| folder.config[key].as_u64().unwrap() as usize;
    let (hidden, n_layers) = (size("hidden_size"), size("num_hidden_layers"));
    let qwen = name.starts_with("qwen");
    // One that attends.
    let like = if qwen { 2 } else { n_layers - 1 };
    let like = match name {
        "qwen3_next" => (0..n_layers)
            .find(|layer| {
                folder
                    .tensors
                    .contains_key(&format!("model.layers.{layer}.self_attn.q_proj.weight"))
            })
            .unwrap(),
        _ => like,
    };
    let adds = [
        "o_proj.weight",
        "out_proj.weight",
        "down_proj.weight",
        "down_proj",
        // Behind these, of GLM 4.
        "post_self_attn_layernorm.weight",
        "post_mlp_layernorm.weight",
    ];
    for (name, stored) in &mut folder.tensors {
        if adds.iter().any(|end| name.ends_with(end)) {
            *stored = scaled(stored, WEAK);
        }
    }
    let layer = format!("model.layers.{like}.");
    let of_layer = |(name, stored): (&String, &Stored)| {
        Some((name.strip_prefix(&layer)?.to_owned(), stored.clone()))
    };
    let theirs: Vec<_> = folder.tensors.iter().filter_map(of_layer).collect();
    let head = match name {
        _ if qwen => "mtp.layers.0.".to_owned(),
        "mimo" => "model.mtp_layers.0.".to_owned(),
        _ => format!("model.layers.{n_layers}."),
    };
    for (part, stored) in theirs {
        let values: Vec<f32> = values(&stored)
            .iter()
            .map(|v| v * (1.0 + 0.2 * random.signed_unit()))
            .collect();
        let spoiled = Stored::f32(&stored.shape, &values);
        folder.tensors.insert(format!("{head}{part}"), spoiled);
    }
    // The embedding as it is, and a bit of the hidden state.
    let mut projection = vec![0.0; 2 * hidden * hidden];
    for (i, row) in projection.chunks_exact_mut(2 * hidden).enumerate() {
        let (token, state) = row.split_at_mut(hidden);
        // MiMo's takes the state first.
        let (token, state) = match mimo {
            true => (state, token),
            false => (token, state),
        };
        token[i] = 1.0;
        state
            .iter_mut()
            .for_each(|v| *v = 0.05 * random.signed_unit());
    }
    // Qwen's are stored less one.
    let one = if qwen { 0.0 } else { 1.0 };
    let mut norm = || -> Vec<f32> {
        (0..hidden)
            .map(|_| one + 0.2 * random.signed_unit())
            .collect()
    };
    let (token, state, last) = (norm(), norm(), norm());
    let beside = match name {
        _ if qwen => [
            "mtp.fc.weight",
            "mtp.pre_fc_norm_embedding.weight",
            "mtp.pre_fc_norm_hidden.weight",
            "mtp.norm.weight",
        ]
        .map(str::to_owned),
        "mimo" => [
            "input_proj",
            "token_layernorm",
            "hidden_layernorm",
            "final_layernorm",
        ]
        .map(|part| format!("{head}{part}.weight")),
        _ => ["eh_proj", "enorm", "hnorm", "shared_head.norm"]
            .map(|part| format!("{head}{part}.weight")),
    };
    let [p, t, s, l] = beside;
    folder
        .tensors
        .insert(p, Stored::f32(&[hidden, 2 * hidden], &projection));
    for (name, values) in [(t, token), (s, state), (l, last)] {
        folder.tensors.insert(name, Stored::f32(&[hidden], &values));
    }
    if own && !qwen && !mimo {
        for (own, theirs) in [
            ("embed_tokens", "model.embed_tokens.weight"),
            ("shared_head.head", "lm_head.weight"),
        ] {
            let spoiled: Vec<f32> = values(&folder.tensors[theirs])
                .iter()
                .map(|v| v * (1.0 + 0.1 * random.signed_unit()))
                .collect();
            let shape = folder.tensors[theirs].shape.clone();
            folder
                .tensors
                .insert(format!("{head}{own}.weight"), Stored::f32(&shape, &spoiled));
        }
    }
    if !qwen {
        folder.set("num_nextn_predict_layers", json!(1));
    }
    folder.set("max_position_embeddings", json!(8192));
    folder
}

/// The network of a file and its head.
pub fn networks(mut file: ModelFile) -> (Network, Network) {
    file.has_predictor = true;
    let mut network = Network::from_file(&file).unwrap();
    let head = network.predictor.take().unwrap();
    (network, (*head).clone())
}

/// What a head's layers begin with: of the hidden states of positions and the tokens behind them.
pub fn entered(head: &Network, states: &Rows, tokens: &[u32]) -> Rows {
    let entry = head.entry.as_ref().unwrap();
    let both = states.iter().zip(reference::embedded(head, tokens));
    let both = both.map(|(state, token)| {
        let token = reference::norm_row(&entry.token_norm, &token);
        let state = reference::norm_row(&entry.state_norm, state);
        [token, state].concat()
    });
    reference::linear(&entry.projection, &both.collect())
}

/// The logits of a head behind each token but the first, by the model's hidden states, and behind the last one those of `further`
/// tokens by the head's own.
pub fn logits(network: &Network, head: &Network, tokens: &[u32], further: &[u32]) -> Rows {
    let normed = |network: &Network, rows: &Rows| -> Rows {
        rows.iter()
            .map(|row| reference::norm_row(&network.final_norm, row))
            .collect()
    };
    let x = reference::embedded(network, tokens);
    let mut states = normed(network, &reference::residual(network, x, tokens));
    states.pop();
    let mut behind = tokens[1..].to_vec();
    for token in further.iter().map(Some).chain([None]) {
        let x = reference::residual(head, entered(head, &states, &behind), &behind);
        let own = normed(head, &x);
        if let Some(token) = token {
            states.push(own.last().unwrap().clone());
            behind.push(*token);
        } else {
            return reference::head(head, &x);
        }
    }
    unreachable!()
}

/// A runner whose hidden states are kept.
pub struct Kept {
    pub weights: Arc<dyn Weights>,
    pub runner: Box<dyn Runner>,
    pub states: Arc<HiddenStates>,
}

impl Kept {
    pub fn new(weights: Arc<dyn Weights>, options: &RunnerOptions) -> Kept {
        let mut runner = weights.clone().create_runner(options).unwrap();
        let states = weights.hidden_states(options.context).unwrap();
        runner.keep_states(Some(states.clone())).unwrap();
        Kept {
            weights,
            runner,
            states,
        }
    }

    /// The same with the residual stream at places.
    pub fn at(weights: &Arc<dyn Weights>, options: &RunnerOptions, places: &[usize]) -> Kept {
        let mut kept = Kept::new(weights.clone(), options);
        kept.states = weights.states_at(places, 64).unwrap();
        kept.runner.keep_states(Some(kept.states.clone())).unwrap();
        kept
    }

    pub fn submit(&mut self, tokens: &[u32], states: Option<(&HiddenStates, usize)>, want: Want) {
        let row = Row {
            runner: &mut *self.runner,
            tokens,
            want,
            mask: None,
            interrupt: &Default::default(),
            residual: Residual {
                input: states.map_or(TokenInput::Embeddings, |(states, position)| {
                    TokenInput::States(StatesFrom { states, position })
                }),
                output: None,
            },
        };
        self.weights.submit(&mut [row], When::Now).unwrap();
        match want {
            Want::Verified { .. } => while let Ok(Some(_)) = self.runner.poll(true) {},
            _ => assert_eq!(self.runner.poll(true).unwrap(), Some(Outcome::Logits)),
        }
    }

    pub fn state(&self, position: usize) -> Vec<f64> {
        let mut row = vec![0.0; self.states.width()];
        self.states.read(position, &mut row).unwrap();
        row.iter().map(|v| f64::from(*v)).collect()
    }

    pub fn logits(&mut self, n_vocab: usize) -> Vec<f32> {
        let mut logits = vec![f32::NAN; n_vocab];
        self.runner.logits(&mut logits).unwrap();
        logits
    }
}

/// Runners append a token each and choose what follows, all in one pass.
pub fn choose_together<const N: usize>(weights: &dyn Weights, members: [(&mut Kept, u32); N]) {
    let interrupt = Default::default();
    let tokens = members.each_ref().map(|(_, token)| [*token]);
    let mut at = tokens.iter();
    let mut rows = members.map(|(kept, _)| Row {
        runner: &mut *kept.runner,
        tokens: at.next().unwrap(),
        want: Want::Choices {
            count: 1,
            sampling: Sampling::GREEDY,
        },
        mask: None,
        interrupt: &interrupt,
        residual: Residual::default(),
    });
    weights.submit(&mut rows, When::Now).unwrap();
    for row in &mut rows {
        let outcome = row.runner.poll(true).unwrap();
        assert!(matches!(outcome, Some(Outcome::Token(_))));
    }
}

/// The hidden states that runners keep are those of one token after the other: also of verified drafts, and of sessions that
/// choose together.
pub fn states_agree(weights: &Arc<dyn Weights>, n_vocab: usize, kept: &dyn Fn() -> Kept) {
    // Drafts that are right.
    let mut tokens = vec![5u32, 17, 33, 80];
    let mut chosen = kept();
    chosen.submit(&tokens, None, Want::Logits);
    while tokens.len() < 8 {
        let logits = chosen.logits(n_vocab);
        let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
        tokens.push(best.unwrap() as u32);
        chosen.submit(&tokens[tokens.len() - 1..], None, Want::Logits);
    }
    let mut alone = kept();
    tokens
        .iter()
        .for_each(|t| alone.submit(&[*t], None, Want::Logits));
    let expected: Vec<_> = (0..tokens.len()).map(|p| alone.state(p)).collect();
    let mut drafted = kept();
    drafted.submit(&tokens[..3], None, Want::Logits);
    let want = Want::Verified {
        drafts: 4,
        sampling: Sampling::GREEDY,
    };
    drafted.submit(&tokens[3..], None, want);
    let [mut a, mut b] = [kept(), kept()];
    a.submit(&tokens[..4], None, Want::Logits);
    b.submit(&tokens[..2], None, Want::Logits);
    for i in 0..3 {
        choose_together(
            &**weights,
            [(&mut a, tokens[4 + i]), (&mut b, tokens[2 + i])],
        );
    }
    for (p, expected) in expected.iter().enumerate() {
        assert_eq!(&drafted.state(p), expected, "position {p}");
        if p < 5 {
            assert_eq!(&a.state(p), expected, "position {p}");
            assert_eq!(&b.state(p), expected, "position {p}");
        }
    }
}

fn largest_difference(ours: &[f32], theirs: &[f64]) -> f64 {
    let both = ours.iter().zip(theirs);
    both.map(|(a, b)| (f64::from(*a) - b).abs())
        .fold(0.0, f64::max)
}

/// Families with heads, and whether these have an embedding and an output matrix of their own.
pub fn variants() -> impl Iterator<Item = (&'static str, bool)> {
    let own = [("glm4_moe", true), ("deepseek_v3", true)];
    WITH_HEADS.map(|name| (name, false)).into_iter().chain(own)
}

/// The logits of a head of a network that `load` brings to a device, beside a reference in double precision: read in pieces, and
/// then from its own states.
pub fn agrees(
    name: &str,
    own: bool,
    options: &RunnerOptions,
    bound: f64,
    load: &dyn Fn(&Network) -> Arc<dyn Weights>,
) {
    let tokens = [5u32, 17, 33, 80, 2, 60, 61, 9, 9, 14, 70, 41];
    let further = [3u32, 50];
    {
        let (network, head) = networks(folder(name, own).ready());
        let expected = logits(&network, &head, &tokens, &further);
        let n_vocab = network.n_vocab;
        for pieces in [1, 5, 12] {
            let mut target = Kept::new(load(&network), options);
            for piece in tokens.chunks(pieces) {
                target.submit(piece, None, Want::Logits);
            }
            let predictor = target.weights.clone().load_predictor(&head).unwrap();
            let mut guesser = Kept::new(predictor, options);
            let mut at = 0;
            let mut largest = 0.0f64;
            let mut ours = Vec::new();
            for piece in tokens[1..].chunks(pieces) {
                guesser.submit(piece, Some((&target.states, at)), Want::Logits);
                at += piece.len();
                ours = guesser.logits(n_vocab);
                largest = largest.max(largest_difference(&ours, &expected[at - 1]));
            }
            assert_eq!(at, tokens.len() - 1);
            for token in further {
                let own = guesser.states.clone();
                guesser.submit(&[token], Some((&own, at - 1)), Want::Logits);
                ours = guesser.logits(n_vocab);
                largest = largest.max(largest_difference(&ours, &expected[at]));
                at += 1;
            }
            println!("{name}, pieces of {pieces}: largest difference {largest:.2e}");
            assert!(largest < bound, "{name}, pieces of {pieces}: {largest}");
            assert!(ours.iter().any(|v| v.abs() > 0.1));
        }
    }
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

/// Through rewinds, forks, evictions and erased tokens, drafts of a model of [`folder`] are those of a head that has read the whole
/// context, or as good but for `bound`.
pub fn drafts_are_right(model: &Arc<Model>, name: &str, kv_type: KvType, bound: f64) {
    let (network, head) = networks(folder(name, false).ready());
    drafts_agree(
        model,
        (name, kv_type, bound),
        &|session| Box::new(HeadDrafts::new(session).unwrap()),
        &|tokens, further| logits(&network, &head, tokens, further),
    );
}

/// The same of drafts of any head, given its logits behind all tokens of a context but the first, and behind `further` ones.
pub fn drafts_agree(
    model: &Arc<Model>,
    (name, kv_type, bound): (&str, KvType, f64),
    source: &dyn Fn(&Session) -> Box<dyn DraftSource>,
    logits: &dyn Fn(&[u32], &[u32]) -> Rows,
) {
    {
        let options = SessionOptions {
            context: 400,
            kv_type,
            ..Default::default()
        };
        let mut s = Session::create(model.clone(), &options).unwrap();
        let log = Arc::<Mutex<Vec<[Vec<u32>; 2]>>>::default();
        let source = Recorded {
            source: source(&s),
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
                let expected = logits(&tokens, &drafts[..drafts.len() - 1]);
                compared += drafts.len();
                for (i, draft) in drafts.iter().enumerate() {
                    let logits = &expected[tokens.len() - 2 + i];
                    let best = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let short = best - logits[*draft as usize];
                    assert!(
                        short < bound,
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
