/* ring_lesson: block by block, row by row.
 *
 * Of a row and a block c of keys:   m_c = max s;  l_c = sum e^(s - m_c);  out_c = sum e^(s - m_c) v / l_c;  lse_c = m_c + log l_c
 *   right        one block after the other: lse = logaddexp(lse, lse_c); out = out e^(old - lse) + out_c e^(lse_c - lse)
 *   average      the mean of out_c                         last    out_c of the block that comes last
 *   sum          the sum of out_c                          own     out_c of the own block
 *   base 2       weights e^(lse_c / ln 2)                  without one    right, but for the block of step P - 1
 *   resent       right, with the neighbour's block in the place of each farther one
 * Only blocks count of which the row sees a key. */
#include "scenarios/ring_lesson.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/precision.h"
#include "scenarios/context_inference.h"

struct block { double *out, lse; bool seen; };
struct lesson_sums { double difference, reference, own, product, largest; };
struct lesson_row { const struct run_config *config; const struct attention_inputs_data *in; int64_t sequence, position; int head; const int *holder; };

static void block_of(const struct lesson_row *row, int member, struct block *ret)
{
    const struct attention_inputs_data *in = row->in;
    const int32_t *documents = in->documents ? in->documents + row->sequence * in->seq : NULL;
    const int64_t dim = in->head_dim, kv = row->head / (in->heads / in->kv_heads);
    const double *q = in->q + ((row->sequence * in->seq + row->position) * in->heads + row->head) * dim, scale = 1 / sqrt((double)dim);
    double largest = -INFINITY, sum = 0;
    memset(ret->out, 0, (size_t)dim * sizeof *ret->out);
    for (int pass = 0; pass < 2; pass++) { /* the largest first */
        for (int64_t k = 0; k < in->seq; k++) {
            if (row->holder[k] != member || !attention_visible(row->config, documents, row->position, k)) continue;
            const double *key = in->k + ((row->sequence * in->seq + k) * in->kv_heads + kv) * dim, *value = in->v + ((row->sequence * in->seq + k) * in->kv_heads + kv) * dim;
            double score = 0;
            for (int64_t d = 0; d < dim; d++) score += q[d] * key[d];
            score *= scale;
            if (pass == 0) {
                largest = fmax(largest, score);
                continue;
            }
            double e = exp(score - largest);
            sum += e;
            for (int64_t d = 0; d < dim; d++) ret->out[d] += e * value[d];
        }
    }
    ret->seen = sum > 0;
    ret->lse = ret->seen ? largest + log(sum) : -INFINITY;
    for (int64_t d = 0; d < dim && ret->seen; d++) ret->out[d] /= sum;
}

/* The block that comes at a step. */
static int at_step(int me, int step, int members)
{
    return (me - step + members) % members;
}

static void merge(double *out, double *lse, const struct block *block, int64_t dim, double scale)
{
    double fresh = block->lse * scale, both = fmax(*lse, fresh) + log1p(exp(-fabs(*lse - fresh)));
    if (!block->seen) return;
    if (*lse == -INFINITY) both = fresh;
    for (int64_t d = 0; d < dim; d++) out[d] = (*lse == -INFINITY ? 0 : out[d] * exp(*lse - both)) + block->out[d] * exp(fresh - both);
    *lse = both;
}

static void put_together(enum merge_way way, const struct block *blocks, int me, int members, int64_t dim, double *out)
{
    double lse = -INFINITY;
    int seen = 0, last = me;
    memset(out, 0, (size_t)dim * sizeof *out);
    for (int s = 0; s < members; s++) {
        int c = at_step(me, s, members), neighbour = at_step(me, 1, members);
        const struct block *block = &blocks[way == LESSON_RESENT && s > 0 ? neighbour : c];
        bool leave = (way == LESSON_WITHOUT_ONE && s == members - 1 && members > 1) || (way == LESSON_OWN && s > 0);
        if (leave || !block->seen) continue;
        seen++;
        last = c;
        if (way == LESSON_AVERAGE || way == LESSON_SUM) {
            for (int64_t d = 0; d < dim; d++) out[d] += block->out[d];
        } else {
            merge(out, &lse, block, dim, way == LESSON_BASE_2 ? 1 / log(2.0) : 1);
        }
    }
    for (int64_t d = 0; d < dim && way == LESSON_AVERAGE && seen > 0; d++) out[d] /= seen;
    if (way == LESSON_LAST) memcpy(out, blocks[last].out, (size_t)dim * sizeof *out);
}

static void add_row(struct lesson_sums *sums, const double *out, const double *due, int64_t dim)
{
    for (int64_t d = 0; d < dim; d++) {
        double difference = out[d] - due[d];
        sums->difference += difference * difference;
        sums->reference += due[d] * due[d];
        sums->own += out[d] * out[d];
        sums->product += out[d] * due[d];
        sums->largest = fmax(sums->largest, fabs(difference));
    }
}

/* The blocks of the last position of the first sequence, in the order in which they come to its holder. */
static void show_row(struct ring_lesson *lesson, const struct lesson_row *row, const struct block *blocks, int me)
{
    lesson->sequence = row->sequence;
    lesson->position = row->position;
    lesson->head = row->head;
    lesson->of = me;
    double lse = -INFINITY;
    for (int c = 0; c < lesson->members; c++) {
        if (blocks[c].seen) lse = lse == -INFINITY ? blocks[c].lse : fmax(lse, blocks[c].lse) + log1p(exp(-fabs(lse - blocks[c].lse)));
    }
    for (int s = 0; s < lesson->members; s++) {
        int c = at_step(me, s, lesson->members);
        lesson->blocks[s] = (struct block_weight){c, blocks[c].lse, blocks[c].seen ? exp(blocks[c].lse - lse) : 0, blocks[c].seen};
    }
    lesson->lse = lse;
}

static void go_through(struct ring_lesson *lesson, const struct run_config *config, const struct attention_inputs_data *in, const struct attention_results *due)
{
    int members = lesson->members;
    int64_t dim = in->head_dim;
    struct lesson_sums sums[LESSON_WAYS];
    struct block *blocks = arena_zalloc(lesson->arena, (size_t)members * sizeof *blocks);
    int *holder = arena_alloc(lesson->arena, (size_t)(in->seq + 1) * sizeof *holder);
    double *out = arena_alloc(lesson->arena, (size_t)(dim + 1) * sizeof *out);
    memset(sums, 0, sizeof sums);
    for (int c = 0; c < members; c++) blocks[c].out = arena_alloc(lesson->arena, (size_t)(dim + 1) * sizeof(double));
    for (int64_t b = 0; b < config->attention.batch; b++) {
        context_holders(config, in->documents ? in->documents + b * in->seq : NULL, holder);
        for (int64_t p = 0; p < in->seq; p++) {
            for (int h = 0; h < (int)in->heads && holder[p] >= 0; h++) {
                struct lesson_row row = {config, in, b, p, h, holder};
                for (int c = 0; c < members; c++) block_of(&row, c, &blocks[c]);
                for (int way = 0; way < LESSON_WAYS; way++) {
                    put_together((enum merge_way)way, blocks, holder[p], members, dim, out);
                    add_row(&sums[way], out, due->out + ((b * in->seq + p) * in->heads + h) * dim, dim);
                }
                if (b == 0 && h == 0) show_row(lesson, &row, blocks, holder[p]);
            }
        }
    }
    for (int way = 0; way < LESSON_WAYS; way++) {
        struct merge_lesson *m = &lesson->merges[way];
        m->rel = sums[way].difference == 0 ? 0 : sqrt(sums[way].difference / fmax(sums[way].reference, 1e-300));
        m->max_abs = sums[way].largest;
        m->cosine = sums[way].product / fmax(sqrt(sums[way].own * sums[way].reference), 1e-300);
    }
}

struct ring_lesson *ring_lesson_new(const struct run_config *given, const struct attention_inputs_data *inputs)
{
    static const char *const names[LESSON_WAYS] = {"by log-sum-exp", "plain average", "last block only", "plain sum", "own block only", "log2 taken for ln", "one block left out", "neighbour resent"};
    static const char *const how[LESSON_WAYS] = {"out e^(lse - both) + out_c e^(lse_c - both), both = logaddexp(lse, lse_c)", "the mean of the blocks' results", "each result written over the one before",
        "results added up", "nothing goes round", "the kernel's log-sum-exp is in base 2", "the last step of the loop is missing", "each rank sends its own block at every step"};
    struct arena *arena = arena_new("ring lesson", false);
    struct ring_lesson *lesson = arena_zalloc(arena, sizeof *lesson);
    struct run_config config = *given;
    struct attention_inputs_data in = *inputs;
    in.sinks = NULL;
    in.sequences = config.attention.batch; /* of the first group */
    lesson->arena = arena;
    lesson->members = layout_cp(&config.layout);
    lesson->due = arena_zalloc(arena, (size_t)(lesson->members * lesson->members + 1) * sizeof *lesson->due);
    lesson->blocks = arena_zalloc(arena, (size_t)(lesson->members + 1) * sizeof *lesson->blocks);
    for (int way = 0; way < LESSON_WAYS; way++) {
        lesson->merges[way].name = names[way];
        lesson->merges[way].how = how[way];
    }
    config.attention.joint = 0;
    consumption_due(&config, in.documents, in.sequences, false, lesson->due);
    size_t rows = (size_t)(in.sequences * in.seq), wide = rows * (size_t)(in.heads * in.head_dim);
    struct attention_results due = {.out = arena_zalloc(arena, (wide + 1) * sizeof(double)), .lse = arena_zalloc(arena, (rows * (size_t)in.heads + 1) * sizeof(double))};
    struct error error = {0};
    const struct ops *ops = ops_get(FORMAT_FP64, NULL, "fixed", &error);
    struct run_config single = attention_single(&config);
    if (ops) attention_reference(&single, ops, &in, false, &due);
    go_through(lesson, &config, &in, &due);
    int *holder = arena_alloc(arena, (size_t)(in.seq + 1) * sizeof *holder);
    context_holders(&config, in.documents, holder);
    for (int c = 0; c < lesson->members; c++) {
        int64_t count = 0;
        for (int64_t p = 0; p < in.seq; p++) count += holder[p] == c;
        if (count > lesson->block_rows) lesson->block_rows = count;
    }
    lesson->hop_bytes = (double)lesson->block_rows * config.attention.batch * (double)(in.kv_heads * in.head_dim) * format_traits[precision_activation(&config.precision)].bytes;
    return lesson;
}

void ring_lesson_free(struct ring_lesson *lesson)
{
    if (lesson) arena_free(lesson->arena);
}
