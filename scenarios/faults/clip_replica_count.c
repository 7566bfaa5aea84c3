/* clip-replica-count: a parameter that every data rank holds is counted once a data rank in the norm. */
#include "scenarios/fault.h"

const struct fault fault_clip_replica_count = {
    .name = "clip-replica-count",
    .component = "grad.norm",
    .injected = "a parameter that every data rank holds is counted once a data rank in the norm",
    .visible = "the norm is sqrt(D) too large; hidden while it is below the limit",
    .checks = "grad-norm",
    .source = "Megatron-LM #5916, #3024",
    .scenario = "fault_clip_replica_count.json",
    .signature = "other-sum",
    .parts_count = 1,
    .parts = {{"clip.squares", "set", "D", 0, AT_EVERYWHERE}},
};
