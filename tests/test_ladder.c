/* The precision ladder and the reading of numbers as formulas. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scenarios/ladder.h"
#include "scenarios/ratio.h"

/* Rounding shrinks by the ratio of the epsilons and is never a bug, however large it is at fp32. */
START_TEST(rounding_is_no_bug)
{
    for (double error_32 = 1e-8; error_32 < 1; error_32 *= 7) {
        ck_assert(!ladder_is_bug(error_32, ldexp(error_32, -29), 1000));
    }
    ck_assert(!ladder_is_bug(0, 0, 1));
}
END_TEST

/* What does not shrink is one, however small it is. */
START_TEST(what_stays_is_a_bug)
{
    for (double error = 0.5; error > 1e-11; error /= 7) ck_assert(ladder_is_bug(error, error, 330));
    ck_assert(ladder_is_bug(NAN, 0, 330));
    ck_assert(ladder_is_bug(0, INFINITY, 330));
}
END_TEST

/* The floor is there: fp64's own rounding is not a bug where fp32 happens to agree to the bit. */
START_TEST(fp64_has_its_own_rounding)
{
    ck_assert(!ladder_is_bug(0, ldexp(1000, -53), 1));
    ck_assert(ladder_is_bug(0, ldexp(1025, -53), 1));
    ck_assert(!ladder_is_bug(0, ldexp(1025, -53), 4));
}
END_TEST

/* The screening limit follows the working format, and the other rung is the other one. */
START_TEST(screening_follows_the_format)
{
    ck_assert_double_eq(ladder_screen(FORMAT_FP32, 9) / ladder_screen(FORMAT_FP64, 9), ldexp(1, 29));
    ck_assert_double_eq(ladder_screen(FORMAT_FP32, 900), 10 * ladder_screen(FORMAT_FP32, 9));
    struct precision fp32 = precision_of(FORMAT_FP32), fp64 = precision_of(FORMAT_FP64), mixed = fp32;
    mixed.compute = FORMAT_BF16;
    struct precision above[3] = {ladder_other(&fp32), ladder_other(&fp64), ladder_other(&mixed)};
    ck_assert(precision_is(&above[0], FORMAT_FP64) && precision_is(&above[1], FORMAT_FP32) && precision_is(&above[2], FORMAT_FP64));
}
END_TEST

/* ---- formulas ---- */

enum { SAMPLES = 6 };

/* Micro-batches with different n on data ranks with different n_rank. */
static void fill_numbers(struct ratio_sample samples[SAMPLES])
{
    static const double n[SAMPLES] = {17, 23, 29, 14, 31, 26};
    for (int i = 0; i < SAMPLES; i++) {
        samples[i].numbers = (struct factor_numbers){.M = 5,
                                                     .D = 3,
                                                     .P = 4,
                                                     .C = 1,
                                                     .T = 1,
                                                     .E = 1,
                                                     .A = 3,
                                                     .N = 401,
                                                     .N_all = 450,
                                                     .N_unshifted = 422,
                                                     .n = n[i],
                                                     .n_rank = i < 3 ? 123 : 139};
    }
}

static struct ratio_form classify(const char *formula, char prefer)
{
    struct ratio_sample samples[SAMPLES];
    struct error error = {0};
    fill_numbers(samples);
    for (int i = 0; i < SAMPLES; i++) ck_assert(factor_parse(formula, &samples[i].numbers, &samples[i].value, &error));
    return ratio_classify(samples, SAMPLES, prefer, 5, 1e-12);
}

/* A formula that made the numbers is read back from them. */
START_TEST(formulas_are_read_back)
{
    static const char *const formulas[] = {
        "1/M",           "M",   "D",       "1/D",       "1/P",          "M*D", "1/(M*D)", "N/N_all",
        "N/N_unshifted", "N/n", "N/(n*D)", "N/(n*M*D)", "N/(n_rank*D)", "N",   "1/N",     "M/D"};
    for (size_t i = 0; i < sizeof formulas / sizeof formulas[0]; i++) {
        struct ratio_form form = classify(formulas[i], 'M');
        ck_assert_msg(form.found && !strcmp(form.text, formulas[i]), "%s was read as '%s'", formulas[i], form.text);
    }
}
END_TEST

/* Beside a mean of means: what is left when its own pattern is taken out. */
START_TEST(a_mean_of_means_is_taken_out)
{
    ck_assert_str_eq(classify("N/(n*D)", 'M').beside_mean, "M");
    ck_assert_double_eq(classify("N/(n*D)", 'M').value, 5);
    ck_assert_str_eq(classify("N/n", 'M').beside_mean, "M*D");
    ck_assert_str_eq(classify("N/(n*M*D)", 'M').beside_mean, "N/(n*M*D)");
    ck_assert_str_eq(classify("N/(n_rank*D)", 'M').beside_mean, "N/(n_rank*D)");
    ck_assert_str_eq(classify("N/n_rank", 'M').beside_mean, "D");
    ck_assert_str_eq(classify("1/M", 'M').beside_mean, "1/M");
}
END_TEST

/* Zero, a turned sign, and numbers that are no formula. */
START_TEST(what_is_no_monomial)
{
    struct ratio_sample samples[SAMPLES];
    fill_numbers(samples);
    for (int i = 0; i < SAMPLES; i++) samples[i].value = 0;
    ck_assert_str_eq(ratio_classify(samples, SAMPLES, 'M', 5, 1e-12).text, "0");
    for (int i = 0; i < SAMPLES; i++) samples[i].value = -1;
    ck_assert_str_eq(ratio_classify(samples, SAMPLES, 'M', 5, 1e-12).text, "-1");
    for (int i = 0; i < SAMPLES; i++) samples[i].value = -0.2;
    ck_assert_str_eq(ratio_classify(samples, SAMPLES, 'M', 5, 1e-12).text, "-1/M");
    for (int i = 0; i < SAMPLES; i++) samples[i].value = 0.7391;
    ck_assert(!ratio_classify(samples, SAMPLES, 'M', 2, 1e-12).found);
    for (int i = 0; i < SAMPLES; i++) samples[i].value = NAN;
    ck_assert(!ratio_classify(samples, SAMPLES, 'M', 5, 1e-12).found);
    ck_assert(!ratio_classify(samples, 0, 'M', 5, 1e-12).found);
}
END_TEST

/* Where two letters have one value, the place's own letter is taken; a letter that is 1 says nothing. */
START_TEST(equal_letters)
{
    struct ratio_sample sample;
    struct ratio_sample samples[SAMPLES];
    fill_numbers(samples);
    sample = samples[0];
    sample.numbers.M = sample.numbers.D = sample.numbers.P = 4;
    sample.value = 0.25;
    ck_assert_str_eq(ratio_classify(&sample, 1, 'M', 2, 1e-12).text, "1/M");
    ck_assert_str_eq(ratio_classify(&sample, 1, 'D', 2, 1e-12).text, "1/D");
    ck_assert_str_eq(ratio_classify(&sample, 1, 'P', 2, 1e-12).text, "1/P");
    sample.numbers.D = 1;
    sample.value = 4;
    ck_assert_str_eq(ratio_classify(&sample, 1, 'D', 2, 1e-12).text, "M");
}
END_TEST

/* The parts of D are named where the data ranks are split both ways, and D where it is D. */
START_TEST(parts_of_the_data_ranks)
{
    struct ratio_sample sample = {.numbers = {.M = 7, .D = 15, .P = 2, .N = 401, .D_shard = 5, .D_replicate = 3}};
    const struct { double value; const char *text; } cases[] = {
        {1.0 / 5, "1/D_shard"}, {3, "D_replicate"}, {15, "D"}, {1.0 / 35, "1/(M*D_shard)"}, {7.0 / 3, "M/D_replicate"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sample.value = cases[i].value;
        ck_assert_str_eq(ratio_classify(&sample, 1, 'M', 2, 1e-12).text, cases[i].text);
    }
    sample.numbers.D = sample.numbers.D_shard = 5;
    sample.numbers.D_replicate = 1;
    sample.value = 0.2;
    ck_assert_str_eq(ratio_classify(&sample, 1, 'M', 2, 1e-12).text, "1/D");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ladder");
    TCase *tcase = tcase_create("ladder and formulas");
    tcase_add_test(tcase, rounding_is_no_bug);
    tcase_add_test(tcase, parts_of_the_data_ranks);
    tcase_add_test(tcase, what_stays_is_a_bug);
    tcase_add_test(tcase, fp64_has_its_own_rounding);
    tcase_add_test(tcase, screening_follows_the_format);
    tcase_add_test(tcase, formulas_are_read_back);
    tcase_add_test(tcase, a_mean_of_means_is_taken_out);
    tcase_add_test(tcase, what_is_no_monomial);
    tcase_add_test(tcase, equal_letters);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
