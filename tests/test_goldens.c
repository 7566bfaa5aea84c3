/* goldens: ten steps of training equal PyTorch's, for the same weights and data.
 *
 * The numbers in tests/goldens come from tools/goldens/make_goldens.py, which is PyTorch's own autograd and
 * optimizers and packs the text independently, and from make_seed_goldens.py, which runs the model code of the
 * report that pangu_moe is named after. Compared: loss, norm, every raw gradient and every updated parameter of
 * every step (relative Frobenius norm, and relative error over sampled elements), standalone and in parallel
 * layouts, to 1e-10 in fp64 and 1e-5 in fp32. A key bias' gradient, which is 0 in exact arithmetic, is held
 * against the size of its terms; its updates are noise and are left out.
 * Which earlier positions a token changes through the view of the report's attention output, as counted there.
 * That the comparison can fail: another router, one bit of one expert's weight, the report's mistake in the
 * attention output's view left out, and that mistake in a batch that is cut. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/deviations.h"
#include "model/params.h"
#include "model/sites.h"
#include "model/train.h"
#include "sim/arena.h"

static const char *folder = ".";   /* of the source tree: argv[1] */
static uint8_t *text;
static long text_bytes;

struct golden_case {
    const char *name, *weights; /* weights NULL: of the same name */
    int batch, steps;
    bool mixes;                 /* made with the output view's mistake, which mixes the sequences of a micro-batch */
    struct model_config model;
    struct train_config train;
};

#define PANGU_MOE                                                                                                       \
    {.layers = 3, .dim = 20, .heads = 5, .kv_heads = 5, .head_dim = 6, .ffn = 28, .seq = 19, .causal = true,             \
     .bias = true, .attention = ATTENTION_MLA, .mla = {7, 9},                                                            \
     .moe = {.experts = 7, .top_k = 3, .expert_ffn = 11, .shared_ffn = 13, .dense = {1}, .score = MOE_SCORE_SIGMOID,     \
             .normalize = MOE_NORMALIZE_SOFTMAX, .routed_scaling = 2.5}}
static const struct golden_case cases[] = {
    {"mha_adamw", NULL, 6, 10, false, {.layers = 3, .dim = 20, .heads = 5, .kv_heads = 5, .head_dim = 4, .ffn = 28, .seq = 19, .rope = true, .causal = true},
     {.optimizer = OPTIMIZER_ADAMW, .lr = 2e-3, .beta1 = .9, .beta2 = .95, .eps = 1e-8, .weight_decay = .1, .grad_clip = 1}},
    {"gqa_bias_tied_sgd", NULL, 6, 10, false, {.layers = 2, .dim = 18, .heads = 6, .kv_heads = 2, .head_dim = 6, .ffn = 22, .seq = 23, .rope = true,
                           .causal = true, .bias = true, .tie_embeddings = true, .document_mask = true},
     {.optimizer = OPTIMIZER_SGD, .lr = .05, .momentum = .9, .weight_decay = .01}},
    {"bidirectional_adamw", NULL, 6, 10, false, {.layers = 2, .dim = 14, .heads = 7, .kv_heads = 1, .head_dim = 2, .ffn = 26, .seq = 17},
     {.optimizer = OPTIMIZER_ADAMW, .lr = 1e-3, .beta1 = .8, .beta2 = .9, .eps = 1e-6, .grad_clip = .7}},
    {"pangu_moe", NULL, 6, 10, false, PANGU_MOE,
     {.optimizer = OPTIMIZER_ADAMW, .lr = 2e-3, .beta1 = .9, .beta2 = .95, .eps = 1e-8, .weight_decay = .1, .grad_clip = 1}},
    {"pangu_moe_as_shipped", "pangu_moe", 1, 10, false, PANGU_MOE, {.optimizer = OPTIMIZER_SGD, .lr = .05, .momentum = .9, .weight_decay = .01}},
    {"pangu_moe_view", "pangu_moe", 4, 3, true, PANGU_MOE, {.optimizer = OPTIMIZER_SGD, .lr = .07, .momentum = .8, .grad_clip = .7}},
    /* Its sizes split for two tensor-parallel ranks. */
    {"slices_adamw", NULL, 6, 10, false, {.layers = 2, .dim = 22, .heads = 6, .kv_heads = 2, .head_dim = 4, .ffn = 26, .seq = 18, .rope = true, .causal = true, .bias = true},
     {.optimizer = OPTIMIZER_ADAMW, .lr = 2e-3, .beta1 = .9, .beta2 = .95, .eps = 1e-8, .weight_decay = .1, .grad_clip = 1}},
};
enum { CASE_PANGU_MOE = 3, CASE_VIEW = 5, CASES = sizeof cases / sizeof cases[0] };
static const struct layout layouts[] = {
    {.pp = 1, .dp_replicate = 1, .dp_shard = 1, .tp = 1, .microbatches = 1, .schedule = "1F1B", .zero = ZERO_0},
    {.pp = 2, .dp_replicate = 1, .dp_shard = 3, .tp = 1, .microbatches = 2, .schedule = "1F1B", .zero = ZERO_3, .reshard_after_forward = true,
     .reduce_op = FSDP_REDUCE_AVG, .sync = SYNC_EACH_MICROBATCH},
    {.pp = 2, .dp_replicate = 2, .dp_shard = 1, .tp = 1, .microbatches = 3, .schedule = "GPipe", .zero = ZERO_0, .reduce_op = FSDP_REDUCE_SUM, .send_sync = true},
    /* The batch in one piece, for cases that cannot be cut. */
    {.pp = 2, .dp_replicate = 1, .dp_shard = 1, .tp = 1, .microbatches = 1, .schedule = "GPipe", .zero = ZERO_0, .send_sync = true},
    {.pp = 3, .dp_replicate = 1, .dp_shard = 1, .tp = 1, .microbatches = 1, .schedule = "1F1B", .zero = ZERO_3, .reshard_after_forward = true},
    /* Tensor parallelism, then with slices between its parts. */
    {.pp = 1, .dp_replicate = 1, .dp_shard = 3, .tp = 2, .microbatches = 2, .schedule = "1F1B", .zero = ZERO_2, .reduce_op = FSDP_REDUCE_SUM},
    {.pp = 2, .dp_replicate = 1, .dp_shard = 3, .tp = 2, .microbatches = 1, .schedule = "1F1B", .zero = ZERO_3, .reshard_after_forward = true, .sequence_parallel = true},
    {.pp = 1, .dp_replicate = 1, .dp_shard = 1, .tp = 2, .microbatches = 2, .schedule = "GPipe", .zero = ZERO_0, .sequence_parallel = true, .recompute = {RECOMPUTE_FULL, 0}},
};
enum { LAYOUTS = sizeof layouts / sizeof layouts[0] };

static bool fits(const struct golden_case *c, const struct layout *layout)
{
    const struct model_config *m = &c->model;
    int parts = layout_data_ranks(layout) * layout->microbatches, tp = layout->tp;
    if (m->heads % tp != 0 || m->kv_heads % tp != 0 || m->ffn % tp != 0 || (layout_slices_sequences(layout) && m->seq % tp != 0)) return false;
    return layout->pp <= c->model.layers && c->batch % parts == 0 && (!c->mixes || parts == 1);
}

/* How far a run is off, in units of what is allowed, and where that is worst. */
struct worst { double tolerance, off; int compared; char what[256]; };

/* One whole parameter or gradient, put together from replica 0's shards, in fp64. */
static double *assemble(const struct record *record, int step, enum tensor_kind kind, int param, int64_t *ret_count)
{
    const struct param *p = &record->params.params[param];
    double *whole = memory_zalloc((size_t)(p->rows * p->columns) * sizeof *whole);
    int64_t covered = 0;
    for (int r = 0; r < record->ranks; r++) {
        for (int i = 0; i < record->rank[r].tensors.count; i++) {
            const struct tensor_fact *f = &record->rank[r].tensors.items[i];
            if (f->step != step || f->kind != kind || f->param != param || f->replica != 0) continue;
            for (int64_t j = 0; j < f->elements; j++) {
                whole[param_cut_element(&p->info, record->config.layout.tp, f->part, f->first + j)] = format_get(f->data, (size_t)j, run_storage(&record->config));
            }
            covered += f->elements;
        }
    }
    ck_assert_int_eq(covered, p->rows * p->columns);
    *ret_count = p->rows * p->columns;
    return whole;
}

/* NAME or NAME[first:end], which is those elements alone. */
struct range { int param; int64_t first, end; };

static struct range range_of(const struct record *record, const char *name)
{
    size_t length = strcspn(name, "[");
    for (int i = 0; i < record->params.count; i++) {
        const struct param *p = &record->params.params[i];
        if (strlen(p->info.name) != length || strncmp(p->info.name, name, length)) continue;
        struct range range = {i, 0, p->rows * p->columns};
        if (name[length]) ck_assert_int_eq(sscanf(name + length, "[%ld:%ld]", &range.first, &range.end), 2);
        ck_assert(range.first < range.end && range.end <= p->rows * p->columns);
        return range;
    }
    ck_abort_msg("no parameter %s", name);
}

static void note(struct worst *worst, double difference, double size, const char *what)
{
    double off = difference / fmax(size, 1e-300) / worst->tolerance;
    worst->compared++;
    if (off <= worst->off) return; /* what is not a number is worst */
    worst->off = off;
    snprintf(worst->what, sizeof worst->what, "%s: differs by %g, size %g", what, difference, size);
}

static void near(struct worst *worst, double got, double due, const char *what)
{
    note(worst, fabs(got - due), fabs(due), what);
}

static void hold_tensor(const struct record *record, const char *line, struct worst *worst)
{
    char kind[8], name[64];
    int step, samples, used;
    double norm, squares = 0, difference = 0, size = 0;
    ck_assert_int_eq(sscanf(line, "%7s %d %63s %lf %d%n", kind, &step, name, &norm, &samples, &used), 5);
    struct range range = range_of(record, name);
    int64_t count;
    double *whole = assemble(record, step, kind[0] == 'g' ? TENSOR_GRADIENT : TENSOR_PARAM, range.param, &count);
    for (int64_t i = range.first; i < range.end; i++) squares += whole[i] * whole[i];
    char what[160];
    snprintf(what, sizeof what, "step %d %s of %s", step, kind, name);
    near(worst, sqrt(squares), norm, what);
    const char *at = line + used;
    ck_assert_int_gt(samples, 0);
    for (int i = 0; i < samples; i++) {
        int64_t index;
        double value;
        ck_assert_int_eq(sscanf(at, "%ld %lf%n", &index, &value, &used), 2);
        ck_assert_int_lt(range.first + index, range.end);
        difference += (whole[range.first + index] - value) * (whole[range.first + index] - value);
        size += value * value;
        at += used;
    }
    double typical = norm * norm * samples / (double)(range.end - range.first); /* where the samples happen to be small */
    strncat(what, ", sampled", sizeof what - strlen(what) - 1);
    note(worst, sqrt(difference), sqrt(fmax(size, typical)), what);
    free(whole);
}

/* What is zero in exact arithmetic, against the size of the terms that cancel. */
static void hold_zero(const struct record *record, int step, const char *name, struct worst *worst)
{
    struct range range = range_of(record, name);
    int64_t count;
    double *whole = assemble(record, step, TENSOR_GRADIENT, range.param, &count), squares = 0, terms = 0;
    for (int64_t i = range.first; i < range.end; i++) squares += whole[i] * whole[i];
    for (int r = 0; r < record->ranks; r++) {
        for (int i = 0; i < record->rank[r].tensors.count; i++) {
            const struct tensor_fact *f = &record->rank[r].tensors.items[i];
            if (f->step == step && f->kind == TENSOR_GRADIENT && f->param == range.param && f->replica == 0)
                terms += f->terms_norm * f->terms_norm;
        }
    }
    ck_assert_double_gt(terms, 0);
    note(worst, sqrt(squares), sqrt(terms), name);
    free(whole);
}

static void hold_loss(const struct record *record, int step, double due, struct worst *worst)
{
    double loss = 0;
    for (int r = 0; r < record->ranks; r++) {
        for (int i = 0; i < record->rank[r].losses.count; i++) {
            const struct loss_fact *f = &record->rank[r].losses.items[i];
            if (f->step == step && record->rank[r].tp == 0) loss += f->backward_loss; /* each tp rank has the whole loss */
        }
    }
    if (record->config.layout.reduce_op == FSDP_REDUCE_AVG) loss /= layout_data_ranks(&record->config.layout);
    near(worst, loss, due, "loss.parallel");
    near(worst, record->rank[0].reports.items[step].logged, due, "loss.logged");
}

static struct worst hold(const struct record *record, const struct golden_case *c, double tolerance)
{
    char path[1200], name[64];
    snprintf(path, sizeof path, "%s/tests/goldens/%s.txt", folder, c->name);
    FILE *file = fopen(path, "r");
    ck_assert_msg(file != NULL, "cannot open %s", path);
    struct worst worst = {.tolerance = tolerance, .off = 0};
    int grads = 0, params = 0;
    for (char line[4096]; fgets(line, sizeof line, file);) {
        int step;
        double due;
        if (sscanf(line, "loss %d %lf", &step, &due) == 2) {
            hold_loss(record, step, due, &worst);
        } else if (sscanf(line, "norm %d %lf", &step, &due) == 2) {
            for (int r = 0; r < record->ranks; r++) near(&worst, record->rank[r].norms.items[step].norm, due, "norm");
        } else if (sscanf(line, "zero %d %63s", &step, name) == 2) {
            hold_zero(record, step, name, &worst);
        } else {
            hold_tensor(record, line, &worst);
            grads += line[0] == 'g';
            params += line[0] == 'p';
        }
    }
    ck_assert_int_eq(grads, c->steps * record->params.count); /* nothing is left out, but noise */
    ck_assert_int_eq(params, grads);
    fclose(file);
    return worst;
}

static struct site_plan *arm_view(int ranks)
{
    struct site_plan *plan = site_plan_new(ranks);
    struct armed armed = {.site = model_site_find("attention.output_view")};
    for (int i = 0; i < model_deviation_count(); i++) {
        if (!strcmp(model_deviation(i)->name, "wrong-axis")) armed.deviation = model_deviation(i);
    }
    ck_assert(armed.site && armed.deviation);
    site_plan_arm(plan, &armed);
    return plan;
}

/* weights NULL: the case's own. */
static struct worst run(const struct golden_case *c, const struct layout *layout, enum format format, const char *weights)
{
    struct run_config config = {.seed = 1, .model = c->model, .train = c->train, .layout = *layout, .precision = precision_of(format),
        .data = {text, text_bytes, PACKING_DOCUMENTS}, .machine = {8, 400, 3, 400, 8, 50}};
    config.model.vocab = 256;
    config.model.norm_eps = 1e-5;
    config.model.rope_base = 10000;
    config.train.steps = c->steps;
    config.train.global_batch = c->batch;
    if (weights) snprintf(config.model.weights, sizeof config.model.weights, "%s", weights);
    else snprintf(config.model.weights, sizeof config.model.weights, "%s/tests/goldens/%s.weights.safetensors", folder, c->weights ? c->weights : c->name);
    for (int s = 0; s < layout->pp; s++) config.layout.layers_per_stage[s] = s == 0 ? c->model.layers - layout->pp + 1 : 1;
    struct error error = {0};
    struct train_options options = {.threads = 1};
    struct site_plan *plan = c->mixes ? arm_view(layout_ranks(layout)) : NULL;
    struct record *record = train_run(&config, plan, &options, &error);
    ck_assert_msg(record != NULL, "%s", error.message);
    ck_assert_int_eq(record->outcome, MACHINE_FINISHED);
    ck_assert(!plan || site_hits(plan, 0) > 0);
    struct worst worst = hold(record, c, format == FORMAT_FP64 ? 1e-10 : 1e-5);
    record_free(record);
    site_plan_free(plan);
    return worst;
}

START_TEST(ten_steps_equal_pytorch)
{
    const struct golden_case *c = &cases[_i / LAYOUTS / 2];
    const struct layout *layout = &layouts[_i / 2 % LAYOUTS];
    if (!fits(c, layout)) return;
    struct worst worst = run(c, layout, _i % 2 ? FORMAT_FP32 : FORMAT_FP64, NULL);
    ck_assert_msg(worst.off <= 1, "%s, layout %d: %g times the limit %g: %s", c->name, (int)(layout - layouts), worst.off, worst.tolerance, worst.what);
}
END_TEST

START_TEST(each_case_fits_three_layouts)
{
    int fitting = 0;
    for (int i = 0; i < LAYOUTS; i++) fitting += fits(&cases[_i], &layouts[i]);
    ck_assert_int_ge(fitting, 3);
}
END_TEST

/* ---- which positions a token reaches ---- */

static struct record *forward_record(struct run_config *config, const struct token_edit *edit, bool mixes)
{
    struct error error = {0};
    struct train_options options = {.threads = 1, .look = true, .edit = edit};
    struct site_plan *plan = mixes ? arm_view(1) : NULL;
    struct record *record = train_run(config, plan, &options, &error);
    ck_assert_msg(record != NULL, "%s", error.message);
    site_plan_free(plan);
    return record;
}

/* Earlier positions of all sequences that differ at the last layer's output. */
static int count_leaks(const struct record *a, const struct record *b, int position, int *ret_earlier)
{
    int leaks = 0;
    *ret_earlier = 0;
    ck_assert_int_eq(a->rank[0].rows.count, b->rank[0].rows.count);
    for (int i = 0; i < a->rank[0].rows.count; i++) {
        const struct rows_fact *f = &a->rank[0].rows.items[i], *g = &b->rank[0].rows.items[i];
        if (f->site != &site_layer_forward || f->unit != a->config.model.layers) continue;
        ck_assert(f->sequence == g->sequence && f->site == g->site && f->unit == g->unit);
        for (int t = 0; t < position; t++) leaks += f->row[t] != g->row[t];
        *ret_earlier += position;
    }
    return leaks;
}

static int leaks_of(int batch, int seq, int position, bool mixes, int *ret_earlier)
{
    struct run_config config = {.seed = 1, .model = PANGU_MOE, .layout = layouts[0], .precision = precision_of(FORMAT_FP64),
        .train = {.steps = 1, .global_batch = batch, .optimizer = OPTIMIZER_SGD, .lr = .1},
        .data = {text, text_bytes, PACKING_STREAM}, .machine = {8, 400, 3, 400, 8, 50}};
    struct token_edit edit = {.sequence = 0, .position = position, .by = 1};
    config.model.layers = config.layout.layers_per_stage[0] = 2;
    config.model.seq = seq;
    config.model.vocab = 256;
    config.model.norm_eps = 1e-5;
    config.model.initial = INITIAL_PYTORCH;
    struct record *before = forward_record(&config, NULL, mixes), *after = forward_record(&config, &edit, mixes);
    int leaks = count_leaks(before, after, position, ret_earlier);
    record_free(before);
    record_free(after);
    return leaks;
}

START_TEST(the_view_leaks_as_in_pytorch)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/tests/goldens/pangu_moe_leaks.txt", folder);
    FILE *file = fopen(path, "r");
    ck_assert_msg(file != NULL, "cannot open %s", path);
    int batch, seq, position, due, earlier, got_earlier, lines = 0;
    for (; fscanf(file, "%d %d %d %d %d", &batch, &seq, &position, &due, &earlier) == 5; lines++) {
        ck_assert_int_eq(leaks_of(batch, seq, position, true, &got_earlier), due);
        ck_assert_int_eq(got_earlier, earlier);
        ck_assert_int_eq(leaks_of(batch, seq, position, false, &got_earlier), 0);
    }
    ck_assert_int_ge(lines, 4);
    fclose(file);
}
END_TEST

/* ---- the comparison can fail ---- */

static void expect_other(const struct golden_case *c, const struct layout *layout, enum format format, const char *weights)
{
    struct worst worst = run(c, layout, format, weights);
    ck_assert_msg(!(worst.off <= 10), "not seen; %g times the limit: %s", worst.off, worst.what);
}

START_TEST(another_router_is_seen)
{
    struct golden_case c = cases[CASE_PANGU_MOE];
    if (_i == 0) c.model.moe.normalize = MOE_NORMALIZE_SUM;
    if (_i == 1) c.model.moe.score = MOE_SCORE_SOFTMAX;
    if (_i == 2) c.model.moe.routed_scaling = 2.501;
    expect_other(&c, &layouts[1], FORMAT_FP32, NULL);
}
END_TEST

/* Where a tensor's numbers begin in a file; the header was written by tools/goldens. */
static size_t data_at(const char *bytes, const char *name)
{
    uint64_t header = 0;
    size_t begin;
    for (int i = 7; i >= 0; i--) header = header << 8 | (uint8_t)bytes[i];
    const char *at = strstr(bytes + 8, name);
    ck_assert_ptr_nonnull(at);
    ck_assert_int_eq(sscanf(strstr(at, "data_offsets"), "data_offsets\": [%zu", &begin), 1);
    return 8 + (size_t)header + begin;
}

START_TEST(one_bit_of_an_expert_is_seen)
{
    static char bytes[1 << 18];
    char path[1200];
    snprintf(path, sizeof path, "%s/tests/goldens/pangu_moe.weights.safetensors", folder);
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    size_t length = fread(bytes, 1, sizeof bytes - 1, file);
    ck_assert_int_lt(length, sizeof bytes - 1);
    fclose(file);
    bytes[data_at(bytes, "\"layers.2.moe.experts.5.w3.weight\"") + 17 * 4] ^= 1; /* the lowest bit of element 17 */
    const char *base = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/hpsim_goldens_XXXXXX", base ? base : P_tmpdir);
    int handle = mkstemp(path);
    ck_assert_int_ge(handle, 0);
    file = fdopen(handle, "wb");
    ck_assert(fwrite(bytes, 1, length, file) == length && fclose(file) == 0);
    expect_other(&cases[CASE_PANGU_MOE], &layouts[0], FORMAT_FP64, path);
    remove(path);
}
END_TEST

START_TEST(the_view_that_mixes_is_seen)
{
    struct golden_case right = cases[CASE_VIEW], wrong = cases[CASE_PANGU_MOE];
    right.mixes = false;
    wrong.mixes = true;
    expect_other(&right, &layouts[0], FORMAT_FP32, NULL);
    expect_other(&wrong, &layouts[0], FORMAT_FP32, NULL);
    /* The report's own finding: in micro-batches the same mistake gives other losses. */
    struct layout cut = layouts[0];
    cut.microbatches = 2;
    expect_other(&cases[CASE_VIEW], &cut, FORMAT_FP32, NULL);
}
END_TEST

/* One sequence has nothing to mix with: in micro-batches of one, the mistake is not there. */
START_TEST(the_view_is_right_for_one_sequence)
{
    struct golden_case c = cases[CASE_PANGU_MOE];
    struct layout layout = layouts[_i == 0 ? 0 : 3];
    layout.microbatches = c.batch;
    c.mixes = true;
    struct worst worst = run(&c, &layout, FORMAT_FP64, NULL);
    ck_assert_msg(worst.off <= 1, "%g times the limit: %s", worst.off, worst.what);
}
END_TEST

int main(int argc, char **argv)
{
    if (argc > 1) folder = argv[1];
    char path[1024];
    snprintf(path, sizeof path, "%s/scenarios/corpus.txt", folder);
    FILE *file = fopen(path, "rb");
    if (!file) {
        fprintf(stderr, "cannot open %s\n", path);
        return 1;
    }
    text = memory_alloc(1 << 20);
    text_bytes = (long)fread(text, 1, 1 << 20, file);
    fclose(file);
    Suite *suite = suite_create("goldens");
    TCase *tcase = tcase_create("goldens");
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, ten_steps_equal_pytorch, 0, CASES * LAYOUTS * 2);
    tcase_add_loop_test(tcase, each_case_fits_three_layouts, 0, CASES);
    tcase_add_test(tcase, the_view_leaks_as_in_pytorch);
    tcase_add_loop_test(tcase, another_router_is_seen, 0, 3);
    tcase_add_test(tcase, one_bit_of_an_expert_is_seen);
    tcase_add_test(tcase, the_view_that_mixes_is_seen);
    tcase_add_loop_test(tcase, the_view_is_right_for_one_sequence, 0, 2);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    free(text);
    return failed ? 1 : 0;
}
