/* opt-compute-weight-stale: the end of each parameter is not copied from the master values to the weights that compute. */
#include "scenarios/fault.h"

const struct fault fault_opt_compute_weight_stale = {
    .name = "opt-compute-weight-stale",
    .component = "optimizer",
    .injected = "the end of each parameter is not copied from the master values to the weights that compute",
    .visible = "the model lags behind the master values",
    .checks = "version",
    .source = "Megatron-LM #4563, #4562, #5236, #4994; Megatron-Bridge #3727; Megatron-LM #6920",
    .scenario = "fault_opt_compute_weight_stale.json",
    .signature = "not-copied",
    .parts_count = 1,
    .parts = {{"optimizer.copy", "lose-range", "", 29, AT_EVERYWHERE}},
};
