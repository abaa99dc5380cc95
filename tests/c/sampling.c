/* Sampling options: what they do to hamlet's choices, and what is refused. */
#include "check.h"
#include <math.h>

enum { LENGTH = 60 };

static const uint32_t prompt[6] = {1, 2, 3, 1, 2, 3};

static void set(ember_session *session, const ember_sampling_options *o) {
    ember_error err;
    OK(ember_session_set_sampling(session, o, &err));
}

/* Empties the context and writes from the prompt. */
static void generate(ember_session *session, uint32_t *tokens) {
    ember_error err;
    int i;
    OK(ember_session_rewind(session, 0, &err));
    OK(ember_prefill(session, prompt, 6, &err));
    for (i = 0; i < LENGTH; i++) tokens[i] = decode(session);
}

static int same(const uint32_t *a, const uint32_t *b) {
    return memcmp(a, b, LENGTH * sizeof *a) == 0;
}

static uint32_t vocabulary(const ember_model *model) {
    ember_model_details d;
    ember_error err;
    d.struct_size = sizeof d;
    OK(ember_model_info(model, &d, &err));
    return d.vocab_size;
}

/* The same at create and between decodes. */
static void ways_to_say_it(const ember_model *model) {
    uint32_t made[LENGTH], changed[LENGTH], greedy[LENGTH], again[LENGTH];
    ember_session_options o = session_options();
    ember_sampling_options s = sampling_options();
    ember_session *session;
    ember_error err;
    s.temperature = 0.9f;
    s.top_k = 50;
    s.top_p = 0.97f;
    s.min_p = 0.01f;
    s.seed = 7;
    o.sampling = &s;
    session = create(model, &o);
    generate(session, made);
    set(session, NULL);
    generate(session, greedy);
    set(session, &s);
    generate(session, changed);
    CHECK(same(made, changed) && !same(made, greedy));
    s.seed = 8;
    set(session, &s);
    generate(session, again);
    CHECK(!same(made, again));
    /* In the middle of a text: what was written before stays. */
    OK(ember_session_rewind(session, 6 + 30, &err));
    set(session, NULL);
    again[30] = decode(session);
    s.temperature = 0;
    set(session, &s);
    OK(ember_session_rewind(session, 6 + 30, &err));
    CHECK(decode(session) == again[30]);
    CHECK(ember_session_free(session) == EMBER_OK);
}

static void tokens_of_their_own(const ember_model *model) {
    uint32_t greedy[LENGTH], got[LENGTH], banned[2], allowed[3] = {11, 12, 13};
    ember_logit_bias bias[2];
    ember_session *session = create(model, NULL);
    ember_sampling_options s = sampling_options();
    int i, seen = 0;
    generate(session, greedy);
    banned[0] = greedy[0];
    banned[1] = greedy[1];
    s.banned = banned;
    s.banned_count = 2;
    set(session, &s);
    generate(session, got);
    for (i = 0; i < LENGTH; i++) CHECK(got[i] != banned[0] && got[i] != banned[1]);
    s = sampling_options();
    s.allowed = allowed;
    s.allowed_count = 3;
    set(session, &s);
    generate(session, got);
    for (i = 0; i < LENGTH; i++) CHECK(got[i] >= 11 && got[i] <= 13);
    s.allowed_count = 1;
    set(session, &s);
    generate(session, got);
    for (i = 0; i < LENGTH; i++) CHECK(got[i] == 11);
    s = sampling_options();
    bias[0].token = 40;
    bias[0].bias = 1e6f;
    bias[1].token = 41;
    bias[1].bias = -1e6f;
    s.logit_bias = bias;
    s.logit_bias_count = 2;
    set(session, &s);
    generate(session, got);
    for (i = 0; i < LENGTH; i++) CHECK(got[i] == 40);
    /* A penalty that outweighs the bias brings others. */
    s.frequency_penalty = 1e6f;
    s.penalty_window = UINT32_MAX;
    set(session, &s);
    generate(session, got);
    for (i = 0; i < LENGTH; i++) seen += got[i] == 40;
    CHECK(seen >= 1 && seen < LENGTH);
    /* No token twice within any window of ten. */
    s = sampling_options();
    s.presence_penalty = 1e6f;
    s.penalty_window = 10;
    set(session, &s);
    generate(session, got);
    for (i = 0; i < LENGTH; i++) {
        int j;
        for (j = i - 10 < 0 ? 0 : i - 10; j < i; j++) CHECK(got[i] != got[j]);
    }
    CHECK(ember_session_free(session) == EMBER_OK);
}

/* With DRY no pair of tokens is followed twice by the same one, but for what breakers allow. */
static void repetitions(const ember_model *model) {
    uint32_t got[LENGTH], open[LENGTH], all, token;
    uint32_t *each;
    ember_dry_breaker breakers[2];
    ember_session *session = create(model, NULL);
    ember_sampling_options s = sampling_options();
    ember_error err;
    int i, j;
    s.dry_multiplier = 1e6f;
    s.dry_no_breakers = 1;
    set(session, &s);
    generate(session, got);
    for (i = 2; i < LENGTH; i++)
        for (j = 2; j < i; j++)
            CHECK(got[i] != got[j] || got[i - 1] != got[j - 1] || got[i - 2] != got[j - 2]);
    /* Where every token is a breaker, nothing is a repetition. */
    all = vocabulary(model);
    each = (uint32_t *)malloc(all * sizeof *each);
    CHECK(each != NULL);
    for (token = 0; token < all; token++) each[token] = token;
    set(session, NULL);
    generate(session, open);
    {
        ember_dry_breaker *singles = (ember_dry_breaker *)calloc(all, sizeof *singles);
        CHECK(singles != NULL);
        for (token = 0; token < all; token++) {
            singles[token].tokens = &each[token];
            singles[token].token_count = 1;
        }
        s.dry_breakers = singles;
        s.dry_breaker_count = all;
        set(session, &s);
        generate(session, got);
        CHECK(same(open, got));
        free(singles);
    }
    free(each);
    /* Texts, of one token and of several, and those that are there by default. */
    memset(breakers, 0, sizeof breakers);
    breakers[0].text = "\n";
    breakers[0].text_len = 1;
    breakers[1].text = "HAMLET:";
    breakers[1].text_len = 7;
    s.dry_breakers = breakers;
    s.dry_breaker_count = 2;
    set(session, &s);
    generate(session, got);
    s.dry_breakers = NULL;
    s.dry_breaker_count = 0;
    s.dry_no_breakers = 0;
    set(session, &s);
    generate(session, got);
    /* What is no breaker. */
    s.dry_breakers = breakers;
    s.dry_breaker_count = 2;
    breakers[1].text_len = 0;
    STATUS(ember_session_set_sampling(session, &s, &err), EMBER_INVALID_ARGUMENT);
    SAYS("index 1");
    breakers[1].tokens = prompt;
    breakers[1].token_count = 2;
    set(session, &s);
    breakers[0].tokens = prompt;
    breakers[0].token_count = 2;
    STATUS(ember_session_set_sampling(session, &s, &err), EMBER_INVALID_ARGUMENT);
    SAYS("index 0");
    CHECK(ember_session_free(session) == EMBER_OK);
}

static void log_probabilities(const ember_model *model) {
    uint32_t vocab_size = vocabulary(model), ids[64], token, i;
    float values[64], chosen = 7, *logits = (float *)malloc(vocab_size * sizeof *logits);
    double sum = 0, total = 0;
    size_t count = 7;
    ember_session *session = create(model, NULL);
    ember_sampling_options s = sampling_options();
    ember_error err;
    CHECK(logits != NULL);
    STATUS(ember_session_logprobs(session, &chosen, ids, values, 64, &count, &err),
           EMBER_NOTHING_PENDING);
    CHECK(chosen == 7 && count == 7);
    OK(ember_prefill(session, prompt, 6, &err));
    s.logprobs = 5;
    s.temperature = 3;
    s.top_k = 2;
    s.seed = 1;
    set(session, &s);
    OK(ember_session_logits(session, logits, vocab_size, &err));
    token = decode(session);
    OK(ember_session_logprobs(session, &chosen, ids, values, 64, &count, &err));
    CHECK(count == 5);
    for (i = 0; i < vocab_size; i++) sum += exp(logits[i]);
    for (i = 0; i < 5; i++) {
        CHECK(fabs(values[i] - (logits[ids[i]] - log(sum))) < 1e-4);
        CHECK(i == 0 || values[i] <= values[i - 1]);
        total += exp(values[i]);
    }
    CHECK(total <= 1.00001);
    CHECK(fabs(chosen - (logits[token] - log(sum))) < 1e-4);
    CHECK(token == ids[0] || token == ids[1]);
    count = 0;
    STATUS(ember_session_logprobs(session, &chosen, ids, values, 4, &count, &err),
           EMBER_BUFFER_TOO_SMALL);
    CHECK(count == 5);
    /* Started decodes have theirs, too. */
    OK(ember_session_rewind(session, 6, &err));
    OK(ember_decode_start_n(session, 3, &err));
    for (i = 0; i < 3; i++) {
        ember_status status;
        float again;
        uint32_t started = 0;
        do status = poll_id(session, &started, &err);
        while (status == EMBER_PENDING);
        CHECK(status == EMBER_OK);
        OK(ember_session_logprobs(session, &again, ids, values, 64, &count, &err));
        CHECK(count == 5);
        CHECK(i != 0 || (started == token && again == chosen));
    }
    set(session, NULL);
    decode(session);
    STATUS(ember_session_logprobs(session, &chosen, ids, values, 64, &count, &err),
           EMBER_NOTHING_PENDING);
    free(logits);
    CHECK(ember_session_free(session) == EMBER_OK);
}

/* Each is refused, names the field, and changes nothing. */
static void what_is_refused(const ember_model *model) {
    uint32_t before[LENGTH], after[LENGTH], bad_id = vocabulary(model), token;
    ember_logit_bias bias;
    ember_session *session = create(model, NULL);
    ember_sampling_options s;
    ember_error err;
    volatile float zero = 0;
    s = sampling_options();
    s.temperature = 1;
    s.seed = 5;
    set(session, &s);
    generate(session, before);
#define REFUSED(field, value) \
    do { \
        s = sampling_options(); \
        s.field = (value); \
        STATUS(ember_session_set_sampling(session, &s, &err), EMBER_INVALID_ARGUMENT); \
        SAYS(#field); \
    } while (0)
    REFUSED(temperature, -1);
    REFUSED(temperature, zero / zero);
    REFUSED(top_p, 1.5f);
    REFUSED(min_p, -0.5f);
    REFUSED(typical_p, 2);
    REFUSED(typical_p, zero / zero);
    REFUSED(repeat_penalty, -1);
    REFUSED(repeat_penalty, 1 / zero);
    REFUSED(presence_penalty, zero / zero);
    REFUSED(frequency_penalty, 1 / zero);
    REFUSED(dry_multiplier, -1);
    REFUSED(dry_base, 0.5f);
    REFUSED(dry_no_breakers, 2);
    REFUSED(logprobs, 65);
    s = sampling_options();
    s.banned = &bad_id;
    s.banned_count = 1;
    STATUS(ember_session_set_sampling(session, &s, &err), EMBER_INVALID_TOKEN);
    SAYS("banned");
    s.banned = NULL;
    STATUS(ember_session_set_sampling(session, &s, &err), EMBER_NULL_POINTER);
    SAYS("banned");
    s = sampling_options();
    bias.token = 3;
    bias.bias = 1 / zero;
    s.logit_bias = &bias;
    s.logit_bias_count = 1;
    STATUS(ember_session_set_sampling(session, &s, &err), EMBER_INVALID_ARGUMENT);
    SAYS("logit_bias");
    s = sampling_options();
    s.struct_size = 3;
    STATUS(ember_session_set_sampling(session, &s, &err), EMBER_INVALID_ARGUMENT);
    SAYS("ember_sampling_options");
    OK(ember_session_rewind(session, 6, &err));
    OK(ember_decode_start(session, &err));
    s = sampling_options();
    STATUS(ember_session_set_sampling(session, &s, &err), EMBER_DECODE_PENDING);
    while (poll_id(session, &token, &err) == EMBER_PENDING) {}
    generate(session, after);
    CHECK(same(before, after));
    /* As a program says it that knows the first fields only. */
    s.struct_size = 16;
    set(session, &s);
    CHECK(ember_session_free(session) == EMBER_OK);
    STATUS(ember_session_set_sampling(session, NULL, &err), EMBER_INVALID_HANDLE);
}

int main(int argc, char **argv) {
    ember_model *model;
    CHECK(argc == 2);
    model = load(argv[1]);
    ways_to_say_it(model);
    tokens_of_their_own(model);
    repetitions(model);
    log_probabilities(model);
    what_is_refused(model);
    CHECK(ember_model_free(model) == EMBER_OK);
    return 0;
}
