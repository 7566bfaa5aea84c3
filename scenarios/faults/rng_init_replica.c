/* rng-init-replica: each rank draws initial values from its own stream: nobody has set one seed for all. */
#include "scenarios/fault.h"

const struct fault fault_rng_init_replica = {
    .name = "rng-init-replica",
    .component = "init",
    .injected = "each rank draws initial values from its own stream: nobody has set one seed for all",
    .visible = "copies of a parameter differ from the first step on, and so does the loss",
    .checks = "oracle",
    .source = "Megatron-LM 1113758d24 (!2238); hyper-parallel #193 (no seed in the demo)",
    .scenario = "fault_rng_init_replica.json",
    .signature = "other-values",
    .parts_count = 1,
    .parts = {{"model.initial", "never", "", 0, AT_EVERYWHERE}},
};
