#define _GNU_SOURCE
#include "inject.h"
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static atomic_int armed;
static atomic_long requests, fails_at, refusals;
static atomic_int goes_on;

void inject_start(long n, enum inject_mode mode) {
    atomic_store(&requests, 0);
    atomic_store(&refusals, 0);
    atomic_store(&fails_at, n);
    atomic_store(&goes_on, mode == INJECT_FROM_THEN_ON);
    atomic_store(&armed, 1);
}

long inject_stop(void) {
    atomic_store(&armed, 0);
    return atomic_load(&requests);
}

static int fails(void) {
    long n, at;
    if (!atomic_load(&armed)) return 0;
    n = atomic_fetch_add(&requests, 1) + 1;
    at = atomic_load(&fails_at);
    if (!at || (n != at && !(n > at && atomic_load(&goes_on)))) return 0;
    atomic_fetch_add(&refusals, 1);
    return 1;
}

long inject_refused(void) { return atomic_load(&refusals); }

static void *refused(void) {
    errno = ENOMEM;
    return NULL;
}

void *malloc(size_t size) { return fails() ? refused() : __libc_malloc(size); }
void *calloc(size_t n, size_t size) { return fails() ? refused() : __libc_calloc(n, size); }
void *realloc(void *p, size_t size) { return fails() ? refused() : __libc_realloc(p, size); }
void *memalign(size_t align, size_t size) { return fails() ? refused() : __libc_memalign(align, size); }
void *aligned_alloc(size_t align, size_t size) { return memalign(align, size); }

int posix_memalign(void **out, size_t align, size_t size) {
    void *p = fails() ? NULL : __libc_memalign(align, size);
    if (!p) return ENOMEM;
    *out = p;
    return 0;
}

void *mmap(void *address, size_t len, int protection, int flags, int fd, off_t offset) {
    if (fails()) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return (void *)syscall(SYS_mmap, address, len, protection, flags, fd, offset);
}

void *mmap64(void *address, size_t len, int protection, int flags, int fd, off_t offset) {
    return mmap(address, len, protection, flags, fd, offset);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
    typedef int create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    static _Atomic(create *) next;
    if (!atomic_load(&next)) atomic_store(&next, (create *)dlsym(RTLD_NEXT, "pthread_create"));
    return fails() ? EAGAIN : atomic_load(&next)(thread, attributes, start, argument);
}
