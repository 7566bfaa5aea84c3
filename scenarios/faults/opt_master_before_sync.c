/* opt-master-before-sync: the optimizer takes the tied embedding's gradient before it is summed over both stages. */
#include "scenarios/fault.h"

const struct fault fault_opt_master_before_sync = {
    .name = "opt-master-before-sync",
    .component = "optimizer",
    .injected = "the optimizer takes the tied embedding's gradient before it is summed over both stages",
    .visible = "the two copies drift apart",
    .checks = "contribution,replica-equality",
    .source = "Megatron-LM 9b558566",
    .scenario = "fault_opt_master_before_sync.json",
    .signature = "one-use",
    .parts_count = 1,
    .parts = {{"optimizer.gradients", "never", "", 0, AT_EVERYWHERE}},
};
