//! Heads of EAGLE-3: tiny random ones, as folders in the layouts that are published, and what they compute in double precision.

use super::folder::{Folder, Stored};
use super::heads::{Kept, drafts_agree, values};
use super::reference_llama::{self as reference, Rows};
use super::repository_file;
use super::tiny::Random;
use emberlm::backend::{KvType, RunnerOptions, Want, Weights};
use emberlm::engine::Model;
use emberlm::engine::speculate::HeadDrafts;
use emberlm::format::{ModelFile, WeightType};
use emberlm::model::Network;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Layouts of heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    SpecForge,
    Speculators,
}

/// The heads of `data/eagle3/make.py`: their tokens, those that follow, and theirs of each head.
pub const TOKENS: [u32; 9] = [5, 17, 33, 8, 2, 21, 9, 9, 14];
pub const FURTHER: [u32; 2] = [3, 30];
pub const DRAFTED: [u32; 12] = [1, 2, 3, 7, 9, 14, 17, 20, 21, 30, 33, 39];

/// Sizes of a head.
struct Sizes {
    hidden: usize,
    target: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    n_ff: usize,
    n_vocab: usize,
}

fn seeded(name: &str, shape: &[usize], scale: f32, more: f32) -> Stored {
    let mut random = Random::new(1, name);
    let count = shape.iter().product();
    let values: Vec<f32> = (0..count)
        .map(|_| random.signed_unit() * scale + more)
        .collect();
    Stored::f32(shape, &values)
}

fn d2t(ids: &[u32]) -> Stored {
    let more = ids
        .iter()
        .enumerate()
        .map(|(row, id)| i64::from(*id) - row as i64);
    Stored {
        ty: "I64".into(),
        shape: vec![ids.len()],
        bytes: more.flat_map(i64::to_le_bytes).collect(),
    }
}

fn t2d(ids: &[u32], n_vocab: usize) -> Stored {
    Stored {
        ty: "BOOL".into(),
        shape: vec![n_vocab],
        bytes: (0..n_vocab as u32)
            .map(|t| ids.contains(&t).into())
            .collect(),
    }
}

/// A head whose weights are seeded by their names.
fn random_head(form: Form, s: &Sizes, ids: &[u32]) -> Folder {
    let layer = match form {
        Form::SpecForge => "midlayer",
        Form::Speculators => "layers.0",
    };
    let (q, kv) = (s.heads * s.head_dim, s.kv_heads * s.head_dim);
    let mut tensors = BTreeMap::new();
    let mut add = |name: String, shape: &[usize], scale: f32, more: f32| {
        let stored = seeded(&name, shape, scale, more);
        tensors.insert(name, stored);
    };
    add("fc.weight".into(), &[s.hidden, 3 * s.target], 0.25, 0.0);
    for (part, rows, columns) in [
        ("self_attn.q_proj", q, 2 * s.hidden),
        ("self_attn.k_proj", kv, 2 * s.hidden),
        ("self_attn.v_proj", kv, 2 * s.hidden),
        ("self_attn.o_proj", s.hidden, q),
        ("mlp.gate_proj", s.n_ff, s.hidden),
        ("mlp.up_proj", s.n_ff, s.hidden),
        ("mlp.down_proj", s.hidden, s.n_ff),
    ] {
        add(
            format!("{layer}.{part}.weight"),
            &[rows, columns],
            0.25,
            0.0,
        );
        if form == Form::Speculators && part.starts_with("self_attn") {
            add(format!("{layer}.{part}.bias"), &[rows], 0.25, 0.0);
        }
    }
    for part in ["input_layernorm", "hidden_norm", "post_attention_layernorm"] {
        add(format!("{layer}.{part}.weight"), &[s.hidden], 0.2, 1.0);
    }
    add("norm.weight".into(), &[s.hidden], 0.2, 1.0);
    add("lm_head.weight".into(), &[ids.len(), s.hidden], 0.25, 0.0);
    add(
        "embed_tokens.weight".into(),
        &[s.n_vocab, s.hidden],
        1.0,
        0.0,
    );
    let of_layer = json!({
        "model_type": "llama", "hidden_size": s.hidden, "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads, "head_dim": s.head_dim, "intermediate_size": s.n_ff,
        "num_hidden_layers": 1, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "max_position_embeddings": 8192, "vocab_size": s.n_vocab,
    });
    let mut config = Map::new();
    match form {
        Form::SpecForge => {
            config = of_layer.as_object().unwrap().clone();
            config.insert("architectures".into(), json!(["LlamaForCausalLMEagle3"]));
            config.insert("target_hidden_size".into(), json!(s.target));
            tensors.insert("d2t".into(), d2t(ids));
            tensors.insert("t2d".into(), t2d(ids, s.n_vocab));
        }
        Form::Speculators => {
            config.insert("architectures".into(), json!(["Eagle3Speculator"]));
            config.insert("speculators_model_type".into(), json!("eagle3"));
            config.insert("norm_before_residual".into(), json!(true));
            config.insert("target_hidden_size".into(), json!(s.target));
            config.insert("transformer_layer_config".into(), of_layer);
        }
    }
    config.insert("draft_vocab_size".into(), json!(ids.len()));
    Folder { config, tensors }
}

/// The heads of `data/eagle3/make.py`.
pub fn published(form: Form) -> Folder {
    let sizes = Sizes {
        hidden: 24,
        target: 24,
        heads: 3,
        kv_heads: 3,
        head_dim: 8,
        n_ff: 28,
        n_vocab: 40,
    };
    match form {
        Form::SpecForge => random_head(form, &sizes, &DRAFTED),
        Form::Speculators => {
            let sizes = Sizes {
                target: 16,
                heads: 4,
                kv_heads: 2,
                head_dim: 10,
                n_ff: 20,
                ..sizes
            };
            random_head(form, &sizes, &(0..40).collect::<Vec<_>>())
        }
    }
}

/// Models that heads draft for.
pub const TARGETS: [&str; 3] = ["olmo3", "glm4_moe", "qwen3_5"];

/// A folder of `data/families` whose layers add little to the residual stream, so that the token decides what follows it, most of the time.
pub fn target(name: &str) -> Folder {
    let mut folder = Folder::family(name);
    let adds = [
        "o_proj.weight",
        "out_proj.weight",
        "down_proj.weight",
        // Behind these, of OLMo.
        "post_attention_layernorm.weight",
        "post_feedforward_layernorm.weight",
    ];
    for (tensor, stored) in &mut folder.tensors {
        let late = tensor.ends_with("layernorm.weight");
        if adds.iter().any(|end| tensor.ends_with(end)) && (!late || name == "olmo3") {
            let weak: Vec<f32> = values(stored).iter().map(|v| v * 0.05).collect();
            *stored = Stored::f32(&stored.shape, &weak);
        }
    }
    folder.set("max_position_embeddings", json!(8192));
    folder
}

/// A head for one of them, which is right now and then: each position attends to itself most, and hands on the embedding of its token. It knows
/// three of four tokens.
pub fn head_for(name: &str, form: Form) -> Folder {
    let of = target(name);
    let size = |key: &str| of.config[key].as_u64().unwrap() as usize;
    let (hidden, n_vocab) = (size("hidden_size"), size("vocab_size"));
    let sizes = Sizes {
        hidden,
        target: hidden,
        heads: 2,
        kv_heads: 2,
        head_dim: hidden / 2,
        n_ff: 20,
        n_vocab,
    };
    let ids: Vec<u32> = match form {
        Form::SpecForge => (0..n_vocab as u32).filter(|id| id % 4 != 3).collect(),
        Form::Speculators => (0..n_vocab as u32).collect(),
    };
    let mut folder = random_head(form, &sizes, &ids);
    let theirs = |name: &str| values(&of.tensors[name]);
    for (name, stored) in &mut folder.tensors {
        let scale = match () {
            () if name.ends_with("bias") => 0.02,
            () if ["self_attn", "fc."].iter().any(|part| name.contains(part)) => 0.05,
            () if name.contains("down_proj") => 0.1,
            () => continue,
        };
        let mut all: Vec<f32> = values(stored).iter().map(|v| v * scale).collect();
        let columns = *stored.shape.last().unwrap();
        let identity = match () {
            () if name.ends_with("q_proj.weight") || name.ends_with("k_proj.weight") => 3.0,
            () if name.ends_with("v_proj.weight") || name.ends_with("o_proj.weight") => 1.0,
            () => 0.0,
        };
        if identity > 0.0 {
            for (i, row) in all.chunks_exact_mut(columns).enumerate() {
                row[i] += identity;
            }
        }
        *stored = Stored::f32(&stored.shape, &all);
    }
    let embedding = theirs("model.embed_tokens.weight");
    let output = match of.tensors.contains_key("lm_head.weight") {
        true => theirs("lm_head.weight"),
        false => embedding.clone(),
    };
    let rows: Vec<f32> = ids
        .iter()
        .flat_map(|id| &output[*id as usize * hidden..][..hidden])
        .copied()
        .collect();
    let output = Stored::f32(&[ids.len(), hidden], &rows);
    folder.tensors.insert("lm_head.weight".into(), output);
    match form {
        // The model's is to take its place.
        Form::SpecForge => drop(folder.tensors.remove("embed_tokens.weight")),
        Form::Speculators => {
            let own = Stored::f32(&[n_vocab, hidden], &embedding);
            folder.tensors.insert("embed_tokens.weight".into(), own);
            folder.set(PLACES, json!([1, 2, size("num_hidden_layers")]));
        }
    }
    folder
}

/// The key of the places that a head reads.
pub const PLACES: &str = "eagle_aux_hidden_state_layer_ids";

/// Sets the places as SGLang writes them, of whose layers the one before is meant.
pub fn set_nested_places(folder: &mut Folder, places: Value) {
    folder.set("eagle_config", json!({ PLACES: places }));
}

/// The head's network with the model's embedding, if it has none.
pub fn network_beside(head: &Network, target: &Network) -> Network {
    let mut head = head.clone();
    if !head.fusion().unwrap().own_embedding {
        head.embedding = target.embedding.clone();
    }
    head
}

/// What a head reads of a model: of each token, the residual stream at its places, one behind the other.
pub fn states(target: &Network, places: [usize; 3], tokens: &[u32]) -> Rows {
    let at = |place: usize| {
        let mut below = target.clone();
        below.blocks.truncate(place);
        reference::residual(&below, reference::embedded(target, tokens), tokens)
    };
    let parts = places.map(at);
    (0..tokens.len())
        .map(|t| parts.iter().flat_map(|part| part[t].clone()).collect())
        .collect()
}

/// The logits of a head behind each of `tokens`, whose positions have these states, and behind the last one those of `further` tokens by
/// its own. Tokens that it does not know have minus infinity.
pub fn logits(head: &Network, states: &Rows, tokens: &[u32], further: &[u32]) -> Rows {
    let entry = head.entry.as_ref().unwrap();
    let fusion = entry.fusion.as_ref().unwrap();
    let mut x = reference::linear(&entry.projection, states);
    let mut behind = tokens.to_vec();
    for next in further.iter().map(Some).chain([None]) {
        let embedded = reference::embedded(head, &behind);
        let normed: Rows = x
            .iter()
            .map(|row| reference::norm_row(&entry.state_norm, row))
            .collect();
        let both = embedded.iter().zip(&normed);
        let joined: Rows = both
            .map(|(token, state)| {
                [reference::norm_row(&entry.token_norm, token), state.clone()].concat()
            })
            .collect();
        let mut out = match fusion.normed_stream {
            true => normed,
            false => x.clone(),
        };
        let attended = reference::attention_part(&head.blocks[0], &joined, &mut Vec::new());
        for (out, attended) in out.iter_mut().zip(attended) {
            out.iter_mut().zip(attended).for_each(|(a, b)| *a += b);
        }
        reference::add_feed_forward(&head.blocks[0], &mut out);
        if let Some(token) = next {
            x.push(out.last().unwrap().clone());
            behind.push(*token);
            continue;
        }
        let known = reference::head(head, &out);
        let Some(ids) = &fusion.ids else {
            return known;
        };
        let spread = |row: Vec<f64>| {
            let mut all = vec![f64::NEG_INFINITY; head.n_vocab];
            for (id, logit) in ids.iter().zip(row) {
                all[*id as usize] = logit;
            }
            all
        };
        return known.into_iter().map(spread).collect();
    }
    unreachable!()
}

fn largest_difference(ours: &[f32], theirs: &[f64]) -> f64 {
    let both = ours.iter().map(|v| f64::from(*v)).zip(theirs);
    // Tokens that a head does not know.
    both.filter(|(a, b)| *a != f64::NEG_INFINITY || **b != f64::NEG_INFINITY)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f64::max)
}

/// A runner of a head, whose own states are kept.
pub fn of_head(weights: Arc<dyn Weights>, options: &RunnerOptions) -> Kept {
    let mut runner = weights.clone().create_runner(options).unwrap();
    let states = weights.states_at(&[1], options.context).unwrap();
    runner.keep_states(Some(states.clone())).unwrap();
    Kept {
        weights,
        runner,
        states,
    }
}

/// A random head for a model of that width and vocabulary, which has no embedding in the layout of SpecForge. It knows three of four tokens.
pub fn random_for(form: Form, hidden: usize, n_vocab: usize) -> Folder {
    let sizes = Sizes {
        hidden,
        target: hidden,
        heads: 4,
        kv_heads: 2,
        head_dim: hidden / 4,
        n_ff: 2 * hidden,
        n_vocab,
    };
    let ids: Vec<u32> = (0..n_vocab as u32).filter(|id| id % 4 != 3).collect();
    let mut folder = random_head(form, &sizes, &ids);
    for (name, stored) in &mut folder.tensors {
        // No position has all the weight.
        if ["q_proj.weight", "k_proj.weight"]
            .iter()
            .any(|end| name.ends_with(end))
        {
            let weak: Vec<f32> = values(stored).iter().map(|v| v * 0.2).collect();
            *stored = Stored::f32(&stored.shape, &weak);
        }
    }
    if form == Form::SpecForge {
        folder.tensors.remove("embed_tokens.weight");
    } else {
        folder.tensors.insert("d2t".into(), d2t(&ids));
    }
    folder
}

/// What heads are compared behind, and from their own states.
const KNOWN: [u32; 12] = [5, 17, 33, 80, 2, 60, 61, 9, 9, 14, 70, 41];
const FURTHER_KNOWN: [u32; 2] = [3, 50];

/// Hidden states of [`KNOWN`], which a model reads in pieces of so many tokens.
fn kept_in_pieces(
    weights: Arc<dyn Weights>,
    (places, options): ([usize; 3], &RunnerOptions),
    pieces: usize,
) -> (Kept, Rows) {
    let mut kept = Kept::at(&weights, options, &places);
    for piece in KNOWN.chunks(pieces) {
        kept.submit(piece, None, Want::Logits);
    }
    let rows = (0..KNOWN.len()).map(|p| kept.state(p)).collect();
    (kept, rows)
}

/// By how much at most the logits of a head beside a model with these states differ from those that are expected.
fn differs(
    kept: &Kept,
    head: &Network,
    expected: &Rows,
    (options, pieces): (&RunnerOptions, usize),
) -> f64 {
    let beside = kept.weights.clone().load_predictor(head).unwrap();
    let mut guesser = of_head(beside, options);
    let (mut at, mut largest) = (0, 0.0f64);
    for piece in KNOWN[1..].chunks(pieces) {
        guesser.submit(piece, Some((&kept.states, at)), Want::Logits);
        at += piece.len();
        let ours = guesser.logits(head.n_vocab);
        largest = largest.max(largest_difference(&ours, &expected[at - 1]));
    }
    for token in FURTHER_KNOWN {
        let own = guesser.states.clone();
        guesser.submit(&[token], Some((&own, at - 1)), Want::Logits);
        let ours = guesser.logits(head.n_vocab);
        largest = largest.max(largest_difference(&ours, &expected[at]));
        at += 1;
    }
    largest
}

fn places_of(head: &Network, target: &Network) -> [usize; 3] {
    let fusion = head.fusion().unwrap();
    fusion.places_in(target.blocks.len()).unwrap()
}

/// A model, and a head for it.
fn networks(name: &str, form: Form) -> (Network, Network) {
    let ready = |folder: &Folder| Network::from_file(&folder.ready()).unwrap();
    (ready(&target(name)), ready(&head_for(name, form)))
}

/// Through rewinds, forks, evictions and erased tokens, the drafts of a model's head in the layout of SpecForge are those of the reference,
/// within a bound of logits.
pub fn drafts_are_right(
    (model, head): (&Arc<Model>, &Arc<Model>),
    name: &str,
    kv_type: KvType,
    bound: f64,
) {
    let (target, network) = networks(name, Form::SpecForge);
    let network = network_beside(&network, &target);
    let places = places_of(&network, &target);
    drafts_agree(
        model,
        (name, kv_type, bound),
        &|session| Box::new(HeadDrafts::fused(session, head).unwrap()),
        &|tokens, further| {
            let mut read = states(&target, places, tokens);
            read.pop();
            logits(&network, &read, &tokens[1..], further)
        },
    );
}

/// Heads in the types that models are quantized to, for hamlet, which `load` brings to a device. See [`agrees_by_its_states`].
pub fn quantized_agree(
    options: &RunnerOptions,
    bound: f64,
    load: &dyn Fn(&Network) -> Arc<dyn Weights>,
) {
    let file = ModelFile::open(&repository_file("models/hamlet-7m-Q4_K_M.gguf")).unwrap();
    let target = Network::from_file(&file).unwrap();
    let weights = load(&target);
    for (form, ty) in [
        (Form::SpecForge, WeightType::Q8_0),
        (Form::Speculators, WeightType::Q4K),
        (Form::SpecForge, WeightType::BF16),
    ] {
        let head = random_for(form, target.hidden, target.n_vocab);
        let head = head.open().unwrap().with_weights(ty).unwrap();
        head.make(2, &mut |_| Ok(())).unwrap();
        let head = Network::from_file(&head).unwrap();
        let what = format!("{form:?}, {ty:?}");
        agrees_by_its_states(&what, (&target, &head), options, bound, &weights);
    }
}

/// The hidden states at several places of a model that `load` brings to a device, and the logits of a head for it, beside a reference in
/// double precision: read in pieces, and then from its own states. `bounds` are those of states and of logits.
pub fn agrees(
    (name, form): (&str, Form),
    options: &RunnerOptions,
    bounds: [f64; 2],
    load: &dyn Fn(&Network) -> Arc<dyn Weights>,
) {
    let (target, head) = networks(name, form);
    let beside = network_beside(&head, &target);
    let places = places_of(&head, &target);
    let read = states(&target, places, &KNOWN);
    let last = KNOWN.len() - 1;
    let expected = logits(&beside, &read[..last].to_vec(), &KNOWN[1..], &FURTHER_KNOWN);
    for pieces in [1, 5, 12] {
        let (kept, rows) = kept_in_pieces(load(&target), (places, options), pieces);
        let both = rows.iter().flatten().zip(read.iter().flatten());
        let of_states = both.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        let of_logits = differs(&kept, &head, &expected, (options, pieces));
        let what = format!("{name}, {form:?}, pieces of {pieces}");
        println!("{what}: largest differences {of_states:.1e} and {of_logits:.1e}");
        assert!(of_states < bounds[0] && of_logits < bounds[1], "{what}");
    }
}

/// The logits of a head in any types beside a reference that has the states of the device, as shares of the largest one.
fn agrees_by_its_states(
    what: &str,
    (target, head): (&Network, &Network),
    options: &RunnerOptions,
    bound: f64,
    weights: &Arc<dyn Weights>,
) {
    let beside = network_beside(head, target);
    let places = places_of(head, target);
    for pieces in [1, 5, 12] {
        let (kept, mut rows) = kept_in_pieces(weights.clone(), (places, options), pieces);
        rows.pop();
        let expected = logits(&beside, &rows, &KNOWN[1..], &FURTHER_KNOWN);
        let all = expected.iter().flatten().filter(|v| v.is_finite());
        let most = all.fold(0.0f64, |most, v| most.max(v.abs()));
        let share = differs(&kept, head, &expected, (options, pieces)) / most;
        println!("{what}, pieces of {pieces}: largest differences {share:.1e} of {most:.1}");
        assert!(share < bound, "{what}, pieces of {pieces}: {share}");
    }
}

/// What a network makes is the same whatever the unit of its residual stream, and so are the hidden states that it hands out: up to `bound` of the
/// largest number.
pub fn units_agree(
    options: &RunnerOptions,
    bound: f64,
    load: &dyn Fn(&Network) -> Arc<dyn Weights>,
) {
    const TEXT: [u32; 6] = [5, 17, 33, 80, 2, 60];
    let scaled = Network::from_file(&Folder::family("granite").ready()).unwrap();
    let unit = scaled.residual_unit;
    assert_ne!(unit, 1.0);
    let mut plain = scaled.clone();
    plain.residual_unit = 1.0;
    plain.embedding_scale *= unit;
    plain.final_norm.eps *= unit * unit;
    for block in &mut plain.blocks {
        assert_eq!(block.residual_scale, 1.0);
        block.residual_scale = unit;
        for norm in [&mut block.mixer_norm, &mut block.feed_forward_norm] {
            norm.as_mut().unwrap().eps *= unit * unit;
        }
    }
    let places: Vec<usize> = (0..=plain.blocks.len()).collect();
    let of = |network: &Network| {
        let mut kept = Kept::at(&load(network), options, &places);
        // A chunk, and a step.
        kept.submit(&TEXT[..5], None, Want::Logits);
        kept.submit(&TEXT[5..], None, Want::Logits);
        let mut rows: Vec<_> = (0..TEXT.len()).map(|p| kept.state(p)).collect();
        let logits = kept.logits(network.n_vocab);
        rows.push(logits.iter().map(|v| f64::from(*v)).collect());
        rows
    };
    for (i, (ours, plain)) in of(&scaled).iter().zip(&of(&plain)).enumerate() {
        let largest = plain.iter().fold(0.0, |most: f64, v| most.max(v.abs()));
        let both = ours.iter().zip(plain).map(|(a, b)| (a - b).abs());
        let error = both.fold(0.0, f64::max) / largest;
        assert!(error < bound, "row {i}: {error}");
    }
}
