//! Further families, as those of [`super::families`]: how their folders name tensors, and what their configs
//! leave out.

use super::families::{
    ATTENTION, Family, GATED, GATED_FUSED, GELU_TANH, GEMMA_INPUTS, GEMMA_NORMS, GPT_ATTENTION,
    GPT_NORMS_AND_PLAIN, HEAD_NORMS, LATENT, LLAMA, Layout, PLAIN, PRE_NORMS, QWEN_EXPERTS,
    SHARED_EXPERTS, SIGMOID_ROUTER,
};
use super::json::Config;
use super::keys::{self, Keys, experts, qwen_experts};
use super::{falcon_h1, gemma3n, latent, mamba1, mamba2, relatives, windowed};
use crate::error::{Result, fail};
use serde_json::json;

const BITNET: Family = Family {
    model_types: &["bitnet"],
    classes: &["BitNetForCausalLM"],
    architecture: "bitnet",
    activations: &["relu2", "silu"],
    parts: &[
        ATTENTION,
        PRE_NORMS,
        GATED,
        &[
            ("self_attn.attn_sub_norm", "attn_sub_norm"),
            ("mlp.ffn_sub_norm", "ffn_sub_norm"),
        ],
    ],
    layout: Layout::Same,
    defaults: || json!({"rms_norm_eps": 1e-5, "hidden_act": "relu2", "default_rope_theta": 5e5}),
    bias_flags: &["attention_bias"],
    keys: |k| {
        let activation = k.config.find_str("hidden_act")?.unwrap_or("relu2");
        k.set("hidden_activation", activation);
        Ok(())
    },
    ..LLAMA
};

/// `gelu` with the error function.
const GELU: &[&str] = &["gelu"];

pub(super) const FURTHER: &[Family] = &[
    BITNET,
    HY_V3,
    MELLUM,
    MIMO_V2,
    LAGUNA,
    GRANITE_SWA,
    GRANITE_SWA_EXPERTS,
    Family {
        model_types: &["llama4_text", "llama4"],
        classes: &["Llama4ForCausalLM", "Llama4ForConditionalGeneration"],
        architecture: "llama4",
        parts: &[
            ATTENTION,
            PRE_NORMS,
            &[
                ("feed_forward.gate_proj", "ffn_gate"),
                ("feed_forward.up_proj", "ffn_up"),
                ("feed_forward.down_proj", "ffn_down"),
                ("feed_forward.router", "ffn_gate_inp"),
                ("feed_forward.shared_expert.gate_proj", "ffn_gate_shexp"),
                ("feed_forward.shared_expert.up_proj", "ffn_up_shexp"),
                ("feed_forward.shared_expert.down_proj", "ffn_down_shexp"),
            ],
        ],
        layout: Layout::Same,
        defaults: || {
            json!({"rms_norm_eps": 1e-5, "head_dim": 128, "default_rope_theta": 5e5,
                "intermediate_size": 8192, "intermediate_size_mlp": 16_384, "num_local_experts": 16,
                "num_experts_per_tok": 1, "interleave_moe_layer_step": 1, "use_qk_norm": true,
                "attn_temperature_tuning": true, "floor_scale": 8192, "attn_scale": 0.1,
                "no_rope_layer_interval": 4, "attention_chunk_size": 8192})
        },
        bias_flags: &["attention_bias"],
        keys: relatives::llama4,
        ..LLAMA
    },
    Family {
        model_types: &["olmo"],
        classes: &["OlmoForCausalLM"],
        architecture: "olmo",
        parts: &[ATTENTION, GATED],
        defaults: || json!({"layer_norm_eps": 1e-5}),
        bias_flags: &["attention_bias"],
        keys: clipping,
        ..LLAMA
    },
    Family {
        model_types: &["afmoe"],
        classes: &["AfmoeForCausalLM"],
        architecture: "afmoe",
        parts: &[
            ATTENTION,
            HEAD_NORMS,
            &[
                ("self_attn.gate_proj", "attn_gate"),
                ("input_layernorm", "attn_norm"),
                ("post_attention_layernorm", "post_attention_norm"),
                ("pre_mlp_layernorm", "ffn_norm"),
                ("post_mlp_layernorm", "post_ffw_norm"),
                ("mlp.router.gate", "ffn_gate_inp"),
                ("mlp.expert_bias", "exp_probs_b.bias"),
            ],
            GATED,
            SHARED_EXPERTS,
        ],
        layout: Layout::Same,
        defaults: || {
            json!({"rms_norm_eps": 1e-5, "head_dim": 128, "num_dense_layers": 1, "num_experts": 64,
                "num_experts_per_tok": 6, "num_shared_experts": 2, "route_scale": 1.0, "sliding_window": 1024})
        },
        bias_flags: &["attention_bias"],
        keys: relatives::afmoe,
        ..LLAMA
    },
    Family {
        model_types: &["exaone_moe"],
        classes: &["ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"],
        architecture: "exaone-moe",
        parts: &[
            ATTENTION,
            HEAD_NORMS,
            PRE_NORMS,
            GATED,
            SHARED_EXPERTS,
            &[
                ("mlp.gate", "ffn_gate_inp"),
                ("mlp.e_score_correction_bias", "exp_probs_b.bias"),
                ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
            ],
        ],
        layout: Layout::Same,
        defaults: || {
            json!({"rms_norm_eps": 1e-5, "num_shared_experts": 1, "n_group": 1, "topk_group": 1,
                "routed_scaling_factor": 2.5, "norm_topk_prob": true, "first_k_dense_replace": 1})
        },
        bias_flags: &[],
        keys: relatives::exaone_moe,
        ..LLAMA
    },
    Family {
        model_types: &["internlm3"],
        classes: &["InternLM3ForCausalLM"],
        bias_flags: &["attention_bias", "mlp_bias"],
        defaults: || json!({"rms_norm_eps": 1e-5}),
        ..LLAMA
    },
    Family {
        model_types: &["minicpm"],
        classes: &["MiniCPMForCausalLM"],
        architecture: "minicpm",
        tied: true,
        keys: relatives::minicpm,
        ..LLAMA
    },
    Family {
        model_types: &["minicpm3"],
        classes: &["MiniCPM3ForCausalLM"],
        architecture: "minicpm3",
        parts: &[LATENT, PRE_NORMS, GATED],
        layout: Layout::Same,
        defaults: || json!({"rms_norm_eps": 1e-5}),
        tied: true,
        bias_flags: &["attention_bias", "mlp_bias"],
        keys: latent::minicpm3,
        ..LLAMA
    },
    BAILING_MOE_2,
    Family {
        model_types: &["sarvam_moe"],
        // As transformers loads them.
        classes: &["SarvamMoEForCausalLM", "Glm4MoeForCausalLM"],
        defaults: || {
            json!({"rms_norm_eps": 1e-6, "n_shared_experts": 1, "num_shared_experts": 1, "n_group": 1, "topk_group": 1,
                "routed_scaling_factor": 2.5, "norm_topk_prob": true, "first_k_dense_replace": 1, "head_dim": 64,
                "default_rope_theta": 8e6})
        },
        keys: |k| match k.config.find("n_routed_experts") {
            Some(_) => {
                k.refuse("attention_bias")?;
                relatives::glm4moe(k)
            }
            None => relatives::bailing_moe2(k),
        },
        ..BAILING_MOE_2
    },
    Family {
        model_types: &["solar_open"],
        classes: &["SolarOpenForCausalLM"],
        architecture: "glm4moe",
        parts: &[
            ATTENTION,
            &[
                ("input_layernorm", "attn_norm"),
                ("post_attention_layernorm", "post_attention_norm"),
            ],
            SHARED_EXPERTS,
            SIGMOID_ROUTER,
        ],
        layout: Layout::Same,
        defaults: || {
            json!({"rms_norm_eps": 1e-5, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
                "routed_scaling_factor": 1.0, "norm_topk_prob": true, "default_rope_theta": 1e6})
        },
        bias_flags: &["attention_bias"],
        keys: relatives::glm4moe,
        ..LLAMA
    },
    Family {
        model_types: &["jais2"],
        classes: &["Jais2ForCausalLM"],
        architecture: "jais2",
        activations: &["relu2"],
        parts: &[ATTENTION, PRE_NORMS, PLAIN],
        layout: Layout::Same,
        defaults: || json!({"layer_norm_eps": 1e-5, "hidden_act": "relu2", "default_rope_theta": 5e5}),
        ..LLAMA
    },
    FALCON_H1,
    JAMBA,
    MAMBA,
    MAMBA_2,
    BAMBA,
    Family {
        model_types: &["falcon_mamba"],
        classes: &["FalconMambaForCausalLM"],
        keys: mamba1::falcon_mamba,
        ..MAMBA
    },
    Family {
        model_types: &["gemma"],
        classes: &["GemmaForCausalLM"],
        architecture: "gemma",
        // The first configs name the one and mean the other.
        activations: &["gelu_pytorch_tanh", "gelu_new", "gelu"],
        layout: Layout::ShiftedNorms,
        defaults: || json!({"rms_norm_eps": 1e-6, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh"}),
        tied: true,
        bias_flags: &["attention_bias"],
        keys: |k| k.refuse("use_bidirectional_attention"),
        ..LLAMA
    },
    Family {
        model_types: &["gemma3n_text", "gemma3n"],
        classes: &["Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"],
        architecture: "gemma3n",
        activations: GELU_TANH,
        parts: &[
            ATTENTION,
            HEAD_NORMS,
            GEMMA_NORMS,
            GATED,
            GEMMA_INPUTS,
            &[
                ("altup.correct_output_scale", "altup_correct_scale.weight"),
                ("altup.correction_coefs", "altup_correct_coef"),
                ("altup.prediction_coefs", "altup_predict_coef"),
                ("altup.modality_router", "altup_router"),
                ("altup.router_norm", "altup_router_norm"),
                ("laurel.linear_left", "laurel_l"),
                ("laurel.linear_right", "laurel_r"),
                ("laurel.post_laurel_norm", "laurel_post_norm"),
            ],
        ],
        layout: Layout::Same,
        defaults: || {
            json!({"rms_norm_eps": 1e-6, "head_dim": 256, "num_attention_heads": 8,
                "num_key_value_heads": 2, "vocab_size": 262_400, "sliding_window": 512,
                "max_position_embeddings": 32_768, "default_rope_theta": 1e6,
                "rope_local_base_freq": 1e4, "altup_num_inputs": 4, "num_kv_shared_layers": 15,
                "hidden_size_per_layer_input": 256, "final_logit_softcapping": 30.0,
                "hidden_activation": "gelu_pytorch_tanh"})
        },
        tied: true,
        bias_flags: &["attention_bias"],
        keys: gemma3n::keys,
        ..LLAMA
    },
    Family {
        model_types: &["mistral4"],
        classes: &["Mistral4ForCausalLM"],
        architecture: "mistral4",
        parts: &[LATENT, PRE_NORMS, GATED, SHARED_EXPERTS, SIGMOID_ROUTER],
        layout: Layout::Same,
        defaults: || {
            json!({"rms_norm_eps": 1e-6, "norm_topk_prob": true, "n_shared_experts": 1,
                "routed_scaling_factor": 1.0})
        },
        bias_flags: &[],
        keys: latent::mistral4,
        ..LLAMA
    },
    Family {
        model_types: &["qwen2_moe"],
        classes: &["Qwen2MoeForCausalLM"],
        architecture: "qwen2moe",
        parts: &[ATTENTION, PRE_NORMS, QWEN_EXPERTS],
        layout: Layout::Same,
        bias_flags: &[],
        keys: |k| {
            qwen_experts(k)?;
            k.copy_size(
                "shared_expert_intermediate_size",
                "expert_shared_feed_forward_length",
            )?;
            k.set("expert_weights_norm", k.config.flag("norm_topk_prob")?);
            keys::window_where_asked(k)
        },
        ..LLAMA
    },
    Family {
        model_types: &["olmoe"],
        classes: &["OlmoeForCausalLM"],
        architecture: "olmoe",
        parts: &[
            ATTENTION,
            HEAD_NORMS,
            PRE_NORMS,
            &[("mlp.gate", "ffn_gate_inp")],
        ],
        layout: Layout::Same,
        defaults: || json!({"rms_norm_eps": 1e-5}),
        bias_flags: &["attention_bias"],
        keys: |k| {
            clipping(k)?;
            experts(k)?;
            k.set("expert_weights_norm", k.config.flag("norm_topk_prob")?);
            Ok(())
        },
        ..LLAMA
    },
    Family {
        model_types: &["granitemoe", "granitemoeshared"],
        classes: &["GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"],
        architecture: "granitemoe",
        parts: &[
            ATTENTION,
            PRE_NORMS,
            &[
                ("block_sparse_moe.router.layer", "ffn_gate_inp"),
                ("block_sparse_moe.router", "ffn_gate_inp"),
            ],
        ],
        bias_flags: &["attention_bias"],
        keys: |k| {
            keys::granite(k)?;
            experts(k)?;
            windowed::granite_shared(k)
        },
        ..LLAMA
    },
    Family {
        model_types: &["gpt_neox"],
        classes: &["GPTNeoXForCausalLM"],
        architecture: "gptneox",
        activations: GELU,
        parts: &[&[
            ("input_layernorm", "attn_norm"),
            ("post_attention_layernorm", "ffn_norm"),
            ("attention.query_key_value", "attn_qkv"),
            ("attention.dense", "attn_output"),
            ("mlp.dense_h_to_4h", "ffn_up"),
            ("mlp.dense_4h_to_h", "ffn_down"),
        ]],
        layout: Layout::GroupedHeads,
        defaults: || {
            json!({"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.25, "hidden_act": "gelu",
                "use_parallel_residual": true})
        },
        bias_flags: &[],
        keys: |k| {
            let parallel = k.config.flag("use_parallel_residual")?;
            k.set("use_parallel_residual", parallel);
            Ok(())
        },
        ..LLAMA
    },
    Family {
        model_types: &["falcon", "RefinedWebModel", "RefinedWeb"],
        classes: &["FalconForCausalLM", "RWForCausalLM"],
        architecture: "falcon",
        activations: GELU,
        parts: &[&[
            ("input_layernorm", "attn_norm"),
            ("ln_mlp", "attn_norm"),
            ("ln_attn", "attn_norm_2"),
            ("post_attention_layernorm", "ffn_norm"),
            ("self_attention.query_key_value", "attn_qkv"),
            ("self_attention.dense", "attn_output"),
            ("mlp.dense_h_to_4h", "ffn_up"),
            ("mlp.dense_4h_to_h", "ffn_down"),
        ]],
        layout: Layout::GroupedHeads,
        defaults: || {
            json!({"layer_norm_epsilon": 1e-5, "max_position_embeddings": 2048, "multi_query": true,
                "parallel_attn": true, "activation": "gelu"})
        },
        tied: true,
        bias_flags: &[],
        keys: falcon,
        ..LLAMA
    },
    Family {
        model_types: &["gpt_bigcode"],
        classes: &["GPTBigCodeForCausalLM"],
        architecture: "starcoder",
        activations: GELU_TANH,
        parts: &[GPT_ATTENTION, GPT_NORMS_AND_PLAIN],
        layout: Layout::GroupedHeads,
        rope: false,
        defaults: || {
            json!({"layer_norm_epsilon": 1e-5, "activation_function": "gelu_pytorch_tanh",
                "multi_query": true})
        },
        tied: true,
        keys: |k| {
            k.set("attention.head_count_kv", starcoder_kv_heads(k)?);
            k.refuse("add_cross_attention")?;
            keys::unscaled(k)
        },
        ..LLAMA
    },
    Family {
        model_types: &["cohere"],
        classes: &["CohereForCausalLM"],
        architecture: "command-r",
        parts: &[
            ATTENTION,
            HEAD_NORMS,
            &[("input_layernorm", "attn_norm")],
            GATED,
        ],
        layout: Layout::Same,
        defaults: || json!({"layer_norm_eps": 1e-5, "logit_scale": 0.0625, "use_qk_norm": false}),
        tied: true,
        bias_flags: &["attention_bias"],
        keys: |k| {
            k.set("attention.qk_norm", k.config.flag("use_qk_norm")?);
            k.set("logit_scale", k.config.f32("logit_scale")?);
            k.say_unscaled();
            Ok(())
        },
        ..LLAMA
    },
    Family {
        model_types: &["nemotron"],
        classes: &["NemotronForCausalLM"],
        architecture: "nemotron",
        activations: &["relu2"],
        parts: &[ATTENTION, PRE_NORMS, PLAIN],
        layout: Layout::ShiftedNorms,
        defaults: || json!({"norm_eps": 1e-5, "partial_rotary_factor": 0.5, "hidden_act": "relu2"}),
        keys: |k| {
            k.set("attention.layer_norm_epsilon", k.config.f32("norm_eps")?);
            Ok(())
        },
        ..LLAMA
    },
    Family {
        model_types: &["exaone"],
        classes: &["ExaoneForCausalLM", "LlamaForCausalLM"],
        architecture: "exaone",
        parts: &[
            ATTENTION,
            PRE_NORMS,
            GATED,
            // As the first folders have them.
            &[
                ("ln_1", "attn_norm"),
                ("ln_2", "ffn_norm"),
                ("attn.attention.q_proj", "attn_q"),
                ("attn.attention.k_proj", "attn_k"),
                ("attn.attention.v_proj", "attn_v"),
                ("attn.attention.out_proj", "attn_output"),
                ("mlp.c_fc_0", "ffn_gate"),
                ("mlp.c_fc_1", "ffn_up"),
                ("mlp.c_proj", "ffn_down"),
            ],
        ],
        layout: Layout::Same,
        defaults: || json!({"rms_norm_eps": 1e-5, "default_rope_theta": 500_000.0}),
        ..LLAMA
    },
    Family {
        model_types: &["glm"],
        classes: &["GlmForCausalLM"],
        architecture: "chatglm",
        parts: &[ATTENTION, PRE_NORMS, GATED_FUSED],
        layout: Layout::Same,
        defaults: || json!({"rms_norm_eps": 1.5625e-7, "partial_rotary_factor": 0.5, "head_dim": 128}),
        bias_flags: &["attention_bias"],
        ..LLAMA
    },
    Family {
        model_types: &["dots1"],
        classes: &["Dots1ForCausalLM"],
        architecture: "dots1",
        parts: &[
            ATTENTION,
            HEAD_NORMS,
            PRE_NORMS,
            GATED,
            SHARED_EXPERTS,
            SIGMOID_ROUTER,
        ],
        layout: Layout::Same,
        defaults: || {
            json!({"rms_norm_eps": 1e-6, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
                "first_k_dense_replace": 0, "routed_scaling_factor": 1.0})
        },
        bias_flags: &["attention_bias"],
        keys: |k| {
            if k.windowed(|_| false)?.contains(&true) {
                fail!(
                    Unsupported,
                    "config.json: layer_types has layers with windows, which are not supported"
                );
            }
            relatives::glm4moe(k)
        },
        ..LLAMA
    },
];

const BAILING_MOE_2: Family = Family {
    model_types: &["bailing_moe", "bailing_moe_v2"],
    classes: &["BailingMoeV2ForCausalLM"],
    architecture: "bailingmoe2",
    parts: &[
        &[
            ("attention.query_key_value", "attn_qkv"),
            ("attention.dense", "attn_output"),
            ("attention.query_layernorm", "attn_q_norm"),
            ("attention.key_layernorm", "attn_k_norm"),
            ("mlp.gate", "ffn_gate_inp"),
            ("mlp.gate.expert_bias", "exp_probs_b.bias"),
        ],
        PRE_NORMS,
        GATED,
        SHARED_EXPERTS,
    ],
    layout: Layout::Same,
    defaults: || {
        json!({"rms_norm_eps": 1e-6, "num_shared_experts": 1, "n_group": 1, "topk_group": 1,
            "routed_scaling_factor": 1.0, "norm_topk_prob": true, "first_k_dense_replace": 0})
    },
    bias_flags: &[],
    keys: relatives::bailing_moe2,
    ..LLAMA
};

const MELLUM: Family = Family {
    model_types: &["mellum"],
    classes: &["MellumForCausalLM"],
    architecture: "mellum",
    parts: &[
        ATTENTION,
        HEAD_NORMS,
        PRE_NORMS,
        GATED,
        &[("mlp.gate", "ffn_gate_inp")],
    ],
    layout: Layout::Same,
    defaults: || {
        json!({"rms_norm_eps": 1e-6, "head_dim": 128, "num_experts_per_tok": 8, "norm_topk_prob": true,
            "sliding_window": 1024, "default_rope_theta": 5e5})
    },
    bias_flags: &["attention_bias"],
    keys: relatives::mellum,
    ..LLAMA
};

const GRANITE_SWA: Family = Family {
    model_types: &["granite_swa"],
    classes: &["GraniteSWAForCausalLM"],
    architecture: "granite_swa",
    parts: &[
        ATTENTION,
        PRE_NORMS,
        GATED,
        &[
            ("self_attn.sinks", "attn_sinks.weight"),
            ("block_sparse_moe.router.layer", "ffn_gate_inp"),
            ("block_sparse_moe.router", "ffn_gate_inp"),
        ],
    ],
    defaults: || json!({"rms_norm_eps": 1e-5, "sliding_window": 128}),
    tied: true,
    keys: windowed::granite_swa,
    ..LLAMA
};

const GRANITE_SWA_EXPERTS: Family = Family {
    model_types: &["granitemoe_swa"],
    classes: &["GraniteMoeSWAForCausalLM"],
    defaults: || {
        json!({"rms_norm_eps": 1e-6, "sliding_window": 128, "num_local_experts": 8, "num_experts_per_tok": 2,
            "shared_intermediate_size": 0})
    },
    tied: false,
    bias_flags: &["attention_bias"],
    ..GRANITE_SWA
};

const LAGUNA: Family = Family {
    model_types: &["laguna"],
    classes: &["LagunaForCausalLM"],
    architecture: "laguna",
    parts: &[
        ATTENTION,
        HEAD_NORMS,
        PRE_NORMS,
        GATED,
        SHARED_EXPERTS,
        SIGMOID_ROUTER,
        &[
            ("self_attn.g_proj", "attn_gate"),
            ("mlp.experts.e_score_correction_bias", "exp_probs_b.bias"),
            ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
            ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
            ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
        ],
    ],
    layout: Layout::Same,
    defaults: || {
        json!({"rms_norm_eps": 1e-6, "head_dim": 128, "num_key_value_heads": 8, "num_experts": 256,
        "num_experts_per_tok": 8, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
        "sliding_window": 512, "moe_routed_scaling_factor": 1.0, "first_k_dense_replace": 1,
        "rope_parameters": {
            "full_attention": {"rope_theta": 5e5, "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_theta": 1e4, "partial_rotary_factor": 1.0},
        }})
    },
    bias_flags: &["attention_bias"],
    keys: windowed::laguna,
    ..LLAMA
};

const MIMO_V2: Family = Family {
    model_types: &["mimo_v2_flash"],
    classes: &["MiMoV2FlashForCausalLM"],
    architecture: "mimo2",
    parts: &[
        ATTENTION,
        PRE_NORMS,
        GATED,
        &[
            ("self_attn.sinks", "attn_sinks.weight"),
            ("self_attn.attention_sink_bias", "attn_sinks.weight"),
        ],
        SIGMOID_ROUTER,
    ],
    layout: Layout::Same,
    defaults: || {
        json!({"rms_norm_eps": 1e-5, "head_dim": 192, "v_head_dim": 128, "num_key_value_heads": 4,
            "n_routed_experts": 256, "num_experts_per_tok": 8, "norm_topk_prob": true, "n_group": 1, "topk_group": 1,
            "moe_intermediate_size": 2048, "routed_scaling_factor": 1.0, "sliding_window": 129, "partial_rotary_factor": 0.334, "default_rope_theta": 5e6})
    },
    bias_flags: &["attention_bias"],
    keys: windowed::mimo_v2,
    ..LLAMA
};

const HY_V3: Family = Family {
    model_types: &["hy_v3"],
    classes: &["HYV3ForCausalLM"],
    architecture: "hy_v3",
    parts: &[
        ATTENTION,
        HEAD_NORMS,
        PRE_NORMS,
        GATED,
        SHARED_EXPERTS,
        &[
            ("mlp.gate", "ffn_gate_inp"),
            ("mlp.router.gate", "ffn_gate_inp"),
            ("mlp.e_score_correction_bias", "exp_probs_b.bias"),
            ("mlp.expert_bias", "exp_probs_b.bias"),
            ("mlp.shared_mlp.gate_proj", "ffn_gate_shexp"),
            ("mlp.shared_mlp.up_proj", "ffn_up_shexp"),
            ("mlp.shared_mlp.down_proj", "ffn_down_shexp"),
        ],
    ],
    layout: Layout::Same,
    defaults: || {
        json!({"rms_norm_eps": 1e-5, "head_dim": 128, "num_shared_experts": 1, "route_norm": true,
            "num_experts_per_tok": 8, "router_scaling_factor": 2.826, "first_k_dense_replace": 1,
            "default_rope_theta": 11_158_840.0})
    },
    bias_flags: &["attention_bias"],
    keys: relatives::hy_v3,
    ..LLAMA
};

const FALCON_H1: Family = Family {
    model_types: &["falcon_h1"],
    classes: &["FalconH1ForCausalLM"],
    architecture: "falcon-h1",
    parts: &[
        ATTENTION,
        &[
            ("input_layernorm", "attn_norm"),
            ("pre_ff_layernorm", "ffn_norm"),
            ("feed_forward.gate_proj", "ffn_gate"),
            ("feed_forward.up_proj", "ffn_up"),
            ("feed_forward.down_proj", "ffn_down"),
            ("mamba.in_proj", "ssm_in"),
            ("mamba.conv1d", "ssm_conv1d"),
            ("mamba.out_proj", "ssm_out"),
        ],
    ],
    layout: Layout::Same,
    defaults: || {
        json!({"rms_norm_eps": 1e-5, "mamba_d_ssm": 1024, "mamba_n_heads": 128, "mamba_n_groups": 1,
            "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_conv_bias": true,
            "mamba_norm_before_gate": true})
    },
    bias_flags: &[
        "attention_bias",
        "mlp_bias",
        "mamba_conv_bias",
        "projectors_bias",
    ],
    keys: falcon_h1::keys,
    ..LLAMA
};

const JAMBA: Family = Family {
    model_types: &["jamba"],
    classes: &["JambaForCausalLM"],
    architecture: "jamba",
    parts: &[
        ATTENTION,
        &[
            ("input_layernorm", "attn_norm"),
            ("pre_ff_layernorm", "ffn_norm"),
            ("feed_forward.gate_proj", "ffn_gate"),
            ("feed_forward.up_proj", "ffn_up"),
            ("feed_forward.down_proj", "ffn_down"),
            ("feed_forward.router", "ffn_gate_inp"),
            ("mamba.in_proj", "ssm_in"),
            ("mamba.conv1d", "ssm_conv1d"),
            ("mamba.x_proj", "ssm_x"),
            ("mamba.dt_layernorm", "ssm_dt_norm"),
            ("mamba.b_layernorm", "ssm_b_norm"),
            ("mamba.c_layernorm", "ssm_c_norm"),
            ("mamba.dt_proj", "ssm_dt"),
            ("mamba.out_proj", "ssm_out"),
        ],
    ],
    layout: Layout::Same,
    rope: false,
    defaults: || {
        json!({"rms_norm_eps": 1e-6, "num_key_value_heads": 8, "num_experts": 16, "num_experts_per_tok": 2,
            "expert_layer_period": 2, "expert_layer_offset": 1, "attn_layer_period": 8,
            "attn_layer_offset": 4, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2,
            "mamba_conv_bias": true, "max_position_embeddings": 262_144})
    },
    bias_flags: &["mamba_conv_bias", "mamba_proj_bias"],
    keys: mamba1::jamba,
    ..LLAMA
};

const MAMBA: Family = Family {
    model_types: &["mamba"],
    classes: &["MambaForCausalLM"],
    architecture: "mamba",
    parts: &[&[
        ("norm", "attn_norm"),
        ("mixer.in_proj", "ssm_in"),
        ("mixer.conv1d", "ssm_conv1d"),
        ("mixer.x_proj", "ssm_x"),
        ("mixer.dt_proj", "ssm_dt"),
        ("mixer.out_proj", "ssm_out"),
    ]],
    layout: Layout::Same,
    rope: false,
    defaults: || {
        json!({"layer_norm_epsilon": 1e-5, "expand": 2, "conv_kernel": 4, "state_size": 16,
            "use_conv_bias": true, "num_attention_heads": 1, "max_position_embeddings": 1 << 20})
    },
    tied: true,
    bias_flags: &["use_conv_bias", "use_bias"],
    keys: mamba1::mamba,
    ..LLAMA
};

const MAMBA_2: Family = Family {
    model_types: &["mamba2"],
    classes: &["Mamba2ForCausalLM"],
    architecture: "mamba2",
    parts: &[&[
        ("norm", "attn_norm"),
        ("mixer.in_proj", "ssm_in"),
        ("mixer.conv1d", "ssm_conv1d"),
        ("mixer.out_proj", "ssm_out"),
    ]],
    layout: Layout::Same,
    rope: false,
    defaults: || {
        json!({"layer_norm_epsilon": 1e-5, "expand": 2, "conv_kernel": 4, "state_size": 128, "n_groups": 8,
            "num_heads": 128, "head_dim": 64, "use_conv_bias": true, "num_attention_heads": 1,
            "max_position_embeddings": 1 << 20})
    },
    bias_flags: &["use_conv_bias", "use_bias"],
    keys: mamba2::mamba2,
    ..LLAMA
};

const BAMBA: Family = Family {
    model_types: &["bamba"],
    classes: &["BambaForCausalLM"],
    architecture: "granitehybrid",
    parts: &[
        ATTENTION,
        &[
            ("input_layernorm", "attn_norm"),
            ("pre_ff_layernorm", "ffn_norm"),
            ("feed_forward.gate_proj", "ffn_gate"),
            ("feed_forward.up_proj", "ffn_up"),
            ("feed_forward.down_proj", "ffn_down"),
            ("mamba.in_proj", "ssm_in"),
            ("mamba.conv1d", "ssm_conv1d"),
            ("mamba.out_proj", "ssm_out"),
        ],
    ],
    defaults: || {
        json!({"rms_norm_eps": 1e-5, "mamba_expand": 2, "mamba_n_heads": 128, "mamba_n_groups": 1,
            "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_conv_bias": true,
            "partial_rotary_factor": 0.5, "max_position_embeddings": 262_144})
    },
    bias_flags: &[
        "attention_bias",
        "mlp_bias",
        "mamba_conv_bias",
        "mamba_proj_bias",
    ],
    keys: mamba2::bamba,
    ..LLAMA
};

/// Sets the keys that the first configs of EXAONE have by other names.
pub(super) fn rename(config: &mut Config) {
    config.rename(&[
        ("num_layers", "num_hidden_layers"),
        ("layer_norm_epsilon", "rms_norm_eps"),
        ("activation_function", "hidden_act"),
    ]);
}

/// The limit of queries, keys and values.
fn clipping(k: &mut Keys) -> Result<()> {
    if let Some(limit) = k.config.find_f32("clip_qkv")? {
        k.set("attention.clamp_kqv", limit);
    }
    Ok(())
}

fn falcon(k: &mut Keys) -> Result<()> {
    let (sequential, grouped) = (
        !k.config.flag("parallel_attn")?,
        k.config.flag("new_decoder_architecture")?,
    );
    if sequential && grouped {
        fail!(
            Unsupported,
            "config.json: parallel_attn is false and new_decoder_architecture is true, which is not supported"
        );
    }
    k.set("use_parallel_residual", !sequential);
    match k.config.flag("alibi")? {
        true => k.set("attention.max_alibi_bias", 8f32),
        false if sequential => k.set("attention.max_alibi_bias", 0f32),
        false => {}
    }
    if let Some(activation) = k.config.find_str("activation")?
        && activation != "gelu"
    {
        fail!(
            Unsupported,
            "config.json: activation is {activation:?}; models of this family run with gelu"
        );
    }
    let width = match k.config.find_size("ffn_hidden_size")? {
        Some(width) => width,
        None => k.config.size(&["hidden_size"])?.saturating_mul(4),
    };
    k.set("feed_forward_length", width);
    k.set("attention.head_count_kv", falcon_kv_heads(k)?);
    Ok(())
}

/// Key and value heads of StarCoder, without `multi_query` as many as there are queries.
pub(super) fn starcoder_kv_heads(k: &Keys) -> Result<u64> {
    match k.config.flag("multi_query")? {
        true => Ok(1),
        false => k.config.size(&["num_attention_heads", "n_head"]),
    }
}

/// Key and value heads, which older configs do not name.
pub(super) fn falcon_kv_heads(k: &Keys) -> Result<u64> {
    let heads = k.config.size(&["num_attention_heads", "n_head"])?;
    let given = k.config.size(&["num_kv_heads", "n_head_kv"]);
    match (
        k.config.flag("new_decoder_architecture")?,
        k.config.flag("multi_query")?,
    ) {
        (true, _) => given,
        (false, true) => Ok(1),
        (false, false) => Ok(heads),
    }
}
