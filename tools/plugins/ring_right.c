/* ring_right: ring attention, forward and backward, right for every layout, mask and number of members.
 *
 * Member r sends to r+1 and receives from r-1; at step s it has the keys and values of member (r - s) mod P. The next block
 * moves while this one is computed. Who sees whom is decided by global positions alone, so that it does not matter which rows a
 * member has. A row's result over the blocks so far is (acc, largest, sum): out = acc / sum, lse = largest + log(sum), and a
 * new score that is larger scales both down (Milakov & Gimelshein 2018).
 * Backward: with p = exp(score - lse) of the whole row, D = d_out . out,
 *     dv += p d_out,  ds = p (d_out . v - D) scale,  dq += ds k,  dk += ds q
 * dk and dv of a block go round with it and make one hop more than the block, home to its owner: P hops, not P - 1.
 * Sums are in double; what moves is in the run's own numbers. */
#include <hpsim.h>
#include <math.h>

/* What the wrong ones beside this file change (ring_local_only.c ...). Here all is right. */
#ifndef RING_NAME
#define RING_NAME "ring_right"
#endif
#ifndef RING_COMPUTES /* is the block of this step looked at? */
#define RING_COMPUTES(a, step) ((void)(a), (void)(step), 1)
#endif
#ifndef RING_MERGES   /* is a block's result added to what there is, not put in its place? */
#define RING_MERGES 1
#endif
#ifndef RING_BLOCKS   /* are sends blocking and before the receives? */
#define RING_BLOCKS 0
#endif

typedef struct hpsim_attention attention;

static double load(const attention *a, const void *x, int64_t i)
{
    return a->real_bytes == 4 ? (double)((const float *)x)[i] : ((const double *)x)[i];
}

static void store(const attention *a, void *x, int64_t i, double value)
{
    if (a->real_bytes == 4) ((float *)x)[i] = (float)value;
    else ((double *)x)[i] = value;
}

static void zero(const attention *a, void *x, int64_t count)
{
    int64_t i;
    for (i = 0; i < count; i++) store(a, x, i, 0);
}

static double *doubles(const attention *a, int64_t count)
{
    double *x = a->api->workspace(a->call, (size_t)(count + 1) * sizeof *x);
    int64_t i;
    for (i = 0; x && i < count; i++) x[i] = 0;
    return x;
}

static int owner_at(const attention *a, int step) { return (a->member - step + a->members) % a->members; }
static int64_t q_at(const attention *a, int64_t b, int64_t row, int h) { return ((b * a->rows + row) * a->heads + h) * a->head_dim; }
static int64_t row_at(const attention *a, int64_t b, int64_t row, int h) { return (b * a->heads + h) * a->rows + row; }
static int64_t k_at(const attention *a, int64_t rows, int64_t b, int64_t row, int h)
{
    return ((b * rows + row) * a->kv_heads + h / (a->heads / a->kv_heads)) * a->head_dim;
}

/* ---- blocks: the keys, values and positions of one member ---- */

struct block {
    int64_t rows, count;        /* count: numbers in k, and in v */
    void *k, *v, *dk, *dv;
    int32_t *positions;         /* [batch, rows] */
};

static int64_t most_rows(const attention *a)
{
    int64_t most = 0;
    int m;
    for (m = 0; m < a->members; m++) if (a->rows_of[m] > most) most = a->rows_of[m];
    return most;
}

static int block_new(const attention *a, struct block *block, int gradients)
{
    size_t bytes = (size_t)(a->batch * most_rows(a) * a->kv_heads * a->head_dim + 1) * (size_t)a->real_bytes;
    block->k = a->api->workspace(a->call, bytes);
    block->v = a->api->workspace(a->call, bytes);
    block->dk = gradients ? a->api->workspace(a->call, bytes) : NULL;
    block->dv = gradients ? a->api->workspace(a->call, bytes) : NULL;
    block->positions = a->api->workspace(a->call, (size_t)(a->batch * most_rows(a) + 1) * sizeof(int32_t));
    return block->k && block->v && block->positions && (!gradients || (block->dk && block->dv)) ? 0 : 1;
}

static void block_is_of(const attention *a, struct block *block, int owner)
{
    int64_t b;
    block->rows = a->rows_of[owner];
    block->count = a->batch * block->rows * a->kv_heads * a->head_dim;
    for (b = 0; b < a->batch; b++) a->api->positions(a->call, owner, b, block->positions + b * block->rows);
}

static void block_own(const attention *a, struct block *block)
{
    int64_t i;
    block_is_of(a, block, a->member);
    for (i = 0; i < block->count; i++) {
        store(a, block->k, i, load(a, a->k, i));
        store(a, block->v, i, load(a, a->v, i));
    }
}

static int sees(const attention *a, int64_t b, int64_t query, int64_t key)
{
    const int32_t *document = a->documents ? a->documents + b * a->seq : NULL;
    int64_t distance = query > key ? query - key : key - query;
    if (a->causal && key > query) return 0;
    if (a->window > 0 && distance >= a->window) return 0;
    return !document || (document[query] >= 0 && document[query] == document[key]);
}

static double score(const attention *a, int64_t q, const struct block *block, int64_t k)
{
    double sum = 0;
    int d;
    for (d = 0; d < a->head_dim; d++) sum += load(a, a->q, q + d) * load(a, block->k, k + d);
    return sum * a->scale;
}

/* ---- moving ---- */

enum { TAG_K, TAG_V, TAG_DK, TAG_DV };

struct motion { struct hpsim_transfer *transfers[4]; };

/* `from` goes on to the next member, the previous one's comes to `to`. */
static void start(const attention *a, struct motion *m, const void *const from[2], int64_t from_count, void *const to[2], int64_t to_count, int tag, enum hpsim_wire wire)
{
    int next = (a->member + 1) % a->members, previous = (a->member + a->members - 1) % a->members, i;
    for (i = 0; i < 2; i++) {
        if (RING_BLOCKS) a->api->send(a->call, next, tag + i, from[i], from_count, wire);
        m->transfers[i] = RING_BLOCKS ? NULL : a->api->send_start(a->call, next, tag + i, from[i], from_count, wire);
    }
    for (i = 0; i < 2; i++) m->transfers[2 + i] = a->api->receive_start(a->call, previous, tag + i, to[i], to_count, wire);
}

static void finish(const attention *a, struct motion *m)
{
    int i;
    for (i = 0; i < 4; i++) if (m->transfers[i]) a->api->wait(a->call, m->transfers[i]);
}

static void start_block(const attention *a, struct motion *m, const struct block *from, struct block *to, int step)
{
    const void *out[2] = {from->k, from->v};
    void *in[2] = {to->k, to->v};
    block_is_of(a, to, owner_at(a, step + 1));
    start(a, m, out, from->count, in, to->count, TAG_K, HPSIM_WIRE_ACTIVATION);
}

/* ---- forward ---- */

struct running { double *acc, *largest, *sum; }; /* [batch, heads, rows, head_dim], [batch, heads, rows] */

static void row_add(const attention *a, struct running *r, const struct block *block, int64_t b, int64_t row, int h)
{
    int64_t at = row_at(a, b, row, h), key;
    int32_t query = a->positions[b * a->rows + row];
    int began = RING_MERGES && r->sum[at] > 0, d;
    for (key = 0; key < block->rows; key++) {
        int64_t k = k_at(a, block->rows, b, key, h);
        double s, p, shrink;
        if (!sees(a, b, query, block->positions[b * block->rows + key])) continue;
        s = score(a, q_at(a, b, row, h), block, k);
        shrink = began && s > r->largest[at] ? exp(r->largest[at] - s) : 1;
        if (!began || s > r->largest[at]) r->largest[at] = s;
        p = exp(s - r->largest[at]);
        r->sum[at] = began ? r->sum[at] * shrink + p : p;
        for (d = 0; d < a->head_dim; d++) {
            double *acc = &r->acc[at * a->head_dim + d];
            *acc = (began ? *acc * shrink : 0) + p * load(a, block->v, k + d);
        }
        began = 1;
    }
}

static void forward_block(const attention *a, struct running *r, const struct block *block)
{
    int64_t b, row;
    int h;
    for (b = 0; b < a->batch; b++) for (row = 0; row < a->rows; row++) for (h = 0; h < a->heads; h++) row_add(a, r, block, b, row, h);
}

static void forward_end(const attention *a, const struct running *r)
{
    int64_t b, row;
    int h, d;
    for (b = 0; b < a->batch; b++) for (row = 0; row < a->rows; row++) for (h = 0; h < a->heads; h++) {
        int64_t at = row_at(a, b, row, h);
        int saw = r->sum[at] > 0;
        store(a, a->lse, at, saw ? r->largest[at] + log(r->sum[at]) : -INFINITY);
        for (d = 0; d < a->head_dim; d++) store(a, a->out, q_at(a, b, row, h) + d, saw ? r->acc[at * a->head_dim + d] / r->sum[at] : 0);
    }
}

static int forward(const struct hpsim_attention *a)
{
    int64_t rows = a->batch * a->heads * a->rows;
    struct running r = {doubles(a, rows * a->head_dim), doubles(a, rows), doubles(a, rows)};
    struct block blocks[2], swap;
    int step;
    if (!r.acc || !r.largest || !r.sum || block_new(a, &blocks[0], 0) || block_new(a, &blocks[1], 0)) return 1;
    block_own(a, &blocks[0]);
    for (step = 0; step < a->members; step++) {
        struct motion motion;
        int more = step + 1 < a->members;
        if (more) start_block(a, &motion, &blocks[0], &blocks[1], step);
        if (RING_COMPUTES(a, step)) forward_block(a, &r, &blocks[0]);
        if (more) finish(a, &motion);
        swap = blocks[0];
        blocks[0] = blocks[1];
        blocks[1] = swap;
    }
    forward_end(a, &r);
    return 0;
}

/* ---- backward ---- */

static void row_back(const attention *a, double *dq, struct block *block, double delta, int64_t b, int64_t row, int h)
{
    int64_t q = q_at(a, b, row, h), key;
    double lse = load(a, a->lse, row_at(a, b, row, h));
    int d;
    for (key = 0; key < block->rows; key++) {
        int64_t k = k_at(a, block->rows, b, key, h);
        double p, dp = 0, ds;
        if (!sees(a, b, a->positions[b * a->rows + row], block->positions[b * block->rows + key])) continue;
        p = exp(score(a, q, block, k) - lse);
        for (d = 0; d < a->head_dim; d++) dp += load(a, a->d_out, q + d) * load(a, block->v, k + d);
        ds = p * (dp - delta) * a->scale;
        for (d = 0; d < a->head_dim; d++) {
            dq[q + d] += ds * load(a, block->k, k + d);
            store(a, block->dk, k + d, load(a, block->dk, k + d) + ds * load(a, a->q, q + d));
            store(a, block->dv, k + d, load(a, block->dv, k + d) + p * load(a, a->d_out, q + d));
        }
    }
}

static void backward_block(const attention *a, double *dq, const double *delta, struct block *block)
{
    int64_t b, row;
    int h;
    for (b = 0; b < a->batch; b++) for (row = 0; row < a->rows; row++) for (h = 0; h < a->heads; h++)
        row_back(a, dq, block, delta[row_at(a, b, row, h)], b, row, h);
}

static void fill_delta(const attention *a, double *delta)
{
    int64_t b, row;
    int h, d;
    for (b = 0; b < a->batch; b++) for (row = 0; row < a->rows; row++) for (h = 0; h < a->heads; h++)
        for (d = 0; d < a->head_dim; d++)
            delta[row_at(a, b, row, h)] += load(a, a->d_out, q_at(a, b, row, h) + d) * load(a, a->out, q_at(a, b, row, h) + d);
}

static int backward(const struct hpsim_attention *a)
{
    int64_t i, q_count = a->batch * a->rows * a->heads * a->head_dim;
    double *dq = doubles(a, q_count), *delta = doubles(a, a->batch * a->heads * a->rows);
    struct block blocks[2], swap;
    int step;
    if (!dq || !delta || block_new(a, &blocks[0], 1) || block_new(a, &blocks[1], 1)) return 1;
    fill_delta(a, delta);
    block_own(a, &blocks[0]);
    zero(a, blocks[0].dk, blocks[0].count);
    zero(a, blocks[0].dv, blocks[0].count);
    for (step = 0; step < a->members; step++) {
        struct motion keys, gradients;
        int more = step + 1 < a->members;
        if (more) start_block(a, &keys, &blocks[0], &blocks[1], step);
        else block_is_of(a, &blocks[1], owner_at(a, step + 1)); /* the own one again: its gradients come home */
        if (RING_COMPUTES(a, step)) backward_block(a, dq, delta, &blocks[0]);
        if (a->members > 1) {
            const void *out[2] = {blocks[0].dk, blocks[0].dv};
            void *in[2] = {blocks[1].dk, blocks[1].dv};
            start(a, &gradients, out, blocks[0].count, in, blocks[1].count, TAG_DK, HPSIM_WIRE_FULL);
            finish(a, &gradients);
            swap = blocks[0];
        }
        if (more) finish(a, &keys);
        if (a->members > 1) {
            blocks[0] = blocks[1];
            blocks[1] = swap;
        }
    }
    for (i = 0; i < q_count; i++) store(a, a->dq, i, dq[i]);
    for (i = 0; i < blocks[0].count; i++) {
        store(a, a->dk, i, load(a, blocks[0].dk, i));
        store(a, a->dv, i, load(a, blocks[0].dv, i));
    }
    return 0;
}

static const struct hpsim_attention_method method = {RING_NAME, "ring attention by positions", forward, backward, NULL};

static const struct hpsim_description description = {HPSIM_ABI, sizeof(struct hpsim_description), RING_NAME, &method, NULL, 0, NULL, 0, NULL, 0};

const struct hpsim_description *hpsim_plugin(void)
{
    return &description;
}
