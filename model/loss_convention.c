/* loss_convention: the table, its expressions, and what a cut of the data makes due. */
#include "model/loss_convention.h"

#include <stdlib.h>
#include <string.h>

#include "model/context/context.h"
#include "sim/assertion.h"

#define CONVENTION(name) extern const struct loss_convention loss_convention_##name;
#include "model/loss_conventions.def"
#undef CONVENTION

static const struct loss_convention *const conventions[] = {
#define CONVENTION(name) &loss_convention_##name,
#include "model/loss_conventions.def"
#undef CONVENTION
};

int loss_convention_count(void)
{
    return (int)(sizeof conventions / sizeof conventions[0]);
}

const struct loss_convention *loss_convention_at(int i)
{
    return i >= 0 && i < loss_convention_count() ? conventions[i] : NULL;
}

const struct loss_convention *loss_convention_of(const struct run_config *config)
{
    const struct loss_convention *convention = loss_convention_at(config->train.loss_normalization);
    ASSERT(convention);
    return convention;
}

bool loss_convention_counts(const struct loss_convention *convention)
{
    return strchr(convention->denominator, 'N') || strchr(convention->logged, 'N');
}

bool loss_convention_logs_optimized(const struct loss_convention *convention)
{
    return !strcmp(convention->weight, convention->logged);
}

static double at_least_one(double count)
{
    return count > 1 ? count : 1;
}

double loss_value(const char *expression, const struct factor_numbers *numbers)
{
    struct factor_numbers counted = *numbers;
    double *counts[] = {&counted.N, &counted.N_all, &counted.N_unshifted, &counted.n, &counted.n_rank, &counted.n_rank_unshifted};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) *counts[i] = at_least_one(*counts[i]);
    struct error error = {0};
    double value = 0;
    bool parsed = factor_parse(expression, &counted, &value, &error);
    ASSERT_MESSAGE(parsed, "%s", error.message);
    return value;
}

double loss_compensation(const struct loss_convention *convention, const struct factor_numbers *numbers)
{
    return convention->combine == LOSS_COMBINE_MEAN ? numbers->A / numbers->D : numbers->A;
}

double loss_seed(const struct loss_convention *convention, const struct factor_numbers *numbers)
{
    return loss_compensation(convention, numbers) * loss_value(convention->scale, numbers) /
           loss_value(convention->denominator, numbers);
}

/* ---- the cut ---- */

struct loss_cut loss_cut_of(const struct run_config *config)
{
    if (config->loss_cut.data_ranks > 0) return config->loss_cut;
    struct loss_cut cut = {.data_ranks = layout_data_ranks(&config->layout), .microbatches = config->layout.microbatches, .cp = layout_cp(&config->layout)};
    memcpy(cut.context_layout, config->layout.context.layout, sizeof cut.context_layout);
    return cut;
}

int loss_cut_batch(const struct run_config *config, int64_t sequence)
{
    struct loss_cut cut = loss_cut_of(config);
    return (int)(sequence / (config->train.global_batch / (cut.data_ranks / loss_cut_cp(&cut) * cut.microbatches)));
}

int loss_cut_cell_of(const struct run_config *config, int64_t sequence, int member)
{
    struct loss_cut cut = loss_cut_of(config);
    int batch = loss_cut_batch(config, sequence);
    return (batch / cut.microbatches * loss_cut_cp(&cut) + member) * cut.microbatches + batch % cut.microbatches;
}

/* Who of cp has each position of each sequence. */
static const uint16_t *members_of(const struct run_config *config, const struct data *data, int64_t sequences, struct arena *arena)
{
    struct loss_cut cut = loss_cut_of(config);
    const struct context_layout *layout = context_layout_find(cut.context_layout);
    int64_t seq = config->model.seq;
    ASSERT(layout && sequences <= data->sequences);
    uint16_t *members = arena_alloc(arena, (size_t)(sequences * seq) * sizeof *members);
    int32_t *positions = memory_alloc((size_t)(seq + 1) * sizeof *positions);
    for (int64_t s = 0; s < sequences; s++) {
        for (int c = 0; c < cut.cp; c++) {
            int64_t rows = context_layout_rows(layout, seq, cut.cp, c);
            layout->positions(seq, cut.cp, c, config->model.document_mask ? data->documents + s * seq : NULL, positions);
            for (int64_t i = 0; i < rows; i++) members[s * seq + positions[i]] = (uint16_t)c;
        }
    }
    free(positions);
    return members;
}

/* Of the tokens that one member has of the sequences. */
static struct data_counts count_of(const struct record *record, const struct data *data, int64_t first, int64_t count, int member)
{
    if (!record->members) return data_count(data, first, count);
    struct data_counts counts = {0};
    for (int64_t t = first * data->seq; t < (first + count) * data->seq; t++) {
        if (record->members[t] != member) continue;
        counts.valid += data->targets[t] != TARGET_IGNORED;
        counts.unshifted += data->documents[t] != DOCUMENT_PADDING;
        counts.positions++;
    }
    return counts;
}

void loss_fill_cells(struct record *record, const struct data *data)
{
    const struct run_config *config = &record->config;
    struct loss_cut cut = loss_cut_of(config);
    int cells = cut.data_ranks * cut.microbatches, steps = config->train.steps;
    int C = loss_cut_cp(&cut), M = cut.microbatches, batches = cells / C;
    int64_t per = config->train.global_batch / batches;
    struct loss_cell *all = arena_alloc(record->arena, (size_t)(cells * steps) * sizeof *all);
    record->cells = all;
    if (C > 1) record->members = members_of(config, data, (int64_t)steps * config->train.global_batch, record->arena);
    for (int i = 0; i < cells * steps; i++) {
        int step = i / cells, data_rank = i % cells / M, batch = data_rank / C * M + i % M;
        struct data_counts counts = count_of(record, data, ((int64_t)step * batches + batch) * per, per, data_rank % C);
        all[i] = (struct loss_cell){.valid = counts.valid, .unshifted = counts.unshifted, .positions = counts.positions};
    }
    const struct loss_convention *convention = loss_convention_of(config);
    for (int i = 0; i < cells * steps; i++) {
        struct factor_numbers numbers = loss_numbers_due(record, i / cells, i % cells);
        all[i].weight = loss_value(convention->weight, &numbers);
    }
}

struct factor_numbers loss_numbers_due(const struct record *record, int step, int cell)
{
    const struct layout *layout = &record->config.layout;
    struct loss_cut cut = loss_cut_of(&record->config);
    int cells = cut.data_ranks * cut.microbatches;
    ASSERT(step >= 0 && step < record->config.train.steps && cell >= 0 && cell < cells);
    const struct loss_cell *all = record->cells + step * cells;
    struct factor_numbers numbers = {.M = cut.microbatches, .D = cut.data_ranks, .P = layout->pp, .C = loss_cut_cp(&cut), .T = 1, .E = 1,
        .A = layout->reduce_op == FSDP_REDUCE_AVG ? layout_data_ranks(layout) : 1, .n = (double)all[cell].valid};
    for (int i = 0; i < cells; i++) {
        bool own = i / cut.microbatches == cell / cut.microbatches;
        numbers.N += (double)all[i].valid;
        numbers.N_all += (double)all[i].positions;
        numbers.N_unshifted += (double)all[i].unshifted;
        numbers.n_rank += own ? (double)all[i].valid : 0;
        numbers.n_rank_unshifted += own ? (double)all[i].unshifted : 0;
    }
    return numbers;
}

double loss_weight_due(const struct record *record, int step, int data_rank, int microbatch)
{
    struct loss_cut cut = loss_cut_of(&record->config);
    int cells = cut.data_ranks * cut.microbatches, cell = data_rank * cut.microbatches + microbatch;
    ASSERT(step >= 0 && step < record->config.train.steps && cell >= 0 && cell < cells);
    return record->cells[step * cells + cell].weight;
}

/* Of one cell. */
static double auxiliary_tokens(const struct record *record, int step, int cell)
{
    struct loss_cut cut = loss_cut_of(&record->config);
    double tokens = (double)record->cells[step * cut.data_ranks * cut.microbatches + cell].unshifted;
    return at_least_one(strchr(loss_convention_of(&record->config)->denominator, 'n') ? loss_numbers_due(record, step, cell).n : tokens);
}

/* The first cell of a micro-batch's; the members' follow in steps of M. */
static int cell_of_batch(const struct loss_cut *cut, int batch)
{
    return batch / cut->microbatches * loss_cut_cp(cut) * cut->microbatches + batch % cut->microbatches;
}

double loss_auxiliary_tokens(const struct record *record, int step, int batch)
{
    struct loss_cut cut = loss_cut_of(&record->config);
    double tokens = 0;
    for (int c = 0; c < loss_cut_cp(&cut); c++) tokens += auxiliary_tokens(record, step, cell_of_batch(&cut, batch) + c * cut.microbatches);
    return tokens;
}

double loss_auxiliary_seed(const struct record *record, int step, int batch)
{
    const struct loss_convention *convention = loss_convention_of(&record->config);
    struct loss_cut cut = loss_cut_of(&record->config);
    double seed = 0;
    for (int c = 0; c < loss_cut_cp(&cut); c++) {
        int cell = cell_of_batch(&cut, batch) + c * cut.microbatches;
        struct factor_numbers numbers = loss_numbers_due(record, step, cell);
        seed += loss_seed(convention, &numbers) * auxiliary_tokens(record, step, cell);
    }
    return seed;
}
