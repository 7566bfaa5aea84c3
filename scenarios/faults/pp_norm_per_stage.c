/* pp-norm-per-stage: the gradient norm leaves out the pipeline group. */
#include "scenarios/fault.h"

const struct fault fault_pp_norm_per_stage = {
    .name = "pp-norm-per-stage",
    .component = "clip.norm_reduce",
    .injected = "the gradient norm leaves out the pipeline group",
    .visible = "each stage clips with its own coefficient",
    .checks = "grad-norm",
    .source = "torchtitan #596",
    .scenario = "fault_pp_norm_per_stage.json",
    .signature = "per-stage",
    .parts_count = 1,
    .parts = {{"clip.norm_reduce", "wrong-group", "dp_shard", 0, AT_EVERYWHERE}},
};
