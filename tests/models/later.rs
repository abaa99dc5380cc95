//! Families that came later, made in code of the tiny models of others: as GGUF files and as folders, against the plain evaluation of
//! their networks.

use crate::common::folder::{Folder, Stored};
use crate::common::variants::{Both, LAYERS, flags};
use crate::variants::{agrees, network_of};
use emberlm::Status;
use emberlm::format::{Array, Value};
use emberlm::model::{Activation, Network};
use emberlm::quant::TensorType;
use serde_json::json;

/// A folder by another `model_type` and class.
fn renamed(family: &str, model_type: &str, class: &str) -> Folder {
    let mut folder = Folder::family(family);
    folder.set("model_type", json!(model_type));
    folder.set("architectures", json!([class]));
    folder
}

/// The numbers of stored tensors that are chosen by name, changed.
fn change(folder: &mut Folder, chosen: impl Fn(&str) -> bool, f: impl Fn(f32) -> f32) {
    let number = |bytes: &[u8]| match bytes {
        &[a, b] => half::f16::from_le_bytes([a, b]).to_f32(),
        bytes => f32::from_le_bytes(bytes.try_into().unwrap()),
    };
    for (_, stored) in folder.tensors.iter_mut().filter(|(name, _)| chosen(name)) {
        let size = if stored.ty == "F32" { 4 } else { 2 };
        let values = stored.bytes.chunks_exact(size).map(|b| f(number(b)));
        *stored = Stored::f32(&stored.shape, &values.collect::<Vec<_>>());
    }
}

fn bits(folder: &Folder) -> Vec<u32> {
    agrees(&network_of(folder))
}

/// The message of a folder that is not supported with this value of its config.
fn refused(folder: &Folder, key: &str, value: serde_json::Value) {
    let mut folder = folder.clone();
    folder.set(key, value);
    let e = match folder.open() {
        Ok(file) => Network::from_file(&file).unwrap_err(),
        Err(e) => e,
    };
    assert_eq!(e.status, Status::Unsupported, "{e}");
    assert!(e.message.contains(key), "{key}: {e}");
}

#[test]
fn relatives_of_llama_are_read_as_llama() {
    let mut plain = Folder::family("mistral");
    plain.set("sliding_window", json!(null));
    let expected = bits(&plain);
    let mut iquest = renamed("mistral", "iquestcoder", "LlamaForCausalLM");
    iquest.set("sliding_window", json!(null));
    assert_eq!(bits(&iquest), expected);
    refused(&iquest, "clip_qkv", json!(8.0));
    refused(&iquest, "use_sliding_window", json!(true));

    // Its rows are in GGUF's order.
    let mut helium = renamed("mistral", "helium", "HeliumForCausalLM");
    for (name, stored) in &mut helium.tensors {
        if name.ends_with("q_proj.weight") || name.ends_with("k_proj.weight") {
            let row = stored.bytes.len() / stored.shape[0];
            let rows = stored.bytes.clone();
            for (i, out) in stored.bytes.chunks_exact_mut(row).enumerate() {
                let (first, i) = (i - i % 24, i % 24);
                let from = first + i % 2 * 12 + i / 2;
                out.copy_from_slice(&rows[from * row..][..row]);
            }
        }
    }
    assert_eq!(bits(&helium), expected);

    let mut cwm = renamed("mistral", "cwm", "CwmForCausalLM");
    cwm.set("sliding_window", json!(5));
    let network = network_of(&cwm);
    let windows = |network: &Network| -> Vec<Option<usize>> {
        let attention = network.blocks.iter().map(|b| b.mixer.as_attention());
        attention.map(|a| a.unwrap().window).collect()
    };
    // All but every fourth, from the first one on.
    assert_eq!(windows(&network), [None, Some(5)]);
    agrees(&network);
    cwm.set(
        "layer_types",
        json!(["sliding_attention", "full_attention"]),
    );
    assert_eq!(windows(&network_of(&cwm)), [Some(5), None]);
    cwm.config.remove("rope_parameters");
    let e = cwm.open().unwrap_err();
    assert_eq!(e.status, Status::MissingKey, "{e}");
}

/// Models that see: the text part is another family's.
#[test]
fn text_parts_are_read_as_the_families_that_they_are() {
    let mut exaone = renamed("exaone4", "exaone4_5", "Exaone4_5_ForConditionalGeneration");
    exaone.tensors = std::mem::take(&mut exaone.tensors)
        .into_iter()
        .map(|(name, stored)| (name.replacen("model.", "model.language_model.", 1), stored))
        .collect();
    let vision = Stored::f32(&[2], &[1.0, 2.0]);
    let name = "model.visual.blocks.0.norm1.weight";
    exaone.tensors.insert(name.into(), vision.clone());
    assert_eq!(bits(&exaone), bits(&Folder::family("exaone4")));

    let class = "Gemma4UnifiedForConditionalGeneration";
    let mut gemma = renamed("gemma4", "gemma4_unified", class);
    for name in ["model.vision_embedder.x", "model.embed_vision.x"] {
        gemma.tensors.insert(name.into(), vision.clone());
    }
    assert_eq!(bits(&gemma), bits(&Folder::family("gemma4")));
    refused(&gemma, "use_bidirectional_attention", json!("all"));

    let class = "KimiK25ForConditionalGeneration";
    let mut kimi = renamed("deepseek_v3", "kimi_k25", class);
    kimi.tensors = std::mem::take(&mut kimi.tensors)
        .into_iter()
        .map(|(name, stored)| (format!("language_model.{name}"), stored))
        .collect();
    for name in ["vision_tower.x", "mm_projector.x"] {
        kimi.tensors.insert(name.into(), vision.clone());
    }
    assert_eq!(bits(&kimi), bits(&Folder::family("deepseek_v3")));
}

#[test]
fn hyperclova_x_is_granite_with_norms_behind_both_parts() {
    let class = "HyperCLOVAXForCausalLM";
    let mut model = Both::of("granite", "hyperclovax", "hyperclovax", class);
    // Its factor on logits does not divide.
    model.folder.set("logits_scaling", json!(0.5));
    model.file.set("hyperclovax.logit_scale", 0.5f32);
    model.folder.set("use_post_norm", json!(false));
    model.file.set("hyperclovax.attention.post_norm", false);
    model.check("hyperclovax", true);
    assert_eq!(bits(&model.folder), bits(&Folder::family("granite")));
    model.folder.config.remove("use_post_norm");
    model.file.set("hyperclovax.attention.post_norm", true);
    model.set(
        "post_attention_norm.weight",
        "post_norm1.weight",
        &[48],
        1.0,
    );
    model.set("post_ffw_norm.weight", "post_norm2.weight", &[48], 1.0);
    let network = model.check("hyperclovax", true);
    assert_eq!(network.logit_scale, 0.5);
    assert!(network.blocks[1].feed_forward_post_norm.is_some());
    model.without(
        "blk.1.post_ffw_norm.weight",
        "model.layers.1.post_norm2.weight",
    );
}

#[test]
fn vault_gemma_is_gemma_2_without_norms_behind_parts() {
    let class = "VaultGemmaForCausalLM";
    let mut model = Both::of("gemma2", "vaultgemma", "vaultgemma", class);
    model.remove(
        "post_attention_norm.weight",
        "post_attention_layernorm.weight",
    );
    model.remove("post_ffw_norm.weight", "post_feedforward_layernorm.weight");
    let network = model.check("vaultgemma", true);
    assert!(network.blocks[0].mixer_post_norm.is_none());
    let attention = |i: usize| network.blocks[i].mixer.as_attention().unwrap();
    assert_eq!((attention(0).window, attention(1).window), (Some(8), None));
    assert_eq!(attention(0).score_cap, Some(2.0));
}

#[test]
fn lfm_3_has_windows_gates_and_norms_behind_parts() {
    let mut model = Both::of("lfm2", "lfm3", "lfm3", "Lfm3ForCausalLM");
    // The file's four layers: a convolution, two that attend, and a convolution.
    for (part, to, dims) in [
        ("attn_q.weight", "self_attn.q_proj.weight", vec![48, 48]),
        ("attn_k.weight", "self_attn.k_proj.weight", vec![48, 16]),
        ("attn_v.weight", "self_attn.v_proj.weight", vec![48, 16]),
        (
            "attn_output.weight",
            "self_attn.out_proj.weight",
            vec![48, 48],
        ),
        (
            "attn_q_norm.weight",
            "self_attn.q_layernorm.weight",
            vec![16],
        ),
        (
            "attn_k_norm.weight",
            "self_attn.k_layernorm.weight",
            vec![16],
        ),
        (
            "attn_gate.weight",
            "self_attn.gate_proj.weight",
            vec![48, 3],
        ),
    ] {
        for layer in 1..3 {
            let gguf = format!("blk.{layer}.{part}");
            let stored = format!("model.layers.{layer}.{to}");
            let center = if dims.len() == 1 { 1.0 } else { 0.0 };
            model.set_one(&gguf, &stored, &dims, center);
        }
    }
    let conv = |name: &str| name.contains(".2.shortconv.") || name.contains(".2.conv.");
    model.file.tensors.retain(|name, _| !conv(name));
    model.folder.tensors.retain(|name, _| !conv(name));
    for layer in 0..4 {
        for (part, to) in [
            ("post_attention_norm", "post_operator_norm"),
            ("post_ffw_norm", "post_ffn_norm"),
        ] {
            let gguf = format!("blk.{layer}.{part}.weight");
            let stored = format!("model.layers.{layer}.{to}.weight");
            model.set_one(&gguf, &stored, &[48], 1.0);
        }
    }
    let heads = Value::Array(Array::I64(vec![0, 1, 1, 0]));
    let windowed = Value::Array(Array::Bool(vec![false, false, true, false]));
    for (key, value) in [
        ("attention.head_count_kv", heads),
        ("attention.gated", true.into()),
        ("attention.post_norm", true.into()),
        ("attention.sliding_window", 5u32.into()),
        ("attention.sliding_window_pattern", windowed),
        ("rope.freq_base_swa", 2500f32.into()),
        ("rope.dimension_count", 8u32.into()),
        ("rope.dimension_count_swa", 16u32.into()),
    ] {
        model.file.set(&format!("lfm3.{key}"), value);
    }
    let width = model.folder.config.remove("block_auto_adjust_ff_dim");
    assert_eq!(width, Some(json!(true)));
    model.folder.set("intermediate_size", json!(40));
    model.folder.set("head_dim", json!(16));
    model.folder.set("sliding_window", json!(5));
    model.folder.set(
        "layer_types",
        json!(["conv", "full_attention", "sliding_attention", "conv"]),
    );
    let rope = |kind: &str, theta: f64, share: f64| json!({"rope_type": kind, "rope_theta": theta, "partial_rotary_factor": share});
    let both = |full, local| json!({"full_attention": full, "sliding_attention": local});
    let usual = both(rope("default", 1e4, 0.5), rope("default", 2500.0, 1.0));
    model.folder.set("rope_parameters", usual);
    let network = model.check("lfm3", true);
    let attention = network.blocks[2].mixer.as_attention().unwrap();
    assert_eq!(attention.window, Some(5));
    assert_eq!(attention.gate.as_ref().unwrap().weight.rows(), 3);
    model.without(
        "blk.2.attn_gate.weight",
        "model.layers.2.self_attn.gate_proj.weight",
    );
    model.without(
        "blk.0.post_ffw_norm.weight",
        "model.layers.0.post_ffn_norm.weight",
    );
    // Frequencies of whole heads, of which the first ones turn.
    let proportional = both(rope("proportional", 1e4, 0.5), rope("default", 2500.0, 1.0));
    model.folder.set("rope_parameters", proportional);
    let network = network_of(&model.folder);
    agrees(&network);
    let frequencies = &network.blocks[1].mixer.rope().unwrap().inv_freq;
    assert!(frequencies.len() == 8 && frequencies[3] > 0.01 && frequencies[4] < 1e-20);
    for wrong in [rope("linear", 2500.0, 1.0), rope("default", 2500.0, 0.5)] {
        let e = {
            let mut folder = model.folder.clone();
            folder.set("rope_parameters", both(rope("default", 1e4, 1.0), wrong));
            folder.open().unwrap_err()
        };
        assert_eq!(e.status, Status::Unsupported, "{e}");
        assert!(e.message.contains("sliding_attention"), "{e}");
    }
}

/// Step 3.5: gates of heads, more heads in layers with a window, and limits behind activations.
fn step() -> Both {
    let mut model = Both::of("qwen3moe", "step35", "step3p5", "Step3p5ForCausalLM");
    for (layer, n_heads) in [(0, 2), (1, 3)] {
        for (part, to, dims) in [
            ("attn_q", "q_proj", [40, 16 * n_heads]),
            ("attn_output", "o_proj", [16 * n_heads, 40]),
            ("attn_gate", "g_proj", [40, n_heads]),
        ] {
            let gguf = format!("blk.{layer}.{part}.weight");
            let stored = format!("model.layers.{layer}.self_attn.{to}.weight");
            model.set_one(&gguf, &stored, &dims, 0.0);
        }
    }
    model.set("exp_probs_b.bias", "moe.router_bias", &[7], 0.0);
    for (part, dims) in [("gate", [40, 12]), ("up", [40, 12]), ("down", [12, 40])] {
        let gguf = format!("ffn_{part}_shexp.weight");
        let stored = format!("share_expert.{part}_proj.weight");
        model.set(&gguf, &stored, &dims, 0.0);
    }
    // Experts of a layer are together in its folders, and norms lack the 1.
    let experts = |name: &str| name.contains(".mlp.experts.");
    model.folder.tensors.retain(|name, _| !experts(name));
    for (part, dims) in [
        ("gate", [40, 24, 7]),
        ("up", [40, 24, 7]),
        ("down", [24, 40, 7]),
    ] {
        let gguf = format!("ffn_{part}_exps.weight");
        model.set(&gguf, &format!("moe.{part}_proj.weight"), &dims, 0.0);
    }
    for layer in 0..LAYERS {
        let name = |part: &str| format!("model.layers.{layer}.{part}.gate.weight");
        let router = model.folder.tensors.remove(&name("mlp")).unwrap();
        model.folder.tensors.insert(name("moe"), router);
    }
    // The halves are exact.
    let halved = |x: f32| (x * 64.0).round() / 64.0;
    for tensor in model
        .file
        .tensors
        .iter_mut()
        .filter(|t| t.0.ends_with("norm.weight"))
    {
        for weight in tensor.1.bytes.as_chunks_mut::<4>().0 {
            *weight = halved(f32::from_le_bytes(*weight)).to_le_bytes();
        }
    }
    change(
        &mut model.folder,
        |name| name.ends_with("norm.weight"),
        |x| halved(x) - 1.0,
    );
    let array = |of_layers: [i64; LAYERS]| Value::Array(Array::I64(of_layers.to_vec()));
    let limits = |of_layers: [f32; LAYERS]| Value::Array(Array::F32(of_layers.to_vec()));
    for (key, value) in [
        ("attention.head_count", array([2, 3])),
        ("attention.head_count_kv", array([1, 1])),
        ("attention.sliding_window", 5u32.into()),
        ("attention.sliding_window_pattern", flags([false, true])),
        ("rope.dimension_count", 16u32.into()),
        ("rope.freq_base_swa", 2500f32.into()),
        ("expert_weights_scale", 1.7f32.into()),
        ("expert_shared_feed_forward_length", 12u32.into()),
        ("moe_every_n_layers", 1u32.into()),
        ("swiglu_clamp_exp", limits([0.0, 0.02])),
        ("swiglu_clamp_shexp", limits([0.05, 0.0])),
    ] {
        model.file.set(&format!("step35.{key}"), value);
    }
    for key in [
        "num_local_experts",
        "num_key_value_heads",
        "num_experts_per_tok",
        "rope_parameters",
    ] {
        model.folder.config.remove(key).unwrap();
    }
    // As it is published, with an entry for a further layer in some lists.
    for (key, value) in [
        ("num_attention_heads", json!(2)),
        ("num_attention_groups", json!(1)),
        (
            "attention_other_setting",
            json!({"num_attention_heads": 3, "num_attention_groups": 1}),
        ),
        ("moe_num_experts", json!(7)),
        ("moe_top_k", json!(3)),
        ("moe_layers_enum", json!("0,1")),
        ("moe_router_scaling_factor", json!(1.7)),
        ("share_expert_dim", json!(12)),
        ("sliding_window", json!(5)),
        (
            "layer_types",
            json!(["full_attention", "sliding_attention", "sliding_attention"]),
        ),
        ("rope_theta", json!([1e4, 2500.0, 2500.0])),
        ("partial_rotary_factors", json!([0.5, 1.0, 1.0])),
        ("swiglu_limits", json!([null, 0.02, 0.0])),
        ("swiglu_limits_shared", json!([0.05, 0.0, 0.0])),
        ("num_nextn_predict_layers", json!(1)),
    ] {
        model.folder.set(key, value);
    }
    model
}

#[test]
fn step_3_5_has_gates_heads_by_layer_and_limits() {
    let mut model = step();
    let network = model.check("step35", true);
    let experts = network.blocks[1].feed_forward.experts().unwrap();
    assert_eq!(experts.activation, Activation::LimitedSilu { limit: 0.02 });
    let shared = &experts.shared.as_ref().unwrap().mlp;
    assert_eq!(shared.activation, Activation::Silu);
    let rotated = |layer: usize| 2 * network.blocks[layer].mixer.rope().unwrap().inv_freq.len();
    assert_eq!((rotated(0), rotated(1)), (8, 16));
    model.without(
        "blk.1.attn_gate.weight",
        "model.layers.1.self_attn.g_proj.weight",
    );
    model.refused("step35.moe_every_n_layers", 2u32, Status::Unsupported);
    let wrong = Value::Array(Array::F32(vec![1.0]));
    model.refused("step35.swiglu_clamp_exp", wrong, Status::InvalidModel);
    for (key, value) in [
        ("partial_rotary_factors", json!([1.0, 1.0])),
        ("rope_theta", json!([1e4])),
        ("norm_expert_weight", json!(false)),
        ("sparse_attention_config", json!({})),
        (
            "attention_other_setting",
            json!({"num_attention_groups": 2}),
        ),
    ] {
        let mut folder = model.folder.clone();
        folder.set(key, value);
        let e = folder.open().unwrap_err();
        assert!(
            [Status::Unsupported, Status::InvalidModel].contains(&e.status),
            "{key}: {e}"
        );
    }
    // Scaling of the half of a head that layers without a window rotate.
    model.folder.set(
        "rope_scaling",
        json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32}),
    );
    let folder = network_of(&model.folder);
    agrees(&folder);
    let frequencies = |network: &Network| network.blocks[0].mixer.rope().unwrap().inv_freq.clone();
    assert!(frequencies(&folder)[3] < frequencies(&network)[3]);
    assert_eq!(
        folder.blocks[1].mixer.rope(),
        network.blocks[1].mixer.rope()
    );
}

#[test]
fn dbrx_has_layer_norms_limits_and_experts() {
    let mut model = Both::of("mixtral", "dbrx", "mixtral", "MixtralForCausalLM").file;
    model.rename_tensors("ffn_norm", "attn_output_norm");
    let parts = ["attn_q", "attn_k", "attn_v"].map(|part| format!("{part}.weight"));
    model.join(&parts, "attn_qkv.weight");
    model.set("dbrx.attention.layer_norm_epsilon", 1e-5f32);
    model.set("dbrx.attention.clamp_kqv", 0.4f32);
    let network = Network::from_file(&model.open()).unwrap();
    agrees(&network);
    assert_eq!(
        network.blocks[1].mixer.as_attention().unwrap().clip,
        Some(0.4)
    );
    let tensor = model
        .tensors
        .remove("blk.1.attn_output_norm.weight")
        .unwrap();
    assert_eq!(tensor.ty, TensorType::F32);
    let e = Network::from_file(&model.open()).unwrap_err();
    assert_eq!(e.status, Status::MissingTensor, "{e}");
}
