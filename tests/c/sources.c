/* Models from memory and by a function that reads: the same model, the same errors, and bytes that go back exactly once. */
#include "check.h"

#define N_VOCAB 1424

static ember_error err;
static unsigned char *file_bytes;
static size_t file_len;

static void read_file(const char *path) {
    FILE *f = fopen(path, "rb");
    CHECK(f != NULL && fseek(f, 0, SEEK_END) == 0);
    file_len = (size_t)ftell(f);
    rewind(f);
    /* One byte more, to shift it: nothing asks for an alignment. */
    file_bytes = (unsigned char *)malloc(file_len + 1);
    CHECK(file_bytes != NULL && fread(file_bytes, 1, file_len, f) == file_len);
    fclose(f);
}

struct owner {
    const unsigned char *bytes;
    uint64_t size;
    int released;
};

static void on_release(void *user, const void *bytes, uint64_t size) {
    struct owner *o = (struct owner *)user;
    CHECK(bytes == o->bytes && size == o->size);
    o->released++;
}

struct reader {
    const unsigned char *bytes;
    size_t size;
    uint64_t calls, total;
    /* Fails in this call, counted from 1. */
    uint64_t fail_at;
    int inside, over;
};

static int32_t on_read(void *user, uint64_t offset, void *bytes, size_t count) {
    struct reader *r = (struct reader *)user;
    uint32_t n;
    CHECK(!r->over && r->inside++ == 0);
    CHECK(count > 0 && offset <= r->size && count <= r->size - offset);
    memcpy(bytes, r->bytes + offset, count);
    /* The library can be called from here. */
    if (r->calls % 7 == 0) CHECK(ember_device_count(&n, NULL) == EMBER_OK);
    r->total += count;
    r->inside--;
    return ++r->calls == r->fail_at ? -5 : 0;
}

static ember_model_source source(void) {
    ember_model_source s;
    memset(&s, 0, sizeof s);
    s.struct_size = sizeof s;
    return s;
}

static ember_model_source of_bytes(const void *bytes, size_t size) {
    ember_model_source s = source();
    s.bytes = bytes;
    s.size = size;
    return s;
}

static ember_status load_from(const ember_model_source *s, uint32_t weights, ember_model **out) {
    ember_model_options o = model_options();
    o.device = cpu_device();
    o.threads = 2;
    o.weights = weights;
    return ember_model_load_from(s, &o, out, &err);
}

/* The logits and the next tokens, the text and the facts: all that can be seen of a model. */
struct answer {
    float logits[N_VOCAB];
    uint32_t tokens[12];
    char text[256];
    size_t len;
    ember_model_details details;
};

static void ask(const ember_model *model, struct answer *a) {
    static const uint32_t prompt[4] = {0, 260, 300, 41};
    ember_session *session = create(model, NULL);
    int i;
    memset(a, 0, sizeof *a);
    OK(ember_prefill(session, prompt, 4, &err));
    OK(ember_session_logits(session, a->logits, N_VOCAB, &err));
    for (i = 0; i < 12; i++) a->tokens[i] = decode(session);
    OK(ember_detokenize(model, a->tokens, 12, 0, a->text, sizeof a->text, &a->len, &err));
    a->details.struct_size = sizeof a->details;
    OK(ember_model_info(model, &a->details, &err));
    /* The one thing that differs. */
    a->details.resident_bytes = 0;
    CHECK(ember_session_free(session) == EMBER_OK);
}

static void same_as(const ember_model *model, const struct answer *wanted) {
    static struct answer got;
    ask(model, &got);
    CHECK(memcmp(&got, wanted, sizeof got) == 0);
}

static void copied(const struct answer *wanted) {
    ember_model *model = NULL;
    ember_model_source s;
    ember_model_details d;
    unsigned char *copy = (unsigned char *)malloc(file_len);
    CHECK(copy != NULL);
    memcpy(copy, file_bytes, file_len);
    s = of_bytes(copy, file_len);
    OK(load_from(&s, EMBER_WEIGHTS_KEEP, &model));
    /* It is not looked at any more. */
    memset(copy, 0xee, file_len);
    free(copy);
    same_as(model, wanted);
    d.struct_size = sizeof d;
    OK(ember_model_info(model, &d, &err));
    CHECK(d.resident_bytes >= file_len);
    CHECK(ember_model_free(model) == EMBER_OK);
}

static void borrowed(const struct answer *wanted) {
    int shift;
    for (shift = 0; shift < 2; shift++) {
        struct owner owner = {NULL, 0, 0};
        ember_model *model = NULL, *second = NULL;
        ember_session *session;
        ember_model_source s;
        memmove(file_bytes + shift, file_bytes, file_len);
        owner.bytes = file_bytes + shift;
        owner.size = file_len;
        s = of_bytes(owner.bytes, file_len);
        s.flags = EMBER_SOURCE_BORROW;
        s.release = on_release;
        s.user = &owner;
        OK(load_from(&s, EMBER_WEIGHTS_KEEP, &model));
        same_as(model, wanted);
        /* The last session keeps the model, and the model the bytes. */
        session = create(model, NULL);
        CHECK(ember_model_free(model) == EMBER_OK);
        CHECK(owner.released == 0);
        OK(ember_session_sync(session, wanted->tokens, 12, NULL, &err));
        CHECK(ember_session_free(session) == EMBER_OK);
        CHECK(owner.released == 1);
        /* Two models of the same bytes, each gives them back; without a function nobody is told. */
        OK(load_from(&s, EMBER_WEIGHTS_KEEP, &model));
        s.release = NULL;
        OK(load_from(&s, EMBER_WEIGHTS_KEEP, &second));
        same_as(second, wanted);
        CHECK(ember_model_free(second) == EMBER_OK);
        CHECK(owner.released == 1);
        same_as(model, wanted);
        CHECK(ember_model_free(model) == EMBER_OK);
        CHECK(owner.released == 2);
        memmove(file_bytes, file_bytes + shift, file_len);
    }
}

static void read_by_a_function(const struct answer *wanted) {
    struct reader r;
    ember_model_source s = source();
    ember_model *model = NULL;
    uint64_t calls, i;
    memset(&r, 0, sizeof r);
    r.bytes = file_bytes;
    r.size = file_len;
    s.size = file_len;
    s.read = on_read;
    s.user = &r;
    OK(load_from(&s, EMBER_WEIGHTS_KEEP, &model));
    CHECK(r.calls > 1 && r.total > file_len / 2);
    r.over = 1;
    same_as(model, wanted);
    CHECK(ember_model_free(model) == EMBER_OK);
    calls = r.calls;
    /* A read that fails, whichever it is. */
    for (i = 1; i <= calls; i += i < 4 ? 1 : calls / 5 + 1) {
        memset(&r, 0, sizeof r);
        r.bytes = file_bytes;
        r.size = file_len;
        r.fail_at = i;
        model = NULL;
        STATUS(load_from(&s, EMBER_WEIGHTS_KEEP, &model), EMBER_IO);
        SAYS("-5");
        CHECK(model == NULL);
    }
}

/* Converted while it is loaded, from each kind of source. */
static void converted(void) {
    static struct answer wanted;
    struct reader r;
    struct owner owner = {file_bytes, file_len, 0};
    ember_model_source s = of_bytes(file_bytes, file_len);
    ember_model *model = NULL;
    OK(load_from(&s, EMBER_WEIGHTS_Q4_K, &model));
    ask(model, &wanted);
    CHECK(ember_model_free(model) == EMBER_OK);
    s.flags = EMBER_SOURCE_BORROW;
    s.release = on_release;
    s.user = &owner;
    OK(load_from(&s, EMBER_WEIGHTS_Q4_K, &model));
    same_as(model, &wanted);
    CHECK(ember_model_free(model) == EMBER_OK);
    CHECK(owner.released == 1);
    memset(&r, 0, sizeof r);
    r.bytes = file_bytes;
    r.size = file_len;
    s = source();
    s.size = file_len;
    s.read = on_read;
    s.user = &r;
    OK(load_from(&s, EMBER_WEIGHTS_Q4_K, &model));
    same_as(model, &wanted);
    CHECK(ember_model_free(model) == EMBER_OK);
}

/* A damaged file is the same error from wherever it comes. */
static void damaged(void) {
    static const size_t LENGTHS[6] = {0, 3, 64, 5000, 100000, 0};
    char name[64];
    size_t i;
    sprintf(name, "emberlm-sources-%p.gguf", (void *)name);
    for (i = 0; i < 8; i++) {
        struct reader r;
        struct owner owner = {file_bytes, 0, 0};
        ember_model_source s;
        ember_model *model = NULL;
        ember_model_options o = model_options();
        ember_status wanted;
        char message[sizeof err.message];
        unsigned char kept[8];
        size_t len = i < 5 ? LENGTHS[i] : i == 5 ? file_len - 1 : file_len;
        FILE *f;
        memcpy(kept, file_bytes, 8);
        if (i == 6) file_bytes[0] = 'X';
        if (i == 7) file_bytes[4] = 99;
        f = fopen(name, "wb");
        CHECK(f != NULL && fwrite(file_bytes, 1, len, f) == len && fclose(f) == 0);
        o.device = cpu_device();
        wanted = ember_model_load(name, strlen(name), &o, &model, &err);
        CHECK(wanted != EMBER_OK && model == NULL && strstr(err.message, name) != NULL);
        /* But for the path. */
        strcpy(message, strstr(err.message, ".gguf: ") + 7);
        CHECK(remove(name) == 0);

        s = of_bytes(file_bytes, len);
        STATUS(load_from(&s, 0, &model), wanted);
        CHECK(strcmp(err.message, message) == 0);
        s.flags = EMBER_SOURCE_BORROW;
        s.release = on_release;
        s.user = &owner;
        STATUS(load_from(&s, 0, &model), wanted);
        CHECK(strcmp(err.message, message) == 0);
        memset(&r, 0, sizeof r);
        r.bytes = file_bytes;
        r.size = len;
        s = source();
        s.size = len;
        s.read = on_read;
        s.user = &r;
        STATUS(load_from(&s, 0, &model), wanted);
        CHECK(strcmp(err.message, message) == 0);
        /* After an error the bytes were never the library's. */
        CHECK(owner.released == 0 && model == NULL);
        memcpy(file_bytes, kept, 8);
    }
}

static int32_t stop_it(void *user, float fraction) {
    (void)user;
    return fraction > 0;
}

static void arguments(void) {
    struct owner owner = {file_bytes, file_len, 0};
    ember_model_options o = model_options();
    ember_model *model = NULL;
    ember_model_source s = source();
    STATUS(ember_model_load_from(NULL, NULL, &model, &err), EMBER_NULL_POINTER);
    STATUS(ember_model_load_from(&s, NULL, NULL, &err), EMBER_NULL_POINTER);
    s.size = 10;
    STATUS(load_from(&s, 0, &model), EMBER_INVALID_ARGUMENT);
    SAYS("neither");
    s.read = on_read;
    s.bytes = file_bytes;
    STATUS(load_from(&s, 0, &model), EMBER_INVALID_ARGUMENT);
    SAYS("both");
    s.bytes = NULL;
    s.flags = EMBER_SOURCE_BORROW;
    STATUS(load_from(&s, 0, &model), EMBER_INVALID_ARGUMENT);
    s = of_bytes(file_bytes, file_len);
    s.release = on_release;
    STATUS(load_from(&s, 0, &model), EMBER_INVALID_ARGUMENT);
    SAYS("EMBER_SOURCE_BORROW");
    s.release = NULL;
    s.flags = 2;
    STATUS(load_from(&s, 0, &model), EMBER_INVALID_ARGUMENT);
    s.flags = 0;
    s.struct_size = 3;
    STATUS(load_from(&s, 0, &model), EMBER_INVALID_ARGUMENT);
    s.struct_size = sizeof s;
    s.size = UINT64_MAX;
    STATUS(load_from(&s, 0, &model), EMBER_INVALID_ARGUMENT);
    /* Other options count as they do for a file. */
    s.size = file_len;
    s.flags = EMBER_SOURCE_BORROW;
    s.release = on_release;
    s.user = &owner;
    o.device = 9999;
    STATUS(ember_model_load_from(&s, &o, &model, &err), EMBER_NO_DEVICE);
    o.device = cpu_device();
    o.progress = stop_it;
    STATUS(ember_model_load_from(&s, &o, &model, &err), EMBER_CANCELLED);
    CHECK(owner.released == 0 && model == NULL);
}

int main(int argc, char **argv) {
    static struct answer wanted;
    const char *path = argc > 1 ? argv[1] : "";
    ember_model *model = load(path);
    ask(model, &wanted);
    CHECK(ember_model_free(model) == EMBER_OK);
    read_file(path);
    copied(&wanted);
    borrowed(&wanted);
    read_by_a_function(&wanted);
    converted();
    damaged();
    arguments();
    free(file_bytes);
    return 0;
}
