/* ep-extra-allreduce: the experts' output, which is complete, is summed over tensor-parallel ranks once more. */
#include "scenarios/fault.h"

const struct fault fault_ep_extra_allreduce = {
    .name = "ep-extra-allreduce",
    .component = "ep.combine",
    .injected = "the experts' output, which is complete, is summed over tensor-parallel ranks once more",
    .visible = "what experts give a token counts as often as there are tensor-parallel ranks",
    .checks = "oracle,conservation,communication-count",
    .source = "tpu-inference #2248; vllm-ascend #6710",
    .scenario = "fault_ep_extra_allreduce.json",
    .signature = "times-ranks",
    .parts_count = 1,
    .parts = {{"ep.output_complete", "never", "", 0, AT_EVERYWHERE}},
};
