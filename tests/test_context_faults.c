/* The catalogue's faults of context parallelism, each as its shipped scenario has it and over 2 to 8 context-parallel ranks: found by
 * the checks that the scenario names, named by the component of the catalogue, and among the first three candidates. Where a fault cannot
 * show, it is hit and changes no bit; the table says where and why. Without its fault every one of these runs is consistent. What is
 * wrong with the split attention of a training is not taken for the view behind it, nor the other way round.
 * usage: test_context_faults SOURCE [long]; a number of ranks a fault, long: all of them. */
#include <stdio.h>
#include <string.h>

#include "scenarios/fault.h"
#include "scenarios/result.h"
#include "tests/support/run_suite.h"
#include "tests/support/scenario_files.h"

static const int ranks[] = {2, 3, 4, 5, 6, 8};
enum { RANKS = sizeof ranks / sizeof *ranks };
static bool every;

/* Where a fault changes nothing, and why. */
static const struct { const char *fault; int first, step /* ranks first, first + step ...; 0: first alone */; } hidden[] = {
    {"cp-resend-own", 2, 0},       /* the neighbour's block is all there is */
    {"cp-dkv-direction", 2, 0},    /* both ways lead to the one neighbour */
    {"cp-dkv-origin", 2, 0},
    {"cp-parity-order", 2, 2},     /* an even ring pairs off */
};

static bool is_hidden(const char *fault, int size)
{
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++) {
        if (strcmp(hidden[i].fault, fault)) continue;
        if (size == hidden[i].first || (hidden[i].step && size > hidden[i].first && (size - hidden[i].first) % hidden[i].step == 0)) return true;
    }
    return false;
}

/* The faults of this kind that have an attention of their own. */
static const struct fault *fault_of(int i)
{
    for (int f = 0; f < fault_count(); f++) {
        const struct fault *fault = fault_at(f);
        if (!strncmp(fault->name, "cp-", 3) && i-- == 0) return fault;
    }
    return NULL;
}

static int faults(void)
{
    int count = 0;
    while (fault_of(count)) count++;
    return count;
}

static struct scenario *load_with(const char *path, const struct override *overrides, int count, bool faulty)
{
    struct scenario_options options = {.overrides = overrides, .overrides_count = count, .no_faults = !faulty};
    struct error error = {0};
    struct scenario *s = scenario_load(path, &options, &error);
    if (!s) files_report(path, &error);
    return s;
}

/* The scenario on so many ranks: shards of one length stay so, heads split as they did. A training stays as it is: NULL. */
static struct scenario *load(const struct fault *fault, int size, bool faulty)
{
    char path[1024], text[6][32];
    snprintf(path, sizeof path, "%s", files_shipped(fault->scenario));
    struct scenario *as_is = load_with(path, NULL, 0, faulty);
    const struct run_config *config = &as_is->config;
    if (config->workload != WORKLOAD_ATTENTION || size == layout_cp(&config->layout)) return as_is;
    struct override overrides[6] = {{"parallel.cp", text[0]}};
    int count = 1;
    snprintf(text[0], sizeof text[0], "%d", size);
    if (config->model.seq % layout_cp(&config->layout) == 0) {
        snprintf(text[count], sizeof text[count], "%d", 6 * size);
        overrides[count] = (struct override){"model.seq", text[count]}, count++;
    }
    if (!strcmp(config->layout.context.method, "ulysses")) {
        snprintf(text[count], sizeof text[count], "%d", 2 * size);
        overrides[count] = (struct override){"model.heads", text[count]}, count++;
        snprintf(text[count], sizeof text[count], "%d", size);
        overrides[count] = (struct override){"model.kv_heads", text[count]}, count++;
    }
    if (config->layout.dp_replicate > 1) { /* another group of as many ranks */
        snprintf(text[count], sizeof text[count], "%d", size);
        overrides[count] = (struct override){"parallel.dp_replicate", text[count]}, count++;
    }
    scenario_free(as_is);
    return load_with(path, overrides, count, faulty);
}

static struct result *run_as(const struct scenario *s, bool mute)
{
    struct experiment_options options = {.train = {.threads = 1, .mute = mute}, .checks = "default"};
    struct error error = {0};
    struct result *result = experiment_run(s, &options, &error);
    ck_assert_msg(result != NULL, "%s", error.message);
    return result;
}

static struct result *run(const struct scenario *s)
{
    return run_as(s, false);
}

static bool fails(const struct result *result, const char *id)
{
    for (int i = 0; i < result->checks_count; i++) {
        if (!strcmp(result->checks[i].id, id)) return result->checks[i].status == CHECK_FAIL;
    }
    return false;
}

static int place_of(const struct result *result, const char *fault)
{
    for (int i = 0; i < result->diagnosis.candidates_count; i++) {
        if (!strcmp(result->diagnosis.candidates[i].fault, fault)) return i + 1;
    }
    return 0;
}

static void expect_named(const struct fault *fault, const struct scenario *s, const struct result *result, int size)
{
    const struct expectation *expect = &s->expect;
    ck_assert_msg(result->verdict != VERDICT_CONSISTENT, "%s is not found on %d ranks", fault->name, size);
    ck_assert_msg(result->has_diagnosis && !strcmp(result->diagnosis.component, fault->component), "%s on %d ranks is taken for %s: %s", fault->name, size,
                  result->has_diagnosis ? result->diagnosis.component : "nothing", result->has_diagnosis ? result->diagnosis.summary : "");
    for (int i = 0; i < expect->checks_count; i++) ck_assert_msg(fails(result, expect->checks[i]), "%s on %d ranks: %s is silent", fault->name, size, expect->checks[i]);
    int place = place_of(result, fault->name);
    ck_assert_msg(place >= 1 && place <= 3, "%s on %d ranks is candidate %d, %s the first: %s", fault->name, size, place, result->diagnosis.candidates[0].fault, result->diagnosis.summary);
}

static void look(const struct fault *fault, int size)
{
    struct scenario *s = load(fault, size, true);
    struct result *result = run(s);
    if (is_hidden(fault->name, size)) {
        ck_assert_msg(result->verdict == VERDICT_CONSISTENT && result->faults[0].hits > 0 && result->faults[0].outcome == FAULT_MASKED, "%s shows on %d ranks, which the table denies", fault->name, size);
    } else {
        ck_assert_msg(result->faults[0].hits > 0 && result->faults[0].outcome == FAULT_ACTIVE, "%s on %d ranks: %s", fault->name, size, result->faults[0].why);
        expect_named(fault, s, result, size);
    }
    result_free(result);
    scenario_free(s);
}

/* Two of the numbers of ranks in turn, and that of the scenario. */
START_TEST(found_and_named)
{
    const struct fault *fault = fault_of(_i);
    struct scenario *s = load(fault, 3, true);
    bool attention = s->config.workload == WORKLOAD_ATTENTION;
    scenario_free(s);
    for (int r = 0; r < RANKS && (attention || r == 0); r++) {
        if (every || !attention || r == _i % RANKS || r == (_i + 3) % RANKS) look(fault, ranks[r]);
    }
}
END_TEST

START_TEST(healthy_is_silent)
{
    for (int r = 0; r < RANKS; r++) {
        if (!every && r != (_i + 1) % RANKS) continue;
        struct scenario *s = load(fault_of(_i), ranks[r], false);
        struct result *result = run(s);
        for (int i = 0; i < result->findings_count; i++) ck_abort_msg("%s without it, on %d ranks: %s: %s", fault_of(_i)->name, ranks[r], result->findings[i].check, result->findings[i].text);
        ck_assert_int_eq(result->verdict, VERDICT_CONSISTENT);
        result_free(result);
        scenario_free(s);
    }
}
END_TEST

/* What numbers, ledgers and messages alone tell, without the log of decisions: that something is wrong, always, and the component but for these,
 * which are taken for the neighbour they leave the same numbers as. docs/ring_attention.md has
 * the list. */
static const struct { const char *fault, *taken_for; } by_log[] = {
    {"cp-head-axis", "cp.mask"}, {"cp-head-split", "collectives"}, {"cp-extra-pass", "cp.hop"},
};

START_TEST(named_without_the_log)
{
    const struct fault *fault = fault_of(_i);
    const char *due = fault->component;
    struct scenario *s = load_with(files_shipped(fault->scenario), NULL, 0, true);
    struct result *result = run_as(s, true);
    ck_assert_msg(result->verdict != VERDICT_CONSISTENT, "%s is not found", fault->name);
    for (size_t i = 0; i < sizeof by_log / sizeof *by_log; i++) {
        if (!strcmp(by_log[i].fault, fault->name)) due = by_log[i].taken_for;
    }
    ck_assert_msg(result->has_diagnosis && !strcmp(result->diagnosis.component, due), "%s is taken for %s, %s is due: %s", fault->name,
                  result->has_diagnosis ? result->diagnosis.component : "nothing", due, result->has_diagnosis ? result->diagnosis.summary : "");
    result_free(result);
    scenario_free(s);
}
END_TEST

/* On one rank of the second of two groups alone: found, and no rank of the first group is named for it. */
START_TEST(found_in_another_group)
{
    const struct fault *fault = fault_of(_i);
    const char *path = files_shipped(fault->scenario);
    struct scenario *as_is = load_with(path, NULL, 0, false);
    int members = layout_cp(&as_is->config.layout), rank = members + _i % members;
    bool fits = as_is->config.workload == WORKLOAD_ATTENTION && as_is->config.layout.dp_replicate == 1;
    scenario_free(as_is);
    if (!fits) return;
    char at[96];
    snprintf(at, sizeof at, "%s@rank=%d", fault->name, rank);
    const char *faults_there = at;
    struct scenario_options options = {.overrides = &(struct override){"parallel.dp_replicate", "2"}, .overrides_count = 1, .faults = &faults_there, .faults_count = 1, .no_faults = true};
    struct error error = {0};
    struct scenario *s = scenario_load(path, &options, &error);
    ck_assert_msg(s != NULL, "%s: %s", at, error.message);
    struct result *result = run(s);
    /* The last member skips no step: there the joint rows only come later in a sum. */
    bool order = !strcmp(fault->name, "cp-joint-last-step") && rank == 2 * members - 1, shows = result->faults[0].outcome == FAULT_ACTIVE && !order;
    ck_assert_msg(!shows || result->verdict != VERDICT_CONSISTENT, "%s is not found", at);
    for (int i = 0; shows && i < result->diagnosis.ranks_count; i++)
        ck_assert_msg(result->diagnosis.ranks[i] >= members, "%s: rank %d is named for it: %s", at, result->diagnosis.ranks[i], result->diagnosis.summary);
    ck_assert_msg(!shows || result->verdict == VERDICT_DEADLOCK || result->diagnosis.ranks_count > 0, "%s: nobody is named: %s", at, result->diagnosis.summary);
    result_free(result);
    scenario_free(s);
}
END_TEST

/* Six mistakes with one symptom, a wrong image: summary, site and candidates tell them apart. */
START_TEST(told_apart)
{
    static const char *const alike[] = {"cp-hop-missing", "cp-keep-last", "cp-resend-own", "cp-dkv-direction", "cp-local-only", "cp-simple-average", "cp-no-merge", "cp-plain-sum", "cp-skip-and-overwrite"};
    enum { ALIKE = sizeof alike / sizeof *alike };
    struct { char summary[600], first[64]; } said[ALIKE];
    for (int i = 0; i < ALIKE; i++) {
        struct scenario *s = load(fault_find(alike[i]), _i, true);
        struct result *result = run(s);
        ck_assert_msg(result->has_diagnosis && result->diagnosis.candidates_count > 0, "%s", alike[i]);
        ck_assert_msg(!strcmp(result->diagnosis.candidates[0].fault, alike[i]), "%s on %d ranks: %s comes first: %s", alike[i], _i, result->diagnosis.candidates[0].fault, result->diagnosis.summary);
        snprintf(said[i].summary, sizeof said[i].summary, "%.599s", result->diagnosis.summary);
        snprintf(said[i].first, sizeof said[i].first, "%s", result->diagnosis.site);
        for (int k = 0; k < i; k++) ck_assert_msg(strcmp(said[i].summary, said[k].summary) != 0, "%s and %s read alike: %s", alike[i], alike[k], said[i].summary);
        result_free(result);
        scenario_free(s);
    }
}
END_TEST

/* ---- the split attention of a training, and the view behind it ---- */

#define TRAINING(parts) "{\"hpsim\": 1, \"seed\": 97, \"model\": {\"layers\": 2, \"dim\": 10, \"heads\": 4, \"kv_heads\": 2, \"head_dim\": 4, \"ffn\": 6, \"seq\": 11, " \
    "\"window\": 5, \"document_mask\": true}, \"train\": {\"steps\": 1, \"global_batch\": 4}, \"parallel\": {" parts "}, \"precision\": \"fp32\"}"
#define RING(cp) TRAINING("\"pp\": 2, \"cp\": " cp ", \"pipeline\": {\"microbatches\": 2}, \"context\": {\"method\": \"ring\", \"layout\": \"zigzag\", \"merge\": \"late\"}")
#define HEADS(method) TRAINING("\"cp\": 2, \"pipeline\": {\"microbatches\": 2}, \"context\": {\"method\": \"" method "\", \"layout\": \"striped\"}")

/* Where what is noted inside layers tells the split attention from the view of its output, and from the rest of the layer. */
static const struct { const char *text, *fault, *site; bool split; } inside[] = {
    {RING("2"), "cp.lse:perturb", "layer.forward", true},        /* of one sequence of a micro-batch: it depends on the cut */
    {HEADS("ulysses"), "cp.seq_to_head:corrupt", "layer.forward", true},
    {RING("3"), "cp.merge:sum", "layer.forward", true},          /* of all alike: it does not */
    {RING("2"), "cp.lse:zero", "layer.forward", true},
    {RING("2"), "attention-output-view", "attention.output_view", false},
    {RING("1"), "attention-output-view", "attention.output_view", false},
    {HEADS("all_gather"), "attention-output-view", "attention.output_view", false},
    {HEADS("ulysses"), "attention-output-view", "attention.output_view", false},
    {RING("2"), "cp.softmax_scale:twice", "cp.softmax_scale", false},
    {HEADS("all_gather"), "cp.softmax_scale:omit", "cp.softmax_scale", false},
    {RING("2"), "layer.forward:zero", "layer.forward", false},
};

START_TEST(split_attention_is_not_its_view)
{
    const char *fault = inside[_i].fault;
    struct error error = {0};
    struct scenario *s = files_load_with(inside[_i].text, &(struct scenario_options){.faults = &fault, .faults_count = 1}, &error);
    ck_assert_msg(s != NULL, "%s: %s", fault, error.message);
    struct result *result = experiment_run(s, &(struct experiment_options){.train = {.threads = 1}, .checks = "deep"}, &error);
    ck_assert_msg(result != NULL, "%s: %s", fault, error.message);
    const struct diagnosis *d = &result->diagnosis;
    ck_assert_msg(result->verdict == VERDICT_DIVERGED && result->has_diagnosis && !strcmp(d->site, inside[_i].site), "%d: %s is taken for %s: %s", _i, fault, d->site, d->summary);
    bool says = strstr(d->summary, "split") != NULL, view = d->candidates_count > 0 && !strcmp(d->candidates[0].fault, "attention-output-view");
    ck_assert_msg(says == inside[_i].split, "%d: %s: %s", _i, fault, d->summary);
    ck_assert_msg(view == !strcmp(inside[_i].site, "attention.output_view"), "%d: %s: candidate %s", _i, fault, d->candidates_count ? d->candidates[0].fault : "none");
    result_free(result);
    scenario_free(s);
}
END_TEST

int main(int argc, char **argv)
{
    if (argc > 1) files_source = argv[1];
    every = argc > 2 && !strcmp(argv[2], "long");
    Suite *suite = suite_create("context_faults");
    TCase *tests = tcase_create("faults");
    tcase_set_timeout(tests, 1200);
    TCase *files = tcase_create("files");
    tcase_set_timeout(files, 120);
    tcase_add_unchecked_fixture(files, files_setup, files_teardown);
    tcase_add_loop_test(tests, found_and_named, 0, faults());
    tcase_add_loop_test(tests, named_without_the_log, 0, faults());
    tcase_add_loop_test(tests, found_in_another_group, 0, faults());
    tcase_add_loop_test(tests, healthy_is_silent, 0, faults());
    tcase_add_loop_test(files, split_attention_is_not_its_view, 0, sizeof inside / sizeof *inside);
    tcase_add_loop_test(tests, told_apart, 3, every ? 7 : 5);
    suite_add_tcase(suite, tests);
    suite_add_tcase(suite, files);
    return run_suite(suite, CK_NOFORK);
}
