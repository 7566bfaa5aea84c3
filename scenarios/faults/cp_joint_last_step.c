/* cp-joint-last-step: joint keys are appended to the last step's block, which causal leaves out on all ranks but one. */
#include "scenarios/fault.h"

const struct fault fault_cp_joint_last_step = {
    .name = "cp-joint-last-step",
    .component = "cp.skip",
    .injected = "joint keys are appended to the last step's block, which causal leaves out on all ranks but one",
    .visible = "text is lost on every rank but the last",
    .checks = "oracle,softmax-mass",
    .source = "xDiT xdit_ring_flash_attn_forward",
    .scenario = "fault_cp_joint_last_step.json",
    .signature = "joint-missing",
    .parts_count = 1,
    .parts = {{"cp.joint_step", "never", "", 0, AT_EVERYWHERE}},
};
