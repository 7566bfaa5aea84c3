/* nan-check-after-reduce: whether a gradient is finite is looked at behind its reduction alone. */
#include "scenarios/fault.h"

const struct fault fault_nan_check_after_reduce = {
    .name = "nan-check-after-reduce",
    .component = "grad.norm",
    .injected = "whether a gradient is finite is looked at behind its reduction alone",
    .visible = "every rank says that its gradient is not finite: whose it was is lost",
    .checks = "collective-match",
    .source = "Megatron-LM d66807759c",
    .scenario = "fault_nan_check_after_reduce.json",
    .signature = "culprit-lost",
    .parts_count = 1,
    .parts = {{"dp.finite_check", "never", "", 0, AT_EVERYWHERE}},
};
