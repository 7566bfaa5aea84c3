/* variations: see variations.h. */
#include "scenarios/variations.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/data.h"
#include "model/loss_convention.h"
#include "model/sites.h"
#include "sim/arena.h"
#include "sim/assertion.h"

bool variations_are_exact(const struct run_config *config, const char *gemm)
{
    bool sums_experts = config->layout.dispatcher != DISPATCH_ALL_TO_ALL && config->layout.ep > 2; /* in the order of the algorithm's chunks */
    return (!gemm || !strcmp(gemm, "fixed")) && config->layout.tp <= 2 && !sums_experts;
}

static bool run(const struct scenario *scenario, const struct experiment_options *options, struct variation *v, struct error *error)
{
    struct run_config config = scenario->config;
    config.loss_cut = loss_cut_of(&config);
    if (v->standalone) config.layout = layout_standalone(&config.model);
    config.layout.microbatches = config.train.global_batch / (layout_sequence_ranks(&config.layout) * v->per_microbatch);
    config.train.steps = 1;
    /* Which rows lie where in the sum over an expert's ranks, every token's experts decide: in order of ranks at every place. */
    if (config.layout.etp > 2) snprintf(config.layout.all_reduce, sizeof config.layout.all_reduce, "fold");
    struct train_options train = options->train;
    if (config.model.moe.experts > 0) train.gemm = "fixed"; /* how many rows an expert has, other tokens decide */
    if (!variations_are_exact(&config, train.gemm)) config.precision = precision_of(FORMAT_FP64);
    struct site_plan *plan = scenario_plan(scenario, v->standalone, layout_ranks(&config.layout), error);
    train.look = true;
    train.watch = false;
    train.trace = false;
    train.edit = v->kind == VARIATION_EDIT ? &v->edit : NULL;
    v->record = error_is_set(error) ? NULL : train_run(&config, plan, &train, error);
    site_plan_free(plan);
    return v->record && v->record->outcome != MACHINE_STOPPED;
}

static void add(struct variations *all, struct variation v)
{
    ASSERT(all->count < VARIATIONS_MAX);
    all->items[all->count++] = v;
}

/* A token with something before it and behind it in its document, of the first sequence that has one. */
static bool choose_token(const struct run_config *config, struct token_edit *ret_edit)
{
    struct arena *arena = arena_new("edited token", false);
    int seq = config->model.seq, batch = config->train.global_batch;
    struct data data = data_pack(&config->data, seq, batch, arena);
    bool found = false;
    for (int s = 0; s < batch && !found; s++) {
        const int32_t *document = data.documents + (size_t)s * (size_t)seq;
        for (int k = 0; k < seq && !found; k++) {
            int t = (seq / 2 + k) % seq;
            found = t > 0 && t + 1 < seq && document[t] != DOCUMENT_PADDING && document[t - 1] == document[t] && document[t + 1] == document[t];
            if (found) *ret_edit = (struct token_edit){s, t, 1};
        }
    }
    arena_free(arena);
    return found;
}

static void plan_run(struct variations *all, const struct run_config *config, bool standalone)
{
    int data_ranks = standalone ? 1 : layout_sequence_ranks(&config->layout);
    int here = config->train.global_batch / data_ranks, own = standalone ? here : here / config->layout.microbatches;
    const int cuts[] = {1, 2, here};
    struct variation v = {.standalone = standalone, .per_microbatch = own};
    add(all, v);
    for (int i = 0; i < 3; i++) {
        if (cuts[i] == own || here % cuts[i] != 0 || (i > 0 && cuts[i] == cuts[i - 1])) continue;
        v.kind = VARIATION_CUT;
        v.per_microbatch = cuts[i];
        add(all, v);
    }
    v.kind = VARIATION_EDIT;
    v.per_microbatch = own;
    if (choose_token(config, &v.edit)) add(all, v);
}

struct variations *variations_new(const struct scenario *scenario, const struct experiment_options *options, struct error *error)
{
    struct variations *all = memory_zalloc(sizeof *all);
    plan_run(all, &scenario->config, false);
    plan_run(all, &scenario->config, true);
    for (int i = 0; i < all->count; i++) {
        if (run(scenario, options, &all->items[i], error)) continue;
        variations_free(all);
        return NULL;
    }
    return all;
}

void variations_free(struct variations *variations)
{
    if (!variations) return;
    for (int i = 0; i < variations->count; i++) record_free(variations->items[i].record);
    free(variations);
}

const struct variation *variations_base(const struct variations *variations, const struct variation *of)
{
    for (int i = 0; i < variations->count; i++) {
        if (variations->items[i].kind == VARIATION_NONE && variations->items[i].standalone == of->standalone) return &variations->items[i];
    }
    return NULL;
}

/* ---- rows ---- */

static int compare_rows(const struct rows_fact *a, const struct rows_fact *b)
{
    const int keys[][2] = {{a->sequence, b->sequence}, {a->unit, b->unit},
                           {model_site_order(a->site), model_site_order(b->site)}, {a->part, b->part}, {a->cp, b->cp}, {a->tp, b->tp}};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (keys[i][0] != keys[i][1]) return keys[i][0] < keys[i][1] ? -1 : 1;
    }
    return 0;
}

static int compare_entries(const void *left, const void *right)
{
    const struct rows_entry *a = left, *b = right;
    int order = compare_rows(a->fact, b->fact);
    return order ? order : (a->rank > b->rank) - (a->rank < b->rank);
}

struct rows_table rows_table_new(const struct record *record)
{
    struct rows_table table = {0};
    int total = 0;
    for (int r = 0; r < record->ranks; r++) total += record->rank[r].rows.count;
    table.entries = memory_alloc((size_t)(total + 1) * sizeof *table.entries);
    for (int r = 0; r < record->ranks; r++) {
        for (int i = 0; i < record->rank[r].rows.count; i++)
            table.entries[table.count++] = (struct rows_entry){&record->rank[r].rows.items[i], r};
    }
    qsort(table.entries, (size_t)table.count, sizeof *table.entries, compare_entries);
    return table;
}

struct rows_entry rows_table_find(const struct rows_table *table, const struct rows_fact *like)
{
    int from = 0, to = table->count;
    while (from < to) {
        int middle = from + (to - from) / 2;
        if (compare_rows(table->entries[middle].fact, like) < 0) from = middle + 1;
        else to = middle;
    }
    bool found = from < table->count && compare_rows(table->entries[from].fact, like) == 0;
    return found ? table->entries[from] : (struct rows_entry){NULL, -1};
}
