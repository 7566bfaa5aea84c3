/* context layouts: however a sequence is split over ranks and its queries meet its keys, training computes what one rank computes.
 *
 * Methods x layouts x {grouped queries, latent attention, experts over cp} x cp 1..5 x zero 0..3, with tp, pp, sequence parallelism,
 * recomputation, dropout, document masks, merges, conventions, unequal counts of valid tokens, odd sizes by turns; two micro-batches
 * of two sequences and more:
 *   - in fp64 every check is silent, losses agree to 1e-12 and norms, gradients and parameters to 1e-11;
 *   - in fp32 every check is silent, the deep ones too;
 *   - each position of each sequence is trained on by one data rank, once, with the target that follows it in the data, and a
 *     rank's rows are those that the layout gives it;
 *   - the positions that a run trained on are those of record->members, and the loss cut's cells count them.
 * Besides: a group of one computes, bit for bit, what a run without context parallelism computes. "long" runs all, else every 7th. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/context/context.h"
#include "model/data.h"
#include "scenarios/result.h"
#include "tests/support/run_suite.h"

enum { STEPS = 2, KINDS = 3, SIZES = 5 };
enum kind { GROUPED, LATENT, EXPERTS };
static bool all;
static uint8_t text[1 << 16];
static int64_t text_bytes;

static struct scenario make(enum kind kind, const char *method, const char *layout, int cp, int turn)
{
    int tp = turn % 3 == 1 && cp < 4 ? 2 : 1;
    bool slices = tp == 2 && turn % 2;
    struct scenario s = {.config = {.seed = 11 + (uint64_t)turn, .precision = precision_of(turn % 2 ? FORMAT_FP64 : FORMAT_FP32),
        .model = {.layers = 2, .dim = 18, .heads = 6 * tp, .kv_heads = 3 * tp, .head_dim = 4, .ffn = 14, .vocab = 256, .seq = slices ? 4 * cp * (1 + turn % 3) : 37,
                  .causal = turn % 4 > 0, .rope = turn % 5 > 0, .bias = turn % 3 == 0, .tie_embeddings = turn % 5 == 1, .norm_eps = 1e-5, .rope_base = 10000,
                  .initial = INITIAL_PYTORCH, .document_mask = turn % 3 == 2, .window = turn % 7 == 3 ? 9 : 0, .dropout = turn % 4 == 2 ? 0.2 : 0,
                  .qk_norm = kind == GROUPED && turn % 2},
        .data = {text, text_bytes, PACKING_DOCUMENTS},
        .train = {.steps = STEPS, .optimizer = OPTIMIZER_SGD, .lr = 1e-2, .momentum = .9, .weight_decay = .1, .grad_clip = 1, .loss_normalization = turn % 10},
        .layout = {.pp = 1 + turn % 2, .dp_replicate = 1 + (turn % 6 == 5), .dp_shard = cp > 3 ? 1 : 1 + turn % 3 % 2, .tp = tp, .cp = cp, .zero = turn % 4, .microbatches = 2,
                   .sequence_parallel = slices, .reduce_op = turn % 5 < 2 ? FSDP_REDUCE_SUM : FSDP_REDUCE_AVG, .sync = turn % 3 ? SYNC_LAST_MICROBATCH : SYNC_EACH_MICROBATCH,
                   .recompute = {.mode = (enum recompute_mode)(turn % 3)},
                   .context = {.ulysses = cp, .tree = turn % 2, .overlap = turn % 3 > 0, .reversed = turn % 5 > 2}},
        .machine = {8, 400, 3, 400, 8, 50}}};
    struct layout *l = &s.config.layout;
    struct model_config *m = &s.config.model;
    if (kind == LATENT) {
        m->attention = ATTENTION_MLA;
        m->kv_heads = m->heads;
        m->mla = (struct mla_config){turn % 2 ? 7 : 0, 5};
    }
    if (kind == EXPERTS) {
        l->ep = turn % 2 ? cp : l->dp_shard * cp;
        l->dispatcher = turn % 3 ? DISPATCH_ALL_TO_ALL : DISPATCH_ALL_GATHER;
        m->moe = (struct moe_config){.experts = 2 * l->ep, .top_k = 2, .expert_ffn = 6, .shared_ffn = turn % 4 ? 8 : 0, .dense = {turn % 5 == 0}, .routed_scaling = 1.5,
                                     .groups = 1, .groups_chosen = 1, .aux_loss_coeff = .1, .z_loss_coeff = turn % 2 ? .01 : 0,
                                     .balance = turn % 3 ? MOE_BALANCE_NOAUX_TC : MOE_BALANCE_NONE, .bias_update_rate = .01, .capacity_factor = turn % 4 == 3 ? 0.9 : 0};
    }
    l->reshard_after_forward = l->zero == ZERO_3 && turn % 2;
    l->bucket_elements = l->zero != ZERO_3 && turn % 3 == 1 ? 500 : 0;
    snprintf(l->schedule, sizeof l->schedule, "1F1B");
    snprintf(l->context.method, sizeof l->context.method, "%s", method);
    snprintf(l->context.layout, sizeof l->context.layout, "%s", layout);
    snprintf(l->context.merge, sizeof l->context.merge, "%s", context_merge_at(turn % context_merge_count())->name);
    for (int i = 0; i < l->pp; i++) l->layers_per_stage[i] = 2 / l->pp;
    s.config.train.global_batch = layout_sequence_ranks(l) * l->microbatches * (2 + turn % 2);
    return s;
}

/* Heads so that this method goes: as many key/value heads on a tp rank as members that split them, or a multiple. */
static bool fit(struct scenario *s)
{
    struct model_config *m = &s->config.model;
    struct layout *l = &s->config.layout;
    const struct context_method *method = context_method_find(l->context.method);
    if (!strcmp(method->name, "usp") && l->cp == 4) l->context.ulysses = 2;
    bool splits = !strcmp(method->name, "ulysses") || !strcmp(method->name, "usp");
    int parts = !splits ? 1 : !strcmp(method->name, "usp") ? l->context.ulysses : l->cp;
    if (splits) {
        m->heads = 2 * parts * l->tp;
        m->kv_heads = m->attention == ATTENTION_MLA ? m->heads : parts * l->tp;
    }
    char why[320];
    struct context_shape shape = {.batch = 2, .seq = m->seq, .size = l->cp, .ulysses = l->context.ulysses, .heads = m->heads / l->tp, .kv_heads = m->kv_heads / l->tp,
                                  .head_dim = m->head_dim, .causal = m->causal, .reversed = l->context.reversed, .overlap = l->context.overlap};
    return method->allows(&shape, why);
}

static const char *describe(const struct run_config *c, int turn, char to[300])
{
    const struct layout *l = &c->layout;
    snprintf(to, 300, "turn %d: cp %d %s %s %s ulysses %d%s%s%s pp %d r %d s %d tp %d%s ep %d zero %d recompute %d %s%s", turn, l->cp, l->context.method, l->context.layout,
             l->context.merge, l->context.ulysses, l->context.tree ? " tree" : "", l->context.overlap ? " overlap" : "", l->context.reversed ? " reversed" : "", l->pp, l->dp_replicate,
             l->dp_shard, l->tp, l->sequence_parallel ? " sliced" : "", l->ep, l->zero, (int)l->recompute.mode, c->model.attention == ATTENTION_MLA ? "mla" : c->model.moe.experts ? "moe" : "mha",
             c->model.document_mask ? " documents" : "");
    return to;
}

/* How often each token was trained on, and by whom. */
static void hold_tokens(const struct record *record, const char *name)
{
    const struct run_config *config = &record->config;
    int64_t seq = config->model.seq, batch = config->train.global_batch, tokens = STEPS * batch * seq;
    int *times = calloc((size_t)tokens, sizeof *times), cp = layout_cp(&config->layout), per = layout_sequences_per_microbatch(config);
    struct arena *arena = arena_new("tokens", false);
    struct data data = data_pack(&config->data, (int)seq, STEPS * batch, arena);
    const struct context_layout *layout = context_layout_find(config->layout.context.layout);
    for (int r = 0; r < record->ranks; r++) {
        const struct rank_record *rank = &record->rank[r];
        int64_t rows = cp > 1 ? context_layout_rows(layout, seq, cp, rank->cp) : seq;
        for (int i = 0; i < rank->losses.count; i++) {
            const struct loss_fact *fact = &rank->losses.items[i];
            int64_t first = (int64_t)fact->step * batch + layout_first_sequence(config, rank->data_rank, fact->microbatch), valid = 0;
            ck_assert_msg(fact->token_count == per * rows, "%s: rank %d has %lld tokens", name, r, (long long)fact->token_count);
            for (int64_t t = 0; t < fact->token_count; t++) {
                int64_t at = (first + t / rows) * seq + (fact->token_positions ? fact->token_positions[t] : t % rows);
                ck_assert_msg(cp == 1 || record->members[at] == rank->cp, "%s: rank %d has position %lld of another", name, r, (long long)at);
                ck_assert_msg((fact->token_loss[t] != 0) == (data.targets[at] != TARGET_IGNORED), "%s: rank %d, token %lld: a loss without a target, or none with one", name, r, (long long)at);
                valid += data.targets[at] != TARGET_IGNORED;
                times[at] += rank->tp == 0;
            }
            int cell = rank->data_rank * config->layout.microbatches + fact->microbatch;
            int cells = layout_data_ranks(&config->layout) * config->layout.microbatches;
            ck_assert_msg(valid == fact->valid && record->cells[fact->step * cells + cell].valid == valid, "%s: rank %d counts %lld of %lld", name, r, (long long)fact->valid, (long long)valid);
        }
    }
    for (int64_t t = 0; t < tokens; t++) ck_assert_msg(times[t] == 1, "%s: token %lld is trained on %d times", name, (long long)t, times[t]);
    arena_free(arena);
    free(times);
}

static void hold(struct scenario *s, int turn)
{
    struct experiment_options options = {.train = {.threads = 1 + turn % 2}, .checks = turn % 2 ? "default" : "deep"};
    struct error error = {0};
    char name[300];
    describe(&s->config, turn, name);
    struct result *result = experiment_run(s, &options, &error);
    ck_assert_msg(result != NULL, "%s: %s", name, error.message);
    for (int c = 0; c < result->checks_count; c++)
        ck_assert_msg(result->checks[c].status != CHECK_FAIL, "%s: %s: %s", name, result->checks[c].id, result->checks[c].why);
    ck_assert_msg(result->verdict == VERDICT_CONSISTENT, "%s: %s", name, verdict_names[result->verdict]);
    for (int i = 0; i < result->steps_count && turn % 2; i++) {
        const struct step_result *step = &result->steps[i];
        double worst = fmax(step->norm_rel_err, fmax(step->max_grad_rel_err, step->max_param_rel_err));
        ck_assert_msg(step->rel_err <= 1e-12 && worst <= 1e-11, "%s: step %d: loss %g, the rest %g", name, i, step->rel_err, worst);
    }
    hold_tokens(result->parallel, name);
    result_free(result);
}

START_TEST(every_context_layout_is_consistent)
{
    static const int sizes[SIZES] = {1, 2, 3, 4, 5};
    int turn = 0, ran = 0;
    for (int i = 0; i < KINDS * SIZES * context_method_count() * context_layout_count(); i++) {
        int at = i;
        enum kind kind = (enum kind)(at % KINDS); at /= KINDS;
        const struct context_method *method = context_method_at(at % context_method_count()); at /= context_method_count();
        const struct context_layout *layout = context_layout_at(at % context_layout_count()); at /= context_layout_count();
        if (turn++ % 7 && !all) continue;
        struct scenario s = make(kind, method->name, layout->name, sizes[at], turn + i / 7);
        if (!fit(&s)) continue;
        hold(&s, turn + i / 7);
        ran++;
    }
    ck_assert_int_ge(ran, all ? 200 : 30);
}
END_TEST

/* All that there is to see of a run. */
START_TEST(a_group_of_one_is_none)
{
    for (int i = 0; i < context_method_count(); i++) {
        struct scenario s = make(GROUPED, context_method_at(i)->name, "zigzag", 1, 4 + i);
        struct error error = {0};
        struct train_options options = {.threads = 1};
        struct record *with = train_run(&s.config, NULL, &options, &error);
        s.config.layout.cp = 0;
        memset(&s.config.layout.context, 0, sizeof s.config.layout.context);
        struct record *without = train_run(&s.config, NULL, &options, &error);
        ck_assert(with && without);
        ck_assert_mem_eq(with->digest, without->digest, sizeof with->digest);
        record_free(with);
        record_free(without);
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
    Suite *suite = suite_create("context layouts");
    TCase *tcase = tcase_create("context layouts");
    tcase_set_timeout(tcase, 3600);
    tcase_add_test(tcase, every_context_layout_is_consistent);
    tcase_add_test(tcase, a_group_of_one_is_none);
    suite_add_tcase(suite, tcase);
    return run_suite(suite, CK_NOFORK);
}
