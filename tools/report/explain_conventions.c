/* explain_conventions: what each system's way of averaging would make of this step: one table of the weights that
 * differ, one of the losses. */
#include <math.h>
#include <string.h>
#include "tools/report/convention_ledger.h"
#include "tools/report/json_value.h"
#include "tools/report/loss_ledger.h"
#include "tools/report/number.h"
#include "tools/report/table.h"

enum { CELLS_SHOWN = 24, FORMS_MAX = 8, LINE = 1024 };

/* The conventions whose weight is this one, by name. */
static void names_of(const struct convention_ledger *l, const char *weight, char *text, size_t size)
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < l->count && used < size; i++) {
        if (strcmp(l->entries[i].convention->weight, weight) != 0) continue;
        used += (size_t)snprintf(text + used, size - used, "%s%s", used ? ", " : "", l->entries[i].convention->name);
    }
}

/* The different weights, in the order of the table. */
static int forms_of(const struct convention_ledger *l, const struct convention_entry *ret_forms[FORMS_MAX])
{
    int count = 0;
    for (int i = 0; i < l->count && count < FORMS_MAX; i++) {
        bool known = false;
        for (int k = 0; k < count; k++) known = known || !strcmp(ret_forms[k]->convention->weight, l->entries[i].convention->weight);
        if (!known) ret_forms[count++] = &l->entries[i];
    }
    return count;
}

static void print_weights(const struct convention_ledger *l, const struct terminal *t)
{
    const struct convention_entry *forms[FORMS_MAX];
    const char *titles[3 + FORMS_MAX] = {"d", "m", "n"};
    int count = forms_of(l, forms);
    for (int k = 0; k < count; k++) titles[3 + k] = forms[k]->convention->weight;
    char align[3 + FORMS_MAX + 1];
    memset(align, 'r', sizeof align);
    align[3 + count] = 0;
    struct table *table = table_new(3 + count, titles, align);
    char number[NUMBER_TEXT], ratio[NUMBER_TEXT];
    for (int i = 0; i < l->cells && l->cells <= CELLS_SHOWN; i++) {
        table_add(table, STYLE_PLAIN, "%d", i / l->microbatches);
        table_add(table, STYLE_PLAIN, "%d", i % l->microbatches);
        table_add(table, STYLE_PLAIN, "%s", number_count((int64_t)l->numbers[i].n, number));
        for (int k = 0; k < count; k++) {
            double weight = forms[k]->weight[i];
            table_add(table, STYLE_PLAIN, "%s (%sx)", number_factor(weight, number), number_factor(weight * l->numbers[i].N, ratio));
        }
    }
    if (l->cells > CELLS_SHOWN) {
        for (int high = 0; high < 2; high++) {
            table_add(table, STYLE_DIM, "all");
            table_add(table, STYLE_DIM, " ");
            table_add(table, STYLE_DIM, high ? "most" : "least");
            for (int k = 0; k < count; k++) {
                double of_mean = high ? forms[k]->mean_high : forms[k]->mean_low;
                table_add(table, STYLE_PLAIN, "%s (%sx)", number_factor(of_mean / l->numbers[0].N, number), number_factor(of_mean, ratio));
            }
        }
    }
    table_print(table, t, 2);
    table_free(table);
    for (int k = 0; k < count; k++) {
        char names[LINE];
        names_of(l, forms[k]->convention->weight, names, sizeof names);
        terminal_paragraph(t, 2, forms[k]->convention->weight, 25, STYLE_DIM, names);
    }
}

static void print_losses(const struct convention_ledger *l, const struct terminal *t)
{
    static const char *const titles[] = {"convention", "optimizes", "over token mean", "prints", "prints what it optimizes",
                                         "gradients / own"};
    struct table *table = table_new(6, titles, "lrrrlr");
    char number[NUMBER_TEXT], high[NUMBER_TEXT];
    for (int i = 0; i < l->count; i++) {
        const struct convention_entry *e = &l->entries[i];
        table_add(table, i == l->own ? STYLE_BOLD : STYLE_PLAIN, "%s%s", e->convention->name, i == l->own ? " (own)" : "");
        table_add(table, STYLE_PLAIN, "%s", number_value(e->loss, number));
        table_add(table, STYLE_PLAIN, "%s", number_factor(e->loss / l->token_mean, number));
        table_add(table, STYLE_PLAIN, "%s", number_value(e->logged, number));
        table_add(table, e->logs_optimized ? STYLE_PLAIN : STYLE_WARN, "%s", e->logs_optimized ? "yes" : "no");
        number_factor(e->own_low, number);
        number_factor(e->own_high, high);
        if (!strcmp(number, high)) table_add(table, STYLE_PLAIN, "%s", number);
        else table_add(table, STYLE_PLAIN, "%s to %s", number, high);
    }
    table_print(table, t, 2);
    table_free(table);
}

void explain_conventions_text(const struct result *result, int step, const struct terminal *t)
{
    struct convention_ledger l = convention_ledger_new(result, step);
    terminal_paragraph(t, 2, "conventions", 15, STYLE_BOLD,
                       "What a token would weigh in each micro-batch by the conventions of train.loss_normalization (in "
                       "brackets: times 1/N), and what they would optimize and print on these losses:");
    print_weights(&l, t);
    fputc('\n', t->file);
    print_losses(&l, t);
    convention_ledger_done(&l);
}

static void add_entry(cJSON *list, const struct convention_ledger *l, const struct convention_entry *e)
{
    cJSON *object = json_append_object(list);
    json_add_text(object, "name", e->convention->name);
    json_add_text(object, "system", e->convention->system);
    json_add_text(object, "source", e->convention->source);
    json_add_text(object, "weight", e->convention->weight);
    json_add_text(object, "logged_weight", e->convention->logged);
    cJSON *weights = json_add_array(object, "weights");
    for (int i = 0; i < l->cells; i++) {
        cJSON *cell = json_append_object(weights);
        json_add_integer(cell, "data_rank", i / l->microbatches);
        json_add_integer(cell, "microbatch", i % l->microbatches);
        json_add_number(cell, "weight", e->weight[i]);
        json_add_number(cell, "over_token_mean", e->weight[i] * l->numbers[i].N);
        json_add_number(cell, "over_own", e->weight[i] / l->entries[l->own].weight[i]);
    }
    json_add_number(object, "loss", e->loss);
    json_add_number(object, "over_token_mean", e->loss / l->token_mean);
    json_add_number(object, "logged", e->logged);
    json_add_bool(object, "logs_optimized", e->logs_optimized);
}

void explain_conventions_json(struct cJSON *step_object, const struct result *result, int step)
{
    struct convention_ledger l = convention_ledger_new(result, step);
    cJSON *list = json_add_array(step_object, "conventions");
    for (int i = 0; i < l.count; i++) add_entry(list, &l, &l.entries[i]);
    convention_ledger_done(&l);
}
