/* Superblock, checksum and device table: Linux fs/erofs/super.c. */
#include "private/erofs_read.h"

#include "crc32c.h"

#define EXTENSION_SLOT_SIZE 16u

/* erofs_superblock_csum_verify: from the superblock to the end of block 0, the checksum itself as zeros. */
static int checksum_matches(const uint8_t *data, struct erofs_superblock super)
{
    uint32_t expected = super.checksum;
    super.checksum = 0;
    size_t rest = EROFS_SUPERBLOCK_OFFSET + sizeof super;
    uint32_t crc = lk_crc32c(0xffffffffu, (const uint8_t *)&super, sizeof super);
    return lk_crc32c(crc, data + rest, EROFS_BLOCK_SIZE - rest) == expected;
}

static int read_device(struct lk_erofs *image, const struct erofs_superblock *super, struct lk_fault *fault)
{
    struct erofs_device_slot slot;
    if (!(image->feature_incompat & EROFS_INCOMPAT_DEVICE_TABLE))
        return 0;
    image->device_count = super->extra_devices;
    if (!image->device_count)
        return 0;
    if (image->device_count > 1)
        return lk_fail(fault, LK_FAULT_DEVICES, 0, image->device_count);
    uint64_t at = (uint64_t)super->device_slot * sizeof slot;
    if (!lk_inside(image, at, sizeof slot))
        return lk_fail(fault, LK_FAULT_DEVICE_SLOT, 0, at);
    memcpy(&slot, image->data + at, sizeof slot);
    image->data_blocks = slot.blocks;
    image->mapped_blkaddr = slot.mapped_block;
    /* Address 0 would mean that the device is reached by device ids alone. */
    if (!image->mapped_blkaddr)
        return lk_fail(fault, LK_FAULT_DEVICES, 0, 1);
    uint64_t end = (uint64_t)image->mapped_blkaddr + image->data_blocks;
    if (image->mapped_blkaddr < image->blocks || end > UINT64_C(1) << 32)
        return lk_fail(fault, LK_FAULT_DEVICE_SLOT, 0, image->mapped_blkaddr);
    if (!lk_inside(image, 0, (uint64_t)image->blocks * EROFS_BLOCK_SIZE))
        return lk_fail(fault, LK_FAULT_TRUNCATED, 0, (uint64_t)image->blocks * EROFS_BLOCK_SIZE);
    return 0;
}

int lk_erofs_open(struct lk_erofs *image, const uint8_t *data, size_t size, struct lk_fault *fault)
{
    struct erofs_superblock super;
    memset(image, 0, sizeof *image);
    image->data = data;
    image->size = size;
    if (size < EROFS_BLOCK_SIZE)
        return lk_fail(fault, LK_FAULT_TRUNCATED, 0, EROFS_BLOCK_SIZE);
    memcpy(&super, data + EROFS_SUPERBLOCK_OFFSET, sizeof super);
    if (super.magic != EROFS_MAGIC)
        return lk_fail(fault, LK_FAULT_MAGIC, 0, super.magic);
    if (super.block_bits != EROFS_BLOCK_BITS || super.directory_block_bits)
        return lk_fail(fault, LK_FAULT_BLOCK_SIZE, 0, super.block_bits);
    image->feature_compat = super.feature_compat;
    image->feature_incompat = super.feature_incompat;
    if (image->feature_incompat & ~INCOMPAT_KNOWN)
        return lk_fail(fault, LK_FAULT_FEATURES, 0, image->feature_incompat & ~INCOMPAT_KNOWN);
    if (sizeof super + super.extension_slots * EXTENSION_SLOT_SIZE > EROFS_BLOCK_SIZE - EROFS_SUPERBLOCK_OFFSET)
        return lk_fail(fault, LK_FAULT_SUPERBLOCK, 0, super.extension_slots);
    image->checksum_ok = !(image->feature_compat & EROFS_COMPAT_CHECKSUM) || checksum_matches(data, super);
    image->root_nid = super.root_nid;
    image->inodes = super.inode_count;
    image->epoch_s = super.epoch_s;
    image->epoch_nsec = super.epoch_ns;
    if (image->epoch_nsec >= 1000000000)
        return lk_fail(fault, LK_FAULT_SUPERBLOCK, 0, image->epoch_nsec);
    image->blocks = super.blocks;
    image->meta_at = (uint64_t)super.meta_block * EROFS_BLOCK_SIZE;
    image->xattr_at = (uint64_t)super.xattr_block * EROFS_BLOCK_SIZE;
    memcpy(image->uuid, super.uuid, sizeof image->uuid);
    return read_device(image, &super, fault);
}
