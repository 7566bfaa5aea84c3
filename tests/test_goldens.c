/* goldens: ten steps of training equal PyTorch's, for the same weights and data.
 *
 * The numbers in tests/goldens come from tools/goldens/make_goldens.py, which is PyTorch's own autograd and
 * optimizers and packs the text independently. Compared: loss, norm, every raw gradient and every updated
 * parameter of every step (relative Frobenius norm, and relative error over sampled elements), standalone and
 * in parallel layouts, to 1e-10 in fp64 and 1e-5 in fp32. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/train.h"
#include "sim/arena.h"

static const char *folder = ".";   /* of the source tree: argv[1] */
static uint8_t *text;
static long text_bytes;

struct golden_case { const char *name; struct model_config model; struct train_config train; };

static const struct golden_case cases[] = {
    {"mha_adamw", {.layers = 3, .dim = 20, .heads = 5, .kv_heads = 5, .head_dim = 4, .ffn = 28, .seq = 19, .rope = true, .causal = true},
     {.optimizer = OPTIMIZER_ADAMW, .lr = 2e-3, .beta1 = .9, .beta2 = .95, .eps = 1e-8, .weight_decay = .1, .grad_clip = 1}},
    {"gqa_bias_tied_sgd", {.layers = 2, .dim = 18, .heads = 6, .kv_heads = 2, .head_dim = 6, .ffn = 22, .seq = 23, .rope = true,
                           .causal = true, .bias = true, .tie_embeddings = true, .document_mask = true},
     {.optimizer = OPTIMIZER_SGD, .lr = .05, .momentum = .9, .weight_decay = .01}},
    {"bidirectional_adamw", {.layers = 2, .dim = 14, .heads = 7, .kv_heads = 1, .head_dim = 2, .ffn = 26, .seq = 17},
     {.optimizer = OPTIMIZER_ADAMW, .lr = 1e-3, .beta1 = .8, .beta2 = .9, .eps = 1e-6, .grad_clip = .7}},
};
static const struct layout layouts[] = {
    {.pp = 1, .dp_replicate = 1, .dp_shard = 1, .microbatches = 1, .schedule = "1F1B", .zero = ZERO_0},
    {.pp = 2, .dp_replicate = 1, .dp_shard = 3, .microbatches = 2, .schedule = "1F1B", .zero = ZERO_3, .reshard_after_forward = true,
     .reduce_op = FSDP_REDUCE_AVG, .sync = SYNC_EACH_MICROBATCH},
    {.pp = 2, .dp_replicate = 2, .dp_shard = 1, .microbatches = 3, .schedule = "GPipe", .zero = ZERO_0, .reduce_op = FSDP_REDUCE_SUM, .send_sync = true},
};

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
                whole[f->first + j] = format_get(f->data, (size_t)j, run_storage(&record->config));
            }
            covered += f->elements;
        }
    }
    ck_assert_int_eq(covered, p->rows * p->columns);
    *ret_count = p->rows * p->columns;
    return whole;
}

static int param_of(const struct record *record, const char *name)
{
    for (int i = 0; i < record->params.count; i++) {
        if (!strcmp(record->params.params[i].info.name, name)) return i;
    }
    ck_abort_msg("no parameter %s", name);
}

static void near(double got, double due, double tolerance, const char *what)
{
    double error = fabs(got - due) / fmax(fabs(due), 1e-300);
    ck_assert_msg(error <= tolerance, "%s: %.17g, PyTorch %.17g, off by %g (limit %g)", what, got, due, error, tolerance);
}

static void hold_tensor(const struct record *record, const char *line, double tolerance)
{
    char kind[8], name[64];
    int step, samples, used;
    double norm, squares = 0, difference = 0, size = 0;
    ck_assert_int_eq(sscanf(line, "%7s %d %63s %lf %d%n", kind, &step, name, &norm, &samples, &used), 5);
    int64_t count;
    double *whole = assemble(record, step, kind[0] == 'g' ? TENSOR_GRADIENT : TENSOR_PARAM, param_of(record, name), &count);
    for (int64_t i = 0; i < count; i++) squares += whole[i] * whole[i];
    char what[160];
    snprintf(what, sizeof what, "step %d %s of %s", step, kind, name);
    near(sqrt(squares), norm, tolerance, what);
    const char *at = line + used;
    for (int i = 0; i < samples; i++) {
        int64_t index;
        double value;
        ck_assert_int_eq(sscanf(at, "%ld %lf%n", &index, &value, &used), 2);
        difference += (whole[index] - value) * (whole[index] - value);
        size += value * value;
        at += used;
    }
    double typical = norm * norm * samples / (double)count; /* where the samples happen to be small */
    ck_assert_msg(sqrt(difference) <= tolerance * sqrt(fmax(size, typical)), "%s: sampled elements off by %g relative", what,
                  sqrt(difference / fmax(size, typical)));
    free(whole);
}

static void hold(const struct record *record, const char *path, double tolerance)
{
    FILE *file = fopen(path, "r");
    ck_assert_msg(file != NULL, "cannot open %s", path);
    int lines = 0, data_ranks = layout_data_ranks(&record->config.layout);
    bool avg = record->config.layout.reduce_op == FSDP_REDUCE_AVG;
    for (char line[4096]; fgets(line, sizeof line, file); lines++) {
        int step;
        double due, loss = 0;
        if (sscanf(line, "loss %d %lf", &step, &due) == 2) {
            for (int r = 0; r < record->ranks; r++) {
                for (int i = 0; i < record->rank[r].losses.count; i++) {
                    const struct loss_fact *f = &record->rank[r].losses.items[i];
                    if (f->step == step) loss += f->backward_loss;
                }
            }
            near(avg ? loss / data_ranks : loss, due, tolerance, "loss.parallel");
            near(record->rank[0].reports.items[step].logged, due, tolerance, "loss.logged");
        } else if (sscanf(line, "norm %d %lf", &step, &due) == 2) {
            for (int r = 0; r < record->ranks; r++) near(record->rank[r].norms.items[step].norm, due, tolerance, "norm");
        } else {
            hold_tensor(record, line, tolerance);
        }
    }
    ck_assert_int_gt(lines, 300);
    fclose(file);
}

static void run(const struct golden_case *c, const struct layout *layout, enum format format)
{
    struct run_config config = {.seed = 1, .model = c->model, .train = c->train, .layout = *layout, .precision = precision_of(format),
        .data = {text, text_bytes, PACKING_DOCUMENTS}, .machine = {8, 400, 3, 400, 8, 50}};
    config.model.vocab = 256;
    config.model.norm_eps = 1e-5;
    config.model.rope_base = 10000;
    config.train.steps = 10;
    config.train.global_batch = 6;
    snprintf(config.model.weights, sizeof config.model.weights, "%s/tests/goldens/%s.weights.safetensors", folder, c->name);
    for (int s = 0; s < layout->pp; s++) config.layout.layers_per_stage[s] = s == 0 ? c->model.layers - layout->pp + 1 : 1;
    struct error error = {0};
    struct train_options options = {.threads = 1};
    struct record *record = train_run(&config, NULL, &options, &error);
    ck_assert_msg(record != NULL, "%s", error.message);
    ck_assert_int_eq(record->outcome, MACHINE_FINISHED);
    char path[1200];
    snprintf(path, sizeof path, "%s/tests/goldens/%s.txt", folder, c->name);
    hold(record, path, format == FORMAT_FP64 ? 1e-10 : 1e-5);
    record_free(record);
}

START_TEST(ten_steps_equal_pytorch)
{
    int layouts_count = (int)(sizeof layouts / sizeof layouts[0]);
    run(&cases[_i / layouts_count / 2], &layouts[_i / 2 % layouts_count], _i % 2 ? FORMAT_FP32 : FORMAT_FP64);
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
    tcase_add_loop_test(tcase, ten_steps_equal_pytorch, 0, (int)(sizeof cases / sizeof cases[0] * sizeof layouts / sizeof layouts[0] * 2));
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    free(text);
    return failed ? 1 : 0;
}
