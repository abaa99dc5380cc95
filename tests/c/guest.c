/* A guest in the host's process: its threads take no signals of the host's, and it computes the same whatever
   floating-point environment the host has set. POSIX threads and signals. */
#include "check.h"
#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

enum { DECODES = 6, PROMPT = 40 };

static const ember_model *model;
static volatile sig_atomic_t handled;

static void handler(int number) {
    (void)number;
    handled++;
}

static uint32_t vocabulary(void) {
    ember_model_details d;
    ember_error err;
    d.struct_size = sizeof d;
    OK(ember_model_info(model, &d, &err));
    return d.vocab_size;
}

static void prompt(uint32_t *tokens) {
    size_t i;
    for (i = 0; i < PROMPT; i++) tokens[i] = (uint32_t)(6 + i * 37 % 1400);
}

/* Some tokens by chance, among them ones that a thread of the library's made, and the logits. */
static void talk(ember_session *session, uint32_t *out, float *logits, size_t vocab_size) {
    uint32_t tokens[PROMPT];
    ember_error err;
    size_t i;
    prompt(tokens);
    OK(ember_session_rewind(session, 0, &err));
    OK(ember_prefill(session, tokens, PROMPT, &err));
    for (i = 0; i < DECODES; i++) {
        if (i % 2 == 0) {
            OK(decode_id(session, out + i, &err));
        } else {
            ember_status status;
            OK(ember_decode_start(session, &err));
            do status = poll_id(session, out + i, &err);
            while (status == EMBER_PENDING);
            CHECK(status == EMBER_OK);
        }
    }
    OK(ember_session_logits(session, logits, vocab_size, &err));
}

static ember_session *chance(void) {
    ember_session_options o = session_options();
    ember_sampling_options s = sampling_options();
    o.sampling = &s;
    s.temperature = 0.8f;
    s.top_p = 0.9f;
    s.seed = 11;
    return create(model, &o);
}

/* The pool and the thread of started steps are there when this thread blocks the signals that it sends to the
   process: if any of the library's threads took signals, it would get them. */
static void signals_are_the_hosts(void) {
    static const int numbers[] = {SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGALRM, SIGTERM, SIGUSR1, SIGUSR2, SIGCHLD,
                                  SIGCONT, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGXCPU, SIGXFSZ, SIGVTALRM, SIGPROF,
                                  SIGABRT};
    const size_t count = sizeof numbers / sizeof *numbers;
    ember_session *session = chance();
    const uint32_t vocab_size = vocabulary();
    float *logits = (float *)malloc(vocab_size * sizeof *logits);
    uint32_t tokens[DECODES];
    struct sigaction action, before[sizeof numbers / sizeof *numbers];
    sigset_t all, old, pending;
    size_t i, round;
    CHECK(logits != NULL);
    talk(session, tokens, logits, vocab_size);
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    CHECK(sigemptyset(&all) == 0);
    for (i = 0; i < count; i++) {
        CHECK(sigaction(numbers[i], &action, before + i) == 0);
        CHECK(sigaddset(&all, numbers[i]) == 0);
    }
    CHECK(pthread_sigmask(SIG_BLOCK, &all, &old) == 0);
    for (round = 0; round < 5; round++) {
        for (i = 0; i < count; i++) CHECK(kill(getpid(), numbers[i]) == 0);
        talk(session, tokens, logits, vocab_size);
        CHECK(handled == 0);
        CHECK(sigpending(&pending) == 0);
        for (i = 0; i < count; i++) {
            int taken;
            /* SIGCONT takes the signals back that would stop the process. */
            if (!sigismember(&pending, numbers[i])) {
                CHECK(numbers[i] == SIGCONT || numbers[i] == SIGTSTP || numbers[i] == SIGTTIN ||
                      numbers[i] == SIGTTOU);
                continue;
            }
            CHECK(sigwait(&all, &taken) == 0);
        }
    }
    /* This thread's own mask is as it was, also after the library has started threads. */
    CHECK(pthread_sigmask(SIG_SETMASK, &old, &all) == 0);
    for (i = 0; i < count; i++) {
        CHECK(sigismember(&all, numbers[i]) && !sigismember(&old, numbers[i]));
        CHECK(sigaction(numbers[i], before + i, NULL) == 0);
    }
    CHECK(handled == 0);
    CHECK(ember_session_free(session) == EMBER_OK);
    free(logits);
}

/* The same talk as `wanted`, by a new model and session in the present environment. */
static void same_talk(const uint32_t *wanted, const float *wanted_logits, uint32_t vocab_size) {
    uint32_t tokens[DECODES];
    float *logits = (float *)malloc(vocab_size * sizeof *logits);
    ember_session *session = chance();
    CHECK(logits != NULL);
    talk(session, tokens, logits, vocab_size);
    CHECK(memcmp(tokens, wanted, sizeof tokens) == 0);
    CHECK(memcmp(logits, wanted_logits, vocab_size * sizeof *logits) == 0);
    CHECK(ember_session_free(session) == EMBER_OK);
    free(logits);
}

static void any_environment_will_do(const char *path) {
    static const int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    const uint32_t vocab_size = vocabulary();
    uint32_t wanted[DECODES];
    float *logits = (float *)malloc(vocab_size * sizeof *logits);
    const ember_model *first = model;
    ember_session *session = chance();
    size_t i;
    CHECK(logits != NULL);
    talk(session, wanted, logits, vocab_size);
    CHECK(ember_session_free(session) == EMBER_OK);
    for (i = 0; i < sizeof modes / sizeof *modes; i++) {
        ember_model *other;
        CHECK(fesetround(modes[i]) == 0);
        same_talk(wanted, logits, vocab_size);
        /* Its threads inherit the mode. */
        model = other = load(path);
        same_talk(wanted, logits, vocab_size);
        CHECK(fegetround() == modes[i]);
        CHECK(fesetround(FE_TONEAREST) == 0);
        CHECK(ember_model_free(other) == EMBER_OK);
        model = first;
    }
#if defined(__x86_64__)
    {
        /* No exception masked; subnormal numbers flushed to zero and read as zero. */
        static const unsigned words[] = {0x0000, 0x9fc0};
        const unsigned before = _mm_getcsr();
        for (i = 0; i < sizeof words / sizeof *words; i++) {
            ember_model *other;
            unsigned set;
            _mm_setcsr(words[i]);
            /* Not always the same word: valgrind keeps the rounding mode alone. */
            set = _mm_getcsr();
            same_talk(wanted, logits, vocab_size);
            model = other = load(path);
            same_talk(wanted, logits, vocab_size);
            CHECK((_mm_getcsr() & ~0x3fu) == (set & ~0x3fu));
            _mm_setcsr(before);
            CHECK(ember_model_free(other) == EMBER_OK);
            model = first;
        }
    }
#endif
    free(logits);
}

int main(int argc, char **argv) {
    ember_model *loaded;
    CHECK(argc == 2);
    model = loaded = load(argv[1]);
    signals_are_the_hosts();
    any_environment_will_do(argv[1]);
    CHECK(ember_model_free(loaded) == EMBER_OK);
    return 0;
}
