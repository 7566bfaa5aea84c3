/* ep-aux-scale-microbatch: the gradient of the auxiliary losses is not divided by the number of micro-batches. */
#include "scenarios/fault.h"

const struct fault fault_ep_aux_scale_microbatch = {
    .name = "ep-aux-scale-microbatch",
    .component = "moe.aux.loss",
    .injected = "the gradient of the auxiliary losses is not divided by the number of micro-batches",
    .visible = "the auxiliary losses weigh M times what is due: their strength changes with accumulation",
    .checks = "oracle,scale-ledger",
    .source = "Megatron-LM #5798 (e3fe5508c9)",
    .scenario = "fault_ep_aux_scale_microbatch.json",
    .signature = "M",
    .parts_count = 1,
    .parts = {{"moe.aux_scale", "times", "M", 0, AT_EVERYWHERE}},
};
