/* Standard input and output of execs: pipes on one side, frames and credit on the other. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "agent.h"

uint64_t make_tag(const struct exec *exec, enum tag_kind kind)
{
    return (uint64_t)exec->generation << 32 | (uint64_t)exec->slot << 8 | kind;
}

void arm_stream(struct agent *agent, struct exec *exec, int index)
{
    struct stream *stream = &exec->out[index];
    bool wanted = stream->fd >= 0 && (stream->credit > 0 || stream->cap_left == 0);
    if (wanted == stream->armed)
        return;
    /* Removed and not just silenced: EPOLLHUP cannot be masked. */
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = make_tag(exec, index ? TAG_STDERR : TAG_STDOUT)};
    if (epoll_ctl(agent->output_poll, wanted ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, stream->fd, &event) == 0)
        stream->armed = wanted;
}

/* Taken out of the poll set by hand: a supervisor that has just been forked may hold a copy for a moment. */
static void close_polled(int poll_fd, int fd)
{
    epoll_ctl(poll_fd, EPOLL_CTL_DEL, fd, NULL);
    close(fd);
}

static void end_stream(struct agent *agent, struct stream *stream)
{
    if (stream->fd >= 0)
        close_polled(agent->output_poll, stream->fd);
    stream->fd = -1;
    stream->armed = false;
    stream->owed = 0;
}

static void account(struct stream *stream, size_t size)
{
    stream->owed -= size < stream->owed ? size : stream->owed;
}

/* One read, at most one frame. */
void pump_stream(struct agent *agent, struct exec *exec, int index)
{
    struct stream *stream = &exec->out[index];
    if (stream->fd < 0 || !stream->armed)
        return;
    uint8_t scratch[16 << 10];
    bool discards = stream->cap_left == 0;
    size_t wanted = discards ? sizeof scratch : stream->credit < MAX_DATA ? stream->credit : MAX_DATA;
    uint8_t *at = discards ? NULL : buffer_reserve(&agent->unsent, HEADER_SIZE + MAX_DATA);
    if (!discards && !at)
        return; /* memory is short: the event comes again */
    ssize_t size = read(stream->fd, discards ? scratch : at + HEADER_SIZE, wanted);
    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (size <= 0) {
        end_stream(agent, stream);
        return;
    }
    account(stream, (size_t)size);
    exec->quiet_ns = now_ns();
    size_t kept = (uint64_t)size < stream->cap_left ? (size_t)size : (size_t)stream->cap_left;
    if (kept < (size_t)size)
        stream->truncated = true;
    if (stream->cap_left != UINT64_MAX)
        stream->cap_left -= kept;
    if (kept > 0) {
        put_header(at, index ? FRAME_STDERR : FRAME_STDOUT, exec->id, (uint32_t)kept);
        agent->unsent.end += HEADER_SIZE + kept;
        stream->credit -= (uint32_t)kept;
    }
    arm_stream(agent, exec, index);
}

void add_credit(struct agent *agent, struct exec *exec, int index, uint32_t bytes)
{
    struct stream *stream = &exec->out[index];
    stream->credit = bytes > UINT32_MAX - stream->credit ? UINT32_MAX : stream->credit + bytes;
    arm_stream(agent, exec, index);
}

/* What still writes to this pipe goes on undisturbed: it is read and dropped until its end. */
void discard_stream(struct agent *agent, struct exec *exec, int index)
{
    struct stream *stream = &exec->out[index];
    if (stream->fd < 0)
        return;
    if (stream->armed)
        epoll_ctl(agent->output_poll, EPOLL_CTL_DEL, stream->fd, NULL);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)stream->fd << 8 | TAG_SINK};
    if (agent->sink_count < MAX_SINKS && epoll_ctl(agent->control_poll, EPOLL_CTL_ADD, stream->fd, &event) == 0) {
        agent->sink_count++;
        stream->fd = -1;
    }
    end_stream(agent, stream);
}

void drain_sink(struct agent *agent, int fd)
{
    uint8_t scratch[16 << 10];
    ssize_t size = read(fd, scratch, sizeof scratch);
    if (size > 0 || (size < 0 && (errno == EAGAIN || errno == EINTR)))
        return;
    close_polled(agent->control_poll, fd);
    agent->sink_count--;
}

/* --- standard input ---------------------------------------------------------------------------------------------- */

static void return_room(struct agent *agent, struct exec *exec, size_t size)
{
    exec->stdin_done += (uint32_t)size;
    if (exec->stdin_done < STDIN_WINDOW / 4)
        return;
    uint8_t payload[4];
    put_u32(payload, exec->stdin_done);
    exec->stdin_room += exec->stdin_done;
    exec->stdin_done = 0;
    send_frame(agent, FRAME_STDIN_CREDIT, exec->id, payload, sizeof payload);
}

void close_stdin(struct agent *agent, struct exec *exec)
{
    if (exec->stdin_fd >= 0)
        close_polled(agent->control_poll, exec->stdin_fd);
    exec->stdin_fd = -1;
    exec->stdin_armed = false;
    buffer_free(&exec->input);
}

/* Writes what the pipe takes; false when nobody reads it any more. */
static bool write_stdin(struct agent *agent, struct exec *exec, const uint8_t *data, size_t size, size_t *written)
{
    *written = 0;
    while (*written < size) {
        ssize_t done = write(exec->stdin_fd, data + *written, size - *written);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0 && errno == EAGAIN)
            break;
        if (done < 0) {
            close_stdin(agent, exec);
            send_frame(agent, FRAME_STDIN_CLOSED, exec->id, NULL, 0);
            return false;
        }
        *written += (size_t)done;
    }
    return_room(agent, exec, *written);
    return true;
}

static void arm_stdin(struct agent *agent, struct exec *exec)
{
    bool wanted = exec->stdin_fd >= 0 && buffer_size(&exec->input) > 0;
    if (wanted == exec->stdin_armed)
        return;
    struct epoll_event event = {.events = EPOLLOUT, .data.u64 = make_tag(exec, TAG_STDIN)};
    if (exec->stdin_fd < 0 ||
        epoll_ctl(agent->control_poll, wanted ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, exec->stdin_fd, &event) == 0)
        exec->stdin_armed = wanted;
}

void flush_stdin(struct agent *agent, struct exec *exec)
{
    size_t written = 0, size = buffer_size(&exec->input);
    if (exec->stdin_fd < 0)
        return;
    if (size > 0) {
        if (!write_stdin(agent, exec, exec->input.data + exec->input.start, size, &written))
            return;
        buffer_consume(&exec->input, written);
    }
    if (written == size)
        buffer_free(&exec->input);
    arm_stdin(agent, exec);
    if (written == size && exec->stdin_eof)
        close_stdin(agent, exec);
}

void feed_stdin(struct agent *agent, struct exec *exec, const uint8_t *data, size_t size)
{
    size_t written = 0;
    if (exec->stdin_fd < 0 || exec->stdin_eof)
        return; /* it was under way when the command closed its input */
    if (size > exec->stdin_room) {
        send_error(agent, ERROR_FLOW, FRAME_STDIN, exec->id, false, "more input than its credit allows");
        close_stdin(agent, exec);
        return;
    }
    exec->stdin_room -= (uint32_t)size;
    if (buffer_size(&exec->input) == 0 && !write_stdin(agent, exec, data, size, &written))
        return;
    if (!buffer_append(&exec->input, data + written, size - written)) {
        send_error(agent, ERROR_LIMIT, FRAME_STDIN, exec->id, false, "no memory for the input");
        close_stdin(agent, exec);
        return;
    }
    arm_stdin(agent, exec);
}

void end_stdin(struct agent *agent, struct exec *exec)
{
    exec->stdin_eof = true;
    flush_stdin(agent, exec);
}
