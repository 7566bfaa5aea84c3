/* context_inference: words for matrices, and sites for words. See the header. */
#include "scenarios/context_inference.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/sites.h"

const struct site *context_site(const char *name)
{
    return model_site_find(name);
}

static struct context_inference nothing(void)
{
    return (struct context_inference){.step = -1, .first_rank = -1};
}

static struct context_inference infer(const char *word, const char *site, int rank, int step, const char *format, ...) __attribute__((format(printf, 5, 6)));
static struct context_inference infer(const char *word, const char *site, int rank, int step, const char *format, ...)
{
    struct context_inference i = {.word = word, .site = context_site(site), .step = step, .first_rank = rank};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(i.text, sizeof i.text, format, arguments);
    va_end(arguments);
    return i;
}

const struct site *context_moves(const struct run_config *config, bool gradients)
{
    const char *method = config->layout.context.method;
    bool all = !strcmp(method, "usp") && config->layout.context.ulysses == layout_cp(&config->layout); /* a ring of one */
    bool gathers = !strcmp(method, "all_gather"), heads = all || !strcmp(method, "ulysses");
    if (gradients) return context_site(gathers ? "cp.kv_grad_scatter" : heads ? "cp.head_to_seq" : "cp.dkv_hop");
    return context_site(gathers ? "cp.kv_gather" : heads ? "cp.seq_to_head" : "cp.kv_hop");
}

/* ---- what is due ---- */

/* A query of `of_query` sees a key of `of_key`; -1: a joint row, which each member has, and whose keys come with the own block. */
static void set_due(int size, int of_query, int of_key, int *ret_due)
{
    for (int r = of_query < 0 ? 0 : of_query; r < (of_query < 0 ? size : of_query + 1); r++) ret_due[r * size + (of_key < 0 ? r : of_key)] = 1;
}

static bool takes_all(const struct run_config *config)
{
    const char *method = config->layout.context.method;
    return !strcmp(method, "all_gather") || !strcmp(method, "ulysses") || !strcmp(method, "usp");
}

void consumption_forgive(const struct run_config *config, int *got, const int *due, int size)
{
    for (int i = 0; i < size * size && takes_all(config); i++) {
        if (due[i] == 0 && got[i] == 1) got[i] = 0;
    }
}

void consumption_due(const struct run_config *config, const int32_t *documents, int64_t sequences, bool joint, int *ret_due)
{
    int size = layout_cp(&config->layout);
    int64_t seq = config->model.seq;
    int *holder = memory_alloc((size_t)(seq + 1) * sizeof *holder);
    memset(ret_due, 0, (size_t)(size * size) * sizeof *ret_due);
    for (int64_t b = 0; b < (documents ? sequences : 1); b++) {
        const int32_t *of = documents ? documents + b * seq : NULL;
        context_holders(config, of, holder);
        for (int64_t q = 0; q < seq; q++) {
            for (int64_t k = 0; k < seq && (joint || holder[q] >= 0); k++) {
                bool known = holder[q] >= 0 && holder[k] >= 0 && ret_due[holder[q] * size + holder[k]];
                if (known || (holder[k] < 0 && !joint)) continue;
                if (attention_visible(config, of, q, k)) set_due(size, holder[q], holder[k], ret_due);
            }
        }
    }
    free(holder);
}

/* ---- a matrix of integers ---- */

static int got(const struct consumption_matrix *m, int r, int c)
{
    return m->got[r * m->size + c];
}

static int due(const struct consumption_matrix *m, int r, int c)
{
    return m->due[r * m->size + c];
}

static int step_of(const struct consumption_matrix *m, int r, int c)
{
    return (r - c + m->size) % m->size;
}

static bool is_wrong_cell(const struct consumption_matrix *m, int r, int c)
{
    return got(m, r, c) >= 0 && got(m, r, c) != due(m, r, c);
}

static bool is_wrong_row(const struct consumption_matrix *m, int r)
{
    for (int c = 0; c < m->size; c++) {
        if (is_wrong_cell(m, r, c)) return true;
    }
    return false;
}

static int due_in_row(const struct consumption_matrix *m, int r)
{
    int count = 0;
    for (int c = 0; c < m->size; c++) count += due(m, r, c);
    return count;
}

/* The block that comes last of those that are due. */
static int last_block(const struct consumption_matrix *m, int r)
{
    for (int s = m->size - 1; s > 0; s--) {
        int c = (r - s + m->size) % m->size;
        if (due(m, r, c)) return c;
    }
    return r;
}

static bool only(const struct consumption_matrix *m, int r, int block)
{
    for (int c = 0; c < m->size; c++) {
        if (got(m, r, c) >= 0 && got(m, r, c) != (c == block)) return false;
    }
    return true;
}

static bool is_local(const struct consumption_matrix *m, int r)
{
    return only(m, r, r) && due_in_row(m, r) > 1;
}

static bool is_overwritten(const struct consumption_matrix *m, int r)
{
    return due_in_row(m, r) > 1 && last_block(m, r) != r && only(m, r, last_block(m, r));
}

/* Of the blocks up to the own place the last, which is member 0's. */
static bool is_skipped_and_overwritten(const struct consumption_matrix *m, int r)
{
    return due_in_row(m, r) > 1 && only(m, r, 0);
}

/* The same with the blocks up to the own place left out: the last that comes is the next member's, and the last member has its own. */
static bool is_past_skipped_and_overwritten(const struct consumption_matrix *m, int r)
{
    return due_in_row(m, r) > 1 && only(m, r, r + 1 < m->size ? r + 1 : r);
}

static bool hides_any(const struct consumption_matrix *m)
{
    for (int i = 0; i < m->size * m->size; i++) {
        if (!m->due[i]) return true;
    }
    return false;
}

static bool is_nothing(const struct consumption_matrix *m, int r)
{
    bool known = true;
    for (int c = 0; c < m->size; c++) known = known && got(m, r, c) >= 0;
    return known && due_in_row(m, r) > 0 && only(m, r, -1);
}

static bool is_resent(const struct consumption_matrix *m, int r)
{
    int neighbour = (r - 1 + m->size) % m->size;
    for (int c = 0; c < m->size; c++) {
        if (c != r && c != neighbour && got(m, r, c) > 0) return false;
    }
    return m->size > 2 && got(m, r, neighbour) > 1;
}

/* Without exactly the due blocks of one side of the member, and with no other. later: those of members behind it. */
static bool is_one_side(const struct consumption_matrix *m, int r, bool later, bool extra_too)
{
    int missing = 0;
    for (int c = 0; c < m->size; c++) {
        bool side = later ? c > r : c < r;
        if (got(m, r, c) > due(m, r, c) && !(extra_too && !side)) return false;
        if (due(m, r, c) && got(m, r, c) == 0) {
            if (!side) return false;
            missing++;
        } else if (side && due(m, r, c) && got(m, r, c) > 0) {
            return false;
        }
    }
    return missing > 0;
}

static bool is_causal_skip(const struct consumption_matrix *m, int r)
{
    return is_one_side(m, r, true, false);
}

static bool is_past_skipped(const struct consumption_matrix *m, int r)
{
    bool future = true;
    for (int c = 0; c < m->size; c++) future = future && (got(m, r, c) < 0 || (got(m, r, c) > 0) == (c > r));
    if (future && due(m, r, r)) return true;
    return is_one_side(m, r, false, true);
}

static bool is_doubled(const struct consumption_matrix *m, int r)
{
    bool any = false;
    for (int c = 0; c < m->size; c++) {
        if (due(m, r, c) && got(m, r, c) == 0) return false;
        if (!due(m, r, c) && got(m, r, c) > 0) return false;
        any = any || got(m, r, c) > 1;
    }
    return any;
}

/* Everything once, and what nobody sees too. */
static bool is_hidden_too(const struct consumption_matrix *m, int r)
{
    for (int c = 0; c < m->size; c++) {
        if (got(m, r, c) > 1 || (due(m, r, c) && got(m, r, c) == 0)) return false;
    }
    return true;
}

/* The one step whose block is missing; -1: none, or several, or something beside. */
static int missing_step(const struct consumption_matrix *m, int r)
{
    int step = -1;
    for (int c = 0; c < m->size; c++) {
        if (!is_wrong_cell(m, r, c)) continue;
        if (got(m, r, c) != 0 || step >= 0) return -1;
        step = step_of(m, r, c);
    }
    return step;
}

static bool all_rows(const struct consumption_matrix *m, bool (*test)(const struct consumption_matrix *m, int r))
{
    for (int r = 0; r < m->size; r++) {
        if (is_wrong_row(m, r) && !test(m, r)) return false;
    }
    return true;
}

struct context_inference consumption_word(const struct consumption_matrix *m, const int64_t *messages)
{
    int first = 0, step = -1, wrong = 0;
    bool same_step = true;
    while (first < m->size && !is_wrong_row(m, first)) first++;
    if (first == m->size) return nothing();
    for (int r = 0; r < m->size; r++) {
        if (!is_wrong_row(m, r)) continue;
        int of_row = missing_step(m, r);
        wrong++;
        if (step < 0) step = of_row;
        same_step = same_step && of_row >= 0 && of_row == step;
    }
    bool silent = messages && messages[first] == 0, talks = messages && messages[first] > 0;
    if (all_rows(m, is_nothing)) return infer("nothing", "cp.skip_block", first, -1, "no block at all is in the output");
    if (all_rows(m, is_skipped_and_overwritten) && (wrong > 1 || first > 0) && !all_rows(m, is_overwritten))
        return infer("skipped-and-overwritten", "cp.skip_block", first, -1, "every output holds the block of member 0 alone: blocks of later members are left out, and each of the others is written over the one before");
    if (all_rows(m, is_past_skipped_and_overwritten) && wrong == m->size)
        return infer("past-skipped-and-overwritten", "cp.skip_block", first, -1, "every output holds only the block that came last, and the last member's its own alone: blocks that come at steps up to the member's number are left out, and each of the others is written over the one before");
    bool passed_on = wrong < m->size && due_in_row(m, first) > 2; /* what the others have went through this rank */
    if (all_rows(m, is_local) && talks && passed_on && !all_rows(m, is_causal_skip) && !all_rows(m, is_past_skipped))
        return infer("all-skipped", "cp.skip_block", first, -1, "a rank consumes only its own keys and values; blocks came, since the next one has from it what it passed on, and it leaves them out");
    if (all_rows(m, is_local) && talks && m->size > 2 && !passed_on)
        return infer("not-arrived", "cp.kv_hop", first, -1, "every rank consumes only its own keys and values, although blocks were sent: what was received is not what was sent");
    if (all_rows(m, is_local) && !talks)
        return infer("local-only", "cp.rotate", first, -1, "%s only its own keys and values: no other rank's are in its output%s", wrong == m->size ? "every rank consumes" : "a rank consumes",
                     silent ? ", and it sent none" : talks ? ", although they were sent" : "");
    if (all_rows(m, is_overwritten))
        return infer("last-block-only", "cp.merge", first, -1, "only the block that came last is in the output: each block's result is written over the one before, not merged with it");
    if (all_rows(m, is_resent))
        return infer("resent", "cp.forward_received", first, -1, "the neighbour's block is in the output %d times and no farther one: each rank sends its own block again and not the one that it received",
                     got(m, first, (first - 1 + m->size) % m->size));
    if (all_rows(m, is_past_skipped) && !hides_any(m) && m->size > 2)
        return infer("unguarded-past", "cp.skip_block", first, -1, "blocks of earlier members, which come at steps up to the member's own number, are left out, and no causal mask hides them");
    if (all_rows(m, is_past_skipped))
        return infer("past-skipped", "cp.skip_block", first, -1, "blocks of earlier members are left out: what a causal mask shows is skipped, and what it hides is computed");
    if (all_rows(m, is_causal_skip) && !(wrong == 1 && same_step))
        return infer("causal-skip", "cp.skip_block", first, -1, "blocks of later members are left out, as a causal mask of contiguous shards would have it, and this mask shows them");
    if (all_rows(m, is_doubled))
        return infer("doubled", "cp.kv_block", first, -1, "a block of keys and values is in the output more than once");
    if (same_step)
        return infer("skipped-step", "cp.skip_block", first, step, "the block that step %d of the ring brings (0: the own one) is not in the output; the others are merged as they must be", step);
    if (all_rows(m, is_hidden_too))
        return infer("hidden-too", "cp.skip_block", first, -1, "blocks are computed of which the mask hides every key: work for nothing");
    for (int r = 0; r < m->size; r++) {
        for (int c = 0; c < m->size; c++) {
            if (due(m, r, c) && got(m, r, c) == 0)
                return infer("missing", "cp.kv_hop", r, -1, "member %d's output lacks the keys and values of member %d", r, c);
        }
    }
    for (int c = 0; c < m->size; c++) {
        if (got(m, first, c) > due(m, first, c))
            return infer("not-due", "cp.kv_hop", first, -1, "member %d's output holds member %d's keys and values %d times where %d is due", first, c, got(m, first, c), due(m, first, c));
    }
    return nothing();
}

/* ---- usp: a ring of groups ---- */

void consumption_of_ring(const struct run_config *config, struct consumption_matrix *m, int *room)
{
    int inner = strcmp(config->layout.context.method, "usp") ? 1 : config->layout.context.ulysses, places = inner > 1 ? m->size / inner : m->size;
    int *gotten = room, *should = room + places * places;
    for (int r = 0; inner > 1 && r < places; r++) {
        for (int c = 0; c < places; c++) {
            int first = got(m, r * inner, c * inner), any = 0;
            for (int i = 0; i < inner * inner; i++) {
                int a = r * inner + i / inner, b = c * inner + i % inner;
                if (got(m, a, b) != first) return; /* not a matter of the ring */
                any = any || due(m, a, b);
            }
            gotten[r * places + c] = first;
            should[r * places + c] = any;
        }
    }
    if (inner > 1) *m = (struct consumption_matrix){places, gotten, should};
}

/* ---- outputs alone ---- */

bool context_inferred_times(const struct run_config *config, const struct context_variations *v, int group, int *ret)
{
    int members = layout_cp(&config->layout), chunks = v ? v->mass.chunks : 0;
    if (!v || !v->mass.got || !v->value_rows.of || v->mass.failed || v->value_rows.failed) return false;
    for (int r = 0; r < members; r++) {
        for (int c = 0; c < members; c++) {
            const struct influence_cell *cell = &v->value_rows.of[group].cells[r * v->value_rows.chunks + c];
            double mass = v->mass.got[(group * members + r) * chunks + c], times = v->mass.multiple[(group * members + r) * chunks + c],
                   spread = v->mass.spread[(group * members + r) * chunks + c];
            if (cell->due == 0 && cell->changed == 0) ret[r * members + c] = mass > 1e-9 ? -1 : 0;
            else if (mass < 1e-9 && (cell->changed == 0 || isnan(mass))) ret[r * members + c] = 0;
            else if (isfinite(times) && spread < 0.02 && fabs(times - round(times)) < 0.05) ret[r * members + c] = times < 0.5 ? -1 : (int)round(times);
            else ret[r * members + c] = cell->changed > 0 ? -1 : 0;
        }
    }
    /* A multiple is against the own block's weight; where that is the one that came doubled, all others come to a half. */
    for (int r = 0; r < members; r++) {
        bool half = false;
        for (int c = 0; c < members; c++) {
            double times = v->mass.multiple[(group * members + r) * chunks + c];
            half = half || (c != r && fabs(times - 0.5) < 0.01 && ret[r * members + c] < 0);
        }
        for (int c = 0; c < members && half; c++) {
            double times = v->mass.multiple[(group * members + r) * chunks + c];
            if (isfinite(times)) ret[r * members + c] = (int)round(2 * times);
        }
    }
    return true;
}

static struct context_inference infer_mask(const struct run_config *config, const struct influence *influence, int group)
{
    const struct influence_group *f = &influence->of[group];
    const int chunks = influence->chunks;
    int64_t extra = 0, missing = 0, diagonal = 0, diagonal_missing = 0;
    const struct influence_cell *first = NULL, *part = NULL;
    bool in_parts = false;
    int rank = -1, part_rank = -1, members = layout_cp(&config->layout);
    /* Joint queries are on every member, right on one and wrong on another: the members' own say it. */
    for (int r = 0; r < (members > 1 ? members : chunks); r++) {
        for (int c = 0; c < chunks; c++) {
            const struct influence_cell *cell = &f->cells[r * chunks + c];
            extra += cell->extra;
            missing += cell->missing;
            if (r == c) diagonal += cell->extra;
            in_parts = in_parts || (cell->missing > 0 && cell->missing < cell->due) || (cell->extra > 0 && cell->due > 0);
            if (r == c) diagonal_missing += cell->missing;
            if (cell->missing && cell->missing < cell->due && !part) {
                part = cell;
                part_rank = r < members ? group * members + r : -1;
            }
            if (cell->extra && !first) {
                first = cell;
                rank = r < members ? group * members + r : -1;
            }
        }
    }
    if (extra == 0 && missing > 0 && part && members > 1 && f->missing_behind == missing)
        return infer("masked-too-much", diagonal_missing == missing ? "cp.diagonal_mask" : "cp.mask_passed", part_rank, -1, "queries do not see keys behind them, as if there were a causal mask");
    if (extra == 0 && part && f->elsewhere == 0)
        return infer("over-heads", "cp.axes", part_rank, -1, "each query sees the key of its own position alone: attention goes over the heads of a position, not over positions");
    if (extra == 0 && part && f->partly > 0)
        return infer("masked-otherwise", "cp.mask_passed", part_rank, -1, "of a shard's queries some see a key and others that may see it do not (position %lld does not see %lld): the mask is made from positions that are not those of the rows", (long long)part->query, (long long)part->key);
    if (extra == 0 && part && diagonal_missing == 0 && members > 1)
        return infer("other-rows", "cp.unpack", part_rank, -1, "some keys of a shard reach no query of other ranks (position %lld), and those of its own rank: a block that arrives is taken for fewer rows than it has", (long long)part->key);
    if (extra == 0 && part)
        return infer("part-missing", "cp.shard_tail", part_rank, -1, "some keys of a shard reach no query (position %lld) and others of it do: rows at its end are lost", (long long)part->key);
    if (extra == 0) return nothing();
    if (missing > 0 && !in_parts) return nothing(); /* whole blocks: not a matter of the mask */
    if (missing > 0 && diagonal == 0 && diagonal_missing == 0 && members > 1) {
        struct context_inference other = infer("other-block", "cp.kv_hop", rank, -1, "queries see their own block's keys as the mask lets them, and of other blocks some too many and some too few: what arrived is another block than the one it is taken for");
        other.site = context_moves(config, false);
        return other;
    }
    if (missing > 0)
        return infer("wrong-positions", "cp.layout", rank, -1, "queries see other keys than the mask lets them, some too many and some too few: the mask is made from positions that are not those of the rows");
    if (diagonal == extra && members > 1 && f->extra_behind == extra)
        return infer("leaks-within", "cp.diagonal_mask", rank, -1, "within a rank's own block queries see keys behind them: that block is not masked (position %lld sees %lld)", (long long)first->query, (long long)first->key);
    if (f->extra_behind == extra)
        return infer("leaks", "cp.mask_passed", rank, -1, "queries see keys behind them: the causal mask does not reach the blocks (position %lld sees %lld)", (long long)first->query, (long long)first->key);
    if (f->extra_window == extra)
        return infer("leaks", "cp.window_passed", rank, -1, "queries see keys outside of the window: it does not reach the blocks (position %lld sees %lld)", (long long)first->query, (long long)first->key);
    if (f->extra_documents == extra)
        return infer("leaks", "cp.documents_passed", rank, -1, "queries see keys of other documents: their borders do not reach the blocks (position %lld sees %lld)", (long long)first->query, (long long)first->key);
    if (f->extra_behind > 0 && f->extra_window > 0 && f->extra_documents == 0)
        return infer("leaks-both", "cp.mask_passed", rank, -1, "queries see keys behind them and keys outside of the window: neither reaches the blocks (position %lld sees %lld)", (long long)first->query, (long long)first->key);
    return infer("leaks", "cp.layout", rank, -1, "queries see keys that the mask hides (position %lld sees %lld)", (long long)first->query, (long long)first->key);
}

static bool mass_is_right(const struct mass *m, int ranks, int *ret_rank)
{
    for (int i = 0; i < ranks * m->chunks; i++) {
        if (m->worst[i] <= 1e-10) continue;
        *ret_rank = i / m->chunks;
        return false;
    }
    return true;
}

static struct context_inference infer_joint(const struct run_config *config, const struct mass *m, int ranks)
{
    int members = layout_cp(&config->layout);
    for (int r = 0; r < ranks && m->chunks > members; r++) {
        double gotten = m->got[r * m->chunks + members], should = m->due[r * m->chunks + members], times = m->multiple[r * m->chunks + members];
        if (should > 1e-9 && gotten < 1e-9) return infer("joint-missing", "cp.joint_step", r, -1, "the joint keys are not in the output of rank %d: they go with a step that it leaves out", r);
        if (times > 1.5) return infer("joint-doubled", "cp.joint_once", r, -1, "the joint keys weigh %.3g times what is due on rank %d: they enter at every step, not once", times, r);
    }
    return nothing();
}

static struct context_inference infer_weights(const struct run_config *config, const struct context_variations *v, int ranks, int rank)
{
    const struct mass *m = &v->mass;
    double total = m->total[rank], should = m->total_due[rank];
    (void)ranks;
    if (total == 0) return infer("zeros", "cp.accumulate", rank, -1, "the output of rank %d is 0", rank);
    bool alike = m->block_spread[rank] < 1e-6;
    if (alike && total > 1 + 1e-6)
        return infer("not-normalised", "cp.merge", rank, -1, "every block weighs the same on rank %d, and all keys together %.6g of it where %.6g is due: results are added up without being weighed", rank, total, should);
    if (alike && m->block_total[rank] > 0)
        return infer("plain-average", "cp.merge", rank, -1, "every block gets the same weight whatever its log-sum-exp: results are averaged");
    if (total < should - 1e-9 && !config->attention.sinks && fabs(m->exponent - 1) < 1e-6 && m->misfit < 1e-6)
        return infer("diluted", "cp.out_init", rank, -1, "all keys together get %.6g of the softmax on rank %d where %.6g is due, each its due share of that: something without values takes the rest, what results are merged into was not empty", total, rank, should);
    bool even = fabs(m->exponent - 1) < 1e-6 && m->misfit < 1e-6;
    if (config->attention.sinks && even && fabs(total - should) > 1e-9)
        return infer("sink", total > should ? "cp.sink" : "cp.sink_once", rank, -1, "all keys together get %.6g of the softmax on rank %d where %.6g is due: the sinks %s", total, rank, should,
                     total > should ? "are not in the denominator" : "are there more than once");
    if (fabs(total - should) > 1e-9 && fabs(total - should) < 0.02)
        return infer("rounded", "cp.accumulate", rank, -1, "all keys together get %.6g of the softmax on rank %d where %.6g is due: the running output is kept in too few bits", total, rank, should);
    if (isfinite(total) && fabs(m->exponent) < 0.05 && m->misfit < 0.05 && total <= should * 1.05)
        return infer("plain-average", "cp.merge", rank, -1, "every block gets the same weight whatever its log-sum-exp: results are averaged");
    if (isfinite(total) && fabs(m->exponent - 1 / log(2.0)) < 0.02 && m->misfit < 0.05)
        return infer("lse-base", "cp.lse", rank, -1, "blocks weigh like the due weights to the power %.4g, which is 1 / ln 2: a log-sum-exp in base 2 is taken for one in base e", m->exponent);
    bool each_whole = true;
    for (int c = 0; c < m->chunks; c++) each_whole = each_whole && (m->due[rank * m->chunks + c] < 1e-9 || fabs(m->got[rank * m->chunks + c] - 1) < 1e-6);
    if (!isfinite(total) || (fabs(total - should) > 1e-9 && !each_whole)) {
        struct context_inference altered = infer("altered", "cp.kv_hop", rank, -1, "all keys together get %.6g of the softmax on rank %d where %.6g is due: values are not what their owner has", total, rank, should);
        altered.site = context_moves(config, false);
        if (even && altered.site == context_site("cp.seq_to_head")) altered.site = context_site("cp.head_to_seq"); /* weighed right, and changed afterwards */
        return altered;
    }
    if (fabs(total - should) > 1e-9)
        return infer("not-normalised", "cp.merge", rank, -1, "all keys together get %.6g of the softmax on rank %d where %.6g is due: results are added up without being weighed", total, rank, should);
    if (v->alone > 1e-9 && !(m->misfit < 0.05))
        return infer("alone-too", "cp.softmax_scale", rank, -1, "one rank alone, with no block to merge, is off by %.3g too: it is not the merge but what a block itself computes, its scale for one", v->alone);
    if (!isfinite(m->exponent)) return infer("badly-merged", "cp.merge", rank, -1, "blocks do not weigh what they must on rank %d", rank);
    if (fabs(m->exponent - 1) > 0.02 && m->misfit < 0.01)
        return infer("lse-scaled", "cp.lse", rank, -1, "blocks weigh like the due weights to the power %.4g: their log-sum-exp is multiplied by that", m->exponent);
    if (fabs(m->exponent - 1) < 0.02 && m->misfit < 0.05)
        return infer("lse-rounded", "cp.lse", rank, -1, "blocks weigh about what they must, %.2g off in the logs: their log-sum-exp is rounded before it is used", m->misfit);
    return infer("badly-merged", "cp.merge", rank, -1, "keys of all blocks enter once, and blocks do not weigh what they must (as the due weights to the power %.4g, %.2g off)", m->exponent, m->misfit);
}

/* Where every row sees all keys at once there is no merge to blame: what was moved is other than it was. */
static struct context_inference without_merge(const struct run_config *config, struct context_inference inference)
{
    static const char *const words[] = {"plain-average", "not-normalised", "badly-merged", "lse-scaled"};
    const struct site *moves = context_moves(config, false);
    for (size_t i = 0; inference.word && moves != context_site("cp.kv_hop") && i < sizeof words / sizeof *words; i++) {
        if (strcmp(inference.word, words[i])) continue;
        inference = infer("altered", "cp.kv_hop", inference.first_rank, -1, "keys get other weights than due on rank %d, and nothing is merged here: rows or heads are not where they belong", inference.first_rank);
        inference.site = moves;
        return inference;
    }
    return inference;
}

static bool is_finite(const struct context_comparison *c, int *ret_rank)
{
    for (int r = 0; r < c->ranks; r++) {
        const struct context_error *e = context_error_of(c, r, CONTEXT_OUT);
        *ret_rank = r;
        if (e->known && !isfinite(e->rel)) return false;
    }
    return true;
}

struct context_inference context_infer(const struct run_config *config, const struct context_comparison *comparison, const struct context_variations *v,
                                       const int64_t *messages, const int32_t *documents, bool ledgers_are_right)
{
    int members = layout_cp(&config->layout), ranks = members * config->layout.dp_replicate, rank = 0;
    struct context_inference inference = nothing();
    if (comparison && !is_finite(comparison, &rank)) {
        inference = infer("not-arrived", "cp.kv_hop", rank, -1, "the output of rank %d is not finite: memory was read that nothing had arrived in", rank);
        inference.site = context_moves(config, false);
        return inference;
    }
    if (!v || !v->mass.got || v->mass.failed || !v->value_rows.of || v->value_rows.failed) return inference;
    if (v->value_rows.foreign_group > 0 && v->value_rows.foreign_group == v->value_rows.foreign) {
        inference = infer("wrong-group", "cp.kv_hop", -1, -1, "outputs depend on sequences of another replica: what moves goes round in a group that is not the context-parallel one");
        inference.site = context_moves(config, false);
        return inference;
    }
    for (int g = 0; g < v->value_rows.groups && !inference.word; g++) inference = infer_mask(config, &v->value_rows, g);
    int *gotten = memory_zalloc((size_t)(2 * members * members + 1) * sizeof *gotten), *should = gotten + members * members;
    for (int g = 0; g < config->layout.dp_replicate && !inference.word && !ledgers_are_right; g++) {
        int64_t batch = config->attention.batch;
        consumption_due(config, documents ? documents + g * batch * config->model.seq : NULL, batch, false, should);
        if (!context_inferred_times(config, v, g, gotten)) continue;
        struct consumption_matrix matrix = {members, gotten, should};
        int *room = memory_zalloc((size_t)(2 * members * members + 1) * sizeof *room);
        consumption_of_ring(config, &matrix, room);
        inference = consumption_word(&matrix, messages ? messages + g * members : NULL);
        if (matrix.size < members) inference.first_rank *= members / matrix.size;
        free(room);
        if (inference.word) inference.first_rank += g * members;
    }
    if (inference.site == context_site("cp.kv_hop") || (inference.word && inference.site == context_site("cp.rotate"))) {
        const struct site *moves = context_moves(config, false);
        if (moves != context_site("cp.kv_hop")) inference.site = moves;
    }
    free(gotten);
    if (inference.word || mass_is_right(&v->mass, ranks, &rank)) return inference;
    bool even = fabs(v->mass.exponent - 1) < 1e-6 && v->mass.misfit < 1e-6; /* all weigh as they must against each other */
    if (v->mass.total[rank] == 0) return infer_weights(config, v, ranks, rank);
    if (v->alone > 1e-9 && !even && !(v->mass.misfit < 0.05) && (config->attention.sinks || fabs(v->mass.total[rank] - v->mass.total_due[rank]) < 1e-9))
        return infer("alone-too", "cp.softmax_scale", rank, -1, "one rank alone, with no block to merge, is off by %.3g too: it is not the merge but what a block itself computes, its scale for one", v->alone);
    inference = infer_joint(config, &v->mass, ranks);
    return inference.word ? inference : without_merge(config, infer_weights(config, v, ranks, rank));
}

struct context_inference context_infer_gradients(const struct run_config *config, const struct context_comparison *c, const struct context_variations *v)
{
    if (context_comparison_any(c, CONTEXT_OUT) || context_comparison_any(c, CONTEXT_LSE)) return nothing();
    bool dq = context_comparison_any(c, CONTEXT_DQ), dk = context_comparison_any(c, CONTEXT_DK), dv = context_comparison_any(c, CONTEXT_DV);
    int rank = -1, passes = 0, wrong = 0, next = 0, mirrored = 0;
    for (int r = 0; r < c->ranks && rank < 0; r++) {
        for (int t = CONTEXT_DQ; t <= CONTEXT_DV; t++) {
            const struct context_error *e = context_error_of(c, r, (enum context_tensor)t);
            if (e->known && (e->wrong || e->imprecise)) rank = r;
        }
    }
    for (int i = 0; v && i < v->gradient_count; i++) {
        const struct gradient_pass *p = &v->gradient[i];
        passes += p->wrong_ranks > 0;
        wrong += p->wrong_ranks;
        next += p->next;
        mirrored += p->mirrored;
    }
    bool ring = context_moves(config, true) == context_site("cp.dkv_hop");
    if (ring && !dq && (dk || dv) && wrong > 0 && next == wrong)
        return infer("not-home", "cp.dkv_home", rank, -1, "dq is right, and each rank ends with the gradient of its next neighbour's keys and values: they do not make the last hop home");
    if (ring && !dq && (dk || dv) && wrong > 0 && mirrored == wrong)
        return infer("wrong-way", "cp.dkv_direction", rank, -1,
                     "dq is right, and what a token sends to the keys s places before it ends on the rank s places behind it: gradients of keys and values go round the other way than their blocks");
    if (!dq && dk && dv && passes > 0) {
        struct context_inference moved = infer("dk-dv", "cp.dkv_hop", rank, -1, "dq is right, dk and dv are wrong: gradients of keys and values are lost, doubled or mixed on their way");
        moved.site = context_moves(config, true);
        return moved;
    }
    if (dq && dk && !dv) return infer("dq-dk", "cp.delta", rank, -1, "dv is right, dq and dk are wrong: the scores' gradient is, which dv does not depend on (the row's delta, or the scale)");
    if (dq && !dk && !dv) return infer("dq", "cp.dq_step", rank, -1, "dq is wrong, dk and dv are right: a block's part of dq is not added");
    if (dq && dk && dv) return infer("all", "cp.backward_stats", rank, -1, "dq, dk and dv are wrong, out and lse right: probabilities are made again from other statistics than the whole rows'");
    if (dk && !dv) return infer("dk", "cp.dkv_hop", rank, -1, "dk is wrong, dq and dv are right: dk alone goes astray on its way");
    if (dv && !dk) return infer("dv", "cp.dkv_hop", rank, -1, "dv is wrong, dq and dk are right: dv alone goes astray on its way");
    return nothing();
}

void context_messages(const struct record *record, int64_t *ret)
{
    for (int r = 0; r < record->ranks; r++) {
        const struct communicator *c = record->rank[r].communicator;
        ret[r] = c ? 0 : -1;
        for (int i = 0; c && i < communicator_traffic_count(c); i++) {
            const struct traffic *t = communicator_traffic(c, i);
            if (!strncmp(t->purpose, "plugin.", 7)) { /* what a plug-in sends may be blocks or anything: it says neither */
                ret[r] = -1;
                break;
            }
            if (!strcmp(t->purpose, "cp.kv_hop") || !strcmp(t->purpose, "cp.kv_gather") || !strcmp(t->purpose, "cp.seq_to_head")) ret[r] += (int64_t)t->messages;
        }
    }
}
