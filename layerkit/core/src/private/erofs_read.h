/* What the reader's files share. On-disk structs are copied out of the image: nothing there need be aligned. */
#ifndef LK_EROFS_READ_H
#define LK_EROFS_READ_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

#include "../erofs_reader.h"
#include "erofs_disk.h"

#define INCOMPAT_KNOWN (EROFS_INCOMPAT_ZERO_PADDING | EROFS_INCOMPAT_CHUNKED_FILE | EROFS_INCOMPAT_DEVICE_TABLE)

static inline uint32_t lk_word(const uint8_t *at)
{
    uint32_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

static inline int lk_fail(struct lk_fault *fault, uint32_t code, uint64_t nid, uint64_t value)
{
    fault->code = code;
    fault->nid = nid;
    fault->value = value;
    return -1;
}

/* Whether size bytes at `at` lie in the image, without overflow. */
static inline int lk_inside(const struct lk_erofs *image, uint64_t at, uint64_t size)
{
    return at <= image->size && size <= image->size - at;
}

static inline uint64_t lk_blocks_of(uint64_t size)
{
    return size / EROFS_BLOCK_SIZE + !!(size % EROFS_BLOCK_SIZE);
}

/* Where the blocks [block, block + count) lie: LK_IN_IMAGE or LK_IN_DATA (fs/erofs/data.c, erofs_map_dev), with *at the
 * offset there; LK_IN_NONE when they are not wholly in either. */
int lk_erofs_place(const struct lk_erofs *image, uint64_t block, uint64_t count, uint64_t *at);

/* The bytes of a flat inode in the image: whole blocks, then the tail inside the inode's block. */
struct lk_flat {
    uint64_t blocks_at, blocks_size, tail_at, tail_size;
};
int lk_erofs_flat(const struct lk_erofs *image, const struct lk_erofs_inode *inode, struct lk_flat *flat,
                  struct lk_fault *fault);

/* One chunk of a chunk-based inode: its place, offset there, and length in bytes. */
int lk_erofs_chunk(const struct lk_erofs *image, const struct lk_erofs_inode *inode, uint64_t number,
                   struct lk_erofs_extent *out, struct lk_fault *fault);

/* A directory block: size bytes at `at`, count entries. */
struct lk_dir_block {
    uint64_t at;
    uint32_t size, count;
};
int lk_dir_block(const struct lk_erofs *image, const struct lk_erofs_inode *inode, const struct lk_flat *flat,
                 uint64_t number, struct lk_dir_block *block, struct lk_fault *fault);
int lk_dir_entry(const struct lk_erofs *image, const struct lk_erofs_inode *inode, const struct lk_dir_block *block,
                 uint32_t number, struct lk_erofs_dirent *out, struct lk_fault *fault);
/* Byte order of names, as in directories: below, equal to or above zero. */
int lk_name_compare(const uint8_t *a, size_t a_size, const uint8_t *b, size_t b_size);

/* The xattrs of an inode one by one: lk_xattr_next returns 1, 0 at the end, -1 for a fault. */
struct lk_xattr_cursor {
    uint64_t nid, at, end, shared_at, shared_left;
};
int lk_xattr_begin(const struct lk_erofs *image, const struct lk_erofs_inode *inode, struct lk_xattr_cursor *cursor,
                   struct lk_fault *fault);
int lk_xattr_next(const struct lk_erofs *image, struct lk_xattr_cursor *cursor, struct lk_erofs_xattr_place *out,
                  struct lk_fault *fault);

#endif
