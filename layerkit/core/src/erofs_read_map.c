/* Where the bytes of an inode lie: Linux fs/erofs/data.c, erofs_map_blocks and erofs_map_dev. */
#include "private/erofs_read.h"

int lk_erofs_place(const struct lk_erofs *image, uint64_t block, uint64_t count, uint64_t *at)
{
    if (image->device_count && block >= image->mapped_blkaddr) {
        uint64_t relative = block - image->mapped_blkaddr;
        *at = relative * EROFS_BLOCK_SIZE;
        return relative <= image->data_blocks && count <= image->data_blocks - relative ? LK_IN_DATA : LK_IN_NONE;
    }
    *at = block * EROFS_BLOCK_SIZE;
    return block <= image->blocks && count <= image->blocks - block ? LK_IN_IMAGE : LK_IN_NONE;
}

/* The sizes of the two parts of a flat inode. */
static void flat_sizes(const struct lk_erofs_inode *inode, struct lk_flat *flat)
{
    memset(flat, 0, sizeof *flat);
    flat->blocks_size = inode->size;
    if (inode->layout == LK_EROFS_FLAT_INLINE && inode->size) {
        flat->tail_size = (inode->size - 1) % EROFS_BLOCK_SIZE + 1;
        flat->tail_at = inode->tail_at;
        flat->blocks_size = inode->size - flat->tail_size;
    }
}

int lk_erofs_flat(const struct lk_erofs *image, const struct lk_erofs_inode *inode, struct lk_flat *flat,
                  struct lk_fault *fault)
{
    if (inode->layout == LK_EROFS_CHUNK_BASED)
        return lk_fail(fault, LK_FAULT_NOT_IN_IMAGE, inode->nid, inode->layout);
    flat_sizes(inode, flat);
    if (!flat->blocks_size)
        return 0;
    int place = lk_erofs_place(image, inode->block, lk_blocks_of(flat->blocks_size), &flat->blocks_at);
    if (place == LK_IN_NONE)
        return lk_fail(fault, LK_FAULT_BLOCK_RANGE, inode->nid, inode->block);
    if (place != LK_IN_IMAGE)
        return lk_fail(fault, LK_FAULT_NOT_IN_IMAGE, inode->nid, inode->block);
    if (!lk_inside(image, flat->blocks_at, flat->blocks_size))
        return lk_fail(fault, LK_FAULT_TRUNCATED, inode->nid, flat->blocks_at);
    return 0;
}

int lk_erofs_read(const struct lk_erofs *image, const struct lk_erofs_inode *inode, uint8_t *out,
                  struct lk_fault *fault)
{
    struct lk_flat flat;
    if (lk_erofs_flat(image, inode, &flat, fault))
        return -1;
    memcpy(out, image->data + flat.blocks_at, flat.blocks_size);
    memcpy(out + flat.blocks_size, image->data + flat.tail_at, flat.tail_size);
    return 0;
}

int lk_erofs_chunk(const struct lk_erofs *image, const struct lk_erofs_inode *inode, uint64_t number,
                   struct lk_erofs_extent *out, struct lk_fault *fault)
{
    const uint8_t *entry = image->data + inode->tail_at + number * inode->chunk_unit;
    uint64_t chunk_size = UINT64_C(1) << inode->chunk_bits;
    out->file_offset = number << inode->chunk_bits;
    out->length = inode->size - out->file_offset < chunk_size ? inode->size - out->file_offset : chunk_size;
    out->place = LK_IN_NONE;
    out->at = 0;
    struct erofs_chunk_index index = {0, 0, 0};
    if (inode->chunk_unit == sizeof index)
        memcpy(&index, entry, sizeof index);
    else
        memcpy(&index.block, entry, sizeof index.block);
    if (index.block == EROFS_NO_BLOCK)
        return 0;
    /* The kernel masks device ids to the bits that the device table needs: one bit for one device. */
    if (image->device_count && index.device_id & 1)
        return lk_fail(fault, LK_FAULT_DEVICE_ID, inode->nid, index.device_id);
    out->place = (uint64_t)lk_erofs_place(image, index.block, lk_blocks_of(out->length), &out->at);
    if (out->place == LK_IN_NONE)
        return lk_fail(fault, LK_FAULT_BLOCK_RANGE, inode->nid, index.block);
    return 0;
}

static int follows(const struct lk_erofs_extent *last, const struct lk_erofs_extent *next)
{
    return last->place == next->place && (next->place == LK_IN_NONE || last->at + last->length == next->at);
}

static int map_chunks(const struct lk_erofs *image, const struct lk_erofs_inode *inode, struct lk_erofs_extent *out,
                      size_t *count, struct lk_fault *fault)
{
    for (uint64_t number = 0; number < inode->chunk_count; number++) {
        struct lk_erofs_extent next;
        if (lk_erofs_chunk(image, inode, number, &next, fault))
            return -1;
        if (*count && follows(&out[*count - 1], &next))
            out[*count - 1].length += next.length;
        else
            out[(*count)++] = next;
    }
    return 0;
}

int lk_erofs_map(const struct lk_erofs *image, const struct lk_erofs_inode *inode, struct lk_erofs_extent *out,
                 size_t *count, struct lk_fault *fault)
{
    *count = 0;
    if (inode->layout == LK_EROFS_CHUNK_BASED)
        return map_chunks(image, inode, out, count, fault);
    struct lk_flat flat;
    flat_sizes(inode, &flat);
    if (flat.blocks_size) {
        uint64_t at;
        int place = lk_erofs_place(image, inode->block, lk_blocks_of(flat.blocks_size), &at);
        if (place == LK_IN_NONE)
            return lk_fail(fault, LK_FAULT_BLOCK_RANGE, inode->nid, inode->block);
        out[(*count)++] = (struct lk_erofs_extent){0, flat.blocks_size, at, (uint64_t)place};
    }
    if (flat.tail_size)
        out[(*count)++] = (struct lk_erofs_extent){flat.blocks_size, flat.tail_size, flat.tail_at, LK_IN_IMAGE};
    return 0;
}
