/* One function for each of the library's: makes a call with random arguments, and notes what it changed. */
#ifndef CALLS_CALLS_H
#define CALLS_CALLS_H

#include "world.h"
#include <algorithm>

namespace calls {

void create_session(World &w);
void set_sampling(World &w);
void logprobs(World &w);
void session_info(World &w);
void position(World &w);
void rewind(World &w);
void fork(World &w);
void logits(World &w);
void interrupt(World &w);
void free_session(World &w);
void prefill(World &w);
void prefill_start(World &w);
void prefill_poll(World &w);
void decode(World &w);
void decode_start(World &w);
void decode_start_n(World &w);
void decode_poll(World &w);
void decode_batch(World &w);
void decode_batch_start(World &w);
void generate_start(World &w);
void generate_next(World &w);
void generate_end(World &w);
void set_event(World &w);
void session_model(World &w);
void erase(World &w);
void evict(World &w);
void resume(World &w);
void profile(World &w);
void set_grammar(World &w);
void set_speculation(World &w);
void speculation_info(World &w);
void session_tokens(World &w);
void sync(World &w);
void generate(World &w);
void clear_interrupt(World &w);
void save(World &w);
void save_to(World &w);
void restore(World &w);
void restore_from(World &w);
void state_info(World &w);

void abi_version(World &w);
void version(World &w);
void version_number(World &w);
void status_name(World &w);
void set_log_callback(World &w);
void device_count(World &w);
void device_info(World &w);
void create_event(World &w);
void event_handle(World &w);
void clear_event(World &w);
void free_event(World &w);
void create_group(World &w);
void group_id(World &w);
void free_group(World &w);
void start_load(World &w);
void poll_load(World &w);
void cancel_load(World &w);
void free_load(World &w);
void load_model(World &w);
void load_model_from(World &w);
void model_info(World &w);
void model_part_info(World &w);
void metadata(World &w);
void metadata_key(World &w);
void tokenizer_info(World &w);
void end_tokens(World &w);
void supported(World &w);
void free_model(World &w);
void estimate(World &w);
void evict_model(World &w);
void resume_model(World &w);
void tokenize(World &w);
void tokenize_with(World &w);
void detokenize(World &w);
void token_text(World &w);
void token_is_end(World &w);
void create_stream(World &w);
void push(World &w);
void finish(World &w);
void stream_info(World &w);
void free_stream(World &w);
void load_adapter(World &w);
void adapter_info(World &w);
void set_adapters(World &w);
void free_adapter(World &w);
void create_embedder(World &w);
void embedder_info(World &w);
void embed(World &w);
void embed_tokens(World &w);
void rerank(World &w);
void interrupt_embedder(World &w);
void free_embedder(World &w);
void chat_format(World &w);
void chat_tokenize(World &w);

}

#endif
