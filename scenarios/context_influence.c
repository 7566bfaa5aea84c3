/* context_influence: which queries a key reaches, exactly.
 *
 * A value row, then a key row, is made NaN: all queries that may see this key change, by bits, and no other. Of a short sequence
 * every key, of a long one some of each chunk. Limit: exact. Sites by context_infer, from the two sets and the masses. */
#include <stdio.h>

#include "scenarios/context_checks.h"
#include "scenarios/facts.h"

static void look_at_group(const struct evidence *e, struct check_output *output, const struct influence *f, int group, bool keys, const struct context_inference *inference)
{
    int members = layout_cp(&e->config->layout), first = group * members;
    for (int r = 0; r < f->chunks; r++) {
        for (int c = 0; c < f->chunks; c++) {
            const struct influence_cell *cell = &f->of[group].cells[r * f->chunks + c];
            check_value(output, (double)(cell->missing + cell->extra), 0);
            if (cell->missing + cell->extra == 0) continue;
            struct finding finding = finding_new(inference->site, context_place(e, r < members ? first + r : -1));
            char from[32] = "the joint rows", to[32] = "the joint rows";
            if (c < members) snprintf(from, sizeof from, "rank %d", first + c);
            if (r < members) snprintf(to, sizeof to, "rank %d", first + r);
            finding.expected = (double)cell->due;
            finding.got = (double)cell->changed;
            finding_pattern(&finding, inference->word ? inference->word : cell->extra ? "leaks" : "not-seen");
            finding_say(&finding, "NaN in %s rows of %s reaches %lld of %lld queries of %s that may see them and %lld that may not (first: position %lld of sequence %lld %s query %lld)%s%s",
                        keys ? "key" : "value", from, (long long)(cell->due - cell->missing), (long long)cell->due, to, (long long)cell->extra, (long long)cell->key, (long long)cell->sequence,
                        cell->extra ? "reaches" : "does not reach", (long long)cell->query, inference->word ? ": " : "", inference->text);
            check_find(output, &finding);
        }
    }
}

static void look(const struct evidence *e, struct check_output *output, const struct influence *f, bool keys, const struct context_inference *inference)
{
    for (int g = 0; g < f->groups; g++) look_at_group(e, output, f, g, keys, inference);
    check_value(output, (double)f->foreign, 0);
    if (f->foreign == 0) return;
    bool group = f->foreign_group == f->foreign;
    struct finding finding = finding_new(group ? context_moves(e->config, false) : context_site("cp.axes"), context_place(e, -1));
    finding_pattern(&finding, group ? "wrong-group" : "leaks");
    finding_say(&finding, "NaN in a %s row of one sequence changes %lld rows of others, the first in sequence %lld", keys ? "key" : "value", (long long)f->foreign, (long long)f->foreign_sequence);
    check_find(output, &finding);
}

void context_influence(const struct evidence *e, struct check_output *output)
{
    const struct context_variations *v = e->context->variations;
    if (!v || !v->value_rows.of) {
        check_skip(output, "nothing differs; --checks deep makes keys and values NaN all the same");
        return;
    }
    if (v->value_rows.failed || v->key_rows.failed) {
        check_skip(output, "a run with a NaN in it did not come to its end");
        return;
    }
    check_value(output, 0, 0);
    struct context_inference inference = context_infer_of(e);
    look(e, output, &v->value_rows, false, &inference);
    look(e, output, &v->key_rows, true, &inference);
}
