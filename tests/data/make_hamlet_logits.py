"""Writes the logits of Hugging Face transformers (float32 arithmetic) for a fixed text, at every position:
hamlet_f16_logits.bin from the float16 weights of the model's folder, hamlet_q4_k_m_logits.bin from the dequantized weights
of models/hamlet-7m-Q4_K_M.gguf. Usage: make_hamlet_logits.py HF_DIR, the folder `hf` of hamlet-7m. Needs gguf, torch,
transformers. The repository has their xz (pack.py).

Files, little endian: u32 n_tokens, u32 n_vocab, n_tokens x u32 token ids, n_tokens x n_vocab x f32 logits (row p: after
token p), rounded to multiples of 2^-16, of which xz makes less. The text is a story of heldout.txt and an exchange of tasks.jsonl, each framed as in training."""
import struct
import sys
from pathlib import Path

import gguf
import torch
import transformers

TEXT = ('<|bos|>Rolf was a shepherd in Oakvale, and he was often worried. It was a windy night when he saw a brown ladder beside '
        'the forest. "Who left this ladder here?" he asked.<|eos|>'
        '<|bos|><|system|>\nLina the shepherd is at the orchard. Otto the mason is at the north gate.<|end|>\n'
        '<|user|>\nWhat is the work of Otto?<|end|>\n<|assistant|>\nOtto is a mason.<|end|>\n')
NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
         "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def gguf_weights(path, config):
    """The tensors of a GGUF file as float32, under the names and in the rope layout of transformers."""
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for t in gguf.GGUFReader(path).tensors:
        x = torch.from_numpy(gguf.quants.dequantize(t.data, t.tensor_type).copy()).to(torch.float32)
        part = t.name.removesuffix(".weight").split(".")
        if part[0] == "blk":
            if part[2] in heads:  # GGUF interleaves the two halves of each head
                x = x.reshape(heads[part[2]], -1, 2, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
            yield f"model.layers.{part[1]}.{NAMES[part[2]]}.weight", x
        elif part[0] == "token_embd":
            yield "model.embed_tokens.weight", x
            yield "lm_head.weight", x
        else:
            yield {"output_norm": "model.norm.weight"}[part[0]], x


def write(name, model, tokens):
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0].to(torch.float32).numpy()
    n, v = logits.shape
    assert n == len(tokens)
    logits = (logits.astype("f8") * 65536).round() / 65536
    (here / name).write_bytes(struct.pack(f"<II{n}I", n, v, *tokens) + logits.astype("<f4").tobytes())
    print(f"{name}: {n} tokens, {v} logits each")


torch.set_num_threads(1)
here = Path(__file__).parent
folder = sys.argv[1]
tokens = transformers.PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json")(TEXT, add_special_tokens=False)["input_ids"]
model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
# The first of them, for the repository stays small: each depends on those before it alone.
write("hamlet_f16_logits.bin", model, tokens[:28])
model.load_state_dict(dict(gguf_weights(here / "../../models/hamlet-7m-Q4_K_M.gguf", model.config)))
write("hamlet_q4_k_m_logits.bin", model, tokens[:40])
print(f"transformers {transformers.__version__}, torch {torch.__version__}")
