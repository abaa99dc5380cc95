"""Makes the lowest layer of bindings from include/emberlm.h: structs, numbers and functions, word for word.

usage: generate.py [--check] [LANGUAGE...]    writes the files, or compares them with what it would write
       generate.py --layout                   prints a C program that prints sizes, offsets and numbers as the compiler sees them
"""

import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
NOTE = "Generated from include/emberlm.h by bindings/common/generate.py (`make bindings`). Do not edit."


class Var(NamedTuple):
    """A field or parameter: `const base *...*name[length]`."""

    base: str
    stars: int
    const: bool
    name: str
    length: int


class Header(NamedTuple):
    defines: dict[str, int]
    enums: dict[str, dict[str, int]]
    handles: list[str]
    structs: dict[str, list[Var]]
    callbacks: dict[str, tuple[str, list[Var]]]
    functions: dict[str, tuple[str, list[Var]]]


def parse_var(text: str) -> Var:
    match = re.fullmatch(r"(const )?(?:struct )?(\w+) ?((?:\*(?:const )?)*)(\w+)(?:\[(\d+)\])?", " ".join(text.split()))
    if match is None:
        raise SystemExit(f"not understood: {text!r}")
    const, base, stars, name, length = match.groups()
    return Var(base, stars.count("*"), const is not None, name, int(length or 0))


def parse_vars(text: str, separator: str) -> list[Var]:
    parts = [part.strip() for part in text.split(separator)]
    return [parse_var(part) for part in parts if part and part != "void"]


def parse(text: str) -> Header:
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    defines = {
        name: 0xFFFFFFFF if value == "UINT32_MAX" else int(value)
        for name, value in re.findall(r"^#define (EMBER_\w+) (\w+)$", text, flags=re.M)
    }
    text = re.sub(r"^\s*#.*$|//.*$", "", text, flags=re.M)
    enums = {}
    for name, body in re.findall(r"^enum (\w+)\s*: \w+\s*\{(.*?)\};", text, flags=re.S | re.M):
        enums[name] = {key: int(value) for key, value in re.findall(r"(\w+) = (-?\d+),", body)}
    structs = {}
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", text, flags=re.S):
        structs[name] = parse_vars(body, ";")
    callbacks = {}
    for result, name, args in re.findall(r"typedef (\w+) \(\*(\w+)\)\((.*?)\);", text, flags=re.S):
        callbacks[name] = (result, parse_vars(args, ","))
    functions = {}
    for result, name, args in re.findall(r"^(\w+|const char \*) ?(ember_\w+)\((.*?)\);", text, flags=re.S | re.M):
        functions[name] = (result.replace(" *", "*"), parse_vars(args, ","))
    return Header(defines, enums, re.findall(r"typedef struct (\w+) \1;", text), structs, callbacks, functions)


def enum_class(name: str) -> str:
    """ember_status_code: Status; ember_kv_type: KvType."""
    return "".join(word.capitalize() for word in name.removeprefix("ember_").removesuffix("_code").split("_"))


def enum_members(values: dict[str, int]) -> dict[str, int]:
    """The values without what their names have in common."""
    prefix = os.path.commonprefix(list(values))
    alone = {
        "EMBER_CHAIN_CUDA_": "EMBER_CHAIN_", "EMBER_TEXT_STREAM_SKIP_SPECIAL": "EMBER_TEXT_STREAM_",
        "EMBER_NEXT_NO_WAIT": "EMBER_NEXT_",
        "EMBER_EMBEDDER_TRUNCATE": "EMBER_EMBEDDER_", "EMBER_ADAPTERS_KEEP": "EMBER_ADAPTERS_",
    }  # fmt: skip
    prefix = alone.get(prefix, prefix[: prefix.rindex("_") + 1])
    return {key.removeprefix(prefix): value for key, value in values.items()}


def camel_case(name: str, capitals: set[str]) -> str:
    """FILE_NOT_FOUND: FileNotFound; Q8_0 stays."""
    out = ""
    for word in name.split("_"):
        joint = "_" if out and out[-1].isdigit() and word[0].isdigit() else ""
        out += joint + (word if word in capitals else word.capitalize())
    return out


def layout(h: Header) -> str:
    lines = ["#include <stdio.h>", "#include <stddef.h>", '#include "emberlm.h"', "int main(void)", "{"]

    def show(label: str, value: str) -> None:
        lines.append(f'    printf("{label} %lld\\n", (long long)({value}));')

    for name in h.defines:
        show(name, name)
    for values in h.enums.values():
        for name in values:
            show(name, name)
    for name, fields in h.structs.items():
        show(name, f"sizeof({name})")
        for field in fields:
            show(f"{name}.{field.name}", f"offsetof({name}, {field.name})")
    lines += ["    return 0;", "}"]
    return "\n".join(lines) + "\n"


# --- Python: ctypes

CTYPES = {
    "uint8_t": "c_uint8", "int32_t": "c_int32", "uint32_t": "c_uint32", "int64_t": "c_int64", "uint64_t": "c_uint64",
    "size_t": "c_size_t", "float": "c_float", "double": "c_double", "char": "c_char", "ember_status": "c_int32",
}  # fmt: skip


def python_type(h: Header, v: Var, callback: bool = False) -> str:
    if v.base in h.callbacks:
        return v.base
    if v.base in h.handles:
        return "c_void_p" if v.stars == 1 else "POINTER(c_void_p)"
    if v.stars and (v.base == "void" or callback and v.base in h.structs):
        return "c_void_p"
    if v.stars and v.base == "char":
        return "c_void_p" if callback else "c_char_p"
    base = CTYPES.get(v.base, v.base)
    if v.length:
        return f"{base} * {v.length}"
    return f"POINTER({base})" if v.stars else base


def python(h: Header) -> str:
    out = [f'"""{NOTE}"""', "", "# fmt: off", "# ruff: noqa", "from __future__ import annotations", ""]
    out += ["from ctypes import (CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t,",
            "                    c_uint32, c_uint64, c_void_p)", "from enum import IntEnum", "from typing import Any", ""]  # fmt: skip
    out += [f"{name} = {value}" for name, value in h.defines.items()]
    for name, values in h.enums.items():
        out += ["", "", f"class {enum_class(name)}(IntEnum):", f'    """enum {name}"""', ""]
        out += [f"    {key} = {value}" for key, value in enum_members(values).items()]
    out.append("")
    for name, (result, args) in h.callbacks.items():
        types = ["None" if result == "void" else CTYPES[result]] + [python_type(h, a, True) for a in args]
        out += [f"{name} = CFUNCTYPE({', '.join(types)})"]
    for name, fields in h.structs.items():
        out += ["", "", f"class {name}(Structure):", "    _fields_ = ["]
        out += [f'        ("{f.name}", {python_type(h, f)}),' for f in fields] + ["    ]"]
    numbers = {key: f"{enum_class(name)}.{short}" for name, values in h.enums.items()
               for key, short in zip(values, enum_members(values))}  # fmt: skip
    out += ["", "", "NUMBERS: dict[str, int] = {" + ", ".join(f'"{key}": {value}' for key, value in numbers.items()) + "}"]
    out += ["STRUCTS: tuple[type[Structure], ...] = (" + ", ".join(h.structs) + ")"]
    out += ["", "", "def declare(library: Any) -> None:", '    """Sets the types of all functions."""']
    for name, (result, args) in h.functions.items():
        out.append(f"    library.{name}.restype = {'c_char_p' if result == 'const char*' else CTYPES[result]}")
        out.append(f"    library.{name}.argtypes = [{', '.join(python_type(h, a) for a in args)}]")
    return "\n".join(out) + "\n"


# --- C#: P/Invoke

CSHARP = {
    "int32_t": "int", "uint32_t": "uint", "int64_t": "long", "uint64_t": "ulong", "size_t": "UIntPtr", "float": "float",
    "double": "double", "ember_status": "int", "void": "void",
}  # fmt: skip
CSHARP_HANDLES = {
    "ember_model": "ModelHandle", "ember_session": "SessionHandle", "ember_text_stream": "TextStreamHandle",
    "ember_event": "EventHandle", "ember_group": "GroupHandle", "ember_load": "LoadHandle", "ember_embedder": "EmbedderHandle", "ember_adapter": "AdapterHandle",
}  # fmt: skip
CSHARP_WORDS = {"event", "out", "params", "ref", "in", "base", "string", "object"}


def csharp_name(name: str) -> str:
    return "@" + name if name in CSHARP_WORDS else name


def csharp_argument(h: Header, function: str, v: Var) -> str:
    arrays = v.name in ("tokens", "adapters", "logprobs", "texts", "counts", "documents", "scores") or v.base == "ember_token" and v.name == "tokens" or (v.base, v.name) == ("float", "out")
    if v.base in h.callbacks:
        kind = v.base
    elif v.base in h.handles:
        if v.stars == 2:
            kind = "IntPtr[]" if v.const or v.name == "sessions" else "ref IntPtr"
        else:
            # An event may be none.
            plain = function.endswith("_free") or (v.base, function.startswith("ember_event_")) == ("ember_event", False)
            kind = "IntPtr" if plain else CSHARP_HANDLES[v.base]
    elif v.base == "ember_error":
        kind = "byte[]"  # sizeof(ember_error) bytes, read only where a call has failed
    elif v.base in ("void", "ember_profile_entry"):
        kind = "IntPtr"
    elif v.base == "char":
        kind = "byte[]"
    elif v.stars:
        kind = f"{'[In, Out] ' if not v.const else ''}{CSHARP.get(v.base, v.base)}[]" if arrays else f"ref {CSHARP.get(v.base, v.base)}"
    else:
        kind = CSHARP[v.base]
    if kind == "byte[]" and not v.const:
        kind = "[In, Out] byte[]"
    return f"{kind} {csharp_name(v.name)}"


def csharp_field(v: Var) -> str:
    if v.length:
        return f"[MarshalAs(UnmanagedType.ByValArray, SizeConst = {v.length})] public {'byte' if v.base == 'char' else CSHARP[v.base]}[] {csharp_name(v.name)};"
    kind = "IntPtr" if v.stars or v.base not in CSHARP else CSHARP[v.base]
    return f"public {kind} {csharp_name(v.name)};"


def csharp(h: Header) -> str:
    out = [f"// {NOTE}", "", "using System;", "using System.Runtime.InteropServices;", "", "namespace EmberLM.Native", "{"]
    out += ["    /// <summary>Numbers that are in no enum.</summary>", "    internal static class Constants", "    {"]
    out += [f"        internal const uint {name} = {value};" for name, value in h.defines.items()] + ["    }", ""]
    for name, (result, args) in h.callbacks.items():
        types = []
        for a in args:
            if a.stars:
                types.append(f"{'ref UIntPtr' if a.base == 'size_t' else 'IntPtr'} {csharp_name(a.name)}")
            else:
                types.append(f"{CSHARP[a.base]} {csharp_name(a.name)}")
        out += ["    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]",
                f"    internal delegate {CSHARP[result]} {name}({', '.join(types)});", ""]  # fmt: skip
    for name, fields in h.structs.items():
        out += ["    [StructLayout(LayoutKind.Sequential)]", f"    internal struct {name}", "    {"]
        out += ["        " + csharp_field(f) for f in fields] + ["    }", ""]
    out += ["    internal static class Functions", "    {"]
    out += ["#if (UNITY_IOS || UNITY_WEBGL) && !UNITY_EDITOR", '        private const string Library = "__Internal";', "#else",
            '        private const string Library = "emberlm";', "#endif"]  # fmt: skip
    for name, (result, args) in h.functions.items():
        types = ", ".join(csharp_argument(h, name, a) for a in args)
        out += ["", "        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]",
                f"        internal static extern {'IntPtr' if result == 'const char*' else CSHARP[result]} {name}({types});"]  # fmt: skip
    out += ["    }", "}", "", "namespace EmberLM", "{"]
    for name, values in h.enums.items():
        out += [f"    /// <summary>enum {name}</summary>", f"    {'internal' if name.endswith('_flags') else 'public'} enum {enum_class(name)}", "    {"]
        out += [f"        {camel_case(short, {'CPU', 'CUDA', 'IO'})} = {value}," for short, value in enum_members(values).items()] + ["    }", ""]
    return "\n".join(out[:-1] + ["}"]) + "\n"


# --- Node: koffi

def node_type(h: Header, v: Var, argument: bool) -> str:
    if v.base in h.callbacks:
        return f"koffi.pointer('{v.base}')" if not argument else f"{v.base} *"
    if v.base in h.handles:
        kind = "uintptr_t" + " *" * (v.stars - 1)
        if argument and v.stars == 2 and v.name in ("out", "model"):
            kind = "_Out_ " + kind
        return kind if argument else f"'{kind}'"
    if not argument:
        if v.length:
            return f"koffi.array('{v.base}', {v.length})"
        if v.stars:
            return f"'{'void' if v.base == 'char' else v.base} *'"
        return f"'{'int32_t' if v.base == 'ember_status' else v.base}'"
    base = "void" if v.base == "char" and v.stars else v.base
    if base == "ember_status":
        base = "int32_t"
    if not v.stars:
        return base
    single = v.name in ("count", "len", "is_end", "kept", "evaluated", "chosen", "position", "fraction", "written", "err") or (v.base, v.name) == ("int64_t", "handle")
    if not v.const and single:
        return f"_Out_ {base} *"
    if not v.const and v.base in h.structs:
        return f"_Inout_ {base} *" if v.name in ("out", "token") else "void *"
    return f"{base} *"


def node(h: Header) -> str:
    out = [f"// {NOTE}", "'use strict';", "", "const koffi = require('koffi');", "", "const constants = Object.freeze({"]
    out += [f"  {name}: {value}," for name, value in h.defines.items()]
    for name, values in h.enums.items():
        out += [f"  // enum {name}"] + [f"  {key}: {value}," for key, value in values.items()]
    out += ["});", ""]
    for name, (result, args) in h.callbacks.items():
        types = []
        for a in args:
            types.append(("void *" if a.base in ("void", "char") or a.base in h.structs else f"{a.base} *") if a.stars else a.base)
        out.append(f"koffi.proto('{name}', '{result}', [{', '.join(repr(t) for t in types)}]);")
    out += ["", "const structs = {};"]
    for name, fields in h.structs.items():
        out.append(f"structs.{name} = koffi.struct('{name}', {{")
        out += [f"  {f.name}: {node_type(h, f, False)}," for f in fields] + ["});"]
    out += ["", "// All functions of the library in the file `path`.", "function open(path) {", "  const library = koffi.load(path);",
            "  return {"]  # fmt: skip
    for name, (result, args) in h.functions.items():
        types = ", ".join(repr(node_type(h, a, True)) for a in args)
        kind = "str" if result == "const char*" else "int32_t" if result == "ember_status" else result
        out.append(f"    {name}: library.func('{name}', '{kind}', [{types}]),")
    return "\n".join(out + ["  };", "}", "", "module.exports = { constants, structs, open };"]) + "\n"


# --- Go: C functions that take handles as numbers, because cgo's pointers may be none but addresses

def go(h: Header) -> str:
    out = [f"/* {NOTE}", " *", " * The functions that take or give handles, with numbers (uintptr_t) in place of the handles, and of what is handed to callbacks: Go",
           " * takes a value of a pointer type for an address. */", "#ifndef EMBERLM_GO_SHIM_H", "#define EMBERLM_GO_SHIM_H", "",
           "#include <emberlm.h>"]  # fmt: skip
    for name, (result, args) in h.functions.items():
        if not any(a.base in h.handles or a.name == "user" for a in args):
            continue
        params, values = [], []
        for a in args:
            struct = "struct " if a.base in h.structs else ""
            if a.base in h.handles and a.stars == 1:
                params.append(f"uintptr_t {a.name}")
                values.append(f"(struct {a.base} *){a.name}")
            elif a.base in h.handles:
                params.append(f"{'const ' if a.name == 'sessions' else ''}uintptr_t *{a.name}")
                values.append(f"(struct {a.base} *{'const ' if a.name == 'sessions' else ''}*){a.name}")
            elif (a.base, a.name) == ("void", "user"):
                params.append("uintptr_t user")
                values.append("(void *)user")
            else:
                params.append(f"{'const ' if a.const else ''}{struct}{a.base} {'*' * a.stars}{a.name}")
                values.append(a.name)
        out += ["", f"static inline {result} go_{name}({', '.join(params)})", "{", f"    return {name}({', '.join(values)});", "}"]
    return "\n".join(out + ["", "#endif"]) + "\n"


GO_CAPITALS = {"CPU", "CUDA", "GGUF", "KV", "UTF8", "JSON", "IO", "QKV", "OK"}
GO_ENUMS = {
    "ember_log_level": ("LogLevel", "Log"), "ember_device_kind": ("DeviceKind", "Device"), "ember_capability": ("Capability", "Can"),
    "ember_kv_type": ("KVType", "KV"), "ember_state_kind": ("StateKind", "State"), "ember_grammar_kind": ("GrammarKind", "Grammar"),
    "ember_draft_source": ("DraftSource", "Drafts"),
    "ember_pooling": ("Pooling", "Pooling"), "ember_normalize": ("Normalize", "Normalize"),
    "ember_json_spacing": ("JSONSpacing", "JSON"), "ember_weights": ("Weights", "Weights"), "ember_files": ("Files", "Files"), "ember_split": ("Split", "Split"),
    "ember_generate_end": ("GenerateEnd", "End"),
}  # fmt: skip


def go_constants(kind: str, prefix: str, values: dict[str, int]) -> list[str]:
    names = {prefix + camel_case(short, GO_CAPITALS): key for key, short in zip(values, enum_members(values))}
    width = max(map(len, names))
    return ["const ("] + [f"\t{name:{width}} {kind} = C.{key}" for name, key in names.items()] + [")"]


def go_numbers(h: Header) -> str:
    out = [f"// Code {NOTE[0].lower()}{NOTE[1:].replace('. Do not edit', '; DO NOT EDIT')}", "", "package emberlm", "", "// #include <emberlm.h>",
           'import "C"', "", "// Statuses of the C library. Errors can be compared with them: errors.Is(err, emberlm.StatusBusy)."]  # fmt: skip
    out += go_constants("Status", "Status", h.enums["ember_status_code"])
    for name, (kind, prefix) in GO_ENUMS.items():
        base = "int32" if name == "ember_log_level" else "uint32"
        out += ["", f"// {kind} has the values of enum {name}.", f"type {kind} {base}", "", f"// Values of {kind}."]
        out += go_constants(kind, prefix, h.enums[name])
    return "\n".join(out) + "\n"


FILES = {
    "python": ("bindings/python/emberlm/_abi.py", python),
    "csharp": ("bindings/csharp/Native.cs", csharp),
    "node": ("bindings/node/native.js", node),
    "go": ("bindings/go/shim.h", go),
    "go-numbers": ("bindings/go/numbers.go", go_numbers),
}


def main(arguments: list[str]) -> int:
    h = parse((ROOT / "include/emberlm.h").read_text())
    if "--layout" in arguments:
        sys.stdout.write(layout(h))
        return 0
    stale = 0
    for name in [a for a in arguments if not a.startswith("-")] or FILES:
        path, make = FILES[name]
        file, text = ROOT / path, make(h)
        if "--check" not in arguments:
            file.write_text(text)
        elif not file.exists() or file.read_text() != text:
            print(f"{path} is not what the header says now: run `make bindings`")
            stale = 1
    if not stale and "--check" in arguments:
        counts = (len(h.functions), len(h.structs), sum(map(len, h.enums.values())), len(h.callbacks))
        print("generated files are up to date: %d functions, %d structs, %d numbers, %d callbacks" % counts)
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
