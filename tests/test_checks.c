/* Checks: silent on healthy runs of every kind of layout; each fires when the one fact that it reads is changed in a
 * healthy record, with the site that such a fact stands for. */
#include <math.h>

#include "tests/small_run.h"

/* ---- silence ---- */

enum layout_bits {
    WITH_DDP = 1,
    WITH_TIED = 2,
    WITH_EACH = 4,
    WITH_SUM = 8,
    WITH_BIAS = 16,
    WITH_SGD = 32,
    WITH_FP64 = 64,
    WITH_GPIPE = 128,
    ONE_STAGE = 256,
    ONE_DATA = 512,
    ONE_MICROBATCH = 1024,
    WITH_EXPERTS = 1 << 11,     /* balanced in both ways */
    WITH_CAPACITY = 1 << 12,
    WITH_GROUPS = 1 << 13,
    WITH_SOFTMAX = 1 << 14,
    WITH_ROUNDED = 1 << 15
};

static struct run_config config_with(int bits)
{
    struct run_config config = small_config();
    if (bits & ONE_STAGE) {
        config.layout.pp = 1;
        config.layout.layers_per_stage[0] = config.model.layers;
    }
    if (bits & ONE_DATA) config.layout.dp_shard = 1;
    if (bits & WITH_DDP) small_config_ddp(&config);
    if (bits & ONE_MICROBATCH) config.layout.microbatches = 1;
    if (bits & WITH_EACH) config.layout.sync = SYNC_EACH_MICROBATCH;
    if (bits & WITH_SUM) config.layout.reduce_op = FSDP_REDUCE_SUM;
    if (bits & WITH_GPIPE) strcpy(config.layout.schedule, "GPipe");
    if (bits & WITH_FP64) config.precision = precision_of(FORMAT_FP64);
    if (bits & WITH_SGD) config.train.optimizer = OPTIMIZER_SGD;
    config.model.tie_embeddings = bits & WITH_TIED;
    /* Without RoPE a key bias has a gradient that is zero in exact arithmetic: noise on every rung. */
    config.model.bias = bits & WITH_BIAS;
    config.model.rope = !(bits & WITH_BIAS);
    if (!(bits & WITH_EXPERTS)) return config;
    struct moe_config *moe = &config.model.moe;
    *moe = (struct moe_config){.experts = 6, .top_k = 3, .expert_ffn = 7, .shared_ffn = 5, .dense = {2}, .normalize = MOE_NORMALIZE_SUM,
                               .routed_scaling = 1.3, .aux_loss_coeff = .3, .z_loss_coeff = .02, .balance = MOE_BALANCE_NOAUX_TC, .bias_update_rate = .003};
    moe->score = bits & WITH_SOFTMAX ? MOE_SCORE_SOFTMAX : MOE_SCORE_SIGMOID;
    moe->scores_bf16 = bits & WITH_ROUNDED;
    if (bits & WITH_CAPACITY) moe->capacity_factor = .7;
    moe->normalize_after_drop = bits & WITH_CAPACITY && bits & WITH_SOFTMAX;
    moe->drop = bits & WITH_TIED ? MOE_DROP_POSITION : MOE_DROP_PROBS;
    if (bits & WITH_GROUPS) {
        moe->groups = 3;
        moe->row_alignment = 5;
        moe->groups_chosen = 2;
    }
    return config;
}

static const int healthy[] = {0,
                              WITH_DDP,
                              WITH_TIED,
                              WITH_DDP | WITH_TIED | WITH_EACH | WITH_SUM,
                              WITH_EACH,
                              WITH_SUM | WITH_SGD,
                              WITH_BIAS,
                              WITH_FP64 | WITH_TIED,
                              WITH_GPIPE | WITH_EACH,
                              ONE_STAGE | WITH_TIED,
                              ONE_STAGE | ONE_DATA,
                              ONE_STAGE | ONE_DATA | ONE_MICROBATCH,
                              ONE_DATA | WITH_TIED,
                              ONE_MICROBATCH,
                              WITH_EXPERTS,
                              WITH_EXPERTS | WITH_CAPACITY | WITH_DDP,
                              WITH_EXPERTS | WITH_CAPACITY | WITH_SOFTMAX | WITH_SUM | WITH_FP64,
                              WITH_EXPERTS | WITH_CAPACITY | WITH_TIED | WITH_EACH | WITH_BIAS,
                              WITH_EXPERTS | WITH_GROUPS | WITH_ROUNDED | WITH_GPIPE,
                              WITH_EXPERTS | WITH_GROUPS | WITH_SOFTMAX | ONE_STAGE | ONE_DATA,
                              WITH_EXPERTS | ONE_MICROBATCH | WITH_SGD};

/* No check fires on a healthy run; oracle by the ladder where the screening limit is passed, and always again with the
 * ladder alone. */
START_TEST(silent_on_healthy_runs)
{
    struct run_config config = config_with(healthy[_i]);
    struct small_run run = small_run_new(&config, NULL, true);
    struct result result = small_judge(&run);
    for (int i = 0; i < result.checks_count; i++) {
        ck_assert_msg(result.checks[i].status != CHECK_FAIL, "layout %d: %s fires: %s", healthy[_i],
                      result.checks[i].id, result.checks[i].why);
    }
    arena_free(result.arena);
    small_run_free(&run);
}
END_TEST

/* ---- one changed fact ---- */

static struct small_run run;
static struct result judged;

static struct rank_record *rank_of(int rank)
{
    return &run.parallel->rank[rank];
}

static void begin(int bits)
{
    struct run_config config = config_with(bits);
    run = small_run_new(&config, NULL, false);
}

/* The check fires at this site (NULL: any) and this rank (-1: any) with this pattern ("": any). */
static void expect_finding(const char *id, const struct site *site, int rank, const char *pattern)
{
    judged = small_judge(&run);
    ck_assert_msg(small_check(&judged, id)->status == CHECK_FAIL, "%s does not fire", id);
    bool found = false;
    for (int i = 0; i < judged.findings_count; i++) {
        const struct finding *f = &judged.findings[i];
        found = found || (!strcmp(f->check, id) && (!site || f->site == site) && (rank < 0 || f->place.rank == rank) &&
                          (!pattern[0] || !strcmp(f->pattern, pattern)) && f->text[0]);
    }
    ck_assert_msg(found, "%s: no finding at %s, rank %d, pattern %s; it says: %s", id, site ? site->name : "-", rank,
                  pattern, small_check(&judged, id)->why);
    arena_free(judged.arena);
    small_run_free(&run);
}

START_TEST(oracle_sees_a_changed_parameter)
{
    begin(0);
    for (int i = 0; i < rank_of(1)->tensors.count; i++) {
        struct tensor_fact *fact = &rank_of(1)->tensors.items[i];
        if (fact->kind == TENSOR_PARAM && fact->step == 1 && fact->elements > 3) {
            float *values = (float *)(uintptr_t)fact->data;
            values[3] += 0.05f;
            break;
        }
    }
    expect_finding("oracle", &site_optimizer_update, 1, "altered");
}
END_TEST

START_TEST(oracle_sees_a_changed_activation)
{
    begin(0);
    for (int i = 0; i < rank_of(4)->sketches.count; i++) {
        struct sketch_fact *fact = &rank_of(4)->sketches.items[i];
        if (fact->kind != SKETCH_FORWARD_OUT || fact->unit != 4 || fact->step != 1) continue;
        for (int k = 0; k < 4; k++) fact->value[k] += 0.2 * sqrt(fact->value[4]);
        break;
    }
    expect_finding("oracle", &site_layer_forward, 4, "altered");
}
END_TEST

/* A wrong loss scale is no wrong backward: the gradient of an activation is judged per weight of its tokens. */
START_TEST(a_wrong_scale_is_no_wrong_backward)
{
    struct run_config config = small_config();
    struct small_fault fault = {"pp.loss.scale", "times", "1/M", 0, SMALL_EVERYWHERE};
    run = small_run_new(&config, &fault, true);
    judged = small_judge(&run);
    for (int i = 0; i < judged.findings_count; i++) {
        const struct finding *f = &judged.findings[i];
        ck_assert_msg(f->place.step != 0 || (f->site != &site_layer_backward && f->site != &site_layer_forward &&
                                             f->site != &site_layer_weight_gradient), "%s", f->text);
    }
    arena_free(judged.arena);
    small_run_free(&run);
}
END_TEST

START_TEST(row_identity_sees_another_sequence)
{
    begin(0);
    struct sample_fact *fact = &rank_of(2)->samples.items[1];
    ((int64_t *)(uintptr_t)fact->sequences)[0] += 1;
    expect_finding("row-identity", &site_data_sample, 2, "wrong-samples");
    begin(0);
    rank_of(5)->samples.items[3].token_hash ^= 1;
    expect_finding("row-identity", &site_data_sample, 5, "stages-differ");
    begin(0);
    rank_of(5)->samples.items[3].target_hash ^= 1;
    expect_finding("row-identity", &site_labels, 5, "other-targets");
}
END_TEST

START_TEST(version_sees_old_missing_and_altered_parameters)
{
    begin(0);
    rank_of(3)->versions.items[rank_of(3)->versions.count - 1].version_min--;
    expect_finding("version", &site_fsdp_unshard, 3, "mixed-versions");
    begin(0);
    rank_of(3)->versions.items[2].shards = 2;
    expect_finding("version", &site_fsdp_unshard, 3, "not-gathered");
    begin(0);
    ck_assert(rank_of(3)->versions.items[2].digest != 0);
    rank_of(3)->versions.items[2].digest ^= 1;
    expect_finding("version", &site_fsdp_unshard, 3, "altered");
}
END_TEST

static struct sketch_fact *sketch_of(int rank, enum sketch_kind kind)
{
    for (int i = 0; i < rank_of(rank)->sketches.count; i++) {
        if (rank_of(rank)->sketches.items[i].kind == kind) return &rank_of(rank)->sketches.items[i];
    }
    ck_abort_msg("no such sketch");
    return NULL;
}

START_TEST(poison_sees_what_was_not_sent)
{
    begin(0);
    struct sketch_fact *in = sketch_of(4, SKETCH_FORWARD_IN);
    memset(in->value, 0, sizeof in->value);
    expect_finding("poison", &site_pp_send_activation, 4, "zeros");
    begin(0);
    in = sketch_of(1, SKETCH_BACKWARD_IN);
    in->value[2] = nextafter(in->value[2], INFINITY);
    expect_finding("poison", &site_pp_send_grad, 1, "altered");
    begin(0);
    struct sketch_fact *first = sketch_of(4, SKETCH_FORWARD_IN), *other = first;
    while (other->kind != SKETCH_FORWARD_IN || other->sequence == first->sequence) other++;
    memcpy(first->value, other->value, sizeof first->value);
    expect_finding("poison", &site_pp_send_activation, 4, "other-microbatch");
    begin(0);
    struct sketch_fact *out = sketch_of(2, SKETCH_FORWARD_OUT);
    out->finite = false;
    expect_finding("poison", &site_layer_forward, 2, "not-finite");
}
END_TEST

START_TEST(token_weight_sees_a_token)
{
    begin(0);
    struct loss_fact *loss = &rank_of(4)->losses.items[2];
    double *weights = (double *)(uintptr_t)loss->token_weight;
    int at = 0;
    while (weights[at] == 0) at++;
    weights[at] *= 1.001;
    expect_finding("token-weight", &site_pp_loss_scale, 4, "");
    begin(0);
    loss = rank_of(4)->losses.items;
    while (loss->valid == loss->token_count) loss++;
    weights = (double *)(uintptr_t)loss->token_weight;
    at = 0;
    while (weights[at] != 0) at++;
    weights[at] = loss->seed;
    expect_finding("token-weight", &site_pp_loss_scale, 4, "ignored-tokens");
}
END_TEST

static struct gradient_fact *gradient_of(int rank, enum gradient_stage stage, int step, int unit)
{
    for (int i = 0; i < rank_of(rank)->gradients.count; i++) {
        struct gradient_fact *fact = &rank_of(rank)->gradients.items[i];
        if (fact->stage == stage && fact->step == step && fact->unit == unit) return fact;
    }
    ck_abort_msg("no such gradient");
    return NULL;
}

/* Numbers whose weight is not the one on their ledger. */
START_TEST(token_weight_sees_a_probe)
{
    begin(0);
    double *probe = (double *)(uintptr_t)gradient_of(1, GRADIENT_REDUCED, 0, 2)->probe;
    probe[4] *= 3;
    expect_finding("token-weight", &site_fsdp_reduce_grad, 1, "D");
}
END_TEST

START_TEST(scale_ledger_sees_each_factor)
{
    begin(0);
    rank_of(5)->losses.items[1].denominator *= 2;
    expect_finding("scale-ledger", &site_loss_denominator, 5, "");
    begin(0);
    rank_of(5)->losses.items[1].scale = 0.2;
    expect_finding("scale-ledger", &site_pp_loss_scale, 5, "1/M");
    begin(0);
    for (int i = 0; i < rank_of(4)->counts.count; i++) rank_of(4)->counts.items[i].valid_global /= 3;
    expect_finding("scale-ledger", &site_loss_token_count_reduce, 4, "D");
    begin(0);
    for (int i = 0; i < rank_of(0)->factors.count; i++) {
        if (rank_of(0)->factors.items[i].site == &site_fsdp_grad_divisor) rank_of(0)->factors.items[i].value = 9;
    }
    expect_finding("scale-ledger", &site_fsdp_grad_divisor, 0, "1/D");
    begin(0);
    ledger_scale(&gradient_of(1, GRADIENT_REDUCED, 0, 2)->ledger, 3);
    expect_finding("scale-ledger", &site_fsdp_reduce_grad, 1, "D");
}
END_TEST

static void drop_microbatch(struct ledger *ledger, int microbatch)
{
    int kept = 0;
    for (int i = 0; i < ledger->count; i++) {
        if (ledger->terms[i].origin.microbatch != microbatch) ledger->terms[kept++] = ledger->terms[i];
    }
    ledger->count = kept;
}

static void drop_rank(struct ledger *ledger, int data_rank)
{
    int kept = 0;
    for (int i = 0; i < ledger->count; i++) {
        if (ledger->terms[i].origin.rank != data_rank) ledger->terms[kept++] = ledger->terms[i];
    }
    ledger->count = kept;
}

START_TEST(contribution_sees_each_station)
{
    begin(0);
    rank_of(2)->syncs.items[0].synced = rank_of(2)->syncs.items[0].asked = true;
    expect_finding("contribution", &site_fsdp_sync_now, 2, "early");
    begin(0);
    rank_of(2)->syncs.items[0].synced = true; /* nobody asked for it */
    expect_finding("contribution", &site_dp_sync_now, 2, "early");
    begin(0);
    drop_microbatch(&gradient_of(2, GRADIENT_LOCAL, 0, 1)->ledger, 3);
    expect_finding("contribution", &site_pp_grad_clear, 2, "missing-microbatch");
    begin(0);
    ledger_add_term(&gradient_of(2, GRADIENT_LOCAL, 1, 1)->ledger, (struct origin){0, 2, 4, 0}, 1, 1);
    expect_finding("contribution", &site_pp_grad_clear, 2, "earlier-step");
    begin(0);
    drop_microbatch(&gradient_of(2, GRADIENT_REDUCED, 0, 1)->ledger, 3);
    expect_finding("contribution", &site_fsdp_reduce_grad, 2, "missing-microbatch"); /* taken over in time */
    begin(0);
    drop_microbatch(&gradient_of(2, GRADIENT_REDUCED, 0, 1)->ledger, 3);
    for (int i = 0; i < rank_of(2)->factors.count; i++) rank_of(2)->factors.items[i].during++;
    expect_finding("contribution", &site_pp_grad_flush, 2, "missing-microbatch");
    begin(0);
    drop_rank(&gradient_of(2, GRADIENT_REDUCED, 0, 1)->ledger, 1);
    expect_finding("contribution", &site_fsdp_reduce_grad, 2, "missing-ranks");
    begin(0);
    gradient_of(2, GRADIENT_REDUCED, 0, 1)->ledger.terms[1].times = 2;
    expect_finding("contribution", &site_fsdp_reduce_grad, -1, "doubled-ranks");
    begin(0);
    gradient_of(2, GRADIENT_LOCAL, 0, 1)->sketch[1] += 0.1 * sqrt(gradient_of(2, GRADIENT_LOCAL, 0, 1)->sketch[4]);
    expect_finding("contribution", &site_fsdp_reduce_grad, -1, "altered");
}
END_TEST

START_TEST(contribution_sees_a_tied_use)
{
    begin(WITH_TIED);
    struct ledger *ledger = &gradient_of(1, GRADIENT_REDUCED, 0, 0)->ledger;
    int kept = 0;
    for (int i = 0; i < ledger->count; i++) {
        if (ledger->terms[i].origin.part == 0) ledger->terms[kept++] = ledger->terms[i];
    }
    ledger->count = kept;
    expect_finding("contribution", &site_tied_grad_reduce, 1, "one-use");
}
END_TEST

START_TEST(grad_norm_sees_norm_and_coefficient)
{
    begin(0);
    rank_of(3)->norms.items[0].norm *= 1.01;
    expect_finding("grad-norm", &site_clip_norm_reduce, 3, "other-sum");
    begin(0);
    rank_of(3)->norms.items[0].coefficient *= 0.2;
    expect_finding("grad-norm", &site_clip_coefficient, 3, "1/M");
    begin(0);
    rank_of(3)->norms.items[0].norm = nextafter(rank_of(3)->norms.items[0].norm, 0);
    expect_finding("grad-norm", &site_clip_norm_reduce, 3, "copies-differ");
}
END_TEST

START_TEST(update_coverage_counts_updates)
{
    begin(0);
    rank_of(4)->updates.items[0].updates = 2;
    expect_finding("update-coverage", &site_optimizer_entries, 4, "updated-twice");
    begin(0);
    rank_of(4)->updates.items[0].updates = 0;
    expect_finding("update-coverage", &site_optimizer_owns, 4, "not-updated");
    begin(0);
    rank_of(4)->updates.count--;
    expect_finding("update-coverage", &site_optimizer_owns, 4, "not-updated");
}
END_TEST

static struct tensor_fact *tensor_of(int rank, enum tensor_kind kind, int step, int param)
{
    for (int i = 0; i < rank_of(rank)->tensors.count; i++) {
        struct tensor_fact *fact = &rank_of(rank)->tensors.items[i];
        if (fact->kind == kind && fact->step == step && fact->param == param) return fact;
    }
    ck_abort_msg("no such tensor");
    return NULL;
}

START_TEST(replica_equality_sees_one_bit)
{
    begin(WITH_DDP);
    tensor_of(1, TENSOR_GRADIENT, 1, 3)->digest[0] ^= 1;
    expect_finding("replica-equality", &site_dp_all_reduce_grad, 1, "copies-differ");
    begin(WITH_DDP);
    tensor_of(1, TENSOR_PARAM, 1, 3)->digest[1] ^= 1;
    expect_finding("replica-equality", &site_optimizer_update, 1, "copies-differ");
    begin(WITH_TIED);
    tensor_of(4, TENSOR_GRADIENT, 0, 0)->digest[0] ^= 1;
    expect_finding("replica-equality", &site_tied_grad_reduce, 1, "one-use");
}
END_TEST

START_TEST(memory_bound_counts_what_is_held)
{
    begin(0);
    rank_of(1)->microbatches_peak = 9;
    expect_finding("memory-bound", &site_pp_schedule, 1, "holds-more");
    begin(0);
    rank_of(2)->unsharded_peak = 9;
    expect_finding("memory-bound", &site_pp_schedule, 2, "holds-more");
    begin(0);
    rank_of(1)->optimizer_bytes += 4;
    expect_finding("memory-bound", NULL, 1, "bytes");
    begin(WITH_DDP);
    rank_of(1)->grad_bytes -= 4;
    expect_finding("memory-bound", NULL, 1, "bytes");
}
END_TEST

START_TEST(determinism_sees_another_digest)
{
    begin(0);
    struct record *record = run.parallel;
    struct repeat repeats[2] = {{"another order", {record->digest[0], record->digest[1]}}, {"another path", {record->digest[0], record->digest[1]}}};
    struct evidence evidence = {&record->config, run.parallel, run.standalone, NULL, NULL, NULL, 2, repeats, NULL, NULL, NULL};
    struct check_result result;
    struct finding findings[4];
    ck_assert_int_eq(check_run_alone(check_find_by_id("determinism"), &evidence, &result, findings, 4), 0);
    ck_assert_int_eq(result.status, CHECK_PASS);
    repeats[1].digest[1] ^= 1;
    ck_assert_int_eq(check_run_alone(check_find_by_id("determinism"), &evidence, &result, findings, 4), 1);
    ck_assert_str_eq(findings[0].pattern, "not-repeatable");
    evidence.repeats_count = 0;
    check_run_alone(check_find_by_id("determinism"), &evidence, &result, findings, 4);
    ck_assert_int_eq(result.status, CHECK_SKIP);
    small_run_free(&run);
}
END_TEST

START_TEST(shard_cover_sees_gap_and_overlap)
{
    begin(0);
    tensor_of(1, TENSOR_PARAM, 0, 0)->elements--;
    expect_finding("shard-cover", &site_fsdp_unshard, -1, "gap");
    begin(0);
    tensor_of(1, TENSOR_PARAM, 0, 0)->first--;
    expect_finding("shard-cover", &site_fsdp_unshard, 1, "overlap");
}
END_TEST

/* Each station of the print. */
START_TEST(logged_loss_names_the_station)
{
    begin(0);
    for (int i = 0; i < rank_of(1)->reports.count; i++) rank_of(1)->reports.items[i].logged *= 1.001;
    expect_finding("logged-loss", &site_loss_report_broadcast, 1, "");
    begin(0);
    rank_of(2)->reports.items[0].logged *= 5;
    rank_of(2)->reports.items[0].scale = 5;
    expect_finding("logged-loss", &site_metrics_loss, 2, "M");
    begin(0);
    rank_of(4)->losses.items[3].logged = 0;
    expect_finding("logged-loss", &site_loss_report, 4, "0");
    begin(0);
    rank_of(5)->counts.items[0].valid_global += 1;
    expect_finding("logged-loss", &site_loss_token_count_reduce, 5, "");
}
END_TEST

/* A report that is wrong by itself has its site; one that follows from a wrong denominator has none. */
START_TEST(logged_loss_sees_the_report)
{
    begin(0);
    for (int i = 0; i < rank_of(3)->reports.count; i++) rank_of(3)->reports.items[i].logged /= 2;
    expect_finding("logged-loss", &site_loss_report_reduce, 3, "1/P");
    begin(0);
    for (int r = 3; r < 6; r++) {
        for (int i = 0; i < rank_of(r)->losses.count; i++) {
            rank_of(r)->losses.items[i].denominator *= 2;
            rank_of(r)->losses.items[i].logged /= 2;
        }
    }
    for (int r = 0; r < 6; r++) {
        for (int i = 0; i < rank_of(r)->reports.count; i++) rank_of(r)->reports.items[i].logged /= 2;
    }
    judged = small_judge(&run);
    ck_assert_int_eq(small_check(&judged, "logged-loss")->status, CHECK_FAIL);
    for (int i = 0; i < judged.findings_count; i++) ck_assert(judged.findings[i].site != &site_loss_report_reduce);
    arena_free(judged.arena);
    small_run_free(&run);
}
END_TEST

START_TEST(liveness_sees_what_is_left_over)
{
    begin(0);
    rank_of(2)->unwaited = 3;
    expect_finding("liveness", NULL, 2, "unwaited");
    begin(0);
    run.parallel->unreceived = 1;
    strcpy(run.parallel->unreceived_text, "rank 1 to rank 4: send (pp.send_activation)");
    expect_finding("liveness", &site_pp_send_activation, -1, "unreceived");
}
END_TEST

static void run_fault(struct run_config config, const char *site, const char *deviation, const char *text, int rank)
{
    struct small_fault fault = {site, deviation, text, 0, rank, -1, -1, -1};
    run = small_run_new(&config, &fault, false);
    ck_assert(run.hits > 0);
}

/* Two stages that both send first, blocking: every rank of the cycles, both sides, and what to swap. */
START_TEST(liveness_sees_a_cycle)
{
    struct run_config config = small_config();
    config.layout.send_sync = true;
    config.layout.pp = 3;
    config.layout.layers_per_stage[0] = 2;
    config.layout.layers_per_stage[2] = 1;
    struct small_fault fault = {"pp.send_activation", "swap-order", NULL, 0, 4, -1, -1, -1};
    run = small_run_new(&config, &fault, false);
    ck_assert_int_eq(run.parallel->outcome, MACHINE_DEADLOCK);
    judged = small_judge(&run);
    ck_assert_int_eq(small_check(&judged, "oracle")->status, CHECK_SKIP);
    ck_assert_ptr_nonnull(strstr(small_check(&judged, "liveness")->why, "swap the send"));
    ck_assert_str_eq(judged.diagnosis.component, "pp.send_activation");
    arena_free(judged.arena);
    small_run_free(&run);
}
END_TEST

/* A rank that leaves a reduction out: its later calls are right calls under wrong numbers. */
START_TEST(collective_match_names_the_call_left_out)
{
    run_fault(small_config(), "fsdp.reduce_grad", "skip", NULL, 1);
    expect_finding("collective-match", &site_fsdp_reduce_grad, 1, "calls-differ");
}
END_TEST

/* Of the run that is there: these checks fail (1) or pass (0). */
static void expect_status(const char *first, bool first_fails, const char *second, bool second_fails)
{
    judged = small_judge(&run);
    ck_assert_msg((small_check(&judged, first)->status == CHECK_FAIL) == first_fails, "%s: %s", first, small_check(&judged, first)->why);
    ck_assert_msg((small_check(&judged, second)->status == CHECK_FAIL) == second_fails, "%s: %s", second, small_check(&judged, second)->why);
    arena_free(judged.arena);
}

/* What all members agree on, and what a call does to its own input. */
START_TEST(collective_match_sees_root_group_and_alias)
{
    run_fault(small_config(), "loss.report_broadcast", "wrong-root", NULL, -1);
    expect_finding("collective-match", &site_loss_report_broadcast, 5, "wrong-root");
    run_fault(small_config(), "fsdp.unshard", "wrong-group", "self", -1);
    expect_finding("collective-match", &site_fsdp_unshard, 2, "wrong-group");
    run_fault(small_config(), "fsdp.unshard", "alias", NULL, 1);
    expect_status("race", false, "collective-match", true);
    expect_finding("collective-match", &site_fsdp_unshard, 1, "aliased");
}
END_TEST

/* Both ends of an asynchronous call; a call whose result is wrong for another reason is none. */
START_TEST(race_names_call_and_reader)
{
    static const struct { const char *site, *deviation, *pattern; } cases[] = {
        {"fsdp.unshard", "late", "read-early"}, {"fsdp.unshard", "torn", "read-early"},
        {"fsdp.reduce_grad", "late", "read-early"}, {"fsdp.reduce_grad", "reuse-buffer", "overwritten"},
        {"fsdp.reduce_grad", "free-source", "overwritten"}, {"fsdp.reduce_grad", "corrupt", NULL},
    };
    run_fault(small_config(), cases[_i].site, cases[_i].deviation, NULL, 4);
    judged = small_judge(&run);
    for (int i = 0; i < judged.findings_count; i++) {
        if (!strcmp(judged.findings[i].check, "race")) ck_assert_int_eq(judged.findings[i].place.rank, 4);
    }
    arena_free(judged.arena);
    expect_status("race", cases[_i].pattern != NULL, "oracle", true);
    if (cases[_i].pattern) expect_finding("race", model_site_find(cases[_i].site), 4, cases[_i].pattern);
    else small_run_free(&run);
}
END_TEST

/* An average that is off by roundings alone, whatever order its algorithm adds in. */
START_TEST(precision_sees_an_average_of_parts)
{
    for (int fold = 0; fold < 2; fold++) {
        struct run_config config = small_config();
        strcpy(config.layout.all_reduce, fold ? "fold" : "ring");
        config.train.steps = 4;
        run_fault(config, "loss.report_reduce", "average-first", NULL, -1);
        expect_status("precision", true, "logged-loss", false);
        expect_finding("precision", &site_loss_report_reduce, -1, "rounded");
    }
}
END_TEST

/* ---- the list ---- */

START_TEST(lists_select)
{
    struct check_selection selection;
    struct error error = {0};
    ck_assert(check_select(NULL, &selection, &error) && selection.taken[0] && !selection.deep);
    ck_assert(check_select("deep", &selection, &error) && selection.taken[1] && selection.deep);
    ck_assert(check_select("version,liveness", &selection, &error));
    for (int i = 0; i < check_count(); i++) {
        bool named = !strcmp(check_at(i)->id, "version") || !strcmp(check_at(i)->id, "liveness");
        ck_assert_int_eq(selection.taken[i], named);
    }
    ck_assert(check_select("-oracle", &selection, &error) && !selection.taken[0] && selection.taken[1]);
    ck_assert(check_select("default,-oracle", &selection, &error) && !selection.taken[0] && selection.taken[1]);
    ck_assert(!check_select("orakel", &selection, &error));
    ck_assert_int_eq(error.kind, ERROR_INPUT);
}
END_TEST

/* Every check says what it proves, once. */
START_TEST(registry_is_whole)
{
    for (int i = 0; i < check_count(); i++) {
        const struct check *check = check_at(i);
        ck_assert(check->id[0] && strlen(check->proves) > 40 && check->run);
        ck_assert_ptr_eq(check_find_by_id(check->id), check);
    }
    ck_assert_ptr_null(check_find_by_id("nothing"));
    ck_assert_ptr_null(check_at(check_count()));
}
END_TEST

/* ---- experts: one changed fact of a layer's routing ---- */

static struct routing_fact *routing_of(int rank)
{
    for (int i = 0; i < rank_of(rank)->routings.count; i++) {
        struct routing_fact *fact = &rank_of(rank)->routings.items[i];
        if (fact->step == 1 && fact->microbatch == 2) return fact;
    }
    return NULL;
}

#define WRITABLE(type, field) ((type *)(uintptr_t)(field))

enum routing_change {
    CHANGED_SCORE, CHANGED_CHOICE, CHANGED_WEIGHT, CHANGED_BALANCING, CHANGED_Z, CHANGED_GATE, CHANGED_ROOM, CHANGED_ROW, CHANGED_BACK,
    CHANGED_BOUNDS, CHANGED_SUM, CHANGED_FROM, CHANGED_IN, CHANGED_COUNTED, CHANGED_SUMMED, CHANGED_BIAS, CHANGED_UPDATES, CHANGED_SCALE, CHANGED_COPY,
    CHANGED_KEPT, ROUTING_CHANGES
};

static const struct { const char *check; const struct site *site; const char *pattern; } routing_findings[ROUTING_CHANGES] = {
    [CHANGED_SCORE] = {"routing", &site_moe_scores, "altered"}, [CHANGED_CHOICE] = {"routing", &site_moe_tie, "other-choice"},
    [CHANGED_WEIGHT] = {"routing", &site_moe_routed_scaling, "altered"}, [CHANGED_BALANCING] = {"routing", &site_moe_aux_top_k, "top-k-factor"},
    [CHANGED_Z] = {"routing", &site_moe_aux_score, "altered"}, [CHANGED_GATE] = {"routing", &site_moe_gate_gradient, "altered"},
    [CHANGED_ROOM] = {"conservation", &site_moe_capacity_top_k, "capacity"}, [CHANGED_ROW] = {"conservation", &site_moe_locations, "lost"},
    [CHANGED_BACK] = {"row-identity", &site_moe_unpermute, "wrong-inverse"}, [CHANGED_BOUNDS] = {"conservation", &site_moe_expert_rows, "offset"},
    [CHANGED_SUM] = {"conservation", &site_moe_combine, "altered"}, [CHANGED_FROM] = {"row-identity", &site_moe_token_index, "other-token"},
    [CHANGED_IN] = {"row-identity", &site_moe_dispatch, "altered"}, [CHANGED_COUNTED] = {"counters", &site_moe_count_padding, "altered"},
    [CHANGED_SUMMED] = {"counters", &site_ep_count_reduce, "altered"}, [CHANGED_BIAS] = {"counters", &site_moe_bias, "altered"},
    [CHANGED_UPDATES] = {"update-coverage", &site_moe_update_bias, "not-updated"}, [CHANGED_SCALE] = {"scale-ledger", &site_moe_aux_scale, "M"},
    [CHANGED_COPY] = {"replica-equality", &site_moe_bias, "copies-differ"}, [CHANGED_KEPT] = {"conservation", &site_moe_drop_policy, "other-pairs"},
};

/* Exchanges two pairs of one expert, of which one has room and the other has none. */
static void exchange_kept(struct routing_fact *fact)
{
    uint8_t *kept = WRITABLE(uint8_t, fact->kept);
    for (int64_t i = 0; i < fact->tokens * fact->top_k; i++) {
        for (int64_t n = 0; n < i; n++) {
            if (fact->chosen[n] != fact->chosen[i] || kept[n] == kept[i]) continue;
            kept[n] = !kept[n];
            kept[i] = !kept[i];
            return;
        }
    }
    ck_abort_msg("nothing was dropped");
}

static void change_balance(enum routing_change what, struct balance_fact *fact)
{
    if (what == CHANGED_SUMMED) WRITABLE(double, fact->summed)[4] += 1;
    if (what == CHANGED_BIAS || what == CHANGED_COPY) WRITABLE(double, fact->after)[4] += .001;
    if (what == CHANGED_UPDATES) fact->updates = 2;
}

START_TEST(routing_is_seen_through)
{
    enum routing_change what = (enum routing_change)_i;
    begin(WITH_EXPERTS | (what == CHANGED_ROOM || what == CHANGED_KEPT ? WITH_CAPACITY : 0));
    struct routing_fact *fact = routing_of(4);
    ck_assert(fact && fact->whole && fact->backward);
    switch (what) {
    case CHANGED_SCORE: WRITABLE(double, fact->score)[17] *= 1.001; break;
    case CHANGED_CHOICE: {
        int32_t *chosen = WRITABLE(int32_t, fact->chosen), first = chosen[9];
        chosen[9] = chosen[10];
        chosen[10] = first;
        break;
    }
    case CHANGED_WEIGHT: WRITABLE(double, fact->weight)[11] *= 1.002; break;
    case CHANGED_BALANCING: WRITABLE(double, fact->aux)[0] *= fact->top_k; break;
    case CHANGED_Z: WRITABLE(double, fact->z)[0] *= 1.01; break;
    case CHANGED_GATE: WRITABLE(double, fact->gate)[5] += 1e-9; break;
    case CHANGED_ROOM:
        for (int64_t i = 0; i < fact->tokens * fact->top_k; i++) {
            if (!fact->kept[i]) continue;
            WRITABLE(uint8_t, fact->kept)[i] = 0;
            break;
        }
        break;
    case CHANGED_ROW: WRITABLE(int32_t, fact->slot)[3] = fact->slot[4]; break;
    case CHANGED_BACK: WRITABLE(int32_t, fact->back)[3] = fact->back[4]; break;
    case CHANGED_BOUNDS: fact->bounds = memcpy(arena_alloc(rank_of(4)->arena, 7 * sizeof(int64_t)), fact->bounds, 7 * sizeof(int64_t));
        WRITABLE(int64_t, fact->bounds)[2]++;
        break;
    case CHANGED_SUM: WRITABLE(double, fact->routed)[6] *= 1.01; break;
    case CHANGED_FROM: WRITABLE(int32_t, fact->from)[8] += fact->from[8] ? -1 : 1; break;
    case CHANGED_IN: WRITABLE(double, fact->in)[8] += 1e-9; break;
    case CHANGED_COUNTED: WRITABLE(int64_t, fact->counted)[2]++; break;
    case CHANGED_SCALE: fact->aux_scale[0] *= 5; break;
    case CHANGED_KEPT: exchange_kept(fact); break;
    default: change_balance(what, &rank_of(4)->balances.items[rank_of(4)->balances.count - 1]); break;
    }
    expect_finding(routing_findings[what].check, routing_findings[what].site, 4, routing_findings[what].pattern);
}
END_TEST

/* ---- sites of routers and generators, armed: found by a check, at the site ---- */

static const struct { int bits; const char *site, *deviation, *text; int rank; const char *check, *pattern; } armed_sites[] = {
    {WITH_EXPERTS, "moe.choice_bias", "never", NULL, -1, "routing", "without-bias"},
    {WITH_EXPERTS | WITH_CAPACITY | WITH_TIED, "moe.slot_order", "never", NULL, -1, "conservation", "choices-first"},
    {WITH_EXPERTS | ONE_STAGE, "moe.counts", "round", "bf16", 2, "counters", "rounded"},
    {WITH_EXPERTS, "moe.count_again", "always", NULL, 1, "counters", "counted-again"},
    {WITH_EXPERTS, "moe.aux_scale", "omit", NULL, -1, "scale-ledger", "without-tokens"},
    {0, "dropout.generator", "never", NULL, 4, "rng", "moved-on"},
};

/* Each where the healthy run of the same scenario has nothing. */
START_TEST(armed_sites_are_named)
{
    struct run_config config = config_with(armed_sites[_i].bits);
    if (strcmp(armed_sites[_i].site, "moe.choice_bias") == 0) config.model.moe.bias_update_rate = .05;
    if (strcmp(armed_sites[_i].site, "moe.counts") == 0) {
        config.model.moe.experts = 4; /* more than 256 tokens each on a data rank, which bf16 has no numbers for one by one */
        config.train.global_batch = 75;
    }
    if (strcmp(armed_sites[_i].site, "moe.count_again") == 0) config.layout.recompute.mode = RECOMPUTE_FULL;
    if (strcmp(armed_sites[_i].site, "moe.aux_scale") == 0) {
        config.layout.reduce_op = FSDP_REDUCE_SUM;
        while (strcmp(loss_convention_of(&config)->name, "megatron_per_token") != 0) config.train.loss_normalization++;
    }
    if (strcmp(armed_sites[_i].site, "dropout.generator") == 0) config.model.dropout = .2;
    run = small_run_new(&config, NULL, false);
    judged = small_judge(&run);
    ck_assert_msg(small_check(&judged, armed_sites[_i].check)->status == CHECK_PASS, "%s", small_check(&judged, armed_sites[_i].check)->why);
    arena_free(judged.arena);
    small_run_free(&run);
    run_fault(config, armed_sites[_i].site, armed_sites[_i].deviation, armed_sites[_i].text, armed_sites[_i].rank);
    expect_finding(armed_sites[_i].check, model_site_find(armed_sites[_i].site), armed_sites[_i].rank, armed_sites[_i].pattern);
}
END_TEST

/* Nothing to look at is no pass. */
START_TEST(routing_without_notes_is_skipped)
{
    begin(WITH_EXPERTS);
    for (int r = 0; r < run.parallel->ranks; r++) {
        for (int i = 0; i < rank_of(r)->routings.count; i++) rank_of(r)->routings.items[i].whole = false;
    }
    const char *ids[] = {"routing", "conservation"};
    for (int i = 0; i < 2; i++) {
        struct evidence evidence = {&run.parallel->config, run.parallel, run.standalone, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL};
        struct check_result result;
        struct finding findings[1];
        ck_assert_int_eq(check_run_alone(check_find_by_id(ids[i]), &evidence, &result, findings, 1), 0);
        ck_assert_int_eq(result.status, CHECK_SKIP);
    }
    small_run_free(&run);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("checks");
    TCase *silent = tcase_create("silent"), *fire = tcase_create("fire");
    tcase_add_loop_test(silent, silent_on_healthy_runs, 0, (int)(sizeof healthy / sizeof healthy[0]));
    tcase_add_test(silent, registry_is_whole);
    tcase_add_test(silent, lists_select);
    tcase_add_test(fire, oracle_sees_a_changed_parameter);
    tcase_add_test(fire, oracle_sees_a_changed_activation);
    tcase_add_test(fire, a_wrong_scale_is_no_wrong_backward);
    tcase_add_test(fire, row_identity_sees_another_sequence);
    tcase_add_test(fire, version_sees_old_missing_and_altered_parameters);
    tcase_add_test(fire, poison_sees_what_was_not_sent);
    tcase_add_test(fire, token_weight_sees_a_token);
    tcase_add_test(fire, token_weight_sees_a_probe);
    tcase_add_test(fire, scale_ledger_sees_each_factor);
    tcase_add_test(fire, contribution_sees_each_station);
    tcase_add_test(fire, contribution_sees_a_tied_use);
    tcase_add_test(fire, grad_norm_sees_norm_and_coefficient);
    tcase_add_test(fire, update_coverage_counts_updates);
    tcase_add_test(fire, replica_equality_sees_one_bit);
    tcase_add_test(fire, memory_bound_counts_what_is_held);
    tcase_add_test(fire, determinism_sees_another_digest);
    tcase_add_test(fire, shard_cover_sees_gap_and_overlap);
    tcase_add_test(fire, logged_loss_names_the_station);
    tcase_add_test(fire, logged_loss_sees_the_report);
    tcase_add_test(fire, liveness_sees_what_is_left_over);
    tcase_add_test(fire, liveness_sees_a_cycle);
    tcase_add_test(fire, collective_match_names_the_call_left_out);
    tcase_add_test(fire, collective_match_sees_root_group_and_alias);
    tcase_add_loop_test(fire, race_names_call_and_reader, 0, 6);
    tcase_add_test(fire, precision_sees_an_average_of_parts);
    tcase_add_test(fire, routing_without_notes_is_skipped);
    tcase_add_loop_test(fire, routing_is_seen_through, 0, ROUTING_CHANGES);
    tcase_add_loop_test(fire, armed_sites_are_named, 0, (int)(sizeof armed_sites / sizeof armed_sites[0]));
    tcase_set_timeout(silent, 120);
    tcase_set_timeout(fire, 120);
    suite_add_tcase(suite, silent);
    suite_add_tcase(suite, fire);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
