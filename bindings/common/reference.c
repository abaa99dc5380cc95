/* What the C library answers, for the tests of the bindings: one "name=value" a line, with \n for line ends.
 * usage: reference model.gguf > reference.txt */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emberlm.h"

enum { MAX_TOKENS = 256, MAX_TEXT = 4096 };

static const char story[] = "Once upon a time, Mira the baker lived in Oakvale.";
static const char chat[] =
    "{\"add_generation_prompt\":true,\"messages\":[{\"role\":\"user\",\"content\":\"What is 2 plus 3?\"}]}";
static const char facts[] =
    "{\"add_generation_prompt\":true,\"messages\":[{\"role\":\"system\",\"content\":\"Hanna the guard is at the "
    "lighthouse and has a white map. Olga the potter is at the pond and has a small apple.\"},"
    "{\"role\":\"user\",\"content\":\"Describe Hanna as JSON.\"}]}";
static const char schema[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":20},"
    "\"role\":{\"enum\":[\"guard\",\"baker\",\"fisher\",\"potter\"]},"
    "\"place\":{\"type\":\"string\",\"maxLength\":30},\"item\":{\"type\":\"string\",\"maxLength\":30}},"
    "\"required\":[\"name\",\"role\",\"place\",\"item\"],\"additionalProperties\":false}";

static ember_error err;
static ember_model *model;

static void check(ember_status status)
{
    if (status == EMBER_OK) return;
    fprintf(stderr, "%s: %s\n", ember_status_name(status), err.message);
    exit(EXIT_FAILURE);
}

static void print_text(const char *name, const char *text, size_t len)
{
    printf("%s=", name);
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '\n')
            fputs("\\n", stdout);
        else
            putchar(text[i]);
    }
    putchar('\n');
}

static void print_tokens(const char *name, const uint32_t *tokens, size_t count)
{
    printf("%s=", name);
    for (size_t i = 0; i < count; i++) printf(i > 0 ? ",%lu" : "%lu", (unsigned long)tokens[i]);
    putchar('\n');
}

static ember_session *create(float temperature, uint64_t seed)
{
    ember_session_options options = {0};
    ember_sampling_options sampling = {0};
    ember_session *session;
    sampling.struct_size = sizeof sampling;
    sampling.temperature = temperature;
    sampling.seed = seed;
    options.struct_size = sizeof options;
    options.sampling = &sampling;
    check(ember_session_create(model, &options, &session, &err));
    return session;
}

/* Decodes until the answer ends or `limit` tokens are there, without the token that ends it. */
static void print_answer(const char *name, ember_session *session, size_t limit)
{
    ember_token token;
    uint32_t tokens[MAX_TOKENS];
    char text[MAX_TEXT], label[64];
    size_t made = 0, len;
    while (made < limit) {
        token.struct_size = sizeof token;
        check(ember_decode(session, &token, &err));
        if (token.flags & EMBER_TOKEN_ENDS) break;
        tokens[made++] = token.id;
    }
    snprintf(label, sizeof label, "%s_tokens", name);
    print_tokens(label, tokens, made);
    check(ember_detokenize(model, tokens, made, EMBER_DETOKENIZE_CONTINUE, text, sizeof text, &len, &err));
    snprintf(label, sizeof label, "%s_text", name);
    print_text(label, text, len);
}

static void print_chat(const char *name, const char *json, const char *grammar)
{
    uint32_t tokens[MAX_TOKENS];
    char label[64];
    size_t count;
    ember_session *session = create(0, 0);
    check(ember_chat_tokenize(model, json, strlen(json), NULL, tokens, MAX_TOKENS, &count, &err));
    snprintf(label, sizeof label, "%s_prompt", name);
    print_tokens(label, tokens, count);
    if (grammar != NULL)
        check(ember_session_set_grammar(session, EMBER_GRAMMAR_JSON_SCHEMA, grammar, strlen(grammar), NULL, &err));
    check(ember_prefill(session, tokens, count, &err));
    print_answer(name, session, 100);
    check(ember_session_free(session));
}

static void print_story(const char *name, float temperature, uint64_t seed)
{
    uint32_t tokens[MAX_TOKENS];
    char label[64];
    size_t count;
    ember_session *session = create(temperature, seed);
    check(ember_tokenize(model, story, sizeof story - 1, 0, tokens, MAX_TOKENS, &count, &err));
    snprintf(label, sizeof label, "%s_prompt", name);
    print_tokens(label, tokens, count);
    check(ember_prefill(session, tokens, count, &err));
    print_answer(name, session, 40);
    check(ember_session_free(session));
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: reference model.gguf\n");
        return 2;
    }
    check(ember_model_load(argv[1], strlen(argv[1]), NULL, &model, &err));
    printf("version=%s\nabi=%lu\n", ember_version(), (unsigned long)ember_abi_version());
    print_text("story", story, sizeof story - 1);
    print_text("schema", schema, sizeof schema - 1);
    print_text("facts", facts, sizeof facts - 1);
    print_story("greedy", 0, 0);
    print_story("drawn", 0.8f, 3);
    print_chat("chat", chat, NULL);
    print_chat("json", facts, schema);
    check(ember_model_free(model));
    return EXIT_SUCCESS;
}
