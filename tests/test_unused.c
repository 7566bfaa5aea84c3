/* Parameters that nothing uses, and the two norms: what they may not change, what train.no_gradient does to them under
 * each sharding, an adapter's forward and backward, what weight decay
 * leaves out, what the largest magnitude is, and that what goes wrong with them is caught and named. */
#include <math.h>
#include <stdio.h>

#include "tests/small_run.h"
#include "tests/support/run_suite.h"

enum { LAYOUTS = 9 };
static const struct { int pp, replicate, shard, zero, buckets; } layouts[LAYOUTS] = {
    {1, 3, 1, 0, 0}, {2, 3, 1, 0, 130}, {1, 1, 3, 1, 0}, {2, 1, 3, 1, 210}, {1, 1, 5, 2, 0}, {2, 1, 3, 2, 90},
    {2, 1, 5, 3, 0}, {1, 3, 1, 3, 0}, {1, 1, 15, 3, 0}};

static struct run_config config_of(int i, int adapter_rows)
{
    struct run_config config = small_config();
    struct layout *l = &config.layout;
    l->pp = layouts[i].pp;
    l->dp_replicate = layouts[i].replicate;
    l->dp_shard = layouts[i].shard;
    l->zero = layouts[i].zero;
    l->bucket_elements = layouts[i].buckets;
    l->microbatches = 15 / layout_data_ranks(l);
    l->reshard_after_forward = l->zero == ZERO_3;
    if (l->pp == 1) l->layers_per_stage[0] = 5;
    config.model.adapter_rows = adapter_rows;
    config.train.steps = 3;
    return config;
}

static struct record *record_of(const struct run_config *config)
{
    struct record *record = small_record(*config, false, config->precision, NULL, NULL);
    ck_assert_int_eq(record->outcome, MACHINE_FINISHED);
    return record;
}

static const struct tensor_fact *find(const struct rank_record *rank, enum tensor_kind kind, int step, int param, int64_t first, int64_t elements)
{
    for (int i = 0; i < rank->tensors.count; i++) {
        const struct tensor_fact *f = &rank->tensors.items[i];
        if (f->kind == kind && f->step == step && f->param == param && f->first == first && f->elements == elements) return f;
    }
    return NULL;
}

/* What an update makes of a value without a gradient, step by step in fp32. */
static float decayed(const struct train_config *t, float value)
{
    float velocity = 0;
    for (int step = 0; step < t->steps; step++) {
        if (t->optimizer == OPTIMIZER_ADAMW) {
            value *= (float)(1 - t->lr * t->weight_decay);
        } else {
            float direction = fmaf((float)t->weight_decay, value, 0);
            velocity = step ? fmaf((float)t->momentum, velocity, direction) : direction;
            value = fmaf((float)-t->lr, velocity, value);
        }
    }
    return value;
}

/* Left alone to the bit, or decayed as by zeros; with clipping, in each layout. All elements are seen. */
START_TEST(no_gradient)
{
    for (int mode = 0; mode < 4; mode++) {
        struct run_config config = config_of(_i, 7);
        config.train.no_gradient = mode % 2 ? NO_GRADIENT_ZERO : NO_GRADIENT_SKIP;
        config.train.optimizer = mode / 2 ? OPTIMIZER_SGD : OPTIMIZER_ADAMW;
        config.train.lr = 0.25;
        config.train.momentum = 0.9;
        config.train.grad_clip = 0.01;
        struct record *record = record_of(&config);
        int64_t seen = 0;
        for (int r = 0; r < record->ranks; r++) {
            const struct rank_record *rank = &record->rank[r];
            for (int i = 0; i < rank->tensors.count; i++) {
                const struct tensor_fact *last = &rank->tensors.items[i];
                if (last->step != 2 || last->kind != TENSOR_PARAM || !record->params.params[last->param].info.is_adapter) continue;
                const struct tensor_fact *first = find(rank, TENSOR_PARAM, -1, last->param, last->first, last->elements);
                ck_assert_ptr_nonnull(first);
                const float *before = first->data, *after = last->data;
                for (int64_t k = 0; k < last->elements; k++) {
                    float due = mode % 2 ? decayed(&config.train, before[k]) : before[k];
                    ck_assert_msg(after[k] == due, "layout %d mode %d: %a is due, got %a", _i, mode, due, after[k]);
                    ck_assert(before[k] != 0);
                    seen += last->replica == 0;
                }
            }
            for (int i = 0; i < rank->updates.count; i++) {
                const struct update_fact *f = &rank->updates.items[i];
                if (record->params.params[f->param].info.is_adapter && f->elements > 0) ck_assert_int_eq(f->updates, mode % 2);
            }
        }
        ck_assert_int_eq(seen, 5 * 7 * 12);
        record_free(record);
    }
}
END_TEST

/* They are there and nothing else changes: losses, where sums keep their order to the bit, and norms. */
START_TEST(nothing_else_changes)
{
    struct run_config with = config_of(_i, 7), without = config_of(_i, 0);
    with.train.no_gradient = NO_GRADIENT_ZERO;
    with.train.grad_clip = without.train.grad_clip = 0; /* norms may round otherwise */
    with.layout.bucket_elements = without.layout.bucket_elements = 0;
    snprintf(with.layout.all_reduce, sizeof with.layout.all_reduce, "fold"); /* an order that no count changes */
    snprintf(without.layout.all_reduce, sizeof without.layout.all_reduce, "fold");
    struct record *a = record_of(&with), *b = record_of(&without);
    ck_assert_int_eq(a->params.count, b->params.count + 5);
    bool same_order = with.layout.zero == ZERO_0 || with.layout.zero == ZERO_3; /* else other members own other elements */
    for (int r = 0; r < a->ranks; r++) {
        for (int i = 0; i < b->rank[r].norms.count; i++)
            ck_assert_double_eq_tol(a->rank[r].norms.items[i].norm / b->rank[r].norms.items[i].norm, 1, 1e-6);
        ck_assert_int_eq(a->rank[r].losses.count, b->rank[r].losses.count);
        for (int i = 0; i < b->rank[r].losses.count; i++) {
            double one = a->rank[r].losses.items[i].loss_sum, other = b->rank[r].losses.items[i].loss_sum;
            ck_assert_double_eq_tol(one / other, 1, 1e-6);
            if (same_order) ck_assert_double_eq(one, other);
        }
    }
    record_free(a);
    record_free(b);
}
END_TEST

/* The largest magnitude of all captured gradients, exactly, on every rank; and it clips. */
START_TEST(largest_magnitude)
{
    struct run_config config = config_of(_i, 2);
    config.train.grad_norm = GRAD_NORM_INF;
    config.train.grad_clip = 0.02;
    struct record *record = record_of(&config);
    for (int step = 0; step < config.train.steps; step++) {
        double largest = 0;
        for (int r = 0; r < record->ranks; r++) {
            for (int i = 0; i < record->rank[r].tensors.count; i++) {
                const struct tensor_fact *f = &record->rank[r].tensors.items[i];
                const float *values = f->data;
                for (int64_t k = 0; f->kind == TENSOR_GRADIENT && f->step == step && k < f->elements; k++)
                    largest = fmax(largest, fabsf(values[k]));
            }
        }
        ck_assert_double_gt(largest, config.train.grad_clip);
        for (int r = 0; r < record->ranks; r++) {
            ck_assert_double_eq(record->rank[r].norms.items[step].norm, largest);
            ck_assert_double_eq(record->rank[r].norms.items[step].coefficient, config.train.grad_clip / (largest + 1e-6));
        }
    }
    record_free(record);
}
END_TEST

/* One step of SGD from the captured gradient, element by element: norms and biases are not decayed where no_decay says so. */
START_TEST(no_decay)
{
    for (int exempt = 0; exempt < 2; exempt++) {
        struct run_config config = config_of(_i, 2);
        config.model.bias = true;
        config.train.steps = 1;
        config.train.optimizer = OPTIMIZER_SGD;
        config.train.grad_clip = 0;
        config.train.no_gradient = NO_GRADIENT_ZERO;
        config.train.no_decay = exempt ? NO_DECAY_VECTORS : NO_DECAY_NONE;
        struct record *record = record_of(&config);
        int64_t seen[2] = {0};
        for (int r = 0; r < record->ranks; r++) {
            for (int i = 0; i < record->rank[r].tensors.count; i++) {
                const struct tensor_fact *g = &record->rank[r].tensors.items[i];
                if (g->kind != TENSOR_GRADIENT) continue;
                const struct tensor_fact *first = find(&record->rank[r], TENSOR_PARAM, -1, g->param, g->first, g->elements),
                                         *last = find(&record->rank[r], TENSOR_PARAM, 0, g->param, g->first, g->elements);
                bool vector = record->params.params[g->param].info.dims == 1;
                const float *gradient = g->data, *before = first->data, *after = last->data;
                for (int64_t k = 0; k < g->elements; k++) {
                    float direction = vector && exempt ? gradient[k] : fmaf((float)config.train.weight_decay, before[k], gradient[k]);
                    ck_assert_float_eq(after[k], fmaf((float)-config.train.lr, direction, before[k]));
                }
                seen[vector] += g->elements;
            }
        }
        ck_assert(seen[0] > 0 && seen[1] > 0);
        record_free(record);
    }
}
END_TEST

static void add_sketches(const struct record *record, int unit, enum sketch_kind kind, int microbatch, double sign, double sum[4])
{
    for (int i = 0; i < record->rank[0].sketches.count; i++) {
        const struct sketch_fact *f = &record->rank[0].sketches.items[i];
        if (f->step != 0 || f->unit != unit || f->kind != kind || f->microbatch != microbatch) continue;
        for (int k = 0; k < 4; k++) sum[k] += sign * f->value[k];
    }
}

static void sketch_of_adapter(const struct record *record, enum tensor_kind kind, int step, double ret[5])
{
    struct error error = {0};
    const struct ops *ops = ops_get(FORMAT_FP64, NULL, "fixed", &error);
    for (int i = 0; i < record->rank[0].tensors.count; i++) {
        const struct tensor_fact *f = &record->rank[0].tensors.items[i];
        bool first = record->params.params[f->param].info.is_adapter && record->params.params[f->param].unit == 1;
        if (first && f->kind == kind && f->step == step) ops->vector_sketch(ret, f->data, (size_t)f->elements);
    }
}

/* With a row a position: the first layer's output is W more where it is used, the same where not, and W's gradient is the
 * sum of the output's gradients of those sequences. Sketches are linear. */
START_TEST(forward_and_backward)
{
    struct run_config config = config_of(0, 18);
    config.layout.dp_replicate = 1;
    config.layout.microbatches = 5; /* of three sequences */
    config.precision = precision_of(FORMAT_FP64);
    ck_assert_int_eq(config.model.seq, 18);
    struct record *without = record_of(&config);
    config.model.adapter_used = ADAPTER_FIRST_MICROBATCH;
    struct record *with = record_of(&config);
    double w[5] = {0}, gradient[5] = {0}, due[4] = {0};
    sketch_of_adapter(with, TENSOR_PARAM, -1, w);
    sketch_of_adapter(with, TENSOR_GRADIENT, 0, gradient);
    add_sketches(with, 2, SKETCH_BACKWARD_OUT, 0, 1, due);
    ck_assert_double_gt(gradient[4], 0);
    for (int k = 0; k < 4; k++) ck_assert_double_eq_tol(gradient[k], due[k], 1e-12 * sqrt(gradient[4]) + 1e-15);
    for (int m = 0; m < 5; m++) {
        double more[4] = {0};
        add_sketches(with, 1, SKETCH_FORWARD_OUT, m, 1, more);
        add_sketches(without, 1, SKETCH_FORWARD_OUT, m, -1, more);
        for (int k = 0; k < 4; k++) ck_assert_double_eq_tol(more[k], m == 0 ? 3 * w[k] : 0, 1e-12);
        if (m == 0) ck_assert_double_gt(fabs(more[0]), 1e-6);
    }
    record_free(with);
    record_free(without);
}
END_TEST

/* Healthy runs raise nothing; what goes wrong is named. */
static const struct {
    const char *site, *deviation, *text;
    int layout, rank, layer;
    enum adapter_used used;
    const char *component, *ranks;
} cases[] = {
    {"ddp.ready", "never", NULL, 0, -1, -1, ADAPTER_NEVER, "ddp", "0 1 2"},
    {"ddp.ready", "never", NULL, 0, 1, -1, ADAPTER_NEVER, "ddp", "1"},
    {"ddp.ready", "never", NULL, 0, -1, 2, ADAPTER_NEVER, "ddp", "0 1 2"},
    {"ddp.ready", "never", NULL, 2, -1, 3, ADAPTER_NEVER, "ddp", "0 1 2"},
    {"ddp.ready", "never", NULL, 2, 2, -1, ADAPTER_NEVER, "ddp", "2"},
    {"optimizer.no_gradient", "never", NULL, 0, 1, -1, ADAPTER_NEVER, "optimizer", "1"},
    {"optimizer.no_gradient", "never", NULL, 5, -1, 3, ADAPTER_NEVER, "optimizer", NULL},
    {"optimizer.no_gradient", "never", NULL, 7, -1, 3, ADAPTER_NEVER, "optimizer", "0 1 2"},
    {"optimizer.entries", "set", "2", 0, 1, 3, ADAPTER_NEVER, "optimizer", "1"},
    {"optimizer.entries", "set", "2", 6, 2, -1, ADAPTER_NEVER, "optimizer", "2"},
    {"clip.empty_shard", "never", NULL, 6, -1, -1, ADAPTER_NEVER, "grad.norm", NULL},
    {"clip.empty_shard", "never", NULL, 8, 14, -1, ADAPTER_NEVER, "grad.norm", NULL},
    {"clip.empty_shard", "never", NULL, 5, -1, -1, ADAPTER_NEVER, "grad.norm", NULL},
    {"ddp.ready", "never", NULL, 0, -1, -1, ADAPTER_FIRST_DATA_RANK, "ddp", "1 2"},
    {"ddp.ready", "never", NULL, 2, -1, 3, ADAPTER_FIRST_DATA_RANK, "ddp", "1 2"},
    {"ddp.ready", "never", NULL, 2, -1, -1, ADAPTER_FIRST_MICROBATCH, "ddp", "0 1 2"},
    {"clip.empty_shard", "never", NULL, 6, -1, -1, ADAPTER_FIRST_MICROBATCH, "grad.norm", NULL},
    {"fsdp.no_decay", "never", NULL, 6, 2, 1, ADAPTER_NEVER, "fsdp.params", "2"},
    {"fsdp.no_decay", "never", NULL, 5, -1, -1, ADAPTER_NEVER, "fsdp.params", NULL},
    {"optimizer.group", "never", NULL, 6, 2, 1, ADAPTER_NEVER, "optimizer", "2"},
};

START_TEST(place_is_found)
{
    struct run_config config = config_of(cases[_i].layout, 2);
    config.model.adapter_used = cases[_i].used;
    config.train.no_decay = NO_DECAY_VECTORS;
    config.train.grad_norm = !strncmp(cases[_i].site, "clip", 4) ? GRAD_NORM_INF : GRAD_NORM_L2;
    struct small_fault fault = {cases[_i].site, cases[_i].deviation, cases[_i].text, 0, cases[_i].rank, -1, -1, cases[_i].layer};
    for (int armed = 0; armed < 2; armed++) {
        struct small_run run = small_run_new(&config, armed ? &fault : NULL, false);
        struct result result = small_judge(&run);
        if (!armed) {
            for (int c = 0; c < result.checks_count; c++) ck_assert_msg(result.checks[c].status != CHECK_FAIL, "%d: %s: %s", _i, result.checks[c].id, result.checks[c].why);
        } else {
            char ranks[128] = "";
            const struct diagnosis *d = &result.diagnosis;
            ck_assert_msg(run.hits > 0 && result.has_diagnosis, "case %d: %d hits, no diagnosis", _i, (int)run.hits);
            for (int i = 0; i < d->ranks_count; i++) snprintf(ranks + strlen(ranks), 128 - strlen(ranks), "%s%d", i ? " " : "", d->ranks[i]);
            ck_assert_msg(!strcmp(d->component, cases[_i].component) && !strcmp(d->site, cases[_i].site), "case %d: %s at %s: %s", _i, d->component, d->site, d->summary);
            ck_assert_msg(!cases[_i].ranks || !strcmp(ranks, cases[_i].ranks), "case %d: ranks %s: %s", _i, ranks, d->summary);
            if (cases[_i].layer >= 0) ck_assert_int_eq(d->place.layer, cases[_i].layer);
        }
        arena_free(result.arena);
        small_run_free(&run);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("unused");
    TCase *tcase = tcase_create("unused");
    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, no_gradient, 0, LAYOUTS);
    tcase_add_loop_test(tcase, nothing_else_changes, 0, LAYOUTS);
    tcase_add_loop_test(tcase, largest_magnitude, 0, LAYOUTS);
    tcase_add_loop_test(tcase, no_decay, 0, LAYOUTS);
    tcase_add_test(tcase, forward_and_backward);
    tcase_add_loop_test(tcase, place_is_found, 0, (int)(sizeof cases / sizeof cases[0]));
    suite_add_tcase(suite, tcase);
    return run_suite(suite, CK_FORK_GETENV);
}
