/* Calls with devices, models, texts and streams. */
#include "calls.h"

#include <limits>

using std::string;
using std::to_string;

namespace calls {

/* --- constants, log, devices --- */

void abi_version(World &w) {
    w.call("ember_abi_version", "", {EMBER_OK}, [](ember_error *) { return ember_abi_version() == EMBER_ABI_VERSION ? EMBER_OK : EMBER_INTERNAL; }, false);
}
void version(World &w) {
    w.call("ember_version", "", {EMBER_OK}, [](ember_error *) { return strchr(ember_version(), '.') ? EMBER_OK : EMBER_INTERNAL; }, false);
}
void version_number(World &w) {
    auto same = [](ember_error *) { return ember_version_number() == EMBER_VERSION_NUMBER ? EMBER_OK : EMBER_INTERNAL; };
    w.call("ember_version_number", "", {EMBER_OK}, same, false);
}
void status_name(World &w) {
    ember_status status = w.random.chance(50) ? ember_status(w.random.next()) : ember_status(w.random.below(50));
    w.call("ember_status_name", to_string(status), {EMBER_OK}, [&](ember_error *) {
        return strncmp(ember_status_name(status), "EMBER_", 6) ? EMBER_INTERNAL : EMBER_OK;
    }, false);
}

/* It may call the library, but not set another callback. */
static void log_line(void *user, int32_t level, const char *message, size_t len) {
    uint32_t n;
    if (user != &run || level < EMBER_LOG_ERROR || level > EMBER_LOG_DEBUG || !len || memchr(message, 0, len) || memchr(message, '\n', len))
        failed("a log message with level %d and %zu bytes", level, len);
    if (level == EMBER_LOG_ERROR) failed("logged as an error: %.*s", int(len), message);
    if (ember_set_log_callback(nullptr, nullptr, EMBER_LOG_DEBUG, nullptr) != EMBER_BUSY) failed("a log callback could set another one");
    if (ember_device_count(&n, nullptr) != EMBER_OK) failed("a log callback could not call the library");
}

void set_log_callback(World &w) {
    static const int32_t LEVELS[] = {EMBER_LOG_DEBUG, EMBER_LOG_WARN, EMBER_LOG_ERROR, EMBER_LOG_INFO, 0, 5, -1, INT32_MAX};
    int32_t level = LEVELS[w.random.below(w.random.chance(20) ? 8 : 4)];
    bool unset = w.random.chance(30);
    Statuses wanted;
    if (level >= EMBER_LOG_ERROR && level <= EMBER_LOG_DEBUG) wanted = {EMBER_OK};
    w.call("ember_set_log_callback", to_string(level), wanted, [&](ember_error *e) {
        return ember_set_log_callback(unset ? nullptr : log_line, &run, level, e);
    });
}

void device_count(World &w) {
    std::shared_ptr<Buffer<uint32_t>> count;
    auto *out = w.out(count);
    w.call("ember_device_count", "", {EMBER_OK}, [&](ember_error *e) { return ember_device_count(out, e); });
}

void device_info(World &w) {
    Buffer<ember_device_details> d(1);
    memset(d.data(), 0, sizeof(ember_device_details));
    d.data()->struct_size = w.size_of<ember_device_details>();
    uint32_t index = w.random.chance(70) ? 0 : uint32_t(w.random.next());
    w.call("ember_device_info", to_string(index), index ? Statuses{EMBER_OK, EMBER_NO_DEVICE} : Statuses{EMBER_OK},
           [&](ember_error *e) { return ember_device_info(index, d.data(), e); });
    if (!d.guards_whole()) failed("ember_device_info writes beside its struct");
}

/* --- models --- */

static int32_t progress(void *user, float fraction) {
    auto &w = *static_cast<World *>(user);
    if (!(fraction >= 0 && fraction <= 1)) failed("a load is at %f", double(fraction));
    /* It may call every function. */
    ember_token token = {};
    token.struct_size = sizeof token;
    if (!w.sessions.empty() && w.random.chance(20)) {
        Session &s = *w.sessions[0];
        if (ember_decode(s.handle, &token, nullptr) == EMBER_OK) s.position++, w.forget_twin(&s);
    }
    return w.random.chance(2) ? 1 : 0;
}

/* A context that a CPU refuses. */
static const ember_cuda_model_options CUDA = {sizeof CUDA, EMBER_CHAIN_CUDA_MODEL, nullptr, &run};
/* The last one does not exist. */
static const uint32_t CPUS[] = {0, 1, 1024};

// The first device alone, one layer each.
static const uint32_t DEVICES[17] = {};
static const uint32_t LAYERS[17] = {0, 1, 1, 7};

static const ember_model_options *model_options(World &w, ember_model_options &o, bool *converts) {
    bool wild = w.random.chance(15);
    auto *options = w.options<ember_model_options>(o, [&](ember_model_options &o) {
        o.device = wild && w.random.chance(30) ? 1000 : 0;
        o.threads = wild ? uint32_t(w.random.below(2000)) : uint32_t(1 + w.random.below(3));
        if (wild && o.threads > 8 && o.threads <= 1024) o.threads = 8;
        o.weights = uint32_t(w.random.chance(70) ? 0 : w.random.below(wild ? 8 : 5));
        if (w.random.chance(50)) o.progress = progress, o.user = &w;
        o.files = uint32_t(w.random.below(wild ? 4 : 2));
        if (wild && w.random.chance(20)) o.next = &CUDA;
        if (w.random.chance(20)) o.log_callback = log_line, o.log_user = &run, o.log_level = int32_t(1 + w.random.below(4));
        if (wild && w.random.chance(20)) o.log_level = 5;
        if (w.random.chance(20)) o.flags = wild ? uint32_t(w.random.below(8)) : uint32_t(w.random.below(4));
        if (w.random.chance(20)) o.thread_priority = wild ? int32_t(w.random.next()) : -int32_t(w.random.below(3));
        if (w.random.chance(20)) o.cpu_expert_layers = uint32_t(w.random.next());
        /* Of a CPU, which has no share of each layer. */
        if (!w.groups.empty() && w.random.chance(5)) o.group = w.random.of(w.groups);
        if (w.random.chance(20)) o.cpus = CPUS, o.cpu_count = wild ? 3 : 2;
        if (w.random.chance(15)) {
            o.devices = DEVICES, o.device_count = 1 + w.random.below(wild ? 17 : 3);
            if (!wild || w.random.chance(70)) o.device_layers = LAYERS;
            if (wild && w.random.chance(20)) o.split = uint32_t(w.random.below(3));
        }
    });
    *converts = options && o.weights;
    return options;
}

static string model_path(World &w, bool *sound, bool *bad) {
    *sound = true, *bad = false;
    uint64_t n = w.random.below(20);
    if (n == 0) return run.hamlet;
    if (n < 8) return run.tiny;
    if (n < 11) return run.other;
    if (n < 14) return run.folder;
    *sound = false;
    if (n < 17) return w.random.of(run.odd_models);
    *bad = true;
    return w.random.of(run.bad_paths);
}

void load_model(World &w) {
    if (w.models.size() > 2) return;
    bool sound, bad, converts;
    string path = model_path(w, &sound, &bad);
    ember_model_options o;
    auto *options = model_options(w, o, &converts);
    if (bad) w.must_fail = true;
    std::shared_ptr<Buffer<ember_model *>> out;
    auto *place = w.out(out);
    if (w.call("ember_model_load", path, options || !sound ? Statuses{} : Statuses{EMBER_OK}, [&](ember_error *e) {
            return ember_model_load(path.data(), path.size(), options, place, e);
        }) != EMBER_OK)
        return;
    w.models.push_back(describe(*out->data(), sound));
}

/* --- loads and events --- */

static const ember_event *event_of(World &w) {
    if (w.random.chance(6)) return w.bad_handle<ember_event>(w.any_model_handle());
    return w.events.empty() ? nullptr : w.random.of(w.events);
}

void create_event(World &w) {
    if (w.events.size() > 5) return;
    std::shared_ptr<Buffer<ember_event *>> out;
    auto *place = w.out(out);
    if (w.call("ember_event_create", "", {EMBER_OK}, [&](ember_error *e) { return ember_event_create(place, e); }) == EMBER_OK)
        w.events.push_back(*out->data());
}

void event_handle(World &w) {
    auto *event = event_of(w);
    if (!event) w.must_fail = true;
    std::shared_ptr<Buffer<int64_t>> out;
    auto *place = w.out(out);
    if (w.call("ember_event_handle", "", {EMBER_OK}, [&](ember_error *e) { return ember_event_handle(event, place, e); }) == EMBER_OK && *place < 0)
        failed("an event has the handle %lld", (long long)*place);
}

void clear_event(World &w) {
    auto *event = event_of(w);
    if (!event) w.must_fail = true;
    w.call("ember_event_clear", "", {EMBER_OK}, [&](ember_error *e) { return ember_event_clear(event, e); });
}

void free_event(World &w) {
    bool own = w.events.size() > 2;
    size_t i = own ? w.random.below(w.events.size()) : 0;
    ember_event *event = own ? w.events[i] : w.bad_handle<ember_event>(w.any_session_handle());
    if (!own && !event) w.must_fail = false;
    if (w.call("ember_event_free", "", {EMBER_OK}, [&](ember_error *) { return ember_event_free(event); }, false) == EMBER_OK && own) {
        w.freed.push_back(uintptr_t(event));
        w.events.erase(w.events.begin() + long(i));
    }
}

/* --- groups --- */

static ember_group *group_of(World &w) {
    if (w.groups.empty() || w.random.chance(10)) return w.bad_handle<ember_group>(w.any_session_handle());
    return w.random.of(w.groups);
}

void create_group(World &w) {
    if (w.groups.size() > 5) return;
    static const char *ADDRESSES[] = {"127.0.0.1", "127.0.0.1:0", "0.0.0.0", "nowhere", "", "300.1.1.1", "\xff\xfe"};
    ember_group_options o;
    const char *address = w.random.of(std::vector<const char *>(ADDRESSES, ADDRESSES + 7));
    const string id = w.random.chance(80) ? w.group_id : w.random.chance(50) ? "emberlm-1/2/00/127.0.0.1:1" : string(40, char(w.random.next()));
    auto *options = w.options<ember_group_options>(o, [&](ember_group_options &o) {
        o.rank = uint32_t(w.random.below(3)), o.rank_count = uint32_t(w.random.chance(80) ? 2 : w.random.below(12));
        if (w.random.chance(30)) o.timeout_ms = uint32_t(w.random.next());
        if (w.random.chance(o.rank ? 10 : 40)) o.address = address, o.address_len = strlen(address);
        if (w.random.chance(o.rank ? 90 : 10)) o.id = id.data(), o.id_len = id.size();
    });
    /* Without a number of ranks there is no group. */
    if (!options) w.must_fail = true;
    std::shared_ptr<Buffer<ember_group *>> out;
    auto *place = w.out(out);
    if (w.call("ember_group_create", "", {}, [&](ember_error *e) { return ember_group_create(options, place, e); }) != EMBER_OK) return;
    w.groups.push_back(*place);
    char text[128];
    size_t len = 0;
    if (ember_group_id(*place, text, sizeof text, &len, nullptr) || !len) failed("a group has no id");
    w.group_id.assign(text, len);
}

void group_id(World &w) {
    auto *group = group_of(w);
    std::shared_ptr<Buffer<char>> text;
    std::shared_ptr<Buffer<size_t>> count;
    size_t n = w.random.below(200);
    auto *place = w.array(text, n);
    auto *len = w.out(count, true);
    auto status = w.call("ember_group_id", "", {}, [&](ember_error *e) { return ember_group_id(group, place, n, len, e); });
    if (status == EMBER_BUFFER_TOO_SMALL && *len <= n) failed("an id of %zu bytes does not fit into %zu", *len, n);
}

void free_group(World &w) {
    bool own = w.groups.size() > 2;
    size_t i = own ? w.random.below(w.groups.size()) : 0;
    ember_group *group = own ? w.groups[i] : w.bad_handle<ember_group>(w.any_session_handle());
    if (!own && !group) w.must_fail = false;
    if (w.call("ember_group_free", "", {EMBER_OK}, [&](ember_error *) { return ember_group_free(group); }, false) == EMBER_OK && own) {
        w.freed.push_back(uintptr_t(group));
        w.groups.erase(w.groups.begin() + long(i));
    }
}

void set_event(World &w) {
    auto s = w.session();
    bool must_fail = w.must_fail;
    const ember_event *event = w.random.chance(20) ? nullptr : event_of(w);
    if (!event) w.must_fail = must_fail;
    w.call("ember_session_set_event", "", {}, [&](ember_error *e) { return ember_session_set_event(s.handle, event, e); });
}

void session_model(World &w) {
    if (w.models.size() > 3) return;
    auto s = w.session();
    std::shared_ptr<Buffer<ember_model *>> out;
    auto *place = w.out(out);
    if (w.call("ember_session_model", "", s.known ? Statuses{EMBER_OK} : Statuses{}, [&](ember_error *e) {
            return ember_session_model(s.handle, place, e);
        }) != EMBER_OK)
        return;
    if (s.known) w.models.push_back(describe(*place, s.known->model->sound));
    else if (ember_model_free(*place)) failed("a session's model cannot be freed");
}

void start_load(World &w) {
    if (w.loads.size() > 2) return;
    bool sound, bad, converts;
    string path = model_path(w, &sound, &bad);
    ember_model_options o;
    auto *options = model_options(w, o, &converts);
    if (options && o.progress && w.random.chance(80)) o.progress = nullptr;
    if (options && o.progress) w.must_fail = true;
    bool must_fail = w.must_fail;
    auto *event = event_of(w);
    if (!event) w.must_fail = must_fail;
    std::shared_ptr<Buffer<ember_load *>> out;
    auto *place = w.out(out);
    if (w.call("ember_model_load_start", path, {}, [&](ember_error *e) {
            return ember_model_load_start(path.data(), path.size(), options, event, place, e);
        }) == EMBER_OK)
        w.loads.push_back(*place);
}

static ember_load *load_of(World &w) {
    if (w.loads.empty() || w.random.chance(6)) return w.bad_handle<ember_load>(w.any_model_handle());
    return w.random.of(w.loads);
}

void poll_load(World &w) {
    auto *load = load_of(w);
    std::shared_ptr<Buffer<float>> fraction;
    std::shared_ptr<Buffer<ember_model *>> out;
    auto *share = w.out(fraction, false, true);
    auto *place = w.out(out);
    ember_status status = w.call("ember_load_poll", "", {}, [&](ember_error *e) { return ember_load_poll(load, share, place, e); });
    if ((status == EMBER_OK || status == EMBER_PENDING) && share && !(*share >= 0 && *share <= 1)) failed("a load is at %f", double(*share));
    if (status == EMBER_OK && ember_model_free(*place)) failed("a model that was loaded cannot be freed");
}

void cancel_load(World &w) {
    auto *load = load_of(w);
    w.call("ember_load_cancel", "", {EMBER_OK}, [&](ember_error *) { return ember_load_cancel(load); }, false);
}

void free_load(World &w) {
    bool own = !w.loads.empty() && w.random.chance(80);
    size_t i = own ? w.random.below(w.loads.size()) : 0;
    ember_load *load = own ? w.loads[i] : w.bad_handle<ember_load>(w.any_session_handle());
    if (!own && !load) w.must_fail = false;
    if (w.call("ember_load_free", "", {EMBER_OK}, [&](ember_error *) { return ember_load_free(load); }, false) == EMBER_OK && own) {
        w.freed.push_back(uintptr_t(load));
        w.loads.erase(w.loads.begin() + long(i));
    }
}

static void release(void *user, const void *bytes, uint64_t size) {
    if (user != &run || bytes != run.tiny_bytes.data() || size != run.tiny_bytes.size()) failed("other bytes are released than were borrowed");
    run.released++;
}

/* Several threads call it at once, so it draws from nothing that they share. */
struct Reader {
    const string *bytes;
    bool breaks;
    uint64_t seed;
};

static int32_t read_at(void *user, uint64_t offset, void *bytes, size_t count) {
    auto &r = *static_cast<Reader *>(user);
    uint32_t n;
    if (offset > r.bytes->size() || count > r.bytes->size() - offset) failed("%zu bytes are read at %llu", count, (unsigned long long)offset);
    if (ember_device_count(&n, nullptr) != EMBER_OK) failed("a reader could not call the library");
    memcpy(bytes, r.bytes->data() + offset, count);
    return r.breaks && Random{r.seed + offset}.chance(10) ? -1 : 0;
}

void load_model_from(World &w) {
    if (w.models.size() > 2) return;
    bool converts, sound = true;
    ember_model_options o;
    auto *options = model_options(w, o, &converts);
    string bytes = run.tiny_bytes;
    bool borrows = w.random.chance(40), reads = !borrows && w.random.chance(50);
    if (!borrows && w.random.chance(30)) {
        sound = false;
        if (w.random.chance(50)) bytes.resize(w.random.below(bytes.size()));
        else bytes[24 + w.random.below(3000)] ^= char(1 << w.random.below(8));
    }
    Reader reader{&bytes, w.random.chance(20), w.random.next()};
    ember_model_source source = {};
    source.struct_size = w.size_of<ember_model_source>();
    source.size = bytes.size();
    source.bytes = reads ? nullptr : borrows ? run.tiny_bytes.data() : bytes.data();
    if (reads) source.read = read_at, source.user = &reader;
    if (borrows) source.flags = EMBER_SOURCE_BORROW, source.release = release, source.user = &run;
    if (w.random.chance(5)) source.flags ^= uint32_t(1 + w.random.below(3)), borrows = false;
    if (w.random.chance(2)) source.read = read_at, source.bytes = bytes.data(), source.user = &reader, w.must_fail = true;
    /* Flags that do not fit the rest: nothing may be borrowed that is not kept. */
    if ((source.flags & EMBER_SOURCE_BORROW) && !borrows) source.bytes = nullptr, source.read = nullptr, w.must_fail = true;
    if (source.release && !borrows) w.must_fail = true;
    std::shared_ptr<Buffer<ember_model *>> out;
    auto *place = w.out(out);
    bool good = sound && !options && !(reads && reader.breaks) && source.flags <= 1;
    if (w.call("ember_model_load_from", to_string(source.flags) + ", " + to_string(source.size), good ? Statuses{EMBER_OK} : Statuses{}, [&](ember_error *e) {
            return ember_model_load_from(&source, options, place, e);
        }) != EMBER_OK)
        return;
    if (borrows) run.borrowed++;
    w.models.push_back(describe(*out->data(), sound));
}

void metadata(World &w) {
    static const char *const KEYS[] = {"general.architecture", "general.name", "llama.context_length", "tokenizer.ggml.tokens", "no.such.key", "", "\xff"};
    auto m = w.model();
    const char *key = KEYS[w.random.below(7)];
    size_t n = w.capacity(400);
    std::shared_ptr<Buffer<char>> text;
    std::shared_ptr<Buffer<size_t>> count;
    auto *bytes = w.array(text, n);
    auto *k = w.out(count, true);
    w.call("ember_model_metadata", string(key) + ", " + to_string(n), {}, [&](ember_error *e) {
        return ember_model_metadata(m.handle, key, strlen(key), bytes, n, k, e);
    });
}

void metadata_key(World &w) {
    auto m = w.model();
    size_t index = w.random.chance(20) ? size_t(w.random.next()) >> w.random.below(64) : w.random.below(12), n = w.capacity(100);
    std::shared_ptr<Buffer<char>> text;
    std::shared_ptr<Buffer<size_t>> count;
    auto *bytes = w.array(text, n);
    auto *k = w.out(count, true);
    w.call("ember_model_metadata_key", to_string(index) + ", " + to_string(n), {}, [&](ember_error *e) {
        return ember_model_metadata_key(m.handle, index, bytes, n, k, e);
    });
}

void tokenizer_info(World &w) {
    auto m = w.model();
    Buffer<ember_tokenizer_details> d(1);
    memset(d.data(), 0, sizeof(ember_tokenizer_details));
    d.data()->struct_size = w.size_of<ember_tokenizer_details>();
    w.call("ember_tokenizer_info", "", {}, [&](ember_error *e) { return ember_tokenizer_info(m.handle, d.data(), e); });
    if (!d.guards_whole()) failed("ember_tokenizer_info writes beside its struct");
}

void end_tokens(World &w) {
    auto m = w.model();
    size_t n = w.capacity(8);
    std::shared_ptr<Buffer<uint32_t>> tokens;
    std::shared_ptr<Buffer<size_t>> count;
    auto *list = w.array(tokens, n);
    auto *k = w.out(count, true);
    w.call("ember_end_tokens", to_string(n), {}, [&](ember_error *e) { return ember_end_tokens(m.handle, list, n, k, e); });
}

void supported(World &w) {
    uint32_t what = w.random.chance(50) ? uint32_t(w.random.next()) : uint32_t(w.random.below(60));
    w.call("ember_supported", to_string(what), {EMBER_OK}, [&](ember_error *) {
        return ember_supported(what) <= 1 && ember_supported(EMBER_CAN_GGUF) == 1 ? EMBER_OK : EMBER_INTERNAL;
    }, false);
}

void model_info(World &w) {
    auto m = w.model();
    Buffer<ember_model_details> d(1);
    memset(d.data(), 0, sizeof(ember_model_details));
    d.data()->struct_size = w.size_of<ember_model_details>();
    w.call("ember_model_info", "", w.commons ? Statuses{} : Statuses{EMBER_OK}, [&](ember_error *e) { return ember_model_info(m.handle, d.data(), e); });
    if (!d.guards_whole()) failed("ember_model_info writes beside its struct");
}

void model_part_info(World &w) {
    auto m = w.model();
    Buffer<ember_part_details> d(1);
    memset(d.data(), 0, sizeof(ember_part_details));
    d.data()->struct_size = w.size_of<ember_part_details>();
    size_t index = w.random.chance(80) ? 0 : size_t(w.random.below(w.random.chance(50) ? 4 : UINT64_MAX));
    Statuses wanted = w.commons ? Statuses{} : index ? Statuses{EMBER_OK, EMBER_INVALID_ARGUMENT} : Statuses{EMBER_OK};
    w.call("ember_model_part_info", to_string(index), wanted, [&](ember_error *e) { return ember_model_part_info(m.handle, index, d.data(), e); });
    if (!d.guards_whole()) failed("ember_model_part_info writes beside its struct");
}

void free_model(World &w) {
    size_t i = 0;
    ember_model *handle;
    bool own = w.models.size() > 1 && w.random.chance(60);
    if (own) {
        i = w.random.below(w.models.size());
        handle = w.models[i]->handle;
    } else {
        handle = w.bad_handle<ember_model>(w.any_session_handle());
        if (!handle) w.must_fail = false;
    }
    if (w.call("ember_model_free", "", {EMBER_OK}, [&](ember_error *) { return ember_model_free(handle); }, false) == EMBER_OK && own) {
        w.freed.push_back(uintptr_t(handle));
        w.models.erase(w.models.begin() + long(i));
    }
}

void estimate(World &w) {
    bool sound, bad, converts;
    string path = model_path(w, &sound, &bad);
    ember_model_options o;
    auto *options = model_options(w, o, &converts);
    if (bad) w.must_fail = true;
    ember_session_options s;
    auto *session_options = w.options<ember_session_options>(s, [&](ember_session_options &s) {
        s.context = uint32_t(w.random.below(w.random.chance(20) ? UINT32_MAX : 64));
        s.kv_type = uint32_t(w.random.below(5));
    });
    Buffer<ember_estimate> d(1);
    memset(d.data(), 0, sizeof(ember_estimate));
    d.data()->struct_size = w.size_of<ember_estimate>();
    if (w.random.chance(50)) {
        w.call("ember_model_estimate", path, {}, [&](ember_error *e) {
            return ember_model_estimate(path.data(), path.size(), options, session_options, d.data(), e);
        });
    } else {
        size_t part = size_t(w.random.below(w.random.chance(90) ? 3 : UINT64_MAX));
        w.call("ember_model_estimate_part", path, {}, [&](ember_error *e) {
            return ember_model_estimate_part(path.data(), path.size(), options, session_options, part, d.data(), e);
        });
    }
    if (!d.guards_whole()) failed("an estimate writes beside its struct");
}

void evict_model(World &w) {
    auto m = w.model();
    w.call("ember_model_evict", "", {}, [&](ember_error *e) { return ember_model_evict(m.handle, e); });
}
void resume_model(World &w) {
    auto m = w.model();
    w.call("ember_model_resume", "", {}, [&](ember_error *e) { return ember_model_resume(m.handle, e); });
}

/* --- texts --- */

void tokenize(World &w) {
    auto m = w.model();
    string text = w.text();
    uint32_t flags = uint32_t(w.random.below(w.random.chance(10) ? 16 : 4));
    size_t n = w.capacity(text.size() + 8);
    std::shared_ptr<Buffer<uint32_t>> tokens;
    std::shared_ptr<Buffer<size_t>> count;
    auto *list = w.array(tokens, n);
    auto *k = w.out(count, true);
    ember_status status = w.call("ember_tokenize", to_string(text.size()) + ", " + to_string(flags) + ", " + to_string(n), {}, [&](ember_error *e) {
        return ember_tokenize(m.handle, text.data(), text.size(), flags, list, n, k, e);
    });
    if (status == EMBER_OK && *k > n) failed("%zu tokens in a buffer of %zu", *k, n);
    if (status == EMBER_BUFFER_TOO_SMALL && *k <= n) failed("%zu tokens do not fit into a buffer of %zu", *k, n);
}

void tokenize_with(World &w) {
    auto m = w.model();
    string text = w.text();
    uint32_t stop = w.random.chance(30);
    ember_tokenize_options o;
    auto *options = w.options<ember_tokenize_options>(o, [&](ember_tokenize_options &o) {
        o.flags = uint32_t(w.random.below(w.random.chance(10) ? 16 : 4));
        if (w.random.chance(50)) o.interrupt = &stop;
    });
    size_t n = w.capacity(text.size() + 8);
    std::shared_ptr<Buffer<uint32_t>> tokens;
    std::shared_ptr<Buffer<size_t>> count;
    auto *list = w.array(tokens, n);
    auto *k = w.out(count, true);
    w.call("ember_tokenize_with", to_string(text.size()), {}, [&](ember_error *e) {
        return ember_tokenize_with(m.handle, text.data(), text.size(), options, list, n, k, e);
    });
}

void detokenize(World &w) {
    auto m = w.model();
    bool known;
    auto ids = w.tokens(w.random.below(20), m.known, &known);
    uint32_t flags = uint32_t(w.random.below(w.random.chance(10) ? 16 : 4));
    size_t n = w.capacity(500);
    std::shared_ptr<Buffer<char>> text;
    std::shared_ptr<Buffer<size_t>> count;
    auto *bytes = w.array(text, n);
    auto *k = w.out(count, true);
    if (m.known && !known) w.must_fail = true;
    w.call("ember_detokenize", to_string(ids.size()) + ", " + to_string(n), {}, [&](ember_error *e) {
        return ember_detokenize(m.handle, ids.data(), ids.size(), flags, bytes, n, k, e);
    });
}

void token_text(World &w) {
    auto m = w.model();
    bool known;
    auto ids = w.tokens(1, m.known, &known);
    size_t n = w.capacity(64);
    std::shared_ptr<Buffer<char>> text;
    std::shared_ptr<Buffer<size_t>> count;
    auto *bytes = w.array(text, n);
    auto *k = w.out(count, true);
    if (m.known && !known) w.must_fail = true;
    w.call("ember_token_text", to_string(ids[0]) + ", " + to_string(n), {}, [&](ember_error *e) {
        return ember_token_text(m.handle, ids[0], bytes, n, k, e);
    });
}

void token_is_end(World &w) {
    auto m = w.model();
    bool known;
    auto ids = w.tokens(1, m.known, &known);
    std::shared_ptr<Buffer<uint32_t>> end;
    auto *out = w.out(end);
    if (m.known && !known) w.must_fail = true;
    w.call("ember_token_is_end", to_string(ids[0]), {}, [&](ember_error *e) { return ember_token_is_end(m.handle, ids[0], out, e); });
}

void create_stream(World &w) {
    static const char *const TEXTS[] = {"the", "\n", ".", "stop", "", "\xff"};
    if (w.streams.size() > 6) return;
    auto m = w.model();
    std::vector<ember_stop> stops;
    string huge(5000, 'a');
    ember_text_stream_options o;
    auto *options = w.options<ember_text_stream_options>(o, [&](ember_text_stream_options &o) {
        o.flags = uint32_t(w.random.below(w.random.chance(10) ? 8 : 2));
        size_t n = w.random.chance(3) ? 300 : w.random.below(4);
        for (; n > 0; n--) {
            const char *text = w.random.chance(1) ? huge.c_str() : TEXTS[w.random.below(w.random.chance(5) ? 6 : 4)];
            stops.push_back({text, strlen(text)});
        }
        o.stops = stops.data();
        o.stop_count = stops.size();
    });
    std::shared_ptr<Buffer<ember_text_stream *>> out;
    auto *place = w.out(out);
    if (w.call("ember_text_stream_create", to_string(stops.size()), {}, [&](ember_error *e) {
            return ember_text_stream_create(m.handle, options, place, e);
        }) == EMBER_OK) {
        if (w.commons && w.random.chance(30)) {
            std::lock_guard lock(w.commons->mutex);
            if (w.commons->streams.size() < 4) {
                w.commons->streams.push_back(*out->data());
                return;
            }
        }
        w.streams.push_back(*out->data());
    }
}

void push(World &w) {
    auto *s = w.stream();
    bool known;
    auto ids = w.tokens(w.random.below(12), nullptr, &known);
    size_t n = w.capacity(200);
    std::shared_ptr<Buffer<char>> text;
    std::shared_ptr<Buffer<size_t>> count;
    auto *bytes = w.array(text, n);
    auto *k = w.out(count, true);
    ember_text_stream_details before = {}, after = {};
    before.struct_size = after.struct_size = sizeof before;
    bool told = !w.commons && !w.must_fail && ember_text_stream_info(s, &before, nullptr) == EMBER_OK;
    ember_status status = w.call("ember_text_stream_push", to_string(ids.size()) + ", " + to_string(n), {}, [&](ember_error *e) {
        return ember_text_stream_push(s, ids.data(), ids.size(), bytes, n, k, e);
    });
    if (told && ember_text_stream_info(s, &after, nullptr) == EMBER_OK) {
        uint64_t taken = after.token_count - before.token_count;
        if (status == EMBER_OK ? taken != ids.size() && !after.stopped : taken != 0)
            failed("a stream took %llu tokens of %zu, with %s", (unsigned long long)taken, ids.size(), ember_status_name(status));
    }
}

void finish(World &w) {
    auto *s = w.stream();
    size_t n = w.capacity(200);
    std::shared_ptr<Buffer<char>> text;
    std::shared_ptr<Buffer<size_t>> count;
    auto *bytes = w.array(text, n);
    auto *k = w.out(count, true);
    w.call("ember_text_stream_finish", to_string(n), {}, [&](ember_error *e) { return ember_text_stream_finish(s, bytes, n, k, e); });
}

void stream_info(World &w) {
    auto *s = w.stream();
    Buffer<ember_text_stream_details> d(1);
    memset(d.data(), 0, sizeof(ember_text_stream_details));
    d.data()->struct_size = w.size_of<ember_text_stream_details>();
    w.call("ember_text_stream_info", "", {}, [&](ember_error *e) { return ember_text_stream_info(s, d.data(), e); });
    if (!d.guards_whole()) failed("ember_text_stream_info writes beside its struct");
}

void free_stream(World &w) {
    bool own = w.streams.size() > 2;
    size_t i = own ? w.random.below(w.streams.size()) : 0;
    ember_text_stream *s = own ? w.streams[i] : w.bad_handle<ember_text_stream>(w.any_model_handle());
    if (!own && !s) w.must_fail = false;
    if (w.call("ember_text_stream_free", "", {EMBER_OK}, [&](ember_error *) { return ember_text_stream_free(s); }, false) == EMBER_OK && own) {
        w.freed.push_back(uintptr_t(s));
        w.streams.erase(w.streams.begin() + long(i));
    }
}

/* --- adapters --- */

void load_adapter(World &w) {
    if (w.adapters.size() > 4) return;
    auto m = w.model();
    static const char *const FILES[] = {"hamlet.gguf", "hamlet.gguf", "hamlet.gguf", "mistral_small/adapter.gguf", "mistral", "qwen2", "none", ""};
    size_t slash = run.hamlet.rfind('/');
    string path = run.hamlet.substr(0, slash == string::npos ? 0 : slash + 1) + "../tests/data/adapters/" + FILES[w.random.below(8)];
    if (w.random.chance(5)) path = w.random.of(run.bad_paths);
    std::shared_ptr<Buffer<ember_adapter *>> out;
    auto *place = w.out(out);
    if (w.call("ember_adapter_load", path, {}, [&](ember_error *e) { return ember_adapter_load(m.handle, path.data(), path.size(), place, e); }) ==
        EMBER_OK)
        w.adapters.push_back(*out->data());
}

void adapter_info(World &w) {
    auto *a = w.adapter();
    Buffer<ember_adapter_details> d(1);
    memset(d.data(), 0, sizeof(ember_adapter_details));
    d.data()->struct_size = w.size_of<ember_adapter_details>();
    w.call("ember_adapter_info", "", {}, [&](ember_error *err) { return ember_adapter_info(a, d.data(), err); });
    if (!d.guards_whole()) failed("ember_adapter_info writes beside its struct");
}

static std::vector<ember_adapter_use> random_adapters(World &w) {
    std::vector<ember_adapter_use> uses(w.random.chance(5) ? w.random.below(40) : w.random.below(3));
    for (auto &use : uses) {
        use.adapter = w.adapter();
        use.scale = w.random.chance(10) ? std::numeric_limits<float>::quiet_NaN() : float(w.random.below(5)) * 0.5f - 1;
        use.reserved = w.random.chance(3);
    }
    return uses;
}

void set_adapters(World &w) {
    auto s = w.session();
    auto uses = random_adapters(w);
    uint32_t flags = uint32_t(w.random.below(w.random.chance(5) ? 4 : 2));
    w.call("ember_session_set_adapters", to_string(uses.size()) + ", " + to_string(flags), {}, [&](ember_error *e) {
        return ember_session_set_adapters(s.handle, uses.data(), uses.size(), flags, e);
    });
}

void free_adapter(World &w) {
    bool own = w.adapters.size() > 1;
    size_t i = own ? w.random.below(w.adapters.size()) : 0;
    ember_adapter *a = own ? w.adapters[i] : w.bad_handle<ember_adapter>(w.any_model_handle());
    if (!own && !a) w.must_fail = false;
    if (w.call("ember_adapter_free", "", {EMBER_OK}, [&](ember_error *) { return ember_adapter_free(a); }, false) == EMBER_OK && own) {
        w.freed.push_back(uintptr_t(a));
        w.adapters.erase(w.adapters.begin() + long(i));
    }
}

/* --- vectors of texts --- */

void create_embedder(World &w) {
    if (w.embedders.size() > 3) return;
    auto m = w.model();
    ember_embedder_options o;
    std::vector<ember_adapter_use> uses;
    auto *options = w.options<ember_embedder_options>(o, [&](ember_embedder_options &o) {
        o.flags = uint32_t(w.random.below(w.random.chance(5) ? 8 : 2));
        o.pooling = uint32_t(w.random.below(w.random.chance(5) ? 9 : 6));
        o.normalize = uint32_t(w.random.below(w.random.chance(5) ? 9 : 3));
        if (w.random.chance(20)) o.dimension = uint32_t(w.random.below(80));
        if (w.random.chance(30)) o.max_tokens = uint32_t(w.random.below(100));
        if (w.random.chance(30)) o.batch_tokens = uint32_t(w.random.below(200));
        if (w.random.chance(5)) o.instruction = "\xff", o.instruction_len = 1;
        if (w.random.chance(40)) uses = random_adapters(w);
        o.adapters = uses.data();
        o.adapter_count = uses.size();
    });
    std::shared_ptr<Buffer<ember_embedder *>> out;
    auto *place = w.out(out);
    if (w.call("ember_embedder_create", "", {}, [&](ember_error *e) { return ember_embedder_create(m.handle, options, place, e); }) == EMBER_OK)
        w.embedders.push_back(*out->data());
}

void embedder_info(World &w) {
    auto *e = w.embedder();
    Buffer<ember_embedder_details> d(1);
    memset(d.data(), 0, sizeof(ember_embedder_details));
    d.data()->struct_size = w.size_of<ember_embedder_details>();
    w.call("ember_embedder_info", "", {}, [&](ember_error *err) { return ember_embedder_info(e, d.data(), err); });
    if (!d.guards_whole()) failed("ember_embedder_info writes beside its struct");
}

static const char *const EMBEDDED[] = {"Once upon a time", "a", "the king and the queen of the country", "", "\xff"};

static std::vector<ember_text> some_texts(World &w) {
    std::vector<ember_text> texts;
    for (size_t n = w.random.below(5); n > 0; n--) {
        const char *text = EMBEDDED[w.random.below(w.random.chance(5) ? 5 : 3)];
        texts.push_back({text, strlen(text)});
    }
    return texts;
}

void embed(World &w) {
    auto *e = w.embedder();
    auto texts = some_texts(w);
    size_t n = w.capacity(4000);
    std::shared_ptr<Buffer<float>> out;
    std::shared_ptr<Buffer<size_t>> written;
    auto *floats = w.array(out, n);
    auto *k = w.out(written, true);
    w.call("ember_embed", to_string(texts.size()) + ", " + to_string(n), {}, [&](ember_error *err) {
        return ember_embed(e, texts.data(), texts.size(), floats, n, k, err);
    });
}

void embed_tokens(World &w) {
    auto *e = w.embedder();
    bool known;
    auto ids = w.tokens(w.random.below(30), nullptr, &known);
    std::vector<size_t> counts;
    for (size_t left = ids.size(); left > 0;) {
        counts.push_back(w.random.chance(3) ? w.random.below(40) : 1 + w.random.below(left));
        left -= std::min(left, counts.back());
    }
    size_t n = w.capacity(4000);
    std::shared_ptr<Buffer<float>> out;
    std::shared_ptr<Buffer<size_t>> written;
    auto *floats = w.array(out, n);
    auto *k = w.out(written, true);
    w.call("ember_embed_tokens", to_string(ids.size()) + ", " + to_string(counts.size()), {}, [&](ember_error *err) {
        return ember_embed_tokens(e, ids.data(), ids.size(), counts.data(), counts.size(), floats, n, k, err);
    });
}

void rerank(World &w) {
    auto *e = w.embedder();
    auto texts = some_texts(w);
    const char *query = EMBEDDED[w.random.below(w.random.chance(5) ? 5 : 3)];
    size_t n = w.capacity(8);
    std::shared_ptr<Buffer<float>> out;
    std::shared_ptr<Buffer<size_t>> written;
    auto *floats = w.array(out, n);
    auto *k = w.out(written, true);
    w.call("ember_rerank", to_string(texts.size()), {}, [&](ember_error *err) {
        return ember_rerank(e, query, strlen(query), texts.data(), texts.size(), floats, n, k, err);
    });
}

void interrupt_embedder(World &w) {
    auto *e = w.embedder();
    w.call("ember_embedder_interrupt", "", {}, [&](ember_error *) { return ember_embedder_interrupt(e); }, false);
}

void free_embedder(World &w) {
    bool own = w.embedders.size() > 1;
    size_t i = own ? w.random.below(w.embedders.size()) : 0;
    ember_embedder *e = own ? w.embedders[i] : w.bad_handle<ember_embedder>(w.any_model_handle());
    if (!own && !e) w.must_fail = false;
    if (w.call("ember_embedder_free", "", {EMBER_OK}, [&](ember_error *) { return ember_embedder_free(e); }, false) == EMBER_OK && own) {
        w.freed.push_back(uintptr_t(e));
        w.embedders.erase(w.embedders.begin() + long(i));
    }
}

/* --- chats --- */

static string conversation(World &w) {
    static const char *const TEXTS[] = {
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi <|end|>\"}],\"add_generation_prompt\":true}",
        "{\"messages\":[{\"role\":\"system\",\"content\":\"Be kind.\"},{\"role\":\"user\",\"content\":\"\xc3\xa9\"}]}",
        "{\"messages\":[]}", "{}", "[]", "{", "", "{\"messages\":[{\"role\":7,\"content\":null}]}", "\xff",
    };
    return TEXTS[w.random.below(w.random.chance(40) ? 9 : 2)];
}

static const ember_chat_options *chat_options(World &w, ember_chat_options &o, uint32_t *stop) {
    static const char *const SOURCES[] = {"{{ messages[0].content }}", "{% for m in messages %}{{ m.role }}{% endfor %}", "{{ raise_exception('no') }}",
                                          "{% for i in range(100000) %}{{ i }}{% endfor %}", "{% if", "\xff", "{{ strftime_now('%d') }}"};
    return w.options<ember_chat_options>(o, [&](ember_chat_options &o) {
        if (w.random.chance(50)) {
            o.source = SOURCES[w.random.below(7)];
            o.source_len = strlen(o.source);
        }
        if (w.random.chance(10)) o.name = "tool_use", o.name_len = 8;
        if (w.random.chance(3)) o.reserved = 1;
        if (w.random.chance(3)) o.reserved2 = 1;
        if (w.random.chance(10)) o.now = int64_t(w.random.next());
        if (w.random.chance(20)) o.interrupt = stop;
    });
}

void chat_format(World &w) {
    auto m = w.model();
    string json = conversation(w);
    uint32_t stop = w.random.chance(30);
    ember_chat_options o;
    auto *options = chat_options(w, o, &stop);
    size_t n = w.capacity(1000);
    std::shared_ptr<Buffer<char>> text;
    std::shared_ptr<Buffer<size_t>> count;
    auto *bytes = w.array(text, n);
    auto *k = w.out(count, true);
    w.call("ember_chat_format", json, {}, [&](ember_error *e) {
        return ember_chat_format(m.handle, json.data(), json.size(), options, bytes, n, k, e);
    });
}

void chat_tokenize(World &w) {
    auto m = w.model();
    string json = conversation(w);
    uint32_t stop = w.random.chance(30);
    ember_chat_options o;
    auto *options = chat_options(w, o, &stop);
    size_t n = w.capacity(1000);
    std::shared_ptr<Buffer<uint32_t>> tokens;
    std::shared_ptr<Buffer<size_t>> count;
    auto *list = w.array(tokens, n);
    auto *k = w.out(count, true);
    w.call("ember_chat_tokenize", json, {}, [&](ember_error *e) {
        return ember_chat_tokenize(m.handle, json.data(), json.size(), options, list, n, k, e);
    });
}

}
