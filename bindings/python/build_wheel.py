"""The build backend of this package (PEP 517): writes the wheel itself, so that building needs nothing but Python.

With the environment variable EMBERLM_LIBRARY, the wheel has that shared library in it and a tag of this platform
(EMBERLM_PLATFORM_TAG for another one, such as manylinux_2_28_x86_64); without it, it is plain Python and looks for the library in the system.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import sys
import sysconfig
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIBRARY_NAMES = {"linux": "libemberlm.so", "darwin": "libemberlm.dylib", "win32": "emberlm.dll"}


def version() -> str:
    match = re.search(r'^__version__ = "(.+)"$', (HERE / "emberlm/__init__.py").read_text(), re.M)
    assert match is not None
    return match.group(1)


def metadata() -> str:
    lines = ["Metadata-Version: 2.1", "Name: emberlm", f"Version: {version()}",
             "Summary: Runs quantized language models inside your process", "License: MIT OR Apache-2.0",
             "Requires-Python: >=3.9", "Description-Content-Type: text/markdown"]  # fmt: skip
    return "\n".join(lines) + "\n\n" + (HERE / "README.md").read_text()


def build_wheel(wheel_directory: str, config_settings: object = None, metadata_directory: object = None) -> str:
    library = os.environ.get("EMBERLM_LIBRARY")
    platform = os.environ.get("EMBERLM_PLATFORM_TAG") or re.sub(r"[-.]", "_", sysconfig.get_platform())
    tag = f"py3-none-{platform if library else 'any'}"
    info = f"emberlm-{version()}.dist-info"
    files = {f"emberlm/{f.name}": f.read_bytes() for f in sorted((HERE / "emberlm").iterdir()) if f.suffix in (".py", ".typed")}
    if library:
        files[f"emberlm/{LIBRARY_NAMES.get(sys.platform, 'libemberlm.so')}"] = Path(library).read_bytes()
    files[f"{info}/METADATA"] = metadata().encode()
    purelib = "false" if library else "true"
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: emberlm\nRoot-Is-Purelib: {purelib}\nTag: {tag}\n".encode()
    record = ""
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(content)}\n"
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    name = f"emberlm-{version()}-{tag}.whl"
    with zipfile.ZipFile(Path(wheel_directory) / name, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if path.endswith((".so", ".dylib", ".dll")) else 0o644) << 16
            wheel.writestr(entry, content)
    return name


if __name__ == "__main__":
    print(build_wheel(sys.argv[1]))
