/* tp-ce-local-sum: the cross-entropy takes its own part of the vocabulary for all of it. */
#include "scenarios/fault.h"

const struct fault fault_tp_ce_local_sum = {
    .name = "tp-ce-local-sum",
    .component = "tp",
    .injected = "the cross-entropy takes its own part of the vocabulary for all of it",
    .visible = "loss too low, another on each rank",
    .checks = "oracle,placement",
    .source = "semantics of Megatron-LM's vocabulary-parallel cross-entropy",
    .scenario = "fault_tp_ce_local_sum.json",
    .signature = "missing-sum",
    .parts_count = 1,
    .parts = {{"tp.loss_reduce", "skip", "", 0, AT_EVERYWHERE}},
};
