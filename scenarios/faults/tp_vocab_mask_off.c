/* tp-vocab-mask-off: each rank's part of the vocabulary begins one row late. */
#include "scenarios/fault.h"

const struct fault fault_tp_vocab_mask_off = {
    .name = "tp-vocab-mask-off",
    .component = "tp",
    .injected = "each rank's part of the vocabulary begins one row late",
    .visible = "the first token of each part is embedded as 0",
    .checks = "oracle,placement",
    .source = "semantics of Megatron-LM's vocabulary-parallel embedding",
    .scenario = "fault_tp_vocab_mask_off.json",
    .signature = "range-differs",
    .parts_count = 1,
    .parts = {{"tp.vocab_range", "never", "", 0, AT_EVERYWHERE}},
};
