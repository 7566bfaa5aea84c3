/* cp-local-only: keys and values never leave their rank. */
#include "scenarios/fault.h"

const struct fault fault_cp_local_only = {
    .name = "cp-local-only",
    .component = "cp.hop",
    .injected = "keys and values never leave their rank",
    .visible = "each rank attends to its own shard alone; under a causal mask rank 0 is right",
    .checks = "oracle,consumption,influence,softmax-mass",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_local_only.json",
    .signature = "local-only",
    .parts_count = 1,
    .parts = {{"cp.rotate", "never", "", 0, AT_EVERYWHERE}},
};
