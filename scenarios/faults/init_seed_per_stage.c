/* init-seed-per-stage: each pipeline stage seeds the generator of initial values by its own number. */
#include "scenarios/fault.h"

const struct fault fault_init_seed_per_stage = {
    .name = "init-seed-per-stage",
    .component = "init",
    .injected = "each pipeline stage seeds the generator of initial values by its own number",
    .visible = "another model is trained: losses differ from the first step on, by no ratio",
    .checks = "oracle",
    .source = "hyper-parallel and Megatron-LM: seeds by pipeline stage",
    .scenario = "fault_init_seed_per_stage.json",
    .signature = "altered",
    .parts_count = 1,
    .parts = {{"init.values", "never", "", 0, AT_STAGES_BUT_FIRST}},
};
