/* A file system that lacks calls for good: below one folder they fail, with the errors of real file systems.
 *
 * lack_calls(folder, "mmap=19 fsync_folder=22") begins it, for the calling thread and all threads and processes that it
 * starts later. Preloaded, LACKING_FOLDER and LACKING begin it with the process.
 *
 * A thread of the process answers the calls (seccomp, SECCOMP_RET_USER_NOTIF): the engine makes calls without libc,
 * which a preloaded library alone would not see. For Linux on x86-64, from 5.5 on.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

enum { NONE = -1, CWD = -2 };

/* A call that may be lacking. The file is that of a descriptor or of a path; without either, all calls fail. */
static const struct call {
    const char *name;
    int number;
    int descriptor_at; /* Which argument; with a path that of the folder, CWD for none. */
    int path_at;
    int test_at; /* Only calls whose argument has `value` under `mask`. */
    unsigned mask, value;
    int folders_only;
} CALLS[] = {
    {"mmap", SYS_mmap, 4, NONE, 3, MAP_ANONYMOUS, 0},
    {"chmod", SYS_chmod, CWD, 0, NONE},
    {"chmod", SYS_fchmod, 0, NONE, NONE},
    {"chmod", SYS_fchmodat, 0, 1, NONE},
    {"chmod", SYS_fchmodat2, 0, 1, NONE},
    {"chown", SYS_chown, CWD, 0, NONE},
    {"chown", SYS_lchown, CWD, 0, NONE},
    {"chown", SYS_fchown, 0, NONE, NONE},
    {"chown", SYS_fchownat, 0, 1, NONE},
    {"utimes", SYS_utimensat, 0, 1, NONE},
    {"link", SYS_link, CWD, 1, NONE},
    {"link", SYS_linkat, 2, 3, NONE},
    {"symlink", SYS_symlink, CWD, 1, NONE},
    {"symlink", SYS_symlinkat, 1, 2, NONE},
    {"fallocate", SYS_fallocate, 0, NONE, NONE},
    {"direct", SYS_openat, 0, 1, 2, O_DIRECT, O_DIRECT},
    {"direct", SYS_fcntl, 0, NONE, 1, -1, F_SETFL},
    {"flock", SYS_flock, 0, NONE, NONE},
    {"record_lock", SYS_fcntl, 0, NONE, 1, -1, F_SETLK},
    {"record_lock", SYS_fcntl, 0, NONE, 1, -1, F_SETLKW},
    {"record_lock", SYS_fcntl, 0, NONE, 1, -1, F_OFD_SETLK},
    {"fsync_folder", SYS_fsync, 0, NONE, NONE, 0, 0, 1},
    {"fsync_folder", SYS_fdatasync, 0, NONE, NONE, 0, 0, 1},
    {"syncfs", SYS_syncfs, 0, NONE, NONE},
    {"exchange", SYS_renameat2, 0, 1, 4, RENAME_EXCHANGE, RENAME_EXCHANGE},
    {"noreplace", SYS_renameat2, 0, 1, 4, RENAME_NOREPLACE, RENAME_NOREPLACE},
    {"statvfs", SYS_statfs, CWD, 0, NONE},
    {"statvfs", SYS_fstatfs, 0, NONE, NONE},
    {"xattr", SYS_setxattr, CWD, 0, NONE},
    {"xattr", SYS_lsetxattr, CWD, 0, NONE},
    {"xattr", SYS_fsetxattr, 0, NONE, NONE},
    {"xattr", SYS_getxattr, CWD, 0, NONE},
    {"xattr", SYS_lgetxattr, CWD, 0, NONE},
    {"xattr", SYS_fgetxattr, 0, NONE, NONE},
    {"xattr", SYS_listxattr, CWD, 0, NONE},
    {"xattr", SYS_llistxattr, CWD, 0, NONE},
    {"xattr", SYS_flistxattr, 0, NONE, NONE},
    {"copy_range", SYS_copy_file_range, 2, NONE, NONE},
    {"copy_range", SYS_sendfile, 0, NONE, NONE},
    {"clone", SYS_ioctl, 0, NONE, 1, -1, FICLONE},
    {"fadvise", SYS_fadvise64, 0, NONE, NONE},
    {"preadv2", SYS_preadv2, 0, NONE, NONE},
    {"statx", SYS_statx, NONE, NONE, NONE},
    {"mincore", SYS_mincore, NONE, NONE, NONE},
    {"madvise", SYS_madvise, NONE, NONE, NONE},
};
#define CALL_COUNT (sizeof CALLS / sizeof *CALLS)

static char folder[PATH_MAX];
static int errors[CALL_COUNT]; /* What each call fails with; 0 where it works. */
static int listener;
static atomic_long failed;

/* How many calls have failed. */
long lacked_calls(void) { return failed; }

static int is_below(const char *path) {
    size_t len = strlen(folder);
    return strncmp(path, folder, len) == 0 && (path[len] == '/' || path[len] == 0);
}

/* Where a descriptor of another process leads to, or its working folder. */
static int path_of(int pid, int descriptor, char *path) {
    char link[64];
    if (descriptor == AT_FDCWD) snprintf(link, sizeof link, "/proc/%d/cwd", pid);
    else snprintf(link, sizeof link, "/proc/%d/fd/%d", pid, descriptor);
    ssize_t len = readlink(link, path, PATH_MAX - 1);
    if (len < 0) return 0;
    path[len] = 0;
    return 1;
}

/* A text in the memory of another process, read up to the end of each page. */
static int text_of(int pid, unsigned long address, char *text) {
    size_t filled = 0;
    while (filled < PATH_MAX) {
        size_t room = 4096 - (address + filled) % 4096;
        if (room > PATH_MAX - filled) room = PATH_MAX - filled;
        struct iovec to = {text + filled, room}, from = {(void *)(address + filled), room};
        ssize_t len = process_vm_readv(pid, &to, 1, &from, 1, 0);
        if (len <= 0) return 0;
        if (memchr(text + filled, 0, len)) return 1;
        filled += len;
    }
    return 0;
}

static int is_folder(int pid, int descriptor) {
    char link[64];
    struct stat found;
    snprintf(link, sizeof link, "/proc/%d/fd/%d", pid, descriptor);
    return stat(link, &found) == 0 && S_ISDIR(found.st_mode);
}

static int concerns(const struct call *call, int pid, const struct seccomp_data *data) {
    static char path[PATH_MAX], text[PATH_MAX];
    const __u64 *arguments = data->args;
    if (call->test_at != NONE && ((unsigned)arguments[call->test_at] & call->mask) != call->value) return 0;
    if (call->number == SYS_fcntl && call->value == F_SETFL && !(arguments[2] & O_DIRECT)) return 0;
    if (call->descriptor_at == NONE && call->path_at == NONE) return 1;
    int descriptor = call->descriptor_at == CWD ? AT_FDCWD : (int)arguments[call->descriptor_at];
    if (call->path_at != NONE && arguments[call->path_at]) {
        if (!text_of(pid, arguments[call->path_at], text)) return 0;
        if (text[0] == '/') return is_below(text);
    }
    if (call->folders_only && !is_folder(pid, descriptor)) return 0;
    return path_of(pid, descriptor, path) && is_below(path);
}

static int answer_to(int pid, const struct seccomp_data *data) {
    for (size_t at = 0; at < CALL_COUNT; at++)
        if (errors[at] && CALLS[at].number == data->nr && concerns(&CALLS[at], pid, data)) return errors[at];
    return 0;
}

/* Allocates nothing: the caller may hold any lock of libc while it waits. */
static void *supervise(void *unused) {
    (void)unused;
    while (!listener) usleep(100);
    for (;;) {
        struct seccomp_notif call = {0};
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call)) continue;
        int error = answer_to(call.pid, &call.data);
        failed += error != 0;
        struct seccomp_notif_resp answer = {.id = call.id, .error = -error};
        if (!error) answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
        ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
    return NULL;
}

/* Has the calls of `lacking` ("name=errno ...") fail below `below` from now on; 0, or an error number. */
int lack_calls(const char *below, const char *lacking) {
    struct sock_filter filter[CALL_COUNT * 2 + 8];
    size_t len = 0;
    filter[len++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    if (!realpath(below, folder)) return errno;
    char words[1024];
    snprintf(words, sizeof words, "%s", lacking);
    for (char *rest, *word = strtok_r(words, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *equals = strchr(word, '=');
        int found = 0;
        for (size_t at = 0; equals && at < CALL_COUNT; at++) {
            if (strlen(CALLS[at].name) != (size_t)(equals - word)) continue;
            if (strncmp(CALLS[at].name, word, equals - word)) continue;
            found = 1, errors[at] = atoi(equals + 1);
            filter[len++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, CALLS[at].number, 0, 1);
            filter[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
        }
        if (!found) return EINVAL;
    }
    filter[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {len, filter};
    /* Started first: the filter is not for this thread. */
    pthread_t thread;
    int error = pthread_create(&thread, NULL, supervise, NULL);
    if (error) return error;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return errno;
    listener = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
    return listener < 0 ? errno : 0;
}

__attribute__((constructor)) static void begin(void) {
    const char *below = getenv("LACKING_FOLDER"), *lacking = getenv("LACKING");
    if (below && lacking && lack_calls(below, lacking)) abort();
}
