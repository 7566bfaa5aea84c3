/* shard-cover: the shards of a parameter are a bijection onto its rows: no overlap, no gap.
 *
 * For each step, parameter and replica: the row ranges of all holders, in order, must begin at 0, each where the
 * one before ends, and end with the last row. Empty shards may stand anywhere. Limit: exact. Sites: fsdp.shard where a
 * rank holds less than its shard; else fsdp.unshard, which puts them together. Experts that are spread over ranks (ep) are cut
 * too: each rank's place in its expert-parallel group, as it took it, is the one that the layout gives it (ep.rank). */
#include <stdlib.h>

#include "model/experts.h"
#include "model/sites.h"
#include "scenarios/check.h"
#include "scenarios/context_checks.h"
#include "scenarios/facts.h"
#include "scenarios/tensor_groups.h"

static void find_rows(const struct evidence *e, struct check_output *output, const struct tensor_entry *entry, bool gap,
                      int64_t due, int64_t got)
{
    /* A rank that holds other rows than its shard has, or that puts shards together wrongly. */
    bool held = facts_was_chosen(&e->parallel->rank[entry->rank], &site_fsdp_shard, 0, -1);
    struct finding finding = finding_new(
        held ? &site_fsdp_shard : &site_fsdp_unshard, place_at_unit(&e->parallel->config, entry->rank,
                                          entry->fact->step < 0 ? 0 : entry->fact->step, -1, entry->fact->unit));
    finding.place.param = e->parallel->params.params[entry->fact->param].info.name;
    finding.expected = (double)due;
    finding.got = (double)got;
    finding_pattern(&finding, gap ? "gap" : "overlap");
    finding_say(&finding, "the shards of %s %s: up to rank %d they reach element %lld where element %lld is due",
                finding.place.param, gap ? "leave a gap" : "overlap", entry->rank, (long long)got, (long long)due);
    check_value(output, 1, 0);
    check_find(output, &finding);
}

/* One tensor's holders first .. first+count-1, ascending by first row; replica by replica. */
static void check_tensor(const struct evidence *e, struct check_output *output, const struct tensor_entry *first,
                         int count)
{
    int64_t elements = facts_elements_of(e->parallel, first->fact->param);
    bool done = false;
    for (int replica = 0; !done; replica++) {
        int64_t next = 0;
        const struct tensor_entry *last = NULL;
        done = true;
        for (int i = 0; i < count; i++) {
            if (first[i].fact->replica > replica) done = false;
            if (first[i].fact->replica != replica) continue;
            last = &first[i];
            if (last->fact->elements == 0) continue;
            if (last->fact->first != next) {
                find_rows(e, output, last, last->fact->first > next, next, last->fact->first);
                return;
            }
            next += last->fact->elements;
        }
        if (last && next != elements) {
            find_rows(e, output, last, next < elements, elements, next);
            return;
        }
    }
}

/* Whose experts a rank takes for its own. */
static void check_place(const struct evidence *e, struct check_output *output, const struct rank_record *rank)
{
    const struct layout *layout = &e->parallel->config.layout;
    int experts = e->parallel->config.model.moe.experts;
    struct expert_place due = expert_place(layout, experts > 0 ? experts : 1, rank->shard, rank->tp);
    for (int i = 0; i < rank->factors.count; i++) {
        const struct factor_fact *fact = &rank->factors.items[i];
        if (fact->site != &site_ep_rank || fact->value == due.me) continue;
        struct finding finding = finding_new(&site_ep_rank, place_at(rank->rank, 0, -1));
        bool past = !(fact->value >= 0 && fact->value < layout_ep(layout));
        finding.expected = due.me;
        finding.got = fact->value;
        finding_pattern(&finding, past ? "past-end" : "other-experts");
        finding_say(&finding, "rank %d takes place %g of the %d in its expert-parallel group, and experts from %g of %d; its place is %d, and experts %d to %d",
                    rank->rank, fact->value, layout_ep(layout), fact->value * due.count, experts, due.me, due.first, due.first + due.count - 1);
        check_value(output, 1, 0);
        check_find(output, &finding);
    }
}

static void run(const struct evidence *e, struct check_output *output)
{
    if (check_is_attention(e)) {
        context_shard_cover(e, output);
        return;
    }
    check_value(output, 0, 0);
    if (!facts_finished(e->parallel)) {
        check_skip(output, "the run did not finish");
        return;
    }
    for (int r = 0; r < e->parallel->ranks; r++) check_place(e, output, &e->parallel->rank[r]);
    struct tensor_groups groups = tensor_groups_new(e->parallel);
    for (int i = 0; i < groups.count;) {
        const struct tensor_fact *fact = groups.entries[i].fact;
        int end = i;
        while (end < groups.count && groups.entries[end].fact->step == fact->step &&
               groups.entries[end].fact->kind == fact->kind && groups.entries[end].fact->param == fact->param &&
               groups.entries[end].fact->unit == fact->unit && groups.entries[end].fact->part == fact->part)
            end++;
        check_tensor(e, output, &groups.entries[i], end - i);
        i = end;
    }
    free(groups.entries);
}

const struct check check_shard_cover = {
    .id = "shard-cover",
    .proves = "the shards of each parameter and gradient cover its rows without gap or overlap, in every replica, "
              "and each rank holds the experts of its own place in its expert-parallel group",
    .tier = "default",
    .run = run,
    .workloads = CHECK_IN(WORKLOAD_TRAIN) | CHECK_IN(WORKLOAD_ATTENTION),
};
