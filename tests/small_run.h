/* small_run: a small training job for tests of comparison, checks and diagnosis: both runs, at one or both rungs,
 * with at most one armed deviation. Sizes pairwise different, no powers of two. */
#ifndef TESTS_SMALL_RUN_H
#define TESTS_SMALL_RUN_H

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/collectives.h"
#include "model/loss_convention.h"
#include "model/sites.h"
#include "scenarios/check_run.h"
#include "scenarios/compare.h"
#include "scenarios/diagnosis.h"
#include "scenarios/ladder.h"

/* Documents of different lengths, so that no two micro-batches have equally many valid tokens. */
static const char small_text[] =
    "The ship left at dawn.\n\nNobody saw it go but one old man who had slept badly and stood by the window.\n\nHe "
    "waved.\n\n"
    "A day later the harbour was full of questions, and the old man, asked by everyone in turn, said that he had seen "
    "nothing at all.\n\nTwo gulls knew better.\n\nIt was a fine ship, three masts, a red hull, and a cook who "
    "sang.\n\nNo cook "
    "sings for nothing.\n\nSo they asked the baker.\n\nThe baker had sold him nine loaves, no more, and nine loaves "
    "are "
    "four days.\n\nFour days by sail is the island, or the cape, or nowhere.\n\nThey sent a boat to each.\n\n";

static inline struct run_config small_config(void)
{
    struct run_config config;
    memset(&config, 0, sizeof config);
    config.seed = 7;
    config.model = (struct model_config){.layers = 5,
                                         .dim = 12,
                                         .heads = 3,
                                         .kv_heads = 3,
                                         .head_dim = 4,
                                         .ffn = 20,
                                         .vocab = 256,
                                         .seq = 18,
                                         .causal = true,
                                         .rope = true,
                                         .norm_eps = 1e-5,
                                         .rope_base = 10000};
    config.data = (struct data_config){(const uint8_t *)small_text, (int64_t)sizeof small_text - 1, PACKING_DOCUMENTS};
    config.train = (struct train_config){.steps = 2,
                                         .global_batch = 15,
                                         .optimizer = OPTIMIZER_ADAMW,
                                         .lr = 0.002,
                                         .beta1 = 0.9,
                                         .beta2 = 0.95,
                                         .eps = 1e-8,
                                         .weight_decay = 0.1,
                                         .grad_clip = 1};
    config.layout = (struct layout){.pp = 2,
                                    .dp_replicate = 1,
                                    .dp_shard = 3, .tp = 1,
                                    .microbatches = 5,
                                    .schedule = "1F1B",
                                    .zero = ZERO_3,
                                    .reshard_after_forward = true};
    config.layout.layers_per_stage[0] = 3;
    config.layout.layers_per_stage[1] = 2;
    config.machine = (struct machine_config){8, 400, 3, 400, 8, 50};
    config.precision = precision_of(FORMAT_FP32);
    return config;
}

/* Whole parameters on every data rank. */
static inline void small_config_ddp(struct run_config *config)
{
    config->layout.dp_replicate = config->layout.dp_shard;
    config->layout.dp_shard = 1;
    config->layout.zero = ZERO_0;
    config->layout.reshard_after_forward = false;
}

struct small_fault {
    const char *site, *deviation, *text;
    double value;
    int rank, step, microbatch, layer; /* -1: all */
};
#define SMALL_EVERYWHERE -1, -1, -1, -1

static inline const struct deviation *small_deviation(const struct site *site, const char *name)
{
    for (int i = 0; i < model_deviation_count(); i++) {
        if (model_deviation(i)->kind == site->kind && !strcmp(model_deviation(i)->name, name))
            return model_deviation(i);
    }
    for (int i = 0; i < communication_deviation_count(); i++) {
        if (communication_deviation(i)->kind == site->kind && !strcmp(communication_deviation(i)->name, name))
            return communication_deviation(i);
    }
    return NULL;
}

static inline struct site_plan *small_plan(const struct small_fault *fault, int ranks)
{
    struct site_plan *plan = site_plan_new(ranks);
    if (!fault) return plan;
    struct armed armed;
    memset(&armed, 0, sizeof armed);
    armed.site = model_site_find(fault->site);
    ck_assert_ptr_nonnull(armed.site);
    armed.deviation = small_deviation(armed.site, fault->deviation);
    ck_assert_ptr_nonnull(armed.deviation);
    if (fault->text) strncpy(armed.text, fault->text, sizeof armed.text - 1);
    armed.value = fault->value;
    struct { int at; struct at_list *list;
    } at[] = {{fault->rank, &armed.rank},
              {fault->step, &armed.step},
              {fault->microbatch, &armed.microbatch},
              {fault->layer, &armed.layer}};
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
        if (at[i].at >= 0) at[i].list->values[at[i].list->count++] = at[i].at;
    }
    site_plan_arm(plan, &armed);
    return plan;
}

/* Owns its records. */
struct small_run { struct record *parallel, *standalone, *parallel_other, *standalone_other; uint64_t hits; };

static inline struct record *small_record(struct run_config config, bool standalone, struct precision precision,
                                          const struct small_fault *fault, uint64_t *ret_hits)
{
    struct train_options options = {.threads = 1, .watch = true};
    struct error error = {0};
    config.precision = precision;
    config.loss_cut = loss_cut_of(&config);
    if (standalone) config.layout = layout_standalone(&config.model);
    struct site_plan *plan = small_plan(standalone ? NULL : fault, layout_ranks(&config.layout));
    struct record *record = train_run(&config, plan, &options, &error);
    ck_assert_msg(record != NULL, "%s", error.message);
    if (ret_hits && plan->armed_count) *ret_hits = site_hits(plan, 0);
    site_plan_free(plan);
    return record;
}

static inline struct small_run small_run_new(const struct run_config *config, const struct small_fault *fault,
                                             bool other_rung)
{
    struct small_run run = {0};
    run.parallel = small_record(*config, false, config->precision, fault, &run.hits);
    run.standalone = small_record(*config, true, config->precision, NULL, NULL);
    if (other_rung) {
        run.parallel_other = small_record(*config, false, ladder_other(&config->precision), fault, NULL);
        run.standalone_other = small_record(*config, true, ladder_other(&config->precision), NULL, NULL);
    }
    return run;
}

static inline void small_run_free(struct small_run *run)
{
    record_free(run->parallel);
    record_free(run->standalone);
    record_free(run->parallel_other);
    record_free(run->standalone_other);
}

static inline bool small_run_finished(const struct small_run *run)
{
    return run->parallel->outcome == MACHINE_FINISHED;
}

/* Compared, checked and, where anything failed, diagnosed. The comparison is freed again. */
static inline struct result small_judge(const struct small_run *run)
{
    struct result result;
    struct check_selection selection;
    struct error error = {0};
    memset(&result, 0, sizeof result);
    result.arena = arena_new("small result", false);
    ck_assert(check_select("default", &selection, &error));
    struct comparison *comparison = small_run_finished(run) ? comparison_new(run->parallel, run->standalone) : NULL;
    if (comparison && run->parallel_other) comparison_add_other(comparison, run->parallel_other, run->standalone_other);
    struct evidence evidence = {&run->parallel->config, run->parallel,         run->standalone,
                                run->parallel_other,    run->standalone_other, comparison, 0, NULL, NULL, NULL, NULL};
    checks_run(&evidence, &selection, &result);
    bool failed = false;
    for (int i = 0; i < result.checks_count; i++) failed = failed || result.checks[i].status == CHECK_FAIL;
    result.has_diagnosis = failed && diagnose(&evidence, &result);
    comparison_free(comparison);
    return result;
}

static inline const struct check_result *small_check(const struct result *result, const char *id)
{
    for (int i = 0; i < result->checks_count; i++) {
        if (!strcmp(result->checks[i].id, id)) return &result->checks[i];
    }
    ck_abort_msg("no check %s", id);
    return NULL;
}

#endif
