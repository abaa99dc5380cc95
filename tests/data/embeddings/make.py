"""Writes one folder per entry of MODELS beside this file: a tiny encoder with random weights as Hugging Face transformers saves
it (config.json, model.safetensors with float16 elements), the same model as model.gguf (as llama.cpp's converter would write
it, without a tokenizer), and hidden.bin, what transformers computes in float32 for texts of random tokens. Of DECODERS, whose
folders are in ../families, it writes hidden.bin alone. Usage: make.py [name...]. Needs gguf, safetensors, torch, transformers.

Of REMOTE, whose code is not in transformers, the reference is written out here, in torch: from what their publishers say and from
their files' tensors (jina-embeddings-v2-base-en, nomic-embed-text-v2-moe).

Two have tokenizers, and pairs.bin: f32 scores of DOCUMENTS for QUERY. qwen3_reranker is a folder alone.

hidden.bin, little endian: u32 n_texts, u32 width, u32 n_scores; then for each text u32 n_tokens, n_tokens x u32 token ids,
n_tokens x width x f32 hidden states after the final norm, n_scores x f32 scores."""
import json
import shutil
import struct
import sys
import zlib
from pathlib import Path

import gguf
import numpy as np
import tokenizers
import torch
import transformers
from safetensors.numpy import load_file, save_file

LENGTHS = [1, 17, 40, 5]
QUERY = "a bad cab"
DOCUMENTS = ["dead beef", "a cab, a fad!", "ace"]
# As the model card of Qwen3-Reranker has them.
BEFORE = ('<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. '
          'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n')
BEHIND = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
INSTRUCT = "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>: {}\n<Document>: {}"
BASE = dict(vocab_size=96, hidden_size=48, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3,
            max_position_embeddings=64)
FULL_AND_LOCAL = dict(full_attention=dict(rope_type="default", rope_theta=1000000.0),
                      sliding_attention=dict(rope_type="default", rope_theta=10000.0))
t = transformers
# name: (configuration, class, changes of BASE, architecture in GGUF)
MODELS = {
    "bert": (t.BertConfig, t.BertModel, dict(type_vocab_size=2), "bert"),
    "bert_scores": (t.BertConfig, t.BertForSequenceClassification, dict(type_vocab_size=2, num_labels=3), "bert"),
    "xlm_roberta_scores": (t.XLMRobertaConfig, t.XLMRobertaForSequenceClassification,
                           dict(type_vocab_size=1, num_labels=1, max_position_embeddings=66, pad_token_id=1), "bert"),
    "nomic_bert": (t.NomicBertConfig, t.NomicBertModel, dict(), "nomic-bert"),
    "modernbert_scores": (t.ModernBertConfig, t.ModernBertForSequenceClassification,
                          dict(num_hidden_layers=5, global_attn_every_n_layers=3, local_attention=10, num_labels=2, pad_token_id=0,
                               cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2, classifier_pooling="mean"), "modern-bert"),
    "embedding_gemma": (t.Gemma3TextConfig, t.Gemma3TextModel,
                        dict(num_key_value_heads=1, head_dim=20, sliding_window=12, use_bidirectional_attention=True, num_hidden_layers=3,
                             query_pre_attn_scalar=20, layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                             rope_parameters=FULL_AND_LOCAL), "gemma-embedding"),
    "eurobert": (t.EuroBertConfig, t.EuroBertModel, dict(num_key_value_heads=1, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                                                         mask_token_id=3), "eurobert"),
    "distilbert": (t.DistilBertConfig, t.DistilBertModel, dict(vocab_size=60, dim=24, n_heads=2, n_layers=3, hidden_dim=20,
                                                             max_position_embeddings=64), "bert"),
    # Scores by the distance: texts longer than what has buckets, in mpnet's case by more tokens.
    "mpnet": (t.MPNetConfig, t.MPNetModel, dict(vocab_size=60, hidden_size=24, num_attention_heads=2, num_hidden_layers=2, intermediate_size=20,
                                                max_position_embeddings=172), "mpnet"),
    "t5": (t.T5Config, t.T5EncoderModel, dict(vocab_size=60, d_model=24, d_kv=10, d_ff=20, num_layers=3, num_heads=2, n_positions=64,
                                              relative_attention_num_buckets=12, relative_attention_max_distance=20,
                                              feed_forward_proj="gated-gelu"), "t5encoder"),
    "umt5": (t.UMT5Config, t.UMT5EncoderModel, dict(vocab_size=60, d_model=24, d_kv=10, d_ff=20, num_layers=2, num_heads=2,
                                                    relative_attention_num_buckets=8, feed_forward_proj="relu"), "t5encoder"),
    "jina_v3": (t.JinaEmbeddingsV3Config, t.JinaEmbeddingsV3Model, dict(pad_token_id=1), "jina-bert-v3"),
}
# name: (config.json beside what all have, architecture in GGUF)
REMOTE = {
    "jina_v2": (dict(model_type="bert", architectures=["JinaBertForMaskedLM"], hidden_size=48, num_hidden_layers=2, num_attention_heads=3,
                     intermediate_size=40, max_position_embeddings=64, type_vocab_size=2, hidden_act="gelu", layer_norm_eps=1e-12,
                     position_embedding_type="alibi", feed_forward_type="geglu", emb_pooler="mean"), "jina-bert-v2"),
    "nomic_moe": (dict(model_type="nomic_bert", architectures=["NomicBertModel"], n_embd=48, n_layer=3, n_head=3, n_inner=40,
                       n_positions=64, type_vocab_size=1, activation_function="gelu", layer_norm_epsilon=1e-5, rotary_emb_base=10000,
                       rotary_emb_fraction=1.0, rotary_emb_interleaved=False, prenorm=False, moe_every_n_layers=2, num_experts=4,
                       moe_top_k=2, qkv_proj_bias=True, mlp_fc1_bias=True, mlp_fc2_bias=True), "nomic-bert-moe"),
}
DECODERS = ["qwen3", "gemma2", "mistral"]
BERT = {"attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
        "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm", "intermediate.dense": "ffn_up",
        "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm", "attn.Wqkv": "attn_qkv", "attn.out_proj": "attn_output",
        "mixer.Wqkv": "attn_qkv", "mixer.out_proj": "attn_output", "norm1": "attn_output_norm", "norm2": "layer_output_norm",
        "mlp.fc11": "ffn_up", "mlp.fc12": "ffn_gate", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down", "attn_norm": "attn_norm",
        "attn.Wo": "attn_output", "mlp_norm": "ffn_norm", "mlp.Wi": "ffn_up", "mlp.Wo": "ffn_down"}
BERT |= {"attention.q_lin": "attn_q", "attention.k_lin": "attn_k", "attention.v_lin": "attn_v", "attention.out_lin": "attn_output",
         "sa_layer_norm": "attn_output_norm", "ffn.lin1": "ffn_up", "ffn.lin2": "ffn_down", "output_layer_norm": "layer_output_norm"}
BERT |= {"mlp.gated_layers": "ffn_up", "mlp.wo": "ffn_down", "mlp.layernorm": "layer_output_norm", "mlp.router.layer": "ffn_gate_inp"}
GEMMA = {"input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
         "post_feedforward_layernorm": "post_ffw_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
BERT |= {"attention.attn.q": "attn_q", "attention.attn.k": "attn_k", "attention.attn.v": "attn_v", "attention.attn.o": "attn_output",
         "attention.LayerNorm": "attn_output_norm"}
T5 = {"layer.0.layer_norm": "attn_norm", "layer.0.SelfAttention.relative_attention_bias": "attn_rel_b", "layer.1.layer_norm": "ffn_norm",
      "layer.1.DenseReluDense.wi": "ffn_up", "layer.1.DenseReluDense.wi_0": "ffn_gate", "layer.1.DenseReluDense.wi_1": "ffn_up",
      "layer.1.DenseReluDense.wo": "ffn_down"}
T5 |= {f"layer.0.SelfAttention.{part}": gguf for part, gguf in dict(q="attn_q", k="attn_k", v="attn_v", o="attn_output").items()}
TOP = {"encoder.relative_attention_bias": "attn_rel_b", "shared": "token_embd", "encoder.final_layer_norm": "enc.output_norm",
       "embeddings.word_embeddings": "token_embd", "embeddings.tok_embeddings": "token_embd", "embed_tokens": "token_embd",
       "embeddings.position_embeddings": "position_embd", "embeddings.token_type_embeddings": "token_types",
       "embeddings.LayerNorm": "token_embd_norm", "embeddings.norm": "token_embd_norm", "emb_ln": "token_embd_norm",
       "final_norm": "output_norm", "norm": "output_norm", "pooler.dense": "cls", "classifier.dense": "cls", "head.dense": "cls",
       "head.norm": "cls.norm", "classifier.out_proj": "cls.output", "classifier": "cls.output"}


LLAMA = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}


def gguf_name(name, scores, parts):
    for prefix in ("bert.", "roberta.", "model."):
        name = name.removeprefix(prefix)
    stem, end = name.rsplit(".", 1)
    if stem.startswith("encoder.block."):
        layer, part = stem.removeprefix("encoder.block.").split(".", 1)
        return f"enc.blk.{layer}.{T5[part]}.{end}"
    for start in ("encoder.layer.", "encoder.layers.", "transformer.layer.", "layers."):
        if stem.startswith(start):
            layer, part = stem.removeprefix(start).split(".", 1)
            return f"blk.{layer}.{parts[part]}.{end}"
    if stem == "pooler.dense" and not scores:
        return None
    return f"{TOP[stem]}.{end}"


def write_gguf(folder, config, arch, scores):
    w = gguf.GGUFWriter(folder / "model.gguf", arch)
    shift = 2 if config.model_type in ("xlm-roberta", "mpnet") else 0
    w.add_vocab_size(config.vocab_size)
    w.add_context_length(64 if arch == "t5encoder" else config.max_position_embeddings - shift)
    w.add_embedding_length(config.hidden_size)
    w.add_block_count(config.num_hidden_layers)
    w.add_feed_forward_length(next(getattr(config, key) for key in ("intermediate_size", "hidden_dim", "d_ff") if hasattr(config, key)))
    w.add_head_count(config.num_attention_heads)
    w.add_causal_attention(False)
    if scores:
        w.add_pooling_type(gguf.PoolingType.RANK)
    else:
        w.add_pooling_type(gguf.PoolingType.MEAN)
    if arch == "gemma-embedding":
        w.add_head_count_kv(config.num_key_value_heads)
        w.add_key_length(config.head_dim)
        w.add_value_length(config.head_dim)
        w.add_layer_norm_rms_eps(config.rms_norm_eps)
        w.add_sliding_window(12)
        w.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    elif arch == "eurobert":
        w.add_head_count_kv(config.num_key_value_heads)
        w.add_key_length(config.head_dim)
        w.add_value_length(config.head_dim)
        w.add_layer_norm_rms_eps(config.rms_norm_eps)
        w.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    elif arch == "t5encoder":
        w.add_key_length(config.d_kv)
        w.add_value_length(config.d_kv)
        w.add_layer_norm_eps(config.layer_norm_epsilon)
        w.add_layer_norm_rms_eps(config.layer_norm_epsilon)
        w.add_relative_attn_buckets_count(config.relative_attention_num_buckets)
        if config.relative_attention_max_distance != 128:
            # llama.cpp's converter leaves it out; this is where the library writes it.
            w.add_uint32("t5encoder.attention.relative_max_distance", config.relative_attention_max_distance)
    else:
        if arch == "mpnet":
            w.add_relative_attn_buckets_count(config.relative_attention_num_buckets)
        w.add_layer_norm_eps(config.norm_eps if arch == "modern-bert" else getattr(config, "layer_norm_eps", 1e-12))
    rope = getattr(config, "rope_parameters", None)
    if rope:
        w.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
        if "sliding_attention" in rope:
            w.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    if arch == "modern-bert":
        w.add_sliding_window(config.local_attention)
        w.add_sliding_window_pattern(config.global_attn_every_n_layers)
        w.add_uint32("modern-bert.score_pooling_type", 1)
    for name, x in load_file(folder / "model.safetensors").items():
        name = gguf_name(name, scores, BERT | GEMMA | (LLAMA if arch == "eurobert" else {}))
        if name is None:
            continue
        if name == "position_embd.weight":
            x = x[shift:]
        if arch == "gemma-embedding" and name.endswith("norm.weight"):
            x = x.astype(np.float32) + 1
        w.add_tensor(name, x.astype(np.float32) if x.ndim == 1 else x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def write_hidden(folder, body, scorer, vocab_size, seed, lengths=LENGTHS):
    random = np.random.default_rng(seed)
    texts = [random.integers(3, vocab_size, n).tolist() for n in lengths]
    out, n_scores = b"", 0
    for tokens in texts:
        with torch.no_grad():
            hidden = body(torch.tensor([tokens])).last_hidden_state[0].numpy()
            scores = scorer(torch.tensor([tokens])).logits[0].numpy() if scorer else np.zeros(0)
        n_scores = len(scores)
        out += struct.pack(f"<I{len(tokens)}I", len(tokens), *tokens)
        out += hidden.astype("<f4").tobytes() + scores.astype("<f4").tobytes()
    (folder / "hidden.bin").write_bytes(struct.pack("<III", len(texts), hidden.shape[1], n_scores) + out)
    print(f"{folder.name}: hidden states up to {abs(hidden).max():.2f}, scores {scores}")


class Remote:
    """A model of REMOTE, for one text at a time."""

    def __init__(self, config, tensors):
        self.config, self.w = config, {name: torch.from_numpy(x).float() for name, x in tensors.items()}

    def linear(self, name, x):
        return torch.nn.functional.linear(x, self.w[name + ".weight"], self.w.get(name + ".bias"))

    def norm(self, name, x):
        eps = self.config.get("layer_norm_eps", self.config.get("layer_norm_epsilon"))
        return torch.nn.functional.layer_norm(x, x.shape[-1:], self.w[name + ".weight"], self.w[name + ".bias"], eps)

    def attention(self, qkv, bias=0.0, rotate=lambda x: x):
        q, k, v = (x.view(x.shape[0], -1, 16).transpose(0, 1) for x in qkv)
        scores = rotate(q) @ rotate(k).transpose(1, 2) / 4 + bias
        return (scores.softmax(-1) @ v).transpose(0, 1).reshape(q.shape[1], -1)

    def __call__(self, tokens):
        tokens = tokens[0]
        x = self.w["embeddings.word_embeddings.weight"][tokens] + self.w["embeddings.token_type_embeddings.weight"][0]
        run = self.jina if self.config["model_type"] == "bert" else self.nomic
        return t.modeling_outputs.BaseModelOutput(last_hidden_state=run(x)[None])

    def jina(self, x):
        n, heads = x.shape[0], self.config["num_attention_heads"]
        assert heads == 3
        # Of two heads, and the first of those of four heads.
        slopes = torch.tensor([2**-4, 2**-8, 2**-2])
        distance = (torch.arange(n)[:, None] - torch.arange(n)[None]).abs()
        x = self.norm("embeddings.LayerNorm", x)
        for i in range(self.config["num_hidden_layers"]):
            name = f"encoder.layer.{i}."
            qkv = [self.linear(f"{name}attention.self.{part}", x) for part in ("query", "key", "value")]
            y = self.attention(qkv, -slopes[:, None, None] * distance)
            x = self.norm(f"{name}attention.output.LayerNorm", x + self.linear(f"{name}attention.output.dense", y))
            gate, up = self.linear(f"{name}mlp.gated_layers", x).chunk(2, -1)
            y = self.linear(f"{name}mlp.wo", torch.nn.functional.gelu(gate) * up)
            x = self.norm(f"{name}mlp.layernorm", x + y)
        return x

    def nomic(self, x):
        c = self.config
        angles = torch.arange(x.shape[0])[:, None] * c["rotary_emb_base"] ** (-torch.arange(0, 16, 2) / 16)

        def rotate(x):
            (a, b), cos, sin = x.chunk(2, -1), angles.cos(), angles.sin()
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

        x = self.norm("emb_ln", x)
        for i in range(c["n_layer"]):
            name = f"encoder.layers.{i}."
            y = self.attention(self.linear(f"{name}attn.Wqkv", x).chunk(3, -1), rotate=rotate)
            x = self.norm(f"{name}norm1", x + self.linear(f"{name}attn.out_proj", y))
            if i % c["moe_every_n_layers"] == 1:
                x = self.norm(f"{name}norm2", x + self.experts(f"{name}mlp.", x))
            else:
                y = torch.nn.functional.gelu(self.linear(f"{name}mlp.fc1", x))
                x = self.norm(f"{name}norm2", x + self.linear(f"{name}mlp.fc2", y))
        return x

    def experts(self, name, x):
        n, ff = self.config["num_experts"], self.config["n_inner"]
        first, second = (self.w[f"{name}experts.mlp.{part}"].view(n, ff, -1) for part in ("w1", "w2"))
        shares = self.linear(f"{name}router.layer", x).softmax(-1)
        out = torch.zeros_like(x)
        for t, row in enumerate(x):
            for e in shares[t].topk(self.config["moe_top_k"]).indices:
                out[t] += shares[t][e] * (torch.nn.functional.gelu(first[e] @ row) @ second[e])
        return out + self.w[f"{name}experts.bias"]


def remote_shapes(c):
    """The tensors of a model of REMOTE."""
    h, ff = c.get("hidden_size", c.get("n_embd")), c.get("intermediate_size", c.get("n_inner"))

    def linear(name, rows, columns, bias=True):
        return {f"{name}.weight": (rows, columns)} | ({f"{name}.bias": (rows,)} if bias else {})

    def norm(name):
        return {f"{name}.weight": (h,), f"{name}.bias": (h,)}

    shapes = {"embeddings.word_embeddings.weight": (c["vocab_size"], h), "embeddings.token_type_embeddings.weight": (c["type_vocab_size"], h)}
    if c["model_type"] == "bert":
        shapes |= norm("embeddings.LayerNorm")
        for i in range(c["num_hidden_layers"]):
            n = f"encoder.layer.{i}."
            for part in ("self.query", "self.key", "self.value", "output.dense"):
                shapes |= linear(f"{n}attention.{part}", h, h)
            shapes |= norm(f"{n}attention.output.LayerNorm") | norm(f"{n}mlp.layernorm")
            shapes |= linear(f"{n}mlp.gated_layers", 2 * ff, h, False) | linear(f"{n}mlp.wo", h, ff)
        return shapes
    shapes |= norm("emb_ln")
    for i in range(c["n_layer"]):
        n, e = f"encoder.layers.{i}.", c["num_experts"]
        shapes |= linear(f"{n}attn.Wqkv", 3 * h, h) | linear(f"{n}attn.out_proj", h, h) | norm(f"{n}norm1") | norm(f"{n}norm2")
        if i % c["moe_every_n_layers"] == 1:
            shapes |= {f"{n}mlp.experts.mlp.w1": (e * ff, h), f"{n}mlp.experts.mlp.w2": (e * ff, h), f"{n}mlp.experts.bias": (h,)}
            shapes |= linear(f"{n}mlp.router.layer", e, h, False)
        else:
            shapes |= linear(f"{n}mlp.fc1", ff, h) | linear(f"{n}mlp.fc2", h, ff)
    return shapes


def remote(folder, config, arch, seed):
    config = config | dict(vocab_size=96)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    random = np.random.default_rng(seed)
    tensors = {}
    for name, shape in remote_shapes(config).items():
        center = 1.0 if ("norm" in name.lower() or "emb_ln" in name) and name.endswith("weight") else 0.0
        tensors[name] = random.normal(center, 0.3 if len(shape) > 1 else 0.2, shape).astype(np.float16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    w = gguf.GGUFWriter(folder / "model.gguf", arch)
    w.add_vocab_size(config["vocab_size"])
    w.add_context_length(64)
    w.add_embedding_length(48)
    w.add_block_count(config.get("num_hidden_layers", config.get("n_layer")))
    w.add_feed_forward_length(40)
    w.add_head_count(3)
    w.add_causal_attention(False)
    w.add_pooling_type(gguf.PoolingType.MEAN)
    w.add_layer_norm_eps(config.get("layer_norm_eps", config.get("layer_norm_epsilon")))
    if "n_head" in config:
        w.add_rope_freq_base(config["rotary_emb_base"])
        w.add_moe_every_n_layers(config["moe_every_n_layers"])
        w.add_expert_count(config["num_experts"])
        w.add_expert_used_count(config["moe_top_k"])
    for full, x in tensors.items():
        layer, _, part = full.partition(".mlp.experts.")
        layer = layer.removeprefix("encoder.layers.")
        if part == "bias":
            # The converter leaves it out; this is where the library writes it.
            w.add_tensor(f"blk.{layer}.ffn_exps_sum.bias", x.astype(np.float32))
        elif part == "mlp.w1":
            w.add_tensor(f"blk.{layer}.ffn_up_exps.weight", x.reshape(config["num_experts"], 40, 48))
        elif part == "mlp.w2":
            w.add_tensor(f"blk.{layer}.ffn_down_exps.weight", x.reshape(config["num_experts"], 40, 48).transpose(0, 2, 1).copy())
        else:
            name = gguf_name(full, False, BERT)
            w.add_tensor(name, x.astype(np.float32) if x.ndim == 1 or name.startswith("token_types") else x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    write_hidden(folder, Remote(config, tensors), None, 96, seed)


def word_pieces(folder):
    letters = [c for c in "abcdef"]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", ",", "!", *letters, *("##" + c for c in letters), "ca", "##ad", "dea"]
    own = tokenizers.Tokenizer(tokenizers.models.WordPiece({text: i for i, text in enumerate(tokens)}, unk_token="[UNK]"))
    own.normalizer = tokenizers.normalizers.BertNormalizer()
    own.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    own.decoder = tokenizers.decoders.WordPiece()
    own.add_special_tokens(tokens[:4])
    own.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    own.save(str(folder / "tokenizer.json"))
    return own


def reranker(folder, seed):
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    merges = [("y", "e"), ("ye", "s"), ("n", "o")]
    tokens = [*alphabet, *(a + b for a, b in merges)]
    own = tokenizers.Tokenizer(tokenizers.models.BPE({text: i for i, text in enumerate(tokens)}, merges))
    own.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = tokenizers.decoders.ByteLevel()
    own.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    own.save(str(folder / "tokenizer.json"))
    config = t.Qwen3Config(vocab_size=own.get_vocab_size(), hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
                           num_key_value_heads=1, head_dim=16, max_position_embeddings=1024, tie_word_embeddings=True)
    torch.manual_seed(seed)
    model = t.Qwen3ForCausalLM._from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            p.normal_(1.0 if "norm" in key else 0.0, 0.3)
            p.copy_(p.half().float())
    model.half().save_pretrained(folder)
    # Rotations became half precision, too.
    model = t.Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    (folder / "generation_config.json").unlink(missing_ok=True)
    ids = [own.encode(BEFORE).ids + own.encode(INSTRUCT.format(QUERY, text), add_special_tokens=False).ids + own.encode(BEHIND).ids
           for text in DOCUMENTS]
    answers = [own.token_to_id("no"), own.token_to_id("yes")]
    with torch.no_grad():
        logits = [model(torch.tensor([text])).logits[0, -1, answers] for text in ids]
    scores = torch.stack(logits).softmax(-1)[:, 1].numpy()
    (folder / "pairs.bin").write_bytes(scores.astype("<f4").tobytes())
    print(f"{folder.name}: scores {scores}")


torch.set_num_threads(1)
here = Path(__file__).parent
chosen = sys.argv[1:] or [*MODELS, *REMOTE, *DECODERS, "qwen3_reranker"]
for name in chosen:
    folder = here / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    seed = zlib.crc32(name.encode())
    torch.manual_seed(seed)
    if name == "qwen3_reranker":
        reranker(folder, seed)
        continue
    if name in REMOTE:
        remote(folder, *REMOTE[name], seed)
        continue
    if name in DECODERS:
        model = t.AutoModelForCausalLM.from_pretrained(here.parent / "families" / name, dtype=torch.float32,
                                                       attn_implementation="eager").eval()
        write_hidden(folder, model.model, None, 96, seed)
        continue
    config_class, model_class, changes, arch = MODELS[name]
    model = model_class._from_config(config_class(**(changes if name in ("distilbert", "t5", "umt5") else BASE | changes)), dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            norm = "norm" in key.lower() or "emb_ln" in key
            center = 1.0 if norm and key.endswith("weight") and arch != "gemma-embedding" else 0.0
            p.normal_(center, 0.3 if p.ndim > 1 else 0.2)
            p.copy_(p.half().float())
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    save_file({key: x.astype(np.float16) for key, x in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    for extra in folder.glob("generation_config.json"):
        extra.unlink()
    # What was read back is what the file says.
    model = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    scores = "ForSequence" in model_class.__name__
    write_gguf(folder, config_class.from_pretrained(folder), arch, scores)
    write_hidden(folder, model.base_model if scores else model, model if scores else None, model.config.vocab_size, seed,
                 [1, 17, 165, 5] if name == "mpnet" else LENGTHS)
    if name == "bert_scores":
        own = word_pieces(folder)
        pairs = [own.encode(QUERY, text) for text in DOCUMENTS]
        with torch.no_grad():
            scores = [model(torch.tensor([p.ids]), token_type_ids=torch.tensor([p.type_ids])).logits[0].numpy() for p in pairs]
        (folder / "pairs.bin").write_bytes(np.concatenate(scores).astype("<f4").tobytes())
print(f"transformers {t.__version__}, torch {torch.__version__}")
