/* cp-dkv-block-missing: one step's part of dk and dv is not added. */
#include "scenarios/fault.h"

const struct fault fault_cp_dkv_block_missing = {
    .name = "cp-dkv-block-missing",
    .component = "cp.backward",
    .injected = "one step's part of dk and dv is not added",
    .visible = "dq right, dk and dv lack a block of queries",
    .checks = "oracle,consumption,gradient-owner",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_dkv_block_missing.json",
    .signature = "skipped-step",
    .parts_count = 1,
    .parts = {{"cp.dkv_step", "never", "", 0, AT_HOP_ONE}},
};
