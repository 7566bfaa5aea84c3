/* pp-first-input-zero: the second stage's receive buffer is filled with zeros, whatever arrived in it. */
#include "scenarios/fault.h"

const struct fault fault_pp_first_input_zero = {
    .name = "pp-first-input-zero",
    .component = "pp.send_activation",
    .injected = "the second stage's receive buffer is filled with zeros, whatever arrived in it",
    .visible = "that stage trains on zeros",
    .checks = "poison",
    .source = "piper #15",
    .scenario = "fault_pp_first_input_zero.json",
    .signature = "zeros",
    .parts_count = 1,
    .parts = {{"pp.stage_input", "zero", "", 0, AT_STAGE_ONE}},
};
