/* The life of an exec: started, reported, timed out or not, ended, drained, told. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent.h"

/* After the leader's end, what still holds its output may add to it until it has been quiet for DRAIN_QUIET (R10). */
static const int64_t DRAIN_QUIET_NS = 150000000, DRAIN_LIMIT_NS = 1000000000;

struct exec *find_exec(struct agent *agent, uint32_t id)
{
    for (uint32_t i = 0; i < MAX_EXECS; i++)
        if (agent->execs[i] && agent->execs[i]->id == id)
            return agent->execs[i];
    return NULL;
}

struct exec *exec_at(struct agent *agent, uint64_t tag)
{
    uint32_t slot = (uint32_t)tag >> 8;
    struct exec *exec = slot < MAX_EXECS ? agent->execs[slot] : NULL;
    return exec && exec->generation == tag >> 32 ? exec : NULL;
}

/* --- starting ---------------------------------------------------------------------------------------------------- */

static struct exec *new_exec(struct agent *agent, uint32_t id, const struct request *request)
{
    uint16_t slot = 0;
    while (slot < MAX_EXECS && agent->execs[slot])
        slot++;
    struct exec *exec = slot < MAX_EXECS ? calloc(1, sizeof *exec) : NULL;
    if (!exec)
        return NULL;
    *exec = (struct exec){.id = id, .generation = ++agent->generation, .slot = slot, .report_fd = -1, .stdin_fd = -1};
    exec->start_ns = now_ns();
    if (request->timeout_ms)
        exec->deadline_ns = exec->start_ns + (int64_t)request->timeout_ms * 1000000;
    exec->stdin_room = STDIN_WINDOW;
    for (int i = 0; i < 2; i++)
        exec->out[i] = (struct stream){.fd = -1, .credit = request->credit[i], .cap_left = request->cap[i]};
    agent->execs[slot] = exec;
    agent->exec_count++;
    return exec;
}

/* ours[0..3]: stdin, stdout, stderr, report; theirs likewise. Only our ends do not block. */
static int make_pipes(int *ours, int *theirs)
{
    for (int i = 0; i < 4; i++) {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) != 0)
            return errno;
        ours[i] = ends[i == 0];
        theirs[i] = ends[i != 0];
        if (fcntl(ours[i], F_SETFL, O_NONBLOCK) != 0)
            return errno;
    }
    return 0;
}

static void close_pipes(const int *fds)
{
    for (int i = 0; i < 4; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

static int fork_supervisor(struct agent *agent, struct exec *exec, const struct request *request, int *ours)
{
    int theirs[4] = {-1, -1, -1, -1};
    int error = make_pipes(ours, theirs);
    if (!error) {
        struct launch launch = {.request = request, .stdio = {theirs[0], theirs[1], theirs[2]}};
        launch.report_fd = theirs[3];
        launch.proc_fd = agent->proc_fd;
        launch.nofile = agent->nofile;
        launch.reset_oom_score = agent->lower_oom_score && agent->proc_fd >= 0;
        pid_t pid = fork();
        if (pid == 0)
            supervise(&launch);
        if (pid < 0)
            error = errno;
        else
            exec->supervisor = pid;
    }
    close_pipes(theirs);
    return error;
}

static void end_exec(struct exec *exec)
{
    exec->ended = true;
    exec->end_ns = exec->quiet_ns = now_ns();
    exec->drain_limit_ns = exec->end_ns + DRAIN_LIMIT_NS;
    for (int i = 0; i < 2; i++) {
        int waiting = 0;
        if (exec->out[i].fd >= 0 && ioctl(exec->out[i].fd, FIONREAD, &waiting) == 0)
            exec->out[i].owed = (uint64_t)waiting;
    }
}

static void fail_exec(struct exec *exec, int error, int stage)
{
    exec->reported = true;
    exec->report.error = error;
    exec->report.stage = stage;
    end_exec(exec);
}

void start_exec(struct agent *agent, uint32_t id, const struct request *request)
{
    struct exec *exec = new_exec(agent, id, request);
    int ours[4] = {-1, -1, -1, -1};
    if (!exec) {
        send_error(agent, ERROR_LIMIT, FRAME_EXEC, id, false, "too many execs at once");
        return;
    }
    int error = fork_supervisor(agent, exec, request, ours);
    if (error) {
        close_pipes(ours);
        fail_exec(exec, error, STAGE_FORK);
        return;
    }
    exec->stdin_fd = ours[0];
    exec->report_fd = ours[3];
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = make_tag(exec, TAG_REPORT)};
    epoll_ctl(agent->control_poll, EPOLL_CTL_ADD, exec->report_fd, &event);
    for (int i = 0; i < 2; i++) {
        exec->out[i].fd = ours[1 + i];
        arm_stream(agent, exec, i);
    }
    if (!(request->flags & EXEC_STDIN))
        end_stdin(agent, exec);
}

/* --- what the supervisor and the kernel say ----------------------------------------------------------------------- */

static void close_report(struct agent *agent, struct exec *exec)
{
    epoll_ctl(agent->control_poll, EPOLL_CTL_DEL, exec->report_fd, NULL);
    close(exec->report_fd);
    exec->report_fd = -1;
}

static void deliver_early_signals(struct exec *exec)
{
    for (uint32_t scope = 0; scope < 2; scope++)
        for (int number = 1; number <= 64; number++)
            if (exec->early_signals[scope] >> (number - 1) & 1)
                signal_exec(exec, number, scope);
}

static void executed(struct agent *agent, struct exec *exec)
{
    uint8_t payload[4];
    exec->reported = true;
    deliver_early_signals(exec);
    put_u32(payload, (uint32_t)exec->leader);
    send_frame(agent, FRAME_STARTED, exec->id, payload, sizeof payload);
}

/* False: there will be no more. */
static bool take_report(struct exec *exec, const struct report *report)
{
    if (!report->error) {
        exec->leader = report->leader;
        return true;
    }
    exec->leader = 0; /* the supervisor has reaped it */
    exec->report = *report;
    if (exec->report.path_size > MAX_REPORT_PATH)
        exec->report.path_size = 0;
    exec->reported = true;
    end_exec(exec);
    return false;
}

void read_report(struct agent *agent, struct exec *exec)
{
    struct report report;
    while (exec->report_fd >= 0) {
        ssize_t size = read(exec->report_fd, &report, sizeof report);
        if (size < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (size == (ssize_t)sizeof report && take_report(exec, &report))
            continue;
        close_report(agent, exec);
        if (!exec->reported && exec->leader)
            executed(agent, exec);
    }
}

static void supervisor_reaped(struct agent *agent, struct exec *exec, int status)
{
    exec->supervisor = 0;
    read_report(agent, exec);
    if (exec->leader || exec->ended)
        return; /* it ends with its leader, whoever has killed its supervisor */
    if (exec->timed_out || exec->kill_ticks || agent->killing_all) { /* before there was a command */
        exec->wait_status = status;
        exec->reported = true;
        end_exec(exec);
    } else {
        fail_exec(exec, EIO, STAGE_FORK);
    }
}

void exec_reaped(struct agent *agent, pid_t pid, int status, const struct rusage *usage)
{
    for (uint32_t i = 0; i < MAX_EXECS; i++) {
        struct exec *exec = agent->execs[i];
        if (exec && exec->leader == pid) {
            exec->leader = 0;
            exec->wait_status = status;
            exec->usage = *usage;
            exec->reported = true;
            end_exec(exec);
            return;
        }
        if (exec && exec->supervisor == pid) {
            supervisor_reaped(agent, exec, status);
            return;
        }
    }
}

int signal_exec(struct exec *exec, int number, uint32_t scope)
{
    if (!exec->reported) {
        exec->early_signals[scope] |= UINT64_C(1) << (number - 1);
        return 0;
    }
    if (!exec->leader)
        return ESRCH;
    return kill(scope == SCOPE_GROUP ? -exec->leader : exec->leader, number) == 0 ? 0 : errno;
}

/* --- time ---------------------------------------------------------------------------------------------------------- */

static int64_t drained_ns(const struct exec *exec)
{
    int64_t quiet = exec->quiet_ns + DRAIN_QUIET_NS;
    return quiet < exec->drain_limit_ns ? quiet : exec->drain_limit_ns;
}

static bool is_drained(const struct exec *exec, int64_t now)
{
    for (int i = 0; i < 2; i++)
        if (exec->out[i].fd >= 0 && (exec->out[i].owed > 0 || now < drained_ns(exec)))
            return exec->report.error != 0;
    return true;
}

static void finish_exec(struct agent *agent, struct exec *exec)
{
    for (int i = 0; i < 2; i++) {
        exec->left_open |= exec->out[i].fd >= 0 && !exec->report.error;
        discard_stream(agent, exec, i);
    }
    if (exec->report_fd >= 0)
        close_report(agent, exec);
    close_stdin(agent, exec);
    send_exit(agent, exec);
    agent->execs[exec->slot] = NULL;
    agent->exec_count--;
    free(exec);
}

static void settle(struct agent *agent, struct exec *exec, int64_t now)
{
    if (!exec->ended && !exec->timed_out && exec->deadline_ns && now >= exec->deadline_ns) {
        exec->timed_out = true;
        kill_exec(agent, exec);
    }
    if (exec->killing && now >= exec->kill_next_ns)
        step_kill(agent, exec, now);
    if (exec->ended && !exec->killing && is_drained(exec, now))
        finish_exec(agent, exec);
}

void settle_execs(struct agent *agent, int64_t now)
{
    for (uint32_t i = 0, left = agent->exec_count; left > 0 && i < MAX_EXECS; i++) {
        if (!agent->execs[i])
            continue;
        left--;
        settle(agent, agent->execs[i], now);
    }
}

static int64_t next_ns(const struct exec *exec, int64_t now)
{
    if (exec->killing)
        return exec->kill_next_ns;
    if (!exec->ended)
        return exec->deadline_ns && !exec->timed_out ? exec->deadline_ns : INT64_MAX;
    return drained_ns(exec) > now ? drained_ns(exec) : INT64_MAX; /* past it, only events help */
}

int64_t next_exec_ns(const struct agent *agent, int64_t now)
{
    int64_t first = INT64_MAX;
    for (uint32_t i = 0, left = agent->exec_count; left > 0 && i < MAX_EXECS; i++) {
        if (!agent->execs[i])
            continue;
        left--;
        int64_t next = next_ns(agent->execs[i], now);
        first = next < first ? next : first;
    }
    return first;
}
