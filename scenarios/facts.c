/* facts: look-ups. Records of one rank are in the order of its program, so the first match is the fact. */
#include "scenarios/facts.h"

#include "model/context/context.h"
#include "model/params.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/sites.h"
#include "sim/assertion.h"
#include "sim/hash.h"

struct place place_at(int rank, int step, int microbatch)
{
    struct place place = PLACE_NONE;
    place.rank = rank;
    place.step = step;
    place.microbatch = microbatch;
    return place;
}

struct place place_at_unit(const struct run_config *config, int rank, int step, int microbatch, int unit)
{
    struct place place = place_at(rank, step, microbatch);
    place.unit = unit;
    place.layer = unit_layer_of(&config->model, unit);
    return place;
}

void unit_name(const struct model_config *model, int unit, char text[32])
{
    if (unit == 0) snprintf(text, 32, "the embedding");
    else if (unit_is_experts(model, unit)) snprintf(text, 32, "layer %d's expert unit", unit_layer_of(model, unit));
    else if (unit > model->layers) snprintf(text, 32, "the head");
    else snprintf(text, 32, "layer %d", unit - 1);
}

struct finding finding_new(const struct site *site, struct place place)
{
    struct finding finding;
    memset(&finding, 0, sizeof finding);
    finding.site = site;
    finding.place = place;
    finding.expected = finding.got = finding.ratio_value = NAN;
    return finding;
}

void finding_pattern(struct finding *finding, const char *word)
{
    snprintf(finding->pattern, sizeof finding->pattern, "%s", word);
}

void finding_say(struct finding *finding, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(finding->text, sizeof finding->text, format, arguments);
    va_end(arguments);
}

const struct loss_fact *facts_loss(const struct rank_record *rank, int step, int microbatch)
{
    for (int i = 0; i < rank->losses.count; i++) {
        const struct loss_fact *fact = &rank->losses.items[i];
        if (fact->step == step && fact->microbatch == microbatch) return fact;
    }
    return NULL;
}

const struct count_fact *facts_count(const struct rank_record *rank, int step)
{
    for (int i = 0; i < rank->counts.count; i++) {
        if (rank->counts.items[i].step == step) return &rank->counts.items[i];
    }
    return NULL;
}

const struct norm_fact *facts_norm(const struct rank_record *rank, int step)
{
    for (int i = 0; i < rank->norms.count; i++) {
        if (rank->norms.items[i].step == step) return &rank->norms.items[i];
    }
    return NULL;
}

const struct scale_fact *facts_scale(const struct rank_record *rank, int step)
{
    for (int i = 0; i < rank->scales.count; i++) {
        if (rank->scales.items[i].step == step) return &rank->scales.items[i];
    }
    return NULL;
}

const struct report_fact *facts_report(const struct rank_record *rank, int step)
{
    for (int i = 0; i < rank->reports.count; i++) {
        if (rank->reports.items[i].step == step) return &rank->reports.items[i];
    }
    return NULL;
}

const struct sample_fact *facts_sample(const struct rank_record *rank, int step, int microbatch)
{
    for (int i = 0; i < rank->samples.count; i++) {
        const struct sample_fact *fact = &rank->samples.items[i];
        if (fact->step == step && fact->microbatch == microbatch) return fact;
    }
    return NULL;
}

const struct rank_record *facts_rank(const struct record *record, int stage, int data_rank)
{
    for (int r = 0; r < record->ranks; r++) {
        if (record->rank[r].stage == stage && record->rank[r].data_rank == data_rank) return &record->rank[r];
    }
    return NULL;
}

int64_t facts_rows_of(const struct record *record, int param)
{
    int64_t rows, columns;
    param_cut_shape(&record->params.params[param].info, record->config.layout.tp, &rows, &columns);
    return rows;
}

size_t facts_whole_element(const struct record *record, const struct tensor_fact *fact, size_t element)
{
    int tp = record->config.layout.tp;
    const struct param_info *info = &record->params.params[fact->param].info;
    if (tp == 1 || info->cut == CUT_NONE) return element;
    return (size_t)param_cut_element(info, tp, fact->part, (int64_t)element);
}

int64_t facts_elements_of(const struct record *record, int param)
{
    int64_t rows, columns;
    param_cut_shape(&record->params.params[param].info, record->config.layout.tp, &rows, &columns);
    return rows * columns;
}

bool facts_is_first_reader(const struct record *record, const struct rank_record *rank)
{
    return rank->tp == 0 && rank->shard % layout_shards_alike(&record->config.layout) == 0;
}

bool facts_shares_shards(const struct record *record, const struct rank_record *a, const struct rank_record *b, int unit)
{
    const struct layout *layout = &record->config.layout;
    bool experts = unit_is_experts(&record->config.model, unit);
    int step = experts ? layout_ep_shards(layout) : layout->zero < ZERO_2 ? layout_shards_alike(layout) : 1;
    return a->tp == b->tp && a->shard % step == b->shard % step;
}

bool facts_shares_unit(const struct record *record, const struct rank_record *a, const struct rank_record *b, int unit)
{
    return a->stage == b->stage && facts_shares_shards(record, a, b, unit);
}

bool facts_is_source(const struct record *record, const struct rank_record *rank, int unit, int data_rank)
{
    const struct layout *layout = &record->config.layout;
    if (!unit_is_experts(&record->config.model, unit)) return data_rank == rank->data_rank;
    int span = layout_ep_shards(layout) / layout_shards_alike(layout); /* data ranks of an expert-parallel group */
    return data_rank / span == rank->data_rank / span;
}

bool facts_is_last_stage(const struct record *record, const struct rank_record *rank)
{
    return rank->stage == record->config.layout.pp - 1;
}

bool facts_finished(const struct record *record)
{
    return record->outcome == MACHINE_FINISHED;
}

struct step_tokens facts_tokens(const struct record *record, int step)
{
    struct step_tokens tokens = {0};
    int counted = 0;
    for (int r = 0; r < record->ranks; r++) {
        const struct count_fact *count = facts_count(&record->rank[r], step);
        if (!count || !facts_is_first_reader(record, &record->rank[r])) continue; /* the others hold the same tokens */
        counted++;
        tokens.valid += (double)count->valid_local;
        tokens.unshifted += (double)count->unshifted_local;
        tokens.positions += (double)count->positions_local;
    }
    if (counted < layout_data_ranks(&record->config.layout)) tokens = (struct step_tokens){0}; /* the run stopped in between */
    tokens.valid = (double)record_valid_tokens_due(record, step); /* from the data: what the ranks counted is what is checked */
    return tokens;
}

double facts_auxiliary(const struct record *record, int step)
{
    struct loss_cut cut = loss_cut_of(&record->config);
    double sum = 0;
    for (int r = 0; r < record->ranks; r++) {
        const struct rank_record *rank = &record->rank[r];
        bool reads = facts_is_first_reader(record, rank) || (layout_slices_sequences(&record->config.layout) && rank->shard % layout_shards_alike(&record->config.layout) == 0);
        for (int i = 0; reads && i < rank->routings.count; i++) {
            const struct routing_fact *fact = &record->rank[r].routings.items[i];
            for (int c = 0; fact->step == step && fact->aux && c < fact->cells; c++) sum += fact->aux[c] + fact->z[c];
        }
    }
    return sum / (cut.data_ranks / loss_cut_cp(&cut) * cut.microbatches);
}

double facts_divisor_due(const struct run_config *config)
{
    return config->layout.reduce_op == FSDP_REDUCE_AVG ? layout_data_ranks(&config->layout) : 1;
}

int facts_copies_due(const struct run_config *config, int unit)
{
    bool scattered = config->layout.zero >= ZERO_2 && !unit_is_experts(&config->model, unit);
    return scattered ? layout_shards_alike(&config->layout) : 1;
}

double facts_unit_divisor_due(const struct run_config *config, int unit)
{
    return facts_divisor_due(config) * facts_copies_due(config, unit);
}

const struct site *facts_divisor_site(const struct run_config *config, int unit)
{
    return unit_is_experts(&config->model, unit) ? &site_ep_expert_grad_divisor : &site_fsdp_grad_divisor;
}

static bool is_divisor(const struct site *site)
{
    return site == &site_fsdp_grad_divisor || site == &site_ep_expert_grad_divisor;
}

const struct site *facts_reduction_site(const struct run_config *config, int unit)
{
    if (unit_is_experts(&config->model, unit)) return &site_ep_reduce_grad;
    return config->layout.zero >= ZERO_2 ? &site_fsdp_reduce_grad : &site_dp_all_reduce_grad;
}

double facts_storage_roundoff(const struct run_config *config)
{
    return format_traits[run_storage(config)].unit_roundoff;
}

double facts_reduction_roundoff(const struct run_config *config)
{
    double reduce = format_traits[config->precision.reduce].unit_roundoff,
           accumulate = format_traits[config->precision.accumulate].unit_roundoff;
    return fmax(facts_storage_roundoff(config), fmax(reduce, accumulate));
}

bool facts_was_reduced(const struct rank_record *rank, int step, int unit)
{
    for (int i = 0; i < rank->factors.count; i++) {
        const struct factor_fact *fact = &rank->factors.items[i];
        if (is_divisor(fact->site) && fact->step == step && fact->unit == unit) return true;
    }
    return false;
}

bool facts_divisors_are_due(const struct record *record, const struct rank_record *rank, int step, int unit)
{
    for (int i = 0; i < rank->factors.count; i++) {
        const struct factor_fact *fact = &rank->factors.items[i];
        if (is_divisor(fact->site) && fact->step == step && fact->unit == unit &&
            fact->value != facts_unit_divisor_due(&record->config, unit)) return false;
    }
    return true;
}

struct factor_numbers facts_numbers(const struct record *record, int data_rank, int step, int microbatch)
{
    const struct layout *layout = &record->config.layout;
    struct step_tokens tokens = facts_tokens(record, step);
    const struct rank_record *rank = facts_rank(record, layout->pp - 1, data_rank);
    const struct count_fact *count = rank ? facts_count(rank, step) : NULL;
    const struct loss_fact *loss = rank && microbatch >= 0 ? facts_loss(rank, step, microbatch) : NULL;
    struct factor_numbers numbers = {.M = layout->microbatches,
                                     .D = layout_data_ranks(layout),
                                     .P = layout->pp,
                                     .C = layout_cp(layout),
                                     .T = layout->tp,
                                     .E = layout_ep(layout),
                                     .A = facts_divisor_due(&record->config),
                                     .N = tokens.valid,
                                     .N_all = tokens.positions,
                                     .N_unshifted = tokens.unshifted,
                                     .D_shard = layout->dp_shard,
                                     .D_replicate = layout->dp_replicate};
    numbers.n_rank = count ? (double)count->valid_local : 0;
    numbers.n_rank_unshifted = count ? (double)count->unshifted_local : 0;
    numbers.n = loss ? (double)loss->valid : 0;
    return numbers;
}

struct factor_numbers facts_loss_numbers(const struct record *record, const struct rank_record *rank, const struct loss_fact *fact)
{
    int cell = rank->data_rank * record->config.layout.microbatches + fact->microbatch;
    struct factor_numbers numbers = loss_numbers_due(record, fact->step, cell);
    numbers.n = (double)fact->valid;
    return numbers;
}

double facts_grad_scale_due(const struct record *record, int step)
{
    struct factor_numbers numbers = loss_numbers_due(record, step, 0);
    return loss_value(loss_convention_of(&record->config)->grad_scale, &numbers);
}

static const struct factor_fact *find_factor(const struct rank_record *rank, const struct site *site, int step, int unit)
{
    for (int i = 0; i < rank->factors.count; i++) {
        const struct factor_fact *fact = &rank->factors.items[i];
        if (fact->site == site && fact->step == step && fact->unit == unit) return fact;
    }
    return NULL;
}

double facts_unscale(const struct rank_record *rank, int step)
{
    const struct scale_fact *scale = facts_scale(rank, step);
    return scale ? scale->scale / scale->unscaled_by : 1;
}

double facts_grad_scale(const struct record *record, const struct rank_record *rank, int step, int unit)
{
    const struct factor_fact *fact = find_factor(rank, &site_pp_grad_scale, step, unit);
    return (fact ? fact->value : facts_grad_scale_due(record, step)) * facts_unscale(rank, step);
}

double facts_count_at_end(const struct record *record, const struct rank_record *rank, int step)
{
    const struct factor_fact *fact = find_factor(rank, &site_loss_token_count_reduce, step, -1);
    return fact ? fact->value : (double)record_valid_tokens_due(record, step);
}

/* Ranges are due whole, decisions yes: all but emptying the accumulator before a micro-batch, or when a result is added. */
static bool is_as_due(const struct choice_fact *fact)
{
    if (fact->site->kind == SITE_MEMORY) return fact->from == 0 && fact->count == fact->whole;
    return (fact->count != 0) == (fact->site != &site_dp_zero_grad && fact->site != &site_pp_grad_release && fact->site != &site_moe_count_again);
}

bool facts_was_chosen(const struct rank_record *rank, const struct site *site, int step, int unit)
{
    for (int i = 0; i < rank->choices.count; i++) {
        const struct choice_fact *fact = &rank->choices.items[i];
        if (fact->site == site && fact->step == step && (unit < 0 || fact->unit == unit) && !is_as_due(fact)) return true;
    }
    return false;
}

static bool piece_was_taken(const struct rank_record *rank, int step, int unit, int microbatch, int piece)
{
    for (int i = 0; i < rank->factors.count; i++) {
        const struct factor_fact *fact = &rank->factors.items[i];
        if (is_divisor(fact->site) && fact->step == step && fact->unit == unit && fact->during == step &&
            fact->piece == piece && (microbatch < 0 || fact->microbatch == microbatch)) return true;
    }
    return false;
}

bool facts_was_taken(const struct rank_record *rank, int step, int unit, int microbatch)
{
    int pieces = 1;
    for (int i = 0; i < rank->gradients.count; i++) {
        const struct gradient_fact *fact = &rank->gradients.items[i];
        if (fact->step == step && fact->unit == unit && fact->stage == GRADIENT_REDUCED) pieces = fact->pieces;
    }
    for (int k = 0; k < pieces; k++) {
        if (!piece_was_taken(rank, step, unit, microbatch, k)) return false;
    }
    return true;
}

bool facts_was_scaled(const struct rank_record *rank, const struct site *site, int step, int unit)
{
    return find_factor(rank, site, step, unit) != NULL;
}

struct microbatch_place facts_place_of(const struct record *record, int sequence)
{
    const struct layout *layout = &record->config.layout;
    int per = layout_sequences_per_microbatch(&record->config);
    return (struct microbatch_place){sequence / (per * layout->microbatches) * layout_cp(layout), sequence / per % layout->microbatches, sequence % per};
}

int64_t facts_rows_due(const struct run_config *config, int cp)
{
    const struct layout *layout = &config->layout;
    if (layout_cp(layout) == 1) return config->model.seq;
    return context_layout_rows(context_layout_find(layout->context.layout), config->model.seq, layout->cp, cp);
}

int64_t facts_positions_due(const struct record *record, const struct rank_record *rank, int64_t sequence, bool slice, int32_t *ret)
{
    const struct layout *layout = &record->config.layout;
    int32_t seq = record->config.model.seq;
    int64_t count = 0;
    for (int32_t t = 0; t < seq; t++) {
        if (layout_cp(layout) == 1 || record->members[sequence * seq + t] == rank->cp) ret[count++] = t;
    }
    if (!slice || !layout_slices_sequences(layout)) return count;
    count /= layout->tp;
    memmove(ret, ret + count * rank->tp, (size_t)count * sizeof *ret);
    return count;
}

int64_t facts_sequence_due(const struct record *record, const struct rank_record *rank, const struct sample_fact *fact)
{
    const struct run_config *config = &record->config;
    return (int64_t)fact->step * config->train.global_batch + layout_first_sequence(config, rank->data_rank, fact->microbatch);
}

static bool sample_is_due(const struct record *record, const struct rank_record *rank, const struct sample_fact *fact)
{
    for (int i = 0; i < fact->count; i++) {
        int64_t due = facts_sequence_due(record, rank, fact) + i;
        if (fact->sequences[i] != due) return false;
    }
    return true;
}

bool facts_sample_is_due(const struct record *record, int step, int data_rank, int microbatch)
{
    int cp = layout_cp(&record->config.layout);
    for (int r = 0; r < record->ranks; r++) {
        if (record->rank[r].data_rank / cp != data_rank / cp) continue; /* what one of them reads, attention brings to the others */
        const struct sample_fact *fact = facts_sample(&record->rank[r], step, microbatch);
        if (fact && !sample_is_due(record, &record->rank[r], fact)) return false;
    }
    return true;
}

static size_t sketch_index(const struct sketch_table *table, int step, int sequence, int unit, enum sketch_kind kind)
{
    return (((size_t)step * (size_t)table->sequences + (size_t)sequence) * (size_t)table->units + (size_t)unit) * 4 +
           (size_t)kind;
}

/* The sequence's sketch is the sum of its slices'. The entry's fact is the record's at first. */
static void add_slice(struct sketch_entry *entry, const struct sketch_fact *slice, struct arena *arena)
{
    struct sketch_fact *sum = arena_alloc(arena, sizeof *sum);
    *sum = *entry->fact;
    for (int k = 0; k < 5; k++) sum->value[k] += slice->value[k];
    sum->finite = sum->finite && slice->finite;
    entry->fact = sum;
}

/* Has it another part of its sequences than the first of their ranks? */
static bool is_slice(const struct record *record, const struct rank_record *rank)
{
    bool sliced = layout_slices_sequences(&record->config.layout);
    return (sliced && rank->tp > 0) || (rank->cp > 0 && (sliced || rank->tp == 0));
}

struct sketch_table sketch_table_new(const struct record *record, struct arena *arena)
{
    struct sketch_table table = {record->config.train.steps, record->config.train.global_batch,
                                 unit_count(&record->config.model), NULL};
    size_t count = (size_t)table.steps * (size_t)table.sequences * (size_t)table.units * 4;
    table.entries = arena_zalloc(arena, count * sizeof *table.entries);
    for (int r = 0; r < record->ranks; r++) {
        for (int i = 0; i < record->rank[r].sketches.count; i++) {
            const struct sketch_fact *fact = &record->rank[r].sketches.items[i];
            ASSERT(fact->step < table.steps && fact->sequence < table.sequences && fact->unit < table.units);
            struct sketch_entry *entry =
                &table.entries[sketch_index(&table, fact->step, fact->sequence, fact->unit, fact->kind)];
            if (!entry->fact) *entry = (struct sketch_entry){fact, r};
            else if (is_slice(record, &record->rank[r])) add_slice(entry, fact, arena);
        }
    }
    return table;
}

struct sketch_entry sketch_table_at(const struct sketch_table *table, int step, int sequence, int unit,
                                    enum sketch_kind kind)
{
    if (step < 0 || step >= table->steps || sequence < 0 || sequence >= table->sequences || unit < 0 ||
        unit >= table->units) {
        return (struct sketch_entry){NULL, -1};
    }
    return table->entries[sketch_index(table, step, sequence, unit, kind)];
}

bool facts_targets_are_due(const struct sample_fact *fact, const struct data *data)
{
    struct hash hash;
    uint64_t digest[2];
    size_t rows = (size_t)fact->rows, row = rows * sizeof *data->targets; /* hashed as one piece, as the rank does */
    int32_t *targets = memory_alloc((size_t)fact->count * row + 1);
    bool there = true;
    for (int i = 0; i < fact->count && there; i++) {
        there = fact->sequences[i] >= 0 && fact->sequences[i] < data->sequences;
        for (size_t t = 0; t < rows && there; t++) {
            size_t at = (size_t)i * rows + t;
            targets[at] = data->targets[fact->sequences[i] * data->seq + (fact->positions ? fact->positions[at] : (int32_t)t)];
        }
    }
    hash_init(&hash);
    if (there) hash_bytes(&hash, targets, (size_t)fact->count * row);
    hash_finish(&hash, digest);
    free(targets);
    return !there || digest[0] == fact->target_hash;
}
