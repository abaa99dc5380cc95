/* Text to tokens and back. */
#include "check.h"

static ember_error err;

#define BOS 0
#define EOS 1
#define END 5

static size_t tokenize(const ember_model *model, const char *text, uint32_t flags,
                       uint32_t *tokens, size_t capacity) {
    size_t count = 0;
    OK(ember_tokenize(model, text, strlen(text), flags, tokens, capacity, &count, &err));
    CHECK(count <= capacity);
    return count;
}

static void round_trip(const ember_model *model, const char *text, size_t len) {
    uint32_t tokens[256];
    char back[1024];
    size_t count = 0, got = 0, joined = 0, i;
    OK(ember_tokenize(model, text, len, EMBER_TOKENIZE_CONTINUE, tokens, 256, &count, &err));
    OK(ember_detokenize(model, tokens, count, 0, back, sizeof back, &got, &err));
    CHECK(got == len && memcmp(back, text, len) == 0);
    /* Token by token gives the same bytes. */
    for (i = 0; i < count; i++) {
        size_t n = 0;
        OK(ember_token_text(model, tokens[i], back + joined, sizeof back - joined, &n, &err));
        joined += n;
    }
    CHECK(joined == len && memcmp(back, text, len) == 0);
}

static void flags(const ember_model *model) {
    uint32_t tokens[64], more[64];
    size_t count, n, i;
    uint32_t t = 77;
    char text[64];
    count = tokenize(model, "The mill", 0, tokens, 64);
    CHECK(count >= 2 && tokens[0] == BOS);
    n = tokenize(model, "The mill", EMBER_TOKENIZE_CONTINUE, more, 64);
    CHECK(n == count - 1 && memcmp(tokens + 1, more, n * sizeof *more) == 0);
    /* Control tokens in text are text unless asked for. */
    n = tokenize(model, "a<|end|>", EMBER_TOKENIZE_CONTINUE, more, 64);
    for (i = 0; i < n; i++) CHECK(more[i] != END);
    n = tokenize(model, "a<|end|>", EMBER_TOKENIZE_CONTINUE | EMBER_TOKENIZE_SPECIAL, more, 64);
    CHECK(n == 2 && more[1] == END);
    OK(ember_detokenize(model, more, 2, 0, text, sizeof text, &n, &err));
    CHECK(n == 8 && memcmp(text, "a<|end|>", 8) == 0);
    OK(ember_detokenize(model, more, 2, EMBER_DETOKENIZE_SKIP_SPECIAL, text, sizeof text, &n, &err));
    CHECK(n == 1 && text[0] == 'a');
    n = 77;
    STATUS(ember_tokenize(model, "a", 1, 4, &t, 1, &n, &err), EMBER_INVALID_ARGUMENT);
    SAYS("flags");
    STATUS(ember_detokenize(model, &t, 1, 4, text, 64, &n, &err), EMBER_INVALID_ARGUMENT);
    CHECK(n == 77 && t == 77);
}

static void options(const ember_model *model) {
    static const char story[] = "Once upon a time there was a miller.";
    uint32_t tokens[64], more[64], stop = 0, n_stop = 1;
    size_t count, n = 77;
    ember_tokenize_options o;
    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o;
    o.flags = EMBER_TOKENIZE_CONTINUE;
    o.interrupt = &stop;
    count = tokenize(model, story, EMBER_TOKENIZE_CONTINUE, tokens, 64);
    OK(ember_tokenize_with(model, story, sizeof story - 1, &o, more, 64, &n, &err));
    CHECK(n == count && memcmp(tokens, more, n * sizeof *more) == 0);
    OK(ember_tokenize_with(model, story, sizeof story - 1, NULL, more, 64, &n, &err));
    CHECK(n == count + 1 && more[0] == BOS);
    /* Asked to end before it begins; another thread could do so at any time. */
    o.interrupt = &n_stop;
    n = 77;
    STATUS(ember_tokenize_with(model, story, sizeof story - 1, &o, more, 64, &n, &err),
           EMBER_INTERRUPTED);
    CHECK(n == 77);
    o.flags = 4;
    STATUS(ember_tokenize_with(model, story, sizeof story - 1, &o, more, 64, &n, &err),
           EMBER_INVALID_ARGUMENT);
}

static void buffers(const ember_model *model) {
    static const char story[] = "Once upon a time there was a miller.";
    uint32_t tokens[64], untouched[64];
    size_t needed = 0, count = 0, i;
    char text[64], before[64];
    STATUS(ember_tokenize(model, story, sizeof story - 1, 0, NULL, 0, &needed, &err),
           EMBER_BUFFER_TOO_SMALL);
    CHECK(needed > 1 && needed < 64);
    memset(tokens, 0x55, sizeof tokens);
    memcpy(untouched, tokens, sizeof tokens);
    STATUS(ember_tokenize(model, story, sizeof story - 1, 0, tokens, needed - 1, &count, &err),
           EMBER_BUFFER_TOO_SMALL);
    CHECK(count == needed && memcmp(tokens, untouched, sizeof tokens) == 0);
    OK(ember_tokenize(model, story, sizeof story - 1, 0, tokens, needed, &count, &err));
    CHECK(count == needed);
    for (i = needed; i < 64; i++) CHECK(tokens[i] == untouched[i]);

    STATUS(ember_detokenize(model, tokens + 1, needed - 1, 0, NULL, 0, &count, &err),
           EMBER_BUFFER_TOO_SMALL);
    CHECK(count == sizeof story - 1);
    memset(text, 0x55, sizeof text);
    memcpy(before, text, sizeof text);
    STATUS(ember_detokenize(model, tokens + 1, needed - 1, 0, text, count - 1, &count, &err),
           EMBER_BUFFER_TOO_SMALL);
    CHECK(memcmp(text, before, sizeof text) == 0);
    OK(ember_detokenize(model, tokens + 1, needed - 1, 0, text, count, &count, &err));
    CHECK(memcmp(text, story, count) == 0 && text[count] == 0x55);

    STATUS(ember_token_text(model, END, text, 3, &count, &err), EMBER_BUFFER_TOO_SMALL);
    CHECK(count == 7);
    /* Nothing needs no buffer. */
    OK(ember_tokenize(model, NULL, 0, EMBER_TOKENIZE_CONTINUE, NULL, 0, &count, &err));
    CHECK(count == 0);
    OK(ember_detokenize(model, NULL, 0, 0, NULL, 0, &count, &err));
    CHECK(count == 0);
}

static void bad_input(const ember_model *model) {
    uint32_t tokens[8] = {6, 1424, 7}, is_end = 77;
    size_t count = 77;
    char text[64];
    STATUS(ember_tokenize(model, "ab\xc3", 3, 0, tokens, 8, &count, &err), EMBER_INVALID_UTF8);
    SAYS("byte 2");
    STATUS(ember_tokenize(model, "a", (size_t)-1, 0, tokens, 8, &count, &err),
           EMBER_INVALID_ARGUMENT);
    STATUS(ember_detokenize(model, tokens, 3, 0, text, 64, &count, &err), EMBER_INVALID_TOKEN);
    SAYS("1424");
    STATUS(ember_token_text(model, 1424, text, 64, &count, &err), EMBER_INVALID_TOKEN);
    STATUS(ember_token_is_end(model, UINT32_MAX, &is_end, &err), EMBER_INVALID_TOKEN);
    CHECK(count == 77 && is_end == 77);
}

int main(int argc, char **argv) {
    /* A NUL inside, characters of 2 to 4 bytes, line ends, spaces. */
    static const char mixed[] = "a\0b \xc3\xa9\xe2\x82\xac\xf0\x9f\x94\xa5\n\n   tail  ";
    ember_model *model;
    uint32_t is_end = 77;
    CHECK(argc == 2);
    model = load(argv[1]);
    round_trip(model, "Once upon a time there was a miller.", 36);
    round_trip(model, mixed, sizeof mixed - 1);
    round_trip(model, "", 0);
    flags(model);
    options(model);
    buffers(model);
    bad_input(model);
    OK(ember_token_is_end(model, EOS, &is_end, &err));
    CHECK(is_end == 1);
    OK(ember_token_is_end(model, END, &is_end, &err));
    CHECK(is_end == 1);
    OK(ember_token_is_end(model, 300, &is_end, &err));
    CHECK(is_end == 0);
    works(model);
    CHECK(ember_model_free(model) == EMBER_OK);
    return 0;
}
