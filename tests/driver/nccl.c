/* A library that stands in for libnccl beside the driver that stands in for libcuda (cuda.c). Ranks of several processes meet in a
 * file, and their gathers wait for each other and carry what they are asked to, on a thread where they are not captured. Graphs of that
 * driver run in the call that launches them, so gathers of ranks of one process cannot wait for each other: they note what was asked
 * for, and all ranks of a communicator must have asked for the same when they go. Communicators go when no graph is left that has captured something of them, as those of the real
 * one. `stand_in_nccl` has calls fail. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef struct { char path[128]; } Id;
enum { SUCCESS, CUDA_ERROR, SYSTEM_ERROR, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, IN_PROGRESS };
#define MOST_RANKS 8
#define BLOCK (8ull << 20)

/* --- faults --------------------------------------------------------------------------------------- */

/* What fails: a call by its name, from the n-th from now on (0 is the next). With "hang" before it, it never ends. */
static struct { char what[64]; int left; } fault;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
void stand_in_nccl(const char *what, int n) {
    pthread_mutex_lock(&mutex);
    snprintf(fault.what, sizeof fault.what, "%s", what);
    fault.left = n;
    pthread_mutex_unlock(&mutex);
}
static int fails(const char *what) {
    int now;
    pthread_mutex_lock(&mutex);
    now = !strcmp(fault.what, what) && fault.left-- <= 0;
    pthread_mutex_unlock(&mutex);
    return now;
}

/* --- communicators -------------------------------------------------------------------------------- */

/* In the file by which ranks meet: block[rank][parity] behind it. */
typedef struct {
    int n_ranks, has_failed, pids[MOST_RANKS], here[MOST_RANKS];
    uint64_t gathers[MOST_RANKS], asked[MOST_RANKS];
} Meeting;
typedef struct Communicator {
    Meeting *meeting;
    char path[128];
    int rank, n_ranks, is_aborted, hangs, graphs, is_there, is_busy;
    uint64_t gathers;
    struct Communicator *next;
} Communicator;
typedef struct {
    Communicator *of;
    const float *send;
    float *receive;
    uint64_t floats;
    void *stream;
    int (*enqueue)(void *, void (*)(void *), void *);
} Gather;
static Communicator *all;

static void doze(void) {
    const struct timespec time = {0, 50000};
    nanosleep(&time, NULL);
}
static void die(const char *why) {
    fprintf(stderr, "stand-in NCCL: %s\n", why);
    abort();
}
static uint64_t bytes(void) { return 4096 + MOST_RANKS * 2 * BLOCK; }
static char *block(const Communicator *c, int rank, uint64_t gather) {
    return (char *)c->meeting + 4096 + (rank * 2 + gather % 2) * BLOCK;
}
/* Whether all ranks are of this process. */
static int is_alone(const Communicator *c) {
    int i;
    for (i = 0; i < c->n_ranks; i++)
        if (c->meeting->pids[i] != getpid()) return 0;
    return 1;
}

int ncclGetVersion(int *version) {
#ifdef OLD
    *version = 21703;
#else
    *version = 22703;
#endif
    return SUCCESS;
}
const char *ncclGetErrorString(int code) {
    return code == REMOTE_ERROR ? "remote process exited" : code == INTERNAL_ERROR ? "internal error" : "an error of the stand-in";
}
const char *ncclGetLastError(Communicator *c) { return c ? "of a communicator" : ""; }
int ncclGetUniqueId(Id *id) {
    static int count;
    const char *folder = getenv("TMPDIR");
    int file;
    if (fails("id")) return SYSTEM_ERROR;
    memset(id, 0, sizeof *id);
    snprintf(id->path, sizeof id->path, "%s/stand-in-nccl-%d-%d", folder ? folder : "/tmp", getpid(), __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED));
    file = open(id->path, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (file < 0 || ftruncate(file, bytes())) return SYSTEM_ERROR;
    close(file);
    return SUCCESS;
}
static void count_graphs(void (*call)(void *), void *user, int more);
int ncclCommInitRankConfig(Communicator **out, int n_ranks, Id id, int rank, void *config) {
    struct { size_t size; uint32_t magic, version; int blocking; } *settings = config;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void (**graphs)(void (*)(void *), void *, int) = driver ? dlsym(driver, "stand_in_graphs") : NULL;
    Communicator *c;
    int file, before;
    if (settings->magic != 0xcafebeef || settings->blocking != 0 || settings->size < 48 || rank < 0 || rank >= n_ranks || n_ranks > MOST_RANKS)
        return INVALID_ARGUMENT;
    if (fails("init")) {
        unlink(id.path);
        return SYSTEM_ERROR;
    }
    file = open(id.path, O_RDWR);
    if (file < 0) return REMOTE_ERROR;
    c = calloc(1, sizeof *c);
    c->meeting = mmap(NULL, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (c->meeting == MAP_FAILED) return SYSTEM_ERROR;
    if (graphs) *graphs = count_graphs;
    memcpy(c->path, id.path, sizeof c->path);
    c->rank = rank;
    c->n_ranks = n_ranks;
    c->hangs = fails("hang init");
    c->meeting->n_ranks = n_ranks;
    c->meeting->pids[rank] = getpid();
    before = __atomic_exchange_n(&c->meeting->here[rank], !c->hangs, __ATOMIC_SEQ_CST);
    if (before) return INVALID_USAGE;
    pthread_mutex_lock(&mutex);
    c->next = all;
    all = c;
    pthread_mutex_unlock(&mutex);
    *out = c;
    return IN_PROGRESS;
}
int ncclCommGetAsyncError(Communicator *c, int *state) {
    int i;
    *state = SUCCESS;
    if (fails("state")) return INVALID_ARGUMENT;
    if (fails("remote")) *state = REMOTE_ERROR;
    if (__atomic_load_n(&c->is_busy, __ATOMIC_SEQ_CST)) *state = IN_PROGRESS;
    if (c->is_there) return SUCCESS;
    for (i = 0; i < c->n_ranks; i++)
        if (!__atomic_load_n(&c->meeting->here[i], __ATOMIC_SEQ_CST)) *state = IN_PROGRESS;
    if (*state == SUCCESS) {
        unlink(c->path);
        c->is_there = 1;
    }
    return SUCCESS;
}

/* --- gathers -------------------------------------------------------------------------------------- */

static void gather(void *user) {
    const Gather *g = user;
    Communicator *c = g->of;
    Meeting *m = c->meeting;
    const uint64_t now = c->gathers++;
    int i;
    if (c->is_aborted) return;
    if (g->floats * 4 > BLOCK) die("a gather that is too large");
    while (fails("hang gather") || c->hangs) {
        c->hangs = 1;
        if (__atomic_load_n(&c->is_aborted, __ATOMIC_SEQ_CST)) return;
        doze();
    }
    m->asked[c->rank] = m->asked[c->rank] * 31 + g->floats;
    memcpy(block(c, c->rank, now), g->send, g->floats * 4);
    __atomic_store_n(&m->gathers[c->rank], now + 1, __ATOMIC_SEQ_CST);
    for (i = 0; i < c->n_ranks; i++) {
        if (!is_alone(c))
            while (__atomic_load_n(&m->gathers[i], __ATOMIC_SEQ_CST) <= now) {
                if (__atomic_load_n(&c->is_aborted, __ATOMIC_SEQ_CST)) return;
                doze();
            }
        memmove(g->receive + i * g->floats, block(c, i, now), g->floats * 4);
    }
}
static void count_graphs(void (*call)(void *), void *user, int more) {
    if (call == gather) __atomic_fetch_add(&((Gather *)user)->of->graphs, more, __ATOMIC_SEQ_CST);
}
static void *enqueue(void *user) {
    Gather *g = user;
    g->enqueue(g->stream, gather, g);
    __atomic_store_n(&g->of->is_busy, 0, __ATOMIC_SEQ_CST);
    return NULL;
}
int ncclAllGather(const void *send, void *receive, size_t count, int type, Communicator *c, void *stream) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    int (*captures)(void *) = driver ? dlsym(driver, "stand_in_captures") : NULL;
    Gather *g = malloc(sizeof *g);
    pthread_t thread;
    if (!captures || type != 7 || c->is_busy) return INVALID_ARGUMENT;
    if (fails("gather")) return INTERNAL_ERROR;
    g->of = c;
    g->send = send;
    g->receive = receive;
    g->floats = count;
    g->stream = stream;
    g->enqueue = dlsym(driver, "cuLaunchHostFunc");
    if (captures(stream)) return g->enqueue(stream, gather, g) ? CUDA_ERROR : SUCCESS;
    c->is_busy = 1;
    if (pthread_create(&thread, NULL, enqueue, g)) return SYSTEM_ERROR;
    pthread_detach(thread);
    return IN_PROGRESS;
}

/* --- ends ----------------------------------------------------------------------------------------- */

/* The last rank of a process waits until no graph is left of any. */
static int end(Communicator *c, int aborted) {
    Communicator *other;
    int waited = 0, i, last = 1;
    pthread_mutex_lock(&mutex);
    __atomic_store_n(&c->is_aborted, 1 + !aborted, __ATOMIC_SEQ_CST);
    for (other = all; other; other = other->next)
        if (!strcmp(other->path, c->path) && !other->is_aborted) last = 0;
    pthread_mutex_unlock(&mutex);
    /* What is being enqueued ends first. */
    while (__atomic_load_n(&c->is_busy, __ATOMIC_SEQ_CST)) doze();
    unlink(c->path);
    if (aborted) c->meeting->has_failed = 1;
    if (!last) return SUCCESS;
    for (other = all; other; other = other->next)
        while (!strcmp(other->path, c->path) && __atomic_load_n(&other->graphs, __ATOMIC_SEQ_CST)) {
            if (waited++ > 200000) die("a communicator went before its graphs");
            doze();
        }
    if (!c->meeting->has_failed && is_alone(c))
        for (i = 1; i < c->n_ranks; i++)
            if (c->meeting->asked[i] != c->meeting->asked[0]) die("ranks have asked for different gathers");
    return SUCCESS;
}
#ifndef WITHOUT_ABORT
int ncclCommAbort(Communicator *c) { return end(c, 1); }
#endif
/* The real one waits until the ranks of other processes are destroyed, too, or have ended. */
int ncclCommDestroy(Communicator *c) {
    int i;
    for (i = 0; i < c->n_ranks; i++)
        if (c->meeting->pids[i] && c->meeting->pids[i] != getpid()) die("a rank that is destroyed waits for other processes");
    return end(c, 0);
}
