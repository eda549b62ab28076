/* Extended attributes: Linux fs/erofs/xattr.c. */
#include "private/erofs_read.h"

int lk_xattr_begin(const struct lk_erofs *image, const struct lk_erofs_inode *inode, struct lk_xattr_cursor *cursor,
                   struct lk_fault *fault)
{
    memset(cursor, 0, sizeof *cursor);
    cursor->nid = inode->nid;
    if (!inode->xattr_size)
        return 0;
    /* A body of a header alone has no meaning yet: Linux refuses it. */
    struct erofs_xattr_header header;
    memcpy(&header, image->data + inode->xattr_at, sizeof header);
    uint32_t shared_size = 4u * header.shared_count;
    if (inode->xattr_size == sizeof header || sizeof header + shared_size > inode->xattr_size)
        return lk_fail(fault, LK_FAULT_XATTR_BODY, inode->nid, inode->xattr_size);
    cursor->shared_at = inode->xattr_at + sizeof header;
    cursor->shared_left = header.shared_count;
    cursor->at = cursor->shared_at + shared_size;
    cursor->end = inode->xattr_at + inode->xattr_size;
    return 0;
}

static int check_name(const struct lk_erofs *image, const struct lk_xattr_cursor *cursor,
                      const struct lk_erofs_xattr_place *xattr, struct lk_fault *fault)
{
    switch (xattr->name_index) {
    case EROFS_XATTR_USER:
    case EROFS_XATTR_TRUSTED:
    case EROFS_XATTR_SECURITY:
        if (!xattr->name_size || memchr(image->data + xattr->name_at, 0, xattr->name_size))
            return lk_fail(fault, LK_FAULT_XATTR_NAME, cursor->nid, xattr->name_size);
        return 0;
    case EROFS_XATTR_ACL_ACCESS:
    case EROFS_XATTR_ACL_DEFAULT:
        /* The index is the whole name. */
        return xattr->name_size ? lk_fail(fault, LK_FAULT_XATTR_NAME, cursor->nid, xattr->name_size) : 0;
    default:
        return lk_fail(fault, LK_FAULT_XATTR_INDEX, cursor->nid, xattr->name_index);
    }
}

/* The entry at `at`, which must end before end. */
static int read_entry(const struct lk_erofs *image, const struct lk_xattr_cursor *cursor, uint64_t at, uint64_t end,
                      struct lk_erofs_xattr_place *out, struct lk_fault *fault)
{
    struct erofs_xattr_entry entry;
    if (at > end || end - at < sizeof entry)
        return lk_fail(fault, LK_FAULT_XATTR_BODY, cursor->nid, at);
    memcpy(&entry, image->data + at, sizeof entry);
    out->at = at;
    out->name_size = entry.name_size;
    out->name_index = entry.prefix;
    out->value_size = entry.value_size;
    out->name_at = at + sizeof entry;
    out->value_at = out->name_at + out->name_size;
    if (end - out->name_at < (uint64_t)out->name_size + out->value_size)
        return lk_fail(fault, LK_FAULT_XATTR_BODY, cursor->nid, at);
    return check_name(image, cursor, out, fault) ? -1 : 1;
}

int lk_xattr_next(const struct lk_erofs *image, struct lk_xattr_cursor *cursor, struct lk_erofs_xattr_place *out,
                  struct lk_fault *fault)
{
    if (cursor->at < cursor->end) {
        out->shared = 0;
        int got = read_entry(image, cursor, cursor->at, cursor->end, out, fault);
        if (got == 1) {
            uint64_t end = out->value_at + out->value_size;
            cursor->at += (end - cursor->at + 3) & ~UINT64_C(3);
        }
        return got;
    }
    if (!cursor->shared_left)
        return 0;
    uint32_t number = lk_word(image->data + cursor->shared_at);
    cursor->shared_at += 4;
    cursor->shared_left--;
    uint64_t at = image->xattr_at + (uint64_t)number * 4;
    if (number == UINT32_MAX || !lk_inside(image, at, sizeof(struct erofs_xattr_entry)))
        return lk_fail(fault, LK_FAULT_XATTR_BODY, cursor->nid, at);
    out->shared = number + 1;
    return read_entry(image, cursor, at, image->size, out, fault);
}

int lk_erofs_xattrs(const struct lk_erofs *image, const struct lk_erofs_inode *inode, struct lk_erofs_xattr_place *out,
                    size_t *count, struct lk_fault *fault)
{
    struct lk_xattr_cursor cursor;
    int got;
    *count = 0;
    if (lk_xattr_begin(image, inode, &cursor, fault))
        return -1;
    while ((got = lk_xattr_next(image, &cursor, &out[*count], fault)) == 1)
        (*count)++;
    return got;
}
