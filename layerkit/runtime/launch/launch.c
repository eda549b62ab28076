/*
 * layerkit-launch: the few steps between Python and the OCI runtime that must not happen in a Python process.
 *
 *   layerkit-launch --run [--hide PATH]... [--attach FD PATH]... [--third FD] -- PROGRAM ARG...
 *       In a mount namespace of its own: hides what is in the runtime's way, attaches the detached mounts it inherited,
 *       gives an fd the number 3, and becomes PROGRAM. Nothing of this is seen in the host's mount namespace, so nothing can be left
 *       there: the mounts live as long as the sandbox that keeps the namespace's copy.
 *
 *   layerkit-launch --hold-userns
 *       Makes a user namespace, says so with one byte on stdout and keeps it until stdin ends, for the caller to write
 *       the maps and to open it.
 *
 * Exit codes: 100 wrong arguments, 101 a step failed (said on stderr), else PROGRAM's own.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXIT_USAGE 100
#define EXIT_STEP 101
/* linux/mount.h clashes with sys/mount.h in older C libraries; the numbers are the same on every architecture. */
#define NR_OPEN_TREE 428
#define NR_MOVE_MOUNT 429
#define NR_MOUNT_SETATTR 442
#define OPEN_CLONE 0x1
#define FROM_EMPTY_PATH 0x4
#define MOUNT_ATTR_RDONLY_BIT 0x1

static int failed(const char *step, const char *what) {
    fprintf(stderr, "layerkit-launch: %s %s: %s\n", step, what, strerror(errno));
    return EXIT_STEP;
}

static int hold_userns(void) {
    char byte = 'r';
    ssize_t got;
    if (unshare(CLONE_NEWUSER) != 0)
        return failed("unshare", "user namespace");
    if (write(STDOUT_FILENO, &byte, 1) != 1)
        return failed("write", "stdout");
    do
        got = read(STDIN_FILENO, &byte, 1);
    while (got > 0 || (got < 0 && errno == EINTR));
    return 0;
}

/*
 * The file system at a path is replaced by an empty one: crun makes its group also where a v2 hierarchy should be, and
 * would leave a folder under the mount point. What is not mounted is hidden already.
 */
static int hide(const char *path) {
    if (umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW) != 0)
        return errno == EINVAL || errno == ENOENT ? 0 : failed("umount", path);
    if (mount("layerkit", path, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=1m") != 0)
        return failed("hide", path);
    return 0;
}

static int fd_of(const char *number) {
    char *end;
    long fd = strtol(number, &end, 10);
    return *end != '\0' || end == number || fd < 0 || fd > 1 << 20 ? -1 : (int)fd;
}

static int attach(const char *number, const char *path) {
    int fd = fd_of(number);
    if (fd < 0)
        return EXIT_USAGE;
    if (syscall(NR_MOVE_MOUNT, fd, "", AT_FDCWD, path, FROM_EMPTY_PATH) != 0)
        return failed("attach", path);
    close(fd);
    return 0;
}

/* Comes after every attach: number 3 may have been one of their fds, which are closed by then. */
static int make_third(const char *number) {
    int fd = fd_of(number);
    if (fd < 0)
        return EXIT_USAGE;
    if (fd == 3)
        return 0;
    if (dup2(fd, 3) < 0)
        return failed("dup2", number);
    close(fd);
    return 0;
}

/*
 * Container runtimes copy themselves to where a sandbox cannot overwrite them and start anew, unless they run from a
 * read-only mount already: that saves 1.5 ms. Kernels before 5.12 cannot make one here; then they do it themselves.
 */
static int become(char **argv) {
    struct {
        unsigned long long set, clear, propagation, userns;
    } attributes = {MOUNT_ATTR_RDONLY_BIT, 0, 0, 0};
    int fd = (int)syscall(NR_OPEN_TREE, AT_FDCWD, argv[0], OPEN_CLONE | O_CLOEXEC);
    if (fd >= 0 && syscall(NR_MOUNT_SETATTR, fd, "", AT_EMPTY_PATH, &attributes, sizeof attributes) == 0)
        syscall(SYS_execveat, fd, "", argv, environ, AT_EMPTY_PATH);
    execv(argv[0], argv);
    return failed("exec", argv[0]);
}

int main(int argc, char **argv) {
    int at = 2, status = 0;
    if (argc == 2 && strcmp(argv[1], "--hold-userns") == 0)
        return hold_userns();
    if (argc < 4 || strcmp(argv[1], "--run") != 0)
        return EXIT_USAGE;
    if (unshare(CLONE_NEWNS) != 0)
        status = failed("unshare", "mount namespace");
    if (status == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        status = failed("make private", "/");
    while (status == 0 && at < argc && strcmp(argv[at], "--") != 0) {
        if (strcmp(argv[at], "--hide") == 0 && at + 1 < argc) {
            status = hide(argv[at + 1]);
            at += 2;
        } else if (strcmp(argv[at], "--attach") == 0 && at + 2 < argc) {
            status = attach(argv[at + 1], argv[at + 2]);
            at += 3;
        } else if (strcmp(argv[at], "--third") == 0 && at + 1 < argc) {
            status = make_third(argv[at + 1]);
            at += 2;
        } else {
            status = EXIT_USAGE;
        }
    }
    if (status != 0)
        return status;
    if (at + 1 >= argc)
        return EXIT_USAGE;
    return become(argv + at + 1);
}
