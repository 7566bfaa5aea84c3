/* dp-hsdp-divisor: a divisor is applied to the sum over replicas too. */
#include "scenarios/fault.h"

const struct fault fault_dp_hsdp_divisor = {
    .name = "dp-hsdp-divisor",
    .component = "hsdp",
    .injected = "a divisor is applied to the sum over replicas too",
    .visible = "gradients are smaller by the number of replicas",
    .checks = "scale-ledger,token-weight",
    .source = "pytorch #155903",
    .scenario = "fault_dp_hsdp_divisor.json",
    .signature = "",
    .parts_count = 1,
    .parts = {{"hsdp.grad_divisor", "set", "D_replicate", 0, AT_EVERYWHERE}},
};
