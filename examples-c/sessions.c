/* Threads with a session each on one model: the same prompt, seeds 1, 2, 1, 2. Equal seeds must
 * tell equal stories, whatever else runs, and these two seeds are known to tell different ones.
 * usage: sessions model.gguf */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emberlm.h"

enum { THREADS = 4, MAX_NEW = 48 };

static const char prompt[] = "Once upon a time,";

struct story {
    const ember_model *model;
    uint64_t seed;
    ember_status status;
    ember_error err; /* one per thread: nothing is shared but the model */
    size_t len;
    char text[4096];
};

/* The story's session lives and dies here; the first status that is not EMBER_OK ends it. */
static ember_status tell(struct story *s, ember_session *session)
{
    uint32_t tokens[64], made[MAX_NEW];
    size_t count, i;
    ember_status status =
        ember_tokenize(s->model, prompt, sizeof prompt - 1, 0, tokens, 64, &count, &s->err);
    if (status != EMBER_OK) return status;
    status = ember_prefill(session, tokens, count, &s->err);
    for (i = 0; i < MAX_NEW && status == EMBER_OK; i++) {
        ember_token token;
        token.struct_size = sizeof token;
        status = ember_decode(session, &token, &s->err);
        if (status == EMBER_OK) made[i] = token.id;
    }
    if (status != EMBER_OK) return status;
    return ember_detokenize(s->model, made, MAX_NEW, 0, s->text, sizeof s->text, &s->len, &s->err);
}

static void *run(void *argument)
{
    struct story *s = (struct story *)argument;
    ember_session *session = NULL;
    ember_session_options options;
    ember_sampling_options sampling;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.context = 256;
    memset(&sampling, 0, sizeof sampling);
    sampling.struct_size = sizeof sampling;
    sampling.temperature = 1.0f;
    sampling.seed = s->seed;
    options.sampling = &sampling;
    s->status = ember_session_create(s->model, &options, &session, &s->err);
    if (s->status == EMBER_OK) s->status = tell(s, session);
    ember_session_free(session); /* NULL is fine */
    return NULL;
}

static int equal(const struct story *a, const struct story *b)
{
    return a->len == b->len && memcmp(a->text, b->text, a->len) == 0;
}

int main(int argc, char **argv)
{
    static struct story stories[THREADS];
    pthread_t threads[THREADS];
    ember_model *model;
    ember_error err;
    int i;

    if (argc != 2) {
        fprintf(stderr, "usage: sessions model.gguf\n");
        return 2;
    }
    if (ember_model_load(argv[1], strlen(argv[1]), NULL, &model, &err) != EMBER_OK) {
        fprintf(stderr, "%s: %s\n", ember_status_name(err.code), err.message);
        return EXIT_FAILURE;
    }
    for (i = 0; i < THREADS; i++) {
        stories[i].model = model;
        stories[i].seed = 1 + (uint64_t)i % 2;
        if (pthread_create(&threads[i], NULL, run, &stories[i]) != 0) return EXIT_FAILURE;
    }
    for (i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    ember_model_free(model);

    for (i = 0; i < THREADS; i++) {
        struct story *s = &stories[i];
        if (s->status != EMBER_OK) {
            fprintf(stderr, "%s: %s\n", ember_status_name(s->status), s->err.message);
            return EXIT_FAILURE;
        }
        printf("[seed %d] %s%.*s\n\n", (int)s->seed, prompt, (int)s->len, s->text);
    }
    i = equal(&stories[0], &stories[2]) && equal(&stories[1], &stories[3]);
    printf("equal seeds told %s stories\n", i ? "equal" : "DIFFERENT");
    if (equal(&stories[0], &stories[1])) {
        printf("different seeds told THE SAME story\n");
        i = 0;
    }
    return i ? EXIT_SUCCESS : EXIT_FAILURE;
}
