/* Calls with the faults that the memory test is there to find. */
#include "cases.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *volatile held;
static uint64_t state;

static void prepare(void) { state = 0; }
static uint64_t look(void) { return state; }
static void clean(void) {
    free(held);
    held = NULL;
}

static ember_status report(ember_error *err, ember_status status) {
    err->code = status;
    strcpy(err->message, status ? "no memory" : "");
    return status;
}

static ember_status without(ember_error *err) {
    held = malloc(100);
    if (!held) return report(err, EMBER_OUT_OF_MEMORY);
    state = 1;
    return report(err, EMBER_OK);
}
static ember_status aborts(ember_error *err) {
    held = malloc(100);
    if (!held) abort();
    return report(err, EMBER_OK);
}
static ember_status writes_to_null(ember_error *err) {
    held = malloc(100);
    *(volatile char *)held = 1;
    return report(err, EMBER_OK);
}
static ember_status prints(ember_error *err) {
    static const char TEXT[] = "memory allocation of 100 bytes failed\n";
    held = malloc(100);
    if (!held && write(2, TEXT, sizeof TEXT - 1) >= 0) return report(err, EMBER_OUT_OF_MEMORY);
    return report(err, EMBER_OK);
}
static ember_status changes_state(ember_error *err) {
    state = 1;
    return without(err);
}
static ember_status another_status(ember_error *err) {
    return without(err) == EMBER_OK ? EMBER_OK : report(err, EMBER_INTERNAL);
}
static ember_status says_nothing(ember_error *err) {
    ember_status status = without(err);
    err->message[0] = 0;
    return status;
}
static ember_status another_result(ember_error *err) {
    ember_status status = without(err);
    if (status == EMBER_OK) return status;
    state = 2;
    return report(err, EMBER_OK);
}
static ember_status never_again(ember_error *err) {
    static int failed;
    if (failed || without(err) != EMBER_OK) {
        failed = 1;
        return report(err, EMBER_OUT_OF_MEMORY);
    }
    return EMBER_OK;
}

/* The variant "none" has to pass, all others have to fail. */
const memory_case DEFECTS[] = {
    {"defect", "none", prepare, without, look, look, clean, 0, 0, 0},
    {"defect", "aborts", prepare, aborts, look, look, clean, 0, 0, 0},
    {"defect", "writes to NULL", prepare, writes_to_null, look, look, clean, 0, 0, 0},
    {"defect", "prints", prepare, prints, look, look, clean, 0, 0, 0},
    {"defect", "changes the state", prepare, changes_state, look, look, clean, 0, 0, 0},
    {"defect", "another status", prepare, another_status, look, look, clean, 0, 0, 0},
    {"defect", "no message", prepare, says_nothing, look, look, clean, 0, 0, 0},
    {"defect", "another result", prepare, another_result, look, look, clean, 0, 0, 0},
    {"defect", "fails for good", prepare, never_again, look, look, clean, 0, 0, 0},
    {0},
};
