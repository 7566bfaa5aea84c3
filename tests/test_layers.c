/* test_layers: the transformer's parts against finite differences in fp64, and the promises that the
 * rest of hpsim builds on: weight gradients accumulate, a batch cut into micro-batches gives the same
 * bits, weights are not needed after backward_input, temporaries are gone on return. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/layers/layers.h"
#include "model/layers/linear.h"
#include "sim/random.h"
#include "tests/support/run_suite.h"

enum { BATCH = 3, SEQ = 7, ROWS = BATCH * SEQ, DIM = 22, HEADS = 6, KV_HEADS = 2, HEAD_DIM = 10, FFN = 13, VOCAB = 19 };

/* The variants of attention and bias, all 32 of them: one bit each. */
enum { VARIANT_CAUSAL = 1, VARIANT_ROPE = 2, VARIANT_BIAS = 4, VARIANT_DOCUMENTS = 8, VARIANT_GROUPED = 16,
       VARIANTS = 32,
       /* Beside those: another kind of layer, and its own choices. */
       VARIANT_LATENT = 32, VARIANT_EXPERTS = 64, VARIANT_QUERIES_DIRECT = 128, VARIANT_SOFTMAX_SCORES = 256,
       VARIANT_SUM = 512, VARIANT_AS_THEY_ARE = 1024, VARIANT_NOT_SHARED = 2048,
       VARIANT_AUXILIARY = 1 << 12, VARIANT_SELECTION_BIAS = 1 << 13, VARIANT_GROUPS = 1 << 14, VARIANT_CAPACITY = 1 << 15,
       VARIANT_AFTER_DROP = 1 << 16, VARIANT_POSITION = 1 << 17, VARIANT_ALIGNED = 1 << 18, VARIANT_DROPOUT = 1 << 19, VARIANT_HEAD_NORMS = 1 << 20 };

enum part { PART_LINEAR, PART_BLOCK, PART_LAYER, PART_HEAD, PART_EMBEDDING };

enum { PARAMS_MAX = 64, VARIABLES_MAX = PARAMS_MAX + 3 };
enum { EXPERTS = 5, TOP_K = 3, EXPERT_FFN = 9, SHARED_FFN = 4, Q_RANK = 8, KV_RANK = 11 };
struct variable { const char *name; struct tensor value, gradient; };

/* One part of the model, with everything it reads, as a scalar function of its variables. */
struct problem {
    enum part part;
    enum layer_kind_index block;      /* of PART_BLOCK */
    struct model_config model;
    struct layer_context context;
    struct arena *data, *run;         /* what lives as long as the problem; one run */
    int32_t positions[ROWS], documents[ROWS], targets[ROWS], tokens[ROWS];
    struct tensor x, dx, cotangent;   /* loss = <cotangent, output> */
    struct tensor weights[PARAMS_MAX], gradients[PARAMS_MAX];
    struct head_weights head, head_gradients;
    struct tensor linear, linear_bias, linear_gradient, linear_bias_gradient;
    struct tensor output;             /* [T, width] or [T]: of the last run */
    int variables;
    struct variable variable[VARIABLES_MAX];
    struct router_run router;         /* of the variants that have one: two cells of unequal size, some padding */
    struct routing_fact fact;         /* what it noted in the last run */
    int64_t cell_first[3];
    double selection_bias[6], aux_scale[2];
    bool padding[ROWS];
};

static const struct ops *get_ops(enum format storage)
{
    struct error error = { .kind = ERROR_NONE };
    const struct ops *ops = ops_get(storage, NULL, "fixed", &error);
    ck_assert_msg(ops != NULL, "%s", error.message);
    return ops;
}

static struct tensor make(struct problem *p, int64_t n0, int64_t n1)
{
    enum format storage = p->context.ops->storage;
    void *data = arena_alloc(p->data, (size_t)(n0 * (n1 == 0 ? 1 : n1)) * format_storage_bytes(storage));
    return n1 == 0 ? tensor_1d(data, storage, n0) : tensor_2d(data, storage, n0, n1);
}

static void fill(struct tensor t, const char *name, double mean, double deviation)
{
    struct random_stream stream = random_stream(20240607, name);
    for (int64_t i = 0; i < tensor_count(t); i++)
        format_set(t.data, (size_t)i, t.storage,
                   format_round(FORMAT_FP32, mean + deviation * random_normal_at(&stream, (uint64_t)i)));
}

static void zero(struct tensor t)
{
    memset(t.data, 0, (size_t)tensor_bytes(t));
}

static double *values(struct tensor t)
{
    ck_assert_int_eq(t.storage, FORMAT_FP64);
    return t.data;
}

static void add_variable(struct problem *p, const char *name, struct tensor value, struct tensor gradient)
{
    ck_assert_int_lt(p->variables, VARIABLES_MAX);
    p->variable[p->variables++] = (struct variable){ name, value, gradient };
}

enum { LAYER = 5 };

static void make_layer_weights(struct problem *p)
{
    static struct param_info infos[PARAMS_MAX]; /* names outlive the problem */
    const struct layer_kind *kind = &layer_kinds[p->block];
    int count = p->part == PART_LAYER ? layer_params_count(&p->model, LAYER) : kind->params(&p->model, LAYER, NULL);
    ck_assert_int_le(count, PARAMS_MAX);
    if (p->part == PART_LAYER) layer_params(&p->model, LAYER, infos);
    else ck_assert_int_eq(kind->params(&p->model, LAYER, infos), count);
    for (int i = 0; i < count; i++) {
        const struct param_info *info = &infos[i];
        p->weights[i] = make(p, info->shape[0], info->dims == 2 ? info->shape[1] : 0);
        p->gradients[i] = make(p, info->shape[0], info->dims == 2 ? info->shape[1] : 0);
        fill(p->weights[i], info->name, info->is_norm ? 1.0 : 0.0, info->dims == 2 ? 0.3 : 0.2);
        add_variable(p, info->name, p->weights[i], p->gradients[i]);
    }
}

static void make_inputs(struct problem *p)
{
    static const int first_document[BATCH] = { 3, 5, 1 };
    for (int t = 0; t < ROWS; t++) {
        int sequence = t / SEQ, at = t % SEQ;
        p->positions[t] = 2 * sequence + at;
        p->documents[t] = 10 * sequence + (at >= first_document[sequence]);
        p->targets[t] = t % 6 == 4 ? -1 : (t * 7 + 2) % VOCAB; /* some ignored */
        p->tokens[t] = (t * t + 3) % VOCAB;                    /* some more than once, some never */
    }
    p->x = make(p, ROWS, DIM);
    p->dx = make(p, ROWS, DIM);
    fill(p->x, "x", 0.1, 1.0);
}

/* Auxiliary losses of two cells, weighed differently; a bias that changes the choice; room for some of the pairs only. */
static void make_router(struct problem *p, int variant)
{
    struct moe_config *moe = &p->model.moe;
    static const double bias[6] = {.11, -.07, .02, .13, -.05, .03};
    memcpy(p->selection_bias, bias, sizeof bias);
    memcpy(p->cell_first, (const int64_t[]){0, SEQ, ROWS}, sizeof p->cell_first);
    memcpy(p->aux_scale, (const double[]){1.3, .6}, sizeof p->aux_scale);
    for (int t = 0; t < ROWS; t++) p->padding[t] = t % SEQ >= SEQ - t / SEQ;
    if (variant & VARIANT_AUXILIARY) {
        moe->aux_loss_coeff = 3.1;
        moe->z_loss_coeff = .7;
    }
    if (variant & VARIANT_GROUPS) {
        moe->experts = 6;
        moe->groups = 3;
        moe->groups_chosen = 2;
    }
    if (variant & VARIANT_CAPACITY) moe->capacity_factor = .8;
    if (variant & VARIANT_ALIGNED) moe->row_alignment = 4;
    moe->normalize_after_drop = (variant & VARIANT_AFTER_DROP) != 0;
    moe->drop = variant & VARIANT_POSITION ? MOE_DROP_POSITION : MOE_DROP_PROBS;
    p->router = (struct router_run){.bias = variant & VARIANT_SELECTION_BIAS ? p->selection_bias : NULL, .cells = 2, .cell_first = p->cell_first,
                                    .aux_scale = p->aux_scale, .padding = p->padding, .fact = &p->fact, .fact_arena = p->run};
    if ((variant & ~(VARIANT_DROPOUT | VARIANT_HEAD_NORMS)) >= VARIANT_AUXILIARY) p->context.router = &p->router;
}

static struct problem *problem_new(enum part part, enum layer_kind_index block, int variant, enum format storage)
{
    struct problem *p = calloc(1, sizeof *p);
    p->part = part;
    p->block = block;
    p->data = arena_new("test data", true);
    p->run = arena_new("test run", true);
    p->model = (struct model_config){
        .layers = 6, .dim = DIM, .heads = HEADS, .kv_heads = variant & VARIANT_GROUPED ? KV_HEADS : HEADS,
        .head_dim = HEAD_DIM, .ffn = FFN, .vocab = VOCAB, .seq = SEQ, .causal = (variant & VARIANT_CAUSAL) != 0,
        .rope = (variant & VARIANT_ROPE) != 0, .bias = (variant & VARIANT_BIAS) != 0, .qk_norm = (variant & VARIANT_HEAD_NORMS) != 0,
        .document_mask = (variant & VARIANT_DOCUMENTS) != 0, .norm_eps = 1e-5, .rope_base = 10000,
        .dropout = variant & VARIANT_DROPOUT ? 0.3 : 0,
        .attention = variant & VARIANT_LATENT || block == LAYER_KIND_mla_attention ? ATTENTION_MLA : ATTENTION_MHA,
        .mla = {variant & VARIANT_QUERIES_DIRECT ? 0 : Q_RANK, KV_RANK},
        .moe = {.experts = variant & VARIANT_EXPERTS || block == LAYER_KIND_moe ? EXPERTS : 0, .top_k = TOP_K, .expert_ffn = EXPERT_FFN,
                .shared_ffn = variant & VARIANT_NOT_SHARED ? 0 : SHARED_FFN, .routed_scaling = 1.7,
                .score = variant & VARIANT_SOFTMAX_SCORES ? MOE_SCORE_SOFTMAX : MOE_SCORE_SIGMOID,
                .normalize = variant & VARIANT_SUM ? MOE_NORMALIZE_SUM
                             : variant & VARIANT_AS_THEY_ARE ? MOE_NORMALIZE_NONE : MOE_NORMALIZE_SOFTMAX},
    };
    static const struct precision plain[2] = {{FORMAT_FP32, FORMAT_FP32, FORMAT_FP32, FORMAT_FP32, FORMAT_FP32, FORMAT_FP32, FORMAT_FP32, FORMAT_FP32}, {0}};
    p->context = (struct layer_context){
        .precision = &plain[storage == FORMAT_FP64],
        .model = &p->model, .layer = LAYER, .ops = get_ops(storage), .batch = BATCH, .seq = SEQ, .positions = p->positions,
        .documents = p->model.document_mask ? p->documents : NULL, .scratch = arena_new("test scratch", true),
        .dropout = {.seed = 17, .step = 4, .first_sequence = 6},
    };
    make_router(p, variant);
    make_inputs(p);
    p->cotangent = part == PART_HEAD ? make(p, ROWS, 0) : make(p, ROWS, part == PART_LINEAR ? FFN : DIM);
    fill(p->cotangent, "cotangent", 0.0, 1.0);
    if (part != PART_EMBEDDING)
        add_variable(p, "x", p->x, p->dx);

    if (part == PART_BLOCK || part == PART_LAYER)
        make_layer_weights(p);
    if (part == PART_HEAD) {
        p->head = (struct head_weights){ make(p, DIM, 0), make(p, VOCAB, DIM) };
        p->head_gradients = (struct head_weights){ make(p, DIM, 0), make(p, VOCAB, DIM) };
        fill(p->head.norm, "norm.weight", 1.0, 0.2);
        fill(p->head.output, "output.weight", 0.0, 0.3);
        add_variable(p, "norm.weight", p->head.norm, p->head_gradients.norm);
        add_variable(p, "output.weight", p->head.output, p->head_gradients.output);
    }
    if (part == PART_LINEAR || part == PART_EMBEDDING) {
        int64_t out = part == PART_LINEAR ? FFN : VOCAB;
        p->linear = make(p, out, DIM);
        p->linear_gradient = make(p, out, DIM);
        fill(p->linear, "weight", 0.0, 0.3);
        add_variable(p, "weight", p->linear, p->linear_gradient);
    }
    if (part == PART_LINEAR && p->model.bias) {
        p->linear_bias = make(p, FFN, 0);
        p->linear_bias_gradient = make(p, FFN, 0);
        fill(p->linear_bias, "bias", 0.0, 0.3);
        add_variable(p, "bias", p->linear_bias, p->linear_bias_gradient);
    }
    p->output = make(p, ROWS, part == PART_HEAD ? 0 : p->cotangent.shape[1]);
    return p;
}

static void problem_free(struct problem *p)
{
    arena_free(p->context.scratch);
    arena_free(p->run);
    arena_free(p->data);
    free(p);
}

static void zero_gradients(struct problem *p)
{
    for (int i = 0; i < p->variables; i++)
        zero(p->variable[i].gradient);
}

/* Overwrite what the weights say: whoever reads them now gets NaN. x stays. */
static void poison_weights(struct problem *p)
{
    for (int i = 0; i < p->variables; i++)
        if (p->variable[i].value.data != p->x.data)
            memory_poison(p->variable[i].value.data, (size_t)tensor_bytes(p->variable[i].value));
}

enum { FORWARD = 0, BACKWARD = 1, POISON = 2 };

static void run_linear(struct problem *p, int what)
{
    enum format storage = p->context.ops->storage;
    linear_forward(&p->context, storage, p->output, p->x, p->linear, p->linear_bias);
    if (what == FORWARD)
        return;
    linear_backward_input(&p->context, storage, p->dx, p->cotangent, p->linear, false);
    if (what & POISON)
        poison_weights(p);
    linear_backward_weight(&p->context, p->linear_gradient, p->linear_bias_gradient, p->cotangent, p->x);
}

/* Rows [first, first + count) of the batch through the part. */
static void run_rows(struct problem *p, int what, int first, int count)
{
    struct layer_context context = p->context;
    context.batch = count;
    context.positions += first * SEQ;
    context.dropout.first_sequence += first;
    context.documents = context.documents == NULL ? NULL : context.documents + first * SEQ;
    const int32_t *targets = p->targets + first * SEQ, *tokens = p->tokens + first * SEQ;
    struct tensor x = tensor_rows(p->x, first * SEQ, count * SEQ), dx = tensor_rows(p->dx, first * SEQ, count * SEQ);
    struct tensor y = tensor_rows(p->output, first * SEQ, count * SEQ);
    struct tensor dy = tensor_rows(p->cotangent, first * SEQ, count * SEQ);
    const struct layer_kind *kind = &layer_kinds[p->block];
    bool backward = what != FORWARD;

    if (p->part == PART_BLOCK) {
        void *saved = kind->forward(&context, y, x, p->weights, p->run);
        if (backward)
            kind->backward_input(&context, dx, dy, p->weights, saved, p->run);
        if (what & POISON)
            poison_weights(p);
        if (backward)
            kind->backward_weight(&context, p->gradients, saved);
    } else if (p->part == PART_LAYER) {
        struct layer_saved *saved = layer_forward(&context, y, x, p->weights, p->run);
        if (backward)
            layer_backward_input(&context, dx, dy, p->weights, saved, p->run);
        if (what & POISON)
            poison_weights(p);
        if (backward)
            layer_backward_weight(&context, p->gradients, saved);
    } else if (p->part == PART_HEAD) {
        struct head_saved *saved = head_forward(&context, y, x, targets, &p->head, p->run);
        if (backward)
            head_backward_input(&context, dx, dy, targets, &p->head, saved, p->run);
        if (what & POISON)
            poison_weights(p);
        if (backward)
            head_backward_weight(&context, &p->head_gradients, saved);
    } else {
        context.ops->embedding_forward(y, tokens, p->linear);
        if (backward)
            context.ops->embedding_backward(p->linear_gradient, tokens, dy);
    }
}

/* Runs the part and returns <cotangent, output>; gradients are added to. */
static double problem_run(struct problem *p, int what)
{
    struct arena_mark mark = arena_mark(p->run);
    size_t scratch_used = arena_used(p->context.scratch);
    p->fact = (struct routing_fact){.whole = true};
    memory_poison(p->output.data, (size_t)tensor_bytes(p->output));
    if (p->part == PART_LINEAR)
        run_linear(p, what);
    else
        run_rows(p, what, 0, BATCH);
    ck_assert_uint_eq(arena_used(p->context.scratch), scratch_used); /* temporaries are gone */
    double loss = 0;
    for (int c = 0; p->fact.aux && c < p->fact.cells; c++) loss += p->aux_scale[c] * (p->fact.aux[c] + p->fact.z[c]);
    arena_release(p->run, mark);

    for (int64_t i = 0; i < tensor_count(p->output); i++)
        loss += format_get(p->cotangent.data, (size_t)i, p->cotangent.storage)
                * format_get(p->output.data, (size_t)i, p->output.storage);
    return loss;
}

/* ---- finite differences ---- */

/* Central difference of the loss along `direction` (unit length) of one variable. */
static double difference_along(struct problem *p, struct variable *v, const double *direction)
{
    const double h = 1e-5;
    int64_t n = tensor_count(v->value);
    double *x = values(v->value), loss[2];
    double *saved = malloc((size_t)n * sizeof *saved);
    memcpy(saved, x, (size_t)n * sizeof *saved);
    for (int side = 0; side < 2; side++) {
        for (int64_t i = 0; i < n; i++)
            x[i] = saved[i] + (side == 0 ? h : -h) * direction[i];
        loss[side] = problem_run(p, FORWARD);
    }
    memcpy(x, saved, (size_t)n * sizeof *saved);
    free(saved);
    return (loss[0] - loss[1]) / (2 * h);
}

static double norm(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

/* The gradient of a key bias is zero in exact arithmetic where no RoPE turns the keys (softmax does not
 * see what is added to all scores of a query), so the query bias' gradient is its measure. */
static double gradient_scale(struct problem *p, const struct variable *v)
{
    if (strcmp(v->name, "layers.5.attention.wk.bias") == 0 && !p->model.rope)
        v--; /* biases of queries and keys follow each other */
    return norm(values(v->gradient), tensor_count(v->gradient));
}

/* At most `samples` elements one by one (0: all), then one direction that moves every element. */
static void check_variable(struct problem *p, struct variable *v, int64_t samples)
{
    int64_t n = tensor_count(v->value);
    const double *gradient = values(v->gradient);
    double scale = gradient_scale(p, v), squares = 0, along = 0;
    double *direction = calloc((size_t)n, sizeof *direction);
    ck_assert_msg(scale > 1e-3, "%s: gradient norm %g says nothing", v->name, scale);

    int64_t step = samples == 0 || n <= samples ? 1 : n / samples;
    for (int64_t i = 0; i < n; i += step) {
        direction[i] = 1;
        double error = difference_along(p, v, direction) - gradient[i];
        direction[i] = 0;
        squares += error * error;
    }
    ck_assert_msg(sqrt(squares) <= 1e-6 * scale, "%s: off by %g of %g (variant causal %d rope %d bias %d doc %d kv %d)",
                  v->name, sqrt(squares), scale, p->model.causal, p->model.rope, p->model.bias,
                  p->model.document_mask, p->model.kv_heads);

    struct random_stream stream = random_stream(11, v->name);
    for (int64_t i = 0; i < n; i++)
        direction[i] = random_normal_at(&stream, (uint64_t)i);
    double length = norm(direction, n);
    for (int64_t i = 0; i < n; i++) {
        direction[i] /= length;
        along += direction[i] * gradient[i];
    }
    double error = fabs(difference_along(p, v, direction) - along);
    ck_assert_msg(error <= 1e-6 * scale / sqrt((double)n) * 10, "%s: along a direction off by %g of %g", v->name, error,
                  scale);
    free(direction);
}

static void check_part(enum part part, enum layer_kind_index block, int variant, int64_t samples)
{
    struct problem *p = problem_new(part, block, variant, FORMAT_FP64);
    zero_gradients(p);
    problem_run(p, BACKWARD);
    for (int i = 0; i < p->variables; i++)
        check_variable(p, &p->variable[i], samples);
    problem_free(p);
}

static const int rich = VARIANT_CAUSAL | VARIANT_ROPE | VARIANT_BIAS | VARIANT_DOCUMENTS | VARIANT_GROUPED;

/* A linear layer, with and without bias: every element of x, W and b. */
START_TEST(test_linear)
{
    check_part(PART_LINEAR, 0, VARIANT_BIAS, 0);
    check_part(PART_LINEAR, 0, 0, 0);
}
END_TEST

/* Every line of layers.def: every element of x and of every parameter, with everything on and with everything off. */
START_TEST(test_block)
{
    check_part(PART_BLOCK, (enum layer_kind_index)_i, rich, 0);
    check_part(PART_BLOCK, (enum layer_kind_index)_i, 0, 0);
}
END_TEST

/* Latent attention and experts in their variants. */
START_TEST(test_kinds)
{
    static const int latent[] = { VARIANT_LATENT | VARIANT_BIAS | VARIANT_CAUSAL, VARIANT_LATENT | VARIANT_QUERIES_DIRECT,
                                  VARIANT_LATENT | VARIANT_QUERIES_DIRECT | VARIANT_BIAS | VARIANT_ROPE };
    static const int experts[] = { VARIANT_BIAS, VARIANT_SOFTMAX_SCORES | VARIANT_SUM, VARIANT_SUM | VARIANT_NOT_SHARED,
                                   VARIANT_SOFTMAX_SCORES | VARIANT_AS_THEY_ARE, VARIANT_BIAS | VARIANT_AS_THEY_ARE,
                                   VARIANT_SOFTMAX_SCORES | VARIANT_NOT_SHARED | VARIANT_BIAS };
    for (size_t i = 0; i < sizeof latent / sizeof latent[0]; i++) check_part(PART_BLOCK, LAYER_KIND_mla_attention, latent[i], 0);
    for (size_t i = 0; i < sizeof experts / sizeof experts[0]; i++) check_part(PART_BLOCK, LAYER_KIND_moe, experts[i], 0);
    check_part(PART_LAYER, 0, VARIANT_LATENT | VARIANT_EXPERTS | VARIANT_BIAS | VARIANT_CAUSAL, 11);
}
END_TEST

/* Norms of heads, with and without what else there may be in the block. */
START_TEST(test_head_norms)
{
    check_part(PART_BLOCK, LAYER_KIND_attention_block, VARIANT_HEAD_NORMS, 0);
    check_part(PART_BLOCK, LAYER_KIND_attention_block, VARIANT_HEAD_NORMS | rich, 0);
    check_part(PART_LAYER, 0, VARIANT_HEAD_NORMS | VARIANT_GROUPED | VARIANT_EXPERTS | VARIANT_CAUSAL | VARIANT_ROPE, 11);
}
END_TEST

/* With the mask of one step held. */
START_TEST(test_dropout)
{
    for (int block = 0; block < LAYER_KIND_COUNT; block++)
        check_part(PART_BLOCK, (enum layer_kind_index)block, VARIANT_DROPOUT | VARIANT_BIAS | VARIANT_CAUSAL | VARIANT_ROPE, 0);
    check_part(PART_LAYER, 0, VARIANT_DROPOUT | rich, 11);
    check_part(PART_LAYER, 0, VARIANT_DROPOUT | VARIANT_LATENT | VARIANT_EXPERTS | VARIANT_BIAS | VARIANT_CAUSAL, 11);
}
END_TEST

static const int router_variants[] = {
    VARIANT_AUXILIARY, VARIANT_AUXILIARY | VARIANT_SOFTMAX_SCORES | VARIANT_SUM, VARIANT_AUXILIARY | VARIANT_GROUPS | VARIANT_SELECTION_BIAS | VARIANT_AS_THEY_ARE,
    VARIANT_SELECTION_BIAS | VARIANT_SOFTMAX_SCORES, VARIANT_GROUPS | VARIANT_BIAS | VARIANT_SUM, VARIANT_CAPACITY | VARIANT_BIAS,
    VARIANT_CAPACITY | VARIANT_POSITION | VARIANT_SUM, VARIANT_CAPACITY | VARIANT_AFTER_DROP | VARIANT_SUM, VARIANT_CAPACITY | VARIANT_AFTER_DROP | VARIANT_POSITION,
    VARIANT_CAPACITY | VARIANT_AFTER_DROP | VARIANT_SOFTMAX_SCORES | VARIANT_AUXILIARY | VARIANT_SELECTION_BIAS | VARIANT_GROUPS,
    VARIANT_CAPACITY | VARIANT_AS_THEY_ARE | VARIANT_NOT_SHARED | VARIANT_AUXILIARY, VARIANT_ALIGNED | VARIANT_BIAS | VARIANT_CAPACITY,
};

/* The router's variants, auxiliary losses' gradients among them: every element of x and of every parameter. */
START_TEST(test_router)
{
    check_part(PART_BLOCK, LAYER_KIND_moe, router_variants[_i], 0);
}
END_TEST

/* What is wrong in a forward is followed by its backward, as automatic differentiation would: each mistake that has one. */
static const struct { const char *site, *deviation; int variant; } mistakes[] = {
    {"moe.score_axis", "never", VARIANT_SOFTMAX_SCORES | VARIANT_SUM}, {"moe.combine_scores", "never", VARIANT_SELECTION_BIAS | VARIANT_SUM},
    {"moe.normalize_axis", "never", VARIANT_SUM}, {"moe.normalize_axis", "never", 0}, {"moe.tie", "never", VARIANT_SUM},
    {"moe.normalize_order", "never", VARIANT_CAPACITY | VARIANT_AFTER_DROP | VARIANT_SUM}, {"moe.capacity_top_k", "omit", VARIANT_CAPACITY},
    {"moe.drop_policy", "never", VARIANT_CAPACITY}, {"moe.locations", "never", VARIANT_CAPACITY}, {"moe.token_index", "never", VARIANT_SUM},
    {"moe.expert_rows", "wrong-range", VARIANT_BIAS}, {"moe.expert_bias", "never", VARIANT_BIAS}, {"moe.unpermute", "never", VARIANT_BIAS | VARIANT_SUM},
    {"moe.unpermute", "never", VARIANT_CAPACITY}, {"moe.aux_score", "never", VARIANT_AUXILIARY}, {"moe.aux_choice", "never", VARIANT_AUXILIARY | VARIANT_CAPACITY},
    {"moe.aux_top_k", "omit", VARIANT_AUXILIARY}, {"moe.routed_scaling", "omit", VARIANT_SUM},
};

START_TEST(test_mistakes)
{
    struct problem *p = problem_new(PART_BLOCK, LAYER_KIND_moe, mistakes[_i].variant, FORMAT_FP64), *healthy;
    struct armed armed = {.site = model_site_find(mistakes[_i].site)};
    for (int i = 0; i < model_deviation_count(); i++) {
        const struct deviation *deviation = model_deviation(i);
        if (deviation->kind == armed.site->kind && !strcmp(deviation->name, mistakes[_i].deviation)) armed.deviation = deviation;
    }
    ck_assert_ptr_nonnull(armed.deviation);
    struct site_plan *plan = site_plan_new(1);
    site_plan_arm(plan, &armed);
    p->context.plan = plan;
    p->context.router = &p->router;
    zero_gradients(p);
    double loss = problem_run(p, BACKWARD);
    ck_assert_uint_gt(site_hits(plan, 0), 0);
    for (int i = 0; i < p->variables; i++) check_variable(p, &p->variable[i], 40);
    healthy = problem_new(PART_BLOCK, LAYER_KIND_moe, mistakes[_i].variant, FORMAT_FP64);
    healthy->context.router = &healthy->router;
    bool same = problem_run(healthy, FORWARD) == loss;
    ck_assert_msg(same == !strcmp(mistakes[_i].site, "moe.tie"), "%s changes nothing, or ties where nothing does", mistakes[_i].site);
    site_plan_free(plan);
    problem_free(healthy);
    problem_free(p);
}
END_TEST

/* What the record says of the routing is what the definition makes of the noted logits: auxiliary losses, capacity. */
START_TEST(test_router_facts)
{
    struct problem *p = problem_new(PART_BLOCK, LAYER_KIND_moe, router_variants[_i], FORMAT_FP64);
    struct moe_config *moe = &p->model.moe;
    p->fact = (struct routing_fact){.whole = true};
    run_rows(p, FORWARD, 0, BATCH);
    const struct routing_fact *fact = &p->fact;
    int64_t rows = 0, dropped = 0;
    for (int e = 0; e < moe->experts; e++) rows += fact->load[e];
    ck_assert_int_eq(rows + fact->dropped, ROWS * TOP_K);
    ck_assert_int_eq(fact->rows, rows);
    for (int c = 0; c < 2; c++) {
        int64_t first = p->cell_first[c], end = p->cell_first[c + 1], held[6] = {0}, wanted[6] = {0};
        int64_t room = (int64_t)ceil((double)(end - first) * TOP_K / moe->experts * moe->capacity_factor);
        for (int64_t i = first * TOP_K; i < end * TOP_K; i++) {
            held[fact->chosen[i]] += fact->kept[i];
            wanted[fact->chosen[i]]++;
            dropped += !fact->kept[i];
        }
        for (int e = 0; e < moe->experts; e++)
            ck_assert_int_eq(held[e], moe->capacity_factor > 0 && wanted[e] > room ? room : wanted[e]);
        if (moe->aux_loss_coeff > 0) ck_assert_double_ge(fact->aux[c], 0.9 * moe->aux_loss_coeff); /* coefficient times 1 where use is even */
    }
    ck_assert_int_eq(dropped, fact->dropped);
    if (router_variants[_i] & VARIANT_CAPACITY) ck_assert_int_gt(dropped, 0);
    problem_free(p);
}
END_TEST

/* A whole layer in all 32 variants of mask, RoPE, bias and grouped queries. */
START_TEST(test_layer)
{
    check_part(PART_LAYER, 0, _i, 11);
}
END_TEST

/* Head and loss with some targets ignored, whatever their cotangent says; the loss of those is 0. */
START_TEST(test_head)
{
    check_part(PART_HEAD, 0, 0, 0);
    struct problem *p = problem_new(PART_HEAD, 0, 0, FORMAT_FP64);
    zero_gradients(p);
    problem_run(p, BACKWARD);
    for (int t = 0; t < ROWS; t++) {
        double loss = values(p->output)[t], row = norm(values(p->dx) + t * DIM, DIM);
        ck_assert_msg(p->targets[t] < 0 ? loss == 0 && row == 0 : loss > 0 && row > 0, "row %d", t);
    }
    problem_free(p);
}
END_TEST

/* The embedding, with tokens that occur more than once and never. */
START_TEST(test_embedding)
{
    check_part(PART_EMBEDDING, 0, 0, 0);
}
END_TEST

/* ---- promises ---- */

static const enum part parts[] = { PART_LAYER, PART_HEAD, PART_EMBEDDING };
enum { PARTS = sizeof parts / sizeof parts[0] };

static void copy_gradients(const struct problem *p, void *ret[VARIABLES_MAX])
{
    for (int i = 0; i < p->variables; i++) {
        size_t bytes = (size_t)tensor_bytes(p->variable[i].gradient);
        ret[i] = memcpy(malloc(bytes), p->variable[i].gradient.data, bytes);
    }
}

static void free_copies(const struct problem *p, void *copies[VARIABLES_MAX])
{
    for (int i = 0; i < p->variables; i++)
        free(copies[i]);
}

/* Weight gradients are added to what is there; the input's gradient is not. */
START_TEST(test_accumulates)
{
    struct problem *p = problem_new(parts[_i], 0, rich, FORMAT_FP64);
    void *once[VARIABLES_MAX];
    zero_gradients(p);
    problem_run(p, BACKWARD);
    copy_gradients(p, once);
    for (int i = 0; i < p->variables; i++)
        fill(p->variable[i].gradient, "what was there", 2.0, 1.0);
    problem_run(p, BACKWARD);
    for (int i = 0; i < p->variables; i++) {
        struct tensor gradient = p->variable[i].gradient, before = make(p, tensor_count(gradient), 0);
        bool is_input = p->variable[i].value.data == p->x.data;
        fill(before, "what was there", 2.0, 1.0);
        for (int64_t k = 0; k < tensor_count(gradient); k++) {
            double added = values(gradient)[k] - (is_input ? 0.0 : values(before)[k]);
            double expected = ((const double *)once[i])[k];
            ck_assert_msg(fabs(added - expected) <= 1e-12 * (10 + fabs(expected)), "%s[%d]", p->variable[i].name,
                          (int)k);
        }
    }
    free_copies(p, once);
    problem_free(p);
}
END_TEST

/* Batch 3 as 2 + 1: the same bits in the output, the input's gradient and, added in order, the weights' gradients. */
static void check_cut(enum part part, int variant, enum format storage)
{
    struct problem *p = problem_new(part, 0, variant, storage);
    size_t output_bytes = (size_t)tensor_bytes(p->output);
    void *whole[VARIABLES_MAX], *output = malloc(output_bytes);
    zero_gradients(p);
    problem_run(p, BACKWARD);
    memcpy(output, p->output.data, output_bytes);
    copy_gradients(p, whole);

    zero_gradients(p);
    memory_poison(p->output.data, output_bytes);
    run_rows(p, BACKWARD, 0, 2);
    run_rows(p, BACKWARD, 2, 1);
    ck_assert_int_eq(memcmp(output, p->output.data, output_bytes), 0);
    for (int i = 0; i < p->variables; i++) {
        struct tensor gradient = p->variable[i].gradient;
        ck_assert_msg(memcmp(whole[i], gradient.data, (size_t)tensor_bytes(gradient)) == 0, "%s differs",
                      p->variable[i].name);
    }
    free_copies(p, whole);
    free(output);
    problem_free(p);
}

START_TEST(test_micro_batches)
{
    for (int storage = FORMAT_FP64; storage <= FORMAT_FP32; storage++) {
        check_cut(parts[_i], rich, (enum format)storage);
        check_cut(parts[_i], VARIANT_BIAS, (enum format)storage);
        check_cut(parts[_i], VARIANT_BIAS | VARIANT_DROPOUT, (enum format)storage);
    }
}
END_TEST

/* What a block's forward leaves in its arena. */
static size_t kept_after_forward(struct problem *p)
{
    struct arena_mark mark = arena_mark(p->run);
    size_t before = arena_used(p->run);
    layer_kinds[p->block].forward(&p->context, p->output, p->x, p->weights, p->run);
    size_t kept = arena_used(p->run) - before;
    arena_release(p->run, mark);
    return kept;
}

/* Each part that is dropped and made again: the same bits, from memory that was overwritten in between, and less of it. */
static void check_recompute(enum layer_kind_index block, int variant, unsigned dropped, bool falls)
{
    struct problem *p = problem_new(PART_BLOCK, block, variant, FORMAT_FP64);
    size_t output_bytes = (size_t)tensor_bytes(p->output), kept = kept_after_forward(p);
    void *whole[VARIABLES_MAX], *output = malloc(output_bytes);
    zero_gradients(p);
    problem_run(p, BACKWARD);
    memcpy(output, p->output.data, output_bytes);
    copy_gradients(p, whole);
    zero_gradients(p);
    p->context.recompute = dropped;
    problem_run(p, BACKWARD);
    ck_assert_int_eq(memcmp(output, p->output.data, output_bytes), 0);
    for (int i = 0; i < p->variables; i++) {
        ck_assert_msg(memcmp(whole[i], p->variable[i].gradient.data, (size_t)tensor_bytes(p->variable[i].gradient)) == 0,
                      "%s: parts %x: %s differs", layer_kinds[block].name, dropped, p->variable[i].name);
    }
    ck_assert_msg((kept_after_forward(p) < kept) == falls, "%s: parts %x keep %zu of %zu bytes", layer_kinds[block].name, dropped, kept_after_forward(p), kept);
    free_copies(p, whole);
    free(output);
    problem_free(p);
}

START_TEST(test_recompute)
{
    static const struct { enum layer_kind_index block; int variant; unsigned has; } drop[] = {
        {LAYER_KIND_attention_block, 0, RECOMPUTE_ATTENTION_CORE},
        {LAYER_KIND_mla_attention, 0, RECOMPUTE_ATTENTION_CORE | RECOMPUTE_DENSE_MLA_QKV},
        {LAYER_KIND_mla_attention, VARIANT_QUERIES_DIRECT, RECOMPUTE_ATTENTION_CORE | RECOMPUTE_DENSE_MLA_QKV},
        {LAYER_KIND_mla_attention, VARIANT_EXPERTS, RECOMPUTE_ATTENTION_CORE | RECOMPUTE_MOE_MLA_QKV},
        {LAYER_KIND_moe, 0, RECOMPUTE_MOE_PERMUTE | RECOMPUTE_MOE_ACTIVATION | RECOMPUTE_MOE_RMSNORM},
        {LAYER_KIND_moe, VARIANT_NOT_SHARED, RECOMPUTE_MOE_PERMUTE | RECOMPUTE_MOE_ACTIVATION | RECOMPUTE_MOE_RMSNORM},
        {LAYER_KIND_feed_forward, 0, 0},
    };
    const unsigned all = 63;
    for (size_t i = 0; i < sizeof drop / sizeof drop[0]; i++) {
        for (int dropout = 0; dropout < 2; dropout++) {
            int variant = drop[i].variant | (rich & ~VARIANT_GROUPED) | (dropout ? VARIANT_DROPOUT : 0);
            for (unsigned dropped = 1; dropped <= all; dropped++) {
                if ((dropped & ~drop[i].has) == 0) check_recompute(drop[i].block, variant, dropped, true);
            }
            check_recompute(drop[i].block, variant, all & ~drop[i].has, false);
        }
    }
}
END_TEST

/* backward_weight reads no weights: they may be resharded after backward_input. */
START_TEST(test_weights_not_needed)
{
    struct problem *p = problem_new(parts[_i], 0, rich, FORMAT_FP64);
    void *kept[VARIABLES_MAX];
    zero_gradients(p);
    problem_run(p, BACKWARD);
    copy_gradients(p, kept);
    zero_gradients(p);
    problem_run(p, BACKWARD | POISON);
    for (int i = 0; i < p->variables; i++) {
        struct tensor gradient = p->variable[i].gradient;
        ck_assert_msg(memcmp(kept[i], gradient.data, (size_t)tensor_bytes(gradient)) == 0, "%s", p->variable[i].name);
    }
    free_copies(p, kept);
    problem_free(p);
}
END_TEST

/* fp32 is the same computation: outputs and gradients agree with fp64 to rounding. */
START_TEST(test_fp32)
{
    struct problem *p[2];
    for (int s = 0; s < 2; s++) {
        p[s] = problem_new(parts[_i], 0, rich, s == 0 ? FORMAT_FP64 : FORMAT_FP32);
        zero_gradients(p[s]);
        problem_run(p[s], BACKWARD);
    }
    for (int i = 0; i < p[0]->variables; i++) {
        struct tensor wide = p[0]->variable[i].gradient, narrow = p[1]->variable[i].gradient;
        double squares = 0, scale = norm(values(wide), tensor_count(wide));
        for (int64_t k = 0; k < tensor_count(wide); k++) {
            double error = format_get(narrow.data, (size_t)k, FORMAT_FP32) - values(wide)[k];
            squares += error * error;
        }
        ck_assert_msg(sqrt(squares) <= 1e-5 * scale, "%s: %g of %g", p[0]->variable[i].name, sqrt(squares), scale);
    }
    problem_free(p[0]);
    problem_free(p[1]);
}
END_TEST

/* Names and shapes of a layer's parameters; 9 without biases, 16 with; the names are unique. */
START_TEST(test_params)
{
    struct model_config model = { .dim = DIM, .heads = HEADS, .kv_heads = KV_HEADS, .head_dim = HEAD_DIM, .ffn = FFN };
    static const struct { const char *name; int dims; int64_t rows, columns; bool norm, bias; } due[] = {
        { "attention_norm.weight", 1, DIM, 0, true, false },
        { "attention.wq.weight", 2, HEADS * HEAD_DIM, DIM, false, false },
        { "attention.wk.weight", 2, KV_HEADS * HEAD_DIM, DIM, false, false },
        { "attention.wv.weight", 2, KV_HEADS * HEAD_DIM, DIM, false, false },
        { "attention.wo.weight", 2, DIM, HEADS * HEAD_DIM, false, false },
        { "attention.wq.bias", 1, HEADS * HEAD_DIM, 0, false, true },
        { "attention.wk.bias", 1, KV_HEADS * HEAD_DIM, 0, false, true },
        { "attention.wv.bias", 1, KV_HEADS * HEAD_DIM, 0, false, true },
        { "attention.wo.bias", 1, DIM, 0, false, true },
        { "ffn_norm.weight", 1, DIM, 0, true, false },
        { "feed_forward.w1.weight", 2, FFN, DIM, false, false },
        { "feed_forward.w2.weight", 2, DIM, FFN, false, false },
        { "feed_forward.w3.weight", 2, FFN, DIM, false, false },
        { "feed_forward.w1.bias", 1, FFN, 0, false, true },
        { "feed_forward.w2.bias", 1, DIM, 0, false, true },
        { "feed_forward.w3.bias", 1, FFN, 0, false, true },
    };
    enum { DUE = sizeof due / sizeof due[0] };
    struct param_info infos[DUE];
    ck_assert_int_eq(layer_params_count(&model, 0), 9);
    model.bias = true;
    ck_assert_int_eq(layer_params_count(&model, 12), DUE);
    layer_params(&model, 12, infos);
    for (int i = 0; i < DUE; i++) {
        char name[64];
        snprintf(name, sizeof name, "layers.12.%s", due[i].name);
        ck_assert_str_eq(infos[i].name, name);
        ck_assert(infos[i].dims == due[i].dims && infos[i].is_norm == due[i].norm && infos[i].is_bias == due[i].bias);
        ck_assert(infos[i].shape[0] == due[i].rows && (infos[i].dims == 1 || infos[i].shape[1] == due[i].columns));
        if (!infos[i].is_bias) continue;
        const struct param_info *matrix = &infos[infos[i].of_matrix]; /* whose rows it has, and whose name */
        ck_assert(matrix->dims == 2 && matrix->shape[0] == infos[i].shape[0] && matrix->shape[1] == infos[i].fan_in);
        ck_assert_int_eq(strncmp(matrix->name, infos[i].name, strlen(infos[i].name) - strlen("bias")), 0);
    }
}
END_TEST

/* Floating-point operations: counted by hand, linear in the tokens. */
START_TEST(test_flops)
{
    struct model_config model = { .dim = DIM, .heads = HEADS, .kv_heads = KV_HEADS, .head_dim = HEAD_DIM, .ffn = FFN,
                                  .seq = SEQ };
    double matrices = 2.0 * ROWS * (DIM * 60 + 2 * DIM * 20 + 60 * DIM + 3 * DIM * FFN);
    double scores = 4.0 * ROWS * SEQ * 60;
    ck_assert(layer_forward_flops(&model, 0, ROWS) == matrices + scores);
    ck_assert(layer_forward_flops(&model, 0, 5 * ROWS) == 5 * (matrices + scores));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("layers");
    TCase *differences = tcase_create("finite differences"), *promises = tcase_create("promises");
    tcase_set_timeout(differences, 120);
    tcase_add_test(differences, test_linear);
    tcase_add_loop_test(differences, test_block, 0, LAYER_KIND_COUNT);
    tcase_add_test(differences, test_kinds);
    tcase_add_test(differences, test_head_norms);
    tcase_add_test(differences, test_dropout);
    tcase_add_test(promises, test_recompute);
    tcase_add_loop_test(differences, test_router, 0, sizeof router_variants / sizeof router_variants[0]);
    tcase_add_loop_test(differences, test_mistakes, 0, sizeof mistakes / sizeof mistakes[0]);
    tcase_add_loop_test(differences, test_router_facts, 0, sizeof router_variants / sizeof router_variants[0]);
    tcase_add_loop_test(differences, test_layer, 0, VARIANTS);
    tcase_add_test(differences, test_head);
    tcase_add_test(differences, test_embedding);
    tcase_add_loop_test(promises, test_accumulates, 0, PARTS);
    tcase_add_loop_test(promises, test_micro_batches, 0, PARTS);
    tcase_add_loop_test(promises, test_weights_not_needed, 0, PARTS);
    tcase_add_loop_test(promises, test_fp32, 0, PARTS);
    tcase_add_test(promises, test_params);
    tcase_add_test(promises, test_flops);
    suite_add_tcase(suite, differences);
    suite_add_tcase(suite, promises);
    return run_suite(suite, CK_NOFORK);
}
