/* Experiments: verdicts in their order, the second rung only where it is needed, what became of each fault, and
 * whether that is what the scenario expects. */
#include <stdio.h>

#include "model/loss_convention.h"
#include "scenarios/fault.h"
#include "tests/small_run.h"

static struct scenario scenario;

static struct fault_entry *add_fault(const char *name)
{
    struct fault_entry *entry = &scenario.faults[scenario.faults_count++];
    snprintf(entry->name, sizeof entry->name, "%s", name);
    entry->fault = fault_find(name);
    ck_assert_ptr_nonnull(entry->fault);
    return entry;
}

static struct fault_entry *add_primitive(const char *site, const char *deviation)
{
    struct fault_entry *entry = &scenario.faults[scenario.faults_count++];
    snprintf(entry->name, sizeof entry->name, "%s:%s", site, deviation);
    entry->site = model_site_find(site);
    entry->deviation = small_deviation(entry->site, deviation);
    ck_assert_ptr_nonnull(entry->deviation);
    return entry;
}

static void begin(void)
{
    memset(&scenario, 0, sizeof scenario);
    strcpy(scenario.name, "small");
    scenario.config = small_config();
}

static struct result *run_checks(const char *checks)
{
    struct experiment_options options = {.train = {.threads = 1}, .checks = checks};
    struct error error = {0};
    struct result *result = experiment_run(&scenario, &options, &error);
    ck_assert_msg(result != NULL, "%s", error.message);
    return result;
}

static void expect_verdict(enum verdict verdict, const char *component)
{
    scenario.expect.given = true;
    scenario.expect.verdict = verdict;
    snprintf(scenario.expect.component, sizeof scenario.expect.component, "%s", component);
}

/* Nothing wrong: two runs, every check listed once, steps filled. */
START_TEST(healthy_is_consistent)
{
    begin();
    struct result *result = run_checks("default");
    ck_assert_int_eq(result->verdict, VERDICT_CONSISTENT);
    ck_assert(result->as_expected && !result->has_diagnosis);
    ck_assert_ptr_null(result->parallel_other);
    ck_assert_int_eq(result->checks_count, check_count());
    ck_assert_int_eq(result->steps_count, 2);
    ck_assert_double_lt(result->steps[1].rel_err, 1e-5);
    ck_assert_double_gt(result->steps[0].norm_parallel, 0);
    ck_assert_int_eq((int)result->steps[0].valid_tokens, (int)record_valid_tokens_due(result->standalone, 0));
    result_free(result);
    result = run_checks("deep");
    ck_assert_ptr_nonnull(result->parallel_other);
    ck_assert_int_eq(result->verdict, VERDICT_CONSISTENT);
    result_free(result);
    result_free(NULL);
}
END_TEST

/* diverged before violated; violated where the oracle has nothing against it, or was not asked. */
START_TEST(verdicts)
{
    begin();
    add_fault("loss-divided-twice");
    struct result *result = run_checks("default");
    ck_assert_int_eq(result->verdict, VERDICT_DIVERGED);
    ck_assert_str_eq(result->diagnosis.component, "pp.loss");
    ck_assert_ptr_nonnull(result->parallel_other);
    ck_assert(!result->as_expected);
    ck_assert_int_eq(result->faults[0].outcome, FAULT_ACTIVE);
    ck_assert_int_eq((int)result->faults[0].hits, 2 * 5 * 3);
    result_free(result);
    result = run_checks("-oracle");
    ck_assert_int_eq(result->verdict, VERDICT_VIOLATED);
    result_free(result);
    begin();
    add_fault("loss-report-world-mean");
    result = run_checks("default");
    ck_assert_int_eq(result->verdict, VERDICT_VIOLATED);
    ck_assert_str_eq(result->diagnosis.component, "loss.report");
    result_free(result);
    begin();
    scenario.config.layout.send_sync = true;
    add_primitive("pp.send_activation", "skip");
    result = run_checks("default");
    ck_assert_int_ne(result->verdict, VERDICT_CONSISTENT);
    result_free(result);
}
END_TEST

/* A fault of the standalone run diverges as well, and is counted there. */
START_TEST(standalone_faults)
{
    begin();
    struct fault_entry *entry = add_primitive("pp.loss.scale", "times");
    strcpy(entry->text, "2");
    entry->in = FAULT_IN_STANDALONE;
    struct result *result = run_checks("default");
    ck_assert_int_eq(result->verdict, VERDICT_DIVERGED);
    ck_assert_int_eq((int)result->faults[0].hits, 2);
    result_free(result);
}
END_TEST

/* The reference's own books say that it is the reference that is wrong; a layer leaves no trace in them. The parallel run is
 * what it is without the fault, and the fault's line says so. */
START_TEST(reference_is_wrong)
{
    static const struct { const char *site, *deviation, *text, *component; bool of_reference; } cases[] = {
        {"pp.loss.scale", "times", "1/7", "pp.loss", true},
        {"fsdp.grad_divisor", "set", "3", "fsdp.grad_divisor", true},
        {"optimizer.owns", "never", "", "optimizer", true},
        {"layer.forward", "perturb", "", "layer.forward", false},
    };
    begin();
    struct result *healthy = run_checks("default");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        begin();
        struct fault_entry *entry = add_primitive(cases[i].site, cases[i].deviation);
        strcpy(entry->text, cases[i].text);
        entry->in = FAULT_IN_STANDALONE;
        struct result *result = run_checks("default");
        ck_assert_int_eq(result->verdict, VERDICT_DIVERGED);
        ck_assert_str_eq(result->diagnosis.component, cases[i].component);
        ck_assert_msg((strstr(result->diagnosis.summary, "In the standalone run") != NULL) == cases[i].of_reference, "%s",
                      result->diagnosis.summary);
        ck_assert_mem_eq(result->parallel->digest, healthy->parallel->digest, sizeof healthy->parallel->digest);
        ck_assert_int_eq(result->faults[0].outcome, FAULT_ACTIVE);
        ck_assert_ptr_nonnull(strstr(result->faults[0].why, "standalone run alone"));
        result_free(result);
    }
    result_free(healthy);
}
END_TEST

/* A healthy standalone run's books are in order, so that they are never held against it. */
START_TEST(reference_books_are_in_order)
{
    for (int kind = 0; kind < 6; kind++) {
        begin();
        scenario.config.model.tie_embeddings = kind == 1;
        if (kind == 2) scenario.config.layout.reduce_op = FSDP_REDUCE_SUM;
        if (kind == 3) scenario.config.precision = precision_of(FORMAT_FP64);
        if (kind == 4) scenario.config.precision.param = scenario.config.precision.compute = FORMAT_BF16;
        if (kind == 5) scenario.config.train.loss_scale = (struct loss_scale_config){.kind = LOSS_SCALING_STATIC, .initial = 1024};
        struct result *result = run_checks("default");
        struct check_selection selection;
        struct error error = {0};
        ck_assert(check_select("default", &selection, &error));
        const struct record *record = result->standalone;
        struct evidence books = {&record->config, record, record, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL};
        struct result own;
        memset(&own, 0, sizeof own);
        own.arena = arena_new("books", false);
        checks_run(&books, &selection, &own);
        for (int i = 0; i < own.checks_count; i++)
            ck_assert_msg(own.checks[i].status != CHECK_FAIL, "kind %d: %s: %s", kind, own.checks[i].id, own.checks[i].why);
        arena_free(own.arena);
        result_free(result);
    }
}
END_TEST

/* Without the checks that would tell, the comparison names what it supports, and says that it is no more than that. */
START_TEST(oracle_alone)
{
    static const struct { const char *site, *deviation, *text, *component, *ratio; } cases[] = {
        {"pp.loss.scale", "times", "1/M", "pp.loss", "1/M"},
        {"fsdp.grad_divisor", "twice", "", "fsdp.grad_divisor", "1/D"},
        {"pp.grad_scale", "times", "1/7", "fsdp.grad_divisor", ""}, /* a factor behind the loss: which, it cannot tell */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        begin();
        strcpy(add_primitive(cases[i].site, cases[i].deviation)->text, cases[i].text);
        struct result *result = run_checks("oracle");
        ck_assert_int_eq(result->verdict, VERDICT_DIVERGED);
        ck_assert_msg(!strcmp(result->diagnosis.component, cases[i].component), "%s", result->diagnosis.summary);
        ck_assert_str_eq(result->diagnosis.ratio, cases[i].ratio);
        ck_assert_ptr_nonnull(strstr(result->diagnosis.summary, "the checks that ran do not tell"));
        ck_assert_int_eq(result->diagnosis.ranks_count, 0);
        result_free(result);
    }
}
END_TEST

/* One ratio behind the loss that is the convention's own factor, or its inverse; and targets that the head alone sees. */
START_TEST(oracle_alone_knows)
{
    static const struct { const char *site, *deviation, *component; } cases[] = {
        {"pp.grad_scale", "twice", "pp.grad_scale"},
        {"pp.grad_scale", "omit", "pp.grad_scale"},
        {"fsdp.grad_divisor", "omit", "fsdp.grad_divisor"},
        {"labels", "shift", "labels"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        begin();
        while (strcmp(loss_convention_of(&scenario.config)->name, "pytorch_mean") != 0) scenario.config.train.loss_normalization++;
        add_primitive(cases[i].site, cases[i].deviation);
        struct result *result = run_checks("oracle");
        ck_assert_int_eq(result->verdict, VERDICT_DIVERGED);
        ck_assert_msg(!strcmp(result->diagnosis.component, cases[i].component), "%s", result->diagnosis.summary);
        result_free(result);
    }
}
END_TEST

/* The average of the printed loss by any algorithm: rounded before the sum it is found, or no number is another. */
START_TEST(average_of_any_algorithm)
{
    int found = 0;
    for (int i = 0; i < collective_algorithm_count(); i++) {
        const struct collective_algorithm *algorithm = collective_algorithm(i);
        if (strcmp(algorithm->op, "all_reduce") != 0) continue;
        for (int wrong = 0; wrong < 2; wrong++) {
            begin();
            snprintf(scenario.config.layout.all_reduce, sizeof scenario.config.layout.all_reduce, "%s", algorithm->name);
            if (wrong) add_primitive("loss.report_reduce", "average-first");
            struct result *result = run_checks("precision");
            bool seen = result->verdict != VERDICT_CONSISTENT;
            ck_assert_msg(!wrong ? !seen : seen || result->faults[0].outcome == FAULT_MASKED, "%s", algorithm->name);
            found += seen;
            result_free(result);
        }
    }
    ck_assert_int_gt(found, 0);
}
END_TEST

/* Two faults at one place: the first acts, and the other says whose place it was and what to do. Apart, both act. */
START_TEST(one_place_one_fault)
{
    for (int apart = 0; apart < 2; apart++) {
        begin();
        struct fault_entry *first = add_primitive("fsdp.reduce_grad", "scale");
        struct fault_entry *second = add_primitive("fsdp.reduce_grad", "corrupt");
        first->value = 1.5;
        first->has_value = true;
        if (apart) first->step = (struct at_list){.count = 1, .values = {0}};
        if (apart) second->step = (struct at_list){.count = 1, .values = {1}};
        struct result *result = run_checks("default");
        ck_assert_int_eq(result->faults[0].outcome, FAULT_ACTIVE);
        ck_assert_int_eq(result->faults[1].outcome, apart ? FAULT_ACTIVE : FAULT_NOT_HIT);
        ck_assert((strstr(result->faults[1].why, "fsdp.reduce_grad:scale took all") != NULL) == !apart);
        ck_assert((strstr(result->faults[1].why, "\"at\"") != NULL) == !apart);
        result_free(result);
    }
}
END_TEST

/* A fault that is never reached: not as expected, whatever the rest says. */
START_TEST(not_hit)
{
    begin();
    add_fault("pp-tied-embedding-not-reduced");
    struct result *result = run_checks("default");
    ck_assert_int_eq(result->verdict, VERDICT_CONSISTENT);
    ck_assert_int_eq(result->faults[0].outcome, FAULT_NOT_HIT);
    ck_assert(!result->as_expected && strstr(result->expected_why, "never hit"));
    result_free(result);
}
END_TEST

/* Masked means the digest of the healthy run, and the report says what would expose it. */
START_TEST(masked)
{
    begin();
    scenario.config.data.packing = PACKING_STREAM; /* every micro-batch has equally many valid tokens */
    add_fault("loss-mean-of-means");
    struct result *result = run_checks("default");
    ck_assert_int_eq(result->verdict, VERDICT_CONSISTENT);
    ck_assert_int_eq(result->faults[0].outcome, FAULT_MASKED);
    ck_assert_ptr_nonnull(strstr(result->faults[0].why, "documents"));
    ck_assert(result->as_expected);
    result_free(result);
    begin();
    scenario.config.layout.dp_shard = 1;
    add_fault("data-same-on-every-rank");
    result = run_checks("default");
    ck_assert_int_eq(result->faults[0].outcome, FAULT_MASKED);
    ck_assert_ptr_nonnull(strstr(result->faults[0].why, "dp_shard"));
    result_free(result);
}
END_TEST

/* Changed in the last bits only: active, and within rounding. */
START_TEST(within_rounding)
{
    begin();
    struct fault_entry *entry = add_primitive("layer.weight_gradient", "perturb");
    entry->value = 1e-7;
    entry->has_value = true;
    struct result *result = run_checks("default");
    ck_assert_int_eq(result->verdict, VERDICT_CONSISTENT);
    ck_assert_int_eq(result->faults[0].outcome, FAULT_ACTIVE);
    ck_assert_ptr_nonnull(strstr(result->faults[0].why, "rounding"));
    result_free(result);
}
END_TEST

/* Each part of an expectation is held against the result, and what is not met is said. */
START_TEST(expectations)
{
    begin();
    add_fault("loss-divided-twice");
    expect_verdict(VERDICT_DIVERGED, "pp.loss");
    strcpy(scenario.expect.site, "pp.loss.scale");
    strcpy(scenario.expect.checks[scenario.expect.checks_count++], "token-weight");
    for (int r = 0; r < 3; r++) scenario.expect.ranks[scenario.expect.ranks_count++] = 5 - r;
    struct result *result = run_checks("default");
    ck_assert_msg(result->as_expected, "%s", result->expected_why);
    result_free(result);
    scenario.expect.ranks[0] = 0;
    result = run_checks("default");
    ck_assert(!result->as_expected && strstr(result->expected_why, "ranks"));
    result_free(result);
    scenario.expect.ranks_count = 0;
    strcpy(scenario.expect.checks[0], "version");
    result = run_checks("default");
    ck_assert(!result->as_expected && strstr(result->expected_why, "version"));
    result_free(result);
    strcpy(scenario.expect.component, "pp.grad");
    result = run_checks("default");
    ck_assert(!result->as_expected && strstr(result->expected_why, "pp.grad"));
    result_free(result);
    scenario.expect.verdict = VERDICT_DEADLOCK;
    result = run_checks("default");
    ck_assert(!result->as_expected && strstr(result->expected_why, "deadlock"));
    result_free(result);
}
END_TEST

/* A stop ends it without a result and without an error; an unknown check is an error before anything runs. */
START_TEST(stopped_and_refused)
{
    begin();
    volatile int stop = 1;
    struct error error = {0};
    struct experiment_options options = {.train = {.threads = 1, .stop = &stop}, .checks = "default"};
    ck_assert_ptr_null(experiment_run(&scenario, &options, &error));
    ck_assert(!error_is_set(&error));
    options.checks = "no-such-check";
    ck_assert_ptr_null(experiment_run(&scenario, &options, &error));
    ck_assert_int_eq(error.kind, ERROR_INPUT);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("experiment");
    TCase *tcase = tcase_create("experiment");
    tcase_add_test(tcase, healthy_is_consistent);
    tcase_add_test(tcase, verdicts);
    tcase_add_test(tcase, standalone_faults);
    tcase_add_test(tcase, reference_is_wrong);
    tcase_add_test(tcase, reference_books_are_in_order);
    tcase_add_test(tcase, oracle_alone);
    tcase_add_test(tcase, oracle_alone_knows);
    tcase_add_test(tcase, average_of_any_algorithm);
    tcase_add_test(tcase, one_place_one_fault);
    tcase_add_test(tcase, not_hit);
    tcase_add_test(tcase, masked);
    tcase_add_test(tcase, within_rounding);
    tcase_add_test(tcase, expectations);
    tcase_add_test(tcase, stopped_and_refused);
    tcase_set_timeout(tcase, 120);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
