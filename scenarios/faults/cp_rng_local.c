/* cp-rng-local: dropout masks are drawn by positions counted from the shard's start. */
#include "scenarios/fault.h"

const struct fault fault_cp_rng_local = {
    .name = "cp-rng-local",
    .component = "dropout",
    .injected = "dropout masks are drawn by positions counted from the shard's start",
    .visible = "each shard drops what the first drops; noise that should average out does not",
    .checks = "oracle,rng",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_rng_local.json",
    .signature = "local-positions",
    .parts_count = 1,
    .parts = {{"dropout.position", "never", "", 0, AT_EVERYWHERE}},
};
