"""Models, sessions and text streams."""

from __future__ import annotations

import ctypes
import json
import os
import weakref
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, BinaryIO, Union

from . import _abi
from ._library import EmberError, call, check, lib, numbers, sized, text

Path = Union[str, "os.PathLike[str]"]
Message = Mapping[str, Any]
"""A message of a conversation: `role`, `content` and what else the template knows."""


def _encode(path: Path) -> bytes:
    return os.fspath(path).encode("utf-8", "surrogateescape")


def _tokens(tokens: Sequence[int]) -> Any:
    return (ctypes.c_uint32 * len(tokens))(*tokens)


def _facts(struct: Any) -> dict[str, Any]:
    """The fields of a struct that the library has written."""
    names = [f[0] for f in struct._fields_ if f[0] != "struct_size" and not f[0].startswith("reserved")]
    values = {name: getattr(struct, name) for name in names}
    plain = {name: list(value) if isinstance(value, ctypes.Array) else value for name, value in values.items()}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in plain.items()}


class _Guard:
    """Keeps exceptions of a callback from crossing C, and raises them behind the call."""

    def __init__(self) -> None:
        self.raised: BaseException | None = None

    def __call__(self, function: Callable[[], int]) -> int:
        if self.raised is not None:
            return 1
        try:
            return function()
        except BaseException as error:  # KeyboardInterrupt, too
            self.raised = error
            return 1

    def call(self, function: Any, *arguments: Any) -> None:
        try:
            call(function, *arguments)
        except EmberError:
            if self.raised is None:
                raise
        if self.raised is not None:
            raise self.raised


def version() -> str:
    """The version of the loaded library."""
    return str(lib.ember_version().decode())


def version_number() -> int:
    """The same as a number: 1000000 times the major, 1000 times the minor and once the patch version."""
    return int(lib.ember_version_number())


def supported(capability: int) -> bool:
    """Whether the library can do something, by what was compiled."""
    return bool(lib.ember_supported(capability))


def devices() -> list[dict[str, Any]]:
    """All devices, the best one first: kind, usable, cores, memory_total, memory_free, name, driver, isa, reason."""
    count = ctypes.c_uint32()
    call(lib.ember_device_count, ctypes.byref(count))
    found = []
    for index in range(count.value):
        device = sized(_abi.ember_device_details)
        call(lib.ember_device_info, index, ctypes.byref(device))
        found.append(_facts(device))
    return found


_log: Any = None


def set_log(function: Callable[[int, str], object] | None, level: int = _abi.LogLevel.INFO) -> None:
    """Sets the function that gets level and text of the log messages of the whole process, from any thread; None turns the log off.
    Its exceptions are dropped."""
    global _log

    def receive(_user: Any, at: int, message: int, length: int) -> None:
        try:
            assert function is not None
            function(at, ctypes.string_at(message, length).decode())
        except Exception:
            pass

    callback = _abi.ember_log_fn(receive) if function is not None else _abi.ember_log_fn()
    call(lib.ember_set_log_callback, callback, None, level)
    _log = callback  # the one before is not called any more


class Interrupt:
    """Ends calls that take one, from another thread."""

    def __init__(self) -> None:
        self._number = ctypes.c_uint32()

    def set(self) -> None:
        self._number.value = 1

    def clear(self) -> None:
        self._number.value = 0

    def _pointer(self) -> Any:
        return ctypes.pointer(self._number)


@dataclass
class DryBreaker:
    """A sequence that no repetition goes beyond: a text or tokens."""

    text: str = ""
    tokens: Sequence[int] = ()


@dataclass
class Sampling:
    """How tokens are chosen: ember_sampling_options. Greedily unless something else is said."""

    temperature: float = 0
    seed: int = 0
    top_k: int = 0
    top_p: float = 0
    min_p: float = 0
    typical_p: float = 0
    penalty_window: int = 0
    repeat_penalty: float = 0
    presence_penalty: float = 0
    frequency_penalty: float = 0
    dry_multiplier: float = 0
    dry_base: float = 0
    dry_allowed_length: int = 0
    dry_window: int = 0
    dry_no_breakers: bool = False
    logprobs: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    banned: Sequence[int] = ()
    allowed: Sequence[int] = ()
    dry_breakers: Sequence[DryBreaker] = ()

    def _struct(self) -> Any:
        c = sized(_abi.ember_sampling_options)
        for name in ("temperature", "seed", "top_k", "top_p", "min_p", "typical_p", "penalty_window", "repeat_penalty", "presence_penalty",
                     "frequency_penalty", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_window", "logprobs"):  # fmt: skip
            setattr(c, name, getattr(self, name))
        c.dry_no_breakers = int(self.dry_no_breakers)
        c.logit_bias = (_abi.ember_logit_bias * len(self.logit_bias))(*(_abi.ember_logit_bias(*pair) for pair in self.logit_bias.items()))
        c.logit_bias_count = len(self.logit_bias)
        c.banned, c.banned_count = _tokens(self.banned), len(self.banned)
        c.allowed, c.allowed_count = _tokens(self.allowed), len(self.allowed)
        breakers = (_abi.ember_dry_breaker * len(self.dry_breakers))()
        for one, breaker in zip(breakers, self.dry_breakers):
            if breaker.tokens:
                one.tokens, one.token_count = _tokens(breaker.tokens), len(breaker.tokens)
            else:
                encoded = breaker.text.encode()
                one.text, one.text_len = encoded, len(encoded)
        c.dry_breakers, c.dry_breaker_count = breakers, len(breakers)
        c._keep = breakers
        return c


@dataclass(frozen=True)
class Generated:
    """What was generated: the text, why it ended, where the tokens begin in the context, and how many there are."""

    text: str
    end: _abi.GenerateEnd | int
    stop: int | None
    token: int | None
    position: int
    token_count: int


@dataclass(frozen=True)
class Logprobs:
    """Natural logarithms of probabilities: of the chosen token, and of the most probable ones."""

    chosen: float
    tokens: list[int]
    logprobs: list[float]


@dataclass(frozen=True)
class Token:
    """A token that was decoded."""

    id: int
    ends: bool
    """It ends an answer."""
    forced: bool
    """The grammar allowed no other."""
    logprob: float | None
    """Natural logarithm of its probability, if Sampling.logprobs asks for it."""
    status: int = _abi.Status.OK
    """Of a batch, what its session has come to."""

    @staticmethod
    def _of(c: Any) -> Token:
        flags = _abi.TokenFlags
        logprob = c.logprob if c.flags & flags.HAS_LOGPROB else None
        return Token(c.id, bool(c.flags & flags.ENDS), bool(c.flags & flags.FORCED), logprob, c.status)


def _generate_options(
    prompt: Sequence[int], limit: int, stops: Sequence[str], show_special: bool, ignore_end: bool, new_text: bool
) -> Any:
    options = sized(_abi.ember_generate_options)
    options.flags = (
        (_abi.GenerateFlags.SHOW_SPECIAL if show_special else 0)
        | (_abi.GenerateFlags.IGNORE_END if ignore_end else 0)
        | (_abi.GenerateFlags.NEW_TEXT if new_text else 0)
    )
    options.prompt, options.prompt_count, options.max_tokens = _tokens(prompt), len(prompt), limit
    options.stops, options.stop_count = _stops(stops), len(stops)
    return options


def _generated(out: Any, words: str) -> Generated:
    end = _abi.GenerateEnd(out.end) if out.end in _abi.GenerateEnd._value2member_map_ else out.end
    stop = None if out.stop == _abi.EMBER_NO_INDEX else out.stop
    token = None if out.token == _abi.EMBER_NO_TOKEN else out.token
    return Generated(words, end, stop, token, out.position, out.token_count)


@dataclass(frozen=True)
class Speculation:
    """How a session drafts, and what its drafts have come to."""

    source: _abi.DraftSource | int
    max_drafts: int
    depth: int
    steps: int
    drafted: int
    accepted: int


def _model_options(
    device: int, threads: int, weights: int, files: int, memory_limit: int = 0, session_memory_limit: int = 0,
    devices: Sequence[int] = (), device_layers: Sequence[int] = (), split: int = 0, cpu_expert_layers: int = 0,
    draft_heads: bool = False, group: Group | None = None, f16_batches: bool = False,
) -> Any:  # fmt: skip
    c = sized(_abi.ember_model_options)
    c.flags = (_abi.ModelFlags.DRAFT_HEADS if draft_heads else 0) | (_abi.ModelFlags.F16_BATCHES if f16_batches else 0)
    c.group = group._raw if group is not None else None
    c.device, c.threads, c.weights, c.files, c.split = device, threads, weights, files, split
    c.memory_limit, c.session_memory_limit, c.cpu_expert_layers = memory_limit, session_memory_limit, cpu_expert_layers
    if devices:
        c.devices, c.device_count = _tokens(devices), len(devices)
    if device_layers:
        if len(device_layers) != len(devices):
            raise ValueError("device_layers needs a number for each of devices")
        c.device_layers = _tokens(device_layers)
    return c


def _chain(c: Any, stream_priority: int) -> None:
    """Puts options of GPUs behind others, if there are any."""
    if stream_priority:
        c._cuda = sized(_abi.ember_cuda_session_options)
        c._cuda.kind, c._cuda.stream_priority = _abi.ChainKind.CUDA_SESSION, stream_priority
        c.next = ctypes.cast(ctypes.pointer(c._cuda), ctypes.c_void_p)


def _session_options(context: int, kv_type: int, stream_priority: int, mark_interval: int, sampling: Sampling | None) -> Any:
    c = sized(_abi.ember_session_options)
    c.context, c.kv_type, c.mark_interval = context, kv_type, mark_interval
    _chain(c, stream_priority)
    if sampling is not None:
        c._keep = sampling._struct()
        c.sampling = ctypes.pointer(c._keep)
    return c


def estimate(
    path: Path, *, device: int = 0, weights: int = 0, files: int = 0, context: int = 0, kv_type: int = 0, memory_limit: int = 0,
    devices: Sequence[int] = (), device_layers: Sequence[int] = (), split: int = 0, cpu_expert_layers: int = 0,
    part: int | None = None, draft_heads: bool = False, f16_batches: bool = False,
) -> dict[str, int]:  # fmt: skip
    """Bytes of memory that a model and a session of it would take, or one part of a model that several devices share."""
    encoded = _encode(path)
    out = sized(_abi.ember_estimate)
    shares = (devices, device_layers, split, cpu_expert_layers)
    model = _model_options(device, 0, weights, files, memory_limit, 0, *shares, draft_heads, None, f16_batches)
    session = _session_options(context, kv_type, 0, 0, None)
    options = (encoded, len(encoded), ctypes.byref(model), ctypes.byref(session))
    if part is None:
        call(lib.ember_model_estimate, *options, ctypes.byref(out))
    else:
        call(lib.ember_model_estimate_part, *options, part, ctypes.byref(out))
    return _facts(out)


def state_info(path: Path) -> dict[str, Any]:
    """What the file of a saved session is."""
    encoded = _encode(path)
    out = sized(_abi.ember_state_details)
    call(lib.ember_session_state_info, encoded, len(encoded), ctypes.byref(out))
    return _facts(out)


def conversation(messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: Any) -> str:
    """The JSON object that chat templates take."""
    return json.dumps({"messages": list(messages), "add_generation_prompt": add_generation_prompt, **variables}, ensure_ascii=False)


def _stops(stops: Sequence[str]) -> Any:
    encoded = [stop.encode() for stop in stops]
    return (_abi.ember_stop * len(encoded))(*(_abi.ember_stop(stop, len(stop)) for stop in encoded))


class _Handle:
    """Owns a handle. A finalizer frees it where nobody does."""

    _raw: int
    _finalizer: Any

    def _own(self, raw: int, free: Any) -> None:
        self._raw = raw
        self._free = free
        self._finalizer = weakref.finalize(self, free, raw)

    def close(self) -> None:
        """Frees it now. A call with a session on another thread is interrupted."""
        if self._raw:
            check(self._free(self._raw))
            self._finalizer.detach()
            self._raw = 0

    @property
    def closed(self) -> bool:
        return self._raw == 0

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Event(_Handle):
    """Something that an event loop can wait for: `loop.add_reader(event.fileno(), ...)`. See Session.set_event and Load."""

    def __init__(self) -> None:
        raw = ctypes.c_void_p()
        call(lib.ember_event_create, ctypes.byref(raw))
        self._own(raw.value or 0, lib.ember_event_free)

    def __enter__(self) -> Event:
        return self

    def fileno(self) -> int:
        """A file descriptor that can be read while the event is set; on Windows a HANDLE. It stays the library's."""
        handle = ctypes.c_int64()
        call(lib.ember_event_handle, self._raw, ctypes.byref(handle))
        return handle.value

    def clear(self) -> None:
        call(lib.ember_event_clear, self._raw)


class Group(_Handle):
    """A rank's place in a group of processes that have one model together, each a share of every layer on its GPU; all make the same calls."""

    def __init__(self, rank: int, rank_count: int, id: str | None = None, *, address: str = "", timeout_ms: int = 0) -> None:
        """Rank 0 listens on the IP address `address`, this machine alone without one, and has the id that the others need."""
        options, raw = sized(_abi.ember_group_options), ctypes.c_void_p()
        options.rank, options.rank_count, options.timeout_ms = rank, rank_count, timeout_ms
        options.address, options.address_len = address.encode() or None, len(address.encode())
        if id is not None:
            options.id, options.id_len = id.encode(), len(id.encode())
        call(lib.ember_group_create, ctypes.byref(options), ctypes.byref(raw))
        self._own(raw.value or 0, lib.ember_group_free)

    def __enter__(self) -> Group:
        return self

    @property
    def id(self) -> str:
        """What the other ranks need to join: a secret."""
        return text(lib.ember_group_id, self._raw).decode()


class Load(_Handle):
    """A load in the background. close() waits for a load that is still running, which it cancels."""

    def __init__(
        self, path: Path, *, device: int = 0, threads: int = 0, weights: int = _abi.Weights.KEEP, files: int = _abi.Files.MAPPED,
        event: Event | None = None,
    ) -> None:  # fmt: skip
        """`event` is set at the end."""
        encoded, options, raw = _encode(path), _model_options(device, threads, weights, files), ctypes.c_void_p()
        other = event._raw if event is not None else None
        call(lib.ember_model_load_start, encoded, len(encoded), ctypes.byref(options), other, ctypes.byref(raw))
        self.fraction = 0.0
        self._own(raw.value or 0, lib.ember_load_free)

    def __enter__(self) -> Load:
        return self

    def poll(self) -> Model | None:
        """The model, once, or None while the load is running. Raises what Model raises. Never blocks. `fraction` tells how far it is."""
        raw, fraction = ctypes.c_void_p(), ctypes.c_float()
        status = call(lib.ember_load_poll, self._raw, ctypes.byref(fraction), ctypes.byref(raw))
        self.fraction = fraction.value
        return None if status == _abi.Status.PENDING else Model._of(raw.value or 0)

    def cancel(self) -> None:
        """Has it end soon with Status.CANCELLED."""
        check(lib.ember_load_cancel(self._raw))


class Model(_Handle):
    """A loaded model: a GGUF file or a Hugging Face folder. Any number of threads may use it."""

    def __init__(
        self, path: Path, *, device: int = 0, threads: int = 0, weights: int = _abi.Weights.KEEP, files: int = _abi.Files.MAPPED,
        progress: Callable[[float], bool | None] | None = None, memory_limit: int = 0, session_memory_limit: int = 0,
        devices: Sequence[int] = (), device_layers: Sequence[int] = (), split: int = _abi.Split.LAYERS,
        cpu_expert_layers: int = 0, draft_heads: bool = False, group: Group | None = None, f16_batches: bool = False,
    ) -> None:  # fmt: skip
        """`progress` hears how far the load is, from 0 to 1; False ends it with Status.CANCELLED. The limits are bytes: of a GPU's
        memory for the model, and of the device's for all its sessions. `devices` share the layers, `device_layers` on each, or by
        the GPUs' memory; with Split.TENSORS, they share each layer. The experts of `cpu_expert_layers` of a model on a GPU stay on the
        CPU; 0xffffffff for all. `draft_heads` loads the model's own heads for DraftSource.HEADS. With `group`, this is one rank's share of the model. With
        `f16_batches`, steps of more than 16 sessions are faster on some GPUs, but a result's last bits depend on whether so many share its step."""
        encoded = _encode(path)
        shares = (devices, device_layers, split, cpu_expert_layers)
        limits = (memory_limit, session_memory_limit)
        options = _model_options(device, threads, weights, files, *limits, *shares, draft_heads, group, f16_batches)
        self._load(progress, options, lib.ember_model_load, encoded, len(encoded))

    def _load(self, progress: Callable[[float], bool | None] | None, options: Any, function: Any, *arguments: Any,
              guard: _Guard | None = None) -> None:  # fmt: skip
        keeper = guard or _Guard()
        self._raw = 0

        def hear(_user: Any, fraction: float) -> int:
            return keeper(lambda: 1 if progress is not None and progress(fraction) is False else 0)

        callback = _abi.ember_progress_fn(hear)
        if progress is not None:
            options.progress = callback
        raw = ctypes.c_void_p()
        keeper.call(function, *arguments, ctypes.byref(options), ctypes.byref(raw))
        self._own(raw.value or 0, lib.ember_model_free)

    @classmethod
    def _of(cls, raw: int) -> Model:
        model = cls.__new__(cls)
        model._own(raw, lib.ember_model_free)
        return model

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, *, device: int = 0, threads: int = 0, weights: int = 0,
                   progress: Callable[[float], bool | None] | None = None) -> Model:  # fmt: skip
        """A model from a GGUF file in memory, which is copied."""
        source = sized(_abi.ember_model_source)
        whole = data if isinstance(data, bytes) else bytes(data)
        source.size, source.bytes = len(whole), ctypes.cast(ctypes.c_char_p(whole), ctypes.c_void_p)
        model = cls.__new__(cls)
        model._load(progress, _model_options(device, threads, weights, 0), lib.ember_model_load_from, ctypes.byref(source))
        return model

    @classmethod
    def from_file(cls, file: BinaryIO, *, device: int = 0, threads: int = 0, weights: int = 0,
                  progress: Callable[[float], bool | None] | None = None) -> Model:  # fmt: skip
        """A model from an open binary file that can seek: of an archive, decrypted on the way."""
        guard = _Guard()

        def read(_user: Any, offset: int, to: int, count: int) -> int:
            def copy() -> int:
                file.seek(offset)
                done = 0
                while done < count:
                    part = file.read(count - done)
                    if not part:
                        return 1
                    ctypes.memmove(to + done, part, len(part))
                    done += len(part)
                return 0

            return guard(copy)

        source = sized(_abi.ember_model_source)
        source.size = file.seek(0, os.SEEK_END)
        source.read = callback = _abi.ember_read_at_fn(read)
        model = cls.__new__(cls)
        model._load(progress, _model_options(device, threads, weights, 0), lib.ember_model_load_from, ctypes.byref(source), guard=guard)
        del callback
        return model

    def __enter__(self) -> Model:
        return self

    def info(self) -> dict[str, Any]:
        """Facts: ember_model_details."""
        out = sized(_abi.ember_model_details)
        call(lib.ember_model_info, self._raw, ctypes.byref(out))
        return _facts(out)

    def parts(self) -> list[dict[str, int]]:
        """Where its layers are, the first ones first: ember_part_details."""
        parts = []
        for index in range(self.info()["part_count"]):
            out = sized(_abi.ember_part_details)
            call(lib.ember_model_part_info, self._raw, index, ctypes.byref(out))
            parts.append(_facts(out))
        return parts

    def metadata(self, key: str) -> str:
        """The value of a metadata key as text."""
        encoded = key.encode()
        return text(lib.ember_model_metadata, self._raw, encoded, len(encoded)).decode()

    def metadata_keys(self) -> list[str]:
        return [text(lib.ember_model_metadata_key, self._raw, index).decode() for index in range(self.info()["metadata_count"])]

    def tokenize(self, words: str, *, add_special: bool = True, parse_special: bool = False, interrupt: Interrupt | None = None) -> list[int]:
        """Token ids. `add_special`: the text is the start of a context. `parse_special`: control tokens spelled out count."""
        encoded = words.encode()
        flags = (0 if add_special else _abi.TokenizeFlags.CONTINUE) | (_abi.TokenizeFlags.SPECIAL if parse_special else 0)
        if interrupt is None:
            return numbers(lib.ember_tokenize, self._raw, encoded, len(encoded), flags, guess=len(encoded) // 2 + 16)
        options = sized(_abi.ember_tokenize_options)
        options.flags, options.interrupt = flags, interrupt._pointer()
        return numbers(lib.ember_tokenize_with, self._raw, encoded, len(encoded), ctypes.byref(options), guess=len(encoded) // 2 + 16)

    def detokenize_bytes(self, tokens: Sequence[int], *, skip_special: bool = False, new_text: bool = True) -> bytes:
        """The bytes of tokens, which need not end at the end of a character."""
        flags = (_abi.DetokenizeFlags.SKIP_SPECIAL if skip_special else 0) | (0 if new_text else _abi.DetokenizeFlags.CONTINUE)
        return text(lib.ember_detokenize, self._raw, _tokens(tokens), len(tokens), flags, guess=6 * len(tokens) + 16)

    def detokenize(self, tokens: Sequence[int], *, skip_special: bool = False, new_text: bool = True) -> str:
        """The text of tokens, with U+FFFD for parts of characters."""
        return self.detokenize_bytes(tokens, skip_special=skip_special, new_text=new_text).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        return text(lib.ember_token_text, self._raw, token, guess=64)

    def is_end(self, token: int) -> bool:
        """Whether the token ends an answer."""
        end = ctypes.c_uint32()
        call(lib.ember_token_is_end, self._raw, token, ctypes.byref(end))
        return end.value != 0

    def tokenizer_info(self) -> dict[str, Any]:
        """Facts: ember_tokenizer_details."""
        out = sized(_abi.ember_tokenizer_details)
        call(lib.ember_tokenizer_info, self._raw, ctypes.byref(out))
        return _facts(out)

    def end_tokens(self) -> list[int]:
        return numbers(lib.ember_end_tokens, self._raw, guess=8)

    def chat_format(self, messages: Sequence[Message] | str, **options: Any) -> str:
        """A conversation, or its JSON, as the text that the model was trained on. Options: template, template_name, now, interrupt."""
        encoded, chat = _chat(messages, **options)
        return text(lib.ember_chat_format, self._raw, encoded, len(encoded), ctypes.byref(chat), guess=2 * len(encoded)).decode()

    def chat_tokenize(self, messages: Sequence[Message] | str, **options: Any) -> list[int]:
        """A conversation, or its JSON, as tokens. Its words can forge nothing. Options: as chat_format."""
        encoded, chat = _chat(messages, **options)
        return numbers(lib.ember_chat_tokenize, self._raw, encoded, len(encoded), ctypes.byref(chat), guess=len(encoded))

    def session(self, *, context: int = 0, kv_type: int = _abi.KvType.DEFAULT, stream_priority: int = 0, mark_interval: int = 0,
                sampling: Sampling | None = None) -> Session:  # fmt: skip
        """A session with an empty context."""
        options = _session_options(context, kv_type, stream_priority, mark_interval, sampling)
        raw = ctypes.c_void_p()
        call(lib.ember_session_create, self._raw, ctypes.byref(options), ctypes.byref(raw))
        return Session(self, raw.value or 0)

    def restore(self, path: Path, *, context: int = 0, kv_type: int = _abi.KvType.DEFAULT, stream_priority: int = 0,
                mark_interval: int = 0, adapters: Adapters = ()) -> Session:  # fmt: skip
        """A session from a file that Session.save has written, with the adapters that it was saved with."""
        encoded = _encode(path)
        options = _restore_options(context, kv_type, stream_priority, mark_interval, adapters)
        raw = ctypes.c_void_p()
        call(lib.ember_session_restore, self._raw, encoded, len(encoded), ctypes.byref(options), ctypes.byref(raw))
        return Session(self, raw.value or 0)

    def restore_from(self, file: BinaryIO, *, context: int = 0, kv_type: int = _abi.KvType.DEFAULT, stream_priority: int = 0,
                mark_interval: int = 0, adapters: Adapters = ()) -> Session:  # fmt: skip
        """A session from an open binary file. Nothing is read beyond the end of the saved session."""
        guard = _Guard()

        def read(_user: Any, to: int, capacity: int, count: Any) -> int:
            def copy() -> int:
                part = file.read(capacity)
                ctypes.memmove(to, part, len(part))
                count[0] = len(part)
                return 0

            return guard(copy)

        options = _restore_options(context, kv_type, stream_priority, mark_interval, adapters)
        raw = ctypes.c_void_p()
        guard.call(lib.ember_session_restore_from, self._raw, _abi.ember_read_fn(read), None, ctypes.byref(options), ctypes.byref(raw))
        return Session(self, raw.value or 0)

    def text_stream(self, *, stops: Sequence[str] = (), skip_special: bool = False) -> TextStream:
        """Turns tokens into text while they are made."""
        options = sized(_abi.ember_text_stream_options)
        options.flags = _abi.TextStreamFlags.SKIP_SPECIAL if skip_special else 0
        options.stops, options.stop_count = _stops(stops), len(stops)
        raw = ctypes.c_void_p()
        call(lib.ember_text_stream_create, self._raw, ctypes.byref(options), ctypes.byref(raw))
        return TextStream(raw.value or 0)

    def adapter(self, path: Path) -> Adapter:
        """Loads a LoRA adapter for this model: a folder as PEFT writes it, or a GGUF file."""
        encoded = _encode(path)
        raw = ctypes.c_void_p()
        call(lib.ember_adapter_load, self._raw, encoded, len(encoded), ctypes.byref(raw))
        return Adapter(raw.value or 0)

    def embedder(self, *, pooling: int = 0, normalize: int = 0, dimension: int = 0, max_tokens: int = 0, batch_tokens: int = 0,
                 truncate: bool = False, instruction: str = "", adapters: Adapters = ()) -> Embedder:  # fmt: skip
        """Makes vectors or scores of texts. Options: the fields of ember_embedder_options."""
        c = sized(_abi.ember_embedder_options)
        c.pooling, c.normalize, c.dimension = pooling, normalize, dimension
        c.max_tokens, c.batch_tokens = max_tokens, batch_tokens
        c.flags = _abi.EmbedderFlags.TRUNCATE if truncate else 0
        c.instruction, c.instruction_len = instruction.encode(), len(instruction.encode())
        uses = _uses(adapters)
        c.adapters, c.adapter_count = uses, len(uses)
        raw = ctypes.c_void_p()
        call(lib.ember_embedder_create, self._raw, ctypes.byref(c), ctypes.byref(raw))
        return Embedder(raw.value or 0)

    def evict(self) -> None:
        """Frees the device's memory of the weights until they are needed."""
        call(lib.ember_model_evict, self._raw)

    def resume(self) -> None:
        call(lib.ember_model_resume, self._raw)


def _restore_options(context: int, kv_type: int, stream_priority: int, mark_interval: int, adapters: Adapters) -> Any:
    c = sized(_abi.ember_restore_options)
    uses = _uses(adapters)
    c.adapters, c.adapter_count = uses, len(uses)
    c.context, c.kv_type, c.mark_interval = context, kv_type, mark_interval
    _chain(c, stream_priority)
    return c


def _chat(messages: Sequence[Message] | str, *, template: str | None = None, template_name: str | None = None, now: int = 0,
          interrupt: Interrupt | None = None, **variables: Any) -> tuple[bytes, Any]:  # fmt: skip
    encoded = (messages if isinstance(messages, str) else conversation(messages, **variables)).encode()
    c = sized(_abi.ember_chat_options)
    if template is not None:
        c.source = template.encode()
        c.source_len = len(template.encode())
    if template_name is not None:
        c.name = template_name.encode()
        c.name_len = len(template_name.encode())
    c.now = now
    if interrupt is not None:
        c.interrupt = interrupt._pointer()
    return encoded, c


class Session(_Handle):
    """One conversation: a context of tokens. One thread at a time. Made by Model.session, Model.restore and fork."""

    def __init__(self, model: Model, raw: int) -> None:
        self._model = model
        self._own(raw, lib.ember_session_free)

    def __enter__(self) -> Session:
        return self

    @property
    def position(self) -> int:
        """Tokens in the context."""
        out = ctypes.c_size_t()
        call(lib.ember_session_position, self._raw, ctypes.byref(out))
        return out.value

    def info(self) -> dict[str, int]:
        out = sized(_abi.ember_session_details)
        call(lib.ember_session_info, self._raw, ctypes.byref(out))
        return _facts(out)

    def tokens(self, start: int = 0) -> list[int]:
        """The tokens of the context from a position on."""
        return numbers(lib.ember_session_tokens, self._raw, start)

    def prefill(self, tokens: Sequence[int]) -> None:
        """Appends tokens to the context and evaluates them."""
        call(lib.ember_prefill, self._raw, _tokens(tokens), len(tokens))

    def prefill_start(self, tokens: Sequence[int]) -> None:
        """Starts what prefill does and returns at once."""
        call(lib.ember_prefill_start, self._raw, _tokens(tokens), len(tokens))

    def prefill_poll(self) -> tuple[bool, int]:
        """Whether a started prefill is done, and how many of its tokens are evaluated. Never blocks."""
        evaluated = ctypes.c_size_t()
        status = call(lib.ember_prefill_poll, self._raw, ctypes.byref(evaluated))
        return status != _abi.Status.PENDING, evaluated.value

    def sync(self, tokens: Sequence[int]) -> int:
        """Makes the tokens the context and evaluates only what is new; returns how many were kept."""
        kept = ctypes.c_size_t()
        call(lib.ember_session_sync, self._raw, _tokens(tokens), len(tokens), ctypes.byref(kept))
        return kept.value

    def decode(self) -> int:
        """The next token."""
        return self.decode_token().id

    def decode_token(self) -> Token:
        """The next token, with what is known of it."""
        token = sized(_abi.ember_token)
        call(lib.ember_decode, self._raw, ctypes.byref(token))
        return Token._of(token)

    def set_event(self, event: Event | None) -> None:
        """Has the session set an event whenever a poll may find something new; None ends that."""
        call(lib.ember_session_set_event, self._raw, event._raw if event is not None else None)

    def model(self) -> Model:
        """The session's model, also if the object that it was made of is closed."""
        raw = ctypes.c_void_p()
        call(lib.ember_session_model, self._raw, ctypes.byref(raw))
        return Model._of(raw.value or 0)

    def decode_start(self, count: int = 1) -> None:
        """Starts decodes and returns at once."""
        if count == 1:
            call(lib.ember_decode_start, self._raw)
        else:
            call(lib.ember_decode_start_n, self._raw, count)

    def decode_poll(self) -> int | None:
        """The next token of the started decodes, or None if it is not there yet. Never blocks."""
        token = sized(_abi.ember_token)
        status = call(lib.ember_decode_poll, self._raw, ctypes.byref(token))
        return None if status == _abi.Status.PENDING else int(token.id)

    def generate(
        self, prompt: Sequence[int] = (), *, limit: int = 0, stops: Sequence[str] = (), show_special: bool = False,
        ignore_end: bool = False, new_text: bool = False, on_text: Callable[[str, Token | None], bool | None] | None = None,
    ) -> Generated:  # fmt: skip
        """Appends a prompt and decodes until there is a reason to end. `on_text` gets each piece and its token, or None with text that
        was held back until the end; False ends it."""
        guard, pieces = _Guard(), []

        def piece(_user: Any, start: int, length: int, place: int) -> int:
            def take() -> int:
                words = ctypes.string_at(start, length).decode() if length else ""
                pieces.append(words)
                made = _abi.ember_token.from_address(place)
                token = None if made.id == _abi.EMBER_NO_TOKEN else Token._of(made)
                return 0 if on_text is None or on_text(words, token) is not False else 1

            return guard(take)

        options = _generate_options(prompt, limit, stops, show_special, ignore_end, new_text)
        options.piece = callback = _abi.ember_piece_fn(piece)
        out = sized(_abi.ember_generate_details)
        guard.call(lib.ember_generate, self._raw, ctypes.byref(options), ctypes.byref(out))
        del callback
        return _generated(out, "".join(pieces))

    def generate_start(
        self, prompt: Sequence[int] = (), *, limit: int = 0, stops: Sequence[str] = (), show_special: bool = False,
        ignore_end: bool = False, new_text: bool = False,
    ) -> None:  # fmt: skip
        """Starts what generate does; generate_next returns the text piece by piece, generate_finish ends it."""
        options = _generate_options(prompt, limit, stops, show_special, ignore_end, new_text)
        call(lib.ember_generate_start, self._raw, ctypes.byref(options))

    def generate_next(self, *, wait: bool = True) -> tuple[str, Token | None] | None:
        """The next piece and its token, which is None with the last piece; without `wait`, None if it is not there yet."""
        token, room, length = sized(_abi.ember_token), 64, ctypes.c_size_t()
        while True:
            buffer = ctypes.create_string_buffer(room)
            try:
                status = call(lib.ember_generate_next, self._raw, 0 if wait else _abi.NextFlags.NO_WAIT, buffer, room,
                              ctypes.byref(length), ctypes.byref(token))  # fmt: skip
            except EmberError as error:
                if error.status != _abi.Status.BUFFER_TOO_SMALL or length.value <= room:
                    raise
                room = length.value
                continue
            if status == _abi.Status.PENDING:
                return None
            return buffer.raw[: length.value].decode(), None if token.id == _abi.EMBER_NO_TOKEN else Token._of(token)

    def generate_finish(self) -> Generated:
        """Ends a generation that was started, at any time. `text` of the result is empty."""
        out = sized(_abi.ember_generate_details)
        call(lib.ember_generate_finish, self._raw, ctypes.byref(out))
        return _generated(out, "")

    def stream(self, prompt: Sequence[int] = (), *, limit: int | None = None, stops: Sequence[str] = (), show_special: bool = False,
               ignore_end: bool = False) -> Iterator[str]:  # fmt: skip
        """The text of generate as an iterator over its pieces. The next token is made when the next piece is asked for."""
        if limit == 0:
            if prompt:
                self.prefill(prompt)
            return
        self.generate_start(prompt, limit=limit or 0, stops=stops, show_special=show_special, ignore_end=ignore_end, new_text=True)
        try:
            while (piece := self.generate_next()) is not None:
                if piece[0]:
                    yield piece[0]
                if piece[1] is None:
                    break
        finally:
            try:
                self.generate_finish()
            except EmberError as error:
                # It was closed or rewound meanwhile.
                if error.status not in (_abi.Status.INVALID_HANDLE, _abi.Status.NOTHING_PENDING):
                    raise

    def chat(self, messages: Sequence[Message] | str, *, limit: int = 0, stops: Sequence[str] = (),
             on_text: Callable[[str, Token | None], bool | None] | None = None, **options: Any) -> Generated:  # fmt: skip
        """The answer to a conversation, of which only what is new is read. Options: those of Model.chat_format, variables of the template."""
        self.sync(self._model.chat_tokenize(messages, **options))
        return self.generate(limit=limit, stops=stops, new_text=True, on_text=on_text)

    def logits(self) -> array[float]:
        """The logits that the next decode will choose by; numpy.frombuffer takes them as they are."""
        out = array("f", bytes(4 * self.info()["vocab_size"]))
        address, count = out.buffer_info()
        call(lib.ember_session_logits, self._raw, ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), count)
        return out

    def logprobs(self) -> Logprobs:
        """How probable the last decoded token was (Sampling.logprobs)."""
        chosen, count = ctypes.c_float(), ctypes.c_size_t()
        tokens, values = (ctypes.c_uint32 * 64)(), (ctypes.c_float * 64)()
        call(lib.ember_session_logprobs, self._raw, ctypes.byref(chosen), tokens, values, 64, ctypes.byref(count))
        return Logprobs(chosen.value, tokens[: count.value], values[: count.value])

    def set_sampling(self, sampling: Sampling) -> None:
        call(lib.ember_session_set_sampling, self._raw, ctypes.byref(sampling._struct()))

    def set_grammar(self, kind: int, grammar: str = "", *, json_spacing: int = _abi.JsonSpacing.SPACED,
                    interrupt: Interrupt | None = None) -> None:  # fmt: skip
        """Holds the answers to a grammar; GrammarKind.NONE takes it away."""
        encoded = grammar.encode()
        options = sized(_abi.ember_grammar_options)
        options.json_spacing = json_spacing
        if interrupt is not None:
            options.interrupt = interrupt._pointer()
        call(lib.ember_session_set_grammar, self._raw, kind, encoded, len(encoded), ctypes.byref(options))

    def set_json_schema(self, schema: Mapping[str, Any] | str) -> None:
        words = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
        self.set_grammar(_abi.GrammarKind.JSON_SCHEMA, words)

    def draft(self, source: int = _abi.DraftSource.NGRAM, model: Model | None = None, *, max_drafts: int = 0) -> None:
        """Verifies drafts of what comes next: faster, with the same tokens. DraftSource.MODEL takes a smaller model with the same
        vocabulary, DraftSource.HEADS the model's own heads (`draft_heads` of Model), DraftSource.NONE ends drafting."""
        options = sized(_abi.ember_speculation_options)
        options.source, options.max_drafts = source, max_drafts
        if model is not None:
            options.draft_model = model._raw
        call(lib.ember_session_set_speculation, self._raw, ctypes.byref(options))

    def speculation(self) -> Speculation:
        """What the drafts have come to."""
        out = sized(_abi.ember_speculation_details)
        call(lib.ember_session_speculation_info, self._raw, ctypes.byref(out))
        return Speculation(out.source, out.max_drafts, out.depth, out.steps, out.drafted, out.accepted)

    def rewind(self, position: int) -> None:
        """Keeps the first `position` tokens."""
        call(lib.ember_session_rewind, self._raw, position)

    def erase(self, start: int, count: int) -> None:
        """Takes tokens out of the middle of the context."""
        call(lib.ember_session_erase, self._raw, start, count)

    def set_adapters(self, adapters: Adapters, *, keep: bool = False) -> None:
        """Uses these adapters from now on, in place of those before: adapters, or pairs of an adapter and its scale. What was read
        is evaluated again, unless keep."""
        uses = _uses(adapters)
        call(lib.ember_session_set_adapters, self._raw, uses, len(uses), _abi.AdaptersFlags.KEEP if keep else 0)

    def fork(self) -> Session:
        """Another session with the same context."""
        raw = ctypes.c_void_p()
        call(lib.ember_session_fork, self._raw, ctypes.byref(raw))
        return Session(self._model, raw.value or 0)

    def interrupt(self) -> None:
        """Ends the call that is running on another thread, or the next one, with Status.INTERRUPTED. Any thread may call it."""
        check(lib.ember_session_interrupt(self._raw))

    def clear_interrupt(self) -> None:
        check(lib.ember_session_clear_interrupt(self._raw))

    def save(self, path: Path, kind: int = _abi.StateKind.EVERYTHING) -> None:
        encoded = _encode(path)
        options = sized(_abi.ember_save_options)
        options.kind = kind
        call(lib.ember_session_save, self._raw, encoded, len(encoded), ctypes.byref(options))

    def save_to(self, file: BinaryIO, kind: int = _abi.StateKind.EVERYTHING) -> None:
        """Saves to an open binary file."""
        guard = _Guard()

        def write(_user: Any, start: int, count: int) -> int:
            def copy() -> int:
                file.write(ctypes.string_at(start, count))
                return 0

            return guard(copy)

        options = sized(_abi.ember_save_options)
        options.kind = kind
        guard.call(lib.ember_session_save_to, self._raw, _abi.ember_write_fn(write), None, ctypes.byref(options))

    def evict(self) -> None:
        """Moves the state to host memory until it is needed."""
        call(lib.ember_session_evict, self._raw)

    def resume(self) -> None:
        call(lib.ember_session_resume, self._raw)

    def profile(self) -> list[dict[str, Any]]:
        """Where the time of a decode goes: calls, microseconds, bytes, name."""
        entries, count = (_abi.ember_profile_entry * 64)(), ctypes.c_size_t()
        entries[0].struct_size = ctypes.sizeof(_abi.ember_profile_entry)
        call(lib.ember_session_profile, self._raw, entries, 64, ctypes.byref(count))
        return [_facts(entry) for entry in entries[: count.value]]


def _raws(sessions: Sequence[Session]) -> Any:
    return (ctypes.c_void_p * len(sessions))(*(session._raw for session in sessions))


def decode_batch(sessions: Sequence[Session]) -> list[int]:
    """The next token of each session, in one pass over the weights: different sessions of one model. The first error of a session is
    raised, whatever the others have decoded."""
    tokens = (_abi.ember_token * max(len(sessions), 1))()
    tokens[0].struct_size = ctypes.sizeof(_abi.ember_token)
    call(lib.ember_decode_batch, _raws(sessions), len(sessions), tokens)
    return [token.id for token in tokens]


def decode_each(sessions: Sequence[Session]) -> list[Token]:
    """The same; a session that fails has its error in `status`, and the others go on."""
    tokens = (_abi.ember_token * max(len(sessions), 1))()
    tokens[0].struct_size, tokens[0].id = ctypes.sizeof(_abi.ember_token), _abi.EMBER_NO_TOKEN
    try:
        call(lib.ember_decode_batch, _raws(sessions), len(sessions), tokens)
    except EmberError:
        if all(token.status == _abi.Status.OK for token in tokens):
            raise
    return [Token._of(token) for token in tokens]


def decode_batch_start(sessions: Sequence[Session]) -> None:
    """Starts a decode of each in one pass; Session.decode_poll has the tokens."""
    call(lib.ember_decode_batch_start, _raws(sessions), len(sessions))


class TextStream(_Handle):
    """Turns tokens into text while they are made: whole characters only, up to a stop string. Made by Model.text_stream."""

    def __init__(self, raw: int) -> None:
        self._own(raw, lib.ember_text_stream_free)

    def __enter__(self) -> TextStream:
        return self

    def push(self, tokens: Sequence[int]) -> str:
        """Takes tokens and gives the text that is certain now."""
        return text(lib.ember_text_stream_push, self._raw, _tokens(tokens), len(tokens), guess=8 * len(tokens) + 64).decode()

    def finish(self) -> str:
        """The text that was held back; the stream is as new then."""
        return text(lib.ember_text_stream_finish, self._raw).decode()

    def info(self) -> dict[str, int]:
        out = sized(_abi.ember_text_stream_details)
        call(lib.ember_text_stream_info, self._raw, ctypes.byref(out))
        return _facts(out)

    @property
    def stopped(self) -> bool:
        """Whether a stop string was met."""
        return self.info()["stopped"] != 0


class Adapter(_Handle):
    """A LoRA adapter of a model, for any number of sessions. Made by Model.adapter."""

    def __init__(self, raw: int) -> None:
        self._own(raw, lib.ember_adapter_free)

    def __enter__(self) -> Adapter:
        return self

    def info(self) -> dict[str, Any]:
        out = sized(_abi.ember_adapter_details)
        call(lib.ember_adapter_info, self._raw, ctypes.byref(out))
        return _facts(out)


Adapters = Sequence["Adapter | tuple[Adapter, float]"]


def _uses(adapters: Adapters) -> Any:
    pairs = [(use, 1.0) if isinstance(use, Adapter) else use for use in adapters]
    return (_abi.ember_adapter_use * len(pairs))(*((adapter._raw, scale, 0) for adapter, scale in pairs))


def _texts(texts: Sequence[str]) -> Any:
    encoded = [text.encode() for text in texts]
    return (_abi.ember_text * len(encoded))(*((text, len(text)) for text in encoded))


class Embedder(_Handle):
    """Makes vectors or scores of texts. One thread at a time. Made by Model.embedder."""

    def __init__(self, raw: int) -> None:
        self._own(raw, lib.ember_embedder_free)

    def __enter__(self) -> Embedder:
        return self

    def info(self) -> dict[str, int]:
        out = sized(_abi.ember_embedder_details)
        call(lib.ember_embedder_info, self._raw, ctypes.byref(out))
        return _facts(out)

    def interrupt(self) -> None:
        """Ends the call that is running on another thread, or else the next one."""
        check(lib.ember_embedder_interrupt(self._raw))

    def _rows(self, rows: int, function: Any, *arguments: Any) -> list[array[float]]:
        dimension = self.info()["dimension"]
        out, written = array("f", bytes(4 * rows * dimension)), ctypes.c_size_t()
        address, room = out.buffer_info()
        call(function, self._raw, *arguments, ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), room, ctypes.byref(written))
        return [out[i * dimension : (i + 1) * dimension] for i in range(rows)]

    def _needed(self, function: Any, *arguments: Any) -> int:
        written = ctypes.c_size_t()
        try:
            call(function, self._raw, *arguments, None, 0, ctypes.byref(written))
        except EmberError as error:
            if error.status != _abi.Status.BUFFER_TOO_SMALL:
                raise
        return written.value // self.info()["dimension"]

    def embed(self, texts: Sequence[str]) -> list[array[float]]:
        """A vector for each text; without pooling, one for each token of all of them."""
        arguments = (_texts(texts), len(texts))
        rows = len(texts)
        if self.info()["pooling"] == _abi.Pooling.NONE:
            rows = self._needed(lib.ember_embed, *arguments)
        return self._rows(rows, lib.ember_embed, *arguments)

    def embed_tokens(self, texts: Sequence[Sequence[int]]) -> list[array[float]]:
        """The same of tokens, to which none are added."""
        every = [token for tokens in texts for token in tokens]
        counts = (ctypes.c_size_t * len(texts))(*map(len, texts))
        rows = len(every) if self.info()["pooling"] == _abi.Pooling.NONE else len(texts)
        return self._rows(rows, lib.ember_embed_tokens, _tokens(every), len(every), counts, len(texts))

    def rerank(self, query: str, documents: Sequence[str]) -> list[array[float]]:
        """Scores of how well each document answers a query; an embedder with pooling=Pooling.SCORE makes them."""
        encoded = query.encode()
        return self._rows(len(documents), lib.ember_rerank, encoded, len(encoded), _texts(documents), len(documents))
