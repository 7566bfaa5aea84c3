/* softmax-mass: with values that say which chunk they are of, the output is the share of the softmax that a chunk's keys got.
 *
 * One extra forward (as many as are needed where a head is narrower than there are chunks), in fp64, column c of a value row 1
 * for the rows of member c; joint rows have a column of their own. Each row's shares against the reference's, limit 1e-10; beside it
 * their sum. A chunk that is missing has 0, a doubled one twice its weight beside the others, results added up without weights
 * more than 1 in all, a plain average the same for every chunk. Site and word: context_infer. */
#include <math.h>
#include <stdio.h>

#include "scenarios/context_checks.h"
#include "scenarios/facts.h"

static const double limit = 1e-10;

static void run(const struct evidence *e, struct check_output *output)
{
    const struct context_variations *v = e->context ? e->context->variations : NULL;
    if (!v || !v->mass.got) {
        check_skip(output, "nothing differs; --checks deep makes one more forward");
        return;
    }
    const struct mass *m = &v->mass;
    if (m->failed) {
        check_skip(output, "the extra forward did not come to its end");
        return;
    }
    int members = layout_cp(&e->config->layout);
    struct context_inference inference = context_infer_of(e);
    for (int r = 0; r < e->parallel->ranks; r++) {
        int worst = 0;
        for (int c = 0; c < m->chunks; c++) worst = m->worst[r * m->chunks + c] > m->worst[r * m->chunks + worst] ? c : worst;
        double off = m->worst[r * m->chunks + worst];
        check_value(output, off, limit);
        if (off <= limit) continue;
        struct finding finding = finding_new(inference.site, context_place(e, r));
        char whose[48] = "the joint rows";
        if (worst < members) snprintf(whose, sizeof whose, "member %d's keys", worst);
        finding.expected = m->due[r * m->chunks + worst];
        finding.got = fabs(m->got[r * m->chunks + worst]); /* shares are not negative; this takes off the sign of what is not a number */
        finding_pattern(&finding, inference.word ? inference.word : "badly-merged");
        finding_say(&finding, "on rank %d %s get %.6g of the softmax on average where %.6g is due (all together %.6g of %.6g)%s%s", r, whose, finding.got, finding.expected, fabs(m->total[r]),
                    m->total_due[r], inference.word ? ": " : "", inference.text);
        check_find(output, &finding);
    }
}

const struct check check_softmax_mass = {
    .id = "softmax-mass",
    .proves = "each chunk's keys get the share of the softmax that is due to them, on every rank: none is missing, doubled, leaked or weighed wrongly",
    .tier = "deep",
    .measures = "share of the softmax",
    .run = run,
    .workloads = CHECK_IN(WORKLOAD_ATTENTION),
};
