/* What misuse returns: each call below is wrong in its own way, gets a status and a sentence, and
 * leaves the library working. Fails if a status is another one than expected.
 * usage: errors model.gguf */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emberlm.h"

static ember_error err;
static int surprises = 0;

static void expect(const char *what, ember_status want, ember_status got)
{
    printf("%-36s %-23s %s\n", what, ember_status_name(got), got == EMBER_OK ? "" : err.message);
    if (got != want) {
        printf("  expected %s\n", ember_status_name(want));
        surprises++;
    }
    err.message[0] = '\0'; /* the free functions do not write it */
}

int main(int argc, char **argv)
{
    ember_model *model = NULL, *none = NULL;
    ember_session *session = NULL, *freed;
    ember_model_options options;
    ember_session_options small;
    ember_sampling_options sampling;
    uint32_t tokens[5] = {1, 2, 3, 4, 5}, unknown = 4000000000u;
    ember_token token;
    float logits[4];
    ember_status status;
    const char *path = argc == 2 ? argv[1] : "";
    size_t len = strlen(path);

    expect("no path", EMBER_NULL_POINTER, ember_model_load(NULL, 1, NULL, &none, &err));
    expect("a path that is not UTF-8", EMBER_INVALID_UTF8,
           ember_model_load("\xff\xfe", 2, NULL, &none, &err));
    expect("a file that is not there", EMBER_FILE_NOT_FOUND,
           ember_model_load("no such file", 12, NULL, &none, &err));
    expect("a directory", EMBER_UNKNOWN_FORMAT, ember_model_load(".", 1, NULL, &none, &err));
    expect("a program instead of a model", EMBER_UNKNOWN_FORMAT,
           ember_model_load(argv[0], strlen(argv[0]), NULL, &none, &err));
    memset(&options, 0, sizeof options);
    expect("options without their size", EMBER_INVALID_ARGUMENT,
           ember_model_load(path, len, &options, &none, &err));
    options.struct_size = sizeof options;
    options.device = 1000;
    expect("a device that is not there", EMBER_NO_DEVICE,
           ember_model_load(path, len, &options, &none, &err));
    expect("the model named on the command line", EMBER_OK,
           ember_model_load(path, len, NULL, &model, &err));

    memset(&small, 0, sizeof small);
    token.struct_size = sizeof token;
    small.struct_size = sizeof small;
    small.context = 4;
    memset(&sampling, 0, sizeof sampling);
    sampling.struct_size = sizeof sampling;
    sampling.top_p = 2;
    small.sampling = &sampling;
    expect("a probability of 2", EMBER_INVALID_ARGUMENT,
           ember_session_create(model, &small, &session, &err));
    sampling.top_p = 0;
    expect("a session of 4 tokens", EMBER_OK, ember_session_create(model, &small, &session, &err));
    expect("freeing the model before it", EMBER_OK, ember_model_free(model));
    expect("freeing the model again", EMBER_INVALID_HANDLE, ember_model_free(model));

    expect("decode of nothing", EMBER_NO_INPUT, ember_decode(session, &token, &err));
    expect("prefill of nothing", EMBER_NO_INPUT, ember_prefill(session, tokens, 0, &err));
    expect("a token that does not exist", EMBER_INVALID_TOKEN,
           ember_prefill(session, &unknown, 1, &err));
    expect("5 tokens in a context of 4", EMBER_CONTEXT_FULL,
           ember_prefill(session, tokens, 5, &err));
    expect("3 tokens", EMBER_OK, ember_prefill(session, tokens, 3, &err));
    expect("rewind to the future", EMBER_INVALID_ARGUMENT, ember_session_rewind(session, 9, &err));
    expect("room for 4 logits", EMBER_BUFFER_TOO_SMALL,
           ember_session_logits(session, logits, 4, &err));
    expect("poll before start", EMBER_NOTHING_PENDING, ember_decode_poll(session, &token, &err));
    expect("start", EMBER_OK, ember_decode_start(session, &err));
    expect("decode before poll", EMBER_DECODE_PENDING, ember_decode(session, &token, &err));
    do
        status = ember_decode_poll(session, &token, &err);
    while (status == EMBER_PENDING);
    expect("the started token", EMBER_OK, status);
    expect("a token beyond the context", EMBER_CONTEXT_FULL, ember_decode(session, &token, &err));
    expect("rewind makes room", EMBER_OK, ember_session_rewind(session, 2, &err));
    expect("and it decodes", EMBER_OK, ember_decode(session, &token, &err));

    freed = session;
    expect("free", EMBER_OK, ember_session_free(session));
    expect("a freed session", EMBER_INVALID_HANDLE, ember_decode(freed, &token, &err));
    expect("no session", EMBER_INVALID_HANDLE, ember_decode(NULL, &token, &err));
    expect("a pointer to something else", EMBER_INVALID_HANDLE,
           ember_decode((ember_session *)(void *)&token, &token, &err));
    expect("freeing nothing", EMBER_OK, ember_session_free(NULL));
    printf("%d surprises\n", surprises);
    return surprises == 0 && none == NULL ? EXIT_SUCCESS : EXIT_FAILURE;
}
