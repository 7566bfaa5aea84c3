/* clip-norm-zero: the norm reads the gradient's attribute that is empty after the reduction. */
#include "scenarios/fault.h"

const struct fault fault_clip_norm_zero = {
    .name = "clip-norm-zero",
    .component = "grad.norm",
    .injected = "the norm reads the gradient's attribute that is empty after the reduction",
    .visible = "the norm is 0 and nothing is clipped",
    .checks = "grad-norm",
    .source = "Megatron-LM a82fa72d52, 972553db35",
    .scenario = "fault_clip_norm_zero.json",
    .signature = "other-sum",
    .parts_count = 1,
    .parts = {{"clip.gradient", "never", "", 0, AT_EVERYWHERE}},
};
