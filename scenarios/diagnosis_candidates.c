/* diagnosis: candidates. The catalogue's entries are compared with what was found, by component, site and
 * pattern, as one would leaf through it; which faults a scenario injects is not known here.
 *
 * score = 0.50 for the component, + 0.20 for a site of the entry, + 0.28 where the signature is the pattern or the
 * ratio, + 0.20 where at least the entry's formula for the factor gives the measured numbers; a signature that says
 * something else costs 0.30. An entry of another component scores only where it
 * has the site and the signature: 0.35. Equal scores keep the catalogue's order. */
#include <math.h>
#include <string.h>

#include "model/sites.h"
#include "scenarios/diagnosis.h"
#include "scenarios/facts.h"
#include "scenarios/fault.h"

static bool has_site(const struct fault *fault, const char *site)
{
    for (int i = 0; i < fault->parts_count; i++) {
        if (site && !strcmp(fault->parts[i].site, site)) return true;
    }
    return false;
}

/* The entry's own formula for a factor of the loss, against what each micro-batch's weight was multiplied by. */
static bool formula_fits(const struct evidence *evidence, const struct fault *fault,
                         const struct diagnosis_group *group)
{
    const struct fault_part *part = &fault->parts[0];
    bool times = !strcmp(part->deviation, "times"), set = !strcmp(part->deviation, "set");
    if (fault->parts_count != 1 || strcmp(part->site, group->site->name) || !part->text[0] || !(times || set))
        return false;
    if (group->site != &site_pp_loss_scale && group->site != &site_dp_loss_scale &&
        group->site != &site_loss_denominator)
        return false;
    const struct loss_convention *convention = loss_convention_of(&evidence->parallel->config);
    int compared = 0;
    for (int i = 0; i < group->count; i++) {
        const struct finding *f = group->findings[i];
        if (strcmp(f->check, "scale-ledger") || f->place.rank < 0) continue;
        struct factor_numbers numbers = facts_numbers(
            evidence->parallel, evidence->parallel->rank[f->place.rank].data_rank, f->place.step, f->place.microbatch);
        struct error error = {0};
        double value;
        if (!factor_parse(part->text, &numbers, &value, &error)) return false;
        double denominator = loss_value(convention->denominator, &numbers);
        double due = group->site != &site_loss_denominator ? value : times ? 1 / value : denominator / value;
        if (!(fabs(f->got / f->expected - due) <= 1e-9 * fabs(due))) return false;
        compared++;
    }
    return compared > 0;
}

static double score_of(const struct evidence *evidence, const struct fault *fault, const struct diagnosis_group *group,
                       const struct diagnosis *diagnosis)
{
    const char *signature = fault->signature ? fault->signature : "";
    bool component = !strcmp(fault->component, diagnosis->component), site = has_site(fault, diagnosis->site);
    bool looks = signature[0] && (!strcmp(signature, group->pattern) || !strcmp(signature, diagnosis->ratio));
    if (!component) return site && looks ? 0.35 : 0;
    return 0.50 + (site ? 0.20 : 0) +
           (looks                                  ? 0.28
            : formula_fits(evidence, fault, group) ? 0.20
            : signature[0] && group->pattern[0]    ? -0.30
                                                   : 0);
}

void diagnosis_rank(const struct evidence *evidence, const struct diagnosis_group *group, struct diagnosis *diagnosis)
{
    diagnosis->candidates_count = 0;
    for (int i = 0; i < fault_count(); i++) {
        const struct fault *fault = fault_at(i);
        double score = score_of(evidence, fault, group, diagnosis);
        if (score <= 0) continue;
        int at = diagnosis->candidates_count;
        while (at > 0 && diagnosis->candidates[at - 1].score < score) at--;
        if (at == CANDIDATES_MAX) continue;
        int moved =
            diagnosis->candidates_count < CANDIDATES_MAX ? diagnosis->candidates_count - at : CANDIDATES_MAX - 1 - at;
        memmove(&diagnosis->candidates[at + 1], &diagnosis->candidates[at],
                (size_t)moved * sizeof diagnosis->candidates[0]);
        diagnosis->candidates[at] = (struct candidate){fault->name, score};
        if (diagnosis->candidates_count < CANDIDATES_MAX) diagnosis->candidates_count++;
    }
}
