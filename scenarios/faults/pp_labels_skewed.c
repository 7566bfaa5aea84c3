/* pp-labels-skewed: the last stage reads the rows one further on than the first. */
#include "scenarios/fault.h"

const struct fault fault_pp_labels_skewed = {
    .name = "pp-labels-skewed",
    .component = "data.sample",
    .injected = "the last stage reads the rows one further on than the first",
    .visible = "a plausible loss, of labels that belong to other tokens",
    .checks = "row-identity",
    .source = "DeepSpeed #5729",
    .scenario = "fault_pp_labels_skewed.json",
    .signature = "wrong-samples",
    .parts_count = 1,
    .parts = {{"data.sample", "shift", "", 1, AT_STAGE_LAST}},
};
