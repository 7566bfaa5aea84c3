/* swiglu: a = silu(g) u, silu(g) = g / (1 + e^-g) (Shazeer 2020, "GLU variants improve transformer").
 *
 * All tensors have the same count of elements; an element depends on its own position only.
 * forward   a = (g / (1 + e^-g)) u
 * backward  s = 1 / (1 + e^-g);  du = da (g / (1 + e^-g));  dg = (da u) (s fma(g, 1 - s, 1))
 * Where e^-g overflows (g < -88.7 in fp32), s and silu(g) are zeros: they are below 1e-36. */
#include "model/kernels/elementary.h"
#include "model/kernels/variant.h"

void FN(swiglu_forward)(struct tensor a, struct tensor g, struct tensor u)
{
    const int64_t n = tensor_count(a);
    real *out = reals(a);
    const real *gate = reals(g), *up = reals(u);
    const vec one = vec_set(1);
    ASSERT(tensor_count(g) == n && tensor_count(u) == n);
    for (int64_t i = 0; i < n; i += VEC_WIDTH) {
        vec x = vec_load_part(gate + i, n - i);
        vec_store_part(out + i, x / (one + vec_exp(-x)) * vec_load_part(up + i, n - i), n - i);
    }
}

void FN(swiglu_backward)(struct tensor dg, struct tensor du, struct tensor da, struct tensor g, struct tensor u)
{
    const int64_t n = tensor_count(da);
    real *d_gate = reals(dg), *d_up = reals(du);
    const real *grad = reals(da), *gate = reals(g), *up = reals(u);
    const vec one = vec_set(1);
    ASSERT(tensor_count(g) == n && tensor_count(u) == n && tensor_count(dg) == n && tensor_count(du) == n);
    for (int64_t i = 0; i < n; i += VEC_WIDTH) {
        vec x = vec_load_part(gate + i, n - i), d = vec_load_part(grad + i, n - i);
        vec below = one + vec_exp(-x), s = one / below;
        vec to_gate = d * vec_load_part(up + i, n - i) * (s * vec_fma(x, one - s, one));
        vec_store_part(d_up + i, d * (x / below), n - i);
        vec_store_part(d_gate + i, to_gate, n - i);
    }
}
