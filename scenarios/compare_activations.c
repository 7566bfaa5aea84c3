/* compare: activations and their gradients at the boundaries of units, one sequence at a time. */
#include <math.h>

#include "scenarios/compare.h"

/* One sequence's tokens in the loss of the run that held it, by position; rank: the last stage's, with cp the first of several. */
struct sequence_loss { const struct loss_fact *fact; int rank, data_rank; const double *loss, *weight; const uint16_t *members /* by position, of cp; NULL: there is one */; };

/* From the ranks that have its positions. */
static bool put_together(const struct record *record, int step, const struct microbatch_place *place, double *loss, double *weight)
{
    const struct layout *layout = &record->config.layout;
    int per = layout_sequences_per_microbatch(&record->config);
    for (int c = 0; c < layout_cp(layout); c++) {
        const struct rank_record *rank = facts_rank(record, layout->pp - 1, place->data_rank + c);
        const struct loss_fact *fact = rank ? facts_loss(rank, step, place->microbatch) : NULL;
        if (!fact) return false;
        int64_t rows = fact->token_count / per, first = place->row * rows;
        for (int64_t t = 0; t < rows; t++) {
            loss[fact->token_positions[first + t]] = fact->token_loss[first + t];
            weight[fact->token_positions[first + t]] = fact->token_weight[first + t];
        }
    }
    return true;
}

static struct sequence_loss sequence_loss(const struct record *record, int step, int sequence, struct arena *arena)
{
    const struct layout *layout = &record->config.layout;
    struct microbatch_place place = facts_place_of(record, sequence);
    size_t seq = (size_t)record->config.model.seq;
    const struct rank_record *rank = facts_rank(record, layout->pp - 1, place.data_rank);
    struct sequence_loss found = {.fact = rank ? facts_loss(rank, step, place.microbatch) : NULL,
                                  .rank = rank ? rank->rank : -1, .data_rank = place.data_rank};
    if (!found.fact || !facts_sample_is_due(record, step, place.data_rank, place.microbatch))
        return (struct sequence_loss){.rank = -1};
    if (layout_cp(layout) > 1) {
        double *loss = arena_zalloc(arena, seq * sizeof *loss), *weight = arena_zalloc(arena, seq * sizeof *weight);
        found.loss = loss;
        found.weight = weight;
        found.members = record->members + ((size_t)step * (size_t)record->config.train.global_batch + (size_t)sequence) * seq;
        return put_together(record, step, &place, loss, weight) ? found : (struct sequence_loss){.rank = -1};
    }
    found.loss = found.fact->token_loss + (size_t)place.row * seq;
    found.weight = found.fact->token_weight + (size_t)place.row * seq;
    return found;
}

/* a's weight over b's where it is one number for the whole sequence; else NAN. */
static double weight_ratio(const struct comparison *c, const struct sequence_loss *a, const struct sequence_loss *b)
{
    double ratio = NAN, tolerance = 8 * precision_roundoff(&c->parallel->config.precision);
    for (int t = 0; t < c->parallel->config.model.seq; t++) {
        if (b->weight[t] == 0 && a->weight[t] == 0) continue;
        double here = a->weight[t] / b->weight[t];
        if (isnan(ratio)) ratio = here;
        if (!(fabs(here - ratio) <= tolerance * fabs(ratio))) return NAN;
    }
    return isfinite(ratio) && ratio != 0 ? ratio : NAN;
}

static void compare_sketches(struct comparison *c, struct difference *d, struct sketch_entry a,
                             const struct sketch_fact *b, double factor, double terms_count)
{
    double difference = 0, product = 0, squares = 0, rest = 0, norm = sqrt(b->value[4]);
    for (int k = 0; k < 4; k++) {
        double x = a.fact->value[k] / factor;
        difference += (x - b->value[k]) * (x - b->value[k]);
        product += x * b->value[k];
        squares += b->value[k] * b->value[k];
    }
    *d = (struct difference){.rank = a.rank, .ratio = product / squares};
    for (int k = 0; k < 4; k++) {
        double x = a.fact->value[k] / factor - d->ratio * b->value[k];
        rest += x * x;
    }
    d->residual = sqrt(rest / 4) / norm;
    difference_set(c, d, difference == 0 ? 0 : sqrt(difference / 4) / norm, terms_count, 0);
}

/* Whose tokens differ most. */
static int worst_rank(const struct comparison *c, const struct sequence_loss *a, const struct sequence_loss *b)
{
    const struct layout *layout = &c->parallel->config.layout;
    double most = 0;
    int worst = 0;
    for (int m = 0; a->members && m < layout->cp; m++) {
        double difference = 0;
        for (int t = 0; t < c->parallel->config.model.seq; t++)
            difference += a->members[t] == m ? (a->loss[t] - b->loss[t]) * (a->loss[t] - b->loss[t]) : 0;
        if (difference > most) worst = m;
        most = fmax(most, difference);
    }
    return worst == 0 ? a->rank : facts_rank(c->parallel, layout->pp - 1, a->data_rank + worst)->rank;
}

static void compare_token_losses(struct comparison *c, struct difference *d, const struct sequence_loss *a,
                                 const struct sequence_loss *b, double terms_count)
{
    double difference = 0, product = 0, squares = 0;
    for (int t = 0; t < c->parallel->config.model.seq; t++) {
        difference += (a->loss[t] - b->loss[t]) * (a->loss[t] - b->loss[t]);
        product += a->loss[t] * b->loss[t];
        squares += b->loss[t] * b->loss[t];
    }
    *d = (struct difference){.rank = worst_rank(c, a, b), .ratio = product / squares};
    /* A token's loss is a difference of two logits: where the model knows the token, its rounding is theirs, of size 1
     * and not of the loss that is left. */
    double size = fmax(squares, c->parallel->config.model.seq);
    difference_set(c, d, difference == 0 ? 0 : sqrt(difference / size), terms_count, 0);
}

static void compare_sequence(struct comparison *c, const struct sketch_table *standalone, int step, int sequence)
{
    struct arena_mark mark = arena_mark(c->arena);
    struct sequence_loss a = sequence_loss(c->parallel, step, sequence, c->arena),
                         b = sequence_loss(c->standalone, step, sequence, c->arena);
    if (!a.fact || !b.fact) return;
    double factor = weight_ratio(c, &a, &b), grown = (double)c->parallel->config.model.dim * (step + 1) * (step + 1);
    for (int unit = 0; unit < c->units; unit++) {
        size_t cell = ((size_t)step * (size_t)c->units + (size_t)unit) * (size_t)c->sequences + (size_t)sequence;
        struct sketch_entry out_a = sketch_table_at(&c->sketches, step, sequence, unit, SKETCH_FORWARD_OUT);
        struct sketch_entry out_b = sketch_table_at(standalone, step, sequence, unit, SKETCH_FORWARD_OUT);
        if (out_a.fact && out_b.fact) compare_sketches(c, &c->forward[cell], out_a, out_b.fact, 1, grown * (unit + 1));
        if (comparison_left_out(c->parallel, step) && comparison_left_out(c->standalone, step)) continue;
        out_a = sketch_table_at(&c->sketches, step, sequence, unit, SKETCH_BACKWARD_OUT);
        out_b = sketch_table_at(standalone, step, sequence, unit, SKETCH_BACKWARD_OUT);
        if (!out_a.fact || !out_b.fact || isnan(factor)) continue;
        compare_sketches(c, &c->backward[cell], out_a, out_b.fact, factor, grown * (2 * c->units - unit));
    }
    size_t head = ((size_t)step * (size_t)c->units + (size_t)(c->units - 1)) * (size_t)c->sequences + (size_t)sequence;
    if (!c->forward[head].known) compare_token_losses(c, &c->forward[head], &a, &b, grown * c->units);
    arena_release(c->arena, mark);
}

void compare_activations(struct comparison *c)
{
    c->sketches = sketch_table_new(c->parallel, c->arena);
    struct sketch_table standalone = sketch_table_new(c->standalone, c->arena);
    for (int step = 0; step < c->steps; step++) {
        for (int sequence = 0; sequence < c->sequences; sequence++) compare_sequence(c, &standalone, step, sequence);
    }
}
