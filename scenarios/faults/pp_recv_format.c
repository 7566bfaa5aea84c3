/* pp-recv-format: the last stage's receive buffer has another format than what is sent. */
#include "scenarios/fault.h"

const struct fault fault_pp_recv_format = {
    .name = "pp-recv-format",
    .component = "pp.send_activation",
    .injected = "the last stage's receive buffer has another format than what is sent",
    .visible = "wrong values, or a refused receive",
    .checks = "collective-match",
    .source = "diffusion-pipe #544",
    .scenario = "fault_pp_recv_format.json",
    .signature = "",
    .parts_count = 1,
    .parts = {{"pp.send_activation", "wrong-format", "bf16", 0, AT_STAGE_LAST}},
};
