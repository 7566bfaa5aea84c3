/* sdc-bitflip: one bit of one layer's output flips on one rank, once. Hardware, since it is one micro-batch on one
 * rank, after a step in which all were right, and what goes in agrees. */
#include "scenarios/fault.h"

const struct fault fault_sdc_bitflip = {
    .name = "sdc-bitflip",
    .component = "hardware",
    .injected = "one bit of one layer's output flips on one rank, once",
    .visible = "anything from nothing to NaN",
    .checks = "oracle",
    .source = "public reports of silent data corruption",
    .scenario = "fault_sdc_bitflip.json",
    .signature = "altered",
    .parts_count = 1,
    .parts = {{"layer.forward", "bit-flip", "", 0, AT_STEP_ONE | AT_LAYER_MIDDLE | AT_MICROBATCH_ONE | AT_DATA_RANK_ONE_OF_MIDDLE}},
};
