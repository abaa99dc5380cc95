/* Two characters with one model: each session has a LoRA adapter of its own, and both take their steps in one batch.
 * usage: adapters model.gguf [adapter [adapter]]
 * An adapter is a folder as the PEFT library writes it, or a GGUF file. Without one, a small random adapter for the model in
 * models/ is used, which only shows that the answers differ. */
#include <emberlm.h>
#include <stdio.h>
#include <string.h>

enum { CHARACTERS = 2, TOKENS = 24 };

static int failed(const ember_error *err)
{
    fprintf(stderr, "%s: %s\n", ember_status_name(err->code), err->message);
    return 1;
}

/* The adapter of the model's own folder. */
static const char *default_adapter(const char *model, char *path, size_t room)
{
    const char *slash = strrchr(model, '/');
    int folder = slash ? (int)(slash - model) : 1;
    snprintf(path, room, "%.*s/../tests/data/adapters/hamlet.gguf", folder, slash ? model : ".");
    return path;
}

int main(int argc, char **argv)
{
    const char *prompt = "Once upon a time,";
    char path[1024];
    ember_model *model = NULL;
    ember_adapter *adapters[CHARACTERS] = {NULL};
    ember_session *sessions[CHARACTERS] = {NULL};
    ember_adapter_details details;
    ember_token tokens[CHARACTERS];
    ember_error err;
    uint32_t prompt_tokens[64], ids[CHARACTERS][TOKENS];
    char text[1024];
    size_t prompt_count, len;
    int i, step, result = 0;

    if (argc < 2) {
        fprintf(stderr, "usage: adapters model.gguf [adapter [adapter]]\n");
        return 2;
    }
    if (ember_model_load(argv[1], strlen(argv[1]), NULL, &model, &err) != EMBER_OK) return failed(&err);
    if (ember_tokenize(model, prompt, strlen(prompt), 0, prompt_tokens, 64, &prompt_count, &err) != EMBER_OK) goto error;
    for (i = 0; i < CHARACTERS; i++) {
        ember_adapter_use use = {NULL, 1.0f, 0};
        const char *name = argc > 2 + i ? argv[2 + i] : default_adapter(argv[1], path, sizeof path);
        if (ember_adapter_load(model, name, strlen(name), &adapters[i], &err) != EMBER_OK) goto error;
        memset(&details, 0, sizeof details);
        details.struct_size = sizeof details;
        if (ember_adapter_info(adapters[i], &details, &err) != EMBER_OK) goto error;
        printf("adapter %d: %s, rank %u, %llu bytes\n", i, details.name, details.rank, (unsigned long long)details.memory_bytes);
        if (ember_session_create(model, NULL, &sessions[i], &err) != EMBER_OK) goto error;
        /* With the same adapter twice, the second character has half as much of it. */
        use.adapter = adapters[i];
        use.scale = i > 0 && argc < 4 ? 0.5f : 1.0f;
        if (ember_session_set_adapters(sessions[i], &use, 1, 0, &err) != EMBER_OK) goto error;
        /* The session holds the adapter from here on. */
        if (ember_adapter_free(adapters[i]) != EMBER_OK) goto error;
        adapters[i] = NULL;
        if (ember_prefill(sessions[i], prompt_tokens, prompt_count, &err) != EMBER_OK) goto error;
    }
    for (step = 0; step < TOKENS; step++) {
        for (i = 0; i < CHARACTERS; i++) tokens[i].struct_size = sizeof tokens[i];
        if (ember_decode_batch(sessions, CHARACTERS, tokens, &err) != EMBER_OK) goto error;
        for (i = 0; i < CHARACTERS; i++) ids[i][step] = tokens[i].id;
    }
    for (i = 0; i < CHARACTERS; i++) {
        if (ember_detokenize(model, ids[i], TOKENS, 0, text, sizeof text, &len, &err) != EMBER_OK) goto error;
        printf("character %d: %s%.*s\n", i, prompt, (int)len, text);
    }
    goto end;
error:
    result = failed(&err);
end:
    for (i = 0; i < CHARACTERS; i++) {
        ember_session_free(sessions[i]);
        ember_adapter_free(adapters[i]);
    }
    ember_model_free(model);
    return result;
}
