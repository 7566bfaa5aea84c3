/* Reports of a made-up result: 2 stages x 3 data ranks, 5 micro-batches, of which data rank 1 scales its
 * loss by 1/M. The numbers are invented so that every figure on paper can be told by hand. */
#include <check.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <cJSON.h>
#include "model/sites.h"
#include "scenarios/facts.h"
#include "tools/report/describe.h"
#include "model/sites.h"
#include "tools/report/convention_ledger.h"
#include "tools/report/loss_ledger.h"
#include "tools/report/report.h"
#include "tools/suite.h"

enum { PP = 2, D = 3, M = 5, SEQ = 7, STEPS = 2, RANKS = PP * D };

static struct scenario scenario;
static struct record record;
static struct result result;
static struct experiment_options experiment;
static struct arena *arena;

/* Unequal, and its sum is known: 3..6 and again. */
static int64_t valid_of(int d, int m)
{
    return 3 + (d * M + m) % 4;
}

static void push_loss(struct rank_record *rank, int step, int m, double N)
{
    struct loss_fact *fact = &rank->losses.items[rank->losses.count++];
    int64_t n = valid_of(rank->data_rank, m);
    double *loss = arena_zalloc(arena, SEQ * sizeof *loss), *weight = arena_zalloc(arena, SEQ * sizeof *weight);
    *fact = (struct loss_fact){.step = step,
                               .microbatch = m,
                               .valid = n,
                               .unshifted = SEQ - 1,
                               .positions = SEQ,
                               .denominator = N,
                               .scale = rank->data_rank == 1 ? 1.0 / M : 1,
                               .compensation = D, .repeats = 1,
                               .token_count = SEQ,
                               .token_loss = loss,
                               .token_weight = weight};
    fact->seed = fact->compensation * fact->scale / N;
    for (int t = 0; t < n; t++) {
        loss[t] = 2 + 0.25 * t;
        weight[t] = fact->seed;
        fact->loss_sum += loss[t];
    }
    fact->backward_loss = fact->seed * fact->loss_sum;
}

/* What a run with these seeds and no further fault leaves: each probe at its own seed / D; the other parity at 0. */
static void push_gradient(struct rank_record *rank, int step, int unit, double N)
{
    struct gradient_fact *fact = &rank->gradients.items[rank->gradients.count++];
    double *probe = arena_zalloc(arena, 2 * D * M * sizeof *probe);
    for (int i = 0; i < D * M; i++) probe[(step & 1) * D * M + i] = (i / M == 1 ? 1.0 / M : 1) / N;
    *fact = (struct gradient_fact){.step = step,
                                   .microbatch = -1,
                                   .unit = unit,
                                   .stage = GRADIENT_REDUCED,
                                   .pieces = 1,
                                   .probe_count = 2 * D * M,
                                   .probe = probe,
                                   .finite = true};
}

static void fill_rank(int r, double N)
{
    struct rank_record *rank = &record.rank[r];
    *rank = (struct rank_record){.rank = r,
                                 .stage = r / D,
                                 .data_rank = r % D,
                                 .shard = r % D,
                                 .busy_s = 0.5,
                                 .time_s = 0.5 + 0.125 * r,
                                 .param_bytes = 1000 + r,
                                 .peak_bytes = 4000};
    rank->losses.items = arena_zalloc(arena, STEPS * M * sizeof *rank->losses.items);
    rank->gradients.items = arena_zalloc(arena, STEPS * sizeof *rank->gradients.items);
    rank->factors.items = arena_zalloc(arena, STEPS * sizeof *rank->factors.items);
    rank->counts.items = arena_zalloc(arena, STEPS * sizeof *rank->counts.items);
    for (int step = 0; step < STEPS; step++) {
        push_gradient(rank, step, rank->stage ? 3 : 0, N);
        rank->factors.items[rank->factors.count++] =
            (struct factor_fact){&site_fsdp_grad_divisor, step, M - 1, rank->stage ? 3 : 0, D, step, 0};
        if (rank->stage != PP - 1) continue;
        int64_t own = 0;
        for (int m = 0; m < M; m++) {
            push_loss(rank, step, m, N);
            own += valid_of(rank->data_rank, m);
        }
        rank->counts.items[rank->counts.count++] = (struct count_fact){step, own, (SEQ - 1) * M, SEQ * M, N};
    }
}

static void fill_config(struct run_config *config)
{
    *config = (struct run_config){.seed = 11, .precision = precision_of(FORMAT_FP64)};
    config->model = (struct model_config){
        .layers = 2, .dim = 6, .heads = 3, .kv_heads = 3, .head_dim = 2, .ffn = 10, .vocab = 13, .seq = SEQ};
    config->train = (struct train_config){.steps = STEPS, .global_batch = D * M};
    config->layout = (struct layout){.pp = PP, .dp_replicate = 1, .dp_shard = D, .tp = 1, .microbatches = M, .schedule = "1F1B",
                                     .layers_per_stage = {1, 1}, .zero = ZERO_3, .reduce_op = FSDP_REDUCE_AVG};
}

static void fill_result(void)
{
    static struct step_result steps[STEPS];
    static struct check_result checks[] = {
        {.id = "token-weight",
         .status = CHECK_FAIL,
         .value = 0.8,
         .limit = 1e-6,
         .why = "rank 4 is odd",
         .place = {4, 0, 2, -1, -1, NULL},
         .findings = 3},
        {.id = "liveness", .status = CHECK_PASS, .value = NAN, .limit = NAN},
        {.id = "version", .status = CHECK_SKIP, .value = NAN, .limit = NAN, .why = "not asked for"},
    };
    for (int i = 0; i < STEPS; i++) {
        steps[i] = (struct step_result){.step = i,
                                        .parallel = 1.0 / 3,
                                        .logged = 0.25,
                                        .standalone = 2.5,
                                        .rel_err = INFINITY,
                                        .norm_parallel = NAN,
                                        .norm_standalone = 1e-7,
                                        .norm_rel_err = NAN,
                                        .valid_tokens = 66};
    }
    result = (struct result){.scenario = &scenario,
                             .parallel = &record,
                             .verdict = VERDICT_DIVERGED,
                             .as_expected = true,
                             .steps_count = STEPS,
                             .steps = steps,
                             .checks_count = 3,
                             .checks = checks,
                             .has_diagnosis = true,
                             .wall_s = 0.5};
    struct diagnosis *d = &result.diagnosis;
    *d = (struct diagnosis){.component = "pp.loss",
                            .site = "pp.loss.scale",
                            .ranks_count = 1,
                            .ranks = {4},
                            .place = {4, 0, 0, -1, -1, NULL},
                            .summary = "the loss is scaled once more",
                            .next = "the loss function",
                            .evidence_count = 1,
                            .candidates_count = 1};
    d->evidence[0] = (struct evidence_item){"loss", 3e-7, 0.8, "1/M"};
    d->candidates[0] = (struct candidate){"loss-divided-twice", 0.98};
    result.faults_count = 1;
    result.faults[0] = (struct fault_result){"loss-divided-twice", "pp.loss.scale", 10, FAULT_ACTIVE, ""};
}

static void set_up(void)
{
    arena = arena_new("test", false);
    scenario = (struct scenario){.name = "made_up"};
    fill_config(&scenario.config);
    record = (struct record){
        .config = scenario.config, .ranks = RANKS, .cpu_path = "plain", .gemm = "fixed", .coroutine = "none"};
    record.rank = arena_zalloc(arena, RANKS * sizeof *record.rank);
    int64_t N = 0, *due = arena_zalloc(arena, STEPS * sizeof *due);
    for (int i = 0; i < D * M; i++) N += valid_of(i / M, i % M);
    for (int i = 0; i < STEPS; i++) due[i] = N;
    record.valid_due = due;
    record.steps_due = STEPS;
    struct loss_cell *cells = arena_zalloc(arena, STEPS * D * M * sizeof *cells);
    for (int i = 0; i < STEPS * D * M; i++) {
        int64_t valid = valid_of(i % (D * M) / M, i % M);
        cells[i] = (struct loss_cell){.valid = valid, .unshifted = valid + 1, .positions = valid + 2, .weight = 1 / (double)N};
    }
    record.cells = cells;
    for (int r = 0; r < RANKS; r++) fill_rank(r, (double)N);
    fill_result();
    experiment = (struct experiment_options){.train = {.threads = 3, .interleave = 5}, .checks = "default"};
}

static void tear_down(void)
{
    arena_free(arena);
}

static cJSON *parse_json(void)
{
    struct report report = {&result, &experiment, false, false};
    char *text = report_json(&report);
    cJSON *root = cJSON_Parse(text);
    ck_assert_msg(root != NULL, "%s", text);
    free(text);
    return root;
}

/* Exactly these keys, in this order. */
static void has_keys(const cJSON *object, const char *keys)
{
    char found[512] = "";
    for (const cJSON *item = object->child; item; item = item->next) {
        strcat(found, found[0] ? " " : "");
        strcat(found, item->string);
    }
    ck_assert_str_eq(found, keys);
}

static const cJSON *at(const cJSON *object, const char *key)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key);
    ck_assert_msg(value != NULL, "no key %s", key);
    return value;
}

/* The result holds every key of its contract, and nothing that scripts do not know of. */
START_TEST(json_has_all_keys)
{
    cJSON *root = parse_json();
    has_keys(root, "hpsim scenario ranks seed interleave version verdict as_expected digest steps checks warnings "
                   "diagnosis faults environment "
                   "communication time memory performance");
    const cJSON *step = at(root, "steps")->child, *check = at(root, "checks")->child,
                *diagnosis = at(root, "diagnosis");
    has_keys(step, "step loss grad_norm valid_tokens max_grad_rel_err max_param_rel_err");
    has_keys(at(step, "loss"), "parallel logged standalone rel_err");
    has_keys(at(step, "grad_norm"), "parallel standalone rel_err");
    has_keys(check, "id status value limit why where");
    has_keys(at(check, "where"), "rank step microbatch");
    has_keys(diagnosis, "component site ranks step microbatch layer summary evidence candidates");
    has_keys(at(diagnosis, "evidence")->child, "tensor inputs_agree_to differs_by ratio");
    has_keys(at(diagnosis, "candidates")->child, "fault score");
    has_keys(at(root, "faults")->child, "fault given site hits outcome why");
    has_keys(at(root, "environment"), "gemm openblas_core cpu_path coroutine threads");
    has_keys(at(root, "time"), "unit makespan per_rank");
    has_keys(at(at(root, "time"), "per_rank")->child, "busy idle exposed_comm");
    has_keys(at(at(root, "memory"), "per_rank")->child, "param grad optimizer activation_peak peak");
    has_keys(at(root, "performance"), "wall_s parallel_s standalone_s parallel_cpu_s standalone_cpu_s peak_rss_bytes");
    ck_assert_int_eq(cJSON_GetArraySize(at(root, "checks")), 3);
    ck_assert_int_eq(cJSON_GetArraySize(at(at(root, "memory"), "per_rank")), RANKS);
    ck_assert_double_eq(at(at(root, "time"), "makespan")->valuedouble, 0.5 + 0.125 * (RANKS - 1));
    ck_assert(cJSON_IsNull(at(diagnosis, "layer")));
    cJSON_Delete(root);
}
END_TEST

/* Numbers that are not finite are strings, also where a locale is set that writes a decimal comma. */
START_TEST(json_and_csv_ignore_the_locale)
{
    static const char *const commas[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE", "ru_RU.UTF-8"};
    for (int i = 0; i < 4 && !setlocale(LC_ALL, commas[i]); i++) {}
    struct report report = {&result, &experiment, false, false};
    char *csv = report_csv(&result), *json = report_json(&report);
    setlocale(LC_ALL, "C");
    ck_assert_str_eq(csv, "step,loss_parallel,loss_logged,loss_standalone,grad_norm_parallel,grad_norm_standalone\n"
                     "0,0.3333333333333333,0.25,2.5,nan,1e-07\n1,0.3333333333333333,0.25,2.5,nan,1e-07\n");
    ck_assert_ptr_nonnull(strstr(json, "0.3333333333333333"));
    cJSON *root = cJSON_Parse(json);
    ck_assert_str_eq(at(at(at(root, "steps")->child, "loss"), "rel_err")->valuestring, "inf");
    ck_assert_str_eq(at(at(at(root, "steps")->child, "grad_norm"), "parallel")->valuestring, "nan");
    cJSON_Delete(root);
    free(csv);
    free(json);
}
END_TEST

/* Two reports of one result are the same bytes once `performance` is taken away. */
START_TEST(json_repeats)
{
    cJSON *roots[2] = {parse_json(), parse_json()};
    char *texts[2];
    for (int i = 0; i < 2; i++) {
        cJSON_DeleteItemFromObjectCaseSensitive(roots[i], "performance");
        texts[i] = cJSON_Print(roots[i]);
        cJSON_Delete(roots[i]);
    }
    ck_assert_str_eq(texts[0], texts[1]);
    free(texts[0]);
    free(texts[1]);
}
END_TEST

/* The ledger of the loss: weights by hand, the wrong factor found with its symbol, the right ones left alone. */
START_TEST(loss_ledger_finds_the_factor)
{
    struct loss_ledger ledger = loss_ledger_new(&result);
    const struct loss_step *s = &ledger.steps[1];
    ck_assert_int_eq(s->rows_count, D * M);
    double N = (double)s->valid, weight_sum = 0, mean_of_means = 0;
    for (int i = 0; i < s->rows_count; i++) {
        const struct loss_row *row = &s->rows[i];
        ck_assert_int_eq(row->valid, valid_of(i / M, i % M));
        ck_assert_int_eq(row->weighted, row->valid);
        bool wrong = row->data_rank == 1;
        ck_assert_int_eq(row->wrong, wrong);
        ck_assert_int_eq(row->factor[LOSS_SCALE].wrong, wrong);
        ck_assert(!row->factor[LOSS_DENOMINATOR].wrong && !row->factor[LOSS_COMPENSATION].wrong &&
                  !row->factor[LOSS_DIVISOR].wrong);
        ck_assert(!row->measured_wrong);
        ck_assert_str_eq(row->factor[LOSS_SCALE].symbol, wrong ? "1/M" : "1");
        ck_assert_str_eq(row->ratio_symbol, wrong ? "1/M" : "");
        ck_assert_double_eq_tol(row->weight, (wrong ? 1.0 / M : 1) / N, 1e-15);
        weight_sum += row->weight * (double)row->valid;
        mean_of_means += row->sum / (double)row->valid / (D * M);
    }
    ck_assert_double_eq_tol(s->weight_sum, weight_sum, 1e-14);
    ck_assert_double_eq_tol(s->mean_of_means, mean_of_means, 1e-14);
    ck_assert_double_eq_tol(s->token_mean, s->sum / N, 1e-15);
    ck_assert_double_eq(s->stale_weight, 0);
    loss_ledger_done(&ledger);
}
END_TEST

/* A probe that is not what the factors give is told, with where; so is one left from the step before. */
START_TEST(loss_ledger_finds_what_was_lost)
{
    double *probe = (double *)record.rank[5].gradients.items[1].probe;
    probe[D * M + 2 * M + 3] = 0;      /* step 1's parity: data rank 2's micro-batch 3 */
    probe[1] = 0.001;                  /* step 0's: left behind */
    struct loss_ledger ledger = loss_ledger_new(&result);
    const struct loss_row *row = &ledger.steps[1].rows[2 * M + 3];
    ck_assert(row->measured_wrong && row->wrong);
    ck_assert_double_eq(row->measured_min, 0);
    ck_assert_int_eq(row->rank_min, 5);
    ck_assert_int_eq(row->unit_min, 3);
    ck_assert(!ledger.steps[1].rows[2 * M + 2].measured_wrong);
    ck_assert_double_eq(ledger.steps[1].stale_weight, 0.001);
    ck_assert_int_eq(ledger.steps[1].stale_rank, 5);
    loss_ledger_done(&ledger);
}
END_TEST

static char *explain(enum color_choice color)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    struct terminal terminal = {file, color == COLOR_ALWAYS, 200};
    explain_loss_text(&result, false, &terminal);
    fclose(file);
    return text;
}

/* The explanation names the factor, its value and symbol, and both ways of averaging. */
START_TEST(explain_loss_names_the_factor)
{
    char *text = explain(COLOR_NEVER);
    static const char *const wanted[] = {"! x 0.2 (1/M)",
                                         "pp.loss.scale is 1/M = 0.2 in 5 of 15 micro-batches where 1 is due",
                                         "mean of means",
                                         "rank means",
                                         "N = 66 valid tokens",
                                         "! 0.2 (1/M)",
                                         "step 0",
                                         "--verbose shows the other 1 step"};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        ck_assert_msg(strstr(text, wanted[i]) != NULL, "no \"%s\" in\n%s", wanted[i], text);
    }
    ck_assert_ptr_null(strchr(text, '\033'));
    ck_assert_ptr_null(strstr(text, "step 1:"));
    free(text);
    text = explain(COLOR_ALWAYS);
    ck_assert_ptr_nonnull(strstr(text, "\033[1;31m"));
    free(text);
    char *json = explain_loss_json(&result, true);
    cJSON *root = cJSON_Parse(json);
    ck_assert_int_eq(cJSON_GetArraySize(at(root, "steps")), STEPS);
    const cJSON *row = cJSON_GetArrayItem(at(at(root, "steps")->child, "rows"), M);
    ck_assert(cJSON_IsTrue(at(row, "wrong")));
    ck_assert_str_eq(at(row, "ratio_symbol")->valuestring, "1/M");
    cJSON_Delete(root);
    free(json);
}
END_TEST

static double number_at(const cJSON *object, const char *key)
{
    return at(object, key)->valuedouble;
}

static cJSON *parsed(char *text)
{
    cJSON *root = cJSON_Parse(text);
    ck_assert_msg(root != NULL, "%s", text);
    free(text);
    return root;
}

/* Every convention on this step's counts: the own one is what the ledger has, the means of means are its mean of means,
 * and only megatron prints another loss than it optimizes. */
START_TEST(explain_loss_compares_conventions)
{
    cJSON *root = parsed(explain_loss_json(&result, false));
    const cJSON *step = at(root, "steps")->child, *list = at(step, "conventions"), *entry;
    ck_assert_int_eq(cJSON_GetArraySize(list), loss_convention_count());
    cJSON_ArrayForEach(entry, list)
    {
        const char *name = at(entry, "name")->valuestring, *weight = at(entry, "weight")->valuestring;
        bool means = !strcmp(weight, "1/(n*M*D)"), token_mean = !strcmp(weight, "1/N");
        if (token_mean) ck_assert_double_eq_tol(number_at(entry, "loss"), number_at(step, "token_mean"), 1e-12);
        if (means) ck_assert_double_eq_tol(number_at(entry, "loss"), number_at(step, "mean_of_means"), 1e-12);
        ck_assert_double_eq_tol(number_at(entry, "over_token_mean"), number_at(entry, "loss") / number_at(step, "token_mean"), 1e-12);
        ck_assert_int_eq(cJSON_IsTrue(at(entry, "logs_optimized")), strcmp(name, "megatron") != 0);
        ck_assert_int_eq(cJSON_GetArraySize(at(entry, "weights")), D * M);
        for (int cell = 0; cell < D * M; cell++) {
            const cJSON *here = cJSON_GetArrayItem(at(entry, "weights"), cell);
            if (token_mean) ck_assert_double_eq_tol(number_at(here, "over_own"), 1, 1e-14);
            if (means) ck_assert_double_eq_tol(number_at(here, "weight") * (double)valid_of(cell / M, cell % M) * M * D, 1, 1e-14);
        }
    }
    cJSON_Delete(root);
}
END_TEST

/* Each path multiplies to the weight that it ends in; the mistakes are the published multiples. */
START_TEST(explain_gradients_multiplies)
{
    cJSON *root = parsed(explain_gradients_json(&result, true));
    ck_assert_int_eq(cJSON_GetArraySize(at(root, "steps")), STEPS);
    const cJSON *list = at(at(root, "steps")->child, "conventions"), *entry, *factor, *mistake;
    cJSON_ArrayForEach(entry, list)
    {
        double product = 1, due = number_at(entry, "weight");
        cJSON_ArrayForEach(factor, at(entry, "path"))
        {
            bool divide = !strcmp(at(factor, "applied")->valuestring, "divide");
            product = divide ? product / number_at(factor, "value") : product * number_at(factor, "value");
            ck_assert_ptr_nonnull(model_site_find(at(factor, "site")->valuestring));
        }
        ck_assert_double_eq_tol(product / due, 1, 1e-13);
        bool means = !strcmp(at(entry, "reduction_due")->valuestring, "mean"), divides = strstr(at(entry, "weight_symbol")->valuestring, "M");
        cJSON_ArrayForEach(mistake, at(entry, "mistakes"))
        {
            const char *name = at(mistake, "name")->valuestring;
            double value = number_at(mistake, "value");
            if (!strcmp(name, "divided_again")) ck_assert_double_eq_tol(value, 1.0 / M, 1e-15);
            if (!strcmp(name, "not_divided")) ck_assert(divides && value == M);
            if (!strcmp(name, "other_reduction")) ck_assert_double_eq_tol(value, means ? D : 1.0 / D, 1e-15);
            if (!strcmp(name, "both")) ck_assert(divides && value == M * D);
        }
    }
    cJSON_Delete(root);
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    struct terminal terminal = {file, false, 110};
    explain_gradients_text(&result, false, &terminal);
    fclose(file);
    ck_assert_ptr_nonnull(strstr(text, "pytorch_mean"));
    ck_assert_ptr_nonnull(strstr(text, "M*D = 15"));
    ck_assert_ptr_nonnull(strstr(text, "mistakes"));
    free(text);
}
END_TEST

static char *render(bool quiet, bool verbose)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    struct terminal terminal = {file, false, 110};
    struct report report = {&result, &experiment, quiet, verbose};
    report_text(&report, &terminal);
    fclose(file);
    return text;
}

static int lines_of(const char *text)
{
    int lines = 0;
    for (; *text; text++) lines += *text == '\n';
    return lines;
}

/* The report says what ran, what failed where, the verdict and the way on; quiet is one line; a fault that
 * was never hit is never "as expected". */
START_TEST(text_tells_the_verdict)
{
    char *text = render(false, false);
    static const char *const wanted[] = {"6 ranks = pipeline 2 x FSDP 3, 1F1B, 5 micro-batches of 1 sequence",
                                         "fp64",
                                         "token-weight",
                                         "step 0, micro-batch 2: rank 4 is odd (worst of all: relative error 0.8, allowed", "1.0e-06); 2 more findings",
                                         "DIVERGED in pp.loss, as expected",
                                         "the loss is scaled once more",
                                         "loss-divided-twice 0.98",
                                         "the loss function",
                                         "pass  liveness",
                                         "3 threads"};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        ck_assert_msg(strstr(text, wanted[i]) != NULL, "no \"%s\" in\n%s", wanted[i], text);
    }
    ck_assert_int_le(lines_of(text), 40);
    free(text);
    text = render(true, false);
    ck_assert_str_eq(text, "DIVERGED in pp.loss  made_up, as expected\n");
    free(text);
    ck_assert_int_eq(report_exit_status(&result), 0);
    result.faults[0].outcome = FAULT_NOT_HIT;
    snprintf(result.faults[0].why, sizeof result.faults[0].why, "nobody came by");
    ck_assert_int_eq(report_exit_status(&result), 1);
    text = render(true, false);
    ck_assert_ptr_nonnull(strstr(text, "not as expected"));
    free(text);
    text = render(false, true);
    ck_assert_ptr_nonnull(strstr(text, "not asked for"));
    ck_assert_ptr_nonnull(strstr(text, "not hit: nobody came by"));
    free(text);
}
END_TEST

/* Numbers beside a finding say what they are: an exact check has none, a number of things is none of errors; evidence whose
 * inputs differ too is told from the place itself; and where fp64 decides, a line says so. */
START_TEST(text_explains_its_numbers)
{
    result.checks[0].limit = 0;
    result.checks[0].findings = 2;
    char *text = render(false, false);
    ck_assert_ptr_nonnull(strstr(text, "rank 4 is odd; 1 more finding\n"));
    ck_assert_ptr_nonnull(strstr(text, "loss: inputs agree to 3.0e-07, it differs by 0.8, got/due = 1/M"));
    ck_assert_ptr_null(strstr(text, "judged in fp64"));
    free(text);
    result.checks[0] = (struct check_result){.id = "memory-bound", .status = CHECK_FAIL, .value = 7, .limit = 3, .why = "odd",
                                             .place = PLACE_NONE, .findings = 1};
    struct evidence_item *e = result.diagnosis.evidence;
    e[0] = (struct evidence_item){"first", 0, 0.5, "D"};
    e[1] = (struct evidence_item){"second", 0.5, 0.75, ""};
    e[2] = (struct evidence_item){"third", 1e-9, NAN, ""};
    result.diagnosis.evidence_count = 3;
    struct record other = record;
    result.parallel_other = &other;
    record.config.precision.compute = FORMAT_BF16;
    text = render(false, false);
    static const char *const wanted[] = {"(worst of all: number held at once 7, allowed 3)\n", "first: inputs equal, it differs by 0.5, got/due = D\n",
                                         "second: inputs differ by 0.5, it too by 0.75\n", "third: inputs agree to 1.0e-09, it is not what is due\n",
                                         "judged in fp64: ", "bf16 compute"};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) ck_assert_msg(strstr(text, wanted[i]) != NULL, "no \"%s\" in\n%s", wanted[i], text);
    free(text);
}
END_TEST

/* What was given with a fault stands behind its name, in the words of the report and as --fault takes it. */
START_TEST(text_echoes_faults)
{
    struct fault_entry *entry = &scenario.faults[0];
    *entry = (struct fault_entry){.name = "loss-divided-twice", .fault = fault_find("loss-divided-twice"), .rank = {2, {4, 5}}, .step = {1, {1}},
                                  .text = "1/D", .argument = "factor", .once = true, .in = FAULT_IN_BOTH};
    scenario.faults_count = 1;
    char *text = render(false, true);
    ck_assert_ptr_nonnull(strstr(text, "fault  loss-divided-twice at ranks 4, 5, step 1, with factor 1/D, once on each rank, in both runs:"));
    free(text);
    *entry = (struct fault_entry){.name = "a:b", .site = site_registry_at(0), .deviation = deviation_registry_at(0), .value = -0.5,
                                  .has_value = true, .argument = "value"};
    text = render(false, false);
    ck_assert_ptr_nonnull(strstr(text, "fault  a:b with value -0.5: "));
    free(text);
}
END_TEST

/* A cycle is drawn with both sides' operations. */
START_TEST(text_draws_the_cycle)
{
    struct blocked blocked[] = {{1, 4, true, "send", "pp.send_activation", "pp", 0, 3, "stage 0: 0SEND_F2"},
                                {4, 1, true, "send", "pp.send_grad", "pp", 1, 2, "stage 1: 1SEND_B0"}};
    int cycle[] = {1, 4};
    record.deadlock = (struct deadlock){2, blocked, 2, cycle};
    result.verdict = VERDICT_DEADLOCK;
    char *text = render(false, false);
    static const char *const wanted[] = {"DEADLOCK", "rank 1",           "rank 4",    "0SEND_F2",
                                         "1SEND_B0", "waits for rank 1", "sends to 4"};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        ck_assert_msg(strstr(text, wanted[i]) != NULL, "no \"%s\" in\n%s", wanted[i], text);
    }
    free(text);
}
END_TEST

/* JUnit: counts, and markup in a name cannot break the file. */
START_TEST(junit_escapes)
{
    struct suite_row rows[] = {{.end = SUITE_RAN, .scenario = "good", .as_expected = true},
                               {.end = SUITE_RAN,
                                .scenario = "a<b&\"c\"",
                                .verdict = VERDICT_VIOLATED,
                                .expected = "consistent",
                                .why = "x > y"},
                               {.end = SUITE_REFUSED, .scenario = "bad", .why = "line 3\nunknown key"},
                               {.end = SUITE_NOT_RUN, .scenario = "late"}};
    char *paths[] = {"p/good.json", "p/odd.json", "p/bad.json", "p/late.json"};
    struct suite suite = {4, paths, rows};
    char *text = suite_junit(&suite);
    static const char *const wanted[] = {"tests=\"4\" failures=\"1\" errors=\"1\" skipped=\"1\"",
                                         "a&lt;b&amp;&quot;c&quot;", "violated, expected consistent: x &gt; y",
                                         "line 3&#10;unknown key", "<skipped "};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        ck_assert_msg(strstr(text, wanted[i]) != NULL, "no \"%s\" in\n%s", wanted[i], text);
    }
    free(text);
}
END_TEST

/* Ranks are told as spans. */
START_TEST(describes_ranks)
{
    char text[DESCRIBE_TEXT];
    int ranks[] = {0, 1, 3, 6, 7, 8, 11};
    ck_assert_str_eq(describe_ranks(ranks, 7, text), "0, 1, 3, 6-8, 11");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("report");
    TCase *tcase = tcase_create("report");
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, json_has_all_keys);
    tcase_add_test(tcase, json_and_csv_ignore_the_locale);
    tcase_add_test(tcase, json_repeats);
    tcase_add_test(tcase, loss_ledger_finds_the_factor);
    tcase_add_test(tcase, loss_ledger_finds_what_was_lost);
    tcase_add_test(tcase, explain_loss_names_the_factor);
    tcase_add_test(tcase, explain_loss_compares_conventions);
    tcase_add_test(tcase, explain_gradients_multiplies);
    tcase_add_test(tcase, text_tells_the_verdict);
    tcase_add_test(tcase, text_draws_the_cycle);
    tcase_add_test(tcase, text_explains_its_numbers);
    tcase_add_test(tcase, text_echoes_faults);
    tcase_add_test(tcase, junit_escapes);
    tcase_add_test(tcase, describes_ranks);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
