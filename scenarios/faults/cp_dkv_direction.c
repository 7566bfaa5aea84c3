/* cp-dkv-direction: gradients of keys and values go round the other way than their block. */
#include "scenarios/fault.h"

const struct fault fault_cp_dkv_direction = {
    .name = "cp-dkv-direction",
    .component = "cp.hop",
    .injected = "gradients of keys and values go round the other way than their block",
    .visible = "dq right, dk and dv mixed",
    .checks = "oracle,gradient-owner",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_dkv_direction.json",
    .signature = "wrong-way",
    .parts_count = 1,
    .parts = {{"cp.dkv_direction", "never", "", 0, AT_EVERYWHERE}},
};
