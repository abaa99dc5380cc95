/* ember_generate beside the loop that it replaces, and every reason to end. POSIX threads. */
#include "check.h"
#include <pthread.h>
#include <sched.h>

#define N_PROMPT 4
#define MOST 256

static ember_error err;
static const uint32_t PROMPT[N_PROMPT] = {0, 260, 300, 41};

/* What the callback has got. */
struct pieces {
    ember_session *session, *other;
    const ember_model *model;
    char text[4096];
    size_t len, n_calls, n_flushed;
    uint32_t tokens[MOST];
    /* Ends the generation with this call, counted from 1; or interrupts it. */
    size_t stop_at, interrupt_at;
    int nested;
    /* Whether the session was asked for log-probabilities. */
    int logprobs;
};

static void busy(struct pieces *p);

static int32_t piece(void *user, const char *text, size_t len, const ember_token *token) {
    struct pieces *p = (struct pieces *)user;
    CHECK(token->struct_size >= sizeof *token && token->status == EMBER_OK);
    CHECK(p->len + len < sizeof p->text);
    memcpy(p->text + p->len, text, len);
    p->len += len;
    p->text[p->len] = 0;
    if (token->id == EMBER_NO_TOKEN) {
        CHECK(len > 0 && token->flags == 0);
        p->n_flushed++;
        return 1;
    }
    CHECK(p->n_flushed == 0 && p->n_calls < MOST);
    CHECK(((token->flags & EMBER_TOKEN_HAS_LOGPROB) != 0) == p->logprobs && token->logprob <= 0);
    p->tokens[p->n_calls++] = token->id;
    if (p->nested) busy(p);
    if (p->n_calls == p->interrupt_at) CHECK(ember_session_interrupt(p->session) == EMBER_OK);
    return p->n_calls == p->stop_at;
}

static ember_generate_options options(struct pieces *p) {
    ember_generate_options o;
    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o;
    o.piece = piece;
    o.user = p;
    return o;
}

static ember_generate_details details(void) {
    ember_generate_details d;
    memset(&d, 0x55, sizeof d);
    d.struct_size = sizeof d;
    return d;
}

static struct pieces none(const ember_model *model, ember_session *session) {
    struct pieces p;
    memset(&p, 0, sizeof p);
    p.model = model;
    p.session = session;
    return p;
}

static ember_session *sampling(const ember_model *model) {
    ember_session_options o = session_options();
    ember_sampling_options s = sampling_options();
    o.sampling = &s;
    s.temperature = 0.9f;
    s.seed = 11;
    s.logprobs = 1;
    return create(model, &o);
}

/* The context of a session is these tokens. */
static void has(ember_session *session, const uint32_t *tokens, size_t n) {
    static uint32_t found[4096];
    size_t count;
    OK(ember_session_tokens(session, 0, found, 4096, &count, &err));
    CHECK(count == n && memcmp(found, tokens, 4 * n) == 0);
}

/* The same tokens and the same text as by hand; also when it goes on, and without a callback. */
static void like_the_loop(const ember_model *model) {
    static uint32_t context[N_PROMPT + MOST];
    ember_session *session = sampling(model), *by_hand = sampling(model);
    struct pieces p = none(model, session);
    ember_generate_options o = options(&p);
    ember_generate_details d = details();
    static const size_t LIMITS[4] = {1, 40, 7, 60};
    size_t i, k, made = N_PROMPT;
    memcpy(context, PROMPT, sizeof PROMPT);
    OK(ember_prefill(by_hand, PROMPT, N_PROMPT, &err));
    o.flags = EMBER_GENERATE_IGNORE_END;
    for (i = 0; i < 4; i++) {
        char text[4096];
        size_t len;
        p = none(model, session);
        p.logprobs = 1;
        o.prompt = i == 0 ? PROMPT : NULL;
        o.prompt_count = i == 0 ? N_PROMPT : 0;
        o.max_tokens = LIMITS[i];
        o.piece = i == 2 ? NULL : piece;
        OK(ember_generate(session, &o, i == 1 ? NULL : &d, &err));
        for (k = 0; k < LIMITS[i]; k++) context[made + k] = decode(by_hand);
        OK(ember_detokenize(model, context + made, LIMITS[i], EMBER_DETOKENIZE_SKIP_SPECIAL | EMBER_DETOKENIZE_CONTINUE, text,
                            sizeof text, &len, &err));
        if (i != 1) {
            CHECK(d.struct_size == sizeof d && d.end == EMBER_END_LIMIT && d.stop == EMBER_NO_INDEX);
            CHECK(d.position == made && d.token_count == LIMITS[i]);
            CHECK(d.token == context[made + LIMITS[i] - 1]);
        }
        if (i != 2) {
            CHECK(p.n_calls == LIMITS[i] && memcmp(p.tokens, context + made, 4 * LIMITS[i]) == 0);
            /* Whole characters: the text of bytes that end in the middle of one differs. */
            if (p.n_flushed == 0) CHECK(p.len == len && memcmp(p.text, text, len) == 0);
        }
        if (i == 3) CHECK(d.text_bytes == p.len);
        made += LIMITS[i];
        has(session, context, made);
        CHECK(position_of(session) == made);
    }
    CHECK(decode(session) == decode(by_hand));
    CHECK(ember_session_free(session) == EMBER_OK);
    CHECK(ember_session_free(by_hand) == EMBER_OK);
}

/* By a grammar the answer ends, with a token that the callback does not get. */
static void end_tokens(const ember_model *model) {
    ember_session *session = create(model, NULL);
    struct pieces p = none(model, session);
    ember_generate_options o = options(&p);
    ember_generate_details d = details();
    uint32_t is_end = 0;
    OK(ember_prefill(session, PROMPT, N_PROMPT, &err));
    OK(ember_session_set_grammar(session, EMBER_GRAMMAR_REGEX, "[a-f]{3}!", 9, NULL, &err));
    OK(ember_generate(session, &o, &d, &err));
    CHECK(d.end == EMBER_END_TOKEN && p.len == 4 && strspn(p.text, "abcdef") == 3 && p.text[3] == '!');
    OK(ember_token_is_end(model, d.token, &is_end, &err));
    CHECK(is_end == 1 && d.token_count == p.n_calls + 1 && d.text_bytes == 4);
    CHECK(position_of(session) == N_PROMPT + d.token_count);
    /* It ignores them if it is told to. */
    p = none(model, session);
    OK(ember_session_rewind(session, N_PROMPT, &err));
    o.flags = EMBER_GENERATE_IGNORE_END | EMBER_GENERATE_SHOW_SPECIAL;
    o.max_tokens = 12;
    OK(ember_generate(session, &o, &d, &err));
    CHECK(d.end == EMBER_END_LIMIT && d.token_count == 12 && p.len > 4);
    CHECK(ember_session_free(session) == EMBER_OK);
}

static void stop_strings(const ember_model *model) {
    ember_session *session = create(model, NULL);
    struct pieces all = none(model, session), p = all;
    ember_generate_options o = options(&all);
    ember_generate_details d = details();
    ember_stop stops[3] = {{"\1never", 6}, {NULL, 5}, {"\2never", 6}};
    size_t at;
    o.prompt = PROMPT;
    o.prompt_count = N_PROMPT;
    o.max_tokens = 60;
    o.flags = EMBER_GENERATE_IGNORE_END;
    OK(ember_generate(session, &o, &d, &err));
    CHECK(all.len > 60);
    /* A part of that text, wherever its tokens begin. */
    for (at = 20; at < 40; at++) {
        char *found;
        if (((unsigned char)all.text[at] & 0xc0) == 0x80 || ((unsigned char)all.text[at + 5] & 0xc0) == 0x80) continue;
        stops[1].text = all.text + at;
        found = all.text;
        while (memcmp(found, all.text + at, 5) != 0) found++;
        p = none(model, session);
        o.user = &p;
        o.stops = stops;
        o.stop_count = 3;
        OK(ember_session_rewind(session, 0, &err));
        d = details();
        OK(ember_generate(session, &o, &d, &err));
        CHECK(d.end == EMBER_END_STOP && d.stop == 1 && d.token == p.tokens[p.n_calls - 1]);
        CHECK(p.len == (size_t)(found - all.text) && memcmp(p.text, all.text, p.len) == 0);
        CHECK(d.text_bytes == p.len && p.n_flushed == 0 && d.token_count == p.n_calls);
        CHECK(memcmp(p.tokens, all.tokens, 4 * p.n_calls) == 0);
        CHECK(position_of(session) == N_PROMPT + p.n_calls);
    }
    /* What could begin one is text after all when the limit comes. */
    {
        char beginning[64];
        memcpy(beginning, all.text + all.len - 3, 3);
        memcpy(beginning + 3, "\1\1", 2);
        stops[0].text = beginning;
        stops[0].len = 5;
        o.stop_count = 1;
        p = none(model, session);
        OK(ember_session_rewind(session, 0, &err));
        OK(ember_generate(session, &o, &d, &err));
        CHECK(d.end == EMBER_END_LIMIT && p.n_flushed == 1 && p.len == all.len && memcmp(p.text, all.text, p.len) == 0);
        CHECK(d.text_bytes == p.len);
    }
    CHECK(ember_session_free(session) == EMBER_OK);
}

static void by_the_callback(const ember_model *model) {
    ember_session *session = create(model, NULL), *plain = create(model, NULL);
    struct pieces p = none(model, session);
    ember_generate_options o = options(&p);
    ember_generate_details d = details();
    size_t i;
    o.prompt = PROMPT;
    o.prompt_count = N_PROMPT;
    o.flags = EMBER_GENERATE_IGNORE_END;
    p.stop_at = 5;
    OK(ember_generate(session, &o, &d, &err));
    CHECK(d.end == EMBER_END_CALLBACK && d.token_count == 5 && p.n_calls == 5 && p.n_flushed == 0);
    /* Interrupted from the callback, and goes on. */
    p = none(model, session);
    p.interrupt_at = 3;
    o.prompt_count = 0;
    OK(ember_generate(session, &o, &d, &err));
    CHECK(d.end == EMBER_END_INTERRUPTED && d.token_count == 3 && d.position == N_PROMPT + 5);
    /* It was answered. */
    OK(ember_prefill(plain, PROMPT, N_PROMPT, &err));
    for (i = 0; i < 8; i++) decode(plain);
    for (i = 0; i < 5; i++) CHECK(decode(session) == decode(plain));
    /* Before the call: nothing is done, and it is answered. */
    CHECK(ember_session_interrupt(session) == EMBER_OK);
    d.end = 77;
    STATUS(ember_generate(session, &o, &d, &err), EMBER_INTERRUPTED);
    CHECK(d.end == 77 && position_of(session) == N_PROMPT + 13);
    p = none(model, session);
    p.stop_at = 1;
    OK(ember_generate(session, &o, &d, &err));
    CHECK(ember_session_free(session) == EMBER_OK);
    CHECK(ember_session_free(plain) == EMBER_OK);
}

/* Within the callback, the session is busy, and nothing else is. */
static void busy(struct pieces *p) {
    uint32_t token;
    size_t count;
    static float logits[1424];
    ember_session *made = NULL;
    ember_session_details info;
    CHECK(position_of(p->session) == 0);
    info.struct_size = sizeof info;
    OK(ember_session_info(p->session, &info, &err));
    STATUS(decode_id(p->session, &token, &err), EMBER_BUSY);
    STATUS(ember_decode_start(p->session, &err), EMBER_BUSY);
    STATUS(poll_id(p->session, &token, &err), EMBER_BUSY);
    STATUS(batch_ids(&p->session, 1, &token, &err), EMBER_BUSY);
    CHECK(err.index == 0);
    STATUS(ember_prefill(p->session, PROMPT, 1, &err), EMBER_BUSY);
    STATUS(ember_session_sync(p->session, PROMPT, 1, NULL, &err), EMBER_BUSY);
    STATUS(ember_session_tokens(p->session, 0, NULL, 0, &count, &err), EMBER_BUSY);
    STATUS(ember_session_logits(p->session, logits, 1424, &err), EMBER_BUSY);
    STATUS(ember_session_rewind(p->session, 0, &err), EMBER_BUSY);
    STATUS(ember_session_fork(p->session, &made, &err), EMBER_BUSY);
    STATUS(ember_session_evict(p->session, &err), EMBER_BUSY);
    STATUS(ember_session_set_sampling(p->session, NULL, &err), EMBER_BUSY);
    STATUS(ember_generate(p->session, NULL, NULL, &err), EMBER_BUSY);
    CHECK(made == NULL);
    /* Others are not; they may even generate. */
    if (p->other != NULL) {
        struct pieces inner = none(p->model, p->other);
        ember_generate_options o = options(&inner);
        ember_generate_details d = details();
        o.prompt = PROMPT;
        o.prompt_count = N_PROMPT;
        o.max_tokens = 3;
        o.flags = EMBER_GENERATE_IGNORE_END;
        OK(ember_generate(p->other, &o, &d, &err));
        CHECK(inner.n_calls == 3);
    }
    works(p->model);
}

static void nested(const ember_model *model) {
    ember_session *session = create(model, NULL);
    struct pieces p = none(model, session);
    ember_generate_options o = options(&p);
    ember_generate_details d = details();
    o.flags = EMBER_GENERATE_IGNORE_END;
    p.nested = 1;
    p.other = create(model, NULL);
    o.prompt = PROMPT;
    o.prompt_count = N_PROMPT;
    o.max_tokens = 4;
    OK(ember_generate(session, &o, &d, &err));
    CHECK(d.end == EMBER_END_LIMIT && p.n_calls == 4);
    CHECK(position_of(p.other) == 4 * (N_PROMPT + 3));
    CHECK(ember_session_free(p.other) == EMBER_OK);
    CHECK(ember_session_free(session) == EMBER_OK);
}

static void full_contexts_and_errors(const ember_model *model) {
    static const uint32_t BAD[3] = {1, 2, 1u << 30};
    ember_session_options s = session_options();
    ember_session *session;
    struct pieces p = none(model, NULL);
    ember_generate_options o = options(&p);
    ember_generate_details d = details();
    ember_stop stops[2] = {{"a", 1}, {"", 0}};
    ember_model *other;
    s.context = 12;
    session = create(model, &s);
    STATUS(ember_generate(session, &o, &d, &err), EMBER_NO_INPUT);
    CHECK(d.end == 0x55555555);
    o.prompt = PROMPT;
    o.prompt_count = N_PROMPT;
    o.flags = EMBER_GENERATE_IGNORE_END;
    OK(ember_generate(session, &o, &d, &err));
    CHECK(d.end == EMBER_END_CONTEXT_FULL && d.token_count == 8 && position_of(session) == 12);
    /* There is no room for a token, and that is how it ends; nor for a prompt, which is an error. */
    o.prompt_count = 0;
    OK(ember_generate(session, &o, &d, &err));
    CHECK(d.end == EMBER_END_CONTEXT_FULL && d.token_count == 0 && d.token == EMBER_NO_TOKEN && d.position == 12);
    o.prompt_count = 1;
    STATUS(ember_generate(session, &o, &d, &err), EMBER_CONTEXT_FULL);
    OK(ember_session_rewind(session, 3, &err));
    /* Refused before anything is done. */
    o.prompt = BAD;
    o.prompt_count = 3;
    STATUS(ember_generate(session, &o, &d, &err), EMBER_INVALID_TOKEN);
    CHECK(err.index == 2);
    o.prompt = NULL;
    STATUS(ember_generate(session, &o, &d, &err), EMBER_NULL_POINTER);
    o.prompt_count = 0;
    o.stops = stops;
    o.stop_count = 2;
    STATUS(ember_generate(session, &o, &d, &err), EMBER_INVALID_ARGUMENT);
    CHECK(err.index == 1);
    stops[1].text = "\377", stops[1].len = 1;
    STATUS(ember_generate(session, &o, &d, &err), EMBER_INVALID_UTF8);
    CHECK(err.index == 1);
    o.stop_count = 0;
    o.flags = 8;
    STATUS(ember_generate(session, &o, &d, &err), EMBER_INVALID_ARGUMENT);
    SAYS("0x8");
    o.flags = 0;
    o.struct_size = 5;
    STATUS(ember_generate(session, &o, &d, &err), EMBER_INVALID_ARGUMENT);
    o.struct_size = sizeof o;
    d.struct_size = 5;
    STATUS(ember_generate(session, &o, &d, &err), EMBER_INVALID_ARGUMENT);
    d.struct_size = sizeof d;
    OK(ember_decode_start(session, &err));
    STATUS(ember_generate(session, &o, &d, &err), EMBER_DECODE_PENDING);
    OK(ember_session_rewind(session, 3, &err));
    CHECK(position_of(session) == 3);
    CHECK(ember_session_free(session) == EMBER_OK);
    STATUS(ember_generate(session, &o, &d, &err), EMBER_INVALID_HANDLE);
    STATUS(ember_generate(NULL, &o, &d, &err), EMBER_INVALID_HANDLE);
    /* A model without a tokenizer has no text to give. */
    other = load("tests/data/families/mistral");
    session = create(other, NULL);
    o.prompt = BAD;
    o.prompt_count = 2;
    STATUS(ember_generate(session, &o, &d, &err), EMBER_UNSUPPORTED);
    CHECK(position_of(session) == 0);
    CHECK(ember_session_free(session) == EMBER_OK);
    CHECK(ember_model_free(other) == EMBER_OK);
}

static void *interrupter(void *user) {
    int i;
    for (i = 0; i < 50; i++) sched_yield();
    CHECK(ember_session_interrupt((ember_session *)user) == EMBER_OK);
    return NULL;
}

/* By another thread, whenever it likes: what was made is there, and the interrupt is answered. */
static void from_another_thread(const ember_model *model) {
    int round;
    for (round = 0; round < 10; round++) {
        ember_session_options s = session_options();
        ember_session *session;
        struct pieces p = none(model, NULL);
        ember_generate_options o = options(&p);
        ember_generate_details d = details();
        ember_status status;
        pthread_t thread;
        s.context = 1024;
        session = create(model, &s);
        o.prompt = PROMPT;
        o.prompt_count = N_PROMPT;
        o.flags = EMBER_GENERATE_IGNORE_END;
        o.piece = NULL;
        CHECK(pthread_create(&thread, NULL, interrupter, session) == 0);
        status = ember_generate(session, &o, &d, &err);
        CHECK(pthread_join(thread, NULL) == 0);
        if (status == EMBER_INTERRUPTED) {
            CHECK(position_of(session) == 0);
        } else {
            STATUS(status, EMBER_OK);
            CHECK(d.end == EMBER_END_INTERRUPTED || d.end == EMBER_END_CONTEXT_FULL);
            CHECK(position_of(session) == N_PROMPT + d.token_count);
            if (d.end == EMBER_END_CONTEXT_FULL) CHECK(ember_session_clear_interrupt(session) == EMBER_OK);
        }
        OK(ember_session_sync(session, PROMPT, N_PROMPT, NULL, &err));
        decode(session);
        CHECK(ember_session_free(session) == EMBER_OK);
    }
}

int main(int argc, char **argv) {
    ember_model *model = load(argc > 1 ? argv[1] : "");
    like_the_loop(model);
    end_tokens(model);
    stop_strings(model);
    by_the_callback(model);
    nested(model);
    full_contexts_and_errors(model);
    from_another_thread(model);
    works(model);
    CHECK(ember_model_free(model) == EMBER_OK);
    return 0;
}
