"""Writes blocks/<type>.bin, random blocks of every tensor type, and blocks/<type>.f32.xz, the values that the `gguf` Python
package (made with 0.19) gives them, as little-endian singles. Usage: make_blocks.py, from any folder. Needs gguf, numpy.

Values and small scales are random bytes. The f16 (or E8M0) scales of the first blocks are the extremes below, in all
pairs where there are two; those of the rest are random finite numbers of all magnitudes. No f16 scale is infinite or NaN."""
import itertools
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T
from pack import pack_file

# byte offsets of the f16 numbers in a block
HALVES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108],
          T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ4_NL: [0], T.IQ4_XS: [0], T.IQ2_XXS: [0], T.IQ2_XS: [0],
          T.IQ2_S: [0], T.IQ3_XXS: [0], T.IQ3_S: [0], T.IQ1_S: [0], T.TQ1_0: [52], T.TQ2_0: [64]}
# zeros, smallest and largest subnormal, smallest normal, one, largest; both signs
EXTREMES = np.array([0x0000, 0x8000, 0x0001, 0x8001, 0x83FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF], np.uint16)


def finite_halves(rng, n):
    h = rng.integers(0, 1 << 16, n, dtype=np.uint16)
    return np.where(h & 0x7C00 == 0x7C00, h & 0xBFFF, h)


def blocks_of(t, rng):
    length, size = gguf.GGML_QUANT_SIZES[t]
    if t in HALVES:
        at = HALVES[t]
        pairs = list(itertools.product(EXTREMES, repeat=len(at)))
        if length == 256 and len(at) == 2:
            pairs = pairs[::7]  # keeps the files small; 7 and 10 have no common factor, so every extreme occurs in both
        n = len(pairs) + 16
        b = rng.integers(0, 256, (n, size), dtype=np.uint8)
        for i, a in enumerate(at):
            h = np.concatenate([np.array([p[i] for p in pairs], np.uint16), finite_halves(rng, n - len(pairs))])
            b[:, a:a + 2] = h.astype("<u2").view(np.uint8).reshape(n, 2)
        return b
    if t == T.MXFP4:
        # every E8M0 scale; with the last three the larger codes overflow to infinity
        b = rng.integers(0, 256, (256, size), dtype=np.uint8)
        b[:, 0] = np.arange(256)
        return b
    if t == T.NVFP4:
        # every byte as a scale of each sixteen
        b = rng.integers(0, 256, (256, size), dtype=np.uint8)
        for i in range(4):
            b[:, i] = np.roll(np.arange(256), i)
        return b
    if t == T.IQ1_M:
        # a scale in four parts
        h = np.concatenate([EXTREMES, finite_halves(rng, 16)])
        b = rng.integers(0, 256, (len(h), size), dtype=np.uint8)
        for i in range(4):
            b[:, 49 + 2 * i] = b[:, 49 + 2 * i] & 15 | (h >> 4 * i & 15).astype(np.uint8) << 4
        return b
    if t == T.F16:
        h = np.concatenate([EXTREMES, finite_halves(rng, 1014)])
        return h.astype("<u2").view(np.uint8).reshape(-1, 2)
    # F32 and BF16: random finite bits after extremes
    w = rng.integers(0, 1 << 32, 1024, dtype=np.uint32)
    w = np.where(w & 0x7F800000 == 0x7F800000, w & 0xBFFFFFFF, w)
    w[:8] = [0, 0x80000000, 0x00010000, 0x80010000, 0x007F0000, 0x00800000, 0x3F800000, 0xFF7F0000]
    if t == T.F32:
        return w.astype("<u4").view(np.uint8).reshape(-1, 4)
    return (w >> 16).astype("<u2").view(np.uint8).reshape(-1, 2)


out = Path(__file__).parent / "blocks"
out.mkdir(exist_ok=True)
for t in [T.F32, T.F16, T.BF16, T.MXFP4, T.NVFP4, T.IQ1_M, *HALVES]:
    b = blocks_of(t, np.random.default_rng(int(t)))
    with np.errstate(over="ignore"):
        x = gguf.quants.dequantize(b.reshape(1, -1), t).astype("<f4").ravel()
    assert x.size == len(b) * gguf.GGML_QUANT_SIZES[t][0]
    assert not np.isnan(x).any(), t.name
    (out / f"{t.name}.bin").write_bytes(b.tobytes())
    (out / f"{t.name}.f32").write_bytes(x.tobytes())
    pack_file(out / f"{t.name}.f32")
    print(f"{t.name}: {len(b)} blocks")
