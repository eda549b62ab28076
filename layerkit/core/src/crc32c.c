/* CRC-32C, reflected polynomial 0x82f63b78; the SSE4.2 instruction where the processor has it. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "crc32c.h"

static uint32_t by_bit(uint32_t crc, const uint8_t *data, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (0x82f63b78u & (0u - (crc & 1u)));
    }
    return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const uint8_t *data, size_t size)
{
    uint64_t wide = crc;
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    crc = (uint32_t)wide;
    for (; size; data++, size--)
        crc = __builtin_ia32_crc32qi(crc, *data);
    return crc;
}
#endif

uint32_t lk_crc32c(uint32_t crc, const uint8_t *data, size_t size)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2"))
        return by_instruction(crc, data, size);
#endif
    return by_bit(crc, data, size);
}
