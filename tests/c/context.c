/* What a session's context is: reading its tokens, syncing it, and interrupts, which count until they are answered. POSIX threads. */
#include "check.h"
#include <pthread.h>
#include <sched.h>

#define N_VOCAB 1424
#define N_PROMPT 6

static ember_error err;
static const uint32_t PROMPT[N_PROMPT] = {0, 260, 300, 41, 77, 500};

static ember_session *prompted(const ember_model *model) {
    ember_session *session = create(model, NULL);
    OK(ember_prefill(session, PROMPT, N_PROMPT, &err));
    return session;
}

static void reading(const ember_model *model) {
    uint32_t tokens[16], token;
    size_t count = 99, i;
    ember_session *session = create(model, NULL);
    OK(ember_session_tokens(session, 0, NULL, 0, &count, &err));
    CHECK(count == 0);
    OK(ember_prefill(session, PROMPT, N_PROMPT, &err));
    token = decode(session);
    memset(tokens, 0x55, sizeof tokens);
    OK(ember_session_tokens(session, 0, tokens, 16, &count, &err));
    CHECK(count == N_PROMPT + 1 && memcmp(tokens, PROMPT, sizeof PROMPT) == 0 && tokens[N_PROMPT] == token);
    CHECK(tokens[N_PROMPT + 1] == 0x55555555);
    for (i = 0; i <= N_PROMPT; i++) {
        OK(ember_session_tokens(session, i, tokens, N_PROMPT + 1 - i, &count, &err));
        CHECK(count == N_PROMPT + 1 - i && tokens[0] == (i < N_PROMPT ? PROMPT[i] : token));
    }
    OK(ember_session_tokens(session, N_PROMPT + 1, tokens, 16, &count, &err));
    CHECK(count == 0);
    tokens[0] = 7;
    STATUS(ember_session_tokens(session, 0, tokens, N_PROMPT, &count, &err), EMBER_BUFFER_TOO_SMALL);
    CHECK(count == N_PROMPT + 1 && tokens[0] == 7);
    STATUS(ember_session_tokens(session, N_PROMPT + 2, tokens, 16, &count, &err), EMBER_INVALID_ARGUMENT);
    SAYS("has 7 tokens");
    STATUS(ember_session_tokens(session, (size_t)-1, tokens, 16, &count, &err), EMBER_INVALID_ARGUMENT);
    STATUS(ember_session_tokens(session, 0, NULL, 16, &count, &err), EMBER_NULL_POINTER);
    STATUS(ember_session_tokens(session, 0, tokens, 16, NULL, &err), EMBER_NULL_POINTER);
    /* What is under way does not count yet. */
    OK(ember_prefill_start(session, PROMPT, N_PROMPT, &err));
    OK(ember_session_tokens(session, 0, tokens, 16, &count, &err));
    CHECK(count == N_PROMPT + 1);
    CHECK(ember_session_free(session) == EMBER_OK);
    STATUS(ember_session_tokens(session, 0, tokens, 16, &count, &err), EMBER_INVALID_HANDLE);
}

/* The session has these tokens, and says what one says that was prefilled with them. */
static void is_like(const ember_model *model, ember_session *session, const uint32_t *tokens, size_t n) {
    static float got[N_VOCAB], wanted[N_VOCAB];
    ember_session *fresh = create(model, NULL);
    uint32_t found[64];
    size_t count;
    OK(ember_session_tokens(session, 0, found, 64, &count, &err));
    CHECK(count == n && memcmp(found, tokens, n * sizeof *tokens) == 0);
    OK(ember_prefill(fresh, tokens, n, &err));
    OK(ember_session_logits(session, got, N_VOCAB, &err));
    OK(ember_session_logits(fresh, wanted, N_VOCAB, &err));
    CHECK(memcmp(got, wanted, sizeof got) == 0);
    CHECK(ember_session_free(fresh) == EMBER_OK);
}

static void syncing(const ember_model *model) {
    uint32_t tokens[64], bad[3];
    size_t kept = 99, n;
    ember_session *session = create(model, NULL);
    ember_session_options o = session_options();
    memcpy(tokens, PROMPT, sizeof PROMPT);
    OK(ember_session_sync(session, tokens, N_PROMPT, &kept, &err));
    CHECK(kept == 0);
    is_like(model, session, tokens, N_PROMPT);
    /* Nothing to do. */
    OK(ember_session_sync(session, tokens, N_PROMPT, &kept, &err));
    CHECK(kept == N_PROMPT);
    is_like(model, session, tokens, N_PROMPT);
    /* An answer and a new question behind it. */
    n = N_PROMPT;
    tokens[n++] = decode(session);
    tokens[n++] = decode(session);
    tokens[n++] = 300;
    OK(ember_session_sync(session, tokens, n, &kept, &err));
    CHECK(kept == N_PROMPT + 2);
    is_like(model, session, tokens, n);
    /* The answer alone: its last token has not been evaluated behind a decode. */
    decode(session);
    OK(ember_session_sync(session, tokens, n, NULL, &err));
    is_like(model, session, tokens, n);
    /* Changed in the middle, cut, all new. */
    tokens[3] = 42;
    OK(ember_session_sync(session, tokens, n, &kept, &err));
    CHECK(kept == 3);
    is_like(model, session, tokens, n);
    OK(ember_session_sync(session, tokens, 2, &kept, &err));
    CHECK(kept == 2);
    is_like(model, session, tokens, 2);
    tokens[0] = 9;
    OK(ember_session_sync(session, tokens, n, &kept, &err));
    CHECK(kept == 0);
    is_like(model, session, tokens, n);
    /* Evicted. */
    OK(ember_session_evict(session, &err));
    tokens[n++] = 11;
    OK(ember_session_sync(session, tokens, n, &kept, &err));
    CHECK(kept == n - 1);
    is_like(model, session, tokens, n);

    /* Refused, with everything as it was. */
    kept = 99;
    STATUS(ember_session_sync(session, tokens, 0, &kept, &err), EMBER_NO_INPUT);
    STATUS(ember_session_sync(session, NULL, 3, &kept, &err), EMBER_NULL_POINTER);
    bad[0] = 1, bad[1] = 2, bad[2] = N_VOCAB;
    STATUS(ember_session_sync(session, bad, 3, &kept, &err), EMBER_INVALID_TOKEN);
    CHECK(err.index == 2 && kept == 99);
    OK(ember_decode_start(session, &err));
    STATUS(ember_session_sync(session, tokens, 1, &kept, &err), EMBER_DECODE_PENDING);
    OK(ember_session_rewind(session, n, &err));
    is_like(model, session, tokens, n);
    CHECK(ember_session_free(session) == EMBER_OK);
    STATUS(ember_session_sync(session, tokens, 1, &kept, &err), EMBER_INVALID_HANDLE);
    o.context = 8;
    session = create(model, &o);
    OK(ember_session_sync(session, tokens, 8, &kept, &err));
    STATUS(ember_session_sync(session, tokens, 9, &kept, &err), EMBER_CONTEXT_FULL);
    CHECK(position_of(session) == 8);
    CHECK(ember_session_free(session) == EMBER_OK);
}

/* A grammar's answer begins behind what was synced. */
static void syncing_a_grammar(const ember_model *model) {
    static const char REGEX[] = "[a-f]{3}";
    ember_session *session = prompted(model);
    char text[2][64];
    int i;
    OK(ember_session_set_grammar(session, EMBER_GRAMMAR_REGEX, REGEX, strlen(REGEX), NULL, &err));
    for (i = 0; i < 2; i++) {
        size_t len = 0, part;
        uint32_t token = 0, end = 0;
        for (;;) {
            token = decode(session);
            OK(ember_token_is_end(model, token, &end, &err));
            if (end) break;
            OK(ember_token_text(model, token, text[i] + len, sizeof text[i] - 1 - len, &part, &err));
            len += part;
        }
        text[i][len] = 0;
        CHECK(len == 3 && strspn(text[i], "abcdef") == 3);
        OK(ember_session_sync(session, PROMPT, N_PROMPT, NULL, &err));
    }
    CHECK(memcmp(text[0], text[1], 3) == 0);
    CHECK(ember_session_free(session) == EMBER_OK);
}

static void sticky(const ember_model *model) {
    ember_session *session = prompted(model), *other = prompted(model), *pair[2];
    static float logits[N_VOCAB];
    uint32_t token = 77, tokens[2];
    ember_error *e = &err;
    CHECK(ember_session_interrupt(session) == EMBER_OK);
    CHECK(ember_session_interrupt(session) == EMBER_OK);
    /* What does not compute neither ends nor answers it. */
    CHECK(position_of(session) == N_PROMPT);
    OK(ember_session_set_sampling(session, NULL, &err));
    OK(ember_session_evict(session, &err));
    OK(ember_session_rewind(session, N_PROMPT, &err));
    STATUS(decode_id(session, &token, &err), EMBER_INTERRUPTED);
    CHECK(token == 77 && position_of(session) == N_PROMPT);
    OK(decode_id(session, &token, &err));
    /* Every function that computes answers it. */
#define ANSWERS(call) \
    CHECK(ember_session_interrupt(session) == EMBER_OK); \
    STATUS(call, EMBER_INTERRUPTED)
    ANSWERS(ember_prefill(session, PROMPT, N_PROMPT, e));
    ANSWERS(ember_prefill_start(session, PROMPT, N_PROMPT, e));
    ANSWERS(ember_decode_start(session, e));
    ANSWERS(ember_decode_start_n(session, 3, e));
    ANSWERS(ember_session_logits(session, logits, N_VOCAB, e));
    ANSWERS(ember_session_erase(session, 0, 1, e));
    ANSWERS(ember_session_sync(session, PROMPT, 2, NULL, e));
    ANSWERS(ember_session_set_grammar(session, EMBER_GRAMMAR_REGEX, "a", 1, NULL, e));
    {
        ember_profile_entry entries[16];
        size_t count;
        entries[0].struct_size = sizeof entries[0];
        ANSWERS(ember_session_profile(session, entries, 16, &count, e));
    }
    CHECK(position_of(session) == N_PROMPT + 1);
    /* Of a batch, each session answers its own, and the others go on. */
    pair[0] = other, pair[1] = session;
    tokens[1] = 77;
    CHECK(ember_session_interrupt(session) == EMBER_OK);
    STATUS(batch_ids(pair, 2, tokens, &err), EMBER_INTERRUPTED);
    CHECK(err.index == 1 && tokens[1] == 77 && position_of(session) == N_PROMPT + 1 && position_of(other) == N_PROMPT + 1);
    CHECK(ember_session_interrupt(session) == EMBER_OK);
    CHECK(ember_session_interrupt(other) == EMBER_OK);
    STATUS(batch_ids(pair, 2, tokens, &err), EMBER_INTERRUPTED);
    CHECK(err.index == 0);
    OK(batch_ids(pair, 2, tokens, &err));
    /* A fork has its own. */
    CHECK(ember_session_free(other) == EMBER_OK);
    CHECK(ember_session_interrupt(session) == EMBER_OK);
    OK(ember_session_fork(session, &other, &err));
    decode(other);
    /* Taken back. */
    CHECK(ember_session_clear_interrupt(session) == EMBER_OK);
    CHECK(ember_session_clear_interrupt(session) == EMBER_OK);
    decode(session);
    CHECK(ember_session_free(other) == EMBER_OK);
    CHECK(ember_session_free(session) == EMBER_OK);
    CHECK(ember_session_clear_interrupt(session) == EMBER_INVALID_HANDLE);
    CHECK(ember_session_clear_interrupt(NULL) == EMBER_INVALID_HANDLE);
}

/* One thread decodes in a loop, another one interrupts it, once, whenever it likes: each interrupt ends the loop, none is lost. */
struct looper {
    ember_session *session;
    size_t start;
};

static void *decode_until_interrupted(void *user) {
    struct looper *l = (struct looper *)user;
    ember_error e;
    for (;;) {
        uint32_t token;
        ember_status status = decode_id(l->session, &token, &e);
        if (status == EMBER_INTERRUPTED) return NULL;
        CHECK(status == EMBER_OK);
        if (position_of(l->session) > l->start + 20) CHECK(ember_session_rewind(l->session, l->start, NULL) == EMBER_OK);
    }
}

static void interrupts_of_a_loop(const ember_model *model) {
    struct looper l;
    pthread_t thread;
    int round, i;
    l.session = prompted(model);
    l.start = N_PROMPT;
    for (round = 0; round < 60; round++) {
        CHECK(pthread_create(&thread, NULL, decode_until_interrupted, &l) == 0);
        /* Also before the loop begins, and between two of its calls. */
        for (i = 0; i < round % 7; i++) sched_yield();
        CHECK(ember_session_interrupt(l.session) == EMBER_OK);
        CHECK(pthread_join(thread, NULL) == 0);
        /* Answered, and over. */
        OK(ember_session_rewind(l.session, l.start, &err));
        decode(l.session);
        OK(ember_session_rewind(l.session, l.start, &err));
    }
    CHECK(ember_session_free(l.session) == EMBER_OK);
}

int main(int argc, char **argv) {
    ember_model *model = load(argc > 1 ? argv[1] : "");
    reading(model);
    syncing(model);
    syncing_a_grammar(model);
    sticky(model);
    interrupts_of_a_loop(model);
    works(model);
    CHECK(ember_model_free(model) == EMBER_OK);
    return 0;
}
