/* layouts: any way to cut the work computes what one rank computes.
 *
 * pp 1, 2, 4, 8 x dp_shard 1, 2, 3, 5 x GPipe, 1F1B x zero 0, 3 x micro-batches 1..12, each with
 * global_batch = 2 x dp_shard x micro-batches, every third with experts, in fp64 and fp32 by turns, with both reductions, both ways to
 * synchronize, both ways to reshard, synchronous and asynchronous sends by turns: every check is silent.
 * "long" runs all 768, else every 13th. And the digest of a run does not depend on threads or on the order
 * in which ready ranks run; at step 0 every token's forward loss has the bits of the standalone run. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scenarios/experiment.h"
#include "scenarios/result.h"
#include "sim/hash.h"
#include "tests/support/run_suite.h"

static bool all;
static uint8_t text[1 << 16];
static int64_t text_bytes;

static struct scenario make(int pp, int dp, int microbatches, int zero, bool gpipe, int turn)
{
    struct scenario s = {.config = {.seed = 3, .precision = precision_of(turn % 2 ? FORMAT_FP64 : FORMAT_FP32),
        .model = {.layers = 8, .dim = 12, .heads = 3, .kv_heads = turn % 3 ? 3 : 1, .head_dim = 4, .ffn = 14, .vocab = 256, .seq = 17,
                  .causal = true, .rope = turn % 5 != 0, .bias = turn % 4 == 0, .tie_embeddings = turn % 7 < 3,
                  .norm_eps = 1e-5, .rope_base = 10000},
        .data = {text, text_bytes, PACKING_DOCUMENTS},
        .train = {.steps = 2, .global_batch = 2 * dp * microbatches, .optimizer = OPTIMIZER_ADAMW, .lr = 1e-3, .beta1 = .9,
                  .beta2 = .95, .eps = 1e-8, .weight_decay = .1, .grad_clip = 1},
        .layout = {.pp = pp, .dp_replicate = 1, .dp_shard = dp, .tp = 1, .microbatches = microbatches, .zero = zero, .send_sync = turn % 3 == 1,
                   .reshard_after_forward = zero == 3 && turn % 4 < 2, .reduce_op = turn % 5 < 2 ? FSDP_REDUCE_SUM : FSDP_REDUCE_AVG,
                   .sync = turn % 6 < 2 ? SYNC_EACH_MICROBATCH : SYNC_LAST_MICROBATCH},
        .machine = {8, 400, 3, 400, 8, 50}}};
    if (turn % 3 == 2) { /* experts, in the variants of their router */
        s.config.model.moe = (struct moe_config){.experts = 6, .top_k = 1 + turn % 4, .expert_ffn = 5, .shared_ffn = turn % 5 ? 7 : 0, .dense = {0x11},
            .score = turn % 2 ? MOE_SCORE_SOFTMAX : MOE_SCORE_SIGMOID, .normalize = (enum moe_normalize)(turn % 5 % 3), .routed_scaling = 1.5,
            .groups = turn % 7 < 3 ? 2 : 1, .groups_chosen = turn % 7 < 3 ? 2 : 1, .aux_loss_coeff = turn % 4 ? .2 : 0, .z_loss_coeff = turn % 5 ? .01 : 0,
            .balance = turn % 7 ? MOE_BALANCE_NOAUX_TC : MOE_BALANCE_NONE, .bias_update_rate = .01, .capacity_factor = turn % 4 > 1 ? .9 : 0,
            .drop = turn % 8 > 3 ? MOE_DROP_PROBS : MOE_DROP_POSITION, .normalize_after_drop = turn % 11 > 5, .row_alignment = 1 + turn % 3};
    }
    snprintf(s.config.layout.schedule, sizeof s.config.layout.schedule, "%s", gpipe ? "GPipe" : "1F1B");
    for (int i = 0; i < pp; i++) s.config.layout.layers_per_stage[i] = 8 / pp;
    return s;
}

static struct result *run(const struct scenario *s, int threads, uint64_t interleave)
{
    struct experiment_options options = {.train = {.threads = threads, .interleave = interleave}, .checks = "default"};
    struct error error = {0};
    struct result *result = experiment_run(s, &options, &error);
    ck_assert_msg(result != NULL, "%s", error.message);
    return result;
}

static void hold_forward_bits(const struct result *result, const char *name)
{
    const struct loss_fact *whole = &result->standalone->rank[0].losses.items[0];
    const struct run_config *config = &result->scenario->config;
    int64_t rows = (int64_t)layout_sequences_per_microbatch(config) * config->model.seq;
    for (int r = 0; r < result->parallel->ranks; r++) {
        const struct rank_record *rank = &result->parallel->rank[r];
        for (int i = 0; i < rank->losses.count; i++) {
            const struct loss_fact *f = &rank->losses.items[i];
            if (f->step != 0) continue;
            int64_t first = ((int64_t)rank->data_rank * config->layout.microbatches + f->microbatch) * rows;
            ck_assert_msg(!memcmp(f->token_loss, whole->token_loss + first, (size_t)rows * sizeof(double)), "%s: forward bits differ", name);
        }
    }
}

START_TEST(every_layout_is_consistent)
{
    static const int stages[] = {1, 2, 4, 8}, shards[] = {1, 2, 3, 5};
    int turn = 0, ran = 0;
    for (int p = 0; p < 4; p++) {
        for (int d = 0; d < 4; d++) {
            for (int m = 1; m <= 12; m++) {
                for (int k = 0; k < 4; k++) {
                    if (turn++ % 13 && !all) continue;
                    struct scenario s = make(stages[p], shards[d], m, k & 1 ? 3 : 0, k & 2, turn);
                    struct result *result = run(&s, 1 + turn % 2, 0);
                    char name[160];
                    snprintf(name, sizeof name, "pp %d dp_shard %d micro-batches %d zero %d %s turn %d", stages[p], shards[d], m,
                             k & 1 ? 3 : 0, s.config.layout.schedule, turn);
                    for (int c = 0; c < result->checks_count; c++) {
                        ck_assert_msg(result->checks[c].status != CHECK_FAIL, "%s: %s: %s", name, result->checks[c].id, result->checks[c].why);
                    }
                    ck_assert_msg(result->verdict == VERDICT_CONSISTENT, "%s: %s", name, verdict_names[result->verdict]);
                    hold_forward_bits(result, name);
                    result_free(result);
                    ran++;
                }
            }
        }
    }
    ck_assert_int_eq(ran, all ? 768 : 60);
}
END_TEST

START_TEST(digest_is_the_scenarios_alone)
{
    struct scenario s = make(4, 3, 5, 3, false, 10);
    struct result *first = run(&s, 1, 0);
    for (int i = 0; i < (all ? 100 : 12); i++) {
        static const int threads[] = {1, 2, 4, 3};
        struct result *again = run(&s, threads[i % 4], (uint64_t)i);
        ck_assert_msg(!memcmp(first->parallel->digest, again->parallel->digest, sizeof first->parallel->digest),
                      "threads %d, interleave %d: another digest", threads[i % 4], i);
        result_free(again);
    }
    s.config.seed++;
    struct result *other = run(&s, 1, 0);
    ck_assert_msg(memcmp(first->parallel->digest, other->parallel->digest, sizeof first->parallel->digest), "another seed, the same digest");
    result_free(other);
    result_free(first);
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
    Suite *suite = suite_create("layouts");
    TCase *tcase = tcase_create("layouts");
    tcase_set_timeout(tcase, 3600);
    tcase_add_test(tcase, every_layout_is_consistent);
    tcase_add_test(tcase, digest_is_the_scenarios_alone);
    suite_add_tcase(suite, tcase);
    return run_suite(suite, CK_NOFORK);
}
