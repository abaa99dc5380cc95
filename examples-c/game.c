/* Two characters in a game of 60 frames a second. One answers at once; the other first reads a long book, piece by
 * piece. The game's thread never waits for the library: it starts work, polls once a frame, and stops making calls
 * when a frame's calls have taken 4 ms. At the end it prints what the characters said, and what the frames cost.
 * usage: game model.gguf */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L /* clock_gettime, nanosleep */
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "emberlm.h"

enum { CHARACTERS = 2, MAX_PROMPT = 1800, PIECE = 128, MAX_ANSWER = 40, MAX_FRAMES = 60 * 60, PAGES = 16 };

static const double FRAME_MS = 1000.0 / 60, BUDGET_MS = 4;

enum state { READING, TALKING, SILENT };

struct character {
    const char *name;
    ember_session *session;
    enum state state;
    uint32_t prompt[MAX_PROMPT];
    size_t prompt_len, read; /* tokens of the prompt, and those that were started */
    size_t pieces, spoken;
    int first_frame; /* of the answer */
    char text[1024];
    size_t text_len;
};

static ember_error err;
static ember_model *model;

static void check(ember_status status)
{
    if (status == EMBER_OK) return;
    fprintf(stderr, "%s: %s\n", ember_status_name(status), err.message);
    exit(EXIT_FAILURE);
}

static double ms_of(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

static void sleep_until(double when_ms)
{
    double left = when_ms - ms_of(CLOCK_MONOTONIC);
    struct timespec pause = {0, 0};
    if (left <= 0) return;
    pause.tv_nsec = (long)(left * 1e6); /* less than a frame, so less than a second */
    nanosleep(&pause, NULL);
}

/* Starts the next piece of the prompt, or the answer. Returns at once. */
static void go_on(struct character *c)
{
    size_t piece = c->prompt_len - c->read;
    if (piece == 0) {
        c->state = TALKING;
        check(ember_decode_start(c->session, &err));
        return;
    }
    if (piece > PIECE) piece = PIECE;
    check(ember_prefill_start(c->session, c->prompt + c->read, piece, &err));
    c->read += piece;
    c->pieces++;
}

/* Takes what is ready, and starts what comes next. Returns at once. */
static void update(struct character *c, int frame)
{
    ember_status status;
    ember_token token;
    size_t len;
    if (c->state == SILENT) return;
    if (c->state == READING) {
        status = ember_prefill_poll(c->session, NULL, &err);
        if (status == EMBER_PENDING) return;
        check(status);
        go_on(c);
        return;
    }
    token.struct_size = sizeof token;
    status = ember_decode_poll(c->session, &token, &err);
    if (status == EMBER_PENDING) return;
    check(status);
    if (c->spoken++ == 0) c->first_frame = frame;
    if ((token.flags & EMBER_TOKEN_ENDS) || c->spoken == MAX_ANSWER) {
        c->state = SILENT;
        return;
    }
    check(ember_token_text(model, token.id, c->text + c->text_len, sizeof c->text - c->text_len, &len, &err));
    c->text_len += len;
    check(ember_decode_start(c->session, &err));
}

static void create(struct character *c, const char *name)
{
    ember_session_options options;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.context = 2048;
    c->name = name;
    check(ember_session_create(model, &options, &c->session, &err));
}

/* A question about what the guard knows. */
static void ask_guard(struct character *c)
{
    static const char chat[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"What is 9 plus 12?\"}], \"add_generation_prompt\": true}";
    create(c, "guard");
    check(ember_chat_tokenize(model, chat, sizeof chat - 1, NULL, c->prompt, MAX_PROMPT, &c->prompt_len, &err));
}

/* The book, and the beginning of another story. */
static void ask_storyteller(struct character *c)
{
    static const char page[] =
        "Once upon a time, Kira the shepherd came to the old mill. It was a windy morning when she saw a red lamp beside "
        "the well. She picked up the lamp and put it in her bag. Then Mira the baker came along, and they walked home. ";
    static const char question[] = "Once upon a time, Mira the baker lived in Oakvale.";
    static char book[PAGES * (sizeof page - 1) + sizeof question];
    size_t i;
    create(c, "storyteller");
    for (i = 0; i < PAGES; i++) memcpy(book + i * (sizeof page - 1), page, sizeof page - 1);
    memcpy(book + i * (sizeof page - 1), question, sizeof question);
    check(ember_tokenize(model, book, sizeof book - 1, 0, c->prompt, MAX_PROMPT, &c->prompt_len, &err));
}

int main(int argc, char **argv)
{
    static struct character characters[CHARACTERS];
    double begin, longest_ms = 0, longest_cpu_ms = 0, all_cpu_ms = 0;
    int frame, talking = CHARACTERS, over = 0, i;

    if (argc != 2) {
        fprintf(stderr, "usage: game model.gguf\n");
        return 2;
    }
    /* The level loads: here it may take its time. */
    check(ember_model_load(argv[1], strlen(argv[1]), NULL, &model, &err));
    ask_storyteller(&characters[0]);
    ask_guard(&characters[1]);

    for (i = 0; i < CHARACTERS; i++) go_on(&characters[i]);
    begin = ms_of(CLOCK_MONOTONIC);
    for (frame = 0; frame < MAX_FRAMES && talking > 0; frame++) {
        double before = ms_of(CLOCK_MONOTONIC), cpu_before = ms_of(CLOCK_THREAD_CPUTIME_ID), held, cpu;
        talking = 0;
        for (i = 0; i < CHARACTERS; i++) {
            /* Who is not asked in this frame is asked first in the next one. */
            struct character *c = &characters[(frame + i) % CHARACTERS];
            if (ms_of(CLOCK_MONOTONIC) - before < BUDGET_MS) update(c, frame);
            talking += c->state != SILENT;
        }
        held = ms_of(CLOCK_MONOTONIC) - before;
        cpu = ms_of(CLOCK_THREAD_CPUTIME_ID) - cpu_before;
        if (held > longest_ms) longest_ms = held;
        if (cpu > longest_cpu_ms) longest_cpu_ms = cpu;
        all_cpu_ms += cpu;
        over += cpu > BUDGET_MS;
        /* Here the game draws. */
        sleep_until(begin + (frame + 1) * FRAME_MS);
    }

    for (i = 0; i < CHARACTERS; i++) {
        struct character *c = &characters[i];
        printf("%s:%s%.*s\n", c->name, c->text_len > 0 && c->text[0] == ' ' ? "" : " ", (int)c->text_len, c->text);
        printf("  [%lu tokens read in %lu pieces, %lu tokens from frame %d on]\n", (unsigned long)c->prompt_len,
               (unsigned long)c->pieces, (unsigned long)c->spoken, c->first_frame);
        if (c->spoken == 0) over = -1;
        ember_session_free(c->session);
    }
    ember_model_free(model);
    printf("[%d frames; the library's calls took %.3f ms of a frame at most, of which %.3f ms of this thread's CPU time; "
           "%.3f ms of it in all; %d frames over %.0f ms]\n",
           frame, longest_ms, longest_cpu_ms, all_cpu_ms, over > 0 ? over : 0, BUDGET_MS);
    return over < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
