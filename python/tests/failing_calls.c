/* Lets chosen system calls of this process fail, and writes down what would be on the disk: which bytes were written,
 * and which syncs succeeded. A sync that fails loses what was written since the last: the kernel counts it as done.
 *
 * Preloaded (LD_PRELOAD). Nothing happens before `failing_calls_arm`.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static FILE *book;
static long count, first, last;
static int error_number;

static void note(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(book, format, arguments);
    va_end(arguments);
    fflush(book);
}

/* Calls number `from` to `to`, counted from 1, fail with `error`; the book is a file. */
void failing_calls_arm(const char *path, long from, long to, int error) {
    book = fopen(path, "w");
    count = 0, first = from, last = to, error_number = error;
}

/* How many calls there were. */
long failing_calls_disarm(void) {
    if (book) fclose(book);
    book = NULL;
    return count;
}

static void note_write(const struct stat *found, off64_t offset, const unsigned char *data, size_t len) {
    note("wrote %ju %jd ", (uintmax_t)found->st_ino, (intmax_t)offset);
    for (size_t at = 0; at < len; at++) fprintf(book, "%02x", data[at]);
    note("\n");
}

static int fails(void) {
    count++;
    return first <= count && count <= last;
}

static int is_file(int fd, struct stat *found) { return book && fstat(fd, found) == 0 && S_ISREG(found->st_mode); }

static int sync_of(int fd, const char *name) {
    int (*real)(int) = dlsym(RTLD_NEXT, name);
    struct stat found;
    if (!book || fstat(fd, &found)) return real(fd);
    const char *kind = S_ISREG(found.st_mode) ? "file" : "folder";
    if (fails()) {
        note("failed %s %ju\n", kind, (uintmax_t)found.st_ino);
        errno = error_number;
        return -1;
    }
    /* The book is the disk: the real one need not be waited for. */
    note("synced %s %ju\n", kind, (uintmax_t)found.st_ino);
    return 0;
}

int fsync(int fd) { return sync_of(fd, "fsync"); }
int fdatasync(int fd) { return sync_of(fd, "fdatasync"); }

ssize_t pwrite64(int fd, const void *data, size_t len, off64_t offset) {
    ssize_t (*real)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pwrite64");
    struct stat found;
    if (!is_file(fd, &found)) return real(fd, data, len, offset);
    if (fails()) {
        /* Half of it is written, as with a disk that is full. */
        size_t half = len / 2;
        if (half && real(fd, data, half, offset) == (ssize_t)half)
            note_write(&found, offset, data, half);
        errno = error_number;
        return -1;
    }
    ssize_t written = real(fd, data, len, offset);
    if (written > 0) note_write(&found, offset, data, (size_t)written);
    return written;
}
