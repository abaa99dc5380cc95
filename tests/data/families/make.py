"""Writes one folder per entry of FAMILIES beside this file: a tiny model with random weights as Hugging Face transformers
saves it (config.json, model.safetensors with float16 elements), the same model as model.gguf (as llama.cpp's converter
would write it, without a tokenizer), and logits.bin, what transformers computes in float32 at every position of random
tokens. Usage: make.py [name...]. Needs gguf, safetensors, torch, transformers. To add a family, add to FAMILIES,
and run ../pack.py on its folder afterwards.

Every number that has an influence is set so that it has one: windows are shorter than the text, soft caps bite, norms and
biases are random, heads are odd in number or together wider than the model, contexts are beyond those before scaling.

logits.bin, little endian: u32 n_tokens, u32 n_vocab, n_tokens x u32 token ids, n_tokens x n_vocab x f32 logits (row p: after
token p). Where a model has other frequencies for short contexts, short.bin has fewer tokens."""
import copy
import math
import re
import shutil
import struct
import sys
import zlib
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from safetensors.numpy import load_file

N_TOKENS = 40
FLOAT = dict(rope_type="default", rope_theta=10000.0)
BASE = dict(vocab_size=96, hidden_size=48, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3,
            num_key_value_heads=1, max_position_embeddings=64, rope_parameters=FLOAT, pad_token_id=0, bos_token_id=1,
            eos_token_id=2)
LONG = dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0, 1.1, 1.2, 1.3, 1.5, 1.8],
            long_factor=[1.0, 1.5, 2.5, 4.0, 6.0, 9.0], original_max_position_embeddings=32, partial_rotary_factor=0.75)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=2.0, original_max_position_embeddings=32, beta_fast=2.0, beta_slow=1.0)

GEMMA4_LAYERS = ["sliding_attention", "full_attention"] * 2
GEMMA4_ROPE = dict(sliding_attention=FLOAT, full_attention=dict(rope_type="proportional", partial_rotary_factor=0.5, rope_theta=1000000.0))

LATENT = dict(hidden_size=36, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=20, kv_lora_rank=24, qk_nope_head_dim=12,
              qk_rope_head_dim=8, v_head_dim=10, moe_intermediate_size=12, num_experts_per_tok=3, first_k_dense_replace=1,
              tie_word_embeddings=False)

DELTA = dict(num_hidden_layers=4, hidden_size=40, head_dim=20, num_attention_heads=4, num_key_value_heads=2,
             linear_conv_kernel_dim=4, linear_key_head_dim=12, linear_num_key_heads=2, linear_num_value_heads=6,
             layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention"],
             rope_parameters=dict(**FLOAT, partial_rotary_factor=0.4))

MAMBA = dict(num_hidden_layers=4, hidden_size=40, num_attention_heads=4, num_key_value_heads=2, embedding_multiplier=12.0,
             residual_multiplier=0.22, attention_multiplier=0.1, logits_scaling=2.0, mamba_n_heads=10, mamba_n_groups=2,
             mamba_d_state=12, mamba_d_head=8, mamba_d_conv=4, mamba_expand=2,
             layer_types=["linear_attention", "full_attention", "linear_attention", "linear_attention"])

FALCON_H1 = dict(hidden_size=40, head_dim=20, num_attention_heads=4, num_key_value_heads=2, mamba_d_ssm=60, mamba_n_heads=10,
                 mamba_d_head=6, mamba_n_groups=1, mamba_d_state=12, mamba_d_conv=4, mamba_norm_before_gate=False,
                 mamba_rms_norm=False, mamba_proj_bias=False, attention_in_multiplier=0.9, attention_out_multiplier=1.3,
                 key_multiplier=0.7, ssm_in_multiplier=1.2, ssm_out_multiplier=0.8, embedding_multiplier=1.6, lm_head_multiplier=0.4,
                 mlp_multipliers=[0.6, 1.7], ssm_multipliers=[1.1, 0.6, 1.4, 0.9, 0.75])

# Half of a head is rotated.
BAMBA = dict(num_hidden_layers=3, hidden_size=32, num_attention_heads=2, num_key_value_heads=1, intermediate_size=28, mamba_n_heads=8,
             mamba_n_groups=2, mamba_d_state=12, mamba_d_head=8, mamba_d_conv=4, mamba_expand=2, attn_layer_indices=[1])

# All that models without attention have.
MAMBA_1 = dict(vocab_size=96, conv_kernel=4, layer_norm_epsilon=1e-5, pad_token_id=0, bos_token_id=1, eos_token_id=2)

COHERE_MOE = dict(hidden_size=24, head_dim=10, intermediate_size=8, num_experts=5, num_experts_per_tok=2, sliding_window=8,
                  logit_scale=0.25)

# name: (model_type of transformers, architecture in GGUF, changes of BASE)
FAMILIES = {
    "qwen2": ("qwen2", "qwen2", dict(num_attention_heads=6, num_key_value_heads=2, tie_word_embeddings=True)),
    "qwen3": ("qwen3", "qwen3", dict(head_dim=20, hidden_size=40, tie_word_embeddings=False)),
    "mistral": ("mistral", "llama", dict(head_dim=24, hidden_size=40, sliding_window=7, tie_word_embeddings=False)),
    "mixtral": ("mixtral", "llama", dict(hidden_size=40, head_dim=16, intermediate_size=32, num_local_experts=5,
                                         num_experts_per_tok=2, sliding_window=None)),
    "qwen3moe": ("qwen3_moe", "qwen3moe", dict(hidden_size=40, head_dim=16, moe_intermediate_size=24, num_experts=7,
                                               num_experts_per_tok=3, norm_topk_prob=True)),
    "gemma2": ("gemma2", "gemma2", dict(num_hidden_layers=3, head_dim=20, query_pre_attn_scalar=20,
                                        attn_logit_softcapping=2.0, final_logit_softcapping=3.0, sliding_window=8)),
    "gemma3": ("gemma3_text", "gemma3", dict(num_hidden_layers=7, head_dim=20, intermediate_size=32,
                                             query_pre_attn_scalar=20, sliding_window=6,
                                             rope_parameters=dict(
                                                 full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1000000.0),
                                                 sliding_attention=dict(rope_type="default", rope_theta=10000.0)))),
    "phi2": ("phi", "phi2", dict(num_key_value_heads=3, intermediate_size=80, hidden_act="gelu_new",
                                 rope_parameters=dict(**FLOAT, partial_rotary_factor=0.5))),
    "phi3": ("phi3", "phi3", dict(rope_parameters=LONG,
                                  original_max_position_embeddings=32, sliding_window=21)),
    "phi4": ("phi3", "phi3", dict(rope_parameters=dict(**FLOAT, partial_rotary_factor=1.0),
                                  original_max_position_embeddings=64, sliding_window=None, tie_word_embeddings=True)),
    "gemma": ("gemma", "gemma", dict(head_dim=20, hidden_act="gelu_pytorch_tanh")),
    "qwen2_moe": ("qwen2_moe", "qwen2moe", dict(moe_intermediate_size=12, shared_expert_intermediate_size=28, num_experts=6,
                                                num_experts_per_tok=2)),
    "olmoe": ("olmoe", "olmoe", dict(num_attention_heads=6, num_key_value_heads=3, num_experts=6, num_experts_per_tok=2,
                                     intermediate_size=20)),
    "granite_moe": ("granitemoe", "granitemoe", dict(embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.1,
                                                     logits_scaling=2.0, num_local_experts=5, num_experts_per_tok=2, intermediate_size=20)),
    "gpt_neox": ("gpt_neox", "gptneox", dict(hidden_act="gelu", intermediate_size=60, num_key_value_heads=3,
                                             rope_parameters=dict(**FLOAT, partial_rotary_factor=0.5))),
    "gpt_neox_sequential": ("gpt_neox", "gptneox", dict(hidden_act="gelu", num_key_value_heads=3, use_parallel_residual=False,
                                                        rope_parameters=dict(**FLOAT, partial_rotary_factor=0.25))),
    "falcon": ("falcon", "falcon", dict(multi_query=True, parallel_attn=True, bias=False, alibi=False)),
    "falcon_new": ("falcon", "falcon", dict(num_attention_heads=6, num_kv_heads=3, new_decoder_architecture=True, bias=False, alibi=False,
                                            ffn_hidden_size=60)),
    "starcoder": ("gpt_bigcode", "starcoder", dict(vocab_size=96, n_embd=48, n_layer=2, n_head=3, n_positions=64, bos_token_id=1,
                                                   eos_token_id=2)),
    # Weights are what they are: only a quantization_config makes them ternary.
    "bitnet": ("bitnet", "bitnet", dict(vocab_size=60, hidden_size=24, intermediate_size=20, attention_bias=True, tie_word_embeddings=True, hidden_act="relu2")),
    "cohere": ("cohere", "command-r", dict(logit_scale=0.25)),
    "nemotron": ("nemotron", "nemotron", dict(head_dim=20, hidden_size=40, hidden_act="relu2",
                                              rope_parameters=dict(**FLOAT, partial_rotary_factor=0.5))),
    "exaone": ("exaone", "exaone", dict(num_attention_heads=6, num_key_value_heads=2)),
    "glm": ("glm", "chatglm", dict(head_dim=20, hidden_size=40, attention_bias=True,
                                   rope_parameters=dict(**FLOAT, partial_rotary_factor=0.6))),
    "dots1": ("dots1", "dots1", dict(num_hidden_layers=3, head_dim=20, hidden_size=40, moe_intermediate_size=8, num_experts_per_tok=3,
                                     n_routed_experts=8, n_shared_experts=2, n_group=4, topk_group=2, norm_topk_prob=True,
                                     routed_scaling_factor=1.8, first_k_dense_replace=1)),
    "gpt2": ("gpt2", "gpt2", dict(vocab_size=96, n_embd=48, n_layer=2, n_head=3, n_positions=64, bos_token_id=1, eos_token_id=2)),
    "olmo2": ("olmo2", "olmo2", dict(num_attention_heads=6, num_key_value_heads=3)),
    "olmo3": ("olmo3", "olmo2", dict(num_hidden_layers=5, num_key_value_heads=3, sliding_window=9)),
    "granite": ("granite", "granite", dict(embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.1,
                                           logits_scaling=2.0, tie_word_embeddings=True)),
    "smollm3": ("smollm3", "smollm3", dict(num_hidden_layers=5, tie_word_embeddings=True)),
    "starcoder2": ("starcoder2", "starcoder2", dict(sliding_window=10, use_bias=True, hidden_act="gelu_pytorch_tanh",
                                                    tie_word_embeddings=True)),
    "gpt_oss": ("gpt_oss", "gpt-oss", dict(hidden_size=64, head_dim=16, num_attention_heads=6, num_key_value_heads=3,
                                           intermediate_size=32, num_local_experts=4, num_experts_per_tok=2,
                                           sliding_window=9, rope_parameters=dict(**YARN, truncate=False))),
    "lfm2": ("lfm2", "lfm2", dict(num_hidden_layers=4, intermediate_size=60, block_multiple_of=8, conv_L_cache=4, conv_bias=True,
                                  layer_types=["conv", "full_attention", "conv", "conv"], norm_eps=1e-5)),
    "lfm2_moe": ("lfm2_moe", "lfm2moe", dict(num_hidden_layers=4, num_dense_layers=1, moe_intermediate_size=16, num_experts=6, num_experts_per_tok=2,
                                             layer_types=["conv", "full_attention", "conv", "conv"], norm_eps=1e-5, routed_scaling_factor=1.4)),
    # Three value heads to a key head; heads of another size than keys.
    "qwen3_next": ("qwen3_next", "qwen3next", DELTA | dict(linear_value_head_dim=20, moe_intermediate_size=8, num_experts=6,
                                                           num_experts_per_tok=3, norm_topk_prob=True,
                                                           shared_expert_intermediate_size=12)),
    "qwen3_5": ("qwen3_5_text", "qwen35", DELTA | dict(linear_value_head_dim=12, tie_word_embeddings=True)),
    "qwen3_5_moe": ("qwen3_5_moe_text", "qwen35moe", DELTA | dict(linear_value_head_dim=12, moe_intermediate_size=8, num_experts=6,
                                                                  num_experts_per_tok=2, shared_expert_intermediate_size=12)),
    "granite_hybrid": ("granitemoehybrid", "granitehybrid", MAMBA | dict(num_local_experts=0, shared_intermediate_size=36,
                                                                         position_embedding_type="rope", tie_word_embeddings=True)),
    "granite_hybrid_moe": ("granitemoehybrid", "granitehybrid", MAMBA | dict(num_local_experts=5, num_experts_per_tok=2,
                                                                             intermediate_size=16, shared_intermediate_size=12)),
    # Attention and Mamba 2 in each layer, and every factor another.
    "falcon_h1": ("falcon_h1", "falcon-h1", FALCON_H1),
    "falcon_h1_normed": ("falcon_h1", "falcon-h1", FALCON_H1 | dict(mamba_rms_norm=True, mamba_n_groups=2, tie_word_embeddings=True)),
    # Biases of all matrices, and norms before gates.
    "falcon_h1_biased": ("falcon_h1", "falcon-h1", FALCON_H1 | dict(vocab_size=24, hidden_size=14, head_dim=6, num_attention_heads=3,
                                                                    num_key_value_heads=1, intermediate_size=10, mamba_d_ssm=12, mamba_n_heads=3,
                                                                    mamba_d_head=4, mamba_d_state=5, mamba_rms_norm=True,
                                                                    mamba_norm_before_gate=True, attention_bias=True, mlp_bias=True,
                                                                    mamba_proj_bias=True, projectors_bias=True)),
    # One part a layer, feed-forward parts behind some of the mixers only.
    "nemotron_h": ("nemotron_h", "nemotron_h", dict(hidden_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=20,
                                                    intermediate_size=36, mlp_bias=True, mamba_num_heads=6, mamba_head_dim=8, n_groups=2,
                                                    ssm_state_size=12, conv_kernel=4, time_step_min=1e-9,
                                                    layers_block_type=["linear_attention", "mlp", "linear_attention", "full_attention",
                                                                       "mlp", "linear_attention"])),
    "nemotron_h_moe": ("nemotron_h", "nemotron_h_moe", dict(hidden_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=12,
                                                            intermediate_size=28, mamba_num_heads=6, mamba_head_dim=8, n_groups=2,
                                                            ssm_state_size=12, conv_kernel=4, time_step_min=1e-9, n_routed_experts=8,
                                                            num_experts_per_tok=3, n_group=4, topk_group=2, moe_intermediate_size=12,
                                                            moe_shared_expert_intermediate_size=20, routed_scaling_factor=1.7,
                                                            layers_block_type=["linear_attention", "moe", "full_attention", "moe",
                                                                               "linear_attention", "mlp"])),
    # Experts in a space of their own.
    "nemotron_h_latent": ("nemotron_h", "nemotron_h_moe", dict(hidden_size=28, num_attention_heads=2, num_key_value_heads=1, head_dim=12,
                                                               intermediate_size=28, mamba_num_heads=4, mamba_head_dim=6, n_groups=2,
                                                               ssm_state_size=8, conv_kernel=4, time_step_min=1e-9, n_routed_experts=5,
                                                               num_experts_per_tok=2, n_group=1, topk_group=1, moe_intermediate_size=12,
                                                               moe_latent_size=20, moe_shared_expert_intermediate_size=18,
                                                               routed_scaling_factor=1.7,
                                                               layers_block_type=["linear_attention", "moe", "full_attention", "moe", "linear_attention"])),
    # Channels that fill no whole blocks; the last one has norms inside, which have no weights.
    "mamba": ("mamba", "mamba", MAMBA_1 | dict(num_hidden_layers=3, hidden_size=28, state_size=9, time_step_rank=3, use_bias=True)),
    "falcon_mamba": ("falcon_mamba", "mamba", MAMBA_1 | dict(num_hidden_layers=2, hidden_size=20, state_size=16, time_step_rank=5,
                                                             mixer_rms_eps=1e-5, tie_word_embeddings=False)),
    "mamba2": ("mamba2", "mamba2", MAMBA_1 | dict(num_hidden_layers=2, hidden_size=20, state_size=12, num_heads=5, head_dim=8, n_groups=1,
                                                  expand=2, use_bias=True, tie_word_embeddings=True)),
    "bamba": ("bamba", "granitehybrid", BAMBA),
    # Attention in every third layer, experts in every second.
    "jamba": ("jamba", "jamba", dict(num_hidden_layers=4, hidden_size=36, intermediate_size=12, num_experts=3, num_experts_per_tok=2,
                                     attn_layer_period=3, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1,
                                     mamba_d_state=5, mamba_d_conv=3, mamba_dt_rank=7, mamba_proj_bias=True)),
    "glm4": ("glm4", "glm4", dict(head_dim=20, hidden_size=40, attention_bias=True,
                                  rope_parameters=dict(**FLOAT, partial_rotary_factor=0.6))),
    "cohere2": ("cohere2", "cohere2", dict(num_hidden_layers=5, sliding_window=8, logit_scale=0.25)),
    # A layer without experts whose rotations are by the number of such layers and not by a window, and shared experts.
    "cohere2_moe": ("cohere2_moe", "cohere2moe", COHERE_MOE | dict(num_hidden_layers=5, first_k_dense_replace=1, num_shared_experts=2,
                                                                   expert_selection_fn="sigmoid", prefix_dense_intermediate_size=20)),
    "cohere2_moe_rms": ("cohere2_moe", "cohere2moe", COHERE_MOE | dict(num_hidden_layers=2, rms_norm_eps=1e-5, sliding_window_pattern=2,
                                                                       expert_selection_fn="softmax", norm_topk_prob=False)),
    "apertus": ("apertus", "apertus", dict(head_dim=20, rope_parameters=FLOAT)),
    "arcee": ("arcee", "arcee", dict(rope_parameters=FLOAT)),
    "ernie4_5": ("ernie4_5", "ernie4_5", dict(head_dim=20, use_bias=True, tie_word_embeddings=True)),
    "ernie4_5_moe": ("ernie4_5_moe", "ernie4_5-moe", dict(num_hidden_layers=4, head_dim=16, hidden_size=40, moe_intermediate_size=8,
                                                          moe_k=2, moe_num_experts=6, moe_num_shared_experts=2,
                                                          moe_layer_start_index=1, moe_layer_interval=2,
                                                          intermediate_size=32)),
    "exaone4": ("exaone4", "exaone4", dict(num_hidden_layers=5, head_dim=12, hidden_size=40, sliding_window=9)),
    "glm4_moe": ("glm4_moe", "glm4moe", dict(num_hidden_layers=3, head_dim=20, hidden_size=40, attention_bias=True, use_qk_norm=True,
                                             rope_parameters=dict(**FLOAT, partial_rotary_factor=0.6), moe_intermediate_size=8,
                                             num_experts_per_tok=3, n_routed_experts=8, n_shared_experts=1, n_group=4, topk_group=2,
                                             routed_scaling_factor=1.8, first_k_dense_replace=1, num_mtp_layers=0)),
    "deepseek_v2": ("deepseek_v2", "deepseek2", LATENT | dict(q_lora_rank=None, num_hidden_layers=2, n_routed_experts=5, n_shared_experts=2,
                                                              topk_method="greedy", routed_scaling_factor=1.3, norm_topk_prob=False,
                                                              n_group=1, topk_group=1)),
    "deepseek_v3": ("deepseek_v3", "deepseek2", LATENT | dict(num_hidden_layers=3, n_routed_experts=8, n_shared_experts=1, n_group=4, topk_group=2,
                                                              routed_scaling_factor=2.5, norm_topk_prob=True, num_mtp_layers=0,
                                                              rope_parameters=dict(**YARN, mscale=1.0, mscale_all_dim=1.0))),
    # Layers without a window have no rope; embeddings have a factor.
    "afmoe": ("afmoe", "afmoe", dict(vocab_size=40, hidden_size=16, head_dim=6, intermediate_size=14, moe_intermediate_size=8, num_hidden_layers=3,
                                     num_experts=4, num_experts_per_tok=2, num_shared_experts=2, num_dense_layers=1, route_scale=1.7,
                                     sliding_window=7, layer_types=GEMMA4_LAYERS[:3], mup_enabled=True)),
    "exaone_moe": ("exaone_moe", "exaone-moe", dict(vocab_size=40, hidden_size=16, head_dim=6, num_attention_heads=3, intermediate_size=14, moe_intermediate_size=8,
                                                    num_hidden_layers=3, num_experts=6, num_experts_per_tok=3, num_shared_experts=1,
                                                    n_group=3, topk_group=2, routed_scaling_factor=1.6, first_k_dense_replace=1,
                                                    sliding_window=7, layer_types=GEMMA4_LAYERS[:3])),
    "glm4_moe_lite": ("glm4_moe_lite", "deepseek2", LATENT | dict(num_hidden_layers=3, n_routed_experts=6, n_shared_experts=1,
                                                                  routed_scaling_factor=1.8, n_group=1, topk_group=1)),
    # Biases before and behind attention, and halves of what is rotated apart.
    "deepseek_v3_biased": ("deepseek_v3", "deepseek2", LATENT | dict(vocab_size=40, hidden_size=20, intermediate_size=14, q_lora_rank=10,
                                                                     kv_lora_rank=12, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6,
                                                                     moe_intermediate_size=8, num_experts_per_tok=2, n_routed_experts=3,
                                                                     n_shared_experts=1, first_k_dense_replace=0, n_group=1, topk_group=1, attention_bias=True,
                                                                     rope_interleave=False)),
    "mistral4": ("mistral4", "mistral4", LATENT | dict(num_hidden_layers=3, n_routed_experts=6, n_shared_experts=1, n_group=1, topk_group=1,
                                                       routed_scaling_factor=1.4, norm_topk_prob=True,
                                                       rope_parameters=dict(**(YARN | dict(original_max_position_embeddings=8)), mscale=1.0,
                                                                            mscale_all_dim=1.0, llama_4_scaling_beta=0.3))),
    # Several residual streams, gates that are mostly 0, and layers that read keys and values of earlier ones.
    "gemma3n": ("gemma3n_text", "gemma3n", dict(num_hidden_layers=7, hidden_size=32, head_dim=12, num_attention_heads=4,
                                                num_key_value_heads=2, intermediate_size=[20, 24, 20, 20, 20, 20, 28],
                                                layer_types=GEMMA4_LAYERS + GEMMA4_LAYERS[:2] + GEMMA4_LAYERS[:1],
                                                sliding_window=6, hidden_size_per_layer_input=10, vocab_size_per_layer_input=96,
                                                num_kv_shared_layers=3, altup_num_inputs=3, altup_active_idx=1, laurel_rank=5,
                                                activation_sparsity_pattern=[0.6, 0.95, 0.0, 0.3, 0.0, 0.0, 0.0],
                                                final_logit_softcapping=3.0,
                                                rope_parameters=dict(sliding_attention=FLOAT, full_attention=dict(rope_type="default", rope_theta=1000000.0)))),
    # Keys of layers without a window are their values.
    "gemma4": ("gemma4_text", "gemma4", dict(num_hidden_layers=4, hidden_size=40, head_dim=12, global_head_dim=20,
                                             num_key_value_heads=3, num_global_key_value_heads=1, attention_k_eq_v=True,
                                             layer_types=GEMMA4_LAYERS, sliding_window=6, hidden_size_per_layer_input=0,
                                             final_logit_softcapping=3.0, rope_parameters=GEMMA4_ROPE)),
    # Per-layer embeddings, and layers that read keys and values of earlier ones.
    "gemma4_e": ("gemma4_text", "gemma4", dict(num_hidden_layers=6, hidden_size=32, head_dim=8, global_head_dim=12, intermediate_size=20,
                                               num_key_value_heads=1, layer_types=GEMMA4_LAYERS + GEMMA4_LAYERS[:2], sliding_window=6,
                                               hidden_size_per_layer_input=10, vocab_size_per_layer_input=96,
                                               num_kv_shared_layers=2, use_double_wide_mlp=True,
                                               final_logit_softcapping=3.0, rope_parameters=GEMMA4_ROPE)),
    # A feed-forward part and experts side by side.
    "gemma4_moe": ("gemma4_text", "gemma4", dict(num_hidden_layers=4, hidden_size=40, head_dim=12, global_head_dim=20, intermediate_size=28,
                                                 num_key_value_heads=3, num_global_key_value_heads=1, attention_k_eq_v=True,
                                                 layer_types=GEMMA4_LAYERS, sliding_window=6, hidden_size_per_layer_input=0,
                                                 enable_moe_block=True, num_experts=7, top_k_experts=3, moe_intermediate_size=12,
                                                 final_logit_softcapping=3.0, rope_parameters=GEMMA4_ROPE)),
    "hunyuan": ("hunyuan_v1_dense", "hunyuan-dense", dict(head_dim=20, hidden_size=40, tie_word_embeddings=True,
                                                          rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, alpha=40.0,
                                                                               factor=1.0))),
    "hunyuan_moe": ("hunyuan_v1_moe", "hunyuan-moe", dict(head_dim=16, hidden_size=40, num_experts=5, moe_topk=2, intermediate_size=24)),
    "minimax_m2": ("minimax_m2", "minimax-m2", dict(head_dim=20, hidden_size=40, intermediate_size=24, num_local_experts=6,
                                                    num_experts_per_tok=2,
                                                    rope_parameters=dict(**FLOAT, partial_rotary_factor=0.6))),
    "ministral3": ("ministral3", "mistral3", dict(head_dim=20, hidden_size=40,
                                                  rope_parameters=dict(**(YARN | dict(original_max_position_embeddings=8)), mscale=1.0,
                                                                       mscale_all_dim=1.0, llama_4_scaling_beta=0.3))),
    # Chunks in layers that rotate; experts whose weights are factors on their inputs.
    "llama4": ("llama4_text", "llama4", dict(vocab_size=40, hidden_size=16, head_dim=6, intermediate_size=6, intermediate_size_mlp=10,
                                             num_hidden_layers=3, num_local_experts=3, num_experts_per_tok=2, interleave_moe_layer_step=2,
                                             no_rope_layer_interval=2, attention_chunk_size=7, floor_scale=5, attn_scale=0.3,
                                             tie_word_embeddings=False)),
    "olmo": ("olmo", "olmo", dict(vocab_size=40, hidden_size=18, intermediate_size=14, clip_qkv=0.6)),
    # Latent attention with factors, and halves of what is rotated apart.
    "minicpm3": ("minicpm3", "minicpm3", dict(vocab_size=40, hidden_size=18, intermediate_size=14, num_key_value_heads=3, q_lora_rank=10,
                                              kv_lora_rank=12, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6, scale_emb=3.0,
                                              scale_depth=1.1, dim_model_base=12,
                                              rope_parameters=dict(LONG, short_factor=[1.0, 1.3], long_factor=[1.0, 6.0]) | dict(partial_rotary_factor=1.0))),
    "seed_oss": ("seed_oss", "seed_oss", dict(head_dim=20, hidden_size=40, attention_bias=True, attention_out_bias=False)),
    "stablelm": ("stablelm", "stablelm", dict(num_attention_heads=6, num_key_value_heads=3, use_qkv_bias=True,
                                              rope_parameters=dict(**FLOAT, partial_rotary_factor=0.5))),
    "stablelm_parallel": ("stablelm", "stablelm", dict(num_attention_heads=3, num_key_value_heads=3, use_parallel_residual=True,
                                                       rope_parameters=dict(**FLOAT, partial_rotary_factor=0.5))),
}
# Norms lack the 1 that is added to them, but for those of the recurrence.
SHIFTED = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
# Architectures in whose files rope rotates neighbours, though the saved model rotates halves.
INTERLEAVED = ("llama", "olmo", "granite", "granitemoe", "granitehybrid", "smollm3", "arcee", "mistral3", "nemotron_h", "nemotron_h_moe")


def random_model(config):
    # Not all are in the list of those with a head.
    kind = transformers.Mistral4ForCausalLM._from_config if config.model_type == "mistral4" else transformers.AutoModelForCausalLM.from_config
    model = kind(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            norm = re.search(r"norm|ln_", name) and name.endswith("weight")
            shifted = config.model_type in ("gemma", "gemma2", "gemma3_text", "nemotron") or config.model_type in SHIFTED and "linear_attn" not in name
            p.normal_(1.0 if norm and not shifted else 0.0, 0.2)
            if name.endswith("sinks"):
                p.normal_(0.0, 2.0)
            if name.endswith(("conv1d.weight", "conv1d.bias")):
                p.normal_(0.0, 0.6)
            if "modality_router" in name:
                p.normal_(0.0, 4.0)  # what it reads is divided by the width
            if name.endswith(("router.scale", "per_expert_scale")):
                p.normal_(1.0, 0.4)
            if config.model_type == "gemma4_text" and name.endswith("router.proj.weight"):
                p.normal_(0.0, 1.5)  # what it reads is divided by the root of the width
            if name.endswith("A_log"):
                p.normal_(-1.5, 1.0)
            if name.endswith("gate_up_proj_bias"):
                p.normal_(0.0, 6.0)  # beyond the activation's limit, which is 7 in all files
            if config.model_type == "gpt_oss" and name.endswith("_proj") and "experts" in name:
                p.copy_(torch.tensor(mxfp4_values(p.shape)).swapaxes(1, 2))
            p.copy_(p.half().float())
        for name, p in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "expert_bias")):
                p.normal_(0.0, 0.2)
            if name.endswith("layer_scalar"):
                p.uniform_(0.7, 1.3)
            if name.endswith(("e_score_correction_bias", "expert_bias", "layer_scalar")):
                p.copy_(p.half().float())
    return model


# MXFP4: 32 numbers of a row are multiples of one power of two, a half of its exponent's.
MXFP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def mxfp4_values(shape):
    """Random values, [experts][rows][cols] for a tensor of the shape [experts][cols][rows]."""
    experts, cols, rows = shape
    random = np.random.default_rng(cols * rows)
    values = MXFP4[random.integers(0, 8, (experts, rows, cols // 32, 32))] * random.choice([-1.0, 1.0], (experts, rows, cols // 32, 32))
    return (values * 2.0 ** random.integers(-5, -2, (experts, rows, cols // 32, 1))).astype(np.float32).reshape(experts, rows, cols)


def mxfp4_blocks(x):
    """Rows of values of the type as blocks: the exponent, then 16 bytes with element i and, above it, i + 16."""
    blocks = x.reshape(-1, 32)
    for exponent in range(127 - 10, 127 + 4):
        scaled = np.abs(blocks) / 2.0 ** (exponent - 127)
        fits = np.isin(scaled, MXFP4).all(1)
        codes = np.where(np.signbit(blocks), 8, 0) + np.abs(scaled[..., None] - MXFP4).argmin(-1)
        bytes_ = np.concatenate([np.full((len(blocks), 1), exponent), codes[:, :16] | codes[:, 16:] << 4], 1).astype(np.uint8)
        out = np.where(fits[:, None], bytes_, out) if exponent > 117 else bytes_
    return out.reshape(*x.shape[:-1], -1)


def interleaved(x, heads):
    """Rows of q or k in another order: the two elements of a pair that rope rotates are neighbours."""
    return x.reshape(heads, 2, -1, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def last_interleaved(x, config):
    """The same of the last rows alone of each head, or of the vector that all heads share."""
    rotated = config.qk_rope_head_dim
    heads = 1 if len(x) == config.kv_lora_rank + rotated else config.num_attention_heads
    of_heads = x.reshape(heads, -1, *x.shape[1:])
    plain, last = of_heads[:, :-rotated], of_heads[:, -rotated:]
    last = interleaved(last.reshape(heads * rotated, *x.shape[1:]), heads).reshape(last.shape)
    return np.concatenate([plain, last], axis=1).reshape(x.shape)


def gguf_tensors(config, architecture, saved):
    """The saved tensors as (name, array) of a GGUF file, experts still apart."""
    # One that the package does not know, by the names of another.
    known = {"cohere2moe": "glm4moe"}.get(architecture, architecture)
    names = gguf.get_tensor_name_map(next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == known),
                                     config.num_hidden_layers)
    for name, x in saved.items():
        x = x.astype(np.float32)
        if not getattr(config, "rope_interleave", True) and re.search(r"q_b_proj|kv_a_proj_with_mqa", name):
            x = last_interleaved(x, config)
        if architecture == "falcon-h1":
            yield from falcon_h1(config, name, x)
            continue
        if architecture == "mamba2" and ".mixer." in name:
            layer, part = re.match(r".*layers\.(\d+)\.mixer\.(.*)$", name).groups()
            yield from mamba2(f"blk.{layer}.", part, x, config.n_groups)
            continue
        if architecture in ("mamba", "jamba") and re.search(r"\.(mixer|mamba)\.", name):
            yield from mamba1(name, x)
            continue
        if ".mamba." in name or ".shared_mlp." in name or ".block_sparse_moe." in name and architecture.startswith("granite"):
            yield from granite_hybrid(config, name, x)
            continue
        if architecture.startswith("nemotron_h"):
            name = re.sub(r"^(model|backbone)\.", "backbone.", name)
            of_mixer = re.match(r"backbone\.layers\.(\d+)\.mixer\.(.*)", name)
            if of_mixer and re.match("in_proj|out_proj|conv1d|A_log|D$|dt_bias|norm", of_mixer[2]):
                yield from mamba2(f"blk.{of_mixer[1]}.", of_mixer[2], x, config.n_groups)
                continue
        if ".linear_attn." in name:
            yield from delta_net(config, architecture, name, x)
            continue
        stem, end = name.rsplit(".", 1)
        if config.model_type in SHIFTED and stem.endswith("norm"):
            x = x + 1
        if architecture in ("gemma", "gemma2", "gemma3", "nemotron") and stem.endswith("norm") and end == "weight":
            x = x + 1
        if architecture in INTERLEAVED and ".q_proj." in name:
            x = interleaved(x, config.num_attention_heads)
        if architecture in INTERLEAVED and ".k_proj." in name:
            x = interleaved(x, config.num_key_value_heads)
        if "query_key_value" in name:
            x = by_kind(x, config)
        if name.endswith("conv.conv.weight"):
            x = x.squeeze(1)
        if architecture == "gpt2" and re.search(r"c_attn.weight|c_proj.weight|c_fc.weight", name):
            x = x.T
        if stem.endswith("kv_b_proj") and architecture != "minicpm3":
            # Of each head, keys and values; those of the keys the other way round.
            heads = x.reshape(config.num_attention_heads, -1, config.kv_lora_rank)
            layer = stem.split(".")[2]
            yield f"blk.{layer}.attn_k_b.weight", heads[:, :config.qk_nope_head_dim].swapaxes(1, 2)
            yield f"blk.{layer}.attn_v_b.weight", heads[:, config.qk_nope_head_dim:]
            continue
        stream = re.search(r"altup_(unembed_)?projections\.(\d+)$", stem)
        if stream:
            yield f"altup_{'unembd_' if stream[1] else ''}proj.weight:{int(stream[2]):03}", x
            continue
        if end == "correct_output_scale":
            yield f"blk.{stem.split('.')[2]}.altup_correct_scale.weight", x
            continue
        sub_norm = re.match(r"model\.layers\.(\d+)\..*\.(attn|ffn)_sub_norm$", stem)
        if sub_norm:
            yield f"blk.{sub_norm[1]}.{sub_norm[2]}_sub_norm.weight", x
            continue
        if end in ("sinks", "layer_scalar"):
            stem, end = name, "weight"
        of_layer = re.match(r"model\.layers\.(\d+)\.(router\.scale|router\.per_expert_scale|experts\.gate_up_proj|experts\.down_proj)$", name)
        if of_layer and architecture == "gemma4":
            parts = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale",
                     "experts.gate_up_proj": "ffn_gate_up_exps.weight", "experts.down_proj": "ffn_down_exps.weight"}
            yield f"blk.{of_layer[1]}.{parts[of_layer[2]]}", x
            continue
        if end in ("e_score_correction_bias", "expert_bias"):
            stem, end = name if end == "expert_bias" else name.removesuffix("_bias"), "bias"
            x = x.reshape(-1)
        if stem.endswith("act_fn"):
            continue
        part = re.match(r"(.*feed_forward\.experts)\.(gate_up|down)_proj$", name)
        if part and architecture == "llama4":
            x = x.swapaxes(1, 2)
            pieces = dict(zip(("gate", "up"), np.split(x, 2, axis=1))) if part[2] == "gate_up" else dict(down=x)
            for piece, x in pieces.items():
                yield f"{names.get_name(f'{part[1]}.{piece}_proj')}.weight", x
            continue
        part = re.match(r"(.*mlp\.experts)\.(gate_up|down)_proj(_bias)?$", name)
        if part and architecture == "mistral4":
            gate, up = np.split(x, 2, axis=1) if part[2] == "gate_up" else (None, None)
            for piece, x in dict(gate=gate, up=up).items() if part[2] == "gate_up" else [("down", x)]:
                yield f"{names.get_name(f'{part[1]}.{piece}_proj')}.weight", x
            continue
        if part:
            end = "bias" if part[3] else "weight"
            x = x if part[3] else x.swapaxes(1, 2)
            pieces = dict(gate=x[:, 0::2], up=x[:, 1::2]) if part[2] == "gate_up" else dict(down=x)
            for piece, x in pieces.items():
                yield f"{names.get_name(f'{part[1]}.{piece}_proj')}.{end}", x
            continue
        expert = re.match(r"(.*)\.experts\.(\d+)\.(\w+)$", stem)
        if expert:
            stem = f"{expert[1]}.experts.{expert[3]}"
            if re.search("block_sparse_moe|feed_forward", stem):
                stem = stem.replace("model.layers", "layers").replace("block_sparse_moe", "feed_forward")
            stem = re.sub(r"backbone\.layers\.(\d+)\.mixer", r"model.layers.\1.mlp", stem)
            if architecture == "jamba":
                stem = re.sub(r"^layers\.(\d+)\.feed_forward", r"model.layers.\1.mlp", stem)
            yield f"{names.get_name(stem)}.{end}:{int(expert[2]):03}", x
            continue
        mapped = names.get_name(stem)
        if mapped is None:
            raise ValueError(f"no GGUF name for {name}")
        yield f"{mapped}.{end}", x


def kv_heads(config):
    c = config.to_dict()
    if "multi_query" not in c:
        return c.get("num_key_value_heads") or config.num_attention_heads
    return c["num_kv_heads"] if c.get("new_decoder_architecture") else 1


def by_kind(x, config):
    """Rows of queries, keys and values of each KV head, as those of all queries, all keys and all values."""
    groups = config.num_attention_heads if config.model_type == "gpt_neox" else kv_heads(config)
    heads = x.reshape(groups, config.num_attention_heads // groups + 2, -1, *x.shape[1:])
    flat = lambda x: x.reshape(-1, *x.shape[3:])
    return np.concatenate([flat(heads[:, :-2]), flat(heads[:, -2:-1]), flat(heads[:, -1:])])


def tiled(x, config):
    """Value heads in another order: they take the key heads in turns."""
    heads, groups = config.linear_num_value_heads, config.linear_num_key_heads
    return x.reshape(groups, heads // groups, -1, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)


def delta_net(config, architecture, name, x):
    """A tensor of a delta net as (name, array) of a GGUF file."""
    _, layer, part = re.match(r"(.*)\.layers\.(\d+)\.linear_attn\.(.*)$", name).groups()
    keys, values = config.linear_key_head_dim, config.linear_value_head_dim
    groups, heads = config.linear_num_key_heads, config.linear_num_value_heads
    order = (lambda x: tiled(x, config)) if architecture != "qwen3next" else (lambda x: x)
    behind = lambda x: np.concatenate([x[:2 * keys * groups], order(x[2 * keys * groups:])])
    blk = f"blk.{layer}."
    if part == "in_proj_qkvz.weight":
        per = heads // groups * values
        q, k, v, z = np.split(x.reshape(groups, -1, x.shape[-1]), np.cumsum([keys, keys, per]), axis=1)
        flat = lambda x: x.reshape(-1, x.shape[-1])
        yield blk + "attn_qkv.weight", np.concatenate([flat(q), flat(k), flat(v)])
        yield blk + "attn_gate.weight", flat(z)
    elif part == "out_proj.weight":
        yield blk + "ssm_out.weight", order(x.T).T
    else:
        name, change = {
            "in_proj_qkv.weight": ("attn_qkv.weight", behind),
            "in_proj_z.weight": ("attn_gate.weight", order),
            "in_proj_ba.weight": ("ssm_ba.weight", lambda x: x),
            "in_proj_b.weight": ("ssm_beta.weight", order),
            "in_proj_a.weight": ("ssm_alpha.weight", order),
            "conv1d.weight": ("ssm_conv1d.weight", lambda x: behind(x.squeeze(1))),
            "A_log": ("ssm_a", lambda x: order(-np.exp(x.astype(np.float64)).astype(np.float32))),
            "dt_bias": ("ssm_dt.bias", order),
            "norm.weight": ("ssm_norm.weight", lambda x: x),
        }[part]
        yield blk + name, change(x)


def falcon_h1(config, name, x):
    """A tensor of Falcon-H1 with its factors."""
    c, one = config, np.float32(1)
    factors = {"embed_tokens": c.embedding_multiplier, "lm_head": c.lm_head_multiplier, "q_proj": c.attention_in_multiplier,
               "v_proj": c.attention_in_multiplier, "k_proj": one * c.attention_in_multiplier * one * c.key_multiplier,
               "o_proj": c.attention_out_multiplier, "gate_proj": c.mlp_multipliers[0], "down_proj": c.mlp_multipliers[1],
               "mamba.out_proj": c.ssm_out_multiplier}
    if ".mamba." in name:
        _, layer, part = re.match(r"(.*)\.layers\.(\d+)\.mamba\.(.*)$", name).groups()
        if part.startswith("in_proj."):
            # Biases come behind the factor of the input.
            inner, states = c.mamba_d_ssm, c.mamba_n_groups * c.mamba_d_state
            rows = np.repeat(np.float32(c.ssm_multipliers) * np.float32(c.ssm_in_multiplier if x.ndim == 2 else 1.0),
                             [inner, inner, states, states, c.mamba_n_heads])
            x = x * rows.reshape(-1, *[1] * (x.ndim - 1))
        for gguf_name, x in mamba2(f"blk.{layer}.", part, x, c.mamba_n_groups):
            yield gguf_name, x * np.float32(c.ssm_out_multiplier) if part.startswith("out_proj.") else x
        return
    stem, end = name.rsplit(".", 1)
    if end == "bias":
        factors |= dict(q_proj=1.0, v_proj=1.0, k_proj=c.key_multiplier)
    factor = np.float32(factors.get(stem.rsplit(".", 1)[-1], 1.0))
    part = {"embed_tokens": "token_embd", "lm_head": "output", "final_layernorm": "output_norm", "input_layernorm": "attn_norm",
            "pre_ff_layernorm": "ffn_norm", "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output",
            "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}[stem.rsplit(".", 1)[-1]]
    layer = re.match(r"model\.layers\.(\d+)\.", stem)
    # The only norm whose name has no end.
    end = f".{end}" if part != "ffn_norm" else ""
    yield f"{f'blk.{layer[1]}.' if layer else ''}{part}{end}", x * factor
    if stem.endswith("embed_tokens") and config.tie_word_embeddings:
        yield f"output{end}", x * np.float32(c.lm_head_multiplier)


def granite_hybrid(config, name, x):
    """A tensor of Mamba 2 or of a feed-forward part as (name, array) of a GGUF file."""
    _, layer, part = re.match(r"(.*)\.layers\.(\d+)\.(?:mamba|shared_mlp|block_sparse_moe)\.(.*)$", name).groups()
    blk, shared = f"blk.{layer}.", "_shexp" if getattr(config, "num_local_experts", 0) else ""
    if part == "input_linear.weight" and "shared_mlp" in name:
        gate, up = np.split(x, 2)
        yield f"{blk}ffn_gate{shared}.weight", gate
        yield f"{blk}ffn_up{shared}.weight", up
    elif part in ("input_linear.weight", "experts.gate_up_proj"):
        gate, up = np.split(x, 2, axis=1)
        yield blk + "ffn_gate_exps.weight", gate
        yield blk + "ffn_up_exps.weight", up
    elif part == "output_linear.weight" and "shared_mlp" in name:
        yield f"{blk}ffn_down{shared}.weight", x
    elif part in ("output_linear.weight", "experts.down_proj"):
        yield blk + "ffn_down_exps.weight", x
    else:
        yield from mamba2(blk, part, x, getattr(config, "mamba_n_groups", 1))


def mamba1(name, x):
    """A tensor of Mamba, the first."""
    layer, part = re.match(r".*layers\.(\d+)\.(?:mixer|mamba)\.(.*)$", name).groups()
    part = re.sub("_layernorm", "_norm", re.sub("_proj", "", part))
    if part == "A_log":
        yield f"blk.{layer}.ssm_a", -np.exp(x.astype(np.float64)).astype(np.float32)
    else:
        yield f"blk.{layer}.ssm_{part.lower()}", x.squeeze(1) if part == "conv1d.weight" else x


def mamba2(blk, part, x, n_groups):
    """A tensor of Mamba 2, or of a router beside it."""
    name, change = {
        "in_proj.weight": ("ssm_in.weight", lambda x: x),
        "in_proj.bias": ("ssm_in.bias", lambda x: x),
        "out_proj.bias": ("ssm_out.bias", lambda x: x),
        "conv1d.weight": ("ssm_conv1d.weight", lambda x: x.squeeze(1) if x.ndim == 3 else x),
        "conv1d.bias": ("ssm_conv1d.bias", lambda x: x),
        "A_log": ("ssm_a", lambda x: -np.exp(x.astype(np.float64)).astype(np.float32).reshape(-1, 1)),
        "D": ("ssm_d", lambda x: x.reshape(-1, 1)),
        "dt_bias": ("ssm_dt.bias", lambda x: x),
        "norm.weight": ("ssm_norm.weight", lambda x: x.reshape(n_groups, -1)),
        "out_proj.weight": ("ssm_out.weight", lambda x: x),
        "router.layer.weight": ("ffn_gate_inp.weight", lambda x: x),
        "router.weight": ("ffn_gate_inp.weight", lambda x: x),
    }[part]
    yield blk + name, change(x)


def merged(tensors):
    """Experts' matrices one below the other."""
    experts = {}
    for name, x in tensors:
        if ":" in name:
            experts.setdefault(name.split(":")[0], {})[name] = x
        else:
            yield name, x
    for name, parts in experts.items():
        yield name, np.stack([parts[k] for k in sorted(parts)])


def write_metadata(w, architecture, config):
    c = config.to_dict()
    if architecture == "mamba":
        write_mamba(w, c)
        return
    if architecture == "mamba2":
        write_mamba2(w, c)
        return
    # Nemotron-H and Jamba have rope in their configs alone.
    ropes = c.get("rope_parameters") or {} if not re.match("nemotron_h|jamba", architecture) else {}
    rope = ropes.get("full_attention", ropes)
    heads = c.get("num_attention_heads") or c["n_head"]
    hidden = c.get("hidden_size") or c["n_embd"]
    layers = getattr(config, "num_hidden_layers", 0) or c["n_layer"]
    w.add_tokenizer_model("no_vocab")
    w.add_vocab_size(c["vocab_size"])
    w.add_context_length(c.get("max_position_embeddings") or c["n_positions"])
    w.add_embedding_length(hidden)
    w.add_block_count(layers)
    n_ff = c.get("ffn_hidden_size") or c.get("prefix_dense_intermediate_size") or c.get("intermediate_size") or c.get("n_inner") or 4 * hidden
    if c.get("block_auto_adjust_ff_dim"):
        multiple = c["block_multiple_of"]
        n_ff = -(-int(c["block_ffn_dim_multiplier"] * int(2 * n_ff / 3)) // multiple) * multiple
    if architecture == "granitehybrid" and c.get("num_local_experts") == 0:
        n_ff = c["shared_intermediate_size"]
    if architecture.startswith("nemotron_h"):
        widths = dict(mlp=n_ff, moe=config.moe_intermediate_size)
        w.add_feed_forward_length([widths.get(t, 0) for t in config.layers_block_type])
    elif not c.get("use_double_wide_mlp"):
        w.add_feed_forward_length(c.get("intermediate_size_mlp") or n_ff)
    w.add_head_count(heads)
    if architecture in ("lfm2", "lfm2moe"):
        w.add_head_count_kv([0 if t == "conv" else c["num_key_value_heads"] for t in c["layer_types"]])
        w.add_shortconv_l_cache(c["conv_L_cache"])
        w.add_layer_norm_rms_eps(c["norm_eps"])
    elif architecture.startswith("nemotron_h"):
        w.add_head_count_kv([config.num_key_value_heads if t == "full_attention" else 0 for t in config.layers_block_type])
        w.add_layer_norm_rms_eps(config.layer_norm_epsilon)
        write_nemotron_h(w, config)
    elif architecture == "jamba":
        w.add_head_count_kv([c["num_key_value_heads"] if t == "attention" else 0 for t in config.layers_block_type])
        w.add_ssm_conv_kernel(c["mamba_d_conv"])
        w.add_ssm_inner_size(c["mamba_expand"] * hidden)
        w.add_ssm_state_size(c["mamba_d_state"])
        w.add_ssm_time_step_rank(c["mamba_dt_rank"])
    elif architecture == "granitehybrid":
        w.add_head_count_kv([c["num_key_value_heads"] if t == "full_attention" else 0 for t in config.layers_block_type])
    elif architecture in ("falcon", "starcoder"):
        w.add_head_count_kv(kv_heads(config))
    elif "num_key_value_heads" in c and architecture not in ("gemma4", "deepseek2", "mistral4", "minicpm3"):
        w.add_head_count_kv(c["num_key_value_heads"])
    if architecture == "olmo":
        w.add_layer_norm_eps(1e-5)
        w.add_clamp_kqv(c["clip_qkv"])
    if c.get("rms_norm_eps"):
        w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    for key in ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"):
        if key in c and architecture not in ("lfm2", "lfm2moe"):
            w.add_layer_norm_eps(c[key])
    head_dim = c.get("head_dim") or hidden // heads
    if c.get("head_dim") and architecture not in ("gemma4", "deepseek2", "mistral4", "minicpm3"):
        w.add_key_length(head_dim)
        w.add_value_length(head_dim)
    if rope:
        # A fixed alpha makes the base another one.
        alpha = rope.get("alpha", 1.0) ** (head_dim / (head_dim - 2))
        w.add_rope_freq_base(rope["rope_theta"] * alpha)
        if architecture not in ("gemma4", "deepseek2", "mistral4", "minicpm3"):
            w.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    if "sliding_attention" in ropes:
        w.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
    if rope.get("rope_type") in ("linear", "yarn"):
        w.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        w.add_rope_scaling_factor(rope["factor"])
    if rope.get("rope_type") == "yarn":
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        w.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        w.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    if rope.get("rope_type") == "longrope":
        original = rope["original_max_position_embeddings"]
        scale = c["max_position_embeddings"] / original
        w.add_rope_scaling_orig_ctx_len(original)
        w.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0)
        for which in ("long", "short"):
            w.add_tensor(f"rope_factors_{which}.weight", np.array(rope[f"{which}_factor"], np.float32))
    if architecture == "phi3":
        if rope["rope_type"] != "longrope":
            w.add_rope_scaling_orig_ctx_len(c["original_max_position_embeddings"])
        w.add_sliding_window(c["sliding_window"] or 0)
    elif c.get("sliding_window") and architecture != "dots1":
        w.add_sliding_window(c["sliding_window"])
    if architecture == "olmo2" and c.get("layer_types"):
        w.add_sliding_window_pattern([t == "sliding_attention" for t in c["layer_types"]])
    if architecture == "gemma3n":
        write_gemma3n(w, c)
    if architecture == "gemma2":
        w.add_attn_logit_softcapping(c["attn_logit_softcapping"])
        w.add_final_logit_softcapping(c["final_logit_softcapping"])
    if architecture in ("granite", "granitemoe", "granitehybrid") and c["model_type"] != "bamba":
        w.add_attention_scale(c["attention_multiplier"])
        w.add_embedding_scale(c["embedding_multiplier"])
        w.add_residual_scale(c["residual_multiplier"])
        w.add_logit_scale(c["logits_scaling"])
    if architecture == "bitnet":
        w.add_string("bitnet.hidden_activation", c["hidden_act"])
    if architecture in ("cohere2", "cohere2moe", "command-r"):
        w.add_logit_scale(c["logit_scale"])
        w.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    experts = not architecture.startswith("nemotron_h") and next((c[key] for key in ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts") if c.get(key)), None)
    if experts:
        w.add_expert_count(experts)
        w.add_expert_used_count(c.get("num_experts_per_tok") or c.get("moe_k") or c.get("moe_topk") or c["top_k_experts"])
    write_relatives(w, architecture, c, rope)
    if architecture == "lfm2moe":
        w.add_leading_dense_block_count(c["num_dense_layers"])
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        w.add_expert_weights_norm(c["norm_topk_prob"])
        w.add_expert_weights_scale(c["routed_scaling_factor"])
    if architecture == "granitehybrid":
        write_granite_hybrid(w, c)
    if architecture == "falcon-h1":
        w.add_ssm_conv_kernel(c["mamba_d_conv"])
        w.add_ssm_state_size(c["mamba_d_state"])
        w.add_ssm_group_count(c["mamba_n_groups"])
        w.add_ssm_time_step_rank(c["mamba_n_heads"])
        w.add_ssm_inner_size(c["mamba_d_ssm"])
        if c["mamba_rms_norm"] and c["mamba_norm_before_gate"]:
            w.add_bool("falcon-h1.ssm.norm_before_gate", True)
    if "linear_num_key_heads" in c:
        write_delta_net(w, c)
    if architecture == "gemma4":
        write_gemma4(w, config, rope)
    if architecture == "mistral4":
        w.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    if architecture in ("deepseek2", "mistral4"):
        write_deepseek2(w, c, rope)
    if architecture in ("qwen3moe", "gpt-oss", "ernie4_5-moe", "glm4moe", "hunyuan-moe", "minimax-m2", "qwen3next", "qwen35moe", "lfm2moe",
                        "qwen2moe", "dots1", "cohere2moe", "afmoe", "exaone-moe"):
        w.add_expert_feed_forward_length(c.get("moe_intermediate_size") or c["intermediate_size"])


def write_relatives(w, architecture, c, rope):
    if architecture in ("exaone4", "exaone-moe", "afmoe"):
        w.add_sliding_window_pattern([t == "sliding_attention" for t in c["layer_types"]])
    if architecture in ("stablelm", "gptneox"):
        w.add_parallel_residual(c["use_parallel_residual"])
    if architecture == "mistral3":
        w.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        w.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    if architecture == "ernie4_5-moe":
        w.add_interleave_moe_layer_step(c["moe_layer_interval"])
        w.add_leading_dense_block_count(c["moe_layer_start_index"])
        w.add_expert_shared_count(c["moe_num_shared_experts"])
    if architecture == "hunyuan-moe":
        w.add_expert_shared_feed_forward_length(c["intermediate_size"])
    if architecture == "minimax-m2":
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if architecture == "cohere2moe":
        w.add_sliding_window_pattern([t == "sliding_attention" for t in c["layer_types"]])
        w.add_leading_dense_block_count(c["mlp_layer_types"].count("dense"))
        w.add_expert_weights_norm(c["norm_topk_prob"])
        w.add_uint32(f"{w.arch}.expert_gating_func", dict(sigmoid=2, softmax=3)[c["expert_selection_fn"]])
        if c["num_shared_experts"]:
            w.add_expert_shared_count(c["num_shared_experts"])
            w.add_expert_shared_feed_forward_length(c["num_shared_experts"] * c["intermediate_size"])
    if architecture in ("afmoe", "exaone-moe"):
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        w.add_expert_shared_count(c["num_shared_experts"])
        w.add_expert_weights_scale(c["route_scale" if architecture == "afmoe" else "routed_scaling_factor"])
        w.add_expert_weights_norm(c.get("norm_topk_prob", True))
        w.add_leading_dense_block_count(c["num_dense_layers"] if architecture == "afmoe" else c["mlp_layer_types"].count("dense"))
    if architecture == "exaone-moe":
        w.add_expert_group_count(c["n_group"])
        w.add_expert_group_used_count(c["topk_group"])
    if architecture == "minicpm3":
        w.add_q_lora_rank(c["q_lora_rank"])
        w.add_kv_lora_rank(c["kv_lora_rank"])
        w.add_key_length(c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
        w.add_value_length(c["v_head_dim"])
        w.add_rope_dimension_count(c["qk_rope_head_dim"])
        w.add_embedding_scale(c["scale_emb"])
        w.add_residual_scale(c["scale_depth"] / math.sqrt(c["num_hidden_layers"]))
        w.add_logit_scale(c["hidden_size"] / c["dim_model_base"])
    if architecture == "llama4":
        w.add_expert_feed_forward_length(c["intermediate_size"])
        w.add_interleave_moe_layer_step(c["interleave_moe_layer_step"])
        w.add_sliding_window(c["attention_chunk_size"])
        w.add_sliding_window_pattern([bool(rotates) for rotates in c["no_rope_layers"]])
        w.add_bool("llama4.attention.qk_norm", c["use_qk_norm"])
        w.add_attn_temperature_length(c["floor_scale"])
        w.add_attn_temperature_scale(c["attn_scale"])
    if architecture == "qwen2moe":
        w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
    if architecture in ("glm4moe", "dots1"):
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        w.add_expert_shared_count(c["n_shared_experts"])
        w.add_expert_weights_scale(c["routed_scaling_factor"])
        w.add_expert_weights_norm(c["norm_topk_prob"])
        w.add_expert_group_count(c["n_group"])
        w.add_expert_group_used_count(c["topk_group"])
        w.add_leading_dense_block_count(c["first_k_dense_replace"])


def write_granite_hybrid(w, c):
    w.add_ssm_conv_kernel(c["mamba_d_conv"])
    w.add_ssm_state_size(c["mamba_d_state"])
    w.add_ssm_group_count(c["mamba_n_groups"])
    w.add_ssm_time_step_rank(c["mamba_n_heads"])
    w.add_ssm_inner_size(c["mamba_expand"] * c["hidden_size"])
    w.add_rope_scaling_finetuned(c.get("position_embedding_type", "rope") == "rope")
    if c.get("num_local_experts"):
        w.add_expert_shared_feed_forward_length(c["shared_intermediate_size"])


def write_mamba(w, c):
    w.add_tokenizer_model("no_vocab")
    w.add_vocab_size(c["vocab_size"])
    w.add_context_length(2**20)
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(0)
    w.add_head_count(0)
    w.add_block_count(c["num_hidden_layers"])
    w.add_ssm_conv_kernel(c["conv_kernel"])
    w.add_ssm_inner_size(c["intermediate_size"])
    w.add_ssm_state_size(c["state_size"])
    w.add_ssm_time_step_rank(c["time_step_rank"])
    w.add_layer_norm_rms_eps(c["layer_norm_epsilon"])
    if c["model_type"] == "falcon_mamba":
        w.add_ssm_dt_b_c_rms(True)


def write_mamba2(w, c):
    inner = c["num_heads"] * c["head_dim"]
    w.add_tokenizer_model("no_vocab")
    w.add_vocab_size(c["vocab_size"])
    w.add_context_length(2**20)
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(0)
    w.add_head_count(0)
    w.add_block_count(c["num_hidden_layers"])
    w.add_ssm_conv_kernel(c["conv_kernel"])
    w.add_ssm_inner_size(inner)
    w.add_ssm_state_size(c["state_size"])
    w.add_ssm_time_step_rank(c["num_heads"])
    w.add_ssm_group_count(c["n_groups"])
    w.add_layer_norm_rms_eps(c["layer_norm_epsilon"])


def write_nemotron_h(w, config):
    w.add_ssm_conv_kernel(config.conv_kernel)
    w.add_ssm_state_size(config.ssm_state_size)
    w.add_ssm_group_count(config.n_groups)
    w.add_ssm_time_step_rank(config.mamba_num_heads)
    w.add_ssm_inner_size(config.mamba_num_heads * config.mamba_head_dim)
    if w.arch == "nemotron_h":
        return
    w.add_expert_count(config.n_routed_experts)
    w.add_expert_used_count(config.num_experts_per_tok)
    w.add_expert_feed_forward_length(config.moe_intermediate_size)
    w.add_expert_shared_feed_forward_length(config.moe_shared_expert_intermediate_size)
    w.add_expert_shared_count(config.n_shared_experts)
    w.add_expert_weights_norm(config.norm_topk_prob)
    w.add_expert_weights_scale(config.routed_scaling_factor)
    w.add_expert_group_count(config.n_group)
    w.add_expert_group_used_count(config.topk_group)
    if config.moe_latent_size:
        w.add_moe_latent_size(config.moe_latent_size)


def write_delta_net(w, c):
    w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
    w.add_ssm_state_size(c["linear_key_head_dim"])
    w.add_ssm_group_count(c["linear_num_key_heads"])
    w.add_ssm_time_step_rank(c["linear_num_value_heads"])
    w.add_ssm_inner_size(c["linear_value_head_dim"] * c["linear_num_value_heads"])
    w.add_array(f"{w.arch}.attention.recurrent_layers", [t == "linear_attention" for t in c["layer_types"]])
    if "shared_expert_intermediate_size" in c:
        w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])


def write_deepseek2(w, c, rope):
    if c.get("q_lora_rank"):
        w.add_q_lora_rank(c["q_lora_rank"])
    w.add_kv_lora_rank(c["kv_lora_rank"])
    w.add_head_count_kv(1)
    w.add_key_length(c["kv_lora_rank"] + c["qk_rope_head_dim"])
    w.add_value_length(c["kv_lora_rank"])
    w.add_key_length_mla(c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
    w.add_value_length_mla(c["v_head_dim"])
    w.add_rope_dimension_count(c["qk_rope_head_dim"])
    dense = c.get("first_k_dense_replace")
    w.add_leading_dense_block_count(c["mlp_layer_types"].count("dense") if dense is None else dense)
    w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    w.add_expert_shared_count(c["n_shared_experts"])
    w.add_expert_weights_scale(c["routed_scaling_factor"])
    w.add_expert_weights_norm(c.get("norm_topk_prob", False))
    w.add_expert_group_count(c["n_group"])
    w.add_expert_group_used_count(c["topk_group"])
    sigmoid = c["model_type"] not in ("deepseek_v2", "mistral4")
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID if sigmoid else gguf.ExpertGatingFuncType.SOFTMAX)
    if rope.get("mscale_all_dim"):
        w.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


def write_gemma3n(w, c):
    w.add_sliding_window_pattern([t == "sliding_attention" for t in c["layer_types"]])
    w.add_shared_kv_layers(c["num_kv_shared_layers"])
    w.add_embedding_length_per_layer_input(c["hidden_size_per_layer_input"])
    w.add_altup_num_inputs(c["altup_num_inputs"])
    w.add_altup_active_idx(c["altup_active_idx"])
    w.add_final_logit_softcapping(c["final_logit_softcapping"])
    shares = torch.tensor(c["activation_sparsity_pattern"], dtype=torch.float64)
    w.add_activation_sparsity_scale(torch.distributions.normal.Normal(0, 1).icdf(shares).tolist())


def write_gemma4(w, config, rope):
    layers = range(config.num_hidden_layers)
    windowed = [t == "sliding_attention" for t in config.layer_types]
    sizes = [config.per_layer_config[i] for i in layers]
    whole = sizes[windowed.index(False)].head_dim
    w.add_final_logit_softcapping(config.final_logit_softcapping)
    w.add_shared_kv_layers(config.num_kv_shared_layers)
    w.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input or 0)
    if config.enable_moe_block:
        w.add_expert_feed_forward_length(config.moe_intermediate_size)
    w.add_sliding_window_pattern(windowed)
    w.add_key_length(whole)
    w.add_value_length(whole)
    local = sizes[windowed.index(True)].head_dim
    w.add_key_length_swa(local)
    w.add_value_length_swa(local)
    w.add_head_count_kv([s.num_key_value_heads for s in sizes])
    if config.use_double_wide_mlp:
        first = config.num_hidden_layers - config.num_kv_shared_layers
        w.add_feed_forward_length([config.intermediate_size * (1 if i < first else 2) for i in layers])
    w.add_rope_dimension_count(whole)
    w.add_rope_dimension_count_swa(local)
    turning = int(rope["partial_rotary_factor"] * whole // 2)
    w.add_tensor("rope_freqs.weight", np.array([1.0] * turning + [1e30] * (whole // 2 - turning), np.float32))


def xielu(w, saved, n_layers):
    """Numbers of the activation, a list of each for all layers."""
    add = dict(alpha_p=w.add_xielu_alpha_p, alpha_n=w.add_xielu_alpha_n, beta=w.add_xielu_beta, eps=w.add_xielu_eps)
    for name, add in add.items():
        add([float(saved[f"model.layers.{i}.mlp.act_fn.{name}"].reshape(-1)[0]) for i in range(n_layers)])


def write_gguf(path, architecture, config, saved):
    w = gguf.GGUFWriter(path, architecture)
    write_metadata(w, architecture, config)
    if architecture == "apertus":
        xielu(w, saved, config.num_hidden_layers)
    for name, x in merged(gguf_tensors(config, architecture, saved)):
        if architecture == "gpt-oss" and "_exps.weight" in name:
            w.add_tensor(name, mxfp4_blocks(x), raw_dtype=gguf.GGMLQuantizationType.MXFP4)
        elif x.ndim == 1 or name.endswith(".bias") or "shortconv.conv" in name or ".ssm_" in name and "_in." not in name and "_out." not in name or "ffn_gate_inp" in name or "position_embd" in name:
            w.add_tensor(name, x)
        elif architecture == "falcon-h1":
            w.add_tensor(name, np.ascontiguousarray(x, np.float32))  # the factors leave no halves
        else:
            w.add_tensor(name, np.ascontiguousarray(x, np.float16))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def write_logits(path, model, seed, n_tokens):
    tokens = np.random.default_rng(seed).integers(0, model.config.vocab_size, n_tokens).tolist()
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0].numpy()
    path.write_bytes(struct.pack(f"<II{n_tokens}I", *logits.shape, *tokens) + logits.astype("<f4").tobytes())
    return logits


def make(out, name, model_type, architecture, changes):
    seed = zlib.crc32(name.encode())
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(model_type, **copy.deepcopy(changes if model_type in ("gpt2", "gpt_bigcode", "mamba", "falcon_mamba", "mamba2") else BASE | changes))
    model = random_model(config)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    logits = write_logits(out / "logits.bin", model, seed, N_TOKENS)
    if config.to_dict().get("rope_parameters", {}) and config.rope_parameters.get("rope_type") == "longrope":
        write_logits(out / "short.bin", model, seed, 24)
    model.half().save_pretrained(out)
    (out / "generation_config.json").unlink(missing_ok=True)
    write_gguf(out / "model.gguf", architecture, config, load_file(out / "model.safetensors"))
    size = sum(f.stat().st_size for f in out.iterdir()) // 1024
    print(f"{name}: {size} KiB, logits from {logits.min():.2f} to {logits.max():.2f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for family in sys.argv[1:] or FAMILIES:
        make(Path(__file__).parent / family, family, *FAMILIES[family])
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
