// Generated from include/emberlm.h by bindings/common/generate.py (`make bindings`). Do not edit.
'use strict';

const koffi = require('koffi');

const constants = Object.freeze({
  EMBER_ABI_VERSION: 1,
  EMBER_VERSION_NUMBER: 1000,
  EMBER_NO_INDEX: 4294967295,
  EMBER_NO_TOKEN: 4294967295,
  // enum ember_status_code
  EMBER_OK: 0,
  EMBER_PENDING: 1,
  EMBER_INVALID_ARGUMENT: 2,
  EMBER_NULL_POINTER: 3,
  EMBER_INVALID_HANDLE: 4,
  EMBER_INVALID_UTF8: 5,
  EMBER_BUSY: 6,
  EMBER_CANCELLED: 7,
  EMBER_INTERRUPTED: 8,
  EMBER_FILE_NOT_FOUND: 9,
  EMBER_NOT_A_FILE: 10,
  EMBER_FILE_EMPTY: 11,
  EMBER_IO: 12,
  EMBER_UNKNOWN_FORMAT: 13,
  EMBER_FILE_TRUNCATED: 14,
  EMBER_FILE_CORRUPT: 15,
  EMBER_UNSUPPORTED: 16,
  EMBER_MISSING_KEY: 17,
  EMBER_MISSING_TENSOR: 18,
  EMBER_SHAPE_MISMATCH: 19,
  EMBER_INVALID_MODEL: 20,
  EMBER_OUT_OF_MEMORY: 21,
  EMBER_CONTEXT_FULL: 22,
  EMBER_INVALID_TOKEN: 23,
  EMBER_NO_INPUT: 24,
  EMBER_BUFFER_TOO_SMALL: 25,
  EMBER_NOTHING_PENDING: 26,
  EMBER_DECODE_PENDING: 27,
  EMBER_NO_DEVICE: 28,
  EMBER_DEVICE_LOST: 29,
  EMBER_NUMERIC: 30,
  EMBER_DEVICE_ERROR: 31,
  EMBER_INTERNAL: 32,
  EMBER_FORKED: 33,
  EMBER_GRAMMAR: 34,
  EMBER_TEMPLATE_FAILED: 35,
  EMBER_NOT_STATE: 36,
  EMBER_STATE_VERSION: 37,
  EMBER_STATE_FOREIGN: 38,
  EMBER_STATE_CHECKSUM: 39,
  // enum ember_log_level
  EMBER_LOG_ERROR: 1,
  EMBER_LOG_WARN: 2,
  EMBER_LOG_INFO: 3,
  EMBER_LOG_DEBUG: 4,
  // enum ember_device_kind
  EMBER_DEVICE_CPU: 1,
  EMBER_DEVICE_CUDA: 2,
  // enum ember_capability
  EMBER_CAN_CPU: 1,
  EMBER_CAN_CUDA: 2,
  EMBER_CAN_GGUF: 16,
  EMBER_CAN_SAFETENSORS: 17,
  EMBER_CAN_CPU_KV_F16: 32,
  EMBER_CAN_CPU_KV_F32: 33,
  EMBER_CAN_CPU_KV_Q8_0: 34,
  EMBER_CAN_CUDA_KV_F16: 48,
  EMBER_CAN_CUDA_KV_F32: 49,
  EMBER_CAN_CUDA_KV_Q8_0: 50,
  // enum ember_source_flags
  EMBER_SOURCE_BORROW: 1,
  // enum ember_kv_type
  EMBER_KV_DEFAULT: 0,
  EMBER_KV_F16: 1,
  EMBER_KV_F32: 2,
  EMBER_KV_Q8_0: 3,
  // enum ember_state_kind
  EMBER_STATE_EVERYTHING: 0,
  EMBER_STATE_TOKENS: 1,
  // enum ember_grammar_kind
  EMBER_GRAMMAR_NONE: 0,
  EMBER_GRAMMAR_JSON_SCHEMA: 1,
  EMBER_GRAMMAR_REGEX: 2,
  EMBER_GRAMMAR_LARK: 3,
  EMBER_GRAMMAR_GBNF: 4,
  // enum ember_json_spacing
  EMBER_JSON_SPACED: 0,
  EMBER_JSON_COMPACT: 1,
  EMBER_JSON_FREE: 2,
  // enum ember_draft_source
  EMBER_DRAFTS_NONE: 0,
  EMBER_DRAFTS_NGRAM: 1,
  EMBER_DRAFTS_MODEL: 2,
  EMBER_DRAFTS_HEADS: 3,
  // enum ember_weights
  EMBER_WEIGHTS_KEEP: 0,
  EMBER_WEIGHTS_Q8_0: 1,
  EMBER_WEIGHTS_Q4_K: 2,
  EMBER_WEIGHTS_Q6_K: 3,
  EMBER_WEIGHTS_Q4_K_M: 4,
  // enum ember_files
  EMBER_FILES_MAPPED: 0,
  EMBER_FILES_READ: 1,
  // enum ember_split
  EMBER_SPLIT_LAYERS: 0,
  EMBER_SPLIT_TENSORS: 1,
  // enum ember_tokenize_flags
  EMBER_TOKENIZE_CONTINUE: 1,
  EMBER_TOKENIZE_SPECIAL: 2,
  // enum ember_detokenize_flags
  EMBER_DETOKENIZE_SKIP_SPECIAL: 1,
  EMBER_DETOKENIZE_CONTINUE: 2,
  // enum ember_text_stream_flags
  EMBER_TEXT_STREAM_SKIP_SPECIAL: 1,
  // enum ember_embedder_flags
  EMBER_EMBEDDER_TRUNCATE: 1,
  // enum ember_adapters_flags
  EMBER_ADAPTERS_KEEP: 1,
  // enum ember_normalize
  EMBER_NORMALIZE_DEFAULT: 0,
  EMBER_NORMALIZE_ON: 1,
  EMBER_NORMALIZE_OFF: 2,
  // enum ember_pooling
  EMBER_POOLING_DEFAULT: 0,
  EMBER_POOLING_MEAN: 1,
  EMBER_POOLING_FIRST: 2,
  EMBER_POOLING_LAST: 3,
  EMBER_POOLING_NONE: 4,
  EMBER_POOLING_SCORE: 5,
  // enum ember_generate_flags
  EMBER_GENERATE_SHOW_SPECIAL: 1,
  EMBER_GENERATE_IGNORE_END: 2,
  EMBER_GENERATE_NEW_TEXT: 4,
  // enum ember_next_flags
  EMBER_NEXT_NO_WAIT: 1,
  // enum ember_chain_kind
  EMBER_CHAIN_CUDA_MODEL: 1,
  EMBER_CHAIN_CUDA_SESSION: 2,
  // enum ember_token_flags
  EMBER_TOKEN_ENDS: 1,
  EMBER_TOKEN_FORCED: 2,
  EMBER_TOKEN_HAS_LOGPROB: 4,
  EMBER_TOKEN_DRAFTED: 8,
  // enum ember_model_flags
  EMBER_MODEL_NEVER_WAIT: 1,
  EMBER_MODEL_DRAFT_HEADS: 2,
  EMBER_MODEL_F16_BATCHES: 4,
  // enum ember_generate_end
  EMBER_END_LIMIT: 1,
  EMBER_END_TOKEN: 2,
  EMBER_END_STOP: 3,
  EMBER_END_CALLBACK: 4,
  EMBER_END_INTERRUPTED: 5,
  EMBER_END_CONTEXT_FULL: 6,
});

koffi.proto('ember_log_fn', 'void', ['void *', 'int32_t', 'void *', 'size_t']);
koffi.proto('ember_progress_fn', 'int32_t', ['void *', 'float']);
koffi.proto('ember_free_fn', 'void', ['void *']);
koffi.proto('ember_release_fn', 'void', ['void *', 'void *', 'uint64_t']);
koffi.proto('ember_read_at_fn', 'int32_t', ['void *', 'uint64_t', 'void *', 'size_t']);
koffi.proto('ember_write_fn', 'int32_t', ['void *', 'void *', 'size_t']);
koffi.proto('ember_read_fn', 'int32_t', ['void *', 'void *', 'size_t', 'size_t *']);
koffi.proto('ember_piece_fn', 'int32_t', ['void *', 'void *', 'size_t', 'void *']);

const structs = {};
structs.ember_error = koffi.struct('ember_error', {
  code: 'int32_t',
  index: 'uint32_t',
  message: koffi.array('char', 1016),
});
structs.ember_device_details = koffi.struct('ember_device_details', {
  struct_size: 'uint32_t',
  kind: 'uint32_t',
  usable: 'uint32_t',
  cores: 'uint32_t',
  memory_total: 'uint64_t',
  memory_free: 'uint64_t',
  name: koffi.array('char', 128),
  driver: koffi.array('char', 32),
  isa: koffi.array('char', 32),
  reason: koffi.array('char', 256),
});
structs.ember_group_options = koffi.struct('ember_group_options', {
  struct_size: 'uint32_t',
  rank: 'uint32_t',
  rank_count: 'uint32_t',
  timeout_ms: 'uint32_t',
  address: 'void *',
  address_len: 'size_t',
  id: 'void *',
  id_len: 'size_t',
});
structs.ember_model_options = koffi.struct('ember_model_options', {
  struct_size: 'uint32_t',
  device: 'uint32_t',
  threads: 'uint32_t',
  weights: 'uint32_t',
  files: 'uint32_t',
  flags: 'uint32_t',
  split: 'uint32_t',
  cpu_expert_layers: 'uint32_t',
  thread_priority: 'int32_t',
  log_level: 'int32_t',
  memory_limit: 'uint64_t',
  session_memory_limit: 'uint64_t',
  progress: koffi.pointer('ember_progress_fn'),
  user: 'void *',
  cpus: 'uint32_t *',
  cpu_count: 'size_t',
  devices: 'uint32_t *',
  device_count: 'size_t',
  device_layers: 'uint32_t *',
  group: 'uintptr_t',
  log_callback: koffi.pointer('ember_log_fn'),
  log_user: 'void *',
  log_release: koffi.pointer('ember_free_fn'),
  next: 'void *',
});
structs.ember_model_details = koffi.struct('ember_model_details', {
  struct_size: 'uint32_t',
  device: 'uint32_t',
  vocab_size: 'uint32_t',
  context_length: 'uint32_t',
  layer_count: 'uint32_t',
  hidden_size: 'uint32_t',
  has_tokenizer: 'uint32_t',
  metadata_count: 'uint32_t',
  parameter_count: 'uint64_t',
  file_bytes: 'uint64_t',
  resident_bytes: 'uint64_t',
  kv_bytes_per_token: 'uint64_t',
  architecture: koffi.array('char', 32),
  quantization: koffi.array('char', 32),
  name: koffi.array('char', 128),
  max_batch: 'uint32_t',
  device_layer_count: 'uint32_t',
  memory_bytes: 'uint64_t',
  session_memory_bytes: 'uint64_t',
  part_count: 'uint32_t',
  cpu_expert_layer_count: 'uint32_t',
});
structs.ember_part_details = koffi.struct('ember_part_details', {
  struct_size: 'uint32_t',
  device: 'uint32_t',
  first_layer: 'uint32_t',
  layer_count: 'uint32_t',
  memory_bytes: 'uint64_t',
  session_memory_bytes: 'uint64_t',
});
structs.ember_model_source = koffi.struct('ember_model_source', {
  struct_size: 'uint32_t',
  flags: 'uint32_t',
  size: 'uint64_t',
  bytes: 'void *',
  release: koffi.pointer('ember_release_fn'),
  read: koffi.pointer('ember_read_at_fn'),
  user: 'void *',
});
structs.ember_logit_bias = koffi.struct('ember_logit_bias', {
  token: 'uint32_t',
  bias: 'float',
});
structs.ember_dry_breaker = koffi.struct('ember_dry_breaker', {
  text: 'void *',
  text_len: 'size_t',
  tokens: 'uint32_t *',
  token_count: 'size_t',
});
structs.ember_sampling_options = koffi.struct('ember_sampling_options', {
  struct_size: 'uint32_t',
  top_k: 'uint32_t',
  temperature: 'float',
  top_p: 'float',
  min_p: 'float',
  typical_p: 'float',
  penalty_window: 'uint32_t',
  repeat_penalty: 'float',
  presence_penalty: 'float',
  frequency_penalty: 'float',
  dry_multiplier: 'float',
  dry_base: 'float',
  dry_allowed_length: 'uint32_t',
  dry_window: 'uint32_t',
  dry_no_breakers: 'uint32_t',
  logprobs: 'uint32_t',
  seed: 'uint64_t',
  logit_bias: 'ember_logit_bias *',
  logit_bias_count: 'size_t',
  banned: 'uint32_t *',
  banned_count: 'size_t',
  allowed: 'uint32_t *',
  allowed_count: 'size_t',
  dry_breakers: 'ember_dry_breaker *',
  dry_breaker_count: 'size_t',
});
structs.ember_session_options = koffi.struct('ember_session_options', {
  struct_size: 'uint32_t',
  context: 'uint32_t',
  kv_type: 'uint32_t',
  mark_interval: 'uint32_t',
  sampling: 'ember_sampling_options *',
  next: 'void *',
});
structs.ember_session_details = koffi.struct('ember_session_details', {
  struct_size: 'uint32_t',
  vocab_size: 'uint32_t',
  context: 'uint64_t',
  position: 'uint64_t',
  kv_bytes: 'uint64_t',
});
structs.ember_token = koffi.struct('ember_token', {
  struct_size: 'uint32_t',
  id: 'uint32_t',
  flags: 'uint32_t',
  status: 'int32_t',
  logprob: 'float',
  reserved: 'uint32_t',
});
structs.ember_save_options = koffi.struct('ember_save_options', {
  struct_size: 'uint32_t',
  kind: 'uint32_t',
});
structs.ember_adapter_use = koffi.struct('ember_adapter_use', {
  adapter: 'uintptr_t',
  scale: 'float',
  reserved: 'uint32_t',
});
structs.ember_restore_options = koffi.struct('ember_restore_options', {
  struct_size: 'uint32_t',
  context: 'uint32_t',
  kv_type: 'uint32_t',
  mark_interval: 'uint32_t',
  next: 'void *',
  adapters: 'ember_adapter_use *',
  adapter_count: 'size_t',
});
structs.ember_state_details = koffi.struct('ember_state_details', {
  struct_size: 'uint32_t',
  version: 'uint32_t',
  kind: 'uint32_t',
  kv_type: 'uint32_t',
  context: 'uint64_t',
  position: 'uint64_t',
  file_bytes: 'uint64_t',
  model_fingerprint: 'uint64_t',
  tokenizer_fingerprint: 'uint64_t',
  architecture: koffi.array('char', 64),
  model_name: koffi.array('char', 128),
  adapter_count: 'uint32_t',
  reserved: 'uint32_t',
  adapter_fingerprints: koffi.array('uint64_t', 16),
  adapter_scales: koffi.array('float', 16),
});
structs.ember_grammar_options = koffi.struct('ember_grammar_options', {
  struct_size: 'uint32_t',
  json_spacing: 'uint32_t',
  interrupt: 'uint32_t *',
});
structs.ember_speculation_options = koffi.struct('ember_speculation_options', {
  struct_size: 'uint32_t',
  source: 'uint32_t',
  max_drafts: 'uint32_t',
  always: 'uint32_t',
  min_match: 'uint32_t',
  reserved: 'uint32_t',
  draft_model: 'uintptr_t',
});
structs.ember_speculation_details = koffi.struct('ember_speculation_details', {
  struct_size: 'uint32_t',
  source: 'uint32_t',
  max_drafts: 'uint32_t',
  depth: 'uint32_t',
  steps: 'uint64_t',
  drafted: 'uint64_t',
  accepted: 'uint64_t',
});
structs.ember_estimate = koffi.struct('ember_estimate', {
  struct_size: 'uint32_t',
  device: 'uint32_t',
  context: 'uint32_t',
  part_count: 'uint32_t',
  weights_bytes: 'uint64_t',
  kv_bytes_per_token: 'uint64_t',
  kv_bytes: 'uint64_t',
  model_workspace_bytes: 'uint64_t',
  session_workspace_bytes: 'uint64_t',
  device_layer_count: 'uint32_t',
  first_layer: 'uint32_t',
  host_weights_bytes: 'uint64_t',
  host_session_bytes: 'uint64_t',
  host_workspace_bytes: 'uint64_t',
  cpu_expert_layer_count: 'uint32_t',
  reserved: 'uint32_t',
});
structs.ember_profile_entry = koffi.struct('ember_profile_entry', {
  struct_size: 'uint32_t',
  calls: 'uint32_t',
  microseconds: 'double',
  bytes: 'uint64_t',
  name: koffi.array('char', 16),
});
structs.ember_tokenize_options = koffi.struct('ember_tokenize_options', {
  struct_size: 'uint32_t',
  flags: 'uint32_t',
  interrupt: 'uint32_t *',
});
structs.ember_tokenizer_details = koffi.struct('ember_tokenizer_details', {
  struct_size: 'uint32_t',
  token_count: 'uint32_t',
  bos: 'uint32_t',
  eos: 'uint32_t',
  unknown: 'uint32_t',
  padding: 'uint32_t',
  adds_bos: 'uint32_t',
  adds_eos: 'uint32_t',
  end_token_count: 'uint32_t',
  reserved: 'uint32_t',
});
structs.ember_stop = koffi.struct('ember_stop', {
  text: 'void *',
  len: 'size_t',
});
structs.ember_text_stream_options = koffi.struct('ember_text_stream_options', {
  struct_size: 'uint32_t',
  flags: 'uint32_t',
  stops: 'ember_stop *',
  stop_count: 'size_t',
});
structs.ember_text_stream_details = koffi.struct('ember_text_stream_details', {
  struct_size: 'uint32_t',
  stopped: 'uint32_t',
  stop: 'uint32_t',
  reserved: 'uint32_t',
  token_count: 'uint64_t',
});
structs.ember_generate_options = koffi.struct('ember_generate_options', {
  struct_size: 'uint32_t',
  flags: 'uint32_t',
  max_tokens: 'uint64_t',
  prompt: 'uint32_t *',
  prompt_count: 'size_t',
  stops: 'ember_stop *',
  stop_count: 'size_t',
  piece: koffi.pointer('ember_piece_fn'),
  user: 'void *',
});
structs.ember_generate_details = koffi.struct('ember_generate_details', {
  struct_size: 'uint32_t',
  end: 'uint32_t',
  stop: 'uint32_t',
  token: 'uint32_t',
  position: 'uint64_t',
  token_count: 'uint64_t',
  text_bytes: 'uint64_t',
});
structs.ember_embedder_options = koffi.struct('ember_embedder_options', {
  struct_size: 'uint32_t',
  flags: 'uint32_t',
  pooling: 'uint32_t',
  normalize: 'uint32_t',
  dimension: 'uint32_t',
  max_tokens: 'uint32_t',
  batch_tokens: 'uint32_t',
  reserved: 'uint32_t',
  instruction: 'void *',
  instruction_len: 'size_t',
  adapters: 'ember_adapter_use *',
  adapter_count: 'size_t',
});
structs.ember_embedder_details = koffi.struct('ember_embedder_details', {
  struct_size: 'uint32_t',
  pooling: 'uint32_t',
  dimension: 'uint32_t',
  normalized: 'uint32_t',
  max_tokens: 'uint32_t',
  batch_tokens: 'uint32_t',
  memory_bytes: 'uint64_t',
});
structs.ember_text = koffi.struct('ember_text', {
  text: 'void *',
  len: 'size_t',
});
structs.ember_adapter_details = koffi.struct('ember_adapter_details', {
  struct_size: 'uint32_t',
  rank: 'uint32_t',
  tensor_count: 'uint64_t',
  parameter_count: 'uint64_t',
  file_bytes: 'uint64_t',
  memory_bytes: 'uint64_t',
  fingerprint: 'uint64_t',
  name: koffi.array('char', 128),
});
structs.ember_chat_options = koffi.struct('ember_chat_options', {
  struct_size: 'uint32_t',
  reserved: 'uint32_t',
  source: 'void *',
  source_len: 'size_t',
  name: 'void *',
  name_len: 'size_t',
  now: 'int64_t',
  interrupt: 'uint32_t *',
  reserved2: 'size_t',
});
structs.ember_cuda_model_options = koffi.struct('ember_cuda_model_options', {
  struct_size: 'uint32_t',
  kind: 'uint32_t',
  next: 'void *',
  context: 'void *',
});
structs.ember_cuda_session_options = koffi.struct('ember_cuda_session_options', {
  struct_size: 'uint32_t',
  kind: 'uint32_t',
  next: 'void *',
  stream_priority: 'int32_t',
  reserved: 'uint32_t',
});

// All functions of the library in the file `path`.
function open(path) {
  const library = koffi.load(path);
  return {
    ember_abi_version: library.func('ember_abi_version', 'uint32_t', []),
    ember_version: library.func('ember_version', 'str', []),
    ember_version_number: library.func('ember_version_number', 'uint32_t', []),
    ember_status_name: library.func('ember_status_name', 'str', ['int32_t']),
    ember_set_log_callback: library.func('ember_set_log_callback', 'int32_t', ['ember_log_fn *', 'void *', 'int32_t', '_Out_ ember_error *']),
    ember_device_count: library.func('ember_device_count', 'int32_t', ['_Out_ uint32_t *', '_Out_ ember_error *']),
    ember_device_info: library.func('ember_device_info', 'int32_t', ['uint32_t', '_Inout_ ember_device_details *', '_Out_ ember_error *']),
    ember_supported: library.func('ember_supported', 'uint32_t', ['uint32_t']),
    ember_group_create: library.func('ember_group_create', 'int32_t', ['ember_group_options *', '_Out_ uintptr_t *', '_Out_ ember_error *']),
    ember_group_id: library.func('ember_group_id', 'int32_t', ['uintptr_t', 'void *', 'size_t', '_Out_ size_t *', '_Out_ ember_error *']),
    ember_group_free: library.func('ember_group_free', 'int32_t', ['uintptr_t']),
    ember_model_load: library.func('ember_model_load', 'int32_t', ['void *', 'size_t', 'ember_model_options *', '_Out_ uintptr_t *', '_Out_ ember_error *']),
    ember_model_info: library.func('ember_model_info', 'int32_t', ['uintptr_t', '_Inout_ ember_model_details *', '_Out_ ember_error *']),
    ember_model_part_info: library.func('ember_model_part_info', 'int32_t', ['uintptr_t', 'size_t', '_Inout_ ember_part_details *', '_Out_ ember_error *']),
    ember_model_free: library.func('ember_model_free', 'int32_t', ['uintptr_t']),
    ember_model_load_from: library.func('ember_model_load_from', 'int32_t', ['ember_model_source *', 'ember_model_options *', '_Out_ uintptr_t *', '_Out_ ember_error *']),
    ember_model_metadata: library.func('ember_model_metadata', 'int32_t', ['uintptr_t', 'void *', 'size_t', 'void *', 'size_t', '_Out_ size_t *', '_Out_ ember_error *']),
    ember_model_metadata_key: library.func('ember_model_metadata_key', 'int32_t', ['uintptr_t', 'size_t', 'void *', 'size_t', '_Out_ size_t *', '_Out_ ember_error *']),
    ember_session_set_sampling: library.func('ember_session_set_sampling', 'int32_t', ['uintptr_t', 'ember_sampling_options *', '_Out_ ember_error *']),
    ember_session_logprobs: library.func('ember_session_logprobs', 'int32_t', ['uintptr_t', '_Out_ float *', 'uint32_t *', 'float *', 'size_t', '_Out_ size_t *', '_Out_ ember_error *']),
    ember_session_create: library.func('ember_session_create', 'int32_t', ['uintptr_t', 'ember_session_options *', '_Out_ uintptr_t *', '_Out_ ember_error *']),
    ember_session_info: library.func('ember_session_info', 'int32_t', ['uintptr_t', '_Inout_ ember_session_details *', '_Out_ ember_error *']),
    ember_session_model: library.func('ember_session_model', 'int32_t', ['uintptr_t', '_Out_ uintptr_t *', '_Out_ ember_error *']),
    ember_session_position: library.func('ember_session_position', 'int32_t', ['uintptr_t', '_Out_ size_t *', '_Out_ ember_error *']),
    ember_session_rewind: library.func('ember_session_rewind', 'int32_t', ['uintptr_t', 'size_t', '_Out_ ember_error *']),
    ember_session_fork: library.func('ember_session_fork', 'int32_t', ['uintptr_t', '_Out_ uintptr_t *', '_Out_ ember_error *']),
    ember_session_logits: library.func('ember_session_logits', 'int32_t', ['uintptr_t', 'float *', 'size_t', '_Out_ ember_error *']),
    ember_session_interrupt: library.func('ember_session_interrupt', 'int32_t', ['uintptr_t']),
    ember_session_clear_interrupt: library.func('ember_session_clear_interrupt', 'int32_t', ['uintptr_t']),
    ember_session_free: library.func('ember_session_free', 'int32_t', ['uintptr_t']),
    ember_session_tokens: library.func('ember_session_tokens', 'int32_t', ['uintptr_t', 'size_t', 'uint32_t *', 'size_t', '_Out_ size_t *', '_Out_ ember_error *']),
    ember_session_sync: library.func('ember_session_sync', 'int32_t', ['uintptr_t', 'uint32_t *', 'size_t', '_Out_ size_t *', '_Out_ ember_error *']),
    ember_event_create: library.func('ember_event_create', 'int32_t', ['_Out_ uintptr_t *', '_Out_ ember_error *']),
    ember_event_handle: library.func('ember_event_handle', 'int32_t', ['uintptr_t', '_Out_ int64_t *', '_Out_ ember_error *']),
    ember_event_clear: library.func('ember_event_clear', 'int32_t', ['uintptr_t', '_Out_ ember_error *']),
    ember_event_free: library.func('ember_event_free', 'int32_t', ['uintptr_t']),
    ember_session_set_event: library.func('ember_session_set_event', 'int32_t', ['uintptr_t', 'uintptr_t', '_Out_ ember_error *']),
    ember_model_load_start: library.func('ember_model_load_start', 'int32_t', ['void *', 'size_t', 'ember_model_options *', 'uintptr_t', '_Out_ uintptr_t *', '_Out_ ember_error *']),
    ember_load_poll: library.func('ember_load_poll', 'int32_t', ['uintptr_t', '_Out_ float *', '_Out_ uintptr_t *', '_Out_ ember_error *']),
    ember_load_cancel: library.func('ember_load_cancel', 'int32_t', ['uintptr_t']),
    ember_load_free: library.func('ember_load_free', 'int32_t', ['uintptr_t']),
    ember_prefill: library.func('ember_prefill', 'int32_t', ['uintptr_t', 'uint32_t *', 'size_t', '_Out_ ember_error *']),
    ember_prefill_start: library.func('ember_prefill_start', 'int32_t', ['uintptr_t', 'uint32_t *', 'size_t', '_Out_ ember_error *']),
    ember_prefill_poll: library.func('ember_prefill_poll', 'int32_t', ['uintptr_t', '_Out_ size_t *', '_Out_ ember_error *']),
    ember_decode: library.func('ember_decode', 'int32_t', ['uintptr_t', '_Inout_ ember_token *', '_Out_ ember_error *']),
    ember_decode_start: library.func('ember_decode_start', 'int32_t', ['uintptr_t', '_Out_ ember_error *']),
    ember_decode_start_n: library.func('ember_decode_start_n', 'int32_t', ['uintptr_t', 'size_t', '_Out_ ember_error *']),
    ember_decode_poll: library.func('ember_decode_poll', 'int32_t', ['uintptr_t', '_Inout_ ember_token *', '_Out_ ember_error *']),
    ember_decode_batch: library.func('ember_decode_batch', 'int32_t', ['uintptr_t *', 'size_t', 'void *', '_Out_ ember_error *']),
    ember_decode_batch_start: library.func('ember_decode_batch_start', 'int32_t', ['uintptr_t *', 'size_t', '_Out_ ember_error *']),
    ember_session_save: library.func('ember_session_save', 'int32_t', ['uintptr_t', 'void *', 'size_t', 'ember_save_options *', '_Out_ ember_error *']),
    ember_session_save_to: library.func('ember_session_save_to', 'int32_t', ['uintptr_t', 'ember_write_fn *', 'void *', 'ember_save_options *', '_Out_ ember_error *']),
    ember_session_restore: library.func('ember_session_restore', 'int32_t', ['uintptr_t', 'void *', 'size_t', 'ember_restore_options *', '_Out_ uintptr_t *', '_Out_ ember_error *']),
    ember_session_restore_from: library.func('ember_session_restore_from', 'int32_t', ['uintptr_t', 'ember_read_fn *', 'void *', 'ember_restore_options *', '_Out_ uintptr_t *', '_Out_ ember_error *']),
    ember_session_state_info: library.func('ember_session_state_info', 'int32_t', ['void *', 'size_t', '_Inout_ ember_state_details *', '_Out_ ember_error *']),
    ember_session_erase: library.func('ember_session_erase', 'int32_t', ['uintptr_t', 'size_t', 'size_t', '_Out_ ember_error *']),
    ember_session_evict: library.func('ember_session_evict', 'int32_t', ['uintptr_t', '_Out_ ember_error *']),
    ember_session_resume: library.func('ember_session_resume', 'int32_t', ['uintptr_t', '_Out_ ember_error *']),
    ember_model_evict: library.func('ember_model_evict', 'int32_t', ['uintptr_t', '_Out_ ember_error *']),
    ember_model_resume: library.func('ember_model_resume', 'int32_t', ['uintptr_t', '_Out_ ember_error *']),
    ember_session_set_grammar: library.func('ember_session_set_grammar', 'int32_t', ['uintptr_t', 'uint32_t', 'void *', 'size_t', 'ember_grammar_options *', '_Out_ ember_error *']),
    ember_session_set_speculation: library.func('ember_session_set_speculation', 'int32_t', ['uintptr_t', 'ember_speculation_options *', '_Out_ ember_error *']),
    ember_session_speculation_info: library.func('ember_session_speculation_info', 'int32_t', ['uintptr_t', '_Inout_ ember_speculation_details *', '_Out_ ember_error *']),
    ember_model_estimate: library.func('ember_model_estimate', 'int32_t', ['void *', 'size_t', 'ember_model_options *', 'ember_session_options *', '_Inout_ ember_estimate *', '_Out_ ember_error *']),
    ember_model_estimate_part: library.func('ember_model_estimate_part', 'int32_t', ['void *', 'size_t', 'ember_model_options *', 'ember_session_options *', 'size_t', '_Inout_ ember_estimate *', '_Out_ ember_error *']),
    ember_session_profile: library.func('ember_session_profile', 'int32_t', ['uintptr_t', 'void *', 'size_t', '_Out_ size_t *', '_Out_ ember_error *']),
    ember_tokenize: library.func('ember_tokenize', 'int32_t', ['uintptr_t', 'void *', 'size_t', 'uint32_t', 'uint32_t *', 'size_t', '_Out_ size_t *', '_Out_ ember_error *']),
    ember_tokenize_with: library.func('ember_tokenize_with', 'int32_t', ['uintptr_t', 'void *', 'size_t', 'ember_tokenize_options *', 'uint32_t *', 'size_t', '_Out_ size_t *', '_Out_ ember_error *']),
    ember_detokenize: library.func('ember_detokenize', 'int32_t', ['uintptr_t', 'uint32_t *', 'size_t', 'uint32_t', 'void *', 'size_t', '_Out_ size_t *', '_Out_ ember_error *']),
    ember_token_text: library.func('ember_token_text', 'int32_t', ['uintptr_t', 'uint32_t', 'void *', 'size_t', '_Out_ size_t *', '_Out_ ember_error *']),
    ember_token_is_end: library.func('ember_token_is_end', 'int32_t', ['uintptr_t', 'uint32_t', '_Out_ uint32_t *', '_Out_ ember_error *']),
    ember_tokenizer_info: library.func('ember_tokenizer_info', 'int32_t', ['uintptr_t', '_Inout_ ember_tokenizer_details *', '_Out_ ember_error *']),
    ember_end_tokens: library.func('ember_end_tokens', 'int32_t', ['uintptr_t', 'uint32_t *', 'size_t', '_Out_ size_t *', '_Out_ ember_error *']),
    ember_text_stream_create: library.func('ember_text_stream_create', 'int32_t', ['uintptr_t', 'ember_text_stream_options *', '_Out_ uintptr_t *', '_Out_ ember_error *']),
    ember_text_stream_push: library.func('ember_text_stream_push', 'int32_t', ['uintptr_t', 'uint32_t *', 'size_t', 'void *', 'size_t', '_Out_ size_t *', '_Out_ ember_error *']),
    ember_text_stream_finish: library.func('ember_text_stream_finish', 'int32_t', ['uintptr_t', 'void *', 'size_t', '_Out_ size_t *', '_Out_ ember_error *']),
    ember_text_stream_info: library.func('ember_text_stream_info', 'int32_t', ['uintptr_t', '_Inout_ ember_text_stream_details *', '_Out_ ember_error *']),
    ember_text_stream_free: library.func('ember_text_stream_free', 'int32_t', ['uintptr_t']),
    ember_generate: library.func('ember_generate', 'int32_t', ['uintptr_t', 'ember_generate_options *', '_Inout_ ember_generate_details *', '_Out_ ember_error *']),
    ember_generate_start: library.func('ember_generate_start', 'int32_t', ['uintptr_t', 'ember_generate_options *', '_Out_ ember_error *']),
    ember_generate_next: library.func('ember_generate_next', 'int32_t', ['uintptr_t', 'uint32_t', 'void *', 'size_t', '_Out_ size_t *', '_Inout_ ember_token *', '_Out_ ember_error *']),
    ember_generate_finish: library.func('ember_generate_finish', 'int32_t', ['uintptr_t', '_Inout_ ember_generate_details *', '_Out_ ember_error *']),
    ember_embedder_create: library.func('ember_embedder_create', 'int32_t', ['uintptr_t', 'ember_embedder_options *', '_Out_ uintptr_t *', '_Out_ ember_error *']),
    ember_embedder_info: library.func('ember_embedder_info', 'int32_t', ['uintptr_t', '_Inout_ ember_embedder_details *', '_Out_ ember_error *']),
    ember_embed: library.func('ember_embed', 'int32_t', ['uintptr_t', 'ember_text *', 'size_t', 'float *', 'size_t', '_Out_ size_t *', '_Out_ ember_error *']),
    ember_embed_tokens: library.func('ember_embed_tokens', 'int32_t', ['uintptr_t', 'uint32_t *', 'size_t', 'size_t *', 'size_t', 'float *', 'size_t', '_Out_ size_t *', '_Out_ ember_error *']),
    ember_rerank: library.func('ember_rerank', 'int32_t', ['uintptr_t', 'void *', 'size_t', 'ember_text *', 'size_t', 'float *', 'size_t', '_Out_ size_t *', '_Out_ ember_error *']),
    ember_embedder_interrupt: library.func('ember_embedder_interrupt', 'int32_t', ['uintptr_t']),
    ember_embedder_free: library.func('ember_embedder_free', 'int32_t', ['uintptr_t']),
    ember_adapter_load: library.func('ember_adapter_load', 'int32_t', ['uintptr_t', 'void *', 'size_t', '_Out_ uintptr_t *', '_Out_ ember_error *']),
    ember_adapter_info: library.func('ember_adapter_info', 'int32_t', ['uintptr_t', '_Inout_ ember_adapter_details *', '_Out_ ember_error *']),
    ember_adapter_free: library.func('ember_adapter_free', 'int32_t', ['uintptr_t']),
    ember_session_set_adapters: library.func('ember_session_set_adapters', 'int32_t', ['uintptr_t', 'ember_adapter_use *', 'size_t', 'uint32_t', '_Out_ ember_error *']),
    ember_chat_format: library.func('ember_chat_format', 'int32_t', ['uintptr_t', 'void *', 'size_t', 'ember_chat_options *', 'void *', 'size_t', '_Out_ size_t *', '_Out_ ember_error *']),
    ember_chat_tokenize: library.func('ember_chat_tokenize', 'int32_t', ['uintptr_t', 'void *', 'size_t', 'ember_chat_options *', 'uint32_t *', 'size_t', '_Out_ size_t *', '_Out_ ember_error *']),
  };
}

module.exports = { constants, structs, open };
