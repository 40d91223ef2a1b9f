/* Loaded before a program (LD_PRELOAD): from then on the system has no threads or no memory to give.
 *
 * STARVE_THREADS=n   the n-th thread and all after it cannot be started (EAGAIN)
 * STARVE_MEMORY=n    the n-th request for more than STARVE_FROM bytes, and all after it, fail (ENOMEM)
 * STARVE_REPORT=path how many such requests there were is written there at the end
 *
 * A program may also call starve_threads(n) and starve_memory(n) itself, to begin later; 0 ends it.
 * What libc asks for itself (stacks of threads, heaps for small blocks) goes another way and is not counted.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef STARVE_FROM
#define STARVE_FROM (64 << 10)
#endif

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static atomic_long threads_from, memory_from, thread_count, memory_count;

void starve_threads(long from) { thread_count = 0; threads_from = from; }
void starve_memory(long from) { memory_count = 0; memory_from = from; }

__attribute__((constructor)) static void begin(void) {
    const char *threads = getenv("STARVE_THREADS"), *memory = getenv("STARVE_MEMORY");
    if (threads) starve_threads(atol(threads));
    if (memory) starve_memory(atol(memory));
}

__attribute__((destructor)) static void report(void) {
    const char *path = getenv("STARVE_REPORT");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (file) {
        fprintf(file, "%ld\n", memory_from ? (long)memory_count : (long)thread_count);
        fclose(file);
    }
}

static int has_none(atomic_long *from, atomic_long *count) {
    return *from > 0 && atomic_fetch_add(count, 1) + 1 >= *from;
}

static int starves(size_t len) {
    if (len <= STARVE_FROM || !has_none(&memory_from, &memory_count)) return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t len) { return starves(len) ? NULL : __libc_malloc(len); }

void *calloc(size_t count, size_t len) {
    size_t all;
    if (__builtin_mul_overflow(count, len, &all)) all = (size_t)-1;
    return starves(all) ? NULL : __libc_calloc(count, len);
}

void *realloc(void *old, size_t len) { return starves(len) ? NULL : __libc_realloc(old, len); }

int posix_memalign(void **out, size_t align, size_t len) {
    void *found = starves(len) ? NULL : __libc_memalign(align, len);
    if (!found) return ENOMEM;
    *out = found;
    return 0;
}

void *aligned_alloc(size_t align, size_t len) { return starves(len) ? NULL : __libc_memalign(align, len); }

static void *map(void *at, size_t len, int protection, int flags, int fd, off_t offset) {
    if (starves(len)) return MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, len, protection, flags, fd, offset);
}

void *mmap(void *at, size_t len, int protection, int flags, int fd, off_t offset) {
    return map(at, len, protection, flags, fd, offset);
}

void *mmap64(void *at, size_t len, int protection, int flags, int fd, off64_t offset) {
    return map(at, len, protection, flags, fd, offset);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *with) {
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    return has_none(&threads_from, &thread_count) ? EAGAIN : real(thread, attributes, run, with);
}
