/* poison: nothing reads padding, freed, not yet arrived or foreign memory.
 *
 * Fresh buffers are filled with NaN, so such a read shows as a number that is not finite; the ranks' own notes say
 * where memory was not meant to be read. At the boundaries of stages, what is computed with must be, to the bit, what
 * was sent: the sketch of the received tensor against the sender's. Limit: exact. Sites: that of the note;
 * pp.send_activation and pp.send_grad at boundaries; else the first in the dataflow of a step whose
 * input is finite and whose output is not. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/sites.h"
#include "scenarios/check.h"
#include "scenarios/context_checks.h"
#include "scenarios/facts.h"
#include "scenarios/routing_due.h"

static bool same_sketch(const struct sketch_fact *a, const struct sketch_fact *b)
{
    for (int k = 0; k < 5; k++) {
        if (a->value[k] != b->value[k] && !(isnan(a->value[k]) && isnan(b->value[k]))) return false;
    }
    return true;
}

static bool is_zero(const struct sketch_fact *fact)
{
    return fact->value[4] == 0;
}

/* What arrived beside the sender's other sequences: is it another micro-batch's? -1: no. */
static int foreign_sequence(const struct sketch_table *table, const struct sketch_fact *arrived, int unit,
                            enum sketch_kind kind)
{
    for (int sequence = 0; sequence < table->sequences; sequence++) {
        struct sketch_entry sent = sketch_table_at(table, arrived->step, sequence, unit, kind);
        if (sent.fact && same_sketch(sent.fact, arrived)) return sequence;
    }
    return -1;
}

static void check_boundary(const struct evidence *e, struct check_output *output, const struct sketch_table *table,
                           struct sketch_entry arrived, bool forward)
{
    int from = arrived.fact->unit + (forward ? -1 : 1);
    enum sketch_kind kind = forward ? SKETCH_FORWARD_OUT : SKETCH_BACKWARD_OUT;
    struct sketch_entry sent = sketch_table_at(table, arrived.fact->step, arrived.fact->sequence, from, kind);
    bool good = sent.fact && same_sketch(sent.fact, arrived.fact);
    check_value(output, !good, 0);
    if (good) return;
    struct finding finding = finding_new(forward ? &site_pp_send_activation : &site_pp_send_grad,
                                         place_at_unit(&e->parallel->config, arrived.rank, arrived.fact->step,
                                                       arrived.fact->microbatch, arrived.fact->unit));
    int foreign = foreign_sequence(table, arrived.fact, from, kind);
    char was[96], name[32];
    if (!arrived.fact->finite) snprintf(was, sizeof was, "memory that nothing had arrived in");
    else if (is_zero(arrived.fact)) snprintf(was, sizeof was, "zeros");
    else if (foreign >= 0) snprintf(was, sizeof was, "what was sent for sequence %d of the step", foreign);
    else snprintf(was, sizeof was, "other numbers than were sent");
    finding_pattern(&finding, !arrived.fact->finite   ? "not-arrived"
                              : is_zero(arrived.fact) ? "zeros"
                              : foreign >= 0          ? "other-microbatch"
                                                      : "altered");
    unit_name(&e->parallel->config.model, arrived.fact->unit, name);
    finding_say(&finding, "in step %d, micro-batch %d, %s on rank %d gets %s as its %s of sequence %d",
                arrived.fact->step, arrived.fact->microbatch, name, arrived.rank, was,
                forward ? "input" : "output gradient", arrived.fact->sequence);
    finding.expected = sent.fact ? sqrt(sent.fact->value[4]) : NAN;
    finding.got = sqrt(arrived.fact->value[4]);
    check_find(output, &finding);
}

static void check_boundaries(const struct evidence *e, struct check_output *output, const struct sketch_table *table,
                             int step)
{
    for (int unit = 0; unit < table->units; unit++) {
        for (int sequence = 0; sequence < table->sequences; sequence++) {
            struct sketch_entry forward = sketch_table_at(table, step, sequence, unit, SKETCH_FORWARD_IN);
            struct sketch_entry backward = sketch_table_at(table, step, sequence, unit, SKETCH_BACKWARD_IN);
            if (forward.fact) check_boundary(e, output, table, forward, true);
            if (backward.fact) check_boundary(e, output, table, backward, false);
        }
    }
}

static void find_not_finite(const struct evidence *e, struct check_output *output, const struct site *site,
                            struct place place, const char *what)
{
    struct finding finding = finding_new(site, place);
    char name[32];
    unit_name(&e->parallel->config.model, place.unit, name);
    finding_pattern(&finding, "not-finite");
    finding_say(&finding, "%s of %s on rank %d is not finite in step %d, micro-batch %d, though its input is", what,
                name, place.rank, place.step, place.microbatch);
    check_value(output, 1, 0);
    check_find(output, &finding);
}

/* A scaled gradient that overflowed, which loss scaling found: precision holds what it did then. */
static bool overflow_was_found(const struct record *record, int step)
{
    const struct scale_fact *scale = facts_scale(&record->rank[0], step);
    return scale && scale->found;
}

/* Units whose output is not finite although what they got is; forward, then backward. */
static void check_units(const struct evidence *e, struct check_output *output, const struct sketch_table *table,
                        int step)
{
    for (int unit = 0; unit < table->units; unit++) {
        for (int sequence = 0; sequence < table->sequences; sequence++) {
            struct sketch_entry out = sketch_table_at(table, step, sequence, unit, SKETCH_FORWARD_OUT);
            struct sketch_entry in = sketch_table_at(table, step, sequence, unit, SKETCH_FORWARD_IN);
            if (!in.fact) in = sketch_table_at(table, step, sequence, unit - 1, SKETCH_FORWARD_OUT);
            if (!out.fact || out.fact->finite || (in.fact && !in.fact->finite)) continue;
            find_not_finite(e, output, &site_layer_forward,
                place_at_unit(&e->parallel->config, out.rank, step, out.fact->microbatch, unit), "the output");
        }
    }
    if (overflow_was_found(e->parallel, step)) return;
    for (int unit = table->units - 1; unit >= 1; unit--) {
        for (int sequence = 0; sequence < table->sequences; sequence++) {
            struct sketch_entry out = sketch_table_at(table, step, sequence, unit, SKETCH_BACKWARD_OUT);
            struct sketch_entry in = sketch_table_at(table, step, sequence, unit, SKETCH_BACKWARD_IN);
            if (!in.fact) in = sketch_table_at(table, step, sequence, unit + 1, SKETCH_BACKWARD_OUT);
            struct sketch_entry forward = sketch_table_at(table, step, sequence, unit, SKETCH_FORWARD_OUT);
            bool inputs_finite = (!in.fact || in.fact->finite) && (!forward.fact || forward.fact->finite);
            if (!out.fact || out.fact->finite || !inputs_finite) continue;
            find_not_finite(e, output, &site_layer_backward,
                place_at_unit(&e->parallel->config, out.rank, step, out.fact->microbatch, unit), "the input gradient");
        }
    }
}

/* A rank's own notes, and reduced gradients; these have no site: their inputs are judged above. */
static void check_rank(const struct evidence *e, struct check_output *output, const struct rank_record *rank, int step)
{
    for (int i = 0; i < rank->poisons.count; i++) {
        const struct poison_fact *fact = &rank->poisons.items[i];
        if (fact->step != step) continue;
        struct finding finding = finding_new(fact->site,
            place_at_unit(&e->parallel->config, rank->rank, step, fact->microbatch, fact->unit));
        finding_pattern(&finding, "not-arrived");
        finding_say(&finding, "rank %d, step %d, micro-batch %d: %s", rank->rank, step, fact->microbatch, fact->what);
        check_value(output, 1, 0);
        check_find(output, &finding);
    }
    for (int i = 0; i < rank->gradients.count && !overflow_was_found(e->parallel, step); i++) {
        const struct gradient_fact *fact = &rank->gradients.items[i];
        if (fact->step != step || fact->finite) continue;
        char name[32];
        unit_name(&e->parallel->config.model, fact->unit, name);
        struct finding finding =
            finding_new(NULL, place_at_unit(&e->parallel->config, rank->rank, step, -1, fact->unit));
        finding_say(&finding, "the reduced gradient of %s on rank %d is not finite in step %d", name, rank->rank, step);
        check_value(output, 1, 0);
        check_find(output, &finding);
    }
}

/* Rows behind an expert's own, which products read. */
static void check_padding(const struct evidence *e, struct check_output *output, const struct rank_record *rank, const struct routing_fact *fact,
                          const bool *padding)
{
    (void)padding;
    check_value(output, (double)fact->padding_dirty, 0);
    if (fact->padding_dirty == 0) return;
    routing_find(e, output, &site_moe_padding_rows, rank, fact, "not-zeroed", 0, (double)fact->padding_dirty,
                 "of %lld rows of padding behind the experts' own %lld are not zero, and gradients of weights are made from them", (long long)fact->padding_rows,
                 (long long)fact->padding_dirty);
}

static void run(const struct evidence *e, struct check_output *output)
{
    if (check_is_attention(e)) {
        context_poison(e, output);
        return;
    }
    struct arena *arena = arena_new("poison check", false);
    struct sketch_table table = sketch_table_new(e->parallel, arena);
    check_value(output, 0, 0);
    for (int step = 0; step < table.steps; step++) {
        check_boundaries(e, output, &table, step);
        check_units(e, output, &table, step);
        for (int r = 0; r < e->parallel->ranks; r++) check_rank(e, output, &e->parallel->rank[r], step);
    }
    arena_free(arena);
    routing_each(e, output, check_padding);
}

const struct check check_poison = {
    .id = "poison",
    .proves = "nothing reads padding, freed, not yet arrived or foreign memory: all numbers are finite, and what a "
              "stage computes with is what the stage before sent, to the bit",
    .tier = "default",
    .run = run,
    .workloads = CHECK_IN(WORKLOAD_TRAIN) | CHECK_IN(WORKLOAD_ATTENTION),
};
