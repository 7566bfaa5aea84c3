/* exploded: where the training itself leaves the finite numbers, in both runs alike, there is nothing to compare.
 * The records are cut before the first step in which both runs' loss or gradient norm is not finite; where only one
 * of them is not, that is a difference like any other and nothing is cut. */
#include "scenarios/experiment.h"

#include <math.h>

#include "scenarios/facts.h"

static bool finite_step(const struct record *record, int step)
{
    for (int r = 0; r < record->ranks; r++) {
        const struct rank_record *rank = &record->rank[r];
        for (int i = 0; i < rank->norms.count; i++) {
            const struct scale_fact *scale = facts_scale(rank, step);
            if (scale && scale->skipped) continue; /* found, and left out */
            if (rank->norms.items[i].step == step && !isfinite(rank->norms.items[i].norm)) return false;
        }
        for (int i = 0; i < rank->losses.count; i++) {
            if (rank->losses.items[i].step == step && !isfinite(rank->losses.items[i].loss_sum)) return false;
        }
        for (int i = 0; i < rank->tensors.count; i++) {
            const struct tensor_fact *f = &rank->tensors.items[i];
            if (f->step != step || f->kind != TENSOR_PARAM) continue;
            for (int64_t j = 0; j < f->elements; j++) {
                if (!isfinite(format_get(f->data, (size_t)j, run_storage(&record->config)))) return false;
            }
        }
    }
    return true;
}

int exploded_step(const struct record *parallel, const struct record *standalone)
{
    if (parallel->outcome != MACHINE_FINISHED || standalone->outcome != MACHINE_FINISHED) return -1;
    for (int step = 0; step < standalone->config.train.steps; step++) {
        bool finite = finite_step(standalone, step);
        if (finite != finite_step(parallel, step)) return -1;
        if (!finite) return step;
    }
    return -1;
}

#define CUT(vector)                                                                              \
    do {                                                                                         \
        int kept = 0;                                                                            \
        for (int i = 0; i < (vector).count; i++) {                                               \
            if ((vector).items[i].step < step) (vector).items[kept++] = (vector).items[i];       \
        }                                                                                        \
        (vector).count = kept;                                                                   \
    } while (0)

void exploded_cut(struct record *record, int step)
{
    record->config.train.steps = step;
    for (int r = 0; r < record->ranks; r++) {
        struct rank_record *rank = &record->rank[r];
        for (int i = 0; i < rank->gradients.count; i++) {
            if (rank->gradients.items[i].step >= step) ledger_done(&rank->gradients.items[i].ledger);
        }
        CUT(rank->samples);
        CUT(rank->losses);
        CUT(rank->counts);
        CUT(rank->sketches);
        CUT(rank->versions);
        CUT(rank->gradients);
        CUT(rank->factors);
        CUT(rank->finites);
        CUT(rank->syncs);
        CUT(rank->norms);
        CUT(rank->scales);
        CUT(rank->reports);
        CUT(rank->updates);
        CUT(rank->tensors);
        CUT(rank->poisons);
    }
}
