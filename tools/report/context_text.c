/* context_text: an attention over context-parallel ranks in three parts: [1] which positions each rank holds, [2] how far its
 * numbers are from one rank's, [3] whose keys and values are in whose output. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scenarios/context_inference.h"
#include "scenarios/spelling.h"
#include "tools/report/describe.h"
#include "tools/report/number.h"
#include "tools/report/report.h"
#include "tools/report/table.h"

enum { MATRIX_MAX = 32, RANKS_SHOWN = 16 };

/* ---- who holds what ---- */

static void print_shards(const struct report *report, const struct terminal *t)
{
    static const char *const titles[] = {"rank", "rows", "positions"};
    const struct record *record = report->result->parallel;
    const struct run_config *config = &record->config;
    int members = layout_cp(&config->layout), shown = report->verbose ? record->ranks : members < RANKS_SHOWN ? members : RANKS_SHOWN;
    bool by_documents = !strcmp(config->layout.context.layout, "document") && config->attention.batch > 1;
    terminal_print(t, STYLE_BOLD, "[1] which positions each rank holds");
    terminal_print(t, STYLE_DIM, "  (%s%s%s)\n", config->layout.context.layout, by_documents ? "; of the first sequence" : "", config->layout.dp_replicate > 1 && !report->verbose ? "; every group alike" : "");
    struct table *table = table_new(3, titles, "rrl");
    for (int r = 0; r < shown; r++) {
        const struct attention_part *p = record->rank[r].attention;
        char text[RANGES_TEXT];
        table_add(table, STYLE_PLAIN, "%d", r);
        table_add(table, STYLE_PLAIN, "%lld", (long long)p->rows);
        table_add(table, STYLE_PLAIN, "%s", context_ranges(p->positions, p->rows, text));
    }
    if (shown < members) table_gap(table, "... --verbose shows the others ...");
    table_print(table, t, 2);
    table_free(table);
    fputc('\n', t->file);
}

/* ---- numbers ---- */

static enum style style_of(const struct context_error *e)
{
    return e->wrong ? STYLE_BAD : e->imprecise ? STYLE_WARN : STYLE_PLAIN;
}

static void add_error(struct table *table, const struct context_error *e)
{
    char number[NUMBER_TEXT];
    if (!e->known) table_add(table, STYLE_DIM, "-");
    else table_add(table, style_of(e), "%s", number_error(e->rel, number));
}

static bool rank_is_right(const struct context_comparison *c, int rank)
{
    for (int t = 0; t < CONTEXT_SINKS; t++) {
        const struct context_error *e = context_error_of(c, rank, (enum context_tensor)t);
        if (e->known && (e->wrong || e->imprecise)) return false;
    }
    return true;
}

static void print_numbers(const struct report *report, const struct terminal *t)
{
    static const char *const titles[] = {"rank", "out: max abs.", "rel. err.", "worst head", "limit", "lse", "dq", "dk", "dv", ""};
    const struct context_comparison *c = report->result->context.comparison;
    struct table *table = table_new(10, titles, "rrrrrrrrrl");
    int hidden = 0;
    terminal_print(t, STYLE_BOLD, "[2] against one rank in fp64");
    terminal_print(t, STYLE_DIM, "  relative Frobenius errors of each rank's rows\n");
    for (int r = 0; r < c->ranks; r++) {
        const struct context_error *out = context_error_of(c, r, CONTEXT_OUT);
        bool right = rank_is_right(c, r);
        char number[NUMBER_TEXT];
        if (!report->verbose && r >= RANKS_SHOWN && right) {
            hidden++;
            continue;
        }
        table_add(table, STYLE_PLAIN, "%d", r);
        table_add(table, style_of(out), "%s", out->known ? number_error(out->max_abs, number) : "-");
        add_error(table, out);
        if (out->known) table_add(table, STYLE_PLAIN, "%d: %s", out->worst_head, number_error(out->worst_head_rel, number));
        else table_add(table, STYLE_DIM, "-");
        table_add(table, STYLE_PLAIN, "%s", out->known ? number_error(out->limit, number) : "-");
        for (int k = CONTEXT_LSE; k <= CONTEXT_DV; k++) add_error(table, context_error_of(c, r, (enum context_tensor)k));
        table_add(table, right ? STYLE_GOOD : STYLE_BAD, "%s", right ? "OK" : "FAIL");
    }
    if (hidden) table_gap(table, "... the others are OK; --verbose shows them ...");
    table_print(table, t, 2);
    table_free(table);
    double single = 0;
    char number[NUMBER_TEXT], line[256];
    for (int r = 0; r < c->ranks; r++) {
        const struct context_error *e = context_error_of(c, r, CONTEXT_OUT);
        if (e->known && e->single > single) single = e->single;
    }
    snprintf(line, sizeof line, "the same rows on one rank in the scenario's own formats: out off by at most %s", number_error(single, number));
    terminal_paragraph(t, 2, "", 0, STYLE_DIM, line);
    fputc('\n', t->file);
}

/* Every tensor of every rank. */
static void print_all_numbers(const struct report *report, const struct terminal *t)
{
    static const char *const titles[] = {"rank", "tensor", "max abs.", "rel. err.", "worst head", "limit", "one rank", "worst row", ""};
    const struct context_comparison *c = report->result->context.comparison;
    struct table *table = table_new(9, titles, "rlrrrrrrl");
    for (int i = 0; i < c->ranks + c->groups + 1; i++) {
        for (int k = 0; k < CONTEXT_TENSORS; k++) {
            const struct context_error *e = &c->items[i * CONTEXT_TENSORS + k];
            char a[NUMBER_TEXT];
            if (!e->known) continue;
            if (i < c->ranks) table_add(table, STYLE_PLAIN, "%d", i);
            else table_add(table, STYLE_PLAIN, "%s", i < c->ranks + c->groups ? "joint" : "sum");
            table_add(table, STYLE_PLAIN, "%s", context_tensor_names[k]);
            table_add(table, STYLE_PLAIN, "%s", number_error(e->max_abs, a));
            table_add(table, style_of(e), "%s", number_error(e->rel, a));
            if (e->worst_head >= 0) table_add(table, STYLE_PLAIN, "%d: %s", e->worst_head, number_error(e->worst_head_rel, a));
            else table_add(table, STYLE_PLAIN, "-");
            table_add(table, STYLE_PLAIN, "%s", number_error(e->limit, a));
            table_add(table, STYLE_PLAIN, "%s", isnan(e->single) ? "-" : number_error(e->single, a));
            if (e->worst_position >= 0) table_add(table, STYLE_PLAIN, "%lld: %s", (long long)e->worst_position, number_error(e->worst_row_rel, a));
            else table_add(table, STYLE_PLAIN, "-");
            table_add(table, e->wrong || e->imprecise ? STYLE_BAD : STYLE_GOOD, "%s", e->wrong ? "FAIL" : e->imprecise ? "16 bits" : "OK");
        }
    }
    table_print(table, t, 2);
    table_free(table);
    fputc('\n', t->file);
}

/* ---- who consumed what ---- */

bool context_consumed(const struct result *result, int group, bool backward, int *ret_got, int *ret_due, const char **ret_source)
{
    const struct run_config *config = &result->scenario->config;
    int members = layout_cp(&config->layout);
    int64_t batch = config->attention.batch;
    const int32_t *documents = result->context.inputs->documents;
    bool facts = true;
    for (int m = 0; m < members; m++) {
        const struct rank_record *rank = &result->parallel->rank[group * members + m];
        const struct consumption_fact *fact = NULL;
        for (int i = 0; i < rank->consumptions.count && !fact; i++) fact = rank->consumptions.items[i].backward == backward ? &rank->consumptions.items[i] : NULL;
        facts = facts && fact;
        for (int c = 0; fact && c < members; c++) ret_got[m * members + c] = fact->times[c];
    }
    consumption_due(config, documents ? documents + group * batch * config->model.seq : NULL, batch, facts /* ledgers have joint rows too */, ret_due);
    if (facts) consumption_forgive(config, ret_got, ret_due, members);
    *ret_source = facts ? "by the ledgers that move with the numbers" : "by outputs alone";
    return facts || (!backward && context_inferred_times(config, result->context.variations, group, ret_got));
}

static void print_matrix(const struct terminal *t, const int *got, const int *due, int members, int first /* rank */)
{
    char head[MATRIX_MAX + 1][16], align[MATRIX_MAX + 2];
    const char *titles[MATRIX_MAX + 1];
    snprintf(head[0], sizeof head[0], "rank");
    for (int c = 0; c <= members; c++) {
        if (c > 0) snprintf(head[c], sizeof head[c], "%d", first + c - 1);
        titles[c] = head[c];
        align[c] = 'r';
    }
    align[members + 1] = '\0';
    struct table *table = table_new(members + 1, titles, align);
    for (int r = 0; r < members; r++) {
        table_add(table, STYLE_PLAIN, "%d", first + r);
        for (int c = 0; c < members; c++) {
            int is = got[r * members + c], should = due[r * members + c];
            if (is < 0) table_add(table, STYLE_DIM, "?");
            else if (is == should) table_add(table, should ? STYLE_PLAIN : STYLE_DIM, "%d", is);
            else table_add(table, STYLE_BAD, "%d (due %d)", is, should);
        }
    }
    table_print(table, t, 2);
    table_free(table);
}

static bool equal_where_known(const int *a, const int *b, int count)
{
    for (int i = 0; i < count; i++) {
        if (a[i] >= 0 && a[i] != b[i]) return false;
    }
    return true;
}

static bool any_unknown(const int *got, int count)
{
    for (int i = 0; i < count; i++) {
        if (got[i] < 0) return true;
    }
    return false;
}

/* Of each group that is not as due; where all are, the first speaks for them. */
static void print_groups(const struct report *report, const struct terminal *t, bool backward, int *got, int *due)
{
    const struct result *result = report->result;
    int members = layout_cp(&result->scenario->config.layout), groups = result->scenario->config.layout.dp_replicate, cells = members * members;
    bool unknown = false;
    const char *source;
    for (int g = 0; g < groups; g++) {
        if (!context_consumed(result, g, backward, got, due, &source)) continue;
        bool right = equal_where_known(got, due, cells);
        if (right && (g > 0 || (backward && !report->verbose))) continue;
        if (backward) fprintf(t->file, "  in the gradient of queries%s", g > 0 ? "" : ":\n");
        if (g > 0) fprintf(t->file, "%sgroup %d (ranks %d to %d):\n", backward ? " of " : "  ", g, g * members, (g + 1) * members - 1);
        if (members <= MATRIX_MAX) print_matrix(t, got, due, members, g * members);
        else terminal_paragraph(t, 2, "", 0, STYLE_PLAIN, right ? "as due (too many ranks for a matrix)" : "not as due (too many ranks for a matrix)");
        unknown = unknown || any_unknown(got, cells);
    }
    if (unknown) terminal_print(t, STYLE_DIM, "  ?: some of it is there, how often outputs do not tell\n");
}

static void print_consumed(const struct report *report, const struct terminal *t)
{
    const struct result *result = report->result;
    int members = layout_cp(&result->scenario->config.layout);
    int *got = memory_zalloc((size_t)(members * members + 1) * sizeof *got), *due = memory_zalloc((size_t)(members * members + 1) * sizeof *due);
    const char *source = "";
    terminal_print(t, STYLE_BOLD, "[3] whose keys and values are in whose output");
    bool known = false;
    for (int g = 0; g < result->scenario->config.layout.dp_replicate && !known; g++) known = context_consumed(result, g, false, got, due, &source);
    terminal_print(t, STYLE_DIM, "  times each, %s\n", known ? source : "not known: no ledger was kept; --checks deep finds out from outputs alone");
    print_groups(report, t, false, got, due);
    print_groups(report, t, true, got, due);
    free(got);
    free(due);
    fputc('\n', t->file);
}

/* ---- what it looks like, and who would have missed it ---- */

static void print_shape(const struct result *result, const struct terminal *t)
{
    const struct context_comparison *c = result->context.comparison;
    char line[400];
    for (int k = 0; k < CONTEXT_SINKS; k++) {
        if (!context_comparison_any(c, (enum context_tensor)k)) continue;
        struct context_shape_of_errors shape = context_error_shape(c, (enum context_tensor)k);
        /* A place that is named says more than the pattern, and may say otherwise. */
        bool named = result->has_diagnosis && result->diagnosis.site[0];
        snprintf(line, sizeof line, "of %s over the ranks: %s%s%s", context_tensor_names[k], shape.word, named ? "" : ". ", named ? "" : shape.hint);
        terminal_paragraph(t, 2, "errors", 8, STYLE_WARN, line);
        return;
    }
}

static void print_tolerances(const struct result *result, const struct terminal *t)
{
    struct tolerance_result list[TOLERANCES_MAX];
    int count = context_tolerances(result, list), passing = 0;
    char line[1024];
    struct phrase phrase = {line, sizeof line, 0};
    if (!context_comparison_fails(result->context.comparison)) return;
    phrase_add(&phrase, "public tests whose tolerance would have passed this run: ");
    for (int i = 0; i < count; i++) {
        char value[NUMBER_TEXT], limit[NUMBER_TEXT];
        if (!list[i].passes) continue;
        phrase_add(&phrase, "%s%s (%s: %s of %s)", passing++ ? "; " : "", list[i].test, list[i].rule, number_error(fmax(list[i].value, 0), value), number_error(list[i].limit, limit));
    }
    if (!passing) phrase_add(&phrase, "none");
    terminal_paragraph(t, 2, "missed", 8, STYLE_WARN, line);
}

void report_context_text(const struct report *report, const struct terminal *t)
{
    print_shards(report, t);
    if (report->verbose) {
        terminal_print(t, STYLE_BOLD, "[2] against one rank in fp64\n");
        print_all_numbers(report, t);
    } else {
        print_numbers(report, t);
    }
    print_consumed(report, t);
    if (!context_comparison_fails(report->result->context.comparison)) return;
    print_shape(report->result, t);
    print_tolerances(report->result, t);
    fputc('\n', t->file);
}
