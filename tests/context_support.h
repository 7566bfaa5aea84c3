/* context_support: one attention over a sequence that is split over ranks, and the same on one device in fp64. For the tests
 * of model/context. */
#ifndef TESTS_CONTEXT_SUPPORT_H
#define TESTS_CONTEXT_SUPPORT_H

#include "tests/support/ranks.h"

#include "model/context/context.h"
#include "model/record.h"

/* Whole tensors of all positions, in fp64: q, out, d_out, dq [B, S, H, D]; k, v, dk, dv [B, S, G, D]; lse [B, H, S]; sinks [H]. */
enum { Q, K, V, D_OUT, SINKS, OUT, LSE, DQ, DK, DV, D_SINKS, WHOLE };
static const char *const whole_names[WHOLE] = {"q", "k", "v", "d_out", "sinks", "out", "lse", "dq", "dk", "dv", "d_sinks"};

struct trial {
    const char *method, *layout, *merge;
    bool tree, overlap, reversed;
    int size, ulysses;
    int64_t batch, seq, joint;
    enum joint_place place;
    int heads, kv_heads, dim;
    bool causal, sinks;
    int64_t window;
    int documents_kind;                    /* 0: none */
    enum format storage, activation, softmax;
    int threads; uint64_t interleave;
    struct site_plan *plan;
    bool forward_only, ledgers;
    double q_times;                        /* queries are so many times as long; 0: 1 */
    /* After trial_run: */
    int32_t *documents;                    /* [B, S] or NULL */
    double *whole[WHOLE];
    double *joint_out[RANKS_MAX];          /* joint rows of out as each member has them, [B, J, H, D] */
    int32_t times[RANKS_MAX][RANKS_MAX], times_backward[RANKS_MAX][RANKS_MAX], gradient_times[RANKS_MAX][RANKS_MAX], others; int facts;
    struct ranks ranks;
    struct arena *arenas[RANKS_MAX][2], *record_arena[RANKS_MAX];
    struct context_ledgers *room[RANKS_MAX];
    struct rank_record *records[RANKS_MAX];
};

static inline size_t whole_count(const struct trial *t, int which)
{
    size_t rows = (size_t)(t->batch * t->seq);
    switch (which) {
    case Q: case OUT: case D_OUT: case DQ: return rows * (size_t)(t->heads * t->dim);
    case LSE: return rows * (size_t)t->heads;
    case SINKS: case D_SINKS: return (size_t)t->heads;
    default: return rows * (size_t)(t->kv_heads * t->dim);
    }
}

/* In (-1, 1), by its place. */
static inline double coded(size_t i, unsigned salt)
{
    unsigned long long z = (i + 1) * 0x9e3779b97f4a7c15ull + salt * 0xd1342543de82ef95ull;
    z = (z ^ z >> 29) * 0xbf58476d1ce4e5b9ull;
    return (double)((z ^ z >> 32) >> 11) * 0x1p-52 - 1;
}

/* Sum of several: near a normal number. */
static inline double normal(size_t i, unsigned salt)
{
    double sum = 0;
    for (unsigned k = 0; k < 4; k++) sum += coded(i, salt * 8 + k);
    return sum * 0.8660254037844386;
}

static inline void documents_make(struct trial *t)
{
    free(t->documents);
    t->documents = t->documents_kind ? malloc((size_t)(t->batch * t->seq + 1) * sizeof *t->documents) : NULL;
    for (int64_t b = 0; t->documents && b < t->batch; b++) {
        for (int64_t i = 0; i < t->seq; i++) {
            int32_t *d = &t->documents[b * t->seq + i];
            if (t->documents_kind == 1) *d = (int32_t)((b * 5 + i) / 17);               /* runs */
            else if (t->documents_kind == 2) *d = i % 11 == 3 || i >= t->seq - 4 ? -1 : (int32_t)(i * i % 3); /* come back; padding */
            else *d = (int32_t)(fabs(coded((size_t)(b * t->seq + i) / 3, (unsigned)t->documents_kind)) * 5) - 1;
        }
    }
}

/* Keys of one stretch are three times as long, those of another shifted: what the stretches weigh is far from equal. */
static inline void trial_inputs(struct trial *t)
{
    documents_make(t);
    for (int w = 0; w < WHOLE; w++) {
        t->whole[w] = calloc(whole_count(t, w) + 1, sizeof(double));
        for (size_t i = 0; w <= SINKS && i < whole_count(t, w); i++) {
            double value = normal(i, (unsigned)w + 1);
            if (w == Q && t->q_times != 0) value *= t->q_times;
            if (w == K) {
                int64_t row = (int64_t)i / (t->kv_heads * t->dim) % t->seq;
                if (row * 4 / t->seq == 1) value *= 3;
                if (row * 4 / t->seq == 2) value += 1.5;
            }
            t->whole[w][i] = w == SINKS ? value : format_round(t->activation, value);
            if (w == SINKS) t->whole[w][i] = format_round(t->storage, value);
        }
    }
}

/* Of the whole tensor `which`, the member's rows, or back (put). */
static inline struct tensor rows_of_whole(struct trial *t, int which, const int32_t *positions, int64_t rows, struct arena *arena)
{
    int heads = which == Q || which == OUT || which == D_OUT || which == DQ ? t->heads : t->kv_heads;
    size_t width = (size_t)(heads * t->dim), bytes = (size_t)(t->batch * rows) * width * format_storage_bytes(t->storage);
    struct tensor ret = tensor_4d(arena_alloc(arena, bytes + 1), t->storage, t->batch, rows, heads, t->dim);
    memory_poison(ret.data, bytes);
    for (int64_t r = 0; r < t->batch * rows && which < OUT; r++) {
        for (size_t c = 0; c < width; c++)
            format_set(ret.data, (size_t)r * width + c, t->storage, t->whole[which][(size_t)(r / rows * t->seq + positions[r]) * width + c]);
    }
    return ret;
}

static inline void rows_into_whole(struct trial *t, int which, const int32_t *positions, int64_t rows, struct tensor from, bool joint_of_it, int member)
{
    int64_t joint_first = t->place == JOINT_FRONT ? 0 : rows - t->joint;
    size_t width = (size_t)(from.shape[2] * from.shape[3]);
    for (int64_t r = 0; r < t->batch * rows; r++) {
        bool joint = r % rows >= joint_first && r % rows < joint_first + t->joint;
        for (size_t c = 0; c < width; c++) {
            double value = format_get(from.data, (size_t)r * width + c, from.storage), *to = &t->whole[which][(size_t)(r / rows * t->seq + positions[r]) * width + c];
            if (joint && joint_of_it) *to += value; /* parts of a sum; ranks run one after the other (threads 1) */
            else if (!joint || member == 0) *to = value;
            if (joint && which == OUT) t->joint_out[member][(size_t)((r / rows) * t->joint + r % rows - joint_first) * width + c] = value;
        }
    }
}

static pthread_mutex_t trial_lock = PTHREAD_MUTEX_INITIALIZER;

static struct group *usp_group(struct communicator *c, const struct trial *t, int rank, bool ring)
{
    int members[RANKS_MAX], count = ring ? t->size / t->ulysses : t->ulysses;
    char name[32];
    for (int i = 0; i < count; i++) members[i] = ring ? i * t->ulysses + rank % t->ulysses : rank / t->ulysses * t->ulysses + i;
    snprintf(name, sizeof name, ring ? "cp_ring" : "cp_ulysses");
    return communicator_group_of(c, name, members, count);
}

static void trial_body(struct communicator *c, int rank, void *context)
{
    struct trial *t = context;
    struct error error = {0};
    struct arena *arena = t->arenas[rank][0] = arena_new("kept", true), *scratch = t->arenas[rank][1] = arena_new("scratch", true);
    struct rank_record *record = t->records[rank] = memory_zalloc(sizeof *record);
    record->arena = t->record_arena[rank] = arena_new("record", false);
    if (t->ledgers) t->room[rank] = context_ledgers_new();
    struct context_parallel cp = {.communicator = c, .group = communicator_group(c, "dp"), .method = context_method_find(t->method),
                                  .layout = context_layout_find(t->layout), .merge = context_merge_find(t->merge), .tree = t->tree, .overlap = t->overlap,
                                  .reversed = t->reversed, .ledgers = t->room[rank]};
    if (!strcmp(t->method, "usp")) cp.ulysses = usp_group(c, t, rank, false), cp.ring = usp_group(c, t, rank, true);
    struct context_call call = {.cp = &cp, .ops = ops_get(t->storage, NULL, "fixed", &error), .activation = t->activation, .softmax = t->softmax,
                                .batch = t->batch, .seq = t->seq, .heads = t->heads, .kv_heads = t->kv_heads, .head_dim = t->dim, .causal = t->causal,
                                .window = t->window, .documents = t->documents, .joint = t->joint, .joint_place = t->place, .plan = t->plan,
                                .where = {rank, 0, 2, 1, 0, -1, NULL}, .unit = 3, .record = record, .scratch = scratch, .kept = arena};
    int64_t rows = context_rows(&call, rank);
    int32_t *positions = arena_alloc(arena, (size_t)(t->batch * rows + 1) * sizeof *positions);
    for (int64_t b = 0; b < t->batch; b++) context_positions(&call, rank, b, positions + b * rows);
    call.q = rows_of_whole(t, Q, positions, rows, arena), call.k = rows_of_whole(t, K, positions, rows, arena);
    call.v = rows_of_whole(t, V, positions, rows, arena), call.d_out = rows_of_whole(t, D_OUT, positions, rows, arena);
    call.out = rows_of_whole(t, OUT, positions, rows, arena), call.dq = rows_of_whole(t, DQ, positions, rows, arena);
    call.dk = rows_of_whole(t, DK, positions, rows, arena), call.dv = rows_of_whole(t, DV, positions, rows, arena);
    size_t bytes = (size_t)(t->batch * t->heads * rows) * format_storage_bytes(t->storage);
    call.lse = tensor_3d(arena_alloc(arena, bytes + 1), t->storage, t->batch, t->heads, rows);
    if (t->sinks) {
        call.sinks = tensor_1d(arena_alloc(arena, (size_t)t->heads * 8), t->storage, t->heads);
        call.d_sinks = tensor_1d(arena_zalloc(arena, (size_t)t->heads * 8), t->storage, t->heads);
        for (int h = 0; h < t->heads; h++) format_set(call.sinks.data, (size_t)h, t->storage, t->whole[SINKS][h]);
    }
    t->joint_out[rank] = calloc((size_t)(t->batch * t->joint * t->heads * t->dim) + 1, sizeof(double));
    context_forward(&call);
    if (!t->forward_only) context_backward(&call);
    pthread_mutex_lock(&trial_lock);
    rows_into_whole(t, OUT, positions, rows, call.out, false, rank);
    for (int64_t r = 0; r < t->batch * rows; r++) {
        for (int h = 0; h < t->heads; h++)
            t->whole[LSE][(r / rows * t->heads + h) * t->seq + positions[r]] = format_get(call.lse.data, (size_t)((r / rows * t->heads + h) * rows + r % rows), t->storage);
    }
    if (!t->forward_only) {
        rows_into_whole(t, DQ, positions, rows, call.dq, true, rank);
        rows_into_whole(t, DK, positions, rows, call.dk, true, rank);
        rows_into_whole(t, DV, positions, rows, call.dv, true, rank);
        for (int h = 0; h < t->heads && t->sinks; h++) t->whole[D_SINKS][h] += format_get(call.d_sinks.data, (size_t)h, t->storage);
    }
    for (int i = 0; i < record->consumptions.count; i++) {
        const struct consumption_fact *fact = &record->consumptions.items[i];
        t->facts++;
        t->others += fact->others;
        REQUIRE(fact->size == t->size && fact->me == rank && fact->step == 2 && fact->microbatch == 1 && fact->unit == 3);
        for (int m = 0; m < t->size; m++) {
            (fact->backward ? t->times_backward : t->times)[rank][m] = fact->times[m];
            if (fact->backward) t->gradient_times[rank][m] = fact->gradient_times[m];
        }
    }
    pthread_mutex_unlock(&trial_lock);
}

/* Everything is freed by trial_done. */
static inline void trial_run(struct trial *t)
{
    trial_inputs(t);
    t->ranks = (struct ranks){.mesh = mesh_line(t->size), .body = trial_body, .context = t, .threads = t->threads, .interleave = t->interleave, .plan = t->plan};
    ranks_run(&t->ranks);
}

static inline void trial_done(struct trial *t)
{
    for (int r = 0; r < RANKS_MAX; r++) {
        arena_free(t->arenas[r][0]);
        arena_free(t->arenas[r][1]);
        arena_free(t->record_arena[r]);
        context_ledgers_free(t->room[r]);
        free(t->records[r]);
        free(t->joint_out[r]);
        t->arenas[r][0] = t->arenas[r][1] = t->record_arena[r] = NULL;
        t->room[r] = NULL, t->records[r] = NULL, t->joint_out[r] = NULL;
    }
    for (int w = 0; w < WHOLE; w++) free(t->whole[w]), t->whole[w] = NULL;
    free(t->documents);
    t->documents = NULL;
    ranks_done(&t->ranks);
}

static inline struct tensor whole_tensor(const struct trial *t, double *data, int which)
{
    int heads = which == Q || which == OUT || which == D_OUT || which == DQ ? t->heads : t->kv_heads;
    if (which == LSE) return tensor_3d(data, FORMAT_FP64, t->batch, t->heads, t->seq);
    return tensor_4d(data, FORMAT_FP64, t->batch, t->seq, heads, t->dim);
}

/* One device, fp64, on the inputs as they are (rounded): ret[OUT ..], caller frees. rounded_out: the backward reads the output in
 * the activation format, as every training does. */
static inline void reference(const struct trial *t, double *ret[WHOLE], bool rounded_out)
{
    struct error error = {0};
    const struct ops *ops = ops_get(FORMAT_FP64, NULL, "fixed", &error);
    struct attention_view view = {.q_documents = t->documents, .k_documents = t->documents, .causal = t->causal, .window = t->window};
    struct tensor x[WHOLE];
    for (int w = 0; w < WHOLE; w++) {
        ret[w] = w < OUT ? t->whole[w] : calloc(whole_count(t, w) + 1, sizeof(double));
        x[w] = whole_tensor(t, ret[w], w);
    }
    void *scratch = malloc(ops->attention_scratch(t->seq, t->dim));
    ops->attention_forward(x[OUT], x[LSE], x[Q], x[K], x[V], &view, FORMAT_FP64, scratch);
    for (int64_t r = 0; r < t->batch * t->seq && t->sinks; r++) {
        for (int h = 0; h < t->heads; h++) {
            double *lse = &ret[LSE][(r / t->seq * t->heads + h) * t->seq + r % t->seq], sink = t->whole[SINKS][h], most = fmax(*lse, sink);
            double all = most + log(exp(*lse - most) + exp(sink - most)), delta = 0;
            for (int d = 0; d < t->dim; d++) {
                double *o = &ret[OUT][(r * t->heads + h) * t->dim + d];
                *o *= exp(*lse - all);
                delta += *o * t->whole[D_OUT][(r * t->heads + h) * t->dim + d];
            }
            *lse = all;
            ret[D_SINKS][h] -= exp(sink - all) * delta;
        }
    }
    struct tensor o = x[OUT];
    if (rounded_out) {
        o.data = malloc((size_t)tensor_bytes(o) + 1);
        for (size_t i = 0; i < whole_count(t, OUT); i++) ((double *)o.data)[i] = format_round(t->activation, ret[OUT][i]);
    }
    ops->attention_backward(x[DQ], x[DK], x[DV], x[D_OUT], x[Q], x[K], x[V], o, x[LSE], &view, FORMAT_FP64, scratch);
    if (rounded_out) free(o.data);
    free(scratch);
}

static inline void reference_free(double *ret[WHOLE])
{
    for (int w = OUT; w < WHOLE; w++) free(ret[w]);
}

#endif
