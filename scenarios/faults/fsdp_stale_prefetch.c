/* fsdp-stale-prefetch: a layer computes with parameters that were gathered before the optimizer's last update. */
#include "scenarios/fault.h"

const struct fault fault_fsdp_stale_prefetch = {
    .name = "fsdp-stale-prefetch",
    .component = "fsdp.params",
    .injected = "a layer computes with parameters that were gathered before the optimizer's last update",
    .visible = "the layer trains with weights one step old",
    .checks = "version",
    .source = "Megatron-LM #950, #663, #6388, #6153",
    .scenario = "fault_fsdp_stale_prefetch.json",
    .signature = "stale-version",
    .parts_count = 1,
    .parts = {{"fsdp.unshard", "stale", "", 0, AT_LAYER_MIDDLE}},
};
