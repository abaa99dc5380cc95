/* The life of a session: prefill, decode, start and poll, logits, rewind, the end of the context. */
#include "check.h"

#define N_VOCAB 1424
#define N_PROMPT 4
#define N_DECODED 4
#define N_SEEDED 16

static ember_error err;
static const uint32_t PROMPT[N_PROMPT] = {0, 260, 300, 41};

static ember_session *prompted(const ember_model *model, const ember_session_options *o) {
    ember_session *session = create(model, o);
    OK(ember_prefill(session, PROMPT, N_PROMPT, &err));
    CHECK(position_of(session) == N_PROMPT);
    return session;
}

static void decode_many(ember_session *session, uint32_t *tokens, size_t n) {
    size_t i;
    for (i = 0; i < n; i++) tokens[i] = decode(session);
}

static void same_tokens(ember_session *session, const uint32_t *wanted, size_t n) {
    size_t i;
    for (i = 0; i < n; i++) CHECK(decode(session) == wanted[i]);
}

static uint32_t poll_until_there(ember_session *session) {
    uint32_t token = UINT32_MAX;
    ember_status status;
    for (;;) {
        status = poll_id(session, &token, &err);
        if (status != EMBER_PENDING) break;
        CHECK(token == UINT32_MAX);
    }
    STATUS(status, EMBER_OK);
    CHECK(token < N_VOCAB);
    return token;
}

/* However the prompt is cut, the logits have the same bits. */
static void cuts(const ember_model *model) {
    static float whole[N_VOCAB], parts[N_VOCAB];
    ember_session *session = prompted(model, NULL);
    size_t size, i;
    OK(ember_session_logits(session, whole, N_VOCAB, &err));
    for (size = 1; size < N_PROMPT; size++) {
        ember_session *other = create(model, NULL);
        for (i = 0; i < N_PROMPT; i += size) {
            size_t n = N_PROMPT - i < size ? N_PROMPT - i : size;
            OK(ember_prefill(other, PROMPT + i, n, &err));
        }
        OK(ember_session_logits(other, parts, N_VOCAB, &err));
        CHECK(memcmp(whole, parts, sizeof whole) == 0);
        CHECK(ember_session_free(other) == EMBER_OK);
    }
    CHECK(ember_session_free(session) == EMBER_OK);
}

/* Logits belong to the next choice; asking for them changes nothing. */
static void logits(const ember_model *model) {
    static float values[N_VOCAB + 1], again[N_VOCAB];
    ember_session *session = prompted(model, NULL), *plain = prompted(model, NULL);
    int step, i, best;
    for (step = 0; step < N_DECODED; step++) {
        values[N_VOCAB] = 77;
        OK(ember_session_logits(session, values, N_VOCAB + 1, &err));
        CHECK(values[N_VOCAB] == 77);
        OK(ember_session_logits(session, again, N_VOCAB, &err));
        CHECK(memcmp(values, again, sizeof again) == 0);
        for (best = 0, i = 1; i < N_VOCAB; i++) {
            if (values[i] > values[best]) best = i;
        }
        CHECK(decode(session) == (uint32_t)best);
        CHECK(decode(plain) == (uint32_t)best);
    }
    again[0] = 77;
    STATUS(ember_session_logits(session, again, N_VOCAB - 1, &err), EMBER_BUFFER_TOO_SMALL);
    SAYS("1424");
    STATUS(ember_session_logits(session, NULL, 0, &err), EMBER_BUFFER_TOO_SMALL);
    CHECK(again[0] == 77);
    CHECK(ember_session_free(session) == EMBER_OK);
    CHECK(ember_session_free(plain) == EMBER_OK);
}

static void async(const ember_model *model, const ember_session_options *o) {
    ember_session *sync = prompted(model, o), *session = prompted(model, o);
    uint32_t token = 77;
    static float values[N_VOCAB];
    int i;
    STATUS(poll_id(session, &token, &err), EMBER_NOTHING_PENDING);
    for (i = 0; i < N_DECODED; i++) {
        OK(ember_decode_start(session, &err));
        CHECK(poll_until_there(session) == decode(sync));
        CHECK(position_of(session) == position_of(sync));
    }
    /* Everything else waits until the token was collected. */
    OK(ember_decode_start(session, &err));
    STATUS(ember_decode_start(session, &err), EMBER_DECODE_PENDING);
    STATUS(decode_id(session, &token, &err), EMBER_DECODE_PENDING);
    STATUS(ember_prefill(session, PROMPT, 1, &err), EMBER_DECODE_PENDING);
    STATUS(ember_session_rewind(session, position_of(session) + 1, &err), EMBER_INVALID_ARGUMENT);
    STATUS(ember_session_logits(session, values, N_VOCAB, &err), EMBER_DECODE_PENDING);
    CHECK(token == 77 && position_of(session) == position_of(sync));
    CHECK(poll_until_there(session) == decode(sync));
    STATUS(poll_id(session, &token, &err), EMBER_NOTHING_PENDING);
    CHECK(token == 77);
    /* Dropped. */
    OK(ember_decode_start(session, &err));
    OK(ember_session_rewind(session, position_of(session), &err));
    STATUS(poll_id(session, &token, &err), EMBER_NOTHING_PENDING);
    CHECK(decode(session) == decode(sync));
    /* Freed while a decode is running. */
    OK(ember_decode_start(session, &err));
    CHECK(ember_session_free(session) == EMBER_OK);
    CHECK(ember_session_free(sync) == EMBER_OK);
}

static void rewinding(const ember_model *model, const ember_session_options *o) {
    uint32_t tokens[N_DECODED];
    ember_session *session = prompted(model, o);
    size_t at, end = N_PROMPT + N_DECODED;
    decode_many(session, tokens, N_DECODED);
    for (at = end; at >= N_PROMPT; at--) {
        OK(ember_session_rewind(session, at, &err));
        CHECK(position_of(session) == at);
        same_tokens(session, tokens + (at - N_PROMPT), end - at);
    }
    /* Into the prompt, and to the very beginning. */
    for (at = N_PROMPT - 1;; at--) {
        OK(ember_session_rewind(session, at, &err));
        if (at == 0) {
            uint32_t token = 77;
            float logit = 77;
            STATUS(decode_id(session, &token, &err), EMBER_NO_INPUT);
            STATUS(ember_decode_start(session, &err), EMBER_NO_INPUT);
            STATUS(ember_session_logits(session, &logit, 1, &err), EMBER_BUFFER_TOO_SMALL);
            CHECK(token == 77 && logit == 77);
        }
        OK(ember_prefill(session, PROMPT + at, N_PROMPT - at, &err));
        same_tokens(session, tokens, N_DECODED);
        if (at == 0) break;
    }
    STATUS(ember_session_rewind(session, end + 1, &err), EMBER_INVALID_ARGUMENT);
    STATUS(ember_session_rewind(session, (size_t)-1, &err), EMBER_INVALID_ARGUMENT);
    CHECK(position_of(session) == end);
    CHECK(ember_session_free(session) == EMBER_OK);
}

/* At the end of the context an error, and everything before it intact. */
static void full(const ember_model *model) {
    ember_session_options o = session_options();
    ember_session *session;
    uint32_t tokens[2], many[4] = {1, 2, 3, 4}, token = 77;
    o.context = N_PROMPT + 2;
    session = prompted(model, &o);
    STATUS(ember_prefill(session, many, 3, &err), EMBER_CONTEXT_FULL);
    SAYS("6");
    STATUS(ember_prefill(session, many, (size_t)1 << 40, &err), EMBER_CONTEXT_FULL);
    CHECK(position_of(session) == N_PROMPT);
    decode_many(session, tokens, 2);
    STATUS(decode_id(session, &token, &err), EMBER_CONTEXT_FULL);
    STATUS(ember_decode_start(session, &err), EMBER_CONTEXT_FULL);
    STATUS(ember_prefill(session, many, 1, &err), EMBER_CONTEXT_FULL);
    CHECK(token == 77 && position_of(session) == N_PROMPT + 2);
    OK(ember_session_rewind(session, N_PROMPT, &err));
    same_tokens(session, tokens, 2);
    CHECK(ember_session_free(session) == EMBER_OK);
}

static void bad_tokens(const ember_model *model) {
    static const uint32_t bad[3] = {1, N_VOCAB, 2};
    static const uint32_t worse = UINT32_MAX;
    uint32_t tokens[N_DECODED];
    ember_session *session = prompted(model, NULL), *other = prompted(model, NULL);
    decode_many(other, tokens, N_DECODED);
    STATUS(ember_prefill(session, bad, 3, &err), EMBER_INVALID_TOKEN);
    SAYS("1424");
    STATUS(ember_prefill(session, &worse, 1, &err), EMBER_INVALID_TOKEN);
    STATUS(ember_prefill(session, bad, 0, &err), EMBER_NO_INPUT);
    CHECK(position_of(session) == N_PROMPT);
    same_tokens(session, tokens, N_DECODED);
    CHECK(ember_session_free(session) == EMBER_OK);
    CHECK(ember_session_free(other) == EMBER_OK);
}

/* Seeds: the same gives the same, another gives something else. */
static void seeds(const ember_model *model) {
    ember_session_options o = session_options();
    ember_sampling_options s = sampling_options();
    uint32_t first[N_SEEDED], second[N_SEEDED];
    ember_session *session;
    o.sampling = &s;
    s.temperature = 20; /* hot enough that a few tokens tell seeds apart */
    s.seed = 1;
    session = prompted(model, &o);
    decode_many(session, first, N_SEEDED);
    CHECK(ember_session_free(session) == EMBER_OK);
    session = prompted(model, &o);
    same_tokens(session, first, N_SEEDED);
    CHECK(ember_session_free(session) == EMBER_OK);
    s.seed = (uint64_t)1 << 32;
    session = prompted(model, &o);
    decode_many(session, second, N_SEEDED);
    CHECK(memcmp(first, second, sizeof first) != 0);
    CHECK(ember_session_free(session) == EMBER_OK);
}

int main(int argc, char **argv) {
    ember_session_options o = session_options();
    ember_sampling_options s = sampling_options();
    ember_model *model;
    CHECK(argc == 2);
    model = load(argv[1]);
    cuts(model);
    logits(model);
    async(model, NULL);
    rewinding(model, NULL);
    o.context = 64;
    o.kv_type = EMBER_KV_F32;
    o.sampling = &s;
    s.temperature = 0.8f;
    s.top_k = 40;
    s.top_p = 0.95f;
    s.min_p = 0.05f;
    s.seed = 12345;
    async(model, &o);
    rewinding(model, &o);
    full(model);
    bad_tokens(model);
    seeds(model);
    works(model);
    CHECK(ember_model_free(model) == EMBER_OK);
    return 0;
}
