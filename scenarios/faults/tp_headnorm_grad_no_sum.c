/* tp-headnorm-grad-no-sum: the gradient of norms that see a tensor-parallel rank's own heads is not summed. */
#include "scenarios/fault.h"

const struct fault fault_tp_headnorm_grad_no_sum = {
    .name = "tp-headnorm-grad-no-sum",
    .component = "tp",
    .injected = "the gradient of norms that see a tensor-parallel rank's own heads is not summed",
    .visible = "copies of these norms drift apart, with or without sequence parallelism; the first loss is right",
    .checks = "oracle,placement,replica-equality",
    .source = "Megatron-LM #7452 row 11",
    .scenario = "fault_tp_headnorm_grad_no_sum.json",
    .signature = "head-norm-not-summed",
    .parts_count = 1,
    .parts = {{"tp.head_norm_grad", "never", "", 0, AT_EVERYWHERE}},
};
