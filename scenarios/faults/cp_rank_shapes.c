/* cp-rank-shapes: one rank sends fewer elements than its neighbour receives. */
#include "scenarios/fault.h"

const struct fault fault_cp_rank_shapes = {
    .name = "cp-rank-shapes",
    .component = "cp.hop",
    .injected = "one rank sends fewer elements than its neighbour receives",
    .visible = "the tail of a block is not written",
    .checks = "oracle,collective-match",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_rank_shapes.json",
    .signature = "calls-differ",
    .parts_count = 1,
    .parts = {{"cp.kv_hop", "shrink-count", "", 0, AT_RANK_ONE}},
};
