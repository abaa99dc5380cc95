/* How long calls take beside a busy host: each function alone, and beside as many threads that do nothing but compute as there are
 * cores. Milliseconds: median, mean and worst of ROUNDS calls. At the end what sessions on threads reach together.
 * usage: busy MODEL.gguf [ROUNDS] [BUSY_THREADS] */
#include <emberlm.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_ROUNDS = 400, LONG = 1500, MAX_BUSY = 256, SESSIONS = 16, EACH = 150 };

static ember_error err;
static ember_model *model;
static ember_session *session, *other;
static uint32_t tokens[4096], long_prompt[LONG];
static char text[1 << 16];
static float logits[1 << 18];
static size_t count;
static uint32_t vocab_size;

static void check(ember_status status, const char *what)
{
    if (status == EMBER_OK) return;
    fprintf(stderr, "%s: %s: %s\n", what, ember_status_name(status), err.message);
    exit(EXIT_FAILURE);
}
#define OK(call) check((call), #call)

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

/* --- the host ------------------------------------------------------------------------------------ */

static volatile int quit;

static void *compute(void *arg)
{
    volatile double x = 1;
    (void)arg;
    while (!quit) x = x * 1.0000001 + 1e-9;
    return NULL;
}

static pthread_t busy[MAX_BUSY];

static void start_busy(int n)
{
    int i;
    quit = 0;
    for (i = 0; i < n; i++)
        if (pthread_create(&busy[i], NULL, compute, NULL)) exit(EXIT_FAILURE);
}

static void end_busy(int n)
{
    int i;
    quit = 1;
    for (i = 0; i < n; i++) pthread_join(busy[i], NULL);
}

/* --- the calls ------------------------------------------------------------------------------------ */

static const char CHAT[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"What is 2 plus 3?\"}],\"add_generation_prompt\":true}";
static const char SCHEMA[] = "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":20},\"hp\":{\"type\":\"integer\"}},"
                             "\"required\":[\"name\",\"hp\"],\"additionalProperties\":false}";

static ember_token token_of(ember_status (*decode)(ember_session *, ember_token *, ember_error *), ember_session *s)
{
    ember_token token;
    ember_status status;
    token.struct_size = sizeof token;
    do status = decode(s, &token, &err);
    while (status == EMBER_PENDING);
    check(status, "a token");
    return token;
}

static void short_context(void)
{
    OK(ember_session_rewind(session, 0, &err));
    OK(ember_prefill(session, long_prompt, 6, &err));
    token_of(ember_decode, session);
}
static void empty(void) { OK(ember_session_rewind(session, 0, &err)); }
static void reading(void)
{
    OK(ember_session_rewind(session, 0, &err));
    OK(ember_session_rewind(other, 0, &err));
    OK(ember_prefill_start(other, long_prompt, LONG, &err));
    usleep(2000);
}
static void stop_reading(void) { OK(ember_session_rewind(other, 0, &err)); }
static void started(void)
{
    short_context();
    ember_session_free(other);
    OK(ember_session_fork(session, &other, &err));
    OK(ember_decode_start_n(other, 200, &err));
    usleep(2000);
}
static void make_other(void) { OK(ember_session_create(model, NULL, &other, &err)); }

static void tokenize(void) { OK(ember_tokenize(model, "Once upon a time,", 17, 0, tokens, 4096, &count, &err)); }
static void chat_format(void) { OK(ember_chat_format(model, CHAT, strlen(CHAT), NULL, text, sizeof text, &count, &err)); }
static void chat_tokenize(void) { OK(ember_chat_tokenize(model, CHAT, strlen(CHAT), NULL, tokens, 4096, &count, &err)); }
static void set_grammar(void) { OK(ember_session_set_grammar(session, EMBER_GRAMMAR_JSON_SCHEMA, SCHEMA, strlen(SCHEMA), NULL, &err)); }
static void no_grammar(void) { OK(ember_session_set_grammar(session, EMBER_GRAMMAR_NONE, NULL, 0, NULL, &err)); }
static void create_and_free(void)
{
    ember_session *s;
    OK(ember_session_create(model, NULL, &s, &err));
    check(ember_session_free(s), "free");
}
static void fork_and_free(void)
{
    ember_session *s;
    OK(ember_session_fork(session, &s, &err));
    check(ember_session_free(s), "free");
}
static void prefill_6(void) { OK(ember_prefill(session, long_prompt, 6, &err)); }
static void prefill_200(void) { OK(ember_prefill(session, long_prompt, 200, &err)); }
static void decode(void) { token_of(ember_decode, session); }
static void decode_start(void)
{
    OK(ember_decode_start(session, &err));
}
static void collect(void) { token_of(ember_decode_poll, session); }
static void batch(void)
{
    ember_session *both[2];
    ember_token made[2];
    both[0] = session, both[1] = other;
    made[0].struct_size = sizeof made[0];
    OK(ember_decode_batch(both, 2, made, &err));
}
static void two_contexts(void)
{
    short_context();
    OK(ember_session_rewind(other, 0, &err));
    OK(ember_prefill(other, long_prompt, 6, &err));
}
static void get_logits(void) { OK(ember_session_logits(session, logits, vocab_size, &err)); }
static void rewind_1(void) { OK(ember_session_rewind(session, 3, &err)); }
static void erase(void) { OK(ember_session_erase(session, 1, 2, &err)); }
static void free_started(void) { check(ember_session_free(other), "free"); }
static int32_t discard(void *user, const void *bytes, size_t n)
{
    (void)user, (void)bytes, (void)n;
    return 0;
}
static void save(void) { OK(ember_session_save_to(session, discard, NULL, NULL, &err)); }
static void generate_8(void)
{
    ember_generate_options o = {0};
    o.struct_size = sizeof o;
    o.max_tokens = 8;
    o.flags = EMBER_GENERATE_IGNORE_END;
    OK(ember_generate(session, &o, NULL, &err));
}

typedef struct row {
    const char *name;
    void (*before)(void), (*call)(void), (*after)(void);
} row;

static const row ROWS[] = {
    {"ember_tokenize", NULL, tokenize, NULL},
    {"ember_chat_format", NULL, chat_format, NULL},
    {"ember_chat_tokenize", NULL, chat_tokenize, NULL},
    {"ember_session_set_grammar", short_context, set_grammar, no_grammar},
    {"ember_session_create, _free", NULL, create_and_free, NULL},
    {"ember_session_fork, _free", short_context, fork_and_free, NULL},
    {"ember_session_free behind start_n", started, free_started, make_other},
    {"ember_prefill of 6", empty, prefill_6, NULL},
    {"ember_prefill of 6 beside one of 1500", reading, prefill_6, stop_reading},
    {"ember_prefill of 200", empty, prefill_200, NULL},
    {"ember_decode", short_context, decode, NULL},
    {"ember_decode_start", short_context, decode_start, collect},
    {"ember_decode_start to its token", short_context, decode_start, NULL},
    {"ember_decode_batch of 2", two_contexts, batch, NULL},
    {"ember_generate of 8", short_context, generate_8, NULL},
    {"ember_session_logits", short_context, get_logits, NULL},
    {"ember_session_rewind", short_context, rewind_1, NULL},
    {"ember_session_erase", short_context, erase, NULL},
    {"ember_session_save_to", short_context, save, NULL},
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void measure(const row *r, int rounds, double *median, double *mean, double *worst)
{
    static double took[MAX_ROUNDS];
    int i;
    for (i = 0; i < rounds; i++) {
        double start;
        if (r->before) r->before();
        start = now_ms();
        r->call();
        if (!strcmp(r->name, "ember_decode_start to its token")) collect();
        took[i] = now_ms() - start;
        if (r->after) r->after();
    }
    *mean = 0;
    for (i = 0; i < rounds; i++) *mean += took[i] / rounds;
    qsort(took, (size_t)rounds, sizeof *took, by_value);
    *median = took[rounds / 2];
    *worst = took[rounds - 1];
}

/* --- sessions on threads --------------------------------------------------------------------------- */

static void *run_session(void *arg)
{
    ember_session *s = arg;
    ember_error e;
    int i;
    for (i = 0; i < EACH; i++) {
        ember_token token;
        token.struct_size = sizeof token;
        if (ember_decode(s, &token, &e) != EMBER_OK) exit(EXIT_FAILURE);
    }
    return NULL;
}

static double rate(int n)
{
    ember_session *s[SESSIONS];
    pthread_t threads[SESSIONS];
    double start;
    int i;
    for (i = 0; i < n; i++) {
        OK(ember_session_create(model, NULL, &s[i], &err));
        OK(ember_prefill(s[i], long_prompt, 6, &err));
        token_of(ember_decode, s[i]);
    }
    start = now_ms();
    for (i = 0; i < n; i++)
        if (pthread_create(&threads[i], NULL, run_session, s[i])) exit(EXIT_FAILURE);
    for (i = 0; i < n; i++) pthread_join(threads[i], NULL);
    start = now_ms() - start;
    for (i = 0; i < n; i++) check(ember_session_free(s[i]), "free");
    return 1e3 * n * EACH / start;
}

static void load(const char *path, uint32_t threads, uint32_t flags)
{
    ember_model_options o = {0};
    ember_model_details d = {0};
    o.struct_size = sizeof o;
    o.threads = threads;
    o.flags = flags;
    d.struct_size = sizeof d;
    OK(ember_model_load(path, strlen(path), &o, &model, &err));
    OK(ember_model_info(model, &d, &err));
    vocab_size = d.vocab_size;
    OK(ember_session_create(model, NULL, &session, &err));
    OK(ember_session_create(model, NULL, &other, &err));
}

static void unload(void)
{
    ember_session_free(session);
    ember_session_free(other);
    ember_model_free(model);
}

int main(int argc, char **argv)
{
    static const struct { const char *name; uint32_t threads, flags; } KINDS[] = {
        {"threads by default", 0, 0}, {"threads = 1", 1, 0}, {"EMBER_MODEL_NEVER_WAIT", 0, EMBER_MODEL_NEVER_WAIT}};
    int rounds = argc > 2 ? atoi(argv[2]) : 100, n = argc > 3 ? atoi(argv[3]) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    size_t i, k;
    if (argc < 2 || rounds < 1 || rounds > MAX_ROUNDS || n < 1 || n > MAX_BUSY) {
        fprintf(stderr, "usage: busy MODEL.gguf [ROUNDS] [BUSY_THREADS]\n");
        return EXIT_FAILURE;
    }
    for (i = 0; i < LONG; i++) long_prompt[i] = (uint32_t)(1 + i * 17 % 1000);
    for (k = 0; k < sizeof KINDS / sizeof *KINDS; k++) {
        double alone, together;
        load(argv[1], KINDS[k].threads, KINDS[k].flags);
        printf("\n%s; milliseconds of %d calls alone, and beside %d busy threads\n%-40s %26s %28s\n", KINDS[k].name, rounds, n, "",
               "alone: median, mean, worst", "busy: median, mean, worst");
        for (i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
            double m[2], a[2], w[2];
            measure(&ROWS[i], rounds, &m[0], &a[0], &w[0]);
            start_busy(n);
            measure(&ROWS[i], rounds, &m[1], &a[1], &w[1]);
            end_busy(n);
            printf("%-40s %8.3f %8.3f %8.3f %10.3f %8.3f %8.3f\n", ROWS[i].name, m[0], a[0], w[0], m[1], a[1], w[1]);
            fflush(stdout);
        }
        alone = rate(1);
        together = rate(SESSIONS);
        printf("%d sessions on threads: %.0f tokens/s together, one session %.0f, ratio %.2f\n", SESSIONS, together, alone, together / alone);
        unload();
    }
    return EXIT_SUCCESS;
}
