/* A chat in the terminal. Each turn renders the whole conversation with the model's chat template. The session keeps the
 * tokens that it has in common with the last turn, so only new tokens are evaluated. Ctrl-C ends an answer; at the prompt,
 * Ctrl-C or Ctrl-D ends the program.
 * usage: chat model.gguf [system prompt] < questions */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#include <io.h>
#include <windows.h>
#else
#include <pthread.h>
#include <signal.h>
#include <unistd.h>
#endif

#include "emberlm.h"

enum { MAX_MESSAGES = 256, MAX_ANSWER = 1024 };

static ember_error err;
static ember_model *model;
static ember_session *session;
static size_t context;

/* The conversation: who said what. */
static struct { const char *role; char *text; } messages[MAX_MESSAGES];
static size_t n_messages;

/* Whether Ctrl-C ends an answer or the program. */
static int answering;
#ifdef _WIN32
static SRWLOCK mutex = SRWLOCK_INIT;
static void lock(void) { AcquireSRWLockExclusive(&mutex); }
static void unlock(void) { ReleaseSRWLockExclusive(&mutex); }
static int is_terminal(void) { return _isatty(_fileno(stdin)); }
#else
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static void lock(void) { pthread_mutex_lock(&mutex); }
static void unlock(void) { pthread_mutex_unlock(&mutex); }
static int is_terminal(void) { return isatty(STDIN_FILENO); }
#endif

static void check(ember_status status)
{
    if (status == EMBER_OK) return;
    fprintf(stderr, "%s: %s\n", ember_status_name(status), err.message);
    exit(EXIT_FAILURE);
}

static void *allocate(void *old, size_t bytes)
{
    void *memory = realloc(old, bytes);
    if (memory != NULL) return memory;
    fprintf(stderr, "out of memory\n");
    exit(EXIT_FAILURE);
}

static void on_ctrl_c(void)
{
    lock();
    if (!answering) _exit(130);
    unlock();
    ember_session_interrupt(session);
}

#ifdef _WIN32
/* Windows calls this on a thread of its own. */
static BOOL WINAPI handle_event(DWORD event)
{
    if (event != CTRL_C_EVENT) return FALSE;
    on_ctrl_c();
    return TRUE;
}

static void watch_ctrl_c(void) { SetConsoleCtrlHandler(handle_event, TRUE); }
#else
/* A signal handler may not call the library, but a thread may. */
static void *wait_for_ctrl_c(void *signals)
{
    int signal;
    while (sigwait((sigset_t *)signals, &signal) == 0) on_ctrl_c();
    return NULL;
}

/* Called before the library starts threads, so that none of them receives the signal. */
static void watch_ctrl_c(void)
{
    static sigset_t signals;
    pthread_t watcher;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    if (pthread_create(&watcher, NULL, wait_for_ctrl_c, &signals) != 0) exit(EXIT_FAILURE);
    pthread_detach(watcher);
}
#endif

static void set_answering(int on)
{
    lock();
    answering = on;
    unlock();
}

/* A text that grows. */
struct text {
    char *bytes;
    size_t len, capacity;
};

static void append(struct text *text, const char *bytes, size_t len)
{
    if (text->capacity - text->len < len) {
        text->capacity = 2 * text->capacity + len;
        text->bytes = (char *)allocate(text->bytes, text->capacity);
    }
    if (len > 0) memcpy(text->bytes + text->len, bytes, len);
    text->len += len;
}

static void append_string(struct text *json, const char *string)
{
    append(json, "\"", 1);
    for (; *string != 0; string++) {
        char escape[8];
        unsigned char byte = (unsigned char)*string;
        if (byte == '"' || byte == '\\' || byte < 0x20)
            append(json, escape, (size_t)sprintf(escape, "\\u%04x", (unsigned)byte));
        else
            append(json, string, 1);
    }
    append(json, "\"", 1);
}

static void say(const char *role, const char *words, size_t len)
{
    char *copy = (char *)allocate(NULL, len + 1);
    memcpy(copy, words, len);
    copy[len] = 0;
    messages[n_messages].role = role;
    messages[n_messages++].text = copy;
}

/* Forgets the oldest question and its answer; 0 if there is none but the newest. */
static int forget(void)
{
    size_t first = n_messages > 0 && strcmp(messages[0].role, "system") == 0;
    if (n_messages < first + 3) return 0;
    free(messages[first].text);
    free(messages[first + 1].text);
    n_messages -= 2;
    memmove(&messages[first], &messages[first + 2], (n_messages - first) * sizeof messages[0]);
    return 1;
}

/* The tokens of the conversation up to where the answer starts. */
static uint32_t *tokenize(size_t *count)
{
    static const char start[] = "{\"add_generation_prompt\":true,\"messages\":[";
    struct text json = {NULL, 0, 0};
    uint32_t *tokens;
    ember_status status;
    size_t i;
    append(&json, start, sizeof start - 1);
    for (i = 0; i < n_messages; i++) {
        append(&json, i > 0 ? ",{\"role\":" : "{\"role\":", i > 0 ? 9 : 8);
        append_string(&json, messages[i].role);
        append(&json, ",\"content\":", 11);
        append_string(&json, messages[i].text);
        append(&json, "}", 1);
    }
    append(&json, "]}", 2);
    status = ember_chat_tokenize(model, json.bytes, json.len, NULL, NULL, 0, count, &err);
    if (status != EMBER_BUFFER_TOO_SMALL) check(status);
    tokens = (uint32_t *)allocate(NULL, (*count + 1) * sizeof *tokens);
    check(ember_chat_tokenize(model, json.bytes, json.len, NULL, tokens, *count, count, &err));
    free(json.bytes);
    return tokens;
}

/* Brings the context to the conversation, reading only what is new of it. Where the template leaves a part of the last
 * answer out, the session goes back to the end of the last prompt. A model with recurrent layers has a copy of its
 * state there, so that it, too, reads no more than the answer and the new question. */
static ember_status read_conversation(void)
{
    uint32_t *tokens;
    size_t count, kept;
    ember_status status;
    for (;;) {
        tokens = tokenize(&count);
        if (count + 1 < context || !forget()) break;
        free(tokens);
    }
    status = ember_session_sync(session, tokens, count, &kept, &err);
    if (status == EMBER_OK) fprintf(stderr, "[%zu tokens, %zu of them new]\n", count, count - kept);
    free(tokens);
    return status;
}

/* Writes text as it comes, and keeps it. */
static int32_t show(void *user, const char *bytes, size_t len, const ember_token *token)
{
    (void)token;
    append((struct text *)user, bytes, len);
    fwrite(bytes, 1, len, stdout);
    fflush(stdout);
    return 0;
}

static void answer(void)
{
    struct text words = {NULL, 0, 0};
    ember_generate_options options = {0};
    ember_generate_details made = {0};
    ember_status status;
    /* A Ctrl-C that came too late for the previous answer must not end this one. */
    ember_session_clear_interrupt(session);
    set_answering(1);
    status = read_conversation();
    if (status == EMBER_OK) {
        options.struct_size = sizeof options;
        options.flags = EMBER_GENERATE_NEW_TEXT;
        options.max_tokens = MAX_ANSWER;
        options.piece = show;
        options.user = &words;
        made.struct_size = sizeof made;
        status = ember_generate(session, &options, &made, &err);
    }
    set_answering(0);
    if (status == EMBER_INTERRUPTED || made.end == EMBER_END_INTERRUPTED)
        fputs(" [stopped]", stdout);
    else if (status == EMBER_CONTEXT_FULL || made.end == EMBER_END_CONTEXT_FULL)
        fputs(" [the context is full]", stdout);
    else
        check(status);
    putchar('\n');
    say("assistant", words.bytes != NULL ? words.bytes : "", words.len);
    free(words.bytes);
}

static void start(const char *path)
{
    ember_session_options options = {0};
    ember_session_details details = {0};
    watch_ctrl_c();
    check(ember_model_load(path, strlen(path), NULL, &model, &err));
    options.struct_size = sizeof options;
    check(ember_session_create(model, &options, &session, &err));
    details.struct_size = sizeof details;
    check(ember_session_info(session, &details, &err));
    context = (size_t)details.context;
}

int main(int argc, char **argv)
{
    char line[4096];
    int terminal = is_terminal();
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: chat model.gguf [system prompt]\n");
        return 2;
    }
    start(argv[1]);
    if (argc == 3) say("system", argv[2], strlen(argv[2]));
    for (;;) {
        fputs("> ", stdout);
        fflush(stdout);
        if (fgets(line, sizeof line, stdin) == NULL) break;
        line[strcspn(line, "\n")] = 0;
        if (line[0] == 0) continue;
        if (!terminal) puts(line);
        while (n_messages + 2 > MAX_MESSAGES && forget()) continue;
        say("user", line, strlen(line));
        answer();
    }
    putchar('\n');
    while (n_messages > 0) free(messages[--n_messages].text);
    ember_session_free(session);
    ember_model_free(model);
    return EXIT_SUCCESS;
}
