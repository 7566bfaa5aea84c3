/* context_refine: what outputs alone leave open, told apart by what else the run left: ledgers of the backward, the run in
 * fp64, lengths of shards, the bits of the numbers.
 *
 *   first-kept    the forward lacks blocks that the backward has by its ledgers; or, no backward: every rank has its own block alone,
 *                 with all of the softmax, although others came: they were computed and not merged
 *   overflow      not finite, and in fp64, from the same messages, finite and right
 *   other-rows    not finite on exactly the ranks whose shard is longer than the shortest: a block was taken for longer than it is
 *   rounded       the only thing wrong, and every number of it one that a 16-bit format has, in a run that keeps more bits */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/precision.h"

#include "scenarios/context_checks.h"
#include "scenarios/facts.h"

static bool finite_on(const struct context_comparison *c, int rank)
{
    const struct context_error *e = context_error_of(c, rank, CONTEXT_OUT);
    return !e->known || isfinite(e->rel);
}

static bool finite_everywhere(const struct context_comparison *c)
{
    for (int r = 0; r < c->ranks; r++) {
        if (!finite_on(c, r)) return false;
    }
    return true;
}

/* ---- first-kept ---- */

static const struct consumption_fact *backward_of(const struct rank_record *rank, const struct consumption_fact *f)
{
    for (int i = 0; i < rank->consumptions.count; i++) {
        const struct consumption_fact *b = &rank->consumptions.items[i];
        if (b->backward && b->step == f->step && b->microbatch == f->microbatch && b->unit == f->unit) return b;
    }
    return NULL;
}

bool consumption_lost_in_merge(const struct record *record)
{
    bool any = false;
    for (int r = 0; r < record->ranks; r++) {
        for (int i = 0; i < record->rank[r].consumptions.count; i++) {
            const struct consumption_fact *f = &record->rank[r].consumptions.items[i], *b = f->backward ? NULL : backward_of(&record->rank[r], f);
            if (f->backward) continue;
            if (!b || f->others || b->others) return false;
            bool less = false, own = false, more = false;
            for (int c = 0; c < f->size; c++) {
                less = less || f->times[c] < b->times[c];
                more = more || f->times[c] > b->times[c] || b->times[c] > 1;
                own = own || (f->times[c] == 1 && c == mesh_coordinate(&record->mesh, r, "cp"));
            }
            if (more || (less && !own)) return false;
            any = any || less;
        }
    }
    return any;
}

/* Each rank's own chunk, with the joint rows, has all of the softmax that any has. */
static bool own_is_whole(const struct evidence *e)
{
    const struct context_variations *v = e->context->variations;
    int members = layout_cp(&e->config->layout);
    if (!v || !v->mass.got || v->mass.failed) return false;
    for (int r = 0; r < e->parallel->ranks; r++) {
        const double *got = v->mass.got + (int64_t)r * v->mass.chunks;
        double own = got[r % members] + (v->mass.chunks > members ? got[members] : 0);
        if (!(fabs(own - v->mass.total[r]) < 1e-9 && own > 0)) return false;
    }
    return true;
}

static bool is_one_of(const char *word, const char *const *words, int count)
{
    for (int i = 0; word && i < count; i++) {
        if (!strcmp(word, words[i])) return true;
    }
    return false;
}

static bool is_first_kept(const struct evidence *e, const char *word)
{
    static const char *const alike[] = {"skipped-step", "not-arrived", "missing", "causal-skip", "past-skipped", "unguarded-past", "all-skipped"};
    if (!is_one_of(word, alike, 7) || !finite_everywhere(e->context->comparison)) return false;
    return consumption_lost_in_merge(e->parallel) || (!strcmp(word, "not-arrived") && own_is_whole(e));
}

/* ---- not finite ---- */

static bool is_overflow(const struct evidence *e)
{
    const struct context_comparison *fine = e->context->fine;
    return fine && finite_everywhere(fine) && !context_comparison_any(fine, CONTEXT_OUT);
}

/* Every row all finite or all not: what was read past a block's end is in all heads. */
static bool rows_are_whole(const struct evidence *e)
{
    int64_t width = (int64_t)e->config->model.heads * e->config->model.head_dim;
    for (int r = 0; r < e->parallel->ranks; r++) {
        const struct attention_part *p = e->parallel->rank[r].attention;
        for (int64_t i = 0; i < p->batch * p->rows; i++) {
            int64_t bad = 0;
            for (int64_t j = 0; j < width; j++) bad += !isfinite(p->out[i * width + j]);
            if (bad > 0 && bad < width) return false;
        }
    }
    return true;
}

static bool is_other_rows(const struct evidence *e)
{
    const struct record *record = e->parallel;
    int64_t least = INT64_MAX, most = 0;
    if (context_moves(e->config, false) != context_site("cp.kv_hop")) return false;
    for (int r = 0; r < record->ranks; r++) {
        const struct attention_part *p = record->rank[r].attention;
        if (!p) return false;
        least = p->rows < least ? p->rows : least;
        most = p->rows > most ? p->rows : most;
    }
    for (int r = 0; r < record->ranks; r++) {
        if (finite_on(e->context->comparison, r) != (record->rank[r].attention->rows == least)) return false;
    }
    return most > least && rows_are_whole(e);
}

/* ---- the bits of numbers ---- */

/* Are all of them numbers of `format`? */
static bool all_are(const double *values, int64_t count, enum format format)
{
    for (int64_t i = 0; i < count; i++) {
        if (isfinite(values[i]) && format_round(format, values[i]) != values[i]) return false;
    }
    return count > 0;
}

static bool is_narrow(const struct evidence *e, enum context_tensor tensor)
{
    const struct record *record = precision_is_plain(&e->config->precision) ? e->parallel : evidence_fine(e);
    if (record == e->parallel && !precision_is_plain(&e->config->precision)) return false; /* there it may be due */
    for (int f = 0; f < 2; f++) {
        enum format format = f ? FORMAT_FP16 : FORMAT_BF16;
        bool all = true;
        for (int r = 0; r < record->ranks && all; r++) {
            const struct attention_part *p = record->rank[r].attention;
            const double *values = !p ? NULL : tensor == CONTEXT_DQ ? p->dq : p->out;
            all = values && all_are(values, p->batch * p->rows * e->config->model.heads * e->config->model.head_dim, format);
        }
        if (all) return true;
    }
    return false;
}

/* ---- all together ---- */

static void becomes(struct context_inference *i, const char *word, const char *site, const char *text)
{
    i->word = word;
    i->site = context_site(site);
    snprintf(i->text, sizeof i->text, "%s", text);
}

void context_refine(const struct evidence *e, const struct context_comparison *which, struct context_inference *inference)
{
    if (!inference->word || !e->context->comparison) return;
    if (!finite_everywhere(e->context->comparison)) {
        if (is_overflow(e)) becomes(inference, "overflow", "cp.merge_stable", "in fp64 all is finite and right, from the same blocks: an exponential ran over in this format");
        else if (is_other_rows(e)) becomes(inference, "other-rows", "cp.unpack", "not finite on the ranks alone whose shard is longer than the shortest: a block that arrived is taken for as many rows as the rank has itself");
        return;
    }
    if (is_first_kept(e, inference->word))
        becomes(inference, "first-kept", "cp.merge", "blocks that came from other ranks are computed and not in the output: they are not merged");
    bool out = context_comparison_any(which, CONTEXT_OUT);
    const struct site *format = context_wrong_format(e);
    if (format && (!strcmp(inference->word, "rounded") || !strcmp(inference->word, "lse-rounded"))) {
        becomes(inference, "wrong-format", format->name, "what moves there does so in another format than is due");
        return;
    }
    if (!strcmp(inference->word, "dq") && !out && is_narrow(e, CONTEXT_DQ))
        becomes(inference, "rounded", "cp.dq", "dq alone is wrong, and each number of it is one of 16 bits: it is kept in them whatever the format is");
}
