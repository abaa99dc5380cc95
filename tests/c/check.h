/* What the C tests share. They are compiled as C99 and as C++. */
#ifndef CHECK_H
#define CHECK_H

#include <emberlm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

/* The status of a call; `err` is its error struct. */
#define STATUS(call, wanted) check_status((call), (wanted), &err, #call, __FILE__, __LINE__)
#define OK(call) STATUS(call, EMBER_OK)

/* Says that `text` is in the message of the call before. */
#define SAYS(text) CHECK(strstr(err.message, (text)) != NULL)

static inline void check_status(ember_status got, ember_status wanted, const ember_error *err,
                                const char *call, const char *file, int line) {
    if (got != wanted) {
        fprintf(stderr, "%s:%d: %s\n    gave %s instead of %s: %s\n", file, line, call,
                ember_status_name(got), ember_status_name(wanted), err->message);
        exit(1);
    }
    /* The struct has the same status, and a message if and only if something failed. */
    if (err->code != got || strlen(err->message) >= sizeof err->message ||
        (err->message[0] == 0) != (got == EMBER_OK || got == EMBER_PENDING) ||
        (err->index != EMBER_NO_INDEX && (got == EMBER_OK || got == EMBER_PENDING))) {
        fprintf(stderr, "%s:%d: %s\n    left a wrong error: %d, \"%s\"\n", file, line, call,
                (int)err->code, err->message);
        exit(1);
    }
}

static inline ember_model_options model_options(void) {
    ember_model_options o;
    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o;
    return o;
}

static inline ember_session_options session_options(void) {
    ember_session_options o;
    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o;
    return o;
}

static inline ember_sampling_options sampling_options(void) {
    ember_sampling_options o;
    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o;
    return o;
}

/* The index of the CPU: tests count on its speed and on its memory. */
static inline uint32_t cpu_device(void) {
    uint32_t count = 0, i;
    ember_error err;
    OK(ember_device_count(&count, &err));
    for (i = 0; i < count; i++) {
        ember_device_details device;
        device.struct_size = sizeof device;
        OK(ember_device_info(i, &device, &err));
        if (device.kind == EMBER_DEVICE_CPU) return i;
    }
    CHECK(!"there is no CPU among the devices");
    return 0;
}

static inline ember_model *load(const char *path) {
    ember_model *model = NULL;
    ember_error err;
    ember_model_options o = model_options();
    o.device = cpu_device();
    o.threads = 2;
    OK(ember_model_load(path, strlen(path), &o, &model, &err));
    CHECK(model != NULL);
    return model;
}

static inline ember_session *create(const ember_model *model, const ember_session_options *o) {
    ember_session *session = NULL;
    ember_error err;
    OK(ember_session_create(model, o, &session, &err));
    CHECK(session != NULL);
    return session;
}

static inline size_t position_of(const ember_session *session) {
    size_t position = (size_t)-1;
    ember_error err;
    OK(ember_session_position(session, &position, &err));
    return position;
}

static inline ember_token token_to_write(void) {
    ember_token token;
    memset(&token, 0x55, sizeof token);
    token.struct_size = sizeof token;
    return token;
}

/* What is known of a token that was written beside its id. */
static inline void check_token(const ember_token *token) {
    CHECK(token->struct_size == sizeof *token && token->status == EMBER_OK && token->reserved == 0);
    CHECK(((token->flags & EMBER_TOKEN_HAS_LOGPROB) != 0) == (token->logprob < 0) || token->logprob == 0);
    CHECK(token->flags <= (EMBER_TOKEN_ENDS | EMBER_TOKEN_FORCED | EMBER_TOKEN_HAS_LOGPROB));
}

/* ember_decode, of whose token the id is wanted. */
static inline ember_status decode_id(ember_session *session, uint32_t *id, ember_error *err) {
    ember_token token = token_to_write();
    ember_status status = ember_decode(session, id ? &token : NULL, err);
    if (status == EMBER_OK) check_token(&token), *id = token.id;
    return status;
}

/* ember_decode_poll, of whose token the id is wanted. */
static inline ember_status poll_id(ember_session *session, uint32_t *id, ember_error *err) {
    ember_token token = token_to_write();
    ember_status status = ember_decode_poll(session, id ? &token : NULL, err);
    if (status == EMBER_OK) check_token(&token), *id = token.id;
    return status;
}

/* ember_decode_batch, of whose tokens the ids are wanted. Of a session that has failed, its is left as it is. */
static inline ember_status batch_ids(ember_session *const *sessions, size_t count, uint32_t *ids, ember_error *err) {
    ember_token tokens[64];
    ember_status status;
    size_t i, failed = 0;
    memset(tokens, 0x55, sizeof tokens);
    tokens[0].struct_size = sizeof tokens[0];
    status = ember_decode_batch(sessions, count, ids ? tokens : NULL, err);
    if (!ids || count == 0 || count > 64 || tokens[0].id == 0x55555555) return status;
    for (i = 0; i < count; i++) {
        if (tokens[i].status != EMBER_OK) {
            CHECK(tokens[i].id == EMBER_NO_TOKEN);
            if (failed++ == 0) CHECK(tokens[i].status == status && (!err || err->index == i));
            continue;
        }
        check_token(&tokens[i]);
        ids[i] = tokens[i].id;
    }
    CHECK((failed != 0) == (status != EMBER_OK));
    return status;
}

static inline uint32_t decode(ember_session *session) {
    uint32_t token = UINT32_MAX;
    ember_error err;
    OK(decode_id(session, &token, &err));
    return token;
}

/* The library still does what it is for. */
static inline void works(const ember_model *model) {
    static const uint32_t prompt[3] = {1, 2, 3};
    ember_session *session = create(model, NULL);
    ember_error err;
    OK(ember_prefill(session, prompt, 3, &err));
    decode(session);
    CHECK(position_of(session) == 4);
    CHECK(ember_session_free(session) == EMBER_OK);
}

#endif
