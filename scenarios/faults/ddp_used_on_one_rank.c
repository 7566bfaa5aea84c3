/* ddp-used-on-one-rank: a parameter is used on one rank alone, and no graph is searched on the others: their bucket waits for it. */
#include "scenarios/fault.h"

const struct fault fault_ddp_used_on_one_rank = {
    .name = "ddp-used-on-one-rank",
    .component = "ddp",
    .injected = "a parameter is used on one rank alone, and no graph is searched on the others: their bucket waits for it",
    .visible = "the group waits for ever, or takes the next bucket for this one",
    .checks = "collective-match,liveness",
    .source = "pytorch #41101; Megatron-LM #2218",
    .scenario = "fault_ddp_used_on_one_rank.json",
    .signature = "never-ready",
    .parts_count = 1,
    .parts = {{"ddp.ready", "never", "", 0, AT_EVERYWHERE}},
};
