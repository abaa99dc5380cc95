/* Defects that the sanitizers must find in a program that is built and run as the tests are: defects NAME. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int shared;

static void *count(void *unused) {
    int i;
    for (i = 0; i < 1000; i++) shared++;
    return unused;
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    volatile char *block = malloc(8);
    if (!block) return 2;
    block[argc] = 1;
    if (!strcmp(name, "overflow")) block[7 + argc - 1] = 1;
    if (!strcmp(name, "use-after-free")) {
        free((char *)block);
        return block[argc];
    }
    if (!strcmp(name, "leak")) {
        block = NULL;
        return 0;
    }
    if (!strcmp(name, "race")) {
        pthread_t threads[2];
        if (pthread_create(&threads[0], NULL, count, NULL) || pthread_create(&threads[1], NULL, count, NULL)) return 2;
        pthread_join(threads[0], NULL);
        pthread_join(threads[1], NULL);
    }
    free((char *)block);
    return 0;
}
