/* initial_values: the elements that a rank owns of a parameter before the first step, against the standalone run's, which
 * come from the same seed or file: to the bit. Where they are those of another expert's parameter of the same kind, experts
 * have been mixed up (ep.expert_order); else they were drawn otherwise (model.initial). */
#include "scenarios/initial_values.h"

#include <string.h>

#include "model/params.h"
#include "model/sites.h"
#include "scenarios/facts.h"

/* The standalone run has whole parameters. */
static const struct tensor_fact *whole(const struct record *standalone, int param)
{
    const struct rank_record *rank = &standalone->rank[0];
    for (int i = 0; i < rank->tensors.count; i++) {
        const struct tensor_fact *fact = &rank->tensors.items[i];
        if (fact->step >= 0) return NULL; /* they come first */
        if (fact->kind == TENSOR_PARAM && fact->param == param && fact->replica == 0) return fact;
    }
    return NULL;
}

static bool has_values_of(const struct record *record, const struct tensor_fact *held, const struct tensor_fact *due)
{
    enum format storage = run_storage(&record->config);
    size_t bytes = format_storage_bytes(storage);
    const struct param_info *info = &record->params.params[held->param].info;
    for (int64_t i = 0; i < held->elements; i++) {
        int64_t at = param_cut_element(info, record->config.layout.tp, held->part, held->first + i);
        if (memcmp((const char *)held->data + (size_t)i * bytes, (const char *)due->data + (size_t)at * bytes, bytes) != 0) return false;
    }
    return true;
}

/* The expert whose values these are; -1: no other's. */
static int other_expert(const struct evidence *e, const struct tensor_fact *held)
{
    const struct param_table *params = &e->parallel->params;
    const struct param *own = &params->params[held->param];
    const char *kind = strrchr(own->info.name, '.') - 2;
    for (int p = 0; own->info.is_expert && p < params->count; p++) {
        const struct param *other = &params->params[p];
        bool like = other->info.is_expert && other->unit == own->unit && p != held->param && other->info.dims == own->info.dims &&
                    !strcmp(strrchr(other->info.name, '.') - 2, kind);
        const struct tensor_fact *due = like ? whole(e->standalone, p) : NULL;
        if (due && has_values_of(e->parallel, held, due)) return other->info.expert;
    }
    return -1;
}

int initial_values_check(const struct evidence *e, struct check_output *output)
{
    int found = 0;
    for (int r = 0; r < e->parallel->ranks; r++) {
        const struct rank_record *rank = &e->parallel->rank[r];
        for (int i = 0; i < rank->tensors.count && rank->tensors.items[i].step < 0; i++) {
            const struct tensor_fact *fact = &rank->tensors.items[i];
            const struct tensor_fact *due = fact->kind == TENSOR_PARAM && fact->elements > 0 ? whole(e->standalone, fact->param) : NULL;
            if (!due || has_values_of(e->parallel, fact, due)) continue;
            int other = other_expert(e, fact);
            bool is_cut = facts_was_chosen(rank, &site_tp_cut_order, -1, fact->unit); /* what its part is made of */
            const char *name = e->parallel->params.params[fact->param].info.name;
            struct finding finding = finding_new(other >= 0 ? &site_ep_expert_order : is_cut ? &site_tp_cut_order : &site_model_initial, place_at_unit(&e->parallel->config, r, 0, -1, fact->unit));
            finding.place.param = name;
            finding_pattern(&finding, other >= 0 ? "permuted" : is_cut ? "cut-differs" : "other-values");
            if (other >= 0) finding_say(&finding, "rank %d begins with expert %d's values in %s", r, other, name);
            else finding_say(&finding, "rank %d begins with other values of %s than the standalone run", r, name);
            check_value(output, 1, 0);
            check_find(output, &finding);
            found++;
        }
    }
    return found;
}
