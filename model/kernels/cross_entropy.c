/* cross_entropy: of each row of logits with its target, by a stable log-sum-exp.
 *
 * logits, dlogits [T, V], loss, lse, weight [T]; all in the storage type.
 * forward   m = max_v logits;  lse = m + log(sum_v exp(logits - m));  loss = lse - logits[target]
 * backward  dlogits = weight (exp(logits - lse) - [v = target]); the target's difference is rounded before the product
 * A target of -1 is ignored: loss +0, gradient row all +0 (its lse is still computed). One of -2 lies in a part of the
 * vocabulary that is elsewhere: loss +0, and no target in the gradient's row.
 * parts     of a vocabulary in parts: given the largest part's lse, out = exp(lse - largest);
 *           given the sum of these over the parts, lse = largest + log(sum)
 * The sum over v: 16 lanes (v in lane v mod 16, v ascending), then lanes_sum's tree. */
#include "model/kernels/elementary.h"
#include "model/kernels/variant.h"

static real row_lse(const real *logits, int64_t columns)
{
    vec largest[LANE_VECS], sums[LANE_VECS];
    for (int l = 0; l < LANE_VECS; l++)
        largest[l] = vec_set(logits[0]), sums[l] = vec_set(0);
    int64_t whole = columns - columns % VEC_WIDTH;
    for (int64_t c = 0; c < whole; c += VEC_WIDTH)
        largest[0] = vec_max(largest[0], vec_load(logits + c));
    for (int64_t c = whole; c < columns; c++)
        largest[0] = vec_max(largest[0], vec_set(logits[c]));
    const real shift = lanes_max(largest);
    for (int64_t c = 0; c < columns; c += LANES)
        for (int l = 0; l < LANE_VECS; l++) {
            int64_t at = c + l * VEC_WIDTH;
            if (at >= columns)
                break;
            vec p = vec_exp(vec_load_part(logits + at, columns - at) - vec_set(shift));
            if (columns - at < VEC_WIDTH) { /* past the row: exact zeros */
                real part[VEC_WIDTH];
                vec_store(part, p);
                p = vec_load_part(part, columns - at);
            }
            sums[l] += p;
        }
    return shift + vec_log(vec_set(lanes_sum(sums)))[0];
}

void FN(cross_entropy_forward)(struct tensor loss, struct tensor lse, struct tensor logits, const int32_t *targets)
{
    const int64_t rows = row_count(logits), columns = row_length(logits);
    real *losses = reals(loss), *lses = reals(lse);
    const real *in = reals(logits);
    ASSERT(columns > 0 && tensor_count(loss) == rows && tensor_count(lse) == rows);
    for (int64_t t = 0; t < rows; t++, in += columns) {
        ASSERT(targets[t] < columns);
        lses[t] = row_lse(in, columns);
        losses[t] = targets[t] < 0 ? 0 : lses[t] - in[targets[t]];
    }
}

void FN(cross_entropy_backward)(struct tensor dlogits, struct tensor logits, struct tensor lse, const int32_t *targets,
                                struct tensor weight)
{
    const int64_t rows = row_count(logits), columns = row_length(logits);
    real *out = reals(dlogits);
    const real *in = reals(logits), *lses = reals(lse), *weights = reals(weight);
    ASSERT(tensor_count(dlogits) == rows * columns && tensor_count(lse) == rows && tensor_count(weight) == rows);
    for (int64_t t = 0; t < rows; t++, in += columns, out += columns) {
        const int32_t target = targets[t];
        ASSERT(target < columns);
        if (target == -1) {
            memset(out, 0, (size_t)columns * sizeof(real));
            continue;
        }
        const vec shift = vec_set(lses[t]), scale = vec_set(weights[t]);
        const real at_target = target >= 0 ? in[target] : 0; /* out may be in */
        for (int64_t c = 0; c < columns; c += VEC_WIDTH)
            vec_store_part(out + c, vec_exp(vec_load_part(in + c, columns - c) - shift) * scale, columns - c);
        if (target >= 0) out[target] = ((vec_exp(vec_set(at_target) - shift) - vec_set(1)) * scale)[0];
    }
}

void FN(cross_entropy_part)(struct tensor out, struct tensor lse, struct tensor largest)
{
    const int64_t n = tensor_count(out);
    ASSERT(tensor_count(lse) == n && tensor_count(largest) == n);
    for (int64_t i = 0; i < n; i += VEC_WIDTH)
        vec_store_part(reals(out) + i, vec_exp(vec_load_part(reals(lse) + i, n - i) - vec_load_part(reals(largest) + i, n - i)), n - i);
}

void FN(cross_entropy_whole)(struct tensor lse, struct tensor largest, struct tensor sum)
{
    const int64_t n = tensor_count(lse);
    ASSERT(tensor_count(largest) == n && tensor_count(sum) == n);
    for (int64_t i = 0; i < n; i++) /* one at a time: past the end there would be log 0 */
        reals(lse)[i] = reals(largest)[i] + vec_log(vec_set(reals(sum)[i]))[0];
}
