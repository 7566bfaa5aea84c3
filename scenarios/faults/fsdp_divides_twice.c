/* fsdp-divides-twice: the reduction divides once more by the number of data ranks. */
#include "scenarios/fault.h"

const struct fault fault_fsdp_divides_twice = {
    .name = "fsdp-divides-twice",
    .component = "fsdp.grad_divisor",
    .injected = "the reduction divides once more by the number of data ranks",
    .visible = "gradients are 1/D of what is due; Adam hides it",
    .checks = "scale-ledger,grad-norm",
    .source = "torchtitan PR #2323",
    .scenario = "fault_fsdp_divides_twice.json",
    .signature = "1/D",
    .parts_count = 1,
    .parts = {{"fsdp.grad_divisor", "twice", "", 0, AT_EVERYWHERE}},
};
