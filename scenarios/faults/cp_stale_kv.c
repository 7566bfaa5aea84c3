/* cp-stale-kv: a block of the step before is computed with. */
#include "scenarios/fault.h"

const struct fault fault_cp_stale_kv = {
    .name = "cp-stale-kv",
    .component = "cp.hop",
    .injected = "a block of the step before is computed with",
    .visible = "training as with old keys; no shape, no count is off",
    .checks = "oracle,consumption",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_stale_kv.json",
    .signature = "stale",
    .parts_count = 1,
    .parts = {{"cp.kv_hop", "stale", "", 0, AT_STEP_ONE}},
};
