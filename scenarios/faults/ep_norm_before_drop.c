/* ep-norm-before-drop: weights are normalized before pairs without room are dropped, where they are to be normalized over the rest. */
#include "scenarios/fault.h"

const struct fault fault_ep_norm_before_drop = {
    .name = "ep-norm-before-drop",
    .component = "moe.router",
    .injected = "weights are normalized before pairs without room are dropped, where they are to be normalized over the rest",
    .visible = "tokens of which a part was dropped weigh too little",
    .checks = "oracle,routing",
    .source = "Tutel and DeepSpeed differ: DeepSpeed moe/sharded_moe.py, Tutel impls/fast_dispatch.py",
    .scenario = "fault_ep_norm_before_drop.json",
    .signature = "before-drop",
    .parts_count = 1,
    .parts = {{"moe.normalize_order", "never", "", 0, AT_EVERYWHERE}},
};
