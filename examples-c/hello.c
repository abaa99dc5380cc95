/* Continues a text, token by token, and says how fast that was.
 * usage: hello model.gguf [prompt] */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "emberlm.h"

enum { MAX_PROMPT = 1024, MAX_NEW = 512 };

static ember_error err;

/* Every function returns a status; if it is not 0, `err` has it in words. */
static void check(ember_status status)
{
    if (status == EMBER_OK) return;
    fprintf(stderr, "%s: %s\n", ember_status_name(status), err.message);
    exit(EXIT_FAILURE);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Writes a token as it comes: the terminal puts characters of several tokens together. */
static void show(const ember_model *model, uint32_t token)
{
    char text[256];
    size_t len;
    check(ember_token_text(model, token, text, sizeof text, &len, &err));
    fwrite(text, 1, len, stdout);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    const char *prompt = "Once upon a time, Mira the baker lived in Oakvale.";
    uint32_t tokens[MAX_PROMPT];
    ember_token token;
    size_t count, made = 0, i;
    double start, read, end;

    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: hello model.gguf [prompt]\n");
        return 2;
    }
    if (argc == 3) prompt = argv[2];

    ember_model *model;
    check(ember_model_load(argv[1], strlen(argv[1]), NULL, &model, &err));

    ember_sampling_options sampling = {0};
    ember_session_options options = {0};
    sampling.struct_size = sizeof sampling;
    sampling.temperature = 0.8f;
    sampling.seed = 4;
    options.struct_size = sizeof options;
    options.sampling = &sampling;
    ember_session *session;
    check(ember_session_create(model, &options, &session, &err));

    check(ember_tokenize(model, prompt, strlen(prompt), 0, tokens, MAX_PROMPT, &count, &err));
    fputs(prompt, stdout);
    start = seconds();
    check(ember_prefill(session, tokens, count, &err));
    read = seconds();
    for (i = 0; i < MAX_NEW; i++) {
        ember_status status;
        token.struct_size = sizeof token;
        status = ember_decode(session, &token, &err);
        if (status == EMBER_CONTEXT_FULL) break; /* a long prompt left little room */
        check(status);
        made++;
        if (token.flags & EMBER_TOKEN_ENDS) break;
        show(model, token.id);
    }
    end = seconds();
    printf("\n\n[prompt: %zu tokens at %.0f tokens/s; story: %zu tokens at %.0f tokens/s]\n",
           count, (double)count / (read - start), made, (double)made / (end - read));

    ember_session_free(session);
    ember_model_free(model);
    return EXIT_SUCCESS;
}
