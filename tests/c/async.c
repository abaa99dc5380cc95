/* What a host need not wait for: loads, batches and generations that were started, and events. */
#include "check.h"
#ifndef _WIN32
#include <poll.h>
#else
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#endif

#define N 5

static ember_error err;
static const uint32_t PROMPT[] = {0, 260, 300, 41, 7, 99, 12};

/* Waits for an event, up to a minute. */
static void wait_for(const ember_event *event) {
    int64_t handle = -1;
    OK(ember_event_handle(event, &handle, &err));
#ifndef _WIN32
    {
        struct pollfd entry = {0, POLLIN, 0};
        entry.fd = (int)handle;
        CHECK(poll(&entry, 1, 60000) == 1);
    }
#else
    CHECK(WaitForSingleObject((HANDLE)(intptr_t)handle, 60000) == WAIT_OBJECT_0);
#endif
}

static int is_set(const ember_event *event) {
    int64_t handle = -1;
    OK(ember_event_handle(event, &handle, &err));
#ifndef _WIN32
    {
        struct pollfd entry = {0, POLLIN, 0};
        entry.fd = (int)handle;
        return poll(&entry, 1, 0) == 1;
    }
#else
    return WaitForSingleObject((HANDLE)(intptr_t)handle, 0) == WAIT_OBJECT_0;
#endif
}

static ember_event *new_event(void) {
    ember_event *event = NULL;
    OK(ember_event_create(&event, &err));
    CHECK(!is_set(event));
    return event;
}

static ember_session *prompted(const ember_model *model, size_t n) {
    ember_session_options o = session_options();
    ember_session *session;
    o.context = 128;
    session = create(model, &o);
    OK(ember_prefill(session, PROMPT, 1 + n % 7, &err));
    return session;
}

static void loads(const char *path) {
    ember_event *event = new_event();
    ember_model_options o = model_options();
    ember_model *model = NULL, *again = (ember_model *)(uintptr_t)77;
    ember_load *load = NULL;
    ember_status status;
    float fraction = -1, last = 0;
    o.device = cpu_device();
    o.threads = 2;
    OK(ember_model_load_start(path, strlen(path), &o, event, &load, &err));
    while ((status = ember_load_poll(load, &fraction, &model, &err)) == EMBER_PENDING) {
        CHECK(model == NULL && fraction >= last && fraction <= 1);
        last = fraction;
        wait_for(event);
        OK(ember_event_clear(event, &err));
    }
    STATUS(status, EMBER_OK);
    CHECK(model && fraction == 1);
    STATUS(ember_load_poll(load, &fraction, &again, &err), EMBER_NOTHING_PENDING);
    CHECK(again == (ember_model *)(uintptr_t)77);
    CHECK(ember_load_free(load) == EMBER_OK);
    CHECK(ember_load_free(load) == EMBER_INVALID_HANDLE);
    CHECK(ember_load_free(NULL) == EMBER_OK);
    works(model);
    CHECK(ember_model_free(model) == EMBER_OK);

    /* An error comes by the poll, once. */
    OK(ember_model_load_start("no such file", 12, NULL, NULL, &load, &err));
    while ((status = ember_load_poll(load, NULL, &again, &err)) == EMBER_PENDING) {}
    STATUS(status, EMBER_FILE_NOT_FOUND);
    SAYS("no such file");
    STATUS(ember_load_poll(load, NULL, &again, &err), EMBER_NOTHING_PENDING);
    CHECK(ember_load_free(load) == EMBER_OK);

    /* Cancelled, if it was not over before; and freed with its model in it, or while it runs. */
    OK(ember_model_load_start(path, strlen(path), &o, NULL, &load, &err));
    CHECK(ember_load_cancel(load) == EMBER_OK);
    while ((status = ember_load_poll(load, NULL, &model, &err)) == EMBER_PENDING) {}
    CHECK(status == EMBER_CANCELLED || status == EMBER_OK);
    if (status == EMBER_OK) CHECK(ember_model_free(model) == EMBER_OK);
    CHECK(ember_load_free(load) == EMBER_OK);
    CHECK(ember_load_cancel(load) == EMBER_INVALID_HANDLE);
    OK(ember_event_clear(event, &err));
    OK(ember_model_load_start(path, strlen(path), &o, event, &load, &err));
    wait_for(event);
    CHECK(ember_load_free(load) == EMBER_OK);
    OK(ember_model_load_start(path, strlen(path), &o, event, &load, &err));
    CHECK(ember_load_free(load) == EMBER_OK);

    load = (ember_load *)(uintptr_t)77;
    STATUS(ember_model_load_start("", 0, &o, NULL, &load, &err), EMBER_INVALID_ARGUMENT);
    STATUS(ember_model_load_start(path, strlen(path), &o, (ember_event *)model, &load, &err), EMBER_INVALID_HANDLE);
    o.files = 9;
    STATUS(ember_model_load_start(path, strlen(path), &o, NULL, &load, &err), EMBER_INVALID_ARGUMENT);
    SAYS("files");
    CHECK(load == (ember_load *)(uintptr_t)77);
    CHECK(ember_event_free(event) == EMBER_OK);
    STATUS(ember_event_clear(event, &err), EMBER_INVALID_HANDLE);
    CHECK(ember_event_free(NULL) == EMBER_OK);
}

/* The options of threads: the same tokens, whatever they are. */
static void placed(const char *path, const ember_model *model) {
    static const uint32_t cpus[] = {0, 1023}, bad[] = {0, 1024};
    ember_model_options o = model_options();
    ember_model *other = NULL;
    ember_session *a = prompted(model, 6), *b;
    int i;
    o.device = cpu_device();
    o.threads = 3;
    o.cpus = bad;
    o.cpu_count = 2;
    STATUS(ember_model_load(path, strlen(path), &o, &other, &err), EMBER_INVALID_ARGUMENT);
    CHECK(err.index == 1);
    o.cpus = cpus;
    o.thread_priority = -2;
    o.flags = 0x8000;
    STATUS(ember_model_load(path, strlen(path), &o, &other, &err), EMBER_INVALID_ARGUMENT);
    SAYS("flags");
    o.flags = EMBER_MODEL_NEVER_WAIT;
    OK(ember_model_load(path, strlen(path), &o, &other, &err));
    b = prompted(other, 6);
    for (i = 0; i < 8; i++) {
        uint32_t token = 0;
        if (i % 2) token = decode(b);
        else {
            ember_status status;
            OK(ember_decode_start(b, &err));
            while ((status = poll_id(b, &token, &err)) == EMBER_PENDING) {}
            STATUS(status, EMBER_OK);
        }
        CHECK(decode(a) == token);
    }
    CHECK(ember_session_free(a) == EMBER_OK && ember_session_free(b) == EMBER_OK && ember_model_free(other) == EMBER_OK);
}

/* Collects a token of a session whose event wakes up. */
static ember_token collect(ember_session *session, const ember_event *event) {
    ember_token token = token_to_write();
    ember_status status;
    for (;;) {
        OK(ember_event_clear(event, &err));
        status = ember_decode_poll(session, &token, &err);
        if (status != EMBER_PENDING) break;
        CHECK(token.id == 0x55555555);
        wait_for(event);
    }
    STATUS(status, EMBER_OK);
    return token;
}

static void batches(const ember_model *model) {
    ember_session *alone[N], *together[N], *twice[2];
    ember_event *events[N];
    ember_token token = token_to_write();
    size_t i, round;
    for (i = 0; i < N; i++) {
        alone[i] = prompted(model, i);
        together[i] = prompted(model, i);
        events[i] = new_event();
        OK(ember_session_set_event(together[i], events[i], &err));
    }
    for (round = 0; round < 4; round++) {
        OK(ember_decode_batch_start(together, N, &err));
        STATUS(ember_decode_batch_start(together + 1, 1, &err), EMBER_DECODE_PENDING);
        CHECK(err.index == 0);
        STATUS(ember_session_set_event(together[0], NULL, &err), EMBER_DECODE_PENDING);
        for (i = N; i-- > 0;) CHECK(collect(together[i], events[i]).id == decode(alone[i]));
        STATUS(ember_decode_poll(together[0], &token, &err), EMBER_NOTHING_PENDING);
    }
    /* Decodes and prompts of one session set it, too. */
    OK(ember_decode_start_n(together[0], 3, &err));
    for (i = 0; i < 3; i++) CHECK(collect(together[0], events[0]).id == decode(alone[0]));
    OK(ember_event_clear(events[0], &err));
    OK(ember_prefill_start(together[0], PROMPT, 7, &err));
    wait_for(events[0]);
    OK(ember_prefill_poll(together[0], NULL, &err));
    OK(ember_prefill(alone[0], PROMPT, 7, &err));
    CHECK(decode(together[0]) == decode(alone[0]));
    /* One of a batch is interrupted, one rewound, one freed. */
    OK(ember_decode_batch_start(together, N, &err));
    CHECK(ember_session_interrupt(together[1]) == EMBER_OK);
    OK(ember_session_rewind(together[2], position_of(together[2]), &err));
    CHECK(ember_session_free(together[3]) == EMBER_OK);
    CHECK(collect(together[0], events[0]).id == decode(alone[0]));
    CHECK(collect(together[4], events[4]).id == decode(alone[4]));
    {
        ember_status status;
        while ((status = ember_decode_poll(together[1], &token, &err)) == EMBER_PENDING) {}
        if (status == EMBER_OK) {
            CHECK(token.id == decode(alone[1]));
            STATUS(ember_decode(together[1], &token, &err), EMBER_INTERRUPTED);
        } else STATUS(status, EMBER_INTERRUPTED);
    }
    CHECK(decode(together[1]) == decode(alone[1]));
    CHECK(decode(together[2]) == decode(alone[2]));
    /* What is no batch starts nothing. */
    twice[0] = twice[1] = together[0];
    STATUS(ember_decode_batch_start(twice, 2, &err), EMBER_INVALID_ARGUMENT);
    STATUS(ember_decode_batch_start(twice, 0, &err), EMBER_INVALID_ARGUMENT);
    STATUS(ember_decode_batch_start(NULL, 2, &err), EMBER_NULL_POINTER);
    twice[1] = create(model, NULL);
    STATUS(ember_decode_batch_start(twice, 2, &err), EMBER_NO_INPUT);
    CHECK(err.index == 1);
    STATUS(ember_decode_poll(together[0], &token, &err), EMBER_NOTHING_PENDING);
    CHECK(ember_session_free(twice[1]) == EMBER_OK);
    for (i = 0; i < N; i++) {
        CHECK(ember_session_free(alone[i]) == EMBER_OK);
        CHECK(ember_session_free(together[i]) == (i == 3 ? EMBER_INVALID_HANDLE : EMBER_OK));
        CHECK(ember_event_free(events[i]) == EMBER_OK);
    }
}

/* A grammar's forced tokens, which no device is asked for, set the event as well; and tokens say what they are. */
static void flags(const ember_model *model) {
    static const char GRAMMAR[] = "abc(d|e)";
    ember_event *event = new_event();
    ember_session *session = prompted(model, 6);
    ember_sampling_options s;
    ember_token token;
    unsigned forced = 0, ended = 0, i;
    char text[64];
    size_t len, at = 0;
    OK(ember_session_set_grammar(session, EMBER_GRAMMAR_REGEX, GRAMMAR, strlen(GRAMMAR), NULL, &err));
    OK(ember_session_set_event(session, event, &err));
    for (i = 0; i < 20 && !ended; i++) {
        uint32_t is_end = 7;
        OK(ember_decode_start(session, &err));
        token = collect(session, event);
        check_token(&token);
        OK(ember_token_is_end(model, token.id, &is_end, &err));
        ended = token.flags & EMBER_TOKEN_ENDS;
        CHECK(ended == is_end && !(token.flags & EMBER_TOKEN_HAS_LOGPROB));
        if (token.flags & EMBER_TOKEN_FORCED) forced++;
        if (!ended) OK(ember_token_text(model, token.id, text + at, sizeof text - at, &len, &err)), at += len;
    }
    CHECK(ended && forced > 0 && at == 4 && memcmp(text, "abc", 3) == 0);
    /* A caller that polls once whenever the event is set: each token needs a mask, so that the next poll starts the next. */
    OK(ember_session_rewind(session, position_of(session) - i, &err));
    OK(ember_event_clear(event, &err));
    OK(ember_decode_start_n(session, 3, &err));
    for (i = 0; i < 3;) {
        ember_status status;
        wait_for(event);
        OK(ember_event_clear(event, &err));
        token = token_to_write();
        status = ember_decode_poll(session, &token, &err);
        if (status == EMBER_PENDING) continue;
        STATUS(status, EMBER_OK);
        i++;
    }
    OK(ember_session_set_grammar(session, EMBER_GRAMMAR_NONE, NULL, 0, NULL, &err));
    memset(&s, 0, sizeof s);
    s.struct_size = sizeof s;
    s.logprobs = 3;
    OK(ember_session_set_sampling(session, &s, &err));
    for (i = 0; i < 4; i++) {
        float chosen, values[3];
        uint32_t ids[3];
        token = token_to_write();
        OK(ember_decode(session, &token, &err));
        OK(ember_session_logprobs(session, &chosen, ids, values, 3, &len, &err));
        CHECK(token.flags & EMBER_TOKEN_HAS_LOGPROB);
        CHECK(token.logprob == chosen && token.id == ids[0] && chosen == values[0]);
    }
    OK(ember_session_set_sampling(session, NULL, &err));
    token = token_to_write();
    OK(ember_decode(session, &token, &err));
    CHECK(!(token.flags & (EMBER_TOKEN_HAS_LOGPROB | EMBER_TOKEN_FORCED)) && token.logprob == 0);
    /* Callers with a smaller or a larger struct. */
    token = token_to_write();
    token.struct_size = 8;
    OK(ember_decode(session, &token, &err));
    CHECK(token.flags == 0x55555555 && token.id != 0x55555555);
    {
        struct { ember_token token; uint32_t more[2]; } later;
        memset(&later, 0x55, sizeof later);
        later.token.struct_size = sizeof later;
        OK(ember_decode(session, &later.token, &err));
        CHECK(later.token.id != 0x55555555 && later.more[0] == 0 && later.more[1] == 0);
    }
    CHECK(ember_session_free(session) == EMBER_OK && ember_event_free(event) == EMBER_OK);
}

struct text {
    char bytes[4096];
    size_t len, pieces;
};

static int32_t add_piece(void *user, const char *text, size_t len, const ember_token *token) {
    struct text *t = (struct text *)user;
    (void)token;
    memcpy(t->bytes + t->len, text, len);
    t->len += len;
    t->pieces++;
    return 0;
}

/* Piece by piece what the callback gets, with a reason of the end that is the same. */
static void pulled(const ember_model *model, size_t limit, const char *stop, int wait) {
    ember_stop stops[1] = {{stop, stop ? strlen(stop) : 0}};
    ember_generate_options o;
    ember_generate_details wanted, got;
    ember_session *a = create(model, NULL), *b = create(model, NULL);
    ember_event *event = new_event();
    struct text all = {{0}, 0, 0}, mine = {{0}, 0, 0};
    ember_token token = token_to_write();
    size_t len;
    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o;
    o.prompt = PROMPT;
    o.prompt_count = 7;
    o.max_tokens = limit;
    o.stops = stops;
    o.stop_count = stop ? 1 : 0;
    o.piece = add_piece;
    o.user = &all;
    wanted.struct_size = got.struct_size = sizeof got;
    OK(ember_generate(a, &o, &wanted, &err));
    STATUS(ember_generate_start(b, &o, &err), EMBER_INVALID_ARGUMENT);
    SAYS("piece");
    STATUS(ember_generate_next(b, 0, mine.bytes, 8, &len, &token, &err), EMBER_NOTHING_PENDING);
    STATUS(ember_generate_finish(b, &got, &err), EMBER_NOTHING_PENDING);
    o.piece = NULL;
    OK(ember_session_set_event(b, event, &err));
    OK(ember_generate_start(b, &o, &err));
    STATUS(ember_generate_start(b, &o, &err), EMBER_DECODE_PENDING);
    STATUS(ember_prefill(b, PROMPT, 1, &err), EMBER_DECODE_PENDING);
    STATUS(ember_generate_next(b, 8, mine.bytes, 8, &len, &token, &err), EMBER_INVALID_ARGUMENT);
    for (;;) {
        ember_status status;
        token = token_to_write();
        OK(ember_event_clear(event, &err));
        /* At first without room: the piece stays. */
        status = ember_generate_next(b, wait ? 0u : (uint32_t)EMBER_NEXT_NO_WAIT, NULL, 0, &len, &token, &err);
        if (status == EMBER_PENDING) {
            CHECK(!wait && token.id == 0x55555555);
            wait_for(event);
            continue;
        }
        if (status == EMBER_BUFFER_TOO_SMALL) {
            CHECK(len > 0 && token.id == 0x55555555);
            status = ember_generate_next(b, 0, mine.bytes + mine.len, sizeof mine.bytes - mine.len, &len, &token, &err);
        }
        STATUS(status, EMBER_OK);
        mine.len += len;
        if (token.id != EMBER_NO_TOKEN || len) mine.pieces++;
        if (token.id == EMBER_NO_TOKEN) break;
        check_token(&token);
    }
    OK(ember_generate_next(b, 0, NULL, 0, &len, &token, &err));
    CHECK(len == 0 && token.id == EMBER_NO_TOKEN);
    OK(ember_generate_finish(b, &got, &err));
    CHECK(memcmp(&got, &wanted, sizeof got) == 0);
    CHECK(mine.len == all.len && memcmp(mine.bytes, all.bytes, all.len) == 0 && mine.pieces == all.pieces);
    CHECK(position_of(a) == position_of(b) && decode(a) == decode(b));
    CHECK(ember_session_free(a) == EMBER_OK && ember_session_free(b) == EMBER_OK && ember_event_free(event) == EMBER_OK);
}

/* Ended early, by each of those who may. */
static void pulled_in_part(const ember_model *model) {
    ember_session *session = create(model, NULL), *plain = prompted(model, 6);
    ember_generate_options o;
    ember_generate_details d;
    ember_token token = token_to_write();
    char text[256];
    size_t len, i;
    uint32_t first, second;
    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o;
    STATUS(ember_generate_start(session, &o, &err), EMBER_NO_INPUT);
    o.prompt = PROMPT;
    o.prompt_count = 7;
    d.struct_size = sizeof d;
    first = decode(plain), second = decode(plain);
    for (i = 0; i < 4; i++) {
        OK(ember_session_rewind(session, 0, &err));
        OK(ember_generate_start(session, &o, &err));
        if (i == 0) {
            /* Before the prompt was evaluated. */
            OK(ember_generate_finish(session, &d, &err));
            CHECK(d.end == EMBER_END_CALLBACK && d.token_count == 0 && d.position == 0 && position_of(session) == 0);
            continue;
        }
        if (i == 1) {
            /* An interrupt while the prompt is evaluated is an error, and the next call tries again. */
            CHECK(ember_session_interrupt(session) == EMBER_OK);
            STATUS(ember_generate_next(session, 0, text, sizeof text, &len, &token, &err), EMBER_INTERRUPTED);
            CHECK(position_of(session) == 0);
        }
        OK(ember_generate_next(session, 0, text, sizeof text, &len, &token, &err));
        CHECK(token.id == first);
        if (i == 1) {
            CHECK(ember_session_interrupt(session) == EMBER_OK);
            do OK(ember_generate_next(session, 0, text, sizeof text, &len, &token, &err));
            while (token.id != EMBER_NO_TOKEN);
            OK(ember_generate_finish(session, &d, &err));
            CHECK(d.end == EMBER_END_INTERRUPTED && d.token_count == 1 && d.token == first);
        } else if (i == 2) {
            /* With work under way. */
            ember_status status = ember_generate_next(session, EMBER_NEXT_NO_WAIT, text, sizeof text, &len, &token, &err);
            CHECK(status == EMBER_PENDING || status == EMBER_OK);
            OK(ember_generate_finish(session, NULL, &err));
            CHECK(position_of(session) == (status == EMBER_OK ? 9u : 8u));
            OK(ember_session_rewind(session, 8, &err));
        } else {
            OK(ember_session_rewind(session, 8, &err));
            STATUS(ember_generate_finish(session, NULL, &err), EMBER_NOTHING_PENDING);
        }
        CHECK(decode(session) == second);
    }
    OK(ember_generate_start(session, &o, &err));
    CHECK(ember_session_free(session) == EMBER_OK);
    CHECK(ember_session_free(plain) == EMBER_OK);
}

/* A session knows its model, and its handle is enough to go on with. */
static void models(const char *path) {
    ember_model *model = load(path), *again = NULL;
    ember_session *session = prompted(model, 3);
    ember_session_details s;
    ember_model_details m;
    char text[64];
    size_t len;
    CHECK(ember_model_free(model) == EMBER_OK);
    STATUS(ember_token_text(model, 300, text, sizeof text, &len, &err), EMBER_INVALID_HANDLE);
    OK(ember_session_model(session, &again, &err));
    CHECK(again != model);
    OK(ember_token_text(again, decode(session), text, sizeof text, &len, &err));
    s.struct_size = sizeof s;
    m.struct_size = sizeof m;
    OK(ember_session_info(session, &s, &err));
    OK(ember_model_info(again, &m, &err));
    CHECK(s.vocab_size == m.vocab_size && m.max_batch >= 64);
    STATUS(ember_session_model(session, NULL, &err), EMBER_NULL_POINTER);
    CHECK(ember_session_free(session) == EMBER_OK);
    works(again);
    CHECK(ember_model_free(again) == EMBER_OK);
    STATUS(ember_session_model(session, &again, &err), EMBER_INVALID_HANDLE);
}

int main(int argc, char **argv) {
    ember_model *model;
    int wait;
    CHECK(argc == 2);
    loads(argv[1]);
    model = load(argv[1]);
    placed(argv[1], model);
    batches(model);
    flags(model);
    for (wait = 0; wait < 2; wait++) {
        pulled(model, 12, NULL, wait);
        pulled(model, 40, " the", wait);
        pulled(model, 0, "\1none", wait);
    }
    pulled_in_part(model);
    models(argv[1]);
    CHECK(ember_model_free(model) == EMBER_OK);
    return 0;
}
