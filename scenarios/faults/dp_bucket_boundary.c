/* dp-bucket-boundary: the last elements of a bucket are not reduced. */
#include "scenarios/fault.h"

const struct fault fault_dp_bucket_boundary = {
    .name = "dp-bucket-boundary",
    .component = "buckets",
    .injected = "the last elements of a bucket are not reduced",
    .visible = "part of a parameter keeps each rank's own gradient",
    .checks = "contribution,replica-equality",
    .source = "DeepSpeed #4321, #3832",
    .scenario = "fault_dp_bucket_boundary.json",
    .signature = "altered",
    .parts_count = 1,
    .parts = {{"dp.bucket", "lose-range", "", 37, AT_EVERYWHERE}},
};
