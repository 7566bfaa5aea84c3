/* dp-bucket-pad: the padding of a bucket is left out on one side, so that its parts are shifted. */
#include "scenarios/fault.h"

const struct fault fault_dp_bucket_pad = {
    .name = "dp-bucket-pad",
    .component = "buckets",
    .injected = "the padding of a bucket is left out on one side, so that its parts are shifted",
    .visible = "gradients stand beside the wrong parameters",
    .checks = "contribution",
    .source = "Megatron-LM ba8f2defc5, afb755f548; DeepSpeed #8158",
    .scenario = "fault_dp_bucket_pad.json",
    .signature = "altered",
    .parts_count = 1,
    .parts = {{"dp.bucket", "wrong-range", "", 3, AT_EVERYWHERE}},
};
