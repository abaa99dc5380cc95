/* A character of a game describes itself as JSON that the game can rely on: a schema leaves the
 * model no other way to answer. Then the answer is used.
 * usage: npc_json model.gguf [facts name] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emberlm.h"

enum { MAX_PROMPT = 1024, MAX_ANSWER = 256, MAX_TEXT = 4096 };

/* "name" is any short text, "role" one of the roles of the game. */
static const char schema[] =
    "{"
    "  \"type\": \"object\","
    "  \"properties\": {"
    "    \"name\":  {\"type\": \"string\", \"minLength\": 1, \"maxLength\": 20},"
    "    \"role\":  {\"enum\": [\"guard\", \"baker\", \"fisher\", \"potter\", \"miller\", \"tailor\"]},"
    "    \"place\": {\"type\": \"string\", \"maxLength\": 30},"
    "    \"item\":  {\"type\": \"string\", \"maxLength\": 30}"
    "  },"
    "  \"required\": [\"name\", \"role\", \"place\", \"item\"],"
    "  \"additionalProperties\": false"
    "}";

static ember_error err;

/* Every function returns a status; if it is not 0, `err` has it in words. */
static void check(ember_status status)
{
    if (status == EMBER_OK) return;
    fprintf(stderr, "%s: %s\n", ember_status_name(status), err.message);
    exit(EXIT_FAILURE);
}

/* Appends text to the context; markers like <|user|> count only if `markers` says so, so that a
 * player's words cannot pretend to be somebody else's. */
static void say(ember_model *model, ember_session *session, const char *text, int markers)
{
    uint32_t tokens[MAX_PROMPT], flags = EMBER_TOKENIZE_CONTINUE;
    size_t count;
    if (markers) flags |= EMBER_TOKENIZE_SPECIAL;
    check(ember_tokenize(model, text, strlen(text), flags, tokens, MAX_PROMPT, &count, &err));
    if (count) check(ember_prefill(session, tokens, count, &err));
}

/* The text of a key whose value is a plain string. It needs no reader of JSON that expects
 * surprises: the schema says which keys there are, in which order, and that these are strings. */
static void print_value(const char *json, const char *key)
{
    char pattern[32];
    const char *value;
    snprintf(pattern, sizeof pattern, "\"%s\": \"", key);
    value = strstr(json, pattern);
    if (!value) {
        fprintf(stderr, "the answer has no %s\n", key);
        exit(EXIT_FAILURE);
    }
    for (value += strlen(pattern); *value && *value != '"'; value++) {
        if (*value == '\\' && value[1]) value++;
        putchar(*value);
    }
}

int main(int argc, char **argv)
{
    const char *facts = "Hanna the guard is at the lighthouse and has a white map. "
                        "Olga the potter is at the pond and has a small apple.";
    const char *name = "Hanna";
    uint32_t tokens[MAX_ANSWER], is_end = 0;
    size_t made = 0, len;
    char json[MAX_TEXT];

    if (argc != 2 && argc != 4) {
        fprintf(stderr, "usage: npc_json model.gguf [facts name]\n");
        return 2;
    }
    if (argc == 4) {
        facts = argv[2];
        name = argv[3];
    }

    ember_model *model;
    ember_session *session;
    check(ember_model_load(argv[1], strlen(argv[1]), NULL, &model, &err));
    check(ember_session_create(model, NULL, &session, &err));

    say(model, session, "<|bos|><|system|>\n", 1);
    say(model, session, facts, 0);
    say(model, session, "<|end|>\n<|user|>\n", 1);
    say(model, session, "Describe ", 0);
    say(model, session, name, 0);
    say(model, session, " as JSON.", 0);
    say(model, session, "<|end|>\n<|assistant|>\n", 1);

    check(ember_session_set_grammar(session, EMBER_GRAMMAR_JSON_SCHEMA, schema, strlen(schema),
                                    NULL, &err));
    while (made < MAX_ANSWER) {
        ember_token token;
        token.struct_size = sizeof token;
        check(ember_decode(session, &token, &err));
        tokens[made] = token.id;
        is_end = token.flags & EMBER_TOKEN_ENDS;
        if (is_end) break; /* the JSON is complete, and valid by the schema */
        made++;
    }
    if (!is_end) {
        fprintf(stderr, "the answer is longer than %d tokens\n", MAX_ANSWER);
        return EXIT_FAILURE;
    }
    check(ember_detokenize(model, tokens, made, 0, json, sizeof json - 1, &len, &err));
    json[len] = 0;
    printf("%s\n\n", json);

    print_value(json, "name");
    fputs(" (", stdout);
    print_value(json, "role");
    fputs(") stands at ", stdout);
    print_value(json, "place");
    fputs(" with a ", stdout);
    print_value(json, "item");
    fputs(".\n", stdout);

    ember_session_free(session);
    ember_model_free(model);
    return EXIT_SUCCESS;
}
