/* attention_reference: attention of whole sequences in fp64, as the formulas have it; what every other way of computing it is held
 * against. It is written apart from the kernels and from the rings on purpose.
 *
 * Per sequence and head, BLOCK rows of queries at a time, z the head's sink (or none):
 *   s[i,j] = scale q[i].k[j], -inf where the mask hides it;   m = max(z, max_j s);   l = e^(z-m) + sum_j e^(s-m)
 *   lse = m + log l;   p = e^(s - lse);   out[i] = sum_j p[i,j] v[j];   a row that sees nothing, without a sink: out 0, lse -inf
 *   delta[i] = d_out[i].out[i];   ds = p (d_out[i].v[j] - delta[i]) scale
 *   dq[i] = sum_j ds k[j];   dk[j] = sum_i ds q[i];   dv[j] = sum_i p d_out[i];   dz = - sum_i e^(z - lse) delta[i]
 *   terms: sum of |terms| of dq and dk, by rows: sum_j p (|d_out.v| + |delta|) scale |k[j]|, sum_i of the same |q[i]|, |.| of a vector its
 *   length, |delta| the root of the squares that delta is a sum of: each errs by itself, as out is rounded. Where the terms cancel (a row that
 *   sees one key alone), what is left is their rounding; those of dz: sum_i e^(z - lse) |d_out[i]| . |out[i]|; those of dv: the root of
 *   the squares of p |d_out[i]|, each row's p being rounded by itself; those of lse: its logits are
 *   sums too, sum_j p |q[i]| |k[j]| scale, and log l
 *   logit terms: a logit errs by as many u as L = |q[i]| |k[j]| scale, and its p by p (1 - p) times that; where L is 16 or more (else 0), a 4th of
 *   what this makes of out, dq, dk and dv, as the root of its squares: of out p (1 - p) L |v[j]|; of dv p (1 - p) L |d_out[i]|; of ds the root of the squares of p (1 - p) L (d_out[i].v[j] -
 *   delta[i]) scale and p D[i] scale, D[i]^2 = sum_j (p (1 - p) L d_out[i].v[j])^2 what delta errs by, times |k[j]| and |q[i]|. A backward makes p again from the
 *   lse that was kept, which is rounded where p is all of the softmax too: p times an 8th of |lse|, 16 or more, beside p (1 - p) L
 * Sums in fp64, ascending (the matrix product's chains); dk, dv over the query heads of a kv head, then rows. */
#include "model/attention_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 64 };

bool attention_visible(const struct run_config *config, const int32_t *documents, int64_t query, int64_t key)
{
    const struct model_config *m = &config->model;
    int64_t apart = query > key ? query - key : key - query;
    if (m->causal && key > query) return false;
    if (m->window > 0 && apart >= m->window) return false;
    return !documents || (documents[query] == documents[key] && documents[query] >= 0);
}

struct head { /* of one sequence; row strides in numbers */
    const double *q, *k, *v, *d_out;
    double *out, *lse, *dq, *dk, *dv, *dq_terms, *dk_terms, *dv_terms, *lse_terms, *out_logits, *dq_logits, *dk_logits, *dv_logits;
    int64_t wide, narrow, heads, kv_heads;
    const double *sink; double *d_sink, *sink_terms;
    const int32_t *documents;
};

static double length_of(const double *values, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += values[i] * values[i];
    return sqrt(sum);
}

static double logit_error(double p, double logit)
{
    return logit >= 16 ? p * (1 - p) * logit / 4 : 0;
}

/* Probabilities of a row from its scores, in place. */
static double softmax_row(const struct run_config *config, const struct head *head, double scale, int64_t row, int64_t seq, int64_t dim, const double *lengths /* of keys, then of values */, double *p)
{
    double largest = head->sink ? *head->sink : -INFINITY, sum = 0;
    for (int64_t j = 0; j < seq; j++) {
        p[j] = attention_visible(config, head->documents, row, j) ? p[j] * scale : -INFINITY;
        if (p[j] > largest) largest = p[j];
    }
    if (largest == -INFINITY) {
        memset(p, 0, (size_t)seq * sizeof *p);
        return -INFINITY;
    }
    for (int64_t j = 0; j < seq; j++) {
        p[j] = exp(p[j] - largest);
        sum += p[j];
    }
    if (head->sink) sum += exp(*head->sink - largest);
    for (int64_t j = 0; j < seq; j++) p[j] /= sum;
    if (head->lse_terms) {
        double terms = 0, q = length_of(head->q + row * head->wide, dim);
        for (int64_t j = 0; j < seq; j++) terms += p[j] * q * lengths[j] * scale;
        head->lse_terms[row * head->heads] = terms + log(sum);
        double squares = 0;
        for (int64_t j = 0; j < seq; j++) {
            double error = logit_error(p[j], q * lengths[j] * scale) * lengths[seq + j];
            squares += error * error;
        }
        head->out_logits[row * head->heads] = sqrt(squares);
    }
    return largest + log(sum);
}

/* Of a row whose ds still holds d_out . v. */
static void logit_terms(const struct head *head, double scale, int64_t row, int64_t seq, int64_t dim, const double *p, const double *dp, double delta, double q, const double *lengths)
{
    double of_out = length_of(head->d_out + row * head->wide, dim), of_delta = 0, of_dq = 0 /* squares */, of_lse = fabs(head->lse[row]) >= 16 && isfinite(head->lse[row]) ? fabs(head->lse[row]) / 8 : 0;
    for (int64_t j = 0; j < seq; j++) {
        double error = logit_error(p[j], q * lengths[j] * scale);
        of_delta += error * dp[j] * error * dp[j];
    }
    of_delta = sqrt(of_delta);
    for (int64_t j = 0; j < seq; j++) {
        if (p[j] == 0) continue;
        double error = logit_error(p[j], q * lengths[j] * scale);
        head->dv_terms[j * head->kv_heads] = hypot(head->dv_terms[j * head->kv_heads], p[j] * of_out);
        double of_ds = hypot(hypot(error * (dp[j] - delta), p[j] * of_delta), p[j] * of_lse * dp[j]) * scale;
        error = hypot(error, p[j] * of_lse);
        if (of_ds == 0 && error == 0) continue;
        of_dq += of_ds * lengths[j] * of_ds * lengths[j];
        head->dk_logits[j * head->kv_heads] = hypot(head->dk_logits[j * head->kv_heads], of_ds * q);
        head->dv_logits[j * head->kv_heads] = hypot(head->dv_logits[j * head->kv_heads], error * of_out);
    }
    head->dq_logits[row * head->heads] = sqrt(of_dq);
}

static void backward_rows(const struct ops *ops, const struct head *head, double scale, int64_t first, int64_t rows, int64_t seq, int64_t dim,
                          const double *p, double *ds, const double *lengths /* of keys */)
{
    ops->gemm(false, true, rows, seq, dim, head->d_out + first * head->wide, head->wide, head->v, head->narrow, false, ds, seq);
    for (int64_t r = 0; r < rows; r++) {
        double delta = 0, squares = 0, magnitudes = 0;
        for (int64_t d = 0; d < dim; d++) {
            double product = head->d_out[(first + r) * head->wide + d] * head->out[(first + r) * head->wide + d];
            delta += product;
            squares += product * product;
            magnitudes += fabs(product);
        }
        double q = length_of(head->q + (first + r) * head->wide, dim), terms = 0;
        if (head->dq_logits) logit_terms(head, scale, first + r, seq, dim, p + r * seq, ds + r * seq, delta, q, lengths);
        for (int64_t j = 0; j < seq; j++) {
            double prob = p[r * seq + j];
            if (prob != 0) {
                double term = prob * (fabs(ds[r * seq + j]) + sqrt(squares)) * scale;
                terms += term * lengths[j];
                head->dk_terms[j * head->kv_heads] += term * q;
            }
            ds[r * seq + j] = prob == 0 ? 0 : prob * (ds[r * seq + j] - delta) * scale;
        }
        head->dq_terms[(first + r) * head->heads] = terms;
        if (!head->sink) continue;
        double share = exp(*head->sink - head->lse[first + r]);
        *head->d_sink -= share * delta;
        *head->sink_terms += share * magnitudes;
    }
    ops->gemm(false, false, rows, dim, seq, ds, seq, head->k, head->narrow, false, head->dq + first * head->wide, head->wide);
    ops->gemm(true, false, seq, dim, rows, ds, seq, head->q + first * head->wide, head->wide, true, head->dk, head->narrow);
    ops->gemm(true, false, seq, dim, rows, p, seq, head->d_out + first * head->wide, head->wide, true, head->dv, head->narrow);
}

void attention_reference(const struct run_config *config, const struct ops *ops, const struct attention_inputs_data *in, bool gradients,
                         struct attention_results *ret)
{
    const int64_t seq = in->seq, dim = in->head_dim, wide = in->heads * dim, narrow = in->kv_heads * dim, group = in->heads / in->kv_heads;
    const double scale = 1 / sqrt((double)dim);
    double *p = memory_alloc((size_t)(2 * BLOCK * seq + 2 * seq + 1) * sizeof *p), *ds = p + BLOCK * seq, *lengths = ds + BLOCK * seq;
    if (gradients) {
        memset(ret->dk, 0, (size_t)(in->sequences * seq * narrow) * sizeof *ret->dk);
        memset(ret->dk_terms, 0, (size_t)(in->sequences * seq * in->kv_heads) * sizeof *ret->dk_terms);
        memset(ret->dv, 0, (size_t)(in->sequences * seq * narrow) * sizeof *ret->dv);
    }
    for (int64_t b = 0; b < in->sequences; b++) {
        for (int64_t h = 0; h < in->heads; h++) {
            int64_t at = b * seq * wide + h * dim, at_kv = b * seq * narrow + h / group * dim;
            struct head head = {.q = in->q + at, .k = in->k + at_kv, .v = in->v + at_kv, .out = ret->out + at, .lse = ret->lse + (b * in->heads + h) * seq,
                .wide = wide, .narrow = narrow, .heads = in->heads, .kv_heads = in->kv_heads, .sink = in->sinks ? &in->sinks[h] : NULL, .documents = in->documents ? in->documents + b * seq : NULL};
            for (int64_t j = 0; j < seq; j++) {
                lengths[j] = length_of(head.k + j * narrow, dim);
                lengths[seq + j] = length_of(head.v + j * narrow, dim);
            }
            if (ret->lse_terms) {
                head.lse_terms = ret->lse_terms + b * seq * in->heads + h;
                head.out_logits = ret->out_logits + b * seq * in->heads + h;
            }
            if (gradients) {
                head.d_out = in->d_out + at;
                head.dq = ret->dq + at;
                head.dk = ret->dk + at_kv;
                head.dv = ret->dv + at_kv;
                head.dq_terms = ret->dq_terms + b * seq * in->heads + h;
                head.dk_terms = ret->dk_terms + b * seq * in->kv_heads + h / group;
                if (ret->dq_logits) {
                    head.dq_logits = ret->dq_logits + b * seq * in->heads + h;
                    head.dk_logits = ret->dk_logits + b * seq * in->kv_heads + h / group;
                    head.dv_terms = ret->dv_terms + b * seq * in->kv_heads + h / group;
                    head.dv_logits = ret->dv_logits + b * seq * in->kv_heads + h / group;
                }
                head.d_sink = in->sinks ? &ret->d_sinks[h] : NULL;
                head.sink_terms = in->sinks ? &ret->sink_terms[h] : NULL;
            }
            for (int64_t first = 0; first < seq; first += BLOCK) {
                int64_t rows = seq - first < BLOCK ? seq - first : BLOCK;
                ops->gemm(false, true, rows, seq, dim, head.q + first * wide, wide, head.k, narrow, false, p, seq);
                for (int64_t r = 0; r < rows; r++) head.lse[first + r] = softmax_row(config, &head, scale, first + r, seq, dim, lengths, p + r * seq);
                ops->gemm(false, false, rows, dim, seq, p, seq, head.v, narrow, false, head.out + first * wide, wide);
                if (gradients) backward_rows(ops, &head, scale, first, rows, seq, dim, p, ds, lengths);
            }
        }
    }
    free(p);
}
