/* The program's own malloc and mmap take the place of libc's, as glibc allows, and count. Sanitizers bring theirs; the level is
 * that of threads and files alone then, and leaks are the sanitizer's to find. */
#define _GNU_SOURCE
#include "level.h"
#include <dirent.h>
#include <stdatomic.h>
#include <stddef.h>

static atomic_long blocks, bytes, mapped;

#ifndef WITH_SANITIZER
#include <errno.h>
#include <malloc.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static void *counted(void *p) {
    if (p) {
        atomic_fetch_add(&blocks, 1);
        atomic_fetch_add(&bytes, (long)malloc_usable_size(p));
    }
    return p;
}

static void gone(void *p) {
    if (p) {
        atomic_fetch_sub(&blocks, 1);
        atomic_fetch_sub(&bytes, (long)malloc_usable_size(p));
    }
}

void *malloc(size_t size) { return counted(__libc_malloc(size)); }
void *calloc(size_t n, size_t size) { return counted(__libc_calloc(n, size)); }
void *memalign(size_t align, size_t size) { return counted(__libc_memalign(align, size)); }
void *aligned_alloc(size_t align, size_t size) { return memalign(align, size); }
void free(void *p) {
    gone(p);
    __libc_free(p);
}
void *realloc(void *p, size_t size) {
    size_t before = p ? malloc_usable_size(p) : 0;
    void *grown = __libc_realloc(p, size);
    if (grown || !size) {
        if (p) {
            atomic_fetch_sub(&blocks, 1);
            atomic_fetch_sub(&bytes, (long)before);
        }
        counted(grown);
    }
    return grown;
}
int posix_memalign(void **out, size_t align, size_t size) {
    void *p = memalign(align, size);
    if (!p) return ENOMEM;
    *out = p;
    return 0;
}

void *mmap(void *address, size_t len, int protection, int flags, int fd, off_t offset) {
    void *p = (void *)syscall(SYS_mmap, address, len, protection, flags, fd, offset);
    if (p != MAP_FAILED && !(flags & MAP_FIXED)) atomic_fetch_add(&mapped, (long)((len + 4095) & ~(size_t)4095));
    return p;
}
void *mmap64(void *address, size_t len, int protection, int flags, int fd, off_t offset) {
    return mmap(address, len, protection, flags, fd, offset);
}
int munmap(void *address, size_t len) {
    int result = (int)syscall(SYS_munmap, address, len);
    if (!result) atomic_fetch_sub(&mapped, (long)((len + 4095) & ~(size_t)4095));
    return result;
}
#endif

static long entries(const char *folder) {
    long n = 0;
    DIR *dir = opendir(folder);
    if (!dir) return 0;
    while (readdir(dir)) n++;
    closedir(dir);
    return n;
}

level level_now(void) {
    level l;
    l.blocks = atomic_load(&blocks);
    l.bytes = atomic_load(&bytes);
    l.mapped = atomic_load(&mapped);
    l.threads = entries("/proc/self/task");
    l.files = entries("/proc/self/fd");
    return l;
}
