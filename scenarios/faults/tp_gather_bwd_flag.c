/* tp-gather-bwd-flag: the gradient of what was gathered along the sequence is split, not summed and scattered. */
#include "scenarios/fault.h"

const struct fault fault_tp_gather_bwd_flag = {
    .name = "tp-gather-bwd-flag",
    .component = "sp",
    .injected = "the gradient of what was gathered along the sequence is split, not summed and scattered",
    .visible = "lower layers get a part of their gradient; the first loss is right",
    .checks = "oracle,placement",
    .source = "Megatron-LM: tensor_parallel_output_grad of gather_from_sequence_parallel_region",
    .scenario = "fault_tp_gather_bwd_flag.json",
    .signature = "split-for-sum",
    .parts_count = 1,
    .parts = {{"sp.gather_backward", "never", "", 0, AT_LAYER_MIDDLE}},
};
