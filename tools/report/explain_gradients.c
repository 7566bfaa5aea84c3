/* explain_gradients: the way of a gradient from the summed loss of one micro-batch to the optimizer, factor by factor,
 * for every loss convention on this layout, and what the usual mistakes multiply it by.
 *
 * Shown is the micro-batch with the fewest valid tokens, where a mean of means is farthest from a token mean. A mistake
 * multiplies every gradient by one number: the loss divided once more by the micro-batches 1/M; the one division by
 * them left out M; a sum over data ranks where their mean is due D, a mean where their sum is due 1/D; both M*D; what
 * comes after the last reduction left out, 1/grad_scale. */
#include <math.h>
#include <string.h>
#include "scenarios/facts.h"
#include "scenarios/spelling.h"
#include "tools/report/convention_ledger.h"
#include "tools/report/describe.h"
#include "tools/report/json_value.h"
#include "tools/report/loss_ledger.h"
#include "tools/report/number.h"
#include "tools/report/table.h"

enum { FACTORS = 5, MISTAKES = 5, LINE = 1024 };

struct path_factor { const char *site, *applied; const char *symbol; double value; };

/* seed, reduction, divisor, after: in the order in which they meet the gradient. */
static void path_of(const struct loss_convention *c, const struct factor_numbers *f, struct path_factor ret_path[FACTORS])
{
    bool averages = f->A != 1, mean = c->combine == LOSS_COMBINE_MEAN;
    const char *compensation = mean ? (averages || f->D == 1 ? "1" : "1/D") : averages ? "D" : "1";
    ret_path[0] = (struct path_factor){"loss.denominator", "divide", c->denominator, loss_value(c->denominator, f)};
    ret_path[1] = (struct path_factor){"pp.loss.scale", "multiply", c->scale, loss_value(c->scale, f)};
    ret_path[2] = (struct path_factor){"dp.loss.scale", "multiply", compensation, loss_compensation(c, f)};
    ret_path[3] = (struct path_factor){"fsdp.grad_divisor", "divide", averages ? "D" : "1", f->A};
    ret_path[4] = (struct path_factor){"pp.grad_scale", "multiply", c->grad_scale, loss_value(c->grad_scale, f)};
}

struct mistake { const char *name, *what; char symbol[24]; double value; }; /* NAN: this convention cannot make it */

static void mistakes_of(const struct loss_convention *c, const struct factor_numbers *f, struct mistake ret[MISTAKES])
{
    bool divides = !strcmp(c->scale, "1/M") || !strcmp(c->grad_scale, "1/M"), mean = c->combine == LOSS_COMBINE_MEAN;
    double after = loss_value(c->grad_scale, f), other = mean ? f->D : 1 / f->D;
    const char *inverse = !strcmp(c->grad_scale, "1/M") ? "M" : !strcmp(c->grad_scale, "1/N") ? "N" : "N/D";
    ret[0] = (struct mistake){"divided_again", "the loss is divided by the micro-batches once more", "1/M", 1 / f->M};
    ret[1] = (struct mistake){"not_divided", "its division by the micro-batches is left out", "M", divides ? f->M : NAN};
    ret[2] = (struct mistake){"other_reduction", mean ? "the data ranks' gradients are added up where their mean is due"
                                                      : "the data ranks' gradients are averaged where their sum is due",
                              "", other};
    ret[3] = (struct mistake){"both", "not divided by the micro-batches, and added up over the data ranks", "M*D", divides ? f->M * other : NAN};
    ret[4] = (struct mistake){"no_grad_scale", "the factor after the last reduction is left out", "", strcmp(c->grad_scale, "1") ? 1 / after : NAN};
    snprintf(ret[2].symbol, sizeof ret[2].symbol, "%s", mean ? "D" : "1/D");
    if (!isnan(ret[4].value)) snprintf(ret[4].symbol, sizeof ret[4].symbol, "%s", inverse);
}

static void add_factor(struct table *table, const struct path_factor *factor)
{
    char number[NUMBER_TEXT];
    number_factor(factor->value, number);
    const char *before = strcmp(factor->applied, "divide") ? "x" : "/";
    if (!strcmp(factor->symbol, number)) table_add(table, factor->value == 1 ? STYLE_DIM : STYLE_PLAIN, "%s %s", before, number);
    else table_add(table, STYLE_PLAIN, "%s %s = %s", before, factor->symbol, number);
}

static void print_paths(const struct convention_ledger *l, int cell, const struct terminal *t)
{
    static const char *const titles[] = {"convention", "denominator", "pp.loss.scale", "dp.loss.scale", "grad_divisor",
                                         "pp.grad_scale", "weight", "over 1/N"};
    struct table *table = table_new(8, titles, "llllllrr");
    char number[NUMBER_TEXT];
    for (int i = 0; i < l->count; i++) {
        const struct loss_convention *c = l->entries[i].convention;
        struct path_factor path[FACTORS];
        path_of(c, &l->numbers[cell], path);
        table_add(table, i == l->own ? STYLE_BOLD : STYLE_PLAIN, "%s%s", c->name, i == l->own ? " (own)" : "");
        for (int k = 0; k < FACTORS; k++) add_factor(table, &path[k]);
        table_add(table, STYLE_PLAIN, "%s", number_factor(l->entries[i].weight[cell], number));
        table_add(table, STYLE_PLAIN, "%s", number_factor(l->entries[i].weight[cell] * l->numbers[cell].N, number));
    }
    table_print(table, t, 2);
    table_free(table);
}

static void print_mistakes(const struct convention_ledger *l, const struct terminal *t)
{
    static const char *const titles[] = {"convention", "divided again", "not divided", "other reduction", "both", "no grad_scale"};
    struct table *table = table_new(6, titles, "llllll");
    char number[NUMBER_TEXT];
    for (int i = 0; i < l->count; i++) {
        struct mistake mistakes[MISTAKES];
        mistakes_of(l->entries[i].convention, &l->numbers[0], mistakes);
        table_add(table, i == l->own ? STYLE_BOLD : STYLE_PLAIN, "%s%s", l->entries[i].convention->name, i == l->own ? " (own)" : "");
        for (int k = 0; k < MISTAKES; k++) {
            if (isnan(mistakes[k].value)) table_add(table, STYLE_DIM, "-");
            else table_add(table, STYLE_PLAIN, "%s = %s", mistakes[k].symbol, number_factor(mistakes[k].value, number));
        }
    }
    table_print(table, t, 2);
    table_free(table);
    terminal_paragraph(t, 2, "divided again", 17, STYLE_DIM, "the loss, already divided, is divided by the micro-batches once more");
    terminal_paragraph(t, 2, "not divided", 17, STYLE_DIM, "its division by the micro-batches is left out: a unit seed on a mean loss");
    terminal_paragraph(t, 2, "other reduction", 17, STYLE_DIM,
                       "the data ranks' gradients are added up where their mean is due, or averaged where their sum is");
    terminal_paragraph(t, 2, "both", 17, STYLE_DIM, "not divided, and the other reduction");
    terminal_paragraph(t, 2, "no grad_scale", 17, STYLE_DIM, "what multiplies every gradient after the last reduction is left out");
}

/* The own convention, as the run had it. */
static void print_measured(const struct result *result, const struct convention_ledger *l, int cell, const struct terminal *t)
{
    struct loss_ledger losses = loss_ledger_new(result);
    const struct loss_step *s = &losses.steps[l->step];
    for (int i = 0; i < s->rows_count; i++) {
        const struct loss_row *row = &s->rows[i];
        if (row->data_rank * l->microbatches + row->microbatch != cell || isnan(row->measured_min)) continue;
        char low[NUMBER_TEXT], high[NUMBER_TEXT], due[NUMBER_TEXT];
        number_factor(row->measured_min, low);
        number_factor(row->measured_max, high);
        number_factor(row->due, due);
        bool one = !strcmp(low, high), right = one && !row->wrong;
        terminal_print(t, right ? STYLE_GOOD : STYLE_BAD, "  in this run: %s%s%s in the finished gradients, %s due\n", low,
                       one ? "" : " to ", one ? "" : high, due);
    }
    loss_ledger_done(&losses);
}

static void print_step(const struct result *result, int step, const struct terminal *t)
{
    struct convention_ledger l = convention_ledger_new(result, step);
    int cell = convention_ledger_shortest(&l);
    terminal_print(t, STYLE_BOLD, "step %d", step);
    fprintf(t->file, ": a token of data rank %d's micro-batch %d, n = %g of N = %g valid tokens, M = %d, D = %d\n",
            cell / l.microbatches, cell % l.microbatches, l.numbers[cell].n, l.numbers[cell].N, l.microbatches, l.data_ranks);
    print_paths(&l, cell, t);
    print_measured(result, &l, cell, t);
    fputc('\n', t->file);
    terminal_paragraph(t, 2, "mistakes", 10, STYLE_BOLD, "what the usual ones would multiply every gradient by:");
    print_mistakes(&l, t);
    fputc('\n', t->file);
    convention_ledger_done(&l);
}

void explain_gradients_text(const struct result *result, bool steps_all, const struct terminal *t)
{
    char text[DESCRIBE_TEXT], name[FOREIGN_TEXT];
    int steps = result->parallel->config.train.steps;
    terminal_print(t, STYLE_BOLD, "%s", foreign(result->scenario->name, name));
    fprintf(t->file, "  %s\n\n", describe_layout(&result->parallel->config, text));
    terminal_paragraph(
        t, 0, "", 0, STYLE_PLAIN,
        "The summed loss of a micro-batch is divided by the denominator and multiplied by pp.loss.scale and dp.loss.scale "
        "before backward; the reduction over the data ranks divides by grad_divisor; in the end every gradient is "
        "multiplied by pp.grad_scale. The product is the weight of a token. dp.loss.scale makes up for the reduction "
        "that this layout uses, so that it never changes the result.");
    fputc('\n', t->file);
    for (int i = 0; i < (steps_all ? steps : 1); i++) print_step(result, i, t);
    if (!steps_all && steps > 1) {
        terminal_print(t, STYLE_DIM, "--verbose shows the other %d step%s\n", steps - 1, steps == 2 ? "" : "s");
    }
}

static void add_convention(cJSON *list, const struct convention_ledger *l, int i, int cell)
{
    const struct loss_convention *c = l->entries[i].convention;
    struct path_factor path[FACTORS];
    struct mistake mistakes[MISTAKES];
    path_of(c, &l->numbers[cell], path);
    mistakes_of(c, &l->numbers[cell], mistakes);
    cJSON *object = json_append_object(list);
    json_add_text(object, "name", c->name);
    json_add_text(object, "reduction_due", c->combine == LOSS_COMBINE_MEAN ? "mean" : "sum");
    cJSON *factors = json_add_array(object, "path");
    for (int k = 0; k < FACTORS; k++) {
        cJSON *factor = json_append_object(factors);
        json_add_text(factor, "site", path[k].site);
        json_add_text(factor, "applied", path[k].applied);
        json_add_text(factor, "symbol", path[k].symbol);
        json_add_number(factor, "value", path[k].value);
    }
    json_add_text(object, "weight_symbol", c->weight);
    json_add_number(object, "weight", l->entries[i].weight[cell]);
    json_add_number(object, "over_token_mean", l->entries[i].weight[cell] * l->numbers[cell].N);
    cJSON *list_of_mistakes = json_add_array(object, "mistakes");
    for (int k = 0; k < MISTAKES; k++) {
        if (isnan(mistakes[k].value)) continue;
        cJSON *mistake = json_append_object(list_of_mistakes);
        json_add_text(mistake, "name", mistakes[k].name);
        json_add_text(mistake, "what", mistakes[k].what);
        json_add_text(mistake, "symbol", mistakes[k].symbol);
        json_add_number(mistake, "value", mistakes[k].value);
    }
}

char *explain_gradients_json(const struct result *result, bool steps_all)
{
    cJSON *root = cJSON_CreateObject();
    json_add_integer(root, "hpsim", 1);
    json_add_text(root, "topic", "gradients");
    json_add_text(root, "scenario", result->scenario->name);
    json_add_text(root, "loss_normalization", loss_convention_of(&result->parallel->config)->name);
    cJSON *steps = json_add_array(root, "steps");
    for (int s = 0; s < (steps_all ? result->parallel->config.train.steps : 1); s++) {
        struct convention_ledger l = convention_ledger_new(result, s);
        int cell = convention_ledger_shortest(&l);
        cJSON *step = json_append_object(steps);
        json_add_integer(step, "step", s);
        json_add_integer(step, "data_rank", cell / l.microbatches);
        json_add_integer(step, "microbatch", cell % l.microbatches);
        json_add_number(step, "n", l.numbers[cell].n);
        json_add_number(step, "valid_tokens", l.numbers[cell].N);
        json_add_integer(step, "microbatches", l.microbatches);
        json_add_integer(step, "data_ranks", l.data_ranks);
        cJSON *list = json_add_array(step, "conventions");
        for (int i = 0; i < l.count; i++) add_convention(list, &l, i, cell);
        convention_ledger_done(&l);
    }
    return json_finish(root);
}
