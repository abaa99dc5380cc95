/* fork() in the host: every call of the child is an error at once, and the parent goes on. */
#include "check.h"
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
    FORKED(ember_decode(session, &token, &err));
    SAYS("fork");
    FORKED(ember_decode_poll(busy, &token, &err));
    FORKED(ember_decode_start(session, &err));
    FORKED(ember_decode_batch(&session, 1, &token, &err));
    FORKED(ember_prefill(session, &token, 1, &err));
    FORKED(ember_session_rewind(session, 0, &err));
    FORKED(ember_session_position(session, &position, &err));
    FORKED(ember_session_fork(session, &made, &err));
    FORKED(ember_session_create(model, NULL, &made, &err));
    FORKED(ember_token_is_end(model, 1, &token, &err));
    FORKED(ember_model_load(path, strlen(path), NULL, &another, &err));
    FORKED(ember_device_count(&count, &err));
    CHECK(token == 77 && count == 77 && position == 77 && made == NULL && another == NULL);
    CHECK(ember_session_interrupt(session) == EMBER_FORKED);
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

int main(int argc, char **argv) {
    static const uint32_t prompt[3] = {1, 2, 3};
    ember_model *model;
    ember_session *session, *busy;
    ember_error err;
    ember_status status;
    uint32_t token;
    int i, polled = 0;
    CHECK(argc == 2);
    forked_before(argv[1]);
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
        status = ember_decode_poll(busy, &token, &err);
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
