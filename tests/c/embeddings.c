/* Vectors of texts and adapters: what is wrong with a call is a status, and nothing else changes. */
#include "check.h"

static ember_error err;
static const char ADAPTER[] = "tests/data/adapters/hamlet.gguf";

static ember_text text_of(const char *text, size_t len) {
    ember_text t;
    t.text = text;
    t.len = len;
    return t;
}

static ember_embedder *embedder_of(const ember_model *model, uint32_t max_tokens) {
    ember_embedder_options o;
    ember_embedder *embedder = NULL;
    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o;
    o.pooling = EMBER_POOLING_MEAN;
    o.max_tokens = max_tokens;
    OK(ember_embedder_create(model, &o, &embedder, &err));
    return embedder;
}

static size_t width_of(const ember_embedder *embedder) {
    ember_embedder_details d;
    d.struct_size = sizeof d;
    OK(ember_embedder_info(embedder, &d, &err));
    return d.dimension;
}

static void texts(ember_model *model) {
    static const char SPACES[] = "        ";
    static const char BAD[] = "a\377b";
    ember_embedder *embedder = embedder_of(model, 16);
    const size_t width = width_of(embedder);
    float *out = (float *)malloc(3 * width * sizeof *out), *same = (float *)malloc(width * sizeof *same);
    uint32_t tokens[20];
    ember_text all[3];
    char *longer;
    size_t counts[2], written, i;
    CHECK(out != NULL && same != NULL);
    all[0] = text_of("the king", 8);
    all[1] = text_of(SPACES, sizeof SPACES - 1);
    all[2] = text_of("a", 1);

    /* A text of nothing but spaces is one like any other. */
    OK(ember_embed(embedder, all, 3, out, 3 * width, &written, &err));
    CHECK(written == 3 * width);
    OK(ember_embed(embedder, all + 1, 1, same, width, &written, &err));
    CHECK(written == width && memcmp(same, out + width, width * sizeof *out) == 0);

    /* What is too small by one float is not written to, and the size is told. */
    for (i = 0; i < 3 * width; i++) out[i] = -7;
    STATUS(ember_embed(embedder, all, 3, out, 3 * width - 1, &written, &err), EMBER_BUFFER_TOO_SMALL);
    CHECK(written == 3 * width);
    for (i = 0; i < 3 * width; i++) CHECK(out[i] == -7);
    STATUS(ember_embed(embedder, all, 3, NULL, 0, &written, &err), EMBER_BUFFER_TOO_SMALL);
    CHECK(written == 3 * width);

    /* An empty text has the tokens that stand around every text, if the model has any. */
    OK(ember_tokenize(model, NULL, 0, 0, tokens, 20, counts, &err));
    for (i = 0; i < 2; i++) {
        const ember_text empty = text_of(i == 0 ? "" : NULL, 0);
        STATUS(ember_embed(embedder, &empty, 1, out + width, width, &written, &err), counts[0] > 0 ? EMBER_OK : EMBER_NO_INPUT);
        if (counts[0] == 0) continue;
        OK(ember_embed_tokens(embedder, tokens, counts[0], counts, 1, out, width, &written, &err));
        CHECK(memcmp(out + width, out, width * sizeof *out) == 0);
    }
    for (i = 0; i < 3 * width; i++) out[i] = -7;

    /* The text at fault is named, and the others have no vectors either. */
    written = 77;
    all[1] = text_of(NULL, 1);
    STATUS(ember_embed(embedder, all, 3, out, 3 * width, &written, &err), EMBER_NULL_POINTER);
    CHECK(err.index == 1);
    all[1] = text_of(BAD, sizeof BAD - 1);
    STATUS(ember_embed(embedder, all, 3, out, 3 * width, &written, &err), EMBER_INVALID_UTF8);
    CHECK(err.index == 1);
    longer = (char *)malloc(4000);
    CHECK(longer != NULL);
    for (i = 0; i < 4000; i++) longer[i] = i % 3 == 2 ? ' ' : (char)('a' + i % 7);
    all[1] = text_of(longer, 4000);
    STATUS(ember_embed(embedder, all, 3, out, 3 * width, &written, &err), EMBER_CONTEXT_FULL);
    CHECK(err.index == 1);
    free(longer);
    STATUS(ember_embed(embedder, NULL, 1, out, 3 * width, &written, &err), EMBER_NULL_POINTER);
    CHECK(written == 77);
    for (i = 0; i < 3 * width; i++) CHECK(out[i] == -7);

    /* The same by tokens. */
    for (i = 0; i < 20; i++) tokens[i] = (uint32_t)i + 1;
    counts[0] = 3;
    counts[1] = 0;
    STATUS(ember_embed_tokens(embedder, tokens, 3, counts, 2, out, 3 * width, &written, &err), EMBER_NO_INPUT);
    CHECK(err.index == 1);
    counts[1] = 17;
    STATUS(ember_embed_tokens(embedder, tokens, 20, counts, 2, out, 3 * width, &written, &err), EMBER_CONTEXT_FULL);
    CHECK(err.index == 1);
    counts[1] = 16;
    STATUS(ember_embed_tokens(embedder, tokens, 20, counts, 2, out, 3 * width, &written, &err), EMBER_INVALID_ARGUMENT);
    counts[0] = (size_t)-1;
    counts[1] = 2;
    STATUS(ember_embed_tokens(embedder, tokens, 1, counts, 2, out, 3 * width, &written, &err), EMBER_INVALID_ARGUMENT);
    tokens[1] = 0xffffffffu;
    counts[0] = 1;
    counts[1] = 1;
    STATUS(ember_embed_tokens(embedder, tokens, 2, counts, 2, out, 3 * width, &written, &err), EMBER_INVALID_TOKEN);
    CHECK(err.index == 1);
    CHECK(written == 77);

    /* No texts have no vectors. */
    OK(ember_embed(embedder, NULL, 0, NULL, 0, &written, &err));
    CHECK(written == 0);

    /* After all of that it makes the same. */
    all[1] = text_of(SPACES, sizeof SPACES - 1);
    OK(ember_embed(embedder, all, 3, out, 3 * width, &written, &err));
    CHECK(memcmp(same, out + width, width * sizeof *out) == 0);
    CHECK(ember_embedder_free(embedder) == EMBER_OK);
    STATUS(ember_embed(embedder, all, 3, out, 3 * width, &written, &err), EMBER_INVALID_HANDLE);
    free(out);
    free(same);
}

static ember_adapter *adapter_of(const ember_model *model) {
    ember_adapter *adapter = NULL;
    OK(ember_adapter_load(model, ADAPTER, sizeof ADAPTER - 1, &adapter, &err));
    return adapter;
}

static void embedders_with_adapters(const char *path, ember_model *model) {
    enum { MANY = 10000 };
    ember_adapter *adapter = adapter_of(model), *foreign;
    ember_adapter_use *uses = (ember_adapter_use *)malloc(MANY * sizeof *uses);
    ember_embedder *plain = embedder_of(model, 16), *adapted = NULL, *again = NULL;
    ember_embedder_options o;
    ember_embedder_details details, without;
    ember_model *other = load(path);
    const size_t width = width_of(plain);
    float *a = (float *)malloc(width * sizeof *a), *b = (float *)malloc(width * sizeof *b);
    const ember_text text = text_of("the king", 8);
    size_t written, i;
    CHECK(uses != NULL && a != NULL && b != NULL);
    for (i = 0; i < MANY; i++) {
        uses[i].adapter = adapter;
        uses[i].scale = 0.5f;
        uses[i].reserved = 0;
    }
    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o;
    o.pooling = EMBER_POOLING_MEAN;
    o.max_tokens = 16;
    o.adapters = uses;

    /* Lists that are refused make no embedder. */
    o.adapter_count = MANY;
    STATUS(ember_embedder_create(model, &o, &again, &err), EMBER_INVALID_ARGUMENT);
    SAYS("10000");
    o.adapter_count = 2;
    o.adapters = NULL;
    STATUS(ember_embedder_create(model, &o, &again, &err), EMBER_NULL_POINTER);
    o.adapters = uses;
    foreign = adapter_of(other);
    uses[1].adapter = foreign;
    STATUS(ember_embedder_create(model, &o, &again, &err), EMBER_INVALID_ARGUMENT);
    CHECK(err.index == 1);
    CHECK(ember_adapter_free(foreign) == EMBER_OK);
    STATUS(ember_embedder_create(model, &o, &again, &err), EMBER_INVALID_HANDLE);
    CHECK(err.index == 1);
    uses[1] = uses[0];
    uses[1].reserved = 1;
    STATUS(ember_embedder_create(model, &o, &again, &err), EMBER_INVALID_ARGUMENT);
    CHECK(err.index == 1);
    uses[1] = uses[0];
    CHECK(again == NULL);

    /* It keeps what it was made with, and a program of an older header makes one without. */
    OK(ember_embedder_create(model, &o, &adapted, &err));
    o.struct_size = offsetof(ember_embedder_options, adapters);
    OK(ember_embedder_create(model, &o, &again, &err));
    details.struct_size = without.struct_size = sizeof details;
    OK(ember_embedder_info(adapted, &details, &err));
    OK(ember_embedder_info(again, &without, &err));
    CHECK(details.memory_bytes > without.memory_bytes);
    CHECK(ember_adapter_free(adapter) == EMBER_OK);
    OK(ember_embed(plain, &text, 1, a, width, &written, &err));
    OK(ember_embed(adapted, &text, 1, b, width, &written, &err));
    CHECK(memcmp(a, b, width * sizeof *a) != 0);
    OK(ember_embed(again, &text, 1, b, width, &written, &err));
    CHECK(memcmp(a, b, width * sizeof *a) == 0);

    CHECK(ember_embedder_free(plain) == EMBER_OK);
    CHECK(ember_embedder_free(adapted) == EMBER_OK);
    CHECK(ember_embedder_free(again) == EMBER_OK);
    CHECK(ember_model_free(other) == EMBER_OK);
    free(uses);
    free(a);
    free(b);
}

static void adapters(const char *path, ember_model *model) {
    enum { MANY = 10000, STEPS = 8 };
    static const uint32_t prompt[3] = {1, 2, 3};
    ember_adapter *adapter = adapter_of(model), *foreign;
    ember_adapter_use *uses = (ember_adapter_use *)malloc(MANY * sizeof *uses);
    ember_session *session = create(model, NULL), *twin = create(model, NULL);
    ember_model *other = load(path);
    ember_model_details before, after;
    ember_adapter_details details;
    uint32_t id, twins;
    size_t i;
    CHECK(uses != NULL);
    before.struct_size = after.struct_size = sizeof before;
    details.struct_size = sizeof details;
    for (i = 0; i < MANY; i++) {
        uses[i].adapter = adapter;
        uses[i].scale = 0.05f;
        uses[i].reserved = 0;
    }
    OK(ember_session_set_adapters(session, uses, 1, 0, &err));
    OK(ember_session_set_adapters(twin, uses, 1, 0, &err));
    OK(ember_prefill(session, prompt, 3, &err));
    OK(ember_prefill(twin, prompt, 3, &err));

    /* Lists that are refused change nothing. */
    STATUS(ember_session_set_adapters(session, uses, MANY, 0, &err), EMBER_INVALID_ARGUMENT);
    SAYS("10000");
    STATUS(ember_session_set_adapters(session, NULL, 1, 0, &err), EMBER_NULL_POINTER);
    STATUS(ember_session_set_adapters(session, uses, 1, 2, &err), EMBER_INVALID_ARGUMENT);
    foreign = adapter_of(other);
    uses[1].adapter = foreign;
    STATUS(ember_session_set_adapters(session, uses, 3, 0, &err), EMBER_INVALID_ARGUMENT);
    CHECK(err.index == 1);
    uses[1].adapter = NULL;
    STATUS(ember_session_set_adapters(session, uses, 3, 0, &err), EMBER_INVALID_HANDLE);
    CHECK(err.index == 1);
    uses[1] = uses[0];
    uses[1].reserved = 1;
    STATUS(ember_session_set_adapters(session, uses, 3, 0, &err), EMBER_INVALID_ARGUMENT);
    CHECK(err.index == 1);
    CHECK(ember_adapter_free(foreign) == EMBER_OK);

    /* Sessions go on with an adapter whose handle is no more; its memory is counted until none uses it. */
    OK(ember_model_info(model, &before, &err));
    OK(ember_adapter_info(adapter, &details, &err));
    CHECK(details.memory_bytes > 0 && before.session_memory_bytes > details.memory_bytes);
    CHECK(ember_adapter_free(adapter) == EMBER_OK);
    CHECK(ember_adapter_free(adapter) == EMBER_INVALID_HANDLE);
    STATUS(ember_session_set_adapters(session, uses, 1, 0, &err), EMBER_INVALID_HANDLE);
    STATUS(ember_adapter_info(adapter, &details, &err), EMBER_INVALID_HANDLE);
    OK(ember_model_info(model, &after, &err));
    CHECK(after.session_memory_bytes == before.session_memory_bytes);
    for (i = 0; i < STEPS; i++) {
        OK(decode_id(session, &id, &err));
        OK(decode_id(twin, &twins, &err));
        CHECK(id == twins);
    }
    OK(ember_session_set_adapters(session, NULL, 0, 0, &err));
    OK(ember_session_set_adapters(twin, NULL, 0, 0, &err));
    OK(ember_model_info(model, &after, &err));
    CHECK(before.session_memory_bytes - after.session_memory_bytes == details.memory_bytes);

    free(uses);
    CHECK(ember_session_free(session) == EMBER_OK);
    CHECK(ember_session_free(twin) == EMBER_OK);
    CHECK(ember_model_free(other) == EMBER_OK);
}

int main(int argc, char **argv) {
    ember_model *model;
    CHECK(argc == 2);
    model = load(argv[1]);
    texts(model);
    adapters(argv[1], model);
    embedders_with_adapters(argv[1], model);
    CHECK(ember_model_free(model) == EMBER_OK);
    return 0;
}
