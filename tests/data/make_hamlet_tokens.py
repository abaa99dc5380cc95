"""Ids that the tokenizers package gives for hamlet's own tokenizer.json, as hamlet_tokens.tsv, which pack.py packs: a line a text, its UTF-8 in hex and the ids.
Usage: make_hamlet_tokens.py TOKENIZER_JSON OUT"""
import random
import sys

import tokenizers

source, out = sys.argv[1:3]
tokenizer = tokenizers.Tokenizer.from_file(source)
r = random.Random(20)
texts = [
    "", " ", "  ", "\n", "\t\n", "Hello world", " Hello  World!\n\n  next", "don't, it'S we'LL 'tis 'ſa y'all", "1 12 123 1234 ½²³ ٣٤٥ Ⅷ",
    "Grüße aus Köln, naïve café", "नमस्ते दुनिया", "你好，世界。こんにちは", "🦙👨‍👩‍👧🇩🇪🏽", "a\u00a0b\u2003c\u3000d\u0085e\u200bf", "\r\n\r\n x\r", "!!!???...///",
    "\u0000\u001f\u007f", "a" * 500, " " * 300 + "x", "for (int i = 0; i < n; ++i) {\n\tsum += x[i];\n}\n",
    "<|bos|><|system|>\nYou live in the village.<|end|>\n<|user|>\nWho are you?<|end|>\n<|assistant|>\n",
    "<|user|", "<|end|><|end|>", "a<|eos|>b", "<|end|", "<||>",
]
alphabet = "'sStTrRlLdDmMvVeE ſ \n\t\r.,!?-09½aéλЖשعगิ가한中文\u0301\u3000\u00a0🦙<|end|>"
for _ in range(200):
    texts.append("".join(r.choice(alphabet) for _ in range(r.randint(1, 60))))
for _ in range(100):
    points = (r.choice([r.randint(0, 0x2FF), r.randint(0, 0xD7FF), r.randint(0xE000, 0x10FFFF)]) for _ in range(r.randint(1, 40)))
    texts.append("".join(map(chr, points)))
with open(out, "w") as f:
    f.write(f"# tokenizers {tokenizers.__version__}\n")
    for text in texts:
        f.write(f"{text.encode().hex()}\t{' '.join(map(str, tokenizer.encode(text, add_special_tokens=False).ids))}\n")
