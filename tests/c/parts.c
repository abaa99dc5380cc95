/* A model that several devices share: here the CPU, several times. */
#include "check.h"

static ember_error err;

enum { N_PROMPT = 1500, N_SAID = 40 };
static uint32_t devices[20], layers[20], prompt[N_PROMPT];

/* Tokens of the prompt: several pieces, and of what is said. Where everything takes long, two pieces, and fewer numbers of parts. */
static size_t n_prompt = N_PROMPT, n_said = N_SAID;
static int is_slow;

/* The options for so many parts. */
static ember_model_options shared(size_t count) {
    ember_model_options o = model_options();
    o.devices = devices;
    o.device_count = count;
    o.device_layers = layers;
    o.threads = 2;
    return o;
}

static ember_status try_load(const char *path, const ember_model_options *o) {
    ember_model *model = NULL;
    ember_status status = ember_model_load(path, strlen(path), o, &model, &err);
    CHECK((model != NULL) == (status == EMBER_OK));
    if (model) CHECK(ember_model_free(model) == EMBER_OK);
    return status;
}

/* What a session says behind a long prompt, read at once or in the background. */
static void say(const ember_model *model, int in_background, uint32_t *said) {
    ember_session_options o = session_options();
    ember_session *session;
    ember_token token;
    size_t i, evaluated;
    ember_status status;
    o.context = (uint32_t)n_prompt + N_SAID;
    session = create(model, &o);
    if (in_background) {
        OK(ember_prefill_start(session, prompt, n_prompt, &err));
        do status = ember_prefill_poll(session, &evaluated, &err);
        while (status == EMBER_PENDING);
        CHECK(status == EMBER_OK);
    } else {
        OK(ember_prefill(session, prompt, n_prompt, &err));
    }
    for (i = 0; i < n_said; i++) {
        token.struct_size = sizeof token;
        OK(ember_decode(session, &token, &err));
        said[i] = token.id;
    }
    CHECK(ember_session_free(session) == EMBER_OK);
}

static void same_tokens(const char *path, uint32_t layer_count) {
    uint32_t whole[N_SAID], said[N_SAID], i, first;
    size_t parts;
    ember_model *model = load(path);
    say(model, 0, whole);
    CHECK(ember_model_free(model) == EMBER_OK);
    for (parts = is_slow ? 2 : 1; parts <= (is_slow ? 2 : 3); parts++) {
        ember_model_options o = shared(parts);
        ember_model_details d;
        ember_estimate whole_estimate, e;
        uint64_t weights = 0;
        ember_part_details p;
        for (i = 0; i < parts; i++) layers[i] = i + 1 < parts ? 1 : 0;
        OK(ember_model_load(path, strlen(path), &o, &model, &err));
        say(model, 0, said);
        CHECK(memcmp(said, whole, n_said * sizeof *whole) == 0);
        say(model, 1, said);
        CHECK(memcmp(said, whole, n_said * sizeof *whole) == 0);
        d.struct_size = sizeof d;
        OK(ember_model_info(model, &d, &err));
        CHECK(d.part_count == parts && d.device == devices[0] && d.device_layer_count == layer_count);
        whole_estimate.struct_size = sizeof whole_estimate;
        OK(ember_model_estimate(path, strlen(path), &o, NULL, &whole_estimate, &err));
        CHECK(whole_estimate.part_count == parts && whole_estimate.first_layer == 0);
        first = 0;
        for (i = 0; i < parts; i++) {
            p.struct_size = sizeof p;
            OK(ember_model_part_info(model, i, &p, &err));
            e.struct_size = sizeof e;
            OK(ember_model_estimate_part(path, strlen(path), &o, NULL, i, &e, &err));
            CHECK(p.device == devices[i] && p.first_layer == first);
            CHECK(e.device == p.device && e.first_layer == first && e.device_layer_count == p.layer_count);
            CHECK(i + 1 == parts || p.layer_count == 1);
            first += p.layer_count;
            weights += e.weights_bytes;
        }
        CHECK(first == layer_count && weights == whole_estimate.weights_bytes);
        STATUS(ember_model_part_info(model, parts, &p, &err), EMBER_INVALID_ARGUMENT);
        SAYS("part");
        STATUS(ember_model_part_info(model, SIZE_MAX, &p, &err), EMBER_INVALID_ARGUMENT);
        STATUS(ember_model_estimate_part(path, strlen(path), &o, NULL, parts, &e, &err), EMBER_INVALID_ARGUMENT);
        STATUS(ember_model_part_info(model, 0, NULL, &err), EMBER_NULL_POINTER);
        CHECK(ember_model_free(model) == EMBER_OK);
    }
}

static void bad_shares(const char *path, uint32_t layer_count) {
    ember_model_options o = shared(2);
    ember_cuda_model_options cuda;
    layers[0] = layer_count, layers[1] = 1;
    STATUS(try_load(path, &o), EMBER_INVALID_ARGUMENT);
    SAYS("layers");
    layers[0] = 1, layers[1] = 1;
    STATUS(try_load(path, &o), EMBER_INVALID_ARGUMENT);
    layers[0] = UINT32_MAX, layers[1] = UINT32_MAX;
    STATUS(try_load(path, &o), EMBER_INVALID_ARGUMENT);
    /* The CPU has layers only where it is said how many. */
    layers[0] = layers[1] = 0;
    STATUS(try_load(path, &o), EMBER_INVALID_ARGUMENT);
    SAYS("CPU");
    o.device_layers = NULL;
    STATUS(try_load(path, &o), EMBER_INVALID_ARGUMENT);
    o = shared(17);
    STATUS(try_load(path, &o), EMBER_INVALID_ARGUMENT);
    SAYS("device_count");
    o = shared(2);
    layers[0] = 1;
    devices[1] = 1000;
    STATUS(try_load(path, &o), EMBER_NO_DEVICE);
    SAYS("1000");
    devices[1] = devices[0];
    o.devices = NULL;
    STATUS(try_load(path, &o), EMBER_NULL_POINTER);
    o.device_count = 0;
    STATUS(try_load(path, &o), EMBER_INVALID_ARGUMENT);
    SAYS("device_layers");
    /* A context of the host's is on one GPU. */
    o = shared(2);
    memset(&cuda, 0, sizeof cuda);
    cuda.struct_size = sizeof cuda;
    cuda.kind = EMBER_CHAIN_CUDA_MODEL;
    cuda.context = &o;
    o.next = &cuda;
    STATUS(try_load(path, &o), EMBER_INVALID_ARGUMENT);
    SAYS("CUcontext");
    /* Only GPUs share each layer. */
    o = shared(2);
    layers[0] = layers[1] = 0;
    o.split = 2;
    STATUS(try_load(path, &o), EMBER_INVALID_ARGUMENT);
    SAYS("ember_split");
    o.split = EMBER_SPLIT_TENSORS;
    STATUS(try_load(path, &o), EMBER_UNSUPPORTED);
    SAYS("CPU");
    layers[0] = 1;
    STATUS(try_load(path, &o), EMBER_INVALID_ARGUMENT);
    SAYS("layers");
    /* `device` is not used. */
    o = shared(2);
    o.device = 1000;
    OK(try_load(path, &o));
}

int main(int argc, char **argv) {
    ember_model *model;
    ember_model_details d;
    size_t i;
    if (argc != 2) {
        fprintf(stderr, "usage: parts MODEL.gguf\n");
        return 2;
    }
    is_slow = getenv("EMBERLM_SLOW_MACHINE") != NULL;
    if (is_slow) n_prompt = 520, n_said = 8;
    for (i = 0; i < 20; i++) devices[i] = cpu_device();
    for (i = 0; i < N_PROMPT; i++) prompt[i] = (uint32_t)(i * 37 % 500);
    model = load(argv[1]);
    d.struct_size = sizeof d;
    OK(ember_model_info(model, &d, &err));
    CHECK(d.part_count == 1 && d.cpu_expert_layer_count == 0);
    CHECK(ember_model_free(model) == EMBER_OK);
    same_tokens(argv[1], d.layer_count);
    bad_shares(argv[1], d.layer_count);
    printf("parts: ok\n");
    return 0;
}
