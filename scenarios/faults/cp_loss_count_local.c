/* cp-loss-count-local: the count of valid tokens is not summed over the context-parallel ranks. */
#include "scenarios/fault.h"

const struct fault fault_cp_loss_count_local = {
    .name = "cp-loss-count-local",
    .component = "loss.denominator",
    .injected = "the count of valid tokens is not summed over the context-parallel ranks",
    .visible = "loss and gradients C times what is due, or each shard's own mean",
    .checks = "oracle,token-weight,scale-ledger",
    .source = "Megatron-LM #673",
    .scenario = "fault_cp_loss_count_local.json",
    .signature = "C",
    .parts_count = 1,
    .parts = {{"loss.token_count_reduce", "wrong-group", "dp", 0, AT_EVERYWHERE}},
};
