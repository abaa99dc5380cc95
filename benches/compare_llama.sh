#!/usr/bin/env bash
# Runs ember-bench and llama.cpp's llama-bench alternately on one file and prints the ratios.
# usage: compare_llama.sh LLAMA_BENCH MODEL.gguf [THREADS] [ROUNDS]
# PROMPT (512), GEN (64), DEPTHS ("0 4096") and REPS (1, of each in a round) may be set in the environment. Needs python3.
set -euo pipefail
if [ $# -lt 2 ]; then
    sed -n '2,4s/^# //p' "$0"
    exit 2
fi
llama_bench=$1 model=$2 threads=${3:-$(getconf _NPROCESSORS_ONLN)} rounds=${4:-3}
prompt=${PROMPT:-512} gen=${GEN:-64} depths=${DEPTHS:-0 4096} reps=${REPS:-1}
root=$(cd "$(dirname "$0")/.." && pwd)
ember_bench=${EMBER_BENCH:-${CARGO_TARGET_DIR:-$root/target}/release/ember-bench}
for file in "$llama_bench" "$ember_bench"; do
    [ -x "$file" ] || { echo "$file is no program (make bench builds ember-bench)" >&2; exit 2; }
done
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
commas=${depths// /,}

for round in $(seq "$rounds"); do
    echo "round $round of $rounds" >&2
    "$ember_bench" "$model" --threads "$threads" --prompt "$prompt" --depth "$commas" --gen "$gen" \
        --reps "$reps" --bandwidth-mib 64 --json "$out/ember-$round.json" >/dev/null
    # Flash attention on and an f16 cache, as here; one process per round, so that both warm up alike.
    "$llama_bench" -m "$model" -t "$threads" -ngl 0 -fa 1 -p "$prompt" -n 0 -r "$reps" -o json \
        >"$out/llama-$round-prompt.json" 2>/dev/null
    "$llama_bench" -m "$model" -t "$threads" -ngl 0 -fa 1 -p 0 -n "$gen" -d "$commas" -r "$reps" -o json \
        >"$out/llama-$round-decode.json" 2>/dev/null
done

python3 - "$out" "$rounds" "$threads" <<'PYTHON'
import json, pathlib, statistics, sys

folder, rounds, threads = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
ember, llama = {}, {}
for r in range(1, rounds + 1):
    report = json.loads((folder / f"ember-{r}.json").read_text())
    for row in report["prefill"]:
        ember.setdefault(f"prefill {row['tokens']}", []).append(row["tokens_per_s"]["median"])
    for row in report["decode"]:
        ember.setdefault(f"decode at {row['depth']}", []).append(row["tokens_per_s"]["median"])
    for part in "prompt", "decode":
        for row in json.loads((folder / f"llama-{r}-{part}.json").read_text()):
            name = f"decode at {row.get('n_depth', 0)}" if row["n_gen"] else f"prefill {row['n_prompt']}"
            llama.setdefault(name, []).append(row["avg_ts"])
print(f"tokens/s, {threads} threads, median of {rounds} alternating rounds (least to greatest)")
print(f"{'':18}{'ember-bench':>28}{'llama-bench':>28}{'ratio':>8}")


def show(values):
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


for name in ember.keys() & llama.keys():
    if len(ember[name]) != rounds or len(llama[name]) != rounds:
        sys.exit(f"{name}: a round is missing")
for name in ember:
    if name not in llama:
        print(f"{name:18}{show(ember[name]):>28}{'not measured':>28}")
        continue
    ratio = statistics.median(ember[name]) / statistics.median(llama[name])
    print(f"{name:18}{show(ember[name]):>28}{show(llama[name]):>28}{ratio:>8.2f}")
PYTHON
