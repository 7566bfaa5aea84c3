/* pp-crossed-send-recv: on one stage the send and the receive of an exchange with its neighbour are swapped. */
#include "scenarios/fault.h"

const struct fault fault_pp_crossed_send_recv = {
    .name = "pp-crossed-send-recv",
    .component = "pp.send_activation",
    .injected = "on one stage the send and the receive of an exchange with its neighbour are swapped",
    .visible = "deadlock with synchronous sends",
    .checks = "liveness",
    .source = "PyTorch #172668, #178815",
    .scenario = "fault_pp_crossed_send_recv.json",
    .signature = "deadlock",
    .parts_count = 1,
    .parts = {{"pp.send_activation", "swap-order", "", 0, AT_STAGE_ONE}},
};
