#!/usr/bin/env python3
"""Prints the table of the README for a GPU, in one run: models of known shapes with random weights, and hamlet.

usage: gpu_table.py EMBER_BENCH HAMLET.gguf FOLDER [LLAMA_CPP_BIN LLAMA3_VOCAB.gguf QWEN2_VOCAB.gguf]

The models (36 GB) are written to FOLDER, unless they are there, and kept. With the folder of llama.cpp's
llama-bench and llama-batched-bench, these are run on the same files, which they only read with a vocabulary:
any GGUF file of Llama 3 and of Qwen2 has one. gpt-oss would need one of its own size.
"""

import json
import os
import pathlib
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field


@dataclass
class Model:
    shape: str
    quant: str = "q4_k_m"
    vocabulary: str = ""  # whose
    prompts: list = field(default_factory=list)
    depths: list = field(default_factory=lambda: [0])
    batches: list = field(default_factory=list)  # sessions together
    q8_depths: list = field(default_factory=list)  # with a KV cache in Q8_0
    f16_batches: list = field(default_factory=list)  # sessions together with EMBER_MODEL_F16_BATCHES


MODELS = [
    Model("llama-3.1-8b", "q4_k_m", "llama3", [512, 2048, 8192], [0, 8192, 32768], [2, 4, 8, 16, 32, 64], [0, 8192, 32768], [32, 64]),
    Model("llama-3.2-1b", "q4_k_m", "llama3", [2048], [0, 8192, 32768], [2, 4, 8, 16, 32, 64], [], [32, 64]),
    Model("qwen2.5-1.5b", "q4_k_m", "qwen2", [], [0, 8192], [2, 4, 8, 16, 32]),
    Model("gpt-oss-20b", "mxfp4", "none that llama.cpp takes", [512, 2048], [0], [8, 32]),
    Model("qwen3-30b-a3b", "q4_k_m", "qwen2", [512, 2048], [0], [8, 32]),
    Model("hamlet-7m"),
]
GENERATE = 128
# Of which one the time to the first token is told.
FIRST_TOKEN_OF = "llama-3.1-8b"
# The shapes that llama.cpp is run on, if not on all.
LLAMA_SHAPES = os.environ.get("LLAMA_SHAPES", "").split()
# Flash attention of llama.cpp, as its two programs name it: builds without it need LLAMA_FLASH=off.
FLASH = (0, "off") if os.environ.get("LLAMA_FLASH") == "off" else (1, "on")


def run(*command):
    return subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True).stdout


def listed(numbers):
    return ",".join(str(n) for n in numbers)


def ember(bench, file, model):
    def measured(*options):
        return json.loads(run(bench, file, "--gen", GENERATE, "--bandwidth-mib", 64, "--json", "-", *options))

    batch = ["--batch", listed(model.batches)] if model.batches else []
    report = measured("--prompt", listed(model.prompts) or "none", "--depth", listed(model.depths), *batch)
    median = lambda rows: [row["tokens_per_s"]["median"] for row in rows]
    q8 = []
    if model.q8_depths:
        q8 = median(measured("--prompt", "none", "--depth", listed(model.q8_depths), "--kv", "q8_0")["decode"])
    f16 = []
    if model.f16_batches:
        f16 = median(measured("--prompt", "none", "--depth", 0, "--batch", listed(model.f16_batches), "--f16-batches")["batch"])
    return {
        "f16": f16,
        "prefill": median(report["prefill"]),
        "decode": median(report["decode"]),
        "q8": q8,
        "batch": median(report["batch"]),
        # The first load of the process.
        "first": report["first_token_ms"]["samples"][0] / 1000,
    }, report["device"]


def llama(folder, file, model):
    def bench(*options):
        rows = json.loads(run(folder / "llama-bench", "-m", file, "-ngl", 99, "-fa", FLASH[0], "-o", "json", *options))
        return [row["avg_ts"] for row in rows]

    found = {"prefill": [], "decode": [], "q8": [], "batch": [], "f16": []}
    is_left_out = LLAMA_SHAPES and model.shape not in LLAMA_SHAPES
    if is_left_out or model.shape == "gpt-oss-20b":
        return found | {"first": float("nan")}
    if model.prompts:
        found["prefill"] = bench("-p", listed(model.prompts), "-n", 0, "-b", 8192, "-ub", 2048)
    found["decode"] = bench("-p", 0, "-n", GENERATE, "-d", listed(model.depths))
    if model.q8_depths and FLASH[0] == 1:
        q8 = ["-ctk", "q8_0", "-ctv", "q8_0"]
        found["q8"] = bench("-p", 0, "-n", GENERATE, "-d", listed(model.q8_depths), *q8)
    if model.batches:
        out = run(folder / "llama-batched-bench", "-m", file, "-ngl", 99, "-fa", FLASH[1], "-c", 8192, "-npp", 16, "-ntg",
                  GENERATE, "-npl", listed(model.batches))
        rows = [line.split("|")[1:-1] for line in out.splitlines() if line.startswith("|")]
        found["batch"] = [float(row[7]) for row in rows[2:]]
    if file.stem == FIRST_TOKEN_OF:
        start = time.monotonic()
        bench("-p", 0, "-n", 1, "-r", 1, "--no-warmup")
        found["first"] = time.monotonic() - start
    return found


def main():
    if len(sys.argv) not in (4, 7):
        sys.exit(__doc__)
    bench, hamlet, folder = (pathlib.Path(a).resolve() for a in sys.argv[1:4])
    binaries, vocabularies = None, {}
    if len(sys.argv) == 7:
        binaries, *files = (pathlib.Path(a).resolve() for a in sys.argv[4:])
        vocabularies = dict(zip(["llama3", "qwen2"], files))
    head = ["", "EmberLM", "llama.cpp"] if binaries else ["", "EmberLM"]

    def written(model):
        if not model.vocabulary:
            return hamlet
        file = folder / f"{model.shape}.gguf"
        if not file.exists():
            vocabulary = vocabularies.get(model.vocabulary)
            vocab = ["--vocab", vocabulary] if vocabulary else []
            run(bench, "--shape", model.shape, "--quant", model.quant, *vocab, "--keep-model", file, "--write-only")
        return file

    # They are written at the same time, and measured one after the other.
    with ThreadPoolExecutor() as pool:
        files = list(pool.map(written, MODELS))
    device = None
    rows = []
    for model, file in zip(MODELS, files):
        ours, device = ember(bench, file, model)
        sides = [ours] + ([llama(binaries, file, model)] if binaries else [])
        for what, key, of in [
            ("prefill of", "prefill", model.prompts),
            ("decode at depth", "decode", model.depths),
            ("decode with a Q8_0 cache at depth", "q8", model.q8_depths),
            ("sessions together:", "batch", model.batches),
            ("with batches in f16, sessions together:", "f16", model.f16_batches),
        ]:
            if of:
                cells = [" / ".join(f"{rate:,.0f}" for rate in side[key]) or "-" for side in sides]
                rows.append([f"{model.shape}, {what} {' / '.join(str(n) for n in of)}", *cells])
        if model.shape == FIRST_TOKEN_OF:
            cells = [f"{side['first']:.2f} s" for side in sides]
            rows.append([f"{model.shape}, first load of a process to its first token (llama.cpp: process)", *cells])
        print(f"{model.shape} is measured", file=sys.stderr)
    print(f"{device['name']}\n")
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")


main()
