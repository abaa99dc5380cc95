// EmberLM for C++17: the whole of emberlm.h with owners, exceptions and containers. Header only; link the library as in C.
//
// - Model, Session and TextStream own a handle and can be moved, not copied. Their destructors and close() free it, also
//   while another thread is in a call with it, which is interrupted then. A Session and a TextStream keep their model alive. Calls of an object that was closed or moved from throw Error with EMBER_INVALID_HANDLE.
// - Every function throws Error unless it is noexcept, and has then changed nothing, as in C. What standard
//   containers throw (std::bad_alloc) passes through.
// - Threads: const functions of Model may run on any number of threads at once. A Session is for one thread at a time: a
//   second call meanwhile throws Error with EMBER_BUSY. interrupt() and clear_interrupt() may be called at any time.
// - Callbacks may throw: the exception ends the call and comes out of it on the thread that made the call.
// - Options are structs whose default is that of the library. Text is UTF-8.

#ifndef EMBERLM_HPP
#define EMBERLM_HPP

#include <emberlm.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace emberlm {

using Token = std::uint32_t;
using Tokens = std::vector<Token>;

/// A call that failed: the status, the sentence of the library, and which element of a list is at fault.
class Error : public std::runtime_error {
public:
    Error(ember_status status, const std::string &message, std::uint32_t index = EMBER_NO_INDEX)
        : std::runtime_error(std::string(ember_status_name(status)) + (message.empty() ? "" : ": " + message)), status_(status),
          index_(index), message_(std::make_shared<const std::string>(message)) {}
    ember_status status() const noexcept { return status_; }
    /// The name of the status, for example "EMBER_BUSY".
    const char *name() const noexcept { return ember_status_name(status_); }
    /// What the library says, without the name.
    const std::string &message() const noexcept { return *message_; }
    /// The element of a list that is at fault, or EMBER_NO_INDEX.
    std::uint32_t index() const noexcept { return index_; }

private:
    ember_status status_;
    std::uint32_t index_;
    std::shared_ptr<const std::string> message_; // copies of an exception may not throw
};

/// The loaded library has another ABI than the header that the program was compiled with.
class VersionError : public std::runtime_error {
public:
    VersionError(std::uint32_t compiled, std::uint32_t loaded)
        : std::runtime_error("emberlm.hpp was compiled for ABI " + std::to_string(compiled) + ", but the loaded library has ABI " +
                             std::to_string(loaded)) {}
};

namespace detail {

inline void require_abi(std::uint32_t loaded) {
    if (loaded != EMBER_ABI_VERSION) throw VersionError(EMBER_ABI_VERSION, loaded);
}

/// Before the first call of a kind that makes something.
inline void require_abi() {
    static const bool checked = (require_abi(ember_abi_version()), true);
    (void)checked;
}

inline void check(ember_status status, const ember_error &err) {
    if (status != EMBER_OK) throw Error(status, err.message, err.index);
}

/// A struct of the C interface, empty but for its size.
template <class T> T sized() noexcept {
    T value{};
    value.struct_size = static_cast<std::uint32_t>(sizeof value);
    return value;
}

/// Calls `fill(buffer, capacity, &count, &err)` with a buffer that fits: again where it was too small.
template <class Container, class Fill> Container filled(std::size_t guess, Fill fill) {
    Container buffer;
    buffer.resize(guess);
    for (;;) {
        ember_error err;
        std::size_t count = 0;
        const ember_status status = fill(buffer.data(), buffer.size(), &count, &err);
        if (status == EMBER_BUFFER_TOO_SMALL && count > buffer.size()) {
            buffer.resize(count);
            continue;
        }
        check(status, err);
        buffer.resize(count);
        return buffer;
    }
}

/// Keeps an exception of a callback from crossing C, and throws it behind the call.
class Guard {
public:
    /// What `call` returns, or 1 if it throws; every later call returns 1, too.
    template <class Call> std::int32_t run(Call call) noexcept {
        if (thrown_) return 1;
        try {
            return call();
        } catch (...) {
            thrown_ = std::current_exception();
            return 1;
        }
    }
    void rethrow() const {
        if (thrown_) std::rethrow_exception(thrown_);
    }

private:
    std::exception_ptr thrown_;
};

/// Owns a handle of the C interface.
template <class T, ember_status (*Free)(T *)> class Handle {
public:
    Handle() noexcept = default;
    explicit Handle(T *raw) noexcept : raw_(raw) {}
    Handle(Handle &&other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
    Handle &operator=(Handle &&other) noexcept {
        if (this != &other) {
            if (raw_ != nullptr) Free(raw_);
            raw_ = std::exchange(other.raw_, nullptr);
        }
        return *this;
    }
    ~Handle() {
        if (raw_ != nullptr) Free(raw_);
    }
    T *get() const noexcept { return raw_; }
    void close() {
        if (raw_ == nullptr) return;
        const ember_status status = Free(raw_);
        if (status != EMBER_OK) throw Error(status, "it was not freed");
        raw_ = nullptr;
    }

private:
    T *raw_ = nullptr;
};

} // namespace detail

/// The version of the loaded library, for example "0.1.0".
inline std::string version() { return ember_version(); }
/// The same as a number, to compare with EMBER_VERSION_NUMBER.
inline std::uint32_t version_number() noexcept { return ember_version_number(); }

/// Whether the loaded library can do something, by what was compiled.
inline bool supported(ember_capability capability) noexcept { return ember_supported(capability) != 0; }

/// All devices, the best one first.
inline std::vector<ember_device_details> devices() {
    detail::require_abi();
    ember_error err;
    std::uint32_t count = 0;
    detail::check(ember_device_count(&count, &err), err);
    std::vector<ember_device_details> all(count, detail::sized<ember_device_details>());
    for (std::uint32_t i = 0; i < count; i++) detail::check(ember_device_info(i, &all[i], &err), err);
    return all;
}

using LogFunction = std::function<void(ember_log_level level, std::string_view message)>;

/// Sets the function that gets the log of the whole process, from any thread, also from several at once; an empty one turns it
/// off. What the function throws is dropped. Not to be called from two threads at once, nor from the function.
inline void set_log(LogFunction function, ember_log_level level = EMBER_LOG_INFO) {
    detail::require_abi();
    static std::unique_ptr<LogFunction> current; // outlives every call of the callback
    ember_error err;
    auto next = function ? std::make_unique<LogFunction>(std::move(function)) : nullptr;
    const ember_log_fn callback = [](void *user, std::int32_t at, const char *message, std::size_t len) {
        try {
            (*static_cast<const LogFunction *>(user))(static_cast<ember_log_level>(at), std::string_view(message, len));
        } catch (...) {
        }
    };
    detail::check(ember_set_log_callback(next ? callback : nullptr, next.get(), level, &err), err);
    current = std::move(next);
}

class Group;

/// How to load a model.
struct ModelOptions {
    std::uint32_t device = 0;  ///< index among devices()
    std::uint32_t threads = 0; ///< 0: one per physical core
    ember_weights weights = EMBER_WEIGHTS_KEEP;
    ember_files files = EMBER_FILES_MAPPED;
    /// Hears how far the load is, from 0 to 1; false ends it with EMBER_CANCELLED.
    std::function<bool(float fraction)> progress = nullptr;
    void *cuda_context = nullptr;
    std::uint64_t memory_limit = 0;         ///< bytes of a GPU's memory for the model; 0: no limit
    std::uint64_t session_memory_limit = 0; ///< bytes of the device's memory for all its sessions; 0: no limit
    std::vector<std::uint32_t> devices = {}; ///< devices that share the layers; none: `device` alone
    std::vector<std::uint32_t> device_layers = {}; ///< layers on each of them; none: by the GPUs' memory
    ember_split split = EMBER_SPLIT_LAYERS;        ///< how they share the model
    std::uint32_t cpu_expert_layers = 0; ///< layers of a model on a GPU whose experts stay on the CPU; UINT32_MAX: all
    bool draft_heads = false; ///< the model's own heads are loaded, for Session::draft_by_heads
    bool f16_batches = false; ///< steps of more than 16 sessions in f16 on some GPUs: EMBER_MODEL_F16_BATCHES
    const Group *group = nullptr; ///< a group of processes that have the model together; it must live until the call has returned
};

/// A sequence that no repetition goes beyond: a text, or tokens.
struct DryBreaker {
    std::string text = {};
    Tokens tokens = {};
};

/// How tokens are chosen; greedily unless something else is said.
struct Sampling {
    float temperature = 0;
    std::uint64_t seed = 0;
    std::uint32_t top_k = 0;
    float top_p = 0;
    float min_p = 0;
    float typical_p = 0;
    std::uint32_t penalty_window = 0;
    float repeat_penalty = 0;
    float presence_penalty = 0;
    float frequency_penalty = 0;
    float dry_multiplier = 0;
    float dry_base = 0;
    std::uint32_t dry_allowed_length = 0;
    std::uint32_t dry_window = 0;
    bool dry_no_breakers = false;
    std::uint32_t logprobs = 0;
    std::vector<ember_logit_bias> logit_bias = {};
    Tokens banned = {};
    Tokens allowed = {};
    std::vector<DryBreaker> dry_breakers = {};
};

/// How to make a session.
struct SessionOptions {
    std::uint32_t context = 0; ///< 0: the model's, but at most 4096
    ember_kv_type kv_type = EMBER_KV_DEFAULT;
    std::int32_t stream_priority = 0;
    std::uint32_t mark_interval = 0; ///< the most positions of recurrent layers that a rewind evaluates again; 0: four copies
    Sampling sampling = {};
};

class Adapter;

/// An adapter that a session or an embedder uses, and how much it counts. The adapter must live until the call has returned.
struct AdapterUse {
    const Adapter *adapter = nullptr;
    float scale = 1;
};

/// How to restore a session; 0 keeps what was saved.
struct RestoreOptions {
    std::uint32_t context = 0;
    ember_kv_type kv_type = EMBER_KV_DEFAULT;
    std::int32_t stream_priority = 0;
    std::uint32_t mark_interval = 0;
    std::vector<AdapterUse> adapters = {}; ///< those that it was saved with
};

/// Which place a rank has in a group.
struct GroupOptions {
    std::uint32_t rank = 0;       ///< counted from 0
    std::uint32_t rank_count = 2; ///< 2 to 8
    std::uint32_t timeout_ms = 0; ///< how long ranks wait for each other; 0: 30 000
    std::string address = {};     ///< of rank 0: the IP address that it listens on; none: this machine alone
    std::string id = {};          ///< of the others: Group::id of rank 0
};

/// A rank's place in a group of processes that have one model together, each a share of every layer on its GPU; all make the same calls.
class Group {
public:
    explicit Group(const GroupOptions &options) {
        detail::require_abi();
        auto c = detail::sized<ember_group_options>();
        c.rank = options.rank;
        c.rank_count = options.rank_count;
        c.timeout_ms = options.timeout_ms;
        c.address = options.address.data();
        c.address_len = options.address.size();
        c.id = options.id.empty() ? nullptr : options.id.data();
        c.id_len = options.id.size();
        ember_error err;
        ember_group *raw = nullptr;
        detail::check(ember_group_create(&c, &raw, &err), err);
        handle_ = Handle(raw);
    }
    ember_group *get() const noexcept { return handle_.get(); }
    /// What the other ranks need to join: a secret.
    std::string id() const {
        return detail::filled<std::string>(128, [&](char *out, std::size_t room, std::size_t *len, ember_error *err) {
            return ember_group_id(get(), out, room, len, err);
        });
    }

private:
    using Handle = detail::Handle<ember_group, ember_group_free>;
    Handle handle_{nullptr};
};

/// What to generate, and when to end.
struct GenerateOptions {
    std::size_t limit = 0;               ///< the most tokens; 0: as many as the context has room for
    std::vector<std::string> stops = {}; ///< strings at which the text ends
    bool show_special = false;           ///< spell the names of control tokens
    bool ignore_end = false;             ///< go on behind tokens that end an answer
    bool new_text = false;               ///< the text is an answer and not the rest of the prompt's
};

/// A piece of text and the token that was generated last (its id is EMBER_NO_TOKEN for what was held back until the end); the text may
/// be empty. false ends the generation.
using PieceFunction = std::function<bool(std::string_view text, const ember_token &token)>;

/// What was generated.
struct Generated {
    std::string text; ///< the whole text
    ember_generate_end end = EMBER_END_LIMIT;
    std::uint32_t stop = EMBER_NO_INDEX; ///< index of the stop string that was met
    Token token = EMBER_NO_TOKEN;        ///< the last one
    std::uint64_t position = 0;          ///< where the tokens begin in the context
    std::uint64_t token_count = 0;
};

/// How probable tokens are, as natural logarithms.
struct Logprobs {
    float chosen = 0;
    Tokens tokens = {}; ///< the most probable ones
    std::vector<float> logprobs = {};
};

/// Which chat template to use.
struct ChatOptions {
    std::optional<std::string> source = {}; ///< a template of yours
    std::optional<std::string> name = {};   ///< one of the model's further templates
    std::int64_t now = 0;                   ///< seconds since 1970 for templates that write a date; 0: the clock
};

/// A message of a conversation.
struct Message {
    std::string role;
    std::string content;
};

namespace detail {

struct CModelOptions {
    ember_model_options c = sized<ember_model_options>();
    ember_cuda_model_options cuda = sized<ember_cuda_model_options>();
    Guard guard;
    const std::function<bool(float)> *progress;

    explicit CModelOptions(const ModelOptions &options) : progress(&options.progress) {
        c.device = options.device;
        c.threads = options.threads;
        c.weights = options.weights;
        c.files = options.files;
        c.memory_limit = options.memory_limit;
        c.session_memory_limit = options.session_memory_limit;
        if (!options.device_layers.empty() && options.device_layers.size() != options.devices.size())
            throw std::invalid_argument("device_layers needs a number for each of devices");
        c.devices = options.devices.data();
        c.device_count = options.devices.size();
        c.split = options.split;
        c.cpu_expert_layers = options.cpu_expert_layers;
        c.group = options.group != nullptr ? options.group->get() : nullptr;
        c.flags = (options.draft_heads ? std::uint32_t(EMBER_MODEL_DRAFT_HEADS) : 0) |
                  (options.f16_batches ? std::uint32_t(EMBER_MODEL_F16_BATCHES) : 0);
        c.device_layers = options.device_layers.empty() ? nullptr : options.device_layers.data();
        if (options.cuda_context != nullptr) {
            cuda.kind = EMBER_CHAIN_CUDA_MODEL;
            cuda.context = options.cuda_context;
            c.next = &cuda;
        }
        c.user = this;
        if (options.progress)
            c.progress = [](void *user, float fraction) -> std::int32_t {
                auto &self = *static_cast<CModelOptions *>(user);
                return self.guard.run([&] { return (*self.progress)(fraction) ? 0 : 1; });
            };
    }
    CModelOptions(const CModelOptions &) = delete;
    CModelOptions &operator=(const CModelOptions &) = delete;
};

struct CSampling {
    ember_sampling_options c = sized<ember_sampling_options>();
    std::vector<ember_dry_breaker> breakers;

    explicit CSampling(const Sampling &s) {
        c.temperature = s.temperature;
        c.seed = s.seed;
        c.top_k = s.top_k;
        c.top_p = s.top_p;
        c.min_p = s.min_p;
        c.typical_p = s.typical_p;
        c.penalty_window = s.penalty_window;
        c.repeat_penalty = s.repeat_penalty;
        c.presence_penalty = s.presence_penalty;
        c.frequency_penalty = s.frequency_penalty;
        c.dry_multiplier = s.dry_multiplier;
        c.dry_base = s.dry_base;
        c.dry_allowed_length = s.dry_allowed_length;
        c.dry_window = s.dry_window;
        c.dry_no_breakers = s.dry_no_breakers ? 1 : 0;
        c.logprobs = s.logprobs;
        c.logit_bias = s.logit_bias.data();
        c.logit_bias_count = s.logit_bias.size();
        c.banned = s.banned.data();
        c.banned_count = s.banned.size();
        c.allowed = s.allowed.data();
        c.allowed_count = s.allowed.size();
        for (const DryBreaker &breaker : s.dry_breakers) {
            ember_dry_breaker one{};
            if (breaker.tokens.empty()) {
                one.text = breaker.text.data();
                one.text_len = breaker.text.size();
            } else {
                one.tokens = breaker.tokens.data();
                one.token_count = breaker.tokens.size();
            }
            breakers.push_back(one);
        }
        c.dry_breakers = breakers.data();
        c.dry_breaker_count = breakers.size();
    }
    CSampling(const CSampling &) = delete;
    CSampling &operator=(const CSampling &) = delete;
};

/// Options of GPUs behind others, if there are any.
struct CudaSession {
    ember_cuda_session_options c = sized<ember_cuda_session_options>();
    explicit CudaSession(std::int32_t priority) noexcept {
        c.kind = EMBER_CHAIN_CUDA_SESSION;
        c.stream_priority = priority;
    }
    const void *next() const noexcept { return c.stream_priority != 0 ? &c : nullptr; }
};

struct CSessionOptions {
    CSampling sampling;
    CudaSession cuda;
    ember_session_options c = sized<ember_session_options>();

    explicit CSessionOptions(const SessionOptions &options) : sampling(options.sampling), cuda(options.stream_priority) {
        c.context = options.context;
        c.kv_type = options.kv_type;
        c.next = cuda.next();
        c.mark_interval = options.mark_interval;
        c.sampling = &sampling.c;
    }
};

inline std::vector<ember_adapter_use> c_adapters(const std::vector<AdapterUse> &uses);

struct CRestoreOptions {
    CudaSession cuda;
    std::vector<ember_adapter_use> adapters;
    ember_restore_options c = sized<ember_restore_options>();

    explicit CRestoreOptions(const RestoreOptions &options) : cuda(options.stream_priority), adapters(c_adapters(options.adapters)) {
        c.context = options.context;
        c.kv_type = options.kv_type;
        c.mark_interval = options.mark_interval;
        c.next = cuda.next();
        c.adapters = adapters.data();
        c.adapter_count = adapters.size();
    }
    CRestoreOptions(const CRestoreOptions &) = delete;
    CRestoreOptions &operator=(const CRestoreOptions &) = delete;
};

inline ember_chat_options c_options(const ChatOptions &options) noexcept {
    auto c = sized<ember_chat_options>();
    if (options.source) {
        c.source = options.source->data();
        c.source_len = options.source->size();
    }
    if (options.name) {
        c.name = options.name->data();
        c.name_len = options.name->size();
    }
    c.now = options.now;
    return c;
}

inline std::vector<ember_stop> c_stops(const std::vector<std::string> &stops) {
    std::vector<ember_stop> c;
    for (const std::string &stop : stops) c.push_back(ember_stop{stop.data(), stop.size()});
    return c;
}

inline void append_json(std::string &json, std::string_view text) {
    static const char hex[] = "0123456789abcdef";
    json += '"';
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte == '"' || byte == '\\') {
            json += '\\';
            json += c;
        } else if (byte < 0x20) {
            json += "\\u00";
            json += hex[byte >> 4];
            json += hex[byte & 15];
        } else {
            json += c;
        }
    }
    json += '"';
}

} // namespace detail

/// A conversation as the JSON object that chat templates take.
inline std::string conversation(const std::vector<Message> &messages, bool add_generation_prompt = true) {
    std::string json = add_generation_prompt ? "{\"add_generation_prompt\":true,\"messages\":["
                                             : "{\"add_generation_prompt\":false,\"messages\":[";
    for (std::size_t i = 0; i < messages.size(); i++) {
        json += i > 0 ? ",{\"role\":" : "{\"role\":";
        detail::append_json(json, messages[i].role);
        json += ",\"content\":";
        detail::append_json(json, messages[i].content);
        json += '}';
    }
    return json + "]}";
}

/// Memory that a model and a session of it would take.
inline ember_estimate estimate(std::string_view path, const ModelOptions &model = {}, const SessionOptions &session = {}) {
    detail::require_abi();
    detail::CModelOptions m(model);
    detail::CSessionOptions s(session);
    auto out = detail::sized<ember_estimate>();
    ember_error err;
    detail::check(ember_model_estimate(path.data(), path.size(), &m.c, &s.c, &out, &err), err);
    return out;
}

/// The same for each part of a model that several devices share, the first layers first.
inline std::vector<ember_estimate> estimate_parts(std::string_view path, const ModelOptions &model = {}, const SessionOptions &session = {}) {
    detail::CModelOptions m(model);
    detail::CSessionOptions s(session);
    std::vector<ember_estimate> parts(estimate(path, model, session).part_count, detail::sized<ember_estimate>());
    for (std::size_t i = 0; i < parts.size(); i++) {
        ember_error err;
        detail::check(ember_model_estimate_part(path.data(), path.size(), &m.c, &s.c, i, &parts[i], &err), err);
    }
    return parts;
}

/// What the file of a saved session is.
inline ember_state_details state_info(std::string_view path) {
    detail::require_abi();
    auto out = detail::sized<ember_state_details>();
    ember_error err;
    detail::check(ember_session_state_info(path.data(), path.size(), &out, &err), err);
    return out;
}

class Session;
class TextStream;
class Load;

/// Something that an event loop can wait for. See Session::set_event and Load.
class Event {
public:
    Event() {
        detail::require_abi();
        ember_error err;
        ember_event *raw = nullptr;
        detail::check(ember_event_create(&raw, &err), err);
        handle_ = Handle(raw);
    }
    ember_event *get() const noexcept { return handle_.get(); }
    /// A file descriptor that can be read while the event is set; on Windows a HANDLE. It stays the library's.
    std::int64_t native() const {
        ember_error err;
        std::int64_t native = -1;
        detail::check(ember_event_handle(get(), &native, &err), err);
        return native;
    }
    void clear() const {
        ember_error err;
        detail::check(ember_event_clear(get(), &err), err);
    }

private:
    using Handle = detail::Handle<ember_event, ember_event_free>;
    Handle handle_{nullptr};
};

/// A loaded model. Any number of threads may use it.
class Model {
public:
    /// Loads a GGUF file or a Hugging Face folder.
    static Model load(std::string_view path, const ModelOptions &options = {}) {
        detail::require_abi();
        detail::CModelOptions c(options);
        ember_error err;
        ember_model *raw = nullptr;
        const ember_status status = ember_model_load(path.data(), path.size(), &c.c, &raw, &err);
        Model model(raw);
        c.guard.rethrow();
        detail::check(status, err);
        return model;
    }

    /// Loads a GGUF file that is in memory; the bytes are copied.
    static Model from_memory(const void *bytes, std::size_t size, const ModelOptions &options = {}) {
        auto source = detail::sized<ember_model_source>();
        source.size = size;
        source.bytes = bytes;
        return from(source, options);
    }

    /// Loads a GGUF file that is in memory without a copy: the bytes are kept alive as long as they are needed.
    static Model from_shared(std::shared_ptr<const std::vector<unsigned char>> bytes, const ModelOptions &options = {}) {
        using Shared = std::shared_ptr<const std::vector<unsigned char>>;
        auto source = detail::sized<ember_model_source>();
        source.flags = EMBER_SOURCE_BORROW;
        source.size = bytes->size();
        source.bytes = bytes->data();
        auto keeper = std::make_unique<Shared>(std::move(bytes));
        source.user = keeper.get();
        source.release = [](void *user, const void *, std::uint64_t) { delete static_cast<Shared *>(user); };
        detail::require_abi();
        detail::CModelOptions c(options);
        ember_error err;
        ember_model *raw = nullptr;
        const ember_status status = ember_model_load_from(&source, &c.c, &raw, &err);
        if (status == EMBER_OK) (void)keeper.release(); // from now on, the library's to release
        Model model(raw);
        c.guard.rethrow();
        detail::check(status, err);
        return model;
    }

    /// Writes `count` bytes of the file from `offset` on to `bytes`; false ends the load with EMBER_IO. It is called on this
    /// thread and on threads of the library, never twice at once.
    using Reader = std::function<bool(std::uint64_t offset, void *bytes, std::size_t count)>;

    /// Loads a GGUF file of `size` bytes that a function reads.
    static Model from_reader(std::uint64_t size, const Reader &read, const ModelOptions &options = {}) {
        struct Context {
            const Reader *read;
            detail::Guard guard;
        } context{&read, {}};
        auto source = detail::sized<ember_model_source>();
        source.size = size;
        source.user = &context;
        source.read = [](void *user, std::uint64_t offset, void *bytes, std::size_t count) -> std::int32_t {
            auto &c = *static_cast<Context *>(user);
            return c.guard.run([&] { return (*c.read)(offset, bytes, count) ? 0 : 1; });
        };
        try {
            return from(source, options);
        } catch (const Error &) {
            context.guard.rethrow();
            throw;
        }
    }

    /// The C handle, which stays this object's.
    ember_model *get() const noexcept { return handle_.get(); }
    /// Frees the handle; the memory goes with the last session.
    void close() { handle_.close(); }

    ember_model_details info() const {
        auto out = detail::sized<ember_model_details>();
        ember_error err;
        detail::check(ember_model_info(get(), &out, &err), err);
        return out;
    }

    /// Where its layers are, the first ones first.
    std::vector<ember_part_details> parts() const {
        std::vector<ember_part_details> parts(info().part_count, detail::sized<ember_part_details>());
        for (std::size_t i = 0; i < parts.size(); i++) {
            ember_error err;
            detail::check(ember_model_part_info(get(), i, &parts[i], &err), err);
        }
        return parts;
    }

    /// The value of a metadata key as text.
    std::string metadata(std::string_view key) const {
        return detail::filled<std::string>(256, [&](char *out, std::size_t room, std::size_t *len, ember_error *err) {
            return ember_model_metadata(get(), key.data(), key.size(), out, room, len, err);
        });
    }

    std::vector<std::string> metadata_keys() const {
        std::vector<std::string> keys;
        const std::uint32_t count = info().metadata_count;
        for (std::uint32_t i = 0; i < count; i++)
            keys.push_back(detail::filled<std::string>(64, [&](char *out, std::size_t room, std::size_t *len, ember_error *err) {
                return ember_model_metadata_key(get(), i, out, room, len, err);
            }));
        return keys;
    }

    /// Token ids of a text. `flags`: values of ember_tokenize_flags. `interrupt`: a number that another thread may set (atomically) to
    /// end the call.
    Tokens tokenize(std::string_view text, std::uint32_t flags = 0, const std::uint32_t *interrupt = nullptr) const {
        auto options = detail::sized<ember_tokenize_options>();
        options.flags = flags;
        options.interrupt = interrupt;
        return detail::filled<Tokens>(text.size() / 3 + 16, [&](Token *out, std::size_t room, std::size_t *count, ember_error *err) {
            return interrupt == nullptr ? ember_tokenize(get(), text.data(), text.size(), flags, out, room, count, err)
                                        : ember_tokenize_with(get(), text.data(), text.size(), &options, out, room, count, err);
        });
    }

    /// The bytes of tokens, which need not end at the end of a character. `flags`: values of ember_detokenize_flags.
    std::string detokenize(const Tokens &tokens, std::uint32_t flags = 0) const {
        return detail::filled<std::string>(tokens.size() * 6 + 16, [&](char *out, std::size_t room, std::size_t *len, ember_error *err) {
            return ember_detokenize(get(), tokens.data(), tokens.size(), flags, out, room, len, err);
        });
    }

    /// The bytes of one token, a control token's name included.
    std::string token_text(Token token) const {
        return detail::filled<std::string>(32, [&](char *out, std::size_t room, std::size_t *len, ember_error *err) {
            return ember_token_text(get(), token, out, room, len, err);
        });
    }

    /// Whether the token ends an answer.
    bool is_end(Token token) const {
        ember_error err;
        std::uint32_t end = 0;
        detail::check(ember_token_is_end(get(), token, &end, &err), err);
        return end != 0;
    }

    ember_tokenizer_details tokenizer_info() const {
        auto out = detail::sized<ember_tokenizer_details>();
        ember_error err;
        detail::check(ember_tokenizer_info(get(), &out, &err), err);
        return out;
    }

    /// All tokens that end an answer.
    Tokens end_tokens() const {
        return detail::filled<Tokens>(8, [&](Token *out, std::size_t room, std::size_t *count, ember_error *err) {
            return ember_end_tokens(get(), out, room, count, err);
        });
    }

    /// A conversation (see `conversation`) as the text that the model was trained on.
    std::string chat_format(std::string_view json, const ChatOptions &options = {}) const {
        const auto c = detail::c_options(options);
        return detail::filled<std::string>(json.size() * 2, [&](char *out, std::size_t room, std::size_t *len, ember_error *err) {
            return ember_chat_format(get(), json.data(), json.size(), &c, out, room, len, err);
        });
    }

    /// A conversation (see `conversation`) as tokens; the words in it can forge nothing.
    Tokens chat_tokenize(std::string_view json, const ChatOptions &options = {}) const {
        const auto c = detail::c_options(options);
        return detail::filled<Tokens>(json.size(), [&](Token *out, std::size_t room, std::size_t *count, ember_error *err) {
            return ember_chat_tokenize(get(), json.data(), json.size(), &c, out, room, count, err);
        });
    }
    Tokens chat_tokenize(const std::vector<Message> &messages, const ChatOptions &options = {}) const {
        return chat_tokenize(conversation(messages), options);
    }

    /// Frees the device's memory of the weights until they are needed.
    void evict() const {
        ember_error err;
        detail::check(ember_model_evict(get(), &err), err);
    }
    void resume() const {
        ember_error err;
        detail::check(ember_model_resume(get(), &err), err);
    }

private:
    friend class Session;
    friend class Load;
    explicit Model(ember_model *raw) noexcept : handle_(raw) {}

    static Model from(const ember_model_source &source, const ModelOptions &options) {
        detail::require_abi();
        detail::CModelOptions c(options);
        ember_error err;
        ember_model *raw = nullptr;
        const ember_status status = ember_model_load_from(&source, &c.c, &raw, &err);
        Model model(raw);
        c.guard.rethrow();
        detail::check(status, err);
        return model;
    }

    detail::Handle<ember_model, ember_model_free> handle_;
};

/// A load in the background. Its destructor waits for a load that is still running, which it cancels.
class Load {
public:
    /// Starts what Model::load does. `options.progress` is not called. `event` is set at the end.
    explicit Load(std::string_view path, const ModelOptions &options = {}, const Event *event = nullptr) {
        detail::require_abi();
        detail::CModelOptions c(options);
        c.c.progress = nullptr;
        ember_error err;
        ember_load *raw = nullptr;
        detail::check(ember_model_load_start(path.data(), path.size(), &c.c, event ? event->get() : nullptr, &raw, &err), err);
        handle_ = Handle(raw);
    }
    ember_load *get() const noexcept { return handle_.get(); }
    /// The model, once, or nothing while the load is running. Throws what Model::load throws. Never blocks.
    std::optional<Model> poll(float *fraction = nullptr) {
        ember_error err;
        ember_model *raw = nullptr;
        const ember_status status = ember_load_poll(get(), fraction, &raw, &err);
        if (status == EMBER_PENDING) return std::nullopt;
        detail::check(status, err);
        return Model(raw);
    }
    /// Has it end soon with EMBER_CANCELLED.
    void cancel() const {
        const ember_status status = ember_load_cancel(get());
        if (status != EMBER_OK) throw Error(status, "");
    }

private:
    using Handle = detail::Handle<ember_load, ember_load_free>;
    Handle handle_{nullptr};
};

/// One conversation: a context of tokens. One thread at a time.
class Session {
public:
    explicit Session(const Model &model, const SessionOptions &options = {}) {
        detail::CSessionOptions c(options);
        ember_error err;
        ember_session *raw = nullptr;
        detail::check(ember_session_create(model.get(), &c.c, &raw, &err), err);
        handle_ = Handle(raw);
    }

    /// A session from a file that save() has written.
    static Session restore(const Model &model, std::string_view path, const RestoreOptions &options = {}) {
        const detail::CRestoreOptions c(options);
        ember_error err;
        ember_session *raw = nullptr;
        detail::check(ember_session_restore(model.get(), path.data(), path.size(), &c.c, &raw, &err), err);
        return Session(raw);
    }

    /// Writes the next bytes, at most `capacity`, and returns their number; 0 is the end.
    using Source = std::function<std::size_t(void *bytes, std::size_t capacity)>;

    /// A session from bytes that a function gives in order.
    static Session restore_from(const Model &model, const Source &read, const RestoreOptions &options = {}) {
        struct Context {
            const Source *read;
            detail::Guard guard;
        } context{&read, {}};
        const detail::CRestoreOptions c(options);
        ember_error err;
        ember_session *raw = nullptr;
        const ember_status status = ember_session_restore_from(
            model.get(),
            [](void *user, void *bytes, std::size_t capacity, std::size_t *count) -> std::int32_t {
                auto &self = *static_cast<Context *>(user);
                return self.guard.run([&] { return *count = (*self.read)(bytes, capacity), 0; });
            },
            &context, &c.c, &raw, &err);
        context.guard.rethrow();
        detail::check(status, err);
        return Session(raw);
    }

    /// The C handle, which stays this object's.
    ember_session *get() const noexcept { return handle_.get(); }
    /// Frees the session; a call with it on another thread is interrupted.
    void close() { handle_.close(); }

    ember_session_details info() const {
        auto out = detail::sized<ember_session_details>();
        ember_error err;
        detail::check(ember_session_info(get(), &out, &err), err);
        return out;
    }
    /// Tokens in the context.
    std::size_t position() const {
        ember_error err;
        std::size_t position = 0;
        detail::check(ember_session_position(get(), &position, &err), err);
        return position;
    }
    /// The tokens of the context from a position on.
    Tokens tokens(std::size_t from = 0) {
        return detail::filled<Tokens>(256, [&](Token *out, std::size_t room, std::size_t *count, ember_error *err) {
            return ember_session_tokens(get(), from, out, room, count, err);
        });
    }

    /// Appends tokens to the context and evaluates them.
    void prefill(const Tokens &tokens) {
        ember_error err;
        detail::check(ember_prefill(get(), tokens.data(), tokens.size(), &err), err);
    }
    /// Starts what prefill() does and returns at once.
    void prefill_start(const Tokens &tokens) {
        ember_error err;
        detail::check(ember_prefill_start(get(), tokens.data(), tokens.size(), &err), err);
    }
    /// How far a started prefill is. Never blocks.
    struct Progress {
        bool done;
        std::size_t evaluated;
    };
    Progress prefill_poll() {
        ember_error err;
        Progress progress{false, 0};
        const ember_status status = ember_prefill_poll(get(), &progress.evaluated, &err);
        if (status == EMBER_PENDING) return progress;
        detail::check(status, err);
        progress.done = true;
        return progress;
    }
    /// Makes the tokens the context and evaluates only what is new; returns how many were kept.
    std::size_t sync(const Tokens &tokens) {
        ember_error err;
        std::size_t kept = 0;
        detail::check(ember_session_sync(get(), tokens.data(), tokens.size(), &kept, &err), err);
        return kept;
    }

    /// The next token.
    Token decode() { return decode_token().id; }
    /// The next token, with what is known of it: whether it ends the answer, whether a grammar forced it, its log-probability.
    ember_token decode_token() {
        ember_error err;
        auto token = detail::sized<ember_token>();
        detail::check(ember_decode(get(), &token, &err), err);
        return token;
    }
    /// Starts `count` decodes and returns at once.
    void decode_start(std::size_t count = 1) {
        ember_error err;
        detail::check(count == 1 ? ember_decode_start(get(), &err) : ember_decode_start_n(get(), count, &err), err);
    }
    /// The next token of the started decodes, or nothing if it is not there yet. Never blocks.
    std::optional<Token> decode_poll() {
        ember_error err;
        auto token = detail::sized<ember_token>();
        const ember_status status = ember_decode_poll(get(), &token, &err);
        if (status == EMBER_PENDING) return std::nullopt;
        detail::check(status, err);
        return token.id;
    }

    /// Has the session set an event whenever a poll may find something new; nullptr ends that.
    void set_event(const Event *event) {
        ember_error err;
        detail::check(ember_session_set_event(get(), event ? event->get() : nullptr, &err), err);
    }
    /// The session's model, also if the object that it was made of is closed.
    Model model() const {
        ember_error err;
        ember_model *raw = nullptr;
        detail::check(ember_session_model(get(), &raw, &err), err);
        return Model(raw);
    }

    /// A piece of a generation. The last one has the token EMBER_NO_TOKEN.
    struct Piece {
        std::string text;
        ember_token token;
        bool is_last() const noexcept { return token.id == EMBER_NO_TOKEN; }
    };
    /// Starts what generate() does; next_piece() returns the text piece by piece, finish() ends it.
    void generate_start(const Tokens &prompt, const GenerateOptions &options = {}) {
        const auto stops = detail::c_stops(options.stops);
        auto c = c_generate(prompt, options, stops);
        ember_error err;
        detail::check(ember_generate_start(get(), &c, &err), err);
    }
    /// The next piece; without `wait`, nothing if it is not there yet.
    std::optional<Piece> next_piece(bool wait = true) {
        Piece piece{std::string(64, '\0'), detail::sized<ember_token>()};
        for (;;) {
            std::size_t len = 0;
            ember_error err;
            const ember_status status =
                ember_generate_next(get(), wait ? 0u : std::uint32_t(EMBER_NEXT_NO_WAIT), piece.text.data(), piece.text.size(), &len, &piece.token, &err);
            if (status == EMBER_PENDING) return std::nullopt;
            if (status != EMBER_BUFFER_TOO_SMALL) detail::check(status, err);
            piece.text.resize(len);
            if (status == EMBER_OK) return piece;
        }
    }
    /// Ends a generation that was started. `text` of the result is empty.
    Generated finish() {
        auto details = detail::sized<ember_generate_details>();
        ember_error err;
        detail::check(ember_generate_finish(get(), &details, &err), err);
        return generated(details);
    }

    /// Appends a prompt, which may be empty, and decodes until there is a reason to end. The callback gets the text while it
    /// comes. If it throws, the tokens that were made are in the context.
    Generated generate(const Tokens &prompt, const GenerateOptions &options = {}, const PieceFunction &piece = nullptr) {
        struct Context {
            const PieceFunction *piece;
            std::string text;
            detail::Guard guard;
        } context{&piece, {}, {}};
        const auto stops = detail::c_stops(options.stops);
        auto c = c_generate(prompt, options, stops);
        c.user = &context;
        c.piece = [](void *user, const char *text, std::size_t len, const ember_token *token) -> std::int32_t {
            auto &self = *static_cast<Context *>(user);
            return self.guard.run([&] {
                self.text.append(text, len);
                return !*self.piece || (*self.piece)(std::string_view(text, len), *token) ? 0 : 1;
            });
        };
        auto details = detail::sized<ember_generate_details>();
        ember_error err;
        const ember_status status = ember_generate(get(), &c, &details, &err);
        context.guard.rethrow();
        detail::check(status, err);
        Generated made = generated(details);
        made.text = std::move(context.text);
        return made;
    }

    /// The answer to a conversation, of which only what is new is read.
    Generated chat(const Model &model, const std::vector<Message> &messages, GenerateOptions options = {},
                   const PieceFunction &piece = nullptr) {
        sync(model.chat_tokenize(messages));
        options.new_text = true;
        return generate({}, options, piece);
    }

    /// The logits that the next decode will choose by, one per token id.
    std::vector<float> logits() {
        std::vector<float> out(info().vocab_size);
        ember_error err;
        detail::check(ember_session_logits(get(), out.data(), out.size(), &err), err);
        return out;
    }
    /// How probable the last decoded token was, and the most probable ones (Sampling::logprobs).
    Logprobs logprobs() {
        Logprobs out;
        out.tokens.resize(64);
        out.logprobs.resize(64);
        std::size_t count = 0;
        ember_error err;
        detail::check(ember_session_logprobs(get(), &out.chosen, out.tokens.data(), out.logprobs.data(), 64, &count, &err), err);
        out.tokens.resize(count);
        out.logprobs.resize(count);
        return out;
    }

    void set_sampling(const Sampling &sampling) {
        detail::CSampling c(sampling);
        ember_error err;
        detail::check(ember_session_set_sampling(get(), &c.c, &err), err);
    }
    /// Holds the answers to a grammar. `interrupt`: see Model::tokenize.
    void set_grammar(ember_grammar_kind kind, std::string_view text, ember_json_spacing spacing = EMBER_JSON_SPACED,
                     const std::uint32_t *interrupt = nullptr) {
        auto options = detail::sized<ember_grammar_options>();
        options.json_spacing = spacing;
        options.interrupt = interrupt;
        ember_error err;
        detail::check(ember_session_set_grammar(get(), kind, text.data(), text.size(), &options, &err), err);
    }
    void set_json_schema(std::string_view schema) { set_grammar(EMBER_GRAMMAR_JSON_SCHEMA, schema); }
    void clear_grammar() { set_grammar(EMBER_GRAMMAR_NONE, {}); }

    /// Verifies drafts of what comes next: faster, with the same tokens. 0 in max_drafts means the default.
    void draft_by_ngrams(std::uint32_t max_drafts = 0) {
        auto options = detail::sized<ember_speculation_options>();
        options.source = EMBER_DRAFTS_NGRAM;
        options.max_drafts = max_drafts;
        set_speculation(&options);
    }
    /// The same with drafts of a smaller model with the same vocabulary, which the session keeps alive.
    void draft_by_model(const Model &drafts, std::uint32_t max_drafts = 0) {
        auto options = detail::sized<ember_speculation_options>();
        options.source = EMBER_DRAFTS_MODEL;
        options.max_drafts = max_drafts;
        options.draft_model = drafts.get();
        set_speculation(&options);
    }
    /// The same with drafts of the model's own heads (ModelOptions::draft_heads).
    void draft_by_heads(std::uint32_t max_drafts = 0) {
        auto options = detail::sized<ember_speculation_options>();
        options.source = EMBER_DRAFTS_HEADS;
        options.max_drafts = max_drafts;
        set_speculation(&options);
    }
    void stop_drafting() { set_speculation(nullptr); }
    void set_speculation(const ember_speculation_options *options) {
        ember_error err;
        detail::check(ember_session_set_speculation(get(), options, &err), err);
    }
    ember_speculation_details speculation_info() {
        auto out = detail::sized<ember_speculation_details>();
        ember_error err;
        detail::check(ember_session_speculation_info(get(), &out, &err), err);
        return out;
    }

    /// Keeps the first `position` tokens.
    void rewind(std::size_t position) {
        ember_error err;
        detail::check(ember_session_rewind(get(), position, &err), err);
    }
    /// Takes tokens out of the middle of the context.
    void erase(std::size_t from, std::size_t count) {
        ember_error err;
        detail::check(ember_session_erase(get(), from, count, &err), err);
    }
    /// Uses these adapters from now on, in place of those before; what was read is evaluated again unless `keep`.
    void set_adapters(const std::vector<AdapterUse> &adapters, bool keep = false) {
        const auto c = detail::c_adapters(adapters);
        ember_error err;
        detail::check(ember_session_set_adapters(get(), c.data(), c.size(), keep ? std::uint32_t(EMBER_ADAPTERS_KEEP) : 0, &err), err);
    }
    /// Another session with the same context.
    Session fork() {
        ember_error err;
        ember_session *raw = nullptr;
        detail::check(ember_session_fork(get(), &raw, &err), err);
        return Session(raw);
    }

    /// Ends the call that is running on another thread, or the next one, with EMBER_INTERRUPTED.
    void interrupt() const {
        const ember_status status = ember_session_interrupt(get());
        if (status != EMBER_OK) throw Error(status, "");
    }
    void clear_interrupt() const {
        const ember_status status = ember_session_clear_interrupt(get());
        if (status != EMBER_OK) throw Error(status, "");
    }

    void save(std::string_view path, ember_state_kind kind = EMBER_STATE_EVERYTHING) {
        auto options = detail::sized<ember_save_options>();
        options.kind = kind;
        ember_error err;
        detail::check(ember_session_save(get(), path.data(), path.size(), &options, &err), err);
    }
    /// Takes the next bytes; false ends the saving with EMBER_CANCELLED.
    using Sink = std::function<bool(const void *bytes, std::size_t count)>;
    void save_to(const Sink &write, ember_state_kind kind = EMBER_STATE_EVERYTHING) {
        struct Context {
            const Sink *write;
            detail::Guard guard;
        } context{&write, {}};
        auto options = detail::sized<ember_save_options>();
        options.kind = kind;
        ember_error err;
        const ember_status status = ember_session_save_to(
            get(),
            [](void *user, const void *bytes, std::size_t count) -> std::int32_t {
                auto &self = *static_cast<Context *>(user);
                return self.guard.run([&] { return (*self.write)(bytes, count) ? 0 : 1; });
            },
            &context, &options, &err);
        context.guard.rethrow();
        detail::check(status, err);
    }

    /// Moves the state to host memory until it is needed.
    void evict() {
        ember_error err;
        detail::check(ember_session_evict(get(), &err), err);
    }
    void resume() {
        ember_error err;
        detail::check(ember_session_resume(get(), &err), err);
    }
    /// Where the time of a decode goes.
    std::vector<ember_profile_entry> profile() {
        std::vector<ember_profile_entry> entries(64);
        entries[0].struct_size = sizeof(ember_profile_entry);
        std::size_t count = 0;
        ember_error err;
        detail::check(ember_session_profile(get(), entries.data(), entries.size(), &count, &err), err);
        entries.resize(count);
        return entries;
    }

private:
    using Handle = detail::Handle<ember_session, ember_session_free>;
    explicit Session(ember_session *raw) noexcept : handle_(raw) {}

    static ember_generate_options c_generate(const Tokens &prompt, const GenerateOptions &options, const std::vector<ember_stop> &stops) {
        auto c = detail::sized<ember_generate_options>();
        if (options.show_special) c.flags |= EMBER_GENERATE_SHOW_SPECIAL;
        if (options.ignore_end) c.flags |= EMBER_GENERATE_IGNORE_END;
        if (options.new_text) c.flags |= EMBER_GENERATE_NEW_TEXT;
        c.prompt = prompt.data();
        c.prompt_count = prompt.size();
        c.max_tokens = options.limit;
        c.stops = stops.data();
        c.stop_count = stops.size();
        return c;
    }
    static Generated generated(const ember_generate_details &details) {
        Generated made;
        made.end = static_cast<ember_generate_end>(details.end);
        made.stop = details.stop;
        made.token = details.token;
        made.position = details.position;
        made.token_count = details.token_count;
        return made;
    }

    Handle handle_;
};

/// The next token of each session, in one pass over the weights: different sessions of one model. A session that fails has its
/// error in `status`, and the others go on.
inline std::vector<ember_token> decode_each(const std::vector<Session *> &sessions) {
    std::vector<ember_session *> raw;
    for (const Session *session : sessions) raw.push_back(session->get());
    std::vector<ember_token> tokens(raw.size() + 1, detail::sized<ember_token>());
    for (auto &token : tokens) token.id = EMBER_NO_TOKEN;
    ember_error err;
    const ember_status status = ember_decode_batch(raw.data(), raw.size(), tokens.data(), &err);
    tokens.pop_back();
    bool told = false;
    for (const auto &token : tokens) told |= token.status != EMBER_OK;
    if (!told) detail::check(status, err);
    return tokens;
}
/// The same; the first error of a session is thrown, whatever the others have decoded.
inline Tokens decode_batch(const std::vector<Session *> &sessions) {
    Tokens ids;
    for (const auto &token : decode_each(sessions)) {
        if (token.status != EMBER_OK) throw Error(token.status, "a session of the batch");
        ids.push_back(token.id);
    }
    return ids;
}
/// Starts a decode of each in one pass; Session::decode_poll has the tokens.
inline void decode_batch_start(const std::vector<Session *> &sessions) {
    std::vector<ember_session *> raw;
    for (const Session *session : sessions) raw.push_back(session->get());
    ember_error err;
    detail::check(ember_decode_batch_start(raw.data(), raw.size(), &err), err);
}

/// Turns tokens into text while they are made: whole characters only, up to a stop string.
class TextStream {
public:
    explicit TextStream(const Model &model, const std::vector<std::string> &stops = {}, bool skip_special = false) {
        const auto c_stops = detail::c_stops(stops);
        auto options = detail::sized<ember_text_stream_options>();
        if (skip_special) options.flags |= EMBER_TEXT_STREAM_SKIP_SPECIAL;
        options.stops = c_stops.data();
        options.stop_count = c_stops.size();
        ember_error err;
        ember_text_stream *raw = nullptr;
        detail::check(ember_text_stream_create(model.get(), &options, &raw, &err), err);
        handle_ = Handle(raw);
    }

    ember_text_stream *get() const noexcept { return handle_.get(); }
    void close() { handle_.close(); }

    /// Takes a token and gives the text that is certain now.
    std::string push(Token token) { return push(&token, 1); }
    std::string push(const Tokens &tokens) { return push(tokens.data(), tokens.size()); }
    /// The text that was held back; the stream is as new then.
    std::string finish() {
        return detail::filled<std::string>(64, [&](char *out, std::size_t room, std::size_t *len, ember_error *err) {
            return ember_text_stream_finish(get(), out, room, len, err);
        });
    }
    ember_text_stream_details info() const {
        auto out = detail::sized<ember_text_stream_details>();
        ember_error err;
        detail::check(ember_text_stream_info(get(), &out, &err), err);
        return out;
    }

private:
    using Handle = detail::Handle<ember_text_stream, ember_text_stream_free>;

    std::string push(const Token *tokens, std::size_t count) {
        return detail::filled<std::string>(count * 8 + 64, [&](char *out, std::size_t room, std::size_t *len, ember_error *err) {
            return ember_text_stream_push(get(), tokens, count, out, room, len, err);
        });
    }

    Handle handle_;
};

/// A LoRA adapter of a model. Any number of sessions and threads may use it at once.
class Adapter {
public:
    /// From a folder as PEFT writes it, or a GGUF file.
    Adapter(const Model &model, std::string_view path) {
        ember_error err;
        ember_adapter *raw = nullptr;
        detail::check(ember_adapter_load(model.get(), path.data(), path.size(), &raw, &err), err);
        handle_ = Handle(raw);
    }

    ember_adapter *get() const noexcept { return handle_.get(); }
    /// Frees it now. Sessions that use it go on with it.
    void close() { handle_.close(); }

    ember_adapter_details info() const {
        auto out = detail::sized<ember_adapter_details>();
        ember_error err;
        detail::check(ember_adapter_info(get(), &out, &err), err);
        return out;
    }

private:
    using Handle = detail::Handle<ember_adapter, ember_adapter_free>;
    Handle handle_;
};

inline std::vector<ember_adapter_use> detail::c_adapters(const std::vector<AdapterUse> &uses) {
    std::vector<ember_adapter_use> c;
    for (const AdapterUse &use : uses) c.push_back(ember_adapter_use{use.adapter ? use.adapter->get() : nullptr, use.scale, 0});
    return c;
}

/// How to make an embedder. The fields are those of ember_embedder_options.
struct EmbedderOptions {
    std::uint32_t pooling = EMBER_POOLING_DEFAULT, normalize = EMBER_NORMALIZE_DEFAULT;
    std::uint32_t dimension = 0, max_tokens = 0, batch_tokens = 0;
    bool truncate = false;
    std::string instruction;
    std::vector<AdapterUse> adapters;
};

/// Makes vectors or scores of texts. One thread at a time may use it.
class Embedder {
public:
    explicit Embedder(const Model &model, const EmbedderOptions &options = {}) {
        auto c = detail::sized<ember_embedder_options>();
        if (options.truncate) c.flags |= EMBER_EMBEDDER_TRUNCATE;
        c.pooling = options.pooling;
        c.normalize = options.normalize;
        c.dimension = options.dimension;
        c.max_tokens = options.max_tokens;
        c.batch_tokens = options.batch_tokens;
        c.instruction = options.instruction.data();
        c.instruction_len = options.instruction.size();
        const auto adapters = detail::c_adapters(options.adapters);
        c.adapters = adapters.data();
        c.adapter_count = adapters.size();
        ember_error err;
        ember_embedder *raw = nullptr;
        detail::check(ember_embedder_create(model.get(), &c, &raw, &err), err);
        handle_ = Handle(raw);
    }

    ember_embedder *get() const noexcept { return handle_.get(); }
    void close() { handle_.close(); }
    void interrupt() { ember_embedder_interrupt(get()); }

    ember_embedder_details info() const {
        auto out = detail::sized<ember_embedder_details>();
        ember_error err;
        detail::check(ember_embedder_info(get(), &out, &err), err);
        return out;
    }
    /// The vectors of texts, one behind the other.
    std::vector<float> embed(const std::vector<std::string> &texts) {
        const auto c = c_texts(texts);
        return result(texts.size(), [&](float *out, std::size_t room, std::size_t *written, ember_error *err) {
            return ember_embed(get(), c.data(), c.size(), out, room, written, err);
        });
    }
    std::vector<float> embed(const std::string &text) { return embed(std::vector<std::string>{text}); }
    /// The same of tokens.
    std::vector<float> embed(const std::vector<Tokens> &texts) {
        Tokens all;
        std::vector<std::size_t> counts;
        for (const Tokens &tokens : texts) {
            all.insert(all.end(), tokens.begin(), tokens.end());
            counts.push_back(tokens.size());
        }
        return result(texts.size(), [&](float *out, std::size_t room, std::size_t *written, ember_error *err) {
            return ember_embed_tokens(get(), all.data(), all.size(), counts.data(), counts.size(), out, room, written, err);
        });
    }
    /// How well each document answers a query.
    std::vector<float> rerank(std::string_view query, const std::vector<std::string> &documents) {
        const auto c = c_texts(documents);
        return result(documents.size(), [&](float *out, std::size_t room, std::size_t *written, ember_error *err) {
            return ember_rerank(get(), query.data(), query.size(), c.data(), c.size(), out, room, written, err);
        });
    }

private:
    using Handle = detail::Handle<ember_embedder, ember_embedder_free>;

    static std::vector<ember_text> c_texts(const std::vector<std::string> &texts) {
        std::vector<ember_text> c;
        for (const std::string &text : texts) c.push_back(ember_text{text.data(), text.size()});
        return c;
    }
    template <class Fill> std::vector<float> result(std::size_t count, Fill fill) {
        return detail::filled<std::vector<float>>(count * info().dimension, fill);
    }

    Handle handle_;
};

} // namespace emberlm

#endif // EMBERLM_HPP
