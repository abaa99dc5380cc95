// EmberLM for C#: netstandard2.1 and later, Mono, Unity. Compile this file and Native.cs into your project.
//
// - Model, Session and TextStream are IDisposable; the garbage collector frees what nobody has disposed. Calls after Dispose throw
//   ObjectDisposedException.
// - What fails throws EmberException with the status of the C library and its sentence, and has changed nothing.
// - Any number of threads may use a Model, one at a time a Session and a TextStream: a second call meanwhile throws Status.Busy.
//   Interrupt may be called at any time. Dispose while another thread is in a call takes effect when that call ends.
// - Callbacks may throw: the exception ends the call and comes out of it.

using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Runtime.ExceptionServices;
using System.Runtime.InteropServices;
using System.Text;
using EmberLM.Native;

namespace EmberLM
{
    /// <summary>A call that failed.</summary>
    public sealed class EmberException : Exception
    {
        public EmberException(Status status, string message, int index) : base(Library.NameOf(status) + (message.Length > 0 ? ": " + message : ""))
        {
            Status = status;
            Index = index;
        }

        public Status Status { get; }

        /// <summary>The name of the status, for example EMBER_BUSY.</summary>
        public string Name => Library.NameOf(Status);

        /// <summary>The element of a list that is at fault, or -1.</summary>
        public int Index { get; }
    }

    /// <summary>The loaded library has another ABI than this binding.</summary>
    public sealed class VersionException : Exception
    {
        public VersionException(uint loaded) : base("this binding is for ABI " + Constants.EMBER_ABI_VERSION + ", the loaded library has ABI " + loaded) { }
    }

    /// <summary>IL2CPP (Unity) looks for an attribute of this name on methods that native code calls.</summary>
    [AttributeUsage(AttributeTargets.Method)]
    internal sealed class MonoPInvokeCallbackAttribute : Attribute
    {
        public MonoPInvokeCallbackAttribute(Type type) { }
    }

    public sealed class Device
    {
        public DeviceKind Kind { get; internal set; }
        public bool Usable { get; internal set; }
        public int Cores { get; internal set; }
        public ulong MemoryTotal { get; internal set; }
        public ulong MemoryFree { get; internal set; }
        public string Name { get; internal set; }
        public string Driver { get; internal set; }
        public string Isa { get; internal set; }
        public string Reason { get; internal set; }
    }

    /// <summary>What concerns the library and no model.</summary>
    public static class Library
    {
        /// <summary>Stands where there is no token.</summary>
        public const uint NoToken = Constants.EMBER_NO_TOKEN;

        private static readonly ember_log_fn LogFunction = OnLog;
        private static Action<LogLevel, string> log;

        static Library() { RequireAbi(Functions.ember_abi_version()); }

        internal static void RequireAbi(uint loaded)
        {
            if (loaded != Constants.EMBER_ABI_VERSION) throw new VersionException(loaded);
        }

        /// <summary>The version of the loaded library.</summary>
        public static string Version => Utf8.FromNul(Functions.ember_version());

        /// <summary>The same as a number: 1000000 times the major, 1000 times the minor and once the patch version.</summary>
        public static int VersionNumber => (int)Functions.ember_version_number();

        public static bool Supported(Capability capability) => Functions.ember_supported((uint)capability) != 0;

        internal static string NameOf(Status status) => Utf8.FromNul(Functions.ember_status_name((int)status));

        /// <summary>All devices, the best one first.</summary>
        public static List<Device> Devices()
        {
            var err = Call.Error();
            uint count = 0;
            Call.Check(Functions.ember_device_count(ref count, err), err);
            var devices = new List<Device>();
            for (uint i = 0; i < count; i++)
            {
                var d = new ember_device_details { struct_size = Call.SizeOf<ember_device_details>() };
                Call.Check(Functions.ember_device_info(i, ref d, err), err);
                devices.Add(new Device
                {
                    Kind = (DeviceKind)d.kind, Usable = d.usable != 0, Cores = (int)d.cores, MemoryTotal = d.memory_total, MemoryFree = d.memory_free,
                    Name = Utf8.FromNul(d.name), Driver = Utf8.FromNul(d.driver), Isa = Utf8.FromNul(d.isa), Reason = Utf8.FromNul(d.reason),
                });
            }
            return devices;
        }

        /// <summary>Sets the function that gets the log of the whole process, from any thread; null turns it off. What it throws is dropped.</summary>
        public static void SetLog(Action<LogLevel, string> function, LogLevel level = LogLevel.Info)
        {
            var err = Call.Error();
            if (function != null) log = function;
            Call.Check(Functions.ember_set_log_callback(function != null ? LogFunction : null, IntPtr.Zero, (int)level, err), err);
            if (function == null) log = null;
        }

        [MonoPInvokeCallback(typeof(ember_log_fn))]
        private static void OnLog(IntPtr user, int level, IntPtr message, UIntPtr length)
        {
            try { log?.Invoke((LogLevel)level, Utf8.From(message, length)); }
            catch (Exception) { }
        }

        /// <summary>Memory that a model and a session of it would take.</summary>
        public static Estimate Estimate(string path, ModelOptions model = null, SessionOptions session = null)
        {
            var err = Call.Error();
            using (var memory = new Memory())
            {
                var m = (model ?? new ModelOptions()).Make(memory, IntPtr.Zero);
                m.progress = IntPtr.Zero;
                var s = (session ?? new SessionOptions()).Make(memory);
                var d = new ember_estimate { struct_size = Call.SizeOf<ember_estimate>() };
                var bytes = Utf8.Bytes(path);
                Call.Check(Functions.ember_model_estimate(bytes, Call.Length(bytes), ref m, ref s, ref d, err), err);
                return new Estimate(d);
            }
        }

        /// <summary>The same for one part of a model that several devices share; the first layers are part 0.</summary>
        public static Estimate EstimatePart(string path, int part, ModelOptions model = null, SessionOptions session = null)
        {
            var err = Call.Error();
            using (var memory = new Memory())
            {
                var m = (model ?? new ModelOptions()).Make(memory, IntPtr.Zero);
                m.progress = IntPtr.Zero;
                var s = (session ?? new SessionOptions()).Make(memory);
                var d = new ember_estimate { struct_size = Call.SizeOf<ember_estimate>() };
                var bytes = Utf8.Bytes(path);
                Call.Check(Functions.ember_model_estimate_part(bytes, Call.Length(bytes), ref m, ref s, (UIntPtr)part, ref d, err), err);
                return new Estimate(d);
            }
        }

        /// <summary>What the file of a saved session is.</summary>
        public static StateInfo ReadStateInfo(string path)
        {
            var err = Call.Error();
            var d = new ember_state_details { struct_size = Call.SizeOf<ember_state_details>() };
            var bytes = Utf8.Bytes(path);
            Call.Check(Functions.ember_session_state_info(bytes, Call.Length(bytes), ref d, err), err);
            return new StateInfo
            {
                Kind = (StateKind)d.kind, KvType = (KvType)d.kv_type, Context = (int)d.context, Position = (int)d.position, FileBytes = d.file_bytes,
                Architecture = Utf8.FromNul(d.architecture), ModelName = Utf8.FromNul(d.model_name),
                Adapters = d.adapter_fingerprints.Take((int)d.adapter_count).ToArray(),
            };
        }

        /// <summary>The next token of each session, in one pass over the weights: different sessions of one model. The first error of a session
        /// is thrown, whatever the others have decoded.</summary>
        public static uint[] DecodeBatch(IReadOnlyList<Session> sessions)
        {
            var tokens = DecodeEach(sessions);
            return Array.ConvertAll(tokens, token =>
            {
                if (token.Status != Status.Ok) throw new EmberException(token.Status, "a session of the batch", -1);
                return token.Id;
            });
        }

        /// <summary>The same; a session that fails has its error in Status, and the others go on.</summary>
        public static Token[] DecodeEach(IReadOnlyList<Session> sessions)
        {
            var tokens = new ember_token[Math.Max(sessions.Count, 1)];
            tokens[0].struct_size = Call.SizeOf<ember_token>();
            WithRaw(sessions, raw =>
            {
                var err = Call.Error();
                int status = Functions.ember_decode_batch(raw, (UIntPtr)raw.Length, tokens, err);
                if (Array.TrueForAll(tokens, token => token.status == (int)Status.Ok)) Call.Check(status, err);
            });
            return Array.ConvertAll(tokens, token => new Token(token));
        }

        /// <summary>Starts a decode of each in one pass; Session.PollDecode has the tokens.</summary>
        public static void StartDecodeBatch(IReadOnlyList<Session> sessions) => WithRaw(sessions, raw =>
        {
            var err = Call.Error();
            Call.Check(Functions.ember_decode_batch_start(raw, (UIntPtr)raw.Length, err), err);
        });

        private static void WithRaw(IReadOnlyList<Session> sessions, Action<IntPtr[]> call)
        {
            var raw = new IntPtr[sessions.Count];
            int held = 0;
            try
            {
                for (; held < raw.Length; held++)
                {
                    bool added = false;
                    sessions[held].Handle.DangerousAddRef(ref added);
                    raw[held] = sessions[held].Handle.DangerousGetHandle();
                }
                call(raw);
            }
            finally
            {
                while (held > 0) sessions[--held].Handle.DangerousRelease();
            }
        }
    }

    public sealed class Estimate
    {
        internal Estimate(ember_estimate d)
        {
            Device = (int)d.device; Parts = (int)d.part_count; FirstLayer = (int)d.first_layer; Layers = (int)d.device_layer_count;
            Context = (int)d.context; WeightsBytes = d.weights_bytes; KvBytesPerToken = d.kv_bytes_per_token; KvBytes = d.kv_bytes;
            ModelWorkspaceBytes = d.model_workspace_bytes; SessionWorkspaceBytes = d.session_workspace_bytes;
            CpuExpertLayers = (int)d.cpu_expert_layer_count;
        }

        public int Device { get; internal set; }
        public int Parts { get; internal set; }
        public int FirstLayer { get; internal set; }
        public int Layers { get; internal set; }
        public int Context { get; internal set; }
        public ulong WeightsBytes { get; internal set; }
        public ulong KvBytesPerToken { get; internal set; }
        public ulong KvBytes { get; internal set; }
        public ulong ModelWorkspaceBytes { get; internal set; }
        public ulong SessionWorkspaceBytes { get; internal set; }
        public int CpuExpertLayers { get; internal set; }
    }

    public sealed class StateInfo
    {
        public StateKind Kind { get; internal set; }
        public KvType KvType { get; internal set; }
        public int Context { get; internal set; }
        public int Position { get; internal set; }
        public ulong FileBytes { get; internal set; }
        public string Architecture { get; internal set; }
        public string ModelName { get; internal set; }

        /// <summary>Fingerprints of its adapters.</summary>
        public ulong[] Adapters { get; internal set; }
    }

    /// <summary>How to load a model.</summary>
    public sealed class ModelOptions
    {
        public int Device;
        public int Threads;
        public Weights Weights;
        public Files Files;

        /// <summary>Bytes of a GPU's memory for the model; 0 for no limit.</summary>
        public ulong MemoryLimit;

        /// <summary>Bytes of the device's memory for all its sessions; 0 for no limit.</summary>
        public ulong SessionMemoryLimit;

        /// <summary>Devices that share the layers; none for Device alone.</summary>
        public uint[] Devices;

        /// <summary>Layers on each of Devices; none for shares by the GPUs' memory.</summary>
        public uint[] DeviceLayers;

        /// <summary>How Devices share the model.</summary>
        public Split Split;

        /// <summary>Layers of a model on a GPU whose experts stay on the CPU; int.MaxValue for all.</summary>
        public int CpuExpertLayers;

        /// <summary>Loads the model's own heads, for DraftSource.Heads.</summary>
        public bool DraftHeads;
        /// <summary>Steps of more than 16 sessions in f16 on some GPUs: EMBER_MODEL_F16_BATCHES.</summary>
        public bool F16Batches;

        /// <summary>A group of processes that have the model together, or null.</summary>
        public Group Group;

        /// <summary>Hears how far the load is, from 0 to 1; false ends it with Status.Cancelled.</summary>
        public Func<float, bool> Progress;

        internal ember_model_options Make(Memory memory, IntPtr user)
        {
            var devices = memory.Tokens(Devices, out var deviceCount);
            if (DeviceLayers != null && DeviceLayers.Length > 0 && DeviceLayers.Length != Devices?.Length)
                throw new ArgumentException("DeviceLayers needs a number for each of Devices");
            return new ember_model_options
            {
                struct_size = Call.SizeOf<ember_model_options>(), device = (uint)Device, threads = (uint)Threads, weights = (uint)Weights, files = (uint)Files,
                memory_limit = MemoryLimit, session_memory_limit = SessionMemoryLimit,
                devices = devices, device_count = deviceCount, device_layers = memory.Tokens(DeviceLayers, out _),
                group = Group == null ? IntPtr.Zero : Group.Handle.DangerousGetHandle(),
                split = (uint)Split, cpu_expert_layers = (uint)CpuExpertLayers, flags = (DraftHeads ? (uint)ModelFlags.DraftHeads : 0) | (F16Batches ? (uint)ModelFlags.F16Batches : 0),
                progress = Progress != null ? Callback.ProgressPointer : IntPtr.Zero, user = user,
            };
        }
    }

    /// <summary>A sequence that no repetition goes beyond: tokens, or else a text.</summary>
    public sealed class DryBreaker
    {
        public string Text = "";
        public uint[] Tokens;
    }

    /// <summary>How tokens are chosen; greedily unless something else is said. The fields are those of ember_sampling_options.</summary>
    public sealed class Sampling
    {
        public float Temperature, TopP, MinP, TypicalP, RepeatPenalty, PresencePenalty, FrequencyPenalty, DryMultiplier, DryBase;
        public ulong Seed;
        public uint TopK, PenaltyWindow, DryAllowedLength, DryWindow, Logprobs;
        public bool DryNoBreakers;
        public Dictionary<uint, float> LogitBias;
        public uint[] Banned, Allowed;
        public List<DryBreaker> DryBreakers;

        internal ember_sampling_options Make(Memory memory)
        {
            var c = new ember_sampling_options
            {
                struct_size = Call.SizeOf<ember_sampling_options>(), temperature = Temperature, top_p = TopP, min_p = MinP, typical_p = TypicalP,
                repeat_penalty = RepeatPenalty, presence_penalty = PresencePenalty, frequency_penalty = FrequencyPenalty, dry_multiplier = DryMultiplier,
                dry_base = DryBase, seed = Seed, top_k = TopK, penalty_window = PenaltyWindow, dry_allowed_length = DryAllowedLength, dry_window = DryWindow,
                logprobs = Logprobs, dry_no_breakers = DryNoBreakers ? 1u : 0u,
            };
            c.banned = memory.Tokens(Banned, out c.banned_count);
            c.allowed = memory.Tokens(Allowed, out c.allowed_count);
            if (LogitBias != null)
            {
                var biases = new List<ember_logit_bias>();
                foreach (var pair in LogitBias) biases.Add(new ember_logit_bias { token = pair.Key, bias = pair.Value });
                c.logit_bias = memory.Structs(biases, out c.logit_bias_count);
            }
            if (DryBreakers != null)
            {
                var breakers = new List<ember_dry_breaker>();
                foreach (var breaker in DryBreakers)
                {
                    var one = new ember_dry_breaker();
                    if (breaker.Tokens != null) one.tokens = memory.Tokens(breaker.Tokens, out one.token_count);
                    else one.text = memory.Text(breaker.Text, out one.text_len);
                    breakers.Add(one);
                }
                c.dry_breakers = memory.Structs(breakers, out c.dry_breaker_count);
            }
            return c;
        }
    }

    /// <summary>How to make a session.</summary>
    public sealed class SessionOptions
    {
        /// <summary>0: the model's, but at most 4096.</summary>
        public int Context;
        public KvType KvType;
        public int StreamPriority;
        /// <summary>The most positions of recurrent layers that a rewind evaluates again; 0: four copies.</summary>
        public int MarkInterval;
        public Sampling Sampling = new Sampling();

        /// <summary>Options of GPUs behind others, if there are any.</summary>
        internal static IntPtr Chain(Memory memory, int priority) => priority == 0 ? IntPtr.Zero : memory.Structs(new List<ember_cuda_session_options>
        {
            new ember_cuda_session_options
            {
                struct_size = Call.SizeOf<ember_cuda_session_options>(), kind = (uint)ChainKind.CUDASession, stream_priority = priority,
            },
        }, out _);

        internal ember_session_options Make(Memory memory)
        {
            return new ember_session_options
            {
                struct_size = Call.SizeOf<ember_session_options>(), context = (uint)Context, kv_type = (uint)KvType,
                mark_interval = (uint)MarkInterval, next = Chain(memory, StreamPriority),
                sampling = memory.Structs(new List<ember_sampling_options> { Sampling.Make(memory) }, out _),
            };
        }
    }

    /// <summary>How to restore a session; the default keeps what was saved.</summary>
    public sealed class RestoreOptions
    {
        public int Context;
        public KvType KvType;
        public int StreamPriority;
        public int MarkInterval;

        /// <summary>Those that the session was saved with.</summary>
        public AdapterUse[] Adapters = new AdapterUse[0];

        internal ember_restore_options Make(Memory memory)
        {
            var uses = memory.Structs(new List<ember_adapter_use>(AdapterUse.All(Adapters)), out var count);
            return new ember_restore_options
            {
                adapters = uses, adapter_count = count,
                struct_size = Call.SizeOf<ember_restore_options>(), context = (uint)Context, kv_type = (uint)KvType,
                mark_interval = (uint)MarkInterval, next = SessionOptions.Chain(memory, StreamPriority),
            };
        }
    }

    /// <summary>What to generate, and when to end.</summary>
    public sealed class GenerateOptions
    {
        /// <summary>The most tokens; 0: as many as the context has room for.</summary>
        public int Limit;

        /// <summary>Strings at which the text ends.</summary>
        public string[] Stops = new string[0];
        public bool ShowSpecial;
        public bool IgnoreEnd;

        /// <summary>The text is an answer and not the rest of the prompt's.</summary>
        public bool NewText;

        /// <summary>Gets each piece of text, which may be empty, and the token that was generated last, whose Id is NoToken for text that was
        /// held back until the end; false ends the generation.</summary>
        public Func<string, Token, bool> OnText;
    }

    /// <summary>What was generated.</summary>
    public sealed class Generated
    {
        public string Text { get; internal set; }
        public GenerateEnd End { get; internal set; }

        /// <summary>Index of the stop string that was met, or -1.</summary>
        public int Stop { get; internal set; }
        public uint Token { get; internal set; }

        /// <summary>Where the tokens begin in the context.</summary>
        public int Position { get; internal set; }
        public int Tokens { get; internal set; }
    }

    /// <summary>Natural logarithms of probabilities: of the chosen token, and of the most probable ones.</summary>
    /// <summary>How a session drafts, and what its drafts have come to.</summary>
    public struct Speculation
    {
        public DraftSource Source;
        public int MaxDrafts, Depth;
        public ulong Steps, Drafted, Accepted;
    }

    public sealed class TokenLogprobs
    {
        public float Chosen { get; internal set; }
        public uint[] Tokens { get; internal set; }
        public float[] Logprobs { get; internal set; }
    }

    public sealed class ProfileEntry
    {
        public string Name { get; internal set; }
        public int Calls { get; internal set; }
        public double Microseconds { get; internal set; }
        public ulong Bytes { get; internal set; }
    }

    /// <summary>A message of a conversation.</summary>
    public struct Message
    {
        public string Role, Content;

        public Message(string role, string content)
        {
            Role = role;
            Content = content;
        }
    }

    /// <summary>Which chat template to use; by default the model's.</summary>
    public sealed class ChatOptions
    {
        public string Template;
        public string Name;

        /// <summary>Seconds since 1970 for templates that write a date; 0: the clock.</summary>
        public long Now;

        internal ember_chat_options Make(Memory memory)
        {
            var c = new ember_chat_options { struct_size = Call.SizeOf<ember_chat_options>(), now = Now };
            if (Template != null) c.source = memory.Text(Template, out c.source_len);
            if (Name != null) c.name = memory.Text(Name, out c.name_len);
            return c;
        }
    }

    /// <summary>Layers of a model that are on one device.</summary>
    public sealed class Part
    {
        public int Device { get; internal set; }
        public int FirstLayer { get; internal set; }
        public int Layers { get; internal set; }
        public ulong MemoryBytes { get; internal set; }
        public ulong SessionMemoryBytes { get; internal set; }
    }

    public sealed class ModelInfo
    {
        public int Device { get; internal set; }
        public int Vocab { get; internal set; }
        public int ContextLength { get; internal set; }
        public int Layers { get; internal set; }
        public int Hidden { get; internal set; }
        public int Metadata { get; internal set; }
        public bool HasTokenizer { get; internal set; }
        public ulong Parameters { get; internal set; }
        public ulong FileBytes { get; internal set; }
        public ulong ResidentBytes { get; internal set; }
        public ulong KvBytesPerToken { get; internal set; }
        public string Architecture { get; internal set; }
        public string Quantization { get; internal set; }
        public string Name { get; internal set; }
    }

    public sealed class TokenizerInfo
    {
        public int Tokens { get; internal set; }
        public uint Bos { get; internal set; }
        public uint Eos { get; internal set; }
        public uint Unknown { get; internal set; }
        public uint Padding { get; internal set; }
        public bool AddsBos { get; internal set; }
        public bool AddsEos { get; internal set; }
        public int EndTokens { get; internal set; }
    }

    /// <summary>A token that was decoded.</summary>
    public struct Token
    {
        public uint Id { get; }
        /// <summary>It ends an answer.</summary>
        public bool Ends { get; }
        /// <summary>The grammar allowed no other.</summary>
        public bool Forced { get; }
        /// <summary>Natural logarithm of its probability, if Sampling asks for log-probabilities.</summary>
        public float? Logprob { get; }
        /// <summary>Of a batch, what its session has come to.</summary>
        public Status Status { get; }

        internal Token(ember_token c)
        {
            Id = c.id;
            Ends = (c.flags & (uint)TokenFlags.Ends) != 0;
            Forced = (c.flags & (uint)TokenFlags.Forced) != 0;
            Logprob = (c.flags & (uint)TokenFlags.HasLogprob) != 0 ? (float?)c.logprob : null;
            Status = (Status)c.status;
        }
    }

    /// <summary>A piece of a generation.</summary>
    public sealed class Piece
    {
        public string Text { get; }
        public Token Token { get; }
        /// <summary>Whether nothing comes after it; it has no token then.</summary>
        public bool IsLast => Token.Id == Constants.EMBER_NO_TOKEN;

        internal Piece(string text, Token token)
        {
            Text = text;
            Token = token;
        }
    }

    /// <summary>A rank's place in a group of processes that have one model together, each a share of every layer on its GPU; all make the same
    /// calls.</summary>
    public sealed class Group : IDisposable
    {
        internal readonly GroupHandle Handle;

        /// <summary>Rank 0 listens on the IP address, this machine alone without one; the others need the Id of rank 0.</summary>
        public Group(int rank, int rankCount, string id = null, string address = null, int timeoutMs = 0)
        {
            Call.RequireLibrary();
            var err = Call.Error();
            IntPtr raw = IntPtr.Zero;
            using (var memory = new Memory())
            {
                var options = new ember_group_options
                {
                    struct_size = Call.SizeOf<ember_group_options>(), rank = (uint)rank, rank_count = (uint)rankCount, timeout_ms = (uint)timeoutMs,
                };
                if (address != null) options.address = memory.Text(address, out options.address_len);
                if (id != null) options.id = memory.Text(id, out options.id_len);
                Call.Check(Functions.ember_group_create(ref options, ref raw, err), err);
            }
            Handle = new GroupHandle(raw);
        }

        /// <summary>What the other ranks need to join: a secret.</summary>
        public string Id => Call.Text(128, (byte[] o, ref UIntPtr n, byte[] e) => Functions.ember_group_id(Handle, o, Call.Length(o), ref n, e));

        public void Dispose() => Handle.Dispose();
    }

    /// <summary>Something that an event loop can wait for. See Session.SetEvent and Load.</summary>
    public sealed class Event : IDisposable
    {
        private readonly EventHandle handle;

        public Event()
        {
            Call.RequireLibrary();
            var err = Call.Error();
            IntPtr raw = IntPtr.Zero;
            Call.Check(Functions.ember_event_create(ref raw, err), err);
            handle = new EventHandle(raw);
        }

        /// <summary>A file descriptor that can be read while the event is set; on Windows a HANDLE. It stays the library's.</summary>
        public long Native
        {
            get
            {
                var err = Call.Error();
                long native = -1;
                Call.Check(Functions.ember_event_handle(handle, ref native, err), err);
                return native;
            }
        }

        public void Clear()
        {
            var err = Call.Error();
            Call.Check(Functions.ember_event_clear(handle, err), err);
        }

        public void Dispose() => handle.Dispose();

        internal static void With(Event ready, Action<IntPtr> call)
        {
            bool added = false;
            try
            {
                ready?.handle.DangerousAddRef(ref added);
                call(ready?.handle.DangerousGetHandle() ?? IntPtr.Zero);
            }
            finally
            {
                if (added) ready.handle.DangerousRelease();
            }
        }
    }

    /// <summary>A load in the background. Dispose waits for a load that is still running, which it cancels.</summary>
    public sealed class Load : IDisposable
    {
        private readonly LoadHandle handle;

        /// <summary>Starts what Model.Load does. Progress of the options is not called; the event is set at the end.</summary>
        public Load(string path, ModelOptions options = null, Event ready = null)
        {
            Call.RequireLibrary();
            var bytes = Utf8.Bytes(path);
            IntPtr raw = IntPtr.Zero;
            using (var memory = new Memory())
            {
                var c = (options ?? new ModelOptions()).Make(memory, IntPtr.Zero);
                c.progress = IntPtr.Zero;
                Event.With(ready, other =>
                {
                    var err = Call.Error();
                    Call.Check(Functions.ember_model_load_start(bytes, Call.Length(bytes), ref c, other, ref raw, err), err);
                });
            }
            handle = new LoadHandle(raw);
        }

        /// <summary>The share that was done at the last Poll.</summary>
        public float Fraction { get; private set; }

        /// <summary>The model, once, or null while the load is running. Never blocks.</summary>
        public Model Poll()
        {
            var err = Call.Error();
            float fraction = 0;
            IntPtr raw = IntPtr.Zero;
            int status = Functions.ember_load_poll(handle, ref fraction, ref raw, err);
            if (status != (int)Status.Pending) Call.Check(status, err);
            Fraction = fraction;
            return status == (int)Status.Pending ? null : new Model(raw);
        }

        /// <summary>Has it end soon with Status.Cancelled.</summary>
        public void Cancel() => Call.Check(Functions.ember_load_cancel(handle), null);

        public void Dispose() => handle.Dispose();
    }

    /// <summary>A loaded model. Any number of threads may use it.</summary>
    public sealed class Model : IDisposable
    {
        internal readonly ModelHandle Handle;
        internal readonly int Vocab;

        internal Model(IntPtr raw)
        {
            Handle = new ModelHandle(raw);
            Vocab = Info.Vocab;
        }

        /// <summary>Loads a GGUF file or a Hugging Face folder.</summary>
        public static Model Load(string path, ModelOptions options = null)
        {
            return Load(null, options, (ref ember_model_options o, IntPtr user, ref IntPtr raw, byte[] err) =>
            {
                var bytes = Utf8.Bytes(path);
                return Functions.ember_model_load(bytes, Call.Length(bytes), ref o, ref raw, err);
            });
        }

        /// <summary>Loads a GGUF file that is in memory; the bytes are copied.</summary>
        public static Model Load(byte[] data, ModelOptions options = null) => Load(new MemoryStream(data, false), options);

        /// <summary>Loads a GGUF file from a stream that can seek: of an archive, decrypted on the way.</summary>
        public static Model Load(Stream stream, ModelOptions options = null)
        {
            return Load(stream, options, (ref ember_model_options o, IntPtr user, ref IntPtr raw, byte[] err) =>
            {
                var source = new ember_model_source
                {
                    struct_size = Call.SizeOf<ember_model_source>(), size = (ulong)stream.Length, read = Callback.ReadAtPointer, user = user,
                };
                return Functions.ember_model_load_from(ref source, ref o, ref raw, err);
            });
        }

        private delegate int Loader(ref ember_model_options options, IntPtr user, ref IntPtr raw, byte[] err);

        private static Model Load(Stream stream, ModelOptions options, Loader call)
        {
            options = options ?? new ModelOptions();
            Call.RequireLibrary();
            var callback = new Callback { Progress = options.Progress, Stream = stream };
            IntPtr raw = IntPtr.Zero;
            using (var memory = new Memory())
            {
                callback.Run((user, err) =>
                {
                    var o = options.Make(memory, user);
                    return call(ref o, user, ref raw, err);
                });
            }
            return new Model(raw);
        }

        public void Dispose() => Handle.Dispose();

        public ModelInfo Info
        {
            get
            {
                var err = Call.Error();
                var d = new ember_model_details { struct_size = Call.SizeOf<ember_model_details>() };
                Call.Check(Functions.ember_model_info(Handle, ref d, err), err);
                return new ModelInfo
                {
                    Device = (int)d.device, Vocab = (int)d.vocab_size, ContextLength = (int)d.context_length, Layers = (int)d.layer_count, Hidden = (int)d.hidden_size,
                    Metadata = (int)d.metadata_count, HasTokenizer = d.has_tokenizer != 0, Parameters = d.parameter_count, FileBytes = d.file_bytes,
                    ResidentBytes = d.resident_bytes, KvBytesPerToken = d.kv_bytes_per_token, Architecture = Utf8.FromNul(d.architecture),
                    Quantization = Utf8.FromNul(d.quantization), Name = Utf8.FromNul(d.name),
                };
            }
        }

        /// <summary>Where its layers are, the first ones first.</summary>
        public List<Part> Parts()
        {
            var err = Call.Error();
            var d = new ember_model_details { struct_size = Call.SizeOf<ember_model_details>() };
            Call.Check(Functions.ember_model_info(Handle, ref d, err), err);
            var parts = new List<Part>();
            for (uint i = 0; i < d.part_count; i++)
            {
                var p = new ember_part_details { struct_size = Call.SizeOf<ember_part_details>() };
                Call.Check(Functions.ember_model_part_info(Handle, (UIntPtr)i, ref p, err), err);
                parts.Add(new Part
                {
                    Device = (int)p.device, FirstLayer = (int)p.first_layer, Layers = (int)p.layer_count,
                    MemoryBytes = p.memory_bytes, SessionMemoryBytes = p.session_memory_bytes,
                });
            }
            return parts;
        }

        /// <summary>The value of a metadata key as text.</summary>
        public string Metadata(string key)
        {
            var name = Utf8.Bytes(key);
            return Call.Text(256, (byte[] o, ref UIntPtr n, byte[] e) => Functions.ember_model_metadata(Handle, name, Call.Length(name), o, Call.Length(o), ref n, e));
        }

        public List<string> MetadataKeys()
        {
            var keys = new List<string>();
            int count = Info.Metadata;
            for (int i = 0; i < count; i++)
            {
                var index = (UIntPtr)i;
                keys.Add(Call.Text(64, (byte[] o, ref UIntPtr n, byte[] e) => Functions.ember_model_metadata_key(Handle, index, o, Call.Length(o), ref n, e)));
            }
            return keys;
        }

        /// <summary>Token ids. addSpecial: the text is the start of a context. parseSpecial: control tokens that are spelled out count.</summary>
        public uint[] Tokenize(string text, bool addSpecial = true, bool parseSpecial = false)
        {
            var bytes = Utf8.Bytes(text);
            uint flags = (addSpecial ? 0 : (uint)TokenizeFlags.Continue) | (parseSpecial ? (uint)TokenizeFlags.Special : 0);
            return Call.Tokens(bytes.Length / 3 + 16, (uint[] o, ref UIntPtr n, byte[] e) =>
                Functions.ember_tokenize(Handle, bytes, Call.Length(bytes), flags, o, (UIntPtr)o.Length, ref n, e));
        }

        /// <summary>Tokenize for long texts, which another thread can end with Status.Interrupted.</summary>
        public uint[] Tokenize(string text, Interrupt interrupt, bool addSpecial = true, bool parseSpecial = false)
        {
            var bytes = Utf8.Bytes(text);
            var options = new ember_tokenize_options
            {
                struct_size = Call.SizeOf<ember_tokenize_options>(), interrupt = interrupt.Number,
                flags = (addSpecial ? 0 : (uint)TokenizeFlags.Continue) | (parseSpecial ? (uint)TokenizeFlags.Special : 0),
            };
            var tokens = Call.Tokens(bytes.Length / 3 + 16, (uint[] o, ref UIntPtr n, byte[] e) =>
                Functions.ember_tokenize_with(Handle, bytes, Call.Length(bytes), ref options, o, (UIntPtr)o.Length, ref n, e));
            GC.KeepAlive(interrupt);
            return tokens;
        }

        /// <summary>The text of tokens, with U+FFFD for parts of characters.</summary>
        public string Detokenize(uint[] tokens, bool skipSpecial = false, bool newText = true)
        {
            uint flags = (skipSpecial ? (uint)DetokenizeFlags.SkipSpecial : 0) | (newText ? 0 : (uint)DetokenizeFlags.Continue);
            return Call.Text(6 * tokens.Length + 16, (byte[] o, ref UIntPtr n, byte[] e) =>
                Functions.ember_detokenize(Handle, tokens, (UIntPtr)tokens.Length, flags, o, Call.Length(o), ref n, e));
        }

        /// <summary>The bytes of one token, which need not be whole characters.</summary>
        public byte[] TokenBytes(uint token) =>
            Call.Bytes(64, (byte[] o, ref UIntPtr n, byte[] e) => Functions.ember_token_text(Handle, token, o, Call.Length(o), ref n, e));

        /// <summary>Whether the token ends an answer.</summary>
        public bool IsEnd(uint token)
        {
            var err = Call.Error();
            uint end = 0;
            Call.Check(Functions.ember_token_is_end(Handle, token, ref end, err), err);
            return end != 0;
        }

        public TokenizerInfo TokenizerInfo
        {
            get
            {
                var err = Call.Error();
                var d = new ember_tokenizer_details { struct_size = Call.SizeOf<ember_tokenizer_details>() };
                Call.Check(Functions.ember_tokenizer_info(Handle, ref d, err), err);
                return new TokenizerInfo
                {
                    Tokens = (int)d.token_count, Bos = d.bos, Eos = d.eos, Unknown = d.unknown, Padding = d.padding, AddsBos = d.adds_bos != 0,
                    AddsEos = d.adds_eos != 0, EndTokens = (int)d.end_token_count,
                };
            }
        }

        /// <summary>All tokens that end an answer.</summary>
        public uint[] EndTokens() => Call.Tokens(8, (uint[] o, ref UIntPtr n, byte[] e) => Functions.ember_end_tokens(Handle, o, (UIntPtr)o.Length, ref n, e));

        /// <summary>A conversation as the JSON object that chat templates take.</summary>
        public static string Conversation(IEnumerable<Message> messages, bool addGenerationPrompt = true)
        {
            var json = new StringBuilder("{\"add_generation_prompt\":").Append(addGenerationPrompt ? "true" : "false").Append(",\"messages\":[");
            bool first = true;
            foreach (var message in messages)
            {
                json.Append(first ? "{\"role\":" : ",{\"role\":");
                first = false;
                AppendJson(json, message.Role);
                json.Append(",\"content\":");
                AppendJson(json, message.Content);
                json.Append('}');
            }
            return json.Append("]}").ToString();
        }

        private static void AppendJson(StringBuilder json, string text)
        {
            json.Append('"');
            foreach (char c in text)
            {
                if (c == '"' || c == '\\') json.Append('\\').Append(c);
                else if (c < ' ') json.Append("\\u").Append(((int)c).ToString("x4"));
                else json.Append(c);
            }
            json.Append('"');
        }

        /// <summary>A conversation (JSON) as the text that the model was trained on.</summary>
        public string ChatFormat(string conversation, ChatOptions options = null)
        {
            var bytes = Utf8.Bytes(conversation);
            using (var memory = new Memory())
            {
                var c = (options ?? new ChatOptions()).Make(memory);
                return Call.Text(2 * bytes.Length, (byte[] o, ref UIntPtr n, byte[] e) =>
                    Functions.ember_chat_format(Handle, bytes, Call.Length(bytes), ref c, o, Call.Length(o), ref n, e));
            }
        }

        /// <summary>The tokens of a conversation (JSON); its words can forge nothing.</summary>
        public uint[] ChatTokenize(string conversation, ChatOptions options = null)
        {
            var bytes = Utf8.Bytes(conversation);
            using (var memory = new Memory())
            {
                var c = (options ?? new ChatOptions()).Make(memory);
                return Call.Tokens(bytes.Length, (uint[] o, ref UIntPtr n, byte[] e) =>
                    Functions.ember_chat_tokenize(Handle, bytes, Call.Length(bytes), ref c, o, (UIntPtr)o.Length, ref n, e));
            }
        }

        public uint[] ChatTokenize(IEnumerable<Message> messages) => ChatTokenize(Conversation(messages));

        /// <summary>Frees the device's memory of the weights until they are needed.</summary>
        public void Evict()
        {
            var err = Call.Error();
            Call.Check(Functions.ember_model_evict(Handle, err), err);
        }

        public void Resume()
        {
            var err = Call.Error();
            Call.Check(Functions.ember_model_resume(Handle, err), err);
        }
    }

    /// <summary>A number with which another thread ends a call.</summary>
    public sealed class Interrupt : IDisposable
    {
        internal readonly IntPtr Number = Marshal.AllocHGlobal(4);

        public Interrupt() { Marshal.WriteInt32(Number, 0); }

        ~Interrupt() { Marshal.FreeHGlobal(Number); }

        public void Set() => Marshal.WriteInt32(Number, 1);

        public void Dispose()
        {
            Marshal.FreeHGlobal(Number);
            GC.SuppressFinalize(this);
        }
    }

    /// <summary>One conversation: a context of tokens. One thread at a time.</summary>
    public sealed class Session : IDisposable
    {
        internal readonly SessionHandle Handle;
        private readonly Model model;

        private Session(Model model, IntPtr raw)
        {
            this.model = model;
            Handle = new SessionHandle(raw);
        }

        public Session(Model model, SessionOptions options = null) : this(model, Create(model, options ?? new SessionOptions())) { }

        private static IntPtr Create(Model model, SessionOptions options)
        {
            var err = Call.Error();
            IntPtr raw = IntPtr.Zero;
            using (var memory = new Memory())
            {
                var c = options.Make(memory);
                Call.Check(Functions.ember_session_create(model.Handle, ref c, ref raw, err), err);
            }
            return raw;
        }

        /// <summary>A session from a file that Save has written.</summary>
        public static Session Restore(Model model, string path, RestoreOptions options = null)
        {
            var err = Call.Error();
            IntPtr raw = IntPtr.Zero;
            var bytes = Utf8.Bytes(path);
            using (var memory = new Memory())
            {
                var c = (options ?? new RestoreOptions()).Make(memory);
                Call.Check(Functions.ember_session_restore(model.Handle, bytes, Call.Length(bytes), ref c, ref raw, err), err);
            }
            return new Session(model, raw);
        }

        /// <summary>A session from a stream. Nothing is read beyond the end of the saved session.</summary>
        public static Session Restore(Model model, Stream stream, RestoreOptions options = null)
        {
            IntPtr raw = IntPtr.Zero;
            using (var memory = new Memory())
            {
                var c = (options ?? new RestoreOptions()).Make(memory);
                new Callback { Stream = stream }.Run((user, err) =>
                    Functions.ember_session_restore_from(model.Handle, Callback.ReadFunction, user, ref c, ref raw, err));
            }
            return new Session(model, raw);
        }

        public void Dispose() => Handle.Dispose();

        private delegate int WithError(byte[] err);

        private static void Do(WithError call)
        {
            var err = Call.Error();
            Call.Check(call(err), err);
        }

        /// <summary>Tokens in the context. Any thread may ask.</summary>
        public int Position
        {
            get
            {
                UIntPtr position = UIntPtr.Zero;
                Do(err => Functions.ember_session_position(Handle, ref position, err));
                return (int)position;
            }
        }

        /// <summary>The most tokens that the context can hold.</summary>
        public int Context => (int)Details().context;

        /// <summary>Bytes of KV cache for the whole context.</summary>
        public ulong KvBytes => Details().kv_bytes;

        private ember_session_details Details()
        {
            var d = new ember_session_details { struct_size = Call.SizeOf<ember_session_details>() };
            Do(err => Functions.ember_session_info(Handle, ref d, err));
            return d;
        }

        /// <summary>The tokens of the context from a position on.</summary>
        public uint[] Tokens(int from = 0) => Call.Tokens(256, (uint[] o, ref UIntPtr n, byte[] e) =>
            Functions.ember_session_tokens(Handle, (UIntPtr)from, o, (UIntPtr)o.Length, ref n, e));

        /// <summary>Appends tokens to the context and evaluates them.</summary>
        public void Prefill(uint[] tokens) => Do(err => Functions.ember_prefill(Handle, tokens, (UIntPtr)tokens.Length, err));

        /// <summary>Starts what Prefill does and returns at once.</summary>
        public void StartPrefill(uint[] tokens) => Do(err => Functions.ember_prefill_start(Handle, tokens, (UIntPtr)tokens.Length, err));

        /// <summary>Whether a started prefill is done, and how many of its tokens are evaluated. Never blocks.</summary>
        public bool PollPrefill(out int evaluated)
        {
            var err = Call.Error();
            UIntPtr count = UIntPtr.Zero;
            int status = Functions.ember_prefill_poll(Handle, ref count, err);
            if (status != (int)Status.Pending) Call.Check(status, err);
            evaluated = (int)count;
            return status != (int)Status.Pending;
        }

        /// <summary>Makes the tokens the context and evaluates only what is new; returns how many were kept.</summary>
        public int Sync(uint[] tokens)
        {
            UIntPtr kept = UIntPtr.Zero;
            Do(err => Functions.ember_session_sync(Handle, tokens, (UIntPtr)tokens.Length, ref kept, err));
            return (int)kept;
        }

        /// <summary>The next token.</summary>
        public uint Decode()
        {
            return DecodeToken().Id;
        }

        /// <summary>The next token, with what is known of it.</summary>
        public Token DecodeToken()
        {
            var token = new ember_token { struct_size = Call.SizeOf<ember_token>() };
            Do(err => Functions.ember_decode(Handle, ref token, err));
            return new Token(token);
        }

        /// <summary>Has the session set an event whenever a poll may find something new; null ends that.</summary>
        public void SetEvent(Event ready) => Event.With(ready, raw => Do(err => Functions.ember_session_set_event(Handle, raw, err)));

        /// <summary>The session's model, also if the object that it was made of is disposed.</summary>
        public Model GetModel()
        {
            IntPtr raw = IntPtr.Zero;
            Do(err => Functions.ember_session_model(Handle, ref raw, err));
            return new Model(raw);
        }

        /// <summary>Starts decodes and returns at once.</summary>
        public void StartDecode(int count = 1) =>
            Do(err => count == 1 ? Functions.ember_decode_start(Handle, err) : Functions.ember_decode_start_n(Handle, (UIntPtr)count, err));

        /// <summary>The next token of the started decodes; false if it is not there yet. Never blocks.</summary>
        public bool PollDecode(out uint token)
        {
            var err = Call.Error();
            var made = new ember_token { struct_size = Call.SizeOf<ember_token>() };
            int status = Functions.ember_decode_poll(Handle, ref made, err);
            token = made.id;
            if (status != (int)Status.Pending) Call.Check(status, err);
            return status != (int)Status.Pending;
        }

        /// <summary>Appends a prompt, which may be empty, and decodes until there is a reason to end.</summary>
        public Generated Generate(uint[] prompt, GenerateOptions options = null)
        {
            options = options ?? new GenerateOptions();
            var text = new StringBuilder();
            var callback = new Callback
            {
                Piece = (piece, token) =>
                {
                    text.Append(piece);
                    return options.OnText == null || options.OnText(piece, token);
                },
            };
            var d = new ember_generate_details { struct_size = Call.SizeOf<ember_generate_details>() };
            using (var memory = new Memory())
            {
                var c = Make(prompt, options, memory);
                c.piece = Callback.PiecePointer;
                callback.Run((user, err) =>
                {
                    c.user = user;
                    return Functions.ember_generate(Handle, ref c, ref d, err);
                });
            }
            return Made(d, text.ToString());
        }

        private static ember_generate_options Make(uint[] prompt, GenerateOptions options, Memory memory)
        {
            var c = new ember_generate_options
            {
                struct_size = Call.SizeOf<ember_generate_options>(), max_tokens = (ulong)options.Limit,
                flags = (options.ShowSpecial ? (uint)GenerateFlags.ShowSpecial : 0) | (options.IgnoreEnd ? (uint)GenerateFlags.IgnoreEnd : 0) |
                        (options.NewText ? (uint)GenerateFlags.NewText : 0),
            };
            c.prompt = memory.Tokens(prompt, out c.prompt_count);
            c.stops = memory.Stops(options.Stops, out c.stop_count);
            return c;
        }

        private static Generated Made(ember_generate_details d, string text) => new Generated
        {
            Text = text, End = (GenerateEnd)d.end, Stop = d.stop == Constants.EMBER_NO_INDEX ? -1 : (int)d.stop, Token = d.token,
            Position = (int)d.position, Tokens = (int)d.token_count,
        };

        /// <summary>Starts what Generate does; NextPiece returns the text piece by piece, Finish ends it. OnText is not called.</summary>
        public void StartGenerate(uint[] prompt, GenerateOptions options = null)
        {
            using (var memory = new Memory())
            {
                var c = Make(prompt, options ?? new GenerateOptions(), memory);
                Do(err => Functions.ember_generate_start(Handle, ref c, err));
            }
        }

        /// <summary>The next piece, or null if it is not there yet and the call is not to wait.</summary>
        public Piece NextPiece(bool wait = true)
        {
            var token = new ember_token { struct_size = Call.SizeOf<ember_token>() };
            for (var bytes = new byte[64]; ;)
            {
                var err = Call.Error();
                UIntPtr length = UIntPtr.Zero;
                int status = Functions.ember_generate_next(Handle, wait ? 0 : (uint)NextFlags.NoWait, bytes, Call.Length(bytes), ref length, ref token, err);
                if (status == (int)Status.Pending) return null;
                if (status == (int)Status.BufferTooSmall && (int)length > bytes.Length)
                {
                    bytes = new byte[(int)length];
                    continue;
                }
                Call.Check(status, err);
                return new Piece(Encoding.UTF8.GetString(bytes, 0, (int)length), new Token(token));
            }
        }

        /// <summary>Ends a generation that was started, at any time. Text of the result is empty.</summary>
        public Generated Finish()
        {
            var d = new ember_generate_details { struct_size = Call.SizeOf<ember_generate_details>() };
            Do(err => Functions.ember_generate_finish(Handle, ref d, err));
            return Made(d, "");
        }

        /// <summary>The answer to a conversation, of which only what is new is read.</summary>
        public Generated Chat(IEnumerable<Message> messages, GenerateOptions options = null)
        {
            options = options ?? new GenerateOptions();
            Sync(model.ChatTokenize(messages));
            return Generate(new uint[0], new GenerateOptions
            {
                Limit = options.Limit, Stops = options.Stops, ShowSpecial = options.ShowSpecial, IgnoreEnd = options.IgnoreEnd, NewText = true, OnText = options.OnText,
            });
        }

        /// <summary>The text as it is made: the next token is made when the next piece is asked for. Ends with the answer.</summary>
        public IEnumerable<string> Stream(uint[] prompt, int limit = int.MaxValue, params string[] stops)
        {
            if (prompt.Length > 0) Prefill(prompt);
            using (var words = new TextStream(model, true, stops))
            {
                for (int made = 0; made < limit && !words.Stopped; made++)
                {
                    uint token;
                    try { token = Decode(); }
                    catch (EmberException error) when (error.Status == Status.ContextFull) { break; }
                    if (model.IsEnd(token)) break;
                    var piece = words.Push(token);
                    if (piece.Length > 0) yield return piece;
                }
                var rest = words.Finish();
                if (rest.Length > 0) yield return rest;
            }
        }

        /// <summary>The logits that the next decode will choose by, one per token id.</summary>
        public float[] Logits()
        {
            var logits = new float[model.Vocab];
            Do(err => Functions.ember_session_logits(Handle, logits, (UIntPtr)logits.Length, err));
            return logits;
        }

        /// <summary>How probable the last decoded token was (Sampling.Logprobs).</summary>
        public TokenLogprobs Logprobs()
        {
            float chosen = 0;
            UIntPtr count = UIntPtr.Zero;
            var tokens = new uint[64];
            var logprobs = new float[64];
            Do(err => Functions.ember_session_logprobs(Handle, ref chosen, tokens, logprobs, (UIntPtr)64, ref count, err));
            Array.Resize(ref tokens, (int)count);
            Array.Resize(ref logprobs, (int)count);
            return new TokenLogprobs { Chosen = chosen, Tokens = tokens, Logprobs = logprobs };
        }

        public void SetSampling(Sampling sampling)
        {
            using (var memory = new Memory())
            {
                var c = sampling.Make(memory);
                Do(err => Functions.ember_session_set_sampling(Handle, ref c, err));
            }
        }

        /// <summary>Holds the answers to a grammar; GrammarKind.None takes it away.</summary>
        public void SetGrammar(GrammarKind kind, string grammar = "", JsonSpacing spacing = JsonSpacing.Spaced)
        {
            var bytes = Utf8.Bytes(grammar);
            var c = new ember_grammar_options { struct_size = Call.SizeOf<ember_grammar_options>(), json_spacing = (uint)spacing };
            Do(err => Functions.ember_session_set_grammar(Handle, (uint)kind, bytes, Call.Length(bytes), ref c, err));
        }

        /// <summary>Verifies drafts of what comes next: faster, with the same tokens. DraftSource.Model takes a smaller model with the same
        /// vocabulary, DraftSource.Heads the model's own heads (ModelOptions.DraftHeads), DraftSource.None ends drafting.</summary>
        public void Draft(DraftSource source = DraftSource.Ngram, Model model = null, int maxDrafts = 0)
        {
            var c = new ember_speculation_options
            {
                struct_size = Call.SizeOf<ember_speculation_options>(), source = (uint)source, max_drafts = (uint)maxDrafts,
                draft_model = model == null ? IntPtr.Zero : model.Handle.DangerousGetHandle(),
            };
            Do(err => Functions.ember_session_set_speculation(Handle, ref c, err));
            GC.KeepAlive(model);
        }

        /// <summary>What the drafts have come to.</summary>
        public Speculation GetSpeculation()
        {
            var c = new ember_speculation_details { struct_size = Call.SizeOf<ember_speculation_details>() };
            Do(err => Functions.ember_session_speculation_info(Handle, ref c, err));
            return new Speculation { Source = (DraftSource)c.source, MaxDrafts = (int)c.max_drafts, Depth = (int)c.depth, Steps = c.steps, Drafted = c.drafted, Accepted = c.accepted };
        }

        public void SetJsonSchema(string schema) => SetGrammar(GrammarKind.JsonSchema, schema);

        /// <summary>Keeps the first tokens.</summary>
        public void Rewind(int position) => Do(err => Functions.ember_session_rewind(Handle, (UIntPtr)position, err));

        /// <summary>Takes tokens out of the middle of the context.</summary>
        public void Erase(int from, int count) => Do(err => Functions.ember_session_erase(Handle, (UIntPtr)from, (UIntPtr)count, err));

        /// <summary>Another session with the same context.</summary>
        /// <summary>Uses these adapters from now on, in place of those before. What was read is evaluated again, unless keep.</summary>
        public void SetAdapters(AdapterUse[] adapters, bool keep = false)
        {
            var uses = AdapterUse.All(adapters);
            var flags = keep ? (uint)AdaptersFlags.Keep : 0;
            Do(err => Functions.ember_session_set_adapters(Handle, uses, (UIntPtr)uses.Length, flags, err));
            GC.KeepAlive(adapters);
        }

        public Session Fork()
        {
            IntPtr raw = IntPtr.Zero;
            Do(err => Functions.ember_session_fork(Handle, ref raw, err));
            return new Session(model, raw);
        }

        /// <summary>Ends the call that is running on another thread, or the next one, with Status.Interrupted.</summary>
        public void Interrupt() => Call.Check(Functions.ember_session_interrupt(Handle), null);

        public void ClearInterrupt() => Call.Check(Functions.ember_session_clear_interrupt(Handle), null);

        public void Save(string path, StateKind kind = StateKind.Everything)
        {
            var bytes = Utf8.Bytes(path);
            var c = new ember_save_options { struct_size = Call.SizeOf<ember_save_options>(), kind = (uint)kind };
            Do(err => Functions.ember_session_save(Handle, bytes, Call.Length(bytes), ref c, err));
        }

        public void Save(Stream stream, StateKind kind = StateKind.Everything)
        {
            var c = new ember_save_options { struct_size = Call.SizeOf<ember_save_options>(), kind = (uint)kind };
            new Callback { Stream = stream }.Run((user, err) => Functions.ember_session_save_to(Handle, Callback.WriteFunction, user, ref c, err));
        }

        /// <summary>Moves the state to host memory until it is needed.</summary>
        public void Evict() => Do(err => Functions.ember_session_evict(Handle, err));

        public void Resume() => Do(err => Functions.ember_session_resume(Handle, err));

        /// <summary>Where the time of a decode goes.</summary>
        public List<ProfileEntry> Profile()
        {
            var entries = new List<ProfileEntry>();
            int size = (int)Call.SizeOf<ember_profile_entry>();
            using (var memory = new Memory())
            {
                IntPtr raw = memory.Allocate(64 * size);
                Marshal.WriteInt32(raw, size);
                UIntPtr count = UIntPtr.Zero;
                Do(err => Functions.ember_session_profile(Handle, raw, (UIntPtr)64, ref count, err));
                for (int i = 0; i < (int)count; i++)
                {
                    var c = (ember_profile_entry)Marshal.PtrToStructure(raw + i * size, typeof(ember_profile_entry));
                    entries.Add(new ProfileEntry { Name = Utf8.FromNul(c.name), Calls = (int)c.calls, Microseconds = c.microseconds, Bytes = c.bytes });
                }
            }
            return entries;
        }
    }

    /// <summary>A LoRA adapter of a model. Any number of sessions and threads may use it at once.</summary>
    public sealed class Adapter : IDisposable
    {
        internal readonly AdapterHandle Handle;

        /// <summary>From a folder as PEFT writes it, or a GGUF file.</summary>
        public Adapter(Model model, string path)
        {
            var err = Call.Error();
            IntPtr raw = IntPtr.Zero;
            var bytes = Utf8.Bytes(path);
            Call.Check(Functions.ember_adapter_load(model.Handle, bytes, Call.Length(bytes), ref raw, err), err);
            Handle = new AdapterHandle(raw);
        }

        /// <summary>Frees it. Sessions that use it go on with it.</summary>
        public void Dispose() => Handle.Dispose();

        private ember_adapter_details Details()
        {
            var err = Call.Error();
            var d = new ember_adapter_details { struct_size = Call.SizeOf<ember_adapter_details>() };
            Call.Check(Functions.ember_adapter_info(Handle, ref d, err), err);
            return d;
        }

        /// <summary>The largest rank of its pairs of matrices.</summary>
        public int Rank => (int)Details().rank;

        /// <summary>What tells it from others, as in StateInfo.</summary>
        public ulong Fingerprint => Details().fingerprint;

        public string Name => Utf8.FromNul(Details().name);
    }

    /// <summary>An adapter that a session uses, and how much it counts.</summary>
    public struct AdapterUse
    {
        public Adapter Adapter;
        public float Scale;

        public AdapterUse(Adapter adapter, float scale = 1)
        {
            Adapter = adapter;
            Scale = scale;
        }

        internal static ember_adapter_use[] All(AdapterUse[] uses)
        {
            return (uses ?? new AdapterUse[0]).Select(use => new ember_adapter_use
            {
                adapter = use.Adapter == null ? IntPtr.Zero : use.Adapter.Handle.DangerousGetHandle(), scale = use.Scale,
            }).ToArray();
        }
    }

    /// <summary>How to make an embedder. The fields are those of ember_embedder_options.</summary>
    public sealed class EmbedderOptions
    {
        public Pooling Pooling;
        public Normalize Normalize;
        public uint Dimension, MaxTokens, BatchTokens;
        public bool Truncate;
        public string Instruction = "";
        public AdapterUse[] Adapters = new AdapterUse[0];
    }

    /// <summary>Makes vectors or scores of texts. One thread at a time may use it.</summary>
    public sealed class Embedder : IDisposable
    {
        private readonly EmbedderHandle handle;

        public Embedder(Model model, EmbedderOptions options = null)
        {
            var o = options ?? new EmbedderOptions();
            var err = Call.Error();
            IntPtr raw = IntPtr.Zero;
            using (var memory = new Memory())
            {
                var c = new ember_embedder_options
                {
                    struct_size = Call.SizeOf<ember_embedder_options>(), flags = o.Truncate ? (uint)EmbedderFlags.Truncate : 0,
                    pooling = (uint)o.Pooling, normalize = (uint)o.Normalize, dimension = o.Dimension, max_tokens = o.MaxTokens,
                    batch_tokens = o.BatchTokens,
                };
                c.instruction = memory.Text(o.Instruction, out c.instruction_len);
                c.adapters = memory.Structs(new List<ember_adapter_use>(AdapterUse.All(o.Adapters)), out c.adapter_count);
                Call.Check(Functions.ember_embedder_create(model.Handle, ref c, ref raw, err), err);
            }
            handle = new EmbedderHandle(raw);
        }

        public void Dispose() => handle.Dispose();

        /// <summary>Ends the call that another thread is in, or else the next one.</summary>
        public void Interrupt() => Functions.ember_embedder_interrupt(handle);

        /// <summary>Elements of a vector, or scores of a text.</summary>
        public int Dimension
        {
            get
            {
                var err = Call.Error();
                var d = new ember_embedder_details { struct_size = Call.SizeOf<ember_embedder_details>() };
                Call.Check(Functions.ember_embedder_info(handle, ref d, err), err);
                return (int)d.dimension;
            }
        }

        /// <summary>A vector for each text; without pooling, one for each token of all of them.</summary>
        public float[][] Embed(params string[] texts)
        {
            using (var memory = new Memory())
            {
                var c = Texts(memory, texts);
                return Rows(texts.Length, (float[] o, ref UIntPtr n, byte[] e) =>
                    Functions.ember_embed(handle, c, (UIntPtr)c.Length, o, (UIntPtr)o.Length, ref n, e));
            }
        }

        /// <summary>The same of tokens, to which none are added.</summary>
        public float[][] EmbedTokens(params uint[][] texts)
        {
            var all = new List<uint>();
            var counts = new UIntPtr[texts.Length];
            for (int i = 0; i < texts.Length; i++)
            {
                all.AddRange(texts[i]);
                counts[i] = (UIntPtr)texts[i].Length;
            }
            var tokens = all.ToArray();
            return Rows(texts.Length, (float[] o, ref UIntPtr n, byte[] e) => Functions.ember_embed_tokens(
                handle, tokens, (UIntPtr)tokens.Length, counts, (UIntPtr)counts.Length, o, (UIntPtr)o.Length, ref n, e));
        }

        /// <summary>How well each document answers a query.</summary>
        public float[][] Rerank(string query, params string[] documents)
        {
            var bytes = Utf8.Bytes(query);
            using (var memory = new Memory())
            {
                var c = Texts(memory, documents);
                return Rows(documents.Length, (float[] o, ref UIntPtr n, byte[] e) => Functions.ember_rerank(
                    handle, bytes, (UIntPtr)bytes.Length, c, (UIntPtr)c.Length, o, (UIntPtr)o.Length, ref n, e));
            }
        }

        private delegate int Fill(float[] buffer, ref UIntPtr count, byte[] err);

        private static ember_text[] Texts(Memory memory, string[] texts)
        {
            var all = new ember_text[texts.Length];
            for (int i = 0; i < texts.Length; i++) all[i].text = memory.Text(texts[i], out all[i].len);
            return all;
        }

        private float[][] Rows(int guess, Fill fill)
        {
            int dimension = Dimension;
            var buffer = new float[guess * dimension];
            for (;;)
            {
                var err = Call.Error();
                var count = UIntPtr.Zero;
                int status = fill(buffer, ref count, err);
                if (status == (int)Status.BufferTooSmall && (int)count > buffer.Length)
                {
                    buffer = new float[(int)count];
                    continue;
                }
                Call.Check(status, err);
                var rows = new float[(int)count / dimension][];
                for (int i = 0; i < rows.Length; i++)
                {
                    rows[i] = new float[dimension];
                    Array.Copy(buffer, i * dimension, rows[i], 0, dimension);
                }
                return rows;
            }
        }
    }

    /// <summary>Turns tokens into text while they are made: whole characters only, up to a stop string.</summary>
    public sealed class TextStream : IDisposable
    {
        private readonly TextStreamHandle handle;

        public TextStream(Model model, bool skipSpecial = false, params string[] stops)
        {
            var err = Call.Error();
            IntPtr raw = IntPtr.Zero;
            using (var memory = new Memory())
            {
                var c = new ember_text_stream_options
                {
                    struct_size = Call.SizeOf<ember_text_stream_options>(), flags = skipSpecial ? (uint)TextStreamFlags.SkipSpecial : 0,
                };
                c.stops = memory.Stops(stops, out c.stop_count);
                Call.Check(Functions.ember_text_stream_create(model.Handle, ref c, ref raw, err), err);
            }
            handle = new TextStreamHandle(raw);
        }

        public void Dispose() => handle.Dispose();

        /// <summary>Takes tokens and gives the text that is certain now.</summary>
        public string Push(params uint[] tokens) => Call.Text(8 * tokens.Length + 64, (byte[] o, ref UIntPtr n, byte[] e) =>
            Functions.ember_text_stream_push(handle, tokens, (UIntPtr)tokens.Length, o, Call.Length(o), ref n, e));

        /// <summary>The text that was held back; the stream is as new then.</summary>
        public string Finish() => Call.Text(64, (byte[] o, ref UIntPtr n, byte[] e) => Functions.ember_text_stream_finish(handle, o, Call.Length(o), ref n, e));

        /// <summary>Whether a stop string was met.</summary>
        public bool Stopped
        {
            get
            {
                var err = Call.Error();
                var d = new ember_text_stream_details { struct_size = Call.SizeOf<ember_text_stream_details>() };
                Call.Check(Functions.ember_text_stream_info(handle, ref d, err), err);
                return d.stopped != 0;
            }
        }
    }
}

namespace EmberLM.Native
{
    internal sealed class ModelHandle : SafeHandle
    {
        internal ModelHandle(IntPtr raw) : base(IntPtr.Zero, true) { SetHandle(raw); }
        public override bool IsInvalid => handle == IntPtr.Zero;
        protected override bool ReleaseHandle() => Functions.ember_model_free(handle) == (int)Status.Ok;
    }

    internal sealed class SessionHandle : SafeHandle
    {
        internal SessionHandle(IntPtr raw) : base(IntPtr.Zero, true) { SetHandle(raw); }
        public override bool IsInvalid => handle == IntPtr.Zero;
        protected override bool ReleaseHandle() => Functions.ember_session_free(handle) == (int)Status.Ok;
    }

    internal sealed class EventHandle : SafeHandle
    {
        internal EventHandle(IntPtr raw) : base(IntPtr.Zero, true) { SetHandle(raw); }
        public override bool IsInvalid => handle == IntPtr.Zero;
        protected override bool ReleaseHandle() => Functions.ember_event_free(handle) == (int)Status.Ok;
    }

    internal sealed class GroupHandle : SafeHandle
    {
        internal GroupHandle(IntPtr raw) : base(IntPtr.Zero, true) { SetHandle(raw); }
        public override bool IsInvalid => handle == IntPtr.Zero;
        protected override bool ReleaseHandle() => Functions.ember_group_free(handle) == (int)Status.Ok;
    }

    internal sealed class LoadHandle : SafeHandle
    {
        internal LoadHandle(IntPtr raw) : base(IntPtr.Zero, true) { SetHandle(raw); }
        public override bool IsInvalid => handle == IntPtr.Zero;
        protected override bool ReleaseHandle() => Functions.ember_load_free(handle) == (int)Status.Ok;
    }

    internal sealed class AdapterHandle : SafeHandle
    {
        internal AdapterHandle(IntPtr raw) : base(IntPtr.Zero, true) { SetHandle(raw); }
        public override bool IsInvalid => handle == IntPtr.Zero;
        protected override bool ReleaseHandle() => Functions.ember_adapter_free(handle) == (int)Status.Ok;
    }

    internal sealed class EmbedderHandle : SafeHandle
    {
        internal EmbedderHandle(IntPtr raw) : base(IntPtr.Zero, true) { SetHandle(raw); }
        public override bool IsInvalid => handle == IntPtr.Zero;
        protected override bool ReleaseHandle() => Functions.ember_embedder_free(handle) == (int)Status.Ok;
    }

    internal sealed class TextStreamHandle : SafeHandle
    {
        internal TextStreamHandle(IntPtr raw) : base(IntPtr.Zero, true) { SetHandle(raw); }
        public override bool IsInvalid => handle == IntPtr.Zero;
        protected override bool ReleaseHandle() => Functions.ember_text_stream_free(handle) == (int)Status.Ok;
    }

    /// <summary>UTF-8, by hand.</summary>
    internal static class Utf8
    {
        internal static byte[] Bytes(string text) => Encoding.UTF8.GetBytes(text);

        internal static string From(IntPtr start, UIntPtr length)
        {
            if (length == UIntPtr.Zero) return "";
            var bytes = new byte[(int)length];
            Marshal.Copy(start, bytes, 0, bytes.Length);
            return Encoding.UTF8.GetString(bytes);
        }

        internal static string FromNul(IntPtr start)
        {
            int length = 0;
            while (Marshal.ReadByte(start, length) != 0) length++;
            return From(start, (UIntPtr)length);
        }

        internal static string FromNul(byte[] bytes, int start = 0)
        {
            int end = Array.IndexOf(bytes, (byte)0, start);
            return Encoding.UTF8.GetString(bytes, start, (end < 0 ? bytes.Length : end) - start);
        }
    }

    /// <summary>Memory for the duration of a call.</summary>
    internal sealed class Memory : IDisposable
    {
        private readonly List<IntPtr> blocks = new List<IntPtr>();

        internal IntPtr Allocate(int size)
        {
            if (size == 0) return IntPtr.Zero;
            var block = Marshal.AllocHGlobal(size);
            blocks.Add(block);
            return block;
        }

        internal IntPtr Text(string text, out UIntPtr length)
        {
            var bytes = Utf8.Bytes(text);
            length = (UIntPtr)bytes.Length;
            var block = Allocate(bytes.Length);
            if (bytes.Length > 0) Marshal.Copy(bytes, 0, block, bytes.Length);
            return block;
        }

        internal IntPtr Tokens(uint[] tokens, out UIntPtr count)
        {
            count = (UIntPtr)(tokens == null ? 0 : tokens.Length);
            if (tokens == null || tokens.Length == 0) return IntPtr.Zero;
            var block = Allocate(4 * tokens.Length);
            for (int i = 0; i < tokens.Length; i++) Marshal.WriteInt32(block, 4 * i, unchecked((int)tokens[i]));
            return block;
        }

        internal IntPtr Structs<T>(List<T> structs, out UIntPtr count) where T : struct
        {
            int size = (int)Call.SizeOf<T>();
            count = (UIntPtr)structs.Count;
            var block = Allocate(size * structs.Count);
            for (int i = 0; i < structs.Count; i++) Marshal.StructureToPtr(structs[i], block + i * size, false);
            return block;
        }

        internal IntPtr Stops(string[] stops, out UIntPtr count)
        {
            var all = new List<ember_stop>();
            foreach (var stop in stops)
            {
                var one = new ember_stop();
                one.text = Text(stop, out one.len);
                all.Add(one);
            }
            return Structs(all, out count);
        }

        public void Dispose()
        {
            foreach (var block in blocks) Marshal.FreeHGlobal(block);
            blocks.Clear();
        }
    }

    internal static class Call
    {
        private static readonly int ErrorSize = Marshal.SizeOf(typeof(ember_error));

        internal static byte[] Error()
        {
            RequireLibrary();
            return new byte[ErrorSize];
        }

        /// <summary>The static constructor of Library checks the version.</summary>
        internal static void RequireLibrary() => System.Runtime.CompilerServices.RuntimeHelpers.RunClassConstructor(typeof(Library).TypeHandle);

        internal static uint SizeOf<T>() => (uint)Marshal.SizeOf(typeof(T));

        internal static UIntPtr Length(byte[] bytes) => (UIntPtr)bytes.Length;

        internal static void Check(int status, byte[] err)
        {
            if (status == (int)Status.Ok) return;
            if (err == null) throw new EmberException((Status)status, "", -1);
            uint index = BitConverter.ToUInt32(err, 4);
            throw new EmberException((Status)status, Utf8.FromNul(err, 8), index == Constants.EMBER_NO_INDEX ? -1 : (int)index);
        }

        internal delegate int FillBytes(byte[] buffer, ref UIntPtr count, byte[] err);
        internal delegate int FillTokens(uint[] buffer, ref UIntPtr count, byte[] err);

        /// <summary>What a function writes, with a buffer that fits.</summary>
        internal static byte[] Bytes(int guess, FillBytes fill)
        {
            var buffer = new byte[guess + 1];
            while (true)
            {
                var err = Error();
                UIntPtr count = UIntPtr.Zero;
                int status = fill(buffer, ref count, err);
                if (status == (int)Status.BufferTooSmall && (int)count > buffer.Length)
                {
                    buffer = new byte[(int)count];
                    continue;
                }
                Check(status, err);
                Array.Resize(ref buffer, (int)count);
                return buffer;
            }
        }

        internal static string Text(int guess, FillBytes fill) => Encoding.UTF8.GetString(Bytes(guess, fill));

        internal static uint[] Tokens(int guess, FillTokens fill)
        {
            var buffer = new uint[guess + 1];
            while (true)
            {
                var err = Error();
                UIntPtr count = UIntPtr.Zero;
                int status = fill(buffer, ref count, err);
                if (status == (int)Status.BufferTooSmall && (int)count > buffer.Length)
                {
                    buffer = new uint[(int)count];
                    continue;
                }
                Check(status, err);
                Array.Resize(ref buffer, (int)count);
                return buffer;
            }
        }
    }

    /// <summary>What a callback's function is, for the duration of a call. Exceptions do not cross C but come out behind the call.</summary>
    internal sealed class Callback
    {
        private static readonly ember_progress_fn ProgressFunction = OnProgress;
        private static readonly ember_read_at_fn ReadAtFunction = OnReadAt;
        private static readonly ember_piece_fn PieceFunction = OnPiece;
        internal static readonly ember_write_fn WriteFunction = OnWrite;
        internal static readonly ember_read_fn ReadFunction = OnRead;
        internal static readonly IntPtr ProgressPointer = Marshal.GetFunctionPointerForDelegate(ProgressFunction);
        internal static readonly IntPtr ReadAtPointer = Marshal.GetFunctionPointerForDelegate(ReadAtFunction);
        internal static readonly IntPtr PiecePointer = Marshal.GetFunctionPointerForDelegate(PieceFunction);

        internal Func<float, bool> Progress;
        internal Func<string, Token, bool> Piece;
        internal Stream Stream;
        private ExceptionDispatchInfo thrown;

        internal delegate int WithUser(IntPtr user, byte[] err);

        internal void Run(WithUser call)
        {
            var err = Call.Error();
            var handle = GCHandle.Alloc(this);
            int status;
            try { status = call(GCHandle.ToIntPtr(handle), err); }
            finally { handle.Free(); }
            thrown?.Throw();
            Call.Check(status, err);
        }

        private static int Enter(IntPtr user, Func<Callback, bool> function)
        {
            var callback = (Callback)GCHandle.FromIntPtr(user).Target;
            if (callback.thrown != null) return 1;
            try { return function(callback) ? 0 : 1; }
            catch (Exception error)
            {
                callback.thrown = ExceptionDispatchInfo.Capture(error);
                return 1;
            }
        }

        [MonoPInvokeCallback(typeof(ember_progress_fn))]
        private static int OnProgress(IntPtr user, float fraction) => Enter(user, c => c.Progress(fraction));

        [MonoPInvokeCallback(typeof(ember_piece_fn))]
        private static int OnPiece(IntPtr user, IntPtr text, UIntPtr length, IntPtr token) =>
            Enter(user, c => c.Piece(Utf8.From(text, length), new Token(Marshal.PtrToStructure<ember_token>(token))));

        [MonoPInvokeCallback(typeof(ember_read_at_fn))]
        private static int OnReadAt(IntPtr user, ulong offset, IntPtr bytes, UIntPtr count) => Enter(user, c =>
        {
            c.Stream.Position = (long)offset;
            return Copy(c.Stream, bytes, (int)count) == (int)count;
        });

        [MonoPInvokeCallback(typeof(ember_write_fn))]
        private static int OnWrite(IntPtr user, IntPtr bytes, UIntPtr count) => Enter(user, c =>
        {
            var buffer = new byte[(int)count];
            Marshal.Copy(bytes, buffer, 0, buffer.Length);
            c.Stream.Write(buffer, 0, buffer.Length);
            return true;
        });

        [MonoPInvokeCallback(typeof(ember_read_fn))]
        private static int OnRead(IntPtr user, IntPtr bytes, UIntPtr capacity, ref UIntPtr count)
        {
            int read = 0;
            int status = Enter(user, c =>
            {
                read = Copy(c.Stream, bytes, (int)capacity);
                return true;
            });
            count = (UIntPtr)read;
            return status;
        }

        /// <summary>Reads until there is enough or the stream ends.</summary>
        private static int Copy(Stream stream, IntPtr to, int count)
        {
            var buffer = new byte[Math.Min(count, 1 << 16)];
            int done = 0;
            while (done < count)
            {
                int part = stream.Read(buffer, 0, Math.Min(buffer.Length, count - done));
                if (part == 0) break;
                Marshal.Copy(buffer, 0, to + done, part);
                done += part;
            }
            return done;
        }
    }
}
