//! Models of families that came later, made in code of the tiny models of others, which a GPU can run, too.

use super::edit::Edited;
use super::folder::{Folder, Stored};
use super::variants::{Both, LAYERS, flags};
use emberlm::format::{Array, Value};
use serde_json::json;

/// The numbers of stored tensors that are chosen by name, changed.
pub fn change(folder: &mut Folder, chosen: impl Fn(&str) -> bool, f: impl Fn(f32) -> f32) {
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

/// Step 3.5: gates of heads, more heads in layers with a window, and limits behind activations.
pub fn step() -> Both {
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

/// The same without limits behind activations, as a file.
pub fn plain_step() -> Edited {
    let mut file = step().file;
    for key in ["swiglu_clamp_exp", "swiglu_clamp_shexp"] {
        let none = Value::Array(Array::F32(vec![0.0; LAYERS]));
        file.set(&format!("step35.{key}"), none);
    }
    file
}

/// HyperCLOVA X: Granite, here without norms behind both parts.
pub fn hyperclova() -> Both {
    let class = "HyperCLOVAXForCausalLM";
    let mut model = Both::of("granite", "hyperclovax", "hyperclovax", class);
    // Its factor on logits does not divide.
    model.folder.set("logits_scaling", json!(0.5));
    model.file.set("hyperclovax.logit_scale", 0.5f32);
    model.folder.set("use_post_norm", json!(false));
    model.file.set("hyperclovax.attention.post_norm", false);
    model
}

/// These norms.
pub fn add_post_norms(model: &mut Both) {
    model.folder.config.remove("use_post_norm");
    model.file.set("hyperclovax.attention.post_norm", true);
    model.set(
        "post_attention_norm.weight",
        "post_norm1.weight",
        &[48],
        1.0,
    );
    model.set("post_ffw_norm.weight", "post_norm2.weight", &[48], 1.0);
}

/// VaultGemma: Gemma 2 without norms behind parts.
pub fn vault_gemma() -> Both {
    let class = "VaultGemmaForCausalLM";
    let mut model = Both::of("gemma2", "vaultgemma", "vaultgemma", class);
    model.remove(
        "post_attention_norm.weight",
        "post_attention_layernorm.weight",
    );
    model.remove("post_ffw_norm.weight", "post_feedforward_layernorm.weight");
    model
}

/// LFM 3: windows, gates, and norms behind both parts. The folder's config is LFM 2's.
pub fn lfm3() -> Both {
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
    model
}

/// DBRX: layer norms, limits and experts.
pub fn dbrx() -> Edited {
    let mut model = Both::of("mixtral", "dbrx", "mixtral", "MixtralForCausalLM").file;
    model.rename_tensors("ffn_norm", "attn_output_norm");
    let parts = ["attn_q", "attn_k", "attn_v"].map(|part| format!("{part}.weight"));
    model.join(&parts, "attn_qkv.weight");
    model.set("dbrx.attention.layer_norm_epsilon", 1e-5f32);
    model.set("dbrx.attention.clamp_kqv", 0.4f32);
    model
}

/// FlexOlmo: OLMo 2 with experts.
pub fn flex_olmo() -> Both {
    let mut model = Both::of("olmo2", "flex_olmo", "flex_olmo", "FlexOlmoForCausalLM");
    for part in ["gate", "up", "down"] {
        let gguf = format!("ffn_{part}.weight");
        model.remove(&gguf, &format!("mlp.{part}_proj.weight"));
    }
    model.set("ffn_gate_inp.weight", "mlp.gate.weight", &[48, 5], 0.0);
    for (part, dims) in [
        ("gate", [48, 20, 5]),
        ("up", [48, 20, 5]),
        ("down", [20, 48, 5]),
    ] {
        let gguf = format!("ffn_{part}_exps.weight");
        model.set(&gguf, &format!("mlp.experts.{part}_proj"), &dims, 0.0);
    }
    // The folder has gate and up in one.
    for layer in 0..LAYERS {
        let name = |part: &str| format!("model.layers.{layer}.mlp.experts.{part}_proj");
        let gate = model.folder.tensors.remove(&name("gate")).unwrap();
        let up = model.folder.tensors.remove(&name("up")).unwrap();
        let each = gate.bytes.len() / 5;
        let both = gate.bytes.chunks(each).zip(up.bytes.chunks(each));
        let bytes = both.flat_map(|(gate, up)| [gate, up].concat()).collect();
        let joined = Stored {
            ty: gate.ty,
            shape: vec![5, 40, 48],
            bytes,
        };
        model.folder.tensors.insert(name("gate_up"), joined);
    }
    for (key, value) in [
        ("expert_count", 5u32),
        ("expert_used_count", 2),
        ("expert_feed_forward_length", 20),
    ] {
        model.file.set(&format!("flex_olmo.{key}"), value);
    }
    model.folder.set("num_experts", json!(5));
    model.folder.set("num_experts_per_tok", json!(2));
    model.folder.set("intermediate_size", json!(20));
    model.file.set("flex_olmo.feed_forward_length", 20u32);
    model
}
