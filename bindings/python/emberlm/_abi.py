"""Generated from include/emberlm.h by bindings/common/generate.py (`make bindings`). Do not edit."""

# fmt: off
# ruff: noqa
from __future__ import annotations

from ctypes import (CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t,
                    c_uint32, c_uint64, c_void_p)
from enum import IntEnum
from typing import Any

EMBER_ABI_VERSION = 1
EMBER_VERSION_NUMBER = 1000
EMBER_NO_INDEX = 4294967295
EMBER_NO_TOKEN = 4294967295


class Status(IntEnum):
    """enum ember_status_code"""

    OK = 0
    PENDING = 1
    INVALID_ARGUMENT = 2
    NULL_POINTER = 3
    INVALID_HANDLE = 4
    INVALID_UTF8 = 5
    BUSY = 6
    CANCELLED = 7
    INTERRUPTED = 8
    FILE_NOT_FOUND = 9
    NOT_A_FILE = 10
    FILE_EMPTY = 11
    IO = 12
    UNKNOWN_FORMAT = 13
    FILE_TRUNCATED = 14
    FILE_CORRUPT = 15
    UNSUPPORTED = 16
    MISSING_KEY = 17
    MISSING_TENSOR = 18
    SHAPE_MISMATCH = 19
    INVALID_MODEL = 20
    OUT_OF_MEMORY = 21
    CONTEXT_FULL = 22
    INVALID_TOKEN = 23
    NO_INPUT = 24
    BUFFER_TOO_SMALL = 25
    NOTHING_PENDING = 26
    DECODE_PENDING = 27
    NO_DEVICE = 28
    DEVICE_LOST = 29
    NUMERIC = 30
    DEVICE_ERROR = 31
    INTERNAL = 32
    FORKED = 33
    GRAMMAR = 34
    TEMPLATE_FAILED = 35
    NOT_STATE = 36
    STATE_VERSION = 37
    STATE_FOREIGN = 38
    STATE_CHECKSUM = 39


class LogLevel(IntEnum):
    """enum ember_log_level"""

    ERROR = 1
    WARN = 2
    INFO = 3
    DEBUG = 4


class DeviceKind(IntEnum):
    """enum ember_device_kind"""

    CPU = 1
    CUDA = 2


class Capability(IntEnum):
    """enum ember_capability"""

    CPU = 1
    CUDA = 2
    GGUF = 16
    SAFETENSORS = 17
    CPU_KV_F16 = 32
    CPU_KV_F32 = 33
    CPU_KV_Q8_0 = 34
    CUDA_KV_F16 = 48
    CUDA_KV_F32 = 49
    CUDA_KV_Q8_0 = 50


class SourceFlags(IntEnum):
    """enum ember_source_flags"""

    BORROW = 1


class KvType(IntEnum):
    """enum ember_kv_type"""

    DEFAULT = 0
    F16 = 1
    F32 = 2
    Q8_0 = 3


class StateKind(IntEnum):
    """enum ember_state_kind"""

    EVERYTHING = 0
    TOKENS = 1


class GrammarKind(IntEnum):
    """enum ember_grammar_kind"""

    NONE = 0
    JSON_SCHEMA = 1
    REGEX = 2
    LARK = 3
    GBNF = 4


class JsonSpacing(IntEnum):
    """enum ember_json_spacing"""

    SPACED = 0
    COMPACT = 1
    FREE = 2


class DraftSource(IntEnum):
    """enum ember_draft_source"""

    NONE = 0
    NGRAM = 1
    MODEL = 2
    HEADS = 3


class Weights(IntEnum):
    """enum ember_weights"""

    KEEP = 0
    Q8_0 = 1
    Q4_K = 2
    Q6_K = 3
    Q4_K_M = 4


class Files(IntEnum):
    """enum ember_files"""

    MAPPED = 0
    READ = 1


class Split(IntEnum):
    """enum ember_split"""

    LAYERS = 0
    TENSORS = 1


class TokenizeFlags(IntEnum):
    """enum ember_tokenize_flags"""

    CONTINUE = 1
    SPECIAL = 2


class DetokenizeFlags(IntEnum):
    """enum ember_detokenize_flags"""

    SKIP_SPECIAL = 1
    CONTINUE = 2


class TextStreamFlags(IntEnum):
    """enum ember_text_stream_flags"""

    SKIP_SPECIAL = 1


class EmbedderFlags(IntEnum):
    """enum ember_embedder_flags"""

    TRUNCATE = 1


class AdaptersFlags(IntEnum):
    """enum ember_adapters_flags"""

    KEEP = 1


class Normalize(IntEnum):
    """enum ember_normalize"""

    DEFAULT = 0
    ON = 1
    OFF = 2


class Pooling(IntEnum):
    """enum ember_pooling"""

    DEFAULT = 0
    MEAN = 1
    FIRST = 2
    LAST = 3
    NONE = 4
    SCORE = 5


class GenerateFlags(IntEnum):
    """enum ember_generate_flags"""

    SHOW_SPECIAL = 1
    IGNORE_END = 2
    NEW_TEXT = 4


class NextFlags(IntEnum):
    """enum ember_next_flags"""

    NO_WAIT = 1


class ChainKind(IntEnum):
    """enum ember_chain_kind"""

    CUDA_MODEL = 1
    CUDA_SESSION = 2


class TokenFlags(IntEnum):
    """enum ember_token_flags"""

    ENDS = 1
    FORCED = 2
    HAS_LOGPROB = 4
    DRAFTED = 8


class ModelFlags(IntEnum):
    """enum ember_model_flags"""

    NEVER_WAIT = 1
    DRAFT_HEADS = 2
    F16_BATCHES = 4


class GenerateEnd(IntEnum):
    """enum ember_generate_end"""

    LIMIT = 1
    TOKEN = 2
    STOP = 3
    CALLBACK = 4
    INTERRUPTED = 5
    CONTEXT_FULL = 6

ember_log_fn = CFUNCTYPE(None, c_void_p, c_int32, c_void_p, c_size_t)
ember_progress_fn = CFUNCTYPE(c_int32, c_void_p, c_float)
ember_free_fn = CFUNCTYPE(None, c_void_p)
ember_release_fn = CFUNCTYPE(None, c_void_p, c_void_p, c_uint64)
ember_read_at_fn = CFUNCTYPE(c_int32, c_void_p, c_uint64, c_void_p, c_size_t)
ember_write_fn = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_size_t)
ember_read_fn = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_size_t, POINTER(c_size_t))
ember_piece_fn = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_size_t, c_void_p)


class ember_error(Structure):
    _fields_ = [
        ("code", c_int32),
        ("index", c_uint32),
        ("message", c_char * 1016),
    ]


class ember_device_details(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("kind", c_uint32),
        ("usable", c_uint32),
        ("cores", c_uint32),
        ("memory_total", c_uint64),
        ("memory_free", c_uint64),
        ("name", c_char * 128),
        ("driver", c_char * 32),
        ("isa", c_char * 32),
        ("reason", c_char * 256),
    ]


class ember_group_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("rank", c_uint32),
        ("rank_count", c_uint32),
        ("timeout_ms", c_uint32),
        ("address", c_char_p),
        ("address_len", c_size_t),
        ("id", c_char_p),
        ("id_len", c_size_t),
    ]


class ember_model_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("device", c_uint32),
        ("threads", c_uint32),
        ("weights", c_uint32),
        ("files", c_uint32),
        ("flags", c_uint32),
        ("split", c_uint32),
        ("cpu_expert_layers", c_uint32),
        ("thread_priority", c_int32),
        ("log_level", c_int32),
        ("memory_limit", c_uint64),
        ("session_memory_limit", c_uint64),
        ("progress", ember_progress_fn),
        ("user", c_void_p),
        ("cpus", POINTER(c_uint32)),
        ("cpu_count", c_size_t),
        ("devices", POINTER(c_uint32)),
        ("device_count", c_size_t),
        ("device_layers", POINTER(c_uint32)),
        ("group", c_void_p),
        ("log_callback", ember_log_fn),
        ("log_user", c_void_p),
        ("log_release", ember_free_fn),
        ("next", c_void_p),
    ]


class ember_model_details(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("device", c_uint32),
        ("vocab_size", c_uint32),
        ("context_length", c_uint32),
        ("layer_count", c_uint32),
        ("hidden_size", c_uint32),
        ("has_tokenizer", c_uint32),
        ("metadata_count", c_uint32),
        ("parameter_count", c_uint64),
        ("file_bytes", c_uint64),
        ("resident_bytes", c_uint64),
        ("kv_bytes_per_token", c_uint64),
        ("architecture", c_char * 32),
        ("quantization", c_char * 32),
        ("name", c_char * 128),
        ("max_batch", c_uint32),
        ("device_layer_count", c_uint32),
        ("memory_bytes", c_uint64),
        ("session_memory_bytes", c_uint64),
        ("part_count", c_uint32),
        ("cpu_expert_layer_count", c_uint32),
    ]


class ember_part_details(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("device", c_uint32),
        ("first_layer", c_uint32),
        ("layer_count", c_uint32),
        ("memory_bytes", c_uint64),
        ("session_memory_bytes", c_uint64),
    ]


class ember_model_source(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("size", c_uint64),
        ("bytes", c_void_p),
        ("release", ember_release_fn),
        ("read", ember_read_at_fn),
        ("user", c_void_p),
    ]


class ember_logit_bias(Structure):
    _fields_ = [
        ("token", c_uint32),
        ("bias", c_float),
    ]


class ember_dry_breaker(Structure):
    _fields_ = [
        ("text", c_char_p),
        ("text_len", c_size_t),
        ("tokens", POINTER(c_uint32)),
        ("token_count", c_size_t),
    ]


class ember_sampling_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("top_k", c_uint32),
        ("temperature", c_float),
        ("top_p", c_float),
        ("min_p", c_float),
        ("typical_p", c_float),
        ("penalty_window", c_uint32),
        ("repeat_penalty", c_float),
        ("presence_penalty", c_float),
        ("frequency_penalty", c_float),
        ("dry_multiplier", c_float),
        ("dry_base", c_float),
        ("dry_allowed_length", c_uint32),
        ("dry_window", c_uint32),
        ("dry_no_breakers", c_uint32),
        ("logprobs", c_uint32),
        ("seed", c_uint64),
        ("logit_bias", POINTER(ember_logit_bias)),
        ("logit_bias_count", c_size_t),
        ("banned", POINTER(c_uint32)),
        ("banned_count", c_size_t),
        ("allowed", POINTER(c_uint32)),
        ("allowed_count", c_size_t),
        ("dry_breakers", POINTER(ember_dry_breaker)),
        ("dry_breaker_count", c_size_t),
    ]


class ember_session_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("context", c_uint32),
        ("kv_type", c_uint32),
        ("mark_interval", c_uint32),
        ("sampling", POINTER(ember_sampling_options)),
        ("next", c_void_p),
    ]


class ember_session_details(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("vocab_size", c_uint32),
        ("context", c_uint64),
        ("position", c_uint64),
        ("kv_bytes", c_uint64),
    ]


class ember_token(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("id", c_uint32),
        ("flags", c_uint32),
        ("status", c_int32),
        ("logprob", c_float),
        ("reserved", c_uint32),
    ]


class ember_save_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("kind", c_uint32),
    ]


class ember_adapter_use(Structure):
    _fields_ = [
        ("adapter", c_void_p),
        ("scale", c_float),
        ("reserved", c_uint32),
    ]


class ember_restore_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("context", c_uint32),
        ("kv_type", c_uint32),
        ("mark_interval", c_uint32),
        ("next", c_void_p),
        ("adapters", POINTER(ember_adapter_use)),
        ("adapter_count", c_size_t),
    ]


class ember_state_details(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("version", c_uint32),
        ("kind", c_uint32),
        ("kv_type", c_uint32),
        ("context", c_uint64),
        ("position", c_uint64),
        ("file_bytes", c_uint64),
        ("model_fingerprint", c_uint64),
        ("tokenizer_fingerprint", c_uint64),
        ("architecture", c_char * 64),
        ("model_name", c_char * 128),
        ("adapter_count", c_uint32),
        ("reserved", c_uint32),
        ("adapter_fingerprints", c_uint64 * 16),
        ("adapter_scales", c_float * 16),
    ]


class ember_grammar_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("json_spacing", c_uint32),
        ("interrupt", POINTER(c_uint32)),
    ]


class ember_speculation_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("source", c_uint32),
        ("max_drafts", c_uint32),
        ("always", c_uint32),
        ("min_match", c_uint32),
        ("reserved", c_uint32),
        ("draft_model", c_void_p),
    ]


class ember_speculation_details(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("source", c_uint32),
        ("max_drafts", c_uint32),
        ("depth", c_uint32),
        ("steps", c_uint64),
        ("drafted", c_uint64),
        ("accepted", c_uint64),
    ]


class ember_estimate(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("device", c_uint32),
        ("context", c_uint32),
        ("part_count", c_uint32),
        ("weights_bytes", c_uint64),
        ("kv_bytes_per_token", c_uint64),
        ("kv_bytes", c_uint64),
        ("model_workspace_bytes", c_uint64),
        ("session_workspace_bytes", c_uint64),
        ("device_layer_count", c_uint32),
        ("first_layer", c_uint32),
        ("host_weights_bytes", c_uint64),
        ("host_session_bytes", c_uint64),
        ("host_workspace_bytes", c_uint64),
        ("cpu_expert_layer_count", c_uint32),
        ("reserved", c_uint32),
    ]


class ember_profile_entry(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("calls", c_uint32),
        ("microseconds", c_double),
        ("bytes", c_uint64),
        ("name", c_char * 16),
    ]


class ember_tokenize_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("interrupt", POINTER(c_uint32)),
    ]


class ember_tokenizer_details(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("token_count", c_uint32),
        ("bos", c_uint32),
        ("eos", c_uint32),
        ("unknown", c_uint32),
        ("padding", c_uint32),
        ("adds_bos", c_uint32),
        ("adds_eos", c_uint32),
        ("end_token_count", c_uint32),
        ("reserved", c_uint32),
    ]


class ember_stop(Structure):
    _fields_ = [
        ("text", c_char_p),
        ("len", c_size_t),
    ]


class ember_text_stream_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("stops", POINTER(ember_stop)),
        ("stop_count", c_size_t),
    ]


class ember_text_stream_details(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("stopped", c_uint32),
        ("stop", c_uint32),
        ("reserved", c_uint32),
        ("token_count", c_uint64),
    ]


class ember_generate_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("max_tokens", c_uint64),
        ("prompt", POINTER(c_uint32)),
        ("prompt_count", c_size_t),
        ("stops", POINTER(ember_stop)),
        ("stop_count", c_size_t),
        ("piece", ember_piece_fn),
        ("user", c_void_p),
    ]


class ember_generate_details(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("end", c_uint32),
        ("stop", c_uint32),
        ("token", c_uint32),
        ("position", c_uint64),
        ("token_count", c_uint64),
        ("text_bytes", c_uint64),
    ]


class ember_embedder_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("pooling", c_uint32),
        ("normalize", c_uint32),
        ("dimension", c_uint32),
        ("max_tokens", c_uint32),
        ("batch_tokens", c_uint32),
        ("reserved", c_uint32),
        ("instruction", c_char_p),
        ("instruction_len", c_size_t),
        ("adapters", POINTER(ember_adapter_use)),
        ("adapter_count", c_size_t),
    ]


class ember_embedder_details(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("pooling", c_uint32),
        ("dimension", c_uint32),
        ("normalized", c_uint32),
        ("max_tokens", c_uint32),
        ("batch_tokens", c_uint32),
        ("memory_bytes", c_uint64),
    ]


class ember_text(Structure):
    _fields_ = [
        ("text", c_char_p),
        ("len", c_size_t),
    ]


class ember_adapter_details(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("rank", c_uint32),
        ("tensor_count", c_uint64),
        ("parameter_count", c_uint64),
        ("file_bytes", c_uint64),
        ("memory_bytes", c_uint64),
        ("fingerprint", c_uint64),
        ("name", c_char * 128),
    ]


class ember_chat_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("source", c_char_p),
        ("source_len", c_size_t),
        ("name", c_char_p),
        ("name_len", c_size_t),
        ("now", c_int64),
        ("interrupt", POINTER(c_uint32)),
        ("reserved2", c_size_t),
    ]


class ember_cuda_model_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("kind", c_uint32),
        ("next", c_void_p),
        ("context", c_void_p),
    ]


class ember_cuda_session_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("kind", c_uint32),
        ("next", c_void_p),
        ("stream_priority", c_int32),
        ("reserved", c_uint32),
    ]


NUMBERS: dict[str, int] = {"EMBER_OK": Status.OK, "EMBER_PENDING": Status.PENDING, "EMBER_INVALID_ARGUMENT": Status.INVALID_ARGUMENT, "EMBER_NULL_POINTER": Status.NULL_POINTER, "EMBER_INVALID_HANDLE": Status.INVALID_HANDLE, "EMBER_INVALID_UTF8": Status.INVALID_UTF8, "EMBER_BUSY": Status.BUSY, "EMBER_CANCELLED": Status.CANCELLED, "EMBER_INTERRUPTED": Status.INTERRUPTED, "EMBER_FILE_NOT_FOUND": Status.FILE_NOT_FOUND, "EMBER_NOT_A_FILE": Status.NOT_A_FILE, "EMBER_FILE_EMPTY": Status.FILE_EMPTY, "EMBER_IO": Status.IO, "EMBER_UNKNOWN_FORMAT": Status.UNKNOWN_FORMAT, "EMBER_FILE_TRUNCATED": Status.FILE_TRUNCATED, "EMBER_FILE_CORRUPT": Status.FILE_CORRUPT, "EMBER_UNSUPPORTED": Status.UNSUPPORTED, "EMBER_MISSING_KEY": Status.MISSING_KEY, "EMBER_MISSING_TENSOR": Status.MISSING_TENSOR, "EMBER_SHAPE_MISMATCH": Status.SHAPE_MISMATCH, "EMBER_INVALID_MODEL": Status.INVALID_MODEL, "EMBER_OUT_OF_MEMORY": Status.OUT_OF_MEMORY, "EMBER_CONTEXT_FULL": Status.CONTEXT_FULL, "EMBER_INVALID_TOKEN": Status.INVALID_TOKEN, "EMBER_NO_INPUT": Status.NO_INPUT, "EMBER_BUFFER_TOO_SMALL": Status.BUFFER_TOO_SMALL, "EMBER_NOTHING_PENDING": Status.NOTHING_PENDING, "EMBER_DECODE_PENDING": Status.DECODE_PENDING, "EMBER_NO_DEVICE": Status.NO_DEVICE, "EMBER_DEVICE_LOST": Status.DEVICE_LOST, "EMBER_NUMERIC": Status.NUMERIC, "EMBER_DEVICE_ERROR": Status.DEVICE_ERROR, "EMBER_INTERNAL": Status.INTERNAL, "EMBER_FORKED": Status.FORKED, "EMBER_GRAMMAR": Status.GRAMMAR, "EMBER_TEMPLATE_FAILED": Status.TEMPLATE_FAILED, "EMBER_NOT_STATE": Status.NOT_STATE, "EMBER_STATE_VERSION": Status.STATE_VERSION, "EMBER_STATE_FOREIGN": Status.STATE_FOREIGN, "EMBER_STATE_CHECKSUM": Status.STATE_CHECKSUM, "EMBER_LOG_ERROR": LogLevel.ERROR, "EMBER_LOG_WARN": LogLevel.WARN, "EMBER_LOG_INFO": LogLevel.INFO, "EMBER_LOG_DEBUG": LogLevel.DEBUG, "EMBER_DEVICE_CPU": DeviceKind.CPU, "EMBER_DEVICE_CUDA": DeviceKind.CUDA, "EMBER_CAN_CPU": Capability.CPU, "EMBER_CAN_CUDA": Capability.CUDA, "EMBER_CAN_GGUF": Capability.GGUF, "EMBER_CAN_SAFETENSORS": Capability.SAFETENSORS, "EMBER_CAN_CPU_KV_F16": Capability.CPU_KV_F16, "EMBER_CAN_CPU_KV_F32": Capability.CPU_KV_F32, "EMBER_CAN_CPU_KV_Q8_0": Capability.CPU_KV_Q8_0, "EMBER_CAN_CUDA_KV_F16": Capability.CUDA_KV_F16, "EMBER_CAN_CUDA_KV_F32": Capability.CUDA_KV_F32, "EMBER_CAN_CUDA_KV_Q8_0": Capability.CUDA_KV_Q8_0, "EMBER_SOURCE_BORROW": SourceFlags.BORROW, "EMBER_KV_DEFAULT": KvType.DEFAULT, "EMBER_KV_F16": KvType.F16, "EMBER_KV_F32": KvType.F32, "EMBER_KV_Q8_0": KvType.Q8_0, "EMBER_STATE_EVERYTHING": StateKind.EVERYTHING, "EMBER_STATE_TOKENS": StateKind.TOKENS, "EMBER_GRAMMAR_NONE": GrammarKind.NONE, "EMBER_GRAMMAR_JSON_SCHEMA": GrammarKind.JSON_SCHEMA, "EMBER_GRAMMAR_REGEX": GrammarKind.REGEX, "EMBER_GRAMMAR_LARK": GrammarKind.LARK, "EMBER_GRAMMAR_GBNF": GrammarKind.GBNF, "EMBER_JSON_SPACED": JsonSpacing.SPACED, "EMBER_JSON_COMPACT": JsonSpacing.COMPACT, "EMBER_JSON_FREE": JsonSpacing.FREE, "EMBER_DRAFTS_NONE": DraftSource.NONE, "EMBER_DRAFTS_NGRAM": DraftSource.NGRAM, "EMBER_DRAFTS_MODEL": DraftSource.MODEL, "EMBER_DRAFTS_HEADS": DraftSource.HEADS, "EMBER_WEIGHTS_KEEP": Weights.KEEP, "EMBER_WEIGHTS_Q8_0": Weights.Q8_0, "EMBER_WEIGHTS_Q4_K": Weights.Q4_K, "EMBER_WEIGHTS_Q6_K": Weights.Q6_K, "EMBER_WEIGHTS_Q4_K_M": Weights.Q4_K_M, "EMBER_FILES_MAPPED": Files.MAPPED, "EMBER_FILES_READ": Files.READ, "EMBER_SPLIT_LAYERS": Split.LAYERS, "EMBER_SPLIT_TENSORS": Split.TENSORS, "EMBER_TOKENIZE_CONTINUE": TokenizeFlags.CONTINUE, "EMBER_TOKENIZE_SPECIAL": TokenizeFlags.SPECIAL, "EMBER_DETOKENIZE_SKIP_SPECIAL": DetokenizeFlags.SKIP_SPECIAL, "EMBER_DETOKENIZE_CONTINUE": DetokenizeFlags.CONTINUE, "EMBER_TEXT_STREAM_SKIP_SPECIAL": TextStreamFlags.SKIP_SPECIAL, "EMBER_EMBEDDER_TRUNCATE": EmbedderFlags.TRUNCATE, "EMBER_ADAPTERS_KEEP": AdaptersFlags.KEEP, "EMBER_NORMALIZE_DEFAULT": Normalize.DEFAULT, "EMBER_NORMALIZE_ON": Normalize.ON, "EMBER_NORMALIZE_OFF": Normalize.OFF, "EMBER_POOLING_DEFAULT": Pooling.DEFAULT, "EMBER_POOLING_MEAN": Pooling.MEAN, "EMBER_POOLING_FIRST": Pooling.FIRST, "EMBER_POOLING_LAST": Pooling.LAST, "EMBER_POOLING_NONE": Pooling.NONE, "EMBER_POOLING_SCORE": Pooling.SCORE, "EMBER_GENERATE_SHOW_SPECIAL": GenerateFlags.SHOW_SPECIAL, "EMBER_GENERATE_IGNORE_END": GenerateFlags.IGNORE_END, "EMBER_GENERATE_NEW_TEXT": GenerateFlags.NEW_TEXT, "EMBER_NEXT_NO_WAIT": NextFlags.NO_WAIT, "EMBER_CHAIN_CUDA_MODEL": ChainKind.CUDA_MODEL, "EMBER_CHAIN_CUDA_SESSION": ChainKind.CUDA_SESSION, "EMBER_TOKEN_ENDS": TokenFlags.ENDS, "EMBER_TOKEN_FORCED": TokenFlags.FORCED, "EMBER_TOKEN_HAS_LOGPROB": TokenFlags.HAS_LOGPROB, "EMBER_TOKEN_DRAFTED": TokenFlags.DRAFTED, "EMBER_MODEL_NEVER_WAIT": ModelFlags.NEVER_WAIT, "EMBER_MODEL_DRAFT_HEADS": ModelFlags.DRAFT_HEADS, "EMBER_MODEL_F16_BATCHES": ModelFlags.F16_BATCHES, "EMBER_END_LIMIT": GenerateEnd.LIMIT, "EMBER_END_TOKEN": GenerateEnd.TOKEN, "EMBER_END_STOP": GenerateEnd.STOP, "EMBER_END_CALLBACK": GenerateEnd.CALLBACK, "EMBER_END_INTERRUPTED": GenerateEnd.INTERRUPTED, "EMBER_END_CONTEXT_FULL": GenerateEnd.CONTEXT_FULL}
STRUCTS: tuple[type[Structure], ...] = (ember_error, ember_device_details, ember_group_options, ember_model_options, ember_model_details, ember_part_details, ember_model_source, ember_logit_bias, ember_dry_breaker, ember_sampling_options, ember_session_options, ember_session_details, ember_token, ember_save_options, ember_adapter_use, ember_restore_options, ember_state_details, ember_grammar_options, ember_speculation_options, ember_speculation_details, ember_estimate, ember_profile_entry, ember_tokenize_options, ember_tokenizer_details, ember_stop, ember_text_stream_options, ember_text_stream_details, ember_generate_options, ember_generate_details, ember_embedder_options, ember_embedder_details, ember_text, ember_adapter_details, ember_chat_options, ember_cuda_model_options, ember_cuda_session_options)


def declare(library: Any) -> None:
    """Sets the types of all functions."""
    library.ember_abi_version.restype = c_uint32
    library.ember_abi_version.argtypes = []
    library.ember_version.restype = c_char_p
    library.ember_version.argtypes = []
    library.ember_version_number.restype = c_uint32
    library.ember_version_number.argtypes = []
    library.ember_status_name.restype = c_char_p
    library.ember_status_name.argtypes = [c_int32]
    library.ember_set_log_callback.restype = c_int32
    library.ember_set_log_callback.argtypes = [ember_log_fn, c_void_p, c_int32, POINTER(ember_error)]
    library.ember_device_count.restype = c_int32
    library.ember_device_count.argtypes = [POINTER(c_uint32), POINTER(ember_error)]
    library.ember_device_info.restype = c_int32
    library.ember_device_info.argtypes = [c_uint32, POINTER(ember_device_details), POINTER(ember_error)]
    library.ember_supported.restype = c_uint32
    library.ember_supported.argtypes = [c_uint32]
    library.ember_group_create.restype = c_int32
    library.ember_group_create.argtypes = [POINTER(ember_group_options), POINTER(c_void_p), POINTER(ember_error)]
    library.ember_group_id.restype = c_int32
    library.ember_group_id.argtypes = [c_void_p, c_char_p, c_size_t, POINTER(c_size_t), POINTER(ember_error)]
    library.ember_group_free.restype = c_int32
    library.ember_group_free.argtypes = [c_void_p]
    library.ember_model_load.restype = c_int32
    library.ember_model_load.argtypes = [c_char_p, c_size_t, POINTER(ember_model_options), POINTER(c_void_p), POINTER(ember_error)]
    library.ember_model_info.restype = c_int32
    library.ember_model_info.argtypes = [c_void_p, POINTER(ember_model_details), POINTER(ember_error)]
    library.ember_model_part_info.restype = c_int32
    library.ember_model_part_info.argtypes = [c_void_p, c_size_t, POINTER(ember_part_details), POINTER(ember_error)]
    library.ember_model_free.restype = c_int32
    library.ember_model_free.argtypes = [c_void_p]
    library.ember_model_load_from.restype = c_int32
    library.ember_model_load_from.argtypes = [POINTER(ember_model_source), POINTER(ember_model_options), POINTER(c_void_p), POINTER(ember_error)]
    library.ember_model_metadata.restype = c_int32
    library.ember_model_metadata.argtypes = [c_void_p, c_char_p, c_size_t, c_char_p, c_size_t, POINTER(c_size_t), POINTER(ember_error)]
    library.ember_model_metadata_key.restype = c_int32
    library.ember_model_metadata_key.argtypes = [c_void_p, c_size_t, c_char_p, c_size_t, POINTER(c_size_t), POINTER(ember_error)]
    library.ember_session_set_sampling.restype = c_int32
    library.ember_session_set_sampling.argtypes = [c_void_p, POINTER(ember_sampling_options), POINTER(ember_error)]
    library.ember_session_logprobs.restype = c_int32
    library.ember_session_logprobs.argtypes = [c_void_p, POINTER(c_float), POINTER(c_uint32), POINTER(c_float), c_size_t, POINTER(c_size_t), POINTER(ember_error)]
    library.ember_session_create.restype = c_int32
    library.ember_session_create.argtypes = [c_void_p, POINTER(ember_session_options), POINTER(c_void_p), POINTER(ember_error)]
    library.ember_session_info.restype = c_int32
    library.ember_session_info.argtypes = [c_void_p, POINTER(ember_session_details), POINTER(ember_error)]
    library.ember_session_model.restype = c_int32
    library.ember_session_model.argtypes = [c_void_p, POINTER(c_void_p), POINTER(ember_error)]
    library.ember_session_position.restype = c_int32
    library.ember_session_position.argtypes = [c_void_p, POINTER(c_size_t), POINTER(ember_error)]
    library.ember_session_rewind.restype = c_int32
    library.ember_session_rewind.argtypes = [c_void_p, c_size_t, POINTER(ember_error)]
    library.ember_session_fork.restype = c_int32
    library.ember_session_fork.argtypes = [c_void_p, POINTER(c_void_p), POINTER(ember_error)]
    library.ember_session_logits.restype = c_int32
    library.ember_session_logits.argtypes = [c_void_p, POINTER(c_float), c_size_t, POINTER(ember_error)]
    library.ember_session_interrupt.restype = c_int32
    library.ember_session_interrupt.argtypes = [c_void_p]
    library.ember_session_clear_interrupt.restype = c_int32
    library.ember_session_clear_interrupt.argtypes = [c_void_p]
    library.ember_session_free.restype = c_int32
    library.ember_session_free.argtypes = [c_void_p]
    library.ember_session_tokens.restype = c_int32
    library.ember_session_tokens.argtypes = [c_void_p, c_size_t, POINTER(c_uint32), c_size_t, POINTER(c_size_t), POINTER(ember_error)]
    library.ember_session_sync.restype = c_int32
    library.ember_session_sync.argtypes = [c_void_p, POINTER(c_uint32), c_size_t, POINTER(c_size_t), POINTER(ember_error)]
    library.ember_event_create.restype = c_int32
    library.ember_event_create.argtypes = [POINTER(c_void_p), POINTER(ember_error)]
    library.ember_event_handle.restype = c_int32
    library.ember_event_handle.argtypes = [c_void_p, POINTER(c_int64), POINTER(ember_error)]
    library.ember_event_clear.restype = c_int32
    library.ember_event_clear.argtypes = [c_void_p, POINTER(ember_error)]
    library.ember_event_free.restype = c_int32
    library.ember_event_free.argtypes = [c_void_p]
    library.ember_session_set_event.restype = c_int32
    library.ember_session_set_event.argtypes = [c_void_p, c_void_p, POINTER(ember_error)]
    library.ember_model_load_start.restype = c_int32
    library.ember_model_load_start.argtypes = [c_char_p, c_size_t, POINTER(ember_model_options), c_void_p, POINTER(c_void_p), POINTER(ember_error)]
    library.ember_load_poll.restype = c_int32
    library.ember_load_poll.argtypes = [c_void_p, POINTER(c_float), POINTER(c_void_p), POINTER(ember_error)]
    library.ember_load_cancel.restype = c_int32
    library.ember_load_cancel.argtypes = [c_void_p]
    library.ember_load_free.restype = c_int32
    library.ember_load_free.argtypes = [c_void_p]
    library.ember_prefill.restype = c_int32
    library.ember_prefill.argtypes = [c_void_p, POINTER(c_uint32), c_size_t, POINTER(ember_error)]
    library.ember_prefill_start.restype = c_int32
    library.ember_prefill_start.argtypes = [c_void_p, POINTER(c_uint32), c_size_t, POINTER(ember_error)]
    library.ember_prefill_poll.restype = c_int32
    library.ember_prefill_poll.argtypes = [c_void_p, POINTER(c_size_t), POINTER(ember_error)]
    library.ember_decode.restype = c_int32
    library.ember_decode.argtypes = [c_void_p, POINTER(ember_token), POINTER(ember_error)]
    library.ember_decode_start.restype = c_int32
    library.ember_decode_start.argtypes = [c_void_p, POINTER(ember_error)]
    library.ember_decode_start_n.restype = c_int32
    library.ember_decode_start_n.argtypes = [c_void_p, c_size_t, POINTER(ember_error)]
    library.ember_decode_poll.restype = c_int32
    library.ember_decode_poll.argtypes = [c_void_p, POINTER(ember_token), POINTER(ember_error)]
    library.ember_decode_batch.restype = c_int32
    library.ember_decode_batch.argtypes = [POINTER(c_void_p), c_size_t, POINTER(ember_token), POINTER(ember_error)]
    library.ember_decode_batch_start.restype = c_int32
    library.ember_decode_batch_start.argtypes = [POINTER(c_void_p), c_size_t, POINTER(ember_error)]
    library.ember_session_save.restype = c_int32
    library.ember_session_save.argtypes = [c_void_p, c_char_p, c_size_t, POINTER(ember_save_options), POINTER(ember_error)]
    library.ember_session_save_to.restype = c_int32
    library.ember_session_save_to.argtypes = [c_void_p, ember_write_fn, c_void_p, POINTER(ember_save_options), POINTER(ember_error)]
    library.ember_session_restore.restype = c_int32
    library.ember_session_restore.argtypes = [c_void_p, c_char_p, c_size_t, POINTER(ember_restore_options), POINTER(c_void_p), POINTER(ember_error)]
    library.ember_session_restore_from.restype = c_int32
    library.ember_session_restore_from.argtypes = [c_void_p, ember_read_fn, c_void_p, POINTER(ember_restore_options), POINTER(c_void_p), POINTER(ember_error)]
    library.ember_session_state_info.restype = c_int32
    library.ember_session_state_info.argtypes = [c_char_p, c_size_t, POINTER(ember_state_details), POINTER(ember_error)]
    library.ember_session_erase.restype = c_int32
    library.ember_session_erase.argtypes = [c_void_p, c_size_t, c_size_t, POINTER(ember_error)]
    library.ember_session_evict.restype = c_int32
    library.ember_session_evict.argtypes = [c_void_p, POINTER(ember_error)]
    library.ember_session_resume.restype = c_int32
    library.ember_session_resume.argtypes = [c_void_p, POINTER(ember_error)]
    library.ember_model_evict.restype = c_int32
    library.ember_model_evict.argtypes = [c_void_p, POINTER(ember_error)]
    library.ember_model_resume.restype = c_int32
    library.ember_model_resume.argtypes = [c_void_p, POINTER(ember_error)]
    library.ember_session_set_grammar.restype = c_int32
    library.ember_session_set_grammar.argtypes = [c_void_p, c_uint32, c_char_p, c_size_t, POINTER(ember_grammar_options), POINTER(ember_error)]
    library.ember_session_set_speculation.restype = c_int32
    library.ember_session_set_speculation.argtypes = [c_void_p, POINTER(ember_speculation_options), POINTER(ember_error)]
    library.ember_session_speculation_info.restype = c_int32
    library.ember_session_speculation_info.argtypes = [c_void_p, POINTER(ember_speculation_details), POINTER(ember_error)]
    library.ember_model_estimate.restype = c_int32
    library.ember_model_estimate.argtypes = [c_char_p, c_size_t, POINTER(ember_model_options), POINTER(ember_session_options), POINTER(ember_estimate), POINTER(ember_error)]
    library.ember_model_estimate_part.restype = c_int32
    library.ember_model_estimate_part.argtypes = [c_char_p, c_size_t, POINTER(ember_model_options), POINTER(ember_session_options), c_size_t, POINTER(ember_estimate), POINTER(ember_error)]
    library.ember_session_profile.restype = c_int32
    library.ember_session_profile.argtypes = [c_void_p, POINTER(ember_profile_entry), c_size_t, POINTER(c_size_t), POINTER(ember_error)]
    library.ember_tokenize.restype = c_int32
    library.ember_tokenize.argtypes = [c_void_p, c_char_p, c_size_t, c_uint32, POINTER(c_uint32), c_size_t, POINTER(c_size_t), POINTER(ember_error)]
    library.ember_tokenize_with.restype = c_int32
    library.ember_tokenize_with.argtypes = [c_void_p, c_char_p, c_size_t, POINTER(ember_tokenize_options), POINTER(c_uint32), c_size_t, POINTER(c_size_t), POINTER(ember_error)]
    library.ember_detokenize.restype = c_int32
    library.ember_detokenize.argtypes = [c_void_p, POINTER(c_uint32), c_size_t, c_uint32, c_char_p, c_size_t, POINTER(c_size_t), POINTER(ember_error)]
    library.ember_token_text.restype = c_int32
    library.ember_token_text.argtypes = [c_void_p, c_uint32, c_char_p, c_size_t, POINTER(c_size_t), POINTER(ember_error)]
    library.ember_token_is_end.restype = c_int32
    library.ember_token_is_end.argtypes = [c_void_p, c_uint32, POINTER(c_uint32), POINTER(ember_error)]
    library.ember_tokenizer_info.restype = c_int32
    library.ember_tokenizer_info.argtypes = [c_void_p, POINTER(ember_tokenizer_details), POINTER(ember_error)]
    library.ember_end_tokens.restype = c_int32
    library.ember_end_tokens.argtypes = [c_void_p, POINTER(c_uint32), c_size_t, POINTER(c_size_t), POINTER(ember_error)]
    library.ember_text_stream_create.restype = c_int32
    library.ember_text_stream_create.argtypes = [c_void_p, POINTER(ember_text_stream_options), POINTER(c_void_p), POINTER(ember_error)]
    library.ember_text_stream_push.restype = c_int32
    library.ember_text_stream_push.argtypes = [c_void_p, POINTER(c_uint32), c_size_t, c_char_p, c_size_t, POINTER(c_size_t), POINTER(ember_error)]
    library.ember_text_stream_finish.restype = c_int32
    library.ember_text_stream_finish.argtypes = [c_void_p, c_char_p, c_size_t, POINTER(c_size_t), POINTER(ember_error)]
    library.ember_text_stream_info.restype = c_int32
    library.ember_text_stream_info.argtypes = [c_void_p, POINTER(ember_text_stream_details), POINTER(ember_error)]
    library.ember_text_stream_free.restype = c_int32
    library.ember_text_stream_free.argtypes = [c_void_p]
    library.ember_generate.restype = c_int32
    library.ember_generate.argtypes = [c_void_p, POINTER(ember_generate_options), POINTER(ember_generate_details), POINTER(ember_error)]
    library.ember_generate_start.restype = c_int32
    library.ember_generate_start.argtypes = [c_void_p, POINTER(ember_generate_options), POINTER(ember_error)]
    library.ember_generate_next.restype = c_int32
    library.ember_generate_next.argtypes = [c_void_p, c_uint32, c_char_p, c_size_t, POINTER(c_size_t), POINTER(ember_token), POINTER(ember_error)]
    library.ember_generate_finish.restype = c_int32
    library.ember_generate_finish.argtypes = [c_void_p, POINTER(ember_generate_details), POINTER(ember_error)]
    library.ember_embedder_create.restype = c_int32
    library.ember_embedder_create.argtypes = [c_void_p, POINTER(ember_embedder_options), POINTER(c_void_p), POINTER(ember_error)]
    library.ember_embedder_info.restype = c_int32
    library.ember_embedder_info.argtypes = [c_void_p, POINTER(ember_embedder_details), POINTER(ember_error)]
    library.ember_embed.restype = c_int32
    library.ember_embed.argtypes = [c_void_p, POINTER(ember_text), c_size_t, POINTER(c_float), c_size_t, POINTER(c_size_t), POINTER(ember_error)]
    library.ember_embed_tokens.restype = c_int32
    library.ember_embed_tokens.argtypes = [c_void_p, POINTER(c_uint32), c_size_t, POINTER(c_size_t), c_size_t, POINTER(c_float), c_size_t, POINTER(c_size_t), POINTER(ember_error)]
    library.ember_rerank.restype = c_int32
    library.ember_rerank.argtypes = [c_void_p, c_char_p, c_size_t, POINTER(ember_text), c_size_t, POINTER(c_float), c_size_t, POINTER(c_size_t), POINTER(ember_error)]
    library.ember_embedder_interrupt.restype = c_int32
    library.ember_embedder_interrupt.argtypes = [c_void_p]
    library.ember_embedder_free.restype = c_int32
    library.ember_embedder_free.argtypes = [c_void_p]
    library.ember_adapter_load.restype = c_int32
    library.ember_adapter_load.argtypes = [c_void_p, c_char_p, c_size_t, POINTER(c_void_p), POINTER(ember_error)]
    library.ember_adapter_info.restype = c_int32
    library.ember_adapter_info.argtypes = [c_void_p, POINTER(ember_adapter_details), POINTER(ember_error)]
    library.ember_adapter_free.restype = c_int32
    library.ember_adapter_free.argtypes = [c_void_p]
    library.ember_session_set_adapters.restype = c_int32
    library.ember_session_set_adapters.argtypes = [c_void_p, POINTER(ember_adapter_use), c_size_t, c_uint32, POINTER(ember_error)]
    library.ember_chat_format.restype = c_int32
    library.ember_chat_format.argtypes = [c_void_p, c_char_p, c_size_t, POINTER(ember_chat_options), c_char_p, c_size_t, POINTER(c_size_t), POINTER(ember_error)]
    library.ember_chat_tokenize.restype = c_int32
    library.ember_chat_tokenize.argtypes = [c_void_p, c_char_p, c_size_t, POINTER(ember_chat_options), POINTER(c_uint32), c_size_t, POINTER(c_size_t), POINTER(ember_error)]
