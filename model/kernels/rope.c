/* rope: rotary position embedding (Su et al. 2021), in place, in the "rotate half" layout.
 *
 * x [..., heads, D] with one position a row of heads, h = D / 2. Pair (i, i + h) turns by the angle
 * position * base^(-2i/D), computed in fp64 (frequency = exp(-(2i/D) log base), then one product), its sine and cosine
 * rounded to storage:
 * forward   y[i] = fma(x[i], cos, -(x[i+h] sin));  y[i+h] = fma(x[i+h], cos, x[i] sin)
 * backward  the same with -sin: the rotation is orthogonal.
 * Accurate for positions up to 2^20. Rows share a small table of the call's positions; a row's bits depend
 * on its position only. */
#include "model/kernels/elementary.h"
#include "model/kernels/variant.h"

enum { HALF_MAX = 1024, SLOTS_MAX = 256, WIDE_WIDTH = SIMD_BYTES / 8 };
_Static_assert((size_t)HALF_MAX * (sizeof(double) + 2 * sizeof(real)) + SLOTS_MAX * sizeof(int32_t)
               <= KERNEL_WORKSPACE_BYTES, "the largest head fits the workspace with one slot");

/* frequency[i] = base^(-i/half), padded to whole vectors */
static void frequencies(double *frequency, int64_t half, double base)
{
    const double log_base = log_f64(vec_set_f64(base))[0];
    for (int64_t i = 0; i < half; i++)
        frequency[i] = exp_f64(vec_set_f64(-((double)i / (double)half) * log_base))[0];
}

/* row[i] = cos, row[half + i] = sin of position * frequency[i] */
static void angles(real *row, const double *frequency, int64_t half, int32_t position)
{
    for (int64_t i = 0; i < half; i += WIDE_WIDTH) {
        vec_f64 sine, cosine;
        sincos_f64(vec_load_part_f64(frequency + i, half - i) * vec_set_f64(position), &sine, &cosine);
        for (int64_t l = 0; l < WIDE_WIDTH && i + l < half; l++) {
            row[i + l] = (real)cosine[l];
            row[half + i + l] = (real)sine[l];
        }
    }
}

static void turn(real *x, const real *row, int64_t half, bool back)
{
    int64_t done = 0;
#if SIMD_LEVEL == 2 && VARIANT_BITS == 32
    /* half of 8, from the common heads of 16: unmasked half vectors, the same operations */
    for (; half - done == 8; done += 8) {
        __m256 low = _mm256_loadu_ps(x + done), high = _mm256_loadu_ps(x + half + done);
        __m256 cosine = _mm256_loadu_ps(row + done), sine = _mm256_loadu_ps(row + half + done);
        if (back)
            sine = -sine;
        _mm256_storeu_ps(x + done, _mm256_fmadd_ps(low, cosine, -(high * sine)));
        _mm256_storeu_ps(x + half + done, _mm256_fmadd_ps(high, cosine, low * sine));
    }
#endif
    for (int64_t i = done; i < half; i += VEC_WIDTH) {
        vec low = vec_load_part(x + i, half - i), high = vec_load_part(x + half + i, half - i);
        vec cosine = vec_load_part(row + i, half - i), sine = vec_load_part(row + half + i, half - i);
        if (back)
            sine = -sine;
        vec_store_part(x + i, vec_fma(low, cosine, -(high * sine)), half - i);
        vec_store_part(x + half + i, vec_fma(high, cosine, low * sine), half - i);
    }
}

static void rope(struct tensor x, const int32_t *positions, double base, bool back)
{
    ASSERT(x.dims >= 2);
    const int64_t heads = x.shape[x.dims - 2], dim = row_length(x), half = dim / 2;
    const int64_t rows = heads ? row_count(x) / heads : 0;
    real *data = reals(x);
    ASSERT(dim % 2 == 0 && half <= HALF_MAX);
    if (rows == 0 || half == 0)
        return;
    /* the workspace: which position each slot holds, the frequencies, the slots (direct-mapped by position) */
    int32_t *held = kernel_workspace();
    double *frequency = (double *)(held + SLOTS_MAX);
    real *table = (real *)(frequency + half);
    int64_t slots = (KERNEL_WORKSPACE_BYTES - ((char *)table - (char *)held)) / (dim * (int64_t)sizeof(real));
    if (slots > SLOTS_MAX)
        slots = SLOTS_MAX;
    frequencies(frequency, half, base);
    for (int64_t s = 0; s < slots; s++)
        held[s] = -1;
    for (int64_t t = 0; t < rows; t++) {
        ASSERT(positions[t] >= 0);
        int64_t slot = positions[t] % slots;
        if (held[slot] != positions[t])
            angles(table + slot * dim, frequency, half, positions[t]);
        held[slot] = positions[t];
        for (int64_t h = 0; h < heads; h++)
            turn(data + (t * heads + h) * dim, table + slot * dim, half, back);
    }
}

void FN(rope_forward)(struct tensor x, const int32_t *positions, double base)
{
    rope(x, positions, base, false);
}

void FN(rope_backward)(struct tensor dx, const int32_t *positions, double base)
{
    rope(dx, positions, base, true);
}
