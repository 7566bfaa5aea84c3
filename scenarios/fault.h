/* fault: the catalogue of faults, one file and one line (faults.def) each.
 *
 * A fault is one or more deviations at sites, with the places where the real system had it as defaults.
 * Only the injector reads this table, and the listing commands: comparison, checks and diagnosis never do
 * (except to rank candidates by name for what they found: fault_candidates reads component and signature). */
#ifndef SCENARIOS_FAULT_H
#define SCENARIOS_FAULT_H

#include "sim/site.h"

enum fault_default_at {              /* bits; what the entry leaves open */
    AT_EVERYWHERE = 0, AT_STAGES_BUT_FIRST = 1, AT_STAGE_MIDDLE = 2 /* pp/2 */, AT_LAST_MICROBATCH = 4,
    AT_LAYER_MIDDLE = 8 /* layers/2 */, AT_STAGE_ONE = 16,
    AT_MICROBATCHES_BUT_LAST = 32, AT_MICROBATCH_ZERO = 64, AT_MICROBATCH_ONE = 128, AT_DATA_RANK_ONE = 256 /* of the last stage */,
    AT_STAGE_LAST = 512, AT_STAGE_FIRST = 1024, AT_NO_LAYER = 2048 /* units that are no layer: embedding, head */,
    AT_STEP_ONE = 1 << 16, AT_RANK_ONE = 1 << 17, AT_DATA_RANK_ONE_OF_MIDDLE = 1 << 18 /* of stage pp/2 */,
    AT_STAGES_BUT_LAST = 1 << 19, AT_MICROBATCHES_BUT_FIRST = 1 << 20,
    AT_HOP_ONE = 1 << 21, AT_HOP_LAST = 1 << 22 /* of keys and values: ranks of the ring - 1 */, AT_HOP_HOME = 1 << 23 /* the gradients' last: ranks of the ring */,
};
struct fault_part { const char *site, *deviation, *text; double value; unsigned at; };

struct fault {
    const char *name;                /* "loss-divided-twice" */
    const char *component;           /* "pp.loss": what a diagnosis must say */
    const char *injected;            /* what goes wrong, one sentence */
    const char *visible;             /* what one sees */
    const char *checks;              /* ids, comma-separated: those that must fire */
    const char *source;              /* public origin: system and issue number */
    const char *scenario;            /* shipped scenario file that shows it */
    const char *signature;           /* how its numbers look, for ranking candidates: see diagnosis.h; "" = component alone */
    int parts_count; struct fault_part parts[3];
};

int fault_count(void);
const struct fault *fault_at(int i);              /* in the order of faults.def */
const struct fault *fault_find(const char *name); /* NULL: none */

/* All floors' sites and deviations, for loading and listing. */
int site_registry_count(void);
const struct site *site_registry_at(int i);
const struct site *site_registry_find(const char *name);
int deviation_registry_count(void);
const struct deviation *deviation_registry_at(int i);
const struct deviation *deviation_registry_find(const char *name, enum site_kind kind);
bool deviation_applies(const struct deviation *deviation, const struct site *site);

#endif
