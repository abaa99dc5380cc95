/* What the calls are made with and compared with: random numbers, buffers with guards, and one thread's view of the handles. */
#ifndef CALLS_WORLD_H
#define CALLS_WORLD_H

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <emberlm.h>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

struct Random {
    uint64_t state;
    uint64_t next() {
        uint64_t z = (state += 0x9e3779b97f4a7c15u);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    uint64_t below(uint64_t n) { return next() % n; }
    bool chance(unsigned percent) { return below(100) < percent; }
    template <class T> const T &of(const std::vector<T> &list) { return list[below(list.size())]; }
};

/* Where the parent sees how far a child is, also when it dies. */
struct Progress {
    static constexpr int THREADS = 4, LINES = 24, FUNCTIONS = 128, STATUSES = 64;
    std::atomic<long> calls, lines, sequence;
    std::atomic<int> failed;
    /* The last calls of each thread. */
    struct Line {
        long number;
        char text[240];
    } line[THREADS][LINES];
    char failure[2048];
    std::atomic<long> counts[FUNCTIONS][STATUSES];
};

/* Planted in this program, to see that each check works. */
enum class Defect { None, Status, Output, Guard, Message, Position, Twin, Print, Leak, Crash, Hang };

struct Run {
    std::map<std::string, std::set<ember_status>> documented;
    std::vector<std::string> functions;
    std::string hamlet, tiny, other, folder, scratch;
    std::vector<std::string> bad_paths, odd_models;
    Defect defect = Defect::None;
    Progress *progress = nullptr;
    /* The file of a model, and how often models took such bytes and gave them back. */
    std::string tiny_bytes;
    std::atomic<long> borrowed, released;
};
extern Run run;

/* Tells of a failure and ends the child. */
[[noreturn]] void failed(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A model that was loaded, as far as its sessions have to know it. */
struct Model {
    ember_model *handle;
    uint32_t vocab_size, context_length;
    bool tokenizer;
    /* Not changed at random, so that calls can be predicted. */
    bool sound;
};

struct Session {
    enum Pending { Nothing, Decodes, Prefill, Generation };
    ember_session *handle;
    std::shared_ptr<Model> model;
    uint64_t context, position;
    Pending pending = Nothing;
    /* Decodes or tokens that were started. */
    uint64_t started = 0;
    bool grammar = false;
    /* An interrupt may be waiting for a call that answers it. */
    bool interrupted = false;
    /* With settings that can lead to NaN. */
    bool odd_sampling = false;
    uint32_t logprobs = 0;

    bool idle() const { return pending == Nothing; }
    bool predictable() const { return model->sound && !odd_sampling; }
};

/* What is known of a model that was just loaded. */
std::shared_ptr<Model> describe(ember_model *handle, bool sound);

/* Handles that all threads use. */
struct Commons {
    std::mutex mutex;
    std::vector<ember_session *> sessions;
    std::vector<std::shared_ptr<Model>> models;
    std::vector<ember_text_stream *> streams;
    std::vector<std::string> states;
};

/* An array with guards around it, which the library may write. */
template <class T> class Buffer {
  public:
    explicit Buffer(size_t n) : bytes_((n + 2 * GUARD) * sizeof(T), FILL), n_(n) {}
    T *data() { return reinterpret_cast<T *>(bytes_.data()) + GUARD; }
    size_t size() const { return n_; }
    bool guards_whole() const { return filled(0, GUARD) && filled(n_ + GUARD, n_ + 2 * GUARD); }
    bool untouched() const { return filled(0, n_ + 2 * GUARD); }

  private:
    static constexpr size_t GUARD = 16;
    static constexpr unsigned char FILL = 0x5c;
    bool filled(size_t from, size_t to) const {
        for (size_t i = from * sizeof(T); i < to * sizeof(T); i++)
            if (bytes_[i] != FILL) return false;
        return true;
    }
    std::vector<unsigned char> bytes_;
    size_t n_;
};

/* What a call may end with; nothing means anything that is documented. */
using Statuses = std::set<ember_status>;

class World {
  public:
    World(uint64_t seed, Commons *commons, size_t thread) : random{seed}, commons(commons), thread(thread) {}

    /* Makes calls until `limit` were made. */
    void steps(const std::atomic<long> &limit);
    void free_all();

    Random random;
    /* NULL with one thread. */
    Commons *commons;
    size_t thread;
    long n_lines = 0;
    std::vector<std::shared_ptr<Model>> models;
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<ember_text_stream *> streams;
    std::vector<ember_event *> events;
    std::vector<ember_group *> groups;
    /* An id of the last rank 0. */
    std::string group_id;
    std::vector<ember_load *> loads;
    std::vector<ember_embedder *> embedders;
    std::vector<ember_adapter *> adapters;
    std::vector<uint64_t> freed;
    /* Paths of saved sessions, and the bytes of one. */
    std::vector<std::string> states;
    std::string saved;

    /* --- making a call --- */

    /* What is checked besides the status: outputs of this call. */
    struct Output {
        std::function<bool()> whole, untouched;
        bool count;
    };
    std::vector<Output> outputs;
    /* An argument is one that no call takes. */
    bool must_fail = false;
    /* Sessions that the call is about. */
    std::vector<Session *> touched;
    ember_status last = EMBER_OK;

    void begin();
    /* Makes the call and checks all that holds for every call. */
    ember_status call(const char *name, const std::string &arguments, Statuses wanted,
                      const std::function<ember_status(ember_error *)> &make, bool has_error = true);

    /* A place for an output: mostly a good one. */
    template <class T> T *out(std::shared_ptr<Buffer<T>> &held, bool is_count = false, bool optional = false) {
        held = std::make_shared<Buffer<T>>(1);
        auto buffer = held;
        outputs.push_back({[buffer] { return buffer->guards_whole(); }, [buffer] { return buffer->untouched(); }, is_count});
        if (random.chance(3)) {
            must_fail |= !optional;
            return nullptr;
        }
        if (alignof(T) > 1 && random.chance(1)) {
            must_fail = true;
            return reinterpret_cast<T *>(reinterpret_cast<char *>(buffer->data()) + 1);
        }
        return buffer->data();
    }
    template <class T> T *array(std::shared_ptr<Buffer<T>> &held, size_t n) {
        held = std::make_shared<Buffer<T>>(n);
        auto buffer = held;
        outputs.push_back({[buffer] { return buffer->guards_whole(); }, [buffer] { return buffer->untouched(); }, false});
        if (n == 0 && random.chance(50)) return nullptr;
        if (n > 0 && random.chance(2)) {
            must_fail = true;
            return nullptr;
        }
        return buffer->data();
    }
    /* struct_size: mostly the right one. */
    template <class T> uint32_t size_of() {
        if (!random.chance(4)) return sizeof(T);
        static const uint32_t SIZES[] = {0, 1, 2, 3, 7, 1u << 31, UINT32_MAX};
        must_fail = true;
        return SIZES[random.below(7)];
    }
    /* An option struct, NULL or one with random numbers from `fill`. */
    template <class T> const T *options(T &o, const std::function<void(T &)> &fill) {
        if (random.chance(30)) return nullptr;
        memset(&o, 0, sizeof o);
        o.struct_size = size_of<T>();
        fill(o);
        return &o;
    }

    /* --- arguments --- */

    uint64_t garbage();
    template <class T> T *bad_handle(uint64_t another_kind) {
        must_fail = true;
        switch (random.below(4)) {
        case 0: return nullptr;
        case 1: return reinterpret_cast<T *>(another_kind & ~uint64_t(0) ? another_kind : garbage());
        case 2: return reinterpret_cast<T *>(freed.empty() ? garbage() : random.of(freed));
        default: return reinterpret_cast<T *>(garbage());
        }
    }
    /* A session of this thread alone, or one that others use or that is none, of which nothing is known. */
    struct SessionArgument {
        ember_session *handle;
        Session *known;
    };
    SessionArgument session();
    struct ModelArgument {
        ember_model *handle;
        std::shared_ptr<Model> known;
    };
    ModelArgument model();
    ember_text_stream *stream();
    ember_embedder *embedder();
    ember_adapter *adapter();
    uint64_t any_model_handle() { return models.empty() ? 0 : reinterpret_cast<uintptr_t>(models[0]->handle); }
    uint64_t any_session_handle() { return sessions.empty() ? 0 : reinterpret_cast<uintptr_t>(sessions[0]->handle); }
    std::vector<uint32_t> tokens(size_t n, const std::shared_ptr<Model> &model, bool *all_known);
    std::string text();
    size_t capacity(size_t usual);
    float number(float usual);
    void sampling(ember_sampling_options &o, const std::shared_ptr<Model> &model, bool *odd);

    void keep(ember_session *handle, const std::shared_ptr<Model> &model, const Session *like);
    void drop(Session *session);
    /* It was changed in a callback. */
    void forget_twin(Session *session);

    /* What random sampling options point to, until the next call. */
    std::vector<ember_logit_bias> biases;
    std::vector<uint32_t> banned, allowed, breaker_tokens;
    std::vector<ember_dry_breaker> breakers;

  private:
    void step();
    ember_session *twin = nullptr;
    Session *twin_of = nullptr;
    void make_twin();
    void compare_twin();
};

/* A function of the header and what calls it. */
struct Function {
    const char *name;
    unsigned weight;
    void (*act)(World &);
};
extern const std::vector<Function> FUNCTIONS;

void session_calls_begin(World &world);

#endif
