/* test_recompute: whatever is computed again, every number is as if all had been kept; less is held; and what the check
 * rng reads, it sees when it is changed.
 *
 * Pipelines, FSDP with and without resharding, whole parameters, experts, latent attention, bf16, dropout: each in every mode. */
#include "tests/small_run.h"

enum { LATENT = 1, EXPERTS = 2, DDP = 4, BF16 = 8, DROPOUT = 16, KEEP_GATHERED = 32, FP64 = 64, GPIPE = 128, ADAPTER = 256, ONE_STAGE = 512, PREFETCH = 1024 };

static struct run_config config_with(int bits)
{
    struct run_config config = small_config();
    if (bits & ONE_STAGE) {
        config.layout.pp = 1;
        config.layout.layers_per_stage[0] = config.model.layers;
    }
    if (bits & LATENT) {
        config.model.attention = ATTENTION_MLA;
        config.model.mla = (struct mla_config){9, 7};
    }
    if (bits & EXPERTS) {
        config.model.moe = (struct moe_config){.experts = 5, .top_k = 2, .expert_ffn = 11, .shared_ffn = 6, .routed_scaling = 1.5};
        config.model.moe.dense[0] = 2; /* layer 1 */
    }
    if (bits & DDP) small_config_ddp(&config);
    if (bits & KEEP_GATHERED) config.layout.reshard_after_forward = false;
    if (bits & PREFETCH) config.layout.prefetch = 2;
    if (bits & FP64) config.precision = precision_of(FORMAT_FP64);
    if (bits & BF16) config.precision.param = config.precision.compute = config.precision.residual = FORMAT_BF16;
    if (bits & DROPOUT) config.model.dropout = 0.23;
    if (bits & GPIPE) strcpy(config.layout.schedule, "GPipe");
    if (bits & ADAPTER) {
        config.model.adapter_rows = 3;
        config.model.adapter_used = ADAPTER_FIRST_MICROBATCH;
    }
    return config;
}

static const struct { struct recompute mode; int needs; const char *name; } modes[] = {
    {{RECOMPUTE_FULL, 0}, 0, "full"},
    {{RECOMPUTE_SELECTIVE, 0}, 0, "selective"},
    {{RECOMPUTE_NONE, RECOMPUTE_MOE_PERMUTE}, EXPERTS, "moe_permute"},
    {{RECOMPUTE_NONE, RECOMPUTE_MOE_ACTIVATION}, EXPERTS, "moe_activation"},
    {{RECOMPUTE_NONE, RECOMPUTE_MOE_RMSNORM}, EXPERTS, "moe_rmsnorm"},
    {{RECOMPUTE_NONE, RECOMPUTE_DENSE_MLA_QKV}, LATENT, "dense_mla_qkv"},
    {{RECOMPUTE_NONE, RECOMPUTE_MOE_MLA_QKV}, LATENT | EXPERTS, "moe_mla_qkv"},
    {{RECOMPUTE_SELECTIVE, 62}, LATENT | EXPERTS, "selective and all parts"},
};
enum { MODES = sizeof modes / sizeof modes[0] };

static int64_t held(const struct record *record)
{
    int64_t sum = 0;
    for (int r = 0; r < record->ranks; r++) sum += record->rank[r].activation_peak_bytes;
    return sum;
}

static const int layouts[] = {0, DDP, KEEP_GATHERED, GPIPE | DROPOUT, FP64 | DROPOUT, BF16 | DROPOUT, EXPERTS, LATENT, LATENT | EXPERTS,
                              LATENT | EXPERTS | DROPOUT | BF16, LATENT | EXPERTS | DROPOUT | DDP, LATENT | EXPERTS | DROPOUT | ONE_STAGE | PREFETCH,
                              ADAPTER | DROPOUT, ADAPTER | DROPOUT | EXPERTS | FP64 | GPIPE};

START_TEST(every_mode_gives_the_same_bits_and_holds_less)
{
    struct run_config config = config_with(layouts[_i]);
    struct record *kept = small_record(config, false, config.precision, NULL, NULL);
    for (int m = 0; m < MODES; m++) {
        if (modes[m].needs & ~layouts[_i]) continue;
        config.layout.recompute = modes[m].mode;
        struct record *again = small_record(config, false, config.precision, NULL, NULL);
        ck_assert_msg(!memcmp(kept->digest, again->digest, sizeof kept->digest), "layout %d, %s: other bits", layouts[_i], modes[m].name);
        ck_assert_msg(held(again) < held(kept), "layout %d, %s holds %lld bytes of %lld", layouts[_i], modes[m].name, (long long)held(again), (long long)held(kept));
        for (int r = 0; r < again->ranks; r++) {
            const struct rank_record *a = &again->rank[r], *k = &kept->rank[r];
            if (modes[m].mode.mode != RECOMPUTE_NONE) ck_assert(a->busy_s > k->busy_s); /* parts may be copies alone */
            ck_assert_int_eq(a->recomputations.count, modes[m].mode.mode == RECOMPUTE_FULL ? config.train.steps * config.layout.microbatches * config.layout.layers_per_stage[a->stage] : 0);
        }
        record_free(again);
    }
    record_free(kept);
}
END_TEST

/* Full recomputation holds a layer's activations once, and the others' inputs. */
START_TEST(full_holds_one_layer)
{
    struct run_config config = config_with(ONE_STAGE);
    struct record *kept = small_record(config, false, config.precision, NULL, NULL);
    config.layout.recompute.mode = RECOMPUTE_FULL;
    struct record *again = small_record(config, false, config.precision, NULL, NULL);
    ck_assert_int_eq(kept->rank[0].layers_peak, config.model.layers);
    ck_assert_int_eq(again->rank[0].layers_peak, 1);
    record_free(kept);
    record_free(again);
}
END_TEST

/* Dropout does something, and another seed does something else. */
START_TEST(dropout_changes_the_run)
{
    struct run_config config = config_with(0);
    struct record *record[3];
    record[0] = small_record(config, false, config.precision, NULL, NULL);
    config.model.dropout = 0.01;
    record[1] = small_record(config, false, config.precision, NULL, NULL);
    config.model.dropout = 0.02;
    record[2] = small_record(config, false, config.precision, NULL, NULL);
    for (int i = 0; i < 3; i++) ck_assert(memcmp(record[i]->digest, record[(i + 1) % 3]->digest, sizeof record[0]->digest) != 0);
    ck_assert_int_eq(record[0]->rank[0].draws.count, 0);
    for (int i = 0; i < 3; i++) record_free(record[i]);
}
END_TEST

/* The standalone run's forward losses have the bits of every layout's, dropout or not. */
START_TEST(forward_bits_are_the_standalones)
{
    struct run_config config = config_with(_i ? DROPOUT : DROPOUT | FP64);
    struct record *parallel = small_record(config, false, config.precision, NULL, NULL), *alone = small_record(config, true, config.precision, NULL, NULL);
    int64_t rows = (int64_t)layout_sequences_per_microbatch(&config) * config.model.seq;
    int compared = 0;
    for (int r = 0; r < parallel->ranks; r++) {
        for (int i = 0; i < parallel->rank[r].losses.count; i++) {
            const struct loss_fact *fact = &parallel->rank[r].losses.items[i];
            int64_t first = ((int64_t)parallel->rank[r].data_rank * config.layout.microbatches + fact->microbatch) * rows;
            if (fact->step > 0) continue;
            ck_assert(!memcmp(fact->token_loss, alone->rank[0].losses.items[0].token_loss + first, (size_t)rows * sizeof(double)));
            compared++;
        }
    }
    ck_assert_int_eq(compared, config.layout.dp_shard * config.layout.microbatches);
    record_free(parallel);
    record_free(alone);
}
END_TEST

/* ---- the check ---- */

static struct small_run run;

static void begin(int bits)
{
    struct run_config config = config_with(bits);
    config.layout.recompute.mode = RECOMPUTE_FULL;
    run = small_run_new(&config, NULL, false);
}

/* "": it stays silent. */
static void expect(const struct site *site, int rank, const char *pattern)
{
    struct result judged = small_judge(&run);
    const struct check_result *check = small_check(&judged, "rng");
    bool found = !pattern[0] && check->status == CHECK_PASS;
    for (int i = 0; i < judged.findings_count; i++) {
        const struct finding *f = &judged.findings[i];
        found = found || (!strcmp(f->check, "rng") && f->site == site && f->place.rank == rank && !strcmp(f->pattern, pattern) && f->text[0]);
    }
    ck_assert_msg(found, "no finding '%s' on rank %d; it says: %s", pattern, rank, check->why);
    arena_free(judged.arena);
    small_run_free(&run);
}

/* The n-th draw of rank 4 that is, or is not, of a recomputation. */
static struct draw_fact *draw_of(bool again, int n)
{
    struct rank_record *rank = &run.parallel->rank[4];
    for (int i = 0; i < rank->draws.count; i++) {
        if (rank->draws.items[i].again == again && n-- == 0) return &rank->draws.items[i];
    }
    ck_abort_msg("no such draw");
    return NULL;
}

START_TEST(rng_sees_each_fact)
{
    begin(DROPOUT);
    expect(NULL, -1, "");
    begin(DROPOUT);
    draw_of(false, 3)->stream++;
    expect(&site_dropout_sequence, 4, "other-stream");
    begin(DROPOUT);
    draw_of(false, 5)->count--;
    expect(&site_dropout_sequence, 4, "other-mask");
    begin(DROPOUT);
    draw_of(false, 5)->kept++;
    expect(&site_dropout_sequence, 4, "other-mask");
    begin(DROPOUT);
    draw_of(true, 7)->stream++;
    expect(&site_recompute_restore_rng, 4, "redrawn");
    begin(DROPOUT);
    draw_of(true, 7)->first++;
    expect(&site_recompute_restore_rng, 4, "redrawn");
    begin(DROPOUT);
    draw_of(true, 2)->kept++;
    expect(&site_recompute_restore_rng, 4, "redrawn");
    begin(DROPOUT);
    run.parallel->rank[4].draws.count--;
    expect(&site_recompute_restore_rng, 4, "count");
    begin(0);
    run.parallel->rank[2].recomputations.items[3].again++;
    expect(&site_recompute_input, 2, "other-output");
}
END_TEST

START_TEST(memory_bound_sees_layers_that_stay)
{
    begin(0);
    run.parallel->rank[1].layers_peak = 2;
    struct result judged = small_judge(&run);
    ck_assert_int_eq(small_check(&judged, "memory-bound")->status, CHECK_FAIL);
    arena_free(judged.arena);
    small_run_free(&run);
}
END_TEST

/* Each site of a recomputation, armed: found by rng, and named. */
START_TEST(sites_are_named)
{
    static const struct { struct small_fault fault; int bits; const char *site; } armed[] = {
        {{"recompute.restore_rng", "never", "", 0, SMALL_EVERYWHERE}, DROPOUT, "recompute.restore_rng"},
        {{"recompute.restore_rng", "never", "", 0, 3, 1, 2, 4}, DROPOUT | EXPERTS, "recompute.restore_rng"},
        {{"recompute.input", "perturb", "", 0.3, SMALL_EVERYWHERE}, 0, "recompute.input"},
        {{"recompute.input", "zero", "", 0, 1, 0, 1, 2}, DROPOUT | LATENT, "recompute.input"},
        {{"dropout.sequence", "duplicate-rows", "", 0, SMALL_EVERYWHERE}, DROPOUT, "dropout.sequence"},
        {{"dropout.sequence", "shift", "", 2, 4, 0, -1, -1}, DROPOUT | FP64, "dropout.sequence"},
    };
    struct run_config config = config_with(armed[_i].bits);
    config.layout.recompute.mode = RECOMPUTE_FULL;
    run = small_run_new(&config, &armed[_i].fault, true);
    struct result judged = small_judge(&run);
    ck_assert_uint_gt(run.hits, 0);
    ck_assert_int_eq(small_check(&judged, "rng")->status, CHECK_FAIL);
    ck_assert_int_eq(small_check(&judged, "oracle")->status, CHECK_FAIL);
    ck_assert_msg(judged.has_diagnosis && !strcmp(judged.diagnosis.site, armed[_i].site), "%s is named", judged.has_diagnosis ? judged.diagnosis.site : "nothing");
    arena_free(judged.arena);
    small_run_free(&run);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("recompute");
    TCase *tcase = tcase_create("recompute");
    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, every_mode_gives_the_same_bits_and_holds_less, 0, (int)(sizeof layouts / sizeof layouts[0]));
    tcase_add_test(tcase, full_holds_one_layer);
    tcase_add_test(tcase, dropout_changes_the_run);
    tcase_add_loop_test(tcase, forward_bits_are_the_standalones, 0, 2);
    tcase_add_test(tcase, rng_sees_each_fact);
    tcase_add_test(tcase, memory_bound_sees_layers_that_stay);
    tcase_add_loop_test(tcase, sites_are_named, 0, 6);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
