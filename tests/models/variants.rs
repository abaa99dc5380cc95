//! Families that others become with a few tensors or keys more: against the plain evaluation of their networks, as GGUF files and as
//! folders.

use crate::common::edit::EditedTensor;
use crate::common::folder::{Folder, Stored};
use crate::common::reference_llama;
use crate::common::tiny::Random;
use crate::common::variants::{
    Both, LAYERS, command_r_plus, flags, laguna, mimo_v2, numbers, phi_moe, wide_laguna,
    wide_mimo_v2,
};
use crate::common::work::Driven;
use emberlm::Status;
use emberlm::backend::cpu::CpuWeights;
use emberlm::backend::{KvType, Weights};
use emberlm::format::{Array, ModelFile, Value, WeightType};
use emberlm::model::{FeedForward, Mixer, Network, Scoring};
use emberlm::quant::TensorType;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const N_TOKENS: usize = 40;

/// The network of a folder, with weights in F32.
pub fn network_of(folder: &Folder) -> Network {
    let file = folder.open().unwrap();
    let file = file.with_weights(WeightType::F32).unwrap();
    file.make(1, &mut |_| Ok(())).unwrap();
    Network::from_file(&file).unwrap()
}

impl Both {
    fn network_of_folder(&self) -> Network {
        network_of(&self.folder)
    }

    /// Compares all logits of both with the plain evaluation, and those of a folder to the bit with the file's where rows are in the
    /// same order. Returns the network of the file.
    pub fn check(&self, architecture: &str, same_order: bool) -> Network {
        let of_file = Network::from_file(&self.file.open()).unwrap();
        let bits = agrees(&of_file);
        let of_folder = self.network_of_folder();
        assert_eq!(of_folder.architecture, architecture);
        assert_eq!(of_file.architecture, architecture);
        assert!(agrees(&of_folder) == bits || !same_order);
        of_file
    }

    /// What is wrong with the file, and with the folder, without these of their tensors.
    pub fn without(&self, gguf: &str, folder: &str) {
        let mut file = self.file.clone();
        file.tensors.remove(gguf).unwrap();
        let e = Network::from_file(&file.open()).unwrap_err();
        assert_eq!(e.status, Status::MissingTensor, "{e}");
        assert!(e.message.contains(gguf), "{e}");
        let mut without = self.folder.clone();
        without.tensors.remove(folder).unwrap();
        let e = match without.open() {
            Ok(file) => Network::from_file(&file).unwrap_err(),
            Err(e) => e,
        };
        assert_eq!(e.status, Status::MissingTensor, "{e}");
    }

    /// The error of the file with a key of its architecture changed.
    pub fn refused(&self, key: &str, value: impl Into<Value>, status: Status) {
        let mut file = self.file.clone();
        file.set(key, value);
        let e = Network::from_file(&file.open()).unwrap_err();
        assert_eq!(e.status, status, "{e}");
        assert!(e.message.contains(key), "{key}: {e}");
    }

    /// The error of the folder with a key of its config changed.
    fn config_refused(&self, key: &str, value: serde_json::Value, status: Status) {
        let mut folder = self.folder.clone();
        folder.set(key, value);
        let file: Result<ModelFile, _> = folder.open();
        let e = match file {
            Ok(file) => Network::from_file(&file).unwrap_err(),
            Err(e) => e,
        };
        assert_eq!(e.status, status, "{e}");
        assert!(e.message.contains(key), "{key}: {e}");
    }
}

/// The last logits of a text in several pieces, and in one, which are those of the plain evaluation.
pub fn agrees(network: &Network) -> Vec<u32> {
    agrees_over(network, N_TOKENS)
}

/// The same of a text of that length.
pub fn agrees_over(network: &Network, n_tokens: usize) -> Vec<u32> {
    let mut random = Random::new(3, "tokens of variants");
    let token = |_| (random.bits() % network.n_vocab as u64) as u32;
    let tokens: Vec<u32> = (0..n_tokens).map(token).collect();
    let expected = reference_llama::logits(network, &tokens);
    let largest = expected.iter().flatten().fold(0f64, |a, b| a.max(b.abs()));
    let weights: Arc<dyn Weights> = CpuWeights::load(network, 2, &mut |_| Ok(())).unwrap();
    let mut bits = Vec::new();
    for piece in [1, 7, n_tokens] {
        let mut runner = Driven::with_context(&weights, n_tokens, KvType::F32);
        let mut out = vec![0.0; network.n_vocab];
        let mut seen = 0;
        for piece in tokens.chunks(piece) {
            runner
                .extend(piece, &Arc::new(AtomicBool::new(false)))
                .unwrap();
            runner.logits(&mut out).unwrap();
            seen += piece.len();
            for (ours, exact) in out.iter().zip(&expected[seen - 1]) {
                let error = (f64::from(*ours) - exact).abs() / largest;
                assert!(error < 1e-4, "{}: {error}", network.architecture);
            }
        }
        let last: Vec<u32> = out.iter().map(|x| x.to_bits()).collect();
        assert!(bits.is_empty() || bits == last);
        bits = last;
    }
    bits
}

#[test]
fn command_r_plus_norms_each_head_by_weights_of_its_own() {
    let mut model = command_r_plus();
    let network = model.check("command-r", true);
    let Mixer::Attention(attention) = &network.blocks[1].mixer else {
        panic!("no attention");
    };
    assert!(attention.own_head_norms);
    for part in ["q", "k"] {
        let gguf = format!("blk.1.attn_{part}_norm.weight");
        let stored = format!("model.layers.1.self_attn.{part}_norm.weight");
        model.without(&gguf, &stored);
        let mut wrong = model.file.clone();
        let tensor = wrong.tensors.get_mut(&gguf).unwrap();
        tensor.dims[0] -= 1;
        let len = tensor.bytes.len() / 16 * 15;
        tensor.bytes.truncate(len);
        let e = Network::from_file(&wrong.open()).unwrap_err();
        assert_eq!(e.status, Status::ShapeMismatch, "{e}");
        assert!(e.message.contains(&gguf), "{e}");
    }
    // The config says that there are norms.
    model.remove("_norm.weight", "_norm.weight");
    model.config_refused("use_qk_norm", json!(3), Status::InvalidModel);
    let e = Network::from_file(&model.folder.open().unwrap()).unwrap_err();
    assert_eq!(e.status, Status::MissingTensor, "{e}");
}

#[test]
fn phi_moe_weighs_two_experts_by_what_is_near_them() {
    let mut model = phi_moe();
    let jitter = |network: &Network| match &network.blocks[0].feed_forward.experts() {
        Some(experts) => experts.scoring,
        None => panic!("no experts"),
    };
    let network = model.check("phimoe", false);
    assert_eq!(jitter(&network), Scoring::SparseMixer { jitter: 0.01 });
    let of_folder = jitter(&model.network_of_folder());
    assert_eq!(of_folder, Scoring::SparseMixer { jitter: 0.3 });
    model.without(
        "blk.1.ffn_gate_inp.weight",
        "model.layers.1.block_sparse_moe.gate.weight",
    );
    model.refused("phimoe.expert_used_count", 3u32, Status::Unsupported);
    model.config_refused("num_experts_per_tok", json!(1), Status::Unsupported);
    model.config_refused("router_jitter_noise", json!(-0.1), Status::InvalidModel);
    let scaling = |long: f64| {
        json!({"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 16,
            "short_factor": vec![1.0; 8], "long_factor": vec![2.0; 8], "short_mscale": 1.25, "long_mscale": long})
    };
    model.folder.set("rope_parameters", scaling(1.25));
    let network = model.network_of_folder();
    agrees(&network);
    assert_eq!(network.blocks[0].mixer.rope().unwrap().magnitude, 1.25);
    let mut folder = model.folder.clone();
    folder.set("rope_parameters", scaling(1.5));
    let e = folder.open().unwrap_err();
    assert_eq!(e.status, Status::Unsupported, "{e}");
    assert!(e.message.contains("long_mscale"), "{e}");
}

/// Converters write Phi 3's factor, which is not the one that this model was trained with.
#[test]
fn phi_3_5_moe_has_a_factor_of_its_own() {
    let mut model = Both::of("mixtral", "phimoe", "phimoe", "PhiMoEForCausalLM");
    for (name, factor) in [("short", 1.0f32), ("long", 2.0)] {
        let tensor = EditedTensor {
            ty: TensorType::F32,
            dims: vec![8],
            bytes: [factor; 8].iter().flat_map(|v| v.to_le_bytes()).collect(),
        };
        let name = format!("rope_factors_{name}.weight");
        model.file.tensors.insert(name, tensor);
    }
    let mut magnitude = |original: u32, factor: f32| {
        let file = &mut model.file;
        file.set("phimoe.rope.scaling.original_context_length", original);
        file.set("phimoe.rope.scaling.attn_factor", factor);
        let network = Network::from_file(&file.open()).unwrap();
        network.blocks[1].mixer.rope().unwrap().magnitude
    };
    assert_eq!(magnitude(4096, 1.190_238), 1.243_163_1);
    assert_eq!(magnitude(4096, 1.1), 1.1);
    assert_eq!(magnitude(2048, 1.190_238), 1.190_238);
}

#[test]
fn granite_has_windows_sinks_and_layers_that_do_not_rotate() {
    let class = "GraniteSWAForCausalLM";
    let mut model = Both::of("granite", "granite_swa", "granite_swa", class);
    model.set("attn_sinks.weight", "self_attn.sinks", &[3], 0.5);
    model.file.set("granite_swa.attention.sliding_window", 5u32);
    let pattern = "granite_swa.attention.sliding_window_pattern";
    model.file.set(pattern, flags([true, false]));
    model
        .file
        .set("granite_swa.attention.rope_pattern", flags([false, true]));
    model.folder.set("sliding_window", json!(5));
    let types = json!(["sliding_attention", "full_attention"]);
    model.folder.set("layer_types", types);
    model.folder.set("layer_rope_theta", json!([0, 10_000.0]));
    let network = model.check("granite_swa", true);
    let attention = |layer: usize| network.blocks[layer].mixer.as_attention().unwrap();
    assert_eq!(attention(0).window, Some(5));
    assert_eq!(attention(1).window, None);
    assert!(attention(0).rope.is_none() && attention(1).rope.is_some());
    model.without("blk.0.attn_sinks.weight", "model.layers.0.self_attn.sinks");
    model.refused(
        "granite_swa.attention.rope_pattern",
        Value::Array(Array::Bool(vec![true])),
        Status::InvalidModel,
    );
    model.refused(
        pattern,
        Value::Array(Array::Bool(vec![true])),
        Status::InvalidModel,
    );
    model.refused(
        pattern,
        Value::Array(Array::I64(vec![2, 0])),
        Status::InvalidModel,
    );
    for (bases, status) in [
        (json!([1e4]), Status::InvalidModel),
        (json!([1e4, -1.0]), Status::InvalidModel),
        (json!([1e4, 2e4]), Status::Unsupported),
    ] {
        model.config_refused("layer_rope_theta", bases, status);
    }
    model.folder.config.remove("layer_rope_theta");
    model.config_refused("no_rope_layers", json!([0, 2]), Status::InvalidModel);
    model.config_refused("sliding_window", json!(0), Status::InvalidModel);
}

#[test]
fn experts_of_granite_with_windows_may_have_a_shared_one() {
    let class = "GraniteMoeSWAForCausalLM";
    let mut model = Both::of("granite_moe", "granite_swa", "granitemoe_swa", class);
    model.set("attn_sinks.weight", "self_attn.sinks", &[3], 0.5);
    model.set(
        "ffn_up_shexp.weight",
        "shared_mlp.input_linear.weight",
        &[48, 24],
        0.0,
    );
    model.set(
        "ffn_down_shexp.weight",
        "shared_mlp.output_linear.weight",
        &[12, 48],
        0.0,
    );
    model.file.set("granite_swa.attention.sliding_window", 5u32);
    // As some converters write them.
    let pattern = Value::Array(Array::I64(vec![0, 1]));
    let key = "granite_swa.attention.sliding_window_pattern";
    model.file.set(key, pattern);
    model
        .file
        .set("granite_swa.expert_shared_feed_forward_length", 12u32);
    model.file.fuse_experts();
    model.folder.set("sliding_window", json!(5));
    model.folder.set("shared_intermediate_size", json!(12));
    model.check("granite_swa", true);
    model.without(
        "blk.1.ffn_up_shexp.weight",
        "model.layers.1.shared_mlp.input_linear.weight",
    );
    model.without(
        "blk.0.ffn_down_shexp.weight",
        "model.layers.0.shared_mlp.output_linear.weight",
    );
}

#[test]
fn folders_of_granite_with_a_shared_expert_are_its_files() {
    let class = "GraniteMoeSharedForCausalLM";
    let mut model = Both::of("granite_moe", "granitemoe", "granitemoeshared", class);
    for (part, at, rows) in [("gate", 0, 12), ("up", 12, 12)] {
        for layer in 0..LAYERS {
            let both = numbers(&format!("shared {layer}"), 48 * 24, 0.0);
            let values = &both[48 * at..48 * (at + rows)];
            let tensor = EditedTensor {
                ty: TensorType::F32,
                dims: vec![48, rows],
                bytes: values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            };
            let name = format!("blk.{layer}.ffn_{part}_shexp.weight");
            model.file.tensors.insert(name, tensor);
            let name = format!("model.layers.{layer}.shared_mlp.input_linear.weight");
            let stored = Stored::f32(&[24, 48], &both);
            model.folder.tensors.insert(name, stored);
        }
    }
    let down = "shared_mlp.output_linear.weight";
    model.set("ffn_down_shexp.weight", down, &[12, 48], 0.0);
    let key = "granitemoe.expert_shared_feed_forward_length";
    model.file.set(key, 12u32);
    model.folder.set("shared_intermediate_size", json!(12));
    model.check("granitemoe", true);
}

#[test]
fn mimo_v2_has_short_values_and_heads_by_kind_of_layer() {
    let model = mimo_v2();
    let network = model.check("mimo2", true);
    let of = |layer: usize| network.blocks[layer].mixer.as_attention().unwrap();
    assert_eq!((of(0).n_kv_heads, of(1).n_kv_heads), (1, 3));
    assert!(of(0).sinks.is_none() && of(1).sinks.is_some());
    // Layers behind, which guess further tokens, have a window as well.
    let mut heads = model.file.clone();
    heads.set("mimo2.block_count", 3u32);
    heads.set("mimo2.nextn_predict_layers", 1u32);
    heads.set(
        "mimo2.attention.head_count_kv",
        Value::Array(Array::I64(vec![1, 3, 3])),
    );
    let pattern = Value::Array(Array::I64(vec![0, 1, 1]));
    heads.set("mimo2.attention.sliding_window_pattern", pattern);
    let norm = heads.tensors["blk.0.attn_norm.weight"].clone();
    heads
        .tensors
        .insert("blk.2.nextn.enorm.weight".into(), norm);
    assert_eq!(Network::from_file(&heads.open()).unwrap().blocks.len(), 2);

    for (gguf, stored) in [
        (
            "blk.1.attn_v.weight",
            "model.layers.1.self_attn.v_proj.weight",
        ),
        (
            "blk.0.exp_probs_b.bias",
            "model.layers.0.mlp.gate.e_score_correction_bias",
        ),
    ] {
        model.without(gguf, stored);
    }
    model.refused("mimo2.attention.value_length", 17u32, Status::Unsupported);
    model.refused("mimo2.attention.value_scale", 0f32, Status::InvalidModel);
    let heads = Value::Array(Array::I64(vec![1, 2]));
    model.refused("mimo2.attention.head_count_kv", heads, Status::InvalidModel);
    for (key, value, status) in [
        ("hybrid_layer_pattern", json!([0]), Status::InvalidModel),
        (
            "hybrid_layer_pattern",
            json!([0, "x"]),
            Status::InvalidModel,
        ),
        ("swa_head_dim", json!(8), Status::Unsupported),
        ("moe_layer_freq", json!([1]), Status::InvalidModel),
        ("v_head_dim", json!(17), Status::Unsupported),
    ] {
        model.config_refused(key, value, status);
    }
}

#[test]
fn laguna_has_gates_and_heads_by_layer() {
    let model = laguna();
    let network = model.check("laguna", true);
    let heads = |layer: usize| network.blocks[layer].mixer.as_attention().unwrap().n_heads;
    assert_eq!((heads(0), heads(1)), (3, 2));
    model.without(
        "blk.1.attn_gate.weight",
        "model.layers.1.self_attn.g_proj.weight",
    );
    model.without(
        "blk.0.ffn_up_shexp.weight",
        "model.layers.0.mlp.shared_expert.up_proj.weight",
    );
    let heads = |heads: Vec<i64>| Value::Array(Array::I64(heads));
    let key = "laguna.attention.head_count";
    model.refused(key, heads(vec![3]), Status::InvalidModel);
    model.refused(key, heads(vec![3, 0]), Status::InvalidModel);
    model.refused(
        "laguna.rope.dimension_count_swa",
        18u32,
        Status::InvalidModel,
    );
    let mut wrong = model.file.clone();
    wrong.set(key, heads(vec![3, 1]));
    let e = Network::from_file(&wrong.open()).unwrap_err();
    assert_eq!(e.status, Status::ShapeMismatch, "{e}");
    for (key, value, status) in [
        (
            "num_attention_heads_per_layer",
            json!([3]),
            Status::InvalidModel,
        ),
        (
            "num_attention_heads_per_layer",
            json!([3, 0]),
            Status::InvalidModel,
        ),
        (
            "moe_router_logit_softcapping",
            json!(5.0),
            Status::Unsupported,
        ),
        (
            "moe_apply_router_weight_on_input",
            json!(true),
            Status::Unsupported,
        ),
        ("mlp_layer_types", json!(["dense"]), Status::InvalidModel),
    ] {
        model.config_refused(key, value, status);
    }
}

#[test]
fn heads_may_be_wide() {
    for model in [wide_laguna(), wide_mimo_v2()] {
        agrees(&Network::from_file(&model.file.open()).unwrap());
    }
}

/// Layers without experts may be anywhere.
#[test]
fn layers_with_and_without_experts_may_alternate() {
    for name in ["exaone_moe", "glm4_moe_lite"] {
        let mut folder = Folder::family(name);
        let kinds = ["sparse", "dense", "sparse"];
        folder.config.insert("mlp_layer_types".into(), json!(kinds));
        // The first layer, which has none, and the second change places.
        let tensors = std::mem::take(&mut folder.tensors).into_iter();
        let swapped = tensors.map(|(name, tensor)| {
            let (first, second) = ("model.layers.0.", "model.layers.1.");
            let other = match (name.strip_prefix(first), name.strip_prefix(second)) {
                (Some(rest), _) => format!("{second}{rest}"),
                (_, Some(rest)) => format!("{first}{rest}"),
                _ => name,
            };
            (other, tensor)
        });
        folder.tensors = swapped.collect();
        let network = Network::from_file(&folder.ready()).unwrap();
        let dense = network
            .blocks
            .iter()
            .map(|block| matches!(block.feed_forward, FeedForward::Dense(_)));
        assert!(dense.eq([false, true, false]), "{name}");
        agrees(&network);
    }
}
