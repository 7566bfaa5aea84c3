/* pp-stage-never-syncs: one stage never reduces its gradients over the data ranks. */
#include "scenarios/fault.h"

const struct fault fault_pp_stage_never_syncs = {
    .name = "pp-stage-never-syncs",
    .component = "fsdp.sync_now",
    .injected = "one stage never reduces its gradients over the data ranks",
    .visible = "with whole parameters its copies drift apart; with sharded ones it stops training",
    .checks = "replica-equality",
    .source = "picotron PR #5",
    .scenario = "fault_pp_stage_never_syncs.json",
    .signature = "never",
    .parts_count = 1,
    .parts = {{"fsdp.sync_now", "never", "", 0, AT_STAGE_ONE}},
};
