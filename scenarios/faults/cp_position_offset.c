/* cp-position-offset: queries and keys are turned by positions counted from the shard's start. */
#include "scenarios/fault.h"

const struct fault fault_cp_position_offset = {
    .name = "cp-position-offset",
    .component = "cp.position",
    .injected = "queries and keys are turned by positions counted from the shard's start",
    .visible = "attention looks right by shape and is wrong by distance; without RoPE nothing",
    .checks = "oracle,row-identity",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_position_offset.json",
    .signature = "local-positions",
    .parts_count = 1,
    .parts = {{"cp.position", "never", "", 0, AT_EVERYWHERE}},
};
