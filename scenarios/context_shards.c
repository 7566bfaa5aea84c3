/* context_shards: the positions whose rows each rank held, as it believed them.
 *
 *   shard-cover    over the members of a group they are a bijection onto the positions of each sequence: no gap, no overlap;
 *                  joint rows are on every member
 *   row-identity   they are those of the layout, ascending: a gather by them puts every row where it was
 * Limits: exact. Site: cp.layout. */
#include <stdio.h>
#include <stdlib.h>

#include "scenarios/context_checks.h"
#include "scenarios/facts.h"

static void find_place(const struct evidence *e, struct check_output *output, int rank, const char *pattern, const char *text)
{
    struct finding finding = finding_new(context_site("cp.layout"), context_place(e, rank));
    finding_pattern(&finding, pattern);
    finding_say(&finding, "%s", text);
    check_find(output, &finding);
}

static void cover(const struct evidence *e, struct check_output *output, int group, int64_t b)
{
    int members = layout_cp(&e->config->layout);
    int64_t seq = e->config->model.seq, sequence = group * (int64_t)e->config->attention.batch + b;
    int *count = memory_zalloc((size_t)(seq + 1) * sizeof *count), last = -1, wrong = 0;
    char text[200];
    for (int m = 0; m < members; m++) {
        const struct attention_part *p = e->parallel->rank[group * members + m].attention;
        for (int64_t i = 0; i < p->rows; i++) {
            int32_t position = p->positions[b * p->rows + i];
            if (position >= 0 && position < seq) count[position]++;
            else last = group * members + m;
        }
    }
    check_value(output, last >= 0, 0);
    if (last >= 0) find_place(e, output, last, "gap", "a position lies outside of the sequence");
    for (int64_t p = 0; p < seq; p++) {
        int due = context_is_joint(e->config, p) ? members : 1;
        if (count[p] == due) continue;
        check_value(output, 1, 0);
        if (wrong++ > 0) continue;
        snprintf(text, sizeof text, "position %lld of sequence %lld is on %d ranks where %d is due", (long long)p, (long long)sequence, count[p], due);
        find_place(e, output, -1, count[p] < due ? "gap" : "overlap", text);
    }
    free(count);
}

void context_shard_cover(const struct evidence *e, struct check_output *output)
{
    check_value(output, 0, 0);
    if (!facts_finished(e->parallel)) {
        check_skip(output, "the run did not finish");
        return;
    }
    for (int g = 0; g < e->config->layout.dp_replicate; g++) {
        for (int64_t b = 0; b < e->config->attention.batch; b++) cover(e, output, g, b);
    }
}

void context_row_identity(const struct evidence *e, struct check_output *output)
{
    int members = layout_cp(&e->config->layout);
    int64_t seq = e->config->model.seq;
    check_value(output, 0, 0);
    if (!facts_finished(e->parallel)) {
        check_skip(output, "the run did not finish");
        return;
    }
    int *holder = memory_alloc((size_t)(seq + 1) * sizeof *holder);
    for (int r = 0; r < e->parallel->ranks; r++) {
        const struct attention_part *p = e->parallel->rank[r].attention;
        bool good = true;
        for (int64_t b = 0; b < p->batch && good; b++) {
            const int32_t *documents = e->context->inputs->documents;
            context_holders(e->config, documents ? documents + (p->first_sequence + b) * seq : NULL, holder);
            int64_t at = 0;
            for (int64_t position = 0; position < seq && good; position++) {
                if (holder[position] >= 0 && holder[position] != r % members) continue;
                good = at < p->rows && p->positions[b * p->rows + at] == position;
                if (!good) {
                    char text[200];
                    snprintf(text, sizeof text, "row %lld of rank %d in sequence %lld is taken for position %d where %lld is due", (long long)at, r, (long long)(p->first_sequence + b),
                             at < p->rows ? p->positions[b * p->rows + at] : -1, (long long)position);
                    check_value(output, 1, 0);
                    find_place(e, output, r, "wrong-positions", text);
                }
                at++;
            }
        }
    }
    free(holder);
}
