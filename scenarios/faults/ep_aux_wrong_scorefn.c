/* ep-aux-wrong-scorefn: the balancing loss is made from a softmax while the router uses sigmoids. */
#include "scenarios/fault.h"

const struct fault fault_ep_aux_wrong_scorefn = {
    .name = "ep-aux-wrong-scorefn",
    .component = "moe.aux.loss",
    .injected = "the balancing loss is made from a softmax while the router uses sigmoids",
    .visible = "the wrong balancing gradient in the router; the main loss of the first step is right",
    .checks = "oracle,routing",
    .source = "Megatron-LM e85385a761 (!2801)",
    .scenario = "fault_ep_aux_wrong_scorefn.json",
    .signature = "other-score",
    .parts_count = 1,
    .parts = {{"moe.aux_score", "never", "", 0, AT_EVERYWHERE}},
};
