/* json: the result as JSON, key by key as scripts expect it. Only `performance` may differ between two
 * runs of one scenario. */
#include <math.h>
#include <string.h>
#include <sys/resource.h>
#include "scenarios/fault_entry.h"
#include "sim/hash.h"
#include "tools/command.h"
#include "tools/report/json_value.h"
#include "tools/report/report.h"

static void add_steps(cJSON *root, const struct result *result)
{
    cJSON *steps = json_add_array(root, "steps");
    for (int i = 0; i < result->steps_count; i++) {
        const struct step_result *s = &result->steps[i];
        cJSON *step = json_append_object(steps);
        json_add_integer(step, "step", s->step);
        cJSON *loss = json_add_object(step, "loss");
        json_add_number(loss, "parallel", s->parallel);
        json_add_number(loss, "logged", s->logged);
        json_add_number(loss, "standalone", s->standalone);
        json_add_number(loss, "rel_err", s->rel_err);
        cJSON *norm = json_add_object(step, "grad_norm");
        json_add_number(norm, "parallel", s->norm_parallel);
        json_add_number(norm, "standalone", s->norm_standalone);
        json_add_number(norm, "rel_err", s->norm_rel_err);
        const struct moe_config *moe = &result->scenario->config.model.moe;
        if (moe->experts > 0 && (moe->aux_loss_coeff > 0 || moe->z_loss_coeff > 0)) {
            cJSON *auxiliary = json_add_object(step, "auxiliary_loss");
            json_add_number(auxiliary, "parallel", s->auxiliary_parallel);
            json_add_number(auxiliary, "standalone", s->auxiliary_standalone);
        }
        json_add_integer(step, "valid_tokens", s->valid_tokens);
        json_add_number(step, "max_grad_rel_err", s->max_grad_rel_err);
        json_add_number(step, "max_param_rel_err", s->max_param_rel_err);
    }
}

static void add_where(cJSON *object, const struct place *place)
{
    bool any = place->rank >= 0 || place->step >= 0 || place->microbatch >= 0 || place->layer >= 0 || place->param;
    if (!any) {
        json_add_null(object, "where");
        return;
    }
    cJSON *where = json_add_object(object, "where");
    if (place->rank >= 0) json_add_integer(where, "rank", place->rank);
    if (place->step >= 0) json_add_integer(where, "step", place->step);
    if (place->microbatch >= 0) json_add_integer(where, "microbatch", place->microbatch);
    if (place->layer >= 0) json_add_integer(where, "layer", place->layer);
    if (place->param) json_add_text(where, "param", place->param);
}

/* A check that measures nothing has no limit: then both are null. */
static void add_checks(cJSON *root, const struct result *result)
{
    static const char *const status_names[] = {"pass", "fail", "skip"};
    cJSON *checks = json_add_array(root, "checks");
    for (int i = 0; i < result->checks_count; i++) {
        const struct check_result *c = &result->checks[i];
        cJSON *check = json_append_object(checks);
        json_add_text(check, "id", c->id);
        json_add_text(check, "status", status_names[c->status]);
        if (isnan(c->limit)) {
            json_add_null(check, "value");
            json_add_null(check, "limit");
        } else {
            json_add_number(check, "value", c->value);
            json_add_number(check, "limit", c->limit);
        }
        json_add_text(check, "why", c->why);
        if (c->status == CHECK_FAIL) add_where(check, &c->place);
        else json_add_null(check, "where");
    }
}

static void add_warnings(cJSON *root, const struct result *result)
{
    cJSON *warnings = json_add_array(root, "warnings");
    for (int i = 0; i < result->warnings_count; i++) json_append_text(warnings, result->warnings[i]);
}

static void add_diagnosis(cJSON *root, const struct result *result)
{
    if (!result->has_diagnosis) {
        json_add_null(root, "diagnosis");
        return;
    }
    const struct diagnosis *d = &result->diagnosis;
    cJSON *diagnosis = json_add_object(root, "diagnosis");
    json_add_text(diagnosis, "component", d->component);
    json_add_text(diagnosis, "site", d->site);
    cJSON *ranks = json_add_array(diagnosis, "ranks");
    for (int i = 0; i < d->ranks_count; i++) json_append_integer(ranks, d->ranks[i]);
    json_add_index(diagnosis, "step", d->place.step);
    json_add_index(diagnosis, "microbatch", d->place.microbatch);
    json_add_index(diagnosis, "layer", d->place.layer);
    json_add_text(diagnosis, "summary", d->summary);
    cJSON *evidence = json_add_array(diagnosis, "evidence");
    for (int i = 0; i < d->evidence_count; i++) {
        const struct evidence_item *e = &d->evidence[i];
        cJSON *item = json_append_object(evidence);
        json_add_text(item, "tensor", e->tensor);
        json_add_number(item, "inputs_agree_to", e->inputs_agree_to);
        json_add_number(item, "differs_by", e->differs_by);
        json_add_text(item, "ratio", e->ratio);
    }
    cJSON *candidates = json_add_array(diagnosis, "candidates");
    for (int i = 0; i < d->candidates_count; i++) {
        cJSON *candidate = json_append_object(candidates);
        json_add_text(candidate, "fault", d->candidates[i].fault);
        json_add_number(candidate, "score", d->candidates[i].score);
    }
}

static void add_faults(cJSON *root, const struct result *result)
{
    static const char *const outcome_names[] = {"active", "masked", "not_hit"};
    cJSON *faults = json_add_array(root, "faults");
    for (int i = 0; i < result->faults_count; i++) {
        const struct fault_result *f = &result->faults[i];
        cJSON *fault = json_append_object(faults);
        char given[FAULT_ENTRY_TEXT];
        json_add_text(fault, "fault", f->fault);
        json_add_text(fault, "given", fault_entry_write(&result->scenario->faults[i], given));
        json_add_text(fault, "site", f->site);
        json_add_unsigned(fault, "hits", f->hits);
        json_add_text(fault, "outcome", outcome_names[f->outcome]);
        json_add_text(fault, "why", f->why);
    }
}

static void add_communication(cJSON *root, const struct record *record)
{
    struct communication all = communication_sum(record);
    cJSON *list = json_add_array(root, "communication");
    for (int i = 0; i < all.count; i++) {
        const struct communication_row *row = &all.rows[i];
        cJSON *object = json_append_object(list);
        json_add_text(object, "purpose", row->purpose);
        json_add_text(object, "op", row->op);
        json_add_text(object, "group", row->group);
        json_add_text(object, "algorithm", row->algorithm);
        json_add_text(object, "format", format_traits[row->format].name);
        json_add_unsigned(object, "count", row->count);
        json_add_unsigned(object, "messages", row->messages);
        json_add_unsigned(object, "bytes", row->bytes);
        cJSON *per_rank = json_add_array(object, "per_rank");
        for (int r = 0; r < record->ranks; r++) {
            cJSON *share = json_append_object(per_rank);
            json_add_unsigned(share, "messages", row->per_rank[r].messages);
            json_add_unsigned(share, "bytes_sent", row->per_rank[r].bytes);
        }
    }
    communication_done(&all);
}

/* idle: until the last rank is done; exposed_comm: waiting for messages before the rank's own end. */
static void add_time(cJSON *root, const struct record *record)
{
    double makespan_s = 0;
    for (int r = 0; r < record->ranks; r++) {
        if (record->rank[r].time_s > makespan_s) makespan_s = record->rank[r].time_s;
    }
    cJSON *time = json_add_object(root, "time");
    json_add_text(time, "unit", "s");
    json_add_number(time, "makespan", makespan_s);
    cJSON *per_rank = json_add_array(time, "per_rank");
    for (int r = 0; r < record->ranks; r++) {
        cJSON *rank = json_append_object(per_rank);
        json_add_number(rank, "busy", record->rank[r].busy_s);
        json_add_number(rank, "idle", makespan_s - record->rank[r].busy_s);
        json_add_number(rank, "exposed_comm", record->rank[r].time_s - record->rank[r].busy_s);
    }
}

static void add_memory(cJSON *root, const struct record *record)
{
    cJSON *per_rank = json_add_array(json_add_object(root, "memory"), "per_rank");
    for (int r = 0; r < record->ranks; r++) {
        const struct rank_record *rank = &record->rank[r];
        cJSON *object = json_append_object(per_rank);
        json_add_integer(object, "param", rank->param_bytes);
        json_add_integer(object, "grad", rank->grad_bytes);
        json_add_integer(object, "optimizer", rank->optimizer_bytes);
        json_add_integer(object, "activation_peak", rank->activation_peak_bytes);
        json_add_integer(object, "peak", rank->peak_bytes);
    }
}

static void add_environment(cJSON *root, const struct report *report)
{
    const struct record *record = report->result->parallel;
    cJSON *environment = json_add_object(root, "environment");
    json_add_text(environment, "gemm", record->gemm);
    json_add_text(environment, "openblas_core", record->openblas_core);
    json_add_text(environment, "cpu_path", record->cpu_path);
    json_add_text(environment, "coroutine", record->coroutine);
    json_add_integer(environment, "threads", report->options->train.threads);
}

static void add_performance(cJSON *root, const struct result *result)
{
    struct rusage usage;
    memset(&usage, 0, sizeof usage);
    getrusage(RUSAGE_SELF, &usage);
    cJSON *performance = json_add_object(root, "performance");
    json_add_number(performance, "wall_s", result->wall_s);
    json_add_number(performance, "parallel_s", result->parallel->wall_s);
    json_add_number(performance, "standalone_s", result->standalone ? result->standalone->wall_s : 0);
    json_add_number(performance, "parallel_cpu_s", result->parallel->cpu_s);
    json_add_number(performance, "standalone_cpu_s", result->standalone ? result->standalone->cpu_s : 0);
    json_add_integer(performance, "peak_rss_bytes", (int64_t)usage.ru_maxrss * 1024);
}

char *report_json(const struct report *report)
{
    const struct result *result = report->result;
    const struct scenario *scenario = result->scenario;
    cJSON *root = cJSON_CreateObject();
    json_add_integer(root, "hpsim", 1);
    json_add_text(root, "scenario", scenario->name);
    json_add_integer(root, "ranks", layout_ranks(&scenario->config.layout));
    json_add_unsigned(root, "seed", scenario->config.seed);
    json_add_unsigned(root, "interleave", report->options->train.interleave);
    json_add_text(root, "version", HPSIM_VERSION);
    json_add_text(root, "verdict", verdict_names[result->verdict]);
    json_add_bool(root, "as_expected", result->as_expected);
    char digest[33];
    hash_hex(result->parallel->digest, digest);
    json_add_text(root, "digest", digest);
    add_steps(root, result);
    if (result->denoise.iterations > 0) json_add_denoise(root, result);
    if (result->context.comparison) json_add_attention(root, result);
    add_checks(root, result);
    add_warnings(root, result);
    add_diagnosis(root, result);
    add_faults(root, result);
    add_environment(root, report);
    add_communication(root, result->parallel);
    add_time(root, result->parallel);
    add_memory(root, result->parallel);
    add_performance(root, result);
    return json_finish(root);
}
