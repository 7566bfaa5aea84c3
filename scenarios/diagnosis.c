/* diagnosis: choosing the group, and what its findings have in common. */
#include "scenarios/diagnosis.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/sites.h"
#include "scenarios/compare.h"

static int step_key(const struct finding *finding)
{
    return finding->place.step < 0 ? INT_MAX : finding->place.step;
}

static int site_key(const struct site *site)
{
    int order = model_site_order(site);
    return order < 0 ? INT_MAX : order;
}

static bool earlier(const struct finding *a, const struct finding *b)
{
    if (step_key(a) != step_key(b)) return step_key(a) < step_key(b);
    return site_key(a->site) < site_key(b->site);
}

/* A decision that makes calls of a group come in another order, this rank's to reduce, or any member's not to; or a rank that takes
 * another's place, which makes them of other sizes. */
static bool decides(const struct evidence *e, const struct finding *f, const struct finding *mismatch)
{
    if (step_key(f) != step_key(mismatch)) return false;
    if (f->site == &site_cp_forward_received || f->site == &site_cp_dkv_direction || f->site == &site_cp_unpack) return true; /* another block, of other rows */
    if (f->site == &site_ep_rank) return true; /* whose experts it has, and so how many of them */
    if (f->site == &site_fsdp_sync_now || f->site == &site_dp_sync_now) return f->place.rank == mismatch->place.rank;
    if (f->site != &site_ddp_ready || f->place.rank < 0 || mismatch->place.rank < 0) return false;
    return e->parallel->rank[f->place.rank].stage == e->parallel->rank[mismatch->place.rank].stage;
}

/* Once the calls of a group no longer fit together, every number behind is another's: so the mismatch itself is the
 * cause, or the decision that led to it. NULL where something was wrong in an earlier step. */
static const struct finding *first_mismatch(const struct evidence *e, const struct result *result, const struct finding *best)
{
    const struct finding *mismatch = NULL, *decision = NULL;
    for (int i = 0; i < result->findings_count; i++) {
        const struct finding *f = &result->findings[i];
        if (f->site && !strcmp(f->check, "collective-match") && f->site->kind == SITE_COMMUNICATION && (!mismatch || step_key(f) < step_key(mismatch)))
            mismatch = f;
    }
    if (!mismatch || step_key(best) < step_key(mismatch)) return NULL;
    for (int i = 0; i < result->findings_count && !decision; i++) {
        const struct finding *f = &result->findings[i];
        if (decides(e, f, mismatch)) decision = f;
    }
    return decision ? decision : mismatch;
}

static const struct finding *first_finding(const struct evidence *e, const struct result *result)
{
    const struct finding *best = NULL;
    for (int i = 0; i < result->findings_count; i++) {
        const struct finding *f = &result->findings[i];
        if (f->site && (!best || earlier(f, best))) best = f;
    }
    const struct finding *mismatch = best ? first_mismatch(e, result, best) : NULL;
    return mismatch ? mismatch : best;
}

/* A mismatch, and a buffer in use while a call was under way, speak for themselves: what else is found at the site may
 * be their consequence. */
static bool speaks(const struct finding *f)
{
    bool mismatch = !strcmp(f->check, "collective-match") && f->site && f->site->kind == SITE_COMMUNICATION;
    return mismatch || !strcmp(f->check, "race") || !strcmp(f->pattern, "wrong-format");
}

/* The finding at the place of `first` that speaks for itself, of whichever check; else the first that says how its
 * numbers look; else first. */
static const struct finding *spokesman(const struct result *result, const struct finding *first)
{
    const struct finding *given = first;
    for (int i = 0; i < result->findings_count && !speaks(first); i++) {
        const struct finding *f = &result->findings[i];
        bool here = f->site == given->site && step_key(f) == step_key(given);
        if (here && speaks(f)) return f;
        if (here && !first->pattern[0] && f->pattern[0]) first = f;
    }
    return first;
}

static bool in_group(const struct finding *f, const struct finding *first)
{
    if (speaks(first) && strcmp(f->check, first->check)) return false;
    return f->site == first->site && step_key(f) == step_key(first);
}

static bool of_component(const struct finding *f, const struct finding *first)
{
    if (speaks(first) && strcmp(f->check, first->check)) return false;
    return f->site && step_key(f) == step_key(first) && !strcmp(f->site->component, first->site->component);
}

static void add_rank(struct diagnosis *diagnosis, int rank)
{
    int at = 0;
    while (at < diagnosis->ranks_count && diagnosis->ranks[at] < rank) at++;
    if (at < diagnosis->ranks_count && diagnosis->ranks[at] == rank) return;
    if (rank < 0 || diagnosis->ranks_count == EXPECT_RANKS_MAX) return;
    memmove(&diagnosis->ranks[at + 1], &diagnosis->ranks[at],
            (size_t)(diagnosis->ranks_count - at) * sizeof diagnosis->ranks[0]);
    diagnosis->ranks[at] = rank;
    diagnosis->ranks_count++;
}

/* The first layer concerned; -1 where it is no matter of layers, or all units of these ranks are concerned. */
static int first_layer(const struct evidence *evidence, const struct diagnosis_group *group,
                       const struct diagnosis *diagnosis)
{
    int units = gradient_unit_count(evidence->config), layer = -1;
    bool *concerned = memory_zalloc((size_t)units), all = true, all_experts = true, any_experts = false;
    for (int i = 0; i < group->count; i++) {
        const struct place *place = &group->findings[i]->place;
        if (place->unit >= 0 && place->unit < units) concerned[place->unit] = true;
        if (place->layer >= 0 && (layer < 0 || place->layer < layer)) layer = place->layer;
    }
    for (int i = 0; i < diagnosis->ranks_count; i++) {
        const struct rank_record *rank = &evidence->parallel->rank[diagnosis->ranks[i]];
        for (int u = 0; u < units; u++) {
            if (!record_has_unit(evidence->parallel, rank, u)) continue;
            bool experts = unit_is_experts(&evidence->config->model, u);
            any_experts = any_experts || experts;
            if (experts) all_experts = all_experts && concerned[u];
            else all = all && concerned[u];
        }
    }
    free(concerned);
    return (all || (any_experts && all_experts)) && diagnosis->ranks_count > 0 ? -1 : layer;
}

static void common_place(const struct evidence *evidence, const struct diagnosis_group *group,
                         struct diagnosis *diagnosis)
{
    diagnosis->place = PLACE_NONE;
    diagnosis->place.step = group->step;
    bool every = true;
    for (int i = 0; i < group->count; i++) {
        int m = group->findings[i]->place.microbatch;
        if (group->findings[i]->place.rank < 0 && group->count > 1) continue; /* of the step as a whole */
        every = every && m >= 0;
        if (m >= 0 && (diagnosis->place.microbatch < 0 || m < diagnosis->place.microbatch))
            diagnosis->place.microbatch = m;
    }
    if (!every) diagnosis->place.microbatch = -1;
    diagnosis->place.layer = first_layer(evidence, group, diagnosis);
    if (diagnosis->place.layer >= 0) diagnosis->place.unit = diagnosis->place.layer + 1;
}

/* The pattern is the first finding's; the ratio is one where all that have one agree. */
static void common_words(struct diagnosis_group *group, struct diagnosis *diagnosis)
{
    const struct finding *pattern = NULL, *ratio = NULL;
    bool ratios_agree = true;
    diagnosis->ratio_value = NAN;
    for (int i = 0; i < group->count; i++) {
        const struct finding *f = group->findings[i];
        if (f->pattern[0] && !pattern) pattern = f; /* the first tells: what follows may be its own consequence */
        if (f->ratio[0] && ratio) ratios_agree = ratios_agree && !strcmp(f->ratio, ratio->ratio);
        if (f->ratio[0] && !ratio) ratio = f;
    }
    if (pattern) memcpy(group->pattern, pattern->pattern, sizeof group->pattern);
    if (ratio && ratios_agree) {
        memcpy(diagnosis->ratio, ratio->ratio, sizeof diagnosis->ratio);
        diagnosis->ratio_value = ratio->ratio_value;
    }
}

/* Of a component that is not the site's, by these words where there are such: they say more than that numbers differ. */
static void telling_pattern(struct diagnosis_group *group)
{
    static const char *const words[] = {"wrong-format", "rounded", "copies-differ"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        for (int k = 0; k < group->count; k++) {
            const struct finding *f = group->findings[k];
            if (strcmp(f->pattern, words[i])) continue;
            memcpy(group->pattern, f->pattern, sizeof group->pattern);
            group->first = f;
            return;
        }
    }
}

/* Inside a layer more was noted than that its output differs. */
static void told_inside(struct diagnosis_group *group)
{
    for (int k = 0; k < group->count && group->site == &site_layer_forward; k++) {
        const struct finding *f = group->findings[k];
        if (strcmp(f->pattern, "split-attention")) continue;
        memcpy(group->pattern, f->pattern, sizeof group->pattern);
        group->first = f;
        return;
    }
}

bool diagnose(const struct evidence *evidence, struct result *result)
{
    const struct finding *first = first_finding(evidence, result);
    struct finding guessed;
    if (!first) {
        guessed = diagnosis_guess(evidence, result);
        if (!guessed.site) return false;
        first = &guessed;
    }
    bool is_guess = first == &guessed;
    if (!is_guess) first = spokesman(result, first);
    struct diagnosis *diagnosis = &result->diagnosis;
    memset(diagnosis, 0, sizeof *diagnosis);
    const struct finding **members = memory_alloc((size_t)(result->findings_count + 1) * sizeof *members);
    struct diagnosis_group group = {
        .step = first->place.step, .site = first->site, .first = first, .findings = members, .guessed = is_guess};
    for (int i = 0; i < result->findings_count; i++) {
        const struct finding *f = &result->findings[i];
        if (in_group(f, first)) members[group.count++] = f;
        if (of_component(f, first)) add_rank(diagnosis, f->place.rank);
    }
    if (group.count == 0) members[group.count++] = first; /* a guess */
    diagnosis->site = first->site->name;
    common_place(evidence, &group, diagnosis);
    common_words(&group, diagnosis);
    snprintf(diagnosis->component, sizeof diagnosis->component, "%s", diagnosis_component(evidence, &group));
    if (strcmp(diagnosis->component, group.site->component)) telling_pattern(&group);
    told_inside(&group);
    diagnosis_say(evidence, &group, diagnosis);
    diagnosis_collect(evidence, &group, diagnosis);
    diagnosis_rank(evidence, &group, diagnosis);
    free(members);
    return true;
}
