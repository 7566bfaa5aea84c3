/* cp-sink-each-step: sinks enter with each block. */
#include "scenarios/fault.h"

const struct fault fault_cp_sink_each_step = {
    .name = "cp-sink-each-step",
    .component = "cp.merge",
    .injected = "sinks enter with each block",
    .visible = "sinks weigh P times",
    .checks = "oracle,softmax-mass",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_sink_each_step.json",
    .signature = "sink",
    .parts_count = 1,
    .parts = {{"cp.sink_once", "never", "", 0, AT_EVERYWHERE}},
};
