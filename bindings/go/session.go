package emberlm

// #include "shim.h"
// #include "callbacks.h"
//
// static inline void emberlm_go_set_piece_user(ember_generate_options *o, uintptr_t user) { o->user = (void *)user; }
import "C"

import (
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"unsafe"
)

// LogitBias is what is added to the logit of a token.
type LogitBias struct {
	Token uint32
	Bias  float32
}

// DryBreaker is a sequence that no repetition goes beyond: tokens, or else a text.
type DryBreaker struct {
	Text   string
	Tokens []uint32
}

// Sampling says how tokens are chosen; the zero value is greedy. The fields are those of ember_sampling_options.
type Sampling struct {
	Temperature      float32
	Seed             uint64
	TopK             int
	TopP, MinP       float32
	TypicalP         float32
	PenaltyWindow    uint32
	RepeatPenalty    float32
	PresencePenalty  float32
	FrequencyPenalty float32
	DryMultiplier    float32
	DryBase          float32
	DryAllowedLength int
	DryWindow        int
	DryNoBreakers    bool
	Logprobs         int
	LogitBias        []LogitBias
	Banned, Allowed  []uint32
	DryBreakers      []DryBreaker
}

func (s Sampling) c(a *arena) *C.ember_sampling_options {
	c := (*C.ember_sampling_options)(a.alloc(C.sizeof_ember_sampling_options))
	c.struct_size = C.sizeof_ember_sampling_options
	c.temperature, c.seed, c.top_k = C.float(s.Temperature), C.uint64_t(s.Seed), C.uint32_t(s.TopK)
	c.top_p, c.min_p, c.typical_p = C.float(s.TopP), C.float(s.MinP), C.float(s.TypicalP)
	c.penalty_window, c.repeat_penalty = C.uint32_t(s.PenaltyWindow), C.float(s.RepeatPenalty)
	c.presence_penalty, c.frequency_penalty = C.float(s.PresencePenalty), C.float(s.FrequencyPenalty)
	c.dry_multiplier, c.dry_base = C.float(s.DryMultiplier), C.float(s.DryBase)
	c.dry_allowed_length, c.dry_window = C.uint32_t(s.DryAllowedLength), C.uint32_t(s.DryWindow)
	if s.DryNoBreakers {
		c.dry_no_breakers = 1
	}
	c.logprobs = C.uint32_t(s.Logprobs)
	c.banned, c.banned_count = a.tokens(s.Banned)
	c.allowed, c.allowed_count = a.tokens(s.Allowed)
	if n := len(s.LogitBias); n > 0 {
		c.logit_bias = (*C.ember_logit_bias)(a.alloc(uintptr(n) * C.sizeof_ember_logit_bias))
		c.logit_bias_count = C.size_t(n)
		biases := unsafe.Slice(c.logit_bias, n)
		for i, bias := range s.LogitBias {
			biases[i].token, biases[i].bias = C.uint32_t(bias.Token), C.float(bias.Bias)
		}
	}
	if n := len(s.DryBreakers); n > 0 {
		c.dry_breakers = (*C.ember_dry_breaker)(a.alloc(uintptr(n) * C.sizeof_ember_dry_breaker))
		c.dry_breaker_count = C.size_t(n)
		breakers := unsafe.Slice(c.dry_breakers, n)
		for i, breaker := range s.DryBreakers {
			if len(breaker.Tokens) > 0 {
				breakers[i].tokens, breakers[i].token_count = a.tokens(breaker.Tokens)
			} else {
				breakers[i].text, breakers[i].text_len = a.text(breaker.Text)
			}
		}
	}
	return c
}

// SessionOptions say how to make a session; the zero value is the default.
type SessionOptions struct {
	Context        int // 0: the model's, but at most 4096
	KVType         KVType
	StreamPriority int
	MarkInterval   int // the most positions of recurrent layers that a rewind evaluates again; 0: four copies
	Sampling       Sampling
}

// Options of GPUs behind others, if there are any.
func cudaSession(a *arena, priority int) unsafe.Pointer {
	if priority == 0 {
		return nil
	}
	c := (*C.ember_cuda_session_options)(a.alloc(C.sizeof_ember_cuda_session_options))
	c.struct_size, c.kind = C.sizeof_ember_cuda_session_options, C.EMBER_CHAIN_CUDA_SESSION
	c.stream_priority = C.int32_t(priority)
	return unsafe.Pointer(c)
}

func (o SessionOptions) c(a *arena) *C.ember_session_options {
	c := (*C.ember_session_options)(a.alloc(C.sizeof_ember_session_options))
	c.struct_size = C.sizeof_ember_session_options
	c.context, c.kv_type, c.mark_interval = C.uint32_t(o.Context), C.uint32_t(o.KVType), C.uint32_t(o.MarkInterval)
	c.next = cudaSession(a, o.StreamPriority)
	c.sampling = o.Sampling.c(a)
	return c
}

// RestoreOptions say how to restore a session; the zero value keeps what was saved.
type RestoreOptions struct {
	Context        int
	KVType         KVType
	StreamPriority int
	MarkInterval   int
	// Those that it was saved with.
	Adapters []AdapterUse
}

func (o RestoreOptions) c(a *arena) *C.ember_restore_options {
	c := (*C.ember_restore_options)(a.alloc(C.sizeof_ember_restore_options))
	c.struct_size = C.sizeof_ember_restore_options
	c.context, c.kv_type, c.mark_interval = C.uint32_t(o.Context), C.uint32_t(o.KVType), C.uint32_t(o.MarkInterval)
	c.next = cudaSession(a, o.StreamPriority)
	c.adapters, c.adapter_count = cAdapters(a, o.Adapters)
	return c
}

// Adapter is a LoRA adapter of a model. Any number of sessions and goroutines may use it at once.
type Adapter struct{ handle }

// AdapterUse is an adapter that a session uses, and how much it counts: 1 for as much as it was trained to.
type AdapterUse struct {
	Adapter *Adapter
	Scale   float32
}

// AdapterInfo are facts about an adapter.
type AdapterInfo struct {
	Rank, Tensors                             int
	Parameters, FileBytes, Bytes, Fingerprint uint64
	Name                                      string
}

func cAdapters(a *arena, uses []AdapterUse) (*C.ember_adapter_use, C.size_t) {
	if len(uses) == 0 {
		return nil, 0
	}
	c := (*C.ember_adapter_use)(a.alloc(C.sizeof_ember_adapter_use * uintptr(len(uses))))
	all := unsafe.Slice(c, len(uses))
	for i, use := range uses {
		// A number that looks like no address: see the handles of the library.
		*(*C.uintptr_t)(unsafe.Pointer(&all[i].adapter)) = use.Adapter.get()
		all[i].scale = C.float(use.Scale)
	}
	return c, C.size_t(len(uses))
}

// LoadAdapter loads a LoRA adapter for the model: a folder as PEFT writes it, or a GGUF file.
func (m *Model) LoadAdapter(path string) (*Adapter, error) {
	defer runtime.KeepAlive(m)
	var a arena
	defer a.free()
	name, length := a.text(path)
	var raw C.uintptr_t
	var err C.ember_error
	if e := check(C.go_ember_adapter_load(m.get(), name, length, &raw, &err), &err); e != nil {
		return nil, e
	}
	t := &Adapter{}
	t.raw.Store(uintptr(raw))
	runtime.SetFinalizer(t, func(t *Adapter) { _ = t.Close() })
	return t, nil
}

// Close frees the adapter. Sessions that use it go on with it.
func (t *Adapter) Close() error {
	return t.close(func(raw C.uintptr_t) C.ember_status { return C.go_ember_adapter_free(raw) })
}

// Info gives facts about the adapter.
func (t *Adapter) Info() (AdapterInfo, error) {
	defer runtime.KeepAlive(t)
	var err C.ember_error
	var d C.ember_adapter_details
	d.struct_size = C.sizeof_ember_adapter_details
	if e := check(C.go_ember_adapter_info(t.get(), &d, &err), &err); e != nil {
		return AdapterInfo{}, e
	}
	return AdapterInfo{int(d.rank), int(d.tensor_count), uint64(d.parameter_count), uint64(d.file_bytes), uint64(d.memory_bytes),
		uint64(d.fingerprint), C.GoString(&d.name[0])}, nil
}

// SetAdapters has the session use these adapters from now on, in place of those before. What it has read is evaluated again,
// unless keep.
func (s *Session) SetAdapters(adapters []AdapterUse, keep bool) error {
	defer runtime.KeepAlive(adapters)
	var a arena
	defer a.free()
	uses, count := cAdapters(&a, adapters)
	flags := C.uint32_t(0)
	if keep {
		flags = C.EMBER_ADAPTERS_KEEP
	}
	return s.call(func(raw C.uintptr_t, err *C.ember_error) C.ember_status {
		return C.go_ember_session_set_adapters(raw, uses, count, flags, err)
	})
}

// Estimate is memory that a model, or a part of it, and a session would take.
type Estimate struct {
	Device, Context, Parts, FirstLayer, Layers, CPUExpertLayers                        int
	WeightsBytes, KVBytesPerToken, KVBytes, ModelWorkspaceBytes, SessionWorkspaceBytes uint64
}

// EstimateModel reads only the header of the file. model may be nil.
func EstimateModel(path string, model *ModelOptions, session SessionOptions) (Estimate, error) {
	var a arena
	defer a.free()
	var err C.ember_error
	var d C.ember_estimate
	d.struct_size = C.sizeof_ember_estimate
	name, length := a.text(path)
	options := model.c(&a, 0)
	if e := check(C.ember_model_estimate(name, length, options, session.c(&a), &d, &err), &err); e != nil {
		return Estimate{}, e
	}
	return estimateOf(&d), nil
}

func estimateOf(d *C.ember_estimate) Estimate {
	return Estimate{int(d.device), int(d.context), int(d.part_count), int(d.first_layer), int(d.device_layer_count), int(d.cpu_expert_layer_count),
		uint64(d.weights_bytes), uint64(d.kv_bytes_per_token), uint64(d.kv_bytes), uint64(d.model_workspace_bytes), uint64(d.session_workspace_bytes)}
}

// EstimateModelPart is EstimateModel for one part of a model that several devices share: the first layers are part 0.
func EstimateModelPart(path string, model *ModelOptions, session SessionOptions, part int) (Estimate, error) {
	var a arena
	defer a.free()
	var err C.ember_error
	var d C.ember_estimate
	d.struct_size = C.sizeof_ember_estimate
	name, length := a.text(path)
	options := model.c(&a, 0)
	if e := check(C.ember_model_estimate_part(name, length, options, session.c(&a), C.size_t(part), &d, &err), &err); e != nil {
		return Estimate{}, e
	}
	return estimateOf(&d), nil
}

// StateInfo is what the file of a saved session is.
type StateInfo struct {
	Version                                            uint32
	Kind                                               StateKind
	KVType                                             KVType
	Context, Position                                  int
	FileBytes, ModelFingerprint, VocabularyFingerprint uint64
	Architecture, ModelName                            string
	// Fingerprints of its adapters.
	Adapters []uint64
}

// ReadStateInfo reads the beginning of the file of a saved session.
func ReadStateInfo(path string) (StateInfo, error) {
	var a arena
	defer a.free()
	var err C.ember_error
	var d C.ember_state_details
	d.struct_size = C.sizeof_ember_state_details
	name, length := a.text(path)
	if e := check(C.ember_session_state_info(name, length, &d, &err), &err); e != nil {
		return StateInfo{}, e
	}
	var adapters []uint64
	for _, fingerprint := range d.adapter_fingerprints[:d.adapter_count] {
		adapters = append(adapters, uint64(fingerprint))
	}
	return StateInfo{uint32(d.version), StateKind(d.kind), KVType(d.kv_type), int(d.context), int(d.position), uint64(d.file_bytes),
		uint64(d.model_fingerprint), uint64(d.tokenizer_fingerprint), C.GoString(&d.architecture[0]), C.GoString(&d.model_name[0]), adapters}, nil
}

// Session is one conversation: a context of tokens. One goroutine at a time may use it.
type Session struct {
	handle
	model *Model
	vocab int
}

func newSession(m *Model, raw C.uintptr_t, vocab int) *Session {
	s := &Session{model: m, vocab: vocab}
	s.raw.Store(uintptr(raw))
	runtime.SetFinalizer(s, func(s *Session) { _ = s.Close() })
	return s
}

func (m *Model) make(call func(a *arena, raw *C.uintptr_t, err *C.ember_error) C.ember_status) (*Session, error) {
	defer runtime.KeepAlive(m)
	info, e := m.Info()
	if e != nil {
		return nil, e
	}
	var a arena
	defer a.free()
	var raw C.uintptr_t
	var err C.ember_error
	if e := check(call(&a, &raw, &err), &err); e != nil {
		return nil, e
	}
	return newSession(m, raw, info.Vocab), nil
}

// NewSession makes a session with an empty context.
func (m *Model) NewSession(options SessionOptions) (*Session, error) {
	return m.make(func(a *arena, raw *C.uintptr_t, err *C.ember_error) C.ember_status {
		return C.go_ember_session_create(m.get(), options.c(a), raw, err)
	})
}

// Restore makes a session from a file that Save has written.
func (m *Model) Restore(path string, options RestoreOptions) (*Session, error) {
	return m.make(func(a *arena, raw *C.uintptr_t, err *C.ember_error) C.ember_status {
		name, length := a.text(path)
		return C.go_ember_session_restore(m.get(), name, length, options.c(a), raw, err)
	})
}

// RestoreFrom makes a session from what SaveTo has written. Nothing is read beyond its end. The reader's errors come back.
func (m *Model) RestoreFrom(reader io.Reader, options RestoreOptions) (s *Session, e error) {
	c := &callback{read: reader}
	failed := c.run(func(user C.uintptr_t) error {
		s, e = m.make(func(a *arena, raw *C.uintptr_t, err *C.ember_error) C.ember_status {
			return C.go_ember_session_restore_from(m.get(), C.ember_read_fn(C.emberlm_go_read), user, options.c(a), raw, err)
		})
		return e
	})
	return s, failed
}

// Close frees the session. A call with it in another goroutine is interrupted.
func (s *Session) Close() error {
	return s.close(func(raw C.uintptr_t) C.ember_status { return C.go_ember_session_free(raw) })
}

// Runs a call that takes the session and an error.
func (s *Session) call(f func(raw C.uintptr_t, err *C.ember_error) C.ember_status) error {
	defer runtime.KeepAlive(s)
	var err C.ember_error
	return check(f(s.get(), &err), &err)
}

// SessionInfo is the state of a session.
type SessionInfo struct {
	Context, Position int
	KVBytes           uint64
}

// Info gives the state of the session; any goroutine may call it.
func (s *Session) Info() (SessionInfo, error) {
	var d C.ember_session_details
	d.struct_size = C.sizeof_ember_session_details
	e := s.call(func(raw C.uintptr_t, err *C.ember_error) C.ember_status { return C.go_ember_session_info(raw, &d, err) })
	return SessionInfo{int(d.context), int(d.position), uint64(d.kv_bytes)}, e
}

// Position is the number of tokens in the context; any goroutine may call it.
func (s *Session) Position() (int, error) {
	var position C.size_t
	e := s.call(func(raw C.uintptr_t, err *C.ember_error) C.ember_status {
		return C.go_ember_session_position(raw, &position, err)
	})
	return int(position), e
}

// Tokens gives the tokens of the context from a position on.
func (s *Session) Tokens(from int) ([]uint32, error) {
	defer runtime.KeepAlive(s)
	return filledTokens(256, func(out *C.uint32_t, room C.size_t, n *C.size_t, err *C.ember_error) C.ember_status {
		return C.go_ember_session_tokens(s.get(), C.size_t(from), out, room, n, err)
	})
}

// Prefill appends tokens to the context and evaluates them.
func (s *Session) Prefill(tokens []uint32) error {
	return s.call(func(raw C.uintptr_t, err *C.ember_error) C.ember_status {
		return C.go_ember_prefill(raw, tokenPointer(tokens), C.size_t(len(tokens)), err)
	})
}

// StartPrefill starts what Prefill does and returns at once.
func (s *Session) StartPrefill(tokens []uint32) error {
	return s.call(func(raw C.uintptr_t, err *C.ember_error) C.ember_status {
		return C.go_ember_prefill_start(raw, tokenPointer(tokens), C.size_t(len(tokens)), err)
	})
}

// PollPrefill tells whether a started prefill is done, and how many of its tokens are evaluated. It never blocks.
func (s *Session) PollPrefill() (done bool, evaluated int, e error) {
	var n C.size_t
	e = s.call(func(raw C.uintptr_t, err *C.ember_error) C.ember_status { return C.go_ember_prefill_poll(raw, &n, err) })
	if errors.Is(e, StatusPending) {
		return false, int(n), nil
	}
	return e == nil, int(n), e
}

// Sync makes the tokens the context and evaluates only what is new. It returns how many were kept.
func (s *Session) Sync(tokens []uint32) (kept int, e error) {
	var n C.size_t
	e = s.call(func(raw C.uintptr_t, err *C.ember_error) C.ember_status {
		return C.go_ember_session_sync(raw, tokenPointer(tokens), C.size_t(len(tokens)), &n, err)
	})
	return int(n), e
}

// Decode gives the next token.
func (s *Session) Decode() (uint32, error) {
	token, e := s.DecodeToken()
	return token.ID, e
}

// Token is a token that was decoded.
type Token struct {
	ID         uint32
	Ends       bool // it ends an answer
	Forced     bool // the grammar allowed no other
	HasLogprob bool
	Logprob    float32 // natural logarithm of its probability, if Sampling.Logprobs asks for it
	Status     Status  // of a batch, what its session has come to
}

func goToken(t *C.ember_token) Token {
	return Token{
		uint32(t.id), t.flags&C.EMBER_TOKEN_ENDS != 0, t.flags&C.EMBER_TOKEN_FORCED != 0, t.flags&C.EMBER_TOKEN_HAS_LOGPROB != 0,
		float32(t.logprob), Status(t.status),
	}
}

func sizedToken() (token C.ember_token) {
	token.struct_size = C.sizeof_ember_token
	return token
}

// DecodeToken gives the next token, with what is known of it.
func (s *Session) DecodeToken() (Token, error) {
	token := sizedToken()
	e := s.call(func(raw C.uintptr_t, err *C.ember_error) C.ember_status { return C.go_ember_decode(raw, &token, err) })
	return goToken(&token), e
}

// SetEvent has the session set an event whenever a poll may find something new; nil ends that.
func (s *Session) SetEvent(event *Event) error {
	defer runtime.KeepAlive(event)
	var other C.uintptr_t
	if event != nil {
		other = event.get()
	}
	return s.call(func(raw C.uintptr_t, err *C.ember_error) C.ember_status {
		return C.go_ember_session_set_event(raw, other, err)
	})
}

// Model gives the session's model, also if the one that it was made of is closed.
func (s *Session) Model() (*Model, error) {
	var model C.uintptr_t
	e := s.call(func(raw C.uintptr_t, err *C.ember_error) C.ember_status {
		return C.go_ember_session_model(raw, &model, err)
	})
	if e != nil {
		return nil, e
	}
	return newModel(model), nil
}

// StartDecode starts count decodes and returns at once.
func (s *Session) StartDecode(count int) error {
	return s.call(func(raw C.uintptr_t, err *C.ember_error) C.ember_status {
		if count == 1 {
			return C.go_ember_decode_start(raw, err)
		}
		return C.go_ember_decode_start_n(raw, C.size_t(count), err)
	})
}

// PollDecode gives the next token of the started decodes; ok is false if it is not there yet. It never blocks.
func (s *Session) PollDecode() (token uint32, ok bool, e error) {
	t := sizedToken()
	e = s.call(func(raw C.uintptr_t, err *C.ember_error) C.ember_status { return C.go_ember_decode_poll(raw, &t, err) })
	if errors.Is(e, StatusPending) {
		return 0, false, nil
	}
	return uint32(t.id), e == nil, e
}

func rawSessions(sessions []*Session) []C.uintptr_t {
	raw := make([]C.uintptr_t, len(sessions)+1)
	for i, s := range sessions {
		raw[i] = s.get()
	}
	return raw
}

// DecodeEach gives the next token of each session, in one pass over the weights: different sessions of one model. The error is
// that of the first session that failed, whose Token has it as its Status; the others have gone on.
func DecodeEach(sessions []*Session) ([]Token, error) {
	defer runtime.KeepAlive(sessions)
	raw := rawSessions(sessions)
	made := make([]C.ember_token, len(sessions)+1)
	made[0] = sizedToken()
	made[0].id = C.EMBER_NO_TOKEN
	var err C.ember_error
	e := check(C.go_ember_decode_batch(&raw[0], C.size_t(len(sessions)), &made[0], &err), &err)
	tokens := make([]Token, len(sessions))
	for i := range tokens {
		tokens[i] = goToken(&made[i])
	}
	return tokens, e
}

// DecodeBatch is DecodeEach for those who want the ids.
func DecodeBatch(sessions []*Session) ([]uint32, error) {
	tokens, e := DecodeEach(sessions)
	ids := make([]uint32, len(tokens))
	for i, token := range tokens {
		ids[i] = token.ID
	}
	return ids, e
}

// StartDecodeBatch starts a decode of each in one pass; PollDecode has the tokens.
func StartDecodeBatch(sessions []*Session) error {
	defer runtime.KeepAlive(sessions)
	raw := rawSessions(sessions)
	var err C.ember_error
	return check(C.go_ember_decode_batch_start(&raw[0], C.size_t(len(sessions)), &err), &err)
}

// GenerateOptions say what to generate, and when to end; the zero value ends with the answer.
type GenerateOptions struct {
	Limit       int      // the most tokens; 0: as many as the context has room for
	Stops       []string // strings at which the text ends
	ShowSpecial bool     // spell the names of control tokens
	IgnoreEnd   bool     // go on behind tokens that end an answer
	NewText     bool     // the text is an answer and not the rest of the prompt's
	// OnText gets each piece of text, which may be empty, and the token that was generated last; its ID is NoToken for text that was
	// held back until the end. ErrStop ends the generation without an error. Another error ends it and is returned by Generate.
	OnText func(text string, token Token) error
}

// ErrStop is returned by OnText to end a generation.
var ErrStop = errors.New("emberlm: stop generating")

// Generated is what was generated.
type Generated struct {
	Text     string
	End      GenerateEnd
	Stop     int    // index of the stop string that was met, or -1
	Token    uint32 // the last one, or NoToken
	Position int    // where the tokens begin in the context
	Tokens   int
}

func cStops(a *arena, stops []string) (*C.ember_stop, C.size_t) {
	if len(stops) == 0 {
		return nil, 0
	}
	p := (*C.ember_stop)(a.alloc(uintptr(len(stops)) * C.sizeof_ember_stop))
	for i, stop := range stops {
		one := &unsafe.Slice(p, len(stops))[i]
		one.text, one.len = a.text(stop)
	}
	return p, C.size_t(len(stops))
}

func (options *GenerateOptions) c(a *arena, prompt []uint32) *C.ember_generate_options {
	o := (*C.ember_generate_options)(a.alloc(C.sizeof_ember_generate_options))
	o.struct_size = C.sizeof_ember_generate_options
	if options.ShowSpecial {
		o.flags |= C.EMBER_GENERATE_SHOW_SPECIAL
	}
	if options.IgnoreEnd {
		o.flags |= C.EMBER_GENERATE_IGNORE_END
	}
	if options.NewText {
		o.flags |= C.EMBER_GENERATE_NEW_TEXT
	}
	o.prompt, o.prompt_count = a.tokens(prompt)
	o.max_tokens = C.uint64_t(options.Limit)
	o.stops, o.stop_count = cStops(a, options.Stops)
	return o
}

func goGenerated(text string, d *C.ember_generate_details) Generated {
	made := Generated{text, GenerateEnd(d.end), -1, uint32(d.token), int(d.position), int(d.token_count)}
	if d.stop != C.EMBER_NO_INDEX {
		made.Stop = int(d.stop)
	}
	return made
}

// StartGenerate starts what Generate does; NextPiece returns the text piece by piece, Finish ends it. OnText is not called.
func (s *Session) StartGenerate(prompt []uint32, options GenerateOptions) error {
	var a arena
	defer a.free()
	o := options.c(&a, prompt)
	return s.call(func(raw C.uintptr_t, err *C.ember_error) C.ember_status {
		return C.go_ember_generate_start(raw, o, err)
	})
}

// NextPiece gives the next piece of a generation, whose token is NoToken with the last one. Without wait, ok is false if it is not
// there yet.
func (s *Session) NextPiece(wait bool) (text string, token Token, ok bool, e error) {
	t, flags := sizedToken(), C.uint32_t(C.EMBER_NEXT_NO_WAIT)
	if wait {
		flags = 0
	}
	defer runtime.KeepAlive(s)
	text, e = filledText(64, func(out *C.char, room C.size_t, n *C.size_t, err *C.ember_error) C.ember_status {
		return C.go_ember_generate_next(s.get(), flags, out, room, n, &t, err)
	})
	if errors.Is(e, StatusPending) {
		return "", token, false, nil
	}
	return text, goToken(&t), e == nil, e
}

// Finish ends a generation that was started, at any time. Text of the result is empty.
func (s *Session) Finish() (Generated, error) {
	var d C.ember_generate_details
	d.struct_size = C.sizeof_ember_generate_details
	e := s.call(func(raw C.uintptr_t, err *C.ember_error) C.ember_status {
		return C.go_ember_generate_finish(raw, &d, err)
	})
	return goGenerated("", &d), e
}

// Generate appends a prompt, which may be empty, and decodes until there is a reason to end. When the context is done, it ends
// with the context's error and with what was generated until then.
func (s *Session) Generate(ctx context.Context, prompt []uint32, options GenerateOptions) (made Generated, e error) {
	if ctx.Err() != nil {
		return made, ctx.Err()
	}
	var text strings.Builder
	c := &callback{piece: func(piece string, token Token) error {
		text.WriteString(piece)
		if options.OnText == nil {
			return nil
		}
		return options.OnText(piece, token)
	}}
	if ctx.Done() != nil {
		stop := watchDone(ctx, func() { _ = s.Interrupt() })
		defer func() {
			stop()
			if ctx.Err() != nil && (made.End == EndInterrupted || errors.Is(e, StatusInterrupted)) {
				e = ctx.Err()
			} else if ctx.Err() != nil {
				_ = s.ClearInterrupt() // it came too late
			}
		}()
	}
	e = c.run(func(user C.uintptr_t) error {
		var a arena
		defer a.free()
		o := options.c(&a, prompt)
		o.piece = C.ember_piece_fn(C.emberlm_go_piece)
		C.emberlm_go_set_piece_user(o, user)
		var d C.ember_generate_details
		d.struct_size = C.sizeof_ember_generate_details
		if e := s.call(func(raw C.uintptr_t, err *C.ember_error) C.ember_status { return C.go_ember_generate(raw, o, &d, err) }); e != nil {
			return e
		}
		made = goGenerated(text.String(), &d)
		return nil
	})
	if errors.Is(e, ErrStop) {
		e = nil
	}
	return made, e
}

// Chat gives the answer to a conversation, of which only what is new is read.
func (s *Session) Chat(ctx context.Context, messages []Message, options GenerateOptions) (Generated, error) {
	conversation, e := Conversation(messages, nil)
	if e != nil {
		return Generated{}, e
	}
	tokens, e := s.model.ChatTokenize(conversation, ChatOptions{})
	if e != nil {
		return Generated{}, e
	}
	if _, e := s.Sync(tokens); e != nil {
		return Generated{}, e
	}
	options.NewText = true
	return s.Generate(ctx, nil, options)
}

// Logits gives those that the next decode will choose by, one per token id.
func (s *Session) Logits() ([]float32, error) {
	logits := make([]float32, s.vocab)
	e := s.call(func(raw C.uintptr_t, err *C.ember_error) C.ember_status {
		return C.go_ember_session_logits(raw, (*C.float)(unsafe.Pointer(&logits[0])), C.size_t(len(logits)), err)
	})
	return logits, e
}

// Logprobs are natural logarithms of probabilities.
type Logprobs struct {
	Chosen   float32
	Tokens   []uint32 // the most probable ones
	Logprobs []float32
}

// Logprobs tells how probable the last decoded token was (Sampling.Logprobs).
func (s *Session) Logprobs() (Logprobs, error) {
	tokens, logprobs := make([]uint32, 64), make([]float32, 64)
	var chosen C.float
	var n C.size_t
	e := s.call(func(raw C.uintptr_t, err *C.ember_error) C.ember_status {
		return C.go_ember_session_logprobs(raw, &chosen, tokenPointer(tokens), (*C.float)(unsafe.Pointer(&logprobs[0])), 64, &n, err)
	})
	if e != nil {
		return Logprobs{}, e
	}
	return Logprobs{float32(chosen), tokens[:n], logprobs[:n]}, nil
}

// SetSampling changes how tokens are chosen.
func (s *Session) SetSampling(sampling Sampling) error {
	var a arena
	defer a.free()
	return s.call(func(raw C.uintptr_t, err *C.ember_error) C.ember_status {
		return C.go_ember_session_set_sampling(raw, sampling.c(&a), err)
	})
}

// SetGrammar holds the answers to a grammar; GrammarNone takes it away.
func (s *Session) SetGrammar(kind GrammarKind, grammar string, spacing JSONSpacing) error {
	var a arena
	defer a.free()
	return s.call(func(raw C.uintptr_t, err *C.ember_error) C.ember_status {
		o := (*C.ember_grammar_options)(a.alloc(C.sizeof_ember_grammar_options))
		o.struct_size, o.json_spacing = C.sizeof_ember_grammar_options, C.uint32_t(spacing)
		text, length := a.text(grammar)
		return C.go_ember_session_set_grammar(raw, C.uint32_t(kind), text, length, o, err)
	})
}

// SetJSONSchema holds the answers to a JSON schema.
func (s *Session) SetJSONSchema(schema string) error {
	return s.SetGrammar(GrammarJSONSchema, schema, JSONSpaced)
}

// Speculation is how a session drafts, and what its drafts have come to.
type Speculation struct {
	Source                   DraftSource
	MaxDrafts, Depth         int
	Steps, Drafted, Accepted uint64
}

// Draft verifies drafts of what comes next: faster, with the same tokens. DraftsModel takes a smaller model with the same
// vocabulary, DraftsHeads the model's own heads (ModelOptions.DraftHeads), DraftsNone ends drafting; maxDrafts 0 is the default.
func (s *Session) Draft(source DraftSource, model *Model, maxDrafts int) error {
	var a arena
	defer a.free()
	return s.call(func(raw C.uintptr_t, err *C.ember_error) C.ember_status {
		o := (*C.ember_speculation_options)(a.alloc(C.sizeof_ember_speculation_options))
		o.struct_size, o.source, o.max_drafts = C.sizeof_ember_speculation_options, C.uint32_t(source), C.uint32_t(maxDrafts)
		if model != nil {
			defer runtime.KeepAlive(model)
			*(*C.uintptr_t)(unsafe.Pointer(&o.draft_model)) = model.get()
		}
		return C.go_ember_session_set_speculation(raw, o, err)
	})
}

// Speculation says what the drafts have come to.
func (s *Session) Speculation() (Speculation, error) {
	var out C.ember_speculation_details
	out.struct_size = C.sizeof_ember_speculation_details
	err := s.call(func(raw C.uintptr_t, err *C.ember_error) C.ember_status {
		return C.go_ember_session_speculation_info(raw, &out, err)
	})
	return Speculation{DraftSource(out.source), int(out.max_drafts), int(out.depth), uint64(out.steps), uint64(out.drafted), uint64(out.accepted)}, err
}

// Rewind keeps the first position tokens.
func (s *Session) Rewind(position int) error {
	return s.call(func(raw C.uintptr_t, err *C.ember_error) C.ember_status {
		return C.go_ember_session_rewind(raw, C.size_t(position), err)
	})
}

// Erase takes tokens out of the middle of the context.
func (s *Session) Erase(from, count int) error {
	return s.call(func(raw C.uintptr_t, err *C.ember_error) C.ember_status {
		return C.go_ember_session_erase(raw, C.size_t(from), C.size_t(count), err)
	})
}

// Fork makes another session with the same context.
func (s *Session) Fork() (*Session, error) {
	var fork C.uintptr_t
	if e := s.call(func(raw C.uintptr_t, err *C.ember_error) C.ember_status {
		return C.go_ember_session_fork(raw, &fork, err)
	}); e != nil {
		return nil, e
	}
	return newSession(s.model, fork, s.vocab), nil
}

// Interrupt ends the call that is running in another goroutine, or the next one, with StatusInterrupted.
func (s *Session) Interrupt() error {
	return s.call(func(raw C.uintptr_t, _ *C.ember_error) C.ember_status { return C.go_ember_session_interrupt(raw) })
}

// ClearInterrupt takes an interrupt back that no call has answered.
func (s *Session) ClearInterrupt() error {
	return s.call(func(raw C.uintptr_t, _ *C.ember_error) C.ember_status { return C.go_ember_session_clear_interrupt(raw) })
}

func cSave(a *arena, kind StateKind) *C.ember_save_options {
	o := (*C.ember_save_options)(a.alloc(C.sizeof_ember_save_options))
	o.struct_size, o.kind = C.sizeof_ember_save_options, C.uint32_t(kind)
	return o
}

// Save writes the session to a file.
func (s *Session) Save(path string, kind StateKind) error {
	var a arena
	defer a.free()
	return s.call(func(raw C.uintptr_t, err *C.ember_error) C.ember_status {
		name, length := a.text(path)
		return C.go_ember_session_save(raw, name, length, cSave(&a, kind), err)
	})
}

// SaveTo writes the session to a writer, whose errors come back.
func (s *Session) SaveTo(writer io.Writer, kind StateKind) error {
	c := &callback{write: writer}
	return c.run(func(user C.uintptr_t) error {
		var a arena
		defer a.free()
		return s.call(func(raw C.uintptr_t, err *C.ember_error) C.ember_status {
			return C.go_ember_session_save_to(raw, C.ember_write_fn(C.emberlm_go_write), user, cSave(&a, kind), err)
		})
	})
}

// Evict moves the state to host memory until it is needed.
func (s *Session) Evict() error {
	return s.call(func(raw C.uintptr_t, err *C.ember_error) C.ember_status { return C.go_ember_session_evict(raw, err) })
}

// Resume moves the state of an evicted session back now.
func (s *Session) Resume() error {
	return s.call(func(raw C.uintptr_t, err *C.ember_error) C.ember_status { return C.go_ember_session_resume(raw, err) })
}

// ProfileEntry is what one kind of work took in a decode.
type ProfileEntry struct {
	Name         string
	Calls        int
	Microseconds float64
	Bytes        uint64
}

// Profile tells where the time of a decode goes.
func (s *Session) Profile() ([]ProfileEntry, error) {
	var raw64 [64]C.ember_profile_entry
	raw64[0].struct_size = C.sizeof_ember_profile_entry
	var n C.size_t
	e := s.call(func(raw C.uintptr_t, err *C.ember_error) C.ember_status {
		return C.go_ember_session_profile(raw, &raw64[0], 64, &n, err)
	})
	if e != nil {
		return nil, e
	}
	entries := make([]ProfileEntry, int(n))
	for i := range entries {
		c := &raw64[i]
		entries[i] = ProfileEntry{C.GoString(&c.name[0]), int(c.calls), float64(c.microseconds), uint64(c.bytes)}
	}
	return entries, nil
}

// TextStream turns tokens into text while they are made: whole characters only, up to a stop string.
type TextStream struct{ handle }

// TextStreamOptions say how to make a text stream.
type TextStreamOptions struct {
	Stops       []string
	SkipSpecial bool // leave out control tokens instead of spelling their names
}

// NewTextStream makes a text stream for the model's tokens.
func (m *Model) NewTextStream(options TextStreamOptions) (*TextStream, error) {
	defer runtime.KeepAlive(m)
	var a arena
	defer a.free()
	o := (*C.ember_text_stream_options)(a.alloc(C.sizeof_ember_text_stream_options))
	o.struct_size = C.sizeof_ember_text_stream_options
	if options.SkipSpecial {
		o.flags = C.EMBER_TEXT_STREAM_SKIP_SPECIAL
	}
	o.stops, o.stop_count = cStops(&a, options.Stops)
	var raw C.uintptr_t
	var err C.ember_error
	if e := check(C.go_ember_text_stream_create(m.get(), o, &raw, &err), &err); e != nil {
		return nil, e
	}
	t := &TextStream{}
	t.raw.Store(uintptr(raw))
	runtime.SetFinalizer(t, func(t *TextStream) { _ = t.Close() })
	return t, nil
}

// Close frees the stream.
func (t *TextStream) Close() error {
	return t.close(func(raw C.uintptr_t) C.ember_status { return C.go_ember_text_stream_free(raw) })
}

// Push takes tokens and gives the text that is certain now.
func (t *TextStream) Push(tokens ...uint32) (string, error) {
	defer runtime.KeepAlive(t)
	return filledText(8*len(tokens)+64, func(out *C.char, room C.size_t, n *C.size_t, err *C.ember_error) C.ember_status {
		return C.go_ember_text_stream_push(t.get(), tokenPointer(tokens), C.size_t(len(tokens)), out, room, n, err)
	})
}

// Finish gives the text that was held back; the stream is as new then.
func (t *TextStream) Finish() (string, error) {
	defer runtime.KeepAlive(t)
	return filledText(64, func(out *C.char, room C.size_t, n *C.size_t, err *C.ember_error) C.ember_status {
		return C.go_ember_text_stream_finish(t.get(), out, room, n, err)
	})
}

// Stopped tells whether a stop string was met, which one, and how many tokens were taken.
func (t *TextStream) Stopped() (stopped bool, stop, tokens int, e error) {
	defer runtime.KeepAlive(t)
	var err C.ember_error
	var d C.ember_text_stream_details
	d.struct_size = C.sizeof_ember_text_stream_details
	e = check(C.go_ember_text_stream_info(t.get(), &d, &err), &err)
	stop = -1
	if d.stop != C.EMBER_NO_INDEX {
		stop = int(d.stop)
	}
	return d.stopped != 0, stop, int(d.token_count), e
}

// Embedder makes vectors or scores of texts. One goroutine at a time may use it.
type Embedder struct{ handle }

// EmbedderOptions say how to make an embedder. The fields are those of ember_embedder_options.
type EmbedderOptions struct {
	Pooling     Pooling
	Normalize   Normalize
	Dimension   int
	MaxTokens   int
	BatchTokens int
	Truncate    bool
	Instruction string
	Adapters    []AdapterUse
}

// EmbedderInfo are facts about an embedder.
type EmbedderInfo struct {
	Pooling                int
	Dimension              int
	Normalized             bool
	MaxTokens, BatchTokens int
	Bytes                  uint64
}

// NewEmbedder makes an embedder for the model.
func (m *Model) NewEmbedder(options EmbedderOptions) (*Embedder, error) {
	defer runtime.KeepAlive(m)
	defer runtime.KeepAlive(options.Adapters)
	var a arena
	defer a.free()
	o := (*C.ember_embedder_options)(a.alloc(C.sizeof_ember_embedder_options))
	o.struct_size = C.sizeof_ember_embedder_options
	if options.Truncate {
		o.flags = C.EMBER_EMBEDDER_TRUNCATE
	}
	o.pooling, o.normalize, o.dimension = C.uint32_t(options.Pooling), C.uint32_t(options.Normalize), C.uint32_t(options.Dimension)
	o.max_tokens, o.batch_tokens = C.uint32_t(options.MaxTokens), C.uint32_t(options.BatchTokens)
	o.instruction, o.instruction_len = a.text(options.Instruction)
	o.adapters, o.adapter_count = cAdapters(&a, options.Adapters)
	var raw C.uintptr_t
	var err C.ember_error
	if e := check(C.go_ember_embedder_create(m.get(), o, &raw, &err), &err); e != nil {
		return nil, e
	}
	t := &Embedder{}
	t.raw.Store(uintptr(raw))
	runtime.SetFinalizer(t, func(t *Embedder) { _ = t.Close() })
	return t, nil
}

// Close frees the embedder.
func (t *Embedder) Close() error {
	return t.close(func(raw C.uintptr_t) C.ember_status { return C.go_ember_embedder_free(raw) })
}

// Interrupt ends the call that another goroutine is in, or else the next one.
func (t *Embedder) Interrupt() {
	defer runtime.KeepAlive(t)
	C.go_ember_embedder_interrupt(t.get())
}

// Info gives facts about the embedder.
func (t *Embedder) Info() (EmbedderInfo, error) {
	defer runtime.KeepAlive(t)
	var err C.ember_error
	var d C.ember_embedder_details
	d.struct_size = C.sizeof_ember_embedder_details
	if e := check(C.go_ember_embedder_info(t.get(), &d, &err), &err); e != nil {
		return EmbedderInfo{}, e
	}
	return EmbedderInfo{int(d.pooling), int(d.dimension), d.normalized != 0, int(d.max_tokens), int(d.batch_tokens), uint64(d.memory_bytes)}, nil
}

// Embed gives a vector for each text; without pooling, one for each token of all of them.
func (t *Embedder) Embed(texts ...string) ([][]float32, error) {
	defer runtime.KeepAlive(t)
	var a arena
	defer a.free()
	p, n := cTexts(&a, texts)
	return t.rows(len(texts), func(out *C.float, room C.size_t, count *C.size_t, err *C.ember_error) C.ember_status {
		return C.go_ember_embed(t.get(), p, n, out, room, count, err)
	})
}

// EmbedTokens is Embed of tokens, to which none are added.
func (t *Embedder) EmbedTokens(texts ...[]uint32) ([][]float32, error) {
	defer runtime.KeepAlive(t)
	var all []uint32
	counts := make([]C.size_t, len(texts)+1)
	for i, tokens := range texts {
		all = append(all, tokens...)
		counts[i] = C.size_t(len(tokens))
	}
	return t.rows(len(texts), func(out *C.float, room C.size_t, count *C.size_t, err *C.ember_error) C.ember_status {
		return C.go_ember_embed_tokens(t.get(), tokenPointer(all), C.size_t(len(all)), &counts[0], C.size_t(len(texts)), out, room, count, err)
	})
}

// Rerank scores how well each document answers a query.
func (t *Embedder) Rerank(query string, documents ...string) ([][]float32, error) {
	defer runtime.KeepAlive(t)
	var a arena
	defer a.free()
	p, n := cTexts(&a, documents)
	bytes := []byte(query)
	return t.rows(len(documents), func(out *C.float, room C.size_t, count *C.size_t, err *C.ember_error) C.ember_status {
		return C.go_ember_rerank(t.get(), textPointer(bytes), C.size_t(len(bytes)), p, n, out, room, count, err)
	})
}

func cTexts(a *arena, texts []string) (*C.ember_text, C.size_t) {
	if len(texts) == 0 {
		return nil, 0
	}
	p := (*C.ember_text)(a.alloc(uintptr(len(texts)) * C.sizeof_ember_text))
	for i, text := range texts {
		one := &unsafe.Slice(p, len(texts))[i]
		one.text, one.len = a.text(text)
	}
	return p, C.size_t(len(texts))
}

// The rows that fill writes, in a buffer that fits.
func (t *Embedder) rows(guess int, fill func(out *C.float, room C.size_t, count *C.size_t, err *C.ember_error) C.ember_status) ([][]float32, error) {
	info, e := t.Info()
	if e != nil {
		return nil, e
	}
	buffer := make([]float32, guess*info.Dimension+1)
	for {
		var count C.size_t
		var err C.ember_error
		status := fill((*C.float)(unsafe.Pointer(&buffer[0])), C.size_t(len(buffer)), &count, &err)
		if status == C.EMBER_BUFFER_TOO_SMALL && int(count) > len(buffer) {
			buffer = make([]float32, int(count))
			continue
		}
		if e := check(status, &err); e != nil {
			return nil, e
		}
		rows := make([][]float32, int(count)/info.Dimension)
		for i := range rows {
			rows[i] = buffer[i*info.Dimension : (i+1)*info.Dimension]
		}
		return rows, nil
	}
}
