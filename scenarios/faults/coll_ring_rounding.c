/* coll-ring-rounding: running sums are rounded to bf16 at each hop of a ring. */
#include "scenarios/fault.h"

const struct fault fault_coll_ring_rounding = {
    .name = "coll-ring-rounding",
    .component = "collectives",
    .injected = "running sums are rounded to bf16 at each hop of a ring",
    .visible = "an error that grows with the group, though every call says fp32",
    .checks = "precision",
    .source = "Megatron-LM #6199, tt-metal #36749",
    .scenario = "fault_coll_ring_rounding.json",
    .signature = "rounded",
    .parts_count = 1,
    .parts = {{"fsdp.reduce_grad", "round-hops", "bf16", 0, AT_EVERYWHERE}},
};
