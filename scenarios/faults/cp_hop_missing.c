/* cp-hop-missing: one step of the ring is left out. */
#include "scenarios/fault.h"

const struct fault fault_cp_hop_missing = {
    .name = "cp-hop-missing",
    .component = "cp.skip",
    .injected = "one step of the ring is left out",
    .visible = "one block lacks on each rank; the merge is right",
    .checks = "oracle,consumption,softmax-mass",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_hop_missing.json",
    .signature = "skipped-step",
    .parts_count = 1,
    .parts = {{"cp.skip_block", "always", "", 0, AT_HOP_ONE}},
};
