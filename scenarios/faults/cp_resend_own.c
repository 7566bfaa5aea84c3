/* cp-resend-own: each rank sends its own block again, not the one that it received. */
#include "scenarios/fault.h"

const struct fault fault_cp_resend_own = {
    .name = "cp-resend-own",
    .component = "cp.hop",
    .injected = "each rank sends its own block again, not the one that it received",
    .visible = "the neighbour counts P - 1 times, all farther ranks not at all",
    .checks = "oracle,consumption,softmax-mass",
    .source = "a published test of ring attention",
    .scenario = "fault_cp_resend_own.json",
    .signature = "resent",
    .parts_count = 1,
    .parts = {{"cp.forward_received", "never", "", 0, AT_EVERYWHERE}},
};
