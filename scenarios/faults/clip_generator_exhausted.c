/* clip-generator-exhausted: the norm goes through a list of parameters that was used up before. */
#include "scenarios/fault.h"

const struct fault fault_clip_generator_exhausted = {
    .name = "clip-generator-exhausted",
    .component = "grad.norm",
    .injected = "the norm goes through a list of parameters that was used up before",
    .visible = "the norm is 0 and nothing is clipped",
    .checks = "grad-norm",
    .source = "torchtitan #1258",
    .scenario = "fault_clip_generator_exhausted.json",
    .signature = "other-sum",
    .parts_count = 1,
    .parts = {{"clip.parameters", "never", "", 0, AT_EVERYWHERE}},
};
