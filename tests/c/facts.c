/* What can be asked: metadata of the file, the tokenizer, what the library can do, and which element an error is about. */
#include "check.h"

static ember_error err;

static void is_text(const ember_model *model, const char *key, const char *wanted) {
    char value[256];
    size_t len = 0;
    OK(ember_model_metadata(model, key, strlen(key), value, sizeof value, &len, &err));
    if (len != strlen(wanted) || memcmp(value, wanted, len) != 0) {
        fprintf(stderr, "%s is \"%.*s\" and not \"%s\"\n", key, (int)len, value, wanted);
        exit(1);
    }
}

static void metadata(const ember_model *model) {
    static const char NAME[] = "general.name";
    char key[128], before[128] = "", value[4096];
    size_t len, n_arrays = 0, i;
    ember_model_details details;
    details.struct_size = sizeof details;
    OK(ember_model_info(model, &details, &err));
    CHECK(details.metadata_count > 20);
    is_text(model, "general.architecture", details.architecture);
    is_text(model, NAME, details.name);
    {
        char number[32];
        sprintf(number, "%u", (unsigned)details.layer_count);
        is_text(model, "llama.block_count", number);
        sprintf(number, "%u", (unsigned)details.hidden_size);
        is_text(model, "llama.embedding_length", number);
    }
    is_text(model, "tokenizer.ggml.model", "gpt2");
    is_text(model, "tokenizer.ggml.add_bos_token", "true");
    /* All of them, sorted; those that are too large say so. */
    for (i = 0; i < details.metadata_count; i++) {
        ember_status status;
        OK(ember_model_metadata_key(model, i, key, sizeof key - 1, &len, &err));
        key[len] = 0;
        CHECK(len > 0 && strcmp(before, key) < 0);
        strcpy(before, key);
        status = ember_model_metadata(model, key, len, value, sizeof value, &len, &err);
        if (status == EMBER_UNSUPPORTED) {
            SAYS("elements");
            n_arrays++;
        } else {
            STATUS(status, EMBER_OK);
        }
    }
    /* Tokens, their types, merges. */
    CHECK(n_arrays == 3);
    STATUS(ember_model_metadata(model, "tokenizer.ggml.tokens", 21, value, sizeof value, &len, &err), EMBER_UNSUPPORTED);
    SAYS("an array of strings with 1424 elements");
    /* The ends of buffers, and wrong arguments. */
    len = 99;
    OK(ember_model_metadata(model, NAME, strlen(NAME), value, strlen(details.name), &len, &err));
    value[0] = 'x';
    STATUS(ember_model_metadata(model, NAME, strlen(NAME), value, len - 1, &len, &err), EMBER_BUFFER_TOO_SMALL);
    CHECK(len == strlen(details.name) && value[0] == 'x');
    STATUS(ember_model_metadata(model, NAME, strlen(NAME), NULL, 0, &len, &err), EMBER_BUFFER_TOO_SMALL);
    STATUS(ember_model_metadata_key(model, 0, NULL, 0, &len, &err), EMBER_BUFFER_TOO_SMALL);
    CHECK(len > 0);
    STATUS(ember_model_metadata(model, "no.such", 7, value, sizeof value, &len, &err), EMBER_MISSING_KEY);
    SAYS("no.such");
    STATUS(ember_model_metadata(model, "", 0, value, sizeof value, &len, &err), EMBER_MISSING_KEY);
    STATUS(ember_model_metadata(model, "\377", 1, value, sizeof value, &len, &err), EMBER_INVALID_UTF8);
    STATUS(ember_model_metadata(model, NULL, 3, value, sizeof value, &len, &err), EMBER_NULL_POINTER);
    STATUS(ember_model_metadata(model, NAME, 3, value, sizeof value, NULL, &err), EMBER_NULL_POINTER);
    STATUS(ember_model_metadata(NULL, NAME, 3, value, sizeof value, &len, &err), EMBER_INVALID_HANDLE);
    STATUS(ember_model_metadata_key(model, details.metadata_count, key, sizeof key, &len, &err), EMBER_INVALID_ARGUMENT);
    STATUS(ember_model_metadata_key(model, (size_t)-1, key, sizeof key, &len, &err), EMBER_INVALID_ARGUMENT);
    STATUS(ember_model_metadata_key(NULL, 0, key, sizeof key, &len, &err), EMBER_INVALID_HANDLE);
}

/* A folder has the keys of a GGUF file. */
static void metadata_of_a_folder(void) {
    ember_model *model = load("tests/data/families/mistral");
    char value[64];
    size_t len;
    is_text(model, "general.architecture", "llama");
    is_text(model, "general.name", "mistral");
    STATUS(ember_model_metadata(model, "hidden_size", 11, value, sizeof value, &len, &err), EMBER_MISSING_KEY);
    OK(ember_model_metadata(model, "llama.embedding_length", 22, value, sizeof value, &len, &err));
    CHECK(ember_model_free(model) == EMBER_OK);
}

static void tokenizer(const ember_model *model) {
    ember_tokenizer_details d;
    ember_model_details details;
    uint32_t ends[64], tokens[8], is_end, i;
    size_t count = 0, n = 0, k;
    memset(&d, 0x55, sizeof d);
    d.struct_size = sizeof d;
    details.struct_size = sizeof details;
    OK(ember_model_info(model, &details, &err));
    OK(ember_tokenizer_info(model, &d, &err));
    CHECK(d.struct_size == sizeof d && d.reserved == 0);
    CHECK(d.token_count == details.vocab_size);
    CHECK(d.bos < d.token_count && d.eos < d.token_count && d.adds_bos == 1 && d.adds_eos == 0);
    CHECK(d.unknown == EMBER_NO_TOKEN || d.unknown < d.token_count);
    CHECK(d.padding == EMBER_NO_TOKEN || d.padding < d.token_count);
    /* What it says is what is done. */
    OK(ember_tokenize(model, "a", 1, 0, tokens, 8, &count, &err));
    CHECK(count >= 2 && tokens[0] == d.bos && tokens[count - 1] != d.eos);
    /* The end tokens are those that is_end knows, in order. */
    OK(ember_end_tokens(model, ends, 64, &count, &err));
    CHECK(count == d.end_token_count && count >= 1);
    for (i = 0; i < d.token_count; i++) {
        OK(ember_token_is_end(model, i, &is_end, &err));
        if (is_end) {
            CHECK(n < count && ends[n] == i);
            n++;
        }
    }
    CHECK(n == count);
    for (k = 0; k < count && ends[k] != d.eos; k++) {
    }
    CHECK(k < count);
    STATUS(ember_end_tokens(model, NULL, 0, &count, &err), EMBER_BUFFER_TOO_SMALL);
    CHECK(count == n);
    ends[0] = 7;
    STATUS(ember_end_tokens(model, ends, n - 1, &count, &err), EMBER_BUFFER_TOO_SMALL);
    CHECK(ends[0] == 7);
    STATUS(ember_end_tokens(model, ends, 64, NULL, &err), EMBER_NULL_POINTER);
    STATUS(ember_end_tokens(NULL, ends, 64, &count, &err), EMBER_INVALID_HANDLE);
    STATUS(ember_tokenizer_info(model, NULL, &err), EMBER_NULL_POINTER);
    STATUS(ember_tokenizer_info(NULL, &d, &err), EMBER_INVALID_HANDLE);
    d.struct_size = 5;
    STATUS(ember_tokenizer_info(model, &d, &err), EMBER_INVALID_ARGUMENT);
    {
        /* A model without a tokenizer. */
        ember_model *other = load("tests/data/families/mistral");
        d.struct_size = sizeof d;
        STATUS(ember_tokenizer_info(other, &d, &err), EMBER_UNSUPPORTED);
        STATUS(ember_end_tokens(other, ends, 64, &count, &err), EMBER_UNSUPPORTED);
        CHECK(ember_model_free(other) == EMBER_OK);
    }
}

static void supported(const ember_model *model) {
    static const uint32_t KV_TYPES[3] = {EMBER_KV_F16, EMBER_KV_F32, EMBER_KV_Q8_0};
    uint32_t i;
    int has_cuda = 0;
    CHECK(ember_supported(EMBER_CAN_CPU) == 1);
    CHECK(ember_supported(EMBER_CAN_GGUF) == 1 && ember_supported(EMBER_CAN_SAFETENSORS) == 1);
    CHECK(ember_supported(0) == 0 && ember_supported(9999) == 0 && ember_supported(UINT32_MAX) == 0);
    /* What it says of KV types is what a session of the CPU takes. */
    for (i = 0; i < 3; i++) {
        ember_session *session = NULL;
        ember_session_options o = session_options();
        ember_status status;
        o.kv_type = KV_TYPES[i];
        status = ember_session_create(model, &o, &session, &err);
        CHECK(status == (ember_supported(EMBER_CAN_CPU_KV_F16 + i) ? EMBER_OK : EMBER_UNSUPPORTED));
        CHECK(ember_session_free(session) == EMBER_OK);
    }
    OK(ember_device_count(&i, &err));
    while (i-- > 0) {
        ember_device_details device;
        device.struct_size = sizeof device;
        OK(ember_device_info(i, &device, &err));
        has_cuda |= device.kind == EMBER_DEVICE_CUDA;
    }
    /* A build for GPUs lists one, if only to say why it cannot be used. */
    CHECK(ember_supported(EMBER_CAN_CUDA) == (uint32_t)has_cuda);
    CHECK(ember_supported(EMBER_CAN_CUDA_KV_F16) == (uint32_t)has_cuda);
    CHECK(ember_supported(EMBER_CAN_CUDA_KV_Q8_0) == (uint32_t)has_cuda);
    CHECK(ember_supported(EMBER_CAN_CUDA_KV_F32) == 0);
}

/* The element at fault, wherever a call takes several. */
static void indices(const ember_model *model) {
    static const uint32_t BAD[4] = {1, 2, 3, 1u << 30};
    ember_session *session = create(model, NULL), *sessions[3];
    ember_text_stream *stream = NULL;
    ember_sampling_options s;
    ember_text_stream_options o;
    ember_stop stops[3] = {{"a", 1}, {"b", 1}, {"", 0}};
    ember_logit_bias bias[2] = {{1, 1.0f}, {1u << 30, 1.0f}};
    char text[64];
    uint32_t tokens[3];
    size_t len, i;
    STATUS(ember_prefill(session, BAD, 4, &err), EMBER_INVALID_TOKEN);
    CHECK(err.index == 3);
    STATUS(ember_prefill(session, BAD + 3, 1, &err), EMBER_INVALID_TOKEN);
    CHECK(err.index == 0);
    STATUS(ember_prefill_start(session, BAD, 4, &err), EMBER_INVALID_TOKEN);
    CHECK(err.index == 3);
    STATUS(ember_detokenize(model, BAD, 4, 0, text, sizeof text, &len, &err), EMBER_INVALID_TOKEN);
    CHECK(err.index == 3);
    OK(ember_text_stream_create(model, NULL, &stream, &err));
    STATUS(ember_text_stream_push(stream, BAD, 4, text, sizeof text, &len, &err), EMBER_INVALID_TOKEN);
    CHECK(err.index == 3);
    CHECK(ember_text_stream_free(stream) == EMBER_OK);

    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o;
    o.stops = stops;
    o.stop_count = 3;
    STATUS(ember_text_stream_create(model, &o, &stream, &err), EMBER_INVALID_ARGUMENT);
    CHECK(err.index == 2);
    stops[1].text = "\377";
    STATUS(ember_text_stream_create(model, &o, &stream, &err), EMBER_INVALID_UTF8);
    CHECK(err.index == 1);

    memset(&s, 0, sizeof s);
    s.struct_size = sizeof s;
    s.banned = BAD;
    s.banned_count = 4;
    STATUS(ember_session_set_sampling(session, &s, &err), EMBER_INVALID_TOKEN);
    CHECK(err.index == 3);
    s.banned_count = 0;
    s.logit_bias = bias;
    s.logit_bias_count = 2;
    STATUS(ember_session_set_sampling(session, &s, &err), EMBER_INVALID_TOKEN);
    CHECK(err.index == 1);
    s.logit_bias_count = 0;
    s.top_p = 7;
    STATUS(ember_session_set_sampling(session, &s, &err), EMBER_INVALID_ARGUMENT);
    CHECK(err.index == EMBER_NO_INDEX);

    for (i = 0; i < 3; i++) sessions[i] = create(model, NULL);
    for (i = 0; i < 2; i++) OK(ember_prefill(sessions[i], BAD, 3, &err));
    STATUS(batch_ids(sessions, 3, tokens, &err), EMBER_NO_INPUT);
    CHECK(err.index == 2);
    CHECK(ember_session_free(sessions[1]) == EMBER_OK);
    STATUS(batch_ids(sessions, 3, tokens, &err), EMBER_INVALID_HANDLE);
    CHECK(err.index == 1);
    sessions[1] = sessions[0];
    STATUS(batch_ids(sessions, 3, tokens, &err), EMBER_INVALID_ARGUMENT);
    CHECK(err.index == 1);
    STATUS(batch_ids(sessions, 0, tokens, &err), EMBER_INVALID_ARGUMENT);
    CHECK(err.index == EMBER_NO_INDEX);
    OK(batch_ids(sessions, 1, tokens, &err));
    CHECK(err.index == EMBER_NO_INDEX);
    CHECK(ember_session_free(sessions[0]) == EMBER_OK);
    CHECK(ember_session_free(sessions[2]) == EMBER_OK);
    CHECK(ember_session_free(session) == EMBER_OK);
}

int main(int argc, char **argv) {
    ember_model *model = load(argc > 1 ? argv[1] : "");
    metadata(model);
    metadata_of_a_folder();
    tokenizer(model);
    supported(model);
    indices(model);
    works(model);
    CHECK(ember_model_free(model) == EMBER_OK);
    return 0;
}
