/* Callbacks of the library: what they are handed is a number (cgo.Handle), not an address. */
#include "callbacks.h"

#include "_cgo_export.h"

int32_t emberlm_go_progress(void *user, float fraction)
{
    return emberlmGoProgress((uintptr_t)user, fraction);
}

int32_t emberlm_go_read_at(void *user, uint64_t offset, void *bytes, size_t count)
{
    return emberlmGoReadAt((uintptr_t)user, offset, bytes, count);
}

int32_t emberlm_go_write(void *user, const void *bytes, size_t count)
{
    return emberlmGoWrite((uintptr_t)user, (void *)bytes, count);
}

int32_t emberlm_go_read(void *user, void *bytes, size_t capacity, size_t *count)
{
    return emberlmGoRead((uintptr_t)user, bytes, capacity, count);
}

int32_t emberlm_go_piece(void *user, const char *text, size_t len, const ember_token *token)
{
    return emberlmGoPiece((uintptr_t)user, (char *)text, len, (ember_token *)token);
}

void emberlm_go_log(void *user, int32_t level, const char *message, size_t len)
{
    (void)user;
    emberlmGoLog(level, (char *)message, len);
}
