/* What the writer's stages hand to each other. Order: validate, tree, xattrs, layout; then emit, which decides nothing.
 * Every stage returns false after it has filled in the fault. */
#ifndef LK_EROFS_PLAN_H
#define LK_EROFS_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../erofs_writer.h"
#include "erofs_disk.h"

/* One dirent, `.` and `..` included. */
typedef struct {
    uint64_t key; /* the name's first 8 bytes, big endian: most comparisons end here */
    const uint8_t *name;
    uint32_t name_size;
    uint32_t child;
} lk_entry;

/* One xattr of one node. */
typedef struct {
    const uint8_t *name; /* full */
    const uint8_t *value;
    uint64_t group; /* index into shared_groups, or LK_NOT_SHARED */
    uint32_t node;
    uint16_t value_size;
    uint8_t name_size;
    uint8_t prefix; /* index on disk */
    uint8_t prefix_size;
} lk_xattr;

#define LK_NOT_SHARED UINT64_MAX

/* What has been decided about one node. */
typedef struct {
    uint64_t position;    /* of its inode in the image, bytes */
    uint64_t size;        /* i_size */
    uint64_t first_entry; /* directories: into entries */
    uint64_t first_xattr; /* into xattrs */
    uint64_t tail_size;   /* bytes behind the inode and its xattrs: inline data or chunk map */
    uint32_t entry_count;
    uint32_t xattr_count;
    uint32_t parent;      /* directories */
    uint32_t nlink;
    uint32_t ino;         /* 1 + position in the canonical order */
    uint32_t address;     /* i_u: block, device number or chunk format */
    uint32_t xattr_size;  /* bytes of header and inline xattrs, a multiple of 4 */
    uint32_t body_blocks; /* metadata blocks that hold its bytes */
    uint8_t shared_count;
    uint8_t layout;
    bool is_extended;
    bool is_reached;
} lk_place;

struct lk_erofs_plan {
    const lk_erofs_table *table;
    uint64_t *name_offsets;   /* of each link */
    uint64_t *xattr_offsets;  /* of each xattr in the table */
    lk_entry *entries;        /* directory by directory, each sorted */
    lk_xattr *xattrs;         /* node by node, each sorted */
    lk_xattr **shared_groups; /* one xattr of each shared group, in the order of the shared area */
    uint64_t *shared_positions;
    lk_place *places;
    uint32_t *order;          /* nodes in canonical order */
    uint64_t entry_count;
    uint64_t shared_count;
    uint64_t shared_start;    /* bytes */
    uint64_t meta_blocks;
    int64_t epoch_s;
    uint32_t epoch_ns;
    bool has_chunks;
};

static inline bool lk_fail(lk_erofs_fault *fault, uint32_t code, uint64_t node, uint64_t item)
{
    fault->code = code;
    fault->node = (uint32_t)node;
    fault->item = item;
    return false;
}

static inline uint64_t lk_round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

static inline uint64_t lk_blocks(uint64_t size)
{
    return size / EROFS_BLOCK_SIZE + (size % EROFS_BLOCK_SIZE != 0);
}

/* Entries of a chunk map. */
static inline uint64_t lk_chunk_count(uint64_t size, uint8_t chunk_bits)
{
    return (size >> chunk_bits) + ((size & ((UINT64_C(1) << chunk_bits) - 1)) != 0);
}

/* Bytes of a node's inode alone. */
static inline uint32_t lk_head_size(const lk_place *place)
{
    return place->is_extended ? sizeof(struct erofs_extended_inode) : sizeof(struct erofs_compact_inode);
}

/* Bytes of one xattr as an entry on disk. */
static inline uint32_t lk_xattr_entry_size(const lk_xattr *xattr)
{
    uint32_t size = (uint32_t)sizeof(struct erofs_xattr_entry) + xattr->name_size - xattr->prefix_size +
                    xattr->value_size;
    return (size + 3u) & ~3u;
}

bool lk_erofs_validate(const lk_erofs_table *table, lk_erofs_fault *fault);
bool lk_erofs_plan_tree(lk_erofs_plan *plan, lk_erofs_fault *fault);
bool lk_erofs_plan_xattrs(lk_erofs_plan *plan, lk_erofs_fault *fault);
bool lk_erofs_plan_layout(lk_erofs_plan *plan, lk_erofs_fault *fault);

/* How many entries fit into the directory block that starts with the first one; their bytes go to *used. */
uint64_t lk_directory_block(const lk_entry *entries, uint64_t count, uint32_t *used);

#endif
