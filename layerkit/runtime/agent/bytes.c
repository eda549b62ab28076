/* Byte queues and little-endian numbers. */
#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"

size_t buffer_size(const struct buffer *buffer)
{
    return buffer->end - buffer->start;
}

uint8_t *buffer_reserve(struct buffer *buffer, size_t size)
{
    size_t used = buffer_size(buffer);
    if (buffer->capacity - buffer->end < size && buffer->start > 0) {
        memmove(buffer->data, buffer->data + buffer->start, used);
        buffer->start = 0;
        buffer->end = used;
    }
    if (buffer->capacity - buffer->end < size) {
        size_t wanted = used + size;
        size_t capacity = buffer->capacity * 2 > wanted ? buffer->capacity * 2 : wanted;
        uint8_t *data = realloc(buffer->data, capacity);
        if (!data)
            return NULL;
        buffer->data = data;
        buffer->capacity = capacity;
    }
    return buffer->data + buffer->end;
}

bool buffer_append(struct buffer *buffer, const void *data, size_t size)
{
    if (size == 0)
        return true;
    uint8_t *at = buffer_reserve(buffer, size);
    if (!at)
        return false;
    memcpy(at, data, size);
    buffer->end += size;
    return true;
}

void buffer_consume(struct buffer *buffer, size_t size)
{
    buffer->start += size;
    if (buffer->start == buffer->end)
        buffer->start = buffer->end = 0;
}

void buffer_free(struct buffer *buffer)
{
    free(buffer->data);
    *buffer = (struct buffer){0};
}

void put_u16(uint8_t *at, uint16_t value)
{
    value = htole16(value);
    memcpy(at, &value, sizeof value);
}

void put_u32(uint8_t *at, uint32_t value)
{
    value = htole32(value);
    memcpy(at, &value, sizeof value);
}

void put_u64(uint8_t *at, uint64_t value)
{
    value = htole64(value);
    memcpy(at, &value, sizeof value);
}

uint16_t get_u16(const uint8_t *at)
{
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return le16toh(value);
}

uint32_t get_u32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return le32toh(value);
}

uint64_t get_u64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return le64toh(value);
}

void put_header(uint8_t *at, uint8_t type, uint32_t id, uint32_t length)
{
    at[0] = 'L';
    at[1] = 'K';
    at[2] = type;
    at[3] = 0;
    put_u32(at + 4, id);
    put_u32(at + 8, length);
}
