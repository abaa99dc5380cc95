/* Several sessions in one pass, decodes queued ahead, forks of sessions, estimates and profiles. */
#include "check.h"

#define N_VOCAB 1424
#define N_SESSIONS 64
#define N_ROUNDS 4

static ember_error err;

/* Session number i: a prompt of another length, and another way to choose. */
static ember_session *numbered(const ember_model *model, uint32_t i) {
    ember_session_options o = session_options();
    ember_sampling_options s = sampling_options();
    ember_session *session;
    uint32_t prompt[40], n = 1 + i * 7 % 40, k;
    o.context = 64;
    o.kv_type = i % 5 == 4 ? EMBER_KV_F32 : EMBER_KV_F16;
    o.sampling = &s;
    s.seed = i;
    if (i % 3 == 1) s.temperature = 0.9f;
    if (i % 3 == 2) { s.temperature = 1.5f; s.top_k = 30; s.top_p = 0.95f; }
    for (k = 0; k < n; k++) prompt[k] = (i * 31 + k * 17) % N_VOCAB;
    session = create(model, &o);
    OK(ember_prefill(session, prompt, n, &err));
    return session;
}

static void batches(const ember_model *model) {
    static const size_t sizes[] = {1, 2, 7, N_SESSIONS};
    ember_session *alone[N_SESSIONS], *together[N_SESSIONS];
    uint32_t tokens[N_SESSIONS];
    size_t s, i, round;
    for (s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        size_t n = sizes[s];
        for (i = 0; i < n; i++) {
            alone[i] = numbered(model, (uint32_t)i);
            together[i] = numbered(model, (uint32_t)i);
        }
        for (round = 0; round < N_ROUNDS; round++) {
            OK(batch_ids(together, n, tokens, &err));
            for (i = 0; i < n; i++) {
                CHECK(tokens[i] == decode(alone[i]));
                CHECK(position_of(together[i]) == position_of(alone[i]));
            }
        }
        for (i = 0; i < n; i++) {
            static float a[N_VOCAB], b[N_VOCAB];
            OK(ember_session_logits(alone[i], a, N_VOCAB, &err));
            OK(ember_session_logits(together[i], b, N_VOCAB, &err));
            CHECK(memcmp(a, b, sizeof a) == 0);
            CHECK(ember_session_free(alone[i]) == EMBER_OK);
            CHECK(ember_session_free(together[i]) == EMBER_OK);
        }
    }
}

static void bad_batches(const ember_model *model, const ember_model *other) {
    ember_session *s[N_SESSIONS + 1], *good[3], *expected[3];
    uint32_t tokens[N_SESSIONS + 1], i;
    ember_session_options o = session_options();
    for (i = 0; i < 3; i++) {
        s[i] = good[i] = numbered(model, i);
        expected[i] = numbered(model, i);
        tokens[i] = 77;
    }
    STATUS(batch_ids(s, 0, tokens, &err), EMBER_INVALID_ARGUMENT);
    STATUS(batch_ids(s, N_SESSIONS + 1, tokens, &err), EMBER_INVALID_ARGUMENT);
    SAYS("count is 65; a batch has 1 to 64 sessions");
    STATUS(batch_ids(NULL, 2, tokens, &err), EMBER_NULL_POINTER);
    STATUS(batch_ids(s, 2, NULL, &err), EMBER_NULL_POINTER);
    s[2] = s[0];
    STATUS(batch_ids(s, 3, tokens, &err), EMBER_INVALID_ARGUMENT);
    SAYS("index 2");
    SAYS("index 0");
    s[2] = NULL;
    STATUS(batch_ids(s, 3, tokens, &err), EMBER_INVALID_HANDLE);
    SAYS("index 2");
    s[2] = numbered(other, 1);
    STATUS(batch_ids(s, 3, tokens, &err), EMBER_INVALID_ARGUMENT);
    SAYS("index 2");
    CHECK(ember_session_free(s[2]) == EMBER_OK);
    STATUS(batch_ids(s, 3, tokens, &err), EMBER_INVALID_HANDLE);
    /* Nothing was changed by all that. */
    for (i = 0; i < 3; i++) CHECK(tokens[i] == 77 && position_of(good[i]) == position_of(expected[i]));
    /* A session that fails is as before, and the others go on. */
    s[2] = create(model, NULL);
    STATUS(batch_ids(s, 3, tokens, &err), EMBER_NO_INPUT);
    SAYS("index 2");
    for (i = 0; i < 2; i++) CHECK(tokens[i] == decode(expected[i]));
    CHECK(tokens[2] == 77 && ember_session_free(s[2]) == EMBER_OK);
    o.context = 1;
    s[2] = create(model, &o);
    OK(ember_prefill(s[2], tokens, 1, &err));
    STATUS(batch_ids(s, 3, tokens, &err), EMBER_CONTEXT_FULL);
    SAYS("index 2");
    for (i = 0; i < 2; i++) CHECK(tokens[i] == decode(expected[i]));
    CHECK(position_of(s[2]) == 1 && ember_session_free(s[2]) == EMBER_OK);
    s[2] = good[2];
    OK(ember_decode_start(s[1], &err));
    STATUS(batch_ids(s, 3, tokens, &err), EMBER_DECODE_PENDING);
    SAYS("index 1");
    CHECK(tokens[0] == decode(expected[0]) && tokens[2] == decode(expected[2]));
    OK(ember_session_rewind(s[1], position_of(s[1]), &err));
    for (i = 0; i < 3; i++) CHECK(position_of(s[i]) == position_of(expected[i]));
    OK(batch_ids(s, 3, tokens, &err));
    for (i = 0; i < 3; i++) CHECK(tokens[i] == decode(expected[i]));
    for (i = 0; i < 3; i++) {
        CHECK(ember_session_free(s[i]) == EMBER_OK);
        CHECK(ember_session_free(expected[i]) == EMBER_OK);
    }
}

static uint32_t collect(ember_session *session) {
    uint32_t token = UINT32_MAX;
    ember_status status;
    do status = poll_id(session, &token, &err);
    while (status == EMBER_PENDING);
    STATUS(status, EMBER_OK);
    return token;
}

static void queues(const ember_model *model) {
    uint32_t i, token = 77;
    for (i = 0; i < 3; i++) {
        ember_session *plain = numbered(model, i), *queued = numbered(model, i);
        size_t at = position_of(queued), left = 64 - at;
        ember_status status;
        int k;
        STATUS(ember_decode_start_n(queued, 0, &err), EMBER_INVALID_ARGUMENT);
        STATUS(ember_decode_start_n(queued, left + 1, &err), EMBER_CONTEXT_FULL);
        STATUS(ember_decode_start_n(queued, SIZE_MAX, &err), EMBER_CONTEXT_FULL);
        STATUS(poll_id(queued, &token, &err), EMBER_NOTHING_PENDING);
        OK(ember_decode_start_n(queued, 6, &err));
        for (k = 0; k < 6; k++) {
            STATUS(ember_decode_start_n(queued, 1, &err), EMBER_DECODE_PENDING);
            STATUS(decode_id(queued, &token, &err), EMBER_DECODE_PENDING);
            CHECK(collect(queued) == decode(plain));
            CHECK(position_of(queued) == position_of(plain));
        }
        STATUS(poll_id(queued, &token, &err), EMBER_NOTHING_PENDING);
        /* Drops what was queued behind the second token. */
        OK(ember_decode_start_n(queued, 6, &err));
        CHECK(collect(queued) == decode(plain));
        CHECK(collect(queued) == decode(plain));
        OK(ember_session_rewind(queued, position_of(queued), &err));
        STATUS(poll_id(queued, &token, &err), EMBER_NOTHING_PENDING);
        CHECK(decode(queued) == decode(plain));
        /* Interrupted: first the tokens that were there, then the status, then nothing. */
        OK(ember_decode_start_n(queued, 6, &err));
        CHECK(ember_session_interrupt(queued) == EMBER_OK);
        for (k = 0;;) {
            uint32_t got;
            status = poll_id(queued, &got, &err);
            if (status == EMBER_PENDING) continue;
            if (status != EMBER_OK) break;
            CHECK(got == decode(plain));
            k++;
        }
        STATUS(status, k < 6 ? EMBER_INTERRUPTED : EMBER_NOTHING_PENDING);
        STATUS(poll_id(queued, &token, &err), EMBER_NOTHING_PENDING);
        if (k == 6) STATUS(decode_id(queued, &token, &err), EMBER_INTERRUPTED);
        CHECK(decode(queued) == decode(plain));
        CHECK(token == 77);
        /* Freed with tokens in the queue. */
        OK(ember_decode_start_n(queued, 6, &err));
        CHECK(ember_session_free(queued) == EMBER_OK);
        CHECK(ember_session_free(plain) == EMBER_OK);
    }
}

static void forks(const ember_model *model) {
    uint32_t i, k;
    for (i = 0; i < 5; i++) {
        ember_session *first = numbered(model, i), *fork = NULL, *third = NULL;
        for (k = 0; k < i; k++) decode(first);
        OK(ember_session_fork(first, &fork, &err));
        OK(ember_session_fork(fork, &third, &err));
        CHECK(position_of(fork) == position_of(first));
        OK(ember_session_rewind(third, 0, &err));
        OK(ember_prefill(third, &i, 1, &err));
        for (k = 0; k < 5; k++) CHECK(decode(fork) == decode(first));
        /* The first may go. */
        CHECK(ember_session_free(first) == EMBER_OK);
        decode(fork);
        decode(third);
        OK(ember_decode_start(fork, &err));
        first = (ember_session *)&i;
        STATUS(ember_session_fork(fork, &first, &err), EMBER_DECODE_PENDING);
        STATUS(ember_session_fork(fork, NULL, &err), EMBER_NULL_POINTER);
        STATUS(ember_session_fork(NULL, &first, &err), EMBER_INVALID_HANDLE);
        CHECK(first == (ember_session *)&i);
        CHECK(ember_session_free(fork) == EMBER_OK);
        CHECK(ember_session_free(third) == EMBER_OK);
    }
}

static void estimates(const ember_model *model, const char *path) {
    ember_model_options m = model_options();
    ember_session_options o = session_options();
    ember_model_details details;
    ember_session_details session_details;
    ember_session *session;
    ember_estimate e, twice;
    ember_cuda_model_options cuda;
    size_t len = strlen(path);
    m.device = cpu_device();
    m.threads = 2;
    memset(&e, 0x55, sizeof e);
    e.struct_size = sizeof e;
    o.context = 100;
    OK(ember_model_estimate(path, len, &m, &o, &e, &err));
    details.struct_size = sizeof details;
    OK(ember_model_info(model, &details, &err));
    session = create(model, &o);
    session_details.struct_size = sizeof session_details;
    OK(ember_session_info(session, &session_details, &err));
    CHECK(ember_session_free(session) == EMBER_OK);
    CHECK(e.struct_size == sizeof e && e.device == m.device && e.context == 100 && e.part_count == 1 && e.first_layer == 0);
    CHECK(e.kv_bytes_per_token == details.kv_bytes_per_token);
    CHECK(e.kv_bytes >= session_details.kv_bytes);
    CHECK(e.weights_bytes <= details.file_bytes + details.resident_bytes);
    CHECK(e.weights_bytes > details.file_bytes / 2);
    CHECK(e.model_workspace_bytes > 0 && e.session_workspace_bytes > N_VOCAB * sizeof(float));
    twice.struct_size = sizeof twice;
    o.kv_type = EMBER_KV_F32;
    OK(ember_model_estimate(path, len, &m, &o, &twice, &err));
    CHECK(twice.kv_bytes == 2 * e.kv_bytes && twice.weights_bytes == e.weights_bytes);
    /* What loading would refuse is refused here, and nothing is written. */
    memset(&twice, 0x55, sizeof twice);
    twice.struct_size = sizeof twice;
    o.kv_type = EMBER_KV_Q8_0;
    STATUS(ember_model_estimate(path, len, &m, &o, &twice, &err), EMBER_UNSUPPORTED);
    SAYS("q8_0");
    o.kv_type = 0;
    o.context = details.context_length + 1;
    STATUS(ember_model_estimate(path, len, &m, &o, &twice, &err), EMBER_INVALID_ARGUMENT);
    SAYS("context");
    o.context = 0;
    STATUS(ember_model_estimate("no such file", 12, &m, &o, &twice, &err), EMBER_FILE_NOT_FOUND);
    STATUS(ember_model_estimate(path, len, &m, &o, NULL, &err), EMBER_NULL_POINTER);
    memset(&cuda, 0, sizeof cuda);
    cuda.struct_size = sizeof cuda;
    cuda.kind = EMBER_CHAIN_CUDA_MODEL;
    cuda.context = &m;
    m.next = &cuda;
    STATUS(ember_model_estimate(path, len, &m, &o, &twice, &err), EMBER_INVALID_ARGUMENT);
    SAYS("context");
    m.next = NULL;
    m.device = 1000;
    STATUS(ember_model_estimate(path, len, &m, &o, &twice, &err), EMBER_NO_DEVICE);
    CHECK(twice.weights_bytes == 0x5555555555555555u);
}

static void profiles(const ember_model *model) {
    ember_session *session = numbered(model, 1), *plain = numbered(model, 1);
    ember_profile_entry entries[16];
    size_t count = 77, i;
    uint64_t bytes = 0;
    memset(entries, 0x55, sizeof entries);
    STATUS(ember_session_profile(session, entries, 16, &count, &err), EMBER_INVALID_ARGUMENT);
    SAYS("struct_size");
    entries[0].struct_size = sizeof entries[0];
    STATUS(ember_session_profile(session, NULL, 0, &count, &err), EMBER_BUFFER_TOO_SMALL);
    CHECK(count > 0 && count <= 16);
    STATUS(ember_session_profile(session, entries, 16, NULL, &err), EMBER_NULL_POINTER);
    OK(ember_session_profile(session, entries, 16, &count, &err));
    CHECK(count > 4 && count <= 16);
    for (i = 0; i < count; i++) {
        CHECK(entries[i].struct_size == sizeof entries[i]);
        CHECK(i == 0 || strcmp(entries[i].name, entries[i - 1].name) != 0);
        CHECK(entries[i].calls > 0 && entries[i].microseconds >= 0);
        CHECK(entries[i].name[0] != 0 && entries[i].name[15] == 0);
        bytes += entries[i].bytes;
    }
    CHECK(strcmp(entries[0].name, "embed") == 0);
    CHECK(bytes > 1000000);
    /* The session is as before. */
    for (i = 0; i < 4; i++) {
        CHECK(position_of(session) == position_of(plain));
        CHECK(decode(session) == decode(plain));
        OK(ember_session_profile(session, entries, 16, &count, &err));
    }
    OK(ember_session_rewind(session, 0, &err));
    STATUS(ember_session_profile(session, entries, 16, &count, &err), EMBER_NO_INPUT);
    CHECK(ember_session_free(session) == EMBER_OK);
    CHECK(ember_session_free(plain) == EMBER_OK);
}

/* Programs that were compiled before an option was there, and values that are none. */
static void options(const ember_model *model, const char *path) {
    ember_session_options o = session_options();
    ember_model_options m = model_options();
    ember_session *session = NULL;
    ember_model *refused = NULL;
    ember_cuda_model_options cuda;
    ember_cuda_session_options priority, again;
    o.struct_size = (uint32_t)((char *)&o.sampling - (char *)&o) - 8;
    o.mark_interval = 3;
    OK(ember_session_create(model, &o, &session, &err));
    CHECK(ember_session_free(session) == EMBER_OK);
    session = NULL;
    o.struct_size = sizeof o;
    STATUS(ember_session_create(model, &o, &session, &err), EMBER_INVALID_ARGUMENT);
    SAYS("mark_interval");
    o.mark_interval = 0;
    /* A chain: of its kind, once, as large as it says, and nothing in it that is not known. */
    memset(&priority, 0, sizeof priority);
    priority.struct_size = sizeof priority;
    priority.kind = EMBER_CHAIN_CUDA_SESSION;
    priority.stream_priority = -3;
    again = priority;
    o.next = &priority;
    OK(ember_session_create(model, &o, &session, &err));
    CHECK(ember_session_free(session) == EMBER_OK);
    session = NULL;
    priority.reserved = 1;
    STATUS(ember_session_create(model, &o, &session, &err), EMBER_INVALID_ARGUMENT);
    SAYS("reserved");
    priority.reserved = 0;
    priority.next = &again;
    STATUS(ember_session_create(model, &o, &session, &err), EMBER_INVALID_ARGUMENT);
    SAYS("two ember_cuda_session_options");
    priority.next = NULL;
    priority.kind = EMBER_CHAIN_CUDA_MODEL;
    STATUS(ember_session_create(model, &o, &session, &err), EMBER_INVALID_ARGUMENT);
    SAYS("kind 1");
    priority.kind = EMBER_CHAIN_CUDA_SESSION;
    priority.struct_size = 4;
    STATUS(ember_session_create(model, &o, &session, &err), EMBER_INVALID_ARGUMENT);
    o.next = NULL;
    o.kv_type = EMBER_KV_Q8_0;
    STATUS(ember_session_create(model, &o, &session, &err), EMBER_UNSUPPORTED);
    SAYS("q8_0");
    CHECK(session == NULL);
    m.device = cpu_device();
    memset(&cuda, 0, sizeof cuda);
    cuda.struct_size = sizeof cuda;
    cuda.kind = EMBER_CHAIN_CUDA_MODEL;
    cuda.context = &m;
    m.next = &cuda;
    STATUS(ember_model_load(path, strlen(path), &m, &refused, &err), EMBER_INVALID_ARGUMENT);
    SAYS("context");
    cuda.context = NULL;
    OK(ember_model_load(path, strlen(path), &m, &refused, &err));
    CHECK(ember_model_free(refused) == EMBER_OK);
    m.struct_size = (uint32_t)((char *)&m.next - (char *)&m);
    cuda.context = &m;
    OK(ember_model_load(path, strlen(path), &m, &refused, &err));
    CHECK(ember_model_free(refused) == EMBER_OK);
}

int main(int argc, char **argv) {
    ember_model *model, *other;
    CHECK(argc == 2);
    model = load(argv[1]);
    other = load(argv[1]);
    batches(model);
    bad_batches(model, other);
    queues(model);
    forks(model);
    estimates(model, argv[1]);
    profiles(model);
    options(model, argv[1]);
    works(model);
    CHECK(ember_model_free(other) == EMBER_OK);
    CHECK(ember_model_free(model) == EMBER_OK);
    return 0;
}
