/* context_vary_influence: NaN in a row of values or keys, and who changes. */
#include "scenarios/context_vary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { EXHAUSTIVE_KEYS = 32, KEYS_A_CHUNK = 3 };

static void note_pair(struct influence_cell *cell, int64_t sequence, int64_t query, int64_t key, bool due, bool changed)
{
    cell->due += due;
    cell->changed += changed;
    if (due == changed) return;
    if (cell->missing + cell->extra == 0) {
        cell->query = query;
        cell->key = key;
        cell->sequence = sequence;
    }
    cell->missing += due;
    cell->extra += changed;
}

static void note_extra(const struct vary *w, struct influence_group *f, int64_t sequence, int64_t query, int64_t key)
{
    const struct model_config *m = &w->config.model;
    const int32_t *documents = vary_documents(w->inputs, sequence);
    int64_t apart = query > key ? query - key : key - query;
    f->extra_behind += m->causal && key > query;
    f->extra_window += m->window > 0 && apart >= m->window;
    f->extra_documents += documents && documents[query] != documents[key];
}

static void compare_influence(const struct vary *w, struct influence *f, const struct record *base, const struct record *record, int64_t sequence, int64_t key)
{
    size_t width = (size_t)(w->inputs->heads * w->inputs->head_dim);
    int from = vary_chunk(w, sequence, key);
    struct influence_group *group = &f->of[sequence / w->config.attention.batch];
    int64_t *seen = memory_zalloc((size_t)(2 * f->chunks) * sizeof *seen), *unseen = seen + f->chunks; /* by queries of each chunk that may see it */
    for (int r = 0; r < record->ranks; r++) {
        const struct attention_part *before = base->rank[r].attention, *after = record->rank[r].attention;
        for (int64_t i = 0; i < after->batch * after->rows; i++) {
            bool changed = !vary_same_bits(before->out + (size_t)i * width, after->out + (size_t)i * width, width);
            int64_t here = after->first_sequence + i / after->rows, query = after->positions[i];
            if (here != sequence) {
                f->foreign_group += changed && here / after->batch != sequence / after->batch;
                if (changed && f->foreign++ == 0) f->foreign_sequence = here;
                continue;
            }
            bool due = attention_visible(&w->config, vary_documents(w->inputs, sequence), query, key);
            int to = vary_chunk(w, sequence, query);
            bool counts = to < w->members || w->members == 1; /* joint queries are on every member */
            group->elsewhere += counts && changed && query != key;
            seen[to] += due && changed;
            unseen[to] += due && !changed;
            group->missing_behind += counts && due && !changed && key > query;
            note_pair(&group->cells[to * f->chunks + from], sequence, query, key, due, changed);
            if (changed && !due && counts) note_extra(w, group, sequence, query, key);
        }
    }
    for (int c = 0; c < (w->members > 1 ? w->members : f->chunks); c++) group->partly += seen[c] > 0 && unseen[c] > 0;
    free(seen);
}

static void vary_row(struct vary *w, struct influence *f, const struct record *base, bool keys, int64_t sequence, int64_t key)
{
    struct attention_inputs_data changed = *w->inputs; /* its arrays are put back below */
    int64_t width = w->inputs->kv_heads * w->inputs->head_dim;
    double *row = (keys ? changed.k : changed.v) + (sequence * w->inputs->seq + key) * width;
    double *was = memory_alloc((size_t)(width + 1) * sizeof *was);
    memcpy(was, row, (size_t)width * sizeof *was);
    for (int64_t j = 0; j < width; j++) row[j] = NAN;
    struct run_config config = w->config;
    config.attention.backward = false;
    struct record *record = vary_run(w, &config, &changed);
    if (vary_is_whole(record)) compare_influence(w, f, base, record, sequence, key);
    else f->failed = true;
    record_free(record);
    memcpy(row, was, (size_t)width * sizeof *was);
    free(was);
    f->keys++;
}

/* In each group: all keys of a short sequence; of a long one the first, one in the middle and the last of each chunk. */
static void vary_group(struct vary *w, struct influence *f, const struct record *base, bool keys, int group)
{
    const struct attention_inputs_data *in = w->inputs;
    int64_t batch = w->config.attention.batch, from = group * batch;
    for (int64_t key = 0; f->exhaustive && key < in->seq && !w->stopped; key++) vary_row(w, f, base, keys, from + key % batch, key);
    for (int chunk = 0; !f->exhaustive && chunk < w->chunks; chunk++) {
        int64_t sequence = from + chunk % batch, count = 0, at = 0;
        for (int64_t key = 0; key < in->seq; key++) count += vary_chunk(w, sequence, key) == chunk;
        int64_t taken[KEYS_A_CHUNK] = {0, count / 2, count - 1};
        for (int64_t key = 0; key < in->seq && !w->stopped; key++) {
            if (vary_chunk(w, sequence, key) != chunk) continue;
            bool take = false;
            for (int i = 0; i < KEYS_A_CHUNK; i++) take = take || at == taken[i];
            if (take) vary_row(w, f, base, keys, sequence, key);
            at++;
        }
    }
}

void vary_influence(struct vary *w, struct influence *f, const struct record *base, bool keys)
{
    f->chunks = w->chunks;
    f->groups = w->groups;
    f->of = arena_zalloc(w->v->arena, (size_t)w->groups * sizeof *f->of);
    for (int g = 0; g < w->groups; g++) f->of[g].cells = arena_zalloc(w->v->arena, (size_t)(w->chunks * w->chunks) * sizeof *f->of[g].cells);
    f->exhaustive = w->inputs->seq <= EXHAUSTIVE_KEYS;
    f->failed = !vary_is_whole(base);
    for (int g = 0; g < w->groups && !f->failed && !w->stopped; g++) vary_group(w, f, base, keys, g);
}
