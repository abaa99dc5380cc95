/* The cases of the memory test. To add a function: write what it needs and what is compared, and give it a line in CASES;
 * `make test-memory` fails while a function of the header has none. */
#define _GNU_SOURCE
#include "cases.h"
#include "inject.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_VOCAB 1424
#define N_AFTER 3

static const char *path;
static char folder[] = "/tmp/emberlm-folder-XXXXXX";
static ember_model *model, *second_model;
static ember_session *session, *other, *several[4];
static ember_text_stream *stream;
static uint32_t tokens[4096], device;
static size_t count;
static float numbers[N_VOCAB], log_values[8];
static char text[1 << 16];
static ember_device_details device_is;
static ember_model_details model_is;
static ember_session_details session_is;
static ember_text_stream_details stream_is;
static ember_estimate estimate;
static ember_tokenizer_details tokenizer_is;
static ember_profile_entry profile[16];

static ember_token token_is, batch_is[4];

static const uint32_t PROMPT[] = {0, 260, 300, 41};
static const char CHAT[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"Be kind.\"},{\"role\":\"user\",\"content\":\"Hi <|end|>\"}],"
    "\"add_generation_prompt\":true}";
static const char SCHEMA[] =
    "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\", \"maxLength\": 8}, \"hp\": {\"type\": \"integer\","
    " \"multipleOf\": 3}, \"item\": {\"enum\": [\"white map\", \"red hat\"]}}, \"required\": [\"name\", \"hp\", \"item\"],"
    " \"additionalProperties\": false}";
static const char REGEX[] = "[a-f]{3}(-[0-9]+)?";
static const char LARK[] = "start: WORD (\" \" WORD)*\nWORD: /[a-z]+/";
static const char GBNF[] = "root ::= item+\nitem ::= \"- \" [a-z]+ \"\\n\"";

/* --- what is looked at ------------------------------------------------------------------------ */

static uint64_t digest(uint64_t so_far, const void *data, size_t len) {
    const unsigned char *bytes = data;
    size_t i;
    for (i = 0; i < len; i++) so_far = (so_far ^ bytes[i]) * 1099511628211u;
    return so_far;
}

static void must(ember_status status, const ember_error *err, const char *what) {
    if (status != EMBER_OK) {
        fprintf(stderr, "%s gave %s: %s\n", what, ember_status_name(status), err->message);
        abort();
    }
}

static ember_error err;
#define OK(call) must((call), &err, #call)

static uint64_t position_of(ember_session *s) {
    size_t position;
    OK(ember_session_position(s, &position, &err));
    return position;
}

/* Where it stands, and what it says from there on. */
static uint64_t goes_on(ember_session *s, uint64_t so_far) {
    uint64_t position = position_of(s);
    ember_token token;
    int i;
    so_far = digest(so_far, &position, sizeof position);
    for (i = 0; i < N_AFTER; i++) {
        token.struct_size = sizeof token;
        OK(ember_decode(s, &token, &err));
        so_far = digest(so_far, &token, sizeof token);
    }
    return so_far;
}

/* A thread of the library that goes on behind a call may have asked for memory before the failures ended: what was started ends
 * with that error then, and works when it is done anew. */
static int ran_out(ember_status status) { return status == EMBER_OUT_OF_MEMORY && inject_refused() > 0; }

static uint64_t look_session(void) { return position_of(session); }
static uint64_t look_several(void) {
    uint64_t sum = 0;
    int i;
    for (i = 0; i < 4; i++) sum = sum * 1000 + position_of(several[i]);
    return sum;
}
static uint64_t result_session(void) { return goes_on(session, 0); }
static uint64_t result_both(void) { return goes_on(other, goes_on(session, 0)); }
static uint64_t result_token(void) { return goes_on(session, digest(0, &token_is, sizeof token_is)); }
static uint64_t result_tokens(void) { return digest(digest(0, &count, sizeof count), tokens, 4 * count); }
static uint64_t result_text(void) { return digest(0, text, count); }
static uint64_t result_several(void) {
    uint64_t sum = digest(0, batch_is, sizeof batch_is);
    int i;
    for (i = 0; i < 4; i++) sum = goes_on(several[i], sum);
    return sum;
}

/* The ids alone: a session that has gone back and does it again is not ahead any more. */
static uint64_t result_several_ids(void) {
    uint64_t sum = 0;
    ember_token token;
    int i, n;
    for (i = 0; i < 4; i++) {
        sum = digest(sum, &batch_is[i].id, sizeof batch_is[i].id);
        for (n = 0; n < N_AFTER; n++) {
            token.struct_size = sizeof token;
            OK(ember_decode(several[i], &token, &err));
            sum = digest(sum, &token.id, sizeof token.id);
        }
    }
    return sum;
}

/* A model does what it is for. */
static uint64_t works(ember_model *m) {
    ember_session *s;
    uint64_t sum;
    ember_model_details d;
    d.struct_size = sizeof d;
    OK(ember_model_info(m, &d, &err));
    OK(ember_session_create(m, NULL, &s, &err));
    OK(ember_prefill(s, (const uint32_t[]){1, 20, 30}, 3, &err));
    sum = goes_on(s, d.has_tokenizer);
    ember_session_free(s);
    if (d.has_tokenizer) {
        OK(ember_tokenize(m, "abc ab", 6, 0, tokens, 100, &count, &err));
        sum = digest(sum, tokens, 4 * count);
    }
    return sum;
}

/* --- models ----------------------------------------------------------------------------------- */

static void log_line(void *user, int32_t level, const char *line, size_t len) {
    (void)user, (void)level, (void)line, (void)len;
}

static void find_cpu(void) {
    uint32_t n;
    OK(ember_device_count(&n, &err));
    for (device = 0; device < n; device++) {
        device_is.struct_size = sizeof device_is;
        OK(ember_device_info(device, &device_is, &err));
        if (device_is.kind == EMBER_DEVICE_CPU) return;
    }
    abort();
}

static ember_status load(const char *from, uint32_t weights, ember_progress_fn progress, ember_model **out, ember_error *e) {
    ember_model_options o = {0};
    o.struct_size = sizeof o;
    o.device = device;
    o.threads = 2;
    o.weights = weights;
    o.progress = progress;
    return ember_model_load(from, strlen(from), &o, out, e);
}

static void copy_file(const char *from, const char *to) {
    char name[200];
    size_t len;
    FILE *in = fopen(from, "rb"), *out;
    snprintf(name, sizeof name, "%s/%s", folder, to);
    out = fopen(name, "wb");
    if (!in || !out) {
        perror(from);
        abort();
    }
    while ((len = fread(text, 1, sizeof text, in)) > 0) fwrite(text, 1, len, out);
    fclose(in);
    fclose(out);
}

static void remove_folder(void) {
    static const char *const FILES[] = {"config.json", "model.safetensors", "tokenizer.json"};
    char name[200];
    size_t i;
    for (i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s/%s", folder, FILES[i]);
        unlink(name);
    }
    rmdir(folder);
}

void cases_begin(const char *model_path, int with_model) {
    path = model_path;
    if (!with_model) return;
    OK(ember_set_log_callback(log_line, NULL, EMBER_LOG_DEBUG, &err));
    find_cpu();
    OK(load(path, 0, NULL, &model, &err));
}

static void prepare_folder(void) {
    if (!mkdtemp(folder)) abort();
    copy_file("tests/data/families/mistral/config.json", "config.json");
    copy_file("tests/data/families/mistral/model.safetensors", "model.safetensors");
    copy_file("tests/memory/tokenizer.json", "tokenizer.json");
}

static void clean_folder(void) {
    ember_model_free(second_model);
    remove_folder();
    strcpy(folder + strlen(folder) - 6, "XXXXXX");
}

static int32_t progress(void *user, float fraction) {
    uint32_t n;
    (void)user, (void)fraction;
    ember_device_count(&n, NULL);
    return 0;
}

static ember_status call_load(ember_error *e) { return load(path, 0, progress, &second_model, e); }
static ember_status call_load_folder(ember_error *e) { return load(folder, 0, NULL, &second_model, e); }
static ember_status call_load_quantized(ember_error *e) {
    return load(folder, EMBER_WEIGHTS_Q8_0, NULL, &second_model, e);
}
static ember_status call_load_missing(ember_error *e) { return load("/none/such", 0, NULL, &second_model, e); }
static uint64_t result_load(void) { return works(second_model); }
static void clean_load(void) { ember_model_free(second_model); }

/* The model's file in memory. */
static unsigned char *model_bytes;
static size_t model_len;
static int released;

static void read_model(void) {
    FILE *f;
    released = 0;
    if (model_bytes) return;
    f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END)) abort();
    model_len = (size_t)ftell(f);
    rewind(f);
    model_bytes = malloc(model_len);
    if (!model_bytes || fread(model_bytes, 1, model_len, f) != model_len) abort();
    fclose(f);
}
static void on_release(void *user, const void *bytes, uint64_t size) {
    (void)user, (void)bytes, (void)size;
    released++;
}
static int32_t read_part(void *user, uint64_t offset, void *bytes, size_t n) {
    (void)user;
    memcpy(bytes, model_bytes + offset, n);
    return 0;
}
static ember_status load_from(uint32_t flags, int by_reading, ember_error *e) {
    ember_model_source s = {0};
    ember_model_options o = {0};
    s.struct_size = sizeof s;
    s.flags = flags;
    s.size = model_len;
    s.bytes = by_reading ? NULL : model_bytes;
    s.read = by_reading ? read_part : NULL;
    s.release = flags ? on_release : NULL;
    o.struct_size = sizeof o;
    o.device = device;
    o.threads = 2;
    return ember_model_load_from(&s, &o, &second_model, e);
}
static ember_status call_load_copied(ember_error *e) { return load_from(0, 0, e); }
static ember_status call_load_borrowed(ember_error *e) { return load_from(EMBER_SOURCE_BORROW, 0, e); }
static ember_status call_load_read(ember_error *e) { return load_from(0, 1, e); }
static uint64_t look_released(void) { return (uint64_t)released; }
/* The bytes come back once, with the model. */
static void clean_borrowed(void) {
    ember_model_free(second_model);
    if (released != 1) abort();
}

static ember_status call_estimate(ember_error *e) {
    estimate.struct_size = sizeof estimate;
    return ember_model_estimate(path, strlen(path), NULL, NULL, &estimate, e);
}
static ember_status call_estimate_folder(ember_error *e) {
    estimate.struct_size = sizeof estimate;
    return ember_model_estimate(folder, strlen(folder), NULL, NULL, &estimate, e);
}
static uint64_t result_estimate(void) { return digest(0, &estimate, sizeof estimate); }

static void clean_none(void) { second_model = NULL; }
static void load_second(void) { OK(load(path, 0, NULL, &second_model, &err)); }
static ember_status call_model_free(ember_error *e) {
    (void)e;
    return ember_model_free(second_model);
}
static ember_model_options in_parts(void) {
    static const uint32_t devices[2], layers[2] = {1, 0};
    ember_model_options o = {0};
    o.struct_size = sizeof o;
    o.devices = devices;
    o.device_count = 2;
    o.device_layers = layers;
    o.threads = 2;
    return o;
}
static ember_status call_estimate_part(ember_error *e) {
    ember_model_options o = in_parts();
    estimate.struct_size = sizeof estimate;
    return ember_model_estimate_part(path, strlen(path), &o, NULL, 1, &estimate, e);
}
static ember_status call_load_parts(ember_error *e) {
    ember_model_options o = in_parts();
    return ember_model_load(path, strlen(path), &o, &second_model, e);
}
static ember_part_details part_is;
static ember_status call_part_info(ember_error *e) {
    part_is.struct_size = sizeof part_is;
    return ember_model_part_info(model, 0, &part_is, e);
}
static uint64_t result_part_info(void) { return digest(0, &part_is, sizeof part_is); }
static ember_status call_model_info(ember_error *e) {
    model_is.struct_size = sizeof model_is;
    return ember_model_info(model, &model_is, e);
}
static uint64_t result_model_info(void) { return digest(0, &model_is, sizeof model_is); }

static ember_status call_device_count(ember_error *e) { return ember_device_count(tokens, e); }
static ember_status call_device_info(ember_error *e) {
    device_is.struct_size = sizeof device_is;
    return ember_device_info(0, &device_is, e);
}
/* But for the memory that is free. */
static uint64_t result_device(void) { return digest(device_is.kind, device_is.name, sizeof device_is.name); }

static ember_status call_version(ember_error *e) {
    (void)e;
    return ember_version() && ember_abi_version() == EMBER_ABI_VERSION && ember_version_number() == EMBER_VERSION_NUMBER &&
                   ember_status_name(7) && ember_status_name(-7)
               ? EMBER_OK
               : EMBER_INTERNAL;
}

static ember_status call_set_log(ember_error *e) { return ember_set_log_callback(log_line, text, EMBER_LOG_DEBUG, e); }
static ember_status call_unset_log(ember_error *e) { return ember_set_log_callback(NULL, NULL, 0, e); }
static void clean_log(void) { OK(ember_set_log_callback(log_line, NULL, EMBER_LOG_DEBUG, &err)); }

/* --- sessions --------------------------------------------------------------------------------- */

static ember_sampling_options sampling;
static ember_session_options session_options;
static const ember_logit_bias BIAS[] = {{300, 2.0f}, {41, -1.0f}};
static const uint32_t BANNED[] = {5, 6};
static const ember_dry_breaker BREAKERS[] = {{"\n", 1, NULL, 0}, {NULL, 0, PROMPT, 2}};

/* Every stage, and log-probabilities. */
static void sample_all(void) {
    memset(&sampling, 0, sizeof sampling);
    sampling.struct_size = sizeof sampling;
    sampling.temperature = 0.8f;
    sampling.top_k = 50;
    sampling.top_p = 0.95f;
    sampling.min_p = 0.01f;
    sampling.typical_p = 0.99f;
    sampling.penalty_window = 64;
    sampling.repeat_penalty = 1.1f;
    sampling.dry_multiplier = 0.5f;
    sampling.dry_breakers = BREAKERS;
    sampling.dry_breaker_count = 2;
    sampling.logit_bias = BIAS;
    sampling.logit_bias_count = 2;
    sampling.banned = BANNED;
    sampling.banned_count = 2;
    sampling.logprobs = 5;
    sampling.seed = 7;
}

static void options_all(void) {
    sample_all();
    memset(&session_options, 0, sizeof session_options);
    session_options.struct_size = sizeof session_options;
    session_options.context = 500;
    session_options.sampling = &sampling;
}

static void create(void) { OK(ember_session_create(model, NULL, &session, &err)); }
static void create_sampling(void) {
    options_all();
    OK(ember_session_create(model, &session_options, &session, &err));
}
static void prefill_now(ember_session *s) { OK(ember_prefill(s, PROMPT, 4, &err)); }
static void prompted(void) {
    create();
    prefill_now(session);
}
static void prompted_sampling(void) {
    create_sampling();
    prefill_now(session);
}
static void begun(void) {
    prompted();
    goes_on(session, 0);
}
static void begun_sampling(void) {
    prompted_sampling();
    goes_on(session, 0);
}
static void set_grammar(ember_session *s, uint32_t kind, const char *grammar) {
    OK(ember_session_set_grammar(s, kind, grammar, strlen(grammar), NULL, &err));
}
static void prompted_grammar(void) {
    prompted();
    set_grammar(session, EMBER_GRAMMAR_JSON_SCHEMA, SCHEMA);
}
static void begun_grammar(void) {
    prompted_grammar();
    goes_on(session, goes_on(session, goes_on(session, 0)));
}
/* By a grammar that leaves nothing to be forced. */
static void begun_words(void) {
    prompted();
    set_grammar(session, EMBER_GRAMMAR_LARK, LARK);
    goes_on(session, 0);
}
static void clean_session(void) {
    ember_session_free(session);
    ember_session_free(other);
    session = other = NULL;
}

static ember_status call_create(ember_error *e) { return ember_session_create(model, NULL, &session, e); }
static ember_status call_create_sampling(ember_error *e) { return ember_session_create(model, &session_options, &session, e); }
static uint64_t result_create(void) {
    prefill_now(session);
    return goes_on(session, 0);
}
static ember_status call_fork(ember_error *e) { return ember_session_fork(session, &other, e); }
static ember_status call_rewind(ember_error *e) { return ember_session_rewind(session, 4, e); }
static ember_status call_session_info(ember_error *e) {
    session_is.struct_size = sizeof session_is;
    return ember_session_info(session, &session_is, e);
}
static uint64_t result_session_info(void) { return digest(0, &session_is, sizeof session_is); }
static ember_status call_position(ember_error *e) { return ember_session_position(session, &count, e); }
static ember_status call_interrupt(ember_error *e) {
    (void)e;
    return ember_session_interrupt(session);
}
static uint64_t result_interrupted(void) {
    OK(ember_session_clear_interrupt(session));
    return goes_on(session, 0);
}
static void interrupted(void) {
    prompted();
    OK(ember_session_interrupt(session));
}
static ember_status call_clear_interrupt(ember_error *e) {
    (void)e;
    return ember_session_clear_interrupt(session);
}
static ember_status call_session_tokens(ember_error *e) { return ember_session_tokens(session, 1, tokens, 4096, &count, e); }
static ember_status call_session_free(ember_error *e) {
    ember_session *s = session;
    (void)e;
    session = NULL;
    return ember_session_free(s);
}
static ember_status call_logits(ember_error *e) { return ember_session_logits(session, numbers, N_VOCAB, e); }
static uint64_t result_logits(void) { return goes_on(session, digest(0, numbers, sizeof numbers)); }
static ember_status call_logprobs(ember_error *e) {
    return ember_session_logprobs(session, numbers, tokens, log_values, 8, &count, e);
}
static uint64_t result_logprobs(void) { return digest(digest(0, numbers, 4), tokens, 4 * count); }
static ember_status call_set_sampling(ember_error *e) { return ember_session_set_sampling(session, &sampling, e); }
static ember_status call_profile(ember_error *e) {
    profile[0].struct_size = sizeof profile[0];
    return ember_session_profile(session, profile, 16, &count, e);
}
static void prepare_set_sampling(void) {
    prompted();
    sample_all();
}

static ember_status drafts_of(ember_session *s, uint32_t source, ember_error *e) {
    ember_speculation_options o = {sizeof o};
    o.source = source;
    o.always = 1;
    o.draft_model = source == EMBER_DRAFTS_MODEL ? model : NULL;
    return ember_session_set_speculation(s, &o, e);
}
static ember_status call_drafts(uint32_t source, ember_error *e) { return drafts_of(session, source, e); }
static ember_status call_ngrams(ember_error *e) { return call_drafts(EMBER_DRAFTS_NGRAM, e); }
static ember_status call_draft_model(ember_error *e) { return call_drafts(EMBER_DRAFTS_MODEL, e); }
static ember_status call_no_drafts(ember_error *e) { return ember_session_set_speculation(session, NULL, e); }
static void prompted_drafts(void) {
    prompted();
    OK(call_draft_model(&err));
}
/* Some tokens are ahead. */
static void begun_drafts(void) {
    prompted_drafts();
    goes_on(session, 0);
}
static ember_speculation_details speculation_is;
static ember_status call_speculation_info(ember_error *e) {
    speculation_is.struct_size = sizeof speculation_is;
    return ember_session_speculation_info(session, &speculation_is, e);
}
static uint64_t result_speculation_info(void) { return digest(0, &speculation_is, sizeof speculation_is); }

static ember_status call_grammar(uint32_t kind, const char *grammar, ember_error *e) {
    return ember_session_set_grammar(session, kind, grammar, strlen(grammar), NULL, e);
}
static ember_status call_schema(ember_error *e) { return call_grammar(EMBER_GRAMMAR_JSON_SCHEMA, SCHEMA, e); }
static ember_status call_regex(ember_error *e) { return call_grammar(EMBER_GRAMMAR_REGEX, REGEX, e); }
static ember_status call_lark(ember_error *e) { return call_grammar(EMBER_GRAMMAR_LARK, LARK, e); }
static ember_status call_gbnf(ember_error *e) { return call_grammar(EMBER_GRAMMAR_GBNF, GBNF, e); }
static ember_status call_bad_schema(ember_error *e) {
    return call_grammar(EMBER_GRAMMAR_JSON_SCHEMA, "{\"properties\": {\"a\": {\"not\": {}}}}", e);
}
static ember_status call_no_grammar(ember_error *e) { return call_grammar(0, "", e); }

/* A first grammar makes a trie of the model's vocabulary. */
static void prepare_first_grammar(void) {
    load_second();
    OK(ember_session_create(second_model, NULL, &session, &err));
    prefill_now(session);
}
static void clean_session_and_model(void) {
    clean_session();
    clean_load();
}

/* --- running ---------------------------------------------------------------------------------- */

static uint32_t long_prompt[400];

/* Saved sessions, in a file and in memory. */
static char state_path[64];
static unsigned char state[1 << 20];
static size_t state_len, state_at;

static const char *state_file(void) {
    snprintf(state_path, sizeof state_path, "/tmp/emberlm-memory-%ld.state", (long)getpid());
    return state_path;
}
static int32_t write_state(void *user, const void *bytes, size_t n) {
    (void)user;
    if (n > sizeof state - state_len) return 1;
    memcpy(state + state_len, bytes, n);
    state_len += n;
    return 0;
}
static int32_t read_state(void *user, void *bytes, size_t capacity, size_t *n) {
    (void)user;
    *n = capacity < state_len - state_at ? capacity : state_len - state_at;
    memcpy(bytes, state + state_at, *n);
    state_at += *n;
    return 0;
}
static ember_status call_save(ember_error *e) {
    const char *path = state_file();
    return ember_session_save(session, path, strlen(path), NULL, e);
}
static ember_status call_save_tokens(ember_error *e) {
    const char *path = state_file();
    ember_save_options o;
    o.struct_size = sizeof o;
    o.kind = EMBER_STATE_TOKENS;
    return ember_session_save(session, path, strlen(path), &o, e);
}
static ember_status call_save_to(ember_error *e) {
    state_len = 0;
    return ember_session_save_to(session, write_state, NULL, NULL, e);
}
static void save_and_free(void) {
    OK(call_save(&err));
    ember_session_free(session);
    session = NULL;
}
static void saved(void) {
    begun();
    save_and_free();
}
static void saved_grammar(void) {
    begun_grammar();
    save_and_free();
}
static void saved_sampling(void) {
    begun_sampling();
    save_and_free();
}
static void saved_in_memory(void) {
    begun();
    OK(call_save_to(&err));
    clean_session();
}
static void saved_tokens(void) {
    begun();
    OK(call_save_tokens(&err));
    clean_session();
}
static ember_status call_restore(ember_error *e) {
    const char *path = state_file();
    return ember_session_restore(model, path, strlen(path), NULL, &session, e);
}
static ember_status call_restore_from(ember_error *e) {
    state_at = 0;
    return ember_session_restore_from(model, read_state, NULL, NULL, &session, e);
}
static ember_status call_state_info(ember_error *e) {
    const char *path = state_file();
    ember_state_details d;
    memset(&d, 0, sizeof d);
    d.struct_size = sizeof d;
    return ember_session_state_info(path, strlen(path), &d, e);
}
static uint64_t result_restored(void) { return goes_on(session, 0); }
static void clean_state(void) {
    clean_session();
    remove(state_file());
}
static ember_status call_erase(ember_error *e) { return ember_session_erase(session, 1, 2, e); }
static ember_status call_evict(ember_error *e) { return ember_session_evict(session, e); }
static ember_status call_resume(ember_error *e) { return ember_session_resume(session, e); }
static void evicted(void) {
    begun();
    OK(ember_session_evict(session, &err));
}
static ember_status call_model_evict(ember_error *e) { return ember_model_evict(model, e); }
static ember_status call_model_resume(ember_error *e) { return ember_model_resume(model, e); }

static void prepare_long(void) {
    uint32_t i;
    for (i = 0; i < 400; i++) long_prompt[i] = (7 * i + 3) % N_VOCAB;
    create();
}
static ember_status call_prefill(ember_error *e) { return ember_prefill(session, PROMPT, 4, e); }
static ember_status call_prefill_long(ember_error *e) { return ember_prefill(session, long_prompt, 400, e); }
static ember_status call_sync(ember_error *e) { return ember_session_sync(session, long_prompt, 400, &count, e); }
static uint64_t result_sync(void) { return goes_on(session, digest(0, &count, sizeof count)); }
static void half_synced(void) {
    prepare_long();
    OK(ember_prefill(session, long_prompt, 200, &err));
    prefill_now(session);
}
static void half_synced_grammar(void) {
    half_synced();
    set_grammar(session, EMBER_GRAMMAR_JSON_SCHEMA, SCHEMA);
    goes_on(session, 0);
}
/* A model's first prefill and first batch make what its sessions share. */
static void prepare_first_prefill(void) {
    prepare_long();
    clean_session();
    load_second();
    OK(ember_session_create(second_model, NULL, &session, &err));
}
/* A prompt of several pieces, which go through the parts one behind the other. */
static uint32_t many_tokens[1200];
static void prepare_pieces(void) {
    uint32_t i;
    ember_session_options o = {0};
    for (i = 0; i < 1200; i++) many_tokens[i] = (7 * i + 3) % N_VOCAB;
    OK(call_load_parts(&err));
    o.struct_size = sizeof o;
    o.context = 1500;
    OK(ember_session_create(second_model, &o, &session, &err));
}
static ember_status call_prefill_pieces(ember_error *e) { return ember_prefill(session, many_tokens, 1200, e); }
static ember_status call_prefill_start(ember_error *e) { return ember_prefill_start(session, long_prompt, 400, e); }
static ember_status wait_prefill(ember_error *e) {
    ember_status status;
    do status = ember_prefill_poll(session, &count, e);
    while (status == EMBER_PENDING);
    return status;
}
static uint64_t result_prefill_started(void) {
    ember_status status = wait_prefill(&err);
    if (ran_out(status)) {
        OK(call_prefill_start(&err));
        status = wait_prefill(&err);
    }
    OK(status);
    return goes_on(session, count);
}
static void prefill_started(void) {
    prepare_long();
    OK(call_prefill_start(&err));
}
static ember_status call_decode(ember_error *e) {
    token_is.struct_size = sizeof token_is;
    return ember_decode(session, &token_is, e);
}

static ember_status poll(ember_error *e) {
    ember_status status;
    token_is.struct_size = sizeof token_is;
    do status = ember_decode_poll(session, &token_is, e);
    while (status == EMBER_PENDING);
    return status;
}
static ember_status call_start(ember_error *e) { return ember_decode_start(session, e); }
static ember_status call_start_n(ember_error *e) { return ember_decode_start_n(session, 3, e); }
static uint64_t result_started(void) {
    ember_status status = poll(&err);
    OK(ran_out(status) ? call_decode(&err) : status);
    return result_token();
}
static uint64_t result_started_n(void) {
    uint64_t sum = 0;
    int i, ended = 0;
    for (i = 0; i < 3; i++) {
        ember_status status = ended ? EMBER_OUT_OF_MEMORY : poll(&err);
        ended = ran_out(status);
        OK(ended ? call_decode(&err) : status);
        sum = digest(sum, &token_is, sizeof token_is);
    }
    return goes_on(session, sum);
}
/* The ids alone, for drafts that were not made again are no drafts. */
static uint64_t result_started_ids(void) {
    uint64_t sum = 0;
    int i, ended = 0;
    for (i = 0; i < 6; i++) {
        ember_status status = ended || i >= 3 ? EMBER_OUT_OF_MEMORY : poll(&err);
        ended = status == EMBER_OUT_OF_MEMORY;
        OK(ended ? call_decode(&err) : status);
        sum = digest(sum, &token_is.id, sizeof token_is.id);
    }
    return sum;
}
/* The next decode has drafts of a model, which are made in the background if it is started. */
static void begun_then_drafts(void) {
    prompted();
    goes_on(session, 0);
    OK(call_draft_model(&err));
}
/* A poll that fails has ended the decode, which is started anew then. */
static ember_status call_poll(ember_error *e) {
    ember_status status = ember_decode_start(session, NULL);
    if (status == EMBER_OUT_OF_MEMORY) return poll(e), status;
    return status != EMBER_OK && status != EMBER_DECODE_PENDING ? status : poll(e);
}
static void started(void) {
    prompted();
    OK(ember_decode_start(session, &err));
}
static void started_grammar(void) {
    prompted_grammar();
    OK(ember_decode_start(session, &err));
}
static void started_sampling(void) {
    prompted_sampling();
    OK(ember_decode_start(session, &err));
}

static void prepare_several_of(ember_model *m) {
    int i;
    for (i = 0; i < 4; i++) {
        OK(ember_session_create(m, NULL, &several[i], &err));
        OK(ember_prefill(several[i], PROMPT, 1 + i, &err));
    }
}
static void prepare_several(void) { prepare_several_of(model); }
static void prepare_first_batch(void) {
    load_second();
    prepare_several_of(second_model);
}
static void prepare_several_mixed(void) {
    prepare_several();
    set_grammar(several[1], EMBER_GRAMMAR_REGEX, REGEX);
    sample_all();
    OK(ember_session_set_sampling(several[2], &sampling, &err));
}
/* Two that draft, one of them by a grammar, beside two that do not. */
static void prepare_several_drafting(void) {
    prepare_several();
    set_grammar(several[1], EMBER_GRAMMAR_REGEX, REGEX);
    OK(drafts_of(several[1], EMBER_DRAFTS_MODEL, &err));
    OK(drafts_of(several[2], EMBER_DRAFTS_MODEL, &err));
}
/* One is ahead. */
static void begun_several_drafting(void) {
    prepare_several_drafting();
    goes_on(several[2], 0);
}
/* Drafts that a batch in the background makes. */
static void begun_several_models(void) {
    int i;
    prepare_several();
    for (i = 0; i < 4; i++) {
        goes_on(several[i], 0);
        if (i != 1) OK(drafts_of(several[i], EMBER_DRAFTS_MODEL, &err));
    }
}
/* Drafts that are made before a batch is started. */
static void prepare_several_ngrams(void) {
    int i;
    prepare_several();
    for (i = 0; i < 3; i++) {
        OK(ember_prefill(several[i], PROMPT, 4, &err));
        OK(ember_prefill(several[i], PROMPT, 4, &err));
        OK(drafts_of(several[i], EMBER_DRAFTS_NGRAM, &err));
    }
}
static void clean_several(void) {
    int i;
    for (i = 0; i < 4; i++) ember_session_free(several[i]);
    memset(several, 0, sizeof several);
}
static void clean_several_and_model(void) {
    clean_several();
    clean_load();
}
/* Of a batch in which one session has failed, the others have gone on: they go back, when memory is there again. */
static int batch_failed;
static size_t before_batch[4];

static ember_status call_batch(ember_error *e) {
    ember_status status;
    batch_is[0].struct_size = sizeof batch_is[0];
    status = ember_decode_batch(several, 4, batch_is, e);
    batch_failed = status != EMBER_OK;
    return status;
}
static uint64_t look_batch(void) {
    int i;
    for (i = 0; i < 4; i++) {
        size_t now = position_of(several[i]);
        if (!batch_failed) before_batch[i] = now;
        else if (now == before_batch[i] + 1) OK(ember_session_rewind(several[i], before_batch[i], &err));
    }
    batch_failed = 0;
    return look_several();
}
static ember_status call_batch_start(ember_error *e) { return ember_decode_batch_start(several, 4, e); }
static void collect_several(void) {
    ember_status status;
    int i;
    for (i = 0; i < 4; i++) {
        batch_is[i].struct_size = sizeof batch_is[i];
        do status = ember_decode_poll(several[i], &batch_is[i], &err);
        while (status == EMBER_PENDING);
        OK(ran_out(status) ? ember_decode(several[i], &batch_is[i], &err) : status);
    }
}
static uint64_t result_batch_started(void) {
    collect_several();
    return result_several();
}
static uint64_t result_drafts_started(void) {
    collect_several();
    return result_several_ids();
}

/* --- text ------------------------------------------------------------------------------------- */

static char long_text[30000];

static void prepare_long_text(void) {
    static const char WORDS[] = "The guard said 'no', 123 times; caf\303\251 \344\270\255 ";
    size_t at;
    for (at = 0; at + sizeof WORDS < sizeof long_text; at += sizeof WORDS - 1) memcpy(long_text + at, WORDS, sizeof WORDS);
}
static ember_status call_tokenize(ember_error *e) {
    return ember_tokenize(model, "Once upon a time,", 17, 0, tokens, 4096, &count, e);
}
static ember_status call_tokenize_with(ember_error *e) {
    return ember_tokenize_with(model, "Once upon a time,", 17, NULL, tokens, 4096, &count, e);
}
static ember_status call_tokenize_special(ember_error *e) {
    return ember_tokenize(model, "<|user|>\nHi", 11, EMBER_TOKENIZE_SPECIAL, tokens, 4096, &count, e);
}
static ember_status call_tokenize_long(ember_error *e) {
    /* The buffer does not matter to what is done before. */
    ember_status status = ember_tokenize(model, long_text, strlen(long_text), 0, tokens, 1, &count, e);
    return status;
}
static uint64_t result_count(void) { return count; }
static ember_status call_detokenize(ember_error *e) {
    return ember_detokenize(model, PROMPT, 4, 0, text, sizeof text, &count, e);
}
static ember_status call_token_text(ember_error *e) { return ember_token_text(model, 300, text, sizeof text, &count, e); }
static ember_status call_is_end(ember_error *e) { return ember_token_is_end(model, 5, tokens, e); }
static ember_status call_tokenizer_info(ember_error *e) {
    tokenizer_is.struct_size = sizeof tokenizer_is;
    return ember_tokenizer_info(model, &tokenizer_is, e);
}
static uint64_t result_tokenizer_info(void) { return digest(0, &tokenizer_is, sizeof tokenizer_is); }
static ember_status call_end_tokens(ember_error *e) { return ember_end_tokens(model, tokens, 4096, &count, e); }
static ember_status call_metadata(ember_error *e) {
    return ember_model_metadata(model, "llama.block_count", 17, text, sizeof text, &count, e);
}
static ember_status call_metadata_string(ember_error *e) {
    return ember_model_metadata(model, "general.name", 12, text, sizeof text, &count, e);
}
static ember_status call_metadata_large(ember_error *e) {
    return ember_model_metadata(model, "tokenizer.ggml.tokens", 21, text, sizeof text, &count, e);
}
static ember_status call_metadata_key(ember_error *e) {
    return ember_model_metadata_key(model, 3, text, sizeof text, &count, e);
}
static ember_status call_supported(ember_error *e) {
    (void)e;
    return ember_supported(EMBER_CAN_CPU) == 1 && ember_supported(12345) == 0 ? EMBER_OK : EMBER_INTERNAL;
}
static ember_status call_chat_format(ember_error *e) {
    return ember_chat_format(model, CHAT, strlen(CHAT), NULL, text, sizeof text, &count, e);
}
static ember_status call_chat_source(ember_error *e) {
    static const char SOURCE[] =
        "{% macro show(m) %}{{ m.role | upper }}: {{ m.content | trim }}{% endmacro %}{% set ns = namespace(n=0) %}"
        "{% for m in messages %}{{ show(m) }}{% set ns.n = ns.n + 1 %}{% endfor %}{{ messages | tojson }}{{ ns.n }}"
        "{{ messages | map(attribute='role') | join(', ') }}{{ '%s-%d' | format('a', 3) }}{{ strftime_now('%Y') }}";
    ember_chat_options o = {0};
    o.struct_size = sizeof o;
    o.source = SOURCE;
    o.source_len = strlen(SOURCE);
    o.now = 86400;
    return ember_chat_format(model, CHAT, strlen(CHAT), &o, text, sizeof text, &count, e);
}
static ember_status call_chat_tokenize(ember_error *e) {
    return ember_chat_tokenize(model, CHAT, strlen(CHAT), NULL, tokens, 4096, &count, e);
}

static ember_text_stream_options stream_options(void) {
    static const ember_stop STOPS[] = {{"stop", 4}, {"\n\n", 2}};
    ember_text_stream_options o = {0};
    o.struct_size = sizeof o;
    o.flags = EMBER_TEXT_STREAM_SKIP_SPECIAL;
    o.stops = STOPS;
    o.stop_count = 2;
    return o;
}
static ember_status call_stream(ember_error *e) {
    ember_text_stream_options o = stream_options();
    return ember_text_stream_create(model, &o, &stream, e);
}
static void create_stream(void) {
    OK(call_stream(&err));
    OK(ember_text_stream_push(stream, PROMPT, 2, text, sizeof text, &count, &err));
}
static void clean_stream(void) {
    ember_text_stream_free(stream);
    stream = NULL;
}
static uint64_t look_stream(void) {
    stream_is.struct_size = sizeof stream_is;
    OK(ember_text_stream_info(stream, &stream_is, &err));
    return stream_is.token_count;
}
static ember_status call_push(ember_error *e) {
    return ember_text_stream_push(stream, PROMPT, 4, text, sizeof text, &count, e);
}
static uint64_t result_push(void) {
    uint64_t sum = result_text();
    OK(ember_text_stream_finish(stream, text, sizeof text, &count, &err));
    return digest(sum, text, count);
}
static ember_status call_finish(ember_error *e) { return ember_text_stream_finish(stream, text, sizeof text, &count, e); }
static ember_status call_stream_info(ember_error *e) {
    stream_is.struct_size = sizeof stream_is;
    return ember_text_stream_info(stream, &stream_is, e);
}
static ember_status call_stream_free(ember_error *e) {
    ember_text_stream *s = stream;
    (void)e;
    stream = NULL;
    return ember_text_stream_free(s);
}

/* --- generating ------------------------------------------------------------------------------- */

static ember_generate_details generated;
static char pieces[1 << 12];
static size_t pieces_len;

static int32_t take_piece(void *user, const char *piece, size_t len, const ember_token *token) {
    (void)user, (void)token;
    if (len > sizeof pieces - pieces_len) return 1;
    memcpy(pieces + pieces_len, piece, len);
    pieces_len += len;
    return 0;
}
static ember_status generate(const uint32_t *prompt, size_t prompt_count, size_t limit, ember_error *e) {
    static const ember_stop STOPS[] = {{"\1none", 5}, {" such", 5}};
    ember_generate_options o = {0};
    o.struct_size = sizeof o;
    o.prompt = prompt;
    o.prompt_count = prompt_count;
    o.max_tokens = limit;
    o.stops = STOPS;
    o.stop_count = 2;
    o.piece = take_piece;
    generated.struct_size = sizeof generated;
    pieces_len = 0;
    return ember_generate(session, &o, &generated, e);
}
static ember_status call_generate(ember_error *e) { return generate(PROMPT, 4, 12, e); }
static ember_status call_generate_on(ember_error *e) { return generate(NULL, 0, 12, e); }
static uint64_t result_generate(void) {
    uint64_t sum = digest(digest(0, &generated, sizeof generated), pieces, pieces_len);
    return goes_on(session, sum);
}

/* What was generated piece by piece, with as many calls. */
static ember_status start_generation(ember_error *e) {
    ember_generate_options o = {0};
    o.struct_size = sizeof o;
    o.prompt = PROMPT;
    o.prompt_count = 4;
    o.max_tokens = 12;
    return ember_generate_start(session, &o, e);
}
static void generation_started(void) {
    create();
    OK(start_generation(&err));
}
static void generation_half_way(void) {
    int i;
    generation_started();
    token_is.struct_size = sizeof token_is;
    for (i = 0; i < 5; i++) OK(ember_generate_next(session, 0, text, sizeof text, &count, &token_is, &err));
}
static ember_status call_generate_next(ember_error *e) {
    token_is.struct_size = sizeof token_is;
    return ember_generate_next(session, 0, text, sizeof text, &count, &token_is, e);
}
static uint64_t result_generation(void) {
    uint64_t sum = digest(digest(0, &token_is, sizeof token_is), text, count);
    do {
        ember_status status = call_generate_next(&err);
        OK(ran_out(status) ? call_generate_next(&err) : status);
        sum = digest(digest(sum, &token_is, sizeof token_is), text, count);
    } while (token_is.id != EMBER_NO_TOKEN);
    generated.struct_size = sizeof generated;
    OK(ember_generate_finish(session, &generated, &err));
    return goes_on(session, digest(sum, &generated, sizeof generated));
}
static uint64_t result_generation_started(void) {
    count = 0;
    memset(&token_is, 0, sizeof token_is);
    return result_generation();
}
static ember_status call_generate_end(ember_error *e) {
    generated.struct_size = sizeof generated;
    return ember_generate_finish(session, &generated, e);
}
static uint64_t result_generate_end(void) { return goes_on(session, digest(0, &generated, sizeof generated)); }

/* --- loads and events that are waited for otherwise ------------------------------------------- */

static ember_load *started_load;
static ember_event *event;

static ember_status call_load_start(ember_error *e) {
    ember_model_options o = {0};
    o.struct_size = sizeof o;
    o.device = device;
    o.threads = 2;
    return ember_model_load_start(path, strlen(path), &o, NULL, &started_load, e);
}
static ember_status wait_load(ember_error *e) {
    ember_status status;
    do status = ember_load_poll(started_load, NULL, &second_model, e);
    while (status == EMBER_PENDING);
    return status;
}
/* The thread has failed, or the start: a load that is started anew succeeds. */
static ember_status call_load_waited(ember_error *e) {
    ember_status status = call_load_start(e);
    if (status != EMBER_OK) return status;
    status = wait_load(e);
    ember_load_free(started_load);
    started_load = NULL;
    return status;
}
static void load_started(void) { OK(call_load_start(&err)); }
static void load_ended(void) {
    load_started();
    OK(wait_load(&err));
    ember_model_free(second_model);
}
static void clean_load_started(void) {
    ember_load_free(started_load);
    started_load = NULL;
}
static ember_status call_load_poll(ember_error *e) { return ember_load_poll(started_load, NULL, &second_model, e); }
static ember_status call_load_cancel(ember_error *e) {
    (void)e;
    return ember_load_cancel(started_load);
}
static ember_status call_load_free(ember_error *e) {
    ember_load *l = started_load;
    (void)e;
    started_load = NULL;
    return ember_load_free(l);
}
static ember_status call_event(ember_error *e) { return ember_event_create(&event, e); }
static void event_created(void) { OK(call_event(&err)); }
static void session_and_event(void) {
    prompted();
    event_created();
}
static uint64_t look_event(void) {
    int64_t handle = -1;
    OK(ember_event_handle(event, &handle, &err));
    return handle >= 0;
}
static void clean_event(void) {
    ember_event_free(event);
    event = NULL;
}
static void clean_session_and_event(void) {
    clean_session();
    clean_event();
}
static ember_status call_event_handle(ember_error *e) {
    int64_t handle;
    return ember_event_handle(event, &handle, e);
}
static ember_status call_event_clear(ember_error *e) { return ember_event_clear(event, e); }
static ember_status call_event_free(ember_error *e) {
    ember_event *old = event;
    (void)e;
    event = NULL;
    return ember_event_free(old);
}
static ember_group *first_rank;
static ember_status call_group(ember_error *e) {
    ember_group_options o = {0};
    o.struct_size = sizeof o;
    o.rank_count = 2;
    return ember_group_create(&o, &first_rank, e);
}
static void group_created(void) { OK(call_group(&err)); }
static ember_status call_group_id(ember_error *e) { return ember_group_id(first_rank, text, sizeof text, &count, e); }
static uint64_t look_group(void) {
    OK(call_group_id(&err));
    return count > 0;
}
static void clean_group(void) {
    ember_group_free(first_rank);
    first_rank = NULL;
}
static ember_status call_group_free(ember_error *e) {
    ember_group *old = first_rank;
    (void)e;
    first_rank = NULL;
    return ember_group_free(old);
}
static ember_group *second_rank;
static ember_status call_join(ember_error *e) {
    ember_group_options o = {0};
    o.struct_size = sizeof o;
    o.rank = 1;
    o.rank_count = 2;
    o.id = text;
    o.id_len = count;
    return ember_group_create(&o, &second_rank, e);
}
static void prepare_join(void) {
    group_created();
    OK(call_group_id(&err));
}
static void clean_join(void) {
    ember_group_free(second_rank);
    second_rank = NULL;
    clean_group();
}
static ember_status call_set_event(ember_error *e) { return ember_session_set_event(session, event, e); }
static ember_status call_session_model(ember_error *e) { return ember_session_model(session, &second_model, e); }
static uint64_t result_session_model(void) { return goes_on(session, works(second_model)); }
/* --- adapters ----------------------------------------------------------------------------------- */

static ember_adapter *adapter;
static const char ADAPTER[] = "tests/data/adapters/hamlet.gguf";
static const char ADAPTER_FOLDER[] = "tests/data/adapters/mistral";

static ember_status load_adapter(ember_error *e) { return ember_adapter_load(model, ADAPTER, sizeof ADAPTER - 1, &adapter, e); }
static ember_status load_adapter_folder(ember_error *e) {
    return ember_adapter_load(model, ADAPTER_FOLDER, sizeof ADAPTER_FOLDER - 1, &adapter, e);
}
static void prepare_adapter(void) { load_adapter(NULL); }
static void clean_adapter(void) {
    ember_adapter_free(adapter);
    adapter = NULL;
}
static uint64_t look_adapter(void) {
    ember_adapter_details d = {0};
    d.struct_size = sizeof d;
    ember_adapter_info(adapter, &d, NULL);
    return digest(0, &d, sizeof d);
}
static ember_status call_adapter_info(ember_error *e) {
    ember_adapter_details d = {0};
    d.struct_size = sizeof d;
    return ember_adapter_info(adapter, &d, e);
}
static ember_status call_adapter_free(ember_error *e) {
    (void)e;
    ember_status s = ember_adapter_free(adapter);
    adapter = NULL;
    return s;
}
static void session_and_adapter(void) {
    prompted();
    prepare_adapter();
}
static ember_status call_set_adapters(ember_error *e) {
    ember_adapter_use use = {adapter, 1, 0};
    return ember_session_set_adapters(session, &use, 1, 0, e);
}
static void clean_session_and_adapter(void) {
    clean_session();
    clean_adapter();
}

/* --- vectors of texts ------------------------------------------------------------------------- */

static ember_embedder *embedder;
static float vectors[4096];
static const ember_text TEXTS[] = {{"Once upon a time", 16}, {"the king and the queen", 22}};

static ember_status create_embedder(ember_error *e) {
    ember_embedder_options o = {0};
    o.struct_size = sizeof o;
    o.pooling = EMBER_POOLING_MEAN;
    o.max_tokens = 64;
    o.batch_tokens = 64;
    return ember_embedder_create(model, &o, &embedder, e);
}
static void prepare_embedder(void) { create_embedder(NULL); }
static ember_status create_adapted_embedder(ember_error *e) {
    ember_adapter_use use = {adapter, 1, 0};
    ember_embedder_options o = {0};
    o.struct_size = sizeof o;
    o.pooling = EMBER_POOLING_MEAN;
    o.max_tokens = 64;
    o.batch_tokens = 64;
    o.adapters = &use;
    o.adapter_count = 1;
    return ember_embedder_create(model, &o, &embedder, e);
}
static void prepare_adapted_embedder(void) {
    prepare_adapter();
    create_adapted_embedder(NULL);
}
static void clean_embedder(void) {
    ember_embedder_free(embedder);
    embedder = NULL;
}
static void clean_adapted_embedder(void) {
    clean_embedder();
    clean_adapter();
}
static ember_status call_embedder_info(ember_error *e) {
    ember_embedder_details d = {0};
    d.struct_size = sizeof d;
    return ember_embedder_info(embedder, &d, e);
}
static ember_status call_embed(ember_error *e) { return ember_embed(embedder, TEXTS, 2, vectors, 4096, &count, e); }
static ember_status call_embed_small(ember_error *e) { return ember_embed(embedder, TEXTS, 2, vectors, 3, &count, e); }
static ember_status call_embed_tokens(ember_error *e) {
    static const size_t COUNTS[] = {3, 1};
    return ember_embed_tokens(embedder, PROMPT, 4, COUNTS, 2, vectors, 4096, &count, e);
}
static ember_status call_rerank(ember_error *e) { return ember_rerank(embedder, "a", 1, TEXTS, 2, vectors, 4096, &count, e); }
static ember_status call_embedder_interrupt(ember_error *e) {
    (void)e;
    return ember_embedder_interrupt(embedder);
}
static ember_status call_embedder_free(ember_error *e) {
    (void)e;
    ember_status s = ember_embedder_free(embedder);
    embedder = NULL;
    return s;
}
static uint64_t look_embedder(void) {
    size_t n = 0;
    ember_embed(embedder, TEXTS, 1, vectors, 4096, &n, NULL);
    return digest(0, vectors, n * sizeof *vectors);
}
static uint64_t result_vectors(void) { return digest(0, vectors, count * sizeof *vectors); }

/* --- errors ----------------------------------------------------------------------------------- */

static ember_status call_bad_model(ember_error *e) {
    return ember_tokenize((ember_model *)(uintptr_t)0x12345, "a", 1, 0, tokens, 8, &count, e);
}
static ember_status call_bad_session(ember_error *e) {
    token_is.struct_size = sizeof token_is;
    return ember_decode((ember_session *)(uintptr_t)0x333, &token_is, e);
}
static ember_status call_bad_stream(ember_error *e) {
    return ember_text_stream_finish((ember_text_stream *)(uintptr_t)0x77, text, 1, &count, e);
}
static ember_status call_bad_free(ember_error *e) {
    (void)e;
    return ember_session_free((ember_session *)(uintptr_t)0x333);
}
static ember_status call_bad_option(ember_error *e) {
    ember_model_options o = {0};
    o.struct_size = 3;
    return ember_model_load(path, strlen(path), &o, &second_model, e);
}
static ember_status call_bad_token(ember_error *e) { return ember_prefill(session, (const uint32_t[]){1u << 30}, 1, e); }
static ember_status call_bad_utf8(ember_error *e) { return ember_tokenize(model, "a\377", 2, 0, tokens, 8, &count, e); }

const memory_case CASES[] = {
    /* function, variant, prepare, call, look, result, clean, wanted, fresh, never_fails */
    {"ember_version", "with the other constants", NULL, call_version, NULL, NULL, NULL, 0, 1, 1},
    {"ember_version_number", "as above", NULL, call_version, NULL, NULL, NULL, 0, 0, 1},
    {"ember_abi_version", "as above", NULL, call_version, NULL, NULL, NULL, 0, 0, 1},
    {"ember_status_name", "as above", NULL, call_version, NULL, NULL, NULL, 0, 0, 1},
    {"ember_set_log_callback", "set", NULL, call_set_log, NULL, NULL, clean_log, 0, 0, 0},
    {"ember_set_log_callback", "unset", NULL, call_unset_log, NULL, NULL, clean_log, 0, 0, 1},
    {"ember_device_count", "first of the process", NULL, call_device_count, NULL, NULL, NULL, 0, 1, 0},
    {"ember_device_count", "later", NULL, call_device_count, NULL, NULL, NULL, 0, 0, 0},
    {"ember_device_info", "first of the process", NULL, call_device_info, NULL, result_device, NULL, 0, 1, 0},
    {"ember_device_info", "later", NULL, call_device_info, NULL, result_device, NULL, 0, 0, 0},
    {"ember_model_load", "GGUF", NULL, call_load, NULL, result_load, clean_load, 0, 0, 0},
    {"ember_model_load", "in parts", NULL, call_load_parts, NULL, result_load, clean_load, 0, 0, 0},
    {"ember_model_load", "folder", prepare_folder, call_load_folder, NULL, result_load, clean_folder, 0, 0, 0},
    {"ember_model_load", "folder, to Q8_0", prepare_folder, call_load_quantized, NULL, result_load, clean_folder, 0, 0, 0},
    {"ember_model_load", "no such file", NULL, call_load_missing, NULL, NULL, NULL, EMBER_FILE_NOT_FOUND, 0, 0},
    {"ember_model_load", "bad options", NULL, call_bad_option, NULL, NULL, NULL, EMBER_INVALID_ARGUMENT, 0, 0},
    {"ember_model_load_from", "copied", read_model, call_load_copied, NULL, result_load, clean_load, 0, 0, 0},
    {"ember_model_load_from", "borrowed", read_model, call_load_borrowed, look_released, result_load, clean_borrowed, 0, 0, 0},
    {"ember_model_load_from", "by a callback", read_model, call_load_read, NULL, result_load, clean_load, 0, 0, 0},
    {"ember_model_estimate", "GGUF", NULL, call_estimate, NULL, result_estimate, NULL, 0, 0, 0},
    {"ember_model_estimate", "folder", prepare_folder, call_estimate_folder, NULL, result_estimate, clean_folder, 0, 0, 0},
    {"ember_model_estimate_part", "GGUF", NULL, call_estimate_part, NULL, result_estimate, NULL, 0, 0, 0},
    {"ember_model_part_info", "a model's", NULL, call_part_info, NULL, result_part_info, NULL, 0, 0, 0},
    {"ember_model_info", "a model's", NULL, call_model_info, NULL, result_model_info, NULL, 0, 0, 0},
    {"ember_model_metadata", "a number", NULL, call_metadata, NULL, result_text, NULL, 0, 0, 0},
    {"ember_model_metadata", "a string", NULL, call_metadata_string, NULL, result_text, NULL, 0, 0, 0},
    {"ember_model_metadata", "a large array", NULL, call_metadata_large, NULL, NULL, NULL, EMBER_UNSUPPORTED, 0, 0},
    {"ember_model_metadata_key", "a key", NULL, call_metadata_key, NULL, result_text, NULL, 0, 0, 0},
    {"ember_supported", "a capability", NULL, call_supported, NULL, NULL, NULL, 0, 0, 1},
    {"ember_model_free", "the last handle", load_second, call_model_free, NULL, NULL, clean_none, 0, 0, 1},
    {"ember_session_create", "by default", NULL, call_create, NULL, result_create, clean_session, 0, 0, 0},
    {"ember_session_create", "all of sampling", options_all, call_create_sampling, NULL, result_create, clean_session, 0, 0, 0},
    {"ember_session_info", "a session's", begun, call_session_info, NULL, result_session_info, clean_session, 0, 0, 1},
    {"ember_session_position", "a session's", begun, call_position, NULL, result_session, clean_session, 0, 0, 1},
    {"ember_session_rewind", "plain", begun, call_rewind, look_session, result_session, clean_session, 0, 0, 0},
    {"ember_session_rewind", "grammar", begun_grammar, call_rewind, look_session, result_session, clean_session, 0, 0, 0},
    {"ember_session_rewind", "started decode", started, call_rewind, NULL, result_session, clean_session, 0, 0, 0},
    {"ember_session_fork", "plain", begun, call_fork, look_session, result_both, clean_session, 0, 0, 0},
    {"ember_session_fork", "grammar", begun_grammar, call_fork, look_session, result_both, clean_session, 0, 0, 0},
    {"ember_session_fork", "all of sampling", begun_sampling, call_fork, look_session, result_both, clean_session, 0, 0, 0},
    {"ember_session_logits", "there", prompted, call_logits, look_session, result_logits, clean_session, 0, 0, 0},
    {"ember_session_logits", "to be made", begun, call_logits, look_session, result_logits, clean_session, 0, 0, 0},
    {"ember_session_logprobs", "a decode's", begun_sampling, call_logprobs, look_session, result_logprobs, clean_session, 0, 0, 0},
    {"ember_session_set_sampling", "all of it", prepare_set_sampling, call_set_sampling, look_session, result_session, clean_session, 0, 0, 0},
    {"ember_session_profile", "plain", begun, call_profile, look_session, result_session, clean_session, 0, 0, 0},
    {"ember_session_set_speculation", "n-grams", begun, call_ngrams, look_session, result_session, clean_session, 0, 0, 0},
    {"ember_session_set_speculation", "a model", begun, call_draft_model, look_session, result_session, clean_session, 0, 0, 0},
    {"ember_session_set_speculation", "none, with tokens ahead", begun_drafts, call_no_drafts, NULL, result_session, clean_session, 0, 0, 0},
    {"ember_session_speculation_info", "a session's", begun_drafts, call_speculation_info, NULL, result_speculation_info, clean_session, 0, 0, 0},
    {"ember_decode", "with drafts", prompted_drafts, call_decode, look_session, result_session, clean_session, 0, 0, 0},
    {"ember_session_fork", "with drafts", begun_drafts, call_fork, look_session, result_both, clean_session, 0, 0, 0},
    {"ember_session_set_grammar", "first of a model", prepare_first_grammar, call_schema, look_session, result_session, clean_session_and_model, 0, 0, 0},
    {"ember_session_set_grammar", "JSON schema", prompted, call_schema, look_session, result_session, clean_session, 0, 0, 0},
    {"ember_session_set_grammar", "regular expression", prompted, call_regex, look_session, result_session, clean_session, 0, 0, 0},
    {"ember_session_set_grammar", "Lark", prompted, call_lark, look_session, result_session, clean_session, 0, 0, 0},
    {"ember_session_set_grammar", "GBNF", prompted, call_gbnf, look_session, result_session, clean_session, 0, 0, 0},
    {"ember_session_set_grammar", "wrong", prompted, call_bad_schema, look_session, result_session, clean_session, EMBER_GRAMMAR, 0, 0},
    {"ember_session_set_grammar", "none", begun_grammar, call_no_grammar, look_session, result_session, clean_session, 0, 0, 0},
    {"ember_session_tokens", "a session's", begun, call_session_tokens, look_session, result_tokens, clean_session, 0, 0, 0},
    {"ember_session_sync", "half of it", half_synced, call_sync, look_session, result_sync, clean_session, 0, 0, 0},
    {"ember_session_sync", "grammar", half_synced_grammar, call_sync, look_session, result_sync, clean_session, 0, 0, 0},
    {"ember_session_clear_interrupt", "one is there", interrupted, call_clear_interrupt, look_session, result_session, clean_session, 0, 0, 1},
    {"ember_session_interrupt", "nothing runs", prompted, call_interrupt, look_session, result_interrupted, clean_session, 0, 0, 1},
    {"ember_session_free", "plain", begun, call_session_free, NULL, NULL, clean_session, 0, 0, 1},
    {"ember_session_free", "grammar", begun_grammar, call_session_free, NULL, NULL, clean_session, 0, 0, 1},
    {"ember_session_free", "started decode", started, call_session_free, NULL, NULL, clean_session, 0, 0, 1},
    {"ember_session_free", "no session", NULL, call_bad_free, NULL, NULL, NULL, EMBER_INVALID_HANDLE, 0, 1},
    {"ember_session_save", "everything", begun, call_save, look_session, result_session, clean_state, 0, 0, 0},
    {"ember_session_save", "grammar", begun_grammar, call_save, look_session, result_session, clean_state, 0, 0, 0},
    {"ember_session_save", "all of sampling", begun_sampling, call_save, look_session, result_session, clean_state, 0, 0, 0},
    {"ember_session_save", "tokens", begun, call_save_tokens, look_session, result_session, clean_state, 0, 0, 0},
    {"ember_session_save_to", "everything", begun, call_save_to, look_session, result_session, clean_state, 0, 0, 0},
    {"ember_session_restore", "everything", saved, call_restore, NULL, result_restored, clean_state, 0, 0, 0},
    {"ember_session_restore", "grammar", saved_grammar, call_restore, NULL, result_restored, clean_state, 0, 0, 0},
    {"ember_session_restore", "all of sampling", saved_sampling, call_restore, NULL, result_restored, clean_state, 0, 0, 0},
    {"ember_session_restore", "tokens", saved_tokens, call_restore, NULL, result_restored, clean_state, 0, 0, 0},
    {"ember_session_restore_from", "everything", saved_in_memory, call_restore_from, NULL, result_restored, clean_state, 0, 0, 0},
    {"ember_session_state_info", "a file's", saved, call_state_info, NULL, NULL, clean_state, 0, 0, 0},
    {"ember_session_erase", "plain", begun, call_erase, look_session, result_session, clean_session, 0, 0, 0},
    {"ember_session_evict", "plain", begun, call_evict, look_session, result_session, clean_session, 0, 0, 0},
    {"ember_session_resume", "plain", evicted, call_resume, NULL, result_session, clean_session, 0, 0, 0},
    {"ember_model_evict", "a model's", begun, call_model_evict, look_session, result_session, clean_session, 0, 0, 0},
    {"ember_model_resume", "a model's", begun, call_model_resume, look_session, result_session, clean_session, 0, 0, 0},
    {"ember_prefill_start", "long", prepare_long, call_prefill_start, look_session, result_prefill_started, clean_session, 0, 0, 0},
    {"ember_prefill_poll", "long", prefill_started, wait_prefill, NULL, result_session, clean_session, 0, 0, 0},
    {"ember_prefill", "short", create, call_prefill, look_session, result_session, clean_session, 0, 0, 0},
    {"ember_prefill", "pieces through parts", prepare_pieces, call_prefill_pieces, look_session, result_session, clean_session_and_model, 0, 0, 0},
    {"ember_prefill", "long", prepare_long, call_prefill_long, look_session, result_session, clean_session, 0, 0, 0},
    {"ember_prefill", "first of a model", prepare_first_prefill, call_prefill_long, look_session, result_session, clean_session_and_model, 0, 0, 0},
    {"ember_prefill", "grammar", begun_grammar, call_prefill, look_session, result_session, clean_session, 0, 0, 0},
    {"ember_prefill", "no such token", prompted, call_bad_token, look_session, result_session, clean_session, EMBER_INVALID_TOKEN, 0, 0},
    {"ember_decode", "first", prompted, call_decode, look_session, result_token, clean_session, 0, 0, 0},
    {"ember_decode", "later", begun, call_decode, look_session, result_token, clean_session, 0, 0, 0},
    {"ember_decode", "all of sampling", begun_sampling, call_decode, look_session, result_token, clean_session, 0, 0, 0},
    {"ember_decode", "first by a grammar", prompted_grammar, call_decode, look_session, result_token, clean_session, 0, 0, 0},
    {"ember_decode", "later by a grammar", begun_grammar, call_decode, look_session, result_token, clean_session, 0, 0, 0},
    {"ember_decode", "later by a free grammar", begun_words, call_decode, look_session, result_token, clean_session, 0, 0, 0},
    {"ember_decode", "no session", NULL, call_bad_session, NULL, NULL, NULL, EMBER_INVALID_HANDLE, 0, 0},
    {"ember_decode_start", "plain", prompted, call_start, look_session, result_started, clean_session, 0, 0, 0},
    {"ember_decode_start", "grammar", prompted_grammar, call_start, look_session, result_started, clean_session, 0, 0, 0},
    {"ember_decode_start_n", "three", prompted, call_start_n, look_session, result_started_n, clean_session, 0, 0, 0},
    {"ember_decode_start_n", "three by a grammar", prompted_grammar, call_start_n, look_session, result_started_n, clean_session, 0, 0, 0},
    {"ember_decode_start_n", "three with drafts of a model", begun_then_drafts, call_start_n, look_session, result_started_ids, clean_session, 0, 0, 0},
    {"ember_decode_poll", "plain", started, call_poll, look_session, result_token, clean_session, 0, 0, 0},
    {"ember_decode_poll", "grammar", started_grammar, call_poll, look_session, result_token, clean_session, 0, 0, 0},
    {"ember_decode_poll", "all of sampling", started_sampling, call_poll, look_session, result_token, clean_session, 0, 0, 0},
    {"ember_decode_batch", "first of a model", prepare_first_batch, call_batch, look_batch, result_several, clean_several_and_model, 0, 0, 0},
    {"ember_decode_batch", "later", prepare_several, call_batch, look_batch, result_several, clean_several, 0, 0, 0},
    {"ember_decode_batch", "grammar and sampling", prepare_several_mixed, call_batch, look_batch, result_several, clean_several, 0, 0, 0},
    {"ember_decode_batch", "with drafts", prepare_several_drafting, call_batch, look_batch, result_several_ids, clean_several, 0, 0, 0},
    {"ember_decode_batch", "later, with drafts", begun_several_drafting, call_batch, look_batch, result_several_ids, clean_several, 0, 0, 0},
    {"ember_tokenize", "short", NULL, call_tokenize, NULL, result_tokens, NULL, 0, 0, 0},
    {"ember_tokenize_with", "by default", NULL, call_tokenize_with, NULL, result_tokens, NULL, 0, 0, 0},
    {"ember_tokenize", "control tokens", NULL, call_tokenize_special, NULL, result_tokens, NULL, 0, 0, 0},
    {"ember_tokenize", "long, buffer too small", prepare_long_text, call_tokenize_long, NULL, result_count, NULL, EMBER_BUFFER_TOO_SMALL, 0, 0},
    {"ember_tokenize", "no model", NULL, call_bad_model, NULL, NULL, NULL, EMBER_INVALID_HANDLE, 0, 0},
    {"ember_tokenize", "no text", NULL, call_bad_utf8, NULL, NULL, NULL, EMBER_INVALID_UTF8, 0, 0},
    {"ember_detokenize", "short", NULL, call_detokenize, NULL, result_text, NULL, 0, 0, 0},
    {"ember_token_text", "a token", NULL, call_token_text, NULL, result_text, NULL, 0, 0, 0},
    {"ember_token_is_end", "a token", NULL, call_is_end, NULL, NULL, NULL, 0, 0, 0},
    {"ember_tokenizer_info", "a model's", NULL, call_tokenizer_info, NULL, result_tokenizer_info, NULL, 0, 0, 0},
    {"ember_end_tokens", "a model's", NULL, call_end_tokens, NULL, result_tokens, NULL, 0, 0, 0},
    {"ember_chat_format", "the model's template", NULL, call_chat_format, NULL, result_text, NULL, 0, 0, 0},
    {"ember_chat_format", "a given template", NULL, call_chat_source, NULL, result_text, NULL, 0, 0, 0},
    {"ember_chat_tokenize", "the model's template", NULL, call_chat_tokenize, NULL, result_tokens, NULL, 0, 0, 0},
    {"ember_generate", "from a prompt", create, call_generate, look_session, result_generate, clean_session, 0, 0, 0},
    {"ember_generate", "behind a context", begun_sampling, call_generate_on, look_session, result_generate, clean_session, 0, 0, 0},
    {"ember_generate", "grammar", begun_grammar, call_generate_on, look_session, result_generate, clean_session, 0, 0, 0},
    {"ember_generate_start", "from a prompt", create, start_generation, look_session, result_generation_started, clean_session, 0, 0, 0},
    {"ember_generate_next", "the first", generation_started, call_generate_next, NULL, result_generation, clean_session, 0, 0, 0},
    {"ember_generate_next", "a later one", generation_half_way, call_generate_next, look_session, result_generation, clean_session, 0, 0, 0},
    {"ember_generate_finish", "half way", generation_half_way, call_generate_end, look_session, result_generate_end, clean_session, 0, 0, 0},
    {"ember_model_load_start", "to its end", NULL, call_load_waited, NULL, result_load, clean_load, 0, 0, 0},
    {"ember_load_poll", "behind its end", load_ended, call_load_poll, NULL, NULL, clean_load_started, EMBER_NOTHING_PENDING, 0, 0},
    {"ember_load_cancel", "behind its end", load_ended, call_load_cancel, NULL, NULL, clean_load_started, 0, 0, 1},
    {"ember_load_free", "behind its end", load_ended, call_load_free, NULL, NULL, clean_load_started, 0, 0, 1},
    {"ember_load_free", "while it runs", load_started, call_load_free, NULL, NULL, clean_load_started, 0, 0, 1},
    {"ember_event_create", "one", NULL, call_event, NULL, look_event, clean_event, 0, 0, 0},
    {"ember_event_handle", "an event's", event_created, call_event_handle, look_event, NULL, clean_event, 0, 0, 1},
    {"ember_event_clear", "an event", event_created, call_event_clear, look_event, NULL, clean_event, 0, 0, 1},
    {"ember_event_free", "an event", event_created, call_event_free, NULL, NULL, clean_event, 0, 0, 1},
    {"ember_group_create", "rank 0", NULL, call_group, NULL, look_group, clean_group, 0, 0, 0},
    {"ember_group_create", "another rank", prepare_join, call_join, NULL, NULL, clean_join, 0, 0, 0},
    {"ember_group_id", "a group's", group_created, call_group_id, NULL, NULL, clean_group, 0, 0, 1},
    {"ember_group_free", "a group", group_created, call_group_free, NULL, NULL, clean_group, 0, 0, 1},
    {"ember_session_set_event", "a session's", session_and_event, call_set_event, look_session, result_session, clean_session_and_event, 0, 0, 0},
    {"ember_session_model", "a session's", prompted, call_session_model, look_session, result_session_model, clean_session_and_model, 0, 0, 0},
    {"ember_decode_batch_start", "first of a model", prepare_first_batch, call_batch_start, look_several, result_batch_started, clean_several_and_model, 0, 0, 0},
    {"ember_decode_batch_start", "grammar and sampling", prepare_several_mixed, call_batch_start, look_several, result_batch_started, clean_several, 0, 0, 0},
    {"ember_decode_batch_start", "with drafts", prepare_several_ngrams, call_batch_start, look_several, result_drafts_started, clean_several, 0, 0, 0},
    {"ember_decode_batch_start", "with drafts of a model", begun_several_models, call_batch_start, look_several, result_drafts_started, clean_several, 0, 0, 0},
    {"ember_adapter_load", "a file", NULL, load_adapter, NULL, look_adapter, clean_adapter, 0, 0, 0},
    {"ember_adapter_load", "a folder of another model", NULL, load_adapter_folder, NULL, NULL, clean_adapter, EMBER_SHAPE_MISMATCH, 0, 0},
    {"ember_adapter_info", "an adapter's", prepare_adapter, call_adapter_info, NULL, look_adapter, clean_adapter, 0, 0, 1},
    {"ember_adapter_free", "an adapter", prepare_adapter, call_adapter_free, NULL, NULL, clean_adapter, 0, 0, 1},
    {"ember_session_set_adapters", "one", session_and_adapter, call_set_adapters, look_session, result_session, clean_session_and_adapter, 0, 0, 0},
    {"ember_embedder_create", "means", NULL, create_embedder, NULL, look_embedder, clean_embedder, 0, 0, 0},
    {"ember_embedder_create", "with an adapter", prepare_adapter, create_adapted_embedder, NULL, look_embedder, clean_adapted_embedder, 0, 0, 0},
    {"ember_embedder_info", "an embedder's", prepare_embedder, call_embedder_info, NULL, look_embedder, clean_embedder, 0, 0, 0},
    {"ember_embed", "two texts", prepare_embedder, call_embed, look_embedder, result_vectors, clean_embedder, 0, 0, 0},
    {"ember_embed", "two texts, with an adapter", prepare_adapted_embedder, call_embed, look_embedder, result_vectors, clean_adapted_embedder, 0, 0, 0},
    {"ember_embed", "buffer too small", prepare_embedder, call_embed_small, look_embedder, NULL, clean_embedder, EMBER_BUFFER_TOO_SMALL, 0, 0},
    {"ember_embed_tokens", "two texts", prepare_embedder, call_embed_tokens, look_embedder, result_vectors, clean_embedder, 0, 0, 0},
    {"ember_rerank", "by vectors", prepare_embedder, call_rerank, look_embedder, NULL, clean_embedder, EMBER_INVALID_ARGUMENT, 0, 0},
    {"ember_embedder_interrupt", "nothing runs", prepare_embedder, call_embedder_interrupt, NULL, NULL, clean_embedder, 0, 0, 1},
    {"ember_embedder_free", "an embedder", prepare_embedder, call_embedder_free, NULL, NULL, clean_embedder, 0, 0, 1},
    {"ember_text_stream_create", "with stops", NULL, call_stream, NULL, look_stream, clean_stream, 0, 0, 0},
    {"ember_text_stream_push", "four tokens", create_stream, call_push, look_stream, result_push, clean_stream, 0, 0, 0},
    {"ember_text_stream_finish", "a stream", create_stream, call_finish, look_stream, result_text, clean_stream, 0, 0, 0},
    {"ember_text_stream_finish", "no stream", NULL, call_bad_stream, NULL, NULL, NULL, EMBER_INVALID_HANDLE, 0, 0},
    {"ember_text_stream_info", "a stream", create_stream, call_stream_info, NULL, look_stream, clean_stream, 0, 0, 1},
    {"ember_text_stream_free", "a stream", create_stream, call_stream_free, NULL, NULL, clean_stream, 0, 0, 1},
    {0},
};
