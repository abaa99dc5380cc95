/* Grammars by the C interface: answers, errors, other calls meanwhile. */
#include "check.h"

static ember_error err;

static const char NPC[] =
    "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\", \"maxLength\": 20},"
    " \"item\": {\"enum\": [\"white map\", \"red hat\"]}}, \"required\": [\"name\", \"item\"],"
    " \"additionalProperties\": false}";
static const char PROMPT[] =
    "<|bos|><|system|>\nHanna the guard is at the pond and has a white map.<|end|>\n"
    "<|user|>\nDescribe Hanna as JSON.<|end|>\n<|assistant|>\n";

static void set(ember_session *session, uint32_t kind, const char *text) {
    OK(ember_session_set_grammar(session, kind, text, strlen(text), NULL, &err));
}

static void refused(ember_session *session, uint32_t kind, const char *text, const char *says) {
    STATUS(ember_session_set_grammar(session, kind, text, strlen(text), NULL, &err), EMBER_GRAMMAR);
    SAYS(says);
}

static void prefill(const ember_model *model, ember_session *session, const char *text) {
    uint32_t tokens[256];
    size_t count;
    OK(ember_tokenize(model, text, strlen(text), EMBER_TOKENIZE_CONTINUE | EMBER_TOKENIZE_SPECIAL,
                      tokens, 256, &count, &err));
    OK(ember_prefill(session, tokens, count, &err));
}

/* Decodes up to the first end token. */
static void answer(const ember_model *model, ember_session *session, char *text, size_t capacity) {
    uint32_t tokens[200], end = 0;
    size_t count, len;
    for (count = 0; count < 200; count++) {
        OK(decode_id(session, &tokens[count], &err));
        OK(ember_token_is_end(model, tokens[count], &end, &err));
        if (end) break;
    }
    CHECK(end);
    OK(ember_detokenize(model, tokens, count, 0, text, capacity - 1, &len, &err));
    text[len] = 0;
}

static void answers(const ember_model *model, ember_session *session) {
    char text[1024], again[1024];
    ember_grammar_options options;
    size_t start, end;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;

    prefill(model, session, PROMPT);
    OK(ember_session_position(session, &start, &err));
    set(session, EMBER_GRAMMAR_JSON_SCHEMA, NPC);
    answer(model, session, text, sizeof text);
    CHECK(strcmp(text, "{\"name\": \"Hanna\", \"item\": \"white map\"}") == 0);

    /* Back to the beginning, and into the middle. */
    OK(ember_session_position(session, &end, &err));
    OK(ember_session_rewind(session, start, &err));
    answer(model, session, again, sizeof again);
    CHECK(strcmp(text, again) == 0);
    OK(ember_session_rewind(session, end - 4, &err));
    answer(model, session, again, sizeof again);
    CHECK(strlen(again) < strlen(text));
    CHECK(strcmp(text + strlen(text) - strlen(again), again) == 0);

    OK(ember_session_rewind(session, start, &err));
    options.json_spacing = EMBER_JSON_COMPACT;
    OK(ember_session_set_grammar(session, EMBER_GRAMMAR_JSON_SCHEMA, NPC, strlen(NPC), &options, &err));
    answer(model, session, text, sizeof text);
    CHECK(strncmp(text, "{\"name\":\"", 9) == 0);

    OK(ember_session_rewind(session, start, &err));
    set(session, EMBER_GRAMMAR_REGEX, "[0-9]{3}");
    answer(model, session, text, sizeof text);
    CHECK(strlen(text) == 3 && strspn(text, "0123456789") == 3);

    /* The next turn begins the grammar anew. */
    prefill(model, session, "\n<|user|>\nDescribe Hanna as JSON.<|end|>\n<|assistant|>\n");
    answer(model, session, text, sizeof text);
    CHECK(strlen(text) == 3 && strspn(text, "0123456789") == 3);

    OK(ember_session_rewind(session, start, &err));
    set(session, EMBER_GRAMMAR_GBNF, "root ::= \"The \" (\"red\" | \"white\") \" \" [a-z]+ \".\"");
    answer(model, session, text, sizeof text);
    CHECK(strncmp(text, "The ", 4) == 0 && text[strlen(text) - 1] == '.');

    OK(ember_session_rewind(session, start, &err));
    set(session, EMBER_GRAMMAR_LARK, "start: \"(\" WORD \")\"\nWORD: /[a-z]{1,8}/");
    answer(model, session, text, sizeof text);
    CHECK(text[0] == '(' && text[strlen(text) - 1] == ')');

    OK(ember_session_rewind(session, start, &err));
    OK(ember_session_set_grammar(session, EMBER_GRAMMAR_NONE, NULL, 0, NULL, &err));
    answer(model, session, text, sizeof text);
    CHECK(strstr(text, "\"role\"") != NULL);
}

static void errors(const ember_model *model, ember_session *session) {
    char text[64];
    uint32_t token;
    ember_grammar_options options;
    OK(ember_session_rewind(session, 0, &err));
    prefill(model, session, PROMPT);
    set(session, EMBER_GRAMMAR_REGEX, "yes");

    refused(session, EMBER_GRAMMAR_JSON_SCHEMA, "{\"type\":", "line 1");
    refused(session, EMBER_GRAMMAR_JSON_SCHEMA,
            "{\"properties\": {\"hp\": {\"type\": \"integer\", \"minimum\": 9, \"maximum\": 1}},"
            " \"required\": [\"hp\"], \"type\": \"object\"}",
            "/properties/hp");
    refused(session, EMBER_GRAMMAR_REGEX, "(a", "at byte 0");
    refused(session, EMBER_GRAMMAR_LARK, "start: nowhere", "nowhere");
    refused(session, EMBER_GRAMMAR_GBNF, "root ::= \"a\" root", "no text can meet it");
    STATUS(ember_session_set_grammar(session, 5, "x", 1, NULL, &err), EMBER_INVALID_ARGUMENT);
    SAYS("kind is 5");
    STATUS(ember_session_set_grammar(session, EMBER_GRAMMAR_NONE, "x", 1, NULL, &err),
           EMBER_INVALID_ARGUMENT);
    STATUS(ember_session_set_grammar(session, EMBER_GRAMMAR_REGEX, NULL, 3, NULL, &err),
           EMBER_NULL_POINTER);
    STATUS(ember_session_set_grammar(session, EMBER_GRAMMAR_REGEX, "\xff", 1, NULL, &err),
           EMBER_INVALID_UTF8);
    STATUS(ember_session_set_grammar(NULL, EMBER_GRAMMAR_REGEX, "x", 1, NULL, &err),
           EMBER_INVALID_HANDLE);
    memset(&options, 0, sizeof options);
    STATUS(ember_session_set_grammar(session, EMBER_GRAMMAR_REGEX, "x", 1, &options, &err),
           EMBER_INVALID_ARGUMENT);
    options.struct_size = sizeof options;
    options.json_spacing = 3;
    STATUS(ember_session_set_grammar(session, EMBER_GRAMMAR_REGEX, "x", 1, &options, &err),
           EMBER_INVALID_ARGUMENT);
    SAYS("json_spacing is 3");
    OK(ember_decode_start(session, &err));
    STATUS(ember_session_set_grammar(session, EMBER_GRAMMAR_REGEX, "x", 1, NULL, &err),
           EMBER_DECODE_PENDING);
    while (poll_id(session, &token, &err) == EMBER_PENDING) {
    }
    OK(ember_session_rewind(session, 0, &err));
    prefill(model, session, PROMPT);

    /* The grammar is still the first one. */
    answer(model, session, text, sizeof text);
    CHECK(strcmp(text, "yes") == 0);
}

int main(int argc, char **argv) {
    ember_model_options options = model_options();
    ember_session_options session_options_ = session_options();
    ember_model *model;
    ember_session *session;
    CHECK(argc == 2);
    options.device = cpu_device();
    OK(ember_model_load(argv[1], strlen(argv[1]), &options, &model, &err));
    session_options_.context = 512;
    OK(ember_session_create(model, &session_options_, &session, &err));
    answers(model, session);
    errors(model, session);
    CHECK(ember_session_free(session) == EMBER_OK);
    CHECK(ember_model_free(model) == EMBER_OK);
    return 0;
}
