/* Reading EROFS images that nobody vouches for; what is accepted: docs/formats/meta-image-accepted.md.
 * Functions that return int give 0, or -1 with *fault filled, unless they say otherwise. Nothing is allocated but by
 * lk_erofs_walk. Every offset below is into the image and checked against its size. */
#define LK_EROFS_BLOCK 4096
#define LK_EROFS_HOLE 0xffffffff

#define LK_EROFS_FLAT_PLAIN 0
#define LK_EROFS_FLAT_INLINE 2
#define LK_EROFS_CHUNK_BASED 4

#define LK_FAULT_TRUNCATED 1
#define LK_FAULT_MAGIC 2
#define LK_FAULT_BLOCK_SIZE 3
#define LK_FAULT_FEATURES 4
#define LK_FAULT_SUPERBLOCK 5
#define LK_FAULT_DEVICES 6
#define LK_FAULT_DEVICE_SLOT 7
#define LK_FAULT_NID 8
#define LK_FAULT_FORMAT 9
#define LK_FAULT_COMPRESSED 10
#define LK_FAULT_MODE 11
#define LK_FAULT_SIZE 12
#define LK_FAULT_TIME 13
#define LK_FAULT_COMPACT_TIME 14
#define LK_FAULT_INLINE_TAIL 15
#define LK_FAULT_CHUNK_FORMAT 16
#define LK_FAULT_BLOCK_RANGE 17
#define LK_FAULT_DEVICE_ID 18
#define LK_FAULT_NOT_IN_IMAGE 19
#define LK_FAULT_XATTR_BODY 20
#define LK_FAULT_XATTR_INDEX 21
#define LK_FAULT_XATTR_NAME 22
#define LK_FAULT_DIR_BLOCK 23
#define LK_FAULT_NAME 24
#define LK_FAULT_ORDER 25
#define LK_FAULT_DOTS 26
#define LK_FAULT_FILE_TYPE 27
#define LK_FAULT_DIR_TWICE 28
#define LK_FAULT_OVERLAP 29
#define LK_FAULT_NLINK 30
#define LK_FAULT_INODE_COUNT 31
#define LK_FAULT_CHECKSUM 32
#define LK_FAULT_TARGET 33
#define LK_FAULT_ROOT 34
#define LK_FAULT_NOT_A_DIRECTORY 35
#define LK_FAULT_TOO_BIG 36
#define LK_FAULT_NO_MEMORY 37

/* Why an image was refused: a code, the inode (0 for the superblock) and a number that belongs to the code. */
struct lk_fault {
    uint64_t code, nid, value;
};

struct lk_erofs {
    const uint8_t *data;
    uint64_t size;
    uint64_t meta_at;  /* where nid 0 would be */
    uint64_t xattr_at; /* where shared xattr 0 would be */
    uint64_t inodes;
    int64_t epoch_s;
    uint32_t epoch_nsec, blocks, root_nid;
    uint32_t device_count; /* 0 or 1 */
    uint32_t mapped_blkaddr, data_blocks;
    uint32_t feature_compat, feature_incompat;
    uint32_t checksum_ok; /* 1 also where the image carries none */
    uint8_t uuid[16];
};

struct lk_erofs_inode {
    uint64_t nid, size;
    int64_t mtime_s;
    uint64_t xattr_at; /* the xattr body, xattr_size bytes long */
    uint64_t tail_at;  /* what follows it: inline data, or the chunk map */
    uint64_t chunk_count;
    uint32_t mtime_nsec, mode, uid, gid, nlink, rdev, ino;
    uint32_t layout;
    uint32_t block; /* flat layouts: first block address */
    uint32_t xattr_size, inode_size;
    uint32_t chunk_bits; /* chunk size is 1 << chunk_bits bytes */
    uint32_t chunk_unit; /* bytes of a chunk map entry, 4 or 8 */
};

/* A range of a file: a hole, or bytes at `at` of the image (LK_IN_IMAGE) or of the data device (LK_IN_DATA). */
#define LK_IN_NONE 0
#define LK_IN_IMAGE 1
#define LK_IN_DATA 2
struct lk_erofs_extent {
    uint64_t file_offset, length, at, place;
};

struct lk_erofs_dirent {
    uint64_t nid, name_at;
    uint32_t name_size, file_type;
};

struct lk_erofs_xattr_place {
    uint64_t at; /* the entry; names and values follow it */
    uint64_t name_at, value_at;
    uint32_t name_size, value_size, name_index;
    uint32_t shared; /* 0, or the number in the shared area + 1 */
};

/* How the bytes of a row are found. */
#define LK_BODY_NONE 0      /* devices, fifos, sockets */
#define LK_BODY_DIRECTORY 1 /* the links whose parent the row is */
#define LK_BODY_INLINE 2    /* size bytes at body_at of the image: files up to one block, symlink targets */
#define LK_BODY_DATA 3      /* size bytes at body_at of the data device */
#define LK_BODY_CHUNKS 4    /* chunks from number body_at on; blocks of the data device, or LK_EROFS_HOLE */
#define LK_BODY_IMAGE 5     /* larger, in blocks of the image itself: ask lk_erofs_map */

/* An inode of a walk; erofs_walk.py takes columns out of it by stride. */
struct lk_erofs_row {
    uint64_t nid, size;
    int64_t mtime_s;
    uint64_t body_at;
    uint32_t mtime_nsec, mode, uid, gid, nlink, rdev;
    uint32_t body, chunk_bits;
    uint32_t xattr_first, xattr_count; /* in xattr_refs */
    uint32_t parent;                   /* row of the directory that named it first */
    uint32_t seen;                     /* links found */
};

struct lk_erofs_name_link {
    uint32_t parent, child;
};

/* What a walk found: rows (parents before children, row 0 the root) and their names, in directory order. */
struct lk_erofs_walk {
    struct lk_erofs_row *rows;
    struct lk_erofs_name_link *links;
    uint8_t *names; /* one for each link, each ended by a zero byte */
    uint32_t *chunks;
    uint32_t *xattr_refs; /* numbers in xattrs */
    struct lk_erofs_xattr_place *xattrs;
    uint64_t row_count, link_count, names_size, chunk_count, xattr_ref_count, xattr_count;
    uint64_t row_room, link_room, names_room, chunk_room, xattr_ref_room, xattr_room;
    uint32_t *row_of;   /* by nid: row + 1 */
    uint32_t *xattr_of; /* by shared number: number in xattrs + 1 */
    uint64_t budget;    /* metadata bytes that the image can still hold */
    uint64_t small_budget; /* bytes of small files in blocks of the image that may still be given out */
    uint64_t at_row;    /* where a fault was met: a row, and a name in it unless its size is 0 */
    uint64_t at_name, at_name_size;
};

/* Reads superblock and device table. The image keeps data, which must outlive it. */
int lk_erofs_open(struct lk_erofs *image, const uint8_t *data, size_t size, struct lk_fault *fault);

int lk_erofs_inode(const struct lk_erofs *image, uint64_t nid, struct lk_erofs_inode *out, struct lk_fault *fault);

/* All size bytes of an inode whose bytes lie in the image without holes; size must not exceed the image's. */
int lk_erofs_read(const struct lk_erofs *image, const struct lk_erofs_inode *inode, uint8_t *out,
                  struct lk_fault *fault);

/* The ranges of a file in order, neighbours joined; room for max(chunk_count, 2) of them. */
int lk_erofs_map(const struct lk_erofs *image, const struct lk_erofs_inode *inode, struct lk_erofs_extent *out,
                 size_t *count, struct lk_fault *fault);

/* Every entry of a directory; room for size / 12 of them. */
int lk_erofs_entries(const struct lk_erofs *image, const struct lk_erofs_inode *inode, struct lk_erofs_dirent *out,
                     size_t *count, struct lk_fault *fault);

/* One entry by name, by binary search as in Linux fs/erofs/namei.c. Returns 1, 0 for none, -1 for a fault. */
int lk_erofs_find(const struct lk_erofs *image, const struct lk_erofs_inode *inode, const uint8_t *name,
                  size_t name_size, struct lk_erofs_dirent *out, struct lk_fault *fault);

/* Every xattr of an inode, inline ones first; room for xattr_size / 4 of them. */
int lk_erofs_xattrs(const struct lk_erofs *image, const struct lk_erofs_inode *inode, struct lk_erofs_xattr_place *out,
                    size_t *count, struct lk_fault *fault);

/* Checks all that can be reached from the root and lists it. *walk must be all zeros; lk_erofs_walk_free frees what it
 * holds, also after a fault. Time and memory are bounded by the image's size. */
int lk_erofs_walk(const struct lk_erofs *image, struct lk_erofs_walk *walk, struct lk_fault *fault);
void lk_erofs_walk_free(struct lk_erofs_walk *walk);
