/* tp-lora-placement: an adapter that every tensor-parallel rank has whole is placed as one rank's part: its gradient is not reduced. */
#include "scenarios/fault.h"

const struct fault fault_tp_lora_placement = {
    .name = "tp-lora-placement",
    .component = "tp",
    .injected = "an adapter that every tensor-parallel rank has whole is placed as one rank's part: its gradient is not reduced",
    .visible = "copies of the adapter drift apart",
    .checks = "oracle,placement,replica-equality",
    .source = "mcore-bridge #173; ART #619; Megatron-Bridge #5634/#5635/#5900; miles #2723",
    .scenario = "fault_tp_lora_placement.json",
    .signature = "tag-lost",
    .parts_count = 1,
    .parts = {{"tp.adapter_placement", "never", "", 0, AT_EVERYWHERE}},
};
