/* ep-rank-zero: every rank takes the first place of its expert-parallel group. */
#include "scenarios/fault.h"

const struct fault fault_ep_rank_zero = {
    .name = "ep-rank-zero",
    .component = "ep.rank",
    .injected = "every rank takes the first place of its expert-parallel group",
    .visible = "all ranks hold the first experts, and nobody has the others",
    .checks = "oracle,shard-cover",
    .source = "hyper-parallel #193: ep_rank is 0 wherever tensor parallelism is off",
    .scenario = "fault_ep_rank_zero.json",
    .signature = "other-experts",
    .parts_count = 1,
    .parts = {{"ep.rank", "set", "0", 0, AT_EVERYWHERE}},
};
