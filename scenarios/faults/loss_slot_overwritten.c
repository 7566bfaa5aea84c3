/* loss-slot-overwritten: one slot holds the loss: the next forward overwrites it before backward, so one micro-
 * batch is differentiated twice and the one before it not at all. */
#include "scenarios/fault.h"

const struct fault fault_loss_slot_overwritten = {
    .name = "loss-slot-overwritten",
    .component = "pp.loss",
    .injected = "one slot holds the loss: the next forward overwrites it before backward, so one micro-batch is "
                "differentiated twice and the one before it not at all",
    .visible = "micro-batch 0 weighs nothing, micro-batch 1 twice what is due",
    .checks = "contribution,token-weight",
    .source = "DeepSpeed #3900",
    .scenario = "fault_loss_slot_overwritten.json",
    .signature = "0",
    .parts_count = 2,
    .parts = {{"pp.loss.scale", "times", "0", 0, AT_MICROBATCH_ZERO},
              {"pp.loss.scale", "times", "2", 0, AT_MICROBATCH_ONE}},
};
