/* dp-size1-no-sync: a shard group of one is taken for no data parallelism, so that replicas are never summed. */
#include "scenarios/fault.h"

const struct fault fault_dp_size1_no_sync = {
    .name = "dp-size1-no-sync",
    .component = "hsdp",
    .injected = "a shard group of one is taken for no data parallelism, so that replicas are never summed",
    .visible = "replicas diverge",
    .checks = "contribution,replica-equality",
    .source = "pytorch #154888; verl #7493",
    .scenario = "fault_dp_size1_no_sync.json",
    .signature = "missing-ranks",
    .parts_count = 1,
    .parts = {{"hsdp.replicate", "never", "", 0, AT_EVERYWHERE}},
};
