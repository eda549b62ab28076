/* Second stage of the writer: the entries of every directory in byte order, link counts, and the canonical order of
 * inodes: a directory's children together in byte order, then its subdirectories one after the other, depth first. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "private/erofs_plan.h"

static uint64_t name_key(const uint8_t *name, uint32_t size)
{
    uint64_t key = 0;
    for (uint32_t i = 0; i < 8; i++)
        key = key << 8 | (i < size ? name[i] : 0);
    return key;
}

static int compare_entries(const void *left, const void *right)
{
    const lk_entry *a = left, *b = right;
    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    uint32_t shorter = a->name_size < b->name_size ? a->name_size : b->name_size;
    int order = memcmp(a->name, b->name, shorter);
    return order ? order : (a->name_size > b->name_size) - (a->name_size < b->name_size);
}

static bool is_directory(const lk_erofs_plan *plan, uint32_t node)
{
    return S_ISDIR(plan->table->nodes[node].mode);
}

/* Where names begin, how many entries each directory gets, who is whose parent, link counts. */
static bool count_links(lk_erofs_plan *plan, lk_erofs_fault *fault)
{
    const lk_erofs_table *table = plan->table;
    uint64_t offset = 0;
    for (uint64_t i = 0; i < table->link_count; i++) {
        const lk_erofs_link *link = &table->links[i];
        lk_place *parent = &plan->places[link->parent], *child = &plan->places[link->child];
        plan->name_offsets[i] = offset;
        offset += link->name_size;
        if (parent->entry_count >= UINT32_MAX - 2 || child->nlink == UINT32_MAX || parent->nlink >= UINT32_MAX - 2)
            return lk_fail(fault, LK_EROFS_ADDRESS_SPACE, link->parent, i);
        parent->entry_count++;
        if (!is_directory(plan, link->child)) {
            child->nlink++;
            continue;
        }
        if (link->child == 0 || child->is_reached)
            return lk_fail(fault, LK_EROFS_LINKED_DIRECTORY, link->child, i);
        child->is_reached = true;
        child->parent = link->parent;
        parent->nlink++;
    }
    return true;
}

static void set_entry(lk_entry *entry, const uint8_t *name, uint32_t size, uint32_t child)
{
    *entry = (lk_entry){.key = name_key(name, size), .name = name, .name_size = size, .child = child};
}

/* Room for each directory, `.` and `..` first. */
static void open_directories(lk_erofs_plan *plan)
{
    uint64_t next = 0;
    for (uint64_t node = 0; node < plan->table->node_count; node++) {
        lk_place *place = &plan->places[node];
        place->is_reached = false;
        if (!is_directory(plan, (uint32_t)node))
            continue;
        place->nlink += 2;
        place->first_entry = next;
        next += place->entry_count + 2;
        set_entry(&plan->entries[place->first_entry], (const uint8_t *)".", 1, (uint32_t)node);
        set_entry(&plan->entries[place->first_entry + 1], (const uint8_t *)"..", 2, place->parent);
        place->entry_count = 2;
    }
}

static bool report_same_name(const lk_erofs_plan *plan, uint64_t node, const lk_entry *entry, lk_erofs_fault *fault)
{
    uint64_t link = 0;
    while (plan->table->names + plan->name_offsets[link] != entry->name)
        link++;
    return lk_fail(fault, LK_EROFS_SAME_NAME, node, link);
}

static bool fill_directories(lk_erofs_plan *plan, lk_erofs_fault *fault)
{
    const lk_erofs_table *table = plan->table;
    for (uint64_t i = 0; i < table->link_count; i++) {
        const lk_erofs_link *link = &table->links[i];
        lk_place *parent = &plan->places[link->parent];
        set_entry(&plan->entries[parent->first_entry + parent->entry_count++], table->names + plan->name_offsets[i],
                  link->name_size, link->child);
    }
    for (uint64_t node = 0; node < table->node_count; node++) {
        lk_entry *entries = plan->entries + plan->places[node].first_entry;
        uint32_t count = plan->places[node].entry_count;
        if (!count)
            continue;
        qsort(entries, count, sizeof(*entries), compare_entries);
        for (uint32_t i = 1; i < count; i++)
            if (!compare_entries(&entries[i - 1], &entries[i]))
                return report_same_name(plan, node, &entries[i], fault);
    }
    return true;
}

/* Numbers what the root reaches. Every directory has one parent, so each is expanded once: time is linear. */
static uint64_t walk(lk_erofs_plan *plan, uint32_t *stack)
{
    uint64_t count = 1, depth = 1;
    plan->places[0].is_reached = true;
    plan->places[0].ino = 1;
    plan->order[0] = stack[0] = 0;
    while (depth) {
        const lk_place *directory = &plan->places[stack[--depth]];
        const lk_entry *entries = plan->entries + directory->first_entry;
        for (uint32_t i = 0; i < directory->entry_count; i++) {
            lk_place *child = &plan->places[entries[i].child];
            if (child->is_reached)
                continue;
            child->is_reached = true;
            plan->order[count++] = entries[i].child;
            child->ino = (uint32_t)count;
        }
        for (uint32_t i = directory->entry_count; i--;) {
            uint32_t child = entries[i].child;
            /* `.` and `..` are older than their directory. */
            if (is_directory(plan, child) && plan->places[child].ino > directory->ino)
                stack[depth++] = child;
        }
    }
    return count;
}

static bool order_nodes(lk_erofs_plan *plan, lk_erofs_fault *fault)
{
    uint32_t *stack = malloc(plan->table->node_count * sizeof(*stack));
    if (!stack)
        return lk_fail(fault, LK_EROFS_NO_MEMORY, 0, 0);
    uint64_t reached = walk(plan, stack);
    free(stack);
    if (reached == plan->table->node_count)
        return true;
    uint64_t node = 0;
    while (plan->places[node].is_reached)
        node++;
    return lk_fail(fault, LK_EROFS_UNREACHABLE, node, 0);
}

bool lk_erofs_plan_tree(lk_erofs_plan *plan, lk_erofs_fault *fault)
{
    const lk_erofs_table *table = plan->table;
    plan->entry_count = table->link_count;
    for (uint64_t node = 0; node < table->node_count; node++)
        plan->entry_count += is_directory(plan, (uint32_t)node) ? 2 : 0;
    plan->name_offsets = calloc(table->link_count + 1, sizeof(*plan->name_offsets));
    plan->entries = calloc(plan->entry_count, sizeof(*plan->entries));
    if (!plan->name_offsets || !plan->entries)
        return lk_fail(fault, LK_EROFS_NO_MEMORY, 0, 0);
    if (!count_links(plan, fault))
        return false;
    open_directories(plan);
    return fill_directories(plan, fault) && order_nodes(plan, fault);
}
