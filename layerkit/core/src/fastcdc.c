/* FastCDC with a 64-bit gear and two masks (Xia et al., USENIX ATC 2016). The window is the last 64 bytes: older ones
 * are shifted out, so a cut depends on content alone, also right behind the minimum that is skipped. */
#include <stddef.h>
#include <stdint.h>

#include "fastcdc.h"
#include "private/gear_table.h"

#define WINDOW 64
/* A cut where the top bits are zero: 20 of them before the normal size, 16 from it on. */
#define BELOW_NORMAL (UINT64_C(1) << (64 - 20))
#define FROM_NORMAL (UINT64_C(1) << (64 - 16))

/* The first length in [from, to) where the gear falls below limit; 0 for none. *gear covers the bytes before from. */
static size_t scan(const uint8_t *data, size_t from, size_t to, uint64_t limit, uint64_t *gear)
{
    uint64_t g = *gear;
    size_t at = from;
    for (; to - at >= 4; at += 4) {
        uint64_t a = (g << 1) + gear_table[data[at]];
        uint64_t b = (a << 1) + gear_table[data[at + 1]];
        uint64_t c = (b << 1) + gear_table[data[at + 2]];
        g = (c << 1) + gear_table[data[at + 3]];
        if (__builtin_expect(a < limit, 0))
            return at + 1;
        if (__builtin_expect(b < limit, 0))
            return at + 2;
        if (__builtin_expect(c < limit, 0))
            return at + 3;
        if (__builtin_expect(g < limit, 0))
            return at + 4;
    }
    for (; at < to; at++) {
        g = (g << 1) + gear_table[data[at]];
        if (g < limit)
            return at + 1;
    }
    *gear = g;
    return 0;
}

size_t lk_fastcdc_cut(const uint8_t *data, size_t size, int final)
{
    if (size <= LK_CUT_MIN)
        return final ? size : 0;
    size_t limit = size < LK_CUT_MAX ? size : LK_CUT_MAX;
    size_t normal = limit < LK_CUT_NORMAL ? limit : LK_CUT_NORMAL;
    uint64_t gear = 0;
    for (size_t at = LK_CUT_MIN - WINDOW; at < LK_CUT_MIN - 1; at++)
        gear = (gear << 1) + gear_table[data[at]];
    /* Lengths LK_CUT_MIN .. normal-1 by the strict mask, normal .. limit-1 by the loose one. */
    size_t length = scan(data, LK_CUT_MIN - 1, normal - 1, BELOW_NORMAL, &gear);
    if (!length)
        length = scan(data, normal - 1, limit - 1, FROM_NORMAL, &gear);
    if (length)
        return length;
    return final || limit == LK_CUT_MAX ? limit : 0;
}
