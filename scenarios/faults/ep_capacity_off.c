/* ep-capacity-off: an expert's capacity ignores that a token has top_k experts. */
#include "scenarios/fault.h"

const struct fault fault_ep_capacity_off = {
    .name = "ep-capacity-off",
    .component = "moe.capacity",
    .injected = "an expert's capacity ignores that a token has top_k experts",
    .visible = "many more pairs are dropped than are due",
    .checks = "oracle,conservation",
    .source = "Megatron-LM #2214 (ecb948e583); DeepSpeed #5156",
    .scenario = "fault_ep_capacity_off.json",
    .signature = "capacity",
    .parts_count = 1,
    .parts = {{"moe.capacity_top_k", "omit", "", 0, AT_EVERYWHERE}},
};
