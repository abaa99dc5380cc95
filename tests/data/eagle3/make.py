"""Writes logits.bin beside this file: what two tiny heads of EAGLE-3 compute, in double precision. Needs nothing beside Python. Usage: make.py

The heads are in the layouts that SpecForge ("specforge": `midlayer.*`, tokens by `d2t`, the residual stream begins as the joined states) and
vLLM's speculators ("speculators": `layers.0.*`, all tokens, the stream begins as their norm, biases, states of another width) write. Their
weights, and the hidden states that they read, come from seeds: `Random` of tests/common/tiny.rs by seed 1 and the name of the tensor.
tests/common/fused.rs makes the same folders.

logits.bin, little endian: of each head in that order, f32 logits of its own tokens: a row behind each of TOKENS, by the hidden states of
seed 2, and a row behind each of FURTHER, by what the head's layer made of the position before."""
import math
import struct
from pathlib import Path

TOKENS = [5, 17, 33, 8, 2, 21, 9, 9, 14]
FURTHER = [3, 30]
EPS = 1e-5
THETA = 10000.0
N_VOCAB = 40
SPECFORGE = dict(hidden=24, target=24, heads=3, kv_heads=3, head_dim=8, n_ff=28, drafted=[1, 2, 3, 7, 9, 14, 17, 20, 21, 30, 33, 39],
                 layer="midlayer", bias=False, normed=False)
SPECULATORS = dict(hidden=24, target=16, heads=4, kv_heads=2, head_dim=10, n_ff=20, drafted=list(range(N_VOCAB)), layer="layers.0", bias=True,
                   normed=True)
MASK = (1 << 64) - 1


class Random:
    """Numbers from -1 to 1: splitmix64 from a hash of seed and name."""

    def __init__(self, seed, name):
        state = 0xCBF29CE484222325 ^ (seed * 0x9E3779B97F4A7C15 & MASK)
        for byte in name.encode():
            state = (state ^ byte) * 0x100000001B3 & MASK
        self.state = state

    def unit(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        z ^= z >> 31
        return (z >> 40) / (1 << 23) - 1.0


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def vector(name, n, scale, more=0.0):
    random = Random(1, name)
    return [f32(f32(random.unit() * f32(scale)) + more) for _ in range(n)]


def matrix(name, rows, columns, scale=0.25):
    values = vector(name, rows * columns, scale)
    return [values[r * columns:(r + 1) * columns] for r in range(rows)]


def product(weights, x, bias=None):
    sums = [sum(w * v for w, v in zip(row, x)) for row in weights]
    return sums if bias is None else [s + b for s, b in zip(sums, bias)]


def normed(x, weight):
    factor = 1.0 / math.sqrt(sum(v * v for v in x) / len(x) + EPS)
    return [v * factor * w for v, w in zip(x, weight)]


def rotated(head, position):
    half = len(head) // 2
    angles = [position * THETA ** (-i / half) for i in range(half)]
    a, b = head[:half], head[half:]
    return ([u * math.cos(t) - v * math.sin(t) for u, v, t in zip(a, b, angles)]
            + [v * math.cos(t) + u * math.sin(t) for u, v, t in zip(a, b, angles)])


def logits(d):
    hidden, layer = d["hidden"], d["layer"]
    q_len, kv_len = d["heads"] * d["head_dim"], d["kv_heads"] * d["head_dim"]
    part = lambda name: f"{layer}.{name}"
    norm = lambda name: vector(f"{name}.weight", hidden, 0.2, 1.0)
    weight = lambda name, rows, columns: matrix(f"{part(name)}.weight", rows, columns)
    bias = lambda name, n: vector(f"{part(name)}.bias", n, 0.25) if d["bias"] else None
    embedding = matrix("embed_tokens.weight", N_VOCAB, hidden, 1.0)
    fc = matrix("fc.weight", hidden, 3 * d["target"])
    q, k, v = (weight(f"self_attn.{p}_proj", n, 2 * hidden) for p, n in (("q", q_len), ("k", kv_len), ("v", kv_len)))
    q_bias, k_bias, v_bias, o_bias = (bias(f"self_attn.{p}_proj", n) for p, n in (("q", q_len), ("k", kv_len), ("v", kv_len), ("o", hidden)))
    o = weight("self_attn.o_proj", hidden, q_len)
    gate, up = (weight(f"mlp.{p}_proj", d["n_ff"], hidden) for p in ("gate", "up"))
    down = weight("mlp.down_proj", hidden, d["n_ff"])
    token_norm, state_norm, late_norm = (norm(part(p)) for p in ("input_layernorm", "hidden_norm", "post_attention_layernorm"))
    head = matrix("lm_head.weight", len(d["drafted"]), hidden)
    random = Random(2, "states")
    keys, values, rows, x = [], [], [], None
    for position, token in enumerate(TOKENS + FURTHER):
        if position < len(TOKENS):
            x = product(fc, [f32(random.unit()) for _ in range(3 * d["target"])])
        state = normed(x, state_norm)
        joined = normed(embedding[token], token_norm) + state
        stream = state if d["normed"] else x
        heads = lambda row: [row[i:i + d["head_dim"]] for i in range(0, len(row), d["head_dim"])]
        queries = [rotated(h, position) for h in heads(product(q, joined, q_bias))]
        keys.append([rotated(h, position) for h in heads(product(k, joined, k_bias))])
        values.append(heads(product(v, joined, v_bias)))
        attended = []
        for i, query in enumerate(queries):
            kv = i // (d["heads"] // d["kv_heads"])
            scores = [sum(a * b for a, b in zip(query, key[kv])) / math.sqrt(d["head_dim"]) for key in keys]
            shares = [math.exp(s - max(scores)) for s in scores]
            attended += [sum(s * value[kv][j] for s, value in zip(shares, values)) / sum(shares) for j in range(d["head_dim"])]
        x = [a + b for a, b in zip(stream, product(o, attended, o_bias))]
        late = normed(x, late_norm)
        inner = [g / (1.0 + math.exp(-g)) * u for g, u in zip(product(gate, late), product(up, late))]
        x = [a + b for a, b in zip(x, product(down, inner))]
        rows.append(product(head, normed(x, norm("norm"))))
    return rows


if __name__ == "__main__":
    rows = logits(SPECFORGE) + logits(SPECULATORS)
    assert max(abs(v) for row in rows for v in row) > 1.0
    data = b"".join(struct.pack(f"<{len(row)}f", *row) for row in rows)
    (Path(__file__).resolve().parent / "logits.bin").write_bytes(data)
