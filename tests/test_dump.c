/* dump: what --dump writes is whole, however the layout cuts parameters: tensor, expert, expert-tensor parallel, FSDP,
 * pipeline. With a learning rate of 0 the parameters of every layout are those of one rank, to the bit, and its gradients
 * nearly; and a dump is a file of weights that a run begins with. */
#include <math.h>

#include "model/safetensors.h"
#include "scenarios/experiment.h"
#include "tests/support/scenario_files.h"
#include "tests/support/run_suite.h"
#include "tools/report/report.h"

static const char *root;

static const char *const layouts[][2] = {
    {"parallel", "{\"tp\": 2}"},
    {"parallel", "{\"tp\": 2, \"tensor_parts\": [\"vocabulary\"], \"pp\": 2}"},
    {"parallel", "{\"tp\": 2, \"dp_shard\": 2, \"ep\": 2, \"etp\": 2, \"fsdp\": {\"zero\": 3}}"},
    {"parallel", "{\"dp_shard\": 2, \"ep\": 2, \"fsdp\": {\"zero\": 1}}"},
    {"parallel", "{\"tp\": 2, \"sequence_parallel\": true, \"pp\": 2}"},
};
enum { LAYOUTS = sizeof layouts / sizeof layouts[0] };

static struct safetensors *dump(const struct override *overrides, int count, const char *name)
{
    char path[1024];
    struct error error = {0};
    snprintf(path, sizeof path, "%s/scenarios/seed1_demo.json", root);
    struct scenario_options options = {.overrides_count = count, .overrides = overrides};
    struct scenario *scenario = scenario_load(path, &options, &error);
    ck_assert_msg(scenario != NULL, "%s %s", error.path, error.message);
    struct experiment_options experiment = {.train = {.threads = 1}, .checks = "oracle"};
    struct result *result = experiment_run(scenario, &experiment, &error);
    ck_assert_msg(result != NULL, "%s", error.message);
    ck_assert_msg(report_dump(result, files_path(name), &error), "%s", error.message);
    result_free(result);
    scenario_free(scenario);
    struct safetensors *file = safetensors_open(files_path(name), &error);
    ck_assert_msg(file != NULL, "%s", error.message);
    return file;
}

static double *values_of(struct safetensors *file, const char *name, size_t *ret_count)
{
    size_t at;
    const int64_t *shape;
    struct error error = {0};
    ck_assert_msg(safetensors_find(file, name, &at), "%s", name);
    int dims = safetensors_shape(file, at, &shape);
    size_t count = 1;
    for (int d = 0; d < dims; d++) count *= (size_t)shape[d];
    double *values = malloc(count * sizeof *values);
    struct tensor into = dims == 1 ? tensor_1d(values, FORMAT_FP64, shape[0]) : tensor_2d(values, FORMAT_FP64, shape[0], shape[1]);
    ck_assert_msg(safetensors_read(file, name, dims, shape, into, &error), "%s", error.message);
    *ret_count = count;
    return values;
}

static void check_equal(struct safetensors *a, struct safetensors *b)
{
    ck_assert_uint_eq(safetensors_count(a), safetensors_count(b));
    int gradients = 0;
    for (size_t i = 0; i < safetensors_count(b); i++) {
        const char *name = safetensors_name(b, i);
        bool is_gradient = !strncmp(name, "grad.", 5);
        size_t count, same;
        double *x = values_of(a, name, &same), *y = values_of(b, name, &count);
        ck_assert_uint_eq(count, same);
        for (size_t k = 0; k < count; k++) {
            bool near = is_gradient ? fabs(x[k] - y[k]) <= 2e-6 : x[k] == y[k];
            ck_assert_msg(near, "%s[%zu]: %.9g, one rank %.9g", name, k, x[k], y[k]);
        }
        gradients += is_gradient;
        free(x);
        free(y);
    }
    ck_assert_int_gt(gradients, 0);
}

START_TEST(every_layout_dumps_what_one_rank_has)
{
    static struct safetensors *one;
    struct override overrides[] = {{"train.optimizer.lr", "0"}, {"parallel", "{}"}};
    one = dump(overrides, 2, "one.safetensors");
    overrides[1] = (struct override){layouts[_i][0], layouts[_i][1]};
    struct safetensors *other = dump(overrides, 2, "other.safetensors");
    check_equal(other, one);
    safetensors_close(other);
    safetensors_close(one);
}
END_TEST

/* Weights from a dump: another seed no longer matters. */
START_TEST(a_dump_is_weights)
{
    char quoted[600];
    struct override overrides[] = {{"train.optimizer.lr", "0"}, {"parallel", "{}"}, {"seed", "7"}, {"model.weights", "null"}};
    struct safetensors *one = dump(overrides, 4, "one.safetensors");
    snprintf(quoted, sizeof quoted, "\"%s\"", files_path("one.safetensors"));
    overrides[2].value = "8";
    overrides[3].value = quoted;
    overrides[1].value = layouts[0][1];
    struct safetensors *other = dump(overrides, 4, "other.safetensors");
    check_equal(other, one);
    safetensors_close(other);
    safetensors_close(one);
}
END_TEST

int main(int argc, char **argv)
{
    if (argc < 2) return 99;
    root = argv[1];
    Suite *suite = suite_create("dump");
    TCase *tests = tcase_create("dump");
    tcase_set_timeout(tests, 120);
    tcase_add_checked_fixture(tests, files_setup, files_teardown);
    tcase_add_loop_test(tests, every_layout_dumps_what_one_rank_has, 0, LAYOUTS);
    tcase_add_test(tests, a_dump_is_weights);
    suite_add_tcase(suite, tests);
    return run_suite(suite, CK_FORK_GETENV);
}
