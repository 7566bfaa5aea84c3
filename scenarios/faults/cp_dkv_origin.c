/* cp-dkv-origin: gradients of keys and values make their last hop the wrong way and end on a rank that does not hold the keys. */
#include "scenarios/fault.h"

const struct fault fault_cp_dkv_origin = {
    .name = "cp-dkv-origin",
    .component = "cp.hop",
    .injected = "gradients of keys and values make their last hop the wrong way and end on a rank that does not hold the keys",
    .visible = "dq right, dk and dv of other ranks' keys",
    .checks = "oracle,gradient-owner",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_dkv_origin.json",
    .signature = "dk-dv",
    .parts_count = 1,
    .parts = {{"cp.dkv_direction", "never", "", 0, AT_HOP_HOME}},
};
