/* test_curve: which curves can be read, and that everything else is refused with its line and the way out; what a
 * diagnosis makes of curves whose cause is known, of their noise and of their size. */
#include <math.h>

#include "scenarios/curve_diagnosis.h"
#include "sim/arena.h"
#include "support/scenario_files.h"
#include "tests/support/run_suite.h"

#define RUN_HEADER "step,loss_parallel,loss_logged,loss_standalone,grad_norm_parallel,grad_norm_standalone\n"

static bool read_text(const char *text, enum curve_side side, struct curve *curve, struct error *error)
{
    *error = (struct error){0};
    files_write("c.csv", text, strlen(text));
    return curve_read(files_path("c.csv"), side, curve, error);
}

/* ---- reading ---- */

struct refused { const char *text; int line; const char *words, *hint; };
static const struct refused refusals[] = {
    {"", 0, "is empty", "step,loss"},
    {"\n\n", 0, "no header", "one line a step"},
    {"step,loss\n", 1, "a header and no step", "one line a step"},
    {"step,los\n0,5.5\n", 1, "no column loss; the header is \"step,los\"", "names the columns"},
    {"loss\n5.5\n", 1, "no column step", "names the columns"},
    {"step;loss\n0;5.5\n", 1, "no column step", "separated by commas"},
    {"0,5.5\n1,5.4\n", 1, "no column step", "names the columns"},
    {"step,loss,loss\n0,5.5,5.5\n", 1, "twice", "own name"},
    {"step,loss\n0,5.5\n1,abc\n", 3, "\"abc\" is not a number", "decimal point"},
    {"step,loss\n0,5.5\n1,\n", 3, "\"\" is not a number", "needs a number"},
    {"step,loss\n0,5.5\n1,5.4x\n", 3, "\"5.4x\"", "decimal point"},
    {"step,loss\n0,5,5\n", 2, "3 columns; the header has 2", "decimal comma"},
    {"step,loss,grad_norm\n0,5.5,1\n1,5.4\n", 3, "2 columns; the header has 3", "as many columns"},
    {"step,loss\n0,5.5\n0,5.4\n", 3, "step 0 comes after step 0", "one line a step"},
    {"step,loss\n3,5.5\n1,5.4\n", 3, "step 1 comes after step 3", "one line a step"},
    {"step,loss\n-1,5.5\n", 2, "step \"-1\"", "0, 1, 2"},
    {"step,loss\n0.5,5.5\n", 2, "step \"0.5\"", "0, 1, 2"},
    {"step,loss\n0,5.5\n1,nan\n", 3, "the loss of step 1 is not finite", "end both curves with the line before"},
    {"step,loss\n0,inf\n1,5.4\n", 2, "the loss of step 0 is not finite", "hpsim faults"},
    {"step,loss,grad_norm\n0,5.5,1\n1,5.4,nan\n", 3, "the gradient norm of step 1", "end both curves"},
    {"step,loss\n0,5.5\n\n1,5.4\n", 4, "the line before is empty", "at the end only"},
    {"step,loss\r0,5.5\r1,5.4\r", 1, "carriage return stands inside", "tr"},
    {RUN_HEADER "0,1,2,3,4\n", 2, "5 columns; the header has 6", "as many"},
    {"step,loss_parallel\n0,1\n", 1, "no column loss_logged", "names the columns"},
};

START_TEST(refuses)
{
    const struct refused *r = &refusals[_i];
    struct curve curve;
    struct error error;
    ck_assert_msg(!read_text(r->text, CURVE_PARALLEL, &curve, &error), "%s", r->text);
    ck_assert_msg(strstr(error.message, r->words) != NULL, "%s: %s", r->text, error.message);
    ck_assert_msg(strstr(error.hint, r->hint) != NULL, "%s: %s", r->text, error.hint);
    ck_assert_int_eq(error.line, r->line);
    ck_assert_int_eq(error.kind, ERROR_INPUT);
    ck_assert(strstr(error.file, "c.csv") != NULL);
    curve_done(&curve);
}
END_TEST

/* The same numbers, however they are written. */
START_TEST(reads)
{
    static const char *const texts[] = {
        "step,loss,grad_norm\n0,5.5,0.25\n1,5.25,0.125\n2,5.125,1e-1\n",
        "step,loss,grad_norm\r\n0,5.5,0.25\r\n1,5.25,0.125\r\n2,5.125,1e-1\r\n",
        "\xef\xbb\xbfgrad_norm, loss ,lr,step\n0.25,5.5,x,0\n.125,5.25,,1\n0.1,5.125,z,2\n\n \n",
        "\"step\",\"loss\",\"grad_norm\"\n\"0\",\"5.5\",0.25\n1,5.25,0.125\n2,5.125,0.1",
    };
    static const double loss[] = {5.5, 5.25, 5.125}, norm[] = {0.25, 0.125, 0.1};
    for (size_t t = 0; t < sizeof texts / sizeof texts[0]; t++) {
        struct curve curve;
        struct error error;
        if (!read_text(texts[t], CURVE_PARALLEL, &curve, &error)) files_report(texts[t], &error);
        ck_assert_int_eq(curve.count, 3);
        ck_assert_ptr_null(curve.value[CURVE_BACKWARD]);
        for (int i = 0; i < 3; i++) {
            ck_assert_int_eq(curve.step[i], i);
            ck_assert_double_eq(curve.value[CURVE_PRINTED][i], loss[i]);
            ck_assert_double_eq(curve.value[CURVE_NORM][i], norm[i]);
        }
        curve_done(&curve);
    }
}
END_TEST

START_TEST(reads_run)
{
    struct curve curve;
    struct error error;
    static const double due[2][CURVE_CHANNELS] = {{3, 2, 5}, {4, 4, 6}};
    for (int side = 0; side < 2; side++) {
        if (!read_text(RUN_HEADER "0,2,3,4,5,6\n", (enum curve_side)side, &curve, &error)) files_report("run", &error);
        for (int k = 0; k < CURVE_CHANNELS; k++) ck_assert_double_eq(curve.value[k][0], due[side][k]);
        curve_done(&curve);
    }
    if (!read_text(RUN_HEADER "0,2,3,4,nan,nan\n1,2,3,4,nan,nan\n", CURVE_PARALLEL, &curve, &error)) files_report("no norm", &error);
    ck_assert_ptr_null(curve.value[CURVE_NORM]);
    curve_done(&curve);
}
END_TEST

START_TEST(digits)
{
    struct curve curve;
    struct error error;
    if (!read_text("step,loss,grad_norm\n0,5.5000,12.3456\n1,10.2500,9.12345\n", CURVE_PARALLEL, &curve, &error)) files_report("digits", &error);
    for (int i = 0; i < 2; i++) ck_assert_double_eq_tol(curve_resolution(&curve, CURVE_PRINTED, i), 0.5e-4, 1e-12);
    ck_assert_double_eq_tol(curve_resolution(&curve, CURVE_NORM, 0), 0.5e-4, 1e-12); /* six digits */
    ck_assert_double_eq_tol(curve_resolution(&curve, CURVE_NORM, 1), 0.5e-5, 1e-12);
    curve_done(&curve);
}
END_TEST

/* ---- pairs ---- */

static void read_named(const char *name, const char *text, struct curve *curve)
{
    struct error error = {0};
    files_write(name, text, strlen(text));
    if (!curve_read(files_path(name), CURVE_PARALLEL, curve, &error)) files_report(name, &error);
}

START_TEST(pairs)
{
    static const struct { const char *a, *b; int line; const char *file, *words; } cases[] = {
        {"step,loss\n0,1\n1,2\n2,3\n", "step,loss\n0,1\n1,2\n", 4, "a.csv", "3 steps, and"},
        {"step,loss\n0,1\n1,2\n", "step,loss\n0,1\n1,2\n5,3\n", 4, "b.csv", "3 steps, and"},
        {"step,loss\n0,1\n2,2\n", "step,loss\n0,1\n1,2\n", 3, "a.csv", "step 2 here is step 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct curve a, b;
        struct error error = {0};
        read_named("a.csv", cases[i].a, &a);
        read_named("b.csv", cases[i].b, &b);
        ck_assert(!curves_match(&a, &b, &error));
        ck_assert_int_eq(error.line, cases[i].line);
        ck_assert(strstr(error.file, cases[i].file) != NULL && strstr(error.message, cases[i].words) != NULL && error.hint[0]);
        curve_done(&a);
        curve_done(&b);
    }
}
END_TEST

/* ---- diagnosis ---- */

static const char small[] =
    "{\"model\": {\"layers\": 3, \"dim\": 12, \"heads\": 3, \"kv_heads\": 3, \"head_dim\": 4, \"ffn\": 20, \"vocab\": 256, \"seq\": 18},"
    "\"train\": {\"steps\": 2, \"global_batch\": 30, \"grad_clip\": 1.0},"
    "\"parallel\": {\"pp\": 3, \"dp_shard\": 2, \"pipeline\": {\"schedule\": \"1F1B\", \"microbatches\": 5}}}";

struct job { struct scenario *scenario; struct scenario_options wanted; struct curve_options options; int calls; };

static void count_call(void *context, int done, int total, const char *what)
{
    ck_assert(done >= 0 && done <= total && what[0]);
    ((struct job *)context)->calls++;
}

static struct job job_new(void)
{
    struct job job = {.wanted = {.no_faults = true}};
    job.scenario = files_accept(small, &job.wanted);
    job.options = (struct curve_options){.train = {.threads = 1}, .noise = NAN};
    return job;
}

static struct curve_diagnosis *diagnose_texts(struct job *job, const char *a, const char *b)
{
    struct curve parallel, standalone;
    struct error error = {0};
    read_named("a.csv", a, &parallel);
    read_named("b.csv", b, &standalone);
    job->options.wanted = &job->wanted;
    job->options.progress = count_call;
    job->options.progress_context = job;
    struct curve_diagnosis *d = curve_diagnose(job->scenario, &parallel, &standalone, &job->options, &error);
    if (!d) files_report("diagnosis", &error);
    curve_done(&parallel);
    curve_done(&standalone);
    return d;
}

static const struct curve_candidate *candidate(const struct curve_diagnosis *d, const char *fault)
{
    for (int i = 0; i < d->candidates_count; i++) {
        if (!strcmp(d->candidates[i].fault->name, fault)) return &d->candidates[i];
    }
    return NULL;
}

/* Another model, whose losses have another size; the ratios alone are given. M = 5, D = 2, P = 3. */
START_TEST(ratios)
{
    static const struct { const char *fault; double loss, norm; const char *loss_ratio, *norm_ratio; } cases[] = {
        {"loss-divided-twice", 1, 1.0 / 5, "1", "1/M"},
        {"loss-not-divided", 1, 5, "1", "M"},
        {"fsdp-divides-twice", 1, 1.0 / 2, "1", "1/D"},
        {"loss-report-world-mean", 1.0 / 3, 1, "1/P", "1"},
        {"dp-scale-wrong-axis", 1, 1.0 / 3, "1", "1/P"},
    };
    struct job job = job_new();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char a[256];
        snprintf(a, sizeof a, "step,loss,grad_norm\n0,%.6f,%.6f\n1,%.6f,%.6f\n", 9.1 * cases[i].loss, 3.3 * cases[i].norm, 8.7 * cases[i].loss, 3.1 * cases[i].norm);
        struct curve_diagnosis *d = diagnose_texts(&job, a, "step,loss,grad_norm\n0,9.100000,3.300000\n1,8.700000,3.100000\n");
        ck_assert_int_eq(d->verdict, CURVE_EXPLAINED);
        ck_assert(!d->same_model);
        ck_assert_str_eq(d->ratio[CURVE_PRINTED], cases[i].loss_ratio);
        ck_assert_str_eq(d->ratio[CURVE_NORM], cases[i].norm_ratio);
        const struct curve_candidate *c = candidate(d, cases[i].fault);
        ck_assert_ptr_nonnull(c);
        ck_assert_msg(c->class == 1, "%s in class %d behind %s", cases[i].fault, c->class, d->candidates[0].fault->name);
        for (int k = 1; k < d->candidates_count; k++) {
            ck_assert(d->candidates[k].class >= d->candidates[k - 1].class);
            ck_assert(d->candidates[k].score >= 0 && d->candidates[k].score <= 1);
        }
        curve_diagnosis_free(d);
    }
    ck_assert_int_ge(job.calls, fault_count());
    scenario_free(job.scenario);
}
END_TEST

/* Without a gradient norm 1/M of the gradient stays in a class with its like, and the norm is what would part them. */
START_TEST(separates)
{
    struct job job = job_new();
    struct curve_diagnosis *d = diagnose_texts(&job, "step,loss\n0,9.100000\n1,8.700000\n", "step,loss\n0,9.100000\n1,8.700000\n");
    ck_assert_int_eq(d->verdict, CURVE_NOT_VISIBLE);
    const struct curve_candidate *c = candidate(d, "loss-divided-twice");
    ck_assert_ptr_nonnull(c);
    bool names_norm = false;
    for (int i = 0; i < c->separate_count; i++) names_norm = names_norm || strstr(c->separate_by[i], "gradient norm at step 0") || strstr(c->separate_by[i], "loss that backward");
    ck_assert(names_norm);
    ck_assert_ptr_null(candidate(d, "loss-report-world-mean")); /* that would be seen */
    curve_diagnosis_free(d);
    scenario_free(job.scenario);
}
END_TEST

/* The cut: more steps than are simulated; and noise without drift is no cause, by the scatter or by --noise. */
START_TEST(noise)
{
    struct job job = job_new();
    char a[4096] = "step,loss\n", b[4096] = "step,loss\n";
    enum { STEPS = 37 };
    for (int i = 0; i < STEPS; i++) {
        double loss = 9.1 - 0.01 * i;
        snprintf(a + strlen(a), sizeof a - strlen(a), "%d,%.8f\n", i, loss * (1 + 1e-3 * sin(2.3 * i * i + 1)));
        snprintf(b + strlen(b), sizeof b - strlen(b), "%d,%.8f\n", i, loss);
    }
    struct curve_diagnosis *d = diagnose_texts(&job, a, b);
    ck_assert_int_eq(d->points, CURVE_STEPS_MAX);
    ck_assert_int_eq(d->verdict, CURVE_NOT_VISIBLE);
    ck_assert(strstr(d->noise_from, "scatter") != NULL);
    ck_assert(d->noise > 1e-3 && d->noise < 1e-2);
    curve_diagnosis_free(d);
    job.options.noise = 1e-5; /* then all of it is signal */
    d = diagnose_texts(&job, a, b);
    ck_assert_int_ne(d->verdict, CURVE_NOT_VISIBLE);
    ck_assert_str_eq(d->noise_from, "--noise");
    curve_diagnosis_free(d);
    scenario_free(job.scenario);
}
END_TEST

/* Not what the catalogue has: a parallel loss three times as large. */
START_TEST(unexplained)
{
    struct job job = job_new();
    struct curve_diagnosis *d = diagnose_texts(&job, "step,loss,grad_norm\n0,27.3000,77.10\n1,26.1000,1.10\n", "step,loss,grad_norm\n0,9.1000,3.30\n1,8.7000,3.10\n");
    ck_assert_int_eq(d->verdict, CURVE_UNEXPLAINED);
    curve_diagnosis_free(d);
    struct curve parallel;
    struct error error = {0};
    read_named("a.csv", "step,loss\n100,9\n101,8\n", &parallel);
    ck_assert_ptr_null(curve_diagnose(job.scenario, &parallel, &parallel, &job.options, &error));
    ck_assert(strstr(error.message, "first step is 100") != NULL && error.line == 2);
    curve_done(&parallel);
    scenario_free(job.scenario);
}
END_TEST

int main(int argc, char **argv)
{
    if (argc > 1) files_source = argv[1];
    Suite *suite = suite_create("curve");
    TCase *tcase = tcase_create("read");
    tcase_add_checked_fixture(tcase, files_setup, files_teardown);
    tcase_set_timeout(tcase, 600);
    tcase_add_loop_test(tcase, refuses, 0, (int)(sizeof refusals / sizeof refusals[0]));
    tcase_add_test(tcase, reads);
    tcase_add_test(tcase, reads_run);
    tcase_add_test(tcase, digits);
    tcase_add_test(tcase, pairs);
    tcase_add_test(tcase, ratios);
    tcase_add_test(tcase, separates);
    tcase_add_test(tcase, noise);
    tcase_add_test(tcase, unexplained);
    suite_add_tcase(suite, tcase);
    return run_suite(suite, CK_NOFORK);
}
