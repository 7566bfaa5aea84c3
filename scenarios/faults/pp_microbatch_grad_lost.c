/* pp-microbatch-grad-lost: the result of a gradient reduction is added one call late, emptying the accumulator, and the last one of a step is never waited for, on every stage but the first. */
#include "scenarios/fault.h"

const struct fault fault_pp_microbatch_grad_lost = {
    .name = "pp-microbatch-grad-lost",
    .component = "pp.grad",
    .injected = "the result of a gradient reduction is added one call late, emptying the accumulator, and the last one of a step is never waited for, on every stage but the first",
    .visible = "some micro-batches are missing from the gradient, others arrive a step late",
    .checks = "contribution",
    .source = "hyper-parallel #244, #227; Megatron-LM PR #7186",
    .scenario = "fault_pp_microbatch_grad_lost.json",
    .signature = "missing-microbatch",
    .parts_count = 2,
    .parts = {{"pp.grad.flush", "never", "", 0, AT_STAGES_BUT_FIRST}, {"pp.grad.release", "always", "", 0, AT_STAGES_BUT_FIRST}},
};
