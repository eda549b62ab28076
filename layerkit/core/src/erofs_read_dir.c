/* Directories: Linux fs/erofs/dir.c and namei.c. */
#include "private/erofs_read.h"

#define DIRENT_SIZE ((uint32_t)sizeof(struct erofs_dirent))

int lk_name_compare(const uint8_t *a, size_t a_size, const uint8_t *b, size_t b_size)
{
    int order = memcmp(a, b, a_size < b_size ? a_size : b_size);
    return order ? order : (a_size > b_size) - (a_size < b_size);
}

static struct erofs_dirent dirent_at(const struct lk_erofs *image, const struct lk_dir_block *block, uint32_t number)
{
    struct erofs_dirent record;
    memcpy(&record, image->data + block->at + (uint64_t)number * DIRENT_SIZE, sizeof record);
    return record;
}

int lk_dir_block(const struct lk_erofs *image, const struct lk_erofs_inode *inode, const struct lk_flat *flat,
                 uint64_t number, struct lk_dir_block *block, struct lk_fault *fault)
{
    uint64_t offset = number * EROFS_BLOCK_SIZE;
    uint64_t left = inode->size - offset;
    block->size = left < EROFS_BLOCK_SIZE ? (uint32_t)left : EROFS_BLOCK_SIZE;
    block->at = offset < flat->blocks_size ? flat->blocks_at + offset : flat->tail_at;
    if (block->size < DIRENT_SIZE)
        return lk_fail(fault, LK_FAULT_DIR_BLOCK, inode->nid, number);
    uint32_t names_at = dirent_at(image, block, 0).name_offset;
    if (names_at < DIRENT_SIZE || names_at % DIRENT_SIZE || names_at >= block->size)
        return lk_fail(fault, LK_FAULT_DIR_BLOCK, inode->nid, number);
    block->count = names_at / DIRENT_SIZE;
    /* A lookup reads the last name up to the end of the block: behind a shorter directory there must be a zero. */
    if (offset < flat->blocks_size && block->size < EROFS_BLOCK_SIZE &&
        (!lk_inside(image, block->at, block->size + 1) || image->data[block->at + block->size]))
        return lk_fail(fault, LK_FAULT_DIR_BLOCK, inode->nid, number);
    return 0;
}

int lk_dir_entry(const struct lk_erofs *image, const struct lk_erofs_inode *inode, const struct lk_dir_block *block,
                 uint32_t number, struct lk_erofs_dirent *out, struct lk_fault *fault)
{
    struct erofs_dirent record = dirent_at(image, block, number);
    int is_last = number + 1 == block->count;
    uint32_t start = record.name_offset;
    uint32_t end = is_last ? block->size : dirent_at(image, block, number + 1).name_offset;
    if (start < block->count * DIRENT_SIZE || end > block->size || start >= end)
        return lk_fail(fault, LK_FAULT_DIR_BLOCK, inode->nid, number);
    const uint8_t *name = image->data + block->at + start;
    uint32_t size = (uint32_t)strnlen((const char *)name, end - start);
    if (!size || size > EROFS_MAX_NAME || memchr(name, '/', size) || (!is_last && size != end - start))
        return lk_fail(fault, LK_FAULT_NAME, inode->nid, number);
    *out = (struct lk_erofs_dirent){record.nid, block->at + start, size, record.file_type};
    return 0;
}

static int open_directory(const struct lk_erofs *image, const struct lk_erofs_inode *inode, struct lk_flat *flat,
                          struct lk_fault *fault)
{
    if (!S_ISDIR(inode->mode))
        return lk_fail(fault, LK_FAULT_NOT_A_DIRECTORY, inode->nid, inode->mode);
    return lk_erofs_flat(image, inode, flat, fault);
}

int lk_erofs_entries(const struct lk_erofs *image, const struct lk_erofs_inode *inode, struct lk_erofs_dirent *out,
                     size_t *count, struct lk_fault *fault)
{
    struct lk_flat flat;
    struct lk_dir_block block;
    *count = 0;
    if (open_directory(image, inode, &flat, fault))
        return -1;
    for (uint64_t number = 0; number < lk_blocks_of(inode->size); number++) {
        if (lk_dir_block(image, inode, &flat, number, &block, fault))
            return -1;
        for (uint32_t i = 0; i < block.count; i++)
            if (lk_dir_entry(image, inode, &block, i, &out[(*count)++], fault))
                return -1;
    }
    return 0;
}

/* The last block whose first name is not above the wanted one: 1 and *block, 0 for none, -1 for a fault. */
static int find_block(const struct lk_erofs *image, const struct lk_erofs_inode *inode, const uint8_t *name,
                      size_t name_size, struct lk_dir_block *block, struct lk_fault *fault)
{
    struct lk_flat flat;
    struct lk_dir_block middle;
    struct lk_erofs_dirent first;
    int found = 0;
    if (open_directory(image, inode, &flat, fault))
        return -1;
    uint64_t low = 0, high = lk_blocks_of(inode->size);
    while (low < high) {
        uint64_t number = low + (high - low) / 2;
        if (lk_dir_block(image, inode, &flat, number, &middle, fault) ||
            lk_dir_entry(image, inode, &middle, 0, &first, fault))
            return -1;
        if (lk_name_compare(name, name_size, image->data + first.name_at, first.name_size) < 0) {
            high = number;
        } else {
            *block = middle;
            found = 1;
            low = number + 1;
        }
    }
    return found;
}

int lk_erofs_find(const struct lk_erofs *image, const struct lk_erofs_inode *inode, const uint8_t *name,
                  size_t name_size, struct lk_erofs_dirent *out, struct lk_fault *fault)
{
    struct lk_dir_block block;
    int found = find_block(image, inode, name, name_size, &block, fault);
    if (found != 1)
        return found;
    uint32_t low = 0, high = block.count;
    while (low < high) {
        uint32_t number = low + (high - low) / 2;
        if (lk_dir_entry(image, inode, &block, number, out, fault))
            return -1;
        int order = lk_name_compare(name, name_size, image->data + out->name_at, out->name_size);
        if (!order)
            return 1;
        if (order < 0)
            high = number;
        else
            low = number + 1;
    }
    return 0;
}
