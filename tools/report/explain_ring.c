/* explain_ring: who has which block when; what blocks weigh; what merging rightly and wrongly gives. */
#include "tools/report/explain_ring.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/plugin/plugin.h"
#include "scenarios/context_compare.h"
#include "scenarios/ring_lesson.h"
#include "scenarios/spelling.h"
#include "tools/report/describe.h"
#include "tools/report/json_value.h"
#include "tools/report/number.h"
#include "tools/report/report.h"
#include "tools/report/table.h"

enum { MEMBERS_SHOWN = 12 };

static void print_head(const struct result *result, const struct ring_lesson *l, const struct terminal *t)
{
    char text[DESCRIBE_TEXT], name[FOREIGN_TEXT], line[1024], bytes[NUMBER_TEXT];
    const struct run_config *config = &result->scenario->config;
    terminal_print(t, STYLE_BOLD, "%s", foreign(result->scenario->name, name));
    fprintf(t->file, "  %s\n\n", describe_layout(config, text));
    snprintf(line, sizeof line,
             "Each of the %d ranks keeps its queries. Blocks of keys and values go round, from each rank to the next: after step s rank r has the block of rank r - s. "
             "A forward makes %d hops of K and as many of V, %s each at most; a backward the same again, and dK and dV follow their block home, %d hops.",
             l->members, l->members - 1, number_bytes(l->hop_bytes, bytes), config->layout.context.reversed ? l->members - 1 : l->members);
    terminal_paragraph(t, 0, "", 0, STYLE_PLAIN, line);
    fputc('\n', t->file);
}

/* A row a step, a column a rank. */
static void print_steps(const struct ring_lesson *l, const struct terminal *t)
{
    char heads[MEMBERS_SHOWN + 1][24], align[MEMBERS_SHOWN + 2];
    const char *titles[MEMBERS_SHOWN + 1];
    int shown = l->members < MEMBERS_SHOWN ? l->members : MEMBERS_SHOWN;
    bool any_hidden = false;
    for (int r = 0; r <= shown; r++) {
        if (r == 0) snprintf(heads[0], sizeof heads[0], "step");
        else snprintf(heads[r], sizeof heads[r], "rank %d", r - 1);
        titles[r] = heads[r];
        align[r] = 'r';
    }
    align[shown + 1] = '\0';
    terminal_print(t, STYLE_BOLD, "who has whose block at which step\n");
    struct table *table = table_new(shown + 1, titles, align);
    for (int s = 0; s < l->members && s < 2 * MEMBERS_SHOWN; s++) {
        table_add(table, STYLE_PLAIN, "%d", s);
        for (int r = 0; r < shown; r++) {
            int c = (r - s + l->members) % l->members;
            bool due = l->due[r * l->members + c];
            any_hidden = any_hidden || !due;
            table_add(table, due ? STYLE_PLAIN : STYLE_DIM, due ? "%d" : "(%d)", c);
        }
    }
    table_print(table, t, 2);
    table_free(table);
    if (any_hidden) terminal_paragraph(t, 2, "", 0, STYLE_DIM, "(in brackets: passed on, and not computed, since the mask hides all of it)");
    fputc('\n', t->file);
}

static void print_weights(const struct ring_lesson *l, const struct terminal *t)
{
    static const char *const titles[] = {"step", "block of", "lse of the block", "weight e^(lse_c - lse)"};
    struct table *table = table_new(4, titles, "rrrr");
    char number[NUMBER_TEXT], line[256];
    terminal_print(t, STYLE_BOLD, "what blocks weigh");
    terminal_print(t, STYLE_DIM, "  in the row of position %lld, head %d, on rank %d\n", (long long)l->position, l->head, l->of);
    for (int s = 0; s < l->members; s++) {
        const struct block_weight *b = &l->blocks[s];
        table_add(table, STYLE_PLAIN, "%d", s);
        table_add(table, STYLE_PLAIN, "%d", b->member);
        if (!b->seen) {
            table_add(table, STYLE_DIM, "hidden");
            table_add(table, STYLE_DIM, "0");
            continue;
        }
        table_add(table, STYLE_PLAIN, "%s", number_factor(b->lse, number));
        table_add(table, STYLE_PLAIN, "%.4f", b->share);
    }
    table_print(table, t, 2);
    table_free(table);
    snprintf(line, sizeof line, "together lse = %s. Each block's result is right for its own keys alone: its denominator is its own, and the log-sum-exp is what brings it to the others'.",
             number_factor(l->lse, number));
    terminal_paragraph(t, 2, "", 0, STYLE_PLAIN, line);
    fputc('\n', t->file);
}

static void print_merges(const struct ring_lesson *l, const struct terminal *t)
{
    static const char *const titles[] = {"results put together", "rel. error", "max abs.", "cosine", "how"};
    struct table *table = table_new(5, titles, "lrrrl");
    terminal_print(t, STYLE_BOLD, "the same blocks, put together rightly and wrongly");
    terminal_print(t, STYLE_DIM, "  in fp64, over all rows, relative Frobenius\n");
    for (int way = 0; way < LESSON_WAYS; way++) {
        const struct merge_lesson *m = &l->merges[way];
        bool right = m->rel <= 1e-12;
        char number[NUMBER_TEXT], percent[NUMBER_TEXT];
        if (m->rel >= 1e-3) snprintf(percent, sizeof percent, "%.1f %%", 100 * m->rel);
        else number_error(m->rel, percent);
        table_add(table, right ? STYLE_GOOD : STYLE_BAD, "%s", m->name);
        table_add(table, right ? STYLE_GOOD : STYLE_BAD, "%s", percent);
        table_add(table, STYLE_PLAIN, "%s", number_error(m->max_abs, number));
        table_add(table, STYLE_PLAIN, "%.6f", m->cosine);
        table_add(table, STYLE_DIM, "%s", m->how);
    }
    table_print(table, t, 2);
    table_free(table);
    fputc('\n', t->file);
}

static void print_run(const struct result *result, const struct terminal *t)
{
    char line[256], error[NUMBER_TEXT];
    double worst = 0;
    const struct context_comparison *c = result->context.comparison;
    for (int r = 0; c && r < c->ranks; r++) {
        const struct context_error *e = context_error_of(c, r, CONTEXT_OUT);
        if (e->known) worst = fmax(worst, e->rel);
    }
    if (!c) snprintf(line, sizeof line, "The run itself did not come to its end.");
    else snprintf(line, sizeof line, "The run itself, in its own formats, is off by %s on its worst rank.", number_error(worst, error));
    terminal_paragraph(t, 0, "", 0, STYLE_PLAIN, line);
}

/* What is inside a plug-in cannot be shown; the lesson is on its inputs. */
static void print_whose(const struct result *result, const struct terminal *t)
{
    const struct run_config *config = &result->scenario->config;
    char line[1024], name[FOREIGN_TEXT];
    if (!config->plugin || context_method_of(config) != plugin_method(config->plugin)) return;
    snprintf(line, sizeof line, "The attention of this scenario is a plug-in's, %s, whose steps hpsim does not see. What is shown is hpsim's own ring on the same inputs; "
             "the last line is about the plug-in's run.", foreign(config->layout.context.method, name));
    terminal_paragraph(t, 0, "", 0, STYLE_PLAIN, line);
    fputc('\n', t->file);
}

void explain_ring_text(const struct result *result, const struct terminal *t)
{
    struct ring_lesson *lesson = ring_lesson_new(&result->scenario->config, result->context.inputs);
    print_head(result, lesson, t);
    print_whose(result, t);
    print_steps(lesson, t);
    print_weights(lesson, t);
    print_merges(lesson, t);
    print_run(result, t);
    ring_lesson_free(lesson);
}

char *explain_ring_json(const struct result *result)
{
    struct ring_lesson *l = ring_lesson_new(&result->scenario->config, result->context.inputs);
    cJSON *root = cJSON_CreateObject();
    json_add_integer(root, "hpsim", 1);
    json_add_text(root, "topic", "ring");
    json_add_text(root, "scenario", result->scenario->name);
    json_add_integer(root, "members", l->members);
    cJSON *steps = json_add_array(root, "steps");
    for (int s = 0; s < l->members; s++) {
        cJSON *step = json_append_object(steps), *blocks;
        json_add_integer(step, "step", s);
        blocks = json_add_array(step, "blocks");
        for (int r = 0; r < l->members; r++) {
            int c = (r - s + l->members) % l->members;
            cJSON *block = json_append_object(blocks);
            json_add_integer(block, "rank", r);
            json_add_integer(block, "block", c);
            json_add_bool(block, "computed", l->due[r * l->members + c] != 0);
        }
    }
    cJSON *row = json_add_object(root, "row"), *weights;
    json_add_integer(row, "sequence", l->sequence);
    json_add_integer(row, "position", l->position);
    json_add_integer(row, "head", l->head);
    json_add_integer(row, "rank", l->of);
    json_add_number(row, "lse", l->lse);
    weights = json_add_array(row, "blocks");
    for (int s = 0; s < l->members; s++) {
        cJSON *block = json_append_object(weights);
        json_add_integer(block, "block", l->blocks[s].member);
        json_add_number(block, "lse", l->blocks[s].lse);
        json_add_number(block, "weight", l->blocks[s].share);
    }
    cJSON *merges = json_add_array(root, "merges");
    for (int way = 0; way < LESSON_WAYS; way++) {
        cJSON *merge = json_append_object(merges);
        json_add_text(merge, "name", l->merges[way].name);
        json_add_text(merge, "how", l->merges[way].how);
        json_add_number(merge, "rel_err", l->merges[way].rel);
        json_add_number(merge, "max_abs_err", l->merges[way].max_abs);
        json_add_number(merge, "cosine", l->merges[way].cosine);
    }
    ring_lesson_free(l);
    return json_finish(root);
}
