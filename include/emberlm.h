/*
 * EmberLM runs quantized language models (GGUF files) inside your process.
 *
 *     #include <emberlm.h>
 *     #include <stdio.h>
 *     #include <string.h>
 *
 *     int main(void) {
 *         const char *path = "model.gguf", *prompt = "Once upon a time";
 *         ember_model *model = NULL;
 *         ember_session *session = NULL;
 *         ember_error err;
 *         ember_token token = {0};
 *         uint32_t tokens[256];
 *         size_t count, len;
 *         char text[256];
 *         ember_status status = ember_model_load(path, strlen(path), NULL, &model, &err);
 *         if (!status) status = ember_session_create(model, NULL, &session, &err);
 *         if (!status) status = ember_tokenize(model, prompt, strlen(prompt), 0, tokens, 256, &count, &err);
 *         if (!status) status = ember_prefill(session, tokens, count, &err);
 *         token.struct_size = sizeof token;
 *         for (int i = 0; i < 100 && !status; i++) {
 *             status = ember_decode(session, &token, &err);
 *             if (status || (token.flags & EMBER_TOKEN_ENDS)) break;
 *             status = ember_token_text(model, token.id, text, sizeof text, &len, &err);
 *             if (!status) fwrite(text, 1, len, stdout);
 *         }
 *         if (status) fprintf(stderr, "%s: %s\n", ember_status_name(status), err.message);
 *         ember_session_free(session);
 *         ember_model_free(model);
 *         return status != 0;
 *     }
 *
 * Errors. Functions return EMBER_OK (0) or another value of enum ember_status_code. Most take, as the last parameter, an ember_error
 *   of the caller, or NULL. They write code and message to it, also on success. There is no partial success: a call that fails leaves
 *   everything as it was and writes no output but the error. There are two exceptions: EMBER_BUFFER_TOO_SMALL also writes the needed
 *   count, and each session of a batch succeeds or fails by itself. EMBER_INVALID_HANDLE,
 *   EMBER_NULL_POINTER, EMBER_INVALID_ARGUMENT, EMBER_OUT_OF_MEMORY, EMBER_INTERNAL and EMBER_FORKED can come from every
 *   function and are not repeated below. Functions that compute can also return EMBER_DEVICE_LOST and EMBER_DEVICE_ERROR if the model
 *   is on a GPU, and EMBER_FILE_TRUNCATED and EMBER_FILE_CORRUPT if it is mapped (enum ember_files) and its file was changed. The
 *   library never exits, aborts, prints or handles signals.
 *
 * Handles. Pointers to ember_model, ember_session, ember_text_stream, ember_event, ember_load, ember_group, ember_embedder and
 *   ember_adapter are numbers that the library looks up, not addresses. NULL, a freed handle or a made-up one is an error and not a
 *   crash. In a 64-bit process, a handle has a value that no address has, so that a garbage collector does not take it for a pointer of
 *   its own. A handle that a function writes to an output belongs to the caller until it calls the function ..._free of its type. No
 *   handle is given out again after it was freed.
 *
 * Threads. A function that takes a const handle may run on any number of threads at once. One that takes a handle that is not const
 *   needs the object for itself: a second call with the same object meanwhile returns EMBER_BUSY at once and does nothing. These
 *   functions are exceptions and may be called at any time: ember_session_interrupt, ember_session_clear_interrupt,
 *   ember_embedder_interrupt, ember_load_poll, ember_load_cancel, and all that free. A call that is running keeps what it uses until
 *   it returns. Different sessions run side by side, also those of one model. An object may move between threads. A thread that is
 *   cancelled (pthread_cancel) in a call ends after it; cancellation must be of the deferred type, which is the default.
 *
 * Memory. If memory runs out, the call that needs it returns EMBER_OUT_OF_MEMORY, and everything is as it was before. Every function
 *   that returns a status can return this one, except those that free, that interrupt or that tell a session's state. While other calls
 *   use up what is set aside for this case, calls are refused when they begin. A decode that was done already counts as done.
 *
 * Stack. 64 KB are enough for every function. What needs more, such as a grammar's compiler, runs on a stack of its own: on Linux on
 *   x86-64 in the same thread, elsewhere on a thread of the library.
 *
 * Processes. A child that was forked from a process that has loaded a model has none of its threads and no GPU. In such a child, every
 *   function that returns a status returns EMBER_FORKED at once, also those that free. The same holds in a child that was forked while
 *   another thread was in a call. A process that forks before it loads its first model, and during no call, is not affected.
 *
 * Pointers. A pointer is used during the call only, except those of callbacks and bytes that are lent (EMBER_SOURCE_BORROW). A pointer
 *   to an array may be NULL if its length is 0. Any other may be NULL only where the text says so. The library returns no memory that
 *   the caller has to free.
 *
 * Callbacks. A callback gets the pointer `user` that was set with it, and may be NULL where the text does not say otherwise. It must
 *   return normally: no longjmp, no exception. It may call every function of the library where the text does not say otherwise, but a
 *   function that needs an object that the running call uses returns EMBER_BUSY. Unless the text says otherwise, a callback that
 *   returns a number returns 0 to continue and 1 to stop. Other values stop, too, but later versions may give them other meanings.
 *
 * Structs. Set struct_size to sizeof the struct, and the rest of an option struct to zero or to what you want. Zero is the default of
 *   every option, so {0} plus the size is valid. Later versions append fields; nothing else about a struct changes. A program that was
 *   compiled with an older header gets the default of options that it does not know, and the library writes no field beyond
 *   struct_size. A program that was compiled with a newer header gets EMBER_INVALID_ARGUMENT if it sets an option, a flag or a value
 *   that the library does not know, and reads zero in fields that the library does not know. Fields named `reserved` must be 0 in
 *   structs that the library reads, and are 0 in those that it writes. A struct without struct_size never changes.
 *
 * Numbers. Values of enums are passed and stored as int32_t or uint32_t. Later versions may add values, also to those that the library
 *   writes or passes to callbacks: statuses, kinds, flags, levels and reasons. Treat an unknown status as an error: a new status that
 *   is no error, as EMBER_PENDING is none, is only returned to a caller that uses a new function, option or flag. Ignore unknown flags.
 *   Flags use bits 0 to 30.
 *
 * Text. UTF-8 with a length in bytes. Input needs no NUL at its end, and buffers get none. Only character arrays in structs, and the
 *   strings of ember_version and ember_status_name, are terminated by a NUL.
 *
 * Calls. Functions and callbacks have the calling convention that is the default of C on the platform (on 32-bit Windows: cdecl).
 *
 * Versions. While EMBER_ABI_VERSION stays the same, a compiled program works with every later version of the library: nothing is
 *   removed, and nothing changes its meaning. The number is part of the shared library's name. ember_abi_version() returns that of the
 *   library that is loaded. Functions, fields and values that came after the first version of this ABI name the version that
 *   they came with, as in "Since 1.3.0": compare it with EMBER_VERSION_NUMBER when you compile, and with ember_version_number() at run
 *   time. docs/abi.md has the rules in full.
 */


#ifndef EMBERLM_H
#define EMBERLM_H

/* Generated from src/ffi by `make header`. Do not edit. */

#include <stddef.h>
#include <stdint.h>

/** The ABI that this header describes; compare it with ember_abi_version(). */
#define EMBER_ABI_VERSION 1

/** The version of this header: 1000000 * major + 1000 * minor + patch. Compare it with ember_version_number(). */
#define EMBER_VERSION_NUMBER 1000

/** In ember_error.index: no element of a list is at fault. */
#define EMBER_NO_INDEX UINT32_MAX

/** In place of a token's id: there is none. */
#define EMBER_NO_TOKEN UINT32_MAX

/**
 * The values of `ember_status`. A number never changes its meaning, and is never used again.
 */
enum ember_status_code
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Success.
     */
    EMBER_OK = 0,
    /**
     * Not an error: what was started is not finished yet.
     */
    EMBER_PENDING = 1,
    /**
     * An argument has a value that is not allowed; the message names it.
     */
    EMBER_INVALID_ARGUMENT = 2,
    /**
     * A required pointer was NULL; the message names it.
     */
    EMBER_NULL_POINTER = 3,
    /**
     * A handle is NULL, was freed, or never came from this library.
     */
    EMBER_INVALID_HANDLE = 4,
    /**
     * A string is not valid UTF-8.
     */
    EMBER_INVALID_UTF8 = 5,
    /**
     * Another call with this object is running: on another thread, or the one that a callback was called by.
     */
    EMBER_BUSY = 6,
    /**
     * A callback or `ember_load_cancel` stopped the call.
     */
    EMBER_CANCELLED = 7,
    /**
     * `ember_session_interrupt`, `ember_embedder_interrupt` or a field `interrupt` ended the call; everything is as it was before it.
     */
    EMBER_INTERRUPTED = 8,
    /**
     * The file does not exist.
     */
    EMBER_FILE_NOT_FOUND = 9,
    /**
     * The path names something that is no regular file; where a model is loaded, neither that nor a folder.
     */
    EMBER_NOT_A_FILE = 10,
    /**
     * The file has no bytes.
     */
    EMBER_FILE_EMPTY = 11,
    /**
     * The operating system could not open, read or map the file.
     */
    EMBER_IO = 12,
    /**
     * The file is not a GGUF file of a known version, or the folder has no model.
     */
    EMBER_UNKNOWN_FORMAT = 13,
    /**
     * The file ends before something that it announces.
     */
    EMBER_FILE_TRUNCATED = 14,
    /**
     * The file contradicts itself or the format.
     */
    EMBER_FILE_CORRUPT = 15,
    /**
     * A valid file or request that this version does not support.
     */
    EMBER_UNSUPPORTED = 16,
    /**
     * The file lacks a metadata key that the model needs, or the key has another type.
     */
    EMBER_MISSING_KEY = 17,
    /**
     * The file lacks a tensor that the model needs.
     */
    EMBER_MISSING_TENSOR = 18,
    /**
     * A tensor has another shape or type than the model needs.
     */
    EMBER_SHAPE_MISMATCH = 19,
    /**
     * The model's hyperparameters contradict each other or are out of range.
     */
    EMBER_INVALID_MODEL = 20,
    /**
     * Memory ran out; the message says for what, as far as that is known. Nothing was changed.
     */
    EMBER_OUT_OF_MEMORY = 21,
    /**
     * The tokens do not fit into the session's context. Nothing was changed.
     */
    EMBER_CONTEXT_FULL = 22,
    /**
     * A token id is not in the model's vocabulary. Nothing was changed.
     */
    EMBER_INVALID_TOKEN = 23,
    /**
     * The call needs at least one token, or a session that has seen one.
     */
    EMBER_NO_INPUT = 24,
    /**
     * The buffer is too small; the needed size was written to the count.
     */
    EMBER_BUFFER_TOO_SMALL = 25,
    /**
     * There is nothing to return: nothing was started, or its end was already returned.
     */
    EMBER_NOTHING_PENDING = 26,
    /**
     * The session has a started decode, prefill or generation whose end was not returned yet.
     */
    EMBER_DECODE_PENDING = 27,
    /**
     * There is no such device, or it cannot be used; the message says why.
     */
    EMBER_NO_DEVICE = 28,
    /**
     * The device failed permanently; every later call on it fails in the same way.
     */
    EMBER_DEVICE_LOST = 29,
    /**
     * The model produced a value that is not a number.
     */
    EMBER_NUMERIC = 30,
    /**
     * The device or its driver refused an operation.
     */
    EMBER_DEVICE_ERROR = 31,
    /**
     * A bug in the library was caught before it could reach the caller; the message says where. A session that this
     * happened to answers every later call in the same way and can only be freed.
     */
    EMBER_INTERNAL = 32,
    /**
     * The process was forked from one that had loaded a model or was in a call; the library works
     * only there.
     */
    EMBER_FORKED = 33,
    /**
     * A schema or grammar is invalid, cannot be met or is too large; the message says where.
     */
    EMBER_GRAMMAR = 34,
    /**
     * The chat template is missing or wrong, refuses the messages, or goes beyond its limits; the
     * message says which and where.
     */
    EMBER_TEMPLATE_FAILED = 35,
    /**
     * The file is not a saved session.
     */
    EMBER_NOT_STATE = 36,
    /**
     * The session was saved by a version of the library whose format this one does not read.
     */
    EMBER_STATE_VERSION = 37,
    /**
     * The session was saved with another model or tokenizer.
     */
    EMBER_STATE_FOREIGN = 38,
    /**
     * The saved session has changed since it was written: a checksum does not match.
     */
    EMBER_STATE_CHECKSUM = 39,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ember_status_code ember_status_code;
#else
typedef int32_t ember_status_code;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Levels of log messages. Later versions may have more.
 */
enum ember_log_level
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * A failure that is not the caller's fault, such as a caught bug.
     */
    EMBER_LOG_ERROR = 1,
    /**
     * Something works less well than it could.
     */
    EMBER_LOG_WARN = 2,
    /**
     * A model or an adapter was loaded.
     */
    EMBER_LOG_INFO = 3,
    /**
     * Details for a bug report, such as each session that is created.
     */
    EMBER_LOG_DEBUG = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ember_log_level ember_log_level;
#else
typedef int32_t ember_log_level;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Values of `ember_device_details.kind`. Later versions may have more: a device that is `usable` can be used whatever its kind is.
 */
enum ember_device_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * The processor that the program runs on.
     */
    EMBER_DEVICE_CPU = 1,
    /**
     * An NVIDIA GPU.
     */
    EMBER_DEVICE_CUDA = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ember_device_kind ember_device_kind;
#else
typedef uint32_t ember_device_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Capabilities that `ember_supported` knows. Later versions may have more.
 */
enum ember_capability
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * The library has a backend for processors.
     */
    EMBER_CAN_CPU = 1,
    /**
     * The library has a backend for NVIDIA GPUs, whether or not this machine has one.
     */
    EMBER_CAN_CUDA = 2,
    /**
     * GGUF files, also split ones.
     */
    EMBER_CAN_GGUF = 16,
    /**
     * Hugging Face folders with safetensors files.
     */
    EMBER_CAN_SAFETENSORS = 17,
    /**
     * KV caches in half precision on a CPU, `EMBER_KV_F16`.
     */
    EMBER_CAN_CPU_KV_F16 = 32,
    /**
     * KV caches in single precision on a CPU, `EMBER_KV_F32`.
     */
    EMBER_CAN_CPU_KV_F32 = 33,
    /**
     * KV caches of 8-bit values on a CPU, `EMBER_KV_Q8_0`.
     */
    EMBER_CAN_CPU_KV_Q8_0 = 34,
    /**
     * KV caches in half precision on a GPU.
     */
    EMBER_CAN_CUDA_KV_F16 = 48,
    /**
     * KV caches in single precision on a GPU.
     */
    EMBER_CAN_CUDA_KV_F32 = 49,
    /**
     * KV caches of 8-bit values on a GPU.
     */
    EMBER_CAN_CUDA_KV_Q8_0 = 50,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ember_capability ember_capability;
#else
typedef uint32_t ember_capability;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Flags of `ember_model_source`, to be or-ed.
 */
enum ember_source_flags
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * `bytes` are not copied: they must stay as they are until `release` is called, or, without one, until the model and its last
     * session are freed.
     */
    EMBER_SOURCE_BORROW = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ember_source_flags ember_source_flags;
#else
typedef uint32_t ember_source_flags;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Values of `ember_session_options.kv_type`.
 */
enum ember_kv_type
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Half precision.
     */
    EMBER_KV_DEFAULT = 0,
    /**
     * Half precision.
     */
    EMBER_KV_F16 = 1,
    /**
     * Single precision. CPU only.
     */
    EMBER_KV_F32 = 2,
    /**
     * 8-bit values with a half-precision scale per 32. GPU only.
     */
    EMBER_KV_Q8_0 = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ember_kv_type ember_kv_type;
#else
typedef uint32_t ember_kv_type;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Values of `ember_save_options.kind`.
 */
enum ember_state_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Tokens, settings, keys, values and logits. Restoring it evaluates nothing.
     */
    EMBER_STATE_EVERYTHING = 0,
    /**
     * Tokens and settings: a few bytes per token. Restoring it evaluates the tokens.
     */
    EMBER_STATE_TOKENS = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ember_state_kind ember_state_kind;
#else
typedef uint32_t ember_state_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Languages that a grammar is written in, for `ember_session_set_grammar`.
 */
enum ember_grammar_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * No grammar: removes the session's grammar.
     */
    EMBER_GRAMMAR_NONE = 0,
    /**
     * A JSON schema. The output is a JSON value that the schema accepts; with `{}`, any JSON value. References must
     * be local (`#/$defs/...`). A keyword that cannot be enforced is an error.
     */
    EMBER_GRAMMAR_JSON_SCHEMA = 1,
    /**
     * A regular expression that matches the whole output, in the syntax of Rust's `regex` crate, without
     * look-around.
     */
    EMBER_GRAMMAR_REGEX = 2,
    /**
     * A grammar in llguidance's variant of Lark, which starts with the rule `start`. As in Lark,
     * text is first divided into the longest possible terminals.
     */
    EMBER_GRAMMAR_LARK = 3,
    /**
     * A grammar in GBNF, which starts with the rule `root`.
     */
    EMBER_GRAMMAR_GBNF = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ember_grammar_kind ember_grammar_kind;
#else
typedef uint32_t ember_grammar_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Values of `ember_grammar_options.json_spacing`.
 */
enum ember_json_spacing
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * One space behind each comma and colon between values, none elsewhere.
     */
    EMBER_JSON_SPACED = 0,
    /**
     * No space between values.
     */
    EMBER_JSON_COMPACT = 1,
    /**
     * Any white space that the model chooses, up to 40 characters in one place.
     */
    EMBER_JSON_FREE = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ember_json_spacing ember_json_spacing;
#else
typedef uint32_t ember_json_spacing;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Values of `ember_speculation_options.source`: where drafts come from.
 */
enum ember_draft_source
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * No drafts: every token takes a step.
     */
    EMBER_DRAFTS_NONE = 0,
    /**
     * What followed the last tokens where they occurred earlier in the context. Good for text that repeats parts of
     * its prompt, such as code, JSON and summaries. Needs no model.
     */
    EMBER_DRAFTS_NGRAM = 1,
    /**
     * A smaller model with the same vocabulary, or an EAGLE-3 head that was trained for the session's model: `draft_model`.
     */
    EMBER_DRAFTS_MODEL = 2,
    /**
     * The model's own head for multi-token prediction (MTP), loaded by `EMBER_MODEL_DRAFT_HEADS`: one layer that reads the hidden
     * states of the model. Not for a model that is split, by layers or by tensors.
     */
    EMBER_DRAFTS_HEADS = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ember_draft_source ember_draft_source;
#else
typedef uint32_t ember_draft_source;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Values of `ember_model_options.weights`: the type that matrices which take more bytes are
 * converted to. Rows that are no whole blocks of a type get the next larger one that fits; norms,
 * biases, routers and learned positions stay as they are.
 */
enum ember_weights
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * As they are in the file.
     */
    EMBER_WEIGHTS_KEEP = 0,
    /**
     * Q8_0: 8.5 bits per weight.
     */
    EMBER_WEIGHTS_Q8_0 = 1,
    /**
     * Q4_K, and Q6_K for the head: a little over 4.5 bits per weight.
     */
    EMBER_WEIGHTS_Q4_K = 2,
    /**
     * Q6_K: 6.6 bits per weight.
     */
    EMBER_WEIGHTS_Q6_K = 3,
    /**
     * As `EMBER_WEIGHTS_Q4_K`, but with Q6_K also for half of the matrices of values and of the
     * feed-forward's outputs: about 4.9 bits per weight.
     */
    EMBER_WEIGHTS_Q4_K_M = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ember_weights ember_weights;
#else
typedef uint32_t ember_weights;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Values of `ember_model_options.files`: how the CPU accesses the weights. For a GPU, the files are always read once into its own memory
 * and are not needed after the load.
 */
enum ember_files
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * The files are mapped. Loading is fast, processes share the memory, and the system can drop pages and read them again, so a model
     * may be larger than the free memory. The files must not be overwritten or shortened while the model is in use, because the system
     * ends a process (`SIGBUS`) that reads a mapping beyond the end of its file. Calls that find a changed file when they begin return
     * `EMBER_FILE_TRUNCATED` or `EMBER_FILE_CORRUPT`, but a file that shrinks during a call ends the process. It is safe to replace a
     * file by writing the new one under another name and renaming it, as package managers and most downloads do, and to delete it. A
     * removed medium or a network drive that fails has the same effect as a file that shrinks.
     */
    EMBER_FILES_MAPPED = 0,
    /**
     * The files are read into memory that the model owns, in huge pages where the system has them. Loading takes as
     * long as reading the files, and fails with `EMBER_OUT_OF_MEMORY` if there is not enough memory. After loading,
     * the files may change, shrink or be deleted; a change during loading is an error.
     */
    EMBER_FILES_READ = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ember_files ember_files;
#else
typedef uint32_t ember_files;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Values of `ember_model_options.split`: how several devices share a model.
 */
enum ember_split
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Each device has some of the layers. They work one after another on a token.
     */
    EMBER_SPLIT_LAYERS = 0,
    /**
     * Each device has a share of every layer, and all work on every token at the same time, so that one session is faster than on one
     * device. Only for GPUs, and without profiles. They share the heads of attention, gated delta nets and Mamba 2, the channels of short
     * convolutions, and the inner elements of feed-forward parts and experts; the first Mamba, and norms over all heads of a mixer, are
     * `EMBER_UNSUPPORTED`. GPUs that cannot access each other's memory need NCCL 2.18 or later: `libnccl.so.2` is
     * opened then, and a load returns `EMBER_UNSUPPORTED` if it is missing or too old. `device_layers` is NULL. Each GPU takes
     * `memory_limit` at most, beside what NCCL takes, and no layer goes to the CPU. Only one session or one batch is processed at a
     * time. A GPU that does not do its share in time (10 s; with NCCL 30 s) is `EMBER_DEVICE_LOST`, from then on for every call with the
     * model.
     */
    EMBER_SPLIT_TENSORS = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ember_split ember_split;
#else
typedef uint32_t ember_split;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Flags of `ember_tokenize`, to be or-ed. With none of them, the text is the start of a context,
 * and nothing in it has a special meaning.
 */
enum ember_tokenize_flags
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * The text continues other tokens: do not add the tokens that the model expects at the beginning (BOS) or end of
     * a text.
     */
    EMBER_TOKENIZE_CONTINUE = 1,
    /**
     * Recognize control tokens in the text, such as `<|im_end|>`. Do not set this flag for untrusted text, which
     * could forge roles with them.
     */
    EMBER_TOKENIZE_SPECIAL = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ember_tokenize_flags ember_tokenize_flags;
#else
typedef uint32_t ember_tokenize_flags;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Flags of `ember_detokenize`, to be or-ed.
 */
enum ember_detokenize_flags
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Leave out control tokens instead of spelling their names.
     */
    EMBER_DETOKENIZE_SKIP_SPECIAL = 1,
    /**
     * The tokens continue other text. Without this flag, they are the start of a text, and the space that
     * SentencePiece tokenizers put before every text is left out.
     */
    EMBER_DETOKENIZE_CONTINUE = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ember_detokenize_flags ember_detokenize_flags;
#else
typedef uint32_t ember_detokenize_flags;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Flags of `ember_text_stream_options`, to be or-ed.
 */
enum ember_text_stream_flags
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Leave out control tokens instead of spelling their names.
     */
    EMBER_TEXT_STREAM_SKIP_SPECIAL = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ember_text_stream_flags ember_text_stream_flags;
#else
typedef uint32_t ember_text_stream_flags;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Flags of `ember_embedder_options`, to be or-ed.
 */
enum ember_embedder_flags
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Cut texts that have more than `max_tokens` tokens, instead of refusing them. Of a pair, the document is cut.
     */
    EMBER_EMBEDDER_TRUNCATE = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ember_embedder_flags ember_embedder_flags;
#else
typedef uint32_t ember_embedder_flags;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Flags of `ember_session_set_adapters`, to be or-ed.
 */
enum ember_adapters_flags
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Keep keys, values and logits of the context as they are, instead of evaluating it again.
     */
    EMBER_ADAPTERS_KEEP = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ember_adapters_flags ember_adapters_flags;
#else
typedef uint32_t ember_adapters_flags;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Values of `ember_embedder_options.normalize`.
 */
enum ember_normalize
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * As the model's files say; if they do not, pooled vectors are normalized and those of single tokens are not.
     */
    EMBER_NORMALIZE_DEFAULT = 0,
    /**
     * Vectors get the length 1, so that a dot product is the cosine.
     */
    EMBER_NORMALIZE_ON = 1,
    /**
     * Vectors stay as they are.
     */
    EMBER_NORMALIZE_OFF = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ember_normalize ember_normalize;
#else
typedef uint32_t ember_normalize;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * How an embedder combines the hidden states of a text, of which there is one for each token: values of
 * `ember_embedder_options.pooling`.
 */
enum ember_pooling
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * As the model's files say; if they do not, the mean for an encoder, the last for other models.
     */
    EMBER_POOLING_DEFAULT = 0,
    /**
     * One vector, their mean.
     */
    EMBER_POOLING_MEAN = 1,
    /**
     * One vector, that of the first token.
     */
    EMBER_POOLING_FIRST = 2,
    /**
     * One vector, that of the last token.
     */
    EMBER_POOLING_LAST = 3,
    /**
     * A vector for each token.
     */
    EMBER_POOLING_NONE = 4,
    /**
     * The scores of the model's classification head. For a model without one that has the tokens "yes" and "no"
     * (Qwen3-Reranker), one score: the probability of "yes" of the two as the next token.
     */
    EMBER_POOLING_SCORE = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ember_pooling ember_pooling;
#else
typedef uint32_t ember_pooling;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Flags of `ember_generate_options`, to be or-ed.
 */
enum ember_generate_flags
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Spell the names of control tokens in the text instead of leaving them out.
     */
    EMBER_GENERATE_SHOW_SPECIAL = 1,
    /**
     * Continue after tokens that end an answer.
     */
    EMBER_GENERATE_IGNORE_END = 2,
    /**
     * The output is a separate text, such as an answer in a chat, not a continuation of the prompt: leave out the
     * space that SentencePiece tokenizers put before every text.
     */
    EMBER_GENERATE_NEW_TEXT = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ember_generate_flags ember_generate_flags;
#else
typedef uint32_t ember_generate_flags;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Flags of `ember_generate_next`, to be or-ed.
 */
enum ember_next_flags
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Return `EMBER_PENDING` instead of waiting for the next token. The work goes on in the background, and the session's event
     * (`ember_session_set_event`) is set when the next call returns something else.
     */
    EMBER_NEXT_NO_WAIT = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ember_next_flags ember_next_flags;
#else
typedef uint32_t ember_next_flags;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Kinds of structs that `next` of an option struct may point to. Later versions may have more. A kind that the library does not know is
 * `EMBER_INVALID_ARGUMENT`.
 */
enum ember_chain_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * `ember_cuda_model_options`, behind `ember_model_options`.
     */
    EMBER_CHAIN_CUDA_MODEL = 1,
    /**
     * `ember_cuda_session_options`, behind `ember_session_options` and `ember_restore_options`.
     */
    EMBER_CHAIN_CUDA_SESSION = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ember_chain_kind ember_chain_kind;
#else
typedef uint32_t ember_chain_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Flags of `ember_token`. Later versions may have more.
 */
enum ember_token_flags
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * The token ends an answer (`ember_token_is_end`).
     */
    EMBER_TOKEN_ENDS = 1,
    /**
     * The session's grammar allowed no other token, so it was not sampled.
     */
    EMBER_TOKEN_FORCED = 2,
    /**
     * `logprob` is set.
     */
    EMBER_TOKEN_HAS_LOGPROB = 4,
    /**
     * The token was an accepted draft (`ember_session_set_speculation`).
     */
    EMBER_TOKEN_DRAFTED = 8,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ember_token_flags ember_token_flags;
#else
typedef uint32_t ember_token_flags;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Flags of `ember_model_options`, to be or-ed.
 */
enum ember_model_flags
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Calls that return a result compute on the caller's thread alone, so that they never wait for a thread of the library that the
     * system schedules late. Started decodes, prompts and batches use all threads. Only for CPUs.
     */
    EMBER_MODEL_NEVER_WAIT = 1,
    /**
     * Load the model's head for multi-token prediction (MTP) as well, for `EMBER_DRAFTS_HEADS`. Without this flag, heads are not loaded.
     * The flag has no effect on a model without heads. Of several heads, the first one is loaded. `ember_model_estimate` includes the
     * head and what a session has for its drafts.
     */
    EMBER_MODEL_DRAFT_HEADS = 2,
    /**
     * Steps of more than 16 sessions together (`ember_decode_batch`, `ember_decode_batch_start`) have most of their products with quantized
     * weights on f16 tensor cores in place of int8 ones, unless one of them has drafts or adapters. That is faster, and closer to exact results.
     * But without this flag, a session's results do not depend on the others in its batch; with it, their last bits depend on whether a step
     * is of that kind, and on nothing else of the others. The experts of mixtures stay as they are. Only for NVIDIA GPUs of compute
     * capability 9.0; ignored elsewhere. Since 0.1.0.
     */
    EMBER_MODEL_F16_BATCHES = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ember_model_flags ember_model_flags;
#else
typedef uint32_t ember_model_flags;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Why a generation ended: values of `ember_generate_details.end`. Later versions may have more.
 */
enum ember_generate_end
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * `max_tokens` of the options were generated.
     */
    EMBER_END_LIMIT = 1,
    /**
     * The last token ends an answer (`ember_token_is_end`). It is in the context; the callback did not get it.
     */
    EMBER_END_TOKEN = 2,
    /**
     * A stop string is complete. Its tokens are in the context, nothing of it is in the text.
     */
    EMBER_END_STOP = 3,
    /**
     * The callback returned a value other than 0, or `ember_generate_finish` came before any other reason.
     */
    EMBER_END_CALLBACK = 4,
    /**
     * `ember_session_interrupt`. The tokens generated before it are in the context.
     */
    EMBER_END_INTERRUPTED = 5,
    /**
     * The context has no room for another token.
     */
    EMBER_END_CONTEXT_FULL = 6,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ember_generate_end ember_generate_end;
#else
typedef uint32_t ember_generate_end;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * A LoRA adapter, loaded for one model. Immutable, so any number of sessions, embedders and threads may use it at once.
 * It stays in memory until `ember_adapter_free` and until no session or embedder uses it any more, in any order. It
 * keeps its model alive.
 */
typedef struct ember_adapter ember_adapter;

/**
 * Computes vectors or scores of texts, for search, clustering, classification and reranking. It has no context: each text is
 * evaluated by itself. One thread at a time may use it; a call from a second thread meanwhile returns `EMBER_BUSY`
 * and changes nothing. To embed on several threads at once, create an embedder for each. It keeps its model alive.
 */
typedef struct ember_embedder ember_embedder;

/**
 * An event that an event loop can wait for. It is set when a call of `ember_decode_poll`, `ember_prefill_poll`, `ember_generate_next`
 * or `ember_load_poll` may find something new. Any number of sessions and loads may have the same one. All functions that take one
 * may be called by any thread at any time.
 */
typedef struct ember_event ember_event;

/**
 * Membership of this process in a group: several processes, called ranks, each with one GPU, that share one model. Each rank has a share
 * of every layer, as with `EMBER_SPLIT_TENSORS`, and loads it with `ember_model_options.group`. Functions that take a group may be
 * called by any thread at any time.
 *
 * All ranks call the same functions with the same arguments in the same order: load the same file, create sessions, and prefill, decode
 * or generate in them, one call at a time. Each rank gets all results, the same ones, bit for bit those of `EMBER_SPLIT_TENSORS` in one
 * process. How ranks other than the first learn what is to be done is up to the host.
 *
 * Before work begins, the ranks compare what each is about to do. Where that differs, all of them get `EMBER_INVALID_ARGUMENT` with a message that
 * says what differs, and nothing has happened. An error that one rank has before work begins, such as `EMBER_INTERRUPTED`, is the error
 * of all. A rank that does not come in time, or whose process ends, is named in the message of `EMBER_DEVICE_LOST`, from then on the answer to
 * every call with the model that needs the others.
 *
 * It needs NCCL 2.18 or later (`libnccl.so.2`). Models, calls and limits are those of `EMBER_SPLIT_TENSORS`; besides, sessions are not
 * saved, restored or evicted, and have no drafts (`EMBER_UNSUPPORTED`). Do not start decodes or prompts of several sessions at the same time, because their
 * order could differ between ranks. Start batches instead.
 */
typedef struct ember_group ember_group;

/**
 * A load that runs in the background. Functions that take one may be called by any thread at any time.
 */
typedef struct ember_load ember_load;

/**
 * A loaded model: weights and vocabulary. Immutable, so any number of threads may use it at once.
 * It stays in memory until `ember_model_free` and until its last session is freed, in any order.
 */
typedef struct ember_model ember_model;

/**
 * One conversation: a context of tokens with its KV cache. One thread at a time may use it; a call
 * from a second thread meanwhile returns `EMBER_BUSY` and changes nothing. It keeps its model
 * alive.
 */
typedef struct ember_session ember_session;

/**
 * Converts tokens to text as they arrive. It returns whole characters only, and ends at a stop string. One thread at
 * a time may use it; a call from a second thread meanwhile returns `EMBER_BUSY` and changes nothing. It keeps its
 * model alive.
 */
typedef struct ember_text_stream ember_text_stream;

/**
 * Result of a function: 0 for success, otherwise another value of `enum ember_status_code`. Later versions may
 * return values that this header does not have; `ember_status_name` returns their names.
 */
typedef int32_t ember_status;

/**
 * Receives one message: `len` bytes of UTF-8 without a line end and without a NUL, valid during
 * the call. Called from any thread that is inside a function of the library and from its worker
 * threads, also from several at once. It must return normally: no `longjmp`, no exception. It may
 * call the library, whose messages are then dropped, but not `ember_set_log_callback`
 * (`EMBER_BUSY`).
 */
typedef void (*ember_log_fn)(void *user, int32_t level, const char *message, size_t len);

/**
 * Describes an error. The caller owns it, for example on the stack; it needs no initialization and no cleanup. Every
 * function that receives one writes it before it returns: on success, `code` is 0, `index` is `EMBER_NO_INDEX` and
 * `message` is empty. Its size and layout never change.
 */
typedef struct ember_error {
    /**
     * The status that the function returned.
     */
    ember_status code;
    /**
     * Index of the invalid element, counted from 0, if the function takes several: a token of a prompt, a session
     * of a batch, a stop string, or an entry of a list in an option struct, which the message names. Otherwise
     * `EMBER_NO_INDEX`.
     */
    uint32_t index;
    /**
     * A message that names the cause: UTF-8, always terminated by a NUL, shortened to fit.
     */
    char message[1016];
} ember_error;

/**
 * A device. The caller sets `struct_size`, `ember_device_info` the rest. Text is UTF-8, ended by
 * a NUL, shortened to fit.
 */
typedef struct ember_device_details {
    /**
     * `sizeof(ember_device_details)`, set by the caller.
     */
    uint32_t struct_size;
    /**
     * A value of `enum ember_device_kind`.
     */
    uint32_t kind;
    /**
     * 1 if models can be loaded onto it, else 0.
     */
    uint32_t usable;
    /**
     * Physical cores of a CPU, multiprocessors of a GPU.
     */
    uint32_t cores;
    /**
     * Bytes of memory; 0 if unknown.
     */
    uint64_t memory_total;
    /**
     * Bytes of memory that are free now; 0 if unknown.
     */
    uint64_t memory_free;
    /**
     * Name of the device, as its vendor gives it.
     */
    char name[128];
    /**
     * Version of the driver; empty for a CPU.
     */
    char driver[32];
    /**
     * Instruction set or architecture that will be used, for example `avx2` or `sm_90`.
     */
    char isa[32];
    /**
     * Why the device is not usable, or what limits it; else empty.
     */
    char reason[256];
} ember_device_details;

/**
 * How to join a group. Zero in `timeout_ms`, `address` and `address_len` means the default.
 */
typedef struct ember_group_options {
    /**
     * `sizeof(ember_group_options)`.
     */
    uint32_t struct_size;
    /**
     * Number of the rank, counted from 0.
     */
    uint32_t rank;
    /**
     * Number of ranks, 2 to 8.
     */
    uint32_t rank_count;
    /**
     * Milliseconds that a rank waits for the others, each time that it needs them: several times while it loads the model, where NCCL takes
     * some seconds to connect the GPUs, and in each call. 0 means 30 000. Where several ranks are late one after another, the wait of the
     * others can last three times that.
     */
    uint32_t timeout_ms;
    /**
     * For rank 0, the IP address (IPv4 or IPv6) that it listens on, of `address_len` bytes, with a port (`10.0.0.5:7000`) or without. NULL with
     * 0 bytes means that all ranks are on this machine. For other ranks NULL.
     */
    const char *address;
    /**
     * Bytes of `address`.
     */
    size_t address_len;
    /**
     * For rank 0 NULL. For the others, what `ember_group_id` has written for rank 0, of `id_len` bytes.
     */
    const char *id;
    /**
     * Bytes of `id`.
     */
    size_t id_len;
} ember_group_options;

/**
 * Receives the progress of a load: `fraction` goes from 0 to 1 and never decreases. Return 0 to continue and 1 to stop the load with
 * `EMBER_CANCELLED`. Called on the thread that called `ember_model_load` or `ember_model_load_from`, without holding a lock, so the
 * callback may call any function of the library. It must return normally: no `longjmp`, no exception.
 */
typedef int32_t (*ember_progress_fn)(void *user, float fraction);

/**
 * Called once when the library no longer uses `user`, on any thread, possibly one of the library. It may call every function of the
 * library. It must return normally: no `longjmp`, no exception.
 */
typedef void (*ember_free_fn)(void *user);

/**
 * How to load a model. Zero in every field but `struct_size` means the default.
 */
typedef struct ember_model_options {
    /**
     * `sizeof(ember_model_options)`.
     */
    uint32_t struct_size;
    /**
     * Index of the device, as for `ember_device_info`; 0 is the best one. Ignored if `device_count` is not 0.
     */
    uint32_t device;
    /**
     * Threads that work on the CPU, at most 1024; 0 means one per physical core. All sessions of
     * the model share them. They sleep when there is nothing to do and end with the model. Threads of
     * the host that call functions of sessions compute as well.
     */
    uint32_t threads;
    /**
     * A value of `enum ember_weights`.
     */
    uint32_t weights;
    /**
     * A value of `enum ember_files`.
     */
    uint32_t files;
    /**
     * Values of `enum ember_model_flags`.
     */
    uint32_t flags;
    /**
     * A value of `enum ember_split`: how `devices` share the model.
     */
    uint32_t split;
    /**
     * For a model on a GPU, the number of layers whose experts stay on the CPU, which evaluates them between the GPU's work on the
     * rest of the layers; counted from the first layer with experts, `UINT32_MAX` for all. Where `memory_limit` has no room for
     * all other experts, those of more layers stay on the CPU, and layers go to the CPU as a whole only where that is not enough.
     * Pieces of prompts of at least 256 tokens are evaluated on the GPU alone, which keeps room for the experts of one layer. If
     * `threads` is 0, one physical core is left to the driver. Only for models on one GPU. CPUs, and models without experts, ignore it.
     */
    uint32_t cpu_expert_layers;
    /**
     * Priority of the library's threads relative to the thread that loads the model: less than 0 gives way to others, more than 0 goes
     * first if the system allows it. On Linux, it is subtracted from the nice value; on Windows, it is from -2 to 2. Ignored elsewhere.
     */
    int32_t thread_priority;
    /**
     * The level up to which `log_callback` is called, a value of `enum ember_log_level`; 0 if there is no `log_callback`.
     */
    int32_t log_level;
    /**
     * Bytes of a GPU's memory that the library may allocate for the model: its weights, and the memory of prefill and of batches
     * that its sessions share. 0 for no limit. As many of the last layers as fit are on the GPU, the others on the CPU;
     * `ember_model_estimate` says beforehand how many. A call that would need more returns `EMBER_OUT_OF_MEMORY`, and everything
     * stays as it was. What the driver takes for itself is not counted. CPUs ignore it. With several GPUs in `devices`, the limit is
     * one for each of them.
     */
    uint64_t memory_limit;
    /**
     * Bytes of the device's memory that all sessions of the model may take together: KV caches, states, what each session
     * works in, adapters, and on a GPU embedders. 0 for no limit. What would take more, such as `ember_session_create`,
     * `ember_session_fork`, `ember_adapter_load` and on a GPU also `ember_embedder_create` and calls that append tokens, returns
     * `EMBER_OUT_OF_MEMORY`; no session loses anything. On a GPU, KV caches grow with the tokens in pages of 2 MiB; on a CPU, a
     * session counts in whole from its beginning. An adapter counts once, however many sessions and embedders use it, until it is
     * freed and none uses it any more. With several GPUs in `devices`, the limit is one for each of them.
     */
    uint64_t session_memory_limit;
    /**
     * Called while loading; may be NULL.
     */
    ember_progress_fn progress;
    /**
     * Passed to `progress`; may be NULL.
     */
    void *user;
    /**
     * Numbers of the logical processors that the library's threads may run on, as the system counts them, from 0 to 1023. NULL with a
     * `cpu_count` of 0 lets the system choose. Used on Linux and on Windows (there, the first 64); ignored elsewhere.
     */
    const uint32_t *cpus;
    /**
     * Number of elements of `cpus`.
     */
    size_t cpu_count;
    /**
     * Indices of the devices that share the model's layers, 1 to 16, or NULL for `device` alone. The first device has the first
     * layers, the last one the head. The devices work one after another on a token, and at the same time on different sessions and
     * on different pieces of a long prompt.
     */
    const uint32_t *devices;
    /**
     * Number of `devices`.
     */
    size_t device_count;
    /**
     * NULL, or the number of layers on each of `devices`. One number may be 0: that device gets the layers that the others leave.
     * NULL and zeros alone share the layers among GPUs in proportion to their memory, so that the same devices always get the
     * same layers; where `memory_limit` does not allow that, each GPU gets as many as it has room for, from the last one on, and
     * the CPU the first layers.
     */
    const uint32_t *device_layers;
    /**
     * NULL, or the group of processes that this process shares the model with (`ember_group`). `device` is the GPU of this rank, and
     * `devices` is NULL. The load waits until all ranks load the model. The handle still belongs to the caller.
     */
    const struct ember_group *group;
    /**
     * NULL, or what receives the log messages about this model and its sessions, in place of the function that
     * `ember_set_log_callback` has set. It may be called until the model and the last of its sessions are freed.
     */
    ember_log_fn log_callback;
    /**
     * Passed to `log_callback`; may be NULL.
     */
    void *log_user;
    /**
     * NULL, or called once with `log_user` when `log_callback` will not be called any more, so that the caller can free what belongs to it.
     * A load that fails does not call it: `ember_model_load` and `ember_model_load_from` take `log_user` over when they return
     * `EMBER_OK`, and `ember_model_load_start` when it has started the load, whatever becomes of that.
     */
    ember_free_fn log_release;
    /**
     * NULL, or options of single devices: an `ember_cuda_model_options`.
     */
    const void *next;
} ember_model_options;

/**
 * Facts about a model. The caller sets `struct_size`, `ember_model_info` the rest. Text is UTF-8,
 * ended by a NUL, shortened to fit.
 */
typedef struct ember_model_details {
    /**
     * `sizeof(ember_model_details)`, set by the caller.
     */
    uint32_t struct_size;
    /**
     * Index of the device that holds the weights; where several do, of that with the head.
     */
    uint32_t device;
    /**
     * Number of token ids: 0 to `vocab_size - 1`. Also the number of logits.
     */
    uint32_t vocab_size;
    /**
     * Tokens that the model was trained to keep in context; the most that a session can have.
     */
    uint32_t context_length;
    /**
     * Number of layers.
     */
    uint32_t layer_count;
    /**
     * Width of the residual stream.
     */
    uint32_t hidden_size;
    /**
     * 1 if the text functions work with this model, 0 if its tokenizer is not supported.
     */
    uint32_t has_tokenizer;
    /**
     * Number of metadata keys, for `ember_model_metadata_key`.
     */
    uint32_t metadata_count;
    /**
     * Number of weights.
     */
    uint64_t parameter_count;
    /**
     * Bytes of the file, or of all files of a split model.
     */
    uint64_t file_bytes;
    /**
     * Bytes of memory that the weights take beyond mapped files.
     */
    uint64_t resident_bytes;
    /**
     * Bytes of KV cache per token of context with `EMBER_KV_F16`, in layers without a sliding
     * window.
     */
    uint64_t kv_bytes_per_token;
    /**
     * Architecture as the file names it, for example `llama`.
     */
    char architecture[32];
    /**
     * Type of most of the weights, for example `Q4_K`.
     */
    char quantization[32];
    /**
     * Name as the file gives it; may be empty.
     */
    char name[128];
    /**
     * The most sessions of an `ember_decode_batch`.
     */
    uint32_t max_batch;
    /**
     * Layers on GPUs, of which the others are on the CPU; all layers of a model for CPUs.
     */
    uint32_t device_layer_count;
    /**
     * Bytes of GPU memory that are allocated for the model now, as `ember_model_options.memory_limit` counts them, on all GPUs
     * together; 0 on a CPU.
     */
    uint64_t memory_bytes;
    /**
     * Bytes of the devices' memory that its sessions and adapters have now, as `ember_model_options.session_memory_limit` counts them.
     */
    uint64_t session_memory_bytes;
    /**
     * Number of parts that the layers are in, each on one device, for `ember_model_part_info`; 1 for a model on one device.
     */
    uint32_t part_count;
    /**
     * Layers on a GPU whose experts are on the CPU.
     */
    uint32_t cpu_expert_layer_count;
} ember_model_details;

/**
 * Layers of a model that are on one device. The caller sets `struct_size`, `ember_model_part_info` the rest.
 */
typedef struct ember_part_details {
    /**
     * `sizeof(ember_part_details)`, set by the caller.
     */
    uint32_t struct_size;
    /**
     * Index of the device.
     */
    uint32_t device;
    /**
     * The first of the layers, counted from 0. The part with layer 0 has the embedding, that with the last layer the head.
     */
    uint32_t first_layer;
    /**
     * Number of layers.
     */
    uint32_t layer_count;
    /**
     * Bytes of the device's memory that are allocated for the part now, as `ember_model_options.memory_limit` counts them; 0 on a CPU.
     */
    uint64_t memory_bytes;
    /**
     * Bytes of the device's memory that sessions and adapters have for the part now, as `ember_model_options.session_memory_limit`
     * counts them.
     */
    uint64_t session_memory_bytes;
} ember_part_details;

/**
 * Called when the library no longer needs borrowed bytes: once for each load that succeeded, on the thread that frees the model or its
 * last session, or on the thread that loads it onto a GPU, possibly before `ember_model_load_from` returns. It may call every function
 * of the library. It must return normally: no `longjmp`, no exception.
 */
typedef void (*ember_release_fn)(void *user, const void *bytes, uint64_t size);

/**
 * Writes `count` bytes of the file from `offset` on to `bytes`; all of them lie within the file. Return 0 if all bytes were written. Any
 * other value ends the load with `EMBER_IO`, and its message has the value. Called while `ember_model_load_from` runs, on its thread and
 * on threads of the library, but never twice at once. It may call every function of the library. It must return normally: no `longjmp`,
 * no exception.
 */
typedef int32_t (*ember_read_at_fn)(void *user, uint64_t offset, void *bytes, size_t count);

/**
 * A GGUF file that is in memory, or that a function of yours reads: set either `bytes` or `read`. Zero in every field but
 * `struct_size`, `size` and one of these two means the default.
 */
typedef struct ember_model_source {
    /**
     * `sizeof(ember_model_source)`.
     */
    uint32_t struct_size;
    /**
     * Values of `enum ember_source_flags`.
     */
    uint32_t flags;
    /**
     * Bytes of the file.
     */
    uint64_t size;
    /**
     * The file in memory. It need not be aligned.
     */
    const void *bytes;
    /**
     * With `EMBER_SOURCE_BORROW`, called when `bytes` are not needed any more; may be NULL.
     */
    ember_release_fn release;
    /**
     * Reads the file.
     */
    ember_read_at_fn read;
    /**
     * Passed to `release` and `read`; may be NULL.
     */
    void *user;
} ember_model_source;

/**
 * What is added to the logit of a token: an element of `ember_sampling_options.logit_bias`.
 */
typedef struct ember_logit_bias {
    /**
     * The token's id.
     */
    uint32_t token;
    /**
     * Any number but NaN and plus infinity; minus infinity bans the token.
     */
    float bias;
} ember_logit_bias;

/**
 * A sequence breaker for DRY (`ember_sampling_options.dry_breakers`): a repetition does not extend across it. Set
 * either `text` or `tokens`; the other must be NULL.
 */
typedef struct ember_dry_breaker {
    /**
     * UTF-8 of 1 to 64 bytes, or NULL. It matches every token that contains it, and every sequence of tokens that
     * spells it across token boundaries.
     */
    const char *text;
    /**
     * Length of `text` in bytes.
     */
    size_t text_len;
    /**
     * Token ids, or NULL.
     */
    const uint32_t *tokens;
    /**
     * Number of `tokens`.
     */
    size_t token_count;
} ember_dry_breaker;

/**
 * How the next token is chosen. Zero in every field but `struct_size` means the default, which is
 * to take the most probable token.
 *
 * The stages, in this order. Later versions may add stages between them that are off by default:
 *
 * 1. `logit_bias` is added to the model's logits.
 * 2. Tokens among the last `penalty_window` tokens of the context, prompt and output, are penalized:
 *    a positive logit is divided by `repeat_penalty`, another one multiplied by it; then
 *    `frequency_penalty` times the number of occurrences is taken from it, then `presence_penalty`.
 * 3. DRY: tokens that would lengthen a repetition are penalized, see `dry_multiplier`.
 * 4. Tokens in `banned`, and tokens that are not in a non-empty `allowed` list, are removed.
 * 5. A `temperature` of 0 takes the largest logit (of equal ones the smaller id) and ends here.
 * 6. `top_k` keeps the tokens of the k largest logits.
 * 7. `typical_p` keeps those whose surprise, minus the logarithm of their probability, is closest
 *    to the entropy, until their probabilities sum to it.
 * 8. `top_p` keeps the most probable ones, until their probabilities sum to it.
 * 9. `min_p` keeps those with at least that share of the largest probability that is left.
 * 10. One of what is left is drawn, in proportion to `exp(logit / temperature)`.
 *
 * Each of stages 6 to 9 looks at the probabilities of what the one before left (softmax at
 * temperature 1), and leaves one token at least. The choice depends on nothing but the logits, these
 * settings, the tokens of the context and the position, so rewinding and decoding again gives the
 * same tokens. Sums are exact, so that every device makes the same choice from the same logits.
 */
typedef struct ember_sampling_options {
    /**
     * `sizeof(ember_sampling_options)`.
     */
    uint32_t struct_size;
    /**
     * Keep only this many of the best tokens; 0 keeps all.
     */
    uint32_t top_k;
    /**
     * 0 always takes the best token (greedy); 1 follows the model's probabilities.
     */
    float temperature;
    /**
     * Keep the best tokens that reach this probability together; 0 and 1 keep all.
     */
    float top_p;
    /**
     * Keep tokens of at least this share of the best token's probability; 0 keeps all.
     */
    float min_p;
    /**
     * Keep the most typical tokens that reach this probability together; 0 and 1 keep all.
     */
    float typical_p;
    /**
     * How many of the last tokens the three penalties look at; 0 means 64, `UINT32_MAX` the whole
     * context.
     */
    uint32_t penalty_window;
    /**
     * More than 1 makes repetitions less probable; 0 and 1 are off.
     */
    float repeat_penalty;
    /**
     * Taken once from tokens that occur; 0 is off; less than 0 favours them.
     */
    float presence_penalty;
    /**
     * Taken from tokens as often as they occur; 0 is off; less than 0 favours them.
     */
    float frequency_penalty;
    /**
     * DRY ("don't repeat yourself"): if the last n tokens occur earlier in the window, n being the
     * largest such number, not beyond a breaker, and at least `dry_allowed_length`, then
     * `dry_multiplier * dry_base^(n - dry_allowed_length)` is taken from the token that followed them
     * there. 0 is off.
     */
    float dry_multiplier;
    /**
     * 1 or more; 0 means 1.75.
     */
    float dry_base;
    /**
     * 0 means 2.
     */
    uint32_t dry_allowed_length;
    /**
     * How many of the last tokens DRY looks at; 0 means the whole context.
     */
    uint32_t dry_window;
    /**
     * Without `dry_breakers`, a line end, a colon, a double quote and an asterisk are breakers; 1
     * means that there are none then. Models without a tokenizer have none of their own.
     */
    uint32_t dry_no_breakers;
    /**
     * Number of most probable tokens, up to 64, that `ember_session_logprobs` returns after each decode besides the
     * chosen one. 0 turns log-probabilities off.
     */
    uint32_t logprobs;
    /**
     * Seed of the draws. 0 is a seed like any other.
     */
    uint64_t seed;
    /**
     * Values to add to the logits of single tokens. If a token occurs twice, the sum is added.
     */
    const struct ember_logit_bias *logit_bias;
    /**
     * Number of elements.
     */
    size_t logit_bias_count;
    /**
     * Ids of tokens that are never chosen.
     */
    const uint32_t *banned;
    /**
     * Number of ids.
     */
    size_t banned_count;
    /**
     * If the list is not empty, only these tokens can be chosen, except those that are banned as well. A single
     * token is always chosen.
     */
    const uint32_t *allowed;
    /**
     * Number of ids.
     */
    size_t allowed_count;
    /**
     * Sequences that a repetition does not extend across. A token that is a breaker by itself is not penalized.
     */
    const struct ember_dry_breaker *dry_breakers;
    /**
     * Number of elements.
     */
    size_t dry_breaker_count;
} ember_sampling_options;

/**
 * How to make a session. Zero in every field but `struct_size` means the default.
 */
typedef struct ember_session_options {
    /**
     * `sizeof(ember_session_options)`.
     */
    uint32_t struct_size;
    /**
     * The most tokens that the session can hold, up to the model's `context_length`; 0 means
     * `context_length`, but at most 4096. On a CPU, memory for all of them is allocated at once; on a GPU,
     * it is allocated as the session grows.
     */
    uint32_t context;
    /**
     * A value of `enum ember_kv_type`.
     */
    uint32_t kv_type;
    /**
     * For models with recurrent layers (`qwen35`, `lfm2` and others): the most positions that a call after
     * `ember_session_rewind` evaluates again, at least 16. Copies of the state are kept that close together, on
     * a GPU at the end of started decodes. They take memory (`kv_bytes` of `ember_session_details`): up to
     * `2 * context / mark_interval + 2` copies of the state. 0 keeps four copies whatever the context, closest together
     * near its end. Ignored for other models.
     */
    uint32_t mark_interval;
    /**
     * How tokens are chosen; NULL means the default, the most probable token.
     */
    const struct ember_sampling_options *sampling;
    /**
     * NULL, or options of single devices: an `ember_cuda_session_options`.
     */
    const void *next;
} ember_session_options;

/**
 * The state of a session. The caller sets `struct_size`, `ember_session_info` the rest.
 */
typedef struct ember_session_details {
    /**
     * `sizeof(ember_session_details)`, set by the caller.
     */
    uint32_t struct_size;
    /**
     * Number of token ids of its model, and so of logits.
     */
    uint32_t vocab_size;
    /**
     * The most tokens that the context can hold.
     */
    uint64_t context;
    /**
     * Tokens in the context, the one that the last decode returned included.
     */
    uint64_t position;
    /**
     * Bytes of KV cache for the whole context.
     */
    uint64_t kv_bytes;
} ember_session_details;

/**
 * A token that was decoded. The caller sets `struct_size`, the function that decodes the rest.
 */
typedef struct ember_token {
    /**
     * `sizeof(ember_token)`, set by the caller; of an array of tokens, in its first element.
     */
    uint32_t struct_size;
    /**
     * The token's id.
     */
    uint32_t id;
    /**
     * Values of `enum ember_token_flags`.
     */
    uint32_t flags;
    /**
     * In a batch, the status of this session; otherwise `EMBER_OK`.
     */
    ember_status status;
    /**
     * The natural logarithm of the token's probability in the model's own distribution, before sampling settings change it, if
     * `ember_sampling_options.logprobs` is not 0. `ember_session_logprobs` has those of other tokens.
     */
    float logprob;
    /**
     * 0.
     */
    uint32_t reserved;
} ember_token;

/**
 * How to save a session. Zero in every field but `struct_size` means the default.
 */
typedef struct ember_save_options {
    /**
     * `sizeof(ember_save_options)`.
     */
    uint32_t struct_size;
    /**
     * A value of `enum ember_state_kind`.
     */
    uint32_t kind;
} ember_save_options;

/**
 * Takes the next `count` bytes of a session that is being saved. Return 0 to continue and 1 to stop saving with `EMBER_CANCELLED`.
 * Called on the thread that saves. It may call every function of the library, but those that need this session for themselves return
 * `EMBER_BUSY`. It must return normally: no `longjmp`, no exception.
 */
typedef int32_t (*ember_write_fn)(void *user, const void *bytes, size_t count);

/**
 * An adapter that a session or an embedder uses.
 */
typedef struct ember_adapter_use {
    /**
     * The adapter.
     */
    const struct ember_adapter *adapter;
    /**
     * Factor on what the adapter adds, beside those of its file: 1 for the adapter as it was trained. Finite; 0 adds
     * nothing.
     */
    float scale;
    /**
     * Must be 0.
     */
    uint32_t reserved;
} ember_adapter_use;

/**
 * How to restore a session. Zero in every field but `struct_size` means the default.
 */
typedef struct ember_restore_options {
    /**
     * `sizeof(ember_restore_options)`.
     */
    uint32_t struct_size;
    /**
     * The most tokens that the session can hold; 0 means as many as the saved one.
     */
    uint32_t context;
    /**
     * A value of `enum ember_kv_type`. `EMBER_KV_DEFAULT` means that of the saved session, or
     * half precision if the device does not support it. Keys and values of another type are
     * converted.
     */
    uint32_t kv_type;
    /**
     * As in `ember_session_options`; it is not saved.
     */
    uint32_t mark_interval;
    /**
     * As in `ember_session_options`.
     */
    const void *next;
    /**
     * The adapters that the session was saved with, as they were given to `ember_session_set_adapters`; may be NULL if
     * there are none.
     */
    const struct ember_adapter_use *adapters;
    /**
     * Number of `adapters`.
     */
    size_t adapter_count;
} ember_restore_options;

/**
 * Writes the next bytes of a saved session to `bytes`, at most `capacity`, and their number to `count`, which is 0 on entry; 0 means the
 * end. Return 0 to continue and 1 to stop restoring with `EMBER_CANCELLED`. Called on the thread that restores. It may call every
 * function of the library. It must return normally: no `longjmp`, no exception.
 */
typedef int32_t (*ember_read_fn)(void *user, void *bytes, size_t capacity, size_t *count);

/**
 * What a saved session is. The caller sets `struct_size`, `ember_session_state_info` the rest. Text
 * is UTF-8, ended by a NUL, shortened to fit.
 */
typedef struct ember_state_details {
    /**
     * `sizeof(ember_state_details)`, set by the caller.
     */
    uint32_t struct_size;
    /**
     * Version of the format.
     */
    uint32_t version;
    /**
     * A value of `enum ember_state_kind`.
     */
    uint32_t kind;
    /**
     * A value of `enum ember_kv_type`: the element type of the KV cache.
     */
    uint32_t kv_type;
    /**
     * The most tokens that the saved session could hold.
     */
    uint64_t context;
    /**
     * Tokens in its context.
     */
    uint64_t position;
    /**
     * Bytes of the file.
     */
    uint64_t file_bytes;
    /**
     * A hash of the model: its hyperparameters, and types, shapes and samples of its tensors.
     */
    uint64_t model_fingerprint;
    /**
     * A hash of the model's vocabulary.
     */
    uint64_t tokenizer_fingerprint;
    /**
     * The architecture of the model, for example `llama`.
     */
    char architecture[64];
    /**
     * The name of the model; may be empty.
     */
    char model_name[128];
    /**
     * Number of adapters that the session used. If there are more than 16, the next two arrays have the first 16.
     */
    uint32_t adapter_count;
    /**
     * 0.
     */
    uint32_t reserved;
    /**
     * Fingerprints of the adapters, as in `ember_adapter_details`; 0 in elements without one.
     */
    uint64_t adapter_fingerprints[16];
    /**
     * Scales of the adapters; 0 in elements without one.
     */
    float adapter_scales[16];
} ember_state_details;

/**
 * How to compile a grammar. Zero in every field but `struct_size` means the default.
 */
typedef struct ember_grammar_options {
    /**
     * `sizeof(ember_grammar_options)`.
     */
    uint32_t struct_size;
    /**
     * A value of `enum ember_json_spacing`, for answers by a JSON schema.
     */
    uint32_t json_spacing;
    /**
     * NULL, or a number of the caller that other threads may set atomically while the call runs. Once it
     * is not 0, the call ends soon with `EMBER_INTERRUPTED`, as `ember_session_interrupt` ends it.
     */
    const uint32_t *interrupt;
} ember_grammar_options;

/**
 * How a session drafts. Zero in every field but `struct_size` means the default.
 */
typedef struct ember_speculation_options {
    /**
     * `sizeof(ember_speculation_options)`.
     */
    uint32_t struct_size;
    /**
     * A value of `enum ember_draft_source`.
     */
    uint32_t source;
    /**
     * The most drafts in a step, up to 31 on a CPU and 15 on a GPU; 0 means 16, or 15 on a GPU.
     */
    uint32_t max_drafts;
    /**
     * 0 chooses the number of drafts in each step, from none to `max_drafts`, by how many were right so far and
     * by how long steps have taken. 1 verifies `max_drafts` whenever the source has as many.
     */
    uint32_t always;
    /**
     * For `EMBER_DRAFTS_NGRAM`: how many tokens must match, up to 32; 0 means 2.
     */
    uint32_t min_match;
    /**
     * Must be 0.
     */
    uint32_t reserved;
    /**
     * For `EMBER_DRAFTS_MODEL`: the model; NULL otherwise. The session keeps it alive and has a session of it beside
     * its own, with a context of the same length. An EAGLE-3 head (a folder that `ember_model_load` has loaded) has no sessions: it
     * reads the hidden states of the session's model, and both must be on the same device, the model as a whole. On a CPU it runs on
     * the threads of the model. On a GPU its weights are beside the model's from the first session that is given the head until one of the two models
     * is freed; they count to the `memory_limit` of the session's model, and are evicted and resumed with that.
     */
    const struct ember_model *draft_model;
} ember_speculation_options;

/**
 * Counts of a session's drafts since `ember_session_set_speculation`. The caller sets `struct_size`,
 * `ember_session_speculation_info` the rest.
 */
typedef struct ember_speculation_details {
    /**
     * `sizeof(ember_speculation_details)`, set by the caller.
     */
    uint32_t struct_size;
    /**
     * A value of `enum ember_draft_source`.
     */
    uint32_t source;
    /**
     * The most drafts in a step.
     */
    uint32_t max_drafts;
    /**
     * Number of drafts chosen for the last step; 0 if drafting was not worthwhile.
     */
    uint32_t depth;
    /**
     * Steps in which drafts were verified.
     */
    uint64_t steps;
    /**
     * Drafts that were verified.
     */
    uint64_t drafted;
    /**
     * Drafts that were accepted. Each saved the session one step.
     */
    uint64_t accepted;
} ember_speculation_details;

/**
 * Memory that a model and a session of it would take on the device, or on all GPUs that share the model together. The caller sets
 * `struct_size`, `ember_model_estimate` and `ember_model_estimate_part` the rest.
 */
typedef struct ember_estimate {
    /**
     * `sizeof(ember_estimate)`, set by the caller.
     */
    uint32_t struct_size;
    /**
     * Index of the device that the figures are for; where GPUs share the model, of the one with the head.
     */
    uint32_t device;
    /**
     * The most tokens that the session could hold.
     */
    uint32_t context;
    /**
     * Number of parts that the layers would be in, each on one device, for `ember_model_estimate_part`.
     */
    uint32_t part_count;
    /**
     * Weights. On a CPU with `EMBER_FILES_MAPPED` almost all of it is the mapped file, whose pages the
     * system can drop and read again.
     */
    uint64_t weights_bytes;
    /**
     * KV cache per token of context, in layers without a sliding window.
     */
    uint64_t kv_bytes_per_token;
    /**
     * KV cache of the whole context. Memory that no token has touched may not be resident.
     */
    uint64_t kv_bytes;
    /**
     * What the sessions of a model share: memory of prefill and of batches, at most.
     */
    uint64_t model_workspace_bytes;
    /**
     * What each session has beside its KV cache.
     */
    uint64_t session_workspace_bytes;
    /**
     * Layers on GPUs, of which the others are on the CPU; all layers of a model for CPUs. Of a part, its layers.
     */
    uint32_t device_layer_count;
    /**
     * The first layer of a part; otherwise 0.
     */
    uint32_t first_layer;
    /**
     * Weights of the layers and experts on the CPU, if others are on a GPU, which the other figures do not count. 0 for a part.
     */
    uint64_t host_weights_bytes;
    /**
     * What each session has in the CPU's memory for these layers: KV cache and workspace.
     */
    uint64_t host_session_bytes;
    /**
     * What the sessions share in the CPU's memory for these layers.
     */
    uint64_t host_workspace_bytes;
    /**
     * Layers on a GPU whose experts would be on the CPU, which the three figures before count, too. 0 for a part.
     */
    uint32_t cpu_expert_layer_count;
    /**
     * 0.
     */
    uint32_t reserved;
} ember_estimate;

/**
 * What one kind of work took in a decode. Kinds are told apart by their names: `embed` (the token's embedding), `norm` (norms, and
 * encoding of what the products read), `qkv` (queries, keys and values), `attention` (rope, appending to the KV cache,
 * attention), `output` (its output projection), `gate_up` (the first products of the feed-forward, and the activation), `down` (its
 * last product), `head` (final norm and logits) and `sample` (choosing the token). Later versions may have others.
 */
typedef struct ember_profile_entry {
    /**
     * `sizeof(ember_profile_entry)`, set by the caller in the first element of the array.
     */
    uint32_t struct_size;
    /**
     * How often it was done, over all layers.
     */
    uint32_t calls;
    /**
     * Time of all calls together, in microseconds.
     */
    double microseconds;
    /**
     * Bytes of weights and KV cache that they read together; by `microseconds`, 1000 of them are
     * a GB/s.
     */
    uint64_t bytes;
    /**
     * The kind of work, for example `gate_up`, ended by a NUL.
     */
    char name[16];
} ember_profile_entry;

/**
 * How to tokenize. Zero in every field but `struct_size` means the default.
 */
typedef struct ember_tokenize_options {
    /**
     * `sizeof(ember_tokenize_options)`.
     */
    uint32_t struct_size;
    /**
     * Values of `enum ember_tokenize_flags`.
     */
    uint32_t flags;
    /**
     * NULL, or a number of the caller that other threads may set atomically while the call runs. Once it
     * is not 0, the call ends soon with `EMBER_INTERRUPTED`.
     */
    const uint32_t *interrupt;
} ember_tokenize_options;

/**
 * Facts about a model's tokenizer. The caller sets `struct_size`, `ember_tokenizer_info` the rest. Tokens that the model does
 * not have are `EMBER_NO_TOKEN`.
 */
typedef struct ember_tokenizer_details {
    /**
     * `sizeof(ember_tokenizer_details)`, set by the caller.
     */
    uint32_t struct_size;
    /**
     * Tokens that have a text: those with ids from 0 to `token_count - 1`. `ember_model_details.vocab_size`, the number of
     * logits, may be greater.
     */
    uint32_t token_count;
    /**
     * The token that begins a text.
     */
    uint32_t bos;
    /**
     * The token that ends a text. An answer may end with others, too: see `ember_end_tokens`.
     */
    uint32_t eos;
    /**
     * The token for text that has none.
     */
    uint32_t unknown;
    /**
     * The token that pads shorter sequences of a batch in training.
     */
    uint32_t padding;
    /**
     * 1 if `ember_tokenize` puts `bos` before a text unless the text continues others (`EMBER_TOKENIZE_CONTINUE`),
     * else 0.
     */
    uint32_t adds_bos;
    /**
     * 1 if it puts `eos` after a text unless the text continues others, else 0.
     */
    uint32_t adds_eos;
    /**
     * Number of tokens that end an answer: what `ember_end_tokens` writes.
     */
    uint32_t end_token_count;
    /**
     * 0.
     */
    uint32_t reserved;
} ember_tokenizer_details;

/**
 * A string at which a text stream ends.
 */
typedef struct ember_stop {
    /**
     * UTF-8 of 1 to 4096 bytes.
     */
    const char *text;
    /**
     * Bytes of `text`.
     */
    size_t len;
} ember_stop;

/**
 * How to create a text stream. Zero in every field but `struct_size` means the default.
 */
typedef struct ember_text_stream_options {
    /**
     * `sizeof(ember_text_stream_options)`.
     */
    uint32_t struct_size;
    /**
     * Values of `enum ember_text_stream_flags`.
     */
    uint32_t flags;
    /**
     * Stop strings, at most 256; they are copied.
     */
    const struct ember_stop *stops;
    /**
     * Number of `stops`.
     */
    size_t stop_count;
} ember_text_stream_options;

/**
 * The progress of a text stream. The caller sets `struct_size`, `ember_text_stream_info` the rest.
 */
typedef struct ember_text_stream_details {
    /**
     * `sizeof(ember_text_stream_details)`, set by the caller.
     */
    uint32_t struct_size;
    /**
     * 1 if a stop string was met, after which tokens are ignored; else 0.
     */
    uint32_t stopped;
    /**
     * Index of that string in `stops`; `EMBER_NO_INDEX` if none was met.
     */
    uint32_t stop;
    /**
     * 0.
     */
    uint32_t reserved;
    /**
     * Tokens taken: all that were pushed, or those up to the one that completed the stop string.
     */
    uint64_t token_count;
} ember_text_stream_details;

/**
 * Receives a piece of the text: `len` bytes of UTF-8, whole characters, and the token that was generated last. Both are valid during
 * the call; the token has the `struct_size` of the library.
 * It is called once for each token, in order, also where that token makes no text yet (`len` is 0) because it ends within
 * a character or a stop string could begin with it. It is called once more, with the id `EMBER_NO_TOKEN`, if text was held back until
 * the end.
 *
 * Return 0 to continue and 1 to end the generation. Every other value ends it, too, but a later version may give it another meaning.
 * Called on the thread that called `ember_generate`. It may call every function of the library, but those that need this session for
 * themselves return `EMBER_BUSY`. It must return normally: no `longjmp`, no exception.
 */
typedef int32_t (*ember_piece_fn)(void *user,
                                  const char *text,
                                  size_t len,
                                  const struct ember_token *token);

/**
 * What to generate, and when to end. Zero in every field but `struct_size` means the default.
 */
typedef struct ember_generate_options {
    /**
     * `sizeof(ember_generate_options)`.
     */
    uint32_t struct_size;
    /**
     * Values of `enum ember_generate_flags`.
     */
    uint32_t flags;
    /**
     * The most tokens to generate; 0 means as many as the context has room for.
     */
    uint64_t max_tokens;
    /**
     * Tokens that are appended to the context first. There may be none if the context has some.
     */
    const uint32_t *prompt;
    /**
     * Number of tokens in `prompt`.
     */
    size_t prompt_count;
    /**
     * Strings at which the text ends, at most 256.
     */
    const struct ember_stop *stops;
    /**
     * Number of `stops`.
     */
    size_t stop_count;
    /**
     * Receives the text; may be NULL.
     */
    ember_piece_fn piece;
    /**
     * Passed to `piece`; may be NULL.
     */
    void *user;
} ember_generate_options;

/**
 * What was generated. The caller sets `struct_size`, `ember_generate` the rest.
 */
typedef struct ember_generate_details {
    /**
     * `sizeof(ember_generate_details)`, set by the caller.
     */
    uint32_t struct_size;
    /**
     * Why it ended, a value of `enum ember_generate_end`.
     */
    uint32_t end;
    /**
     * Index of the stop string that was met, else `EMBER_NO_INDEX`.
     */
    uint32_t stop;
    /**
     * The last token that was generated, for `EMBER_END_TOKEN` the one that ends the answer; `EMBER_NO_TOKEN` if there is none.
     */
    uint32_t token;
    /**
     * Where the tokens begin in the context: `ember_session_tokens` from here on writes them all.
     */
    uint64_t position;
    /**
     * Number of tokens that were generated.
     */
    uint64_t token_count;
    /**
     * Bytes of text that the callback got, or would have got.
     */
    uint64_t text_bytes;
} ember_generate_details;

/**
 * How to create an embedder. Zero in every field but `struct_size` means the default.
 */
typedef struct ember_embedder_options {
    /**
     * `sizeof(ember_embedder_options)`.
     */
    uint32_t struct_size;
    /**
     * Values of `enum ember_embedder_flags`.
     */
    uint32_t flags;
    /**
     * A value of `enum ember_pooling`.
     */
    uint32_t pooling;
    /**
     * A value of `enum ember_normalize`.
     */
    uint32_t normalize;
    /**
     * Keep only this many of the first elements of a vector, and normalize after that (Matryoshka embeddings); 0 keeps all.
     */
    uint32_t dimension;
    /**
     * The most tokens of one text, up to the model's `context_length`; 0 means what the model's files say, else
     * `context_length`, but at most 4096.
     */
    uint32_t max_tokens;
    /**
     * The most tokens of several texts that are evaluated together; 0 means 512 on a CPU, 2048 to 16384 on a GPU (fewer for larger
     * models), or `max_tokens` if that is more. The results do not depend on it. A GPU takes up to 65535.
     */
    uint32_t batch_tokens;
    /**
     * Must be 0.
     */
    uint32_t reserved;
    /**
     * For models that answer "yes" or "no": the task that `ember_rerank` names to the model, UTF-8, which is copied. NULL
     * for "Given a web search query, retrieve relevant passages that answer the query".
     */
    const char *instruction;
    /**
     * Bytes of `instruction`.
     */
    size_t instruction_len;
    /**
     * Adapters of the model, at most 16, which are added to its matrices as `ember_session_set_adapters` has them; may be
     * NULL if there are none. The embedder uses them as long as it lives, also when their handles are freed.
     */
    const struct ember_adapter_use *adapters;
    /**
     * Number of `adapters`.
     */
    size_t adapter_count;
} ember_embedder_options;

/**
 * Facts about an embedder. The caller sets `struct_size`, `ember_embedder_info` the rest.
 */
typedef struct ember_embedder_details {
    /**
     * `sizeof(ember_embedder_details)`, set by the caller.
     */
    uint32_t struct_size;
    /**
     * What it computes: a value of `enum ember_pooling` other than `EMBER_POOLING_DEFAULT`.
     */
    uint32_t pooling;
    /**
     * Elements of a vector, or scores of a text.
     */
    uint32_t dimension;
    /**
     * 1 if vectors have the length 1, else 0.
     */
    uint32_t normalized;
    /**
     * The most tokens of one text.
     */
    uint32_t max_tokens;
    /**
     * The most tokens that are evaluated together.
     */
    uint32_t batch_tokens;
    /**
     * Bytes of memory that it has reserved. Their pages become resident when they are used for the first time.
     */
    uint64_t memory_bytes;
} ember_embedder_details;

/**
 * A text of a call that takes several.
 */
typedef struct ember_text {
    /**
     * UTF-8; may be NULL if `len` is 0.
     */
    const char *text;
    /**
     * Bytes of `text`.
     */
    size_t len;
} ember_text;

/**
 * Facts about an adapter. The caller sets `struct_size`, `ember_adapter_info` the rest. Text is UTF-8, ended
 * by a NUL, shortened to fit.
 */
typedef struct ember_adapter_details {
    /**
     * `sizeof(ember_adapter_details)`, set by the caller.
     */
    uint32_t struct_size;
    /**
     * The largest rank of its pairs of matrices.
     */
    uint32_t rank;
    /**
     * Tensors in its file.
     */
    uint64_t tensor_count;
    /**
     * Numbers in these.
     */
    uint64_t parameter_count;
    /**
     * Bytes of the file with the tensors.
     */
    uint64_t file_bytes;
    /**
     * Bytes of memory that its numbers take, in the type of its file; `ember_model_options.session_memory_limit` counts them,
     * on a GPU with some padding.
     */
    uint64_t memory_bytes;
    /**
     * A hash of what it adds to which tensors. It is the same for an adapter that was converted between the two
     * forms of files without loss.
     */
    uint64_t fingerprint;
    /**
     * What its file or folder is called; may be empty.
     */
    char name[128];
} ember_adapter_details;

/**
 * Which chat template to use, and what for. Zero in every field but `struct_size` means the
 * default.
 */
typedef struct ember_chat_options {
    /**
     * `sizeof(ember_chat_options)`.
     */
    uint32_t struct_size;
    /**
     * Must be 0.
     */
    uint32_t reserved;
    /**
     * A Jinja template of yours to use instead of the model's; NULL means the model's.
     */
    const char *source;
    /**
     * Bytes of `source`.
     */
    size_t source_len;
    /**
     * The name of one of the further templates that some models have, for example `tool_use`; NULL
     * means the one for all purposes. Must be NULL where `source` is not.
     */
    const char *name;
    /**
     * Bytes of `name`.
     */
    size_t name_len;
    /**
     * The time that templates use for today's date, in seconds since 1970-01-01 (UTC); 0 means the clock of this machine, in UTC.
     */
    int64_t now;
    /**
     * NULL, or a number of the caller that other threads may set atomically while the call runs. Once it
     * is not 0, the call ends soon with `EMBER_INTERRUPTED`.
     */
    const uint32_t *interrupt;
    /**
     * Must be 0.
     */
    size_t reserved2;
} ember_chat_options;

/**
 * How to load a model onto an NVIDIA GPU. Zero in every field but `struct_size` and `kind` means the default.
 */
typedef struct ember_cuda_model_options {
    /**
     * `sizeof(ember_cuda_model_options)`.
     */
    uint32_t struct_size;
    /**
     * `EMBER_CHAIN_CUDA_MODEL`.
     */
    uint32_t kind;
    /**
     * The next struct of the chain, or NULL.
     */
    const void *next;
    /**
     * A `CUcontext` of yours on the device, which the library then shares instead of using the
     * device's primary one; it must outlive the model and its sessions. NULL means the primary
     * one. A CPU refuses any other.
     */
    void *context;
} ember_cuda_model_options;

/**
 * How to create a session on an NVIDIA GPU. Zero in every field but `struct_size` and `kind` means the default. A CPU ignores it.
 */
typedef struct ember_cuda_session_options {
    /**
     * `sizeof(ember_cuda_session_options)`.
     */
    uint32_t struct_size;
    /**
     * `EMBER_CHAIN_CUDA_SESSION`.
     */
    uint32_t kind;
    /**
     * The next struct of the chain, or NULL.
     */
    const void *next;
    /**
     * Priority of the session's work: higher values run first. GPUs support few levels and use the nearest one.
     */
    int32_t stream_priority;
    /**
     * Must be 0.
     */
    uint32_t reserved;
} ember_cuda_session_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * `EMBER_ABI_VERSION` of the library that is loaded. A program that finds another number than the one it was compiled with must not
 * call any other function. Any thread may call it.
 */
uint32_t ember_abi_version(void);

/**
 * The version of the library, for example `"0.1.0"`, as a NUL-terminated string that is never freed. Any thread may call it.
 */
const char *ember_version(void);

/**
 * `EMBER_VERSION_NUMBER` of the library that is loaded: 1000000 times the major, 1000 times the minor and once the patch version. Within
 * an ABI version, it grows with every release. A library whose number is at least `EMBER_VERSION_NUMBER` of the header has every
 * function, field and value of the header. Any thread may call it.
 */
uint32_t ember_version_number(void);

/**
 * The name of a status, for example `"EMBER_BUSY"`, as a NUL-ended string that is never freed;
 * `"EMBER_UNKNOWN"` for a number that is no status. Any thread may call it at any time.
 */
const char *ember_status_name(ember_status status);

/**
 * Sets the function that receives log messages up to `level`, for the whole process except the models that have a `log_callback` of
 * their own. `EMBER_LOG_ERROR` is the lowest level. NULL turns logging off, which is the initial state. The library writes log messages
 * nowhere else. `user` is passed to the callback and may be NULL.
 *
 * When this function returns, the previous callback is not running and will not run again, so its `user` can be freed. Do not hold a
 * lock that the callback takes. Any thread may call it.
 *
 * Errors: `EMBER_INVALID_ARGUMENT` for a level that is none; `EMBER_BUSY` from within the callback.
 */
ember_status ember_set_log_callback(ember_log_fn callback,
                                    void *user,
                                    int32_t level,
                                    struct ember_error *err);

/**
 * Writes the number of devices, which is at least 1: the CPU is one of them. The best usable
 * device has index 0; devices that cannot be used come last. Number and order stay the same for
 * the life of the process. The first call looks for GPUs and may take a moment. Any thread may
 * call it.
 */
ember_status ember_device_count(uint32_t *count, struct ember_error *err);

/**
 * Describes device `index`, counted from 0. A device that cannot be used is described as well;
 * `reason` says why. Any thread may call it.
 *
 * Errors: `EMBER_NO_DEVICE` if there is no such index.
 */
ember_status ember_device_info(uint32_t index,
                               struct ember_device_details *out,
                               struct ember_error *err);

/**
 * Returns 1 if the loaded library has the capability, a value of `enum ember_capability`; 0 if it does not or does
 * not know the value. Capabilities are decided when the library is compiled. `ember_device_info` describes the
 * devices of this machine. Any thread may call it at any time.
 */
uint32_t ember_supported(uint32_t capability);

/**
 * Joins a group without waiting for the other ranks, which the first load with it does. A group can be used for one load, whether it
 * succeeds or fails. The new handle is written to `out` and has to be freed with `ember_group_free`. Any thread may call it.
 *
 * Rank 0 listens on a TCP port from then until its load ends. Ranks that do not have the id are sent away. GPUs exchange data through
 * NCCL, which uses ports of its own and does not encrypt: use networks that you trust.
 *
 * Errors: `EMBER_INVALID_ARGUMENT` (`rank`, `rank_count`, an id of another group or none, an address that is not this machine's);
 * `EMBER_INVALID_UTF8`; `EMBER_OUT_OF_MEMORY`, also if the process has no file descriptor left.
 */
ember_status ember_group_create(const struct ember_group_options *options,
                                struct ember_group **out,
                                struct ember_error *err);

/**
 * Writes the id of a group to `id`, which the other ranks need for `ember_group_create`: a line of printable ASCII of less than 128 bytes. It is a
 * secret, because whoever has it can take part. `len` receives the number of bytes, also when `capacity`, the room in `id`, is too small
 * (`EMBER_BUFFER_TOO_SMALL`, with nothing written to `id`). `id` may be NULL if `capacity` is 0; no NUL is added. Any thread may call it.
 *
 * Errors: `EMBER_BUFFER_TOO_SMALL`.
 */
ember_status ember_group_id(const struct ember_group *group,
                            char *id,
                            size_t capacity,
                            size_t *len,
                            struct ember_error *err);

/**
 * Frees a group: the handle becomes invalid at once. A model that was loaded with it keeps what it needs. NULL is allowed and does
 * nothing.
 *
 * Errors: `EMBER_INVALID_HANDLE`.
 */
ember_status ember_group_free(struct ember_group *group);

/**
 * Loads a GGUF file or a Hugging Face folder. For a split model, `path` names its first file. A
 * folder (`config.json`, `model.safetensors` or its index with shards, `tokenizer.json`, the chat
 * template) is named itself, or by its `config.json` or a safetensors file in it; its weights are
 * F32, F16, BF16, MXFP4 or 8-bit floats (E4M3) with scales, which become F16. `path` is UTF-8 of `path_len`
 * bytes and needs no NUL at its end. `options` may be NULL for the defaults. The new handle is
 * written to `out` and has to be freed with `ember_model_free`. The files must not change during the
 * call, which is an error where it can be seen; what is allowed later, `enum ember_files` says. Any
 * thread may call it; loads run side by side.
 *
 * Metadata may take up to 128 MB of memory, and the JSON files of a folder have similar limits; larger ones are
 * `EMBER_UNSUPPORTED`. So is a tensor that the architecture does not use, because the model is then a variant whose
 * output would be wrong without it. The message names the tensor.
 *
 * A model whose tokenizer is not supported is loaded anyway; text functions then return `EMBER_UNSUPPORTED`.
 *
 * Errors: `EMBER_INVALID_UTF8`, `EMBER_INVALID_ARGUMENT` (empty path, NUL inside it, an option's
 * value); `EMBER_INVALID_HANDLE` (`group`); `EMBER_NO_DEVICE`; `EMBER_FILE_NOT_FOUND`, `EMBER_NOT_A_FILE`, `EMBER_FILE_EMPTY`,
 * `EMBER_IO`; `EMBER_UNKNOWN_FORMAT`, `EMBER_FILE_TRUNCATED`, `EMBER_FILE_CORRUPT`; `EMBER_UNSUPPORTED`,
 * `EMBER_MISSING_KEY`, `EMBER_MISSING_TENSOR`, `EMBER_SHAPE_MISMATCH`, `EMBER_INVALID_MODEL`;
 * `EMBER_OUT_OF_MEMORY`; `EMBER_DEVICE_ERROR`, `EMBER_DEVICE_LOST`; `EMBER_CANCELLED`. The message names
 * the key, tensor or byte offset. A file that gets shorter while it is read is
 * `EMBER_FILE_TRUNCATED`, one that was otherwise changed or replaced `EMBER_FILE_CORRUPT`.
 */
ember_status ember_model_load(const char *path,
                              size_t path_len,
                              const struct ember_model_options *options,
                              struct ember_model **out,
                              struct ember_error *err);

/**
 * Writes facts about a model to `out`, whose `struct_size` the caller has set. Any thread may call
 * it.
 */
ember_status ember_model_info(const struct ember_model *model,
                              struct ember_model_details *out,
                              struct ember_error *err);

/**
 * Writes where some of a model's layers are to `out`, whose `struct_size` the caller has set. `index` counts the parts from 0, in
 * the order of the layers; `ember_model_details.part_count` says how many there are. Any thread may call it.
 *
 * Errors: `EMBER_INVALID_ARGUMENT` if there is no such part.
 */
ember_status ember_model_part_info(const struct ember_model *model,
                                   size_t index,
                                   struct ember_part_details *out,
                                   struct ember_error *err);

/**
 * Frees a model: the handle becomes invalid at once, and the memory is freed when the last session of the model is
 * freed, too. NULL is allowed and does nothing. Calls with this model that are running on other threads complete
 * normally. A rank of a group waits for up to a second until the other ranks have completed their work and are freed, too.
 *
 * Errors: `EMBER_INVALID_HANDLE`.
 */
ember_status ember_model_free(struct ember_model *model);

/**
 * Loads a model as `ember_model_load` does, from a GGUF file in memory or from a callback that reads it: for files
 * in a game's archive, in a program's resources, encrypted, or in a virtual file system. `options` may be NULL for
 * the defaults; its field `files` is ignored.
 *
 * - `bytes` are copied, unless `flags` has `EMBER_SOURCE_BORROW`: then the CPU uses them in place, without another
 *   copy. After an error, the caller still owns them, and `release` is not called.
 * - Data from `read` is stored in memory of the model or on the GPU. `read` is called for pieces of up to some
 *   megabytes, beginning with the header of the file. A tensor may be read more than once, and tensors that the
 *   architecture does not use are not read.
 *
 * The new handle is written to `out` and has to be freed with `ember_model_free`. Any thread may call it; loads run side by
 * side.
 *
 * Errors: `EMBER_INVALID_ARGUMENT` if both or none of `bytes` and `read` are set, for unknown flags, and for `release` without
 * `EMBER_SOURCE_BORROW`; `EMBER_FILE_EMPTY` if `size` is 0; `EMBER_IO` if `read` fails; `EMBER_UNSUPPORTED` for one part of a split
 * model; else those of `ember_model_load` about the content of files.
 */
ember_status ember_model_load_from(const struct ember_model_source *source,
                                   const struct ember_model_options *options,
                                   struct ember_model **out,
                                   struct ember_error *err);

/**
 * Writes the value of a metadata key of the model's file as text to `value`: a string as it is, a number, a boolean (`true`,
 * `false`) or an array as JSON does, with `NaN`, `inf` and `-inf` where JSON has no number. `key` is UTF-8 of `key_len` bytes,
 * for example `general.license`. `len` receives the number of bytes, also when `capacity`, the room in `value`, is too small
 * for them (`EMBER_BUFFER_TOO_SMALL`, with nothing written to `value`). `value` may be NULL if `capacity` is 0; no NUL is
 * added. Any thread may call it.
 *
 * The keys are those of the GGUF file; of a split model, those of its first file. A Hugging Face folder has the keys
 * that a GGUF file of the same model has (`llama.context_length` for `max_position_embeddings`), as far as the library
 * reads them from `config.json`, with the chat templates and without the tokenizer.
 *
 * Errors: `EMBER_MISSING_KEY` if there is no such key; `EMBER_UNSUPPORTED` for arrays of more than 1024 elements, such as
 * vocabularies, and for values of more than a megabyte: these are not kept, and the message says what they are and how many
 * elements they have; `EMBER_BUFFER_TOO_SMALL`; `EMBER_INVALID_UTF8`.
 */
ember_status ember_model_metadata(const struct ember_model *model,
                                  const char *key,
                                  size_t key_len,
                                  char *value,
                                  size_t capacity,
                                  size_t *len,
                                  struct ember_error *err);

/**
 * Writes the name of metadata key `index` of the model's file to `key`; `ember_model_details.metadata_count` says how many there
 * are. They are sorted by their bytes. `len`, `capacity` and `key` are as `len`, `capacity` and `value` of
 * `ember_model_metadata`. Any thread may call it.
 *
 * Errors: `EMBER_INVALID_ARGUMENT` if there is no key of this index; `EMBER_BUFFER_TOO_SMALL`.
 */
ember_status ember_model_metadata_key(const struct ember_model *model,
                                      size_t index,
                                      char *key,
                                      size_t capacity,
                                      size_t *len,
                                      struct ember_error *err);

/**
 * Changes how the next tokens are chosen. `options` may be NULL for the defaults. Arrays are copied.
 *
 * Errors: `EMBER_INVALID_ARGUMENT` names the option; `EMBER_INVALID_TOKEN` names the list and the
 * token; `EMBER_INVALID_UTF8` in a breaker of text, `EMBER_UNSUPPORTED` for one if the model has no
 * tokenizer; `EMBER_BUSY`;
 * `EMBER_DECODE_PENDING`; `EMBER_OUT_OF_MEMORY`. After each of them the settings are as before.
 */
ember_status ember_session_set_sampling(struct ember_session *session,
                                        const struct ember_sampling_options *options,
                                        struct ember_error *err);

/**
 * Returns the log-probability of the token that the last decode returned (`ember_decode`, `ember_decode_poll`,
 * `ember_decode_batch`), and those of the most probable tokens, as many as `ember_sampling_options.logprobs` asks
 * for, in descending order. They are natural logarithms of the probabilities at temperature 1, before any sampling
 * option changes them. The value of the returned token is written to `chosen`; ids are written to `tokens` and their
 * values to `logprobs`, both arrays of `capacity` elements, and their number to `count`.
 *
 * Errors: `EMBER_NOTHING_PENDING` if no token was decoded yet, or the options of the last one did
 * not ask for it; `EMBER_BUFFER_TOO_SMALL`; `EMBER_BUSY`.
 */
ember_status ember_session_logprobs(struct ember_session *session,
                                    float *chosen,
                                    uint32_t *tokens,
                                    float *logprobs,
                                    size_t capacity,
                                    size_t *count,
                                    struct ember_error *err);

/**
 * Creates a session with an empty context. `options` may be NULL for the defaults. On a CPU, the memory for the whole
 * context is allocated here. On a GPU, address space for it is reserved, and calls that lengthen the context allocate device
 * memory for it. What the sessions of a model share is allocated by the first prefill and the first batch, and on a GPU also by the first
 * batch of more than 32 sessions, for which that of smaller ones is freed. The new handle is written to `out` and has to be
 * freed with `ember_session_free`. Any thread may call it.
 *
 * A model with LongRoPE (Phi-3 and 3.5, Phi-4 mini) has two sets of rotations, and the session's `context`
 * chooses: the set for long texts if it is longer than the context that the model was first trained
 * for (mostly 4096), else the other one, whatever is in the session then. So two sessions whose
 * contexts lie on different sides of it give different logits for the same tokens, and short
 * texts are answered best in a session with a short context.
 *
 * Errors: `EMBER_INVALID_ARGUMENT` names the option; `EMBER_UNSUPPORTED` for a type of KV cache that
 * the device does not have; those of `ember_session_set_sampling` for the options of `sampling`;
 * `EMBER_OUT_OF_MEMORY`.
 */
ember_status ember_session_create(const struct ember_model *model,
                                  const struct ember_session_options *options,
                                  struct ember_session **out,
                                  struct ember_error *err);

/**
 * Writes the state of a session to `out`, whose `struct_size` the caller has set. Any thread may
 * call it at any time; while a call with the session is running, it shows the state before it.
 */
ember_status ember_session_info(const struct ember_session *session,
                                struct ember_session_details *out,
                                struct ember_error *err);

/**
 * Writes a handle of the session's model to `model`, a new one that has to be freed with `ember_model_free` like any other, also
 * if the handle that the session was created with was freed. Any thread may call it at any time.
 */
ember_status ember_session_model(const struct ember_session *session,
                                 struct ember_model **model,
                                 struct ember_error *err);

/**
 * Writes the number of tokens in the context, the one that the last decode returned included. Any
 * thread may call it at any time; while a call with the session is running, it shows the number
 * before it.
 */
ember_status ember_session_position(const struct ember_session *session,
                                    size_t *position,
                                    struct ember_error *err);

/**
 * Keeps the first `position` tokens of the context and drops the rest; 0 empties the context. The call itself
 * evaluates nothing. The next decode evaluates the last kept token again. Layers with a sliding window keep only the
 * window and some hundred positions, so after a rewind beyond these, the next call evaluates all kept tokens again.
 * Recurrent layers (`qwen35`, `lfm2` and others) keep one state and a few copies: of the ends of the last prompts, and
 * of a position every 256 or so; `mark_interval` of `ember_session_options` keeps more. The next call evaluates what is
 * kept behind the last of them again, on a GPU as a prompt, which may change the last bits of results. Started decodes
 * are interrupted, and tokens that were not collected are dropped: use this to discard what was queued after an end
 * token.
 *
 * Errors: `EMBER_INVALID_ARGUMENT` if the context has fewer tokens (tokens that were not collected do not count);
 * `EMBER_BUSY`.
 */
ember_status ember_session_rewind(struct ember_session *session,
                                  size_t position,
                                  struct ember_error *err);

/**
 * Creates a session with the same model, options and context. From there on, the two sessions are independent. With
 * the same calls, the new session returns the same results as the original, bit for bit. Keys and values are shared
 * or copied, not computed again. The new handle is written to `out` and has to be freed with `ember_session_free`.
 *
 * Errors: `EMBER_OUT_OF_MEMORY`; `EMBER_UNSUPPORTED` by devices that cannot; `EMBER_BUSY`;
 * `EMBER_DECODE_PENDING`.
 */
ember_status ember_session_fork(struct ember_session *session,
                                struct ember_session **out,
                                struct ember_error *err);

/**
 * Writes the logits for the next token, before sampling: `vocab_size` values (`ember_model_details`), indexed by token
 * id. `capacity` is the number of elements that `out` has room for. Evaluates the last token if that has not happened
 * yet.
 *
 * Errors: `EMBER_BUFFER_TOO_SMALL` if `capacity` is less than `vocab_size`; `EMBER_NO_INPUT` for an
 * empty context; `EMBER_OUT_OF_MEMORY`; `EMBER_BUSY`; `EMBER_DECODE_PENDING`; `EMBER_INTERRUPTED`. On
 * error, `out` is unchanged.
 */
ember_status ember_session_logits(struct ember_session *session,
                                  float *out,
                                  size_t capacity,
                                  struct ember_error *err);

/**
 * Makes a call with this session that is running on another thread return `EMBER_INTERRUPTED` soon; the session is
 * then as it was before that call. Started decodes stop, too: `ember_decode_poll` returns the tokens that were
 * already chosen, then `EMBER_INTERRUPTED`. A batch ends for all its sessions. Any thread may call this at any time.
 *
 * The interrupt stays set until a call with the session has returned `EMBER_INTERRUPTED`, so it cannot come too
 * early: if no call is running, or the running call still succeeds, the next call that lists `EMBER_INTERRUPTED`
 * among its errors returns it at once. One returned `EMBER_INTERRUPTED` clears all interrupts that came before it.
 * In a batch, only the interrupt of the session that `ember_error.index` names is cleared. `ember_generate` reports
 * an interrupt as the reason of the end. `ember_session_clear_interrupt` clears the interrupt.
 *
 * Errors: `EMBER_INVALID_HANDLE`.
 */
ember_status ember_session_interrupt(struct ember_session *session);

/**
 * Clears an interrupt that no call has returned yet. Use it at the start of a new turn, so that a late interrupt of
 * the previous turn does not end it. Does nothing if there is none. Any thread may call it at any time. A call that
 * is already running on another thread may still end because of the interrupt.
 *
 * Errors: `EMBER_INVALID_HANDLE`.
 */
ember_status ember_session_clear_interrupt(struct ember_session *session);

/**
 * Frees a session: the handle becomes invalid at once, and a call with it that is running on another thread is interrupted. The
 * memory is freed when that call returns and started work has ended, which `ember_session_free` does not wait for on a CPU. The
 * last free of a model and its sessions waits for all of it. NULL is allowed and does nothing.
 *
 * Errors: `EMBER_INVALID_HANDLE`.
 */
ember_status ember_session_free(struct ember_session *session);

/**
 * Writes the tokens of the context, starting at position `from`, to `tokens`, and their number to `count`. They
 * include the token that the last decode returned. `capacity` is the number of elements that `tokens` has room for;
 * if that is too small, the result is `EMBER_BUFFER_TOO_SMALL`, and only `count` is written. `tokens` may be NULL if
 * `capacity` is 0. While decodes are pending, only collected tokens are returned; while a prefill is pending, those
 * before it.
 *
 * Errors: `EMBER_INVALID_ARGUMENT` if `from` is behind the end of the context; `EMBER_BUFFER_TOO_SMALL`; `EMBER_BUSY`.
 */
ember_status ember_session_tokens(struct ember_session *session,
                                  size_t from,
                                  uint32_t *tokens,
                                  size_t capacity,
                                  size_t *count,
                                  struct ember_error *err);

/**
 * Replaces the context with these `count` tokens. The common prefix is kept, the rest of the old context is dropped
 * as by `ember_session_rewind`, and the remaining tokens are evaluated as by `ember_prefill`. Logits of the last
 * token are available afterwards. The length of the common prefix is written to `kept`, which may be NULL.
 *
 * Use it for a conversation that has grown or changed: only new tokens are evaluated. If the session has a grammar,
 * the constrained output begins after these tokens, as it does after a prefill.
 *
 * Errors: `EMBER_NO_INPUT` if `count` is 0; `EMBER_CONTEXT_FULL`; `EMBER_INVALID_TOKEN` with the token's index; `EMBER_OUT_OF_MEMORY`;
 * `EMBER_BUSY`; `EMBER_DECODE_PENDING`; `EMBER_INTERRUPTED`. After each of them the context is as it was before. If the error came while
 * tokens were evaluated, the next call evaluates again the part of the context whose keys and values were dropped.
 */
ember_status ember_session_sync(struct ember_session *session,
                                const uint32_t *tokens,
                                size_t count,
                                size_t *kept,
                                struct ember_error *err);

/**
 * Creates an event that is not set. The new handle is written to `out` and has to be freed with `ember_event_free`. Any thread
 * may call it.
 *
 * Errors: `EMBER_OUT_OF_MEMORY`, also if the process has no file descriptor left.
 */
ember_status ember_event_create(struct ember_event **out,
                                struct ember_error *err);

/**
 * Writes what the system waits for to `handle`. On Linux it is an eventfd and on other POSIX systems the end of a pipe, both file
 * descriptors that can be read while the event is set (`poll`, `epoll`, `kqueue`); on Windows it is the `HANDLE` of an event
 * that stays set until it is cleared (`WaitForSingleObject`). It belongs to the library: do not read, reset or close it. It stays
 * open until the event is freed and no session or load has it any more. Any thread may call it.
 */
ember_status ember_event_handle(const struct ember_event *event,
                                int64_t *handle,
                                struct ember_error *err);

/**
 * Clears an event, so that the next wait sleeps until it is set again. To miss nothing, clear it first and then poll until
 * `EMBER_PENDING`. Any thread may call it.
 */
ember_status ember_event_clear(const struct ember_event *event,
                               struct ember_error *err);

/**
 * Frees an event: the handle becomes invalid at once. Sessions and loads that have it keep it. NULL is allowed and does nothing.
 *
 * Errors: `EMBER_INVALID_HANDLE`.
 */
ember_status ember_event_free(struct ember_event *event);

/**
 * Makes a session set `event` from now on whenever `ember_decode_poll`, `ember_prefill_poll` or `ember_generate_next` may return
 * something other than `EMBER_PENDING`. NULL ends that. A token or the end of a prompt sets it once. A GPU that fails permanently may
 * not set it, so wait with a time limit and poll after it, too.
 *
 * Errors: `EMBER_BUSY`; `EMBER_DECODE_PENDING`.
 */
ember_status ember_session_set_event(struct ember_session *session,
                                     const struct ember_event *event,
                                     struct ember_error *err);

/**
 * Starts what `ember_model_load` does on a thread of the library, and returns at once. `ember_load_poll` tells how far it is
 * and has the model at the end. `event`, if it is not NULL, is set at the end. `progress` of the options must be NULL, for no
 * callback is called. The new handle is written to `out` and has to be freed with `ember_load_free`. Any thread may call it.
 *
 * Errors: `EMBER_INVALID_UTF8`, `EMBER_INVALID_ARGUMENT` (empty path, NUL inside it, an option's value);
 * `EMBER_OUT_OF_MEMORY`. All other errors are those of `ember_load_poll`.
 */
ember_status ember_model_load_start(const char *path,
                                    size_t path_len,
                                    const struct ember_model_options *options,
                                    const struct ember_event *event,
                                    struct ember_load **out,
                                    struct ember_error *err);

/**
 * Returns the model of a load that has ended, without blocking: the new handle is written to `model` and has to be freed with
 * `ember_model_free`. `EMBER_PENDING` means that the load is still running, and `model` was not written. `fraction`, which may
 * be NULL, receives the share that is done, from 0 to 1, in both cases; it never decreases. Any thread may call it.
 *
 * Errors: those of `ember_model_load`, `EMBER_CANCELLED` after `ember_load_cancel` among them, once;
 * `EMBER_NOTHING_PENDING` if the end was already returned.
 */
ember_status ember_load_poll(struct ember_load *load,
                             float *fraction,
                             struct ember_model **model,
                             struct ember_error *err);

/**
 * Makes a load end soon with `EMBER_CANCELLED`, unless it has ended already. Does not wait for the end. Any thread may call it at any
 * time. A load that waits for other ranks of its group (`ember_group`) ends, too, and their loads end with the same status. Only while
 * NCCL connects GPUs does the load go on, for at most `timeout_ms`.
 *
 * Errors: `EMBER_INVALID_HANDLE`.
 */
ember_status ember_load_cancel(struct ember_load *load);

/**
 * Frees a load, and its model if `ember_load_poll` has not returned it. A load that is still running is cancelled and waited for,
 * which can take as long as reading a tensor: to wait for nothing, cancel it and free it when `ember_load_poll` has returned its
 * end. NULL is allowed and does nothing.
 *
 * Errors: `EMBER_INVALID_HANDLE`.
 */
ember_status ember_load_free(struct ember_load *load);

/**
 * Appends `count` tokens to the context and evaluates them, all or none. It may be called repeatedly. On the CPU,
 * the result does not depend on how tokens are divided among calls. On a GPU, the last token of a call is evaluated
 * with 8-bit inputs and the others in half precision, so a different division changes logits slightly.
 *
 * Errors: `EMBER_NO_INPUT` if `count` is 0; `EMBER_CONTEXT_FULL`; `EMBER_INVALID_TOKEN` names the
 * token; `EMBER_OUT_OF_MEMORY`; `EMBER_BUSY`; `EMBER_DECODE_PENDING`; `EMBER_INTERRUPTED`. After each of
 * them the context is as it was before.
 */
ember_status ember_prefill(struct ember_session *session,
                           const uint32_t *tokens,
                           size_t count,
                           struct ember_error *err);

/**
 * Starts what `ember_prefill` does and returns at once; `ember_prefill_poll` reports when it is done. `tokens` is
 * used during this call only. The prompt is evaluated in pieces: decodes of other sessions run between them. Until
 * `ember_prefill_poll` has returned something other than `EMBER_PENDING`, every other function that changes the
 * session returns `EMBER_DECODE_PENDING`, except for `ember_session_interrupt`, which stops the prefill,
 * `ember_session_rewind` and `ember_session_free`.
 *
 * Errors: those of `ember_prefill` that are known before any work is done; `EMBER_DEVICE_ERROR` if a
 * thread cannot be started.
 */
ember_status ember_prefill_start(struct ember_session *session,
                                 const uint32_t *tokens,
                                 size_t count,
                                 struct ember_error *err);

/**
 * Asks whether the started prefill is done. Never blocks: `EMBER_PENDING` means that it is not. With
 * `EMBER_OK` and `EMBER_PENDING`, the number of its tokens that are evaluated by now is written to
 * `evaluated`, which may be NULL. May be called from another thread than the start.
 *
 * Errors: `EMBER_NOTHING_PENDING` if none was started, or its end was collected; `EMBER_BUSY`; else
 * those of `ember_prefill`, after which it is over and the context is as it was before it.
 */
ember_status ember_prefill_poll(struct ember_session *session,
                                size_t *evaluated,
                                struct ember_error *err);

/**
 * Chooses the next token, appends it to the context and writes it to `token`, whose `struct_size` the caller has set. The new token
 * is evaluated only when a later call needs it. The session does not stop at end tokens, which have the flag
 * `EMBER_TOKEN_ENDS`.
 *
 * Errors: `EMBER_NO_INPUT` for an empty context; `EMBER_CONTEXT_FULL`; `EMBER_BUSY`;
 * `EMBER_DECODE_PENDING`; `EMBER_INTERRUPTED`; `EMBER_NUMERIC`; `EMBER_GRAMMAR` if a limit of the
 * session's grammar was reached; `EMBER_OUT_OF_MEMORY`. After each of them the context is as it was
 * before.
 */
ember_status ember_decode(struct ember_session *session,
                          struct ember_token *token,
                          struct ember_error *err);

/**
 * Starts what `ember_decode` does and returns at once; `ember_decode_poll` collects the token,
 * which is the same that `ember_decode` would have returned. Until then every other function that
 * changes the session returns `EMBER_DECODE_PENDING`, except for `ember_session_interrupt`,
 * `ember_session_rewind` and `ember_session_free`.
 *
 * Errors: those of `ember_decode` that are known before any work is done, and `EMBER_DEVICE_ERROR` if
 * the device does not take it.
 */
ember_status ember_decode_start(struct ember_session *session,
                                struct ember_error *err);

/**
 * Starts what `count` calls of `ember_decode` do, and returns at once. The device continues by itself while the
 * caller collects the tokens one by one with `ember_decode_poll`. The context grows as they are collected. Decoding
 * does not stop at end tokens; `ember_session_rewind` drops the rest. `ember_session_interrupt` stops it: tokens
 * that were already chosen can still be collected, and then `ember_decode_poll` returns `EMBER_INTERRUPTED` once,
 * unless all were chosen.
 *
 * Errors: `EMBER_INVALID_ARGUMENT` if `count` is 0; `EMBER_CONTEXT_FULL` if there is no room for
 * all of them, with nothing started; else as `ember_decode_start`.
 */
ember_status ember_decode_start_n(struct ember_session *session,
                                  size_t count,
                                  struct ember_error *err);

/**
 * Returns the next token of the started decodes, without blocking: `EMBER_PENDING` means that it is not available
 * yet and `token` was not written; `ember_session_set_event` says how to wait for it. It may be called from another thread than the start.
 *
 * Errors: `EMBER_NOTHING_PENDING` if none was started, or all were collected; `EMBER_BUSY`; else
 * those of `ember_decode`, after which all started decodes are over and the context has the tokens
 * that were collected.
 */
ember_status ember_decode_poll(struct ember_session *session,
                               struct ember_token *token,
                               struct ember_error *err);

/**
 * Decodes one token for each of `count` sessions, as `ember_decode` does, in one pass over the weights. This is much
 * faster than one session after another. `count` is at least 1 and at most `max_batch` of `ember_model_details`, and the
 * sessions must be different and of the same model. Context lengths and sampling settings may differ. The token of
 * `sessions[i]` is written to `tokens[i]`; the elements of `tokens` are as far apart as `struct_size` of the first one says,
 * the only one that has to be set. What a session returns does not depend on the others, bit for bit.
 *
 * Each session has a status of its own in `tokens`. A session that fails is as it was before, and the others go on. If one
 * has failed, the call returns the status of the first that has, with its message and its index in `ember_error.index`.
 *
 * Errors: before any work is done, with `tokens` unchanged, `EMBER_INVALID_ARGUMENT` for a wrong `count`, a session that is
 * there twice, sessions of different models; `EMBER_INVALID_HANDLE`; `EMBER_BUSY`. Of single sessions:
 * `EMBER_DECODE_PENDING`, `EMBER_NO_INPUT`, `EMBER_CONTEXT_FULL`, `EMBER_INTERRUPTED`, `EMBER_NUMERIC`, `EMBER_GRAMMAR`;
 * `EMBER_OUT_OF_MEMORY`, also for the memory of a model's first batch and, on a GPU, of the first of more than 32 sessions.
 */
ember_status ember_decode_batch(struct ember_session *const *sessions,
                                size_t count,
                                struct ember_token *tokens,
                                struct ember_error *err);

/**
 * Starts what `ember_decode_batch` does, and returns at once. Each session has a started decode then, whose token
 * `ember_decode_poll` returns, with the session's own error if it has failed. Started batches of a model run one after the other.
 *
 * Errors: those of `ember_decode_batch` that are known before any work is done, also of single sessions, with the index of the
 * session in `ember_error.index`; nothing was started then.
 */
ember_status ember_decode_batch_start(struct ember_session *const *sessions,
                                      size_t count,
                                      struct ember_error *err);

/**
 * Saves a session to the file at `path`: its tokens, sampling settings, grammar, and, unless
 * `options` says otherwise, its keys, values and logits. `options` may be NULL. The file does not
 * depend on the device: it can be restored on any device, and in another process. The session stays
 * as it is.
 *
 * The data is written to a new file beside `path` and flushed to the disk, and the new file then
 * replaces an older one: after a crash, `path` holds either the old session or the new one.
 *
 * Errors: `EMBER_INVALID_UTF8` in `path`; `EMBER_IO`, `EMBER_FILE_NOT_FOUND` or `EMBER_NOT_A_FILE` if
 * the file cannot be written;
 * `EMBER_OUT_OF_MEMORY`; `EMBER_BUSY`; `EMBER_DECODE_PENDING`; `EMBER_DEVICE_ERROR`,
 * `EMBER_DEVICE_LOST`. An older file is unchanged then.
 */
ember_status ember_session_save(struct ember_session *session,
                                const char *path,
                                size_t path_len,
                                const struct ember_save_options *options,
                                struct ember_error *err);

/**
 * Saves a session as `ember_session_save` does, but passes the bytes to `write`, in order. `user` is
 * passed to `write` and may be NULL.
 *
 * Errors: `EMBER_CANCELLED` if `write` returns anything but 0; else as `ember_session_save`.
 */
ember_status ember_session_save_to(struct ember_session *session,
                                   ember_write_fn write,
                                   void *user,
                                   const struct ember_save_options *options,
                                   struct ember_error *err);

/**
 * Makes a session of `model` from a file that `ember_session_save` has written. `options` may be
 * NULL. The session continues with the tokens and logits that the saved one would have continued
 * with: the same bits on the same device with the same KV type, and within the accuracy of the KV
 * type on another one. The new handle is written to `out` and must be freed with
 * `ember_session_free`. Any thread may call it.
 *
 * All data is checked before it is used, and the model must be the one that the session was saved
 * with, on whatever device.
 *
 * Errors: `EMBER_INVALID_UTF8` in `path`; `EMBER_FILE_NOT_FOUND`, `EMBER_NOT_A_FILE`, `EMBER_FILE_EMPTY`,
 * `EMBER_IO`;
 * `EMBER_NOT_STATE` if the file is not a saved session; `EMBER_STATE_VERSION` if its format is one of
 * a later library; `EMBER_STATE_FOREIGN` if it is of another model or tokenizer, or was saved with other
 * adapters than those of `options`;
 * `EMBER_FILE_TRUNCATED` if its end is missing; `EMBER_STATE_CHECKSUM` if its bytes have changed;
 * `EMBER_FILE_CORRUPT` if it contradicts itself; `EMBER_INVALID_ARGUMENT` if `context` is less than
 * the saved tokens; `EMBER_UNSUPPORTED` for a KV type that the device does not support;
 * `EMBER_OUT_OF_MEMORY`; `EMBER_GRAMMAR` if the saved grammar cannot be compiled any more;
 * `EMBER_DEVICE_ERROR`, `EMBER_DEVICE_LOST`.
 */
ember_status ember_session_restore(const struct ember_model *model,
                                   const char *path,
                                   size_t path_len,
                                   const struct ember_restore_options *options,
                                   struct ember_session **out,
                                   struct ember_error *err);

/**
 * Makes a session as `ember_session_restore` does, from bytes that `read` gives in order. `user` is
 * passed to `read` and may be NULL. Nothing is read beyond the end of the saved session.
 *
 * Errors: `EMBER_CANCELLED` if `read` returns anything but 0; else as `ember_session_restore`.
 */
ember_status ember_session_restore_from(const struct ember_model *model,
                                        ember_read_fn read,
                                        void *user,
                                        const struct ember_restore_options *options,
                                        struct ember_session **out,
                                        struct ember_error *err);

/**
 * Writes what the saved session at `path` is to `out`, whose `struct_size` the caller has set. Needs
 * no model, and reads nothing but the beginning of the file. Any thread may call it.
 *
 * Errors: as `ember_session_restore`, as far as the beginning and the length of the file show them.
 */
ember_status ember_session_state_info(const char *path,
                                      size_t path_len,
                                      struct ember_state_details *out,
                                      struct ember_error *err);

/**
 * Takes `count` tokens from position `from` on out of the context, for example old turns of a
 * conversation behind its system prompt. The tokens that follow are evaluated again, as in a
 * prefill: the session is then as if the erased tokens had never been there. On a GPU, that takes
 * memory for a second copy of what is evaluated while the call runs.
 *
 * Errors: `EMBER_INVALID_ARGUMENT` if the context has no such tokens, or if some of them belong to
 * the answer that a grammar is constraining; `EMBER_OUT_OF_MEMORY`; `EMBER_BUSY`;
 * `EMBER_DECODE_PENDING`; `EMBER_INTERRUPTED`; `EMBER_DEVICE_ERROR`, `EMBER_DEVICE_LOST`. The session
 * is unchanged then.
 */
ember_status ember_session_erase(struct ember_session *session,
                                 size_t from,
                                 size_t count,
                                 struct ember_error *err);

/**
 * Moves the state of a session to host memory and frees all device memory that the session has. The
 * handle stays valid. The next call that needs the state moves it back, or fails with
 * `EMBER_OUT_OF_MEMORY` and leaves it in host memory. The session continues with the same bits.
 * Nothing happens to a session that is evicted already.
 *
 * Errors: `EMBER_OUT_OF_MEMORY` if host memory does not suffice; `EMBER_BUSY`;
 * `EMBER_DECODE_PENDING`; `EMBER_DEVICE_ERROR`, `EMBER_DEVICE_LOST`. The state is unchanged then.
 */
ember_status ember_session_evict(struct ember_session *session, struct ember_error *err);

/**
 * Moves the state of an evicted session back to its device now, instead of in the next call that
 * needs it. Nothing happens to a session that is not evicted.
 *
 * Errors: `EMBER_OUT_OF_MEMORY`; `EMBER_BUSY`; `EMBER_DEVICE_ERROR`, `EMBER_DEVICE_LOST`. The session
 * is still evicted then.
 */
ember_status ember_session_resume(struct ember_session *session,
                                  struct ember_error *err);

/**
 * Frees the device memory that the weights of a model take, and the memory that its sessions share,
 * and keeps the weights in host memory. Handles of the model and of its sessions stay valid; the
 * sessions keep their own memory (`ember_session_evict`). The next call that needs the weights moves
 * them back to the same addresses, or fails with `EMBER_OUT_OF_MEMORY` and leaves them in host
 * memory. On a CPU, this does nothing. Any thread may call it.
 *
 * Errors: `EMBER_BUSY` while a decode or prefill of one of its sessions is under way;
 * `EMBER_OUT_OF_MEMORY` if host memory does not suffice; `EMBER_DEVICE_ERROR`, `EMBER_DEVICE_LOST`.
 * The weights stay where they are then.
 */
ember_status ember_model_evict(const struct ember_model *model,
                               struct ember_error *err);

/**
 * Moves the weights of an evicted model back to its device now, instead of in the next call that
 * needs them. Nothing happens to a model that is not evicted. Any thread may call it.
 *
 * Errors: `EMBER_OUT_OF_MEMORY`; `EMBER_DEVICE_ERROR`, `EMBER_DEVICE_LOST`. The model is still
 * evicted then.
 */
ember_status ember_model_resume(const struct ember_model *model, struct ember_error *err);

/**
 * Constrains the output of a session to a grammar, which replaces the previous one. From the next decode on, only
 * tokens that the grammar allows can be chosen; sampling settings still apply. `kind` is a value of `enum
 * ember_grammar_kind`, `text` the grammar, `len` bytes of UTF-8; `options` may be NULL for the defaults.
 * `EMBER_GRAMMAR_NONE`, with no text, removes the grammar.
 *
 * Constrained output begins at the current end of the context, or after a later prefill: prompts are not
 * constrained, and each prefill starts the grammar from its beginning (so does setting the grammar again). If the
 * output is complete but may continue, end tokens (`ember_token_is_end`) are allowed as well. If it cannot continue,
 * and after an end token, only end tokens are allowed. So decoding until the first end token produces complete
 * output, and no token before it is a control token.
 *
 * If the grammar allows only one continuation, its tokens are not sampled. The following decodes return them at
 * once, tokenized as the tokenizer would, and they are evaluated together when logits are needed; if
 * log-probabilities were asked for, they are evaluated one by one. Started decodes and batches work in the same way.
 * `ember_session_rewind` rewinds the grammar with the tokens, `ember_session_fork` copies it, and
 * `ember_session_logits` returns logits without it. A grammar takes up to 64 MB per session. The first grammar of a
 * model builds tables of about 300 bytes per vocabulary entry, which its sessions share.
 *
 * Errors: `EMBER_GRAMMAR` if the grammar is not valid (the message names the place), if no text satisfies it, or if
 * it is too large (more than 1 MiB, 64 KiB for a regular expression) or too expensive. The error is returned within
 * about a second. Later decodes may still fail with it if the grammar becomes too complex for a step.
 * `EMBER_INVALID_UTF8`; `EMBER_INVALID_ARGUMENT` names the argument; `EMBER_UNSUPPORTED` if the model's tokenizer is
 * not supported or has no end token; `EMBER_INTERRUPTED`; `EMBER_BUSY`; `EMBER_DECODE_PENDING`;
 * `EMBER_OUT_OF_MEMORY`. After each of them the session keeps the grammar that it had.
 */
ember_status ember_session_set_grammar(struct ember_session *session,
                                       uint32_t kind,
                                       const char *text,
                                       size_t len,
                                       const struct ember_grammar_options *options,
                                       struct ember_error *err);

/**
 * Makes a session draft (speculative decoding): a step evaluates several tokens, drafts of what comes next, and keeps those that would
 * have been chosen anyway. Drafts change the speed and nothing else. Tokens, log-probabilities and logits are the same with and without
 * them, for greedy and for sampled tokens, with penalties, lists of tokens and grammars. `options` may be NULL, which ends drafting, as
 * `EMBER_DRAFTS_NONE` does.
 *
 * `ember_decode` and `ember_generate` draft. `ember_decode` still returns one token; the ones that a step has chosen
 * beyond it are returned by the following calls at once, and are dropped by a call that changes the session in another
 * way. Started decodes draft where no grammar is set; they never wait, so a draft model, or a head, is asked on a thread of the session's model; where
 * that is in parts, they draft from the context only. Forks draft as their origin does; a restored session does not.
 *
 * Batches draft, too, unless the model is in parts: the drafts of all sessions share the pass, which has room for 32 tokens in all. Because a batch
 * returns one token of each session, it saves a pass only where all of its sessions have a token that was chosen ahead; the number of
 * drafts is chosen by that. Started batches ask no draft model, and no head, for a session with a grammar.
 *
 * On a GPU, drafts take memory of their own (16 rows of logits, and of what lies between the layers of a step), which is reserved here.
 * Those of a model with recurrent layers take a state of these layers for each draft of a step, and one more. A head takes
 * a KV cache of one layer, and room for the hidden states of as many positions as the context has, up to 4096. What follows a prompt longer
 * than that, or one that was read before this call, is drafted from the last 4096 positions, or from those that follow. An EAGLE-3 head
 * takes room for up to 2048 positions, three hidden states each; the first session of a model that is given it on a GPU brings its weights
 * there.
 *
 * A model that is in parts, on any devices, drafts as one on a single device does. So does one that is split by tensors over GPUs of
 * this process; one of a group (`ember_group_create`) does not.
 *
 * Errors: `EMBER_UNSUPPORTED` if the session's model is one of a group, and for `EMBER_DRAFTS_HEADS` if
 * the model has no heads, or they were not loaded, or it is in parts, and for an EAGLE-3 head if the session's model is not on one device as a whole;
 * `EMBER_INVALID_ARGUMENT` names the field, the token in which the vocabulary of `draft_model` differs, or what makes it an EAGLE-3 head
 * for another model or on another device; for `EMBER_DRAFTS_MODEL` those of
 * `ember_session_create`; `EMBER_BUSY`; `EMBER_DECODE_PENDING`; `EMBER_OUT_OF_MEMORY`. After each of them the session
 * drafts as before.
 */
ember_status ember_session_set_speculation(struct ember_session *session,
                                           const struct ember_speculation_options *options,
                                           struct ember_error *err);

/**
 * Writes counts of a session's drafts to `out`, whose `struct_size` the caller has set.
 *
 * Errors: `EMBER_BUSY`.
 */
ember_status ember_session_speculation_info(struct ember_session *session,
                                            struct ember_speculation_details *out,
                                            struct ember_error *err);

/**
 * Writes the memory that loading this file and creating one session would take to `out`, whose `struct_size` the
 * caller has set. Only the header of the file is read, nothing is loaded, and the device need not be usable. Both
 * options may be NULL for the defaults; no callback is called. The tables of the text functions, a few dozen bytes
 * per token id, are not counted. Any thread may call it.
 *
 * Errors: those of `ember_model_load` and `ember_session_create` that the header shows.
 */
ember_status ember_model_estimate(const char *path,
                                  size_t path_len,
                                  const struct ember_model_options *model_options,
                                  const struct ember_session_options *session_options,
                                  struct ember_estimate *out,
                                  struct ember_error *err);

/**
 * As `ember_model_estimate`, but for the layers of one part alone, on its device. `index` counts the parts from 0, in the order of
 * the layers; `ember_estimate.part_count` says how many there are.
 *
 * Errors: those of `ember_model_estimate`; `EMBER_INVALID_ARGUMENT` if there is no such part.
 */
ember_status ember_model_estimate_part(const char *path,
                                       size_t path_len,
                                       const struct ember_model_options *model_options,
                                       const struct ember_session_options *session_options,
                                       size_t index,
                                       struct ember_estimate *out,
                                       struct ember_error *err);

/**
 * Evaluates the last token of the context again, more slowly than a decode does, and writes how long each kind of
 * work took to `entries`, and the number of entries to `count`. `capacity` is the number of elements that `entries`
 * has room for; they are as far apart as `struct_size` of the first one says. With a `capacity` of 0, the call only writes the
 * number that is enough. Work that a device does at the same time is counted as the kind that
 * reads more memory. The session is unchanged, and decodes that are not profiled are not slowed down.
 *
 * Errors: `EMBER_BUFFER_TOO_SMALL` if there may be more entries than `capacity`; `EMBER_NO_INPUT` for an empty
 * context; `EMBER_UNSUPPORTED` by devices that cannot; `EMBER_BUSY`; `EMBER_DECODE_PENDING`; `EMBER_INTERRUPTED`.
 */
ember_status ember_session_profile(struct ember_session *session,
                                   struct ember_profile_entry *entries,
                                   size_t capacity,
                                   size_t *count,
                                   struct ember_error *err);

/**
 * Tokenizes `len` bytes of UTF-8. The token ids are written to `tokens`, and their number to `count`. `capacity` is
 * the number of elements that `tokens` has room for; if that is too small, the result is `EMBER_BUFFER_TOO_SMALL`,
 * and only `count` is written. `tokens` may be NULL if `capacity` is 0. Any thread may call it.
 *
 * The time is proportional to the text, a megabyte in some tenths of a second.
 *
 * Errors: `EMBER_INVALID_UTF8`; `EMBER_BUFFER_TOO_SMALL`; `EMBER_INVALID_ARGUMENT` for unknown flags, and for a text for which
 * the model's tokenizer takes far more work than is usual; `EMBER_UNSUPPORTED` if the model's
 * tokenizer is not supported; `EMBER_OUT_OF_MEMORY`.
 */
ember_status ember_tokenize(const struct ember_model *model,
                            const char *text,
                            size_t len,
                            uint32_t flags,
                            uint32_t *tokens,
                            size_t capacity,
                            size_t *count,
                            struct ember_error *err);

/**
 * `ember_tokenize` with options, which may be NULL for the defaults. Another thread can end it.
 *
 * Errors: those of `ember_tokenize`; `EMBER_INTERRUPTED`.
 */
ember_status ember_tokenize_with(const struct ember_model *model,
                                 const char *text,
                                 size_t len,
                                 const struct ember_tokenize_options *options,
                                 uint32_t *tokens,
                                 size_t capacity,
                                 size_t *count,
                                 struct ember_error *err);

/**
 * Converts `count` token ids to bytes. The bytes are written to `text`, and their number to `len`. `capacity` is the
 * size of `text` in bytes; if that is too small, the result is `EMBER_BUFFER_TOO_SMALL`, and only `len` is written.
 * `text` may be NULL if `capacity` is 0. No NUL is added. The bytes are UTF-8 if the tokens end at the end of a
 * character; a character may be spread over several tokens. Any thread may call it.
 *
 * Errors: `EMBER_INVALID_TOKEN`; `EMBER_BUFFER_TOO_SMALL`; `EMBER_INVALID_ARGUMENT` for unknown flags;
 * `EMBER_UNSUPPORTED` if the model's tokenizer is not supported; `EMBER_OUT_OF_MEMORY`.
 */
ember_status ember_detokenize(const struct ember_model *model,
                              const uint32_t *tokens,
                              size_t count,
                              uint32_t flags,
                              char *text,
                              size_t capacity,
                              size_t *len,
                              struct ember_error *err);

/**
 * Writes the bytes of one token, a control token's name included: what `ember_detokenize` does for one token with
 * `EMBER_DETOKENIZE_CONTINUE`, and under the same rules. Most tokens have less than 32 bytes, and some have a part of a character. To
 * show text while it is generated, write the bytes as they come. Any thread may call it.
 *
 * Errors: `EMBER_INVALID_TOKEN`; `EMBER_BUFFER_TOO_SMALL`; `EMBER_UNSUPPORTED` if the model's
 * tokenizer is not supported.
 */
ember_status ember_token_text(const struct ember_model *model,
                              uint32_t token,
                              char *text,
                              size_t capacity,
                              size_t *len,
                              struct ember_error *err);

/**
 * Writes 1 to `is_end` if the token ends an answer (end of text, turn or message), else 0. Any
 * thread may call it.
 *
 * Errors: `EMBER_INVALID_TOKEN`; `EMBER_UNSUPPORTED` if the model's tokenizer is not supported.
 */
ember_status ember_token_is_end(const struct ember_model *model,
                                uint32_t token,
                                uint32_t *is_end,
                                struct ember_error *err);

/**
 * Writes facts about the tokenizer of a model to `out`, whose `struct_size` the caller has set. Any thread may call it.
 *
 * Errors: `EMBER_UNSUPPORTED` if the model's tokenizer is not supported.
 */
ember_status ember_tokenizer_info(const struct ember_model *model,
                                  struct ember_tokenizer_details *out,
                                  struct ember_error *err);

/**
 * Writes the ids of all tokens that end an answer (end of text, turn or message), in ascending order, to `tokens`,
 * and their number to `count`, also when `capacity`, the room in `tokens`, is too small for them
 * (`EMBER_BUFFER_TOO_SMALL`, with nothing written to `tokens`). `tokens` may be NULL if `capacity` is 0. Most models
 * have one to five. `ember_token_is_end` checks a single token. Any thread may call it.
 *
 * Errors: `EMBER_BUFFER_TOO_SMALL`; `EMBER_UNSUPPORTED` if the model's tokenizer is not supported.
 */
ember_status ember_end_tokens(const struct ember_model *model,
                              uint32_t *tokens,
                              size_t capacity,
                              size_t *count,
                              struct ember_error *err);

/**
 * Creates a text stream for a model's tokens. `options` may be NULL for the defaults. The new handle is written to `out` and has to be
 * freed with `ember_text_stream_free`. Any thread may call it.
 *
 * Errors: `EMBER_INVALID_ARGUMENT` for unknown flags, an empty stop string, one that is too long,
 * too many; `EMBER_INVALID_UTF8` in one of them; `EMBER_UNSUPPORTED` if the model's tokenizer is
 * not supported; `EMBER_OUT_OF_MEMORY`.
 */
ember_status ember_text_stream_create(const struct ember_model *model,
                                      const struct ember_text_stream_options *options,
                                      struct ember_text_stream **out,
                                      struct ember_error *err);

/**
 * Takes the next `count` tokens and writes the text that is certain now: whole characters that cannot be the start
 * of a stop string. The rest follows with later tokens or with `ember_text_stream_finish`. The text does not depend
 * on how tokens are divided among calls. When a stop string is complete (the first one, if there are several),
 * everything before it is written, nothing of it or after it, and `ember_text_stream_info` reports it. Bytes that
 * are not UTF-8 become U+FFFD.
 *
 * `len` receives the number of bytes, also when `capacity`, the room in `text`, is too small for
 * them: `EMBER_BUFFER_TOO_SMALL`, with nothing written to `text` and no token taken. `text` may be
 * NULL if `capacity` is 0.
 *
 * Errors: `EMBER_INVALID_TOKEN`, and no token was taken; `EMBER_BUFFER_TOO_SMALL`; `EMBER_BUSY`.
 */
ember_status ember_text_stream_push(struct ember_text_stream *stream,
                                    const uint32_t *tokens,
                                    size_t count,
                                    char *text,
                                    size_t capacity,
                                    size_t *len,
                                    struct ember_error *err);

/**
 * Ends the text: writes what was held back, with U+FFFD for a character that stayed incomplete.
 * The stream is then empty and may be used for another text. `text`, `capacity` and `len` are
 * those of `ember_text_stream_push`.
 *
 * Errors: `EMBER_BUFFER_TOO_SMALL`, and the text was not ended; `EMBER_BUSY`.
 */
ember_status ember_text_stream_finish(struct ember_text_stream *stream,
                                      char *text,
                                      size_t capacity,
                                      size_t *len,
                                      struct ember_error *err);

/**
 * Writes the progress of a stream since its creation or the last `ember_text_stream_finish` to `out`, whose `struct_size` the caller has
 * set. Any thread may call it.
 */
ember_status ember_text_stream_info(const struct ember_text_stream *stream,
                                    struct ember_text_stream_details *out,
                                    struct ember_error *err);

/**
 * Frees a stream: the handle becomes invalid at once, and a call with it that is running on another thread completes normally. NULL
 * is allowed and does nothing.
 *
 * Errors: `EMBER_INVALID_HANDLE`.
 */
ember_status ember_text_stream_free(struct ember_text_stream *stream);

/**
 * Appends the prompt, if there is one, to the context, then decodes tokens until there is a reason to end, and
 * passes the text to a callback as it is generated. The tokens are the same as those of `ember_prefill` and
 * `ember_decode` in a loop, and the text is that of an `ember_text_stream`. All tokens are in the context
 * afterwards, so the next call continues from there. `options` may be NULL for the defaults. The reason of the end
 * and the amount of output are written to `out`, whose `struct_size` the caller has set; it may be NULL. If one
 * token gives several reasons, an end token takes precedence over a stop string, and a stop string over the
 * callback.
 *
 * Text that is still held back when the callback ends the generation is not passed to it; its tokens are in the
 * context.
 *
 * `ember_session_interrupt` ends it with `EMBER_OK` and the reason `EMBER_END_INTERRUPTED`. While the prompt is
 * evaluated, it ends with the error `EMBER_INTERRUPTED` instead, and nothing was done.
 *
 * Errors: those of `ember_prefill` and `ember_decode`; `EMBER_NO_INPUT` if there are neither a prompt nor a
 * context; `EMBER_CONTEXT_FULL` if the prompt does not fit; those of `ember_text_stream_create`, `EMBER_UNSUPPORTED`
 * if the model's tokenizer is not supported among them. After an error, the session is as it was before the call,
 * even if the callback already received text: the same call generates the same tokens again.
 */
ember_status ember_generate(struct ember_session *session,
                            const struct ember_generate_options *options,
                            struct ember_generate_details *out,
                            struct ember_error *err);

/**
 * Starts what `ember_generate` does without a callback: `ember_generate_next` returns the text piece by piece, on the caller's
 * thread. The prompt and the stop strings are copied, and the prompt is evaluated by the first `ember_generate_next`. `piece` of
 * the options must be NULL. Until `ember_generate_finish`, every other function that changes the session returns
 * `EMBER_DECODE_PENDING`, except for `ember_session_interrupt`, `ember_session_rewind`, which ends the generation, and
 * `ember_session_free`.
 *
 * Errors: those of `ember_generate` that are known before any work is done.
 */
ember_status ember_generate_start(struct ember_session *session,
                                  const struct ember_generate_options *options,
                                  struct ember_error *err);

/**
 * Generates the next token and writes the text that is certain then: whole characters that cannot be the start of a stop
 * string, often none. `flags` are values of `enum ember_next_flags`. The number of bytes is written to `len`, and the token
 * to `token`, whose `struct_size` the caller has set. `token->id` is `EMBER_NO_TOKEN` when the generation is over; the text
 * that was held back until then comes with it, and later calls return an empty text with it. `text` may be NULL if `capacity`
 * is 0. The pieces are those that `ember_generate` passes to its callback.
 *
 * If `capacity` is too small, the result is `EMBER_BUFFER_TOO_SMALL`, only `len` is written, and the next call returns the same
 * piece. After another error, what was generated before is in the context, and the next call tries again. An interrupt
 * ends the generation, but while the prompt is evaluated, it is the error `EMBER_INTERRUPTED`.
 *
 * Errors: `EMBER_PENDING` with `EMBER_NEXT_NO_WAIT`; `EMBER_NOTHING_PENDING` if no generation was started;
 * `EMBER_INVALID_ARGUMENT` for unknown flags; `EMBER_BUFFER_TOO_SMALL`; those of `ember_prefill` and `ember_decode`.
 */
ember_status ember_generate_next(struct ember_session *session,
                                 uint32_t flags,
                                 char *text,
                                 size_t capacity,
                                 size_t *len,
                                 struct ember_token *token,
                                 struct ember_error *err);

/**
 * Ends a generation that was started, at any time. Work that is under way is interrupted and waited for. All tokens that were returned
 * are in the context, and so are those of an end token and of a stop string. The reason of the end and the amount of output are written
 * to `out`, whose `struct_size` the caller has set; it may be NULL.
 *
 * Errors: `EMBER_NOTHING_PENDING` if no generation was started; `EMBER_BUSY`.
 */
ember_status ember_generate_finish(struct ember_session *session,
                                   struct ember_generate_details *out,
                                   struct ember_error *err);

/**
 * Creates an embedder for a model: an encoder (BERT and its relatives), or a decoder whose layers all attend to all
 * positions or to a window of them. `options` may be NULL for the defaults. All memory that evaluation needs is
 * reserved here. The new handle is written to `out` and has to be freed with `ember_embedder_free`. Any thread may
 * call it.
 *
 * Errors: `EMBER_INVALID_ARGUMENT` names the option; `EMBER_INVALID_UTF8` in `instruction`; `EMBER_UNSUPPORTED` for a model
 * with layers that it cannot be made for (recurrent layers, for example; on a GPU, heads of more than 256 elements), for one whose layers
 * are on several devices, for more `batch_tokens` than the device takes, for scores of a model that has none, and for scores by "yes"
 * and "no" with an adapter of the head; `EMBER_INVALID_HANDLE` and `EMBER_INVALID_ARGUMENT` for adapters are as of
 * `ember_session_set_adapters`; `EMBER_FILE_TRUNCATED` and `EMBER_FILE_CORRUPT` if the model's file has changed; `EMBER_OUT_OF_MEMORY`.
 */
ember_status ember_embedder_create(const struct ember_model *model,
                                   const struct ember_embedder_options *options,
                                   struct ember_embedder **out,
                                   struct ember_error *err);

/**
 * Writes facts about an embedder to `out`, whose `struct_size` the caller has set. Any thread may call it, also while
 * another call with the embedder is running.
 */
ember_status ember_embedder_info(const struct ember_embedder *embedder,
                                 struct ember_embedder_details *out,
                                 struct ember_error *err);

/**
 * Computes the vectors of `count` texts. Each is tokenized as `ember_tokenize` does it without flags, with the tokens that the model
 * expects at the beginning and end of a text. `out` receives the vectors one after another, `dimension` floats each (see
 * `ember_embedder_info`); without pooling, a vector for each token. `written` receives their number of floats, also when `capacity`, the
 * room in `out` in floats, is too small for them: `EMBER_BUFFER_TOO_SMALL`, with nothing written to `out`. Either array may be NULL if
 * it has no elements.
 *
 * Several texts are evaluated together, up to `batch_tokens` tokens. The bits of a vector do not depend on the texts beside it,
 * on the number of threads, or on other calls. An embedder that scores writes scores in place of vectors.
 *
 * Errors: `EMBER_INVALID_UTF8`; `EMBER_NO_INPUT` for a text of no tokens; `EMBER_CONTEXT_FULL` for one of more than `max_tokens`; all
 * name the text and set `index` of `err`. `EMBER_BUFFER_TOO_SMALL`; `EMBER_BUSY`; `EMBER_INTERRUPTED`; `EMBER_INVALID_ARGUMENT` for a
 * text for which the tokenizer takes far more work than is usual; `EMBER_INVALID_TOKEN` if the tokenizer has more tokens than the model;
 * `EMBER_UNSUPPORTED` if the tokenizer is not supported; `EMBER_NUMERIC` if the model produces a value that is not a number;
 * `EMBER_FILE_TRUNCATED` and `EMBER_FILE_CORRUPT` if the model's file has changed; `EMBER_OUT_OF_MEMORY`.
 */
ember_status ember_embed(struct ember_embedder *embedder,
                         const struct ember_text *texts,
                         size_t count,
                         float *out,
                         size_t capacity,
                         size_t *written,
                         struct ember_error *err);

/**
 * `ember_embed` for tokens. `tokens` has the tokens of all `count` texts one after another, `token_count` in all, and `counts` the
 * number of tokens of each text. No tokens are added.
 *
 * Errors: those of `ember_embed`; `EMBER_INVALID_TOKEN` names the text; `EMBER_INVALID_ARGUMENT` if the `counts` together are
 * not `token_count`.
 */
ember_status ember_embed_tokens(struct ember_embedder *embedder,
                                const uint32_t *tokens,
                                size_t token_count,
                                const size_t *counts,
                                size_t count,
                                float *out,
                                size_t capacity,
                                size_t *written,
                                struct ember_error *err);

/**
 * Scores how well each of `count` documents answers a query: higher is better. The embedder was made with
 * `EMBER_POOLING_SCORE`. `scores` receives what the model's classification head gives for the pair of query and document,
 * `dimension` floats for each document (mostly one, a logit); of a model that answers "yes" or "no", the probability of
 * "yes". `written` and `capacity` are those of `ember_embed`.
 *
 * Errors: those of `ember_embed`; `EMBER_INVALID_ARGUMENT` if the embedder makes vectors; `EMBER_UNSUPPORTED` if the library does not
 * know how the model expects pairs: build their tokens yourself and call `ember_embed_tokens`.
 */
ember_status ember_rerank(struct ember_embedder *embedder,
                          const char *query,
                          size_t query_len,
                          const struct ember_text *documents,
                          size_t count,
                          float *scores,
                          size_t capacity,
                          size_t *written,
                          struct ember_error *err);

/**
 * Ends the call that is running with the embedder soon, with `EMBER_INTERRUPTED`, or else the next one that evaluates texts.
 * Any thread may call it at any time.
 *
 * Errors: `EMBER_INVALID_HANDLE`.
 */
ember_status ember_embedder_interrupt(struct ember_embedder *embedder);

/**
 * Frees an embedder: the handle becomes invalid at once, and a call with it that is running on another thread is interrupted. The
 * memory is freed when that call returns. NULL is allowed and does nothing.
 *
 * Errors: `EMBER_INVALID_HANDLE`.
 */
ember_status ember_embedder_free(struct ember_embedder *embedder);

/**
 * Loads a LoRA adapter for a model. `path` names a folder as the PEFT library writes it
 * (`adapter_config.json` and `adapter_model.safetensors`; the path of one of the two works, too) or a GGUF file of
 * an adapter (`general.type` is `adapter`). Ranks and alphas by pattern and rsLoRA are supported; any matrix of attention,
 * recurrent layers, feed-forward parts, routers, experts, the token embedding and the head can have a part in it, as can `kv_b_proj` of
 * latent attention. The adapter is read into memory of
 * the model's device, in F32, F16 or BF16 as its file has it (quantized ones become F32), and its file is not needed any
 * longer. The new handle is written to `out` and has to be freed with `ember_adapter_free`. Any thread may call it.
 *
 * Errors: `EMBER_INVALID_UTF8` in `path`; `EMBER_FILE_NOT_FOUND`, `EMBER_NOT_A_FILE`, `EMBER_FILE_EMPTY`, `EMBER_IO`;
 * `EMBER_UNKNOWN_FORMAT` for what is no adapter; `EMBER_FILE_TRUNCATED`, `EMBER_FILE_CORRUPT`, `EMBER_MISSING_KEY`;
 * `EMBER_INVALID_MODEL` for an adapter of another architecture, a rank of 0 and numbers that are not finite;
 * `EMBER_MISSING_TENSOR` for half a pair and for tensors that the model does not have; `EMBER_SHAPE_MISMATCH`;
 * `EMBER_UNSUPPORTED` for other kinds than LoRA, DoRA, matrices that cannot have adapters, and whole tensors in place of the
 * model's; `EMBER_OUT_OF_MEMORY`, also where `ember_model_options.session_memory_limit` has no room for it; on a GPU also
 * `EMBER_DEVICE_LOST` and `EMBER_DEVICE_ERROR`. Messages name the tensor or the key.
 */
ember_status ember_adapter_load(const struct ember_model *model,
                                const char *path,
                                size_t path_len,
                                struct ember_adapter **out,
                                struct ember_error *err);

/**
 * Writes facts about an adapter to `out`, whose `struct_size` the caller has set. Any thread may call it.
 */
ember_status ember_adapter_info(const struct ember_adapter *adapter,
                                struct ember_adapter_details *out,
                                struct ember_error *err);

/**
 * Frees an adapter: the handle becomes invalid at once. Sessions and embedders that use it go on with it, and its memory is freed when
 * none does any more. NULL is allowed and does nothing. Any thread may call it.
 *
 * Errors: `EMBER_INVALID_HANDLE`.
 */
ember_status ember_adapter_free(struct ember_adapter *adapter);

/**
 * Sets the `count` adapters, at most 16, that a session uses, in place of the previous ones; 0 uses none, and `adapters` may be
 * NULL then. All of them must have been loaded for the session's model. What they add is summed in the order of the list.
 *
 * The call itself evaluates nothing. The next call that needs the context evaluates all of it again with the new
 * adapters, unless `flags` has `EMBER_ADAPTERS_KEEP`: then the session goes on from keys, values and logits as they are,
 * and only what is evaluated later is read with the new adapters. Nothing is evaluated again if adapters and scales are the
 * same as before.
 *
 * Sessions with different adapters can be in one batch, and the bits of a session's results do not depend on the others.
 * Forks use the same adapters. A saved session names its adapters by fingerprint, and `ember_session_restore` demands the
 * same.
 *
 * Errors: `EMBER_INVALID_HANDLE` and `EMBER_INVALID_ARGUMENT` name the adapter and set `index` of `err`: for those of another
 * model and for scales that are not finite; `EMBER_INVALID_ARGUMENT` for unknown flags and for more than 16 adapters;
 * `EMBER_BUSY`; `EMBER_DECODE_PENDING`; `EMBER_OUT_OF_MEMORY`; on a GPU also `EMBER_DEVICE_LOST` and `EMBER_DEVICE_ERROR`. The
 * session is as it was then.
 */
ember_status ember_session_set_adapters(struct ember_session *session,
                                        const struct ember_adapter_use *adapters,
                                        size_t count,
                                        uint32_t flags,
                                        struct ember_error *err);

/**
 * Writes a conversation as the text that the model was trained on, by its chat template. `json`
 * has `json_len` bytes: one JSON object, whose keys are the template's variables. Templates know
 *
 * - `messages`: objects with `role` and `content`, and further keys such as `tool_calls`;
 * - `tools`: function descriptions, and `documents`;
 * - `add_generation_prompt`: true to end with the start of the answer; false if it is not there;
 * - keys of their own, for example `enable_thinking`.
 *
 * The tokens of the vocabulary (`bos_token`, ...) are there without being passed. The text is
 * what Jinja2 in Python makes with the settings of the transformers library. Its tokens are those
 * of `ember_tokenize` with `EMBER_TOKENIZE_SPECIAL`, but then a user's words can forge a role: use
 * `ember_chat_tokenize`.
 *
 * `len` receives the number of bytes, also when `capacity`, the room in `text`, is too small for
 * them (`EMBER_BUFFER_TOO_SMALL`, with nothing written to `text`). `text` may be NULL if `capacity`
 * is 0; `options` may be NULL. Any thread may call it. A template is a program from the model's
 * file: it can neither see nor change anything, and is stopped when it takes too many steps (some
 * tenths of a second), too much memory (40 MB, and more for a long conversation) or when `interrupt`
 * of the options says so.
 *
 * Errors: `EMBER_INVALID_UTF8`; `EMBER_BUFFER_TOO_SMALL`; `EMBER_INVALID_ARGUMENT` if `json` is not a JSON object;
 * `EMBER_TEMPLATE_FAILED` for a model without a template, for a template that is wrong, refuses the
 * messages (the message has its words) or was stopped; `EMBER_INTERRUPTED`; `EMBER_UNSUPPORTED` if
 * the model's tokenizer is not supported; `EMBER_OUT_OF_MEMORY`.
 */
ember_status ember_chat_format(const struct ember_model *model,
                               const char *json,
                               size_t json_len,
                               const struct ember_chat_options *options,
                               char *text,
                               size_t capacity,
                               size_t *len,
                               struct ember_error *err);

/**
 * Turns a conversation into tokens, ready for `ember_prefill` at the start of a context. The
 * arguments are those of `ember_chat_format`, and `tokens`, `capacity` and `count` those of
 * `ember_tokenize`.
 *
 * The caller's strings are always text and cannot forge control tokens. Tokens such as `<|im_end|>` are recognized only where the
 * template itself wrote every character of them, whatever it did to the caller's strings before it wrote them. A `role` counts as
 * written by the template if it is a plain word without `_`, except in tokens that end something. Ordinary added tokens in angle or
 * square brackets that the template itself uses, such as `<tool_response>`, are text as well, except in messages of the role
 * `assistant`, where the model's own answers come back. BOS and EOS are added where the model wants them and the template has not
 * written them.
 *
 * Errors: those of `ember_chat_format`, and `EMBER_INVALID_ARGUMENT` as of `ember_tokenize`.
 */
ember_status ember_chat_tokenize(const struct ember_model *model,
                                 const char *json,
                                 size_t json_len,
                                 const struct ember_chat_options *options,
                                 uint32_t *tokens,
                                 size_t capacity,
                                 size_t *count,
                                 struct ember_error *err);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* EMBERLM_H */
