/* dp-microbatch-missed: the reduction is launched one micro-batch early; the last one's gradient stays local. */
#include "scenarios/fault.h"

const struct fault fault_dp_microbatch_missed = {
    .name = "dp-microbatch-missed",
    .component = "dp.accumulation",
    .injected = "the reduction is launched one micro-batch early; the last one's gradient stays local",
    .visible = "the last micro-batch weighs differently on each rank; replicas may differ",
    .checks = "contribution,replica-equality",
    .source = "DeepSpeed #7985, #1264",
    .scenario = "fault_dp_microbatch_missed.json",
    .signature = "early",
    .parts_count = 1,
    .parts = {{"dp.sync_now", "off-by-one", "", 0, AT_EVERYWHERE}},
};
