/* Continues a text with one call, up to a blank line, and says why it ended.
 * usage: generate model.gguf [prompt] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emberlm.h"

enum { MAX_PROMPT = 1024 };

static ember_error err;

static void check(ember_status status)
{
    if (status == EMBER_OK) return;
    fprintf(stderr, "%s: %s\n", ember_status_name(status), err.message);
    exit(EXIT_FAILURE);
}

/* Gets the text while it is made: whole characters, nothing of a stop string. Returning 1 would end it. */
static int32_t show(void *user, const char *text, size_t len, const ember_token *token)
{
    size_t *pieces = (size_t *)user;
    (void)token;
    if (len == 0) return 0;
    ++*pieces;
    fwrite(text, 1, len, stdout);
    fflush(stdout);
    return 0;
}

static const char *reason(uint32_t end)
{
    switch (end) {
    case EMBER_END_LIMIT: return "the limit";
    case EMBER_END_TOKEN: return "the model had finished";
    case EMBER_END_STOP: return "a stop string";
    case EMBER_END_CALLBACK: return "the callback";
    case EMBER_END_INTERRUPTED: return "an interrupt";
    case EMBER_END_CONTEXT_FULL: return "the end of the context";
    default: return "a reason that this program does not know";
    }
}

int main(int argc, char **argv)
{
    static const ember_stop stops[] = {{"\n\n", 2}, {"THE END", 7}};
    const char *prompt = "Once upon a time, Mira the baker lived in Oakvale.";
    uint32_t tokens[MAX_PROMPT];
    size_t count, pieces = 0;
    ember_model *model;
    ember_session *session;
    ember_session_options session_options = {0};
    ember_sampling_options sampling = {0};
    ember_generate_options options = {0};
    ember_generate_details made;

    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: generate model.gguf [prompt]\n");
        return 2;
    }
    if (argc == 3) prompt = argv[2];
    check(ember_model_load(argv[1], strlen(argv[1]), NULL, &model, &err));
    session_options.struct_size = sizeof session_options;
    sampling.struct_size = sizeof sampling;
    sampling.temperature = 0.8f;
    sampling.top_p = 0.95f;
    sampling.seed = 3;
    session_options.sampling = &sampling;
    check(ember_session_create(model, &session_options, &session, &err));
    check(ember_tokenize(model, prompt, strlen(prompt), 0, tokens, MAX_PROMPT, &count, &err));

    options.struct_size = sizeof options;
    options.prompt = tokens;
    options.prompt_count = count;
    options.max_tokens = 200;
    options.stops = stops;
    options.stop_count = sizeof stops / sizeof stops[0];
    options.piece = show;
    options.user = &pieces;
    made.struct_size = sizeof made;
    printf("%s", prompt);
    check(ember_generate(session, &options, &made, &err));
    printf("\n[%lu tokens, %lu bytes in %lu pieces; ended by %s]\n", (unsigned long)made.token_count,
           (unsigned long)made.text_bytes, (unsigned long)pieces, reason(made.end));

    ember_session_free(session);
    ember_model_free(model);
    return 0;
}
