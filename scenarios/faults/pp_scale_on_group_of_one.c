/* pp-scale-on-group-of-one: the reduction of a group of one works in place and doubles at each micro-batch what was accumulated. */
#include "scenarios/fault.h"

const struct fault fault_pp_scale_on_group_of_one = {
    .name = "pp-scale-on-group-of-one",
    .component = "fsdp.grad_divisor",
    .injected = "the reduction of a group of one works in place and doubles at each micro-batch what was accumulated",
    .visible = "2^M growth: the earlier a micro-batch, the more it weighs",
    .checks = "scale-ledger,token-weight",
    .source = "Megatron-LM #6660",
    .scenario = "fault_pp_scale_on_group_of_one.json",
    .signature = "",
    .parts_count = 1,
    .parts = {{"fsdp.grad_divisor", "per-accumulation-step", "1/2", 0, AT_EVERYWHERE}},
};
