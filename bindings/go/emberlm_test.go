package emberlm

// The tests compare the package with what the C library answers. EMBERLM_MODEL and EMBERLM_REFERENCE (of bindings/common/reference.c)
// name the files.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	modelPath = os.Getenv("EMBERLM_MODEL")
	reference = map[string]string{}
	model     *Model
	prompt    []uint32
	greedy    []uint32
)

func TestMain(m *testing.M) {
	data, err := os.ReadFile(os.Getenv("EMBERLM_REFERENCE"))
	if err == nil {
		for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
			name, value, _ := strings.Cut(line, "=")
			reference[name] = strings.ReplaceAll(value, "\\n", "\n")
		}
		model, err = Load(modelPath, nil)
	}
	if err == nil {
		prompt, err = model.Tokenize(reference["story"], TokenizeOptions{})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	greedy = referenceTokens("greedy_tokens")
	os.Exit(m.Run())
}

func referenceTokens(name string) (tokens []uint32) {
	for _, number := range strings.Split(reference[name], ",") {
		token, err := strconv.ParseUint(number, 10, 32)
		if err != nil {
			panic(err)
		}
		tokens = append(tokens, uint32(token))
	}
	return tokens
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func get[T any](t *testing.T) func(value T, err error) T {
	return func(value T, err error) T {
		t.Helper()
		must(t, err)
		return value
	}
}

func equal[T any](t *testing.T, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got %#v, want %#v", got, want)
	}
}

func fails(t *testing.T, err error, want Status) *Error {
	t.Helper()
	var e *Error
	if !errors.Is(err, want) || !errors.As(err, &e) || !strings.HasPrefix(err.Error(), want.Error()) {
		t.Fatalf("got %v, want %v", err, want)
	}
	return e
}

func newTestSession(t *testing.T) *Session {
	t.Helper()
	s, err := model.NewSession(SessionOptions{})
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestVersions(t *testing.T) {
	equal(t, Version(), reference["version"])
	must(t, checkABI(abi))
	equal(t, VersionNumber() > 0, true)
	if checkABI(abi+1) == nil {
		t.Fatal("another ABI was taken")
	}
	equal(t, StatusBusy.Error(), "EMBER_BUSY")
	equal(t, Supported(CanGGUF), true)
	usable := 0
	for _, device := range get[[]Device](t)(Devices()) {
		if device.Kind == DeviceCPU && device.Usable && device.Name != "" {
			usable++
		}
	}
	equal(t, usable, 1)
}

func TestModel(t *testing.T) {
	info := get[ModelInfo](t)(model.Info())
	equal(t, info.Vocab, 1424)
	equal(t, get[string](t)(model.Metadata("general.architecture")), info.Architecture)
	equal(t, len(get[[]string](t)(model.MetadataKeys())), info.Metadata)
	ends := get[[]uint32](t)(model.EndTokens())
	equal(t, get[TokenizerInfo](t)(model.TokenizerInfo()).EndTokens, len(ends))
	equal(t, get[bool](t)(model.IsEnd(ends[0])), true)
	equal(t, prompt, referenceTokens("greedy_prompt"))
	equal(t, get[string](t)(model.Detokenize(prompt, DetokenizeOptions{SkipSpecial: true})), reference["story"])
	equal(t, get[string](t)(model.TokenText(prompt[1])), "Once")
	words := strings.Repeat("Grüße, 世界! 🔥 \x00 ", 50)
	tokens := get[[]uint32](t)(model.Tokenize(words, TokenizeOptions{Continue: true}))
	equal(t, get[string](t)(model.Detokenize(tokens, DetokenizeOptions{})), words)
	equal(t, get[[]uint32](t)(model.TokenizeContext(context.Background(), words, TokenizeOptions{Continue: true})), tokens)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := model.TokenizeContext(ctx, words, TokenizeOptions{})
	equal(t, err, context.Canceled)
	equal(t, get[Estimate](t)(EstimateModel(modelPath, nil, SessionOptions{})).Context, 2048)
	equal(t, len(get[[]Part](t)(model.Parts())), 1)
	cpu := uint32(0)
	for get[[]Device](t)(Devices())[cpu].Kind != DeviceCPU {
		cpu++
	}
	shared := &ModelOptions{Devices: []uint32{cpu, cpu}, DeviceLayers: []uint32{2}}
	equal(t, get[Estimate](t)(EstimateModelPart(modelPath, shared, SessionOptions{}, 1)).FirstLayer, 2)
	inParts := get[*Model](t)(Load(modelPath, shared))
	equal(t, get[[]Part](t)(inParts.Parts())[1].FirstLayer, 2)
	must(t, inParts.Close())
	must(t, model.Evict())
	must(t, model.Resume())

	_, err = Load("no such file", nil)
	fails(t, err, StatusFileNotFound)
	_, err = Load(modelPath, &ModelOptions{Device: 1000})
	fails(t, err, StatusNoDevice)
	_, err = model.Metadata("no.such.key")
	fails(t, err, StatusMissingKey)
	_, err = model.Tokenize("\xff\xfe", TokenizeOptions{})
	fails(t, err, StatusInvalidUTF8)
	_, err = model.NewSession(SessionOptions{Sampling: Sampling{TopP: 2}})
	fails(t, err, StatusInvalidArgument)
	equal(t, fails(t, newTestSession(t).Prefill([]uint32{1, 2, 4000000000}), StatusInvalidToken).Index, 2)
}

type brokenReader struct{}

var errMine = errors.New("mine")

func (brokenReader) ReadAt([]byte, int64) (int, error) { return 0, errMine }

func TestSources(t *testing.T) {
	data := get[[]byte](t)(os.ReadFile(modelPath))
	m := get[*Model](t)(LoadReaderAt(bytes.NewReader(data), int64(len(data)), nil))
	s := get[*Session](t)(m.NewSession(SessionOptions{}))
	equal(t, get[Generated](t)(s.Generate(context.Background(), prompt, GenerateOptions{Limit: 40})).Text, reference["greedy_text"])
	must(t, s.Close())
	must(t, m.Close())
	_, err := LoadReaderAt(brokenReader{}, int64(len(data)), nil)
	equal(t, err, errMine)
	last := float32(-1)
	m = get[*Model](t)(Load(modelPath, &ModelOptions{Progress: func(f float32) error { last = f; return nil }}))
	must(t, m.Close())
	equal(t, last, 1)
	_, err = Load(modelPath, &ModelOptions{Progress: func(float32) error { return errMine }})
	equal(t, err, errMine)
	func() {
		defer func() { equal(t, recover(), any("mine")) }()
		_, _ = Load(modelPath, &ModelOptions{Progress: func(float32) error { panic("mine") }})
		t.Fatal("the panic was lost")
	}()
}

func TestAnswers(t *testing.T) {
	s := newTestSession(t)
	must(t, s.Prefill(prompt))
	for _, want := range greedy {
		equal(t, get[uint32](t)(s.Decode()), want)
	}
	equal(t, get[int](t)(s.Position()), len(prompt)+len(greedy))
	equal(t, get[SessionInfo](t)(s.Info()).Position, len(prompt)+len(greedy))
	equal(t, get[[]uint32](t)(s.Tokens(len(prompt))), greedy)
	fork := get[*Session](t)(s.Fork())
	equal(t, get[uint32](t)(fork.Decode()), get[uint32](t)(s.Decode()))
	must(t, fork.Close())

	ctx := context.Background()
	must(t, s.Rewind(0))
	pieces := ""
	made := get[Generated](t)(s.Generate(ctx, prompt, GenerateOptions{Limit: 40, OnText: func(text string, _ Token) error { pieces += text; return nil }}))
	equal(t, made.Text, reference["greedy_text"])
	equal(t, pieces, made.Text)
	equal(t, made.End, EndLimit)
	equal(t, made.Position, len(prompt))
	must(t, s.Rewind(0))
	made = get[Generated](t)(s.Generate(ctx, prompt, GenerateOptions{Stops: []string{"xyz", "brush"}}))
	equal(t, made.Text, " One cold morning, she lost her blue ")
	equal(t, made.Stop, 1)
	must(t, s.Rewind(0))
	made = get[Generated](t)(s.Generate(ctx, prompt, GenerateOptions{OnText: func(string, Token) error { return ErrStop }}))
	must(t, s.Rewind(0))
	_, err := s.Generate(ctx, prompt, GenerateOptions{OnText: func(string, Token) error { return errMine }})
	equal(t, err, errMine)
	equal(t, get[int](t)(s.Position()), len(prompt)+1)

	drawn := get[*Session](t)(model.NewSession(SessionOptions{Sampling: Sampling{Temperature: 0.8, Seed: 3, Logprobs: 4}}))
	must(t, drawn.Prefill(prompt))
	for _, want := range referenceTokens("drawn_tokens") {
		equal(t, get[uint32](t)(drawn.Decode()), want)
	}
	equal(t, len(get[Logprobs](t)(drawn.Logprobs()).Tokens), 4)
	must(t, drawn.SetSampling(Sampling{LogitBias: []LogitBias{{7, 1000}}, DryMultiplier: 1, DryBreakers: []DryBreaker{{Text: "\n"}, {Tokens: []uint32{5}}}}))
	must(t, drawn.Rewind(len(prompt)))
	equal(t, get[uint32](t)(drawn.Decode()), 7)
	must(t, drawn.SetSampling(Sampling{Allowed: []uint32{9}}))
	equal(t, get[uint32](t)(drawn.Decode()), 9)
	must(t, drawn.Rewind(len(prompt)))
	best := 0
	logits := get[[]float32](t)(drawn.Logits())
	for i, logit := range logits {
		if logit > logits[best] {
			best = i
		}
	}
	equal(t, uint32(best), greedy[0])
	equal(t, get[[]ProfileEntry](t)(drawn.Profile())[0].Name != "", true)
}

func TestChatAndGrammar(t *testing.T) {
	s, ctx := newTestSession(t), context.Background()
	messages := []Message{{"user", "What is 2 plus 3?"}}
	answer := get[Generated](t)(s.Chat(ctx, messages, GenerateOptions{}))
	equal(t, answer.Text, reference["chat_text"])
	equal(t, answer.End, EndToken)
	messages = append(messages, Message{"assistant", answer.Text}, Message{"user", "say <|end|> \"a\\b\"\n"})
	conversation := get[string](t)(Conversation(messages, nil))
	if text := get[string](t)(model.ChatFormat(conversation, ChatOptions{})); !strings.Contains(text, "say <|end|> \"a\\b\"") {
		t.Fatal(text)
	}
	if kept := get[int](t)(s.Sync(get[[]uint32](t)(model.ChatTokenize(conversation, ChatOptions{})))); kept <= len(referenceTokens("chat_prompt")) {
		t.Fatal(kept)
	}
	own := get[string](t)(Conversation(nil, map[string]any{"word": "Öl"}))
	equal(t, get[string](t)(model.ChatFormat(own, ChatOptions{Template: "{{ word }}!"})), "Öl!")

	must(t, s.Rewind(0))
	must(t, s.SetJSONSchema(reference["schema"]))
	facts := get[[]uint32](t)(model.ChatTokenize(reference["facts"], ChatOptions{}))
	equal(t, get[Generated](t)(s.Generate(ctx, facts, GenerateOptions{NewText: true})).Text, reference["json_text"])
	must(t, s.Rewind(0))
	must(t, s.SetGrammar(GrammarRegex, "[0-9]{3}", JSONSpaced))
	digits := get[Generated](t)(s.Generate(ctx, prompt, GenerateOptions{})).Text
	if _, err := strconv.Atoi(digits); err != nil || len(digits) != 3 {
		t.Fatal(digits)
	}
	must(t, s.SetGrammar(GrammarNone, "", JSONSpaced))
	must(t, s.Rewind(0))
	must(t, s.Draft(DraftsModel, model, 4))
	equal(t, get[Generated](t)(s.Generate(ctx, prompt, GenerateOptions{Limit: len(greedy)})).Text, get[string](t)(model.Detokenize(greedy, DetokenizeOptions{})))
	speculation := get[Speculation](t)(s.Speculation())
	if speculation.Source != DraftsModel || speculation.MaxDrafts != 4 || speculation.Accepted > speculation.Drafted {
		t.Fatal(speculation)
	}
	must(t, s.Draft(DraftsNgram, nil, 0))
	must(t, s.Draft(DraftsNone, nil, 0))
	fails(t, s.Draft(DraftsNgram, nil, 99), StatusInvalidArgument)
	fails(t, s.SetJSONSchema(`{"type": 5}`), StatusGrammar)

	adapter := get[*Adapter](t)(model.LoadAdapter(filepath.Join(filepath.Dir(modelPath), "../tests/data/adapters/hamlet.gguf")))
	adapterInfo := get[AdapterInfo](t)(adapter.Info())
	equal(t, adapterInfo.Rank, 2)
	equal(t, adapterInfo.Name, "hamlet, disturbed")
	adapted := get[*Session](t)(model.NewSession(SessionOptions{}))
	uses := []AdapterUse{{adapter, 1}}
	must(t, adapted.SetAdapters(uses, false))
	must(t, adapted.Prefill(prompt))
	var saved bytes.Buffer
	must(t, adapted.SaveTo(&saved, StateEverything))
	_, err := model.RestoreFrom(bytes.NewReader(saved.Bytes()), RestoreOptions{})
	fails(t, err, StatusStateForeign)
	restored := get[*Session](t)(model.RestoreFrom(bytes.NewReader(saved.Bytes()), RestoreOptions{Adapters: uses}))
	equal(t, get[uint32](t)(restored.Decode()), get[uint32](t)(adapted.Decode()))
	must(t, restored.SetAdapters(nil, false))
	must(t, restored.Rewind(len(prompt)))
	equal(t, get[uint32](t)(restored.Decode()), greedy[0])
	withAdapter := get[*Embedder](t)(model.NewEmbedder(EmbedderOptions{Pooling: PoolingMean, Adapters: uses}))
	must(t, adapter.Close())
	fails(t, adapted.SetAdapters(uses, true), StatusInvalidHandle)
	_, err = model.NewEmbedder(EmbedderOptions{Adapters: uses})
	fails(t, err, StatusInvalidHandle)

	embedder := get[*Embedder](t)(model.NewEmbedder(EmbedderOptions{Pooling: PoolingMean}))
	info := get[EmbedderInfo](t)(embedder.Info())
	both := get[[][]float32](t)(embedder.Embed("Once upon a time", "the king"))
	equal(t, len(both), 2)
	equal(t, len(both[0]), info.Dimension)
	changed := get[[][]float32](t)(withAdapter.Embed("Once upon a time"))
	if changed[0][0] == both[0][0] {
		t.Fatal("an adapter changes nothing")
	}
	must(t, withAdapter.Close())
	alone := get[[][]float32](t)(embedder.EmbedTokens(get[[]uint32](t)(model.Tokenize("the king", TokenizeOptions{}))))
	equal(t, alone[0][0], both[1][0])
	_, err = embedder.Rerank("a", "b")
	fails(t, err, StatusInvalidArgument)
	embedder.Interrupt()
	_, err = embedder.Embed("a")
	fails(t, err, StatusInterrupted)
	must(t, embedder.Close())

	stream := get[*TextStream](t)(model.NewTextStream(TextStreamOptions{Stops: []string{"brush"}, SkipSpecial: true}))
	text := ""
	for _, token := range greedy {
		text += get[string](t)(stream.Push(token))
	}
	equal(t, text, " One cold morning, she lost her blue ")
	stopped, _, _, err := stream.Stopped()
	must(t, err)
	equal(t, stopped, true)
	equal(t, get[string](t)(stream.Finish()), "")
	equal(t, get[string](t)(stream.Push(referenceTokens("json_tokens")...))+get[string](t)(stream.Finish()), reference["json_text"])
	must(t, stream.Close())
	_, err = stream.Push(1)
	fails(t, err, StatusInvalidHandle)
}

func TestStartedAndBatch(t *testing.T) {
	s := newTestSession(t)
	must(t, s.StartPrefill(prompt))
	for {
		done, evaluated, err := s.PollPrefill()
		must(t, err)
		if done {
			equal(t, evaluated, len(prompt))
			break
		}
		time.Sleep(time.Millisecond)
	}
	must(t, s.StartDecode(3))
	_, err := s.Decode()
	fails(t, err, StatusDecodePending)
	for i := 0; i < 3; {
		token, ok, err := s.PollDecode()
		must(t, err)
		if ok {
			equal(t, token, greedy[i])
			i++
		}
	}
	_, _, err = s.PollDecode()
	fails(t, err, StatusNothingPending)
	fork := get[*Session](t)(s.Fork())
	equal(t, get[[]uint32](t)(DecodeBatch([]*Session{s, fork})), []uint32{greedy[3], greedy[3]})
	_, err = DecodeBatch([]*Session{s, s})
	fails(t, err, StatusInvalidArgument)
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errMine }
func (brokenWriter) Read([]byte) (int, error)  { return 0, errMine }

func TestStates(t *testing.T) {
	s := newTestSession(t)
	must(t, s.Prefill(prompt))
	path := filepath.Join(t.TempDir(), "state")
	must(t, s.Save(path, StateEverything))
	equal(t, get[StateInfo](t)(ReadStateInfo(path)).Position, len(prompt))
	restored := get[*Session](t)(model.Restore(path, RestoreOptions{}))
	equal(t, get[uint32](t)(restored.Decode()), greedy[0])
	var memory bytes.Buffer
	must(t, s.SaveTo(&memory, StateTokens))
	restored = get[*Session](t)(model.RestoreFrom(&memory, RestoreOptions{}))
	equal(t, get[uint32](t)(restored.Decode()), greedy[0])
	equal(t, s.SaveTo(brokenWriter{}, StateTokens), errMine)
	_, err := model.RestoreFrom(brokenWriter{}, RestoreOptions{})
	equal(t, err, errMine)
	_, err = model.Restore(path+".none", RestoreOptions{})
	fails(t, err, StatusFileNotFound)
	must(t, s.Evict())
	must(t, s.Resume())
	must(t, s.Erase(2, 3))
	equal(t, get[[]uint32](t)(s.Tokens(0)), append(append([]uint32{}, prompt[:2]...), prompt[5:]...))
}

func TestCloseAndGarbage(t *testing.T) {
	m := get[*Model](t)(Load(modelPath, nil))
	s := get[*Session](t)(m.NewSession(SessionOptions{}))
	must(t, m.Close())
	must(t, m.Close())
	_, err := m.Info()
	fails(t, err, StatusInvalidHandle)
	must(t, s.Prefill(prompt))
	equal(t, get[uint32](t)(s.Decode()), greedy[0])
	must(t, s.Close())
	_, err = s.Decode()
	fails(t, err, StatusInvalidHandle)
	_, err = s.Fork()
	fails(t, err, StatusInvalidHandle)
	fails(t, s.Interrupt(), StatusInvalidHandle)

	lost := get[*Session](t)(model.NewSession(SessionOptions{}))
	spy := &Session{model: model}
	spy.raw.Store(lost.raw.Load())
	_, err = spy.Position()
	must(t, err)
	runtime.KeepAlive(lost)
	lost = nil
	for i := 0; ; i++ {
		runtime.GC()
		time.Sleep(10 * time.Millisecond)
		if _, err = spy.Position(); err != nil {
			break
		}
		if i == 100 {
			t.Fatal("the finalizer did not run")
		}
	}
	fails(t, err, StatusInvalidHandle)
}

func TestGroups(t *testing.T) {
	first, err := NewGroup(GroupOptions{RankCount: 2, TimeoutMS: 500})
	must(t, err)
	id := get[string](t)(first.ID())
	second, err := NewGroup(GroupOptions{Rank: 1, RankCount: 2, ID: id})
	must(t, err)
	equal(t, get[string](t)(second.ID()), id)
	_, err = NewGroup(GroupOptions{Rank: 2, RankCount: 2, ID: id})
	fails(t, err, StatusInvalidArgument)
	_, err = NewGroup(GroupOptions{RankCount: 2, Address: "0.0.0.0"})
	fails(t, err, StatusInvalidArgument)
	// A CPU has no share of each layer.
	_, err = Load(os.Getenv("EMBERLM_MODEL"), &ModelOptions{Group: first})
	fails(t, err, StatusUnsupported)
	_, err = Load(os.Getenv("EMBERLM_MODEL"), &ModelOptions{Group: first})
	fails(t, err, StatusInvalidArgument)
	must(t, first.Close())
	must(t, second.Close())
}

func TestStarted(t *testing.T) {
	event, err := NewEvent()
	must(t, err)
	equal(t, get[int64](t)(event.Fd()) >= 0, true)
	l, err := StartLoad(os.Getenv("EMBERLM_MODEL"), nil, event)
	must(t, err)
	var own *Model
	for own == nil {
		var fraction float32
		own, fraction, err = l.Poll()
		must(t, err)
		equal(t, fraction >= 0 && fraction <= 1, true)
		runtime.Gosched()
	}
	_, _, err = l.Poll()
	fails(t, err, StatusNothingPending)
	must(t, l.Cancel())
	must(t, l.Close())
	session, other := get[*Session](t)(own.NewSession(SessionOptions{})), get[*Session](t)(own.NewSession(SessionOptions{}))
	empty := get[*Session](t)(own.NewSession(SessionOptions{}))
	must(t, event.Clear())
	must(t, session.SetEvent(event))
	want := get[Generated](t)(other.Generate(context.Background(), prompt, GenerateOptions{Limit: 8}))
	for _, wait := range []bool{true, false} {
		must(t, session.Rewind(0))
		must(t, session.StartGenerate(prompt, GenerateOptions{Limit: 8}))
		_, err = session.Decode()
		fails(t, err, StatusDecodePending)
		text, last := "", false
		for !last {
			piece, token, ok, err := session.NextPiece(wait)
			must(t, err)
			if ok {
				text, last = text+piece, token.ID == NoToken
			}
		}
		made := get[Generated](t)(session.Finish())
		made.Text = text
		equal(t, made, want)
	}
	must(t, session.SetEvent(nil))
	must(t, event.Close())
	must(t, StartDecodeBatch([]*Session{session, other}))
	var made [2]uint32
	for i, s := range []*Session{session, other} {
		for ok := false; !ok; {
			made[i], ok, err = s.PollDecode()
			must(t, err)
		}
	}
	equal(t, made[0], made[1])
	each, err := DecodeEach([]*Session{session, empty})
	fails(t, err, StatusNoInput)
	equal(t, each[0].ID, get[uint32](t)(other.Decode()))
	equal(t, each[1].Status, StatusNoInput)
	must(t, session.SetSampling(Sampling{Logprobs: 1}))
	token := get[Token](t)(session.DecodeToken())
	equal(t, token.HasLogprob && token.Logprob == get[Logprobs](t)(session.Logprobs()).Chosen, true)
	must(t, own.Close())
	again := get[*Model](t)(session.Model())
	equal(t, get[ModelInfo](t)(again.Info()).Vocab, len(get[[]float32](t)(session.Logits())))
	for _, s := range []*Session{session, other, empty} {
		must(t, s.Close())
	}
	must(t, again.Close())
}

func TestGoroutines(t *testing.T) {
	s, ctx := newTestSession(t), context.Background()
	busy := 0
	get[Generated](t)(s.Generate(ctx, prompt, GenerateOptions{Limit: 2, OnText: func(string, Token) error {
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, err := s.Decode()
			if errors.Is(err, StatusBusy) {
				busy++
			}
		}()
		<-done
		return nil
	}}))
	equal(t, busy, 2)

	must(t, s.Rewind(0))
	until, cancel := context.WithCancel(ctx)
	made, err := s.Generate(until, prompt, GenerateOptions{IgnoreEnd: true, OnText: func(string, Token) error {
		cancel()
		time.Sleep(time.Millisecond)
		return nil
	}})
	equal(t, err, context.Canceled)
	equal(t, made.End, EndInterrupted)
	must(t, s.Rewind(0))
	must(t, s.Interrupt())
	fails(t, s.Prefill(prompt), StatusInterrupted)
	must(t, s.Interrupt())
	must(t, s.ClearInterrupt())
	must(t, s.Prefill(prompt))

	var group sync.WaitGroup
	texts := make([]string, 4)
	for i := range texts {
		group.Add(1)
		go func(i int) {
			defer group.Done()
			own, err := model.NewSession(SessionOptions{})
			if err == nil {
				var made Generated
				made, err = own.Generate(ctx, prompt, GenerateOptions{Limit: 40})
				texts[i] = made.Text
			}
			if err != nil {
				t.Error(err)
			}
		}(i)
	}
	group.Wait()
	for _, text := range texts {
		equal(t, text, reference["greedy_text"])
	}
}

func TestLog(t *testing.T) {
	var lock sync.Mutex
	messages := 0
	must(t, SetLog(func(LogLevel, string) {
		lock.Lock()
		defer lock.Unlock()
		messages++
		panic("dropped")
	}, LogInfo))
	must(t, get[*Model](t)(Load(modelPath, nil)).Close())
	must(t, SetLog(nil, LogInfo))
	heard := messages
	must(t, get[*Model](t)(Load(modelPath, nil)).Close())
	if heard == 0 || messages != heard {
		t.Fatal(heard, messages)
	}
}
