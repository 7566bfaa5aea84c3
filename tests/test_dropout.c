/* test_dropout: the mask's values, its expectation, and what it is a function of. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "model/layers/dropout.h"
#include "model/precision.h"

enum { BATCH = 3, SEQ = 23, ROWS = BATCH * SEQ, DIM = 29, COUNT = ROWS * DIM };

struct fixture {
    struct model_config model;
    struct precision precision;
    struct layer_context context;
    int32_t positions[ROWS];
    struct arena *arena, *scratch;
};

static void fixture_open(struct fixture *f, double probability, enum format storage)
{
    struct error error = {.kind = ERROR_NONE};
    *f = (struct fixture){.model = {.dim = DIM, .seq = SEQ, .dropout = probability}, .precision = precision_of(storage)};
    f->arena = arena_new("dropout", true);
    f->scratch = arena_new("dropout scratch", true);
    for (int t = 0; t < ROWS; t++) f->positions[t] = t % SEQ;
    f->context = (struct layer_context){.model = &f->model, .layer = 3, .ops = ops_get(storage, NULL, "fixed", &error), .precision = &f->precision,
                                        .batch = BATCH, .seq = SEQ, .positions = f->positions, .scratch = f->scratch,
                                        .dropout = {.seed = 5, .step = 2, .first_sequence = 7}};
    ck_assert_ptr_nonnull(f->context.ops);
}

static void fixture_close(struct fixture *f)
{
    arena_free(f->arena);
    arena_free(f->scratch);
}

static struct tensor constant(struct fixture *f, double value)
{
    struct tensor t = layer_matrix_alloc(&f->context, DIM, f->arena);
    for (int64_t i = 0; i < tensor_count(t); i++) format_set(t.data, (size_t)i, t.storage, value);
    return t;
}

static double at(struct tensor t, int i)
{
    return format_get(t.data, (size_t)i, t.storage);
}

/* The mask of a layer of ones. */
static void draw(struct fixture *f, enum dropout_place place, double ret[COUNT])
{
    struct tensor y = constant(f, 1);
    dropout_forward(&f->context, place, y);
    for (int i = 0; i < COUNT; i++) ret[i] = at(y, i);
}

/* Elements are 0 or x / (1 - p), whatever x is, and the backward's are the same ones of dy. */
START_TEST(values_are_dropped_or_scaled)
{
    for (int storage = FORMAT_FP64; storage <= FORMAT_FP32; storage++) {
        struct fixture f;
        fixture_open(&f, 0.37, (enum format)storage);
        struct tensor y = constant(&f, 0), dy = constant(&f, 0);
        for (int i = 0; i < COUNT; i++) {
            format_set(y.data, (size_t)i, y.storage, i + 1);
            format_set(dy.data, (size_t)i, dy.storage, -2.0 * i - 3);
        }
        int drawn = dropout_forward(&f.context, DROPOUT_ATTENTION, y), kept = 0;
        struct tensor d = dropout_backward(&f.context, DROPOUT_ATTENTION, drawn, dy, f.arena);
        ck_assert_ptr_ne(d.data, dy.data);
        for (int i = 0; i < COUNT; i++) {
            double scale = 1 / (1 - 0.37), u = storage == FORMAT_FP64 ? 1e-15 : 1e-6;
            bool is_kept = at(y, i) != 0;
            kept += is_kept;
            ck_assert_msg(fabs(at(y, i) - (is_kept ? scale * (i + 1) : 0)) <= u * (i + 1), "element %d is %g", i, at(y, i));
            ck_assert_msg(fabs(at(d, i) - (is_kept ? scale * (-2.0 * i - 3) : 0)) <= u * (2 * i + 3), "gradient %d is %g", i, at(d, i));
            ck_assert(at(dy, i) == -2.0 * i - 3); /* the residual's gradient is not dropped */
        }
        ck_assert(kept > 0 && kept < COUNT);
        fixture_close(&f);
    }
}
END_TEST

/* Over masks of 40 steps the mean of what is kept is 1: within 5 standard errors, for each sequence and each third of the
 * channels too. */
START_TEST(expectation_is_kept)
{
    static const double probabilities[] = {0.03, 0.2, 0.5, 0.9};
    for (size_t k = 0; k < sizeof probabilities / sizeof probabilities[0]; k++) {
        struct fixture f;
        double p = probabilities[k], sum = 0, part[BATCH * 3] = {0}, mask[COUNT];
        int64_t counted[BATCH * 3] = {0};
        enum { STEPS = 40 };
        fixture_open(&f, p, FORMAT_FP64);
        for (f.context.dropout.step = 0; f.context.dropout.step < STEPS; f.context.dropout.step++) {
            draw(&f, DROPOUT_FEED_FORWARD, mask);
            for (int i = 0; i < COUNT; i++) {
                int of = i / (SEQ * DIM) * 3 + i % DIM % 3;
                sum += mask[i];
                part[of] += mask[i];
                counted[of]++;
            }
        }
        double deviation = sqrt(p / (1 - p)); /* of one element */
        ck_assert_msg(fabs(sum / (STEPS * (double)COUNT) - 1) <= 5 * deviation / sqrt(STEPS * (double)COUNT), "p %g: mean %g", p, sum / (STEPS * (double)COUNT));
        for (int of = 0; of < BATCH * 3; of++) {
            double mean = part[of] / (double)counted[of];
            ck_assert_msg(fabs(mean - 1) <= 5 * deviation / sqrt((double)counted[of]), "p %g, part %d: mean %g", p, of, mean);
        }
        fixture_close(&f);
    }
}
END_TEST

/* How many elements two masks agree in; p = 1/2: half of them where they are independent, within 5 standard deviations. */
static void expect_independent(const double *a, const double *b, int count, const char *what)
{
    int same = 0;
    for (int i = 0; i < count; i++) same += (a[i] != 0) == (b[i] != 0);
    ck_assert_msg(fabs(same - count / 2.0) <= 2.5 * sqrt(count), "%s: %d of %d agree", what, same, count);
}

START_TEST(masks_differ_by_all_they_are_named_by)
{
    static double mask[COUNT], other[COUNT];
    struct fixture f;
    fixture_open(&f, 0.5, FORMAT_FP32);
    struct layer_context context = f.context;
    draw(&f, DROPOUT_ATTENTION, mask);
    draw(&f, DROPOUT_ATTENTION, other);
    for (int i = 0; i < COUNT; i++) ck_assert(mask[i] == other[i]);
    draw(&f, DROPOUT_FEED_FORWARD, other);
    expect_independent(mask, other, COUNT, "places");
    f.context.layer++;
    draw(&f, DROPOUT_ATTENTION, other);
    expect_independent(mask, other, COUNT, "layers");
    f.context = context;
    f.context.dropout.step++;
    draw(&f, DROPOUT_ATTENTION, other);
    expect_independent(mask, other, COUNT, "steps");
    f.context = context;
    f.context.dropout.seed++;
    draw(&f, DROPOUT_ATTENTION, other);
    expect_independent(mask, other, COUNT, "seeds");
    f.context = context;
    f.context.dropout.advanced = 1;
    draw(&f, DROPOUT_ATTENTION, other);
    expect_independent(mask, other, COUNT, "a stream that goes on");
    expect_independent(mask, mask + SEQ * DIM, SEQ * DIM, "sequences");
    expect_independent(mask, mask + DIM, COUNT - DIM, "positions");
    expect_independent(mask, mask + 1, COUNT - 1, "channels");
    fixture_close(&f);
}
END_TEST

/* The same sequence's mask in whatever batch, and the same position's in whatever part of a sequence. */
START_TEST(a_mask_is_its_sequences_and_positions)
{
    static double whole[COUNT], part[COUNT];
    struct fixture f;
    fixture_open(&f, 0.4, FORMAT_FP32);
    draw(&f, DROPOUT_ATTENTION, whole);
    f.context.dropout.first_sequence += 2;
    draw(&f, DROPOUT_ATTENTION, part);
    for (int i = 0; i < SEQ * DIM; i++) ck_assert(part[i] == whole[2 * SEQ * DIM + i]);
    f.context.dropout.first_sequence -= 2;
    for (int t = 0; t < ROWS; t++) f.positions[t] = SEQ - 1 - t % SEQ;
    draw(&f, DROPOUT_ATTENTION, part);
    for (int t = 0; t < ROWS; t++) {
        int from = t / SEQ * SEQ + f.positions[t];
        for (int c = 0; c < DIM; c++) ck_assert(part[t * DIM + c] == whole[from * DIM + c]);
    }
    fixture_close(&f);
}
END_TEST

/* Without dropout nothing is touched, not even copied. */
START_TEST(none_is_the_identity)
{
    struct fixture f;
    fixture_open(&f, 0, FORMAT_FP32);
    f.precision.compute = FORMAT_BF16;
    struct tensor y = constant(&f, 1 + 0x1p-20);
    ck_assert_int_eq(dropout_forward(&f.context, DROPOUT_ATTENTION, y), 0);
    ck_assert(at(y, 0) == 1 + 0x1p-20);
    ck_assert_ptr_eq(dropout_backward(&f.context, DROPOUT_ATTENTION, 0, y, f.arena).data, y.data);
    f.model.dropout = 0.5;
    dropout_forward(&f.context, DROPOUT_ATTENTION, y);
    for (int i = 0; i < COUNT; i++) ck_assert(at(y, i) == 0 || at(y, i) == 2);
    fixture_close(&f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("dropout");
    TCase *tcase = tcase_create("dropout");
    tcase_add_test(tcase, values_are_dropped_or_scaled);
    tcase_add_test(tcase, expectation_is_kept);
    tcase_add_test(tcase, masks_differ_by_all_they_are_named_by);
    tcase_add_test(tcase, a_mask_is_its_sequences_and_positions);
    tcase_add_test(tcase, none_is_the_identity);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
