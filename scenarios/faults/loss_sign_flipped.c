/* loss-sign-flipped: backward is seeded with -1 on one data replica. */
#include "scenarios/fault.h"

const struct fault fault_loss_sign_flipped = {
    .name = "loss-sign-flipped",
    .component = "pp.loss",
    .injected = "backward is seeded with -1 on one data replica",
    .visible = "that replica's gradients push the wrong way; the reported loss is right",
    .checks = "token-weight,oracle",
    .source = "hyper-parallel core/layout.py (repeat_num)",
    .scenario = "fault_loss_sign_flipped.json",
    .signature = "-1",
    .parts_count = 1,
    .parts = {{"pp.loss.scale", "negate", "", 0, AT_DATA_RANK_ONE}},
};
