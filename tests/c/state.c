/* Saved and restored sessions, eviction, erased spans, and prefills that do not block. */
#include "check.h"

static ember_error err;

static unsigned char file[1 << 22];
static size_t written, taken;

static int32_t write_bytes(void *user, const void *bytes, size_t count) {
    const size_t *limit = (const size_t *)user;
    if (count > sizeof file - written || (limit && written + count > *limit)) return 7;
    memcpy(file + written, bytes, count);
    written += count;
    return 0;
}

static int32_t read_bytes(void *user, void *bytes, size_t capacity, size_t *count) {
    const size_t *limit = (const size_t *)user;
    size_t n = written - taken;
    CHECK(*count == 0);
    if (limit && taken >= *limit) return -1;
    if (n > capacity) n = capacity;
    memcpy(bytes, file + taken, n);
    taken += n;
    *count = n;
    return 0;
}

static ember_session *prompted(const ember_model *model) {
    static const uint32_t tokens[] = {10, 20, 30, 40, 50, 60};
    ember_session *session = NULL;
    OK(ember_session_create(model, NULL, &session, &err));
    OK(ember_prefill(session, tokens, 6, &err));
    return session;
}

static ember_state_details details_of(const char *path) {
    ember_state_details details;
    memset(&details, 0, sizeof details);
    details.struct_size = sizeof details;
    OK(ember_session_state_info(path, strlen(path), &details, &err));
    return details;
}

/* Through a file and through callbacks, all of it and tokens alone. */
static void saves(const ember_model *model) {
    const char *path = "emberlm-test-state.tmp";
    uint32_t kind;
    for (kind = 0; kind < 2; kind++) {
        ember_session *session = prompted(model), *other = NULL, *third = NULL;
        ember_save_options options;
        ember_state_details details;
        int i;
        options.struct_size = sizeof options;
        options.kind = kind;
        decode(session);
        OK(ember_session_save(session, path, strlen(path), &options, &err));
        details = details_of(path);
        CHECK(details.kind == kind && details.version == 1 && details.position == 7);
        CHECK(details.kv_type == EMBER_KV_F16 && strcmp(details.architecture, "llama") == 0);
        CHECK(details.model_fingerprint != 0 && details.tokenizer_fingerprint != 0);
        OK(ember_session_restore(model, path, strlen(path), NULL, &other, &err));
        written = taken = 0;
        OK(ember_session_save_to(session, write_bytes, NULL, &options, &err));
        CHECK(written == details.file_bytes);
        OK(ember_session_restore_from(model, read_bytes, NULL, NULL, &third, &err));
        CHECK(taken == written);
        for (i = 0; i < 5; i++) {
            uint32_t token = decode(session);
            CHECK(decode(other) == token && decode(third) == token);
        }
        CHECK(ember_session_free(session) == EMBER_OK);
        CHECK(ember_session_free(other) == EMBER_OK);
        CHECK(ember_session_free(third) == EMBER_OK);
    }
    CHECK(remove(path) == 0);
}

static void refusals(const ember_model *model) {
    ember_session *session = prompted(model), *out = NULL;
    ember_save_options bad;
    ember_restore_options options;
    size_t limit = 100;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    bad.struct_size = sizeof bad;
    bad.kind = 2;
    STATUS(ember_session_save(session, "x", 1, &bad, &err), EMBER_INVALID_ARGUMENT);
    STATUS(ember_session_save(session, "", 0, NULL, &err), EMBER_INVALID_ARGUMENT);
    STATUS(ember_session_save(session, "no/such/folder/x", 16, NULL, &err), EMBER_FILE_NOT_FOUND);
    STATUS(ember_session_save(session, "/", 1, NULL, &err), EMBER_INVALID_ARGUMENT);
    STATUS(ember_session_save_to(session, NULL, NULL, NULL, &err), EMBER_NULL_POINTER);
    written = taken = 0;
    STATUS(ember_session_save_to(session, write_bytes, &limit, NULL, &err), EMBER_CANCELLED);
    STATUS(ember_session_restore(model, "no such file", 12, NULL, &out, &err), EMBER_FILE_NOT_FOUND);
    STATUS(ember_session_restore_from(model, NULL, NULL, NULL, &out, &err), EMBER_NULL_POINTER);
    written = taken = 0;
    OK(ember_session_save_to(session, write_bytes, NULL, NULL, &err));
    STATUS(ember_session_restore_from(model, read_bytes, &limit, NULL, &out, &err), EMBER_CANCELLED);
    options.context = 3;
    taken = 0;
    STATUS(ember_session_restore_from(model, read_bytes, NULL, &options, &out, &err), EMBER_INVALID_ARGUMENT);
    options.context = 0;
    options.kv_type = 9;
    STATUS(ember_session_restore_from(model, read_bytes, NULL, &options, &out, &err), EMBER_INVALID_ARGUMENT);
    file[written / 2] ^= 1;
    taken = 0;
    STATUS(ember_session_restore_from(model, read_bytes, NULL, NULL, &out, &err), EMBER_STATE_CHECKSUM);
    file[8] ^= 2;
    taken = 0;
    STATUS(ember_session_restore_from(model, read_bytes, NULL, NULL, &out, &err), EMBER_STATE_VERSION);
    file[0] ^= 2;
    taken = 0;
    STATUS(ember_session_restore_from(model, read_bytes, NULL, NULL, &out, &err), EMBER_NOT_STATE);
    written = taken = 0;
    STATUS(ember_session_restore_from(model, read_bytes, NULL, NULL, &out, &err), EMBER_NOT_STATE);
    CHECK(out == NULL && position_of(session) == 6);
    CHECK(ember_session_free(session) == EMBER_OK);
}

static void moves(ember_model *model) {
    ember_session *session = prompted(model), *alone = prompted(model);
    int i;
    for (i = 0; i < 4; i++) {
        OK(ember_session_evict(session, &err));
        if (i == 1) OK(ember_session_resume(session, &err));
        if (i == 2) OK(ember_model_evict(model, &err));
        if (i == 3) OK(ember_model_resume(model, &err));
        CHECK(position_of(session) == position_of(alone));
        CHECK(decode(session) == decode(alone));
    }
    /* Ten tokens; without the third and fourth it is another text, and with a prefill the same one again. */
    OK(ember_session_erase(session, 2, 2, &err));
    CHECK(position_of(session) == 8);
    STATUS(ember_session_erase(session, 7, 2, &err), EMBER_INVALID_ARGUMENT);
    OK(ember_session_erase(session, 8, 0, &err));
    decode(session);
    CHECK(ember_session_free(session) == EMBER_OK);
    CHECK(ember_session_free(alone) == EMBER_OK);
}

static void prefills(const ember_model *model) {
    static uint32_t tokens[700];
    /* Where everything takes long, fewer. */
    const size_t n = getenv("EMBERLM_SLOW_MACHINE") ? 150 : 700;
    ember_session *session = NULL, *alone = NULL;
    size_t evaluated = 0, before = 0;
    uint32_t i, token;
    ember_status status;
    for (i = 0; i < 700; i++) tokens[i] = (i * 7 + 3) % 500;
    OK(ember_session_create(model, NULL, &session, &err));
    OK(ember_session_create(model, NULL, &alone, &err));
    OK(ember_prefill(alone, tokens, n, &err));
    STATUS(ember_prefill_poll(session, &evaluated, &err), EMBER_NOTHING_PENDING);
    STATUS(ember_prefill_start(session, tokens, 0, &err), EMBER_NO_INPUT);
    OK(ember_prefill_start(session, tokens, n, &err));
    STATUS(ember_prefill(session, tokens, 1, &err), EMBER_DECODE_PENDING);
    STATUS(decode_id(session, &token, &err), EMBER_DECODE_PENDING);
    STATUS(ember_session_evict(session, &err), EMBER_DECODE_PENDING);
    STATUS(poll_id(session, &token, &err), EMBER_NOTHING_PENDING);
    CHECK(position_of(session) == 0);
    while ((status = ember_prefill_poll(session, &evaluated, &err)) == EMBER_PENDING) {
        CHECK(evaluated >= before && evaluated <= n);
        before = evaluated;
    }
    CHECK(status == EMBER_OK && evaluated == n && position_of(session) == n);
    CHECK(decode(session) == decode(alone));
    /* Dropped, and freed, while it runs. */
    OK(ember_session_rewind(session, 0, &err));
    OK(ember_prefill_start(session, tokens, n, &err));
    OK(ember_session_rewind(session, 0, &err));
    OK(ember_prefill_start(session, tokens, n, &err));
    CHECK(ember_session_interrupt(session) == EMBER_OK);
    do status = ember_prefill_poll(session, NULL, &err);
    while (status == EMBER_PENDING);
    CHECK(status == EMBER_INTERRUPTED || status == EMBER_OK);
    CHECK(ember_session_clear_interrupt(session) == EMBER_OK);
    OK(ember_session_rewind(session, 0, &err));
    OK(ember_prefill_start(session, tokens, n, &err));
    CHECK(ember_session_free(session) == EMBER_OK);
    CHECK(ember_session_free(alone) == EMBER_OK);
}

int main(int argc, char **argv) {
    ember_model *model = load(argc > 1 ? argv[1] : "");
    saves(model);
    refusals(model);
    moves(model);
    prefills(model);
    CHECK(ember_model_free(model) == EMBER_OK);
    return 0;
}
