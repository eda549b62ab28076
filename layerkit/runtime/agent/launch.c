/* The supervisor of one exec: a small process between the agent and the command (the leader).
 *
 * It resolves the user, starts the leader, reports why that failed if it does, and then waits: a child subreaper
 * that reaps what the leader leaves behind, and ends with it, leaving the leader's corpse to the agent, which so
 * learns status and usage from the kernel. Every read of the image happens here, so that a lazy file that never comes
 * holds one exec and not the agent. It cannot be traced or opened: it inherits PR_SET_DUMPABLE 0.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent.h"

static const char DEFAULT_PATH[] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

struct leader {
    const struct launch *launch;
    struct identity identity;
    char **argv, **env;
    char path[4096]; /* what was tried last */
    int error, stage;
    bool exists;
};

void close_between(unsigned first, unsigned last)
{
    if (first > last || syscall(SYS_close_range, first, last, 0) == 0)
        return;
    long limit = sysconf(_SC_OPEN_MAX);
    for (unsigned fd = first; fd <= last && (long)fd < limit; fd++)
        close((int)fd);
}

static void close_all_but(int a, int b)
{
    unsigned low = (unsigned)(a < b ? a : b), high = (unsigned)(a < b ? b : a);
    close_between(3, low - 1);
    close_between(low + 1, high - 1);
    close_between(high + 1, ~0U);
}

static const char *find_variable(char **env, const char *name)
{
    size_t size = strlen(name);
    for (; *env; env++)
        if (strncmp(*env, name, size) == 0 && (*env)[size] == '=')
            return *env + size + 1;
    return NULL;
}

static bool build_vectors(struct leader *leader)
{
    const struct request *request = leader->launch->request;
    const char *at = request->strings;
    leader->argv = calloc((size_t)request->argc + 1, sizeof(char *));
    leader->env = calloc((size_t)request->envc + 2, sizeof(char *));
    if (!leader->argv || !leader->env)
        return false;
    for (uint32_t i = 0; i < request->argc; i++, at += strlen(at) + 1)
        leader->argv[i] = (char *)at;
    for (uint32_t i = 0; i < request->envc; i++, at += strlen(at) + 1)
        leader->env[i] = (char *)at;
    if (find_variable(leader->env, "HOME"))
        return true;
    return asprintf(&leader->env[request->envc], "HOME=%s", leader->identity.home) >= 0;
}

/* /dev/stdout of another user's pipe could not be opened again. */
static void give_stdio(const struct identity *identity)
{
    for (int i = 0; i < 3 && identity->switches && identity->uid != getuid(); i++)
        if (fchown(i, identity->uid, identity->gid) != 0)
            return;
}

static void reset_oom_score(int proc_fd)
{
    int fd = openat(proc_fd, "self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t written = write(fd, "0", 1); /* best effort: a sandbox without it is only killed later */
    (void)written;
    close(fd);
}

/* --- in the leader, which shares the supervisor's memory until it has executed ----------------------------------- */

static void fail(struct leader *leader, int stage, int error)
{
    leader->stage = stage;
    leader->error = error ? error : EINVAL;
    _exit(127);
}

static void reset_signals(void)
{
    struct sigaction action = {.sa_handler = SIG_DFL};
    for (int number = 1; number <= 64; number++)
        sigaction(number, &action, NULL); /* the two that cannot be changed answer EINVAL */
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static void become(struct leader *leader)
{
    const struct identity *identity = &leader->identity;
    if (!identity->switches)
        return;
    bool same = identity->uid == getuid() && identity->gid == getgid() && identity->group_count == 0;
    if (setgroups(identity->group_count, identity->groups) != 0 && !(same && errno == EPERM))
        fail(leader, STAGE_GROUP, errno);
    if (setresgid(identity->gid, identity->gid, identity->gid) != 0)
        fail(leader, STAGE_GROUP, errno);
    if (setresuid(identity->uid, identity->uid, identity->uid) != 0)
        fail(leader, STAGE_USER, errno);
}

static int try_execute(struct leader *leader, const char *folder, size_t folder_size)
{
    int size = snprintf(leader->path, sizeof leader->path, "%.*s%s%s", (int)folder_size, folder,
                        folder_size ? "/" : "", leader->argv[0]);
    if (size < 0 || (size_t)size >= sizeof leader->path)
        return ENAMETOOLONG;
    execve(leader->path, leader->argv, leader->env);
    return errno;
}

static bool means_look_on(int error)
{
    return error == ENOENT || error == ENOTDIR || error == EACCES || error == ELOOP || error == ENAMETOOLONG ||
           error == ESTALE || error == ENODEV;
}

/* As execvp(3), but what cannot be executed is not handed to /bin/sh. */
static void search_path(struct leader *leader)
{
    const char *path = find_variable(leader->env, "PATH");
    int error = ENOENT;
    for (path = path ? path : DEFAULT_PATH;; path++) {
        size_t size = strcspn(path, ":");
        int now = try_execute(leader, path, size);
        if (!means_look_on(now)) {
            leader->exists = true;
            fail(leader, STAGE_EXEC, now);
        }
        if (now == EACCES || (now == ENOENT && access(leader->path, F_OK) == 0)) {
            leader->exists = true;
            error = now;
        }
        path += size;
        if (!*path)
            break;
    }
    snprintf(leader->path, sizeof leader->path, "%s", leader->argv[0]);
    fail(leader, STAGE_EXEC, error);
}

static void lead(struct leader *leader) __attribute__((noreturn));
static void lead(struct leader *leader)
{
    const char *cwd = leader->launch->request->cwd;
    const struct report report = {.leader = getpid()};
    if (write(leader->launch->report_fd, &report, sizeof report) != (ssize_t)sizeof report)
        fail(leader, STAGE_FORK, errno); /* the agent is gone */
    setsid();
    setrlimit(RLIMIT_NOFILE, &leader->launch->nofile);
    umask(022);
    become(leader);
    if (chdir(*cwd ? cwd : "/") != 0) {
        snprintf(leader->path, sizeof leader->path, "%s", cwd);
        fail(leader, STAGE_CWD, errno);
    }
    reset_signals();
    if (leader->argv[0][0] && !strchr(leader->argv[0], '/'))
        search_path(leader);
    int error = leader->argv[0][0] ? try_execute(leader, "", 0) : ENOENT;
    leader->exists = error != ENOENT || (leader->argv[0][0] && access(leader->argv[0], F_OK) == 0);
    fail(leader, STAGE_EXEC, error);
    _exit(127);
}

/* --- in the supervisor ------------------------------------------------------------------------------------------- */

static void give_up(const struct leader *leader) __attribute__((noreturn));
static void give_up(const struct leader *leader)
{
    struct report report = {.error = leader->error, .stage = leader->stage, .exists = leader->exists};
    report.path_size = (uint32_t)strnlen(leader->path, MAX_REPORT_PATH);
    memcpy(report.path, leader->path, report.path_size);
    _exit(write(leader->launch->report_fd, &report, sizeof report) == (ssize_t)sizeof report ? 0 : 1);
}

/* Reaps orphans until the leader has ended; its corpse is left for the agent. */
static void wait_for(pid_t leader) __attribute__((noreturn));
static void wait_for(pid_t leader)
{
    for (;;) {
        siginfo_t info = {0};
        if (waitid(P_ALL, 0, &info, WEXITED | WNOWAIT) != 0) {
            if (errno == EINTR)
                continue;
            _exit(1);
        }
        if (info.si_pid == leader)
            _exit(0);
        waitpid(info.si_pid, NULL, 0);
    }
}

void supervise(const struct launch *launch)
{
    struct leader *leader = calloc(1, sizeof *leader);
    if (!leader)
        _exit(1);
    leader->launch = launch;
    prctl(PR_SET_NAME, "layerkit-exec");
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (int i = 0; i < 3; i++)
        if (dup2(launch->stdio[i], i) != i)
            _exit(1);
    close_all_but(launch->report_fd, launch->proc_fd >= 0 ? launch->proc_fd : launch->report_fd);
    if (launch->reset_oom_score)
        reset_oom_score(launch->proc_fd);
    leader->error = resolve_identity(launch->request->user, &leader->identity, &leader->stage);
    if (leader->error)
        snprintf(leader->path, sizeof leader->path, "%s", launch->request->user);
    else if (!build_vectors(leader))
        leader->error = ENOMEM, leader->stage = STAGE_FORK;
    if (leader->error)
        give_up(leader);
    give_stdio(&leader->identity);
    pid_t pid = vfork();
    if (pid == 0)
        lead(leader);
    if (pid < 0)
        leader->error = errno, leader->stage = STAGE_FORK;
    else if (leader->error)
        waitpid(pid, NULL, 0);
    if (leader->error)
        give_up(leader);
    close_between(0, ~0U);
    wait_for(pid);
}
