/* ep-splits-swapped-bwd: the gradient of rows goes back with the sizes of what was sent and received not swapped. */
#include "scenarios/fault.h"

const struct fault fault_ep_splits_swapped_bwd = {
    .name = "ep-splits-swapped-bwd",
    .component = "ep.dispatch",
    .injected = "the gradient of rows goes back with the sizes of what was sent and received not swapped",
    .visible = "rows without a gradient, or with another's, where ranks do not send as many as they get",
    .checks = "oracle,conservation",
    .source = "PyTorch #177381, #190311",
    .scenario = "fault_ep_splits_swapped_bwd.json",
    .signature = "not-swapped",
    .parts_count = 1,
    .parts = {{"ep.grad_splits", "never", "", 0, AT_EVERYWHERE}},
};
