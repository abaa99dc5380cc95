//! Models of families that others become with a few tensors or keys more, as GGUF files and as folders.

use super::convert::converted;
use super::edit::{Edited, EditedTensor};
use super::families::open_family;
use super::folder::{Folder, Stored};
use super::tiny::Random;
use emberlm::format::{Array, Value};
use emberlm::quant::TensorType;
use serde_json::json;

/// Layers of these models.
pub const LAYERS: usize = 2;

/// A GGUF file and a folder of the same model.
pub struct Both {
    pub file: Edited,
    pub folder: Folder,
}

/// So many numbers around `center`.
pub fn numbers(name: &str, len: usize, center: f32) -> Vec<f32> {
    let mut random = Random::new(9, name);
    (0..len)
        .map(|_| center + 0.4 * random.signed_unit())
        .collect()
}

impl Both {
    /// Those of a family, by another architecture's name and another `model_type`.
    pub fn of(family: &str, architecture: &str, model_type: &str, class: &str) -> Both {
        let mut file = Edited::of(&converted(&open_family(family), TensorType::F32));
        file.rename(architecture);
        let mut folder = Folder::family(family);
        folder.set("model_type", json!(model_type));
        folder.set("architectures", json!([class]));
        Both { file, folder }
    }

    /// Adds or replaces a tensor of each layer, of this shape as GGUF has it.
    pub fn set(&mut self, gguf: &str, folder: &str, dims: &[usize], center: f32) {
        for layer in 0..LAYERS {
            self.set_one(
                &format!("blk.{layer}.{gguf}"),
                &format!("model.layers.{layer}.{folder}"),
                dims,
                center,
            );
        }
    }

    pub fn set_one(&mut self, gguf: &str, folder: &str, dims: &[usize], center: f32) {
        let values = numbers(gguf, dims.iter().product(), center);
        let tensor = EditedTensor {
            ty: TensorType::F32,
            dims: dims.to_vec(),
            bytes: values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        };
        self.file.tensors.insert(gguf.into(), tensor);
        let shape: Vec<usize> = dims.iter().rev().copied().collect();
        let stored = Stored::f32(&shape, &values);
        self.folder.tensors.insert(folder.into(), stored);
    }

    /// Takes a part of all layers away.
    pub fn remove(&mut self, gguf: &str, folder: &str) {
        self.file.tensors.retain(|name, _| !name.ends_with(gguf));
        self.folder
            .tensors
            .retain(|name, _| !name.ends_with(folder));
    }
}

/// A key with a value for each layer.
pub fn flags(of_layers: [bool; LAYERS]) -> Value {
    Value::Array(Array::Bool(of_layers.to_vec()))
}

/// Command R+: norms of queries and keys with weights of each head.
pub fn command_r_plus() -> Both {
    let mut model = Both::of("cohere", "command-r", "cohere", "CohereForCausalLM");
    model.set(
        "attn_q_norm.weight",
        "self_attn.q_norm.weight",
        &[16, 3],
        1.0,
    );
    model.set(
        "attn_k_norm.weight",
        "self_attn.k_norm.weight",
        &[16, 1],
        1.0,
    );
    model.folder.set("use_qk_norm", json!(true));
    model
}

/// Phi-3.5-MoE: norms with biases, and experts by SparseMixer.
pub fn phi_moe() -> Both {
    let mut model = Both::of("mixtral", "phimoe", "phimoe", "PhiMoEForCausalLM");
    model.set("attn_norm.bias", "input_layernorm.bias", &[40], 0.0);
    model.set("ffn_norm.bias", "post_attention_layernorm.bias", &[40], 0.0);
    model.set_one("output_norm.bias", "model.norm.bias", &[40], 0.0);
    model.set_one("output.bias", "lm_head.bias", &[96], 0.0);
    // Scores that differ little.
    for tensors in model.file.tensors.iter_mut() {
        if tensors.0.ends_with("ffn_gate_inp.weight") {
            for weight in tensors.1.bytes.as_chunks_mut::<4>().0 {
                *weight = (f32::from_le_bytes(*weight) * 0.1 + 0.05).to_le_bytes();
            }
        }
    }
    model.folder.set("router_jitter_noise", json!(0.3));
    model
}

/// The file of Phi-3.5-MoE in which more experts count as near.
pub fn near_phi_moe() -> Both {
    let mut model = phi_moe();
    model.file.set("phimoe.router_jitter_noise", 0.3f32);
    model
}

/// MiMo V2: values shorter than keys, and a second layer with a window, sinks and more heads of keys.
pub fn mimo_v2() -> Both {
    let class = "MiMoV2FlashForCausalLM";
    let mut model = Both::of("qwen3moe", "mimo2", "mimo_v2_flash", class);
    model.remove("attn_q_norm.weight", "self_attn.q_norm.weight");
    model.remove("attn_k_norm.weight", "self_attn.k_norm.weight");
    // Of 10 elements; the second layer, with a window, has three heads of keys, and sinks.
    for (layer, n_kv) in [(0, 1), (1, 3)] {
        for (part, to, dims) in [
            ("attn_k", "k_proj", [40, 16 * n_kv]),
            ("attn_v", "v_proj", [40, 10 * n_kv]),
            ("attn_output", "o_proj", [30, 40]),
        ] {
            let gguf = format!("blk.{layer}.{part}.weight");
            let stored = format!("model.layers.{layer}.self_attn.{to}.weight");
            model.set_one(&gguf, &stored, &dims, 0.0);
        }
    }
    let sinks = "model.layers.1.self_attn.attention_sink_bias";
    model.set_one("blk.1.attn_sinks.weight", sinks, &[3], 0.5);
    model.set(
        "exp_probs_b.bias",
        "mlp.gate.e_score_correction_bias",
        &[7],
        0.0,
    );
    let set = |model: &mut Both, key: &str, value: Value| {
        model.file.set(&format!("mimo2.{key}"), value);
    };
    set(&mut model, "attention.value_length", 10u32.into());
    set(&mut model, "attention.value_scale", 0.7f32.into());
    let heads = Value::Array(Array::I64(vec![1, 3]));
    set(&mut model, "attention.head_count_kv", heads);
    set(&mut model, "attention.sliding_window", 5u32.into());
    let pattern = Value::Array(Array::I64(vec![0, 1]));
    set(&mut model, "attention.sliding_window_pattern", pattern);
    set(&mut model, "rope.freq_base_swa", 2500f32.into());
    set(&mut model, "rope.dimension_count", 6u32.into());
    set(&mut model, "expert_gating_func", 2u32.into());
    model.folder.config.remove("rope_parameters");
    model.folder.config.remove("num_local_experts");
    for (key, value) in [
        ("v_head_dim", json!(10)),
        ("n_routed_experts", json!(7)),
        ("attention_value_scale", json!(0.7)),
        ("swa_num_key_value_heads", json!(3)),
        ("sliding_window", json!(5)),
        ("hybrid_layer_pattern", json!([0, 1])),
        ("moe_layer_freq", json!([1, 1])),
        ("rope_theta", json!(1e4)),
        ("swa_rope_theta", json!(2500)),
        ("partial_rotary_factor", json!(0.4)),
        ("routed_scaling_factor", json!(null)),
        ("layernorm_epsilon", json!(1e-6)),
    ] {
        model.folder.set(key, value);
    }
    model
}

/// Laguna: gates by softplus, heads by layer, a window in the second one.
pub fn laguna() -> Both {
    let mut model = Both::of("qwen3moe", "laguna", "laguna", "LagunaForCausalLM");
    // The first layer has three heads with a gate for each element, the second one two with a gate each.
    for (layer, n_heads, gates) in [(0, 3, 48), (1, 2, 2)] {
        for (part, to, dims) in [
            ("attn_q", "q_proj", [40, 16 * n_heads]),
            ("attn_output", "o_proj", [16 * n_heads, 40]),
            ("attn_gate", "g_proj", [40, gates]),
        ] {
            let gguf = format!("blk.{layer}.{part}.weight");
            let stored = format!("model.layers.{layer}.self_attn.{to}.weight");
            model.set_one(&gguf, &stored, &dims, 0.0);
        }
    }
    let bias = "mlp.experts.e_score_correction_bias";
    model.set("exp_probs_b.bias", bias, &[7], 0.0);
    for (part, to, dims) in [
        ("gate", "gate", [40, 12]),
        ("up", "up", [40, 12]),
        ("down", "down", [12, 40]),
    ] {
        let gguf = format!("ffn_{part}_shexp.weight");
        let stored = format!("mlp.shared_expert.{to}_proj.weight");
        model.set(&gguf, &stored, &dims, 0.0);
    }
    let heads = Value::Array(Array::I64(vec![3, 2]));
    for (key, value) in [
        ("attention.head_count", heads),
        ("attention.sliding_window", 5u32.into()),
        ("attention.sliding_window_pattern", flags([false, true])),
        ("rope.dimension_count", 8u32.into()),
        ("rope.dimension_count_swa", 16u32.into()),
        ("rope.freq_base_swa", 2500f32.into()),
        ("expert_gating_func", 2u32.into()),
        ("expert_weights_scale", 1.7f32.into()),
        ("expert_shared_feed_forward_length", 12u32.into()),
    ] {
        model.file.set(&format!("laguna.{key}"), value);
    }
    let rope =
        |theta: f64, share: f64| json!({"rope_theta": theta, "partial_rotary_factor": share});
    let n_experts = model.folder.config.remove("num_local_experts");
    model.folder.set("num_experts", n_experts.unwrap());
    for (key, value) in [
        ("num_attention_heads_per_layer", json!([3, 2])),
        ("shared_expert_intermediate_size", json!(12)),
        ("moe_routed_scaling_factor", json!(1.7)),
        ("sliding_window", json!(5)),
        (
            "layer_types",
            json!(["full_attention", "sliding_attention"]),
        ),
        ("mlp_layer_types", json!(["sparse", "sparse"])),
        (
            "rope_parameters",
            json!({"full_attention": rope(1e4, 0.5), "sliding_attention": rope(2500.0, 1.0)}),
        ),
    ] {
        model.folder.set(key, value);
    }
    model
}

/// The file of Laguna with heads of 64 elements, in which some kernels join what others leave apart.
pub fn wide_laguna() -> Both {
    let mut model = laguna();
    for (layer, n_heads, gates) in [(0, 3, 192), (1, 2, 2)] {
        for (part, dims) in [
            ("attn_q", [40, 64 * n_heads]),
            ("attn_k", [40, 64]),
            ("attn_v", [40, 64]),
            ("attn_output", [64 * n_heads, 40]),
            ("attn_gate", [40, gates]),
        ] {
            set(&mut model, &format!("blk.{layer}.{part}.weight"), &dims);
        }
        for part in ["q", "k"] {
            set(
                &mut model,
                &format!("blk.{layer}.attn_{part}_norm.weight"),
                &[64],
            );
        }
    }
    for key in ["attention.key_length", "attention.value_length"] {
        model.file.set(&format!("laguna.{key}"), 64u32);
    }
    model
}

/// The file of MiMo V2 with keys of 192 elements and values of 128, as those of the published ones are.
pub fn wide_mimo_v2() -> Both {
    let mut model = mimo_v2();
    for (layer, n_kv) in [(0, 1), (1, 3)] {
        for (part, dims) in [
            ("attn_q", [40, 192 * 3]),
            ("attn_k", [40, 192 * n_kv]),
            ("attn_v", [40, 128 * n_kv]),
            ("attn_output", [128 * 3, 40]),
        ] {
            set(&mut model, &format!("blk.{layer}.{part}.weight"), &dims);
        }
    }
    model.file.set("mimo2.attention.key_length", 192u32);
    model.file.set("mimo2.attention.value_length", 128u32);
    model
}

/// Replaces a tensor of the file alone.
fn set(model: &mut Both, name: &str, dims: &[usize]) {
    model.set_one(name, name, dims, if dims.len() == 1 { 1.0 } else { 0.0 });
}
