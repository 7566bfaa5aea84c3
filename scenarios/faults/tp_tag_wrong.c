/* tp-tag-wrong: a norm that every tensor-parallel rank has whole is marked as one rank's part: it is not summed, and counts on every rank in the norm. */
#include "scenarios/fault.h"

const struct fault fault_tp_tag_wrong = {
    .name = "tp-tag-wrong",
    .component = "tp",
    .injected = "a norm that every tensor-parallel rank has whole is marked as one rank's part: it is not summed, and counts on every rank in the norm",
    .visible = "copies drift apart; the gradient norm is too large",
    .checks = "oracle,placement,grad-norm,replica-equality",
    .source = "Megatron-LM 1674ce30b8 (!3190)",
    .scenario = "fault_tp_tag_wrong.json",
    .signature = "tag-lost",
    .parts_count = 1,
    .parts = {{"tp.tag", "never", "", 0, AT_LAYER_MIDDLE}},
};
