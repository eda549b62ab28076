/* EROFS writer: a table of nodes, links and xattrs becomes one metadata image. Validate, then plan, then emit; a plan
 * belongs to its caller and points into the table, which must outlive it. No globals; one plan, one thread. */

/* What a node's bytes are (lk_erofs_node.kind). */
#define LK_EROFS_BODY_NONE 0
#define LK_EROFS_BODY_INLINE 1
#define LK_EROFS_BODY_BLOCKS 2
#define LK_EROFS_BODY_CHUNKS 3

/* Why a table cannot be written (lk_erofs_fault.code). */
#define LK_EROFS_OK 0
#define LK_EROFS_NO_MEMORY 1
#define LK_EROFS_BAD_TABLE 2
#define LK_EROFS_BAD_ROOT 3
#define LK_EROFS_BAD_MODE 4
#define LK_EROFS_BAD_BODY 5
#define LK_EROFS_BAD_BLOCKS 6
#define LK_EROFS_BAD_TARGET 7
#define LK_EROFS_LONG_TARGET 8
#define LK_EROFS_LARGE_INLINE 9
#define LK_EROFS_LARGE_RDEV 10
#define LK_EROFS_BAD_NAME 11
#define LK_EROFS_LONG_NAME 12
#define LK_EROFS_SAME_NAME 13
#define LK_EROFS_BAD_PARENT 14
#define LK_EROFS_LINKED_DIRECTORY 15
#define LK_EROFS_UNREACHABLE 16
#define LK_EROFS_XATTR_PREFIX 17
#define LK_EROFS_XATTR_LONG_NAME 18
#define LK_EROFS_XATTR_BAD_NAME 19
#define LK_EROFS_XATTR_SAME_NAME 20
#define LK_EROFS_XATTR_LARGE_VALUE 21
#define LK_EROFS_XATTR_LARGE_SUM 22
#define LK_EROFS_ADDRESS_SPACE 23

typedef struct {
    int64_t mtime_s;
    uint64_t size;        /* bytes of a regular file or symlink target, else 0 */
    uint64_t body;        /* INLINE: offset in bodies; BLOCKS: first block in data; CHUNKS: first entry in chunk_map;
                             devices: glibc's dev_t */
    uint32_t mtime_ns;
    uint32_t mode;
    uint32_t uid;
    uint32_t gid;
    uint32_t xattr_count; /* the xattrs of all nodes lie in node order */
    uint8_t kind;
    uint8_t chunk_bits;
    uint16_t reserved;
} lk_erofs_node;

typedef struct {
    uint32_t parent;
    uint32_t child;
    uint32_t name_size;   /* names lie end to end in link order */
} lk_erofs_link;

typedef struct {
    uint32_t name_size;   /* full name; name and value lie end to end in xattr order */
    uint32_t value_size;
} lk_erofs_xattr;

typedef struct {
    const lk_erofs_node *nodes;   /* node 0 is the root */
    uint64_t node_count;
    const lk_erofs_link *links;
    uint64_t link_count;
    const lk_erofs_xattr *xattrs;
    uint64_t xattr_count;
    const uint8_t *names;
    uint64_t names_size;
    const uint8_t *bodies;
    uint64_t bodies_size;
    const uint8_t *xattr_bytes;
    uint64_t xattr_bytes_size;
    const uint32_t *chunk_map;    /* first blocks in data; 0xffffffff is a hole */
    uint64_t chunk_map_count;
    uint64_t data_blocks;
} lk_erofs_table;

typedef struct {
    uint32_t code;
    uint32_t node;        /* the node at fault; of a name, its parent */
    uint64_t item;        /* the link or xattr at fault, by its number */
} lk_erofs_fault;

typedef struct lk_erofs_plan lk_erofs_plan;

/* Checks the table and decides every address; NULL with the fault filled in when it cannot be written. */
lk_erofs_plan *lk_erofs_plan_new(const lk_erofs_table *table, lk_erofs_fault *fault);
uint64_t lk_erofs_plan_image_size(const lk_erofs_plan *plan);
/* Fills `image`, which holds lk_erofs_plan_image_size() zeros. */
void lk_erofs_plan_emit(const lk_erofs_plan *plan, uint8_t *image);
void lk_erofs_plan_free(lk_erofs_plan *plan);
