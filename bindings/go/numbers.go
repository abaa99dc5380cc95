// Code generated from include/emberlm.h by bindings/common/generate.py (`make bindings`); DO NOT EDIT.

package emberlm

// #include <emberlm.h>
import "C"

// Statuses of the C library. Errors can be compared with them: errors.Is(err, emberlm.StatusBusy).
const (
	StatusOK              Status = C.EMBER_OK
	StatusPending         Status = C.EMBER_PENDING
	StatusInvalidArgument Status = C.EMBER_INVALID_ARGUMENT
	StatusNullPointer     Status = C.EMBER_NULL_POINTER
	StatusInvalidHandle   Status = C.EMBER_INVALID_HANDLE
	StatusInvalidUTF8     Status = C.EMBER_INVALID_UTF8
	StatusBusy            Status = C.EMBER_BUSY
	StatusCancelled       Status = C.EMBER_CANCELLED
	StatusInterrupted     Status = C.EMBER_INTERRUPTED
	StatusFileNotFound    Status = C.EMBER_FILE_NOT_FOUND
	StatusNotAFile        Status = C.EMBER_NOT_A_FILE
	StatusFileEmpty       Status = C.EMBER_FILE_EMPTY
	StatusIO              Status = C.EMBER_IO
	StatusUnknownFormat   Status = C.EMBER_UNKNOWN_FORMAT
	StatusFileTruncated   Status = C.EMBER_FILE_TRUNCATED
	StatusFileCorrupt     Status = C.EMBER_FILE_CORRUPT
	StatusUnsupported     Status = C.EMBER_UNSUPPORTED
	StatusMissingKey      Status = C.EMBER_MISSING_KEY
	StatusMissingTensor   Status = C.EMBER_MISSING_TENSOR
	StatusShapeMismatch   Status = C.EMBER_SHAPE_MISMATCH
	StatusInvalidModel    Status = C.EMBER_INVALID_MODEL
	StatusOutOfMemory     Status = C.EMBER_OUT_OF_MEMORY
	StatusContextFull     Status = C.EMBER_CONTEXT_FULL
	StatusInvalidToken    Status = C.EMBER_INVALID_TOKEN
	StatusNoInput         Status = C.EMBER_NO_INPUT
	StatusBufferTooSmall  Status = C.EMBER_BUFFER_TOO_SMALL
	StatusNothingPending  Status = C.EMBER_NOTHING_PENDING
	StatusDecodePending   Status = C.EMBER_DECODE_PENDING
	StatusNoDevice        Status = C.EMBER_NO_DEVICE
	StatusDeviceLost      Status = C.EMBER_DEVICE_LOST
	StatusNumeric         Status = C.EMBER_NUMERIC
	StatusDeviceError     Status = C.EMBER_DEVICE_ERROR
	StatusInternal        Status = C.EMBER_INTERNAL
	StatusForked          Status = C.EMBER_FORKED
	StatusGrammar         Status = C.EMBER_GRAMMAR
	StatusTemplateFailed  Status = C.EMBER_TEMPLATE_FAILED
	StatusNotState        Status = C.EMBER_NOT_STATE
	StatusStateVersion    Status = C.EMBER_STATE_VERSION
	StatusStateForeign    Status = C.EMBER_STATE_FOREIGN
	StatusStateChecksum   Status = C.EMBER_STATE_CHECKSUM
)

// LogLevel has the values of enum ember_log_level.
type LogLevel int32

// Values of LogLevel.
const (
	LogError LogLevel = C.EMBER_LOG_ERROR
	LogWarn  LogLevel = C.EMBER_LOG_WARN
	LogInfo  LogLevel = C.EMBER_LOG_INFO
	LogDebug LogLevel = C.EMBER_LOG_DEBUG
)

// DeviceKind has the values of enum ember_device_kind.
type DeviceKind uint32

// Values of DeviceKind.
const (
	DeviceCPU  DeviceKind = C.EMBER_DEVICE_CPU
	DeviceCUDA DeviceKind = C.EMBER_DEVICE_CUDA
)

// Capability has the values of enum ember_capability.
type Capability uint32

// Values of Capability.
const (
	CanCPU         Capability = C.EMBER_CAN_CPU
	CanCUDA        Capability = C.EMBER_CAN_CUDA
	CanGGUF        Capability = C.EMBER_CAN_GGUF
	CanSafetensors Capability = C.EMBER_CAN_SAFETENSORS
	CanCPUKVF16    Capability = C.EMBER_CAN_CPU_KV_F16
	CanCPUKVF32    Capability = C.EMBER_CAN_CPU_KV_F32
	CanCPUKVQ8_0   Capability = C.EMBER_CAN_CPU_KV_Q8_0
	CanCUDAKVF16   Capability = C.EMBER_CAN_CUDA_KV_F16
	CanCUDAKVF32   Capability = C.EMBER_CAN_CUDA_KV_F32
	CanCUDAKVQ8_0  Capability = C.EMBER_CAN_CUDA_KV_Q8_0
)

// KVType has the values of enum ember_kv_type.
type KVType uint32

// Values of KVType.
const (
	KVDefault KVType = C.EMBER_KV_DEFAULT
	KVF16     KVType = C.EMBER_KV_F16
	KVF32     KVType = C.EMBER_KV_F32
	KVQ8_0    KVType = C.EMBER_KV_Q8_0
)

// StateKind has the values of enum ember_state_kind.
type StateKind uint32

// Values of StateKind.
const (
	StateEverything StateKind = C.EMBER_STATE_EVERYTHING
	StateTokens     StateKind = C.EMBER_STATE_TOKENS
)

// GrammarKind has the values of enum ember_grammar_kind.
type GrammarKind uint32

// Values of GrammarKind.
const (
	GrammarNone       GrammarKind = C.EMBER_GRAMMAR_NONE
	GrammarJSONSchema GrammarKind = C.EMBER_GRAMMAR_JSON_SCHEMA
	GrammarRegex      GrammarKind = C.EMBER_GRAMMAR_REGEX
	GrammarLark       GrammarKind = C.EMBER_GRAMMAR_LARK
	GrammarGbnf       GrammarKind = C.EMBER_GRAMMAR_GBNF
)

// DraftSource has the values of enum ember_draft_source.
type DraftSource uint32

// Values of DraftSource.
const (
	DraftsNone  DraftSource = C.EMBER_DRAFTS_NONE
	DraftsNgram DraftSource = C.EMBER_DRAFTS_NGRAM
	DraftsModel DraftSource = C.EMBER_DRAFTS_MODEL
	DraftsHeads DraftSource = C.EMBER_DRAFTS_HEADS
)

// Pooling has the values of enum ember_pooling.
type Pooling uint32

// Values of Pooling.
const (
	PoolingDefault Pooling = C.EMBER_POOLING_DEFAULT
	PoolingMean    Pooling = C.EMBER_POOLING_MEAN
	PoolingFirst   Pooling = C.EMBER_POOLING_FIRST
	PoolingLast    Pooling = C.EMBER_POOLING_LAST
	PoolingNone    Pooling = C.EMBER_POOLING_NONE
	PoolingScore   Pooling = C.EMBER_POOLING_SCORE
)

// Normalize has the values of enum ember_normalize.
type Normalize uint32

// Values of Normalize.
const (
	NormalizeDefault Normalize = C.EMBER_NORMALIZE_DEFAULT
	NormalizeOn      Normalize = C.EMBER_NORMALIZE_ON
	NormalizeOff     Normalize = C.EMBER_NORMALIZE_OFF
)

// JSONSpacing has the values of enum ember_json_spacing.
type JSONSpacing uint32

// Values of JSONSpacing.
const (
	JSONSpaced  JSONSpacing = C.EMBER_JSON_SPACED
	JSONCompact JSONSpacing = C.EMBER_JSON_COMPACT
	JSONFree    JSONSpacing = C.EMBER_JSON_FREE
)

// Weights has the values of enum ember_weights.
type Weights uint32

// Values of Weights.
const (
	WeightsKeep Weights = C.EMBER_WEIGHTS_KEEP
	WeightsQ8_0 Weights = C.EMBER_WEIGHTS_Q8_0
	WeightsQ4K  Weights = C.EMBER_WEIGHTS_Q4_K
	WeightsQ6K  Weights = C.EMBER_WEIGHTS_Q6_K
	WeightsQ4KM Weights = C.EMBER_WEIGHTS_Q4_K_M
)

// Files has the values of enum ember_files.
type Files uint32

// Values of Files.
const (
	FilesMapped Files = C.EMBER_FILES_MAPPED
	FilesRead   Files = C.EMBER_FILES_READ
)

// Split has the values of enum ember_split.
type Split uint32

// Values of Split.
const (
	SplitLayers  Split = C.EMBER_SPLIT_LAYERS
	SplitTensors Split = C.EMBER_SPLIT_TENSORS
)

// GenerateEnd has the values of enum ember_generate_end.
type GenerateEnd uint32

// Values of GenerateEnd.
const (
	EndLimit       GenerateEnd = C.EMBER_END_LIMIT
	EndToken       GenerateEnd = C.EMBER_END_TOKEN
	EndStop        GenerateEnd = C.EMBER_END_STOP
	EndCallback    GenerateEnd = C.EMBER_END_CALLBACK
	EndInterrupted GenerateEnd = C.EMBER_END_INTERRUPTED
	EndContextFull GenerateEnd = C.EMBER_END_CONTEXT_FULL
)
