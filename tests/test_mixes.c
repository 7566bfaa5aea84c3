/* mixes: random layouts of the whole data-parallel family, each against what one rank computes; none raises anything.
 *
 * pp 1, 2, 3, 4, 8 x dp_replicate 1, 2, 3 x dp_shard 1, 2, 3, 5 x zero 0..3 x GPipe, GPipeReversed, 1F1B x every loss convention x
 * fp64, fp32, bf16, fp16 with loss scaling, and with them by chance: micro-batches, when and how gradients are reduced,
 * buckets that cut through parameters, their alignment, resharding, prefetch, frozen, tied and (partly) unused parameters, algorithms
 * of the all-reduce, experts spread over ranks by every dispatcher, optimizer, clipping by either norm, blocking sends, dropout, latent attention, what is computed again in the backward, sequence parallelism,
 * context parallelism by every method, layout and merge. Everything is drawn from the case's number: `test_mixes SOURCE_ROOT
 * NUMBER [COUNT]` runs that case alone, or as many from there on, `long` 14,400 of them instead of 500. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/collectives.h"
#include "model/context/context.h"
#include "model/loss_convention.h"
#include "scenarios/result.h"
#include "sim/random.h"
#include "tests/support/run_suite.h"

static int first_case, cases = 500;
static uint8_t text[1 << 16];
static int64_t text_bytes;

static int drawn(struct random_stream *stream, int count)
{
    return (int)(random_below(stream, (uint64_t)count));
}

#define ONE_OF(stream, list) (list)[drawn((stream), (int)(sizeof(list) / sizeof *(list)))]

static void draw_layout(struct random_stream *r, struct run_config *config)
{
    static const int stages[] = {1, 2, 3, 4, 8}, replicas[] = {1, 1, 2, 3}, shards[] = {1, 2, 3, 5}, alignments[] = {1, 3, 8};
    struct layout *l = &config->layout;
    *l = (struct layout){.pp = ONE_OF(r, stages), .dp_replicate = ONE_OF(r, replicas), .dp_shard = ONE_OF(r, shards), .tp = 1,
                         .zero = drawn(r, 4), .microbatches = 1 + drawn(r, 5), .send_sync = drawn(r, 2)};
    l->reshard_after_forward = l->zero == ZERO_3 && drawn(r, 2);
    l->prefetch = l->zero == ZERO_3 ? drawn(r, 4) : 0;
    l->bucket_elements = l->zero != ZERO_3 && drawn(r, 2) ? 60 + drawn(r, 4000) : 0;
    l->bucket_alignment = ONE_OF(r, alignments);
    l->reduce_op = drawn(r, 2) ? FSDP_REDUCE_SUM : FSDP_REDUCE_AVG;
    l->sync = drawn(r, 2) ? SYNC_EACH_MICROBATCH : SYNC_LAST_MICROBATCH;
    snprintf(l->schedule, sizeof l->schedule, "%s", drawn(r, 2) ? "GPipe" : "1F1B");
    if (!strcmp(l->schedule, "GPipe") && l->microbatches % 2 == 1) snprintf(l->schedule, sizeof l->schedule, "GPipeReversed");
    int left = 8; /* uneven where pp is 3 */
    for (int i = 0; i < l->pp; i++) left -= l->layers_per_stage[i] = i == l->pp - 1 ? left : 8 / l->pp;
    for (int i = drawn(r, 6); i < collective_algorithm_count(); i++) {
        const struct collective_algorithm *algorithm = collective_algorithm(i);
        if (strcmp(algorithm->op, "all_reduce") != 0) continue;
        snprintf(l->all_reduce, sizeof l->all_reduce, "%s", algorithm->name);
        break;
    }
    config->train.global_batch = layout_data_ranks(l) * l->microbatches * (1 + drawn(r, 2));
}

static void draw_precision(struct random_stream *r, struct run_config *config)
{
    int kind = drawn(r, 4);
    config->precision = precision_of(kind == 0 ? FORMAT_FP64 : FORMAT_FP32);
    if (kind < 2) return;
    struct precision *p = &config->precision;
    enum format narrow = kind == 2 ? FORMAT_BF16 : FORMAT_FP16;
    p->param = p->compute = narrow;
    if (drawn(r, 2)) p->residual = narrow;
    if (drawn(r, 3) == 0) p->softmax = p->logits = narrow;
    if (drawn(r, 3) == 0) p->reduce = FORMAT_BF16;
    if (drawn(r, 4) == 0) p->accumulate = FORMAT_BF16;
    if (drawn(r, 6) == 0) p->compute = drawn(r, 2) ? FORMAT_FP8_E4M3 : FORMAT_FP8_E5M2;
    if (narrow == FORMAT_FP16)
        config->train.loss_scale = (struct loss_scale_config){LOSS_SCALING_DYNAMIC, drawn(r, 3) ? 1024 : 1 << 26, 2, 0.5, 2};
}

static void draw_rest(struct random_stream *r, struct run_config *config)
{
    static const char *const frozen[] = {"", "", "", "tok_embeddings.weight", "layers.1.*", "layers.0.attention.wq.weight,norm.weight"};
    struct model_config *m = &config->model;
    bool grouped = drawn(r, 2);
    *m = (struct model_config){.layers = 8, .dim = 12, .heads = 3, .kv_heads = grouped ? 1 : 3, .head_dim = 4, .ffn = 14, .vocab = 256,
                               .seq = 7 + drawn(r, 12), .causal = drawn(r, 4) > 0, .rope = drawn(r, 4) > 0, .bias = drawn(r, 2),
                               .tie_embeddings = drawn(r, 2), .document_mask = drawn(r, 3) == 0, .norm_eps = 1e-5, .rope_base = 10000};
    config->data = (struct data_config){text, text_bytes, drawn(r, 3) ? PACKING_DOCUMENTS : PACKING_STREAM};
    bool adamw = drawn(r, 2);
    config->train = (struct train_config){.steps = 2, .optimizer = adamw ? OPTIMIZER_ADAMW : OPTIMIZER_SGD, .lr = adamw ? 1e-3 : 1e-2,
                                          .beta1 = .9, .beta2 = .95, .eps = 1e-8, .weight_decay = .1, .momentum = drawn(r, 2) ? 0.9 : 0,
                                          .grad_clip = drawn(r, 3), .loss_normalization = drawn(r, loss_convention_count())};
    snprintf(config->train.frozen, sizeof config->train.frozen, "%s", ONE_OF(r, frozen));
    config->machine = (struct machine_config){8, 400, 3, 400, 8, 50};
}

/* Few rows, so that some ranks' shards have none; the largest magnitude is far below the root of the squares. */
static void draw_adapter(struct random_stream *r, struct run_config *config)
{
    struct train_config *t = &config->train;
    config->model.adapter_rows = drawn(r, 3) ? 0 : 1 + drawn(r, 6);
    config->model.adapter_used = (enum adapter_used)drawn(r, 3);
    t->check_finite = drawn(r, 2);
    t->no_decay = drawn(r, 2) ? NO_DECAY_VECTORS : NO_DECAY_NONE;
    t->no_gradient = drawn(r, 2) ? NO_GRADIENT_ZERO : NO_GRADIENT_SKIP;
    t->grad_norm = drawn(r, 3) ? GRAD_NORM_L2 : GRAD_NORM_INF;
    if (!drawn(r, 8)) snprintf(t->frozen, sizeof t->frozen, "layers.2.at*,layers.2.f*,layers.3.at*,layers.3.f*"); /* but for adapters */
    if (t->grad_norm == GRAD_NORM_INF) t->grad_clip *= 0.03;
}

/* Tensor parallelism, latent attention, experts. */
static void draw_kind(struct random_stream *r, struct run_config *config)
{
    static const int ranks[] = {1, 1, 1, 2, 3};
    struct model_config *m = &config->model;
    int tp = config->layout.tp = ONE_OF(r, ranks);
    if (layout_ranks(&config->layout) > 72) tp = config->layout.tp = 1;
    if (tp > 1) {
        m->heads = 6;
        m->head_dim = 2;
        m->kv_heads = drawn(r, 2) ? tp : 6;
        m->ffn = 18;
        m->vocab = 258;
    }
    if (drawn(r, 4) == 0) {
        m->attention = ATTENTION_MLA;
        m->kv_heads = m->heads;
        m->mla = (struct mla_config){drawn(r, 3) ? 5 : 0, 4};
    }
    if (drawn(r, 4) == 0) {
        m->moe = (struct moe_config){.experts = 5, .top_k = 1 + drawn(r, 3), .expert_ffn = 6, .shared_ffn = drawn(r, 2) ? 12 : 0, .dense = {1},
                                     .score = (enum moe_score)drawn(r, 2), .normalize = (enum moe_normalize)drawn(r, 3), .routed_scaling = 1.5, .groups = 1, .groups_chosen = 1};
        m->initial = INITIAL_PYTORCH;
    }
}

/* Of a stream of its own, so that it leaves what the others draw as it is. */
static void draw_recompute(struct random_stream *r, struct run_config *config)
{
    static const enum recompute_mode modes[] = {RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL, RECOMPUTE_FULL};
    struct model_config *m = &config->model;
    if (drawn(r, 2)) m->dropout = 0.02 + 0.6 * random_unit(r) * random_unit(r);
    if (drawn(r, 4) == 0) {
        m->attention = ATTENTION_MLA;
        m->kv_heads = m->heads;
        m->mla = (struct mla_config){drawn(r, 2) ? 5 : 0, 7};
    }
    config->layout.recompute.mode = ONE_OF(r, modes);
    if (config->layout.recompute.mode != RECOMPUTE_FULL && m->attention == ATTENTION_MLA && drawn(r, 2))
        config->layout.recompute.parts = RECOMPUTE_DENSE_MLA_QKV;
}

/* Experts that are spread over ranks, or split; of a stream of its own. Where tokens come to their experts by sums over ranks
 * (all dispatchers but all_to_all; etp), the forward's last bits are not one rank's: as above, in plain formats alone. */
static void draw_experts(struct random_stream *r, struct run_config *config)
{
    struct layout *l = &config->layout;
    struct model_config *m = &config->model;
    int per = config->train.global_batch / (layout_data_ranks(l) * l->microbatches), sizes[12], count = 0;
    bool plain = precision_is_plain(&config->precision), some = m->moe.experts > 0 || (drawn(r, 5) == 0 && plain);
    if (!some || layout_ranks(l) == l->pp * l->dp_replicate) return;
    if (m->moe.experts == 0) {
        m->moe = (struct moe_config){.expert_ffn = 6, .dense = {5}, .shared_ffn = drawn(r, 2) ? 12 : 0, .routed_scaling = 1.5, .groups = 1, .groups_chosen = 1, .aux_loss_coeff = .1};
        m->initial = INITIAL_PYTORCH;
    }
    l->experts_over_tp = l->tp > 1 && drawn(r, 2);
    int axis = l->dp_shard * (l->experts_over_tp ? l->tp : 1);
    for (int ep = 2; ep <= axis; ep++)
        if (axis % ep == 0 && (!l->experts_over_tp || ep % l->tp == 0 || l->tp % ep == 0)) sizes[count++] = ep;
    l->ep = count > 0 ? sizes[drawn(r, count)] : 1;
    l->dispatcher = plain ? (enum moe_dispatcher)drawn(r, l->experts_over_tp ? 2 : 3) : DISPATCH_ALL_TO_ALL;
    if (l->ep == 6 && l->dispatcher == DISPATCH_ALL_TO_ALL && drawn(r, 2)) l->ep_inner = 2 + drawn(r, 2);
    l->etp = !l->experts_over_tp && plain && drawn(r, 2) ? l->tp : 1;
    m->moe.experts = l->ep * (1 + drawn(r, 3));
    m->moe.top_k = 1 + drawn(r, m->moe.experts < 4 ? m->moe.experts : 4);
    if (plain && drawn(r, 2)) m->moe.balance = MOE_BALANCE_NOAUX_TC, m->moe.bias_update_rate = 0.01;
    config->train.global_batch = layout_data_ranks(l) * l->microbatches * per;
}

/* Slices want sequences that split. */
static void draw_slices(struct random_stream *r, struct run_config *config)
{
    int tp = config->layout.tp;
    const struct layout *l = &config->layout;
    bool spread = l->ep > 1 && (l->dispatcher == DISPATCH_REPLICATED || (l->experts_over_tp && l->ep % tp != 0));
    if (tp == 1 || spread || drawn(r, 2)) return; /* refused together */
    config->model.seq -= config->model.seq % tp;
    config->layout.sequence_parallel = true;
}

/* Context parallelism, whose methods are those that the heads allow; experts over its ranks too. */
static void draw_context(struct random_stream *r, struct run_config *config)
{
    struct layout *l = &config->layout;
    struct model_config *m = &config->model;
    int cp = 2 + drawn(r, 4), tp = l->tensor_whole & TENSOR_ATTENTION ? 1 : l->tp;
    bool replicated = l->ep > 1 && l->dispatcher == DISPATCH_REPLICATED;
    if (drawn(r, 3) || replicated || layout_ranks(l) * cp > 72) return;
    if (l->sequence_parallel) m->seq = 2 * cp * l->tp * (1 + drawn(r, 2));
    if (m->moe.experts > 0 && l->dispatcher != DISPATCH_REPLICATED && !l->experts_over_tp && drawn(r, 2)) {
        l->ep = (l->ep > 1 ? l->ep : 1) * cp;
        m->moe.experts = l->ep * (1 + drawn(r, 2));
        if (m->moe.top_k > m->moe.experts) m->moe.top_k = m->moe.experts;
        l->ep_inner = 1;
    }
    l->cp = cp;
    l->context = (struct context_config){.tree = drawn(r, 2), .overlap = drawn(r, 2), .reversed = drawn(r, 2)};
    snprintf(l->context.layout, sizeof l->context.layout, "%s", context_layout_at(drawn(r, context_layout_count()))->name);
    snprintf(l->context.merge, sizeof l->context.merge, "%s", context_merge_at(drawn(r, context_merge_count()))->name);
    int first = drawn(r, context_method_count());
    for (int i = 0; i < context_method_count() * cp; i++) {
        const struct context_method *method = context_method_at((first + i / cp) % context_method_count());
        char why[320];
        l->context.ulysses = cp - i % cp;
        struct context_shape shape = {.batch = 1, .seq = m->seq, .size = cp, .ulysses = l->context.ulysses, .heads = m->heads / tp, .kv_heads = m->kv_heads / tp,
                                      .head_dim = m->head_dim, .causal = m->causal, .reversed = l->context.reversed, .overlap = l->context.overlap};
        snprintf(l->context.method, sizeof l->context.method, "%s", method->name);
        if (cp % l->context.ulysses == 0 && method->allows(&shape, why)) return;
    }
    l->cp = 1; /* not reached: a ring takes any heads */
}

static struct scenario make(int number)
{
    char name[32];
    snprintf(name, sizeof name, "mix %d", number);
    struct random_stream stream = random_stream(2027, name);
    struct scenario s = {.config = {.seed = (uint64_t)number + 1}};
    draw_rest(&stream, &s.config);
    draw_layout(&stream, &s.config);
    draw_precision(&stream, &s.config);
    draw_adapter(&stream, &s.config);
    draw_kind(&stream, &s.config);
    snprintf(name, sizeof name, "recompute %d", number);
    stream = random_stream(2027, name);
    draw_recompute(&stream, &s.config);
    snprintf(name, sizeof name, "experts %d", number);
    stream = random_stream(2027, name);
    draw_experts(&stream, &s.config);
    snprintf(name, sizeof name, "slices %d", number);
    stream = random_stream(2027, name);
    draw_slices(&stream, &s.config);
    snprintf(name, sizeof name, "context %d", number);
    stream = random_stream(2027, name);
    draw_context(&stream, &s.config);
    return s;
}

static const char *describe(int number, const struct run_config *c, char text_of[800])
{
    const struct layout *l = &c->layout;
    snprintf(text_of, 800,
             "case %d: cp %d %s %s %s ulysses %d tp %d%s%s%s ep %d etp %d over_tp %d dispatcher %d inner %d pp %d dp_replicate %d dp_shard %d zero %d %s m %d %s %s%s buckets %d/%d prefetch %d all_reduce %s %s param %s compute %s "
             "reduce %s accumulate %s residual %s%s frozen '%s' adapter %d %d %s norm %s dropout %g %s recompute %d parts %x",
             number, layout_cp(l), l->context.method, l->context.layout, l->context.merge, l->context.ulysses, l->tp, l->sequence_parallel ? " sliced" : "", c->model.attention == ATTENTION_MLA ? " mla" : "", c->model.moe.experts ? " moe" : "", l->ep, l->etp, l->experts_over_tp, (int)l->dispatcher, l->ep_inner, l->pp, l->dp_replicate, l->dp_shard, l->zero, l->schedule, l->microbatches,
             l->sync == SYNC_EACH_MICROBATCH ? "each" : "last", l->reduce_op == FSDP_REDUCE_SUM ? "sum" : "avg",
             l->reshard_after_forward ? " reshard" : "", l->bucket_elements, l->bucket_alignment, l->prefetch, l->all_reduce,
             loss_convention_of(c)->name, format_traits[c->precision.param].name, format_traits[c->precision.compute].name,
             format_traits[c->precision.reduce].name, format_traits[c->precision.accumulate].name,
             format_traits[c->precision.residual].name, c->model.tie_embeddings ? " tied" : "", c->train.frozen,
             c->model.adapter_rows, (int)c->model.adapter_used, c->train.no_gradient == NO_GRADIENT_ZERO ? "zero" : "skip", c->train.grad_norm == GRAD_NORM_INF ? "inf" : "l2",
             c->model.dropout, c->model.attention == ATTENTION_MLA ? "mla" : "mha", (int)c->layout.recompute.mode, c->layout.recompute.parts);
    return text_of;
}

START_TEST(no_mix_raises_anything)
{
    for (int number = first_case; number < first_case + cases; number++) {
        struct scenario s = make(number);
        struct experiment_options options = {.train = {.threads = 1 + number % 2}, .checks = number % 25 ? "default" : "deep"};
        struct error error = {0};
        char name[800];
        struct result *result = experiment_run(&s, &options, &error);
        ck_assert_msg(result != NULL, "%s: %s", describe(number, &s.config, name), error.message);
        for (int c = 0; c < result->checks_count; c++) {
            ck_assert_msg(result->checks[c].status != CHECK_FAIL, "%s: %s: %s", describe(number, &s.config, name),
                          result->checks[c].id, result->checks[c].why);
        }
        ck_assert_msg(result->verdict == VERDICT_CONSISTENT, "%s: %s", describe(number, &s.config, name), verdict_names[result->verdict]);
        result_free(result);
    }
}
END_TEST

int main(int argc, char **argv)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/scenarios/corpus.txt", argc > 1 ? argv[1] : ".");
    if (argc > 2 && !strcmp(argv[2], "long")) cases = 14400;
    else if (argc > 2) first_case = atoi(argv[2]), cases = argc > 3 ? atoi(argv[3]) : 1;
    FILE *file = fopen(path, "rb");
    if (!file) {
        fprintf(stderr, "cannot open %s\n", path);
        return 1;
    }
    text_bytes = (int64_t)fread(text, 1, sizeof text, file);
    fclose(file);
    Suite *suite = suite_create("mixes");
    TCase *tcase = tcase_create("mixes");
    tcase_set_timeout(tcase, 7200);
    tcase_add_test(tcase, no_mix_raises_anything);
    suite_add_tcase(suite, tcase);
    return run_suite(suite, CK_NOFORK);
}
