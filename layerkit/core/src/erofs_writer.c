/* The writer's entrances: runs the stages in order and owns the plan. */
#include <stdlib.h>

#include "private/erofs_plan.h"

void lk_erofs_plan_free(lk_erofs_plan *plan)
{
    if (!plan)
        return;
    free(plan->name_offsets);
    free(plan->entries);
    free(plan->xattrs);
    free(plan->shared_groups);
    free(plan->shared_positions);
    free(plan->places);
    free(plan->order);
    free(plan);
}

lk_erofs_plan *lk_erofs_plan_new(const lk_erofs_table *table, lk_erofs_fault *fault)
{
    if (!lk_erofs_validate(table, fault))
        return NULL;
    lk_erofs_plan *plan = calloc(1, sizeof(*plan));
    if (!plan) {
        lk_fail(fault, LK_EROFS_NO_MEMORY, 0, 0);
        return NULL;
    }
    plan->table = table;
    plan->places = calloc(table->node_count, sizeof(*plan->places));
    plan->order = calloc(table->node_count, sizeof(*plan->order));
    bool ok = plan->places && plan->order;
    if (!ok)
        lk_fail(fault, LK_EROFS_NO_MEMORY, 0, 0);
    ok = ok && lk_erofs_plan_tree(plan, fault) && lk_erofs_plan_xattrs(plan, fault) &&
         lk_erofs_plan_layout(plan, fault);
    if (ok)
        return plan;
    lk_erofs_plan_free(plan);
    return NULL;
}

uint64_t lk_erofs_plan_image_size(const lk_erofs_plan *plan)
{
    return plan->meta_blocks * EROFS_BLOCK_SIZE;
}
