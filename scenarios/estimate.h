/* estimate: how much memory a run and its reference will take, before anything is allocated. */
#ifndef SCENARIOS_ESTIMATE_H
#define SCENARIOS_ESTIMATE_H

#include "model/config.h"

struct estimate {
    double parameters;                              /* of the model, a count */
    double state, history, activations, data, ranks; /* bytes */
};

/* Both runs together. In floating point, so that no product overflows. */
struct estimate estimate_run(const struct run_config *config);
double estimate_total_bytes(const struct estimate *estimate);

#endif
