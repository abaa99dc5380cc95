"""Writes hamlet_logits.bin: the logits of Hugging Face transformers (float32 arithmetic on the stored float16 weights) for a
fixed text, at every position. Usage: make_hamlet_logits.py HF_DIR, the folder `hf` of hamlet-7m. Needs torch, transformers.

File, little endian: u32 n_tokens, u32 n_vocab, n_tokens x u32 token ids, n_tokens x n_vocab x f32 logits (row p: after
token p). The text is a story of heldout.txt and an exchange of tasks.jsonl, each framed as in training."""
import struct
import sys
from pathlib import Path

import torch
import transformers

TEXT = ('<|bos|>Rolf was a shepherd in Oakvale, and he was often worried. It was a windy night when he saw a brown ladder beside '
        'the forest. "Who left this ladder here?" he asked.<|eos|>'
        '<|bos|><|system|>\nLina the shepherd is at the orchard. Otto the mason is at the north gate.<|end|>\n'
        '<|user|>\nWhat is the work of Otto?<|end|>\n<|assistant|>\nOtto is a mason.<|end|>\n')

torch.set_num_threads(1)
folder = sys.argv[1]
tokens = transformers.PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json")(TEXT, add_special_tokens=False)["input_ids"]
model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
with torch.no_grad():
    logits = model(torch.tensor([tokens])).logits[0].to(torch.float32).numpy()
n, v = logits.shape
assert n == len(tokens)
out = Path(__file__).parent / "hamlet_logits.bin"
out.write_bytes(struct.pack(f"<II{n}I", n, v, *tokens) + logits.astype("<f4").tobytes())
print(f"{n} tokens, {v} logits each, transformers {transformers.__version__}, torch {torch.__version__}")
print(tokens)
