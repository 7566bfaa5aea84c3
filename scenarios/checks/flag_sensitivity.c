/* flag-sensitivity: turning causal, the window or documents on or off changes the result as it changes the reference.
 *
 * A forward in fp64 with each of them turned: off by more than 1e-12 from the reference turned alike, or by nothing at all from
 * the run as it was where the reference moved, is a finding; a mix that is refused is right. Where the run as it is was wrong
 * already, a turned one that is wrong too says nothing: then only a flag that is ignored is found.
 * Sites: cp.mask_passed, cp.window_passed, cp.documents_passed. */
#include <math.h>
#include <string.h>

#include "scenarios/context_checks.h"
#include "scenarios/facts.h"

static const double limit = 1e-12;

static void run(const struct evidence *e, struct check_output *output)
{
    static const char *const sites[FLAG_KINDS] = {"cp.mask_passed", "cp.window_passed", "cp.documents_passed"};
    const struct context_variations *v = e->context ? e->context->variations : NULL;
    bool any = false;
    for (int k = 0; v && k < FLAG_KINDS; k++) any = any || v->flag[k].made;
    if (!any) {
        check_skip(output, "nothing differs; --checks deep turns causal, window and documents");
        return;
    }
    bool right = e->context->comparison && !context_comparison_any(e->context->comparison, CONTEXT_OUT);
    struct context_inference inference = context_infer_of(e);
    bool of_mask = !inference.word || !strcmp(inference.word, "leaks") || !strcmp(inference.word, "masked-too-much");
    bool moves = right; /* an output that nothing moves says nothing of one flag */
    for (int k = 0; k < FLAG_KINDS; k++) moves = moves || (v->flag[k].made && v->flag[k].got > 0);
    check_value(output, 0, limit);
    for (int k = 0; k < FLAG_KINDS; k++) {
        const struct flag_pass *p = &v->flag[k];
        if (!p->made || p->refused || p->failed) continue;
        bool wrong = (p->ignored && moves) || (right && p->error > limit);
        check_value(output, wrong ? fmax(p->error, 2 * limit) : 0, limit);
        if (!wrong) continue;
        const struct site *site = context_site(sites[k]);
        bool leaks = right || of_mask || !e->context->comparison || (inference.word && !strncmp(inference.word, "leaks", 5));
        if (!p->ignored || !leaks) site = NULL; /* of a run that is wrong otherwise it says little */
        struct finding finding = finding_new(site, context_place(e, -1));
        finding.expected = p->due;
        finding.got = p->got;
        finding_pattern(&finding, p->ignored ? "ignored" : "flag");
        if (p->ignored) finding_say(&finding, "%s turned %s changes no bit of any output, and the reference by %.3g: it is taken and not passed on", flag_names[k], p->on ? "on" : "off", p->due);
        else finding_say(&finding, "with %s turned %s the output is off by %.3g, and right as the scenario has it", flag_names[k], p->on ? "on" : "off", p->error);
        for (int r = 0; r < e->parallel->ranks; r++) {
            finding.place.rank = r;
            if (!p->ignored && p->of_rank[r] <= limit) continue;
            check_find(output, &finding);
        }
    }
}

const struct check check_flag_sensitivity = {
    .id = "flag-sensitivity",
    .proves = "causal, window and documents, turned on or off, change the result as they change the reference; a mix that is not built is refused",
    .tier = "deep",
    .run = run,
    .workloads = CHECK_IN(WORKLOAD_ATTENTION),
};
