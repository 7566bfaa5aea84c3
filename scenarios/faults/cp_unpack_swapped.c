/* cp-unpack-swapped: a block that arrived is taken for as many rows as there are queries. */
#include "scenarios/fault.h"

const struct fault fault_cp_unpack_swapped = {
    .name = "cp-unpack-swapped",
    .component = "cp.buffer",
    .injected = "a block that arrived is taken for as many rows as there are queries",
    .visible = "wrong only where shards differ in length",
    .checks = "oracle,poison",
    .source = "MindSpeed tnd_backward_fetch",
    .scenario = "fault_cp_unpack_swapped.json",
    .signature = "other-rows",
    .parts_count = 1,
    .parts = {{"cp.unpack", "never", "", 0, AT_EVERYWHERE}},
};
