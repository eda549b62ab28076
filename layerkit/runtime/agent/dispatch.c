/* Frames from the host: cut out of the stream, checked, done. Nothing here trusts a length or a count. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "agent.h"

enum { RECEIVE_SIZE = 128 << 10, EXEC_FIXED = 40 };

struct frame {
    uint8_t type;
    uint32_t id, size;
    const uint8_t *payload;
};

static void malformed(struct agent *agent, const struct frame *frame, const char *text)
{
    send_error(agent, ERROR_MALFORMED, frame->type, frame->id, false, text);
}

static void on_hello(struct agent *agent, const struct frame *frame)
{
    if (frame->size != 4 || agent->greeted) {
        malformed(agent, frame, agent->greeted ? "a second HELLO" : "a HELLO has 4 bytes");
        return;
    }
    if (get_u16(frame->payload) != PROTOCOL_VERSION) {
        send_error(agent, ERROR_VERSION, frame->type, 0, true, "this agent speaks version 1 only");
        return;
    }
    agent->greeted = true;
    agent->keep = get_u16(frame->payload + 2) & HELLO_KEEP;
    send_welcome(agent);
}

/* Exactly 2 + argc + envc strings, the last byte a NUL. */
static bool check_strings(const uint8_t *text, size_t size, uint64_t wanted)
{
    uint64_t count = 0;
    if (size == 0 || text[size - 1] != 0)
        return false;
    for (const uint8_t *at = text, *end = text + size; at < end; count++)
        at = (const uint8_t *)memchr(at, 0, (size_t)(end - at)) + 1;
    return count == wanted;
}

static bool decode_request(const struct frame *frame, struct request *request)
{
    const uint8_t *at = frame->payload;
    if (frame->size < EXEC_FIXED)
        return false;
    request->flags = get_u32(at);
    request->argc = get_u32(at + 4);
    request->envc = get_u32(at + 8);
    request->credit[0] = get_u32(at + 12);
    request->credit[1] = get_u32(at + 16);
    request->timeout_ms = get_u32(at + 20);
    request->cap[0] = get_u64(at + 24);
    request->cap[1] = get_u64(at + 32);
    if (request->flags & ~(uint32_t)EXEC_STDIN || request->argc == 0)
        return false;
    uint64_t strings = 2 + (uint64_t)request->argc + request->envc;
    if (strings > MAX_STRINGS || !check_strings(at + EXEC_FIXED, frame->size - EXEC_FIXED, strings))
        return false;
    request->cwd = (const char *)at + EXEC_FIXED;
    request->user = request->cwd + strlen(request->cwd) + 1;
    request->strings = request->user + strlen(request->user) + 1;
    return true;
}

static void on_exec(struct agent *agent, const struct frame *frame)
{
    struct request request;
    if (frame->id == 0 || !decode_request(frame, &request))
        malformed(agent, frame, "an EXEC whose fields and strings disagree");
    else if (agent->stop != STOP_NONE || agent->killing_all)
        send_error(agent, ERROR_STOPPING, frame->type, frame->id, false, "everything is being ended");
    else if (find_exec(agent, frame->id))
        send_error(agent, ERROR_EXEC_EXISTS, frame->type, frame->id, false, "this number is in use");
    else
        start_exec(agent, frame->id, &request);
}

static void on_signal(struct agent *agent, struct exec *exec, const struct frame *frame)
{
    uint32_t number = frame->size == 8 ? get_u32(frame->payload) : 0;
    if (number < 1 || number > 64 || get_u32(frame->payload + 4) > SCOPE_GROUP) {
        malformed(agent, frame, "no such signal or scope");
        return;
    }
    if (signal_exec(exec, (int)number, get_u32(frame->payload + 4)) != 0)
        send_error(agent, ERROR_NO_SUCH_EXEC, frame->type, frame->id, false, "it has no process to signal");
}

static void on_kill(struct agent *agent, struct exec *exec, const struct frame *frame)
{
    if (frame->size != 4 || get_u32(frame->payload) & ~(uint32_t)KILL_DISCARD) {
        malformed(agent, frame, "a KILL has 4 bytes of known flags");
        return;
    }
    for (int i = 0; i < 2 && get_u32(frame->payload) & KILL_DISCARD; i++)
        discard_stream(agent, exec, i);
    kill_exec(agent, exec);
}

static void on_credit(struct agent *agent, struct exec *exec, const struct frame *frame)
{
    if (frame->size != 8 || get_u32(frame->payload) < 1 || get_u32(frame->payload) > 2) {
        malformed(agent, frame, "a CREDIT names stream 1 or 2 and a size");
        return;
    }
    add_credit(agent, exec, (int)get_u32(frame->payload) - 1, get_u32(frame->payload + 4));
}

/* Frames to an exec that has just ended are no fault of the host's; only a signal deserves an answer. */
static void on_exec_frame(struct agent *agent, const struct frame *frame)
{
    struct exec *exec = find_exec(agent, frame->id);
    if (!exec) {
        if (frame->type == FRAME_SIGNAL || frame->type == FRAME_KILL)
            send_error(agent, ERROR_NO_SUCH_EXEC, frame->type, frame->id, false, "no such exec");
        return;
    }
    if (frame->type == FRAME_STDIN)
        feed_stdin(agent, exec, frame->payload, frame->size);
    else if (frame->type == FRAME_STDIN_EOF)
        end_stdin(agent, exec);
    else if (frame->type == FRAME_CREDIT)
        on_credit(agent, exec, frame);
    else if (frame->type == FRAME_SIGNAL)
        on_signal(agent, exec, frame);
    else
        on_kill(agent, exec, frame);
}

static void on_kill_all(struct agent *agent, const struct frame *frame)
{
    if (agent->ack_count == MAX_ACKS) {
        send_error(agent, ERROR_LIMIT, frame->type, frame->id, false, "too many of these at once");
        return;
    }
    agent->acks[agent->ack_count++] = frame->id;
    if (frame->type == FRAME_SHUTDOWN)
        begin_stop(agent, STOP_KILL);
    else
        start_kill_all(agent);
}

static void dispatch(struct agent *agent, const struct frame *frame)
{
    if (!agent->greeted && frame->type != FRAME_HELLO)
        send_error(agent, ERROR_HELLO_EXPECTED, frame->type, frame->id, true, "the first frame must be HELLO");
    else if (frame->type == FRAME_HELLO)
        on_hello(agent, frame);
    else if (frame->type == FRAME_EXEC)
        on_exec(agent, frame);
    else if (frame->type >= FRAME_STDIN && frame->type <= FRAME_KILL)
        on_exec_frame(agent, frame);
    else if (frame->type == FRAME_KILL_ALL || frame->type == FRAME_SHUTDOWN)
        on_kill_all(agent, frame);
    else if (frame->type == FRAME_PING)
        send_frame(agent, FRAME_PONG, frame->id, frame->payload, frame->size);
    else if (frame->type >= FRAME_RESERVED_FIRST && frame->type <= FRAME_RESERVED_LAST)
        send_error(agent, ERROR_RESERVED_FRAME, frame->type, frame->id, false, "reserved, not done by this agent");
    else
        send_error(agent, ERROR_UNKNOWN_FRAME, frame->type, frame->id, false, "unknown frame type");
}

static uint32_t most_payload(uint8_t type)
{
    switch (type) {
    case FRAME_PING:
        return MAX_PING;
    case FRAME_STDIN:
        return MAX_DATA;
    case FRAME_HELLO:
    case FRAME_STDIN_EOF:
    case FRAME_CREDIT:
    case FRAME_SIGNAL:
    case FRAME_KILL:
    case FRAME_KILL_ALL:
    case FRAME_SHUTDOWN:
        return 64;
    default:
        return MAX_PAYLOAD;
    }
}

/* The next whole frame; false: more bytes are needed, or the stream is lost (which closes the connection). */
static bool next_frame(struct agent *agent, struct frame *frame)
{
    const struct buffer *received = &agent->received;
    const uint8_t *at = received->data + received->start;
    if (agent->host_lost || buffer_size(received) < HEADER_SIZE)
        return false;
    *frame = (struct frame){.type = at[2], .id = get_u32(at + 4), .size = get_u32(at + 8), .payload = at + HEADER_SIZE};
    if (at[0] != 'L' || at[1] != 'K' || at[3] != 0) {
        send_error(agent, ERROR_MALFORMED, at[2], 0, true, "this is not the header of a frame");
        return false;
    }
    if (frame->size > most_payload(frame->type)) {
        send_error(agent, ERROR_TOO_LARGE, frame->type, frame->id, true, "the payload is too large");
        return false;
    }
    return buffer_size(received) >= HEADER_SIZE + (size_t)frame->size;
}

bool dispatch_received(struct agent *agent)
{
    struct frame frame = {0};
    while (next_frame(agent, &frame)) {
        if (buffer_size(&agent->unsent) >= CONTROL_HIGH)
            return true;
        dispatch(agent, &frame);
        buffer_consume(&agent->received, HEADER_SIZE + (size_t)frame.size);
    }
    if (buffer_size(&agent->received) == 0 && agent->received.capacity > RECEIVE_SIZE)
        buffer_free(&agent->received);
    return false;
}

void receive(struct agent *agent)
{
    uint8_t *at = buffer_reserve(&agent->received, RECEIVE_SIZE);
    if (!at) {
        lose_host(agent);
        return;
    }
    ssize_t size = read(agent->socket, at, RECEIVE_SIZE);
    if (size > 0)
        agent->received.end += (size_t)size;
    else if (size == 0 || (errno != EAGAIN && errno != EINTR))
        lose_host(agent);
}
