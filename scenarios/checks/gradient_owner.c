/* gradient-owner: gradients of keys and values end on the rank that holds them, and are right to the derivative.
 *
 * In fp64. The cotangent of one token alone (one of each chunk): dk and dv are exactly 0 at every key that it does not see, on
 * every rank, and those of one rank elsewhere, limit 1e-12; where a rank has those of another's rows, that is said. Beside it
 * the derivative of sum d_out . out along one direction of q, k and v, by differences of h = 1e-5, limit 1e-6 of the terms.
 * Site: by which of dq, dk, dv are wrong, and where they landed (context_inference.h); of a leak cp.mask_passed. */
#include <math.h>
#include <stdio.h>

#include "scenarios/context_checks.h"
#include "scenarios/facts.h"

static const double limit = 1e-12, derivative_limit = 1e-6;

static void look_at_token(const struct evidence *e, struct check_output *output, const struct gradient_pass *p, const struct context_inference *inference)
{
    double worst = fmax(p->dq, fmax(p->dk, p->dv));
    check_value(output, worst, limit);
    check_value(output, p->leaks > 0, 0);
    if (p->leaks > 0) {
        struct finding finding = finding_new(inference->word ? inference->site : context_site("cp.mask_passed"), context_place(e, p->leak_rank));
        finding.expected = 0;
        finding.got = (double)p->leaks;
        finding_pattern(&finding, inference->word ? inference->word : "leaks");
        finding_say(&finding, "the cotangent of position %lld of sequence %lld gives %lld keys a gradient that it must not see, the first at position %lld on rank %d%s%s", (long long)p->token,
                    (long long)p->sequence, (long long)p->leaks, (long long)p->leak_position, p->leak_rank, inference->word ? ": " : "", inference->text);
        check_find(output, &finding);
    }
    if (worst <= limit) return;
    /* Where dq is wrong too its rank computed with what is wrong; keys' owners only get it. */
    struct finding finding = finding_new(inference->site, context_place(e, p->dq > limit ? p->dq_rank : p->wrong_rank));
    char landed[96] = "";
    finding.expected = 0;
    finding.got = worst;
    finding_pattern(&finding, inference->word ? inference->word : "gradient");
    bool forward = e->context->comparison && !context_comparison_any(e->context->comparison, CONTEXT_OUT);
    if (p->landed >= 0 && forward) snprintf(landed, sizeof landed, "; rank %d has those of rank %d's rows", p->wrong_rank, p->landed);
    finding_say(&finding, "the cotangent of position %lld of sequence %lld alone: dq differs by %.3g, dk by %.3g, dv by %.3g%s%s%s", (long long)p->token, (long long)p->sequence, p->dq, p->dk, p->dv,
                landed, inference->word ? ": " : "", inference->text);
    check_find(output, &finding);
}

static void run(const struct evidence *e, struct check_output *output)
{
    const struct context_variations *v = e->context ? e->context->variations : NULL;
    if (!e->config->attention.backward) {
        check_skip(output, "there is no backward (attention.backward false)");
        return;
    }
    if (!v || v->gradient_count == 0) {
        check_skip(output, "nothing differs; --checks deep follows single tokens' gradients");
        return;
    }
    struct context_inference inference = context_infer_of(e);
    bool forward = e->context->comparison && !context_comparison_any(e->context->comparison, CONTEXT_OUT) && !context_comparison_any(e->context->comparison, CONTEXT_LSE);
    if (!forward) inference.site = NULL; /* what follows from a wrong forward says nothing of whose it is */
    for (int i = 0; i < v->gradient_count; i++) {
        if (!v->gradient[i].failed) look_at_token(e, output, &v->gradient[i], &inference);
    }
    const struct direction_pass *d = &v->direction;
    if (!d->made) return;
    check_value(output, d->error, derivative_limit);
    if (d->error <= derivative_limit) return;
    struct finding finding = finding_new(inference.site, context_place(e, -1));
    finding.expected = d->numeric;
    finding.got = d->analytic;
    finding_pattern(&finding, inference.word ? inference.word : "gradient");
    finding_say(&finding, "along one direction of q, k and v the gradients give %.9g and differences of outputs %.9g: off by %.3g of the terms", d->analytic, d->numeric, d->error);
    check_find(output, &finding);
}

const struct check check_gradient_owner = {
    .id = "gradient-owner",
    .proves = "gradients of keys and values land on the rank that holds them, are 0 where nothing sees them, and are the derivative of the output",
    .tier = "deep",
    .run = run,
    .workloads = CHECK_IN(WORKLOAD_ATTENTION),
};
