/* labels-shifted-twice: targets are shifted twice: the token after the next is predicted. */
#include "scenarios/fault.h"

const struct fault fault_labels_shifted_twice = {
    .name = "labels-shifted-twice",
    .component = "labels",
    .injected = "targets are shifted twice: the token after the next is predicted",
    .visible = "the loss stops at a higher plateau",
    .checks = "row-identity",
    .source = "transformers #47394",
    .scenario = "fault_labels_shifted_twice.json",
    .signature = "other-targets",
    .parts_count = 1,
    .parts = {{"labels", "shift", "", 1, AT_EVERYWHERE}},
};
