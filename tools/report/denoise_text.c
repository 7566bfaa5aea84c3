/* denoise_text: how the difference between ring and one rank grows from iteration to iteration, as text and as JSON. */
#include <math.h>

#include "tools/report/json_value.h"
#include "tools/report/number.h"
#include "tools/report/report.h"
#include "tools/report/table.h"

enum { ROWS = 12, BAR = 30 };

/* A bar of the decades between 1e-17 and 1. */
static const char *bar_of(double rel, char text[BAR + 1])
{
    double decades = rel > 0 ? log10(fmin(rel, 1)) + 17 : 0;
    int length = (int)lround(fmax(decades, 0) / 17 * BAR);
    for (int i = 0; i < BAR; i++) text[i] = i < length ? '#' : '\0';
    text[BAR] = '\0';
    return text;
}

void report_denoise_text(const struct report *report, const struct terminal *t)
{
    static const char *const titles[] = {"iteration", "rel. diff.", "max abs.", "in the other rung", "1e-17 ... 1"};
    const struct denoise_result *d = &report->result->denoise;
    struct table *table = table_new(5, titles, "rrrrl");
    bool all = report->verbose || d->iterations <= ROWS;
    for (int i = 0; i < d->iterations; i++) {
        char number[NUMBER_TEXT], bar[BAR + 1];
        if (!all && i > 1 && i < d->iterations - 1 && (i + 1) % ((d->iterations + ROWS - 1) / ROWS)) continue;
        table_add(table, STYLE_PLAIN, "%d", i + 1);
        table_add(table, d->rel[i] > 1e-3 ? STYLE_BAD : STYLE_PLAIN, "%s", number_error(d->rel[i], number));
        table_add(table, STYLE_PLAIN, "%s", number_error(d->max_abs[i], number));
        table_add(table, STYLE_PLAIN, "%s", isnan(d->rel_fine[i]) ? "-" : number_error(d->rel_fine[i], number));
        table_add(table, STYLE_DIM, "%s", bar_of(d->rel[i], bar));
    }
    terminal_print(t, STYLE_BOLD, "latents of the ring against one rank's");
    terminal_print(t, STYLE_DIM, "  relative Frobenius, after each iteration x <- x + rmsnorm(layers(x)) / %d\n", report->result->scenario->config.iterations);
    table_print(table, t, 2);
    table_free(table);
    fputc('\n', t->file);
}

void json_add_denoise(cJSON *root, const struct result *result)
{
    const struct denoise_result *d = &result->denoise;
    cJSON *list = json_add_array(json_add_object(root, "denoise"), "iterations");
    for (int i = 0; i < d->iterations; i++) {
        cJSON *item = json_append_object(list);
        json_add_integer(item, "iteration", i + 1);
        json_add_number(item, "rel_err", d->rel[i]);
        json_add_number(item, "max_abs_err", d->max_abs[i]);
        if (isnan(d->rel_fine[i])) json_add_null(item, "rel_err_other_rung");
        else json_add_number(item, "rel_err_other_rung", d->rel_fine[i]);
    }
}
