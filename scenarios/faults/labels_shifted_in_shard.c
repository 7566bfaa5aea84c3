/* labels-shifted-in-shard: labels are shifted after the sequence is cut, so that targets at the seams are lost. */
#include "scenarios/fault.h"

const struct fault fault_labels_shifted_in_shard = {
    .name = "labels-shifted-in-shard",
    .component = "labels",
    .injected = "labels are shifted after the sequence is cut, so that targets at the seams are lost",
    .visible = "the number of valid tokens differs with the context-parallel ranks",
    .checks = "oracle,row-identity,token-weight",
    .source = "transformers PR#36607",
    .scenario = "fault_labels_shifted_in_shard.json",
    .signature = "other-targets",
    .parts_count = 1,
    .parts = {{"cp.labels", "never", "", 0, AT_EVERYWHERE}},
};
