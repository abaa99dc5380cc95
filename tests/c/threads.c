/* Several threads: one session at a time, interrupts, sessions side by side. POSIX threads. */
#include "check.h"
#include <pthread.h>
#include <sched.h>

#define LONG_PROMPT 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct shared {
    ember_session *session;
    const ember_model *model;
    const uint32_t *wanted;
    size_t n_wanted;
    int stop;
};

static int stopped(struct shared *s) {
    int stop;
    pthread_mutex_lock(&lock);
    stop = s->stop;
    pthread_mutex_unlock(&lock);
    return stop;
}

static void stop(struct shared *s, pthread_t thread) {
    pthread_mutex_lock(&lock);
    s->stop = 1;
    pthread_mutex_unlock(&lock);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void long_prompt(uint32_t *tokens) {
    size_t i;
    for (i = 0; i < LONG_PROMPT; i++) tokens[i] = (uint32_t)(6 + i * 37 % 1400);
}

/* Interrupts again and again. */
static void *interrupter(void *user) {
    struct shared *s = (struct shared *)user;
    while (!stopped(s)) {
        CHECK(ember_session_interrupt(s->session) == EMBER_OK);
        sched_yield();
    }
    return NULL;
}

static void interrupts(const ember_model *model) {
    static uint32_t tokens[LONG_PROMPT];
    static const uint32_t start[2] = {0, 300};
    struct shared s = {NULL, NULL, NULL, 0, 0};
    pthread_t thread;
    uint32_t wanted[4];
    ember_error err;
    ember_status status;
    int i, tries;
    long_prompt(tokens);
    s.session = create(model, NULL);
    OK(ember_prefill(s.session, start, 2, &err));
    for (i = 0; i < 4; i++) wanted[i] = decode(s.session);
    OK(ember_session_rewind(s.session, 2, &err));

    CHECK(pthread_create(&thread, NULL, interrupter, &s) == 0);
    /* The first interrupts may come too late on a busy machine. */
    for (tries = 0; tries < 1000; tries++) {
        status = ember_prefill(s.session, tokens, LONG_PROMPT, &err);
        if (status == EMBER_INTERRUPTED) break;
        STATUS(status, EMBER_OK);
        OK(ember_session_rewind(s.session, 2, &err));
    }
    STATUS(status, EMBER_INTERRUPTED);
    CHECK(position_of(s.session) == 2);
    stop(&s, thread);
    /* As if nothing had been, but for interrupts behind the one that was answered. */
    CHECK(ember_session_clear_interrupt(s.session) == EMBER_OK);
    for (i = 0; i < 4; i++) CHECK(decode(s.session) == wanted[i]);

    /* A started decode ends in one of two ways. */
    OK(ember_decode_start(s.session, &err));
    CHECK(ember_session_interrupt(s.session) == EMBER_OK);
    {
        uint32_t token;
        do status = poll_id(s.session, &token, &err);
        while (status == EMBER_PENDING);
        CHECK(status == EMBER_INTERRUPTED || status == EMBER_OK);
        CHECK(position_of(s.session) == (status == EMBER_OK ? 7u : 6u));
        /* In the other one, the next call answers the interrupt. */
        if (status == EMBER_OK) STATUS(decode_id(s.session, &token, &err), EMBER_INTERRUPTED);
        OK(decode_id(s.session, &token, &err));
    }
    CHECK(ember_session_free(s.session) == EMBER_OK);
}

/* Keeps a session busy. */
static void *worker(void *user) {
    struct shared *s = (struct shared *)user;
    static uint32_t tokens[LONG_PROMPT];
    long_prompt(tokens);
    while (!stopped(s)) {
        ember_status status = ember_prefill(s->session, tokens, LONG_PROMPT, NULL);
        CHECK(status == EMBER_OK || status == EMBER_BUSY || status == EMBER_CONTEXT_FULL);
        status = ember_session_rewind(s->session, 0, NULL);
        CHECK(status == EMBER_OK || status == EMBER_BUSY);
    }
    return NULL;
}

static void busy(const ember_model *model) {
    struct shared s = {NULL, NULL, NULL, 0, 0};
    pthread_t thread;
    ember_error err;
    ember_status status;
    s.session = create(model, NULL);
    CHECK(pthread_create(&thread, NULL, worker, &s) == 0);
    do {
        status = ember_session_rewind(s.session, 0, &err);
        CHECK(status == EMBER_OK || status == EMBER_BUSY);
        /* Asking is always possible. */
        CHECK(position_of(s.session) <= LONG_PROMPT);
        sched_yield();
    } while (status != EMBER_BUSY);
    CHECK(err.message[0] != 0);
    stop(&s, thread);
    OK(ember_session_rewind(s.session, 0, &err));
    CHECK(ember_session_free(s.session) == EMBER_OK);
}

/* A session of its own on each thread gives what a session alone gives. */
static void *talker(void *user) {
    struct shared *s = (struct shared *)user;
    static const uint32_t start[2] = {0, 300};
    ember_error err;
    int round;
    size_t i;
    for (round = 0; round < 3; round++) {
        ember_session *session = create(s->model, NULL);
        OK(ember_prefill(session, start, 2, &err));
        for (i = 0; i < s->n_wanted; i++) CHECK(decode(session) == s->wanted[i]);
        CHECK(ember_session_free(session) == EMBER_OK);
    }
    return NULL;
}

static void side_by_side(const ember_model *model) {
    static const uint32_t start[2] = {0, 300};
    uint32_t wanted[12];
    struct shared s = {NULL, NULL, NULL, 0, 0};
    pthread_t threads[4];
    ember_session *session = create(model, NULL);
    ember_error err;
    int i;
    OK(ember_prefill(session, start, 2, &err));
    for (i = 0; i < 12; i++) wanted[i] = decode(session);
    CHECK(ember_session_free(session) == EMBER_OK);
    s.model = model;
    s.wanted = wanted;
    s.n_wanted = 12;
    for (i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, talker, &s) == 0);
    for (i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

/* A cancellation that is there when a call begins waits until it is over. */
/* Embeds until that fails. */
static void *embedding(void *user) {
    enum { TEXTS = 64 };
    ember_embedder *embedder = (ember_embedder *)user;
    static float out[TEXTS * 1024];
    ember_text texts[TEXTS];
    ember_status status = EMBER_OK;
    ember_error error;
    size_t i, written;
    for (i = 0; i < TEXTS; i++) {
        texts[i].text = "it was the best of times, it was the worst of times";
        texts[i].len = strlen(texts[i].text);
    }
    while (status == EMBER_OK) {
        status = ember_embed(embedder, texts, TEXTS, out, sizeof out / sizeof *out, &written, &error);
        /* The other thread asks whether this one is there. */
        if (status == EMBER_BUSY) status = EMBER_OK;
    }
    CHECK(status == EMBER_INTERRUPTED || status == EMBER_INVALID_HANDLE);
    return NULL;
}

/* An embedder is freed while another thread computes with it, which ends that. */
static void freed_in_use(const ember_model *model) {
    ember_embedder_options o;
    ember_embedder_details d;
    ember_text text;
    ember_error err;
    int i;
    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o;
    o.pooling = EMBER_POOLING_MEAN;
    text.text = "a";
    text.len = 1;
    for (i = 0; i < 5; i++) {
        ember_embedder *embedder = NULL;
        pthread_t thread;
        size_t written;
        float out[1024];
        OK(ember_embedder_create(model, &o, &embedder, &err));
        CHECK(pthread_create(&thread, NULL, embedding, embedder) == 0);
        while (ember_embed(embedder, &text, 1, out, 1024, &written, &err) != EMBER_BUSY) sched_yield();
        CHECK(ember_embedder_free(embedder) == EMBER_OK);
        d.struct_size = sizeof d;
        STATUS(ember_embedder_info(embedder, &d, &err), EMBER_INVALID_HANDLE);
        CHECK(ember_embedder_free(embedder) == EMBER_INVALID_HANDLE);
        CHECK(pthread_join(thread, NULL) == 0);
    }
}

static void *cancelled(void *path) {
    ember_model *model = NULL;
    ember_model_options o = model_options();
    ember_error err;
    o.device = cpu_device();
    o.files = EMBER_FILES_READ;
    CHECK(pthread_cancel(pthread_self()) == 0);
    OK(ember_model_load((const char *)path, strlen((const char *)path), &o, &model, &err));
    works(model);
    CHECK(ember_model_free(model) == EMBER_OK);
    pthread_testcancel();
    CHECK(!"the thread was cancelled");
    return NULL;
}

static void cancels(char *path) {
    pthread_t thread;
    void *result = NULL;
    CHECK(pthread_create(&thread, NULL, cancelled, path) == 0);
    CHECK(pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED);
}

int main(int argc, char **argv) {
    ember_model *model;
    CHECK(argc == 2);
    cancels(argv[1]);
    model = load(argv[1]);
    interrupts(model);
    busy(model);
    side_by_side(model);
    freed_in_use(model);
    works(model);
    CHECK(ember_model_free(model) == EMBER_OK);
    return 0;
}
