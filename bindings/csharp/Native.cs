// Generated from include/emberlm.h by bindings/common/generate.py (`make bindings`). Do not edit.

using System;
using System.Runtime.InteropServices;

namespace EmberLM.Native
{
    /// <summary>Numbers that are in no enum.</summary>
    internal static class Constants
    {
        internal const uint EMBER_ABI_VERSION = 1;
        internal const uint EMBER_VERSION_NUMBER = 1000;
        internal const uint EMBER_NO_INDEX = 4294967295;
        internal const uint EMBER_NO_TOKEN = 4294967295;
    }

    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
    internal delegate void ember_log_fn(IntPtr user, int level, IntPtr message, UIntPtr len);

    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
    internal delegate int ember_progress_fn(IntPtr user, float fraction);

    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
    internal delegate void ember_free_fn(IntPtr user);

    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
    internal delegate void ember_release_fn(IntPtr user, IntPtr bytes, ulong size);

    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
    internal delegate int ember_read_at_fn(IntPtr user, ulong offset, IntPtr bytes, UIntPtr count);

    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
    internal delegate int ember_write_fn(IntPtr user, IntPtr bytes, UIntPtr count);

    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
    internal delegate int ember_read_fn(IntPtr user, IntPtr bytes, UIntPtr capacity, ref UIntPtr count);

    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
    internal delegate int ember_piece_fn(IntPtr user, IntPtr text, UIntPtr len, IntPtr token);

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_error
    {
        public int code;
        public uint index;
        [MarshalAs(UnmanagedType.ByValArray, SizeConst = 1016)] public byte[] message;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_device_details
    {
        public uint struct_size;
        public uint kind;
        public uint usable;
        public uint cores;
        public ulong memory_total;
        public ulong memory_free;
        [MarshalAs(UnmanagedType.ByValArray, SizeConst = 128)] public byte[] name;
        [MarshalAs(UnmanagedType.ByValArray, SizeConst = 32)] public byte[] driver;
        [MarshalAs(UnmanagedType.ByValArray, SizeConst = 32)] public byte[] isa;
        [MarshalAs(UnmanagedType.ByValArray, SizeConst = 256)] public byte[] reason;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_group_options
    {
        public uint struct_size;
        public uint rank;
        public uint rank_count;
        public uint timeout_ms;
        public IntPtr address;
        public UIntPtr address_len;
        public IntPtr id;
        public UIntPtr id_len;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_model_options
    {
        public uint struct_size;
        public uint device;
        public uint threads;
        public uint weights;
        public uint files;
        public uint flags;
        public uint split;
        public uint cpu_expert_layers;
        public int thread_priority;
        public int log_level;
        public ulong memory_limit;
        public ulong session_memory_limit;
        public IntPtr progress;
        public IntPtr user;
        public IntPtr cpus;
        public UIntPtr cpu_count;
        public IntPtr devices;
        public UIntPtr device_count;
        public IntPtr device_layers;
        public IntPtr group;
        public IntPtr log_callback;
        public IntPtr log_user;
        public IntPtr log_release;
        public IntPtr next;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_model_details
    {
        public uint struct_size;
        public uint device;
        public uint vocab_size;
        public uint context_length;
        public uint layer_count;
        public uint hidden_size;
        public uint has_tokenizer;
        public uint metadata_count;
        public ulong parameter_count;
        public ulong file_bytes;
        public ulong resident_bytes;
        public ulong kv_bytes_per_token;
        [MarshalAs(UnmanagedType.ByValArray, SizeConst = 32)] public byte[] architecture;
        [MarshalAs(UnmanagedType.ByValArray, SizeConst = 32)] public byte[] quantization;
        [MarshalAs(UnmanagedType.ByValArray, SizeConst = 128)] public byte[] name;
        public uint max_batch;
        public uint device_layer_count;
        public ulong memory_bytes;
        public ulong session_memory_bytes;
        public uint part_count;
        public uint cpu_expert_layer_count;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_part_details
    {
        public uint struct_size;
        public uint device;
        public uint first_layer;
        public uint layer_count;
        public ulong memory_bytes;
        public ulong session_memory_bytes;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_model_source
    {
        public uint struct_size;
        public uint flags;
        public ulong size;
        public IntPtr bytes;
        public IntPtr release;
        public IntPtr read;
        public IntPtr user;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_logit_bias
    {
        public uint token;
        public float bias;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_dry_breaker
    {
        public IntPtr text;
        public UIntPtr text_len;
        public IntPtr tokens;
        public UIntPtr token_count;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_sampling_options
    {
        public uint struct_size;
        public uint top_k;
        public float temperature;
        public float top_p;
        public float min_p;
        public float typical_p;
        public uint penalty_window;
        public float repeat_penalty;
        public float presence_penalty;
        public float frequency_penalty;
        public float dry_multiplier;
        public float dry_base;
        public uint dry_allowed_length;
        public uint dry_window;
        public uint dry_no_breakers;
        public uint logprobs;
        public ulong seed;
        public IntPtr logit_bias;
        public UIntPtr logit_bias_count;
        public IntPtr banned;
        public UIntPtr banned_count;
        public IntPtr allowed;
        public UIntPtr allowed_count;
        public IntPtr dry_breakers;
        public UIntPtr dry_breaker_count;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_session_options
    {
        public uint struct_size;
        public uint context;
        public uint kv_type;
        public uint mark_interval;
        public IntPtr sampling;
        public IntPtr next;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_session_details
    {
        public uint struct_size;
        public uint vocab_size;
        public ulong context;
        public ulong position;
        public ulong kv_bytes;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_token
    {
        public uint struct_size;
        public uint id;
        public uint flags;
        public int status;
        public float logprob;
        public uint reserved;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_save_options
    {
        public uint struct_size;
        public uint kind;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_adapter_use
    {
        public IntPtr adapter;
        public float scale;
        public uint reserved;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_restore_options
    {
        public uint struct_size;
        public uint context;
        public uint kv_type;
        public uint mark_interval;
        public IntPtr next;
        public IntPtr adapters;
        public UIntPtr adapter_count;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_state_details
    {
        public uint struct_size;
        public uint version;
        public uint kind;
        public uint kv_type;
        public ulong context;
        public ulong position;
        public ulong file_bytes;
        public ulong model_fingerprint;
        public ulong tokenizer_fingerprint;
        [MarshalAs(UnmanagedType.ByValArray, SizeConst = 64)] public byte[] architecture;
        [MarshalAs(UnmanagedType.ByValArray, SizeConst = 128)] public byte[] model_name;
        public uint adapter_count;
        public uint reserved;
        [MarshalAs(UnmanagedType.ByValArray, SizeConst = 16)] public ulong[] adapter_fingerprints;
        [MarshalAs(UnmanagedType.ByValArray, SizeConst = 16)] public float[] adapter_scales;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_grammar_options
    {
        public uint struct_size;
        public uint json_spacing;
        public IntPtr interrupt;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_speculation_options
    {
        public uint struct_size;
        public uint source;
        public uint max_drafts;
        public uint always;
        public uint min_match;
        public uint reserved;
        public IntPtr draft_model;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_speculation_details
    {
        public uint struct_size;
        public uint source;
        public uint max_drafts;
        public uint depth;
        public ulong steps;
        public ulong drafted;
        public ulong accepted;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_estimate
    {
        public uint struct_size;
        public uint device;
        public uint context;
        public uint part_count;
        public ulong weights_bytes;
        public ulong kv_bytes_per_token;
        public ulong kv_bytes;
        public ulong model_workspace_bytes;
        public ulong session_workspace_bytes;
        public uint device_layer_count;
        public uint first_layer;
        public ulong host_weights_bytes;
        public ulong host_session_bytes;
        public ulong host_workspace_bytes;
        public uint cpu_expert_layer_count;
        public uint reserved;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_profile_entry
    {
        public uint struct_size;
        public uint calls;
        public double microseconds;
        public ulong bytes;
        [MarshalAs(UnmanagedType.ByValArray, SizeConst = 16)] public byte[] name;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_tokenize_options
    {
        public uint struct_size;
        public uint flags;
        public IntPtr interrupt;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_tokenizer_details
    {
        public uint struct_size;
        public uint token_count;
        public uint bos;
        public uint eos;
        public uint unknown;
        public uint padding;
        public uint adds_bos;
        public uint adds_eos;
        public uint end_token_count;
        public uint reserved;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_stop
    {
        public IntPtr text;
        public UIntPtr len;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_text_stream_options
    {
        public uint struct_size;
        public uint flags;
        public IntPtr stops;
        public UIntPtr stop_count;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_text_stream_details
    {
        public uint struct_size;
        public uint stopped;
        public uint stop;
        public uint reserved;
        public ulong token_count;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_generate_options
    {
        public uint struct_size;
        public uint flags;
        public ulong max_tokens;
        public IntPtr prompt;
        public UIntPtr prompt_count;
        public IntPtr stops;
        public UIntPtr stop_count;
        public IntPtr piece;
        public IntPtr user;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_generate_details
    {
        public uint struct_size;
        public uint end;
        public uint stop;
        public uint token;
        public ulong position;
        public ulong token_count;
        public ulong text_bytes;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_embedder_options
    {
        public uint struct_size;
        public uint flags;
        public uint pooling;
        public uint normalize;
        public uint dimension;
        public uint max_tokens;
        public uint batch_tokens;
        public uint reserved;
        public IntPtr instruction;
        public UIntPtr instruction_len;
        public IntPtr adapters;
        public UIntPtr adapter_count;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_embedder_details
    {
        public uint struct_size;
        public uint pooling;
        public uint dimension;
        public uint normalized;
        public uint max_tokens;
        public uint batch_tokens;
        public ulong memory_bytes;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_text
    {
        public IntPtr text;
        public UIntPtr len;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_adapter_details
    {
        public uint struct_size;
        public uint rank;
        public ulong tensor_count;
        public ulong parameter_count;
        public ulong file_bytes;
        public ulong memory_bytes;
        public ulong fingerprint;
        [MarshalAs(UnmanagedType.ByValArray, SizeConst = 128)] public byte[] name;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_chat_options
    {
        public uint struct_size;
        public uint reserved;
        public IntPtr source;
        public UIntPtr source_len;
        public IntPtr name;
        public UIntPtr name_len;
        public long now;
        public IntPtr interrupt;
        public UIntPtr reserved2;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_cuda_model_options
    {
        public uint struct_size;
        public uint kind;
        public IntPtr next;
        public IntPtr context;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct ember_cuda_session_options
    {
        public uint struct_size;
        public uint kind;
        public IntPtr next;
        public int stream_priority;
        public uint reserved;
    }

    internal static class Functions
    {
#if (UNITY_IOS || UNITY_WEBGL) && !UNITY_EDITOR
        private const string Library = "__Internal";
#else
        private const string Library = "emberlm";
#endif

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern uint ember_abi_version();

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern IntPtr ember_version();

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern uint ember_version_number();

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern IntPtr ember_status_name(int status);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_set_log_callback(ember_log_fn callback, IntPtr user, int level, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_device_count(ref uint count, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_device_info(uint index, ref ember_device_details @out, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern uint ember_supported(uint capability);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_group_create(ref ember_group_options options, ref IntPtr @out, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_group_id(GroupHandle group, [In, Out] byte[] id, UIntPtr capacity, ref UIntPtr len, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_group_free(IntPtr group);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_model_load(byte[] path, UIntPtr path_len, ref ember_model_options options, ref IntPtr @out, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_model_info(ModelHandle model, ref ember_model_details @out, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_model_part_info(ModelHandle model, UIntPtr index, ref ember_part_details @out, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_model_free(IntPtr model);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_model_load_from(ref ember_model_source source, ref ember_model_options options, ref IntPtr @out, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_model_metadata(ModelHandle model, byte[] key, UIntPtr key_len, [In, Out] byte[] value, UIntPtr capacity, ref UIntPtr len, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_model_metadata_key(ModelHandle model, UIntPtr index, [In, Out] byte[] key, UIntPtr capacity, ref UIntPtr len, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_session_set_sampling(SessionHandle session, ref ember_sampling_options options, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_session_logprobs(SessionHandle session, ref float chosen, [In, Out] uint[] tokens, [In, Out] float[] logprobs, UIntPtr capacity, ref UIntPtr count, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_session_create(ModelHandle model, ref ember_session_options options, ref IntPtr @out, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_session_info(SessionHandle session, ref ember_session_details @out, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_session_model(SessionHandle session, ref IntPtr model, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_session_position(SessionHandle session, ref UIntPtr position, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_session_rewind(SessionHandle session, UIntPtr position, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_session_fork(SessionHandle session, ref IntPtr @out, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_session_logits(SessionHandle session, [In, Out] float[] @out, UIntPtr capacity, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_session_interrupt(SessionHandle session);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_session_clear_interrupt(SessionHandle session);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_session_free(IntPtr session);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_session_tokens(SessionHandle session, UIntPtr from, [In, Out] uint[] tokens, UIntPtr capacity, ref UIntPtr count, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_session_sync(SessionHandle session, uint[] tokens, UIntPtr count, ref UIntPtr kept, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_event_create(ref IntPtr @out, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_event_handle(EventHandle @event, ref long handle, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_event_clear(EventHandle @event, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_event_free(IntPtr @event);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_session_set_event(SessionHandle session, IntPtr @event, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_model_load_start(byte[] path, UIntPtr path_len, ref ember_model_options options, IntPtr @event, ref IntPtr @out, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_load_poll(LoadHandle load, ref float fraction, ref IntPtr model, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_load_cancel(LoadHandle load);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_load_free(IntPtr load);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_prefill(SessionHandle session, uint[] tokens, UIntPtr count, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_prefill_start(SessionHandle session, uint[] tokens, UIntPtr count, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_prefill_poll(SessionHandle session, ref UIntPtr evaluated, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_decode(SessionHandle session, ref ember_token token, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_decode_start(SessionHandle session, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_decode_start_n(SessionHandle session, UIntPtr count, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_decode_poll(SessionHandle session, ref ember_token token, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_decode_batch(IntPtr[] sessions, UIntPtr count, [In, Out] ember_token[] tokens, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_decode_batch_start(IntPtr[] sessions, UIntPtr count, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_session_save(SessionHandle session, byte[] path, UIntPtr path_len, ref ember_save_options options, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_session_save_to(SessionHandle session, ember_write_fn write, IntPtr user, ref ember_save_options options, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_session_restore(ModelHandle model, byte[] path, UIntPtr path_len, ref ember_restore_options options, ref IntPtr @out, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_session_restore_from(ModelHandle model, ember_read_fn read, IntPtr user, ref ember_restore_options options, ref IntPtr @out, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_session_state_info(byte[] path, UIntPtr path_len, ref ember_state_details @out, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_session_erase(SessionHandle session, UIntPtr from, UIntPtr count, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_session_evict(SessionHandle session, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_session_resume(SessionHandle session, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_model_evict(ModelHandle model, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_model_resume(ModelHandle model, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_session_set_grammar(SessionHandle session, uint kind, byte[] text, UIntPtr len, ref ember_grammar_options options, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_session_set_speculation(SessionHandle session, ref ember_speculation_options options, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_session_speculation_info(SessionHandle session, ref ember_speculation_details @out, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_model_estimate(byte[] path, UIntPtr path_len, ref ember_model_options model_options, ref ember_session_options session_options, ref ember_estimate @out, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_model_estimate_part(byte[] path, UIntPtr path_len, ref ember_model_options model_options, ref ember_session_options session_options, UIntPtr index, ref ember_estimate @out, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_session_profile(SessionHandle session, IntPtr entries, UIntPtr capacity, ref UIntPtr count, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_tokenize(ModelHandle model, byte[] text, UIntPtr len, uint flags, [In, Out] uint[] tokens, UIntPtr capacity, ref UIntPtr count, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_tokenize_with(ModelHandle model, byte[] text, UIntPtr len, ref ember_tokenize_options options, [In, Out] uint[] tokens, UIntPtr capacity, ref UIntPtr count, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_detokenize(ModelHandle model, uint[] tokens, UIntPtr count, uint flags, [In, Out] byte[] text, UIntPtr capacity, ref UIntPtr len, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_token_text(ModelHandle model, uint token, [In, Out] byte[] text, UIntPtr capacity, ref UIntPtr len, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_token_is_end(ModelHandle model, uint token, ref uint is_end, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_tokenizer_info(ModelHandle model, ref ember_tokenizer_details @out, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_end_tokens(ModelHandle model, [In, Out] uint[] tokens, UIntPtr capacity, ref UIntPtr count, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_text_stream_create(ModelHandle model, ref ember_text_stream_options options, ref IntPtr @out, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_text_stream_push(TextStreamHandle stream, uint[] tokens, UIntPtr count, [In, Out] byte[] text, UIntPtr capacity, ref UIntPtr len, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_text_stream_finish(TextStreamHandle stream, [In, Out] byte[] text, UIntPtr capacity, ref UIntPtr len, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_text_stream_info(TextStreamHandle stream, ref ember_text_stream_details @out, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_text_stream_free(IntPtr stream);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_generate(SessionHandle session, ref ember_generate_options options, ref ember_generate_details @out, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_generate_start(SessionHandle session, ref ember_generate_options options, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_generate_next(SessionHandle session, uint flags, [In, Out] byte[] text, UIntPtr capacity, ref UIntPtr len, ref ember_token token, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_generate_finish(SessionHandle session, ref ember_generate_details @out, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_embedder_create(ModelHandle model, ref ember_embedder_options options, ref IntPtr @out, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_embedder_info(EmbedderHandle embedder, ref ember_embedder_details @out, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_embed(EmbedderHandle embedder, ember_text[] texts, UIntPtr count, [In, Out] float[] @out, UIntPtr capacity, ref UIntPtr written, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_embed_tokens(EmbedderHandle embedder, uint[] tokens, UIntPtr token_count, UIntPtr[] counts, UIntPtr count, [In, Out] float[] @out, UIntPtr capacity, ref UIntPtr written, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_rerank(EmbedderHandle embedder, byte[] query, UIntPtr query_len, ember_text[] documents, UIntPtr count, [In, Out] float[] scores, UIntPtr capacity, ref UIntPtr written, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_embedder_interrupt(EmbedderHandle embedder);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_embedder_free(IntPtr embedder);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_adapter_load(ModelHandle model, byte[] path, UIntPtr path_len, ref IntPtr @out, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_adapter_info(AdapterHandle adapter, ref ember_adapter_details @out, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_adapter_free(IntPtr adapter);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_session_set_adapters(SessionHandle session, ember_adapter_use[] adapters, UIntPtr count, uint flags, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_chat_format(ModelHandle model, byte[] json, UIntPtr json_len, ref ember_chat_options options, [In, Out] byte[] text, UIntPtr capacity, ref UIntPtr len, [In, Out] byte[] err);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
        internal static extern int ember_chat_tokenize(ModelHandle model, byte[] json, UIntPtr json_len, ref ember_chat_options options, [In, Out] uint[] tokens, UIntPtr capacity, ref UIntPtr count, [In, Out] byte[] err);
    }
}

namespace EmberLM
{
    /// <summary>enum ember_status_code</summary>
    public enum Status
    {
        Ok = 0,
        Pending = 1,
        InvalidArgument = 2,
        NullPointer = 3,
        InvalidHandle = 4,
        InvalidUtf8 = 5,
        Busy = 6,
        Cancelled = 7,
        Interrupted = 8,
        FileNotFound = 9,
        NotAFile = 10,
        FileEmpty = 11,
        IO = 12,
        UnknownFormat = 13,
        FileTruncated = 14,
        FileCorrupt = 15,
        Unsupported = 16,
        MissingKey = 17,
        MissingTensor = 18,
        ShapeMismatch = 19,
        InvalidModel = 20,
        OutOfMemory = 21,
        ContextFull = 22,
        InvalidToken = 23,
        NoInput = 24,
        BufferTooSmall = 25,
        NothingPending = 26,
        DecodePending = 27,
        NoDevice = 28,
        DeviceLost = 29,
        Numeric = 30,
        DeviceError = 31,
        Internal = 32,
        Forked = 33,
        Grammar = 34,
        TemplateFailed = 35,
        NotState = 36,
        StateVersion = 37,
        StateForeign = 38,
        StateChecksum = 39,
    }

    /// <summary>enum ember_log_level</summary>
    public enum LogLevel
    {
        Error = 1,
        Warn = 2,
        Info = 3,
        Debug = 4,
    }

    /// <summary>enum ember_device_kind</summary>
    public enum DeviceKind
    {
        CPU = 1,
        CUDA = 2,
    }

    /// <summary>enum ember_capability</summary>
    public enum Capability
    {
        CPU = 1,
        CUDA = 2,
        Gguf = 16,
        Safetensors = 17,
        CPUKvF16 = 32,
        CPUKvF32 = 33,
        CPUKvQ8_0 = 34,
        CUDAKvF16 = 48,
        CUDAKvF32 = 49,
        CUDAKvQ8_0 = 50,
    }

    /// <summary>enum ember_source_flags</summary>
    internal enum SourceFlags
    {
        Borrow = 1,
    }

    /// <summary>enum ember_kv_type</summary>
    public enum KvType
    {
        Default = 0,
        F16 = 1,
        F32 = 2,
        Q8_0 = 3,
    }

    /// <summary>enum ember_state_kind</summary>
    public enum StateKind
    {
        Everything = 0,
        Tokens = 1,
    }

    /// <summary>enum ember_grammar_kind</summary>
    public enum GrammarKind
    {
        None = 0,
        JsonSchema = 1,
        Regex = 2,
        Lark = 3,
        Gbnf = 4,
    }

    /// <summary>enum ember_json_spacing</summary>
    public enum JsonSpacing
    {
        Spaced = 0,
        Compact = 1,
        Free = 2,
    }

    /// <summary>enum ember_draft_source</summary>
    public enum DraftSource
    {
        None = 0,
        Ngram = 1,
        Model = 2,
        Heads = 3,
    }

    /// <summary>enum ember_weights</summary>
    public enum Weights
    {
        Keep = 0,
        Q8_0 = 1,
        Q4K = 2,
        Q6K = 3,
        Q4KM = 4,
    }

    /// <summary>enum ember_files</summary>
    public enum Files
    {
        Mapped = 0,
        Read = 1,
    }

    /// <summary>enum ember_split</summary>
    public enum Split
    {
        Layers = 0,
        Tensors = 1,
    }

    /// <summary>enum ember_tokenize_flags</summary>
    internal enum TokenizeFlags
    {
        Continue = 1,
        Special = 2,
    }

    /// <summary>enum ember_detokenize_flags</summary>
    internal enum DetokenizeFlags
    {
        SkipSpecial = 1,
        Continue = 2,
    }

    /// <summary>enum ember_text_stream_flags</summary>
    internal enum TextStreamFlags
    {
        SkipSpecial = 1,
    }

    /// <summary>enum ember_embedder_flags</summary>
    internal enum EmbedderFlags
    {
        Truncate = 1,
    }

    /// <summary>enum ember_adapters_flags</summary>
    internal enum AdaptersFlags
    {
        Keep = 1,
    }

    /// <summary>enum ember_normalize</summary>
    public enum Normalize
    {
        Default = 0,
        On = 1,
        Off = 2,
    }

    /// <summary>enum ember_pooling</summary>
    public enum Pooling
    {
        Default = 0,
        Mean = 1,
        First = 2,
        Last = 3,
        None = 4,
        Score = 5,
    }

    /// <summary>enum ember_generate_flags</summary>
    internal enum GenerateFlags
    {
        ShowSpecial = 1,
        IgnoreEnd = 2,
        NewText = 4,
    }

    /// <summary>enum ember_next_flags</summary>
    internal enum NextFlags
    {
        NoWait = 1,
    }

    /// <summary>enum ember_chain_kind</summary>
    public enum ChainKind
    {
        CUDAModel = 1,
        CUDASession = 2,
    }

    /// <summary>enum ember_token_flags</summary>
    internal enum TokenFlags
    {
        Ends = 1,
        Forced = 2,
        HasLogprob = 4,
        Drafted = 8,
    }

    /// <summary>enum ember_model_flags</summary>
    internal enum ModelFlags
    {
        NeverWait = 1,
        DraftHeads = 2,
        F16Batches = 4,
    }

    /// <summary>enum ember_generate_end</summary>
    public enum GenerateEnd
    {
        Limit = 1,
        Token = 2,
        Stop = 3,
        Callback = 4,
        Interrupted = 5,
        ContextFull = 6,
    }
}
