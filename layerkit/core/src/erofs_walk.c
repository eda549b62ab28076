/* The whole-image check: breadth first from the root, every inode once, with the columns that a tree is loaded from.
 *
 * Bounds: an honest image holds each inode, xattr body, chunk map, inline tail, directory and shared xattr in bytes of
 * its own, so what the walk visits may not add up to more than the image. File data may be shared without limit and is
 * only compared with the ranges. */
#include "private/erofs_read.h"

#include <stdlib.h>

/* Rows, links and xattr references are numbered with 32 bits; none of them is smaller than four bytes of the image. */
#define WALK_MAX_SIZE (UINT64_C(16) << 30)

static int grow(void *items, uint64_t *room, uint64_t needed, size_t item_size)
{
    void **base = items;
    if (needed <= *room)
        return 1;
    uint64_t wanted = *room ? *room * 2 : 256;
    if (wanted < needed)
        wanted = needed;
    void *moved = realloc(*base, wanted * item_size);
    if (!moved)
        return 0;
    *base = moved;
    *room = wanted;
    return 1;
}

static int no_memory(struct lk_fault *fault)
{
    return lk_fail(fault, LK_FAULT_NO_MEMORY, 0, 0);
}

static int spend(struct lk_erofs_walk *walk, uint64_t nid, uint64_t bytes, struct lk_fault *fault)
{
    if (bytes > walk->budget)
        return lk_fail(fault, LK_FAULT_OVERLAP, nid, bytes);
    walk->budget -= bytes;
    return 0;
}

/* The number of an xattr; shared ones are listed once. 0 for a fault, else the number + 1. */
static uint32_t list_xattr(const struct lk_erofs *image, struct lk_erofs_walk *walk, uint64_t nid,
                           const struct lk_erofs_xattr_place *xattr, struct lk_fault *fault)
{
    uint32_t *known = NULL;
    if (xattr->shared) {
        if (!walk->xattr_of)
            walk->xattr_of = calloc((image->size - image->xattr_at) / 4 + 1, sizeof *walk->xattr_of);
        if (!walk->xattr_of)
            return (uint32_t)(no_memory(fault), 0);
        known = &walk->xattr_of[xattr->shared - 1];
        if (*known)
            return *known;
        if (spend(walk, nid, xattr->value_at - xattr->at + xattr->value_size, fault))
            return 0;
    }
    if (!grow(&walk->xattrs, &walk->xattr_room, walk->xattr_count + 1, sizeof *walk->xattrs))
        return (uint32_t)(no_memory(fault), 0);
    walk->xattrs[walk->xattr_count++] = *xattr;
    if (known)
        *known = (uint32_t)walk->xattr_count;
    return (uint32_t)walk->xattr_count;
}

static int list_xattrs(const struct lk_erofs *image, struct lk_erofs_walk *walk, const struct lk_erofs_inode *inode,
                       struct lk_erofs_row *row, struct lk_fault *fault)
{
    struct lk_xattr_cursor cursor;
    struct lk_erofs_xattr_place xattr;
    int got;
    row->xattr_first = (uint32_t)walk->xattr_ref_count;
    if (lk_xattr_begin(image, inode, &cursor, fault))
        return -1;
    while ((got = lk_xattr_next(image, &cursor, &xattr, fault)) == 1) {
        uint32_t number = list_xattr(image, walk, inode->nid, &xattr, fault);
        if (!number)
            return -1;
        if (!grow(&walk->xattr_refs, &walk->xattr_ref_room, walk->xattr_ref_count + 1, sizeof *walk->xattr_refs))
            return no_memory(fault);
        walk->xattr_refs[walk->xattr_ref_count++] = number - 1;
        row->xattr_count++;
    }
    return got;
}

/* Lists the chunk map when all of it lies in the data device; otherwise only checks it. */
static int list_chunks(const struct lk_erofs *image, struct lk_erofs_walk *walk, const struct lk_erofs_inode *inode,
                       struct lk_erofs_row *row, struct lk_fault *fault)
{
    uint64_t first = walk->chunk_count;
    if (spend(walk, inode->nid, inode->chunk_count * inode->chunk_unit, fault))
        return -1;
    if (!grow(&walk->chunks, &walk->chunk_room, first + inode->chunk_count, sizeof *walk->chunks))
        return no_memory(fault);
    row->body = LK_BODY_CHUNKS;
    row->body_at = first;
    row->chunk_bits = inode->chunk_bits;
    for (uint64_t number = 0; number < inode->chunk_count; number++) {
        struct lk_erofs_extent chunk;
        if (lk_erofs_chunk(image, inode, number, &chunk, fault))
            return -1;
        if (chunk.place == LK_IN_IMAGE)
            row->body = LK_BODY_IMAGE;
        int is_data = chunk.place == LK_IN_DATA;
        walk->chunks[first + number] = is_data ? (uint32_t)(chunk.at / EROFS_BLOCK_SIZE) : LK_EROFS_HOLE;
    }
    if (row->body == LK_BODY_CHUNKS)
        walk->chunk_count += inode->chunk_count;
    return 0;
}

static int list_target(const struct lk_erofs *image, struct lk_erofs_walk *walk, const struct lk_erofs_inode *inode,
                       struct lk_erofs_row *row, struct lk_fault *fault)
{
    struct lk_flat flat;
    if (!inode->size || inode->size > EROFS_MAX_TARGET)
        return lk_fail(fault, LK_FAULT_TARGET, inode->nid, inode->size);
    if (lk_erofs_flat(image, inode, &flat, fault) || spend(walk, inode->nid, inode->size, fault))
        return -1;
    row->body = LK_BODY_INLINE;
    row->body_at = flat.blocks_size ? flat.blocks_at : flat.tail_at;
    if (memchr(image->data + row->body_at, 0, inode->size))
        return lk_fail(fault, LK_FAULT_TARGET, inode->nid, inode->size);
    return 0;
}

/* Whether a file in a block of the image is as good as inline: what does not fit behind large xattrs lies there. Such
 * blocks may be shared, so that together they give no more bytes than the image has; further ones are not inline. */
static int holds_small_file(const struct lk_erofs *image, struct lk_erofs_walk *walk,
                            const struct lk_erofs_extent *extent)
{
    if (extent->length > EROFS_BLOCK_SIZE || extent->length > walk->small_budget)
        return 0;
    walk->small_budget -= extent->length;
    return lk_inside(image, extent->at, extent->length);
}

static int list_file(const struct lk_erofs *image, struct lk_erofs_walk *walk, const struct lk_erofs_inode *inode,
                     struct lk_erofs_row *row, struct lk_fault *fault)
{
    struct lk_erofs_extent extents[2];
    size_t count;
    row->body = LK_BODY_INLINE;
    if (!inode->size)
        return 0;
    if (inode->layout == LK_EROFS_CHUNK_BASED)
        return list_chunks(image, walk, inode, row, fault);
    if (lk_erofs_map(image, inode, extents, &count, fault))
        return -1;
    const struct lk_erofs_extent *last = &extents[count - 1];
    if (inode->layout == LK_EROFS_FLAT_INLINE && spend(walk, inode->nid, last->length, fault))
        return -1;
    row->body_at = extents[0].at;
    if (count == 2)
        row->body = LK_BODY_IMAGE;
    else if (last->place == LK_IN_DATA)
        row->body = LK_BODY_DATA;
    else if (inode->layout == LK_EROFS_FLAT_PLAIN && !holds_small_file(image, walk, last))
        row->body = LK_BODY_IMAGE;
    return 0;
}

static int list_body(const struct lk_erofs *image, struct lk_erofs_walk *walk, const struct lk_erofs_inode *inode,
                     struct lk_erofs_row *row, struct lk_fault *fault)
{
    switch (inode->mode & S_IFMT) {
    case S_IFDIR:
        row->body = LK_BODY_DIRECTORY;
        row->seen = 2;
        return spend(walk, inode->nid, inode->size, fault);
    case S_IFREG:
        return list_file(image, walk, inode, row, fault);
    case S_IFLNK:
        return list_target(image, walk, inode, row, fault);
    default:
        row->body = LK_BODY_NONE;
        return 0;
    }
}

/* Reads an inode that is met for the first time and gives it the next row. */
static int add_row(const struct lk_erofs *image, struct lk_erofs_walk *walk, uint64_t nid, uint32_t parent,
                   struct lk_fault *fault)
{
    struct lk_erofs_inode inode;
    if (lk_erofs_inode(image, nid, &inode, fault) ||
        spend(walk, nid, (uint64_t)inode.inode_size + inode.xattr_size, fault))
        return -1;
    if (!grow(&walk->rows, &walk->row_room, walk->row_count + 1, sizeof *walk->rows))
        return no_memory(fault);
    struct lk_erofs_row *row = &walk->rows[walk->row_count];
    memset(row, 0, sizeof *row);
    row->nid = nid;
    row->size = inode.size;
    row->mtime_s = inode.mtime_s;
    row->mtime_nsec = inode.mtime_nsec;
    row->mode = inode.mode;
    row->uid = inode.uid;
    row->gid = inode.gid;
    row->nlink = inode.nlink;
    row->rdev = inode.rdev;
    row->parent = parent;
    if (list_xattrs(image, walk, &inode, row, fault) || list_body(image, walk, &inode, row, fault))
        return -1;
    walk->row_of[nid] = (uint32_t)++walk->row_count;
    return 0;
}

static uint32_t file_type_of(uint32_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFREG:
        return EROFS_TYPE_REGULAR;
    case S_IFDIR:
        return EROFS_TYPE_DIRECTORY;
    case S_IFCHR:
        return EROFS_TYPE_CHARACTER;
    case S_IFBLK:
        return EROFS_TYPE_BLOCK;
    case S_IFIFO:
        return EROFS_TYPE_FIFO;
    case S_IFSOCK:
        return EROFS_TYPE_SOCKET;
    default:
        return EROFS_TYPE_SYMLINK;
    }
}

static int add_link(struct lk_erofs_walk *walk, const struct lk_erofs *image, uint32_t parent, uint32_t child,
                    const struct lk_erofs_dirent *entry, struct lk_fault *fault)
{
    if (!grow(&walk->links, &walk->link_room, walk->link_count + 1, sizeof *walk->links) ||
        !grow(&walk->names, &walk->names_room, walk->names_size + entry->name_size + 1, 1))
        return no_memory(fault);
    walk->links[walk->link_count++] = (struct lk_erofs_name_link){parent, child};
    memcpy(walk->names + walk->names_size, image->data + entry->name_at, entry->name_size);
    walk->names_size += entry->name_size;
    walk->names[walk->names_size++] = 0;
    return 0;
}

static int visit_entry(const struct lk_erofs *image, struct lk_erofs_walk *walk, uint32_t directory,
                       const struct lk_erofs_dirent *entry, struct lk_fault *fault)
{
    /* The check of the inode's place comes first: row_of has one item for each place. */
    if (entry->nid >= (image->size - image->meta_at) / EROFS_SLOT_SIZE)
        return lk_fail(fault, LK_FAULT_NID, entry->nid, entry->nid);
    int is_new = !walk->row_of[entry->nid];
    if (is_new && add_row(image, walk, entry->nid, directory, fault))
        return -1;
    uint32_t child = walk->row_of[entry->nid] - 1;
    struct lk_erofs_row *row = &walk->rows[child];
    if (file_type_of(row->mode) != entry->file_type)
        return lk_fail(fault, LK_FAULT_FILE_TYPE, entry->nid, entry->file_type);
    if (row->body != LK_BODY_DIRECTORY)
        row->seen++;
    else if (is_new)
        walk->rows[directory].seen++;
    else
        return lk_fail(fault, LK_FAULT_DIR_TWICE, entry->nid, 0);
    return add_link(walk, image, directory, child, entry, fault);
}

/* 1 and 2 for `.` and `..`, which must point to the directory and its parent; 0 for other names, -1 for a fault. */
static int check_dots(const struct lk_erofs *image, const struct lk_erofs_walk *walk, uint32_t directory,
                      const struct lk_erofs_dirent *entry, struct lk_fault *fault)
{
    const uint8_t *name = image->data + entry->name_at;
    const struct lk_erofs_row *row = &walk->rows[directory];
    if (name[0] != '.' || entry->name_size > 2 || (entry->name_size == 2 && name[1] != '.'))
        return 0;
    uint64_t expected = entry->name_size == 1 ? row->nid : walk->rows[row->parent].nid;
    if (entry->nid != expected || entry->file_type != EROFS_TYPE_DIRECTORY)
        return lk_fail(fault, LK_FAULT_DOTS, row->nid, entry->nid);
    return (int)entry->name_size;
}

static int visit_directory(const struct lk_erofs *image, struct lk_erofs_walk *walk, uint32_t directory,
                           struct lk_fault *fault)
{
    struct lk_erofs_inode inode;
    struct lk_flat flat;
    struct lk_dir_block block;
    struct lk_erofs_dirent entry, before = {0, 0, 0, 0};
    int dots = 0;
    walk->at_row = directory;
    walk->at_name_size = 0;
    if (lk_erofs_inode(image, walk->rows[directory].nid, &inode, fault) || lk_erofs_flat(image, &inode, &flat, fault))
        return -1;
    for (uint64_t number = 0; number < lk_blocks_of(inode.size); number++) {
        if (lk_dir_block(image, &inode, &flat, number, &block, fault))
            return -1;
        for (uint32_t i = 0; i < block.count; i++, before = entry) {
            walk->at_name_size = 0;
            if (lk_dir_entry(image, &inode, &block, i, &entry, fault))
                return -1;
            walk->at_name = entry.name_at;
            walk->at_name_size = entry.name_size;
            if (before.name_size && lk_name_compare(image->data + before.name_at, before.name_size,
                                                    image->data + entry.name_at, entry.name_size) >= 0)
                return lk_fail(fault, LK_FAULT_ORDER, inode.nid, number);
            int dot = check_dots(image, walk, directory, &entry, fault);
            if (dot < 0 || (!dot && visit_entry(image, walk, directory, &entry, fault)))
                return -1;
            dots += dot;
        }
    }
    walk->at_name_size = 0;
    return dots == 3 ? 0 : lk_fail(fault, LK_FAULT_DOTS, inode.nid, 0);
}

static int check_counts(const struct lk_erofs *image, struct lk_erofs_walk *walk, struct lk_fault *fault)
{
    for (uint64_t i = 0; i < walk->row_count; i++) {
        const struct lk_erofs_row *row = &walk->rows[i];
        walk->at_row = i;
        if (row->seen != row->nlink)
            return lk_fail(fault, LK_FAULT_NLINK, row->nid, row->seen);
    }
    walk->at_row = 0;
    return walk->row_count == image->inodes ? 0 : lk_fail(fault, LK_FAULT_INODE_COUNT, 0, walk->row_count);
}

int lk_erofs_walk(const struct lk_erofs *image, struct lk_erofs_walk *walk, struct lk_fault *fault)
{
    if (!image->checksum_ok)
        return lk_fail(fault, LK_FAULT_CHECKSUM, 0, 0);
    if (image->meta_at > image->size || image->root_nid >= (image->size - image->meta_at) / EROFS_SLOT_SIZE)
        return lk_fail(fault, LK_FAULT_NID, image->root_nid, image->root_nid);
    if (image->size > WALK_MAX_SIZE)
        return lk_fail(fault, LK_FAULT_TOO_BIG, 0, image->size);
    walk->budget = walk->small_budget = image->size;
    walk->row_of = calloc((image->size - image->meta_at) / EROFS_SLOT_SIZE + 1, sizeof *walk->row_of);
    if (!walk->row_of)
        return no_memory(fault);
    if (add_row(image, walk, image->root_nid, 0, fault))
        return -1;
    if (walk->rows[0].body != LK_BODY_DIRECTORY)
        return lk_fail(fault, LK_FAULT_ROOT, image->root_nid, walk->rows[0].mode);
    for (uint64_t row = 0; row < walk->row_count; row++)
        if (walk->rows[row].body == LK_BODY_DIRECTORY && visit_directory(image, walk, (uint32_t)row, fault))
            return -1;
    return check_counts(image, walk, fault);
}

void lk_erofs_walk_free(struct lk_erofs_walk *walk)
{
    free(walk->rows);
    free(walk->links);
    free(walk->names);
    free(walk->chunks);
    free(walk->xattr_refs);
    free(walk->xattrs);
    free(walk->row_of);
    free(walk->xattr_of);
    memset(walk, 0, sizeof *walk);
}
