"""Runs quantized language models inside this process.

    with emberlm.Model("model.gguf") as model, model.session() as session:
        for text in session.stream(model.tokenize("Once upon a time,")):
            print(text, end="", flush=True)

What fails raises EmberError with the status of the C library and its sentence, and has changed nothing. Models, sessions and text streams are
freed by close(), by `with`, and by the garbage collector; after that their calls raise EmberError with Status.INVALID_HANDLE. A model may be
used by any number of threads, a session by one at a time: a second call meanwhile raises Status.BUSY. Calls release the interpreter's lock.
"""

from ._abi import (
    EMBER_NO_TOKEN as NO_TOKEN,
    Capability,
    DeviceKind,
    DraftSource,
    Files,
    GenerateEnd,
    GrammarKind,
    JsonSpacing,
    KvType,
    LogLevel,
    Normalize,
    Pooling,
    Split,
    StateKind,
    Status,
    Weights,
)
from ._core import (
    Adapter,
    DryBreaker,
    Embedder,
    Event,
    Generated,
    Group,
    Interrupt,
    Load,
    Logprobs,
    Message,
    Model,
    Sampling,
    Session,
    Speculation,
    TextStream,
    Token,
    conversation,
    decode_batch,
    decode_batch_start,
    decode_each,
    devices,
    estimate,
    set_log,
    state_info,
    supported,
    version,
    version_number,
)
from ._library import EmberError, VersionError

__version__ = "0.1.0"

__all__ = [
    "NO_TOKEN", "Adapter", "Capability", "DeviceKind", "DraftSource", "DryBreaker", "Embedder", "EmberError", "Event", "Files", "GenerateEnd", "Generated",
    "GrammarKind", "Group", "Interrupt", "JsonSpacing", "KvType", "Load", "LogLevel", "Logprobs", "Message", "Model", "Normalize", "Pooling", "Sampling", "Session", "Speculation", "Split",
    "StateKind", "Status", "TextStream", "Token", "VersionError", "Weights", "conversation", "decode_batch", "decode_batch_start", "decode_each",
    "devices", "estimate", "set_log", "state_info", "supported", "version", "version_number",
]  # fmt: skip
