/* seed_states: the report's program on eight ranks in each of the states that its sums can be left in, against golden
 * numbers by PyTorch from the report's own code (tools/goldens/make_seed_states.py). A state is one or two faults on
 * scenarios/seed1_demo.json, whose layout is the report's: attention alone split over tp 2, experts over ep 4, all
 * ranks with the same tokens. Compared: each rank's loss and what comes out of its last layer, and the relative error of
 * its logits, to three digits; and each state is named with its component.
 *
 * `test_seed_states ROOT long`: the demonstration's own sizes too (21 million parameters). */
#include <math.h>

#include "scenarios/experiment.h"
#include "model/loss_convention.h"
#include "tests/support/scenario_files.h"
#include "tests/support/run_suite.h"

enum { RANKS = 8, VALUES = 64 };
static const char *root;
static bool at_full_size;

struct state { const char *name, *faults[2], *component; };
static const struct state states[] = {
    {"shipped", {"tp.row_reduce:skip", "ep-combine-missing"}, "ep.combine"},
    {"tensor_sum", {"ep-combine-missing"}, "ep.combine"},
    {"expert_sum", {"tp.row_reduce:skip"}, "tp"},
    {"naive_sums", {"tp-row-bias-times-tp", "ep-shared-expert-times-ep"}, "ep.combine"},
    {"bias_twice", {"tp-row-bias-times-tp"}, "tp"},
    {"keys_values", {"tp-qkv-split-order"}, "tp"},
    {"right", {NULL}, ""},
};
enum { STATES = sizeof states / sizeof states[0] };

static const char *const full_size[][2] = {
    {"model.dim", "256"}, {"model.heads", "32"}, {"model.ffn", "6144"}, {"model.vocab", "1000"}, {"model.mla.q_lora_rank", "768"},
    {"model.mla.kv_lora_rank", "512"}, {"model.mla.head_dim", "64"}, {"model.moe.expert_ffn", "512"}, {"model.moe.shared_ffn", "1024"},
};
enum { SIZES = sizeof full_size / sizeof full_size[0] };

static struct scenario *load(const char *const faults[2], const char *zero)
{
    char path[1024];
    struct error error = {0};
    struct override overrides[SIZES + 1] = {{"parallel.fsdp.zero", zero}};
    for (int i = 0; i < SIZES; i++) overrides[i + 1] = (struct override){full_size[i][0], full_size[i][1]};
    snprintf(path, sizeof path, "%s/scenarios/seed1_demo.json", root);
    int count = 0;
    while (count < 2 && faults[count]) count++;
    struct scenario_options options = {.overrides_count = at_full_size ? SIZES + 1 : 1, .overrides = overrides, .faults_count = count, .faults = faults};
    struct scenario *scenario = scenario_load(path, &options, &error);
    ck_assert_msg(scenario != NULL, "%s %s", error.path, error.message);
    return scenario;
}

/* The runs alone, without a verdict. */
static struct record *run_alone(const struct scenario *scenario, bool standalone)
{
    struct error error = {0};
    struct run_config config = scenario->config;
    config.loss_cut = loss_cut_of(&config);
    if (standalone) config.layout = layout_standalone(&config.model);
    struct site_plan *plan = scenario_plan(scenario, standalone, layout_ranks(&config.layout), &error);
    struct train_options options = {.threads = 1, .look = true, .keep = true};
    struct record *record = train_run(&config, plan, &options, &error);
    ck_assert_msg(record != NULL, "%s", error.message);
    site_plan_free(plan);
    return record;
}

static struct result *run(const struct scenario *scenario)
{
    struct error error = {0};
    struct experiment_options options = {.train = {.threads = 1, .look = true, .keep = true}, .checks = "default"};
    struct result *result = experiment_run(scenario, &options, &error);
    ck_assert_msg(result != NULL, "%s", error.message);
    return result;
}

/* ---- what a run has ---- */

/* [batch, seq, dim] of the last layer on this rank; the caller frees. */
static double *hidden_of(const struct record *record, int rank, size_t *ret_count)
{
    const struct model_config *model = &record->config.model;
    size_t each = (size_t)(model->seq * model->dim), batch = (size_t)record->config.train.global_batch;
    double *hidden = malloc(batch * each * sizeof *hidden);
    size_t found = 0;
    for (int i = 0; i < record->rank[rank].rows.count; i++) {
        const struct rows_fact *fact = &record->rank[rank].rows.items[i];
        if (fact->unit != model->layers || !fact->values) continue;
        for (size_t k = 0; k < each; k++) hidden[(size_t)fact->sequence * each + k] = format_get(fact->values, k, run_storage(&record->config));
        found++;
    }
    ck_assert_uint_eq(found, batch);
    *ret_count = batch * each;
    return hidden;
}

/* A whole parameter that a rank holds: as it was before the first step, or its gradient there. The caller frees. */
static double *tensor_of(const struct record *record, int rank, const char *name, enum tensor_kind kind, size_t *ret_count)
{
    for (int i = 0; i < record->rank[rank].tensors.count; i++) {
        const struct tensor_fact *fact = &record->rank[rank].tensors.items[i];
        if (fact->kind != kind || fact->step != (kind == TENSOR_PARAM ? -1 : 0) || strcmp(record->params.params[fact->param].info.name, name) != 0) continue;
        double *values = malloc((size_t)fact->elements * sizeof *values);
        *ret_count = (size_t)fact->elements;
        for (size_t k = 0; k < (size_t)fact->elements; k++) values[k] = format_get(fact->data, k, run_storage(&record->config));
        return values;
    }
    ck_abort_msg("no %s on rank %d", name, rank);
    return NULL;
}

struct head { double *norm, *output; int64_t dim, vocab; };

/* |logits - those of one rank| / |those of one rank|; the head is linear but for its norm. */
static double logits_error(const struct head *head, const double *hidden, const double *one, size_t count)
{
    double difference = 0, size = 0;
    double *unit[2] = {malloc((size_t)head->dim * sizeof(double)), malloc((size_t)head->dim * sizeof(double))};
    for (size_t t = 0; t < count / (size_t)head->dim; t++) {
        const double *row[2] = {hidden + t * (size_t)head->dim, one + t * (size_t)head->dim};
        for (int w = 0; w < 2; w++) {
            double squares = 0;
            for (int64_t c = 0; c < head->dim; c++) squares += row[w][c] * row[w][c];
            double rms = sqrt(squares / (double)head->dim + 1e-5);
            for (int64_t c = 0; c < head->dim; c++) unit[w][c] = row[w][c] / rms * head->norm[c];
        }
        for (int64_t v = 0; v < head->vocab; v++) {
            double a = 0, b = 0;
            for (int64_t c = 0; c < head->dim; c++) {
                a += unit[0][c] * head->output[v * head->dim + c];
                b += unit[1][c] * head->output[v * head->dim + c];
            }
            difference += (a - b) * (a - b);
            size += b * b;
        }
    }
    free(unit[0]);
    free(unit[1]);
    return sqrt(difference / size);
}

static double loss_of(const struct record *record, int rank)
{
    const struct loss_fact *fact = &record->rank[rank].losses.items[0];
    ck_assert_int_eq(record->rank[rank].losses.count, 1);
    return fact->loss_sum / (double)fact->valid;
}

/* ---- what is due ---- */

struct golden { double loss, error, norm; int at[VALUES]; double value[VALUES]; };

static FILE *goldens_open(void)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/tests/goldens/pangu_states%s.txt", root, at_full_size ? "_demo" : "");
    FILE *file = fopen(path, "r");
    ck_assert_msg(file != NULL, "%s", path);
    return file;
}

/* "NAME RANK ...": leaves the file behind the rank. */
static void goldens_find(FILE *file, const char *name, int rank)
{
    char word[64];
    int of;
    for (int c; fscanf(file, "%63s %d", word, &of) >= 1;) {
        if (!strcmp(word, name) && of == rank) return;
        while ((c = fgetc(file)) != '\n' && c != EOF) {}
    }
    ck_abort_msg("no golden %s %d", name, rank);
}

static struct golden golden_of(const char *name, int rank)
{
    struct golden g;
    FILE *file = goldens_open();
    goldens_find(file, name, rank);
    ck_assert_int_eq(fscanf(file, "%lf %lf %lf", &g.loss, &g.error, &g.norm), 3);
    for (int i = 0; i < VALUES; i++) ck_assert_int_eq(fscanf(file, "%d %lf", &g.at[i], &g.value[i]), 2);
    fclose(file);
    return g;
}

static void hold_rank(const struct record *record, int rank, const char *name, const struct head *head, const double *one)
{
    size_t count;
    double *hidden = hidden_of(record, rank, &count), squares = 0;
    struct golden g = golden_of(name, rank);
    for (size_t k = 0; k < count; k++) squares += hidden[k] * hidden[k];
    ck_assert_msg(fabs(sqrt(squares) - g.norm) <= 1e-5 * g.norm, "%s, rank %d: norm %.9g, PyTorch %.9g", name, rank, sqrt(squares), g.norm);
    for (int i = 0; i < VALUES; i++) {
        double off = fabs(hidden[g.at[i]] - g.value[i]);
        ck_assert_msg(off <= 2e-5, "%s, rank %d, element %d: %.9g, PyTorch %.9g", name, rank, g.at[i], hidden[g.at[i]], g.value[i]);
    }
    double loss = loss_of(record, rank), error = logits_error(head, hidden, one, count);
    ck_assert_msg(fabs(loss - g.loss) <= 2e-6 * g.loss, "%s, rank %d: loss %.9g, PyTorch %.9g", name, rank, loss, g.loss);
    if (!strcmp(name, "right")) ck_assert_msg(error < 1e-6 && g.error < 1e-6, "right, rank %d: %g, PyTorch %g", rank, error, g.error);
    else ck_assert_msg(fabs(error - g.error) <= 1e-3 * g.error, "%s, rank %d: %.4g, PyTorch %.4g", name, rank, error, g.error);
    if (rank == 0) printf("%s: logits off by %.3g, PyTorch %.3g; loss %.7g, PyTorch %.7g\n", name, error, g.error, loss, g.loss);
    free(hidden);
}

START_TEST(each_state_is_the_programs)
{
    const struct state *state = &states[_i];
    struct scenario *scenario = load(state->faults, "3");
    struct result *result = at_full_size ? NULL : run(scenario);
    struct record *parallel = result ? result->parallel : run_alone(scenario, false), *standalone = result ? result->standalone : run_alone(scenario, true);
    size_t count;
    double *one = hidden_of(standalone, 0, &count);
    const struct model_config *model = &scenario->config.model;
    size_t elements;
    struct head head = {tensor_of(standalone, 0, "norm.weight", TENSOR_PARAM, &elements), tensor_of(standalone, 0, "output.weight", TENSOR_PARAM, &elements),
                        model->dim, model->vocab};
    for (int rank = 0; rank < RANKS; rank++) hold_rank(parallel, rank, state->name, &head, one);
    if (result) {
        ck_assert_int_eq(result->verdict, *state->component ? VERDICT_DIVERGED : VERDICT_CONSISTENT);
        if (*state->component) ck_assert_str_eq(result->diagnosis.component, state->component);
        result_free(result);
    } else {
        record_free(parallel);
        record_free(standalone);
    }
    free(head.norm);
    free(head.output);
    free(one);
    scenario_free(scenario);
}
END_TEST

/* The router's gradient where it is not summed over the ranks of the experts: each rank has that of its own experts. */
START_TEST(router_without_its_sum)
{
    static const char *const faults[2] = {"ep-router-grad-no-ep-sum"};
    struct scenario *scenario = load(faults, "0");
    struct record *parallel = run_alone(scenario, false), *standalone = run_alone(scenario, true);
    FILE *file = goldens_open();
    for (int expert_rank = 0; expert_rank < 4; expert_rank++) {
        int rank = 2 * expert_rank;
        size_t count;
        double golden, difference = 0, size = 0;
        double *due = tensor_of(standalone, 0, "layers.1.moe.router.weight", TENSOR_GRADIENT, &count);
        double *own = tensor_of(parallel, rank, "layers.1.moe.router.weight", TENSOR_GRADIENT, &count);
        goldens_find(file, "router", rank);
        ck_assert_int_eq(fscanf(file, "%lf", &golden), 1);
        for (size_t i = 0; i < count; i++) {
            difference += (own[i] - due[i]) * (own[i] - due[i]);
            size += due[i] * due[i];
        }
        double error = sqrt(difference / size);
        printf("router, rank %d: gradient off by %.3g, PyTorch %.3g\n", rank, error, golden);
        ck_assert_msg(fabs(error - golden) <= 1e-3 * golden, "rank %d: %.4g, PyTorch %.4g", rank, error, golden);
        free(own);
        free(due);
    }
    fclose(file);
    record_free(parallel);
    record_free(standalone);
    scenario_free(scenario);
}
END_TEST

int main(int argc, char **argv)
{
    if (argc < 2) return 99;
    root = argv[1];
    at_full_size = argc > 2 && !strcmp(argv[2], "long");
    setvbuf(stdout, NULL, _IOLBF, 0);
    Suite *suite = suite_create("seed_states");
    TCase *tests = tcase_create("seed_states");
    tcase_set_timeout(tests, 600);
    tcase_add_loop_test(tests, each_state_is_the_programs, 0, STATES);
    tcase_add_test(tests, router_without_its_sum);
    suite_add_tcase(suite, tests);
    return run_suite(suite, CK_FORK_GETENV);
}
