//! The families: which class of the transformers library is which architecture in GGUF, what their
//! tensors are called in both, and what their configs leave out.

use super::further::FURTHER;
use super::json::Config;
use super::keys::{self, Keys};
use super::later::LATER;
use super::{delta_net, gemma4, latent, mamba2, nemotron_h, relatives};
use crate::error::{Error, Result, Status, fail};
use serde_json::{Value, json};

/// Names of a layer's parts: those of the folder, and those of GGUF.
pub(super) type Parts = &'static [(&'static str, &'static str)];

/// A family of models.
pub(super) struct Family {
    /// `model_type` in the config; of a model with several parts, that of the text part last.
    pub model_types: &'static [&'static str],
    /// `architectures` in the config.
    pub classes: &'static [&'static str],
    /// `general.architecture` in GGUF.
    pub architecture: &'static str,
    /// Activations that the family runs with.
    pub(super) activations: &'static [&'static str],
    /// Parts of a layer.
    pub(super) parts: &'static [Parts],
    pub layout: Layout,
    /// Whether positions are rotations.
    pub rope: bool,
    /// Flags of the config that the family has, and that give its matrices biases.
    pub bias_flags: &'static [&'static str],
    /// Values that a config may leave out.
    pub(super) defaults: fn() -> Value,
    /// Whether the head is the embedding where the config does not say so.
    pub tied: bool,
    /// Sets the keys that are this family's own.
    pub keys: fn(&mut Keys) -> Result<()>,
}

/// How the tensors of a family differ from GGUF's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// Not at all.
    Same,
    /// Rope rotates halves of q and k, in GGUF neighbours.
    Halves,
    /// Norms lack the 1 that the model adds to them.
    ShiftedNorms,
    /// Matrices have a row per input.
    Transposed,
    /// `attn_qkv` has, of each key and value head, its queries, its key and its value.
    GroupedHeads,
}

const SILU: &[&str] = &["silu", "swish"];
pub(super) const GELU_TANH: &[&str] = &["gelu_pytorch_tanh", "gelu_new"];

/// Those of GPT-2, and of its relatives with the same names.
pub(super) const GPT_ATTENTION: Parts =
    &[("attn.c_attn", "attn_qkv"), ("attn.c_proj", "attn_output")];
pub(super) const GPT_NORMS_AND_PLAIN: Parts = &[
    ("ln_1", "attn_norm"),
    ("ln_2", "ffn_norm"),
    ("mlp.c_fc", "ffn_up"),
    ("mlp.c_proj", "ffn_down"),
];
pub(super) const ATTENTION: Parts = &[
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
];
pub(super) const HEAD_NORMS: Parts = &[
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
];
pub(super) const PRE_NORMS: Parts = &[
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
];
pub(super) const GATED: Parts = &[
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];
pub(super) const GATED_FUSED: Parts = &[
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];
pub(super) const PLAIN: Parts = &[("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down")];
const LATE_NORMS: Parts = &[
    ("self_attn.query_layernorm", "attn_q_norm"),
    ("self_attn.key_layernorm", "attn_k_norm"),
];
pub(super) const SHARED_EXPERTS: Parts = &[
    ("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_experts.up_proj", "ffn_up_shexp"),
    ("mlp.shared_experts.down_proj", "ffn_down_shexp"),
];
pub(super) const SIGMOID_ROUTER: Parts = &[
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
];
const NEMOTRON_H: Family = Family {
    model_types: &["nemotron_h"],
    classes: &["NemotronHForCausalLM"],
    architecture: "nemotron_h",
    activations: &["relu2"],
    parts: &[&[
        ("norm", "attn_norm"),
        ("mixer.q_proj", "attn_q"),
        ("mixer.k_proj", "attn_k"),
        ("mixer.v_proj", "attn_v"),
        ("mixer.o_proj", "attn_output"),
        ("mixer.in_proj", "ssm_in"),
        ("mixer.conv1d", "ssm_conv1d"),
        ("mixer.out_proj", "ssm_out"),
        ("mixer.up_proj", "ffn_up"),
        ("mixer.down_proj", "ffn_down"),
        ("mixer.gate", "ffn_gate_inp"),
        ("mixer.gate.e_score_correction_bias", "exp_probs_b.bias"),
        ("mixer.fc1_latent_proj", "ffn_latent_down"),
        ("mixer.fc2_latent_proj", "ffn_latent_up"),
        ("mixer.shared_experts.up_proj", "ffn_up_shexp"),
        ("mixer.shared_experts.down_proj", "ffn_down_shexp"),
    ]],
    // Nothing is rotated, but llama.cpp's converter orders rows as if.
    layout: Layout::Halves,
    rope: false,
    defaults: || {
        json!({"layer_norm_epsilon": 1e-5, "mlp_hidden_act": "relu2", "head_dim": 128,
            "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128,
            "conv_kernel": 4, "use_conv_bias": true, "n_routed_experts": 8, "num_experts_per_tok": 2,
            "moe_intermediate_size": 7688, "moe_shared_expert_intermediate_size": 7688, "n_shared_experts": 1, "n_group": 1,
            "topk_group": 1, "routed_scaling_factor": 1.0, "norm_topk_prob": true})
    },
    bias_flags: &["use_conv_bias", "use_bias", "mlp_bias"],
    keys: nemotron_h::keys,
    ..LLAMA
};
/// The same where the kinds of its layers say that some have experts.
static NEMOTRON_H_EXPERTS: Family = Family {
    architecture: "nemotron_h_moe",
    keys: nemotron_h::experts,
    ..NEMOTRON_H
};
pub(super) const LATENT: Parts = &[
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.q_a_proj", "attn_q_a"),
    ("self_attn.q_a_layernorm", "attn_q_a_norm"),
    ("self_attn.q_b_proj", "attn_q_b"),
    ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
    ("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
    ("self_attn.kv_b_proj", "attn_kv_b"),
    ("self_attn.o_proj", "attn_output"),
];
pub(super) const GEMMA_NORMS: Parts = &[
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];

pub(super) const GEMMA_INPUTS: Parts = &[
    ("per_layer_input_gate", "inp_gate"),
    ("per_layer_projection", "proj"),
    ("post_per_layer_input_norm", "post_norm"),
];

pub(super) const LFM2: Parts = &[
    ("self_attn.out_proj", "attn_output"),
    ("self_attn.q_layernorm", "attn_q_norm"),
    ("self_attn.k_layernorm", "attn_k_norm"),
    ("operator_norm", "attn_norm"),
    ("ffn_norm", "ffn_norm"),
    ("feed_forward.w1", "ffn_gate"),
    ("feed_forward.w3", "ffn_up"),
    ("feed_forward.w2", "ffn_down"),
    ("conv.in_proj", "shortconv.in_proj"),
    ("conv.conv", "shortconv.conv"),
    ("conv.out_proj", "shortconv.out_proj"),
];

const QWEN_NORMS: Parts = &[
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "post_attention_norm"),
];
pub(super) const QWEN_EXPERTS: Parts = &[
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
];

fn delta_net_defaults() -> Value {
    json!({"rms_norm_eps": 1e-6, "head_dim": 256, "partial_rotary_factor": 0.25,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32})
}

/// What most families are.
pub(super) const LLAMA: Family = Family {
    model_types: &["llama"],
    classes: &["LlamaForCausalLM"],
    architecture: "llama",
    activations: SILU,
    parts: &[ATTENTION, PRE_NORMS, GATED],
    layout: Layout::Halves,
    rope: true,
    bias_flags: &["attention_bias", "mlp_bias"],
    defaults: || json!({"rms_norm_eps": 1e-6}),
    tied: false,
    keys: |_| Ok(()),
};

pub(super) const GEMMA4: Family = Family {
    model_types: &["gemma4_text", "gemma4"],
    classes: &["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"],
    architecture: "gemma4",
    activations: GELU_TANH,
    parts: &[
        ATTENTION,
        HEAD_NORMS,
        GEMMA_NORMS,
        GATED,
        GEMMA_INPUTS,
        &[
            ("layer_scalar", "layer_output_scale.weight"),
            ("router.proj", "ffn_gate_inp"),
            ("router.scale", "ffn_gate_inp.scale"),
            ("router.per_expert_scale", "ffn_down_exps.scale"),
            ("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
            ("post_feedforward_layernorm_1", "post_ffw_norm_1"),
            ("post_feedforward_layernorm_2", "post_ffw_norm_2"),
        ],
    ],
    layout: Layout::Same,
    defaults: || {
        json!({"rms_norm_eps": 1e-6, "head_dim": 256, "num_attention_heads": 8,
            "num_key_value_heads": 4, "vocab_size": 262_144, "sliding_window": 512,
            "max_position_embeddings": 131_072, "default_rope_theta": 1e6,
            "hidden_activation": "gelu_pytorch_tanh"})
    },
    tied: true,
    bias_flags: &["attention_bias"],
    keys: gemma4::keys,
    ..LLAMA
};

const FAMILIES: &[Family] = &[
    LLAMA,
    Family {
        model_types: &["mistral", "ministral"],
        classes: &["MistralForCausalLM", "MinistralForCausalLM"],
        bias_flags: &[],
        keys: keys::window_everywhere,
        ..LLAMA
    },
    Family {
        model_types: &["mixtral"],
        classes: &["MixtralForCausalLM"],
        parts: &[
            ATTENTION,
            PRE_NORMS,
            &[
                ("block_sparse_moe.gate", "ffn_gate_inp"),
                ("mlp.gate", "ffn_gate_inp"),
            ],
        ],
        defaults: || json!({"rms_norm_eps": 1e-5, "default_rope_theta": 1e6}),
        bias_flags: &[],
        keys: |k| {
            keys::experts(k)?;
            keys::window_everywhere(k)
        },
        ..LLAMA
    },
    Family {
        model_types: &["qwen2"],
        classes: &["Qwen2ForCausalLM"],
        architecture: "qwen2",
        layout: Layout::Same,
        bias_flags: &[],
        keys: keys::window_where_asked,
        ..LLAMA
    },
    // Qwen 2 with a head that guesses further tokens.
    Family {
        model_types: &["mimo"],
        classes: &["MiMoForCausalLM"],
        architecture: "qwen2",
        layout: Layout::Same,
        bias_flags: &[],
        keys: keys::window_where_asked,
        ..LLAMA
    },
    Family {
        model_types: &["qwen3"],
        classes: &["Qwen3ForCausalLM"],
        architecture: "qwen3",
        parts: &[ATTENTION, HEAD_NORMS, PRE_NORMS, GATED],
        layout: Layout::Same,
        defaults: || json!({"rms_norm_eps": 1e-6, "head_dim": 128}),
        bias_flags: &["attention_bias"],
        keys: keys::window_where_asked,
        ..LLAMA
    },
    Family {
        model_types: &["qwen3_moe"],
        classes: &["Qwen3MoeForCausalLM"],
        architecture: "qwen3moe",
        parts: &[
            ATTENTION,
            HEAD_NORMS,
            PRE_NORMS,
            &[("mlp.gate", "ffn_gate_inp")],
        ],
        layout: Layout::Same,
        bias_flags: &["attention_bias"],
        keys: keys::qwen3moe,
        ..LLAMA
    },
    Family {
        model_types: &["qwen3_next"],
        classes: &["Qwen3NextForCausalLM"],
        architecture: "qwen3next",
        parts: &[ATTENTION, HEAD_NORMS, QWEN_NORMS, QWEN_EXPERTS, GATED],
        layout: Layout::ShiftedNorms,
        defaults: delta_net_defaults,
        bias_flags: &["attention_bias"],
        keys: delta_net::experts,
        ..LLAMA
    },
    Family {
        model_types: &["qwen3_5_text", "qwen3_5"],
        classes: &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
        architecture: "qwen35",
        parts: &[ATTENTION, HEAD_NORMS, QWEN_NORMS, GATED],
        layout: Layout::ShiftedNorms,
        defaults: delta_net_defaults,
        bias_flags: &["attention_bias"],
        keys: delta_net::dense,
        ..LLAMA
    },
    Family {
        model_types: &["qwen3_5_moe_text", "qwen3_5_moe"],
        classes: &[
            "Qwen3_5MoeForCausalLM",
            "Qwen3_5MoeForConditionalGeneration",
        ],
        architecture: "qwen35moe",
        parts: &[ATTENTION, HEAD_NORMS, QWEN_NORMS, QWEN_EXPERTS],
        layout: Layout::ShiftedNorms,
        defaults: delta_net_defaults,
        bias_flags: &["attention_bias"],
        keys: delta_net::experts,
        ..LLAMA
    },
    Family {
        model_types: &["gemma2"],
        classes: &["Gemma2ForCausalLM"],
        architecture: "gemma2",
        activations: GELU_TANH,
        parts: &[ATTENTION, GEMMA_NORMS, GATED],
        layout: Layout::ShiftedNorms,
        defaults: || {
            json!({"rms_norm_eps": 1e-6, "head_dim": 256, "query_pre_attn_scalar": 256,
                "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
                "hidden_activation": "gelu_pytorch_tanh"})
        },
        tied: true,
        bias_flags: &["attention_bias"],
        keys: keys::gemma2,
        ..LLAMA
    },
    Family {
        model_types: &["gemma3_text", "gemma3"],
        classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
        architecture: "gemma3",
        activations: GELU_TANH,
        parts: &[ATTENTION, HEAD_NORMS, GEMMA_NORMS, GATED],
        layout: Layout::ShiftedNorms,
        defaults: gemma3_defaults,
        tied: true,
        bias_flags: &["attention_bias"],
        keys: keys::gemma3,
        ..LLAMA
    },
    Family {
        model_types: &["gemma3_text"],
        classes: &["Gemma3TextModel"],
        architecture: "gemma-embedding",
        activations: GELU_TANH,
        parts: &[ATTENTION, HEAD_NORMS, GEMMA_NORMS, GATED],
        layout: Layout::ShiftedNorms,
        defaults: gemma3_defaults,
        tied: true,
        bias_flags: &["attention_bias"],
        keys: keys::gemma_embedding,
        ..LLAMA
    },
    GEMMA4,
    Family {
        model_types: &["phi"],
        classes: &["PhiForCausalLM"],
        architecture: "phi2",
        activations: GELU_TANH,
        parts: &[
            &[
                ("self_attn.q_proj", "attn_q"),
                ("self_attn.k_proj", "attn_k"),
                ("self_attn.v_proj", "attn_v"),
                ("self_attn.dense", "attn_output"),
            ],
            &[
                ("self_attn.q_layernorm", "attn_q_norm"),
                ("self_attn.k_layernorm", "attn_k_norm"),
            ],
            &[("input_layernorm", "attn_norm")],
            &[("mlp.fc1", "ffn_up"), ("mlp.fc2", "ffn_down")],
        ],
        layout: Layout::Same,
        defaults: || json!({"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5, "hidden_act": "gelu_new"}),
        bias_flags: &[],
        ..LLAMA
    },
    Family {
        model_types: &["phi3"],
        classes: &["Phi3ForCausalLM"],
        architecture: "phi3",
        parts: &[
            &[
                ("self_attn.qkv_proj", "attn_qkv"),
                ("self_attn.o_proj", "attn_output"),
            ],
            PRE_NORMS,
            GATED_FUSED,
        ],
        layout: Layout::Same,
        defaults: || json!({"rms_norm_eps": 1e-5}),
        bias_flags: &[],
        keys: keys::phi3,
        ..LLAMA
    },
    Family {
        model_types: &["phimoe"],
        classes: &["PhimoeForCausalLM", "PhiMoEForCausalLM"],
        architecture: "phimoe",
        parts: &[
            ATTENTION,
            PRE_NORMS,
            &[
                ("block_sparse_moe.gate", "ffn_gate_inp"),
                ("mlp.router", "ffn_gate_inp"),
            ],
        ],
        layout: Layout::Same,
        defaults: || {
            json!({"rms_norm_eps": 1e-5, "default_rope_theta": 1e6, "num_local_experts": 16, "num_experts_per_tok": 2,
                "router_jitter_noise": 0.01})
        },
        bias_flags: &["attention_bias"],
        keys: |k| {
            keys::phi3(k)?;
            keys::experts(k)?;
            k.set("router_jitter_noise", k.config.f32("router_jitter_noise")?);
            Ok(())
        },
        ..LLAMA
    },
    Family {
        model_types: &["gpt2"],
        classes: &["GPT2LMHeadModel"],
        architecture: "gpt2",
        activations: GELU_TANH,
        parts: &[GPT_ATTENTION, GPT_NORMS_AND_PLAIN],
        layout: Layout::Transposed,
        rope: false,
        defaults: || json!({"layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}),
        tied: true,
        bias_flags: &[],
        keys: keys::gpt2,
    },
    Family {
        model_types: &["olmo2"],
        classes: &["Olmo2ForCausalLM"],
        architecture: "olmo2",
        parts: &[
            ATTENTION,
            HEAD_NORMS,
            &[
                ("post_attention_layernorm", "post_attention_norm"),
                ("post_feedforward_layernorm", "post_ffw_norm"),
            ],
            GATED,
        ],
        layout: Layout::Same,
        defaults: || json!({"rms_norm_eps": 1e-5}),
        bias_flags: &["attention_bias"],
        ..LLAMA
    },
    Family {
        model_types: &["olmo3"],
        classes: &["Olmo3ForCausalLM"],
        architecture: "olmo2",
        parts: &[
            ATTENTION,
            HEAD_NORMS,
            &[
                ("post_attention_layernorm", "post_attention_norm"),
                ("post_feedforward_layernorm", "post_ffw_norm"),
            ],
            GATED,
        ],
        layout: Layout::Same,
        defaults: || json!({"rms_norm_eps": 1e-5, "default_rope_theta": 500_000.0}),
        bias_flags: &["attention_bias"],
        keys: keys::olmo3,
        ..LLAMA
    },
    Family {
        model_types: &["granite"],
        classes: &["GraniteForCausalLM"],
        architecture: "granite",
        keys: keys::granite,
        ..LLAMA
    },
    Family {
        model_types: &["granitemoehybrid"],
        classes: &["GraniteMoeHybridForCausalLM"],
        architecture: "granitehybrid",
        parts: &[
            ATTENTION,
            PRE_NORMS,
            &[
                ("mamba.in_proj", "ssm_in"),
                ("mamba.conv1d", "ssm_conv1d"),
                ("mamba.out_proj", "ssm_out"),
                ("block_sparse_moe.router.layer", "ffn_gate_inp"),
                ("block_sparse_moe.router", "ffn_gate_inp"),
            ],
        ],
        defaults: || {
            json!({"rms_norm_eps": 1e-6, "shared_intermediate_size": 1024, "mamba_expand": 2,
                "mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4,
                "mamba_conv_bias": true})
        },
        bias_flags: &["attention_bias", "mamba_conv_bias", "mamba_proj_bias"],
        keys: mamba2::granite_hybrid,
        ..LLAMA
    },
    NEMOTRON_H,
    Family {
        model_types: &["smollm3"],
        classes: &["SmolLM3ForCausalLM"],
        architecture: "smollm3",
        defaults: || json!({"rms_norm_eps": 1e-6, "default_rope_theta": 2e6}),
        tied: true,
        keys: keys::smollm3,
        ..LLAMA
    },
    Family {
        model_types: &["starcoder2"],
        classes: &["Starcoder2ForCausalLM"],
        architecture: "starcoder2",
        activations: GELU_TANH,
        parts: &[
            ATTENTION,
            PRE_NORMS,
            &[("mlp.c_fc", "ffn_up"), ("mlp.c_proj", "ffn_down")],
        ],
        layout: Layout::Same,
        defaults: || json!({"norm_epsilon": 1e-5, "hidden_act": "gelu_pytorch_tanh"}),
        tied: true,
        bias_flags: &["use_bias"],
        keys: keys::window_everywhere,
        ..LLAMA
    },
    Family {
        model_types: &["gpt_oss"],
        classes: &["GptOssForCausalLM"],
        architecture: "gpt-oss",
        parts: &[
            ATTENTION,
            &[
                ("self_attn.sinks", "attn_sinks.weight"),
                ("input_layernorm", "attn_norm"),
                ("post_attention_layernorm", "post_attention_norm"),
                ("mlp.router", "ffn_gate_inp"),
            ],
        ],
        layout: Layout::Same,
        defaults: || json!({"rms_norm_eps": 1e-5, "head_dim": 64, "default_rope_theta": 150_000.0}),
        bias_flags: &["attention_bias"],
        keys: keys::gpt_oss,
        ..LLAMA
    },
    Family {
        model_types: &["lfm2", "lfm2_vl"],
        classes: &["Lfm2ForCausalLM", "Lfm2VlForConditionalGeneration"],
        architecture: "lfm2",
        parts: &[ATTENTION, LFM2],
        layout: Layout::Same,
        defaults: || {
            json!({"norm_eps": 1e-5, "conv_L_cache": 3, "default_rope_theta": 1e6,
            "block_auto_adjust_ff_dim": true, "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0})
        },
        tied: true,
        bias_flags: &["conv_bias"],
        keys: keys::lfm2,
        ..LLAMA
    },
    Family {
        model_types: &["lfm2_moe"],
        classes: &["Lfm2MoeForCausalLM"],
        architecture: "lfm2moe",
        parts: &[
            ATTENTION,
            LFM2,
            &[
                ("feed_forward.gate", "ffn_gate_inp"),
                ("feed_forward.expert_bias", "exp_probs_b.bias"),
            ],
        ],
        layout: Layout::Same,
        defaults: || {
            json!({"norm_eps": 1e-5, "conv_L_cache": 3, "default_rope_theta": 1e6, "num_dense_layers": 2,
                "norm_topk_prob": true, "routed_scaling_factor": 1.0})
        },
        tied: true,
        bias_flags: &["conv_bias"],
        keys: keys::lfm2_moe,
        ..LLAMA
    },
    Family {
        model_types: &["glm4"],
        classes: &["Glm4ForCausalLM"],
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
        defaults: || json!({"rms_norm_eps": 1.5625e-7, "partial_rotary_factor": 0.5, "head_dim": 128}),
        bias_flags: &["attention_bias"],
        ..LLAMA
    },
    Family {
        model_types: &["cohere2"],
        classes: &["Cohere2ForCausalLM"],
        architecture: "cohere2",
        parts: &[ATTENTION, &[("input_layernorm", "attn_norm")], GATED],
        layout: Layout::Same,
        defaults: || json!({"layer_norm_eps": 1e-5, "logit_scale": 0.0625}),
        tied: true,
        bias_flags: &["attention_bias"],
        keys: keys::cohere2,
        ..LLAMA
    },
    Family {
        model_types: &["cohere2_moe"],
        classes: &["Cohere2MoeForCausalLM"],
        architecture: "cohere2moe",
        parts: &[
            ATTENTION,
            &[
                ("input_layernorm", "attn_norm"),
                ("mlp.gate", "ffn_gate_inp"),
            ],
            GATED,
            SHARED_EXPERTS,
        ],
        layout: Layout::Same,
        defaults: || {
            json!({"layer_norm_eps": 1e-5, "logit_scale": 0.0625, "head_dim": 128, "sliding_window": 4096,
                "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": true})
        },
        tied: true,
        bias_flags: &["attention_bias"],
        keys: relatives::cohere2_moe,
        ..LLAMA
    },
    Family {
        model_types: &["apertus"],
        classes: &["ApertusForCausalLM"],
        architecture: "apertus",
        activations: &["xielu"],
        parts: &[
            ATTENTION,
            HEAD_NORMS,
            &[
                ("attention_layernorm", "attn_norm"),
                ("feedforward_layernorm", "ffn_norm"),
            ],
            PLAIN,
        ],
        layout: Layout::Same,
        defaults: || json!({"rms_norm_eps": 1e-5, "default_rope_theta": 1.2e7}),
        bias_flags: &["attention_bias"],
        ..LLAMA
    },
    Family {
        model_types: &["arcee"],
        classes: &["ArceeForCausalLM"],
        architecture: "arcee",
        activations: &["relu2"],
        parts: &[ATTENTION, PRE_NORMS, PLAIN],
        defaults: || json!({"rms_norm_eps": 1e-5, "hidden_act": "relu2"}),
        ..LLAMA
    },
    Family {
        model_types: &["deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25"],
        classes: &[
            "DeepseekV2ForCausalLM",
            "DeepseekV3ForCausalLM",
            "KimiK25ForConditionalGeneration",
            "Kimi_K25ForConditionalGeneration",
        ],
        architecture: "deepseek2",
        parts: &[LATENT, PRE_NORMS, GATED, SHARED_EXPERTS, SIGMOID_ROUTER],
        layout: Layout::Same,
        defaults: || json!({"rms_norm_eps": 1e-6}),
        bias_flags: &[],
        keys: latent::keys,
        ..LLAMA
    },
    Family {
        model_types: &["youtu"],
        classes: &["YoutuForCausalLM"],
        architecture: "deepseek2",
        parts: &[LATENT, PRE_NORMS, GATED],
        layout: Layout::Same,
        defaults: || json!({"rms_norm_eps": 1e-6}),
        tied: true,
        bias_flags: &[],
        keys: latent::keys,
        ..LLAMA
    },
    Family {
        model_types: &["glm4_moe_lite"],
        classes: &["Glm4MoeLiteForCausalLM"],
        architecture: "deepseek2",
        parts: &[LATENT, PRE_NORMS, GATED, SHARED_EXPERTS, SIGMOID_ROUTER],
        layout: Layout::Same,
        defaults: || {
            json!({"rms_norm_eps": 1e-5, "norm_topk_prob": true, "first_k_dense_replace": 1,
                "routed_scaling_factor": 1.8})
        },
        bias_flags: &[],
        keys: latent::keys,
        ..LLAMA
    },
    Family {
        model_types: &["ernie4_5"],
        classes: &["Ernie4_5ForCausalLM"],
        architecture: "ernie4_5",
        layout: Layout::Same,
        defaults: || json!({"rms_norm_eps": 1e-5, "default_rope_theta": 500_000.0}),
        tied: true,
        bias_flags: &["use_bias"],
        ..LLAMA
    },
    Family {
        model_types: &["ernie4_5_moe"],
        classes: &["Ernie4_5_MoeForCausalLM"],
        architecture: "ernie4_5-moe",
        parts: &[
            ATTENTION,
            PRE_NORMS,
            GATED,
            SHARED_EXPERTS,
            &[
                ("mlp.gate", "ffn_gate_inp"),
                (
                    "mlp.moe_statics.e_score_correction_bias",
                    "exp_probs_b.bias",
                ),
            ],
        ],
        layout: Layout::Same,
        defaults: || json!({"rms_norm_eps": 1e-5, "default_rope_theta": 500_000.0}),
        tied: true,
        bias_flags: &["use_bias"],
        keys: relatives::ernie4_5_moe,
        ..LLAMA
    },
    Family {
        model_types: &["exaone4", "exaone4_5"],
        classes: &["Exaone4ForCausalLM", "Exaone4_5_ForConditionalGeneration"],
        architecture: "exaone4",
        parts: &[
            ATTENTION,
            HEAD_NORMS,
            &[
                ("post_attention_layernorm", "post_attention_norm"),
                ("post_feedforward_layernorm", "post_ffw_norm"),
            ],
            GATED,
        ],
        layout: Layout::Same,
        defaults: || json!({"rms_norm_eps": 1e-5}),
        bias_flags: &[],
        keys: relatives::exaone4,
        ..LLAMA
    },
    Family {
        model_types: &["glm4_moe", "glm4v_moe", "glm4v_moe_text"],
        classes: &["Glm4MoeForCausalLM", "Glm4vMoeForConditionalGeneration"],
        architecture: "glm4moe",
        parts: &[
            ATTENTION,
            HEAD_NORMS,
            &[
                ("input_layernorm", "attn_norm"),
                ("post_attention_layernorm", "post_attention_norm"),
            ],
            GATED,
            SHARED_EXPERTS,
            SIGMOID_ROUTER,
        ],
        layout: Layout::Same,
        defaults: || {
            json!({"rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5, "n_shared_experts": 1,
                "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
                "routed_scaling_factor": 1.0, "norm_topk_prob": true})
        },
        bias_flags: &["attention_bias"],
        keys: relatives::glm4moe,
        ..LLAMA
    },
    Family {
        model_types: &["hunyuan_v1_dense"],
        classes: &["HunYuanDenseV1ForCausalLM"],
        architecture: "hunyuan-dense",
        parts: &[ATTENTION, LATE_NORMS, PRE_NORMS, GATED],
        layout: Layout::Same,
        defaults: || json!({"rms_norm_eps": 1e-5}),
        bias_flags: &["attention_bias"],
        ..LLAMA
    },
    Family {
        model_types: &["hunyuan_v1_moe"],
        classes: &["HunYuanMoEV1ForCausalLM"],
        architecture: "hunyuan-moe",
        parts: &[
            ATTENTION,
            LATE_NORMS,
            PRE_NORMS,
            &[
                ("mlp.gate.wg", "ffn_gate_inp"),
                ("mlp.shared_mlp.gate_proj", "ffn_gate_shexp"),
                ("mlp.shared_mlp.up_proj", "ffn_up_shexp"),
                ("mlp.shared_mlp.down_proj", "ffn_down_shexp"),
            ],
        ],
        layout: Layout::Same,
        defaults: || json!({"rms_norm_eps": 1e-5}),
        bias_flags: &["attention_bias"],
        keys: relatives::hunyuan_moe,
        ..LLAMA
    },
    Family {
        model_types: &["minimax_m2"],
        classes: &["MiniMaxM2ForCausalLM"],
        architecture: "minimax-m2",
        parts: &[
            ATTENTION,
            HEAD_NORMS,
            PRE_NORMS,
            &[
                ("block_sparse_moe.gate", "ffn_gate_inp"),
                ("mlp.gate", "ffn_gate_inp"),
                (
                    "block_sparse_moe.e_score_correction_bias",
                    "exp_probs_b.bias",
                ),
                ("mlp.e_score_correction_bias", "exp_probs_b.bias"),
            ],
        ],
        layout: Layout::Same,
        defaults: || json!({"rms_norm_eps": 1e-6, "head_dim": 128, "default_rope_theta": 5e6}),
        bias_flags: &[],
        keys: relatives::minimax_m2,
        ..LLAMA
    },
    Family {
        model_types: &["ministral3", "mistral3"],
        classes: &["Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"],
        architecture: "mistral3",
        defaults: || json!({"rms_norm_eps": 1e-5}),
        bias_flags: &[],
        keys: relatives::mistral3,
        ..LLAMA
    },
    Family {
        model_types: &["qwen2_vl", "qwen2_5_vl", "qwen2_vl_text", "qwen2_5_vl_text"],
        classes: &[
            "Qwen2VLForConditionalGeneration",
            "Qwen2_5_VLForConditionalGeneration",
        ],
        architecture: "qwen2vl",
        layout: Layout::Same,
        bias_flags: &[],
        keys: keys::window_where_asked,
        ..LLAMA
    },
    Family {
        model_types: &["qwen3_vl", "qwen3_vl_text"],
        classes: &["Qwen3VLForConditionalGeneration"],
        architecture: "qwen3vl",
        parts: &[ATTENTION, HEAD_NORMS, PRE_NORMS, GATED],
        layout: Layout::Same,
        defaults: || json!({"rms_norm_eps": 1e-6, "head_dim": 128, "default_rope_theta": 500_000.0}),
        bias_flags: &["attention_bias"],
        ..LLAMA
    },
    Family {
        model_types: &["qwen3_vl_moe", "qwen3_vl_moe_text"],
        classes: &["Qwen3VLMoeForConditionalGeneration"],
        architecture: "qwen3vlmoe",
        parts: &[
            ATTENTION,
            HEAD_NORMS,
            PRE_NORMS,
            &[("mlp.gate", "ffn_gate_inp")],
        ],
        layout: Layout::Same,
        defaults: || json!({"rms_norm_eps": 1e-6, "norm_topk_prob": true, "default_rope_theta": 500_000.0}),
        bias_flags: &["attention_bias"],
        keys: keys::qwen3moe,
        ..LLAMA
    },
    Family {
        model_types: &["seed_oss"],
        classes: &["SeedOssForCausalLM"],
        architecture: "seed_oss",
        parts: &[
            ATTENTION,
            &[
                ("input_layernorm", "attn_norm"),
                ("post_attention_layernorm", "post_attention_norm"),
            ],
            GATED,
        ],
        layout: Layout::Same,
        defaults: || json!({"rms_norm_eps": 1e-6, "head_dim": 128, "attention_bias": true}),
        ..LLAMA
    },
    Family {
        model_types: &["stablelm"],
        classes: &["StableLmForCausalLM"],
        architecture: "stablelm",
        layout: Layout::Same,
        defaults: || json!({"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.25}),
        bias_flags: &["use_qkv_bias"],
        keys: relatives::stablelm,
        ..LLAMA
    },
];

impl Family {
    /// The family of a config, which gets the values that it leaves out. `Unsupported` names a class
    /// that is not known and lists those that are.
    pub(super) fn of(config: &mut Config) -> Result<&'static Family> {
        let class = match config.find_array("architectures")?.map(|c| &c[..]) {
            None | Some([]) => None,
            Some([Value::String(class), ..]) => Some(class.as_str()),
            Some([other, ..]) => {
                return Err(super::json::wrong(
                    "architectures",
                    other,
                    "a list of names",
                ));
            }
        };
        let model_type = config.find_str("model_type")?;
        let all = || FAMILIES.iter().chain(FURTHER).chain(LATER);
        let of_both = |family: &&Family| {
            let both = class.zip(model_type);
            both.is_some_and(|(class, model_type)| {
                family.classes.contains(&class) && family.model_types.contains(&model_type)
            })
        };
        // Some families are loaded as another's class.
        let family = all().find(of_both).or_else(|| {
            all().find(|family| match (class, model_type) {
                (Some(class), _) => family.classes.contains(&class),
                (None, Some(model_type)) => family.model_types.contains(&model_type),
                (None, None) => false,
            })
        });
        let Some(family) = family else {
            let (key, value) = match (class, model_type) {
                (Some(class), _) => ("architectures", class),
                (None, Some(model_type)) => ("model_type", model_type),
                (None, None) => fail!(
                    MissingKey,
                    "config.json: keys architectures and model_type are missing"
                ),
            };
            let mut known: Vec<_> = all().flat_map(|f| f.classes).copied().collect();
            known.sort_unstable();
            known.dedup();
            let value: String = value.chars().take(100).collect();
            fail!(
                Unsupported,
                "config.json: {key} is {value:?}; supported: {}",
                known.join(", ")
            );
        };
        if let Some(model_type) = model_type
            && !family.model_types.contains(&model_type)
        {
            return Err(Error::new(
                Status::InvalidModel,
                format!(
                    "config.json: model_type is {model_type:?}, but architectures is {:?}, which is of {:?}",
                    class.unwrap_or_default(),
                    family.model_types[0]
                ),
            ));
        }
        if family.architecture == "exaone" {
            super::further::rename(config);
        }
        match family.architecture {
            "step35" => super::later::step35_config(config)?,
            "bloom" => super::later::bloom_config(config),
            "kimi-linear" | "bailingmoe3" => super::later::kimi_config(config)?,
            _ => {}
        }
        family.check_activation(config)?;
        if let Value::Object(defaults) = (family.defaults)() {
            for (key, value) in defaults {
                // What has no limit says so.
                let unlimited = key.ends_with("_logit_softcapping") && config.is_null(&key);
                if !unlimited {
                    config.set_default(&key, value);
                }
            }
        }
        if family.architecture == NEMOTRON_H.architecture
            && nemotron_h::count_layers(config)? == NEMOTRON_H_EXPERTS.architecture
        {
            return Ok(&NEMOTRON_H_EXPERTS);
        }
        Ok(family)
    }

    /// All families whose models have an architecture.
    pub(super) fn of_architecture(name: &str) -> impl Iterator<Item = &'static Family> {
        let all = FAMILIES.iter().chain(FURTHER).chain(LATER);
        let all = all.chain([&NEMOTRON_H_EXPERTS]);
        all.filter(move |family| family.architecture == name)
    }

    fn check_activation(&self, config: &Config) -> Result<()> {
        const KEYS: [&str; 4] = [
            "hidden_activation",
            "activation_function",
            "hidden_act",
            "mlp_hidden_act",
        ];
        for key in KEYS {
            if let Some(activation) = config.find_str(key)? {
                // An older key beside the newer one says what once was.
                return match self.activations.contains(&activation) {
                    true => Ok(()),
                    false => fail!(
                        Unsupported,
                        "config.json: {key} is {activation:?}; models of this family run with {}",
                        self.activations.join(", ")
                    ),
                };
            }
        }
        Ok(())
    }

    /// The name in GGUF of a part of a layer, without `.weight` or `.bias` at its end. The part may
    /// come with these.
    pub(super) fn part(&self, stem: &str) -> Option<&'static str> {
        let mut all = self.parts.iter().copied().flatten();
        all.find(|(name, _)| *name == stem).map(|(_, part)| *part)
    }
}

/// Of Gemma 3: published configs name little more than the sizes.
fn gemma3_defaults() -> Value {
    json!({"rms_norm_eps": 1e-6, "head_dim": 256, "query_pre_attn_scalar": 256,
        "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262_208,
        "max_position_embeddings": 131_072, "default_rope_theta": 1e6,
        "rope_local_base_freq": 1e4, "sliding_window": 4096,
        "hidden_activation": "gelu_pytorch_tanh"})
}
