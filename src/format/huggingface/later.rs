//! Families that came later, as those of [`super::families`]: most are others with a norm or a window more.

use super::families::{
    ATTENTION, Family, GATED, GATED_FUSED, GELU_TANH, GEMMA_NORMS, GEMMA4, GPT_NORMS_AND_PLAIN,
    HEAD_NORMS, LATENT, LFM2, LLAMA, Layout, PRE_NORMS, SHARED_EXPERTS, SIGMOID_ROUTER,
};
use super::json::{Config, TEXT_MODEL_TYPE, wrong};
use super::keys::{self, Keys};
use super::opt;
use super::relatives::{dense_and_sparse, grouped_sigmoids};
use super::stored::small;
use super::windowed::rotated_by_base;
use super::{delta_net, latent};
use crate::error::{Result, fail, try_vec};
use crate::format::{Array, Tensor, Value};
use serde_json::{Value as Json, json};

const CAP: &str = "final_logit_softcapping";

pub(super) const LATER: &[Family] = &[
    // Its rope rotates neighbours, as in GGUF.
    Family {
        model_types: &["helium"],
        classes: &["HeliumForCausalLM"],
        layout: Layout::Same,
        defaults: || json!({"rms_norm_eps": 1e-8, "head_dim": 128, "default_rope_theta": 1e5}),
        // Of attention, not all parts have one then.
        bias_flags: &["mlp_bias"],
        ..LLAMA
    },
    Family {
        model_types: &["cwm"],
        classes: &["CwmForCausalLM"],
        defaults: || json!({"rms_norm_eps": 1e-5, "head_dim": 128, "sliding_window": 8192, "default_rope_theta": 1e6}),
        bias_flags: &["mlp_bias"],
        keys: cwm,
        ..LLAMA
    },
    Family {
        model_types: &["iquestcoder"],
        classes: &["IQuestCoderForCausalLM", "LlamaForCausalLM"],
        defaults: || json!({"rms_norm_eps": 1e-5, "head_dim": 128}),
        keys: |k| {
            k.refuse("use_sliding_window")?;
            k.refuse_number("clip_qkv")
        },
        ..LLAMA
    },
    Family {
        model_types: &["nanbeige"],
        classes: &["NanbeigeForCausalLM"],
        architecture: "nanbeige",
        defaults: || json!({"rms_norm_eps": 1e-5, "num_loops": 1, "skip_loop_final_norm": false}),
        keys: |k| {
            k.set("num_loops", k.config.size(&["num_loops"])?);
            k.set(
                "skip_loop_final_norm",
                k.config.flag("skip_loop_final_norm")?,
            );
            Ok(())
        },
        ..LLAMA
    },
    Family {
        model_types: &["hyperclovax"],
        classes: &["HyperCLOVAXForCausalLM"],
        architecture: "hyperclovax",
        parts: &[
            ATTENTION,
            PRE_NORMS,
            GATED,
            &[
                ("post_norm1", "post_attention_norm"),
                ("post_norm2", "post_ffw_norm"),
            ],
        ],
        defaults: || json!({"rms_norm_eps": 1e-6, "use_post_norm": true}),
        keys: |k| {
            keys::granite(k)?;
            k.set("attention.post_norm", k.config.flag("use_post_norm")?);
            Ok(())
        },
        ..LLAMA
    },
    Family {
        model_types: &["vaultgemma"],
        classes: &["VaultGemmaForCausalLM"],
        architecture: "vaultgemma",
        activations: GELU_TANH,
        parts: &[
            ATTENTION,
            &[
                ("input_layernorm", "attn_norm"),
                ("pre_feedforward_layernorm", "ffn_norm"),
            ],
            GATED,
        ],
        layout: Layout::ShiftedNorms,
        defaults: || {
            json!({"rms_norm_eps": 1e-6, "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096,
                "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
                "hidden_activation": "gelu_pytorch_tanh"})
        },
        tied: true,
        bias_flags: &["attention_bias"],
        keys: keys::gemma2,
        ..LLAMA
    },
    Family {
        model_types: &["lfm3", "lfm3_vl"],
        classes: &["Lfm3ForCausalLM", "Lfm3VlForConditionalGeneration"],
        architecture: "lfm3",
        parts: &[
            ATTENTION,
            HEAD_NORMS,
            LFM2,
            &[
                ("self_attn.gate_proj", "attn_gate"),
                ("self_attn.g_proj", "attn_gate"),
                ("post_operator_norm", "post_attention_norm"),
                ("post_ffn_norm", "post_ffw_norm"),
            ],
        ],
        layout: Layout::Same,
        defaults: || {
            json!({"norm_eps": 1e-5, "conv_L_cache": 7, "head_dim": 128, "sliding_window": 256, "use_sandwich_norm": true,
            "use_attention_gate": true, "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
            }})
        },
        tied: true,
        bias_flags: &["attention_bias", "conv_bias"],
        keys: lfm3,
        ..LLAMA
    },
    Family {
        model_types: &["step3p5", "step3p7"],
        classes: &["Step3p5ForCausalLM", "Step3p7ForConditionalGeneration"],
        architecture: "step35",
        parts: &[
            ATTENTION,
            HEAD_NORMS,
            PRE_NORMS,
            GATED,
            SHARED_EXPERTS,
            SIGMOID_ROUTER,
            &[
                ("self_attn.g_proj", "attn_gate"),
                ("moe.gate", "ffn_gate_inp"),
                ("moe.router_bias", "exp_probs_b.bias"),
                ("moe.gate_proj", "ffn_gate_exps"),
                ("moe.up_proj", "ffn_up_exps"),
                ("moe.down_proj", "ffn_down_exps"),
                ("share_expert.gate_proj", "ffn_gate_shexp"),
                ("share_expert.up_proj", "ffn_up_shexp"),
                ("share_expert.down_proj", "ffn_down_shexp"),
            ],
        ],
        layout: Layout::ShiftedNorms,
        defaults: || {
            json!({"rms_norm_eps": 1e-5, "head_dim": 128, "num_key_value_heads": 8, "n_routed_experts": 288,
                "num_experts_per_tok": 8, "moe_intermediate_size": 1280, "share_expert_dim": 1280,
                "moe_router_scaling_factor": 1.0})
        },
        bias_flags: &["attention_bias", "mlp_bias"],
        keys: step35,
        ..LLAMA
    },
    Family {
        model_types: &["bloom"],
        classes: &["BloomForCausalLM"],
        architecture: "bloom",
        parts: &[&[
            ("input_layernorm", "attn_norm"),
            ("post_attention_layernorm", "ffn_norm"),
            ("self_attention.query_key_value", "attn_qkv"),
            ("self_attention.dense", "attn_output"),
            ("mlp.dense_h_to_4h", "ffn_up"),
            ("mlp.dense_4h_to_h", "ffn_down"),
        ]],
        layout: Layout::GroupedHeads,
        rope: false,
        // Their positions have no end; they were trained for so many.
        defaults: || json!({"layer_norm_epsilon": 1e-5, "max_position_embeddings": 2048}),
        tied: true,
        bias_flags: &[],
        keys: |k| {
            let hidden = k.config.size(&["hidden_size"])?;
            k.set("feed_forward_length", hidden.saturating_mul(4));
            k.refuse("apply_residual_connection_post_layernorm")
        },
        ..LLAMA
    },
    opt::OPT,
    Family {
        model_types: &["gpt_neo"],
        classes: &["GPTNeoForCausalLM"],
        architecture: "gptneo",
        activations: GELU_TANH,
        parts: &[
            &[
                ("attn.attention.q_proj", "attn_q"),
                ("attn.attention.k_proj", "attn_k"),
                ("attn.attention.v_proj", "attn_v"),
                ("attn.attention.out_proj", "attn_output"),
            ],
            GPT_NORMS_AND_PLAIN,
        ],
        layout: Layout::Same,
        rope: false,
        defaults: || {
            json!({"layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "max_position_embeddings": 2048,
                "window_size": 256})
        },
        tied: true,
        bias_flags: &[],
        keys: gpt_neo,
    },
    Family {
        model_types: &["muse_glimmer_text", "muse_glimmer"],
        classes: &[
            "MuseGlimmerForCausalLM",
            "MuseGlimmerForConditionalGeneration",
        ],
        architecture: "muse-glimmer",
        parts: &[
            ATTENTION,
            GEMMA_NORMS,
            GATED,
            &[("self_attn.gate_proj", "attn_gate")],
        ],
        defaults: || {
            json!({"rms_norm_eps": 1e-5, "head_dim": 128, "sliding_window": 2048, "final_logit_softcapping": 20.0,
                "qk_scale_factor": 3.87, "output_multiplier": 0.196_116_135_138_184_04, "post_norm_eps": 1e-8})
        },
        bias_flags: &["attention_bias"],
        keys: muse_glimmer,
        ..LLAMA
    },
    Family {
        model_types: &["nanochat"],
        classes: &["NanoChatForCausalLM"],
        architecture: "nanochat",
        activations: &["relu2"],
        parts: &[ATTENTION, &[("mlp.fc1", "ffn_up"), ("mlp.fc2", "ffn_down")]],
        layout: Layout::Same,
        defaults: || json!({"rms_norm_eps": 1e-6, "hidden_act": "relu2"}),
        bias_flags: &["attention_bias"],
        keys: |k| {
            // Files without the key would be of another limit.
            if !k.config.is_null(CAP) {
                k.set(CAP, k.config.f32(CAP)?);
            }
            Ok(())
        },
        ..LLAMA
    },
    Family {
        model_types: &["flex_olmo"],
        classes: &["FlexOlmoForCausalLM"],
        architecture: "flex_olmo",
        parts: &[
            ATTENTION,
            HEAD_NORMS,
            &[
                ("post_attention_layernorm", "post_attention_norm"),
                ("post_feedforward_layernorm", "post_ffw_norm"),
                ("mlp.gate", "ffn_gate_inp"),
            ],
        ],
        layout: Layout::Same,
        defaults: || json!({"rms_norm_eps": 1e-6, "default_rope_theta": 5e5, "num_experts": 7, "num_experts_per_tok": 5}),
        bias_flags: &["attention_bias"],
        keys: |k| {
            k.refuse_number("clip_qkv")?;
            keys::experts(k)?;
            k.set("expert_weights_norm", k.config.flag("norm_topk_prob")?);
            Ok(())
        },
        ..LLAMA
    },
    Family {
        model_types: &["olmo_hybrid"],
        classes: &["OlmoHybridForCausalLM"],
        architecture: "olmo_hybrid",
        parts: &[
            ATTENTION,
            HEAD_NORMS,
            GATED,
            &[
                ("input_layernorm", "attn_norm"),
                ("attention_layer_norm", "attn_norm"),
                ("post_attention_layernorm", "post_attention_norm"),
                ("feedforward_layer_norm", "post_attention_norm"),
                ("post_feedforward_layernorm", "post_ffw_norm"),
            ],
        ],
        layout: Layout::Same,
        defaults: || json!({"rms_norm_eps": 1e-6, "linear_conv_kernel_dim": 4, "linear_allow_neg_eigval": true}),
        bias_flags: &["attention_bias"],
        keys: delta_net::olmo_hybrid,
        ..LLAMA
    },
    Family {
        model_types: &["kimi_linear"],
        classes: &["KimiLinearForCausalLM"],
        architecture: "kimi-linear",
        parts: &[
            LATENT,
            ATTENTION,
            PRE_NORMS,
            GATED,
            &[
                ("self_attn.q_conv1d", "ssm_conv1d_q"),
                ("self_attn.k_conv1d", "ssm_conv1d_k"),
                ("self_attn.v_conv1d", "ssm_conv1d_v"),
                ("self_attn.f_a_proj", "ssm_f_a"),
                ("self_attn.f_b_proj", "ssm_f_b"),
                ("self_attn.g_a_proj", "ssm_g_a"),
                ("self_attn.g_b_proj", "ssm_g_b"),
                ("self_attn.b_proj", "ssm_beta"),
                ("self_attn.A_log", "ssm_a"),
                ("self_attn.dt_bias", "ssm_dt.bias"),
                ("self_attn.o_norm", "ssm_norm"),
                ("block_sparse_moe.gate", "ffn_gate_inp"),
                (
                    "block_sparse_moe.gate.e_score_correction_bias",
                    "exp_probs_b.bias",
                ),
                (
                    "block_sparse_moe.shared_experts.gate_proj",
                    "ffn_gate_shexp",
                ),
                ("block_sparse_moe.shared_experts.up_proj", "ffn_up_shexp"),
                (
                    "block_sparse_moe.shared_experts.down_proj",
                    "ffn_down_shexp",
                ),
                // As transformers writes those of layers without experts.
                ("block_sparse_moe.gate_proj", "ffn_gate"),
                ("block_sparse_moe.up_proj", "ffn_up"),
                ("block_sparse_moe.down_proj", "ffn_down"),
            ],
        ],
        layout: Layout::Same,
        defaults: || {
            json!({"rms_norm_eps": 1e-5, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "num_experts_per_tok": 8,
                "routed_scaling_factor": 2.446, "norm_topk_prob": true, "linear_head_dim": 128, "linear_num_heads": 32,
                "linear_conv_kernel_dim": 4, "first_k_dense_replace": 1, "max_position_embeddings": 1_048_576})
        },
        bias_flags: &[],
        keys: kimi_linear,
        ..LLAMA
    },
    Family {
        model_types: &["bailing_hybrid"],
        classes: &["BailingMoeV3ForCausalLM", "BailingHybridForCausalLM"],
        architecture: "bailingmoe3",
        parts: &[
            PRE_NORMS,
            GATED,
            SHARED_EXPERTS,
            &[
                ("attention.q_proj", "attn_q"),
                ("attention.k_proj", "attn_k"),
                ("attention.v_proj", "attn_v"),
                ("attention.q_a_proj", "attn_q_a"),
                ("attention.q_a_layernorm", "attn_q_a_norm"),
                ("attention.q_b_proj", "attn_q_b"),
                ("attention.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
                ("attention.kv_a_layernorm", "attn_kv_a_norm"),
                ("attention.kv_b_proj", "attn_kv_b"),
                ("attention.dense", "attn_output"),
                ("attention.g_proj", "attn_gate"),
                ("attention.q_conv1d", "ssm_conv1d_q"),
                ("attention.k_conv1d", "ssm_conv1d_k"),
                ("attention.v_conv1d", "ssm_conv1d_v"),
                ("attention.f_proj", "ssm_f_a"),
                ("attention.b_proj", "ssm_beta"),
                ("attention.A_log", "ssm_a"),
                ("attention.dt_bias", "ssm_dt.bias"),
                ("attention.o_norm", "ssm_norm"),
                ("mlp.gate", "ffn_gate_inp"),
                ("mlp.gate.expert_bias", "exp_probs_b.bias"),
            ],
        ],
        layout: Layout::Same,
        defaults: || {
            json!({"rms_norm_eps": 1e-6, "n_group": 8, "topk_group": 4, "n_shared_experts": 1, "num_experts_per_tok": 8,
                "routed_scaling_factor": 2.5, "norm_topk_prob": true, "linear_conv_kernel_dim": 4, "layer_group_size": 6,
                "kda_safe_gate": true, "kda_lower_bound": -5.0, "first_k_dense_replace": 2,
                "max_position_embeddings": 262_144, "default_rope_theta": 6e6})
        },
        bias_flags: &[],
        keys: bailing,
        ..LLAMA
    },
    // Models that see or hear, whose text part is a Llama.
    Family {
        model_types: &["idefics3", "smolvlm", "voxtral"],
        classes: &[
            "Idefics3ForConditionalGeneration",
            "SmolVLMForConditionalGeneration",
            "VoxtralForConditionalGeneration",
        ],
        keys: |k| only(k, TEXT_MODEL_TYPE, &json!("llama")),
        ..LLAMA
    },
    // As GLM 4, whose head size its configs leave out.
    Family {
        model_types: &["glm4v_text", "glm4v"],
        classes: &["Glm4vForConditionalGeneration"],
        architecture: "glm4",
        parts: &[
            ATTENTION,
            PRE_NORMS,
            &[
                ("post_self_attn_layernorm", "post_attention_norm"),
                ("post_mlp_layernorm", "post_ffw_norm"),
            ],
            GATED_FUSED,
        ],
        layout: Layout::Same,
        defaults: || json!({"rms_norm_eps": 1e-5, "attention_bias": true}),
        bias_flags: &["attention_bias"],
        ..LLAMA
    },
    // Without inputs of layers and experts.
    Family {
        model_types: &["gemma4_unified_text", "gemma4_unified"],
        classes: &[
            "Gemma4UnifiedForCausalLM",
            "Gemma4UnifiedForConditionalGeneration",
        ],
        parts: &[
            ATTENTION,
            HEAD_NORMS,
            GEMMA_NORMS,
            GATED,
            &[("layer_scalar", "layer_output_scale.weight")],
        ],
        defaults: || {
            json!({"rms_norm_eps": 1e-6, "head_dim": 256, "num_attention_heads": 8,
                "num_key_value_heads": 4, "vocab_size": 262_144, "sliding_window": 1024,
                "max_position_embeddings": 262_144, "default_rope_theta": 1e6,
                "hidden_activation": "gelu_pytorch_tanh"})
        },
        ..GEMMA4
    },
];

/// A Llama with windows in all layers but every fourth from the first one on.
/// Layers see everything or a window, as a list of them says, or one of lists that are repeated.
fn gpt_neo(k: &mut Keys) -> Result<()> {
    const LAYERS: &str = "attention_layers";
    const TYPES: &str = "attention_types";
    const EXPECTED: &str = "\"global\" or \"local\" for each layer";
    let is_local = |kind: &Json| match kind.as_str() {
        Some("global") => Some(false),
        Some("local") => Some(true),
        _ => None,
    };
    let all = |kinds: &[Json]| kinds.iter().map(is_local).collect::<Option<Vec<bool>>>();
    // `[[kinds, how often], ...]`.
    let repeated = |types: &[Json]| {
        let mut found = Vec::new();
        for part in types {
            let (kinds, times) = (part.get(0)?.as_array()?, part.get(1)?.as_u64()?);
            let left = k.n_layers.saturating_sub(found.len() as u64);
            if times > left {
                return None;
            }
            found.extend(all(kinds)?.repeat(times as usize));
        }
        Some(found)
    };
    let (key, windowed) = match (k.config.find_array(LAYERS)?, k.config.find_array(TYPES)?) {
        (Some(kinds), _) => (LAYERS, all(kinds)),
        (None, Some(types)) => (TYPES, repeated(types)),
        (None, None) => (TYPES, Some((0..k.n_layers).map(|i| i % 2 == 1).collect())),
    };
    let windowed = windowed.filter(|all| all.len() as u64 == k.n_layers);
    let Some(windowed) = windowed else {
        let found = k.config.find(key).unwrap_or(&Json::Null);
        return Err(wrong(key, found, EXPECTED));
    };
    let window = k.config.size(&["window_size"])?;
    k.set_windows(window, windowed);
    k.set("attention.scale", 1f32);
    Ok(())
}

fn cwm(k: &mut Keys) -> Result<()> {
    if k.config.find("rope_parameters").is_none() && k.config.find("rope_scaling").is_none() {
        fail!(MissingKey, "config.json: key rope_parameters is missing");
    }
    let windowed = k.windowed(|layer| !layer.is_multiple_of(4))?;
    k.set_windows(k.config.size(&["sliding_window"])?, windowed);
    Ok(())
}

/// `Unsupported` if layers with a window, or those without, rotate by something else than `expected`: the kind of scaling, if only that
/// is possible, and the share of a head.
fn check_rope(k: &Keys, layers: &str, share: f32) -> Result<()> {
    let parameters = k.config.nested("rope_parameters")?;
    let own = match &parameters {
        Some(parameters) => parameters.nested(layers)?,
        None => None,
    };
    let Some(own) = own else {
        fail!(
            MissingKey,
            "config.json: key {layers} of rope_parameters is missing"
        );
    };
    let found = own.find_f32("partial_rotary_factor")?.unwrap_or(1.0);
    if share != found {
        fail!(
            Unsupported,
            "config.json: partial_rotary_factor of {layers} is {found}; only {share} is supported"
        );
    }
    Ok(())
}

/// LFM 3: convolutions, attention with a window and without.
fn lfm3(k: &mut Keys) -> Result<()> {
    let eps = k.config.f32("norm_eps")?;
    k.set("attention.layer_norm_rms_epsilon", eps);
    k.copy_size("conv_L_cache", "shortconv.l_cache")?;
    k.set("attention.gated", k.config.flag("use_attention_gate")?);
    k.set("attention.post_norm", k.config.flag("use_sandwich_norm")?);
    // Which of the others are convolutions, the list alone says.
    let windowed = k.windowed(|layer| layer > 0 && layer.is_multiple_of(4))?;
    let attends: Vec<bool> = match k.config.find_array("layer_types")? {
        Some(types) => types.iter().map(|ty| ty != "conv").collect(),
        None => (0..k.n_layers)
            .map(|layer| layer > 0 && layer.is_multiple_of(2))
            .collect(),
    };
    k.set_kv_heads(&attends)?;
    if windowed.contains(&true) {
        check_rope(k, "sliding_attention", 1.0)?;
        k.set_windows(k.config.size(&["sliding_window"])?, windowed);
    }
    k.set("rope.dimension_count_swa", k.head_dim);
    Ok(())
}

/// Brings the config of Step 3.5 as it is published into the form that transformers writes.
pub(super) fn step35_config(config: &mut Config) -> Result<()> {
    const TYPES: &str = "layer_types";
    const OTHERS: &str = "attention_other_setting";
    const SPARSE: &str = "moe_layers_enum";
    config.rename(&[
        ("num_attention_groups", "num_key_value_heads"),
        ("moe_num_experts", "n_routed_experts"),
        ("moe_top_k", "num_experts_per_tok"),
        ("share_expert_dims", "share_expert_dim"),
    ]);
    let n_layers = config.size(&["num_hidden_layers"])? as usize;
    // These lists may have further layers, which guess tokens ahead.
    for key in [
        TYPES,
        "mlp_layer_types",
        "swiglu_limits",
        "swiglu_limits_shared",
    ] {
        if let Some(list) = config.find_array(key)?
            && list.len() > n_layers
        {
            let list = list[..n_layers].to_vec();
            config.set(key, list.into());
        }
    }
    let types: Vec<Json> = match config.find_array(TYPES)? {
        Some(types) => types.clone(),
        None => vec!["full_attention".into(); n_layers],
    };
    if let Some(others) = config.nested(OTHERS)? {
        if let Some(groups) = others.find("num_attention_groups")
            && config.find("num_key_value_heads") != Some(groups)
        {
            fail!(
                Unsupported,
                "config.json: {OTHERS} has other num_attention_groups, which is not supported"
            );
        }
        if let Some(heads) = others.find("num_attention_heads") {
            config.set_default("num_sliding_attention_heads", heads.clone());
        }
    }
    if let Some(sparse) = config.find(SPARSE)
        && config.find("mlp_layer_types").is_none()
    {
        let number = |number: &str| number.trim().parse::<usize>().ok();
        let sparse: Option<Vec<usize>> = match sparse {
            Json::String(list) => list.split(',').map(number).collect(),
            Json::Array(list) => list.iter().map(|v| Some(v.as_u64()? as usize)).collect(),
            _ => None,
        };
        let Some(sparse) = sparse else {
            return Err(wrong(
                SPARSE,
                &config.find(SPARSE).cloned().into(),
                "a list of layers",
            ));
        };
        let of_layer = |layer| match sparse.contains(&layer) {
            true => "sparse",
            false => "dense",
        };
        let kinds: Vec<&str> = (0..n_layers).map(of_layer).collect();
        config.set("mlp_layer_types", json!(kinds));
    }
    let theta = config.find("rope_theta").cloned();
    let shares = config.find_array("partial_rotary_factors")?.cloned();
    let Some(theta) = theta else {
        return Ok(());
    };
    // Whatever of these is a list has a number for each layer.
    let mut by_kind = serde_json::Map::new();
    for kind in ["full_attention", "sliding_attention"] {
        let Some(first) = types.iter().position(|ty| ty == kind) else {
            continue;
        };
        let of_layer = |list: &[Json], key: &str| match list.get(first) {
            Some(value) => Ok(value.clone()),
            None => Err(wrong(key, &list.to_vec().into(), "a number for each layer")),
        };
        for (layer, ty) in types.iter().enumerate() {
            let differs = |list: &[Json]| list.get(layer) != list.get(first);
            if ty == kind
                && (theta.as_array().is_some_and(|list| differs(list))
                    || shares.as_ref().is_some_and(|list| differs(list)))
            {
                fail!(
                    Unsupported,
                    "config.json: rope_theta or partial_rotary_factors of layer {layer} differ from those of layer {first}, which is of its kind"
                );
            }
        }
        let mut own = match (kind, config.find_object("rope_scaling")?) {
            ("full_attention", Some(scaling)) => scaling.clone(),
            _ => serde_json::Map::new(),
        };
        let theta = match &theta {
            Json::Array(list) => of_layer(list, "rope_theta")?,
            one => one.clone(),
        };
        own.insert("rope_theta".into(), theta);
        if let Some(shares) = &shares {
            let share = of_layer(shares, "partial_rotary_factors")?;
            own.insert("partial_rotary_factor".into(), share);
        }
        by_kind.insert(kind.into(), own.into());
    }
    config.set("rope_theta", Json::Null);
    config.set_default("rope_parameters", by_kind.into());
    Ok(())
}

/// Sets the width that the first configs of BLOOM have by another name.
pub(super) fn bloom_config(config: &mut Config) {
    config.rename(&[("n_embed", "hidden_size"), ("n_embd", "hidden_size")]);
}

/// Brings the config of Kimi Linear as it is published into the form that transformers has.
pub(super) fn kimi_config(config: &mut Config) -> Result<()> {
    const LINEAR: &str = "linear_attn_config";
    const LISTS: [(&str, &str); 2] = [
        ("full_attn_layers", "full_attention"),
        ("kda_layers", "linear_attention"),
    ];
    config.rename(&[
        ("short_conv_kernel_size", "linear_conv_kernel_dim"),
        ("model_max_length", "max_position_embeddings"),
        ("num_experts_per_token", "num_experts_per_tok"),
        ("moe_renormalize", "norm_topk_prob"),
        ("num_expert_group", "n_group"),
        ("num_shared_experts", "n_shared_experts"),
    ]);
    let Some(linear) = config.nested(LINEAR)? else {
        return Ok(());
    };
    for (old, new) in [
        ("head_dim", "linear_head_dim"),
        ("num_heads", "linear_num_heads"),
        ("short_conv_kernel_size", "linear_conv_kernel_dim"),
    ] {
        if let Some(value) = linear.find(old).cloned() {
            config.set_default(new, value);
        }
    }
    let mut types = Vec::new();
    for layer in 1..=config.size(&["num_hidden_layers"])? {
        let mut kinds = Vec::new();
        for (list, kind) in LISTS {
            let layers = linear.find_array(list)?;
            if layers.is_some_and(|layers| layers.contains(&layer.into())) {
                kinds.push(kind);
            }
        }
        let [kind] = kinds[..] else {
            let lists = LISTS.map(|(list, _)| list).to_vec().into();
            return Err(wrong(LINEAR, &lists, "lists that have each layer once"));
        };
        types.push(kind);
    }
    config.set_default("layer_types", json!(types));
    Ok(())
}

/// Kimi Linear, some of whose layers attend, and the others have steps of each channel.
fn kimi_linear(k: &mut Keys) -> Result<()> {
    only(k, "mla_use_nope", &json!(true))?;
    let linear = k.config.size(&["linear_num_heads"])?;
    let heads = k.config.size(&["num_attention_heads"])?;
    if linear != heads {
        fail!(
            Unsupported,
            "config.json: linear_num_heads is {linear}, but num_attention_heads is {heads}; they must be the same"
        );
    }
    k.copy_size("linear_head_dim", "kda.head_dim")?;
    steps_of_channels(k, |layer| layer > 0 && layer.is_multiple_of(4))
}

/// Ling 3, whose decay has a floor, and whose heads that attend have gates.
fn bailing(k: &mut Keys) -> Result<()> {
    for (key, value) in [
        ("no_kda_lora", json!(true)),
        ("kda_safe_gate", json!(true)),
        ("gated_attention_proj_granularity_type", json!("head_wise")),
    ] {
        only(k, key, &value)?;
    }
    let group = k.config.size(&["layer_group_size"])?;
    if k.config.find("layer_types").is_none() && !k.n_layers.is_multiple_of(group) {
        fail!(
            Unsupported,
            "config.json: layer_group_size is {group}, which does not divide the {} layers",
            k.n_layers
        );
    }
    // Configs of transformers have that of rope by the other name.
    let own = ["linear_head_dim", "head_dim"];
    k.set("kda.head_dim", k.config.size(&own)?);
    k.set("kda.safe_gate", true);
    k.set("kda.gate_lower_bound", k.config.f32("kda_lower_bound")?);
    if let Some(shared) = k.config.find_size("moe_shared_expert_intermediate_size")? {
        k.set("expert_shared_feed_forward_length", shared);
    }
    limits(k, "expert_swiglu_limit_list", "swiglu_clamp_exp")?;
    limits(k, "share_expert_swiglu_limit_list", "swiglu_clamp_shexp")?;
    steps_of_channels(k, |layer| (layer + 1).is_multiple_of(group))
}

/// `Unsupported` if a key has another value.
pub(super) fn only(k: &Keys, key: &str, only: &Json) -> Result<()> {
    if let Some(value) = k.config.find(key).filter(|value| *value != only) {
        fail!(
            Unsupported,
            "config.json: {key} is {value}; only {only} is supported"
        );
    }
    Ok(())
}

/// What networks have in common whose delta nets have steps of each channel, and which layers attend if no list says so.
fn steps_of_channels(k: &mut Keys, attends: impl Fn(u64) -> bool) -> Result<()> {
    k.refuse("attention_bias")?;
    only(k, "moe_router_activation_func", &json!("sigmoid"))?;
    only(k, "score_function", &json!("sigmoid"))?;
    only(k, "moe_layer_freq", &json!(1))?;
    latent::keys(k)?;
    k.windowed(|_| false)?;
    let attends: Vec<bool> = match k.config.find_array("layer_types")? {
        Some(types) => types.iter().map(|ty| ty == "full_attention").collect(),
        None => (0..k.n_layers).map(attends).collect(),
    };
    let heads = attends.into_iter().map(i64::from).collect();
    k.set("attention.head_count_kv", Value::Array(Array::I64(heads)));
    k.copy_size("linear_conv_kernel_dim", "ssm.conv_kernel")?;
    keys::experts(k)?;
    grouped_sigmoids(k)?;
    dense_and_sparse(k)?;
    Ok(())
}

/// Muse Glimmer, whose layers with a window rotate, which are all but every fourth, counted from the last one.
fn muse_glimmer(k: &mut Keys) -> Result<()> {
    let last = k.n_layers - 1;
    let windowed = k.windowed(|layer| !(last - layer).is_multiple_of(4))?;
    let rotated = rotated_by_base(k)?;
    if rotated.is_some_and(|rotated| rotated != windowed) {
        fail!(
            Unsupported,
            "config.json: layer_rope_theta has other layers that rotate than those with a window, which is not supported"
        );
    }
    let eps = k.config.f32("post_norm_eps")?;
    if eps != 1e-8 {
        fail!(
            Unsupported,
            "config.json: post_norm_eps is {eps}; only 1e-8 is supported"
        );
    }
    k.set_windows(k.config.size(&["sliding_window"])?, windowed);
    k.set("logit_scale", k.config.f32("output_multiplier")?);
    k.copy(CAP, CAP)
}

/// Tensors that a file has of what a config says: norms of queries and keys, whose weights are the factor on queries, and 1.
pub(super) fn made(k: &Keys) -> Result<Vec<Tensor>> {
    if k.architecture != "muse-glimmer" {
        return Ok(Vec::new());
    }
    let factor = k.config.f32("qk_scale_factor")?;
    let mut made = Vec::new();
    for layer in 0..k.n_layers {
        for (part, weight) in [("q", factor), ("k", 1.0)] {
            let name = format!("blk.{layer}.attn_{part}_norm.weight");
            let weights = try_vec(k.head_dim as usize, weight, "the weights of a norm")?;
            made.push(small(&name, vec![weights.len()], &weights)?);
        }
    }
    Ok(made)
}

/// Step 3.5 and 3.7.
fn step35(k: &mut Keys) -> Result<()> {
    const HEADS: &str = "per_layer_config";
    k.copy_size("n_routed_experts", "expert_count")?;
    k.copy_size("num_experts_per_tok", "expert_used_count")?;
    k.copy_size("moe_intermediate_size", "expert_feed_forward_length")?;
    k.copy_size("share_expert_dim", "expert_shared_feed_forward_length")?;
    let scale = k.config.f32("moe_router_scaling_factor")?;
    k.set("expert_weights_scale", scale);
    k.set("expert_weights_norm", true);
    k.set("expert_gating_func", 2u32);
    match k.config.find("mlp_layer_types") {
        Some(_) => dense_and_sparse(k)?,
        None => k.set("leading_dense_block_count", 3.min(k.n_layers)),
    }
    if k.config.find("gating") != Some(&json!("per-head")) {
        only(k, "gating", &json!(true))?;
    }
    for (key, value) in [
        ("use_head_wise_attn_gate", json!(true)),
        ("norm_expert_weight", json!(true)),
        ("moe_router_activation", json!("sigmoid")),
    ] {
        only(k, key, &value)?;
    }
    k.refuse("use_bidirectional_attention")?;
    if k.config.find("sparse_attention_config").is_some() {
        fail!(
            Unsupported,
            "config.json: sparse_attention_config is set, which is not supported"
        );
    }
    if k.config.find("query_pre_attn_scalar").is_some() {
        k.attention_scale()?;
    }
    let windowed = k.windowed(|_| false)?;
    let heads = k.config.size(&["num_attention_heads"])?;
    let own = k.config.find_object(HEADS)?;
    let of_windowed = k.config.find_size("num_sliding_attention_heads")?;
    let mut of_layers = Vec::new();
    for (layer, windowed) in windowed.iter().enumerate() {
        let usual = match *windowed {
            true => of_windowed.unwrap_or(heads),
            false => heads,
        };
        let own = own.and_then(|layers| layers.get(&layer.to_string()));
        let own = own.and_then(Json::as_object);
        let found = own.and_then(|own| own.get("num_attention_heads"));
        let found = match found {
            None => usual,
            Some(value) => match value.as_u64().filter(|n| (1..1 << 31).contains(n)) {
                Some(heads) => heads,
                None => return Err(wrong(HEADS, value, "a number of heads")),
            },
        };
        if let Some(key) = own.and_then(|own| own.keys().find(|key| *key != "num_attention_heads"))
        {
            fail!(
                Unsupported,
                "config.json: {HEADS} has {key} of layer {layer}, which is not supported"
            );
        }
        of_layers.push(found as i64);
    }
    k.set("attention.head_count", Value::Array(Array::I64(of_layers)));
    let kv_heads = k.config.size(&["num_key_value_heads"])? as i64;
    let kv_heads = Value::Array(Array::I64(vec![kv_heads; windowed.len()]));
    k.set("attention.head_count_kv", kv_heads);
    for (kind, share) in [("full_attention", 0.5), ("sliding_attention", 1.0)] {
        if windowed.contains(&(kind == "sliding_attention")) {
            check_rope(k, kind, share)?;
        }
    }
    // Files have that of a whole head.
    k.set("rope.dimension_count", k.head_dim);
    let window = k.config.find_size("sliding_window")?;
    let window = window.unwrap_or(k.config.size(&["max_position_embeddings"])?);
    k.set_windows(window, windowed);
    limits(k, "swiglu_limits", "swiglu_clamp_exp")?;
    limits(k, "swiglu_limits_shared", "swiglu_clamp_shexp")
}

/// Sets the limits of layers, if there are any; null stands for none.
fn limits(k: &mut Keys, from: &str, to: &str) -> Result<()> {
    let Some(list) = k.config.find_array(from)? else {
        return Ok(());
    };
    let limit = |value: &Json| match value {
        Json::Null => Some(0.0),
        number => Some(number.as_f64()? as f32),
    };
    // The list may go on for layers that guess further tokens.
    let own = &list[..list.len().min(k.n_layers as usize)];
    let limits: Option<Vec<f32>> = own.iter().map(limit).collect();
    match limits {
        Some(limits) => k.set(to, Value::Array(Array::F32(limits))),
        None => return Err(wrong(from, &list.clone().into(), "a list of numbers")),
    }
    Ok(())
}
