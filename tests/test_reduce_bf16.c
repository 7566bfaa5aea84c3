/* Reducing gradients in bf16 where fp32 is declared, in a run whose products and parameters are bf16 anyway: over many
 * seeds the healthy run raises no check, and the faulty one is caught and named each time, with all its ranks.
 * usage: test_reduce_bf16 SOURCE [long]; 20 seeds, long: 200. */
#include <stdio.h>
#include <string.h>

#include "tests/small_run.h"
#include "tests/support/run_suite.h"

/* 2 stages of 2 and 1 layers, 3 shards, 5 micro-batches. */
static struct run_config config_of(int seed)
{
    struct run_config config = small_config();
    config.seed = (uint64_t)seed;
    config.model.layers = 3;
    config.layout.layers_per_stage[0] = 2;
    config.layout.layers_per_stage[1] = 1;
    config.precision.compute = config.precision.param = config.precision.residual = FORMAT_BF16;
    ck_assert_int_eq(config.precision.reduce, FORMAT_FP32);
    return config;
}

START_TEST(healthy_is_silent)
{
    struct run_config config = config_of(_i);
    struct small_run run = small_run_new(&config, NULL, true);
    struct result result = small_judge(&run);
    for (int i = 0; i < result.findings_count; i++)
        ck_abort_msg("seed %d: %s: %s", _i, result.findings[i].check, result.findings[i].text);
    ck_assert_int_eq(small_check(&result, "precision")->status, CHECK_PASS);
    ck_assert_int_eq(small_check(&result, "oracle")->status, CHECK_PASS);
    arena_free(result.arena);
    small_run_free(&run);
}
END_TEST

START_TEST(fault_is_named)
{
    struct run_config config = config_of(_i);
    struct small_fault fault = {"fsdp.reduce_grad", "wrong-format", "bf16", 0, SMALL_EVERYWHERE};
    struct small_run run = small_run_new(&config, &fault, true);
    ck_assert_uint_gt(run.hits, 0);
    struct result result = small_judge(&run);
    const struct diagnosis *d = &result.diagnosis;
    ck_assert_int_eq(small_check(&result, "precision")->status, CHECK_FAIL);
    ck_assert_msg(result.has_diagnosis && !strcmp(d->component, "precision") && !strcmp(d->site, "fsdp.reduce_grad"),
                  "seed %d: %s at %s: %s", _i, d->component, d->site ? d->site : "none", d->summary);
    ck_assert_int_eq(d->ranks_count, run.parallel->ranks);
    ck_assert_str_eq(d->candidates[0].fault, "dp-reduce-bf16");
    arena_free(result.arena);
    small_run_free(&run);
}
END_TEST

int main(int argc, char **argv)
{
    int seeds = argc > 2 && !strcmp(argv[2], "long") ? 200 : 20;
    Suite *suite = suite_create("reduce_bf16");
    TCase *tcase = tcase_create("seeds");
    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, healthy_is_silent, 1, seeds + 1);
    tcase_add_loop_test(tcase, fault_is_named, 1, seeds + 1);
    suite_add_tcase(suite, tcase);
    return run_suite(suite, CK_NOFORK);
}
