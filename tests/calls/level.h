/* What the process holds: blocks of malloc, mappings, threads, files. */
#ifndef CALLS_LEVEL_H
#define CALLS_LEVEL_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct level {
    long blocks, bytes, mapped, threads, files;
} level;

level level_now(void);

#ifdef __cplusplus
}
#endif

#endif
