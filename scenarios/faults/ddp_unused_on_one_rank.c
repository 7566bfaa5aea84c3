/* ddp-unused-on-one-rank: one rank finds a parameter unused and leaves its bucket out; the others reduce it. */
#include "scenarios/fault.h"

const struct fault fault_ddp_unused_on_one_rank = {
    .name = "ddp-unused-on-one-rank",
    .component = "ddp",
    .injected = "one rank finds a parameter unused and leaves its bucket out; the others reduce it",
    .visible = "the group waits for ever, or takes the next bucket for this one",
    .checks = "collective-match,liveness",
    .source = "pytorch #41101; Megatron-LM #2218",
    .scenario = "fault_ddp_unused_on_one_rank.json",
    .signature = "never-ready",
    .parts_count = 1,
    .parts = {{"ddp.ready", "never", "", 0, AT_RANK_ONE}},
};
