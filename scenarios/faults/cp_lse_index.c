/* cp-lse-index: a block's log-sum-exp is read as [batch, rows, heads] where it is [batch, heads, rows]. */
#include "scenarios/fault.h"

const struct fault fault_cp_lse_index = {
    .name = "cp-lse-index",
    .component = "cp.merge",
    .injected = "a block's log-sum-exp is read as [batch, rows, heads] where it is [batch, heads, rows]",
    .visible = "weights of other rows and heads",
    .checks = "oracle,softmax-mass",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_lse_index.json",
    .signature = "badly-merged",
    .parts_count = 1,
    .parts = {{"cp.lse_index", "never", "", 0, AT_EVERYWHERE}},
};
