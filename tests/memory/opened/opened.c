/* The first call of a thread into a library that was opened with dlopen, when there is no memory: glibc has not made the
 * thread's variables of the library yet.
 *
 *     opened libemberlm.so */
#define _GNU_SOURCE
#include "../inject.h"
#include <dlfcn.h>
#include <emberlm.h>
#include <pthread.h>
#include <stdio.h>

static ember_status (*count_devices)(uint32_t *, ember_error *);
static ember_status (*free_session)(ember_session *);

/* Whether all is as it should be. */
static void *first_calls(void *unused) {
    static int fine;
    uint32_t count = 77;
    ember_error err;
    ember_status refused, freed, worked;
    inject_start(1, INJECT_FROM_THEN_ON);
    refused = count_devices(&count, &err);
    freed = free_session(NULL);
    inject_stop();
    if (refused != EMBER_OUT_OF_MEMORY || err.code != refused || !err.message[0] || count != 77) return unused;
    if (freed != EMBER_OUT_OF_MEMORY) return unused;
    worked = count_devices(&count, &err);
    if (worked != EMBER_OK || count == 77) return unused;
    /* It is not the first call any more. */
    inject_start(1, INJECT_FROM_THEN_ON);
    worked = count_devices(&count, &err);
    freed = free_session(NULL);
    inject_stop();
    return worked == EMBER_OK && freed == EMBER_OK ? &fine : unused;
}

int main(int argc, char **argv) {
    pthread_t thread;
    void *result = NULL, *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (!library) {
        fprintf(stderr, "%s\n", argc > 1 ? dlerror() : "usage: opened LIBRARY");
        return 2;
    }
    *(void **)&count_devices = dlsym(library, "ember_device_count");
    *(void **)&free_session = dlsym(library, "ember_session_free");
    if (pthread_create(&thread, NULL, first_calls, NULL) || pthread_join(thread, &result)) return 2;
    printf("first calls of a thread into an opened library: %s\n", result ? "as they should be" : "FAILED");
    return result == NULL;
}
