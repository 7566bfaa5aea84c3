/* loss-broadcast-format: the last stage broadcasts the printed loss in another format than the other stages receive it
 * in. */
#include "scenarios/fault.h"

const struct fault fault_loss_broadcast_format = {
    .name = "loss-broadcast-format",
    .component = "loss.report",
    .injected = "the last stage broadcasts the printed loss in another format than the other stages receive it in",
    .visible = "the reported loss differs between stages; gradients are right",
    .checks = "logged-loss,collective-match",
    .source = "DeepSpeed #4726",
    .scenario = "fault_loss_broadcast_format.json",
    .signature = "calls-differ",
    .parts_count = 1,
    .parts = {{"loss.report_broadcast", "wrong-format", "bf16", 0, AT_STAGE_LAST}},
};
