/* lse: the log-sum-exp of merged rows is the whole rows', at any size of logits, and rows that see nothing are 0 and -inf.
 *
 * The run's own lse is the oracle's business. Here, in fp64: queries multiplied so that logits reach 1,000 (exp of that is no
 * number: the largest must be taken off before), limit 1e-9, which a logit's own rounding is; and a quarter of the rows made
 * padding of no document: out exactly 0, lse -inf, no NaN in any row. Site: cp.merge_stable, cp.out_init. */
#include <math.h>

#include "scenarios/context_checks.h"
#include "scenarios/facts.h"

static void run(const struct evidence *e, struct check_output *output)
{
    const struct context_variations *v = e->context ? e->context->variations : NULL;
    if (!v || v->lse_count == 0) {
        check_skip(output, "nothing differs; --checks deep makes logits large and rows empty");
        return;
    }
    struct context_inference inference = context_infer_of(e);
    bool right = e->context->comparison && !context_comparison_any(e->context->comparison, CONTEXT_OUT) && !context_comparison_any(e->context->comparison, CONTEXT_LSE);
    const struct context_comparison *fine = e->context->fine;
    right = right && (!fine || (!context_comparison_any(fine, CONTEXT_OUT) && !context_comparison_any(fine, CONTEXT_LSE)));
    for (int i = 0; i < v->lse_count; i++) {
        const struct lse_pass *p = &v->lse[i];
        if (p->failed) continue;
        double worst = fmax(p->lse_error, p->out_error);
        check_value(output, worst, p->limit);
        if (worst <= p->limit) continue;
        bool overflows = !v->lse[0].failed && !v->lse[0].finite; /* then empty rows, whose exponentials are 0, are its consequence */
        const char *name = i == 0 || overflows ? "cp.merge_stable" : "cp.out_init";
        struct finding finding = finding_new(right ? context_site(name) : inference.site, context_place(e, p->rank));
        finding.expected = 0;
        finding.got = worst;
        finding_pattern(&finding, !right && inference.word ? inference.word : p->finite ? "lse" : i == 0 ? "overflow" : "empty-rows");
        finding_say(&finding, "with %s, position %lld of sequence %lld on rank %d is %s: lse differs by %.3g, out by %.3g", p->what, (long long)p->position, (long long)p->sequence, p->rank,
                    p->finite ? "wrong" : "not a number", p->lse_error, p->out_error);
        check_find(output, &finding);
    }
}

const struct check check_lse = {
    .id = "lse",
    .proves = "merged log-sum-exp and output equal those of whole rows, with logits up to 1,000 and rows that see nothing",
    .tier = "deep",
    .run = run,
    .workloads = CHECK_IN(WORKLOAD_ATTENTION),
};
