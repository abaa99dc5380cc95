/* Calls with sessions. Of a session of this thread alone, it is known what each call must end with. */
#include "calls.h"
#include <cstdlib>
#include <unistd.h>

using std::string;
using std::to_string;

namespace calls {

static string hex(const void *handle) {
    char s[24];
    snprintf(s, sizeof s, "%#zx", size_t(handle));
    return s;
}

/* What a call that needs the session for itself ends with, if it can do its work. */
static Statuses when_idle(const Session *s, Statuses wanted) {
    if (!s) return {};
    if (!s->idle()) return {EMBER_DECODE_PENDING};
    if (!s->predictable()) return {};
    return wanted;
}

/* What a choice of a token ends with. */
static Statuses choice(const Session *s, uint64_t count) {
    if (!s) return {};
    if (!s->idle()) return {EMBER_DECODE_PENDING};
    if (s->position == 0) return {EMBER_NO_INPUT};
    if (count > s->context - s->position) return {EMBER_CONTEXT_FULL};
    if (!s->predictable()) return {};
    /* All that the grammar allows may be banned. */
    if (s->grammar) return {EMBER_OK, EMBER_GRAMMAR, EMBER_NUMERIC};
    return {EMBER_OK};
}

/* Tokens to be written, of which the first says its size. */
static std::shared_ptr<Buffer<ember_token>> token_place(World &w, size_t n = 1) {
    auto tokens = std::make_shared<Buffer<ember_token>>(n);
    if (n > 0) tokens->data()->struct_size = w.size_of<ember_token>();
    return tokens;
}

static void check_tokens(const Buffer<ember_token> &tokens, const char *name) {
    if (!tokens.guards_whole()) failed("%s writes beside its tokens", name);
}

/* Its token was written. */
static bool is_written(const ember_token &token) { return token.id != 0x5c5c5c5c; }

/* Options of GPUs behind others: mostly good ones. */
static const void *chain(World &w, ember_cuda_session_options &cuda) {
    memset(&cuda, 0, sizeof cuda);
    cuda.struct_size = w.size_of<ember_cuda_session_options>();
    cuda.kind = w.random.chance(5) ? uint32_t(w.random.next()) : uint32_t(EMBER_CHAIN_CUDA_SESSION);
    cuda.stream_priority = int32_t(w.random.next());
    return &cuda;
}

void create_session(World &w) {
    if (w.sessions.size() > 10) return;
    auto model = w.model();
    ember_session_options o;
    ember_sampling_options sampling;
    ember_cuda_session_options cuda;
    bool odd = false, wild = w.random.chance(15);
    auto *options = w.options<ember_session_options>(o, [&](ember_session_options &o) {
        o.context = wild ? uint32_t(w.random.next()) : uint32_t(1 + w.random.below(200));
        if (model.known && o.context > model.known->context_length && !wild) o.context = model.known->context_length;
        /* All of it is reserved. */
        if (o.context > 4096 && model.known && o.context <= model.known->context_length) o.context = 4096;
        o.kv_type = uint32_t(w.random.below(wild ? 6 : 3));
        if (w.random.chance(20)) o.next = chain(w, cuda);
        if (w.random.chance(20)) o.mark_interval = 16 + uint32_t(w.random.below(1000));
        if (w.random.chance(60)) {
            w.sampling(sampling, model.known, &odd);
            o.sampling = &sampling;
        }
        if (wild) o.mark_interval = w.random.below(32);
    });
    std::shared_ptr<Buffer<ember_session *>> out;
    auto *place = w.out(out);
    if (w.call("ember_session_create", hex(model.handle), options ? Statuses{} : Statuses{EMBER_OK}, [&](ember_error *e) {
            return ember_session_create(model.handle, options, place, e);
        }) == EMBER_OK) {
        w.keep(*out->data(), model.known, nullptr);
        if (!w.sessions.empty() && w.sessions.back()->handle == *out->data()) {
            w.sessions.back()->odd_sampling = odd || wild;
            w.sessions.back()->logprobs = options && o.sampling ? sampling.logprobs : 0;
        }
    }
}

void set_sampling(World &w) {
    auto s = w.session();
    ember_sampling_options o;
    bool odd = false;
    const ember_sampling_options *options = w.random.chance(20) ? nullptr : &o;
    if (options) w.sampling(o, s.known ? s.known->model : nullptr, &odd);
    bool by_default = !options && s.known;
    if (w.call("ember_session_set_sampling", hex(s.handle), by_default ? when_idle(s.known, {EMBER_OK}) : Statuses{},
               [&](ember_error *e) { return ember_session_set_sampling(s.handle, options, e); }) == EMBER_OK && s.known) {
        s.known->odd_sampling = options && odd;
        s.known->logprobs = options ? o.logprobs : 0;
    }
}

void logprobs(World &w) {
    auto s = w.session();
    size_t n = w.capacity(64);
    std::shared_ptr<Buffer<float>> chosen, values;
    std::shared_ptr<Buffer<uint32_t>> tokens;
    std::shared_ptr<Buffer<size_t>> count;
    auto *c = w.out(chosen);
    auto *t = w.array(tokens, n);
    auto *v = w.array(values, n);
    auto *k = w.out(count, true);
    /* Of an array without elements the pointer does not matter, and whether there is a token is asked first. */
    if (w.call("ember_session_logprobs", hex(s.handle) + ", " + to_string(n), {},
               [&](ember_error *e) { return ember_session_logprobs(s.handle, c, t, v, n, k, e); }) == EMBER_OK &&
        *k > n)
        failed("%zu log-probabilities in a buffer of %zu", *k, n);
}

void session_info(World &w) {
    auto s = w.session();
    Buffer<ember_session_details> d(1);
    memset(d.data(), 0, sizeof(ember_session_details));
    d.data()->struct_size = w.size_of<ember_session_details>();
    ember_status status = w.call("ember_session_info", hex(s.handle), s.known ? Statuses{EMBER_OK} : Statuses{},
                                 [&](ember_error *e) { return ember_session_info(s.handle, d.data(), e); });
    if (!d.guards_whole()) failed("ember_session_info writes beside its struct");
    if (status == EMBER_OK && s.known && (d.data()->position != s.known->position || d.data()->context != s.known->context))
        failed("ember_session_info tells another position or context");
}

void position(World &w) {
    auto s = w.session();
    std::shared_ptr<Buffer<size_t>> n;
    auto *out = w.out(n);
    w.call("ember_session_position", hex(s.handle), s.known ? Statuses{EMBER_OK} : Statuses{},
           [&](ember_error *e) { return ember_session_position(s.handle, out, e); });
}

void rewind(World &w) {
    auto s = w.session();
    size_t to = w.random.chance(10) ? size_t(w.random.next()) : size_t(w.random.below(1 + (s.known ? s.known->position : 20)));
    if (s.known && w.random.chance(10)) to = s.known->position + 1;
    Statuses wanted;
    if (s.known && s.known->predictable()) wanted = {to > s.known->position ? EMBER_INVALID_ARGUMENT : EMBER_OK};
    if (w.call("ember_session_rewind", hex(s.handle) + ", " + to_string(to), wanted,
               [&](ember_error *e) { return ember_session_rewind(s.handle, to, e); }) == EMBER_OK && s.known) {
        s.known->position = to;
        s.known->pending = Session::Nothing;
    }
}

void fork(World &w) {
    if (w.sessions.size() > 12) return;
    auto s = w.session();
    std::shared_ptr<Buffer<ember_session *>> out;
    auto *place = w.out(out);
    if (w.call("ember_session_fork", hex(s.handle), when_idle(s.known, {EMBER_OK}),
               [&](ember_error *e) { return ember_session_fork(s.handle, place, e); }) == EMBER_OK) {
        if (s.known) w.keep(*out->data(), s.known->model, s.known);
        else if (ember_session_free(*out->data())) failed("a fork cannot be freed");
    }
}

void logits(World &w) {
    auto s = w.session();
    size_t need = s.known ? s.known->model->vocab_size : 1424;
    size_t n = w.random.chance(20) ? w.capacity(need) : need;
    std::shared_ptr<Buffer<float>> out;
    auto *place = w.array(out, n);
    Statuses wanted;
    if (s.known && s.known->idle() && n >= need) wanted = when_idle(s.known, {s.known->position ? EMBER_OK : EMBER_NO_INPUT});
    if (s.known && s.known->idle() && s.known->position && n < need) wanted = {EMBER_BUFFER_TOO_SMALL};
    w.call("ember_session_logits", hex(s.handle) + ", " + to_string(n), wanted,
           [&](ember_error *e) { return ember_session_logits(s.handle, place, n, e); });
}

void interrupt(World &w) {
    auto s = w.session();
    w.call("ember_session_interrupt", hex(s.handle), s.known ? Statuses{EMBER_OK} : Statuses{},
           [&](ember_error *) { return ember_session_interrupt(s.handle); }, false);
    if (s.known) s.known->interrupted = true;
}

void clear_interrupt(World &w) {
    auto s = w.session();
    w.call("ember_session_clear_interrupt", hex(s.handle), s.known ? Statuses{EMBER_OK} : Statuses{},
           [&](ember_error *) { return ember_session_clear_interrupt(s.handle); }, false);
    if (s.known) s.known->interrupted = false;
}

void session_tokens(World &w) {
    auto s = w.session();
    size_t have = s.known ? s.known->position : 20, from = w.random.below(have + 2);
    size_t n = w.random.chance(30) ? w.capacity(have) : have;
    std::shared_ptr<Buffer<uint32_t>> tokens;
    std::shared_ptr<Buffer<size_t>> count;
    auto *list = w.array(tokens, n);
    auto *k = w.out(count, true);
    Statuses wanted;
    if (s.known) {
        if (from > have) wanted = {EMBER_INVALID_ARGUMENT};
        else wanted = {have - from > n ? EMBER_BUFFER_TOO_SMALL : EMBER_OK};
    }
    ember_status status = w.call("ember_session_tokens", hex(s.handle) + ", " + to_string(from) + ", " + to_string(n), wanted,
                                 [&](ember_error *e) { return ember_session_tokens(s.handle, from, list, n, k, e); });
    if (s.known && (status == EMBER_OK || status == EMBER_BUFFER_TOO_SMALL) && k && *k != have - from)
        failed("a session has %zu tokens from %zu on, but %zu are told", have, from, *k);
    for (size_t i = 0; s.known && status == EMBER_OK && i < *k; i++)
        if (list[i] >= s.known->model->vocab_size) failed("a session has token %u", list[i]);
}

/* The context as it is, changed from a random place on. */
void sync(World &w) {
    auto s = w.session();
    std::vector<uint32_t> list(s.known ? s.known->position : 5);
    size_t have = 0;
    bool known = true;
    if (s.known && ember_session_tokens(s.handle, 0, list.data(), list.size(), &have, nullptr)) failed("a session has no tokens");
    list.resize(w.random.below(list.size() + 1));
    auto more = w.tokens(w.random.below(w.random.chance(5) ? 300 : 10), s.known ? s.known->model : nullptr, &known);
    list.insert(list.end(), more.begin(), more.end());
    std::shared_ptr<Buffer<size_t>> kept;
    auto *k = w.out(kept, false, true);
    Statuses wanted;
    if (s.known && s.known->idle()) {
        if (list.empty()) wanted = {EMBER_NO_INPUT};
        else if (list.size() > s.known->context || !known) wanted = {EMBER_CONTEXT_FULL, EMBER_INVALID_TOKEN};
        else if (s.known->predictable()) wanted = {EMBER_OK};
    }
    if (w.call("ember_session_sync", hex(s.handle) + ", " + to_string(list.size()), wanted, [&](ember_error *e) {
            return ember_session_sync(s.handle, list.data(), list.size(), k, e);
        }) != EMBER_OK || !s.known)
        return;
    if (k && *k > std::min(s.known->position, uint64_t(list.size()))) failed("%zu tokens were kept", *k);
    s.known->position = list.size();
}

struct Pieces {
    World *world;
    ember_session *session;
    /* Other threads use the session, too, and may free it. */
    bool shared;
    size_t count, bytes;
};

static int32_t take_piece(void *user, const char *text, size_t len, const ember_token *token) {
    auto &p = *static_cast<Pieces *>(user);
    ember_token other = {};
    other.struct_size = sizeof other;
    if (!token || token->struct_size < sizeof other || token->status) failed("a piece has no token");
    if ((len && !text) || (token->id == EMBER_NO_TOKEN && (!len || token->flags))) failed("a piece of %zu bytes with token %u", len, token->id);
    p.count++;
    p.bytes += len;
    if (p.world->random.chance(10)) {
        ember_status status = ember_decode(p.session, &other, nullptr);
        if (status != EMBER_BUSY && !(p.shared && status == EMBER_INVALID_HANDLE))
            failed("a session decodes while it generates: %s", ember_status_name(status));
    }
    return p.world->random.chance(3) ? 1 : 0;
}

void generate(World &w) {
    static const char *const TEXTS[] = {"the", "\n", ".", "stop", "", "\xff"};
    auto s = w.session();
    bool known = true;
    auto prompt = w.tokens(w.random.below(w.random.chance(3) ? 300 : 6), s.known ? s.known->model : nullptr, &known);
    std::vector<ember_stop> stops;
    Pieces pieces{&w, s.handle, s.known == nullptr, 0, 0};
    ember_generate_options o;
    auto *options = w.options<ember_generate_options>(o, [&](ember_generate_options &o) {
        o.flags = uint32_t(w.random.below(w.random.chance(5) ? 16 : 8));
        o.prompt = prompt.data();
        o.prompt_count = prompt.size();
        o.max_tokens = w.random.chance(5) ? 0 : 1 + w.random.below(12);
        for (size_t n = w.random.below(3); n > 0; n--) {
            const char *text = TEXTS[w.random.below(w.random.chance(5) ? 6 : 4)];
            stops.push_back({text, strlen(text)});
        }
        o.stops = stops.data();
        o.stop_count = stops.size();
        if (w.random.chance(70)) o.piece = take_piece, o.user = &pieces;
    });
    Buffer<ember_generate_details> d(1);
    memset(d.data(), 0, sizeof(ember_generate_details));
    d.data()->struct_size = w.size_of<ember_generate_details>();
    bool told = w.random.chance(90);
    if (!told) w.must_fail = false;
    uint64_t before = s.known ? s.known->position : 0;
    ember_status status = w.call("ember_generate", hex(s.handle) + ", " + to_string(prompt.size()), {}, [&](ember_error *e) {
        return ember_generate(s.handle, options, told ? d.data() : nullptr, e);
    });
    if (!d.guards_whole()) failed("ember_generate writes beside its struct");
    if (status != EMBER_OK || !s.known) return;
    size_t position = 0;
    if (ember_session_position(s.handle, &position, nullptr)) failed("a session has no position");
    s.known->position = position;
    if (!told) return;
    uint64_t start = before + (options ? prompt.size() : 0);
    if (d.data()->position != start || position != start + d.data()->token_count)
        failed("a generation of %llu tokens from %llu ends at %zu", (unsigned long long)d.data()->token_count, (unsigned long long)start, position);
    if (options && o.piece && d.data()->text_bytes != pieces.bytes)
        failed("%zu bytes of text came, and %llu are told", pieces.bytes, (unsigned long long)d.data()->text_bytes);
    if (d.data()->end < EMBER_END_LIMIT || d.data()->end > EMBER_END_CONTEXT_FULL) failed("a generation ended by %u", d.data()->end);
}

void free_session(World &w) {
    if (w.commons && w.random.chance(30)) {
        /* One that others may be using: it stays if it is busy. */
        ember_session *handle = nullptr;
        {
            std::lock_guard lock(w.commons->mutex);
            if (!w.commons->sessions.empty() && w.random.chance(20)) handle = w.random.of(w.commons->sessions);
        }
        if (handle && w.call("ember_session_free", "shared", {}, [&](ember_error *) { return ember_session_free(handle); }, false) == EMBER_OK) {
            std::lock_guard lock(w.commons->mutex);
            std::erase(w.commons->sessions, handle);
            w.freed.push_back(uintptr_t(handle));
        }
        return;
    }
    if (w.sessions.size() < 4 && w.random.chance(70)) return;
    Session *s = nullptr;
    ember_session *handle;
    Statuses wanted = {EMBER_OK};
    if (w.sessions.empty() || w.random.chance(20)) {
        handle = w.bad_handle<ember_session>(w.any_model_handle());
        /* NULL is allowed. */
        if (!handle) w.must_fail = false;
    } else {
        s = w.sessions[w.random.below(w.sessions.size())].get();
        handle = s->handle;
    }
    if (w.call("ember_session_free", hex(handle), wanted, [&](ember_error *) { return ember_session_free(handle); }, false) == EMBER_OK && s)
        w.drop(s);
}

/* --- prompts and decodes --- */

static void prompt(World &w, bool start) {
    auto s = w.session();
    size_t n = w.random.chance(5) ? 0 : w.random.chance(5) ? w.random.below(300) : 1 + w.random.below(12);
    bool known;
    auto tokens = w.tokens(n, s.known ? s.known->model : nullptr, &known);
    bool null = n > 0 && w.random.chance(2);
    w.must_fail |= null;
    Statuses wanted;
    if (s.known && !s.known->idle()) wanted = {EMBER_DECODE_PENDING};
    else if (s.known && n == 0) wanted = {EMBER_NO_INPUT};
    else if (s.known && n > s.known->context - s.known->position) wanted = {EMBER_CONTEXT_FULL};
    else if (s.known && !known) wanted = {EMBER_INVALID_TOKEN};
    else if (s.known && s.known->predictable()) wanted = {EMBER_OK};
    const uint32_t *from = null ? nullptr : tokens.data();
    ember_status status = w.call(start ? "ember_prefill_start" : "ember_prefill", hex(s.handle) + ", " + to_string(n), wanted, [&](ember_error *e) {
        return start ? ember_prefill_start(s.handle, from, n, e) : ember_prefill(s.handle, from, n, e);
    });
    if (status != EMBER_OK || !s.known) return;
    if (!start) s.known->position += n;
    else s.known->pending = Session::Prefill, s.known->started = n;
}

void prefill(World &w) { prompt(w, false); }
void prefill_start(World &w) { prompt(w, true); }

void prefill_poll(World &w) {
    auto s = w.session();
    std::shared_ptr<Buffer<size_t>> evaluated;
    auto *out = w.out(evaluated, false, true);
    Statuses wanted;
    if (s.known && s.known->pending != Session::Prefill) wanted = {EMBER_NOTHING_PENDING};
    else if (s.known && s.known->predictable()) wanted = {EMBER_OK, EMBER_PENDING, EMBER_INTERRUPTED};
    if (w.random.chance(30)) usleep(useconds_t(w.random.below(3000)));
    bool must_fail = w.must_fail;
    ember_status status = w.call("ember_prefill_poll", hex(s.handle), wanted, [&](ember_error *e) { return ember_prefill_poll(s.handle, out, e); });
    if (!s.known || must_fail || s.known->pending != Session::Prefill || status == EMBER_PENDING) return;
    if (status == EMBER_OK) {
        s.known->position += s.known->started;
        if (out && *out != s.known->started) failed("%zu of %llu tokens are evaluated", *out, (unsigned long long)s.known->started);
    }
    s.known->pending = Session::Nothing;
}

void decode(World &w) {
    auto s = w.session();
    auto token = token_place(w);
    auto *out = token->data();
    if (w.call("ember_decode", hex(s.handle), choice(s.known, 1), [&](ember_error *e) { return ember_decode(s.handle, out, e); }) == EMBER_OK && s.known) {
        s.known->position++;
        if (out->id >= s.known->model->vocab_size) failed("token %u was chosen", out->id);
        bool has_logprob = out->flags & EMBER_TOKEN_HAS_LOGPROB;
        /* Of a session that was restored it is not known whether it asks for them. */
        if ((s.known->logprobs > 0 && !has_logprob) || !(out->logprob <= 0)) failed("a token with flags %u and log-probability %f", out->flags, double(out->logprob));
    }
    check_tokens(*token, "ember_decode");
}

static void start(World &w, bool several) {
    auto s = w.session();
    size_t n = !several ? 1 : w.random.chance(10) ? size_t(w.random.next()) >> w.random.below(64) : w.random.below(6);
    Statuses wanted = choice(s.known, n);
    if (n == 0) w.must_fail = true;
    if (w.call(several ? "ember_decode_start_n" : "ember_decode_start", hex(s.handle) + ", " + to_string(n), wanted, [&](ember_error *e) {
            return several ? ember_decode_start_n(s.handle, n, e) : ember_decode_start(s.handle, e);
        }) == EMBER_OK && s.known)
        s.known->pending = Session::Decodes, s.known->started = n;
}

void decode_start(World &w) { start(w, false); }
void decode_start_n(World &w) { start(w, true); }

void decode_poll(World &w) {
    auto s = w.session();
    auto token = token_place(w);
    auto *out = token->data();
    Statuses wanted;
    if (s.known && s.known->pending != Session::Decodes) wanted = {EMBER_NOTHING_PENDING};
    else if (s.known && s.known->predictable()) wanted = {EMBER_OK, EMBER_PENDING, EMBER_INTERRUPTED};
    if (!wanted.empty() && s.known->grammar && s.known->pending == Session::Decodes) wanted.insert({EMBER_GRAMMAR, EMBER_NUMERIC});
    if (w.random.chance(30)) usleep(useconds_t(w.random.below(3000)));
    bool must_fail = w.must_fail;
    ember_status status = w.call("ember_decode_poll", hex(s.handle), wanted, [&](ember_error *e) { return ember_decode_poll(s.handle, out, e); });
    check_tokens(*token, "ember_decode_poll");
    if (!s.known || must_fail || s.known->pending != Session::Decodes || status == EMBER_PENDING) return;
    if (status == EMBER_OK) {
        s.known->position++;
        if (--s.known->started == 0) s.known->pending = Session::Nothing;
    } else {
        s.known->pending = Session::Nothing;
    }
}

/* Sessions for a batch, and what is known of it. */
struct Members {
    std::vector<ember_session *> handles;
    /* NULL of one that is not known. */
    std::vector<Session *> known;
    bool all_known = true, one_model = true, all_ready = true, distinct;
};

static Members members(World &w) {
    Members m;
    size_t n = w.random.chance(5) ? 0 : w.random.chance(3) ? 200 : 1 + w.random.below(6);
    std::shared_ptr<Model> model;
    for (size_t i = 0; i < n; i++) {
        auto s = w.session();
        m.handles.push_back(s.handle);
        m.known.push_back(s.known);
        m.all_known &= s.known != nullptr;
        if (!s.known) continue;
        if (model && model != s.known->model) m.one_model = false;
        model = s.known->model;
        m.all_ready &= s.known->idle() && s.known->predictable() && !s.known->grammar && s.known->position && s.known->position < s.known->context;
    }
    m.distinct = std::set<ember_session *>(m.handles.begin(), m.handles.end()).size() == n;
    return m;
}

void decode_batch(World &w) {
    Members m = members(w);
    size_t n = m.handles.size();
    auto tokens = token_place(w, n);
    auto *out = tokens->data();
    Statuses wanted;
    /* A model and another handle of it are one. */
    if (n == 0 || n > 100 || !m.distinct) w.must_fail = true;
    else if (m.all_known && m.one_model && m.all_ready) wanted = {EMBER_OK};
    ember_status status = w.call("ember_decode_batch", to_string(n), wanted, [&](ember_error *e) { return ember_decode_batch(m.handles.data(), n, out, e); });
    check_tokens(*tokens, "ember_decode_batch");
    if (n == 0 || n > 100 || !is_written(*out)) return;
    ember_status first = EMBER_OK;
    for (size_t i = 0; i < n; i++) {
        if (!is_written(out[i]) || out[i].struct_size != out->struct_size) failed("of a batch, token %zu was not written", i);
        if (first == EMBER_OK) first = out[i].status;
        if ((out[i].status == EMBER_OK) == (out[i].id == EMBER_NO_TOKEN)) failed("of a batch, token %zu is %u with status %d", i, out[i].id, out[i].status);
        if (out[i].status == EMBER_OK && m.known[i]) m.known[i]->position++, w.forget_twin(m.known[i]);
    }
    if (first != status) failed("a batch gave %d, and its first session that failed %d", status, first);
}

void decode_batch_start(World &w) {
    Members m = members(w);
    size_t n = m.handles.size();
    Statuses wanted;
    if (n == 0 || n > 100 || !m.distinct) w.must_fail = true;
    else if (m.all_known && m.one_model && m.all_ready) wanted = {EMBER_OK};
    if (w.call("ember_decode_batch_start", to_string(n), wanted, [&](ember_error *e) { return ember_decode_batch_start(m.handles.data(), n, e); }) != EMBER_OK)
        return;
    for (Session *s : m.known)
        if (s) s->pending = Session::Decodes, s->started = 1;
}

/* --- generating piece by piece --- */

void generate_start(World &w) {
    auto s = w.session();
    bool known = true;
    auto prompt = w.tokens(w.random.below(w.random.chance(3) ? 300 : 6), s.known ? s.known->model : nullptr, &known);
    ember_generate_options o;
    auto *options = w.options<ember_generate_options>(o, [&](ember_generate_options &o) {
        o.flags = uint32_t(w.random.below(w.random.chance(5) ? 16 : 8));
        o.prompt = prompt.data();
        o.prompt_count = prompt.size();
        o.max_tokens = w.random.chance(5) ? 0 : 1 + w.random.below(12);
        if (w.random.chance(5)) o.piece = take_piece, w.must_fail = true;
    });
    Statuses wanted;
    if (s.known && !s.known->idle()) wanted = {EMBER_DECODE_PENDING, EMBER_INVALID_ARGUMENT, EMBER_UNSUPPORTED};
    if (w.call("ember_generate_start", hex(s.handle) + ", " + to_string(prompt.size()), wanted, [&](ember_error *e) {
            return ember_generate_start(s.handle, options, e);
        }) == EMBER_OK && s.known)
        s.known->pending = Session::Generation;
}

/* Where a session stands that has made tokens of which it is not known how many. */
static void look_at_position(Session *s) {
    size_t position = 0;
    if (ember_session_position(s->handle, &position, nullptr)) failed("a session has no position");
    if (position < s->position) failed("a generation has taken %llu tokens back", (unsigned long long)(s->position - position));
    s->position = position;
}

void generate_next(World &w) {
    auto s = w.session();
    size_t n = w.capacity(64);
    std::shared_ptr<Buffer<char>> text;
    std::shared_ptr<Buffer<size_t>> len;
    auto *place = w.array(text, n);
    auto *l = w.out(len, true);
    auto token = token_place(w);
    uint32_t flags = uint32_t(w.random.below(w.random.chance(5) ? 8 : 2));
    if (flags > 1) w.must_fail = true;
    Statuses wanted;
    if (s.known && s.known->pending != Session::Generation) wanted = {EMBER_NOTHING_PENDING};
    ember_status status = w.call("ember_generate_next", hex(s.handle) + ", " + to_string(n), wanted, [&](ember_error *e) {
        return ember_generate_next(s.handle, flags, place, n, l, token->data(), e);
    });
    check_tokens(*token, "ember_generate_next");
    if (status == EMBER_OK && token->data()->id == EMBER_NO_TOKEN && token->data()->flags) failed("no token has flags");
    if (status != EMBER_OK && is_written(*token->data())) failed("ember_generate_next wrote a token and gave %d", status);
    if (status == EMBER_PENDING && flags == 0) failed("a call that waits is pending");
    if (s.known) look_at_position(s.known);
}

void generate_end(World &w) {
    auto s = w.session();
    Buffer<ember_generate_details> d(1);
    memset(d.data(), 0, sizeof(ember_generate_details));
    d.data()->struct_size = w.size_of<ember_generate_details>();
    bool told = w.random.chance(90);
    if (!told) w.must_fail = false;
    Statuses wanted;
    if (s.known) wanted = {s.known->pending == Session::Generation ? EMBER_OK : EMBER_NOTHING_PENDING};
    ember_status status = w.call("ember_generate_finish", hex(s.handle), wanted, [&](ember_error *e) {
        return ember_generate_finish(s.handle, told ? d.data() : nullptr, e);
    });
    if (!d.guards_whole()) failed("ember_generate_finish writes beside its struct");
    if (status != EMBER_OK || !s.known) return;
    s.known->pending = Session::Nothing;
    look_at_position(s.known);
    if (told && d.data()->token_count && s.known->position != d.data()->position + d.data()->token_count)
        failed("a generation of %llu tokens from %llu ends at %llu", (unsigned long long)d.data()->token_count,
               (unsigned long long)d.data()->position, (unsigned long long)s.known->position);
}

void erase(World &w) {
    auto s = w.session();
    size_t have = s.known ? s.known->position : 20;
    size_t from = w.random.below(have + 2), count = w.random.chance(10) ? size_t(w.random.next()) : w.random.below(6);
    Statuses wanted;
    if (s.known) {
        bool there = from <= have && count <= have - from;
        if (!s.known->idle()) wanted = {EMBER_DECODE_PENDING};
        else if (!there) wanted = {EMBER_INVALID_ARGUMENT};
        else if (s.known->grammar) wanted = {EMBER_OK, EMBER_INVALID_ARGUMENT};
        else if (s.known->predictable()) wanted = {EMBER_OK};
    }
    if (w.call("ember_session_erase", hex(s.handle) + ", " + to_string(from) + ", " + to_string(count), wanted,
               [&](ember_error *e) { return ember_session_erase(s.handle, from, count, e); }) == EMBER_OK && s.known)
        s.known->position -= count;
}

void evict(World &w) {
    auto s = w.session();
    w.call("ember_session_evict", hex(s.handle), when_idle(s.known, {EMBER_OK}), [&](ember_error *e) { return ember_session_evict(s.handle, e); });
}

void resume(World &w) {
    auto s = w.session();
    w.call("ember_session_resume", hex(s.handle), {}, [&](ember_error *e) { return ember_session_resume(s.handle, e); });
}

void profile(World &w) {
    auto s = w.session();
    size_t n = w.capacity(16);
    Buffer<ember_profile_entry> entries(n);
    std::shared_ptr<Buffer<size_t>> count;
    if (n > 0) entries.data()->struct_size = w.size_of<ember_profile_entry>();
    auto *k = w.out(count, true);
    w.call("ember_session_profile", hex(s.handle) + ", " + to_string(n), {},
           [&](ember_error *e) { return ember_session_profile(s.handle, n ? entries.data() : nullptr, n, k, e); });
    if (!entries.guards_whole()) failed("ember_session_profile writes beside its entries");
}

void set_grammar(World &w) {
    static const struct {
        uint32_t kind;
        const char *text;
    } GRAMMARS[] = {
        {EMBER_GRAMMAR_NONE, ""},
        {EMBER_GRAMMAR_REGEX, "[a-f]{3}(-[0-9]+)?"},
        {EMBER_GRAMMAR_REGEX, "(Once|The) upon .*"},
        {EMBER_GRAMMAR_JSON_SCHEMA, "{\"type\": \"object\", \"properties\": {\"hp\": {\"type\": \"integer\"}, \"item\": {\"enum\": [\"white map\", \"hat\"]}}, "
                                    "\"required\": [\"hp\", \"item\"], \"additionalProperties\": false}"},
        {EMBER_GRAMMAR_LARK, "start: WORD (\" \" WORD)*\nWORD: /[a-z]+/"},
        {EMBER_GRAMMAR_GBNF, "root ::= item+\nitem ::= \"- \" [a-z]+ \"\\n\""},
        {EMBER_GRAMMAR_REGEX, "a("},
        {EMBER_GRAMMAR_REGEX, "\xff"},
        {EMBER_GRAMMAR_JSON_SCHEMA, "{\"properties\": {\"a\": {\"not\": {}}}}"},
        {EMBER_GRAMMAR_JSON_SCHEMA, "{"},
        {EMBER_GRAMMAR_LARK, "start: nothing"},
        {EMBER_GRAMMAR_NONE, "text"},
        {77, "a"},
    };
    auto s = w.session();
    bool good = w.random.chance(70);
    auto &g = GRAMMARS[good ? w.random.below(6) : w.random.below(13)];
    uint32_t stop = w.random.chance(10);
    ember_grammar_options o;
    auto *options = w.options<ember_grammar_options>(o, [&](ember_grammar_options &o) {
        o.json_spacing = uint32_t(w.random.below(w.random.chance(10) ? 5 : 3));
        if (w.random.chance(20)) o.interrupt = &stop;
    });
    if (w.call("ember_session_set_grammar", hex(s.handle) + ", " + to_string(g.kind) + ", " + g.text, {}, [&](ember_error *e) {
            return ember_session_set_grammar(s.handle, g.kind, g.text, strlen(g.text), options, e);
        }) == EMBER_OK && s.known)
        s.known->grammar = g.kind != EMBER_GRAMMAR_NONE;
}

void set_speculation(World &w) {
    auto s = w.session();
    ember_speculation_options o;
    auto *options = w.options<ember_speculation_options>(o, [&](ember_speculation_options &o) {
        o.source = uint32_t(w.random.below(w.random.chance(10) ? 6 : 4));
        o.max_drafts = uint32_t(w.random.below(w.random.chance(10) ? 40 : 12));
        o.always = uint32_t(w.random.below(w.random.chance(10) ? 3 : 2));
        if (o.source == EMBER_DRAFTS_NGRAM || w.random.chance(5)) o.min_match = uint32_t(w.random.below(w.random.chance(10) ? 40 : 4));
        if (o.source == EMBER_DRAFTS_MODEL)
            o.draft_model = w.random.chance(10) ? w.bad_handle<ember_model>(0) : w.model().handle;
        else if (w.random.chance(5)) // refused, and not looked at; NULL is right here
            o.draft_model = reinterpret_cast<ember_model *>(w.any_model_handle());
        if (w.random.chance(3)) o.reserved = 1;
    });
    w.call("ember_session_set_speculation", hex(s.handle) + ", " + to_string(options ? options->source : 0), {},
           [&](ember_error *e) { return ember_session_set_speculation(s.handle, options, e); });
}

void speculation_info(World &w) {
    auto s = w.session();
    Buffer<ember_speculation_details> d(1);
    memset(d.data(), 0, sizeof(ember_speculation_details));
    d.data()->struct_size = w.size_of<ember_speculation_details>();
    ember_status status = w.call("ember_session_speculation_info", hex(s.handle), {},
                                 [&](ember_error *e) { return ember_session_speculation_info(s.handle, d.data(), e); });
    if (!d.guards_whole()) failed("ember_session_speculation_info writes beside its struct");
    if (status == EMBER_OK && d.data()->accepted > d.data()->drafted) failed("more drafts accepted than there were");
}

/* --- saved sessions --- */

static string state_path(World &w) {
    static std::atomic<long> number;
    if (!w.states.empty() && w.random.chance(30)) return w.random.of(w.states);
    switch (w.random.below(12)) {
    case 0: return run.scratch + "/no/such/folder/x";
    case 1: return run.scratch;
    case 2: return "";
    case 3: return string("a\0b", 3);
    case 4: return "\xff";
    default: return run.scratch + "/state-" + to_string(++number);
    }
}

static void damage(World &w, const string &path) {
    FILE *f = fopen(path.c_str(), "r+b");
    if (!f) return;
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    if (size > 0 && w.random.chance(50)) {
        long at = long(w.random.below(uint64_t(size)));
        fseek(f, at, SEEK_SET);
        int byte = fgetc(f);
        fseek(f, at, SEEK_SET);
        fputc(byte ^ 1 << w.random.below(8), f);
    } else if (size > 0) {
        if (ftruncate(fileno(f), long(w.random.below(uint64_t(size))))) abort();
    }
    fclose(f);
}

static int32_t cancel_at(World *w) { return w->random.chance(8) ? int32_t(w->random.next() | 1) : 0; }

static int32_t take(void *user, const void *bytes, size_t count) {
    auto *into = static_cast<std::pair<World *, string> *>(user);
    into->second.append(static_cast<const char *>(bytes), count);
    size_t n;
    ember_session_position(nullptr, &n, nullptr);
    return into->second.size() > 1 << 22 ? -1 : cancel_at(into->first);
}

static const ember_save_options *save_options(World &w, ember_save_options &o) {
    return w.options<ember_save_options>(o, [&](ember_save_options &o) { o.kind = uint32_t(w.random.below(w.random.chance(10) ? 4 : 2)); });
}

void save(World &w) {
    auto s = w.session();
    ember_save_options o;
    auto *options = save_options(w, o);
    string path = state_path(w);
    if (w.call("ember_session_save", hex(s.handle) + ", " + path, {}, [&](ember_error *e) {
            return ember_session_save(s.handle, path.data(), path.size(), options, e);
        }) == EMBER_OK) {
        if (std::find(w.states.begin(), w.states.end(), path) == w.states.end()) w.states.push_back(path);
        if (w.random.chance(25)) damage(w, path);
    }
}

void save_to(World &w) {
    auto s = w.session();
    ember_save_options o;
    auto *options = save_options(w, o);
    std::pair<World *, string> into{&w, ""};
    ember_write_fn write = w.random.chance(3) ? nullptr : take;
    if (!write) w.must_fail = true;
    if (w.call("ember_session_save_to", hex(s.handle), {}, [&](ember_error *e) {
            return ember_session_save_to(s.handle, write, &into, options, e);
        }) == EMBER_OK)
        w.saved = into.second;
}

static const ember_restore_options *restore_options(World &w, ember_restore_options &o, ember_cuda_session_options &cuda) {
    return w.options<ember_restore_options>(o, [&](ember_restore_options &o) {
        o.context = w.random.chance(50) ? 0 : uint32_t(w.random.below(w.random.chance(10) ? UINT32_MAX : 250));
        o.kv_type = uint32_t(w.random.below(w.random.chance(10) ? 6 : 3));
        if (w.random.chance(20)) o.next = chain(w, cuda);
    });
}

static void restored(World &w, ember_session *handle, const std::shared_ptr<Model> &model) {
    if (w.sessions.size() > 10) {
        if (ember_session_free(handle)) failed("a restored session cannot be freed");
        return;
    }
    size_t before = w.sessions.size();
    w.keep(handle, model, nullptr);
    /* Its settings are those of the saved one, which may be anything. */
    if (w.sessions.size() > before) w.sessions.back()->odd_sampling = w.sessions.back()->grammar = true;
}

void restore(World &w) {
    auto m = w.model();
    ember_restore_options o;
    ember_cuda_session_options cuda;
    auto *options = restore_options(w, o, cuda);
    string path = state_path(w);
    if (w.random.chance(5)) path = run.hamlet;
    std::shared_ptr<Buffer<ember_session *>> out;
    auto *place = w.out(out);
    if (w.call("ember_session_restore", hex(m.handle) + ", " + path, {}, [&](ember_error *e) {
            return ember_session_restore(m.handle, path.data(), path.size(), options, place, e);
        }) == EMBER_OK)
        restored(w, *out->data(), m.known);
}

struct Source {
    World *world;
    string bytes;
    size_t at;
};

static int32_t give(void *user, void *bytes, size_t capacity, size_t *count) {
    auto *from = static_cast<Source *>(user);
    if (*count) failed("the count of a read callback is not 0 on entry");
    size_t n = std::min(capacity, from->bytes.size() - from->at);
    /* In small pieces, too. */
    if (n > 1 && from->world->random.chance(30)) n = 1 + from->world->random.below(n);
    memcpy(bytes, from->bytes.data() + from->at, n);
    from->at += n;
    *count = n;
    return from->world->random.chance(2) ? 1 : 0;
}

void restore_from(World &w) {
    auto m = w.model();
    ember_restore_options o;
    ember_cuda_session_options cuda;
    auto *options = restore_options(w, o, cuda);
    Source from{&w, w.saved, 0};
    bool whole = w.random.chance(60);
    if (!whole && !from.bytes.empty()) {
        if (w.random.chance(50)) from.bytes[w.random.below(from.bytes.size())] ^= char(1 << w.random.below(8));
        else from.bytes.resize(w.random.below(from.bytes.size()));
        w.must_fail = true;
    }
    ember_read_fn read = w.random.chance(3) ? nullptr : give;
    if (!read) w.must_fail = true;
    std::shared_ptr<Buffer<ember_session *>> out;
    auto *place = w.out(out);
    if (w.call("ember_session_restore_from", hex(m.handle), {}, [&](ember_error *e) {
            return ember_session_restore_from(m.handle, read, &from, options, place, e);
        }) == EMBER_OK)
        restored(w, *out->data(), m.known);
}

void state_info(World &w) {
    string path = state_path(w);
    if (w.random.chance(10)) path = run.hamlet;
    Buffer<ember_state_details> d(1);
    memset(d.data(), 0, sizeof(ember_state_details));
    d.data()->struct_size = w.size_of<ember_state_details>();
    w.call("ember_session_state_info", path, {}, [&](ember_error *e) { return ember_session_state_info(path.data(), path.size(), d.data(), e); });
    if (!d.guards_whole()) failed("ember_session_state_info writes beside its struct");
}

}
