/* cp-diagonal-unmasked: causal decides only which blocks are left out: the own block is not masked. */
#include "scenarios/fault.h"

const struct fault fault_cp_diagonal_unmasked = {
    .name = "cp-diagonal-unmasked",
    .component = "cp.mask",
    .injected = "causal decides only which blocks are left out: the own block is not masked",
    .visible = "within a shard queries see keys behind them",
    .checks = "oracle,influence",
    .source = "yunchang, xDiT: NPU ring",
    .scenario = "fault_cp_diagonal_unmasked.json",
    .signature = "leaks-within",
    .parts_count = 1,
    .parts = {{"cp.diagonal_mask", "never", "", 0, AT_EVERYWHERE}},
};
