/* First stage of the writer: every node, link and xattr by itself, before anything is allocated for them. */
#include <string.h>
#include <sys/stat.h>

#include "private/erofs_plan.h"
#include "private/erofs_xattr_names.h"

static bool blocks_fit(uint64_t first, uint64_t count, uint64_t data_blocks)
{
    return first <= data_blocks && count <= data_blocks - first;
}

static bool chunks_fit(const lk_erofs_table *table, const lk_erofs_node *node)
{
    if (node->chunk_bits < EROFS_MIN_CHUNK_BITS || node->chunk_bits > EROFS_MAX_CHUNK_BITS)
        return false;
    uint64_t count = lk_chunk_count(node->size, node->chunk_bits);
    if (node->body > table->chunk_map_count || count > table->chunk_map_count - node->body)
        return false;
    uint64_t left = lk_blocks(node->size), whole = UINT64_C(1) << (node->chunk_bits - EROFS_BLOCK_BITS);
    for (uint64_t i = 0; i < count; i++, left -= whole) {
        uint32_t block = table->chunk_map[node->body + i];
        if (block != EROFS_NO_BLOCK && !blocks_fit(block, left < whole ? left : whole, table->data_blocks))
            return false;
    }
    return true;
}

static uint32_t regular_fault(const lk_erofs_table *table, const lk_erofs_node *node)
{
    switch (node->kind) {
    case LK_EROFS_BODY_INLINE:
        if (node->size > EROFS_BLOCK_SIZE)
            return LK_EROFS_LARGE_INLINE;
        return node->body <= table->bodies_size && node->size <= table->bodies_size - node->body ? LK_EROFS_OK
                                                                                                 : LK_EROFS_BAD_TABLE;
    case LK_EROFS_BODY_BLOCKS:
        if (!node->size || node->size > INT64_MAX)
            return LK_EROFS_BAD_BODY;
        return blocks_fit(node->body, lk_blocks(node->size), table->data_blocks) ? LK_EROFS_OK : LK_EROFS_BAD_BLOCKS;
    case LK_EROFS_BODY_CHUNKS:
        if (!node->size || node->size > INT64_MAX)
            return LK_EROFS_BAD_BODY;
        return chunks_fit(table, node) ? LK_EROFS_OK : LK_EROFS_BAD_BLOCKS;
    default:
        return LK_EROFS_BAD_BODY;
    }
}

static uint32_t symlink_fault(const lk_erofs_table *table, const lk_erofs_node *node)
{
    if (node->kind != LK_EROFS_BODY_INLINE)
        return LK_EROFS_BAD_BODY;
    if (node->body > table->bodies_size || node->size > table->bodies_size - node->body)
        return LK_EROFS_BAD_TABLE;
    if (node->size > EROFS_MAX_TARGET)
        return LK_EROFS_LONG_TARGET;
    return !node->size || memchr(table->bodies + node->body, 0, node->size) ? LK_EROFS_BAD_TARGET : LK_EROFS_OK;
}

static uint32_t node_fault(const lk_erofs_table *table, const lk_erofs_node *node)
{
    if (node->mode > UINT16_MAX)
        return LK_EROFS_BAD_MODE;
    if (node->mtime_ns >= 1000000000u)
        return LK_EROFS_BAD_TABLE;
    switch (node->mode & S_IFMT) {
    case S_IFREG:
        return regular_fault(table, node);
    case S_IFLNK:
        return symlink_fault(table, node);
    case S_IFCHR:
    case S_IFBLK:
        if (node->kind != LK_EROFS_BODY_NONE || node->size)
            return LK_EROFS_BAD_BODY;
        /* Within 12 bits of major and 20 of minor, glibc's dev_t is the kernel's new_encode_dev(). */
        return node->body > UINT32_MAX ? LK_EROFS_LARGE_RDEV : LK_EROFS_OK;
    case S_IFDIR:
    case S_IFIFO:
    case S_IFSOCK:
        return node->kind != LK_EROFS_BODY_NONE || node->size || node->body ? LK_EROFS_BAD_BODY : LK_EROFS_OK;
    default:
        return LK_EROFS_BAD_MODE;
    }
}

static uint32_t name_fault(const uint8_t *name, uint32_t size)
{
    if (!size || memchr(name, 0, size) || memchr(name, '/', size))
        return LK_EROFS_BAD_NAME;
    if (name[0] == '.' && (size == 1 || (size == 2 && name[1] == '.')))
        return LK_EROFS_BAD_NAME;
    return size > EROFS_MAX_NAME ? LK_EROFS_LONG_NAME : LK_EROFS_OK;
}

static bool validate_links(const lk_erofs_table *table, lk_erofs_fault *fault)
{
    uint64_t offset = 0;
    for (uint64_t i = 0; i < table->link_count; i++) {
        const lk_erofs_link *link = &table->links[i];
        if (link->parent >= table->node_count || link->child >= table->node_count ||
            link->name_size > table->names_size - offset)
            return lk_fail(fault, LK_EROFS_BAD_TABLE, 0, i);
        uint32_t code = name_fault(table->names + offset, link->name_size);
        if (!code && !S_ISDIR(table->nodes[link->parent].mode))
            code = LK_EROFS_BAD_PARENT;
        if (code)
            return lk_fail(fault, code, link->parent, i);
        offset += link->name_size;
    }
    return offset == table->names_size || lk_fail(fault, LK_EROFS_BAD_TABLE, 0, table->link_count);
}

static uint32_t xattr_fault(const uint8_t *name, const lk_erofs_xattr *xattr)
{
    uint8_t prefix_size;
    if (!xattr->name_size || memchr(name, 0, xattr->name_size))
        return LK_EROFS_XATTR_BAD_NAME;
    if (xattr->name_size > EROFS_MAX_XATTR_NAME)
        return LK_EROFS_XATTR_LONG_NAME;
    if (!lk_xattr_prefix(name, xattr->name_size, &prefix_size))
        return LK_EROFS_XATTR_PREFIX;
    return xattr->value_size > EROFS_MAX_XATTR_VALUE ? LK_EROFS_XATTR_LARGE_VALUE : LK_EROFS_OK;
}

static bool validate_xattrs(const lk_erofs_table *table, lk_erofs_fault *fault)
{
    uint64_t offset = 0, next = 0;
    for (uint64_t node = 0; node < table->node_count; node++) {
        for (uint32_t i = 0; i < table->nodes[node].xattr_count; i++, next++) {
            if (next == table->xattr_count)
                return lk_fail(fault, LK_EROFS_BAD_TABLE, node, next);
            const lk_erofs_xattr *xattr = &table->xattrs[next];
            uint64_t size = (uint64_t)xattr->name_size + xattr->value_size;
            if (size > table->xattr_bytes_size - offset)
                return lk_fail(fault, LK_EROFS_BAD_TABLE, node, next);
            uint32_t code = xattr_fault(table->xattr_bytes + offset, xattr);
            if (code)
                return lk_fail(fault, code, node, next);
            offset += size;
        }
    }
    return (next == table->xattr_count && offset == table->xattr_bytes_size) ||
           lk_fail(fault, LK_EROFS_BAD_TABLE, 0, next);
}

bool lk_erofs_validate(const lk_erofs_table *table, lk_erofs_fault *fault)
{
    /* One below 2^32: the node number that no node has stays free. */
    if (table->node_count >= UINT32_MAX)
        return lk_fail(fault, LK_EROFS_BAD_TABLE, 0, 0);
    if (!table->node_count || !S_ISDIR(table->nodes[0].mode))
        return lk_fail(fault, LK_EROFS_BAD_ROOT, 0, 0);
    if (table->data_blocks >= UINT32_MAX)
        return lk_fail(fault, LK_EROFS_ADDRESS_SPACE, 0, 0);
    for (uint64_t i = 0; i < table->node_count; i++) {
        uint32_t code = node_fault(table, &table->nodes[i]);
        if (code)
            return lk_fail(fault, code, i, 0);
    }
    return validate_links(table, fault) && validate_xattrs(table, fault);
}
