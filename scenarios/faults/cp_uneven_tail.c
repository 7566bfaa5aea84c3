/* cp-uneven-tail: a shard's rows beyond the smallest shard's number are lost from keys and values. */
#include "scenarios/fault.h"

const struct fault fault_cp_uneven_tail = {
    .name = "cp-uneven-tail",
    .component = "cp.buffer",
    .injected = "a shard's rows beyond the smallest shard's number are lost from keys and values",
    .visible = "wrong only where the length does not divide",
    .checks = "oracle,influence",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_uneven_tail.json",
    .signature = "part-missing",
    .parts_count = 1,
    .parts = {{"cp.shard_tail", "lose-range", "", 0, AT_EVERYWHERE}},
};
