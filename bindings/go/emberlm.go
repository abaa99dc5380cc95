// Package emberlm runs quantized language models inside this process.
//
// What fails returns an *Error with the status of the C library and its sentence, and has changed nothing;
// errors.Is(err, StatusBusy) tells which it is. Models, sessions and text streams are freed by Close, or by the garbage
// collector; calls after that return StatusInvalidHandle. Any number of goroutines may use a Model. A Session and a TextStream
// are for one at a time: a second call meanwhile returns StatusBusy.
//
// Callbacks may return errors, which end the call and come back from it, and may panic, which goes on behind the call.
package emberlm

// #cgo pkg-config: emberlm
// #include <stdlib.h>
// #include "shim.h"
// #include "callbacks.h"
//
// static inline void emberlm_go_set_user(void **field, uintptr_t user) { *field = (void *)user; }
// static inline void emberlm_go_raise(uint32_t *number) { __atomic_store_n(number, 1, __ATOMIC_RELEASE); }
import "C"

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

// NoToken stands where there is no token.
const NoToken uint32 = C.EMBER_NO_TOKEN

// Status is the result of a function of the C library. As an error it is what an *Error wraps.
type Status int32

// Error is the name of the status, for example "EMBER_BUSY".
func (s Status) Error() string { return C.GoString(C.ember_status_name(C.ember_status(s))) }

// Error is a call that failed.
type Error struct {
	Status  Status
	Message string // a sentence of the library
	Index   int    // the element of a list that is at fault, or -1
}

func (e *Error) Error() string {
	if e.Message == "" {
		return e.Status.Error()
	}
	return e.Status.Error() + ": " + e.Message
}

// Unwrap gives the status, for errors.Is.
func (e *Error) Unwrap() error { return e.Status }

func check(status C.ember_status, err *C.ember_error) error {
	if status == C.EMBER_OK {
		return nil
	}
	e := &Error{Status: Status(status), Index: -1}
	if err != nil {
		e.Message = C.GoString(&err.message[0])
		if err.index != C.EMBER_NO_INDEX {
			e.Index = int(err.index)
		}
	}
	return e
}

const abi uint32 = C.EMBER_ABI_VERSION

func checkABI(loaded uint32) error {
	if loaded == abi {
		return nil
	}
	return fmt.Errorf("emberlm: compiled for ABI %d, but the loaded library has ABI %d", abi, loaded)
}

// What cannot go on: other functions of a library of another ABI may not be called.
func init() {
	if err := checkABI(uint32(C.ember_abi_version())); err != nil {
		panic(err)
	}
}

// Memory that C may keep pointers to other such memory in, as Go's may not.
type arena []unsafe.Pointer

func (a *arena) alloc(size uintptr) unsafe.Pointer {
	if size == 0 {
		return nil
	}
	p := C.calloc(1, C.size_t(size)) // cgo's malloc does not return without memory; calloc may
	if p == nil {
		panic("emberlm: out of memory")
	}
	*a = append(*a, p)
	return p
}

func (a *arena) free() {
	for _, p := range *a {
		C.free(p)
	}
}

func (a *arena) text(text string) (*C.char, C.size_t) {
	p := a.alloc(uintptr(len(text)))
	copy(unsafe.Slice((*byte)(p), len(text)), text)
	return (*C.char)(p), C.size_t(len(text))
}

func (a *arena) tokens(tokens []uint32) (*C.uint32_t, C.size_t) {
	p := a.alloc(4 * uintptr(len(tokens)))
	copy(unsafe.Slice((*uint32)(p), len(tokens)), tokens)
	return (*C.uint32_t)(p), C.size_t(len(tokens))
}

// Memory of this process for the duration of a call; NULL for nothing.
func textPointer(text []byte) *C.char {
	if len(text) == 0 {
		return nil
	}
	return (*C.char)(unsafe.Pointer(&text[0]))
}

func tokenPointer(tokens []uint32) *C.uint32_t {
	if len(tokens) == 0 {
		return nil
	}
	return (*C.uint32_t)(unsafe.Pointer(&tokens[0]))
}

// A text that `fill` writes, with a buffer that fits.
func filledText(guess int, fill func(out *C.char, room C.size_t, count *C.size_t, err *C.ember_error) C.ember_status) (string, error) {
	buffer := make([]byte, guess+1)
	for {
		var count C.size_t
		var err C.ember_error
		status := fill(textPointer(buffer), C.size_t(len(buffer)), &count, &err)
		if status == C.EMBER_BUFFER_TOO_SMALL && int(count) > len(buffer) {
			buffer = make([]byte, int(count))
			continue
		}
		if e := check(status, &err); e != nil {
			return "", e
		}
		return string(buffer[:count]), nil
	}
}

func filledTokens(guess int, fill func(out *C.uint32_t, room C.size_t, count *C.size_t, err *C.ember_error) C.ember_status) ([]uint32, error) {
	buffer := make([]uint32, guess+1)
	for {
		var count C.size_t
		var err C.ember_error
		status := fill(tokenPointer(buffer), C.size_t(len(buffer)), &count, &err)
		if status == C.EMBER_BUFFER_TOO_SMALL && int(count) > len(buffer) {
			buffer = make([]uint32, int(count))
			continue
		}
		if e := check(status, &err); e != nil {
			return nil, e
		}
		return buffer[:count], nil
	}
}

// Version is that of the loaded library, for example "0.1.0".
func Version() string { return C.GoString(C.ember_version()) }

// VersionNumber is the same as a number: 1000000 times the major, 1000 times the minor and once the patch version.
func VersionNumber() int { return int(C.ember_version_number()) }

// Supported tells whether the loaded library can do something, by what was compiled.
func Supported(capability Capability) bool { return C.ember_supported(C.uint32_t(capability)) != 0 }

// Device describes a device.
type Device struct {
	Kind                      DeviceKind
	Usable                    bool
	Cores                     int
	MemoryTotal, MemoryFree   uint64
	Name, Driver, ISA, Reason string
}

// Devices gives all devices, the best one first.
func Devices() ([]Device, error) {
	var err C.ember_error
	var count C.uint32_t
	if e := check(C.ember_device_count(&count, &err), &err); e != nil {
		return nil, e
	}
	devices := make([]Device, 0, int(count))
	for i := C.uint32_t(0); i < count; i++ {
		var d C.ember_device_details
		d.struct_size = C.uint32_t(unsafe.Sizeof(d))
		if e := check(C.ember_device_info(i, &d, &err), &err); e != nil {
			return nil, e
		}
		devices = append(devices, Device{DeviceKind(d.kind), d.usable != 0, int(d.cores), uint64(d.memory_total), uint64(d.memory_free),
			C.GoString(&d.name[0]), C.GoString(&d.driver[0]), C.GoString(&d.isa[0]), C.GoString(&d.reason[0])})
	}
	return devices, nil
}

// SetLog sets the function that gets the log of the whole process, from any thread, also from several at once; nil turns it
// off. Panics of the function are dropped.
func SetLog(function func(level LogLevel, message string), level LogLevel) error {
	var err C.ember_error
	var callback C.ember_log_fn
	if function != nil {
		callback = C.ember_log_fn(C.emberlm_go_log)
	}
	log.Lock()
	before := log.function
	log.function = function
	log.Unlock()
	e := check(C.go_ember_set_log_callback(callback, 0, C.int32_t(level), &err), &err)
	if e != nil {
		log.Lock()
		log.function = before
		log.Unlock()
	}
	return e
}

// A handle: a number, not a pointer.
type handle struct{ raw atomic.Uintptr }

func (h *handle) get() C.uintptr_t { return C.uintptr_t(h.raw.Load()) }

func (h *handle) close(free func(C.uintptr_t) C.ember_status) error {
	raw := h.raw.Load()
	if raw == 0 {
		return nil
	}
	if e := check(free(C.uintptr_t(raw)), nil); e != nil {
		return e
	}
	h.raw.CompareAndSwap(raw, 0)
	return nil
}

// ModelOptions say how to load a model; the zero value is the default.
type ModelOptions struct {
	Device  int // index among Devices
	Threads int // 0: one per physical core
	Weights Weights
	Files   Files
	// Bytes of a GPU's memory for the model, and of the device's for all its sessions; 0: no limit.
	MemoryLimit, SessionMemoryLimit uint64
	// Devices that share the layers, none for Device alone, and the layers on each, none for shares by the GPUs' memory.
	Devices, DeviceLayers []uint32
	Split                 Split                        // how they share the model
	CPUExpertLayers       int                          // layers of a model on a GPU whose experts stay on the CPU; math.MaxUint32 for all
	DraftHeads            bool                         // loads the model's own heads, for DraftsHeads
	F16Batches            bool                         // steps of more than 16 sessions in f16 on some GPUs: EMBER_MODEL_F16_BATCHES
	Group                 *Group                       // a group of processes that have the model together, or nil
	Progress              func(fraction float32) error // hears how far the load is; an error ends it
}

func (o *ModelOptions) c(a *arena, user C.uintptr_t) *C.ember_model_options {
	c := (*C.ember_model_options)(a.alloc(C.sizeof_ember_model_options))
	c.struct_size = C.sizeof_ember_model_options
	if o == nil {
		return c
	}
	c.device, c.threads = C.uint32_t(o.Device), C.uint32_t(o.Threads)
	c.weights, c.files = C.uint32_t(o.Weights), C.uint32_t(o.Files)
	c.memory_limit, c.session_memory_limit = C.uint64_t(o.MemoryLimit), C.uint64_t(o.SessionMemoryLimit)
	c.devices, c.device_count = a.tokens(o.Devices)
	c.split, c.cpu_expert_layers = C.uint32_t(o.Split), C.uint32_t(o.CPUExpertLayers)
	if o.Group != nil {
		*(*C.uintptr_t)(unsafe.Pointer(&c.group)) = o.Group.get()
	}
	if o.DraftHeads {
		c.flags |= C.EMBER_MODEL_DRAFT_HEADS
	}
	if o.F16Batches {
		c.flags |= C.EMBER_MODEL_F16_BATCHES
	}
	if len(o.DeviceLayers) > 0 {
		// A number for each device; those that are missing are 0.
		layers := make([]uint32, len(o.Devices))
		copy(layers, o.DeviceLayers)
		c.device_layers, _ = a.tokens(layers)
	}
	if o.Progress != nil {
		c.progress = C.ember_progress_fn(C.emberlm_go_progress)
		C.emberlm_go_set_user(&c.user, user)
	}
	return c
}

// Model is a loaded model. Any number of goroutines may use it.
type Model struct{ handle }

func newModel(raw C.uintptr_t) *Model {
	m := &Model{}
	m.raw.Store(uintptr(raw))
	runtime.SetFinalizer(m, func(m *Model) { _ = m.Close() })
	return m
}

// Load loads a GGUF file or a Hugging Face folder. options may be nil.
func Load(path string, options *ModelOptions) (*Model, error) {
	return load(&callback{}, options, func(a *arena, _ C.uintptr_t, o *C.ember_model_options, raw *C.uintptr_t, err *C.ember_error) C.ember_status {
		name, length := a.text(path)
		return C.go_ember_model_load(name, length, o, raw, err)
	})
}

// LoadReaderAt loads a GGUF file of size bytes that a reader reads: from an archive, decrypted on the way, or, with a
// bytes.Reader, from memory. Its errors come back.
func LoadReaderAt(reader io.ReaderAt, size int64, options *ModelOptions) (*Model, error) {
	return load(&callback{readAt: reader}, options, func(a *arena, user C.uintptr_t, o *C.ember_model_options, raw *C.uintptr_t, err *C.ember_error) C.ember_status {
		source := (*C.ember_model_source)(a.alloc(C.sizeof_ember_model_source))
		source.struct_size = C.sizeof_ember_model_source
		source.size = C.uint64_t(size)
		source.read = C.ember_read_at_fn(C.emberlm_go_read_at)
		C.emberlm_go_set_user(&source.user, user)
		return C.go_ember_model_load_from(source, o, raw, err)
	})
}

func load(c *callback, options *ModelOptions, call func(*arena, C.uintptr_t, *C.ember_model_options, *C.uintptr_t, *C.ember_error) C.ember_status) (*Model, error) {
	if options != nil {
		c.progress = options.Progress
	}
	var raw C.uintptr_t
	e := c.run(func(user C.uintptr_t) error {
		var a arena
		defer a.free()
		var err C.ember_error
		return check(call(&a, user, options.c(&a, user), &raw, &err), &err)
	})
	if e != nil {
		C.go_ember_model_free(raw) // 0 unless a callback's error came with the last piece
		return nil, e
	}
	return newModel(raw), nil
}

// Close frees the handle; the memory goes with the last session.
func (m *Model) Close() error {
	return m.close(func(raw C.uintptr_t) C.ember_status { return C.go_ember_model_free(raw) })
}

// ModelInfo has facts about a model.
type ModelInfo struct {
	Device, Vocab, ContextLength, Layers, Hidden, Metadata int
	HasTokenizer                                           bool
	Parameters, FileBytes, ResidentBytes, KVBytesPerToken  uint64
	Architecture, Quantization, Name                       string
}

// Info gives facts about the model.
func (m *Model) Info() (ModelInfo, error) {
	defer runtime.KeepAlive(m)
	var err C.ember_error
	var d C.ember_model_details
	d.struct_size = C.sizeof_ember_model_details
	if e := check(C.go_ember_model_info(m.get(), &d, &err), &err); e != nil {
		return ModelInfo{}, e
	}
	return ModelInfo{int(d.device), int(d.vocab_size), int(d.context_length), int(d.layer_count), int(d.hidden_size), int(d.metadata_count), d.has_tokenizer != 0,
		uint64(d.parameter_count), uint64(d.file_bytes), uint64(d.resident_bytes), uint64(d.kv_bytes_per_token),
		C.GoString(&d.architecture[0]), C.GoString(&d.quantization[0]), C.GoString(&d.name[0])}, nil
}

// Part is some of a model's layers, which are on one device.
type Part struct {
	Device, FirstLayer, Layers      int
	MemoryBytes, SessionMemoryBytes uint64
}

// Parts tells where the layers are, the first ones first.
func (m *Model) Parts() ([]Part, error) {
	defer runtime.KeepAlive(m)
	var err C.ember_error
	var d C.ember_model_details
	d.struct_size = C.sizeof_ember_model_details
	if e := check(C.go_ember_model_info(m.get(), &d, &err), &err); e != nil {
		return nil, e
	}
	parts := make([]Part, d.part_count)
	for i := range parts {
		var p C.ember_part_details
		p.struct_size = C.sizeof_ember_part_details
		if e := check(C.go_ember_model_part_info(m.get(), C.size_t(i), &p, &err), &err); e != nil {
			return nil, e
		}
		parts[i] = Part{int(p.device), int(p.first_layer), int(p.layer_count), uint64(p.memory_bytes), uint64(p.session_memory_bytes)}
	}
	return parts, nil
}

// Metadata gives the value of a metadata key as text.
func (m *Model) Metadata(key string) (string, error) {
	defer runtime.KeepAlive(m)
	name := []byte(key)
	return filledText(256, func(out *C.char, room C.size_t, n *C.size_t, err *C.ember_error) C.ember_status {
		return C.go_ember_model_metadata(m.get(), textPointer(name), C.size_t(len(name)), out, room, n, err)
	})
}

// MetadataKeys gives the names of all metadata keys, in order.
func (m *Model) MetadataKeys() ([]string, error) {
	defer runtime.KeepAlive(m)
	info, e := m.Info()
	if e != nil {
		return nil, e
	}
	keys := make([]string, info.Metadata)
	for i := range keys {
		keys[i], e = filledText(64, func(out *C.char, room C.size_t, n *C.size_t, err *C.ember_error) C.ember_status {
			return C.go_ember_model_metadata_key(m.get(), C.size_t(i), out, room, n, err)
		})
		if e != nil {
			return nil, e
		}
	}
	return keys, nil
}

// TokenizeOptions say how to tokenize; the zero value is for the start of a context, where nothing has a special meaning.
type TokenizeOptions struct {
	Continue bool // the text goes on where other tokens end
	Special  bool // control tokens that are spelled out count
}

func (o TokenizeOptions) flags() (flags C.uint32_t) {
	if o.Continue {
		flags |= C.EMBER_TOKENIZE_CONTINUE
	}
	if o.Special {
		flags |= C.EMBER_TOKENIZE_SPECIAL
	}
	return
}

// Tokenize gives the token ids of a text.
func (m *Model) Tokenize(text string, options TokenizeOptions) ([]uint32, error) {
	defer runtime.KeepAlive(m)
	bytes := []byte(text)
	return filledTokens(len(text)/3+16, func(out *C.uint32_t, room C.size_t, n *C.size_t, err *C.ember_error) C.ember_status {
		return C.go_ember_tokenize(m.get(), textPointer(bytes), C.size_t(len(bytes)), options.flags(), out, room, n, err)
	})
}

// A number in C's memory that is set when the context is done.
func watch(ctx context.Context, a *arena) (number *C.uint32_t, stop func()) {
	number = (*C.uint32_t)(a.alloc(4))
	return number, watchDone(ctx, func() { C.emberlm_go_raise(number) })
}

// Calls f when the context is done, unless stop was called before; stop waits for f.
func watchDone(ctx context.Context, f func()) (stop func()) {
	over := make(chan struct{})
	var group sync.WaitGroup
	group.Add(1)
	go func() {
		defer group.Done()
		select {
		case <-ctx.Done():
			f()
		case <-over:
		}
	}()
	return func() { close(over); group.Wait() }
}

// TokenizeContext is Tokenize for long texts: it ends with the context's error when that is done.
func (m *Model) TokenizeContext(ctx context.Context, text string, options TokenizeOptions) ([]uint32, error) {
	defer runtime.KeepAlive(m)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	var a arena
	defer a.free()
	c := (*C.ember_tokenize_options)(a.alloc(C.sizeof_ember_tokenize_options))
	c.struct_size, c.flags = C.sizeof_ember_tokenize_options, options.flags()
	number, stop := watch(ctx, &a)
	defer stop()
	c.interrupt = number
	bytes := []byte(text)
	tokens, e := filledTokens(len(text)/3+16, func(out *C.uint32_t, room C.size_t, n *C.size_t, err *C.ember_error) C.ember_status {
		return C.go_ember_tokenize_with(m.get(), textPointer(bytes), C.size_t(len(bytes)), c, out, room, n, err)
	})
	if e != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return tokens, e
}

// DetokenizeOptions say how to detokenize.
type DetokenizeOptions struct {
	SkipSpecial bool // leave out control tokens instead of spelling their names
	Continue    bool // the tokens go on where other text ends
}

// Detokenize gives the bytes of tokens, which need not end at the end of a character.
func (m *Model) Detokenize(tokens []uint32, options DetokenizeOptions) (string, error) {
	defer runtime.KeepAlive(m)
	var flags C.uint32_t
	if options.SkipSpecial {
		flags |= C.EMBER_DETOKENIZE_SKIP_SPECIAL
	}
	if options.Continue {
		flags |= C.EMBER_DETOKENIZE_CONTINUE
	}
	return filledText(6*len(tokens)+16, func(out *C.char, room C.size_t, n *C.size_t, err *C.ember_error) C.ember_status {
		return C.go_ember_detokenize(m.get(), tokenPointer(tokens), C.size_t(len(tokens)), flags, out, room, n, err)
	})
}

// TokenText gives the bytes of one token, a control token's name included.
func (m *Model) TokenText(token uint32) (string, error) {
	defer runtime.KeepAlive(m)
	return filledText(64, func(out *C.char, room C.size_t, n *C.size_t, err *C.ember_error) C.ember_status {
		return C.go_ember_token_text(m.get(), C.uint32_t(token), out, room, n, err)
	})
}

// IsEnd tells whether the token ends an answer.
func (m *Model) IsEnd(token uint32) (bool, error) {
	defer runtime.KeepAlive(m)
	var err C.ember_error
	var end C.uint32_t
	e := check(C.go_ember_token_is_end(m.get(), C.uint32_t(token), &end, &err), &err)
	return end != 0, e
}

// TokenizerInfo has facts about a tokenizer; tokens that there are not are NoToken.
type TokenizerInfo struct {
	Tokens                     int
	BOS, EOS, Unknown, Padding uint32
	AddsBOS, AddsEOS           bool
	EndTokens                  int
}

// TokenizerInfo gives facts about the model's tokenizer.
func (m *Model) TokenizerInfo() (TokenizerInfo, error) {
	defer runtime.KeepAlive(m)
	var err C.ember_error
	var d C.ember_tokenizer_details
	d.struct_size = C.sizeof_ember_tokenizer_details
	if e := check(C.go_ember_tokenizer_info(m.get(), &d, &err), &err); e != nil {
		return TokenizerInfo{}, e
	}
	return TokenizerInfo{int(d.token_count), uint32(d.bos), uint32(d.eos), uint32(d.unknown), uint32(d.padding), d.adds_bos != 0, d.adds_eos != 0, int(d.end_token_count)}, nil
}

// EndTokens gives all tokens that end an answer.
func (m *Model) EndTokens() ([]uint32, error) {
	defer runtime.KeepAlive(m)
	return filledTokens(8, func(out *C.uint32_t, room C.size_t, n *C.size_t, err *C.ember_error) C.ember_status {
		return C.go_ember_end_tokens(m.get(), out, room, n, err)
	})
}

// Message is one of a conversation.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Conversation is what chat templates take, as JSON: messages, and variables such as "tools" or "enable_thinking".
func Conversation(messages []Message, variables map[string]any) (string, error) {
	object := map[string]any{"add_generation_prompt": true}
	for key, value := range variables {
		object[key] = value
	}
	object["messages"] = messages
	encoded, err := json.Marshal(object)
	return string(encoded), err
}

// ChatOptions say which chat template to use; the zero value is the model's.
type ChatOptions struct {
	Template string // one of yours
	Name     string // one of the model's further templates
	Now      int64  // seconds since 1970 for templates that write a date; 0: the clock
}

func (o ChatOptions) c(a *arena) *C.ember_chat_options {
	c := (*C.ember_chat_options)(a.alloc(C.sizeof_ember_chat_options))
	c.struct_size = C.sizeof_ember_chat_options
	if o.Template != "" {
		c.source, c.source_len = a.text(o.Template)
	}
	if o.Name != "" {
		c.name, c.name_len = a.text(o.Name)
	}
	c.now = C.int64_t(o.Now)
	return c
}

// ChatFormat writes a conversation (see Conversation) as the text that the model was trained on.
func (m *Model) ChatFormat(conversation string, options ChatOptions) (string, error) {
	defer runtime.KeepAlive(m)
	var a arena
	defer a.free()
	c, bytes := options.c(&a), []byte(conversation)
	return filledText(2*len(bytes), func(out *C.char, room C.size_t, n *C.size_t, err *C.ember_error) C.ember_status {
		return C.go_ember_chat_format(m.get(), textPointer(bytes), C.size_t(len(bytes)), c, out, room, n, err)
	})
}

// ChatTokenize gives the tokens of a conversation (see Conversation); its words can forge nothing.
func (m *Model) ChatTokenize(conversation string, options ChatOptions) ([]uint32, error) {
	defer runtime.KeepAlive(m)
	var a arena
	defer a.free()
	c, bytes := options.c(&a), []byte(conversation)
	return filledTokens(len(bytes), func(out *C.uint32_t, room C.size_t, n *C.size_t, err *C.ember_error) C.ember_status {
		return C.go_ember_chat_tokenize(m.get(), textPointer(bytes), C.size_t(len(bytes)), c, out, room, n, err)
	})
}

// Evict frees the device's memory of the weights until they are needed.
func (m *Model) Evict() error {
	defer runtime.KeepAlive(m)
	var err C.ember_error
	return check(C.go_ember_model_evict(m.get(), &err), &err)
}

// Resume moves the weights of an evicted model back now.
func (m *Model) Resume() error {
	defer runtime.KeepAlive(m)
	var err C.ember_error
	return check(C.go_ember_model_resume(m.get(), &err), &err)
}
