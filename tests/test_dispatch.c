/* test_dispatch: expert parallelism inside a layer against one rank that has all tokens and all experts.
 *
 * Every case runs the block of experts on a machine of several ranks, each with its own sequences (as many as the case says, not
 * equally many), and compares, in fp64:
 *   y                  all_to_all: the bits; else, where partial sums are added in another order, to roundoff
 *   dx, and the gradients of norm, router and shared expert, summed over ranks that have different tokens: to roundoff
 *   each expert's gradient on each rank that holds it: the bits where rows come in one rank's order, else to roundoff
 *   probes and ledgers that rode to the experts: the sum over the group, exactly
 * In bf16 all_to_all must still give the bits of y: what moves is in the format already. */
#include "tests/support/ranks.h"
#include "tests/support/run_suite.h"

#include "model/layers/layers.h"
#include "model/layers/router.h"
#include "sim/random.h"

enum { SEQ = 7, DIM = 22, TOP_K = 3, EXPERT_FFN = 18, SHARED_FFN = 5, PARAMS_MAX = 96, PROBES = 3, LAYER = 1, MEMBERS_MAX = 12 };

struct dispatch_case {
    const char *name;
    enum moe_dispatcher dispatcher;
    int dp, tp;                     /* ranks; the expert-parallel group is over dp, or over both */
    bool over_tp, etp, replicated_dp /* all dp ranks have the same sequences */;
    int inner, experts;
    int batch[6];                   /* sequences of each dp rank; slices: of each rank */
    bool slices;                    /* tp ranks have different tokens too */
    int empty_from, empty_to;       /* experts that nobody chooses */
    bool bias, bf16, no_shared;
    unsigned recompute;
};

static const struct dispatch_case cases[] = {
    {"a2a 2", DISPATCH_ALL_TO_ALL, 2, 1, .experts = 6, .batch = {2, 3}},
    {"a2a 3, bias", DISPATCH_ALL_TO_ALL, 3, 1, .experts = 6, .batch = {3, 1, 2}, .bias = true},
    {"a2a 5, a rank without tokens", DISPATCH_ALL_TO_ALL, 5, 1, .experts = 10, .batch = {2, 0, 1, 3, 1}},
    {"a2a 3, empty experts", DISPATCH_ALL_TO_ALL, 3, 1, .experts = 9, .batch = {1, 2, 1}, .empty_from = 4, .empty_to = 5},
    {"a2a 3, a rank without rows", DISPATCH_ALL_TO_ALL, 3, 1, .experts = 9, .batch = {1, 2, 1}, .empty_from = 3, .empty_to = 6, .bias = true},
    {"a2a 3, one expert each", DISPATCH_ALL_TO_ALL, 3, 1, .experts = 3, .batch = {2, 1, 1}, .no_shared = true},
    {"a2a 3, bf16", DISPATCH_ALL_TO_ALL, 3, 1, .experts = 6, .batch = {3, 1, 2}, .bf16 = true},
    {"a2a 3, recompute", DISPATCH_ALL_TO_ALL, 3, 1, .experts = 6, .batch = {1, 3, 2}, .recompute = RECOMPUTE_MOE_RMSNORM | RECOMPUTE_MOE_PERMUTE | RECOMPUTE_MOE_ACTIVATION},
    {"a2a 4, inner 2", DISPATCH_ALL_TO_ALL, 4, 1, .inner = 2, .experts = 12, .batch = {2, 1, 3, 1}},
    {"a2a 6, inner 3", DISPATCH_ALL_TO_ALL, 6, 1, .inner = 3, .experts = 12, .batch = {1, 2, 1, 0, 2, 1}, .empty_from = 5, .empty_to = 9, .bias = true},
    {"a2a 6, inner 2", DISPATCH_ALL_TO_ALL, 6, 1, .inner = 2, .experts = 6, .batch = {1, 2, 1, 1, 2, 1}},
    {"a2a 2, etp 2", DISPATCH_ALL_TO_ALL, 2, 2, .etp = true, .experts = 6, .batch = {2, 3}, .bias = true},
    {"a2a 2, etp 3", DISPATCH_ALL_TO_ALL, 2, 3, .etp = true, .experts = 4, .batch = {2, 1}},
    {"a2a 2, etp 2, slices", DISPATCH_ALL_TO_ALL, 2, 2, .etp = true, .slices = true, .experts = 6, .batch = {2, 1, 1, 3}, .bias = true},
    {"a2a 2, etp 3, slices, recompute", DISPATCH_ALL_TO_ALL, 2, 3, .etp = true, .slices = true, .experts = 6, .batch = {1, 2, 0, 1, 1, 2}, .empty_from = 3, .empty_to = 6,
     .recompute = RECOMPUTE_MOE_RMSNORM | RECOMPUTE_MOE_PERMUTE | RECOMPUTE_MOE_ACTIVATION},
    {"all_gather 3, etp 2, slices", DISPATCH_ALL_GATHER, 3, 2, .etp = true, .slices = true, .experts = 6, .batch = {1, 2, 1, 1, 1, 2}},
    {"a2a 2 x tp 2", DISPATCH_ALL_TO_ALL, 2, 2, .over_tp = true, .experts = 8, .batch = {2, 3}, .bias = true},
    {"a2a 2 x tp 3", DISPATCH_ALL_TO_ALL, 2, 3, .over_tp = true, .experts = 6, .batch = {1, 2}},
    {"a2a 2 beside tp 2", DISPATCH_ALL_TO_ALL, 2, 2, .experts = 6, .batch = {1, 2}},
    {"all_gather 2", DISPATCH_ALL_GATHER, 2, 1, .experts = 6, .batch = {2, 3}, .bias = true},
    {"all_gather 5, a rank without tokens", DISPATCH_ALL_GATHER, 5, 1, .experts = 10, .batch = {2, 0, 1, 3, 1}},
    {"all_gather 3, a rank without rows", DISPATCH_ALL_GATHER, 3, 1, .experts = 9, .batch = {1, 2, 1}, .empty_from = 3, .empty_to = 6},
    {"all_gather 3, recompute", DISPATCH_ALL_GATHER, 3, 1, .experts = 6, .batch = {1, 3, 2}, .recompute = RECOMPUTE_MOE_RMSNORM | RECOMPUTE_MOE_PERMUTE},
    {"all_gather 2 x tp 2", DISPATCH_ALL_GATHER, 2, 2, .over_tp = true, .experts = 8, .batch = {2, 3}},
    {"all_gather 2, etp 2", DISPATCH_ALL_GATHER, 2, 2, .etp = true, .experts = 6, .batch = {2, 1}, .bias = true},
    {"replicated 3", DISPATCH_REPLICATED, 3, 1, .replicated_dp = true, .experts = 6, .batch = {2, 2, 2}, .bias = true},
    {"replicated 2, a rank without rows", DISPATCH_REPLICATED, 2, 1, .replicated_dp = true, .experts = 6, .batch = {2, 2}, .empty_from = 0, .empty_to = 3},
    {"replicated 2, recompute", DISPATCH_REPLICATED, 2, 1, .replicated_dp = true, .experts = 6, .batch = {3, 3}, .recompute = RECOMPUTE_MOE_RMSNORM | RECOMPUTE_MOE_PERMUTE},
    {"replicated 2, etp 2", DISPATCH_REPLICATED, 2, 2, .replicated_dp = true, .etp = true, .experts = 6, .batch = {2, 2}},
};
enum { CASES = sizeof cases / sizeof *cases };

/* One rank's run: a slice of the tokens, its weights and gradients. */
struct run {
    int first, tokens;
    struct tensor y, dx, weights[PARAMS_MAX], gradients[PARAMS_MAX];
    double arrived[PROBES];
    struct ledger ledger, arrived_ledger, middle_ledger;
    struct expert_parallel ep;
    struct arena *arena, *scratch;
};

struct trial {
    const struct dispatch_case *c;
    struct model_config model;
    struct param_info infos[PARAMS_MAX];
    int params, tokens;
    struct arena *arena;
    struct tensor x, dy, weights[PARAMS_MAX];
    int32_t *positions;
    double bias[32];
    struct run whole, rank[MEMBERS_MAX];
};

static const struct ops *ops(void)
{
    struct error error = {0};
    return ops_get(FORMAT_FP64, NULL, "fixed", &error);
}

static struct tensor make(struct arena *arena, int64_t n0, int64_t n1)
{
    double *data = arena_zalloc(arena, (size_t)(n0 * (n1 ? n1 : 1) + 1) * sizeof *data);
    return n1 ? tensor_2d(data, FORMAT_FP64, n0, n1) : tensor_1d(data, FORMAT_FP64, n0);
}

static void fill(const struct trial *t, struct tensor values, const char *name, double mean, double deviation)
{
    struct random_stream stream = random_stream(20250711, name);
    for (int64_t i = 0; i < tensor_count(values); i++)
        ((double *)values.data)[i] = format_round(t->c->bf16 ? FORMAT_BF16 : FORMAT_FP64, mean + deviation * random_normal_at(&stream, (uint64_t)i));
}

/* ---- a trial ---- */

static int expert_of(const char *name)
{
    int expert;
    const char *at = strstr(name, ".experts.");
    return at && sscanf(at, ".experts.%d.", &expert) == 1 ? expert : -1;
}

/* How expert tensor parallelism cuts a parameter: along its first or second dimension, or not. */
static int cut_of(const char *name)
{
    if (strstr(name, ".w2.bias")) return -1;
    return strstr(name, ".w2.weight") ? 1 : 0;
}

/* Part `me` of `count` of an expert's parameter. */
static struct tensor part_of(struct arena *arena, struct tensor whole, const char *name, int me, int count)
{
    int cut = cut_of(name);
    if (cut < 0 || count == 1) return whole;
    int64_t rows = whole.shape[0] / (cut == 0 ? count : 1), columns = whole.dims == 2 ? whole.shape[1] : 1, of = columns / (cut == 1 ? count : 1);
    struct tensor part = make(arena, rows, whole.dims == 2 ? of : 0);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t k = 0; k < of; k++)
            ((double *)part.data)[r * of + k] = ((const double *)whole.data)[(r + (cut == 0 ? me * rows : 0)) * columns + k + (cut == 1 ? me * of : 0)];
    }
    return part;
}

static void prepare(const struct trial *t, struct run *run, int first, int tokens)
{
    run->arena = arena_new("test run", true);
    run->scratch = arena_new("test scratch", true);
    run->first = first;
    run->tokens = tokens;
    run->y = make(run->arena, tokens, DIM);
    run->dx = make(run->arena, tokens, DIM);
    ledger_init(&run->ledger);
    ledger_init(&run->arrived_ledger);
    ledger_init(&run->middle_ledger);
    for (int i = 0; i < t->params; i++) run->weights[i] = t->weights[i];
}

static void finish(struct run *run)
{
    ledger_done(&run->ledger);
    ledger_done(&run->arrived_ledger);
    ledger_done(&run->middle_ledger);
    arena_free(run->scratch);
    arena_free(run->arena);
}

/* is_slice: the tp ranks have different tokens. */
static void run_block(const struct trial *t, struct run *run, const struct expert_parallel *ep, bool is_slice)
{
    static const struct precision plain = {0}, narrow = {.compute = FORMAT_BF16, .residual = FORMAT_FP64};
    struct precision precision = t->c->bf16 ? narrow : plain;
    const struct layer_kind *kind = &layer_kinds[LAYER_KIND_moe];
    int64_t cell_first[2] = {0, run->tokens};
    double aux_scale = 1;
    bool padding[64 * SEQ] = {false};
    struct router_run router = {.bias = t->bias, .cells = 1, .cell_first = cell_first, .aux_scale = &aux_scale, .padding = padding};
    struct layer_context context = {.model = &t->model, .layer = LAYER, .ops = ops(), .precision = &precision, .batch = run->tokens / SEQ, .seq = SEQ,
                                    .positions = t->positions, .is_slice = is_slice, .ep = ep, .scratch = run->scratch, .where = WHERE_NONE, .router = &router,
                                    .recompute = ep ? t->c->recompute : 0};
    for (int i = 0; i < t->params; i++) {
        run->gradients[i] = run->weights[i];
        if (run->weights[i].data) run->gradients[i] = make(run->arena, run->weights[i].shape[0], run->weights[i].dims == 2 ? run->weights[i].shape[1] : 0);
    }
    size_t before = arena_used(run->scratch);
    void *saved = kind->forward(&context, run->y, tensor_rows(t->x, run->first, run->tokens), run->weights, run->arena);
    REQUIRE(arena_used(run->scratch) == before);
    kind->backward_input(&context, run->dx, tensor_rows(t->dy, run->first, run->tokens), run->weights, saved, run->arena);
    kind->backward_weight(&context, run->gradients, saved);
    REQUIRE(arena_used(run->scratch) == before);
}

static int member_dp(const struct trial *t, int rank) { return rank / t->c->tp; }

static void rank_body(struct communicator *c, int rank, void *context)
{
    static const char *const both[] = {"dp", "tp"};
    struct trial *t = context;
    const struct dispatch_case *k = t->c;
    struct run *run = &t->rank[rank];
    struct group *ep = k->over_tp ? communicator_group_over(c, "ep", both, 2) : communicator_group(c, "dp");
    run->ep = (struct expert_parallel){.communicator = c, .group = ep, .tensor = k->etp ? communicator_group(c, "tp") : NULL,
        .copies = k->over_tp ? communicator_group(c, "tp") : NULL, .dispatcher = k->dispatcher, .count = k->experts / ep->size, .first = k->experts / ep->size * ep->me,
        .probe_count = PROBES, .ledger = &run->ledger, .arrived_probes = run->arrived, .arrived_ledger = &run->arrived_ledger, .middle_ledger = &run->middle_ledger};
    if (k->inner > 0) {
        int ranks[MEMBERS_MAX], outer = ep->size / k->inner;
        for (int i = 0; i < k->inner; i++) ranks[i] = ep->ranks[ep->me / k->inner * k->inner + i];
        run->ep.inner = communicator_group_of(c, "ep_inner", ranks, k->inner);
        for (int o = 0; o < outer; o++) ranks[o] = ep->ranks[o * k->inner + ep->me % k->inner];
        run->ep.outer = communicator_group_of(c, "ep_outer", ranks, outer);
    }
    double probes[PROBES];
    for (int i = 0; i < PROBES; i++) probes[i] = (member_dp(t, rank) + 1) * 0.1 + i;
    run->ep.probes = probes;
    ledger_add_term(&run->ledger, (struct origin){4, member_dp(t, rank), 2, 0}, 1, 0.25);
    int tensor_me = k->etp ? rank % k->tp : 0, tensor_size = k->etp ? k->tp : 1;
    for (int i = 0; i < t->params; i++) {
        int e = expert_of(t->infos[i].name);
        if (e < 0) continue;
        if (e < run->ep.first || e >= run->ep.first + run->ep.count) run->weights[i].data = NULL;
        else run->weights[i] = part_of(run->arena, run->weights[i], t->infos[i].name, tensor_me, tensor_size);
    }
    run_block(t, run, &run->ep, k->slices);
}

static void trial_make(struct trial *t, const struct dispatch_case *c)
{
    *t = (struct trial){.c = c, .arena = arena_new("test data", true)};
    t->model = (struct model_config){.layers = 2, .dim = DIM, .heads = 1, .kv_heads = 1, .head_dim = 2, .ffn = 3, .seq = SEQ, .norm_eps = 1e-5, .bias = c->bias,
        .moe = {.experts = c->experts, .top_k = c->experts < TOP_K + 1 ? 2 : TOP_K, .expert_ffn = EXPERT_FFN, .shared_ffn = c->no_shared ? 0 : SHARED_FFN, .routed_scaling = 1.7, .score = MOE_SCORE_SIGMOID,
                .normalize = MOE_NORMALIZE_SUM}};
    int holders = c->slices ? c->dp * c->tp : c->dp, alike = c->slices ? 1 : c->tp; /* alike: consecutive ranks with the same tokens */
    for (int i = 0; i < holders && (i == 0 || !c->replicated_dp); i++) t->tokens += c->batch[i] * SEQ;
    for (int e = 0; e < c->experts; e++) t->bias[e] = e >= c->empty_from && e < c->empty_to ? -10 : 0;
    const struct layer_kind *kind = &layer_kinds[LAYER_KIND_moe];
    t->params = kind->params(&t->model, LAYER, NULL);
    ck_assert_int_le(t->params, PARAMS_MAX);
    kind->params(&t->model, LAYER, t->infos);
    for (int i = 0; i < t->params; i++) {
        const struct param_info *info = &t->infos[i];
        t->weights[i] = make(t->arena, info->shape[0], info->dims == 2 ? info->shape[1] : 0);
        fill(t, t->weights[i], info->name, info->is_norm ? 1 : 0, 0.3);
    }
    t->x = make(t->arena, t->tokens, DIM);
    t->dy = make(t->arena, t->tokens, DIM);
    t->positions = arena_zalloc(t->arena, (size_t)(t->tokens + 1) * sizeof *t->positions);
    fill(t, t->x, "x", 0.1, 1);
    fill(t, t->dy, "dy", 0, 1);
    prepare(t, &t->whole, 0, t->tokens);
    int first = 0;
    for (int r = 0; r < c->dp * c->tp; r++) {
        int tokens = c->batch[r / alike] * SEQ;
        if (r > 0 && r % alike == 0 && !c->replicated_dp) first += c->batch[r / alike - 1] * SEQ;
        prepare(t, &t->rank[r], first, tokens);
    }
}

static void trial_free(struct trial *t)
{
    finish(&t->whole);
    for (int r = 0; r < t->c->dp * t->c->tp; r++) finish(&t->rank[r]);
    arena_free(t->arena);
    free(t);
}

/* ---- comparisons ---- */

static void expect_close(const struct trial *t, const char *what, struct tensor due, struct tensor got, bool bits)
{
    double largest = 0;
    ck_assert_int_eq(tensor_count(due), tensor_count(got));
    for (int64_t i = 0; i < tensor_count(due); i++) largest = fmax(largest, fabs(((double *)due.data)[i]));
    for (int64_t i = 0; i < tensor_count(due); i++) {
        double a = ((double *)due.data)[i], b = ((double *)got.data)[i];
        bool equal = bits ? a == b : fabs(a - b) <= (t->c->bf16 ? 0x1p-6 : 1e-12) * largest;
        ck_assert_msg(equal, "%s: %s[%lld] is %.17g where one rank has %.17g", t->c->name, what, (long long)i, b, a);
    }
}

/* Sum over the ranks that have different tokens. */
static struct tensor summed(struct trial *t, int param)
{
    struct tensor sum = make(t->arena, t->weights[param].shape[0], t->weights[param].dims == 2 ? t->weights[param].shape[1] : 0);
    for (int r = 0; r < (t->c->replicated_dp ? 1 : t->c->dp * t->c->tp); r += t->c->slices ? 1 : t->c->tp) {
        const double *gradient = t->rank[r].gradients[param].data;
        for (int64_t i = 0; i < tensor_count(sum); i++) ((double *)sum.data)[i] += gradient[i];
    }
    return sum;
}

static void check_tokens(const struct trial *t)
{
    bool bits = t->c->dispatcher == DISPATCH_ALL_TO_ALL && !t->c->etp;
    for (int r = 0; r < t->c->dp * t->c->tp; r++) {
        const struct run *run = &t->rank[r];
        expect_close(t, "y", tensor_rows(t->whole.y, run->first, run->tokens), run->y, bits);
        expect_close(t, "dx", tensor_rows(t->whole.dx, run->first, run->tokens), run->dx, bits && !t->c->over_tp && !t->c->bf16);
    }
}

static void check_gradients(struct trial *t)
{
    int seen = 0;
    for (int i = 0; i < t->params; i++) {
        const char *name = t->infos[i].name;
        if (expert_of(name) < 0) {
            expect_close(t, name, t->whole.gradients[i], summed(t, i), false);
            for (int r = 0; r < t->c->dp * t->c->tp && !t->c->slices; r += t->c->replicated_dp ? t->c->tp : 1)
                expect_close(t, name, t->rank[t->c->replicated_dp ? 0 : r / t->c->tp * t->c->tp].gradients[i], t->rank[r].gradients[i], true);
            continue;
        }
        for (int r = 0; r < t->c->dp * t->c->tp; r++) {
            if (!t->rank[r].gradients[i].data) continue;
            struct tensor due = part_of(t->arena, t->whole.gradients[i], name, t->c->etp ? r % t->c->tp : 0, t->c->etp ? t->c->tp : 1);
            expect_close(t, name, due, t->rank[r].gradients[i], !t->c->etp && !t->c->bf16);
            seen++;
        }
    }
    int holders = t->c->over_tp ? 1 : t->c->tp, of_experts = 0;
    for (int i = 0; i < t->params; i++) of_experts += expert_of(t->infos[i].name) >= 0;
    ck_assert_int_eq(seen, holders * of_experts);
}

static void check_riders(const struct trial *t)
{
    int senders = t->c->replicated_dp ? 1 : t->c->dp;
    for (int r = 0; r < t->c->dp * t->c->tp; r++) {
        const struct run *run = &t->rank[r];
        for (int i = 0; i < PROBES; i++) {
            double due = 0;
            if (t->c->replicated_dp) due = (member_dp(t, r) + 1) * 0.1 + i;
            else for (int d = 0; d < t->c->dp; d++) due += (d + 1) * 0.1 + i;
            ck_assert_msg(fabs(run->arrived[i] - due) <= 1e-14 * due, "%s: probe %d at rank %d is %.17g, not %.17g", t->c->name, i, r, run->arrived[i], due);
        }
        ck_assert_msg(run->arrived_ledger.count == senders, "%s: %d terms at rank %d, not %d", t->c->name, run->arrived_ledger.count, r, senders);
        for (int d = 0; d < senders; d++) {
            const struct ledger_term *term = &run->arrived_ledger.terms[d];
            ck_assert(term->times == 1 && term->scale == 0.25 && (t->c->replicated_dp || term->origin.rank == d));
        }
    }
}

static void run_trial(const struct dispatch_case *c, int threads, uint64_t interleave, bool messages_only)
{
    struct trial *t = malloc(sizeof *t);
    trial_make(t, c);
    run_block(t, &t->whole, NULL, false);
    struct ranks ranks = {.mesh = {.axes = 2, .name = {"dp", "tp"}, .size = {c->dp, c->tp}}, .threads = threads, .interleave = interleave,
                          .messages_only = messages_only, .body = rank_body, .context = t};
    ranks_run(&ranks);
    ck_assert_msg(ranks.outcome == MACHINE_FINISHED, "%s does not end", c->name);
    struct mismatch mismatch;
    ck_assert_int_eq(match_calls(ranks.communicators, c->dp * c->tp, true, &mismatch, 1), 0);
    check_tokens(t);
    check_gradients(t);
    check_riders(t);
    ranks_done(&ranks);
    trial_free(t);
}

START_TEST(test_like_one_rank)
{
    run_trial(&cases[_i], 1, 0, false);
    run_trial(&cases[_i], 2, 12345, true);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("dispatch");
    TCase *all = tcase_create("dispatch");
    tcase_set_timeout(all, 120);
    tcase_add_loop_test(all, test_like_one_rank, 0, CASES);
    suite_add_tcase(suite, all);
    return run_suite(suite, CK_NOFORK);
}
