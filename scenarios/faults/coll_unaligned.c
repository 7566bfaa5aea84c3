/* coll-unaligned: a fast path for aligned memory moves the first and the last element wrongly. */
#include "scenarios/fault.h"

const struct fault fault_coll_unaligned = {
    .name = "coll-unaligned",
    .component = "collectives",
    .injected = "a fast path for aligned memory moves the first and the last element wrongly",
    .visible = "a few elements at the edges are their neighbours'",
    .checks = "contribution",
    .source = "NCCL release notes (symmetric LL with unaligned buffers)",
    .scenario = "fault_coll_unaligned.json",
    .signature = "altered",
    .parts_count = 1,
    .parts = {{"fsdp.reduce_grad", "edges", "", 0, AT_LAYER_MIDDLE}},
};
