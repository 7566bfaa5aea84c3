/* tp-loss-on-every-rank: every tensor-parallel rank back-propagates the loss that they hold together, each as if it were its own. */
#include "scenarios/fault.h"

const struct fault fault_tp_loss_on_every_rank = {
    .name = "tp-loss-on-every-rank",
    .component = "tp",
    .injected = "every tensor-parallel rank back-propagates the loss that they hold together, each as if it were its own",
    .visible = "gradients are T times what is due; the printed loss is right",
    .checks = "scale-ledger,token-weight",
    .source = "hyper-parallel trainer (tp_loss_repeats)",
    .scenario = "fault_tp_loss_on_every_rank.json",
    .signature = "T",
    .parts_count = 1,
    .parts = {{"tp.loss_repeats", "times", "T", 0, AT_EVERYWHERE}},
};
