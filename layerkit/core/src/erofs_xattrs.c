/* Third stage of the writer: xattrs in canonical order, and which of them several inodes share. */
#include <stdlib.h>
#include <string.h>

#include "private/erofs_plan.h"
#include "private/erofs_xattr_names.h"

/* i_xattr_icount has 16 bits: a header counts 1, every 4 bytes behind it 1 more. */
#define MAX_XATTR_SIZE (sizeof(struct erofs_xattr_header) + 4u * (UINT16_MAX - 1u))

static int compare_bytes(const uint8_t *a, uint32_t a_size, const uint8_t *b, uint32_t b_size)
{
    int order = memcmp(a, b, a_size < b_size ? a_size : b_size);
    return order ? order : (a_size > b_size) - (a_size < b_size);
}

static int compare_names(const void *left, const void *right)
{
    const lk_xattr *a = left, *b = right;
    return compare_bytes(a->name, a->name_size, b->name, b->name_size);
}

static int compare_contents(const lk_xattr *a, const lk_xattr *b)
{
    int order = compare_names(a, b);
    return order ? order : compare_bytes(a->value, a->value_size, b->value, b->value_size);
}

static int compare_pointers(const void *left, const void *right)
{
    return compare_contents(*(lk_xattr *const *)left, *(lk_xattr *const *)right);
}

static void fill_xattrs(lk_erofs_plan *plan)
{
    const lk_erofs_table *table = plan->table;
    uint64_t next = 0, offset = 0;
    for (uint64_t node = 0; node < table->node_count; node++) {
        lk_place *place = &plan->places[node];
        place->first_xattr = next;
        place->xattr_count = table->nodes[node].xattr_count;
        for (uint32_t i = 0; i < place->xattr_count; i++, next++) {
            const lk_erofs_xattr *from = &table->xattrs[next];
            lk_xattr *to = &plan->xattrs[next];
            to->name = table->xattr_bytes + offset;
            to->value = to->name + from->name_size;
            to->name_size = (uint8_t)from->name_size;
            to->value_size = (uint16_t)from->value_size;
            to->prefix = lk_xattr_prefix(to->name, from->name_size, &to->prefix_size);
            to->node = (uint32_t)node;
            to->group = LK_NOT_SHARED;
            offset += (uint64_t)from->name_size + from->value_size;
        }
    }
}

static bool sort_xattrs(lk_erofs_plan *plan, lk_erofs_fault *fault)
{
    for (uint64_t node = 0; node < plan->table->node_count; node++) {
        const lk_place *place = &plan->places[node];
        lk_xattr *xattrs = plan->xattrs + place->first_xattr;
        if (place->xattr_count > 1)
            qsort(xattrs, place->xattr_count, sizeof(*xattrs), compare_names);
        for (uint32_t i = 1; i < place->xattr_count; i++)
            if (!compare_names(&xattrs[i - 1], &xattrs[i]))
                return lk_fail(fault, LK_EROFS_XATTR_SAME_NAME, node, place->first_xattr);
    }
    return true;
}

/* An entry in the shared area pays when it and its 4-byte references are smaller than its copies. */
static bool is_worth_sharing(const lk_xattr *xattr, uint64_t count)
{
    uint64_t size = lk_xattr_entry_size(xattr);
    return count > 1 && count * size > count * 4 + size;
}

static bool share_xattrs(lk_erofs_plan *plan, lk_erofs_fault *fault)
{
    uint64_t total = plan->table->xattr_count;
    lk_xattr **sorted = calloc(total + 1, sizeof(*sorted));
    plan->shared_groups = calloc(total + 1, sizeof(*plan->shared_groups));
    if (!sorted || !plan->shared_groups) {
        free(sorted);
        return lk_fail(fault, LK_EROFS_NO_MEMORY, 0, 0);
    }
    for (uint64_t i = 0; i < total; i++)
        sorted[i] = &plan->xattrs[i];
    qsort(sorted, total, sizeof(*sorted), compare_pointers);
    for (uint64_t first = 0, end; first < total; first = end) {
        for (end = first + 1; end < total && !compare_contents(sorted[first], sorted[end]); end++)
            ;
        if (!is_worth_sharing(sorted[first], end - first))
            continue;
        for (uint64_t i = first; i < end; i++)
            sorted[i]->group = plan->shared_count;
        plan->shared_groups[plan->shared_count++] = sorted[first];
    }
    free(sorted);
    return true;
}

static bool measure_xattrs(lk_erofs_plan *plan, lk_erofs_fault *fault)
{
    for (uint64_t node = 0; node < plan->table->node_count; node++) {
        lk_place *place = &plan->places[node];
        uint64_t size = sizeof(struct erofs_xattr_header);
        for (uint32_t i = 0; i < place->xattr_count; i++) {
            lk_xattr *xattr = &plan->xattrs[place->first_xattr + i];
            if (xattr->group != LK_NOT_SHARED && place->shared_count == EROFS_MAX_SHARED)
                xattr->group = LK_NOT_SHARED;
            if (xattr->group != LK_NOT_SHARED)
                place->shared_count++;
            size += xattr->group != LK_NOT_SHARED ? 4 : lk_xattr_entry_size(xattr);
        }
        if (size > MAX_XATTR_SIZE)
            return lk_fail(fault, LK_EROFS_XATTR_LARGE_SUM, node, place->first_xattr);
        place->xattr_size = place->xattr_count ? (uint32_t)size : 0;
    }
    return true;
}

bool lk_erofs_plan_xattrs(lk_erofs_plan *plan, lk_erofs_fault *fault)
{
    if (!plan->table->xattr_count)
        return true;
    plan->xattrs = calloc(plan->table->xattr_count, sizeof(*plan->xattrs));
    if (!plan->xattrs)
        return lk_fail(fault, LK_EROFS_NO_MEMORY, 0, 0);
    fill_xattrs(plan);
    return sort_xattrs(plan, fault) && share_xattrs(plan, fault) && measure_xattrs(plan, fault);
}
