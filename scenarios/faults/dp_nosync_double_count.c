/* dp-nosync-double-count: the accumulator is reduced again with what was reduced already. */
#include "scenarios/fault.h"

const struct fault fault_dp_nosync_double_count = {
    .name = "dp-nosync-double-count",
    .component = "dp.accumulation",
    .injected = "the accumulator is reduced again with what was reduced already",
    .visible = "earlier micro-batches count more",
    .checks = "contribution",
    .source = "DeepSpeed #5605",
    .scenario = "fault_dp_nosync_double_count.json",
    .signature = "doubled-microbatch",
    .parts_count = 1,
    .parts = {{"dp.grad.reset", "never", "", 0, AT_EVERYWHERE}},
};
