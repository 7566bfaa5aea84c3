/* cp-dq-block-missing: one step's part of dq is not added. */
#include "scenarios/fault.h"

const struct fault fault_cp_dq_block_missing = {
    .name = "cp-dq-block-missing",
    .component = "cp.backward",
    .injected = "one step's part of dq is not added",
    .visible = "dk and dv right, dq lacks a block",
    .checks = "oracle,consumption,gradient-owner",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_dq_block_missing.json",
    .signature = "skipped-step",
    .parts_count = 1,
    .parts = {{"cp.dq_step", "never", "", 0, AT_HOP_ONE}},
};
