/* fsdp-param-captured-early: the optimizer is made before sharding and holds the tensors of then. */
#include "scenarios/fault.h"

const struct fault fault_fsdp_param_captured_early = {
    .name = "fsdp-param-captured-early",
    .component = "fsdp.params",
    .injected = "the optimizer is made before sharding and holds the tensors of then",
    .visible = "no update reaches what computes",
    .checks = "update-coverage,version",
    .source = "pytorch #149205",
    .scenario = "fault_fsdp_param_captured_early.json",
    .signature = "version",
    .parts_count = 1,
    .parts = {{"fsdp.optimizer_params", "never", "", 0, AT_EVERYWHERE}},
};
