/* explain_loss_json: the loss ledger as JSON. */
#include <math.h>
#include "model/loss_convention.h"
#include "tools/report/convention_ledger.h"
#include "tools/report/json_value.h"
#include "tools/report/loss_ledger.h"

static void add_factor(cJSON *factors, int kind, const struct loss_factor_entry *entry)
{
    cJSON *factor = json_append_object(factors);
    json_add_text(factor, "name", loss_factor_names[kind]);
    json_add_text(factor, "applied", kind == LOSS_DENOMINATOR || kind == LOSS_DIVISOR ? "divide" : "multiply");
    json_add_number(factor, "value", entry->value);
    json_add_number(factor, "due", entry->due);
    json_add_text(factor, "symbol", entry->symbol);
    json_add_bool(factor, "wrong", entry->wrong);
}

static void add_row(cJSON *rows, const struct loss_row *row)
{
    static const int order[] = {LOSS_DENOMINATOR, LOSS_SCALE, LOSS_COMPENSATION, LOSS_DIVISOR, LOSS_GRAD_SCALE};
    cJSON *object = json_append_object(rows);
    json_add_integer(object, "data_rank", row->data_rank);
    json_add_integer(object, "microbatch", row->microbatch);
    json_add_integer(object, "rank", row->rank);
    json_add_integer(object, "valid", row->valid);
    json_add_integer(object, "positions", row->positions);
    json_add_integer(object, "weighted", row->weighted);
    json_add_number(object, "loss_sum", row->sum);
    json_add_number(object, "mean", row->mean);
    cJSON *factors = json_add_array(object, "factors");
    for (int i = 0; i < LOSS_FACTOR_KINDS; i++) add_factor(factors, order[i], &row->factor[order[i]]);
    json_add_number(object, "weight", row->weight);
    if (isnan(row->measured_min)) {
        json_add_null(object, "measured");
    } else {
        cJSON *measured = json_add_object(object, "measured");
        json_add_number(measured, "min", row->measured_min);
        json_add_number(measured, "max", row->measured_max);
        json_add_bool(measured, "wrong", row->measured_wrong);
    }
    json_add_number(object, "due", row->due);
    json_add_number(object, "ratio", row->ratio);
    json_add_text(object, "ratio_symbol", row->ratio_symbol);
    json_add_bool(object, "wrong", row->wrong);
}

static void add_step(cJSON *steps, const struct result *result, const struct loss_step *s)
{
    cJSON *step = json_append_object(steps);
    json_add_integer(step, "step", s->step);
    json_add_integer(step, "valid_tokens", s->valid);
    json_add_number(step, "due", 1 / (double)s->valid);
    cJSON *loss = json_add_object(step, "loss");
    json_add_number(loss, "parallel", s->parallel);
    json_add_number(loss, "logged", s->logged);
    json_add_number(loss, "standalone", s->standalone);
    cJSON *rows = json_add_array(step, "rows");
    int64_t valid = 0;
    for (int i = 0; i < s->rows_count; i++) {
        add_row(rows, &s->rows[i]);
        valid += s->rows[i].valid;
    }
    cJSON *total = json_add_object(step, "total");
    json_add_integer(total, "valid", valid);
    json_add_integer(total, "positions", s->positions);
    json_add_number(total, "loss_sum", s->sum);
    json_add_number(total, "weight_sum", s->weight_sum);
    json_add_number(step, "token_mean", s->token_mean);
    json_add_number(step, "mean_of_means", s->mean_of_means);
    json_add_number(step, "mean_of_rank_means", s->mean_of_rank_means);
    json_add_number(step, "stale_weight", s->stale_weight);
    explain_conventions_json(step, result, s->step);
}

char *explain_loss_json(const struct result *result, bool steps_all)
{
    struct loss_ledger ledger = loss_ledger_new(result);
    cJSON *root = cJSON_CreateObject();
    json_add_integer(root, "hpsim", 1);
    json_add_text(root, "topic", "loss");
    json_add_text(root, "scenario", result->scenario->name);
    json_add_integer(root, "data_ranks", ledger.data_ranks);
    json_add_integer(root, "microbatches", ledger.microbatches);
    json_add_text(root, "loss_normalization", loss_convention_of(&result->parallel->config)->name);
    json_add_text(root, "verdict", verdict_names[result->verdict]);
    cJSON *steps = json_add_array(root, "steps");
    for (int i = 0; i < (steps_all ? ledger.steps_count : 1); i++) add_step(steps, result, &ledger.steps[i]);
    loss_ledger_done(&ledger);
    return json_finish(root);
}
