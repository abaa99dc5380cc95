/* A chat in the terminal. The whole conversation goes through the model's chat template each turn,
 * and the session rewinds to where the new tokens differ from those that it has, so that only the
 * new part is read. Ctrl-C ends an answer; at the prompt, it or Ctrl-D ends the program.
 * usage: chat model.gguf [system prompt] < questions */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "emberlm.h"

enum { MAX_MESSAGES = 256, MAX_ANSWER = 1024 };

static ember_error err;
static ember_model *model;
static ember_session *session;
static ember_text_stream *stream;

/* What the session has in its context. */
static uint32_t *seen;
static size_t n_seen, context;

/* The conversation: who said what. */
static struct { const char *role; char *text; } messages[MAX_MESSAGES];
static size_t n_messages;

/* Set by the thread that waits for Ctrl-C, cleared at the start of an answer. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int answering, stopped;

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

/* A signal handler may not call the library, a thread may. */
static void *wait_for_ctrl_c(void *unused)
{
    sigset_t signals;
    int signal;
    (void)unused;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    while (sigwait(&signals, &signal) == 0) {
        pthread_mutex_lock(&lock);
        if (!answering) _exit(130);
        stopped = 1;
        pthread_mutex_unlock(&lock);
        ember_session_interrupt(session);
    }
    return NULL;
}

static void set_answering(int on)
{
    pthread_mutex_lock(&lock);
    answering = on;
    stopped = 0;
    pthread_mutex_unlock(&lock);
}

static int was_stopped(void)
{
    int result;
    pthread_mutex_lock(&lock);
    result = stopped;
    pthread_mutex_unlock(&lock);
    return result;
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

/* Brings the context to the conversation, reading only what is new of it. */
static ember_status read_conversation(void)
{
    uint32_t *tokens;
    size_t count, common = 0;
    ember_status status;
    for (;;) {
        tokens = tokenize(&count);
        if (count + 1 < context || !forget()) break;
        free(tokens);
    }
    while (common < count && common < n_seen && tokens[common] == seen[common]) common++;
    if (common == count && common > 0) common--; /* the answer needs a last token before it */
    check(ember_session_rewind(session, common, &err));
    n_seen = common;
    status = ember_prefill(session, tokens + common, count - common, &err);
    if (status == EMBER_OK) {
        memcpy(seen + common, tokens + common, (count - common) * sizeof *seen);
        n_seen = count;
        fprintf(stderr, "[%zu tokens, %zu of them new]\n", count, count - common);
    }
    free(tokens);
    return status;
}

/* Writes text as it comes, and keeps it. */
static void show(struct text *answer, const char *bytes, size_t len)
{
    append(answer, bytes, len);
    fwrite(bytes, 1, len, stdout);
    fflush(stdout);
}

static void answer(void)
{
    struct text words = {NULL, 0, 0};
    char text[4096];
    size_t len, made;
    ember_status status;
    set_answering(1);
    status = read_conversation();
    for (made = 0; status == EMBER_OK && made < MAX_ANSWER && !was_stopped(); made++) {
        uint32_t token, is_end;
        status = ember_decode(session, &token, &err);
        if (status != EMBER_OK) break;
        seen[n_seen++] = token;
        check(ember_token_is_end(model, token, &is_end, &err));
        if (is_end) break;
        check(ember_text_stream_push(stream, &token, 1, text, sizeof text, &len, &err));
        show(&words, text, len);
    }
    check(ember_text_stream_finish(stream, text, sizeof text, &len, &err));
    show(&words, text, len);
    set_answering(0);
    if (status == EMBER_CONTEXT_FULL)
        fputs(" [the context is full]", stdout);
    else if (status == EMBER_INTERRUPTED)
        fputs(" [stopped]", stdout);
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
    ember_text_stream_options text = {0};
    pthread_t watcher;
    sigset_t signals;
    /* Before the library makes threads, so that none of them takes the signal. */
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);

    check(ember_model_load(path, strlen(path), NULL, &model, &err));
    options.struct_size = sizeof options;
    check(ember_session_create(model, &options, &session, &err));
    details.struct_size = sizeof details;
    check(ember_session_info(session, &details, &err));
    context = (size_t)details.context;
    seen = (uint32_t *)allocate(NULL, context * sizeof *seen);
    text.struct_size = sizeof text;
    text.flags = EMBER_TEXT_STREAM_SKIP_SPECIAL;
    check(ember_text_stream_create(model, &text, &stream, &err));
    if (pthread_create(&watcher, NULL, wait_for_ctrl_c, NULL) != 0) exit(EXIT_FAILURE);
    pthread_detach(watcher);
}

int main(int argc, char **argv)
{
    char line[4096];
    int terminal = isatty(STDIN_FILENO);
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
    free(seen);
    ember_text_stream_free(stream);
    ember_session_free(session);
    ember_model_free(model);
    return EXIT_SUCCESS;
}
