/* sdc-link-loss: in one call, what one member sends to another arrives as zeros. Hardware, since it is one call of
 * many, after a step in which all were right, and nothing in the program says why. */
#include "scenarios/fault.h"

const struct fault fault_sdc_link_loss = {
    .name = "sdc-link-loss",
    .component = "hardware",
    .injected = "in one call, what one member sends to another arrives as zeros",
    .visible = "one replica's gradient differs, and its weights do from then on",
    .checks = "replica-equality",
    .source = "PyTorch #84803, #96600, vllm-ascend #8359",
    .scenario = "fault_sdc_link_loss.json",
    .signature = "copies-differ",
    .parts_count = 1,
    .parts = {{"dp.all_reduce_grad", "lose-link", "", 0, AT_STEP_ONE | AT_LAYER_MIDDLE | AT_DATA_RANK_ONE_OF_MIDDLE}},
};
