/* fsdp-no-decay-lost: sharding loses the tag that weight decay leaves a parameter out. */
#include "scenarios/fault.h"

const struct fault fault_fsdp_no_decay_lost = {
    .name = "fsdp-no-decay-lost",
    .component = "fsdp.params",
    .injected = "sharding loses the tag that weight decay leaves a parameter out",
    .visible = "norms and biases are drawn towards 0",
    .checks = "update-coverage",
    .source = "Megatron-LM #5790",
    .scenario = "fault_fsdp_no_decay_lost.json",
    .signature = "decayed",
    .parts_count = 1,
    .parts = {{"fsdp.no_decay", "never", "", 0, AT_EVERYWHERE}},
};
