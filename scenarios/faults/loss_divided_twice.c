/* loss-divided-twice: micro-batch losses, already divided by the valid tokens of the whole step, are divided by the number of micro-batches again. */
#include "scenarios/fault.h"

const struct fault fault_loss_divided_twice = {
    .name = "loss-divided-twice",
    .component = "pp.loss",
    .injected = "micro-batch losses, already divided by the valid tokens of the whole step, are divided by the number of micro-batches again",
    .visible = "loss and gradients are 1/M of what is due",
    .checks = "token-weight,scale-ledger",
    .source = "AReaL PR #1273",
    .scenario = "fault_loss_divided_twice.json",
    .signature = "1/M",
    .parts_count = 1,
    .parts = {{"pp.loss.scale", "times", "1/M", 0, AT_EVERYWHERE}},
};
