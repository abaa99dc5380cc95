"""Writes the licenses of all crates that are compiled into the library for a target:

    python3 packaging/licenses.py TARGET OUT [OPTIONS OF CARGO METADATA]

Crates with the same text share one section. It is an error if a crate names a license that is not in ACCEPTED, or has no text.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

# Licenses that allow a game to ship the library with nothing but a notice.
ACCEPTED = {"MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "ISC", "Zlib", "Unicode-3.0",
            "Unicode-DFS-2016", "Unlicense", "CC0-1.0", "BSL-1.0", "0BSD", "MIT-0"}  # fmt: skip
TEXT_FILE = re.compile(r"^(licen[cs]e|copying|notice|copyright|unlicense)", re.I)


def choices(expression: str) -> list[list[str]]:
    """The alternatives of an SPDX expression without nesting beyond one level, each a list of licenses that apply together."""
    expression = expression.replace("/", " OR ").replace("(", " ( ").replace(")", " ) ")
    tokens = re.findall(r"\(|\)|\bOR\b|\bAND\b|[A-Za-z0-9.+-]+(?: WITH [A-Za-z0-9.-]+)?", expression)

    def either(at: int) -> tuple[list[list[str]], int]:
        found, at = both(at)
        while at < len(tokens) and tokens[at] == "OR":
            more, at = both(at + 1)
            found = found + more
        return found, at

    def both(at: int) -> tuple[list[list[str]], int]:
        found, at = one(at)
        while at < len(tokens) and tokens[at] == "AND":
            more, at = one(at + 1)
            found = [left + right for left in found for right in more]
        return found, at

    def one(at: int) -> tuple[list[list[str]], int]:
        if tokens[at] == "(":
            found, at = either(at + 1)
            return found, at + 1
        return [[tokens[at]]], at + 1

    return either(0)[0]


def linked_packages(target: str, options: list[str]) -> list[dict]:
    """The packages that end up in the library: neither build scripts' nor tests' dependencies, nor procedural macros."""
    command = ["cargo", "metadata", "--format-version=1", f"--filter-platform={target}", *options]
    data = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    packages = {package["id"]: package for package in data["packages"]}
    nodes = {node["id"]: node for node in data["resolve"]["nodes"]}
    root = data["resolve"]["root"]
    seen, waiting = set(), [root]
    while waiting:
        current = waiting.pop()
        if current in seen or any("proc-macro" in t["kind"] for t in packages[current]["targets"]):
            continue
        seen.add(current)
        for dependency in nodes[current]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                waiting.append(dependency["pkg"])
    return sorted((packages[i] for i in seen if i != root), key=lambda p: (p["name"], p["version"]))


def texts(package: dict) -> list[str]:
    folder = Path(package["manifest_path"]).parent
    files = [f for f in sorted(folder.iterdir()) if f.is_file() and TEXT_FILE.match(f.name)]
    if package.get("license_file"):
        files.append(folder / package["license_file"])
    return [file.read_text(errors="replace").strip() for file in files]


def main() -> None:
    target, out, *options = sys.argv[1:]
    by_text: dict[str, list[str]] = defaultdict(list)
    without: list[str] = []
    for package in linked_packages(target, options):
        name = f"{package['name']} {package['version']}"
        expression = package["license"] or ""
        if not any(all(license in ACCEPTED for license in choice) for choice in choices(expression or "none")):
            sys.exit(f"{name} has the license '{expression}', which packaging/licenses.py does not accept")
        found = texts(package)
        by_text["\n\n".join(found)].append(f"{name} ({expression})")
        if not found:
            without.append(f"{name}, {package['repository']}")
    if len(by_text) < 2:
        sys.exit("no crates were found")
    parts = ["EmberLM contains the following Rust crates. Each is followed by its license.\n"
             "The crates at the end come without a text of their own; the named license applies."]  # fmt: skip
    nameless = by_text.pop("", [])
    for text, names in sorted(by_text.items(), key=lambda item: item[1]):
        parts.append("\n".join(names) + "\n" + "-" * 100 + "\n" + text)
    if nameless:
        parts.append("\n".join(nameless) + "\n" + "-" * 100 + "\n" + "\n".join(without))
    Path(out).write_text(("\n\n" + "=" * 100 + "\n\n").join(parts) + "\n")


if __name__ == "__main__":
    main()
