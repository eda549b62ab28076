/* layerkit-agent: PID 1 of every sandbox. The wire format is docs/formats/agent-protocol.md.
 *
 * One thread, one poll loop, no globals: everything hangs on `struct agent`. Nothing in this process may block on the
 * image (a lazily loaded file, a fifo called /etc/passwd): all of that happens in the supervisor of an exec (launch.c).
 */
#ifndef LAYERKIT_AGENT_H
#define LAYERKIT_AGENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

enum {
    PROTOCOL_VERSION = 1,
    HEADER_SIZE = 12,
    MAX_PAYLOAD = 4 << 20, /* an EXEC frame: argv and environment together */
    MAX_DATA = 64 << 10,   /* STDIN, STDOUT and STDERR frames */
    MAX_PING = 64,
    MAX_EXECS = 1024,
    MAX_SINKS = 1024,
    MAX_ACKS = 16,
    MAX_STRINGS = 1 << 18,
    MAX_REPORT_PATH = 1024,
    STDIN_WINDOW = 256 << 10,
    OUTPUT_HIGH = 256 << 10,  /* data frames wait while this much is unsent */
    CONTROL_HIGH = 512 << 10, /* and the host is not read while this much is */
    OUTPUT_LIMIT = 16 << 20,  /* more than a host that reads can ever leave unsent */
};

enum frame_type {
    FRAME_HELLO = 0x01,
    FRAME_EXEC = 0x02,
    FRAME_STDIN = 0x03,
    FRAME_STDIN_EOF = 0x04,
    FRAME_CREDIT = 0x05,
    FRAME_SIGNAL = 0x06,
    FRAME_KILL = 0x07,
    FRAME_KILL_ALL = 0x08,
    FRAME_PING = 0x09,
    FRAME_SHUTDOWN = 0x0a,
    FRAME_RESERVED_FIRST = 0x10, /* pty, files, tar, reseed: see the protocol's page */
    FRAME_RESERVED_LAST = 0x4f,
    FRAME_WELCOME = 0x81,
    FRAME_STARTED = 0x82,
    FRAME_STDOUT = 0x83,
    FRAME_STDERR = 0x84,
    FRAME_STDIN_CREDIT = 0x85,
    FRAME_STDIN_CLOSED = 0x86,
    FRAME_EXIT = 0x87,
    FRAME_ACK = 0x88,
    FRAME_PONG = 0x89,
    FRAME_ERROR = 0x8a,
};

enum error_code {
    ERROR_UNKNOWN_FRAME = 1,
    ERROR_RESERVED_FRAME = 2,
    ERROR_MALFORMED = 3,
    ERROR_TOO_LARGE = 4,
    ERROR_NO_SUCH_EXEC = 5,
    ERROR_EXEC_EXISTS = 6,
    ERROR_LIMIT = 7,
    ERROR_VERSION = 8,
    ERROR_HELLO_EXPECTED = 9,
    ERROR_FLOW = 10,
    ERROR_STOPPING = 11,
};

enum { HELLO_KEEP = 1, WELCOME_INIT = 1, WELCOME_PROC = 2, EXEC_STDIN = 1, KILL_DISCARD = 1 };
enum { SCOPE_LEADER = 0, SCOPE_GROUP = 1 };
enum exit_kind { EXIT_CODE = 0, EXIT_SIGNAL = 1, EXIT_NOT_STARTED = 2 };
enum { EXIT_TIMED_OUT = 1, EXIT_STDOUT_CUT = 2, EXIT_STDERR_CUT = 4, EXIT_LEFT_OPEN = 8, EXIT_PATH_EXISTS = 16 };
enum stage { STAGE_NONE = 0, STAGE_FORK = 1, STAGE_USER = 2, STAGE_GROUP = 3, STAGE_CWD = 4, STAGE_EXEC = 5 };

/* --- bytes ------------------------------------------------------------------------------------------------------ */

/* A linear byte queue: data[start..end) is what is in it. */
struct buffer {
    uint8_t *data;
    size_t start, end, capacity;
};

size_t buffer_size(const struct buffer *buffer);
/* Where `size` more bytes fit, or NULL when memory is short; commit with `buffer->end +=`. */
uint8_t *buffer_reserve(struct buffer *buffer, size_t size);
bool buffer_append(struct buffer *buffer, const void *data, size_t size);
void buffer_consume(struct buffer *buffer, size_t size);
void buffer_free(struct buffer *buffer);

void put_u16(uint8_t *at, uint16_t value);
void put_u32(uint8_t *at, uint32_t value);
void put_u64(uint8_t *at, uint64_t value);
uint16_t get_u16(const uint8_t *at);
uint32_t get_u32(const uint8_t *at);
uint64_t get_u64(const uint8_t *at);
void put_header(uint8_t *at, uint8_t type, uint32_t id, uint32_t length);

/* --- an exec ---------------------------------------------------------------------------------------------------- */

/* A decoded EXEC frame; the pointers lead into the receive buffer. */
struct request {
    uint32_t flags, argc, envc, credit[2], timeout_ms;
    uint64_t cap[2];
    const char *cwd, *user, *strings; /* strings: argv, then the environment, each ended by NUL */
};

/* What the agent is told through the report pipe; shorter than PIPE_BUF, so never torn. First the leader tells its own
 * pid, before any foreign code runs; then the supervisor an error, or the pipe ends: the leader has executed. */
struct report {
    int32_t leader;
    int32_t error;
    int32_t stage; /* with `error` 0 the rest means nothing */
    uint32_t exists;
    uint32_t path_size;
    char path[MAX_REPORT_PATH];
};

struct stream {
    int fd; /* -1: ended */
    bool armed, truncated;
    uint32_t credit;
    uint64_t cap_left;
    uint64_t owed; /* bytes that were in the pipe when the leader ended: these are delivered whatever happens */
};

struct exec {
    uint32_t id, generation;
    uint16_t slot;
    pid_t supervisor; /* 0: gone */
    pid_t leader;     /* 0: not known yet, or reaped */
    int report_fd, stdin_fd;
    bool reported, ended, timed_out, discard, left_open, killing, stdin_eof, stdin_armed;
    struct buffer input;
    uint32_t stdin_room, stdin_done;
    struct stream out[2];
    int64_t start_ns, end_ns, deadline_ns, quiet_ns, drain_limit_ns;
    uint64_t early_signals[2]; /* by scope, a bit a number: came before there was a leader */
    unsigned kill_ticks;
    int64_t kill_next_ns;
    int wait_status;
    struct rusage usage;
    struct report report;
};

/* --- the agent -------------------------------------------------------------------------------------------------- */

enum stop_state { STOP_NONE, STOP_TERM, STOP_KILL };

struct agent {
    int socket; /* -1: the host is gone */
    int signal_fd, control_poll, output_poll, proc_fd;
    pid_t pid;
    bool is_init, greeted, keep;
    bool host_lost; /* set anywhere, acted upon in the main loop only */
    struct rlimit nofile; /* as it was given to us, and as execs get it */
    bool lower_oom_score;
    struct buffer received, unsent;
    struct exec *execs[MAX_EXECS];
    uint32_t exec_count, generation, sink_count;
    enum stop_state stop;
    int64_t stop_deadline_ns;
    bool killing_all;
    int64_t kill_all_deadline_ns, kill_all_next_ns, all_gone_ns;
    uint32_t acks[MAX_ACKS], ack_count;
};

int64_t now_ns(void);

/* reply.c */
void send_frame(struct agent *agent, uint8_t type, uint32_t id, const void *payload, size_t size);
void send_error(struct agent *agent, uint16_t code, uint8_t type, uint32_t id, bool fatal, const char *text);
void send_welcome(struct agent *agent);
void send_exit(struct agent *agent, const struct exec *exec);
void flush_unsent(struct agent *agent);

void lose_host(struct agent *agent);

/* dispatch.c */
void receive(struct agent *agent);
/* True: stopped early, because too much is unsent. */
bool dispatch_received(struct agent *agent);

/* main.c */
void begin_stop(struct agent *agent, enum stop_state state);

/* exec.c */
struct exec *find_exec(struct agent *agent, uint32_t id);
struct exec *exec_at(struct agent *agent, uint64_t tag);
void start_exec(struct agent *agent, uint32_t id, const struct request *request);
void read_report(struct agent *agent, struct exec *exec);
void exec_reaped(struct agent *agent, pid_t pid, int status, const struct rusage *usage);
void settle_execs(struct agent *agent, int64_t now);
/* When `settle_execs` has something to do without an event, at the latest; INT64_MAX: never. */
int64_t next_exec_ns(const struct agent *agent, int64_t now);
int signal_exec(struct exec *exec, int number, uint32_t scope);

/* streams.c */
enum tag_kind { TAG_REPORT = 0, TAG_STDIN = 1, TAG_STDOUT = 2, TAG_STDERR = 3, TAG_SINK = 4 };
uint64_t make_tag(const struct exec *exec, enum tag_kind kind);
void arm_stream(struct agent *agent, struct exec *exec, int index);
void pump_stream(struct agent *agent, struct exec *exec, int index);
void add_credit(struct agent *agent, struct exec *exec, int index, uint32_t bytes);
void discard_stream(struct agent *agent, struct exec *exec, int index);
void drain_sink(struct agent *agent, int fd);
void feed_stdin(struct agent *agent, struct exec *exec, const uint8_t *data, size_t size);
void end_stdin(struct agent *agent, struct exec *exec);
void close_stdin(struct agent *agent, struct exec *exec);
void flush_stdin(struct agent *agent, struct exec *exec);

/* kill.c */
void kill_exec(struct agent *agent, struct exec *exec);
void step_kill(struct agent *agent, struct exec *exec, int64_t now);
void start_kill_all(struct agent *agent);
void step_kill_all(struct agent *agent, int64_t now);
void reap(struct agent *agent);

/* proc.c */
struct process {
    pid_t pid, parent, session;
    char state;
    bool marked;
};
struct snapshot {
    struct process *rows;
    size_t count, capacity;
};
bool take_snapshot(int proc_fd, struct snapshot *snapshot);
/* Marks every descendant of `root`, and every member of `session` (0: none) with its descendants; never `root`. */
void mark_tree(struct snapshot *snapshot, pid_t root, pid_t session);
void free_snapshot(struct snapshot *snapshot);

/* launch.c: the supervisor of one exec; never returns */
struct launch {
    const struct request *request;
    int stdio[3], report_fd, proc_fd;
    struct rlimit nofile;
    bool reset_oom_score;
};
void supervise(const struct launch *launch) __attribute__((noreturn));
void close_between(unsigned first, unsigned last);

/* users.c */
struct identity {
    bool switches; /* false: stay who we are */
    uid_t uid;
    gid_t gid;
    gid_t *groups;
    size_t group_count;
    const char *home;
};
/* 0, or an errno with `*stage` set; ENOENT: no such user or group. */
int resolve_identity(const char *user, struct identity *identity, int *stage);

#endif
