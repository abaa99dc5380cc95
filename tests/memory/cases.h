/* What is done while memory fails: each function of the header, in states that make it do different things. */
#ifndef CASES_H
#define CASES_H

#include <emberlm.h>

/* One call. All functions but `call` run while nothing fails; any but `call` may be NULL. */
typedef struct memory_case {
    /* The function of the header that it is about, and what is special here. */
    const char *function, *variant;
    /* Makes what `call` needs; runs before each try. */
    void (*prepare)(void);
    /* The call under test. */
    ember_status (*call)(ember_error *err);
    /* What can be seen of the state: the same before a call and after one that failed. */
    uint64_t (*look)(void);
    /* What the call has given, and what comes of it, after it succeeded. */
    uint64_t (*result)(void);
    /* Frees what `prepare` and `call` have made; after failures `call` has made nothing. */
    void (*clean)(void);
    /* What the call ends with when memory is there. */
    ember_status wanted;
    /* The library has to be in its first call: each try has a process of its own. */
    int fresh;
    /* Has to succeed whatever fails. */
    int never_fails;
} memory_case;

/* Ends with a case without a function. */
extern const memory_case CASES[];

/* Loads the model that most cases share, unless a case of a process of its own does that itself. */
void cases_begin(const char *model_path, int with_model);

#endif
