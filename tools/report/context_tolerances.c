/* context_tolerances: the assertions of public tests of context-parallel attention, held against this run's numbers as if they had
 * been applied to every rank. What each asserts: docs/ring_attention.md. A test that passes a run which is wrong is why this
 * project judges by relative norms against fp64. */
#include <math.h>

#include "scenarios/context_compare.h"
#include "tools/report/report.h"

/* The largest over ranks; rank 0 alone where the test looks there alone. */
static double worst_excess(const struct context_comparison *c, enum context_tensor tensor, int rtol)
{
    double worst = -INFINITY;
    for (int r = 0; r < c->ranks; r++) {
        const struct context_error *e = context_error_of(c, r, tensor);
        if (e->known) worst = fmax(worst, e->excess[rtol]);
    }
    return worst;
}

static double worst_of(const struct context_comparison *c, const enum context_tensor *tensors, int count, int rtol)
{
    double worst = -INFINITY;
    for (int i = 0; i < count; i++) worst = fmax(worst, worst_excess(c, tensors[i], rtol));
    return worst;
}

static void add(struct tolerance_result *list, int *count, const char *test, const char *rule, double value, double limit)
{
    if (!(value > -INFINITY)) return;
    list[(*count)++] = (struct tolerance_result){test, rule, value, limit, value <= limit};
}

int context_tolerances(const struct result *result, struct tolerance_result ret[TOLERANCES_MAX])
{
    static const enum context_tensor all[] = {CONTEXT_OUT, CONTEXT_DQ, CONTEXT_DK, CONTEXT_DV}, out[] = {CONTEXT_OUT},
                                     mindspeed[] = {CONTEXT_OUT, CONTEXT_DK, CONTEXT_DV}, gradients[] = {CONTEXT_DQ, CONTEXT_DK, CONTEXT_DV};
    const struct context_comparison *c = result->context.comparison;
    int count = 0, P = c->members;
    double cosine = 1, largest = 0, norm = -INFINITY;
    for (int r = 0; r < c->ranks; r++) {
        const struct context_error *e = context_error_of(c, r, CONTEXT_OUT);
        if (!e->known) continue;
        cosine = isfinite(e->rel) ? fmin(cosine, e->cosine) : -1;
        largest = fmax(largest, e->max_abs);
    }
    for (int i = 0; i < 3; i++) {
        const struct context_error *e = context_error_of(c, 0, gradients[i]);
        if (e->known) norm = fmax(norm, e->rel);
    }
    add(ret, &count, "yunchang", "bf16 output, atol 1e-1", worst_of(c, out, 1, 0), 1e-1);
    add(ret, &count, "xDiT", "fp16 output, 1e-3 + 1e-3 |ref|", worst_of(c, out, 1, 1), 1e-3);
    add(ret, &count, "TransformerEngine bf16", "output and gradients, 2.5e-2 + 2.5e-2 |ref|", worst_of(c, all, 4, 3), 2.5e-2);
    add(ret, &count, "TransformerEngine fp16", "output and gradients, 5e-3 + 5e-3 |ref|", worst_of(c, all, 4, 2), 5e-3);
    add(ret, &count, "PyTorch", "bf16 output, atol 1e-3 P", worst_of(c, out, 1, 0), 1e-3 * P);
    add(ret, &count, "MindSpeed", "bf16 output, dk and dv, 2.5e-2 + 2.5e-2 |ref|", worst_of(c, mindspeed, 3, 3), 2.5e-2);
    add(ret, &count, "diffusers", "gradients of rank 0, relative norm 2e-2", norm, 2e-2);
    add(ret, &count, "lucidrains", "fp32 output, atol 1e-6", worst_of(c, out, 1, 0), 1e-6);
    struct tolerance_result seed = {"cosine and maximum", "output, cosine > 0.999 and maximum < 1e-2", largest, 1e-2, cosine > 0.999 && largest < 1e-2};
    ret[count++] = seed;
    return count;
}
