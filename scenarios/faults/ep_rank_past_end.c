/* ep-rank-past-end: a rank's place in its expert-parallel group is counted over all ranks, and its experts begin behind the last one. */
#include "scenarios/fault.h"

const struct fault fault_ep_rank_past_end = {
    .name = "ep-rank-past-end",
    .component = "ep.rank",
    .injected = "a rank's place in its expert-parallel group is counted over all ranks, and its experts begin behind the last one",
    .visible = "no token ever chooses the experts of these ranks",
    .checks = "oracle,shard-cover",
    .source = "hyper-parallel #193: ep_rank = rank / tp, not modulo ep",
    .scenario = "fault_ep_rank_past_end.json",
    .signature = "past-end",
    .parts_count = 1,
    .parts = {{"ep.rank", "set", "E", 0, AT_EVERYWHERE}},
};
