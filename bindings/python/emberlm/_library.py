"""Finds the shared library, checks its version, and turns statuses into exceptions."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys
from pathlib import Path
from typing import Any

from . import _abi

if sys.platform == "darwin":
    _NAMES = ["libemberlm.dylib", f"libemberlm.{_abi.EMBER_ABI_VERSION}.dylib"]
elif sys.platform == "win32":
    _NAMES = ["emberlm.dll"]
else:
    _NAMES = ["libemberlm.so", f"libemberlm.so.{_abi.EMBER_ABI_VERSION}"]

Status = _abi.Status


class EmberError(Exception):
    """A call that failed: `status`, `name` ("EMBER_BUSY"), `message`, and `index`, the element of a list at fault, or None."""

    def __init__(self, status: int, message: str = "", index: int | None = None) -> None:
        self.status: int = Status(status) if status in Status._value2member_map_ else status
        self.name: str = lib.ember_status_name(status).decode()
        self.message = message
        self.index = index
        super().__init__(f"{self.name}: {message}" if message else self.name)


class VersionError(ImportError):
    """The loaded library has another ABI than this package, or is older than it."""


def _candidates() -> list[str]:
    """Beside this file, else by EMBERLM_LIBRARY, else where the system looks."""
    beside = [str(path) for name in _NAMES if (path := Path(__file__).parent / name).exists()]
    named = os.environ.get("EMBERLM_LIBRARY")
    if beside or named:
        return beside or [named or ""]
    found = ctypes.util.find_library("emberlm")
    return [*reversed(_NAMES), *([found] if found else [])]


def load() -> Any:
    problems = []
    for candidate in _candidates():
        try:
            library = ctypes.CDLL(candidate)
        except OSError as error:
            problems.append(str(error))
            continue
        check_version(library.ember_abi_version(), library.ember_version_number)
        _abi.declare(library)
        return library
    raise ImportError("libemberlm was not found; set EMBERLM_LIBRARY to its path. " + "; ".join(problems))


def check_version(loaded: int, number: Any = lambda: _abi.EMBER_VERSION_NUMBER) -> None:
    """`number` is called only if the ABI is the same. An older library lacks functions that this package declares."""
    if loaded != _abi.EMBER_ABI_VERSION:
        raise VersionError(f"this package is for ABI {_abi.EMBER_ABI_VERSION} of libemberlm, the loaded library has ABI {loaded}")
    if number() < _abi.EMBER_VERSION_NUMBER:
        raise VersionError(f"this package is for version {_abi.EMBER_VERSION_NUMBER} of libemberlm or a later one, the loaded library has {number()}")


lib = load()


def call(function: Any, *arguments: Any) -> int:
    """Calls a function whose last argument is an ember_error. EMBER_PENDING is returned, other statuses are raised."""
    error = _abi.ember_error()
    status: int = function(*arguments, ctypes.byref(error))
    if status in (Status.OK, Status.PENDING):
        return status
    index = None if error.index == _abi.EMBER_NO_INDEX else error.index
    raise EmberError(status, error.message.decode(), index)


def check(status: int) -> None:
    """For functions without an ember_error."""
    if status != Status.OK:
        raise EmberError(status)


def text(function: Any, *arguments: Any, guess: int = 256) -> bytes:
    """The bytes that a function writes to (buffer, capacity, len), in a buffer that fits."""
    while True:
        buffer, length = ctypes.create_string_buffer(guess), ctypes.c_size_t()
        try:
            call(function, *arguments, buffer, guess, ctypes.byref(length))
        except EmberError as error:
            if error.status != Status.BUFFER_TOO_SMALL or length.value <= guess:
                raise
            guess = length.value
            continue
        return buffer.raw[: length.value]


def numbers(function: Any, *arguments: Any, guess: int = 256) -> list[int]:
    """The token ids that a function writes to (tokens, capacity, count)."""
    while True:
        buffer, count = (ctypes.c_uint32 * guess)(), ctypes.c_size_t()
        try:
            call(function, *arguments, buffer, guess, ctypes.byref(count))
        except EmberError as error:
            if error.status != Status.BUFFER_TOO_SMALL or count.value <= guess:
                raise
            guess = count.value
            continue
        return buffer[: count.value]


def sized(struct: type[Any]) -> Any:
    return struct(struct_size=ctypes.sizeof(struct))
