/* Zero runs, and the cutting of whole files into zero runs and FastCDC chunks. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "fastcdc.h"

#define RUN_BLOCKS (LK_CUT_ZERO_RUN / LK_CUT_BLOCK)
#define ZERO_PIECE (UINT64_C(1) << 63)
/* Longer runs become several pieces. */
#define ZERO_PIECE_MAX (UINT64_C(1) << 31)

int lk_is_zero(const uint8_t *data, size_t size)
{
    uint64_t word;
    if (size < sizeof word) {
        uint8_t all = 0;
        while (size)
            all |= data[--size];
        return !all;
    }
    memcpy(&word, data, sizeof word);
    /* Each byte equals the one eight before it: memcmp runs at memory speed. */
    return !word && !memcmp(data, data + sizeof word, size - sizeof word);
}

static int block_is_zero(const uint8_t *data, size_t at)
{
    return lk_is_zero(data + at, LK_CUT_BLOCK);
}

/* The end of the zero blocks from at on, the last one possibly cut short by the end of the file. */
static size_t zero_blocks_end(const uint8_t *data, size_t size, size_t at, int final)
{
    while (size - at >= LK_CUT_BLOCK && block_is_zero(data, at))
        at += LK_CUT_BLOCK;
    if (final && size - at < LK_CUT_BLOCK && lk_is_zero(data + at, size - at))
        at = size;
    return at;
}

/* The start of the zero blocks that end data, a partial block counting as one; not before low. All block-aligned. */
static size_t trailing_zeros_start(const uint8_t *data, size_t size, size_t low)
{
    size_t at = low + (size - low) / LK_CUT_BLOCK * LK_CUT_BLOCK;
    if (!lk_is_zero(data + at, size - at))
        return size;
    while (at > low && block_is_zero(data, at - LK_CUT_BLOCK))
        at -= LK_CUT_BLOCK;
    return at;
}

int lk_zero_run(const uint8_t *data, size_t size, size_t from, uint64_t offset, int final, size_t *start, size_t *end)
{
    size_t low = from + (size_t)(-(offset + from) % LK_CUT_BLOCK);
    if (low > size)
        low = size;
    /* A run that counts covers RUN_BLOCKS blocks, so one block in RUN_BLOCKS tells; low is always a possible start. */
    while (size - low >= LK_CUT_ZERO_RUN) {
        size_t at = low + (RUN_BLOCKS - 1) * LK_CUT_BLOCK;
        while (at >= low && block_is_zero(data, at)) {
            if (at == low) {
                *start = low;
                *end = zero_blocks_end(data, size, low + LK_CUT_ZERO_RUN, final);
                return 1;
            }
            at -= LK_CUT_BLOCK;
        }
        low = at + LK_CUT_BLOCK;
    }
    *start = final ? size : trailing_zeros_start(data, size, low);
    return 0;
}

struct pieces {
    uint64_t *out;
    size_t count, size;
};

static int report(struct pieces *pieces, uint64_t piece)
{
    if (pieces->count == pieces->size)
        return 0;
    pieces->out[pieces->count++] = piece;
    return 1;
}

/* Inside a zero run: takes more of it, and reports it where it is long or ends. Returns 0 when it has to stop. */
static int cut_zeros(struct lk_cut_state *state, const uint8_t *data, size_t size, int final, size_t *at,
                     struct pieces *pieces)
{
    size_t end = zero_blocks_end(data, size, *at, final);
    state->zeros += end - *at;
    state->offset += end - *at;
    *at = end;
    while (state->zeros >= ZERO_PIECE_MAX) {
        if (!report(pieces, ZERO_PIECE | ZERO_PIECE_MAX))
            return 0;
        state->zeros -= ZERO_PIECE_MAX;
    }
    if (!final && lk_is_zero(data + end, size - end < LK_CUT_BLOCK ? size - end : LK_CUT_BLOCK))
        return 0;
    if (state->zeros && !report(pieces, ZERO_PIECE | state->zeros))
        return 0;
    state->zeros = 0;
    state->in_zeros = 0;
    state->cut = 0;
    return 1;
}

/* Cuts the segment from *at to end; ends there when closed. Returns 0 when it has to stop. */
static int cut_segment(struct lk_cut_state *state, const uint8_t *data, size_t end, int closed, size_t *at,
                       struct pieces *pieces)
{
    while (*at < end) {
        size_t left = end - *at;
        int is_short = !state->cut && left <= LK_CUT_NORMAL;
        size_t length = is_short ? (closed ? left : 0) : lk_fastcdc_cut(data + *at, left, closed);
        if (!length || !report(pieces, length))
            return 0;
        *at += length;
        state->offset += length;
        state->cut += length;
    }
    return closed;
}

size_t lk_cut_file(struct lk_cut_state *state, const uint8_t *data, size_t size, int final, uint64_t *out,
                   size_t out_size, size_t *consumed)
{
    struct pieces pieces = {out, 0, out_size};
    size_t at = 0, start, end;
    uint64_t base = state->offset;
    /* A small file of zeros is one run, however short. */
    if (final && !base && size && size < LK_CUT_ZERO_RUN && lk_is_zero(data, size))
        state->in_zeros = 1;
    for (;;) {
        if (state->in_zeros && !cut_zeros(state, data, size, final, &at, &pieces))
            break;
        if (at == size)
            break;
        int found = lk_zero_run(data, size, at, base, final, &start, &end);
        if (!cut_segment(state, data, start, found || final, &at, &pieces))
            break;
        state->in_zeros = (uint32_t)found;
    }
    *consumed = at;
    return pieces.count;
}
