/* Frames to the host: queued here, written when the socket takes them. */
#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent.h"

void lose_host(struct agent *agent)
{
    agent->host_lost = true;
}

static bool has_host(const struct agent *agent)
{
    return agent->socket >= 0 && !agent->host_lost;
}

void send_frame(struct agent *agent, uint8_t type, uint32_t id, const void *payload, size_t size)
{
    if (!has_host(agent))
        return;
    uint8_t *at = NULL;
    if (buffer_size(&agent->unsent) + HEADER_SIZE + size <= OUTPUT_LIMIT)
        at = buffer_reserve(&agent->unsent, HEADER_SIZE + size);
    if (!at) { /* a frame that cannot be queued would be a gap in the stream */
        lose_host(agent);
        return;
    }
    put_header(at, type, id, (uint32_t)size);
    if (size)
        memcpy(at + HEADER_SIZE, payload, size);
    agent->unsent.end += HEADER_SIZE + size;
}

/* code u16, type u8, fatal u8, text. After a fatal one the connection is closed. */
void send_error(struct agent *agent, uint16_t code, uint8_t type, uint32_t id, bool fatal, const char *text)
{
    uint8_t payload[4 + 160];
    size_t size = strnlen(text, 160);
    put_u16(payload, code);
    payload[2] = type;
    payload[3] = fatal;
    memcpy(payload + 4, text, size);
    send_frame(agent, FRAME_ERROR, id, payload, 4 + size);
    if (fatal) {
        flush_unsent(agent);
        lose_host(agent);
    }
}

void send_welcome(struct agent *agent)
{
    uint8_t payload[24];
    put_u16(payload, PROTOCOL_VERSION);
    put_u16(payload + 2, (agent->is_init ? WELCOME_INIT : 0) | (agent->proc_fd >= 0 ? WELCOME_PROC : 0));
    put_u32(payload + 4, MAX_PAYLOAD);
    put_u32(payload + 8, MAX_DATA);
    put_u32(payload + 12, STDIN_WINDOW);
    put_u32(payload + 16, MAX_EXECS);
    put_u32(payload + 20, (uint32_t)agent->pid);
    send_frame(agent, FRAME_WELCOME, 0, payload, sizeof payload);
}

static uint64_t microseconds(struct timeval time)
{
    return (uint64_t)time.tv_sec * 1000000 + (uint64_t)time.tv_usec;
}

static void put_outcome(uint8_t *payload, const struct exec *exec)
{
    if (exec->report.error) {
        payload[0] = EXIT_NOT_STARTED;
        put_u32(payload + 4, (uint32_t)exec->report.error);
    } else if (WIFSIGNALED(exec->wait_status)) {
        payload[0] = EXIT_SIGNAL;
        put_u32(payload + 4, (uint32_t)WTERMSIG(exec->wait_status));
    } else {
        payload[0] = EXIT_CODE;
        put_u32(payload + 4, (uint32_t)WEXITSTATUS(exec->wait_status));
    }
}

void send_exit(struct agent *agent, const struct exec *exec)
{
    uint8_t payload[40 + MAX_REPORT_PATH] = {0};
    size_t path_size = exec->report.error ? exec->report.path_size : 0;
    put_outcome(payload, exec);
    payload[1] = (exec->timed_out ? EXIT_TIMED_OUT : 0) | (exec->out[0].truncated ? EXIT_STDOUT_CUT : 0) |
                 (exec->out[1].truncated ? EXIT_STDERR_CUT : 0) | (exec->left_open ? EXIT_LEFT_OPEN : 0) |
                 (exec->report.exists ? EXIT_PATH_EXISTS : 0);
    put_u16(payload + 2, (uint16_t)exec->report.stage);
    put_u64(payload + 8, (uint64_t)(exec->end_ns - exec->start_ns));
    put_u64(payload + 16, microseconds(exec->usage.ru_utime));
    put_u64(payload + 24, microseconds(exec->usage.ru_stime));
    put_u64(payload + 32, (uint64_t)exec->usage.ru_maxrss * 1024);
    memcpy(payload + 40, exec->report.path, path_size);
    send_frame(agent, FRAME_EXIT, exec->id, payload, 40 + path_size);
}

void flush_unsent(struct agent *agent)
{
    struct buffer *unsent = &agent->unsent;
    while (has_host(agent) && buffer_size(unsent) > 0) {
        ssize_t size = write(agent->socket, unsent->data + unsent->start, buffer_size(unsent));
        if (size > 0)
            buffer_consume(unsent, (size_t)size);
        else if (size < 0 && errno == EINTR)
            continue;
        else if (size < 0 && errno == EAGAIN)
            return;
        else
            lose_host(agent);
    }
}
