/* Wrong pointers, handles and sizes: each gives a status and a message, and nothing happens. */
#include "check.h"

static ember_error err;

/* NULL wherever a pointer is needed; the argument is named. */
static void null_pointers(const char *path, ember_model *model) {
    ember_session *session = create(model, NULL);
    ember_model *no_model = NULL;
    uint32_t token = 1;
    size_t n;
    STATUS(ember_device_count(NULL, &err), EMBER_NULL_POINTER);
    SAYS("count");
    STATUS(ember_device_info(0, NULL, &err), EMBER_NULL_POINTER);
    STATUS(ember_model_load(NULL, 5, NULL, &no_model, &err), EMBER_NULL_POINTER);
    SAYS("path");
    STATUS(ember_model_load(path, strlen(path), NULL, NULL, &err), EMBER_NULL_POINTER);
    SAYS("out");
    STATUS(ember_model_info(model, NULL, &err), EMBER_NULL_POINTER);
    STATUS(ember_session_create(model, NULL, NULL, &err), EMBER_NULL_POINTER);
    STATUS(ember_session_info(session, NULL, &err), EMBER_NULL_POINTER);
    STATUS(ember_session_position(session, NULL, &err), EMBER_NULL_POINTER);
    STATUS(ember_session_logits(session, NULL, 10, &err), EMBER_NULL_POINTER);
    STATUS(ember_prefill(session, NULL, 1, &err), EMBER_NULL_POINTER);
    SAYS("tokens");
    STATUS(ember_prefill(session, NULL, 0, &err), EMBER_NO_INPUT);
    STATUS(decode_id(session, NULL, &err), EMBER_NULL_POINTER);
    STATUS(poll_id(session, NULL, &err), EMBER_NULL_POINTER);
    STATUS(ember_tokenize(model, NULL, 1, 0, &token, 1, &n, &err), EMBER_NULL_POINTER);
    STATUS(ember_tokenize(model, "a", 1, 0, NULL, 1, &n, &err), EMBER_NULL_POINTER);
    STATUS(ember_tokenize(model, "a", 1, 0, &token, 1, NULL, &err), EMBER_NULL_POINTER);
    STATUS(ember_detokenize(model, NULL, 1, 0, NULL, 0, &n, &err), EMBER_NULL_POINTER);
    STATUS(ember_detokenize(model, &token, 1, 0, NULL, 1, &n, &err), EMBER_NULL_POINTER);
    STATUS(ember_detokenize(model, &token, 1, 0, NULL, 0, NULL, &err), EMBER_NULL_POINTER);
    STATUS(ember_token_text(model, token, NULL, 1, &n, &err), EMBER_NULL_POINTER);
    STATUS(ember_token_text(model, token, NULL, 0, NULL, &err), EMBER_NULL_POINTER);
    STATUS(ember_token_is_end(model, token, NULL, &err), EMBER_NULL_POINTER);
    /* Without an error struct the status is all there is. */
    CHECK(ember_device_count(NULL, NULL) == EMBER_NULL_POINTER);
    CHECK(ember_prefill(session, &token, 1, NULL) == EMBER_OK);
    CHECK(position_of(session) == 1);
    CHECK(ember_session_free(session) == EMBER_OK);
    works(model);
}

/* Every function with a handle that is not one. */
static void no_model_of(ember_model *bad) {
    ember_session *session = (ember_session *)(uintptr_t)123;
    ember_model_details details;
    uint32_t token = 7;
    size_t n = 7;
    char text[8] = "abc";
    ember_tokenizer_details tokenizer;
    tokenizer.struct_size = sizeof tokenizer;
    tokenizer.bos = 7;
    details.struct_size = sizeof details;
    details.vocab_size = 7;
    STATUS(ember_model_info(bad, &details, &err), EMBER_INVALID_HANDLE);
    STATUS(ember_session_create(bad, NULL, &session, &err), EMBER_INVALID_HANDLE);
    SAYS("model");
    STATUS(ember_tokenize(bad, "a", 1, 0, &token, 1, &n, &err), EMBER_INVALID_HANDLE);
    STATUS(ember_detokenize(bad, &token, 1, 0, text, 8, &n, &err), EMBER_INVALID_HANDLE);
    STATUS(ember_token_text(bad, 1, text, 8, &n, &err), EMBER_INVALID_HANDLE);
    STATUS(ember_token_is_end(bad, 1, &token, &err), EMBER_INVALID_HANDLE);
    STATUS(ember_tokenizer_info(bad, &tokenizer, &err), EMBER_INVALID_HANDLE);
    STATUS(ember_end_tokens(bad, &token, 1, &n, &err), EMBER_INVALID_HANDLE);
    STATUS(ember_model_metadata(bad, "a", 1, text, 8, &n, &err), EMBER_INVALID_HANDLE);
    STATUS(ember_model_metadata_key(bad, 0, text, 8, &n, &err), EMBER_INVALID_HANDLE);
    CHECK(ember_model_free(bad) == (bad ? EMBER_INVALID_HANDLE : EMBER_OK));
    /* Outputs are as they were. */
    CHECK(session == (ember_session *)(uintptr_t)123);
    CHECK(tokenizer.bos == 7);
    CHECK(details.vocab_size == 7 && token == 7 && n == 7 && strcmp(text, "abc") == 0);
}

static void no_session_of(ember_session *bad) {
    ember_session_details details;
    uint32_t token = 7;
    size_t n = 7;
    float logit = 7;
    details.struct_size = sizeof details;
    details.position = 7;
    STATUS(ember_session_info(bad, &details, &err), EMBER_INVALID_HANDLE);
    SAYS("session");
    STATUS(ember_session_position(bad, &n, &err), EMBER_INVALID_HANDLE);
    STATUS(ember_session_rewind(bad, 0, &err), EMBER_INVALID_HANDLE);
    STATUS(ember_session_logits(bad, &logit, 1, &err), EMBER_INVALID_HANDLE);
    STATUS(ember_prefill(bad, &token, 1, &err), EMBER_INVALID_HANDLE);
    STATUS(decode_id(bad, &token, &err), EMBER_INVALID_HANDLE);
    STATUS(ember_decode_start(bad, &err), EMBER_INVALID_HANDLE);
    STATUS(poll_id(bad, &token, &err), EMBER_INVALID_HANDLE);
    STATUS(ember_session_tokens(bad, 0, &token, 1, &n, &err), EMBER_INVALID_HANDLE);
    STATUS(ember_session_sync(bad, &token, 1, &n, &err), EMBER_INVALID_HANDLE);
    STATUS(ember_generate(bad, NULL, NULL, &err), EMBER_INVALID_HANDLE);
    CHECK(ember_session_clear_interrupt(bad) == EMBER_INVALID_HANDLE);
    CHECK(ember_session_interrupt(bad) == EMBER_INVALID_HANDLE);
    CHECK(ember_session_free(bad) == (bad ? EMBER_INVALID_HANDLE : EMBER_OK));
    CHECK(details.position == 7 && token == 7 && n == 7 && logit == 7);
}

static void handles(const char *path, ember_model *model) {
    ember_model *freed = load(path);
    ember_session *session = create(model, NULL);
    ember_session *orphan = create(freed, NULL);
    uint32_t tokens[2] = {1, 2};
    static int object;
    uintptr_t bits;
    unsigned i;

    /* In a 64-bit process they look like nothing that lies in memory, with addresses of 48 bits and of 57. */
    if (sizeof(void *) == 8) {
        const uint64_t both[2] = {(uint64_t)(uintptr_t)model, (uint64_t)(uintptr_t)session};
        for (i = 0; i < 2; i++) {
            CHECK(both[i] >> 47 != 0 && ~both[i] >> 47 != 0);
            CHECK(both[i] >> 56 != 0 && ~both[i] >> 56 != 0);
        }
    }
    CHECK(ember_model_free(freed) == EMBER_OK);
    no_model_of(NULL);
    no_model_of(freed); /* and freed twice */
    no_model_of((ember_model *)session);
    no_model_of((ember_model *)&object);
    no_session_of(NULL);
    no_session_of((ember_session *)model);
    no_session_of((ember_session *)&object);
    for (i = 0; i < sizeof(void *) * 8; i++) {
        no_model_of((ember_model *)((uintptr_t)1 << i));
        no_session_of((ember_session *)((uintptr_t)1 << i));
        /* A living handle with one bit turned. */
        bits = (uintptr_t)model ^ (uintptr_t)1 << i;
        if (bits) no_model_of((ember_model *)bits);
        bits = (uintptr_t)session ^ (uintptr_t)1 << i;
        if (bits != (uintptr_t)orphan) no_session_of((ember_session *)bits);
    }

    /* A session outlives its model's handle. */
    OK(ember_prefill(orphan, tokens, 2, &err));
    decode(orphan);
    CHECK(ember_session_free(orphan) == EMBER_OK);
    no_session_of(orphan);
    /* The slot is used again, the handle is not. */
    for (i = 0; i < 100; i++) {
        ember_session *next = create(model, NULL);
        CHECK(next != orphan);
        CHECK(ember_session_free(next) == EMBER_OK);
    }
    no_session_of(orphan);
    CHECK(ember_session_free(session) == EMBER_OK);
    works(model);
}

static void struct_sizes(ember_model *model) {
    static const uint32_t impossible[] = {0, 1, 3, 5, 41, 1u << 30, UINT32_MAX};
    struct {
        ember_session_options options;
        uint64_t later;
    } newer;
    struct {
        ember_model_details details;
        uint64_t later;
    } newer_details;
    ember_session_options older = session_options();
    ember_session *session = NULL;
    ember_model_details details;
    ember_session_details state;
    size_t i;

    for (i = 0; i < sizeof impossible / sizeof *impossible; i++) {
        ember_session_options o = session_options();
        ember_device_details device;
        o.struct_size = impossible[i];
        STATUS(ember_session_create(model, &o, &session, &err), EMBER_INVALID_ARGUMENT);
        SAYS("sizeof(ember_session_options)");
        details.struct_size = impossible[i];
        STATUS(ember_model_info(model, &details, &err), EMBER_INVALID_ARGUMENT);
        device.struct_size = impossible[i];
        STATUS(ember_device_info(0, &device, &err), EMBER_INVALID_ARGUMENT);
    }
    CHECK(session == NULL);

    /* An older program: what lies behind its struct is not looked at. */
    older.struct_size = 8;
    older.context = 20;
    older.kv_type = 99;
    older.mark_interval = 3;
    session = create(model, &older);
    state.struct_size = sizeof state;
    OK(ember_session_info(session, &state, &err));
    CHECK(state.context == 20 && state.position == 0 && state.kv_bytes > 0);
    CHECK(ember_session_free(session) == EMBER_OK);
    session = NULL;

    /* A struct may begin wherever its first field may, so that one that has no field of 8 bytes today can get one. */
    {
        uint32_t place[2 + sizeof older / 4];
        uint32_t *at = place + ((uintptr_t)place % 8 == 0);
        older = session_options();
        older.context = 24;
        memcpy(at, &older, sizeof older);
        session = create(model, (const ember_session_options *)(const void *)at);
        memset(at, 0, sizeof state);
        *at = sizeof state;
        OK(ember_session_info(session, (ember_session_details *)(void *)at, &err));
        memcpy(&state, at, sizeof state);
        CHECK(state.struct_size == sizeof state && state.context == 24);
        CHECK(ember_session_free(session) == EMBER_OK);
        session = NULL;
        STATUS(ember_session_create(model, (const ember_session_options *)(const void *)((char *)at + 1), &session, &err),
               EMBER_INVALID_ARGUMENT);
        SAYS("ember_session_options");
    }

    /* A newer program may set only what the library knows. */
    memset(&newer, 0, sizeof newer);
    newer.options.struct_size = sizeof newer;
    session = create(model, &newer.options);
    CHECK(ember_session_free(session) == EMBER_OK);
    session = NULL;
    newer.later = 1;
    STATUS(ember_session_create(model, &newer.options, &session, &err), EMBER_INVALID_ARGUMENT);
    SAYS("ember_session_options");
    CHECK(session == NULL);

    /* Details are written as far as the struct goes, and zero beyond what is known. */
    memset(&newer_details, 0x55, sizeof newer_details);
    newer_details.details.struct_size = sizeof newer_details;
    OK(ember_model_info(model, &newer_details.details, &err));
    CHECK(newer_details.later == 0);
    CHECK(newer_details.details.struct_size == sizeof newer_details);
    memset(&details, 0x55, sizeof details);
    details.struct_size = 16;
    OK(ember_model_info(model, &details, &err));
    CHECK(details.struct_size == 16);
    CHECK(details.vocab_size == newer_details.details.vocab_size);
    CHECK(details.layer_count == 0x55555555 && details.name[127] == 0x55);
    works(model);
}

/* Every option that is out of range is named. */
static void option_values(const char *path, ember_model *model) {
    ember_session *session = NULL;
    ember_model *other = NULL;
    ember_model_details details;
    ember_session_options o;
    ember_sampling_options sampling;
    ember_model_options m;
    volatile float zero = 0;
    details.struct_size = sizeof details;
    OK(ember_model_info(model, &details, &err));

#define BAD_OPTION(field, value) \
    o = session_options(); \
    o.field = (value); \
    STATUS(ember_session_create(model, &o, &session, &err), EMBER_INVALID_ARGUMENT); \
    SAYS(#field)

    BAD_OPTION(context, details.context_length + 1);
    BAD_OPTION(context, UINT32_MAX);
    BAD_OPTION(kv_type, 4);
#undef BAD_OPTION
#define BAD_OPTION(field, value) \
    o = session_options(); \
    sampling = sampling_options(); \
    o.sampling = &sampling; \
    sampling.field = (value); \
    STATUS(ember_session_create(model, &o, &session, &err), EMBER_INVALID_ARGUMENT); \
    SAYS(#field)
    BAD_OPTION(temperature, -0.5f);
    BAD_OPTION(temperature, zero / zero);
    BAD_OPTION(temperature, 1 / zero);
    BAD_OPTION(top_p, -0.5f);
    BAD_OPTION(top_p, 1.5f);
    BAD_OPTION(top_p, zero / zero);
    BAD_OPTION(min_p, -0.5f);
    BAD_OPTION(min_p, 1.5f);
    CHECK(session == NULL);

    m = model_options();
    m.threads = 1025;
    STATUS(ember_model_load(path, strlen(path), &m, &other, &err), EMBER_INVALID_ARGUMENT);
    SAYS("threads");
    m = model_options();
    m.weights = 5;
    STATUS(ember_model_load(path, strlen(path), &m, &other, &err), EMBER_INVALID_ARGUMENT);
    SAYS("weights");
    m = model_options();
    m.device = 1000;
    STATUS(ember_model_load(path, strlen(path), &m, &other, &err), EMBER_NO_DEVICE);
    SAYS("1000");
    CHECK(other == NULL);
    works(model);
}

int main(int argc, char **argv) {
    ember_model *model;
    CHECK(argc == 2);
    CHECK(ember_abi_version() == EMBER_ABI_VERSION);
    {
        char version[40];
        sprintf(version, "%d.%d.%d", EMBER_VERSION_NUMBER / 1000000, EMBER_VERSION_NUMBER / 1000 % 1000, EMBER_VERSION_NUMBER % 1000);
        CHECK(ember_version_number() == EMBER_VERSION_NUMBER && strcmp(ember_version(), version) == 0);
    }
    CHECK(strchr(ember_version(), '.') != NULL);
    CHECK(strcmp(ember_status_name(EMBER_BUSY), "EMBER_BUSY") == 0);
    CHECK(strcmp(ember_status_name(-7), "EMBER_UNKNOWN") == 0);
    CHECK(sizeof(ember_error) == 1024);
    model = load(argv[1]);
    null_pointers(argv[1], model);
    handles(argv[1], model);
    struct_sizes(model);
    option_values(argv[1], model);
    CHECK(ember_model_free(model) == EMBER_OK);
    return 0;
}
