#include "calls.h"
#include <cmath>
#include <cstdarg>
#include <cstdlib>
#include <limits>
#include <unistd.h>

Run run;

static std::mutex telling;

void failed(const char *format, ...) {
    telling.lock();
    va_list list;
    va_start(list, format);
    vsnprintf(run.progress->failure, sizeof run.progress->failure, format, list);
    va_end(list);
    run.progress->failed = 1;
    _exit(1);
}

std::shared_ptr<Model> describe(ember_model *handle, bool sound) {
    ember_model_details d = {};
    d.struct_size = sizeof d;
    if (ember_model_info(handle, &d, nullptr)) failed("a new model has no details");
    return std::make_shared<Model>(Model{handle, d.vocab_size, d.context_length, d.has_tokenizer != 0, sound});
}

/* --- a call --- */

void World::begin() {
    outputs.clear();
    touched.clear();
    must_fail = false;
}

static size_t index_of(const char *name) {
    for (size_t i = 0; i < FUNCTIONS.size(); i++)
        if (!strcmp(FUNCTIONS[i].name, name)) return i;
    failed("%s is not in the table", name);
}

ember_status World::call(const char *name, const std::string &arguments, Statuses wanted,
                         const std::function<ember_status(ember_error *)> &make, bool has_error) {
    Progress &p = *run.progress;
    Progress::Line &line = p.line[thread][n_lines++ % Progress::LINES];
    line.number = ++p.lines;
    snprintf(line.text, sizeof line.text, "%-26s %s", name, arguments.c_str());
    size_t said = strlen(line.text);

    ember_error err;
    memset(&err, 0x55, sizeof err);
    ember_error *e = random.chance(10) ? nullptr : &err;
    if (run.defect == Defect::Crash && p.calls > 300) abort();
    while (run.defect == Defect::Hang && p.calls > 300) sleep(1);
    ember_status status = make(e);
    p.calls++;
    size_t function = index_of(name);
    if (status >= 0 && status < Progress::STATUSES) p.counts[function][status]++;
    snprintf(line.text + said, sizeof line.text - said, " -> %s", ember_status_name(status));
    last = status;

    const char *message = e && has_error ? err.message : "";
    auto wrong = [&](const char *what) {
        failed("%s(%s) gave %s: %s\n    %s", name, arguments.c_str(), ember_status_name(status), message, what);
    };
    if (run.defect == Defect::Status && p.calls > 300 && !strcmp(name, "ember_decode")) run.documented[name].erase(EMBER_NO_INPUT);
    if (!run.documented[name].count(status)) wrong("its comment does not name this status");
    if (status == EMBER_INTERNAL) wrong("this is a bug in the library by definition");
    if (Statuses{EMBER_OUT_OF_MEMORY, EMBER_FORKED, EMBER_DEVICE_ERROR, EMBER_DEVICE_LOST}.count(status)) wrong("there is no reason for that here");
    bool ok = status == EMBER_OK || status == EMBER_PENDING;
    if (e && has_error) {
        if (run.defect == Defect::Message && p.calls > 300 && !ok) err.message[0] = 0;
        if (err.code != status) wrong("the error struct has another code");
        if (ok && err.index != EMBER_NO_INDEX) wrong("there is an index without an error");
        if (!memchr(err.message, 0, sizeof err.message)) wrong("the message has no end");
        if ((err.message[0] == 0) != ok) wrong("there is no message, or there is one without an error");
    }
    for (Session *s : touched)
        if (s->interrupted && !wanted.empty() && run.documented[name].count(EMBER_INTERRUPTED)) wanted.insert(EMBER_INTERRUPTED);
    if (must_fail && ok) wrong("it should not have taken these arguments");
    if (!must_fail && !wanted.empty() && !wanted.count(status)) {
        std::string list;
        for (ember_status s : wanted) list += std::string(" ") + ember_status_name(s);
        wrong(("expected:" + list).c_str());
    }
    if (run.defect == Defect::Print && p.calls > 300 && write(1, "x", 1) < 0) wrong("cannot write");
    for (Output &output : outputs) {
        bool whole = output.whole(), untouched = output.untouched();
        if (p.calls > 300 && run.defect == Defect::Guard) whole = false;
        if (p.calls > 300 && run.defect == Defect::Output) untouched = false;
        if (!whole) wrong("something was written beside an output");
        if (status != EMBER_OK && status != EMBER_PENDING && !(output.count && status == EMBER_BUFFER_TOO_SMALL) && !untouched)
            wrong("an output was written although the call failed");
    }
    return status;
}

/* --- arguments --- */

uint64_t World::garbage() {
    switch (random.below(4)) {
    case 0: return random.below(100) * 2 + 2;
    case 1: return UINT64_MAX;
    case 2: return (any_session_handle() | any_model_handle()) & ~uint64_t(1);
    default: return random.next() & ~uint64_t(1);
    }
}

World::SessionArgument World::session() {
    if (random.chance(6)) return {bad_handle<ember_session>(random.chance(50) ? any_model_handle() : 0), nullptr};
    if (commons && random.chance(35)) {
        std::lock_guard lock(commons->mutex);
        if (!commons->sessions.empty()) return {random.of(commons->sessions), nullptr};
    }
    if (sessions.empty()) return {bad_handle<ember_session>(0), nullptr};
    Session *s = sessions[random.below(sessions.size())].get();
    touched.push_back(s);
    return {s->handle, s};
}

World::ModelArgument World::model() {
    if (random.chance(6)) return {bad_handle<ember_model>(any_session_handle()), nullptr};
    if (commons && (models.empty() || random.chance(60))) {
        std::lock_guard lock(commons->mutex);
        if (!commons->models.empty()) {
            auto m = random.of(commons->models);
            return {m->handle, m};
        }
    }
    if (models.empty()) return {bad_handle<ember_model>(0), nullptr};
    auto m = random.of(models);
    return {m->handle, m};
}

ember_adapter *World::adapter() {
    if (adapters.empty() || random.chance(6)) return bad_handle<ember_adapter>(any_session_handle());
    return random.of(adapters);
}

ember_embedder *World::embedder() {
    if (embedders.empty() || random.chance(6)) return bad_handle<ember_embedder>(any_session_handle());
    return random.of(embedders);
}

ember_text_stream *World::stream() {
    if (random.chance(6)) return bad_handle<ember_text_stream>(any_session_handle());
    if (commons && random.chance(40)) {
        std::lock_guard lock(commons->mutex);
        if (!commons->streams.empty()) return random.of(commons->streams);
    }
    if (streams.empty()) return bad_handle<ember_text_stream>(0);
    return random.of(streams);
}

std::vector<uint32_t> World::tokens(size_t n, const std::shared_ptr<Model> &model, bool *all_known) {
    static const uint32_t ODD[] = {UINT32_MAX, 1u << 31, 1424, 100000};
    uint32_t vocab_size = model ? model->vocab_size : 16;
    std::vector<uint32_t> list(n);
    *all_known = true;
    bool odd = random.chance(8);
    for (uint32_t &t : list) {
        t = uint32_t(random.below(vocab_size));
        if (odd && random.chance(20)) t = ODD[random.below(4)];
        *all_known &= t < vocab_size;
    }
    return list;
}

std::string World::text() {
    static const char *const PARTS[] = {"Once upon a time", " the", "\n", "<|end|>", "<|im_start|>", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x90\xb8",
                                        "{\"a\": 1}", "\xff", "\xe2\x82", " ", "", "0123", "'s", "\t"};
    std::string text;
    for (size_t n = random.below(12); n > 0; n--) {
        /* Rarely what is no UTF-8. */
        size_t i = random.below(16);
        if ((i == 9 || i == 10) && !random.chance(10)) i = 0;
        text += PARTS[i];
        if (random.chance(2)) text.push_back(0);
    }
    if (random.chance(1)) text.append(20000, 'a');
    return text;
}

size_t World::capacity(size_t usual) {
    switch (random.below(8)) {
    case 0: return 0;
    case 1: return 1;
    case 2: return random.below(usual + 1);
    default: return usual;
    }
}

float World::number(float usual) {
    static const float ODD[] = {NAN, INFINITY, -INFINITY, -1, 0, 1, 1e30f, -1e30f, 1e-40f, 0.5f, 1000};
    return random.chance(15) ? ODD[random.below(11)] : usual * float(random.below(1000)) / 1000;
}

void World::sampling(ember_sampling_options &o, const std::shared_ptr<Model> &model, bool *odd) {
    static const char *const TEXTS[] = {"\n", "the", ".", "\xff", "", " a very long breaker of text that no token has, nor any other"};
    bool known;
    bool wild = random.chance(15);
    memset(&o, 0, sizeof o);
    o.struct_size = size_of<ember_sampling_options>();
    o.seed = random.next();
    o.temperature = wild ? number(2) : float(random.below(3)) / 2;
    o.top_k = random.chance(50) ? uint32_t(random.below(100)) : wild ? UINT32_MAX : 0;
    o.top_p = random.chance(50) ? 0.9f : wild ? number(1) : 0;
    o.min_p = random.chance(50) ? 0.05f : wild ? number(1) : 0;
    o.typical_p = random.chance(70) ? 0 : wild ? number(1) : 0.8f;
    if (random.chance(40)) {
        o.penalty_window = wild && random.chance(50) ? UINT32_MAX : uint32_t(random.below(200));
        o.repeat_penalty = wild ? number(3) : 1.1f;
        o.presence_penalty = wild ? number(3) : 0.5f;
        o.frequency_penalty = wild ? number(-3) : 0.2f;
        o.dry_multiplier = wild ? number(2) : 0.8f;
        o.dry_base = wild ? number(3) : 1.75f;
        o.dry_allowed_length = uint32_t(random.below(5));
        o.dry_window = uint32_t(random.below(100));
    }
    o.dry_no_breakers = random.chance(wild ? 20 : 0) ? 2 : uint32_t(random.below(2));
    o.logprobs = random.chance(40) ? uint32_t(random.below(wild ? 100 : 65)) : 0;
    biases.clear();
    breakers.clear();
    banned.clear();
    allowed.clear();
    breaker_tokens = tokens(3, model, &known);
    if (random.chance(20)) {
        for (uint32_t token : tokens(random.below(20), model, &known)) biases.push_back({token, wild ? number(10) : 1.0f});
        o.logit_bias = biases.data();
        o.logit_bias_count = biases.size();
    }
    if (random.chance(20)) {
        banned = tokens(random.below(30), model, &known);
        o.banned = banned.data();
        o.banned_count = banned.size();
    }
    if (random.chance(10)) {
        allowed = tokens(random.below(4), model, &known);
        o.allowed = allowed.data();
        o.allowed_count = allowed.size();
    }
    if (random.chance(15)) {
        for (size_t n = random.below(4); n > 0; n--) {
            ember_dry_breaker b = {};
            const char *text = TEXTS[random.below(wild ? 6 : 3)];
            if (random.chance(50)) b.text = text, b.text_len = strlen(text);
            else b.tokens = breaker_tokens.data(), b.token_count = random.below(4);
            if (wild && random.chance(10)) b.text = text, b.text_len = strlen(text);
            breakers.push_back(b);
        }
        o.dry_breakers = breakers.data();
        o.dry_breaker_count = breakers.size();
    }
    if (wild && random.chance(5)) o.banned = nullptr, o.banned_count = 3, must_fail = true;
    *odd = wild;
}

/* --- handles --- */

void World::keep(ember_session *handle, const std::shared_ptr<Model> &model, const Session *like) {
    if (commons && !like && random.chance(30)) {
        std::lock_guard lock(commons->mutex);
        if (commons->sessions.size() < 6) {
            commons->sessions.push_back(handle);
            return;
        }
    }
    auto session = std::make_unique<Session>();
    if (like) *session = *like;
    session->handle = handle;
    session->model = model;
    ember_session_details d = {};
    d.struct_size = sizeof d;
    if (ember_session_info(handle, &d, nullptr)) failed("a new session has no details");
    if (like && d.position != like->position) failed("a new session stands at %llu", (unsigned long long)d.position);
    session->context = d.context;
    session->position = d.position;
    sessions.push_back(std::move(session));
}

void World::forget_twin(Session *session) {
    if (twin_of != session) return;
    ember_session_free(twin);
    twin_of = nullptr;
}

void World::drop(Session *session) {
    freed.push_back(reinterpret_cast<uintptr_t>(session->handle));
    if (freed.size() > 64) freed.erase(freed.begin());
    for (size_t i = 0; i < sessions.size(); i++)
        if (sessions[i].get() == session) {
            forget_twin(session);
            sessions.erase(sessions.begin() + long(i));
            return;
        }
}

void World::free_all() {
    for (auto &s : sessions)
        if (ember_session_free(s->handle)) failed("a session cannot be freed");
    for (auto *s : streams)
        if (ember_text_stream_free(s)) failed("a text stream cannot be freed");
    for (auto *e : events)
        if (ember_event_free(e)) failed("an event cannot be freed");
    for (auto *g : groups)
        if (ember_group_free(g)) failed("a group cannot be freed");
    for (auto *l : loads)
        if (ember_load_free(l)) failed("a load cannot be freed");
    for (auto *a : adapters)
        if (ember_adapter_free(a)) failed("an adapter cannot be freed");
    for (auto *e : embedders)
        if (ember_embedder_free(e)) failed("an embedder cannot be freed");
    for (auto &m : models)
        if (ember_model_free(m->handle)) failed("a model cannot be freed");
    for (auto &path : states) remove(path.c_str());
    for (auto &s : sessions)
        if (ember_session_free(s->handle) != EMBER_INVALID_HANDLE) failed("a session can be freed twice");
    *this = World(0, nullptr, 0);
}

/* --- steps --- */

/* A copy of a session, which must answer the same if the step changes nothing. */
void World::make_twin() {
    if (sessions.empty() || !random.chance(5)) return;
    Session *s = sessions[random.below(sessions.size())].get();
    if (!s->idle() || !s->position || s->position + 3 > s->context) return;
    if (ember_session_fork(s->handle, &twin, nullptr)) failed("a session cannot be forked");
    twin_of = s;
}

void World::compare_twin() {
    if (!twin_of) return;
    Session *s = twin_of;
    bool changed = false;
    for (Session *t : touched) changed |= t == s && last == EMBER_OK;
    if (s->idle() && !changed) {
        /* A fork has no interrupt of its origin's. */
        ember_session_clear_interrupt(s->handle);
        for (int i = 0; i < 2; i++) {
            ember_token made[2] = {};
            made[0].struct_size = made[1].struct_size = sizeof(ember_token);
            ember_status of_a = ember_decode(s->handle, &made[0], nullptr), of_b = ember_decode(twin, &made[1], nullptr);
            uint32_t a = made[0].id, b = made[1].id;
            if (of_a == EMBER_OK) s->position++;
            if (run.defect == Defect::Twin) b++;
            if (of_a != of_b || a != b)
                failed("a session goes on with %s %u, its copy from before the call with %s %u", ember_status_name(of_a), a,
                       ember_status_name(of_b), b);
        }
    }
    if (ember_session_free(twin)) failed("a copy cannot be freed");
    twin_of = nullptr;
}

void World::step() {
    static const unsigned total = [] {
        unsigned sum = 0;
        for (const Function &f : FUNCTIONS) sum += f.weight;
        return sum;
    }();
    uint64_t at = random.below(total);
    size_t i = 0;
    while (at >= FUNCTIONS[i].weight) at -= FUNCTIONS[i++].weight;
    begin();
    if (sessions.size() < 3 && random.chance(30)) return calls::create_session(*this);
    make_twin();
    FUNCTIONS[i].act(*this);
    compare_twin();
    /* Every session of this thread stands where it should. */
    if (!sessions.empty()) {
        Session *s = sessions[random.below(sessions.size())].get();
        for (Session *t : touched)
            for (auto &own : sessions)
                if (own.get() == t) s = t;
        size_t position = 0;
        if (ember_session_position(s->handle, &position, nullptr)) failed("a session has no position");
        if (run.defect == Defect::Position) position++;
        if (position != s->position)
            failed("after %s, a session stands at %zu and not at %llu", FUNCTIONS[i].name, position, (unsigned long long)s->position);
    }
}

void World::steps(const std::atomic<long> &limit) {
    session_calls_begin(*this);
    while (run.progress->calls < limit) step();
}
