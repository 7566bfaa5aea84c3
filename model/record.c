/* record: memory of a run's record, and what follows from the layout alone. */
#include "model/record.h"

#include <stdlib.h>
#include <string.h>

#include "model/data.h"
#include "model/experts.h"
#include "model/vectors.h"
#include "sim/assertion.h"
#include "sim/hash.h"

void *record_grow(struct arena *arena, void *items, int count, int *capacity, size_t item_bytes)
{
    int grown = *capacity ? 2 * *capacity : 64;
    void *fresh = arena_alloc(arena, (size_t)grown * item_bytes);
    if (count) memcpy(fresh, items, (size_t)count * item_bytes);
    *capacity = grown;
    return fresh;
}

void record_free(struct record *record)
{
    if (!record) return;
    for (int r = 0; r < record->ranks; r++) {
        struct rank_record *rank = &record->rank[r];
        for (int i = 0; i < rank->gradients.count; i++) ledger_done(&rank->gradients.items[i].ledger);
        communicator_free(rank->communicator);
        arena_free(rank->arena);
    }
    machine_free(record->machine);
    arena_free(record->arena);
    free(record);
}

uint64_t version_digest(uint64_t digest, uint64_t checksum)
{
    return hash_mix(digest * 3 + checksum + 1);
}

static void add_param(struct param_table *table, struct param_info info, int unit)
{
    struct param *p = &table->params[table->count++];
    *p = (struct param){.info = info, .unit = unit, .rows = info.shape[0], .columns = info.dims == 2 ? info.shape[1] : 1};
}

static struct param_info named(const char *name, int dims, int64_t rows, int64_t columns, bool is_norm)
{
    struct param_info info = {.dims = dims, .shape = {rows, columns}, .is_norm = is_norm, .fan_in = columns,
                              .of_matrix = PARAM_NONE, .through_softmax = PARAM_NONE};
    strncpy(info.name, name, sizeof info.name - 1);
    info.is_embedding = !strcmp(name, "tok_embeddings.weight");
    info.cut = dims == 2 ? CUT_ROWS : CUT_NONE; /* embedding and output: by the vocabulary */
    return info;
}

struct param_table param_table_new(const struct model_config *model, struct arena *arena)
{
    struct param_table table = {0};
    int count = 3, most = 0;
    for (int layer = 0; layer < model->layers; layer++) {
        int of_layer = layer_params_count(model, layer);
        count += of_layer + 1; /* and an adapter */
        if (of_layer > most) most = of_layer;
    }
    struct param_info *infos = arena_zalloc(arena, (size_t)(most + 1) * sizeof *infos);
    table.params = arena_zalloc(arena, (size_t)count * sizeof *table.params);
    add_param(&table, named("tok_embeddings.weight", 2, model->vocab, model->dim, false), 0);
    for (int layer = 0; layer < model->layers; layer++) {
        layer_params(model, layer, infos);
        for (int i = 0; i < layer_params_count(model, layer); i++) add_param(&table, infos[i], layer + 1);
        if (layer_adapter(model, layer, &infos[0])) add_param(&table, infos[0], layer + 1);
    }
    add_param(&table, named("norm.weight", 1, model->dim, 1, true), model->layers + 1);
    if (!model->tie_embeddings) add_param(&table, named("output.weight", 2, model->vocab, model->dim, false), model->layers + 1);
    return table;
}

/* An expert's matrices are cut as the dense ones are; its output bias is whole, and added once. */
static enum param_cut expert_cut(const struct param_info *info)
{
    const char *last = strrchr(info->name, '.') - 2;
    bool is_output = !strncmp(last, "w2", 2);
    return !is_output ? CUT_ROWS : info->is_bias ? CUT_NONE : CUT_COLUMNS;
}

static enum tensor_part part_of(const struct run_config *config, const struct param *p)
{
    if (p->unit == 0 || p->unit == config->model.layers + 1) return TENSOR_VOCABULARY;
    return strstr(p->info.name, ".attention.") ? TENSOR_ATTENTION : TENSOR_FEED_FORWARD;
}

struct param_table param_table_of_run(const struct run_config *config, struct arena *arena)
{
    struct param_table table = param_table_new(&config->model, arena);
    for (int i = 0; i < table.count; i++) {
        struct param *p = &table.params[i];
        if (!p->info.is_expert) {
            if (config->layout.tensor_whole & part_of(config, p)) p->info.cut = CUT_NONE;
            continue;
        }
        if (config->layout.etp > 1) p->info.cut = expert_cut(&p->info);
        if (layout_ep(&config->layout) > 1) p->unit = unit_of_experts(&config->model, p->unit - 1);
    }
    return table;
}

bool record_has_unit(const struct record *record, const struct rank_record *rank, int unit)
{
    const struct model_config *model = &record->config.model;
    if (unit_is_experts(model, unit) && (unit >= gradient_unit_count(&record->config) || !model_layer_has_experts(model, unit_layer_of(model, unit)))) return false;
    return layout_stage_of_unit(&record->config.layout, model, unit_boundary(model, unit)) == rank->stage;
}

bool record_has_param(const struct record *record, const struct rank_record *rank, int param)
{
    const struct param *p = &record->params.params[param];
    if (!record_has_unit(record, rank, p->unit)) return false;
    if (!unit_is_experts(&record->config.model, p->unit)) return true;
    struct expert_place place = expert_place(&record->config.layout, record->config.model.moe.experts, rank->shard, rank->tp);
    return p->info.expert >= place.first && p->info.expert < place.first + place.count;
}

struct layout layout_standalone(const struct model_config *model)
{
    struct layout layout = {.pp = 1, .dp_replicate = 1, .dp_shard = 1, .tp = 1, .cp = 1, .microbatches = 1, .schedule = "1F1B",
                            .zero = ZERO_0, .reduce_op = FSDP_REDUCE_AVG, .sync = SYNC_LAST_MICROBATCH};
    layout.layers_per_stage[0] = model->layers;
    return layout;
}

int layout_stage_of_unit(const struct layout *layout, const struct model_config *model, int unit)
{
    if (unit == 0) return 0;
    if (unit == model->layers + 1) return layout->pp - 1;
    int stage = 0, end = layout->layers_per_stage[0];
    while (unit > end) end += layout->layers_per_stage[++stage];
    ASSERT(stage < layout->pp);
    return stage;
}

int layout_sequences_per_microbatch(const struct run_config *config)
{
    return config->train.global_batch / (layout_sequence_ranks(&config->layout) * config->layout.microbatches);
}

int layout_first_sequence(const struct run_config *config, int data_rank, int microbatch)
{
    int of_data = data_rank / layout_cp(&config->layout);
    return (of_data * config->layout.microbatches + microbatch) * layout_sequences_per_microbatch(config);
}

int64_t record_valid_tokens_due(const struct record *record, int step)
{
    ASSERT(step >= 0 && step < record->steps_due); /* as many as were asked for, however many are left to look at */
    return record->valid_due[step];
}
