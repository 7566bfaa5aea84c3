/* explain_loss: the loss ledger to be read: every factor of every micro-batch in the order in which it is
 * applied, and what other ways of averaging would have made of the same numbers. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "scenarios/facts.h"
#include "scenarios/spelling.h"
#include "tools/report/convention_ledger.h"
#include "tools/report/describe.h"
#include "tools/report/loss_ledger.h"
#include "tools/report/number.h"
#include "tools/report/table.h"

enum { SENTENCES_MAX = 4, SYMBOL_IN_CELL = 5, LINE = 1024 };

/* "1/412", a wrong one "! 1/660 (N_all)"; longer symbols are told once, below the table. */
static void add_factor(struct table *table, const struct loss_factor_entry *entry, const char *before)
{
    char number[NUMBER_TEXT];
    number_factor(entry->value, number);
    if (!entry->wrong) table_add(table, STYLE_PLAIN, "%s%s", before, number);
    else if (entry->symbol[0] && strlen(entry->symbol) <= SYMBOL_IN_CELL)
        table_add(table, STYLE_BAD, "! %s%s (%s)", before, number, entry->symbol);
    else table_add(table, STYLE_BAD, "! %s%s", before, number);
}

static void add_measured(struct table *table, const struct loss_row *row)
{
    char low[NUMBER_TEXT], high[NUMBER_TEXT];
    if (isnan(row->measured_min)) {
        table_add(table, STYLE_DIM, "-");
        return;
    }
    number_factor(row->measured_min, low);
    number_factor(row->measured_max, high);
    if (!row->measured_wrong) table_add(table, STYLE_PLAIN, "%s", low);
    else if (!strcmp(low, high)) table_add(table, STYLE_BAD, "! %s", low);
    else table_add(table, STYLE_BAD, "! %s to %s", low, high);
}

static void add_row(struct table *table, const struct loss_row *row, bool after)
{
    char number[NUMBER_TEXT];
    bool off = row->ratio_symbol[0] || !(fabs(row->ratio - 1) <= 1e-12);
    table_add(table, STYLE_PLAIN, "%d", row->data_rank);
    table_add(table, STYLE_PLAIN, "%d", row->microbatch);
    table_add(table, row->weighted != row->valid ? STYLE_BAD : STYLE_PLAIN, "%s", number_count(row->valid, number));
    table_add(table, STYLE_DIM, "%s", number_count(row->positions, number));
    table_add(table, STYLE_PLAIN, "%s", number_value(row->sum, number));
    table_add(table, STYLE_PLAIN, "%s", number_value(row->mean, number));
    add_factor(table, &row->factor[LOSS_DENOMINATOR], "1/");
    add_factor(table, &row->factor[LOSS_SCALE], "x ");
    add_factor(table, &row->factor[LOSS_COMPENSATION], "x ");
    add_factor(table, &row->factor[LOSS_DIVISOR], "/ ");
    if (after) add_factor(table, &row->factor[LOSS_GRAD_SCALE], "x ");
    table_add(table, off ? STYLE_BAD : STYLE_PLAIN, "= %s", number_factor(row->weight, number));
    add_measured(table, row);
    number_factor(row->ratio, number);
    if (!off) table_add(table, STYLE_GOOD, "1");
    else if (row->ratio_symbol[0] && strlen(row->ratio_symbol) <= SYMBOL_IN_CELL)
        table_add(table, STYLE_BAD, "! %s (%s)", number, row->ratio_symbol);
    else table_add(table, STYLE_BAD, "! %s", number);
}

static void print_rows(const struct loss_step *s, const struct terminal *t)
{
    static const char *const titles[] = {"d", "m", "n", "of", "sum S", "S/n", "1/denominator", "loss.scale", "A",
                                         "grad_divisor", "weight", "measured", "got/due"},
                      *const titles_after[] = {"d", "m", "n", "of", "sum S", "S/n", "1/denominator", "loss.scale", "A",
                                               "grad_divisor", "grad_scale", "weight", "measured", "got/due"};
    char number[NUMBER_TEXT];
    bool after = false; /* a column for what comes after the reduction, where there is anything */
    for (int i = 0; i < s->rows_count; i++) after = after || s->rows[i].factor[LOSS_GRAD_SCALE].value != 1 || s->rows[i].factor[LOSS_GRAD_SCALE].due != 1;
    struct table *table = after ? table_new(14, titles_after, "rrrrrrrrrrrrrr") : table_new(13, titles, "rrrrrrrrrrrrr");
    int64_t valid = 0;
    for (int i = 0; i < s->rows_count; i++) {
        add_row(table, &s->rows[i], after);
        valid += s->rows[i].valid;
    }
    table_add(table, STYLE_BOLD, "all");
    table_add(table, STYLE_BOLD, " ");
    table_add(table, valid == s->valid ? STYLE_BOLD : STYLE_BAD, "%s", number_count(valid, number));
    table_add(table, STYLE_DIM, "%s", number_count(s->positions, number));
    table_add(table, STYLE_BOLD, "%s", number_value(s->sum, number));
    table_add(table, STYLE_BOLD, "%s", number_value(s->token_mean, number));
    for (int i = 0; i < 5 + after; i++) table_add(table, STYLE_PLAIN, " ");
    table_add(table, STYLE_DIM, "sum n*w");
    bool as_due = fabs(s->weight_sum - s->weight_sum_due) <= 1e-9 * fabs(s->weight_sum_due);
    table_add(table, as_due ? STYLE_GOOD : STYLE_BAD, "%s",
              number_factor(s->weight_sum, number));
    table_print(table, t, 2);
    table_free(table);
}

/* Names each factor that is wrong once, with the span of its values. */
static int say_factors(const struct loss_step *s, const struct terminal *t)
{
    int said = 0;
    for (int kind = 0; kind < LOSS_FACTOR_KINDS; kind++) {
        const struct loss_factor_entry *low = NULL, *high = NULL;
        int rows = 0;
        for (int i = 0; i < s->rows_count; i++) {
            const struct loss_factor_entry *entry = &s->rows[i].factor[kind];
            if (!entry->wrong) continue;
            rows++;
            if (!low || entry->value < low->value) low = entry;
            if (!high || entry->value > high->value) high = entry;
        }
        if (!rows) continue;
        char line[LINE], a[NUMBER_TEXT], b[NUMBER_TEXT], due[NUMBER_TEXT];
        number_factor(low->value, a);
        number_factor(high->value, b);
        int used = snprintf(line, sizeof line, "%s is ", loss_factor_names[kind]);
        if (low->symbol[0]) used += snprintf(line + used, sizeof line - (size_t)used, "%s = ", low->symbol);
        used += snprintf(line + used, sizeof line - (size_t)used, strcmp(a, b) ? "%s to %s" : "%s", a, b);
        snprintf(line + used, sizeof line - (size_t)used, " in %d of %d micro-batches where %s is due", rows,
                 s->rows_count, number_factor(low->due, due));
        terminal_paragraph(t, 2, "WRONG", 7, STYLE_BAD, line);
        said++;
    }
    return said;
}

/* Where a row's weight is farthest from what its factors give. */
struct farthest { int unit, rank; double weight; };
static struct farthest farthest_of(const struct loss_row *row)
{
    bool low = !(fabs(row->measured_max - row->weight) > fabs(row->measured_min - row->weight));
    return low ? (struct farthest){row->unit_min, row->rank_min, row->measured_min}
               : (struct farthest){row->unit_max, row->rank_max, row->measured_max};
}

static bool farthest_alike(const struct loss_row *a, const struct loss_row *b)
{
    struct farthest x = farthest_of(a), y = farthest_of(b);
    return x.unit == y.unit && x.rank == y.rank && x.weight == y.weight && a->weight == b->weight;
}

/* One sentence for all micro-batches that are alike. */
static int say_measured(const struct result *result, const struct loss_step *s, const struct terminal *t)
{
    int said = 0, more = 0;
    for (int i = 0; i < s->rows_count; i++) {
        const struct loss_row *row = &s->rows[i];
        int alike = 0, first = i;
        for (int k = 0; k < s->rows_count && row->measured_wrong; k++) {
            if (!s->rows[k].measured_wrong || !farthest_alike(row, &s->rows[k])) continue;
            alike++;
            if (k < first) first = k;
        }
        if (!row->measured_wrong || first < i) continue;
        if (said == SENTENCES_MAX) {
            more += alike;
            continue;
        }
        char line[LINE], unit[32], others[64] = "", measured[NUMBER_TEXT], due[NUMBER_TEXT];
        struct farthest at = farthest_of(row);
        unit_name(&result->parallel->config.model, at.unit, unit);
        if (alike > 1) snprintf(others, sizeof others, " (and %d more like it)", alike - 1);
        snprintf(
            line, sizeof line,
            "in the gradient of %s on rank %d, data rank %d's micro-batch %d%s weighs %s where its factors give %s: it "
            "was lost, counted again or scaled between backward and optimizer",
            unit, at.rank, row->data_rank, row->microbatch, others, number_factor(at.weight, measured),
            number_factor(row->weight, due));
        terminal_paragraph(t, 2, "WRONG", 7, STYLE_BAD, line);
        said++;
    }
    if (more) fprintf(t->file, "         and %d more micro-batches\n", more);
    return said;
}

static int say_others(const struct result *result, const struct loss_step *s, const struct terminal *t)
{
    int said = 0, odd = 0;
    char line[LINE], unit[32], number[NUMBER_TEXT];
    for (int i = 0; i < s->rows_count; i++) odd += s->rows[i].weighted != s->rows[i].valid;
    if (odd) {
        snprintf(line, sizeof line, "in %d of %d micro-batches ignored tokens have a weight, or valid ones have none",
                 odd, s->rows_count);
        terminal_paragraph(t, 2, "WRONG", 7, STYLE_BAD, line);
        said++;
    }
    if (s->stale_weight != 0) {
        unit_name(&result->parallel->config.model, s->stale_unit, unit);
        snprintf(line, sizeof line,
                 "the gradient of %s on rank %d still holds a micro-batch of the step before, weighing %s", unit,
                 s->stale_rank, number_factor(s->stale_weight, number));
        terminal_paragraph(t, 2, "WRONG", 7, STYLE_BAD, line);
        said++;
    }
    return said;
}

/* is_own: the run's own convention is the mean of means. */
static void print_lesson(const struct loss_ledger *ledger, const struct loss_step *s, bool is_own, const struct terminal *t)
{
    if (s->shortest < 0) return;
    const struct loss_row *few = &s->rows[s->shortest], *many = &s->rows[s->longest];
    double cuts = ledger->data_ranks * ledger->microbatches, N = (double)s->valid;
    char a[NUMBER_TEXT], b[NUMBER_TEXT], c[NUMBER_TEXT], d[NUMBER_TEXT], e[NUMBER_TEXT], line[2 * LINE];
    snprintf(line, sizeof line,
             "Over the whole batch at once the loss is sum S / N = %s, and every token weighs 1/N. A micro-batch sees "
             "only its own S and n, so all ranks have to agree on N before the first backward; whatever else "
             "multiplies the loss (A) has to be undone by what divides the gradient (grad_divisor).",
             number_value(s->token_mean, a));
    terminal_paragraph(t, 2, "token mean", 15, STYLE_BOLD, line);
    if (few->valid == many->valid) {
        snprintf(line, sizeof line,
                 "The mean of the %g micro-batches' means is the same number here, since each holds n = %lld valid "
                 "tokens; on other data it would not be.",
                 cuts, (long long)few->valid);
    } else {
        snprintf(line, sizeof line,
                 "(1/(M*D)) sum S/n = %s on these numbers, relatively off by %s. A token of data rank %d's micro-batch %d "
                 "(n = %lld, the fewest) %s 1/(n*M*D), which is %s times 1/N, one of data rank %d's "
                 "micro-batch %d (n = %lld, the most) %s times.",
                 number_value(s->mean_of_means, a), number_error(s->mean_of_means / s->token_mean - 1, b),
                 few->data_rank, few->microbatch, (long long)few->valid, is_own ? "weighs" : "would weigh",
                 number_factor(N / ((double)few->valid * cuts), c), many->data_rank, many->microbatch,
                 (long long)many->valid, number_factor(N / ((double)many->valid * cuts), d));
    }
    terminal_paragraph(t, 2, "mean of means", 15, STYLE_BOLD, line);
    if (ledger->data_ranks > 1) {
        snprintf(line, sizeof line,
                 "(1/D) sum over data ranks of their own S/n = %s, relatively off by %s: the same error, between ranks.",
                 number_value(s->mean_of_rank_means, a), number_error(s->mean_of_rank_means / s->token_mean - 1, e));
        terminal_paragraph(t, 2, "rank means", 15, STYLE_BOLD, line);
    }
}

/* Under another convention than the token mean: what the run is held against, and what that is not. */
static void print_convention(const struct loss_convention *convention, const char *token_mean_weight, const struct terminal *t)
{
    char line[LINE];
    snprintf(line, sizeof line,
             "train.loss_normalization is %s, by which a token weighs %s. That is what is due here: the standalone run computes the "
             "whole batch on one rank, but gives each token the weight that it has by %s in this layout. So parallel and "
             "standalone agree where the layout follows its convention, whether or not that is the token mean (1/N = %s).",
             convention->name, convention->weight, convention->name, token_mean_weight);
    terminal_paragraph(t, 2, "", 0, STYLE_PLAIN, line);
}

static void print_step(const struct result *result, const struct loss_ledger *ledger, const struct loss_step *s,
                       const struct terminal *t)
{
    char due[NUMBER_TEXT], count[NUMBER_TEXT], a[NUMBER_TEXT], b[NUMBER_TEXT], c[NUMBER_TEXT];
    const struct loss_convention *convention = loss_convention_of(&result->parallel->config);
    bool token_mean = !strcmp(convention->weight, "1/N");
    terminal_print(t, STYLE_BOLD, "step %d", s->step);
    number_factor(1 / (double)s->valid, due);
    fprintf(t->file, ": N = %s valid tokens%s", number_count(s->valid, count), token_mean ? ", so each is due " : "\n");
    if (token_mean) fprintf(t->file, "1/N = %s\n", due);
    else print_convention(convention, due, t);
    if (s->rows_count == 0) {
        fprintf(t->file, "  no loss was computed in this step: the run ended before\n\n");
        return;
    }
    print_rows(s, t);
    fprintf(t->file, "  loss: parallel %s, logged %s, standalone %s\n", number_value(s->parallel, a),
            number_value(s->logged, b), number_value(s->standalone, c));
    int said = say_factors(s, t);
    said += say_measured(result, s, t);
    said += say_others(result, s, t);
    if (!said)
        terminal_print(t, STYLE_GOOD,
                       "  every valid token weighs %s, by its factors and as measured in every gradient\n", convention->weight);
    fputc('\n', t->file);
    print_lesson(ledger, s, !strcmp(convention->weight, "1/(n*M*D)"), t);
    fputc('\n', t->file);
    explain_conventions_text(result, s->step, t);
    fputc('\n', t->file);
}

void explain_loss_text(const struct result *result, bool steps_all, const struct terminal *t)
{
    struct loss_ledger ledger = loss_ledger_new(result);
    char text[DESCRIBE_TEXT], name[FOREIGN_TEXT];
    terminal_print(t, STYLE_BOLD, "%s", foreign(result->scenario->name, name));
    fprintf(t->file, "  %s\n\n", describe_layout(&result->parallel->config, text));
    terminal_paragraph(
        t, 0, "", 0, STYLE_PLAIN,
        "Data rank d's micro-batch m sums the losses of its n valid tokens to S. Backward starts from "
        "1/denominator x loss.scale x A for each of them; the gradients' reduction over the data ranks divides by "
        "grad_divisor, and where there is a grad_scale, all gradients are multiplied by it in the end. The product is "
        "the weight of a token; measured is the same weight as found in the numbers of the finished gradients.");
    fputc('\n', t->file);
    for (int i = 0; i < (steps_all ? ledger.steps_count : 1); i++) print_step(result, &ledger, &ledger.steps[i], t);
    if (!steps_all && ledger.steps_count > 1) {
        terminal_print(t, STYLE_DIM, "--verbose shows the other %d step%s\n", ledger.steps_count - 1,
                       ledger.steps_count == 2 ? "" : "s");
    }
    loss_ledger_done(&ledger);
}
