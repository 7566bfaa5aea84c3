/* optimizer_update: one step of an optimizer on n elements of a parameter; elementwise, in the storage type.
 *
 * All scalars are combined in fp64 and rounded to storage once; powers by repeated squaring.
 * AdamW (Loshchilov & Hutter 2019, "Decoupled weight decay regularization"; scalars placed as in PyTorch):
 *   g = grad_scale g;  p = (1 - lr wd) p
 *   m = fma(b1, m, (1-b1) g);  v = fma(b2, v, ((1-b2) g) g)
 *   p = fma(-lr / (1 - b1^step), m / (sqrt(v) / sqrt(1 - b2^step) + eps), p)
 * SGD (as PyTorch, no dampening):
 *   g = grad_scale g;  g = fma(wd, p, g) if wd != 0
 *   m = g at step 1, else fma(momentum, m, g);  p = fma(-lr, m, p)      (m = g where there is no momentum) */
#include "model/kernels/variant.h"

static double power(double base, int exponent)
{
    double result = 1;
    for (; exponent > 0; exponent /= 2, base *= base)
        if (exponent % 2)
            result *= base;
    return result;
}

void FN(adamw_update)(void *p_data, const void *g_data, void *m_data, void *v_data, size_t count, double grad_scale,
                      double lr, double beta1, double beta2, double eps, double weight_decay, int step)
{
    real *p = p_data, *m = m_data, *v = v_data;
    const real *g = g_data;
    const int64_t n = (int64_t)count;
    ASSERT(step >= 1);
    const vec scale = vec_set((real)grad_scale), keep = vec_set((real)(1 - lr * weight_decay));
    const vec b1 = vec_set((real)beta1), c1 = vec_set((real)(1 - beta1));
    const vec b2 = vec_set((real)beta2), c2 = vec_set((real)(1 - beta2));
    const vec rate = vec_set((real)(-lr / (1 - power(beta1, step))));
    const vec correction = vec_set((real)__builtin_sqrt(1 - power(beta2, step))), epsilon = vec_set((real)eps);
    for (int64_t i = 0; i < n; i += VEC_WIDTH) {
        vec gradient = vec_load_part(g + i, n - i) * scale;
        vec first = vec_fma(b1, vec_load_part(m + i, n - i), c1 * gradient);
        vec second = vec_fma(b2, vec_load_part(v + i, n - i), c2 * gradient * gradient);
        vec direction = first / (vec_sqrt(second) / correction + epsilon);
        vec_store_part(m + i, first, n - i);
        vec_store_part(v + i, second, n - i);
        vec_store_part(p + i, vec_fma(rate, direction, vec_load_part(p + i, n - i) * keep), n - i);
    }
}

void FN(sgd_update)(void *p_data, const void *g_data, void *m_data, size_t count, double grad_scale, double lr,
                    double momentum, double weight_decay, int step)
{
    real *p = p_data, *m = m_data;
    const real *g = g_data;
    const int64_t n = (int64_t)count;
    ASSERT(step >= 1 && (m || momentum == 0));
    const vec scale = vec_set((real)grad_scale), decay = vec_set((real)weight_decay);
    const vec rate = vec_set((real)-lr), inertia = vec_set((real)momentum);
    for (int64_t i = 0; i < n; i += VEC_WIDTH) {
        vec value = vec_load_part(p + i, n - i), direction = vec_load_part(g + i, n - i) * scale;
        if (weight_decay != 0)
            direction = vec_fma(decay, value, direction);
        if (momentum != 0) {
            if (step > 1)
                direction = vec_fma(inertia, vec_load_part(m + i, n - i), direction);
            vec_store_part(m + i, direction, n - i);
        }
        vec_store_part(p + i, vec_fma(rate, direction, value), n - i);
    }
}
