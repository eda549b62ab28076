/* Fourth stage of the writer: the form of every inode and the address of everything. Order in the image: boot area,
 * superblock, device slot, inodes with their xattrs and tails, shared xattrs, blocks of large directories and the few
 * bodies that do not fit behind their inode. */
#include <stdlib.h>
#include <sys/stat.h>

#include "private/erofs_plan.h"

/* Inodes go into the first of so many unfinished blocks that has room: what a large one leaves is used by the next
 * small ones, while neighbours stay neighbours. */
#define OPEN_BLOCKS 4

typedef struct {
    struct {
        uint64_t block;
        uint32_t used;
    } open[OPEN_BLOCKS];
    unsigned count;
    uint64_t blocks;
    uint64_t end; /* behind the last byte used */
} packer;

typedef struct {
    int64_t seconds;
    uint32_t nanoseconds;
} timestamp;

static int compare_times(const void *left, const void *right)
{
    const timestamp *a = left, *b = right;
    if (a->seconds != b->seconds)
        return a->seconds < b->seconds ? -1 : 1;
    return (a->nanoseconds > b->nanoseconds) - (a->nanoseconds < b->nanoseconds);
}

/* The most frequent time, the smallest of equally frequent ones: inodes that have it can be compact. */
static bool choose_epoch(lk_erofs_plan *plan, lk_erofs_fault *fault)
{
    uint64_t count = plan->table->node_count, best = 0;
    timestamp *times = malloc(count * sizeof(*times));
    if (!times)
        return lk_fail(fault, LK_EROFS_NO_MEMORY, 0, 0);
    for (uint64_t i = 0; i < count; i++)
        times[i] = (timestamp){plan->table->nodes[i].mtime_s, plan->table->nodes[i].mtime_ns};
    qsort(times, count, sizeof(*times), compare_times);
    for (uint64_t first = 0, end; first < count; first = end) {
        for (end = first + 1; end < count && !compare_times(&times[first], &times[end]); end++)
            ;
        if (end - first <= best)
            continue;
        best = end - first;
        plan->epoch_s = times[first].seconds;
        plan->epoch_ns = times[first].nanoseconds;
    }
    free(times);
    return true;
}

uint64_t lk_directory_block(const lk_entry *entries, uint64_t count, uint32_t *used)
{
    uint64_t taken = 0;
    *used = 0;
    while (taken < count) {
        uint32_t size = (uint32_t)sizeof(struct erofs_dirent) + entries[taken].name_size;
        if (*used + size > EROFS_BLOCK_SIZE)
            break;
        *used += size;
        taken++;
    }
    return taken;
}

static uint64_t directory_size(const lk_entry *entries, uint64_t count)
{
    uint64_t full = 0;
    for (;;) {
        uint32_t used;
        uint64_t taken = lk_directory_block(entries, count, &used);
        if (taken == count)
            return full * EROFS_BLOCK_SIZE + used;
        entries += taken;
        count -= taken;
        full++;
    }
}

/* Linux reads short symlinks from the block of their inode only (fs/erofs/inode.c), and other tails must not cross a
 * block: whatever has a tail lies within one block as a whole, or has no tail. */
static void choose_tail(lk_place *place)
{
    uint64_t blocks = lk_blocks(place->size);
    uint64_t last = place->size ? place->size - (blocks - 1) * EROFS_BLOCK_SIZE : 0;
    place->layout = EROFS_FLAT_PLAIN;
    place->body_blocks = (uint32_t)blocks;
    if (!last || lk_head_size(place) + place->xattr_size + last > EROFS_BLOCK_SIZE)
        return;
    place->layout = EROFS_FLAT_INLINE;
    place->body_blocks = (uint32_t)(blocks - 1);
    place->tail_size = last;
}

static void choose_body(lk_erofs_plan *plan, const lk_erofs_node *node, lk_place *place)
{
    place->address = EROFS_NO_BLOCK;
    if (node->kind == LK_EROFS_BODY_CHUNKS) {
        place->layout = EROFS_CHUNK_BASED;
        place->address = node->chunk_bits - EROFS_BLOCK_BITS;
        place->tail_size = 4 * lk_chunk_count(node->size, node->chunk_bits);
        plan->has_chunks = true;
    } else if (node->kind == LK_EROFS_BODY_INLINE || S_ISDIR(node->mode)) {
        choose_tail(place);
    } else if (S_ISCHR(node->mode) || S_ISBLK(node->mode)) {
        place->address = (uint32_t)node->body;
    } else if (node->kind == LK_EROFS_BODY_NONE) {
        place->address = 0;
    }
}

static void choose_forms(lk_erofs_plan *plan)
{
    for (uint64_t i = 0; i < plan->table->node_count; i++) {
        const lk_erofs_node *node = &plan->table->nodes[i];
        lk_place *place = &plan->places[i];
        place->size = S_ISDIR(node->mode) ? directory_size(plan->entries + place->first_entry, place->entry_count)
                                          : node->size;
        place->is_extended = node->mtime_s != plan->epoch_s || node->mtime_ns != plan->epoch_ns ||
                             node->uid > UINT16_MAX || node->gid > UINT16_MAX || place->nlink > UINT16_MAX ||
                             place->size > UINT32_MAX;
        choose_body(plan, node, place);
    }
}

static void close_block(packer *pack, unsigned index)
{
    pack->count--;
    for (; index < pack->count; index++)
        pack->open[index] = pack->open[index + 1];
}

static void open_block(packer *pack, uint64_t block, uint32_t used)
{
    if (used + EROFS_SLOT_SIZE > EROFS_BLOCK_SIZE)
        return;
    if (pack->count == OPEN_BLOCKS) {
        unsigned fullest = 0;
        for (unsigned i = 1; i < pack->count; i++)
            if (pack->open[i].used > pack->open[fullest].used)
                fullest = i;
        close_block(pack, fullest);
    }
    pack->open[pack->count].block = block;
    pack->open[pack->count++].used = used;
}

/* The address of an inode that takes so many bytes with all that lies behind it. */
static uint64_t pack_inode(packer *pack, uint64_t size)
{
    uint64_t position;
    uint64_t slots = lk_round_up(size, EROFS_SLOT_SIZE);
    for (unsigned i = 0; i < pack->count; i++) {
        if (pack->open[i].used + slots > EROFS_BLOCK_SIZE)
            continue;
        position = pack->open[i].block * EROFS_BLOCK_SIZE + pack->open[i].used;
        pack->open[i].used += (uint32_t)slots;
        if (pack->open[i].used + EROFS_SLOT_SIZE > EROFS_BLOCK_SIZE)
            close_block(pack, i);
        if (position + slots > pack->end)
            pack->end = position + slots;
        return position;
    }
    position = pack->blocks * EROFS_BLOCK_SIZE;
    pack->blocks += lk_blocks(slots);
    pack->end = position + slots;
    open_block(pack, pack->blocks - 1, (uint32_t)((slots - 1) % EROFS_BLOCK_SIZE + 1));
    return position;
}

static void place_inodes(lk_erofs_plan *plan)
{
    uint32_t start = EROFS_SUPERBLOCK_OFFSET + sizeof(struct erofs_superblock);
    if (plan->table->data_blocks)
        start += sizeof(struct erofs_device_slot);
    packer pack = {.blocks = 1, .end = start};
    open_block(&pack, 0, start);
    for (uint64_t i = 0; i < plan->table->node_count; i++) {
        lk_place *place = &plan->places[plan->order[i]];
        place->position = pack_inode(&pack, lk_head_size(place) + place->xattr_size + place->tail_size);
    }
    plan->shared_start = pack.end;
}

static bool place_shared(lk_erofs_plan *plan, lk_erofs_fault *fault, uint64_t *end)
{
    *end = plan->shared_start;
    if (!plan->shared_count)
        return true;
    plan->shared_positions = malloc(plan->shared_count * sizeof(*plan->shared_positions));
    if (!plan->shared_positions)
        return lk_fail(fault, LK_EROFS_NO_MEMORY, 0, 0);
    for (uint64_t i = 0; i < plan->shared_count; i++) {
        plan->shared_positions[i] = *end;
        *end += lk_xattr_entry_size(plan->shared_groups[i]);
    }
    /* References count 4 bytes each from the start of the area's first block. */
    if ((*end - plan->shared_start) / 4 > UINT32_MAX - EROFS_BLOCK_SIZE)
        return lk_fail(fault, LK_EROFS_ADDRESS_SPACE, 0, 0);
    return true;
}

static bool place_blocks(lk_erofs_plan *plan, uint64_t end, lk_erofs_fault *fault)
{
    uint64_t next = lk_blocks(end);
    for (uint64_t i = 0; i < plan->table->node_count; i++) {
        lk_place *place = &plan->places[plan->order[i]];
        if (!place->body_blocks)
            continue;
        place->address = (uint32_t)next;
        next += place->body_blocks;
    }
    plan->meta_blocks = next;
    if (next + plan->table->data_blocks > EROFS_NO_BLOCK)
        return lk_fail(fault, LK_EROFS_ADDRESS_SPACE, 0, 0);
    for (uint64_t i = 0; i < plan->table->node_count; i++)
        if (plan->table->nodes[i].kind == LK_EROFS_BODY_BLOCKS)
            plan->places[i].address = (uint32_t)(next + plan->table->nodes[i].body);
    return true;
}

bool lk_erofs_plan_layout(lk_erofs_plan *plan, lk_erofs_fault *fault)
{
    uint64_t end;
    if (!choose_epoch(plan, fault))
        return false;
    choose_forms(plan);
    place_inodes(plan);
    return place_shared(plan, fault, &end) && place_blocks(plan, end, fault);
}
