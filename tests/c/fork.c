/* fork() in the host: every call of the child is an error at once, and the parent goes on. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* for unshare */
#endif
#include "check.h"
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define FORKED(call) STATUS(call, EMBER_FORKED)

/* What a child does with what its parent had. Kills itself if all is as it should be: the memory
   of the parent's threads is lost in it, which a leak check at its exit would report. */
static void child(ember_model *model, ember_session *session, ember_session *busy, const char *path) {
    ember_model *another = NULL;
    ember_session *made = NULL;
    ember_error err;
    uint32_t token = 77, count = 77;
    size_t position = 77;
    /* A call that hangs ends the child with a signal. */
    alarm(60);
    FORKED(decode_id(session, &token, &err));
    SAYS("fork");
    FORKED(poll_id(busy, &token, &err));
    FORKED(ember_decode_start(session, &err));
    FORKED(batch_ids(&session, 1, &token, &err));
    FORKED(ember_prefill(session, &token, 1, &err));
    FORKED(ember_session_rewind(session, 0, &err));
    FORKED(ember_session_sync(session, &token, 1, &position, &err));
    FORKED(ember_session_tokens(session, 0, &token, 1, &position, &err));
    FORKED(ember_generate(session, NULL, NULL, &err));
    FORKED(ember_end_tokens(model, &token, 1, &position, &err));
    FORKED(ember_session_position(session, &position, &err));
    FORKED(ember_session_fork(session, &made, &err));
    FORKED(ember_session_create(model, NULL, &made, &err));
    FORKED(ember_token_is_end(model, 1, &token, &err));
    FORKED(ember_model_load(path, strlen(path), NULL, &another, &err));
    FORKED(ember_device_count(&count, &err));
    CHECK(token == 77 && count == 77 && position == 77 && made == NULL && another == NULL);
    CHECK(ember_session_interrupt(session) == EMBER_FORKED);
    CHECK(ember_session_clear_interrupt(session) == EMBER_FORKED);
    CHECK(ember_session_free(busy) == EMBER_FORKED);
    CHECK(ember_session_free(session) == EMBER_FORKED);
    CHECK(ember_model_free(model) == EMBER_FORKED);
    CHECK(strcmp(ember_status_name(EMBER_FORKED), "EMBER_FORKED") == 0);
    kill(getpid(), SIGKILL);
}

static void was_killed(pid_t pid) {
    int status = -1;
    CHECK(pid > 0);
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void ended_well(pid_t pid) {
    int status = -1;
    CHECK(pid > 0);
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* A process that forks first and loads then is not affected. */
static void forked_before(const char *path) {
    pid_t pid;
    uint32_t count = 0;
    ember_error err;
    ember_model *none = NULL;
    OK(ember_device_count(&count, &err));
    STATUS(ember_model_load("no such file", 12, NULL, &none, &err), EMBER_FILE_NOT_FOUND);
    pid = fork();
    if (pid == 0) {
        ember_model *model;
        alarm(300);
        model = load(path);
        works(model);
        CHECK(ember_model_free(model) == EMBER_OK);
        exit(0);
    }
    ended_well(pid);
}

/* Ends a child well, and without a leak check. */
static void leave(void) {
    execlp("true", "true", (char *)NULL);
    _exit(0);
}

/* What a child tells before it ends. */
enum { REFUSED = 'r', SERVED = 's' };
static int told[2];

/* Several functions in a child of a process that has loaded no model: all are refused, if a call was
   running when it was forked, or none is. */
static void stranger(const char *path) {
    uint32_t count = 0;
    ember_error err;
    ember_model *model = NULL;
    ember_estimate estimate;
    ember_status status;
    int refused;
    alarm(60);
    status = ember_device_count(&count, &err);
    refused = status == EMBER_FORKED;
    CHECK(refused || status == EMBER_OK);
    status = ember_model_load("no such file", 12, NULL, &model, &err);
    CHECK(status == (refused ? EMBER_FORKED : EMBER_FILE_NOT_FOUND) && model == NULL);
    memset(&estimate, 0, sizeof estimate);
    estimate.struct_size = sizeof estimate;
    status = ember_model_estimate(path, strlen(path), NULL, NULL, &estimate, &err);
    CHECK(status == (refused ? EMBER_FORKED : EMBER_OK));
    status = ember_set_log_callback(NULL, NULL, 0, &err);
    CHECK(status == (refused ? EMBER_FORKED : EMBER_OK));
    status = ember_model_free(model);
    CHECK(status == (refused ? EMBER_FORKED : EMBER_OK));
    CHECK(write(told[1], refused ? "r" : "s", 1) == 1);
    leave();
}

/* What a stranger told. */
static int end_of(pid_t pid) {
    char what = 0;
    ended_well(pid);
    CHECK(read(told[0], &what, 1) == 1);
    CHECK(what == REFUSED || what == SERVED);
    return what;
}

struct loader {
    pthread_mutex_t lock;
    const char *path;
    int stop;
    int loads;
    int stop_at;
    int calls;
};

/* Loads are cancelled, each at another moment: none of them is a first model. */
static int32_t cancel_at(void *user, float fraction) {
    struct loader *l = (struct loader *)user;
    (void)fraction;
    return ++l->calls > l->stop_at;
}

static void *load_in_a_loop(void *user) {
    struct loader *l = (struct loader *)user;
    for (;;) {
        ember_model_options o = model_options();
        ember_model *model = NULL;
        ember_error err;
        int stop;
        o.device = cpu_device();
        o.threads = 2;
        o.files = (uint32_t)(l->loads / 4 % 2);
        o.progress = cancel_at;
        o.user = l;
        l->stop_at = l->loads % 4;
        l->calls = 0;
        STATUS(ember_model_load(l->path, strlen(l->path), &o, &model, &err), EMBER_CANCELLED);
        pthread_mutex_lock(&l->lock);
        l->loads++;
        stop = l->stop;
        pthread_mutex_unlock(&l->lock);
        if (stop) return NULL;
    }
}

/* Forks while another thread is in its first loads. */
static void forked_during_a_first_load(const char *path) {
    struct loader l;
    pthread_t thread;
    int i, refused = 0;
    memset(&l, 0, sizeof l);
    CHECK(pthread_mutex_init(&l.lock, NULL) == 0);
    l.path = path;
    CHECK(pthread_create(&thread, NULL, load_in_a_loop, &l) == 0);
    for (i = 0; i < 60; i++) {
        pid_t pid = fork();
        if (pid == 0) stranger(path);
        refused += end_of(pid) == REFUSED;
    }
    pthread_mutex_lock(&l.lock);
    l.stop = 1;
    pthread_mutex_unlock(&l.lock);
    CHECK(pthread_join(thread, NULL) == 0);
    printf("%d of 60 children were forked during %d loads and refused\n", refused, l.loads);
}

/* Forks inside of a load: always refused. */
static int32_t fork_now(void *user, float fraction) {
    pid_t pid = fork();
    (void)fraction;
    if (pid == 0) stranger((const char *)user);
    CHECK(end_of(pid) == REFUSED);
    return 1;
}

static void forked_in_a_callback(char *path) {
    ember_model_options o = model_options();
    ember_model *model = NULL;
    ember_error err;
    pid_t pid;
    o.device = cpu_device();
    o.progress = fork_now;
    o.user = path;
    STATUS(ember_model_load(path, strlen(path), &o, &model, &err), EMBER_CANCELLED);
    /* And never when it is over. */
    pid = fork();
    if (pid == 0) stranger(path);
    CHECK(end_of(pid) == SERVED);
}

#ifdef __linux__
/* The first process of a namespace, and so is its child, of another one: both have the id 1. Tells by
   a letter what the child got. */
static void first_process(const char *path, int out) {
    ember_model *model = load(path);
    ember_session *session = create(model, NULL);
    pid_t pid;
    works(model);
    if (getpid() != 1 || unshare(CLONE_NEWPID) != 0 || (pid = fork()) < 0) {
        CHECK(write(out, "s", 1) == 1);
        leave();
    }
    if (pid == 0) {
        uint32_t token = 0;
        ember_error err;
        const char *answer = "w";
        if (getpid() == 1 && decode_id(session, &token, &err) == EMBER_FORKED &&
            ember_device_count(&token, &err) == EMBER_FORKED &&
            ember_session_free(session) == EMBER_FORKED &&
            ember_model_free(model) == EMBER_FORKED)
            answer = "f";
        CHECK(write(out, answer, 1) == 1);
        leave();
    }
    waitpid(pid, NULL, 0);
    leave();
}

/* A child whose process id is that of its parent, in a namespace of its own. */
static void forked_into_a_namespace(const char *path) {
    int ends[2];
    pid_t outer;
    char answer = 's';
    CHECK(pipe(ends) == 0);
    outer = fork();
    CHECK(outer >= 0);
    if (outer == 0) {
        pid_t pid;
        struct pollfd waits;
        if (unshare(CLONE_NEWPID) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) {
            CHECK(write(ends[1], "s", 1) == 1);
            leave();
        }
        pid = fork();
        if (pid == 0) first_process(path, ends[1]);
        waits.fd = ends[0];
        waits.events = POLLIN;
        if (pid < 0) CHECK(write(ends[1], "s", 1) == 1);
        /* Nothing inside of the namespace can end its first process. */
        else if (poll(&waits, 1, 300000) == 1) waitpid(pid, NULL, 0);
        else CHECK(kill(pid, SIGKILL) == 0 && write(ends[1], "h", 1) == 1);
        leave();
    }
    ended_well(outer);
    CHECK(read(ends[0], &answer, 1) == 1);
    close(ends[0]);
    close(ends[1]);
    if (answer == 's') printf("SKIPPED fork: forked_into_a_namespace: unshare is not permitted\n");
    else CHECK(answer == 'f');
}
#else
static void forked_into_a_namespace(const char *path) {
    (void)path;
    printf("SKIPPED fork: forked_into_a_namespace: only Linux has such\n");
}
#endif

int main(int argc, char **argv) {
    static const uint32_t prompt[3] = {1, 2, 3};
    ember_model *model;
    ember_session *session, *busy;
    ember_error err;
    ember_status status;
    uint32_t token;
    int i, polled = 0;
    CHECK(argc == 2);
    CHECK(pipe(told) == 0);
    forked_before(argv[1]);
    forked_during_a_first_load(argv[1]);
    forked_in_a_callback(argv[1]);
    forked_into_a_namespace(argv[1]);
    model = load(argv[1]);
    session = create(model, NULL);
    busy = create(model, NULL);
    OK(ember_prefill(session, prompt, 3, &err));
    OK(ember_prefill(busy, prompt, 3, &err));
    OK(ember_decode_start_n(busy, 40, &err));
    for (i = 0; i < 3; i++) {
        /* While the threads of the library are at work. */
        pid_t pid = fork();
        if (pid == 0) child(model, session, busy, argv[1]);
        decode(session);
        was_killed(pid);
    }
    for (;;) {
        status = poll_id(busy, &token, &err);
        if (status == EMBER_PENDING) continue;
        if (status != EMBER_OK) break;
        polled++;
    }
    STATUS(status, EMBER_NOTHING_PENDING);
    CHECK(polled == 40);
    works(model);
    CHECK(ember_session_free(busy) == EMBER_OK);
    CHECK(ember_session_free(session) == EMBER_OK);
    CHECK(ember_model_free(model) == EMBER_OK);
    return 0;
}
