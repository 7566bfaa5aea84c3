/* expert layouts: any way to spread experts over ranks computes what one rank computes.
 *
 * pp 1, 2 x dp_replicate 1, 2 x dp_shard 1, 2, 3, 6 x tp 1, 2 x every ep that there is, over dp_shard and over dp_shard x tp,
 * x etp 1, tp x dispatchers (all_to_all in one and two steps) x zero 0..3 x both ways to synchronize, fp64 and fp32 by turns:
 *   - every check is silent, and in fp64 losses, norms, gradients and parameters agree to 1e-11;
 *   - every row that a router keeps is computed by exactly one expert, on the rank that the layout puts it on;
 *   - a rank holds experts / ep experts of each layer, and all of them are held.
 * "long" runs all, else every 31st. Besides: places by the layout alone. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/experts.h"
#include "scenarios/result.h"
#include "tests/support/run_suite.h"

enum { EXPERTS = 12, TOP_K = 3, STEPS = 2 };
static bool all;
static uint8_t text[1 << 16];
static int64_t text_bytes;

static struct scenario make(const struct layout *layout, int turn)
{
    struct scenario s = {.config = {.seed = 5 + (uint64_t)turn, .precision = precision_of(turn % 2 ? FORMAT_FP64 : FORMAT_FP32),
        .model = {.layers = 2, .dim = 10, .heads = 2, .kv_heads = 2, .head_dim = 4, .ffn = 14, .vocab = 256, .seq = 7, .causal = true, .rope = true,
                  .bias = turn % 3 == 0, .tie_embeddings = turn % 5 == 0, .norm_eps = 1e-5, .rope_base = 10000, .initial = INITIAL_PYTORCH,
                  .moe = {.experts = EXPERTS, .top_k = TOP_K, .expert_ffn = 6, .shared_ffn = turn % 4 ? 8 : 0, .dense = {turn % 7 == 0}, .score = MOE_SCORE_SIGMOID,
                          .routed_scaling = 1.5, .groups = 1, .groups_chosen = 1, .aux_loss_coeff = turn % 2 ? .1 : 0,
                          .balance = turn % 3 ? MOE_BALANCE_NOAUX_TC : MOE_BALANCE_NONE, .bias_update_rate = .01, .row_alignment = 1 + turn % 3}},
        .data = {text, text_bytes, PACKING_DOCUMENTS},
        .train = {.steps = STEPS, .optimizer = OPTIMIZER_SGD, .lr = 1e-2, .momentum = .9, .weight_decay = .1, .grad_clip = 1},
        .layout = *layout, .machine = {8, 400, 3, 400, 8, 50}}};
    struct layout *l = &s.config.layout;
    l->microbatches = 2;
    l->reshard_after_forward = l->zero == ZERO_3 && turn % 2;
    l->prefetch = l->zero == ZERO_3 ? turn % 3 : 0;
    l->bucket_elements = l->zero != ZERO_3 && turn % 3 == 1 ? 500 : 0;
    l->reduce_op = turn % 5 < 2 ? FSDP_REDUCE_SUM : FSDP_REDUCE_AVG;
    l->recompute.mode = turn % 4 == 1 ? RECOMPUTE_FULL : RECOMPUTE_NONE;
    snprintf(l->schedule, sizeof l->schedule, "1F1B");
    for (int i = 0; i < l->pp; i++) l->layers_per_stage[i] = 2 / l->pp;
    s.config.train.global_batch = layout_data_ranks(l) * l->microbatches * (1 + turn % 2);
    return s;
}

static const char *describe(const struct layout *l, int turn, char to[200])
{
    snprintf(to, 200, "turn %d: pp %d dp_replicate %d dp_shard %d tp %d ep %d etp %d over_tp %d dispatcher %d inner %d zero %d %s", turn, l->pp, l->dp_replicate,
             l->dp_shard, l->tp, l->ep, l->etp, l->experts_over_tp, (int)l->dispatcher, l->ep_inner, l->zero, l->sync == SYNC_EACH_MICROBATCH ? "each" : "last");
    return to;
}

/* Rows of a layer in a step: each expert's, over the ranks that have it. */
static void hold_rows(const struct record *record, const char *name)
{
    const struct run_config *config = &record->config;
    for (int step = 0; step < STEPS; step++) {
        for (int unit = 1; unit <= config->model.layers; unit++) {
            int64_t kept[EXPERTS] = {0}, computed[EXPERTS] = {0}, pairs = 0;
            for (int r = 0; r < record->ranks; r++) {
                const struct rank_record *rank = &record->rank[r];
                struct expert_place place = expert_place(&config->layout, EXPERTS, rank->shard, rank->tp);
                bool reads = rank->tp == 0 && rank->shard % layout_shards_alike(&config->layout) == 0;
                for (int i = 0; i < rank->routings.count; i++) {
                    const struct routing_fact *fact = &rank->routings.items[i];
                    if (fact->step != step || fact->unit != unit) continue;
                    if (reads) pairs += fact->tokens * fact->top_k - fact->dropped;
                    for (int e = 0; e < EXPERTS; e++) {
                        bool here = e >= place.first && e < place.first + place.count;
                        ck_assert_msg(here || fact->computed[e] == 0, "%s: rank %d computes expert %d, which is not there", name, r, e);
                        kept[e] += reads ? fact->load[e] : 0;
                        computed[e] += place.tp_copy == 0 ? fact->computed[e] : 0;
                    }
                }
            }
            int64_t sum = 0;
            for (int e = 0; e < EXPERTS; e++) {
                ck_assert_msg(kept[e] == computed[e], "%s: %lld rows for expert %d, %lld computed", name, (long long)kept[e], e, (long long)computed[e]);
                sum += computed[e];
            }
            ck_assert_msg(sum == pairs, "%s: %lld rows of %lld pairs", name, (long long)sum, (long long)pairs);
            bool dense = !model_layer_has_experts(&config->model, unit - 1);
            ck_assert_msg(dense ? pairs == 0 : pairs == (int64_t)config->train.global_batch * config->model.seq * TOP_K, "%s: %lld pairs", name, (long long)pairs);
        }
    }
}

/* Each expert's first matrix is held as often as ranks have it, by the layout. */
static void hold_experts(const struct record *record, const char *name)
{
    const struct layout *l = &record->config.layout;
    for (int p = 0; p < record->params.count; p++) {
        const struct param *param = &record->params.params[p];
        int holders = 0, stage = layout_stage_of_unit(l, &record->config.model, unit_boundary(&record->config.model, param->unit));
        if (!param->info.is_expert) continue;
        for (int r = 0; r < record->ranks; r++) {
            const struct rank_record *rank = &record->rank[r];
            bool held = false;
            for (int i = 0; i < rank->tensors.count && rank->tensors.items[i].step < 0; i++) held = held || rank->tensors.items[i].param == p;
            holders += held;
            ck_assert_msg(held == record_has_param(record, rank, p), "%s: rank %d and %s", name, r, param->info.name);
            ck_assert_msg(!held || rank->stage == stage, "%s: rank %d holds %s of another stage", name, r, param->info.name);
        }
        ck_assert_msg(holders * layout_ep(l) * l->pp == record->ranks, "%s: %d ranks hold %s", name, holders, param->info.name);
    }
}

static void hold(const struct layout *layout, int turn)
{
    struct scenario s = make(layout, turn);
    struct experiment_options options = {.train = {.threads = 1 + turn % 2}, .checks = "default"};
    struct error error = {0};
    char name[200];
    describe(layout, turn, name);
    struct result *result = experiment_run(&s, &options, &error);
    ck_assert_msg(result != NULL, "%s: %s", name, error.message);
    for (int c = 0; c < result->checks_count; c++)
        ck_assert_msg(result->checks[c].status != CHECK_FAIL, "%s: %s: %s", name, result->checks[c].id, result->checks[c].why);
    ck_assert_msg(result->verdict == VERDICT_CONSISTENT, "%s: %s", name, verdict_names[result->verdict]);
    for (int i = 0; i < result->steps_count && turn % 2; i++) {
        const struct step_result *step = &result->steps[i];
        double worst = fmax(fmax(step->rel_err, step->norm_rel_err), fmax(step->max_grad_rel_err, step->max_param_rel_err));
        ck_assert_msg(worst <= 1e-11, "%s: step %d differs by %g", name, i, worst);
    }
    hold_rows(result->parallel, name);
    hold_experts(result->parallel, name);
    result_free(result);
}

static bool is_allowed(const struct layout *l)
{
    int axis = l->dp_shard * (l->experts_over_tp ? l->tp : 1);
    if (axis % l->ep != 0 || EXPERTS % l->ep != 0 || (l->ep == 1 && l->etp == 1)) return false;
    if (l->ep_inner > 1 && (l->dispatcher != DISPATCH_ALL_TO_ALL || l->ep % l->ep_inner != 0 || l->ep == l->ep_inner)) return false;
    if (!l->experts_over_tp) return true;
    return l->tp > 1 && l->etp == 1 && l->dispatcher != DISPATCH_REPLICATED && (l->ep % l->tp == 0 || l->tp % l->ep == 0);
}

START_TEST(every_expert_layout_is_consistent)
{
    static const int shards[] = {1, 2, 3, 6}, sizes[] = {1, 2, 3, 4, 6};
    int turn = 0, ran = 0;
    for (int i = 0; i < 2 * 2 * 4 * 2 * 5 * 2 * 2 * 3 * 3 * 4 * 2; i++) {
        int at = i;
        struct layout l = {.pp = 1};
#define DIGIT(count) (at % (count)); at /= (count)
        l.zero = DIGIT(4);
        l.sync = (enum sync_mode)DIGIT(2);
        l.dispatcher = (enum moe_dispatcher)DIGIT(3);
        l.ep_inner = 1 + DIGIT(3);
        l.etp = 1 + DIGIT(2);
        l.experts_over_tp = DIGIT(2);
        l.ep = sizes[at % 5]; at /= 5;
        l.tp = 1 + DIGIT(2);
        l.dp_shard = shards[at % 4]; at /= 4;
        l.dp_replicate = 1 + DIGIT(2);
        l.pp = 1 + DIGIT(2);
#undef DIGIT
        if (l.etp > l.tp || !is_allowed(&l)) continue;
        if (turn++ % 31 && !all) continue;
        hold(&l, turn);
        ran++;
    }
    ck_assert_int_ge(ran, all ? 2000 : 70);
}
END_TEST

/* Who holds what, position by position. */
START_TEST(places_follow_from_the_layout)
{
    struct layout l = {.pp = 1, .dp_replicate = 1, .dp_shard = 6, .tp = 2, .ep = 3};
    for (int s = 0; s < 6; s++) {
        for (int t = 0; t < 2; t++) {
            struct expert_place place = expert_place(&l, EXPERTS, s, t);
            ck_assert_int_eq(place.me, s % 3);
            ck_assert_int_eq(place.group, s / 3);
            ck_assert_int_eq(place.first, 4 * (s % 3));
            ck_assert_int_eq(place.count, 4);
            ck_assert_int_eq(place.tp_copy, t);
            ck_assert_int_eq(place.shard, s / 3);
            ck_assert_int_eq(place.shards, 2);
        }
    }
    l.ep = 6; /* three ranks of dp_shard, both of tp */
    l.experts_over_tp = true;
    for (int s = 0; s < 6; s++) {
        for (int t = 0; t < 2; t++) {
            struct expert_place place = expert_place(&l, EXPERTS, s, t);
            ck_assert_int_eq(place.me, 2 * (s % 3) + t);
            ck_assert_int_eq(place.first, 2 * place.me);
            ck_assert_int_eq(place.tp_copy, 0);
            ck_assert_int_eq(place.shards, 2);
        }
    }
    l.tp = 4; /* two groups within a tp group */
    l.ep = 2;
    for (int t = 0; t < 4; t++) {
        struct expert_place place = expert_place(&l, EXPERTS, 5, t);
        ck_assert_int_eq(place.me, t % 2);
        ck_assert_int_eq(place.tp_copy, t / 2);
        ck_assert_int_eq(place.shards, 6);
    }
}
END_TEST

int main(int argc, char **argv)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/scenarios/corpus.txt", argc > 1 ? argv[1] : ".");
    all = argc > 2 && !strcmp(argv[2], "long");
    FILE *file = fopen(path, "rb");
    if (!file) {
        fprintf(stderr, "cannot open %s\n", path);
        return 1;
    }
    text_bytes = (int64_t)fread(text, 1, sizeof text, file);
    fclose(file);
    Suite *suite = suite_create("expert layouts");
    TCase *tcase = tcase_create("expert layouts");
    tcase_set_timeout(tcase, 3600);
    tcase_add_test(tcase, every_expert_layout_is_consistent);
    tcase_add_test(tcase, places_follow_from_the_layout);
    suite_add_tcase(suite, tcase);
    return run_suite(suite, CK_NOFORK);
}
