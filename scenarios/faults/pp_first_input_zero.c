/* pp-first-input-zero: the buffer is cleared before its send is done, so that the second stage trains on zeros. */
#include "scenarios/fault.h"

const struct fault fault_pp_first_input_zero = {
    .name = "pp-first-input-zero",
    .component = "pp.send_activation",
    .injected = "the buffer is cleared before its send is done, so that the second stage trains on zeros",
    .visible = "that stage trains on zeros",
    .checks = "poison",
    .source = "piper #15",
    .scenario = "fault_pp_first_input_zero.json",
    .signature = "zeros",
    .parts_count = 1,
    .parts = {{"pp.send_activation", "reuse-buffer", "", 0, AT_STAGE_FIRST}},
};
