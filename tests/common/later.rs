//! Models of families that came later, made in code of the tiny models of others, which a GPU can run, too.

use super::edit::Edited;
use super::folder::{Folder, Stored};
use super::variants::{
    Both, LAYERS, command_r_plus, flags, laguna, mimo_v2, near_phi_moe, phi_moe, wide_laguna,
    wide_mimo_v2,
};
use emberlm::format::{Array, Value};
use serde_json::json;

/// A GGUF file that is made when it is asked for.
pub type Made = fn() -> Edited;

/// GGUF files of these families and of those of `variants.rs`, by the names of their tests.
pub const FILES: [(&str, Made); 38] = [
    ("hyperclova", || hyperclova().file),
    ("hyperclova_post_norms", || {
        let mut model = hyperclova();
        add_post_norms(&mut model);
        model.file
    }),
    ("vault_gemma", || vault_gemma().file),
    ("flex_olmo", || flex_olmo().file),
    ("dbrx", dbrx),
    ("gpt_neo", long_gpt_neo),
    ("step", plain_step),
    ("limited_step", || step().file),
    ("muse_glimmer", || muse_glimmer().file),
    ("bloom", bloom),
    ("falcon_rw", falcon_rw),
    ("mpt", mpt),
    ("kimi_linear", || kimi_linear(12).file),
    ("ling_3", || ling_3(14).file),
    ("olmo_hybrid", || olmo_hybrid().file),
    ("lfm3", || lfm3().file),
    ("maincoder", maincoder),
    ("spark", spark),
    ("ling_1", ling_1),
    ("deepseek", deepseek),
    ("qwen_1", qwen_1),
    ("codeshell", codeshell),
    ("refact", refact),
    ("openelm", openelm),
    ("deci", || deci(true)),
    ("nanbeige", nanbeige),
    ("plamo_3", plamo_3),
    ("jais", jais),
    ("plm", plm),
    ("hunyuan_vl", hunyuan_vl),
    ("llama_embed", llama_embed),
    ("command_r_plus", || command_r_plus().file),
    ("laguna", || laguna().file),
    ("wide_laguna", || wide_laguna().file),
    ("mimo_v2", || mimo_v2().file),
    ("wide_mimo_v2", || wide_mimo_v2().file),
    ("phi_moe", || phi_moe().file),
    ("near_phi_moe", || near_phi_moe().file),
];

/// That of a test.
pub fn file(name: &str) -> Edited {
    let found = FILES.iter().find(|(other, _)| *other == name);
    let (_, made) = found.unwrap_or_else(|| panic!("no file {name}"));
    made()
}

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

/// GPT-2's tiny model as one whose scores fall with the distance.
pub fn falling(architecture: &str) -> Both {
    let mut model = Both::of("gpt2", architecture, architecture, "BloomForCausalLM");
    model.file.tensors.remove("position_embd.weight").unwrap();
    model
}

/// BLOOM's norm of the embedding.
pub fn norm_embeddings(model: &mut Both) {
    for (end, center) in [("weight", 1.0), ("bias", 0.0)] {
        let gguf = format!("token_embd_norm.{end}");
        let own = format!("transformer.word_embeddings_layernorm.{end}");
        model.set_one(&gguf, &own, &[48], center);
    }
}

/// BLOOM, as a file.
pub fn bloom() -> Edited {
    let mut model = falling("bloom");
    norm_embeddings(&mut model);
    model.file
}

/// Falcon RW, as a file.
pub fn falcon_rw() -> Edited {
    let mut file = falling("falcon").file;
    file.set("falcon.attention.max_alibi_bias", 8f32);
    file
}

/// MPT whose scores fall with the distance, as a file.
pub fn mpt() -> Edited {
    let mut file = falling("mpt").file;
    file.tensors.retain(|name, _| !name.ends_with(".bias"));
    file.set("mpt.attention.max_alibi_bias", 6f32);
    file.set("mpt.attention.clamp_kqv", 0.7f32);
    file
}

/// GPT-Neo: scores that are not scaled, and a window in the second layer.
pub fn gpt_neo() -> Both {
    let mut model = Both::of("gpt2", "gptneo", "gpt_neo", "GPTNeoForCausalLM");
    model
        .file
        .tensors
        .retain(|name, _| !name.contains(".attn_qkv."));
    let of_gpt2 = |name: &str| name.contains(".attn.c_") || name.contains(".mlp.c_");
    model.folder.tensors.retain(|name, _| !of_gpt2(name));
    for layer in 0..LAYERS {
        for (part, own, dims, biased) in [
            ("attn_q", "attn.attention.q_proj", [48, 48], false),
            ("attn_k", "attn.attention.k_proj", [48, 48], false),
            ("attn_v", "attn.attention.v_proj", [48, 48], false),
            ("attn_output", "attn.attention.out_proj", [48, 48], true),
            ("ffn_up", "mlp.c_fc", [48, 192], true),
            ("ffn_down", "mlp.c_proj", [192, 48], true),
        ] {
            let gguf = |end: &str| format!("blk.{layer}.{part}.{end}");
            let own = |end: &str| format!("transformer.h.{layer}.{own}.{end}");
            model.set_one(&gguf("weight"), &own("weight"), &dims, 0.0);
            if biased {
                model.set_one(&gguf("bias"), &own("bias"), &dims[1..], 0.0);
            }
        }
    }
    for (key, value) in [
        ("attention.scale", Value::from(1f32)),
        ("attention.sliding_window", 6u32.into()),
        ("attention.sliding_window_pattern", flags([false, true])),
    ] {
        model.file.set(&format!("gptneo.{key}"), value);
    }
    for (key, value) in [
        ("num_layers", json!(LAYERS)),
        ("num_heads", json!(3)),
        ("hidden_size", json!(48)),
        ("intermediate_size", json!(null)),
        ("max_position_embeddings", json!(64)),
        ("window_size", json!(6)),
        ("attention_types", json!([[["global", "local"], 1]])),
    ] {
        model.folder.set(key, value);
    }
    for key in ["n_layer", "n_head", "n_embd", "n_inner", "n_positions"] {
        model.folder.config.remove(key).unwrap();
    }
    model
}

/// The same as a file with 4096 positions, which repeat those of the tiny one.
pub fn long_gpt_neo() -> Edited {
    let mut file = gpt_neo().file;
    let positions = file.tensors.get_mut("position_embd.weight").unwrap();
    positions.bytes = positions.bytes.repeat(64);
    positions.dims[1] *= 64;
    file.set("gptneo.context_length", 4096u32);
    file
}

/// Muse Glimmer: norms of the embedding and of heads, windows, and gates of what heads make.
pub fn muse_glimmer() -> Both {
    let class = "MuseGlimmerForConditionalGeneration";
    let mut model = Both::of("gemma2", "muse-glimmer", "muse_glimmer", class);
    // Its last norm is stored as it is.
    change(
        &mut model.folder,
        |name| name == "model.norm.weight",
        |x| x + 1.0,
    );
    for layer in 0..3 {
        let gguf = format!("blk.{layer}.attn_gate.weight");
        let own = format!("model.layers.{layer}.self_attn.gate_proj.weight");
        model.set_one(&gguf, &own, &[48, 60], 0.0);
        for (part, weight) in [("q", 1.5f32), ("k", 1.0)] {
            let mut tensor = model.file.tensors["output_norm.weight"].clone();
            tensor.dims = vec![20];
            tensor.bytes = [weight; 20].iter().flat_map(|v| v.to_le_bytes()).collect();
            let name = format!("blk.{layer}.attn_{part}_norm.weight");
            model.file.tensors.insert(name, tensor);
        }
        // GGUF has neighbours that rotate.
        for part in ["q", "k"] {
            let name = format!("blk.{layer}.attn_{part}.weight");
            let tensor = model.file.tensors.get_mut(&name).unwrap();
            let row = tensor.bytes.len() / tensor.dims[1];
            let rows = tensor.bytes.clone();
            for (i, out) in tensor.bytes.chunks_exact_mut(row).enumerate() {
                let (first, i) = (i - i % 20, i % 20);
                let from = first + i % 2 * 10 + i / 2;
                out.copy_from_slice(&rows[from * row..][..row]);
            }
        }
    }
    model
        .file
        .metadata
        .remove("muse-glimmer.attn_logit_softcapping");
    model.file.set("muse-glimmer.logit_scale", 0.4f32);
    let windowed = Value::Array(Array::Bool(vec![true, false, true]));
    model
        .file
        .set("muse-glimmer.attention.sliding_window_pattern", windowed);
    for (key, value) in [
        ("hidden_activation", json!("silu")),
        ("attn_logit_softcapping", json!(null)),
        ("qk_scale_factor", json!(1.5)),
        ("output_multiplier", json!(0.4)),
        ("layer_rope_theta", json!([1e4, 0, 1e4])),
        ("rms_norm_eps", json!(1e-6)),
        ("tie_word_embeddings", json!(true)),
    ] {
        model.folder.set(key, value);
    }
    model
}

/// A delta net's matrices of layer `layer` of OLMo Hybrid, with heads of `key` and `value` elements.
fn delta_net(model: &mut Both, layer: usize, (heads, key, value): (usize, usize, usize)) {
    let (keys, values) = (heads * key, heads * value);
    for (part, own, dims) in [
        ("attn_q.weight", "q_proj.weight", vec![40, keys]),
        ("attn_k.weight", "k_proj.weight", vec![40, keys]),
        ("attn_v.weight", "v_proj.weight", vec![40, values]),
        ("attn_gate.weight", "g_proj.weight", vec![40, values]),
        ("ssm_beta.weight", "b_proj.weight", vec![40, heads]),
        ("ssm_alpha.weight", "a_proj.weight", vec![40, heads]),
        ("ssm_dt.bias", "dt_bias", vec![heads]),
        ("ssm_norm.weight", "o_norm.weight", vec![value]),
        ("ssm_out.weight", "o_proj.weight", vec![values, 40]),
        (
            "ssm_conv1d.weight",
            "conv1d.weight",
            vec![4, 2 * keys + values],
        ),
        ("ssm_a", "A_log", vec![heads]),
    ] {
        let center = if part == "ssm_norm.weight" { 1.0 } else { 0.0 };
        let gguf = format!("blk.{layer}.{part}");
        let own = format!("model.layers.{layer}.linear_attn.{own}");
        model.set_one(&gguf, &own, &dims, center);
    }
    // The file has what the folder's number becomes.
    let tensor = model
        .file
        .tensors
        .get_mut(&format!("blk.{layer}.ssm_a"))
        .unwrap();
    for x in tensor.bytes.as_chunks_mut::<4>().0 {
        *x = (-f64::from(f32::from_le_bytes(*x)).exp() as f32).to_le_bytes();
    }
}

/// OLMo Hybrid: a delta net with larger steps, then attention.
pub fn olmo_hybrid() -> Both {
    let mut model = Both::of(
        "qwen3",
        "olmo_hybrid",
        "olmo_hybrid",
        "OlmoHybridForCausalLM",
    );
    // A delta net, then a layer that attends, with norms of all heads and behind its parts.
    let of_attention = |name: &str| name.contains(".0.attn_") || name.contains(".0.self_attn.");
    model
        .file
        .tensors
        .retain(|name, _| !of_attention(name) || name.contains("attn_norm."));
    model.folder.tensors.retain(|name, _| !of_attention(name));
    delta_net(&mut model, 0, (3, 12, 20));
    for (part, own, len) in [
        ("attn_q_norm", "self_attn.q_norm", 60),
        ("attn_k_norm", "self_attn.k_norm", 20),
        ("post_ffw_norm", "post_feedforward_layernorm", 40),
    ] {
        let gguf = format!("blk.1.{part}.weight");
        model.set_one(&gguf, &format!("model.layers.1.{own}.weight"), &[len], 1.0);
    }
    model.file.tensors.remove("blk.1.attn_norm.weight").unwrap();
    model
        .folder
        .tensors
        .remove("model.layers.1.input_layernorm.weight")
        .unwrap();
    model.file.rename_tensors("ffn_norm", "post_attention_norm");
    let recurrent = flags([true, false]);
    for (key, value) in [
        ("attention.recurrent_layers", recurrent),
        ("attention.rotates", true.into()),
        ("ssm.doubled_steps", true.into()),
        ("ssm.conv_kernel", 4u32.into()),
        ("ssm.state_size", 12u32.into()),
        ("ssm.group_count", 3u32.into()),
        ("ssm.time_step_rank", 3u32.into()),
        ("ssm.inner_size", 60u32.into()),
    ] {
        model.file.set(&format!("olmo_hybrid.{key}"), value);
    }
    for (key, value) in [
        ("layer_types", json!(["linear_attention", "full_attention"])),
        ("linear_key_head_dim", json!(12)),
        ("linear_value_head_dim", json!(20)),
        ("linear_num_key_heads", json!(3)),
        ("linear_num_value_heads", json!(3)),
    ] {
        model.folder.set(key, value);
    }
    model
}

/// DeepSeek V3's tiny model with delta nets with steps of channels in layers 0 and 2, whose parts `parts` names, with what the numbers of
/// `ssm_a` are multiplied by behind their exponential.
fn with_channels(
    mut model: Both,
    prefix: &str,
    parts: &[(&str, &str, &[usize])],
    (head, sign): (usize, f64),
) -> Both {
    for layer in [0, 2] {
        let of_attention = |name: &str| {
            name.contains(&format!(".{layer}.attn_"))
                || name.contains(&format!(".{layer}.self_attn."))
        };
        let kept = |name: &str| !of_attention(name) || name.contains("attn_norm.");
        model.file.tensors.retain(|name, _| kept(name));
        model.folder.tensors.retain(|name, _| kept(name));
        for (part, own, dims) in parts {
            let center = if *part == "ssm_norm.weight" { 1.0 } else { 0.0 };
            let gguf = format!("blk.{layer}.{part}");
            let own = format!("model.layers.{layer}.{prefix}.{own}");
            model.set_one(&gguf, &own, dims, center);
        }
        let name = format!("blk.{layer}.ssm_a");
        let tensor = model.file.tensors.get_mut(&name).unwrap();
        for x in tensor.bytes.as_chunks_mut::<4>().0 {
            let exponential = f64::from(f32::from_le_bytes(*x)).exp() as f32;
            *x = (sign as f32 * exponential).to_le_bytes();
        }
    }
    model.folder.config.remove("rope_parameters").unwrap();
    let scaling = |key: &str| key.contains(".rope.scaling.");
    model.file.metadata.retain(|key, _| !scaling(key));
    for (old, new) in [
        ("n_routed_experts", "num_experts"),
        ("num_experts_per_tok", "num_experts_per_token"),
        ("n_shared_experts", "num_shared_experts"),
        ("n_group", "num_expert_group"),
        ("norm_topk_prob", "moe_renormalize"),
        ("max_position_embeddings", "model_max_length"),
    ] {
        let value = model.folder.config.remove(old).unwrap();
        model.folder.set(new, value);
    }
    let architecture = ["kimi-linear", "bailingmoe3"][usize::from(sign > 0.0)];
    let heads = Value::Array(Array::I64(vec![0, 1, 0]));
    for (key, value) in [
        ("attention.head_count_kv", heads),
        ("kda.head_dim", (head as u32).into()),
        ("ssm.conv_kernel", 4u32.into()),
    ] {
        model.file.set(&format!("{architecture}.{key}"), value);
    }
    model
}

/// What a folder of Kimi Linear says of its layers, with heads of so many elements in its delta nets.
pub fn kimi_layers(head: usize, attending: &[u32], others: &[u32]) -> serde_json::Value {
    json!({"full_attn_layers": attending, "kda_layers": others, "num_heads": 3, "head_dim": head,
        "short_conv_kernel_size": 4})
}

/// Kimi Linear, with heads of so many elements in its delta nets.
pub fn kimi_linear(head: usize) -> Both {
    let all = 3 * head;
    let class = "KimiLinearForCausalLM";
    let model = Both::of("deepseek_v3", "kimi-linear", "kimi_linear", class);
    let mut model = with_channels(
        model,
        "self_attn",
        &[
            ("attn_q.weight", "q_proj.weight", &[36, all]),
            ("attn_k.weight", "k_proj.weight", &[36, all]),
            ("attn_v.weight", "v_proj.weight", &[36, all]),
            ("attn_output.weight", "o_proj.weight", &[all, 36]),
            ("ssm_f_a.weight", "f_a_proj.weight", &[36, head]),
            ("ssm_f_b.weight", "f_b_proj.weight", &[head, all]),
            ("ssm_g_a.weight", "g_a_proj.weight", &[36, head]),
            ("ssm_g_b.weight", "g_b_proj.weight", &[head, all]),
            ("ssm_beta.weight", "b_proj.weight", &[36, 3]),
            ("ssm_dt.bias", "dt_bias", &[all]),
            ("ssm_norm.weight", "o_norm.weight", &[head]),
            ("ssm_conv1d_q.weight", "q_conv1d.weight", &[4, 1, all]),
            ("ssm_conv1d_k.weight", "k_conv1d.weight", &[4, 1, all]),
            ("ssm_conv1d_v.weight", "v_conv1d.weight", &[4, 1, all]),
            ("ssm_a", "A_log", &[1, 3, 1, 1]),
        ],
        (head, -1.0),
    );
    // Experts by the names of its folders.
    model.folder.tensors = std::mem::take(&mut model.folder.tensors)
        .into_iter()
        .map(|(name, stored)| match name.contains("layers.0.") {
            true => (name, stored),
            false => (name.replace(".mlp.", ".block_sparse_moe."), stored),
        })
        .collect();
    model
        .folder
        .set("linear_attn_config", kimi_layers(head, &[2], &[1, 3]));
    model
}

/// Ling 3, likewise: a floor of its decay, and gates of the heads of its latent attention.
pub fn ling_3(head: usize) -> Both {
    let all = 3 * head;
    let class = "BailingMoeV3ForCausalLM";
    let model = Both::of("deepseek_v3", "bailingmoe3", "bailing_hybrid", class);
    let mut model = with_channels(
        model,
        "attention",
        &[
            ("attn_q.weight", "q_proj.weight", &[36, all]),
            ("attn_k.weight", "k_proj.weight", &[36, all]),
            ("attn_v.weight", "v_proj.weight", &[36, all]),
            ("attn_output.weight", "dense.weight", &[all, 36]),
            ("ssm_f_a.weight", "f_proj.weight", &[36, all]),
            ("ssm_g_a.weight", "g_proj.weight", &[36, all]),
            ("ssm_beta.weight", "b_proj.weight", &[36, 3]),
            ("ssm_dt.bias", "dt_bias", &[all]),
            ("ssm_norm.weight", "o_norm.weight", &[head]),
            ("ssm_conv1d_q.weight", "q_conv1d.weight", &[4, 1, all]),
            ("ssm_conv1d_k.weight", "k_conv1d.weight", &[4, 1, all]),
            ("ssm_conv1d_v.weight", "v_conv1d.weight", &[4, 1, all]),
            ("ssm_a", "A_log", &[3]),
        ],
        (head, 1.0),
    );
    let gate = "model.layers.1.attention.g_proj.weight";
    model.set_one("blk.1.attn_gate.weight", gate, &[36, 3], 0.0);
    let limits = Value::Array(Array::F32(vec![0.0, 0.02, 0.0]));
    for (key, value) in [
        ("kda.safe_gate", true.into()),
        ("kda.gate_lower_bound", (-3f32).into()),
        ("swiglu_clamp_exp", limits),
    ] {
        model.file.set(&format!("bailingmoe3.{key}"), value);
    }
    model.folder.tensors = std::mem::take(&mut model.folder.tensors)
        .into_iter()
        .map(|(name, stored)| {
            let name = name
                .replace("embed_tokens", "word_embeddings")
                .replace("self_attn.o_proj", "attention.dense")
                .replace("self_attn.", "attention.")
                .replace("e_score_correction_bias", "expert_bias");
            (name, stored)
        })
        .collect();
    for (key, value) in [
        ("head_dim", json!(head)),
        ("kda_lower_bound", json!(-3.0)),
        ("no_kda_lora", json!(true)),
        ("rope_theta", json!(1e4)),
        ("expert_swiglu_limit_list", json!([null, 0.02, null, 1.0])),
        (
            "layer_types",
            json!(["linear_attention", "full_attention", "linear_attention"]),
        ),
    ] {
        model.folder.set(key, value);
    }
    model
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

fn remove_window(file: &mut Edited, architecture: &str) {
    let window = format!("{architecture}.attention.sliding_window");
    file.metadata.remove(window.as_str()).unwrap();
}

/// Maincoder, as a file.
pub fn maincoder() -> Edited {
    Both::of("hunyuan", "maincoder", "maincoder", "MaincoderForCausalLM").file
}

/// Spark X2.5, as a file.
pub fn spark() -> Edited {
    let mut model = Both::of("mistral", "spark2_5", "spark2_5", "Spark2_5ForCausalLM");
    model.set("attn_gate.weight", "self_attn.g_proj.weight", &[40, 3], 0.0);
    let pattern = flags([true, false]);
    for (key, value) in [
        ("attention.sliding_window", 5u32.into()),
        ("attention.sliding_window_pattern", pattern),
        ("rope.dimension_count", 12u32.into()),
        ("rope.dimension_count_swa", 24u32.into()),
        ("rope.freq_base_swa", 2500f32.into()),
    ] {
        model.file.set(&format!("spark2_5.{key}"), value);
    }
    model.file
}

/// Mixtral's tiny model with experts that all tokens share.
fn with_shared_experts(architecture: &str) -> Both {
    let mut model = Both::of("mixtral", architecture, architecture, "");
    for (part, dims) in [("gate", [40, 64]), ("up", [40, 64]), ("down", [64, 40])] {
        let gguf = format!("ffn_{part}_shexp.weight");
        model.set(&gguf, &gguf, &dims, 0.0);
    }
    for (key, value) in [
        ("expert_feed_forward_length", 32u32),
        ("expert_shared_count", 2),
    ] {
        model.file.set(&format!("{architecture}.{key}"), value);
    }
    model
}

/// Ling 1, as a file: heads are as long as their rotary embedding.
pub fn ling_1() -> Edited {
    let mut file = with_shared_experts("bailingmoe").file;
    for key in ["attention.key_length", "attention.value_length"] {
        let key = format!("bailingmoe.{key}");
        file.metadata.remove(key.as_str()).unwrap();
    }
    for (key, value) in [
        ("rope.dimension_count", Value::from(16u32)),
        ("expert_weights_norm", true.into()),
        ("expert_weights_scale", 1.5f32.into()),
    ] {
        file.set(&format!("bailingmoe.{key}"), value);
    }
    file
}

/// DeepSeek MoE, as a file: no experts in the first layer.
pub fn deepseek() -> Edited {
    let mut model = with_shared_experts("deepseek");
    for (part, dims) in [
        ("q", [40, 40]),
        ("k", [40, 8]),
        ("v", [40, 8]),
        ("output", [40, 40]),
    ] {
        let gguf = format!("attn_{part}.weight");
        model.set(&gguf, &gguf, &dims, 0.0);
    }
    let of_experts = |name: &str| name.starts_with("blk.0.ffn_") && !name.contains("norm");
    model.file.tensors.retain(|name, _| !of_experts(name));
    for (part, dims) in [("gate", [40, 24]), ("up", [40, 24]), ("down", [24, 40])] {
        let gguf = format!("blk.0.ffn_{part}.weight");
        model.set_one(&gguf, &gguf, &dims, 0.0);
    }
    for (key, value) in [
        ("attention.head_count", 5u32),
        ("attention.key_length", 8),
        ("attention.value_length", 8),
        ("rope.dimension_count", 8),
        ("feed_forward_length", 24),
        ("leading_dense_block_count", 1),
    ] {
        model.file.set(&format!("deepseek.{key}"), value);
    }
    model.file
}

/// The first Qwen, as a file: queries, keys and values in one matrix with biases, and the width of both gate and up.
pub fn qwen_1() -> Edited {
    let mut model = Both::of("qwen2", "qwen", "qwen", "QWenLMHeadModel");
    in_one_matrix(&mut model);
    model.set("attn_qkv.weight", "attn_qkv.weight", &[48, 144], 0.0);
    model.set("attn_qkv.bias", "attn_qkv.bias", &[144], 0.0);
    for (key, value) in [
        ("attention.head_count_kv", 6u32),
        ("feed_forward_length", 80),
    ] {
        model.file.set(&format!("qwen.{key}"), value);
    }
    model.set_one("output.weight", "lm_head.weight", &[48, 96], 0.0);
    model.file
}

fn in_one_matrix(model: &mut Both) {
    let apart = ["attn_q.", "attn_k.", "attn_v."];
    let tensors = &mut model.file.tensors;
    tensors.retain(|name, _| !apart.iter().any(|part| name.contains(part)));
}

/// CodeShell, as a file.
pub fn codeshell() -> Edited {
    let mut model = Both::of(
        "starcoder2",
        "codeshell",
        "codeshell",
        "CodeShellForCausalLM",
    );
    remove_window(&mut model.file, "codeshell");
    model.set_one("output.weight", "lm_head.weight", &[48, 96], 0.0);
    model.file
}

/// Refact, as a file.
pub fn refact() -> Edited {
    let mut file = Both::of("mistral", "refact", "gpt_refact", "GPTRefactForCausalLM").file;
    remove_window(&mut file, "refact");
    file
}

/// OpenELM, as a file: two heads in the first layer, and three in the second.
pub fn openelm() -> Edited {
    let mut model = Both::of("qwen3", "openelm", "openelm", "OpenELMForCausalLM");
    in_one_matrix(&mut model);
    model.file.tensors.remove("output.weight").unwrap();
    for (layer, n_heads, width) in [(0, 2, 24), (1, 3, 40)] {
        for (part, dims) in [
            ("attn_qkv", [40, 20 * (n_heads + 2)]),
            ("attn_output", [20 * n_heads, 40]),
            ("ffn_gate", [40, width]),
            ("ffn_up", [40, width]),
            ("ffn_down", [width, 40]),
        ] {
            let gguf = format!("blk.{layer}.{part}.weight");
            model.set_one(&gguf, &gguf, &dims, 0.0);
        }
    }
    let array = |of_layers: [i64; LAYERS]| Value::Array(Array::I64(of_layers.to_vec()));
    for (key, value) in [
        ("attention.head_count", array([2, 3])),
        ("attention.head_count_kv", array([1, 1])),
        ("feed_forward_length", array([24, 40])),
        ("rope.dimension_count", 20u32.into()),
    ] {
        model.file.set(&format!("openelm.{key}"), value);
    }
    model.file
}

/// Nanbeige 4.2, as a file: three times through the layers.
pub fn nanbeige() -> Edited {
    let mut file = Both::of("mistral", "nanbeige", "nanbeige", "NanbeigeForCausalLM").file;
    remove_window(&mut file, "nanbeige");
    file.set("nanbeige.num_loops", 3u32);
    file
}

/// PLaMo 3, as a file: post norms without an end of their names.
pub fn plamo_3() -> Edited {
    let mut model = Both::of("qwen3", "plamo3", "plamo3", "Plamo3ForCausalLM");
    in_one_matrix(&mut model);
    model.remove("ffn_gate.weight", "mlp.gate_proj.weight");
    for (part, dims, center) in [
        ("attn_qkv.weight", &[40, 100][..], 0.0),
        ("ffn_up.weight", &[40, 80], 0.0),
        ("post_attention_norm", &[40], 1.0),
        ("post_ffw_norm", &[40], 1.0),
    ] {
        model.set(part, part, dims, center);
    }
    for (key, value) in [
        ("attention.sliding_window", Value::from(5u32)),
        ("attention.sliding_window_pattern", 2u32.into()),
        ("rope.freq_base", 50_000f32.into()),
        ("rope.freq_base_swa", 2500f32.into()),
    ] {
        model.file.set(&format!("plamo3.{key}"), value);
    }
    model.file
}

/// Jais, as a file.
pub fn jais() -> Edited {
    let mut model = Both::of("gpt2", "jais", "jais", "JAISLMHeadModel");
    model.remove("position_embd.weight", "wpe.weight");
    model.set("ffn_gate.weight", "mlp.c_fc2.weight", &[48, 192], 0.0);
    model.set("ffn_gate.bias", "mlp.c_fc2.bias", &[192], 0.0);
    model.set_one("output.weight", "lm_head.weight", &[48, 96], 0.0);
    model.file.set("jais.attention.max_alibi_bias", 8f32);
    model.file
}

/// PLM, as a file: queries come from the residual stream, and feed-forward parts have no gates.
pub fn plm() -> Edited {
    let mut model = Both::of("minicpm3", "plm", "plm", "PLMForCausalLM");
    for part in ["attn_q_a.weight", "attn_q_a_norm.weight", "attn_q_b.weight"] {
        model.remove(part, part);
    }
    model.remove("ffn_gate.weight", "mlp.gate_proj.weight");
    for factors in ["rope_factors_long.weight", "rope_factors_short.weight"] {
        model.remove(factors, factors);
    }
    model.set("attn_q.weight", "attn_q.weight", &[18, 36], 0.0);
    for key in [
        "attention.q_lora_rank",
        "rope.scaling.original_context_length",
        "rope.scaling.attn_factor",
        "embedding_scale",
        "residual_scale",
        "logit_scale",
    ] {
        let key = format!("plm.{key}");
        model.file.metadata.remove(key.as_str()).unwrap();
    }
    model.file
}

/// The text part of a Hunyuan that sees, as a file, with a longer context.
pub fn hunyuan_vl() -> Edited {
    let mut file = Both::of("hunyuan", "hunyuan_vl", "hunyuan_vl", "").file;
    file.set("hunyuan_vl.rope.freq_base", 10_000f32);
    file.set("hunyuan_vl.rope.scaling.alpha", 3f32);
    file
}

/// An encoder of Llama's shape, as a file.
pub fn llama_embed() -> Edited {
    let mut file = Both::of("mistral", "llama-embed", "llama_bidirec", "").file;
    remove_window(&mut file, "llama-embed");
    file
}

/// What was left of Llama, as a file: layers with attention and a feed-forward part, with the latter alone, with none of both, with
/// attention alone where `alone`, and with another number of heads and another width.
pub fn deci(alone: bool) -> Edited {
    let mut model = Both::of("mistral", "deci", "deci", "DeciLMForCausalLM");
    let of_layers = |name: &str| name.starts_with("blk.");
    model.file.tensors.retain(|name, _| !of_layers(name));
    let heads = [
        (3, 1),
        (0, 0),
        (0, 0),
        (i64::from(alone) * 2, i64::from(alone)),
        (4, 2),
    ];
    let widths = [40, 24, 0, 0, 56];
    for (layer, ((n, kv), width)) in heads.into_iter().zip(widths).enumerate() {
        let (n, kv) = (n as usize, kv as usize);
        let mut set = |part: &str, dims: &[usize], center: f32| {
            let name = format!("blk.{layer}.{part}.weight");
            model.set_one(&name, &name, dims, center);
        };
        if n > 0 {
            set("attn_norm", &[40], 1.0);
            set("attn_q", &[40, 24 * n], 0.0);
            set("attn_k", &[40, 24 * kv], 0.0);
            set("attn_v", &[40, 24 * kv], 0.0);
            set("attn_output", &[24 * n, 40], 0.0);
        }
        if width > 0 {
            set("ffn_norm", &[40], 1.0);
            set("ffn_gate", &[40, width], 0.0);
            set("ffn_up", &[40, width], 0.0);
            set("ffn_down", &[width, 40], 0.0);
        }
    }
    let array = |all: Vec<i64>| Value::Array(Array::I64(all));
    remove_window(&mut model.file, "deci");
    for (key, value) in [
        ("block_count", Value::from(5u32)),
        ("attention.head_count", array(heads.map(|(n, _)| n).into())),
        (
            "attention.head_count_kv",
            array(heads.map(|(_, kv)| kv).into()),
        ),
        (
            "feed_forward_length",
            array(widths.map(|n| n as i64).into()),
        ),
    ] {
        model.file.set(&format!("deci.{key}"), value);
    }
    model.file
}
