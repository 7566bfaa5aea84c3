/* recompute-rng: the recomputation of a layer draws new dropout masks. */
#include "scenarios/fault.h"

const struct fault fault_recompute_rng = {
    .name = "recompute-rng",
    .component = "recompute.restore_rng",
    .injected = "a layer that is computed again for its backward draws new dropout masks: the generator's state is not restored",
    .visible = "the first loss is right, gradients belong to another forward than the loss, and losses drift from the second step on",
    .checks = "oracle,rng",
    .source = "OLMo-core pull request 828",
    .scenario = "fault_recompute_rng.json",
    .signature = "redrawn",
    .parts_count = 1,
    .parts = {{"recompute.restore_rng", "never", "", 0, AT_EVERYWHERE}},
};
