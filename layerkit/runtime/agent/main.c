/* layerkit-agent --fd N: takes its connection, serves it until its end. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"

enum { EVENTS = 64 };
static const int64_t TERM_GRACE_NS = 5000000000;

int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* --- ending ------------------------------------------------------------------------------------------------------- */

static void signal_all(struct agent *agent, int number)
{
    for (uint32_t i = 0; i < MAX_EXECS; i++)
        if (agent->execs[i])
            signal_exec(agent->execs[i], number, SCOPE_GROUP);
}

void begin_stop(struct agent *agent, enum stop_state state)
{
    if (agent->stop >= state)
        return;
    agent->stop = state;
    if (state == STOP_TERM)
        agent->stop_deadline_ns = now_ns() + TERM_GRACE_NS;
    else
        start_kill_all(agent);
}

static void step_stop(struct agent *agent, int64_t now)
{
    if (agent->stop == STOP_TERM && (agent->exec_count == 0 || now >= agent->stop_deadline_ns))
        begin_stop(agent, STOP_KILL);
    if (agent->killing_all)
        step_kill_all(agent, now);
}

/* Whoever is inside must not be able to end the sandbox by `kill 1`: signals from outside carry no pid of ours. */
static void on_signals(struct agent *agent)
{
    struct signalfd_siginfo info;
    while (read(agent->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCHLD || (agent->is_init && info.ssi_pid != 0))
            continue;
        signal_all(agent, (int)info.ssi_signo);
        if (info.ssi_signo == SIGTERM || info.ssi_signo == SIGINT)
            begin_stop(agent, agent->stop == STOP_TERM ? STOP_KILL : STOP_TERM);
    }
}

static void handle_lost_host(struct agent *agent)
{
    agent->host_lost = false;
    close(agent->socket);
    agent->socket = -1;
    buffer_free(&agent->received);
    buffer_free(&agent->unsent);
    for (uint32_t i = 0; i < MAX_EXECS; i++) {
        if (!agent->execs[i])
            continue;
        close_stdin(agent, agent->execs[i]);
        for (int stream = 0; stream < 2; stream++)
            discard_stream(agent, agent->execs[i], stream);
    }
    if (!agent->keep)
        begin_stop(agent, STOP_KILL);
}

/* --- the loop ----------------------------------------------------------------------------------------------------- */

static void on_control(struct agent *agent)
{
    struct epoll_event events[EVENTS];
    int count = epoll_wait(agent->control_poll, events, EVENTS, 0);
    for (int i = 0; i < count; i++) {
        uint64_t tag = events[i].data.u64;
        if ((tag & 0xff) == TAG_SINK) {
            drain_sink(agent, (int)(tag >> 8));
            continue;
        }
        struct exec *exec = exec_at(agent, tag);
        if (exec && (tag & 0xff) == TAG_REPORT)
            read_report(agent, exec);
        else if (exec && (tag & 0xff) == TAG_STDIN)
            flush_stdin(agent, exec);
    }
}

static void on_output(struct agent *agent)
{
    struct epoll_event events[EVENTS];
    int count = epoll_wait(agent->output_poll, events, EVENTS, 0);
    for (int i = 0; i < count && buffer_size(&agent->unsent) < OUTPUT_HIGH; i++) {
        struct exec *exec = exec_at(agent, events[i].data.u64);
        if (exec)
            pump_stream(agent, exec, (events[i].data.u64 & 0xff) == TAG_STDERR);
    }
}

static int next_timeout_ms(const struct agent *agent)
{
    int64_t now = now_ns(), first = next_exec_ns(agent, now);
    if (agent->killing_all && agent->kill_all_next_ns < first)
        first = agent->kill_all_next_ns;
    if (agent->stop == STOP_TERM && agent->stop_deadline_ns < first)
        first = agent->stop_deadline_ns;
    if (first == INT64_MAX)
        return -1;
    int64_t wait_ms = first <= now ? 0 : (first - now + 999999) / 1000000;
    return wait_ms > 3600000 ? 3600000 : (int)wait_ms;
}

static void wait_for_events(struct agent *agent)
{
    size_t unsent = buffer_size(&agent->unsent);
    short wanted = (unsent < CONTROL_HIGH ? POLLIN : 0) | (unsent > 0 ? POLLOUT : 0);
    struct pollfd fds[4] = {
        {.fd = agent->socket, .events = wanted},
        {.fd = agent->signal_fd, .events = POLLIN},
        {.fd = agent->control_poll, .events = POLLIN},
        {.fd = unsent < OUTPUT_HIGH ? agent->output_poll : -1, .events = POLLIN},
    };
    if (poll(fds, 4, next_timeout_ms(agent)) < 0)
        return;
    if (fds[0].revents & (POLLIN | POLLHUP | POLLERR))
        receive(agent);
    if (fds[1].revents)
        on_signals(agent);
    if (fds[2].revents)
        on_control(agent);
    if (fds[3].revents)
        on_output(agent);
}

static void serve(struct agent *agent)
{
    while (agent->stop != STOP_KILL || agent->killing_all) {
        bool more;
        wait_for_events(agent);
        do { /* once, but again when only our own unsent frames kept us from the host's next one */
            more = dispatch_received(agent);
            reap(agent);
            int64_t now = now_ns();
            settle_execs(agent, now);
            step_stop(agent, now);
            flush_unsent(agent);
        } while (more && buffer_size(&agent->unsent) < CONTROL_HIGH);
        if (agent->host_lost)
            handle_lost_host(agent);
    }
}

/* The last frames, for a host that reads them within a second. */
static void say_goodbye(struct agent *agent)
{
    int64_t deadline = now_ns() + 1000000000;
    settle_execs(agent, now_ns());
    while (agent->socket >= 0 && !agent->host_lost && buffer_size(&agent->unsent) > 0 && now_ns() < deadline) {
        struct pollfd fd = {.fd = agent->socket, .events = POLLOUT};
        poll(&fd, 1, 100);
        flush_unsent(agent);
    }
}

/* --- setting up --------------------------------------------------------------------------------------------------- */

static int parse_fd(int argc, char **argv)
{
    char *end = NULL;
    if (argc != 3 || strcmp(argv[1], "--fd") != 0)
        return -1;
    long fd = strtol(argv[2], &end, 10);
    return *argv[2] && !*end && fd >= 0 && fd < 1 << 20 && fcntl((int)fd, F_GETFD) >= 0 ? (int)fd : -1;
}

/* Numbers 0 to 2 stay taken, so that no pipe of an exec can land there; the image may have no /dev/null. */
static void fill_stdio(void)
{
    int fd;
    do {
        fd = open("/", O_PATH | O_CLOEXEC);
    } while (fd >= 0 && fd < 3);
    if (fd >= 0)
        close(fd);
}

static bool take_socket(struct agent *agent, int fd)
{
    agent->socket = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    int flags = agent->socket < 0 ? -1 : fcntl(agent->socket, F_GETFL);
    if (flags < 0 || fcntl(agent->socket, F_SETFL, flags | O_NONBLOCK) != 0)
        return false;
    int keep = agent->socket;
    if (fd < 3) {
        int nothing = open("/", O_PATH | O_CLOEXEC);
        if (nothing < 0 || dup2(nothing, fd) < 0)
            return false;
        close(nothing);
    }
    close_between(3, (unsigned)keep - 1);
    close_between((unsigned)keep + 1, ~0U);
    return true;
}

static bool set_signals(struct agent *agent)
{
    sigset_t all, watched;
    signal(SIGPIPE, SIG_IGN);
    sigfillset(&all);
    sigemptyset(&watched);
    const int forwarded[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
    for (size_t i = 0; i < sizeof forwarded / sizeof *forwarded; i++)
        sigaddset(&watched, forwarded[i]);
    const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&all, faults[i]);
    signal(SIGCHLD, SIG_DFL); /* an inherited SIG_IGN would reap behind our back */
    agent->signal_fd = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
    return agent->signal_fd >= 0 && sigprocmask(SIG_SETMASK, &all, NULL) == 0;
}

static void raise_limits(struct agent *agent)
{
    getrlimit(RLIMIT_NOFILE, &agent->nofile);
    struct rlimit most = {.rlim_cur = agent->nofile.rlim_max, .rlim_max = agent->nofile.rlim_max};
    setrlimit(RLIMIT_NOFILE, &most);
    int fd = agent->proc_fd < 0 ? -1 : openat(agent->proc_fd, "self/oom_score_adj", O_RDONLY | O_CLOEXEC);
    char score = 0;
    agent->lower_oom_score = fd >= 0 && read(fd, &score, 1) == 1 && score == '-';
    if (fd >= 0)
        close(fd);
}

static bool set_up(struct agent *agent, int fd)
{
    fill_stdio();
    if (!take_socket(agent, fd))
        return false;
    agent->pid = getpid();
    agent->is_init = agent->pid == 1;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    agent->proc_fd = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (agent->proc_fd >= 0 && faccessat(agent->proc_fd, "self/stat", R_OK, 0) != 0) {
        close(agent->proc_fd);
        agent->proc_fd = -1;
    }
    raise_limits(agent);
    agent->control_poll = epoll_create1(EPOLL_CLOEXEC);
    agent->output_poll = epoll_create1(EPOLL_CLOEXEC);
    return set_signals(agent) && agent->control_poll >= 0 && agent->output_poll >= 0;
}

int main(int argc, char **argv)
{
    prctl(PR_SET_DUMPABLE, 0);
    int fd = parse_fd(argc, argv);
    if (fd < 0) {
        static const char usage[] = "usage: layerkit-agent --fd N   (N: an open connection to the host)\n";
        return write(2, usage, sizeof usage - 1) < 0 ? 3 : 2;
    }
    struct agent *agent = calloc(1, sizeof *agent);
    if (!agent || !set_up(agent, fd)) {
        perror("layerkit-agent");
        return 1;
    }
    serve(agent);
    say_goodbye(agent);
    return 0;
}
