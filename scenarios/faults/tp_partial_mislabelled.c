/* tp-partial-mislabelled: the output of a row-parallel matrix is taken for whole though it is a part of a sum. */
#include "scenarios/fault.h"

const struct fault fault_tp_partial_mislabelled = {
    .name = "tp-partial-mislabelled",
    .component = "tp",
    .injected = "the output of a row-parallel matrix is taken for whole though it is a part of a sum",
    .visible = "each rank goes on with its own part",
    .checks = "oracle,placement",
    .source = "torchtitan #3412 (c2a3771a4)",
    .scenario = "fault_tp_partial_mislabelled.json",
    .signature = "missing-sum",
    .parts_count = 1,
    .parts = {{"tp.row_reduce", "skip", "", 0, AT_LAYER_MIDDLE}},
};
