/* loss_ledger: collected from the parallel run's facts, one row a loss fact. */
#include "tools/report/loss_ledger.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "model/sites.h"
#include "scenarios/facts.h"
#include "scenarios/ratio.h"

const char *const loss_factor_names[LOSS_FACTOR_KINDS] = {"loss.denominator", "pp.loss.scale", "dp.loss.scale",
                                                          "fsdp.grad_divisor", "pp.grad_scale"};

enum { LETTERS_MAX = 4 };

/* Factors are exact in fp64; what went through the run's own format carries its roundings. */
static const double factor_tolerance = 1e-12;
static double measured_tolerance(const struct record *record)
{
    return 64 * facts_storage_roundoff(&record->config);
}

static bool agrees(double value, double due, double tolerance)
{
    return fabs(value - due) <= tolerance * fabs(due);
}

/* The value that this micro-batch's gradients were divided by; of several the one that is least as due. */
static double divisor_used(const struct record *record, int data_rank, int step, int microbatch, double due)
{
    double used = NAN, copies = facts_copies_due(&record->config, 0); /* ranks that read the same sequences: their gradients' mean is one data rank's */
    for (int pass = 0; pass < 2 && isnan(used); pass++) {
        for (int r = 0; r < record->ranks; r++) {
            const struct rank_record *rank = &record->rank[r];
            if (rank->data_rank != data_rank) continue;
            for (int i = 0; i < rank->factors.count; i++) {
                const struct factor_fact *f = &rank->factors.items[i];
                if (f->step != step || strcmp(f->site->name, "fsdp.grad_divisor") != 0) continue;
                if (pass == 0 && f->microbatch != microbatch) continue; /* its own reduction, else the step's */
                if (isnan(used) || fabs(f->value / copies - due) > fabs(used - due)) used = f->value / copies;
            }
        }
    }
    return isnan(used) ? due : used;
}

/* What this data rank's gradients were multiplied by after their reduction; of several the one that is least as due. */
static double grad_scale_used(const struct record *record, int data_rank, int step, double due)
{
    double used = due;
    for (int r = 0; r < record->ranks; r++) {
        const struct rank_record *rank = &record->rank[r];
        for (int i = 0; rank->data_rank == data_rank && i < rank->factors.count; i++) {
            const struct factor_fact *f = &rank->factors.items[i];
            if (f->step == step && f->site == &site_pp_grad_scale && fabs(f->value - due) > fabs(used - due)) used = f->value;
        }
    }
    return used;
}

/* What is due, in letters. */
static void due_symbol(const struct record *record, enum loss_factor_kind kind, struct loss_factor_entry *entry)
{
    const struct loss_convention *c = loss_convention_of(&record->config);
    bool averages = facts_divisor_due(&record->config) != 1;
    const char *symbol = kind == LOSS_DENOMINATOR ? c->denominator
                         : kind == LOSS_SCALE     ? c->scale
                         : kind == LOSS_GRAD_SCALE ? c->grad_scale
                         : kind == LOSS_COMPENSATION && c->combine == LOSS_COMBINE_MEAN ? (entry->due == 1 ? "1" : "1/D")
                                                                                        : (averages ? "D" : "1");
    snprintf(entry->symbol, sizeof entry->symbol, "%s", symbol);
}

static void measure(const struct record *record, struct loss_row *row, int step)
{
    int D = layout_data_ranks(&record->config.layout), M = record->config.layout.microbatches;
    row->measured_min = row->measured_max = NAN;
    for (int r = 0; r < record->ranks; r++) {
        const struct rank_record *rank = &record->rank[r];
        for (int i = 0; i < rank->gradients.count; i++) {
            const struct gradient_fact *f = &rank->gradients.items[i];
            if (f->step != step || f->stage != GRADIENT_REDUCED || f->probe_count < 2 * D * M) continue;
            int uses = f->unit == 0 && record->config.model.tie_embeddings ? 2 : 1; /* the tied head adds its own */
            double weight = f->probe[((step & 1) * D + row->data_rank) * M + row->microbatch] / uses;
            if (!(weight >= row->measured_min)) {
                row->measured_min = weight;
                row->unit_min = f->unit;
                row->rank_min = rank->rank;
            }
            if (!(weight <= row->measured_max)) {
                row->measured_max = weight;
                row->unit_max = f->unit;
                row->rank_max = rank->rank;
            }
        }
    }
}

static void measure_stale(const struct record *record, struct loss_step *s)
{
    int D = layout_data_ranks(&record->config.layout), M = record->config.layout.microbatches;
    for (int r = 0; r < record->ranks; r++) {
        for (int i = 0; i < record->rank[r].gradients.count; i++) {
            const struct gradient_fact *f = &record->rank[r].gradients.items[i];
            if (f->step != s->step || f->stage != GRADIENT_REDUCED || f->probe_count < 2 * D * M) continue;
            const double *other = f->probe + (1 - (s->step & 1)) * D * M;
            for (int p = 0; p < D * M; p++) {
                if (fabs(other[p]) <= fabs(s->stale_weight)) continue;
                s->stale_weight = other[p];
                s->stale_unit = f->unit;
                s->stale_rank = record->rank[r].rank;
            }
        }
    }
}

static void fill_row(const struct record *record, const struct rank_record *rank, const struct loss_fact *fact,
                     struct loss_row *row)
{
    const struct loss_convention *c = loss_convention_of(&record->config);
    struct factor_numbers numbers = facts_loss_numbers(record, rank, fact);
    double A = facts_divisor_due(&record->config), after = facts_grad_scale_due(record, fact->step);
    *row = (struct loss_row){.data_rank = rank->data_rank, .microbatch = fact->microbatch, .rank = rank->rank,
                             .valid = fact->valid, .positions = fact->positions, .sum = fact->loss_sum,
                             .due = loss_weight_due(record, fact->step, rank->data_rank, fact->microbatch)};
    row->mean = fact->valid > 0 ? fact->loss_sum / (double)fact->valid : NAN;
    for (int64_t t = 0; t < fact->token_count; t++) row->weighted += fact->token_weight[t] != 0;
    const double used[] = {fact->denominator, fact->scale, fact->compensation,
                           divisor_used(record, rank->data_rank, fact->step, fact->microbatch, A),
                           grad_scale_used(record, rank->data_rank, fact->step, after)};
    const double due[] = {loss_value(c->denominator, &numbers), loss_value(c->scale, &numbers), loss_compensation(c, &numbers), A,
                          after};
    for (int k = 0; k < LOSS_FACTOR_KINDS; k++) {
        struct loss_factor_entry *entry = &row->factor[k];
        *entry = (struct loss_factor_entry){.value = used[k], .due = due[k]};
        entry->wrong = !agrees(used[k], due[k], factor_tolerance);
        if (!entry->wrong) due_symbol(record, (enum loss_factor_kind)k, entry);
        row->wrong = row->wrong || entry->wrong;
    }
    row->weight = fact->seed / row->factor[LOSS_DIVISOR].value * row->factor[LOSS_GRAD_SCALE].value;
    row->ratio = row->weight / row->due;
    measure(record, row, fact->step);
    double tolerance = measured_tolerance(record);
    row->measured_wrong = !isnan(row->measured_min) && (!agrees(row->measured_min, row->weight, tolerance) ||
                                                        !agrees(row->measured_max, row->weight, tolerance));
    row->wrong = row->wrong || row->measured_wrong || !agrees(row->ratio, 1, factor_tolerance);
}

/* One formula for all rows of the step that are not as due (kind: a factor, or LOSS_FACTOR_KINDS for the ratio). */
static void find_symbol(const struct record *record, struct loss_step *s, int kind, struct arena *arena)
{
    struct ratio_sample *samples = arena_alloc(arena, (size_t)(s->rows_count + 1) * sizeof *samples);
    int count = 0;
    for (int i = 0; i < s->rows_count; i++) {
        const struct loss_row *row = &s->rows[i];
        bool wrong = kind < LOSS_FACTOR_KINDS ? row->factor[kind].wrong : !agrees(row->ratio, 1, factor_tolerance);
        if (!wrong) continue;
        samples[count].numbers = facts_numbers(record, row->data_rank, s->step, row->microbatch);
        samples[count++].value = kind < LOSS_FACTOR_KINDS ? row->factor[kind].value : row->ratio;
    }
    if (!count) return;
    struct ratio_form form =
        ratio_classify(samples, count, kind == LOSS_DIVISOR ? 'D' : 'M', LETTERS_MAX, factor_tolerance);
    for (int i = 0; i < s->rows_count && form.found; i++) {
        struct loss_row *row = &s->rows[i];
        if (kind == LOSS_FACTOR_KINDS && !agrees(row->ratio, 1, factor_tolerance))
            memcpy(row->ratio_symbol, form.text, sizeof form.text);
        if (kind < LOSS_FACTOR_KINDS && row->factor[kind].wrong)
            memcpy(row->factor[kind].symbol, form.text, sizeof form.text);
    }
}

static void fill_means(struct loss_step *s, int data_ranks, int microbatches)
{
    s->shortest = s->longest = -1;
    for (int d = 0; d < data_ranks; d++) {
        double sum = 0;
        int64_t valid = 0;
        for (int i = 0; i < s->rows_count; i++) {
            const struct loss_row *row = &s->rows[i];
            if (row->data_rank != d) continue;
            sum += row->sum;
            valid += row->valid;
            s->positions += row->positions;
            s->weight_sum += row->weight * (double)row->valid;
            s->weight_sum_due += row->due * (double)row->valid;
            s->mean_of_means += row->valid > 0 ? row->mean / (data_ranks * microbatches) : 0;
            if (row->valid > 0 && (s->shortest < 0 || row->valid < s->rows[s->shortest].valid)) s->shortest = i;
            if (s->longest < 0 || row->valid > s->rows[s->longest].valid) s->longest = i;
        }
        s->sum += sum;
        s->mean_of_rank_means += valid > 0 ? sum / (double)valid / data_ranks : 0;
    }
    s->token_mean = s->sum / (double)s->valid;
}

static void fill_step(const struct result *result, struct loss_step *s, struct loss_ledger *ledger)
{
    const struct record *record = result->parallel;
    s->rows = arena_alloc(ledger->arena, (size_t)(ledger->data_ranks * ledger->microbatches) * sizeof *s->rows);
    s->valid = record_valid_tokens_due(record, s->step);
    for (int d = 0; d < ledger->data_ranks; d++) {
        for (int m = 0; m < ledger->microbatches; m++) {
            const struct rank_record *rank = facts_rank(record, record->config.layout.pp - 1, d);
            const struct loss_fact *fact = rank ? facts_loss(rank, s->step, m) : NULL;
            if (fact) fill_row(record, rank, fact, &s->rows[s->rows_count++]);
        }
    }
    s->parallel = s->logged = s->standalone = NAN;
    for (int i = 0; i < result->steps_count; i++) {
        if (result->steps[i].step != s->step) continue;
        s->parallel = result->steps[i].parallel;
        s->logged = result->steps[i].logged;
        s->standalone = result->steps[i].standalone;
    }
    for (int kind = 0; kind <= LOSS_FACTOR_KINDS; kind++) find_symbol(record, s, kind, ledger->arena);
    fill_means(s, ledger->data_ranks, ledger->microbatches);
    measure_stale(record, s);
}

struct loss_ledger loss_ledger_new(const struct result *result)
{
    const struct run_config *config = &result->parallel->config;
    struct loss_ledger ledger = {.steps_count = config->train.steps, .data_ranks = layout_data_ranks(&config->layout),
                                 .microbatches = config->layout.microbatches, .arena = arena_new("loss_ledger", false)};
    ledger.steps = arena_zalloc(ledger.arena, (size_t)ledger.steps_count * sizeof *ledger.steps);
    for (int i = 0; i < ledger.steps_count; i++) {
        ledger.steps[i].step = i;
        fill_step(result, &ledger.steps[i], &ledger);
    }
    return ledger;
}

void loss_ledger_done(struct loss_ledger *ledger)
{
    arena_free(ledger->arena);
    *ledger = (struct loss_ledger){0};
}
