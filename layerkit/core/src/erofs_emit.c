/* Last stage of the writer: stores what the plan says. It decides nothing and cannot fail. */
#include <string.h>
#include <sys/stat.h>

#include "private/erofs_plan.h"

static uint8_t file_type(uint32_t mode)
{
    switch (mode & S_IFMT) {
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
    case S_IFLNK:
        return EROFS_TYPE_SYMLINK;
    default:
        return EROFS_TYPE_REGULAR;
    }
}

static uint16_t xattr_icount(const lk_place *place)
{
    return place->xattr_size ? (uint16_t)((place->xattr_size - sizeof(struct erofs_xattr_header)) / 4 + 1) : 0;
}

static void emit_superblock(const lk_erofs_plan *plan, uint8_t *image)
{
    bool has_device = plan->table->data_blocks != 0;
    uint32_t end = EROFS_SUPERBLOCK_OFFSET + sizeof(struct erofs_superblock);
    struct erofs_superblock super = {
        .magic = EROFS_MAGIC,
        .feature_compat = EROFS_COMPAT_CHECKSUM | EROFS_COMPAT_MTIME,
        .block_bits = EROFS_BLOCK_BITS,
        .root_nid = (uint16_t)(plan->places[0].position / EROFS_SLOT_SIZE),
        .inode_count = plan->table->node_count,
        .epoch_s = plan->epoch_s,
        .epoch_ns = plan->epoch_ns,
        .blocks = (uint32_t)plan->meta_blocks,
        .xattr_block = plan->shared_count ? (uint32_t)(plan->shared_start / EROFS_BLOCK_SIZE) : 0,
        .feature_incompat = (plan->has_chunks ? EROFS_INCOMPAT_CHUNKED_FILE : 0) |
                            (has_device ? EROFS_INCOMPAT_DEVICE_TABLE : 0),
        .extra_devices = has_device,
        .device_slot = has_device ? (uint16_t)(end / sizeof(struct erofs_device_slot)) : 0,
    };
    memcpy(image + EROFS_SUPERBLOCK_OFFSET, &super, sizeof(super));
    if (!has_device)
        return;
    struct erofs_device_slot slot = {
        .tag = "data",
        .blocks = (uint32_t)plan->table->data_blocks,
        .mapped_block = (uint32_t)plan->meta_blocks,
    };
    memcpy(image + end, &slot, sizeof(slot));
}

static void emit_inode(const lk_erofs_node *node, const lk_place *place, uint8_t *at)
{
    uint16_t format = (uint16_t)(place->layout << 1 | place->is_extended);
    if (place->is_extended) {
        struct erofs_extended_inode inode = {
            .format = format, .xattr_icount = xattr_icount(place), .mode = (uint16_t)node->mode, .size = place->size,
            .address = place->address, .ino = place->ino, .uid = node->uid, .gid = node->gid,
            .mtime_s = node->mtime_s, .mtime_ns = node->mtime_ns, .nlink = place->nlink,
        };
        memcpy(at, &inode, sizeof(inode));
        return;
    }
    struct erofs_compact_inode inode = {
        .format = format, .xattr_icount = xattr_icount(place), .mode = (uint16_t)node->mode,
        .nlink = (uint16_t)place->nlink, .size = (uint32_t)place->size, .address = place->address, .ino = place->ino,
        .uid = (uint16_t)node->uid, .gid = (uint16_t)node->gid,
    };
    memcpy(at, &inode, sizeof(inode));
}

static void emit_xattr_entry(const lk_xattr *xattr, uint8_t *at)
{
    uint8_t name_size = (uint8_t)(xattr->name_size - xattr->prefix_size);
    struct erofs_xattr_entry entry = {name_size, xattr->prefix, xattr->value_size};
    memcpy(at, &entry, sizeof(entry));
    memcpy(at + sizeof(entry), xattr->name + xattr->prefix_size, name_size);
    memcpy(at + sizeof(entry) + name_size, xattr->value, xattr->value_size);
}

static void emit_xattrs(const lk_erofs_plan *plan, const lk_place *place, uint8_t *at)
{
    struct erofs_xattr_header header = {.shared_count = place->shared_count};
    uint64_t base = plan->shared_start / EROFS_BLOCK_SIZE * EROFS_BLOCK_SIZE;
    uint8_t *shared = at + sizeof(header), *entry = shared + 4u * place->shared_count;
    memcpy(at, &header, sizeof(header));
    for (uint32_t i = 0; i < place->xattr_count; i++) {
        const lk_xattr *xattr = &plan->xattrs[place->first_xattr + i];
        if (xattr->group == LK_NOT_SHARED) {
            emit_xattr_entry(xattr, entry);
            entry += lk_xattr_entry_size(xattr);
            continue;
        }
        uint32_t id = (uint32_t)((plan->shared_positions[xattr->group] - base) / 4);
        memcpy(shared, &id, sizeof(id));
        shared += sizeof(id);
    }
}

static void emit_chunk_map(const lk_erofs_plan *plan, const lk_erofs_node *node, const lk_place *place, uint8_t *at)
{
    for (uint64_t i = 0; i < place->tail_size / 4; i++) {
        uint32_t block = plan->table->chunk_map[node->body + i];
        if (block != EROFS_NO_BLOCK)
            block += (uint32_t)plan->meta_blocks;
        memcpy(at + 4 * i, &block, sizeof(block));
    }
}

static void emit_directory_block(const lk_erofs_plan *plan, const lk_entry *entries, uint64_t count, uint8_t *at)
{
    uint32_t name_offset = (uint32_t)(count * sizeof(struct erofs_dirent));
    for (uint64_t i = 0; i < count; i++) {
        struct erofs_dirent dirent = {
            .nid = plan->places[entries[i].child].position / EROFS_SLOT_SIZE,
            .name_offset = (uint16_t)name_offset,
            .file_type = file_type(plan->table->nodes[entries[i].child].mode),
        };
        memcpy(at + i * sizeof(dirent), &dirent, sizeof(dirent));
        memcpy(at + name_offset, entries[i].name, entries[i].name_size);
        name_offset += entries[i].name_size;
    }
}

static void emit_directory(const lk_erofs_plan *plan, const lk_place *place, uint8_t *tail, uint8_t *blocks)
{
    const lk_entry *entries = plan->entries + place->first_entry;
    uint64_t left = place->entry_count;
    for (uint32_t block = 0; left; block++) {
        uint32_t used;
        uint64_t taken = lk_directory_block(entries, left, &used);
        emit_directory_block(plan, entries, taken,
                             block < place->body_blocks ? blocks + (uint64_t)block * EROFS_BLOCK_SIZE : tail);
        entries += taken;
        left -= taken;
    }
}

static void emit_node(const lk_erofs_plan *plan, uint64_t number, uint8_t *image)
{
    const lk_erofs_node *node = &plan->table->nodes[number];
    const lk_place *place = &plan->places[number];
    uint8_t *at = image + place->position;
    uint8_t *tail = at + lk_head_size(place) + place->xattr_size;
    uint8_t *blocks = place->body_blocks ? image + (uint64_t)place->address * EROFS_BLOCK_SIZE : NULL;
    emit_inode(node, place, at);
    if (place->xattr_size)
        emit_xattrs(plan, place, at + lk_head_size(place));
    if (S_ISDIR(node->mode))
        emit_directory(plan, place, tail, blocks);
    else if (node->kind == LK_EROFS_BODY_CHUNKS)
        emit_chunk_map(plan, node, place, tail);
    else if (node->kind == LK_EROFS_BODY_INLINE)
        memcpy(blocks ? blocks : tail, plan->table->bodies + node->body, node->size);
}

void lk_erofs_plan_emit(const lk_erofs_plan *plan, uint8_t *image)
{
    emit_superblock(plan, image);
    for (uint64_t i = 0; i < plan->shared_count; i++)
        emit_xattr_entry(plan->shared_groups[i], image + plan->shared_positions[i]);
    for (uint64_t i = 0; i < plan->table->node_count; i++)
        emit_node(plan, plan->order[i], image);
}
