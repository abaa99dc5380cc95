/* Generated from include/emberlm.h by bindings/common/generate.py (`make bindings`). Do not edit.
 *
 * The functions that take or give handles, with numbers (uintptr_t) in place of the handles, and of what is handed to callbacks: Go
 * takes a value of a pointer type for an address. */
#ifndef EMBERLM_GO_SHIM_H
#define EMBERLM_GO_SHIM_H

#include <emberlm.h>

static inline ember_status go_ember_set_log_callback(ember_log_fn callback, uintptr_t user, int32_t level, struct ember_error *err)
{
    return ember_set_log_callback(callback, (void *)user, level, err);
}

static inline ember_status go_ember_group_create(const struct ember_group_options *options, uintptr_t *out, struct ember_error *err)
{
    return ember_group_create(options, (struct ember_group **)out, err);
}

static inline ember_status go_ember_group_id(uintptr_t group, char *id, size_t capacity, size_t *len, struct ember_error *err)
{
    return ember_group_id((struct ember_group *)group, id, capacity, len, err);
}

static inline ember_status go_ember_group_free(uintptr_t group)
{
    return ember_group_free((struct ember_group *)group);
}

static inline ember_status go_ember_model_load(const char *path, size_t path_len, const struct ember_model_options *options, uintptr_t *out, struct ember_error *err)
{
    return ember_model_load(path, path_len, options, (struct ember_model **)out, err);
}

static inline ember_status go_ember_model_info(uintptr_t model, struct ember_model_details *out, struct ember_error *err)
{
    return ember_model_info((struct ember_model *)model, out, err);
}

static inline ember_status go_ember_model_part_info(uintptr_t model, size_t index, struct ember_part_details *out, struct ember_error *err)
{
    return ember_model_part_info((struct ember_model *)model, index, out, err);
}

static inline ember_status go_ember_model_free(uintptr_t model)
{
    return ember_model_free((struct ember_model *)model);
}

static inline ember_status go_ember_model_load_from(const struct ember_model_source *source, const struct ember_model_options *options, uintptr_t *out, struct ember_error *err)
{
    return ember_model_load_from(source, options, (struct ember_model **)out, err);
}

static inline ember_status go_ember_model_metadata(uintptr_t model, const char *key, size_t key_len, char *value, size_t capacity, size_t *len, struct ember_error *err)
{
    return ember_model_metadata((struct ember_model *)model, key, key_len, value, capacity, len, err);
}

static inline ember_status go_ember_model_metadata_key(uintptr_t model, size_t index, char *key, size_t capacity, size_t *len, struct ember_error *err)
{
    return ember_model_metadata_key((struct ember_model *)model, index, key, capacity, len, err);
}

static inline ember_status go_ember_session_set_sampling(uintptr_t session, const struct ember_sampling_options *options, struct ember_error *err)
{
    return ember_session_set_sampling((struct ember_session *)session, options, err);
}

static inline ember_status go_ember_session_logprobs(uintptr_t session, float *chosen, uint32_t *tokens, float *logprobs, size_t capacity, size_t *count, struct ember_error *err)
{
    return ember_session_logprobs((struct ember_session *)session, chosen, tokens, logprobs, capacity, count, err);
}

static inline ember_status go_ember_session_create(uintptr_t model, const struct ember_session_options *options, uintptr_t *out, struct ember_error *err)
{
    return ember_session_create((struct ember_model *)model, options, (struct ember_session **)out, err);
}

static inline ember_status go_ember_session_info(uintptr_t session, struct ember_session_details *out, struct ember_error *err)
{
    return ember_session_info((struct ember_session *)session, out, err);
}

static inline ember_status go_ember_session_model(uintptr_t session, uintptr_t *model, struct ember_error *err)
{
    return ember_session_model((struct ember_session *)session, (struct ember_model **)model, err);
}

static inline ember_status go_ember_session_position(uintptr_t session, size_t *position, struct ember_error *err)
{
    return ember_session_position((struct ember_session *)session, position, err);
}

static inline ember_status go_ember_session_rewind(uintptr_t session, size_t position, struct ember_error *err)
{
    return ember_session_rewind((struct ember_session *)session, position, err);
}

static inline ember_status go_ember_session_fork(uintptr_t session, uintptr_t *out, struct ember_error *err)
{
    return ember_session_fork((struct ember_session *)session, (struct ember_session **)out, err);
}

static inline ember_status go_ember_session_logits(uintptr_t session, float *out, size_t capacity, struct ember_error *err)
{
    return ember_session_logits((struct ember_session *)session, out, capacity, err);
}

static inline ember_status go_ember_session_interrupt(uintptr_t session)
{
    return ember_session_interrupt((struct ember_session *)session);
}

static inline ember_status go_ember_session_clear_interrupt(uintptr_t session)
{
    return ember_session_clear_interrupt((struct ember_session *)session);
}

static inline ember_status go_ember_session_free(uintptr_t session)
{
    return ember_session_free((struct ember_session *)session);
}

static inline ember_status go_ember_session_tokens(uintptr_t session, size_t from, uint32_t *tokens, size_t capacity, size_t *count, struct ember_error *err)
{
    return ember_session_tokens((struct ember_session *)session, from, tokens, capacity, count, err);
}

static inline ember_status go_ember_session_sync(uintptr_t session, const uint32_t *tokens, size_t count, size_t *kept, struct ember_error *err)
{
    return ember_session_sync((struct ember_session *)session, tokens, count, kept, err);
}

static inline ember_status go_ember_event_create(uintptr_t *out, struct ember_error *err)
{
    return ember_event_create((struct ember_event **)out, err);
}

static inline ember_status go_ember_event_handle(uintptr_t event, int64_t *handle, struct ember_error *err)
{
    return ember_event_handle((struct ember_event *)event, handle, err);
}

static inline ember_status go_ember_event_clear(uintptr_t event, struct ember_error *err)
{
    return ember_event_clear((struct ember_event *)event, err);
}

static inline ember_status go_ember_event_free(uintptr_t event)
{
    return ember_event_free((struct ember_event *)event);
}

static inline ember_status go_ember_session_set_event(uintptr_t session, uintptr_t event, struct ember_error *err)
{
    return ember_session_set_event((struct ember_session *)session, (struct ember_event *)event, err);
}

static inline ember_status go_ember_model_load_start(const char *path, size_t path_len, const struct ember_model_options *options, uintptr_t event, uintptr_t *out, struct ember_error *err)
{
    return ember_model_load_start(path, path_len, options, (struct ember_event *)event, (struct ember_load **)out, err);
}

static inline ember_status go_ember_load_poll(uintptr_t load, float *fraction, uintptr_t *model, struct ember_error *err)
{
    return ember_load_poll((struct ember_load *)load, fraction, (struct ember_model **)model, err);
}

static inline ember_status go_ember_load_cancel(uintptr_t load)
{
    return ember_load_cancel((struct ember_load *)load);
}

static inline ember_status go_ember_load_free(uintptr_t load)
{
    return ember_load_free((struct ember_load *)load);
}

static inline ember_status go_ember_prefill(uintptr_t session, const uint32_t *tokens, size_t count, struct ember_error *err)
{
    return ember_prefill((struct ember_session *)session, tokens, count, err);
}

static inline ember_status go_ember_prefill_start(uintptr_t session, const uint32_t *tokens, size_t count, struct ember_error *err)
{
    return ember_prefill_start((struct ember_session *)session, tokens, count, err);
}

static inline ember_status go_ember_prefill_poll(uintptr_t session, size_t *evaluated, struct ember_error *err)
{
    return ember_prefill_poll((struct ember_session *)session, evaluated, err);
}

static inline ember_status go_ember_decode(uintptr_t session, struct ember_token *token, struct ember_error *err)
{
    return ember_decode((struct ember_session *)session, token, err);
}

static inline ember_status go_ember_decode_start(uintptr_t session, struct ember_error *err)
{
    return ember_decode_start((struct ember_session *)session, err);
}

static inline ember_status go_ember_decode_start_n(uintptr_t session, size_t count, struct ember_error *err)
{
    return ember_decode_start_n((struct ember_session *)session, count, err);
}

static inline ember_status go_ember_decode_poll(uintptr_t session, struct ember_token *token, struct ember_error *err)
{
    return ember_decode_poll((struct ember_session *)session, token, err);
}

static inline ember_status go_ember_decode_batch(const uintptr_t *sessions, size_t count, struct ember_token *tokens, struct ember_error *err)
{
    return ember_decode_batch((struct ember_session *const *)sessions, count, tokens, err);
}

static inline ember_status go_ember_decode_batch_start(const uintptr_t *sessions, size_t count, struct ember_error *err)
{
    return ember_decode_batch_start((struct ember_session *const *)sessions, count, err);
}

static inline ember_status go_ember_session_save(uintptr_t session, const char *path, size_t path_len, const struct ember_save_options *options, struct ember_error *err)
{
    return ember_session_save((struct ember_session *)session, path, path_len, options, err);
}

static inline ember_status go_ember_session_save_to(uintptr_t session, ember_write_fn write, uintptr_t user, const struct ember_save_options *options, struct ember_error *err)
{
    return ember_session_save_to((struct ember_session *)session, write, (void *)user, options, err);
}

static inline ember_status go_ember_session_restore(uintptr_t model, const char *path, size_t path_len, const struct ember_restore_options *options, uintptr_t *out, struct ember_error *err)
{
    return ember_session_restore((struct ember_model *)model, path, path_len, options, (struct ember_session **)out, err);
}

static inline ember_status go_ember_session_restore_from(uintptr_t model, ember_read_fn read, uintptr_t user, const struct ember_restore_options *options, uintptr_t *out, struct ember_error *err)
{
    return ember_session_restore_from((struct ember_model *)model, read, (void *)user, options, (struct ember_session **)out, err);
}

static inline ember_status go_ember_session_erase(uintptr_t session, size_t from, size_t count, struct ember_error *err)
{
    return ember_session_erase((struct ember_session *)session, from, count, err);
}

static inline ember_status go_ember_session_evict(uintptr_t session, struct ember_error *err)
{
    return ember_session_evict((struct ember_session *)session, err);
}

static inline ember_status go_ember_session_resume(uintptr_t session, struct ember_error *err)
{
    return ember_session_resume((struct ember_session *)session, err);
}

static inline ember_status go_ember_model_evict(uintptr_t model, struct ember_error *err)
{
    return ember_model_evict((struct ember_model *)model, err);
}

static inline ember_status go_ember_model_resume(uintptr_t model, struct ember_error *err)
{
    return ember_model_resume((struct ember_model *)model, err);
}

static inline ember_status go_ember_session_set_grammar(uintptr_t session, uint32_t kind, const char *text, size_t len, const struct ember_grammar_options *options, struct ember_error *err)
{
    return ember_session_set_grammar((struct ember_session *)session, kind, text, len, options, err);
}

static inline ember_status go_ember_session_set_speculation(uintptr_t session, const struct ember_speculation_options *options, struct ember_error *err)
{
    return ember_session_set_speculation((struct ember_session *)session, options, err);
}

static inline ember_status go_ember_session_speculation_info(uintptr_t session, struct ember_speculation_details *out, struct ember_error *err)
{
    return ember_session_speculation_info((struct ember_session *)session, out, err);
}

static inline ember_status go_ember_session_profile(uintptr_t session, struct ember_profile_entry *entries, size_t capacity, size_t *count, struct ember_error *err)
{
    return ember_session_profile((struct ember_session *)session, entries, capacity, count, err);
}

static inline ember_status go_ember_tokenize(uintptr_t model, const char *text, size_t len, uint32_t flags, uint32_t *tokens, size_t capacity, size_t *count, struct ember_error *err)
{
    return ember_tokenize((struct ember_model *)model, text, len, flags, tokens, capacity, count, err);
}

static inline ember_status go_ember_tokenize_with(uintptr_t model, const char *text, size_t len, const struct ember_tokenize_options *options, uint32_t *tokens, size_t capacity, size_t *count, struct ember_error *err)
{
    return ember_tokenize_with((struct ember_model *)model, text, len, options, tokens, capacity, count, err);
}

static inline ember_status go_ember_detokenize(uintptr_t model, const uint32_t *tokens, size_t count, uint32_t flags, char *text, size_t capacity, size_t *len, struct ember_error *err)
{
    return ember_detokenize((struct ember_model *)model, tokens, count, flags, text, capacity, len, err);
}

static inline ember_status go_ember_token_text(uintptr_t model, uint32_t token, char *text, size_t capacity, size_t *len, struct ember_error *err)
{
    return ember_token_text((struct ember_model *)model, token, text, capacity, len, err);
}

static inline ember_status go_ember_token_is_end(uintptr_t model, uint32_t token, uint32_t *is_end, struct ember_error *err)
{
    return ember_token_is_end((struct ember_model *)model, token, is_end, err);
}

static inline ember_status go_ember_tokenizer_info(uintptr_t model, struct ember_tokenizer_details *out, struct ember_error *err)
{
    return ember_tokenizer_info((struct ember_model *)model, out, err);
}

static inline ember_status go_ember_end_tokens(uintptr_t model, uint32_t *tokens, size_t capacity, size_t *count, struct ember_error *err)
{
    return ember_end_tokens((struct ember_model *)model, tokens, capacity, count, err);
}

static inline ember_status go_ember_text_stream_create(uintptr_t model, const struct ember_text_stream_options *options, uintptr_t *out, struct ember_error *err)
{
    return ember_text_stream_create((struct ember_model *)model, options, (struct ember_text_stream **)out, err);
}

static inline ember_status go_ember_text_stream_push(uintptr_t stream, const uint32_t *tokens, size_t count, char *text, size_t capacity, size_t *len, struct ember_error *err)
{
    return ember_text_stream_push((struct ember_text_stream *)stream, tokens, count, text, capacity, len, err);
}

static inline ember_status go_ember_text_stream_finish(uintptr_t stream, char *text, size_t capacity, size_t *len, struct ember_error *err)
{
    return ember_text_stream_finish((struct ember_text_stream *)stream, text, capacity, len, err);
}

static inline ember_status go_ember_text_stream_info(uintptr_t stream, struct ember_text_stream_details *out, struct ember_error *err)
{
    return ember_text_stream_info((struct ember_text_stream *)stream, out, err);
}

static inline ember_status go_ember_text_stream_free(uintptr_t stream)
{
    return ember_text_stream_free((struct ember_text_stream *)stream);
}

static inline ember_status go_ember_generate(uintptr_t session, const struct ember_generate_options *options, struct ember_generate_details *out, struct ember_error *err)
{
    return ember_generate((struct ember_session *)session, options, out, err);
}

static inline ember_status go_ember_generate_start(uintptr_t session, const struct ember_generate_options *options, struct ember_error *err)
{
    return ember_generate_start((struct ember_session *)session, options, err);
}

static inline ember_status go_ember_generate_next(uintptr_t session, uint32_t flags, char *text, size_t capacity, size_t *len, struct ember_token *token, struct ember_error *err)
{
    return ember_generate_next((struct ember_session *)session, flags, text, capacity, len, token, err);
}

static inline ember_status go_ember_generate_finish(uintptr_t session, struct ember_generate_details *out, struct ember_error *err)
{
    return ember_generate_finish((struct ember_session *)session, out, err);
}

static inline ember_status go_ember_embedder_create(uintptr_t model, const struct ember_embedder_options *options, uintptr_t *out, struct ember_error *err)
{
    return ember_embedder_create((struct ember_model *)model, options, (struct ember_embedder **)out, err);
}

static inline ember_status go_ember_embedder_info(uintptr_t embedder, struct ember_embedder_details *out, struct ember_error *err)
{
    return ember_embedder_info((struct ember_embedder *)embedder, out, err);
}

static inline ember_status go_ember_embed(uintptr_t embedder, const struct ember_text *texts, size_t count, float *out, size_t capacity, size_t *written, struct ember_error *err)
{
    return ember_embed((struct ember_embedder *)embedder, texts, count, out, capacity, written, err);
}

static inline ember_status go_ember_embed_tokens(uintptr_t embedder, const uint32_t *tokens, size_t token_count, const size_t *counts, size_t count, float *out, size_t capacity, size_t *written, struct ember_error *err)
{
    return ember_embed_tokens((struct ember_embedder *)embedder, tokens, token_count, counts, count, out, capacity, written, err);
}

static inline ember_status go_ember_rerank(uintptr_t embedder, const char *query, size_t query_len, const struct ember_text *documents, size_t count, float *scores, size_t capacity, size_t *written, struct ember_error *err)
{
    return ember_rerank((struct ember_embedder *)embedder, query, query_len, documents, count, scores, capacity, written, err);
}

static inline ember_status go_ember_embedder_interrupt(uintptr_t embedder)
{
    return ember_embedder_interrupt((struct ember_embedder *)embedder);
}

static inline ember_status go_ember_embedder_free(uintptr_t embedder)
{
    return ember_embedder_free((struct ember_embedder *)embedder);
}

static inline ember_status go_ember_adapter_load(uintptr_t model, const char *path, size_t path_len, uintptr_t *out, struct ember_error *err)
{
    return ember_adapter_load((struct ember_model *)model, path, path_len, (struct ember_adapter **)out, err);
}

static inline ember_status go_ember_adapter_info(uintptr_t adapter, struct ember_adapter_details *out, struct ember_error *err)
{
    return ember_adapter_info((struct ember_adapter *)adapter, out, err);
}

static inline ember_status go_ember_adapter_free(uintptr_t adapter)
{
    return ember_adapter_free((struct ember_adapter *)adapter);
}

static inline ember_status go_ember_session_set_adapters(uintptr_t session, const struct ember_adapter_use *adapters, size_t count, uint32_t flags, struct ember_error *err)
{
    return ember_session_set_adapters((struct ember_session *)session, adapters, count, flags, err);
}

static inline ember_status go_ember_chat_format(uintptr_t model, const char *json, size_t json_len, const struct ember_chat_options *options, char *text, size_t capacity, size_t *len, struct ember_error *err)
{
    return ember_chat_format((struct ember_model *)model, json, json_len, options, text, capacity, len, err);
}

static inline ember_status go_ember_chat_tokenize(uintptr_t model, const char *json, size_t json_len, const struct ember_chat_options *options, uint32_t *tokens, size_t capacity, size_t *count, struct ember_error *err)
{
    return ember_chat_tokenize((struct ember_model *)model, json, json_len, options, tokens, capacity, count, err);
}

#endif
