/* Devices, loading, progress, cancelling, the log. */
#include "check.h"
#include <stddef.h>

static ember_error err;

/* A status from loading `len` bytes of path. */
static ember_status try_load(const char *path, size_t len) {
    ember_model *model = NULL;
    ember_model_options o = model_options();
    ember_status status;
    o.device = cpu_device();
    status = ember_model_load(path, len, &o, &model, &err);
    CHECK((model != NULL) == (status == EMBER_OK));
    if (model) CHECK(ember_model_free(model) == EMBER_OK);
    return status;
}

static void devices(void) {
    uint32_t count = 0, i, cpus = 0;
    ember_device_details d;
    OK(ember_device_count(&count, &err));
    CHECK(count >= 1);
    for (i = 0; i < count; i++) {
        memset(&d, 0x55, sizeof d);
        d.struct_size = sizeof d;
        OK(ember_device_info(i, &d, &err));
        CHECK(d.kind == EMBER_DEVICE_CPU || d.kind == EMBER_DEVICE_CUDA);
        CHECK(memchr(d.name, 0, sizeof d.name) != NULL);
        CHECK(d.usable || d.reason[0] != 0);
        if (d.kind == EMBER_DEVICE_CPU) {
            cpus++;
            CHECK(d.usable && d.cores >= 1 && d.name[0] != 0 && d.isa[0] != 0);
            CHECK(d.memory_free <= d.memory_total);
        }
    }
    CHECK(cpus == 1);
    STATUS(ember_device_info(count, &d, &err), EMBER_NO_DEVICE);
    STATUS(ember_device_info(UINT32_MAX, &d, &err), EMBER_NO_DEVICE);
}

static void write_file(const char *path, const void *bytes, size_t len) {
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL);
    CHECK(fwrite(bytes, 1, len, f) == len);
    CHECK(fclose(f) == 0);
}

static void paths(const char *path) {
    char name[64], head[65], with_nul[4] = {'a', 0, 'b', 0};
    FILE *f;
    size_t len = strlen(path);
    STATUS(try_load("", 0), EMBER_INVALID_ARGUMENT);
    STATUS(try_load(with_nul, 3), EMBER_INVALID_ARGUMENT);
    SAYS("NUL");
    STATUS(try_load("model\xff.gguf", 11), EMBER_INVALID_UTF8);
    SAYS("byte 5");
    STATUS(try_load("no such file.gguf", 17), EMBER_FILE_NOT_FOUND);
    SAYS("no such file.gguf");
    STATUS(try_load(".", 1), EMBER_UNKNOWN_FORMAT);

    sprintf(name, "emberlm-test-%p.gguf", (void *)name);
    write_file(name, "", 0);
    STATUS(try_load(name, strlen(name)), EMBER_FILE_EMPTY);
    SAYS(name);
    write_file(name, "no model at all, only text", 26);
    STATUS(try_load(name, strlen(name)), EMBER_UNKNOWN_FORMAT);
    f = fopen(path, "rb");
    CHECK(f != NULL && fread(head, 1, 64, f) == 64);
    fclose(f);
    write_file(name, head, 64);
    STATUS(try_load(name, strlen(name)), EMBER_FILE_TRUNCATED);
    CHECK(remove(name) == 0);

    /* The path ends where its length says, whatever follows. */
    {
        char *longer = (char *)malloc(len + 5);
        CHECK(longer != NULL);
        memcpy(longer, path, len);
        memcpy(longer + len, ".tmp", 5);
        OK(try_load(longer, len));
        STATUS(try_load(longer, len + 4), EMBER_FILE_NOT_FOUND);
        free(longer);
    }
}

struct progress {
    const char *path;
    float last;
    int calls;
    int stop_at;
};

static int32_t on_progress(void *user, float fraction) {
    struct progress *p = (struct progress *)user;
    CHECK(fraction >= p->last && fraction <= 1);
    p->last = fraction;
    /* The library can be called from here. */
    CHECK(cpu_device() < 1000);
    return ++p->calls == p->stop_at;
}

static void progress(const char *path) {
    struct progress p = {path, 0, 0, 0};
    ember_model_options o = model_options();
    ember_model *model = NULL;
    int calls, stop;
    o.device = cpu_device();
    o.progress = on_progress;
    o.user = &p;
    OK(ember_model_load(path, strlen(path), &o, &model, &err));
    CHECK(p.last == 1 && p.calls >= 2);
    CHECK(ember_model_free(model) == EMBER_OK);
    calls = p.calls;
    /* Cancelled at each of its calls, the last included. */
    for (stop = 1; stop <= calls; stop++) {
        p.last = 0;
        p.calls = 0;
        p.stop_at = stop;
        model = NULL;
        STATUS(ember_model_load(path, strlen(path), &o, &model, &err), EMBER_CANCELLED);
        CHECK(model == NULL && p.calls == stop);
    }
}

/* Converted while loading: in order, cancelled like any load, and in memory of its own. */
static void converted(const char *path) {
    struct progress p = {path, 0, 0, 0};
    ember_model_options o = model_options();
    ember_model_details kept, d;
    ember_model *model = NULL;
    kept.struct_size = d.struct_size = sizeof d;
    o.device = cpu_device();
    OK(ember_model_load(path, strlen(path), &o, &model, &err));
    OK(ember_model_info(model, &kept, &err));
    CHECK(ember_model_free(model) == EMBER_OK);
    o.weights = EMBER_WEIGHTS_Q4_K;
    o.progress = on_progress;
    o.user = &p;
    OK(ember_model_load(path, strlen(path), &o, &model, &err));
    CHECK(p.last == 1 && p.calls > 2);
    OK(ember_model_info(model, &d, &err));
    CHECK(strcmp(d.quantization, "Q4_K") == 0);
    CHECK(d.resident_bytes > kept.resident_bytes && d.file_bytes == kept.file_bytes);
    works(model);
    CHECK(ember_model_free(model) == EMBER_OK);
    model = NULL;
    p.last = 0;
    p.calls = 0;
    p.stop_at = 2;
    STATUS(ember_model_load(path, strlen(path), &o, &model, &err), EMBER_CANCELLED);
    CHECK(model == NULL && p.calls == 2);
}

/* Mapped or in memory of the model's own; a program that is older than the option gets the former. */
static void files(const char *path) {
    ember_model_options o = model_options();
    ember_model_details mapped, read;
    ember_model *model = NULL;
    mapped.struct_size = read.struct_size = sizeof read;
    o.device = cpu_device();
    o.struct_size = (uint32_t)offsetof(ember_model_options, files);
    o.files = 77;
    OK(ember_model_load(path, strlen(path), &o, &model, &err));
    OK(ember_model_info(model, &mapped, &err));
    CHECK(ember_model_free(model) == EMBER_OK);
    model = NULL;
    o.struct_size = sizeof o;
    STATUS(ember_model_load(path, strlen(path), &o, &model, &err), EMBER_INVALID_ARGUMENT);
    SAYS("files is 77");
    o.files = EMBER_FILES_READ;
    OK(ember_model_load(path, strlen(path), &o, &model, &err));
    OK(ember_model_info(model, &read, &err));
    CHECK(read.file_bytes == mapped.file_bytes);
    CHECK(read.resident_bytes > mapped.resident_bytes + read.file_bytes / 2);
    works(model);
    CHECK(ember_model_free(model) == EMBER_OK);
}

static void details(const ember_model *model) {
    ember_model_details d;
    memset(&d, 0x55, sizeof d);
    d.struct_size = sizeof d;
    OK(ember_model_info(model, &d, &err));
    CHECK(d.vocab_size == 1424 && d.context_length == 2048 && d.layer_count == 8 && d.hidden_size == 256);
    CHECK(strcmp(d.architecture, "llama") == 0);
    CHECK(strcmp(d.name, "hamlet-7m") == 0);
    CHECK(strcmp(d.quantization, "Q4_K") == 0);
    CHECK(d.has_tokenizer == 1 && d.metadata_count > 20);
    /* 8 layers, 2 KV heads of 64, key and value, 2 bytes. */
    CHECK(d.kv_bytes_per_token == 8 * 2 * 64 * 2 * 2);
    CHECK(d.parameter_count > 6000000 && d.parameter_count < 8000000);
    CHECK(d.file_bytes > d.parameter_count / 2 && d.file_bytes < d.parameter_count);
    CHECK(d.device == cpu_device());
}

struct log {
    int messages;
    int named;
};

static void on_log(void *user, int32_t level, const char *message, size_t len) {
    struct log *log = (struct log *)user;
    CHECK(level >= EMBER_LOG_ERROR && level <= EMBER_LOG_DEBUG);
    CHECK(len > 0 && memchr(message, 0, len) == NULL && memchr(message, '\n', len) == NULL);
    log->messages++;
    if (len > 6 && memcmp(message, "loaded", 6) == 0) log->named++;
    CHECK(ember_set_log_callback(NULL, NULL, 0, NULL) == EMBER_BUSY);
    CHECK(cpu_device() < 1000);
}

static void on_own_log(void *user, int32_t level, const char *message, size_t len) {
    struct log *log = (struct log *)user;
    CHECK(level >= EMBER_LOG_ERROR && level <= EMBER_LOG_DEBUG && len > 0);
    log->messages++;
    if (len > 6 && memcmp(message, "loaded", 6) == 0) log->named++;
}

static void on_release(void *user) {
    struct log *log = (struct log *)user;
    CHECK(cpu_device() < 1000);
    log->messages = -1000 * (log->messages >= 0);
}

static void logging(const char *path) {
    struct log log = {0, 0};
    STATUS(ember_set_log_callback(on_log, &log, 0, &err), EMBER_INVALID_ARGUMENT);
    STATUS(ember_set_log_callback(on_log, &log, 5, &err), EMBER_INVALID_ARGUMENT);
    OK(ember_set_log_callback(on_log, &log, EMBER_LOG_INFO, &err));
    CHECK(ember_model_free(load(path)) == EMBER_OK);
    CHECK(log.messages >= 1 && log.named == 1);
    OK(ember_set_log_callback(on_log, &log, EMBER_LOG_ERROR, &err));
    log.messages = 0;
    CHECK(ember_model_free(load(path)) == EMBER_OK);
    CHECK(log.messages == 0);
    OK(ember_set_log_callback(NULL, NULL, 0, &err));
    CHECK(ember_model_free(load(path)) == EMBER_OK);
    CHECK(log.messages == 0);
}

/* A model's own log, beside that of the process. */
static void logging_of_a_model(const char *path) {
    struct log own = {0, 0}, other = {0, 0};
    ember_model_options o = model_options();
    ember_model *model = NULL;
    o.device = cpu_device();
    o.log_level = EMBER_LOG_INFO;
    STATUS(ember_model_load(path, strlen(path), &o, &model, &err), EMBER_INVALID_ARGUMENT);
    SAYS("log_level");
    o.log_level = 0;
    o.log_release = on_release;
    STATUS(ember_model_load(path, strlen(path), &o, &model, &err), EMBER_INVALID_ARGUMENT);
    SAYS("log_release");
    o.log_callback = on_own_log;
    o.log_user = &own;
    o.log_level = 5;
    STATUS(ember_model_load(path, strlen(path), &o, &model, &err), EMBER_INVALID_ARGUMENT);
    SAYS("log_level");
    o.log_level = EMBER_LOG_DEBUG;
    OK(ember_set_log_callback(on_log, &other, EMBER_LOG_DEBUG, &err));
    OK(ember_model_load(path, strlen(path), &o, &model, &err));
    CHECK(own.named == 1 && other.messages == 0);
    {
        ember_session *session = NULL;
        int before = own.messages;
        OK(ember_session_create(model, NULL, &session, &err));
        CHECK(own.messages == before + 1 && other.messages == 0);
        CHECK(ember_session_free(session) == EMBER_OK);
    }
    /* What it gets is given back with the last session, and once. */
    {
        ember_session *session = NULL;
        OK(ember_session_create(model, NULL, &session, &err));
        CHECK(ember_model_free(model) == EMBER_OK);
        CHECK(own.messages > 0);
        CHECK(ember_session_free(session) == EMBER_OK);
        CHECK(own.messages == -1000);
    }
    CHECK(ember_model_free(load(path)) == EMBER_OK);
    CHECK(own.named == 1 && other.named == 1);
    OK(ember_set_log_callback(NULL, NULL, 0, &err));

    /* Not by a load that fails, nor by an estimate. */
    own.messages = own.named = 0;
    STATUS(ember_model_load("/nowhere.gguf", 13, &o, &model, &err), EMBER_FILE_NOT_FOUND);
    {
        ember_estimate estimate = {0};
        estimate.struct_size = sizeof estimate;
        OK(ember_model_estimate(path, strlen(path), &o, NULL, &estimate, &err));
    }
    CHECK(own.messages >= 0);
    /* A load that was started takes it, whatever becomes of it. */
    {
        ember_load *started = NULL;
        OK(ember_model_load_start("/nowhere.gguf", 13, &o, NULL, &started, &err));
        CHECK(ember_load_free(started) == EMBER_OK);
        CHECK(own.messages == -1000);
        own.messages = 0;
        STATUS(ember_model_load_start("", 0, &o, NULL, &started, &err), EMBER_INVALID_ARGUMENT);
        CHECK(own.messages == 0);
        OK(ember_model_load_start(path, strlen(path), &o, NULL, &started, &err));
        CHECK(ember_load_free(started) == EMBER_OK);
        CHECK(own.messages == -1000);
    }
}

int main(int argc, char **argv) {
    ember_model *model;
    CHECK(argc == 2);
    devices();
    paths(argv[1]);
    progress(argv[1]);
    converted(argv[1]);
    files(argv[1]);
    logging(argv[1]);
    logging_of_a_model(argv[1]);
    model = load(argv[1]);
    details(model);
    works(model);
    CHECK(ember_model_free(model) == EMBER_OK);
    return 0;
}
