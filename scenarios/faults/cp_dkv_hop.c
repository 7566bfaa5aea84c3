/* cp-dkv-hop: gradients of keys and values do not make their last hop, home. */
#include "scenarios/fault.h"

const struct fault fault_cp_dkv_hop = {
    .name = "cp-dkv-hop",
    .component = "cp.hop",
    .injected = "gradients of keys and values do not make their last hop, home",
    .visible = "dq right; each rank ends with its neighbour's dk, dv",
    .checks = "oracle,gradient-owner",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_dkv_hop.json",
    .signature = "not-home",
    .parts_count = 1,
    .parts = {{"cp.dkv_home", "never", "", 0, AT_EVERYWHERE}},
};
