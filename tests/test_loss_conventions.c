/* Loss conventions: each one's weights against formulas written out here, healthy runs of all of them over layouts, and
 * wrong factors under each: caught, and named by their site. */
#include <math.h>
#include <stdio.h>

#include "scenarios/fault.h"
#include "scenarios/keys.h"
#include "tests/small_run.h"
#include "tests/support/run_suite.h"

enum { CONVENTIONS = 10 };

/* What a token weighs, and what its loss is multiplied by in print, by the public systems' own words. */
static double weight_by_hand(const char *name, const struct factor_numbers *f)
{
    if (!strcmp(name, "hf_trainer")) return 1 / f->n_rank_unshifted / f->D;
    static const char *const means[] = {"megatron", "pytorch_mean", "deepspeed_pipe", "nanotron"};
    for (int i = 0; i < 4; i++) {
        if (!strcmp(name, means[i])) return 1 / f->n / f->M / f->D;
    }
    return 1 / f->N;
}

static double logged_by_hand(const char *name, const struct factor_numbers *f)
{
    return !strcmp(name, "megatron") ? 1 / f->N : weight_by_hand(name, f);
}

static const struct factor_numbers some_numbers = {.M = 5, .D = 3, .P = 7, .C = 1, .T = 1, .E = 1, .A = 3, .N = 1009, .N_all = 1201,
    .N_unshifted = 1103, .n = 61, .n_rank = 311, .n_rank_unshifted = 331};

/* The factors of a convention multiply to its weight, for either reduction; what comes at the end is the same for all
 * micro-batches; and the scenario key names them in this order. */
START_TEST(factors_make_the_weight)
{
    const struct loss_convention *c = loss_convention_at(_i);
    ck_assert_int_eq(loss_convention_count(), CONVENTIONS);
    struct factor_numbers f = some_numbers;
    char name[CHOICE_TEXT];
    ck_assert(choice_at(key_find("train.loss_normalization")->options, _i, name));
    ck_assert_str_eq(name, c->name);
    for (int sum = 0; sum < 2; sum++) {
        f.A = sum ? 1 : f.D;
        double weight = loss_seed(c, &f) / f.A * loss_value(c->grad_scale, &f);
        ck_assert_double_eq_tol(weight / weight_by_hand(c->name, &f), 1, 1e-14);
        ck_assert_double_eq_tol(loss_value(c->weight, &f) / weight, 1, 1e-14);
        ck_assert_double_eq_tol(loss_value(c->logged, &f) / logged_by_hand(c->name, &f), 1, 1e-14);
    }
    double after = loss_value(c->grad_scale, &f);
    f.n = 2;
    f.n_rank = 17;
    f.n_rank_unshifted = 19;
    ck_assert_double_eq(loss_value(c->grad_scale, &f), after);
    ck_assert_int_eq(c->counts_at_end, strchr(c->grad_scale, 'N') != NULL);
    ck_assert_int_eq(loss_convention_logs_optimized(c), strcmp(c->name, "megatron") != 0);
    struct factor_numbers empty = {.M = 5, .D = 3, .A = 1};
    ck_assert(isfinite(loss_value(c->weight, &empty)) && loss_value(c->weight, &empty) > 0);
}
END_TEST

/* The published examples: two micro-batches on one rank, losses and counts given. */
START_TEST(published_examples)
{
    static const struct { double sum[2], count[2], means, token_mean; } cases[] = {
        {{30, 1}, {10, 1}, 2.0, 31.0 / 11}, {{10, 2}, {10, 1}, 1.5, 12.0 / 11}};
    for (int i = 0; i < 2; i++) {
        double means = 0, token_mean = 0;
        for (int m = 0; m < 2; m++) {
            struct factor_numbers f = {.M = 2, .D = 1, .A = 1, .N = 11, .n = cases[i].count[m], .n_rank = 11};
            means += cases[i].sum[m] * loss_value(loss_convention_at(2)->weight, &f);
            token_mean += cases[i].sum[m] * loss_value(loss_convention_at(0)->weight, &f);
        }
        ck_assert_double_eq_tol(means, cases[i].means, 1e-15);
        ck_assert_double_eq_tol(token_mean, cases[i].token_mean, 1e-15);
    }
}
END_TEST

static const char *source; /* root of the source tree */

/* The page has each convention's row as it is here. */
START_TEST(the_page_tells_the_table)
{
    char path[4096], row[512];
    static char page[1 << 17];
    const struct loss_convention *c = loss_convention_at(_i);
    snprintf(path, sizeof path, "%s/docs/loss_scaling.md", source);
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    page[fread(page, 1, sizeof page - 1, file)] = 0;
    fclose(file);
    snprintf(row, sizeof row, "| `%s` | %s | %s | %s | %s | %s | %s | %s |\n", c->name, c->system, c->denominator, c->scale,
             c->combine == LOSS_COMBINE_MEAN ? "mean" : "sum", c->grad_scale, c->weight, c->logged);
    ck_assert_msg(strstr(page, row) != NULL, "not in %s: %s", path, row);
}
END_TEST

/* ---- runs ---- */

enum layout_bits { WITH_DDP = 1, WITH_SUM = 2, WITH_EACH = 4, WITH_GPIPE = 8, LAYOUTS = 16 };

static struct run_config config_of(int convention, int bits, int pp)
{
    struct run_config config = small_config();
    config.train.loss_normalization = convention;
    config.layout.pp = pp;
    static const int layers[][3] = {{5}, {2, 3}, {2, 2, 1}};
    for (int s = 0; s < pp; s++) config.layout.layers_per_stage[s] = layers[pp - 1][s];
    if (bits & WITH_DDP) small_config_ddp(&config);
    if (bits & WITH_SUM) config.layout.reduce_op = FSDP_REDUCE_SUM;
    if (bits & WITH_EACH) config.layout.sync = SYNC_EACH_MICROBATCH;
    if (bits & WITH_GPIPE) strcpy(config.layout.schedule, "GPipe");
    return config;
}

/* Every gradient's probes against the formulas above with this step's counts. */
static void expect_weights(const struct record *record)
{
    int D = layout_data_ranks(&record->config.layout), M = record->config.layout.microbatches, seen = 0;
    const char *name = loss_convention_of(&record->config)->name;
    for (int r = 0; r < record->ranks; r++) {
        for (int i = 0; i < record->rank[r].gradients.count; i++) {
            const struct gradient_fact *fact = &record->rank[r].gradients.items[i];
            for (int cell = 0; fact->stage == GRADIENT_REDUCED && cell < D * M; cell++) {
                struct factor_numbers f = loss_numbers_due(record, fact->step, cell);
                double due = weight_by_hand(name, &f), uses = fact->unit == 0 && record->config.model.tie_embeddings ? 2 : 1;
                double got = fact->probe[(fact->step & 1) * D * M + cell] / uses;
                ck_assert_msg(fabs(got / due - 1) < 64 * format_traits[run_storage(&record->config)].unit_roundoff,
                              "%s: unit %d, micro-batch %d: %.9g, due %.9g", name, fact->unit, cell, got, due);
                seen++;
            }
        }
    }
    ck_assert_int_gt(seen, 0);
}

/* Counts differ over micro-batches, so that no two conventions but the token means weigh alike. */
static void expect_unequal(const struct record *record)
{
    bool differ = false;
    for (int cell = 1; cell < 15; cell++) differ = differ || record->cells[cell].valid != record->cells[0].valid;
    ck_assert(differ);
}

static const char *failing(const struct result *result)
{
    static char text[900];
    text[0] = 0;
    for (int i = 0; i < result->checks_count && !text[0]; i++) {
        if (result->checks[i].status == CHECK_FAIL)
            snprintf(text, sizeof text, "%s: %s", result->checks[i].id, result->checks[i].why);
    }
    return text;
}

START_TEST(healthy_runs_are_consistent)
{
    for (int bits = 0; bits < LAYOUTS; bits++) {
        for (int pp = 1; pp <= 3; pp++) {
            struct run_config config = config_of(_i, bits, pp);
            config.model.tie_embeddings = bits == WITH_EACH;
            if (bits % 3 == 1) config.precision = precision_of(FORMAT_FP64);
            struct small_run run = small_run_new(&config, NULL, false);
            struct result result = small_judge(&run);
            if (failing(&result)[0]) { /* above the screening limit: the ladder judges */
                arena_free(result.arena);
                small_run_free(&run);
                run = small_run_new(&config, NULL, true);
                result = small_judge(&run);
            }
            ck_assert_msg(!failing(&result)[0], "%s, layout %d, pp %d: %s", loss_convention_at(_i)->name, bits, pp, failing(&result));
            expect_unequal(run.parallel);
            expect_weights(run.parallel);
            ck_assert_int_eq(result.warnings_count, loss_convention_logs_optimized(loss_convention_at(_i)) ? 0 : 1);
            arena_free(result.arena);
            small_run_free(&run);
        }
    }
}
END_TEST

/* Wrong factors: what changes no number is masked; all else must fail and be named by its site's component. */
START_TEST(wrong_factors_are_named)
{
    static const struct small_fault faults[] = {
        {"loss.denominator", "omit", NULL, 0, SMALL_EVERYWHERE},
        {"loss.denominator", "twice", NULL, 0, SMALL_EVERYWHERE},
        {"loss.denominator", "times", "1/M", 0, SMALL_EVERYWHERE},
        {"pp.loss.scale", "omit", NULL, 0, SMALL_EVERYWHERE},
        {"pp.loss.scale", "twice", NULL, 0, SMALL_EVERYWHERE},
        {"pp.loss.scale", "times", "1/M", 0, SMALL_EVERYWHERE},
        {"pp.loss.scale", "negate", NULL, 0, -1, 1, 2, -1},
        {"dp.loss.scale", "omit", NULL, 0, SMALL_EVERYWHERE},
        {"dp.loss.scale", "times", "1/D", 0, -1, 0, 3, -1},
        {"pp.grad_scale", "omit", NULL, 0, SMALL_EVERYWHERE},
        {"pp.grad_scale", "twice", NULL, 0, SMALL_EVERYWHERE},
        {"pp.grad_scale", "times", "1/M", 0, SMALL_EVERYWHERE},
        {"pp.grad_scale", "times", "M", 0, -1, 1, -1, 2},
        {"pp.grad_scale", "times", "M", 0, 1, 0, -1, -1},
        {"pp.grad.accumulate", "per-accumulation-step", "1/M", 0, SMALL_EVERYWHERE},
        {"dp.grad.accumulate", "per-accumulation-step", "1/D", 0, SMALL_EVERYWHERE},
        {"loss.report", "times", "1/N", 0, SMALL_EVERYWHERE},
        {"metrics.loss", "times", "1/M", 0, SMALL_EVERYWHERE},
        {"loss.token_count_reduce", "skip", NULL, 0, SMALL_EVERYWHERE},
        {"fsdp.grad_divisor", "twice", NULL, 0, SMALL_EVERYWHERE},
    };
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        struct run_config config = config_of(_i, i % 2 ? WITH_DDP : 0, 2 + (int)(i % 2));
        if (!strcmp(faults[i].site, "dp.grad.accumulate")) config.layout.sync = SYNC_EACH_MICROBATCH;
        struct small_run run = small_run_new(&config, &faults[i], false);
        struct record *healthy = small_record(config, false, config.precision, NULL, NULL);
        const char *name = loss_convention_at(_i)->name;
        bool counted = strcmp(faults[i].site, "loss.token_count_reduce") != 0 || loss_convention_counts(loss_convention_at(_i));
        ck_assert_int_eq(run.hits > 0, counted);
        bool masked = !memcmp(run.parallel->digest, healthy->digest, sizeof healthy->digest);
        struct result result = small_judge(&run);
        if (masked) {
            ck_assert_msg(!failing(&result)[0], "%s, %s %s is masked: %s", name, faults[i].site, faults[i].deviation, failing(&result));
        } else {
            ck_assert_msg(result.has_diagnosis, "%s, %s %s is missed", name, faults[i].site, faults[i].deviation);
            ck_assert_msg(!strcmp(result.diagnosis.component, model_site_find(faults[i].site)->component), "%s, %s %s is taken for %s: %s",
                          name, faults[i].site, faults[i].deviation, result.diagnosis.component, result.diagnosis.summary);
        }
        record_free(healthy);
        arena_free(result.arena);
        small_run_free(&run);
    }
}
END_TEST

/* ---- exact multiples ---- */

/* The ratio of all gradients of step 0 to the healthy run's, which must be one. */
static void expect_multiple(const struct run_config *config, const struct small_fault *fault, double due)
{
    struct record *faulty = small_record(*config, false, precision_of(FORMAT_FP64), fault, NULL);
    struct record *healthy = small_record(*config, false, precision_of(FORMAT_FP64), NULL, NULL);
    int seen = 0;
    for (int r = 0; r < faulty->ranks; r++) {
        for (int i = 0; i < faulty->rank[r].tensors.count; i++) {
            const struct tensor_fact *a = &faulty->rank[r].tensors.items[i], *b = &healthy->rank[r].tensors.items[i];
            if (a->kind != TENSOR_GRADIENT || a->step != 0) continue;
            const double *x = a->data, *y = b->data;
            double most = 0;
            int64_t count = a->elements;
            for (int64_t k = 0; k < count; k++) most = fmax(most, fabs(y[k]));
            for (int64_t k = 0; k < count; k++) ck_assert_double_le(fabs(x[k] - due * y[k]), 1e-12 * due * most);
            seen += most > 0;
        }
    }
    ck_assert_int_gt(seen, 20);
    record_free(faulty);
    record_free(healthy);
}

/* M where the last division is left out, D where a mean should have been taken and a sum was, 1/D where both divide. */
START_TEST(gradients_are_exact_multiples)
{
    static const struct small_fault no_scale = {"pp.grad_scale", "omit", NULL, 0, SMALL_EVERYWHERE},
                                    unit_seed = {"pp.loss.scale", "omit", NULL, 0, SMALL_EVERYWHERE},
                                    sum = {"fsdp.grad_divisor", "omit", NULL, 0, SMALL_EVERYWHERE},
                                    twice = {"fsdp.grad_divisor", "twice", NULL, 0, SMALL_EVERYWHERE},
                                    both = {"pp.grad_scale", "set", "D", 0, SMALL_EVERYWHERE},
                                    again = {"pp.loss.scale", "twice", NULL, 0, SMALL_EVERYWHERE};
    struct run_config pytorch = config_of(4, 0, 2), megatron = config_of(2, WITH_DDP, 3);
    ck_assert_str_eq(loss_convention_of(&pytorch)->name, "pytorch_mean");
    ck_assert_str_eq(loss_convention_of(&megatron)->name, "megatron");
    expect_multiple(&pytorch, &no_scale, 5);
    expect_multiple(&pytorch, &sum, 3);
    expect_multiple(&pytorch, &twice, 1.0 / 3);
    expect_multiple(&pytorch, &both, 15);
    expect_multiple(&megatron, &unit_seed, 5);
    expect_multiple(&megatron, &again, 1.0 / 5);
}
END_TEST

int main(int argc, char **argv)
{
    if (argc != 2) return 99;
    source = argv[1];
    Suite *suite = suite_create("loss conventions");
    TCase *tcase = tcase_create("conventions");
    tcase_set_timeout(tcase, 600);
    tcase_add_loop_test(tcase, factors_make_the_weight, 0, CONVENTIONS);
    tcase_add_test(tcase, published_examples);
    tcase_add_loop_test(tcase, the_page_tells_the_table, 0, CONVENTIONS);
    tcase_add_loop_test(tcase, healthy_runs_are_consistent, 0, CONVENTIONS);
    tcase_add_loop_test(tcase, wrong_factors_are_named, 0, CONVENTIONS);
    tcase_add_test(tcase, gradients_are_exact_multiples);
    suite_add_tcase(suite, tcase);
    return run_suite(suite, CK_FORK_GETENV);
}
