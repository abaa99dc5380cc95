#!/usr/bin/env python3
"""Prints the table of the README for a GPU, in one run: models of known shapes with random weights, and hamlet.

usage: gpu_table.py EMBER_BENCH HAMLET.gguf FOLDER [LLAMA_CPP_BIN LLAMA3_VOCAB.gguf QWEN2_VOCAB.gguf]

The models (6.7 GB) are written to FOLDER, unless they are there, and kept. With the folder of llama.cpp's
llama-bench and llama-batched-bench, these are run on the same files, which they only read with a vocabulary of as
many tokens: any GGUF file of Llama 3 and of Qwen2 has it.
"""

import json
import pathlib
import subprocess
import sys
import time

# Shape, prompts, depths, sessions together.
MODELS = [
    ("llama-3.1-8b", [512, 2048, 8192], [0, 8192, 32768], [8, 32]),
    ("llama-3.2-1b", [2048], [0, 8192, 32768], [8, 32]),
    ("qwen2.5-1.5b", [], [0, 8192], [8, 32]),
    ("hamlet-7m", [], [0], []),
]
GENERATE = 128
# Of which one the time to the first token is told.
FIRST_TOKEN_OF = "llama-3.1-8b"


def run(*command):
    return subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True).stdout


def listed(numbers):
    return ",".join(str(n) for n in numbers)


def ember(bench, file, prompts, depths, batches):
    batch = ["--batch", listed(batches)] if batches else []
    report = json.loads(run(bench, file, "--prompt", listed(prompts) or "none", "--depth", listed(depths), *batch, "--gen",
                            GENERATE, "--bandwidth-mib", 64, "--json", "-"))
    median = lambda rows: [row["tokens_per_s"]["median"] for row in rows]
    return {
        "prefill": median(report["prefill"]),
        "decode": median(report["decode"]),
        "batch": median(report["batch"]),
        # The first load of the process.
        "first": report["first_token_ms"]["samples"][0] / 1000,
    }, report["device"]


def llama(folder, file, prompts, depths, batches):
    def bench(*options):
        rows = json.loads(run(folder / "llama-bench", "-m", file, "-ngl", 99, "-fa", 1, "-o", "json", *options))
        return [row["avg_ts"] for row in rows]

    found = {"prefill": [], "decode": [], "batch": []}
    if prompts:
        found["prefill"] = bench("-p", listed(prompts), "-n", 0, "-b", 8192, "-ub", 2048)
    found["decode"] = bench("-p", 0, "-n", GENERATE, "-d", listed(depths))
    if batches:
        out = run(folder / "llama-batched-bench", "-m", file, "-ngl", 99, "-fa", "on", "-c", 8192, "-npp", 16, "-ntg",
                  GENERATE, "-npl", listed(batches))
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
    binaries, llama3, qwen2 = (pathlib.Path(a).resolve() for a in sys.argv[4:]) if len(sys.argv) == 7 else (None,) * 3
    vocabularies = {"llama-3.1-8b": llama3, "llama-3.2-1b": llama3, "qwen2.5-1.5b": qwen2}
    head = ["", "EmberLM", "llama.cpp"] if binaries else ["", "EmberLM"]
    device = None
    rows = []
    for shape, prompts, depths, batches in MODELS:
        file = hamlet
        if shape in vocabularies:
            file = folder / f"{shape}.gguf"
            vocab = ["--vocab", vocabularies[shape]] if binaries else []
            if not file.exists():
                run(bench, "--shape", shape, *vocab, "--keep-model", file, "--write-only")
        ours, device = ember(bench, file, prompts, depths, batches)
        sides = [ours] + ([llama(binaries, file, prompts, depths, batches)] if binaries else [])
        for what, key, of in [
            ("prefill of", "prefill", prompts),
            ("decode at depth", "decode", depths),
            ("sessions together:", "batch", batches),
        ]:
            if of:
                cells = [" / ".join(f"{rate:,.0f}" for rate in side[key]) for side in sides]
                rows.append([f"{shape}, {what} {' / '.join(str(n) for n in of)}", *cells])
        if shape == FIRST_TOKEN_OF:
            cells = [f"{side['first']:.2f} s" for side in sides]
            rows.append([f"{shape}, first load of a process to its first token (llama.cpp: process)", *cells])
    print(f"{device['name']}\n")
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")


main()
