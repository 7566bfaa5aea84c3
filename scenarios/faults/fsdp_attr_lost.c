/* fsdp-attr-lost: sharding loses the tag that a parameter is frozen. */
#include "scenarios/fault.h"

const struct fault fault_fsdp_attr_lost = {
    .name = "fsdp-attr-lost",
    .component = "fsdp.params",
    .injected = "sharding loses the tag that a parameter is frozen",
    .visible = "a frozen parameter is trained",
    .checks = "update-coverage",
    .source = "Megatron-LM #5790",
    .scenario = "fault_fsdp_attr_lost.json",
    .signature = "frozen-updated",
    .parts_count = 1,
    .parts = {{"fsdp.attributes", "never", "", 0, AT_EVERYWHERE}},
};
