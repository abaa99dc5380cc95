#ifndef EMBERLM_GO_CALLBACKS_H
#define EMBERLM_GO_CALLBACKS_H

#include <emberlm.h>

int32_t emberlm_go_progress(void *user, float fraction);
int32_t emberlm_go_read_at(void *user, uint64_t offset, void *bytes, size_t count);
int32_t emberlm_go_write(void *user, const void *bytes, size_t count);
int32_t emberlm_go_read(void *user, void *bytes, size_t capacity, size_t *count);
int32_t emberlm_go_piece(void *user, const char *text, size_t len, const ember_token *token);
void emberlm_go_log(void *user, int32_t level, const char *message, size_t len);

#endif
