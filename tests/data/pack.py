"""Packs the weights of the tiny models, so that the repository stays small:

    python3 tests/data/pack.py [FOLDER ...]       (default: every folder of families/ and embeddings/ but those in KEPT)

A folder's `model.gguf` and `model.safetensors` hold the same numbers. `weights.xz` is the xz of both, one behind the other, behind the
length of the first (8 bytes, little-endian); it takes little more than one of them. tests/common/xz.rs and packed.rs unpack it. A folder's
`logits.bin` becomes `logits.bin.xz`, which tests/common/expected.rs unpacks, its logits rounded to multiples of 2^-16: a quarter less to
keep, and far below what tests tell apart.

    python3 tests/data/pack.py FILE ...

replaces files by their xz, which has their name and `.xz`. tests/common/xz.rs unpacks them.
"""

from __future__ import annotations

import lzma
import struct
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Read as they lie: by C tests and by fuzz targets.
KEPT = {"mistral", "qwen2"}


# (lc, lp, pb) of LZMA: what a word of text, of two bytes and of four bytes compress best by.
FORMS = [(3, 0, 2), (4, 0, 0), (0, 1, 1), (1, 1, 1), (0, 2, 2), (2, 2, 2)]


def compress(data: bytes) -> bytes:
    filters = [
        {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": lc, "lp": lp, "pb": pb} for lc, lp, pb in FORMS
    ]
    return min((lzma.compress(data, check=lzma.CHECK_CRC32, filters=[one]) for one in filters), key=len)


def pack(folder: Path) -> None:
    logits = folder / "logits.bin"
    if logits.exists():
        logits.with_name("logits.bin.xz").write_bytes(compress(rounded(logits.read_bytes())))
        logits.unlink()
    files = [folder / "model.gguf", folder / "model.safetensors"]
    if not all(file.exists() for file in files):
        return
    first, second = (file.read_bytes() for file in files)
    data = len(first).to_bytes(8, "little") + first + second
    (folder / "weights.xz").write_bytes(compress(data))
    for file in files:
        file.unlink()


def rounded(data: bytes) -> bytes:
    """The same file with its logits rounded; make_families.py says how it is laid out."""
    begin = 8 + 4 * struct.unpack_from("<I", data)[0]
    logits = struct.unpack_from(f"<{(len(data) - begin) // 4}f", data, begin)
    return data[:begin] + struct.pack(f"<{len(logits)}f", *(round(x * 65536) / 65536 for x in logits))


def pack_file(file: Path) -> None:
    file.with_name(file.name + ".xz").write_bytes(compress(file.read_bytes()))
    file.unlink()


def main() -> None:
    given = [Path(name) for name in sys.argv[1:]]
    every = [f for part in ("families", "embeddings") for f in (HERE / part).iterdir() if f.is_dir()]
    for folder in given or [f for f in every if f.parent.name != "families" or f.name not in KEPT]:
        pack(folder) if folder.is_dir() else pack_file(folder)


if __name__ == "__main__":
    main()
