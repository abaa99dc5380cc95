"""Writes families/<name>.gguf, tiny models with random float16 weights, and families/<name>.bin, the logits that Hugging Face
transformers (float32 arithmetic) computes for fixed random tokens, at every position. Usage: make_families.py, from any
folder; then pack.py with the GGUF files but llama_plain.gguf, which C tests read. Needs gguf, torch, transformers. To add a family or
a variant, add to VARIANTS.

Logits files, little endian: u32 n_tokens, u32 n_vocab, n_tokens x u32 token ids, n_tokens x n_vocab x f32 logits (row p:
after token p)."""
import math
import struct
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers

N_TOKENS = 64
# Arguments of transformers.LlamaConfig. Contexts are short, so that all parts of a scaling matter within 64 tokens.
COMMON = dict(vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, max_position_embeddings=256)
VARIANTS = {
    "llama_plain": dict(num_attention_heads=4, num_key_value_heads=4, rms_norm_eps=1e-6, tie_word_embeddings=False,
                        rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
    "llama_llama3": dict(num_attention_heads=4, num_key_value_heads=1, head_dim=32, rms_norm_eps=1e-5, tie_word_embeddings=True,
                         rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
                                              high_freq_factor=4.0, original_max_position_embeddings=64)),
    "llama_linear_biases": dict(num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=False,
                                attention_bias=True, mlp_bias=True,
                                rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)),
    "llama_yarn": dict(num_attention_heads=2, num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=True,
                       rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0,
                                            original_max_position_embeddings=64, beta_fast=8.0, beta_slow=1.0)),
}
NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
         "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def random_model(config, seed):
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM._from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.normal_(1.0 if "norm" in name else 0.0, 0.2)
            p.copy_(p.half().float())
    return model


def gguf_name(name):
    name, end = name.rsplit(".", 1)
    if name.startswith("model.layers."):
        _, _, layer, part = name.split(".", 3)
        return f"blk.{layer}.{NAMES[part]}.{end}"
    return {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}[name] + "." + end


def interleaved(x, heads):
    """Rows of q or k in GGUF's order: the two elements of a pair that rope rotates are neighbours."""
    return x.reshape(heads, 2, -1, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def llama3_factors(rope, head_dim):
    """What each frequency is divided by."""
    context = rope["original_max_position_embeddings"]
    for i in range(0, head_dim, 2):
        turns = context * rope["rope_theta"] ** (-i / head_dim) / (2 * math.pi)
        smooth = (turns - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
        smooth = min(max(smooth, 0.0), 1.0)
        yield 1 / ((1 - smooth) / rope["factor"] + smooth)


def write_gguf(path, model):
    c, rope = model.config, model.config.rope_parameters
    w = gguf.GGUFWriter(path, "llama")
    w.add_vocab_size(c.vocab_size)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_rope_dimension_count(c.head_dim)
    if c.head_dim * c.num_attention_heads != c.hidden_size:
        w.add_key_length(c.head_dim)
        w.add_value_length(c.head_dim)
    w.add_rope_freq_base(rope["rope_theta"])
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    if rope["rope_type"] == "llama3":
        w.add_tensor("rope_freqs.weight", np.array(list(llama3_factors(rope, c.head_dim)), np.float32))
    elif rope["rope_type"] != "default":
        w.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        w.add_rope_scaling_factor(rope["factor"])
        if rope["rope_type"] == "yarn":
            w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
            w.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
            w.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    for name, p in model.named_parameters():
        x = p.detach().numpy()
        if ".q_proj." in name:
            x = interleaved(x, c.num_attention_heads)
        if ".k_proj." in name:
            x = interleaved(x, c.num_key_value_heads)
        w.add_tensor(gguf_name(name), x if x.ndim == 1 else x.astype(np.float16))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


torch.set_num_threads(1)
out = Path(__file__).parent / "families"
out.mkdir(exist_ok=True)
for seed, (name, variant) in enumerate(VARIANTS.items()):
    model = random_model(transformers.LlamaConfig(**COMMON, **variant), seed)
    write_gguf(out / f"{name}.gguf", model)
    tokens = np.random.default_rng(seed).integers(0, model.config.vocab_size, N_TOKENS).tolist()
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0].numpy()
    assert logits.shape == (N_TOKENS, model.config.vocab_size)
    (out / f"{name}.bin").write_bytes(struct.pack(f"<II{N_TOKENS}I", *logits.shape, *tokens) + logits.astype("<f4").tobytes())
    print(f"{name}: logits from {logits.min():.2f} to {logits.max():.2f}")
print(f"transformers {transformers.__version__}, torch {torch.__version__}")
