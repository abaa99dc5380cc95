// Compares the binding with what the C library answers, and its errors with what they must be.
// usage: test.exe model.gguf reference.txt layout.txt

using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Reflection;
using System.Runtime.InteropServices;
using System.Threading;
using EmberLM;
using EmberLM.Native;

internal static class Test
{
    private static int checks;
    private static string path;
    private static Dictionary<string, string> reference;
    private static Model model;
    private static uint[] prompt, greedy;

    private static void Equal<T>(T got, T want, string what)
    {
        checks++;
        if (!Equals(got, want)) throw new Exception(what + ": got " + got + ", expected " + want);
    }

    private static void Same(IEnumerable<uint> got, IEnumerable<uint> want, string what) => Equal(string.Join(",", got), string.Join(",", want), what);

    private static EmberException Fails(Status status, Action call, string what)
    {
        checks++;
        try { call(); }
        catch (EmberException error)
        {
            if (error.Status != status || !error.Message.StartsWith(error.Name + ": ") && error.Message != error.Name) throw new Exception(what + ": " + error.Message);
            return error;
        }
        throw new Exception(what + ": nothing was thrown");
    }

    private static void Throws<T>(Action call, string what) where T : Exception
    {
        checks++;
        try { call(); }
        catch (T) { return; }
        throw new Exception(what + ": nothing was thrown");
    }

    private static uint[] Numbers(string name) => reference[name].Split(',').Select(uint.Parse).ToArray();

    /// <summary>Sizes and offsets are those that a C compiler sees.</summary>
    private static void Layout(string file)
    {
        var compiled = File.ReadAllLines(file).Select(line => line.Split(' ')).ToDictionary(p => p[0], p => long.Parse(p[1]));
        int structs = 0;
        foreach (var type in typeof(Model).Assembly.GetTypes().Where(t => t.Namespace == "EmberLM.Native" && t.IsValueType && t.Name.StartsWith("ember_")))
        {
            structs++;
            Equal(Marshal.SizeOf(type), compiled[type.Name], "size of " + type.Name);
            foreach (var field in type.GetFields(BindingFlags.Public | BindingFlags.Instance))
                Equal((long)Marshal.OffsetOf(type, field.Name), compiled[type.Name + "." + field.Name], type.Name + "." + field.Name);
        }
        Equal(structs, compiled.Keys.Count(k => k.StartsWith("ember_") && !k.Contains('.')), "structs");
        Equal((long)Status.StateChecksum, compiled["EMBER_STATE_CHECKSUM"], "a status");
        Equal((long)KvType.Q8_0, compiled["EMBER_KV_Q8_0"], "a KV type");
    }

    private static void Facts()
    {
        Equal(Library.Version, reference["version"], "version");
        Equal((uint)Library.VersionNumber, Constants.EMBER_VERSION_NUMBER, "version number");
        Library.RequireAbi(Constants.EMBER_ABI_VERSION);
        Throws<VersionException>(() => Library.RequireAbi(Constants.EMBER_ABI_VERSION + 1), "another ABI");
        Equal(Library.Devices().Count(d => d.Kind == DeviceKind.CPU && d.Usable && d.Name.Length > 0), 1, "devices");
        Equal(Library.Supported(Capability.Gguf), true, "capability");
        Equal(Library.Estimate(path).Context, 2048, "estimate");
        Equal(model.Parts().Count, 1, "parts of a model on one device");
        uint cpu = (uint)Library.Devices().FindIndex(d => d.Kind == DeviceKind.CPU);
        var shared = new ModelOptions { Devices = new[] { cpu, cpu }, DeviceLayers = new[] { 2u, 0u } };
        Equal(Library.EstimatePart(path, 1, shared).FirstLayer, 2, "estimate of a part");
        using (var inParts = Model.Load(path, shared)) Equal(inParts.Parts()[1].FirstLayer, 2, "parts");
        Equal(model.Info.Vocab, 1424, "vocab_size");
        Equal(model.Metadata("general.architecture"), model.Info.Architecture, "metadata");
        Equal(model.MetadataKeys().Count, model.Info.Metadata, "keys");
        Equal(model.EndTokens().Length, model.TokenizerInfo.EndTokens, "end tokens");
        Equal(model.EndTokens().All(model.IsEnd), true, "is end");
        Same(prompt, Numbers("greedy_prompt"), "tokenize");
        Equal(model.Detokenize(prompt, true), reference["story"], "detokenize");
        Equal(System.Text.Encoding.UTF8.GetString(model.TokenBytes(prompt[1])), "Once", "token");
        var words = string.Concat(Enumerable.Repeat("Grüße, 世界! 🔥 \0 ", 50));
        Equal(model.Detokenize(model.Tokenize(words, false)), words, "UTF-8");
        using (var interrupt = new Interrupt())
        {
            Same(model.Tokenize(words, interrupt), model.Tokenize(words), "with an interrupt");
            interrupt.Set();
            Fails(Status.Interrupted, () => model.Tokenize(words, interrupt), "interrupt");
        }
        model.Evict();
        model.Resume();
        Fails(Status.FileNotFound, () => Model.Load("no such file"), "no file");
        Fails(Status.NoDevice, () => Model.Load(path, new ModelOptions { Device = 1000 }), "no device");
        Fails(Status.MissingKey, () => model.Metadata("no.such.key"), "no key");
        Fails(Status.InvalidArgument, () => new Session(model, new SessionOptions { Sampling = new Sampling { TopP = 2 } }), "top_p");
        using (var session = new Session(model))
            Equal(Fails(Status.InvalidToken, () => session.Prefill(new uint[] { 1, 2, 4000000000 }), "no token").Index, 2, "index");
    }

    private static void Sources()
    {
        var data = File.ReadAllBytes(path);
        using (var own = Model.Load(data))
        using (var session = new Session(own))
            Equal(session.Generate(prompt, new GenerateOptions { Limit = 40 }).Text, reference["greedy_text"], "from memory");
        Fails(Status.UnknownFormat, () => Model.Load(new byte[1000]), "no model");
        float last = -1;
        Model.Load(path, new ModelOptions { Progress = f => { last = f; return true; } }).Dispose();
        Equal(last, 1f, "progress");
        Fails(Status.Cancelled, () => Model.Load(path, new ModelOptions { Progress = f => false }), "cancel");
        Throws<DivideByZeroException>(() => Model.Load(path, new ModelOptions { Progress = f => throw new DivideByZeroException() }), "progress that throws");
    }

    private static void Answers()
    {
        using (var session = new Session(model))
        {
            session.Prefill(prompt);
            Same(greedy.Select(_ => session.Decode()).ToArray(), greedy, "greedy");
            Equal(session.Position, prompt.Length + greedy.Length, "position");
            Equal(session.Context, 2048, "context");
            Same(session.Tokens(prompt.Length), greedy, "tokens");
            using (var fork = session.Fork())
            {
                Equal(fork.Decode(), session.Decode(), "fork");
                Equal(Library.DecodeBatch(new[] { session, fork }).Distinct().Count(), 1, "batch");
                Fails(Status.InvalidArgument, () => Library.DecodeBatch(new[] { session, session }), "twice");
            }
            session.Rewind(0);
            var pieces = "";
            var made = session.Generate(prompt, new GenerateOptions { Limit = 40, OnText = (text, token) => { pieces += text; return true; } });
            Equal(made.Text, reference["greedy_text"], "generate");
            Equal(pieces, made.Text, "pieces");
            Equal(made.End, GenerateEnd.Limit, "end");
            session.Rewind(0);
            made = session.Generate(prompt, new GenerateOptions { Stops = new[] { "xyz", "brush" } });
            Equal(made.Stop + made.Text, "1 One cold morning, she lost her blue ", "stop");
            session.Rewind(0);
            Equal(session.Generate(prompt, new GenerateOptions { OnText = (text, token) => false }).End, GenerateEnd.Callback, "callback");
            session.Rewind(0);
            Throws<DivideByZeroException>(() => session.Generate(prompt, new GenerateOptions { OnText = (text, token) => throw new DivideByZeroException() }), "callback that throws");
            Equal(session.Position, prompt.Length + 1, "its token is there");
            session.Rewind(0);
            Equal(string.Concat(session.Stream(prompt, 40)), reference["greedy_text"], "stream");
            session.Rewind(0);
            Equal(string.Concat(session.Stream(prompt, 1000, "brush")), " One cold morning, she lost her blue ", "stream with a stop");

            session.Rewind(0);
            session.StartPrefill(prompt);
            int evaluated;
            while (!session.PollPrefill(out evaluated)) Thread.Sleep(1);
            Equal(evaluated, prompt.Length, "started prefill");
            session.StartDecode(3);
            Fails(Status.DecodePending, () => session.Decode(), "pending");
            for (int i = 0; i < 3; i++)
            {
                uint token;
                while (!session.PollDecode(out token)) Thread.Sleep(1);
                Equal(token, greedy[i], "started decode");
            }
            Fails(Status.NothingPending, () => session.PollDecode(out _), "nothing pending");
        }
        var sampling = new Sampling { Temperature = 0.8f, Seed = 3, Logprobs = 4 };
        using (var drawn = new Session(model, new SessionOptions { Sampling = sampling }))
        {
            drawn.Prefill(prompt);
            var want = Numbers("drawn_tokens");
            Same(want.Select(_ => drawn.Decode()).ToArray(), want, "drawn");
            Equal(drawn.Logprobs().Tokens.Length, 4, "logprobs");
            var breakers = new List<DryBreaker> { new DryBreaker { Text = "\n" }, new DryBreaker { Tokens = new uint[] { 5 } } };
            drawn.SetSampling(new Sampling { LogitBias = new Dictionary<uint, float> { { 7, 1000 } }, DryMultiplier = 1, DryBreakers = breakers });
            drawn.Rewind(prompt.Length);
            Equal(drawn.Decode(), 7u, "bias");
            drawn.Rewind(prompt.Length);
            var logits = drawn.Logits();
            Equal(Array.IndexOf(logits, logits.Max()), (int)greedy[0], "logits");
            Equal(drawn.Profile().All(entry => entry.Name.Length > 0), true, "profile");
        }
    }

    private static void ChatAndGrammar()
    {
        using (var session = new Session(model))
        {
            var messages = new List<Message> { new Message("user", "What is 2 plus 3?") };
            Same(model.ChatTokenize(messages), Numbers("chat_prompt"), "chat tokens");
            var answer = session.Chat(messages);
            Equal(answer.Text, reference["chat_text"], "chat");
            Equal(answer.End, GenerateEnd.Token, "its end");
            messages.Add(new Message("assistant", answer.Text));
            messages.Add(new Message("user", "say \"ä\\b\"\n <|end|>"));
            Equal(model.ChatFormat(Model.Conversation(messages)).Contains("say \"ä\\b\"\n <|end|>"), true, "format");
            Equal(session.Sync(model.ChatTokenize(messages)) > Numbers("chat_prompt").Length, true, "sync");
            Equal(model.ChatFormat("{\"word\":\"Öl\"}", new ChatOptions { Template = "{{ word }}!" }), "Öl!", "template");
            session.Rewind(0);
            session.SetJsonSchema(reference["schema"]);
            Equal(session.Generate(model.ChatTokenize(reference["facts"]), new GenerateOptions { NewText = true }).Text, reference["json_text"], "JSON");
            session.Rewind(0);
            session.SetGrammar(GrammarKind.Regex, "[0-9]{3}");
            Equal(session.Generate(prompt).Text.Count(char.IsDigit), 3, "regex");
            session.SetGrammar(GrammarKind.None);
            session.Rewind(0);
            session.Draft(DraftSource.Model, model, 4);
            Equal(session.Generate(prompt, new GenerateOptions { Limit = 8 }).Tokens, 8, "drafts");
            Equal(session.GetSpeculation().MaxDrafts, 4, "most drafts");
            session.Draft();
            session.Draft(DraftSource.None);
            Fails(Status.InvalidArgument, () => session.Draft(DraftSource.Ngram, null, 99), "too many drafts");
            Fails(Status.Grammar, () => session.SetJsonSchema("{\"type\": 5}"), "schema");
        }
        var adapterPath = Path.Combine(Path.GetDirectoryName(path), "../tests/data/adapters/hamlet.gguf");
        using (var adapter = new Adapter(model, adapterPath))
        using (var adapted = new Session(model))
        {
            Equal(adapter.Rank, 2, "an adapter's rank");
            Equal(adapter.Name, "hamlet, disturbed", "an adapter's name");
            var uses = new[] { new AdapterUse(adapter) };
            adapted.SetAdapters(uses);
            adapted.Prefill(prompt);
            var state = new MemoryStream();
            adapted.Save(state);
            state.Position = 0;
            Fails(Status.StateForeign, () => Session.Restore(model, state), "restored without its adapter");
            state.Position = 0;
            using (var restored = Session.Restore(model, state, new RestoreOptions { Adapters = uses }))
            {
                Equal(restored.Decode(), adapted.Decode(), "restored with its adapter");
                restored.SetAdapters(new AdapterUse[0]);
            }
            adapted.SetAdapters(new AdapterUse[0], true);
            using (var changed = new Embedder(model, new EmbedderOptions { Pooling = Pooling.Mean, Adapters = uses }))
            using (var plain = new Embedder(model, new EmbedderOptions { Pooling = Pooling.Mean }))
            {
                Equal(changed.Embed("the king")[0].SequenceEqual(plain.Embed("the king")[0]), false, "an embedder with an adapter");
            }
        }

        using (var embedder = new Embedder(model, new EmbedderOptions { Pooling = Pooling.Mean }))
        {
            var both = embedder.Embed("Once upon a time", "the king");
            Equal(both.Length, 2, "two vectors");
            Equal(both[0].Length, embedder.Dimension, "dimension");
            Equal(embedder.EmbedTokens(model.Tokenize("the king"))[0].SequenceEqual(both[1]), true, "a vector of tokens");
            Fails(Status.InvalidArgument, () => embedder.Rerank("a", "b"), "scores");
            embedder.Interrupt();
            Fails(Status.Interrupted, () => embedder.Embed("a"), "interrupt");
        }
        using (var stream = new TextStream(model, true, "brush"))
        {
            Equal(string.Concat(greedy.Select(token => stream.Push(token))), " One cold morning, she lost her blue ", "text stream");
            Equal(stream.Stopped, true, "stopped");
            Equal(stream.Finish(), "", "finish");
        }
    }

    private static void States()
    {
        var file = Path.GetTempFileName();
        using (var session = new Session(model))
        {
            session.Prefill(prompt);
            session.Save(file);
            Equal(Library.ReadStateInfo(file).Position, prompt.Length, "state info");
            using (var restored = Session.Restore(model, file)) Equal(restored.Decode(), greedy[0], "restored");
            File.Delete(file);
            Fails(Status.FileNotFound, () => Session.Restore(model, file), "no state");
            var memory = new MemoryStream();
            session.Save(memory, StateKind.Tokens);
            memory.Position = 0;
            using (var restored = Session.Restore(model, memory)) Equal(restored.Decode(), greedy[0], "restored from memory");
            memory.Dispose();
            Throws<ObjectDisposedException>(() => session.Save(memory), "a closed stream");
            session.Evict();
            session.Resume();
            session.Erase(2, 3);
            Same(session.Tokens(), prompt.Take(2).Concat(prompt.Skip(5)), "erase");
        }
    }

    /// <summary>For handles that may be free; it owns nothing.</summary>
    [DllImport("emberlm", CallingConvention = CallingConvention.Cdecl)]
    private static extern int ember_session_position(IntPtr session, ref UIntPtr position, IntPtr err);

    private static bool IsFreed(IntPtr raw)
    {
        UIntPtr position = UIntPtr.Zero;
        return ember_session_position(raw, ref position, IntPtr.Zero) == (int)Status.InvalidHandle;
    }

    [System.Runtime.CompilerServices.MethodImpl(System.Runtime.CompilerServices.MethodImplOptions.NoInlining)]
    private static IntPtr Lose() => new Session(model).Handle.DangerousGetHandle();

    private static void Groups()
    {
        using (var first = new Group(0, 2, timeoutMs: 500))
        using (var second = new Group(1, 2, first.Id))
        {
            Equal(second.Id, first.Id, "ranks of a group have one id");
            Fails(Status.InvalidArgument, () => new Group(2, 2, first.Id), "a rank that cannot be");
            Fails(Status.InvalidArgument, () => new Group(0, 2, address: "0.0.0.0"), "an address of all");
            Fails(Status.Unsupported, () => Model.Load(path, new ModelOptions { Group = first }), "a share of each layer on a CPU");
            Fails(Status.InvalidArgument, () => Model.Load(path, new ModelOptions { Group = first }), "a group that was used");
        }
    }

    private static void Started()
    {
        using (var ready = new Event())
        using (var load = new Load(path, null, ready))
        {
            Equal(ready.Native >= 0, true, "an event has a handle");
            Model own;
            while ((own = load.Poll()) == null) Thread.Yield();
            Equal(load.Fraction, 1f, "a load that has ended");
            Fails(Status.NothingPending, () => load.Poll(), "the end of a load, again");
            load.Cancel();
            using (var session = new Session(own))
            using (var other = new Session(own))
            using (var empty = new Session(own))
            {
                ready.Clear();
                session.SetEvent(ready);
                var want = other.Generate(prompt, new GenerateOptions { Limit = 8 });
                foreach (var wait in new[] { true, false })
                {
                    session.Rewind(0);
                    session.StartGenerate(prompt, new GenerateOptions { Limit = 8 });
                    Fails(Status.DecodePending, () => session.Decode(), "a decode beside a generation");
                    var text = "";
                    for (Piece piece = null; piece == null || !piece.IsLast;)
                    {
                        piece = session.NextPiece(wait);
                        text += piece?.Text;
                    }
                    var got = session.Finish();
                    Equal(text, want.Text, "pieces that are pulled");
                    Equal(got.Token, want.Token, "the last token");
                }
                session.SetEvent(null);
                Library.StartDecodeBatch(new[] { session, other });
                uint a, b;
                while (!session.PollDecode(out a)) Thread.Yield();
                while (!other.PollDecode(out b)) Thread.Yield();
                Equal(a, b, "a batch that was started");
                var each = Library.DecodeEach(new[] { session, empty });
                Equal(each[0].Id, other.Decode(), "a session of a batch");
                Equal(each[1].Status, Status.NoInput, "one that has failed");
                Fails(Status.NoInput, () => Library.DecodeBatch(new[] { empty }), "a batch of nothing");
                var token = session.DecodeToken();
                Equal(token.Id, other.Decode(), "a token");
                Equal(token.Logprob, null, "without a log-probability");
                own.Dispose();
                using (var again = session.GetModel()) Equal(again.Info.Vocab, session.Logits().Length, "a session knows its model");
            }
        }
    }

    private static void Lives()
    {
        var own = Model.Load(path);
        var session = new Session(own);
        own.Dispose();
        own.Dispose();
        Throws<ObjectDisposedException>(() => own.Tokenize("x"), "a disposed model");
        session.Prefill(prompt);
        Equal(session.Decode(), greedy[0], "a session outlives its model");
        session.Dispose();
        Throws<ObjectDisposedException>(() => session.Decode(), "a disposed session");
        Throws<ObjectDisposedException>(() => session.Interrupt(), "interrupt of a disposed session");
        var late = new Session(model);
        var raws = late.Handle.DangerousGetHandle();
        var made = late.Generate(prompt, new GenerateOptions { Limit = 3, OnText = (text, token) => { late.Dispose(); return !IsFreed(raws); } });
        Equal(made.Tokens, 3, "a call outlives Dispose");
        Equal(IsFreed(raws), true, "and the session is freed behind it");
        Throws<ObjectDisposedException>(() => late.Decode(), "a session that was disposed in a call");

        var lost = new IntPtr[20];
        for (int i = 0; i < lost.Length; i++) lost[i] = Lose();
        int freed = 0;
        for (int i = 0; i < 100 && freed == 0; i++)
        {
            GC.Collect();
            GC.WaitForPendingFinalizers();
            freed = lost.Count(IsFreed);
        }
        Equal(freed > 0, true, "the garbage collector frees sessions");
    }

    private static void Threads()
    {
        using (var session = new Session(model))
        {
            int busy = 0;
            session.Generate(prompt, new GenerateOptions
            {
                Limit = 2,
                OnText = (text, token) =>
                {
                    var other = new Thread(() =>
                    {
                        try { session.Decode(); }
                        catch (EmberException error) { if (error.Status == Status.Busy) busy++; }
                    });
                    other.Start();
                    other.Join();
                    return true;
                },
            });
            Equal(busy, 2, "busy");
            session.Rewind(0);
            var made = session.Generate(prompt, new GenerateOptions { OnText = (text, token) => { session.Interrupt(); return true; } });
            Equal(made.End, GenerateEnd.Interrupted, "interrupt");
            session.Interrupt();
            session.ClearInterrupt();
            session.Rewind(0);
            session.Interrupt();
            Fails(Status.Interrupted, () => session.Prefill(prompt), "an interrupt stays");
        }
        var texts = new string[4];
        var threads = Enumerable.Range(0, 4).Select(i => new Thread(() =>
        {
            using (var own = new Session(model)) texts[i] = own.Generate(prompt, new GenerateOptions { Limit = 40 }).Text;
        })).ToList();
        threads.ForEach(thread => thread.Start());
        threads.ForEach(thread => thread.Join());
        Equal(texts.All(text => text == reference["greedy_text"]), true, "sessions on threads");

        int messages = 0;
        Library.SetLog((level, message) => { Interlocked.Increment(ref messages); throw new DivideByZeroException(); });
        Model.Load(path).Dispose();
        Library.SetLog(null);
        int heard = messages;
        Model.Load(path).Dispose();
        Equal(heard > 0 && messages == heard, true, "log");
    }

    private static int Main(string[] args)
    {
        path = args[0];
        reference = File.ReadAllLines(args[1]).Select(line => line.Split(new[] { '=' }, 2)).ToDictionary(p => p[0], p => p[1].Replace("\\n", "\n"));
        try
        {
            Layout(args[2]);
            model = Model.Load(path);
            prompt = model.Tokenize(reference["story"]);
            greedy = Numbers("greedy_tokens");
            foreach (var test in new Action[] { Facts, Sources, Answers, ChatAndGrammar, States, Groups, Started, Lives, Threads }) test();
        }
        catch (Exception error)
        {
            Console.Error.WriteLine("FAILED: " + error);
            return 1;
        }
        Console.WriteLine(checks + " checks, 0 failures");
        return 0;
    }
}
