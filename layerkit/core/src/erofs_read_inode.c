/* Inodes: Linux fs/erofs/inode.c, erofs_read_inode. */
#include "private/erofs_read.h"

static void read_compact(const struct lk_erofs *image, const struct erofs_compact_inode *disk,
                         struct lk_erofs_inode *out)
{
    out->nlink = disk->nlink;
    out->size = disk->size;
    out->uid = disk->uid;
    out->gid = disk->gid;
    out->mtime_s = image->epoch_s;
    out->mtime_nsec = image->epoch_nsec;
}

static void read_extended(const uint8_t *at, struct lk_erofs_inode *out)
{
    struct erofs_extended_inode disk;
    memcpy(&disk, at, sizeof disk);
    out->size = disk.size;
    out->uid = disk.uid;
    out->gid = disk.gid;
    out->mtime_s = disk.mtime_s;
    out->mtime_nsec = disk.mtime_ns;
    out->nlink = disk.nlink;
}

/* What the address means depends on the type and the layout. */
static int read_body(const struct lk_erofs *image, uint32_t address, struct lk_erofs_inode *out, struct lk_fault *fault)
{
    switch (out->mode & S_IFMT) {
    case S_IFCHR:
    case S_IFBLK:
        out->rdev = address;
        /* fall through */
    case S_IFIFO:
    case S_IFSOCK:
        if (out->layout != LK_EROFS_FLAT_PLAIN || out->size)
            return lk_fail(fault, LK_FAULT_SIZE, out->nid, out->size);
        return 0;
    case S_IFREG:
    case S_IFDIR:
    case S_IFLNK:
        break;
    default:
        return lk_fail(fault, LK_FAULT_MODE, out->nid, out->mode);
    }
    if (out->layout != LK_EROFS_CHUNK_BASED) {
        out->block = address;
        return 0;
    }
    uint32_t format = address & 0xffff;
    if (format & ~(EROFS_CHUNK_FORMAT_BITS | EROFS_CHUNK_FORMAT_INDEXES))
        return lk_fail(fault, LK_FAULT_CHUNK_FORMAT, out->nid, format);
    out->chunk_bits = EROFS_BLOCK_BITS + (format & EROFS_CHUNK_FORMAT_BITS);
    out->chunk_unit = format & EROFS_CHUNK_FORMAT_INDEXES ? sizeof(struct erofs_chunk_index) : sizeof(uint32_t);
    out->chunk_count = (out->size >> out->chunk_bits) + !!(out->size & ((UINT64_C(1) << out->chunk_bits) - 1));
    out->tail_at += -out->tail_at & (out->chunk_unit - 1);
    if (!lk_inside(image, out->tail_at, out->chunk_count * out->chunk_unit))
        return lk_fail(fault, LK_FAULT_TRUNCATED, out->nid, out->tail_at);
    return 0;
}

/* Inline data lies in one block, behind the inode and its xattrs. */
static int check_tail(const struct lk_erofs *image, const struct lk_erofs_inode *inode, struct lk_fault *fault)
{
    if (inode->layout != LK_EROFS_FLAT_INLINE || !inode->size)
        return 0;
    uint64_t tail_size = (inode->size - 1) % EROFS_BLOCK_SIZE + 1;
    uint64_t end_in_block = inode->tail_at % EROFS_BLOCK_SIZE + tail_size;
    if (end_in_block > EROFS_BLOCK_SIZE || !lk_inside(image, inode->tail_at, tail_size))
        return lk_fail(fault, LK_FAULT_INLINE_TAIL, inode->nid, tail_size);
    return 0;
}

int lk_erofs_inode(const struct lk_erofs *image, uint64_t nid, struct lk_erofs_inode *out, struct lk_fault *fault)
{
    struct erofs_compact_inode disk; /* the first half of an extended one begins alike */
    memset(out, 0, sizeof *out);
    out->nid = nid;
    if (nid > image->size / EROFS_SLOT_SIZE || !lk_inside(image, image->meta_at + nid * EROFS_SLOT_SIZE, sizeof disk))
        return lk_fail(fault, LK_FAULT_NID, nid, nid);
    uint64_t inode_at = image->meta_at + nid * EROFS_SLOT_SIZE;
    memcpy(&disk, image->data + inode_at, sizeof disk);
    uint32_t format = disk.format;
    out->layout = format >> 1 & 7;
    if (format >> 4 || out->layout > LK_EROFS_CHUNK_BASED)
        return lk_fail(fault, LK_FAULT_FORMAT, nid, format);
    if (out->layout & 1)
        return lk_fail(fault, LK_FAULT_COMPRESSED, nid, format);
    out->inode_size = format & 1 ? sizeof(struct erofs_extended_inode) : sizeof disk;
    if (!lk_inside(image, inode_at, out->inode_size))
        return lk_fail(fault, LK_FAULT_NID, nid, nid);
    out->mode = disk.mode;
    out->ino = disk.ino;
    if (format & 1)
        read_extended(image->data + inode_at, out);
    else
        read_compact(image, &disk, out);
    /* Linux 6.15 began to add this word to the time of compact inodes; before, it is ignored: refuse the ambiguous. */
    if (!(format & 1) && disk.reserved)
        return lk_fail(fault, LK_FAULT_COMPACT_TIME, nid, disk.reserved);
    if (out->size > INT64_MAX)
        return lk_fail(fault, LK_FAULT_SIZE, nid, out->size);
    if (out->mtime_nsec >= 1000000000)
        return lk_fail(fault, LK_FAULT_TIME, nid, out->mtime_nsec);
    uint32_t count = disk.xattr_icount;
    out->xattr_at = inode_at + out->inode_size;
    out->xattr_size = count ? (uint32_t)sizeof(struct erofs_xattr_header) + 4 * (count - 1) : 0;
    if (!lk_inside(image, out->xattr_at, out->xattr_size))
        return lk_fail(fault, LK_FAULT_XATTR_BODY, nid, out->xattr_size);
    out->tail_at = out->xattr_at + out->xattr_size;
    if (read_body(image, disk.address, out, fault))
        return -1;
    return check_tail(image, out, fault);
}
