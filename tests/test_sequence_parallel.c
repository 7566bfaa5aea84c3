/* sequence_parallel: slices between tensor-parallel parts change nothing but where the numbers lie.
 *
 * tp 2, 3 x pp 1, 2 x zero 0, 3 x one or two sequences a micro-batch x attention with heads of its own, grouped, normalized, latent, with
 * biases, tied embeddings, dropout, recomputation, adapters, experts (balanced, with auxiliary losses, with room for some,
 * spread over data ranks or over them and tp) by turns: every check is silent in fp64 and in fp32, and in fp64 every
 * gradient is that of one rank to 1e-11.
 * Where sums are made in member order (fold), losses, and the gradients of what tensor parallelism cuts, have the bits that they
 * have without slices. What stages send is the slice; what is held is less. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/params.h"
#include "model/sites.h"
#include "scenarios/experiment.h"
#include "scenarios/fault.h"
#include "scenarios/result.h"
#include "tests/support/run_suite.h"

static uint8_t text[1 << 16];
static int64_t text_bytes;

enum { GROUPED = 1, LATENT = 2, NO_QUERY_RANK = 4, BIAS = 8, TIED = 16, DROPOUT = 32, FULL = 64, WITHIN = 128, ADAPTER = 256, HSDP = 512, EXPERTS = 1024, BALANCED = 2048, ROOM = 4096, SPREAD = 8192, HEAD_NORMS = 16384, KINDS = 14 };
static const int kinds[KINDS] = {0, GROUPED | BIAS | HEAD_NORMS, LATENT | BIAS | DROPOUT, TIED | DROPOUT | FULL, LATENT | NO_QUERY_RANK | WITHIN, BIAS | TIED | WITHIN | GROUPED,
                                 LATENT | FULL | DROPOUT | TIED, ADAPTER | DROPOUT | BIAS | FULL, HSDP | GROUPED | ADAPTER | HEAD_NORMS,
                                 EXPERTS | BALANCED | BIAS | DROPOUT, EXPERTS | ROOM | LATENT | FULL, EXPERTS | ROOM | BALANCED | WITHIN | LATENT | HSDP,
                                 EXPERTS | SPREAD | BALANCED | BIAS | HSDP, EXPERTS | SPREAD | ROOM | FULL | DROPOUT};

static struct scenario make(int tp, int pp, int zero, int sequences, int kind, enum format format)
{
    struct scenario s = {.config = {.seed = 5, .precision = precision_of(format),
        .model = {.layers = 3, .dim = 14, .heads = 6, .kv_heads = kind & GROUPED ? tp : 6, .head_dim = 4, .ffn = 18, .vocab = 258, .seq = 18, .causal = true,
                  .rope = !(kind & WITHIN), .bias = kind & BIAS, .qk_norm = kind & HEAD_NORMS, .tie_embeddings = kind & TIED, .norm_eps = 1e-5, .rope_base = 10000,
                  .dropout = kind & DROPOUT ? 0.21 : 0},
        .data = {text, text_bytes, PACKING_DOCUMENTS},
        .train = {.steps = 2, .optimizer = OPTIMIZER_ADAMW, .lr = 1e-3, .beta1 = .9, .beta2 = .95, .eps = 1e-8, .weight_decay = .1, .grad_clip = 1},
        .layout = {.pp = pp, .dp_replicate = kind & HSDP ? 2 : 1, .dp_shard = zero || kind & SPREAD ? 2 : 1, .tp = tp, .microbatches = 2, .schedule = "1F1B", .zero = zero,
                   .reshard_after_forward = zero == 3, .sequence_parallel = true},
        .machine = {8, 400, 3, 400, 8, 50}}};
    struct run_config *c = &s.config;
    if (kind & LATENT) {
        c->model.attention = ATTENTION_MLA;
        c->model.mla = (struct mla_config){kind & NO_QUERY_RANK ? 0 : 5, 7};
    }
    if (kind & FULL) c->layout.recompute.mode = RECOMPUTE_FULL;
    if (kind & WITHIN) c->layout.recompute = (struct recompute){RECOMPUTE_SELECTIVE, kind & LATENT ? RECOMPUTE_DENSE_MLA_QKV : 0};
    if (kind & ADAPTER) {
        c->model.adapter_rows = 5;
        c->model.adapter_used = ADAPTER_FIRST_MICROBATCH;
    }
    if (kind & EXPERTS) {
        c->model.moe = (struct moe_config){.experts = 5, .top_k = 2, .expert_ffn = 7, .shared_ffn = kind & HSDP ? 0 : 12, .dense = {1}, .routed_scaling = 1.5, .groups = 1, .groups_chosen = 1,
            .balance = kind & BALANCED ? MOE_BALANCE_NOAUX_TC : MOE_BALANCE_NONE, .bias_update_rate = .01, .aux_loss_coeff = .2, .z_loss_coeff = .01,
            .capacity_factor = kind & ROOM ? .8 : 0, .drop = kind & FULL ? MOE_DROP_POSITION : MOE_DROP_PROBS, .normalize_after_drop = kind & BALANCED, .row_alignment = 1 + tp};
        if (kind & SPREAD) {
            c->layout.experts_over_tp = kind & FULL;
            c->layout.ep = kind & FULL ? tp : 2;
            c->layout.dispatcher = zero ? DISPATCH_ALL_GATHER : DISPATCH_ALL_TO_ALL;
            c->model.moe.experts = 6;
        }
        c->model.initial = INITIAL_PYTORCH;
        if (kind & WITHIN) c->layout.recompute.parts |= RECOMPUTE_MOE_PERMUTE | RECOMPUTE_MOE_ACTIVATION | RECOMPUTE_MOE_RMSNORM | RECOMPUTE_MOE_MLA_QKV;
    }
    for (int i = 0; i < pp; i++) c->layout.layers_per_stage[i] = pp == 1 ? 3 : 1 + i;
    c->train.global_batch = sequences * 2 * layout_data_ranks(&c->layout);
    return s;
}

static const char *describe(const struct run_config *c, int kind)
{
    static char name[160];
    snprintf(name, sizeof name, "tp %d pp %d zero %d batch %d kind %x %s", c->layout.tp, c->layout.pp, c->layout.zero, c->train.global_batch, (unsigned)kind,
             format_traits[run_storage(c)].name);
    return name;
}

static struct result *run(const struct scenario *s, const char *checks)
{
    struct experiment_options options = {.train = {.threads = 1}, .checks = checks};
    struct error error = {0};
    struct result *result = experiment_run(s, &options, &error);
    ck_assert_msg(result != NULL, "%s", error.message);
    return result;
}

static void hold(const struct result *result, const char *name)
{
    for (int c = 0; c < result->checks_count; c++)
        ck_assert_msg(result->checks[c].status != CHECK_FAIL, "%s: %s: %s", name, result->checks[c].id, result->checks[c].why);
    ck_assert_msg(result->verdict == VERDICT_CONSISTENT, "%s: %s", name, verdict_names[result->verdict]);
}

START_TEST(every_layout_is_consistent)
{
    int turn = 0;
    for (int k = 0; k < KINDS; k++) {
        for (int bits = 0; bits < 16; bits++) {
            int zero = bits & 4 ? 3 : 0;
            if (turn++ % 3 == 2 && bits > 3) continue; /* two of three of the larger ones */
            struct scenario s = make(2 + (bits & 1), 1 + (bits >> 1 & 1), zero, 1 + (bits >> 3), kinds[k], turn % 2 ? FORMAT_FP64 : FORMAT_FP32);
            struct result *result = run(&s, turn % 5 ? "default" : "deep");
            const char *name = describe(&s.config, kinds[k]);
            hold(result, name);
            for (int i = 0; turn % 2 && i < result->steps_count; i++) {
                ck_assert_msg(result->steps[i].max_grad_rel_err <= 1e-11, "%s: a gradient of step %d is off by %g", name, i, result->steps[i].max_grad_rel_err);
                ck_assert_msg(result->steps[i].rel_err <= 1e-13, "%s: the loss of step %d is off by %g", name, i, result->steps[i].rel_err);
            }
            result_free(result);
        }
    }
}
END_TEST

/* Sums in member order: the same whether all get them or each a slice. */
static struct record *folded(struct scenario *s, bool slices)
{
    struct error error = {0};
    struct train_options options = {.threads = 1};
    s->config.layout.sequence_parallel = slices;
    strcpy(s->config.layout.all_reduce, "fold");
    strcpy(s->config.layout.reduce_scatter, "fold");
    struct record *record = train_run(&s->config, NULL, &options, &error);
    ck_assert_msg(record != NULL, "%s", error.message);
    return record;
}

static void same_losses(const struct record *a, const struct record *b, const char *name)
{
    for (int r = 0; r < a->ranks; r++) {
        ck_assert_int_eq(a->rank[r].losses.count, b->rank[r].losses.count);
        for (int i = 0; i < a->rank[r].losses.count; i++) {
            const struct loss_fact *f = &a->rank[r].losses.items[i], *g = &b->rank[r].losses.items[i];
            if (f->step > 0) continue; /* norms' gradients are sums in another order */
            ck_assert_msg(!memcmp(f->token_loss, g->token_loss, (size_t)f->token_count * sizeof(double)), "%s: other losses", name);
        }
    }
}

static void same_gradients(const struct record *a, const struct record *b, const char *name)
{
    int cut = 0;
    for (int r = 0; r < a->ranks; r++) {
        for (int i = 0; i < a->rank[r].tensors.count; i++) {
            const struct tensor_fact *f = &a->rank[r].tensors.items[i], *g = &b->rank[r].tensors.items[i];
            const struct param_info *info = &a->params.params[f->param].info;
            if (f->kind != TENSOR_GRADIENT || f->step > 0 || info->cut == CUT_NONE) continue;
            ck_assert_msg(f->param == g->param && f->elements == g->elements && !memcmp(f->digest, g->digest, sizeof f->digest), "%s: other bits in the gradient of %s", name, info->name);
            cut++;
        }
    }
    ck_assert_int_gt(cut, 0);
}

START_TEST(slices_have_the_bits_of_the_whole)
{
    for (int k = 0; k < KINDS; k++) {
        struct scenario s = make(2 + k % 2, 1 + k / 2 % 2, k % 3 ? 3 : 0, 1 + k % 2, kinds[k], k % 2 ? FORMAT_FP32 : FORMAT_FP64);
        struct record *slices = folded(&s, true), *whole = folded(&s, false);
        same_losses(slices, whole, describe(&s.config, kinds[k]));
        same_gradients(slices, whole, describe(&s.config, kinds[k]));
        record_free(slices);
        record_free(whole);
    }
}
END_TEST

static uint64_t bytes_of(const struct record *record, const char *purpose)
{
    uint64_t sum = 0;
    for (int r = 0; r < record->ranks; r++) {
        for (int i = 0; i < communicator_traffic_count(record->rank[r].communicator); i++) {
            const struct traffic *t = communicator_traffic(record->rank[r].communicator, i);
            if (!strcmp(t->purpose, purpose)) sum += t->bytes;
        }
    }
    return sum;
}

START_TEST(stages_send_slices_and_hold_less)
{
    struct scenario s = make(3, 2, 0, 2, BIAS, FORMAT_FP32);
    struct record *slices = folded(&s, true), *whole = folded(&s, false);
    uint64_t sent = bytes_of(whole, "pp.send_activation"), back = bytes_of(whole, "pp.send_grad");
    ck_assert_uint_gt(sent, 0);
    ck_assert_uint_eq(3 * bytes_of(slices, "pp.send_activation"), sent);
    ck_assert_uint_eq(3 * bytes_of(slices, "pp.send_grad"), back);
    for (int r = 0; r < whole->ranks; r++) ck_assert_int_lt(slices->rank[r].activation_peak_bytes, whole->rank[r].activation_peak_bytes);
    record_free(slices);
    record_free(whole);
}
END_TEST

/* Norms of heads have a part of their gradient on each tp rank with slices and without; left there, it is found. */
START_TEST(norms_of_heads_are_summed)
{
    for (int slices = 0; slices < 2; slices++) {
        struct scenario s = make(3 - slices, 1 + slices, slices ? 3 : 0, 2, HEAD_NORMS | GROUPED, FORMAT_FP64);
        s.config.layout.sequence_parallel = slices;
        struct result *result = run(&s, "default");
        hold(result, slices ? "slices" : "whole sequences");
        for (int i = 0; i < result->steps_count; i++) ck_assert(result->steps[i].max_grad_rel_err <= 1e-11);
        result_free(result);
        s.faults_count = 1;
        s.faults[0].fault = fault_find("tp-headnorm-grad-no-sum");
        ck_assert_ptr_nonnull(s.faults[0].fault);
        snprintf(s.faults[0].name, sizeof s.faults[0].name, "%s", s.faults[0].fault->name);
        result = run(&s, "default");
        ck_assert_int_eq(result->verdict, VERDICT_DIVERGED);
        ck_assert(result->has_diagnosis && !strcmp(result->diagnosis.site, site_tp_head_norm_grad.name) && !strcmp(result->diagnosis.component, "tp"));
        bool placed = false;
        for (int c = 0; c < result->checks_count; c++) placed = placed || (!strcmp(result->checks[c].id, "placement") && result->checks[c].status == CHECK_FAIL);
        ck_assert(placed);
        result_free(result);
    }
}
END_TEST

int main(int argc, char **argv)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/scenarios/corpus.txt", argc > 1 ? argv[1] : ".");
    FILE *file = fopen(path, "rb");
    if (!file) {
        fprintf(stderr, "cannot open %s\n", path);
        return 1;
    }
    text_bytes = (int64_t)fread(text, 1, sizeof text, file);
    fclose(file);
    Suite *suite = suite_create("sequence_parallel");
    TCase *tcase = tcase_create("sequence_parallel");
    tcase_set_timeout(tcase, 600);
    tcase_add_test(tcase, every_layout_is_consistent);
    tcase_add_test(tcase, slices_have_the_bits_of_the_whole);
    tcase_add_test(tcase, stages_send_slices_and_hold_less);
    tcase_add_test(tcase, norms_of_heads_are_summed);
    suite_add_tcase(suite, tcase);
    return run_suite(suite, CK_NOFORK);
}
