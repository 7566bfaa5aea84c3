/* pp-root-wait-skipped: the last wait of a stage, for the reduction of its root unit, is left out. */
#include "scenarios/fault.h"

const struct fault fault_pp_root_wait_skipped = {
    .name = "pp-root-wait-skipped",
    .component = "fsdp.reduce_grad",
    .injected = "the last wait of a stage, for the reduction of its root unit, is left out",
    .visible = "the root unit is updated with what its buffer held before",
    .checks = "contribution",
    .source = "pytorch PR #144535",
    .scenario = "fault_pp_root_wait_skipped.json",
    .signature = "missing-microbatch",
    .parts_count = 1,
    .parts = {{"fsdp.reduce_grad", "late", "", 0, AT_STAGE_FIRST | AT_NO_LAYER}},
};
