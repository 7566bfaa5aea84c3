/* rng: every dropout mask comes from the stream that is due to it, and what is computed again is what was computed.
 *
 * The ledger of draws has a line a sequence, layer and place: which stream, which of its counters, and a digest of the mask
 * that was applied. Due, anew from names: the stream of (seed, step, layer, place, sequence), counters 0 to positions x
 * channels; with sequence or context parallelism those of the rank's
 * own positions, from its first on, and the digests of all ranks add up to the sequence's. So ranks that hold the same sequence draw the same mask, those that hold others draw others, and every layout
 * draws what one rank draws, whose digests are compared too. A recomputation draws what its forward drew, all of it and
 * nothing else; and its output has the bits of the forward's.
 * Limit: exact. Sites: dropout.sequence; dropout.generator where the stream is the due one's next; dropout.position where a shard's counters begin at 0; of a recomputation recompute.restore_rng where its draws differ,
 * recompute.reselect where the router was not held to its choice, else recompute.input. */
#include <stdlib.h>

#include "model/layers/dropout.h"
#include "model/sites.h"
#include "scenarios/check.h"
#include "scenarios/facts.h"

/* A run's or rank's draws by (step, sequence, layer, place); kept: the digests of all slices of a sequence. */
struct draws { int steps, sequences, layers; const struct draw_fact **of; uint64_t *kept; };

static struct draws draws_new(const struct record *record)
{
    struct draws draws = {record->config.train.steps, record->config.train.global_batch, record->config.model.layers, NULL, NULL};
    size_t count = (size_t)draws.steps * (size_t)draws.sequences * (size_t)draws.layers * DROPOUT_PLACES;
    draws.of = memory_zalloc(count * sizeof *draws.of);
    draws.kept = memory_zalloc(count * sizeof *draws.kept);
    return draws;
}

static const struct draw_fact **draw_at(const struct draws *draws, const struct draw_fact *fact)
{
    size_t layer = (size_t)(fact->unit - 1), row = (size_t)fact->step * (size_t)draws->sequences + (size_t)fact->sequence;
    return &draws->of[(row * (size_t)draws->layers + layer) * DROPOUT_PLACES + (size_t)fact->place];
}

static uint64_t *kept_at(const struct draws *draws, const struct draw_fact *fact)
{
    return &draws->kept[draw_at(draws, fact) - draws->of];
}

/* A run that stops being finite is looked at up to there. */
static bool is_looked_at(const struct draws *draws, const struct draw_fact *fact)
{
    return fact->step < draws->steps;
}

static void draws_clear(struct draws *draws, const struct rank_record *rank)
{
    for (int i = 0; i < rank->draws.count; i++) {
        if (is_looked_at(draws, &rank->draws.items[i])) *draw_at(draws, &rank->draws.items[i]) = NULL;
    }
}

/* The forwards' alone: they come before what is drawn again. */
static void draws_add(struct draws *draws, const struct rank_record *rank)
{
    for (int i = 0; i < rank->draws.count; i++) {
        if (!rank->draws.items[i].again && is_looked_at(draws, &rank->draws.items[i])) *draw_at(draws, &rank->draws.items[i]) = &rank->draws.items[i];
    }
}

/* Each slice of a sequence is on one tp rank and one cp rank of the stage that has the layer. */
static void add_kept(struct draws *draws, const struct record *record)
{
    bool sliced = layout_slices_sequences(&record->config.layout);
    for (int r = 0; r < record->ranks; r++) {
        const struct rank_record *rank = &record->rank[r];
        for (int i = 0; i < rank->draws.count; i++) {
            const struct draw_fact *fact = &rank->draws.items[i];
            if (!fact->again && is_looked_at(draws, fact) && (sliced || rank->tp == 0)) *kept_at(draws, fact) += fact->kept;
        }
    }
}

static const char *place_name(int place)
{
    return place == DROPOUT_ATTENTION ? "attention" : "feed-forward";
}

static struct finding finding_of(const struct evidence *e, const struct site *site, int rank, const struct draw_fact *fact, const char *pattern)
{
    struct finding finding = finding_new(site, place_at_unit(&e->parallel->config, rank, fact->step, fact->microbatch, fact->unit));
    finding_pattern(&finding, pattern);
    return finding;
}

static uint64_t stream_after(const struct run_config *config, const struct draw_fact *fact, int64_t sequence, int drawn)
{
    return dropout_stream(config->seed, fact->step, fact->unit - 1, (enum dropout_place)fact->place, sequence, drawn).key;
}

static uint64_t stream_due(const struct run_config *config, const struct draw_fact *fact, int64_t sequence)
{
    return stream_after(config, fact, sequence, 0);
}

/* A forward's mask. */
static void check_draw(const struct evidence *e, struct check_output *output, const struct draws *alone, const struct draws *forward,
                       const struct rank_record *rank, const struct draw_fact *fact)
{
    const struct run_config *config = &e->parallel->config;
    bool sliced = layout_slices_sequences(&config->layout) || layout_cp(&config->layout) > 1;
    int32_t *positions = memory_alloc((size_t)config->model.seq * sizeof *positions);
    int64_t sequence = (int64_t)fact->step * config->train.global_batch + fact->sequence, dim = config->model.dim;
    uint64_t count = (uint64_t)(facts_positions_due(e->parallel, rank, sequence, true, positions) * dim);
    uint64_t first = (uint64_t)(positions[0] * dim), kept = sliced && is_looked_at(forward, fact) ? *kept_at(forward, fact) : fact->kept;
    free(positions);
    const struct draw_fact *other = is_looked_at(alone, fact) ? *draw_at(alone, fact) : NULL;
    bool stream = fact->stream == stream_due(config, fact, fact->sequence), counters = fact->first == first && fact->count == count;
    bool good = stream && counters && (!other || other->stream != fact->stream || other->kept == kept);
    check_value(output, !good, 0);
    if (good) return;
    int first_here = layout_first_sequence(config, rank->data_rank, 0), of_rank_0 = fact->sequence - first_here;
    if (stream && !counters && fact->first == 0 && fact->count == count) {
        struct finding finding = finding_of(e, &site_dropout_position, rank->rank, fact, "local-positions");
        finding_say(&finding, "rank %d drops after %s of layer %d in step %d, micro-batch %d by a mask for positions from 0 on, and its rows of sequence %d begin at position %llu: positions are counted from its shard's start",
                    rank->rank, place_name(fact->place), fact->unit - 1, fact->step, fact->microbatch, fact->sequence, (unsigned long long)(first / (uint64_t)dim));
        check_find(output, &finding);
        return;
    }
    bool same = !stream && first_here > 0 && fact->stream == stream_due(config, fact, of_rank_0);
    if (!stream && fact->stream == stream_after(config, fact, fact->sequence, 1)) {
        struct finding finding = finding_of(e, &site_dropout_generator, rank->rank, fact, "moved-on");
        finding_say(&finding, "rank %d drops after %s of layer %d in step %d, micro-batch %d by the mask that comes next in the stream of sequence %d: its "
                    "generator was drawn from once too often", rank->rank, place_name(fact->place), fact->unit - 1, fact->step, fact->microbatch, fact->sequence);
        check_find(output, &finding);
        return;
    }
    struct finding finding = finding_of(e, &site_dropout_sequence, rank->rank, fact, same ? "same-stream" : stream ? "other-mask" : "other-stream");
    finding_say(&finding, "rank %d drops after %s of layer %d in step %d, micro-batch %d by a mask of sequence %d that is not its own%s", rank->rank,
                place_name(fact->place), fact->unit - 1, fact->step, fact->microbatch, fact->sequence, same ? " but that of data rank 0" : "");
    check_find(output, &finding);
}

static bool is_same_draw(const struct draw_fact *a, const struct draw_fact *b)
{
    return a->stream == b->stream && a->first == b->first && a->count == b->count && a->kept == b->kept;
}

static void check_again(const struct evidence *e, struct check_output *output, const struct draws *forward, const struct rank_record *rank,
                        const struct draw_fact *fact)
{
    const struct draw_fact *first = *draw_at(forward, fact);
    bool good = first && is_same_draw(first, fact);
    check_value(output, !good, 0);
    if (good) return;
    struct finding finding = finding_of(e, &site_recompute_restore_rng, rank->rank, fact, "redrawn");
    finding_say(&finding, "rank %d computes layer %d again in step %d, micro-batch %d with another dropout mask after %s than its forward had",
                rank->rank, fact->unit - 1, fact->step, fact->microbatch, place_name(fact->place));
    check_find(output, &finding);
}

/* As many draws again as there were, once the run is over. */
static void check_whole(const struct evidence *e, struct check_output *output, const struct rank_record *rank)
{
    int forward = 0, again = 0;
    for (int i = 0; i < rank->draws.count; i++) *(rank->draws.items[i].again ? &again : &forward) += 1;
    int due = e->parallel->config.layout.recompute.mode == RECOMPUTE_FULL ? forward : 0;
    check_value(output, again, due);
    if (again == due || !facts_finished(e->parallel)) return;
    struct finding finding = finding_new(&site_recompute_restore_rng, place_at(rank->rank, -1, -1));
    finding.expected = due;
    finding.got = again;
    finding_pattern(&finding, "count");
    finding_say(&finding, "rank %d draws %d masks in recomputations where its forwards drew %d", rank->rank, again, due);
    check_find(output, &finding);
}

/* Were the masks of this recomputation others? Told by themselves. */
static bool was_redrawn(const struct draws *forward, const struct rank_record *rank, const struct recompute_fact *fact)
{
    for (int i = 0; i < rank->draws.count; i++) {
        const struct draw_fact *draw = &rank->draws.items[i];
        if (!draw->again || draw->step != fact->step || draw->microbatch != fact->microbatch || draw->unit != fact->unit) continue;
        const struct draw_fact *first = *draw_at(forward, draw);
        if (!first || !is_same_draw(first, draw)) return true;
    }
    return false;
}

static void check_output_again(const struct evidence *e, struct check_output *output, const struct draws *forward, const struct rank_record *rank,
                               const struct recompute_fact *fact)
{
    if (fact->step >= forward->steps) return;
    check_value(output, fact->output != fact->again, 0);
    if (fact->output == fact->again || was_redrawn(forward, rank, fact)) return;
    bool reselected = facts_was_chosen(rank, &site_recompute_reselect, fact->step, fact->unit);
    struct finding finding = finding_new(reselected ? &site_recompute_reselect : &site_recompute_input,
                                         place_at_unit(&e->parallel->config, rank->rank, fact->step, fact->microbatch, fact->unit));
    finding_pattern(&finding, reselected ? "reselected" : "other-output");
    finding_say(&finding, "rank %d computes layer %d again in step %d, micro-batch %d, and it gives other numbers than its forward gave%s", rank->rank,
                fact->unit - 1, fact->step, fact->microbatch, reselected ? ": its router chose again" : "");
    check_find(output, &finding);
}

static void check_rank(const struct evidence *e, struct check_output *output, const struct draws *alone, struct draws *forward,
                       const struct rank_record *rank)
{
    draws_add(forward, rank);
    for (int i = 0; i < rank->draws.count; i++) {
        const struct draw_fact *fact = &rank->draws.items[i];
        if (!is_looked_at(forward, fact)) continue;
        if (fact->again) check_again(e, output, forward, rank, fact);
        else check_draw(e, output, alone, forward, rank, fact);
    }
    check_whole(e, output, rank);
    for (int i = 0; i < rank->recomputations.count; i++) check_output_again(e, output, forward, rank, &rank->recomputations.items[i]);
    draws_clear(forward, rank);
}

static void run(const struct evidence *e, struct check_output *output)
{
    const struct record *record = e->parallel;
    if (record->config.model.dropout == 0 && record->config.layout.recompute.mode != RECOMPUTE_FULL) {
        check_skip(output, "no dropout, and no layer is computed again");
        return;
    }
    struct draws alone = draws_new(e->standalone), forward = draws_new(record);
    check_value(output, 0, 1);
    draws_add(&alone, &e->standalone->rank[0]);
    add_kept(&forward, record);
    for (int r = 0; r < record->ranks; r++) check_rank(e, output, &alone, &forward, &record->rank[r]);
    free(alone.of);
    free(alone.kept);
    free(forward.of);
    free(forward.kept);
}

const struct check check_rng = {
    .id = "rng",
    .proves = "every dropout mask is drawn from the stream due to its sequence, layer and place, and a layer that is computed "
              "again draws, and gives, the same bits as before",
    .tier = "default",
    .measures = "masks and outputs that differ",
    .run = run,
};
