/* cp-parity-order: even ranks send on one channel and receive on the other, odd ranks the other way round. */
#include "scenarios/fault.h"

const struct fault fault_cp_parity_order = {
    .name = "cp-parity-order",
    .component = "cp.hop",
    .injected = "even ranks send on one channel and receive on the other, odd ranks the other way round",
    .visible = "a deadlock where the ring is odd",
    .checks = "liveness",
    .source = "MindSpeed RingP2P.async_send_recv",
    .scenario = "fault_cp_parity_order.json",
    .signature = "deadlock",
    .parts_count = 1,
    .parts = {{"cp.order", "never", "", 0, AT_EVERYWHERE}},
};
