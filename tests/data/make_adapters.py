"""Writes adapters/<family>/, LoRA adapters of the tiny models of families/: random numbers, saved by the PEFT library, and
logits.bin, the logits that transformers and peft compute with them for fixed random tokens, in the layout of make_families.py.
Of EMBEDDERS, in place of logits.bin, hidden.bin, in the layout of embeddings/make.py: the hidden states and scores of whole texts.
Of mistral_small, also adapter.gguf, the same adapter as llama.cpp's converter writes it; and hamlet.gguf, an adapter of the
model in models/.

Usage: make_adapters.py [name...], from any folder. Needs gguf, peft, torch, transformers.
"""
import json
import lzma
import shutil
import struct
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

N_TOKENS = 12
HERE = Path(__file__).resolve().parent
CASES = {
    "mistral": dict(r=4, lora_alpha=6, rank_pattern={"q_proj": 2, r"model.layers.1.mlp.(up|down)_proj": 3},
                    alpha_pattern={"layers.0.self_attn.k_proj": 5},
                    target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]),
    "qwen2": dict(r=3, lora_alpha=2, use_rslora=True, target_modules=["q_proj", "v_proj", "down_proj"]),
    "phi3": dict(r=2, lora_alpha=4, target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]),
    "gpt2": dict(r=2, lora_alpha=4, fan_in_fan_out=True, target_modules=["c_attn", "c_proj", "c_fc"]),
    "gpt_neox": dict(r=2, lora_alpha=4, target_modules=["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]),
    "falcon_new": dict(r=2, lora_alpha=4, target_modules=["query_key_value", "dense_4h_to_h"]),
    "mixtral": dict(r=2, lora_alpha=3, target_modules=["o_proj"], rank_pattern={"experts.down_proj": 1},
                    target_parameters=["experts.gate_up_proj", "experts.down_proj", "gate.weight"]),
    "deepseek_v3": dict(r=2, lora_alpha=3, target_modules=["q_b_proj", "kv_b_proj"], target_parameters=["2.mlp.experts.down_proj"]),
}
LAYER = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# name: (folder of the model, its class, the adapter)
EMBEDDERS = {
    "bert": ("embeddings/bert", transformers.BertModel,
             dict(r=2, lora_alpha=4, rank_pattern={"query": 3}, target_modules=["query", "key", "value", "dense"],
                  exclude_modules=["pooler.dense"])),
    "modernbert_scores": ("embeddings/modernbert_scores", transformers.ModernBertForSequenceClassification,
                          dict(r=2, lora_alpha=4, layers_to_transform=[0, 1, 4], target_modules=["Wqkv", "Wo", "Wi"])),
    "eurobert": ("embeddings/eurobert", transformers.EuroBertModel, dict(r=2, lora_alpha=3, target_modules=LAYER)),
    "qwen3": ("families/qwen3", transformers.AutoModel, dict(r=2, lora_alpha=3, target_modules=LAYER)),
}
LENGTHS = [1, 17, 5]


def folder_of(source, scratch):
    """A model's folder, unpacked."""
    source, folder = HERE / source, Path(scratch) / Path(source).name
    shutil.copytree(source, folder)
    if (folder / "weights.xz").exists():
        data = lzma.decompress((folder / "weights.xz").read_bytes())
        first = int.from_bytes(data[:8], "little")
        (folder / "model.safetensors").write_bytes(data[8 + first:])
    return folder


def interleaved(x, heads):
    """Rows of q or k in GGUF's order: the two elements of a pair that rope rotates are neighbours."""
    return x.reshape(heads, 2, -1, x.shape[1]).swapaxes(1, 2).reshape(x.shape)


def write_gguf(path, tensors, alpha, heads):
    """All pairs of one rank, which is all that the format's one alpha allows."""
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v"}
    w = gguf.GGUFWriter(path, "llama")
    w.add_type("adapter")
    w.add_string("adapter.type", "lora")
    w.add_float32("adapter.lora.alpha", alpha)
    w.add_name("tiny")
    for name, x in tensors.items():
        module, half = name.removeprefix("base_model.model.model.layers.").removesuffix(".weight").rsplit(".", 1)
        layer, part = module.split(".", 1)
        if half == "lora_B" and part in ("self_attn.q_proj", "self_attn.k_proj"):
            x = interleaved(x, heads[part])
        w.add_tensor(f"blk.{layer}.{names[part]}.weight.{half.lower()}", np.ascontiguousarray(x))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def adapted(model_class, folder, seed, config):
    """The model with an adapter of random numbers."""
    model = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    torch.manual_seed(seed)
    model = peft.get_peft_model(model.eval(), peft.LoraConfig(bias="none", **config)).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name:
                p.normal_(0.0, 0.3)
                p.copy_(p.half().float())
    return model


def save(model, name, scratch, out):
    """The adapter as PEFT saves it, in half precision. Returns its tensors."""
    saved = Path(scratch) / "adapter"
    model.save_pretrained(saved, save_embedding_layers=False)
    tensors = load_file(saved / "adapter_model.safetensors")
    out.mkdir(parents=True, exist_ok=True)
    text = json.loads((saved / "adapter_config.json").read_text())
    text["base_model_name_or_path"] = name
    (out / "adapter_config.json").write_text(json.dumps(text, indent=1) + "\n")
    save_file({name: x.half() for name, x in tensors.items()}, out / "adapter_model.safetensors", {"format": "pt"})
    return tensors


def write_embedder(name, seed):
    source, model_class, config = EMBEDDERS[name]
    out = HERE / "adapters" / f"{name}_embedder"
    with tempfile.TemporaryDirectory() as scratch:
        model = adapted(model_class, folder_of(source, scratch), seed, config)
        tensors = save(model, name, scratch, out)
    random = np.random.default_rng(seed)
    texts = [random.integers(3, model.config.vocab_size, n).tolist() for n in LENGTHS]
    scorer = model if "ForSequence" in model_class.__name__ else None
    body = model.base_model.model.base_model if scorer else model
    data, scores = b"", np.zeros(0)
    for tokens in texts:
        with torch.no_grad():
            hidden = body(torch.tensor([tokens])).last_hidden_state[0].numpy()
            if scorer:
                scores = scorer(torch.tensor([tokens])).logits[0].numpy()
        data += struct.pack(f"<I{len(tokens)}I", len(tokens), *tokens)
        data += hidden.astype("<f4").tobytes() + scores.astype("<f4").tobytes()
    (out / "hidden.bin").write_bytes(struct.pack("<III", len(texts), hidden.shape[1], len(scores)) + data)
    print(f"{name}: {len(tensors)} tensors, hidden states up to {abs(hidden).max():.2f}, scores {scores}")


def write(family, out, seed, config):
    with tempfile.TemporaryDirectory() as scratch:
        folder = folder_of(f"families/{family}", scratch)
        model = adapted(transformers.AutoModelForCausalLM, folder, seed, config)
        tokens = np.random.default_rng(seed).integers(0, model.config.vocab_size, N_TOKENS).tolist()
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0].numpy()
        tensors = save(model, family, scratch, out)
    header = struct.pack(f"<II{N_TOKENS}I", *logits.shape, *tokens)
    (out / "logits.bin").write_bytes(header + logits.astype("<f4").tobytes())
    print(f"{family}: {len(tensors)} tensors, logits from {logits.min():.2f} to {logits.max():.2f}")
    return model.config, {name: x.half().numpy() for name, x in tensors.items()}


def write_hamlet(path, model):
    """An adapter of the model in models/, for tests of the C library and of the bindings."""
    shapes = {t.name: [int(n) for n in t.shape] for t in gguf.GGUFReader(model).tensors}
    random = np.random.default_rng(7)
    w = gguf.GGUFWriter(path, "llama")
    w.add_type("adapter")
    w.add_string("adapter.type", "lora")
    w.add_float32("adapter.lora.alpha", 4.0)
    w.add_name("hamlet, disturbed")
    for name in ("blk.0.attn_q.weight", "blk.1.attn_output.weight", "blk.2.ffn_down.weight", "output.weight"):
        inputs, outputs = shapes.get(name) or shapes["token_embd.weight"]
        w.add_tensor(f"{name}.lora_a", random.normal(0, 0.3, (2, inputs)).astype(np.float16))
        w.add_tensor(f"{name}.lora_b", random.normal(0, 0.25, (outputs, 2)).astype(np.float16))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def write_small():
    """The same numbers twice."""
    small = dict(r=2, lora_alpha=3, target_modules=["q_proj", "k_proj", "v_proj"])
    out = HERE / "adapters" / "mistral_small"
    config, tensors = write("mistral", out, 99, small)
    write_gguf(out / "adapter.gguf", tensors, 3.0,
               {"self_attn.q_proj": config.num_attention_heads, "self_attn.k_proj": config.num_key_value_heads})


torch.set_num_threads(1)
made = {"hamlet": lambda: write_hamlet(HERE / "adapters" / "hamlet.gguf", HERE.parents[1] / "models" / "hamlet-7m-Q4_K_M.gguf")}
for seed, (family, config) in enumerate(CASES.items()):
    made[family] = lambda family=family, seed=seed, config=config: write(family, HERE / "adapters" / family, seed, config)
made["mistral_small"] = write_small
for seed, name in enumerate(EMBEDDERS):
    made[f"{name}_embedder"] = lambda name=name, seed=seed: write_embedder(name, 200 + seed)
for name in sys.argv[1:] or made:
    made[name]()
print(f"transformers {transformers.__version__}, peft {peft.__version__}, torch {torch.__version__}")
