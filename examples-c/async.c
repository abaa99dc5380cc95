/* A loop of 60 ticks a second, as a game has it, that never waits for the model: it starts a
 * decode, polls once a tick, and prints the longest time that the library held up a tick.
 * usage: async model.gguf */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L /* clock_gettime, nanosleep */
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "emberlm.h"

enum { TICKS = 90 };

static ember_error err;

static void check(ember_status status)
{
    if (status == EMBER_OK) return;
    fprintf(stderr, "%s: %s\n", ember_status_name(status), err.message);
    exit(EXIT_FAILURE);
}

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static void sleep_until(double when_ms)
{
    double left = when_ms - now_ms();
    struct timespec pause = {0, 0};
    if (left <= 0) return;
    pause.tv_nsec = (long)(left * 1e6); /* less than a tick, so less than a second */
    nanosleep(&pause, NULL);
}

int main(int argc, char **argv)
{
    static const char prompt[] = "Once upon a time, Mira the baker lived in Oakvale.";
    const double tick_ms = 1000.0 / 60;
    double longest = 0, begin;
    uint32_t tokens[64], is_end = 0;
    ember_token token;
    size_t count;
    int tick, made = 0, without = 0;

    if (argc != 2) {
        fprintf(stderr, "usage: async model.gguf\n");
        return 2;
    }
    /* The level loads: here it may take its time. */
    ember_model *model;
    check(ember_model_load(argv[1], strlen(argv[1]), NULL, &model, &err));
    ember_session *session;
    check(ember_session_create(model, NULL, &session, &err));
    check(ember_tokenize(model, prompt, sizeof prompt - 1, 0, tokens, 64, &count, &err));
    check(ember_prefill(session, tokens, count, &err));

    check(ember_decode_start(session, &err));
    fputs(prompt, stdout);
    begin = now_ms();
    for (tick = 0; tick < TICKS && !is_end; tick++) {
        double before = now_ms(), held;
        ember_status status;
        token.struct_size = sizeof token;
        status = ember_decode_poll(session, &token, &err);
        if (status == EMBER_PENDING) {
            without++; /* not there yet: draw the frame, ask again in the next tick */
        } else {
            char text[256];
            size_t len;
            check(status);
            made++;
            is_end = token.flags & EMBER_TOKEN_ENDS;
            if (!is_end) {
                check(ember_token_text(model, token.id, text, sizeof text, &len, &err));
                check(ember_decode_start(session, &err));
                fwrite(text, 1, len, stdout);
            }
        }
        held = now_ms() - before;
        if (held > longest) longest = held;
        sleep_until(begin + (tick + 1) * tick_ms);
    }
    printf("\n\n[%d ticks of %.1f ms, %d tokens, %d ticks without one; "
           "the library held a tick up for %.3f ms at most]\n",
           tick, tick_ms, made, without, longest);
    ember_session_free(session); /* also ends a decode that is still running */
    ember_model_free(model);
    return made > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
