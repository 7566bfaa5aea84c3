/* cp-sink-dropped: sinks are not merged. */
#include "scenarios/fault.h"

const struct fault fault_cp_sink_dropped = {
    .name = "cp-sink-dropped",
    .component = "cp.merge",
    .injected = "sinks are not merged",
    .visible = "all keys together get more of the softmax than is due",
    .checks = "oracle,softmax-mass",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_sink_dropped.json",
    .signature = "sink",
    .parts_count = 1,
    .parts = {{"cp.sink", "never", "", 0, AT_EVERYWHERE}},
};
