/* tp-nonautograd-collective: the sum over tensor-parallel ranks within the loss is a raw collective, which autograd takes for a constant. */
#include "scenarios/fault.h"

const struct fault fault_tp_nonautograd_collective = {
    .name = "tp-nonautograd-collective",
    .component = "tp",
    .injected = "the sum over tensor-parallel ranks within the loss is a raw collective, which autograd takes for a constant",
    .visible = "terms of the gradient are missing; the first loss is right",
    .checks = "oracle,placement",
    .source = "ms-swift #9947",
    .scenario = "fault_tp_nonautograd_collective.json",
    .signature = "no-backward",
    .parts_count = 1,
    .parts = {{"tp.loss_gradient", "never", "", 0, AT_EVERYWHERE}},
};
