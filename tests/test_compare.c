/* Comparison of two runs: what is put together from shards, what is seen of a difference, and when the other rung
 * of the precision ladder is needed. */
#include <math.h>

#include "tests/small_run.h"

static struct small_run run;

static struct comparison *compare(struct run_config config, bool other_rung)
{
    run = small_run_new(&config, NULL, other_rung);
    return comparison_new(run.parallel, run.standalone);
}

static void end(struct comparison *comparison)
{
    comparison_free(comparison);
    small_run_free(&run);
}

/* Every parameter, gradient, boundary and sequence has its counterpart, in uneven shards too (12 rows over 5 ranks
 * leave the last ones short or empty), and nothing is above its screening limit. */
START_TEST(everything_has_a_counterpart)
{
    struct run_config config = small_config();
    config.layout.dp_shard = 5;
    config.layout.microbatches = 3;
    struct comparison *c = compare(config, false);
    bool empty = false;
    for (int i = 0; i < run.parallel->rank[4].tensors.count; i++)
        empty = empty || run.parallel->rank[4].tensors.items[i].elements == 0;
    ck_assert(empty);
    for (int step = 0; step < c->steps; step++) {
        ck_assert(c->loss[step].known && c->norm[step].known);
        for (int p = 0; p < c->params; p++) {
            ck_assert_ptr_nonnull(comparison_gradient(c, step, p));
            ck_assert_ptr_nonnull(comparison_param(c, step, p));
        }
        for (int sequence = 0; sequence < c->sequences; sequence++) {
            for (int unit = 0; unit < c->units; unit++)
                ck_assert_ptr_nonnull(comparison_forward(c, step, unit, sequence));
            for (int unit = 1; unit < c->units; unit++)
                ck_assert_ptr_nonnull(comparison_backward(c, step, unit, sequence));
        }
    }
    ck_assert(!comparison_needs_other(c));
    ck_assert_ptr_null(comparison_forward(c, 0, c->units, 0));
    ck_assert_ptr_null(comparison_forward(c, 0, -1, 0));
    ck_assert_ptr_null(comparison_param(c, c->steps, 0));
    ck_assert_double_eq(comparison_param(c, -1, 0)->error, 0);
    end(c);
}
END_TEST

/* The forward pass of the first step is cut over data ranks and micro-batches only: the same bits. */
START_TEST(first_forward_is_bit_equal)
{
    struct comparison *c = compare(small_config(), false);
    for (int sequence = 0; sequence < c->sequences; sequence++) {
        for (int unit = 0; unit < c->units; unit++)
            ck_assert_double_eq(comparison_forward(c, 0, unit, sequence)->error, 0);
    }
    end(c);
}
END_TEST

static struct tensor_fact *shard_of(int rank, enum tensor_kind kind, int step, int param)
{
    for (int i = 0; i < run.parallel->rank[rank].tensors.count; i++) {
        struct tensor_fact *fact = &run.parallel->rank[rank].tensors.items[i];
        if (fact->kind == kind && fact->step == step && fact->param == param) return fact;
    }
    return NULL;
}

static void scale_gradients(float factor)
{
    for (int r = 0; r < run.parallel->ranks; r++) {
        for (int i = 0; i < run.parallel->rank[r].tensors.count; i++) {
            struct tensor_fact *fact = &run.parallel->rank[r].tensors.items[i];
            if (fact->kind != TENSOR_GRADIENT) continue;
            float *values = (float *)(uintptr_t)fact->data;
            int64_t count = fact->elements;
            for (int64_t k = 0; k < count; k++) values[k] *= factor;
        }
    }
}

/* A factor is told from noise: ratio 1/M, and nothing left after it. */
START_TEST(a_factor_is_seen_as_one)
{
    struct run_config config = small_config();
    run = small_run_new(&config, NULL, false);
    scale_gradients(0.2f);
    struct comparison *c = comparison_new(run.parallel, run.standalone);
    for (int p = 0; p < c->params; p++) {
        const struct difference *d = comparison_gradient(c, 0, p);
        ck_assert(d->wrong);
        const char *name = c->parallel->params.params[p].info.name;
        bool by_terms =
            strstr(name, ".wq.") || strstr(name, ".wk."); /* measured against the terms that cancel in them */
        ck_assert_double_le(d->error, 0.8 + 1e-5);
        if (!by_terms) ck_assert_double_eq_tol(d->error, 0.8, 1e-5);
        ck_assert_double_eq_tol(d->ratio, 0.2, 1e-5);
        ck_assert_double_lt(d->residual, 1e-5);
    }
    end(c);
}
END_TEST

/* The ranks whose rows differ are named, and no others. */
START_TEST(rows_name_their_rank)
{
    struct run_config config = small_config();
    run = small_run_new(&config, NULL, false);
    struct tensor_fact *fact = shard_of(2, TENSOR_GRADIENT, 0, 0);
    ((float *)(uintptr_t)fact->data)[1] += 1;
    struct comparison *c = comparison_new(run.parallel, run.standalone);
    const struct difference *d = comparison_gradient(c, 0, 0);
    ck_assert_int_eq(d->ranks_count, 1);
    ck_assert_int_eq(d->ranks[0], 2);
    ck_assert_int_eq(d->rank, 2);
    end(c);
}
END_TEST

/* A row that no shard has is not taken as anything. */
START_TEST(a_missing_row_is_wrong)
{
    struct run_config config = small_config();
    run = small_run_new(&config, NULL, false);
    shard_of(1, TENSOR_PARAM, 0, 0)->elements--;
    struct comparison *c = comparison_new(run.parallel, run.standalone);
    ck_assert(comparison_param(c, 0, 0)->wrong && isnan(comparison_param(c, 0, 0)->error));
    ck_assert(!comparison_unit_params_agree(c, 0, 0));
    ck_assert(comparison_unit_params_agree(c, 0, 1));
    end(c);
}
END_TEST

/* A key bias without RoPE: its gradient is zero in exact arithmetic, so AdamW makes its value noise over noise. That is
 * above the screening limit or allowed for, and never wrong once the other rung has been run. */
START_TEST(noise_over_noise_is_not_wrong)
{
    struct run_config config = small_config();
    config.model.bias = true;
    config.model.rope = false;
    struct comparison *c = compare(config, true);
    double largest = 0;
    for (int p = 0; p < c->params; p++) largest = fmax(largest, comparison_param(c, 1, p)->error);
    ck_assert_double_gt(largest, 0.01);
    comparison_add_other(c, run.parallel_other, run.standalone_other);
    for (int p = 0; p < c->params; p++)
        ck_assert(!comparison_param(c, 1, p)->wrong && !comparison_gradient(c, 1, p)->wrong);
    end(c);
}
END_TEST

/* What differs below the screening limit at fp32 is found by the other rung. */
START_TEST(the_other_rung_sees_more)
{
    struct run_config config = small_config();
    struct small_fault fault = {"layer.weight_gradient", "perturb", NULL, 1e-6, SMALL_EVERYWHERE};
    run = small_run_new(&config, &fault, true);
    struct comparison *c = comparison_new(run.parallel, run.standalone);
    ck_assert(!comparison_needs_other(c));
    comparison_add_other(c, run.parallel_other, run.standalone_other);
    int wrong = 0;
    for (int p = 0; p < c->params; p++) wrong += comparison_gradient(c, 0, p)->wrong;
    ck_assert_int_gt(wrong, c->params / 2);
    end(c);
}
END_TEST

/* Loss and norm of the comparison are those of the runs' own facts: mean over data ranks or sum. */
START_TEST(loss_is_what_backward_was_called_on)
{
    for (int op = 0; op < 2; op++) {
        struct run_config config = small_config();
        config.layout.reduce_op = op ? FSDP_REDUCE_SUM : FSDP_REDUCE_AVG;
        struct comparison *c = compare(config, false);
        double sum = 0, valid = 0;
        for (int i = 0; i < run.standalone->rank[0].losses.count; i++) {
            const struct loss_fact *fact = &run.standalone->rank[0].losses.items[i];
            if (fact->step != 0) continue;
            sum += fact->loss_sum;
            valid += (double)fact->valid;
        }
        ck_assert_double_eq_tol(c->step[0].loss_parallel, sum / valid, 1e-12);
        ck_assert_double_eq_tol(c->step[0].loss_standalone, sum / valid, 1e-12);
        ck_assert_double_eq_tol(c->step[0].loss_logged, sum / valid, 1e-12);
        end(c);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("compare");
    TCase *tcase = tcase_create("compare");
    tcase_add_test(tcase, everything_has_a_counterpart);
    tcase_add_test(tcase, first_forward_is_bit_equal);
    tcase_add_test(tcase, a_factor_is_seen_as_one);
    tcase_add_test(tcase, rows_name_their_rank);
    tcase_add_test(tcase, a_missing_row_is_wrong);
    tcase_add_test(tcase, noise_over_noise_is_not_wrong);
    tcase_add_test(tcase, the_other_rung_sees_more);
    tcase_add_test(tcase, loss_is_what_backward_was_called_on);
    tcase_set_timeout(tcase, 120);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
