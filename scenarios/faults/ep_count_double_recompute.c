/* ep-count-double-recompute: a layer that is computed again counts its tokens again behind the selection bias. */
#include "scenarios/fault.h"

const struct fault fault_ep_count_double_recompute = {
    .name = "ep-count-double-recompute",
    .component = "moe.balancing",
    .injected = "a layer that is computed again counts its tokens again behind the selection bias",
    .visible = "counts are twice the tokens; harmless where all layers and micro-batches are computed again alike",
    .checks = "counters",
    .source = "Megatron-LM e6d56d6828 (!2574); torchtitan #1593, #4594; Automodel #3247",
    .scenario = "fault_ep_count_double_recompute.json",
    .signature = "counted-again",
    .parts_count = 1,
    .parts = {{"moe.count_again", "always", "", 0, AT_EVERYWHERE}},
};
