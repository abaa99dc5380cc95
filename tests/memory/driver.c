/* Makes every allocation of the library fail, and looks at what the calls do: they return a status, print nothing, leave
 * everything as it was, and do what they should when they are repeated.
 *
 *     memory MODEL [--most N | --calls] [--only TEXT] [--shard I/N] [--defects]
 *
 * For each case, the requests for memory are counted first. Then each of them, or N of them at most, spread evenly,
 * fails, once alone and once with all that follow. The cases run in child processes, one after another; a child that dies
 * is a failure, and the next one goes on behind it. --calls makes each call without a failure only, on the small stack that all
 * calls have here. --defects runs cases with faults instead, each of which has to be found. */
#define _GNU_SOURCE
#include "cases.h"
#include "inject.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

extern const memory_case DEFECTS[];

/* "A stack of 64 KB is enough for every function", also when memory fails. */
#define STACK_BYTES (64 << 10)
/* Failures of one case that are told apart. */
#define MOST_SHOWN 5

/* What a child has found out, where its parent sees it. */
typedef struct report {
    long requests;
    /* The try that runs, counted from 0 over both modes, or -1. */
    long at;
    long tries, refused, succeeded, failed;
    int done;
    /* The result of the call without failures; all others are compared with it. */
    uint64_t result;
} report;

static report *shared;
static const char *model_path;
static long most = 0;
/* Which tries are made: number `shard` of every `shards`. */
static long shard, shards = 1;
static int calls_only;
static const memory_case *the_case;

/* Runs the call, on a thread of its own with a small stack. */
typedef struct run {
    ember_status status;
    ember_error err;
    long n, requests;
    enum inject_mode mode;
    pthread_mutex_t mutex;
} run;

static void *run_call(void *argument) {
    run *r = argument;
    inject_start(r->n, r->mode);
    r->status = the_case->call(&r->err);
    r->requests = inject_stop();
    return NULL;
}

static run call(long n, enum inject_mode mode) {
    static run r;
    pthread_attr_t attributes;
    pthread_t thread;
    memset(&r, 0, sizeof r);
    r.n = n;
    r.mode = mode;
    r.err.code = -1;
    if (pthread_attr_init(&attributes) || pthread_attr_setstacksize(&attributes, STACK_BYTES) ||
        pthread_create(&thread, &attributes, run_call, &r) || pthread_join(thread, NULL)) {
        perror("a thread for the call");
        abort();
    }
    pthread_attr_destroy(&attributes);
    return r;
}

static uint64_t look(void) { return the_case->look ? the_case->look() : 0; }
static uint64_t result(void) { return the_case->result ? the_case->result() : 0; }

static void fault(long n, enum inject_mode mode, const char *what, const run *r) {
    if (shared->failed++ < MOST_SHOWN) {
        fprintf(stdout, "FAILED %s (%s), request %ld of %ld %s: %s: %s: %.300s\n", the_case->function, the_case->variant, n,
                shared->requests, mode == INJECT_ONCE ? "once" : "from then on", what, ember_status_name(r->status),
                r->err.message);
        fflush(stdout);
    }
}

/* Nothing may be written by the library: the files that the child's outputs are redirected to stay empty. */
static int output[2];

static int printed(void) {
    return lseek(output[1], 0, SEEK_END) > 0;
}

/* The call without failures. */
static int reference(void) {
    run r;
    if (the_case->prepare) the_case->prepare();
    r = call(0, INJECT_ONCE);
    shared->requests = r.requests;
    if (r.status != the_case->wanted) {
        fault(0, INJECT_ONCE, "without a failure", &r);
        return 0;
    }
    shared->result = result();
    if (the_case->clean) the_case->clean();
    return 1;
}

/* One try. */
static void try_one(long n, enum inject_mode mode) {
    uint64_t before;
    run r;
    if (the_case->prepare) the_case->prepare();
    before = look();
    r = call(n, mode);
    shared->tries++;
    if (r.err.code != r.status && r.err.code != -1) fault(n, mode, "the error has another code", &r);
    if (r.status == the_case->wanted) {
        shared->succeeded++;
    } else if (r.status != EMBER_OUT_OF_MEMORY || the_case->never_fails) {
        fault(n, mode, "another status", &r);
    } else {
        shared->refused++;
        if (r.err.code != -1 && !r.err.message[0]) fault(n, mode, "no message", &r);
        if (look() != before) fault(n, mode, "the state has changed", &r);
        r = call(0, mode);
        if (r.status != the_case->wanted) fault(n, mode, "repeated without a failure", &r);
    }
    if (r.status == the_case->wanted && result() != shared->result) fault(n, mode, "another result", &r);
    if (the_case->clean) the_case->clean();
    if (printed()) {
        fault(n, mode, "something was printed", &r);
        if (ftruncate(output[1], 0)) abort();
    }
}

/* Of `count` requests, number `i` of at most `most`. */
static long spread(long count, long i, long n) {
    return n >= count ? i + 1 : 1 + (long)((double)i * (count - 1) / (n > 1 ? n - 1 : 1));
}

/* Whether this process makes try `i`: with --shard I/N, one in N. */
static int mine(long i) { return i % shards == shard; }

static void child(long from) {
    long i, n;
    cases_begin(model_path, !the_case->fresh);
    /* What is opened once (devices, vocabularies) is so before the count, unless the case is about that. */
    if (the_case->fresh) {
        if (shared->requests < 0) {
            reference();
            return;
        }
    } else if (!reference() || !reference()) {
        return;
    }
    n = calls_only ? 0 : shared->requests;
    if (most && n > most) n = most;
    for (i = from; i < 2 * n; i++) {
        if (!mine(i)) continue;
        shared->at = i;
        /* A call that hangs is one that dies. */
        alarm(120);
        try_one(spread(shared->requests, i / 2, n), i % 2 ? INJECT_FROM_THEN_ON : INJECT_ONCE);
        if (the_case->fresh) break;
    }
    if (i >= 2 * n) shared->done = 1;
}

/* Runs `child` in a process. Whether it ended as it should. */
static int in_process(long from) {
    int status;
    pid_t pid;
    fflush(stdout);
    pid = fork();
    if (pid < 0) {
        perror("fork");
        exit(2);
    }
    if (pid == 0) {
        /* The driver's own words go where they went. */
        int own = dup(1);
        stdout = fdopen(own, "w");
        dup2(output[1], 1);
        dup2(output[1], 2);
        child(from);
        fflush(stdout);
        _exit(0);
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return 1;
    {
        char said[300] = "";
        ssize_t len = pread(output[1], said, sizeof said - 1, 0);
        long n = shared->requests;
        if (most && n > most) n = most;
        if (len > 0) said[strcspn(said, "\n")] = 0;
        if (shared->failed++ < MOST_SHOWN || shared->at < 0)
            printf("FAILED %s (%s), request %ld of %ld %s: died of signal %d: %s\n", the_case->function, the_case->variant,
                   shared->at < 0 ? 0 : spread(shared->requests, shared->at / 2, n), shared->requests,
                   shared->at % 2 ? "from then on" : "once", WIFSIGNALED(status) ? WTERMSIG(status) : 0, said);
    }
    if (ftruncate(output[1], 0)) abort();
    return 0;
}

/* All tries of a case. Whether it passed. */
static int run_case(const memory_case *c) {
    long from = 0;
    the_case = c;
    memset(shared, 0, sizeof *shared);
    shared->at = -1;
    if (c->fresh) {
        shared->requests = -1;
        if (in_process(0) && shared->failed == 0) {
            long i, n = calls_only ? 0 : shared->requests;
            if (most && n > most) n = most;
            for (i = 0; i < 2 * n; i++)
                if (mine(i)) in_process(i);
        }
    } else {
        while (!in_process(from) && shared->at >= 0) {
            shared->tries++;
            from = shared->at + 1;
            if (shared->done) break;
        }
        if (!shared->done && shared->failed == 0) shared->failed = 1;
    }
    printf("%-28s %-30s %7ld requests, %7ld tries: %7ld out of memory, %7ld as ever, %ld failed\n", c->function, c->variant,
           shared->requests, shared->tries, shared->refused, shared->succeeded, shared->failed);
    fflush(stdout);
    return shared->failed == 0;
}

int main(int argc, char **argv) {
    const char *only = NULL;
    const memory_case *c;
    long tries = 0, refused = 0, succeeded = 0, failed = 0, n_cases = 0;
    int i, defects = 0;
    char name[] = "/tmp/emberlm-memory-XXXXXX";
    for (i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--most") && i + 1 < argc) most = atol(argv[++i]);
        else if (!strcmp(argv[i], "--only") && i + 1 < argc) only = argv[++i];
        else if (!strcmp(argv[i], "--calls")) calls_only = 1;
        else if (!strcmp(argv[i], "--defects")) defects = 1;
        else if (!strcmp(argv[i], "--shard") && i + 1 < argc) {
            if (sscanf(argv[++i], "%ld/%ld", &shard, &shards) != 2) shards = 0;
        }
        else model_path = argv[i];
    }
    if (!model_path || shards < 1 || shard < 0 || shard >= shards) {
        fprintf(stderr, "usage: memory MODEL [--most N | --calls] [--only TEXT] [--shard I/N] [--defects]\n");
        return 2;
    }
    output[1] = mkstemp(name);
    unlink(name);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (output[1] < 0 || shared == MAP_FAILED) {
        perror("memory");
        return 2;
    }
    for (c = defects ? DEFECTS : CASES; c->function; c++) {
        int passed;
        if (only && !strstr(c->function, only) && !strstr(c->variant, only)) continue;
        passed = run_case(c);
        n_cases++;
        tries += shared->tries;
        refused += shared->refused;
        succeeded += shared->succeeded;
        /* A fault that is not found is the failure there. */
        failed += defects ? passed != (c->wanted == EMBER_OK && strcmp(c->variant, "none") == 0) : shared->failed;
    }
    printf("%ld cases, %ld tries: %ld out of memory, %ld as ever, %ld %s\n", n_cases, tries, refused, succeeded, failed,
           defects ? "not found" : "failed");
    return failed != 0;
}
