/* pp-tied-embedding-not-reduced: first and last stage keep their own part of the tied embedding's gradient. */
#include "scenarios/fault.h"

const struct fault fault_pp_tied_embedding_not_reduced = {
    .name = "pp-tied-embedding-not-reduced",
    .component = "tied.grad_reduce",
    .injected = "first and last stage keep their own part of the tied embedding's gradient",
    .visible = "the two copies drift apart",
    .checks = "replica-equality",
    .source = "Megatron-LM PR #6500; piper #13",
    .scenario = "fault_pp_tied_embedding_not_reduced.json",
    .signature = "one-use",
    .parts_count = 1,
    .parts = {{"tied.grad_reduce", "skip", "", 0, AT_EVERYWHERE}},
};
