/* cp-joint-each-step: joint keys, which every rank has, enter with each block. */
#include "scenarios/fault.h"

const struct fault fault_cp_joint_each_step = {
    .name = "cp-joint-each-step",
    .component = "cp.merge",
    .injected = "joint keys, which every rank has, enter with each block",
    .visible = "text weighs P times beside the image",
    .checks = "oracle,softmax-mass",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_joint_each_step.json",
    .signature = "joint-doubled",
    .parts_count = 1,
    .parts = {{"cp.joint_once", "never", "", 0, AT_EVERYWHERE}},
};
