/* context_json: the object `attention`: the same that context_text shows, all of it. */
#include <stdlib.h>

#include "scenarios/context_inference.h"
#include "tools/report/json_value.h"
#include "tools/report/report.h"

static void add_shards(cJSON *object, const struct record *record)
{
    cJSON *list = json_add_array(object, "shards");
    for (int r = 0; r < record->ranks; r++) {
        const struct attention_part *p = record->rank[r].attention;
        cJSON *shard = json_append_object(list);
        char text[RANGES_TEXT];
        json_add_integer(shard, "rank", r);
        json_add_integer(shard, "rows", p->rows);
        json_add_text(shard, "positions", context_ranges(p->positions, p->rows, text));
    }
}

static void add_errors(cJSON *object, const struct context_comparison *c)
{
    cJSON *list = json_add_array(object, "errors");
    for (int i = 0; i < c->ranks + c->groups + 1; i++) {
        for (int t = 0; t < CONTEXT_TENSORS; t++) {
            const struct context_error *e = &c->items[i * CONTEXT_TENSORS + t];
            if (!e->known) continue;
            cJSON *item = json_append_object(list);
            json_add_index(item, "rank", i < c->ranks ? i : -1);
            if (i >= c->ranks && i < c->ranks + c->groups) json_add_integer(item, "joint_of_group", i - c->ranks);
            json_add_text(item, "tensor", context_tensor_names[t]);
            json_add_number(item, "max_abs_err", e->max_abs);
            json_add_number(item, "rel_err", e->rel);
            json_add_number(item, "limit", e->limit);
            json_add_index(item, "worst_head", e->worst_head);
            json_add_number(item, "worst_head_rel_err", e->worst_head_rel);
            json_add_index(item, "worst_sequence", (int)e->worst_sequence);
            json_add_index(item, "worst_position", (int)e->worst_position);
            json_add_number(item, "worst_row_rel_err", e->worst_row_rel);
            json_add_number(item, "one_rank_rel_err", e->single);
            json_add_text(item, "status", e->wrong ? "wrong" : e->imprecise ? "rounded" : "right");
        }
    }
}

static void add_matrix(cJSON *object, const char *key, const int *values, int members)
{
    cJSON *rows = json_add_array(object, key);
    for (int r = 0; r < members; r++) {
        cJSON *row = cJSON_CreateArray();
        for (int c = 0; c < members; c++) {
            if (values[r * members + c] < 0) cJSON_AddItemToArray(row, cJSON_CreateNull());
            else json_append_integer(row, values[r * members + c]);
        }
        cJSON_AddItemToArray(rows, row);
    }
}

static void add_consumption(cJSON *object, const struct result *result)
{
    int members = layout_cp(&result->scenario->config.layout);
    cJSON *list = json_add_array(object, "consumption");
    int *got = memory_zalloc((size_t)(members * members + 1) * sizeof *got), *due = memory_zalloc((size_t)(members * members + 1) * sizeof *due);
    for (int g = 0; g < result->scenario->config.layout.dp_replicate; g++) {
        for (int backward = 0; backward < 2; backward++) {
            const char *source = "";
            if (!context_consumed(result, g, backward == 1, got, due, &source)) continue;
            cJSON *item = json_append_object(list);
            json_add_integer(item, "group", g);
            json_add_text(item, "of", backward ? "dq" : "out");
            json_add_text(item, "source", source);
            add_matrix(item, "times", got, members);
            add_matrix(item, "due", due, members);
        }
    }
    free(got);
    free(due);
}

static void add_mass(cJSON *object, const struct result *result)
{
    const struct context_variations *v = result->context.variations;
    if (!v || !v->mass.got || v->mass.failed) {
        json_add_null(object, "softmax_mass");
        return;
    }
    cJSON *list = json_add_array(object, "softmax_mass");
    for (int r = 0; r < result->parallel->ranks; r++) {
        cJSON *item = json_append_object(list), *got, *due;
        json_add_integer(item, "rank", r);
        got = json_add_array(item, "got");
        due = json_add_array(item, "due");
        for (int c = 0; c < v->mass.chunks; c++) {
            cJSON_AddItemToArray(got, cJSON_CreateNumber(v->mass.got[r * v->mass.chunks + c]));
            cJSON_AddItemToArray(due, cJSON_CreateNumber(v->mass.due[r * v->mass.chunks + c]));
        }
        json_add_number(item, "total", v->mass.total[r]);
    }
}

void json_add_attention(cJSON *root, const struct result *result)
{
    cJSON *object = json_add_object(root, "attention");
    const struct context_comparison *c = result->context.comparison;
    add_shards(object, result->parallel);
    add_errors(object, c);
    add_consumption(object, result);
    add_mass(object, result);
    cJSON *shapes = json_add_array(object, "error_shapes");
    for (int t = 0; t < CONTEXT_SINKS; t++) {
        if (!context_error_of(c, 0, (enum context_tensor)t)->known) continue;
        struct context_shape_of_errors shape = context_error_shape(c, (enum context_tensor)t);
        cJSON *item = json_append_object(shapes);
        json_add_text(item, "tensor", context_tensor_names[t]);
        json_add_text(item, "shape", shape.word);
        json_add_text(item, "hint", shape.hint);
    }
    struct tolerance_result list[TOLERANCES_MAX];
    int count = context_tolerances(result, list);
    cJSON *tolerances = json_add_array(object, "public_tolerances");
    for (int i = 0; i < count; i++) {
        cJSON *item = json_append_object(tolerances);
        json_add_text(item, "test", list[i].test);
        json_add_text(item, "rule", list[i].rule);
        json_add_number(item, "value", list[i].value);
        json_add_number(item, "limit", list[i].limit);
        json_add_bool(item, "passes", list[i].passes);
    }
}
