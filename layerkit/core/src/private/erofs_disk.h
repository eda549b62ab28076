/* What lies on disk, as Linux fs/erofs/erofs_fs.h defines it; every field little endian. */
#ifndef LK_EROFS_DISK_H
#define LK_EROFS_DISK_H

#include <stdint.h>

#define EROFS_BLOCK_BITS 12
#define EROFS_BLOCK_SIZE 4096u
#define EROFS_SLOT_SIZE 32u /* a nid counts these */
#define EROFS_MAGIC 0xe0f5e1e2u
#define EROFS_SUPERBLOCK_OFFSET 1024u
#define EROFS_NO_BLOCK 0xffffffffu /* a hole in a chunk map, or nothing to address */

#define EROFS_COMPAT_CHECKSUM 0x1u
#define EROFS_COMPAT_MTIME 0x2u
#define EROFS_INCOMPAT_ZERO_PADDING 0x1u /* about compressed data only; mkfs.erofs sets it for others too */
#define EROFS_INCOMPAT_CHUNKED_FILE 0x4u
#define EROFS_INCOMPAT_DEVICE_TABLE 0x8u

enum { EROFS_FLAT_PLAIN = 0, EROFS_FLAT_INLINE = 2, EROFS_CHUNK_BASED = 4 };
enum { EROFS_XATTR_USER = 1, EROFS_XATTR_ACL_ACCESS = 2, EROFS_XATTR_ACL_DEFAULT = 3, EROFS_XATTR_TRUSTED = 4,
       EROFS_XATTR_SECURITY = 6 };
enum { EROFS_TYPE_REGULAR = 1, EROFS_TYPE_DIRECTORY, EROFS_TYPE_CHARACTER, EROFS_TYPE_BLOCK, EROFS_TYPE_FIFO,
       EROFS_TYPE_SOCKET, EROFS_TYPE_SYMLINK };

#define EROFS_MAX_NAME 255u
#define EROFS_MAX_TARGET 4095u
#define EROFS_MAX_XATTR_NAME 255u /* XATTR_NAME_MAX, over the full name */
#define EROFS_MAX_XATTR_VALUE 65535u
#define EROFS_MAX_SHARED 255u
#define EROFS_MIN_CHUNK_BITS 12
#define EROFS_MAX_CHUNK_BITS 43
#define EROFS_CHUNK_FORMAT_BITS 0x1fu /* log2 of the chunk size in blocks */
#define EROFS_CHUNK_FORMAT_INDEXES 0x20u /* entries of 8 bytes, not 4 */

struct erofs_superblock {
    uint32_t magic;
    uint32_t checksum; /* CRC-32C of the block from offset 1024 with this field zero */
    uint32_t feature_compat;
    uint8_t block_bits;
    uint8_t extension_slots;
    uint16_t root_nid;
    uint64_t inode_count;
    int64_t epoch_s;
    uint32_t epoch_ns;
    uint32_t blocks;
    uint32_t meta_block;
    uint32_t xattr_block;
    uint8_t uuid[16];
    uint8_t volume_name[16];
    uint32_t feature_incompat;
    uint16_t compression;
    uint16_t extra_devices;
    uint16_t device_slot; /* in units of 128 bytes */
    uint8_t directory_block_bits;
    uint8_t prefix_count;
    uint32_t prefix_start;
    uint64_t packed_nid;
    uint8_t reserved[24];
};

struct erofs_device_slot {
    uint8_t tag[64];
    uint32_t blocks;
    uint32_t mapped_block;
    uint8_t reserved[56];
};

struct erofs_compact_inode {
    uint16_t format; /* bit 0: extended; bits 1-3: data layout */
    uint16_t xattr_icount;
    uint16_t mode;
    uint16_t nlink;
    uint32_t size;
    uint32_t reserved;
    uint32_t address; /* first block, device number or chunk format */
    uint32_t ino;
    uint16_t uid;
    uint16_t gid;
    uint32_t reserved2;
};

struct erofs_extended_inode {
    uint16_t format;
    uint16_t xattr_icount;
    uint16_t mode;
    uint16_t reserved;
    uint64_t size;
    uint32_t address;
    uint32_t ino;
    uint32_t uid;
    uint32_t gid;
    int64_t mtime_s;
    uint32_t mtime_ns;
    uint32_t nlink;
    uint8_t reserved2[16];
};

struct erofs_chunk_index {
    uint16_t block_high;
    uint16_t device_id;
    uint32_t block;
};

struct erofs_xattr_header {
    uint32_t name_filter;
    uint8_t shared_count;
    uint8_t reserved[7];
};

struct erofs_xattr_entry {
    uint8_t name_size;
    uint8_t prefix;
    uint16_t value_size;
};

struct __attribute__((packed)) erofs_dirent {
    uint64_t nid;
    uint16_t name_offset;
    uint8_t file_type;
    uint8_t reserved;
};

_Static_assert(sizeof(struct erofs_superblock) == 128, "superblock");
_Static_assert(sizeof(struct erofs_device_slot) == 128, "device slot");
_Static_assert(sizeof(struct erofs_compact_inode) == 32, "compact inode");
_Static_assert(sizeof(struct erofs_extended_inode) == 64, "extended inode");
_Static_assert(sizeof(struct erofs_chunk_index) == 8, "chunk index");
_Static_assert(sizeof(struct erofs_xattr_header) == 12, "xattr header");
_Static_assert(sizeof(struct erofs_xattr_entry) == 4, "xattr entry");
_Static_assert(sizeof(struct erofs_dirent) == 12, "dirent");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "on-disk structs are stored as they lie in memory");

#endif
