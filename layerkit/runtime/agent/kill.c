/* Ending what execs started, all of it, and reaping everything.
 *
 * An exec's processes stay descendants of its supervisor, a child subreaper, as long as that lives: neither setsid nor
 * a double fork leads out (R17). So: stop the supervisor, stop what descends from it until nothing new appears (what
 * is stopped cannot fork, and keeps its place under the pids limit), kill all of it, and the supervisor last.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "agent.h"

enum { FREEZE_TICKS = 20, KILL_TICKS = 1000 };
static const int64_t TICK_NS = 5000000, KILL_ALL_NS = 5000000000, LAST_WORDS_NS = 500000000;

static bool is_dead(const struct process *process)
{
    return process->state == 'Z' || process->state == 'X';
}

static bool is_stopped(const struct process *process)
{
    return process->state == 'T' || process->state == 't';
}

/* One round over the marked; true when none of them lives any more. */
static bool freeze_then_kill(const struct snapshot *snapshot, pid_t self, bool impatient)
{
    bool alive = false, running = false;
    for (size_t i = 0; i < snapshot->count; i++) {
        const struct process *row = &snapshot->rows[i];
        if (!row->marked || is_dead(row) || row->pid == self)
            continue;
        alive = true;
        if (!is_stopped(row)) {
            running = true;
            kill(row->pid, SIGSTOP);
        }
    }
    for (size_t i = 0; alive && (impatient || !running) && i < snapshot->count; i++) {
        const struct process *row = &snapshot->rows[i];
        if (row->marked && !is_dead(row) && row->pid != self)
            kill(row->pid, SIGKILL);
    }
    return !alive;
}

/* Without /proc only the leader's session's first group can be reached. */
static bool kill_group(const struct exec *exec)
{
    if (exec->leader) {
        kill(-exec->leader, SIGKILL);
        kill(exec->leader, SIGKILL);
    }
    return true;
}

/* The supervisor; the leader only when somebody inside has killed that. */
static pid_t tree_root(const struct exec *exec)
{
    return exec->supervisor ? exec->supervisor : exec->leader;
}

static bool kill_round(struct agent *agent, struct exec *exec)
{
    struct snapshot snapshot = {0};
    pid_t root = tree_root(exec);
    bool done = true;
    if (!root)
        return done;
    if (take_snapshot(agent->proc_fd, &snapshot)) {
        mark_tree(&snapshot, root, exec->leader);
        done = freeze_then_kill(&snapshot, agent->pid, exec->kill_ticks >= FREEZE_TICKS);
    } else {
        done = kill_group(exec);
    }
    free_snapshot(&snapshot);
    return done;
}

void step_kill(struct agent *agent, struct exec *exec, int64_t now)
{
    bool done = kill_round(agent, exec);
    exec->kill_ticks++;
    exec->kill_next_ns = now + TICK_NS;
    if (!done && exec->kill_ticks < KILL_TICKS)
        return;
    exec->killing = false;
    if (exec->leader)
        kill(exec->leader, SIGKILL);
    if (exec->supervisor)
        kill(exec->supervisor, SIGKILL);
}

void kill_exec(struct agent *agent, struct exec *exec)
{
    if (exec->killing || exec->ended)
        return;
    exec->killing = true;
    exec->kill_ticks = 0;
    if (tree_root(exec))
        kill(tree_root(exec), SIGSTOP);
    step_kill(agent, exec, now_ns());
}

static void kill_all_round(struct agent *agent)
{
    if (agent->is_init) {
        kill(-1, SIGKILL); /* everything in this namespace but us, at once */
        return;
    }
    struct snapshot snapshot = {0};
    if (take_snapshot(agent->proc_fd, &snapshot)) {
        mark_tree(&snapshot, agent->pid, 0);
        freeze_then_kill(&snapshot, agent->pid, true);
    } else {
        for (uint32_t i = 0; i < MAX_EXECS; i++)
            if (agent->execs[i])
                kill_group(agent->execs[i]);
    }
    free_snapshot(&snapshot);
}

void start_kill_all(struct agent *agent)
{
    if (agent->killing_all)
        return;
    agent->killing_all = true;
    agent->kill_all_deadline_ns = now_ns() + KILL_ALL_NS;
    agent->kill_all_next_ns = agent->all_gone_ns = 0;
    step_kill_all(agent, now_ns());
}

static bool has_children(void)
{
    siginfo_t info;
    return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
}

static void finish_kill_all(struct agent *agent, uint32_t error)
{
    uint8_t payload[4];
    put_u32(payload, error);
    for (uint32_t i = 0; i < agent->ack_count; i++)
        send_frame(agent, FRAME_ACK, agent->acks[i], payload, sizeof payload);
    agent->ack_count = 0;
    agent->killing_all = false;
}

void step_kill_all(struct agent *agent, int64_t now)
{
    reap(agent);
    if (!has_children()) { /* what they printed and how they ended goes first, if the host takes it */
        if (agent->all_gone_ns == 0)
            agent->all_gone_ns = now;
        agent->kill_all_next_ns = now + TICK_NS;
        if (agent->exec_count == 0 || now - agent->all_gone_ns > LAST_WORDS_NS)
            finish_kill_all(agent, 0);
    } else if (now > agent->kill_all_deadline_ns) {
        finish_kill_all(agent, ETIMEDOUT);
    } else if (now >= agent->kill_all_next_ns) {
        kill_all_round(agent);
        agent->kill_all_next_ns = now + TICK_NS;
    }
}

/* The leader becomes ours after its supervisor has reported its pid, so an unknown pid is looked up once more. */
void reap(struct agent *agent)
{
    for (;;) {
        siginfo_t info = {0};
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
            return;
        for (uint32_t i = 0; i < MAX_EXECS; i++)
            if (agent->execs[i] && !agent->execs[i]->reported)
                read_report(agent, agent->execs[i]);
        int status;
        struct rusage usage;
        if (wait4(info.si_pid, &status, WNOHANG, &usage) == info.si_pid)
            exec_reaped(agent, info.si_pid, status, &usage);
    }
}
