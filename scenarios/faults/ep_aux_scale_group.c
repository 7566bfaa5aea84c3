/* ep-aux-scale-group: the gradient of the auxiliary losses is multiplied by the tensor-parallel ranks, which have summed the counts already. */
#include "scenarios/fault.h"

const struct fault fault_ep_aux_scale_group = {
    .name = "ep-aux-scale-group",
    .component = "moe.aux.loss",
    .injected = "the gradient of the auxiliary losses is multiplied by the tensor-parallel ranks, which have summed the counts already",
    .visible = "the auxiliary losses weigh T times what is due: their strength changes with the layout",
    .checks = "oracle,scale-ledger",
    .source = "Megatron-LM cac8d1a3f0; Megatron-LM #2237 (f6e0d425a5)",
    .scenario = "fault_ep_aux_scale_group.json",
    .signature = "T",
    .parts_count = 1,
    .parts = {{"moe.aux_scale", "times", "T", 0, AT_EVERYWHERE}},
};
