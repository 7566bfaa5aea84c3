/* ep-aux-uses-dropped-map: the balancing loss counts the pairs that are left after the drop. */
#include "scenarios/fault.h"

const struct fault fault_ep_aux_uses_dropped_map = {
    .name = "ep-aux-uses-dropped-map",
    .component = "moe.aux.loss",
    .injected = "the balancing loss counts the pairs that are left after the drop",
    .visible = "overfull experts look balanced, and the balancing loss is too low",
    .checks = "oracle,routing",
    .source = "Megatron-LM cfe7b066c0 (!3279), #1617",
    .scenario = "fault_ep_aux_uses_dropped_map.json",
    .signature = "other-choice",
    .parts_count = 1,
    .parts = {{"moe.aux_choice", "never", "", 0, AT_EVERYWHERE}},
};
