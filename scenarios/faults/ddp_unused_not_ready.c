/* ddp-unused-not-ready: no graph is searched for parameters that nothing used: their buckets wait for them. */
#include "scenarios/fault.h"

const struct fault fault_ddp_unused_not_ready = {
    .name = "ddp-unused-not-ready",
    .component = "ddp",
    .injected = "no graph is searched for parameters that nothing used: their buckets wait for them",
    .visible = "these buckets are never reduced and replicas diverge; PyTorch says so at the next forward",
    .checks = "contribution,replica-equality",
    .source = "pytorch #28883, #90171",
    .scenario = "fault_ddp_unused_not_ready.json",
    .signature = "never-ready",
    .parts_count = 1,
    .parts = {{"ddp.ready", "never", "", 0, AT_EVERYWHERE}},
};
