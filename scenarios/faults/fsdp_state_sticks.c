/* fsdp-state-sticks: a flag that a backward is under way is never taken back: from the second micro-batch on, forward hooks neither cast the output nor drop gathered parameters. */
#include "scenarios/fault.h"

const struct fault fault_fsdp_state_sticks = {
    .name = "fsdp-state-sticks",
    .component = "fsdp.forward_hook",
    .injected = "a flag that a backward is under way is never taken back: from the second micro-batch on, forward hooks neither cast the output nor drop gathered parameters",
    .visible = "losses of all micro-batches but the first are made from bf16 logits; parameters stay gathered",
    .checks = "precision",
    .source = "hyper-parallel platform/torch/fully_shard/scheduler.py (root_bp_state)",
    .scenario = "fault_fsdp_state_sticks.json",
    .signature = "rounded",
    .parts_count = 2,
    .parts = {{"fsdp.output_cast", "never", "", 0, AT_MICROBATCHES_BUT_FIRST}, {"fsdp.reshard", "never", "", 0, AT_MICROBATCHES_BUT_FIRST}},
};
